//! Who kills the process groups of exec'ed workers when this process dies by SIGKILL.
//!
//! A template does that for the workers it has forked. Exec'ed workers die by `PR_SET_PDEATHSIG`, but the
//! processes *they* have started do not. So a shell holds the reading end of a pipe and a list of groups;
//! the end of the pipe is the end of this process, and of the groups.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cattlegrid_worker::Setup;
use cattlegrid_worker::sys::Spawn;
use rustix::process::Pid;

/// A running guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    pipe: OwnedFd,
    /// To be reaped when it has ended.
    pub(crate) pid: Pid,
}

impl Guardian {
    /// Starts `/bin/sh`.
    pub(crate) fn start() -> io::Result<Self> {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        let null = std::fs::File::options().write(true).open("/dev/null")?;
        let spawn = Spawn {
            program: OsStr::new("/bin/sh"),
            args: &["-c".into(), SCRIPT.into()],
            env: &[],
            dir: None,
            fds: &[reader.as_fd(), null.as_fd(), null.as_fd()],
            setup: &Setup::default(),
            outlive: true,
        };
        let child = spawn.spawn().map_err(|error| error.source)?;
        Ok(Self { pipe, pid: child.pid })
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
        rustix::io::write(&self.pipe, line.as_bytes())?;
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
