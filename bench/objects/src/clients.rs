//! Connections that send batches of requests whose replies are known, in one thread.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};

/// A request and its whole reply.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) request: Vec<u8>,
    pub(crate) reply: Vec<u8>,
}

impl Exchange {
    /// A classic get that answers this value.
    pub(crate) fn get(key: &str, value: &str) -> Self {
        Self {
            request: format!("get {key}\r\n").into_bytes(),
            reply: format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len()).into_bytes(),
        }
    }

    /// A command of Redis.
    pub(crate) fn resp(words: &[&str], reply: &str) -> Self {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
        }
        Self { request: request.into_bytes(), reply: reply.as_bytes().to_vec() }
    }
}

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Clients {
    streams: Vec<TcpStream>,
    request: Vec<u8>,
    wanted: Vec<Vec<u8>>,
    got: Vec<u8>,
}

impl Clients {
    pub(crate) fn open(address: &str, count: usize) -> Result<Self> {
        let streams = (0..count).map(|_| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        let streams = streams.collect::<Result<_>>()?;
        Ok(Self { streams, request: Vec::new(), wanted: vec![Vec::new(); count], got: Vec::new() })
    }

    /// Sends `count` exchanges, in batches of `depth` on each connection, and compares all replies.
    ///
    /// # Errors
    /// A connection fails, or a reply is another one.
    pub(crate) fn run(
        &mut self,
        count: usize,
        depth: usize,
        mut next: impl FnMut() -> Exchange,
    ) -> Result<()> {
        let mut left = count;
        while left > 0 {
            for (stream, wanted) in self.streams.iter_mut().zip(&mut self.wanted) {
                self.request.clear();
                wanted.clear();
                for _ in 0..depth.min(left) {
                    let exchange = next();
                    self.request.extend_from_slice(&exchange.request);
                    wanted.extend_from_slice(&exchange.reply);
                    left -= 1;
                }
                stream.write_all(&self.request)?;
            }
            for (stream, wanted) in self.streams.iter_mut().zip(&self.wanted) {
                self.got.resize(wanted.len(), 0);
                stream.read_exact(&mut self.got).context("the server closed a connection")?;
                ensure!(self.got == *wanted, "an unexpected reply: {}", shown(&self.got));
            }
        }
        Ok(())
    }
}

/// Lines of `stats`, with an argument.
pub(crate) fn stat(address: &str, argument: &str, name: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(format!("stats {argument}\r\nquit\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("stats {argument} has no {name}"))?.parse().context("no whole number")
}

fn shown(reply: &[u8]) -> String {
    String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned()
}
