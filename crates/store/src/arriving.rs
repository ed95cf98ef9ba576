//! A value that arrives in pieces, in the pages in which it will stay.
//!
//! Its pages are taken as its bytes come: what is announced and has not arrived takes none. They go back when
//! it is dropped. [`Memory::arriving_bytes`] is the sum of the pages of such values.
//!
//! # Invariants
//! * Filled bytes <= bytes of its pages; its pages are at most those that the whole value needs.
//! * Nobody else sees it before [`ArrivingValue::finish`], which needs all of its bytes: what its pages held
//!   before is never read.

use std::sync::Arc;

use crate::huge::HugeValue;
use crate::memory::{Memory, PAGE_BYTES, Runs};

/// A value that arrives in pieces, in the pages in which it will stay.
#[derive(Debug)]
pub struct ArrivingValue {
    memory: Arc<Memory>,
    runs: Runs,
    len: usize,
    filled: usize,
}

impl ArrivingValue {
    /// A value of `len` bytes, none of which has arrived; it has no pages.
    pub fn new(memory: &Arc<Memory>, len: usize) -> Self {
        Self { memory: Arc::clone(memory), runs: Runs::new(memory), len, filled: 0 }
    }

    /// Bytes that have not arrived.
    #[inline]
    pub fn missing(&self) -> usize {
        self.len - self.filled
    }

    /// Bytes that have arrived.
    #[inline]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that fit into its pages and have not arrived.
    #[inline]
    pub fn room(&self) -> usize {
        self.held_bytes().min(self.len) - self.filled
    }

    /// Bytes of its pages.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of the pages that it lacks to have room for `bytes` bytes, or for all that is missing; 0: it has
    /// that room.
    pub fn lacks(&self, bytes: usize) -> usize {
        let wanted = self.filled + bytes.min(self.missing());
        wanted.next_multiple_of(PAGE_BYTES).saturating_sub(self.held_bytes())
    }

    /// Takes the pages that it lacks to have room for `bytes` bytes; false, and none, when the memory has
    /// fewer free.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let lacks = self.lacks(bytes);
        if lacks > 0 {
            if !self.runs.grow(lacks) {
                return false;
            }
            self.memory.add_arriving(lacks);
        }
        true
    }

    /// The room for the bytes that come next, in pieces in their order: [`ArrivingValue::room`] bytes in all.
    pub fn spare(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut left = self.room();
        let spare = self.runs.from_mut(self.filled).map(move |bytes| {
            let n = bytes.len().min(left);
            left -= n;
            &mut bytes[..n]
        });
        spare.filter(|piece| !piece.is_empty())
    }

    /// Notes that `bytes` bytes were written into [`ArrivingValue::spare`], from its beginning on.
    ///
    /// # Panics
    /// It has room for fewer.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.room(), "{bytes} bytes of {}", self.room());
        self.filled += bytes;
    }

    /// Copies as much of `bytes` as there is room for; how much that was.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for piece in self.spare() {
            let n = piece.len().min(rest.len());
            piece[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
        }
        let copied = bytes.len() - rest.len();
        self.advance(copied);
        copied
    }

    /// What has arrived, in pieces in their order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.filled;
        self.runs.from(0).map(move |bytes| {
            let n = left.min(bytes.len());
            left -= n;
            &bytes[..n]
        })
    }

    /// The whole value, in the same pages.
    ///
    /// # Panics
    /// Some of it is missing.
    pub fn finish(mut self) -> Arc<HugeValue> {
        assert_eq!(self.missing(), 0, "the value is not whole");
        self.memory.sub_arriving(self.held_bytes());
        let runs = std::mem::replace(&mut self.runs, Runs::new(&self.memory));
        HugeValue::of(&self.memory, runs, self.len)
    }
}

impl Drop for ArrivingValue {
    fn drop(&mut self) {
        self.memory.sub_arriving(self.held_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Run;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    /// A memory of 64 pages of which every other one is free.
    fn in_pieces() -> (Arc<Memory>, Vec<Option<Run>>) {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let mut pages: Vec<_> = (0..64).map(|_| memory.aligned(PAGE_BYTES)).collect();
        pages.iter_mut().skip(1).step_by(2).for_each(|p| *p = None);
        (memory, pages)
    }

    #[test]
    fn bytes_arrive_in_pieces_of_every_size() {
        for len in [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES + 3] {
            for (step, grow) in
                [(1, 1), (7, PAGE_BYTES), (PAGE_BYTES, 100), (3000, 3 * PAGE_BYTES), (len, len)]
            {
                let (memory, _pages) = in_pieces();
                let before = memory.used_bytes();
                let bytes = pattern(len);
                let mut value = ArrivingValue::new(&memory, len);
                let mut at = 0;
                while value.missing() > 0 {
                    if value.room() == 0 {
                        assert!(value.grow(grow));
                    }
                    assert_eq!(value.spare().map(|piece| piece.len()).sum::<usize>(), value.room());
                    at += value.fill(&bytes[at..len.min(at + step)]);
                    assert_eq!((value.filled(), value.missing()), (at, len - at));
                    assert_eq!(value.slices().flatten().copied().collect::<Vec<u8>>(), bytes[..at]);
                    assert_eq!(value.held_bytes(), memory.arriving_bytes());
                    assert_eq!(value.held_bytes(), memory.used_bytes() - before);
                }
                assert_eq!(value.held_bytes(), len.next_multiple_of(PAGE_BYTES));
                let huge = value.finish();
                assert_eq!(memory.arriving_bytes(), 0);
                assert_eq!((huge.len(), huge.held_bytes()), (len, len.next_multiple_of(256)));
                assert_eq!(huge.slices().flatten().copied().collect::<Vec<u8>>(), bytes);
                drop(huge);
                assert_eq!(memory.used_bytes(), before);
            }
        }
    }

    #[test]
    fn pages_are_taken_as_they_are_asked_for_and_go_back() {
        let memory = Memory::new(4 * PAGE_BYTES).unwrap();
        let mut value = ArrivingValue::new(&memory, 10 * PAGE_BYTES);
        assert_eq!((memory.used_bytes(), value.room(), value.spare().count()), (0, 0, 0));
        assert_eq!((value.lacks(1), value.lacks(usize::MAX)), (PAGE_BYTES, 10 * PAGE_BYTES));
        assert!(value.grow(PAGE_BYTES + 1));
        assert_eq!((value.room(), memory.used_bytes()), (2 * PAGE_BYTES, 2 * PAGE_BYTES));
        assert_eq!((value.lacks(2 * PAGE_BYTES), value.lacks(2 * PAGE_BYTES + 1)), (0, PAGE_BYTES));
        assert!(value.grow(7), "it has that room");
        assert!(!value.grow(5 * PAGE_BYTES), "there are two free pages");
        assert_eq!((value.room(), memory.used_bytes()), (2 * PAGE_BYTES, 2 * PAGE_BYTES));
        assert_eq!(value.fill(&pattern(3 * PAGE_BYTES)), 2 * PAGE_BYTES);
        assert_eq!(value.room(), 0);
        assert!(value.grow(1));
        assert_eq!(value.fill(b"abc"), 3);
        drop(value);
        assert_eq!((memory.used_bytes(), memory.arriving_bytes()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "not whole")]
    fn a_part_is_no_value() {
        let memory = Memory::new(4 * PAGE_BYTES).unwrap();
        let mut value = ArrivingValue::new(&memory, 10);
        assert!(value.grow(10));
        value.advance(9);
        drop(value.finish());
    }
}
