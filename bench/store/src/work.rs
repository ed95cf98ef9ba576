//! Kinds of work on the store alone: what of it hits.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use cattlegrid_compare::work::{Op, Tally, Work, name, works};

use crate::cache::Cache;

/// Requests per simulated second.
const REQUESTS_A_SECOND: u64 = 100_000;

/// The table. `only`: kinds of work whose name contains this; `threads`: of a server, from which its shards follow.
pub(crate) fn run(traces: &Path, only: &str, seeds: u64, threads: usize) -> Result<String> {
    let mut text = String::from("| work | -m in MiB | what | of gets or bytes, % |\n|---|---|---|---|\n");
    for work in works(traces)?.iter().filter(|work| work.name.contains(only)) {
        let runs = (1..=seeds).map(|seed| tallies(work, seed, threads)).collect::<Result<Vec<_>>>()?;
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

fn tallies(work: &Work, seed: u64, threads: usize) -> Result<[Tally; 2]> {
    let mut cache = Cache::of_threads((work.memory_mib << 20) as usize, seed, threads)?;
    let value = vec![b'v'; 1 << 20];
    let (mut tallies, mut requests) = ([Tally::default(); 2], 0_u64);
    work.run(seed, |op| {
        requests += 1;
        cache.now_ms = requests * 1000 / REQUESTS_A_SECOND;
        if requests.is_multiple_of(REQUESTS_A_SECOND) {
            cache.now += 1;
            cache.tick();
        }
        let mut get = |cache: &mut Cache, key: u64, bytes, tally: Option<usize>| {
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
            Op::Set { key, bytes } => _ = cache.set(&name(key), &value[..bytes as usize], 0),
            Op::Delete { key } => cache.delete(&name(key)),
        }
    });
    Ok(tallies)
}
