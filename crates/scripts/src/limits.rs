//! Limits of a call.

use std::fmt;
use std::time::Duration;

/// Limits of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The processor time from the decoding of the state to its encoding. The watchdog checks at intervals of
    /// half of it, of at least 250 us and at most 50 ms. So a call ends after one to one and a half times
    /// this limit.
    pub time: Duration,
    /// The memory of a VM beyond that of its loaded sources, in bytes.
    pub memory_bytes: usize,
    /// The longest plain state, in bytes.
    pub state_max: usize,
}

impl Default for Limits {
    /// The defaults: 10 ms, 16 MiB, 64 KiB.
    fn default() -> Self {
        Self { time: Duration::from_millis(10), memory_bytes: 16 << 20, state_max: 64 << 10 }
    }
}

/// A limit that a call exceeded. The VM that ran the call is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    Time,
    Memory,
}

impl Breach {
    /// The text of the call's error, after its name.
    pub(crate) fn text(self, limits: &Limits) -> String {
        match self {
            Self::Time => format!("took longer than {}", Milliseconds(limits.time)),
            Self::Memory => format!("needed more than {}", ByteCount(limits.memory_bytes)),
        }
    }
}

/// A time in messages: `1.5 ms`.
pub(crate) struct Milliseconds(pub(crate) Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.as_micros() as f64 / 1000.0)
    }
}

struct ByteCount(usize);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_breaches() {
        let text = |time, memory_bytes, breach: Breach| {
            breach.text(&Limits { time, memory_bytes, ..Limits::default() })
        };
        assert_eq!(text(Duration::from_millis(10), 1, Breach::Time), "took longer than 10 ms");
        assert_eq!(text(Duration::from_micros(1500), 1, Breach::Time), "took longer than 1.5 ms");
        assert_eq!(text(Duration::ZERO, 16 << 20, Breach::Memory), "needed more than 16 MiB");
        assert_eq!(text(Duration::ZERO, 100 << 10, Breach::Memory), "needed more than 100 KiB");
        assert_eq!(text(Duration::ZERO, (1 << 20) + 1, Breach::Memory), "needed more than 1048577 bytes");
        assert_eq!(text(Duration::ZERO, 0, Breach::Memory), "needed more than 0 bytes");
    }
}
