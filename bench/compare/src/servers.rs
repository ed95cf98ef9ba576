//! The servers that are compared, each in its own process on 127.0.0.1.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::harness::{self, Client, Start};
use cattlegrid_load::{Meter, Plan, Process, Shape, Target, Tls};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use crate::peer::Peer;
use crate::resp::WireProtocol;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Cattlegrid,
    Memcached,
    Redis,
}

/// The order everywhere. Redis is last: it has no client flags, so some rows end before it.
pub(crate) const KINDS: [ServerKind; 3] = [ServerKind::Cattlegrid, ServerKind::Memcached, ServerKind::Redis];

impl ServerKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cattlegrid => "cattlegrid",
            Self::Memcached => "memcached",
            Self::Redis => "redis",
        }
    }

    fn speech(self) -> WireProtocol {
        match self {
            Self::Cattlegrid | Self::Memcached => WireProtocol::Memcached,
            Self::Redis => WireProtocol::Resp,
        }
    }
}

/// The programs, and what all runs of them share.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) cattlegrid: PathBuf,
    pub(crate) memcached: PathBuf,
    pub(crate) redis: PathBuf,
    pub(crate) peers: Vec<Peer>,
    /// Ends all runs.
    pub(crate) meter: Arc<Meter>,
}

/// How a server is started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerSetup<'a> {
    /// For items.
    pub(crate) memory_mib: u64,
    /// Serving threads, which Redis does not have.
    pub(crate) threads: u64,
    /// Room for this many.
    pub(crate) connections: u64,
    /// All connections speak TLS, which Redis is not asked for.
    pub(crate) certificate: Option<&'a Certificate>,
    /// The text of a rule file, for Cattlegrid.
    pub(crate) rules: Option<&'a str>,
}

impl ServerSetup<'_> {
    /// One thread, this much memory, evicting.
    pub(crate) fn new(memory_mib: u64) -> Self {
        Self { memory_mib, threads: 1, connections: 2000, certificate: None, rules: None }
    }
}

/// A certificate for 127.0.0.1 and its key, ECDSA with P-256, in files.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// The value of `-o` that names them.
    option: String,
    _directory: TempDir,
}

impl Certificate {
    pub(crate) fn new() -> Result<Self> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.self_signed(&key)?;
        let directory = tempfile::tempdir()?;
        let [chain, private] = ["chain.pem", "key.pem"].map(|name| directory.path().join(name));
        std::fs::write(&chain, certificate.pem())?;
        std::fs::write(&private, key.serialize_pem())?;
        // Clients may resume sessions.
        let files = format!("ssl_chain_cert={},ssl_key={}", chain.display(), private.display());
        let option = format!("{files},ssl_session_cache");
        Ok(Self { option, _directory: directory })
    }
}

impl Programs {
    fn path(&self, kind: ServerKind) -> &Path {
        match kind {
            ServerKind::Cattlegrid => &self.cattlegrid,
            ServerKind::Memcached => &self.memcached,
            ServerKind::Redis => &self.redis,
        }
    }

    /// The version that the program prints.
    pub(crate) fn version(&self, kind: ServerKind) -> Result<String> {
        let option = if kind == ServerKind::Redis { "--version" } else { "-V" };
        let path = self.path(kind);
        let output = Command::new(path).arg(option).output().with_context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number =
            |word: &&str| word.trim_start_matches("v=").starts_with(|first: char| first.is_ascii_digit());
        Ok(text.split_whitespace().find(number).unwrap_or("?").trim_start_matches("v=").to_owned())
    }

    /// Starts each of the user's servers once, so that one which cannot be used is known before anything is
    /// measured.
    pub(crate) fn check_peers(&self) -> Result<()> {
        self.start_peers()?.iter().try_for_each(|peer| {
            let wrong = || format!("--peer {}: get of an absent key", peer.name);
            peer.ask_once().map(drop).with_context(wrong)
        })
    }

    /// The servers that the user has named.
    pub(crate) fn start_peers(&self) -> Result<Vec<Server>> {
        self.peers.iter().map(|peer| Server::start_peer(peer, &self.meter)).collect()
    }

    /// Cattlegrid, memcached and the user's servers.
    pub(crate) fn start_all(&self, setup: &ServerSetup<'_>) -> Result<Vec<Server>> {
        let mut servers = Vec::new();
        for kind in [ServerKind::Cattlegrid, ServerKind::Memcached] {
            servers.push(Server::start_with(self, kind, setup)?);
        }
        servers.extend(self.start_peers()?);
        Ok(servers)
    }
}

/// A running server; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    speech: WireProtocol,
    process: harness::Server,
    meter: Arc<Meter>,
    speaks_tls: bool,
}

impl Server {
    /// One thread, this much memory for items, evicting.
    pub(crate) fn start(programs: &Programs, kind: ServerKind, memory_mib: u64) -> Result<Self> {
        Self::start_with(programs, kind, &ServerSetup::new(memory_mib))
    }

    /// Starts a server with this setup.
    pub(crate) fn start_with(programs: &Programs, kind: ServerKind, setup: &ServerSetup<'_>) -> Result<Self> {
        let [memory, threads, connections] =
            [setup.memory_mib, setup.threads, setup.connections].map(|n| n.to_string());
        let (max_memory, mut port, port_text) = (format!("{memory}mb"), None, free_port()?.to_string());
        let mut words = Vec::new();
        if kind == ServerKind::Redis {
            port = Some(port_text.parse()?);
            words.extend(["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"]);
            words.extend(["--maxmemory", &max_memory, "--maxmemory-policy", "allkeys-lru"]);
            words.extend(["--daemonize", "no", "--maxclients", &connections]);
        } else {
            words.extend(["-l", "127.0.0.1", "-p", "-1", "-t", &threads, "-c", &connections, "-m", &memory]);
            if nix::unistd::geteuid().is_root() {
                words.extend(["-u", "root"]);
            }
            if let Some(certificate) = setup.certificate {
                words.extend(["-Z", "-o", &certificate.option]);
            }
        }
        let path = found_from_here(programs.path(kind))?;
        let rules = setup.rules.filter(|_| kind == ServerKind::Cattlegrid);
        let start = Start { port, rules, ..Start::new(&path, &words) };
        let process = harness::Server::start(&start).with_context(|| path.display().to_string())?;
        Ok(Self {
            name: kind.name().to_owned(),
            speech: kind.speech(),
            process,
            meter: Arc::clone(&programs.meter),
            speaks_tls: setup.certificate.is_some(),
        })
    }

    /// A server of the user's: what its command says, on a free port.
    fn start_peer(peer: &Peer, meter: &Arc<Meter>) -> Result<Self> {
        let port = free_port()?;
        let words = peer.words(port);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let path = found_from_here(&peer.program)?;
        let start = Start { port: Some(port), own_group: true, ..Start::new(&path, &words) };
        let process = harness::Server::start(&start)
            .with_context(|| format!("--peer {}: {} {}", peer.name, path.display(), words.join(" ")))?;
        Ok(Self {
            name: peer.name.clone(),
            speech: WireProtocol::Memcached,
            process,
            meter: Arc::clone(meter),
            speaks_tls: false,
        })
    }

    /// Connections to it that are ready for load. Over TLS all handshakes are full ones.
    pub(crate) fn open(
        &self,
        plan: &Arc<Plan>,
        connections: usize,
        depth: usize,
    ) -> Result<Target<WireProtocol>> {
        self.open_as(plan, &Shape { threads: 1, connections, depth, ..Shape::default() }, false)
    }

    /// The same for this shape, except for its TLS, which is the server's; `resumes`: new connections resume
    /// sessions.
    pub(crate) fn open_as(
        &self,
        plan: &Arc<Plan>,
        shape: &Shape,
        resumes: bool,
    ) -> Result<Target<WireProtocol>> {
        let (pid, address) = (Some(self.process.pid()), self.process.address());
        let tls = self.speaks_tls.then(|| Tls::new(address, None, resumes)).transpose()?;
        let opened = Target::open(&self.speech, plan, address, pid, &Shape { tls, ..shape.clone() });
        opened.with_context(|| self.name.clone())
    }

    /// A connection that has asked for an absent key and has received the reply.
    pub(crate) fn ask_once(&self) -> Result<TcpStream> {
        let (request, reply): (&[u8], &[u8]) = match self.speech {
            WireProtocol::Memcached => (b"get nothing\r\n", b"END\r\n"),
            WireProtocol::Resp => (b"GET nothing\r\n", b"$-1\r\n"),
        };
        let mut stream = TcpStream::connect(self.process.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        // What is wrong may be shorter.
        while answer.len() < reply.len() && reply.starts_with(&answer) {
            let mut byte = [0];
            stream.read_exact(&mut byte).context("no reply")?;
            answer.extend(byte);
        }
        if answer != reply {
            let mut rest = [0; 60];
            let more = stream.read(&mut rest).unwrap_or_default();
            answer.extend_from_slice(&rest[..more]);
            bail!("{}: answered {:?}", self.name, String::from_utf8_lossy(&answer));
        }
        Ok(stream)
    }

    /// A plain client of it.
    pub(crate) fn connect(&self) -> Result<Client> {
        Ok(self.process.connect()?)
    }

    pub(crate) fn address(&self) -> &str {
        self.process.address()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The meter that ends its runs.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        Ok(Process::new(self.process.pid())?.resident_bytes()?)
    }
}

/// A server that says nothing for this long has no reply.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Programs are found from here; the servers have directories of their own.
fn found_from_here(path: &Path) -> Result<PathBuf> {
    Ok(if path.components().count() > 1 { std::path::absolute(path)? } else { path.to_owned() })
}

/// Free a moment ago; Redis cannot be asked to choose.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
