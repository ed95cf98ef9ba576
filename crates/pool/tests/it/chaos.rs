//! All kinds of harm at once: kills of workers and template, hangs, SIGSTOP, retirements, reloads, floods.
//!
//! Several pools at once in one process that has 512 MiB in use: forked and exec'ed workers, workers that
//! take batches, one pool with a fresh process for each job, one with the longest durations possible. Runs
//! for a minute; `CHAOS_SECONDS=600` for ten, `SEED=n` for the same harm again. Each job has one outcome;
//! there are never more processes than `max`; descriptors, zombies and memory do not grow.
//!
//! And for a quarter of that time, programs whose pool logs to a standard error that is closed, full or slow.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::*;
use cattlegrid_pool::{Builder, Error, Pool, Stats};
use rustix::process::Signal;

#[test]
fn one_outcome_for_each_job_whatever_happens() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed: u64 =
        std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(std::process::id().into());
    eprintln!("SEED={seed}");
    // A large parent must not make its workers slower or larger.
    let mut ballast = vec![0_u8; 512 << 20];
    ballast.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let pools = scenes(seed);
    let mut before = None;
    run_all(&pools, seconds() / 2);
    for round in 0..2 {
        // A shorter second run: it must leave no more behind than the first.
        run_all(&pools, seconds() / 4);
        if round == 0 {
            before = Some(Footprint::take());
        }
    }
    let (before, after) = (before.unwrap(), Footprint::take());
    eprintln!("{before:?} {after:?}");
    assert!(after.fds <= before.fds + 12, "{before:?} {after:?}");
    eventually("no zombie is left", || Footprint::take().zombies == 0);
    assert!(after.rss_kib < before.rss_kib + 16 * 1024, "{before:?} {after:?}");
    pools.into_iter().for_each(Scene::end);
    assert!(children(std::process::id()).is_empty());
    assert!(ballast.iter().step_by(4096).all(|byte| *byte == 1));
}

/// The pools that are harmed at the same time.
fn scenes(seed: u64) -> [Scene; 5] {
    let plain = |launch| {
        quiet(launch)
            .max(MAX)
            .idle(1)
            .load(3)
            .start(ms(5))
            .stop(ms(200))
            .kill_grace(ms(100))
            .job_timeout(ms(2_000))
            .start_timeout(ms(10_000))
            .shutdown_grace(ms(2_000))
            .crash_loop(50, ms(1_000))
    };
    [
        Scene::new("forked", seed, plain(template()).max_jobs(50)),
        Scene::new(
            "a process for each job",
            seed,
            plain(template()).load(1).max_jobs(1).max_jobs_jitter(0.0),
        ),
        Scene::new("exec'ed", seed, plain(exec()).max_jobs(20).max_rss(1 << 30)),
        Scene {
            fixture: IN_BATCHES,
            ..Scene::new(
                "in batches",
                seed,
                plain(template().env("FIXTURE", IN_BATCHES)).batch(8).max_jobs(50),
            )
        },
        // Here only the jobs' own timeouts and the grace end anything.
        Scene::new(
            "for ever",
            seed,
            quiet(template())
                .max(MAX)
                .load(2)
                .start(ms(0))
                .stop(Duration::MAX)
                .ageing(Duration::MAX)
                .kill_grace(ms(100))
                .start_timeout(Duration::MAX)
                .shutdown_grace(Duration::MAX)
                .ping(Duration::MAX)
                .max_age(Duration::MAX)
                .crash_loop(50, Duration::MAX),
        ),
    ]
}

/// Harms all pools at once, and waits until they are small again.
fn run_all(pools: &[Scene], seconds: u64) {
    std::thread::scope(|scope| {
        let runs: Vec<_> = pools.iter().map(|scene| scope.spawn(|| scene.run(seconds))).collect();
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
    pools.iter().for_each(Scene::settle);
}

/// Programs whose pool logs without callbacks, one for each kind of standard error, again and again.
#[test]
fn standard_errors_that_are_not_read_delay_no_job() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let end = now() + ms(seconds() * 250);
    let run = |kind: usize| {
        let mut child = Command::new(fixture())
            .env("FIXTURE", "talker")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take();
        match kind {
            0 => drop(stderr.take()),
            1 => {}
            _ => {
                let mut slow = stderr.take().unwrap();
                std::thread::spawn(move || {
                    let mut chunk = [0; 700];
                    while slow.read(&mut chunk).is_ok_and(|count| count > 0) {
                        pause(ms(10));
                    }
                });
            }
        }
        let start = now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("a program with standard error of kind {kind} hangs");
            }
            pause(ms(5));
        }
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "32 1 1\n", "kind {kind}");
    };
    while now() < end {
        (0..3).for_each(run);
    }
}

/// Both tests count or kill the children of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// Most workers of each pool, until a resize changes it.
const MAX: usize = 4;

fn seconds() -> u64 {
    std::env::var("CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// A pool and the counts of its jobs.
struct Scene {
    name: &'static str,
    pool: Pool,
    counts: Arc<Counts>,
    seed: u64,
    /// The program that a reload brings.
    fixture: &'static str,
}

/// A kind of the fixture.
const IN_BATCHES: &str = "work-in-batches";

impl Scene {
    fn new(name: &'static str, seed: u64, builder: Builder) -> Self {
        let seed = seed.wrapping_mul(31).wrapping_add(name.len() as u64) | 1;
        Self { name, pool: builder.spawn().wait().unwrap(), counts: Arc::default(), seed, fixture: "" }
    }

    /// Submits jobs and does harm for some time; on a loaded machine longer, until every kind has happened.
    fn run(&self, seconds: u64) {
        let (pool, counts) = (&self.pool, &self.counts);
        let mut random = Random(self.seed);
        let start = now();
        let mut next_deed = ms(20);
        let enough = |stats: &Stats| stats.completed > 100 && stats.lost > 0 && stats.killed > 0;
        while start.elapsed() < ms(seconds * 1000)
            || (!enough(&pool.stats()) && start.elapsed() < ms(seconds * 1000) + PATIENCE)
        {
            for _ in 0..random.below(8) {
                submit(pool, counts, &mut random);
            }
            while counts.open() > 100 {
                pause(ms(1));
            }
            if start.elapsed() > next_deed {
                next_deed = start.elapsed() + ms(5 + random.below(60));
                do_harm(pool, self.fixture, &mut random);
            }
            let stats = pool.stats();
            // One more while a reload starts its first worker; and the counters are read one by one.
            let most = MAX as u64 + 3;
            assert!(stats.workers + stats.starting <= most, "{}: {stats:?}", self.name);
            pause(ms(1));
        }
        assert!(enough(&pool.stats()), "{}: {:?}", self.name, pool.stats());
    }

    fn settle(&self) {
        settle(&self.pool, &self.counts);
        let (stats, counts) = (self.pool.stats(), &self.counts);
        assert_eq!(counts.twice.load(Ordering::SeqCst), 0, "{}: an outcome came twice", self.name);
        assert_eq!(counts.wrong.load(Ordering::SeqCst), 0, "{}: a reply of another job", self.name);
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
        assert_eq!(ended.iter().sum::<u64>(), stats.submitted, "{}: {stats:?}", self.name);
    }

    fn end(self) {
        eprintln!("{}: {:?}", self.name, self.pool.stats());
        self.pool.shutdown().wait();
    }
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

fn do_harm(pool: &Pool, fixture: &str, random: &mut Random) {
    let workers = pool.workers().wait();
    let victim = (!workers.is_empty()).then(|| workers[random.below(workers.len() as u64) as usize]);
    let own: Vec<u32> = children(std::process::id()).into_iter().map(|(pid, _)| pid).collect();
    let template = (!own.is_empty()).then(|| own[random.below(own.len() as u64) as usize]);
    match (random.below(20), victim) {
        (0, _) => {
            // A reload may fail because the last one is under way or the template was just killed.
            pool.reload(template_with(random).env("FIXTURE", fixture)).wait().ok();
        }
        // A template or guardian of any pool, or an exec'ed worker.
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
    // A pool that never stops idle workers has to be told, each of them.
    pool.resize(0, MAX);
    patiently("all workers are gone", pool, counts, || {
        for worker in pool.workers().wait() {
            // A worker that is stopped and gets no job any more ends by the grace of its retirement.
            pool.retire(worker.number).wait();
        }
        let stats = pool.stats();
        stats.workers == 0 && stats.exited == stats.spawned
    });
    pool.resize(1, MAX);
    pool.ready(1).wait().unwrap();
}

/// Waits as [`eventually`] does. Its panic prints the statistics and counts.
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
