//! Servers in processes of their own, and plain clients of them: for the demo, the comparisons and the tests.
//!
//! A [`Server`] listens on a free port of 127.0.0.1, which it names in the file of `MEMCACHED_PORT_FILENAME`,
//! and is stopped when it is dropped. A [`Client`] is one connection that sends and waits. [`until`] waits
//! for a condition that another process brings about.
//!
//! # Invariants
//! * What was started here is ended and collected here, except for servers that are [kept](Server::keep).
//! * Every wait has a limit.

mod client;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

pub use client::Client;

/// How a server is started.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The program.
    pub program: &'a Path,
    /// Arguments of the program; port and address are taken from them. `-p -1` takes a free port.
    pub words: &'a [&'a str],
    /// The text of a rule file, which `--config` names.
    pub rules: Option<&'a str>,
    /// The port, for a program that does not write a port file.
    pub port: Option<u16>,
    /// Whether the server has a process group of its own: Ctrl-C on the terminal does not reach it, and the
    /// processes that it has started end with it.
    pub own_group: bool,
}

/// A server process; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Whether the process leads a process group.
    leads: bool,
    address: String,
    kept: bool,
    /// The server's working directory, with its rule file.
    directory: TempDir,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server ended, or does not listen. Its last log line.
    #[error("{0}")]
    Refused(String),
    /// A system call failed.
    #[error("{what}: {error}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The call's error.
        error: io::Error,
    },
}

const RULE_FILE: &str = "rules.toml";
/// The time limit for a server to listen: far more than it needs on a slow machine.
const STARTS_WITHIN: Duration = Duration::from_secs(45);
/// The time limit for a server to leave.
const STOPS_WITHIN: Duration = Duration::from_secs(10);
/// The time limit for an effect that another process must bring about.
const DEADLINE: Duration = Duration::from_secs(45);
const STEP: Duration = Duration::from_millis(5);

impl<'a> Start<'a> {
    /// A server of `program` with the arguments `words`.
    pub fn new(program: &'a Path, words: &'a [&'a str]) -> Self {
        Self { program, words, rules: None, port: None, own_group: false }
    }
}

impl Server {
    /// Starts a server, and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, has ended, or does not listen within 45 seconds.
    pub fn start(start: &Start<'_>) -> Result<Self, StartError> {
        let io = |what| move |error| StartError::Io { what, error };
        let directory = tempfile::tempdir().map_err(io("no temporary directory"))?;
        let [ports, said] = ["ports", "said"].map(|name| directory.path().join(name));
        let log = File::create(&said).map_err(io("the temporary directory"))?;
        let mut command = Command::new(start.program);
        command.args(start.words).env("MEMCACHED_PORT_FILENAME", &ports);
        if let Some(rules) = start.rules {
            let file = directory.path().join(RULE_FILE);
            fs::write(&file, rules).map_err(io("the temporary directory"))?;
            command.arg("--config").arg(file);
        }
        if start.own_group {
            command.process_group(0);
        }
        command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(io("the program cannot be started"))?;
        let mut server =
            Self { child, leads: start.own_group, address: String::new(), kept: false, directory };
        let mut ended = false;
        let listens = comes_true(STARTS_WITHIN, || {
            // The port file is there once the server listens; without one only a connection shows it.
            let known = start.port.filter(|port| Client::connect(("127.0.0.1", *port)).is_ok());
            if let Some(port) = known.or_else(|| port(&ports)) {
                server.address = format!("127.0.0.1:{port}");
            }
            ended = !matches!(server.child.try_wait(), Ok(None));
            ended || !server.address.is_empty()
        });
        if listens && !ended {
            return Ok(server);
        }
        let said = fs::read_to_string(&said).unwrap_or_default();
        let last = said.lines().last().map(str::to_owned);
        let silent = if ended { "it ended and said nothing" } else { "it said nothing, and does not listen" };
        Err(StartError::Refused(last.unwrap_or_else(|| silent.to_owned())))
    }

    /// Starts `command`, whose log can be read with [`Server::take_log`], and does not wait. It has no
    /// address here.
    ///
    /// # Errors
    /// The system's.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        Ok(Self { child, leads: false, address: String::new(), kept: false, directory })
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The path of the rule file; the file exists only if the server was started with rules.
    pub fn rule_file(&self) -> PathBuf {
        self.directory.path().join(RULE_FILE)
    }

    /// A client of it.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.address.as_str())
    }

    /// The log of a server that was [spawned](Server::spawn), the first time.
    pub fn take_log(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Sends it a signal; it may have ended.
    pub fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It is a child that has not been collected: the number is still its own.
            kill(Pid::from_raw(pid), signal).unwrap_or_default();
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Asks it to leave, and kills it if it has not after ten seconds.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        comes_true(STOPS_WITHIN, || !matches!(self.child.try_wait(), Ok(None)));
    }

    /// Leaves it running, with its rule file.
    pub fn keep(mut self) {
        self.kept = true;
        self.directory.disable_cleanup(true);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.kept {
            // Whatever fails here, the process is gone or beyond our reach. A child that was collected has no
            // group any more.
            if self.leads
                && matches!(self.child.try_wait(), Ok(None))
                && let Ok(pid) = i32::try_from(self.child.id())
            {
                killpg(Pid::from_raw(pid), Signal::SIGKILL).unwrap_or_default();
            }
            self.child.kill().unwrap_or_default();
            self.child.wait().map(drop).unwrap_or_default();
        }
    }
}

/// Waits for a condition that another process brings about.
///
/// # Panics
/// When it does not hold within 45 seconds.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(comes_true(DEADLINE, holds), "{what}: not within {DEADLINE:?}");
}

/// Waits for a condition that another process brings about, for `limit` at most; whether it holds.
pub fn comes_true(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let mut waited = Duration::ZERO;
    while !holds() {
        if waited >= limit {
            return false;
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "what another process does cannot be waited for otherwise"
        )]
        std::thread::sleep(STEP);
        waited += STEP;
    }
    true
}

/// The port in a server's own file, once it is there; it appears whole.
fn port(file: &Path) -> Option<u16> {
    fs::read_to_string(file).ok()?.lines().find_map(|line| line.strip_prefix("TCP INET: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_is_refused_with_its_last_line() {
        let words = ["-c", "echo first >&2; echo last >&2"];
        let error = Server::start(&Start::new(Path::new("/bin/sh"), &words)).unwrap_err();
        assert!(matches!(&error, StartError::Refused(line) if line == "last"), "{error}");
        let error = Server::start(&Start::new(Path::new("/no/such/program"), &[])).unwrap_err();
        assert!(matches!(error, StartError::Io { .. }), "{error}");
    }

    #[test]
    fn a_server_is_killed_when_it_is_dropped() {
        let mut command = Command::new("/bin/sleep");
        command.arg("60");
        let server = Server::spawn(command).unwrap();
        let process = PathBuf::from(format!("/proc/{}", server.pid()));
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
    }

    #[test]
    fn a_group_ends_with_its_leader() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().ok().map(|address| address.port());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display());
        let words = ["-c", &script];
        let start = Start { port, own_group: true, ..Start::new(Path::new("/bin/sh"), &words) };
        let server = Server::start(&start).unwrap();
        until("its child is there", || file.exists());
        let child = PathBuf::from(format!("/proc/{}", fs::read_to_string(&file).unwrap().trim()));
        assert!(child.exists());
        drop(server);
        // Another process collects it.
        let gone = || !fs::read_to_string(child.join("stat")).is_ok_and(|stat| !stat.contains(") Z "));
        until("its child is gone", gone);
    }

    #[test]
    fn a_wait_has_a_limit() {
        assert!(!comes_true(2 * STEP, || false));
        let mut left = 2;
        until("three looks", || {
            left -= 1;
            left == 0
        });
    }
}
