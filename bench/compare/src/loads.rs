//! Loads whose hit ratio is compared: synthetic ones and recorded traces, each with its memory limit.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use cattlegrid_load::{Plan, Popularity, Replay, Sizes, Ttls};

/// A load and its memory limit.
#[derive(Debug)]
pub struct Load {
    /// The load's name in the tables.
    pub name: String,
    /// The load's keys, sizes and lifetimes.
    pub plan: Plan,
    /// The limit, in MiB.
    pub memory_mib: u64,
    /// Number of requests; the second half counts.
    pub requests: u64,
    /// The keys in the order of the trace; `None`: drawn at random.
    pub replay: Option<Arc<[u32]>>,
}

/// Mixed sizes: half of the values are below 200 bytes, the mean is 330.
const SIZES: &str = "lognormal:200,1.0";
/// Share of a trace's data that fits in memory.
const FOOTPRINT_SHARE: f64 = 0.2;

/// All loads; `quick`: shorter ones, without the trace P3.
///
/// # Errors
/// A trace in `traces` cannot be read.
pub fn loads(traces: &Path, quick: bool) -> Result<Vec<Load>> {
    let sizes: Sizes = SIZES.parse().map_err(|error: String| anyhow!(error))?;
    let requests = if quick { 600_000 } else { 5_000_000 };
    let zipf = Plan {
        popularity: Popularity::Zipf(1.0),
        sizes: sizes.clone(),
        fill_on_miss: true,
        ..plan(5_000_000)
    };
    let ttls: Ttls = "2:1,10:1,0:2".parse().map_err(|error: String| anyhow!(error))?;
    let synthetic = |name: &str, memory_mib, plan| Load {
        name: name.to_owned(),
        plan,
        memory_mib,
        requests,
        replay: None,
    };
    let mut loads = vec![
        synthetic("Zipf 1.0, 5 M keys", 32, zipf.clone()),
        synthetic("the same, a quarter lives 2 s, a quarter 10 s", 64, Plan { ttls, ..zipf.clone() }),
        synthetic("the same, 20 % overwrites", 32, Plan { get_share: 0.8, ..zipf.clone() }),
        synthetic(
            "drifting Zipf 1.0, a new top key every 50 requests",
            32,
            Plan { drift: 50, ..zipf.clone() },
        ),
    ];
    for name in if quick { &["OLTP"][..] } else { &["OLTP", "P3"] } {
        let (trace, keys) = read(&traces.join(format!("{name}.lis.zst")))?;
        let plan = Plan { sizes: sizes.clone(), fill_on_miss: true, ..plan(keys) };
        let footprint: usize = (0..keys).map(|id| plan.key_bytes + plan.value_bytes(id)).sum();
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a share of some hundred MiB")]
        let memory_mib = (footprint as f64 * FOOTPRINT_SHARE / f64::from(1 << 20)).round() as u64;
        loads.push(Load {
            name: format!("ARC {name}, 20 % of its data"),
            plan,
            memory_mib,
            requests: trace.len() as u64,
            replay: Some(trace),
        });
    }
    Ok(loads)
}

/// The load of most comparisons: keys of 32 bytes, values of 100, gets of one key.
pub fn plan(keys: u64) -> Plan {
    Plan {
        keys,
        key_bytes: 32,
        sizes: Sizes::fixed(100),
        ttls: Ttls::never(),
        flags: 0,
        get_share: 1.0,
        multiget: 1,
        popularity: Popularity::Uniform,
        drift: 0,
        one_hit_share: 0.0,
        fill_on_miss: false,
        seed: 1,
        run: Plan::new_run(),
    }
}

fn read(file: &Path) -> Result<(Arc<[u32]>, u64)> {
    let context = || file.display().to_string();
    let compressed = File::open(file).with_context(context)?;
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(compressed).with_context(context)?;
    let mut text = String::new();
    decoder.read_to_string(&mut text).with_context(context)?;
    Replay::parse(&text).map_err(|error| anyhow!("{}: {error}", file.display()))
}
