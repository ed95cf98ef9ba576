//! Kinds of work at equal memory limits: what of it hits.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cattlegrid_compare::work::{Op, TALLIES, Tally, Work, name, works};
use serde_json::{Value, json};

use crate::progress;
use crate::servers::{Programs, Server, ServerKind, ServerSetup};

/// The seed of the random numbers.
const SEED: u64 = 1;
/// Requests under way at a time: a miss is filled when all of them are answered.
const DEPTH: usize = 32;
/// Bytes under way at a time, in either direction, unless one request has more.
const BYTES: usize = 64 << 10;
/// Bytes of a request or a reply beside its value, at most.
const BESIDE: usize = 100;

/// The table, and what it was made of. `only`: kinds of work whose name contains this.
pub(crate) fn compare(
    programs: &Programs,
    traces: &Path,
    only: &str,
    threads: u64,
) -> Result<(String, Value)> {
    let kinds = [ServerKind::Cattlegrid, ServerKind::Memcached];
    let mut text = String::from(
        "What hits, in percent of gets or of bytes; last, the difference in points.\n\n\
         | work | -m in MiB | what | cattlegrid | memcached | |\n|---|---|---|---|---|---|\n",
    );
    let mut raw = Vec::new();
    for work in works(traces)?.iter().filter(|work| work.name.contains(only)) {
        let mut runs = Vec::new();
        for kind in kinds {
            progress(&format!("{}: {}", work.name, kind.name()));
            runs.push(run(programs, kind, work, threads)?);
        }
        for figure in &work.figures {
            let [own, memcached] = [0, 1].map(|n| runs[n][figure.tally].percent(figure.by_bytes));
            let bytes = if figure.by_bytes { ", bytes" } else { "" };
            writeln!(
                text,
                "| {} | {} | {}{bytes} | {own:.1} | {memcached:.1} | {:+.1} |",
                work.name,
                work.memory_mib,
                figure.name,
                own - memcached
            )?;
            raw.push(json!({ "work": work.name, "memory_mib": work.memory_mib, "what": figure.name,
                "by_bytes": figure.by_bytes, "cattlegrid": own, "memcached": memcached }));
        }
    }
    Ok((text, json!(raw)))
}

fn run(programs: &Programs, kind: ServerKind, work: &Work, threads: u64) -> Result<[Tally; TALLIES]> {
    let server =
        Server::start_with(programs, kind, &ServerSetup { threads, ..ServerSetup::new(work.memory_mib) })?;
    let mut pipe = PipelinedConnection::new(server.address())?;
    let mut failed = None;
    work.run(SEED, |op| {
        if failed.is_none() {
            failed = pipe.ask(op).err();
        }
    });
    if let Some(error) = failed {
        return Err(error.context(format!("{}: {}", work.name, kind.name())));
    }
    pipe.flush()?;
    Ok(pipe.tallies)
}

/// A connection with requests under way.
struct PipelinedConnection {
    stream: BufReader<TcpStream>,
    requests: Vec<u8>,
    under_way: Vec<Op>,
    /// Bytes of the requests under way and of their replies.
    bytes: usize,
    value: Vec<u8>,
    tallies: [Tally; TALLIES],
}

impl PipelinedConnection {
    fn new(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::with_capacity(BYTES, stream),
            requests: Vec::new(),
            under_way: Vec::new(),
            bytes: 0,
            value: vec![b'v'; 1 << 20],
            tallies: [Tally::default(); TALLIES],
        })
    }

    fn ask(&mut self, op: Op) -> Result<()> {
        let (key, bytes) = match op {
            Op::Fill { key, bytes, .. } | Op::Read { key, bytes, .. } | Op::Set { key, bytes } => {
                (key, bytes)
            }
            Op::Delete { key } => (key, 0),
        };
        let weighs = bytes as usize + BESIDE;
        if self.under_way.len() == DEPTH || !self.under_way.is_empty() && self.bytes + weighs > BYTES {
            self.flush()?;
        }
        self.bytes += weighs;
        let name = name(key);
        let name = std::str::from_utf8(&name)?;
        match op {
            Op::Fill { .. } | Op::Read { .. } => write!(self.requests, "get {name}\r\n")?,
            Op::Set { .. } => self.set(name, bytes, 0)?,
            Op::Delete { .. } => write!(self.requests, "delete {name}\r\n")?,
        }
        self.under_way.push(op);
        Ok(())
    }

    fn set(&mut self, name: &str, bytes: u32, ttl: u32) -> Result<()> {
        write!(self.requests, "set {name} 0 {ttl} {bytes}\r\n")?;
        self.requests.extend_from_slice(&self.value[..bytes as usize]);
        self.requests.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Sends what is under way, reads all replies, and fills what was missed.
    fn flush(&mut self) -> Result<()> {
        self.send()?;
        let mut missed = Vec::new();
        for op in std::mem::take(&mut self.under_way) {
            match op {
                Op::Fill { key, bytes, ttl, tally } => {
                    if !self.read_hit(bytes, tally)? {
                        missed.push((key, bytes, ttl));
                    }
                }
                Op::Read { bytes, tally, .. } => _ = self.read_hit(bytes, tally)?,
                Op::Set { .. } | Op::Delete { .. } => _ = self.line()?,
            }
        }
        self.bytes = 0;
        // One by one where they are long: a server may wait for its replies to be read.
        for (key, bytes, ttl) in missed {
            self.set(std::str::from_utf8(&name(key))?, bytes, ttl)?;
            self.send()?;
            self.line()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.requests)?;
        self.requests.clear();
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the server has closed the connection");
        }
        Ok(line)
    }

    fn read_hit(&mut self, bytes: u32, tally: Option<usize>) -> Result<bool> {
        let line = self.line()?;
        let hit = line.starts_with("VALUE ");
        if hit {
            let len: usize = line.trim_end().rsplit(' ').next().unwrap_or_default().parse()?;
            let mut value = vec![0; len + 2];
            self.stream.read_exact(&mut value).context("a value")?;
            self.line()?;
        }
        if let Some(tally) = tally {
            self.tallies[tally].count(bytes, hit);
        }
        Ok(hit)
    }
}
