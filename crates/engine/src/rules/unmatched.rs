//! Keys without a rule that would have one, or would name a call or a control key, behind a prefix: what a
//! client puts before every key, unknown to the server, keeps every rule from its keys, and nothing else
//! tells.
//!
//! Misses of keys without a rule are sampled. Of each, the parts behind its first few separators are tried.
//! The prefixes of those that match are counted in a table of fixed size, in which the counts of the most
//! frequent are never far below the truth.
//!
//! Source: J. Misra and D. Gries, "Finding repeated elements", Science of Computer Programming 2 (1982).

use std::fmt::{self, Display};

use cattlegrid_tags::PREFIX_BYTES_MAX;

use crate::rules::index::LockForms;
use crate::sync::{Mutex, PoisonError};

/// Prefixes that are counted at a time.
const SEEN_MAX: usize = 64;
/// Separators of a key that are tried.
const TRIED_MAX: usize = 8;
/// Samples after which all counts are halved, so that what was long ago is forgotten.
const SAMPLES_MAX: u64 = 10_000;
/// Samples before rules are spoken of.
const ENOUGH: u64 = 20;
/// One sample in this many must match behind a prefix.
const SHARE: u64 = 10;
/// Samples that name a call or a control key: they mean nothing else.
const NAMES_MIN: u64 = 3;

/// Samples of keys that would have a rule behind a prefix.
#[derive(Debug, Default)]
pub(crate) struct UnmatchedPrefixes(Mutex<PrefixTable>);

#[derive(Debug, Default)]
struct PrefixTable {
    sampled: u64,
    seen: Vec<PrefixSamples>,
}

#[derive(Debug)]
struct PrefixSamples {
    prefix: Box<[u8]>,
    meant: BehindPrefix,
    count: u64,
}

/// The meaning that a key would have without its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BehindPrefix {
    /// A key of the rule with this number.
    Rule(u32),
    /// A control key.
    Control,
    /// The name of an object or a call.
    Object,
}

/// A prefix that the server should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixHint {
    /// The prefix.
    pub prefix: String,
    /// The rule whose keys stand behind it and that has had no key yet, by its number, and its pattern; None:
    /// control keys or names of objects do.
    pub rule: Option<(u32, String)>,
    /// The server has prefixes.
    pub has_some: bool,
    /// Sampled keys that would be theirs.
    pub count: u64,
    /// Sampled keys without a rule.
    pub sampled: u64,
}

impl UnmatchedPrefixes {
    /// Takes a sample; `means`: what a key would be.
    pub(crate) fn note(&self, key: &[u8], means: impl Fn(&[u8]) -> Option<BehindPrefix>) {
        let found = behind(key, means);
        // A sample more or less changes nothing: no client waits here.
        let Ok(mut table) = self.0.try_lock() else { return };
        table.sampled += 1;
        if let Some((prefix, meant)) = found {
            table.count(prefix, meant);
        }
        if table.sampled >= SAMPLES_MAX {
            table.halve();
        }
    }

    /// Other rules are in force.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = PrefixTable::default();
    }

    /// The prefixes that are frequent, the most frequent first; of each the most frequent meaning. With what
    /// a key behind it was found to be, its count, and the number of samples.
    pub(crate) fn frequent(&self) -> Vec<(Box<[u8]>, BehindPrefix, u64, u64)> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_enough = |seen: &&PrefixSamples| match seen.meant {
            BehindPrefix::Rule(_) => table.sampled >= ENOUGH && seen.count * SHARE >= table.sampled,
            BehindPrefix::Control | BehindPrefix::Object => seen.count >= NAMES_MIN,
        };
        let mut all: Vec<&PrefixSamples> = table.seen.iter().filter(is_enough).collect();
        all.sort_by_key(|seen| std::cmp::Reverse(seen.count));
        let mut found: Vec<(Box<[u8]>, BehindPrefix, u64, u64)> = Vec::new();
        for seen in all {
            if found.iter().all(|(prefix, ..)| *prefix != seen.prefix) {
                found.push((seen.prefix.clone(), seen.meant, seen.count, table.sampled));
            }
        }
        found
    }
}

/// The first prefix behind which the rest of a key means something, and what.
pub(crate) fn behind(
    key: &[u8],
    means: impl Fn(&[u8]) -> Option<BehindPrefix>,
) -> Option<(&[u8], BehindPrefix)> {
    let ends = key.iter().enumerate().filter(|(_, byte)| b":./|_".contains(byte)).map(|(at, _)| at + 1);
    let ends = ends.take_while(|end| *end <= PREFIX_BYTES_MAX && *end < key.len()).take(TRIED_MAX);
    // A lock has no rule whatever stands before it, and control keys begin with `@` as a rule.
    if LockForms::of_key(key) != LockForms::NONE || key.first() == Some(&b'@') {
        return None;
    }
    ends.map(|end| key.split_at(end)).find_map(|(prefix, rest)| Some((prefix, means(rest)?)))
}

impl PrefixTable {
    fn count(&mut self, prefix: &[u8], meant: BehindPrefix) {
        if let Some(seen) = self.seen.iter_mut().find(|seen| *seen.prefix == *prefix && seen.meant == meant) {
            seen.count += 1;
        } else if self.seen.len() < SEEN_MAX {
            self.seen.push(PrefixSamples { prefix: prefix.into(), meant, count: 1 });
        } else {
            self.seen.iter_mut().for_each(|seen| seen.count -= 1);
            self.seen.retain(|seen| seen.count > 0);
        }
    }

    fn halve(&mut self) {
        self.sampled /= 2;
        self.seen.iter_mut().for_each(|seen| seen.count /= 2);
        self.seen.retain(|seen| seen.count > 0);
    }
}

impl Display for PrefixHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, rule, has_some, count, sampled } = self;
        match rule {
            Some((number, pattern)) => write!(
                f,
                "rule {number} `{pattern}` has matched no key; {count} of {sampled} sampled keys would match behind {prefix:?}"
            )?,
            None => {
                write!(
                    f,
                    "{count} of {sampled} sampled keys would be control keys or names of objects behind {prefix:?}"
                )?;
            }
        }
        write!(f, ": {}", remedy(prefix, *has_some))
    }
}

/// What to do about a prefix that the server, which has some or none, does not know.
pub(crate) fn remedy(prefix: &str, has_some: bool) -> String {
    if has_some {
        format!("add {prefix:?} to prefixes in [server]")
    } else {
        format!("add prefixes = [{prefix:?}] to [server]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `page:N`, and a control key.
    fn means(rest: &[u8]) -> Option<BehindPrefix> {
        match rest {
            [b'@', ..] => Some(BehindPrefix::Control),
            _ if rest.starts_with(b"page:") && !rest[5..].contains(&b':') => Some(BehindPrefix::Rule(1)),
            _ => None,
        }
    }

    #[test]
    fn a_frequent_prefix_is_found() {
        let all = UnmatchedPrefixes::default();
        for number in 0..100 {
            all.note(format!(":1:page:{number}").as_bytes(), means);
            all.note(format!("other:{number}").as_bytes(), means);
            all.note(format!("user:{number}:page:7").as_bytes(), means);
        }
        let found = all.frequent();
        let [(prefix, BehindPrefix::Rule(1), count, 300)] = &found[..] else { panic!("{found:?}") };
        assert!(**prefix == *b":1:" && (90..=100).contains(count), "{found:?}");
        all.clear();
        assert_eq!(all.frequent(), []);
    }

    #[test]
    fn a_few_keys_say_nothing_of_rules_and_enough_of_control_keys() {
        let all = UnmatchedPrefixes::default();
        (0..19).for_each(|_| all.note(b"shop.page:7", means));
        assert_eq!(all.frequent(), []);
        all.note(b"shop.page:7", means);
        assert_eq!(all.frequent()[0].0, b"shop."[..].into());
        (0..3).for_each(|_| all.note(b"app/@tag:x", means));
        assert_eq!(all.frequent()[1], (b"app/"[..].into(), BehindPrefix::Control, 3, 23));
    }

    #[test]
    fn the_table_stays_small_and_forgets() {
        let all = UnmatchedPrefixes::default();
        for number in 0..200_000_u32 {
            all.note(format!("{}:page:7", number.wrapping_mul(2_654_435_761)).as_bytes(), means);
            if number % 5 == 0 {
                all.note(b"a:page:1", means);
            }
        }
        assert!(all.0.lock().unwrap().seen.len() <= SEEN_MAX);
        let found = all.frequent();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, b"a:"[..].into());
        (0..60_000).for_each(|_| all.note(b"plain", means));
        assert_eq!(all.frequent(), []);
    }

    #[test]
    fn a_prefix_is_short_and_is_no_whole_key() {
        let all = UnmatchedPrefixes::default();
        let long = format!("{}:page:7", "x".repeat(PREFIX_BYTES_MAX));
        let many = format!("{}page:7", ":".repeat(TRIED_MAX + 1));
        for key in [&*long, &many, "page:7", ":", ""] {
            (0..100).for_each(|_| all.note(key.as_bytes(), means));
        }
        assert_eq!(all.frequent(), []);
    }
}
