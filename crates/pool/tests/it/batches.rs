//! Batches: jobs that a worker does in one call. Each keeps its own outcome, timeout and caller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::*;
use cattlegrid_pool::{Builder, Call, Error, JobBuilder, Launch, Outcome, Pool, Priority, Retry};
use rustix::process::Signal;

fn batches() -> Launch {
    template().env("FIXTURE", "batches")
}

/// One worker that takes batches of up to 64. It is not killed for being slow.
fn one(builder: Builder) -> Pool {
    builder.max(1).idle(1).kill_grace(PATIENCE).spawn().wait().unwrap()
}

/// The same, for tests in which it is stuck and killed.
fn one_to_kill(builder: Builder) -> Pool {
    builder.max(1).idle(1).kill_grace(ms(100)).spawn().wait().unwrap()
}

/// Submits jobs on the pool's thread, so that they come in together. One job goes before them.
fn together<T: Send + 'static>(pool: &Pool, submit: impl FnOnce(&Pool) -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let inner = pool.clone();
    pool.submit(["echo", "first"], move |outcome| {
        outcome.unwrap();
        sender.send(submit(&inner)).ok();
    });
    receiver.recv_timeout(PATIENCE).unwrap()
}

/// The same for jobs without options.
fn all(pool: &Pool, jobs: &[&[&str]]) -> Vec<Call> {
    all_with(pool, jobs, |_, job| job)
}

/// The same with options by number.
fn all_with(
    pool: &Pool,
    jobs: &[&[&str]],
    options: impl for<'p> Fn(usize, JobBuilder<'p>) -> JobBuilder<'p> + Send + 'static,
) -> Vec<Call> {
    let jobs: Vec<Vec<String>> =
        jobs.iter().map(|args| args.iter().map(ToString::to_string).collect()).collect();
    together(pool, move |pool| {
        let one = |(at, args): (usize, Vec<String>)| options(at, pool.job(args).timeout(PATIENCE)).call();
        jobs.into_iter().enumerate().map(one).collect()
    })
}

/// Own argument, jobs in the batch, number of the call.
fn parts(outcome: Outcome) -> (String, usize, u64) {
    let reply = outcome.unwrap();
    let number = |at| String::from_utf8_lossy(reply.part(at)).parse::<u64>().unwrap();
    (reply.text(), number(1) as usize, number(2))
}

/// Sizes of the batches in the order of their calls. Each batch was answered whole.
fn sizes(calls: Vec<Call>) -> Vec<usize> {
    let mut batches: BTreeMap<(Vec<u8>, u64), (usize, usize)> = BTreeMap::new();
    for call in calls {
        let reply = call.wait().unwrap();
        let pid = reply.part(3).to_vec();
        let (_, size, number) = parts(Ok(reply));
        batches.entry((pid, number)).or_insert((size, 0)).1 += 1;
    }
    assert!(batches.values().all(|(size, got)| size == got), "{batches:?}");
    batches.into_values().map(|(size, _)| size).collect()
}

fn lost(outcome: &Outcome) -> bool {
    matches!(outcome, Err(Error::WorkerLost { .. }))
}

#[test]
fn jobs_that_come_together_are_one_batch() {
    let stdio = Launch::stdio::<&str>(fixture(), []).env("FIXTURE", "batches");
    for launch in [batches(), exec().env("FIXTURE", "batches"), stdio] {
        let pool = one(quiet(launch).batch(100).load(1));
        let jobs: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let jobs: Vec<[&str; 2]> = jobs.iter().map(|n| ["echo", n]).collect();
        let calls = all(&pool, &jobs.iter().map(|job| &job[..]).collect::<Vec<_>>());
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(parts(call.wait()), (n.to_string(), 50, 2));
        }
        let stats = pool.stats();
        assert_eq!((stats.batches, stats.batched, stats.completed), (2, 51, 51));
        // A job that is alone is sent at once.
        assert_eq!(parts(pool.call(["echo", "alone"]).wait()), ("alone".to_owned(), 1, 3));
        eventually("it is idle", || (pool.stats().idle, pool.stats().in_flight) == (1, 0));
        assert_eq!(pool.stats().protocol_errors, 0);
        pool.shutdown().wait();
    }
}

#[test]
fn a_batch_has_at_most_what_pool_and_worker_allow() {
    let jobs = vec![&["echo", "x"][..]; 20];
    for (of_worker, of_pool, expected) in [
        ("7", 100, vec![7, 7, 6]),
        ("100", 7, vec![7, 7, 6]),
        ("100", 10_000, vec![20]),
        ("65535", usize::MAX, vec![20]),
        ("1", 100, vec![1; 20]),
        ("0", 100, vec![1; 20]),
        ("100", 1, vec![1; 20]),
        ("100", 0, vec![1; 20]),
    ] {
        let pool = one(quiet(batches().env("BATCH", of_worker)).batch(of_pool));
        let count = expected.len() as u64;
        assert_eq!(sizes(all(&pool, &jobs)), expected, "{of_worker} {of_pool}");
        let counts = if of_pool > 1 { (1 + count, 21) } else { (0, 0) };
        assert_eq!((pool.stats().batches, pool.stats().batched), counts, "{of_worker} {of_pool}");
        pool.shutdown().wait();
    }
}

/// Workers that take no batches, of each kind, get single jobs.
#[test]
fn workers_that_take_no_batches_get_single_jobs() {
    let lines = Launch::json_lines("sh", [concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apps/lines.sh")]);
    for launch in [template(), template().env("FIXTURE", "async"), lines] {
        let pool = one(quiet(launch).batch(16).load(16).probe(true));
        let calls: Vec<Call> = together_any(&pool);
        calls.into_iter().for_each(|call| drop(call.wait()));
        let stats = pool.stats();
        assert_eq!((stats.batches, stats.batched, stats.protocol_errors), (0, 0, 0));
        assert_eq!(stats.completed + stats.worker_errors, 21, "{stats:?}");
        pool.shutdown().wait();
    }
}

/// 20 jobs together, after one whose outcome does not matter.
fn together_any(pool: &Pool) -> Vec<Call> {
    let (sender, receiver) = mpsc::channel();
    let inner = pool.clone();
    pool.submit(["echo", "first"], move |_| {
        let calls: Vec<Call> = (0..20).map(|_| inner.job(["echo", "x"]).timeout(PATIENCE).call()).collect();
        sender.send(calls).ok();
    });
    receiver.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn bytes_in_flight_and_the_longest_frame_bound_a_batch() {
    let long = "x".repeat(1_000);
    let jobs = vec![["echo", &long]; 9];
    let jobs: Vec<&[&str]> = jobs.iter().map(|job| &job[..]).collect();
    for (limit, expected) in [(0, vec![1; 9]), (2_500, vec![2, 2, 2, 2, 1]), (usize::MAX, vec![9])] {
        let pool = one(quiet(batches()).batch(64).load(3).inflight_bytes(limit));
        assert_eq!(sizes(all(&pool, &jobs)), expected, "{limit}");
        pool.shutdown().wait();
    }
    // A job that no worker accepts ends alone, wherever it is in its batch.
    let pool = one(quiet(batches()).batch(64).max_frame(2_000));
    let too_long = "x".repeat(2_000);
    for at in [0, 2, 4] {
        let mut jobs = [["echo", "x"]; 5];
        jobs[at][1] = &too_long;
        let mut calls = all(&pool, &jobs.iter().map(|job| &job[..]).collect::<Vec<_>>());
        let outcome = calls.remove(at).wait();
        assert!(matches!(outcome, Err(Error::TooLarge { max: 1_984, .. })), "{outcome:?}");
        assert_eq!(sizes(calls), [4]);
    }
    pool.shutdown().wait();
}

#[test]
fn a_worker_is_recycled_after_its_number_of_jobs() {
    let pool = one(quiet(batches()).batch(64).max_jobs(8).max_jobs_jitter(0.0).start(Duration::ZERO));
    let pid = pool.workers().wait()[0].pid;
    let sizes = sizes(all(&pool, &[&["echo", "x"][..]; 20]));
    let (first, rest): (Vec<usize>, Vec<usize>) = sizes.into_iter().partition(|size| *size == 7);
    assert_eq!((first, rest.iter().sum::<usize>()), (vec![7], 13), "one job was done before");
    assert!(rest.iter().all(|size| *size <= 8), "{rest:?}");
    eventually("two have gone", || pool.stats().exited == 2);
    assert!(!is_alive(pid));
    assert_eq!((pool.stats().retired, pool.stats().killed, pool.stats().crashed), (2, 0, 0));
    pool.shutdown().wait();
}

#[test]
fn urgent_jobs_come_first() {
    let pool = one(quiet(batches()).batch(3).load(1));
    let mut calls = all_with(&pool, &[&["echo", "x"][..]; 6], |at, job| {
        job.priority(if at < 3 { Priority::Low } else { Priority::High })
    });
    let urgent = calls.split_off(3);
    let numbers = |calls: Vec<Call>| calls.into_iter().map(|call| parts(call.wait()).2).collect::<Vec<_>>();
    assert_eq!((numbers(calls), numbers(urgent)), (vec![3; 3], vec![2; 3]));
    pool.shutdown().wait();
}

/// Each job of a batch has its own messages, and its own errors.
#[test]
fn each_job_of_a_batch_has_its_own_outcome() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&events);
    let builder = quiet(batches()).batch(64).max_frame(1 << 20);
    let pool = one(builder.on_event(move |event| list.lock().unwrap().push((event.job, event.parts.text()))));
    let jobs: [&[&str]; 6] =
        [&["talk", "a"], &["error", "no"], &["long-event", ""], &["deadline"], &["talk", "b"], &["attempt"]];
    let progress = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&progress);
    let calls = all_with(&pool, &jobs, move |at, job| {
        let heard = Arc::clone(&heard);
        job.tag(at as u64).on_progress(move |text| heard.lock().unwrap().push((at, text.to_vec())))
    });
    let outcomes: Vec<Outcome> = calls.into_iter().map(Call::wait).collect();
    for (at, name) in [(0, "a"), (4, "b")] {
        let reply = outcomes[at].clone().unwrap();
        let got: Vec<String> =
            reply.parts().iter().take(4).map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        assert_eq!(got, [name, name, "6", "2"], "a part, then the rest");
    }
    let Err(Error::Worker { code, message, retryable: true, .. }) = &outcomes[1] else { panic!("an error") };
    assert_eq!((&**code, &**message), ("code", "no"));
    let Err(Error::Worker { code, message, .. }) = &outcomes[2] else { panic!("an error") };
    assert!(code == "error" && message.contains("the event has 10485"), "{message}");
    assert_eq!(outcomes[3].clone().unwrap().text(), "some");
    assert_eq!(outcomes[5].clone().unwrap().text(), "0");
    assert_eq!(*events.lock().unwrap(), [(Some(0), "a".to_owned()), (Some(4), "b".to_owned())]);
    assert_eq!(*progress.lock().unwrap(), [(0, b"a".to_vec()), (4, b"b".to_vec())]);
    assert_eq!((pool.stats().worker_errors, pool.stats().completed), (2, 5));
    pool.shutdown().wait();
}

#[test]
fn a_call_that_fails_as_a_whole_fails_each_job_of_its_batch_once() {
    let pool = one(quiet(batches()).batch(3).load(4));
    let jobs: [&[&str]; 8] = [
        &["echo", "x"],
        &["panic"],
        &["echo", "x"],
        &["echo", "x"],
        &["short"],
        &["echo", "x"],
        &["echo", "x"],
        &["echo", "x"],
    ];
    let outcomes: Vec<Outcome> = all(&pool, &jobs).into_iter().map(Call::wait).collect();
    for (outcome, code, text) in outcomes[..3]
        .iter()
        .map(|outcome| (outcome, "panic", "as told"))
        .chain(outcomes[3..6].iter().map(|outcome| (outcome, "error", "the batch of 3 jobs got 2 outcomes")))
    {
        let Err(Error::Worker { code: got, message, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!((&**got, &**message), (code, text));
    }
    assert!(outcomes[6..].iter().all(Result::is_ok), "the worker has stayed");
    assert_eq!((pool.stats().worker_errors, pool.stats().lost, pool.stats().exited), (6, 0, 0));
    pool.shutdown().wait();
}

/// The begun batch is lost, each of its jobs once; the batch behind it is done by the next worker.
#[test]
fn a_crash_costs_the_batch_that_its_worker_was_in() {
    let pool = one(quiet(batches()).batch(5).load(2));
    let jobs: [&[&str]; 8] = [
        &["echo", "0"],
        &["echo", "1"],
        &["die", "kill"],
        &["echo", "3"],
        &["echo", "4"],
        &["echo", "5"],
        &["echo", "6"],
        &["echo", "7"],
    ];
    let mut calls = all(&pool, &jobs);
    let behind = calls.split_off(5);
    for call in calls {
        let outcome = call.wait();
        assert!(matches!(outcome, Err(Error::WorkerLost { signal: Some(9), .. })), "{outcome:?}");
    }
    assert_eq!(sizes(behind), [3]);
    let stats = pool.stats();
    assert_eq!((stats.lost, stats.crashed, stats.redispatched, stats.retried), (5, 1, 3, 0));
    assert_eq!((stats.completed, stats.taken_back), (4, 0));
    pool.shutdown().wait();
}

#[test]
fn jobs_of_a_lost_batch_are_begun_again_if_they_may_be() {
    let pool = one(quiet(batches()).batch(64).retries(Retry::times(1)));
    let calls =
        all_with(&pool, &[&["die-first"], &["attempt"], &["attempt"]], |at, job| job.idempotent(at < 2));
    let outcomes: Vec<Outcome> = calls.into_iter().map(Call::wait).collect();
    assert_eq!(outcomes[0].clone().unwrap().text(), "1");
    assert_eq!(outcomes[1].clone().unwrap().text(), "1");
    assert!(lost(&outcomes[2]), "{:?}", outcomes[2]);
    assert_eq!((pool.stats().retried, pool.stats().lost, pool.stats().redispatched), (2, 1, 0));
    pool.shutdown().wait();
}

/// One worker is in a batch that waits for a gate, and has another batch behind it.
fn scene(name: &str, builder: Builder, behind: &[&[&str]], batch: usize) -> (Pool, Gate, Call, Vec<Call>) {
    let pool = one(builder.batch(batch).load(2));
    let gate = Gate::new(name);
    let long = pool.job(["gate", gate.path()]).call();
    eventually("it lies there", || pool.stats().in_flight == 1);
    // They come in together: on the pool's thread, after a job that is refused by no worker.
    let (sender, receiver) = mpsc::channel();
    let jobs: Vec<Vec<String>> =
        behind.iter().map(|args| args.iter().map(ToString::to_string).collect()).collect();
    let inner = pool.clone();
    pool.job(["echo", ""]).timeout(Duration::ZERO).submit(move |outcome| {
        assert_eq!(outcome, Err(Error::Timeout { started: false }));
        let one = |args: Vec<String>| inner.job(args).timeout(PATIENCE).call();
        sender.send(jobs.into_iter().map(one).collect::<Vec<Call>>()).ok();
    });
    let behind = receiver.recv_timeout(PATIENCE).unwrap();
    eventually("all lie there", || pool.stats().in_flight == 1 + behind.len() as u64);
    (pool, gate, long, behind)
}

/// The gate opens, and the worker has gone over all that was taken from it.
fn end(pool: &Pool, gate: &Gate, long: Call) {
    gate.open();
    assert!(long.wait().is_ok());
    eventually("all have come to rest", || {
        let stats = pool.stats();
        stats.idle == stats.workers && stats.in_flight == 0
    });
    assert_eq!(pool.stats().protocol_errors, 0);
    pool.shutdown().wait();
}

#[test]
fn a_batch_behind_a_long_one_is_taken_back_whole() {
    let (pool, gate, long, behind) = scene("taken", quiet(batches()), &[&["echo", "x"][..]; 4], 8);
    let first = pool.workers().wait()[0].pid.to_string();
    pool.resize(2, 2);
    for call in behind {
        let reply = call.wait().unwrap();
        assert_ne!(reply.part(3), first.as_bytes());
        assert_eq!(parts(Ok(reply)).1, 4);
    }
    let stats = pool.stats();
    assert_eq!((stats.taken_back, stats.batches, stats.batched), (4, 3, 9));
    // It has two batches still: it gets nothing before it has gone over what was taken.
    assert_eq!(sizes((0..20).map(|_| pool.call(["echo", "x"])).collect()).iter().sum::<usize>(), 20);
    end(&pool, &gate, long);
}

/// A job whose time is up while its batch waits is not run; the others of the batch are, once each.
#[test]
fn a_job_whose_time_was_up_before_its_batch_began_is_left_out() {
    let mark = scratch("batch-left-out");
    let path = mark.to_str().unwrap();
    let jobs: Vec<[&str; 3]> = ["0", "1", "2", "3"].into_iter().map(|n| ["mark", path, n]).collect();
    let jobs: Vec<&[&str]> = jobs.iter().map(|job| &job[..]).collect();
    for gone in [0, 1, 3] {
        let (pool, gate, long, mut behind) = scene("left-out", quiet(batches()), &jobs, 8);
        drop(behind.remove(gone));
        eventually("it is known", || pool.stats().cancelled == 1);
        gate.open();
        behind.into_iter().for_each(|call| drop(call.wait().unwrap()));
        let text = std::fs::read_to_string(&mark).unwrap();
        let mut run: Vec<&str> = text.lines().collect();
        run.sort_unstable();
        let others: Vec<String> = (0..4).filter(|n| *n != gone).map(|n| n.to_string()).collect();
        assert_eq!(run, others, "without {gone}");
        assert_eq!((pool.stats().killed, pool.stats().lost), (0, 0));
        std::fs::remove_file(&mark).unwrap();
        end(&pool, &gate, long);
    }
}

/// The time of one job is up while its batch runs: the worker is ended, the others of the batch are lost, the
/// batch behind is done elsewhere.
#[test]
fn a_job_whose_time_is_up_in_a_running_batch_ends_its_worker() {
    let mark = scratch("batch-time-up");
    let path = mark.to_str().unwrap().to_owned();
    let pool = one_to_kill(quiet(batches()).batch(3).load(2));
    let stays = path + "-gate";
    let jobs: [&[&str]; 5] = [
        &["until-cancelled", mark.to_str().unwrap()],
        &["gate", &stays],
        &["echo", "x"],
        &["echo", "3"],
        &["echo", "4"],
    ];
    let mut calls = all_with(&pool, &jobs, |at, job| if at == 0 { job.timeout(ms(4_000)) } else { job });
    let behind = calls.split_off(3);
    eventually("it has begun", || std::fs::read_to_string(&mark).is_ok_and(|text| text == "running"));
    let outcomes: Vec<Outcome> = calls.into_iter().map(Call::wait).collect();
    assert_eq!(outcomes[0], Err(Error::Timeout { started: true }));
    assert!(outcomes[1..].iter().all(lost), "{outcomes:?}");
    assert_eq!(sizes(behind), [2]);
    let stats = pool.stats();
    assert_eq!((stats.timeouts, stats.lost, stats.killed, stats.redispatched), (1, 2, 1, 2));
    assert_eq!((stats.completed, stats.crashed), (3, 0));
    std::fs::remove_file(&mark).unwrap();
    pool.shutdown().wait();
}

/// A caller that goes does not harm the others of its batch. When all callers have gone, the worker is ended.
#[test]
fn callers_that_go_harm_no_others() {
    let pool = one_to_kill(quiet(batches()).batch(64));
    let gate = Gate::new("callers");
    let mark = scratch("batch-callers");
    let runs = || std::fs::read_to_string(&mark).is_ok_and(|text| text == "running");
    let jobs: [&[&str]; 3] = [&["gate", gate.path(), mark.to_str().unwrap()], &["echo", "1"], &["echo", "2"]];
    let mut calls = all(&pool, &jobs);
    eventually("it runs", runs);
    let pid = pool.workers().wait()[0].pid;
    drop(calls.remove(1));
    // Ten times the grace.
    pause(ms(1_000));
    gate.open();
    calls.into_iter().for_each(|call| assert_eq!(parts(call.wait()).1, 3));
    assert_eq!((pool.stats().cancelled, pool.stats().killed, pool.stats().lost), (1, 0, 0));
    std::fs::remove_file(&mark).unwrap();
    let never = Gate::new("never");
    let jobs: [&[&str]; 2] = [&["gate", never.path(), mark.to_str().unwrap()], &["echo", "1"]];
    let calls = all(&pool, &jobs);
    assert_eq!(pool.workers().wait()[0].pid, pid);
    eventually("it runs", runs);
    drop(calls);
    eventually("it is killed", || pool.stats().killed == 1);
    assert_eq!((pool.stats().cancelled, pool.stats().lost), (3, 0));
    std::fs::remove_file(&mark).unwrap();
    assert_eq!(parts(pool.call(["echo", "again"]).wait()).0, "again");
    pool.shutdown().wait();
}

#[test]
fn a_job_in_a_batch_sees_that_its_caller_has_gone() {
    let mark = scratch("batch-cancelled");
    let pool = one(quiet(batches()).batch(64));
    let jobs: [&[&str]; 2] = [&["until-cancelled", mark.to_str().unwrap()], &["echo", "1"]];
    let mut calls = all(&pool, &jobs);
    eventually("it runs", || std::fs::read_to_string(&mark).is_ok_and(|text| text == "running"));
    drop(calls.remove(0));
    assert_eq!(parts(calls.remove(0).wait()).1, 2);
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "cancelled");
    std::fs::remove_file(&mark).unwrap();
    pool.shutdown().wait();
}

#[test]
fn the_death_of_the_template_costs_the_batches_that_had_begun() {
    let mark = scratch("batch-template");
    let pool = one(quiet(batches()).batch(2).load(2));
    let jobs: [&[&str]; 4] =
        [&["until-cancelled", mark.to_str().unwrap()], &["echo", "1"], &["echo", "2"], &["echo", "3"]];
    let mut calls = all(&pool, &jobs);
    let behind = calls.split_off(2);
    eventually("it runs", || std::fs::read_to_string(&mark).is_ok_and(|text| text == "running"));
    let worker = pool.workers().wait()[0].pid;
    let template = parent_of(worker);
    kill(template, Signal::KILL);
    assert!(calls.into_iter().all(|call| lost(&call.wait())));
    assert_eq!(sizes(behind), [2]);
    assert_eq!((pool.stats().lost, pool.stats().redispatched, pool.stats().templates_lost), (2, 2, 1));
    std::fs::remove_file(&mark).unwrap();
    pool.shutdown().wait();
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The largest batch: one call; and all its jobs run out of time together.
#[test]
fn ten_thousand_jobs_are_one_batch() {
    let builder = quiet(batches().env("BATCH", "65535")).batch(usize::MAX).load(1).queue_limit(20_000);
    let pool = one_to_kill(builder);
    let jobs = vec![&["echo", "x"][..]; 10_001];
    assert_eq!(sizes(all(&pool, &jobs)), [10_000, 1]);
    let gate = Gate::new("ten-thousand");
    let mut jobs = vec![&["echo", "x"][..]; 10_000];
    let waits = ["gate", gate.path()];
    jobs[7] = &waits;
    let calls = all_with(&pool, &jobs, |_, job| job.timeout(ms(5_000)));
    let start = now();
    for call in calls {
        assert!(matches!(call.wait(), Err(Error::Timeout { .. })));
    }
    eprintln!("all had timed out after {:?}", start.elapsed());
    eventually("it is killed", || pool.stats().killed == 1);
    eventually("it is gone", || pool.stats().in_flight == 0);
    assert_eq!((pool.stats().timeouts, pool.stats().lost), (10_000, 0));
    assert_eq!(parts(pool.call(["echo", "again"]).wait()).0, "again");
    pool.shutdown().wait();
}

/// An iterator of jobs is read as far ahead as the workers hold twice.
#[test]
fn many_jobs_at_once_fill_batches() {
    let pool = one(quiet(batches()).batch(16).load(2));
    pool.call(["echo", ""]).wait().unwrap();
    let taken = Arc::new(Mutex::new(0));
    let count = Arc::clone(&taken);
    let items = (0..1_000).map(move |n| {
        *count.lock().unwrap() += 1;
        ["echo".to_owned(), n.to_string()]
    });
    let mut replies = pool.map(items);
    assert_eq!(replies.next().unwrap().unwrap().text(), "0");
    assert_eq!(*taken.lock().unwrap(), 2 * 2 * 16);
    let rest: Vec<String> = replies.map(|outcome| outcome.unwrap().text()).collect();
    assert_eq!(rest, (1..1_000).map(|n: u32| n.to_string()).collect::<Vec<_>>());
    pool.shutdown().wait();
}

/// Sixty jobs of batches of twenty are work for three workers, not for sixty.
#[test]
fn the_queue_counts_in_batches_for_the_number_of_workers() {
    let pool = quiet(batches()).max(8).load(1).batch(20).start(Duration::ZERO).spawn().wait().unwrap();
    pool.ready(1).wait().unwrap();
    let gate = Gate::new("sizing");
    let path = gate.path().to_owned();
    let calls: Vec<Call> =
        together(&pool, move |pool| (0..60).map(|_| pool.call(["gate".to_owned(), path.clone()])).collect());
    eventually("all are given out", || pool.stats().in_flight == 60);
    assert_eq!((pool.stats().spawned, pool.stats().batches), (3, 4));
    gate.open();
    calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
    pool.shutdown().wait();
}

fn by_hand(how: &str) -> Launch {
    exec().env("FIXTURE", "batches-by-hand").env("BATCHES", how)
}

#[test]
fn replies_come_in_any_order() {
    let pool = one(quiet(by_hand("reverse")).batch(10).load(2));
    let calls = together(&pool, |pool| (0..25).map(|_| pool.call([""])).collect::<Vec<Call>>());
    let sizes: Vec<u32> = calls.into_iter().map(|call| number(&call.wait().unwrap())).collect();
    let expected: Vec<u32> = [vec![10; 20], vec![5; 5]].concat();
    assert_eq!(sizes, expected);
    eventually("it is idle", || (pool.stats().idle, pool.stats().in_flight) == (1, 0));
    assert_eq!(pool.stats().protocol_errors, 0);
    pool.shutdown().wait();
}

/// A reply too many, or one to a job of a batch that was not claimed: the worker is killed, and each job has
/// one outcome.
#[test]
fn a_reply_out_of_its_batch_breaks_the_protocol() {
    for (how, first) in [("twice", ""), ("ahead", "now")] {
        let pool = one(quiet(by_hand(how)).batch(3).load(2).probe(true));
        let (sender, outcomes) = mpsc::channel();
        // On the pool's thread, and not behind another job: that would be answered twice, too.
        let inner = pool.clone();
        pool.job([""]).timeout(Duration::ZERO).submit(move |_| {
            for at in 0..6 {
                let sender = sender.clone();
                let args = [if at < 3 { first } else { "" }];
                let job = inner.job(args).timeout(PATIENCE);
                job.submit(move |outcome| drop(sender.send(outcome)));
            }
        });
        let outcomes: Vec<Outcome> = outcomes.iter().collect();
        assert_eq!(outcomes.len(), 6);
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let failed = outcomes.iter().filter(|outcome| lost(outcome)).count();
        assert_eq!(done + failed, 6, "{outcomes:?}");
        assert!(failed > 0, "{how}: {outcomes:?}");
        assert!(pool.stats().protocol_errors >= 1, "{how}");
        assert_eq!(pool.stats().completed + pool.stats().lost, 6, "{how}");
        pool.shutdown_now().wait();
    }
}

#[test]
fn the_largest_batch_of_a_worker_has_a_range() {
    for (limit, good) in [("0", false), ("1", true), ("65535", true), ("65536", false)] {
        let pool = quiet(by_hand(limit)).max(1).batch(10).spawn().wait();
        assert_eq!(pool.is_ok(), good, "{limit}");
        match pool {
            Ok(pool) => assert_eq!(number(&pool.call([""]).wait().unwrap()), 1),
            Err(Error::StartFailed { reason, .. }) => assert!(reason.contains("batches of"), "{reason}"),
            Err(error) => panic!("{error:?}"),
        }
    }
}
