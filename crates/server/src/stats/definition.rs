//! Definitions of statistics: name, help, kind, unit and labels, written once, with the function that reads
//! the value.
//!
//! ```text
//!   tables of rows ──collect──▶ sink: (definition, values of its labels, value)
//!                                 ├─ `stats`: a line `STAT name value`; the name has the labels' values
//!                                 └─ exporters: a sample
//!   tables of rows ───────────▶ docs/statistics.md
//! ```
//! A row is a definition and a function that reads its value from a source, which has the state for all rows
//! of a table at one moment. Values are read before anything is written, so that no lock is held while text
//! is formatted.
//!
//! # Invariants
//! * A name occurs once in a table, and `stats` prints it with the labels filled in.
//! * A counter grows until the server ends or `stats reset` is executed.

use std::borrow::Cow;
use std::fmt::{self, Display};

use crate::shared::Shared;

/// The definition of a statistic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    /// Lower-case letters, digits and `_`.
    pub(crate) name: &'static str,
    /// The text that `stats` prints before the name, with `{label}` in the place of a label's value.
    pub(crate) prefix: &'static str,
    /// The text that `stats` prints after the name, in the same form.
    pub(crate) suffix: &'static str,
    /// The labels' names, in the order in which `prefix` and `suffix` have them.
    pub(crate) labels: &'static [&'static str],
    pub(crate) kind: ValueKind,
    pub(crate) unit: Unit,
    /// The description in plain text: a sentence or more.
    pub(crate) help: &'static str,
    /// The condition under which the statistic exists, as part of a sentence; empty: always.
    pub(crate) when: &'static str,
    /// The form for exporters.
    pub(crate) export: Export,
}

/// The form in which exporters show a statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// A series of its own.
    Own,
    /// A series with another name.
    As(&'static str),
    /// No series: the statistic is the sum of another one over its labels.
    Sum,
    /// No series: the statistic is always 0, or repeats another one.
    Nothing,
    /// A bucket of this histogram: values up to its last label, and above that of the bucket before.
    Bucket(&'static Histogram),
    /// The last bucket of a histogram, without a bound.
    LastBucket(&'static Histogram),
    /// The sum of the values that a histogram counts.
    BucketSum(&'static Histogram),
}

/// A histogram for exporters, made of several statistics: buckets in ascending order, then the sum.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// The name, as in [`Definition`].
    pub(crate) name: &'static str,
    /// The description, as in [`Definition`].
    pub(crate) help: &'static str,
}

/// How a value behaves over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// Only grows, until the server ends or `stats reset` is executed.
    Counter,
    /// Goes up and down, or is fixed.
    Gauge,
    /// A text instead of a number.
    Text,
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The thing that the help counts.
    Count,
    Bytes,
    Bits,
    Seconds,
    Milliseconds,
    Microseconds,
    /// Seconds since 1970-01-01 UTC.
    UnixSeconds,
    /// A fraction, 0.0 to 1.0.
    Share,
    /// 0 or 1.
    Flag,
    /// A number of the server's clock, which counts writes, deletes and flushes.
    Clock,
    /// No unit, for text.
    None,
}

/// A value of a statistic.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    /// A number with this many decimal places.
    Decimal(f64, usize),
    Text(Cow<'static, str>),
}

/// A consumer of statistics.
pub(crate) trait Sink {
    /// Takes a statistic; `labels`: the values of the definition's labels.
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value);
}

/// A statistic, and the function that reads it from a source.
pub(super) struct StatRow<S> {
    pub(super) definition: Definition,
    read: RowReader<S>,
    /// Tells whether the statistic exists; None: always.
    is_there: Option<fn(&Shared) -> bool>,
}

enum RowReader<S> {
    Number(fn(&Shared, &S) -> u64),
    /// None: the statistic does not exist now.
    Value(fn(&Shared, &S) -> Option<Value>),
    /// Always 0: the counted thing does not exist here.
    Zero,
}

impl Definition {
    /// A definition without labels of a statistic that always exists.
    pub(super) const fn new(name: &'static str, kind: ValueKind, unit: Unit, help: &'static str) -> Self {
        Self { name, prefix: "", suffix: "", labels: &[], kind, unit, help, when: "", export: Export::Own }
    }

    /// The same definition with labels.
    pub(super) const fn labelled(self, prefix: &'static str, labels: &'static [&'static str]) -> Self {
        Self { prefix, labels, ..self }
    }

    /// Whether this is the sum of another statistic over its labels.
    pub(crate) fn is_sum(&self) -> bool {
        self.export == Export::Sum
    }

    /// The labels before the name.
    pub(crate) fn prefix_labels(&self) -> &'static [&'static str] {
        &self.labels[..self.prefix.matches('{').count()]
    }

    /// The name and the suffix, with these values of all labels.
    pub(crate) fn line_without_prefix<'a>(&'a self, labels: &'a [&'a dyn Display]) -> impl Display + 'a {
        let own = Self { prefix: "", ..*self };
        let behind = &labels[self.prefix_labels().len()..];
        OwnedStatLine { definition: own, labels: behind }
    }

    /// The name as `stats` prints it, with these values of the labels.
    pub(super) fn line<'a>(&'a self, labels: &'a [&'a dyn Display]) -> impl Display + 'a {
        debug_assert_eq!(self.labels.len(), labels.len(), "{}: a value for each label", self.name);
        StatLine { definition: self, labels }
    }
}

/// The same as [`StatLine`], for a definition that was made for it.
struct OwnedStatLine<'a> {
    definition: Definition,
    labels: &'a [&'a dyn Display],
}

impl Display for OwnedStatLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        StatLine { definition: &self.definition, labels: self.labels }.fmt(f)
    }
}

/// A definition's name with the values of its labels.
struct StatLine<'a> {
    definition: &'a Definition,
    labels: &'a [&'a dyn Display],
}

impl Display for StatLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values = self.labels.iter();
        fill_in(f, self.definition.prefix, &mut values)?;
        f.write_str(self.definition.name)?;
        fill_in(f, self.definition.suffix, &mut values)
    }
}

/// Writes a pattern with values in the place of `{label}`.
fn fill_in<'v>(
    f: &mut fmt::Formatter<'_>,
    pattern: &str,
    values: &mut impl Iterator<Item = &'v &'v dyn Display>,
) -> fmt::Result {
    let mut rest = pattern;
    while let Some((before, (_, after))) =
        rest.split_once('{').and_then(|(before, behind)| Some((before, behind.split_once('}')?)))
    {
        f.write_str(before)?;
        if let Some(value) = values.next() {
            value.fmt(f)?;
        }
        rest = after;
    }
    f.write_str(rest)
}

impl<S> StatRow<S> {
    /// The value; None: the statistic does not exist now.
    pub(super) fn read(&self, shared: &Shared, source: &S) -> Option<Value> {
        if self.is_there.is_some_and(|is_there| !is_there(shared)) {
            return None;
        }
        match self.read {
            RowReader::Number(read) => Some(Value::Number(read(shared, source))),
            RowReader::Value(read) => read(shared, source),
            RowReader::Zero => Some(Value::Number(0)),
        }
    }

    /// The same row with labels.
    pub(super) const fn labelled(mut self, prefix: &'static str, labels: &'static [&'static str]) -> Self {
        self.definition = self.definition.labelled(prefix, labels);
        self
    }

    /// The same row with another form for exporters.
    pub(super) const fn export(mut self, export: Export) -> Self {
        self.definition.export = export;
        self
    }

    /// The same row, whose statistic exists only if `is_there` says so; `when` is that condition in words.
    pub(super) const fn only(mut self, is_there: fn(&Shared) -> bool, when: &'static str) -> Self {
        self.is_there = Some(is_there);
        self.when(when)
    }

    /// The same row with the condition `when`, which its reader checks.
    pub(super) const fn when(mut self, when: &'static str) -> Self {
        self.definition.when = when;
        self
    }
}

/// A row of a counter.
pub(super) const fn counter<S>(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> u64,
) -> StatRow<S> {
    number(Definition::new(name, ValueKind::Counter, unit, help), read)
}

/// A row of a number that goes up and down.
pub(super) const fn gauge<S>(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> u64,
) -> StatRow<S> {
    number(Definition::new(name, ValueKind::Gauge, unit, help), read)
}

const fn number<S>(definition: Definition, read: fn(&Shared, &S) -> u64) -> StatRow<S> {
    StatRow { definition, read: RowReader::Number(read), is_there: None }
}

/// A row of a value of any kind, which may not exist.
pub(super) const fn value<S>(
    name: &'static str,
    kind: ValueKind,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> Option<Value>,
) -> StatRow<S> {
    StatRow {
        definition: Definition::new(name, kind, unit, help),
        read: RowReader::Value(read),
        is_there: None,
    }
}

/// A row of a text.
pub(super) const fn text<S>(
    name: &'static str,
    help: &'static str,
    read: fn(&Shared, &S) -> Option<Value>,
) -> StatRow<S> {
    value(name, ValueKind::Text, Unit::None, help, read)
}

/// A row of a number that memcached has and that is always 0 here. `help`: why.
pub(super) const fn zero<S>(
    name: &'static str,
    kind: ValueKind,
    unit: Unit,
    help: &'static str,
) -> StatRow<S> {
    let definition = Definition { export: Export::Nothing, ..Definition::new(name, kind, unit, help) };
    StatRow { definition, read: RowReader::Zero, is_there: None }
}

/// Passes all rows of a table that have a value now to the sink.
pub(super) fn put_all<S>(
    rows: &'static [StatRow<S>],
    labels: &[&dyn Display],
    shared: &Shared,
    source: &S,
    sink: &mut dyn Sink,
) {
    for row in rows {
        if let Some(value) = row.read(shared, source) {
            sink.put(&row.definition, labels, &value);
        }
    }
}

impl Value {
    /// A value that is a text.
    pub(super) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Decimal(value, places) => write!(f, "{value:.places$}"),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl ValueKind {
    /// The name in one word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Text => "text",
        }
    }
}

impl Unit {
    /// The name in words; empty where the help says it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Count | Self::None => "",
            Self::Bytes => "bytes",
            Self::Bits => "bits",
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
            Self::UnixSeconds => "Unix time",
            Self::Share => "0 to 1",
            Self::Flag => "0 or 1",
            Self::Clock => "clock",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_where_their_names_are() {
        let one = Definition {
            suffix: "_to_{most}ms",
            ..Definition::new("waits", ValueKind::Counter, Unit::Count, "Waits.")
                .labelled("{rule}:", &["rule", "most"])
        };
        assert_eq!(one.line(&[&7, &"50"]).to_string(), "7:waits_to_50ms");
        let plain = Definition::new("pid", ValueKind::Gauge, Unit::Count, "Process.");
        assert_eq!(plain.line(&[]).to_string(), "pid");
    }

    #[test]
    fn values_are_written_as_memcached_writes_them() {
        assert_eq!(Value::from(7).to_string(), "7");
        assert_eq!(Value::Decimal(0.5, 6).to_string(), "0.500000");
        assert_eq!(Value::text("none").to_string(), "none");
    }
}
