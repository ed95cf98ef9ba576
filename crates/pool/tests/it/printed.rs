//! Programs of JSON lines as people write them: loops that know only jobs, prints between messages, no flush,
//! the wrong mode.

use std::sync::{Arc, Mutex};

use crate::common::*;
use cattlegrid_pool::{Error, Launch};

/// A loop that knows only jobs.
const LOOP: &str = r#"echo '{"ready":true}'
while read -r line; do case $line in *'"type":"job"'*) echo '{"result":"x"}' ;; esac; done"#;

fn shell(script: &str) -> Launch {
    Launch::json_lines("sh", ["-c", script])
}

fn python_lines(script: &str) -> Launch {
    Launch::json_lines("python3", ["-c", script])
}

#[test]
fn a_loop_that_knows_only_jobs_leaves_at_the_end_of_its_input() {
    // Killed after `kill_grace`, each of the five would take a minute.
    let pool = quiet(shell(LOOP))
        .max(1)
        .max_jobs(2)
        .max_jobs_jitter(0.0)
        .kill_grace(PATIENCE)
        .spawn()
        .wait()
        .unwrap();
    let start = now();
    for _ in 0..11 {
        assert_eq!(pool.call(["job"]).wait().unwrap().text(), "x");
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    eventually("five have left", || pool.stats().exited == 5);
    assert_eq!((pool.stats().killed, pool.stats().retired, pool.stats().crashed), (0, 5, 0));
    pool.shutdown().wait();
}

#[test]
fn an_idle_worker_leaves_at_the_end_of_its_input() {
    let pool = quiet(shell(LOOP)).max(2).stop(ms(20)).kill_grace(PATIENCE).spawn().wait().unwrap();
    pool.call(["job"]).wait().unwrap();
    eventually("it has left", || pool.stats().exited >= 1);
    assert_eq!((pool.stats().killed, pool.stats().crashed), (0, 0));
    let start = now();
    pool.call(["job"]).wait().unwrap();
    pool.shutdown().wait();
    assert!(start.elapsed() < PATIENCE, "at the end of the pool, too: {:?}", start.elapsed());
}

/// A program that ends with its input has answered before: the input does not end while it has a job.
#[test]
fn the_input_does_not_end_before_the_last_answer() {
    let script = "import json, os, sys, threading, time\n\
        def work(id):\n    time.sleep(0.2)\n    print(json.dumps({'id': id, 'result': 'late'}), flush=True)\n\
        print('{\"ready\":true}', flush=True)\n\
        for line in sys.stdin:\n    job = json.loads(line)\n    \
            if job['type'] == 'job': threading.Thread(target=work, args=[job['id']]).start()\n\
        os._exit(0)";
    let pool = quiet(python_lines(script)).max(1).max_jobs(1).kill_grace(PATIENCE).spawn().wait().unwrap();
    for _ in 0..3 {
        assert_eq!(pool.call(["job"]).wait().unwrap().text(), "late");
    }
    pool.shutdown().wait();
    assert_eq!((pool.stats().killed, pool.stats().lost), (0, 0));
}

#[test]
fn a_spare_that_is_ready_at_once_becomes_a_worker() {
    let pool = quiet(shell(LOOP)).max(1).spare(1).max_jobs(1).max_jobs_jitter(0.0).spawn().wait().unwrap();
    for _ in 0..6 {
        assert_eq!(pool.call(["job"]).wait().unwrap().text(), "x");
    }
    eventually("the spares have done it", || pool.stats().exited == 6);
    // The first worker, and the spares: one more than were used.
    assert!(pool.stats().spawned <= 8, "{}", pool.stats().spawned);
    pool.shutdown().wait();
}

/// The error of a first start.
fn start_error(launch: Launch) -> String {
    quiet(launch).start_timeout(ms(1_500)).kill_grace(ms(100)).spawn().wait().unwrap_err().to_string()
}

#[test]
fn what_is_printed_before_ready_is_named_with_its_cause() {
    for (script, texts) in [
        (
            "echo 'Loading model v2 ...'; cat",
            ["it printed \"Loading model v2 ...\": not JSON", "a banner or a print before {\"ready\":true}?"],
        ),
        (
            r#"echo '{"result":1}'; cat"#,
            ["it printed \"{\"result\":1}\": a message before", "the first line must be {\"ready\":true}"],
        ),
        (
            r#"echo '{"level":"info","msg":"up"}'; cat"#,
            ["it printed \"{\"level\":\"info\",\"msg\":\"up\"}\"", "the first line must be"],
        ),
        ("echo 42; cat", ["it printed \"42\": a line is not a JSON object", "print to standard error"]),
        (
            r#"printf '{"ready":true}'; cat >/dev/null"#,
            ["ends with \"{\"ready\":true}\", which has no line end", "write whole lines"],
        ),
        ("cat >/dev/null", ["it was not ready in time", "is it flushed after each line"]),
        ("exit 0", ["ended without a line {\"ready\":true}", "does it call serve()"]),
    ] {
        let error = start_error(shell(script));
        texts.iter().for_each(|text| assert!(error.contains(text), "{script}: {error}"));
    }
    let error = start_error(shell(&format!("echo {}; cat", "x".repeat(200))));
    assert!(error.contains(&format!("it printed \"{}...\": not JSON", "x".repeat(80))), "{error}");
    let unflushed = "import sys\nprint('{\"ready\":true}')\nfor line in sys.stdin: print('{\"result\":1}')";
    let error = start_error(python_lines(unflushed));
    assert!(error.contains("it was not ready in time") && error.contains("python3 -u"), "{error}");
}

#[test]
fn what_is_printed_between_answers_is_named_with_its_cause() {
    let script = r#"echo '{"ready":true}'
        while read -r line; do case $line in *'"type":"job"'*) eval "$SAY" ;; esac; done"#;
    for (say, text) in [
        ("echo 'debug: here'", "it printed \"debug: here\": not JSON"),
        (r#"echo '["a"]'"#, "it printed \"[\"a\"]\": a line is not a JSON object"),
        (
            r#"echo '{"id":"77","result":1}'"#,
            "it printed \"{\"id\":\"77\",\"result\":1}\": a reply to unknown job",
        ),
        (r#"echo '{"ready":true}'"#, "it printed \"{\"ready\":true}\": it had said before that it is ready"),
    ] {
        let pool = quiet(shell(script).env("SAY", say)).max(1).spawn().wait().unwrap();
        match pool.call(["job"]).wait() {
            Err(Error::WorkerLost { reason, .. }) => assert!(reason.contains(text), "{reason}"),
            other => panic!("{say}: {other:?}"),
        }
        pool.shutdown().wait();
    }
}

/// A line over the limit is not kept, and its beginning is shown.
#[test]
fn a_long_line_that_is_no_message_is_named_by_its_beginning() {
    let script = r#"echo '{"ready":true}'; read -r line; read -r line; head -c 5000 /dev/zero | tr '\0' 'x'; echo; cat"#;
    let pool = quiet(shell(script)).max(1).max_frame(2_000).spawn().wait().unwrap();
    let error = pool.call(["job"]).wait().unwrap_err().to_string();
    assert!(
        error.contains(&format!("it printed \"{}...\": a line of 5000 bytes", "x".repeat(80))),
        "{error}"
    );
    pool.shutdown().wait();
}

#[test]
fn an_answer_that_is_not_flushed_is_explained_when_its_time_is_up() {
    for (script, text) in [
        (
            "import sys\nprint('{\"ready\":true}', flush=True)\nfor line in sys.stdin: print('{\"result\":1}')",
            "is its standard output flushed",
        ),
        (
            "import sys\nprint('{\"ready\":true}', flush=True)\nfor line in sys.stdin: print('{\"resu', end='', flush=True)",
            "its answer \"{\"resu",
        ),
    ] {
        let said = Arc::new(Mutex::new(String::new()));
        let log = Arc::clone(&said);
        let pool = quiet(python_lines(script)).max(1).kill_grace(ms(100));
        let pool =
            pool.on_log(move |chunk| log.lock().unwrap().push_str(&String::from_utf8_lossy(chunk.bytes)));
        let pool = pool.spawn().wait().unwrap();
        assert_eq!(pool.job(["job"]).timeout(ms(1_000)).call().wait(), Err(Error::Timeout { started: true }));
        assert!(said.lock().unwrap().contains(text), "{}", said.lock().unwrap());
        pool.shutdown_now().wait();
    }
}

#[test]
fn a_program_in_the_wrong_mode_is_told_the_right_one() {
    for launch in [
        Launch::template("sh", ["-c", LOOP]),
        Launch::exec("sh", ["-c", LOOP]),
        Launch::stdio("sh", ["-c", LOOP]),
    ] {
        let error = start_error(launch);
        assert!(error.contains("mode = \"jsonl\""), "{error}");
    }
    for launch in
        [Launch::template("true", [""; 0]), Launch::exec("true", [""; 0]), Launch::stdio("true", [""; 0])]
    {
        let error = start_error(launch);
        assert!(error.contains("it ended without serving: a program with an SDK calls serve()"), "{error}");
    }
    let error = start_error(Launch::template("sleep", ["600"]));
    assert!(error.contains("not ready in time") && error.contains("does it call serve()?"), "{error}");
    let error = start_error(Launch::stdio("sh", ["-c", "echo 'Loading the model, please wait'; cat"]));
    assert!(
        error.contains("it wrote \"Loading the model, please wait\": its standard output is for frames"),
        "{error}"
    );
}
