//! Fingerprints of recent keys: the ghost queue, and the recent misses.
//!
//! The ghost queue knows keys that were evicted: those that left the small or the blind queue, which go to
//! the main queue when they come back, and those that left the main queue. What comes back says which of the
//! two was too small. What is stored and is not among the recent misses is blind.
//!
//! It is a table of cache lines; each line is a ring of the last 31 fingerprints whose hash chose it. Two
//! bytes a key. Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023 (its
//! queue G).
//!
//! # Invariants
//! * Insertion and look-up touch one cache line.
//! * The table only grows, by chunks of the shared memory.
//! * `counts` are the numbers of fingerprints by where their keys were evicted from.

use std::sync::Arc;

use crate::memory::{Memory, PAGE_BYTES, Run};
use crate::segment::{Place, SegmentQueue};

/// Fingerprints of recent keys. Empty until the first [`Ghost::grow`].
pub(crate) struct Ghost {
    chunks: Vec<Run>,
    /// Bytes by which the table grows, a power of two of pages.
    chunk: usize,
    counts: [usize; 2],
}

/// Where a key was evicted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictedFrom {
    /// The small queue.
    Small,
    /// The main queue.
    Main,
    /// The blind queue, where the value had this place.
    Blind(Place),
}

impl EvictedFrom {
    /// This queue, of an item whose value had this place.
    pub(crate) fn queue(queue: SegmentQueue, place: Place) -> Self {
        match queue {
            SegmentQueue::Small => Self::Small,
            SegmentQueue::Main => Self::Main,
            SegmentQueue::Blind => Self::Blind(place),
        }
    }

    /// The bits of a fingerprint.
    fn bits(self) -> u16 {
        match self {
            Self::Small => 0,
            Self::Main => 1,
            Self::Blind(Place::Short) => 2,
            Self::Blind(Place::Long) => 3,
            Self::Blind(Place::Outside) => 4,
        }
    }

    /// The main queue is one side, the others are the other.
    fn side(self) -> usize {
        usize::from(self == Self::Main)
    }
}

/// Bytes of a ring: 31 fingerprints and the place of the next one, 16 bits each.
const RING: usize = 64;
const PLACES: usize = RING / 2 - 1;
/// Bits of a fingerprint: where its key was evicted from, or that this was told because the key was wanted again.
/// Of those only the side is known.
const FROM: u16 = 7;
const TOLD_OTHERS: u16 = 5;
const TOLD_MAIN: u16 = 6;

impl Ghost {
    /// Without places; grows by `pages` pages at a time, a power of two.
    pub(crate) fn new(pages: usize) -> Self {
        Self { chunks: Vec::new(), chunk: pages * PAGE_BYTES, counts: [0; 2] }
    }

    /// Whether it has fewer places than that.
    pub(crate) fn is_small(&self, places: usize) -> bool {
        self.bytes() / RING * PLACES < places
    }

    /// Grows by a chunk, if there is memory.
    pub(crate) fn grow(&mut self, memory: &Arc<Memory>) {
        if let Some(mut run) = memory.aligned(self.chunk) {
            run.bytes_mut().fill(0);
            self.chunks.push(run);
        }
    }

    /// Remembers a key, as the last of its ring if it was not known.
    pub(crate) fn insert(&mut self, hash: u64, from: EvictedFrom) {
        let wanted = fingerprint(hash);
        let Some(ring) = self.ring_mut(hash) else { return };
        let place = find(ring, wanted).unwrap_or_else(|| {
            let next = usize::from(ring[RING - 2]) % PLACES;
            ring[RING - 2] = (next + 1) as u8;
            next
        });
        let old = get(ring, place);
        set(ring, place, wanted | from.bits());
        self.forget(old);
        self.counts[from.side()] += 1;
    }

    /// Where the key was evicted from, if it is remembered and this was not asked before.
    pub(crate) fn tell(&mut self, hash: u64) -> Option<EvictedFrom> {
        let ring = self.ring_mut(hash)?;
        let place = find(ring, fingerprint(hash))?;
        let known = get(ring, place);
        if is_told(known) {
            return None;
        }
        let from = from(known);
        set(ring, place, known & !FROM | if from == EvictedFrom::Main { TOLD_MAIN } else { TOLD_OTHERS });
        Some(from)
    }

    /// Where the key was evicted from, if it is remembered, and whether that was told before; forgets it. What
    /// was told counts as evicted from the main queue or from the small one.
    pub(crate) fn take(&mut self, hash: u64) -> Option<(EvictedFrom, bool)> {
        let ring = self.ring_mut(hash)?;
        let place = find(ring, fingerprint(hash))?;
        let known = get(ring, place);
        set(ring, place, 0);
        self.forget(known);
        Some((from(known), is_told(known)))
    }

    /// Fingerprints of keys that were evicted from the small or the blind queue, and from the main one.
    pub(crate) fn counts(&self) -> [usize; 2] {
        self.counts
    }

    /// Bytes of the budget it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * self.chunk
    }

    fn forget(&mut self, known: u16) {
        if known != 0 {
            // Those of a chunk that a growing table no longer reaches are still counted: never below 0.
            let count = &mut self.counts[from(known).side()];
            *count = count.saturating_sub(1);
        }
    }

    /// The ring of a hash, as in linear hashing: growing by a chunk forgets a part of one chunk only.
    fn ring_mut(&mut self, hash: u64) -> Option<&mut [u8]> {
        let count = self.chunks.len();
        let rings = self.chunk / RING;
        let all = count.next_power_of_two() * rings;
        let ring = (hash >> 8) as usize & (all - 1);
        let ring = if ring / rings < count { ring } else { ring & (all / 2 - 1) };
        let chunk = self.chunks.get_mut(ring / rings)?.bytes_mut();
        let at = ring % rings * RING;
        Some(&mut chunk[at..at + RING])
    }
}

fn is_told(known: u16) -> bool {
    matches!(known & FROM, TOLD_OTHERS | TOLD_MAIN)
}

fn from(known: u16) -> EvictedFrom {
    match known & FROM {
        1 | TOLD_MAIN => EvictedFrom::Main,
        2 => EvictedFrom::Blind(Place::Short),
        3 => EvictedFrom::Blind(Place::Long),
        4 => EvictedFrom::Blind(Place::Outside),
        _ => EvictedFrom::Small,
    }
}

/// The place of this fingerprint in a ring.
fn find(ring: &[u8], wanted: u16) -> Option<usize> {
    (0..PLACES).find(|place| get(ring, *place) & !FROM == wanted)
}

fn get(ring: &[u8], place: usize) -> u16 {
    u16::from_le_bytes([ring[place * 2], ring[place * 2 + 1]])
}

fn set(ring: &mut [u8], place: usize, known: u16) {
    ring[place * 2..place * 2 + 2].copy_from_slice(&known.to_le_bytes());
}

/// Hash bits 35..48 in the upper 13 bits, but never 0, which is an empty place.
fn fingerprint(hash: u64) -> u16 {
    (((hash >> 32) as u16) & !FROM).max(FROM + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        rapidhash::v3::rapidhash_v3(&n.to_le_bytes())
    }

    #[test]
    fn remembers_about_as_many_as_it_has_places() {
        let memory = Memory::new(1 << 20).unwrap();
        let mut ghost = Ghost::new(4);
        assert!(ghost.take(hash(1)).is_none());
        while ghost.is_small(20_000) {
            ghost.grow(&memory);
        }
        assert_eq!(ghost.bytes(), 3 * 4 * PAGE_BYTES);
        for n in 0..60_000 {
            ghost.insert(hash(n), EvictedFrom::Small);
        }
        let mut taken =
            |from: u64, until: u64| (from..until).filter(|n| ghost.take(hash(*n)).is_some()).count();
        let recent = taken(58_000, 60_000);
        assert!(recent > 1_900, "{recent}");
        assert!(taken(58_000, 60_000) < 20, "taken once");
        let old = taken(0, 20_000);
        assert!(old < 600, "{old}");
    }

    #[test]
    fn tells_once_where_a_key_was_evicted_from() {
        let memory = Memory::new(1 << 20).unwrap();
        let mut ghost = Ghost::new(1);
        ghost.grow(&memory);
        ghost.insert(hash(1), EvictedFrom::Small);
        ghost.insert(hash(2), EvictedFrom::Main);
        assert_eq!((ghost.counts(), ghost.tell(hash(3))), ([1, 1], None));
        assert_eq!((ghost.tell(hash(2)), ghost.tell(hash(2))), (Some(EvictedFrom::Main), None));
        ghost.insert(hash(1), EvictedFrom::Main);
        assert_eq!((ghost.counts(), ghost.tell(hash(1))), ([0, 2], Some(EvictedFrom::Main)), "evicted again");
        assert_eq!(ghost.take(hash(2)), Some((EvictedFrom::Main, true)));
        assert_eq!((ghost.take(hash(2)), ghost.counts()), (None, [0, 1]));
        for place in [Place::Short, Place::Long, Place::Outside] {
            let from = EvictedFrom::Blind(place);
            ghost.insert(hash(4), from);
            assert_eq!((ghost.take(hash(4)), ghost.counts()), (Some((from, false)), [0, 1]));
            ghost.insert(hash(4), from);
            assert_eq!(
                (ghost.tell(hash(4)), ghost.tell(hash(4)), ghost.counts()),
                (Some(from), None, [1, 1])
            );
            assert_eq!((ghost.take(hash(4)), ghost.counts()), (Some((EvictedFrom::Small, true)), [0, 1]));
        }
    }
}
