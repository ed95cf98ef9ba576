//! Tests that definitions are complete and consistent, and agree with the printed lines.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use cattlegrid_engine::Now;

use super::definition::{Definition, Sink, Unit, Value, ValueKind};
use super::reference::{definitions, reference_markdown};
use super::{StatGroup, StatLines, collect, leases};
use crate::shared::Shared;
use cattlegrid_config::{Command, parse_args};

const ALL: [StatGroup; 12] = [
    StatGroup::General,
    StatGroup::Own,
    StatGroup::Items,
    StatGroup::Slabs,
    StatGroup::Sizes,
    StatGroup::Conns,
    StatGroup::Rules,
    StatGroup::Tags,
    StatGroup::Loaders,
    StatGroup::Objects,
    StatGroup::Latency,
    StatGroup::Shares,
];

pub(crate) fn every_definition() -> impl Iterator<Item = &'static Definition> {
    let fields = leases::FIELDS.iter().map(|row| &row.definition);
    ALL.into_iter().flat_map(definitions).chain(fields)
}

/// A sink that keeps all statistics.
#[derive(Default)]
struct KeptStats(Vec<(&'static Definition, String, Value)>);

impl Sink for KeptStats {
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value) {
        self.0.push((definition, definition.line(labels).to_string(), value.clone()));
    }
}

/// A server with two unused rules, a loader and objects.
fn server() -> (Arc<Shared>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = r#"
        [[rule]]
        match = "a:{b}"
        tags = ["b"]
        [[rule]]
        match = "c"
        [loader.idle]
        command = ["sh", "-c", "echo '{\"ready\":true}'; cat > /dev/null"]
        mode = "jsonl"
        [objects]
        types = ["counter", "quota"]
        pinned_max = "1MiB"
        [[share]]
        prefix = "shop:"
        at_least = "10%"
    "#;
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let Ok(Command::Serve(settings)) = parse_args(["--config", path, "-m", "16", "-o", "idle_timeout=9"])
    else {
        panic!("options")
    };
    (crate::shared::build::alone(*settings), file)
}

fn at(second: u32) -> Now {
    Now { second, ms: u64::from(second) * 1000, unix_of_zero: 1_000_000_000 }
}

fn collected(group: StatGroup, shared: &Shared, now: Now) -> KeptStats {
    let mut kept = KeptStats::default();
    collect(group, shared, now, &mut kept);
    kept
}

/// The names in braces, in their order.
fn braced(pattern: &str) -> Vec<&str> {
    pattern.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(name, _)| name).collect()
}

#[test]
fn definitions_are_sane() {
    for definition in every_definition() {
        let Definition { name, prefix, suffix, labels, kind, unit, help, when, .. } = *definition;
        let is_plain =
            |text: &str| text.is_ascii() && !text.contains(['|', '\n', '{']) && text.trim() == text;
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(!name.is_empty() && name.chars().all(named), "{name}");
        assert!(help.ends_with('.') && help.len() > 5 && is_plain(help), "{name}: {help}");
        assert!(
            help.starts_with(|c: char| c.is_ascii_uppercase()
                || c.is_ascii_digit()
                || help.starts_with("conn_")),
            "{name}: {help}"
        );
        assert!(is_plain(when) && !when.ends_with('.'), "{name}: {when}");
        assert_eq!([braced(prefix), braced(suffix)].concat(), labels, "{name}");
        assert_eq!(kind == ValueKind::Text, unit == Unit::None, "{name}: a number has a unit");
        // A name that states a unit must state the right one.
        for (ending, says) in
            [("_ms", Unit::Milliseconds), ("_us", Unit::Microseconds), ("_bytes", Unit::Bytes)]
        {
            assert!(!name.ends_with(ending) || unit == says, "{name} in {unit:?}");
        }
        assert!(unit != Unit::Flag || kind == ValueKind::Gauge, "{name}");
    }
}

#[test]
fn a_line_is_defined_once() {
    for group in ALL {
        let mut seen = BTreeSet::new();
        for Definition { name, prefix, suffix, .. } in definitions(group) {
            assert!(seen.insert([*prefix, *name, *suffix].concat()), "{group:?}: {name} twice");
        }
    }
}

/// Also the other way round: each defined statistic is collected, unless it has a condition.
#[test]
fn what_is_collected_is_defined_and_what_is_defined_is_collected() {
    let (shared, _file) = server();
    let now = at(10);
    shared.engine.shared().flush_rolling(now.ms, 60_000);
    shared.engine.flush(100, now);
    for group in ALL {
        let all = definitions(group);
        let kept = collected(group, &shared, now).0;
        let mut places = Vec::new();
        for (definition, line, value) in &kept {
            let place = all.iter().position(|one| std::ptr::eq(*one, *definition));
            places.push(place.unwrap_or_else(|| panic!("{line} is not among the definitions of {group:?}")));
            let is_text = matches!(value, Value::Text(_));
            assert_eq!(is_text, definition.kind == ValueKind::Text, "{line}: {value}");
        }
        // No item is stored here, and no client is connected.
        if matches!(group, StatGroup::Items | StatGroup::Slabs | StatGroup::Conns) {
            continue;
        }
        for (place, definition) in all.iter().enumerate() {
            let is_there = places.contains(&place);
            assert!(
                is_there || !definition.when.is_empty(),
                "{} of {group:?} is not collected",
                definition.name
            );
        }
        if !matches!(group, StatGroup::Rules | StatGroup::Objects | StatGroup::Shares) {
            assert!(places.is_sorted(), "{group:?}: as they are listed");
        }
    }
    let tags: Vec<String> =
        collected(StatGroup::Tags, &shared, now).0.into_iter().map(|(_, line, _)| line).collect();
    for line in ["rolling_1:number", "rolling_1:seconds", "rolling_1:served", "flush_in"] {
        assert!(tags.iter().any(|one| one == line), "{line} in {tags:?}");
    }
    let general = collected(StatGroup::General, &shared, now).0;
    assert!(general.iter().any(|(_, line, _)| line == "idle_kicks"));
    assert!(general.iter().all(|(_, line, _)| !line.starts_with("ssl_")));
}

#[test]
fn sums_are_of_what_the_rules_count() {
    let (shared, _file) = server();
    let active = shared.engine.shared().rules();
    for (state, counts) in active.as_ref().unwrap().each().map(|(_, state)| state).zip([3_u64, 4]) {
        (0..counts).for_each(|_| state.counters().waited(60));
        state.counters().fills_stored.fetch_add(counts, std::sync::atomic::Ordering::Relaxed);
    }
    let kept = collected(StatGroup::Rules, &shared, at(10)).0;
    let of = |name: &str| {
        let found = kept.iter().find(|(_, line, _)| line == name);
        found.map(|(definition, _, value)| (definition.is_sum(), value.to_string()))
    };
    assert_eq!(of("1:fills_stored"), Some((false, "3".into())));
    assert_eq!(of("2:fills_stored"), Some((false, "4".into())));
    assert_eq!(of("total:fills_stored"), Some((true, "7".into())));
    assert_eq!(of("2:waits_to_100ms"), Some((false, "4".into())));
    assert_eq!((of("total:match"), of("3:match")), (None, None));
}

#[test]
fn methods_of_all_lanes_are_added() {
    let (shared, _file) = server();
    let registry = shared.engine.objects().unwrap();
    let number = registry.number(registry.method_of(6, b"add").unwrap());
    for (lane, factor) in shared.lanes.iter().zip(1..) {
        let method = lane.counters.methods.of(number);
        method.calls.add(10 * factor);
        method.misses.add(factor);
        method.timed.add(1);
        method.timed_ns.add(1_000 * factor);
        method.longest_ns.add(1_000 * factor);
    }
    let lines = || -> Vec<String> {
        let kept = collected(StatGroup::Objects, &shared, at(10)).0;
        kept.into_iter().map(|(_, line, value)| format!("{line} {value}")).collect()
    };
    let all = lines();
    for line in [
        "counter:add:calls 100",
        "counter:add:errors 0",
        "counter:add:misses 10",
        "counter:add:time_avg_us 2.5",
        "counter:add:time_max_us 4.0",
        "quota:items 0",
        "pinned_max 1048576",
        "busy 0",
    ] {
        assert!(all.iter().any(|one| one == line), "{line} in {all:?}");
    }
    assert!(!all.iter().any(|line| line.contains(":exists:")), "methods without a call: {all:?}");
    super::reset(&shared);
    assert!(!lines().iter().any(|line| line.contains("counter:add:")), "{:?}", lines());
    shared.engine.set_objects(None);
    assert!(lines().is_empty());
}

#[test]
fn the_page_has_every_line() {
    let page = reference_markdown();
    for definition in every_definition().filter(|one| !one.is_sum()) {
        let Definition { name, prefix, suffix, help, .. } = definition;
        let row = format!("| `{prefix}{name}{suffix}` | ");
        assert!(page.lines().any(|line| line.starts_with(&row) && line.contains(help)), "{row}");
    }
    assert!(page.lines().all(|line| line.trim_end() == line), "no blanks at the end of a line");
}

#[test]
fn lines_are_printed_as_memcached_prints_them() {
    let (shared, _file) = server();
    let mut lines = StatLines(String::new());
    collect(StatGroup::General, &shared, at(10), &mut lines);
    collect(StatGroup::Sizes, &shared, at(10), &mut lines);
    assert!(lines.0.starts_with("STAT pid "), "{}", lines.0);
    assert!(lines.0.contains("\r\nSTAT uptime 8\r\nSTAT time 1000000010\r\n"), "{}", lines.0);
    assert!(lines.0.ends_with("\r\nSTAT sizes_status disabled\r\n"), "{}", lines.0);
}
