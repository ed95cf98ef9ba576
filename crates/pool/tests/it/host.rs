//! The surroundings of a pool: the program's standard error, destructors that panic, extreme settings.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;
use cattlegrid_pool::{Error, Launch, Limits, Pool, Priority, Sandbox};

/// Runs a program whose pool logs to its standard error, and returns the line that it prints about its jobs.
fn talk(mut command: Command, stderr: Stdio, reader: impl FnOnce(std::process::ChildStderr)) -> String {
    let mut child = command
        .env("FIXTURE", "talker")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    if let Some(stderr) = child.stderr.take() {
        reader(stderr);
    }
    let start = now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return "it hangs".into();
        }
        pause(ms(5));
    }
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

const ALL_WELL: &str = "32 1 1\n";

#[test]
fn the_log_does_not_need_a_standard_error_that_is_read() {
    assert_eq!(talk(Command::new(fixture()), Stdio::piped(), drop), ALL_WELL, "a closed pipe");
    let mut kept = None;
    let said = talk(Command::new(fixture()), Stdio::piped(), |stderr| kept = Some(stderr));
    assert_eq!(said, ALL_WELL, "a full pipe");
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(talk(Command::new(fixture()), full.into(), drop), ALL_WELL, "a full disk");
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" 2>&-", fixture()]);
    assert_eq!(talk(closed, Stdio::null(), drop), ALL_WELL, "no descriptor 2");
}

#[test]
fn a_slow_reader_of_the_log_delays_no_job() {
    let said = talk(Command::new(fixture()), Stdio::piped(), |mut stderr| {
        std::thread::spawn(move || {
            let mut chunk = [0; 512];
            while stderr.read(&mut chunk).is_ok_and(|count| count > 0) {
                pause(ms(20));
            }
        });
    });
    assert_eq!(said, ALL_WELL);
}

/// Two workers print at the same time, in pieces: the lines are whole and begin with the number of their
/// worker.
#[test]
fn lines_of_the_log_are_whole_and_have_their_origin() {
    let (sender, receiver) = mpsc::channel();
    let said = talk(Command::new(fixture()), Stdio::piped(), move |mut stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            sender.send(text).unwrap();
        });
    });
    assert_eq!(said, ALL_WELL);
    let text = receiver.recv_timeout(PATIENCE).unwrap();
    let (mut of_workers, mut last_words) = (0, 0);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("worker ") {
            let (number, words) = rest.split_once(": ").expect("a number");
            assert!(number.parse::<u64>().is_ok(), "{line}");
            assert!(words == "last words" || words.bytes().all(|byte| byte == b'x'), "{words:.100}");
            of_workers += 1;
            last_words += usize::from(words == "last words");
        } else {
            assert!(line.starts_with("cattlegrid-pool: "), "{line:.100}");
        }
    }
    assert!(of_workers > 10 && last_words == 1, "{of_workers} lines, {last_words}");
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in a destructor, as meant");
    }
}

/// The destructor of a value in a callback panics. That ends the pool's thread, and every call ends with an
/// error.
#[test]
fn every_call_ends_when_the_thread_of_the_pool_does() {
    let errors = Errors::default();
    let (sender, destroyed) = mpsc::channel();
    let builder = Pool::builder(template()).on_log(|_| {}).max(2).idle(2).load(1);
    let builder = errors.watch(builder).on_destroy(move || sender.send(()).unwrap());
    let pool = builder.spawn().wait().unwrap();
    pool.ready(2).wait().unwrap();
    let workers = pool.workers().wait();
    let running = pool.call(["hang", "spin"]);
    let (sender, called_back) = mpsc::channel();
    eventually("it runs", || pool.stats().busy == 1);
    let bomb = PanicsWhenDropped;
    let last = pool.job(["sleep", "1000", ""]).on_progress(move |_| assert_eq!(size_of_val(&bomb), 0)).call();
    for _ in 0..5 {
        let sender = sender.clone();
        pool.submit(["echo"], move |outcome| sender.send(outcome).unwrap());
    }
    let waiting = pool.reload(template().env("FIXTURE", "sleeps"));
    let queued = pool.call(["echo"]);
    // Its own reply may be delivered before its destructor runs.
    drop(last.wait());
    assert_eq!(running.wait(), Err(Error::PoolLost));
    assert_eq!(queued.wait(), Err(Error::PoolLost));
    assert_eq!(waiting.wait(), Err(Error::PoolLost));
    for _ in 0..5 {
        assert_eq!(called_back.recv_timeout(PATIENCE), Ok(Err(Error::PoolLost)));
    }
    assert_eq!(pool.call(["echo"]).wait(), Err(Error::PoolLost));
    assert_eq!(destroyed.recv_timeout(PATIENCE), Ok(()));
    assert_eq!(errors.count("own thread has panicked"), 1, "{:?}", errors.all());
    eventually("no worker is left", || workers.iter().all(|worker| !is_alive(worker.pid)));
    eventually("no zombie is left", || children(std::process::id()).iter().all(|(_, state)| *state != 'Z'));
    let stats = pool.stats();
    assert_eq!(stats.submitted, stats.completed + stats.shut_down);
    pool.shutdown().wait();
    assert!(pool.workers().wait().is_empty());
}

/// Every option that takes a duration, at its longest: the pool works as usual.
#[test]
fn no_duration_is_too_long() {
    let pool = quiet(template())
        .max(2)
        .load(1)
        .start(Duration::MAX)
        .stop(Duration::MAX)
        .ageing(Duration::MAX)
        .job_timeout(Duration::MAX)
        .kill_grace(Duration::MAX)
        .start_timeout(Duration::MAX)
        .shutdown_grace(Duration::MAX)
        .ping(Duration::MAX)
        .max_age(Duration::MAX)
        .max_jobs_jitter(0.0)
        .crash_loop(3, Duration::MAX)
        .spawn()
        .wait()
        .unwrap();
    for priority in [Priority::Low, Priority::Normal, Priority::High] {
        let call = pool.job(["echo", "x"]).priority(priority).timeout(Duration::MAX).call();
        assert_eq!(call.wait().unwrap().text(), "x");
    }
    // Jobs in the queue, a cancelled one, a worker that dies, a retirement.
    let calls: Vec<_> = (0..5).map(|_| pool.call(["sleep", "20", "y"])).collect();
    drop(pool.job(["sleep", "20", ""]).priority(Priority::Low).call());
    for call in calls {
        assert_eq!(call.wait().unwrap().text(), "y");
    }
    assert!(matches!(pool.call(["die", "kill"]).wait(), Err(Error::WorkerLost { .. })));
    assert_eq!(pool.call(["echo", "z"]).wait().unwrap().text(), "z");
    let worker = pool.workers().wait()[0].number;
    assert!(pool.retire(worker).wait());
    assert_eq!(pool.call(["echo", "z"]).wait().unwrap().text(), "z");
    pool.shutdown().wait();
}

#[test]
fn invalid_options_are_refused_by_spawn() {
    let null = || File::open("/dev/null").unwrap();
    let many = |count: usize| {
        (0..count).fold(quiet(template()), |builder, n| builder.pass_fd(format!("fd{n}"), null()))
    };
    let pool = many(32).spawn().wait().unwrap();
    assert_eq!(pool.call(["echo", "x"]).wait().unwrap().text(), "x");
    assert!(matches!(pool.reload(Launch::exec::<&str>("a\0b", [])).wait(), Err(Error::InvalidOption(_))));
    pool.shutdown().wait();
    for (builder, word) in [
        (many(33), "33 descriptors"),
        (many(70), "70 descriptors"),
        (quiet(template()).pass_fd("a=b", null()), "a=b"),
        (quiet(template()).pass_fd("a", null()).pass_fd("a", null()), "twice"),
        (quiet(template()).max_jobs_jitter(f64::NAN), "not a number"),
        (quiet(template()).env("A=B", "c"), "A=B"),
        (quiet(template()).args(["a\0b"]), "NUL"),
        (quiet(Launch::exec::<&str>("", [])), "program"),
        (quiet(template().env("", "c")), "env"),
        (quiet(template()).init(vec![b'x'; LONGEST_INIT + 1]), "init: 67108844 bytes, at most 67108843"),
        (quiet(template()).sandbox(become_user(u32::MAX, 60_001)), "uid_gid"),
        (quiet(template()).sandbox(become_user(60_001, u32::MAX)), "uid_gid"),
        (quiet(template()).sandbox(become_user(u32::MAX, u32::MAX)), "uid_gid"),
        (quiet(template()).limits(Limits { nice: 20, ..Limits::default() }), "nice"),
        (quiet(template()).limits(Limits { nice: -21, ..Limits::default() }), "nice"),
        (
            quiet(template()).limits(Limits { oom_score_adj: Some(1001), ..Limits::default() }),
            "oom_score_adj",
        ),
    ] {
        match builder.spawn().wait() {
            Err(Error::InvalidOption(text)) => assert!(text.contains(word), "{word}: {text}"),
            other => panic!("{word}: {other:?}"),
        }
    }
}

/// The longest configuration that fits into an INIT of 64 MiB.
const LONGEST_INIT: usize = (64 << 20) - 21;

/// Reading it takes time in proportion to its length; otherwise each worker would use more than a minute of
/// CPU time.
#[test]
fn the_longest_init_is_read_by_every_worker() {
    for launch in [template(), python("app"), python_exec("app")] {
        let config = vec![b'x'; LONGEST_INIT];
        let pool = quiet(launch).init(config).max(1).start_timeout(5 * PATIENCE).spawn().wait().unwrap();
        assert_eq!(pool.call(["echo", "y"]).wait().unwrap().text(), "y");
        let seconds = processor_seconds(pool.workers().wait()[0].pid);
        assert!(seconds < 25, "{seconds} s of processor time");
        pool.shutdown().wait();
    }
}

/// CPU time of a process, which other processes of a busy machine do not lengthen.
fn processor_seconds(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    // Of user and system, in ticks of 10 ms.
    rest.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>() / 100
}

#[test]
fn one_reload_at_a_time() {
    let pool = quiet(template()).max(1).spawn().wait().unwrap();
    // On the pool's thread: both are there before the first one can end.
    let (sender, receiver) = mpsc::channel();
    let inner = pool.clone();
    pool.submit(["echo"], move |_| {
        sender.send([inner.reload(template()), inner.reload(template())]).unwrap();
    });
    let [first, second] = receiver.recv_timeout(PATIENCE).unwrap();
    first.wait().unwrap();
    let error = second.wait().unwrap_err().to_string();
    assert!(error.contains("another start or the end of the pool is under way"), "{error}");
    pool.reload(template()).wait().unwrap();
    pool.shutdown().wait();
}

fn become_user(uid: u32, gid: u32) -> Sandbox {
    Sandbox { uid_gid: Some((uid, gid)), ..Sandbox::default() }
}
