//! The log of a shard: segments that are filled from front to back and emptied whole.
//!
//! An item is known by its *location*: its offset in the reservation in units of 8 bytes, plus 1. A segment
//! is in one of three queues and one class ([`class`]): of the share of its items, of their TTL and of their
//! size.
//! One segment of each pair is *open* and takes appends, the others are *sealed*. The log knows how many live
//! bytes a segment holds; the index knows which.
//!
//! # Invariants
//! * Locations handed out lie in segments of this log, never across a segment's end.
//! * A segment's `live_bytes`, `live_items`, `outside_bytes`, and the bytes of its pinned items and of its
//!   stubs, are the sums of the calls of [`Log::add`], [`Log::remove`] and [`Log::reweigh`].
//! * The pinned items of the segment that is collected have room in the collector's spare, or in the segment
//!   that was opened from it: at the end of that one, `kept` bytes are for them alone.
#![expect(unsafe_code, reason = "items lie in segments, reached by location")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::item::NEVER;
use crate::memory::{Memory, Run};
use crate::shares::{self, ShareSet};

mod account;
mod class;

pub(crate) use account::{QueueAccount, Segment, SegmentQueue, SegmentState, Weight};
pub(crate) use class::Place;

/// The log of a shard: segments of items, filled from front to back and emptied whole.
pub(crate) struct Log {
    memory: Arc<Memory>,
    base: NonNull<u8>,
    shift: u32,
    segments: Vec<Option<Segment>>,
    /// Segment number (offset / segment bytes) → index in `segments`, [`NONE`] if not ours.
    by_number: Vec<u32>,
    /// Spare segments: the collector's, and one for the writers.
    spare: Vec<Run>,
    open: [Vec<u32>; SegmentQueue::COUNT],
    sequence: u64,
    /// What each queue of each share has.
    accounts: [[QueueAccount; SegmentQueue::COUNT]; shares::COUNT],
    /// Bytes of the live items of each share, in the log and outside it, where there are shares with bounds.
    share_bytes: [usize; shares::COUNT],
    /// By how much these have changed since the memory was told.
    untold: [isize; shares::COUNT],
    /// Bytes of the live items of all segments, in the log.
    live_bytes: usize,
    /// Live items that are stubs, and their bytes.
    stubs: (usize, usize),
    /// Segments in use, spares not among them.
    used: usize,
    /// TTL classes of a share.
    classes: u8,
    /// Shares of the memory, that of all other keys included.
    shares: u8,
    /// The segment that is collected.
    collected: Option<u32>,
    /// The segment that was opened from the collector's spare while that one was collected.
    refuge: Option<u32>,
    /// May take segments from the memory; otherwise only those that it frees itself.
    may_grow: bool,
    /// Nothing is evicted: all items of the segment that is collected move.
    keeps_all: bool,
    /// The present time, see [`TICKS_PER_MS`].
    now: u64,
}

// SAFETY: `base` leads into the reservation, of which the log touches only the segments it owns.
unsafe impl Send for Log {}

/// Ages of items are compared in ticks. Each item that is stored takes one, so that what is stored in one
/// millisecond has an order.
pub(crate) const TICKS_PER_MS: u64 = 1024;

const NONE: u32 = u32::MAX;
/// Segments that only the collector may take: it must be able to copy one segment's survivors.
const RESERVE: usize = 1;
/// Cache lines of an item that are fetched ahead: header, key and a value of some 100 bytes.
const PREFETCH_LINES: usize = 4;
/// A segment is new until one for each of this many segments was filled after it.
const NEW: usize = 8;
/// Spare segments that the log keeps.
const SPARES: usize = 2;

impl Log {
    /// A log of segments of `segment_bytes` (a power of two) in `classes` TTL classes (1 at least) for each
    /// share of the memory. `None` when the memory does not even have the reserve.
    pub(crate) fn new(memory: Arc<Memory>, segment_bytes: usize, classes: u8) -> Option<Self> {
        let shares = memory.shares().count() as u8;
        let spare = (0..SPARES).map(|_| memory.aligned(segment_bytes)).collect::<Option<Vec<_>>>()?;
        Some(Self {
            base: memory.base(),
            shift: segment_bytes.trailing_zeros(),
            segments: Vec::new(),
            by_number: Vec::new(),
            spare,
            open: [(); SegmentQueue::COUNT].map(|()| vec![NONE; class::count(classes, shares)]),
            sequence: 0,
            accounts: [[QueueAccount::default(); SegmentQueue::COUNT]; shares::COUNT],
            share_bytes: [0; shares::COUNT],
            untold: [0; shares::COUNT],
            live_bytes: 0,
            stubs: (0, 0),
            used: 0,
            classes,
            shares,
            collected: None,
            refuge: None,
            may_grow: true,
            keeps_all: false,
            now: 0,
            memory,
        })
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> usize {
        1 << self.shift
    }

    /// The share of a key; `objects`: it begins with a type.
    #[inline]
    pub(crate) fn share(&self, key: &[u8], objects: bool) -> u8 {
        if self.shares == 1 {
            return 0;
        }
        let shares = self.memory.shares();
        if objects { shares.of_object(key) } else { shares.of(key) }
    }

    /// Whether there are shares with bounds.
    #[inline]
    pub(crate) fn has_shares(&self) -> bool {
        self.shares > 1
    }

    /// Room for `bytes` in the open segment of `queue` and `class`, or in a new one. The last spare segment
    /// is the collector's. `None`: no segment is available.
    pub(crate) fn append(&mut self, queue: SegmentQueue, class: u8, bytes: usize) -> Option<u64> {
        if !self.has_room(queue, class, bytes) {
            let run = self.new_segment()?;
            self.open(queue, class, run);
        }
        self.take(queue, class, bytes)
    }

    /// Room for `bytes` in any open segment of the queue and of the share of this class, whatever its items.
    pub(crate) fn append_anywhere(&mut self, queue: SegmentQueue, class: u8, bytes: usize) -> Option<u64> {
        let mut classes = self.classes_of(self.share_of(class));
        let class = classes.find(|class| self.has_room(queue, *class, bytes))?;
        self.take(queue, class, bytes)
    }

    /// Room for an item that the collector keeps. The last spare is taken when nothing else of the queue has
    /// room; all later survivors fit there, whatever their class, since it holds as much as one segment. The
    /// other queues are the last resort, in case a writer has used some of the spare; no writer uses the part
    /// of it that is kept for `pinned` items.
    pub(crate) fn append_survivor(
        &mut self,
        queue: SegmentQueue,
        class: u8,
        bytes: usize,
        pinned: bool,
    ) -> Option<u64> {
        if let Some(location) = self.append(queue, class, bytes) {
            return Some(location);
        }
        if let Some(location) = self.append_anywhere(queue, class, bytes) {
            return Some(location);
        }
        if (pinned || self.keeps_all)
            && let Some(refuge) = self.refuge
            && let Some(location) = self.take_in(refuge, bytes)
        {
            return Some(location);
        }
        if let Some(run) = self.spare.pop() {
            let index = self.open(queue, class, run);
            self.end_refuge();
            self.refuge = self.collected.map(|_| index);
            self.keep_room();
            return self.take_in(index, bytes);
        }
        queue.others().find_map(|queue| self.append_anywhere(queue, class, bytes))
    }

    fn take(&mut self, queue: SegmentQueue, class: u8, bytes: usize) -> Option<u64> {
        debug_assert!(bytes.is_multiple_of(8) && self.has_room(queue, class, bytes));
        self.take_in(self.open[queue as usize][usize::from(class)], bytes)
    }

    /// Room in this segment, the part that is kept included.
    fn take_in(&mut self, index: u32, bytes: usize) -> Option<u64> {
        let most = self.segment_bytes();
        let segment = self.segments[index as usize].as_mut()?;
        if segment.filled + bytes > most {
            return None;
        }
        let offset = segment.run.offset() + segment.filled;
        segment.filled += bytes;
        Some(offset as u64 / 8 + 1)
    }

    /// Bytes of items of the collected segment that must move: the pinned ones, or all if nothing is evicted.
    fn must_move_bytes(&self) -> usize {
        let collected = self.collected.and_then(|index| self.get(index));
        collected.map_or(0, |segment| if self.keeps_all { segment.live_bytes } else { segment.pinned_bytes })
    }

    /// Keeps room for the items that are left in the segment that is collected and must move.
    fn keep_room(&mut self) {
        let Some(refuge) = self.refuge else { return };
        let pinned = self.must_move_bytes();
        let most = self.segment_bytes();
        if let Some(segment) = self.segments[refuge as usize].as_mut() {
            segment.kept = pinned.min(most - segment.filled);
        }
    }

    /// Whether an append needs no new segment.
    #[inline]
    pub(crate) fn has_room(&self, queue: SegmentQueue, class: u8, bytes: usize) -> bool {
        let open = self.open[queue as usize][usize::from(class)];
        open != NONE
            && self.segments[open as usize]
                .as_ref()
                .is_some_and(|s| s.filled + bytes + s.kept <= self.segment_bytes())
    }

    /// Whether there are as many spare segments as there should be.
    #[inline]
    pub(crate) fn is_well(&self) -> bool {
        self.spare.len() >= SPARES
    }

    /// Takes spare segments from the memory while it has some. True: there are as many as there should be.
    pub(crate) fn refill(&mut self) -> bool {
        while self.spare.len() < SPARES {
            if !self.may_grow {
                return false;
            }
            match self.memory.aligned(self.segment_bytes()) {
                Some(run) => self.spare.push(run),
                None => return false,
            }
        }
        true
    }

    /// Whether the collector has no segment to copy survivors to.
    pub(crate) fn is_reserve_gone(&self) -> bool {
        self.spare.is_empty()
    }

    fn new_segment(&mut self) -> Option<Run> {
        if self.spare.len() > RESERVE {
            return self.spare.pop();
        }
        if !self.may_grow {
            return None;
        }
        // The refuge may be sealed now: what is left to move needs another spare first.
        if self.refuge.is_some() && self.spare.is_empty() {
            self.spare.push(self.memory.aligned(self.segment_bytes())?);
        }
        self.memory.aligned(self.segment_bytes())
    }

    /// The present time in ticks.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The present time in milliseconds.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.now / TICKS_PER_MS
    }

    /// Moves the time on to these milliseconds, unless it is there.
    #[inline]
    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.now = self.now.max(now_ms * TICKS_PER_MS);
    }

    /// Moves the time on by a tick: one item was stored.
    #[inline]
    pub(crate) fn tick(&mut self) {
        self.now += 1;
    }

    /// Whether nothing is evicted.
    pub(crate) fn set_keeps_all(&mut self, keeps_all: bool) {
        self.keeps_all = keeps_all;
    }

    /// Allows or forbids to take segments from the memory.
    pub(crate) fn set_may_grow(&mut self, may_grow: bool) {
        self.may_grow = may_grow;
    }

    fn open(&mut self, queue: SegmentQueue, class: u8, run: Run) -> u32 {
        let previous = self.open[queue as usize][usize::from(class)];
        if previous != NONE {
            self.seal(previous);
        }
        let number = run.offset() >> self.shift;
        let share = self.share_of(class);
        let segment = Segment {
            run,
            queue,
            class,
            share,
            place: Place::of(class, false),
            state: SegmentState::Open,
            filled: 0,
            live_bytes: 0,
            live_items: 0,
            outside_bytes: 0,
            pinned_bytes: 0,
            pinned_outside: 0,
            stubs: (0, 0),
            kept: 0,
            reap_at: u32::MAX,
            looked: 0,
            looked_at: 0,
            sequence: u64::MAX,
            spent: 0,
            opened: self.now,
            byte_ticks: 0,
            dead_at: 1,
            stamp: 0,
        };
        let index = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        if index == self.segments.len() {
            self.segments.push(None);
        }
        self.segments[index] = Some(segment);
        if self.by_number.len() <= number {
            self.by_number.resize(number + 1, NONE);
        }
        self.by_number[number] = index as u32;
        self.open[queue as usize][usize::from(class)] = index as u32;
        let bytes = self.segment_bytes();
        self.account(share, queue).bytes += bytes;
        self.used += 1;
        index as u32
    }

    fn seal(&mut self, index: u32) {
        self.sequence += 1;
        let segment = self.segments[index as usize].as_mut().expect("an open segment exists");
        segment.state = SegmentState::Sealed;
        segment.sequence = self.sequence;
        self.open[segment.queue as usize][usize::from(segment.class)] = NONE;
        if self.refuge == Some(index) {
            self.end_refuge();
        }
    }

    /// Seals the fullest open segment of these shares, for a collector that finds no sealed one. False:
    /// nothing is open that holds more than pinned items and stubs.
    pub(crate) fn seal_fullest(&mut self, shares: ShareSet) -> bool {
        let fullest = self
            .iter()
            .filter(|(_, s)| {
                s.state == SegmentState::Open && s.filled > s.pinned_bytes + s.stubs.1 && shares.has(s.share)
            })
            .max_by_key(|(_, s)| s.filled)
            .map(|(index, _)| index);
        fullest.map(|index| self.seal(index)).is_some()
    }

    /// Notes that an item at `location` has become live, which counts as stored at `stored`, in ticks.
    #[inline]
    pub(crate) fn add(&mut self, location: u64, weight: Weight, dead_at: u32, stamp: u64, stored: u64) {
        let segment = self.segment_of_mut(location);
        segment.live_bytes += weight.bytes;
        segment.live_items += 1;
        segment.cover(dead_at, stamp);
        let age = i128::from(stored) - i128::from(segment.opened);
        segment.byte_ticks += age * weight.bytes as i128;
        let (share, queue, outside) = (segment.share, segment.queue, segment.outside_bytes + weight.outside);
        self.account(share, queue).items += 1;
        self.live_bytes += weight.bytes;
        self.note(share, weight.bytes, 0);
        if weight.pinned || outside > 0 {
            self.reweigh(location, Weight::plain(weight.bytes), weight, dead_at);
        }
    }

    /// Notes that the item at `location` was written anew in its place, and what it took before.
    pub(crate) fn replace(&mut self, location: u64, before: Weight, after: Weight, dead_at: u32, stamp: u64) {
        self.cover(location, dead_at, stamp);
        if before != after {
            self.reweigh(location, before, after, dead_at);
        }
    }

    /// Notes that the item at `location` takes other bytes outside the log, or was pinned, or no longer is.
    pub(crate) fn reweigh(&mut self, location: u64, before: Weight, after: Weight, dead_at: u32) {
        debug_assert_eq!(before.bytes, after.bytes);
        if before.pinned {
            self.unpin(location, before);
        }
        let segment = self.segment_of_mut(location);
        segment.outside_bytes = segment.outside_bytes - before.outside + after.outside;
        let (was, is) = (before.stub(), after.stub());
        segment.stubs = (segment.stubs.0 - was.0 + is.0, segment.stubs.1 - was.1 + is.1);
        let (share, queue) = (segment.share, segment.queue);
        self.stubs = (self.stubs.0 - was.0 + is.0, self.stubs.1 - was.1 + is.1);
        let account = self.account(share, queue);
        account.bytes = account.bytes - before.outside + after.outside;
        account.outside = account.outside - before.evictable_outside() + after.evictable_outside();
        self.note(share, after.outside, before.outside);
        if after.pinned {
            self.pin(location, after, dead_at);
        }
    }

    fn pin(&mut self, location: u64, weight: Weight, dead_at: u32) {
        let segment = self.segment_of_mut(location);
        let (bytes, outside) = weight.pinned();
        segment.pinned_bytes += bytes;
        segment.pinned_outside += outside;
        segment.reap_from(dead_at);
        let (share, queue) = (segment.share, segment.queue);
        self.account(share, queue).pinned += bytes + outside;
    }

    fn unpin(&mut self, location: u64, weight: Weight) {
        let segment = self.segment_of_mut(location);
        let (bytes, outside) = weight.pinned();
        segment.pinned_bytes -= bytes;
        segment.pinned_outside -= outside;
        let (share, queue, state) = (segment.share, segment.queue, segment.state);
        self.account(share, queue).pinned -= bytes + outside;
        if state == SegmentState::Collected {
            self.keep_room();
        }
    }

    /// Notes that the item at `location` is no longer live.
    #[inline]
    pub(crate) fn remove(&mut self, location: u64, weight: Weight) {
        let plain = Weight::plain(weight.bytes);
        if weight != plain {
            self.reweigh(location, weight, plain, NEVER);
        }
        let segment = self.segment_of_mut(location);
        segment.live_bytes -= weight.bytes;
        segment.live_items -= 1;
        let (share, queue, state) = (segment.share, segment.queue, segment.state);
        self.account(share, queue).items -= 1;
        self.live_bytes -= weight.bytes;
        self.note(share, 0, weight.bytes);
        if state == SegmentState::Collected && self.keeps_all {
            self.keep_room();
        }
    }

    /// Notes that the item at `location` was changed in place.
    pub(crate) fn cover(&mut self, location: u64, dead_at: u32, stamp: u64) {
        let segment = self.segment_of_mut(location);
        segment.cover(dead_at, stamp);
        if segment.pinned_bytes > 0 {
            segment.reap_from(dead_at);
        }
    }

    /// Gives an emptied segment back: it becomes a spare while there are too few, unless `to_memory`.
    pub(crate) fn free(&mut self, index: u32, to_memory: bool) {
        let segment = self.segments[index as usize].take().expect("a collected segment exists");
        debug_assert!(
            segment.state == SegmentState::Collected && segment.live_items == 0 && segment.outside_bytes == 0
        );
        self.end_collection();
        self.by_number[segment.run.offset() >> self.shift] = NONE;
        let bytes = self.segment_bytes();
        self.account(segment.share, segment.queue).bytes -= bytes;
        self.used -= 1;
        if self.spare.len() < if to_memory { RESERVE } else { SPARES } {
            self.spare.push(segment.run);
        }
    }

    /// Gives the second spare back to the memory. False: there is none.
    pub(crate) fn release_spare(&mut self) -> bool {
        self.spare.len() > RESERVE && self.spare.pop().is_some()
    }

    /// All segments.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.iter().enumerate().filter_map(|(i, s)| Some((i as u32, s.as_ref()?)))
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Segment> {
        self.segments.get(index as usize)?.as_ref()
    }

    /// Marks the segment as being emptied: it takes no appends from now on.
    pub(crate) fn collect(&mut self, index: u32) {
        if self.get(index).is_some_and(|s| s.state == SegmentState::Open) {
            self.seal(index);
        }
        if let Some(segment) = self.segments[index as usize].as_mut() {
            segment.state = SegmentState::Collected;
            self.collected = Some(index);
        }
    }

    /// Whether few segments were filled since this one was, compared with all that there are, or it is not
    /// full yet.
    #[inline]
    pub(crate) fn is_new(&self, segment: &Segment) -> bool {
        // That of an open segment is the highest.
        self.sequence.saturating_sub(segment.sequence) <= (self.used / NEW) as u64
    }

    /// Makes a sealed segment the last of the main queue as it is, whose items count as stored at `stored` on
    /// average from now on, and as many of whose uses count no more as `spent` says. It has no pinned items
    /// and no stubs.
    pub(crate) fn promote(&mut self, index: u32, stored: u64, spent: u8) {
        let bytes = self.segment_bytes();
        let Some(segment) = self.segments[index as usize].as_mut() else { return };
        debug_assert!(
            segment.state == SegmentState::Sealed && segment.outside_bytes + segment.pinned_bytes == 0
        );
        self.sequence += 1;
        (segment.sequence, segment.spent) = (self.sequence, spent);
        segment.opened =
            segment.opened.saturating_add_signed(stored.cast_signed() - segment.stored().cast_signed());
        let (from, share, items) = (segment.queue, segment.share, segment.live_items);
        segment.queue = SegmentQueue::Main;
        let account = self.account(share, from);
        (account.bytes, account.items) = (account.bytes - bytes, account.items - items);
        let account = self.account(share, SegmentQueue::Main);
        (account.bytes, account.items) = (account.bytes + bytes, account.items + items);
    }

    /// Ends the collection of a segment of which items are left: it is collected again, after all others.
    pub(crate) fn give_up(&mut self, index: u32) {
        self.sequence += 1;
        if let Some(segment) = self.segments[index as usize].as_mut() {
            segment.state = SegmentState::Sealed;
            segment.sequence = self.sequence;
        }
        self.end_collection();
    }

    fn end_collection(&mut self) {
        self.collected = None;
        self.end_refuge();
    }

    fn end_refuge(&mut self) {
        let refuge = self.refuge.take();
        if let Some(segment) = refuge.and_then(|index| self.segments[index as usize].as_mut()) {
            segment.kept = 0;
        }
    }

    /// The segment that holds the item at `location`.
    pub(crate) fn segment_of(&self, location: u64) -> &Segment {
        self.segments[self.index_of(location)].as_ref().expect("locations lie in segments of ours")
    }

    fn segment_of_mut(&mut self, location: u64) -> &mut Segment {
        let index = self.index_of(location);
        self.segments[index].as_mut().expect("locations lie in segments of ours")
    }

    fn index_of(&self, location: u64) -> usize {
        self.by_number[offset(location) >> self.shift] as usize
    }

    #[inline]
    fn account(&mut self, share: u8, queue: SegmentQueue) -> &mut QueueAccount {
        &mut self.accounts[usize::from(share)][queue as usize]
    }

    /// What a queue has of these shares.
    pub(crate) fn queue(&self, shares: ShareSet, queue: SegmentQueue) -> QueueAccount {
        let mut sum = QueueAccount::default();
        for share in shares.iter(usize::from(self.shares)) {
            sum.add(&self.accounts[usize::from(share)][queue as usize]);
        }
        sum
    }

    /// Notes that the live items of a share have these bytes more and less.
    #[inline]
    fn note(&mut self, share: u8, more: usize, less: usize) {
        if self.shares > 1 {
            self.note_share(share, more.cast_signed() - less.cast_signed());
        }
    }

    #[cold]
    fn note_share(&mut self, share: u8, bytes: isize) {
        let held = &mut self.share_bytes[usize::from(share)];
        *held = held.checked_add_signed(bytes).expect("items leave with what they came with");
        let untold = &mut self.untold[usize::from(share)];
        *untold += bytes;
        if untold.unsigned_abs() >= shares::TOLD {
            self.memory.shares().note(share, std::mem::take(untold));
        }
    }

    /// Bytes of the live items of a share, in the log and outside it, where there are shares with bounds.
    pub(crate) fn share_bytes(&self, share: u8) -> usize {
        self.share_bytes[usize::from(share)]
    }

    /// Bytes of the live items of a share that the memory was not told of.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn untold(&self, share: u8) -> isize {
        self.untold[usize::from(share)]
    }

    /// A segment, for changes of what is known of its pinned items.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Segment> {
        self.segments[index as usize].as_mut()
    }

    /// Notes that pinned items of any segment may have died.
    pub(crate) fn reap_all(&mut self) {
        for segment in self.segments.iter_mut().flatten().filter(|segment| segment.pinned_bytes > 0) {
            segment.reap_at = 0;
        }
    }

    /// Live items of a queue.
    pub(crate) fn queue_items(&self, queue: SegmentQueue) -> usize {
        self.queue(ShareSet::ALL, queue).items
    }

    /// Items in the log of which not only a stub is there, and their bytes.
    pub(crate) fn whole(&self) -> (usize, usize) {
        (self.sum().items - self.stubs.0, self.live_bytes - self.stubs.1)
    }

    /// Bytes of all live items in the log.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// Bytes of the huge values and trees that items name.
    pub(crate) fn outside_bytes(&self) -> usize {
        self.sum().bytes - self.used * self.segment_bytes()
    }

    /// The sum over all queues.
    fn sum(&self) -> QueueAccount {
        let mut sum = QueueAccount::default();
        for queue in SegmentQueue::ALL {
            sum.add(&self.queue(ShareSet::ALL, queue));
        }
        sum
    }

    /// Segments in use, spares not among them.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// The segments that take appends: at most three for each class.
    pub(crate) fn open_segments(&self) -> impl Iterator<Item = u32> {
        self.open.iter().flatten().copied().filter(|index| *index != NONE)
    }

    /// Bytes of the budget it holds: segments, spares, and what its items have outside the log.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sum().bytes + self.spare.len() * self.segment_bytes()
    }

    /// The bytes from `location` to the end of its segment: an item and what follows it.
    #[inline]
    pub(crate) fn bytes(&self, location: u64) -> &[u8] {
        let (offset, len) = self.check(location);
        // SAFETY: `check` made sure that the bytes lie in a segment that this log owns, and `self` is
        // borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// The bytes of an item, to write.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, location: u64) -> &mut [u8] {
        let (offset, len) = self.check(location);
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), len) }
    }

    /// Asks the processor to fetch the item's first [`PREFETCH_LINES`].
    #[inline]
    pub(crate) fn prefetch(&self, location: u64) {
        let (offset, len) = self.check(location);
        for line in (0..len.min(PREFETCH_LINES * 64)).step_by(64) {
            // SAFETY: `check`: the segment reaches beyond it.
            crate::index::prefetch(unsafe { self.base.add(offset + line) });
        }
    }

    /// Offset and bytes to the segment's end. Panics unless the segment is ours: serving the bytes of another
    /// item would be worse than a crash.
    #[inline]
    fn check(&self, location: u64) -> (usize, usize) {
        let offset = offset(location);
        let number = offset >> self.shift;
        assert!(self.by_number[number] != NONE, "location outside the log");
        (offset, ((number + 1) << self.shift) - offset)
    }

    /// Copies an item to another place.
    pub(crate) fn copy(&mut self, from: u64, to: u64, bytes: usize) {
        let (source, room) = self.check(from);
        let (target, target_room) = self.check(to);
        assert!(bytes <= room && bytes <= target_room && source.abs_diff(target) >= bytes);
        // SAFETY: both lie in segments of ours for `bytes` bytes and do not overlap (asserted above).
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.as_ptr().add(source),
                self.base.as_ptr().add(target),
                bytes,
            );
        }
    }

    /// Takes the spare segments away, or puts them back.
    #[cfg(test)]
    pub(crate) fn exchange_spares(&mut self, spares: Vec<Run>) -> Vec<Run> {
        std::mem::replace(&mut self.spare, spares)
    }

    /// Checks the room that is kept for the pinned items of the segment that is collected.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn verify_room(&self) {
        let pinned = self.must_move_bytes();
        for (index, segment) in self.iter() {
            assert!(segment.filled + segment.kept <= self.segment_bytes());
            assert_eq!(self.collected == Some(index), segment.state == SegmentState::Collected);
            if self.refuge == Some(index) {
                assert!(segment.state == SegmentState::Open && segment.kept <= pinned);
            } else {
                assert_eq!(segment.kept, 0, "room is kept for nothing");
            }
        }
    }

    /// Location of the byte `at` of a segment.
    pub(crate) fn location(&self, index: u32, at: usize) -> Option<u64> {
        let segment = self.get(index)?;
        Some((segment.run.offset() + at) as u64 / 8 + 1)
    }
}

/// Walks the items of a segment, dead ones too: calls `each` with location and allotted bytes.
#[cfg(any(test, fuzzing, feature = "verify"))]
pub(crate) fn walk(log: &Log, index: u32, mut each: impl FnMut(u64, usize)) {
    let filled = log.get(index).map_or(0, |s| s.filled);
    let mut at = 0;
    while at < filled {
        let location = log.location(index, at).expect("the segment exists");
        let bytes = crate::item::allotted(log.bytes(location));
        each(location, bytes);
        at += bytes;
    }
    assert_eq!(at, filled, "items fill a segment without gaps");
}

#[inline]
fn offset(location: u64) -> usize {
    (location as usize - 1) * 8
}

#[cfg(test)]
mod tests;
