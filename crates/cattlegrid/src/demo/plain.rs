//! A plain client that counts its replies.

use std::io;
use std::sync::atomic::Ordering;

use cattlegrid_load::harness::Client;
use cattlegrid_load::{BenchError, Fault, Meter};

use super::DemoError;

/// A connected client.
pub(super) struct PlainClient<'m> {
    client: Client,
    meter: &'m Meter,
}

impl<'m> PlainClient<'m> {
    pub(super) fn open(address: &str, meter: &'m Meter) -> Result<Self, DemoError> {
        Ok(Self { client: Client::connect(address).map_err(|error| failed(&error))?, meter })
    }

    /// Stores a value; `exptime`: in seconds, 0 for ever.
    pub(super) fn set(&mut self, key: &str, value: &str, exptime: u32) -> Result<(), DemoError> {
        self.expect(&format!("set {key} 0 {exptime} {}\r\n{value}\r\n", value.len()), "STORED")
    }

    /// Sends a command; its reply must be this line.
    pub(super) fn expect(&mut self, command: &str, reply: &str) -> Result<(), DemoError> {
        self.begin()?;
        let line =
            self.client.send(command).and_then(|()| self.client.line()).map_err(|error| failed(&error))?;
        self.count(1);
        if line.trim_end() == reply { Ok(()) } else { Err(unexpected(line)) }
    }

    /// The values of those keys that are there, with their keys.
    pub(super) fn get(&mut self, keys: &[String]) -> Result<Vec<(String, String)>, DemoError> {
        self.begin()?;
        let found = self.client.get(keys.iter().map(String::as_str)).map_err(|error| failed(&error))?;
        self.count(found.len() + 1);
        Ok(found)
    }

    /// A number of `stats` and these words.
    pub(super) fn stat(&mut self, words: &str, name: &str) -> Result<u64, DemoError> {
        self.begin()?;
        let lines = self.client.stats(words).map_err(|error| failed(&error))?;
        self.count(1);
        let line = lines.iter().find(|(known, _)| known == name);
        let number = line.and_then(|(_, number)| number.parse().ok());
        number.ok_or_else(|| DemoError::Broken(format!("stats {words} has no number {name}")))
    }

    /// A text of `stats` and these words.
    pub(super) fn text(&mut self, words: &str, name: &str) -> Result<String, DemoError> {
        self.begin()?;
        let lines = self.client.stats(words).map_err(|error| failed(&error))?;
        self.count(1);
        let line = lines.into_iter().find(|(known, _)| known == name);
        line.map(|(_, text)| text)
            .ok_or_else(|| DemoError::Broken(format!("stats {words} has no line {name}")))
    }

    /// Cuts the connection: the server gets a reset.
    pub(super) fn kill(self) -> Result<(), DemoError> {
        self.client.reset().map_err(|error| failed(&error))
    }

    fn begin(&self) -> Result<(), DemoError> {
        if self.meter.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted.into());
        }
        Ok(())
    }

    fn count(&self, replies: usize) {
        self.meter.answered.fetch_add(replies as u64, Ordering::Relaxed);
    }
}

fn failed(error: &io::Error) -> DemoError {
    match error.kind() {
        io::ErrorKind::InvalidData => unexpected(error.to_string()),
        _ => BenchError::Lost(format!("a client's connection: {error}")).into(),
    }
}

fn unexpected(answer: String) -> DemoError {
    BenchError::Wrong(Fault::Unexpected { asked: "a command", answer }).into()
}
