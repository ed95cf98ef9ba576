//! The leases of one shard: the holder and the waiters of each. How a lease ends is in `end`.
//!
//! A key without a fresh value is asked for with [`Herd::ask`]. The first client gets the lease and a miss; a
//! client that asks while the lease lives may take a place in its queue with [`Herd::wait`]. The queue is in
//! order of arrival. A waiter leaves it when the value is stored, when it becomes the holder, when its time
//! is up ([`Herd::expire`]), when its wait is withdrawn ([`Herd::withdraw`]) or when its connection is closed
//! ([`Herd::forget_waiter`]). Each miss is noted in the ledger with the number of the clock at that moment,
//! so that its fill can be compared with later events of the key.
//!
//! # Invariants (walked by [`Herd::verify`])
//! * A key has at most one lease; each waiter is in the queue of one lease.
//! * A lease has a holder, or waits for a slot of its rule and has waiters.
//! * Exactly the leases that have a holder have a deadline.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::ask::{
    Ask, AskMode, Filler, HerdStep, HoldTerms, JobOrder, OldValueReader, Role, UnansweredKey, Verdict,
    WaitAnswer, WithdrawReason,
};
use crate::computing::SlotAnswer;
use crate::connection::{MissRecord, Session, SessionWait, WithheldKey};
use crate::hash::BuildIdentity;
use crate::lease::{
    Grant, Holder, Lease, LeaseKind, LeaseLimit, LeaseView, Leases, Waiter, WaiterId, WaiterQueue, Waiters,
    lease_ms,
};
use crate::ledger::{Events, Fence, Ledger, Surroundings};
use crate::pass::PassList;
use crate::policy::{FILL_WINDOW_AUTO_MS, OnBusy};
use crate::rule::{Prediction, RuleState, count};

mod end;
mod load;

pub use load::JobFailure;

/// The leases of one shard, with the holder and the waiters of each.
#[derive(Debug)]
pub struct Herd {
    leases: Leases,
    waiters: Waiters,
    passes: PassList,
    limit: Arc<LeaseLimit>,
    /// Tokens of leases that ended unfilled, at most `ended_max`: the oldest is dropped first.
    ended: HashMap<u64, EndedLease, BuildIdentity>,
    ended_order: VecDeque<u64>,
    ended_max: usize,
    /// Jobs of loaders that have begun and not ended, by their keys' hashes.
    jobs: HashMap<u64, load::Jobs, BuildIdentity>,
    /// Open misses.
    pub ledger: Ledger,
    /// The last events of keys, by slots. They are read for fills whose miss is known, and where misses are
    /// lost.
    pub fence: Fence,
}

/// The token of a lease that ended unfilled.
#[derive(Debug, Clone, Copy)]
struct EndedLease {
    /// The hash of its key.
    hash: u64,
    /// Until when a fill that shows the token counts as that lease's, in milliseconds since the start.
    until_ms: u64,
    /// Until when its miss counts in the ledger, in milliseconds since the start.
    missed_until_ms: u64,
}

/// Limits of a shard's tables.
#[derive(Debug, Clone)]
pub struct HerdConfig {
    /// The limit of the leases of all shards together.
    pub leases: Arc<LeaseLimit>,
    /// Most tokens of leases that ended unfilled, and most keys whose computations do not succeed; at least
    /// 1.
    pub ended: usize,
    /// Bytes for outstanding misses.
    pub ledger_bytes: usize,
    /// Bytes for the last events of keys.
    pub fence_bytes: usize,
}

/// Bytes of a lease with its key, for the memory budget.
pub const LEASE_BYTES: usize = 512;

impl Herd {
    /// A herd without leases.
    pub fn new(config: HerdConfig) -> Self {
        Self::with(
            config.leases,
            config.ended,
            Ledger::new(config.ledger_bytes),
            Fence::new(config.fence_bytes / Fence::SLOT_BYTES),
        )
    }

    /// A herd with the given tables, for tests of tiny ones.
    pub fn with(leases: Arc<LeaseLimit>, ended: usize, ledger: Ledger, fence: Fence) -> Self {
        Self {
            leases: Leases::new(),
            waiters: Waiters::default(),
            limit: leases,
            passes: PassList::new(ended),
            ended: HashMap::with_hasher(BuildIdentity),
            ended_order: VecDeque::new(),
            ended_max: ended.max(1),
            jobs: HashMap::with_hasher(BuildIdentity),
            ledger,
            fence,
        }
    }

    /// Gives the room of a quarter of the leases to rules that observe, or takes it back. Returns their
    /// bytes, of all shards together.
    pub fn lend(&self, on: bool) -> usize {
        self.limit.lend(on) * LEASE_BYTES
    }

    /// Records the miss of a client that was to get an old value which has gone: it computes beside the
    /// holder, if there is one.
    pub fn miss_beside<V>(&mut self, hash: u64, rule: &RuleState, step: &HerdStep<'_, V>) -> MissRecord {
        if let Some(lease) = self.leases.get_mut(hash) {
            lease.join(step.now_ms);
        }
        self.miss(hash, rule, step)
    }

    /// Records a miss without a lease. Events outside the shard that its key's account does not know yet are
    /// found at its next fill.
    pub fn miss<V>(&mut self, hash: u64, rule: &RuleState, step: &HerdStep<'_, V>) -> MissRecord {
        self.miss_after(hash, Events::default(), rule, step)
    }

    /// Answers a miss after these events outside the shard.
    pub fn miss_after<V>(
        &mut self,
        hash: u64,
        outside: Events,
        rule: &RuleState,
        step: &HerdStep<'_, V>,
    ) -> MissRecord {
        if rule.policy().leases && !rule.policy().loader {
            rule.begin_unleased();
        }
        self.record(hash, step.clock.last(), false, outside, rule, step)
    }

    /// Records the miss of a client that is answered an error, and may take it for a miss: some client
    /// libraries do.
    pub fn missed_by_error<V>(
        &mut self,
        hash: u64,
        outside: Events,
        rule: &RuleState,
        step: &HerdStep<'_, V>,
    ) -> MissRecord {
        self.record(hash, step.clock.last(), false, outside, rule, step)
    }

    fn missed<V>(&mut self, ask: &Ask<'_>, step: &HerdStep<'_, V>) -> MissRecord {
        self.miss_after(ask.hash, ask.outside, ask.rule, step)
    }

    fn record<V>(
        &mut self,
        hash: u64,
        number: u64,
        leased: bool,
        outside: Events,
        rule: &RuleState,
        step: &HerdStep<'_, V>,
    ) -> MissRecord {
        let window = self.window_ms(hash, leased, rule, step.now_ms);
        let is_kept = self.ledger.record(hash, number, outside, step.now_ms, window);
        if !is_kept {
            count(&rule.counters().misses_lost);
        }
        let until_ms = self.ledger.miss_ms(step.now_ms) + u64::from(window);
        if leased && let Some(lease) = self.leases.get_mut(hash).filter(|lease| lease.token == number) {
            lease.missed_until_ms = if is_kept { until_ms } else { 0 };
        }
        MissRecord { hash, number, until_ms, leased }
    }

    /// Records the miss of a client that may have computed the key since the clock showed this number: it was
    /// not told until now, or gives up. Events of the key since then are known by its slot of the fence only.
    pub fn record_since(&mut self, hash: u64, number: u64, window_ms: u32, now_ms: u64) -> MissRecord {
        self.ledger.record(hash, number, Events::default(), now_ms, window_ms);
        let events = self.fence.events_and_writes(hash);
        if events.last() > number {
            self.ledger.note(hash, events);
        }
        let until_ms = self.ledger.miss_ms(now_ms) + u64::from(window_ms);
        MissRecord { hash, number, until_ms, leased: false }
    }

    /// Records a miss of a key of which no rule is known any more: one may come back before the value does.
    pub fn miss_unruled<V>(&mut self, hash: u64, step: &HerdStep<'_, V>) -> MissRecord {
        self.record_since(hash, step.clock.last(), FILL_WINDOW_AUTO_MS, step.now_ms)
    }

    /// The server did not run for this many milliseconds, until now: misses, and tokens of leases that have
    /// ended, count for that much longer. Leases and waits end at their time.
    pub fn delay(&mut self, ms: u64, now_ms: u64) {
        self.ledger.delay(ms, now_ms);
        // 0: no miss of it counts.
        let delay = |until_ms: &mut u64| *until_ms += if *until_ms > 0 { ms } else { 0 };
        for ended in self.ended.values_mut() {
            ended.until_ms += ms;
            delay(&mut ended.missed_until_ms);
        }
        self.leases.each_mut(|lease| delay(&mut lease.missed_until_ms));
    }

    /// Surroundings of a key, of what is noted in this shard and outside it.
    pub fn surroundings(&self, hash: u64, outside: Events) -> Surroundings {
        let (slot, written) = (self.fence.events(hash), self.fence.events_and_writes(hash));
        Surroundings { outside, slot, written, start: None }
    }

    /// The key was deleted, by this number.
    pub fn note_hard(&mut self, hash: u64, number: u64) {
        self.fence.raise_hard(hash, number);
        self.ledger.harden(hash, number);
        self.passes.forgive(hash);
    }

    /// The key was written by a client that has not missed it, or was changed in place, by this number.
    pub fn note_written(&mut self, hash: u64, number: u64) {
        self.fence.raise_written(hash, number);
        self.ledger.harden(hash, number);
    }

    /// The key was invalidated softly, by this number.
    pub fn note_soft(&mut self, hash: u64, number: u64) {
        self.fence.raise_soft(hash, number);
        self.ledger.soften(hash, number);
        self.passes.restart(hash);
    }

    /// Rules or loaders are others from now on: keys whose computations have failed are computed at once.
    pub fn restart_failed(&mut self) {
        self.passes.restart_all();
    }

    /// How long a miss is remembered: a holder's at least until its deadline. (The deadline may have passed
    /// without having been handled.)
    fn window_ms(&self, hash: u64, leased: bool, rule: &RuleState, now_ms: u64) -> u32 {
        let window = rule.fill_window_ms();
        match self.leases.get(hash).filter(|_| leased) {
            Some(lease) => {
                window.max(u32::try_from(lease.deadline_ms.saturating_sub(now_ms)).unwrap_or(u32::MAX))
            }
            None => window,
        }
    }

    /// Answers a get of a key without a fresh value, or whose value is due for a refresh.
    pub fn ask<V>(&mut self, ask: &Ask<'_>, session: &Session, step: &mut HerdStep<'_, V>) -> Role {
        self.revoke_if_below(ask, step);
        let connection = session.caller().number();
        let counters = ask.rule.counters();
        match self.leases.get_mut(ask.hash) {
            // Another key of the same hash.
            Some(lease) if *lease.key != *ask.key => {
                if self.gets_old(ask) {
                    Role::Old
                } else {
                    Role::Miss(self.missed(ask, step))
                }
            }
            Some(lease) => {
                // The value may have been evicted or have expired meanwhile.
                if !ask.found.is_served() && lease.kind.is_served() && lease.job_out {
                    step.effects.jobs.push(JobOrder::Raise { token: lease.token });
                }
                lease.kind = lease.kind.min(ask.found);
                if ask.how.is_explicit()
                    && lease.may_be_taken_over(session.caller())
                    && !session.waits_for(ask.hash)
                {
                    return self.take_over(ask, session, step);
                }
                let fails = ask.found == LeaseKind::Past && self.passes.is_failing(ask.hash);
                if !ask.how.is_explicit() && lease.holder.is(connection) {
                    if lease.reentries < lease.rule.policy().reentry {
                        lease.reentries += 1;
                        count(&counters.reentries);
                        return Role::Miss(self.missed(ask, step));
                    }
                    return match ask.found {
                        LeaseKind::Stale | LeaseKind::Early => Role::Old,
                        LeaseKind::Past if fails => Role::Old,
                        LeaseKind::Absent | LeaseKind::Past if session.caller().sends_while_held() => {
                            Role::Leased
                        }
                        // Several threads may share the connection, each waiting for its own reply before it
                        // sends more.
                        LeaseKind::Absent | LeaseKind::Past
                            if ask.hold_ms > 0 && (!lease.tried || session.waits_for(ask.hash)) =>
                        {
                            lease.tried = true;
                            Role::Trial
                        }
                        LeaseKind::Absent | LeaseKind::Past => {
                            count(&counters.reentries);
                            Role::Miss(self.missed(ask, step))
                        }
                    };
                }
                // Of clients the first says what to compute, and the next holder is told the same; a loader's
                // next job is for the last.
                if let Some(hint) = ask.hint
                    && (lease.hint.is_none() || lease.rule.policy().loader)
                {
                    lease.hint = Some(hint.into());
                }
                match ask.found {
                    LeaseKind::Stale if ask.waits_for_new() => Role::Leased,
                    LeaseKind::Stale | LeaseKind::Early => Role::Old,
                    LeaseKind::Past if fails => Role::Old,
                    LeaseKind::Absent | LeaseKind::Past if lease.may_wait_for_itself(session.caller()) => {
                        Role::Trial
                    }
                    LeaseKind::Absent | LeaseKind::Past => Role::Leased,
                }
            }
            None => self.ask_unleased(ask, session, step),
        }
    }

    fn ask_unleased<V>(&mut self, ask: &Ask<'_>, session: &Session, step: &mut HerdStep<'_, V>) -> Role {
        let (rule, counters) = (ask.rule, ask.rule.counters());
        if rule.policy().loader {
            return self.ask_loader(ask, step);
        }
        let gets_old = self.gets_old(ask);
        if self.passes.passes(ask.hash, step.now_ms) {
            count(&counters.pass_misses);
            return match ask.how {
                AskMode::Plain | AskMode::Quiet if gets_old => Role::Old,
                AskMode::Plain | AskMode::Quiet => Role::Miss(self.missed(ask, step)),
                AskMode::Explicit { .. } => {
                    // The key is not worth a lease, but its fill must be known by its token.
                    rule.begin_unleased();
                    let record = self.record(ask.hash, step.clock.tick(), true, ask.outside, rule, step);
                    self.end_token(ask.hash, record.number, record.until_ms, rule, step.now_ms);
                    Role::Compute(Grant::new(record, ask.hint.map(Into::into)))
                }
            };
        }
        if self.passes.backs_off(ask.hash, gets_old, ask.outside.last(), step.now_ms) {
            return self.busy_for(ask, &counters.busy_failed, step);
        }
        // The client could not know that it is the holder before the replies ahead of this one are sent.
        if session.is_behind() {
            count(&counters.misses_behind);
            return if gets_old { Role::Old } else { Role::Miss(self.missed(ask, step)) };
        }
        if !self.has_room(rule, step) {
            return self.busy_for(ask, &counters.busy_leases, step);
        }
        let token = step.clock.tick();
        let may_queue = !gets_old && ask.hold_ms > 0;
        match rule.try_start(Some(session.caller().number()), may_queue.then_some((ask.hash, token))) {
            SlotAnswer::Granted | SlotAnswer::Nested => {}
            _ if gets_old => return Role::Old,
            SlotAnswer::Queued => {
                self.insert(ask, Holder::Queued, token, step);
                // If only one thread uses the connection, it would wait for itself.
                let lease = self.leases.get(ask.hash);
                let is_own = lease.is_some_and(|lease| lease.may_wait_for_itself(session.caller()));
                return if is_own { Role::Trial } else { Role::Leased };
            }
            SlotAnswer::Refused => return Role::Leased,
            SlotAnswer::QueueFull => return self.busy(ask, step),
        }
        let holder = Holder::new(session.caller(), ask.how);
        self.insert(ask, holder, token, step);
        self.passes.begun(ask.hash, step.now_ms);
        count(match ask.found {
            LeaseKind::Absent | LeaseKind::Past => &counters.leases,
            LeaseKind::Stale => &counters.leases_stale,
            LeaseKind::Early => &counters.leases_early,
        });
        let record = self.record(ask.hash, token, true, ask.outside, rule, step);
        Role::Compute(Grant::new(record, ask.hint.map(Into::into)))
    }

    /// Whether the client gets the old value if it is not to compute a new one: always one that is served,
    /// and one whose grace is over while computing fails.
    fn gets_old(&self, ask: &Ask<'_>) -> bool {
        ask.found.is_served() || ask.found == LeaseKind::Past && self.passes.is_failing(ask.hash)
    }

    fn insert<V>(&mut self, ask: &Ask<'_>, holder: Holder, token: u64, step: &HerdStep<'_, V>) {
        let rule = ask.rule;
        let queued = !holder.computes();
        // A lease that waits for its slot has no deadline of its own: its waiters have. A loader has the
        // rule's time, whatever the client would have for itself.
        let lease_ms = if holder.is_loader() { rule.lease_ms() } else { lease_ms(ask.how, rule) };
        let deadline_ms = if queued { u64::MAX } else { step.now_ms + u64::from(lease_ms) };
        let lease = Lease {
            key: ask.key.into(),
            token,
            kind: ask.found,
            holder,
            rule: Arc::clone(rule),
            deadline_ms,
            begun: (!queued).then(|| rule.begin(step.now_ms)),
            missed_until_ms: 0,
            closing: false,
            computers: u32::from(!queued),
            joined_ms: None,
            reentries: 0,
            tried: false,
            queue: WaiterQueue::default(),
            tags: ask.tags.into(),
            hint: ask.hint.map(Into::into),
            job_out: false,
        };
        self.limit.take(rule.leases());
        self.leases.insert(ask.hash, lease);
    }

    /// The answer to a client for which waiting does not help.
    fn busy<V>(&mut self, ask: &Ask<'_>, step: &mut HerdStep<'_, V>) -> Role {
        if self.gets_old(ask) {
            return Role::Old;
        }
        match ask.how.on_busy(ask.rule.policy()) {
            OnBusy::Miss => Role::Miss(self.missed(ask, step)),
            OnBusy::Error => Role::Busy(self.missed_by_error(ask.hash, ask.outside, ask.rule, step)),
        }
    }

    /// Answers that the key is busy, which is counted where no old value is given.
    fn busy_for<V>(&mut self, ask: &Ask<'_>, counter: &AtomicU64, step: &mut HerdStep<'_, V>) -> Role {
        if !self.gets_old(ask) {
            count(counter);
        }
        self.busy(ask, step)
    }

    /// After [`Role::Leased`]: takes a place in the key's queue if waiting can help.
    pub fn wait<V>(
        &mut self,
        ask: &Ask<'_>,
        hold: &HoldTerms,
        session: &mut Session,
        step: &mut HerdStep<'_, V>,
    ) -> WaitAnswer {
        let counters = ask.rule.counters();
        let softened = ask.outside.soft.max(self.fence.events(ask.hash).soft);
        let Some(lease) = self.leases.of_key(ask.hash, ask.key) else {
            if ask.found.is_served() {
                return WaitAnswer::Old;
            }
            // The rule's slots are taken, and the client does not wait for one.
            count(&counters.busy_no_hold);
            return self.send_away(ask, step);
        };
        let last = session.caller().peer().needs_free();
        // A client that does not compute needs no connection for the value: it is counted as held, and never
        // refused.
        let by_loader = lease.rule.policy().loader;
        if by_loader {
            session.take_free(false);
        }
        let trial = lease.may_wait_for_itself(session.caller());
        let is_served = ask.found.is_served();
        let hold_ms = if is_served { ask.wait_ms } else { ask.hold_ms };
        let refused: Option<&AtomicU64> = if hold_ms == 0 {
            Some(&counters.busy_no_hold)
        } else if !hold.room {
            Some(&counters.busy_all_waiters)
        } else if lease.queue.len() >= lease.rule.policy().max_waiters {
            Some(&counters.busy_waiters)
        } else if lease.begun.as_ref().is_some_and(|begun| {
            let prediction = lease.rule.predict(begun, step.now_ms, hold_ms);
            // Clients that get the old value slow no computation down: there is nothing to find out.
            prediction == Prediction::TooLong || is_served && prediction == Prediction::Probe
        }) {
            Some(&counters.busy_prediction)
        } else if !trial && !by_loader && !session.take_free(last) {
            Some(&counters.last_free_kept)
        } else {
            None
        };
        if let Some(counter) = refused {
            if is_served {
                return WaitAnswer::Old;
            }
            count(counter);
            if hold.many && std::ptr::eq(counter, &raw const counters.busy_prediction) {
                count(&counters.busy_prediction_many);
            }
            self.drop_if_deserted(ask.hash);
            return self.send_away(ask, step);
        }
        if is_served && lease.job_out && lease.queue.len() == 0 {
            // A refresh is urgent when clients wait for it.
            step.effects.jobs.push(JobOrder::Raise { token: lease.token });
        }
        // Counted under the rule of the lease, as its end will be: the lease may have begun under another
        // rule.
        count(&lease.rule.counters().held);
        let waiter = Waiter {
            caller: Arc::clone(session.caller()),
            request: hold.request,
            slot: hold.slot,
            how: ask.how,
            since: step.clock.last(),
            since_ms: step.now_ms,
            softened,
            found: ask.found,
            touch: hold.touch,
            many: hold.many,
        };
        let id = self.waiters.push(&mut lease.queue, waiter);
        session.begin_wait(SessionWait {
            hash: ask.hash,
            request: hold.request,
            slot: hold.slot,
            waiter: id,
        });
        let (number, window_ms) = (step.clock.last(), ask.rule.fill_window_ms());
        session.withhold(hold.request, WithheldKey { hash: ask.hash, number, window_ms });
        WaitAnswer::Waits(id)
    }

    fn send_away<V>(&mut self, ask: &Ask<'_>, step: &mut HerdStep<'_, V>) -> WaitAnswer {
        match ask.how.on_busy(ask.rule.policy()) {
            OnBusy::Miss => {
                let record = self.missed(ask, step);
                if let Some(lease) = self.leases.of_key(ask.hash, ask.key) {
                    lease.join(step.now_ms);
                }
                WaitAnswer::Miss(record)
            }
            OnBusy::Error => WaitAnswer::Busy(self.missed_by_error(ask.hash, ask.outside, ask.rule, step)),
        }
    }

    /// The old value for a waiter whose wait has ended without the new one, if it is to get it.
    fn old_for(&self, waiter: &Waiter, hash: u64, key: &[u8]) -> Option<OldValueReader> {
        let fails = || waiter.found == LeaseKind::Past && self.passes.is_failing(hash);
        let gets_old = waiter.found.is_served() || fails();
        gets_old.then(|| OldValueReader { key: key.into(), hash, how: waiter.how })
    }

    /// Ends a wait before its time, without a value. None: it was decided already, and its wake is on the
    /// way.
    pub fn withdraw<V>(
        &mut self,
        hash: u64,
        id: WaiterId,
        why: WithdrawReason,
        step: &mut HerdStep<'_, V>,
    ) -> Option<UnansweredKey> {
        let lease = self.leases.get_mut(hash)?;
        let waiter = self.waiters.unlink(&mut lease.queue, id)?;
        let key = lease.key.clone();
        if !waiter.found.is_served() {
            lease.join(step.now_ms);
        }
        let rule = Arc::clone(&lease.rule);
        let counters = rule.counters();
        counters.waited(step.now_ms.saturating_sub(waiter.since_ms));
        count(match why {
            WithdrawReason::Circle => &counters.cycles_avoided,
            WithdrawReason::OwnWrite => &counters.held_own_write,
            WithdrawReason::Answered => &counters.held_withdrawn,
        });
        self.drop_if_deserted(hash);
        if why == WithdrawReason::OwnWrite {
            // Its client may have given up before, and may be storing what it has computed since it asked.
            let record = self.record_since(hash, waiter.since, rule.fill_window_ms(), step.now_ms);
            return Some(UnansweredKey { record: Some(record), old: self.old_for(&waiter, hash, &key) });
        }
        let old = self.old_for(&waiter, hash, &key);
        let record = old.is_none().then(|| self.miss(hash, &rule, step));
        Some(UnansweredKey { record, old })
    }

    /// Ends a wait whose time is up. `released`: its time is not up, but its connection sends no more. None:
    /// it was decided already, and its wake is on the way.
    pub fn expire<V>(
        &mut self,
        hash: u64,
        id: WaiterId,
        released: bool,
        step: &mut HerdStep<'_, V>,
    ) -> Option<Verdict<V>> {
        let lease = self.leases.get_mut(hash)?;
        let waiter = self.waiters.unlink(&mut lease.queue, id)?;
        let (rule, key) = (Arc::clone(&lease.rule), lease.key.clone());
        let counters = rule.counters();
        counters.waited(step.now_ms.saturating_sub(waiter.since_ms));
        if let Some(old) = self.old_for(&waiter, hash, &key) {
            count(if released { &counters.released } else { &counters.held_old });
            self.drop_if_deserted(hash);
            return Some(Verdict::Old(old));
        }
        let lease = self.leases.get_mut(hash)?;
        // It waited to see whether its connection is shared.
        let on_trial = lease.may_wait_for_itself(&waiter.caller);
        count(match (released, on_trial) {
            (true, _) => &counters.released,
            (false, true) => &counters.held_reentered,
            (false, false) => &counters.hold_expired,
        });
        if waiter.many && !released && !on_trial {
            count(&counters.hold_expired_many);
        }
        let queued = !lease.holder.computes();
        let by_loader = rule.policy().loader;
        let full = queued || by_loader || lease.computers >= rule.policy().max_computers;
        let busy = (full || released) && waiter.how.on_busy(rule.policy()) == OnBusy::Error;
        if !busy && !waiter.is_explicit() {
            lease.join(step.now_ms);
        }
        self.drop_if_deserted(hash);
        // A client that sends no more may have given up before, and may store what it has computed since it
        // asked.
        let record = if released {
            self.record_since(hash, waiter.since, rule.fill_window_ms(), step.now_ms)
        } else if busy {
            self.missed_by_error(hash, Events::default(), &rule, step)
        } else {
            self.miss(hash, &rule, step)
        };
        if waiter.is_explicit() {
            return Some(Verdict::Lost(record));
        }
        if queued && !released {
            count(&counters.busy_slots);
        } else if full && !released && !by_loader {
            count(&counters.busy_computers);
        }
        Some(if busy { Verdict::Busy { record: Some(record) } } else { Verdict::miss(record) })
    }

    /// The miss of a waiter of this connection whose wait was decided while it was given up (history 10 of
    /// `end`): the miss of the lease, if the connection has it now, otherwise a miss without a lease.
    pub fn promoted<V>(&mut self, hash: u64, connection: u64, step: &mut HerdStep<'_, V>) -> MissRecord {
        let Some(lease) = self.leases.get(hash) else { return self.miss_unruled(hash, step) };
        let rule = Arc::clone(&lease.rule);
        if !lease.holder.is(connection) {
            return self.miss(hash, &rule, step);
        }
        let number = lease.token;
        let window = self.window_ms(hash, true, &rule, step.now_ms);
        let until_ms = self.ledger.miss_ms(step.now_ms) + u64::from(window);
        MissRecord { hash, number, until_ms, leased: true }
    }

    /// Whether a token is that of the key's lease, or of a lease that ended unfilled within its fill window.
    pub fn knows_token(&self, hash: u64, token: u64, now_ms: u64) -> bool {
        self.is_current(hash, token)
            || self.ended.get(&token).is_some_and(|ended| ended.hash == hash && ended.until_ms > now_ms)
    }

    /// Whether a token is that of the key's lease.
    pub fn is_current(&self, hash: u64, token: u64) -> bool {
        self.leases.get(hash).is_some_and(|lease| lease.token == token && lease.holder.computes())
    }

    /// The connection that holds the key's lease.
    pub fn holder(&self, hash: u64) -> Option<u64> {
        self.leases.get(hash)?.holder.connection()
    }

    /// Whether the key has a lease.
    pub fn is_leased(&self, hash: u64, key: &[u8]) -> bool {
        self.leases.get(hash).is_some_and(|lease| *lease.key == *key)
    }

    /// Whether this connection, or this token, holds the key's lease.
    pub fn holds(&self, hash: u64, by: Filler) -> bool {
        self.leases.get(hash).is_some_and(|lease| lease.holder.is_filler(lease.token, by))
    }

    /// Whether the key is let pass, without a lease.
    pub fn passes(&self, hash: u64, now_ms: u64) -> bool {
        self.passes.passes(hash, now_ms)
    }

    /// Whether a computation of the key has failed since it was last filled.
    pub fn is_failing(&self, hash: u64) -> bool {
        self.passes.is_failing(hash)
    }

    /// Milliseconds until a key whose computation has failed may be computed again; None: it has not failed
    /// since it was filled.
    pub fn fails_for_ms(&self, hash: u64, now_ms: u64) -> Option<u64> {
        self.passes.fails_for_ms(hash, now_ms)
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.len() == 0
    }

    /// Number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Number of deadlines: one for each lease that has a holder.
    pub fn deadlines(&self) -> usize {
        self.leases.deadlines()
    }

    /// Bytes of everything that leases need, except for their keys, tags and hints: leases, deadlines, keys
    /// let pass, tokens of leases that have ended. An upper estimate.
    pub fn leases_bytes(&self) -> usize {
        self.leases.bytes()
            + self.passes.bytes()
            // A table has one byte more for each place.
            + self.ended.capacity() * (size_of::<(u64, EndedLease)>() + 1) * 8 / 7
            + self.ended_order.capacity() * size_of::<u64>()
    }

    /// Hashes of the keys that have leases. A list of leases goes on from them with [`Herd::view`], so that
    /// no lock is held while keys are copied and lines written.
    pub fn lease_hashes(&self) -> Vec<u64> {
        self.leases.iter().map(|(hash, _)| hash).collect()
    }

    /// Calls `act` with the tags of each lease.
    pub fn each_tags(&self, mut act: impl FnMut(&[u64])) {
        self.leases.iter().for_each(|(_, lease)| act(&lease.tags));
    }

    /// For how long the holder of the key's lease computes, in milliseconds.
    pub fn computing_ms(&self, hash: u64, now_ms: u64) -> Option<u64> {
        let begun = self.leases.get(hash)?.begun.as_ref()?;
        Some(now_ms.saturating_sub(begun.ms))
    }

    /// The lease of the key with this hash.
    pub fn view(&self, hash: u64, now_ms: u64) -> Option<LeaseView> {
        self.leases.get(hash).map(|lease| lease.view(now_ms))
    }

    /// The key's lease.
    pub fn lease(&self, hash: u64, key: &[u8], now_ms: u64) -> Option<LeaseView> {
        self.leases.get(hash).filter(|lease| *lease.key == *key).map(|lease| lease.view(now_ms))
    }

    /// Walks everything: for tests.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn verify(&self) {
        let (mut waiting, mut computing) = (0, 0);
        for (hash, lease) in self.leases.iter() {
            let queued = self.waiters.iter(&lease.queue).count();
            assert_eq!(queued, lease.queue.len() as usize, "a queue's length is right");
            waiting += queued;
            if lease.holder.computes() {
                assert!(lease.begun.is_some(), "a holder computes");
                assert!(self.leases.has_deadline(hash, lease), "a lease has a deadline");
                computing += 1;
            } else {
                assert!(queued > 0, "a lease without a holder has waiters");
                assert!(lease.begun.is_none(), "a lease without a holder does not compute");
            }
            assert!(!lease.job_out || self.jobs.contains_key(&hash), "a job that is out is counted");
            if lease.holder.is_loader() && !lease.job_out {
                let out = self.jobs.get(&hash).map_or(0, load::Jobs::len);
                assert_eq!(out, load::JOBS_MAX, "a job is put off only behind others");
            }
        }
        assert_eq!(computing, self.leases.deadlines(), "deadlines of leases that have ended");
        assert_eq!(waiting, self.waiters.len(), "each waiter is in one queue");
        assert!(self.ended.len() <= self.ended_order.len(), "ended tokens are bounded");
        assert!(self.ended_order.len() <= self.ended_max, "ended tokens are bounded");
        let few = |jobs: &load::Jobs| (1..=load::JOBS_MAX).contains(&jobs.len());
        assert!(self.jobs.values().all(few), "two jobs of a key at most");
    }
}
