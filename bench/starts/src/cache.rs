//! A full cache, and a thread that reads it as a server's thread does: parse, look up, write the reply.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};
use hdrhistogram::Histogram;

/// See the module.
pub(crate) struct Cache {
    engine: Engine,
    /// Keys written so far; the newest half of them is there.
    keys: u64,
}

impl Cache {
    /// Writes keys until items are evicted, and as much again as a tenth of them: no page of it is untouched.
    ///
    /// # Errors
    /// When the system does not give the memory.
    pub(crate) fn full(mib: usize) -> Result<Self> {
        let engine = Engine::new(EngineConfig {
            memory_bytes: mib << 20,
            threads: 2,
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
        });
        let mut cache = Self { engine: engine.context("memory of the cache")?, keys: 0 };
        let mut client = Client::new(&cache.engine);
        let value = "v".repeat(VALUE);
        let mut last = u64::MAX;
        while cache.keys < last {
            for key in cache.keys..cache.keys + 10_000 {
                client.text.clear();
                write!(client.text, "set key:{key} 0 0 {VALUE}\r\n{value}\r\n")?;
                client.ask(&cache.engine);
            }
            cache.keys += 10_000;
            if last == u64::MAX && cache.engine.usage().1.evictions > 0 {
                last = cache.keys + cache.keys / 10;
            }
        }
        Ok(cache)
    }

    /// Gets of random keys, one after the other, until `ended`; how long each took in nanoseconds, and how many missed.
    ///
    /// # Errors
    /// When no get was answered.
    pub(crate) fn read(&self, ended: &AtomicBool, seed: u64) -> Result<(Histogram<u64>, u64)> {
        let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        let mut client = Client::new(&self.engine);
        let (mut random, mut missed) = (seed | 1, 0);
        while !ended.load(Ordering::Relaxed) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            client.text.clear();
            write!(client.text, "get key:{}\r\n", self.keys - 1 - random % (self.keys / 2))?;
            let start = now();
            missed += u64::from(client.ask(&self.engine) < VALUE);
            times.saturating_record(start.elapsed().as_nanos() as u64);
        }
        ensure!(!times.is_empty(), "no get in a whole phase");
        Ok((times, missed))
    }
}

/// What a connection has, and a request.
struct Client {
    session: Session,
    counters: Counters,
    effects: Effects,
    out: Output,
    limits: Limits,
    text: String,
}

impl Client {
    fn new(engine: &Engine) -> Self {
        let peer = engine.shared().peers().join(PeerKey::Process(1));
        Self {
            session: Session::new(Arc::new(Caller::new(1, 0, 0, peer))),
            counters: Counters::default(),
            effects: Effects::default(),
            out: Output::default(),
            limits: Limits::default(),
            text: String::new(),
        }
    }

    /// Executes the request in `text`; returns the length of the reply.
    fn ask(&mut self, engine: &Engine) -> usize {
        self.out.clear();
        let parsed = parse(self.text.as_bytes(), &self.limits);
        let Parsed::Complete { request, .. } = parsed else { unreachable!("a whole request") };
        let hash = engine.hash(&request).expect("it has a key");
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
        let mut lock = engine.shard_lock();
        if let Request::Get(get) = &request {
            drop(engine.get(get, hash, GetPiece::ALL, &mut lock, &mut cx));
        } else {
            drop(engine.execute(&request, hash, &mut lock, &mut cx));
        }
        drop(lock);
        self.out.len()
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Bytes of a value.
const VALUE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_answers_what_is_asked() {
        let cache = Cache::full(8).unwrap();
        assert!(cache.engine.usage().1.evictions > 0);
        let ended = AtomicBool::new(false);
        let times = std::thread::scope(|scope| {
            let reader = scope.spawn(|| cache.read(&ended, 1));
            let deadline = now() + std::time::Duration::from_millis(20);
            while now() < deadline {
                std::thread::yield_now();
            }
            ended.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        let (times, missed) = times.unwrap();
        assert!(times.len() > 10 && missed * 2 < times.len(), "{missed} of {}", times.len());
    }
}
