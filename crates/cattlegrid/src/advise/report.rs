//! The rule file that is advised, with comments that give its reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::dump::StoredShapes;
use super::observations::{OTHER, Observations, ShapeStats};
use super::together::{DeleteGroup, word_before};

/// Most rules that are advised.
const RULES_MAX: usize = 12;
/// Bounds of an advised `hold`, in milliseconds.
const HOLD_MS: (u64, u64) = (100, 10_000);
/// Most tags that are advised.
const GROUPS_MAX: usize = 6;
/// Most prefixes that are named.
const PREFIXES_MAX: usize = 32;
/// Least number of keys with a prefix.
const PREFIX_KEYS_MIN: u64 = 10;
/// Least number of shapes behind a prefix with a name.
const RESTS_MIN: usize = 3;
/// A shape with at least this many different beginnings of keys has no prefix.
const HEADS_OF_ONE: usize = 4;
/// Least number of hits per computation for a key that expires under load.
const HOT_MIN: u64 = 10;
/// Least number of herds for which a rule is advised.
const HERDS_MIN: u64 = 2;

/// The facts besides the requests on which the advice rests.
#[derive(Debug, Default)]
pub(super) struct ReportContext {
    pub(super) address: String,
    /// How long the server was watched, in seconds.
    pub(super) seconds: u64,
    /// Whether the server shows deletes.
    pub(super) shows_deletes: bool,
    /// The stored items, or why they are not known; None: the user did not ask for them.
    pub(super) stored: Option<Result<StoredShapes, String>>,
}

/// The rule file for these observations.
pub(super) fn report(seen: &Observations, context: &ReportContext) -> String {
    let mut text = header(seen, context);
    let prefixes = prefixes(seen);
    let mut shapes: Vec<(&str, &ShapeStats)> =
        seen.shapes.iter().map(|(name, shape)| (name.as_str(), shape)).collect();
    shapes.sort_by_key(|(name, shape)| {
        (std::cmp::Reverse(shape.waits_us.len()), std::cmp::Reverse(shape.gets), *name)
    });
    let (herds, others): (Vec<_>, Vec<_>) =
        shapes.into_iter().partition(|(_, shape)| shape.herds >= HERDS_MIN);
    let (locks, herds): (Vec<_>, Vec<_>) = herds.into_iter().partition(|(_, shape)| shape.is_lock());
    let named = |name: &str, shape: &ShapeStats| has_word(&PrefixedShape::of(name, shape, &prefixes).shape);
    let (mut advised, unnamed): (Vec<_>, Vec<_>) =
        herds.into_iter().partition(|(name, shape)| named(name, shape));
    say_prefixes(&mut text, seen, &prefixes);
    let groups = seen.together.groups();
    let tags = TagAdvice::of(&groups, seen, &prefixes);
    let rest = advised.split_off(advised.len().min(RULES_MAX));
    // The first rule that matches applies, so more literal patterns come before those that match their keys,
    // too.
    advised.sort_by_key(|(name, _)| std::cmp::Reverse(literal(name)));
    let mut patterns = BTreeSet::new();
    for (name, shape) in &advised {
        text.push('\n');
        describe(&mut text, name, shape, seen);
        let own = PrefixedShape::of(name, shape, &prefixes);
        if patterns.insert(own.shape.clone()) {
            rule(&mut text, &own, shape, seen, &tags);
        } else {
            text.push_str("#   The rule above matches these keys, too.\n");
        }
    }
    tags.write(&mut text, seen, &mut patterns);
    for (shapes, why) in [
        (&rest, "With herds as well, fewer of them: no rule yet"),
        (&locks, "Stored by `add` right after the miss, as locks are: no rule"),
        (
            &unnamed,
            "With herds, but no word tells these keys from others: write a pattern by hand, or give the keys a word",
        ),
    ] {
        if !shapes.is_empty() {
            line(&mut text, format_args!("\n# {why}:"));
        }
        for (name, shape) in shapes.iter().take(RULES_MAX) {
            describe(&mut text, name, shape, seen);
        }
    }
    if advised.is_empty() && unnamed.is_empty() {
        text.push_str("\n# No key was computed by several clients at the same time: no rule would have saved anything.\n");
    }
    let mut rest: Vec<_> = others.iter().filter(|(_, shape)| shape.gets > 0).collect();
    rest.sort_by_key(|(name, shape)| (std::cmp::Reverse(shape.gets), *name));
    if !rest.is_empty() {
        text.push_str("\n# Without herds:\n");
    }
    for (name, shape) in rest.iter().take(RULES_MAX) {
        describe(&mut text, name, shape, seen);
    }
    if !context.shows_deletes && seen.lines > 0 {
        text.push_str(
            "\n# This server does not show deletes: no tags are advised, and a delete counts as a get.\n",
        );
    }
    say_stored(&mut text, context);
    text
}

fn header(seen: &Observations, context: &ReportContext) -> String {
    let mut text = format!(
        "# cattlegrid advise {}: {} s, {} gets, {} of them misses.\n",
        context.address, context.seconds, seen.gets, seen.misses
    );
    let all = seen.lines + seen.skipped;
    if seen.skipped == 0 {
        text.push_str("# Every request was seen.\n");
    } else {
        let percent = seen.lines * 100 / all.max(1);
        line(
            &mut text,
            format_args!(
                "# {percent} % of the requests were seen, the others came too fast: figures are of what was seen.\n\
                 # The server keeps more lines with -o watcher_logbuf_size=4096,worker_logbuf_size=1024 (KiB)."
            ),
        );
    }
    text.push_str(
        "# What a rule would have saved are misses of further clients while one computed the key, that would have waited for its hold at most.\n",
    );
    text
}

/// The statistical error of a count, as text: requests were sampled.
fn margin(count: u64, seen: &Observations) -> String {
    let error = if seen.skipped == 0 { 0 } else { 2 * count.isqrt() };
    if error == 0 { String::new() } else { format!(" (give or take {error}, of what was seen)") }
}

/// The number of literal bytes in a shape.
fn literal(name: &str) -> usize {
    name.replace("{}", "").len()
}

/// The prefixes that Django puts before keys, such as `:1:`.
fn prefixes(seen: &Observations) -> Vec<String> {
    let mut heads: BTreeMap<&str, (u64, BTreeSet<&str>)> = BTreeMap::new();
    let settled = |shape: &&ShapeStats| !shape.many_heads && shape.heads.len() < HEADS_OF_ONE;
    for shape in seen.shapes.values().filter(settled) {
        for (head, count) in &shape.heads {
            let (sum, rests) = heads.entry(head).or_default();
            *sum += count;
            rests.insert(&shape.rest);
        }
    }
    // Without a name before the version the text can only be a prefix.
    let is_one = |head: &str, rests: &BTreeSet<&str>| {
        rests.iter().any(|rest| has_word(rest)) && (head.starts_with(':') || rests.len() >= RESTS_MIN)
    };
    let mut found: Vec<(u64, String)> = heads
        .into_iter()
        .filter(|(head, (count, rests))| *count >= PREFIX_KEYS_MIN && is_one(head, rests))
        .map(|(head, (count, _))| (count, head.to_owned()))
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().take(PREFIXES_MAX).map(|(_, head)| head).collect()
}

fn say_prefixes(text: &mut String, seen: &Observations, prefixes: &[String]) {
    if !prefixes.is_empty() {
        let list: Vec<String> = prefixes.iter().map(|prefix| format!("\"{prefix}\"")).collect();
        line(
            text,
            format_args!(
                "\n# Clients put this before their keys, as Django does (its prefix and version): rules are about what follows.\n\
                 [server]\nprefixes = [{}]",
                list.join(", ")
            ),
        );
        return;
    }
    let mut firsts: BTreeMap<&str, (u64, BTreeSet<&str>)> = BTreeMap::new();
    for (name, shape) in &seen.shapes {
        let mut parts = name.splitn(3, ':');
        if let (Some(first), Some(second), Some(_)) = (parts.next(), parts.next(), parts.next())
            && has_word(first)
            && has_word(second)
        {
            let (count, seconds) = firsts.entry(first).or_default();
            *count += shape.gets;
            seconds.insert(second);
        }
    }
    let most = firsts.into_iter().max_by_key(|(_, (count, _))| *count);
    if let Some((first, (count, seconds))) = most
        && seconds.len() >= RESTS_MIN
        && count * 10 >= seen.gets * 9
        && first.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        let percent = count * 100 / seen.gets.max(1);
        line(
            text,
            format_args!(
                "\n# {percent} % of the gets are of keys that begin with \"{first}:\". If clients put that before every key, say so, and leave it out of\n\
                 # the patterns below: tags and control keys then have it, too.\n# [server]\n# prefixes = [\"{first}:\"]"
            ),
        );
    }
}

/// A shape without the prefix that the file names.
struct PrefixedShape {
    shape: String,
}

impl PrefixedShape {
    fn of(name: &str, shape: &ShapeStats, prefixes: &[String]) -> Self {
        let is_behind = !shape.heads.is_empty()
            && !shape.many_heads
            && shape.heads.iter().all(|(head, _)| prefixes.iter().any(|prefix| **prefix == **head));
        Self { shape: if is_behind { shape.rest.clone() } else { name.to_owned() } }
    }
}

/// Tags that could replace deletes.
struct TagAdvice {
    groups: Vec<TagGroup>,
}

struct TagGroup {
    /// The name of the tag and its capture.
    word: String,
    /// Shapes behind the prefix, each with the place that the tag is named after.
    members: Vec<(String, usize)>,
    /// The first of these shapes; clients keep deleting its keys.
    first: String,
    bursts: u64,
    deletes: u64,
}

impl TagAdvice {
    fn of(groups: &[DeleteGroup], seen: &Observations, prefixes: &[String]) -> Self {
        let own = |name: &str| {
            let shape = seen.shapes.get(name);
            shape.map_or_else(|| name.to_owned(), |shape| PrefixedShape::of(name, shape, prefixes).shape)
        };
        let tag_group = |group: &DeleteGroup| {
            let mut members: Vec<(String, usize)> = Vec::new();
            for (name, place) in &group.places {
                let shape = own(name);
                // The prefix has variable places of its own.
                let place = (place + shape.matches("{}").count()).checked_sub(name.matches("{}").count())?;
                if has_word(&shape) && !members.iter().any(|(other, _)| *other == shape) {
                    members.push((shape, place));
                }
            }
            let mut words: BTreeMap<&str, usize> = BTreeMap::new();
            for (shape, place) in &members {
                *words.entry(word_before(shape, *place)?).or_default() += 1;
            }
            let word = words.iter().max_by_key(|(word, count)| (**count, std::cmp::Reverse(**word)))?.0;
            let word = word.to_lowercase();
            members.sort_by_key(|(shape, _)| (std::cmp::Reverse(literal(shape)), shape.clone()));
            let first = own(group.first());
            let &DeleteGroup { bursts, deletes, .. } = group;
            Some(TagGroup { word, members, first, bursts, deletes })
        };
        Self { groups: groups.iter().take(GROUPS_MAX).filter_map(tag_group).collect() }
    }

    /// The tag of a shape: its word, and the place that it is named after.
    fn find(&self, shape: &str) -> Option<(&str, usize)> {
        self.groups.iter().find_map(|group| {
            let (_, place) = group.members.iter().find(|(own, _)| own == shape)?;
            Some((group.word.as_str(), *place))
        })
    }

    /// Writes rules for the shapes that have none yet, and the cascades.
    fn write(&self, text: &mut String, seen: &Observations, patterns: &mut BTreeSet<String>) {
        for group in &self.groups {
            let saved = group.deletes.saturating_sub(group.bursts);
            line(
                text,
                format_args!(
                    "\n# Deleted together, {} times: {}.\n#   A tag would have saved {saved} of {} deletes{}, and as many round trips where each waits for its reply:\n\
                     #   clients delete a key of the first [[cascade]] below, whether it is there or not, or `delete @tag:{}:...`.",
                    group.bursts,
                    group.members.iter().map(|(shape, _)| shape.as_str()).collect::<Vec<_>>().join(", "),
                    group.deletes,
                    margin(saved, seen),
                    group.word,
                ),
            );
            for (shape, place) in &group.members {
                if patterns.insert(shape.clone()) {
                    let (word, pattern) = (&group.word, pattern(shape, Some((&group.word, *place))));
                    line(
                        text,
                        format_args!("[[rule]]\nmatch = \"{pattern}\"\ntags = [\"{word}:{{{word}}}\"]"),
                    );
                }
            }
            if let Some((word, place)) = self.find(&group.first) {
                let pattern = pattern(&group.first, Some((word, place)));
                line(
                    text,
                    format_args!(
                        "[[cascade]]\non = [\"delete\"]\nmatch = \"{pattern}\"\nbump = [\"{word}:{{{word}}}\"]"
                    ),
                );
            }
        }
    }
}

/// Reports items that are stored and never fetched.
fn say_stored(text: &mut String, context: &ReportContext) {
    let stored = match &context.stored {
        None => return,
        Some(Err(problem)) => return line(text, format_args!("\n# What is stored is not known: {problem}")),
        Some(Ok(stored)) => stored,
    };
    let total = &stored.total;
    let part = if stored.part { "a part of what is there" } else { "all" };
    line(
        text,
        format_args!(
            "\n# Stored: {} items, {} KiB with headers and keys ({part}); never fetched: {} of them, {} KiB.",
            total.items,
            total.bytes / 1024,
            total.unfetched,
            total.unfetched_bytes / 1024
        ),
    );
    for (name, stock) in stored.unfetched().into_iter().take(RULES_MAX) {
        let percent = stock.unfetched_bytes * 100 / total.bytes.max(1);
        let idle = stock.idle / stock.unfetched.max(1);
        let limited = stock.unfetched - stock.forever;
        let ttl = match stock.left.checked_div(limited) {
            None => "none expires".to_owned(),
            Some(left) if stock.forever == 0 => format!("{left} s left on average"),
            Some(left) => format!("{} never expire, the others have {left} s left on average", stock.forever),
        };
        line(
            text,
            format_args!(
                "# {name}: {} of {} items never fetched, {} KiB ({percent} % of what is stored), stored {idle} s ago on average; {ttl}",
                stock.unfetched,
                stock.items,
                stock.unfetched_bytes / 1024,
            ),
        );
    }
}

/// Whether a shape has a word that tells its keys from others.
fn has_word(name: &str) -> bool {
    name != OTHER && name.contains(|c: char| c.is_ascii_alphabetic())
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ok = text.write_fmt(arguments);
    text.push('\n');
}

fn describe(text: &mut String, name: &str, shape: &ShapeStats, seen: &Observations) {
    let percent = shape.gets * 100 / seen.gets.max(1);
    let hits = (shape.gets - shape.misses) * 100 / shape.gets.max(1);
    line(
        text,
        format_args!(
            "# {}: {} gets ({percent} % of all), {hits} % hits, {} stores",
            name, shape.gets, shape.stores
        ),
    );
    if let (Some(p50), Some(p99)) = (shape.time_ms(50), shape.time_ms(99)) {
        let count = shape.times_us.len();
        line(text, format_args!("#   from miss to store: p50 {p50} ms, p99 {p99} ms, of {count}"));
    }
}

fn rule(text: &mut String, own: &PrefixedShape, shape: &ShapeStats, seen: &Observations, tags: &TagAdvice) {
    let hold_ms = hold_ms(shape);
    let saved = shape.saved_by(hold_ms);
    let computed = shape.times_us.len() + shape.waits_us.len();
    let missing = margin(saved, seen);
    line(
        text,
        format_args!(
            "#   {} herds, the largest of {} clients: hold = \"{hold_ms}ms\" would have saved {saved} of {computed} computations{missing}",
            shape.herds, shape.largest
        ),
    );
    let tag = tags.find(&own.shape);
    line(text, format_args!("[[rule]]\nmatch = \"{}\"\nhold = \"{hold_ms}ms\"", pattern(&own.shape, tag)));
    if let Some((word, _)) = tag {
        line(text, format_args!("tags = [\"{word}:{{{word}}}\"]"));
    }
    if let Some(ttl) = shape.ttl_min.filter(|ttl| *ttl >= 10) {
        let grace = (ttl / 2).clamp(5, 60);
        line(
            text,
            format_args!(
                "# Values expire after {ttl} s or later. If an old one is good for a moment longer, clients do not even wait:\n# grace = \"{grace}s\""
            ),
        );
    }
    let hits = shape.gets.saturating_sub(shape.misses);
    if shape.ttl_min.is_some() && hits >= HOT_MIN * shape.times_us.len() as u64 {
        let p50 = shape.time_ms(50).unwrap_or(0);
        line(
            text,
            format_args!(
                "# They expire while they are asked for: {} times {saved} clients in all waited for about {p50} ms{missing}. A little before, one client can\n\
                 # compute while the others have the value:\n# early = \"auto\"",
                shape.herds
            ),
        );
    }
}

/// A `hold` for a shape, in milliseconds: 1.5 times the time of nearly all computations, rounded.
fn hold_ms(shape: &ShapeStats) -> u64 {
    let p99 = shape.time_ms(99).unwrap_or(0);
    (p99 + p99 / 2).next_multiple_of(50).clamp(HOLD_MS.0, HOLD_MS.1)
}

/// The pattern of a shape. Its variable places get names; the place of the tag gets the tag's.
fn pattern(shape: &str, tag: Option<(&str, usize)>) -> String {
    let parts: Vec<&str> = shape.split("{}").collect();
    let places = parts.len() - 1;
    let mut pattern = parts[0].to_owned();
    for (place, part) in parts[1..].iter().enumerate() {
        let name = match tag {
            Some((word, own)) if own == place => word.to_owned(),
            _ if places == 1 => "id".to_owned(),
            _ => format!("id{}", place + 1),
        };
        pattern.extend(["{", &name, "}", part]);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::super::dump::DumpItem;
    use super::super::observations::tests::{get, store};
    use super::super::observations::{WatchEvent, WatchEventKind};
    use super::*;

    fn context() -> ReportContext {
        ReportContext { address: "a".to_owned(), seconds: 1, shows_deletes: true, stored: None }
    }

    /// The server takes the file.
    fn check(text: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        if let Err(error) = cattlegrid_config::check(file.path(), None, crate::own_types::TYPES) {
            panic!("{error}\n{text}");
        }
    }

    fn seen() -> Observations {
        let mut seen = Observations::default();
        for herd in 0..3_u64 {
            let key = format!("page:{herd}");
            let at = herd * 1_000_000;
            for client in 0..10 {
                seen.note(get(&key, false, at + client * 1000));
            }
            (0..10).for_each(|client| seen.note(store(&key, 60, at + 200_000 + client)));
        }
        (0..70).for_each(|_| seen.note(get("user:7:name", true, 5)));
        seen
    }

    #[test]
    fn the_advice_is_a_rule_file() {
        let text = report(
            &seen(),
            &ReportContext { address: "127.0.0.1:11211".to_owned(), seconds: 60, ..context() },
        );
        assert!(
            text.starts_with(
                "# cattlegrid advise 127.0.0.1:11211: 60 s, 100 gets, 30 of them misses.\n# Every"
            ),
            "{text}"
        );
        assert!(text.contains("# page:{}: 30 gets (30 % of all), 0 % hits, 30 stores\n"), "{text}");
        assert!(text.contains("3 herds, the largest of 10 clients: hold = \"300ms\" would have saved 27 of 30 computations\n"), "{text}");
        assert!(text.contains("[[rule]]\nmatch = \"page:{id}\"\nhold = \"300ms\"\n"), "{text}");
        assert!(
            text.contains("# grace = \"30s\"\n")
                && text.contains("# Without herds:\n# user:{}:name: 70 gets"),
            "{text}"
        );
        check(&text);
        assert!(report(&Observations::default(), &context()).contains("no rule would have saved anything"));
    }

    #[test]
    fn what_was_not_seen_is_said() {
        let mut seen = seen();
        seen.skipped += 130;
        let text = report(&seen, &context());
        assert!(
            text.contains("# 50 % of the requests were seen")
                && text.contains("(give or take 10, of what was seen)"),
            "{text}"
        );
    }

    #[test]
    fn herds_without_a_word_are_said() {
        let mut seen = Observations::default();
        for herd in 0..3_u64 {
            (0..10).for_each(|client| seen.note(get("tab1", false, herd * 1_000_000 + client)));
            let stores = (0..10).map(|client| store("tab1", 60, herd * 1_000_000 + 100_000 + client));
            stores.for_each(|store| seen.note(store));
        }
        let text = report(&seen, &context());
        assert!(text.contains("# With herds, but no word") && text.contains("# {}: 30 gets"), "{text}");
        assert!(!text.contains("[[rule]]") && !text.contains("no rule would"), "{text}");
    }

    #[test]
    fn any_shape_is_a_pattern() {
        for (shape, expected) in [
            ("page:{}", "page:{id}"),
            ("{}:{}/x", "{id1}:{id2}/x"),
            ("config", "config"),
            (":{}:a", ":{id}:a"),
        ] {
            assert_eq!(pattern(shape, None), expected);
        }
    }

    /// Herds on keys of this form.
    fn herds(seen: &mut Observations, key: impl Fn(u64) -> String) {
        for herd in 0..12_u64 {
            let at = herd * 1_000_000;
            (0..10).for_each(|client| seen.note(get(&key(herd), false, at + client)));
            (0..10).for_each(|client| seen.note(store(&key(herd), 60, at + 100_000 + client)));
            (0..200).for_each(|n| seen.note(get(&key(herd), true, at + 200_000 + n)));
        }
    }

    #[test]
    fn prefixes_of_django_are_named_and_left_out_of_patterns() {
        let mut seen = Observations::default();
        herds(&mut seen, |n| format!(":1:page:{n}"));
        herds(&mut seen, |n| format!(":2:page:{n}"));
        let text = report(&seen, &context());
        assert!(text.contains("[server]\nprefixes = [\":1:\", \":2:\"]\n"), "{text}");
        assert_eq!(text.matches("match = \"page:{id}\"").count(), 1, "{text}");
        assert!(text.contains("# early = \"auto\""), "{text}");
        check(&text);
        let mut seen = Observations::default();
        herds(&mut seen, |n| format!("user:{n}:name"));
        assert!(!report(&seen, &context()).contains("prefixes"));
        let mut seen = Observations::default();
        for what in ["page", "user", "feed"] {
            herds(&mut seen, |n| format!("shop:{what}:{n}"));
        }
        let text = report(&seen, &context());
        assert!(text.contains("# prefixes = [\"shop:\"]") && text.contains("\"shop:page:{id}\""), "{text}");
        check(&text);
    }

    #[test]
    fn what_is_deleted_together_has_a_tag() {
        for prefix in ["", ":1:"] {
            let mut seen = Observations::default();
            herds(&mut seen, |n| format!("{prefix}user:{n}:name"));
            for user in 0..10_u64 {
                for (at, what) in ["name", "cart", "feed"].iter().enumerate() {
                    let key = format!("{prefix}user:{user}:{what}");
                    let us = 20_000_000 + user * 1_000_000 + at as u64 * 100;
                    seen.note(WatchEvent {
                        connection: 3,
                        kind: WatchEventKind::Delete,
                        ..get(&key, true, us)
                    });
                    seen.note(get(&key, true, us + 50));
                }
            }
            seen.together.end();
            let text = report(&seen, &context());
            let rule = "match = \"user:{user}:name\"\nhold = \"150ms\"\ntags = [\"user:{user}\"]\n";
            assert!(text.contains(rule), "{text}");
            assert!(text.contains("match = \"user:{user}:cart\"\ntags = [\"user:{user}\"]\n"), "{text}");
            assert!(text.contains("would have saved 20 of 30 deletes,"), "{text}");
            let cascade =
                "[[cascade]]\non = [\"delete\"]\nmatch = \"user:{user}:name\"\nbump = [\"user:{user}\"]\n";
            assert!(text.contains(cascade), "{text}");
            check(&text);
        }
    }

    #[test]
    fn the_more_literal_rule_comes_first() {
        let mut seen = Observations::default();
        herds(&mut seen, |n| format!("page:{n}"));
        herds(&mut seen, |n| format!("page:{n}/print"));
        herds(&mut seen, |_| "page:list".to_owned());
        let text = report(&seen, &context());
        assert_eq!(text.matches("[[rule]]").count(), 3, "{text}");
        check(&text);
    }

    #[test]
    fn what_is_never_fetched_is_said() {
        let mut stored = StoredShapes::default();
        for n in 0..10 {
            let item = DumpItem {
                key: &format!("report%3A{n}"),
                expires: None,
                accessed: 40,
                fetched: false,
                size: 1024,
            };
            stored.note(&item, 100);
        }
        let with = |stored| report(&seen(), &ReportContext { stored: Some(stored), ..context() });
        let text = with(Ok(stored));
        let expected = "# report:{}: 10 of 10 items never fetched, 10 KiB (100 % of what is stored), stored 60 s ago on average; none expires\n";
        assert!(text.contains(expected), "{text}");
        check(&text);
        assert!(with(Err("no".to_owned())).contains("# What is stored is not known: no\n"));
    }
}
