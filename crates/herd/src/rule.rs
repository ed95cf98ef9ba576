//! The state that all keys of a rule share: terms, learned times, counters, and the slots of
//! `rule_computers`.
//!
//! Each shard reads it under its own lock, so the learned times are kept as atomics, and the locks inside
//! (`times`, `slots`, `minute`) are held for a few steps and never at the same time as one another.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use crate::account::Judgement;
use crate::computing::{FillTimes, Overlap, SlotAnswer, Slots, Times};
use crate::policy::{
    FILL_WINDOW_AUTO_MS, FillWindow, LEASE_MAX_MS, LEASE_MIN_MS, LEASE_UNLEARNED_MS, LeaseTime, Policy,
    RuleCounters,
};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// A rule in use. A lease keeps the state under which it was granted.
#[derive(Debug)]
pub struct RuleState {
    policy: Policy,
    /// For how long old values are kept and for how long of that they are served whether computing fails or
    /// not, in seconds, under the rule's terms and those that it had before; later ones first.
    graces: Vec<(u32, u32)>,
    running: Arc<RuleHistory>,
}

/// The part of a rule's state that survives a change of its terms.
#[derive(Debug, Default)]
struct RuleHistory {
    times: Mutex<Times>,
    learned: LearnedTimes,
    fill_times: Mutex<FillTimes>,
    /// The usual computing time of fills in milliseconds; 0: not known yet.
    fill_p99_ms: AtomicU32,
    slots: Mutex<Slots>,
    /// Leases, those that wait for a slot as well.
    leases: AtomicUsize,
    /// Leases that compute.
    computing: AtomicU32,
    /// Computations begun, with a lease or without.
    begun: AtomicU64,
    /// Leases granted, for the choice of probes.
    granted: AtomicU64,
    counters: RuleCounters,
    /// The time to live of the value stored last, in seconds, while the rule observes.
    seen_ttl_s: AtomicU32,
    minute: Mutex<MinuteCounts>,
    /// A key had the rule.
    matched: AtomicBool,
    /// [`RuleState::note_other_keys`]: milliseconds and 1 (0: never), and the number.
    covers_since: AtomicU64,
    covers_from: AtomicU64,
}

/// The learned times in milliseconds, computed when a time is learned: they are read under the shards' locks,
/// at each miss. `NONE`: nothing is learned.
#[derive(Debug)]
struct LearnedTimes {
    p50: AtomicU32,
    /// The p90 of the last computations.
    p90: AtomicU32,
    p99: AtomicU32,
    /// The p99 once there are enough samples: the automatic lease time is derived from it.
    lease_p99: AtomicU32,
}

/// Above every learned time.
const NONE: u32 = u32::MAX;

impl Default for LearnedTimes {
    fn default() -> Self {
        let [p50, p90, p99, lease_p99] = [NONE; 4].map(AtomicU32::new);
        Self { p50, p90, p99, lease_p99 }
    }
}

impl LearnedTimes {
    fn publish(&self, times: &Times) {
        let p99 = times.percentile(99);
        let enough = p99.filter(|_| times.len() >= Times::ENOUGH);
        let all = [times.percentile(50), times.recent(90), p99, enough];
        for (to, ms) in [&self.p50, &self.p90, &self.p99, &self.lease_p99].into_iter().zip(all) {
            to.store(ms.map_or(NONE, |ms| ms.min(NONE - 1)), Relaxed);
        }
    }
}

fn learned(ms: &AtomicU32) -> Option<u32> {
    Some(ms.load(Relaxed)).filter(|ms| *ms != NONE)
}

/// The counters at the beginning of the current minute, and the result of the minute before.
#[derive(Debug, Default)]
struct MinuteCounts {
    start_ms: u64,
    fills: u64,
    ambiguous: u64,
    ambiguous_percent: u32,
}

/// Share of fills, in per cent, above which a warning says that they are dropped though they may have been
/// new.
const AMBIGUOUS_PERCENT: u32 = 10;
/// Fewer such fills in a minute give no warning.
const AMBIGUOUS_LEAST: u64 = 5;

/// The usual computing time of fills before anything is learned, in milliseconds.
pub const FILL_UNLEARNED_MS: u64 = 1000;
/// A rule whose p99 is above this many times its p50 mixes kinds of work: after a delete its fast values are
/// judged as if they were slow.
const MIXED: u32 = 10;

/// A lease that waited for a slot of its rule and has got one, which must be used or given back
/// ([`crate::Herd::admit`]).
#[derive(Debug)]
#[must_use]
pub struct Admission {
    /// The rule.
    pub rule: Arc<RuleState>,
    /// The key's hash.
    pub hash: u64,
    /// The lease's token.
    pub token: u64,
}

/// The notes of a lease when its computation begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComputeStart {
    pub(crate) ms: u64,
    /// The number of the computation among all of the rule.
    nth: u64,
    others: u32,
    pub(crate) probe: bool,
}

/// Whether to wait for a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prediction {
    Fits,
    /// The computation will not fit, but this lease was chosen to find out.
    Probe,
    TooLong,
}

/// One lease in 16 is waited for although it will not fit.
const PROBE_EVERY: u64 = 16;

impl RuleState {
    /// The state of a rule that has not seen a key yet.
    pub fn new(policy: Policy) -> Self {
        let state = Self { policy, graces: graces(&policy, &[]), running: Arc::default() };
        state.slots().set_limit(policy.rule_computers);
        state
    }

    /// This rule under other terms: it keeps what it has learned and counted.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        self.slots().set_limit(policy.rule_computers);
        Self { policy, graces: graces(&policy, &self.graces), running: Arc::clone(&self.running) }
    }

    /// For how many seconds of the `kept_s` for which an old value is kept it is served also while computing
    /// does not fail: as the rule said when the value was stored.
    pub fn grace_s(&self, kept_s: u32) -> u32 {
        let stored = self.graces.iter().find(|(kept, _)| *kept == kept_s).map(|(_, grace_s)| *grace_s);
        // It was stored under another rule, or its time was changed since.
        stored.unwrap_or_else(|| kept_s.min(self.policy.grace_s))
    }

    /// A key has the rule.
    #[inline]
    pub fn note_match(&self) {
        // Written once: it is read at each miss, by all threads.
        if !self.has_matched() {
            self.running.matched.store(true, Relaxed);
        }
    }

    /// Whether a key has missed or was written under the rule, since the rule came into force.
    #[inline]
    pub fn has_matched(&self) -> bool {
        self.running.matched.load(Relaxed)
    }

    /// The rule's terms.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The rule's counters.
    pub fn counters(&self) -> &RuleCounters {
        &self.running.counters
    }

    /// The rule observes, and a value of a key was stored with this time to live, in seconds.
    pub fn note_ttl(&self, ttl_s: u32) {
        self.running.seen_ttl_s.store(ttl_s, Relaxed);
    }

    /// That of the last value, in seconds; 0: there was none.
    pub fn seen_ttl_s(&self) -> u32 {
        self.running.seen_ttl_s.load(Relaxed)
    }

    /// Counts the rule's leases, those that wait for a slot as well.
    pub(crate) fn leases(&self) -> &AtomicUsize {
        &self.running.leases
    }

    /// Leases of the rule that compute now.
    pub fn computing(&self) -> u32 {
        self.running.computing.load(Relaxed)
    }

    /// Slots of the rule that are taken now: by nested computations too, and by leases that are admitted and
    /// have not begun.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub fn slots_taken(&self) -> u32 {
        self.slots().taken()
    }

    /// Connections that compute under the rule.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub fn connections_computing(&self) -> usize {
        self.slots().connections()
    }

    /// Whether this connection computes under the rule.
    pub(crate) fn has_slot(&self, connection: u64) -> bool {
        self.policy.rule_computers.is_some() && self.slots().has(connection)
    }

    /// Leases that wait for a slot: at most [`crate::QUEUED_MAX`], plus the leases of the rule that had a
    /// slot and lost their holder.
    pub fn queued(&self) -> usize {
        self.slots().queued()
    }

    /// Gives free slots to leases that wait for one: after a change of `rule_computers`.
    pub fn admit_queued(self: &Arc<Self>) -> Vec<Admission> {
        let admitted = self.slots().admit();
        self.admitted(admitted)
    }

    fn admitted(self: &Arc<Self>, admitted: Vec<(u64, u64)>) -> Vec<Admission> {
        let each = admitted.into_iter();
        each.map(|(hash, token)| Admission { rule: Arc::clone(self), hash, token }).collect()
    }

    /// The learned p50, p90 and p99 in milliseconds; None while nothing is learned.
    pub fn learned_ms(&self) -> Option<[u32; 3]> {
        let LearnedTimes { p50, p90, p99, .. } = &self.running.learned;
        Some([learned(p50)?, learned(p90)?, learned(p99)?])
    }

    /// The learned p90 of the last computations, in milliseconds.
    pub fn p90_ms(&self) -> Option<u32> {
        learned(&self.running.learned.p90)
    }

    /// The time that computations usually do not exceed, in milliseconds: that p90, or as long as none ran
    /// undisturbed what the last fills took. None: neither is known.
    pub fn usual_ms(&self) -> Option<u32> {
        let of_fills = || self.running.fill_times.lock().unwrap_or_else(PoisonError::into_inner).longest();
        self.p90_ms().or_else(of_fills)
    }

    /// The lease time, in milliseconds.
    pub fn lease_ms(&self) -> u32 {
        match self.policy.lease {
            LeaseTime::Fixed(ms) => ms,
            LeaseTime::Auto => learned(&self.running.learned.lease_p99)
                .map_or(LEASE_UNLEARNED_MS, |p99| p99.saturating_mul(4).clamp(LEASE_MIN_MS, LEASE_MAX_MS)),
        }
    }

    /// How long a miss is remembered for its fill, in milliseconds.
    pub fn fill_window_ms(&self) -> u32 {
        match self.policy.fill_window {
            FillWindow::Fixed(ms) => ms,
            FillWindow::Auto => FILL_WINDOW_AUTO_MS,
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.running.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.running.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease of this connection (None: of a loader, as below) asks to compute. `queue`: the hash of its key
    /// and its token, if it can wait for a slot.
    pub(crate) fn try_start(&self, connection: Option<u64>, queue: Option<(u64, u64)>) -> SlotAnswer {
        let start = self.slots().start(connection, queue);
        match start {
            SlotAnswer::Nested => count(&self.counters().nested),
            SlotAnswer::QueueFull => count(&self.counters().busy_queue),
            SlotAnswer::Granted | SlotAnswer::Queued | SlotAnswer::Refused => {}
        }
        start
    }

    /// A lease of this connection has ended. Returns the leases that have a slot now.
    pub(crate) fn finish_slot(self: &Arc<Self>, connection: Option<u64>) -> Vec<Admission> {
        let admitted = self.slots().finish(connection);
        self.admitted(admitted)
    }

    /// An admitted lease begins to compute, on this connection.
    pub(crate) fn take_admitted(&self, connection: Option<u64>) {
        self.slots().take_admitted(connection);
    }

    /// An admitted lease has ended before it began. Returns the leases that have a slot now.
    pub(crate) fn give_back_admitted(self: &Arc<Self>) -> Vec<Admission> {
        let admitted = self.slots().give_back_admitted();
        self.admitted(admitted)
    }

    /// A lease passes from one connection to another. False: the new one must wait for a slot, and the lease,
    /// as (key's hash, token), is in the queue.
    pub(crate) fn pass_slot(&self, from: u64, to: u64, queue: (u64, u64)) -> bool {
        let start = self.slots().pass(from, to, queue);
        if start == SlotAnswer::Nested {
            count(&self.counters().nested);
        }
        start != SlotAnswer::Queued
    }

    /// A lease goes on with another job of its loader. False: it must wait for a slot, and is in the queue as
    /// (key's hash, token).
    pub(crate) fn claim_slot(&self, queue: (u64, u64)) -> bool {
        self.slots().claim(None, queue) != SlotAnswer::Queued
    }

    /// A lease no longer waits for a slot.
    pub(crate) fn leave_queue(&self, token: u64) {
        self.slots().leave(token);
    }

    /// The computing time of fills that only one in a hundred exceeds, in milliseconds, at least 1: of the
    /// last 200 fills, as long as can be said of each; [`FILL_UNLEARNED_MS`] while fewer than 8 are known.
    pub fn fill_p99_ms(&self) -> u64 {
        match self.running.fill_p99_ms.load(Relaxed) {
            0 => FILL_UNLEARNED_MS,
            ms => ms.into(),
        }
    }

    /// A fill came this many milliseconds after the newest open miss of its key.
    pub fn learn_fill(&self, ms: u64) {
        let most = self.fill_window_ms() / 8;
        let ms = u32::try_from(ms).unwrap_or(most).min(most);
        let mut times = self.running.fill_times.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(p99) = times.learn(ms) {
            self.running.fill_p99_ms.store(p99.max(1), Relaxed);
        }
    }

    /// The p50 and the p99 of what [`RuleState::learn_fill`] has learned, if the p99 is more than ten times
    /// the p50: the rule mixes kinds of work.
    pub fn mixed_ms(&self) -> Option<(u32, u32)> {
        let times = self.running.fill_times.lock().unwrap_or_else(PoisonError::into_inner);
        let (p50, p99) = times.middle_and_p99()?;
        (p99 > p50.max(1).saturating_mul(MIXED)).then_some((p50, p99))
    }

    /// Counts what became of a fill.
    pub fn count_fill(&self, judgement: Judgement) {
        let counters = self.counters();
        let (kind, all) = match judgement {
            Judgement::Write => return,
            Judgement::Clean { .. } => return count(&counters.fills_stored),
            Judgement::Proved { .. } => (&counters.fills_proved, &counters.fills_stored),
            Judgement::Provisional { .. } => (&counters.fills_provisional, &counters.fills_stored),
            Judgement::Old => (&counters.fills_dropped_old, &counters.fills_dropped),
            Judgement::Unrecorded => (&counters.fills_dropped_unrecorded, &counters.fills_dropped),
            Judgement::Dropped { .. } => (&counters.fills_dropped_ambiguous, &counters.fills_dropped),
        };
        count(kind);
        count(all);
    }

    /// Share of the fills of the last whole minute that were dropped though they may have been new, in per
    /// cent: 11..=100, None below.
    pub fn ambiguous_percent(&self) -> Option<u32> {
        Some(self.minute().ambiguous_percent).filter(|percent| *percent > AMBIGUOUS_PERCENT)
    }

    /// Ends the minute if it is over, and returns the new [`RuleState::ambiguous_percent`] then. The caller
    /// calls this about once per second. `now_ms`: milliseconds since the start.
    pub fn end_minute(&self, now_ms: u64) -> Option<u32> {
        let mut minute = self.minute();
        if now_ms < minute.start_ms + 60_000 {
            return None;
        }
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let counters = self.counters();
        let all = [&counters.fills_stored, &counters.fills_stale, &counters.fills_dropped].map(load);
        let (fills, ambiguous) = (all.iter().sum::<u64>(), load(&counters.fills_dropped_ambiguous));
        // After `stats reset` the counters begin at 0.
        let since = ambiguous.saturating_sub(minute.ambiguous);
        let percent = since.saturating_mul(100) / fills.saturating_sub(minute.fills).max(1);
        let enough = since >= AMBIGUOUS_LEAST;
        *minute = MinuteCounts {
            start_ms: now_ms,
            fills,
            ambiguous,
            ambiguous_percent: if enough { percent.min(100) as u32 } else { 0 },
        };
        drop(minute);
        self.ambiguous_percent()
    }

    fn minute(&self) -> MutexGuard<'_, MinuteCounts> {
        self.running.minute.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A computation begins.
    pub(crate) fn begin(&self, now_ms: u64) -> ComputeStart {
        let nth = self.running.begun.fetch_add(1, Relaxed) + 1;
        let others = self.running.computing.fetch_add(1, Relaxed);
        let probe = self.running.granted.fetch_add(1, Relaxed) % PROBE_EVERY == PROBE_EVERY - 1;
        ComputeStart { ms: now_ms, nth, others, probe }
    }

    /// A client computes without a lease.
    pub(crate) fn begin_unleased(&self) {
        self.running.begun.fetch_add(1, Relaxed);
    }

    /// The computation ended; `filled`: by its value. `joined_ms`: when other clients began to compute the
    /// key as well. By a change of rules keys are under this rule that had none, or one with other tags:
    /// their misses may not have been recorded. `run_ms`: for how long the server has run.
    pub fn note_other_keys(&self, number: u64, run_ms: u64) {
        self.running.covers_from.fetch_max(number, Relaxed);
        self.running.covers_since.store(run_ms + 1, Release);
    }

    /// The number and the time of the last [`RuleState::note_other_keys`].
    pub fn other_keys(&self) -> Option<(u64, u64)> {
        let since = self.running.covers_since.load(Acquire);
        (since > 0).then(|| (self.running.covers_from.load(Relaxed), since - 1))
    }

    pub(crate) fn end(&self, begun: &ComputeStart, filled: bool, joined_ms: Option<u64>, now_ms: u64) {
        self.running.computing.fetch_sub(1, Relaxed);
        if !filled {
            return;
        }
        let ms = u32::try_from(now_ms.saturating_sub(begun.ms)).unwrap_or(u32::MAX);
        let undisturbed = begun.others == 0 && self.running.begun.load(Relaxed) == begun.nth;
        // Other clients came only after a whole hold: even if they slowed the computation down, it takes
        // longer than a hold.
        let hold_ms = u64::from(self.policy.hold_ms);
        let outlasted_hold = joined_ms.is_some_and(|joined| joined >= begun.ms + hold_ms) && hold_ms > 0;
        let ran = if outlasted_hold {
            Overlap::Alone
        } else if joined_ms.is_some() {
            Overlap::Herd
        } else if undisturbed {
            Overlap::Alone
        } else {
            Overlap::Beside
        };
        let mut times = self.times();
        if begun.probe && ran != Overlap::Herd {
            let expected = times.recent(90).unwrap_or(0);
            if expected > self.policy.hold_ms && ms <= self.policy.hold_ms {
                times.forget();
            }
            times.learn(ms, Overlap::Alone);
        } else {
            times.learn(ms, ran);
        }
        self.running.learned.publish(&times);
    }

    /// Whether a client that would wait for `left_ms` more milliseconds is likely to get the value of this
    /// computation.
    pub(crate) fn predict(&self, begun: &ComputeStart, now_ms: u64, left_ms: u32) -> Prediction {
        let elapsed = now_ms.saturating_sub(begun.ms);
        let expected = self.p90_ms().map_or(0, u64::from).saturating_sub(elapsed);
        if expected <= u64::from(left_ms) {
            Prediction::Fits
        } else if begun.probe {
            Prediction::Probe
        } else {
            Prediction::TooLong
        }
    }
}

/// Former terms whose graces are remembered.
const GRACES_KEPT: usize = 16;

fn graces(policy: &Policy, before: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let own = (policy.kept_s(), policy.grace_s);
    std::iter::once(own)
        .chain(before.iter().filter(|one| one.0 != own.0).copied())
        .take(GRACES_KEPT)
        .collect()
}

/// Adds 1.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automatic_lease_follows_what_is_learned() {
        let rule = RuleState::new(Policy::default());
        assert_eq!((rule.lease_ms(), rule.fill_window_ms()), (3000, 60_000));
        for n in 0..8 {
            let begun = rule.begin(n * 1000);
            rule.end(&begun, true, None, n * 1000 + 300);
        }
        assert_eq!((rule.lease_ms(), rule.fill_window_ms()), (1200, 60_000));
        assert_eq!(rule.learned_ms(), Some([300, 300, 300]));
        let kept = rule.with_policy(Policy { lease: LeaseTime::Fixed(700), ..Policy::default() });
        assert_eq!((kept.lease_ms(), kept.p90_ms()), (700, Some(300)));
    }

    #[test]
    fn a_minute_with_many_ambiguous_fills_gives_a_warning() {
        let rule = RuleState::new(Policy::default());
        let fills = |stored: u64, ambiguous: u64| {
            rule.counters().fills_stored.fetch_add(stored, Relaxed);
            (0..ambiguous).for_each(|_| rule.count_fill(Judgement::Dropped { doubt_ms: None }));
            rule.count_fill(Judgement::Old);
        };
        fills(79, 20);
        assert_eq!((rule.end_minute(59_999), rule.ambiguous_percent()), (None, None), "it is not over");
        assert_eq!((rule.end_minute(60_000), rule.ambiguous_percent()), (Some(20), Some(20)));
        fills(89, 10);
        assert_eq!((rule.end_minute(119_999), rule.ambiguous_percent()), (None, Some(20)));
        assert_eq!((rule.end_minute(120_000), rule.ambiguous_percent()), (None, None), "a tenth is not more");
        fills(0, 4);
        assert_eq!(rule.end_minute(180_000), None, "few");
        rule.counters().reset();
        assert_eq!(rule.end_minute(240_000), None);
    }

    #[test]
    fn a_herd_that_began_after_a_whole_hold_is_learned() {
        let rule = RuleState::new(Policy { hold_ms: 400, ..Policy::default() });
        rule.end(&rule.begin(0), true, Some(100), 2000);
        assert_eq!(rule.p90_ms(), None);
        rule.end(&rule.begin(0), true, Some(400), 2000);
        assert_eq!(rule.p90_ms(), Some(2000));
        assert_eq!(rule.predict(&rule.begin(10_000), 10_000, 400), Prediction::TooLong);
    }

    #[test]
    fn waiting_is_predicted_and_one_lease_in_sixteen_tries() {
        let rule = RuleState::new(Policy { hold_ms: 400, ..Policy::default() });
        let begun = rule.begin(0);
        assert_eq!(rule.predict(&begun, 0, 400), Prediction::Fits, "nothing is known");
        rule.end(&begun, true, None, 2000);
        let mut probes = 0;
        for _ in 1..=32 {
            let begun = rule.begin(10_000);
            match rule.predict(&begun, 10_000, 400) {
                Prediction::Probe => probes += 1,
                Prediction::TooLong => {}
                Prediction::Fits => panic!(),
            }
            assert_eq!(rule.predict(&begun, 11_700, 400), Prediction::Fits, "it is nearly done");
            rule.end(&begun, false, None, 10_000);
        }
        assert_eq!(probes, 2);
    }
}
