//! Room: which values are kept in the log and which in pages of their own, and what is evicted in other
//! shards when there is none.

use std::sync::Arc;

use cattlegrid_herd::TagsInValue;
use cattlegrid_store::{ArrivingValue, HugeValue, LeastShares, PAGE_BYTES};
use cattlegrid_tags::{TAG_LINE, TAG_LINE_MAX, TagLine};

use crate::engine::Engine;
use crate::event::Looker;
use crate::shard::put::{Write, WriteData, WriteMode, note_refused};
use crate::shards::ShardLock;
use crate::step::Context;
use crate::sync::Ordering;

/// Where room is made for what a shard could not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoomSource {
    /// In other shards: the shard has evicted what it could.
    Others,
    /// Wherever items are coldest, the shard included, which has evicted nothing.
    Anywhere,
}

/// Attempts to find room, each of which makes more than the one before: other threads may take what was freed.
const ATTEMPTS: usize = 4;

impl Engine {
    /// Data as a write has them: too long for the log, they are copied into pages of their own; evicts the
    /// coldest items to get these, while none is locked. None: there is no memory.
    pub(crate) fn data<'d>(&self, bytes: &'d [u8], lock: &mut ShardLock<'_>) -> Option<WriteData<'d>> {
        if bytes.len() <= self.inline_max {
            return Some(WriteData::Inline(bytes));
        }
        lock.release();
        let copied = self.with_free_pages(bytes.len(), || HugeValue::new(&self.memory, &[bytes]));
        copied.map(WriteData::Huge)
    }

    /// Takes the line of tags off a value in pages of its own, of a command in this mode, if the key's rule
    /// says so. The line stays before the value, for the shard.
    pub(crate) fn cut_line(&self, key: &[u8], mode: WriteMode, huge: &mut Arc<HugeValue>) {
        let is_whole = !matches!(mode, WriteMode::Append | WriteMode::Prepend);
        if !is_whole || !huge.slice_from(0).starts_with(TAG_LINE) {
            return;
        }
        let active = self.shared().rules();
        let ruled = active.as_ref().and_then(|active| active.find(key));
        if ruled.is_none_or(|ruled| ruled.rule.policy.tags_in_value == TagsInValue::No) {
            return;
        }
        let head: Vec<u8> = huge.slices().flatten().take(TAG_LINE_MAX).copied().collect();
        if let TagLine::Names(_, bytes) = TagLine::of(&head)
            && let Some(value) = Arc::get_mut(huge)
        {
            value.cut(bytes);
        }
    }

    /// Calls `run`, which uses the shard of this hash, until it finds room there. Its error is the number of
    /// bytes for which there was none, after which nothing may have changed; then some are freed, and it is
    /// called again. `true`: for the last time.
    #[inline]
    pub(crate) fn with_room<T>(
        &self,
        place: RoomSource,
        hash: u64,
        lock: &mut ShardLock<'_>,
        mut run: impl FnMut(&mut ShardLock<'_>, bool) -> Result<T, usize>,
    ) -> Result<T, usize> {
        match run(lock, false) {
            Err(bytes) => self.with_more_room(place, bytes, hash, lock, run),
            done => done,
        }
    }

    /// Makes room after a first call that has found no room for this many bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn with_more_room<T>(
        &self,
        place: RoomSource,
        mut bytes: usize,
        hash: u64,
        lock: &mut ShardLock<'_>,
        mut run: impl FnMut(&mut ShardLock<'_>, bool) -> Result<T, usize>,
    ) -> Result<T, usize> {
        let last = ATTEMPTS - 1;
        for attempt in 1..last {
            self.make_room(place, bytes * attempt, hash, lock);
            match run(lock, false) {
                Err(more) => bytes = more,
                done => return done,
            }
        }
        self.make_room(place, bytes * last, hash, lock);
        run(lock, true)
    }

    fn make_room(&self, place: RoomSource, bytes: usize, hash: u64, lock: &mut ShardLock<'_>) {
        lock.release();
        let lacking = self.memory.lacking_bytes(bytes);
        match place {
            RoomSource::Others => _ = self.free(lacking.max(bytes).max(self.segment_bytes), Some(hash)),
            RoomSource::Anywhere => _ = self.free(lacking.max(bytes), None),
        }
    }

    /// Takes pages for `bytes` more bytes of a value that arrives; evicts the coldest items to get them. No
    /// shard may be locked by the caller. False: there is no memory, and nothing was taken.
    pub fn grow(&self, value: &mut ArrivingValue, bytes: usize) -> bool {
        self.with_free_pages(value.lacks(bytes), || value.grow(bytes).then_some(())).is_some()
    }

    /// Calls `take`, which takes `bytes` bytes of pages, until there are as many. None: they cannot be had.
    fn with_free_pages<T>(&self, bytes: usize, mut take: impl FnMut() -> Option<T>) -> Option<T> {
        for attempt in 1..=ATTEMPTS {
            if let Some(taken) = take() {
                return Some(taken);
            }
            let missing = self.memory.lacking_bytes(bytes * attempt + PAGE_BYTES).max(PAGE_BYTES);
            if self.free(missing, None) == 0 {
                break;
            }
        }
        take()
    }

    /// Evicts until `bytes` bytes have gone back to the memory, where the items are coldest; not from the
    /// shard of the hash `except`. Where nothing may be evicted, only what is dead makes room. Returns the
    /// number of bytes freed.
    fn free(&self, bytes: usize, except: Option<u64>) -> usize {
        let freed = self.free_of(bytes, LeastShares::Kept, except);
        if freed < bytes && self.memory.has_shares() {
            return freed + self.free_of(bytes - freed, LeastShares::Taken, except);
        }
        freed
    }

    fn free_of(&self, bytes: usize, least: LeastShares, except: Option<u64>) -> usize {
        let mut dry = vec![false; self.shards.len()];
        if let Some(hash) = except {
            dry[self.shards.number(hash)] = true;
        }
        // What shards would lose changes while they are asked: in the end the one that seemed to be the
        // coldest is.
        let mut doubts = 2 * self.shards.len();
        let mut freed = 0;
        while freed < bytes {
            let coldest = self.memory.coldest_store(|number| !dry[number]);
            // What has nothing as far as is known is asked last.
            let Some(number) = coldest.or_else(|| dry.iter().position(|dry| !dry)) else { break };
            let mut shard = self.shards.lock(number);
            if doubts > 0 && coldest.is_some() && !shard.store_mut().is_coldest() {
                doubts -= 1;
                continue;
            }
            let piece = (bytes - freed).min(self.segment_bytes);
            let got = shard.store_mut().give_back(piece, least);
            dry[number] = got == 0;
            freed += got;
        }
        freed
    }

    /// Makes room in the coldest shard for another that has asked for it: a bounded piece of work.
    #[cold]
    #[inline(never)]
    /// Free bytes that no segment can have: they lie in pieces, and no more addresses are left.
    pub fn stranded_bytes(&self) -> usize {
        self.memory.stranded_bytes(self.segment_bytes)
    }

    /// Takes bytes of the budget for another use than items.
    pub(crate) fn reserve(&self, bytes: usize) -> std::io::Result<()> {
        let limit = self.limit_bytes();
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.set_memory_limit(limit, usize::MAX)
    }

    /// The memory budget in bytes, with the share of the rules.
    pub fn limit_bytes(&self) -> usize {
        self.memory.limit_bytes() + self.reserved.load(Ordering::Relaxed)
    }

    /// Raises or lowers the budget in bytes (`cache_memlimit`); evicts what no longer fits. Of values that
    /// have left the store and are still being sent more than `pinned_max` bytes are about to go: nothing is
    /// evicted for these.
    ///
    /// # Errors
    /// `InvalidInput` above four times the first budget; the system's when it refuses the memory.
    pub fn set_memory_limit(&self, bytes: usize, pinned_max: usize) -> std::io::Result<()> {
        self.memory.set_limit(bytes.saturating_sub(self.reserved.load(Ordering::Relaxed)))?;
        for _ in 0..16 {
            let leaving = self.memory.pinned_bytes().saturating_sub(pinned_max);
            let over = self.memory.used_bytes().saturating_sub(leaving + self.memory.limit_bytes());
            if over == 0 || self.free(over, None) == 0 {
                break;
            }
        }
        self.memory.hold();
        Ok(())
    }
}

/// There are no pages for a value: its write ends without having begun, and is noted with its mode and
/// whether it was a classic command. Drops the old value where it could be taken for the new one.
pub(crate) fn drop_write(
    write: &Write<'_>,
    (mode, classic): (WriteMode, bool),
    lock: &mut ShardLock<'_>,
    cx: &mut Context<'_>,
) {
    cx.step.counters.store_no_memory.add(1);
    note_refused(write.key, mode, classic, "no_memory", cx);
    let shard = lock.shard(write.hash);
    if write.drops_old {
        shard.note_lookup(write.key, write.hash, Looker::Store, cx);
    }
    shard.refused(write, cx);
}
