//! Jobs that are submitted together, withdrawn and raised: order, outcomes, and what workers notice of it.

use std::sync::mpsc;

use crate::common::*;
use cattlegrid_pool::{Error, JobHandle, JobSpec, Launch, Outcome, Pool, Priority, QueuePolicy, Retry};
use rustix::process::Signal;

/// Outcomes of jobs, each with the job's number.
struct Outcomes {
    sender: mpsc::Sender<(usize, Outcome)>,
    receiver: mpsc::Receiver<(usize, Outcome)>,
}

impl Outcomes {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver }
    }

    fn job(&self, number: usize, args: &[&str]) -> JobSpec {
        let sender = self.sender.clone();
        JobSpec::new(args.to_vec(), move |outcome| drop(sender.send((number, outcome))))
    }

    fn next(&self) -> (usize, Outcome) {
        self.receiver.recv_timeout(PATIENCE).unwrap()
    }

    fn take(&self, count: usize) -> Vec<(usize, Outcome)> {
        (0..count).map(|_| self.next()).collect()
    }

    /// That no job has had a second outcome.
    fn end(self) {
        drop(self.sender);
        assert_eq!(self.receiver.iter().count(), 0);
    }
}

fn numbers(outcomes: &[(usize, Outcome)]) -> Vec<usize> {
    outcomes.iter().map(|(number, _)| *number).collect()
}

/// Submits `jobs` one after the other behind a job that does not end, at one worker.
fn behind(pool: &Pool, outcomes: &Outcomes, gate: &Gate, jobs: Vec<JobSpec>) -> Vec<JobHandle> {
    let mut handles = pool.submit_all(vec![outcomes.job(0, &["gate", gate.path()])]);
    eventually("it is in the long job", || pool.stats().in_flight == 1);
    handles.extend(pool.submit_all(jobs));
    handles
}

/// If they were sent one by one, the least urgent one, which is the first, would be begun first.
#[test]
fn no_job_is_sent_before_all_are_queued() {
    let pool = quiet(template()).max(1).load(1).spawn().wait().unwrap();
    let outcomes = Outcomes::new();
    let classes = [Priority::Low, Priority::Normal, Priority::High];
    for _ in 0..200 {
        let jobs = classes.iter().enumerate();
        let jobs = jobs.map(|(number, class)| outcomes.job(number, &["echo", "x"]).priority(*class));
        let handles = pool.submit_all(jobs.collect());
        assert_eq!(handles.len(), 3);
        assert_eq!(numbers(&outcomes.take(3)), [2, 1, 0]);
    }
    assert!(pool.submit_all(Vec::new()).is_empty());
    pool.shutdown().wait();
    outcomes.end();
}

#[test]
fn a_job_has_the_options_of_its_spec() {
    let pool = quiet(template()).max(2).load(1).job_timeout(ms(3_000)).kill_grace(ms(50));
    let pool = pool.retries(Retry::times(1)).spawn().wait().unwrap();
    let outcomes = Outcomes::new();
    pool.submit_all(vec![
        outcomes.job(0, &["deadline"]),
        outcomes.job(1, &["sleep", "3500", "long"]).timeout(PATIENCE),
        outcomes.job(2, &["sleep", "3600000", ""]),
        outcomes.job(3, &["die-first", "x"]).timeout(PATIENCE).idempotent(true).tag(9),
    ]);
    let mut ended = outcomes.take(4);
    ended.sort_by_key(|(number, _)| *number);
    assert_eq!(ended[1].1.as_ref().unwrap().text(), "long");
    assert!(matches!(ended[2].1, Err(Error::Timeout { .. })));
    assert!(ended[3].1.is_ok(), "{:?}", ended[3].1);
    assert!(matches!(&ended[0].1, Ok(reply) if reply.text() == "some"), "{:?}", ended[0].1);
    pool.shutdown().wait();
    outcomes.end();
}

#[test]
fn a_queued_job_is_withdrawn_and_a_begun_one_is_not() {
    let pool = quiet(template()).max(1).load(1).kill_grace(ms(20)).spawn().wait().unwrap();
    let (gate, mark) = (Gate::new("withdraw-queued"), scratch("withdraw-begun"));
    let outcomes = Outcomes::new();
    let mut jobs = vec![outcomes.job(0, &["begin", mark.to_str().unwrap(), gate.path()])];
    jobs.extend((1..4).map(|number| outcomes.job(number, &["echo", "x"])));
    let handles = pool.submit_all(jobs);
    eventually("the first is begun", || mark.exists());
    handles[2].withdraw();
    handles[2].withdraw();
    assert_eq!(outcomes.next(), (2, Err(Error::Cancelled)));
    handles[0].withdraw();
    // Many times the grace after which a cancelled job would cost its worker.
    pause(ms(200));
    assert_eq!(pool.stats().in_flight, 1);
    gate.open();
    std::fs::remove_file(&mark).unwrap();
    let ended = outcomes.take(3);
    assert_eq!(numbers(&ended), [0, 1, 3]);
    assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{ended:?}");
    handles.iter().for_each(JobHandle::withdraw);
    handles.iter().for_each(|handle| handle.raise(Priority::High));
    assert_eq!(pool.call(["echo", "x"]).wait().unwrap().text(), "x");
    let stats = pool.stats();
    assert_eq!((stats.killed, stats.cancelled, stats.completed, stats.exited), (0, 1, 4, 0));
    pool.shutdown().wait();
    handles.iter().for_each(JobHandle::withdraw);
    outcomes.end();
}

/// The worker may end the job early, or not; it is not killed.
#[test]
fn a_begun_job_that_is_abandoned_is_told_to_its_worker() {
    for launch in [template(), exec()] {
        let pool = quiet(launch).max(1).load(1).kill_grace(ms(20)).spawn().wait().unwrap();
        let (gate, mark) = (Gate::new("abandon"), scratch("abandon-mark"));
        let outcomes = Outcomes::new();
        let handles = pool.submit_all(vec![outcomes.job(0, &["until-cancelled", mark.to_str().unwrap()])]);
        eventually("it is begun", || mark.exists());
        handles[0].withdraw();
        pause(ms(100));
        assert_eq!(pool.stats().in_flight, 1, "nothing was told");
        handles[0].abandon();
        handles[0].abandon();
        assert_eq!(outcomes.next(), (0, Err(Error::Cancelled)), "it ends with an error of its own");
        assert_eq!(std::fs::read_to_string(&mark).unwrap(), "cancelled");
        std::fs::remove_file(&mark).unwrap();
        // It may go on as long as it likes.
        let begin = ["begin", mark.to_str().unwrap(), gate.path()];
        let handles = pool.submit_all(vec![outcomes.job(1, &begin), outcomes.job(2, &["echo", "x"])]);
        eventually("it is begun", || mark.exists());
        handles[0].abandon();
        handles[1].abandon();
        assert_eq!(outcomes.next(), (2, Err(Error::Cancelled)), "it was in the queue");
        pause(ms(200));
        gate.open();
        assert!(matches!(outcomes.next(), (1, Ok(_))));
        let stats = pool.stats();
        assert_eq!((stats.killed, stats.exited, stats.protocol_errors, stats.cancelled), (0, 0, 0, 2));
        std::fs::remove_file(&mark).unwrap();
        pool.shutdown().wait();
        outcomes.end();
    }
}

/// At a worker that claims its jobs: it never begins a withdrawn one, and is neither told nor killed.
#[test]
fn a_job_that_its_worker_has_not_begun_is_withdrawn() {
    for launch in [template(), exec(), python("app"), python_exec("app")] {
        let pool = quiet(launch).max(1).load(8).kill_grace(ms(20)).spawn().wait().unwrap();
        let (gate, mark) = (Gate::new("withdraw-sent"), scratch("withdraw-mark"));
        let outcomes = Outcomes::new();
        let names = ["1", "2", "3", "4"];
        let jobs = names.iter().zip(1..);
        let jobs = jobs.map(|(name, at)| outcomes.job(at, &["mark", mark.to_str().unwrap(), name, "0"]));
        let handles = behind(&pool, &outcomes, &gate, jobs.collect());
        eventually("all lie there", || pool.stats().in_flight == 5);
        for number in [3, 2] {
            handles[number].withdraw();
            assert_eq!(outcomes.next(), (number, Err(Error::Cancelled)));
        }
        pause(ms(100));
        gate.open();
        let mut ended = outcomes.take(3);
        ended.sort_by_key(|(number, _)| *number);
        assert_eq!(numbers(&ended), [0, 1, 4]);
        assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{ended:?}");
        let text = std::fs::read_to_string(&mark).unwrap();
        let mut run: Vec<&str> = text.lines().collect();
        // What lay before a withdrawn job was taken back with it, and sent again.
        run.sort_unstable();
        assert_eq!(run, ["1", "4"]);
        eventually("the frames are gone over", || (pool.stats().idle, pool.stats().in_flight) == (1, 0));
        let stats = pool.stats();
        assert_eq!((stats.killed, stats.exited, stats.in_flight, stats.protocol_errors), (0, 0, 0, 0));
        assert_eq!((stats.cancelled, stats.completed), (2, 3));
        std::fs::remove_file(&mark).unwrap();
        pool.shutdown().wait();
        outcomes.end();
    }
}

/// A worker that does not claim: what it has been sent goes on to its end; what it had not begun when it dies
/// ends then.
#[test]
fn a_job_at_a_worker_that_does_not_claim_stays_until_the_worker_dies() {
    let launch = || exec().env("FIXTURE", "claims").env("CLAIMS", "none");
    for dies in [false, true] {
        let pool = quiet(launch()).max(1).load(3).spawn().wait().unwrap();
        let gate = Gate::new("withdraw-none");
        let outcomes = Outcomes::new();
        let handles = pool.submit_all(vec![outcomes.job(0, &[gate.path()]), outcomes.job(1, &[""])]);
        eventually("both lie there", || pool.stats().in_flight == 2);
        handles[1].withdraw();
        // Answered after the message before it.
        pool.workers().wait();
        if dies {
            kill(pool.workers().wait()[0].pid, Signal::KILL);
            eventually("it is gone", || pool.stats().exited == 1);
        }
        gate.open();
        let mut ended = outcomes.take(2);
        ended.sort_by_key(|(number, _)| *number);
        if dies {
            // If it had not begun the first one, another worker has done that.
            assert!(matches!(ended[0].1, Ok(_) | Err(Error::WorkerLost { .. })), "{ended:?}");
            assert_eq!(ended[1].1, Err(Error::Cancelled));
        } else {
            assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{ended:?}");
        }
        pool.shutdown().wait();
        outcomes.end();
    }
}

/// A withdrawn job that was begun is lost with its worker: it is not begun again.
#[test]
fn a_withdrawn_job_is_not_begun_again() {
    let pool = quiet(template()).max(1).load(1).retries(Retry::times(5)).spawn().wait().unwrap();
    let (gate, mark) = (Gate::new("withdraw-retry"), scratch("withdraw-retry-begun"));
    let outcomes = Outcomes::new();
    let job = outcomes.job(0, &["begin", mark.to_str().unwrap(), gate.path()]).idempotent(true);
    let handles = pool.submit_all(vec![job]);
    eventually("it is begun", || mark.exists());
    let pid = pool.workers().wait()[0].pid;
    handles[0].withdraw();
    // Answered after the message before it.
    pool.workers().wait();
    kill(pid, Signal::KILL);
    let (_, outcome) = outcomes.next();
    assert!(matches!(outcome, Err(Error::WorkerLost { .. })), "{outcome:?}");
    assert_eq!(pool.stats().retried, 0);
    std::fs::remove_file(&mark).unwrap();
    pool.shutdown().wait();
    outcomes.end();
}

#[test]
fn a_raised_job_goes_before_those_of_the_class_it_leaves() {
    let pool = quiet(template()).max(1).load(1).ageing(PATIENCE).spawn().wait().unwrap();
    let gate = Gate::new("raise");
    let outcomes = Outcomes::new();
    let job = |number, class| outcomes.job(number, &["echo", "x"]).priority(class);
    let jobs = vec![
        job(1, Priority::Low),
        job(2, Priority::Low),
        job(3, Priority::Low),
        job(4, Priority::High),
        job(5, Priority::Normal),
    ];
    let handles = behind(&pool, &outcomes, &gate, jobs);
    handles[3].raise(Priority::High);
    handles[3].raise(Priority::High);
    handles[2].raise(Priority::Normal);
    handles[2].raise(Priority::Low);
    handles[4].raise(Priority::Normal);
    handles[0].raise(Priority::High);
    eventually("they are where they belong", || {
        let stats = pool.stats();
        (stats.queued_high, stats.queued_normal, stats.queued_low) == (2, 2, 1)
    });
    gate.open();
    let order = numbers(&outcomes.take(6));
    // Submitted in the same moment, a raised job goes behind those that were there.
    assert_eq!(order, [0, 4, 3, 5, 2, 1]);
    pool.shutdown().wait();
    outcomes.end();
}

/// The limits of the queue, at the edge: one worker that holds one job, which is busy or free.
#[test]
fn jobs_beyond_the_limit_are_refused_one_by_one() {
    for (policy, limit, busy, refused) in [
        (QueuePolicy::Reject, 3, true, vec![4, 5]),
        (QueuePolicy::Reject, 3, false, vec![5]),
        (QueuePolicy::Reject, 0, true, vec![1, 2, 3, 4, 5]),
        (QueuePolicy::Reject, 0, false, vec![2, 3, 4, 5]),
        (QueuePolicy::DropOldest, 3, true, vec![1, 2]),
        (QueuePolicy::DropOldest, 3, false, vec![2]),
        (QueuePolicy::Wait, 1, true, vec![]),
        (QueuePolicy::Wait, 0, false, vec![]),
    ] {
        let pool = quiet(template()).max(1).load(1).queue_limit(limit).queue_policy(policy);
        let pool = pool.spawn().wait().unwrap();
        pool.ready(1).wait().unwrap();
        let gate = Gate::new("submission-limit");
        let outcomes = Outcomes::new();
        let jobs = || (1..6).map(|number| outcomes.job(number, &["gate", gate.path()])).collect();
        let mut accepted = 5;
        if busy {
            behind(&pool, &outcomes, &gate, jobs());
            accepted += 1;
        } else {
            pool.submit_all(jobs());
        }
        let mut ended = outcomes.take(refused.len());
        ended.sort_by_key(|(number, _)| *number);
        let what = format!("{policy:?} {limit} {busy}");
        assert_eq!(numbers(&ended), refused, "{what}");
        assert!(ended.iter().all(|(_, outcome)| *outcome == Err(Error::Rejected)), "{what}");
        gate.open();
        accepted -= refused.len();
        let ended = outcomes.take(accepted);
        assert!(ended.is_sorted_by_key(|(number, _)| *number), "{what}: {:?}", numbers(&ended));
        assert!(ended.iter().all(|(_, outcome)| outcome.is_ok()), "{what}");
        assert_eq!(pool.stats().rejected, refused.len() as u64, "{what}");
        pool.shutdown().wait();
        outcomes.end();
    }
}

#[test]
fn a_held_job_is_withdrawn_and_raised() {
    let pool = quiet(template()).max(1).load(1).queue_limit(1).queue_policy(QueuePolicy::Wait);
    let pool = pool.ageing(PATIENCE).spawn().wait().unwrap();
    let gate = Gate::new("held");
    let outcomes = Outcomes::new();
    let jobs = (1..5).map(|number| outcomes.job(number, &["echo", "x"]).priority(Priority::Low)).collect();
    let handles = behind(&pool, &outcomes, &gate, jobs);
    eventually("three are held", || pool.stats().held == 3);
    handles[3].withdraw();
    handles[4].raise(Priority::High);
    assert_eq!(outcomes.next(), (3, Err(Error::Cancelled)));
    gate.open();
    assert_eq!(numbers(&outcomes.take(4)), [0, 1, 2, 4]);
    pool.shutdown().wait();
    outcomes.end();
}

#[test]
fn jobs_that_are_refused_at_once_have_their_outcomes() {
    let pool = quiet(template()).max(1).max_frame(1024).spawn().wait().unwrap();
    let outcomes = Outcomes::new();
    let long = "x".repeat(1024);
    let handles = pool.submit_all(vec![
        outcomes.job(0, &["echo", &long]),
        outcomes.job(1, &["echo", "x"]),
        outcomes.job(2, &["echo", &long]),
    ]);
    handles.iter().for_each(JobHandle::withdraw);
    let mut ended = outcomes.take(3);
    ended.sort_by_key(|(number, _)| *number);
    for number in [0, 2] {
        assert!(matches!(ended[number].1, Err(Error::TooLarge { max: 1008, .. })), "{ended:?}");
    }
    assert!(matches!(ended[1].1, Ok(_) | Err(Error::Cancelled)), "{ended:?}");
    let ending = pool.shutdown();
    let handles = pool.submit_all(vec![outcomes.job(0, &["echo", "x"]), outcomes.job(1, &["echo", "x"])]);
    assert_eq!(outcomes.take(2), [(0, Err(Error::Shutdown)), (1, Err(Error::Shutdown))]);
    ending.wait();
    handles.iter().for_each(JobHandle::withdraw);
    outcomes.end();
}

/// A callback that panics costs no other job its outcome.
#[test]
fn a_panic_in_one_callback_leaves_the_others() {
    let pool = quiet(template()).max(1).queue_limit(0).load(1).spawn().wait().unwrap();
    let outcomes = Outcomes::new();
    let bad = || JobSpec::new(["echo", "x"], |_| panic!("as told"));
    pool.submit_all(vec![outcomes.job(0, &["echo", "x"]), bad(), bad(), outcomes.job(1, &["echo", "x"])]);
    assert_eq!(outcomes.take(2).len(), 2);
    pool.shutdown().wait();
    outcomes.end();
}

/// Everything at once, with workers that are killed: each job has one outcome, and the counters add up.
#[test]
fn every_job_has_one_outcome_whatever_is_done_with_its_handle() {
    let launches: [fn() -> Launch; 2] = [template, || python("app")];
    for launch in launches {
        let pool = quiet(launch()).max(3).idle(3).load(4).job_timeout(PATIENCE).kill_grace(ms(100));
        let pool = pool.retries(Retry::times(2)).crash_loop(1_000, ms(1)).spawn().wait().unwrap();
        let outcomes = Outcomes::new();
        let (waves, jobs) = (60, 20);
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for wave in 0..waves {
            let specs = (0..jobs).map(|at| {
                let class = [Priority::High, Priority::Normal, Priority::Low][random(3) as usize];
                let time = random(4).to_string();
                let job = outcomes.job(wave * jobs + at, &["sleep", &time, "x"]).priority(class);
                job.idempotent(random(2) == 0)
            });
            let specs = specs.collect();
            let handles = pool.submit_all(specs);
            for handle in &handles {
                match random(4) {
                    0 => handle.withdraw(),
                    1 => handle.raise(Priority::High),
                    2 => {
                        handle.raise(Priority::Normal);
                        handle.withdraw();
                        handle.withdraw();
                    }
                    _ => {}
                }
            }
            if wave % 10 == 5
                && let Some(worker) = pool.workers().wait().first()
                && let Some(pid) = rustix::process::Pid::from_raw(worker.pid.cast_signed())
            {
                // The one that was killed before may not be reaped yet, or be gone.
                rustix::process::kill_process(pid, Signal::KILL).ok();
            }
        }
        let mut ended = numbers(&outcomes.take(waves * jobs));
        ended.sort_unstable();
        assert_eq!(ended, (0..waves * jobs).collect::<Vec<_>>());
        let stats = pool.stats();
        assert_eq!(stats.completed + stats.cancelled + stats.lost, (waves * jobs) as u64, "{stats:?}");
        assert!(stats.cancelled > 0 && stats.completed > 0);
        pool.shutdown().wait();
        assert_eq!((pool.stats().in_flight, pool.stats().protocol_errors), (0, 0));
        outcomes.end();
    }
}
