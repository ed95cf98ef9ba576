//! Example keys of a pattern, and what can be proved with them: a cascade on `set` that invalidates a tag of
//! the very item that is set.
//!
//! A result is certain, since there is a key for which it happens. Without a result it may happen
//! nevertheless: with patterns that share only some keys, with keys whose captures are equal, and with tags
//! that clients name.

use crate::rules::pattern::{ByteClass, Pattern};
use crate::rules::{Change, Rules};

/// A cascade on `set` and a rule that give the same tag to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfBump {
    /// The cascade's place among those with a pattern, from 0.
    pub cascade: usize,
    /// The rule's place among the rules, from 1.
    pub rule: u32,
    /// A key for which it happens.
    pub key: String,
    /// The tag that its item carries and each `set` of it invalidates.
    pub tag: String,
}

impl Rules {
    /// For each cascade on `set` that is found to invalidate a tag of the item that is set: an example.
    pub fn self_bumps(&self) -> Vec<SelfBump> {
        let mut all: Vec<SelfBump> = Vec::new();
        let of_rules = self.list.iter().map(|rule| &rule.pattern);
        let patterns = of_rules.chain(self.cascades.iter().filter_map(|cascade| cascade.pattern.as_ref()));
        let prefixes = || self.prefixes.all().map(|(_, text)| String::from_utf8_lossy(text).into_owned());
        let behind = |key: String| {
            let with: Vec<String> = prefixes().map(|prefix| prefix + &key).collect();
            std::iter::once(key).chain(with)
        };
        let keys: Vec<String> = patterns.filter_map(Pattern::example).flat_map(behind).collect();
        // A rule that observes may apply one day.
        let found = keys.iter().flat_map(|key| {
            [self.find(key.as_bytes()), self.find_observing(key.as_bytes())].map(|found| (key, found))
        });
        for (key, found) in found {
            let Some((rule, captures)) = found else { continue };
            let tags: Vec<String> = rule.tags.iter().map(|tag| tag.name(&captures)).collect();
            for (cascade, captures) in self.cascades(key.as_bytes(), Change::Set) {
                let place = self.cascades.iter().position(|other| std::ptr::eq(other, cascade));
                let Some(place) = place else { continue };
                let own = cascade.bump.iter().map(|bump| bump.name(&captures)).find(|tag| tags.contains(tag));
                if let Some(tag) = own.filter(|_| !all.iter().any(|found| found.cascade == place)) {
                    all.push(SelfBump { cascade: place, rule: rule.number, key: key.clone(), tag });
                }
            }
        }
        all.sort_by_key(|found| found.cascade);
        all
    }
}

/// Letters with which the captures of an example begin, and digits for captures of digits. A pattern may have
/// some of them as literals, so there are several.
const BEGINNINGS: [(&str, &str); 6] =
    [("a", "71"), ("x", "82"), ("q", "93"), ("w", "64"), ("k", "55"), ("z", "46")];

impl Pattern {
    /// A key that it matches, in which all captures differ; `None`: none was found.
    pub(crate) fn example(&self) -> Option<String> {
        BEGINNINGS.into_iter().find_map(|(letter, digits)| {
            let mut key = self.prefix.to_vec();
            let mut expected = Vec::new();
            for (number, capture) in (1..).zip(&self.captures) {
                let held = match capture.class {
                    ByteClass::Int => format!("{digits}{number}"),
                    ByteClass::Segment | ByteClass::Rest => format!("{letter}{number}"),
                };
                key.extend_from_slice(held.as_bytes());
                key.extend_from_slice(&capture.then);
                expected.push(held);
            }
            let captures = self.match_key(&key)?;
            let as_expected = captures.iter().eq(expected.iter().map(String::as_bytes));
            String::from_utf8(key).ok().filter(|_| as_expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Cascade, Changes, Rule, TagTemplate};
    use cattlegrid_herd::Policy;

    #[test]
    fn an_example_is_a_key_of_its_pattern() {
        for (pattern, example) in [
            ("page", Some("page")),
            ("page:{id}", Some("page:a1")),
            ("page:{id:int}", Some("page:711")),
            ("{a}a{b}", Some("a1aa2")),
            ("{n:int}7{m:int}", Some("7117712")),
            ("u:{u}:{rest*}", Some("u:a1:a2")),
            ("{a}-{n:int}-a", Some("a1-712-a")),
            ("{a}1{b}", None),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().example().as_deref(), example, "{pattern}");
        }
    }

    /// The result for rules of a pattern and a tag, and one cascade.
    fn found(list: &[(&str, &str)], on: Change, pattern: &str, bump: &str) -> Option<String> {
        let rule = |(number, (pattern, tag)): (u32, &(&str, &str))| {
            let pattern = Pattern::parse(pattern).unwrap();
            let tags = if tag.is_empty() {
                Vec::new()
            } else {
                vec![TagTemplate::parse(tag, Some(&pattern)).unwrap()]
            };
            Rule {
                number,
                pattern,
                policy: Policy::default(),
                tags,
                negative_ttl_s: 0,
                loading: None,
                prefix: None,
            }
        };
        let pattern = Pattern::parse(pattern).unwrap();
        let bump = vec![TagTemplate::parse(bump, Some(&pattern)).unwrap()];
        let cascade = Cascade { on: Changes::default().with(on), pattern: Some(pattern), bump };
        let rules = Rules::new((1..).zip(list).map(rule).collect(), vec![cascade]);
        rules.self_bumps().first().map(|found| format!("{} {} {}", found.rule, found.key, found.tag))
    }

    #[test]
    fn a_set_that_invalidates_its_own_item_is_found() {
        let set = |list: &[(&str, &str)], pattern, bump| found(list, Change::Set, pattern, bump);
        let own = [("user:{id}", "user:{id}")];
        assert_eq!(set(&own, "user:{u}", "user:{u}").as_deref(), Some("1 user:a1 user:a1"));
        assert_eq!(found(&own, Change::Delete, "user:{u}", "user:{u}"), None);
        assert_eq!(set(&own, "basket:{u}", "user:{u}"), None);
        assert_eq!(set(&own, "user:{u}", "page:{u}"), None);
        // One of the patterns has more keys.
        assert_eq!(set(&[("{kind}:{id}", "{kind}")], "user:{u}", "user").as_deref(), Some("1 user:a1 user"));
        assert_eq!(set(&own, "{kind}:{id}", "{kind}:{id}").as_deref(), Some("1 user:a1 user:a1"));
        assert_eq!(set(&[("a:{x*}", "all")], "{x*}", "all").as_deref(), Some("1 a:a1 all"));
        // An earlier rule has the key.
        let list = [("user:{n}", ""), ("{kind}:{id}", "{kind}:{id}")];
        assert_eq!(set(&list, "user:{u}", "user:{u}"), None);
        // Captures with different contents.
        let pair = [("pair:{a}:{b}", "item:{a}")];
        assert_eq!(set(&pair, "pair:{x}:{y}", "item:{y}"), None);
        assert_eq!(set(&pair, "pair:{x}:{y}", "item:{x}").as_deref(), Some("1 pair:a1:a2 item:a1"));
        // A lock has no rule, and no cascade.
        assert_eq!(set(&[("{x*}", "all")], "{id}_lock", "all"), None);
    }
}
