//! The computations of a rule: how many there may be at once ([`Slots`]), and what is learned from them
//! ([`Times`], [`FillTimes`]).
//!
//! # Slots of a rule with `rule_computers`
//! A connection that computes a key of the rule may need another key of the rule for it: if that computation
//! had to wait for a slot, it could wait for the connection's own. Such a nested computation begins although
//! no slot is free, at most [`NESTED_MAX`] for a connection. It takes a slot all the same: other leases wait
//! until the number of computations is below the limit again.
//!
//! A slot of a loader belongs to a job, and not to a lease: it is taken until the job ends, even if its lease
//! has ended before.
//!
//! A lease that gets a slot while it waits is usually in another shard. Until that shard is told, the lease
//! has no holder and the slot counts as taken.
//!
//! # Times
//! What is learned is how long computations take, how long fills are computed at least, and from these how
//! long before its expiry a value is refreshed.
//!
//! [`Times`] are those of the last undisturbed computations: a computation that others of its rule or its key
//! slowed down is left out, unless it was faster than expected or no undisturbed one has been seen for a
//! while. [`FillTimes`] are those of all fills, disturbed or not: they decide how long a value that may be
//! old is served, and how long after an event fills are probably old.
//!
//! # Invariants
//! * No computation begins while the limit is reached, except nested ones. So at most `limit` connections
//!   compute.
//! * While a slot is free no lease waits, once [`Slots::admit`] was called after a change of the limit.

use std::collections::{BTreeMap, HashMap};

use crate::policy::Early;

/// Most leases of a rule that wait for a slot. Further ones are answered as the rule's `on_busy` says.
pub const QUEUED_MAX: usize = 8192;
/// Computations that a connection may begin beyond the limit, while it computes under the rule.
pub const NESTED_MAX: u32 = 2;

/// The slots of a rule with `rule_computers`.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Number of slots; None: no limit.
    limit: Option<u32>,
    /// Leases that compute, and leases that are admitted and whose shard has not been told.
    taken: u32,
    /// Leases that compute, by connection.
    computing: HashMap<u64, u32>,
    /// Leases that wait, by token, which is their order; with the hash of their key.
    queue: BTreeMap<u64, u64>,
}

/// The answer to a lease that asks to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotAnswer {
    /// A slot.
    Granted,
    /// A slot beyond the limit.
    Nested,
    /// A place in the queue.
    Queued,
    /// No slot, and the lease cannot wait.
    Refused,
    /// No slot, and [`QUEUED_MAX`] leases wait already.
    QueueFull,
}

impl Slots {
    pub(crate) fn set_limit(&mut self, limit: Option<u32>) {
        self.limit = limit;
    }

    /// Slots that are taken.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Connections that compute.
    #[cfg(any(test, fuzzing, feature = "verify"))]
    pub(crate) fn connections(&self) -> usize {
        self.computing.len()
    }

    /// Whether this connection computes.
    pub(crate) fn has(&self, connection: u64) -> bool {
        self.computing.contains_key(&connection)
    }

    /// Leases that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// A lease of this connection (None: of a loader) asks to compute. `queue`: the hash of its key and its
    /// token, if it can wait for a slot.
    pub(crate) fn start(&mut self, connection: Option<u64>, queue: Option<(u64, u64)>) -> SlotAnswer {
        let start = self.grant(connection);
        match (start, queue) {
            (Some(start), _) => start,
            (None, None) => SlotAnswer::Refused,
            (None, Some(_)) if self.queue.len() >= QUEUED_MAX => SlotAnswer::QueueFull,
            (None, Some((hash, token))) => {
                self.queue.insert(token, hash);
                SlotAnswer::Queued
            }
        }
    }

    /// A lease of this connection (None: of a loader) has ended. Returns the leases that have a slot now.
    pub(crate) fn finish(&mut self, connection: Option<u64>) -> Vec<(u64, u64)> {
        self.release(connection);
        self.admit()
    }

    /// A lease passes from one connection to another. It keeps its slot if the limit allows it; otherwise it
    /// is queued.
    pub(crate) fn pass(&mut self, from: u64, to: u64, queue: (u64, u64)) -> SlotAnswer {
        self.release(Some(from));
        self.claim(Some(to), queue)
    }

    /// A lease that goes on takes a slot, or is queued, whatever the length of the queue.
    pub(crate) fn claim(&mut self, connection: Option<u64>, (hash, token): (u64, u64)) -> SlotAnswer {
        self.grant(connection).unwrap_or_else(|| {
            self.queue.insert(token, hash);
            SlotAnswer::Queued
        })
    }

    /// An admitted lease computes, on this connection (None: by a loader).
    pub(crate) fn take_admitted(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection {
            *self.computing.entry(connection).or_default() += 1;
        }
    }

    /// An admitted lease has ended before it began. Returns the leases that have a slot now.
    pub(crate) fn give_back_admitted(&mut self) -> Vec<(u64, u64)> {
        self.taken -= 1;
        self.admit()
    }

    /// A lease no longer waits.
    pub(crate) fn leave(&mut self, token: u64) {
        self.queue.remove(&token);
    }

    /// Gives free slots to the leases that wait, as (key's hash, token).
    pub(crate) fn admit(&mut self) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        while self.has_room()
            && let Some((token, hash)) = self.queue.pop_first()
        {
            self.taken += 1;
            admitted.push((hash, token));
        }
        admitted
    }

    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken < limit)
    }

    fn grant(&mut self, connection: Option<u64>) -> Option<SlotAnswer> {
        // A loader's jobs are not nested: each has a slot of its own.
        let own = connection.and_then(|connection| self.computing.get(&connection)).copied().unwrap_or(0);
        let start = if self.has_room() {
            SlotAnswer::Granted
        } else if (1..=NESTED_MAX).contains(&own) {
            SlotAnswer::Nested
        } else {
            return None;
        };
        self.taken += 1;
        if let Some(connection) = connection {
            self.computing.insert(connection, own + 1);
        }
        Some(start)
    }

    fn release(&mut self, connection: Option<u64>) {
        if let Some(connection) = connection {
            let Some(own) = self.computing.get_mut(&connection) else { return };
            *own -= 1;
            if *own == 0 {
                self.computing.remove(&connection);
            }
        }
        self.taken -= 1;
    }
}

/// Durations of the last [`Times::KEPT`] computations, in milliseconds.
#[derive(Debug, Default)]
pub struct Times {
    samples: Vec<u32>,
    /// Where the next sample goes when [`Times::KEPT`] are kept.
    at: usize,
    /// Computations in a row that were disturbed by others.
    disturbed: u32,
}

/// The computations that ran at the same time as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// No other computation of its rule was under way.
    Alone,
    /// Others of its rule ran, but none of its key.
    Beside,
    /// Several clients computed its key.
    Herd,
}

/// Disturbed computations in a row after which the next is learned nevertheless: a rule whose keys are always
/// computed in parallel would never learn otherwise.
const DISTURBED_MAX: u32 = 16;

impl Times {
    /// Samples kept.
    pub const KEPT: usize = 64;
    /// The number of last samples from which it is predicted whether waiting helps.
    pub const RECENT: usize = 16;
    /// The number of samples from which the lease time is derived.
    pub const ENOUGH: usize = 8;

    /// A computation took `ms` milliseconds.
    ///
    /// A herd slows itself down: its time is learned only if it is less than expected.
    pub fn learn(&mut self, ms: u32, ran: Overlap) {
        let less = self.recent(90).is_some_and(|p90| ms < p90);
        match ran {
            Overlap::Alone => self.disturbed = 0,
            _ if less => {}
            Overlap::Beside if self.disturbed >= DISTURBED_MAX => {}
            Overlap::Beside | Overlap::Herd => {
                self.disturbed = self.disturbed.saturating_add(1);
                return;
            }
        }
        if self.samples.len() < Self::KEPT {
            self.samples.push(ms);
        } else {
            self.samples[self.at] = ms;
        }
        self.at = (self.at + 1) % Self::KEPT;
    }

    /// A probe ended in time although it was expected to take longer: what was learned is out of date.
    pub fn forget(&mut self) {
        self.samples.clear();
        self.at = 0;
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// There is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The `percent`th percentile of all samples, in milliseconds; None without a sample. `percent`: 1..=100.
    pub fn percentile(&self, percent: usize) -> Option<u32> {
        let mut samples = [0; Self::KEPT];
        let samples = &mut samples[..self.samples.len()];
        samples.copy_from_slice(&self.samples);
        nearest_rank(samples, percent)
    }

    /// This percentile of the last [`Times::RECENT`] samples, in milliseconds.
    pub fn recent(&self, percent: usize) -> Option<u32> {
        let count = self.samples.len().min(Self::RECENT);
        let mut last = [0; Self::RECENT];
        for (back, ms) in last.iter_mut().take(count).enumerate() {
            *ms = self.samples[(self.at + Self::KEPT - 1 - back) % Self::KEPT];
        }
        nearest_rank(&mut last[..count], percent)
    }
}

/// The percentile by nearest rank.
fn nearest_rank(samples: &mut [u32], percent: usize) -> Option<u32> {
    if samples.is_empty() {
        return None;
    }
    let rank = (samples.len() * percent).div_ceil(100).clamp(1, samples.len());
    Some(*samples.select_nth_unstable(rank - 1).1)
}

/// Fills that are remembered.
const KEPT: usize = 200;
/// Fills from which on something is learned.
const ENOUGH: usize = 8;

/// How long the last fills of a rule were computed, at least.
#[derive(Debug, Default)]
pub(crate) struct FillTimes {
    /// In milliseconds.
    samples: Vec<u32>,
    /// Where the next one goes when all places are taken.
    at: usize,
    /// The largest and the second largest.
    top: [u32; 2],
}

impl FillTimes {
    /// Learns one. Returns the p99, in milliseconds, if there are enough.
    pub(crate) fn learn(&mut self, ms: u32) -> Option<u32> {
        if self.samples.len() < KEPT {
            self.samples.push(ms);
            self.raise(ms);
        } else {
            let old = std::mem::replace(&mut self.samples[self.at], ms);
            self.at = (self.at + 1) % KEPT;
            if old >= self.top[1] {
                self.top = [0; 2];
                (0..KEPT).for_each(|at| self.raise(self.samples[at]));
            } else {
                self.raise(ms);
            }
        }
        self.p99()
    }

    fn raise(&mut self, ms: u32) {
        if ms > self.top[0] {
            self.top = [ms, self.top[0]];
        } else {
            self.top[1] = self.top[1].max(ms);
        }
    }

    /// The longest of those that are remembered, in milliseconds.
    pub(crate) fn longest(&self) -> Option<u32> {
        (!self.samples.is_empty()).then_some(self.top[0])
    }

    /// The sample at rank `len * 99 / 100`, from 0: of up to 100 the largest, of up to 200 the second
    /// largest.
    fn p99(&self) -> Option<u32> {
        (self.samples.len() >= ENOUGH).then(|| self.top[usize::from(self.samples.len() > KEPT / 2)])
    }

    /// The p50 and the p99, in milliseconds.
    pub(crate) fn middle_and_p99(&self) -> Option<(u32, u32)> {
        let p99 = self.p99()?;
        let mut samples = self.samples.clone();
        let middle = samples.len() / 2;
        Some((*samples.select_nth_unstable(middle).1, p99))
    }
}

/// How many seconds before its expiry one reader is sent to refresh a value with a time to live of `ttl_s`
/// seconds, rounded up to whole seconds. [`Early::Share`]: that share of the time to live. [`Early::Auto`]:
/// 1.5 times the learned p90 (`p90_ms`, in milliseconds), jittered by up to 20 % by the key's hash, at most a
/// quarter of the time to live. 0: no early refresh, because nothing is learned or the time to live is too
/// short.
///
/// The jitter prevents that keys stored together become due together.
pub fn refresh_lead_s(early: Early, ttl_s: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    match early {
        Early::Off => 0,
        Early::Share(ppm) => {
            let lead = (u64::from(ttl_s) * u64::from(ppm)).div_ceil(1_000_000);
            // Below the time to live, or the value would be due when it is stored.
            u32::try_from(lead).ok().filter(|lead| *lead < ttl_s).unwrap_or(0)
        }
        Early::Auto => learned_lead_s(ttl_s, p90_ms, hash),
    }
}

fn learned_lead_s(ttl_s: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    let ttl = u64::from(ttl_s) * 1000;
    let Some(p90) = p90_ms.map(u64::from) else { return 0 };
    // 80 to 120 per cent.
    let percent = 80 + (hash.rotate_left(24) % 41);
    let lead = (p90 * 3 / 2 * percent / 100).max(1).min(ttl / 4);
    // Items have times in seconds: the lead is at least one second, or the refresh would begin with the
    // expiry.
    let lead = u32::try_from(lead.div_ceil(1000)).unwrap_or(u32::MAX);
    if u64::from(lead) * 4000 > ttl { 0 } else { lead }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(limit: u32) -> Slots {
        Slots { limit: Some(limit), ..Slots::default() }
    }

    #[test]
    fn slots_pass_to_the_leases_that_wait() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        assert_eq!(slots.start(Some(2), Some((7, 70))), SlotAnswer::Queued);
        assert_eq!(slots.start(Some(3), None), SlotAnswer::Refused);
        assert_eq!(slots.finish(Some(1)), [(7, 70)]);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Refused, "it is taken before its lease is told");
        slots.take_admitted(Some(2));
        assert_eq!(slots.finish(Some(2)), []);
        assert_eq!((slots.taken(), slots.connections()), (0, 0));
    }

    #[test]
    fn a_nested_computation_counts_and_the_queue_drains_once_it_is_over() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        for _ in 0..NESTED_MAX {
            assert_eq!(slots.start(Some(1), None), SlotAnswer::Nested);
        }
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Refused, "deep enough");
        assert_eq!(slots.start(Some(2), Some((7, 70))), SlotAnswer::Queued);
        for _ in 0..NESTED_MAX {
            assert_eq!(slots.finish(Some(1)), [], "the limit is reached still");
        }
        assert_eq!(slots.finish(Some(1)), [(7, 70)]);
    }

    #[test]
    fn a_lease_that_passes_on_keeps_its_slot_unless_it_was_nested() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        assert_eq!(slots.pass(1, 2, (7, 70)), SlotAnswer::Granted);
        assert_eq!(slots.start(Some(2), None), SlotAnswer::Nested);
        assert_eq!(slots.pass(2, 3, (8, 80)), SlotAnswer::Queued);
        assert_eq!(slots.finish(Some(2)), [(8, 80)]);
    }

    #[test]
    fn jobs_of_a_loader_have_a_slot_each() {
        let mut slots = slots(2);
        assert_eq!([0; 2].map(|_| slots.start(None, None)), [SlotAnswer::Granted; 2]);
        assert_eq!(slots.start(None, Some((7, 70))), SlotAnswer::Queued, "not nested");
        assert_eq!(slots.claim(None, (8, 80)), SlotAnswer::Queued);
        assert_eq!(slots.finish(None), [(7, 70)]);
        slots.take_admitted(None);
        assert_eq!(slots.finish(None), [(8, 80)]);
        slots.take_admitted(None);
        assert_eq!([slots.finish(None), slots.finish(None)], [[], []]);
        assert_eq!((slots.taken(), slots.connections()), (0, 0));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut slots = slots(1);
        assert_eq!(slots.start(Some(1), None), SlotAnswer::Granted);
        for n in 0..QUEUED_MAX as u64 {
            assert_eq!(slots.start(Some(2), Some((n, n))), SlotAnswer::Queued);
        }
        assert_eq!(slots.start(Some(2), Some((1, 99_999))), SlotAnswer::QueueFull);
        slots.leave(5);
        assert_eq!(slots.start(Some(2), Some((1, 99_999))), SlotAnswer::Queued);
        assert_eq!(slots.finish(Some(1)), [(0, 0)]);
    }

    #[test]
    fn a_new_limit_counts_at_once() {
        let mut slots = slots(2);
        assert_eq!([1, 2].map(|n| slots.start(Some(n), None)), [SlotAnswer::Granted; 2]);
        assert_eq!([3, 4, 5].map(|n| slots.start(Some(n), Some((n, n)))), [SlotAnswer::Queued; 3]);
        slots.set_limit(Some(1));
        assert_eq!(slots.finish(Some(1)), []);
        slots.set_limit(Some(3));
        assert_eq!(slots.admit(), [(3, 3), (4, 4)]);
        slots.set_limit(None);
        assert_eq!(slots.admit(), [(5, 5)]);
    }

    #[test]
    fn a_herd_does_not_teach_that_it_is_slow() {
        let mut times = Times::default();
        times.learn(900, Overlap::Herd);
        assert!(times.is_empty());
        times.learn(200, Overlap::Alone);
        times.learn(900, Overlap::Herd);
        assert_eq!(times.recent(90), Some(200));
        times.learn(100, Overlap::Herd);
        assert_eq!(times.len(), 2, "it took less although it was disturbed");
    }

    #[test]
    fn a_blip_is_forgotten_within_twenty_computations() {
        let mut times = Times::default();
        (0..30).for_each(|_| times.learn(200, Overlap::Alone));
        (0..20).for_each(|_| times.learn(1000, Overlap::Alone));
        assert_eq!(times.recent(90), Some(1000));
        (0..15).for_each(|_| times.learn(200, Overlap::Beside));
        assert_eq!(times.recent(90), Some(200));
    }

    #[test]
    fn a_rule_that_never_computes_alone_learns_too() {
        let mut times = Times::default();
        (0..16).for_each(|_| times.learn(2000, Overlap::Beside));
        assert!(times.is_empty());
        times.learn(2000, Overlap::Beside);
        assert_eq!(times.recent(90), Some(2000));
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut times = Times::default();
        assert_eq!(times.percentile(50), None);
        (1..=100).for_each(|ms| times.learn(ms, Overlap::Alone));
        assert_eq!(times.percentile(99), Some(100));
        assert_eq!(times.percentile(50), Some(68), "of 37..=100");
        assert_eq!(times.recent(90), Some(99), "of 85..=100");
    }

    #[test]
    fn it_is_the_percentile_of_the_last_200() {
        let mut times = FillTimes::default();
        let mut all: Vec<u32> = Vec::new();
        let mut random = 1_u32;
        for _ in 0..2_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let ms = random >> (16 + random % 16);
            all.push(ms);
            let p99 = times.learn(ms);
            let mut last = all[all.len().saturating_sub(200)..].to_vec();
            last.sort_unstable();
            let expected = (last.len() >= 8).then(|| last[last.len() * 99 / 100]);
            assert_eq!(p99, expected, "{}", all.len());
            if let Some((middle, _)) = times.middle_and_p99() {
                assert_eq!(middle, last[last.len() / 2]);
            }
        }
    }

    #[test]
    fn within_a_quarter_of_the_life() {
        for hash in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let lead = refresh_lead_s(Early::Auto, 60, Some(2000), hash);
            assert!((2..=4).contains(&lead), "{lead}");
            assert_eq!(refresh_lead_s(Early::Auto, 40, Some(60_000), hash), 10);
            assert_eq!(refresh_lead_s(Early::Auto, 3, Some(10), hash), 0, "too short");
        }
        assert_eq!(refresh_lead_s(Early::Auto, 60, None, 1), 0, "nothing learned");
    }

    #[test]
    fn the_last_part_of_the_life() {
        let lead = |ppm, ttl_s| refresh_lead_s(Early::Share(ppm), ttl_s, None, 7);
        assert_eq!(
            [(100_000, 60), (100_000, 5), (250_000, 60), (900_000, 10)].map(|(ppm, ttl)| lead(ppm, ttl)),
            [6, 1, 15, 9]
        );
        assert_eq!(
            [(100_000, 1), (900_000, 2)].map(|(ppm, ttl)| lead(ppm, ttl)),
            [0, 0],
            "it would be due at once"
        );
        assert_eq!(lead(900_000, u32::MAX), 3_865_470_566);
        assert_eq!(refresh_lead_s(Early::Off, 60, Some(2000), 1), 0);
    }
}
