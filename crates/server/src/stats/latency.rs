//! `stats latency`: how long requests take, by family of commands.

use std::fmt::Display;

use super::definition::{Definition, Export, Histogram, Sink, Unit, ValueKind};
use crate::latency::{BUCKETS_US, Sums};
use crate::shared::Shared;
use crate::turns::Family;

/// The lines of each family of which a request was sampled.
pub(super) fn collect(shared: &Shared, sink: &mut dyn Sink) {
    for family in Family::ALL {
        let sums = Sums::of(family, shared.lanes.iter().map(|lane| &lane.latency));
        if sums.count() == 0 {
            continue;
        }
        let name: &dyn Display = &family.name();
        for (most, count) in BUCKETS_US.iter().zip(sums.buckets) {
            sink.put(&SAMPLES, &[name, most], &count.into());
        }
        sink.put(&SAMPLES_LONGER, &[name], &sums.buckets[BUCKETS_US.len()].into());
        sink.put(&SAMPLES_US, &[name], &sums.sum_us().into());
    }
}

const PREFIX: &str = "{family}:";
const LABELS: &[&str] = &["family"];
const WHEN: &str = "of families of which a request was sampled";

/// The histogram of the sampled requests.
static REQUEST: Histogram = Histogram {
    name: "request",
    help: "How long requests take from the receive to the send, those that are held aside: a sample of one in 64.",
};

/// Samples by duration.
pub(super) static SAMPLES: Definition = Definition {
    suffix: "_to_{most}us",
    export: Export::Bucket(&REQUEST),
    when: WHEN,
    ..Definition::new(
        "samples",
        ValueKind::Counter,
        Unit::Count,
        "Sampled requests that took at most this many microseconds; each counts in the first line that fits.",
    )
    .labelled(PREFIX, &["family", "most"])
};
/// Samples longer than all bounds.
pub(super) static SAMPLES_LONGER: Definition = Definition {
    export: Export::LastBucket(&REQUEST),
    when: WHEN,
    ..Definition::new(
        "samples_longer",
        ValueKind::Counter,
        Unit::Count,
        "Sampled requests that took longer than that.",
    )
    .labelled(PREFIX, LABELS)
};
/// The total time of all samples.
pub(super) static SAMPLES_US: Definition = Definition {
    export: Export::BucketSum(&REQUEST),
    when: WHEN,
    ..Definition::new(
        "samples_us",
        ValueKind::Counter,
        Unit::Microseconds,
        "Time of all sampled requests together.",
    )
    .labelled(PREFIX, LABELS)
};
