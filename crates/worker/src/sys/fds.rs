//! File descriptors that a process was started with, and the closing of all others.

#[cfg(test)]
use std::fs::File;
use std::io;
#[cfg(test)]
use std::os::fd::IntoRawFd;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// Why an inherited descriptor could not be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// The number was claimed before in this process.
    #[error("file descriptor {0} was already taken")]
    Twice(RawFd),
    /// The number is not open.
    #[error("file descriptor {0} is not open")]
    Closed(RawFd),
}

/// Takes ownership of a descriptor this process was started with, such as the one in `CATTLEGRID_FD`.
///
/// Only for this crate: the caller has the number from the launcher's variables about inherited descriptors.
/// A value of this process could own any other number.
///
/// Close-on-exec is set, so that programs started by the worker do not get it. Numbers below 3 are
/// refused as closed: the standard streams belong to `std`.
///
/// # Errors
/// [`ClaimError`] when the number is not open or was claimed before.
pub(crate) fn claim_fd(number: RawFd) -> Result<OwnedFd, ClaimError> {
    let mut claimed = CLAIMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if claimed.contains(&number) {
        return Err(ClaimError::Twice(number));
    }
    // SAFETY: F_SETFD on a number has no memory effects; a closed number gives EBADF.
    let set = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if number < 3 || set == -1 {
        return Err(ClaimError::Closed(number));
    }
    claimed.push(number);
    // SAFETY: the number is open (F_SETFD succeeded), was inherited over exec rather than opened by
    // code of this process, and `claimed` makes this the only owner made here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Claims a number as [`claim_fd`] does, if it is a socket. A number that is not a socket was inherited by a
/// program that no pool has started; it is not touched.
///
/// # Errors
/// [`ClaimError`] when the number is not an open socket, or was claimed before.
pub(crate) fn claim_socket(number: RawFd) -> Result<OwnedFd, ClaimError> {
    let (mut kind, mut len) = (0_i32, 4);
    let (kind, len) = (&raw mut kind, &raw mut len);
    // SAFETY: both pointers are to writable memory of the right size; any number is allowed.
    if unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_TYPE, kind.cast(), len) } == -1 {
        return Err(ClaimError::Closed(number));
    }
    claim_fd(number)
}

/// Closes every descriptor from 3 up that is not in `keep`.
///
/// Only for the child of a template: a value of this process that still owns a closed number
/// gets `EBADF` from now on. That is what the list of kept numbers is for; [`crate::keep_fd`] adds to it.
pub(crate) fn close_all_except(keep: &[RawFd]) {
    let mut keep: Vec<RawFd> = keep.iter().copied().filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut from: u32 = 3;
    for fd in keep {
        let fd = fd.unsigned_abs();
        if fd > from {
            close_range(from, fd - 1, 0);
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX, 0);
}

/// `close_range(2)`, with the loop it replaces for kernels before 5.9. Async-signal-safe.
pub(super) fn close_range(first: u32, last: u32, flags: u32) {
    // SAFETY: no pointers; the callers document whose descriptors these are.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 {
        return;
    }
    for fd in first..=last.min(65_536) {
        let fd = fd.cast_signed();
        if flags == libc::CLOSE_RANGE_CLOEXEC {
            // SAFETY: as above, F_SETFD on a number.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        } else {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Makes `target` (0, 1 or 2) a copy of `from`.
///
/// # Errors
/// What `dup2` reports.
pub(crate) fn redirect(from: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    match target {
        0 => rustix::stdio::dup2_stdin(from)?,
        1 => rustix::stdio::dup2_stdout(from)?,
        2 => rustix::stdio::dup2_stderr(from)?,
        _ => unreachable!("only the standard streams are redirected"),
    }
    Ok(())
}

/// The numbers open in this process, ascending; for tests and leak checks.
///
/// # Errors
/// When `/proc/self/fd` cannot be read.
pub fn open_fds() -> io::Result<Vec<RawFd>> {
    let mut fds = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Ok(number) = entry?.file_name().to_string_lossy().parse::<RawFd>() {
            fds.push(number);
        }
    }
    fds.sort_unstable();
    // The directory itself was open while it was read.
    fds.retain(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok());
    Ok(fds)
}

/// Moves `fd` out of the way of the numbers up to `above`, closing the old number.
pub(super) fn move_above(fd: OwnedFd, above: RawFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > above {
        return Ok(fd);
    }
    rustix::io::fcntl_dupfd_cloexec(&fd, above + 1).map_err(|errno| match errno {
        // The number would be beyond the limit of descriptors.
        rustix::io::Errno::INVAL => rustix::io::Errno::MFILE.into(),
        errno => errno.into(),
    })
}

/// Gives a descriptor up to the process: it stays open until exit.
#[cfg(test)]
pub(super) fn leak(fd: OwnedFd) -> RawFd {
    fd.into_raw_fd()
}

/// Numbers handed out by [`claim_fd`].
static CLAIMED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_claimed_once_and_only_when_open() {
        let number = leak(File::open("/dev/null").unwrap().into());
        let owned = claim_fd(number).unwrap();
        assert!(matches!(claim_fd(number), Err(ClaimError::Twice(n)) if n == number));
        drop(owned);
        assert!(matches!(claim_fd(1), Err(ClaimError::Closed(1))));
        assert!(matches!(claim_fd(900_000), Err(ClaimError::Closed(900_000))));
    }

    #[test]
    fn moving_leaves_low_numbers_free() {
        let low: OwnedFd = File::open("/dev/null").unwrap().into();
        let moved = move_above(low, 300).unwrap();
        assert!(moved.as_raw_fd() > 300);
        assert!(open_fds().unwrap().contains(&moved.as_raw_fd()));
    }
}
