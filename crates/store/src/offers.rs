//! What each store of a memory would lose next, so that room is made where the coldest items are.
//!
//! A store that needs room and finds another one colder asks for it ([`Offers::want`]); the caller, when it
//! holds no store, lets the coldest one walk ([`crate::Store::make_room_for_others`]). So an idle store never
//! takes a step by itself, and no one needs two at a time.
//!
//! # Invariants
//! * A number belongs to one store at a time, as long as a memory has [`STORES`] stores at most.
//! * An offer is a hint: the store may have nothing when it is asked.

#![expect(clippy::cast_precision_loss, reason = "logarithms of sizes")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::choice::coldness;

/// Stores that can be told apart.
const STORES: usize = 256;
/// A store takes room from another one only if that is colder by this much, in the logarithm: a third.
const LEAD: f64 = 0.4;
/// Bits of an offer for the size: its logarithm in 2048ths.
const SIZE_BITS: u32 = 16;

/// The item that a store would lose next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// The store must be asked: it comes before all others.
    Unknown,
    /// Nothing.
    Nothing,
    /// What is dead.
    Dead,
    /// Items of this mean size in bytes, which count as stored at this time in milliseconds.
    Items { stored_ms: u64, size: usize },
    /// Blind items that count as stored then. Between these and main ones no sizes count, so they have the
    /// size of main ones.
    Blind { stored_ms: u64 },
}

/// The offers of the stores of a memory: what each would lose next.
pub(crate) struct Offers {
    enlisted: AtomicUsize,
    words: [AtomicU64; STORES],
    /// The latest time of any store.
    now_ms: AtomicU64,
    /// Mean size in bytes of the head of a main queue, the last that was seen.
    main_size: AtomicUsize,
    /// Bytes of walks that are wanted from others than those that need the room.
    wanted: AtomicUsize,
}

const NOTHING: u64 = 0;
const DEAD: u64 = 1;
const UNKNOWN: u64 = 2;

impl Offers {
    /// Without stores.
    pub(crate) fn new() -> Self {
        Self {
            enlisted: AtomicUsize::new(0),
            words: [const { AtomicU64::new(UNKNOWN) }; STORES],
            now_ms: AtomicU64::new(0),
            main_size: AtomicUsize::new(1),
            wanted: AtomicUsize::new(0),
        }
    }

    /// The number of one more store.
    pub(crate) fn enlist(&self) -> usize {
        self.enlisted.fetch_add(1, Relaxed) % STORES
    }

    /// Puts a store's offer in the place of its last one.
    pub(crate) fn publish(&self, store: usize, offer: Offer, now_ms: u64) {
        // The lowest values of a word have other meanings.
        let later = |stored_ms: u64| stored_ms.clamp(1, u64::MAX >> SIZE_BITS);
        let word = match offer {
            Offer::Unknown => UNKNOWN,
            Offer::Nothing => NOTHING,
            Offer::Dead => DEAD,
            Offer::Blind { stored_ms } => later(stored_ms) << SIZE_BITS,
            Offer::Items { stored_ms, size } => {
                #[expect(clippy::cast_sign_loss, reason = "a logarithm of 1 or more, below 32")]
                let size = ((size.max(2) as f64).log2().min(31.0) * 2048.0) as u64;
                later(stored_ms) << SIZE_BITS | size
            }
        };
        self.words[store].store(word, Relaxed);
        self.now_ms.fetch_max(now_ms, Relaxed);
    }

    /// The store with the coldest offer, among those for which `may` returns true.
    pub(crate) fn coldest(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let stores = self.enlisted.load(Relaxed).min(STORES);
        let offers = (0..stores).filter(|store| may(*store)).map(|store| (self.cold(store), store));
        let coldest = offers.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (coldest.0 > f64::NEG_INFINITY).then_some(coldest.1)
    }

    /// How this store's offer compares with the coldest of the others.
    pub(crate) fn compare(&self, store: usize) -> Rank {
        let stores = self.enlisted.load(Relaxed).min(STORES);
        let others = (0..stores).filter(|other| *other != store).map(|other| self.cold(other));
        let coldest = others.fold(f64::NEG_INFINITY, f64::max);
        let own = self.cold(store);
        if coldest > own + LEAD {
            Rank::Warmer
        } else if own > coldest + LEAD {
            Rank::Colder
        } else {
            Rank::Alike
        }
    }

    /// The coldness of an offer, in the logarithm.
    fn cold(&self, store: usize) -> f64 {
        match self.words[store].load(Relaxed) {
            NOTHING => f64::NEG_INFINITY,
            DEAD | UNKNOWN => f64::MAX,
            word => {
                let age_ms = self.now_ms.load(Relaxed).saturating_sub(word >> SIZE_BITS);
                let size = match word & ((1 << SIZE_BITS) - 1) {
                    0 => (self.main_size.load(Relaxed) as f64).log2(),
                    size => size as f64 / 2048.0,
                };
                coldness(age_ms, size)
            }
        }
    }

    /// Notes the size of the head of a main queue, in bytes.
    pub(crate) fn note_main_size(&self, size: usize) {
        if size != self.main_size.load(Relaxed) {
            self.main_size.store(size.max(1), Relaxed);
        }
    }

    /// Asks for a walk of `bytes` in the coldest store.
    pub(crate) fn want(&self, bytes: usize) {
        self.wanted.fetch_add(bytes, Relaxed);
    }

    /// The bytes of the walks that are wanted; 0: none is.
    #[inline]
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Relaxed)
    }

    /// Takes over the walks that are wanted, for this many bytes.
    pub(crate) fn take_wanted(&self) -> usize {
        self.wanted.swap(0, Relaxed)
    }
}

/// How a store's offer compares with the coldest of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Another one is colder.
    Warmer,
    /// About as cold.
    Alike,
    /// The store is the coldest.
    Colder,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_where_it_is_colder() {
        let offers = Offers::new();
        assert_eq!((0..3).map(|_| offers.enlist()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((offers.coldest(|store| store < 2), offers.compare(0)), (Some(1), Rank::Alike));
        (0..3).for_each(|store| offers.publish(store, Offer::Nothing, 0));
        assert_eq!((offers.coldest(|_| true), offers.compare(0)), (None, Rank::Alike));
        let items = |stored_ms, size| Offer::Items { stored_ms, size };
        offers.publish(0, items(9_000, 100), 10_000);
        offers.publish(1, items(8_900, 100), 10_000);
        assert_eq!(
            (offers.coldest(|_| true), offers.compare(0), offers.compare(1)),
            (Some(1), Rank::Alike, Rank::Alike)
        );
        offers.publish(2, items(9_900, 100_000), 10_000);
        assert_eq!(
            (offers.compare(0), offers.compare(2)),
            (Rank::Warmer, Rank::Colder),
            "a tenth of the age, a thousand times the size"
        );
        assert_eq!(offers.coldest(|store| store != 2), Some(1));
        offers.publish(0, Offer::Dead, 10_000);
        assert_eq!((offers.coldest(|_| true), offers.compare(2)), (Some(0), Rank::Warmer));
        offers.publish(2, Offer::Nothing, 10_000);
        assert_eq!(offers.compare(1), Rank::Warmer);
    }

    #[test]
    fn what_is_wanted_is_taken_once() {
        let offers = Offers::new();
        offers.want(3);
        offers.want(4);
        assert_eq!((offers.wanted(), offers.take_wanted()), (7, 7));
        assert_eq!((offers.take_wanted(), offers.wanted()), (0, 0));
    }
}
