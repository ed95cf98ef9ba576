//! What was counted of a rule, as far as the log (`holds.rs`) and the advice (`advice.rs`) speak of it.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_herd::RuleCounters;

/// Of this many cases one must have been so: fewer are no fault of the rule.
pub(crate) const ONE_IN: u64 = 100;

/// Numbers, and the counters of a rule whose sum each is.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $first:ident $(+ $more:ident)*;)*) => {
        /// Of a rule's counters, those that say what to change.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct RuleCounts {
            $($(#[$doc])* pub(crate) $name: u64,)*
        }

        impl RuleCounts {
            /// Since the start, or the last `stats reset`.
            pub(crate) fn of(counters: &RuleCounters) -> Self {
                Self { $($name: counters.$first.load(Relaxed) $(+ counters.$more.load(Relaxed))*,)* }
            }

            /// What was counted since `before`; after `stats reset` the counters begin at 0.
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
    /// Fills that came, whatever became of them.
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

/// A time as people say it: 400 ms, 1.2 s.
pub(crate) fn time(ms: u32) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{} s", f64::from(ms.div_ceil(100)) / 10.0) }
}
