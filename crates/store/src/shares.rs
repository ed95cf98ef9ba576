//! Memory by prefix: how much the items have whose keys begin alike, at least and at most.
//!
//! A *share* is such a prefix with its two bounds. Each key counts for the longest prefix with which it
//! begins; what begins with none is share 0, which has no bounds. An object counts by its own key and what
//! stands before it ([`ObjectNames`]). The items of a share lie in segments and lists of their own
//! ([`crate::segment`], [`crate::outside`]), so that what is evicted for the sake of one share is never
//! another's: a walk meets the items of one share only.
//!
//! What all have at least may be more than there is room for: beside items that are never evicted, or where
//! items are so short that the index takes much. Then each keeps the same part of its least, so that a tenth
//! of what is held is left to all ([`Shares::kept`]).
//!
//! What is evicted is chosen among the shares that have more than their least ([`Shares::evictable`]); while
//! one has more than its most, from it alone. Among several the coldest items go, wherever they are, as
//! without shares. The bytes of a share are those of its live items with header and key, and of its values
//! outside the log, in all stores of a memory. A read does not look at shares: the segment of an item has the
//! number of its share.
//!
//! # Invariants
//! * All items of a segment and of a list are of its share.
//! * A count of [`Shares`] differs from the bytes of its items by less than [`TOLD`] for each store.

#![expect(clippy::cast_precision_loss, reason = "parts of the memory need no 52 bits")]

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Most shares that a memory can have.
pub const SHARES_MAX: usize = 8;
/// With share 0.
pub(crate) const COUNT: usize = SHARES_MAX + 1;
/// A store tells when the bytes of a share have changed by this much.
pub(crate) const TOLD: usize = 4 << 10;

/// The share that the keys of one prefix have of the memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// With which its keys begin; not empty.
    pub prefix: Box<[u8]>,
    /// The share's items are not evicted for other shares while they have less than this part of the memory,
    /// 0.0..=1.0.
    pub at_least: f64,
    /// They never have more than this part, 0.0..=1.0; a write that would exceed it evicts others of the
    /// share.
    pub at_most: f64,
}

/// The bounds of a share in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareBounds {
    /// With which its keys begin.
    pub prefix: Box<[u8]>,
    /// See [`Share::at_least`].
    pub least: usize,
    /// See [`Share::at_most`].
    pub most: usize,
}

/// What stands before an object's key where it is compared with prefixes: the text of the number that its
/// type's has above these bits.
#[derive(Debug, Clone, Default)]
pub struct ObjectNames {
    /// Bits of a type's number below that, 0..=15.
    pub bits: u32,
    /// Texts by number; a number without one has none.
    pub before: Vec<Box<[u8]>>,
}

/// The memory that the items of one share hold in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareUsage {
    /// Items.
    pub items: u64,
    /// Their bytes in the log and outside it, with header and key.
    pub bytes: u64,
    /// Items that were evicted since the start.
    pub evictions: u64,
}

impl ShareUsage {
    /// Adds another store's.
    pub fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.evictions += other.evictions;
    }
}

/// Some of the shares of a memory: one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShareSet(u16);

impl ShareSet {
    /// All of them.
    pub(crate) const ALL: Self = Self(u16::MAX);

    /// One.
    pub(crate) fn one(share: u8) -> Self {
        Self(1 << share)
    }

    #[inline]
    pub(crate) fn has(self, share: u8) -> bool {
        self.0 >> share & 1 == 1
    }

    /// The members, where a memory has this many.
    pub(crate) fn iter(self, count: usize) -> impl Iterator<Item = u8> {
        (0..count as u8).filter(move |share| self.has(*share))
    }
}

/// What a memory has beside the items that may be evicted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PinnedRoom {
    /// Bytes that are free.
    pub(crate) free: usize,
    /// Bytes of items that are never evicted.
    pub(crate) pinned: usize,
}

/// The bounds of a share in bytes, and what it has.
#[derive(Debug)]
struct ShareAccount {
    prefix: Box<[u8]>,
    /// In millionths of the memory.
    parts: [AtomicUsize; 2],
    least: AtomicUsize,
    most: AtomicUsize,
    bytes: AtomicIsize,
}

/// The shares of a memory.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By their numbers. The first has no prefix.
    accounts: Vec<ShareAccount>,
    /// The numbers of those with a prefix, the longest prefix first.
    by_length: Vec<u8>,
    objects: ObjectNames,
}

const MILLION: f64 = 1e6;
/// The largest part of the bytes of all items that is kept from eviction.
const KEPT_MAX: f64 = 0.9;

impl Shares {
    /// These, of a memory of `limit` bytes; more than [`SHARES_MAX`] are left out.
    pub(crate) fn new(shares: &[Share], objects: ObjectNames, limit: usize) -> Self {
        let account = |prefix: &[u8]| ShareAccount {
            prefix: prefix.into(),
            parts: [const { AtomicUsize::new(0) }; 2],
            least: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
            bytes: AtomicIsize::new(0),
        };
        let shares = &shares[..shares.len().min(SHARES_MAX)];
        let prefixes = std::iter::once(&[][..]).chain(shares.iter().map(|share| &*share.prefix));
        let accounts: Vec<ShareAccount> = prefixes.map(account).collect();
        let mut by_length: Vec<u8> = (1..accounts.len() as u8).collect();
        by_length.sort_by_key(|share| std::cmp::Reverse(accounts[usize::from(*share)].prefix.len()));
        let all = Self { accounts, by_length, objects };
        all.set(shares, limit);
        all
    }

    /// Number of shares, share 0 included.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.accounts.len()
    }

    /// Puts other bounds in force for the shares of these prefixes, in a memory of `limit` bytes.
    pub(crate) fn set(&self, shares: &[Share], limit: usize) {
        #[expect(clippy::cast_sign_loss, reason = "parts of a whole")]
        let millionths = |part: f64| (part.clamp(0.0, 1.0) * MILLION) as usize;
        for share in shares {
            if let Some(account) = self.accounts[1..].iter().find(|account| account.prefix == share.prefix) {
                account.parts[0].store(millionths(share.at_least), Relaxed);
                account.parts[1].store(millionths(share.at_most), Relaxed);
            }
        }
        self.resize(limit);
    }

    /// Notes that the memory has `limit` bytes.
    pub(crate) fn resize(&self, limit: usize) {
        let bytes = |part: &AtomicUsize| (limit as u128 * part.load(Relaxed) as u128 / 1_000_000) as usize;
        for account in &self.accounts[1..] {
            account.least.store(bytes(&account.parts[0]), Relaxed);
            account.most.store(bytes(&account.parts[1]), Relaxed);
        }
    }

    /// The bounds in force, in the order of the shares.
    pub(crate) fn bounds(&self) -> Vec<ShareBounds> {
        let bounds = |account: &ShareAccount| ShareBounds {
            prefix: account.prefix.clone(),
            least: account.least.load(Relaxed),
            most: account.most.load(Relaxed),
        };
        self.accounts[1..].iter().map(bounds).collect()
    }

    /// The share of a key.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> u8 {
        self.find(|prefix| key.starts_with(prefix))
    }

    /// The share of an object with this key, which begins with its type's number.
    pub(crate) fn of_object(&self, key: &[u8]) -> u8 {
        let (number, key) =
            key.split_first_chunk::<2>().map_or((0, key), |(number, key)| (u16::from_le_bytes(*number), key));
        let before =
            self.objects.before.get(usize::from(number >> self.objects.bits)).map_or(&[][..], |text| text);
        self.find(|prefix| match prefix.split_at_checked(before.len()) {
            Some((first, rest)) => first == before && key.starts_with(rest),
            None => before.starts_with(prefix),
        })
    }

    #[inline]
    fn find(&self, is_its: impl Fn(&[u8]) -> bool) -> u8 {
        let named = self.by_length.iter().find(|share| is_its(&self.accounts[usize::from(**share)].prefix));
        named.copied().unwrap_or(0)
    }

    /// Notes that a share has these bytes more.
    pub(crate) fn note(&self, share: u8, bytes: isize) {
        self.accounts[usize::from(share)].bytes.fetch_add(bytes, Relaxed);
    }

    fn bytes(account: &ShareAccount) -> usize {
        account.bytes.load(Relaxed).max(0).unsigned_abs()
    }

    /// The most that it may have, if it has more.
    #[inline]
    pub(crate) fn over(&self, share: u8) -> Option<usize> {
        let account = &self.accounts[usize::from(share)];
        let most = account.most.load(Relaxed);
        (Self::bytes(account) > most).then_some(most)
    }

    /// From which shares something may be evicted: those that have more than their most; without such, those
    /// that have more than their least.
    pub(crate) fn evictable(&self, room: PinnedRoom) -> ShareSet {
        let above = self.above_least(room);
        if above == ShareSet::ALL {
            return above;
        }
        let over = self.those(|account, bytes| bytes > account.most.load(Relaxed));
        if over == ShareSet(0) { above } else { over }
    }

    /// Those that have more than their least. All others always have.
    pub(crate) fn above_least(&self, room: PinnedRoom) -> ShareSet {
        if self.accounts.len() == 1 {
            return ShareSet::ALL;
        }
        let kept = self.kept(room);
        ShareSet(self.those(|account, bytes| bytes as f64 > account.least.load(Relaxed) as f64 * kept).0 | 1)
    }

    /// Which part of its least each share keeps, 0.0..=1.0: the largest with which all together keep no more
    /// than [`KEPT_MAX`] of what may be evicted. Those that have less than that part leave more to the
    /// others.
    pub(crate) fn kept(&self, PinnedRoom { free, pinned }: PinnedRoom) -> f64 {
        let all: usize = self.accounts.iter().map(Self::bytes).sum();
        let mut left = (all + free).saturating_sub(pinned) as f64 * KEPT_MAX;
        let mut shares = [(0.0, 0.0); SHARES_MAX];
        for (share, own) in shares.iter_mut().zip(&self.accounts[1..]) {
            *share = (Self::bytes(own) as f64, own.least.load(Relaxed) as f64);
        }
        shares.sort_by(|a, b| (a.0 * b.1).total_cmp(&(b.0 * a.1)));
        let mut least: f64 = shares.iter().map(|share| share.1).sum();
        for (bytes, own) in shares.into_iter().filter(|share| share.1 > 0.0) {
            let part = left / least;
            if part >= 1.0 || bytes > own * part {
                return part.clamp(0.0, 1.0);
            }
            (left, least) = (left - bytes, least - own);
        }
        1.0
    }

    fn those(&self, are: impl Fn(&ShareAccount, usize) -> bool) -> ShareSet {
        let accounts = self.accounts.iter().enumerate().skip(1);
        let those = accounts.filter(|(_, account)| are(account, Self::bytes(account)));
        ShareSet(those.fold(0, |set, (share, _)| set | 1 << share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(prefix: &str, at_least: f64, at_most: f64) -> Share {
        Share { prefix: prefix.as_bytes().into(), at_least, at_most }
    }

    #[test]
    fn a_key_counts_for_the_longest_prefix() {
        let shares = Shares::new(
            &[share("shop:", 0.0, 1.0), share("shop:cart:", 0.0, 1.0), share("b", 0.0, 1.0)],
            ObjectNames::default(),
            100,
        );
        let of = |key: &str| shares.of(key.as_bytes());
        assert_eq!(
            (of("shop:cart:1"), of("shop:car"), of("shop:"), of("shop"), of("b"), of("")),
            (2, 1, 1, 0, 3, 0)
        );
        assert_eq!(shares.count(), 4);
    }

    #[test]
    fn each_keeps_the_same_part_where_more_is_promised_than_there_is() {
        let all = [share("a", 0.4, 1.0), share("b", 0.4, 1.0), share("c", 0.0, 1.0)];
        let shares = Shares::new(&all, ObjectNames::default(), 1_000);
        let none = PinnedRoom::default();
        let is =
            |part: f64, expected: f64| assert!((part - expected).abs() < 1e-6, "{part}, {expected} expected");
        is(shares.kept(none), 1.0);
        // There is room for nine tenths of 400.
        shares.note(1, 200);
        shares.note(2, 200);
        is(shares.kept(none), 0.45);
        assert_eq!(shares.evictable(none).0, 0b111);
        // One of the two has less than its part of nine tenths of 600.
        shares.note(0, 200);
        is(shares.kept(none), 1.0);
        shares.note(2, 200);
        shares.note(0, -200);
        is(shares.kept(none), 0.85);
        assert_eq!(shares.evictable(none).0, 0b101, "the one with more than its part gives");
        // Pinned items take room, free memory is room.
        is(shares.kept(PinnedRoom { free: 0, pinned: 300 }), 0.3375);
        is(shares.kept(PinnedRoom { free: 600, pinned: 300 }), 1.0);
        is(shares.kept(PinnedRoom { free: 0, pinned: 900 }), 0.0);
    }

    #[test]
    fn an_object_counts_by_its_key_and_what_stands_before_it() {
        let before = [&b""[..], b"a:"].map(Box::from).to_vec();
        let all = [share("a:b", 0.0, 1.0), share("a", 0.0, 1.0)];
        let shares = Shares::new(&all, ObjectNames { bits: 10, before }, 100);
        let of = |number: u16, key: &[u8]| shares.of_object(&[&number.to_le_bytes(), key].concat());
        assert_eq!(
            [of(1, b"a:b"), of(1, b"b"), of(1 << 10 | 1, b"b"), of(1 << 10, b""), of(9 << 10, b"a")],
            [1, 0, 1, 2, 2]
        );
        assert_eq!((shares.of_object(b"a"), shares.of_object(b"b")), (2, 0), "without a type");
    }

    #[test]
    fn what_has_more_than_its_most_goes_first() {
        let shares =
            Shares::new(&[share("a", 0.2, 0.5), share("b", 0.1, 1.0)], ObjectNames::default(), 1_000);
        assert_eq!(
            shares.evictable(PinnedRoom::default()).0,
            0b1,
            "the others have not what they have at least"
        );
        // Of all others, so that there is room for what is promised.
        shares.note(0, 2_000);
        shares.note(1, 201);
        shares.note(2, 100);
        assert_eq!((shares.evictable(PinnedRoom::default()).0, shares.over(1)), (0b11, None));
        shares.note(1, 300);
        assert_eq!((shares.evictable(PinnedRoom::default()).0, shares.over(1)), (0b10, Some(500)));
        shares.set(&[share("a", 0.6, 0.7)], 1_000);
        assert_eq!((shares.evictable(PinnedRoom::default()).0, shares.over(1)), (0b1, None));
        shares.resize(500);
        assert_eq!((shares.evictable(PinnedRoom::default()).0, shares.over(1)), (0b10, Some(350)));
        shares.note(1, -1_000);
        assert_eq!(
            shares.evictable(PinnedRoom::default()).0,
            0b101,
            "told by different threads it may be below nothing for a moment"
        );
        assert_eq!(
            Shares::new(&[], ObjectNames::default(), 10).evictable(PinnedRoom::default()),
            ShareSet::ALL
        );
    }
}
