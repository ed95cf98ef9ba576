//! Requests that wait, across shards: how a `get` is parked, and how its time, its connection or a circle of
//! waiting connections ends that. Shards are locked one at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Edge, Herd, HerdConfig, LEASE_BYTES, LeaseView, Wait, Walk, Withdrawn, Withheld};
use cattlegrid_protocol::{Get, Keys, reply};
use cattlegrid_store::Lookup;

use crate::ask::{Answer, Held, done_part};
use crate::decide::Holds;
use crate::engine::{Engine, Got};
use crate::meta_ruled::count_miss;
use crate::park::{Form, Parked, Part};
use crate::rules::Rules;
use crate::shard_lock::ShardLock;
use crate::step::{Context, Step, Verdict, Wake};

/// What rules may take of the memory limit, and how many requests may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesConfig {
    /// Bytes of [`crate::EngineConfig::tag_bytes`], to be taken out of the limit when tags are used.
    pub tag_bytes: usize,
    /// Bytes for leases and outstanding misses.
    pub ledger_bytes: usize,
    /// Bytes for what happened to keys.
    pub fence_bytes: usize,
    /// Requests that may be held at once.
    pub waiters: usize,
    /// What control keys begin with; empty: there are none.
    pub control: Box<[u8]>,
}

/// What the herds of all shards hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HerdUsage {
    /// Leases.
    pub leases: usize,
    /// Deadlines that are kept for them.
    pub deadlines: usize,
    /// Bytes of the tables of leases, and of what those that have ended leave: an upper estimate.
    pub leases_bytes: usize,
    /// Keys with outstanding misses.
    pub outstanding: usize,
    /// Slots that stand for misses that found no room.
    pub slots_in_loss: usize,
    /// Slots for what happened to keys.
    pub fence_slots: usize,
    /// Fills that met an event of another key in their slot: an estimate, at most.
    pub fence_collisions: f64,
}

/// The keys of a `get` that are neither hits nor simple misses.
pub(crate) struct Pending<'k> {
    /// Where its output begins.
    pub(crate) from: (usize, usize),
    /// It is to compute one of its keys.
    computes: bool,
    /// Keys for which the reply is `SERVER_ERROR busy`, if nothing of it was sent before.
    busy: Vec<(&'k [u8], u64)>,
    leased: Vec<LeasedKey<'k>>,
    /// Control keys, and their places in the output.
    pub(crate) control: Vec<(&'k [u8], (usize, usize))>,
}

/// A key that somebody else computes.
struct LeasedKey<'k> {
    key: &'k [u8],
    hash: u64,
    /// Its place in the output.
    at: (usize, usize),
    holds: Holds,
}

impl<'k> Pending<'k> {
    #[inline]
    pub(crate) fn new(cx: &Context<'_>) -> Self {
        Self {
            from: cx.out.place(),
            computes: false,
            busy: Vec::new(),
            leased: Vec::new(),
            control: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn note(&mut self, key: &'k [u8], hash: u64, answer: Answer, cx: &Context<'_>) {
        match answer {
            Answer::Hit | Answer::Miss => {}
            Answer::Compute => self.computes = true,
            Answer::Busy => self.busy.push((key, hash)),
            Answer::Control => self.control.push((key, cx.out.place())),
            Answer::Leased(holds) => self.leased.push(LeasedKey { key, hash, at: cx.out.place(), holds }),
        }
    }

    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        !self.busy.is_empty() || !self.leased.is_empty() || !self.control.is_empty()
    }
}

/// Keys that one request waits for at most.
const KEYS_HELD_MAX: usize = 1024;
/// Untrue circles that are looked behind before a wait is given up.
const UNTRUE_MAX: usize = 8;
/// How long a connection that computes a key and asks for it again waits for something else to be sent on it, in
/// milliseconds.
pub(crate) const TRIAL_MS: u32 = 10;
/// Least time between two looks for leases that a flush or a bump revokes, in milliseconds.
const REVOKE_EVERY_MS: u64 = 10;
/// Leases copied for a list while their shard is locked.
const LEASES_COPIED: usize = 64;

impl Engine {
    /// From now on these rules count; None: no key has one. The tables they need are allocated once and
    /// are part of the memory limit.
    ///
    /// # Errors
    /// The system's, when it refuses to shrink what is left for items.
    pub fn set_rules(&self, rules: Option<Arc<Rules>>, config: &RulesConfig) -> std::io::Result<()> {
        if let Some(rules) = &rules {
            let shared = self.shared();
            shared.set_control(&config.control);
            shared.set_shards(self.shard_count());
            shared.waiting_max.store(config.waiters, Ordering::Relaxed);
            if rules.rules().iter().any(|rule| !rule.tags.is_empty()) || rules.has_cascades() {
                self.reserve_tags()?;
            }
            if self.lock(0).herd.is_none() {
                self.reserve(config.ledger_bytes + config.fence_bytes)?;
            }
            let shards = self.shard_count();
            // A lease has the room of a lease; what is left of the ledger's share is for misses.
            let herd = HerdConfig {
                leases: (config.ledger_bytes / 2 / LEASE_BYTES / shards).max(16),
                ledger_bytes: config.ledger_bytes / 2 / shards,
                fence_bytes: config.fence_bytes / shards,
            };
            for number in 0..shards {
                self.lock(number).herd.get_or_insert_with(|| Box::new(Herd::new(herd)));
            }
        }
        self.shared().set_rules(rules);
        Ok(())
    }

    /// The rest of a `get` with keys that others compute: waits for them if this one has nothing to compute itself.
    #[cold]
    pub(crate) fn finish_get<'k>(
        &self,
        get: &Get<'k>,
        pending: &Pending<'_>,
        begun: bool,
        left: Option<Keys<'k>>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Got<'k> {
        if !pending.control.is_empty() {
            // Whoever gives orders does not wait.
            Self::answer_leased(get, pending, lock, cx);
            lock.release();
            return self.answer_control(pending, left, get.cas, cx);
        }
        if !pending.busy.is_empty() && !begun {
            let _dropped = cx.out.split_off(pending.from);
            reply::line(&mut cx.out.bytes, reply::error::BUSY);
            for leased in &pending.leased {
                let shard = lock.shard(leased.hash);
                shard.with_herd(&mut cx.step, |herd, _| herd.not_waited_for(leased.hash));
            }
            return Got::Done;
        }
        // Whoever is to compute must hear of it now; and what was sent in part is not held.
        let too_many = pending.leased.len() > KEYS_HELD_MAX;
        let many = get.keys.clone().flatten().nth(1).is_some();
        let many_on_trial = many && pending.leased.iter().any(|key| key.holds.on_trial);
        let sent = left.is_some() || begun;
        // What is there already, or comes, is withheld meanwhile, and must be known if the client gives up.
        let keys = if many { get.keys.clone().flatten().take(KEYS_HELD_MAX + 1).count() } else { 1 };
        let too_many = too_many || many && !cx.session.can_withhold(keys);
        if pending.computes || !pending.busy.is_empty() || sent || too_many || many_on_trial {
            Self::answer_leased(get, pending, lock, cx);
            if let Some(left) = left {
                return Got::More(left);
            }
            cx.out.bytes.extend_from_slice(reply::END);
            return Got::Done;
        }
        self.park_get(get, pending, lock, cx)
    }

    /// Answers what others compute as misses; so what is busy, when it is too late for an error.
    fn answer_leased(get: &Get<'_>, pending: &Pending<'_>, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for (key, hash) in &pending.busy {
            lock.shard(*hash).do_not_wait(key, *hash, get.touch.is_some(), cx);
        }
        for leased in &pending.leased {
            let shard = lock.shard(leased.hash);
            shard.do_not_wait(leased.key, leased.hash, get.touch.is_some(), cx);
            shard.with_herd(&mut cx.step, |herd, _| herd.not_waited_for(leased.hash));
        }
    }

    fn park_get<'k>(
        &self,
        get: &Get<'k>,
        pending: &Pending<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Got<'k> {
        let many = get.keys.clone().flatten().nth(1).is_some();
        let hold_of = |key: &LeasedKey<'_>| if many { key.holds.many_ms } else { key.holds.one_ms };
        let hold_ms = pending.leased.iter().map(hold_of).min().unwrap_or(0);
        let behind_ms = pending.leased.iter().map(|key| key.holds.behind_ms).min().unwrap_or(0);
        // What was written, cut at the places of the keys that may wait.
        let mut cuts = Vec::with_capacity(pending.leased.len() + 1);
        for leased in pending.leased.iter().rev() {
            cuts.push(cx.out.split_off(leased.at));
        }
        cuts.push(cx.out.split_off(pending.from));
        let (mut parts, mut waits, mut computes, mut busy) = (Vec::new(), 0, false, false);
        for (slot, leased) in pending.leased.iter().enumerate() {
            push_done(&mut parts, cuts.pop());
            let slot = slot as u16;
            let shard = lock.shard(leased.hash);
            match shard.hold_key(leased.key, leased.hash, slot, hold_ms, get.cas, get.touch, cx) {
                Held::Waits => {
                    parts.push(Part::Key { slot, key: leased.key.into(), verdict: None });
                    waits += 1;
                }
                Held::Written => done_part(&mut parts, cx, pending.from),
                Held::Compute => computes = true,
                Held::Busy => busy = true,
            }
        }
        push_done(&mut parts, cuts.pop());
        if waits > 0 && !computes && !busy {
            if many {
                self.withhold(get, pending, lock, cx);
            }
            let mut deadline = cx.step.now.ms + u64::from(hold_ms);
            let full_ms = pending.leased.iter().any(|key| key.holds.on_trial).then_some(deadline);
            if full_ms.is_some() {
                deadline = cx.step.now.ms + u64::from(hold_ms.min(TRIAL_MS));
            }
            let form = Form::Get { parts, cas: get.cas };
            self.check_circle(lock, cx);
            let parked = Parked::new(cx.ticket.request, deadline, behind_ms, get.touch.is_some(), form);
            return Got::Parked(Box::new(parked.on_trial(full_ms)));
        }
        let withdrawn = Self::withdraw_request(cx.ticket.request, lock, cx);
        if busy {
            reply::line(&mut cx.out.bytes, reply::error::BUSY);
            return Got::Done;
        }
        (0..withdrawn).for_each(|_| count_miss(get.touch.is_some(), cx));
        for part in parts {
            if let Part::Done(done) = part {
                cx.out.append(done);
            }
        }
        cx.out.bytes.extend_from_slice(reply::END);
        Got::Done
    }

    /// Remembers the keys of a request that are there, while it waits for the others.
    fn withhold(&self, get: &Get<'_>, pending: &Pending<'_>, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for key in get.keys.clone().flatten() {
            let hash = self.hash_key(key);
            if !pending.leased.iter().any(|leased| leased.hash == hash) {
                lock.shard(hash).withhold(key, hash, cx);
            }
        }
    }

    /// Takes back all waits of a request that is answered after all. Returns how many there were.
    fn withdraw_request(request: u64, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) -> usize {
        let own: Vec<_> = cx.session.waits().iter().filter(|wait| wait.request == request).copied().collect();
        for wait in &own {
            let shard = lock.shard(wait.hash);
            if !shard.withdraw(wait, Withdrawn::Answered, cx) {
                // Decided in this moment; nobody will take its wake, but the client is answered a miss all the same.
                shard.note_decided(wait, cx);
            }
            cx.session.end_wait(wait.request, wait.slot);
        }
        own.len()
    }

    /// After this connection began to wait, or was given a lease while it waits: if it is part of a circle of
    /// connections that wait for each other, it gives up a wait of its own, as a miss.
    pub fn check_circle(&self, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        let graph = &self.shared().graph;
        let mut walk = cx.session.publish(graph);
        let mut untrue = Vec::new();
        let hash = loop {
            match walk {
                Walk::Clear => return,
                Walk::Circle(edges) if untrue.len() < UNTRUE_MAX => {
                    // What was published may be out of date; a circle that is real stays.
                    let is_untrue = |edge: &&Edge| {
                        let herd = lock.shard(edge.hash).herd.as_ref();
                        herd.and_then(|herd| herd.holder(edge.hash)) != Some(edge.holder)
                    };
                    match edges.iter().find(is_untrue) {
                        Some(edge) => untrue.push(*edge),
                        None => break edges[0].hash,
                    }
                    walk = graph.look_again(cx.session.caller().number(), &untrue);
                }
                Walk::Circle(_) | Walk::TooLong => match cx.session.waits().last() {
                    Some(wait) => break wait.hash,
                    None => return,
                },
            }
        };
        let Some(wait) = cx.session.waits().iter().find(|wait| wait.hash == hash).copied() else {
            return;
        };
        // Either way its wake is on the way; with it comes another look, if it waits for more.
        lock.shard(hash).give_up(&wait, Withdrawn::Circle, cx);
        self.settle(lock, &mut cx.step);
    }

    /// The time of a parked request is up: answers what is still open. What was decided elsewhere in the same
    /// moment comes as a wake; it is not to be expired again.
    pub fn expire(&self, parked: &mut Parked, cx: &mut Context<'_>) {
        self.end_waits(parked, false, cx);
    }

    /// Answers a parked request at once: its connection sends no more, or the server leaves.
    pub fn release(&self, parked: &mut Parked, cx: &mut Context<'_>) {
        self.end_waits(parked, true, cx);
    }

    fn end_waits(&self, parked: &mut Parked, released: bool, cx: &mut Context<'_>) {
        if !released && parked.go_on(cx.session) {
            return;
        }
        let mut lock = self.shard_lock();
        let request = parked.request();
        // Its client may have given up: then it computes what it has not seen.
        let mut withheld = if released { cx.session.take_withheld(Some(request)) } else { Vec::new() };
        let own: Vec<_> = cx.session.waits().iter().filter(|wait| wait.request == request).copied().collect();
        for wait in own {
            if let Some(verdict) = lock.shard(wait.hash).expire(&wait, released, cx) {
                if verdict.record().is_some() {
                    forget_one(&mut withheld, wait.hash);
                }
                parked.resolve(wait.slot, verdict, cx.session, cx.step.now.ms, cx.step.counters);
            }
        }
        Self::record_withheld(withheld, &mut lock, cx);
        self.settle(&mut lock, &mut cx.step);
        parked.never_again();
    }

    /// The connection of this session is gone; `orderly`: it said so. Its waits end, its leases pass on.
    pub fn leave(&self, orderly: bool, cx: &mut Context<'_>) {
        let connection = cx.session.caller().number();
        cx.session.unpublish(&self.shared().graph);
        let waits = cx.session.waits().to_vec();
        let records = cx.session.take_records();
        if waits.is_empty() && records.is_empty() {
            return;
        }
        let mut lock = self.shard_lock();
        let mut withheld = cx.session.take_withheld(None);
        for wait in waits {
            let recorded = lock.shard(wait.hash).with_herd(&mut cx.step, |herd, step| {
                herd.forget_waiter(wait.hash, wait.waiter, connection, &records, step)
            });
            if recorded == Some(true) {
                forget_one(&mut withheld, wait.hash);
            }
            cx.session.end_wait(wait.request, wait.slot);
        }
        Self::record_withheld(withheld, &mut lock, cx);
        // What it missed stays in the ledger: in a pool the fill comes on another connection.
        for record in records.iter().filter(|record| record.leased) {
            lock.shard(record.hash).with_herd(&mut cx.step, |herd, step| {
                herd.holder_closed(record.hash, connection, orderly, step);
            });
        }
        self.settle(&mut lock, &mut cx.step);
        debug_assert!(cx.session.waits().is_empty());
    }

    /// What was withheld from a client that gave up is a miss to it.
    fn record_withheld(withheld: Vec<Withheld>, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        for Withheld { hash, number, window_ms } in withheld {
            if let Some(herd) = &mut lock.shard(hash).herd {
                herd.ledger.record(hash, number, cx.step.now.ms, window_ms);
            }
        }
    }

    /// When [`Engine::handle_timeouts`] has something to do, in milliseconds since the start.
    pub fn next_timeout_ms(&self) -> Option<u64> {
        let next = self.shared().timeout_ms.load(Ordering::Acquire);
        (next != u64::MAX).then_some(next)
    }

    /// Ends leases whose time is up, and those that a flush or a bump revokes. Whichever thread is awake calls it.
    pub fn handle_timeouts(&self, step: &mut Step<'_>) {
        let (shared, now) = (self.shared(), step.now);
        if shared.timeout_ms.load(Ordering::Acquire) > now.ms {
            return;
        }
        shared.timeout_ms.store(u64::MAX, Ordering::Release);
        let revoke = shared.revoke_due(now.ms, REVOKE_EVERY_MS);
        let reruled = shared.take_reruled();
        if reruled {
            step.effects.herd.admitted.extend(shared.admit_queued());
        }
        let mut lock = self.shard_lock();
        for number in 0..self.shard_count() {
            let one = lock.numbered(number);
            if reruled {
                one.end_unruled(step);
            }
            if revoke {
                one.revoke(step);
            }
            one.with_herd(step, Herd::handle_timeouts);
        }
        self.settle(&mut lock, step);
    }

    /// Does what a step has left to be done in other shards, and notes when leases are to be looked at. Every method that takes
    /// a step or a context ends with it; the rest of the effects is the server's.
    #[inline]
    pub(crate) fn settle(&self, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        if !step.effects.is_settled() {
            self.settle_some(lock, step);
        }
    }

    fn settle_some(&self, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        while !step.effects.herd.admitted.is_empty() {
            for admitted in std::mem::take(&mut step.effects.herd.admitted) {
                lock.shard(admitted.hash).with_herd(step, |herd, step| herd.admit(&admitted, step));
            }
        }
        let deadline_ms = std::mem::replace(&mut step.effects.deadline_ms, u64::MAX);
        self.shared().timeout_ms.fetch_min(deadline_ms, Ordering::AcqRel);
    }

    /// Calls `each` for every lease until it returns false. No shard is locked meanwhile, and none for longer than it takes to
    /// note its leases' hashes or to copy a few leases: what begins or ends in between may be left out.
    pub fn each_lease(&self, now_ms: u64, mut each: impl FnMut(LeaseView) -> bool) {
        for number in 0..self.shard_count() {
            let hashes = self.lock(number).herd.as_ref().map(|herd| herd.lease_hashes()).unwrap_or_default();
            for some in hashes.chunks(LEASES_COPIED) {
                let views: Vec<LeaseView> = {
                    let shard = self.lock(number);
                    let herd = shard.herd.iter();
                    herd.flat_map(|herd| some.iter().filter_map(|hash| herd.view(*hash, now_ms))).collect()
                };
                if !views.into_iter().all(&mut each) {
                    return;
                }
            }
        }
    }

    /// What the shards' herds hold: exact, but for misses that have become too old since the last [`Engine::tick`].
    pub fn herd_usage(&self) -> HerdUsage {
        let mut usage = HerdUsage::default();
        for number in 0..self.shard_count() {
            if let Some(herd) = &self.lock(number).herd {
                usage.leases += herd.len();
                usage.deadlines += herd.deadlines();
                usage.leases_bytes += herd.leases_bytes();
                usage.outstanding += herd.ledger.len();
                usage.slots_in_loss += herd.ledger.lost_slots();
                usage.fence_slots += herd.fence.slots();
                usage.fence_collisions += herd.fence.collisions();
            }
        }
        usage
    }

    /// Keys that held requests wait for.
    pub fn held(&self) -> usize {
        self.shared().waiting.load(Ordering::Relaxed)
    }
}

/// The miss of this key is recorded already.
fn forget_one(withheld: &mut Vec<Withheld>, hash: u64) {
    if let Some(at) = withheld.iter().position(|one| one.hash == hash) {
        withheld.swap_remove(at);
    }
}

fn push_done(parts: &mut Vec<Part>, done: Option<crate::Output>) {
    parts.extend(done.filter(|done| !done.is_empty()).map(Part::Done));
}

impl crate::shard::Shard {
    /// Ends a wait of this connection as a miss, and tells it so.
    pub(crate) fn give_up(&mut self, wait: &Wait, why: Withdrawn, cx: &mut Context<'_>) {
        if !self.withdraw(wait, why, cx) {
            return;
        }
        let caller = Arc::clone(cx.session.caller());
        let verdict = Verdict::Miss { record: None, hint: None };
        cx.step.effects.wake(Wake { caller, request: wait.request, slot: wait.slot, verdict });
    }

    /// The value of a key under a rule is withheld while its request waits.
    fn withhold(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        let Lookup::Found(_) = self.lookup(hash, key, &cx.step) else { return };
        let Some(ruled) = self.rule_of(key) else { return };
        let (number, window_ms) = (self.shared.clock(), ruled.state.fill_window_ms());
        cx.session.withhold(cx.ticket.request, Withheld { hash, number, window_ms });
    }

    /// A wait that was decided elsewhere in the same moment, and whose wake comes too late: the lease, if that was it, is
    /// this connection's, and otherwise it has a miss.
    fn note_decided(&mut self, wait: &Wait, cx: &mut Context<'_>) {
        let connection = cx.session.caller().number();
        let record = self.with_herd(&mut cx.step, |herd, step| herd.promoted(wait.hash, connection, step));
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
    }

    /// Ends the leases of keys that no rule leases any more: a `set` of such a key wakes nobody.
    fn end_unruled(&mut self, step: &mut Step<'_>) {
        // Loaded under the shard's lock: what is asked for later is asked for under these rules or newer ones.
        let active = Option::clone(&self.shared.rules());
        let leases = |key: &[u8]| {
            let found = active.as_ref().and_then(|active| active.find(key));
            found.is_some_and(|ruled| ruled.state.policy().leases)
        };
        self.with_herd(step, |herd, step| herd.end_unruled(leases, step));
    }

    fn revoke(&mut self, step: &mut Step<'_>) {
        let now = step.now;
        let shared = Arc::clone(&self.shared);
        let below = |hash, tags: &[u64]| shared.last_event(hash, tags, now);
        self.with_herd(step, |herd, step| herd.revoke(below, step));
    }
}
