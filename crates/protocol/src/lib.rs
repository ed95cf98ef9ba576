//! The memcached text and meta protocols: bytes to [`Request`]s, and replies to bytes.
//!
//! No I/O, no allocation while parsing: a request borrows the input buffer. [`parse`] takes whatever
//! has arrived and says what it is: a [`Request`], a line to refuse ([`Refused`]: with memcached
//! 1.6.45's own words), or how many bytes are wanted. [`reply`] appends answers to a buffer.
//!
//! # Invariants
//! * Parsing any bytes never panics. A line is searched once for its end and walked once for its
//!   words; nothing is allocated.
//! * How the input is split into reads changes nothing: the requests and refusals are the same.
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
