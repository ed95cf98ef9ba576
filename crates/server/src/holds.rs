//! Log lines about holds that end without the value: clients waited and then compute as well. At most once a
//! minute for each rule, a line has the rule, how long clients waited, and what would help.

use std::collections::HashMap;
use std::fmt::Write as _;

use cattlegrid_engine::ActiveRules;
use cattlegrid_engine::rules::Rule;
use cattlegrid_herd::{Policy, RuleState};

use crate::rule_counts::{ONE_IN, RuleCounts, time};

/// The time between two lines about one rule, in milliseconds.
const MINUTE_MS: u64 = 60_000;
/// The counters of each rule at its last line, by pattern.
#[derive(Debug, Default)]
pub(crate) struct HoldReports(HashMap<String, HoldReport>);

#[derive(Debug, Default)]
struct HoldReport {
    /// When `before` was read, in milliseconds.
    since_ms: u64,
    /// The counters from which the next line counts.
    before: RuleCounts,
    said_ms: Option<u64>,
}

impl HoldReports {
    /// The line about a rule, if one is due now. To be called about once a second for each rule in force.
    pub(crate) fn due_line(&mut self, rule: &Rule, state: &RuleState, now_ms: u64) -> Option<String> {
        let counted = RuleCounts::of(state.counters());
        let name = &*rule.name();
        if !self.0.contains_key(name) {
            // Counts from before the first call are reported as well.
            self.0.insert(name.to_owned(), HoldReport { since_ms: now_ms, ..HoldReport::default() });
        }
        let report = self.0.get_mut(name)?;
        let new = counted.since(report.before);
        let may_speak = report.said_ms.is_none_or(|said_ms| now_ms >= said_ms + MINUTE_MS);
        let line =
            if may_speak && is_worth_a_line(&new) { Some(line(&new, rule, state.p90_ms())) } else { None };
        if line.is_some() {
            report.said_ms = Some(now_ms);
        }
        if line.is_some() || now_ms >= report.since_ms + MINUTE_MS {
            (report.since_ms, report.before) = (now_ms, counted);
        }
        line
    }

    /// Forgets rules that are not in `active`.
    pub(crate) fn retain(&mut self, active: &ActiveRules) {
        if self.0.len() > active.rules().rules().len() {
            self.0.retain(|name, _| active.each().any(|(rule, _)| rule.name() == *name));
        }
    }
}

fn is_worth_a_line(new: &RuleCounts) -> bool {
    let missed = new.without_value();
    missed > 0 && missed * ONE_IN >= new.to_hold()
}

/// The line for the counts of a minute. `p90_ms`: the 90th percentile of the times of computations, in
/// milliseconds.
fn line(new: &RuleCounts, rule: &Rule, p90_ms: Option<u32>) -> String {
    let policy = &rule.policy;
    let (one, many) = (new.expired.saturating_sub(new.expired_many), new.expired_many);
    let (hold, hold_many) = (time(policy.hold_ms), time(policy.hold_many_ms));
    let mut what = Vec::new();
    if one > 0 {
        what.push(format!("{one} gets were held for {hold} (hold) without getting the value"));
    }
    if many > 0 {
        what.push(format!(
            "{many} keys of gets of several keys were waited for {hold_many} (hold_many) without getting the value"
        ));
    }
    if new.predicted > 0 {
        what.push(format!("{} were not held, since waiting was not expected to help", new.predicted));
    }
    let (number, pattern) = (rule.number, rule.pattern.text());
    let mut line = format!("rule {number} {pattern:?}: in the last minute {}; ", what.join("; "));
    let only_many = one == 0 && new.predicted <= new.predicted_many;
    let (hold, hold_ms) =
        if only_many { ("hold_many", policy.hold_many_ms) } else { ("hold", policy.hold_ms) };
    HoldCause::of(new, p90_ms, hold_ms).write(&mut line, hold, policy);
    line
}

/// Why waiting does not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldCause {
    /// Most waits were for a slot of `rule_computers`.
    Slots,
    /// Computations usually take longer than the hold.
    Slow { p90_ms: u32 },
    /// Clients do not store what they compute.
    Unset { leases: u64 },
    /// These computations took longer than usual, or nothing is known of them.
    Unusual { p90_ms: Option<u32> },
}

impl HoldCause {
    fn of(new: &RuleCounts, p90_ms: Option<u32>, hold_ms: u32) -> Self {
        match p90_ms.filter(|p90_ms| *p90_ms > hold_ms) {
            _ if new.slots * 2 > new.expired => Self::Slots,
            Some(p90_ms) => Self::Slow { p90_ms },
            None if new.unset > 0 => Self::Unset { leases: new.unset },
            None => Self::Unusual { p90_ms },
        }
    }

    /// Appends the cause and what helps. `hold`: the key of the rule that sets how long these gets wait.
    fn write(self, line: &mut String, hold: &str, policy: &Policy) {
        let mut also = Vec::new();
        if policy.grace_s == 0 {
            also.push("add grace = \"30s\"");
        }
        if !policy.loader {
            also.push("use a loader, which computes before values expire");
        }
        let raise = |beyond: &str| {
            let mut help = format!("raise {hold}{beyond} if the clients' own timeout allows it");
            for other in &also {
                help.push_str(", or ");
                help.push_str(other);
            }
            help
        };
        let written = match self {
            Self::Slots => write!(
                line,
                "no slot of rule_computers ({}) became free: raise rule_computers if the backend allows it, or {}",
                policy.rule_computers.unwrap_or_default(),
                raise("")
            ),
            Self::Slow { p90_ms } => {
                let p90 = time(p90_ms);
                write!(line, "computing takes longer (p90 {p90}): {}", raise(&format!(" above {p90}")))
            }
            Self::Unset { leases } => write!(
                line,
                "{leases} computations stored nothing: clients that miss must set the key, or say that it has no value \
                 (negative answers); if they only need longer, {}",
                raise("")
            ),
            Self::Unusual { p90_ms: Some(p90_ms) } => write!(
                line,
                "these computations take longer than usual (p90 {}): {}",
                time(p90_ms),
                raise("")
            ),
            Self::Unusual { p90_ms: None } => write!(line, "computing takes longer: {}", raise("")),
        };
        written.expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use cattlegrid_engine::rules::Pattern;

    use super::*;

    fn rule(policy: Policy) -> (Rule, RuleState) {
        let pattern = Pattern::parse("page:{id}").unwrap();
        let policy = Policy { leases: true, hold_ms: 400, hold_many_ms: 100, ..policy };
        let (tags, loading) = (Vec::new(), None);
        let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading, prefix: None };
        (rule, RuleState::new(policy))
    }

    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Relaxed);
    }

    #[test]
    fn a_rule_is_named_at_once_and_then_once_a_minute() {
        let (rule, state) = rule(Policy::default());
        let counters = state.counters();
        let mut reports = HoldReports::default();
        assert_eq!(reports.due_line(&rule, &state, 1000), None, "nothing was held");
        add(&counters.held, 41);
        assert_eq!(reports.due_line(&rule, &state, 2000), None, "they wait still");
        add(&counters.hold_expired, 41);
        let line = reports.due_line(&rule, &state, 3000).unwrap();
        assert!(
            line.starts_with("rule 1 \"page:{id}\": in the last minute 41 gets were held for 400 ms (hold) "),
            "{line}"
        );
        for second in 4..63 {
            add(&counters.held, 1);
            add(&counters.hold_expired, 1);
            assert_eq!(reports.due_line(&rule, &state, second * 1000), None, "{second} s");
        }
        let line = reports.due_line(&rule, &state, 63_000).unwrap();
        assert!(line.contains("in the last minute 59 gets were held"), "{line}");
        assert_eq!(reports.due_line(&rule, &state, 123_000), None, "it is over");
        counters.reset();
        add(&counters.held, 2);
        add(&counters.hold_expired, 2);
        assert_eq!(
            reports.due_line(&rule, &state, 124_000),
            None,
            "fewer than before: the counters were reset"
        );
        add(&counters.hold_expired, 1);
        assert_eq!(reports.due_line(&rule, &state, 183_000), None);
        add(&counters.hold_expired, 1);
        assert!(reports.due_line(&rule, &state, 184_000).unwrap().contains("minute 1 gets"));
    }

    #[test]
    fn few_of_many_are_no_fault_of_the_rule() {
        let (rule, state) = rule(Policy::default());
        add(&state.counters().held, 1000);
        add(&state.counters().hold_expired, 9);
        assert_eq!(HoldReports::default().due_line(&rule, &state, 1000), None);
        add(&state.counters().hold_expired, 1);
        assert!(HoldReports::default().due_line(&rule, &state, 1000).is_some());
    }

    #[test]
    fn the_line_names_the_cause_and_what_helps() {
        let plain = Policy::default();
        let expired = RuleCounts { held: 9, expired: 9, ..RuleCounts::default() };
        let or = "or add grace = \"30s\", or use a loader, which computes before values expire";
        let if_allowed = "if the clients' own timeout allows it";
        for (counts, policy, p90_ms, expected) in [
            (expired, plain, Some(1180), format!("computing takes longer (p90 1.2 s): raise hold above 1.2 s {if_allowed}, {or}")),
            (expired, plain, None, format!("computing takes longer: raise hold {if_allowed}, {or}")),
            (expired, plain, Some(90), format!("these computations take longer than usual (p90 90 ms): raise hold {if_allowed}, {or}")),
            (RuleCounts { unset: 3, ..expired }, plain, None, "3 computations stored nothing: clients that miss must set the key".to_owned()),
            (RuleCounts { slots: 5, ..expired }, Policy { rule_computers: Some(2), ..plain }, None, "no slot of rule_computers (2) became free".to_owned()),
            (RuleCounts { expired_many: 9, ..expired }, plain, Some(200), format!("computing takes longer (p90 200 ms): raise hold_many above 200 ms {if_allowed}, {or}")),
            (RuleCounts { predicted: 4, ..RuleCounts::default() }, plain, Some(2000), "in the last minute 4 were not held, since waiting was not expected to help; computing takes longer (p90 2 s): raise hold above".to_owned()),
            (RuleCounts { predicted: 4, predicted_many: 4, ..RuleCounts::default() }, plain, Some(300), "raise hold_many above 300 ms".to_owned()),
            (expired, Policy { loader: true, grace_s: 30, ..plain }, Some(1000), format!("raise hold above 1 s {if_allowed}#")),
        ] {
            let (rule, _) = rule(policy);
            let line = line(&counts, &rule, p90_ms) + "#";
            assert!(line.contains(&expected), "{line}\nlacks {expected}");
        }
        let (rule, _) = rule(plain);
        let mixed = RuleCounts { held: 9, expired: 9, expired_many: 4, ..RuleCounts::default() };
        assert!(
            line(&mixed, &rule, None).contains(
                "5 gets were held for 400 ms (hold) without getting the value; 4 keys of gets of several keys were waited for 100 ms \
                 (hold_many) without getting the value; "
            )
        );
    }
}
