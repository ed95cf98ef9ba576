//! Keys that are deleted together: a tag can replace the deletes.
//!
//! Deletes that follow each other on a connection are a burst. A part that their keys share, such as the `7`
//! of `user:7:name` and `user:7:cart`, can name the tag.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cattlegrid_server::shape;

use super::observations::head;

/// Longest pause between two deletes of a burst, in microseconds.
const GAP_US: u64 = 20_000;
/// Most keys of a burst.
const KEYS_MAX: usize = 64;
/// Most connections whose bursts are followed.
const BURSTS_MAX: usize = 10_000;
/// Most groups that are counted apart.
const GROUPS_MAX: usize = 1_000;
/// Most values that are counted per group.
const VALUES_MAX: usize = 16;
/// Least number of bursts, and of different values in them, for which a tag is advised.
const BURSTS_MIN: u64 = 3;
const VALUES_MIN: usize = 2;

/// A shape, and the number of a variable place in it.
pub(super) type ShapePlace = (String, usize);

#[derive(Debug, Default)]
pub(super) struct JointDeletes {
    bursts: HashMap<u64, DeleteBurst>,
    groups: BTreeMap<BTreeSet<ShapePlace>, DeleteGroup>,
    /// The number of deletes of each shape.
    by_shape: HashMap<String, u64>,
    pub(super) deletes: u64,
}

#[derive(Debug)]
struct DeleteBurst {
    last_us: u64,
    keys: Vec<String>,
}

/// Shapes whose keys are deleted together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct DeleteGroup {
    pub(super) places: BTreeSet<ShapePlace>,
    pub(super) bursts: u64,
    pub(super) deletes: u64,
    values: BTreeSet<String>,
    /// By shape: deletes that shared the value with another delete of their burst.
    by_shape: BTreeMap<String, u64>,
    /// By shape: how often the first delete of a burst was of it.
    firsts: BTreeMap<String, u64>,
}

impl DeleteGroup {
    /// The shape whose delete most often comes first.
    pub(super) fn first(&self) -> &str {
        let most = self.firsts.iter().max_by_key(|(name, count)| (**count, std::cmp::Reverse(*name)));
        most.map_or("", |(name, _)| name)
    }
}

impl JointDeletes {
    /// Handles a delete.
    pub(super) fn deleted(&mut self, connection: u64, us: u64, key: &[u8]) {
        self.deletes += 1;
        let Ok(key) = std::str::from_utf8(key) else { return };
        let name = shape(key.as_bytes());
        if self.by_shape.len() < GROUPS_MAX || self.by_shape.contains_key(&name) {
            *self.by_shape.entry(name).or_default() += 1;
        }
        if self.bursts.len() >= BURSTS_MAX && !self.bursts.contains_key(&connection) {
            self.end();
        }
        let burst = self.bursts.entry(connection).or_insert(DeleteBurst { last_us: us, keys: Vec::new() });
        let is_over = us.saturating_sub(burst.last_us) > GAP_US || burst.keys.len() >= KEYS_MAX;
        let over = if is_over { std::mem::take(&mut burst.keys) } else { Vec::new() };
        burst.last_us = us;
        burst.keys.push(key.to_owned());
        self.close(&over);
    }

    /// Ends all bursts: no more deletes come.
    pub(super) fn end(&mut self) {
        for burst in std::mem::take(&mut self.bursts).into_values() {
            self.close(&burst.keys);
        }
    }

    fn close(&mut self, keys: &[String]) {
        if keys.len() < 2 {
            return;
        }
        // All keys share the prefix of a framework anyway, so it does not count.
        let heads: BTreeSet<Option<&str>> = keys.iter().map(|key| head(key.as_bytes())).collect();
        let before = match heads.first() {
            Some(Some(head)) if heads.len() == 1 => shape(head.as_bytes()).matches("{}").count(),
            _ => 0,
        };
        let mut by_value = shared(keys, before);
        if before > 0 && by_value.values().all(|(_, own, _)| own.len() < 2) {
            by_value = shared(keys, 0);
        }
        for (value, (places, own, first)) in by_value {
            let has_room = self.groups.len() < GROUPS_MAX || self.groups.contains_key(&places);
            if own.len() > 1 && has_room {
                let group = self.groups.entry(places.clone()).or_default();
                group.places = places;
                group.bursts += 1;
                group.deletes += own.len() as u64;
                for key in own {
                    *group.by_shape.entry(shape(key.as_bytes())).or_default() += 1;
                }
                if group.values.len() < VALUES_MAX {
                    group.values.insert(value.to_owned());
                }
                *group.firsts.entry(first).or_default() += 1;
            }
        }
    }

    /// The groups that tags could replace, those with the most deletes first. Deletes of absent keys have no
    /// line, so a burst shows a part of its group only: groups that share a shape are merged.
    pub(super) fn groups(&self) -> Vec<DeleteGroup> {
        let mut all: Vec<DeleteGroup> = Vec::new();
        for group in self.groups.values() {
            let mut sum = group.clone();
            all.retain(|other| {
                let is_other = other.places.is_disjoint(&sum.places);
                if !is_other {
                    sum.places.extend(other.places.iter().cloned());
                    sum.bursts += other.bursts;
                    sum.deletes += other.deletes;
                    for (name, count) in &other.by_shape {
                        *sum.by_shape.entry(name.clone()).or_default() += count;
                    }
                    sum.values.extend(other.values.iter().cloned());
                    for (first, count) in &other.firsts {
                        *sum.firsts.entry(first.clone()).or_default() += count;
                    }
                }
                is_other
            });
            all.push(sum);
        }
        all.retain(|group| group.bursts >= BURSTS_MIN && group.values.len() >= VALUES_MIN);
        // Numbers can be equal by chance: most deletes of each shape must share a value.
        all.retain(|group| {
            let is_most = |(name, together): (&String, &u64)| {
                self.by_shape.get(name).is_none_or(|deletes| *together * 2 >= *deletes)
            };
            group.by_shape.iter().all(is_most)
        });
        // Keys can share several parts: the part that differs most between bursts names the tag.
        let names =
            |group: &DeleteGroup| group.places.iter().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
        let rivals: Vec<(BTreeSet<String>, usize, BTreeSet<ShapePlace>)> =
            all.iter().map(|group| (names(group), group.values.len(), group.places.clone())).collect();
        all.retain(|group| {
            !rivals.iter().any(|(other, values, places)| {
                let is_better = (*values, places) > (group.values.len(), &group.places);
                is_better && !other.is_disjoint(&names(group))
            })
        });
        all.sort_by_key(|group| (std::cmp::Reverse(group.deletes), group.places.first().cloned()));
        all
    }
}

/// By value that keys share: the places where the value stands, the keys, and the shape of the first key.
type SharedValues<'k> = BTreeMap<&'k str, (BTreeSet<ShapePlace>, BTreeSet<&'k str>, String)>;

/// The values in variable places of the keys, after this many places.
fn shared(keys: &[String], before: usize) -> SharedValues<'_> {
    let mut by_value = SharedValues::new();
    for key in keys {
        let name = shape(key.as_bytes());
        for (place, value) in captures(&name, key).into_iter().enumerate().skip(before) {
            let (places, own, _) =
                by_value.entry(value).or_insert_with(|| (BTreeSet::new(), BTreeSet::new(), name.clone()));
            places.insert((name.clone(), place));
            own.insert(key);
        }
    }
    by_value
}

/// The texts in the key at the variable places of its shape.
pub(super) fn captures<'k>(shape: &str, key: &'k str) -> Vec<&'k str> {
    let mut parts = shape.split("{}");
    let mut found = Vec::new();
    let Some(mut rest) = key.strip_prefix(parts.next().unwrap_or_default()) else { return found };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let end = if part.is_empty() && parts.peek().is_none() { Some(rest.len()) } else { rest.find(part) };
        let Some(end) = end else { return found };
        found.push(&rest[..end]);
        rest = &rest[end + part.len()..];
    }
    found
}

/// The word before a variable place, which names it: `user` of `user:{}:name`.
pub(super) fn word_before(shape: &str, place: usize) -> Option<&str> {
    let before = shape.split("{}").nth(place)?;
    let word = before.split(|c: char| !c.is_ascii_alphabetic()).rfind(|word| !word.is_empty())?;
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_places() {
        assert_eq!(captures("user:{}:name", "user:7:name"), ["7"]);
        assert_eq!(captures("{}:{}/x", "1:2-3/x"), ["1", "2-3"]);
        assert_eq!(captures("page", "page"), [""; 0]);
        assert_eq!(captures("a:{}", "b:7"), [""; 0]);
        assert_eq!(word_before("user:{}:cart:{}", 1), Some("cart"));
        assert_eq!(word_before(":{}:x", 0), None);
    }

    #[test]
    fn deletes_that_share_a_part_are_a_group() {
        let mut together = JointDeletes::default();
        for user in 0..5_u64 {
            let us = user * 1_000_000;
            for (at, what) in ["name", "cart", "feed"].iter().enumerate() {
                // Not all of them were there.
                if user != 3 || at > 0 {
                    together.deleted(
                        user % 2,
                        us + at as u64 * 200,
                        format!("user:{user}:{what}").as_bytes(),
                    );
                }
            }
        }
        for n in 0..20_u64 {
            together.deleted(9, n * 1_000_000, format!("page:{n}").as_bytes());
        }
        together.end();
        let groups = together.groups();
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!((groups[0].bursts, groups[0].deletes, groups[0].first()), (5, 14, "user:{}:name"));
        let shapes: Vec<&str> = groups[0].places.iter().map(|(shape, _)| shape.as_str()).collect();
        assert_eq!(shapes, ["user:{}:cart", "user:{}:feed", "user:{}:name"]);
    }

    #[test]
    fn keys_that_share_nothing_are_no_group() {
        let mut together = JointDeletes::default();
        for n in 0..50_u64 {
            together.deleted(1, n * 1_000_000, format!("page:{n}").as_bytes());
            together.deleted(1, n * 1_000_000 + 10, format!("user:{}", n + 100).as_bytes());
        }
        together.end();
        assert!(together.groups().is_empty() && together.deletes == 100);
    }

    #[test]
    fn what_a_framework_puts_before_them_is_not_what_they_share() {
        for prefix in [":1:", "shop:1:"] {
            let mut together = JointDeletes::default();
            for n in 0..12_u64 {
                for what in ["name", "cart", "feed"] {
                    together.deleted(1, n * 1_000_000, format!("{prefix}user:{}:{what}", n % 4).as_bytes());
                }
            }
            together.end();
            let groups = together.groups();
            assert_eq!((groups.len(), groups[0].bursts, groups[0].deletes), (1, 12, 36), "{groups:?}");
            assert!(groups[0].places.iter().all(|(_, place)| *place == 1), "{groups:?}");
        }
    }
}
