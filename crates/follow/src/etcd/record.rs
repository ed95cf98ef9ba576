//! A node's record of itself for the others: `PREFIX/node/NAME`, under a lease.

use std::fmt::Write as _;

/// The first words of all records, with the format's version.
const MAGIC: &str = "cattlegrid 1 ";

/// Where a node is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeState {
    /// The node has not confirmed the log for the first time.
    #[default]
    Joining,
    /// The node serves.
    Up,
    /// The node leaves after SIGTERM.
    Draining,
}

/// A node, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Another one after each start.
    pub instance: u64,
    /// Where it is in its life.
    pub state: NodeState,
    /// Where clients reach it, `HOST:PORT`.
    pub address: String,
    /// The last revision of which it has said that it is obeyed.
    pub applied: u64,
    /// The node's `max_lag`, in milliseconds.
    pub max_lag_ms: u64,
    /// Age of its last confirmation when it wrote this, in milliseconds; `None`: it has none.
    pub lag_ms: Option<u64>,
    /// The node's release.
    pub release: String,
}

impl NodeState {
    /// The state's name for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Draining => "draining",
        }
    }
}

impl NodeRecord {
    /// The value that is written.
    pub fn text(&self) -> Vec<u8> {
        let Self { instance, state, address, applied, max_lag_ms, lag_ms, release } = self;
        let mut text = format!(
            "{MAGIC}{instance:016x}\nstate {}\naddress {address}\napplied {applied}\nmax_lag_ms {max_lag_ms}\nrelease {release}",
            state.name()
        );
        if let Some(lag_ms) = lag_ms {
            let _infallible = write!(text, "\nlag_ms {lag_ms}");
        }
        text.into_bytes()
    }

    /// Reads a value. Lines that are unknown are of later releases. `None`: it is not a node's.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut lines = text.lines();
        let instance = lines.next()?.strip_prefix(MAGIC)?.split(' ').next()?;
        let mut record = Self {
            instance: u64::from_str_radix(instance, 16).ok()?,
            state: NodeState::Up,
            address: String::new(),
            applied: 0,
            max_lag_ms: 0,
            lag_ms: None,
            release: String::new(),
        };
        for (name, value) in lines.filter_map(|line| line.split_once(' ')) {
            match name {
                "state" => {
                    let all = [NodeState::Joining, NodeState::Up, NodeState::Draining];
                    record.state = all.into_iter().find(|state| state.name() == value)?;
                }
                "address" => value.clone_into(&mut record.address),
                "applied" => record.applied = value.parse().ok()?,
                "max_lag_ms" => record.max_lag_ms = value.parse().ok()?,
                "lag_ms" => record.lag_ms = Some(value.parse().ok()?),
                "release" => value.clone_into(&mut record.release),
                _ => {}
            }
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (state, lag_ms) in
            [(NodeState::Joining, None), (NodeState::Up, Some(3)), (NodeState::Draining, Some(0))]
        {
            let record = NodeRecord {
                instance: 7,
                state,
                address: "10.0.0.1:11211".to_owned(),
                applied: 12,
                max_lag_ms: 3000,
                lag_ms,
                release: "0.1.0".to_owned(),
            };
            assert_eq!(NodeRecord::parse(&record.text()), Some(record.clone()));
            let later = [&record.text()[..], b"\nweight 3"].concat();
            assert_eq!(NodeRecord::parse(&later), Some(record));
        }
        for foreign in
            [&b""[..], b"hello", b"cattlegrid 2 1\nstate up", b"cattlegrid 1 1\nstate gone", b"\xff"]
        {
            assert_eq!(NodeRecord::parse(foreign), None);
        }
    }
}
