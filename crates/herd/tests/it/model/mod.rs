//! Random operations on one shard's herd by several connections, called as an engine would, and the
//! conditions that must hold:
//!
//! * after every step the herd's own walk finds no fault, a key has at most one lease, and as many leases
//!   compute under a rule as it counts;
//! * each waiter is answered exactly once, and no other connection is;
//! * the ledger's number for a key is never above the oldest outstanding miss that is younger than its
//!   window, whichever connections close, so no fill is stored that is older than the last event of its key;
//! * when all connections have been closed and time has passed nothing remains: no lease, waiter, slot, peer
//!   or miss.
//!
//! Tables are tiny, keys share slots (two of them a hash), and every limit of a rule is drawn small, so that
//! the limits are reached first. Wakes are delivered late, timeouts are handled late, rules are reloaded.

mod terms;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_herd::{
    Admission, Ask, AskMode, Caller, CircleSearch, Clock, Effects, Events, Fence, FillMoment, Filler, Herd,
    HerdStep, HoldTerms, Judgement, LeaseKind, LeaseLimit, Ledger, MissRecord, NESTED_MAX, OnBusy, Owner,
    PeerKey, Peers, Role, RuleState, Session, SessionWait, ShownValue, SoftRelation, StaleFill, Surroundings,
    UnansweredKey, ValueHashes, Verdict, WaitAnswer, WaitGraph, Wake, WithdrawReason,
};

use crate::draw::Draw;
use terms::{KEYS, Numbers, hash_of, how, policy};

/// Runs the operations that `bytes` encode.
pub(crate) fn run(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut world = World::new(&mut draw);
    let mut steps = 0;
    while !draw.is_done() && steps < 4_000 {
        world.step(&mut draw);
        world.verify(draw.once_in(8));
        steps += 1;
    }
    world.end();
}

/// A connection.
struct Conn {
    session: Session,
    requests: u64,
    inbox: VecDeque<News>,
}

/// An answer on its way to a connection: a value if it has no verdict.
struct News {
    request: u64,
    slot: u16,
    key: usize,
    verdict: Verdict<()>,
    /// [`Miss::sure`] of the miss that comes with it.
    sure: bool,
}

/// The value of a fill, and the value that is shown, if there is one.
struct Drawn([u64; 2], bool);

impl ValueHashes for Drawn {
    fn fill(&self) -> u64 {
        self.0[0]
    }

    fn shown(&self) -> Option<ShownValue> {
        self.1.then_some(ShownValue { value: self.0[1], provisional: self.0[1] == 0 })
    }
}

/// A miss that a client was answered and has not filled.
#[derive(Debug, Clone, Copy)]
struct Miss {
    key: usize,
    number: u64,
    until_ms: u64,
    connection: u64,
    leased: bool,
    /// No fill without its own miss can have been counted as this one's.
    sure: bool,
}

struct World {
    herd: Herd,
    limit: Arc<LeaseLimit>,
    clock: Numbers,
    now_ms: u64,
    /// A key's rule is chosen by its number.
    rules: [Arc<RuleState>; 2],
    peers: Peers,
    graph: WaitGraph,
    conns: BTreeMap<u64, Conn>,
    next: u64,
    misses: Vec<Miss>,
    /// Waiters: connection, request and place in it, with the key.
    open: BTreeMap<(u64, u64, u16), usize>,
    admitted: Vec<Admission>,
    /// The number of each key's last hard event.
    hard: [u64; KEYS.len()],
    floor: u64,
    soft_floor: u64,
    /// Connections and leases that computed under each rule after the last step.
    computing: [(usize, usize); 2],
}

impl World {
    fn new(draw: &mut Draw<'_>) -> Self {
        let ledger = Ledger::with(draw.choose(&[1, 2, 3, 100]), draw.choose(&[1, 2, 4]));
        let limit = LeaseLimit::new(draw.choose(&[1, 2, 3, 5, 100]));
        let fence = Fence::new(draw.choose(&[1, 2, 64]));
        let herd = Herd::with(Arc::clone(&limit), draw.choose(&[1, 2, 5, 100]), ledger, fence);
        let rules = [(); 2].map(|()| Arc::new(RuleState::new(policy(draw))));
        let mut world = Self {
            herd,
            limit,
            clock: Numbers(Cell::new(draw.choose(&[0, 1, 1 << 40]))),
            now_ms: draw.choose(&[0, 1, 100_000]),
            rules,
            peers: Peers::default(),
            graph: WaitGraph::default(),
            conns: BTreeMap::new(),
            next: 0,
            misses: Vec::new(),
            open: BTreeMap::new(),
            admitted: Vec::new(),
            hard: [0; KEYS.len()],
            floor: 0,
            soft_floor: 0,
            computing: [(0, 0); 2],
        };
        for _ in 0..2 + draw.below(4) {
            world.connect(draw);
        }
        world
    }

    fn rule(&self, key: usize) -> Arc<RuleState> {
        Arc::clone(&self.rules[key % 2])
    }

    /// Calls the herd and takes its effects.
    fn herd<R>(&mut self, act: impl FnOnce(&mut Herd, &mut HerdStep<'_, ()>) -> R) -> R {
        let mut effects = Effects::default();
        let mut step = HerdStep { now_ms: self.now_ms, clock: &self.clock, effects: &mut effects };
        let result = act(&mut self.herd, &mut step);
        self.take(effects);
        result
    }

    /// Takes the work that a step has left.
    fn take(&mut self, effects: Effects<()>) {
        self.admitted.extend(effects.admitted);
        effects.wakes.into_iter().for_each(|wake| self.answer(wake));
    }

    /// A waiter is answered.
    fn answer(&mut self, wake: Wake<()>) {
        let Wake { caller, request, slot, verdict } = wake;
        let connection = caller.number();
        let key = self.open.remove(&(connection, request, slot)).expect("a waiter that was not answered yet");
        let conn = self.conns.get_mut(&connection).expect("a waiter goes with its connection");
        conn.inbox.push_back(News { request, slot, key, verdict, sure: true });
    }

    /// A connection is answered a miss.
    fn told(&mut self, connection: u64, key: usize, record: MissRecord) {
        self.told_late(connection, key, record, true);
    }

    /// The same for a miss that was decided some time ago.
    fn told_late(&mut self, connection: u64, key: usize, record: MissRecord, sure: bool) {
        assert_eq!(record.hash, hash_of(key));
        let Some(conn) = self.conns.get_mut(&connection) else { return };
        conn.session.record(record, self.now_ms);
        let MissRecord { number, until_ms, leased, .. } = record;
        assert!(until_ms <= self.now_ms + 3_600_000, "no miss outlives the longest lease");
        self.misses.push(Miss { key, number, until_ms, connection, leased, sure });
    }

    fn connect(&mut self, draw: &mut Draw<'_>) {
        self.next += 1;
        let peer = self.peers.join(PeerKey::Process(draw.choose(&[1, 2])));
        let session = Session::new(Arc::new(Caller::new(self.next, 0, self.next, peer)));
        self.conns.insert(self.next, Conn { session, requests: 0, inbox: VecDeque::new() });
    }

    fn pick(&self, draw: &mut Draw<'_>) -> Option<u64> {
        self.conns.keys().copied().nth(draw.below(self.conns.len()))
    }

    fn step(&mut self, draw: &mut Draw<'_>) {
        let Some(connection) = self.pick(draw) else { return self.connect(draw) };
        let key = draw.below(KEYS.len());
        match draw.below(24) {
            0..=6 => self.get(connection, draw),
            7..=10 => self.fill(connection, key, draw),
            11 => self.delete(connection, key),
            12 => self.invalidate(key, draw),
            13..=15 => {
                self.now_ms += draw.choose(&[0, 1, 5, 9, 10, 49, 50, 100, 500, 3_000, 60_000]);
            }
            16 => self.herd(Herd::handle_timeouts),
            17 | 18 => self.deliver(connection),
            19 => self.expire(connection, draw.once_in(3)),
            20 => match draw.below(3) {
                0 => self.connect(draw),
                orderly => self.close(connection, orderly == 1),
            },
            21 => self.give_up_lease(connection),
            22 => self.withdraw_last(connection),
            _ => match draw.below(4) {
                0 if self.conns[&connection].session.waits().len() > 1 => {
                    self.conns.get_mut(&connection).expect("picked").session.set_sends_while_held();
                }
                1 if draw.once_in(4) => {
                    // Other rules, under which some keys have none.
                    let keep = draw.below(KEYS.len());
                    self.herd(|herd, step| herd.end_unruled(|key| *key == *KEYS[keep], step));
                }
                1 => {
                    let rule = &mut self.rules[draw.below(2)];
                    *rule = Arc::new(rule.with_policy(policy(draw)));
                    self.admitted.extend(rule.admit_queued());
                }
                _ => self.admit(),
            },
        }
        if draw.below(4) > 0 {
            self.admit();
        }
        self.set_front(connection);
    }

    /// The request whose reply is the next of its connection.
    fn set_front(&self, connection: u64) {
        if let Some(conn) = self.conns.get(&connection) {
            let front = conn.session.waits().iter().map(|wait| wait.request).min();
            conn.session.caller().set_front(front.unwrap_or(0));
        }
    }

    fn admit(&mut self) {
        while let Some(admitted) = self.admitted.pop() {
            self.herd(|herd, step| herd.admit(&admitted, step));
        }
    }

    /// A get of one key or several.
    fn get(&mut self, connection: u64, draw: &mut Draw<'_>) {
        let keys: BTreeSet<usize> = (0..=draw.below(8) / 5).map(|_| draw.below(KEYS.len())).collect();
        let conn = self.conns.get_mut(&connection).expect("picked");
        conn.requests += 1;
        let request = conn.requests;
        if !conn.session.waits().is_empty() && !draw.once_in(3) {
            // It sends while it waits, and not in the packet of the get that waits.
            conn.session.set_sends_while_held();
        }
        let how = how(draw);
        let found = draw.choose(&[
            LeaseKind::Absent,
            LeaseKind::Absent,
            LeaseKind::Absent,
            LeaseKind::Stale,
            LeaseKind::Early,
            LeaseKind::Past,
        ]);
        let (mut leased, mut computes) = (Vec::new(), false);
        for &key in &keys {
            let rule = self.rule(key);
            if !rule.policy().leases {
                let record = self.herd(|herd, step| herd.miss(hash_of(key), &rule, step));
                self.told(connection, key, record);
                continue;
            }
            let ask = self.ask(key, &rule, found, how, keys.len() > 1);
            let before = self.herd.lease(ask.hash, ask.key, self.now_ms);
            let passes = self.herd.passes(ask.hash, self.now_ms);
            match self.ask_herd(connection, &ask) {
                Role::Compute(grant) => {
                    let revoked = before.as_ref().is_some_and(|l| l.token < ask.outside.last());
                    // Its own, of a get that was answered a miss.
                    let taken_over = how.is_explicit()
                        && before.as_ref().is_some_and(|l| !l.explicit && l.holder == Some(connection));
                    assert!(before.is_none() || revoked || taken_over, "it had a lease already: {before:?}");
                    assert!(passes || self.herd.is_current(ask.hash, grant.record().number));
                    computes = true;
                    let verdict = Verdict::<()>::lease(grant);
                    self.told(connection, key, *verdict.record().expect("a lease comes with a record"));
                }
                Role::Miss(record) => self.told(connection, key, record),
                Role::Old => {
                    let fails = self.herd.is_failing(ask.hash);
                    assert!(found.is_served() || found == LeaseKind::Past && fails, "no old value is served");
                }
                Role::Busy(record) => {
                    assert!(!found.is_served() && rule.policy().on_busy == OnBusy::Error);
                    self.told(connection, key, record);
                }
                Role::Leased | Role::Trial => {
                    let waits_for_new = found == LeaseKind::Stale && ask.wait_ms > 0 && !how.is_explicit();
                    assert!(!found.is_served() || waits_for_new);
                    leased.push(key);
                }
            }
        }
        let cannot_wait = computes || draw.once_in(16);
        for (slot, &key) in leased.iter().enumerate() {
            let rule = self.rule(key);
            if cannot_wait && found.is_served() {
                self.herd(|herd, _| herd.not_waited_for(hash_of(key)));
                continue;
            }
            if cannot_wait {
                let record = self.herd(|herd, step| herd.miss(hash_of(key), &rule, step));
                self.told(connection, key, record);
                self.herd(|herd, _| herd.not_waited_for(hash_of(key)));
                continue;
            }
            let ask = self.ask(key, &rule, found, how, keys.len() > 1);
            let many = keys.len() > 1;
            let hold = HoldTerms { request, slot: slot as u16, touch: None, room: !draw.once_in(8), many };
            match self.wait_herd(connection, &ask, &hold) {
                WaitAnswer::Waits(_) => {
                    let new = self.open.insert((connection, request, hold.slot), key);
                    assert!(new.is_none());
                }
                WaitAnswer::Miss(record) => self.told(connection, key, record),
                WaitAnswer::Old => assert!(found.is_served()),
                WaitAnswer::Busy(record) => {
                    self.told(connection, key, record);
                    self.withdraw_request(connection, request);
                    for key in &leased[slot..] {
                        self.herd(|herd, _| herd.not_waited_for(hash_of(*key)));
                    }
                    break;
                }
            }
        }
        self.check_circle(connection);
    }

    fn ask<'a>(
        &self,
        key: usize,
        rule: &'a Arc<RuleState>,
        found: LeaseKind,
        how: AskMode,
        many: bool,
    ) -> Ask<'a> {
        let policy = rule.policy();
        Ask {
            key: KEYS[key],
            hash: hash_of(key),
            rule,
            found,
            how,
            outside: Events { hard: self.floor, soft: self.soft_floor },
            tags: &[7],
            hint: (key == 2).then_some(b"hint"),
            hold_ms: if many { policy.hold_many_ms } else { policy.hold_ms },
            wait_ms: policy.wait_ms,
        }
    }

    fn ask_herd(&mut self, connection: u64, ask: &Ask<'_>) -> Role {
        let mut effects = Effects::default();
        let mut step = HerdStep { now_ms: self.now_ms, clock: &self.clock, effects: &mut effects };
        let role = self.herd.ask(ask, &self.conns[&connection].session, &mut step);
        self.take(effects);
        role
    }

    fn wait_herd(&mut self, connection: u64, ask: &Ask<'_>, hold: &HoldTerms) -> WaitAnswer {
        let mut effects = Effects::<()>::default();
        let mut step = HerdStep { now_ms: self.now_ms, clock: &self.clock, effects: &mut effects };
        let session = &mut self.conns.get_mut(&connection).expect("it asked").session;
        let waited = self.herd.wait(ask, hold, session, &mut step);
        assert!(effects.is_empty(), "a wait wakes no other request");
        waited
    }

    /// Stores a value that was computed after a miss of the key, or without one.
    fn fill(&mut self, connection: u64, key: usize, draw: &mut Draw<'_>) {
        let of_key: Vec<usize> = (0..self.misses.len()).filter(|at| self.misses[*at].key == key).collect();
        let miss = (!of_key.is_empty() && !draw.once_in(32)).then(|| of_key[draw.below(of_key.len())]);
        let miss = miss.map(|at| self.misses.swap_remove(at));
        // Mostly on the connection that was answered the miss, otherwise on any other of the pool.
        let own = miss.map(|miss| miss.connection).filter(|own| self.conns.contains_key(own));
        let connection = own.filter(|_| !draw.once_in(3)).unwrap_or(connection);
        let token = miss.filter(|miss| miss.leased && draw.once_in(2)).map(|miss| miss.number);
        let (hash, rule) = (hash_of(key), self.rule(key));
        if token.is_some_and(|token| !self.herd.knows_token(hash, token, self.now_ms)) {
            return;
        }
        let own = self.conns[&connection].session.oldest(hash, self.now_ms);
        let by_key = token.is_none() && rule.policy().owner == Owner::Key;
        let sure = miss.filter(|miss| miss.sure && miss.until_ms > self.now_ms);
        let by = Filler { connection: Some(connection), token, pooled: by_key && own.is_none() };
        self.answer_own_waits(connection, hash, by);
        let around = self.around(hash);
        let moment = FillMoment { now_ms: self.now_ms, p99_ms: 50, strict: draw.once_in(4) };
        let number = token.or(own);
        let (judgement, softened) = if by_key {
            let values = [draw.below(3) as u64, draw.below(3) as u64];
            let judged = self.herd.ledger.fill(hash, &around, &moment, &Drawn(values, draw.once_in(2)));
            (judged.judgement, judged.softened)
        } else {
            let events = around.outside.max(around.written);
            match number {
                None => (Judgement::Write, SoftRelation::No),
                Some(number) if number < events.hard => (Judgement::Old, SoftRelation::No),
                Some(stamp) if stamp < events.soft => (Judgement::Clean { stamp }, SoftRelation::Now),
                Some(stamp) => (Judgement::Clean { stamp }, SoftRelation::No),
            }
        };
        if by_key && sure.is_some() {
            assert_ne!(judgement, Judgement::Write, "{miss:?} is open");
        }
        if let Some(miss) = sure.filter(|miss| miss.number < self.hard[miss.key]) {
            let own_only = rule.policy().owner == Owner::Connection && token.is_none();
            // Its values are drawn, so equal ones prove nothing.
            let is_certain = matches!(judgement, Judgement::Write | Judgement::Clean { .. });
            assert!(
                !is_certain || own_only,
                "{miss:?} is older than the event {}: {judgement:?}",
                self.hard[key]
            );
        }
        let stale = judgement.stamp().filter(|_| softened == SoftRelation::Now);
        let stale = stale.map(|stamp| StaleFill { stamp, by_own_tag: draw.once_in(4) });
        let is_fill = judgement != Judgement::Write;
        if is_fill {
            self.count_off(connection, hash, token, by_key);
            // A waiter that was answered at the moment in which it was given the lease may have been told of
            // it twice. A connection that keeps its own misses settles all of them.
            if sure.is_none() || !by_key && token.is_none() {
                self.doubt(hash);
            }
        }
        if !judgement.stores() {
            let anyones = by_key && draw.once_in(2);
            return self.herd(|herd, step| herd.dropped(hash, KEYS[key], by, anyones, step));
        }
        let given = self.herd(|herd, step| herd.stored(hash, KEYS[key], by, stale, step));
        let mut effects = Effects::default();
        for waiter in given {
            effects.wake(waiter, Verdict::Value(()));
        }
        self.take(effects);
        if let Some(number) = number.filter(|_| !by_key) {
            self.herd.fence.raise_hard(hash, number);
        } else if !is_fill {
            self.hard[key] = self.clock.tick();
            self.herd.note_written(hash, self.hard[key]);
        }
    }

    /// A fill without its own miss may have been counted as that of any miss.
    fn doubt(&mut self, hash: u64) {
        let decided = self.conns.values_mut().flat_map(|conn| &mut conn.inbox);
        let all = decided.map(|news| (news.key, &mut news.sure));
        let all = all.chain(self.misses.iter_mut().map(|miss| (miss.key, &mut miss.sure)));
        all.filter(|(key, _)| hash_of(*key) == hash).for_each(|(_, sure)| *sure = false);
    }

    /// The number as of which a fill of the key counts.
    fn oldest(&mut self, hash: u64) -> Option<u64> {
        self.herd.ledger.oldest(hash, self.now_ms)
    }

    fn around(&self, hash: u64) -> Surroundings {
        self.herd.surroundings(hash, Events { hard: self.floor, soft: self.soft_floor })
    }

    /// The miss of a fill has been counted off.
    fn count_off(&mut self, connection: u64, hash: u64, token: Option<u64>, by_key: bool) {
        let around = self.around(hash);
        let session = &mut self.conns.get_mut(&connection).expect("it fills").session;
        if let Some(token) = token {
            session.take_number(hash, token);
            self.herd.use_token(hash, token, &around, self.now_ms);
        } else if by_key {
            session.take_oldest(hash, self.now_ms);
        } else {
            for record in session.take_all(hash) {
                if record.until_ms > self.now_ms {
                    self.herd.ledger.take(hash, Some(record.number), &around, self.now_ms);
                }
            }
        }
    }

    /// Earlier gets of the same connection are answered before its write.
    fn answer_own_waits(&mut self, connection: u64, hash: u64, by: Filler) {
        if !self.herd.holds(hash, by) {
            self.answer_all_own_waits(connection, hash);
        }
    }

    fn answer_all_own_waits(&mut self, connection: u64, hash: u64) {
        let waits = self.conns[&connection].session.waits();
        let own: Vec<SessionWait> = waits.iter().filter(|wait| wait.hash == hash).copied().collect();
        for wait in own {
            self.give_up(connection, &wait, WithdrawReason::OwnWrite);
        }
    }

    /// A wait ends as a miss; its answer is on the way.
    fn give_up(&mut self, connection: u64, wait: &SessionWait, why: WithdrawReason) {
        let place = (connection, wait.request, wait.slot);
        let unanswered = self.herd(|herd, step| herd.withdraw(wait.hash, wait.waiter, why, step));
        let Some(UnansweredKey { record, old }) = unanswered else {
            assert!(!self.open.contains_key(&place), "it was not decided");
            return;
        };
        let key = self.open.remove(&place).expect("it was not answered");
        assert!(record.is_some() || old.is_some(), "it is answered");
        if let Some(record) = record {
            self.told(connection, key, record);
        }
        let conn = self.conns.get_mut(&connection).expect("it waited");
        let (request, slot) = (wait.request, wait.slot);
        conn.inbox.push_back(News { request, slot, key, verdict: Verdict::Value(()), sure: true });
    }

    fn delete(&mut self, connection: u64, key: usize) {
        self.answer_all_own_waits(connection, hash_of(key));
        self.hard[key] = self.clock.tick();
        self.herd.note_hard(hash_of(key), self.hard[key]);
        self.herd(|herd, step| herd.invalidated(hash_of(key), KEYS[key], step));
    }

    fn invalidate(&mut self, key: usize, draw: &mut Draw<'_>) {
        match draw.below(4) {
            0 => {
                let number = self.clock.tick();
                self.herd.note_soft(hash_of(key), number);
                self.herd(|herd, step| herd.invalidated(hash_of(key), KEYS[key], step));
            }
            1 => self.floor = self.clock.tick(),
            2 => self.soft_floor = self.clock.tick(),
            _ => {
                let events = Events { hard: self.floor, soft: self.soft_floor };
                self.herd(|herd, step| {
                    herd.revoke(|_, _, tags, _| if tags == [7] { events } else { Events::default() }, step);
                });
            }
        }
    }

    /// A connection receives what was decided.
    fn deliver(&mut self, connection: u64) {
        let conn = self.conns.get_mut(&connection).expect("picked");
        let Some(news) = conn.inbox.pop_front() else { return };
        if conn.session.end_wait(news.request, news.slot).is_none() {
            // It was withdrawn in the meantime, and the client was answered.
            return;
        }
        if let Some(record) = news.verdict.record() {
            self.told_late(connection, news.key, *record, news.sure);
        }
        self.check_circle(connection);
    }

    /// The deadline of the first request that waits has passed.
    fn expire(&mut self, connection: u64, released: bool) {
        let Some(wait) = self.conns[&connection].session.waits().first().copied() else { return };
        let place = (connection, wait.request, wait.slot);
        let Some(verdict) = self.herd(|herd, step| herd.expire(wait.hash, wait.waiter, released, step))
        else {
            return assert!(!self.open.contains_key(&place), "it has not been answered");
        };
        let key = self.open.remove(&place).expect("it was not answered");
        self.conns.get_mut(&connection).expect("picked").session.end_wait(wait.request, wait.slot);
        if let Some(record) = verdict.record() {
            self.told(connection, key, *record);
        }
    }

    /// A request that waits is answered after all.
    fn withdraw_last(&mut self, connection: u64) {
        if let Some(wait) = self.conns[&connection].session.waits().last() {
            self.withdraw_request(connection, wait.request);
        }
    }

    fn withdraw_request(&mut self, connection: u64, request: u64) {
        let waits = self.conns[&connection].session.waits();
        let own: Vec<SessionWait> = waits.iter().filter(|wait| wait.request == request).copied().collect();
        for wait in own {
            let place = (connection, wait.request, wait.slot);
            let unanswered =
                self.herd(|herd, step| herd.withdraw(wait.hash, wait.waiter, WithdrawReason::Answered, step));
            let (key, sure) = match (&unanswered, self.open.remove(&place)) {
                (Some(_), Some(key)) => (key, true),
                (None, None) => {
                    let inbox = &self.conns[&connection].inbox;
                    let decided = inbox.iter().find(|news| (news.request, news.slot) == (place.1, place.2));
                    // Its window began when it was decided, so the new record proves nothing about the
                    // ledger.
                    decided.map(|news| (news.key, false)).expect("its answer is on the way")
                }
                (_, open) => panic!("{unanswered:?} of a request that waits: {open:?}"),
            };
            let record = match unanswered {
                Some(UnansweredKey { record, .. }) => record,
                None => Some(self.herd(|herd, step| herd.promoted(wait.hash, connection, step))),
            };
            if let Some(record) = record {
                self.told_late(connection, key, record, sure);
            }
            self.conns.get_mut(&connection).expect("picked").session.end_wait(wait.request, wait.slot);
        }
    }

    /// The holder says that it cannot compute.
    fn give_up_lease(&mut self, connection: u64) {
        let lease = self.conns[&connection].session.leases().next();
        let Some((hash, token)) = lease.filter(|(hash, token)| self.herd.is_current(*hash, *token)) else {
            return;
        };
        let text = (token % 2 == 0).then_some(&b"no"[..]);
        assert!(self.herd(|herd, step| herd.failed(hash, token, text, step)));
        self.conns.get_mut(&connection).expect("picked").session.take_number(hash, token);
        self.misses.retain(|miss| !(miss.leased && miss.number == token));
    }

    /// A connection is closed. Its misses may still be filled, through another one.
    fn close(&mut self, connection: u64, orderly: bool) {
        let session = &mut self.conns.get_mut(&connection).expect("picked").session;
        session.unpublish(&self.graph);
        let waits = session.waits().to_vec();
        let records = session.take_records();
        for wait in waits {
            // A lease that it was about to hear of may pass to another request of its own, which ends next.
            self.open.remove(&(connection, wait.request, wait.slot));
            self.herd(|herd, step| herd.forget_waiter(wait.hash, wait.waiter, connection, &records, step));
            let session = &mut self.conns.get_mut(&connection).expect("picked").session;
            session.end_wait(wait.request, wait.slot);
        }
        for record in records.iter().filter(|record| record.leased) {
            self.herd(|herd, step| herd.holder_closed(record.hash, connection, orderly, step));
        }
        let conn = self.conns.remove(&connection).expect("picked");
        assert!(conn.session.waits().is_empty());
        self.peers.leave(conn.session.caller().peer());
    }

    /// As the engine does: publish, look, and give up an own wait if there is a circle.
    fn check_circle(&mut self, connection: u64) {
        let session = &mut self.conns.get_mut(&connection).expect("it waits").session;
        let mut walk = session.publish(&self.graph);
        let mut untrue = Vec::new();
        let hash = loop {
            match walk {
                CircleSearch::Clear => return,
                CircleSearch::Circle(steps) if untrue.len() < 4 => {
                    let is_untrue = |holder: u64, hash| self.herd.holder(hash) != Some(holder);
                    match steps.iter().find(|step| is_untrue(step.holder, step.hash)) {
                        Some(step) => untrue.push(*step),
                        None => break Some(steps[0].hash),
                    }
                    walk = self.graph.look_again(connection, &untrue);
                }
                CircleSearch::Circle(_) | CircleSearch::TooLong => break None,
            }
        };
        let waits = self.conns[&connection].session.waits();
        let wait = match hash {
            Some(hash) => waits.iter().find(|wait| wait.hash == hash),
            None => waits.last(),
        };
        if let Some(wait) = wait.copied() {
            self.give_up(connection, &wait, WithdrawReason::Circle);
        }
    }

    fn verify(&mut self, ledger: bool) {
        self.herd.verify();
        assert_eq!(self.limit.taken(), self.herd.len(), "leases, and their places");
        assert_eq!(self.herd.waiting(), self.open.len(), "waiters, and requests that were not answered");
        let (mut computing, mut hashes) = ([0_u32; 2], BTreeSet::new());
        let leases =
            self.herd.lease_hashes().into_iter().filter_map(|hash| self.herd.view(hash, self.now_ms));
        for lease in leases {
            let key = KEYS.iter().position(|key| **key == *lease.key).expect("one of the keys");
            assert!(hashes.insert(hash_of(key)), "a second lease of a key");
            computing[key % 2] += u32::from(lease.holder.is_some());
        }
        for (rule, computing) in self.rules.iter().zip(computing) {
            assert_eq!(rule.computing(), computing, "leases that compute");
        }
        for (n, rule) in self.rules.iter().enumerate() {
            // After a lower limit has come into force there may be more, but none begins.
            let (connections, before) = (rule.connections_computing(), self.computing[n]);
            let limit = rule.policy().rule_computers.map_or(1 << 20, |limit| limit as usize);
            assert!(connections <= limit.max(before.0), "{connections} connections compute, {limit} may");
            let admitted = self.admitted.iter().filter(|admitted| is_of(admitted, rule)).count();
            let leases = computing[n] as usize;
            assert_eq!(rule.slots_taken() as usize, leases + admitted, "slots of leases that do not compute");
            let most = limit + connections * NESTED_MAX as usize;
            assert!(
                leases <= most.max(before.1),
                "{leases} leases of {connections} connections, limit {limit}"
            );
            self.computing[n] = (connections, leases);
        }
        // Rules are chosen by key, but keys of the same hash share a queue: compared in sum.
        let sum = |of: &dyn Fn(&RuleState) -> u64| self.rules.iter().map(|rule| of(rule)).sum::<u64>();
        let held = sum(&|rule| rule.counters().held.load(Relaxed));
        let ended = sum(&|rule| rule.counters().held_ended());
        assert_eq!(held - ended, self.open.len() as u64, "each held get ends in one counter");
        if ledger {
            let now_ms = self.now_ms;
            let sure = |miss: &&Miss| miss.sure && miss.until_ms > now_ms;
            for miss in self.misses.iter().filter(sure).copied().collect::<Vec<_>>() {
                let oldest = self.oldest(hash_of(miss.key));
                assert!(oldest.is_some_and(|oldest| oldest <= miss.number), "{oldest:?} for {miss:?}");
            }
        }
    }

    /// All connections close, and time passes.
    fn end(&mut self) {
        for (orderly, connection) in self.conns.keys().copied().collect::<Vec<_>>().into_iter().enumerate() {
            self.close(connection, orderly % 2 == 0);
            self.admit();
            self.verify(true);
        }
        assert_eq!(self.herd.waiting(), 0);
        for _ in 0..100 {
            self.now_ms += 3_600_000;
            self.herd(Herd::handle_timeouts);
            self.admit();
            self.verify(true);
            if self.herd.is_empty() {
                break;
            }
        }
        assert!(self.herd.is_empty(), "leases without a connection");
        assert_eq!(self.herd.next_deadline_ms(), None);
        for rule in &self.rules {
            assert_eq!((rule.computing(), rule.slots_taken()), (0, 0), "slots of an unused rule");
        }
        assert!(self.peers.is_empty() && self.graph.is_empty());
        self.now_ms += 2 * 3_600_000;
        for key in 0..KEYS.len() {
            assert_eq!(self.oldest(hash_of(key)), None, "misses are forgotten");
        }
        assert_eq!(self.herd.ledger.outstanding(self.now_ms), 0);
        assert!(self.herd.ledger.is_empty() && self.herd.ledger.slots_in_loss(self.now_ms) == 0);
    }
}

/// Whether an admitted lease is of this rule, whatever its terms were then.
fn is_of(admitted: &Admission, rule: &RuleState) -> bool {
    std::ptr::eq(admitted.rule.counters(), rule.counters())
}
