//! Jobs that wait at a worker behind a long job: another, idle worker gets them, and each is run once.

use std::sync::mpsc;

use crate::common::*;
use cattlegrid_pool::{Builder, Call, Error, Launch, Pool};
use rustix::process::Signal;

/// A pool of one worker which is in a long job and has others behind it.
struct Scene {
    pool: Pool,
    gate: Gate,
    /// Number of the worker.
    first: u64,
    long: Call,
    behind: Vec<Call>,
}

impl Scene {
    fn new(name: &str, builder: Builder, behind: &[&[&str]]) -> Self {
        // No worker is killed for being slow.
        let pool = builder.max(1).idle(1).load(1 + behind.len()).kill_grace(PATIENCE).spawn().wait().unwrap();
        let (gate, mark) = (Gate::new(name), scratch(&format!("{name}-begun")));
        let first = pool.workers().wait()[0].number;
        let long = pool.call(["begin", mark.to_str().unwrap(), gate.path()]);
        eventually("it is in the long job", || mark.exists());
        std::fs::remove_file(mark).unwrap();
        let job = |args: &&[&str]| pool.job(args.to_vec()).timeout(PATIENCE).call();
        let behind: Vec<Call> = behind.iter().map(job).collect();
        eventually("all lie there", || pool.stats().in_flight == 1 + behind.len() as u64);
        assert_eq!(pool.stats().taken_back, 0, "there is no other worker that could do them");
        Self { pool, gate, first, long, behind }
    }

    /// Starts another worker, which is idle.
    fn add_worker(&self) {
        self.pool.resize(2, 2);
        self.pool.ready(2).wait().unwrap();
    }

    fn other(&self) -> u32 {
        let workers = self.pool.workers().wait();
        workers.iter().find(|worker| worker.number != self.first).unwrap().pid
    }

    /// The long job ends and the worker has gone over all that was taken from it.
    fn end(self) {
        self.gate.open();
        assert_eq!(self.long.wait().unwrap().text(), "open");
        let pool = &self.pool;
        eventually("all have come to rest", || {
            let stats = pool.stats();
            stats.idle == stats.workers && stats.in_flight == 0
        });
        assert_eq!(pool.stats().protocol_errors, 0);
        self.pool.shutdown().wait();
    }
}

/// One job that does not end and seven short ones, at four workers that hold two each.
#[test]
fn a_short_job_does_not_wait_behind_a_long_one() {
    for launch in [template(), exec(), python("app"), python_exec("app")] {
        let pool = quiet(launch).max(4).idle(4).load(2).kill_grace(ms(100)).spawn().wait().unwrap();
        pool.ready(4).wait().unwrap();
        let (sender, outcomes) = mpsc::channel();
        let inner = pool.clone();
        // On the pool's thread: they come in together, and one of the short ones gets behind the long one.
        pool.submit(["echo", ""], move |_| {
            inner.job(["sleep", "3600000", ""]).timeout(PATIENCE * 2).submit(|_| {});
            for n in 0..7 {
                let sender = sender.clone();
                let job = inner.job(["sleep".to_owned(), "10".into(), n.to_string()]).timeout(PATIENCE);
                job.submit(move |outcome| drop(sender.send(outcome.map(|reply| reply.text()))));
            }
        });
        let mut done: Vec<_> = outcomes.iter().map(Result::unwrap).collect();
        done.sort();
        assert_eq!(done, ["0", "1", "2", "3", "4", "5", "6"]);
        eventually("the long one alone is left", || pool.stats().in_flight == 1);
        let stats = pool.stats();
        assert!(stats.taken_back >= 1);
        assert_eq!((stats.lost, stats.redispatched), (0, 0));
        pool.shutdown_now().wait();
    }
}

/// With the defaults, and at once with `start` 0: a worker is started for a job that waits behind a long one.
#[test]
fn a_job_behind_a_long_one_gets_a_worker_of_its_own() {
    for launch in [template(), exec()] {
        for start in [None, Some(ms(0))] {
            let builder = quiet(launch.clone());
            let pool = start.into_iter().fold(builder, Builder::start).spawn().wait().unwrap();
            let gate = Gate::new("of-its-own");
            let marks: Vec<_> = (0..4).map(|n| scratch(&format!("of-its-own-{n}"))).collect();
            let jobs: Vec<Call> = marks
                .iter()
                .map(|mark| {
                    let call = pool.call(["begin", mark.to_str().unwrap(), gate.path()]);
                    eventually("it is begun, whatever the others do", || mark.exists());
                    call
                })
                .collect();
            // It is counted when the pool's turn ends.
            eventually("each has a worker", || pool.stats().busy == 4);
            gate.open();
            for (job, mark) in jobs.into_iter().zip(marks) {
                assert_eq!(job.wait().unwrap().text(), "open");
                std::fs::remove_file(mark).unwrap();
            }
            pool.shutdown().wait();
        }
    }
}

/// Jobs behind as many as an asynchronous worker does at the same time.
#[test]
fn jobs_beyond_the_concurrency_of_a_worker_are_taken_back() {
    for (launch, wait) in
        [(template().env("FIXTURE", "async"), "sleep"), (python_async("tasks:work", 8), "wait")]
    {
        let pool = quiet(launch).max(1).load(12).kill_grace(ms(100)).spawn().wait().unwrap();
        let mark = scratch("concurrency");
        let mut long: Vec<Call> = (0..7).map(|_| pool.call([wait, "3600000", ""])).collect();
        long.push(pool.call(["until-cancelled", mark.to_str().unwrap()]));
        // Jobs begin in order: when the last one has begun, all have.
        eventually("all have begun", || mark.exists());
        std::fs::remove_file(mark).unwrap();
        let short: Vec<Call> =
            (0..4).map(|_| pool.job([wait, "1", "done"]).timeout(PATIENCE).call()).collect();
        eventually("all lie there", || pool.stats().in_flight == 12);
        pool.resize(2, 2);
        for call in short {
            assert_eq!(call.wait().unwrap().text(), "done");
        }
        eventually("the long ones are left", || pool.stats().in_flight == 8);
        assert_eq!(pool.stats().taken_back, 4);
        drop(long);
        pool.shutdown_now().wait();
    }
}

/// A worker in a long job is not given one job after the other that is then taken from it.
#[test]
fn what_was_taken_back_counts_against_its_worker_until_it_is_skipped() {
    let scene = Scene::new("counts", quiet(template()), &[&["echo", "x"]]);
    scene.add_worker();
    let pool = &scene.pool;
    eventually("it is done elsewhere", || pool.stats().completed == 1);
    // More than the other worker holds at a time.
    let calls: Vec<Call> = (0..300).map(|_| pool.call(["echo", "x"])).collect();
    calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().text(), "x"));
    assert_eq!(pool.stats().taken_back, 1);
    let jobs = pool.workers().wait().iter().map(|worker| worker.jobs).sum::<usize>();
    assert_eq!(jobs, 1, "the long one");
    eventually("the long one is left", || pool.stats().in_flight == 1);
    scene.end();
}

#[test]
fn jobs_whose_callers_have_gone_are_sent_to_no_worker() {
    let mut scene = Scene::new("gone", quiet(template()), &[&["echo", "0"], &["pid"], &["echo", "2"]]);
    drop(scene.behind.remove(1));
    eventually("it is cancelled", || scene.pool.stats().cancelled == 1);
    scene.add_worker();
    for (call, text) in scene.behind.drain(..).zip(["0", "2"]) {
        assert_eq!(call.wait().unwrap().text(), text);
    }
    assert_eq!((scene.pool.stats().taken_back, scene.pool.stats().killed), (2, 0));
    scene.end();
}

#[test]
fn a_job_that_was_taken_back_is_cancelled_where_it_is_now() {
    let mark = scratch("cancelled-there");
    let mut scene = Scene::new("cancel", quiet(template()), &[&["until-cancelled", mark.to_str().unwrap()]]);
    scene.add_worker();
    let read = || std::fs::read_to_string(&mark).unwrap_or_default();
    eventually("it runs", || read() == "running");
    scene.behind.clear();
    eventually("it was told", || read() == "cancelled");
    assert_eq!(scene.pool.stats().cancelled, 1);
    std::fs::remove_file(&mark).ok();
    scene.end();
}

#[test]
fn a_job_that_was_taken_back_has_the_time_it_had() {
    let pool = quiet(template()).max(1).load(2).kill_grace(ms(100)).spawn().wait().unwrap();
    let gate = Gate::new("time-2");
    let long = pool.call(["gate", gate.path()]);
    let behind = pool.job(["gate", gate.path()]).timeout(ms(4_000)).call();
    eventually("both lie there", || pool.stats().in_flight == 2);
    pool.resize(2, 2);
    eventually("it was taken back", || pool.stats().taken_back == 1);
    assert!(matches!(behind.wait(), Err(Error::Timeout { .. })));
    gate.open();
    assert_eq!(long.wait().unwrap().text(), "open");
    assert_eq!(pool.stats().timeouts, 1);
    pool.shutdown().wait();
}

/// A job whose caller was told that it had not begun does not begin later; nor does a job without a caller.
#[test]
fn a_job_whose_time_was_up_before_it_began_is_not_run() {
    for launch in [template(), exec(), python("app"), python_exec("app")] {
        let pool = quiet(launch).max(1).load(16).kill_grace(PATIENCE).spawn().wait().unwrap();
        let gate = Gate::new("not-run");
        let marks = ["timed-out", "dropped", "begun", "long-begun"].map(scratch);
        let [timed_out, dropped, begun, long_begun] = marks.each_ref().map(|mark| mark.to_str().unwrap());
        let long = pool.call(["begin", long_begun, gate.path()]);
        // Otherwise it is taken back with those behind it, and comes after them.
        eventually("it is in the long job", || marks[3].exists());
        let before = pool.call(["mark", begun, "0", "0"]);
        let late: Vec<Call> = (0..3)
            .map(|n| pool.job(["mark", timed_out, &n.to_string(), "0"]).timeout(ms(20)).call())
            .collect();
        let gone = pool.call(["mark", dropped, "0", "0"]);
        let behind = pool.call(["mark", begun, "1", "0"]);
        for call in late {
            assert_eq!(call.wait(), Err(Error::Timeout { started: false }));
        }
        drop(gone);
        eventually("it is known", || pool.stats().cancelled == 1);
        gate.open();
        for call in [long, before, behind] {
            call.wait().unwrap();
        }
        assert!(pool.call(["pid"]).wait().is_ok());
        let lines = std::fs::read_to_string(begun).unwrap();
        assert_eq!(lines.lines().count(), 2, "each of the others was run once: {lines:?}");
        assert!(!marks[0].exists() && !marks[1].exists(), "it was run");
        eventually("the frames are gone over", || (pool.stats().idle, pool.stats().in_flight) == (1, 0));
        assert_eq!((pool.stats().killed, pool.stats().protocol_errors), (0, 0));
        std::fs::remove_file(begun).unwrap();
        std::fs::remove_file(long_begun).unwrap();
        pool.shutdown().wait();
    }
}

/// The first worker dies: what was taken from it is done by the other one. Then that one: what it had begun
/// is lost.
#[test]
fn a_death_costs_the_job_that_its_worker_was_in() {
    let mark = scratch("death-there");
    let stays = ["until-cancelled", mark.to_str().unwrap()];
    let mut scene = Scene::new("death", quiet(template()), &[&["echo", "x"], &stays]);
    let first = scene.pool.workers().wait()[0].pid;
    scene.add_worker();
    let pool = &scene.pool;
    eventually("one is done, one is begun", || {
        pool.stats().completed == 1 && std::fs::read_to_string(&mark).is_ok_and(|text| text == "running")
    });
    let other = scene.other();
    kill(first, Signal::KILL);
    assert!(matches!(scene.long.wait(), Err(Error::WorkerLost { signal: Some(9), .. })));
    assert_eq!((pool.stats().lost, pool.stats().redispatched), (1, 0));
    eventually("the other one has its job", || pool.stats().in_flight == 1);
    kill(other, Signal::KILL);
    let lost = scene.behind.pop().unwrap().wait();
    assert!(matches!(lost, Err(Error::WorkerLost { signal: Some(9), .. })), "{lost:?}");
    assert_eq!((pool.stats().lost, pool.stats().redispatched), (2, 0));
    std::fs::remove_file(&mark).ok();
    assert_eq!(scene.behind.pop().unwrap().wait().unwrap().text(), "x");
    assert_eq!(pool.call(["echo", "again"]).wait().unwrap().text(), "again");
    pool.shutdown().wait();
}

/// A worker that is recycled finishes the job that it is in; the others need not wait for that.
#[test]
fn a_worker_that_retires_gives_its_jobs_away_and_leaves() {
    for by_itself in [false, true] {
        let builder = quiet(template()).max_jobs(if by_itself { 3 } else { 0 }).max_jobs_jitter(0.0);
        let mut scene = Scene::new("retires", builder, &[&["echo", "0"], &["echo", "1"]]);
        if !by_itself {
            assert!(scene.pool.retire(scene.first).wait());
        }
        scene.pool.resize(1, 2);
        for (call, text) in scene.behind.drain(..).zip(["0", "1"]) {
            assert_eq!(call.wait().unwrap().text(), text);
        }
        assert_eq!(scene.pool.stats().taken_back, 2);
        let pool = &scene.pool;
        scene.gate.open();
        assert_eq!(scene.long.wait().unwrap().text(), "open");
        eventually("it has left", || pool.stats().exited == 1);
        assert_eq!((pool.stats().retired, pool.stats().killed, pool.stats().crashed), (1, 0, 0));
        pool.shutdown().wait();
    }
}

fn by_hand(how: &str) -> Launch {
    exec().env("FIXTURE", "claims").env("CLAIMS", how)
}

/// With frames made by hand: the long job and two behind it; then another worker.
fn hand_made(how: &str, then: impl FnOnce(&Pool, &Gate, Call, Vec<Call>)) {
    let pool = quiet(by_hand(how)).max(1).load(3).kill_grace(ms(100)).spawn().wait().unwrap();
    let gate = Gate::new(&format!("by-hand-{how}"));
    let long = pool.call([gate.path()]);
    let behind = (0..2).map(|_| pool.job([""]).timeout(PATIENCE).call()).collect();
    eventually("all lie there", || pool.stats().in_flight == 3);
    pool.resize(2, 2);
    pool.ready(2).wait().unwrap();
    then(&pool, &gate, long, behind);
    pool.shutdown().wait();
}

#[test]
fn a_worker_by_the_page_of_the_protocol_is_taken_from() {
    hand_made("", |pool, gate, long, behind| {
        let others: Vec<u32> = behind.into_iter().map(|call| number(&call.wait().unwrap())).collect();
        gate.open();
        let first = number(&long.wait().unwrap());
        assert!(!others.contains(&first));
        eventually("both are idle", || pool.stats().idle == 2);
        assert_eq!((pool.stats().taken_back, pool.stats().protocol_errors), (2, 0));
    });
}

/// A worker that notes what it begins and does not claim: its jobs stay with it.
#[test]
fn nothing_is_taken_from_a_worker_that_does_not_claim() {
    hand_made("none", |pool, gate, long, behind| {
        // A hundred times as long as a job must wait there before it may be taken back.
        pause(ms(100));
        assert_eq!((pool.stats().taken_back, pool.stats().in_flight), (0, 3));
        gate.open();
        let first = number(&long.wait().unwrap());
        behind.into_iter().for_each(|call| assert_eq!(number(&call.wait().unwrap()), first));
    });
}

/// A worker that replies to jobs that were taken from it: its first reply is one too many, and each caller
/// has got one.
#[test]
fn a_reply_to_a_job_that_was_taken_back_breaks_the_protocol() {
    hand_made("begins", |pool, gate, long, behind| {
        let others: Vec<u32> = behind.into_iter().map(|call| number(&call.wait().unwrap())).collect();
        gate.open();
        assert!(!others.contains(&number(&long.wait().unwrap())));
        eventually("it is killed", || pool.stats().protocol_errors == 1);
        assert_eq!((pool.stats().completed, pool.stats().lost), (3, 0));
    });
}

#[test]
fn skipping_a_job_that_was_not_taken_back_breaks_the_protocol() {
    let pool = quiet(by_hand("skips")).max(1).load(2).spawn().wait().unwrap();
    let calls = [pool.call([""]), pool.call([""])];
    let [first, second] = calls.map(Call::wait);
    assert!(first.is_ok());
    assert!(matches!(second, Err(Error::WorkerLost { .. })), "{second:?}");
    eventually("it is killed", || pool.stats().protocol_errors == 1);
    pool.shutdown().wait();
}

/// The job had ended, but its reply was still in the worker's batch. It may have had effects, so it is lost.
#[test]
fn a_job_whose_reply_had_not_left_its_worker_is_lost_and_not_run_again() {
    let pool = quiet(by_hand("holds")).max(1).load(4).spawn().wait().unwrap();
    let ended: Vec<_> = (0..2).map(|_| pool.call(["ended"])).collect();
    let killer = pool.call(["die"]);
    for call in ended.into_iter().chain([killer]) {
        let outcome = call.wait();
        assert!(matches!(outcome, Err(Error::WorkerLost { status: Some(0), .. })), "{outcome:?}");
    }
    let stats = pool.stats();
    assert_eq!((stats.lost, stats.retried, stats.redispatched), (3, 0, 0));
    pool.shutdown_now().wait();
}

/// The same with real workers, whose replies leave in time or not: no job is run twice.
#[test]
fn no_job_before_the_one_that_kills_its_worker_is_run_twice() {
    for (launch, killer) in [(template(), &["die", "kill"][..]), (python("app"), &["kill"])] {
        let marks = scratch("marks-before-a-death");
        let pool = quiet(launch).max(1).load(16).spawn().wait().unwrap();
        for round in 0..20 {
            let mark = pool.call(["mark", marks.to_str().unwrap(), &round.to_string(), "0"]);
            let killer = pool.call(killer);
            let outcome = mark.wait();
            assert!(matches!(outcome, Ok(_) | Err(Error::WorkerLost { .. })), "{outcome:?}");
            assert!(matches!(killer.wait(), Err(Error::WorkerLost { signal: Some(9), .. })));
        }
        let run: Vec<String> = std::fs::read_to_string(&marks).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(run, (0..20).map(|round| round.to_string()).collect::<Vec<_>>());
        pool.shutdown().wait();
        std::fs::remove_file(&marks).unwrap();
    }
}

/// Bursts of jobs, each with a slow one or two, so that workers run out of work at all times.
#[test]
fn every_job_is_run_once() {
    for launch in [template(), python("app")] {
        let file = scratch("once");
        let pool = quiet(launch).max(4).idle(4).load(8).spawn().wait().unwrap();
        pool.ready(4).wait().unwrap();
        let (waves, jobs) = (60_u32, 24_u32);
        for wave in 0..waves {
            let call = |n: u32| {
                let slow = if n == wave % jobs || n == 3 { 6 } else { u64::from((wave * 7 + n * 3) % 3) };
                let id = (wave * jobs + n).to_string();
                pool.call(["mark".to_owned(), file.to_str().unwrap().to_owned(), id, slow.to_string()])
            };
            let calls: Vec<Call> = (0..jobs).map(call).collect();
            calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let mut ran: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        ran.sort_unstable();
        assert_eq!(ran, (0..waves * jobs).collect::<Vec<_>>());
        let stats = pool.stats();
        eprintln!("{} of {} were taken back", stats.taken_back, stats.submitted);
        assert!(stats.taken_back > 0);
        assert_eq!((stats.lost, stats.protocol_errors, stats.redispatched), (0, 0, 0));
        eventually("all have come to rest", || pool.stats().idle == 4);
        std::fs::remove_file(&file).unwrap();
        pool.shutdown().wait();
    }
}
