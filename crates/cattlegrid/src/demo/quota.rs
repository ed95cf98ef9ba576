//! A scene of objects: many clients use one quota at the same time.

use std::thread;
use std::time::Duration;

use cattlegrid_load::{Tally, count, micros};
use cattlegrid_server::time::Clock;

use super::plain::PlainClient;
use super::protection::promise;
use super::scenes::Stage;
use super::{Act, DemoError, Scene, SceneOutcome};

/// This scene.
pub(super) const ACT: Act = Act {
    heads: &["a quota of 100", "calls", "QUOTA_OK", "QUOTA_EXCEEDED", "p50", "p99", "longest"],
    scenes: &[Scene { title: "many clients use one quota", run: quota }],
};

/// Clients that call at the same time.
const CLIENTS: u64 = 50;
/// Calls of each.
const CALLS: u64 = 40;
const LIMIT: u64 = 100;
/// The window has the length of an hour, and begins with the first call: no hour ends during the scene.
const NEW: &str = "quota:new:api:100:1h";
const USE: &str = "quota:addandcheck:api:1";

/// The reply of the quota to a client.
struct QuotaAnswer {
    granted: u64,
    refused: u64,
    took: Vec<Duration>,
}

fn quota(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let open = || PlainClient::open(stage.ruled(), stage.meter());
    let made = open()?.get(&[NEW.to_owned()])?;
    promise(made.first().is_some_and(|(_, text)| text == "CREATED"), || format!("{NEW}: {made:?}"))?;
    let clients = (0..CLIENTS).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    let ends: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| use_it(client))).collect();
        let ends = running.into_iter().map(thread::ScopedJoinHandle::join);
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let (mut granted, mut refused, mut tally) = (0, 0, Tally::new());
    for end in ends {
        let own = end?;
        granted += own.granted;
        refused += own.refused;
        own.took.into_iter().for_each(|took| tally.answered(took));
    }
    promise(granted == LIMIT && refused == CLIENTS * CALLS - LIMIT, || {
        format!("{granted} grants and {refused} refusals of a quota of {LIMIT}")
    })?;
    let latency = |share| micros(tally.latency(share).as_secs_f64() * 1e6);
    let row = vec![
        format!("{CLIENTS} clients, {CALLS} calls each"),
        count(granted + refused),
        count(granted),
        count(refused),
        latency(0.5),
        latency(0.99),
        latency(1.0),
    ];
    let note = format!(
        "Quota: {CLIENTS} clients called get {USE} at the same time, and {LIMIT} calls were granted."
    );
    Ok(SceneOutcome { rows: vec![row], note: Some(note) })
}

/// Calls again and again.
fn use_it(mut client: PlainClient<'_>) -> Result<QuotaAnswer, DemoError> {
    let clock = Clock::new();
    let mut answered = QuotaAnswer { granted: 0, refused: 0, took: Vec::new() };
    for _ in 0..CALLS {
        let asked = clock.now();
        let found = client.get(&[USE.to_owned()])?;
        answered.took.push(clock.now().duration_since(asked));
        match found.first().map(|(_, text)| text.as_str()) {
            Some("QUOTA_OK") => answered.granted += 1,
            Some("QUOTA_EXCEEDED") => answered.refused += 1,
            _ => return Err(DemoError::Broken(format!("{USE}: {found:?}"))),
        }
    }
    Ok(answered)
}
