//! When to try to start a worker again: back-off, and the crash-loop breaker.
//!
//! Sans-io. Every failed start delays the next start: 50 ms, doubled each time, at most 1 s. `failures`
//! failed starts within `window` open the breaker. While it is open, callers fail fast unless a worker is
//! still alive, and single starts are tried, 0.5 s apart, doubled each time, at most 10 s. A start that
//! succeeds closes the breaker and resets the delays.
//!
//! # Invariants
//! * [`Breaker::allows`] is false from a failure until its delay is over.
//! * The breaker opens once for each series of failures, and only a success closes it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    failures: usize,
    window: Duration,
    recent: VecDeque<Instant>,
    open: bool,
    /// Consecutive failures, from which the delay follows.
    row: u32,
    /// No start before this.
    not_before: Option<Instant>,
}

impl Breaker {
    /// Opens after `failures` (at least 1) within `window`.
    pub(crate) fn new(failures: usize, window: Duration) -> Self {
        Self {
            failures: failures.max(1),
            window,
            recent: VecDeque::new(),
            open: false,
            row: 0,
            not_before: None,
        }
    }

    /// A start failed, or a worker died before its first job. True when this opens the breaker.
    pub(crate) fn failure(&mut self, now: Instant) -> bool {
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > self.window) {
            self.recent.pop_front();
        }
        let opens = !self.open && self.recent.len() >= self.failures;
        if opens {
            (self.open, self.row) = (true, 0);
        }
        let (base, most) = if self.open { (OPEN_BASE, OPEN_MOST) } else { (BASE, MOST) };
        let delay = base.saturating_mul(1 << self.row.min(16)).min(most);
        self.row += 1;
        self.not_before = Some(now + delay);
        opens
    }

    /// A worker became ready. True when this closes the breaker.
    pub(crate) fn success(&mut self) -> bool {
        self.row = 0;
        self.not_before = None;
        if self.open {
            self.recent.clear();
        }
        std::mem::replace(&mut self.open, false)
    }

    /// Whether a start may be tried at `now`.
    #[inline]
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Whether callers should fail fast.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// When [`Breaker::allows`] changes.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.not_before
    }

    /// Forgets a delay that has passed, so that [`Breaker::poll_timeout`] does not repeat it.
    #[inline]
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
    }
}

const BASE: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);
const OPEN_BASE: Duration = Duration::from_millis(500);
const OPEN_MOST: Duration = Duration::from_secs(10);

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to start from")]
mod tests {
    use super::*;

    #[test]
    fn it_opens_at_the_limit_backs_off_and_closes_by_success() {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(3, Duration::from_secs(10));
        assert!(breaker.allows(now));
        assert!(!breaker.failure(now));
        assert!(!breaker.allows(now));
        now += BASE;
        assert!(breaker.allows(now));
        assert!(!breaker.failure(now));
        assert!(breaker.failure(now), "the third opens it");
        assert!(breaker.is_open());
        let mut delays = Vec::new();
        for _ in 0..8 {
            let due = breaker.poll_timeout().unwrap();
            delays.push(due - now);
            now = due;
            assert!(!breaker.failure(now));
        }
        assert_eq!(delays[0], OPEN_BASE);
        assert!(delays.windows(2).all(|pair| pair[1] == (pair[0] * 2).min(OPEN_MOST)), "{delays:?}");
        assert!(breaker.success());
        assert!(!breaker.is_open() && breaker.allows(now));
    }

    #[test]
    fn failures_far_apart_never_open_it() {
        let start = Instant::now();
        let mut breaker = Breaker::new(2, Duration::from_secs(1));
        for step in 0..20 {
            assert!(!breaker.failure(start + Duration::from_secs(2 * step)));
        }
    }
}
