//! The one reader of clocks.
//!
//! Everything else takes the time as an argument. Callers read it once per round of their loop: a read costs
//! some 20 ns (the kernel's page, no system call).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the server started, as items count it.
///
/// Clones share the offset of [`Clock::advance`].
#[derive(Debug, Clone)]
pub struct Clock(Arc<ClockState>);

#[derive(Debug)]
struct ClockState {
    started: Instant,
    /// What the clock that also counts while the machine is suspended shows more than the other, at the
    /// start.
    ahead_at_start: Duration,
    /// For how long the machine was suspended since then, in milliseconds.
    suspended_ms: AtomicU64,
    /// Unix time at which [`Clock::seconds`] was 0, by the wall clock as it was last looked at.
    unix_seconds_of_start: AtomicU64,
    /// Seconds the command `debugtime` has added.
    advanced: AtomicU32,
    /// When a thread of the server last noted that it runs, in milliseconds since the start. Changed under
    /// the lock.
    ran_ms: AtomicU64,
    ran: Mutex<()>,
    /// Only [`Clock::advance`] moves it.
    #[cfg(any(test, fuzzing))]
    stands: bool,
}

/// [`Clock::seconds`] at the start: above 0, which means "never" in an exptime, and above 1, so that there is
/// a second before the first one (as in memcached).
const FIRST_SECOND: u32 = 2;

/// A machine that was suspended for less is not noticed.
const SUSPENDED_MIN: Duration = Duration::from_millis(100);

/// Two clocks are compared within this time, so that a thread that is stopped in between is not taken for a
/// suspension.
const COMPARED: Duration = Duration::from_millis(1);

/// A time in which no thread has noted that it runs is a stop if it is this long. While there are rules, a thread
/// does so every tenth of a second. On a busy machine the time may be longer though nothing was stopped: that does
/// no harm.
const STOPPED_MS: u64 = 200;

/// Milliseconds from one note of a thread that runs to the next.
const RAN_MS: u64 = 50;

/// A difference of the wall clock up to this is not a step.
const STEP: Duration = Duration::from_millis(1500);

/// Nanoseconds of a clock that never goes back, from an arbitrary moment: for durations.
pub fn nanos() -> u64 {
    u64::try_from(read(rustix::time::ClockId::Monotonic).as_nanos()).unwrap_or(u64::MAX)
}

/// The processor's time of this thread so far.
pub(crate) fn thread_cpu() -> Duration {
    read(rustix::time::ClockId::ThreadCPUTime)
}

fn read(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// By how much the clock that counts while the machine is suspended is ahead of the one that does not.
fn ahead() -> Duration {
    loop {
        let before = read(rustix::time::ClockId::Monotonic);
        let boot = read(rustix::time::ClockId::Boottime);
        if read(rustix::time::ClockId::Monotonic).saturating_sub(before) < COMPARED {
            return boot.saturating_sub(before);
        }
    }
}

impl Clock {
    /// A clock that starts now.
    #[expect(clippy::new_without_default, reason = "reading the time is not a default value")]
    pub fn new() -> Self {
        Self(Arc::new(ClockState::start()))
    }

    /// A clock that stands, moved by [`Clock::advance`] alone.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn standing() -> Self {
        Self(Arc::new(ClockState { stands: true, ..ClockState::start() }))
    }

    /// The time that passes; [`Clock::advance`] does not move it.
    pub fn now(&self) -> Instant {
        #[cfg(any(test, fuzzing))]
        if self.0.stands {
            return self.0.started;
        }
        instant_now()
    }

    /// Counts the time for which the machine was suspended as time that has passed, from now on. Costs 40 ns.
    pub fn notice_suspension(&self) {
        let known =
            Duration::from_millis(self.0.suspended_ms.load(Ordering::Relaxed)) + self.0.ahead_at_start;
        // In this order: a thread that is stopped in between sees less.
        let boot = read(rustix::time::ClockId::Boottime);
        if boot.saturating_sub(read(rustix::time::ClockId::Monotonic)) > known + SUSPENDED_MIN {
            self.suspended(ahead());
        }
    }

    /// The clock that counts while the machine is suspended is ahead by this much.
    fn suspended(&self, ahead: Duration) {
        let total = ahead.saturating_sub(self.0.ahead_at_start);
        let ms = u64::try_from(total.as_millis()).unwrap_or(u64::MAX);
        self.0.suspended_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// A thread of the server runs at `now`. If none has done so for 200 ms, the process was stopped, or
    /// its machine suspended: `stopped` is told for how many milliseconds, before any other thread that calls
    /// this goes on.
    #[inline]
    pub fn note_running(&self, now: Instant, stopped: impl FnOnce(u64)) {
        let now_ms = u64::try_from(self.passed(now).as_millis()).unwrap_or(u64::MAX);
        if now_ms.saturating_sub(self.0.ran_ms.load(Ordering::Acquire)) >= RAN_MS {
            self.ran(now_ms, stopped);
        }
    }

    #[cold]
    fn ran(&self, now_ms: u64, stopped: impl FnOnce(u64)) {
        let _lock = self.0.ran.lock().unwrap_or_else(PoisonError::into_inner);
        let passed_ms = now_ms.saturating_sub(self.0.ran_ms.load(Ordering::Relaxed));
        if passed_ms >= STOPPED_MS {
            stopped(passed_ms);
        }
        self.0.ran_ms.fetch_max(now_ms, Ordering::Release);
    }

    /// The time that has passed since the start, as of `now`.
    fn passed(&self, now: Instant) -> Duration {
        let suspended = Duration::from_millis(self.0.suspended_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(self.0.started) + suspended
    }

    /// Seconds since the start, 2 at the start, moved by [`Clock::advance`]. Stays at `u32::MAX` at the end.
    pub fn seconds(&self) -> u32 {
        self.seconds_at(self.now())
    }

    /// [`Clock::seconds`] as of `now`, for callers that have read the time already.
    pub fn seconds_at(&self, now: Instant) -> u32 {
        let passed = self.passed(now).as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        passed.saturating_add(FIRST_SECOND).saturating_add(self.0.advanced.load(Ordering::Relaxed))
    }

    /// Milliseconds since the moment from which [`Clock::seconds`] counts.
    pub fn millis(&self) -> u64 {
        self.millis_at(self.now())
    }

    /// The same as of `now`.
    pub fn millis_at(&self, now: Instant) -> u64 {
        let passed = self.passed(now).as_millis();
        let moved = u64::from(FIRST_SECOND) + u64::from(self.0.advanced.load(Ordering::Relaxed));
        u64::try_from(passed).unwrap_or(u64::MAX).saturating_add(moved * 1000)
    }

    /// The Unix time at which [`Clock::seconds`] was 0: an absolute exptime minus this is in those seconds.
    ///
    /// It follows the wall clock ([`Clock::follow`]). Items keep the lifetime that they had from the moment
    /// at which they were stored.
    #[inline]
    pub fn unix_seconds_of_start(&self) -> u64 {
        self.0.unix_seconds_of_start.load(Ordering::Relaxed)
    }

    /// Follows a step of the wall clock, which shows `wall` since 1970 at `now`. A difference below a second
    /// is left: it is that of rounding, or of a clock that is slowed down or sped up. Returns by how many
    /// seconds the wall clock has moved forward (or, below 0, back), if it has.
    pub fn follow(&self, wall: Duration, now: Instant) -> Option<i64> {
        let passed = self.passed(now) + Duration::from_secs(u64::from(FIRST_SECOND));
        let start = wall.saturating_sub(passed);
        let known = Duration::from_secs(self.unix_seconds_of_start());
        if start.abs_diff(known) <= STEP {
            return None;
        }
        self.0.unix_seconds_of_start.store(start.as_secs(), Ordering::Relaxed);
        i64::try_from(start.as_secs())
            .ok()
            .zip(i64::try_from(known.as_secs()).ok())
            .map(|(new, old)| new - old)
    }

    /// Moves [`Clock::seconds`] forward for all clones: the command `debugtime`.
    pub fn advance(&self, seconds: u32) {
        let add = |advanced: u32| Some(advanced.saturating_add(seconds));
        // It always returns a value, so the update cannot fail.
        self.0.advanced.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).unwrap_or_default();
    }
}

impl ClockState {
    fn start() -> Self {
        Self {
            started: instant_now(),
            ahead_at_start: ahead(),
            suspended_ms: AtomicU64::new(0),
            unix_seconds_of_start: AtomicU64::new(
                unix_now().as_secs().saturating_sub(u64::from(FIRST_SECOND)),
            ),
            advanced: AtomicU32::new(0),
            ran_ms: AtomicU64::new(0),
            ran: Mutex::new(()),
            #[cfg(any(test, fuzzing))]
            stands: false,
        }
    }
}

/// Wall time since 1970, for log lines; zero before it.
pub fn unix_now() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "this is the reader of the clock")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn instant_now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the reader of the clock")]
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_start_at_two_and_follow_the_instant() {
        let clock = Clock::new();
        let start = clock.0.started;
        assert_eq!(clock.seconds_at(start), 2);
        assert_eq!(clock.seconds_at(start + Duration::from_millis(999)), 2);
        assert_eq!(clock.seconds_at(start + Duration::from_secs(10)), 12);
        assert_eq!(clock.seconds_at(start.checked_sub(Duration::from_secs(1)).unwrap()), 2);
        assert!(clock.seconds() >= 2);
    }

    #[test]
    fn advancing_moves_every_clone_and_stops_at_the_end() {
        let clock = Clock::new();
        let start = clock.0.started;
        clock.clone().advance(100);
        clock.advance(1);
        assert_eq!(clock.seconds_at(start), 103);
        clock.advance(u32::MAX);
        assert_eq!(clock.seconds_at(start), u32::MAX);
        assert_eq!(clock.seconds(), u32::MAX);
    }

    #[test]
    fn a_suspension_is_time_that_has_passed() {
        let clock = Clock::new();
        let (start, unix) = (clock.0.started, clock.unix_seconds_of_start());
        (0..1000).for_each(|_| clock.notice_suspension());
        assert_eq!(clock.millis_at(start), 2000, "there was none");
        let hour = Duration::from_secs(3600);
        clock.suspended(clock.0.ahead_at_start + hour);
        clock.clone().suspended(clock.0.ahead_at_start + hour);
        assert_eq!((clock.seconds_at(start), clock.millis_at(start)), (3602, 3_602_000), "once");
        let (wall, later) = (Duration::from_secs(unix + 3612), start + Duration::from_secs(10));
        assert_eq!(clock.follow(wall, later), None, "it is no step of the wall clock");
    }

    #[test]
    fn a_time_in_which_nothing_ran_is_noticed_once() {
        let clock = Clock::new();
        let stopped_at = |ms: u64| {
            let mut stopped = None;
            clock.note_running(clock.0.started + Duration::from_millis(ms), |ms| stopped = Some(ms));
            stopped
        };
        assert_eq!((stopped_at(199), stopped_at(300), stopped_at(400)), (None, None, None));
        assert_eq!((stopped_at(600), stopped_at(600), stopped_at(100)), (Some(200), None, None));
        clock.advance(100);
        assert_eq!(stopped_at(700), None, "the command debugtime is no stop");
        clock.suspended(clock.0.ahead_at_start + Duration::from_secs(60));
        assert_eq!(stopped_at(750), Some(60_050), "the machine was suspended");
    }

    #[test]
    fn steps_of_the_wall_clock_are_followed_and_its_drift_is_not() {
        let clock = Clock::new();
        let (start, unix) = (clock.0.started, clock.unix_seconds_of_start());
        let wall = |seconds: u64| Duration::from_secs(unix + seconds);
        let later = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(clock.follow(wall(12), later(10)), None);
        assert_eq!(clock.follow(wall(13), later(10)), None, "a second is no step");
        assert_eq!(clock.unix_seconds_of_start(), unix);
        assert_eq!(clock.follow(wall(3612), later(10)), Some(3600));
        assert_eq!(clock.unix_seconds_of_start(), unix + 3600);
        assert_eq!(clock.follow(wall(3613), later(11)), None, "once");
        assert_eq!(clock.seconds_at(later(11)), 13, "items go on as they were");
        assert_eq!(clock.follow(wall(14), later(12)), Some(-3600));
        assert_eq!(clock.unix_seconds_of_start(), unix);
        assert_eq!(
            clock.follow(Duration::ZERO, later(12)),
            Some(-i64::try_from(unix).unwrap()),
            "before 1970"
        );
    }

    #[test]
    fn unix_time_and_seconds_agree() {
        let clock = Clock::new();
        let before = unix_now().as_secs();
        let by_clock = clock.unix_seconds_of_start() + u64::from(clock.seconds());
        let after = unix_now().as_secs();
        assert!((before - 1..=after + 1).contains(&by_clock), "{before} {by_clock} {after}");
    }
}
