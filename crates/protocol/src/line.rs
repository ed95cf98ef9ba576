//! One line as the grammars get it: its words, its limits, and the ways to end it other than with a request.
//!
//! `parse.rs` finds the line and chooses the grammar; the grammars split it at blanks, by the lazy iterators
//! of requests and by [`take`], and refuse it or complete it with its data block through [`Line`]. Only the
//! blank (0x20) separates words; a tab or a control character is part of its word.
//!
//! # Invariants
//! * Each function looks at each byte of the line at most once, so that a line of a million blanks takes time
//!   in proportion.
//! * A refusal uses up at least the line. A refused store also uses up its data block; `swallow` counts the
//!   bytes of it that have not arrived.

use crate::command::{Block, KEY_MAX, Parsed, Refusal, RefusalCause, Request};
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

/// The keys of a `get`, split lazily: iterates over `Result<&[u8], KeyTooLong>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys<'a> {
    pub(crate) rest: &'a [u8],
}

/// A key of more than [`KEY_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyTooLong;

/// The flag tokens of a meta command as sent: iterates over non-empty `&[u8]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlagTokens<'a> {
    pub(crate) rest: &'a [u8],
}

/// The words after a command's name: iterates over non-empty `&[u8]`, split at blanks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Words<'a> {
    pub(crate) rest: &'a [u8],
}

/// `line` without the blanks at its front.
#[inline]
pub(crate) fn trim(line: &[u8]) -> &[u8] {
    match line {
        [b' ', b' ', ..] => trim_many(line),
        [b' ', tail @ ..] => tail,
        _ => line,
    }
}

/// Cuts off many blanks at the start: a line may have a million of them.
#[cold]
fn trim_many(mut line: &[u8]) -> &[u8] {
    while let Some((blanks, tail)) = line.split_first_chunk::<32>()
        && *blanks == [b' '; 32]
    {
        line = tail;
    }
    while let [b' ', tail @ ..] = line {
        line = tail;
    }
    line
}

/// Takes the next word from `rest`; empty when there is none.
#[inline]
pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let mut line = *rest;
    while let [b' ', tail @ ..] = line {
        line = tail;
    }
    let end = line.iter().position(|&b| b == b' ').unwrap_or(line.len());
    let (word, tail) = line.split_at(end);
    *rest = tail;
    word
}

/// Takes the next word as [`take`] does, faster for long words.
#[inline]
pub(crate) fn take_key<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let line = trim(rest);
    let end = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (word, tail) = line.split_at(end);
    *rest = tail;
    word
}

/// The last word; empty when there is none.
pub(crate) fn last(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|&b| b != b' ').map_or(0, |i| i + 1);
    let start = memchr::memrchr(b' ', &line[..end]).map_or(0, |i| i + 1);
    &line[start..end]
}

/// Whether the last word says that no reply is wanted.
#[inline]
pub(crate) fn noreply(line: &[u8]) -> bool {
    !line.is_empty() && last(line) == b"noreply"
}

impl<'a> Keys<'a> {
    /// The keys of a part of a line that was parsed before, as [`Keys::rest`] returned it. A key that is too
    /// long ends them.
    pub fn of_rest(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The part of the line from which the next keys come, up to its end.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = Result<&'a [u8], KeyTooLong>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match take_key(&mut self.rest) {
            [] => None,
            key if key.len() > KEY_MAX => {
                self.rest = &[];
                Some(Err(KeyTooLong))
            }
            key => Some(Ok(key)),
        }
    }
}

#[expect(clippy::copy_iterator, reason = "a request's words are read more than once")]
impl<'a> Iterator for FlagTokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let token = take(&mut self.rest);
        (!token.is_empty()).then_some(token)
    }
}

#[expect(clippy::copy_iterator, reason = "a request's words are read more than once")]
impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let word = take(&mut self.rest);
        (!word.is_empty()).then_some(word)
    }
}

impl<'a> Words<'a> {
    /// The words of a text.
    pub fn of(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// The text.
    pub fn text(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the last word is `noreply`: administrative commands then send no reply.
    pub fn noreply(&self) -> bool {
        noreply(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_between_any_blanks() {
        let words: Vec<_> = Words { rest: b"  a bc   d\t\x80 " }.collect();
        assert_eq!(words, [&b"a"[..], b"bc", b"d\t\x80"]);
        assert_eq!(Words { rest: b"   " }.next(), None);
    }

    #[test]
    fn a_long_key_ends_the_keys() {
        let line = [&b"a "[..], &[b'k'; 251], b" c"].concat();
        let keys: Vec<_> = Keys { rest: &line }.collect();
        assert_eq!(keys, [Ok(&b"a"[..]), Err(KeyTooLong)]);
        assert_eq!(Keys { rest: &[b'k'; 250] }.next(), Some(Ok(&[b'k'; 250][..])));
    }

    #[test]
    fn blanks_of_any_number() {
        for blanks in (0..100).chain([1 << 20]) {
            let line =
                [&vec![b' '; blanks][..], b"a", &vec![b' '; blanks + 1], b"b", &vec![b' '; blanks]].concat();
            let mut keys = Keys { rest: &line };
            assert_eq!(keys.next(), Some(Ok(&b"a"[..])), "{blanks}");
            let rest = Keys::of_rest(keys.rest());
            assert_eq!(rest.collect::<Vec<_>>(), [Ok(&b"b"[..])], "{blanks}");
        }
    }

    #[test]
    fn last_word() {
        assert!(noreply(b" 1 noreply  "));
        assert!(noreply(b"noreply"));
        assert!(!noreply(b"xnoreply"));
        assert!(!noreply(b"noreply 1"));
        assert!(!noreply(b"  "));
    }
}
