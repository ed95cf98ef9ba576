//! Rows of the table of options: how an option is written, and the kinds of values that most of them take.

use crate::settings::Settings;
use crate::table::Row;
use crate::value::Kind;

/// One option.
pub(crate) type OptionRow = Row<Name, Settings>;

/// How an option is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name {
    /// `-p`, `--port`, or both.
    Switch { short: Option<char>, long: Option<&'static str> },
    /// `-o name`.
    Extended(&'static str),
    /// Every `-o` name that starts so.
    Family(&'static str),
}

impl Name {
    /// As messages name it.
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

/// Upper end of numbers that memcached keeps in a C `int`.
pub(crate) const INT: i64 = i32::MAX as i64;

pub(crate) const fn both(short: char, long: &'static str) -> Name {
    Name::Switch { short: Some(short), long: Some(long) }
}

pub(crate) const fn number(unit: &'static str, min: i64, max: i64) -> Kind {
    Kind::Number { unit, min, max }
}

pub(crate) const fn text(what: &'static str) -> Kind {
    Kind::Text { what, max: usize::MAX }
}

/// Why options of slabs have no effect.
pub(crate) const NO_SLABS: &str = "memory has no slab classes to tune";
