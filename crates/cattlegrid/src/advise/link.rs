//! Connections to the servers: TCP or a Unix socket, TLS, a login.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cattlegrid_config::{AdviseLogin, AdviseTls};
use cattlegrid_load::Tls;

/// For how long a server may take to be reached and to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the reply to `stats`.
const STATS_MAX: u64 = 4 << 20;

/// Bytes in and out, with a limit on how long a read takes.
pub(super) trait Stream: Read + Write + Send {
    fn limit(&self, wait: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }
}

impl Stream for UnixStream {
    fn limit(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }
}

/// TLS over a socket, a handle of which sets the limit.
struct Encrypted<S> {
    stream: S,
    socket: TcpOrUnix,
}

impl<S: Read> Read for Encrypted<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl<S: Write> Write for Encrypted<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<S: Read + Write + Send> Stream for Encrypted<S> {
    fn limit(&self, wait: Duration) -> io::Result<()> {
        self.socket.limit(wait)
    }
}

/// A socket of either kind.
#[derive(Debug)]
pub(super) enum TcpOrUnix {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl TcpOrUnix {
    /// To host:port, `[address]:port` or the path of a Unix socket; reads and writes take [`PATIENCE`] at most.
    pub(super) fn connect(address: &str) -> io::Result<Self> {
        if address.contains('/') {
            let stream = UnixStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(Self::Unix(stream));
        }
        let mut last = io::Error::other("no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    stream.set_nodelay(true)?;
                    return Ok(Self::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Reads and writes do not wait from now on.
    pub(super) fn do_not_wait(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
        }
    }
}

impl Read for TcpOrUnix {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for TcpOrUnix {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for TcpOrUnix {
    fn limit(&self, wait: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.limit(wait),
            Self::Unix(stream) => stream.limit(wait),
        }
    }
}

/// A server, and how one comes in.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) address: String,
    tls: Option<Tls>,
    /// `user password`.
    login: Option<String>,
}

impl Server {
    /// Without TLS and login.
    pub(super) fn plain(address: &str) -> Self {
        Self { address: address.to_owned(), tls: None, login: None }
    }

    /// # Errors
    /// A file cannot be used; says which.
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
    /// It cannot be reached, does not speak TLS as it should, or refuses the login.
    pub(super) fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let socket = TcpOrUnix::connect(&self.address)?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let handle = socket.try_clone()?;
                Box::new(Encrypted { stream: tls.over(socket)?, socket: handle })
            }
        };
        if let Some(login) = &self.login {
            stream.write_all(format!("set auth 0 0 {}\r\n{login}\r\n", login.len()).as_bytes())?;
            stream.flush()?;
            let answer = first_line(&mut *stream)?;
            if answer != "STORED" {
                return Err(io::Error::other(format!("it refuses the login: {answer}")));
            }
        }
        Ok(stream)
    }

    /// What `stats` says, by name.
    pub(super) fn stats(&self, group: &str) -> io::Result<Stats> {
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
        Ok(Stats(reply.lines().filter_map(pair).collect()))
    }
}

/// The reply to `stats`.
#[derive(Debug, Default)]
pub(super) struct Stats(Vec<(String, String)>);

impl Stats {
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// 0 without it.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// Reads a line byte by byte, so that nothing behind it is lost.
pub(super) fn first_line(stream: &mut (impl Read + ?Sized)) -> io::Result<String> {
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
