//! The template process: loaded once, forked for every worker.
//!
//! It only waits for FORK, for the end of its children, and for the end of its parent. The child returns
//! from [`run`] and continues the program, with everything that was loaded.
//!
//! # Invariants
//! * One thread, from the check before READY to the end: see [`SingleThreaded`].
//! * A child is reaped only after its process group was killed, while its number is still in use, so
//!   the signal cannot reach another process.
//! * When the parent closes the control socket, or dies (SIGTERM by `PR_SET_PDEATHSIG`), all groups are
//!   killed before the template ends.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::control::{Control, receive};
use crate::frame::VERSION;
use crate::message::ErrorBody;
use crate::outbox::is_retry;
use crate::setup::{PreparedSetup, Setup};
use crate::sys::{self, ForkSide, SingleThreaded, TermSignal};

/// Serves FORK until the parent goes away. Returns only in a child: its job socket.
///
/// Ends the process when the template has threads and `allow_threads` is not set.
pub(crate) fn run(control: OwnedFd, keep: &[i32], allow_threads: bool) -> OwnedFd {
    let proof = SingleThreaded::check()
        .or_else(|n| if allow_threads { Ok(SingleThreaded::assume()) } else { Err(n) });
    let proof = match proof {
        Ok(proof) => proof,
        Err(None) => fatal(
            &control,
            "/proc is missing, so that it is not known whether the template has one thread; a fork could copy locks without their owners. \
             Mount /proc, start every worker anew (mode exec), or, in a pool of your own, call Launch::allow_threads",
        ),
        Err(Some(threads)) => fatal(
            &control,
            &format!(
                "the template has {threads} threads ({}); a fork would copy locks without their owners. {}\
             Start threads in each worker (init), start every worker anew (mode exec), or, in a pool of your own, call Launch::allow_threads",
                other_threads().join(", "),
                thread_hint(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()),
            ),
        ),
    };
    let term = match TermSignal::block() {
        Ok(term) => term,
        Err(error) => fatal(&control, &format!("cannot block SIGTERM: {error}")),
    };
    // From here on the death of the parent arrives as a signal; the template then kills the groups.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok();
    let ready = Control::Ready {
        version: VERSION,
        threads: sys::thread_count().map_or(0, |count| count.min(u16::MAX.into()) as u16),
        pid: std::process::id(),
        rss_kib: rss_kib(),
        sdk: concat!("rust/", env!("CARGO_PKG_VERSION")).into(),
    };
    if ready.send(control.as_fd(), &[]).is_err() {
        std::process::exit(0);
    }
    let mut template = Template { control, term, proof, children: Vec::new() };
    loop {
        if let Some((job, log, setup)) = template.turn() {
            // In the child. What belongs to the template is closed by number below, so it must not
            // be closed again by its owners.
            std::mem::forget(template);
            become_worker(&job, &log, &setup, keep);
            std::mem::forget(log);
            return job;
        }
    }
}

struct Template {
    control: OwnedFd,
    term: TermSignal,
    proof: SingleThreaded,
    children: Vec<LiveWorker>,
}

struct LiveWorker {
    slot: u32,
    pid: Pid,
    /// Absent when the template had no free descriptor; then the child's end is checked every [`LOOK`].
    pidfd: Option<OwnedFd>,
}

impl Template {
    /// Waits for the next event and handles it. `Some` in a new child.
    fn turn(&mut self) -> Option<(OwnedFd, OwnedFd, Setup)> {
        let mut fds = vec![PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.term, PollFlags::IN)];
        fds.extend(
            self.children
                .iter()
                .filter_map(|child| child.pidfd.as_ref())
                .map(|fd| PollFd::new(fd, PollFlags::IN)),
        );
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        let blind = self.children.iter().any(|child| child.pidfd.is_none());
        if poll(&mut fds, blind.then_some(&look)).is_err() {
            return None;
        }
        let [commands, term] = [0, 1].map(|at| !fds[at].revents().is_empty());
        let ended = blind || fds[2..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        if term {
            self.end();
        }
        if ended {
            self.reap();
        }
        if commands { self.obey() } else { None }
    }

    fn obey(&mut self) -> Option<(OwnedFd, OwnedFd, Setup)> {
        let received = match receive(self.control.as_fd()) {
            Ok(received) => received,
            Err(error) if is_retry(&error) => return None,
            Err(_) => self.end(),
        };
        if received.closed {
            self.end();
        }
        let Some(Control::Fork { slot, setup }) = received.message else { return None };
        let mut fds = received.fds.into_iter();
        let (Some(job), Some(log)) = (fds.next(), fds.next()) else {
            // The descriptors did not fit into this process.
            self.tell(&Control::Failed { slot, errno: rustix::io::Errno::MFILE.raw_os_error() });
            return None;
        };
        match self.proof.fork() {
            Ok(ForkSide::Child) => return Some((job, log, setup)),
            Ok(ForkSide::Parent(pid)) => {
                // The child does the same. Whichever is first, the group exists before it can be killed.
                rustix::process::setpgid(Some(pid), Some(pid)).ok();
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
                let forked = Control::Forked { slot, pid: pid.as_raw_pid().unsigned_abs() };
                let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
                if forked.send(self.control.as_fd(), &fds).is_err() {
                    self.children.push(LiveWorker { slot, pid, pidfd: None });
                    self.end();
                }
                self.children.push(LiveWorker { slot, pid, pidfd });
            }
            Err(error) => self.tell(&Control::Failed { slot, errno: error.raw_os_error().unwrap_or(0) }),
        }
        None
    }

    fn reap(&mut self) {
        let mut ended = Vec::new();
        self.children.retain(|child| {
            if !has_ended(child.pid) {
                return true;
            }
            // Grandchildren first, while the zombie still holds the group's number.
            kill_process_group(child.pid, Signal::KILL).ok();
            let exit = sys::reap(child.pid).ok().flatten();
            let (status, maxrss_kib) = exit.map_or((0, 0), |exit| (exit.status, exit.maxrss_kib));
            let pid = child.pid.as_raw_pid().unsigned_abs();
            ended.push(Control::Exited { slot: child.slot, pid, status, maxrss_kib });
            false
        });
        for message in ended {
            self.tell(&message);
        }
    }

    fn tell(&self, message: &Control) {
        if message.send(self.control.as_fd(), &[]).is_err() {
            self.end();
        }
    }

    /// The parent has gone: kills all groups.
    fn end(&self) -> ! {
        for child in &self.children {
            kill_process_group(child.pid, Signal::KILL).ok();
        }
        std::process::exit(0)
    }
}

/// Whether `pid` is a zombie; leaves it one.
fn has_ended(pid: Pid) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}

/// The child's way from fork to HELLO.
fn become_worker(job: &OwnedFd, log: &OwnedFd, setup: &Setup, keep: &[i32]) {
    let template = rustix::process::getppid();
    rustix::process::setpgid(None, None).ok();
    die_with(template);
    for target in [1, 2] {
        drop(sys::redirect(log.as_fd(), target));
    }
    let mut open = keep.to_vec();
    open.push(job.as_raw_fd());
    sys::close_all_except(&open);
    TermSignal::unblock();
    if let Err(errno) = PreparedSetup::new(setup).apply() {
        let error = ErrorBody {
            code: "setup".into(),
            message: format!("limits or sandbox: {errno}"),
            detail: String::new(),
            retryable: false,
        };
        let mut bytes = Vec::new();
        error.put(&mut bytes, 0);
        rustix::io::write(job, &bytes).ok();
        std::process::exit(1);
    }
    // A change of user clears the death signal.
    die_with(template);
}

fn die_with(template: Option<Pid>) {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).ok();
    if rustix::process::getppid() != template {
        std::process::exit(0);
    }
}

/// Reports why the template cannot serve, and ends it.
pub(crate) fn fatal(control: &OwnedFd, text: &str) -> ! {
    drop(Control::Fatal(text.into()).send(control.as_fd(), &[]));
    std::process::exit(1)
}

/// Names of all threads except the first, as far as the system tells.
fn other_threads() -> Vec<String> {
    let own = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|task| task.file_name().to_string_lossy() != own);
    let name = |dir: std::path::PathBuf| std::fs::read_to_string(dir.join("comm")).ok();
    others.filter_map(|task| name(task.path())).map(|name| name.trim().to_owned()).collect()
}

/// The variables that keep loaded libraries from starting threads, as a hint; `maps` is `/proc/self/maps`.
fn thread_hint(maps: &str) -> String {
    let loaded = |(library, _): &&(&str, &str)| {
        let file = |line: &str| line.rsplit_once('/').is_some_and(|(_, file)| file.contains(library));
        maps.lines().any(file)
    };
    let found: Vec<_> = THREADED.iter().filter(loaded).collect();
    let libraries: Vec<_> = found.iter().map(|(library, _)| *library).collect();
    let mut settings: Vec<_> = found.iter().map(|(_, variable)| format!("{variable}=1")).collect();
    settings.dedup();
    if found.is_empty() {
        return String::new();
    }
    format!(
        "{} may have started them when it was loaded: set {} (Builder::env). ",
        libraries.join(", "),
        settings.join(" ")
    )
}

/// Libraries that start threads when they are loaded, by a part of their file's name, and the variable that
/// sets their number.
const THREADED: [(&str, &str); 8] = [
    ("openblas", "OPENBLAS_NUM_THREADS"),
    ("libmkl", "MKL_NUM_THREADS"),
    ("libblis", "BLIS_NUM_THREADS"),
    ("numexpr", "NUMEXPR_MAX_THREADS"),
    ("polars", "POLARS_MAX_THREADS"),
    ("libgomp", "OMP_NUM_THREADS"),
    ("libiomp", "OMP_NUM_THREADS"),
    ("libomp", "OMP_NUM_THREADS"),
];

/// Resident set of this process, KiB; 0 where `/proc` is missing.
fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

/// Interval of the checks of children without a pidfd.
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_starts_threads_is_named_with_its_variable() {
        let maps = "7f0-7f1 r-xp 0 00:00 1 /x/numpy.libs/libscipy_openblas64_-fdde5778.so\n\
                    7f1-7f2 r-xp 0 00:00 2 /x/libgomp-a34b3233.so.1\n7f2-7f3 rw-p 0 00:00 0\n";
        let hint = thread_hint(maps);
        assert!(hint.contains("openblas, libgomp"), "{hint}");
        assert!(hint.contains("OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1"), "{hint}");
        assert_eq!(thread_hint("7f0-7f1 r-xp 0 00:00 1 /openblas/libc.so.6"), "");
    }
}
