//! Descriptors of a worker: its output, which is drained up to a rate, and what it holds and is passed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cattlegrid_pool::{Launch, Pool};

use crate::common::*;

#[test]
fn stdio_flood_is_drained_and_never_blocks_the_worker() {
    let passed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&passed);
    let pool = Pool::builder(template())
        .on_error(|_| {})
        .on_log(move |chunk| {
            count.fetch_add(chunk.bytes.len(), Ordering::SeqCst);
        })
        .log_rate(10_000)
        .max(2)
        .idle(2)
        .load(1)
        .spawn()
        .wait()
        .unwrap();
    pool.ready(2).wait().unwrap();
    let start = now();
    // Two times 32 MiB, far more than a pipe holds.
    let flood = pool.call(["flood", "33554432"]);
    let meanwhile = pool.call(["echo", "b"]).wait().unwrap();
    assert_eq!(meanwhile.text(), "b");
    assert_eq!(flood.wait().unwrap().text(), "flooded");
    eventually("all is counted", || pool.stats().log_bytes >= 2 * 33_554_432);
    let passed = || passed.load(Ordering::SeqCst);
    let (now_passed, seconds) = (passed(), start.elapsed().as_secs() as usize + 2);
    // A line end for each piece that was cut.
    assert!(now_passed <= 10_100 * (seconds + 1), "{now_passed}");
    eventually("each byte is passed on or dropped", || {
        let stats = pool.stats();
        passed() as u64 >= stats.log_bytes - stats.log_dropped
    });
    pool.shutdown().wait();
}

/// Output over the rate is dropped line by line: no piece of a line is passed on, and each byte counts once.
#[test]
fn lines_over_the_rate_are_dropped_whole() {
    let script = r#"i=0
        while [ $i -lt 20000 ]; do echo "line $i of a flood"; i=$((i + 1)); done >&2
        echo '{"ready":true}'
        exec cat >&2"#;
    let passed = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&passed);
    let pool = Pool::builder(Launch::json_lines("sh", ["-c", script]))
        .on_error(|_| {})
        .on_log(move |chunk| said.lock().unwrap().extend_from_slice(chunk.bytes))
        .log_rate(5_000)
        .max(1)
        .spawn()
        .wait()
        .unwrap();
    pool.shutdown_now().wait();
    let text = String::from_utf8(passed.lock().unwrap().clone()).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('{')) {
        let number = line.strip_prefix("line ").and_then(|line| line.strip_suffix(" of a flood"));
        assert!(number.is_some_and(|number| number.parse::<u32>().is_ok()), "{line:?}");
    }
    assert!(text.starts_with("line 0 of a flood\nline 1 of a flood\n"));
    let stats = pool.stats();
    assert!(stats.log_dropped > 0);
    assert_eq!(text.len() as u64, stats.log_bytes - stats.log_dropped);
}

#[test]
fn fds_of_a_child_are_the_streams_and_the_job_socket() {
    for launch in [template(), template().env("FIXTURE", "holds"), exec()] {
        let pool = quiet(launch.clone()).max(1).spawn().wait().unwrap();
        let text = pool.call(["fds"]).wait().unwrap().text();
        let fds: Vec<&str> = text.split(' ').collect();
        assert!(
            fds[0] == "0=/dev/null" && fds[1].starts_with("1=pipe:") && fds[2].starts_with("2=pipe:"),
            "{text}"
        );
        // The SDK has its job socket twice, for reading and for writing. Nothing else is open, except for the
        // descriptor that the template chose to keep (`keep_fd`); others that it had open are closed.
        let rest: Vec<&&str> = fds[3..].iter().filter(|fd| !fd.contains("=socket:")).collect();
        let kept = rest.iter().filter(|fd| fd.ends_with("=/dev/full")).count();
        let held = format!("{launch:?}").contains("holds");
        assert_eq!((rest.len(), kept), (usize::from(held), usize::from(held)), "{text}");
        pool.shutdown().wait();
    }
}

#[test]
fn fds_passed_by_name_arrive() {
    for launch in [template(), exec()] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let pool = quiet(launch).pass_fd("out", writer).spawn().wait().unwrap();
        pool.call(["write-passed", "out"]).wait().unwrap();
        let mut bytes = [0; 32];
        let count = rustix::io::read(&reader, &mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"from the worker");
        pool.shutdown().wait();
    }
}
