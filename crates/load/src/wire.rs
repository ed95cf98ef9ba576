//! The protocols in which a server is loaded.

use std::slice::ChunksExact;

use cattlegrid_protocol::{ErrorKind, ParsedResponse, Response, Status, parse_response, request};

use crate::verify::Fault;

mod binary;

pub use binary::Binary;

/// A protocol: it writes requests and reads replies.
pub trait Wire {
    /// The protocol for one request, and for its reply. The request's packets are numbered from `first`; most
    /// protocols have no numbers.
    #[must_use]
    fn numbered(&self, first: u32) -> Self
    where
        Self: Clone,
    {
        let _ = first;
        self.clone()
    }

    /// The words for an error at the end of a connection, or after silence, before the first reply: what the
    /// cause may be.
    fn doubt(&self) -> &'static str {
        ""
    }

    /// Appends a get of these keys, at least one.
    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>);

    /// Appends the part of a set before its value.
    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>);

    /// Appends the part of a set after its value.
    fn end_set(&self, out: &mut Vec<u8>);

    /// Reads one element of a reply, and its length in bytes; None while it is incomplete.
    ///
    /// `keys`: the number of keys in the request, 0 for a set. `seen`: how many of them have been answered.
    fn read<'a>(
        &self,
        keys: usize,
        seen: usize,
        input: &'a [u8],
    ) -> Result<Option<(Element<'a>, usize)>, Fault>;
}

/// A part of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A value with the name of its key. Unanswered keys before this one are misses.
    Named {
        /// The key as the server sent it.
        key: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The value.
        data: &'a [u8],
    },
    /// A value with the number of its key. Unanswered keys before this one are misses.
    Placed {
        /// The place of the key in the request, from 0; less than the number of its keys.
        place: usize,
        /// The key as the server sent it.
        key: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The value.
        data: &'a [u8],
    },
    /// The value of the next key, with client flags.
    Found {
        /// Client flags.
        flags: u32,
        /// The value.
        data: &'a [u8],
    },
    /// The answer for the next key: its value, or a miss.
    Next(Option<&'a [u8]>),
    /// A part without meaning, such as the header of a list.
    Skip,
    /// The end of the reply to a get.
    End,
    /// The whole reply to a successful set.
    Stored,
    /// The whole reply to a set that failed.
    Refused,
}

/// The classic text protocol of memcached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memcached;

impl Wire for Memcached {
    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>) {
        request::get(out, "get", keys);
    }

    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>) {
        request::store_header(out, "set", key, flags, ttl_seconds, value_bytes);
    }

    fn end_set(&self, out: &mut Vec<u8>) {
        request::end_data(out);
    }

    fn read<'a>(
        &self,
        keys: usize,
        _: usize,
        input: &'a [u8],
    ) -> Result<Option<(Element<'a>, usize)>, Fault> {
        let asked = if keys == 0 { "set" } else { "get" };
        let (response, used) = match parse_response(input) {
            ParsedResponse::Complete { response, used } => (response, used),
            ParsedResponse::Partial { .. } => return Ok(None),
            ParsedResponse::Broken(_) => return Err(unexpected(asked, input)),
        };
        let element = match response {
            Response::Value { key, flags, data, cas: None } if keys > 0 => {
                Element::Named { key, flags, data }
            }
            Response::End if keys > 0 => Element::End,
            Response::Status(Status::Stored) if keys == 0 => Element::Stored,
            // The server is short of memory, or the value is too large. The reply itself is right.
            Response::Error { kind: ErrorKind::Server, .. } if keys == 0 => Element::Refused,
            _ => return Err(unexpected(asked, &input[..used])),
        };
        Ok(Some((element, used)))
    }
}

/// The fault of a reply that does not answer its request.
fn unexpected(asked: &'static str, answer: &[u8]) -> Fault {
    let start = &answer[..answer.len().min(80)];
    Fault::Unexpected { asked, answer: String::from_utf8_lossy(start).trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use cattlegrid_protocol::RESPONSE_LINE_MAX;

    use super::*;

    #[test]
    fn requests_as_memcached_reads_them() {
        let mut out = Vec::new();
        Memcached.get(b"ab".chunks_exact(1), &mut out);
        Memcached.set(b"key", 5, 60, 3, &mut out);
        out.extend_from_slice(b"abc");
        Memcached.end_set(&mut out);
        assert_eq!(out, b"get a b\r\nset key 5 60 3\r\nabc\r\n");
    }

    #[test]
    fn replies_in_any_pieces() {
        let reply = b"VALUE k 7 3\r\na\nb\r\nEND\r\n";
        for cut in 0..18 {
            assert_eq!(Memcached.read(1, 0, &reply[..cut]), Ok(None), "{cut}");
        }
        let value = Element::Named { key: b"k", flags: 7, data: b"a\nb" };
        assert_eq!(Memcached.read(1, 0, reply), Ok(Some((value, 18))));
        assert_eq!(Memcached.read(1, 1, &reply[18..]), Ok(Some((Element::End, 5))));
        assert_eq!(Memcached.read(0, 0, b"STORED\r\nEND"), Ok(Some((Element::Stored, 8))));
        assert_eq!(Memcached.read(0, 0, b"SERVER_ERROR x\r\n"), Ok(Some((Element::Refused, 16))));
    }

    #[test]
    fn what_is_no_answer() {
        for (keys, reply) in [
            (0, &b"END\r\n"[..]),
            (0, b"ERROR\r\n"),
            (1, b"STORED\r\n"),
            (1, b"VALUE k 7\r\n"),
            (1, b"VALUE k 7 3 9 1\r\n"),
            (1, b"VALUE k -7 3\r\n"),
            (1, b"VALUE k 7 3\r\nabcd\r\n"),
            (1, b"VALUE k 7 3 1\r\nabc\r\n"),
            (1, &[b'x'; RESPONSE_LINE_MAX + 2]),
        ] {
            assert!(Memcached.read(keys, 0, reply).is_err(), "{}", String::from_utf8_lossy(reply));
        }
    }
}
