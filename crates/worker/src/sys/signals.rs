//! SIGTERM as a readable descriptor, for the template's poll loop; and the blocking of all signals for one
//! thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// SIGTERM blocked and turned into a descriptor; unblocked again in the child.
#[derive(Debug)]
pub(crate) struct TermSignal {
    fd: OwnedFd,
}

impl TermSignal {
    /// Blocks SIGTERM for this thread and opens a signalfd for it.
    pub(crate) fn block() -> io::Result<Self> {
        let set = term_set();
        // SAFETY: `set` is initialised; no old mask is asked for.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `set` is initialised and -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created; it has no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Lets SIGTERM through again; in the child of a fork.
    pub(crate) fn unblock() {
        let set = term_set();
        // SAFETY: `set` is initialised. The only error is an invalid first argument.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
    }
}

impl AsFd for TermSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn term_set() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above; SIGTERM is a valid signal.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM) };
    // SAFETY: initialised above.
    unsafe { set.assume_init() }
}

/// Blocks all signals for the calling thread: they go to other threads, and a write to a closed pipe is an
/// error and nothing else.
pub fn block_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the whole set.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised by the line above; no old mask is asked for. The mask is this thread's alone.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
}
