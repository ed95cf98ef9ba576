//! The tour's servers: this program, in processes of their own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::DemoError;
use cattlegrid_server::poller::Poller;

/// A running server; stopped when dropped.
pub(super) struct Server {
    child: Child,
    address: String,
    kept: bool,
    /// Its rule file is here.
    directory: TempDir,
}

/// The rule file's name.
const RULE_FILE: &str = "rules.toml";

/// Its memory limit in MiB.
pub(super) const MEMORY_MIB: u32 = 64;
const STARTS_WITHIN: Duration = Duration::from_secs(10);
const STOPS_WITHIN: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(10);

impl Server {
    /// Starts it on a free port of 127.0.0.1, with a rule file of this text, and waits until it listens.
    pub(super) fn start(connections: usize, rules: Option<&str>) -> Result<Self, DemoError> {
        let directory = tempfile::tempdir().map_err(DemoError::io("no temporary directory"))?;
        let ports = directory.path().join("ports");
        let said = directory.path().join("said");
        let errors = File::create(&said).map_err(DemoError::io("the temporary directory"))?;
        let program = std::env::current_exe().map_err(DemoError::io("this program cannot be found"))?;
        let mut command = Command::new(program);
        if let Some(rules) = rules {
            let file = directory.path().join(RULE_FILE);
            fs::write(&file, rules).map_err(DemoError::io("the temporary directory"))?;
            command.args(["serve", "--config"]).arg(file);
        } else {
            command.arg("serve");
        }
        let child = command
            .args(["-p", "-1", "-l", "127.0.0.1"])
            .args(["-m", &MEMORY_MIB.to_string(), "-t", "1", "-c", &connections.to_string()])
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            // Out of reach of the terminal's Ctrl-C: the tour stops it, or leaves it running.
            .process_group(0)
            .spawn()
            .map_err(DemoError::io("this program cannot be started"))?;
        let mut server = Self { child, address: String::new(), kept: false, directory };
        let mut waited = Duration::ZERO;
        loop {
            if let Some(port) = port(&ports) {
                server.address = format!("127.0.0.1:{port}");
                return Ok(server);
            }
            let ended = server.child.try_wait().map_err(DemoError::io("the server's state"))?;
            if ended.is_some() || waited >= STARTS_WITHIN {
                let said = fs::read_to_string(&said).unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing, and does not listen");
                return Err(DemoError::Server(last.to_owned()));
            }
            waited += pause();
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Leaves it running; how to go on from there.
    pub(super) fn keep(mut self) -> String {
        self.kept = true;
        self.directory.disable_cleanup(true);
        let port = self.address.rsplit(':').next().unwrap_or_default();
        format!(
            "The server goes on, on {address}.\n  \
             talk to it:  printf 'stats\\r\\nquit\\r\\n' | nc 127.0.0.1 {port}\n  \
             ask it why:  printf 'get @why:page:1\\r\\nquit\\r\\n' | nc 127.0.0.1 {port}\n  \
             its rules:   {rules}; kill -HUP {pid} makes it read them again\n  \
             load it:     cattlegrid bench {address} --pid {pid}\n  \
             stop it:     kill {pid}",
            address = self.address,
            pid = self.child.id(),
            rules = self.directory.path().join(RULE_FILE).display(),
        )
    }

    /// Stops it.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Whatever fails here, the process is gone or beyond our reach.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap_or_default();
        }
        let mut waited = Duration::ZERO;
        while waited < STOPS_WITHIN && matches!(self.child.try_wait(), Ok(None)) {
            waited += pause();
        }
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// The port in the server's own file, once it is there; it appears whole.
fn port(file: &Path) -> Option<u16> {
    fs::read_to_string(file).ok()?.lines().find_map(|line| line.strip_prefix("TCP INET: ")?.parse().ok())
}

/// Gives the processor to the other process for a moment; how long.
fn pause() -> Duration {
    if let Ok(mut poller) = Poller::new() {
        // An error only makes the moment shorter.
        poller.wait(Some(STEP), |_| {}).unwrap_or_default();
    }
    STEP
}
