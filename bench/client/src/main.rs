//! Gets of `cattlegrid-client` compared with those of the crates `async-memcached` and `memcache`, from one
//! memcached.
//!
//! Every way gets the same value, at depth 1 and from 64 tasks or threads at once. In each round all ways are
//! measured, one after the other; the table has medians and quartiles of the rounds, and the rate of each way
//! divided by that of the client it is compared with in the same round. CPU is that of this process alone:
//! user and system time of all threads.

mod ways;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use cattlegrid_load::harness::{Server, Start};
use clap::Parser;
use nix::sys::resource::{UsageWho, getrusage};

use ways::Way;

/// Measures gets of several clients, from a memcached that it starts.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Gets of one caller in a round; 64 callers get four times as many, all together. 100 to 10000000.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    gets: u64,
    /// Callers at once; can be given several times. 1 to 1000.
    #[arg(long, value_name = "N", default_values_t = [1, 64], value_parser = clap::value_parser!(u64).range(1..=1000))]
    callers: Vec<u64>,
    /// Only ways whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// The server.
    #[arg(long, value_name = "PROGRAM", default_value = "memcached")]
    server: PathBuf,
    /// The number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
}

/// The cost of one way in a round.
#[derive(Debug, Clone, Copy)]
struct Sample {
    gets_a_second: f64,
    cpu_us: f64,
}

fn main() -> Result<()> {
    cattlegrid_panic::install();
    let options = Options::parse();
    let threads = options.threads.to_string();
    let words = ["-p", "-1", "-l", "127.0.0.1", "-u", "root", "-t", &threads, "-c", "1024"];
    let server = Server::start(&Start::new(&options.server, &words))?;
    ways::store(server.address())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{HEAD}")?;
    for callers in &options.callers {
        let callers = usize::try_from(*callers)?;
        let gets = if callers == 1 { options.gets } else { options.gets * 4 };
        let all: Vec<Way> = Way::all().into_iter().filter(|way| way.name().contains(&options.only)).collect();
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); all.len()];
        for _ in 0..options.rounds {
            for (way, samples) in all.iter().zip(&mut samples) {
                samples.push(measure(*way, server.address(), callers, gets)?);
            }
        }
        for (way, own) in all.iter().zip(&samples) {
            let base =
                all.iter().position(|other| *other == way.rival()).and_then(|place| samples.get(place));
            writeln!(out, "{}", row(*way, callers, own, base.map_or(&[], Vec::as_slice)))?;
        }
    }
    Ok(())
}

const HEAD: &str = "\
| callers | client | gets a second | CPU of a get, µs | gets a second, ratio | CPU, ratio | compared with |
|---|---|---|---|---|---|---|";

/// One way's gets, after some that are not measured.
fn measure(way: Way, address: &str, callers: usize, gets: u64) -> Result<Sample> {
    let mut run = way.prepare(address, callers)?;
    run(gets / 20 / callers as u64 + 1)?;
    let each = gets / callers as u64;
    let (start, before) = (ways::now(), cpu()?);
    run(each)?;
    let (took, used) = (start.elapsed(), cpu()?.saturating_sub(before));
    let done = each * callers as u64;
    if took.is_zero() {
        return Err(anyhow!("no time has passed"));
    }
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
    let done = done as f64;
    Ok(Sample { gets_a_second: done / took.as_secs_f64(), cpu_us: used.as_secs_f64() * 1e6 / done })
}

/// User and system time of this process.
fn cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let all = [usage.user_time(), usage.system_time()];
    let micros: i64 = all.iter().map(|time| time.tv_sec() * 1_000_000 + time.tv_usec()).sum();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

fn row(way: Way, callers: usize, own: &[Sample], base: &[Sample]) -> String {
    let rates: Vec<f64> = own.iter().map(|sample| sample.gets_a_second).collect();
    let cpu: Vec<f64> = own.iter().map(|sample| sample.cpu_us).collect();
    let ratio = |value: fn(&Sample) -> f64| {
        let pairs: Vec<f64> = own.iter().zip(base).map(|(own, base)| value(own) / value(base)).collect();
        quartiles(pairs)
    };
    let (rate, cpu) = (quartiles(rates), quartiles(cpu));
    let compared = if way.rival() == way || base.is_empty() {
        "| | |".to_owned()
    } else {
        let (rates, cpus) = (ratio(|sample| sample.gets_a_second), ratio(|sample| sample.cpu_us));
        format!(
            "{:.2} ({:.2} to {:.2}) | {:.2} ({:.2} to {:.2}) | {} |",
            rates[1],
            rates[0],
            rates[2],
            cpus[1],
            cpus[0],
            cpus[2],
            way.rival().name()
        )
    };
    format!(
        "| {callers} | {} | {:.0} ({:.0} to {:.0}) | {:.1} ({:.1} to {:.1}) | {compared}",
        way.name(),
        rate[1],
        rate[0],
        rate[2],
        cpu[1],
        cpu[0],
        cpu[2]
    )
}

/// First quartile, median, third quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| {
        values
            .get((values.len() * quarter / 4).min(values.len().saturating_sub(1)))
            .copied()
            .unwrap_or(f64::NAN)
    })
}
