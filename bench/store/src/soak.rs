//! A soak of the memory: random reads, writes, deletes and time on all shards; the whole structure is walked
//! repeatedly, and the resident memory compared with the limit.
//!
//! Every run ends with three ways of giving memory back, deletes, expiry and a flush: each must show in the
//! memory that the system reports as resident.

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cattlegrid_store::StoreStats;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

use crate::cache::Cache;
use crate::mixes::Mix;

/// The length of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    /// This long, verification included.
    Elapsed(Duration),
    /// This many operations.
    Operations(u64),
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct SoakOutcome {
    pub(crate) operations: u64,
    pub(crate) verified: u64,
    pub(crate) refused: u64,
    pub(crate) stats: StoreStats,
    /// Most bytes by which the process grew, in per cent of the limit.
    pub(crate) resident_percent: f64,
    /// Bytes of items, in per cent of the limit, at the end of the soak.
    pub(crate) items_percent: f64,
    /// Resident bytes of the reservation before and after deletes, expiry and flush.
    pub(crate) released: [(u64, u64); 3],
}

/// The whole structure is walked once in this many operations (of huge values for 100), as long as that takes
/// no more than two thirds of the time.
const VERIFY_EVERY: u64 = 10_000;
/// First share of a run, in which nothing is verified and the resident memory of the process is checked;
/// later it includes the lists that verification makes, and only the reservation is checked.
const UNVERIFIED: f64 = 0.3;
/// Resident memory may exceed the limit by this share, in per cent of it.
const OVER_PERCENT: f64 = 5.0;
/// Data in the keys asked for, in units of the limit.
const KEY_SPACE: usize = 4;

/// Soaks stores of `memory_bytes` with values of this kind.
///
/// # Errors
/// The resident memory exceeds the limit by more than 5 %, memory was not given back, or an append found no
/// free segment.
///
/// # Panics
/// The structure is broken.
pub(crate) fn run(mix: Mix, memory_bytes: usize, length: Length, seed: u64) -> Result<SoakOutcome> {
    // Code is resident too: it is run for a moment before the first measurement.
    let mut small = Soak::new(mix, memory_bytes.min(4 << 20), vec![b'v'; 9 << 20], seed)?;
    small.fill(Release::Flush);
    (0..1000).for_each(|_| small.step());
    let values = std::mem::take(&mut small.values);
    drop(small);
    resident_bytes()?;
    let before = resident_bytes()?;
    let mut soak = Soak::new(mix, memory_bytes, values, seed)?;
    soak.fill(Release::Flush);
    let verify_every = if mix == Mix::Huge { 100 } else { VERIFY_EVERY };
    let begin = now();
    let mut verifying = Duration::ZERO;
    let (mut most, mut verified) = (0, 0);
    loop {
        let done = match length {
            Length::Elapsed(time) => begin.elapsed().div_duration_f64(time),
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            Length::Operations(count) => soak.operations as f64 / count as f64,
        };
        if done >= 1.0 {
            break;
        }
        soak.step();
        if !soak.operations.is_multiple_of(verify_every) {
            continue;
        }
        if done < UNVERIFIED {
            most = most.max(resident_bytes()?.saturating_sub(before));
        } else if verifying * 3 <= begin.elapsed() * 2 {
            let start = now();
            soak.cache.shards.iter().for_each(cattlegrid_store::Store::verify);
            verifying += start.elapsed();
            verified += 1;
        }
    }
    most = most.max(rss_of(&soak.cache.memory.addresses())?);
    soak.cache.shards.iter().for_each(cattlegrid_store::Store::verify);
    let items: u64 = soak.cache.shards.iter().map(|store| store.usage().bytes).sum();
    let mut released = [(0, 0); 3];
    for (way, released) in [Release::Delete, Release::Expire, Release::Flush].into_iter().zip(&mut released) {
        soak.fill(way);
        most = most.max(rss_of(&soak.cache.memory.addresses())?);
        *released = soak.release(way)?;
        soak.cache.shards.iter().for_each(cattlegrid_store::Store::verify);
    }
    let mut stats = StoreStats::default();
    soak.cache.shards.iter().for_each(|store| stats.add(&store.stats()));
    #[expect(clippy::cast_precision_loss, reason = "bytes of this machine's memory")]
    let percent = |bytes: u64| bytes as f64 / memory_bytes as f64 * 100.0;
    let outcome = SoakOutcome {
        operations: soak.operations,
        verified,
        refused: soak.refused,
        stats,
        resident_percent: percent(most),
        items_percent: percent(items),
        released,
    };
    ensure!(outcome.resident_percent <= 100.0 + OVER_PERCENT, "more resident than allowed: {outcome:?}");
    ensure!(outcome.stats.no_free_segment == 0, "no free segment: {outcome:?}");
    ensure!(outcome.refused == 0, "a value was refused: {outcome:?}");
    Ok(outcome)
}

struct Soak {
    cache: Cache,
    mix: Mix,
    memory_bytes: usize,
    values: Vec<u8>,
    rng: SmallRng,
    keys: Zipf<f64>,
    key_count: u64,
    operations: u64,
    refused: u64,
    key: Vec<u8>,
}

/// The way in which memory is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    Delete,
    Expire,
    Flush,
}

impl Soak {
    fn new(mix: Mix, memory_bytes: usize, values: Vec<u8>, seed: u64) -> Result<Self> {
        let key_count = (memory_bytes * KEY_SPACE / mix.item_bytes()).max(16) as u64;
        #[expect(clippy::cast_precision_loss, reason = "there are never 2^53 keys")]
        let keys = Zipf::new(key_count as f64, 0.7)?;
        Ok(Self {
            cache: Cache::new(memory_bytes, seed)?,
            mix,
            memory_bytes,
            values,
            rng: SmallRng::seed_from_u64(seed),
            keys,
            key_count,
            operations: 0,
            refused: 0,
            key: Vec::new(),
        })
    }

    fn step(&mut self) {
        self.operations += 1;
        // A second takes about as long as writing a tenth of the memory.
        let second = (self.memory_bytes / self.mix.item_bytes() / 10).max(20) as u64;
        if self.operations.is_multiple_of(second) {
            self.cache.now += 1;
            self.cache.tick();
        }
        #[expect(clippy::cast_sign_loss, reason = "ranks start at 1")]
        let id = self.keys.sample(&mut self.rng) as u64 - 1;
        self.name(id);
        match self.rng.random_range(0..1000) {
            0..600 => {
                if !self.cache.get(&self.key) {
                    self.set(id, None);
                }
            }
            600..900 => self.set(id, None),
            900..990 => self.cache.delete(&self.key),
            _ if self.rng.random_range(0..100_000) == 0 => self.cache.flush(),
            _ => {
                self.cache.get(&self.key);
            }
        }
    }

    fn name(&mut self, id: u64) {
        self.key.clear();
        self.key.extend_from_slice(b"soak:");
        // 12 to 36 bytes.
        self.key.extend(std::iter::repeat_n(b'k', (id % 25) as usize));
        self.key.extend_from_slice(&id.to_le_bytes()[..7]);
    }

    fn set(&mut self, id: u64, ttl: Option<u32>) {
        // A rewritten value changes its size now and then.
        let version = id + self.key_count * u64::from(self.rng.random_range(0..4_u8) == 0);
        let len = self.mix.value_bytes(version, self.memory_bytes);
        let ttl = ttl.unwrap_or_else(|| self.mix.ttl(&mut self.rng));
        self.refused += u64::from(!self.cache.set(&self.key, &self.values[..len], ttl));
    }

    /// Sets every key once.
    fn fill(&mut self, way: Release) {
        for id in 0..self.key_count {
            self.name(id);
            let ttl = if way == Release::Expire { self.rng.random_range(1..=60) } else { 0 };
            self.set(id, Some(ttl));
        }
    }

    /// Frees all items by one of the ways; returns the reservation's resident bytes before and after.
    fn release(&mut self, way: Release) -> Result<(u64, u64)> {
        let before = rss_of(&self.cache.memory.addresses())?;
        match way {
            Release::Delete => {
                for id in 0..self.key_count {
                    self.name(id);
                    self.cache.delete(&self.key);
                }
            }
            Release::Expire => self.cache.now += 100,
            Release::Flush => self.cache.flush(),
        }
        while self.cache.tick() {}
        // Memory that is free at one call and at the next is given back.
        self.cache.memory.purge();
        self.cache.memory.purge();
        let after = rss_of(&self.cache.memory.addresses())?;
        let kept: usize = self.cache.shards.iter().map(cattlegrid_store::Store::held_bytes).sum();
        ensure!(
            after <= kept as u64 && after * 4 <= before,
            "{way:?}: {before} bytes resident, then {after} of {kept}"
        );
        Ok((before, after))
    }
}

/// Resident bytes of this process.
pub(crate) fn resident_bytes() -> Result<u64> {
    Ok(cattlegrid_load::Process::new(std::process::id())?.resident_bytes()?)
}

/// Resident bytes of these addresses, as the system reports them.
fn rss_of(addresses: &Range<usize>) -> Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps")?;
    let (mut inside, mut kib) = (false, 0);
    for line in text.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let size = size.trim().trim_end_matches(" kB");
            kib += if inside { size.parse::<u64>().context("smaps")? } else { 0 };
        } else if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = usize::from_str_radix(start, 16)
        {
            inside = addresses.contains(&start);
        }
    }
    Ok(kib << 10)
}

#[expect(clippy::disallowed_methods, reason = "a soak goes on for some real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
