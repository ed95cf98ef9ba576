//! Helpers of the integration tests: programs to launch, pools, errors, processes, gates.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::semicolon_if_nothing_returned,
    reason = "helpers of tests"
)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cattlegrid_pool::{Builder, Launch, Pool, PoolError};

/// The longest wait of a test, far longer than any wait takes on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub fn fixture() -> &'static str {
    env!("CARGO_BIN_EXE_pool-fixture")
}

pub fn template() -> Launch {
    Launch::template::<&str>(fixture(), [])
}

pub fn exec() -> Launch {
    Launch::exec::<&str>(fixture(), [])
}

/// A Python program of `tests/apps`, as a template.
pub fn python(app: &str) -> Launch {
    with_apps(Launch::template("python3", ["-m", "cattlegrid.worker", app]))
}

/// The same, for an asynchronous program that does `concurrency` jobs at a time.
pub fn python_async(app: &str, concurrency: u32) -> Launch {
    let concurrency = format!("--concurrency={concurrency}");
    with_apps(Launch::template("python3", ["-m", "cattlegrid.worker", app, &concurrency]))
}

/// The same, exec'ed for each worker.
pub fn python_exec(app: &str) -> Launch {
    with_apps(Launch::exec("python3", ["-m", "cattlegrid.worker", app]))
}

fn with_apps(launch: Launch) -> Launch {
    let here = env!("CARGO_MANIFEST_DIR");
    launch
        .env("PYTHONPATH", format!("{here}/../../python/src:{here}/tests/apps"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

pub fn broken(how: &str) -> Launch {
    exec().env("FIXTURE", "broken").env("BROKEN", how)
}

/// Errors a pool has reported.
#[derive(Clone, Default)]
pub struct Errors(Arc<Mutex<Vec<String>>>);

impl Errors {
    pub fn watch(&self, builder: Builder) -> Builder {
        let list = Arc::clone(&self.0);
        builder.on_error(move |error: &PoolError| list.lock().unwrap().push(error.to_string()))
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self, what: &str) -> usize {
        self.all().iter().filter(|error| error.contains(what)).count()
    }
}

/// A builder whose pool says nothing on stderr, and whose programs may start slowly.
pub fn quiet(launch: Launch) -> Builder {
    Pool::builder(launch).on_log(|_| {}).on_error(|_| {}).start_timeout(PATIENCE * 2)
}

#[expect(clippy::disallowed_methods, reason = "waiting for another process")]
pub fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waiting for another process")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `done`, checking every 5 ms; panics after [`PATIENCE`].
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        pause(ms(5));
    }
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

pub fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("the process exists");
}

/// Number of a reply.
pub fn number(reply: &cattlegrid_pool::Reply) -> u32 {
    reply.text().parse().expect("a number")
}

/// A fresh path in the temporary directory.
pub fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("cattlegrid-{}-{name}", std::process::id()));
    std::fs::remove_file(&path).ok();
    path
}

/// Processes of this test binary's tree: children of `pid` that are alive or zombies.
pub fn children(pid: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(child) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut fields = rest.split(' ');
        let state = fields.next().and_then(|field| field.chars().next()).unwrap_or('?');
        if fields.next().and_then(|field| field.parse().ok()) == Some(pid) {
            found.push((child, state));
        }
    }
    found
}

/// Jobs that end when a gate is opened: `["gate", gate.path()]`.
pub struct Gate(PathBuf);

impl Gate {
    pub fn new(name: &str) -> Self {
        Self(scratch(name))
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn open(&self) {
        std::fs::write(&self.0, "open").unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// A program with two pools of two workers, each with a grandchild: the program, and the numbers of
/// grandchild, worker, worker for each pool.
pub fn parent() -> (Child, Vec<u32>) {
    let mut program = Command::new(fixture())
        .env("FIXTURE", "parent")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pids = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    (program, pids)
}
