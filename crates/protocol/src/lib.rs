//! The memcached text, meta and binary protocols: for a server, bytes to [`Request`]s and replies to bytes;
//! for a client, requests to bytes and bytes to [`Response`]s.
//!
//! No I/O, no allocation while parsing: a request borrows the input buffer. [`parse`] takes the bytes that
//! have arrived and returns a [`Request`], a line to refuse ([`Refusal`], with the words of memcached
//! 1.6.45), or how many bytes are needed. [`reply`] appends replies to a buffer.
//! [`request`] and [`parse_response`] are the same of the client's side.
//!
//! # Invariants
//! * Parsing any bytes never panics. A line is searched once for its end and walked once for its
//!   words; nothing is allocated.
//! * Requests and refusals do not depend on how the input is split into reads.
//! * `used` is between 1 and the input's length; `need` is more than the input's length.

mod admin;
mod command;
mod key;
mod line;
mod meta;
mod not_allowed;
mod number;
mod packet;
mod parse;
pub mod reply;
pub mod request;
mod response;

pub use command::*;
pub use line::{FlagTokens, KeyTooLong, Keys, LINE_MAX, Limits, Words};
pub use number::{strict_i32, strict_u32};
pub use packet::{
    BINARY_MAGIC, HEADER_BYTES, Packet, PacketStatus, opcode, parse_packet, parse_packet_apart,
};
pub use parse::{parse, parse_apart, parse_from};
pub use response::{
    BrokenResponse, ErrorKind, MetaStatus, ParsedResponse, RESPONSE_DATA_MAX, RESPONSE_LINE_MAX, Response,
    Status, parse_response,
};
