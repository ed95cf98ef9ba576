//! Connections to the shadow, one for each client of the watched server: a look-up that the shadow holds keeps no other client waiting.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read as _, Write as _};

use super::super::link::TcpOrUnix;
use super::replay::{Send, What};

/// Connections at most; further clients share them.
const PIPES_MAX: u64 = 500;
/// Commands without a reply at most; further ones are left out.
const OPEN_MAX: usize = 500_000;
/// Bytes to be sent that wait at most, of all connections.
const UNSENT_MAX: usize = 64 << 20;
/// Longest line of a reply.
const LINE_MAX: usize = 4096;

/// What a reply is to.
#[derive(Debug)]
enum Asked {
    Get { id: u64, key: Box<[u8]>, is_hit: bool },
    Other,
}

#[derive(Debug)]
struct Pipe {
    socket: TcpOrUnix,
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of a value that are still to come.
    skip: usize,
    asked: VecDeque<Asked>,
}

#[derive(Debug)]
pub(super) struct Pipes {
    address: String,
    pipes: HashMap<u64, Pipe>,
    buffer: Vec<u8>,
    open: usize,
    unsent: usize,
    /// Commands that were left out, since the shadow is too slow.
    pub(super) left_out: u64,
    /// Errors that it has answered, and the last of them.
    pub(super) errors: u64,
    pub(super) last_error: String,
}

impl Pipes {
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            pipes: HashMap::new(),
            buffer: vec![0; 64 << 10],
            open: 0,
            unsent: 0,
            left_out: 0,
            errors: 0,
            last_error: String::new(),
        }
    }

    /// Queues a command. False: there is no room for it.
    ///
    /// # Errors
    /// There is no connection for it.
    pub(super) fn send(&mut self, send: Send) -> io::Result<bool> {
        if self.open >= OPEN_MAX || self.unsent >= UNSENT_MAX {
            self.left_out += 1;
            return Ok(false);
        }
        let slot = send.connection % PIPES_MAX;
        if !self.pipes.contains_key(&slot) {
            let socket = TcpOrUnix::connect(&self.address)?;
            socket.do_not_wait()?;
            let pipe =
                Pipe { socket, unsent: Vec::new(), received: Vec::new(), skip: 0, asked: VecDeque::new() };
            self.pipes.insert(slot, pipe);
        }
        let Some(pipe) = self.pipes.get_mut(&slot) else { return Ok(false) };
        let before = pipe.unsent.len();
        pipe.queue(send);
        self.unsent += pipe.unsent.len() - before;
        self.open += 1;
        Ok(true)
    }

    /// Commands without a reply.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Sends and receives what can be; each reply to a look-up is given to `answered` with its key, its number and whether it is a hit.
    ///
    /// # Errors
    /// A connection has ended.
    pub(super) fn turn(&mut self, mut answered: impl FnMut(&[u8], u64, bool)) -> io::Result<()> {
        for pipe in self.pipes.values_mut() {
            let before = pipe.unsent.len();
            pipe.write()?;
            self.unsent -= before - pipe.unsent.len();
            if pipe.asked.is_empty() {
                continue;
            }
            loop {
                let count = match pipe.socket.read(&mut self.buffer) {
                    Ok(0) => return Err(io::Error::other("it has closed a connection")),
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                let before = pipe.asked.len();
                pipe.take(&self.buffer[..count], &mut answered, |error| {
                    self.errors += 1;
                    error.clone_into(&mut self.last_error);
                })?;
                self.open -= before - pipe.asked.len();
            }
        }
        Ok(())
    }
}

impl Pipe {
    fn queue(&mut self, Send { key, what, .. }: Send) {
        // Keys that a text line cannot have come in Base64, and need meta commands.
        let is_plain = key.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        let (name, flag) = if is_plain { (key.to_vec(), "") } else { (base64(&key), " b") };
        let out = &mut self.unsent;
        let asked = match what {
            What::Get(id) => {
                out.extend_from_slice(if is_plain { b"get " } else { b"mg " });
                out.extend_from_slice(&name);
                out.extend_from_slice(if is_plain { b"\r\n" } else { b" b v\r\n" });
                Asked::Get { id, key, is_hit: false }
            }
            What::Store(value) => {
                out.extend_from_slice(b"ms ");
                out.extend_from_slice(&name);
                let mode = if value.is_add { " ME" } else { "" };
                let line = format!(" {}{flag} T{}{mode}\r\n", value.size, value.ttl);
                out.extend_from_slice(line.as_bytes());
                out.resize(out.len() + value.size as usize, b'x');
                out.extend_from_slice(b"\r\n");
                Asked::Other
            }
            What::Delete => {
                out.extend_from_slice(b"md ");
                out.extend_from_slice(&name);
                out.extend_from_slice(flag.as_bytes());
                out.extend_from_slice(b"\r\n");
                Asked::Other
            }
        };
        self.asked.push_back(asked);
    }

    fn write(&mut self) -> io::Result<()> {
        let mut done = 0;
        while done < self.unsent.len() {
            match self.socket.write(&self.unsent[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..done);
        Ok(())
    }

    fn take(
        &mut self,
        mut bytes: &[u8],
        answered: &mut impl FnMut(&[u8], u64, bool),
        mut failed: impl FnMut(&str),
    ) -> io::Result<()> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { break };
            self.received.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.received);
            let line = String::from_utf8_lossy(&line);
            self.line(line.trim_end(), answered, &mut failed)?;
        }
        self.received.extend_from_slice(bytes);
        if self.received.len() > LINE_MAX {
            Err(io::Error::other("it sends a line without an end"))
        } else {
            Ok(())
        }
    }

    fn line(
        &mut self,
        line: &str,
        answered: &mut impl FnMut(&[u8], u64, bool),
        failed: &mut impl FnMut(&str),
    ) -> io::Result<()> {
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        let is_error = matches!(first, "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR");
        if is_error {
            failed(line);
        }
        let Some(Asked::Get { is_hit, .. }) = self.asked.front_mut() else {
            let Some(_) = self.asked.pop_front() else {
                return Err(io::Error::other(format!("it says {line:?} unasked")));
            };
            return Ok(());
        };
        match first {
            "VALUE" => {
                *is_hit = true;
                let size: usize = words.nth(2).and_then(|size| size.parse().ok()).unwrap_or(0);
                self.skip = size + 2;
                return Ok(());
            }
            "VA" => {
                *is_hit = true;
                self.skip = words.next().and_then(|size| size.parse().ok()).unwrap_or(0) + 2;
            }
            "END" | "EN" => {}
            _ if is_error => {}
            _ => return Err(io::Error::other(format!("it answers a get with {line:?}"))),
        }
        if let Some(Asked::Get { id, key, is_hit }) = self.asked.pop_front() {
            answered(&key, id, is_hit);
        }
        Ok(())
    }
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let number =
            part.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place > part.len() { b'=' } else { digit });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_its_standard() {
        for (text, code) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("hello w", "aGVsbG8gdw=="),
        ] {
            assert_eq!(base64(text.as_bytes()), code.as_bytes());
        }
    }

    #[test]
    fn replies_are_read_however_they_are_cut() {
        let replies = b"VALUE a 0 5\r\nEND\r\n\r\nEND\r\nHD\r\nEND\r\nVA 2 \r\nhi\r\nSERVER_ERROR busy\r\n";
        for piece in [1, 2, 3, 7, 100] {
            let (own, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let get = |id| Asked::Get { id, key: Box::from(&b"k"[..]), is_hit: false };
            let asked = VecDeque::from([get(0), Asked::Other, get(1), get(2), get(3)]);
            let mut pipe =
                Pipe { socket: TcpOrUnix::Unix(own), unsent: vec![], received: vec![], skip: 0, asked };
            let (mut hits, mut errors) = (vec![], 0);
            for part in replies.chunks(piece) {
                let mut note = |_: &[u8], id: u64, is_hit: bool| hits.push((id, is_hit));
                pipe.take(part, &mut note, |_| errors += 1).unwrap();
            }
            assert_eq!((&hits[..], errors), (&[(0, true), (1, false), (2, true), (3, false)][..], 1));
            assert!(pipe.take(b"HD\r\n", &mut |_, _, _| {}, |_| {}).is_err(), "nothing was asked");
        }
    }
}
