//! Connections to servers: TCP or a Unix socket, with TLS and a login if needed.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::time::Duration;

use cattlegrid_config::{AdviseLogin, AdviseTls};
use cattlegrid_load::Tls;

use crate::socket::Socket;

/// Longest time for connecting to a server, and for each of its answers.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of a reply to `stats`.
const STATS_MAX: u64 = 4 << 20;

/// A connection: bytes in and out, with a limit on how long a read takes.
pub(super) struct ServerStream {
    bytes: Box<dyn ReadWrite>,
    /// The socket below.
    socket: Socket,
}

trait ReadWrite: Read + Write + Send {}

impl<S: Read + Write + Send> ReadWrite for S {}

impl ServerStream {
    /// Limits the time of each read.
    pub(super) fn limit(&self, wait: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(wait)
    }
}

impl Read for ServerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl Write for ServerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.bytes.flush()
    }
}

/// A server's address, with the credentials to connect.
#[derive(Debug, Clone)]
pub(super) struct WatchedServer {
    pub(super) address: String,
    tls: Option<Tls>,
    /// `user password`.
    login: Option<String>,
}

impl WatchedServer {
    /// A server without TLS and login.
    pub(super) fn plain(address: &str) -> Self {
        Self { address: address.to_owned(), tls: None, login: None }
    }

    /// # Errors
    /// Which file cannot be used, and why.
    pub(super) fn new(
        address: &str,
        tls: Option<&AdviseTls>,
        login: Option<&AdviseLogin>,
    ) -> Result<Self, String> {
        let tls = tls.map(|tls| Tls::new(address, tls.ca.as_deref(), false));
        let tls = tls.transpose().map_err(|error| error.to_string())?;
        let login = login.map(|AdviseLogin { user, password_file }| {
            let wrong = |what: &str| format!("--password-file {}: {what}", password_file.display());
            let text = std::fs::read_to_string(password_file).map_err(|error| wrong(&error.to_string()))?;
            let password = text.lines().next().unwrap_or_default();
            if password.is_empty() {
                return Err(wrong("its first line must be the password"));
            }
            Ok(format!("{user} {password}"))
        });
        Ok(Self { address: address.to_owned(), tls, login: login.transpose()? })
    }

    /// # Errors
    /// The server cannot be reached, does not speak TLS, or refuses the login.
    pub(super) fn connect(&self) -> io::Result<ServerStream> {
        let below = Socket::connect(&self.address, PATIENCE)?;
        let socket = below.try_clone()?;
        let bytes: Box<dyn ReadWrite> = match &self.tls {
            None => Box::new(below),
            Some(tls) => Box::new(tls.over(below)?),
        };
        let mut stream = ServerStream { bytes, socket };
        if let Some(login) = &self.login {
            stream.write_all(format!("set auth 0 0 {}\r\n{login}\r\n", login.len()).as_bytes())?;
            stream.flush()?;
            let answer = first_line(&mut stream)?;
            if answer != "STORED" {
                return Err(io::Error::other(format!("it refuses the login: {answer}")));
            }
        }
        Ok(stream)
    }

    /// Reads `stats` of a group: the values by name.
    pub(super) fn stats(&self, group: &str) -> io::Result<ServerStats> {
        let mut stream = self.connect()?;
        stream.write_all(format!("stats{group}\r\n").as_bytes())?;
        stream.flush()?;
        let mut reader = BufReader::new(stream.take(STATS_MAX));
        let (mut reply, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::Error::other("it closes the connection"));
            }
            match line.trim_end() {
                "END" => break,
                stat if stat.starts_with("STAT ") => reply.push_str(&line),
                other => return Err(io::Error::other(format!("it answers `stats` with: {other}"))),
            }
        }
        let pair = |line: &str| {
            let (name, value) = line.strip_prefix("STAT ")?.split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Ok(ServerStats(reply.lines().filter_map(pair).collect()))
    }
}

/// The reply to `stats`.
#[derive(Debug, Default)]
pub(super) struct ServerStats(Vec<(String, String)>);

impl ServerStats {
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// The value as a number; 0 if it is missing.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// Reads a line byte by byte, so that nothing after it is consumed.
pub(super) fn first_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 4096 {
        if stream.read(&mut byte)? == 0 {
            return Err(io::Error::other("it closes the connection"));
        }
        if byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

pub(super) fn problem_of(address: &str, error: &io::Error) -> String {
    if is_timeout(error) {
        format!("{address}: it does not answer within {} s", PATIENCE.as_secs())
    } else {
        format!("{address}: {error}")
    }
}

pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
