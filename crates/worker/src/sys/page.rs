//! The progress page: 64 bytes of memory shared by a worker and its parent.
//!
//! The worker writes which job it is in and how many it has begun; the parent reads both after the
//! worker's death to tell the jobs that were begun from those that never were. No system call and no
//! frame per job.
//!
//! ```text
//! offset 0   u64  id of the job the worker is in, 0 between jobs
//! offset 8   u64  number of jobs begun since the worker started, in order of arrival
//! offset 16  reserved, zero
//! ```
//!
//! # Invariants
//! * The memory is exactly one page of a sealed memfd: neither side can shrink it, so no access can
//!   fault (`F_SEAL_SHRINK`).
//! * Only the worker writes, only with atomics; the count never falls.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapped progress page.
#[derive(Debug)]
pub struct Page {
    /// Start of the mapping; valid for `SIZE` bytes until drop.
    at: NonNull<AtomicU64>,
}

impl Page {
    /// Makes a page and the descriptor to hand to the worker.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `ENOMEM`.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        use rustix::fs::{MemfdFlags, SealFlags};
        let fd =
            rustix::fs::memfd_create(c"cattlegrid-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, SIZE.into())?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&fd)?, fd))
    }

    /// Maps the page of a received descriptor.
    ///
    /// # Errors
    /// `InvalidInput` unless it is a memfd of the right size sealed against shrinking; else what `mmap` reports.
    pub fn map(fd: &impl AsFd) -> io::Result<Self> {
        use rustix::fs::SealFlags;
        use rustix::mm::{MapFlags, ProtFlags};
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(fd)?.st_size != i64::from(SIZE) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address the kernel picks; no existing memory is touched.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE as usize, prot, flags, fd, 0) }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at })
    }

    /// Notes that the worker is now in job `id`, the next one that arrived.
    #[inline]
    pub fn begin(&self, id: u64) {
        let begun = self.word(BEGUN).load(Ordering::Relaxed);
        // Count before id: a reader that sees the id sees it counted.
        self.word(BEGUN).store(begun + 1, Ordering::Release);
        self.word(CURRENT).store(id, Ordering::Release);
    }

    /// Notes that the worker is between jobs.
    #[inline]
    pub fn end(&self) {
        self.word(CURRENT).store(0, Ordering::Release);
    }

    /// Jobs begun since the worker started.
    #[inline]
    pub fn begun(&self) -> u64 {
        self.word(BEGUN).load(Ordering::Acquire)
    }

    /// The job the worker is in, 0 for none.
    #[inline]
    pub fn current(&self) -> u64 {
        self.word(CURRENT).load(Ordering::Acquire)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "the page has eight words");
        // SAFETY: the mapping is page aligned, SIZE bytes long, sealed against shrinking and alive
        // as long as `self`; any bit pattern is a valid AtomicU64 and all access is atomic.
        unsafe { self.at.add(index).as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and no reference to it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), SIZE as usize) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

// SAFETY: the memory is shared between processes by design and only accessed atomically.
unsafe impl Send for Page {}

const SIZE: u32 = 4096;
const WORDS: usize = 8;
const CURRENT: usize = 0;
const BEGUN: usize = 1;

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_what_was_begun() {
        let (parent, fd) = Page::create().unwrap();
        let worker = Page::map(&fd).unwrap();
        assert_eq!((parent.begun(), parent.current()), (0, 0));
        worker.begin(7);
        worker.begin(9);
        assert_eq!((parent.begun(), parent.current()), (2, 9));
        worker.end();
        assert_eq!((parent.begun(), parent.current()), (2, 0));
    }

    #[test]
    fn a_page_that_could_shrink_is_refused() {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"loose", flags).unwrap();
        rustix::fs::ftruncate(&fd, SIZE.into()).unwrap();
        assert!(Page::map(&fd).is_err());
        let (page, fd) = Page::create().unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert_eq!(page.begun(), 0);
    }
}
