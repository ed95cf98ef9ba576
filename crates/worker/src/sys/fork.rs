//! The fork of a single-threaded template, and the reaping of children.
//!
//! # Invariant
//! Only a process with one thread forks without exec: [`SingleThreaded`] is the proof.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::process::Pid;

/// Which side of the fork this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForkSide {
    /// The template; the child has this process id and must be reaped.
    Parent(Pid),
    /// The new worker.
    Child,
}

/// Proof that this process had one thread when [`SingleThreaded::check`] looked.
///
/// The value cannot be sent to another thread. It stays true as long as its holder runs only code
/// that starts no threads; the template loop does, it runs no user code between check and fork.
#[derive(Debug)]
pub(crate) struct SingleThreaded {
    /// Makes the type `!Send` and `!Sync`.
    here: PhantomData<*const ()>,
}

impl SingleThreaded {
    /// Counts the threads of this process.
    ///
    /// # Errors
    /// The number of threads when it is not 1; None when it is not known.
    pub(crate) fn check() -> Result<Self, Option<usize>> {
        match thread_count() {
            Some(1) => Ok(Self { here: PhantomData }),
            other => Err(other),
        }
    }

    /// Accepts that other threads exist: `Launch::allow_threads`.
    ///
    /// The child then has copies of locks whose owners are gone. It works for threads that hold no
    /// lock the child needs (idle pools of numeric libraries), and hangs otherwise.
    pub(crate) fn assume() -> Self {
        Self { here: PhantomData }
    }

    /// Forks. The child returns as [`ForkSide::Child`] with a copy of everything.
    ///
    /// # Errors
    /// `EAGAIN` and `ENOMEM` as `fork(2)` reports them; nothing has happened then.
    #[expect(clippy::unused_self, reason = "the value is the proof")]
    pub(crate) fn fork(&self) -> io::Result<ForkSide> {
        // SAFETY: with one thread (the proof this value is) no lock can be held by a thread that is
        // missing in the child, so the child may run any code. After `assume` the user has taken
        // that risk; it is of deadlock, memory stays valid in the copied address space.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(ForkSide::Child),
            pid => Ok(ForkSide::Parent(Pid::from_raw(pid).ok_or(io::ErrorKind::Other)?)),
        }
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code 0..=255, or minus the signal.
    pub status: i32,
    /// Largest resident set it had, KiB.
    pub maxrss_kib: u64,
}

/// Collects child `pid` if it has ended. Never blocks.
///
/// # Errors
/// `ECHILD` when it is not a child of this process or was reaped before.
pub fn reap(pid: Pid) -> io::Result<Option<Exit>> {
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are to writable memory of the right type.
    let got = unsafe { libc::wait4(pid.as_raw_pid(), &raw mut status, libc::WNOHANG, usage.as_mut_ptr()) };
    match got {
        -1 => return Err(io::Error::last_os_error()),
        0 => return Ok(None),
        _ => {}
    }
    // SAFETY: zeroed at the start, and all-zero is a valid rusage; wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    let code = if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    Ok(Some(Exit { status: code, maxrss_kib: usage.ru_maxrss.unsigned_abs() }))
}

/// Threads of this process; None where `/proc` is missing: then there may be others.
pub(crate) fn thread_count() -> Option<usize> {
    entries(Path::new("/proc/self/task"))
}

fn entries(folder: &Path) -> Option<usize> {
    std::fs::read_dir(folder).ok()?.try_fold(0, |count, entry| entry.ok().map(|_| count + 1))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_test_process_has_threads_and_is_refused() {
        // The test harness runs this on a thread of its own.
        assert!(thread_count() >= Some(2));
        assert!(SingleThreaded::check().is_err_and(|count| count >= Some(2)));
    }

    #[test]
    fn a_folder_that_is_missing_counts_nothing() {
        assert_eq!(entries(Path::new("/proc/self/no-such-folder")), None);
        assert!(entries(Path::new("/proc/self/fd")) >= Some(3));
    }
}
