//! Workers in other languages: Python with its SDK, Node and a shell script by lines of JSON.

use std::sync::{Arc, Mutex};

use crate::common::*;
use cattlegrid_pool::{Error, Launch, LogChunk, Pool};

fn lines(program: &str, file: &str) -> Launch {
    Launch::json_lines(program, [format!("{}/tests/apps/{file}", env!("CARGO_MANIFEST_DIR"))])
}

#[test]
fn node_by_json_lines() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let (events, progress) = (Arc::clone(&said), Arc::clone(&said));
    let pool = quiet(lines("node", "lines.js"))
        .init("hello")
        .max(1)
        .load(4)
        .kill_grace(ms(200))
        .on_event(move |event| {
            events.lock().unwrap().push(String::from_utf8_lossy(event.parts.part(1)).into_owned())
        })
        .spawn()
        .wait()
        .unwrap();
    let bytes = [0_u8, 0xff, b'\n', b'"'];
    let reply = pool.call([&b"echo"[..], "ü\n".as_bytes(), &bytes]).wait().unwrap();
    assert_eq!(reply.parts().iter().collect::<Vec<_>>(), ["ü\n".as_bytes(), &bytes]);
    let squares: Vec<_> = (0..20).map(|n| pool.call(["square".to_owned(), n.to_string()])).collect();
    for (n, call) in squares.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), (n * n).to_string());
    }
    let error = pool.call(["fail"]).wait().unwrap_err();
    assert!(matches!(error, Error::Worker { code, retryable: true, .. } if code == "no"));
    let job = pool.job(["progress"]).on_progress(move |how| {
        progress.lock().unwrap().push(String::from_utf8_lossy(how).into_owned());
    });
    assert!(job.call().wait().unwrap().parts().is_empty());
    assert_eq!(*said.lock().unwrap(), ["hello", "half"]);
    assert!(
        matches!(pool.call(["nonsense"]).wait(), Err(Error::WorkerLost { reason, .. }) if reason.contains("not JSON"))
    );
    assert_eq!(pool.call(["echo", "ready"]).wait().unwrap().text(), "ready");
    assert_eq!(pool.job(["hang"]).timeout(ms(1_000)).call().wait(), Err(Error::Timeout { started: true }));
    assert_eq!(pool.call(["echo", "after"]).wait().unwrap().text(), "after");
    pool.shutdown().wait();
}

#[test]
fn shell_by_json_lines() {
    let pool = quiet(lines("sh", "lines.sh")).max(2).spawn().wait().unwrap();
    let calls: Vec<_> = ["a", "bc", "def"].into_iter().map(|word| (word, pool.call([word]))).collect();
    for (word, call) in calls {
        assert_eq!(call.wait().unwrap().text(), word.to_uppercase());
    }
    assert!(matches!(pool.call(["die"]).wait(), Err(Error::WorkerLost { signal: Some(9), .. })));
    assert_eq!(pool.call(["again"]).wait().unwrap().text(), "AGAIN");
    pool.shutdown().wait();
}

#[test]
fn json_lines_that_are_never_ready_are_an_error() {
    let error = quiet(Launch::json_lines("sh", ["-c", "echo oops >&2; exit 4"])).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("status 4") && error.to_string().contains("oops"), "{error}");
}

/// Messages of `init`: there is no job yet, and the pool has not said how long a frame may be.
#[test]
fn python_logs_and_events_of_init() {
    for launch in [python("app"), python_exec("app")] {
        let logged = Arc::new(Mutex::new(String::new()));
        let text = Arc::clone(&logged);
        let builder = Pool::builder(launch.clone().env("APP", "says")).on_error(|_| {});
        let log =
            move |chunk: LogChunk<'_>| text.lock().unwrap().push_str(&String::from_utf8_lossy(chunk.bytes));
        let pool = builder.on_log(log).max(1).spawn().wait().unwrap();
        pool.call(["pid"]).wait().unwrap();
        eventually("it is logged", || logged.lock().unwrap().contains("from init"));
        pool.shutdown().wait();
    }
    match quiet(python("app").env("APP", "says-much")).max(1).spawn().wait() {
        Err(Error::StartFailed { reason, .. }) => {
            assert!(reason.contains("ValueError: the event has"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn python_in_template_and_exec_mode() {
    for (launch, forked) in [(python("app"), true), (python_exec("app"), false)] {
        let said = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&said);
        let pool = quiet(launch)
            .init("event=connected")
            .max(1)
            .load(4)
            .kill_grace(ms(3_000))
            .on_event(move |event| events.lock().unwrap().push((event.worker == 0, event.parts.text())))
            .spawn()
            .wait()
            .unwrap();
        let pid = pool.call(["pid"]).wait().unwrap().text();
        let loaded = pool.call(["loaded"]).wait().unwrap();
        assert_eq!(
            (loaded.parts().len(), loaded.text() == pid),
            (1, !forked),
            "init runs once, in the template"
        );
        assert!(said.lock().unwrap().contains(&(false, "connected".into())));
        assert!(said.lock().unwrap().contains(&(forked, "loaded".into())), "from @worker.init");
        let big = vec![9_u8; 2 << 20];
        assert!(pool.call([&b"echo"[..], b"", &big]).wait().unwrap().part(1) == big);
        match pool.call(["raise"]).wait().unwrap_err() {
            Error::Worker { code, message, detail, .. } => {
                assert_eq!((code.as_str(), message.as_str()), ("exception", "Custom: as told"));
                assert!(detail.contains("Traceback") && detail.contains("app.py"), "{detail}");
            }
            other => panic!("{other}"),
        }
        assert!(
            matches!(pool.call(["job-error"]).wait(), Err(Error::Worker { code, retryable: true, .. }) if code == "code")
        );
        assert!(
            matches!(pool.call(["bad"]).wait(), Err(Error::Worker { message, .. }) if message.contains("TypeError"))
        );
        let parts: Vec<Vec<u8>> =
            pool.call(["generator", "3"]).wait().unwrap().parts().iter().map(<[u8]>::to_vec).collect();
        assert_eq!(parts, [b"AAA", b"BBB", b"CCC"]);
        assert_eq!(pool.call(["deadline"]).wait().unwrap().text(), "none");
        assert_eq!(pool.job(["deadline"]).timeout(PATIENCE).call().wait().unwrap().text(), "some");
        assert_eq!(pool.call(["pid"]).wait().unwrap().text(), pid, "it has survived all that");
        // A finished reply does not wait for the slow job behind it.
        let fast = pool.call(["echo", "fast"]);
        let slow = pool.call(["sleep", "60000", "x"]);
        assert_eq!(fast.wait().unwrap().text(), "fast");
        drop(slow);
        let lost = pool.call(["exit"]).wait();
        assert!(matches!(lost, Err(Error::WorkerLost { status: Some(3), .. })), "{lost:?}");
        pool.call(["retire"]).wait().unwrap();
        eventually("it has left", || pool.stats().retired == 1);
        pool.shutdown().wait();
    }
}

#[test]
fn python_start_errors_come_with_their_text() {
    let error = quiet(python("no_such_module")).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("No module named 'no_such_module'"), "{error}");
    let error = quiet(python("app")).init("fail=no-database").spawn().wait().unwrap_err();
    assert!(error.to_string().contains("no-database"), "{error}");
}

#[test]
fn python_asyncio_runs_jobs_together() {
    let pool = quiet(python("tasks:work")).max(1).load(50).kill_grace(PATIENCE).spawn().wait().unwrap();
    let start = now();
    let calls: Vec<_> = (0..50).map(|n| pool.call(["sleep".to_owned(), n.to_string()])).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(call.wait().unwrap().text(), n.to_string());
    }
    // One after the other they would take 10 s.
    assert!(start.elapsed() < ms(8_000), "{:?}", start.elapsed());
    let cancelled = pool.call(["forever"]);
    eventually("it runs", || pool.stats().in_flight == 1);
    drop(cancelled);
    eventually("the task was cancelled", || pool.stats().in_flight == 0);
    assert_eq!((pool.stats().killed, pool.stats().lost), (0, 0));
    pool.shutdown().wait();
}

/// Every exception but `SystemExit` is an error of its job.
#[test]
fn python_exceptions_of_every_kind_are_errors_of_the_job() {
    for launch in [python("app"), python("tasks:work")] {
        let pool = quiet(launch).max(1).spawn().wait().unwrap();
        let pid = pool.call(["pid"]).wait().unwrap().text();
        for (kind, name) in
            [("interrupt", "KeyboardInterrupt"), ("cancelled", "CancelledError"), ("exit", "GeneratorExit")]
        {
            match pool.call(["raise-base", kind]).wait() {
                Err(Error::Worker { code, message, .. }) => {
                    assert_eq!(code, "exception");
                    assert!(message.starts_with(name), "{message}");
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_eq!(pool.call(["pid"]).wait().unwrap().text(), pid);
        pool.shutdown().wait();
    }
}

/// Exceptions, by their names in `apps/odd.py`, and how their messages begin.
const ODD: [(&str, &str); 11] = [
    ("no-text", "NoText: (its text cannot be made: ValueError)"),
    ("number", "TextIsNumber: (its text cannot be made: TypeError)"),
    ("leaves", "Leaves: (its text cannot be made: SystemExit)"),
    ("no-name", "NoName: said"),
    ("no-traceback", "NoTraceback: said"),
    ("caused", "RuntimeError: outer"),
    ("surrogates", "ValueError: a?b"),
    ("long", "ValueError: xxxx"),
    ("bare", "Bare: "),
    ("job-error", "(its text cannot be made: ValueError)"),
    ("undecided", "JobError: code: message"),
];

/// An exception that raises when it is asked for its text is an error of its job, too.
#[test]
fn python_exceptions_without_a_text_are_errors_of_the_job() {
    for launch in [python("app"), python("tasks:work")] {
        let pool = quiet(launch).max(1).max_frame(1 << 20).spawn().wait().unwrap();
        let pid = pool.call(["pid"]).wait().unwrap().text();
        for (kind, text) in ODD {
            match pool.call(["raise-odd", kind]).wait() {
                Err(Error::Worker { code, message, detail, retryable }) => {
                    assert!(message.starts_with(text), "{kind}: {message:.200}");
                    let own = kind == "job-error";
                    assert_eq!(
                        (code.as_str(), retryable),
                        if own { ("5", true) } else { ("exception", false) }
                    );
                    let traced = detail.contains("odd.py") || detail.contains(" in work");
                    assert!(
                        own || traced || ["no-traceback", "long"].contains(&kind),
                        "{kind}: {detail:.400}"
                    );
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_eq!(pool.call(["pid"]).wait().unwrap().text(), pid);
        pool.shutdown().wait();
    }
}

/// The same while a program loads, and in its workers before the first job.
#[test]
fn python_exceptions_without_a_text_are_reported_by_a_start() {
    for kind in ["no-text", "no-name", "surrogates"] {
        let text = ODD.iter().find(|(known, _)| *known == kind).unwrap().1;
        for launch in [python("app"), python_exec("app")] {
            let error = quiet(launch.clone()).init(format!("odd={kind}")).spawn().wait().unwrap_err();
            assert!(error.to_string().contains(text), "{kind}: {error}");
            let error =
                quiet(launch.env("APP", "odd").env("ODD", kind)).spawn().wait().unwrap_err().to_string();
            assert!(error.contains("in load") && error.contains("app.py"), "{kind}: {error}");
        }
    }
}

#[test]
fn python_says_which_part_of_a_list_is_none() {
    let pool = quiet(python("app")).max(1).spawn().wait().unwrap();
    for (job, text) in [
        ("bad-list", "TypeError: part 2 (counted from 0) of 4 is int; a part is bytes or str"),
        ("bad-event", "TypeError: part 1 (counted from 0) of 2 is int; a part is bytes or str"),
        ("bad", "TypeError: a job returns None, bytes, str or a list of these, not int"),
    ] {
        let error = pool.call([job]).wait().unwrap_err();
        assert!(matches!(&error, Error::Worker { message, .. } if message == text), "{error}");
    }
    pool.shutdown().wait();
}

#[test]
fn python_exit_functions_run_and_what_the_template_has_stays_its_own() {
    for launch in [python("app"), python_exec("app")] {
        let forked = format!("{launch:?}").contains("mode: Template");
        let files = [scratch("at-exit"), scratch("at-exit-ran")];
        std::fs::write(&files[0], "").unwrap();
        let [from, to] = files.each_ref().map(|file| file.to_str().unwrap());
        let pool = quiet(launch).max(1).kill_grace(PATIENCE).spawn().wait().unwrap();
        pool.call(["at-exit", from, to]).wait().unwrap();
        pool.call(["retire"]).wait().unwrap();
        eventually("it has left", || pool.stats().exited == 1);
        assert!(files[1].exists(), "the worker's exit function has run");
        let temporary = pool.call(["temporary"]).wait().unwrap();
        assert_eq!(temporary.part(1), b"True", "the template's directory is there");
        pool.shutdown().wait();
        assert!(!std::path::Path::new(&temporary.text()).exists(), "{forked}: it is gone with its owner");
        std::fs::remove_file(&files[1]).unwrap();
    }
}

/// The variables that a pool sets for its worker do not reach the programs that the worker starts.
#[test]
fn a_worker_may_run_its_own_binary() {
    for launch in [template(), exec()] {
        let pool = quiet(launch).max(1).spawn().wait().unwrap();
        // The fixture's answer when no pool has started it.
        assert_eq!(pool.call(["run-itself"]).wait().unwrap().text(), "2");
        pool.shutdown().wait();
    }
    for launch in [python("app"), python_exec("app")] {
        let pool = quiet(launch).max(1).spawn().wait().unwrap();
        assert_eq!(pool.call(["run-itself"]).wait().unwrap().text().trim(), "[]");
        pool.shutdown().wait();
    }
}

/// The error names the threads of a template, and the variable that keeps a library from starting them.
#[test]
fn threads_of_a_python_template_are_named_with_the_variable_that_helps() {
    let error = quiet(python("app").env("APP", "threads")).spawn().wait().unwrap_err().to_string();
    assert!(error.contains("2 threads (a-thread-of-mine)"), "{error}");
    assert!(error.contains("set OPENBLAS_NUM_THREADS=1"), "{error}");
}
