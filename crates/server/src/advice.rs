//! Advice on the rule file, derived from counters: a sentence, and a line of TOML.
//!
//! ```text
//!   parameters and counters of a rule ──▶ of_terms ──▶ sentences, the most important first
//!                          ──▶ `stats rules`, the page `/advice`, the dashboard
//! ```
//! [`of_terms`] is a pure function. It ignores what happened fewer than [`LEAST`] times, or in less than one
//! case in [`ONE_IN`].

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::rules::Rule;
use cattlegrid_herd::{LeaseTime, Policy, RuleState};

use crate::rule_counts::{ONE_IN, RuleCounts, time};
use crate::shared::Shared;
use crate::stats;

/// Fewer events than this may be chance, and give no advice.
const LEAST: u64 = 10;
/// The longest `hold` that a rule file can have, in milliseconds.
const HOLD_MAX_MS: u32 = 60_000;

/// A piece of advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Advice {
    /// The key of the rule file, or another word for the subject.
    pub(crate) about: &'static str,
    /// A sentence: the observation, and the change that helps.
    pub(crate) what: String,
    /// The line of TOML, if one helps.
    pub(crate) toml: Option<String>,
}

impl Advice {
    /// The advice on one line.
    pub(crate) fn line(&self) -> String {
        match &self.toml {
            Some(toml) => format!("{}: {}", self.what, toml.replace('\n', ", ")),
            None => self.what.clone(),
        }
    }
}

/// Figures that advice derives from the counters.
impl RuleCounts {
    /// Misses that clients compute. Left out are misses of a client that has a lease and stored nothing.
    fn computations(&self) -> u64 {
        self.leases + self.reentries
    }

    /// Computations without a result, neither a value nor a reported failure. Where leases are too short, the
    /// values arrive late.
    fn unfilled(&self) -> u64 {
        self.computations().saturating_sub(self.fills + self.failures)
    }

    /// Whether most computing clients store nothing. Under a rule with a loader these are failures.
    fn is_seldom_stored(&self, policy: &Policy) -> bool {
        let is_seldom = self.unfilled() >= LEAST && self.unfilled() * 2 >= self.computations();
        is_seldom && !policy.loader && self.loads == 0
    }
}

/// Whether `part` of `all` is large enough for a sentence.
fn counts(part: u64, all: u64) -> bool {
    part >= LEAST && part.saturating_mul(ONE_IN) >= all
}

/// A rule and the advice on it.
pub(crate) type RuleAdvice = (Arc<Rule>, Vec<Advice>);

/// The rules in force for which there is advice, in the order of the rule file.
pub(crate) fn of_rules(shared: &Shared) -> Vec<RuleAdvice> {
    let active = shared.engine.shared().rules();
    let Some(active) = active.as_ref() else { return Vec::new() };
    let each = active.each().map(|(rule, state)| (Arc::clone(rule), rule_advice(state)));
    each.filter(|(_, advice)| !advice.is_empty()).collect()
}

/// The advice on one rule.
pub(crate) fn rule_advice(state: &RuleState) -> Vec<Advice> {
    let mut all = of_terms(state.policy(), state.learned_ms(), RuleCounts::of(state.counters()));
    if let Some(what) = stats::advice(state) {
        let owner = "owner = \"connection\"";
        let toml = what.contains(owner).then(|| owner.to_owned());
        // This advice comes first: dropped values cost more than useless waits.
        all.insert(0, Advice { about: "owner", what, toml });
    }
    all
}

/// The advice on the server as a whole.
pub(crate) fn of_server(shared: &Shared) -> Vec<Advice> {
    let tags = shared.engine.shared().tags().stats();
    let mut all = Vec::new();
    if let Some(share) = tags.false_stale.filter(|_| tags.is_crowded()) {
        all.push(Advice {
            about: "tag_memory",
            what: format!("{:.0} % of the looks at tags take a tag for invalidated that was not: raise tag_memory in [server]", share * 100.0),
            toml: Some(format!("tag_memory = \"{}\"", mebibytes(tags.memory_bytes as u64 * 2))),
        });
    }
    for view in shared.loaders.views() {
        let (jobs, refused) = (view.counts.jobs.load(Relaxed), view.counts.refused.load(Relaxed));
        let [wait, run] = [&view.pool.wait, &view.pool.run].map(|times| times.quantile(0.99));
        all.extend(of_loader(
            &view.name,
            view.settings.max as u64,
            jobs,
            refused,
            [wait, run].map(|time| time.as_millis()),
        ));
    }
    all
}

/// The advice on a loader. `jobs` and `refused` are counts; `wait_ms` and `run_ms` are the p99 of its jobs'
/// times, in milliseconds.
fn of_loader(name: &str, max: u64, jobs: u64, refused: u64, [wait_ms, run_ms]: [u128; 2]) -> Option<Advice> {
    let toml = Some(format!("max = {}", (max * 2).max(2)));
    let what = if counts(refused, jobs) {
        format!(
            "loader {name}: {refused} of {jobs} jobs were refused: its {max} workers do not keep up; raise max in [loader.{name}]"
        )
    } else if jobs >= ONE_IN && wait_ms > run_ms {
        format!(
            "loader {name}: jobs wait for a worker for longer (p99 = {wait_ms} ms) than they run (p99 = {run_ms} ms): raise max in \
             [loader.{name}] if the backend allows it"
        )
    } else {
        return None;
    };
    Some(Advice { about: "loader", what, toml })
}

/// The advice on a rule with this policy. `learned_ms`: p50, p90 and p99 of its computations, in
/// milliseconds.
fn of_terms(policy: &Policy, learned_ms: Option<[u32; 3]>, seen: RuleCounts) -> Vec<Advice> {
    let mut all = Vec::new();
    if policy.observe && counts(seen.saved, seen.leases + seen.saved) {
        all.push(Advice {
            about: "mode",
            what: format!(
                "the rule only observes; it would have saved {} % of the computations: take it out of observe",
                percent(seen.saved, seen.leases + seen.saved)
            ),
            toml: Some("mode = \"on\"".to_owned()),
        });
    }
    if policy.leases {
        of_slots(policy, seen, &mut all);
        // Leases are checked before holds: where leases are too short, holds end without a value.
        of_lease(policy, learned_ms, seen, &mut all);
        of_hold(policy, learned_ms, seen, &mut all);
        of_fills(policy, seen, &mut all);
    }
    if counts(seen.misses_lost, seen.leases) {
        all.push(Advice {
            about: "ledger_memory",
            what: format!(
                "{} misses were not recorded for lack of room: raise ledger_memory in [server]",
                seen.misses_lost
            ),
            toml: None,
        });
    }
    all
}

/// Advice on holds that end without the value.
fn of_hold(policy: &Policy, learned_ms: Option<[u32; 3]>, seen: RuleCounts, all: &mut Vec<Advice>) {
    let missed = seen.without_value();
    // No hold helps where clients store no values.
    if seen.is_seldom_stored(policy) {
        return;
    }
    // These holds ended for lack of a slot.
    if !counts(missed, seen.to_hold()) || seen.slots * 2 > missed {
        return;
    }
    let only_many = seen.expired_many + seen.predicted_many >= missed;
    let (key, ms) = if only_many { ("hold_many", policy.hold_many_ms) } else { ("hold", policy.hold_ms) };
    // `grace_on_error` must not be shorter than `grace`.
    let grace = match policy.grace_on_error_s {
        0 | 30.. => "grace = \"30s\"",
        _ => "grace = \"30s\"\ngrace_on_error = \"30s\"",
    };
    let grace = (policy.grace_s == 0).then_some(grace);
    let p99_ms = learned_ms.map(|[_, _, p99_ms]| p99_ms).filter(|p99_ms| *p99_ms > ms);
    let (what, toml) = match p99_ms {
        Some(p99_ms) => too_short(key, ms, p99_ms, grace),
        None => no_value(key, ms, percent(missed, seen.to_hold()), grace),
    };
    all.push(Advice { about: key, what, toml });
}

/// The sentence and the line for a hold that is shorter than the computations.
fn too_short(key: &str, ms: u32, p99_ms: u32, grace: Option<&str>) -> (String, Option<String>) {
    let what = format!("{key} = {} is shorter than p99 = {} of the computations", time(ms), time(p99_ms));
    let longer = Some(roomy(p99_ms)).filter(|ms| *ms <= HOLD_MAX_MS).map(toml_time);
    match (longer, grace) {
        (Some(longer), grace) => {
            let or = grace.map(|grace| format!(", or add {}", grace.replace('\n', ", "))).unwrap_or_default();
            (format!("{what}: raise it to {longer}{or}"), Some(format!("{key} = \"{longer}\"")))
        }
        (None, Some(grace)) => (
            format!("{what}, which no hold can be: add {}", grace.replace('\n', ", ")),
            Some(grace.to_owned()),
        ),
        (None, None) => (
            format!("{what}, which no hold can be: let a loader compute the values before they expire"),
            None,
        ),
    }
}

/// The sentence and the line for a hold that ends without the value, although computations are not known to
/// take longer.
fn no_value(key: &str, ms: u32, percent: u64, grace: Option<&str>) -> (String, Option<String>) {
    let what = format!("{percent} % of the gets that should wait got no value within {key} = {}", time(ms));
    if let Some(grace) = grace {
        let what = format!("{what}: serve the old value meanwhile, add {}", grace.replace('\n', ", "));
        (what, Some(grace.to_owned()))
    } else {
        let longer = toml_time(roomy(ms.saturating_mul(2)).min(HOLD_MAX_MS));
        (format!("{what}: raise {key}"), Some(format!("{key} = \"{longer}\"")))
    }
}

/// Advice on leases that end while their holders still compute.
fn of_lease(policy: &Policy, learned_ms: Option<[u32; 3]>, seen: RuleCounts, all: &mut Vec<Advice>) {
    let LeaseTime::Fixed(lease_ms) = policy.lease else { return };
    let Some([_, _, p99_ms]) = learned_ms.filter(|[_, _, p99_ms]| *p99_ms > lease_ms) else {
        // A lease that ended unfilled although its value arrived was too short.
        let late = if seen.is_seldom_stored(policy) { 0 } else { seen.unset };
        let ended = seen.promoted_deadline + late;
        if counts(ended, seen.leases) {
            all.push(Advice {
                about: "lease",
                what: format!(
                    "{} % of the leases ended by lease = {} with the computation unfinished: let the server learn how long it takes",
                    percent(ended, seen.leases),
                    time(lease_ms)
                ),
                toml: Some("lease = \"auto\"".to_owned()),
            });
        }
        return;
    };
    all.push(Advice {
        about: "lease",
        what: format!(
            "lease = {} is shorter than p99 = {} of the computations, so that others compute the same: let the server learn it",
            time(lease_ms),
            time(p99_ms)
        ),
        toml: Some("lease = \"auto\"".to_owned()),
    });
}

/// Advice on the limits of clients that compute and of clients that wait.
fn of_slots(policy: &Policy, seen: RuleCounts, all: &mut Vec<Advice>) {
    if let Some(slots) = policy.rule_computers.filter(|_| counts(seen.slots, seen.held)) {
        all.push(Advice {
            about: "rule_computers",
            what: format!(
                "{} % of the held gets found no free slot of rule_computers = {slots}: raise it if the backend allows it",
                percent(seen.slots, seen.held)
            ),
            toml: Some(format!("rule_computers = {}", slots.saturating_mul(2))),
        });
    }
    if counts(seen.too_many_waiters, seen.held) {
        all.push(Advice {
            about: "max_waiters",
            what: format!(
                "{} gets were not held because max_waiters = {} waited for their key",
                seen.too_many_waiters, policy.max_waiters
            ),
            toml: Some(format!("max_waiters = {}", policy.max_waiters.saturating_mul(2))),
        });
    }
}

/// Advice on computations that store nothing.
fn of_fills(policy: &Policy, seen: RuleCounts, all: &mut Vec<Advice>) {
    if counts(seen.failures, seen.leases) && policy.grace_on_error_s.max(policy.grace_s) == 0 {
        all.push(Advice {
            about: "grace_on_error",
            what: format!(
                "{} % of the computations failed: serve the old value meanwhile",
                percent(seen.failures, seen.leases)
            ),
            toml: Some("grace_on_error = \"5m\"".to_owned()),
        });
    }
    if seen.is_seldom_stored(policy) {
        all.push(Advice {
            about: "fills",
            what: format!(
                "{} % of the computations stored nothing: clients that miss must set the key, or say that it has no value (negative \
                 answers)",
                percent(seen.unfilled(), seen.computations())
            ),
            toml: None,
        });
    }
}

/// A round figure at least a quarter larger: 620 gives 800, 834 gives 1500.
fn roomy(ms: u32) -> u32 {
    let wanted = ms.saturating_add(ms / 4).max(1);
    let power = 10_u32.pow(wanted.ilog10());
    let step = if wanted / power < 5 { (power / 2).max(1) } else { power };
    wanted.div_ceil(step).saturating_mul(step)
}

/// A time as a rule file has it: `800ms`, `2s`.
fn toml_time(ms: u32) -> String {
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

/// The rounded percentage, 1..=100.
fn percent(part: u64, all: u64) -> u64 {
    (part.saturating_mul(100) / all.max(1)).clamp(1, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(policy: Policy, p99_ms: Option<u32>, seen: RuleCounts) -> Vec<String> {
        of_terms(&policy, p99_ms.map(|p99_ms| [1, 2, p99_ms]), seen).iter().map(Advice::line).collect()
    }

    #[test]
    fn a_rule_that_observes_says_what_it_would_have_saved() {
        let policy = Policy { observe: true, ..Policy::default() };
        let seen = RuleCounts { leases: 40, fills: 40, saved: 60, held: 60, ..RuleCounts::default() };
        let said = "the rule only observes; it would have saved 60 % of the computations: take it out of observe: mode = \"on\"";
        assert_eq!(lines(policy, None, seen), [said]);
        assert!(lines(Policy { observe: false, ..policy }, None, seen).is_empty());
        assert!(lines(policy, None, RuleCounts { saved: 9, ..seen }).is_empty());
    }

    #[test]
    fn a_hold_that_is_too_short_is_named_with_one_that_is_not() {
        let plain = Policy::default();
        let seen = RuleCounts { held: 100, expired: 100, leases: 1, fills: 1, ..RuleCounts::default() };
        let graced = Policy { grace_s: 30, ..plain };
        for (policy, p99_ms, expected) in [
            (
                plain,
                Some(620),
                "hold = 400 ms is shorter than p99 = 620 ms of the computations: raise it to 800ms, or add grace = \"30s\": hold = \"800ms\"",
            ),
            (
                graced,
                Some(620),
                "hold = 400 ms is shorter than p99 = 620 ms of the computations: raise it to 800ms: hold = \"800ms\"",
            ),
            (
                graced,
                Some(1300),
                "hold = 400 ms is shorter than p99 = 1.3 s of the computations: raise it to 2s: hold = \"2s\"",
            ),
            (
                plain,
                Some(59_000),
                "hold = 400 ms is shorter than p99 = 59 s of the computations, which no hold can be: add grace = \"30s\": grace = \"30s\"",
            ),
            (
                graced,
                Some(u32::MAX),
                "hold = 400 ms is shorter than p99 = 4294967.3 s of the computations, which no hold can be: let a loader compute the values before they expire",
            ),
            (
                plain,
                Some(400),
                "100 % of the gets that should wait got no value within hold = 400 ms: serve the old value meanwhile, add grace = \"30s\": grace = \"30s\"",
            ),
            (
                graced,
                None,
                "100 % of the gets that should wait got no value within hold = 400 ms: raise hold: hold = \"1s\"",
            ),
        ] {
            assert_eq!(lines(policy, p99_ms, seen), [expected]);
        }
        let on_error = |grace_on_error_s| Policy { grace_on_error_s, ..plain };
        let line = |policy| of_terms(&policy, None, seen)[0].toml.clone();
        assert_eq!(line(on_error(30)).as_deref(), Some("grace = \"30s\""));
        assert_eq!(line(on_error(10)).as_deref(), Some("grace = \"30s\"\ngrace_on_error = \"30s\""));
        let many = RuleCounts { expired_many: 100, ..seen };
        assert!(lines(graced, Some(620), many)[0].ends_with("hold_many = \"800ms\""));
        let unleased = Policy { leases: false, ..plain };
        assert!(lines(unleased, Some(620), seen).is_empty());
    }

    /// Neither a few cases nor a small part of many.
    #[test]
    fn chance_is_no_reason() {
        let plain = Policy::default();
        for (held, expired, is_said) in
            [(9, 9, false), (10, 10, true), (1000, 10, true), (1001, 10, false), (0, 0, false)]
        {
            let seen = RuleCounts { held, expired, ..RuleCounts::default() };
            assert_eq!(!lines(plain, Some(620), seen).is_empty(), is_said, "{expired} of {held}");
        }
    }

    #[test]
    fn each_limit_is_named_with_a_line() {
        let plain = Policy::default();
        let fixed = Policy { lease: LeaseTime::Fixed(500), ..plain };
        let slots = Policy { rule_computers: Some(4), ..plain };
        let some = RuleCounts { leases: 100, fills: 100, held: 100, ..RuleCounts::default() };
        for (policy, p99_ms, seen, expected) in [
            (fixed, Some(501), some, "lease = \"auto\""),
            (fixed, Some(500), RuleCounts { promoted_deadline: 10, ..some }, "lease = \"auto\""),
            (fixed, None, RuleCounts { unset: 100, ..some }, "lease = \"auto\""),
            (slots, None, RuleCounts { slots: 50, expired: 50, ..some }, "rule_computers = 8"),
            (plain, None, RuleCounts { too_many_waiters: 20, ..some }, "max_waiters = 2048"),
            (plain, None, RuleCounts { failures: 20, ..some }, "grace_on_error = \"5m\""),
            (plain, None, RuleCounts { fills: 50, ..some }, "negative answers)"),
            (plain, None, RuleCounts { reentries: 300, ..some }, "negative answers)"),
            // No hold helps there, however long.
            (plain, Some(1200), RuleCounts { fills: 10, expired: 90, ..some }, "negative answers)"),
            (plain, None, RuleCounts { misses_lost: 60, ..some }, "raise ledger_memory in [server]"),
        ] {
            let said = lines(policy, p99_ms, seen);
            assert!(said.len() == 1 && said[0].ends_with(expected), "{said:?}");
        }
        let calm = [
            (fixed, Some(500), RuleCounts { promoted_deadline: 9, ..some }),
            (plain, None, RuleCounts { fills: 51, ..some }),
            (plain, None, RuleCounts { fills: 0, failures: 9, leases: 9, held: 9, ..some }),
            (Policy { loader: true, ..plain }, None, RuleCounts { fills: 0, loads: 60, ..some }),
            (Policy { grace_on_error_s: 1, ..plain }, None, RuleCounts { failures: 60, ..some }),
        ];
        for (policy, p99_ms, seen) in calm {
            assert!(lines(policy, p99_ms, seen).is_empty(), "{seen:?}");
        }
    }

    #[test]
    fn a_loader_that_does_not_keep_up_is_named() {
        let line =
            |jobs, refused, times| of_loader("pages", 4, jobs, refused, times).map(|advice| advice.line());
        assert_eq!(line(0, 0, [0, 0]), None);
        assert_eq!(line(99, 0, [9, 5]), None, "too few");
        assert_eq!(line(100, 0, [5, 5]), None);
        assert!(line(100, 0, [6, 5]).unwrap().ends_with("max = 8"));
        assert_eq!(line(100, 9, [5, 5]), None);
        assert!(line(100, 10, [5, 5]).unwrap().contains("10 of 100 jobs were refused"));
    }

    #[test]
    fn times_are_round() {
        assert_eq!(
            [0, 1, 8, 80, 620, 799, 801, u32::MAX].map(roomy),
            [1, 1, 10, 100, 800, 1000, 1500, u32::MAX]
        );
        assert_eq!([800, 1000, 1500].map(toml_time), ["800ms", "1s", "1500ms"]);
    }
}
