//! Leases that a loader of the server holds: its job computes the value, and all clients wait.
//!
//! The lease belongs to the loader from the first miss on; no client is ever made the holder. A job is known
//! by the lease's token, and its result counts only while that lease stands. When the lease ends without a
//! value and clients still wait, the lease goes on under a new token with a new job. The loader's miss is not
//! in the ledger: its fill shows the token, and a client's `set` must not be taken for it.
//!
//! # Histories
//! L is the loader, W a waiter, X another client. A number behind "at" is the clock's. The tests named are in
//! the engine's `tests/loads.rs`.
//!
//! 1. W misses at 5: L has the lease, job 5 begins, W waits. L's value comes: it is stored as of 5, and W
//!    gets it. (`the_first_to_ask_waits_too`)
//! 2. Job 5 runs, W waits. X deletes at 6: the lease goes on under token 7, and job 7 begins. The result of
//!    job 5 comes: 5 is not the lease's token, and it is dropped. W gets the value of job 7.
//!    (`a_delete_during_a_job_starts_another`)
//! 3. Jobs 5 and 7 run, and X deletes again: the lease's token is 9, and two jobs of the key are out. Job 9
//!    begins when one of them has ended. A third delete replaces it by job 11 before it has begun: all later
//!    deletes share one job. (`further_deletes_share_one_job`)
//! 4. Job 5 runs without a waiter. X deletes: the lease ends. The next get asks for a new job. At most two
//!    are out, whatever leases they belong to. (`nothing_is_sent_for_nobody`)
//! 5. Job 5 runs, W waits. X stores the key: W gets X's value, the lease ends, and job 5 is cancelled if no
//!    worker has begun it. Its result is dropped. (`a_client_that_stores_ends_the_lease`)
//! 6. Job 5 fails: W gets the old value if there is one, otherwise the answer `on_busy`, and no job of the
//!    key begins until its back-off is over. If the worker of job 5 was lost, another job begins at once, the
//!    first time. (`a_failure_backs_off`, `a_lost_worker_is_tried_again_once`)
//! 7. Job 5 refreshes an old value, and no client waits. The old value's grace ends: W misses, waits for job
//!    5, and the job becomes as urgent as others that clients wait for. (`a_refresh_becomes_urgent`)

use std::sync::Arc;

use super::Herd;
use crate::ask::{Ask, HerdStep, JobOrder, Role, Verdict};
use crate::computing::SlotAnswer;
use crate::lease::{Holder, LeaseKind, RemovedLease, Waiter};
use crate::rule::{RuleState, count};

/// Most jobs of one key that run at once.
pub(crate) const JOBS_MAX: usize = 2;

/// The jobs of one key that have begun and not ended: the token of each, and its rule, one of whose slots it
/// has.
#[derive(Debug, Default)]
pub(super) struct Jobs([Option<(u64, Arc<RuleState>)>; JOBS_MAX]);

impl Jobs {
    pub(super) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    fn add(&mut self, token: u64, rule: &Arc<RuleState>) {
        if let Some(free) = self.0.iter_mut().find(|job| job.is_none()) {
            *free = Some((token, Arc::clone(rule)));
        }
    }

    fn take(&mut self, token: u64) -> Option<Arc<RuleState>> {
        let job = self.0.iter_mut().find(|job| job.as_ref().is_some_and(|(own, _)| *own == token))?;
        job.take().map(|(_, rule)| rule)
    }
}

/// Why a job has brought no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobFailure {
    /// The job says that it failed, or its answer cannot be used: the key backs off.
    Error,
    /// The job's worker was lost: another job begins at once, unless one of the key has failed since its last
    /// value.
    Lost,
    /// The job was not begun, since the loader has too much to do: the key does not back off.
    Refused,
    /// The job was not begun, since its loader was replaced: another job begins at once, at the new one.
    Withdrawn,
}

impl Herd {
    /// A get of a key without a fresh value and without a lease: gives the lease to the loader (history 1).
    pub(super) fn ask_loader<V>(&mut self, ask: &Ask<'_>, step: &mut HerdStep<'_, V>) -> Role {
        let (rule, counters) = (ask.rule, ask.rule.counters());
        let gets_old = self.gets_old(ask);
        if self.passes.backs_off(ask.hash, gets_old, ask.outside.last(), step.now_ms) {
            return self.busy_for(ask, &counters.busy_failed, step);
        }
        if !self.has_room(rule, step) {
            return self.busy_for(ask, &counters.busy_leases, step);
        }
        let token = step.clock.tick();
        let is_put_off = self.is_put_off(ask.hash);
        if !is_put_off {
            let may_queue = !gets_old && ask.hold_ms > 0;
            match rule.try_start(None, may_queue.then_some((ask.hash, token))) {
                SlotAnswer::Granted | SlotAnswer::Nested => {}
                _ if gets_old => return Role::Old,
                SlotAnswer::Queued => {
                    self.insert(ask, Holder::Queued, token, step);
                    return Role::Leased;
                }
                SlotAnswer::Refused => return Role::Leased,
                SlotAnswer::QueueFull => return self.busy(ask, step),
            }
        }
        self.insert(ask, Holder::Loader, token, step);
        self.passes.begun(ask.hash, step.now_ms);
        count(match ask.found {
            LeaseKind::Absent | LeaseKind::Past => &counters.leases,
            LeaseKind::Stale => &counters.leases_stale,
            LeaseKind::Early => &counters.leases_early,
        });
        if is_put_off {
            count(&counters.loads_put_off);
        } else {
            self.start_job(ask.hash, step);
        }
        let waits = ask.found == LeaseKind::Stale && ask.waits_for_new();
        if gets_old && !waits { Role::Old } else { Role::Leased }
    }

    /// The lease goes on with another job, for its waiters (histories 2, 3); without them it ends (history
    /// 4).
    pub(super) fn load_again<V>(&mut self, hash: u64, mut removed: RemovedLease, step: &mut HerdStep<'_, V>) {
        if removed.lease.queue.len() == 0 {
            return self.end(hash, removed, false, step);
        }
        let lease = &mut *removed.lease;
        let rule = Arc::clone(&lease.rule);
        if std::mem::take(&mut lease.job_out) {
            step.effects.jobs.push(JobOrder::Cancel { token: lease.token });
        }
        let token = step.clock.tick();
        let was_admitted = !lease.holder.computes();
        let is_put_off = self.is_put_off(hash);
        if was_admitted {
            rule.take_admitted(None);
        } else if !is_put_off && !rule.claim_slot((hash, token)) {
            return self.queue_again(hash, removed, token, step);
        }
        let lease = &mut *removed.lease;
        (lease.token, lease.holder, lease.computers) = (token, Holder::Loader, 1);
        self.leases.put_back(hash, removed);
        if was_admitted {
            count(&rule.counters().leases);
        } else {
            count(&rule.counters().loads_again);
        }
        self.begin_again(hash, is_put_off, step);
    }

    /// Whether two jobs of the key run, so that another one must wait (history 3).
    fn is_put_off(&self, hash: u64) -> bool {
        self.jobs.get(&hash).is_some_and(|jobs| jobs.len() >= JOBS_MAX)
    }

    /// The time of a lease begins again, with its job if that is not put off.
    fn begin_again<V>(&mut self, hash: u64, is_put_off: bool, step: &mut HerdStep<'_, V>) {
        let Some(mut removed) = self.leases.remove(hash) else { return };
        let lease = &mut *removed.lease;
        let rule = Arc::clone(&lease.rule);
        lease.deadline_ms = step.now_ms + u64::from(rule.lease_ms());
        if let Some(begun) = lease.begun.replace(rule.begin(step.now_ms)) {
            rule.end(&begun, false, None, step.now_ms);
        }
        self.leases.put_back(hash, removed);
        if is_put_off {
            count(&rule.counters().loads_put_off);
        } else {
            self.start_job(hash, step);
        }
    }

    /// Begins the job of a lease. It has a slot of its rule.
    fn start_job<V>(&mut self, hash: u64, step: &mut HerdStep<'_, V>) {
        let Some(lease) = self.leases.get_mut(hash) else { return };
        let counters = lease.rule.counters();
        self.jobs.entry(hash).or_default().add(lease.token, &lease.rule);
        lease.job_out = true;
        let is_refresh = lease.kind.is_served();
        count(&counters.loads);
        if is_refresh {
            count(&counters.loads_refresh);
        }
        let (key, token, hint) = (lease.key.clone(), lease.token, lease.hint.clone());
        step.effects.jobs.push(JobOrder::Start { key, hash, token, hint, is_refresh });
    }

    /// A job has ended, with a result or without. True: its lease stands, and its result counts. Otherwise a
    /// job that was put off begins (history 3).
    pub fn finish_job<V>(&mut self, hash: u64, token: u64, step: &mut HerdStep<'_, V>) -> bool {
        let Some(jobs) = self.jobs.get_mut(&hash) else { return false };
        let Some(rule) = jobs.take(token) else { return false };
        if jobs.len() == 0 {
            self.jobs.remove(&hash);
        }
        step.effects.admitted.extend(rule.finish_slot(None));
        let Some(lease) = self.leases.get_mut(hash).filter(|lease| lease.holder.is_loader()) else {
            return false;
        };
        if lease.token == token {
            lease.job_out = false;
            return true;
        }
        if !lease.job_out {
            self.start_put_off(hash, step);
        }
        false
    }

    fn start_put_off<V>(&mut self, hash: u64, step: &mut HerdStep<'_, V>) {
        let Some(removed) = self.leases.remove(hash) else { return };
        let lease = &removed.lease;
        let (token, rule) = (lease.token, Arc::clone(&lease.rule));
        if lease.queue.len() == 0 {
            // A refresh is asked for again by the next get; otherwise no client waits (history 4).
            return self.end(hash, removed, false, step);
        }
        if !rule.claim_slot((hash, token)) {
            return self.queue_again(hash, removed, token, step);
        }
        self.leases.put_back(hash, removed);
        self.begin_again(hash, false, step);
    }

    /// After [`Herd::finish_job`]: the job of the lease that stands has failed (history 6). Returns the
    /// waiters that get the old value, or the answer `on_busy`; those that asked for the lease get `text`.
    pub fn job_failed<V>(
        &mut self,
        hash: u64,
        why: JobFailure,
        text: &[u8],
        step: &mut HerdStep<'_, V>,
    ) -> Vec<Waiter> {
        let Some(mut removed) = self.leases.remove(hash) else { return Vec::new() };
        let rule = Arc::clone(&removed.lease.rule);
        let counters = rule.counters();
        if why == JobFailure::Withdrawn {
            self.load_again(hash, removed, step);
            return Vec::new();
        } else if why == JobFailure::Refused {
            count(&counters.loads_refused);
        } else {
            count(&counters.failures);
            let again = why == JobFailure::Lost && !self.passes.is_failing(hash);
            self.passes.failed(hash, true, step.clock.last(), step.now_ms);
            self.passes.begun(hash, step.now_ms);
            if again {
                self.load_again(hash, removed, step);
                return Vec::new();
            }
        }
        let mut waiting = Vec::new();
        while let Some(waiter) = self.waiters.pop(&mut removed.lease.queue) {
            waiting.push(waiter);
        }
        self.end(hash, removed, false, step);
        let text: Arc<[u8]> = text.into();
        let mut plain = Vec::new();
        for waiter in waiting {
            counters.waited(step.now_ms.saturating_sub(waiter.since_ms));
            count(&counters.held_failed);
            if waiter.is_explicit() {
                let record = self.miss(hash, &rule, step);
                step.effects.wake(waiter, Verdict::Failed { text: Arc::clone(&text), record });
            } else {
                plain.push(waiter);
            }
        }
        plain
    }

    /// No rule has a loader for the key any more: ends its lease, and answers its waiters with misses.
    pub fn abandon<V>(&mut self, hash: u64, step: &mut HerdStep<'_, V>) {
        if let Some(removed) = self.leases.remove(hash) {
            self.send_all(hash, removed, &|counters| &counters.held_unruled, step);
        }
    }
}
