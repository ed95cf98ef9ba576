//! Rules against a plain implementation of the documentation, on random patterns and keys.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use cattlegrid_engine::rules::{Pattern, Rule, Rules};
use cattlegrid_herd::Policy;
use proptest::prelude::*;

/// A pattern as a list of its parts.
#[derive(Debug, Clone)]
enum Part {
    Literal(String),
    Segment,
    Int,
    Rest,
}

/// The pattern's text, with names by place.
fn text(parts: &[Part]) -> String {
    let part = |(n, part): (usize, &Part)| match part {
        Part::Literal(literal) => literal.clone(),
        Part::Segment => format!("{{c{n}}}"),
        Part::Int => format!("{{c{n}:int}}"),
        Part::Rest => format!("{{c{n}*}}"),
    };
    parts.iter().enumerate().map(part).collect()
}

/// The bytes of the captures, found the slow way: every end is tried, and the first at which the literal
/// stands counts.
fn reference(parts: &[Part], key: &str) -> Option<Vec<String>> {
    let Some((part, rest)) = parts.split_first() else { return key.is_empty().then(Vec::new) };
    let allowed: fn(char) -> bool = match part {
        Part::Literal(literal) => return reference(rest, key.strip_prefix(literal.as_str())?),
        Part::Segment => |c| c != ':',
        Part::Int => |c| c.is_ascii_digit(),
        Part::Rest => |_| true,
    };
    let end = match rest.first() {
        Some(Part::Literal(literal)) => {
            (1..=key.len()).find(|end| key[*end..].starts_with(literal.as_str()))?
        }
        _ => key.len(),
    };
    let (held, left) = key.split_at(end);
    if held.is_empty() || !held.chars().all(allowed) {
        return None;
    }
    let mut all = vec![held.to_owned()];
    all.extend(reference(rest, left)?);
    Some(all)
}

fn is_lock(key: &str) -> [bool; 4] {
    [key.starts_with("_lock"), key.starts_with("lock:"), key.ends_with(":lock"), key.ends_with("_lock")]
}

/// Whether the pattern may match the key, according to the rules for locks.
fn lock_allows(parts: &[Part], key: &str) -> bool {
    let literal = |part: Option<&Part>| match part {
        Some(Part::Literal(literal)) => literal.clone(),
        _ => String::new(),
    };
    let (start, end) = (literal(parts.first()), literal(parts.last()));
    let spelled = [is_lock(&start)[0], is_lock(&start)[1], is_lock(&end)[2], is_lock(&end)[3]];
    let key = is_lock(key);
    key == [false; 4] || key.iter().zip(spelled).any(|(key, spelled)| *key && spelled)
}

/// Few characters, so that literals occur inside captures.
fn literal() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[ab:1-]{1,3}", 1 => Just("lock:".to_owned()), 1 => Just("_lock".to_owned())]
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let capture = prop_oneof![3 => Just(Part::Segment), 1 => Just(Part::Int)];
    let pair = (capture, literal()).prop_map(|(capture, literal)| vec![capture, Part::Literal(literal)]);
    let last =
        prop_oneof![Just(vec![]), Just(vec![Part::Segment]), Just(vec![Part::Int]), Just(vec![Part::Rest]),];
    let first = prop::option::of(literal().prop_map(Part::Literal));
    (first, prop::collection::vec(pair, 0..4), last)
        .prop_map(|(first, pairs, last)| first.into_iter().chain(pairs.concat()).chain(last).collect())
        .prop_filter("a pattern is not empty", |parts: &Vec<Part>| !parts.is_empty())
}

/// A key made from a pattern, which often matches it.
fn key_of(parts: Vec<Part>) -> impl Strategy<Value = String> {
    let piece = |part: Part| match part {
        Part::Literal(literal) => prop_oneof![9 => Just(literal), 1 => "[ab:1-]{1,2}"].boxed(),
        Part::Segment => "[ab1-]{1,3}".boxed(),
        Part::Int => "[1]{1,3}".boxed(),
        Part::Rest => "[ab:1-]{1,4}".boxed(),
    };
    parts.into_iter().map(piece).collect::<Vec<_>>().prop_map(|pieces| pieces.concat())
}

fn parts_and_key() -> impl Strategy<Value = (Vec<Part>, String)> {
    parts().prop_flat_map(|parts| {
        let key = prop_oneof![3 => key_of(parts.clone()), 1 => "[ab:1_lock-]{0,8}"];
        (Just(parts), key)
    })
}

fn captures(pattern: &Pattern, key: &str) -> Option<Vec<String>> {
    let held = pattern.match_key(key.as_bytes())?;
    Some(held.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pattern_captures_what_the_reference_does((parts, key) in parts_and_key()) {
        let pattern = Pattern::parse(&text(&parts)).unwrap();
        prop_assert_eq!(captures(&pattern, &key), reference(&parts, &key));
    }

    #[test]
    fn the_first_rule_that_matches_is_found(
        list in prop::collection::vec(parts(), 1..12),
        (chosen, random) in (any::<prop::sample::Index>(), "[ab:1_lock-]{0,8}"),
        seed in parts_and_key(),
    ) {
        let mut list = list;
        list.insert(chosen.index(list.len()), seed.0);
        let rule = |(number, parts): (u32, &Vec<Part>)| Rule {
            number,
            pattern: Pattern::parse(&text(parts)).unwrap(),
            policy: Policy::default(),
            tags: Vec::new(),
            negative_ttl_s: 0,
            loading: None,
            prefix: None,
        };
        let rules = Rules::new((1..).zip(&list).map(rule).collect(), Vec::new());
        for key in [&random, &seed.1] {
            let found = rules.find(key.as_bytes()).map(|(rule, _)| rule.number as usize);
            let expected =
                list.iter().position(|parts| lock_allows(parts, key) && reference(parts, key).is_some());
            prop_assert_eq!(found, expected.map(|index| index + 1), "{}", key);
        }
    }

    #[test]
    fn a_covered_pattern_gets_no_key(earlier in parts(), (later, key) in parts_and_key()) {
        let (first, second) = (Pattern::parse(&text(&earlier)).unwrap(), Pattern::parse(&text(&later)).unwrap());
        let reached = lock_allows(&later, &key) && reference(&later, &key).is_some();
        if first.covers(&second) && reached {
            prop_assert!(lock_allows(&earlier, &key) && reference(&earlier, &key).is_some(), "{}", key);
        }
        prop_assert!(first.covers(&first));
    }

    #[test]
    fn any_text_is_a_pattern_or_an_error(text in "[{}a1:*int -]{0,20}", key in ".{0,20}") {
        if let Ok(pattern) = Pattern::parse(&text) {
            let _captured = pattern.match_key(key.as_bytes());
            prop_assert!(pattern.covers(&pattern));
        }
    }
}
