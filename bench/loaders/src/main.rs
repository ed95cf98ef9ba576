//! The cost of a value that a loader of the server computes: CPU and system calls for the whole way of a get
//! that misses, from the client's line to its reply, compared with the parts: the pool alone with the same
//! worker, and a get that hits.
//!
//! Each round measures all of them one after the other; the table has the medians of the rounds. Hits of
//! other keys are timed beside the loads, and beside a foreign process that burns as much CPU as the loads
//! took in all processes.

mod alone;
mod clients;
mod processes;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cattlegrid_load::harness::{Server, Start};
use cattlegrid_server::time::Clock;
use clap::Parser;

use alone::LonePool;
use processes::{Trace, cpu, descendants};

/// Measures what values cost that a loader computes.
#[derive(Debug, Parser)]
struct Options {
    /// The server's program.
    #[arg(long, value_name = "PATH", default_value = "target/fast/cattlegrid")]
    server: PathBuf,
    /// Jobs of a measurement, 100 to 1000000.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    jobs: u32,
    /// Rounds, 1 to 100.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Burns CPU: this share of a core for these milliseconds, and ends.
    #[arg(long, num_args = 2, hide = true)]
    burn: Option<Vec<f64>>,
}

/// Jobs of a call.
const BATCHES: [usize; 2] = [1, 16];
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pages.py");
/// A key that is always there.
const HIT: &str = "hit:0";

/// The measured figures, in the order of the table; a number for each round.
#[derive(Debug, Default)]
struct Figures {
    /// CPU of a get that hits, in microseconds.
    get_us: Vec<f64>,
    /// For each of [`BATCHES`].
    of: [BatchFigures; 2],
}

#[derive(Debug, Default)]
struct BatchFigures {
    /// CPU of a job of the pool alone: of the pool, of its worker.
    alone_us: Vec<f64>,
    alone_worker_us: Vec<f64>,
    /// CPU of a job of the whole way: of the server, of its processes.
    server_us: Vec<f64>,
    worker_us: Vec<f64>,
    ratio: Vec<f64>,
    jobs_a_second: Vec<f64>,
    /// p99 of hits beside the loads, beside a foreign process.
    hit_loads_us: Vec<f64>,
    hit_foreign_us: Vec<f64>,
    hit_ratio: Vec<f64>,
}

fn main() -> Result<()> {
    cattlegrid_panic::install();
    let options = Options::parse();
    if let Some([share, millis]) = options.burn.as_deref() {
        burn(*share, Duration::from_secs_f64(millis / 1e3));
        return Ok(());
    }
    let count = options.jobs as usize;
    let mut figures = Figures::default();
    let plain = start(&options.server, "")?;
    clients::store_all(plain.address(), "hit:", count)?;
    let alone =
        [LonePool::start(Path::new(PROGRAM), BATCHES[0])?, LonePool::start(Path::new(PROGRAM), BATCHES[1])?];
    let servers = [start(&options.server, &rules(BATCHES[0]))?, start(&options.server, &rules(BATCHES[1]))?];
    for server in &servers {
        clients::store_all(server.address(), "hit:", 1)?;
    }
    for round in 0..=options.rounds {
        // The first one warms up.
        let keep = round > 0;
        let before = cpu(&[plain.pid()])?;
        clients::get_all(plain.address(), "hit:", count)?;
        let get_us = each_us(cpu(&[plain.pid()])?.saturating_sub(before), count);
        if keep {
            figures.get_us.push(get_us);
        }
        for ((alone, server), of) in alone.iter().zip(&servers).zip(&mut figures.of) {
            let [pool, worker] = [[std::process::id()], [alone.worker]];
            let before = [cpu(&pool)?, cpu(&worker)?];
            alone.run(count);
            let alone_us = each_us(cpu(&pool)?.saturating_sub(before[0]), count);
            let alone_worker_us = each_us(cpu(&worker)?.saturating_sub(before[1]), count);
            let way = whole_way(server, &format!("page:{round}-"), count)?;
            if keep {
                of.alone_us.push(alone_us);
                of.alone_worker_us.push(alone_worker_us);
                of.server_us.push(each_us(way.server, count));
                of.worker_us.push(each_us(way.workers, count));
                of.ratio
                    .push(each_us(way.server + way.workers, count) / (alone_us + alone_worker_us + get_us));
                of.jobs_a_second.push(f64::from(options.jobs) / way.took.as_secs_f64());
            }
            let (loads_us, foreign_us) = hits(server, &format!("page:h{round}-"), count)?;
            if keep {
                of.hit_loads_us.push(loads_us);
                of.hit_foreign_us.push(foreign_us);
                of.hit_ratio.push(loads_us / foreign_us);
            }
        }
    }
    print(&options, figures)?;
    calls(&servers, &alone, count.min(5000))?;
    alone.into_iter().for_each(LonePool::end);
    servers.into_iter().for_each(Server::stop);
    plain.stop();
    Ok(())
}

fn rules(batch: usize) -> String {
    let word = if batch > 1 { ", \"batch\"" } else { "" };
    format!(
        "[[rule]]\nmatch = \"page:{{id}}\"\nloader = \"pages\"\nhold = \"30s\"\n\
         [loader.pages]\ncommand = [\"python3\", {PROGRAM:?}{word}]\nmax = 1\nidle = 1\nload = 2\nbatch = {batch}\n"
    )
}

fn start(program: &Path, rules: &str) -> Result<Server> {
    let program = program.canonicalize().with_context(|| format!("{}: build it first", program.display()))?;
    let words = ["-p", "-1", "-m", "256"];
    let rules = Some(rules).filter(|rules| !rules.is_empty());
    Ok(Server::start(&Start { rules, ..Start::new(&program, &words) })?)
}

/// CPU and time of `count` gets that miss.
struct LoadCost {
    server: Duration,
    workers: Duration,
    took: Duration,
}

fn whole_way(server: &Server, prefix: &str, count: usize) -> Result<LoadCost> {
    let workers = descendants(server.pid())?;
    let jobs = jobs(server)?;
    let (clock, before) = (Clock::new(), [cpu(&[server.pid()])?, cpu(&workers)?]);
    let begun = clock.now();
    clients::get_all(server.address(), prefix, count)?;
    let took = clock.now().duration_since(begun);
    let [server_cpu, workers_cpu] = [cpu(&[server.pid()])?, cpu(&workers)?];
    let way = LoadCost {
        server: server_cpu.saturating_sub(before[0]),
        workers: workers_cpu.saturating_sub(before[1]),
        took,
    };
    let jobs = self::jobs(server)? - jobs;
    // A few are computed twice: keys share entries of the fence, and then a value counts as too late.
    if !(count as u64..=count as u64 + count as u64 / 500 + 1).contains(&jobs) {
        let mut lines = server.connect()?.stats("loaders")?;
        lines.extend(server.connect()?.stats("rules")?);
        lines.retain(|(_, number)| number != "0");
        bail!("{jobs} jobs for {count} keys: {lines:?}");
    }
    Ok(way)
}

fn jobs(server: &Server) -> Result<u64> {
    let lines = server.connect()?.stats("loaders")?;
    let jobs = lines.iter().find(|(name, _)| name == "pages:jobs").context("stats loaders has no jobs")?;
    Ok(jobs.1.parse()?)
}

/// p99 of hits in microseconds: beside loads, and beside a foreign process that burns the same CPU for the
/// same time.
fn hits(server: &Server, prefix: &str, count: usize) -> Result<(f64, f64)> {
    let mut all = descendants(server.pid())?;
    all.extend([server.pid(), std::process::id()]);
    let before = cpu(&all)?;
    let (loads_us, took) = beside(server, || clients::get_all(server.address(), prefix, count))?;
    let used = cpu(&all)?.saturating_sub(before);
    let (foreign_us, _) = beside(server, || {
        let share = used.as_secs_f64() / took.as_secs_f64();
        let burners = share.ceil().max(1.0);
        let program = std::env::current_exe()?;
        let burner = |_| -> Result<Child> {
            let [share, millis] =
                [share / burners, took.as_secs_f64() * 1e3].map(|number| number.to_string());
            Ok(Command::new(&program).args(["--burn", &share, &millis]).spawn()?)
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few cores")]
        let children = (0..burners as u32).map(burner).collect::<Result<Vec<_>>>()?;
        for mut child in children {
            child.wait()?;
        }
        Ok(())
    })?;
    Ok((loads_us, foreign_us))
}

/// p99 of hits while something runs, and how long that took.
fn beside(server: &Server, run: impl FnOnce() -> Result<()>) -> Result<(f64, Duration)> {
    let (clock, stop) = (Clock::new(), AtomicBool::new(false));
    let begun = clock.now();
    let times = thread::scope(|scope| {
        let measuring = scope.spawn(|| clients::measure_hits(server.address(), HIT, &stop));
        let ran = run();
        stop.store(true, Ordering::Relaxed);
        let times = measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ran.and(times)
    })?;
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^52")]
    let p99_us = times.value_at_quantile(0.99) as f64 / 1e3;
    Ok((p99_us, clock.now().duration_since(begun)))
}

/// Uses this share of a core, 0 to 1.
fn burn(share: f64, time: Duration) {
    let clock = Clock::new();
    let begun = clock.now();
    while let now = clock.now()
        && now.duration_since(begun) < time
    {
        let busy = SLICE.mul_f64(share.clamp(0.0, 1.0));
        while clock.now().duration_since(now) < busy {
            std::hint::spin_loop();
        }
        if busy < SLICE {
            thread::park_timeout(SLICE.saturating_sub(busy));
        }
    }
}

const SLICE: Duration = Duration::from_millis(2);

/// Counts the system calls of all processes by strace, if it is there.
fn calls(servers: &[Server; 2], alone: &[LonePool; 2], count: usize) -> Result<()> {
    let table = std::env::temp_dir().join(format!("cattlegrid-calls-{}", std::process::id()));
    let mut out = std::io::stdout().lock();
    for ((server, alone), batch) in servers.iter().zip(alone).zip(BATCHES) {
        let workers = descendants(server.pid())?;
        for (name, pids) in [("server", vec![server.pid()]), ("worker", workers)] {
            let Some(trace) = Trace::attach(&pids, &table)? else {
                writeln!(out, "system calls: strace is missing, or may not attach")?;
                return Ok(());
            };
            clients::get_all(server.address(), &format!("page:{name}-"), count)?;
            say(&mut out, &format!("batch {batch}, {name}"), &trace.end()?, count)?;
        }
        if let Some(trace) = Trace::attach(&[alone.worker], &table)? {
            alone.run(count);
            say(&mut out, &format!("batch {batch}, worker of the pool alone"), &trace.end()?, count)?;
        }
    }
    std::fs::remove_file(&table)?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
fn say(out: &mut impl std::io::Write, what: &str, calls: &[(String, u64)], count: usize) -> Result<()> {
    let each = |calls: u64| calls as f64 / count as f64;
    let sum = calls.iter().map(|(_, calls)| calls).sum();
    let names = calls.iter().take(4).map(|(name, calls)| format!("{name} {:.2}", each(*calls)));
    let names = names.collect::<Vec<_>>().join(", ");
    writeln!(out, "system calls a job, {what}: {:.2} ({names})", each(sum))?;
    Ok(())
}

fn print(options: &Options, figures: Figures) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let (jobs, rounds) = (options.jobs, options.rounds);
    writeln!(out, "{jobs} jobs, 64 connections, load 2, one worker, medians of {rounds} rounds\n")?;
    let get_us = median(figures.get_us);
    writeln!(out, "a get that hits: {get_us:.1} us of CPU\n")?;
    out.write_all(HEAD.as_bytes())?;
    for (of, batch) in figures.of.into_iter().zip(BATCHES) {
        let ratios = spread(&of.ratio);
        let [alone, alone_worker] = [of.alone_us, of.alone_worker_us].map(median);
        let [server, worker] = [of.server_us, of.worker_us].map(median);
        let [rate, loads, foreign] = [of.jobs_a_second, of.hit_loads_us, of.hit_foreign_us].map(median);
        let hit_ratios = spread(&of.hit_ratio);
        writeln!(
            out,
            "| {batch} | {alone:.1} + {alone_worker:.1} | {server:.1} + {worker:.1} | {ratios} | {rate:.0} | {loads:.0}, {foreign:.0} | {hit_ratios} |"
        )?;
    }
    writeln!(out)?;
    Ok(())
}

const HEAD: &str = "\
| batch | pool + worker alone, us a job | server + worker, us a job | ratio to pool and get | jobs a second | p99 of hits beside loads, beside foreign CPU, us | ratio |
|---|---|---|---|---|---|---|
";

/// The median, the least and the largest.
fn spread(numbers: &[f64]) -> String {
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = numbers.iter().copied().fold(0.0, f64::max);
    format!("{:.2} ({least:.2} to {largest:.2})", median(numbers.to_vec()))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^52")]
fn each_us(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}
