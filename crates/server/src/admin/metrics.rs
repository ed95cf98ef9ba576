//! `/metrics`: all statistics as series, in the text format of Prometheus or as `OpenMetrics`.
//!
//! A series has the name of the statistic after `cattlegrid_` and a prefix of its group. Units are those of
//! the format: seconds and bytes, at the end of the name. Counters end in `_total`. A text is the label of a
//! series with the value 1, whose name ends in `_info`. Left out are statistics that are always 0, sums over
//! labels, and duplicates of others: [`Export`].
//!
//! # Invariants
//! * Each value is the one that `stats` prints at the same moment, with times in seconds.
//! * At most [`EACH`] rules, loaders, types and logs have series, and all rules together at most
//!   [`RULE_SERIES`], so that a reply stays below 2 MiB. A series tells how many were left out.

use std::collections::HashMap;
use std::fmt::{self, Display};

use cattlegrid_engine::Now;
use hyper::header::HeaderValue;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text as openmetrics,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::shared::Shared;
use crate::stats::{self, Definition, Export, Histogram, Sink, StatGroup, Value, ValueKind};

/// The most rules, loaders, types of objects, and logs, of each kind, that have series.
const EACH: usize = 1000;

/// With more rules than this, series of rules that are 0 are left out.
const WHOLE_RULES: usize = 100;

/// The most series of all rules together; the series of one rule are kept or left out together.
const RULE_SERIES: usize = 18_000;

/// The groups, each with the prefix of its series.
const GROUPS: [(StatGroup, &str); 10] = [
    (StatGroup::General, ""),
    (StatGroup::Own, ""),
    (StatGroup::Items, "items_"),
    (StatGroup::Rules, "rule_"),
    (StatGroup::Tags, "tags_"),
    (StatGroup::Loaders, "loader_"),
    (StatGroup::Follow, "follow_"),
    (StatGroup::Objects, "object_"),
    (StatGroup::Latency, ""),
    (StatGroup::Shares, "share_"),
];

/// The format of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Format {
    /// The text format of Prometheus, the default.
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// The format that the `Accept` headers ask for: `OpenMetrics` if they name it.
    pub(super) fn of<'h>(accept: impl Iterator<Item = &'h HeaderValue>) -> Self {
        let names = |value: &HeaderValue| {
            value.to_str().is_ok_and(|text| {
                text.split(',').any(|one| {
                    let mut parts = one.split(';').map(str::trim);
                    parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"))
                        && parts.all(|parameter| !is_zero_weight(parameter))
                })
            })
        };
        if accept.into_iter().any(names) { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Whether a parameter is `q=0`, which excludes the format.
fn is_zero_weight(parameter: &str) -> bool {
    parameter.strip_prefix("q=").is_some_and(|weight| weight.parse() == Ok(0.0))
}

/// All series at `now`.
pub(super) fn text(shared: &Shared, now: Now, format: Format) -> String {
    let rules = shared.engine.shared().rules().as_ref().map_or(0, |rules| rules.each().count());
    let mut families = MetricFamilies::new(rules > WHOLE_RULES);
    for (group, prefix) in GROUPS {
        families.begin(group, prefix);
        stats::collect(group, shared, now, &mut families);
    }
    families.finish();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(families));
    let mut text = String::new();
    let written = match format {
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
        Format::OpenMetrics => openmetrics::encode(&mut text, &registry),
    };
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
    text
}

/// All families while they are collected.
#[derive(Debug)]
struct MetricFamilies {
    all: Vec<MetricFamily>,
    /// Positions in `all`, by definition or by histogram.
    places: HashMap<FamilyId, usize>,
    group: StatGroup,
    prefix: &'static str,
    /// Whether series of rules that are 0 are left out.
    is_lean: bool,
    /// The first label of the last line of the group, the number of its values so far, and whether the
    /// present one is left out.
    last: String,
    count: usize,
    skips: bool,
    /// The number of series of rules.
    rule_series: usize,
    /// The number of labels without series, for each group with labels.
    left_out: Vec<(&'static str, u64)>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum FamilyId {
    /// The address of a definition.
    One(usize),
    Histogram(&'static str),
}

#[derive(Debug)]
struct MetricFamily {
    name: String,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    series: Vec<Series>,
}

#[derive(Debug)]
struct Series {
    labels: Vec<(&'static str, String)>,
    value: SeriesValue,
}

#[derive(Debug)]
enum SeriesValue {
    Whole(u64),
    Real(f64),
    /// The name and the value of a label.
    Text(&'static str, String),
    /// Bounds and counts of the buckets, and the sum.
    Histogram(Vec<(f64, u64)>, f64),
}

impl MetricFamilies {
    fn new(is_lean: bool) -> Self {
        Self {
            all: Vec::new(),
            places: HashMap::new(),
            group: StatGroup::General,
            prefix: "",
            is_lean,
            last: String::new(),
            count: 0,
            skips: false,
            rule_series: 0,
            left_out: Vec::new(),
        }
    }

    fn begin(&mut self, group: StatGroup, prefix: &'static str) {
        (self.group, self.prefix, self.count, self.skips) = (group, prefix, 0, false);
        self.last.clear();
        let things = match group {
            StatGroup::Rules => "rules",
            StatGroup::Loaders => "loaders",
            StatGroup::Follow => "logs",
            StatGroup::Objects => "types",
            _ => return,
        };
        self.left_out.push((things, 0));
    }

    /// Whether the rule, loader, type or log of these labels has no series.
    fn is_left_out(&mut self, labels: &[(&'static str, String)]) -> bool {
        let counts = matches!(
            self.group,
            StatGroup::Rules | StatGroup::Loaders | StatGroup::Follow | StatGroup::Objects
        );
        let Some((_, first)) = labels.first().filter(|_| counts) else { return false };
        if *first != self.last || self.count == 0 {
            self.last.clone_from(first);
            self.count += 1;
            self.skips =
                self.count > EACH || (self.group == StatGroup::Rules && self.rule_series >= RULE_SERIES);
            if self.skips
                && let Some((_, left_out)) = self.left_out.last_mut()
            {
                *left_out += 1;
            }
        }
        self.skips
    }

    /// The family with this id, made by `new` at the first call.
    fn family(&mut self, id: FamilyId, new: impl FnOnce() -> MetricFamily) -> &mut MetricFamily {
        let at = *self.places.entry(id).or_insert(self.all.len());
        if at == self.all.len() {
            self.all.push(new());
        }
        &mut self.all[at]
    }

    /// Adds a bucket or the sum of a histogram. The parts of one histogram are adjacent, and the sum is last.
    fn put_part(&mut self, of: &'static Histogram, labels: Labels, value: HistogramPart) {
        let prefix = self.prefix;
        let is_lean = self.is_lean && self.group == StatGroup::Rules;
        let family = self.family(FamilyId::Histogram(of.name), || MetricFamily {
            name: format!("cattlegrid_{prefix}{}", of.name),
            help: of.help,
            unit: Some(Unit::Seconds),
            kind: MetricType::Histogram,
            series: Vec::new(),
        });
        if family.series.last().is_none_or(|last| last.labels != labels) {
            family.series.push(Series { labels, value: SeriesValue::Histogram(Vec::new(), 0.0) });
        }
        let Some(Series { value: SeriesValue::Histogram(buckets, sum), .. }) = family.series.last_mut()
        else {
            return;
        };
        match value {
            HistogramPart::Bucket(most, count) => buckets.push((most, count)),
            HistogramPart::Sum(seconds) => {
                *sum = seconds;
                if is_lean && buckets.iter().all(|(_, count)| *count == 0) {
                    family.series.pop();
                }
            }
        }
    }

    /// Adds the series about the series themselves.
    fn finish(&mut self) {
        let series = self.left_out.iter().map(|(things, count)| Series {
            labels: vec![("kind", (*things).to_owned())],
            value: SeriesValue::Whole(*count),
        });
        let family = MetricFamily {
            name: "cattlegrid_metrics_left_out".to_owned(),
            help: "Rules, loaders, types of objects and logs that have no series here, because there are more than 1,000 of their kind, or \
                   because the rules before them have 18,000 series. The pages in JSON have all.",
            unit: None,
            kind: MetricType::Gauge,
            series: series.collect(),
        };
        self.all.push(family);
    }
}

/// A part of a histogram.
#[derive(Clone, Copy)]
enum HistogramPart {
    /// The bucket's bound and count.
    Bucket(f64, u64),
    Sum(f64),
}

type Labels = Vec<(&'static str, String)>;

impl Sink for MetricFamilies {
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value) {
        if matches!(definition.export, Export::Sum | Export::Nothing) {
            return;
        }
        let mut named: Labels =
            definition.labels.iter().copied().zip(labels.iter().map(ToString::to_string)).collect();
        if self.is_left_out(&named) {
            return;
        }
        if self.group == StatGroup::Rules && !(self.is_lean && *value == Value::Number(0)) {
            self.rule_series += 1;
        }
        match definition.export {
            Export::Bucket(of) => {
                let most =
                    named.pop().and_then(|(_, most)| most.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
                let bound = if definition.suffix.contains("us") { most / 1e6 } else { most / 1e3 };
                self.put_part(of, named, HistogramPart::Bucket(bound, count_of(value)));
            }
            Export::LastBucket(of) => {
                self.put_part(of, named, HistogramPart::Bucket(f64::INFINITY, count_of(value)));
            }
            Export::BucketSum(of) => {
                self.put_part(of, named, HistogramPart::Sum(in_base_unit(definition, value)));
            }
            Export::Own | Export::As(_) | Export::Sum | Export::Nothing => {
                if self.is_lean && self.group == StatGroup::Rules && *value == Value::Number(0) {
                    return;
                }
                let figure = match value {
                    Value::Text(text) => SeriesValue::Text(definition.name, text.to_string()),
                    Value::Number(number) if !is_converted(definition) => SeriesValue::Whole(*number),
                    _ => SeriesValue::Real(in_base_unit(definition, value)),
                };
                self.put_own(definition, named, figure);
            }
        }
    }
}

impl MetricFamilies {
    fn put_own(&mut self, definition: &'static Definition, labels: Labels, value: SeriesValue) {
        let prefix = self.prefix;
        let family = self.family(FamilyId::One(std::ptr::from_ref(definition).addr()), || {
            let (name, unit) = name_and_unit(definition);
            // Lines of methods and of gradual flushes do not have the prefix of their group.
            let prefix = match definition.labels.last() {
                Some(&"method") => "method_",
                Some(&"place") => "rolling_flush_",
                _ => prefix,
            };
            let kind = match definition.kind {
                ValueKind::Counter => MetricType::Counter,
                ValueKind::Gauge => MetricType::Gauge,
                ValueKind::Text => MetricType::Info,
            };
            // A name that is only its unit becomes empty.
            let name = format!("cattlegrid_{prefix}{name}").trim_end_matches('_').to_owned();
            MetricFamily { name, help: definition.help, unit, kind, series: Vec::new() }
        });
        family.series.push(Series { labels, value });
    }
}

fn count_of(value: &Value) -> u64 {
    if let Value::Number(count) = value { *count } else { 0 }
}

/// Whether the definition is a time in another unit than seconds.
fn is_converted(definition: &Definition) -> bool {
    matches!(definition.unit, stats::Unit::Milliseconds | stats::Unit::Microseconds)
}

/// The value as a number; a time in seconds.
#[expect(clippy::cast_precision_loss, reason = "times in milliseconds and counts that matter are below 2^53")]
fn in_base_unit(definition: &Definition, value: &Value) -> f64 {
    let number = match value {
        Value::Number(number) => *number as f64,
        // This has the decimal places that `stats` prints.
        Value::Decimal(..) => value.to_string().parse().unwrap_or(f64::NAN),
        Value::Text(_) => f64::NAN,
    };
    let per_second = match definition.unit {
        stats::Unit::Milliseconds => 1e3,
        stats::Unit::Microseconds => 1e6,
        _ => 1.0,
    };
    number / per_second
}

/// The name without the words for its unit, and the unit.
fn name_and_unit(definition: &Definition) -> (String, Option<Unit>) {
    let name = match definition.export {
        Export::As(name) => name,
        _ => definition.name,
    };
    let (unit, words): (_, &[&str]) = match definition.unit {
        stats::Unit::Bytes => (Unit::Bytes, &["bytes"]),
        stats::Unit::Seconds | stats::Unit::UnixSeconds => (Unit::Seconds, &["s", "seconds"]),
        stats::Unit::Milliseconds => (Unit::Seconds, &["ms"]),
        stats::Unit::Microseconds => (Unit::Seconds, &["us"]),
        _ => return (name.to_owned(), None),
    };
    let left: Vec<&str> = name.split('_').filter(|word| !words.contains(word)).collect();
    (left.join("_"), Some(unit))
}

impl Collector for MetricFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in self.all.iter().filter(|family| !family.series.is_empty()) {
            let MetricFamily { name, help, unit, kind, series } = family;
            let is_counter = matches!(kind, MetricType::Counter);
            let mut encoder = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for one in series {
                if one.labels.is_empty() {
                    one.encode(&mut encoder, is_counter)?;
                } else {
                    one.encode(&mut encoder.encode_family(&one.labels)?, is_counter)?;
                }
            }
        }
        Ok(())
    }
}

impl Series {
    fn encode(&self, encoder: &mut MetricEncoder<'_>, is_counter: bool) -> Result<(), fmt::Error> {
        match &self.value {
            SeriesValue::Whole(number) if is_counter => {
                encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
            }
            SeriesValue::Real(number) if is_counter => {
                encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
            }
            SeriesValue::Whole(number) => encoder.encode_gauge(number),
            SeriesValue::Real(number) => encoder.encode_gauge(number),
            SeriesValue::Text(name, text) => encoder.encode_info(&[(*name, text.as_str())]),
            SeriesValue::Histogram(buckets, sum) => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}
