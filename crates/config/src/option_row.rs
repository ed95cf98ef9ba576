//! Rows of the table of options: the written forms of an option, and the most common kinds of values.

use crate::settings::Settings;
use crate::table::TableRow;
use crate::value::ValueKind;

/// One option.
pub(crate) type OptionRow = TableRow<OptionName, Settings>;

/// The written form of an option.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OptionName {
    /// `-p`, `--port`, or both.
    Switch { short: Option<char>, long: Option<&'static str> },
    /// `-o name`.
    Extended(&'static str),
    /// Every `-o` name with this prefix.
    Family(&'static str),
}

impl OptionName {
    /// The option's name in messages.
    pub(crate) fn shown(self) -> String {
        match self {
            Self::Switch { long: Some(long), .. } => format!("--{long}"),
            Self::Switch { short: Some(short), .. } => format!("-{short}"),
            Self::Switch { .. } => String::new(),
            Self::Extended(name) => format!("-o {name}"),
            Self::Family(prefix) => format!("-o {prefix}*"),
        }
    }
}

/// The upper end of numbers that memcached keeps in a C `int`.
pub(crate) const INT: i64 = i32::MAX as i64;

pub(crate) const fn both(short: char, long: &'static str) -> OptionName {
    OptionName::Switch { short: Some(short), long: Some(long) }
}

pub(crate) const fn number(unit: &'static str, min: i64, max: i64) -> ValueKind {
    ValueKind::Number { unit, min, max }
}

pub(crate) const fn text(what: &'static str) -> ValueKind {
    ValueKind::Text { what, max: usize::MAX }
}

/// Why options of slabs have no effect.
pub(crate) const NO_SLABS: &str = "memory has no slab classes to tune";
