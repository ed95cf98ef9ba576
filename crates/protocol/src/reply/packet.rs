//! Replies of the binary protocol: a header of 24 bytes, extras, a key and a value.
//!
//! A quiet command's success, and the miss of a quiet get, are left out here: callers need not ask. Errors
//! are always sent, as memcached does, except those of a quiet get that it does not have
//! ([`get_error_line`]).

use super::error;
use crate::packet::{HEADER_BYTES, Packet, PacketStatus, opcode};

/// First byte of a reply.
const MAGIC: u8 = 0x81;

/// A header; the rest of the body, `body_len` bytes in all, comes next.
#[inline]
fn header(
    out: &mut Vec<u8>,
    packet: Packet,
    status: PacketStatus,
    extras_len: u8,
    key_len: usize,
    body_len: usize,
    cas: u64,
) {
    let mut bytes = [0; HEADER_BYTES];
    (bytes[0], bytes[1], bytes[4]) = (MAGIC, packet.opcode, extras_len);
    bytes[2..4].copy_from_slice(&(key_len as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&(status as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&packet.opaque);
    bytes[16..].copy_from_slice(&cas.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// The hit of a get up to the value, which comes next: `len` bytes.
#[inline]
pub fn value_header(out: &mut Vec<u8>, packet: Packet, key: &[u8], flags: u32, len: usize, cas: u64) {
    let key: &[u8] = if packet.returns_key() { key } else { &[] };
    out.reserve(HEADER_BYTES + 4 + key.len());
    header(out, packet, PacketStatus::Ok, 4, key.len(), 4 + key.len() + len, cas);
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(key);
}

/// The miss of a get.
pub fn miss(out: &mut Vec<u8>, packet: Packet, key: &[u8]) {
    if packet.is_quiet() {
        return;
    }
    if packet.returns_key() {
        header(out, packet, PacketStatus::NotFound, 0, key.len(), key.len(), 0);
        out.extend_from_slice(key);
    } else {
        error(out, packet, PacketStatus::NotFound);
    }
}

/// A success without a body.
#[inline]
pub fn done(out: &mut Vec<u8>, packet: Packet, cas: u64) {
    if !packet.is_quiet() {
        header(out, packet, PacketStatus::Ok, 0, 0, 0, cas);
    }
}

/// `touch`: the client flags.
pub fn touched(out: &mut Vec<u8>, packet: Packet, flags: u32, cas: u64) {
    header(out, packet, PacketStatus::Ok, 4, 0, 4, cas);
    out.extend_from_slice(&flags.to_be_bytes());
}

/// The sum of `incr` and `decr`.
pub fn sum(out: &mut Vec<u8>, packet: Packet, number: u64, cas: u64) {
    if !packet.is_quiet() {
        body(out, packet, &number.to_be_bytes(), cas);
    }
}

/// A success with a text.
pub fn text(out: &mut Vec<u8>, packet: Packet, text: &str) {
    body(out, packet, text.as_bytes(), 0);
}

/// A statistic; [`end_of_stats`] follows the last one.
pub fn stat(out: &mut Vec<u8>, packet: Packet, name: &[u8], value: &[u8]) {
    header(out, packet, PacketStatus::Ok, 0, name.len(), name.len() + value.len(), 0);
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

/// The end of the statistics.
pub fn end_of_stats(out: &mut Vec<u8>, packet: Packet) {
    header(out, packet, PacketStatus::Ok, 0, 0, 0, 0);
}

/// An error with the text that memcached has for it.
#[cold]
pub fn error(out: &mut Vec<u8>, packet: Packet, status: PacketStatus) {
    error_text(out, packet, status, status.text());
}

/// The error for which the other protocols have this line.
#[cold]
pub fn error_line(out: &mut Vec<u8>, packet: Packet, line: &str) {
    let status = match line {
        error::BUSY => return error_text(out, packet, PacketStatus::Busy, line),
        error::NOT_NUMERIC => PacketStatus::NotNumeric,
        error::TOO_LARGE => PacketStatus::TooLarge,
        error::OUT_OF_MEMORY | error::OUT_OF_MEMORY_READING => PacketStatus::OutOfMemory,
        error::UNAUTHENTICATED | error::AUTHENTICATION_FAILURE => PacketStatus::Unauthenticated,
        error::ERROR => PacketStatus::UnknownCommand,
        _ if line.starts_with("CLIENT_ERROR") => {
            return error_text(out, packet, PacketStatus::InvalidArguments, line);
        }
        _ => return error_text(out, packet, PacketStatus::Internal, line),
    };
    error(out, packet, status);
}

/// A store that is refused with this line: not stored, and the line says why. libmemcached takes a server out
/// of use for two seconds after an error that it does not know from a store.
pub fn not_stored_line(out: &mut Vec<u8>, packet: Packet, line: &str) {
    error_text(out, packet, PacketStatus::NotStored, line);
}

/// Writes [`error_line`] for a get: a quiet one has no reply. Clients that read the replies of quiet gets up
/// to that of their noop take an error for the reply to another key, or for the noop's.
pub fn get_error_line(out: &mut Vec<u8>, packet: Packet, line: &str) {
    if !packet.is_quiet() {
        error_line(out, packet, line);
    }
}

/// The error of a call of an object's method, whose caller is at fault, for which the other protocols have
/// this line. It has the status of a miss, and the line is its text: libmemcached takes a server out of use
/// after any other error to a get, delete, touch or incr. A quiet get has no reply.
#[cold]
pub fn call_error_line(out: &mut Vec<u8>, packet: Packet, key: &[u8], line: &str) {
    if packet.returns_key() {
        miss(out, packet, key);
    } else if !matches!(packet.opcode, opcode::GETQ | opcode::GATQ) {
        error_text(out, packet, PacketStatus::NotFound, line);
    }
}

fn error_text(out: &mut Vec<u8>, packet: Packet, status: PacketStatus, text: &str) {
    header(out, packet, status, 0, 0, text.len(), 0);
    out.extend_from_slice(text.as_bytes());
}

fn body(out: &mut Vec<u8>, packet: Packet, bytes: &[u8], cas: u64) {
    header(out, packet, PacketStatus::Ok, 0, 0, bytes.len(), cas);
    out.extend_from_slice(bytes);
}

/// The reply to a command that was refused with this line, if it did not come as a packet, or with the
/// packet's error.
#[cold]
pub fn refusal(out: &mut Vec<u8>, packet: Option<Packet>, line: &str) {
    match packet {
        Some(packet) => error_line(out, packet, line),
        None => super::line(out, line),
    }
}
