//! The classic grammar: `get gets gat gats`, the six stores, `incr decr touch delete`.
//!
//! Extra words at the end of a line are ignored, except for a last `noreply`.
//!
//! # Invariant
//! A request that is returned has a key of 1 to [`KEY_MAX`] bytes and numbers in their ranges.

use crate::command::{
    Arith, Delete, Get, KEY_MAX, Keys, Parsed, Refusal, RefusalCause, Request, Store, StoreRefusal,
    StoreVerb, Touch,
};
use crate::line::{Limits, Line};
use crate::reply::error;
use crate::{number, words};

/// `get gets`: `<key>*`.
#[inline]
pub(crate) fn get<'a>(line: Line<'a>, keys: &'a [u8], cas: bool) -> Parsed<'a> {
    keys_of(line, keys, cas, None)
}

/// `gat gats`: `<exptime> <key>*`.
pub(crate) fn gat<'a>(line: Line<'a>, mut rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let exptime = words::take(&mut rest);
    if words::take_key(&mut &*rest).is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    match number::exptime(exptime) {
        Some(exptime) => keys_of(line, rest, cas, Some(exptime)),
        None => line.refuse(error::INVALID_EXPTIME),
    }
}

/// `set add replace append prepend`: `<key> <flags> <exptime> <bytes> [noreply]`; `cas` has its
/// number before `noreply` (that of `verb` is filled in).
pub(crate) fn store<'a>(
    line: Line<'a>,
    mut verb: StoreVerb,
    mut rest: &'a [u8],
    limits: &Limits,
) -> Parsed<'a> {
    let key = words::take_key(&mut rest);
    let flags = words::take(&mut rest);
    let exptime = words::take(&mut rest);
    let Some(len) = number::data_len(words::take(&mut rest)) else {
        return line.refuse(error::BAD_FORMAT);
    };
    let noreply = words::noreply(rest);
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
        match number::unsigned(words::take(&mut rest)) {
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
pub(crate) fn arith<'a>(line: Line<'a>, mut rest: &'a [u8], incr: bool) -> Parsed<'a> {
    let noreply = words::noreply(rest);
    let key = words::take_key(&mut rest);
    let delta = words::take(&mut rest);
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
pub(crate) fn touch<'a>(line: Line<'a>, mut rest: &'a [u8]) -> Parsed<'a> {
    let noreply = words::noreply(rest);
    let key = words::take_key(&mut rest);
    let exptime = words::take(&mut rest);
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
pub(crate) fn delete<'a>(line: Line<'a>, mut rest: &'a [u8]) -> Parsed<'a> {
    let key = words::take_key(&mut rest);
    // After the key, which may be that word itself.
    let noreply = words::noreply(rest);
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
    let keys = Keys { rest: words::trim(rest) };
    if keys.rest.is_empty() {
        return line.refuse(error::BAD_FORMAT);
    }
    // A short line has no long key. memcached answers the error alone, none of the keys before it.
    if keys.rest.len() > KEY_MAX && keys.clone().any(|key| key.is_err()) {
        return line.refuse(error::BAD_FORMAT);
    }
    Parsed::Complete { request: Request::Get(Get { keys, cas, touch }), used: line.used }
}
