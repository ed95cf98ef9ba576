//! Kinds of work on the store alone: what of it hits.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use cattlegrid_compare::work::{Op, TALLIES, Tally, Work, name, works};

use crate::cache::Cache;
use crate::lru::Lru;
use crate::peer::{CacheKind, MERGE, Peer, S3FIFO};

/// Requests per simulated second.
const REQUESTS_A_SECOND: u64 = 100_000;

/// The setting of a run: `threads` of a server, from which its shards follow; `kind` of cache, if it is a
/// peer with segments of `segment_bytes` and a hash table for items of `item_bytes`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunSettings {
    pub(crate) threads: usize,
    pub(crate) kind: CacheKind,
    pub(crate) segment_bytes: usize,
    pub(crate) item_bytes: usize,
}

/// The table. `only`: kinds of work whose name contains this.
pub(crate) fn run(traces: &Path, only: &str, seeds: u64, how: RunSettings) -> Result<String> {
    let mut text = String::from("| work | -m in MiB | what | of gets or bytes, % |\n|---|---|---|---|\n");
    for work in works(traces)?.iter().filter(|work| work.name.contains(only)) {
        let runs = (1..=seeds).map(|seed| tallies(work, seed, how)).collect::<Result<Vec<_>>>()?;
        for figure in &work.figures {
            let all = runs.iter().map(|tallies| tallies[figure.tally].percent(figure.by_bytes));
            #[expect(clippy::cast_precision_loss, reason = "at most 100")]
            let mean = all.sum::<f64>() / seeds as f64;
            let bytes = if figure.by_bytes { ", bytes" } else { "" };
            writeln!(text, "| {} | {} | {}{bytes} | {mean:.2} |", work.name, work.memory_mib, figure.name)?;
        }
    }
    Ok(text)
}

/// Items with keys of 16 bytes and values of 100 that are kept of as many as fit twice, for each MiB of a
/// limit of 64.
pub(crate) fn items(how: RunSettings) -> Result<usize> {
    const MIB: u64 = 64;
    let mut cache = KeptCache::new(MIB, 1, RunSettings { item_bytes: 128, ..how })?;
    let keys = MIB * 12_000;
    (0..keys).for_each(|key| cache.set(&name(key), &[b'v'; 100], 0));
    Ok((0..keys).filter(|key| cache.get(&name(*key))).count() / MIB as usize)
}

enum KeptCache {
    Own(Box<Cache>),
    Peer(Box<Peer>),
    Lru(Box<Lru>),
}

impl KeptCache {
    fn new(memory_mib: u64, seed: u64, how: RunSettings) -> Result<Self> {
        let bytes = (memory_mib << 20) as usize;
        let peer = |policy| Peer::new(bytes, how.segment_bytes, how.item_bytes, policy);
        Ok(match how.kind {
            CacheKind::Cattlegrid => Self::Own(Box::new(Cache::of_threads(bytes, seed, how.threads)?)),
            CacheKind::SegcacheS3fifo => Self::Peer(Box::new(peer(S3FIFO)?)),
            CacheKind::SegcacheMerge => Self::Peer(Box::new(peer(MERGE)?)),
            CacheKind::Lru => Self::Lru(Box::new(Lru::new(bytes))),
        })
    }

    fn get(&mut self, key: &[u8]) -> bool {
        match self {
            Self::Own(cache) => cache.get(key),
            Self::Peer(peer) => peer.get(key),
            Self::Lru(lru) => lru.get(key),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], ttl: u32) {
        match self {
            Self::Own(cache) => _ = cache.set(key, value, ttl),
            Self::Peer(peer) => peer.set(key, value, ttl),
            Self::Lru(lru) => lru.set(key, value.len(), ttl),
        }
    }

    fn delete(&mut self, key: &[u8]) {
        match self {
            Self::Own(cache) => cache.delete(key),
            Self::Peer(peer) => peer.delete(key),
            Self::Lru(lru) => lru.delete(key),
        }
    }

    /// The time after this many requests. segcache has the system's clock.
    fn advance(&mut self, requests: u64) {
        let is_tick = requests.is_multiple_of(REQUESTS_A_SECOND);
        match self {
            Self::Own(cache) => {
                cache.now_ms = requests * 1000 / REQUESTS_A_SECOND;
                if is_tick {
                    cache.now += 1;
                    cache.tick();
                }
            }
            Self::Lru(lru) => lru.now += u32::from(is_tick),
            Self::Peer(_) => (),
        }
    }
}

fn tallies(work: &Work, seed: u64, how: RunSettings) -> Result<[Tally; TALLIES]> {
    let mut cache = KeptCache::new(work.memory_mib, seed, how)?;
    let value = vec![b'v'; 1 << 20];
    let (mut tallies, mut requests) = ([Tally::default(); TALLIES], 0_u64);
    work.run(seed, |op| {
        requests += 1;
        cache.advance(requests);
        let mut get = |cache: &mut KeptCache, key: u64, bytes, tally: Option<usize>| {
            let hit = cache.get(&name(key));
            if let Some(tally) = tally {
                tallies[tally].count(bytes, hit);
            }
            hit
        };
        match op {
            Op::Fill { key, bytes, ttl, tally } => {
                if !get(&mut cache, key, bytes, tally) {
                    cache.set(&name(key), &value[..bytes as usize], ttl);
                }
            }
            Op::Read { key, bytes, tally } => _ = get(&mut cache, key, bytes, tally),
            Op::Set { key, bytes } => cache.set(&name(key), &value[..bytes as usize], 0),
            Op::Delete { key } => cache.delete(&name(key)),
        }
    });
    Ok(tallies)
}
