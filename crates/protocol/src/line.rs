//! One line as the grammars get it: its limits, and the ways to end it other than with a request.
//!
//! `parse.rs` finds the line and chooses the grammar; the grammars refuse the line or complete
//! it with its data block through [`Line`].
//!
//! # Invariants
//! * A refusal uses up at least the line. A refused store also uses up its data block; `swallow` counts the
//!   bytes of it that have not arrived.

use crate::command::{Block, Parsed, Refusal, RefusalCause, Request};
use crate::reply::error;

/// Longest line in bytes, its LF not counted, of any command except `get gets gat gats`.
pub const LINE_MAX: usize = 2048;

/// Limits and options of the parser: what it refuses for its size, and which extensions it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest item in bytes (`-I`), as memcached counts it: see [`Limits::fits`]. A larger one is
    /// `SERVER_ERROR object too large for cache`.
    pub max_item_bytes: usize,
    /// Longest line in bytes of `get gets gat gats`; a longer one closes the connection. At least
    /// [`LINE_MAX`] is taken. memcached has no such limit.
    pub max_get_line_bytes: usize,
    /// `debugtime` is a command (`-o debugtime`).
    pub debugtime: bool,
    /// Flag letters that memcached refuses are known: `n` and `G` on `ms`, `G` on `mg md ma`,
    /// `A` on `mg ms`.
    pub extensions: bool,
}

impl Default for Limits {
    /// 1 MiB items, 1 MiB lines, no extensions of memcached.
    fn default() -> Self {
        Self { max_item_bytes: 1 << 20, max_get_line_bytes: 1 << 20, debugtime: false, extensions: false }
    }
}

impl Limits {
    /// Whether memcached would take an item of this key, these client flags and a value of `len` bytes: its
    /// limit includes 59 bytes of header, CAS, separators and CRLF, the key, and 4 bytes for flags above 0.
    #[inline]
    pub fn fits(&self, key: &[u8], flags: u32, len: usize) -> bool {
        len + key.len() + 59 + if flags == 0 { 0 } else { 4 } <= self.max_item_bytes
    }
}

/// A line, and the input that it begins.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// All bytes that have arrived.
    pub(crate) input: &'a [u8],
    /// Length with the line end.
    pub(crate) used: usize,
    /// The data block was received elsewhere; whether CRLF follows it there.
    pub(crate) apart: Option<bool>,
}

impl<'a> Line<'a> {
    /// Refuses the line only.
    #[cold]
    pub(crate) fn refuse(self, reply: &'static str) -> Parsed<'a> {
        Parsed::Refused(Refusal::with(reply, self.used))
    }

    /// Refuses the line, unless quietly.
    #[cold]
    pub(crate) fn refuse_unless(self, quiet: bool, reply: &'static str) -> Parsed<'a> {
        self.refuse(if quiet { "" } else { reply })
    }

    /// Refuses a store: its data block of `len` bytes is dropped, too.
    #[cold]
    pub(crate) fn refuse_store(self, reply: &'static str, len: usize) -> Refusal<'a> {
        let all = self.used as u64 + len as u64 + 2;
        let used = usize::try_from(all).map_or(self.input.len(), |all| all.min(self.input.len()));
        Refusal { swallow: all - used as u64, ..Refusal::with(reply, used) }
    }

    /// Completes a store with its data block of `len` bytes. A block that does not end in CRLF is
    /// used up all the same: the next line begins after its last two bytes. `refuse`: how to refuse the
    /// store while its block is incomplete.
    #[inline]
    pub(crate) fn with_data(
        self,
        len: usize,
        quiet: bool,
        refuse: impl FnOnce(RefusalCause) -> Refusal<'a>,
        request: impl FnOnce(Block<'a>) -> Request<'a>,
    ) -> Parsed<'a> {
        let bad_end = if quiet { "" } else { error::BAD_DATA_CHUNK };
        if let Some(is_ended) = self.apart {
            return if is_ended {
                Parsed::Complete { request: request(Block::Apart(len)), used: self.used }
            } else {
                Parsed::Refused(Refusal::with(bad_end, self.used))
            };
        }
        let need = self.used.saturating_add(len).saturating_add(2);
        match self.input.get(self.used..need).map(|block| block.split_at(len)) {
            Some((data, b"\r\n")) => Parsed::Complete { request: request(Block::Here(data)), used: need },
            Some(_) => Parsed::Refused(self.refuse_store(bad_end, len)),
            None => Parsed::Incomplete { need, block: Some(refuse(RefusalCause::NoMemory)) },
        }
    }
}

/// Not memcached's protocol: drops all input and closes the connection without a reply.
#[cold]
pub(crate) fn close(input: &[u8]) -> Parsed<'_> {
    Parsed::Refused(Refusal { close: true, ..Refusal::with("", input.len()) })
}
