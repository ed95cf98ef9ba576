//! Pools that share a budget of worker processes: never more than that exist, counted by the system's list of
//! processes, and no pool waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::common::*;
use cattlegrid_pool::{Budget, Builder, Error, Launch, Pool};
use rustix::process::Signal;

/// Live processes with this word in their environment: templates, our own children, and all others.
fn processes(word: &str, is_template: bool) -> (Vec<u32>, Vec<u32>) {
    let (mut templates, mut workers) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let word = format!("BUDGET={word}");
        if !environ.split(|byte| *byte == 0).any(|part| part == word.as_bytes()) || !is_alive(pid) {
            continue;
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if is_template && parent == Some(std::process::id()) {
            templates.push(pid)
        } else {
            workers.push(pid)
        }
    }
    (templates, workers)
}

/// Counts worker processes until it is asked for the most that there were at a time.
struct Watch {
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
    thread: JoinHandle<usize>,
}

impl Watch {
    fn new(word: &'static str, is_template: bool) -> Self {
        let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, looked) = (Arc::clone(&stop), Arc::clone(&looks));
        let thread = std::thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(Ordering::SeqCst) {
                most = most.max(processes(word, is_template).1.len());
                looked.fetch_add(1, Ordering::SeqCst);
            }
            most
        });
        Self { stop, looks, thread }
    }

    /// Whether the measurement has counted enough times since it began.
    fn is_effective(&self) -> bool {
        self.looks.load(Ordering::SeqCst) > 3
    }

    fn most(self) -> usize {
        assert!(self.is_effective(), "{:?} looks", self.looks);
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn sharing(launch: Launch, budget: &Budget) -> Builder {
    quiet(launch).within(budget).max(8).load(1).start(ms(0)).kill_grace(ms(500))
}

/// Jobs without end: as many at a time as `open`, until the flag is set.
fn endless(pool: &Pool, open: usize, stop: &Arc<AtomicBool>, done: &Arc<AtomicUsize>) {
    fn next(pool: &Pool, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) {
        let inner = pool.clone();
        pool.submit(["sleep", "2", ""], move |_| {
            done.fetch_add(1, Ordering::SeqCst);
            if !stop.load(Ordering::SeqCst) {
                next(&inner, stop, done);
            }
        });
    }
    for _ in 0..open {
        next(pool, Arc::clone(stop), Arc::clone(done));
    }
}

#[test]
fn hundreds_of_jobs_in_two_pools_have_four_workers() {
    for (word, is_template) in [("jobs-t", true), ("jobs-e", false)] {
        let launch = || if is_template { template() } else { exec() };
        let budget = Budget::new(4);
        let watch = Watch::new(word, is_template);
        // Workers are recycled all the time: one counts until it is gone.
        let pools: Vec<Pool> = (0..2)
            .map(|_| {
                let builder = sharing(launch().env("BUDGET", word), &budget).max_jobs(5).stop(ms(50));
                builder.spawn().wait().unwrap()
            })
            .collect();
        let calls: Vec<_> = (0..400).map(|n| pools[n % 2].call(["sleep", "2", "x"])).collect();
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "x"));
        for pool in &pools {
            let stats = pool.stats();
            assert_eq!((stats.completed, stats.lost, stats.crashed), (200, 0, 0));
            assert!(stats.spawned > 10 && stats.no_room > 0, "{stats:?}");
        }
        eventually("all have left", || budget.used() == 0);
        pools.iter().for_each(|pool| pool.shutdown().wait());
        let most = watch.most();
        assert!((2..=4).contains(&most), "{word}: {most} workers at a time");
    }
}

/// A pool that has all places and jobs without end gives up half of them, and gets them back.
#[test]
fn a_pool_that_waits_gets_its_share_and_later_all() {
    let budget = Budget::new(4);
    let word = "share";
    let build = || sharing(template().env("BUDGET", word), &budget).stop(ms(100)).spawn().wait().unwrap();
    let first = build();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    endless(&first, 20, &stop, &done);
    eventually("it has all", || first.stats().busy == 4);
    let watch = Watch::new(word, true);
    let second = build();
    let (stop_second, done_second) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    endless(&second, 20, &stop_second, &done_second);
    eventually("each has two", || (first.stats().workers, second.stats().workers) == (2, 2));
    let before = (done.load(Ordering::SeqCst), done_second.load(Ordering::SeqCst));
    eventually("both work", || {
        done.load(Ordering::SeqCst) > before.0 + 20 && done_second.load(Ordering::SeqCst) > before.1 + 20
    });
    stop.store(true, Ordering::SeqCst);
    eventually("the second one has all", || second.stats().workers == 4);
    eventually("the first one wants none", || {
        (first.stats().workers, first.stats().waiting_for_room) == (0, 0)
    });
    stop_second.store(true, Ordering::SeqCst);
    assert_eq!(first.call(["echo", "x"]).wait().unwrap().text(), "x");
    [first, second].iter().for_each(|pool| pool.shutdown().wait());
    assert_eq!(budget.used(), 0);
    let most = watch.most();
    assert!(most <= 4, "{most} workers at a time");
}

/// More pools than places, all with jobs without end: they take turns.
#[test]
fn three_pools_share_one_place() {
    let budget = Budget::new(1);
    let stop = Arc::new(AtomicBool::new(false));
    let watch = Watch::new("turns", true);
    let pools: Vec<_> = (0..3)
        .map(|_| {
            let launch = template().env("BUDGET", "turns");
            let pool = sharing(launch, &budget).probe(false).start_timeout(PATIENCE).spawn().wait().unwrap();
            let done = Arc::new(AtomicUsize::new(0));
            endless(&pool, 3, &stop, &done);
            (pool, done)
        })
        .collect();
    for round in 1..=2 {
        let least = || pools.iter().map(|(_, done)| done.load(Ordering::SeqCst)).min().unwrap();
        let before = least();
        eventually("each has had a turn", || least() > before + 3 * round);
    }
    stop.store(true, Ordering::SeqCst);
    pools.iter().for_each(|(pool, _)| pool.shutdown().wait());
    assert!(pools.iter().all(|(pool, _)| pool.stats().start_failed == 0));
    assert_eq!(watch.most(), 1);
}

/// Workers of a template that was killed give their places back, to either pool.
#[test]
fn workers_that_die_with_their_template_give_their_places_back() {
    let word = "template-dies";
    let budget = Budget::new(4);
    let watch = Watch::new(word, true);
    let builder = || sharing(template().env("BUDGET", word), &budget).crash_loop(1_000, ms(1));
    let pools = [builder().spawn().wait().unwrap(), builder().spawn().wait().unwrap()];
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    pools.iter().for_each(|pool| endless(pool, 20, &stop, &done));
    for round in 0..6 {
        eventually("all places are used", || pools.iter().map(|pool| pool.stats().workers).sum::<u64>() == 4);
        let templates = processes(word, true).0;
        kill(templates[round % templates.len()], Signal::KILL);
        let before = done.load(Ordering::SeqCst);
        eventually("it is noticed", || {
            pools.iter().map(|pool| pool.stats().templates_lost).sum::<u64>() == round as u64 + 1
        });
        eventually("jobs are done", || done.load(Ordering::SeqCst) > before + 50);
    }
    stop.store(true, Ordering::SeqCst);
    pools.iter().for_each(|pool| pool.shutdown().wait());
    assert_eq!(budget.used(), 0);
    let most = watch.most();
    assert!(most <= 4, "{most} workers at a time");
}

/// The first worker of a pool waits for room like any other; not longer than `start_timeout`.
#[test]
fn the_first_worker_waits_for_room() {
    // A template must be ready in this time, too.
    for (launch, limit) in [(template as fn() -> Launch, ms(3_000)), (exec, ms(300))] {
        let budget = Budget::new(1);
        let first = sharing(launch(), &budget).spawn().wait().unwrap();
        let gate = Gate::new("first-waits");
        let long = first.call(["gate", gate.path()]);
        eventually("it has the place", || first.stats().in_flight == 1);
        let start = now();
        let error = sharing(launch(), &budget).start_timeout(limit).spawn().wait().unwrap_err();
        assert!(start.elapsed() >= limit);
        assert!(
            matches!(&error, Error::StartFailed { reason, .. } if reason.contains("budget of 1")),
            "{error}"
        );
        assert_eq!(budget.used(), 1);
        let second = sharing(launch(), &budget).spawn();
        let unprobed = sharing(launch(), &budget).probe(false).spawn().wait().unwrap();
        gate.open();
        assert_eq!(long.wait().unwrap().text(), "open");
        let second = second.wait().unwrap();
        assert_eq!(second.call(["echo", "x"]).wait().unwrap().text(), "x");
        assert_eq!(unprobed.call(["echo", "y"]).wait().unwrap().text(), "y");
        assert!(budget.used() <= 1);
        [first, second, unprobed].iter().for_each(|pool| pool.shutdown().wait());
        assert_eq!(budget.used(), 0);
    }
}

/// A reload of a pool that has all places itself, and of one whose places others have.
#[test]
fn a_reload_stays_within_the_budget() {
    for processes in [1, 2] {
        let budget = Budget::new(processes);
        let word = ["", "reload-1", "reload-2"][processes];
        let watch = Watch::new(word, true);
        let launch = || template().env("BUDGET", word);
        let pools: Vec<Pool> = (0..2)
            .map(|_| sharing(launch(), &budget).idle(1).probe(false).spawn())
            .map(|pool| pool.wait().unwrap())
            .collect();
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        pools.iter().for_each(|pool| endless(pool, 5, &stop, &done));
        for pool in &pools {
            pool.reload(launch()).wait().unwrap();
        }
        eventually("they were counted", || watch.is_effective());
        stop.store(true, Ordering::SeqCst);
        pools.iter().for_each(|pool| pool.shutdown().wait());
        assert_eq!(pools.iter().map(|pool| pool.stats().lost).sum::<u64>(), 0);
        assert!(watch.most() <= processes);
    }
}

/// Spares hold no place until they become workers.
#[test]
fn spares_do_not_count() {
    let budget = Budget::new(1);
    let pool = sharing(template().env("BUDGET", "spares"), &budget).spare(3).spawn().wait().unwrap();
    eventually("they are there", || processes("spares", true).1.len() == 4);
    assert_eq!(budget.used(), 1);
    let calls: Vec<_> = (0..20).map(|_| pool.call(["sleep", "1", "x"])).collect();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "x"));
    assert_eq!((budget.used(), pool.stats().workers), (1, 1));
    pool.shutdown().wait();
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_pool_without_max_starts_nothing_and_keeps_nobody() {
    for spare in [0, 2] {
        let pool = quiet(template().env("BUDGET", "max-0"))
            .max(3)
            .idle(2)
            .load(2)
            .spare(spare)
            .start_timeout(ms(3_000));
        let pool = pool.spawn().wait().unwrap();
        pool.ready(2).wait().unwrap();
        let gate = Gate::new("max-0");
        let long = pool.call(["gate", gate.path()]);
        eventually("one is busy", || pool.stats().busy == 1);
        pool.resize(0, 0);
        eventually("the idle one leaves", || pool.stats().exited >= 1 && pool.stats().workers == 0);
        let waits = pool.call(["echo", "x"]);
        assert!(matches!(pool.ready(1).wait(), Err(Error::InvalidOption(_))));
        pause(ms(100));
        gate.open();
        assert_eq!(long.wait().unwrap().text(), "open", "it is finished");
        let error = waits.wait().unwrap_err();
        assert!(matches!(&error, Error::StartFailed { reason, .. } if reason == "max is 0"), "{error}");
        eventually("no worker is left", || processes("max-0", true).1.is_empty());
        let spawned = pool.stats().spawned;
        let waits = pool.call(["echo", "x"]);
        pause(ms(100));
        assert_eq!(pool.stats().spawned, spawned);
        pool.resize(0, 1);
        assert_eq!(waits.wait().unwrap().text(), "x");
        pool.resize(0, 0);
        eventually("it has left", || processes("max-0", true).1.is_empty());
        pool.shutdown().wait();
    }
}
