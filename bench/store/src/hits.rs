//! Hit ratios of the loads that `cattlegrid-compare` runs over sockets: seconds instead of minutes.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cattlegrid_compare::loads::{Load, loads};
use cattlegrid_load::{Mix, Op, Replay, Supply};

use crate::cache::Cache;

/// Requests per simulated second, for lifetimes: about a server's rate in the comparison.
const REQUESTS_A_SECOND: u64 = 100_000;

/// Requests in flight at a time there: a miss is filled when all of them are answered.
const UNDER_WAY: u64 = 64;

/// The table. `only`: loads whose name contains this; `seeds`: runs of each, with different key hashes.
pub(crate) fn run(traces: &Path, only: &str, seeds: u64) -> Result<String> {
    let mut text = String::from(
        "| load | -m in MiB | hit ratio | least | most | live bytes |\n|---|---|---|---|---|---|\n",
    );
    for load in loads(traces, false)?.iter().filter(|load| load.name.contains(only)) {
        let (mut ratios, mut live) = (Vec::new(), 0);
        for seed in 1..=seeds {
            let mut cache = Cache::new((load.memory_mib << 20) as usize, seed)?;
            ratios.push(replay(&mut cache, load) * 100.0);
            live += cache.shards.iter().map(|store| store.usage().bytes).sum::<u64>();
        }
        ratios.sort_by(f64::total_cmp);
        #[expect(clippy::cast_precision_loss, reason = "bytes of a few hundred MiB")]
        let (mean, share) = (
            ratios.iter().sum::<f64>() / seeds as f64,
            live as f64 / seeds as f64 / (load.memory_mib << 20) as f64 * 100.0,
        );
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        writeln!(
            text,
            "| {} | {} | {mean:.2} | {least:.2} | {most:.2} | {share:.1} % |",
            load.name, load.memory_mib
        )?;
    }
    Ok(text)
}

/// The hit ratio of the second half.
fn replay(cache: &mut Cache, load: &Load) -> f64 {
    let plan = Arc::new(load.plan.clone());
    let mut supply: Box<dyn Supply> = match &load.replay {
        Some(trace) => Box::new(Replay::new(Arc::clone(trace))),
        None => Box::new(Mix::new(Arc::clone(&plan), 0)),
    };
    let value = vec![b'v'; 1 << 20];
    let (mut ids, mut missed, mut key) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gets, mut hits) = (0_u64, 0_u64);
    for request in 0..load.requests {
        if request % REQUESTS_A_SECOND == 0 {
            cache.now += 1;
            cache.tick();
        }
        ids.clear();
        let Some(op) = supply.next(&mut ids) else { break };
        let [id] = ids[..] else { continue };
        key.clear();
        plan.write_key(id, &mut key);
        let hit = op == Op::Get && cache.get(&key);
        if op == Op::Get && request >= load.requests / 2 {
            gets += 1;
            hits += u64::from(hit);
        }
        if !hit {
            missed.push(id);
        }
        if request % UNDER_WAY == 0 {
            for id in missed.drain(..) {
                key.clear();
                plan.write_key(id, &mut key);
                cache.set(&key, &value[..plan.value_bytes(id)], plan.ttl_seconds(id));
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "millions of requests")]
    let ratio = hits as f64 / gets.max(1) as f64;
    ratio
}
