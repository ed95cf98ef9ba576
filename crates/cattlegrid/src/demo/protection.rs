//! Scenes of herd protection: who computes, who waits, who gets the old value.

use std::time::Duration;

use cattlegrid_load::{Peer, count, micros};
use serde_json::Value as Json;

use super::crowd::{Backend, Crowd, CrowdResult, CrowdTask, value};
use super::picture::Curve;
use super::plain::PlainClient;
use super::scenes::Stage;
use super::{Act, DemoError, Scene, SceneOutcome};

/// These scenes.
pub(super) const ACT: Act = Act {
    heads: &["many ask for one key", "gets", "computed", "saved", "p50", "p99", "longest"],
    scenes: &[
        Scene { title: "a cold key, no rule", run: unprotected },
        Scene { title: "a cold key under a rule", run: protected },
        Scene { title: "the one that computes is killed", run: killed },
        Scene { title: "an expired key, refreshed under grace", run: refreshed },
    ],
};

/// Clients of a stampede.
const CROWD: u64 = 1000;
/// Clients that wait for a holder that is killed.
const WAITING: u64 = 99;
/// Clients that read while one refreshes.
const READERS: u64 = 64;
/// A database, say, that does 100 of these at once.
const BACKEND: Backend = Backend { at_once: 100, takes: Duration::from_millis(200) };
const REFRESH: Backend = Backend { at_once: 100, takes: Duration::from_millis(500) };
/// Looks at what the server says of a key.
const LOOKS: u32 = 3000;

fn unprotected(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let seen = stampede(stage, "unruled:1")?;
    promise(seen.computed == CROWD, || format!("{} computations without a rule", seen.computed))?;
    let note = format!(
        "Stampede: {} clients, a backend that makes {} values at once, 200 ms each.",
        count(CROWD),
        BACKEND.at_once
    );
    Ok(outcome("1,000 clients, a cold key, no rule", &seen, Some(note)))
}

fn protected(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let seen = stampede(stage, "page:1")?;
    promise(seen.computed == 1 && seen.hits == CROWD - 1, || {
        format!("{} computations and {} values under a rule", seen.computed, seen.hits)
    })?;
    Ok(outcome("1,000 clients, a cold key under a rule", &seen, None))
}

fn stampede(stage: &mut Stage, key: &str) -> Result<CrowdResult, DemoError> {
    let mut crowd = open(stage, CROWD)?;
    all_accepted(stage)?;
    crowd.ask(key)?;
    let seen = crowd.run_until_done(&CrowdTask { key, exptime: 0, backend: BACKEND, again_for: None })?;
    drop(crowd);
    stage.stampedes.push(Curve::new(&seen));
    Ok(seen)
}

fn killed(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let key = "page:2";
    let mut winner = PlainClient::open(stage.ruled(), stage.meter())?;
    let found = winner.get(&[key.to_owned()])?;
    promise(found.is_empty(), || "a key that was never stored was found".to_owned())?;
    let mut crowd = open(stage, WAITING)?;
    crowd.ask(key)?;
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    all_wait(stage, &mut plain, key, WAITING)?;
    winner.kill()?;
    let seen = crowd.run_until_done(&CrowdTask { key, exptime: 0, backend: BACKEND, again_for: None })?;
    promise(seen.computed == 1 && seen.hits == WAITING - 1, || {
        format!("{} computations and {} values after the first was killed", seen.computed, seen.hits)
    })?;
    let note = "Killed: the first client's connection was reset with 99 waiting; the next in line computed.";
    Ok(outcome("99 wait, the one that computes is killed", &seen, Some(note.to_owned())))
}

/// Waits until the server knows all connections of a stampede: none asks only when others have stored the
/// value.
fn all_accepted(stage: &Stage) -> Result<(), DemoError> {
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    let mut connected = 0;
    for _ in 0..LOOKS {
        connected = plain.stat("", "curr_connections")?;
        if connected > CROWD {
            break;
        }
        stage.pause(Duration::from_millis(10))?;
    }
    promise(connected > CROWD, || format!("{connected} of {} clients are connected", count(CROWD)))
}

/// Waits until this many gets wait for a key.
pub(super) fn all_wait(
    stage: &Stage,
    plain: &mut PlainClient<'_>,
    key: &str,
    expected: u64,
) -> Result<(), DemoError> {
    let mut waiting = 0;
    for _ in 0..LOOKS {
        waiting = waiters(plain, key)?;
        if waiting == expected {
            break;
        }
        stage.pause(Duration::from_millis(10))?;
    }
    promise(waiting == expected, || format!("{waiting} of {expected} clients wait"))
}

/// How many gets wait for a key.
fn waiters(plain: &mut PlainClient<'_>, key: &str) -> Result<u64, DemoError> {
    let found = plain.get(&[format!("@why:{key}")])?;
    let said = found.first().map_or("", |(_, text)| text);
    let said: Json =
        serde_json::from_str(said).map_err(|error| DemoError::Broken(format!("@why:{key}: {error}")))?;
    Ok(said["lease"]["waiters"].as_u64().unwrap_or(0))
}

fn refreshed(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let key = "news:1";
    PlainClient::open(stage.ruled(), stage.meter())?.set(key, &value(key, 0), 1)?;
    let mut crowd = open(stage, READERS)?;
    crowd.ask(key)?;
    let again_for = Some(Duration::from_millis(200));
    let seen = crowd.run_until_done(&CrowdTask { key, exptime: 60, backend: REFRESH, again_for })?;
    promise(seen.computed == 1, || format!("{} computations under grace", seen.computed))?;
    promise(seen.hits_meanwhile > 0, || "nobody got the old value during a refresh".to_owned())?;
    let note = format!(
        "Grace: {READERS} clients read on while one computed for 500 ms; {} times they were given the old value, and \
         never after the new one was stored.",
        count(seen.hits_meanwhile)
    );
    let mut outcome = outcome("64 clients, an expired key under grace", &seen, Some(note));
    outcome.rows[0][1] = count(seen.hits_meanwhile + 1);
    outcome.rows[0][3] = count(seen.hits_meanwhile);
    Ok(outcome)
}

pub(super) fn open(stage: &Stage, size: u64) -> Result<Crowd<'_>, DemoError> {
    let peer = Peer::new(stage.ruled(), stage.plan())?;
    Crowd::open(&peer, size as usize, stage.meter())
}

fn outcome(title: &str, seen: &CrowdResult, note: Option<String>) -> SceneOutcome {
    let latency = |share| micros(seen.tally.latency(share).as_secs_f64() * 1e6);
    let gets = seen.computed + seen.hits;
    let row = vec![
        title.to_owned(),
        count(gets),
        count(seen.computed),
        count(seen.hits),
        latency(0.5),
        latency(0.99),
        latency(1.0),
    ];
    SceneOutcome { rows: vec![row], note }
}

pub(super) fn promise(kept: bool, broken: impl FnOnce() -> String) -> Result<(), DemoError> {
    if kept { Ok(()) } else { Err(DemoError::Broken(broken())) }
}
