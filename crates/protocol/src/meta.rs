//! The meta grammar: `mg md ma <key> <flag>*`, `ms <key> <bytes> <flag>*`, `me <key> [b]`.
//!
//! A flag is a letter and, for some, a token right after it. All commands know all flags. The flags
//! are read in one pass, which checks letters and numbers and records both.
//!
//! # Which error wins
//! 1. A flag that begins with neither letter nor digit (or with `{` and above): the line cannot be
//!    split, `bad command line format`.
//! 2. A key that is too long, then more than 20 words.
//! 3. The first unknown or repeated letter.
//! 4. The last bad token or undecodable key; a bad `F` only if there is no other.
//! 5. A bad mode of `ms` or `ma`; then a value too large; then an opaque too long.
//!
//! `ma` answers 2 to 4 with one sentence.

use crate::command::{
    KEY_MAX, Meta, MetaFlags, MetaKey, Parsed, Refusal, RefusalCause, Request, StoreRefusal,
};
use crate::line::{self, FlagTokens, Limits, Line};
use crate::number;
use crate::reply::error;

/// `mg`.
#[inline]
pub(crate) fn get<'a>(line: Line<'a>, rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    match keyed(rest, extra(limits, b"GA")) {
        Ok(meta) => Parsed::Complete { request: Request::MetaGet(meta), used: line.used },
        Err(reply) => line.refuse(reply),
    }
}

/// `md`.
pub(crate) fn delete<'a>(line: Line<'a>, rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    match keyed(rest, extra(limits, b"GB")) {
        // A barrier is for a tag: without one the flag is as unknown as memcached's.
        Ok(meta) if meta.set.has(b'B') && !meta.set.has(b'G') => line.refuse(error::INVALID_FLAG),
        Ok(meta) => Parsed::Complete { request: Request::MetaDelete(meta), used: line.used },
        Err(reply) => line.refuse(reply),
    }
}

/// `ma`.
pub(crate) fn arith<'a>(line: Line<'a>, mut rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let key = line::take_key(&mut rest);
    if key.is_empty() || !splits(rest) {
        return line.refuse(error::BAD_FORMAT);
    }
    let mut flags = MetaFlags::default();
    match scan(key, rest, 2, extra(limits, b"GB"), &mut flags) {
        Err(_) => line.refuse(error::INVALID_OR_DUPLICATE),
        Ok(_) if flags.has(b'B') && !flags.has(b'G') => line.refuse(error::INVALID_OR_DUPLICATE),
        Ok(_) if flags.has(b'M') && !matches!(flags.mode, b'I' | b'+' | b'D' | b'-') => {
            line.refuse(error::INVALID_MA_MODE)
        }
        Ok(long_opaque) if long_opaque => line.refuse(error::OPAQUE_TOO_LONG),
        Ok(_) => {
            let meta =
                Meta { key: whole_key(key, &flags), flags: FlagTokens { rest }, set: flags, packet: None };
            Parsed::Complete { request: Request::MetaArith(meta), used: line.used }
        }
    }
}

/// `ms`.
#[inline]
pub(crate) fn set<'a>(line: Line<'a>, mut rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let key = line::take_key(&mut rest);
    let Some(len) = number::data_len(line::take(&mut rest)) else {
        return line.refuse(error::BAD_FORMAT);
    };
    let mut flags = MetaFlags::default();
    let long_opaque = match scan(key, rest, 3, extra(limits, b"nGA"), &mut flags) {
        Ok(long_opaque) => long_opaque,
        Err(reply) => return Parsed::Refused(line.refuse_store(reply, len)),
    };
    if flags.has(b'M') && !matches!(flags.mode, b'E' | b'A' | b'P' | b'R' | b'S') {
        return Parsed::Refused(line.refuse_store(error::INVALID_MS_MODE, len));
    }
    if long_opaque {
        return Parsed::Refused(line.refuse_store(error::OPAQUE_TOO_LONG, len));
    }
    // For every mode, and also under `q`, which leaves out successes only: as memcached.
    let refuse = |cause: RefusalCause| Refusal {
        invalidate: Some(key),
        invalidate_binary: flags.has(b'b'),
        store: Some(StoreRefusal {
            sent_key: key,
            is_binary: flags.has(b'b'),
            verb: flags.store_verb(),
            classic: false,
        }),
        token: flags.has(b'C').then_some(flags.compare_cas),
        cause,
        ..line.refuse_store(cause.reply(), len)
    };
    if !limits.fits(key, flags.client_flags, len) {
        return Parsed::Refused(refuse(RefusalCause::TooLarge));
    }
    line.with_data(len, false, refuse, |data| {
        let key = whole_key(key, &flags);
        Request::MetaSet(Meta { key, flags: FlagTokens { rest }, set: flags, packet: None }, data)
    })
}

/// `me`. memcached 1.6.45 ignores `b`; here it decodes a key that can be decoded.
pub(crate) fn debug<'a>(line: Line<'a>, mut rest: &'a [u8]) -> Parsed<'a> {
    let key = line::take_key(&mut rest);
    if key.is_empty() || key.len() > KEY_MAX || !splits(rest) {
        return line.refuse(error::BAD_FORMAT);
    }
    let binary = if line::take(&mut rest) == b"b" { MetaKey::base64(key) } else { None };
    let key = binary.unwrap_or_else(|| MetaKey::plain(key));
    Parsed::Complete { request: Request::MetaDebug(key), used: line.used }
}

/// Key and flags of `mg` and `md`.
#[inline]
fn keyed(mut rest: &[u8], extra: u64) -> Result<Meta<'_>, &'static str> {
    let key = line::take_key(&mut rest);
    if key.is_empty() {
        return Err(error::BAD_FORMAT);
    }
    let mut set = MetaFlags::default();
    if scan(key, rest, 2, extra, &mut set)? {
        return Err(error::OPAQUE_TOO_LONG);
    }
    Ok(Meta { key: whole_key(key, &set), flags: FlagTokens { rest }, set, packet: None })
}

/// Reads all flags. `before`: words of the line before them. True if the opaque is too long.
#[inline]
fn scan(
    key: &[u8],
    rest: &[u8],
    before: usize,
    extra: u64,
    flags: &mut MetaFlags,
) -> Result<bool, &'static str> {
    let mut failed = None;
    let mut long_opaque = false;
    let mut count = before;
    for token in (FlagTokens { rest }) {
        count += 1;
        let letter = token[0];
        let bit = if (b'A'..=b'z').contains(&letter) { 1 << (letter - b'A') } else { 0 };
        if bit & (KNOWN | extra) == 0 {
            return Err(first_of(key, rest, before, error::INVALID_FLAG));
        }
        if flags.letters & bit != 0 {
            return Err(first_of(key, rest, before, error::DUPLICATE_FLAG));
        }
        flags.letters |= bit;
        if bit & WITH_TOKEN != 0 {
            match with_token(letter, &token[1..], flags) {
                Ok(()) => {}
                Err("") => failed = failed.or(Some(error::BAD_FORMAT)),
                Err(reply) => failed = Some(reply),
            }
        } else if letter == b'O' {
            long_opaque = token.len() > OPAQUE_MAX;
        } else if letter == b'b' && MetaKey::base64(key).is_none() {
            failed = Some(error::BAD_KEY);
        }
    }
    if key.len() > KEY_MAX || count > WORDS_MAX || failed.is_some() {
        return Err(first_of(key, rest, before, failed.unwrap_or_default()));
    }
    Ok(long_opaque)
}

/// The key after a successful [`scan`], which has checked that it can be decoded.
#[inline]
fn whole_key<'a>(key: &'a [u8], flags: &MetaFlags) -> MetaKey<'a> {
    let binary = if flags.has(b'b') { MetaKey::base64(key) } else { None };
    binary.unwrap_or(MetaKey::plain(key))
}

/// Records a flag with a number or mode. The empty error is that of `F`, which has no text of its own.
#[inline]
fn with_token(letter: u8, token: &[u8], flags: &mut MetaFlags) -> Result<(), &'static str> {
    match letter {
        b'T' => flags.exptime = number::exptime(token).ok_or(error::BAD_TOKEN)?,
        b'N' => flags.vivify = number::exptime(token).ok_or(error::BAD_TOKEN)?,
        b'R' => flags.recache = number::exptime(token).ok_or(error::BAD_TOKEN)?,
        b'C' => flags.compare_cas = number::unsigned(token).ok_or(error::BAD_TOKEN)?,
        b'E' => flags.explicit_cas = number::unsigned(token).ok_or(error::BAD_TOKEN)?,
        b'F' => flags.client_flags = number::strict_u32(token).ok_or("")?,
        b'J' => flags.initial = number::unsigned(token).ok_or(error::INVALID_INITIAL)?,
        b'D' => flags.delta = number::unsigned(token).ok_or(error::INVALID_META_DELTA)?,
        _ => flags.mode = token.first().copied().unwrap_or(0),
    }
    Ok(())
}

/// The error that wins over `found`.
#[cold]
fn first_of(key: &[u8], rest: &[u8], before: usize, found: &'static str) -> &'static str {
    if !splits(rest) || key.len() > KEY_MAX {
        error::BAD_FORMAT
    } else if before + (FlagTokens { rest }).count() > WORDS_MAX {
        error::TOO_MANY_FLAGS
    } else {
        found
    }
}

/// Whether memcached's tokenizer gets through these flags.
fn splits(rest: &[u8]) -> bool {
    FlagTokens { rest }.all(|token| matches!(token[0], b'A'..=b'z' | b'0'..=b'9'))
}

/// The letters of extensions, if these are enabled.
#[inline]
fn extra(limits: &Limits, letters: &[u8]) -> u64 {
    if limits.extensions { mask(letters) } else { 0 }
}

#[inline]
const fn mask(letters: &[u8]) -> u64 {
    let (mut bits, mut i) = (0, 0);
    while i < letters.len() {
        bits |= 1 << (letters[i] - b'A');
        i += 1;
    }
    bits
}

/// Flag letters of memcached 1.6.45, on any command.
const KNOWN: u64 = mask(b"bcfhklqstuvxCDEFIJLMNOPRT");
/// Those whose token is read here.
const WITH_TOKEN: u64 = mask(b"CDEFJMNRT");
/// Words of a line, command and key included.
const WORDS_MAX: usize = 20;
/// Length of an opaque flag with its letter.
const OPAQUE_MAX: usize = 32;
