//! The data of the charts: each figure over a range of loads, sizes or memory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cattlegrid_load::{Plan, Popularity, Report, Sizes, Spread, Until};
use serde_json::{Value, json};

use crate::chart::{Axis, Chart, Line, Scale};
use crate::servers::{KINDS, Programs, Server};
use crate::speed::{Load, Pace, measure};
use cattlegrid_compare::loads::plan;

use crate::progress;

const CONNECTIONS: &[usize] = &[1, 4, 16, 50, 150, 500];
const DEPTHS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
const VALUE_BYTES: &[u32] = &[1, 10, 32, 100, 320, 1000, 3200, 10_000];
const MEMORY_MIB: &[u64] = &[8, 16, 32, 64, 128];
/// The percentiles in the chart of latencies.
const PERCENTILES: [&str; 4] = ["p50", "p90", "p99", "p99.9"];

/// One line for each server.
fn lines(figure: impl Fn(usize) -> Vec<(f64, f64)>) -> Vec<Line> {
    KINDS
        .iter()
        .enumerate()
        .map(|(own, kind)| Line { name: kind.name().to_owned(), points: figure(own) })
        .collect()
}

fn steps(values: impl Iterator<Item = f64>) -> Scale {
    Scale::Steps(values.collect())
}

/// 1, 2, 5, 10 and so on, to 5 million.
fn one_two_five() -> Scale {
    steps((0..7).flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(decade))))
}

/// Throughput, CPU and latency over connections and depth; the charts, and their measurements.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub(crate) fn speed(programs: &Programs, quick: bool) -> Result<(Vec<Chart>, Value)> {
    let (mut charts, mut raw) = (Vec::new(), serde_json::Map::new());
    let servers = KINDS.map(|kind| Server::start(programs, kind, 256));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let (turns, slice) = if quick { (3, 150) } else { (5, 250) };
    let pace = Pace { turns, slice: Duration::from_millis(slice) };
    let mut sweep = |what: &str, loads: &[Load]| -> Result<Vec<Vec<Vec<Report>>>> {
        let mut all = Vec::new();
        for load in loads {
            progress(&format!("{what}: {}", load.name));
            all.push(measure(&servers, load, pace)?);
        }
        raw.insert(what.to_owned(), json!(all));
        Ok(all)
    };
    let median = |rounds: &[Vec<Report>], own: usize, figure: fn(&Report) -> Option<f64>| {
        let figures = rounds.iter().filter_map(|round| figure(&round[own]));
        Spread::of(figures).map_or(f64::NAN, |spread| spread.median)
    };
    let points = |places: &[usize],
                  all: &[Vec<Vec<Report>>],
                  own: usize,
                  figure: fn(&Report) -> Option<f64>| {
        places.iter().zip(all).map(|(place, rounds)| (*place as f64, median(rounds, own, figure))).collect()
    };
    let by_connections: Vec<_> =
        CONNECTIONS.iter().map(|n| Load::new(&format!("get, {n} connections"), *n, 1, 1, 1.0)).collect();
    let by_connections = sweep("connections", &by_connections)?;
    let by_depth: Vec<_> =
        DEPTHS.iter().map(|n| Load::new(&format!("get, depth {n}"), 50, *n, 1, 1.0)).collect();
    let by_depth = sweep("depth", &by_depth)?;
    for (name, what, axis, places, all) in [
        (
            "connections",
            "gets, one at a time on each connection",
            "connections",
            CONNECTIONS,
            &by_connections,
        ),
        ("depth", "gets, 50 connections", "requests sent at a time", DEPTHS, &by_depth),
    ] {
        let throughput = |own| points(places, all, own, |report: &Report| Some(report.requests_per_second));
        charts.push(Chart {
            name: format!("throughput-{name}"),
            title: format!("Throughput: {what}"),
            x: Axis::new(axis, steps(places.iter().map(|place| *place as f64))),
            y: Axis::new("requests per second", Scale::Linear),
            lines: lines(throughput),
        });
        let cpu = |own| points(places, all, own, |report: &Report| report.cpu_us_per_operation);
        charts.push(Chart {
            name: format!("cpu-{name}"),
            title: format!("Server CPU: {what}"),
            x: Axis::new(axis, steps(places.iter().map(|place| *place as f64))),
            y: Axis::new("microseconds a request", Scale::Linear),
            lines: lines(cpu),
        });
    }
    let at = CONNECTIONS.iter().position(|n| *n == 50).context("one of the loads")?;
    let latency = |own| {
        let figures: [fn(&Report) -> Option<f64>; 4] =
            [|r| Some(r.p50_us), |r| Some(r.p90_us), |r| Some(r.p99_us), |r| Some(r.p999_us)];
        let point = |(place, figure)| (place as f64, median(&by_connections[at], own, figure));
        figures.into_iter().enumerate().map(point).collect()
    };
    charts.push(Chart {
        name: "latency".to_owned(),
        title: "Latency: gets, 50 connections, one at a time".to_owned(),
        x: Axis::new("of the requests", Scale::Names(PERCENTILES.map(str::to_owned).to_vec())),
        y: Axis::new("microseconds at most", one_two_five()),
        lines: lines(latency),
    });
    Ok((charts, Value::Object(raw)))
}

/// Memory of an item over the value's size.
#[expect(clippy::cast_precision_loss, reason = "counts of items and bytes of this machine")]
pub(crate) fn memory(programs: &Programs, quick: bool) -> Result<(Vec<Chart>, Value)> {
    let budget: u64 = if quick { 50 << 20 } else { 100 << 20 };
    let mut measured = vec![Vec::new(); KINDS.len()];
    for bytes in VALUE_BYTES {
        let items = (budget / u64::from(bytes + 100)).min(1_000_000);
        for (own, kind) in KINDS.into_iter().enumerate() {
            progress(&format!("memory, values of {bytes} bytes: {}", kind.name()));
            let server = Server::start(programs, kind, 1024)?;
            let before = server.resident_bytes()?;
            let plan = Arc::new(Plan { sizes: Sizes::fixed(*bytes), ..plan(items) });
            server.open(&plan, 8, 64)?.fill(server.meter())?;
            let grown = server.resident_bytes()?.saturating_sub(before);
            measured[own].push((f64::from(*bytes), grown as f64 / items as f64));
        }
    }
    let overhead =
        |own: usize| measured[own].iter().map(|(bytes, all)| (*bytes, all - bytes - 32.0)).collect();
    let chart = Chart {
        name: "memory-per-item".to_owned(),
        title: "Memory of an item beside its key (32 bytes) and value".to_owned(),
        x: Axis::new("bytes of the value", steps(VALUE_BYTES.iter().map(|bytes| f64::from(*bytes)))),
        y: Axis::new("bytes", one_two_five()),
        lines: lines(overhead),
    };
    Ok((vec![chart], json!(measured)))
}

/// Hit ratio over memory.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub(crate) fn hits(programs: &Programs, quick: bool) -> Result<(Vec<Chart>, Value)> {
    let requests = if quick { 400_000 } else { 2_000_000 };
    let sizes: Sizes = "lognormal:200,1.0".parse().map_err(|error: String| anyhow::anyhow!(error))?;
    let zipf = Plan { popularity: Popularity::Zipf(1.0), sizes, fill_on_miss: true, ..plan(5_000_000) };
    let mut measured = vec![Vec::new(); KINDS.len()];
    for mib in MEMORY_MIB {
        for (own, kind) in KINDS.into_iter().enumerate() {
            progress(&format!("hit ratio, {mib} MiB: {}", kind.name()));
            let server = Server::start(programs, kind, *mib)?;
            let mut target = server.open(&Arc::new(zipf.clone()), 2, 32)?;
            let half = Until::Requests(requests / 2);
            target.run(half, server.meter())?;
            let (tally, cpu) = target.run(half, server.meter())?;
            let ratio = Report::new(&tally, cpu).hit_ratio.context("gets were asked")?;
            measured[own].push((*mib as f64, ratio * 100.0));
        }
    }
    let chart = Chart {
        name: "hit-ratio".to_owned(),
        title: "Hit ratio: Zipf 1.0 over 5 million keys, misses are filled".to_owned(),
        x: Axis::new("memory limit (-m) in MiB", steps(MEMORY_MIB.iter().map(|mib| *mib as f64))),
        y: Axis::new("per cent", Scale::Part),
        lines: lines(|own| measured[own].clone()),
    };
    Ok((vec![chart], json!(measured)))
}
