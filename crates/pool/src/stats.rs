//! Counters of a pool. Each is defined once, in the list below, with its doc text.
//!
//! The pool's thread is the only writer, so an increment is a load and a store; readers never block it.
//!
//! # Invariant
//! When all jobs have ended, `submitted` is the sum of the counters of outcomes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One counter or gauge, written by one thread.
#[derive(Debug, Default)]
pub(crate) struct RelaxedCounter(AtomicU64);

impl RelaxedCounter {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// The live counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: RelaxedCounter,)*
            /// From submission to dispatch.
            pub(crate) wait: HistogramBuckets,
            /// From dispatch to outcome.
            pub(crate) run: HistogramBuckets,
        }

        /// A snapshot of a pool's counters; read one by one, so sums may be off by the jobs that change their
        /// state at that moment.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)*
            /// Time from submission to dispatch.
            pub wait: Histogram,
            /// Time from dispatch to outcome.
            pub run: Histogram,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    $($name: self.$name.read(),)*
                    wait: self.wait.snapshot(),
                    run: self.run.snapshot(),
                }
            }
        }

        impl Stats {
            /// Name, value and meaning of every counter, in order; for a statistics command.
            pub fn entries(&self) -> Vec<(&'static str, u64, &'static str)> {
                vec![$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii()),)*]
            }
        }
    };
}

counters! {
    /// Workers that are ready, with or without a job, and not retiring.
    workers,
    /// Workers that are starting.
    starting,
    /// Ready workers without a job.
    idle,
    /// Ready workers with a job.
    busy,
    /// Workers that finish their last jobs.
    retiring,
    /// Jobs waiting, priority High.
    queued_high,
    /// Jobs waiting, priority Normal.
    queued_normal,
    /// Jobs waiting, priority Low.
    queued_low,
    /// Callers held because the queue is full (policy Wait).
    held,
    /// 1 while the pool waits for room in the budget that it shares.
    waiting_for_room,
    /// Jobs at workers.
    in_flight,
    /// Generation of the program, from 1; a reload raises it.
    generation,
    /// 1 while the crash-loop breaker is open.
    breaker_open,
    /// 1 while the program is started by a template and none of the current generation is ready.
    template_missing,
    /// Resident set of all workers, KiB, shared pages included; measured once a second if `max_rss` is set,
    /// else 0.
    rss_kib,
    /// Jobs accepted.
    submitted,
    /// Jobs that ended with a reply.
    completed,
    /// Jobs that ended with an error of the worker's function.
    worker_errors,
    /// Jobs that ended because the queue was full.
    rejected,
    /// Jobs that ended because their time was up.
    timeouts,
    /// Jobs whose caller dropped them.
    cancelled,
    /// Jobs that ended because their worker was lost.
    lost,
    /// Jobs that ended because no worker could be started.
    start_failed,
    /// Jobs that ended because their arguments or reply were too large.
    too_large,
    /// Jobs that ended because the pool was shut down.
    shut_down,
    /// Jobs sent again because their worker was lost before beginning them.
    redispatched,
    /// Jobs taken back from a worker that was in another job, because others were idle.
    taken_back,
    /// Idempotent jobs begun again after a lost worker or a retryable error.
    retried,
    /// Batches sent to workers that take batches, those of one job included. With `batch` 1, the default,
    /// always 0.
    batches,
    /// Jobs in these batches.
    batched,
    /// Worker processes started, or asked of the template.
    spawned,
    /// Workers that have ended for whatever reason, or were not forked.
    exited,
    /// Workers that ended without being asked to.
    crashed,
    /// Workers killed by the pool: hung, over a limit, or shut down.
    killed,
    /// Workers retired: idle, recycled, reloaded, resized or at their own wish.
    retired,
    /// Workers killed for breaking the protocol.
    protocol_errors,
    /// Starts that failed: exec, init, time limit, death before READY.
    start_failures,
    /// Starts put off because processes, memory or descriptors were short.
    resource_failures,
    /// Times that a pool has begun to wait for room in its budget.
    no_room,
    /// Times that a worker was not read because its reply found no room.
    reply_waits,
    /// Templates that died and were replaced.
    templates_lost,
    /// Reloads done.
    reloads,
    /// Events received.
    events,
    /// Bytes written by workers to stdout and stderr.
    log_bytes,
    /// Bytes of the log that were not passed on: over the rate limit, or standard error is not read.
    log_dropped,
}

impl Counters {
    /// Jobs in the queue by priority, as of the last turn of the pool's thread.
    pub(crate) fn queued(&self) -> [u64; 3] {
        [self.queued_high.read(), self.queued_normal.read(), self.queued_low.read()]
    }
}

/// A live histogram; bucket n counts durations below 2^n microseconds.
#[derive(Debug, Default)]
pub(crate) struct HistogramBuckets {
    counts: [RelaxedCounter; BUCKETS],
    total_us: RelaxedCounter,
}

impl HistogramBuckets {
    #[inline]
    pub(crate) fn note(&self, took: Duration) {
        let micros = took.as_micros().min(u128::from(u64::MAX)) as u64;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS - 1)].add(1);
        self.total_us.add(micros);
    }

    fn snapshot(&self) -> Histogram {
        Histogram {
            counts: std::array::from_fn(|at| self.counts[at].read()),
            total: Duration::from_micros(self.total_us.read()),
        }
    }
}

/// A histogram of durations with buckets that double.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    /// Bucket n counts durations below 2^n microseconds that are in no bucket before; the last counts all
    /// longer ones.
    pub counts: [u64; BUCKETS],
    /// Sum of all durations, rounded down to microseconds each.
    pub total: Duration,
}

impl Histogram {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// An upper bound of the `share` quantile (0.0..=1.0): the end of its bucket. Zero when empty.
    pub fn quantile(&self, share: f64) -> Duration {
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a rank in a histogram")]
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(1 << bucket);
            }
        }
        Duration::ZERO
    }
}

/// Buckets of a histogram; the last but one ends at about 18 minutes.
const BUCKETS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_doubling_buckets() {
        let buckets = HistogramBuckets::default();
        for micros in [0, 1, 2, 3, 4, 1_000_000] {
            buckets.note(Duration::from_micros(micros));
        }
        let histogram = buckets.snapshot();
        assert_eq!(histogram.counts[..4], [1, 1, 2, 1]);
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.quantile(0.5), Duration::from_micros(4));
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1 << 20));
        assert_eq!(Histogram::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn every_counter_has_a_meaning() {
        let entries = Stats::default().entries();
        assert!(entries.len() > 30);
        assert!(entries.iter().all(|(_, _, doc)| doc.ends_with('.') || doc.ends_with('0')));
    }
}
