//! How a server is spoken to.

use std::slice::ChunksExact;

use crate::verify::Fault;

/// A protocol: requests out, replies in.
pub trait Wire {
    /// Appends a request for these keys; there is at least one.
    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>);

    /// Appends the part of a set before its value.
    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>);

    /// Appends what follows the value.
    fn end_set(&self, out: &mut Vec<u8>);

    /// Reads one element of a reply: it and its length, or nothing while it is incomplete.
    ///
    /// `keys`: how many the request asked for, 0 for a set. `seen`: how many of them have been answered.
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
    /// A value and the key it belongs to; keys asked for before this one and not answered are misses.
    Named {
        /// As the server sent it.
        key: &'a [u8],
        /// Client flags.
        flags: u32,
        /// The value.
        data: &'a [u8],
    },
    /// The answer to the next key: its value, or a miss.
    Next(Option<&'a [u8]>),
    /// Nothing by itself, such as the header of a list.
    Skip,
    /// The end of the reply to a get.
    End,
    /// The whole reply to a set that was done.
    Stored,
    /// The whole reply to a set that was not.
    Refused,
}

/// The classic text protocol of memcached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memcached;

impl Wire for Memcached {
    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"get");
        for key in keys {
            out.push(b' ');
            out.extend_from_slice(key);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        out.extend_from_slice(key);
        for number in [u64::from(flags), u64::from(ttl_seconds), value_bytes as u64] {
            out.push(b' ');
            decimal(number, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn end_set(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\r\n");
    }

    fn read<'a>(
        &self,
        keys: usize,
        _: usize,
        input: &'a [u8],
    ) -> Result<Option<(Element<'a>, usize)>, Fault> {
        let asked = if keys == 0 { "set" } else { "get" };
        let Some(newline) = memchr::memchr(b'\n', input) else {
            return if input.len() > LINE_BYTES_MAX { Err(unexpected(asked, input)) } else { Ok(None) };
        };
        let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
        let start = newline + 1;
        if keys == 0 {
            return match line {
                b"STORED" => Ok(Some((Element::Stored, start))),
                // Memory is short, or the value is too large: no fault of the reply.
                line if line.starts_with(b"SERVER_ERROR ") => Ok(Some((Element::Refused, start))),
                line => Err(unexpected(asked, line)),
            };
        }
        if line == b"END" {
            return Ok(Some((Element::End, start)));
        }
        let (key, flags, bytes) = value_line(line).ok_or_else(|| unexpected(asked, line))?;
        let Some(block) = input.get(start..start + bytes + 2) else { return Ok(None) };
        match block.split_at(bytes) {
            (data, b"\r\n") => Ok(Some((Element::Named { key, flags, data }, start + bytes + 2))),
            (_, after) => Err(unexpected(asked, after)),
        }
    }
}

/// Longest line of a reply: a `VALUE` line with a key of 250 bytes, and room.
const LINE_BYTES_MAX: usize = 1024;

fn value_line(line: &[u8]) -> Option<(&[u8], u32, usize)> {
    let mut words = line.strip_prefix(b"VALUE ")?.split(|byte| *byte == b' ');
    let key = words.next()?;
    let flags = parse(words.next()?)?;
    let bytes = parse(words.next()?)?;
    words.next().is_none().then_some((key, flags.try_into().ok()?, bytes.try_into().ok()?))
}

/// The fault of a reply that is no answer.
pub(crate) fn unexpected(asked: &'static str, answer: &[u8]) -> Fault {
    let start = &answer[..answer.len().min(80)];
    Fault::Unexpected { asked, answer: String::from_utf8_lossy(start).trim_end().to_owned() }
}

/// Digits only, at most ten of them.
fn parse(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 10 {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

fn decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
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
            (1, b"VALUE k 7 3 9\r\n"),
            (1, b"VALUE k -7 3\r\n"),
            (1, b"VALUE k 7 3\r\nabcd\r\n"),
            (1, &[b'x'; 2000]),
        ] {
            assert!(Memcached.read(keys, 0, reply).is_err(), "{}", String::from_utf8_lossy(reply));
        }
    }
}
