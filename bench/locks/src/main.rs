//! How often several threads wait for a shard: counted on an engine without sockets, and predicted by a model for more
//! threads than the machine has processors.
//!
//! Threads execute batches of 32 requests about uniformly drawn keys, as the server makes them. The model is given the
//! times of a batch's phases as one thread takes them, and must agree with the count for as many threads as there are
//! processors.

#![expect(clippy::cast_precision_loss, reason = "times and shares need few digits")]

mod batch;
mod count;
mod model;

use std::io::Write as _;

use anyhow::Result;
use cattlegrid_store::StoreConfig;
use clap::Parser;

use batch::Work;
use count::Count;
use model::{HELD_MAX, Model, Prediction};

/// Counts and predicts waits for shards.
///
/// Use it on an idle machine: a thread that the system stops while it has a shard makes others wait for longer.
#[derive(Debug, Parser)]
struct Options {
    /// Threads that are counted; there must be as many processors.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Batches of each thread in a turn.
    #[arg(long, default_value_t = 20_000)]
    batches: usize,
    /// Turns whose medians are shown.
    #[arg(long, default_value_t = 7)]
    turns: usize,
    /// Nanoseconds that a batch takes outside the engine, to receive it and to send the replies; without it 0, then 10,000.
    #[arg(long)]
    outside_ns: Vec<u64>,
    /// Nanoseconds from the release of a shard until a thread that waits for it tries to get it.
    #[arg(long, default_value_t = REACT_NS)]
    react_ns: u64,
}

/// Nanoseconds from the release of a shard until a thread that waits for it tries to get it: of 0, 200 and 1000 that with which the
/// model comes closest to the count of gets in two shards, within a factor of two.
const REACT_NS: u64 = 200;
/// Memory of the engine: enough for 128 shards, of which little is used.
const MEMORY: usize = 1 << 30;
/// Threads that are predicted.
const PREDICTED: [usize; 3] = [2, 8, 32];
/// Numbers of shards, as multiples of what the server would have.
const MULTIPLES: [usize; 3] = [1, 2, 4];

fn main() -> Result<()> {
    let options = Options::parse();
    let outside = if options.outside_ns.is_empty() { vec![0, 10_000] } else { options.outside_ns.clone() };
    let mut out = std::io::stdout();
    writeln!(
        out,
        "Waits are per 1,000 batches. CPU is that of a key with {} threads divided by that with one, ",
        options.threads
    )?;
    writeln!(
        out,
        "busy the share of a processor that a thread had, speed that of all threads in threads without waits.\n"
    )?;
    for outside_ns in outside {
        writeln!(out, "## {outside_ns} ns outside the engine\n")?;
        writeln!(
            out,
            "| batch | shards | ns for a key: parse, prefetch, execute | waits: counted (quartiles) | predicted | CPU | busy |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        let mut models = Vec::new();
        for work in Work::ALL {
            let base = shards_for(options.threads);
            for shards in MULTIPLES.iter().map(|multiple| base * multiple) {
                let count = Count::take(work, shards, &options, outside_ns)?;
                let model = Model {
                    work,
                    phases: count.phases,
                    outside_ns,
                    react_ns: options.react_ns,
                    kept: HELD_MAX,
                };
                let predicted = model.run(options.threads, shards).waits;
                let [low, median, high] = count.waits;
                let [parse, prefetch, execute] = count.phases.key_ns;
                writeln!(
                    out,
                    "| {} | {shards} | {parse:.0}, {prefetch:.0}, {execute:.0} | {median:.1} ({low:.1} .. {high:.1}) | {predicted:.1} | {:.2} | {:.2} |",
                    work.name(),
                    count.cpu,
                    count.busy
                )?;
                if shards == base {
                    models.push(model);
                }
            }
        }
        writeln!(
            out,
            "\n| batch | threads | shards | kept | waits | waiting, share of the time | speed |\n|---|---|---|---|---|---|---|"
        )?;
        for model in models {
            for threads in PREDICTED {
                for shards in MULTIPLES.map(|multiple| shards_for(threads) * multiple) {
                    for kept in [HELD_MAX, 1] {
                        let Prediction { waits, waiting, speed } =
                            Model { kept, ..model }.run(threads, shards);
                        let name = model.work.name();
                        writeln!(
                            out,
                            "| {name} | {threads} | {shards} | {kept} | {waits:.1} | {waiting:.4} | {speed:.3} |"
                        )?;
                    }
                }
            }
        }
        writeln!(out)?;
    }
    memory(&mut out)
}

/// What the shards of an empty engine take.
fn memory(out: &mut impl std::io::Write) -> Result<()> {
    writeln!(out, "| shards | KiB taken, empty, `-m {}` |\n|---|---|", MEMORY >> 20)?;
    for shards in [2, 4, 8, 32, 64, 128] {
        let engine = batch::engine(shards)?;
        writeln!(out, "| {shards} | {} |", engine.memory().used_bytes() >> 10)?;
    }
    Ok(())
}

/// Shards of a server with this many threads and much memory.
fn shards_for(threads: usize) -> usize {
    StoreConfig::derive(MEMORY, threads, true).0
}
