//! `stats rules`: each rule's parameters, learned times and counters; then the sums of all rules except those
//! that only observe.
//!
//! No shard is locked here: a rule's counters and learned times are atomics.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cattlegrid_engine::rules::Rule;
use cattlegrid_herd::{LeaseTime, RuleCounters, RuleState, UNCROSSED, WAIT_BUCKETS_MS};

use super::definition::{
    Definition, Export, Histogram, Sink, StatRow, Unit, Value, ValueKind, gauge, put_all, text, value,
};
use crate::advice::rule_advice;
use crate::shared::Shared;

/// The source of a rule's lines.
pub(super) struct RuleStats {
    rule: Arc<Rule>,
    state: Arc<RuleState>,
}

/// The lines of each rule in force, or of the rules whose numbers are in `keep`, in ascending order; then of
/// all together. None without a rule file.
pub(crate) fn collect(shared: &Shared, keep: Option<&[u32]>, sink: &mut dyn Sink) {
    let active = shared.engine.shared().rules();
    let Some(active) = active.as_ref() else { return };
    let mut sums = [0_u64; COUNTERS.len()];
    for (rule, state) in active.each() {
        let labels: &[&dyn Display] = &[&rule.number];
        let one = RuleStats { rule: Arc::clone(rule), state: Arc::clone(state) };
        let counts = state.counters().values();
        for (count, sum) in counts.iter().zip(&mut sums) {
            // Counts of a rule that only observes are hypothetical, and not part of the sum.
            *sum += if rule.policy.observe { 0 } else { *count };
        }
        if keep.is_some_and(|keep| keep.binary_search(&rule.number).is_err()) {
            continue;
        }
        put_all(TERMS, labels, shared, &one, sink);
        for (definition, count) in COUNTERS.iter().zip(counts) {
            sink.put(definition, labels, &count.into());
        }
        collect_waits(state, &rule.number, sink);
    }
    for (definition, sum) in TOTALS.iter().zip(sums) {
        sink.put(definition, &[], &sum.into());
    }
    for (number, hint) in (1..).zip(shared.engine.shared().prefix_hints()) {
        sink.put(&HINT, &[&number], &Value::text(hint.to_string()));
    }
}

/// The last bucket has no upper bound.
fn collect_waits(state: &RuleState, rule: &dyn Display, sink: &mut dyn Sink) {
    let waits = &state.counters().waits_ms;
    for (most, count) in WAIT_BUCKETS_MS.iter().zip(waits) {
        sink.put(&WAITS, &[rule, most], &count.load(Relaxed).into());
    }
    sink.put(&WAITS_LONGER, &[rule], &waits[WAIT_BUCKETS_MS.len()].load(Relaxed).into());
    sink.put(&WAITED, &[rule], &state.counters().waited_ms.load(Relaxed).into());
}

const PREFIX: &str = "{rule}:";
const LABELS: &[&str] = &["rule"];

const fn of_rule(row: StatRow<RuleStats>) -> StatRow<RuleStats> {
    row.labelled(PREFIX, LABELS)
}

/// A row of a learned time, which is at this position of [`RuleState::learned_ms`].
macro_rules! learned {
    ($name:literal, $help:literal, $at:literal) => {
        of_rule(value($name, ValueKind::Gauge, Unit::Milliseconds, $help, |_, one| {
            Some(u64::from(one.state.learned_ms()?[$at]).into())
        }))
        .when("once something is learned")
    };
}

/// The rows of a rule's parameters and times.
pub(super) static TERMS: &[StatRow<RuleStats>] = &[
    of_rule(text("match", "The rule's pattern.", |_, one| {
        Some(Value::text(one.rule.pattern.text().to_owned()))
    })),
    of_rule(text("prefix", "The prefix of the server behind which its keys are.", |_, one| {
        one.rule.prefix.as_deref().map(|prefix| Value::text(prefix.to_owned()))
    }))
    .when("when it is limited to one"),
    of_rule(text(
        "mode",
        "Whether it is in force: `on`; or `observe`: nothing changes for clients, and what the rule would do is counted.",
        |_, one| Some(Value::text(if one.rule.policy.observe { "observe" } else { "on" })),
    )),
    of_rule(gauge("matched", Unit::Flag, "Whether a key has missed or was written under it.", |_, one| {
        one.state.has_matched().into()
    })),
    of_rule(text("lease", "Whether the lease is learned (auto) or fixed.", |_, one| {
        let lease = match one.state.policy().lease {
            LeaseTime::Auto => "auto",
            LeaseTime::Fixed(_) => "fixed",
        };
        Some(Value::text(lease))
    })),
    of_rule(gauge("lease_ms", Unit::Milliseconds, "How long a holder may compute.", |_, one| {
        one.state.lease_ms().into()
    })),
    of_rule(gauge("fill_window_ms", Unit::Milliseconds, "How long a miss is remembered.", |_, one| {
        one.state.fill_window_ms().into()
    })),
    of_rule(gauge("computing", Unit::Count, "Leases that compute now.", |_, one| {
        one.state.computing().into()
    })),
    learned!("p50_ms", "Median of the learned times of computations.", 0),
    learned!("p90_ms", "90th percentile of the learned times of the last 16 computations.", 1),
    learned!("p99_ms", "99th percentile of the learned times of computations.", 2),
    of_rule(gauge(
        "fill_p99_ms",
        Unit::Milliseconds,
        "Usual longest time from a miss to its fill, of the last 200 fills.",
        |_, one| one.state.fill_p99_ms(),
    )),
    of_rule(text(
        "advice",
        "What to change in the rule, the first of what the page `/advice` of the admin address has: values are dropped though they may \
         be newer than the last invalidation, or waiting does not help.",
        |_, one| rule_advice(&one.state).first().map(|advice| Value::text(advice.line())),
    ))
    .when("when there is something to change"),
];

/// The counters of each rule.
pub(super) static COUNTERS: [Definition; RuleCounters::NAMES.len()] = counters(PREFIX, LABELS, Export::Own);
/// The sums over all rules in force that do not only observe.
pub(super) static TOTALS: [Definition; RuleCounters::NAMES.len()] = counters("total:", &[], Export::Sum);

const fn counters(
    prefix: &'static str,
    labels: &'static [&'static str],
    export: Export,
) -> [Definition; RuleCounters::NAMES.len()] {
    let mut all = [Definition::new("", ValueKind::Counter, Unit::Count, ""); RuleCounters::NAMES.len()];
    let mut at = 0;
    while at < all.len() {
        let (name, help) = (RuleCounters::NAMES[at], RuleCounters::HELP[at]);
        let definition =
            Definition::new(name, ValueKind::Counter, Unit::Count, help).labelled(prefix, labels);
        all[at] = Definition { export, ..definition };
        at += 1;
    }
    all
}

/// The histogram of waits.
static WAIT: Histogram = Histogram { name: "wait", help: "How long held gets have waited." };

/// Waits by duration.
pub(super) static WAITS: Definition = Definition {
    suffix: "_to_{most}ms",
    export: Export::Bucket(&WAIT),
    ..Definition::new(
        "waits",
        ValueKind::Counter,
        Unit::Count,
        "Waits that ended after at most this many milliseconds; each wait counts in the first line that fits.",
    )
    .labelled(PREFIX, &["rule", "most"])
};
/// Waits longer than all bounds.
pub(super) static WAITS_LONGER: Definition = Definition {
    export: Export::LastBucket(&WAIT),
    ..Definition::new("waits_longer", ValueKind::Counter, Unit::Count, "Waits that took longer than that.")
        .labelled(PREFIX, LABELS)
};
/// The total time of all waits.
pub(super) static WAITED: Definition = Definition {
    export: Export::BucketSum(&WAIT),
    ..Definition::new("waited_ms", ValueKind::Counter, Unit::Milliseconds, "Time of all waits together.")
        .labelled(PREFIX, LABELS)
};

/// A prefix that keeps keys from their rule.
pub(super) static HINT: Definition = Definition {
    suffix: "_{number}",
    when: "when there are such keys",
    labels: &["number"],
    ..Definition::new(
        "hint",
        ValueKind::Text,
        Unit::None,
        "A prefix that clients put before every key and that the server does not know: keys behind it have no rule. Found in samples of \
         misses without a rule.",
    )
};

/// Advice on a rule of which many fills are dropped, or served for a limited time only, although they may be
/// newer than the last invalidation of their key.
pub(crate) fn advice(rule: &RuleState) -> Option<String> {
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    let counters = rule.counters();
    let ambiguous = load(&counters.fills_dropped_ambiguous) + load(&counters.fills_provisional);
    // Without invalidations no fill is judged.
    if ambiguous + load(&counters.fills_dropped_old) > 0
        && let Some((p50, p99)) = rule.mixed_ms()
    {
        return Some(format!(
            "its values take {p50} ms to compute as a rule and up to {p99} ms: give the slow keys a rule of their own, so that after a \
             delete the fast ones are not judged as if they were slow"
        ));
    }
    let (own, crossed) = (load(&counters.fills_own), load(&counters.fills_crossed));
    if ambiguous > 0 && own >= UNCROSSED && crossed == 0 {
        return Some(format!(
            "each of {own} values came on the connection that was answered its miss: if no client uses one connection for several \
             computations at a time, set owner = \"connection\", and it is always known which value is older than a delete"
        ));
    }
    let percent = rule.ambiguous_percent()?;
    Some(format!(
        "{percent} % of the values in the last minute were dropped because other misses from before a delete may still be filled: let \
         clients that can use lease tokens, or set owner = \"connection\" if each uses one connection for get and set"
    ))
}
