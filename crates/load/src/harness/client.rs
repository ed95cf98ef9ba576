//! A plain client: one connection, one command at a time.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;

use cattlegrid_protocol::{ParsedResponse, Response, parse_response, request};
use socket2::SockRef;

/// A connected client.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    /// Bytes that have arrived and are not parsed yet.
    input: Vec<u8>,
}

/// A server that says nothing for this long is lost.
const PATIENCE: Duration = Duration::from_secs(45);

impl Client {
    /// Connects; each later read waits 45 seconds at most.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, input: Vec::new() })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Passes the next element of a reply, and its bytes, to `take`, and returns the result.
    ///
    /// # Errors
    /// The system's error; `InvalidData` for bytes that are no reply of memcached's protocol.
    pub fn next<T>(&mut self, take: impl FnOnce(Response<'_>, &[u8]) -> T) -> io::Result<T> {
        loop {
            match parse_response(&self.input) {
                ParsedResponse::Complete { response, used } => {
                    let taken = take(response, &self.input[..used]);
                    self.input.drain(..used);
                    return Ok(taken);
                }
                ParsedResponse::Partial { .. } => self.receive()?,
                ParsedResponse::Broken(why) => {
                    let said = self.input[..self.input.len().min(80)].escape_ascii();
                    return Err(io::Error::new(ErrorKind::InvalidData, format!("{why:?}: {said}")));
                }
            }
        }
    }

    /// The next element as text, with its line ends.
    ///
    /// # Errors
    /// As [`Client::next`].
    pub fn line(&mut self) -> io::Result<String> {
        self.next(|_, bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// The values of those keys that are there, with their keys.
    ///
    /// # Errors
    /// As [`Client::next`]; `InvalidData` also for a reply that is none to a `get`.
    pub fn get<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>) -> io::Result<Vec<(String, String)>> {
        let mut command = Vec::new();
        request::get(&mut command, "get", keys.into_iter().map(str::as_bytes));
        self.send(command)?;
        let mut found = Vec::new();
        self.until_end(|response| match response {
            Response::Value { key, data, .. } => {
                found.push((text(key), text(data)));
                true
            }
            _ => false,
        })?;
        Ok(found)
    }

    /// The statistics of `stats` and these words.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn stats(&mut self, words: &str) -> io::Result<Vec<(String, String)>> {
        self.send(format!("stats {words}\r\n"))?;
        let mut found = Vec::new();
        self.until_end(|response| match response {
            Response::Stat { name, value } => {
                found.push((text(name), text(value)));
                true
            }
            _ => false,
        })?;
        Ok(found)
    }

    /// Reads up to `END`; `take` says whether an element belongs to the reply.
    fn until_end(&mut self, mut take: impl FnMut(Response<'_>) -> bool) -> io::Result<()> {
        loop {
            let is_end = self.next(|response, bytes| {
                if response == Response::End {
                    return Ok(true);
                }
                if take(response) { Ok(false) } else { Err(bytes.escape_ascii().to_string()) }
            })?;
            match is_end {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(said) => return Err(io::Error::new(ErrorKind::InvalidData, said)),
            }
        }
    }

    /// The next bytes are these.
    ///
    /// # Panics
    /// When they are not, or do not come.
    pub fn expect(&mut self, text: &str) {
        while self.input.len() < text.len() {
            self.receive().unwrap_or_else(|error| panic!("{error} after {:?} before {text:?}", self.said()));
        }
        assert_eq!(String::from_utf8_lossy(&self.input[..text.len()]), text);
        self.input.drain(..text.len());
    }

    /// Sends a command, whose reply is `answer`.
    ///
    /// # Panics
    /// As [`Client::expect`].
    pub fn ask(&mut self, command: &str, answer: &str) {
        self.send(command).unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.expect(answer);
    }

    /// The server closes the connection now, having said nothing more.
    ///
    /// # Panics
    /// When it does not.
    pub fn expect_end(&mut self) {
        match self.receive() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => assert_eq!(self.said(), ""),
            other => panic!("{other:?}, {:?}", self.said()),
        }
    }

    /// Nothing has arrived so far.
    ///
    /// # Panics
    /// When something has.
    pub fn expect_nothing(&mut self) {
        assert_eq!(self.said(), "");
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        assert_eq!(peeked.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        self.stream.set_nonblocking(false).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Sends no more; the server sees the end.
    ///
    /// # Errors
    /// The system's.
    pub fn end(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Cuts the connection: the server gets a reset.
    ///
    /// # Errors
    /// The system's.
    pub fn reset(self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    fn said(&self) -> String {
        self.input.escape_ascii().to_string()
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(received) => {
                    self.input.extend_from_slice(&buffer[..received]);
                    return Ok(());
                }
                // A process that was stopped and goes on: a read with a time limit does not start again by
                // itself.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
