//! Pages say what `stats` says, within their bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_config::{Command, parse_args};
use cattlegrid_engine::Now;
use hyper::header::HeaderValue;

use super::json;
use super::metrics::{self, Format};
use crate::shared::Shared;
use crate::stats::{Export, StatGroup};
use crate::turns::Family;

fn server(text: &str) -> (Arc<Shared>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let Ok(Command::Serve(settings)) = parse_args(["--config", path, "-m", "64"]) else { panic!("options") };
    (crate::shared::build::alone(*settings), file)
}

fn rules(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        writeln!(text, "[[rule]]\nmatch = \"a-name-of-some-length-{number}:{{id}}\"\nhold = \"1s\"").unwrap();
        text
    })
}

const NOW: Now = Now { second: 10, ms: 10_000, unix_of_zero: 1_000_000_000 };

/// Series with their values.
fn series(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<_> = lines.map(|line| line.rsplit_once(' ').unwrap()).collect();
    let count = series.len();
    let map: BTreeMap<_, _> = series.into_iter().collect();
    assert_eq!(map.len(), count, "each series is there once");
    map
}

#[test]
fn a_family_is_defined_once_and_in_one_piece() {
    let (shared, _file) = server(&(rules(3) + "[objects]\n"));
    shared.lanes[0].latency.record(Family::Get, 3, 30_000);
    shared.lanes[0].latency.record(Family::Store, 1, 2_000_000_000);
    for format in [Format::OpenMetrics, Format::Prometheus] {
        let text = metrics::text(&shared, NOW, format);
        let mut families = BTreeSet::new();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split_once(' ').unwrap().0;
                assert!(families.insert(family), "{family} twice");
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line} in {family}");
            }
        }
        let series = series(&text);
        assert_eq!(series[r#"cattlegrid_request_seconds_count{family="get"}"#], "3");
        assert_eq!(series[r#"cattlegrid_request_seconds_sum{family="get"}"#].parse(), Ok(0.000_09_f64));
        assert_eq!(series[r#"cattlegrid_metrics_left_out{kind="rules"}"#], "0");
        let bucket = |le: &str| {
            let own =
                |name: &&&str| name.contains(r#"family="store""#) && name.contains(&format!(r#"le="{le}"#));
            series[*series.keys().rfind(own).unwrap()]
        };
        assert_eq!((bucket("0.2"), bucket("+Inf")), ("0", "1"));
        assert_eq!(text.ends_with("\n# EOF\n"), format == Format::OpenMetrics);
    }
}

/// Waits are a histogram in seconds whose buckets add up.
#[test]
fn waits_of_a_rule_are_a_histogram() {
    let (shared, _file) = server(&rules(2));
    let active = shared.engine.shared().rules();
    let (_, state) = active.as_ref().unwrap().each().nth(1).unwrap();
    for ms in [1, 9, 60, 2000] {
        state.counters().waited(ms);
    }
    let text = metrics::text(&shared, NOW, Format::Prometheus);
    let series = series(&text);
    let of = |name: &str| series[format!("cattlegrid_rule_wait_seconds{name}").as_str()];
    assert_eq!(of(r#"_count{rule="2"}"#), "4");
    assert_eq!(of(r#"_sum{rule="2"}"#).parse(), Ok(2.07_f64));
    for (le, expected) in [("0.001", "1"), ("0.01", "2"), ("0.1", "3"), ("1", "3"), ("+Inf", "4")] {
        assert_eq!(of(&format!(r#"_bucket{{rule="2",le="{le}"}}"#)), expected, "{le} in {text}");
    }
}

#[test]
fn a_thousand_rules_stay_below_2_mib() {
    let (shared, _file) = server(&rules(1000));
    let touch = |count: usize| {
        let active = shared.engine.shared().rules();
        for (_, state) in active.as_ref().unwrap().each() {
            let counters = state.counters();
            let all = [
                &counters.gets,
                &counters.hits,
                &counters.leases,
                &counters.held,
                &counters.held_filled,
                &counters.computes_saved,
                &counters.stale_served,
                &counters.fills_stored,
                &counters.hold_expired,
                &counters.busy_computers,
                &counters.reentries,
                &counters.negatives,
            ];
            for counter in &all[..count] {
                counter.fetch_add(1_234_567, Relaxed);
            }
            counters.waited(70);
        }
    };
    for used in [0, 8, 12] {
        if used > 0 {
            touch(used);
        }
        let text = metrics::text(&shared, NOW, Format::OpenMetrics);
        assert!(text.len() < 2 << 20, "{used}: {} bytes", text.len());
        let series = series(&text);
        let shown = series.keys().filter(|name| name.starts_with("cattlegrid_rule_match_info{")).count();
        let left_out: usize = series[r#"cattlegrid_metrics_left_out{kind="rules"}"#].parse().unwrap();
        assert_eq!(shown + left_out, 1000);
        assert!((600..=1000).contains(&shown), "{shown} with {used}");
    }
    let all: serde_json::Value = serde_json::from_str(&json::group(StatGroup::Rules, &shared, NOW)).unwrap();
    assert_eq!(all["rules"].as_array().unwrap().len(), 1000);
    assert_eq!(all["rules"][999]["gets"], 2 * 1_234_567_u64);
    assert_eq!(all["total"]["gets"], 2 * 1000 * 1_234_567_u64);
}

#[test]
fn pages_in_json_have_what_stats_prints() {
    let (shared, _file) = server(
        &(rules(2) + "[objects]\ntypes = [\"counter\"]\n[[share]]\nprefix = \"shop:\"\nat_most = \"50%\"\n"),
    );
    shared.lanes[0].latency.record(Family::Get, 3, 30_000);
    for group in [
        StatGroup::General,
        StatGroup::Own,
        StatGroup::Rules,
        StatGroup::Tags,
        StatGroup::Loaders,
        StatGroup::Objects,
        StatGroup::Latency,
        StatGroup::Shares,
    ] {
        let page: serde_json::Value = serde_json::from_str(&json::group(group, &shared, NOW)).unwrap();
        let mut lines = crate::stats::StatLines::default();
        crate::stats::collect(group, &shared, NOW, &mut lines);
        let text = lines.text();
        for line in text.lines() {
            let (name, value) = line.strip_prefix("STAT ").unwrap().split_once(' ').unwrap();
            let found = match name.split_once(':') {
                None => page[name].clone(),
                Some(("total", name)) => page["total"][name].clone(),
                Some((label, name)) => {
                    let lists = page.as_object().unwrap().values().filter_map(|list| list.as_array());
                    let is_own = |one: &&serde_json::Value| {
                        ["rule", "type", "family", "share"].iter().any(|key| one[*key] == label)
                            && !one[name].is_null()
                    };
                    lists.flatten().find(is_own).unwrap_or_else(|| panic!("{line}"))[name].clone()
                }
            };
            let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
            let is_same = found == value || found.parse::<f64>().ok() == value.parse().ok();
            assert!(is_same || name.starts_with("rusage"), "{line}: {found}");
        }
    }
}

#[test]
fn the_format_is_what_is_asked_for() {
    for (accept, expected) in [
        (&[][..], Format::Prometheus),
        (&["*/*"], Format::Prometheus),
        (&["text/plain;version=0.0.4"], Format::Prometheus),
        (
            &[
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
            ],
            Format::OpenMetrics,
        ),
        (&["text/plain", "Application/OpenMetrics-Text; version=1.0.0"], Format::OpenMetrics),
        (&["application/openmetrics-text;q=0.0,text/plain"], Format::Prometheus),
        (&["application/openmetrics-textual"], Format::Prometheus),
    ] {
        let headers: Vec<_> = accept.iter().map(|text| HeaderValue::from_static(text)).collect();
        assert_eq!(Format::of(headers.iter()), expected, "{accept:?}");
    }
    assert!(Format::OpenMetrics.content_type().starts_with("application/openmetrics-text; version=1.0.0"));
}

/// What the exporter leaves out is a sum, a constant, or said elsewhere.
#[test]
fn what_is_left_out_has_a_reason() {
    let left_out = crate::stats::every_definition().filter(|one| one.export == Export::Nothing);
    for one in left_out {
        let is_constant = one.help.starts_with("Always ") || one.help == "There are none.";
        let is_said_elsewhere = ["hits_to_cold", "objects", "bytes"].contains(&one.name);
        assert!(is_constant || is_said_elsewhere, "{}: {}", one.name, one.help);
    }
}
