//! The price of a rule: hits, misses that are computed and filled, and gets that are held.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cattlegrid_compare::loads::plan;
use cattlegrid_load::{Plan, Report, Spread, StampedeReport, Until, stampede};
use serde_json::{Value, json};

use crate::progress;
use crate::servers::{Programs, Server, ServerKind, ServerSetup};
use crate::speed::{Load, Pace, cost, latency, measure_plans};

/// Each key has a tag of its own. Leases are part of the rule, since it names `hold`.
const RULES: &str = "[[rule]]\nmatch = \"r{key}\"\nhold = \"400ms\"\ntags = [\"tag:{key}\"]\n";
/// The first letters of keys with and without a rule.
const RULED: u8 = b'r';
const FREE: u8 = b'f';
/// Tags that are bumped and that no key has.
const BUMPS: u32 = 10_000;
/// Less than the keys that are filled, so that all servers evict.
const MEMORY_MIB: u64 = 64;
const CONNECTIONS: usize = 50;
/// Keys of a turn of stampedes, one after the other.
const STAMPEDES: u64 = 100_000;

/// The tables, and what they were made of.
pub(crate) fn compare(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let pace = Pace::new(quick);
    let (hits, raw_hits) = hits(programs, pace)?;
    let (misses, raw_misses) = misses(programs, pace)?;
    let (held, raw_held) = held(programs, pace)?;
    let raw = json!({ "hits": raw_hits, "misses": raw_misses, "held": raw_held });
    Ok((format!("{hits}\n{misses}\n{held}"), raw))
}

/// A plan whose keys begin with this letter.
fn keys_of(first: u8, plan: Plan) -> Plan {
    let mut run = Plan::new_run();
    run[0] = first;
    Plan { run, ..plan }
}

fn hits(programs: &Programs, pace: Pace) -> Result<(String, Value)> {
    let setup = ServerSetup { rules: Some(RULES), ..ServerSetup::new(256) };
    let server = Server::start_with(programs, ServerKind::Cattlegrid, &setup)?;
    let mut text = String::from(
        "Hits of Cattlegrid: server CPU per key in microseconds, keys without a rule and keys with a rule and a tag, in one server; \
         the difference in nanoseconds. Medians, quartiles. Latency as p50 / p99 / p99.9 in microseconds.\n\n\
         | load | without a rule | with a rule and a tag | difference | latency: without | with |\n|---|---|---|---|---|---|\n",
    );
    let mut raw = Vec::new();
    for bumped in [false, true] {
        if bumped {
            let mut client = server.connect()?;
            for tag in 0..BUMPS {
                client.send(format!("delete @tag:other:{tag}\r\n"))?;
                let reply = client.line()?;
                anyhow::ensure!(
                    reply == "DELETED\r\n",
                    "delete @tag:other:{tag} was answered with {reply:?}"
                );
            }
        }
        for depth in [1, 32] {
            let also = if bumped { format!(", {BUMPS} other tags bumped") } else { String::new() };
            let load = Load::new(&format!("get, depth {depth}{also}"), CONNECTIONS, depth, 1, 1.0);
            progress(&format!("rules: {}", load.name));
            let both = [FREE, RULED].map(|first| (&server, keys_of(first, plan(100_000))));
            let rounds = measure_plans(&both, &load, pace)?;
            let differences = rounds.iter().filter_map(|round: &Vec<Report>| {
                Some((round[1].cpu_us_per_operation? - round[0].cpu_us_per_operation?) * 1e3)
            });
            let Spread { median, low, high } = Spread::of(differences).context("no turn has CPU time")?;
            let [free, ruled] = [cost(&rounds, 0, 0)?, cost(&rounds, 1, 0)?];
            let [free_latency, ruled_latency] = [0, 1].map(|own| latency(&rounds, own));
            writeln!(
                text,
                "| {} | {free} | {ruled} | {median:.0} ({low:.0} .. {high:.0}) | {free_latency} | {ruled_latency} |",
                load.name
            )?;
            raw.push(json!({ "load": load.name, "servers": ["without", "with"], "rounds": rounds }));
        }
    }
    Ok((text, json!(raw)))
}

/// The servers of the other tables with their keys: Cattlegrid without and with a rule, memcached, and the
/// user's.
fn all<'a>(servers: &'a [Server], plan: &Plan) -> Vec<(&'a Server, Plan)> {
    let own = [FREE, RULED].map(|first| (&servers[0], keys_of(first, plan.clone())));
    let others = servers[1..].iter().map(|server| (server, keys_of(RULED, plan.clone())));
    own.into_iter().chain(others).collect()
}

fn head(servers: &[Server]) -> String {
    let mut names = vec!["cattlegrid, no rule", "cattlegrid, rule and tag"];
    names.extend(servers[1..].iter().map(|server| server.name.as_str()));
    let (columns, latencies) = (names.join(" | "), names.join(" | latency: "));
    format!("| load | {columns} | latency: {latencies} |\n|---|{}\n", "---|".repeat(2 * names.len()))
}

/// memcached's place among the columns.
const BASE: usize = 2;

fn misses(programs: &Programs, pace: Pace) -> Result<(String, Value)> {
    let servers = programs.start_all(&ServerSetup { rules: Some(RULES), ..ServerSetup::new(MEMORY_MIB) })?;
    // Each key is asked for once, so that it is missed, and then set.
    let plan = Plan { one_hit_share: 1.0, fill_on_miss: true, ..plan(1) };
    let mut text = format!(
        "A get that misses or the set that fills it (mean of the two), {MEMORY_MIB} MiB, evicting: server CPU in microseconds, median; in brackets divided by \
         memcached's (quartiles). Latency as p50 / p99 / p99.9 in microseconds.\n\n{}",
        head(&servers)
    );
    let mut raw = Vec::new();
    for depth in [1, 32] {
        let load = Load::new(&format!("miss and fill, depth {depth}"), CONNECTIONS, depth, 1, 1.0);
        progress(&format!("rules: {}", load.name));
        let rounds = measure_plans(&all(&servers, &plan), &load, pace)?;
        let columns = 0..=servers.len();
        write!(text, "| {} ", load.name)?;
        for own in columns.clone() {
            write!(text, "| {} ", cost(&rounds, own, BASE)?)?;
        }
        columns.clone().try_for_each(|own| write!(text, "| {} ", latency(&rounds, own)))?;
        text.push_str("|\n");
        raw.push(json!({ "load": load.name, "rounds": rounds }));
    }
    Ok((text, json!(raw)))
}

fn held(programs: &Programs, pace: Pace) -> Result<(String, Value)> {
    let servers = programs.start_all(&ServerSetup { rules: Some(RULES), ..ServerSetup::new(256) })?;
    let mut text = format!(
        "{CONNECTIONS} clients ask for one cold key at once. With a rule one computes it and the gets of the others are held until it is set; without, all set it. Server \
         CPU per client in microseconds, median; in brackets divided by memcached's (quartiles). Time until a client has the value as p50 / p99 / p99.9 \
         in microseconds.\n\n{}",
        head(&servers)
    );
    progress("rules: held gets");
    let mut rounds = Vec::new();
    for turn in 0..pace.turns {
        let columns = all(&servers, &plan(STAMPEDES));
        let mut round = vec![None; columns.len()];
        for step in 0..columns.len() {
            let own = (turn + step) % columns.len();
            let (server, plan) = &columns[own];
            let (address, pid) = (server.address(), Some(server.pid()));
            let until = Until::Elapsed(pace.slice);
            let plan = Arc::new(plan.clone());
            let report = stampede(&plan, address, pid, CONNECTIONS, Duration::ZERO, until, server.meter());
            round[own] = Some(report.with_context(|| format!("{}: held gets", server.name))?);
        }
        rounds.push(round.into_iter().flatten().collect::<Vec<StampedeReport>>());
    }
    text.push_str("| get of a cold key ");
    let cpu = |report: &StampedeReport| report.cpu_us_per_get;
    for own in 0..=servers.len() {
        let figure = Spread::of(rounds.iter().filter_map(|round| cpu(&round[own])));
        write!(text, "| {:.2} ", figure.context("no turn has CPU time")?.median)?;
        let ratios = rounds.iter().filter_map(|round| Some(cpu(&round[own])? / cpu(&round[BASE])?));
        if let Some(Spread { median, low, high }) = Spread::of(ratios).filter(|_| own != BASE) {
            write!(text, "(**{median:.2}**, {low:.2} .. {high:.2}) ")?;
        }
    }
    for own in 0..=servers.len() {
        let of = |figure: fn(&StampedeReport) -> f64| {
            Spread::of(rounds.iter().map(|round| figure(&round[own]))).map_or(0.0, |spread| spread.median)
        };
        let [p50, p99] = [of(|report| report.p50_us), of(|report| report.p99_us)];
        write!(text, "| {p50:.0} / {p99:.0} / {:.0} ", of(|report| report.p999_us))?;
    }
    text.push_str("|\n");
    let counted =
        |figure: fn(&StampedeReport) -> u64| rounds.iter().map(|round| figure(&round[1])).sum::<u64>();
    let (held, keys) = (counted(|report| report.held), counted(|report| report.rounds));
    writeln!(text, "\nUnder the rule {held} gets were held on {keys} keys.")?;
    Ok((text, json!(rounds)))
}
