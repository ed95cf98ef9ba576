//! What starts of workers cost the gets of a large cache in the same process.
//!
//! One process, as a server that starts workers itself: a full cache, a thread that reads it without a pause, and a pool
//! that starts workers in each of its ways. In each round every way has two phases, one with its starts and one of the same
//! length without; the table has the medians of the rounds. `plain fork` is no way of the pool: it shows what the others
//! avoid, the copy of the cache's page tables, and the page faults after it.

mod cache;
mod ways;

use std::io::Write as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Parser;
use hdrhistogram::Histogram;

use cache::{Cache, now};
use ways::{Size, Way};

/// Measures gets of a full cache while workers are started beside it, and without.
#[derive(Debug, Parser)]
struct Options {
    /// Limit of the cache in MiB, at least 8.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..))]
    memory: u64,
    /// Workers started in each phase, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
    /// Rounds, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
}

fn main() -> Result<()> {
    cattlegrid_panic::install();
    ways::be_a_worker();
    let options = Options::parse();
    let cache = Cache::full(options.memory as usize)?;
    let mut phases: Vec<_> = Way::ALL.iter().map(|way| (*way, Vec::new())).collect();
    for round in 0..options.rounds {
        for (way, pairs) in &mut phases {
            pairs.push(pair(&cache, *way, options.workers as usize, round)?);
        }
    }
    let mut out = std::io::stdout().lock();
    let (memory, workers, rounds) = (options.memory, options.workers, options.rounds);
    writeln!(
        out,
        "-m {memory}, {} MiB resident, {workers} workers, {rounds} rounds\n",
        ways::resident_mib()
    )?;
    out.write_all(HEAD.as_bytes())?;
    for (way, pairs) in &phases {
        let without: Vec<_> = pairs.iter().map(|pair| &pair.without).collect();
        let with: Vec<_> = pairs.iter().map(|pair| &pair.with).collect();
        writeln!(out, "| {} | without | {} | | |", way.name(), medians(&without))?;
        let starts_us = median(with.iter().map(|phase| phase.took.as_secs_f64() * 1e6).collect());
        let size = pairs.iter().filter_map(|pair| pair.size).next_back().map(|size| size.to_string());
        let (gets, size) = (medians(&with), size.unwrap_or_default());
        writeln!(out, "| {} | with | {gets} | {:.0} | {size} |", way.name(), starts_us / f64::from(workers))?;
    }
    Ok(())
}

const HEAD: &str = "\
| way | starts | gets a second | p50, µs | p99, µs | p99.9, µs | max, µs | a start, µs | worker: RSS, private, page tables, KiB |
|---|---|---|---|---|---|---|---|---|
";

/// Columns of a row: each the median of the phases.
fn medians(phases: &[&Phase]) -> String {
    let gets = median(phases.iter().map(|phase| phase.gets_a_second()).collect());
    let times = [0.5, 0.99, 0.999, 1.0]
        .map(|quantile| median(phases.iter().map(|phase| phase.time_us(quantile)).collect()));
    let [p50, p99, p999, max] = times;
    format!("{gets:.0} | {p50:.2} | {p99:.2} | {p999:.2} | {max:.0}")
}

/// Two phases that follow each other.
struct Pair {
    with: Phase,
    without: Phase,
    size: Option<Size>,
}

/// The gets of a phase.
struct Phase {
    times: Histogram<u64>,
    took: Duration,
}

impl Phase {
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    fn gets_a_second(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^52")]
    fn time_us(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e3
    }
}

fn pair(cache: &Cache, way: Way, workers: usize, round: u64) -> Result<Pair> {
    let starter = way.prepare(workers)?;
    let mut size = None;
    let with = phase(cache, round * 2 + 1, || {
        size = starter.start()?;
        Ok(())
    })?;
    starter.end();
    let length = with.took.max(SHORTEST);
    let without = phase(cache, round * 2 + 2, || {
        let start = now();
        // A wake-up that was meant for something else ends a pause early.
        while let Some(left) = length.checked_sub(start.elapsed()) {
            std::thread::park_timeout(left);
        }
        Ok(())
    })?;
    Ok(Pair { with, without, size })
}

/// Reads while `act` runs.
fn phase(cache: &Cache, seed: u64, act: impl FnOnce() -> Result<()>) -> Result<Phase> {
    let (ended, reads) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let reader = scope.spawn({
            let (reads, ended) = (&reads, &ended);
            move || {
                reads.wait();
                cache.read(ended, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            }
        });
        reads.wait();
        let start = now();
        let acted = act();
        let took = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        let (times, _missed) = reader.join().map_err(|_| anyhow!("the reader has panicked"))??;
        acted?;
        Ok(Phase { times, took })
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A phase without starts is at least this long.
const SHORTEST: Duration = Duration::from_millis(200);
