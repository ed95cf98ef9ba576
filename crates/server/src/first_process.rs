//! The duties of process 1 of a container: the system gives it every process whose parent has ended, and it
//! must collect each when it ends, or a zombie stays.
//!
//! The program continues in a child, which has only children that it has started: pools of workers collect
//! theirs, and the child has no others. Process 1 passes signals on to the child, collects every process that
//! ends, and ends with the child's status.
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

/// Signals that are passed on to the program.
const PASSED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// If this process is number 1: continues in a child, and stays as its parent. Then it returns the status
/// with which to exit, once the child has ended: the child's own, or 128 and the number of the signal that
/// killed it. None: this process is the program, either the child or not number 1.
///
/// Must be called while the process has one thread.
pub fn stay_as_first_process() -> Option<u8> {
    if getpid() != Pid::INIT {
        return None;
    }
    let mut awaited: SigSet = PASSED.into_iter().collect();
    awaited.add(Signal::SIGCHLD);
    // Signals are blocked before the fork, so that none is lost.
    let before = match SigSet::thread_get_mask().and_then(|before| awaited.thread_block().map(|()| before)) {
        Ok(before) => before,
        Err(errno) => return cannot(&errno.into()),
    };
    match sys::fork() {
        Ok(Some(program)) => Some(look_after(program, &awaited)),
        Ok(None) => {
            // The child gets its own process group: a signal to the group of process 1, such as from a
            // terminal, then arrives once, by way of process 1.
            let _stays = setpgid(None, None);
            IS_CHILD.store(true, Relaxed);
            before.thread_set_mask().map_or_else(|errno| cannot(&errno.into()), |()| None)
        }
        Err(error) => {
            before.thread_set_mask().map_or_else(|errno| cannot(&errno.into()), |()| cannot(&error))
        }
    }
}

/// Whether the process id `pid` from a service manager means this process: it is its own id, or 1 where the
/// program continues in a child of process 1.
pub(crate) fn is_addressed(pid: &std::ffi::OsStr) -> bool {
    let Some(pid) = pid.to_str().and_then(|text| text.parse().ok()).and_then(Pid::from_raw) else {
        return false;
    };
    pid == getpid() || (pid == Pid::INIT && getppid() == Some(Pid::INIT) && IS_CHILD.load(Relaxed))
}

/// Whether this process is the child of process 1.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Logs the error; the program then continues as process 1.
fn cannot(error: &io::Error) -> Option<u8> {
    log::warning(format_args!(
        "as process 1: processes whose parent ends stay as zombies: {}",
        sys::reason(error)
    ));
    None
}

/// Passes signals on and collects processes, until the program has ended. Returns its exit status.
fn look_after(program: Pid, awaited: &SigSet) -> u8 {
    loop {
        match awaited.wait() {
            Ok(Signal::SIGCHLD) => {}
            // The program may have just ended.
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

/// Collects all processes that have ended. Returns the program's exit status if it is among them.
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
