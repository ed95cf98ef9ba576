//! Replies as a client reads them: bytes to [`Response`]s.
//!
//! The other direction of [`reply`](crate::reply). [`parse_response`] takes what has arrived and gives the
//! first element of it: a value with its data block, a line, or how many bytes are wanted. A reply to a `get`
//! is several elements, up to [`Response::End`]; which command an element answers is known to the client that
//! sent it.
//!
//! # Invariants
//! * No I/O and no allocation: a response borrows the input. Parsing any bytes never panics.
//! * How the input is split into reads changes nothing: the elements and faults are the same.
//! * `used` is between 1 and the input's length; `need` is more than the input's length.

use crate::line::{Words, take};
use crate::number::{strict_u32, strict_u64};

/// Longest line of a reply, in bytes without its end: a statistic of a rule has a pattern of up to 1,000
/// bytes.
pub const RESPONSE_LINE_MAX: usize = 8 << 10;
/// Longest data block of a reply, in bytes: the largest item of any memcached.
pub const RESPONSE_DATA_MAX: usize = 1 << 30;

/// One element of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// `VALUE <key> <flags> <bytes> [<cas>]` and its data block.
    Value {
        /// The key as the server sent it.
        key: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The CAS; only in replies to `gets` and `gats`.
        cas: Option<u64>,
        /// The value.
        data: &'a [u8],
    },
    /// `END`: after the last value or statistic.
    End,
    /// The status of a store, a delete or a touch.
    Status(Status),
    /// A decimal number, to `incr` and `decr`.
    Number(u64),
    /// `VA <bytes> <flags>` and its data block.
    MetaValue {
        /// The flags returned.
        flags: Words<'a>,
        /// The value.
        data: &'a [u8],
    },
    /// `HD EN NF NS EX` with the flags returned.
    Meta {
        /// The status.
        status: MetaStatus,
        /// The flags returned.
        flags: Words<'a>,
    },
    /// `MN`, to `mn`.
    MetaNoop,
    /// `STAT <name> <value>`.
    Stat {
        /// Up to the first blank.
        name: &'a [u8],
        /// The rest of the line; may be empty.
        value: &'a [u8],
    },
    /// `ERROR`, `CLIENT_ERROR ...` or `SERVER_ERROR ...`.
    Error {
        /// By the first word.
        kind: ErrorKind,
        /// The whole line.
        line: &'a [u8],
    },
    /// Any other line, such as `VERSION ...` or a line of a dump, without its end.
    Line(&'a [u8]),
}

/// A line of one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `STORED`.
    Stored,
    /// `NOT_STORED`.
    NotStored,
    /// `EXISTS`: another CAS.
    Exists,
    /// `NOT_FOUND`.
    NotFound,
    /// `DELETED`.
    Deleted,
    /// `TOUCHED`.
    Touched,
    /// `OK`.
    Ok,
    /// `RESET`.
    Reset,
}

/// The first word of a meta reply without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`: done.
    Done,
    /// `EN`: not in the cache.
    Miss,
    /// `NF`: no such item.
    NotFound,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: exists with another CAS.
    Exists,
}

/// The side at fault for an error, as the server sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// `ERROR`: no such command.
    Unknown,
    /// `CLIENT_ERROR`.
    Client,
    /// `SERVER_ERROR`.
    Server,
}

/// The result of [`parse_response`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedResponse<'a> {
    /// An element, and how many bytes of the input it has.
    Complete {
        /// The element.
        response: Response<'a>,
        /// The response's length in bytes.
        used: usize,
    },
    /// The element is not whole: at least `need` bytes of input are wanted.
    Partial {
        /// Above the input's length.
        need: usize,
    },
    /// No server says this. The connection cannot be used any more: where the next element begins is not
    /// known.
    Broken(BrokenResponse),
}

/// Why bytes are no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenResponse {
    /// A line of more than [`RESPONSE_LINE_MAX`] bytes.
    LongLine,
    /// `VALUE` or `VA` with a word missing, too many, or no number.
    BadHeader,
    /// A data block of more than [`RESPONSE_DATA_MAX`] bytes.
    LargeData,
    /// A data block that does not end where its length says.
    BadData,
}

/// Reads the first element of `input`.
pub fn parse_response(input: &[u8]) -> ParsedResponse<'_> {
    let Some(newline) = memchr::memchr(b'\n', &input[..input.len().min(RESPONSE_LINE_MAX + 2)]) else {
        if input.len() >= RESPONSE_LINE_MAX + 2 {
            return ParsedResponse::Broken(BrokenResponse::LongLine);
        }
        return ParsedResponse::Partial { need: input.len() + 1 };
    };
    let line = &input[..newline];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let used = newline + 1;
    if let Some(words) = line.strip_prefix(b"VALUE ") {
        return value(words, input, used);
    }
    if let Some(words) = line.strip_prefix(b"VA ") {
        return meta_value(words, input, used);
    }
    ParsedResponse::Complete { response: of_line(line), used }
}

/// `words`: what follows `VALUE `; `start`: where the data block begins.
fn value<'a>(words: &'a [u8], input: &'a [u8], start: usize) -> ParsedResponse<'a> {
    let mut rest = words;
    let (key, flags, bytes) = (take(&mut rest), strict_u32(take(&mut rest)), strict_u32(take(&mut rest)));
    let cas = take(&mut rest);
    let cas = if cas.is_empty() { Some(None) } else { strict_u64(cas).map(Some) };
    let (Some(flags), Some(bytes), Some(cas), b"") = (flags, bytes, cas, take(&mut rest)) else {
        return ParsedResponse::Broken(BrokenResponse::BadHeader);
    };
    with_data(input, start, bytes, |data| Response::Value { key, flags, cas, data })
}

fn meta_value<'a>(words: &'a [u8], input: &'a [u8], start: usize) -> ParsedResponse<'a> {
    let mut rest = words;
    let Some(bytes) = strict_u32(take(&mut rest)) else {
        return ParsedResponse::Broken(BrokenResponse::BadHeader);
    };
    with_data(input, start, bytes, |data| Response::MetaValue { flags: Words { rest }, data })
}

fn with_data<'a>(
    input: &'a [u8],
    start: usize,
    bytes: u32,
    response: impl FnOnce(&'a [u8]) -> Response<'a>,
) -> ParsedResponse<'a> {
    let bytes = bytes as usize;
    if bytes > RESPONSE_DATA_MAX {
        return ParsedResponse::Broken(BrokenResponse::LargeData);
    }
    let used = start + bytes + 2;
    // A wrong end is said as soon as its first byte is there, however the input is split.
    match input.get(start + bytes..) {
        None | Some([] | [b'\r']) => ParsedResponse::Partial { need: used.max(input.len() + 1) },
        Some([b'\r', b'\n', ..]) => {
            ParsedResponse::Complete { response: response(&input[start..start + bytes]), used }
        }
        Some(_) => ParsedResponse::Broken(BrokenResponse::BadData),
    }
}

fn of_line(line: &[u8]) -> Response<'_> {
    let mut rest = line;
    let word = take(&mut rest);
    let meta = |status| Response::Meta { status, flags: Words { rest } };
    match word {
        b"END" if word == line => Response::End,
        b"HD" => meta(MetaStatus::Done),
        b"EN" => meta(MetaStatus::Miss),
        b"NF" => meta(MetaStatus::NotFound),
        b"NS" => meta(MetaStatus::NotStored),
        b"EX" => meta(MetaStatus::Exists),
        b"MN" if word == line => Response::MetaNoop,
        b"STAT" => {
            let name = take(&mut rest);
            Response::Stat { name, value: rest.strip_prefix(b" ").unwrap_or(rest) }
        }
        b"ERROR" => Response::Error { kind: ErrorKind::Unknown, line },
        b"CLIENT_ERROR" => Response::Error { kind: ErrorKind::Client, line },
        b"SERVER_ERROR" | b"SERVER_ERROR:" => Response::Error { kind: ErrorKind::Server, line },
        _ => match (status(line), strict_u64(line)) {
            (Some(status), _) => Response::Status(status),
            (None, Some(number)) => Response::Number(number),
            (None, None) => Response::Line(line),
        },
    }
}

fn status(line: &[u8]) -> Option<Status> {
    Some(match line {
        b"STORED" => Status::Stored,
        b"NOT_STORED" => Status::NotStored,
        b"EXISTS" => Status::Exists,
        b"NOT_FOUND" => Status::NotFound,
        b"DELETED" => Status::Deleted,
        b"TOUCHED" => Status::Touched,
        b"OK" => Status::Ok,
        b"RESET" => Status::Reset,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(input: &[u8]) -> Response<'_> {
        match parse_response(input) {
            ParsedResponse::Complete { response, used } if used == input.len() => response,
            other => panic!("{}: {other:?}", input.escape_ascii()),
        }
    }

    #[test]
    fn values() {
        let value = Response::Value { key: b"k", flags: 7, cas: None, data: b"a\nb" };
        assert_eq!(whole(b"VALUE k 7 3\r\na\nb\r\n"), value);
        let value = Response::Value { key: b"k", flags: u32::MAX, cas: Some(u64::MAX), data: b"" };
        assert_eq!(whole(b"VALUE k 4294967295 0 18446744073709551615\r\n\r\n"), value);
        let Response::MetaValue { flags, data } = whole(b"VA 2 f7 kfoo W\r\n\r\n\r\n") else { panic!() };
        assert_eq!((flags.collect::<Vec<_>>(), data), (vec![&b"f7"[..], b"kfoo", b"W"], &b"\r\n"[..]));
    }

    #[test]
    fn lines() {
        for (line, response) in [
            ("END", Response::End),
            ("STORED", Response::Status(Status::Stored)),
            ("NOT_STORED", Response::Status(Status::NotStored)),
            ("EXISTS", Response::Status(Status::Exists)),
            ("NOT_FOUND", Response::Status(Status::NotFound)),
            ("DELETED", Response::Status(Status::Deleted)),
            ("TOUCHED", Response::Status(Status::Touched)),
            ("OK", Response::Status(Status::Ok)),
            ("RESET", Response::Status(Status::Reset)),
            ("18446744073709551615", Response::Number(u64::MAX)),
            ("18446744073709551616", Response::Line(b"18446744073709551616")),
            ("MN", Response::MetaNoop),
            ("STAT a b c", Response::Stat { name: b"a", value: b"b c" }),
            ("STAT a ", Response::Stat { name: b"a", value: b"" }),
            ("ERROR", Response::Error { kind: ErrorKind::Unknown, line: b"ERROR" }),
            ("CLIENT_ERROR x", Response::Error { kind: ErrorKind::Client, line: b"CLIENT_ERROR x" }),
            ("SERVER_ERROR x", Response::Error { kind: ErrorKind::Server, line: b"SERVER_ERROR x" }),
            ("VERSION 1", Response::Line(b"VERSION 1")),
            ("ENDING", Response::Line(b"ENDING")),
            ("", Response::Line(b"")),
        ] {
            assert_eq!(whole(format!("{line}\r\n").as_bytes()), response, "{line}");
            assert_eq!(whole(format!("{line}\n").as_bytes()), response, "{line}");
        }
        for (word, expected) in [
            ("HD", MetaStatus::Done),
            ("EN", MetaStatus::Miss),
            ("NF", MetaStatus::NotFound),
            ("NS", MetaStatus::NotStored),
            ("EX", MetaStatus::Exists),
        ] {
            let text = format!("{word} Oq c5\r\n");
            let Response::Meta { status, flags } = whole(text.as_bytes()) else { panic!("{text}") };
            assert_eq!((status, flags.count()), (expected, 2));
        }
    }

    #[test]
    fn what_no_server_says() {
        for (input, why) in [
            ("VALUE k 7\r\n", BrokenResponse::BadHeader),
            ("VALUE k 7 3 9 1\r\n", BrokenResponse::BadHeader),
            ("VALUE k -7 3\r\n", BrokenResponse::BadHeader),
            ("VALUE k 7 x\r\n", BrokenResponse::BadHeader),
            ("VA\u{20}\r\n", BrokenResponse::BadHeader),
            ("VALUE k 7 3\r\nabcd", BrokenResponse::BadData),
            ("VA 3\r\nabc\rx", BrokenResponse::BadData),
            ("VALUE k 7 1073741825\r\n", BrokenResponse::LargeData),
        ] {
            assert_eq!(parse_response(input.as_bytes()), ParsedResponse::Broken(why), "{input}");
        }
        assert_eq!(
            parse_response(b"VALUE k 7 1073741824\r\n"),
            ParsedResponse::Partial { need: (1 << 30) + 24 }
        );
    }

    #[test]
    fn the_longest_line() {
        let mut line = vec![b'x'; RESPONSE_LINE_MAX];
        assert_eq!(parse_response(&line), ParsedResponse::Partial { need: RESPONSE_LINE_MAX + 1 });
        line.extend_from_slice(b"\r\n");
        assert!(matches!(whole(&line), Response::Line(line) if line.len() == RESPONSE_LINE_MAX));
        line.insert(0, b'x');
        assert_eq!(parse_response(&line), ParsedResponse::Broken(BrokenResponse::LongLine));
    }
}
