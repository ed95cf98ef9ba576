//! The servers that are compared, each in its own process on 127.0.0.1.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cattlegrid::bench::{Plan, Process, Target};
use tempfile::TempDir;

use crate::resp::Speech;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Cattlegrid,
    Memcached,
    Redis,
}

/// The order everywhere. Redis is last: it has no client flags, so some rows end before it.
pub(crate) const KINDS: [Kind; 3] = [Kind::Cattlegrid, Kind::Memcached, Kind::Redis];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cattlegrid => "cattlegrid",
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }

    fn speech(self) -> Speech {
        match self {
            Self::Cattlegrid | Self::Memcached => Speech::Memcached,
            Self::Redis => Speech::Resp,
        }
    }
}

/// The three programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) cattlegrid: PathBuf,
    pub(crate) memcached: PathBuf,
    pub(crate) redis: PathBuf,
}

impl Programs {
    fn path(&self, kind: Kind) -> &Path {
        match kind {
            Kind::Cattlegrid => &self.cattlegrid,
            Kind::Memcached => &self.memcached,
            Kind::Redis => &self.redis,
        }
    }

    /// The version that the program prints.
    pub(crate) fn version(&self, kind: Kind) -> Result<String> {
        let option = if kind == Kind::Redis { "--version" } else { "-V" };
        let path = self.path(kind);
        let output = Command::new(path).arg(option).output().with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number =
            |word: &&str| word.trim_start_matches("v=").starts_with(|first: char| first.is_ascii_digit());
        Ok(text.split_whitespace().find(number).unwrap_or("?").trim_start_matches("v=").to_owned())
    }
}

/// A running server; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    child: Child,
    address: String,
    _directory: TempDir,
}

impl Server {
    /// One thread, this much memory for items, evicting.
    pub(crate) fn start(programs: &Programs, kind: Kind, memory_mib: u64) -> Result<Self> {
        Self::start_with(programs, kind, memory_mib, 1, 2000)
    }

    /// The same with this number of threads, which Redis does not have, and room for this number of connections.
    pub(crate) fn start_with(
        programs: &Programs,
        kind: Kind,
        memory_mib: u64,
        threads: u64,
        connections: u64,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let ports = directory.path().join("ports");
        let program = programs.path(kind);
        let mut command = Command::new(program);
        let mut known_port = None;
        if kind == Kind::Redis {
            // Free a moment ago; Redis cannot choose a free port itself.
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            known_port = Some(port);
            command.args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ]);
            command.args(["--maxmemory", &format!("{memory_mib}mb"), "--maxmemory-policy", "allkeys-lru"]);
            command.args(["--daemonize", "no", "--maxclients", &connections.to_string()]);
            command.arg("--dir").arg(directory.path());
        } else {
            command.args(["-l", "127.0.0.1", "-p", "-1"]);
            for (option, number) in [("-t", threads), ("-c", connections), ("-m", memory_mib)] {
                command.args([option, &number.to_string()]);
            }
            if nix::unistd::geteuid().is_root() {
                command.args(["-u", "root"]);
            }
            command.env("MEMCACHED_PORT_FILENAME", &ports);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut server = Self { kind, child, address: String::new(), _directory: directory };
        // Nothing is sent on this channel: each wait gives the processor to the server for a moment.
        let (_sender, receiver) = mpsc::channel::<()>();
        for _ in 0..1000 {
            let found = known_port.or_else(|| port(&ports));
            if let Some(port) = found.filter(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
                server.address = format!("127.0.0.1:{port}");
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() {
                break;
            }
            receiver.recv_timeout(Duration::from_millis(10)).unwrap_or_default();
        }
        bail!("{}: does not listen", program.display());
    }

    /// Connections to it that are ready for load.
    pub(crate) fn open(&self, plan: &Arc<Plan>, connections: usize, depth: usize) -> Result<Target<Speech>> {
        let pid = Some(self.child.id());
        Ok(Target::open(&self.kind.speech(), plan, &self.address, pid, (1, connections, depth))?)
    }

    /// A connection that has asked for an absent key and has received the reply.
    pub(crate) fn ask_once(&self) -> Result<TcpStream> {
        let (request, reply): (&[u8], &[u8]) = match self.kind {
            Kind::Cattlegrid | Kind::Memcached => (b"get nothing\r\n", b"END\r\n"),
            Kind::Redis => (b"GET nothing\r\n", b"$-1\r\n"),
        };
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(request)?;
        let mut answer = vec![0; reply.len()];
        stream.read_exact(&mut answer)?;
        if answer != reply {
            bail!("{}: {}", self.kind.name(), String::from_utf8_lossy(&answer));
        }
        Ok(stream)
    }

    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        Ok(Process::new(self.child.id())?.resident_bytes()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // No data of theirs is kept, so nothing is lost. If anything fails here, the process has ended.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

fn port(file: &Path) -> Option<u16> {
    fs::read_to_string(file).ok()?.lines().find_map(|line| line.strip_prefix("TCP INET: ")?.parse().ok())
}
