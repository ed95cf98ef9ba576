//! A plain client: one connection, one command at a time.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;

use super::DemoError;
use cattlegrid_load::{BenchError, Fault, Meter};

/// A connected client.
pub(super) struct Plain<'m> {
    stream: BufReader<TcpStream>,
    meter: &'m Meter,
}

/// A server that says nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(30);

impl<'m> Plain<'m> {
    pub(super) fn open(address: &str, meter: &'m Meter) -> Result<Self, DemoError> {
        let connect = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = connect().map_err(|error| lost(&error))?;
        Ok(Self { stream: BufReader::new(stream), meter })
    }

    /// Stores a value; `exptime`: in seconds, 0 for ever.
    pub(super) fn set(&mut self, key: &str, value: &str, exptime: u32) -> Result<(), DemoError> {
        self.expect(&format!("set {key} 0 {exptime} {}\r\n{value}\r\n", value.len()), "STORED")
    }

    /// Sends a command; its reply must be this line.
    pub(super) fn expect(&mut self, command: &str, reply: &str) -> Result<(), DemoError> {
        self.send(command)?;
        let line = self.line()?;
        if line == reply { Ok(()) } else { Err(unexpected(line)) }
    }

    /// The values of those keys that are there, with their keys.
    pub(super) fn get(&mut self, keys: &[String]) -> Result<Vec<(String, String)>, DemoError> {
        self.send(&format!("get {}\r\n", keys.join(" ")))?;
        let mut found = Vec::new();
        loop {
            let line = self.line()?;
            let mut words = line.split(' ');
            match (words.next(), words.next(), words.next(), words.next().map(str::parse::<usize>)) {
                (Some("END"), None, ..) => return Ok(found),
                (Some("VALUE"), Some(key), Some(_), Some(Ok(bytes))) => {
                    let key = key.to_owned();
                    let mut data = vec![0; bytes + 2];
                    self.stream.read_exact(&mut data).map_err(|error| lost(&error))?;
                    data.truncate(bytes);
                    found.push((key, String::from_utf8_lossy(&data).into_owned()));
                }
                _ => return Err(unexpected(line)),
            }
        }
    }

    /// Cuts the connection: the server gets a reset.
    pub(super) fn kill(self) -> Result<(), DemoError> {
        let stream = self.stream.into_inner();
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).map_err(|error| lost(&error))
    }

    fn send(&mut self, text: &str) -> Result<(), DemoError> {
        if self.meter.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted.into());
        }
        self.stream.get_mut().write_all(text.as_bytes()).map_err(|error| lost(&error))
    }

    fn line(&mut self) -> Result<String, DemoError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err(lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {
                self.meter.answered.fetch_add(1, Ordering::Relaxed);
                Ok(line.trim_end().to_owned())
            }
            Err(error) => Err(lost(&error)),
        }
    }
}

fn lost(error: &io::Error) -> DemoError {
    BenchError::Lost(format!("a client's connection: {error}")).into()
}

fn unexpected(answer: String) -> DemoError {
    BenchError::Wrong(Fault::Unexpected { asked: "a command", answer }).into()
}
