//! How much a call may use.

use std::fmt;
use std::time::Duration;

/// How much a call may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time on the processor, from the decoding of the state to its encoding. Calls are looked
    /// for in halves of it, of at least 250 us and at most 50 ms: a call ends between once and one and a half times this.
    pub time: Duration,
    /// Memory of a VM besides what it has when its sources are loaded, in bytes.
    pub memory_bytes: usize,
    /// Longest plain state in bytes.
    pub state_max: usize,
}

impl Default for Limits {
    /// 10 ms, 16 MiB, 64 KiB.
    fn default() -> Self {
        Self { time: Duration::from_millis(10), memory_bytes: 16 << 20, state_max: 64 << 10 }
    }
}

/// A limit that a call went over: the VM that ran it is thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breach {
    Time,
    Memory,
}

impl Breach {
    /// What the call answers, after its name.
    pub(crate) fn text(self, limits: &Limits) -> String {
        match self {
            Self::Time => format!("took longer than {}", Milliseconds(limits.time)),
            Self::Memory => format!("needed more than {}", Bytes(limits.memory_bytes)),
        }
    }
}

/// A time as texts have it: `1.5 ms`.
pub(crate) struct Milliseconds(pub(crate) Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0.as_micros() as f64 / 1000.0)
    }
}

struct Bytes(usize);

impl fmt::Display for Bytes {
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
