//! Requests to be counted: an engine with items in it, and a hundred requests of one kind.
//!
//! What a worker does with them is done here without its sockets: parse up to 32, fetch ahead, execute.

use std::sync::Arc;

use arrayvec::ArrayVec;
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, Got, Interest, Now, Output, PREFETCH_MAX, Piece, Step,
    Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};

/// What the requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `get` of an item that is there.
    GetHit,
    /// `get` of one that is not.
    GetMiss,
    /// `mg KEY v` of an item that is there.
    MetaGetHit,
    /// `set` of a new key.
    SetNew,
    /// `set` of a key that is there, to a value of the same length.
    SetOver,
    /// `set` of a new key in memory that has long been full.
    SetEvicting,
}

/// Requests that are counted together.
pub const REQUESTS: u32 = 100;

/// Items before the first counted request.
const ITEMS: u32 = 10_000;

/// A hundred requests and the engine that is to execute them.
pub struct Load {
    engine: Engine,
    counters: Counters,
    out: Output,
    input: Vec<u8>,
    limits: Limits,
    session: Session,
    effects: Effects,
}

impl Load {
    /// Keys of 32 bytes, values of 100.
    ///
    /// # Panics
    /// When the system gives no memory.
    pub fn new(kind: Kind) -> Self {
        let engine = Engine::new(EngineConfig {
            memory_bytes: if kind == Kind::SetEvicting { 1 << 20 } else { 16 << 20 },
            threads: 1,
            evictions: true,
            hide_cas: false,
            max_item_bytes: 1 << 20,
            large_pages: false,
            tag_bytes: 0,
            allows_flush: true,
            explain: |_| String::new(),
            seed: 1,
        });
        let engine = engine.expect("a few MiB");
        let peer = engine.shared().peers().join(PeerKey::Process(1));
        let mut load = Self {
            session: Session::new(Arc::new(Caller::new(1, 0, 0, peer))),
            effects: Effects::default(),
            engine,
            counters: Counters::default(),
            out: Output::default(),
            input: Vec::new(),
            limits: Limits::default(),
        };
        (0..ITEMS).for_each(|n| load.ask(Kind::SetNew, n));
        load.run();
        // Once for the code that runs once.
        let first = match kind {
            Kind::GetHit | Kind::MetaGetHit | Kind::SetOver => 0,
            Kind::GetMiss | Kind::SetNew | Kind::SetEvicting => ITEMS,
        };
        for from in [first, first + REQUESTS] {
            load.input.clear();
            (from..from + REQUESTS).for_each(|n| load.ask(kind, n));
            if from == first {
                load.run();
            }
        }
        load.out.clear();
        load
    }

    fn ask(&mut self, kind: Kind, n: u32) {
        // Neighbours in time are none in the index, nor by their keys.
        let key = format!("key:{:028}", n.wrapping_mul(0x9e37_79b1));
        let value = format!("{n:0100}");
        let request = match kind {
            Kind::GetHit | Kind::GetMiss => format!("get {key}\r\n"),
            Kind::MetaGetHit => format!("mg {key} v\r\n"),
            Kind::SetNew | Kind::SetOver | Kind::SetEvicting => format!("set {key} 0 0 100\r\n{value}\r\n"),
        };
        self.input.extend_from_slice(request.as_bytes());
    }

    /// Parses the requests; returns how many there are.
    pub fn parse(&self) -> u32 {
        let mut rest = &self.input[..];
        let mut count = 0;
        while let Parsed::Complete { request, used } = parse(rest, &self.limits) {
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
        let mut rest = &self.input[..];
        let mut lock = self.engine.shard_lock();
        while !rest.is_empty() {
            let mut hashes = ArrayVec::<u64, PREFETCH_MAX>::new();
            let mut requests = ArrayVec::<Request<'_>, PREFETCH_MAX>::new();
            while requests.len() < PREFETCH_MAX
                && let Parsed::Complete { request, used } = parse(rest, &self.limits)
                && let Some(hash) = self.engine.hash(&request)
            {
                hashes.push(hash);
                requests.push(request);
                rest = &rest[used..];
            }
            lock.prefetch(&hashes);
            for (request, hash) in requests.iter().zip(&hashes) {
                let mut cx = Context {
                    step: Step {
                        now: Now { second: 2, ms: 2_000, unix_of_zero: 1_700_000_000 },
                        counters: &self.counters,
                        interest: Interest::none(),
                        effects: &mut self.effects,
                    },
                    ticket: Ticket { connection: 1, request: 1 },
                    session: &mut self.session,
                    out: &mut self.out,
                };
                if let Request::Get(get) = request {
                    let got = self.engine.get(get, *hash, Piece::ALL, &mut lock, &mut cx);
                    debug_assert!(matches!(got, Got::Done), "nothing waits without rules");
                } else {
                    let parked = self.engine.execute(request, *hash, &mut lock, &mut cx);
                    debug_assert!(parked.is_none(), "nothing waits without rules");
                }
            }
        }
        self.out.len()
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
            (Kind::SetNew, "STORED"),
            (Kind::SetOver, "STORED"),
            (Kind::SetEvicting, "STORED"),
        ] {
            let mut load = Load::new(kind);
            assert_eq!(load.parse(), REQUESTS);
            let (items, evictions) = load.items_and_evictions();
            load.run();
            let replies = String::from_utf8(load.out.bytes.clone()).expect("digits");
            assert_eq!(replies.matches(reply).count(), REQUESTS as usize, "{kind:?}");
            let (items_after, evictions_after) = load.items_and_evictions();
            let new = if kind == Kind::SetNew { u64::from(REQUESTS) } else { 0 };
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
