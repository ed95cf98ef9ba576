//! The guardian: a process that kills the process groups of exec'ed workers when this process dies by
//! SIGKILL.
//!
//! A template does that for the workers it has forked. Exec'ed workers die by `PR_SET_PDEATHSIG`, but the
//! processes *they* have started do not. So a shell holds one end of a socket and a list of groups. When the
//! other end closes, this process has ended, and the shell kills the groups.
//!
//! What is guaranteed: when this process dies, its templates and workers die, and also the processes that the
//! workers have started in their process groups, if the guardian (for forked workers: the template) lives a
//! moment longer. The guardian is watched, and replaced when it dies. If it is killed *in the same moment* as
//! this process, it kills no group: templates and workers still die, but the processes that workers have
//! started live on.
//!
//! # Invariants
//! * Without a guardian, that was reported, and each start of an exec'ed worker tries to start one.
//! * Nothing here waits: a guardian that does not read (stopped, for instance) is replaced when its socket is
//!   full.
//! * No signal: the host may have any disposition of SIGPIPE.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cattlegrid_worker::sys::Spawn;
use cattlegrid_worker::{Limits, Setup};
use rustix::net::SendFlags;
use rustix::process::Pid;

/// A running guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    socket: OwnedFd,
    /// The guardian's process id, for reaping it when it has ended.
    pub(crate) pid: Pid,
    /// Readable when it has ended.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Guardian {
    /// Starts `/bin/sh`.
    pub(crate) fn start() -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (reader, socket) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let null = std::fs::File::options().write(true).open("/dev/null")?;
        let spawn = Spawn {
            program: OsStr::new("/bin/sh"),
            args: &["-c".into(), SCRIPT.into()],
            env: &[],
            dir: None,
            fds: &[reader.as_fd(), null.as_fd(), null.as_fd()],
            // The system's own score: it must not be killed first when memory is short.
            setup: &Setup { limits: Limits { oom_score_adj: None, ..Limits::default() }, ..Setup::default() },
            outlive: true,
        };
        let child = spawn.spawn().map_err(|error| error.source)?;
        Ok(Self { socket, pid: child.pid, pidfd: child.pidfd })
    }

    /// Adds a group.
    pub(crate) fn watch(&self, group: Pid) -> io::Result<()> {
        self.say('+', group)
    }

    /// Takes a group off the list; call it before the number can be used again.
    pub(crate) fn forget(&self, group: Pid) -> io::Result<()> {
        self.say('-', group)
    }

    fn say(&self, what: char, group: Pid) -> io::Result<()> {
        let line = format!("{what} {}\n", group.as_raw_pid());
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(&self.socket, line.as_bytes(), flags)?;
        if sent < line.len() {
            // The guardian would read the rest of the line as another group.
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

const SCRIPT: &str = r#"
trap '' TERM INT HUP
groups=' '
while read -r op group; do
    case $op in
        +) groups="$groups$group " ;;
        -) case $groups in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"#;

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;

    /// Pending signals of this thread. A blocked signal is also pending if the process ignores it, as this
    /// one ignores SIGPIPE.
    fn pending() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigPnd:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap()
    }

    #[test]
    fn writing_to_a_dead_guardian_is_an_error_and_sends_no_signal() {
        const SIGPIPE: u64 = 1 << 12;
        let guardian = Guardian::start().unwrap();
        rustix::process::kill_process(guardian.pid, Signal::KILL).unwrap();
        while matches!(cattlegrid_worker::sys::reap(guardian.pid), Ok(None)) {
            std::thread::yield_now();
        }
        // A thread of its own, so that no other test sees its signal mask.
        let check = move || {
            cattlegrid_worker::sys::block_signals();
            assert!(guardian.watch(guardian.pid).is_err());
            assert!(guardian.forget(guardian.pid).is_err());
            assert_eq!(pending() & SIGPIPE, 0);
            assert!(rustix::io::write(&guardian.socket, b"x").is_err());
            assert_eq!(pending() & SIGPIPE, SIGPIPE, "a plain write does send it");
        };
        std::thread::spawn(check).join().unwrap();
    }
}
