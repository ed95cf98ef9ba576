//! Members in the bytes of an item.
//!
//! ```text
//!   | key length | value length | key | value |  ...     in the order of the keys
//!
//!   lengths are in bytes: 7 bits in each byte, lowest first
//! ```
//!
//! # Invariants
//! * Any bytes can be read without a panic: reading ends at the first incomplete entry.

use std::cmp::Ordering;
use std::ops::Range;

use cattlegrid_store::Value;

use super::FLAT_MAX;

/// A member in a state of bytes.
#[derive(Debug)]
pub(super) struct FlatEntry<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) range: Range<usize>,
}

impl<'a> FlatEntry<'a> {
    pub(super) fn pair(self) -> (&'a [u8], Value<'a>) {
        (self.key, Value::Inline(self.value))
    }
}

/// The members in a state of bytes.
#[derive(Debug)]
pub(super) struct FlatEntries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FlatEntries<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<'a> Iterator for FlatEntries<'a> {
    type Item = FlatEntry<'a>;

    #[inline]
    fn next(&mut self) -> Option<FlatEntry<'a>> {
        let start = self.at;
        let rest = self.bytes.get(start..)?;
        let (key_len, rest) = read_len(rest)?;
        let (value_len, rest) = read_len(rest)?;
        let (key, rest) = rest.split_at_checked(key_len)?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        self.at = self.bytes.len() - rest.len();
        Some(FlatEntry { key, value, range: start..self.at })
    }
}

/// The position of a key in a state of bytes, or its place if it is absent: an empty range and no value.
#[derive(Debug)]
pub(super) struct Position<'a> {
    pub(super) range: Range<usize>,
    pub(super) value: Option<&'a [u8]>,
}

pub(super) fn find<'a>(bytes: &'a [u8], key: &[u8]) -> Position<'a> {
    let mut entries = FlatEntries::of(bytes);
    loop {
        let start = entries.at;
        let Some(own) = entries.next() else { return Position { range: start..start, value: None } };
        match own.key.cmp(key) {
            Ordering::Less => {}
            Ordering::Equal => return Position { range: own.range, value: Some(own.value) },
            Ordering::Greater => return Position { range: start..start, value: None },
        }
    }
}

/// Makes the bytes at `range` `gap` bytes long; the following bytes move.
pub(super) fn make_gap(bytes: &mut Vec<u8>, range: Range<usize>, gap: usize) {
    let len = bytes.len();
    let new_len = len - range.len() + gap;
    if new_len > len {
        bytes.resize(new_len, 0);
    }
    bytes.copy_within(range.end..len, range.start + gap);
    bytes.truncate(new_len);
}

/// Lengths in a state of bytes are below 2^14.
const LEN_SPLIT: usize = 0x80;

const _: () = assert!(FLAT_MAX < LEN_SPLIT * LEN_SPLIT, "a length has at most two bytes");

pub(super) fn entry_len(key: usize, value: usize) -> usize {
    let len_bytes = |len: usize| if len < LEN_SPLIT { 1 } else { 2 };
    len_bytes(key) + len_bytes(value) + key + value
}

fn read_len(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match *bytes {
        [low, ref rest @ ..] if usize::from(low) < LEN_SPLIT => Some((usize::from(low), rest)),
        [low, high, ref rest @ ..] => {
            Some((usize::from(low) - LEN_SPLIT + usize::from(high) * LEN_SPLIT, rest))
        }
        _ => None,
    }
}

pub(super) fn write_entry(mut to: &mut [u8], key: &[u8], value: &[u8]) {
    for len in [key.len(), value.len()] {
        to = if len < LEN_SPLIT {
            put_bytes(to, &[len as u8])
        } else {
            put_bytes(to, &[(len % LEN_SPLIT + LEN_SPLIT) as u8, (len / LEN_SPLIT) as u8])
        };
    }
    to = put_bytes(to, key);
    put_bytes(to, value);
}

fn put_bytes<'t>(to: &'t mut [u8], bytes: &[u8]) -> &'t mut [u8] {
    let (head, rest) = to.split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    rest
}
