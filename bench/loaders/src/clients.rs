//! Clients: 64 connections, each of which asks for the next key when its value has come; and a connection
//! that measures hits.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::harness::Client;
use cattlegrid_server::poller::{Poller, Wish};
use cattlegrid_server::time::Clock;
use hdrhistogram::Histogram;

/// Connections that ask at the same time.
pub(crate) const CONNECTIONS: usize = 64;
/// Between two hits.
const PAUSE: Duration = Duration::from_micros(500);
/// A server that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gets `count` keys, `prefix` and a number each, over all connections; every value must be the number.
pub(crate) fn get_all(address: &str, prefix: &str, count: usize) -> Result<()> {
    let mut poller = Poller::new()?;
    let mut clients = Vec::new();
    for token in 0..CONNECTIONS.min(count) {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        poller.add(&stream, token as u64, Wish::Read)?;
        clients.push(AskingClient { stream, number: 0, input: Vec::new() });
    }
    let mut next = 0..count;
    for client in &mut clients {
        client.ask(prefix, &mut next)?;
    }
    let mut left = count;
    let mut ready = Vec::new();
    while left > 0 {
        poller.wait(Some(PATIENCE), |token| ready.push(token as usize))?;
        if ready.is_empty() {
            bail!("{left} values did not come");
        }
        for token in ready.drain(..) {
            if clients[token].receive(prefix)? {
                left -= 1;
                clients[token].ask(prefix, &mut next)?;
            }
        }
    }
    Ok(())
}

struct AskingClient {
    stream: TcpStream,
    number: usize,
    input: Vec<u8>,
}

impl AskingClient {
    fn ask(&mut self, prefix: &str, next: &mut std::ops::Range<usize>) -> Result<()> {
        if let Some(number) = next.next() {
            self.number = number;
            // So short a line fits.
            self.stream.write_all(format!("get {prefix}{number}\r\n").as_bytes())?;
        }
        Ok(())
    }

    /// Whether the value is there.
    fn receive(&mut self, prefix: &str) -> Result<bool> {
        let mut buffer = [0; 512];
        let received = match self.stream.read(&mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.input.extend_from_slice(&buffer[..received]);
        if received > 0 && !self.input.ends_with(b"END\r\n") {
            return Ok(false);
        }
        // The value is what follows the rule's prefix.
        let (_, id) = format!("{prefix}{}", self.number)
            .split_once(':')
            .map(|(kind, id)| (kind.to_owned(), id.to_owned()))
            .context("keys have a colon")?;
        let expected = format!("VALUE {prefix}{} 0 {}\r\n{id}\r\nEND\r\n", self.number, id.len());
        if self.input != expected.as_bytes() {
            bail!("{:?} instead of {expected:?}", String::from_utf8_lossy(&self.input));
        }
        self.input.clear();
        Ok(true)
    }
}

/// Gets a stored key again and again until `stop`; the times.
pub(crate) fn measure_hits(address: &str, key: &str, stop: &AtomicBool) -> Result<Histogram<u64>> {
    let clock = Clock::new();
    let mut client = Client::connect(address)?;
    // A nanosecond to a minute.
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    while !stop.load(Ordering::Relaxed) {
        let asked = clock.now();
        if client.get([key])?.len() != 1 {
            bail!("{key} is missing");
        }
        times.saturating_record(clock.now().duration_since(asked).as_nanos() as u64);
        thread::park_timeout(PAUSE);
    }
    Ok(times)
}

/// Stores `count` keys, `prefix` and a number each, with the value that [`get_all`] expects.
pub(crate) fn store_all(address: &str, prefix: &str, count: usize) -> Result<()> {
    let mut client = Client::connect(address)?;
    for number in 0..count {
        let key = format!("{prefix}{number}");
        let (_, id) = key.split_once(':').context("keys have a colon")?;
        client.ask(&format!("set {key} 0 0 {}\r\n{id}\r\n", id.len()), "STORED\r\n");
    }
    Ok(())
}
