//! The counters of a rule that log lines (`holds.rs`) and advice (`advice.rs`) are based on.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_herd::RuleCounters;

/// One case in this many is the least share that is reported; a smaller one is not the rule's fault.
pub(crate) const ONE_IN: u64 = 100;

/// Declares the figures, each with the counters of which it is the sum.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $first:ident $(+ $more:ident)*;)*) => {
        /// The figures of a rule that show what to change.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct RuleCounts {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl RuleCounts {
            /// The figures since the start, or since the last `stats reset`.
            pub(crate) fn of(counters: &RuleCounters) -> Self {
                Self { $($name: counters.$first.load(Relaxed) $(+ counters.$more.load(Relaxed))*,)* }
            }

            /// The difference to the earlier figures `before`; after `stats reset` the figures count from 0.
            pub(crate) fn since(self, before: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

counts! {
    leases = leases + leases_stale + leases_early;
    saved = computes_saved;
    reentries = reentries;
    unset = unset;
    held = held;
    expired = hold_expired;
    expired_many = hold_expired_many;
    predicted = busy_prediction;
    predicted_many = busy_prediction_many;
    slots = busy_slots;
    too_many_waiters = busy_waiters;
    /// Fills that arrived, whether stored or dropped.
    fills = fills_stored + fills_dropped;
    failures = failures;
    promoted_deadline = promoted_deadline;
    misses_lost = misses_lost;
    loads = loads;
}

impl RuleCounts {
    /// Gets that should have waited and got no value.
    pub(crate) fn without_value(self) -> u64 {
        self.expired + self.predicted
    }

    /// Gets that were held, or would have been.
    pub(crate) fn to_hold(self) -> u64 {
        self.held + self.predicted
    }
}

/// A rounded time for people: 400 ms, 1.2 s.
pub(crate) fn time(ms: u32) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{} s", f64::from(ms.div_ceil(100)) / 10.0) }
}
