//! Rules without keys: each is logged once, with the prefix that keeps keys from it, if there is such a
//! prefix.

use std::collections::{HashMap, HashSet};

use cattlegrid_engine::rules::{PrefixHint, Rule};
use cattlegrid_herd::RuleState;

/// How long a rule may have no key under traffic before it is logged, in milliseconds.
const IDLE_MS: u64 = 10 * 60 * 1000;
/// The least number of requests in that time that counts as traffic.
const REQUESTS: u64 = 1000;

/// The rules that were logged, and those that have no key yet.
#[derive(Debug, Default)]
pub(crate) struct IdleRules {
    said: HashSet<String>,
    /// By pattern and prefix: the time, and the number of requests at that time.
    since: HashMap<(String, Option<String>), (u64, u64)>,
}

impl IdleRules {
    /// The lines to log now. `requests`: the number of requests since the start.
    pub(crate) fn look<'r>(
        &mut self,
        hints: &[PrefixHint],
        rules: impl Iterator<Item = (&'r Rule, &'r RuleState)>,
        requests: u64,
        now_ms: u64,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for hint in hints {
            let what = hint.rule.as_ref().map_or("names", |(_, pattern)| pattern);
            if self.said.insert(format!("{what} behind {}", hint.prefix)) {
                lines.push(hint.to_string());
            }
        }
        let is_hinted = |rule: &Rule| {
            hints.iter().any(|hint| hint.rule.as_ref().is_some_and(|(number, _)| *number == rule.number))
        };
        let mut kept = HashMap::new();
        for (rule, _) in rules.filter(|(_, state)| !state.has_matched()) {
            let pattern = rule.pattern.text();
            let key = (pattern.to_owned(), rule.prefix.as_deref().map(str::to_owned));
            let since = self.since.get(&key).copied().unwrap_or((now_ms, requests));
            let is_idle = now_ms - since.0 >= IDLE_MS && requests - since.1 >= REQUESTS;
            if is_idle && !is_hinted(rule) && self.said.insert(format!("{pattern} is idle")) {
                lines.push(format!(
                    "rule {} `{pattern}` has matched no key in {} requests of {} minutes: is its pattern right? `cattlegrid check FILE \
                     --key KEY` says which rule a key has",
                    rule.number,
                    requests - since.1,
                    (now_ms - since.0) / 60_000
                ));
            }
            kept.insert(key, since);
        }
        self.since = kept;
        lines
    }
}

#[cfg(test)]
mod tests {
    use cattlegrid_engine::rules::Pattern;
    use cattlegrid_herd::Policy;

    use super::*;

    fn rule(number: u32, pattern: &str) -> (Rule, RuleState) {
        let policy = Policy::default();
        let pattern = Pattern::parse(pattern).unwrap();
        let rule = Rule {
            number,
            pattern,
            prefix: None,
            policy,
            tags: Vec::new(),
            negative_ttl_s: 0,
            loading: None,
        };
        (rule, RuleState::new(policy))
    }

    fn look(
        idle: &mut IdleRules,
        hints: &[PrefixHint],
        rules: &[(Rule, RuleState)],
        requests: u64,
        ms: u64,
    ) -> Vec<String> {
        idle.look(hints, rules.iter().map(|(rule, state)| (rule, state)), requests, ms)
    }

    #[test]
    fn a_rule_without_keys_is_said_once_after_ten_minutes_of_traffic() {
        let rules = [rule(1, "page:{id}"), rule(2, "user:{id}")];
        let mut idle = IdleRules::default();
        assert!(look(&mut idle, &[], &rules, 500, 1_000).is_empty());
        rules[1].1.note_match();
        assert!(look(&mut idle, &[], &rules, 5_000, 600_999).is_empty());
        let lines = look(&mut idle, &[], &rules, 5_000, 601_000);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("rule 1 `page:{id}` has matched no key in 4500 requests of 10 minutes"),
            "{lines:?}"
        );
        assert!(look(&mut idle, &[], &rules, 50_000, 6_000_000).is_empty());
        // Without traffic nothing is said.
        let mut idle = IdleRules::default();
        assert!(look(&mut idle, &[], &rules, 0, 0).is_empty());
        assert!(look(&mut idle, &[], &rules, 999, 6_000_000).is_empty());
    }

    #[test]
    fn a_prefix_is_said_once_instead() {
        let rules = [rule(1, "page:{id}")];
        let hint = PrefixHint {
            prefix: ":1:".to_owned(),
            rule: Some((1, "page:{id}".to_owned())),
            has_some: false,
            count: 41,
            sampled: 100,
        };
        let mut idle = IdleRules::default();
        let said = look(&mut idle, std::slice::from_ref(&hint), &rules, 0, 0);
        let line = "rule 1 `page:{id}` has matched no key; 41 of 100 sampled keys would match behind \":1:\": add prefixes = [\":1:\"] to [server]";
        assert_eq!(said, [line]);
        assert!(look(&mut idle, &[hint], &rules, 50_000, 6_000_000).is_empty());
    }
}
