//! Messages of a worker that are longer than `max_frame`: only the one job gets an error, in every language.

use std::sync::{Arc, Mutex};

use crate::common::*;
use cattlegrid_pool::{Builder, Error, Launch, Pool};

/// The smallest `max_frame`, and a larger one that a long text or part does not fit into either.
const LIMITS: [u32; 2] = [1024, 1 << 20];

fn small(builder: Builder, limit: u32) -> Pool {
    builder.max(1).load(4).max_frame(limit).spawn().wait().unwrap()
}

/// The worker is the same process as before, and has broken no rule of the protocol.
fn check_unharmed(pool: &Pool, pid: &str, ask: &[&str]) {
    assert_eq!(pool.call(ask).wait().unwrap().text(), pid);
    let stats = pool.stats();
    assert_eq!((stats.protocol_errors, stats.lost, stats.killed), (0, 0, 0));
}

/// The outcome of `["long", what, size]` with other jobs around it at the same worker.
fn long(pool: &Pool, what: &str, size: &str) -> Result<cattlegrid_pool::Reply, Error> {
    let before = pool.call(["pid"]);
    let outcome = pool.call(["long", what, size]);
    let behind = pool.call(["pid"]);
    assert_eq!(before.wait().unwrap().text(), behind.wait().unwrap().text());
    outcome.wait()
}

fn check_cut(error: Error, limit: u32) {
    let Error::Worker { code, message, detail, .. } = error else { panic!("{error}") };
    assert!(code.len() + message.len() + detail.len() <= limit as usize - 16);
    assert!(message.len() >= limit as usize - 100, "{} bytes of it are there", message.len());
    assert!(message.ends_with('ü'), "no character is cut");
}

/// Code and message are kept, and the end of the detail.
fn check_detail(error: Error, limit: u32) {
    let Error::Worker { code, message, detail, .. } = error else { panic!("{error}") };
    assert_eq!((code.as_str(), message.as_str()), ("code", "message"));
    assert!(detail.ends_with("xend") && detail.len() == limit as usize - 16 - 11, "{}", detail.len());
}

fn check_all(builder: impl Fn() -> Builder, has_detail: bool) {
    for limit in LIMITS {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&logged);
        let pool = small(
            builder().on_log(move |chunk| lines.lock().unwrap().push((chunk.level, chunk.bytes.to_vec()))),
            limit,
        );
        let pid = pool.call(["pid"]).wait().unwrap().text();
        let size = (2 * limit).to_string();
        check_cut(long(&pool, "error", &size).unwrap_err(), limit);
        if has_detail {
            check_detail(long(&pool, "detail", &size).unwrap_err(), limit);
        }
        for what in ["event", "progress"] {
            let error = long(&pool, what, &size).unwrap_err();
            let Error::Worker { message, .. } = &error else { panic!("{error}") };
            assert!(
                message.contains(what) && message.contains(&format!("the limit is {limit}")),
                "{message}"
            );
        }
        match long(&pool, "part", &size) {
            Err(Error::TooLarge { len, max }) => {
                assert!(len > 2 * limit as usize && max == limit as usize, "{len} {max}");
            }
            other => panic!("{other:?}"),
        }
        long(&pool, "log", &size).unwrap();
        eventually("the line is there", || logged.lock().unwrap().iter().any(|(level, _)| *level > 0));
        let line = logged.lock().unwrap().iter().find(|(level, _)| *level > 0).unwrap().1.clone();
        assert_eq!(line.len(), (limit as usize - 2).min(16 << 10), "a line is cut, at a character");
        check_unharmed(&pool, &pid, &["pid"]);
        pool.shutdown().wait();
    }
}

#[test]
fn of_a_rust_worker() {
    check_all(|| quiet(template()), true);
}

#[test]
fn of_an_asynchronous_rust_worker() {
    check_all(|| quiet(template()).env("FIXTURE", "async"), false);
}

#[test]
fn of_a_python_worker() {
    check_all(|| quiet(python("app")), true);
}

/// A traceback is longer than the smallest frame.
#[test]
fn of_an_asyncio_worker() {
    for limit in LIMITS {
        let pool = small(quiet(python("tasks:work")), limit);
        let pid = pool.call(["pid"]).wait().unwrap().text();
        let size = (2 * limit).to_string();
        check_cut(long(&pool, "exception", &size).unwrap_err(), limit);
        let error = long(&pool, "event", &size).unwrap_err();
        assert!(matches!(&error, Error::Worker { message, .. } if message.contains("event")), "{error}");
        check_unharmed(&pool, &pid, &["pid"]);
        pool.shutdown().wait();
        let pool = small(quiet(python("tasks:parts")), limit);
        let pid = pool.call(["0"]).wait().unwrap().text();
        let long = pool.call(["10", &size, "10"]).wait();
        assert!(matches!(long, Err(Error::TooLarge { len, .. }) if len > 2 * limit as usize), "{long:?}");
        check_unharmed(&pool, &pid, &["0"]);
        pool.shutdown().wait();
    }
}

/// Arguments have 16 bytes less than a frame, with their count and lengths.
#[test]
fn of_arguments() {
    let pool = small(quiet(template()), 1024);
    let longest = "a".repeat(1000);
    assert_eq!(pool.call(["echo", &longest]).wait().unwrap().text(), longest);
    let error = pool.call(["echo", &(longest + "a")]).wait().unwrap_err();
    assert_eq!(error, Error::TooLarge { len: 1009, max: 1008 });
    pool.shutdown().wait();
}

/// The limit comes with INIT; an error before that is reported all the same.
#[test]
fn of_a_start_that_fails() {
    for (launch, text) in [
        (python_exec("no_such_module"), "No module named 'no_such_module'"),
        (python("app"), "no-database"),
        (python_exec("app"), "no-database"),
        (template(), "no-database"),
    ] {
        let config = format!("fail=no-database{}", "x".repeat(500));
        let error = quiet(launch).init(config).max_frame(1024).spawn().wait().unwrap_err().to_string();
        assert!(error.contains(text) && !error.contains("protocol"), "{error}");
    }
}

/// A worker that writes lines of JSON.
fn lines(args: &[&str]) -> Builder {
    let script = format!("{}/tests/apps/long_lines.py", env!("CARGO_MANIFEST_DIR"));
    quiet(Launch::json_lines("python3", [&[script.as_str()], args].concat()))
}

/// The outcome of a job between others; a second job follows it to the worker at once.
fn long_line(pool: &Pool, what: &str, size: &str) -> Result<cattlegrid_pool::Reply, Error> {
    let outcome = pool.call([what, size]);
    let behind = pool.call(["exact", "20", "\n"]);
    assert_eq!(behind.wait().unwrap().text(), "xxxxxxx", "after {what}");
    outcome.wait()
}

/// The line is skipped, whatever its job sends before and after, and wherever in the line its id is.
#[test]
fn of_json_lines() {
    for limit in LIMITS {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::new(Mutex::new(Vec::new()));
        let (lines_of_log, seen) = (Arc::clone(&logged), Arc::clone(&events));
        let builder = lines(&[])
            .on_log(move |chunk| lines_of_log.lock().unwrap().push((chunk.level, chunk.bytes.to_vec())))
            .on_event(move |event| seen.lock().unwrap().push(event.parts.text()));
        let pool = small(builder, limit);
        let pid = pool.call(["pid"]).wait().unwrap().text();
        let size = (3 * limit).to_string();
        for what in ["result", "id-last", "error", "part"] {
            match long_line(&pool, what, &size) {
                Err(Error::TooLarge { len, max }) => {
                    assert!(len > 3 * limit as usize && max == limit as usize, "{what}: {len} {max}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        for what in ["event", "progress"] {
            let error = long_line(&pool, what, &size).unwrap_err();
            let Error::Worker { code, message, .. } = &error else { panic!("{error}") };
            assert!(
                code == "error"
                    && message.contains(what)
                    && message.contains(&format!("the limit is {limit}")),
                "{message}"
            );
        }
        assert_eq!(*events.lock().unwrap(), ["short", "behind"]);
        assert_eq!(long_line(&pool, "log", &size).unwrap().text(), "done");
        let told = format!("bytes was dropped, the limit is {limit}");
        let told =
            |(_, text): &(u8, Vec<u8>)| String::from_utf8_lossy(text).trim_end().ends_with(told.as_str());
        let levels = logged.lock().unwrap().iter().filter(|line| told(line)).map(|line| line.0).collect();
        assert_eq!((levels, logged.lock().unwrap().len()), (vec![2], 3), "{:?}", logged.lock().unwrap());
        check_unharmed(&pool, &pid, &["pid"]);
        assert_eq!(pool.stats().log_dropped, 0);
        pool.shutdown().wait();
    }
}

/// The end of a line does not count, also if it has two bytes.
#[test]
fn of_json_lines_at_the_limit() {
    let pool = small(lines(&[]), 1024);
    let pid = pool.call(["pid"]).wait().unwrap().text();
    for end in ["\n", "\r\n"] {
        assert_eq!(pool.call(["exact", "1024", end]).wait().unwrap().text().len(), 1011);
        let error = pool.call(["exact", "1025", end]).wait().unwrap_err();
        assert_eq!(error, Error::TooLarge { len: 1025, max: 1024 });
    }
    check_unharmed(&pool, &pid, &["pid"]);
    pool.shutdown().wait();
}

/// A long line that belongs to no job is dropped, and the log says so.
#[test]
fn of_a_json_line_outside_of_jobs() {
    let logged = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&logged);
    let builder = lines(&["2000"]).on_log(move |chunk| {
        said.lock().unwrap().push(String::from_utf8_lossy(chunk.bytes).trim_end().to_owned());
    });
    let pool = small(builder, 1024);
    let pid = pool.call(["pid"]).wait().unwrap().text();
    assert_eq!(*logged.lock().unwrap(), ["a line of 2012 bytes was dropped, the limit is 1024"]);
    check_unharmed(&pool, &pid, &["pid"]);
    pool.shutdown().wait();
}

/// Rules of the protocol for short lines hold for long ones, too; and a line must end.
#[test]
fn json_lines_that_cost_their_worker() {
    let pool = small(lines(&[]).kill_grace(ms(100)), 1024);
    for (what, reason) in [("other-id", "unknown job"), ("no-object", "not a JSON object")] {
        match pool.call([what, "5000"]).wait() {
            Err(Error::WorkerLost { reason: why, .. }) => assert!(why.contains(reason), "{what}: {why}"),
            other => panic!("{what}: {other:?}"),
        }
        pool.call(["pid"]).wait().unwrap();
    }
    assert_eq!(pool.stats().protocol_errors, 2);
    let endless = pool.job(["endless"]).timeout(ms(300)).call().wait();
    assert_eq!(endless, Err(Error::Timeout { started: true }));
    pool.call(["pid"]).wait().unwrap();
    assert_eq!(pool.stats().killed, 3);
    pool.shutdown().wait();
}

/// A reply that is longer than `max_reply` is useless: its job is cancelled, and the worker is ended only if
/// the job does not end.
#[test]
fn a_reply_over_max_reply_that_does_not_end_is_cancelled() {
    let many = u32::MAX.to_string();
    let polite = ["endless-parts", many.as_str(), "polite", "0"];
    let ruthless = ["endless-parts", many.as_str(), "ruthless", "0"];
    // Only with the last part the reply is too long.
    let asleep = ["endless-parts", "11", "ruthless", "3600000"];
    let small = |launch: Launch| quiet(launch).max(1).max_frame(1 << 20).max_reply(1 << 20);
    for (builder, endless, stays) in [
        (small(template()).kill_grace(PATIENCE), &polite[..], true),
        (small(template()).kill_grace(ms(2_000)), &ruthless, false),
        (small(exec()).kill_grace(ms(2_000)), &asleep, false),
        (small(python("app")).kill_grace(PATIENCE), &polite, true),
        (lines(&[]).max(1).max_reply(1 << 20).kill_grace(ms(200)), &["endless-parts"], false),
    ] {
        let pool = builder.spawn().wait().unwrap();
        let pid = pool.call(["pid"]).wait().unwrap().text();
        let outcome = pool.call(endless).wait();
        assert!(matches!(outcome, Err(Error::TooLarge { max: 0x10_0000, .. })), "{endless:?}: {outcome:?}");
        let behind = pool.job(["pid"]).timeout(PATIENCE).call().wait().unwrap().text();
        assert_eq!(behind == pid, stays, "{endless:?}");
        assert_eq!((pool.stats().too_large, pool.stats().lost), (1, 0));
        assert_eq!(pool.stats().killed, u64::from(!stays));
        pool.shutdown().wait();
    }
}
