//! The progress page: memory shared by a worker and its parent, in which both note the jobs that are theirs.
//!
//! `claim.rs` explains the words and when they are written. They take no system call and no frame per job;
//! the parent also reads them after the worker's death, to tell the jobs that were begun from those that were
//! not.
//!
//! ```text
//! offset 0   u64  reserved
//! offset 8   u64  number of jobs claimed by the worker since it started, in order of arrival
//! offset 16  u64  number of jobs up to which the parent has taken back those that were not begun
//! offset 24  reserved, zero
//! ```
//!
//! # Invariants
//! * The memory is exactly one page of a sealed memfd: neither side can shrink it, so no access can
//!   fault (`F_SEAL_SHRINK`).
//! * All access is atomic.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use crate::claim::Claims;

/// A mapped progress page.
#[derive(Debug)]
pub struct Page {
    /// Start of the mapping; valid for `SIZE` bytes until drop.
    at: NonNull<Claims>,
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
    /// `InvalidInput` unless it is a memfd of the right size sealed against shrinking; otherwise the error of
    /// `mmap`.
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

    /// The words of the page, in which jobs are claimed.
    #[inline]
    pub fn claims(&self) -> &Claims {
        // SAFETY: the mapping is page aligned, longer than Claims, sealed against shrinking and alive
        // as long as `self`; any bit pattern is a valid Claims and all access is atomic.
        unsafe { self.at.as_ref() }
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

// Loom's atomics are larger; its tests map nothing.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Claims>() == 24 && align_of::<Claims>() == 8, "the layout of the protocol");

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_see_what_the_other_notes() {
        let (parent, fd) = Page::create().unwrap();
        let worker = Page::map(&fd).unwrap();
        assert_eq!(worker.claims().claim(0..2), 0..2);
        assert_eq!(parent.claims().take_back(5), 2);
        assert_eq!(worker.claims().claim(2..3), 3..3);
        assert_eq!((parent.claims().begun(), worker.claims().taken()), (3, 5));
        let mut bytes = [0; 32];
        rustix::io::pread(&fd, &mut bytes, 0).unwrap();
        let words: Vec<u8> = bytes.chunks(8).map(|word| word[0]).collect();
        assert_eq!(words, [0, 3, 5, 0]);
    }

    #[test]
    fn a_page_that_could_shrink_is_refused() {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"loose", flags).unwrap();
        rustix::fs::ftruncate(&fd, SIZE.into()).unwrap();
        assert!(Page::map(&fd).is_err());
        let (page, fd) = Page::create().unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert_eq!(page.claims().begun(), 0);
    }
}
