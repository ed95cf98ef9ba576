//! The advice: a rule file, with comments that say what it rests on.

use std::fmt::Write as _;

use super::seen::{OTHER, Seen, Shape};

/// Rules that are advised at most.
const RULES_MAX: usize = 12;
/// Holds are at least this long, in milliseconds, and at most.
const HOLD_MS: (u64, u64) = (100, 10_000);
/// Herds from which on a rule is advised.
const HERDS_MIN: u64 = 2;

/// The rule file for what was seen in `seconds` at `address`.
pub(super) fn report(seen: &Seen, address: &str, seconds: u64) -> String {
    let mut text = format!(
        "# cattlegrid advise {address}: {seconds} s, {} gets, {} of them misses.\n",
        seen.gets, seen.misses
    );
    let all = seen.lines + seen.skipped;
    if seen.skipped == 0 {
        text.push_str("# Every request was seen.\n");
    } else {
        let percent = seen.lines * 100 / all.max(1);
        line(
            &mut text,
            format_args!(
                "# {percent} % of the requests were seen, the others came too fast: figures are of what was seen."
            ),
        );
    }
    text.push_str(
        "# What a rule would have saved are misses of further clients while one computed the key, that would have waited for its hold at most.\n",
    );
    let mut shapes: Vec<(&str, &Shape)> =
        seen.shapes.iter().map(|(name, shape)| (name.as_str(), shape)).collect();
    shapes.sort_by_key(|(name, shape)| {
        (std::cmp::Reverse(shape.waits_us.len()), std::cmp::Reverse(shape.gets), *name)
    });
    let (herds, others): (Vec<_>, Vec<_>) =
        shapes.into_iter().partition(|(_, shape)| shape.herds >= HERDS_MIN);
    let (locks, herds): (Vec<_>, Vec<_>) = herds.into_iter().partition(|(_, shape)| shape.is_lock());
    let (advised, unnamed): (Vec<_>, Vec<_>) = herds.into_iter().partition(|(name, _)| has_word(name));
    for (place, (name, shape)) in advised.iter().enumerate() {
        text.push('\n');
        describe(&mut text, name, shape, seen);
        if place < RULES_MAX {
            rule(&mut text, name, shape, seen);
        }
    }
    for (shapes, why) in [
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
    text
}

/// Whether a word in the shape tells its keys from others.
fn has_word(name: &str) -> bool {
    name != OTHER && name.contains(|c: char| c.is_ascii_alphabetic())
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ok = text.write_fmt(arguments);
    text.push('\n');
}

fn describe(text: &mut String, name: &str, shape: &Shape, seen: &Seen) {
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

fn rule(text: &mut String, name: &str, shape: &Shape, seen: &Seen) {
    let hold_ms = hold_ms(shape);
    let saved = shape.saved_by(hold_ms);
    let computed = shape.times_us.len() + shape.waits_us.len();
    // Each miss that is seen or not is a draw.
    let error = if seen.skipped == 0 { 0 } else { 2 * saved.isqrt() };
    let missing =
        if error == 0 { String::new() } else { format!(" (give or take {error}, of what was seen)") };
    line(
        text,
        format_args!(
            "#   {} herds, the largest of {} clients: hold = \"{hold_ms}ms\" would have saved {saved} of {computed} computations{missing}",
            shape.herds, shape.largest
        ),
    );
    line(text, format_args!("[[rule]]\nmatch = \"{}\"\nhold = \"{hold_ms}ms\"", pattern(name)));
    if let Some(ttl) = shape.ttl_min.filter(|ttl| *ttl >= 10) {
        let grace = (ttl / 2).clamp(5, 60);
        line(
            text,
            format_args!(
                "# Values expire after {ttl} s or later. If an old one is good for a moment longer, clients do not even wait:\n# grace = \"{grace}s\""
            ),
        );
    }
}

/// Half as long again as nearly all computations, in round figures.
fn hold_ms(shape: &Shape) -> u64 {
    let p99 = shape.time_ms(99).unwrap_or(0);
    (p99 + p99 / 2).next_multiple_of(50).clamp(HOLD_MS.0, HOLD_MS.1)
}

/// A shape as a pattern: its places have names.
fn pattern(shape: &str) -> String {
    let parts: Vec<&str> = shape.split("{}").collect();
    let names: Vec<String> = match parts.len() {
        0..=2 => vec!["id".to_owned()],
        count => (1..count).map(|number| format!("id{number}")).collect(),
    };
    let mut pattern = parts[0].to_owned();
    for (name, part) in names.iter().zip(&parts[1..]) {
        pattern.extend(["{", name, "}", part]);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::{get, store};
    use super::*;

    fn seen() -> Seen {
        let mut seen = Seen::default();
        for herd in 0..3_u64 {
            let key = format!("page:{herd}");
            let at = herd * 1_000_000;
            for client in 0..10 {
                seen.note(get(&key, false, at + client * 1000));
            }
            seen.note(store(&key, 60, at + 200_000));
        }
        (0..70).for_each(|_| seen.note(get("user:7:name", true, 5)));
        seen
    }

    #[test]
    fn the_advice_is_a_rule_file() {
        let text = report(&seen(), "127.0.0.1:11211", 60);
        assert!(
            text.starts_with(
                "# cattlegrid advise 127.0.0.1:11211: 60 s, 100 gets, 30 of them misses.\n# Every"
            ),
            "{text}"
        );
        assert!(text.contains("# page:{}: 30 gets (30 % of all), 0 % hits, 3 stores\n"), "{text}");
        assert!(text.contains("3 herds, the largest of 10 clients: hold = \"300ms\" would have saved 27 of 30 computations\n"), "{text}");
        assert!(text.contains("[[rule]]\nmatch = \"page:{id}\"\nhold = \"300ms\"\n"), "{text}");
        assert!(
            text.contains("# grace = \"30s\"\n")
                && text.contains("# Without herds:\n# user:{}:name: 70 gets"),
            "{text}"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        assert!(cattlegrid_config::check(file.path(), None).is_ok(), "{text}");
        assert!(report(&Seen::default(), "a", 1).contains("no rule would have saved anything"));
    }

    #[test]
    fn what_was_not_seen_is_said() {
        let mut seen = seen();
        seen.skipped += 103;
        let text = report(&seen, "a", 1);
        assert!(
            text.contains("# 50 % of the requests were seen")
                && text.contains("(give or take 10, of what was seen)"),
            "{text}"
        );
    }

    #[test]
    fn herds_without_a_word_are_said() {
        let mut seen = Seen::default();
        for herd in 0..3_u64 {
            (0..10).for_each(|client| seen.note(get("tab1", false, herd * 1_000_000 + client)));
            seen.note(store("tab1", 60, herd * 1_000_000 + 100_000));
        }
        let text = report(&seen, "a", 1);
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
            assert_eq!(pattern(shape), expected);
        }
    }
}
