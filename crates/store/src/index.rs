//! The index of a shard: linear hashing over buckets of one cache line.
//!
//! A bucket is eight words: a link to an overflow bucket, and seven slots. A slot is
//! ```text
//!   63      48 47  46 45     40 39            0
//!  | tag 16   | uses | next 6  | location 40   |      location 0: empty
//! ```
//! `tag` are hash bits 40..56 and are compared before any key is. `next` are the hash bits that the next
//! splits need, so that a split reads no key, except in one doubling out of six. A key lives in its home
//! chain only. The table grows by one bucket at a time, before it reaches [`FULL`], and shrinks the same way,
//! so it never stops to rehash.
//!
//! Source of the scheme: W. Litwin, "Linear hashing: a new tool for file and table addressing", 1980.
//!
//! # Invariants
//! * Buckets `0..2^level + split` exist; those below `split` and from `2^level` up are split at `level + 1`
//!   bits.
//! * In a chain, empty slots are only in the last bucket, and an overflow bucket is never empty.
//! * `len` is the number of slots in use.
#![expect(unsafe_code, reason = "buckets lie in pages of `Memory`, reached by pointer; prefetch")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::{Memory, Run};

/// A shard's index: a linear hash table of item locations.
pub(crate) struct Index {
    memory: Arc<Memory>,
    home: BucketPages,
    overflow: BucketPages,
    /// First of the unused overflow buckets, linked by their word 0: number + 1, or 0 for none.
    free_overflow: u64,
    free_overflow_count: usize,
    level: u32,
    split: usize,
    /// Buckets merged into others: entries have moved to buckets with lower numbers.
    merges: u64,
    /// The lowest `level + 1` bits: made once, since each look-up uses it three times.
    mask: u64,
    /// First of the hash bits that slots keep, of buckets at `level` and at `level + 1` bits.
    windows: [u32; 2],
    len: usize,
    /// The last page that was wanted was not available.
    hungry: bool,
    /// A page for the next time, if one was missing before.
    spare: Option<Run>,
    scratch: Vec<u64>,
}

/// The place of an entry. Valid until the index is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntrySlot {
    bucket: BucketId,
    lane: u8,
}

/// No page was available for another bucket.
#[derive(Debug)]
pub(crate) struct NoPage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BucketId {
    Home(usize),
    Overflow(usize),
}

/// Word 0: link to the next bucket of the chain (overflow number + 1, or 0 for none); then the slots.
type Bucket = [u64; 8];

const LANES: usize = 7;
/// Bytes of a page of buckets.
pub(crate) const PAGE: usize = 16 << 10;
const PAGE_BUCKETS: usize = PAGE / size_of::<Bucket>();
const FIRST_LEVEL: u32 = PAGE_BUCKETS.trailing_zeros();
/// Splits are done when more than this share of the home slots would be in use, in sixteenths: 88 %.
/// With Poisson chains this costs 13.6 bytes an entry, overflow included, and 12 % of the entries lie in
/// an overflow bucket.
const FULL: usize = 14;
/// Merges are done below this share, in sixteenths: 50 %.
const SPARSE: usize = 8;
/// Hash bits kept in a slot for the next splits.
const NEXT_BITS: u32 = 6;

const LOCATION: u64 = (1 << 40) - 1;
const NEXT_SHIFT: u32 = 40;
const USES_SHIFT: u32 = 46;
const TAG_SHIFT: u32 = 48;
/// Most uses a slot counts.
pub(crate) const USES_MAX: u8 = 3;

impl Index {
    /// An index with one page of buckets; `None` when the memory has no such page.
    pub(crate) fn new(memory: Arc<Memory>) -> Option<Self> {
        let mut index = Self {
            memory,
            home: BucketPages::default(),
            overflow: BucketPages::default(),
            free_overflow: 0,
            free_overflow_count: 0,
            level: FIRST_LEVEL,
            split: 0,
            merges: 0,
            mask: low_mask(FIRST_LEVEL + 1),
            windows: windows(FIRST_LEVEL),
            len: 0,
            hungry: false,
            spare: None,
            scratch: Vec::new(),
        };
        index.home.push(index.memory.aligned(PAGE)?);
        Some(index)
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the budget it holds.
    pub(crate) fn bytes(&self) -> usize {
        (self.home.runs.len() + self.overflow.runs.len() + usize::from(self.spare.is_some())) * PAGE
    }

    /// Whether it should get the next page that is available.
    pub(crate) fn is_hungry(&self) -> bool {
        self.hungry
    }

    /// Takes the page that was missing, if there is one now. True: none is missing.
    #[inline]
    pub(crate) fn feed(&mut self) -> bool {
        if self.hungry {
            self.spare = self.page();
        }
        !self.hungry
    }

    fn page(&mut self) -> Option<Run> {
        let page = self.spare.take().or_else(|| self.memory.aligned(PAGE));
        self.hungry = page.is_none();
        page
    }

    /// Home buckets, for [`Index::chain`].
    pub(crate) fn buckets(&self) -> usize {
        (1 << self.level) + self.split
    }

    /// Buckets merged into others since the start: then entries have moved to buckets with lower numbers.
    pub(crate) fn merges(&self) -> u64 {
        self.merges
    }

    /// Doublings of the table since it was empty, plus its first: memcached's `hash_power_level`.
    pub(crate) fn level(&self) -> u32 {
        self.level
    }

    /// The entry with this hash for whose location `same` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut same: impl FnMut(u64) -> bool) -> Option<EntrySlot> {
        let tag = tag(hash);
        let mut id = BucketId::Home(self.home_of(hash));
        loop {
            let bucket = self.bucket(id);
            let mut hits = 0_u32;
            for lane in 0..LANES {
                hits |= u32::from((bucket[lane + 1] >> TAG_SHIFT) as u16 == tag) << lane;
            }
            while hits != 0 {
                let lane = hits.trailing_zeros() as u8;
                hits &= hits - 1;
                let location = bucket[usize::from(lane) + 1] & LOCATION;
                if location != 0 && same(location) {
                    return Some(EntrySlot { bucket: id, lane });
                }
            }
            id = Self::next(bucket)?;
        }
    }

    /// Asks the processor to fetch the hash's home bucket.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.home.address(self.home_of(hash)));
    }

    /// The location that a slot names.
    #[inline]
    pub(crate) fn location(&self, slot: EntrySlot) -> u64 {
        self.word(slot) & LOCATION
    }

    /// The location of the first slot whose tag fits, unchecked: a hint for prefetching.
    #[inline]
    pub(crate) fn likely_location(&self, hash: u64) -> Option<u64> {
        self.bucket(BucketId::Home(self.home_of(hash)))[1..]
            .iter()
            .find(|w| (**w >> TAG_SHIFT) as u16 == tag(hash) && **w & LOCATION != 0)
            .map(|w| w & LOCATION)
    }

    /// How often the entry was used since it was inserted or aged, 0..=[`USES_MAX`].
    #[inline]
    pub(crate) fn uses(&self, slot: EntrySlot) -> u8 {
        (self.word(slot) >> USES_SHIFT & 3) as u8
    }

    /// Counts a use; writes only below [`USES_MAX`].
    #[inline]
    pub(crate) fn count_use(&mut self, slot: EntrySlot) {
        if self.uses(slot) < USES_MAX {
            *self.word_mut(slot) += 1 << USES_SHIFT;
        }
    }

    /// Sets the count of uses.
    pub(crate) fn set_uses(&mut self, slot: EntrySlot, uses: u8) {
        debug_assert!(uses <= USES_MAX);
        let word = self.word_mut(slot);
        *word = *word & !(3 << USES_SHIFT) | u64::from(uses) << USES_SHIFT;
    }

    /// Notes that the entry's item has moved.
    pub(crate) fn set_location(&mut self, slot: EntrySlot, location: u64) {
        debug_assert!(location != 0 && location <= LOCATION);
        let word = self.word_mut(slot);
        *word = *word & !LOCATION | location;
    }

    /// Adds an entry; its key must not be there yet. `hash_of` reads an item's key and hashes it.
    ///
    /// # Errors
    /// [`NoPage`] when the chain is full and there is no page for an overflow bucket; nothing was changed.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        location: u64,
        hash_of: impl Fn(u64) -> u64,
    ) -> Result<(), NoPage> {
        if (self.len + 1) * 16 > self.buckets() * LANES * FULL {
            // Without a page the table stays as it is and chains grow instead.
            let _grown = self.split_one(hash_of);
        }
        let home = self.home_of(hash);
        let window = self.windows[usize::from(self.is_split(home))];
        self.place(home, tag_and_next(hash, window) | location)?;
        self.len += 1;
        Ok(())
    }

    /// Removes an entry; `hash` must be its key's.
    pub(crate) fn remove(&mut self, hash: u64, slot: EntrySlot) {
        let mut last = BucketId::Home(self.home_of(hash));
        let mut before = None;
        while let Some(next) = Self::next(self.bucket(last)) {
            before = Some(last);
            last = next;
        }
        // Fill the hole with the chain's last entry.
        let lane =
            self.bucket(last)[1..].iter().rposition(|w| *w != 0).expect("a chain's last bucket has an entry");
        let tail = EntrySlot { bucket: last, lane: lane as u8 };
        *self.word_mut(slot) = self.word(tail);
        *self.word_mut(tail) = 0;
        if lane == 0
            && let Some(before) = before
        {
            self.bucket_mut(before)[0] = 0;
            self.release_overflow(last);
        }
        self.len -= 1;
        if self.len * 16 < self.buckets() * LANES * SPARSE && self.buckets() > PAGE_BUCKETS {
            self.merge_one();
        }
        if self.free_overflow_count > 0 && self.overflow.runs.len() * PAGE_BUCKETS == self.free_overflow_count
        {
            self.overflow = BucketPages::default();
            (self.free_overflow, self.free_overflow_count) = (0, 0);
        }
    }

    /// The entry of the hash's chain with the fewest uses, and of several the one with the earliest `time` of
    /// its location; not one without.
    pub(crate) fn least_used_of_chain(
        &self,
        hash: u64,
        time: impl Fn(u64) -> Option<u64>,
    ) -> Option<EntrySlot> {
        let mut best: Option<((u8, u64), EntrySlot)> = None;
        self.each_of_chain(self.home_of(hash), |slot, word| {
            let Some(time) = time(word & LOCATION) else { return };
            let worth = (self.uses(slot), time);
            if best.is_none_or(|(least, _)| worth < least) {
                best = Some((worth, slot));
            }
        });
        best.map(|(_, slot)| slot)
    }

    /// The home bucket that a walk in the order of reversed hashes meets at `position`: the bucket, the first
    /// position of its chain, and that of the next one, `None` at the end. All positions of a chain are
    /// neighbours, however often the table has grown or shrunk, so that a key is before or behind a position
    /// for good.
    pub(crate) fn part_at(&self, position: u64) -> (usize, u64, Option<u64>) {
        let home = self.home_of(position.reverse_bits());
        let bits = self.level + u32::from(self.is_split(home));
        let width = 1_u64 << (64 - bits);
        let first = position & !(width - 1);
        (home, first, first.checked_add(width))
    }

    /// The locations of one home bucket's chain.
    pub(crate) fn chain(&self, bucket: usize, mut each: impl FnMut(u64)) {
        self.each_of_chain(bucket, |_, word| each(word & LOCATION));
    }

    fn each_of_chain(&self, home: usize, mut each: impl FnMut(EntrySlot, u64)) {
        let mut id = Some(BucketId::Home(home));
        while let Some(bucket) = id {
            let words = self.bucket(bucket);
            for lane in 0..LANES {
                if words[lane + 1] & LOCATION != 0 {
                    each(EntrySlot { bucket, lane: lane as u8 }, words[lane + 1]);
                }
            }
            id = Self::next(words);
        }
    }

    /// Splits the next bucket. False when there was no page for the new one.
    fn split_one(&mut self, hash_of: impl Fn(u64) -> u64) -> bool {
        let (from, to) = (self.split, self.split + (1 << self.level));
        if to / PAGE_BUCKETS == self.home.runs.len() {
            match self.page() {
                Some(run) => self.home.push(run),
                None => return false,
            }
        }
        let (bit, old, new) = (self.level, window(self.level), window(self.level + 1));
        let mut words = std::mem::take(&mut self.scratch);
        self.take_chain(from, &mut words);
        self.split += 1;
        if self.split == 1 << self.level {
            self.level += 1;
            self.split = 0;
            self.mask = low_mask(self.level + 1);
            self.windows = windows(self.level);
        }
        for word in words.drain(..) {
            let upper = word >> (NEXT_SHIFT + bit - old) & 1;
            // When the bits kept are used up, the key is read once, for the next six doublings.
            let word = if old == new { word } else { with_next(word, hash_of(word & LOCATION) >> new) };
            self.place(if upper == 1 { to } else { from }, word)
                .expect("two buckets need no more overflow than the one they were");
        }
        self.scratch = words;
        true
    }

    /// Undoes the last split, unless there is no room for the longer chain.
    fn merge_one(&mut self) {
        let (level, split) =
            if self.split == 0 { (self.level - 1, 1 << (self.level - 1)) } else { (self.level, self.split) };
        let (to, from) = (split - 1, split - 1 + (1_usize << level));
        let (in_to, in_from) = (self.chain_len(to), self.chain_len(from));
        let overflow = |entries: usize| entries.div_ceil(LANES).saturating_sub(1);
        if overflow(in_to + in_from) > overflow(in_to) + overflow(in_from) + self.free_overflow_count {
            return;
        }
        self.merges += 1;
        let (old, new) = (window(level + 1), window(level));
        let mut words = std::mem::take(&mut self.scratch);
        self.take_chain(to, &mut words);
        self.take_chain(from, &mut words);
        for (i, word) in words.drain(..).enumerate() {
            // The hash bits below `level + 1` are the number of the bucket that the entry comes from.
            let number = if i < in_to { to } else { from } as u64;
            let word = if old == new { word } else { with_next(word, number >> new) };
            self.place(to, word).expect("counted above");
        }
        self.scratch = words;
        (self.level, self.split) = (level, split - 1);
        (self.mask, self.windows) = (low_mask(level + 1), windows(level));
        if from.is_multiple_of(PAGE_BUCKETS) {
            self.home.pop();
        }
    }

    fn chain_len(&self, home: usize) -> usize {
        let mut len = 0;
        self.each_of_chain(home, |_, _| len += 1);
        len
    }

    /// Empties a chain into `words` and gives its overflow buckets back.
    fn take_chain(&mut self, home: usize, words: &mut Vec<u64>) {
        let mut id = Some(BucketId::Home(home));
        while let Some(bucket) = id {
            let content = std::mem::take(self.bucket_mut(bucket));
            words.extend(content[1..].iter().filter(|w| **w != 0));
            if let BucketId::Overflow(_) = bucket {
                self.release_overflow(bucket);
            }
            id = Self::next(&content);
        }
    }

    fn place(&mut self, home: usize, word: u64) -> Result<(), NoPage> {
        let mut id = BucketId::Home(home);
        while let Some(next) = Self::next(self.bucket(id)) {
            id = next;
        }
        if let Some(lane) = self.bucket(id)[1..].iter().position(|w| *w == 0) {
            self.bucket_mut(id)[lane + 1] = word;
            return Ok(());
        }
        let number = self.take_overflow()?;
        self.bucket_mut(id)[0] = number as u64 + 1;
        *self.bucket_mut(BucketId::Overflow(number)) = [0, word, 0, 0, 0, 0, 0, 0];
        Ok(())
    }

    fn take_overflow(&mut self) -> Result<usize, NoPage> {
        if self.free_overflow == 0 {
            let first = self.overflow.runs.len() * PAGE_BUCKETS;
            let page = self.page().ok_or(NoPage)?;
            self.overflow.push(page);
            for number in (first..first + PAGE_BUCKETS).rev() {
                self.release_overflow(BucketId::Overflow(number));
            }
        }
        let number = self.free_overflow as usize - 1;
        self.free_overflow = self.bucket(BucketId::Overflow(number))[0];
        self.free_overflow_count -= 1;
        Ok(number)
    }

    fn release_overflow(&mut self, id: BucketId) {
        let BucketId::Overflow(number) = id else { unreachable!("home buckets stay") };
        *self.bucket_mut(id) = [self.free_overflow, 0, 0, 0, 0, 0, 0, 0];
        self.free_overflow = number as u64 + 1;
        self.free_overflow_count += 1;
    }

    #[inline]
    fn home_of(&self, hash: u64) -> usize {
        let home = hash & self.mask;
        let low = (home & self.mask >> 1) as usize;
        if low < self.split { home as usize } else { low }
    }

    /// Whether `level + 1` bits choose the bucket, and not `level`.
    #[inline]
    fn is_split(&self, home: usize) -> bool {
        home < self.split || home >> self.level != 0
    }

    #[inline]
    fn next(bucket: &Bucket) -> Option<BucketId> {
        (bucket[0] != 0).then(|| BucketId::Overflow(bucket[0] as usize - 1))
    }

    #[inline]
    fn word(&self, slot: EntrySlot) -> u64 {
        self.bucket(slot.bucket)[usize::from(slot.lane) + 1]
    }

    #[inline]
    fn word_mut(&mut self, slot: EntrySlot) -> &mut u64 {
        &mut self.bucket_mut(slot.bucket)[usize::from(slot.lane) + 1]
    }

    #[inline]
    fn bucket(&self, id: BucketId) -> &Bucket {
        let address = self.address(id);
        // SAFETY: `address` lies in a page of ours (bounds checked there), aligned to 64 bytes and
        // initialised by `BucketPages::push`; `self` is borrowed for as long as the reference lives.
        unsafe { address.as_ref() }
    }

    #[inline]
    fn bucket_mut(&mut self, id: BucketId) -> &mut Bucket {
        let mut address = self.address(id);
        // SAFETY: as in `bucket`, and `self` is borrowed mutably.
        unsafe { address.as_mut() }
    }

    #[inline]
    fn address(&self, id: BucketId) -> NonNull<Bucket> {
        match id {
            BucketId::Home(number) => self.home.address(number),
            BucketId::Overflow(number) => self.overflow.address(number),
        }
    }

    /// Walks everything and checks the invariants; returns all locations with their uses.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn verify(&self, hash_of: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut locations = Vec::new();
        let mut overflow_used = 0;
        assert_eq!(self.mask, low_mask(self.level + 1), "the mask is another level's");
        assert_eq!(self.windows, windows(self.level), "the windows are another level's");
        for home in 0..self.buckets() {
            let mut id = Some(BucketId::Home(home));
            while let Some(bucket) = id {
                let words = self.bucket(bucket);
                id = Self::next(words);
                let used = words[1..].iter().take_while(|w| **w != 0).count();
                assert!(words[used + 1..].iter().all(|w| *w == 0), "hole before an entry");
                assert!(id.is_none() || used == LANES, "a chain goes on after a bucket with room");
                overflow_used += usize::from(matches!(bucket, BucketId::Overflow(_)));
                assert!(used > 0 || bucket == BucketId::Home(home), "empty overflow bucket");
                for &word in &words[1..=used] {
                    let hash = hash_of(word & LOCATION);
                    assert_eq!(self.home_of(hash), home, "entry in another key's chain");
                    let expected = tag_and_next(hash, window(self.level + u32::from(self.is_split(home))));
                    let kept = !(3 << USES_SHIFT) & !LOCATION;
                    assert_eq!(word & kept, expected & kept, "tag or next bits wrong");
                    locations.push(word & LOCATION);
                }
            }
        }
        assert_eq!(locations.len(), self.len);
        assert_eq!(overflow_used + self.free_overflow_count, self.overflow.runs.len() * PAGE_BUCKETS);
        locations
    }
}

/// Buckets by number, in pages that never move.
#[derive(Default)]
struct BucketPages {
    runs: Vec<Run>,
    /// First bucket of each run: one load less than through the run.
    first: Vec<NonNull<Bucket>>,
}

// SAFETY: the pointers lead into `runs`, which this owns alone.
unsafe impl Send for BucketPages {}

impl BucketPages {
    fn push(&mut self, mut run: Run) {
        run.bytes_mut().fill(0);
        self.first.push(run.address().cast());
        self.runs.push(run);
    }

    fn pop(&mut self) {
        self.first.pop();
        self.runs.pop();
    }

    #[inline]
    fn address(&self, number: usize) -> NonNull<Bucket> {
        let first = self.first[number / PAGE_BUCKETS];
        // SAFETY: the remainder is below the buckets of a page.
        unsafe { first.add(number % PAGE_BUCKETS) }
    }
}

#[inline]
fn tag(hash: u64) -> u16 {
    (hash >> 40) as u16
}

#[inline]
fn tag_and_next(hash: u64, window: u32) -> u64 {
    with_next(u64::from(tag(hash)) << TAG_SHIFT, hash >> window)
}

fn with_next(word: u64, next: u64) -> u64 {
    word & !(63 << NEXT_SHIFT) | (next & 63) << NEXT_SHIFT
}

/// First of the hash bits that slots of buckets at `level` keep.
fn window(level: u32) -> u32 {
    level / NEXT_BITS * NEXT_BITS
}

/// The windows ([`window`]) of both levels that a table at `level` has.
fn windows(level: u32) -> [u32; 2] {
    [window(level), window(level + 1)]
}

fn low_mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Asks the processor to fetch the line at `address`. Does nothing on processors without such an instruction.
#[inline]
pub(crate) fn prefetch<T>(address: NonNull<T>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that a program can see, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.as_ptr().cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks the processor to fetch the line at which `target` begins.
#[inline]
pub fn prefetch_line<T>(target: &T) {
    prefetch(NonNull::from(target));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        rapidhash::v3::rapidhash_v3(&n.to_le_bytes())
    }

    fn index(pages: usize) -> Index {
        Index::new(Memory::new(pages * PAGE).unwrap()).unwrap()
    }

    #[test]
    fn grows_through_two_windows_and_shrinks_back() {
        let count = if cfg!(miri) { 12_000 } else { 600_000 };
        let mut index = index(800);
        for n in 1..=count {
            index.insert(hash(n), n, hash).unwrap();
        }
        assert_eq!(index.verify(hash).len() as u64, count);
        assert!(index.len() * 10 > index.buckets() * LANES * 7, "load stays near 80 %");
        for n in 1..=count {
            assert!(index.find(hash(n), |l| l == n).is_some());
            assert!(index.find(hash(n), |l| l == n + count).is_none());
        }
        for n in 1..=count {
            let slot = index.find(hash(n), |l| l == n).unwrap();
            index.remove(hash(n), slot);
            if n % (count / 7) == 0 {
                index.verify(hash);
            }
        }
        assert_eq!(index.len(), 0);
        assert_eq!(index.bytes(), PAGE, "an empty index is one page again");
    }

    #[test]
    fn uses_survive_a_split_and_stop_at_three() {
        let mut index = index(256);
        index.insert(hash(1), 1, hash).unwrap();
        for _ in 0..5 {
            let slot = index.find(hash(1), |l| l == 1).unwrap();
            index.count_use(slot);
        }
        for n in 2..40_000 {
            index.insert(hash(n), n, hash).unwrap();
        }
        let slot = index.find(hash(1), |l| l == 1).unwrap();
        assert_eq!(index.uses(slot), USES_MAX);
        assert_eq!(index.location(slot), 1);
    }

    /// Lengths of chains without an attack, at any fill: without knowing the seed no choice of keys gives
    /// longer ones.
    #[test]
    fn chains_are_short() {
        for seed in 1..=4 {
            let hasher = crate::KeyHasher::new(seed);
            let hash = |n: u64| hasher.hash(format!("user:{n}:profile").as_bytes());
            let mut index = index(400);
            let mut longest = 0;
            for n in 1..=300_000 {
                index.insert(hash(n), n, hash).unwrap();
                if n % 20_000 == 0 {
                    longest =
                        (0..index.buckets()).map(|home| index.chain_len(home)).max().unwrap().max(longest);
                }
            }
            assert!(longest <= 7 * LANES, "seed {seed}: a chain of {longest} entries");
        }
    }

    #[test]
    fn without_pages_the_chains_grow_until_they_cannot() {
        let mut index = index(2);
        let mut n = 0;
        while index.insert(hash(n + 1), n + 1, hash).is_ok() {
            n += 1;
        }
        assert!(n as usize > PAGE_BUCKETS * LANES, "{n}");
        assert_eq!(index.verify(hash).len() as u64, n);
        let victim = index.least_used_of_chain(hash(n + 1), |_| Some(0)).unwrap();
        index.remove(hash(index.location(victim)), victim);
        index.insert(hash(n + 1), n + 1, hash).unwrap();
        index.verify(hash);
    }
}
