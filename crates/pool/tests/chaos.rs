//! Everything at once: kills of workers and template, hangs, SIGSTOP, retires, reloads, floods.
//!
//! Runs for a minute; `CHAOS_SECONDS=600` for ten, `SEED=n` for the same deeds again. One outcome for each job;
//! descriptors, zombies and memory flat.
#![allow(
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::similar_names,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "tests read better so"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_pool::{Error, Pool, Stats};
use common::*;
use rustix::process::Signal;

#[test]
fn one_outcome_for_each_job_whatever_happens() {
    let seconds: u64 = std::env::var("CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let seed: u64 =
        std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(std::process::id().into());
    eprintln!("SEED={seed}");
    let mut random = Random(seed | 1);
    let pool = quiet(template())
        .max(4)
        .idle(1)
        .load(3)
        .start(ms(5))
        .stop(ms(200))
        .kill_grace(ms(100))
        .job_timeout(ms(2_000))
        .start_timeout(ms(10_000))
        .shutdown_grace(ms(2_000))
        .max_jobs(50)
        .crash_loop(50, ms(1_000))
        .spawn()
        .wait()
        .unwrap();
    let counts = Arc::new(Counts::default());
    let start = now();
    let mut measured = None;
    let mut next_deed = ms(20);
    let enough = |stats: &Stats| stats.completed > 100 && stats.lost > 0 && stats.redispatched > 0;
    // On a loaded machine, or when all workers are stopped, it takes longer until everything has happened.
    while start.elapsed() < ms(seconds * 1000)
        || (!enough(&pool.stats()) && start.elapsed() < ms(seconds * 1000) + PATIENCE)
    {
        for _ in 0..random.below(8) {
            submit(&pool, &counts, &mut random);
        }
        while counts.open() > 200 {
            pause(ms(1));
        }
        if start.elapsed() > next_deed {
            next_deed = start.elapsed() + ms(5 + random.below(60));
            do_harm(&pool, &mut random);
        }
        pause(ms(1));
        if measured.is_none() && start.elapsed() > ms(seconds * 250) {
            settle(&pool, &counts);
            measured = Some(Footprint::take());
        }
    }
    settle(&pool, &counts);
    let (before, after) = (measured.unwrap(), Footprint::take());
    let stats = pool.stats();
    eprintln!("{before:?} {after:?}\n{stats:?}");
    assert_eq!(counts.twice.load(Ordering::SeqCst), 0, "an outcome came twice");
    assert_eq!(counts.wrong.load(Ordering::SeqCst), 0, "a reply of another job");
    let ended = [
        stats.completed,
        stats.worker_errors,
        stats.rejected,
        stats.timeouts,
        stats.cancelled,
        stats.lost,
        stats.start_failed,
        stats.too_large,
        stats.shut_down,
    ];
    assert_eq!(ended.iter().sum::<u64>(), stats.submitted);
    assert!(enough(&stats), "{stats:?}");
    assert!(after.fds <= before.fds + 12, "{before:?} {after:?}");
    assert_eq!(after.zombies, 0);
    assert!(after.rss_kib < before.rss_kib + 16 * 1024, "{before:?} {after:?}");
    pool.shutdown().wait();
    assert!(children(std::process::id()).is_empty());
}

fn submit(pool: &Pool, counts: &Arc<Counts>, random: &mut Random) {
    let n = counts.submitted.fetch_add(1, Ordering::SeqCst).to_string();
    let args: Vec<&str> = match random.below(100) {
        0 => vec!["die", "kill"],
        1 => vec!["die", "exit"],
        2 => vec!["hang", "spin"],
        3 => vec!["hang", "stopped"],
        4 => vec!["retire"],
        5 => vec!["panic"],
        6 => vec!["flood", "300000"],
        7 => vec!["grandchild", "then-die"],
        8..20 => vec!["sleep", "20", &n],
        _ => vec!["echo", &n],
    };
    let timeout = if args[0] == "hang" { ms(100) } else { ms(5_000) };
    let checked = args[0] == "echo";
    let job = pool.job(args).timeout(timeout);
    if random.below(50) == 0 {
        // A caller that goes away.
        drop(job.call());
        counts.ended.fetch_add(1, Ordering::SeqCst);
        return;
    }
    let counts = Arc::clone(counts);
    let mut done = false;
    job.submit(move |outcome| {
        if std::mem::replace(&mut done, true) {
            counts.twice.fetch_add(1, Ordering::SeqCst);
        }
        match outcome {
            Ok(reply) if checked && reply.text() != n => drop(counts.wrong.fetch_add(1, Ordering::SeqCst)),
            Err(Error::Shutdown) => drop(counts.wrong.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
        counts.ended.fetch_add(1, Ordering::SeqCst);
    });
}

fn do_harm(pool: &Pool, random: &mut Random) {
    let workers = pool.workers().wait();
    let victim = (!workers.is_empty()).then(|| workers[random.below(workers.len() as u64) as usize]);
    let template = children(std::process::id()).into_iter().map(|(pid, _)| pid).next();
    match (random.below(20), victim) {
        (0, _) => {
            // A reload may fail because the last one is under way or the template was just killed.
            pool.reload(template_with(random)).wait().ok();
        }
        (1, _) => {
            if let Some(pid) = template {
                signal(pid, Signal::KILL);
            }
        }
        (2..6, Some(worker)) => signal(worker.pid, Signal::STOP),
        (6..9, Some(worker)) => drop(pool.retire(worker.number).wait()),
        (9, _) => pool.resize(random.below(3) as usize, 1 + random.below(5) as usize),
        (10..17, Some(worker)) => signal(worker.pid, Signal::KILL),
        _ => {}
    }
}

fn template_with(random: &mut Random) -> cattlegrid_pool::Launch {
    template().env("GENERATION", random.below(1000).to_string())
}

/// The victim may be gone already.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
        rustix::process::kill_process(pid, signal).ok();
    }
}

/// All jobs have ended, and the pool is small again: workers that are stopped were found and killed.
fn settle(pool: &Pool, counts: &Counts) {
    patiently("all jobs have ended", pool, counts, || counts.open() == 0);
    pool.resize(0, 4);
    patiently("all workers are gone", pool, counts, || {
        let stats = pool.stats();
        stats.workers == 0 && stats.exited == stats.spawned
    });
    pool.resize(1, 4);
    pool.ready(1).wait().unwrap();
}

/// As [`eventually`]; a panic says all that is known.
fn patiently(what: &str, pool: &Pool, counts: &Counts, mut done: impl FnMut() -> bool) {
    let start = now();
    while !done() {
        if start.elapsed() > PATIENCE {
            let (workers, stats) = (pool.workers().wait(), pool.stats());
            let processes: Vec<_> = children(std::process::id())
                .into_iter()
                .map(|(pid, state)| (pid, state, children(pid)))
                .collect();
            panic!(
                "waited too long: {what}\n{} jobs open\nready workers {workers:?}\n{stats:?}\n\
                 children with state and their children {processes:?}",
                counts.open()
            );
        }
        pause(ms(5));
    }
}

#[derive(Default)]
struct Counts {
    submitted: AtomicU64,
    ended: AtomicU64,
    twice: AtomicU64,
    wrong: AtomicU64,
}

impl Counts {
    fn open(&self) -> u64 {
        self.submitted.load(Ordering::SeqCst) - self.ended.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Footprint {
    fds: usize,
    zombies: usize,
    rss_kib: u64,
}

impl Footprint {
    fn take() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib = line.trim().trim_end_matches("kB").trim().parse().unwrap();
        let zombies = children(std::process::id()).iter().filter(|(_, state)| *state == 'Z').count();
        Self { fds: cattlegrid_worker::sys::open_fds().unwrap().len(), zombies, rss_kib }
    }
}

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
