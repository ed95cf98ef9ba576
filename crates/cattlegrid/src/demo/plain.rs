//! A plain client: one connection, one command at a time.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::SockRef;

use super::DemoError;
use cattlegrid_load::{BenchError, Fault, Meter};
use cattlegrid_protocol::{ParsedResponse, Response, Status, parse_response, request};

/// A connected client.
pub(super) struct Plain<'m> {
    stream: TcpStream,
    /// What has arrived and is not read yet.
    input: Vec<u8>,
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
        Ok(Self { stream, input: Vec::new(), meter })
    }

    /// Stores a value; `exptime`: in seconds, 0 for ever.
    pub(super) fn set(&mut self, key: &str, value: &str, exptime: u32) -> Result<(), DemoError> {
        let mut command = Vec::new();
        request::set(&mut command, key.as_bytes(), 0, exptime, value.as_bytes());
        self.send(&command)?;
        self.next(|response, input| match response {
            Response::Status(Status::Stored) => Ok(()),
            _ => Err(unexpected(String::from_utf8_lossy(input).into_owned())),
        })?
    }

    /// Sends a command; its reply must be this line.
    pub(super) fn expect(&mut self, command: &str, reply: &str) -> Result<(), DemoError> {
        self.send(command.as_bytes())?;
        let line = self.next(|_, input| String::from_utf8_lossy(input).trim_end().to_owned())?;
        if line == reply { Ok(()) } else { Err(unexpected(line)) }
    }

    /// The values of those keys that are there, with their keys.
    pub(super) fn get(&mut self, keys: &[String]) -> Result<Vec<(String, String)>, DemoError> {
        let mut line = Vec::new();
        request::get(&mut line, "get", keys.iter().map(String::as_bytes));
        self.send(&line)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut found = Vec::new();
        loop {
            let value = self.next(|response, input| match response {
                Response::Value { key, data, .. } => Ok(Some((text(key), text(data)))),
                Response::End => Ok(None),
                _ => Err(unexpected(text(input))),
            })??;
            match value {
                Some(value) => found.push(value),
                None => return Ok(found),
            }
        }
    }

    /// Cuts the connection: the server gets a reset.
    pub(super) fn kill(self) -> Result<(), DemoError> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).map_err(|error| lost(&error))
    }

    fn send(&mut self, request: &[u8]) -> Result<(), DemoError> {
        if self.meter.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted.into());
        }
        self.stream.write_all(request).map_err(|error| lost(&error))
    }

    /// What `take` makes of the next element of a reply and of its bytes.
    fn next<T>(&mut self, take: impl FnOnce(Response<'_>, &[u8]) -> T) -> Result<T, DemoError> {
        loop {
            match parse_response(&self.input) {
                ParsedResponse::Complete { response, used } => {
                    self.meter.answered.fetch_add(1, Ordering::Relaxed);
                    let taken = take(response, &self.input[..used]);
                    self.input.drain(..used);
                    return Ok(taken);
                }
                ParsedResponse::Partial { .. } => self.receive()?,
                ParsedResponse::Broken(_) => {
                    return Err(unexpected(String::from_utf8_lossy(&self.input).into_owned()));
                }
            }
        }
    }

    fn receive(&mut self) -> Result<(), DemoError> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(received) => {
                self.input.extend_from_slice(&buffer[..received]);
                Ok(())
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
