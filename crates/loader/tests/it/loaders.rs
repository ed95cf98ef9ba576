//! Loaders with real workers: what becomes of their answers and failures, and that nothing is left of them.

use std::sync::atomic::Ordering::Relaxed;

use crate::common::{End, World, descriptors, look, processes, until, value};
use cattlegrid_engine::{DeliveredValue, Load, LoadFailure, LoadOrder, LoadOutcome};

const MIB: usize = 1 << 20;

/// A rule file with a loader of this mode and these further lines; its jobs have time enough on a slow
/// machine.
fn rules(mode: &str, extra: &str) -> String {
    let timeout = if extra.contains("timeout") { "" } else { "timeout = \"90s\"" };
    format!(
        "[[rule]]\nmatch = \"page:{{id}}\"\nloader = \"pages\"\nlease = \"100s\"\n\
         [loader.pages]\ncommand = [\"python3\", \"pages.py\"]\nmode = \"{mode}\"\n{timeout}\n{extra}\n"
    )
}

#[test]
fn every_mode_brings_values_absence_and_errors() {
    for mode in ["template", "exec", "stdio", "jsonl"] {
        let world = World::new(&rules(mode, ""));
        let loaders = world.start(MIB).unwrap();
        assert_eq!(world.run(&loaders, "page:echo"), value("value of page:echo"), "{mode}");
        let full = End::Value {
            data: b"\xff full".to_vec(),
            flags: 7,
            ttl_s: Some(-1),
            tags: vec![b"a".to_vec(), b"b".to_vec()],
        };
        assert_eq!(world.run(&loaders, "page:full"), full, "{mode}");
        assert_eq!(world.run(&loaders, "page:none"), End::NotFound(None), "{mode}");
        assert_eq!(world.run(&loaders, "page:none-5"), End::NotFound(Some(5)), "{mode}");
        let End::Failed(LoadFailure::Error, text) = world.run(&loaders, "page:raise") else {
            panic!("an error")
        };
        assert!(text.contains("no luck"), "{mode}: {text}");
        let counts = loaders.views().remove(0).counts;
        let [jobs, values, not_found, errors, running] =
            [&counts.jobs, &counts.values, &counts.not_found, &counts.errors, &counts.running]
                .map(|counter| counter.load(Relaxed));
        assert_eq!([jobs, values, not_found, errors, running], [5, 2, 2, 1, 0], "{mode}");
        assert_eq!((counts.ended(), loaders.jobs(), loaders.transit().0), (5, 0, 0), "{mode}");
        until("the log has the traceback", || {
            world.lines().iter().any(|line| line.contains("ValueError: no luck"))
        });
        loaders.stop();
    }
}

#[test]
fn a_worker_that_dies_loses_its_job_and_its_last_words_are_in_the_log() {
    let world = World::new(&rules("template", ""));
    let loaders = world.start(MIB).unwrap();
    let lost = End::Failed(LoadFailure::Lost, "the worker was lost".to_owned());
    assert_eq!(world.run(&loaders, "page:die"), lost);
    until("last words", || world.lines().iter().any(|line| line.contains("last words")));
    assert_eq!(world.run(&loaders, "page:next"), value("value of page:next"));
    assert_eq!(loaders.views()[0].counts.lost.load(Relaxed), 1);
    loaders.stop();
}

#[test]
fn a_retry_gives_a_lost_job_another_worker() {
    let world = World::new(&rules("template", "retries = 1"));
    world.write(
        "pages.py",
        "import os, sys\nsys.path.insert(0, 'PYTHON')\nfrom cattlegrid import loader\n@loader.load\n\
         def load(job):\n    if job.attempt == 0: os._exit(1)\n    return 'attempt %d' % job.attempt\nloader.serve()\n",
    );
    let loaders = world.start(MIB).unwrap();
    assert_eq!(world.run(&loaders, "page:1"), value("attempt 1"));
    loaders.stop();
}

#[test]
fn a_job_whose_time_is_up_is_lost_if_it_was_begun_and_else_refused() {
    let world = World::new(&rules("exec", "timeout = \"5s\"\nkill_grace = \"100ms\"\nmax = 1\nload = 1"));
    let loaders = world.start(MIB).unwrap();
    assert_eq!(world.run(&loaders, "page:warm"), value("value of page:warm"));
    loaders.submit(0, vec![world.order("page:sleep-50"), world.order("page:waits")]);
    let mut ends = [world.end(), world.end()];
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(ends[0], ("page:sleep-50".to_owned(), End::Failed(LoadFailure::Lost, "timed out".to_owned())));
    let late = "timed out before a worker was free".to_owned();
    assert_eq!(ends[1], ("page:waits".to_owned(), End::Failed(LoadFailure::Refused, late)));
    assert_eq!(loaders.views()[0].counts.timeouts.load(Relaxed), 2);
    loaders.stop();
}

#[test]
fn a_job_that_is_cancelled_before_it_is_begun_ends_so() {
    let world = World::new(&rules("exec", "max = 1\nload = 1"));
    let loaders = world.start(MIB).unwrap();
    let slow = world.load("page:gate-1");
    let waits = world.load("page:waits");
    let (slow_token, token) = (slow.token, waits.token);
    loaders.submit(0, vec![LoadOrder::Start(slow)]);
    until("it is begun", || world.path("begun").exists());
    // In one turn as well.
    loaders.submit(0, vec![LoadOrder::Cancel { token }, LoadOrder::Start(waits)]);
    let cancelled = End::Failed(LoadFailure::Cancelled, "cancelled".to_owned());
    assert_eq!(world.end(), ("page:waits".to_owned(), cancelled));
    assert!(loaders.job_of(token).is_none());
    let view = loaders.job_of(slow_token).expect("it runs");
    assert_eq!((&*view.loader, view.is_refresh), ("pages", false));
    // A job that was begun goes on.
    loaders.submit(0, vec![LoadOrder::Cancel { token: slow_token }]);
    world.open_gate();
    assert_eq!(world.end().1, value("value of page:gate-1"));
    loaders.submit(0, vec![LoadOrder::Cancel { token }, LoadOrder::Raise { token: slow_token }]);
    loaders.stop();
}

#[test]
fn a_refresh_waits_behind_jobs_that_clients_wait_for_until_it_is_raised() {
    let world = World::new(&rules("exec", "max = 1\nload = 1"));
    let loaders = world.start(MIB).unwrap();
    loaders.submit(0, vec![world.order("page:gate-1")]);
    until("it is begun", || world.path("begun").exists());
    let [mut low, mut raised] = ["page:low", "page:raised"].map(|key| world.load(key));
    (low.is_refresh, raised.is_refresh) = (true, true);
    let token = raised.token;
    loaders.submit(0, vec![LoadOrder::Start(low), LoadOrder::Start(raised)]);
    assert!(loaders.job_of(token).unwrap().is_refresh);
    loaders.submit(0, vec![LoadOrder::Raise { token }, world.order("page:high")]);
    assert!(!loaders.job_of(token).unwrap().is_refresh);
    until("all wait", || {
        let pool = loaders.views().remove(0).pool;
        pool.queued_high + pool.queued_normal + pool.queued_low == 3
    });
    world.open_gate();
    let order: Vec<String> = (0..4).map(|_| world.end().0).collect();
    assert_eq!(order[0], "page:gate-1");
    assert_eq!(order[3], "page:low", "{order:?}");
    loaders.stop();
}

#[test]
fn a_full_queue_refuses_and_so_does_a_loader_that_is_not_there() {
    let world = World::new(&rules("exec", "max = 1\nload = 1\nqueue = 1"));
    let loaders = world.start(MIB).unwrap();
    loaders.submit(0, vec![world.order("page:gate-1")]);
    until("it is begun", || world.path("begun").exists() && loaders.views()[0].pool.in_flight == 1);
    loaders.submit(3, ["page:1", "page:2", "page:3"].map(|key| world.order(key)).into());
    let mut refused = 0;
    for _ in 0..4 {
        let (lane, finished) = world.next();
        assert_eq!(lane, if &*finished.load().key == b"page:gate-1" { 0 } else { 3 });
        if let End::Failed(cause, text) = look(finished) {
            assert_eq!((cause, &*text), (LoadFailure::Refused, "the loader's queue is full"));
            refused += 1;
            if refused == 2 {
                world.open_gate();
            }
        }
    }
    assert_eq!(refused, 2, "one waits");
    loaders.stop();
    let none = End::Failed(LoadFailure::Refused, "there is no such loader".to_owned());
    assert_eq!(world.run(&loaders, "page:1"), none);
}

#[test]
fn a_value_may_have_as_many_bytes_as_an_item_and_no_more() {
    for mode in ["template", "jsonl"] {
        let world = World::new(&rules(mode, "timeout = \"90s\""));
        let loaders = world.start(MIB).unwrap();
        // 59 bytes of an item are not its value, and its key has 16.
        let End::Value { data, .. } = world.run(&loaders, "page:big-1048501") else { panic!("a value") };
        assert_eq!(data.len(), MIB - 59 - 16, "{mode}");
        let End::Failed(LoadFailure::Error, text) = world.run(&loaders, "page:big-1048502") else {
            panic!("too large")
        };
        assert!(text.contains("1048502 bytes; with its key and 59 bytes"), "{mode}: {text}");
        let end = world.run(&loaders, "page:big-10000000");
        assert_eq!(end, End::Failed(LoadFailure::Error, "the value is too large".to_owned()), "{mode}");
        assert_eq!(world.run(&loaders, "page:next"), value("value of page:next"), "{mode}");
        loaders.stop();
    }
}

/// Counted is what a text of JSON stands for: `\u0041` is one byte.
#[test]
fn a_value_with_escapes_has_the_bytes_that_it_stands_for() {
    let world = World::new(&rules("jsonl", "max = 1"));
    world.write("pages.py", ESCAPES);
    let loaders = world.start(MIB).unwrap();
    for key in ["page:900000", "page:01048502"] {
        let End::Value { data, .. } = world.run(&loaders, key) else { panic!("a value") };
        assert_eq!(Some(data.len()), key[5..].parse().ok());
        assert!(data.iter().all(|byte| *byte == b'A'));
    }
    let End::Failed(LoadFailure::Error, text) = world.run(&loaders, "page:01048505") else {
        panic!("too large")
    };
    assert!(text.contains("1048505 bytes; with its key and 59 bytes"), "{text}");
    let end = world.run(&loaders, "page:5000000");
    assert_eq!(end, End::Failed(LoadFailure::Error, "the value is too large".to_owned()));
    let End::Value { .. } = world.run(&loaders, "page:7") else { panic!("a value") };
    loaders.stop();
}

const ESCAPES: &str = r#"
import json, sys
print('{"ready":true}', flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "job":
        print('{"value":"' + "\\u0041" * int(message["args"]["id"]) + '"}', flush=True)
"#;

/// `init` of the rule file, in every mode, to hooks of both kinds.
#[test]
fn the_text_of_init_comes_to_the_hooks() {
    for mode in ["template", "exec", "stdio", "jsonl"] {
        for word in ["", "async "] {
            let world = World::new(&rules(mode, "init = \"dsn=\u{fc}\""));
            let hook = format!(
                "import sys\nsys.path.insert(0, 'PYTHON')\nfrom cattlegrid import loader\n@loader.after_fork\n{word}def connect(config):\n    "
            );
            let load = format!(
                "global TEXT\n    TEXT = config\n@loader.load\n{word}def load(job): return TEXT\nloader.serve()\n"
            );
            world.write("pages.py", &(hook + &load));
            let loaders = world.start(MIB).unwrap();
            assert_eq!(world.run(&loaders, "page:1"), value("dsn=\u{fc}"), "{mode} {word}");
            loaders.stop();
        }
    }
}

#[test]
fn a_worker_waits_while_results_on_their_way_take_all_room() {
    for mode in ["template", "jsonl"] {
        let world = World::new(&rules(mode, "max = 3\nload = 1"));
        let loaders = world.start(11 * MIB).unwrap();
        let most = loaders.transit().1;
        assert_eq!(most, 22 * MIB + (256 << 10), "{mode}");
        // They are not stored.
        let mut kept = Vec::new();
        for _ in 0..2 {
            loaders.submit(0, vec![world.order("page:big-10485760")]);
            kept.push(world.next().1);
        }
        loaders.submit(0, vec![world.order("page:big-10485760")]);
        until("one waits", || loaders.views()[0].pool.reply_waits > 0);
        assert!((20 * MIB..=most).contains(&loaders.transit().0), "{mode}: {:?}", loaders.transit());
        assert_eq!(loaders.jobs(), 1, "{mode}");
        // Short ones do not wait.
        assert_eq!(world.run(&loaders, "page:small"), value("value of page:small"));
        kept.pop().unwrap().landed(LoadOutcome::Late);
        let last = world.next().1;
        assert_eq!(loaders.jobs(), 0, "{mode}");
        drop((kept, last));
        assert_eq!(loaders.transit().0, 0, "{mode}");
        let view = loaders.views().remove(0);
        let seen =
            [&view.counts.values, &view.counts.refused, &view.counts.late].map(|count| count.load(Relaxed));
        assert_eq!((seen, view.pool.reply_waits), ([4, 0, 1], 1), "{mode}");
        assert_eq!(view.counts.bytes.load(Relaxed), 0, "{mode}");
        loaders.stop();
    }
}

#[test]
fn loaders_end_while_results_wait_for_room() {
    let world = World::new(&rules("template", "max = 3\nload = 1"));
    let loaders = world.start(11 * MIB).unwrap();
    loaders.submit(0, (0..3).map(|_| world.order("page:big-10485760")).collect());
    let kept: Vec<_> = (0..2).map(|_| world.next().1).collect();
    until("one waits", || loaders.views()[0].pool.reply_waits > 0);
    loaders.stop();
    assert_eq!(world.end().1, End::Failed(LoadFailure::Refused, "the loader has ended".to_owned()));
    drop(kept);
    assert_eq!(loaders.transit().0, 0);
}

#[test]
fn an_old_value_that_is_too_long_as_text_is_left_out() {
    let world = World::new(&rules("jsonl", "max = 1"));
    let loaders = world.start(MIB).unwrap();
    let LoadOrder::Start(load) = world.order("page:small") else { panic!("an order to start") };
    // Six bytes each, as text in JSON.
    let stale = Some(DeliveredValue::Inline(vec![1; MIB - 100].into()));
    loaders.submit(0, vec![LoadOrder::Start(Load { stale, ..load })]);
    assert_eq!(world.end().1, value("value of page:small"));
    let counts = loaders.views().remove(0).counts;
    assert_eq!([&counts.stale_left_out, &counts.values].map(|counter| counter.load(Relaxed)), [1, 1]);
    loaders.stop();
}

#[test]
fn old_values_in_jobs_are_bounded() {
    let world = World::new(&rules("template", "max = 1\nload = 1\nqueue = 100"));
    let loaders = world.start(10 * MIB).unwrap();
    let orders = (0..8).map(|_| {
        let LoadOrder::Start(load) = world.order("page:stale") else { panic!("an order to start") };
        let stale = Some(DeliveredValue::Inline(vec![b'x'; 10 * MIB].into()));
        LoadOrder::Start(Load { stale, ..load })
    });
    loaders.submit(0, orders.collect());
    let counts = loaders.views().remove(0).counts;
    // Six are 60 MiB, and the seventh would be more than 64.
    assert_eq!(counts.stale_left_out.load(Relaxed), 2);
    let lengths: Vec<_> = (0..8).map(|_| world.end().1).collect();
    let with = value((10 * MIB).to_string());
    assert_eq!(lengths.iter().filter(|end| **end == with).count(), 6, "{lengths:?}");
    assert_eq!(lengths.iter().filter(|end| **end == value("None")).count(), 2, "{lengths:?}");
    assert_eq!(counts.stale_bytes.load(Relaxed), 0);
    loaders.stop();
}

#[test]
fn output_and_reports_do_not_fill_the_log() {
    let world = World::new(&rules("template", "max = 1"));
    let loaders = world.start(MIB).unwrap();
    assert_eq!(world.run(&loaders, "page:say-500"), value("value of page:say-500"));
    (0..50).for_each(|_| assert!(matches!(world.run(&loaders, "page:raise"), End::Failed(..))));
    until("output is passed on", || world.lines().iter().any(|line| line.contains("worker 1: line 0")));
    let left_out = || loaders.views()[0].counts.log_left_out.load(Relaxed);
    until("what is left out is counted", || left_out() >= 400);
    let lines = world.lines();
    let output = lines.iter().filter(|line| line.contains(": line ")).count();
    let reports = lines.iter().filter(|line| line.contains("page:{id}: ")).count();
    // On a slow machine they may spread over seconds.
    assert!(output < 250 && (1..40).contains(&reports), "{output} lines, {reports} reports");
    loaders.stop();
}

#[test]
fn a_loader_that_does_not_start_is_named_with_its_last_words() {
    let rules = "[[rule]]\nmatch = \"page:{id}\"\nloader = \"pages\"\n[[rule]]\nmatch = \"q\"\nloader = \"broken\"\n\
                 [loader.pages]\ncommand = [\"python3\", \"pages.py\", \"NAME\"]\n\
                 [loader.broken]\ncommand = [\"python3\", \"-c\", \"import no_such_module\"]\n";
    let world = World::new("");
    let name = world.path("").display().to_string();
    world.write("rules.toml", &rules.replace("NAME", &name));
    let error = world.start(MIB).unwrap_err();
    assert_eq!(error.loader, "broken");
    let text = error.to_string();
    assert!(text.starts_with("loader broken: ") && text.contains("no_such_module"), "{text}");
    until("the others have ended", || processes(&name).is_empty());

    let slow = "[[rule]]\nmatch = \"q\"\nloader = \"slow\"\n\
                [loader.slow]\ncommand = [\"python3\", \"-c\", \"import time; time.sleep(100)\", \"NAME\"]\nstart_timeout = \"200ms\"\n";
    world.write("rules.toml", &slow.replace("NAME", &name));
    let text = world.start(MIB).unwrap_err().to_string();
    assert!(text.starts_with("loader slow: "), "{text}");
    until("it has ended", || processes(&name).is_empty());
}

#[test]
fn nothing_is_left_when_it_stops() {
    let world = World::new("");
    let name = world.path("").display().to_string();
    world.write(
        "rules.toml",
        &rules("template", "idle = 2").replace("\"pages.py\"", &format!("\"pages.py\", \"{name}\"")),
    );
    // The first pool of a process opens what all share.
    world.start(MIB).unwrap().stop();
    let before = descriptors();
    for _ in 0..3 {
        let loaders = world.start(MIB).unwrap();
        loaders.submit(0, vec![world.order("page:sleep-100"), world.order("page:1")]);
        assert_eq!(world.end().1, value("value of page:1"));
        assert!(!processes(&name).is_empty());
        loaders.stop();
        let (_, end) = world.end();
        assert_eq!(end, End::Failed(LoadFailure::Refused, "the loader has ended".to_owned()));
        until("its processes have ended", || processes(&name).is_empty());
        assert_eq!(loaders.jobs(), 0);
        drop(loaders);
    }
    // Other tests of this program have theirs.
    assert!(descriptors() < before + 100);
}
