//! The text protocol: finding the line, telling commands apart, and the classic grammar (`get gets gat gats`,
//! the six stores, `incr decr touch delete`).
//!
//! A line ends in LF; one CR before it belongs to the line end. The first word is the text before the first
//! blank: a line that begins with a blank is not a command. The other grammars are in `meta` and `admin`. A
//! grammar gets the line without its end and returns a [`Parsed`]. The classic one ignores extra words at the
//! end of a line, except for a last `noreply`.
//!
//! # Refusals
//! Refusals are those of memcached 1.6.45: their words, the one of several errors that is answered, and
//! whether the data block of a refused store is dropped. A block is dropped if its length is valid. After a
//! line with an invalid length, the block is read as commands.
//!
//! # Invariants
//! * The result does not depend on how a line is split into reads.
//! * Every command is in [`by_name`]; [`dispatch`] finds the most common ones without it.
//! * A request that is returned has a key of 1 to [`KEY_MAX`] bytes and numbers in their ranges.

use crate::command::{
    Arith, Delete, Get, KEY_MAX, Parsed, Refusal, RefusalCause, Request, Store, StoreRefusal, StoreVerb,
    Touch,
};
use crate::line::{self, Keys, LINE_MAX, Limits, Line, close};
use crate::reply::error;
use crate::{admin, meta, number};

/// Parses the first request of `input`.
///
/// ```
/// use cattlegrid_protocol::{Limits, Parsed, Request, parse};
///
/// let Parsed::Complete { request: Request::Get(get), used } = parse(b"get a b\r\nget", &Limits::default())
/// else { panic!() };
/// assert_eq!(used, 9);
/// assert_eq!(get.keys.map(Result::unwrap).collect::<Vec<_>>(), [b"a", b"b"]);
/// ```
#[inline]
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Parsed<'a> {
    parse_from(input, 0, limits)
}

/// Parses as [`parse`] does, for an input that has grown: `scanned` is its length when it was last found
/// incomplete, or 0. The long line of a `get` that arrives in many pieces is thus searched once.
#[inline]
pub fn parse_from<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Parsed<'a> {
    let window = &input[..input.len().min(LINE_MAX + 1)];
    match memchr::memchr(b'\n', window) {
        Some(lf) => dispatch(input, lf, limits),
        None => without_line(input, scanned, limits),
    }
}

/// Parses the line of a store whose data block was received elsewhere.
///
/// For such a line alone [`parse`] returns [`Parsed::Incomplete`]. This returns what [`parse`] returns for
/// the line and its block, with two differences: the block is [`Block::Apart`](crate::Block::Apart), and
/// `used` is the line's length. `is_ended`: CRLF follows the block.
///
/// ```
/// use cattlegrid_protocol::{Block, Limits, Parsed, Request, parse_apart};
///
/// let line = b"set k 0 0 5\r\n";
/// let Parsed::Complete { request: Request::Store(store), used: 13 } =
///     parse_apart(line, true, &Limits::default())
/// else { panic!() };
/// assert_eq!(store.data, Block::Apart(5));
/// ```
pub fn parse_apart<'a>(line: &'a [u8], is_ended: bool, limits: &Limits) -> Parsed<'a> {
    match memchr::memchr(b'\n', line) {
        Some(lf) => dispatch_line(Line { input: line, used: lf + 1, apart: Some(is_ended) }, limits),
        None => without_line(line, 0, limits),
    }
}

#[inline]
fn dispatch<'a>(input: &'a [u8], lf: usize, limits: &Limits) -> Parsed<'a> {
    dispatch_line(Line { input, used: lf + 1, apart: None }, limits)
}

#[inline]
fn dispatch_line<'a>(line: Line<'a>, limits: &Limits) -> Parsed<'a> {
    let text = &line.input[..line.used - 1];
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if let [b'g', b'e', b't', b' ', keys @ ..] = text {
        return get(line, keys, false);
    }
    if let [b's', b'e', b't', b' ', rest @ ..] = text {
        return store(line, StoreVerb::Set, rest, limits);
    }
    if let [b'm', letter, b' ', rest @ ..] = text {
        match letter {
            b'g' => return meta::get(line, rest, limits),
            b's' => return meta::set(line, rest, limits),
            b'd' => return meta::delete(line, rest, limits),
            b'a' => return meta::arith(line, rest, limits),
            _ => {}
        }
    }
    by_name(line, text, limits)
}

/// Every command, by its first word.
fn by_name<'a>(line: Line<'a>, text: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let end = text.iter().position(|&b| b == b' ').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        b"set" => store(line, StoreVerb::Set, rest, limits),
        b"add" => store(line, StoreVerb::Add, rest, limits),
        b"replace" => store(line, StoreVerb::Replace, rest, limits),
        b"append" => store(line, StoreVerb::Append, rest, limits),
        b"prepend" => store(line, StoreVerb::Prepend, rest, limits),
        b"cas" => store(line, StoreVerb::Cas(0), rest, limits),
        b"get" => get(line, rest, false),
        b"gets" => get(line, rest, true),
        b"gat" => gat(line, rest, false),
        b"gats" => gat(line, rest, true),
        b"incr" => arith(line, rest, true),
        b"decr" => arith(line, rest, false),
        b"touch" => touch(line, rest),
        b"delete" => delete(line, rest),
        b"mg" => meta::get(line, rest, limits),
        b"ms" => meta::set(line, rest, limits),
        b"md" => meta::delete(line, rest, limits),
        b"ma" => meta::arith(line, rest, limits),
        b"me" => meta::debug(line, rest),
        b"mn" => Parsed::Complete { request: Request::MetaNoop, used: line.used },
        _ => admin::parse(line, name, rest, text, limits),
    }
}

/// No LF among the first bytes: an incomplete line, a long `get`, or bytes of another protocol.
#[cold]
fn without_line<'a>(input: &'a [u8], scanned: usize, limits: &Limits) -> Parsed<'a> {
    if input.len() <= LINE_MAX {
        return Parsed::Incomplete { need: input.len() + 1, block: None };
    }
    if !["get ", "gets ", "gat ", "gats "].iter().any(|name| input.starts_with(name.as_bytes())) {
        return close(input);
    }
    let longest = limits.max_get_line_bytes.max(LINE_MAX);
    let window = &input[..input.len().min(longest.saturating_add(1))];
    let start = scanned.clamp(LINE_MAX + 1, window.len());
    match memchr::memchr(b'\n', &window[start..]) {
        Some(at) => dispatch(input, start + at, limits),
        None if input.len() > longest => close(input),
        None => Parsed::Incomplete { need: input.len() + 1, block: None },
    }
}

/// `get gets`: `<key>*`.
#[inline]
fn get<'a>(line: Line<'a>, keys: &'a [u8], cas: bool) -> Parsed<'a> {
    keys_of(line, keys, cas, None)
}

/// `gat gats`: `<exptime> <key>*`.
fn gat<'a>(line: Line<'a>, mut rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let exptime = line::take(&mut rest);
    if line::take_key(&mut &*rest).is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    match number::exptime(exptime) {
        Some(exptime) => keys_of(line, rest, cas, Some(exptime)),
        None => line.refuse(error::INVALID_EXPTIME),
    }
}

/// `set add replace append prepend`: `<key> <flags> <exptime> <bytes> [noreply]`; `cas` has its
/// number before `noreply` (that of `verb` is filled in).
fn store<'a>(line: Line<'a>, mut verb: StoreVerb, mut rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let key = line::take_key(&mut rest);
    let flags = line::take(&mut rest);
    let exptime = line::take(&mut rest);
    let Some(len) = number::data_len(line::take(&mut rest)) else {
        return line.refuse(error::BAD_FORMAT);
    };
    let noreply = line::noreply(rest);
    let bad = |reply| Parsed::Refused(line.refuse_store(if noreply { "" } else { reply }, len));
    if key.len() > KEY_MAX {
        return bad(error::BAD_FORMAT);
    }
    let (Some(flags), Some(exptime)) =
        (number::client_flags_of_store(flags), number::exptime_of_store(exptime))
    else {
        return bad(error::BAD_FORMAT);
    };
    if let StoreVerb::Cas(cas) = &mut verb {
        match number::unsigned(line::take(&mut rest)) {
            Some(n) => *cas = n,
            None => return bad(error::BAD_FORMAT),
        }
    }
    // As memcached: only after a refused `set` could the old value be taken for the new one.
    let invalidate = (verb == StoreVerb::Set).then_some(key);
    let refuse = |cause: RefusalCause| {
        let reply = if noreply { "" } else { cause.reply() };
        let store = Some(StoreRefusal { sent_key: key, is_binary: false, verb, classic: true });
        Refusal { invalidate, store, cause, ..line.refuse_store(reply, len) }
    };
    if !limits.fits(key, flags, len) {
        return Parsed::Refused(refuse(RefusalCause::TooLarge));
    }
    line.with_data(len, noreply, refuse, |data| {
        Request::Store(Store { verb, key, flags, exptime, data, noreply })
    })
}

/// `incr decr`: `<key> <delta> [noreply]`.
fn arith<'a>(line: Line<'a>, mut rest: &'a [u8], incr: bool) -> Parsed<'a> {
    let noreply = line::noreply(rest);
    let key = line::take_key(&mut rest);
    let delta = line::take(&mut rest);
    if delta.is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    if key.len() > KEY_MAX {
        return line.refuse_unless(noreply, error::BAD_FORMAT);
    }
    match number::unsigned(delta) {
        Some(delta) => {
            let request = Request::Arith(Arith { key, incr, delta, noreply });
            Parsed::Complete { request, used: line.used }
        }
        None => line.refuse_unless(noreply, error::INVALID_DELTA),
    }
}

/// `touch <key> <exptime> [noreply]`.
fn touch<'a>(line: Line<'a>, mut rest: &'a [u8]) -> Parsed<'a> {
    let noreply = line::noreply(rest);
    let key = line::take_key(&mut rest);
    let exptime = line::take(&mut rest);
    if exptime.is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    if key.len() > KEY_MAX {
        return line.refuse_unless(noreply, error::BAD_FORMAT);
    }
    match number::exptime(exptime) {
        Some(exptime) => Parsed::Complete {
            request: Request::Touch(Touch { key, exptime, noreply, packet: None }),
            used: line.used,
        },
        None => line.refuse_unless(noreply, error::INVALID_EXPTIME),
    }
}

/// `delete <key> [noreply]`.
fn delete<'a>(line: Line<'a>, mut rest: &'a [u8]) -> Parsed<'a> {
    let key = line::take_key(&mut rest);
    // After the key, which may be that word itself.
    let noreply = line::noreply(rest);
    if key.is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    if key.len() > KEY_MAX {
        return line.refuse_unless(noreply, error::BAD_FORMAT);
    }
    Parsed::Complete { request: Request::Delete(Delete { key, noreply }), used: line.used }
}

#[inline]
fn keys_of<'a>(line: Line<'a>, rest: &'a [u8], cas: bool, touch: Option<i64>) -> Parsed<'a> {
    let keys = Keys { rest: line::trim(rest) };
    if keys.rest.is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    // A short line has no long key. memcached answers the error alone, none of the keys before it.
    if keys.rest.len() > KEY_MAX && keys.clone().any(|key| key.is_err()) {
        return line.refuse(error::BAD_FORMAT);
    }
    Parsed::Complete { request: Request::Get(Get { keys, cas, touch }), used: line.used }
}
