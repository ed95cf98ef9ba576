//! `stats loaders`: for each loader the results of its jobs, and its workers; then results on their way to
//! the store.
//!
//! Counters belong to a loader's name, and a reload keeps them. Workers and times belong to its pool, which a
//! reload replaces.

use std::fmt::Display;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cattlegrid_loader::LoaderView;

use super::definition::{Sink, StatRow, Unit, Value, counter, gauge, put_all, text};
use crate::shared::Shared;

/// The source of the last lines.
pub(super) struct LoadTransit {
    bytes: usize,
    bytes_max: usize,
}

/// The lines of each loader in force, by name, then of all together; none without a loader.
pub(super) fn collect(shared: &Shared, sink: &mut dyn Sink) {
    let views = shared.loaders.views();
    for view in &views {
        let labels: &[&dyn Display] = &[&view.name];
        put_all(LOADERS, labels, shared, view, sink);
    }
    if !views.is_empty() {
        let (bytes, bytes_max) = shared.loaders.transit();
        put_all(TRANSIT, &[], shared, &LoadTransit { bytes, bytes_max }, sink);
    }
}

const fn of_loader(row: StatRow<LoaderView>) -> StatRow<LoaderView> {
    row.labelled("{loader}:", &["loader"])
}

/// A counter of a loader.
macro_rules! count {
    ($name:ident, $help:literal) => {
        of_loader(counter(stringify!($name), Unit::Count, $help, |_, view| view.counts.$name.load(Relaxed)))
    };
}

/// A figure of a loader's pool.
macro_rules! pool {
    ($name:ident, $help:literal) => {
        of_loader(gauge(stringify!($name), Unit::Count, $help, |_, view| view.pool.$name))
    };
}

/// The rows of a loader.
pub(super) static LOADERS: &[StatRow<LoaderView>] = &[
    of_loader(text("mode", "How its workers are started and spoken to.", |_, view| {
        Some(Value::text(view.settings.mode.name()))
    })),
    count!(jobs, "Jobs submitted. Each ends in one of the next seven."),
    count!(values, "Jobs that ended with a value."),
    count!(not_found, "Jobs that ended with \"not found\"."),
    count!(errors, "Jobs that ended with an error of the worker, or with an answer that cannot be used."),
    count!(lost, "Jobs that ended because their worker was lost."),
    count!(timeouts, "Jobs whose time (`timeout`) was up, begun or not."),
    count!(refused, "Jobs that were not begun: the queue was full, or no worker could be started."),
    count!(
        cancelled,
        "Jobs whose values were no longer needed, before a worker had begun them; and those whose worker was told and has stopped."
    ),
    of_loader(gauge(
        "running",
        Unit::Count,
        "Jobs that have not ended, those in the queue included.",
        |_, view| view.counts.running.load(Relaxed),
    )),
    count!(refreshes, "Jobs that were submitted while no client waited for them."),
    count!(
        late,
        "Ends of jobs that did not count: their lease had ended, or the key was invalidated while they ran."
    ),
    count!(
        not_stored,
        "Values that were not stored: there was no memory, they were larger than `-I` allows, or had too many tags."
    ),
    of_loader(gauge(
        "bytes",
        Unit::Bytes,
        "Bytes of its results that are on their way to be stored.",
        |_, view| view.counts.bytes.load(Relaxed) as u64,
    )),
    of_loader(gauge(
        "stale_bytes",
        Unit::Bytes,
        "Bytes of old values (`stale = true`) in jobs that have not ended.",
        |_, view| view.counts.stale_bytes.load(Relaxed) as u64,
    )),
    count!(
        stale_left_out,
        "Jobs that were sent without their old value, because those of other jobs took 64 MiB already, or twice `-I` if that is more."
    ),
    count!(log_left_out, "Reports of failures and lines of output that were too many for the log."),
    pool!(generation, "Programs that this pool has started; a reload of the rule file starts another pool."),
    pool!(workers, "Workers that are ready."),
    pool!(starting, "Workers that are starting."),
    pool!(idle, "Ready workers without a job."),
    pool!(busy, "Ready workers with a job."),
    of_loader(gauge("max", Unit::Count, "Most workers, of all generations together.", |_, view| {
        view.settings.max as u64
    })),
    of_loader(gauge(
        "draining",
        Unit::Count,
        "Workers of earlier generations that finish their last jobs.",
        |_, view| view.draining,
    )),
    of_loader(gauge("queued", Unit::Count, "Jobs that wait for a worker.", |_, view| {
        view.pool.queued_high + view.pool.queued_normal + view.pool.queued_low
    })),
    of_loader(gauge("spawned", Unit::Count, "Workers that this pool has started.", |_, view| {
        view.pool.spawned
    })),
    of_loader(gauge(
        "crashed",
        Unit::Count,
        "Of these, workers that ended without being asked to.",
        |_, view| view.pool.crashed,
    )),
    of_loader(gauge(
        "killed",
        Unit::Count,
        "Of these, workers that were killed: hung, or over a limit.",
        |_, view| view.pool.killed,
    )),
    of_loader(gauge(
        "reply_waits",
        Unit::Count,
        "Times that a worker waited with its answer, because those of all loaders took `transit_bytes_max` already.",
        |_, view| view.pool.reply_waits,
    )),
    of_loader(gauge(
        "templates_lost",
        Unit::Count,
        "Templates that ended without being asked to.",
        |_, view| view.pool.templates_lost,
    )),
    pool!(
        template_missing,
        "1 while there is no template to fork workers from: it has failed and is started again. The server is not ready then (`/readyz`)."
    ),
    of_loader(gauge(
        "wait_p50_us",
        Unit::Microseconds,
        "Median of the time that jobs waited for a worker, rounded up to a power of two.",
        |_, view| micros(view.pool.wait.quantile(0.5)),
    )),
    of_loader(gauge("wait_p99_us", Unit::Microseconds, "99th percentile of the same.", |_, view| {
        micros(view.pool.wait.quantile(0.99))
    })),
    of_loader(gauge(
        "run_p50_us",
        Unit::Microseconds,
        "Median of the time that jobs took at a worker, rounded up to a power of two.",
        |_, view| micros(view.pool.run.quantile(0.5)),
    )),
    of_loader(gauge("run_p99_us", Unit::Microseconds, "99th percentile of the same.", |_, view| {
        micros(view.pool.run.quantile(0.99))
    })),
];

/// The rows of all loaders together.
pub(super) static TRANSIT: &[StatRow<LoadTransit>] = &[
    gauge(
        "transit_bytes",
        Unit::Bytes,
        "Bytes of the results of all loaders that are being read from workers, or on their way to be stored.",
        |_, all| all.bytes as u64,
    ),
    gauge(
        "transit_bytes_max",
        Unit::Bytes,
        "Most such bytes: 16 MiB, or those of two results of `-I` if that is more. A worker with a result beyond them waits.",
        |_, all| all.bytes_max as u64,
    ),
];

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
