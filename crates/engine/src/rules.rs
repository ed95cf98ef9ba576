//! Rules: which keys are protected, on what terms, and which tags they carry.
//!
//! Rules are compiled once and are asked at misses and writes. A hit needs only the item; some hits look for
//! their rule to be counted by it (`RuledHits`). The first rule whose pattern matches a key is the key's
//! rule. Cascades are asked at changes, and all that match apply.
//!
//! # Invariants
//! * A key that clients use as a lock has a rule only if the rule's pattern spells the lock out: it begins
//!   with `_lock` or `lock:`, or ends with `:lock` or `_lock`, as the key does.
//! * Finding a rule allocates nothing and reads a key once for each pattern tried.

mod pattern;

mod index;

mod cover;

mod example;
pub(crate) mod unmatched;

pub(crate) mod why;

use std::borrow::Cow;
use std::sync::Arc;

use cattlegrid_herd::{Policy, RuleState};
use cattlegrid_tags::{PrefixId, Prefixes, TagList};

pub use example::SelfBump;
use index::{KeyTraits, RuleIndex};
pub use pattern::{CAPTURES_MAX, Captures, Pattern, PatternError, TAG_BYTES_MAX, TagTemplate};
pub use unmatched::PrefixHint;

/// A prefix that no key has.
const NO_PREFIX: PrefixId = PrefixId::of_number(u8::MAX);

/// Most tags of a rule.
pub const TAGS_MAX: usize = 8;

/// The terms for the keys of a pattern.
///
/// The pattern's text and the prefix identify a rule across reloads: what was learned under it stays valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The rule's place among the rules, from 1.
    pub number: u32,
    /// The rule's keys, behind their prefix.
    pub pattern: Pattern,
    /// Only keys behind this one of the server's prefixes are its keys; None: keys behind any, and without
    /// one.
    pub prefix: Option<Box<str>>,
    /// On which terms misses are leased and fills fenced.
    pub policy: Policy,
    /// Tags of the values stored, at most [`TAGS_MAX`].
    pub tags: Vec<TagTemplate>,
    /// Seconds to live of a negative answer that has no time of its own; 0: such an answer is refused.
    pub negative_ttl_s: u32,
    /// How its loader computes missing values; `policy.loader` says whether there is one.
    pub loading: Option<Loading>,
}

impl Rule {
    /// The rule's pattern, behind its prefix if it is limited to one: what tells it from other rules.
    pub fn name(&self) -> Cow<'_, str> {
        match &self.prefix {
            None => Cow::Borrowed(self.pattern.text()),
            Some(prefix) => Cow::Owned(format!("{prefix}{}", self.pattern.text())),
        }
    }

    /// Whether another rule is for the same keys, so that what was learned under it stays valid.
    pub fn is_for_keys_of(&self, other: &Self) -> bool {
        self.pattern.text() == other.pattern.text() && self.prefix == other.prefix
    }

    /// Whether every key that could have the rule `later` has this one, if this one comes first. See
    /// [`Pattern::covers`]. A rule that observes leaves its keys to later rules.
    pub fn covers(&self, later: &Self) -> bool {
        (!self.policy.observe || later.policy.observe)
            && (self.prefix.is_none() || self.prefix == later.prefix)
            && self.pattern.covers(&later.pattern)
    }
}

/// How the values of a rule are computed by a loader of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loading {
    /// The loader's name.
    pub loader: Arc<str>,
    /// Seconds to live of a value that comes without; 0: it does not expire.
    pub ttl_s: u32,
    /// Urgency of a load that clients wait for. That of a refresh, for which none waits, is [`Urgency::Low`].
    pub urgency: Urgency,
    /// The loader's jobs carry the old value, if there is one.
    pub stale: bool,
}

/// How urgent a load is among those of its loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// First.
    #[default]
    High,
    /// After those.
    Normal,
    /// Last.
    Low,
}

/// Tags that are invalidated when a key changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cascade {
    /// The changes that set it off.
    pub on: Changes,
    /// The keys; None for [`Change::Flush`], which concerns no key.
    pub pattern: Option<Pattern>,
    /// The tags to invalidate.
    pub bump: Vec<TagTemplate>,
}

/// The changes of a key that cascades distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A delete, even if it found nothing, unless it named a CAS.
    Delete,
    /// A value was stored, or its client was told that it was.
    Set,
    /// A number was raised, lowered or created.
    Incr,
    /// The time to live was changed.
    Touch,
    /// Everything was flushed: a delayed flush was due, or a slow one is over.
    Flush,
}

impl Change {
    /// All changes.
    pub const ALL: [Self; 5] = [Self::Delete, Self::Set, Self::Incr, Self::Touch, Self::Flush];

    /// The change's name in a rule file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Set => "set",
            Self::Incr => "incr",
            Self::Touch => "touch",
            Self::Flush => "flush",
        }
    }
}

/// A set of [`Change`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes(u8);

impl Changes {
    /// The set with this change added.
    #[must_use]
    pub const fn with(self, change: Change) -> Self {
        Self(self.0 | 1 << change as u8)
    }

    /// Whether `change` is one of them.
    #[inline]
    pub const fn has(self, change: Change) -> bool {
        self.0 & 1 << change as u8 != 0
    }

    /// The union of both.
    #[must_use]
    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// All rules and cascades, compiled.
#[derive(Debug)]
pub struct Rules {
    list: Box<[Arc<Rule>]>,
    prefixes: Prefixes,
    /// The prefix that each rule is limited to, if any; of a prefix that the server does not have:
    /// [`NO_PREFIX`].
    limits: Box<[Option<PrefixId>]>,
    /// The index of the rules that apply.
    index: RuleIndex,
    /// The index of these rules and those that observe; None: no rule observes.
    with_observing: Option<RuleIndex>,
    /// The cascades with a pattern.
    cascades: Box<[Cascade]>,
    cascade_index: RuleIndex,
    flush_cascades: Box<[Cascade]>,
    /// The changes that set off any of `cascades`.
    changes: Changes,
    /// A rule says what becomes of its items while a log is behind.
    say_when_behind: bool,
}

impl Rules {
    /// Rules in their order, of which the first that matches applies, and cascades. Rules that observe never
    /// apply.
    pub fn new(rules: Vec<Rule>, cascades: Vec<Cascade>) -> Self {
        let patterns = || rules.iter().enumerate().map(|(place, rule)| (place, &rule.pattern));
        let index = RuleIndex::of_some(
            &patterns().filter(|(place, _)| !rules[*place].policy.observe).collect::<Vec<_>>(),
        );
        let observes = rules.iter().any(|rule| rule.policy.observe);
        let with_observing = observes.then(|| RuleIndex::of_some(&patterns().collect::<Vec<_>>()));
        let (cascades, flush_cascades): (Vec<_>, Vec<_>) =
            cascades.into_iter().partition(|cascade| cascade.pattern.is_some());
        let patterns: Vec<&Pattern> =
            cascades.iter().filter_map(|cascade| cascade.pattern.as_ref()).collect();
        Self {
            index,
            with_observing,
            say_when_behind: rules
                .iter()
                .any(|rule| rule.policy.when_behind.is_some() && !rule.policy.observe),
            cascade_index: RuleIndex::new(&patterns),
            changes: cascades.iter().fold(Changes::default(), |all, cascade| all.or(cascade.on)),
            prefixes: Prefixes::default(),
            limits: rules.iter().map(|rule| rule.prefix.as_ref().map(|_| NO_PREFIX)).collect(),
            list: rules.into_iter().map(Arc::new).collect(),
            cascades: cascades.into(),
            flush_cascades: flush_cascades.into(),
        }
    }

    /// These rules for a server with these prefixes. A rule that is limited to another prefix has no keys.
    #[must_use]
    pub fn with_prefixes(mut self, prefixes: Prefixes) -> Self {
        let limit = |rule: &Arc<Rule>| {
            let text = rule.prefix.as_ref()?;
            Some(prefixes.find(text.as_bytes()).unwrap_or(NO_PREFIX))
        };
        self.limits = self.list.iter().map(limit).collect();
        self.prefixes = prefixes;
        self
    }

    /// A copy for other prefixes.
    pub(crate) fn for_prefixes(&self, prefixes: Prefixes) -> Self {
        let rules = self.list.iter().map(|rule| Rule::clone(rule)).collect();
        let cascades = self.cascades.iter().chain(&self.flush_cascades).cloned().collect();
        Self::new(rules, cascades).with_prefixes(prefixes)
    }

    /// Whether a rule says what becomes of its items while a log is behind.
    pub(crate) fn say_when_behind(&self) -> bool {
        self.say_when_behind
    }

    /// The prefixes that are told from keys.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// The rules in their order.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.list
    }

    /// Which prefix a key has, and what follows it. Most servers have no prefixes.
    #[inline]
    fn split<'k>(&self, key: &'k [u8]) -> (PrefixId, &'k [u8]) {
        if self.prefixes.is_empty() { (PrefixId::NONE, key) } else { self.prefixes.split(key) }
    }

    /// The rule of a key, and what its pattern captures; None: the key has no rule.
    #[inline]
    pub fn find<'k>(&self, key: &'k [u8]) -> Option<(&Arc<Rule>, Captures<'k>)> {
        let (prefix, name) = self.split(key);
        self.find_behind(prefix, name)
    }

    /// The rule that would have `name` behind a prefix which the server does not know.
    pub(crate) fn find_name(&self, name: &[u8]) -> Option<&Arc<Rule>> {
        self.find_behind(PrefixId::NONE, name).map(|(rule, _)| rule)
    }

    /// Whether a rule observes.
    #[inline]
    pub fn observes(&self) -> bool {
        self.with_observing.is_some()
    }

    /// The rule that observes a key: the first one that matches, if it observes. A key may have a rule as
    /// well, behind it.
    pub fn find_observing<'k>(&self, key: &'k [u8]) -> Option<(&Arc<Rule>, Captures<'k>)> {
        let (prefix, name) = self.split(key);
        let found = self.find_in(self.with_observing.as_ref()?, prefix, name);
        found.filter(|(rule, _)| rule.policy.observe)
    }

    #[inline]
    fn find_behind<'k>(&self, prefix: PrefixId, name: &'k [u8]) -> Option<(&Arc<Rule>, Captures<'k>)> {
        self.find_in(&self.index, prefix, name)
    }

    #[inline]
    fn find_in<'k>(
        &self,
        index: &RuleIndex,
        prefix: PrefixId,
        name: &'k [u8],
    ) -> Option<(&Arc<Rule>, Captures<'k>)> {
        let traits = KeyTraits::of(name);
        index.candidates(name).iter().filter(|candidate| candidate.may_match(traits)).find_map(|candidate| {
            let place = candidate.number as usize;
            if self.limits[place].is_some_and(|limit| limit != prefix) {
                return None;
            }
            let rule = &self.list[place];
            Some((rule, rule.pattern.match_key(name)?.behind(prefix)))
        })
    }

    /// All cascades: first those with a pattern, then those of a flush, each in their order.
    pub fn all_cascades(&self) -> impl Iterator<Item = &Cascade> {
        self.cascades.iter().chain(&self.flush_cascades)
    }

    /// Every cascade that `change` of `key` sets off, in order, with what its pattern captures. For
    /// [`Change::Flush`], which has no key, see [`Rules::flush_cascades`].
    #[inline]
    pub fn cascades<'k>(
        &self,
        key: &'k [u8],
        change: Change,
    ) -> impl Iterator<Item = (&Cascade, Captures<'k>)> {
        let (prefix, name) = self.split(key);
        let candidates: &[_] =
            if self.changes.has(change) { self.cascade_index.candidates(name) } else { &[] };
        let traits = KeyTraits::of(name);
        candidates.iter().filter(move |candidate| candidate.may_match(traits)).filter_map(move |candidate| {
            let cascade = &self.cascades[candidate.number as usize];
            let pattern = cascade.pattern.as_ref().filter(|_| cascade.on.has(change))?;
            Some((cascade, pattern.match_key(name)?.behind(prefix)))
        })
    }

    /// Whether there is any cascade.
    pub fn has_cascades(&self) -> bool {
        !self.cascades.is_empty() || !self.flush_cascades.is_empty()
    }

    /// The cascades that a flush sets off. Their tags are [constant](TagTemplate::constant).
    pub fn flush_cascades(&self) -> &[Cascade] {
        &self.flush_cascades
    }
}

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

/// Hits of a shard in a second that are counted one by one.
const EXACT: u32 = 1024;

/// Of the other hits one in this many is counted, as this many.
const SAMPLE: u32 = 64;

/// The hits of a shard in a second, as far as they are counted by rule.
///
/// A miss finds its rule anyway, a hit does not: its rule is looked up for the count alone. So that this
/// never costs much, only the first [`EXACT`] hits of a shard in a second are counted one by one; of the
/// others each 64th stands for 64.
#[derive(Debug, Default)]
pub(crate) struct RuledHits {
    second: u32,
    count: u32,
}

impl RuledHits {
    /// For how many hits the next one stands; 0: it is not counted.
    #[inline]
    pub(crate) fn weight(&mut self, second: u32) -> u32 {
        if self.second != second {
            *self = Self { second, count: 0 };
        }
        self.count = self.count.wrapping_add(1);
        match self.count {
            ..=EXACT => 1,
            count if count.is_multiple_of(SAMPLE) => SAMPLE,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(patterns: &[&str]) -> Rules {
        let rule = |(number, text): (usize, &&str)| Rule {
            number: number as u32 + 1,
            pattern: Pattern::parse(text).unwrap(),
            policy: Policy::default(),
            tags: Vec::new(),
            negative_ttl_s: 0,
            loading: None,
            prefix: None,
        };
        Rules::new(patterns.iter().enumerate().map(rule).collect(), Vec::new())
    }

    fn number(rules: &Rules, key: &str) -> Option<u32> {
        rules.find(key.as_bytes()).map(|(rule, _)| rule.number)
    }

    #[test]
    fn the_first_rule_wins_whatever_its_prefix() {
        let rules = rules(&["page:new", "{kind}:{id:int}", "page:{id}", "page:{id}:{part}", "p{x*}", "{x*}"]);
        for (key, expected) in [
            ("page:new", 1),
            ("page:7", 2),
            ("page:x", 3),
            ("page:7:b", 4),
            ("page:7:b:c", 5),
            ("q", 6),
            ("p", 6),
            ("\u{ff}", 6),
        ] {
            assert_eq!(number(&rules, key), Some(expected), "{key}");
        }
        assert_eq!(number(&rules, ""), None);
    }

    #[test]
    fn locks_need_a_rule_that_spells_them_out() {
        let any = rules(&["{x*}"]);
        for key in ["_lock:page:1", "_lockpage", "lock:page:1", "page:1:lock", "page:1_lock"] {
            assert_eq!(number(&any, key), None, "{key}");
            let named = rules(&["{x*}", "_lock{x*}", "lock:{x*}", "page:{id}:lock", "page:{id}_lock"]);
            assert!(number(&named, key).is_some_and(|number| number > 1), "{key}");
        }
        for key in ["block:1", "page:locks", "locked:1", "clock"] {
            assert_eq!(number(&any, key), Some(1), "{key}");
        }
    }

    #[test]
    fn every_cascade_that_matches_applies() {
        let cascade = |on: &[Change], text: &str, bump: &str| {
            let pattern = Pattern::parse(text).unwrap();
            let bump = vec![TagTemplate::parse(bump, Some(&pattern)).unwrap()];
            let on = on.iter().fold(Changes::default(), |all, change| all.with(*change));
            Cascade { on, pattern: Some(pattern), bump }
        };
        let flush = Cascade {
            on: Changes::default().with(Change::Flush),
            pattern: None,
            bump: vec![TagTemplate::parse("all", None).unwrap()],
        };
        let cascades = vec![
            cascade(&[Change::Delete, Change::Set], "user:{user}", "user:{user}"),
            flush,
            cascade(&[Change::Delete], "{kind}:{id}", "{kind}"),
        ];
        let rules = Rules::new(Vec::new(), cascades);
        let bumped = |key: &str, change| {
            let mut tags = Vec::new();
            for (cascade, captures) in rules.cascades(key.as_bytes(), change) {
                let mut tag = Vec::new();
                cascade.bump[0].render(&captures, &mut tag);
                tags.push(String::from_utf8(tag).unwrap());
            }
            tags
        };
        assert_eq!(bumped("user:7", Change::Delete), ["user:7", "user"]);
        assert_eq!(bumped("user:7", Change::Set), ["user:7"]);
        assert_eq!(bumped("page:7", Change::Delete), ["page"]);
        for (key, change) in
            [("user:7", Change::Incr), ("user:7_lock", Change::Set), ("user:7", Change::Flush)]
        {
            assert!(bumped(key, change).is_empty(), "{key} {change:?}");
        }
        assert_eq!(rules.flush_cascades().len(), 1);
        assert_eq!(rules.flush_cascades()[0].bump[0].constant(), Some(&b"all"[..]));
    }

    #[test]
    fn few_hits_count_one_by_one_and_many_in_samples() {
        let mut hits = RuledHits::default();
        let mut sum = |second, count| (0..count).map(|_| hits.weight(second)).sum::<u32>();
        assert_eq!(sum(7, EXACT), EXACT);
        assert_eq!(sum(7, SAMPLE * 1000), SAMPLE * 1000);
        assert_eq!(sum(8, 3), 3, "anew in each second");
    }
}
