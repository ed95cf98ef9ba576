//! The demo's worker: this program, started by the demo's server as the template of its loader.
//!
//! It computes all keys of a call at once, as a database does with one query for many rows. The value of
//! `worker:pid` is the number of its process.

use std::time::Duration;

use cattlegrid_worker::JobError;
use cattlegrid_worker::loader::{self, Job, Value};

use super::crowd::value;

/// The first argument of a worker; a pool has to have started it, too.
pub(crate) const WORD: &str = "demo";
/// The time of a call, whatever the number of its keys.
const TAKES: Duration = Duration::from_millis(200);
/// The time of a call with a key of [`SLOW`]: on any machine all clients are waiting before it ends.
const TAKES_LONG: Duration = Duration::from_secs(3);
/// Keys that it takes in a call.
const BATCH_MAX: u32 = 64;

/// Serves jobs, if a server has started this process for that; otherwise it returns. To be called before any
/// thread starts.
pub(crate) fn serve_if_asked() {
    if std::env::args_os().nth(1).is_some_and(|word| word == WORD)
        && let Some(worker) = cattlegrid_worker::maybe_worker()
    {
        loader::serve_batch(worker, BATCH_MAX, load);
    }
}

#[expect(clippy::disallowed_methods, reason = "it plays a slow database; the time is what the demo shows")]
fn load(jobs: &mut [Job<'_>]) -> Vec<Result<Value, JobError>> {
    if jobs.iter().any(|job| job.key().starts_with(SLOW.as_bytes())) {
        std::thread::sleep(TAKES_LONG);
    } else if jobs.iter().any(|job| job.key() != PID_KEY.as_bytes()) {
        std::thread::sleep(TAKES);
    }
    let count = jobs.len();
    jobs.iter().map(|job| computed(job, count)).collect()
}

/// The value of a key that was computed in a call of `count` keys.
fn computed(job: &Job<'_>, count: usize) -> Result<Value, JobError> {
    let key = std::str::from_utf8(job.key())?;
    Ok(if key == PID_KEY {
        // The next worker has another one.
        Value::new(std::process::id().to_string()).ttl(-1)
    } else if key.starts_with(ROW) {
        Value::new(row(key, count))
    } else {
        Value::new(value(key, 0))
    })
}

/// The value of a row: the number of keys in the call that computed it.
pub(super) fn row(key: &str, count: usize) -> String {
    format!("{key}, one of {count}")
}

/// A key whose value is the worker's process id.
pub(super) const PID_KEY: &str = "worker:pid";
/// Keys that take longer than others, so that there is time to kill the worker.
pub(super) const SLOW: &str = "slow:";
/// Keys whose values say with how many others they were computed.
pub(super) const ROW: &str = "row:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_value() {
        let texts = ["row:1", "cold:1"].map(|key| {
            let value = computed(&Job::test(key, &[]), 2).unwrap();
            String::from_utf8(value.data().unwrap().to_vec()).unwrap()
        });
        assert_eq!(texts, ["row:1, one of 2", "cold:1, version 0"]);
        let pid = computed(&Job::test(PID_KEY, &[]), 1).unwrap();
        assert_eq!(pid.data().unwrap(), std::process::id().to_string().as_bytes());
    }
}
