//! The plain path: jobs, events, order, options, control of the pool.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use crate::common::*;
use cattlegrid_pool::{Error, Launch, Limits, Pool, Priority, QueuePolicy, Retry, Sandbox};

#[test]
fn jobs_are_answered_in_every_mode() {
    for launch in
        [template(), exec(), Launch::stdio::<&str>(fixture(), []), template().env("FIXTURE", "async")]
    {
        let pool = quiet(launch).max(2).load(4).spawn().wait().unwrap();
        let calls: Vec<_> = (0..50).map(|n| pool.call(["echo".to_owned(), n.to_string()])).collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.wait().unwrap().text(), n.to_string());
        }
        pool.shutdown().wait();
    }
}

/// Once for each program that is started so, and not for each worker; the start goes on.
#[test]
fn a_program_in_mode_stdio_is_reported() {
    let stdio = || Launch::stdio::<&str>(fixture(), []);
    let (sender, errors) = mpsc::channel();
    let pool = quiet(stdio()).max(2).idle(2).on_error(move |error| drop(sender.send(error.to_string())));
    let pool = pool.spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    let said = |count| {
        let said: Vec<String> = errors.try_iter().collect();
        assert_eq!(said.len(), count, "{said:?}");
        assert!(said.iter().all(|error| error.contains("start it with Launch::exec")));
    };
    said(1);
    pool.reload(exec()).wait().unwrap();
    said(0);
    pool.reload(stdio()).wait().unwrap();
    assert_eq!(pool.call(["echo", "a"]).wait().unwrap().text(), "a");
    said(1);
    pool.shutdown().wait();
}

#[test]
fn an_async_caller_needs_no_special_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pool = quiet(template()).spawn().await.unwrap();
        assert_eq!(pool.call(["echo", "a"]).await.unwrap().text(), "a");
        pool.shutdown().await;
    });
}

#[test]
fn lists_keep_their_parts_and_large_ones_arrive_whole() {
    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    let big = vec![7_u8; 3 << 20];
    let reply = pool.call([&b"echo"[..], b"", &big, b"end"]).wait().unwrap();
    let parts: Vec<&[u8]> = reply.parts().iter().collect();
    assert!(parts == [&b""[..], &big, b"end"]);
    assert!(pool.call(["echo"]).wait().unwrap().parts().is_empty());
    let reply = pool.call(["chunks", "5", "100000"]).wait().unwrap();
    assert_eq!(reply.parts().len(), 6);
    assert_eq!((reply.part(4).len(), reply.part(5)), (100_000, &b"last"[..]));
    pool.shutdown().wait();
}

#[test]
fn too_large_is_an_error_in_both_directions_and_the_worker_stays() {
    let pool = quiet(template()).max(1).max_frame(100_000).max_reply(200_000).spawn().wait().unwrap();
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let big = vec![1_u8; 100_001];
    assert!(matches!(pool.call([&b"echo"[..], &big]).wait(), Err(Error::TooLarge { .. })));
    assert!(matches!(pool.call(["big", "100001"]).wait(), Err(Error::TooLarge { len: 100_005.., .. })));
    assert!(matches!(pool.call(["chunks", "5", "50000"]).wait(), Err(Error::TooLarge { .. })));
    assert_eq!(number(&pool.call(["pid"]).wait().unwrap()), pid);
    pool.shutdown().wait();
}

#[test]
fn events_and_progress_come_in_order_before_the_result() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (events, progress, done) = (Arc::clone(&log), Arc::clone(&log), Arc::clone(&log));
    let pool = quiet(template())
        .init("event=hello")
        .max(1)
        .on_event(move |event| {
            let text = event.parts.text();
            events.lock().unwrap().push(format!("event {:?} {text}", event.job));
        })
        .spawn()
        .wait()
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    pool.job(["event", "3", "x"]).tag(5).submit(move |outcome| {
        done.lock().unwrap().push(outcome.unwrap().text());
        sender.send(()).unwrap();
    });
    receiver.recv().unwrap();
    let call = pool.job(["progress"]).on_progress(move |how| {
        progress.lock().unwrap().push(String::from_utf8_lossy(how).into_owned());
    });
    call.call().wait().unwrap();
    let expected = [
        "event None hello",
        "event Some(5) 0",
        "event Some(5) 1",
        "event Some(5) 2",
        "done",
        "0",
        "50",
        "100",
    ];
    assert_eq!(*log.lock().unwrap(), expected);
    pool.shutdown().wait();
}

/// Messages of a thread that has outlived its job reach no caller, in particular not the next one, and cost
/// no worker.
#[test]
fn progress_of_a_job_that_has_ended_is_ignored() {
    for launch in [template().env("FIXTURE", "async"), python("app"), python("tasks:work")] {
        let said = Arc::new(Mutex::new(Vec::new()));
        let listen = |name: &'static str| {
            let said = Arc::clone(&said);
            move |how: &[u8]| said.lock().unwrap().push((name, String::from_utf8_lossy(how).into_owned()))
        };
        let errors = Errors::default();
        let events = Arc::new(AtomicUsize::new(0));
        let named = Arc::clone(&events);
        let builder = Pool::builder(launch).on_log(|_| {}).max(1).load(1).on_event(move |event| {
            let wrong = event.parts.text().starts_with("late") && event.job.is_some_and(|tag| tag != 1);
            named.fetch_add(usize::from(wrong), Ordering::SeqCst);
        });
        let pool = errors.watch(builder).spawn().wait().unwrap();
        let worker = pool.workers().wait()[0].number;
        pool.job(["late"]).tag(1).on_progress(listen("its own")).call().wait().unwrap();
        for _ in 0..3 {
            pool.job(["sleep", "150", "x"]).tag(2).on_progress(listen("another")).call().wait().unwrap();
        }
        assert!(said.lock().unwrap().iter().all(|(name, _)| *name == "its own"), "{said:?}");
        assert_eq!(events.load(Ordering::SeqCst), 0, "events of one job under the name of another");
        assert_eq!((pool.workers().wait()[0].number, errors.all()), (worker, Vec::<String>::new()));
        pool.shutdown().wait();
    }
}

#[test]
fn a_full_event_stream_holds_its_worker_back_and_loses_nothing() {
    let pool = quiet(template()).max(2).idle(2).load(1).event_stream(4).spawn().wait().unwrap();
    let mut events = pool.take_events().unwrap();
    pool.ready(2).wait().unwrap();
    let talker = pool.call(["event", "100000", "some text to fill the socket"]);
    eventually("events arrive", || pool.stats().events >= 4);
    assert_eq!(pool.call(["echo", "other"]).wait().unwrap().text(), "other");
    assert_eq!(pool.stats().events, 4, "the rest waits in the worker");
    for n in 0..100_000 {
        assert_eq!(events.next().unwrap().parts.text(), n.to_string());
    }
    assert_eq!(talker.wait().unwrap().text(), "done");
    pool.shutdown().wait();
    assert!(events.next().is_none());
}

/// Many jobs by iterator: in the order of the items, or as they end.
#[test]
fn map_keeps_the_order_and_as_completed_does_not_wait() {
    let pool = quiet(template()).max(2).idle(2).load(1).queue_limit(3).spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    // Infinite, so far more than the queue takes.
    let echoes = pool.map((0_u64..).map(|n| ["echo".to_owned(), n.to_string()])).take(500);
    for (n, outcome) in echoes.enumerate() {
        assert_eq!(outcome.unwrap().text(), n.to_string());
    }
    assert_eq!(pool.map(Vec::<[&str; 1]>::new()).count(), 0);
    eventually("what was on its way is cancelled", || {
        let stats = pool.stats();
        stats.busy == 0 && stats.queued_normal == 0
    });
    let file = scratch("completed");
    let path = file.to_str().unwrap().to_owned();
    let jobs =
        [vec!["until-cancelled".to_owned(), path], vec!["echo".into(), "b".into()], vec!["error".into()]];
    let mut completed = pool.as_completed(jobs);
    let (number, outcome) = completed.next().unwrap();
    assert_eq!((number, outcome.unwrap().text().as_str()), (1, "b"));
    assert!(matches!(completed.next(), Some((2, Err(Error::Worker { .. })))));
    pool.shutdown_now().wait();
    assert_eq!(completed.next(), Some((0, Err(Error::Shutdown))));
    assert_eq!(completed.next(), None);
    std::fs::remove_file(file).ok();
}

#[test]
fn events_are_an_iterator_and_can_be_awaited() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let pool = quiet(template()).max(1).event_stream(2).spawn().wait().unwrap();
    let mut events = pool.take_events().unwrap();
    let talker = pool.call(["event", "10", "x"]);
    let waited = runtime.block_on(async {
        let mut texts = Vec::new();
        for _ in 0..5 {
            texts.push(events.recv().await.unwrap().parts.text());
        }
        texts
    });
    assert_eq!(waited, ["0", "1", "2", "3", "4"]);
    let rest: Vec<String> = events.by_ref().take(5).map(|event| event.parts.text()).collect();
    assert_eq!(rest, ["5", "6", "7", "8", "9"]);
    talker.wait().unwrap();
    let end = std::thread::spawn(move || runtime.block_on(async { events.recv().await }));
    pool.shutdown().wait();
    assert_eq!(end.join().unwrap(), None);
}

#[test]
fn dropping_a_call_cancels_it_in_the_worker_and_in_the_queue() {
    for launch in [template(), template().env("FIXTURE", "async"), python("app")] {
        let file = scratch("cancelled");
        let pool = quiet(launch).max(1).load(1).kill_grace(ms(20_000)).spawn().wait().unwrap();
        let path = file.to_str().unwrap();
        let running = pool.call(["until-cancelled", path]);
        let queued = pool.call(["mark", path, "never"]);
        eventually("it runs", || std::fs::read_to_string(&file).is_ok_and(|text| text == "running"));
        drop(queued);
        drop(running);
        eventually("the worker has seen it", || {
            std::fs::read_to_string(&file).is_ok_and(|text| text == "cancelled")
        });
        assert_eq!(pool.call(["echo", "next"]).wait().unwrap().text(), "next");
        let stats = pool.stats();
        assert_eq!((stats.cancelled, stats.killed), (2, 0));
        pool.shutdown().wait();
    }
}

#[test]
fn deadlines_are_told_and_timeouts_of_waiting_jobs_start_nothing() {
    let file = scratch("deadline");
    let pool = quiet(template()).max(1).load(1).spawn().wait().unwrap();
    assert_eq!(pool.call(["deadline"]).wait().unwrap().text(), "none");
    assert_eq!(pool.job(["deadline"]).timeout(PATIENCE).call().wait().unwrap().text(), "some");
    let gate = Gate::new("deadline-gate");
    let slow = pool.call(["gate", gate.path()]);
    let waiting = pool.job(["mark", file.to_str().unwrap(), "x"]).timeout(ms(50)).call();
    assert_eq!(waiting.wait(), Err(Error::Timeout { started: false }));
    gate.open();
    assert_eq!(slow.wait().unwrap().text(), "open");
    pool.shutdown().wait();
    assert!(!file.exists());
}

#[test]
fn urgent_jobs_go_first() {
    let file = scratch("urgent");
    let path = file.to_str().unwrap();
    let pool = quiet(template()).max(1).load(1).ageing(PATIENCE).spawn().wait().unwrap();
    let gate = Gate::new("urgent-gate");
    let block = pool.call(["gate", gate.path()]);
    eventually("it runs", || pool.stats().busy == 1);
    let mut calls = Vec::new();
    for (text, priority) in [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)] {
        calls.push(pool.job(["mark", path, text]).priority(priority).call());
    }
    eventually("all wait", || {
        let stats = pool.stats();
        stats.queued_high + stats.queued_normal + stats.queued_low == 3
    });
    gate.open();
    block.wait().unwrap();
    calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "high\nnormal\nlow\n");
    pool.shutdown().wait();
}

#[test]
fn the_queue_is_bounded_by_each_policy() {
    for policy in [QueuePolicy::Reject, QueuePolicy::DropOldest, QueuePolicy::Wait] {
        let pool =
            quiet(template()).max(1).load(1).queue_limit(2).queue_policy(policy).spawn().wait().unwrap();
        let gate = Gate::new(&format!("queue-{policy:?}"));
        let block = pool.call(["gate", gate.path()]);
        eventually("it runs", || pool.stats().busy == 1);
        let calls: Vec<_> = (0..4).map(|n| pool.call(["echo".to_owned(), n.to_string()])).collect();
        eventually("all came in", || {
            let stats = pool.stats();
            stats.queued_normal + stats.rejected + stats.held >= 4
        });
        if policy != QueuePolicy::DropOldest {
            assert_eq!(pool.try_call(["echo"]).unwrap_err(), Error::Rejected);
        }
        gate.open();
        assert_eq!(block.wait().unwrap().text(), "open");
        let outcomes: Vec<Option<String>> =
            calls.into_iter().map(|call| call.wait().ok().map(|reply| reply.text())).collect();
        let text = |n: usize| Some(n.to_string());
        let expected = match policy {
            QueuePolicy::Reject => [text(0), text(1), None, None],
            QueuePolicy::DropOldest => [None, None, text(2), text(3)],
            QueuePolicy::Wait => [text(0), text(1), text(2), text(3)],
        };
        assert_eq!(outcomes, expected, "{policy:?}");
        pool.shutdown().wait();
    }
}

#[test]
fn only_idempotent_jobs_are_tried_again_and_only_as_often_as_allowed() {
    let pool = quiet(template()).max(1).retries(Retry::times(1)).spawn().wait().unwrap();
    assert!(matches!(pool.call(["die-first"]).wait(), Err(Error::WorkerLost { .. })));
    assert_eq!(pool.job(["die-first"]).idempotent(true).call().wait().unwrap().text(), "survived");
    assert!(matches!(
        pool.job(["die", "kill"]).idempotent(true).call().wait(),
        Err(Error::WorkerLost { .. })
    ));
    assert_eq!(pool.stats().retried, 2);
    pool.shutdown().wait();
}

#[test]
fn workers_are_recycled_by_jobs_age_and_memory() {
    let pool = quiet(template()).max(1).max_jobs(3).max_jobs_jitter(0.0).start(ms(0)).spawn().wait().unwrap();
    let counts: Vec<String> = (0..7).map(|_| pool.call(["count"]).wait().unwrap().text()).collect();
    assert_eq!(counts, ["1", "2", "3", "1", "2", "3", "1"]);
    pool.shutdown().wait();

    let pool = quiet(template()).max(1).idle(1).max_age(ms(100)).spawn().wait().unwrap();
    let first = pool.call(["pid"]).wait().unwrap().text();
    eventually("it is replaced", || pool.call(["pid"]).wait().unwrap().text() != first);
    pool.shutdown().wait();

    let pool = quiet(template()).max(1).max_rss(200 << 20).kill_grace(PATIENCE).spawn().wait().unwrap();
    let first = pool.call(["hoard", "1000"]).wait().unwrap().text();
    assert_eq!(pool.call(["hoard", "300000000"]).wait().unwrap().text(), first);
    eventually("it is replaced", || pool.call(["pid"]).wait().unwrap().text() != first);
    assert_eq!((pool.stats().crashed, pool.stats().killed), (0, 0));
    pool.shutdown().wait();
}

#[test]
fn a_reload_replaces_workers_when_the_new_program_is_ready_and_not_before() {
    let pool = quiet(template().env("WHICH", "old")).max(2).idle(2).spawn().wait().unwrap();
    let which = || pool.call(["env", "WHICH"]).wait().unwrap().text();
    assert_eq!(which(), "old");
    let failed = pool.reload(template().env("FIXTURE", "dies")).wait().unwrap_err();
    assert!(failed.to_string().contains("no luck today"), "{failed}");
    assert_eq!((which(), pool.stats().generation), ("old".into(), 1));
    let slow = pool.call(["sleep", "300", "finished"]);
    pool.reload(template().env("WHICH", "new")).wait().unwrap();
    assert_eq!((which(), pool.stats().generation), ("new".into(), 2));
    assert_eq!(slow.wait().unwrap().text(), "finished");
    pool.reload(exec().env("WHICH", "exec")).wait().unwrap();
    assert_eq!(which(), "exec");
    eventually("old ones are gone", || pool.workers().wait().iter().all(|worker| worker.generation == 3));
    assert_eq!((pool.stats().reloads, pool.stats().crashed, pool.stats().lost), (2, 0, 0));
    pool.shutdown().wait();
}

#[test]
fn the_pool_grows_resizes_and_shrinks() {
    let pool = quiet(template()).max(3).load(1).start(ms(1)).stop(ms(50)).spawn().wait().unwrap();
    let mut calls = Vec::new();
    eventually("it has grown", || {
        // On a slow machine the first jobs may be done before the third worker has started.
        while pool.stats().queued_normal < 6 && calls.len() < 10_000 {
            calls.extend((0..9).map(|_| pool.call(["sleep", "100", ""])));
            pause(ms(5));
        }
        pool.stats().busy == 3
    });
    calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
    eventually("it has shrunk", || pool.stats().workers == 0);
    pool.resize(2, 2);
    pool.ready(2).wait().unwrap();
    pool.resize(0, 1);
    eventually("it has shrunk", || pool.stats().workers == 0);
    pool.shutdown().wait();
}

/// `ready` starts the missing workers, although there is no work for them.
#[test]
fn ready_resolves_up_to_max_and_refuses_more() {
    let pool = quiet(template()).max(3).stop(ms(20)).spawn().wait().unwrap();
    for _ in 0..3 {
        pool.ready(3).wait().unwrap();
    }
    eventually("they idle out", || pool.stats().workers == 0);
    assert!(matches!(pool.ready(4).wait(), Err(Error::InvalidOption(text)) if text.contains("max is 3")));
    pool.shutdown().wait();

    // The second worker cannot be started: its waiter gets an error when the breaker opens.
    let flag = scratch("ready");
    let pool = quiet(template()).init(format!("exit-if={}", flag.display())).max(2).crash_loop(3, PATIENCE);
    let pool = pool.spawn().wait().unwrap();
    std::fs::write(&flag, "").unwrap();
    assert!(matches!(pool.ready(2).wait(), Err(Error::StartFailed { .. })));
    std::fs::remove_file(&flag).unwrap();
    pool.shutdown().wait();
}

#[test]
fn spares_are_used_and_refilled() {
    let pool = quiet(template()).max(2).load(1).start(ms(0)).spare(2).spawn().wait().unwrap();
    eventually("spares are there", || pool.stats().spawned == 3);
    let gate = Gate::new("spares");
    let calls = [pool.call(["gate", gate.path()]), pool.call(["gate", gate.path()])];
    eventually("refilled", || pool.stats().spawned == 4);
    gate.open();
    for call in calls {
        assert_eq!(call.wait().unwrap().text(), "open");
    }
    eventually("two workers, and no more", || pool.stats().workers == 2);
    pool.shutdown().wait();
}

#[test]
fn limits_and_privileges_are_applied() {
    let limits = Limits {
        address_space: Some(1 << 32),
        cpu_secs: Some(1000),
        nofile: Some(77),
        nice: 3,
        oom_score_adj: Some(700),
        core: Some(0),
    };
    // Where any user may start it, too, as in a home directory it could not be.
    let program = std::env::temp_dir().join(format!("pool-fixture-{}", std::process::id()));
    std::fs::copy(fixture(), &program).unwrap();
    let exec = Launch::exec::<&str>(program.to_str().unwrap(), []);
    for launch in [template(), exec, python("limits")] {
        let as_root = rustix::process::getuid().is_root();
        let sandbox = Sandbox { no_new_privs: true, uid_gid: as_root.then_some((60_001, 60_002)) };
        let pool = quiet(launch).limits(limits.clone()).sandbox(sandbox).spawn().wait().unwrap();
        let text = pool.call(["limits"]).wait().unwrap().text();
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        assert!(line("Max address space").contains("4294967296"), "{text}");
        assert!(line("Max cpu time").contains(" 1000 "), "{text}");
        assert!(line("Max open files").contains(" 77 "), "{text}");
        assert!(line("Max core file size").contains(" 0 "), "{text}");
        let status = pool.call(["status"]).wait().unwrap().text();
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        if as_root {
            assert!(
                status.contains("Uid:\t60001\t60001") && status.contains("Gid:\t60002\t60002"),
                "{status}"
            );
        }
        assert_eq!(pool.call(["read", "/proc/self/oom_score_adj"]).wait().unwrap().text().trim(), "700");
        let stat = pool.call(["read", "/proc/self/stat"]).wait().unwrap().text();
        let nice = |stat: &str| stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().parse::<i32>();
        let own = nice(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(nice(&stat), Ok((own + 3).min(19)), "{stat}");
        pool.shutdown().wait();
    }
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn the_environment_is_what_was_asked_for() {
    let pool = quiet(template()).env_clear().env("ONLY", "this").spawn().wait().unwrap();
    assert_eq!(pool.call(["env", "ONLY"]).wait().unwrap().text(), "this");
    assert_eq!(pool.call(["env", "PATH"]).wait().unwrap().text(), "");
    pool.shutdown().wait();
}

#[test]
fn dropping_the_last_handle_finishes_the_jobs_and_then_calls_on_destroy() {
    let (sender, receiver) = mpsc::channel();
    let done = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&done);
    let pool = quiet(template())
        .max(1)
        .on_destroy(move || sender.send(counted.load(Ordering::SeqCst)).unwrap())
        .spawn()
        .wait()
        .unwrap();
    for _ in 0..20 {
        let done = Arc::clone(&done);
        pool.submit(["sleep", "5", ""], move |outcome| {
            outcome.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    drop(pool);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(20));
}

#[test]
fn shutdown_has_a_limit_and_shutdown_now_has_none() {
    let pool = quiet(template()).max(1).shutdown_grace(ms(200)).spawn().wait().unwrap();
    let hung = pool.call(["hang", "spin"]);
    pool.shutdown().wait();
    assert_eq!(hung.wait(), Err(Error::Shutdown));
    assert_eq!(pool.call(["echo"]).wait(), Err(Error::Shutdown));

    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    let calls: Vec<_> = (0..5).map(|_| pool.call(["hang", "spin"])).collect();
    pool.shutdown_now().wait();
    assert!(calls.into_iter().all(|call| call.wait() == Err(Error::Shutdown)));
}

/// It came before its time was up, though the pool learns of both at the same moment.
#[test]
fn an_answer_that_came_while_the_process_was_stopped_counts() {
    // How long the job takes to get to its worker is up to the machine.
    assert!([2_000, 20_000].into_iter().any(an_answer_counts), "its time was up");
}

fn an_answer_counts(timeout_ms: u64) -> bool {
    let gate = Gate::new("stopped");
    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    let call = pool.job(["gate", gate.path()]).timeout(ms(timeout_ms)).call();
    eventually("it is at its worker", || pool.workers().wait().iter().any(|worker| worker.jobs == 1));
    let (own, seconds) = (std::process::id(), timeout_ms / 1_000 + 3);
    let stops = format!("kill -STOP {own}; echo > {}; sleep {seconds}; kill -CONT {own}", gate.path());
    let mut shell = std::process::Command::new("sh").args(["-c", &stops]).spawn().unwrap();
    let outcome = call.wait();
    shell.wait().unwrap();
    outcome.is_ok()
}

#[test]
fn a_panic_in_a_callback_is_reported_and_the_pool_goes_on() {
    let errors = Errors::default();
    let pool = errors.watch(Pool::builder(template()).max(1)).spawn().wait().unwrap();
    pool.submit(["echo"], |_| panic!("in a callback, as meant"));
    assert_eq!(pool.call(["echo", "on"]).wait().unwrap().text(), "on");
    assert_eq!(errors.count("callback panicked"), 1);
    pool.shutdown().wait();
}

#[test]
fn log_lines_carry_their_level() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let pool = Pool::builder(template())
        .on_log(move |chunk| {
            log.lock().unwrap().push((chunk.level, String::from_utf8_lossy(chunk.bytes).into_owned()))
        })
        .spawn()
        .wait()
        .unwrap();
    pool.call(["log", "careful"]).wait().unwrap();
    assert!(lines.lock().unwrap().contains(&(2, "careful".into())));
    pool.shutdown().wait();
}
