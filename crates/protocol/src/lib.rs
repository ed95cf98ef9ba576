//! The memcached text and meta protocols: bytes to [`Request`]s, and replies to bytes.
//!
//! No I/O, no allocation while parsing: a request borrows the input buffer. [`parse`] takes the bytes that
//! have arrived and returns a [`Request`], a line to refuse ([`Refused`], with the words of memcached
//! 1.6.45), or how many bytes are needed. [`reply`] appends replies to a buffer.
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
mod number;
mod parse;
pub mod reply;
mod text;
mod words;

pub use command::*;
pub use line::{LINE_MAX, Limits};
pub use number::{strict_i32, strict_u32};
pub use parse::{BINARY_MAGIC, parse, parse_from};
