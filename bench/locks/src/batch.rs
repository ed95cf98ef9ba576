//! Batches of requests, and one thread that executes them as a lane of the server does.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use arrayvec::ArrayVec;
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, PREFETCH_MAX,
    PieceResult, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};
use cattlegrid_store::StoreConfig;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::MEMORY;

/// What a batch is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// 32 gets.
    Gets,
    /// A get of 32 keys.
    Multiget,
    /// 32 sets.
    Sets,
}

impl Work {
    pub(crate) const ALL: [Self; 3] = [Self::Gets, Self::Multiget, Self::Sets];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gets => "32 gets",
            Self::Multiget => "get of 32 keys",
            Self::Sets => "32 sets",
        }
    }
}

/// Keys of a batch.
pub(crate) const KEYS: usize = 32;
/// Different keys; each is there.
const ITEMS: u32 = 100_000;
/// Different batches of a thread.
const INPUTS: usize = 512;

/// How far a batch is executed: the times of phases are differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Until {
    Parsed,
    Prefetched,
    Executed,
}

/// An empty engine with this number of shards.
pub(crate) fn engine(shards: usize) -> Result<Engine> {
    let threads = (1..=64).find(|threads| StoreConfig::derive(MEMORY, *threads, true).0 == shards);
    let engine = Engine::new(EngineConfig {
        memory_bytes: MEMORY,
        threads: threads.with_context(|| format!("no number of threads has {shards} shards"))?,
        evictions: true,
        hide_cas: false,
        max_item_bytes: 1 << 20,
        large_pages: false,
        tag_bytes: 0,
        allows_flush: true,
        explain: |_| String::new(),
        nanos: || 0,
        seed: 1,
        shares: Vec::new(),
        prefixes: cattlegrid_engine::Prefixes::default(),
    })?;
    ensure!(engine.shard_count() == shards, "{} shards", engine.shard_count());
    Ok(engine)
}

/// A thread's part: its requests, and what it executes them with.
pub(crate) struct Lane<'e> {
    engine: &'e Engine,
    inputs: Vec<Vec<u8>>,
    counters: Counters,
    effects: Effects,
    session: Session,
    out: Output,
    limits: Limits,
}

impl<'e> Lane<'e> {
    /// Batches of `work`, other ones for each `number`.
    pub(crate) fn new(engine: &'e Engine, work: Work, number: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(number);
        let inputs = (0..INPUTS).map(|_| input(work, || random.random_range(0..ITEMS))).collect();
        Self::with(engine, inputs, number)
    }

    /// Sets all items.
    pub(crate) fn fill(engine: &'e Engine) {
        let batch = |from: u32| {
            let mut next = from;
            input(Work::Sets, || {
                next += 1;
                next - 1
            })
        };
        let inputs: Vec<_> = (0..ITEMS).step_by(KEYS).map(batch).collect();
        let count = inputs.len();
        let mut lane = Self::with(engine, inputs, 0);
        (0..count).for_each(|number| lane.run(number, Until::Executed));
    }

    fn with(engine: &'e Engine, inputs: Vec<Vec<u8>>, number: u64) -> Self {
        let peer = engine.shared().peers().join(PeerKey::Process(number as i32));
        Self {
            engine,
            inputs,
            counters: Counters::default(),
            effects: Effects::default(),
            session: Session::new(Arc::new(Caller::new(number + 1, 0, 0, peer))),
            out: Output::default(),
            limits: Limits::default(),
        }
    }

    /// Executes a batch.
    ///
    /// # Panics
    /// When a key is not there, or a value is not stored.
    pub(crate) fn run(&mut self, number: usize, until: Until) {
        let Self { engine, inputs, counters, effects, session, out, limits } = self;
        out.clear();
        let mut rest = &inputs[number % inputs.len()][..];
        let mut hashes = ArrayVec::<u64, PREFETCH_MAX>::new();
        let mut requests = ArrayVec::<Request<'_>, PREFETCH_MAX>::new();
        while let Parsed::Complete { request, used } = parse(rest, limits)
            && let Some(hash) = engine.hash(&request)
        {
            hashes.push(hash);
            requests.push(request);
            rest = &rest[used..];
        }
        if until == Until::Parsed {
            std::hint::black_box(&requests);
            return;
        }
        let mut lock = engine.shard_lock();
        lock.prefetch(&hashes);
        if until == Until::Prefetched {
            return;
        }
        let before = counters.get_hits.get() + counters.cmd_set.get();
        for (request, hash) in requests.iter().zip(&hashes) {
            let mut cx = Context {
                step: Step {
                    now: Now { second: 2, ms: 2_000, unix_of_zero: 1_700_000_000 },
                    counters,
                    interest: Interest::none(),
                    effects,
                },
                ticket: Ticket { connection: 1, request: 1 },
                session,
                out,
            };
            if let Request::Get(get) = request {
                assert!(matches!(
                    engine.get(get, *hash, GetPiece::ALL, &mut lock, &mut cx),
                    PieceResult::Done
                ));
            } else {
                assert!(engine.execute(request, *hash, &mut lock, &mut cx).is_none());
            }
        }
        drop(lock);
        let done = counters.get_hits.get() + counters.cmd_set.get() - before;
        assert_eq!(done, KEYS as u64, "each key is there");
    }
}

/// A batch of requests about these keys.
fn input(work: Work, mut next: impl FnMut() -> u32) -> Vec<u8> {
    let mut text = String::new();
    if work == Work::Multiget {
        text.push_str("get");
    }
    for _ in 0..KEYS {
        let number = next();
        // Items stored one after the other are not neighbours in the index.
        let key = format!("key:{:028}", number.wrapping_mul(0x9e37_79b1));
        let written = match work {
            Work::Gets => write!(text, "get {key}\r\n"),
            Work::Multiget => write!(text, " {key}"),
            Work::Sets => write!(text, "set {key} 0 0 100\r\n{number:0100}\r\n"),
        };
        written.expect("a string takes all");
    }
    if work == Work::Multiget {
        text.push_str("\r\n");
    }
    text.into_bytes()
}
