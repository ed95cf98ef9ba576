//! Scenes of a loader: a worker process computes what is missing, and clients only ask.

use std::time::Duration;

use cattlegrid_load::{count, micros};
use cattlegrid_server::time::Clock;
use rustix::process::{Pid, Signal, kill_process};

use super::crowd::{Backend, CrowdResult, CrowdTask};
use super::plain::PlainClient;
use super::protection::{all_wait, open, promise};
use super::scenes::Stage;
use super::worker::{PID_KEY, ROW, SLOW, row};
use super::{Act, DemoError, Scene, SceneOutcome};

/// These scenes.
pub(super) const ACT: Act = Act {
    heads: &["a worker fills the misses", "gets", "jobs", "p50", "p99", "longest"],
    scenes: &[
        Scene { title: "a cold key, computed by a worker", run: one_job },
        Scene { title: "many cold keys in one get", run: batch },
        Scene { title: "the worker is killed", run: killed },
    ],
};

/// Clients that ask for the same key.
const CROWD: u64 = 200;
/// Keys of one get.
const KEYS: usize = 50;
/// These clients compute nothing.
const NO_BACKEND: Backend = Backend { at_once: 0, takes: Duration::ZERO };

fn one_job(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    let before = jobs(&mut plain)?;
    let mut crowd = open(stage, CROWD)?;
    let key = "cold:1";
    crowd.ask(key)?;
    let seen = crowd.run_until_done(&CrowdTask { key, exptime: 0, backend: NO_BACKEND, again_for: None })?;
    let jobs = jobs(&mut plain)? - before;
    promise(jobs == 1 && seen.hits == CROWD, || {
        format!("{jobs} jobs and {} values for a cold key", seen.hits)
    })?;
    let note =
        "Loader: the worker is a process of this program; the server started it. A call takes it 200 ms.";
    Ok(outcome("200 clients, a cold key", &seen, jobs, Some(note.to_owned())))
}

fn batch(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    let before = jobs(&mut plain)?;
    let keys: Vec<_> = (0..KEYS).map(|id| format!("{ROW}{id}")).collect();
    let expected: Vec<_> = keys.iter().map(|key| (key.clone(), row(key, KEYS))).collect();
    let clock = Clock::new();
    let asked = clock.now();
    let found = plain.get(&keys)?;
    let took = micros(clock.now().duration_since(asked).as_secs_f64() * 1e6);
    let jobs = jobs(&mut plain)? - before;
    promise(found == expected, || format!("{} values for {KEYS} cold keys, or in other calls", found.len()))?;
    promise(jobs == KEYS as u64, || format!("{jobs} jobs for {KEYS} cold keys"))?;
    let title = "1 client, 50 cold keys in one get";
    let row = vec![title.to_owned(), count(1), count(jobs), took.clone(), took.clone(), took];
    let note = "Batch: the worker was given the 50 keys in one call, as a database is asked for 50 rows.";
    Ok(SceneOutcome { rows: vec![row], note: Some(note.to_owned()) })
}

fn killed(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    let worker = pid(&mut plain)?;
    let before = jobs(&mut plain)?;
    let mut crowd = open(stage, CROWD)?;
    let key = &format!("{SLOW}1");
    crowd.ask(key)?;
    all_wait(stage, &mut plain, key, CROWD)?;
    // If it has not begun the job, which is possible on a slow machine, the next worker begins it: one job
    // then.
    kill_process(worker, Signal::KILL).map_err(|error| DemoError::io("the worker")(error.into()))?;
    let seen = crowd.run_until_done(&CrowdTask { key, exptime: 0, backend: NO_BACKEND, again_for: None })?;
    let jobs = jobs(&mut plain)? - before;
    promise((1..=2).contains(&jobs) && seen.hits == CROWD, || {
        format!("{jobs} jobs and {} values after the worker was killed", seen.hits)
    })?;
    let next = pid(&mut plain)?;
    promise(next != worker, || "a killed worker answers".to_owned())?;
    let note = format!(
        "Killed: kill -9 of the worker, process {worker}, with {CROWD} clients waiting; process {next} computed the value, in 3 s."
    );
    Ok(outcome("200 wait, the worker is killed", &seen, jobs, Some(note)))
}

/// The worker's process.
fn pid(plain: &mut PlainClient<'_>) -> Result<Pid, DemoError> {
    let found = plain.get(&[PID_KEY.to_owned()])?;
    let number = found.first().and_then(|(_, text)| text.parse().ok());
    number.and_then(Pid::from_raw).ok_or_else(|| DemoError::Broken(format!("{PID_KEY}: {found:?}")))
}

/// Jobs of the loader so far.
fn jobs(plain: &mut PlainClient<'_>) -> Result<u64, DemoError> {
    plain.stat("loaders", "demo:jobs")
}

fn outcome(title: &str, seen: &CrowdResult, jobs: u64, note: Option<String>) -> SceneOutcome {
    let latency = |share| micros(seen.tally.latency(share).as_secs_f64() * 1e6);
    let row =
        vec![title.to_owned(), count(seen.hits), count(jobs), latency(0.5), latency(0.99), latency(1.0)];
    SceneOutcome { rows: vec![row], note }
}
