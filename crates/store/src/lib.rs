//! Items in bounded memory: a bucketed index over a log of segments, with S3-FIFO eviction.
//!
//! [`Memory`] is the one budget, shared by all shards. A [`Store`] is one shard: an index, a log of segments
//! in three queues, a ghost queue, and outside the log huge values and the trees of objects, in pages of
//! their own. A store does no I/O, reads no clock and takes no lock except the short one of the memory.
//!
//! Keys are in two domains: a plain item and an object whose keys have the same bytes are two items.
//!
//! # Invariant
//! Memory whose size depends on the items comes from [`Memory`], so its limit bounds a store.

mod arriving;
mod choice;
mod config;
mod counters;
mod evict;
mod expired;
mod ghost;
mod graveyard;
mod hasher;
mod holdings;
mod huge;
mod index;
mod item;
mod memory;
mod numbers;
mod object;
mod offers;
mod outside;
mod pages;
mod policy;
mod segment;
mod shares;
mod stats;
mod store;
mod tree;
#[cfg(any(test, fuzzing, feature = "verify"))]
mod verify;

pub use arriving::ArrivingValue;
pub use config::StoreConfig;
pub use counters::{LastEvicted, StoreStats, StoreUsage};
pub use evict::{LeastShares, PinnedEnds, ReclaimedItems};
pub use expired::ExpiredItem;
pub use hasher::KeyHasher;
pub use holdings::ObjectUsage;
pub use huge::HugeValue;
pub use index::prefetch_line;
pub use item::{Attributes, Item, Life, Marks, NEVER, ReadCheck, Refresh, TAGS_MAX, Value};
pub use memory::{Memory, PAGE_BYTES, Run, Runs};
pub use object::PinnedFull;
pub use shares::{ObjectNames, SHARES_MAX, Share, ShareBounds, ShareUsage};
pub use stats::StoreHeld;
pub use store::{Evicted, Found, Lookup, NewValue, Store, StoreFull};
pub use tree::{Tree, TreeFull};
