//! The store without sockets: hit ratios, a soak of its memory, its longest operations, large trees.

mod cache;
mod hits;
mod lru;
mod mixes;
mod peer;
mod soak;
mod stalls;
mod trees;
mod work;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

use mixes::Mix;
use peer::CacheKind;
use soak::Length;
use work::RunSettings;

/// Measures the store alone, all shards of one worker in one thread.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    what: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Hit ratios of the second half of each load; misses are filled.
    Hits {
        /// Directory of the traces.
        #[arg(long, value_name = "DIRECTORY", default_value = "bench/traces")]
        traces: PathBuf,
        /// Only the loads whose name contains this.
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Runs of each load, 1 to 100, which differ in how keys fall on shards.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
        seeds: u64,
    },
    /// Kinds of work, each of which shows one thing that a cache keeps or loses: sessions, preloads, mixed
    /// sizes, deploys.
    Work {
        /// Directory of the traces.
        #[arg(long, value_name = "DIRECTORY", default_value = "bench/traces")]
        traces: PathBuf,
        /// Only those whose name contains this.
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Runs of each, 1 to 100, with different random numbers.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
        seeds: u64,
        /// Worker threads of a server, from which its shards follow.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
        threads: u64,
        /// The kind of cache that keeps the items.
        #[arg(long, value_enum, default_value = "cattlegrid")]
        cache: CacheKind,
        /// Segments of segcache in KiB; it keeps no longer values.
        #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(4..=65536))]
        segment: u64,
        /// Bytes of an item of segcache, by which the size of its hash table is chosen.
        #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u64).range(32..=65536))]
        item: u64,
    },
    /// Random operations with the whole structure walked again and again; fails where memory is not as
    /// promised.
    Soak {
        /// Kinds of values; all without it.
        #[arg(long, value_delimiter = ',')]
        mixes: Vec<Mix>,
        /// Limits in MiB, at least 4.
        #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "8,64,256,1024")]
        memory: Vec<u64>,
        /// Seconds for each kind and limit; filling and giving back come on top.
        #[arg(long, value_name = "N", default_value_t = 600)]
        seconds: u64,
        /// Operations for each kind and limit, instead of a time: the same at each run.
        #[arg(long, value_name = "N", conflicts_with = "seconds")]
        operations: Option<u64>,
        /// Start of the random numbers.
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
    },
    /// The longest operations while the index grows and while the collector runs.
    Stalls {
        /// Kinds of values; all but the huge ones without it.
        #[arg(long, value_delimiter = ',')]
        mixes: Vec<Mix>,
        /// Limits in MiB.
        #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "64,1024")]
        memory: Vec<u64>,
    },
    /// Times of operations on a large tree, and what it holds compared with resident memory.
    Trees {
        /// Members, 1,000 to 100,000,000.
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
        members: u64,
        /// Bytes of each value.
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
        value_bytes: u64,
    },
}

fn main() -> Result<()> {
    match Options::parse().what {
        Command::Hits { traces, only, seeds } => say(&hits::run(&traces, &only, seeds)?),
        Command::Work { traces, only, seeds, threads, cache: kind, segment, item } => {
            let (segment_bytes, item_bytes) = ((segment << 10) as usize, item as usize);
            let how = RunSettings { threads: threads as usize, kind, segment_bytes, item_bytes };
            say(&work::run(&traces, &only, seeds, how)?)?;
            say(&format!("Items with values of 100 bytes in a MiB: {}", work::items(how)?))
        }
        Command::Soak { mixes, memory, seconds, operations, seed } => {
            let elapsed = Length::Elapsed(Duration::from_secs(seconds));
            let length = operations.map_or(elapsed, Length::Operations);
            let mixes = if mixes.is_empty() { Mix::ALL.to_vec() } else { mixes };
            say(
                "| values | -m in MiB | operations | verified | refused | resident, % of -m | items, % of -m | \
                 collected in haste | no free segment | MiB before and after deletes; expiry; flush |\n\
                 |---|---|---|---|---|---|---|---|---|---|",
            )?;
            for mebibytes in memory {
                for &mix in &mixes {
                    let found = soak::run(mix, (mebibytes << 20) as usize, length, seed)?;
                    let mut line = format!(
                        "| {} | {mebibytes} | {} | {} | {} | {:.1} | {:.1} | {} | {} |",
                        mix.name(),
                        found.operations,
                        found.verified,
                        found.refused,
                        found.resident_percent,
                        found.items_percent,
                        found.stats.collected_in_haste,
                        found.stats.no_free_segment
                    );
                    for (before, after) in found.released {
                        write!(line, " {:.1} {:.1};", mib(before), mib(after))?;
                    }
                    say(&(line + " |"))?;
                }
            }
            Ok(())
        }
        Command::Stalls { mixes, memory } => {
            let mixes = if mixes.is_empty() { stalls::MIXES.to_vec() } else { mixes };
            memory.iter().try_for_each(|mebibytes| say(&stalls::run((mebibytes << 20) as usize, &mixes)?))
        }
        Command::Trees { members, value_bytes } => say(&trees::run(members, value_bytes as usize)?),
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of this machine's memory")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn say(text: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}
