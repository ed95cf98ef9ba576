//! Requests to be counted: an engine with items in it, and a hundred requests of one kind.
//!
//! They are executed as by a worker, without its sockets: parse up to 32, prefetch, execute.

use std::path::Path;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, PREFETCH_MAX,
    ParkedRequest, PieceResult, RulesConfig, RunGet, Step, Ticket, is_of_run, is_quiet_get,
};
use cattlegrid_herd::{Caller, PeerKey, Policy, Session};
use cattlegrid_objects::{Host as _, Registry, Settings};
use cattlegrid_protocol::{BINARY_MAGIC, Limits, Parsed, Request, opcode, parse, parse_packet};
use cattlegrid_scripts::{Limits as ScriptLimits, Scripts, Sources};
use cattlegrid_tags::BumpKind;

/// The kind of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `get` of an item that is there.
    GetHit,
    /// `get` of a key that is not there.
    GetMiss,
    /// `mg KEY v` of an item that is there.
    MetaGetHit,
    /// `mg KEY k v q` of such an item, one of a run.
    QuietMetaGetHit,
    /// GET of the binary protocol of such an item.
    PacketHit,
    /// GETKQ of such an item, one of a run.
    QuietPacketHit,
    /// `set` of a new key.
    SetNew,
    /// `set` of a key that is there, to a value of the same length.
    SetOver,
    /// `set` of a new key in memory that has long been full.
    SetEvicting,
    /// `get` of an item under a rule and with a tag.
    RuledHit,
    /// The same after other tags were bumped.
    RuledHitBumped,
    /// `get` of a key under a rule that is not there: its lease is granted.
    RuledMiss,
    /// `get` of such a key by another connection, which waits.
    Park,
    /// `set` of such a key for which a connection waits: the value is stored, and the reply to the other is
    /// written.
    FillWake,
    /// `get` of a quota's `addandcheck`.
    Quota,
    /// `set` of a new key while there are objects.
    SetBesideObjects,
    /// `addandcheck` of a small quota in Luau, `bench/objects/types/share.luau`.
    Share,
    /// A method of it that changes nothing.
    ShareReads,
    /// `addandcheck` of `examples/objects/luau/quota.luau`.
    QuotaInLuau,
    /// `get` of an item that is there, while there are types in Luau, which have been called.
    GetHitBesideScripts,
}

impl Kind {
    /// Whether the load's keys are under a rule.
    fn is_ruled(self) -> bool {
        self.is_tagged() || matches!(self, Self::RuledMiss | Self::Park | Self::FillWake)
    }

    /// The rule gives a tag.
    fn is_tagged(self) -> bool {
        matches!(self, Self::RuledHit | Self::RuledHitBumped)
    }

    /// There are types in Luau.
    fn has_scripts(self) -> bool {
        matches!(self, Self::Share | Self::ShareReads | Self::QuotaInLuau | Self::GetHitBesideScripts)
    }

    /// Calls of `new` for the objects that are called, without their keys.
    fn new_object(self) -> Option<[&'static str; 2]> {
        match self {
            Self::Quota | Self::QuotaInLuau => Some(["quota:new", "1000000000:hour"]),
            Self::Share | Self::ShareReads | Self::GetHitBesideScripts => {
                Some(["share:new", "1000000000:86400"])
            }
            _ => None,
        }
    }
}

/// Requests that are counted together.
pub const REQUESTS: u32 = 100;

/// Items before the first counted request.
const ITEMS: u32 = 10_000;
/// Runs of methods in Luau beforehand.
const WARM_UPS: u32 = 100;

/// Bytes for the numbers of tags.
const TAG_BYTES: usize = 1 << 20;
/// Bumps of tags that no key has.
const BUMPS: u64 = 1_000;

/// The limits of memory for rules.
fn rules_config() -> RulesConfig {
    let (ledger_bytes, fence_bytes, waiters) = (1 << 20, 1 << 20, 1 << 16);
    RulesConfig {
        tag_bytes: TAG_BYTES,
        ledger_bytes,
        fence_bytes,
        waiters,
        control: Box::default(),
        prefixes: cattlegrid_engine::Prefixes::default(),
    }
}

fn rules(tagged: bool) -> Arc<Rules> {
    let pattern = Pattern::parse("key:{id}").expect("a pattern");
    let tag = tagged.then(|| TagTemplate::parse("tag:{id}", Some(&pattern)).expect("a tag"));
    let (policy, tags) = (Policy::default(), tag.into_iter().collect());
    let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None };
    Arc::new(Rules::new(vec![rule], Vec::new()))
}

/// The directories of types in Luau.
const DIRECTORIES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../objects/types"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/objects/luau"),
];

/// All types of users' own.
fn scripts() -> Arc<Scripts> {
    let mut all = Sources::default();
    for directory in DIRECTORIES {
        let Sources { types, libraries, .. } = Sources::read(Path::new(directory)).expect("sources");
        all.types.extend(types);
        all.libraries.extend(libraries);
    }
    Scripts::load(&all, &ScriptLimits::default()).expect("they are right").0
}

/// The shipped types, and users' own, which take the places of shipped ones.
fn registry_with_scripts() -> Registry {
    let (scripts, mut settings) = (scripts(), Settings::default());
    for own in scripts.types() {
        if settings.types.iter().all(|shipped| shipped.name != own.settings.name) {
            settings.types.push(own.settings.clone());
        }
    }
    Registry::with_host(settings, Some(scripts)).expect("the types are right")
}

/// A hundred requests and the engine that is to execute them.
pub struct Load {
    engine: Engine,
    counters: Counters,
    out: Output,
    input: Vec<u8>,
    limits: Limits,
    kind: Kind,
    /// The connection that sends the requests, and those that wait: one for each key.
    sessions: Vec<Session>,
    /// The first that has not waited yet.
    next_waiter: usize,
    effects: Effects,
    parked: Vec<ParkedRequest>,
}

impl Load {
    /// Keys of 32 bytes, values of 100.
    ///
    /// # Panics
    /// When the system has no memory.
    pub fn new(kind: Kind) -> Self {
        let engine = Engine::new(EngineConfig {
            memory_bytes: if kind == Kind::SetEvicting { 1 << 20 } else { 16 << 20 },
            threads: 1,
            evictions: true,
            hide_cas: false,
            max_item_bytes: 1 << 20,
            large_pages: false,
            tag_bytes: if kind.is_tagged() { TAG_BYTES } else { 0 },
            allows_flush: true,
            explain: |_| String::new(),
            nanos: || 0,
            seed: 1,
            shares: Vec::new(),
            prefixes: cattlegrid_engine::Prefixes::default(),
        });
        let engine = engine.expect("a few MiB");
        if matches!(kind, Kind::Quota | Kind::SetBesideObjects) {
            let registry = Registry::new(Settings::default()).expect("the defaults are right");
            engine.set_objects(Some(Arc::new(registry)));
        }
        if kind.has_scripts() {
            engine.set_objects(Some(Arc::new(registry_with_scripts())));
        }
        if kind.is_ruled() {
            engine.set_rules(Some(rules(kind.is_tagged())), &rules_config(), 2_000).expect("a few MiB");
        }
        let connection = |number: u64| {
            let peer = engine.shared().peers().join(PeerKey::Process(number as i32));
            Session::new(Arc::new(Caller::new(number, 0, 0, peer)))
        };
        let mut load = Self {
            sessions: (1..=2 * u64::from(REQUESTS) + 1).map(connection).collect(),
            next_waiter: 1,
            effects: Effects::default(),
            parked: Vec::new(),
            engine,
            counters: Counters::default(),
            out: Output::default(),
            input: Vec::new(),
            limits: Limits::default(),
            kind: Kind::SetNew,
        };
        (0..ITEMS).for_each(|n| load.ask(Kind::SetNew, n));
        load.run();
        // Once beforehand, for code that runs only once.
        if let Some([new, arguments]) = kind.new_object() {
            load.input.clear();
            for n in ITEMS..ITEMS + 2 * REQUESTS {
                let request = format!("get {new}:user{n:010}:{arguments}\r\n");
                load.input.extend_from_slice(request.as_bytes());
            }
            load.run();
        }
        if kind == Kind::RuledHitBumped {
            let shared = load.engine.shared();
            for n in 0..BUMPS {
                let tag = shared.tag_hasher().hash_made(&n.to_le_bytes());
                shared.tags().bumps().bump(tag, BumpKind::Hard, || shared.tick());
            }
        }
        if kind.has_scripts() {
            // Until the collector of the VM has its rhythm.
            let calls = if kind == Kind::GetHitBesideScripts { Kind::Share } else { kind };
            for n in 0..WARM_UPS {
                load.fill_input(calls, ITEMS + n % 2 * REQUESTS);
                load.run();
            }
        }
        let first = match kind {
            Kind::GetHit
            | Kind::GetHitBesideScripts
            | Kind::MetaGetHit
            | Kind::QuietMetaGetHit
            | Kind::PacketHit
            | Kind::QuietPacketHit
            | Kind::RuledHit
            | Kind::RuledHitBumped
            | Kind::SetOver => 0,
            _ => ITEMS,
        };
        for from in [first, first + REQUESTS] {
            let before: &[Kind] = match kind {
                Kind::Park => &[Kind::RuledMiss],
                Kind::FillWake => &[Kind::RuledMiss, Kind::Park],
                _ => &[],
            };
            for kind in before {
                load.fill_input(*kind, from);
                load.run_as(*kind);
            }
            load.fill_input(kind, from);
            if from == first {
                load.run_as(kind);
            }
        }
        load.out.clear();
        load.kind = kind;
        load
    }

    fn fill_input(&mut self, kind: Kind, from: u32) {
        self.input.clear();
        (from..from + REQUESTS).for_each(|n| self.ask(kind, n));
    }

    fn ask(&mut self, kind: Kind, n: u32) {
        // Items stored one after the other are not neighbours in the index, nor by their keys.
        let key = format!("key:{:028}", n.wrapping_mul(0x9e37_79b1));
        let value = format!("{n:0100}");
        let request = match kind {
            Kind::GetHit
            | Kind::GetHitBesideScripts
            | Kind::GetMiss
            | Kind::RuledHit
            | Kind::RuledHitBumped
            | Kind::RuledMiss
            | Kind::Park => format!("get {key}\r\n"),
            Kind::MetaGetHit => format!("mg {key} v\r\n"),
            Kind::QuietMetaGetHit => format!("mg {key} k v q\r\n"),
            Kind::PacketHit => return self.ask_packet(opcode::GET, &key),
            Kind::QuietPacketHit => return self.ask_packet(opcode::GETKQ, &key),
            // As long as the other keys.
            Kind::Quota | Kind::QuotaInLuau => format!("get quota:addandcheck:user{n:010}:1\r\n"),
            Kind::Share => format!("get share:addandcheck:user{n:010}:1\r\n"),
            Kind::ShareReads => format!("get share:full:user{n:010}\r\n"),
            Kind::SetBesideObjects | Kind::SetNew | Kind::SetOver | Kind::SetEvicting | Kind::FillWake => {
                format!("set {key} 0 0 100\r\n{value}\r\n")
            }
        };
        self.input.extend_from_slice(request.as_bytes());
    }

    fn ask_packet(&mut self, opcode: u8, key: &str) {
        let mut header = [0; 24];
        (header[0], header[1], header[3], header[11]) =
            (BINARY_MAGIC, opcode, key.len() as u8, key.len() as u8);
        self.input.extend_from_slice(&header);
        self.input.extend_from_slice(key.as_bytes());
    }

    /// Parses the first request of `rest`, in the protocol that the connection speaks.
    fn parse_one<'i>(&self, rest: &'i [u8]) -> Parsed<'i> {
        if self.input.first() == Some(&BINARY_MAGIC) {
            parse_packet(rest, &self.limits)
        } else {
            parse(rest, &self.limits)
        }
    }

    /// Parses the requests; returns their number.
    pub fn parse(&self) -> u32 {
        let mut rest = &self.input[..];
        let mut count = 0;
        while let Parsed::Complete { request, used } = self.parse_one(rest) {
            std::hint::black_box(&request);
            rest = &rest[used..];
            count += 1;
        }
        count
    }

    /// Takes the lock of a shard as a batch of three requests does, and releases it.
    pub fn lock_once(&self) {
        self.engine.shard_lock().prefetch(&std::hint::black_box([0; 3]));
    }

    /// Executes the requests; returns the bytes of their replies.
    pub fn run(&mut self) -> usize {
        self.run_as(self.kind)
    }

    /// The same again and again, for what does not happen with each request: the collector of a VM takes
    /// turns.
    pub fn run_again(&mut self, times: u32) -> usize {
        (0..times).for_each(|_| {
            self.out.clear();
            self.run();
        });
        self.out.len()
    }

    fn run_as(&mut self, kind: Kind) -> usize {
        let mut rest = &self.input[..];
        let mut lock = self.engine.shard_lock();
        while !rest.is_empty() {
            let mut hashes = ArrayVec::<u64, PREFETCH_MAX>::new();
            let mut requests = ArrayVec::<Request<'_>, PREFETCH_MAX>::new();
            while requests.len() < PREFETCH_MAX
                && let Parsed::Complete { request, used } = self.parse_one(rest)
                && let Some(hash) = self.engine.hash(&request)
            {
                hashes.push(hash);
                requests.push(request);
                rest = &rest[used..];
            }
            lock.prefetch(&hashes);
            for (request, hash) in requests.iter().zip(&hashes) {
                let who = if kind == Kind::Park { self.next_waiter } else { 0 };
                self.next_waiter += usize::from(kind == Kind::Park);
                let session = &mut self.sessions[who];
                let number = session.caller().number();
                let mut cx = Context {
                    step: Step {
                        now: Now { second: 2, ms: 2_000, unix_of_zero: 1_700_000_000 },
                        counters: &self.counters,
                        interest: Interest::none(),
                        effects: &mut self.effects,
                    },
                    ticket: Ticket { connection: number, request: 1 },
                    session,
                    out: &mut self.out,
                };
                if let Request::Get(get) = request {
                    match self.engine.get(get, *hash, GetPiece::ALL, &mut lock, &mut cx) {
                        PieceResult::Parked(parked) => self.parked.push(*parked),
                        got => debug_assert!(matches!(got, PieceResult::Done), "of one key"),
                    }
                } else if is_of_run(request) && is_quiet_get(request) {
                    let got = self.engine.get_of_run(
                        request,
                        *hash,
                        cattlegrid_engine::MayHold::Yes,
                        &mut lock,
                        &mut cx,
                    );
                    debug_assert!(matches!(got, RunGet::Done), "nothing is leased");
                } else {
                    let parked = self.engine.execute(request, *hash, &mut lock, &mut cx);
                    debug_assert!(parked.is_none(), "no `mg` waits here");
                }
            }
        }
        drop(lock);
        self.wake();
        self.out.len()
    }

    /// Handles the wakes of a turn as the server does, except for sockets.
    fn wake(&mut self) {
        if !self.effects.has_wakes() {
            return;
        }
        let first = self.next_waiter - self.parked.len();
        let mut parked: Vec<_> = self.parked.drain(..).map(Some).collect();
        for wake in self.effects.take_wakes() {
            let who = wake.caller.number() as usize - 1;
            let session = &mut self.sessions[who];
            let Some(mut parked) = parked[who - first].take() else { continue };
            parked.resolve(wake.slot, wake.verdict, session, 2_000, &self.counters);
            parked.write(&mut self.out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_what_they_are_called() {
        for (kind, reply) in [
            (Kind::GetHit, "VALUE "),
            (Kind::GetMiss, "END"),
            (Kind::MetaGetHit, "VA "),
            (Kind::QuietMetaGetHit, "VA "),
            (Kind::PacketHit, "\u{fffd}\0\0\0\u{4}"),
            (Kind::QuietPacketHit, "key:"),
            (Kind::SetNew, "STORED"),
            (Kind::SetOver, "STORED"),
            (Kind::SetEvicting, "STORED"),
            (Kind::RuledHit, "VALUE "),
            (Kind::RuledHitBumped, "VALUE "),
            (Kind::RuledMiss, "END"),
            (Kind::Park, ""),
            (Kind::FillWake, "VALUE "),
            (Kind::Quota, "QUOTA_OK"),
            (Kind::SetBesideObjects, "STORED"),
            (Kind::Share, "QUOTA_OK"),
            (Kind::ShareReads, "\r\n0\r\n"),
            (Kind::QuotaInLuau, "QUOTA_OK"),
            (Kind::GetHitBesideScripts, "VALUE "),
        ] {
            let mut load = Load::new(kind);
            assert_eq!(load.parse(), REQUESTS);
            let (items, evictions) = load.items_and_evictions();
            load.run();
            let replies = String::from_utf8_lossy(&load.out.bytes).into_owned();
            if kind == Kind::Park {
                assert_eq!((replies.as_str(), load.parked.len()), ("", 2 * REQUESTS as usize));
                continue;
            }
            assert_eq!(replies.matches(reply).count(), REQUESTS as usize, "{kind:?}");
            let (items_after, evictions_after) = load.items_and_evictions();
            let new = if matches!(kind, Kind::SetNew | Kind::FillWake | Kind::SetBesideObjects) {
                u64::from(REQUESTS)
            } else {
                0
            };
            if kind == Kind::SetEvicting {
                assert!(evictions_after > evictions);
            } else {
                assert_eq!((items_after, evictions_after), (items + new, 0), "{kind:?}");
            }
        }
    }

    impl Load {
        fn items_and_evictions(&self) -> (u64, u64) {
            let (usage, stats) = self.engine.usage();
            (usage.items, stats.evictions)
        }
    }
}
