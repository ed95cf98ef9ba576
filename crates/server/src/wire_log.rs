//! Requests and replies in the log, for `-vv`: `<24 get k` and `>24 END`, with the descriptor, as in
//! memcached.
//!
//! Of a request the line is logged, of a packet the part before its value, of a reply with a value the key.
//! Data blocks are never logged, nor are passwords: input before a login is not logged at all. The lines go
//! through the log's queue, which never waits; lines without room there are counted.

use std::fmt::Write as _;

use cattlegrid_engine::Output;
use cattlegrid_protocol::HEADER_BYTES;

use crate::log;

/// The first byte of a reply of the binary protocol; no line of text begins with it.
const REPLY_MAGIC: u8 = 0x81;
/// The longest part of a line that is logged, in bytes.
const SHOWN_MAX: usize = 512;

/// The first line of a request, without its end.
pub(crate) fn first_line(request: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'\n', request).unwrap_or(request.len());
    request[..end].trim_ascii_end()
}

/// The head of a packet: everything up to its key, without its value, which may be a password.
pub(crate) fn packet_head(packet: &[u8]) -> &[u8] {
    let parts = packet.first_chunk::<HEADER_BYTES>().map(|header| {
        HEADER_BYTES + usize::from(u16::from_be_bytes([header[2], header[3]])) + usize::from(header[4])
    });
    &packet[..parts.unwrap_or(HEADER_BYTES).min(packet.len())]
}

/// Logs the line of a request.
pub(crate) fn request(fd: i32, line: &[u8]) {
    log::debug(format_args!("<{fd} {}", EscapedBytes(line)));
}

/// Logs the replies that are about to be sent to a connection.
#[cold]
pub(crate) fn replies(fd: i32, out: &Output) {
    let mut huge = out.huge.iter().map(|(place, _)| *place).peekable();
    let mut at = 0;
    while let Some(header) =
        out.bytes[at..].first_chunk::<HEADER_BYTES>().filter(|header| header[0] == REPLY_MAGIC)
    {
        let head = packet_head(&out.bytes[at..]);
        log::debug(format_args!(">{fd} {}", EscapedBytes(head)));
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let end = at.saturating_add(HEADER_BYTES).saturating_add(body).min(out.bytes.len());
        at += head.len();
        // A huge value is not part of these bytes.
        at = if huge.next_if_eq(&at).is_some() { at } else { end.max(at) };
    }
    while at < out.bytes.len() {
        let line = first_line(&out.bytes[at..]);
        let len = memchr::memchr(b'\n', &out.bytes[at..]).map_or(out.bytes.len() - at, |end| end + 1);
        at += len;
        let mut words = line.split(|b| *b == b' ');
        let value = match words.next() {
            Some(b"VALUE") => {
                log::debug(format_args!(
                    ">{fd} sending key {}",
                    EscapedBytes(words.next().unwrap_or_default())
                ));
                words.nth(1)
            }
            Some(b"VA") => {
                log::debug(format_args!(">{fd} {}", EscapedBytes(line)));
                words.next()
            }
            _ => {
                log::debug(format_args!(">{fd} {}", EscapedBytes(line)));
                None
            }
        };
        let Some(value) = value else { continue };
        // A huge value is not part of these bytes; only its line end is.
        let is_huge = huge.next_if_eq(&at).is_some();
        let len = if is_huge { 0 } else { number(value) };
        at = at.saturating_add(len).saturating_add(2);
    }
}

fn number(word: &[u8]) -> usize {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Bytes as text: all but plain ASCII as `\xNN`.
struct EscapedBytes<'a>(&'a [u8]);

impl std::fmt::Display for EscapedBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &byte in &self.0[..self.0.len().min(SHOWN_MAX)] {
            match byte {
                b' '..=b'~' => f.write_char(char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        if self.0.len() > SHOWN_MAX { f.write_str("...") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_plain_and_short() {
        assert_eq!(first_line(b"set k 0 0 6\r\nsecret\r\n"), b"set k 0 0 6");
        assert_eq!(first_line(b"\x80\x01"), b"\x80\x01");
        let mut packet = [0; 40];
        (packet[0], packet[3], packet[4], packet[11]) = (0x80, 5, 8, 16);
        packet[32..].copy_from_slice(b"shop:ksv");
        assert_eq!(packet_head(&packet), &packet[..37]);
        assert_eq!((packet_head(&packet[..30]).len(), packet_head(&packet[..10]).len()), (30, 10));
        assert_eq!(EscapedBytes(b"get a\tb\x80").to_string(), "get a\\x09b\\x80");
        let long = EscapedBytes(&[b'k'; SHOWN_MAX + 1]).to_string();
        assert_eq!(long.len(), SHOWN_MAX + 3);
    }
}
