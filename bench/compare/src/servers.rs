//! The servers that are compared, each in its own process on 127.0.0.1.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::harness::{self, Start};
use cattlegrid_load::{Plan, Process, Target};

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
    process: harness::Server,
}

impl Server {
    /// One thread, this much memory for items, evicting.
    pub(crate) fn start(programs: &Programs, kind: Kind, memory_mib: u64) -> Result<Self> {
        Self::start_with(programs, kind, memory_mib, 1, 2000)
    }

    /// The same with this many threads, which Redis does not have, and room for this many connections.
    pub(crate) fn start_with(
        programs: &Programs,
        kind: Kind,
        memory_mib: u64,
        threads: u64,
        connections: u64,
    ) -> Result<Self> {
        let [memory, threads, connections] = [memory_mib, threads, connections].map(|n| n.to_string());
        let (max_memory, mut port, port_text) = (format!("{memory_mib}mb"), None, free_port()?.to_string());
        let mut words = Vec::new();
        if kind == Kind::Redis {
            port = Some(port_text.parse()?);
            words.extend(["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"]);
            words.extend(["--maxmemory", &max_memory, "--maxmemory-policy", "allkeys-lru"]);
            words.extend(["--daemonize", "no", "--maxclients", &connections]);
        } else {
            words.extend(["-l", "127.0.0.1", "-p", "-1", "-t", &threads, "-c", &connections, "-m", &memory]);
            if nix::unistd::geteuid().is_root() {
                words.extend(["-u", "root"]);
            }
        }
        // Programs are found from here; the servers have directories of their own.
        let path = programs.path(kind);
        let path = if path.components().count() > 1 { std::path::absolute(path)? } else { path.to_owned() };
        let start = Start { port, ..Start::new(&path, &words) };
        let process = harness::Server::start(&start).with_context(|| path.display().to_string())?;
        Ok(Self { kind, process })
    }

    /// Connections to it that are ready for load.
    pub(crate) fn open(&self, plan: &Arc<Plan>, connections: usize, depth: usize) -> Result<Target<Speech>> {
        let pid = Some(self.process.pid());
        Ok(Target::open(&self.kind.speech(), plan, self.process.address(), pid, (1, connections, depth))?)
    }

    /// A connection that has asked for an absent key and has received the reply.
    pub(crate) fn ask_once(&self) -> Result<TcpStream> {
        let (request, reply): (&[u8], &[u8]) = match self.kind {
            Kind::Cattlegrid | Kind::Memcached => (b"get nothing\r\n", b"END\r\n"),
            Kind::Redis => (b"GET nothing\r\n", b"$-1\r\n"),
        };
        let mut stream = TcpStream::connect(self.process.address())?;
        stream.write_all(request)?;
        let mut answer = vec![0; reply.len()];
        stream.read_exact(&mut answer)?;
        if answer != reply {
            bail!("{}: {}", self.kind.name(), String::from_utf8_lossy(&answer));
        }
        Ok(stream)
    }

    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        Ok(Process::new(self.process.pid())?.resident_bytes()?)
    }
}

/// Free a moment ago; Redis cannot be asked to choose.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
