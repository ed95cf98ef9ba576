//! An engine with many connections and a simulated clock: handles replies that wait as the server does,
//! without sockets.

#![allow(dead_code, clippy::unwrap_used, missing_docs, reason = "shared by several tests")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::Mutex;

use cattlegrid_engine::rules::Rules;
use cattlegrid_engine::{
    AnsweredGets, BumpWaiter, Context, Counter, Counters, Effects, Engine, EngineConfig, Event, GetEnd,
    GetPiece, Interest, Load, LoadEnd, LoadFailure, LoadOrder, LoadOutcome, MayHold, Now, Output,
    ParkedRequest, PieceResult, Prefixes, Progress, ReplyQueue, RulesConfig, RunGet, RunningCall, Step,
    Ticket, Wake, is_of_run, is_quiet_get,
};
use cattlegrid_herd::{Caller, PeerKey, Policy, RECORDS_MAX, Session};
use cattlegrid_protocol::{BINARY_MAGIC, Limits, PacketCommand, Parsed, Request, parse, parse_packet};

#[cfg(shuttle)]
use shuttle::sync::Mutex;

mod rules;
mod seen;

pub(crate) use rules::{cascade, config, on_flush, rule, rules};

pub(crate) struct World {
    pub(crate) engine: Arc<Engine>,
    /// The number of this worker, of those of the engine.
    worker: usize,
    /// Wakes that other workers have sent, by the worker that receives them.
    inboxes: Arc<[Mutex<Vec<Wake>>]>,
    pub(crate) ms: u64,
    /// The second of the last upkeep.
    ticked: u64,
    /// Misses that a connection remembers.
    pub(crate) records: usize,
    /// Bytes of a get's reply after which it is sent in parts.
    pub(crate) most: usize,
    config: RulesConfig,
    pub(crate) counters: Counters,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The command `touch`, which is counted with the gets that touch.
    touches: u64,
    /// Keys that connections waited for when they were closed.
    left: u64,
    /// A reply was neither a hit nor a miss.
    busy: bool,
    /// Jobs of the loader that have begun and not ended, in order.
    pub(crate) jobs: Vec<Load>,
    /// Tokens of jobs that are as urgent as if clients waited, and of those that were cancelled.
    pub(crate) raised: Vec<u64>,
    pub(crate) cancelled: Vec<u64>,
    /// Calls of objects that have not ended.
    pub(crate) calls: VecDeque<Box<RunningCall>>,
    /// They are continued by [`World::go_on`] alone; otherwise they end with the request that began them.
    pub(crate) holds_calls: bool,
    /// The next piece of a `get` is not its first.
    begun: bool,
    /// Which events are noted in [`World::events`].
    pub(crate) interest: Interest,
    pub(crate) events: Vec<Event>,
    /// Lines for the log.
    pub(crate) lines: Vec<String>,
}

/// Every key of a get is counted once, as a hit or as a miss, whether it was held or not.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() || self.busy {
            return;
        }
        let waits: usize = self.connections.values().map(Connection::open_keys).sum();
        let counts = &self.counters;
        let outcomes = [&counts.get_hits, &counts.get_misses, &counts.touch_hits, &counts.touch_misses];
        assert_eq!(
            counts.cmd_get.get() + self.touches,
            outcomes.map(Counter::get).iter().sum::<u64>() + waits as u64 + self.left,
            "keys of gets, and what became of them"
        );
    }
}

impl Connection {
    /// Keys of gets that wait.
    fn open_keys(&self) -> usize {
        self.session.waits().len() + self.calls.values().filter(|counts| **counts).count()
    }
}

struct Connection {
    session: Session,
    requests: u64,
    /// Replies in the order of their requests.
    replies: ReplyQueue,
    /// What has been sent.
    sent: Vec<u8>,
    /// Requests that wait for a call of an object, and whether their keys are counted as those of gets.
    calls: BTreeMap<u64, bool>,
    /// The keys that are left of a `get`, behind a call that has not ended; as a command.
    unfinished: Option<Vec<u8>>,
    /// What was sent behind it, or behind the part of a run that waits.
    behind: Vec<u8>,
    /// A part of the run in `behind` has been answered: the rest of it is not held.
    run_computes: bool,
}

/// A command of any protocol.
fn parse_any<'i>(input: &'i [u8], limits: &Limits) -> Parsed<'i> {
    if input.first() == Some(&BINARY_MAGIC) { parse_packet(input, limits) } else { parse(input, limits) }
}

/// Bytes of a request's line, as far as it matters.
const LINE_BYTES: usize = 10;
/// Workers that an engine has at most.
const WORKERS_MAX: usize = 9;

impl World {
    pub(crate) fn new(list: &[(&str, Policy)]) -> Self {
        Self::with(list, &config(), 64 << 20, 4)
    }

    pub(crate) fn with(
        list: &[(&str, Policy)],
        config: &RulesConfig,
        memory_bytes: usize,
        threads: usize,
    ) -> Self {
        Self::with_rules(rules(list), config, memory_bytes, threads)
    }

    fn with_rules(these: Arc<Rules>, config: &RulesConfig, memory_bytes: usize, threads: usize) -> Self {
        let engine = Engine::new(EngineConfig {
            memory_bytes,
            threads,
            evictions: true,
            hide_cas: false,
            large_pages: false,
            max_item_bytes: 8 << 20,
            tag_bytes: config.tag_bytes,
            allows_flush: true,
            explain: |why| serde_json::to_string(why).unwrap(),
            nanos: || 0,
            seed: 7,
            shares: Vec::new(),
            prefixes: Prefixes::default(),
        })
        .unwrap();
        engine.set_rules(Some(these), config, 0).unwrap();
        let world = Self::around(engine, config);
        world.engine.tick(world.now());
        world
    }

    /// Under other rules.
    pub(crate) fn under(rules: Rules) -> Self {
        Self::with_rules(Arc::new(rules), &config(), 64 << 20, 4)
    }

    /// Under other rules, for clients with these prefixes.
    pub(crate) fn behind(prefixes: &[&str], rules: Rules) -> Self {
        let config = RulesConfig { prefixes: Prefixes::new(prefixes).unwrap(), ..config() };
        Self::with_rules(Arc::new(rules), &config, 64 << 20, 4)
    }

    fn around(engine: Engine, config: &RulesConfig) -> Self {
        let inboxes = (0..WORKERS_MAX).map(|_| Mutex::default()).collect();
        Self::of_worker(Arc::new(engine), 0, inboxes, config)
    }

    /// Another worker of the same engine: it has its own connections, and receives what others did to them in
    /// [`World::receive`].
    pub(crate) fn beside(&self, worker: usize) -> Self {
        Self::of_worker(Arc::clone(&self.engine), worker, Arc::clone(&self.inboxes), &self.config)
    }

    fn of_worker(
        engine: Arc<Engine>,
        worker: usize,
        inboxes: Arc<[Mutex<Vec<Wake>>]>,
        config: &RulesConfig,
    ) -> Self {
        Self {
            engine,
            worker,
            inboxes,
            ms: 10_000,
            ticked: 10,
            records: RECORDS_MAX,
            most: usize::MAX,
            config: config.clone(),
            counters: Counters::default(),
            connections: BTreeMap::new(),
            next: 1_000_000 * worker as u64,
            touches: 0,
            left: 0,
            busy: false,
            jobs: Vec::new(),
            raised: Vec::new(),
            cancelled: Vec::new(),
            calls: VecDeque::new(),
            holds_calls: false,
            begun: false,
            interest: Interest::none(),
            events: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Handles the wakes that other workers have sent. True: there were any.
    pub(crate) fn receive(&mut self) -> bool {
        let wakes = std::mem::take(&mut *self.inboxes[self.worker].lock().unwrap());
        let some = !wakes.is_empty();
        self.deliver(wakes);
        some
    }

    pub(crate) fn now(&self) -> Now {
        Now { second: (self.ms / 1000) as u32, ms: self.ms, unix_of_zero: 1_700_000_000 }
    }

    /// A connection of its own peer.
    pub(crate) fn connect(&mut self) -> u64 {
        let peer = PeerKey::Process(100_000_000 + self.next as i32);
        self.connect_from(peer)
    }

    pub(crate) fn connect_from(&mut self, peer: PeerKey) -> u64 {
        self.next += 1;
        let number = self.next;
        let peer = self.engine.shared().peers().join(peer);
        let caller = Arc::new(Caller::new(number, self.worker, number, peer));
        let session = Session::with_room(caller, self.records);
        let connection = Connection {
            session,
            requests: 0,
            replies: ReplyQueue::default(),
            sent: Vec::new(),
            calls: BTreeMap::new(),
            unfinished: None,
            behind: Vec::new(),
            run_computes: false,
        };
        self.connections.insert(number, connection);
        number
    }

    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.connections.contains_key(&number)
    }

    /// Sends commands (`|` ends a line); the replies, of now or later, are for [`World::replies`].
    pub(crate) fn send(&mut self, number: u64, input: &str) {
        self.send_bytes(number, input.replace('|', "\r\n").as_bytes());
    }

    pub(crate) fn send_bytes(&mut self, number: u64, input: &[u8]) {
        let limits = Limits { max_item_bytes: 8 << 20, extensions: true, ..Limits::default() };
        let mut rest = input;
        let connection = self.connections.get_mut(&number).unwrap();
        if connection.unfinished.is_some() {
            connection.behind.extend_from_slice(input);
            return;
        }
        if !connection.replies.is_empty() {
            connection.session.set_sends_while_held();
        }
        while !rest.is_empty() {
            let (request, used) = match parse_any(rest, &limits) {
                Parsed::Complete { request, used } => (request, used),
                other => panic!("{:?}: {other:?}", rest.escape_ascii().to_string()),
            };
            if is_of_run(&request) && is_quiet_get(&request) {
                rest = self.execute_run(number, rest, &limits);
                continue;
            }
            rest = &rest[used..];
            self.execute(number, &request);
            let connection = self.connections.get_mut(&number).unwrap();
            if connection.unfinished.is_some() {
                connection.behind.extend_from_slice(rest);
                return;
            }
        }
    }

    fn execute(&mut self, number: u64, request: &Request<'_>) {
        let now = self.now();
        let connection = self.connections.get_mut(&number).unwrap();
        connection.requests += 1;
        let objects = self.engine.objects();
        let is_named = |key: &[u8]| objects.as_ref().is_some_and(|objects| objects.named(key).is_some());
        let touches = |key: &[u8]| !key.starts_with(b"@") && !is_named(key);
        self.touches += u64::from(matches!(request, Request::Touch(touch) if touches(touch.key)));
        let (mut out, mut effects) = (Output::default(), Effects::default());
        let mut cx = Context {
            step: Step { now, counters: &self.counters, interest: self.interest, effects: &mut effects },
            ticket: Ticket { connection: number, request: connection.requests },
            session: &mut connection.session,
            out: &mut out,
        };
        let mut pieces = Vec::new();
        let hash = self.engine.hash(request).unwrap();
        let mut lock = self.engine.shard_lock();
        let mut left = None;
        let parked = if let Request::Get(get) = request {
            let (mut get, mut hash) = (get.clone(), hash);
            let progress = Progress::from(std::mem::take(&mut self.begun));
            let mut piece = GetPiece { progress, bytes: self.most, ..GetPiece::ALL };
            loop {
                match self.engine.get(&get, hash, piece, &mut lock, &mut cx) {
                    PieceResult::Done => break None,
                    PieceResult::Parked(parked) => break Some(parked),
                    PieceResult::ParkedMore(parked, keys) => {
                        left = Some(get.with_keys(keys));
                        break Some(parked);
                    }
                    PieceResult::More(left) => {
                        get = get.with_keys(left);
                        hash = self.engine.hash(&Request::Get(get.clone())).unwrap();
                        piece.progress = Progress::Begun;
                        pieces.push(std::mem::take(cx.out));
                    }
                }
            }
        } else {
            self.engine.execute(request, hash, &mut lock, &mut cx)
        };
        drop(lock);
        if let Some(left) = left {
            let Request::Get(get) = request else { unreachable!() };
            let command: &[u8] = if get.cas { b"gets " } else { b"get " };
            connection.unfinished = Some([command, left.keys.rest(), b"\r\n"].concat());
        }
        let counts = matches!(request, Request::Get(_) | Request::MetaGet(_));
        self.hand_over(number, pieces.into_iter().chain([out]), parked, counts, &mut effects);
    }

    /// Executes the run of quiet gets that `input` begins with, as the server does. Returns what is behind
    /// it.
    fn execute_run<'i>(&mut self, number: u64, input: &'i [u8], limits: &Limits) -> &'i [u8] {
        let (mut gets, mut ends, mut at, mut end) = (Vec::new(), Vec::new(), 0, GetEnd::Nothing);
        while let Parsed::Complete { request, used } = parse_any(&input[at..], limits) {
            let is_quiet = is_quiet_get(&request);
            match request {
                Request::MetaNoop => end = GetEnd::Mn,
                Request::Packet(packet, PacketCommand::Noop) => end = GetEnd::Noop(packet),
                _ if is_of_run(&request) => {
                    let hash = self.engine.hash(&request).unwrap();
                    gets.push((request, hash));
                }
                _ => break,
            }
            at += used;
            ends.push(at);
            if !is_quiet {
                break;
            }
        }
        let connection = self.connections.get_mut(&number).unwrap();
        let mut done = 0;
        let mut may_hold =
            if std::mem::take(&mut connection.run_computes) { MayHold::No } else { MayHold::Yes };
        let (mut seen, mut leases) = (Vec::new(), Vec::new());
        while done < gets.len() {
            let (now, most) = (self.now(), self.most);
            let connection = self.connections.get_mut(&number).unwrap();
            connection.requests += 1;
            let (mut out, mut effects) = (Output::default(), Effects::default());
            let mut cx = Context {
                step: Step { now, counters: &self.counters, interest: self.interest, effects: &mut effects },
                ticket: Ticket { connection: number, request: connection.requests },
                session: &mut connection.session,
                out: &mut out,
            };
            let mut lock = self.engine.shard_lock();
            let (request, hash) = &gets[done];
            let mut parked = None;
            match self.engine.get_of_run(request, *hash, may_hold, &mut lock, &mut cx) {
                RunGet::Done => {
                    seen.push(*hash);
                    done += 1;
                }
                RunGet::Computes(token) => {
                    seen.push(*hash);
                    leases.push((*hash, token));
                    (done, may_hold) = (done + 1, may_hold.min(MayHold::IfPartial));
                }
                RunGet::Parked(call) => (done, parked) = (done + 1, Some(call)),
                RunGet::Held => {
                    let (some, waits) = self.engine.get_run(
                        &gets[done..],
                        AnsweredGets { keys: &seen, computes: &leases },
                        end,
                        most,
                        &mut lock,
                        &mut cx,
                    );
                    assert!(some > 0, "no key names a call here");
                    (done, parked, may_hold) = (done + some, waits, MayHold::No);
                    if done == gets.len() {
                        end = GetEnd::Nothing;
                    }
                }
            }
            drop(lock);
            if parked.is_some() && done < gets.len() {
                // The rest of it comes after what waits.
                connection.behind = input[ends[done - 1]..].to_vec();
                (connection.unfinished, connection.run_computes) = (Some(Vec::new()), true);
                self.hand_over(number, [out].into_iter(), parked, true, &mut effects);
                return &[];
            }
            self.hand_over(number, [out].into_iter(), parked, true, &mut effects);
        }
        if end != GetEnd::Nothing {
            // It is not part of what was held.
            let mut out = Output::default();
            match end {
                GetEnd::Noop(packet) => cattlegrid_protocol::reply::packet::done(&mut out.bytes, packet, 0),
                _ => out.bytes.extend_from_slice(cattlegrid_protocol::reply::MN),
            }
            self.hand_over(number, [out].into_iter(), None, false, &mut Effects::default());
        }
        &input[at..]
    }

    /// Sends what a request has written, and keeps it if it waits; `counts`: its keys are counted as those of
    /// gets.
    fn hand_over(
        &mut self,
        number: u64,
        written: impl Iterator<Item = Output>,
        parked: Option<Box<ParkedRequest>>,
        counts: bool,
        effects: &mut Effects,
    ) {
        let now = self.now();
        let connection = self.connections.get_mut(&number).unwrap();
        for mut out in written {
            assert!(out.huge.is_empty(), "values are small here");
            connection.replies.push(&mut out, now.ms);
        }
        if let Some(parked) = parked {
            let waits = connection.session.waits().iter().any(|wait| wait.request == parked.request());
            if !waits && !parked.is_bump() {
                let before = connection.calls.insert(parked.request(), counts);
                assert!(before.is_none(), "a request waits for one call at a time");
            }
            connection.replies.park(parked, LINE_BYTES, now.ms);
        }
        self.answer(number);
        let wakes = self.take(effects);
        self.deliver(wakes);
        while !self.holds_calls && self.go_on() {}
    }

    /// Goes on with a `get` whose call has ended, and with what was sent behind it.
    fn resume(&mut self, number: u64) {
        let connection = self.connections.get_mut(&number).unwrap();
        if connection.unfinished.is_none() || connection.replies.waiting() > 0 {
            return;
        }
        let line = connection.unfinished.take().unwrap();
        let behind = std::mem::take(&mut connection.behind);
        if !line.is_empty() {
            connection.requests -= 1;
            self.begun = true;
            self.send_bytes(number, &line);
        }
        self.send_bytes(number, &behind);
    }

    /// Continues the call of an object that has waited longest. False: there is none.
    pub(crate) fn go_on(&mut self) -> bool {
        let Some(call) = self.calls.pop_front() else { return false };
        let left = self.with_step(|engine, step| engine.continue_call(call, &mut engine.shard_lock(), step));
        self.calls.extend(left);
        true
    }

    /// Handles wakes as the server does.
    fn deliver(&mut self, wakes: Vec<Wake>) {
        let mut wakes = VecDeque::from(wakes);
        while let Some(wake) = wakes.pop_front() {
            let (now, number) = (self.now(), wake.caller.number());
            if wake.caller.lane() != self.worker {
                self.inboxes[wake.caller.lane()].lock().unwrap().push(wake);
                continue;
            }
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            let counters = &self.counters;
            if wake.slot == u16::MAX {
                connection.calls.remove(&wake.request).expect("a call ends once");
            }
            let Connection { replies, session, .. } = connection;
            replies.wake(wake.request, now.ms, |parked| {
                parked.resolve(wake.slot, wake.verdict, session, now.ms, counters);
            });
            self.answer(number);
            wakes.extend(self.looked(number));
            self.resume(number);
        }
    }

    /// Tells requests that wait for the log of the fleet what became of their bumps.
    pub(crate) fn tell_bumps(&mut self, waiters: Vec<BumpWaiter>, is_confirmed: bool) {
        let now_ms = self.now().ms;
        for waiter in waiters {
            let wake = waiter.wake(is_confirmed);
            let (number, counters) = (wake.caller.number(), &self.counters);
            let Some(Connection { replies, session, .. }) = self.connections.get_mut(&number) else {
                continue;
            };
            replies.wake(wake.request, now_ms, |parked| {
                parked.resolve(wake.slot, wake.verdict, session, now_ms, counters);
            });
            self.answer(number);
        }
    }

    fn look(&mut self, number: u64) {
        let wakes = self.looked(number);
        self.deliver(wakes);
    }

    /// What a connection does when its requests were told what became of their keys.
    fn looked(&mut self, number: u64) -> Vec<Wake> {
        let look = |engine: &Engine, cx: &mut Context<'_>| {
            if cx.session.needs_a_look() {
                engine.look_at_waits(&mut engine.shard_lock(), cx);
            }
        };
        self.with_context(number, look).1
    }

    /// Calls the engine on behalf of a connection.
    fn with_context<R>(
        &mut self,
        number: u64,
        call: impl FnOnce(&Engine, &mut Context<'_>) -> R,
    ) -> (R, Vec<Wake>) {
        let now = self.now();
        let connection = self.connections.get_mut(&number).unwrap();
        let (mut out, mut effects) = (Output::default(), Effects::default());
        let mut cx = Context {
            step: Step { now, counters: &self.counters, interest: self.interest, effects: &mut effects },
            ticket: Ticket { connection: number, request: connection.requests },
            session: &mut connection.session,
            out: &mut out,
        };
        let result = call(&self.engine, &mut cx);
        assert!(out.is_empty());
        (result, self.take(&mut effects))
    }

    /// Sends the finished replies, in order.
    fn answer(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut out = Output::default();
        connection.replies.pop_done(&mut out);
        self.busy |= out.bytes.windows(12).any(|word| word == b"SERVER_ERROR");
        connection.sent.extend(out.bytes);
        connection.session.caller().set_front(connection.replies.front());
    }

    /// Time passes, deadline by deadline.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.ms + ms;
        while let Some(next) = self.next_deadline().filter(|next| *next <= end) {
            self.ms = self.ms.max(next);
            self.time();
        }
        self.ms = end;
        self.time();
    }

    /// Nothing runs for this many milliseconds. The last note that something ran was made `more_ms` before.
    pub(crate) fn stop(&mut self, ms: u64, more_ms: u64) {
        self.ms += ms;
        self.engine.note_stop(ms + more_ms, self.ms);
    }

    /// The next time at which work is due.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let parked = self.connections.values().filter_map(|connection| connection.replies.next_deadline_ms());
        parked.chain(self.engine.next_timeout_ms()).min()
    }

    fn time(&mut self) {
        let mut effects = Effects::default();
        if self.ms / 1000 != self.ticked {
            self.ticked = self.ms / 1000;
            self.engine.tick(self.now());
        }
        let (now, interest) = (self.now(), Interest::none());
        let counters = &self.counters;
        self.engine.handle_timeouts(&mut Step { now, counters, interest, effects: &mut effects });
        let wakes = self.take(&mut effects);
        self.deliver(wakes);
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.end_waits(number, false);
        }
    }

    /// Expires the requests that are due, or releases all.
    fn end_waits(&mut self, number: u64, release: bool) {
        let now = self.now();
        let mut replies = std::mem::take(&mut self.connections.get_mut(&number).unwrap().replies);
        let ((), wakes) = self.with_context(number, |engine, cx| {
            if release {
                replies.release(now.ms, |parked| engine.release(parked, cx));
            } else {
                replies.expire(now.ms, |parked| engine.expire(parked, cx));
            }
        });
        self.connections.get_mut(&number).unwrap().replies = replies;
        self.answer(number);
        self.deliver(wakes);
        self.look(number);
        self.resume(number);
    }

    /// The job under this token ends.
    pub(crate) fn finish(&mut self, token: u64, end: &LoadEnd<'_>) -> LoadOutcome {
        let at = self.jobs.iter().position(|load| load.token == token).expect("the job runs");
        let load = self.jobs.remove(at);
        self.with_step(|engine, step| engine.finish_load(&load, end, &mut engine.shard_lock(), step))
    }

    /// It ends with a value that does not expire.
    pub(crate) fn finish_with(&mut self, token: u64, data: &str) -> LoadOutcome {
        let end = LoadEnd::Value { data: data.as_bytes(), flags: 0, ttl_s: Some(0), tags: &[] };
        self.finish(token, &end)
    }

    /// It ends without one.
    pub(crate) fn fail(&mut self, token: u64, text: &str, cause: LoadFailure) -> LoadOutcome {
        self.finish(token, &LoadEnd::Failed { text: text.as_bytes(), cause })
    }

    /// Tokens of the jobs that run, in order.
    pub(crate) fn tokens(&self) -> Vec<u64> {
        self.jobs.iter().map(|load| load.token).collect()
    }

    /// Notes the orders for the loader, and takes the wakes.
    fn take(&mut self, effects: &mut Effects) -> Vec<Wake> {
        for order in effects.take_loads() {
            match order {
                LoadOrder::Start(load) => self.jobs.push(load),
                LoadOrder::Raise { token } => self.raised.push(token),
                LoadOrder::Cancel { token } => self.cancelled.push(token),
            }
        }
        self.calls.extend(effects.take_calls());
        self.lines.extend(effects.take_lines());
        self.events.extend(effects.events.drain(..).map(|(_, event)| event));
        effects.take_wakes()
    }

    fn with_step<R>(&mut self, call: impl FnOnce(&Engine, &mut Step<'_>) -> R) -> R {
        let (now, interest, mut effects) = (self.now(), self.interest, Effects::default());
        let mut step = Step { now, counters: &self.counters, interest, effects: &mut effects };
        let result = call(&self.engine, &mut step);
        let wakes = self.take(&mut effects);
        self.deliver(wakes);
        result
    }

    /// The client sends no more: its waiting requests are answered.
    pub(crate) fn release(&mut self, number: u64) {
        self.end_waits(number, true);
    }

    /// The connection is closed, in an orderly way or by a reset.
    pub(crate) fn close(&mut self, number: u64, orderly: bool) {
        if orderly {
            // Its client sends no more, and may still read.
            self.release(number);
        }
        self.left += self.connections[&number].open_keys() as u64;
        let ((), wakes) = self.with_context(number, |engine, cx| engine.leave(orderly, cx));
        let connection = self.connections.remove(&number).unwrap();
        self.engine.shared().peers().leave(connection.session.caller().peer());
        self.deliver(wakes);
    }

    /// Puts other rules in force.
    pub(crate) fn set_rules_to(&mut self, rules: Rules) {
        self.engine.set_rules(Some(Arc::new(rules)), &self.config, self.ms).unwrap();
        self.time();
    }

    pub(crate) fn set_rules(&mut self, list: &[(&str, Policy)]) {
        self.swap_rules(list);
        // The server wakes a worker.
        self.time();
    }

    /// The same before a worker has looked.
    pub(crate) fn swap_rules(&mut self, list: &[(&str, Policy)]) {
        let rules = (!list.is_empty()).then(|| rules(list));
        self.engine.set_rules(rules, &self.config, self.ms).unwrap();
    }

    /// Does what the server does with a value that is too large.
    pub(crate) fn refuse(&mut self, number: u64, key: &str, token: Option<u64>) {
        let ((), wakes) =
            self.with_context(number, |engine, cx| engine.invalidate(key.as_bytes(), token, true, cx));
        self.deliver(wakes);
    }

    /// Other values evict everything.
    pub(crate) fn evict(&mut self) {
        let number = self.connect();
        let fat = "x".repeat(3000);
        for n in 0..400 {
            self.send(number, &format!("set junk:{n} 0 0 3000 noreply|{fat}|"));
        }
        self.close(number, false);
    }

    /// Flushes everything.
    pub(crate) fn flush(&mut self) {
        let second = self.now().second;
        self.engine.shared().flush(second, second);
    }

    /// The bytes sent to a connection since the last call, with `|` for line ends.
    pub(crate) fn replies(&mut self, number: u64) -> String {
        let sent = std::mem::take(&mut self.connections.get_mut(&number).unwrap().sent);
        String::from_utf8(sent).unwrap().replace("\r\n", "|")
    }

    /// Sends, and returns what is answered at once.
    pub(crate) fn ask(&mut self, number: u64, input: &str) -> String {
        self.send(number, input);
        self.replies(number)
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, number: u64, input: &str, reply: &str) {
        let got = self.ask(number, input);
        assert_eq!(got, reply, "to {input:?}");
    }
}
