//! CPU time per operation and latency under steady loads that hit.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cattlegrid_compare::loads::plan;
use cattlegrid_load::{Plan, Report, Shape, Sizes, Spread, Until};
use serde_json::{Value, json};

use crate::progress;
use crate::servers::{Certificate, KINDS, Programs, Server, ServerKind, ServerSetup};

/// A steady load.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) name: String,
    connections: usize,
    depth: usize,
    multiget: usize,
    get_share: f64,
    keys: u64,
    value_bytes: u32,
    reconnects: bool,
    resumes: bool,
}

impl Load {
    pub(crate) fn new(name: &str, connections: usize, depth: usize, multiget: usize, get_share: f64) -> Self {
        Self {
            name: name.to_owned(),
            connections,
            depth,
            multiget,
            get_share,
            keys: KEYS,
            value_bytes: 100,
            reconnects: false,
            resumes: false,
        }
    }

    /// 50 connections, one request at a time.
    fn plain(name: &str, get_share: f64) -> Self {
        Self::new(name, 50, 1, 1, get_share)
    }

    /// The same with larger values, and as many keys as have 64 MiB of them.
    fn of(self, value_bytes: u32) -> Self {
        Self { keys: (64 << 20) / u64::from(value_bytes), value_bytes, ..self }
    }

    /// Each request over a connection of its own. Few keys: they are filled over such connections, too.
    fn reconnecting(self) -> Self {
        Self { reconnects: true, keys: 1000, ..self }
    }

    fn resuming(self) -> Self {
        Self { resumes: true, ..self }
    }

    fn plan(&self) -> Plan {
        let sizes = Sizes::fixed(self.value_bytes);
        Plan { multiget: self.multiget, get_share: self.get_share, sizes, ..plan(self.keys) }
    }

    pub(crate) fn shape(&self) -> Shape {
        let Self { connections, depth, reconnects, .. } = *self;
        Shape { threads: 1, connections, depth, reconnects, tls: None }
    }
}

/// How often each server has its turn, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) turns: usize,
    pub(crate) slice: Duration,
}

impl Pace {
    pub(crate) fn new(quick: bool) -> Self {
        let (turns, slice) = if quick { (5, 250) } else { (11, 500) };
        Self { turns, slice: Duration::from_millis(slice) }
    }
}

const KEYS: u64 = 100_000;
const KIB: u32 = 1 << 10;

/// Small values.
pub(crate) fn compare(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let servers = KINDS.map(|kind| Server::start(programs, kind, 256));
    let mut servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    servers.extend(programs.start_peers()?);
    let loads = [
        Load::new("get, 4 connections", 4, 1, 1, 1.0),
        Load::plain("get, 50 connections", 1.0),
        Load::new("get, 500 connections", 500, 1, 1, 1.0),
        Load::new("get, 50 connections, depth 32", 50, 32, 1, 1.0),
        Load::new("get of 32 keys, 50 connections", 50, 1, 32, 1.0),
        Load::plain("set, 50 connections", 0.0),
        Load::new("set, 50 connections, depth 32", 50, 32, 1, 0.0),
    ];
    table(&servers, &loads, Pace::new(quick))
}

/// Values of 4 KiB and more.
pub(crate) fn large(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let loads = [
        Load::plain("get of 4 KiB", 1.0).of(4 * KIB),
        Load::plain("get of 64 KiB", 1.0).of(64 * KIB),
        Load::plain("get of 512 KiB", 1.0).of(512 * KIB),
        Load::plain("set of 4 KiB", 0.0).of(4 * KIB),
        Load::plain("set of 64 KiB", 0.0).of(64 * KIB),
        Load::plain("set of 512 KiB", 0.0).of(512 * KIB),
    ];
    table(&programs.start_all(&ServerSetup::new(1024))?, &loads, Pace::new(quick))
}

/// One request at a time, over a connection that stays and over one for each.
pub(crate) fn connections(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let loads = [
        Load::plain("get, depth 1", 1.0),
        Load::plain("connect, get, close", 1.0).reconnecting(),
        Load::new("connect, get, close, one at a time", 1, 1, 1, 1.0).reconnecting(),
    ];
    table(&programs.start_all(&ServerSetup::new(256))?, &loads, Pace::new(quick))
}

/// TLS 1.3 with a key on P-256; without the user's servers, whose options for it are not known.
pub(crate) fn tls(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let certificate = Certificate::new()?;
    let setup = ServerSetup { certificate: Some(&certificate), ..ServerSetup::new(1024) };
    let servers = [ServerKind::Cattlegrid, ServerKind::Memcached]
        .map(|kind| Server::start_with(programs, kind, &setup));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let loads = [
        Load::plain("TLS get", 1.0),
        Load::plain("TLS get of 4 KiB", 1.0).of(4 * KIB),
        Load::plain("TLS get of 64 KiB", 1.0).of(64 * KIB),
        Load::plain("TLS get of 512 KiB", 1.0).of(512 * KIB),
        Load::plain("TLS set of 64 KiB", 0.0).of(64 * KIB),
        Load::plain("full handshake, get, close", 1.0).reconnecting(),
        Load::plain("resumed handshake, get, close", 1.0).reconnecting().resuming(),
    ];
    table(&servers, &loads, Pace::new(quick))
}

/// The table, and the report of every turn.
pub(crate) fn table(servers: &[Server], loads: &[Load], pace: Pace) -> Result<(String, Value)> {
    let base = servers.iter().position(|server| server.name == ServerKind::Memcached.name());
    let base = base.context("memcached is among the servers")?;
    let mut text = String::from(
        "Server CPU per key in microseconds, median; in brackets divided by memcached's (quartiles). \
         Latency of a request as p50 / p99 / p99.9 in microseconds.\n\n| load |",
    );
    servers.iter().try_for_each(|server| write!(text, " {} |", server.name))?;
    servers.iter().try_for_each(|server| write!(text, " latency: {} |", server.name))?;
    writeln!(text, "\n|---|{}", "---|".repeat(2 * servers.len()))?;
    let mut raw = Vec::new();
    for load in loads {
        progress(&load.name);
        let rounds = measure(servers, load, pace)?;
        write!(text, "| {} ", load.name)?;
        for own in 0..servers.len() {
            write!(text, "| {} ", cost(&rounds, own, base)?)?;
            let (resumed, all) = handshakes(&rounds, own);
            if load.resumes && resumed < all {
                write!(text, "({} % resumed) ", resumed * 100 / all)?;
            }
        }
        for own in 0..servers.len() {
            write!(text, "| {} ", latency(&rounds, own))?;
        }
        text.push_str("|\n");
        let names: Vec<_> = servers.iter().map(|server| &server.name).collect();
        raw.push(json!({ "load": load.name, "servers": names, "rounds": rounds }));
    }
    Ok((text, json!(raw)))
}

/// The CPU of a server, and its ratio to that of the server at `base`.
pub(crate) fn cost(rounds: &[Vec<Report>], own: usize, base: usize) -> Result<String> {
    let cpu = |report: &Report| report.cpu_us_per_operation;
    let figure = Spread::of(rounds.iter().filter_map(|round| cpu(&round[own])));
    let mut text = format!("{:.2}", figure.context("no turn has CPU time")?.median);
    let ratios = rounds.iter().filter_map(|round| Some(cpu(&round[own])? / cpu(&round[base])?));
    if let Some(Spread { median, low, high }) = Spread::of(ratios).filter(|_| own != base) {
        write!(text, " (**{median:.2}**, {low:.2} .. {high:.2})")?;
    }
    Ok(text)
}

/// p50 / p99 / p99.9, each the median of the turns.
pub(crate) fn latency(rounds: &[Vec<Report>], own: usize) -> String {
    let of = |figure: fn(&Report) -> f64| {
        Spread::of(rounds.iter().map(|round| figure(&round[own]))).map_or(0.0, |spread| spread.median)
    };
    let [p50, p99, p999] =
        [of(|report| report.p50_us), of(|report| report.p99_us), of(|report| report.p999_us)];
    format!("{p50:.0} / {p99:.0} / {p999:.0}")
}

/// Resumed ones, and all.
fn handshakes(rounds: &[Vec<Report>], own: usize) -> (u64, u64) {
    rounds.iter().fold((0, 0), |(resumed, all), round| {
        (resumed + round[own].resumed_handshakes, all + round[own].handshakes)
    })
}

/// The reports of each round, in the order of the servers.
pub(crate) fn measure(servers: &[Server], load: &Load, pace: Pace) -> Result<Vec<Vec<Report>>> {
    let servers: Vec<_> = servers.iter().map(|server| (server, load.plan())).collect();
    measure_plans(&servers, load, pace)
}

/// The same with a plan for each server; one server may be there several times.
pub(crate) fn measure_plans(
    servers: &[(&Server, Plan)],
    load: &Load,
    pace: Pace,
) -> Result<Vec<Vec<Report>>> {
    let mut targets = Vec::new();
    for (server, plan) in servers {
        let mut target = server.open_as(&Arc::new(plan.clone()), &load.shape(), load.resumes)?;
        let fills = if plan.fill_on_miss { Ok(()) } else { target.fill(server.meter()).map(drop) };
        fills
            .and_then(|()| target.run(Until::Elapsed(pace.slice / 2), server.meter()).map(drop))
            .with_context(|| format!("{}: {}", server.name, load.name))?;
        targets.push(target);
    }
    let mut rounds = Vec::new();
    for turn in 0..pace.turns {
        let mut round = vec![None; targets.len()];
        // The order changes, so that no server always follows the same one.
        for step in 0..targets.len() {
            let own = (turn + step) % targets.len();
            let server = servers[own].0;
            let (tally, cpu) = targets[own]
                .run(Until::Elapsed(pace.slice), server.meter())
                .with_context(|| format!("{}: {}", server.name, load.name))?;
            round[own] = Some(Report::new(&tally, cpu));
        }
        rounds.push(round.into_iter().flatten().collect());
    }
    Ok(rounds)
}
