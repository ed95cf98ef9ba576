//! Which server answers at an address, as it says itself.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::driver::Peer;

/// A server that says nothing for this long is not named.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most bytes of its answer.
const ANSWER_MAX: usize = 1 << 16;

/// The name and the version of a server that speaks the text protocol; None: it does not say.
pub(crate) fn identity(peer: &Peer) -> Option<String> {
    let mut socket = peer.connect().ok()?;
    socket.set_nonblocking(false).ok()?;
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    socket.set_write_timeout(Some(PATIENCE)).ok()?;
    socket.write_all(b"stats cattlegrid\r\nversion\r\n").ok()?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while answer.len() < ANSWER_MAX {
        let len = socket.read(&mut buffer).unwrap_or_default();
        answer.extend_from_slice(&buffer[..len]);
        let name = name_in(&String::from_utf8_lossy(&answer));
        if len == 0 || name.is_some() {
            return name;
        }
    }
    None
}

/// The name in what was answered so far: that of `stats cattlegrid`, otherwise what `version` says.
fn name_in(answer: &str) -> Option<String> {
    let mut lines = answer.split_inclusive('\n').filter_map(|line| line.strip_suffix("\r\n"));
    lines.find_map(|line| {
        if let Some(version) = line.strip_prefix("STAT version ") {
            return Some(format!("cattlegrid {version}"));
        }
        let version = line.strip_prefix("VERSION ")?;
        let is_memcached = version.chars().all(|c| c.is_ascii_digit() || c == '.');
        Some(if is_memcached { format!("memcached {version}") } else { version.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say() {
        for (answer, expected) in [
            ("STAT version 0.1.0\r\nSTAT shards 4\r\n", Some("cattlegrid 0.1.0")),
            ("ERROR\r\nVERSION 1.6.45\r\n", Some("memcached 1.6.45")),
            ("END\r\nVERSION df-1.2\r\n", Some("df-1.2")),
            ("END\r\nVERSION 1.6", None),
            ("ERROR\r\n", None),
            ("", None),
        ] {
            assert_eq!(name_in(answer).as_deref(), expected, "{answer}");
        }
    }
}
