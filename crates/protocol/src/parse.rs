//! Finding the line, telling commands apart, and the data block that follows a store.
//!
//! A line ends in LF; one CR before it belongs to the line end. The first word is the text before the first
//! blank: a line that begins with a blank is not a command. The grammars are in `text` (classic), `meta` and
//! `admin`; they get the line without its end and return a [`Parsed`].
//!
//! # Refusals
//! Refusals are those of memcached 1.6.45: their words, the one of several errors that is answered, and
//! whether the data block of a refused store is dropped. A block is dropped if its length is valid. After a
//! line with an invalid length, the block is read as commands.
//!
//! # Invariants
//! * The result does not depend on how a line is split into reads.
//! * Every command is in [`by_name`]; [`dispatch`] finds the most common ones without it.

use crate::command::{Parsed, Request, StoreVerb};
use crate::line::{LINE_MAX, Limits, Line, close};
use crate::{admin, meta, text};

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
        return text::get(line, keys, false);
    }
    if let [b's', b'e', b't', b' ', rest @ ..] = text {
        return text::store(line, StoreVerb::Set, rest, limits);
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
        b"set" => text::store(line, StoreVerb::Set, rest, limits),
        b"add" => text::store(line, StoreVerb::Add, rest, limits),
        b"replace" => text::store(line, StoreVerb::Replace, rest, limits),
        b"append" => text::store(line, StoreVerb::Append, rest, limits),
        b"prepend" => text::store(line, StoreVerb::Prepend, rest, limits),
        b"cas" => text::store(line, StoreVerb::Cas(0), rest, limits),
        b"get" => text::get(line, rest, false),
        b"gets" => text::get(line, rest, true),
        b"gat" => text::gat(line, rest, false),
        b"gats" => text::gat(line, rest, true),
        b"incr" => text::arith(line, rest, true),
        b"decr" => text::arith(line, rest, false),
        b"touch" => text::touch(line, rest),
        b"delete" => text::delete(line, rest),
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
