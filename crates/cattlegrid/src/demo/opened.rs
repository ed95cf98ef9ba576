//! Traffic while the user looks at the dashboard: every few seconds a stampede, readers of a value that
//! expires, loads, and invalidations.

use std::time::Duration;

use super::crowd::{Backend, CrowdTask, value};
use super::plain::PlainClient;
use super::protection::open;
use super::scenes::Stage;
use super::{DemoError, SceneOutcome};

/// Clients of a stampede, of readers, and of a load.
const CROWD: u64 = 400;
const READERS: u64 = 8;
const ASKING: u64 = 100;
/// A database, say, that does 100 of these at once.
const BACKEND: Backend = Backend { at_once: 100, takes: Duration::from_millis(300) };
/// Clients that compute nothing, since a loader does.
const NO_BACKEND: Backend = Backend { at_once: 0, takes: Duration::ZERO };
/// How long readers read on behind a refresh.
const READ: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_secs(3);

/// Runs until it is interrupted, which is an error.
pub(super) fn run(stage: &Stage) -> Result<SceneOutcome, DemoError> {
    let mut round = 0;
    loop {
        match play(stage, round) {
            // On a machine that is busy two may compute. What is promised the tour has checked.
            Ok(()) | Err(DemoError::Broken(_)) => {}
            Err(error) => return Err(error),
        }
        stage.pause(PAUSE)?;
        round += 1;
    }
}

/// One round, with keys of its own.
fn play(stage: &Stage, round: u64) -> Result<(), DemoError> {
    let page = &format!("page:open{round}");
    let mut crowd = open(stage, CROWD)?;
    crowd.ask(page)?;
    crowd.run_until_done(&CrowdTask { key: page, exptime: 60, backend: BACKEND, again_for: None })?;
    drop(crowd);

    let news = &format!("news:open{round}");
    let mut plain = PlainClient::open(stage.ruled(), stage.meter())?;
    // It fills a miss, so that it is known not to be older than the flush of the tour.
    plain.get(std::slice::from_ref(news))?;
    plain.set(news, &value(news, 0), 1)?;
    let mut readers = open(stage, READERS)?;
    readers.ask(news)?;
    readers.run_until_done(&CrowdTask { key: news, exptime: 60, backend: BACKEND, again_for: Some(READ) })?;
    drop(readers);

    let cold = &format!("cold:open{round}");
    let mut asking = open(stage, ASKING)?;
    asking.ask(cold)?;
    asking.run_until_done(&CrowdTask { key: cold, exptime: 60, backend: NO_BACKEND, again_for: None })?;
    drop(asking);

    let basket = format!("user-basket:{}", round % 7);
    plain.set(&basket, "a basket", 60)?;
    plain.expect(&format!("delete @tag:user:{}\r\n", round % 7), "DELETED")?;
    plain.get(&["quota:addandcheck:api:1".to_owned()])?;
    Ok(())
}
