//! What workers write to stdout and stderr: always drained, passed on up to a rate, its end kept.

use std::collections::VecDeque;
use std::time::Instant;

/// The last bytes a process wrote.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        let over = (self.bytes.len() + bytes.len()).saturating_sub(TAIL);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Bytes that may be passed on: `rate` a second, with one second's worth in reserve.
#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: u64,
    left: u64,
    filled: Instant,
}

impl RateLimit {
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        Self { rate, left: rate, filled: now }
    }

    /// How many of `wanted` bytes may be passed on now.
    pub(crate) fn take(&mut self, wanted: usize, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.filled).as_millis() as u64;
        if passed > 0 {
            self.left = self.left.saturating_add(self.rate.saturating_mul(passed) / 1000).min(self.rate);
            self.filled = now;
        }
        let granted = self.left.min(wanted as u64);
        self.left -= granted;
        granted as usize
    }
}

/// Bytes kept of each process.
const TAIL: usize = 4096;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to start from")]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = Tail::default();
        tail.push(b"start");
        tail.push(&[b'x'; 10_000]);
        tail.push(b"end");
        let text = tail.text();
        assert_eq!(text.len(), TAIL);
        assert!(text.ends_with("xxend"));
    }

    #[test]
    fn a_flood_gets_its_rate_and_no_more() {
        let start = Instant::now();
        let mut limit = RateLimit::new(1000, start);
        assert_eq!(limit.take(5000, start), 1000);
        assert_eq!(limit.take(5000, start), 0);
        assert_eq!(limit.take(5000, start + Duration::from_millis(100)), 100);
        assert_eq!(limit.take(5000, start + Duration::from_secs(60)), 1000);
    }
}
