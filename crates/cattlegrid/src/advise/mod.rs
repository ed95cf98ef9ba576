//! `cattlegrid advise`: watches a running server for a while, and prints the rule file that fits its traffic.
//!
//! It is a watcher like any other (`watch fetchers mutations`): it changes nothing, and lines for which it is too slow are left out and counted.

mod report;
mod seen;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use cattlegrid_server::time::nanos;

use seen::{Line, Seen};

/// For how long a server may take to be reached and to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line: keys are 250 bytes, escaped three times as many.
const LINE_MAX: usize = 4096;

/// Watches the server for this long, and says what would fit.
///
/// # Errors
/// The server cannot be reached or refuses to be watched. The text begins with its address.
pub(crate) fn advise(address: &str, seconds: u64) -> Result<String, String> {
    let failed = |error: io::Error| format!("{address}: {error}");
    let mut reader = watch(address).map_err(failed)?;
    let mut seen = Seen::default();
    let end = nanos().saturating_add(seconds.saturating_mul(1_000_000_000));
    let mut line = Vec::new();
    loop {
        let left = end.saturating_sub(nanos());
        if left == 0 {
            break;
        }
        let wait = Duration::from_nanos(left).max(Duration::from_millis(1));
        reader.get_ref().set_read_timeout(Some(wait)).map_err(failed)?;
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => return Err(format!("{address}: the server has closed the connection")),
            Ok(_) => {
                seen.note(Line::parse(&String::from_utf8_lossy(&line)));
                line.clear();
            }
            // A part of a line stays: its rest comes.
            Err(error) if is_timeout(&error) && line.len() < LINE_MAX => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(report::report(&seen, address, seconds))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection that watches.
fn watch(address: &str) -> io::Result<BufReader<TcpStream>> {
    let mut last = io::Error::other("no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(b"watch fetchers mutations\r\n")?;
                let mut reader = BufReader::with_capacity(256 << 10, stream);
                let mut answer = String::new();
                reader.read_line(&mut answer)?;
                return match answer.trim_end() {
                    "OK" => Ok(reader),
                    "" => Err(io::Error::other("it closes the connection")),
                    other => Err(io::Error::other(format!("it does not let itself be watched: {other}"))),
                };
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
