//! The one budget: a reservation of address space from which index pages, segments, huge values,
//! trees and ghost tables are taken, page by page.
//!
//! [`Memory`] is shared by all shards. It hands out [`Run`]s, [`Runs`] and [`PageSet`]s, each the sole owner
//! of its pages until it is dropped; a page never moves. Which pages are free is in `pages.rs`. No more pages
//! than the limit are handed out, or resident, so the limit is a promise about resident memory. Where the
//! free pages lie in pieces, runs are taken from parts of the reservation that were not in use, and as many
//! free pages are given back to the system: so no memory is stranded.
//!
//! # Invariants
//! * A page belongs to at most one live [`Run`], [`Runs`] or [`PageSet`], and is then not free.
//! * `used` pages = limit at most, unless the limit was lowered below what was in use.
#![expect(unsafe_code, reason = "maps memory and hands out slices of it")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::offers::Offers;
use crate::pages::Pages;
use crate::policy::CommonNotes;
use crate::shares::{ObjectNames, PinnedRoom, Share, ShareBounds, ShareSet, Shares};

mod divided;
mod given;
mod page_set;
mod runs;
#[cfg(test)]
mod tests;

use divided::{DividedPages, Units};
pub(crate) use given::GivenBack;
#[cfg(test)]
pub(crate) use given::gift::at_gift;
pub(crate) use page_set::{Page, PageSet};
pub use runs::Runs;

/// Bytes of a page, the unit of allocation.
pub const PAGE_BYTES: usize = 4096;

/// The budget of all stores: pages from one reservation of address space.
pub struct Memory {
    base: NonNull<u8>,
    reserved_pages: usize,
    /// Held for a short search, and by [`Memory::purge`] for a walk over the bitmaps.
    pages: Mutex<Pages>,
    /// Pages that several values share.
    divided: Mutex<DividedPages>,
    used: AtomicUsize,
    limit: AtomicUsize,
    /// Bytes of large values that have left the store and are still being sent.
    pinned: AtomicUsize,
    /// Bytes of the pages of values that have not arrived whole.
    arriving: AtomicUsize,
    /// Bytes of the objects of all stores that are never evicted.
    pinned_objects: AtomicUsize,
    offers: Offers,
    common: Arc<CommonNotes>,
    shares: Shares,
    /// The system keeps all mapped pages resident.
    is_locked: AtomicBool,
    /// Whether evictions were recorded since the last call of [`Memory::take_evicted`].
    evicted: AtomicBool,
}

// SAFETY: `base` is only turned into references through a `Run`, which owns its pages alone.
unsafe impl Send for Memory {}
// SAFETY: as above; the bitmaps are behind a mutex.
unsafe impl Sync for Memory {}

/// Address space left to the rest of the process, where there is a limit on it.
const SPARE_BYTES: usize = 96 << 20;

/// The largest of four, two and one times `limit` pages that leaves [`SPARE_BYTES`]; one time also without.
fn reserve(limit: usize) -> std::io::Result<(NonNull<u8>, usize)> {
    let times = if cfg!(miri) { &[1][..] } else { &[4, 2, 1] };
    let mut error = std::io::ErrorKind::OutOfMemory.into();
    for times in times {
        let pages = limit.saturating_mul(*times).next_multiple_of(64);
        match os::reserve(pages.saturating_mul(PAGE_BYTES)) {
            Ok(base) if *times == 1 => return Ok((base, pages)),
            Ok(base) => match os::reserve(SPARE_BYTES) {
                Ok(spare) => {
                    os::release(spare, SPARE_BYTES);
                    return Ok((base, pages));
                }
                Err(_) => os::release(base, pages * PAGE_BYTES),
            },
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

impl Memory {
    /// Reserves address space for up to four times `limit_bytes`, so that the limit can be raised later; less
    /// if the process may not have that much and 96 MiB more.
    ///
    /// # Errors
    /// The system's, when it does not have the address space.
    pub fn new(limit_bytes: usize) -> std::io::Result<Arc<Self>> {
        Self::shared(limit_bytes, &[], ObjectNames::default())
    }

    /// A memory of `limit_bytes` with shares, [`SHARES_MAX`](crate::SHARES_MAX) at most.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn shared(limit_bytes: usize, shares: &[Share], objects: ObjectNames) -> std::io::Result<Arc<Self>> {
        let limit = limit_bytes.div_ceil(PAGE_BYTES).max(1);
        let (base, reserved_pages) = reserve(limit)?;
        let memory = Self {
            base,
            reserved_pages,
            pages: Mutex::new(Pages::new(reserved_pages)),
            divided: Mutex::default(),
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            arriving: AtomicUsize::new(0),
            pinned_objects: AtomicUsize::new(0),
            offers: Offers::new(),
            common: Arc::new(CommonNotes::new()),
            shares: Shares::new(shares, objects, limit * PAGE_BYTES),
            is_locked: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
        };
        memory.set_limit(limit * PAGE_BYTES)?;
        Ok(Arc::new(memory))
    }

    /// Asks the system to back the memory with large pages: fewer misses of the translation buffer, and
    /// up to 2 MiB resident for the first byte touched.
    ///
    /// # Errors
    /// The system's, when it has no transparent large pages.
    pub fn use_large_pages(&self) -> std::io::Result<()> {
        os::large_pages(self.base, self.reserved_pages * PAGE_BYTES)
    }

    /// Raises or lowers the limit. Lowering frees nothing by itself: the owners of pages must give them back.
    ///
    /// # Errors
    /// `InvalidInput` above the reservation, usually four times the first limit; the system's error when it
    /// refuses the memory.
    pub fn set_limit(&self, limit_bytes: usize) -> std::io::Result<()> {
        let limit = limit_bytes.div_ceil(PAGE_BYTES).max(1);
        if limit > self.reserved_pages {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("the limit can be raised to {} MiB", (self.reserved_pages * PAGE_BYTES) >> 20),
            ));
        }
        let mut pages = self.lock();
        let mapped = limit.next_multiple_of(64);
        if mapped > pages.mapped() {
            os::commit(self.base, pages.mapped() * PAGE_BYTES, mapped * PAGE_BYTES)?;
            pages.map_up_to(mapped);
        }
        self.limit.store(limit, Relaxed);
        self.shares.resize(limit * PAGE_BYTES);
        Ok(())
    }

    /// Changes the bounds of those of its shares that have these prefixes. Other prefixes are not added, and
    /// none is taken away.
    pub fn set_shares(&self, shares: &[Share]) {
        self.shares.set(shares, self.limit_bytes());
    }

    /// Whether it has shares.
    pub fn has_shares(&self) -> bool {
        self.shares.count() > 1
    }

    /// The bounds of its shares, in their order.
    pub fn share_bounds(&self) -> Vec<ShareBounds> {
        self.shares.bounds()
    }

    /// Which part of what its shares have at least is kept now, 0.0..=1.0: less than all where they have
    /// promised more than there is room for.
    pub fn kept_of_least(&self) -> f64 {
        self.shares.kept(self.room())
    }

    fn room(&self) -> PinnedRoom {
        PinnedRoom { free: self.free_bytes(), pinned: self.pinned_object_bytes() }
    }

    /// From which shares something may be evicted.
    pub(crate) fn evictable_shares(&self) -> ShareSet {
        self.shares.evictable(self.room())
    }

    /// Those that have more than they keep in any case.
    pub(crate) fn shares_above_least(&self) -> ShareSet {
        self.shares.above_least(self.room())
    }

    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Bytes that may be handed out in all.
    pub fn limit_bytes(&self) -> usize {
        self.limit.load(Relaxed) * PAGE_BYTES
    }

    /// Bytes handed out.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Relaxed) * PAGE_BYTES
    }

    /// Bytes that must be given back before `bytes` more may be handed out, above a limit that was lowered as
    /// well.
    pub fn lacking_bytes(&self, bytes: usize) -> usize {
        (self.used_bytes() + bytes).saturating_sub(self.limit_bytes())
    }

    /// Bytes that may still be handed out: 0 when the limit was lowered below the bytes in use.
    pub fn free_bytes(&self) -> usize {
        self.limit.load(Relaxed).saturating_sub(self.used.load(Relaxed)) * PAGE_BYTES
    }

    /// Bytes handed out for values that have left the store and are still being sent.
    #[inline]
    pub fn pinned_bytes(&self) -> usize {
        self.pinned.load(Relaxed)
    }

    pub(crate) fn add_pinned(&self, bytes: usize) {
        self.pinned.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub_pinned(&self, bytes: usize) {
        self.pinned.fetch_sub(bytes, Relaxed);
    }

    /// Bytes handed out for values that have not arrived whole.
    #[inline]
    pub fn arriving_bytes(&self) -> usize {
        self.arriving.load(Relaxed)
    }

    pub(crate) fn add_arriving(&self, bytes: usize) {
        self.arriving.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub_arriving(&self, bytes: usize) {
        self.arriving.fetch_sub(bytes, Relaxed);
    }

    /// A store has recorded an eviction.
    pub(crate) fn note_evicted(&self) {
        self.evicted.store(true, Relaxed);
    }

    /// Whether its stores have recorded evictions since the last call: see [`crate::Store::drain_evicted`].
    pub fn take_evicted(&self) -> bool {
        self.evicted.load(Relaxed) && self.evicted.swap(false, Relaxed)
    }

    /// The notes that the stores of this memory have in common.
    pub(crate) fn common(&self) -> &Arc<CommonNotes> {
        &self.common
    }

    /// The offers of its stores: what each would lose next.
    pub(crate) fn offers(&self) -> &Offers {
        &self.offers
    }

    /// The bytes to walk for room that a store needs and another one should make, see
    /// [`crate::Store::make_room_for_others`]; 0: none needs any.
    #[inline]
    pub fn wanted_bytes(&self) -> usize {
        self.offers.wanted()
    }

    /// Takes over the making of that room: [`Memory::wanted_bytes`].
    pub fn take_wanted(&self) -> usize {
        self.offers.take_wanted()
    }

    /// The number, by the order of their creation, of the store whose items are the coldest, among those for
    /// which `may` returns true. `None`: they have nothing to lose, as far as is known.
    pub fn coldest_store(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        self.offers.coldest(may)
    }

    /// Bytes of the objects that are never evicted, of all stores: what they take in the log and outside it.
    #[inline]
    pub fn pinned_object_bytes(&self) -> usize {
        self.pinned_objects.load(Relaxed)
    }

    /// Counts bytes as those of pinned objects, unless these would have more than `most` then. For what is
    /// about to be stored: the caller gives them back with [`Memory::give_pinned`] once the store has counted
    /// it.
    #[must_use]
    pub fn take_pinned(&self, bytes: usize, most: usize) -> bool {
        let taken = |now: usize| now.checked_add(bytes).filter(|all| bytes == 0 || *all <= most);
        self.pinned_objects.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    /// Ends the counting of bytes that were taken.
    pub fn give_pinned(&self, bytes: usize) {
        self.sub_pinned_objects(bytes);
    }

    pub(crate) fn add_pinned_objects(&self, bytes: usize) {
        self.pinned_objects.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub_pinned_objects(&self, bytes: usize) {
        self.pinned_objects.fetch_sub(bytes, Relaxed);
    }

    /// The address from which offsets are counted, for the segment log, which checks its accesses itself.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of address space from which locations are counted.
    pub fn reserved_bytes(&self) -> usize {
        self.reserved_pages * PAGE_BYTES
    }

    /// The reservation's addresses, for questions to the system about them.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.base.as_ptr().addr();
        start..start + self.reserved_bytes()
    }

    /// A run of `bytes` (a power of two of whole pages) at an offset that is a multiple of `bytes`.
    pub fn aligned(self: &Arc<Self>, bytes: usize) -> Option<Run> {
        let count = bytes / PAGE_BYTES;
        debug_assert!(bytes.is_multiple_of(PAGE_BYTES) && count.is_power_of_two());
        let mut pages = self.lock();
        if !self.has_room(count) {
            return None;
        }
        let at = pages.find_aligned(count).or_else(|| self.extend(&mut pages, count))?;
        let run = self.take(&mut pages, at, count);
        self.hold_limit(&mut pages);
        Some(run)
    }

    /// Free pages lie in pieces: maps more of the reservation, which takes no memory until it is used.
    /// Returns where a run of `count` pages is free now.
    #[cold]
    fn extend(&self, pages: &mut Pages, count: usize) -> Option<usize> {
        let mapped = (pages.mapped().next_multiple_of(count) + count).next_multiple_of(64);
        if mapped > self.reserved_pages || self.is_locked.load(Relaxed) {
            return None;
        }
        os::commit(self.base, pages.mapped() * PAGE_BYTES, mapped * PAGE_BYTES).ok()?;
        pages.map_up_to(mapped);
        pages.find_aligned(count)
    }

    /// Gives free pages back to the system while more are resident than may be handed out: those that were
    /// handed out of what [`Memory::extend`] has mapped were never used before.
    #[inline]
    fn hold_limit(&self, pages: &mut Pages) {
        let limit = self.limit.load(Relaxed);
        if pages.touched() > limit && !self.is_locked.load(Relaxed) {
            let excess = pages.touched() - limit;
            pages
                .discard(excess, |page, count| os::discard(self.base, page * PAGE_BYTES, count * PAGE_BYTES));
        }
    }

    /// Gives free pages back to the system that are resident beyond the limit: for a limit that was lowered.
    pub fn hold(&self) {
        self.hold_limit(&mut self.lock());
    }

    /// Notes that the system keeps all pages resident that are mapped: then none is given back, and no more
    /// are mapped than may be handed out.
    pub fn set_locked(&self) {
        self.is_locked.store(true, Relaxed);
    }

    /// Free bytes that cannot be had as a run of `bytes`: they lie in pieces, and all of the reservation is
    /// in use.
    pub fn stranded_bytes(&self, bytes: usize) -> usize {
        let count = bytes / PAGE_BYTES;
        let pages = self.lock();
        let can_extend = pages.mapped().next_multiple_of(count) + count <= self.reserved_pages;
        let is_free = can_extend && !self.is_locked.load(Relaxed) || pages.has_aligned(count);
        if is_free || !self.has_room(count) { 0 } else { self.free_bytes() }
    }

    /// Pages that together hold `bytes`, in few runs; `None` when fewer are free.
    pub fn scattered(self: &Arc<Self>, bytes: usize) -> Option<Runs> {
        let mut runs = Runs::new(self);
        runs.grow(bytes).then_some(runs)
    }

    /// Adds the places of `count` pages by `add`, highest first, in few runs; false, and none, when fewer are
    /// free.
    fn take_runs(&self, count: usize, mut add: impl FnMut(u32, usize)) -> bool {
        let mut pages = self.lock();
        // A place beyond 16 TiB does not fit.
        if !self.has_room(count) || u32::try_from(self.reserved_pages).is_err() {
            return false;
        }
        self.count_taken(count);
        let mut wanted = count;
        while wanted > 0 {
            // The limit counts pages, so that many are free somewhere.
            let (at, count) = pages.run_from_top(wanted).expect("as many pages are free as are not used");
            pages.mark(at, count, false);
            add(at as u32, count);
            wanted -= count;
        }
        self.hold_limit(&mut pages);
        true
    }

    /// Appends the numbers of `count` single pages to `pages`; false, and none, when fewer are free.
    fn take_pages(&self, count: usize, pages: &mut Vec<u32>) -> bool {
        let mut all = self.lock();
        if !self.has_room(count) {
            return false;
        }
        let before = pages.len();
        for _ in 0..count {
            // The limit counts pages, so that many are free somewhere. A number beyond 16 TiB does not fit.
            let Some(page) = all.find_page().and_then(|at| u32::try_from(at).ok()) else {
                all.put_back(pages.drain(before..));
                return false;
            };
            all.mark(page as usize, 1, false);
            pages.push(page);
        }
        self.hold_limit(&mut all);
        self.count_taken(count);
        true
    }

    fn divided(&self) -> MutexGuard<'_, DividedPages> {
        self.divided.lock().expect("nobody panics with the lock of divided pages held")
    }

    /// Bytes of divided pages that no large value has.
    pub fn divided_free_bytes(&self) -> usize {
        self.divided().free_bytes()
    }

    /// Gives back units that are taken of a divided page.
    fn give_units(&self, units: Units) {
        let is_whole = self.divided().give(units);
        if is_whole {
            self.lock().mark(units.page as usize, 1, true);
            self.count_given(1);
        }
    }

    /// Gives the memory of pages that were free at the last call and still are back to the system.
    /// Returns the bytes given back. Called once a minute.
    pub fn purge(&self) -> usize {
        if self.is_locked.load(Relaxed) {
            return 0;
        }
        let purged =
            self.lock().purge(|page, count| os::discard(self.base, page * PAGE_BYTES, count * PAGE_BYTES));
        purged * PAGE_BYTES
    }

    fn count_taken(&self, pages: usize) {
        self.used.fetch_add(pages, Relaxed);
        given::note(-pages.cast_signed());
    }

    fn count_given(&self, pages: usize) {
        self.used.fetch_sub(pages, Relaxed);
        given::note(pages.cast_signed());
    }

    fn has_room(&self, count: usize) -> bool {
        self.used.load(Relaxed) + count <= self.limit.load(Relaxed)
    }

    fn take(self: &Arc<Self>, pages: &mut Pages, at: usize, count: usize) -> Run {
        pages.mark(at, count, false);
        self.count_taken(count);
        Run { memory: Arc::clone(self), page: at, count }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("nobody panics with the page lock held")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        os::release(self.base, self.reserved_pages * PAGE_BYTES);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("used", &self.used_bytes())
            .field("limit", &self.limit_bytes())
            .finish()
    }
}

/// Pages that belong to their owner alone until it drops them. Their first content is arbitrary.
pub struct Run {
    memory: Arc<Memory>,
    page: usize,
    count: usize,
}

impl Run {
    /// Offset of the first byte in the reservation.
    #[inline]
    pub fn offset(&self) -> usize {
        self.page * PAGE_BYTES
    }

    /// Length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a run has at least one page")]
    pub fn len(&self) -> usize {
        self.count * PAGE_BYTES
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are mapped and belong to this run alone (`Memory::take`), and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.memory.base.as_ptr().add(self.offset()), self.len()) }
    }

    /// The bytes, to write.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base.as_ptr().add(self.offset()), self.len()) }
    }

    /// Address of the first byte, for the index and the segment log, which check their accesses themselves.
    #[inline]
    pub(crate) fn address(&self) -> NonNull<u8> {
        // SAFETY: the offset lies inside the reservation.
        unsafe { self.memory.base.add(self.offset()) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.memory.lock().mark(self.page, self.count, true);
        self.memory.count_given(self.count);
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Run({:#x}..{:#x})", self.offset(), self.offset() + self.len())
    }
}

#[cfg(not(miri))]
mod os {
    //! Address space from the system: reserved without memory, committed page by page as it is touched.
    use std::ptr::NonNull;

    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

    pub(super) fn reserve(bytes: usize) -> std::io::Result<NonNull<u8>> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags)? };
        NonNull::new(base.cast()).ok_or_else(|| std::io::Error::other("the system mapped address 0"))
    }

    pub(super) fn commit(base: NonNull<u8>, from: usize, to: usize) -> std::io::Result<()> {
        // SAFETY: [from, to) lies inside the reservation and nothing refers to it yet.
        unsafe {
            rustix::mm::mprotect(
                base.as_ptr().add(from).cast(),
                to - from,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )?;
        }
        Ok(())
    }

    pub(super) fn discard(base: NonNull<u8>, offset: usize, bytes: usize) {
        // SAFETY: the pages are free (checked under the page lock, which is held), so nothing refers to them.
        let done =
            unsafe { rustix::mm::madvise(base.as_ptr().add(offset).cast(), bytes, Advice::LinuxDontNeed) };
        debug_assert!(done.is_ok(), "{done:?}");
    }

    pub(super) fn large_pages(base: NonNull<u8>, bytes: usize) -> std::io::Result<()> {
        // SAFETY: the whole reservation; what it holds stays as it is.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage)? };
        Ok(())
    }

    pub(super) fn release(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the last owner goes; every `Run` holds an `Arc` of it.
        let done = unsafe { rustix::mm::munmap(base.as_ptr().cast(), bytes) };
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

#[cfg(miri)]
mod os {
    //! Pages from the allocator, which Miri can watch.
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, super::PAGE_BYTES).expect("a sane size")
    }

    pub(super) fn reserve(bytes: usize) -> std::io::Result<NonNull<u8>> {
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    #[expect(clippy::unnecessary_wraps, reason = "same signature as the real one")]
    pub(super) fn commit(_: NonNull<u8>, _: usize, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    pub(super) fn discard(base: NonNull<u8>, offset: usize, bytes: usize) {
        // SAFETY: as in the real one.
        unsafe { base.add(offset).write_bytes(0, bytes) };
    }

    #[expect(clippy::unnecessary_wraps, reason = "same signature as the real one")]
    pub(super) fn large_pages(_: NonNull<u8>, _: usize) -> std::io::Result<()> {
        Ok(())
    }

    pub(super) fn release(base: NonNull<u8>, bytes: usize) {
        // SAFETY: from `reserve` with the same layout.
        unsafe { dealloc(base.as_ptr(), layout(bytes)) };
    }
}
