//! What a statistic is: its name, help, kind, unit and labels, written once, with how its value is read.
//!
//! ```text
//!   tables of rows ──collect──▶ sink: (definition, values of its labels, value)
//!                                 ├─ `stats`: a line `STAT name value`, the name with the labels' values in it
//!                                 └─ exporters: a sample
//!   tables of rows ───────────▶ docs/statistics.md
//! ```
//! A row is a definition and a function that reads its value from a source: what was read for all rows of a table at one
//! moment. Values are read before anything is written, so no lock is held while text is made.
//!
//! # Invariants
//! * A name occurs once in a table, and is what `stats` prints except for the labels.
//! * A counter grows until the server ends or `stats reset` is executed.

use std::borrow::Cow;
use std::fmt::{self, Display};

use crate::shared::Shared;

/// One statistic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Definition {
    /// Lower-case letters, digits and `_`.
    pub(crate) name: &'static str,
    /// What `stats` prints before the name; a label's value stands where its name is in braces.
    pub(crate) prefix: &'static str,
    /// What `stats` prints behind it, likewise.
    pub(crate) suffix: &'static str,
    /// Names of the labels, in the order in which `prefix` and `suffix` have them.
    pub(crate) labels: &'static [&'static str],
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    /// What it says, in plain text: a sentence or more.
    pub(crate) help: &'static str,
    /// When it is there, as part of a sentence; empty: always.
    pub(crate) when: &'static str,
    /// What exporters make of it.
    pub(crate) export: Export,
}

/// What an exporter makes of a statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Export {
    /// A series of its own.
    Own,
    /// The same under another name.
    As(&'static str),
    /// Nothing: the sum of another statistic over its labels.
    Sum,
    /// Nothing: it cannot be other than 0, or says what another one says.
    Nothing,
    /// A bucket of the histogram of this name: what is not above its last label and above that of the bucket before it.
    Bucket(&'static Histogram),
    /// The last bucket of a histogram, without a bound.
    LastBucket(&'static Histogram),
    /// The sum of what a histogram counts.
    BucketSum(&'static Histogram),
}

/// What several statistics are for exporters: buckets in ascending order, and the sum behind them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// As of a definition.
    pub(crate) name: &'static str,
    /// As of a definition.
    pub(crate) help: &'static str,
}

/// How a value behaves over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows, until the server ends or `stats reset` is executed.
    Counter,
    /// Goes up and down, or is fixed.
    Gauge,
    /// No number.
    Text,
}

/// What one of a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// What the help names.
    Count,
    Bytes,
    Bits,
    Seconds,
    Milliseconds,
    Microseconds,
    /// Seconds since 1970-01-01 UTC.
    UnixSeconds,
    /// A part of all, 0.0 to 1.0.
    Share,
    /// 0 or 1.
    Flag,
    /// A number of the server's clock, which counts writes, deletes and flushes.
    Clock,
    /// Of text.
    None,
}

/// A value of a statistic.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    /// With this many decimal places.
    Decimal(f64, usize),
    Text(Cow<'static, str>),
}

/// Takes statistics.
pub(crate) trait Sink {
    /// `labels`: the values of the definition's labels.
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value);
}

/// A statistic, and how it is read from a source.
pub(super) struct Row<S> {
    pub(super) definition: Definition,
    read: Read<S>,
    /// It is there only if this says so.
    is_there: Option<fn(&Shared) -> bool>,
}

enum Read<S> {
    Number(fn(&Shared, &S) -> u64),
    /// `None`: there is no such statistic now.
    Value(fn(&Shared, &S) -> Option<Value>),
    /// There is nothing that it could count.
    Zero,
}

impl Definition {
    /// One without labels that is always there.
    pub(super) const fn new(name: &'static str, kind: Kind, unit: Unit, help: &'static str) -> Self {
        Self { name, prefix: "", suffix: "", labels: &[], kind, unit, help, when: "", export: Export::Own }
    }

    /// The same with labels.
    pub(super) const fn labelled(self, prefix: &'static str, labels: &'static [&'static str]) -> Self {
        Self { prefix, labels, ..self }
    }

    /// The sum of another statistic over its labels.
    pub(crate) fn is_sum(&self) -> bool {
        self.export == Export::Sum
    }

    /// Its labels before the name.
    pub(crate) fn prefix_labels(&self) -> &'static [&'static str] {
        &self.labels[..self.prefix.matches('{').count()]
    }

    /// Its name with what stands behind it, with these values of all its labels.
    pub(crate) fn line_without_prefix<'a>(&'a self, labels: &'a [&'a dyn Display]) -> impl Display + 'a {
        let own = Self { prefix: "", ..*self };
        let behind = &labels[self.prefix_labels().len()..];
        OwnLine { definition: own, labels: behind }
    }

    /// As `stats` prints it, with these values of its labels.
    pub(super) fn line<'a>(&'a self, labels: &'a [&'a dyn Display]) -> impl Display + 'a {
        debug_assert_eq!(self.labels.len(), labels.len(), "{}: a value for each label", self.name);
        Line { definition: self, labels }
    }
}

/// As [`Line`], of a definition that was made for it.
struct OwnLine<'a> {
    definition: Definition,
    labels: &'a [&'a dyn Display],
}

impl Display for OwnLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Line { definition: &self.definition, labels: self.labels }.fmt(f)
    }
}

/// A definition's name among the values of its labels.
struct Line<'a> {
    definition: &'a Definition,
    labels: &'a [&'a dyn Display],
}

impl Display for Line<'_> {
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

impl<S> Row<S> {
    /// Its value.
    pub(super) fn read(&self, shared: &Shared, source: &S) -> Option<Value> {
        if self.is_there.is_some_and(|is_there| !is_there(shared)) {
            return None;
        }
        match self.read {
            Read::Number(read) => Some(Value::Number(read(shared, source))),
            Read::Value(read) => read(shared, source),
            Read::Zero => Some(Value::Number(0)),
        }
    }

    /// The same under labels.
    pub(super) const fn labelled(mut self, prefix: &'static str, labels: &'static [&'static str]) -> Self {
        self.definition = self.definition.labelled(prefix, labels);
        self
    }

    /// The same for `stats`, and for exporters something else.
    pub(super) const fn export(mut self, export: Export) -> Self {
        self.definition.export = export;
        self
    }

    /// The same, there only if `is_there` says so, which is `when`.
    pub(super) const fn only(mut self, is_there: fn(&Shared) -> bool, when: &'static str) -> Self {
        self.is_there = Some(is_there);
        self.when(when)
    }

    /// The same, there only `when` that is so, as its reader knows.
    pub(super) const fn when(mut self, when: &'static str) -> Self {
        self.definition.when = when;
        self
    }
}

/// A counter.
pub(super) const fn counter<S>(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> u64,
) -> Row<S> {
    number(Definition::new(name, Kind::Counter, unit, help), read)
}

/// A number that goes up and down.
pub(super) const fn gauge<S>(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> u64,
) -> Row<S> {
    number(Definition::new(name, Kind::Gauge, unit, help), read)
}

const fn number<S>(definition: Definition, read: fn(&Shared, &S) -> u64) -> Row<S> {
    Row { definition, read: Read::Number(read), is_there: None }
}

/// A value of any kind, which may not be there.
pub(super) const fn value<S>(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    read: fn(&Shared, &S) -> Option<Value>,
) -> Row<S> {
    Row { definition: Definition::new(name, kind, unit, help), read: Read::Value(read), is_there: None }
}

/// A text.
pub(super) const fn text<S>(
    name: &'static str,
    help: &'static str,
    read: fn(&Shared, &S) -> Option<Value>,
) -> Row<S> {
    value(name, Kind::Text, Unit::None, help, read)
}

/// A number that memcached has and that is always 0 here. `help`: why.
pub(super) const fn zero<S>(name: &'static str, kind: Kind, unit: Unit, help: &'static str) -> Row<S> {
    let definition = Definition { export: Export::Nothing, ..Definition::new(name, kind, unit, help) };
    Row { definition, read: Read::Zero, is_there: None }
}

/// Puts all rows of a table that have a value now.
pub(super) fn put_all<S>(
    rows: &'static [Row<S>],
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
    /// A text.
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

impl Kind {
    /// In one word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Text => "text",
        }
    }
}

impl Unit {
    /// In words; nothing where the help says it.
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
            ..Definition::new("waits", Kind::Counter, Unit::Count, "Waits.")
                .labelled("{rule}:", &["rule", "most"])
        };
        assert_eq!(one.line(&[&7, &"50"]).to_string(), "7:waits_to_50ms");
        let plain = Definition::new("pid", Kind::Gauge, Unit::Count, "Process.");
        assert_eq!(plain.line(&[]).to_string(), "pid");
    }

    #[test]
    fn values_are_written_as_memcached_writes_them() {
        assert_eq!(Value::from(7).to_string(), "7");
        assert_eq!(Value::Decimal(0.5, 6).to_string(), "0.500000");
        assert_eq!(Value::text("none").to_string(), "none");
    }
}
