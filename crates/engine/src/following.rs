//! Logs that invalidate: how far each has been obeyed, and the floor that moves while one is behind.
//!
//! A log is *behind* when it has not been confirmed for its `max_lag_ms`. From then on items with tags whose
//! stamp is older than that count as bumped: the floor of all tags follows the clock at this distance, and
//! stands still when the log is confirmed again.
//!
//! Nothing is compared for a request: each thread looks when it has read its clock, before it executes what
//! it received ([`Following::is_due`]). So a server that was stopped obeys before its first reply.
//!
//! # The ring
//! Which number is `max_lag_ms` old is read from a ring of times and numbers, one each [`RING_MS`]. The time
//! is read first, then a number is taken for it, so that number and later ones were seen at that time or
//! later. The first entry that is *not older* than the moment counts, which invalidates up to [`RING_MS`] too
//! much, never too little. Each entry has a number of its own: a miss takes none, and would else be as old as
//! the last write, however long that is ago.

use std::collections::VecDeque;

use cattlegrid_herd::WhenBehind;
use cattlegrid_tags::{CLASSES, FloorClass};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// Between two entries of the ring, in milliseconds.
pub(crate) const RING_MS: u64 = 100;

/// Between two moves of the floor, in milliseconds.
pub(crate) const MOVE_MS: u64 = 50;

/// Shortest `max_lag`, in milliseconds.
pub const MAX_LAG_MS_MIN: u64 = 100;

/// Longest `max_lag`, in milliseconds.
pub const MAX_LAG_MS_MAX: u64 = 600_000;

/// What a rule may say becomes of its items while a log is behind; `None`: what the log says. A class each.
const CHOICES: [Option<WhenBehind>; CLASSES] =
    [None, Some(WhenBehind::Refresh), Some(WhenBehind::Miss), Some(WhenBehind::Serve)];

/// The class of the items of a rule that says this.
#[inline]
pub(crate) fn class_of(when_behind: Option<WhenBehind>) -> FloorClass {
    let at = CHOICES.iter().position(|choice| *choice == when_behind);
    at.map_or(FloorClass::default(), |at| FloorClass::ALL[at])
}

/// A log that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedLog {
    /// The log's name, unique.
    pub name: Box<str>,
    /// Where it is: a log of the same name elsewhere is another one.
    pub source: Box<str>,
    /// How long the server may go on without a confirmation, in milliseconds: [`MAX_LAG_MS_MIN`] to
    /// [`MAX_LAG_MS_MAX`].
    pub max_lag_ms: u64,
    /// The treatment of items while the log is behind, unless their rule says something else.
    pub when_behind: WhenBehind,
}

impl FollowedLog {
    /// Whether both are the same log, with the same or other settings.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.name == other.name && self.source == other.source
    }

    /// For each class of items, what becomes of them then.
    pub(crate) fn when_behind(&self) -> [WhenBehind; CLASSES] {
        CHOICES.map(|choice| choice.unwrap_or(self.when_behind))
    }
}

/// How far a log has been obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogState {
    /// The log's name.
    pub name: Box<str>,
    /// All that was committed before this moment is obeyed, in milliseconds since the start.
    pub confirmed_ms: Option<u64>,
    /// Since when it is behind, in milliseconds since the start; `None`: it is not.
    pub behind_since_ms: Option<u64>,
    /// Times at which it fell behind.
    pub times_behind: u64,
    /// Flushes of all tagged items that it made.
    pub flushes: u64,
}

/// The followed logs, how far each has been obeyed, and the floor of those that are behind.
#[derive(Debug)]
pub(crate) struct Following {
    /// When a look is due, in milliseconds since the start; `u64::MAX`: no log is followed.
    pub(crate) look_ms: AtomicU64,
    logs: Mutex<Logs>,
}

#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) logs: Vec<Log>,
    /// Times, and a number taken after each.
    ring: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) settings: FollowedLog,
    pub(crate) state: LogState,
}

impl Default for Following {
    fn default() -> Self {
        Self { look_ms: AtomicU64::new(u64::MAX), logs: Mutex::default() }
    }
}

impl Following {
    /// Whether [`Shared::pass_time`](crate::EngineShared::pass_time) has something to do.
    #[inline]
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.look_ms.load(Ordering::Acquire)
    }

    /// Whether there is a log.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.look_ms.load(Ordering::Relaxed) != u64::MAX
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logs {
    /// Notes a number for this time, if the last one is old enough and a log is followed.
    pub(crate) fn note(&mut self, now_ms: u64, tick: impl FnOnce() -> u64) {
        let is_noted = self.ring.back().is_some_and(|(at_ms, _)| now_ms < at_ms + RING_MS);
        if is_noted || self.logs.is_empty() {
            return;
        }
        self.ring.push_back((now_ms, tick()));
        let longest_ms = self.logs.iter().map(|log| log.settings.max_lag_ms).max().unwrap_or(0);
        // The first entry that is not older than any distance stays.
        while self.ring.front().is_some_and(|(at_ms, _)| at_ms + longest_ms + RING_MS < now_ms) {
            self.ring.pop_front();
        }
    }

    /// The number below which everything was seen before this time, and perhaps some that was seen up to
    /// [`RING_MS`] after it. `tick`: takes a number for a time that is later than the last entry.
    pub(crate) fn number_at(&self, at_ms: u64, tick: impl FnOnce() -> u64) -> u64 {
        let at = self.ring.partition_point(|(noted_ms, _)| *noted_ms < at_ms);
        self.ring.get(at).map_or_else(tick, |(_, number)| *number)
    }

    /// When the next look is due.
    pub(crate) fn next_ms(&self, now_ms: u64) -> u64 {
        if self.logs.is_empty() {
            return u64::MAX;
        }
        let noted_ms = self.ring.back().map_or(now_ms, |(at_ms, _)| at_ms + RING_MS);
        let due_ms = |log: &Log| match log.state.behind_since_ms {
            Some(_) => now_ms + MOVE_MS,
            None => log.state.confirmed_ms.unwrap_or(0) + log.settings.max_lag_ms + 1,
        };
        self.logs.iter().map(due_ms).fold(noted_ms, u64::min)
    }
}
