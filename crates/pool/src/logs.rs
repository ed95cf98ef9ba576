//! Output of processes on stdout and stderr: always drained, passed on in whole lines up to a rate, the last
//! 4 KiB kept for errors.
//!
//! # Invariants
//! * A pipe is read whether or not its bytes are passed on, so no process waits for the log.
//! * Each byte is passed on or counted as dropped.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::base::DriverBase;
use crate::time::later;

/// The last bytes a process wrote.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(TAIL)..];
        let over = (self.bytes.len() + bytes.len()).saturating_sub(TAIL);
        self.bytes.drain(..over);
        self.bytes.extend(bytes);
    }

    fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Joins the pieces of lines, so that the lines of several workers do not mix.
#[derive(Debug, Default)]
pub(crate) struct LogLines {
    partial: Vec<u8>,
    /// When the unfinished line began.
    since: Option<Instant>,
}

impl LogLines {
    /// Bytes of the unfinished line.
    pub(crate) fn len(&self) -> usize {
        self.partial.len()
    }

    /// Adds bytes; returns the part that is finished: whole lines, or more than [`LINE`] bytes of a line.
    pub(crate) fn push(&mut self, bytes: &[u8], now: Instant) -> Vec<u8> {
        self.partial.extend_from_slice(bytes);
        let end = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if self.partial.len() - end >= LINE {
            return self.take();
        }
        let rest = self.partial.split_off(end);
        let whole = std::mem::replace(&mut self.partial, rest);
        self.since = match self.since {
            _ if self.partial.is_empty() => None,
            Some(since) if whole.is_empty() => Some(since),
            _ => Some(now),
        };
        whole
    }

    /// Takes the unfinished line and adds a line end; empty if there is none.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.since = None;
        if self.partial.last().is_some_and(|last| *last != b'\n') {
            self.partial.push(b'\n');
        }
        std::mem::take(&mut self.partial)
    }
}

/// A worker's lines as the default log writes them: each with its origin in front.
pub(crate) fn with_origin(worker: u64, level: u8, bytes: &[u8]) -> Vec<u8> {
    let level = match level {
        1 => " error",
        2 => " warning",
        3 => " info",
        4 => " debug",
        _ => "",
    };
    let origin = if worker == 0 { format!("template{level}: ") } else { format!("worker {worker}{level}: ") };
    let mut out = Vec::with_capacity(bytes.len() + origin.len() + 1);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        out.extend_from_slice(origin.as_bytes());
        out.extend_from_slice(line);
    }
    if out.last().is_some_and(|last| *last != b'\n') {
        out.push(b'\n');
    }
    out
}

/// Bytes that may be passed on: `rate` a second, with one second's worth in reserve.
#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: u64,
    /// Below 0 after a line that is longer than a second's worth.
    left: i128,
    filled: Instant,
}

impl RateLimit {
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        Self { rate, left: rate.into(), filled: now }
    }

    /// Whether a line of `len` bytes may be passed on now. A line that is longer than the reserve may be when
    /// the reserve is full; the lines after it wait until the debt is paid.
    pub(crate) fn take(&mut self, len: usize, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_millis() as u64;
        let (rate, len) = (i128::from(self.rate), len as i128);
        if passed > 0 {
            self.left = (self.left + i128::from(self.rate.saturating_mul(passed) / 1000)).min(rate);
            self.filled = now;
        }
        let granted = len <= self.left || (self.left == rate && rate > 0);
        if granted {
            self.left -= len;
        }
        granted
    }
}

/// Length from which a line is passed on in pieces, bytes.
const LINE: usize = 4096;

/// Bytes kept of each process.
const TAIL: usize = 4096;

/// A pipe for stdout and stderr; our end does not block.
pub(crate) fn log_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pipe::{PipeFlags, pipe_with};
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

/// The log pipe of a process, read to its end by the pool, and the end of what the process has written.
#[derive(Debug)]
pub(crate) struct ProcessLog {
    /// The number of the worker; 0 for a template.
    number: u64,
    /// `None` when the process has closed it.
    pipe: Option<OwnedFd>,
    tail: Tail,
    lines: LogLines,
}

impl ProcessLog {
    pub(crate) fn new(number: u64, pipe: OwnedFd) -> Self {
        Self { number, pipe: Some(pipe), tail: Tail::default(), lines: LogLines::default() }
    }

    /// The last bytes that the process wrote.
    pub(crate) fn tail(&self) -> String {
        self.tail.text()
    }

    /// Adds text to the tail that came by another way.
    pub(crate) fn add_to_tail(&mut self, text: &str) {
        self.tail.push(text.as_bytes());
    }

    /// The pipe is readable: passes on the lines that are finished. Returns false at the end of the pipe.
    pub(crate) fn read(&mut self, base: &mut DriverBase) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(pipe) = &self.pipe else { return false };
        match rustix::io::read(pipe, &mut chunk) {
            Ok(0) | Err(rustix::io::Errno::IO) => self.pipe = None,
            Ok(count) => {
                self.tail.push(&chunk[..count]);
                base.log_output(self.number, &chunk[..count], &mut self.lines);
                base.alarm_opt(self.lines.since.map(|since| later(since, UNFINISHED)));
                return true;
            }
            Err(_) => {}
        }
        false
    }

    /// Passes on a line that was begun [`UNFINISHED`] ago and is not finished.
    pub(crate) fn handle_timeout(&mut self, base: &mut DriverBase) {
        match self.lines.since.map(|since| later(since, UNFINISHED)) {
            Some(due) if due <= base.now() => base.log_unfinished(self.number, &mut self.lines),
            due => base.alarm_opt(due),
        }
    }

    /// The process has ended: passes on what is left in the pipe, at most 1 MiB.
    pub(crate) fn finish(&mut self, base: &mut DriverBase) {
        for _ in 0..64 {
            if !self.read(base) {
                break;
            }
        }
        base.log_unfinished(self.number, &mut self.lines);
    }
}

/// How long the pool waits for the end of an unfinished line before it passes the line on.
const UNFINISHED: Duration = Duration::from_millis(100);

/// Size of one read from a log pipe, bytes.
const CHUNK: usize = 16 << 10;

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
    fn pieces_become_lines_with_their_origin() {
        let now = Instant::now();
        let mut lines = LogLines::default();
        assert_eq!(lines.push(b"one", now), b"");
        assert_eq!(lines.since, Some(now));
        assert_eq!(lines.push(b" line\ntwo\nthr", now), b"one line\ntwo\n");
        assert_eq!(lines.push(b"ee\n", now), b"three\n");
        assert_eq!(lines.since, None);
        assert_eq!(lines.take(), b"");
        assert_eq!(lines.push(b"no end", now), b"");
        assert_eq!(lines.take(), b"no end\n");
        assert_eq!(lines.push(&[b'x'; LINE + 10], now).len(), LINE + 11, "a line that does not end");
        assert_eq!(with_origin(3, 0, b"a\nb\n"), b"worker 3: a\nworker 3: b\n");
        assert_eq!(with_origin(0, 2, b"careful"), b"template warning: careful\n");
    }

    #[test]
    fn a_flood_gets_its_rate_and_no_more() {
        let start = Instant::now();
        let mut limit = RateLimit::new(1000, start);
        assert!(limit.take(900, start));
        assert!(!limit.take(101, start), "whole or not at all");
        assert!(limit.take(100, start));
        assert!(!limit.take(1, start));
        assert!(!limit.take(101, start + Duration::from_millis(100)));
        assert!(limit.take(100, start + Duration::from_millis(100)));
        let later = start + Duration::from_secs(60);
        assert!(limit.take(5000, later), "longer than a second's worth, when the reserve is full");
        assert!(!limit.take(1, later + Duration::from_secs(4)));
        assert!(limit.take(1, later + Duration::from_millis(4_001)));
        assert!(!RateLimit::new(0, start).take(1, start));
        assert!(RateLimit::new(u64::MAX, start).take(1 << 30, later));
    }
}
