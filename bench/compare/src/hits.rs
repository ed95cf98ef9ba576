//! Hit ratios at equal memory limits: misses are filled, the second half of each run counts.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cattlegrid_compare::loads::{Load, loads};
use cattlegrid_load::{Replay, Report, Until};
use serde_json::{Value, json};

use crate::servers::{KINDS, Programs, Server, ServerKind};
use crate::{place, progress};

/// Few connections, so that a trace keeps its order; deep pipelines, so that a run does not take too long.
const CONNECTIONS: usize = 2;
const DEPTH: usize = 32;
/// The table, and the report of every run.
pub(crate) fn compare(programs: &Programs, traces: &Path, quick: bool) -> Result<(String, Value)> {
    let mut text = String::from(
        "Hit ratio in percent of the second half of each run; in brackets the difference to memcached in points, \
         and by how many MiB the process has grown. Last, cattlegrid with as much memory as memcached has taken.\n\n\
         | load | -m in MiB | cattlegrid | memcached | redis | cattlegrid, equal memory |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut raw = Vec::new();
    for load in loads(traces, quick)? {
        let mut ratios = Vec::new();
        for kind in KINDS {
            progress(&format!("{}: {}", load.name, kind.name()));
            let (report, grown) = run(programs, kind, &load, load.memory_mib)?;
            ratios.push((report.hit_ratio.unwrap_or_default() * 100.0, grown));
            raw.push(json!({ "load": load.name, "memory_mib": load.memory_mib, "server": kind.name(),
                "grown_bytes": grown, "report": report }));
        }
        write!(text, "| {} | {} ", load.name, load.memory_mib)?;
        let base = place(ServerKind::Memcached);
        for (own, (ratio, grown)) in ratios.iter().enumerate() {
            write!(text, "| {ratio:.1} (")?;
            if own != base {
                write!(text, "{:+.1}, ", ratio - ratios[base].0)?;
            }
            write!(text, "{} MiB) ", grown >> 20)?;
        }
        // A slab class of memcached takes a page of 1 MiB even when the limit is reached.
        let taken = (ratios[base].1 >> 20).max(load.memory_mib);
        progress(&format!("{}: cattlegrid with {taken} MiB", load.name));
        let (report, grown) = run(programs, ServerKind::Cattlegrid, &load, taken)?;
        let ratio = report.hit_ratio.unwrap_or_default() * 100.0;
        writeln!(text, "| {ratio:.1} ({:+.1}, {} MiB) |", ratio - ratios[base].0, grown >> 20)?;
        raw.push(json!({ "load": load.name, "memory_mib": taken, "server": ServerKind::Cattlegrid.name(),
            "grown_bytes": grown, "report": report }));
    }
    Ok((text, json!(raw)))
}

fn run(programs: &Programs, kind: ServerKind, load: &Load, memory_mib: u64) -> Result<(Report, u64)> {
    let server = Server::start(programs, kind, memory_mib)?;
    let before = server.resident_bytes()?;
    let mut target = server.open(&Arc::new(load.plan.clone()), CONNECTIONS, DEPTH)?;
    if let Some(trace) = &load.replay {
        target.supply(&Replay::new(Arc::clone(trace)));
    }
    let half = Until::Requests(load.requests / 2);
    target.run(half, server.meter())?;
    let (tally, cpu) = target.run(half, server.meter())?;
    Ok((Report::new(&tally, cpu), server.resident_bytes()?.saturating_sub(before)))
}
