//! The ghost queue: fingerprints of keys that left the small queue unused. A key that comes back while its
//! fingerprint is still here goes to the main queue at once.
//!
//! It is a table of cache lines; each line is a ring of the last 31 fingerprints whose hash chose it. Two bytes a key.
//! Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023 (its queue G).
//!
//! # Invariants
//! * Insertion and look-up touch one cache line.
//! * The table only grows, by chunks of the shared memory.

use std::sync::Arc;

use crate::memory::{Memory, PAGE_BYTES, Run};

/// Fingerprints of recently evicted keys. Empty until the first [`Ghost::grow`].
#[derive(Default)]
pub(crate) struct Ghost {
    chunks: Vec<Run>,
}

/// Bytes of a ring: 31 fingerprints and the place of the next one, 16 bits each.
const RING: usize = 64;
const PLACES: usize = RING / 2 - 1;
/// Bytes by which the table grows.
const CHUNK: usize = 4 * PAGE_BYTES;
const CHUNK_RINGS: usize = CHUNK / RING;

impl Ghost {
    /// Whether it has fewer places than there are items.
    pub(crate) fn is_small(&self, items: usize) -> bool {
        self.chunks.len() * CHUNK_RINGS * PLACES < items
    }

    /// Grows by a chunk, if there is memory.
    pub(crate) fn grow(&mut self, memory: &Arc<Memory>) {
        if let Some(mut run) = memory.aligned(CHUNK) {
            run.bytes_mut().fill(0);
            self.chunks.push(run);
        }
    }

    /// Remembers a key.
    pub(crate) fn insert(&mut self, hash: u64) {
        let Some(ring) = self.ring_mut(hash) else { return };
        let next = usize::from(ring[RING - 2]) % PLACES;
        ring[next * 2..next * 2 + 2].copy_from_slice(&fingerprint(hash));
        ring[RING - 2] = (next + 1) as u8;
    }

    /// Whether the key is remembered; forgets it.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let Some(ring) = self.ring_mut(hash) else { return false };
        let wanted = fingerprint(hash);
        let found = ring[..PLACES * 2].chunks_exact_mut(2).find(|f| **f == wanted);
        found.map(|place| place.fill(0)).is_some()
    }

    /// Bytes of the budget it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// The ring of a hash, as in linear hashing: growing by a chunk forgets a part of one chunk only.
    fn ring_mut(&mut self, hash: u64) -> Option<&mut [u8]> {
        let count = self.chunks.len();
        let all = count.next_power_of_two() * CHUNK_RINGS;
        let ring = (hash >> 8) as usize & (all - 1);
        let ring = if ring / CHUNK_RINGS < count { ring } else { ring & (all / 2 - 1) };
        let chunk = self.chunks.get_mut(ring / CHUNK_RINGS)?.bytes_mut();
        let at = ring % CHUNK_RINGS * RING;
        Some(&mut chunk[at..at + RING])
    }
}

/// Hash bits 32..48, but never 0, which is an empty place.
fn fingerprint(hash: u64) -> [u8; 2] {
    ((hash >> 32) as u16).max(1).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_about_as_many_as_it_has_places() {
        let memory = Memory::new(1 << 20).unwrap();
        let mut ghost = Ghost::default();
        let hash = |n: u64| rapidhash::v3::rapidhash_v3(&n.to_le_bytes());
        assert!(!ghost.take(hash(1)));
        while ghost.is_small(20_000) {
            ghost.grow(&memory);
        }
        assert_eq!(ghost.bytes(), 3 * CHUNK);
        for n in 0..60_000 {
            ghost.insert(hash(n));
        }
        let recent = (58_000..60_000).filter(|n| ghost.take(hash(*n))).count();
        assert!(recent > 1_900, "{recent}");
        assert!((58_000..60_000).filter(|n| ghost.take(hash(*n))).count() < 20, "taken once");
        let old = (0..20_000).filter(|n| ghost.take(hash(*n))).count();
        assert!(old < 400, "{old}");
    }
}
