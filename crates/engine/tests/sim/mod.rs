//! Clients of all kinds against one engine on a simulated clock, at random: a value computed before a delete,
//! a bump or a flush is not served after it, old values are served at most for their grace, every request is
//! answered once and in time, and no state is left at the end.
//!
//! Connections remember few misses in most histories, tables have few slots in half of them, pools open and
//! close connections while their threads compute, rules are added and removed, and the server is stopped for
//! seconds.
//!
//! `SIM_SEED=n` runs one history and, with `SIM_TRACE=1`, prints it; `SIM_STEPS=n` sets the number of steps
//! in total; that every event meets every state is only checked with as many as usual.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

mod clients;
mod events;
mod loads;
mod named;
mod policy;
mod replies;
pub(crate) mod rng;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use crate::world::World;
use cattlegrid_engine::{FollowedLog, KeyState, RulesConfig};
use cattlegrid_herd::{
    Ambiguous, FillWindow, NESTED_MAX, Owner, PeerKey, Policy, RECORDS_MAX, RuleCounters, TagsInValue,
    WhenBehind,
};
use cattlegrid_tags::{BumpKind, PrefixId};
use named::NamedBy;
use policy::draw_policy;
use rng::Rng;
use table::{EVENTS, STATES, STEPS_OF, is_reachable};

const STEPS: u64 = 2_600_000;
const STEPS_PER_HISTORY: u64 = 2_000;
const KEYS: usize = 4;
/// Keys of a run at most.
const RUN_KEYS: u64 = 5;
/// Computations that take longer than this, in milliseconds, are given up where the guarantee demands it.
const WINDOW_MS: u64 = 2_000;
/// Longest wait that a client asks for, in milliseconds.
const ASKED_MS: u64 = 900;
/// The time to live that a touch sets, in seconds.
const TOUCHED_S: u64 = 3;

/// The command that stores a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Set,
    Add,
    Replace,
    Cas(u64),
    Token(u64),
    /// There is no value; by token or without.
    Negative(Option<u64>),
}

/// The number that a value contains.
fn number_of(value: &[u8]) -> Option<usize> {
    String::from_utf8_lossy(value).split('.').nth(1)?.parse().ok()
}

/// The guarantee of a history, which limits what its clients may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// `owner = "key"`: gets and sets on any connections; no client sets without a miss.
    Pools,
    /// `owner = "key"`, get and set on one connection, one computation of a key at a time; no client sets
    /// without a miss.
    OneConnection,
    /// `owner = "connection"`, one computation of a key at a time on a connection.
    Owners,
    /// No guarantee about values: clients store wrong ones.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One connection, one request at a time.
    Sync,
    /// Several connections, each for one request at a time; fills are sent on any.
    Pool,
    /// The same; it opens connections when none is idle, and closes idle ones.
    Elastic,
    /// One connection, many requests at once.
    Multiplexed,
    /// Asks for leases by name.
    Explicit,
    /// Changes the source and invalidates.
    Writer,
    /// Sets values without having missed the key.
    Liar,
}

struct Client {
    kind: Kind,
    peer: PeerKey,
    connections: Vec<usize>,
    /// What it has missed it asks for again before it computes.
    asks_twice: bool,
}

struct Connection {
    /// Its number in the world.
    number: u64,
    client: usize,
    pending: VecDeque<Request>,
    unread: Vec<u8>,
    /// It has sent a command while a get of it was held.
    sends_while_held: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
struct Request {
    number: u64,
    sent_ms: u64,
    second: u64,
    want: Want,
    /// Versions below these are too old, by key.
    floors: [u64; KEYS],
    /// Versions when it was sent, by key.
    versions: [u64; KEYS],
    /// Soft invalidations before it, by key.
    softs: [usize; KEYS],
    /// There were no rules when it was sent.
    unruled: bool,
    /// For each key that it would touch: whether the present value can be touched.
    touches: Option<[Touchable; KEYS]>,
    /// It waits, or its reply is behind a request that does.
    held: bool,
    /// It is the second get of a client that asks twice.
    again: bool,
    /// Its client waits no longer and computes; the connection is kept for others.
    given_up: bool,
    /// It must be answered within this time, in milliseconds.
    most_ms: u64,
    /// For how long the server was stopped meanwhile, in milliseconds.
    stopped_ms: u64,
}

/// Whether a touch prolongs the present value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touchable {
    Yes,
    /// There is no value, or it is old.
    No,
    /// The key is computed; the value that comes may be old.
    Perhaps,
}

/// A value that was sent to be stored.
struct Stored {
    version: u64,
    /// The second from which on it must not be served.
    until: u64,
    grace_s: u64,
    /// When its limited life is over, if it is old, in milliseconds.
    shown_until_ms: u64,
    /// Soft invalidations of the key before its miss, if it is known which miss that is.
    softs: Option<usize>,
    /// There is no value.
    negative: bool,
}

impl Stored {
    /// Invalidated softly in this second.
    fn soften(&mut self, second: u64) {
        self.until = self.until.min(second + self.grace_s);
    }
}

enum Want {
    Get(Vec<usize>),
    /// Quiet gets and their `mn`.
    Run(Vec<usize>),
    Meta {
        key: usize,
        explicit: bool,
    },
    /// Any line; true: it must be `STORED`, `HD` or similar.
    Line {
        accepted: bool,
    },
    /// A counter.
    Counter,
    /// A flush that is phased in.
    Flush,
    /// A `gets` whose CAS is used at once.
    ForCas(usize),
}

/// A computation under way.
struct Job {
    due_ms: u64,
    missed_ms: u64,
    client: usize,
    /// The connection that was answered the miss.
    connection: u64,
    key: usize,
    version: u64,
    token: Option<u64>,
    /// Soft invalidations of the key before the miss.
    softs: usize,
    /// There were no rules at the miss.
    unruled: bool,
    /// The get that its client has given up.
    gave_up: Option<u64>,
}

/// How often an event met a key in a state.
type Visits = BTreeMap<(&'static str, KeyState), u64>;

#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
struct Sim {
    w: World,
    rng: Rng,
    promise: Promise,
    policy: Policy,
    hold_max_ms: u64,
    clients: Vec<Client>,
    connections: Vec<Option<Connection>>,
    jobs: Vec<Job>,
    /// Jobs of the rule's loader, if it has one.
    loads: Vec<loads::SimLoad>,
    version: [u64; KEYS],
    floor: [u64; KEYS],
    /// The second at which a counter is over; and whether the value is known to be a counter.
    counter_over: u64,
    /// All values, by the number that they contain.
    stored: Vec<Stored>,
    /// Values of each key that may be in the cache, by number.
    of_key: [Vec<usize>; KEYS],
    /// Values of the same version are the same bytes.
    equal: bool,
    /// Old values shown for a time.
    shown_old: u64,
    /// For each key: fills dropped with nothing to show since its last event, though they may have been new.
    withheld: [u64; KEYS],
    /// The seconds of soft invalidations, by key.
    softs: [Vec<u64>; KEYS],
    /// The last second in which each key may have a negative answer of a client.
    negative_until: [u64; KEYS],
    /// Fills dropped one after the other, by connection and key, and the last event then: where each counts
    /// as of its own connection's miss.
    dropped: BTreeMap<(u64, usize), (u64, u64)>,
    /// Values carry a tag that their clients name; the rule gives them none.
    named_by: Option<NamedBy>,
    /// A log bumps tags as well, those only that were noted.
    followed: bool,
    /// Until when the tag of each key is announced, in milliseconds.
    announced_until_ms: [u64; KEYS],
    /// There are no rules at present.
    unruled: bool,
    /// Times that there were none: rules that come back know nothing of jobs from before.
    era: u64,
    /// Leases of rules that have gone may live on together with those of the same rules since they came back;
    /// each is counted under its own.
    mixed: bool,
    /// Requests so far.
    requests: u64,
    /// Flushes that are phased in: when they are over, and the versions that are valid then.
    flushes: Vec<(u64, [u64; KEYS])>,
    /// Number of steps, by their action.
    steps: BTreeMap<&'static str, u64>,
    traced: bool,
    /// Connections and leases that computed under each rule after the last step.
    computing: [(usize, usize); 2],
    misses: u64,
    asked: u64,
    visits: Visits,
}

fn key(n: usize) -> String {
    format!("page:{n}")
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let promise = rng.of(&[Promise::Pools, Promise::OneConnection, Promise::Owners, Promise::Nothing]);
        let owner = match promise {
            Promise::Owners => Owner::Connection,
            Promise::Nothing => rng.of(&[Owner::Key, Owner::Connection]),
            _ => Owner::Key,
        };
        let ambiguous = rng.of(&[Ambiguous::Serve, Ambiguous::Serve, Ambiguous::Drop]);
        let policy = Policy { ambiguous, ..draw_policy(&mut rng, owner) };
        let tiny = rng.one_in(2);
        let config = RulesConfig {
            tag_bytes: if tiny { 128 } else { 1 << 12 },
            control: (*b"@").into(),
            prefixes: cattlegrid_engine::Prefixes::default(),
            ledger_bytes: if tiny { 2048 } else { 1 << 16 },
            fence_bytes: if tiny { 64 } else { 1 << 16 },
            waiters: if rng.one_in(4) { 3 } else { 1000 },
        };
        let named_by = rng.one_in(2).then(|| NamedBy::draw(&mut rng, promise));
        let mut w = World::with(&NamedBy::rules(named_by, policy), &config, 1 << 20, 1);
        let followed = rng.one_in(2);
        if followed {
            // Never behind, as far as items are concerned.
            let log = FollowedLog {
                name: "log".into(),
                source: "".into(),
                max_lag_ms: 600_000,
                when_behind: WhenBehind::Serve,
            };
            w.engine.follow_logs(vec![log], w.ms);
        }
        // Replies with several keys are sent in parts.
        w.most = rng.of(&[usize::MAX, usize::MAX, 1]);
        // A miss that a connection forgets is protected as a pool's is.
        if promise != Promise::OneConnection {
            w.records = rng.of(&[1, 2, 8, RECORDS_MAX]);
        }
        let mut sim = Self {
            w,
            promise,
            policy,
            hold_max_ms: 0,
            clients: Vec::new(),
            connections: Vec::new(),
            jobs: Vec::new(),
            loads: Vec::new(),
            version: [1; KEYS],
            floor: [0; KEYS],
            counter_over: u64::MAX,
            stored: Vec::new(),
            of_key: Default::default(),
            equal: rng.one_in(2),
            shown_old: 0,
            withheld: [0; KEYS],
            softs: Default::default(),
            negative_until: [0; KEYS],
            dropped: BTreeMap::new(),
            named_by,
            followed,
            announced_until_ms: [0; KEYS],
            unruled: false,
            era: 0,
            mixed: false,
            requests: 0,
            flushes: Vec::new(),
            steps: BTreeMap::new(),
            traced: std::env::var_os("SIM_TRACE").is_some(),
            computing: [(0, 0); 2],
            misses: 0,
            asked: 0,
            visits: BTreeMap::new(),
            rng,
        };
        sim.hold_max_ms = sim.longest_hold();
        sim.add_clients();
        sim
    }

    fn longest_hold(&self) -> u64 {
        ASKED_MS.max(self.policy.hold_ms.into()).max(self.policy.hold_many_ms.into()).max(self.hold_max_ms)
    }

    fn add_clients(&mut self) {
        let kinds: &[Kind] = match self.promise {
            Promise::Pools => {
                &[Kind::Sync, Kind::Pool, Kind::Elastic, Kind::Elastic, Kind::Multiplexed, Kind::Explicit]
            }
            Promise::OneConnection | Promise::Owners => &[Kind::Sync, Kind::Sync, Kind::Explicit],
            Promise::Nothing => {
                &[Kind::Sync, Kind::Pool, Kind::Elastic, Kind::Multiplexed, Kind::Explicit, Kind::Liar]
            }
        };
        for _ in 0..2 + self.rng.below(6) {
            let kind = self.rng.of(kinds);
            self.add_client(kind);
        }
        self.add_client(Kind::Writer);
    }

    fn add_client(&mut self, kind: Kind) {
        let peer = PeerKey::Process(self.rng.below(4) as i32);
        let client = self.clients.len();
        let count = if matches!(kind, Kind::Pool | Kind::Explicit) { 1 + self.rng.below(4) } else { 1 };
        let asks_twice = matches!(kind, Kind::Sync | Kind::Pool | Kind::Elastic) && self.rng.one_in(6);
        self.clients.push(Client { kind, peer, connections: Vec::new(), asks_twice });
        for _ in 0..count {
            self.grow(client);
        }
    }

    /// Opens another connection.
    fn grow(&mut self, client: usize) -> usize {
        let free = self.connections.iter().position(Option::is_none);
        let at = free.unwrap_or(self.connections.len());
        if at == self.connections.len() {
            self.connections.push(None);
        }
        self.clients[client].connections.push(at);
        self.open(at, client);
        at
    }

    fn open(&mut self, at: usize, client: usize) {
        let number = self.w.connect_from(self.clients[client].peer);
        let connection = Connection {
            number,
            client,
            pending: VecDeque::new(),
            unread: Vec::new(),
            sends_while_held: false,
        };
        self.connections[at] = Some(connection);
    }

    fn note(&mut self, what: &'static str) {
        *self.steps.entry(what).or_default() += 1;
    }

    fn second(&self) -> u64 {
        self.w.ms / 1000
    }

    fn visit(&mut self, event: &'static str, n: usize) {
        let state = self.w.engine.key_state(key(n).as_bytes(), self.w.now());
        *self.visits.entry((event, state)).or_default() += 1;
    }

    fn is_idle(&self, at: usize) -> bool {
        self.connections[at].as_ref().unwrap().pending.is_empty()
    }

    fn request(&mut self, want: Want) -> Request {
        self.requests += 1;
        Request {
            number: self.requests,
            sent_ms: self.w.ms,
            second: self.second(),
            want,
            floors: self.floor,
            versions: self.version,
            softs: [0, 1, 2, 3].map(|n| self.softs[n].len()),
            unruled: self.unruled,
            touches: None,
            held: false,
            again: false,
            given_up: false,
            most_ms: u64::MAX / 2,
            stopped_ms: 0,
        }
    }

    fn send(&mut self, at: usize, line: &str, want: Want) {
        let touches = line.starts_with("gat").then(|| [0, 1, 2, 3].map(|n| self.touchable(n)));
        let request = Request { touches, ..self.request(want) };
        let connection = self.connections[at].as_mut().unwrap();
        connection.sends_while_held |= !connection.pending.is_empty();
        connection.pending.push_back(request);
        let number = connection.number;
        self.trace(|| format!("{number} > {line}"));
        self.w.send(number, line);
        self.note_loads();
        if self.w.waiting(number) > 0 {
            let for_itself = self.waits_for_itself(at);
            let request = self.connections[at].as_mut().unwrap().pending.back_mut().unwrap();
            request.held = true;
            if for_itself {
                // A trial, and the timer.
                request.most_ms = 10;
                self.note("a computer asks for a slot");
            }
        }
    }

    /// Gets of one key each, in one packet.
    fn send_gets(&mut self, at: usize, keys: &[usize]) {
        self.note("several gets in a packet");
        let requests: Vec<Request> = keys.iter().map(|n| self.request(Want::Get(vec![*n]))).collect();
        let connection = self.connections[at].as_mut().unwrap();
        let number = connection.number;
        let before = connection.pending.len();
        connection.pending.extend(requests);
        let lines = keys.iter().fold(String::new(), |lines, n| lines + "get " + &key(*n) + "|");
        self.trace(|| format!("{number} > {lines}"));
        self.w.send(number, &lines);
        self.note_loads();
        if self.w.waiting(number) > 0 {
            let connection = self.connections[at].as_mut().unwrap();
            connection.pending.iter_mut().skip(before).for_each(|request| request.held = true);
        }
    }

    fn trace(&self, text: impl Fn() -> String) {
        if self.traced {
            eprintln!("{:>6} {}", self.w.ms, text());
        }
    }

    fn step(&mut self) {
        let client = self.rng.below(self.clients.len() as u64) as usize;
        // Values that were missed before are often still being computed then.
        if self.unruled && self.rng.one_in(8) {
            self.reload();
        }
        match self.rng.below(100) {
            0..30 => self.let_time_pass(),
            30..32 => self.intrude(client),
            32..34 => self.close(client),
            34 if self.rng.one_in(4) => self.invalidate_softly_twice(),
            34..36 => self.invalidate_softly(),
            36 if self.rng.one_in(3) => self.reload(),
            39 if self.rng.one_in(20) => self.flush_slowly(),
            37 if self.rng.one_in(8) => self.evict(),
            37 if self.rng.one_in(8) => self.stop_server(),
            38 => self.count(),
            _ => self.act(client),
        }
        self.receive();
        self.finish_loads();
        self.receive();
        self.fill_due();
        self.finish_loads();
        self.receive();
        self.note_loads();
        self.w.check();
        self.check_computing();
        while let Some(at) = self.flushes.iter().position(|(due_ms, _)| *due_ms <= self.w.ms) {
            let (_, versions) = self.flushes.swap_remove(at);
            (0..KEYS).for_each(|n| self.floor[n] = self.floor[n].max(versions[n]));
        }
        for connection in self.connections.iter().flatten() {
            if let Some(request) = connection.pending.front() {
                // Each part of a run waits for itself where loaders compute, and what is behind it waits as
                // long.
                let parts = if self.w.most == 1 { RUN_KEYS } else { 1 };
                let most_ms = self.hold_max_ms.min(request.most_ms) * parts + request.stopped_ms;
                assert!(request.sent_ms + most_ms + 10 >= self.w.ms, "a reply is late");
            }
        }
    }

    /// No more connections compute under a rule than it allows, except those that did when a lower limit came
    /// into force.
    fn check_computing(&mut self) {
        let active = self.w.engine.shared().rules();
        self.mixed &= self.w.engine.leases() > 0;
        let Some(active) = active.as_ref().filter(|_| !self.mixed) else {
            return self.computing = [(0, 0); 2];
        };
        for (n, (_, state)) in active.each().enumerate().take(self.computing.len()) {
            // A slot of a client is its lease's, a slot of a loader its job's, whatever the terms under which
            // they began. A job from before the rules went may put off that of a new lease.
            let of_rule = || self.loads.iter().filter(|load| load.rule() == n);
            let loads = of_rule().filter(|load| load.era == Some(self.era)).count();
            let unknown = of_rule().count() - loads;
            let connections = state.connections_computing();
            let leases = state.slots_taken() as usize;
            let most = loads + unknown + state.computing() as usize;
            assert!(leases >= loads && leases <= most, "a slot has no owner");
            if loads == 0 && unknown == 0 && !state.policy().loader {
                assert_eq!(leases, state.computing() as usize, "a slot has no owner");
            } else if state.policy().loader && unknown == 0 && connections == 0 {
                assert_eq!(leases, loads, "a slot has no job");
            }
            let limit = state.policy().rule_computers.map_or(1 << 20, |limit| limit as usize);
            let before = self.computing[n];
            assert!(connections <= limit.max(before.0), "{connections} connections compute, {limit} may");
            // Jobs have slots, too, and clients that computed before the limit came into force nest under it.
            let most = limit + connections * NESTED_MAX as usize + loads + unknown;
            assert!(
                leases <= most.max(before.1),
                "{leases} leases of {connections} connections, limit {limit}"
            );
            assert!(
                state.queued() == 0 || leases >= limit,
                "{} wait, {leases} of {limit} compute",
                state.queued()
            );
            self.computing[n] = (connections, leases);
        }
        let of = |count: &dyn Fn(&RuleCounters) -> u64| {
            active.each().map(|(_, state)| count(state.counters())).sum::<u64>()
        };
        let held = of(&|counters| counters.held.load(Ordering::Relaxed));
        let ended = of(&|counters| counters.held_ended());
        assert_eq!(held - ended, self.w.engine.held() as u64, "each held get ends in one counter");
    }

    fn let_time_pass(&mut self) {
        let ms = self.rng.of(&[0, 1, 1, 5, 10, 10, 40, 100, 300, 700, 1100]);
        let before: Vec<u64> =
            ["promoted_deadline", "hold_expired", "promoted_close"].map(|c| self.count_of(c)).into();
        let states = [0, 1, 2, 3].map(|n| self.w.engine.key_state(key(n).as_bytes(), self.w.now()));
        let leases = self.w.engine.leases();
        self.note("time passes");
        let end = self.w.ms + ms;
        // Clients receive every reply at the moment at which it is decided.
        while let Some(next) = self.w.next_deadline().filter(|next| *next <= end) {
            self.w.pass(next.saturating_sub(self.w.ms));
            self.note_loads();
            self.receive();
        }
        self.w.pass(end - self.w.ms);
        for (event, before) in ["promoted_deadline", "hold_expired", "promoted_close"].iter().zip(before) {
            if self.count_of(event) > before {
                *self.visits.entry((event, KeyState::LeasedAbsent)).or_default() += 1;
            }
        }
        if self.w.engine.leases() < leases {
            for (n, state) in states.into_iter().enumerate() {
                let now = self.w.engine.key_state(key(n).as_bytes(), self.w.now());
                if state != now && is_leased(state) && !is_leased(now) {
                    *self.visits.entry(("lease ends in time", state)).or_default() += 1;
                }
            }
        }
    }

    /// A client of any kind sends a command that belongs to no computation, at any time: it must do no harm.
    fn intrude(&mut self, client: usize) {
        self.withheld = [0; KEYS];
        let at = self.clients[client].connections[0];
        if !self.is_idle(at) && self.clients[client].kind != Kind::Multiplexed {
            return;
        }
        let n = self.rng.below(KEYS as u64) as usize;
        self.visit("replace append incr touch", n);
        let k = key(n);
        match self.rng.below(8) {
            7 => {
                self.visit("cas", n);
                // A number that was given to no miss: with that of one it would be a fill of it.
                self.store(at, n, self.version[n], 0, Verb::Cas(900_000_000), None);
            }
            0 => self.store(at, n, self.version[n], 0, Verb::Replace, None),
            // Without rules a value that is appended to is not an old value any more, as in memcached.
            1 if self.unruled && self.promise != Promise::Nothing => {}
            1 => self.send(at, &format!("append {k} 0 0 1|x|"), Want::Line { accepted: false }),
            2 => self.send(at, &format!("incr {k} 1|"), Want::Line { accepted: false }),
            3 => self.touch(at, n),
            // A writer that misses a key would also compute it.
            _ if self.clients[client].kind == Kind::Writer => {}
            _ if self.one_at_a_time() && self.computes(at, n) => {}
            4 => {
                self.note("gat");
                self.send(at, &format!("gat {TOUCHED_S} {k}|"), Want::Get(vec![n]));
            }
            _ => self.send(at, &format!("gets {k}|"), Want::ForCas(n)),
        }
    }

    /// Prolongs or shortens the present value's time to live.
    fn touch(&mut self, at: usize, n: usize) {
        let touchable = self.touchable(n);
        let number = self.w.peek(&key(n)).and_then(|value| number_of(&value));
        self.note("touch");
        self.send(at, &format!("touch {} {TOUCHED_S}|", key(n)), Want::Line { accepted: false });
        if let (Touchable::Yes, Some(number)) = (touchable, number) {
            self.touched(number, false);
        }
    }

    /// A value expires in some seconds. `perhaps`: or when it would have otherwise.
    fn touched(&mut self, number: usize, perhaps: bool) {
        let second = self.second();
        let stored = &mut self.stored[number];
        let until = second + TOUCHED_S + stored.grace_s;
        stored.until = if perhaps { stored.until.max(until) } else { until };
    }

    fn touchable(&self, n: usize) -> Touchable {
        match self.w.engine.key_state(key(n).as_bytes(), self.w.now()) {
            KeyState::Fresh | KeyState::LeasedFresh => Touchable::Yes,
            KeyState::LeasedAbsent => Touchable::Perhaps,
            _ => Touchable::No,
        }
    }

    fn count(&mut self) {
        // Not the writer's connection: a miss that a connection cannot remember makes its writes look like
        // fills.
        let at = self.clients[0].connections[0];
        if !self.is_idle(at) {
            return;
        }
        if self.rng.one_in(3) {
            self.send(at, "set count:1 0 2 1|5|", Want::Line { accepted: true });
            self.send(at, "incr count:1 1|", Want::Line { accepted: false });
            // Where it is taken for a value from before a soft invalidation it is an old value, and no
            // counter.
            let is_counter = self.w.peek("count:1").is_some_and(|value| value == b"6");
            self.counter_over = if is_counter { self.w.ms / 1000 + 2 } else { u64::MAX };
        } else {
            self.send(at, "mg count:1 v|", Want::Counter);
        }
    }

    /// All connections close: no state is left.
    fn end(mut self) -> (Visits, BTreeMap<&'static str, u64>) {
        if self.unruled {
            self.reload();
        }
        for connection in std::mem::take(&mut self.connections).into_iter().flatten() {
            self.w.close(connection.number, true);
        }
        // The longest lease.
        self.w.pass(61_000);
        self.end_loads();
        self.w.engine.verify();
        for (what, counter) in [
            ("proved", "fills_proved"),
            ("provisional", "fills_provisional"),
            ("doubted", "values_doubted"),
            ("lost", "misses_lost"),
        ] {
            *self.steps.entry(what).or_default() += self.count_of(counter);
        }
        *self.steps.entry("an old value is shown for a time").or_default() += self.shown_old;
        assert!(self.w.engine.is_quiet());
        assert!(self.w.engine.shared().peers().is_empty());
        assert_eq!(self.w.engine.next_timeout_ms(), None);
        for (_, state) in self.w.engine.shared().rules().as_ref().unwrap().each() {
            assert_eq!((state.computing(), state.slots_taken()), (0, 0));
        }
        assert!(self.misses <= self.asked, "no more computations than memcached's");
        (self.visits, self.steps)
    }
}

fn is_leased(state: KeyState) -> bool {
    matches!(state, KeyState::LeasedAbsent | KeyState::LeasedStale | KeyState::LeasedFresh)
}

#[test]
fn clients_of_all_kinds() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let steps = number("SIM_STEPS").unwrap_or(STEPS);
    let one = number("SIM_SEED");
    let histories = if one.is_some() { 1 } else { steps.div_ceil(STEPS_PER_HISTORY) };
    let mut visits: BTreeMap<(&str, KeyState), u64> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for n in 0..histories {
        let seed = one.unwrap_or(n);
        let run = std::panic::catch_unwind(|| {
            let mut sim = Sim::new(seed);
            for step in 0..STEPS_PER_HISTORY {
                sim.step();
                if step % 64 == 0 {
                    sim.w.engine.verify();
                }
            }
            sim.end()
        });
        let Ok((of_run, steps_of_run)) = run else { panic!("SIM_SEED={seed}") };
        for (what, count) in steps_of_run {
            *kinds.entry(what).or_default() += count;
        }
        for (cell, count) in of_run {
            *visits.entry(cell).or_default() += count;
        }
    }
    let (mut missing, mut never) = (Vec::new(), Vec::new());
    let mut table = format!("{:28}", "");
    table.extend(STATES.map(|(name, _)| format!("{name:>9}")));
    for event in EVENTS {
        write!(table, "\n{event:28}").unwrap();
        for (name, state) in STATES {
            let count = visits.get(&(event, state)).copied().unwrap_or(0);
            write!(table, "{count:>9}").unwrap();
            if count == 0 && is_reachable(event, state) {
                missing.push((event, name));
            }
        }
    }
    eprintln!("{table}");
    for what in STEPS_OF {
        let count = kinds.get(what).copied().unwrap_or(0);
        eprintln!("{what:28}{count:>9}");
        if count == 0 {
            never.push(what);
        }
    }
    // Fewer steps than usual may leave some out.
    if one.is_none() && steps >= STEPS {
        assert!(never.is_empty(), "never done: {never:?}");
        assert!(missing.is_empty(), "never visited: {missing:?}");
    }
}
