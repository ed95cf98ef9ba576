//! Rules that observe: what they would do, from requests that are answered as if their keys had no rule.
//!
//! An [`Observer`] is the part of one shard. It is told of misses, stores, deletes and closed connections of
//! keys whose rule observes, keeps a lease as the rule would have granted it, and counts in the rule's
//! counters. It answers nobody, takes no number of the clock and sets no timer: deadlines and ends of holds
//! are noticed at the next request of the key, or by [`Observer::sweep`].
//!
//! # How it differs from the rule itself
//! * A client that would have been held computes today, and stores. So the first store after the miss ends a
//!   lease: it is the one that the held clients would have waited for. What the others store later is told
//!   from ordinary writes by their number only ([`ObservedKey::echoes`]).
//! * Computing takes as long as it takes today, beside all others that compute the same.
//! * `rule_computers`, circles of waiting connections, and the last free connection of a client are not taken
//!   into account. Each key of a get of several is taken alone.
//! * Numbers are its own: those of the clock with room for 65,536 of its own between any two.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::account::{FillMoment, Judgement, ValueHashes};
use crate::hash::BuildIdentity;
use crate::lease::LeaseKind;
use crate::ledger::{Events, FillVerdict, Ledger, Surroundings};
use crate::pass::{FailingKey, PassList};
use crate::policy::{Ambiguous, RuleCounters};
use crate::rule::{ComputeStart, Prediction, RuleState, count};

/// Numbers of an observer between two of the clock, as a power of two.
const OWN_BITS: u32 = 16;
/// Bytes of a key with its places in the tables.
const KEY_BYTES: usize = size_of::<ObservedKey>()
    + 16
    + (size_of::<(u64, Box<ObservedKey>)>() + 1 + size_of::<(u64, FailingKey)>() + 1) * 16 / 7;
/// Fewest keys of a shard.
const KEYS_LEAST: usize = 64;
/// Bytes of a shard's open misses, at least.
const LEDGER_LEAST: usize = 16 << 10;
/// Different times at which held gets have come that are told apart: each stands for an eighth of the hold.
const TIMES: usize = 9;
/// No connection: a loader, or a client that is not known.
const NOBODY: u64 = u64::MAX;

/// A get of a key under a rule that observes, which was answered as a miss.
#[derive(Debug, Clone, Copy)]
pub struct ObservedMiss<'a> {
    /// The key's hash.
    pub hash: u64,
    /// The key's rule.
    pub rule: &'a Arc<RuleState>,
    /// The connection.
    pub connection: u64,
    /// The connection has sent more while it waited: several threads share it.
    pub is_shared: bool,
    /// The value that the rule would have found.
    pub found: LeaseKind,
    /// Until when it would have been served, in milliseconds since the start.
    pub old_until_ms: u64,
    /// The clock's last number.
    pub clock: u64,
    /// Milliseconds since the start.
    pub now_ms: u64,
}

/// A value of such a key that is about to be stored.
#[derive(Debug, Clone, Copy)]
pub struct ObservedStore<'a> {
    /// The key's hash.
    pub hash: u64,
    /// The key's rule.
    pub rule: &'a RuleState,
    /// Numbers of the last events from outside the shard that concern the key.
    pub outside: Events,
    /// The clock's last number.
    pub clock: u64,
    /// Milliseconds since the start.
    pub now_ms: u64,
}

/// Why a lease passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassCause {
    Close,
    Deadline,
    Invalidated,
    GaveUp,
}

impl PassCause {
    fn counter(self, counters: &RuleCounters) -> &AtomicU64 {
        match self {
            Self::Close => &counters.promoted_close,
            Self::Deadline => &counters.promoted_deadline,
            Self::Invalidated => &counters.promoted_invalidated,
            Self::GaveUp => &counters.promoted_gave_up,
        }
    }
}

/// Gets that would be held: when they came, oldest first.
#[derive(Debug, Default)]
struct HeldGets {
    times: [(u64, u32); TIMES],
    len: usize,
    count: u32,
}

impl HeldGets {
    fn push(&mut self, now_ms: u64, hold_ms: u32) {
        self.count += 1;
        let apart_ms = u64::from(hold_ms / 8).max(1);
        if let Some((at_ms, count)) = self.times[..self.len].last_mut()
            && (now_ms < *at_ms + apart_ms || self.len == TIMES)
        {
            *count += 1;
            return;
        }
        self.times[self.len] = (now_ms, 1);
        self.len += 1;
    }

    /// Takes out those whose hold is over at `now_ms`. Returns how many, and when the first one was over.
    fn expire(&mut self, now_ms: u64, hold_ms: u32) -> Option<(u32, u64)> {
        let hold_ms = u64::from(hold_ms);
        let over = self.times[..self.len].iter().take_while(|(at_ms, _)| at_ms + hold_ms <= now_ms).count();
        if over == 0 {
            return None;
        }
        let gone = self.times[..over].iter().map(|(_, count)| count).sum();
        let first_ms = self.times[0].0 + hold_ms;
        self.times.copy_within(over..self.len, 0);
        self.len -= over;
        self.count -= gone;
        Some((gone, first_ms))
    }

    /// Takes the head of the queue.
    fn pop(&mut self) -> Option<u64> {
        let (at_ms, count) = self.times[..self.len].first_mut()?;
        let came_ms = *at_ms;
        *count -= 1;
        self.count -= 1;
        if *count == 0 {
            self.times.copy_within(1..self.len, 0);
            self.len -= 1;
        }
        Some(came_ms)
    }

    fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// A lease that there would be.
#[derive(Debug)]
struct LikelyLease {
    begun: ComputeStart,
    holder: u64,
    kind: LeaseKind,
    /// Until when the old value is served.
    old_until_ms: u64,
    deadline_ms: u64,
    /// The holder's connection was closed.
    closing: bool,
    reentries: u8,
    computers: u32,
    joined_ms: Option<u64>,
    held: HeldGets,
}

/// A key with a lease, or whose clients still compute though they would have been given the value.
#[derive(Debug)]
struct ObservedKey {
    rule: Arc<RuleState>,
    lease: Option<LikelyLease>,
    /// Clients that compute today and would not have: what they store is not looked at.
    echoes: u32,
    echoes_until_ms: u64,
}

/// One shard's part of the rules that observe.
#[derive(Debug)]
pub struct Observer {
    keys: HashMap<u64, Box<ObservedKey>, BuildIdentity>,
    most: usize,
    passes: PassList,
    ledger: Ledger,
    bytes: usize,
    /// The last number.
    number: u64,
}

impl Observer {
    /// An observer that takes about `bytes` bytes at most: half for leases, half for open misses.
    pub fn new(bytes: usize) -> Self {
        let most = (bytes / 2 / KEY_BYTES).max(KEYS_LEAST);
        Self {
            keys: HashMap::with_hasher(BuildIdentity),
            most,
            passes: PassList::new(most),
            ledger: Ledger::new((bytes / 2).max(LEDGER_LEAST)),
            bytes,
            number: 0,
        }
    }

    /// Keys that it keeps.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the observer keeps no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether this connection would have the key's lease.
    pub fn holds(&self, hash: u64, connection: u64) -> bool {
        let lease = self.keys.get(&hash).and_then(|key| key.lease.as_ref());
        lease.is_some_and(|lease| lease.holder == connection)
    }

    fn next_number(&mut self, clock: u64) -> u64 {
        self.number = (self.number + 1).max(clock << OWN_BITS);
        self.number
    }

    /// A get was answered as a miss. True: this connection would have the lease, and [`Observer::closed`]
    /// must be called when it closes.
    pub fn missed(&mut self, missed: &ObservedMiss<'_>) -> bool {
        let ObservedMiss { hash, rule, now_ms, .. } = *missed;
        let policy = rule.policy();
        self.sweep_key(hash, missed.clock, now_ms);
        if !policy.leases {
            self.record(hash, rule, missed.clock, now_ms);
            return false;
        }
        let counters = rule.counters();
        if let Some(key) = self.keys.get_mut(&hash)
            && let Some(lease) = &mut key.lease
        {
            if lease.kind.is_served() && now_ms < lease.old_until_ms {
                count(&counters.computes_saved);
                if lease.kind == LeaseKind::Stale {
                    count(&counters.stale_served);
                }
                key.echoes += 1;
                return false;
            }
            let is_own = lease.holder == missed.connection && !missed.is_shared;
            let refused = if is_own {
                lease.reentries = lease.reentries.saturating_add(1);
                Some(&counters.reentries)
            } else if policy.hold_ms == 0 {
                Some(&counters.busy_no_hold)
            } else if lease.held.count >= policy.max_waiters {
                Some(&counters.busy_waiters)
            } else if rule.predict(&lease.begun, now_ms, policy.hold_ms) == Prediction::TooLong {
                Some(&counters.busy_prediction)
            } else {
                None
            };
            let Some(counter) = refused else {
                count(&counters.held);
                lease.held.push(now_ms, policy.hold_ms);
                key.echoes += 1;
                return false;
            };
            count(counter);
            if !is_own {
                lease.join(1, now_ms);
                rule.begin_unleased();
            }
            self.record(hash, rule, missed.clock, now_ms);
            return false;
        }
        if !policy.loader && self.passes.passes(hash, now_ms) {
            count(&counters.pass_misses);
            self.record(hash, rule, missed.clock, now_ms);
            return false;
        }
        self.grant(missed)
    }

    /// The key has no lease: the client, or the loader, gets it.
    fn grant(&mut self, missed: &ObservedMiss<'_>) -> bool {
        let ObservedMiss { hash, rule, found, now_ms, .. } = *missed;
        let (policy, counters) = (rule.policy(), rule.counters());
        let has_room = self.keys.len() < self.most || self.keys.contains_key(&hash);
        if !has_room {
            count(&counters.observed_lost);
            return false;
        }
        count(match found {
            LeaseKind::Absent | LeaseKind::Past => &counters.leases,
            LeaseKind::Stale => &counters.leases_stale,
            LeaseKind::Early => &counters.leases_early,
        });
        let mut lease = LikelyLease {
            begun: rule.begin(now_ms),
            holder: if policy.loader { NOBODY } else { missed.connection },
            kind: found,
            old_until_ms: missed.old_until_ms,
            deadline_ms: now_ms + u64::from(rule.lease_ms()),
            closing: false,
            reentries: 0,
            computers: 1,
            joined_ms: None,
            held: HeldGets::default(),
        };
        if policy.loader {
            count(&counters.loads);
            if found.is_served() {
                count(&counters.loads_refresh);
                if found == LeaseKind::Stale {
                    count(&counters.computes_saved);
                    count(&counters.stale_served);
                }
            } else {
                // The client that asks first waits as well.
                count(&counters.held);
                lease.held.push(now_ms, policy.hold_ms);
            }
        }
        let key = self.keys.entry(hash).or_insert_with(|| {
            Box::new(ObservedKey { rule: Arc::clone(rule), lease: None, echoes: 0, echoes_until_ms: 0 })
        });
        key.rule = Arc::clone(rule);
        key.lease = Some(lease);
        self.record(hash, rule, missed.clock, now_ms);
        !policy.loader
    }

    fn record(&mut self, hash: u64, rule: &RuleState, clock: u64, now_ms: u64) {
        let number = self.next_number(clock);
        if !self.ledger.record(hash, number, Events::default(), now_ms, rule.fill_window_ms()) {
            count(&rule.counters().misses_lost);
        }
    }

    /// A value is about to be stored by a command that may be a fill. What the key's account would say of it;
    /// None: no miss of the key is open. [`Observer::stored`] or [`Observer::not_stored`] must follow.
    pub fn judge(&mut self, stored: &ObservedStore<'_>, values: &dyn ValueHashes) -> Option<FillVerdict> {
        let ObservedStore { hash, rule, outside, now_ms, .. } = *stored;
        if !self.ledger.has(hash) {
            return None;
        }
        let policy = rule.policy();
        let strict = policy.loader || policy.ambiguous == Ambiguous::Drop;
        let moment = FillMoment { now_ms, p99_ms: rule.fill_p99_ms(), strict };
        let own = |number: u64| number << OWN_BITS;
        let outside = Events { hard: own(outside.hard), soft: own(outside.soft) };
        let around = Surroundings { outside, ..Surroundings::default() };
        Some(self.ledger.fill(hash, &around, &moment, values))
    }

    /// The value was not stored for lack of room, and its command comes again.
    pub fn not_stored(&mut self, hash: u64) {
        self.ledger.undo(hash);
    }

    /// The value was stored, of which [`Observer::judge`] has said this.
    pub fn stored(&mut self, stored: &ObservedStore<'_>, judged: Option<FillVerdict>) {
        let ObservedStore { hash, rule, clock, now_ms, .. } = *stored;
        self.sweep_key(hash, clock, now_ms);
        let judged = judged.filter(|judged| judged.judgement != Judgement::Write);
        if let Some(judged) = &judged {
            rule.count_fill(judged.judgement);
            if let Some(ms) = judged.sample_ms {
                rule.learn_fill(ms);
            }
        }
        let is_kept = judged.as_ref().is_none_or(|judged| judged.judgement.stores());
        let key = self.keys.get_mut(&hash);
        let has_lease = key.as_ref().is_some_and(|key| key.lease.is_some());
        if judged.is_none() && !has_lease {
            match key.filter(|key| key.echoes > 0) {
                Some(key) => {
                    key.echoes -= 1;
                    if key.echoes == 0 {
                        self.keys.remove(&hash);
                    }
                }
                None => count(&rule.counters().writes_unmissed),
            }
            return;
        }
        if is_kept {
            self.passes.filled(hash);
            self.end_filled(hash, now_ms);
        } else {
            self.pass_on(hash, PassCause::GaveUp, clock, now_ms);
        }
    }

    /// The key has a value now: held gets would get it.
    fn end_filled(&mut self, hash: u64, now_ms: u64) {
        let Some(key) = self.keys.get_mut(&hash) else { return };
        let Some(mut lease) = key.lease.take() else { return };
        let (rule, held) = (&key.rule, lease.held.take());
        let counters = rule.counters();
        for (came_ms, count) in &held.times[..held.len] {
            counters.waited_all(u64::from(*count), now_ms.saturating_sub(*came_ms));
        }
        counters.held_filled.fetch_add(held.count.into(), Relaxed);
        counters.computes_saved.fetch_add(held.count.into(), Relaxed);
        rule.end(&lease.begun, true, lease.joined_ms, now_ms);
        let took_ms = now_ms.saturating_sub(lease.begun.ms);
        key.echoes_until_ms = now_ms + (2 * took_ms).max(u64::from(rule.lease_ms()));
        if key.echoes == 0 {
            self.keys.remove(&hash);
        }
    }

    /// The key was deleted, or changed by a command that cannot be a fill (`has_value`: it has a value now).
    pub fn changed(&mut self, hash: u64, has_value: bool, clock: u64, now_ms: u64) {
        self.sweep_key(hash, clock, now_ms);
        let number = self.next_number(clock);
        self.ledger.harden(hash, number);
        self.passes.forgive(hash);
        if has_value {
            self.passes.filled(hash);
            self.end_filled(hash, now_ms);
        } else {
            self.pass_on(hash, PassCause::Invalidated, clock, now_ms);
        }
    }

    /// A value of the key was refused: the computation ends without one.
    pub fn refused(&mut self, hash: u64, clock: u64, now_ms: u64) {
        self.sweep_key(hash, clock, now_ms);
        self.unset(hash, now_ms);
        self.pass_on(hash, PassCause::GaveUp, clock, now_ms);
    }

    /// A connection that may have the key's lease was closed.
    pub fn closed(&mut self, hash: u64, connection: u64, orderly: bool, clock: u64, now_ms: u64) {
        if let Some(key) = self.keys.get_mut(&hash)
            && let Some(lease) = key.lease.as_mut().filter(|lease| lease.holder == connection)
        {
            let close_grace_ms = if orderly { key.rule.policy().close_grace_ms } else { 0 };
            lease.closing = true;
            lease.deadline_ms = lease.deadline_ms.min(now_ms + u64::from(close_grace_ms));
            self.sweep_key(hash, clock, now_ms);
        }
    }

    /// Ends what is over, once per second, and forgets keys of which nothing is expected.
    pub fn sweep(&mut self, clock: u64, now_ms: u64) {
        let due = self.keys.iter().filter(|(_, key)| key.is_due(now_ms));
        let all: Vec<u64> = due.map(|(hash, _)| *hash).collect();
        for hash in all {
            self.sweep_key(hash, clock, now_ms);
        }
        self.keys.retain(|_, key| key.lease.is_some() || key.echoes_until_ms > now_ms);
        self.ledger.sweep(now_ms);
    }

    /// Other rules are in force: what was observed ends.
    pub fn clear(&mut self, now_ms: u64) {
        for key in self.keys.values_mut() {
            if let Some(lease) = key.lease.take() {
                key.rule.counters().held_unruled.fetch_add(lease.held.count.into(), Relaxed);
                key.rule.end(&lease.begun, false, None, now_ms);
            }
        }
        *self = Self { number: self.number, ..Self::new(self.bytes) };
    }

    /// Lets the time pass for a key: holds that end, and deadlines.
    fn sweep_key(&mut self, hash: u64, clock: u64, now_ms: u64) {
        // A lease that passes on again and again has its own time each time.
        for _ in 0..TIMES {
            let Some(key) = self.keys.get_mut(&hash) else { return };
            let Some(lease) = &mut key.lease else { return };
            let until_ms = now_ms.min(lease.deadline_ms);
            let hold_ms = key.rule.policy().hold_ms;
            if let Some((gone, first_ms)) = lease.held.expire(until_ms, hold_ms) {
                let rule = Arc::clone(&key.rule);
                let counters = rule.counters();
                counters.hold_expired.fetch_add(gone.into(), Relaxed);
                counters.waited_all(gone.into(), hold_ms.into());
                // They compute from then on.
                key.echoes = key.echoes.saturating_sub(gone);
                lease.join(gone, first_ms);
                for _ in 0..gone.min(TIMES as u32) {
                    rule.begin_unleased();
                    self.record(hash, &rule, clock, first_ms);
                }
            }
            let Some(lease) = self.keys.get(&hash).and_then(|key| key.lease.as_ref()) else { return };
            let (deadline_ms, closing) = (lease.deadline_ms, lease.closing);
            if deadline_ms > now_ms {
                return;
            }
            if closing {
                self.pass_on(hash, PassCause::Close, clock, deadline_ms);
            } else {
                self.unset(hash, deadline_ms);
                self.pass_on(hash, PassCause::Deadline, clock, deadline_ms);
            }
        }
    }

    /// A lease ends unfilled.
    fn unset(&mut self, hash: u64, now_ms: u64) {
        let Some(key) = self.keys.get(&hash) else { return };
        let Some(lease) = &key.lease else { return };
        let (policy, counters) = (key.rule.policy(), key.rule.counters());
        count(&counters.unset);
        if lease.kind == LeaseKind::Absent
            && !policy.loader
            && self.passes.unset(hash, policy.pass_after, policy.pass_for_ms, now_ms)
        {
            count(&counters.pass_entered);
        }
    }

    /// The lease passes to the next held get; without one it ends.
    fn pass_on(&mut self, hash: u64, cause: PassCause, clock: u64, now_ms: u64) {
        let Some(key) = self.keys.get_mut(&hash) else { return };
        let Some(lease) = &mut key.lease else { return };
        let rule = Arc::clone(&key.rule);
        rule.end(&lease.begun, false, None, now_ms);
        let counters = rule.counters();
        if self.passes.passes(hash, now_ms) {
            // Its waiters are let go.
            let held = lease.held.take();
            counters.held_passed.fetch_add(held.count.into(), Relaxed);
            key.echoes = key.echoes.saturating_sub(held.count);
        }
        let Some(came_ms) = lease.held.pop() else {
            key.lease = None;
            key.echoes_until_ms = now_ms + u64::from(rule.lease_ms());
            if key.echoes == 0 {
                self.keys.remove(&hash);
            }
            return;
        };
        count(cause.counter(counters));
        counters.waited(now_ms.saturating_sub(came_ms));
        lease.begun = rule.begin(now_ms);
        lease.deadline_ms = now_ms + u64::from(rule.lease_ms());
        (lease.closing, lease.reentries, lease.computers, lease.joined_ms) = (false, 0, 1, None);
        if cause == PassCause::Invalidated {
            lease.kind = LeaseKind::Absent;
        }
        if rule.policy().loader {
            // The get goes on waiting, for another job.
            count(&counters.loads);
            count(&counters.loads_again);
            count(&counters.held);
            lease.held.push(now_ms, rule.policy().hold_ms);
        } else {
            // Which connection it was is not kept.
            lease.holder = NOBODY;
            key.echoes = key.echoes.saturating_sub(1);
        }
        self.record(hash, &rule, clock, now_ms);
    }
}

impl LikelyLease {
    /// Clients compute beside the holder.
    fn join(&mut self, clients: u32, now_ms: u64) {
        self.computers = self.computers.saturating_add(clients);
        self.joined_ms.get_or_insert(now_ms);
    }
}

impl ObservedKey {
    fn is_due(&self, now_ms: u64) -> bool {
        let hold_ms = u64::from(self.rule.policy().hold_ms);
        self.lease.as_ref().is_some_and(|lease| {
            lease.deadline_ms <= now_ms
                || lease.held.times[..lease.held.len]
                    .first()
                    .is_some_and(|(at_ms, _)| at_ms + hold_ms <= now_ms)
        })
    }
}

#[cfg(test)]
mod tests;
