//! Values too large for the log: they have pages of their own, shared by the store and all connections that
//! send them.
//!
//! A value that leaves the store while it is being sent is pinned: its pages stay in use until the last
//! connection has sent it. [`Memory::pinned_bytes`] is the sum of such values.
//!
//! # Invariants
//! * A value counts as pinned at most once, only while no item has it, and no longer than it lives.
//! * `items` and `pinned` change under the lock of the shard that has the value; the last `Arc` reads them
//!   alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::memory::{Memory, Runs};

/// A value in pages of its own, its last part perhaps in one that others share. Never changed; its pages go
/// back when the last `Arc` does, so a value that is replaced or evicted while it is being sent stays whole
/// until it has been.
#[derive(Debug)]
pub struct HugeValue {
    runs: Runs,
    /// Bytes before the value, which are not part of it any more.
    front: usize,
    len: usize,
    memory: Arc<Memory>,
    /// Items of the store that have it; two for the moment in which an item is written again.
    items: AtomicUsize,
    /// The value is part of [`Memory::pinned_bytes`].
    pinned: AtomicBool,
}

impl HugeValue {
    /// Copies `parts`, one after the other; `None` when the memory does not have as many free pages.
    ///
    /// # Panics
    /// Never: the runs hold as many bytes as the parts.
    pub fn new(memory: &Arc<Memory>, parts: &[&[u8]]) -> Option<Arc<Self>> {
        let len = parts.iter().map(|p| p.len()).sum();
        let mut runs = memory.scattered(len)?;
        let mut pieces = runs.from_mut(0);
        let mut room: &mut [u8] = &mut [];
        for &part in parts {
            let mut part = part;
            while !part.is_empty() {
                if room.is_empty() {
                    room = pieces.next().expect("the runs hold `len` bytes");
                }
                let n = part.len().min(room.len());
                let (now, later) = std::mem::take(&mut room).split_at_mut(n);
                now.copy_from_slice(&part[..n]);
                part = &part[n..];
                room = later;
            }
        }
        drop(pieces);
        Some(Self::of(memory, runs, len))
    }

    /// The value of `len` bytes that lies at the beginning of `runs`.
    pub fn of(memory: &Arc<Memory>, mut runs: Runs, len: usize) -> Arc<Self> {
        runs.shrink_to(len);
        debug_assert!(runs.len() >= len, "the runs hold the value");
        let memory = Arc::clone(memory);
        Arc::new(Self {
            runs,
            front: 0,
            len,
            memory,
            items: AtomicUsize::new(0),
            pinned: AtomicBool::new(false),
        })
    }

    /// Takes its first `bytes` bytes off. They stay before it: [`HugeValue::front`].
    ///
    /// # Panics
    /// It has no byte more.
    pub fn cut(&mut self, bytes: usize) {
        assert!(bytes < self.len, "{bytes} bytes of {}", self.len);
        self.front += bytes;
        self.len -= bytes;
    }

    /// The bytes that were taken off, in pieces.
    pub fn front(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.front;
        self.runs.from(0).map_while(move |run| {
            let n = left.min(run.len());
            left -= n;
            (n > 0).then(|| &run[..n])
        })
    }

    /// Number of bytes that were taken off.
    pub fn front_len(&self) -> usize {
        self.front
    }

    /// Notes that an item has it now.
    pub(crate) fn enter(&self) {
        self.items.fetch_add(1, Relaxed);
        self.unpin();
    }

    /// Notes that an item no longer has it; takes that item's reference.
    pub(crate) fn leave(self: Arc<Self>) {
        let was_last = self.items.fetch_sub(1, Relaxed) == 1;
        if was_last && Arc::strong_count(&self) > 1 {
            self.pinned.store(true, Relaxed);
            self.memory.add_pinned(self.held_bytes());
        }
    }

    /// Whether it has left the store and its pages stay in use for connections that send it.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Relaxed)
    }

    fn unpin(&self) {
        if self.pinned.swap(false, Relaxed) {
            self.memory.sub_pinned(self.held_bytes());
        }
    }

    /// Bytes of the value.
    #[expect(clippy::len_without_is_empty, reason = "never empty: the log holds small values")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the budget it holds.
    pub fn held_bytes(&self) -> usize {
        self.runs.len()
    }

    /// The value in pieces, one for each run of pages, and one for its last part.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.slices_from(0)
    }

    /// The bytes from `offset` on, `offset` at most [`HugeValue::len`], in pieces: one for each run of pages.
    #[inline]
    pub fn slices_from(&self, offset: usize) -> impl Iterator<Item = &[u8]> {
        let mut left = self.len - offset;
        self.runs.from(self.front + offset).map_while(move |run| {
            let n = left.min(run.len());
            left -= n;
            (n > 0).then(|| &run[..n])
        })
    }

    /// The piece that begins `offset` bytes into the value; empty at its end.
    pub fn slice_from(&self, offset: usize) -> &[u8] {
        self.slices_from(offset.min(self.len)).next().unwrap_or_default()
    }
}

impl Drop for HugeValue {
    fn drop(&mut self) {
        self.unpin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE_BYTES;

    #[test]
    fn parts_land_across_scattered_runs() {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let mut pages: Vec<_> = (0..64).map(|_| memory.aligned(PAGE_BYTES)).collect();
        pages.iter_mut().skip(1).step_by(2).for_each(|p| *p = None);
        let bytes: Vec<u8> = (0..30_000_u32).map(|i| (i % 251) as u8).collect();
        let huge = HugeValue::new(&memory, &[&bytes[..7], &bytes[7..20_000], &bytes[20_000..]]).unwrap();
        assert!(huge.slices().count() > 1);
        assert_eq!(huge.slices().flatten().copied().collect::<Vec<u8>>(), bytes);
        let mut at = 0;
        while !huge.slice_from(at).is_empty() {
            let piece = huge.slice_from(at);
            assert_eq!(piece, &bytes[at..at + piece.len()]);
            at += piece.len();
        }
        assert_eq!(at, bytes.len());
        let held = |memory: &Memory| memory.used_bytes() - memory.divided_free_bytes();
        let (own, before) = (huge.held_bytes(), held(&memory));
        drop(huge);
        assert_eq!(held(&memory), before - own);
    }

    #[test]
    fn bytes_taken_off_are_no_part_of_it() {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let mut pages: Vec<_> = (0..64).map(|_| memory.aligned(PAGE_BYTES)).collect();
        pages.iter_mut().skip(1).step_by(2).for_each(|p| *p = None);
        let bytes: Vec<u8> = (0..30_000_u32).map(|i| (i % 251) as u8).collect();
        for front in [1, 2048, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 29_999] {
            let mut huge = HugeValue::new(&memory, &[&bytes]).unwrap();
            let held = huge.held_bytes();
            Arc::get_mut(&mut huge).unwrap().cut(front);
            assert_eq!((huge.len(), huge.front_len(), huge.held_bytes()), (30_000 - front, front, held));
            assert_eq!(huge.front().flatten().copied().collect::<Vec<u8>>(), &bytes[..front]);
            assert_eq!(huge.slices().flatten().copied().collect::<Vec<u8>>(), &bytes[front..]);
            let (mut at, mut read) = (0, Vec::new());
            while !huge.slice_from(at).is_empty() {
                read.extend_from_slice(huge.slice_from(at));
                at = read.len();
            }
            assert_eq!(read, &bytes[front..]);
        }
    }

    #[test]
    fn pinned_from_leaving_the_store_until_the_last_lets_go() {
        let memory = Memory::new(64 * PAGE_BYTES).unwrap();
        let new = || HugeValue::new(&memory, &[&[7; 10_000]]).unwrap();
        let held = 2 * PAGE_BYTES + 2_048;

        let alone = new();
        alone.enter();
        alone.leave();
        assert_eq!((memory.pinned_bytes(), memory.used_bytes()), (0, 0), "it has no other owner");

        let reader = new();
        assert_eq!(memory.pinned_bytes(), 0, "it is on its way into the store");
        let item = Arc::clone(&reader);
        item.enter();
        let rewritten = Arc::clone(&reader);
        rewritten.enter();
        item.leave();
        assert_eq!((memory.pinned_bytes(), reader.is_pinned()), (0, false), "another item has it");
        rewritten.leave();
        assert_eq!((memory.pinned_bytes(), reader.is_pinned()), (held, true));
        let other = Arc::clone(&reader);
        drop(reader);
        assert_eq!(memory.pinned_bytes(), held, "once for all who have it");
        let back = Arc::clone(&other);
        back.enter();
        assert_eq!(memory.pinned_bytes(), 0, "an item is written again in its old place");
        back.leave();
        drop(other);
        assert_eq!((memory.pinned_bytes(), memory.used_bytes()), (0, 0));
    }
}
