//! What process 1 of a container has to do besides: the system gives it every process whose parent has gone, and it must collect
//! them when they end, or each stays as a zombie.
//!
//! The program goes on in a child, so that it has only children of its own making: pools of workers collect theirs, and nothing
//! else is a child of that process. Process 1 passes signals on to it, collects all that ends, and ends as it does.
//!
//! ```text
//!   process 1 ──fork──▶ the program ──▶ templates, workers
//!       ▲                                     └──▶ programs that they start
//!       └───────────── adopted ──────────────────────┘
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::process::{self, Pid, WaitOptions, getpid, getppid, kill_process, setpgid, wait};

use crate::{log, sys};

/// Signals that are passed on.
const PASSED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// If this process is number 1: goes on in a child and stays as its parent. The status with which to exit, once the child has ended:
/// its own, or 128 and the number of the signal that has killed it. None: this process is the program, the child or not number 1.
///
/// Must be called while the process has one thread.
pub fn stay_as_first_process() -> Option<u8> {
    if getpid() != Pid::INIT {
        return None;
    }
    let mut awaited: SigSet = PASSED.into_iter().collect();
    awaited.add(Signal::SIGCHLD);
    // Before the fork: what comes from then on waits.
    let before = match SigSet::thread_get_mask().and_then(|before| awaited.thread_block().map(|()| before)) {
        Ok(before) => before,
        Err(errno) => return cannot(&errno.into()),
    };
    match sys::fork() {
        Ok(Some(program)) => Some(look_after(program, &awaited)),
        Ok(None) => {
            // A group of its own: a signal to the group of process 1, as of a terminal, comes once, from there.
            let _stays = setpgid(None, None);
            IS_CHILD.store(true, Relaxed);
            before.thread_set_mask().map_or_else(|errno| cannot(&errno.into()), |()| None)
        }
        Err(error) => {
            before.thread_set_mask().map_or_else(|errno| cannot(&errno.into()), |()| cannot(&error))
        }
    }
}

/// Whether a service manager that has written this process id means this process: its own, or 1 where the program goes on in a child of
/// process 1.
pub(crate) fn is_addressed(pid: &std::ffi::OsStr) -> bool {
    let Some(pid) = pid.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw) else {
        return false;
    };
    pid == getpid() || (pid == Pid::INIT && getppid() == Some(Pid::INIT) && IS_CHILD.load(Relaxed))
}

/// This process goes on for process 1.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The program goes on as process 1.
fn cannot(error: &io::Error) -> Option<u8> {
    log::warning(format_args!(
        "as process 1: processes whose parent ends stay as zombies: {}",
        sys::reason(error)
    ));
    None
}

/// Passes signals on and collects what ends, until the program has ended.
fn look_after(program: Pid, awaited: &SigSet) -> u8 {
    loop {
        match awaited.wait() {
            Ok(Signal::SIGCHLD) => {}
            // If it has just ended there is nothing to tell.
            Ok(signal) => {
                let signal = process::Signal::from_named_raw(signal as i32);
                signal.map_or(Ok(()), |signal| kill_process(program, signal)).unwrap_or_default();
            }
            Err(_) => continue,
        }
        if let Some(status) = collect(program) {
            return status;
        }
    }
}

/// Collects all that has ended; how the program has, if it is among them.
fn collect(program: Pid) -> Option<u8> {
    let mut ended = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == program => {
                let code = status.exit_status().map(|code| code & 0xff);
                let code = code.or_else(|| Some(128 + status.terminating_signal()?));
                ended = code.map(|code| u8::try_from(code).unwrap_or(1)).or(ended);
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return ended,
        }
    }
}
