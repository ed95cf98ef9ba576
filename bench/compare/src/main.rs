//! Cattlegrid compared with memcached, Redis and servers that the user names: CPU time per operation, memory
//! per item, hit ratios, charts of them.
//!
//! CPU figures are medians of turns: all servers run at once, idle except for the one whose turn it is, so
//! that what else the machine does meets all alike. Each figure is also divided by memcached's of the same
//! round; quartiles of those ratios say how sure they are. Every reply is verified.
//!
//! # Invariants
//! * No server outlives the program, unless that is killed: a signal ends the run, and all servers with it.

mod chart;
mod curves;
mod hits;
mod idle;
mod memory;
mod peer;
mod resp;
mod rules;
mod servers;
mod speed;
mod works;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::Meter;
use clap::Parser;
use nix::sys::signal::{SigSet, Signal};
use serde_json::{Value, json};

use peer::Peer;
use servers::{KINDS, Programs, ServerKind};

/// Compares Cattlegrid with memcached, Redis and other servers on this machine; prints Markdown tables.
///
/// Build both first: cargo build --release -p cattlegrid -p cattlegrid-compare
#[derive(Debug, Parser)]
struct Options {
    /// Some minutes instead of half an hour: fewer and shorter turns, smaller loads, without the trace P3.
    #[arg(long)]
    quick: bool,
    /// Only these parts; there are also work (what of more than eighty kinds of work hits), and speed-charts,
    /// memory-charts and hit-charts, which need --plots. large, connections, tls, rules, workers and work
    /// need no Redis.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "speed,large,connections,tls,rules,workers,idle,memory,hits"
    )]
    parts: Vec<Part>,
    /// Where the charts go, as SVG, and their data.
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Measure nothing: draw the charts again from their data.
    #[arg(long, requires = "plots", conflicts_with = "parts")]
    redraw: bool,
    /// The program of Cattlegrid [default: in the directory of this program].
    #[arg(long, value_name = "FILE")]
    cattlegrid: Option<PathBuf>,
    /// The program of memcached.
    #[arg(long, value_name = "FILE", default_value = "memcached")]
    memcached: PathBuf,
    /// The program of Redis.
    #[arg(long, value_name = "FILE", default_value = "redis-server")]
    redis: PathBuf,
    /// One more server that speaks memcached's protocol, for speed, large, connections and rules; may be
    /// given several times. COMMAND starts it in the foreground, with one serving thread and 1 GiB; {port} in
    /// its arguments stands for the port. Its words are separated by blanks, and no shell reads them.
    #[arg(long, value_name = "NAME=COMMAND")]
    peer: Vec<Peer>,
    /// Only rows of the part work whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// The serving threads of both servers in the part work, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Directory of the traces.
    #[arg(long, value_name = "DIRECTORY", default_value = "bench/traces")]
    traces: PathBuf,
    /// Where the raw results go.
    #[arg(long, value_name = "FILE", default_value = "target/compare.json")]
    json: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Speed,
    Large,
    Connections,
    Tls,
    Rules,
    Workers,
    Idle,
    Memory,
    Hits,
    Work,
    SpeedCharts,
    MemoryCharts,
    HitCharts,
}

impl Part {
    fn is_drawn(self) -> bool {
        matches!(self, Self::SpeedCharts | Self::MemoryCharts | Self::HitCharts)
    }

    fn needs_redis(self) -> bool {
        !matches!(
            self,
            Self::Large | Self::Connections | Self::Tls | Self::Rules | Self::Workers | Self::Work
        )
    }
}

const PARTS: &str = "speed, large, connections, tls, rules, workers, idle, memory, hits, work, speed-charts, memory-charts, hit-charts";

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "speed" => Ok(Self::Speed),
            "large" => Ok(Self::Large),
            "connections" => Ok(Self::Connections),
            "tls" => Ok(Self::Tls),
            "rules" => Ok(Self::Rules),
            "workers" => Ok(Self::Workers),
            "idle" => Ok(Self::Idle),
            "memory" => Ok(Self::Memory),
            "hits" => Ok(Self::Hits),
            "work" => Ok(Self::Work),
            "speed-charts" => Ok(Self::SpeedCharts),
            "memory-charts" => Ok(Self::MemoryCharts),
            "hit-charts" => Ok(Self::HitCharts),
            _ => Err(format!("must be one of {PARTS}")),
        }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(directory) = options.plots.as_ref().filter(|_| options.redraw) {
        return chart::redraw(directory);
    }
    let beside = std::env::current_exe()?.with_file_name("cattlegrid");
    let programs = Programs {
        cattlegrid: options.cattlegrid.clone().unwrap_or(beside),
        memcached: options.memcached.clone(),
        redis: options.redis.clone(),
        peers: options.peer.clone(),
        meter: stopped_by_signals()?,
    };
    programs.check_peers()?;
    let used =
        |kind: &ServerKind| *kind != ServerKind::Redis || options.parts.iter().any(|part| part.needs_redis());
    let versions =
        KINDS.into_iter().filter(used).map(|kind| Ok(format!("{} {}", kind.name(), programs.version(kind)?)));
    let mut versions = versions.collect::<Result<Vec<_>>>()?;
    versions.extend(programs.peers.iter().map(|peer| peer.name.clone()));
    say(&format!("{}, one thread each.\n", versions.join(", ")))?;

    let draw = |(charts, results): (Vec<chart::Chart>, Value)| -> Result<(String, Value)> {
        let directory = options.plots.as_ref().context("charts need --plots DIRECTORY")?;
        chart::draw(&charts, directory)?;
        Ok((format!("{} charts in {}.\n", charts.len(), directory.display()), results))
    };
    if options.parts.iter().any(|part| part.is_drawn()) && options.plots.is_none() {
        bail!("charts need --plots DIRECTORY");
    }
    let mut raw = serde_json::Map::new();
    raw.insert("versions".to_owned(), json!(versions));
    for part in &options.parts {
        let (name, (text, results)): (_, (String, Value)) = match part {
            Part::Speed => ("speed", speed::compare(&programs, options.quick)?),
            Part::Large => ("large", speed::large(&programs, options.quick)?),
            Part::Connections => ("connections", speed::connections(&programs, options.quick)?),
            Part::Tls => ("tls", speed::tls(&programs, options.quick)?),
            Part::Rules => ("rules", rules::compare(&programs, options.quick)?),
            Part::Workers => ("workers", idle::workers(&programs, options.quick)?),
            Part::Idle => ("idle", idle::connections(&programs)?),
            Part::Memory => ("memory", memory::compare(&programs, options.quick)?),
            Part::Hits => ("hits", hits::compare(&programs, &options.traces, options.quick)?),
            Part::Work => {
                let threads = options.threads;
                ("work", works::compare(&programs, &options.traces, &options.only, threads)?)
            }
            Part::SpeedCharts => ("speed-charts", draw(curves::speed(&programs, options.quick)?)?),
            Part::MemoryCharts => ("memory-charts", draw(curves::memory(&programs, options.quick)?)?),
            Part::HitCharts => ("hit-charts", draw(curves::hits(&programs, options.quick)?)?),
        };
        say(&text)?;
        raw.insert(name.to_owned(), results);
        let text = serde_json::to_string_pretty(&raw)?;
        fs::write(&options.json, text).with_context(|| options.json.display().to_string())?;
    }
    Ok(())
}

/// The meter that ends all runs once the program is asked to leave. Servers do not get its signals: they end
/// with it.
fn stopped_by_signals() -> Result<Arc<Meter>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let meter = Arc::new(Meter::default());
    let stopped = Arc::clone(&meter);
    thread::spawn(move || {
        if signals.wait().is_ok() {
            stopped.stop.store(true, Ordering::Relaxed);
        }
    });
    Ok(meter)
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// Progress, on a stream apart from the tables.
fn progress(what: &str) {
    writeln!(std::io::stderr(), "{what}").unwrap_or_default();
}

/// The place of a server in `KINDS`.
fn place(kind: ServerKind) -> usize {
    KINDS.iter().position(|other| *other == kind).unwrap_or_default()
}
