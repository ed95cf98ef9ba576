//! Invalidation in O(1): tags, bumps and flushes as numbers of one clock.
//!
//! A *tag* is a name to invalidate by: every item of one user, one product, one template. An item carries the
//! hashes of its tags and a *stamp*, the number of the server's clock that it counts as of. An invalidation
//! takes the next number and notes it: for one tag ([`Bumps`]) or for everything ([`Floors`]). A look-up
//! compares numbers ([`Tags::check`]):
//!
//! > An item is served iff its stamp is not below the last bump of any of its tags, nor below any floor that
//! > applies to it.
//!
//! A tag can also be purged gradually ([`Tags::purge`]): then its number applies to each item from the item's
//! own moment on.
//!
//! # Why there is no index from tags to keys
//! Such an index grows with the items, must be kept in step with evictions, blocks while a large tag is
//! walked, and misses the keys that are stored in that time. A counter per tag in the cache itself can be
//! evicted, and with it the invalidation. Here nothing is kept per tag. The last bumps are in arrays
//! of fixed size: a count-min sketch whose cells hold "last bumped at" instead of counts. A bump raises one
//! slot in each of two rows, chosen by independent hashes of the tag; a tag's last bump is at most the
//! smaller of its two slots. Since a slot never goes down, a bump is never forgotten. Two tags that share a
//! slot can only make an item look older than it is, which costs a recomputation.
//!
//! The share of such *false stale* answers per tag, for an item stored before `n` distinct other tags were
//! bumped, with `m` slots a row, is the probability that both its slots were hit since:
//! ```text
//!   (1 - (1 - 1/m)^n)^2  ≈  (1 - e^(-n/m))^2      m = 2 Mi:  n = 100,000: 0.2 %   n = 1,000,000: 14 %
//! ```
//! See [`false_stale_share`] for the formula, [`Bumps::estimate`] for an estimate from the arrays.
//!
//! Source of the sketch: G. Cormode and S. Muthukrishnan, "An improved data stream summary: the count-min
//! sketch and its applications", Journal of Algorithms 55 (2005).
//!
//! # What the caller does
//! The caller owns the clock and gives out its numbers, rising and each only once, through the `take_number`
//! arguments. It decides what an item counts as of: a value computed after a miss counts as of that miss, so
//! that a value computed before a bump and stored after it is below the bump. It looks up after it has
//! received a request, so that a request sent after the answer to a bump sees the bump. Everything is used
//! concurrently behind `&self`; nothing here reads a clock or does I/O.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use cattlegrid_tags::{BumpKind, TagHasher, Tags, Validity};
//!
//! let (tags, hasher, clock) = (Tags::new(1 << 20), TagHasher::new(0x5EED), AtomicU64::new(0));
//! let tick = || clock.fetch_add(1, Ordering::Relaxed) + 1;
//! let (key_hash, now_ms) = (42, 0);
//!
//! let list = hasher.parse_list(b"user:12543,product:54929873")?;
//! let stamp = tick();
//! let check = |stamp| tags.check(stamp, list.hashes().iter().copied(), key_hash, now_ms);
//! assert_eq!(check(stamp), Validity::Valid);
//!
//! tags.bumps().bump(hasher.hash(b"user:12543")?, BumpKind::Hard, tick);
//! assert_eq!(check(stamp), Validity::Dead);
//! assert_eq!(check(tick()), Validity::Valid);
//! # Ok::<(), cattlegrid_tags::TagError>(())
//! ```
//!
//! # Invariants
//! * Slots, `last_bump` and the hard floor never go down.
//! * When a bump or a flush has returned, every check that begins later on any thread obeys it.
//! * A check is never more lenient than the rule above; it can be stricter by collisions of hashes alone.
#![forbid(unsafe_code)]
#![expect(clippy::cast_precision_loss, reason = "shares and estimates need few digits")]

mod bumps;
mod check;
mod gradual;
mod occupancy;
mod presence;
mod rises;
mod rolling;
mod superseded;
mod sync;
mod tag;

pub use bumps::{BumpKind, Bumps, CLASSES, FloorClass, false_stale_share};
pub use check::{CROWDED, TagStats, Tags, Validity};
pub use gradual::{GRADUAL_MAX, Purge, PurgeOutcome};
pub use rolling::{Floors, ROLLING_MAX, RollingFloor};
pub use tag::{
    PREFIX_BYTES_MAX, PREFIXES_MAX, PrefixError, PrefixId, Prefixes, TAG_BYTES_MAX, TAG_LINE, TAG_LINE_MAX,
    TAGS_MAX, TagError, TagHash, TagHasher, TagLine, TagList,
};
