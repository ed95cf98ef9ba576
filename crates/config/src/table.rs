//! The framework of all tables: one row for each option of the command line and each key of the rule file.
//!
//! A row says once what its entry is called, which values it takes, what it sets and how the reference explains it.
//! Rows differ by what they are read into: options into the settings, keys into the draft of their table.

use crate::value::{Kind, OptionValue};

/// An option or a key, read into a `D`.
pub(crate) struct Row<N: 'static, D: 'static> {
    pub(crate) name: N,
    pub(crate) kind: Kind,
    /// As the help and the reference show it; empty for switches and for what is off or absent by default.
    pub(crate) default: &'static str,
    /// One or two sentences for the help and the reference.
    pub(crate) doc: &'static str,
    pub(crate) class: Class<D>,
}

/// What happens to it.
pub(crate) enum Class<D: 'static> {
    /// It does what it says. The error continues a sentence that began with its name.
    Honoured(fn(&mut D, &OptionValue) -> Result<(), String>),
    /// It has no effect, for this reason: one line in the log says why. What it shows in `stats settings`.
    Inert { setting: Option<Setting>, why: &'static str },
    /// It is an error, for this reason.
    Refused(&'static str),
    /// `-o`: a list of more options.
    List,
    /// `-h`.
    Help,
    /// `-V`.
    Version,
    /// `-i`.
    License,
}

/// What an option without effect shows in `stats settings`, under memcached's name for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    /// The value given; without one nothing changes.
    Given(&'static str),
    /// The value given, or this one without.
    GivenOr(&'static str, &'static str),
    /// A number given in KiB, shown in bytes.
    Kib(&'static str),
    /// A number given in MiB, shown in bytes.
    Mib(&'static str),
    /// Always this text, for switches.
    Fixed(&'static str, &'static str),
}

impl Setting {
    /// Its name and its text after an option with this value.
    pub(crate) fn entry(self, value: Option<&str>) -> Option<(&'static str, String)> {
        let bytes = |text: &str, shift: u32| match text.parse::<u64>() {
            Ok(number) => number.saturating_mul(1 << shift).to_string(),
            Err(_) => text.to_owned(),
        };
        // It is shown as it was given, so it must be a word of a line.
        let value = value.filter(|text| !text.contains(|c: char| c.is_whitespace() || c.is_control()));
        Some(match self {
            Self::Given(name) => (name, value?.to_owned()),
            Self::GivenOr(name, absent) => (name, value.unwrap_or(absent).to_owned()),
            Self::Kib(name) => (name, bytes(value?, 10)),
            Self::Mib(name) => (name, bytes(value?, 20)),
            Self::Fixed(name, text) => (name, text.to_owned()),
        })
    }
}

impl<N, D> Row<N, D> {
    /// Whether it can be used, with effect or without.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.class, Class::Refused(_))
    }
}

/// What an honoured row sets: a field, to a value that follows from the one given, or to a fixed one.
macro_rules! set {
    ($($field:ident).+ = $value:expr) => {
        $crate::table::Class::Honoured(|draft, _| {
            draft.$($field).+ = $value;
            Ok(())
        })
    };
    ($($field:ident).+, $given:ident => $value:expr) => {
        $crate::table::Class::Honoured(|draft, $given| {
            draft.$($field).+ = $value;
            Ok(())
        })
    };
}
pub(crate) use set;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_options_without_effect() {
        for (setting, value, text) in [
            (Setting::Given("x"), Some("1.5"), Some("1.5")),
            (Setting::Given("x"), None, None),
            (Setting::Given("x"), Some("1\r\nSTAT y 2"), None),
            (Setting::GivenOr("x", "1"), None, Some("1")),
            (Setting::GivenOr("x", "1"), Some("2"), Some("2")),
            (Setting::Kib("x"), Some("2"), Some("2048")),
            (Setting::Mib("x"), Some("2"), Some("2097152")),
            (Setting::Mib("x"), Some("many"), Some("many")),
            (Setting::Kib("x"), Some("18446744073709551615"), Some("18446744073709551615")),
            (Setting::Fixed("x", "no"), Some("2"), Some("no")),
        ] {
            assert_eq!(
                setting.entry(value),
                text.map(|text| ("x", text.to_owned())),
                "{setting:?} {value:?}"
            );
        }
    }
}
