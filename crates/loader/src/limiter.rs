//! A limit of lines a second: a worker that floods its output, or fails at every job, does not fill the log.
//!
//! # Invariants
//! * What is left out is counted, and the next line that is admitted says how many.

use std::time::{Duration, Instant};

/// Admits lines. The time comes from the caller.
#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: usize,
    /// The second that runs, from its beginning, and the lines admitted in it.
    second: Option<(Instant, usize)>,
    left_out: u64,
}

impl Limiter {
    pub(crate) fn new(per_second: usize) -> Self {
        Self { per_second, second: None, left_out: 0 }
    }

    /// How many of `lines` lines may be written at `now`, from the first on; and, if any, how many were left
    /// out before.
    pub(crate) fn admit(&mut self, lines: usize, now: Instant) -> (usize, u64) {
        let current = self.second.filter(|(since, _)| now.saturating_duration_since(*since) < SECOND);
        let (since, written) = current.unwrap_or((now, 0));
        let admitted = lines.min(self.per_second - written);
        self.second = Some((since, written + admitted));
        let before = if admitted > 0 { std::mem::take(&mut self.left_out) } else { 0 };
        self.left_out += (lines - admitted) as u64;
        (admitted, before)
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do")]
    fn lines_a_second_and_those_left_out() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut limiter = Limiter::new(3);
        assert_eq!(limiter.admit(2, at(0)), (2, 0));
        assert_eq!(limiter.admit(2, at(500)), (1, 0));
        assert_eq!(limiter.admit(5, at(999)), (0, 0));
        assert_eq!(limiter.admit(1, at(1000)), (1, 6));
        assert_eq!(limiter.admit(1, at(1001)), (1, 0));
        assert_eq!(limiter.admit(0, at(9000)), (0, 0));
        assert_eq!(limiter.admit(4, at(9000)), (3, 0));
        assert_eq!(limiter.admit(1, at(10_000)), (1, 1));
        let mut one = Limiter::new(1);
        assert_eq!(
            [one.admit(1, at(0)), one.admit(1, at(999)), one.admit(1, at(1000))],
            [(1, 0), (0, 0), (1, 1)]
        );
    }
}
