//! `cattlegrid advise`: watches a running server for a while, and prints the rule file that fits its traffic.
//!
//! It is a watcher like any other (`watch fetchers mutations`): it changes nothing, and lines for which it is too slow are left out and counted.

mod report;
mod seen;

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use cattlegrid_server::time::nanos;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use seen::{Line, Seen, Sorter};

/// For how long a server may take to be reached and to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line: keys are 250 bytes, escaped three times as many.
const LINE_MAX: usize = 4096;
/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(200);

/// What was advised.
#[derive(Debug)]
pub(crate) struct Advice {
    /// The rule file; empty: nothing was seen.
    pub(crate) text: String,
    /// Why the server was not watched, or not for as long as it was asked for.
    pub(crate) problem: Option<String>,
}

/// Watches the server for this long, and says what would fit. SIGINT and SIGTERM end it early, with what was seen so far; so does the end of the
/// connection.
pub(crate) fn advise(address: &str, seconds: u64) -> Advice {
    let mut reader = match watch(address) {
        Ok(reader) => reader,
        Err(error) => return Advice { text: String::new(), problem: Some(problem_of(address, &error)) },
    };
    let (mut seen, mut sorter) = (Seen::default(), Sorter::default());
    let begun = nanos();
    let mut problem =
        gather(&mut reader, begun.saturating_add(seconds.saturating_mul(1_000_000_000)), |line| {
            sorter.push(line, &mut seen);
        })
        .err()
        .map(|error| problem_of(address, &error));
    sorter.end(&mut seen);
    if seen.lines == 0 && problem.is_none() {
        problem = answers(address).err().map(|error| problem_of(address, &error));
    }
    let watched = nanos().saturating_sub(begun).div_ceil(1_000_000_000).min(seconds);
    let text = if seen.lines == 0 && problem.is_some() {
        String::new()
    } else {
        report::report(&seen, address, watched)
    };
    Advice { text, problem }
}

/// Gives each line to `note` until this time, or until a signal asks for the end.
fn gather(reader: &mut BufReader<TcpStream>, end: u64, mut note: impl FnMut(Line)) -> io::Result<()> {
    let asked: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    asked.thread_block()?;
    let signals = SignalFd::with_flags(&asked, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut line = Vec::new();
    loop {
        let left = end.saturating_sub(nanos());
        if left == 0 || signals.read_signal()?.is_some() {
            return Ok(());
        }
        let wait = Duration::from_nanos(left).clamp(Duration::from_millis(1), LOOK);
        reader.get_ref().set_read_timeout(Some(wait))?;
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => {
                return Err(io::Error::other(
                    "the server has closed the connection: this is what was seen before",
                ));
            }
            Ok(_) => {
                note(Line::parse(&String::from_utf8_lossy(&line)));
                line.clear();
            }
            // A part of a line stays: its rest comes.
            Err(error) if is_timeout(&error) && line.len() < LINE_MAX => {}
            Err(error) => return Err(error),
        }
    }
}

/// Asks the server for its version.
fn answers(address: &str) -> io::Result<()> {
    let mut stream = connect(address)?;
    stream.write_all(b"version\r\n")?;
    if stream.read(&mut [0])? == 0 { Err(io::Error::other("it closes the connection")) } else { Ok(()) }
}

fn problem_of(address: &str, error: &io::Error) -> String {
    if is_timeout(error) {
        format!("{address}: it does not answer within {} s", PATIENCE.as_secs())
    } else {
        format!("{address}: {error}")
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection that watches.
fn watch(address: &str) -> io::Result<BufReader<TcpStream>> {
    let mut stream = connect(address)?;
    stream.write_all(b"watch fetchers mutations\r\n")?;
    let mut reader = BufReader::with_capacity(256 << 10, stream);
    let mut answer = String::new();
    reader.read_line(&mut answer)?;
    match answer.trim_end() {
        "OK" => Ok(reader),
        "" => Err(io::Error::other("it closes the connection")),
        other => Err(io::Error::other(format!("it does not let itself be watched: {other}"))),
    }
}

/// A connection whose reads take [`PATIENCE`] at most.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
