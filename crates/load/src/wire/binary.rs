//! The binary protocol of memcached, as its clients speak it.
//!
//! One key is asked for with GET, several with GETKQ each and a NOOP, whose reply ends theirs: a quiet get
//! that misses has no reply. Each packet has a number, its opaque, that its reply repeats.
//!
//! # Invariants
//! * How a reply is split into reads changes nothing: the elements and faults are the same.

use std::slice::ChunksExact;

use cattlegrid_protocol::{BINARY_MAGIC, HEADER_BYTES, KEY_MAX, PacketStatus, RESPONSE_DATA_MAX, opcode};

use crate::verify::Fault;
use crate::wire::{Element, Wire, unexpected};

/// The binary protocol of memcached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Binary {
    /// The opaque of the request's first packet; each next packet has the next one.
    first: u32,
}

/// First byte of a reply.
const REPLY_MAGIC: u8 = 0x81;
/// Extras of a set: client flags and exptime.
const SET_EXTRAS: usize = 8;
/// Extras of a value: client flags.
const VALUE_EXTRAS: usize = 4;
/// The most that the reply to a get has after its header.
const BODY_MAX: usize = VALUE_EXTRAS + KEY_MAX + RESPONSE_DATA_MAX;
/// How much of a text a fault shows.
const TEXT_SHOWN: usize = 80;

impl Wire for Binary {
    fn numbered(&self, first: u32) -> Self {
        Self { first }
    }

    fn doubt(&self) -> &'static str {
        "; it may not speak the binary protocol: load it without --binary, or start it with -B auto"
    }

    fn get(&self, keys: ChunksExact<'_, u8>, out: &mut Vec<u8>) {
        let count = keys.len();
        let get = if count == 1 { opcode::GET } else { opcode::GETKQ };
        for (place, key) in keys.enumerate() {
            header(out, get, self.opaque(place), 0, key.len(), key.len());
            out.extend_from_slice(key);
        }
        if count > 1 {
            header(out, opcode::NOOP, self.opaque(count), 0, 0, 0);
        }
    }

    fn set(&self, key: &[u8], flags: u32, ttl_seconds: u32, value_bytes: usize, out: &mut Vec<u8>) {
        let body_bytes = SET_EXTRAS + key.len() + value_bytes;
        header(out, opcode::SET, self.first, SET_EXTRAS, key.len(), body_bytes);
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&ttl_seconds.to_be_bytes());
        out.extend_from_slice(key);
    }

    fn end_set(&self, _: &mut Vec<u8>) {}

    fn read<'a>(
        &self,
        keys: usize,
        _: usize,
        input: &'a [u8],
    ) -> Result<Option<(Element<'a>, usize)>, Fault> {
        let asked = if keys == 0 { "set" } else { "get" };
        if input.first().is_some_and(|magic| *magic != REPLY_MAGIC) {
            return no_packet(asked, input);
        }
        let Some(header) = input.first_chunk().map(PacketHeader::of) else { return Ok(None) };
        // What is wrong in a header is said before the body is there: its length may be wrong, too.
        let place = header.opaque.wrapping_sub(self.first) as usize;
        let last = if keys > 1 { keys } else { 0 };
        if place > last {
            let Self { first } = self;
            let answer = format!("opaque {} instead of {first} to {}", header.opaque, self.opaque(last));
            return Err(Fault::Unexpected { asked, answer });
        }
        let sent = match keys {
            0 => opcode::SET,
            1 => opcode::GET,
            _ if place == last => opcode::NOOP,
            _ => opcode::GETKQ,
        };
        if header.opcode != sent {
            let answer = format!("opcode {:#04x} instead of {sent:#04x}", header.opcode);
            return Err(Fault::Unexpected { asked, answer });
        }
        let PacketHeader { head_bytes, body_bytes, .. } = header;
        if header.data_type != 0 || head_bytes > body_bytes || body_bytes > BODY_MAX {
            return Err(header.misshapen(asked));
        }
        let used = HEADER_BYTES + body_bytes;
        let Some(body) = input.get(HEADER_BYTES..used) else { return Ok(None) };
        Ok(Some((header.element(asked, place, body)?, used)))
    }
}

impl Binary {
    /// The opaque of the packet at this place in the request.
    fn opaque(self, place: usize) -> u32 {
        self.first.wrapping_add(place as u32)
    }
}

/// The header of a reply.
struct PacketHeader {
    opcode: u8,
    extras_bytes: usize,
    /// Extras and key.
    head_bytes: usize,
    /// Extras, key and value.
    body_bytes: usize,
    data_type: u8,
    status: u16,
    opaque: u32,
}

impl PacketHeader {
    fn of(bytes: &[u8; HEADER_BYTES]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let four = |at| u32::from(two(at)) << 16 | u32::from(two(at + 2));
        let extras_bytes = usize::from(bytes[4]);
        Self {
            opcode: bytes[1],
            extras_bytes,
            head_bytes: extras_bytes + usize::from(two(2)),
            body_bytes: four(8) as usize,
            data_type: bytes[5],
            status: two(6),
            opaque: four(12),
        }
    }

    /// The element of the reply to the packet at this place; the reply has its opcode.
    fn element<'a>(&self, asked: &'static str, place: usize, body: &'a [u8]) -> Result<Element<'a>, Fault> {
        let (head, data) = body.split_at(self.head_bytes);
        let (extras, key) = head.split_at(self.extras_bytes);
        let is = |status: PacketStatus| self.status == status as u16;
        if !is(PacketStatus::Ok) {
            return match self.opcode {
                _ if !head.is_empty() => Err(self.misshapen(asked)),
                opcode::GET if is(PacketStatus::NotFound) => Ok(Element::Next(None)),
                opcode::SET if REFUSALS.into_iter().any(is) => Ok(Element::Refused),
                _ => Err(self.error(asked, data)),
            };
        }
        let flags = extras.try_into().map(u32::from_be_bytes);
        match (self.opcode, flags) {
            (opcode::SET, _) if body.is_empty() => Ok(Element::Stored),
            (opcode::NOOP, _) if body.is_empty() => Ok(Element::End),
            (opcode::GET, Ok(flags)) if key.is_empty() => Ok(Element::Found { flags, data }),
            (opcode::GETKQ, Ok(flags)) => Ok(Element::Placed { place, key, flags, data }),
            _ => Err(self.misshapen(asked)),
        }
    }

    /// The fault of an error, which has this text.
    fn error(&self, asked: &'static str, text: &[u8]) -> Fault {
        let text = String::from_utf8_lossy(&text[..text.len().min(TEXT_SHOWN)]);
        let answer = format!("status {:#04x} {text}", self.status).trim_end().to_owned();
        Fault::Unexpected { asked, answer }
    }

    /// The fault of lengths that are not those of such a reply.
    fn misshapen(&self, asked: &'static str) -> Fault {
        let Self { opcode, status, extras_bytes, head_bytes, body_bytes, data_type, .. } = self;
        let key_bytes = head_bytes - extras_bytes;
        let answer = format!(
            "opcode {opcode:#04x}, status {status:#04x}, data type {data_type}, a body of {body_bytes} bytes with \
             {extras_bytes} of extras and {key_bytes} of key"
        );
        Fault::Unexpected { asked, answer }
    }
}

/// Statuses for which the text protocol has a `SERVER_ERROR`: a set that gets one was refused, and the reply
/// is right.
const REFUSALS: [PacketStatus; 4] =
    [PacketStatus::TooLarge, PacketStatus::OutOfMemory, PacketStatus::Internal, PacketStatus::Busy];

/// The fault of bytes that do not begin as a packet does, as soon as there is a line of them.
fn no_packet<T>(asked: &'static str, input: &[u8]) -> Result<Option<T>, Fault> {
    let start = &input[..input.len().min(TEXT_SHOWN)];
    let Some(end) = start.iter().position(|byte| *byte == b'\n') else {
        return if start.len() < TEXT_SHOWN { Ok(None) } else { Err(unexpected(asked, start)) };
    };
    let line = start[..end].trim_ascii_end();
    // A server that has too many connections says so in text, as `ERROR Too many open connections`, whatever
    // it speaks.
    if line == b"ERROR" || [&b"CLIENT_ERROR"[..], b"-ERR"].iter().any(|word| line.starts_with(word)) {
        return Err(Fault::NotBinary { answer: String::from_utf8_lossy(line).into_owned() });
    }
    Err(unexpected(asked, line))
}

/// Appends the header of a request with this body.
fn header(
    out: &mut Vec<u8>,
    opcode: u8,
    opaque: u32,
    extras_bytes: usize,
    key_bytes: usize,
    body_bytes: usize,
) {
    let mut bytes = [0; HEADER_BYTES];
    (bytes[0], bytes[1], bytes[4]) = (BINARY_MAGIC, opcode, extras_bytes as u8);
    bytes[2..4].copy_from_slice(&(key_bytes as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(body_bytes as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&opaque.to_be_bytes());
    out.extend_from_slice(&bytes);
}

#[cfg(test)]
mod tests;
