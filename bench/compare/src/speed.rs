//! CPU time per operation and latency under steady loads that hit.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cattlegrid::bench::{Meter, Plan, Report, Spread, Until};
use cattlegrid_compare::loads::plan;
use serde_json::{Value, json};

use crate::servers::{KINDS, Kind, Programs, Server};
use crate::{place, progress};

/// A steady load.
pub(crate) struct Load {
    pub(crate) name: String,
    connections: usize,
    depth: usize,
    multiget: usize,
    get_share: f64,
}

impl Load {
    pub(crate) fn new(name: &str, connections: usize, depth: usize, multiget: usize, get_share: f64) -> Self {
        Self { name: name.to_owned(), connections, depth, multiget, get_share }
    }
}

fn loads() -> [Load; 7] {
    [
        Load::new("get, 4 connections", 4, 1, 1, 1.0),
        Load::new("get, 50 connections", 50, 1, 1, 1.0),
        Load::new("get, 500 connections", 500, 1, 1, 1.0),
        Load::new("get, 50 connections, depth 32", 50, 32, 1, 1.0),
        Load::new("get of 32 keys, 50 connections", 50, 1, 32, 1.0),
        Load::new("set, 50 connections", 50, 1, 1, 0.0),
        Load::new("set, 50 connections, depth 32", 50, 32, 1, 0.0),
    ]
}

const KEYS: u64 = 100_000;

/// The table, and the report of every turn.
pub(crate) fn compare(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let (turns, slice) =
        if quick { (5, Duration::from_millis(250)) } else { (11, Duration::from_millis(500)) };
    let servers = KINDS.map(|kind| Server::start(programs, kind, 256));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let mut text = String::from(
        "Server CPU per key in microseconds, median; in brackets divided by memcached's (quartiles). \
         Latency of a request as p50 / p99 in microseconds.\n\n\
         | load | cattlegrid | memcached | redis | latency: cattlegrid | memcached | redis |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut raw = Vec::new();
    for load in loads() {
        progress(&load.name);
        let rounds = measure(&servers, &load, turns, slice)?;
        let cpu = |report: &Report| report.cpu_us_per_operation;
        write!(text, "| {} ", load.name)?;
        let base = place(Kind::Memcached);
        for kind in KINDS {
            let own = place(kind);
            let figure = Spread::of(rounds.iter().filter_map(|round| cpu(&round[own])));
            let figure = figure.context("no turn has CPU time")?;
            write!(text, "| {:.2} ", figure.median)?;
            let ratios = rounds.iter().filter_map(|round| Some(cpu(&round[own])? / cpu(&round[base])?));
            if let Some(Spread { median, low, high }) = Spread::of(ratios).filter(|_| own != base) {
                write!(text, "(**{median:.2}**, {low:.2} .. {high:.2}) ")?;
            }
        }
        for kind in KINDS {
            let of = |figure: fn(&Report) -> f64| {
                let figures = rounds.iter().map(|round| figure(&round[place(kind)]));
                Spread::of(figures).map_or(0.0, |spread| spread.median)
            };
            write!(text, "| {:.0} / {:.0} ", of(|report| report.p50_us), of(|report| report.p99_us))?;
        }
        text.push_str("|\n");
        raw.push(json!({ "load": load.name, "rounds": rounds }));
    }
    Ok((text, json!(raw)))
}

/// The reports of each round, in the order of the servers.
pub(crate) fn measure(
    servers: &[Server],
    load: &Load,
    turns: usize,
    slice: Duration,
) -> Result<Vec<Vec<Report>>> {
    let plan = Plan { multiget: load.multiget, get_share: load.get_share, ..plan(KEYS) };
    let plan = Arc::new(plan);
    let meter = Meter::default();
    let mut targets = Vec::new();
    for server in servers {
        let mut target = server.open(&plan, load.connections, load.depth)?;
        target.fill(&meter)?;
        target.run(Until::Elapsed(slice / 4), &meter)?;
        targets.push(target);
    }
    let mut rounds = Vec::new();
    for turn in 0..turns {
        let mut round = vec![None; targets.len()];
        // The first server changes, so that no server always follows the same one.
        for step in 0..targets.len() {
            let own = (turn + step) % targets.len();
            let (tally, cpu) = targets[own].run(Until::Elapsed(slice), &meter)?;
            round[own] = Some(Report::new(&tally, cpu));
        }
        rounds.push(round.into_iter().flatten().collect());
    }
    Ok(rounds)
}
