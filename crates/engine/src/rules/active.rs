//! The rules in force, each with its state: what was learned and counted under it.

use std::sync::Arc;

use cattlegrid_herd::RuleState;
use cattlegrid_tags::TagList;

use crate::rules::pattern::Captures;
use crate::rules::{Rule, Rules};

/// The rules in force, and the state of each.
#[derive(Debug)]
pub struct ActiveRules {
    rules: Arc<Rules>,
    /// By the rule's place in the file.
    states: Box<[Arc<RuleState>]>,
}

/// The rule of a key, and the captures of its pattern.
pub(crate) struct Match<'a> {
    pub(crate) rule: &'a Arc<Rule>,
    pub(crate) state: &'a Arc<RuleState>,
    pub(crate) captures: Captures<'a>,
}

/// The rule of a key that is written; owned, since the shard is changed meanwhile.
pub(crate) struct OwnedMatch {
    pub(crate) state: Arc<RuleState>,
    pub(crate) tags: TagList,
    pub(crate) negative_ttl_s: u32,
}

impl ActiveRules {
    /// Rules that take over the states of the old rules with the same pattern.
    pub(crate) fn new(rules: Arc<Rules>, old: Option<&Self>) -> Self {
        let states = rules
            .rules()
            .iter()
            .map(|rule| {
                let before = old.and_then(|old| old.state_as(rule));
                Arc::new(match before {
                    Some(state) => state.with_policy(rule.policy),
                    None => RuleState::new(rule.policy),
                })
            })
            .collect();
        Self { rules, states }
    }

    /// The state of the rule for the same keys: of the same pattern, prefix and mode.
    pub(crate) fn state_as(&self, rule: &Rule) -> Option<&Arc<RuleState>> {
        // What is counted as if and what is counted are not added up.
        let is_same = |own: &Rule| own.is_for_keys_of(rule) && own.policy.observe == rule.policy.observe;
        self.each().find(|(own, _)| is_same(own)).map(|(_, state)| state)
    }

    /// The states of rules that are now those of keys which under `old` may have had none, or one with other
    /// tags: of all rules but those that were there, behind no others than are before them now.
    pub(crate) fn of_other_keys<'a>(
        &'a self,
        old: Option<&'a Self>,
    ) -> impl Iterator<Item = &'a Arc<RuleState>> {
        let is_same = |a: &Rule, b: &Rule| a.is_for_keys_of(b) && a.tags == b.tags;
        self.each_on().enumerate().filter_map(move |(place, (rule, state))| {
            let was_at = old.and_then(|old| old.each_on().position(|(own, _)| is_same(own, rule)));
            let has_the_keys = old.zip(was_at).is_some_and(|(old, was_at)| {
                let mut before = old.each_on().take(was_at);
                before.all(|(other, _)| self.each_on().take(place).any(|(now, _)| is_same(now, other)))
            });
            (!has_the_keys).then_some(state)
        })
    }

    /// The rule of a key.
    #[inline]
    pub(crate) fn find<'a>(&'a self, key: &'a [u8]) -> Option<Match<'a>> {
        let (rule, captures) = self.rules.find(key)?;
        let state = &self.states[rule.number as usize - 1];
        Some(Match { rule, state, captures })
    }

    /// The rule that observes a key: see [`Rules::find_observing`].
    pub(crate) fn find_observing<'a>(&'a self, key: &'a [u8]) -> Option<Match<'a>> {
        let (rule, captures) = self.rules.find_observing(key)?;
        let state = &self.states[rule.number as usize - 1];
        Some(Match { rule, state, captures })
    }

    /// Rules and cascades.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// All rules with their states, in order.
    pub fn each(&self) -> impl Iterator<Item = (&Arc<Rule>, &Arc<RuleState>)> {
        self.rules.rules().iter().zip(&self.states)
    }

    /// Those that apply, without those that observe.
    pub fn each_on(&self) -> impl Iterator<Item = (&Arc<Rule>, &Arc<RuleState>)> {
        self.each().filter(|(rule, _)| !rule.policy.observe)
    }
}
