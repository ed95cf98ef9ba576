//! The cost of idle connections, and of a second worker.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cattlegrid_load::Spread;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::progress;
use crate::servers::{KINDS, Programs, Server, ServerKind, ServerSetup};
use crate::speed::{Load, Pace, latency, measure};

/// Connections that are opened and left idle.
const CONNECTIONS: u64 = 10_000;
/// Descriptors in addition to those.
const SPARE: u64 = 200;

/// Growth of the resident set by connections that were opened, used once, and left idle.
#[expect(clippy::cast_precision_loss, reason = "bytes of this machine")]
pub(crate) fn connections(programs: &Programs) -> Result<(String, Value)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(CONNECTIONS + SPARE), hard.max(CONNECTIONS + SPARE))
        .context("as many open files as connections")?;
    let mut text = format!(
        "{CONNECTIONS} connections of which each has sent one get and now does nothing: growth of the process a connection.\n\n\
         | server | bytes |\n|---|---|\n"
    );
    let mut raw = Vec::new();
    for kind in KINDS {
        progress(&format!("idle connections: {}", kind.name()));
        let server = Server::start_with(
            programs,
            kind,
            &ServerSetup { connections: CONNECTIONS + SPARE, ..ServerSetup::new(64) },
        )?;
        let before = server.resident_bytes()?;
        let open: Vec<TcpStream> = (0..CONNECTIONS).map(|_| server.ask_once()).collect::<Result<_>>()?;
        let grown = server.resident_bytes()?.saturating_sub(before);
        drop(open);
        let each = grown as f64 / CONNECTIONS as f64;
        writeln!(text, "| {} | {each:.0} |", kind.name())?;
        raw.push(json!({ "server": kind.name(), "connections": CONNECTIONS, "grown_bytes": grown }));
    }
    Ok((text, json!(raw)))
}

/// CPU time per operation with two workers divided by that with one.
pub(crate) fn workers(programs: &Programs, quick: bool) -> Result<(String, Value)> {
    let (turns, slice) =
        if quick { (5, Duration::from_millis(250)) } else { (15, Duration::from_millis(500)) };
    let servers = [1, 2].map(|threads| {
        Server::start_with(
            programs,
            ServerKind::Cattlegrid,
            &ServerSetup { threads, ..ServerSetup::new(256) },
        )
    });
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let mut text = String::from(
        "Cattlegrid with one and with two workers: server CPU per key in microseconds, median; the ratio with quartiles. \
         Latency as p50 / p99 / p99.9 in microseconds.\n\n\
         | load | 1 worker | 2 workers | ratio | latency: 1 worker | 2 workers |\n|---|---|---|---|---|---|\n",
    );
    let mut raw = Vec::new();
    for load in [
        Load::new("get, 50 connections, depth 32", 50, 32, 1, 1.0),
        Load::new("get of 32 keys, 50 connections", 50, 1, 32, 1.0),
        Load::new("set, 50 connections, depth 32", 50, 32, 1, 0.0),
    ] {
        progress(&format!("workers: {}", load.name));
        let rounds = measure(&servers, &load, Pace { turns, slice })?;
        let cpu = |own: usize| rounds.iter().filter_map(move |round| round[own].cpu_us_per_operation);
        let median = |own| Spread::of(cpu(own)).map_or(0.0, |spread| spread.median);
        let ratio =
            Spread::of(cpu(1).zip(cpu(0)).map(|(two, one)| two / one)).context("no turn has CPU time")?;
        writeln!(
            text,
            "| {} | {:.2} | {:.2} | **{:.2}** ({:.2} .. {:.2}) | {} | {} |",
            load.name,
            median(0),
            median(1),
            ratio.median,
            ratio.low,
            ratio.high,
            latency(&rounds, 0),
            latency(&rounds, 1)
        )?;
        raw.push(json!({ "load": load.name, "rounds": rounds }));
    }
    Ok((text, json!(raw)))
}
