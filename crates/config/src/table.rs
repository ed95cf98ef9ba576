//! The framework of all tables, with a row for each option of the command line and each key of the rule file.
//!
//! A row has the only definition of its entry: the name, the allowed values, the field that it sets, and the
//! text of the reference. Options are read into the settings, keys into the draft of their table.

use crate::value::{OptionValue, ValueKind};

/// The row of an option or a key, which is read into a `D`.
pub(crate) struct TableRow<N: 'static, D: 'static> {
    pub(crate) name: N,
    pub(crate) kind: ValueKind,
    /// The default as the help and the reference show it; empty for switches, and if the default is off or
    /// absent.
    pub(crate) default: &'static str,
    /// One or two sentences for the help and the reference.
    pub(crate) doc: &'static str,
    pub(crate) class: Class<D>,
}

/// How an entry is treated.
pub(crate) enum Class<D: 'static> {
    /// The entry has an effect. An error continues a sentence that began with the entry's name.
    Honoured(fn(&mut D, &OptionValue) -> Result<(), String>),
    /// The entry has no effect, for the reason `why`, which is logged. `setting`: how `stats settings` shows
    /// it.
    Inert { setting: Option<ShownSetting>, why: &'static str },
    /// The entry is an error, for this reason.
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

/// How `stats settings` shows an option without effect, under memcached's name for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShownSetting {
    /// The given value; without the option, memcached's default.
    Given(&'static str),
    /// The given value; without the option, or without a value, the second text.
    GivenOr(&'static str, &'static str),
    /// A number given in KiB, shown in bytes.
    Kib(&'static str),
    /// A number given in MiB, shown in bytes.
    Mib(&'static str),
    /// Always the second text, for a switch.
    Fixed(&'static str, &'static str),
}

impl ShownSetting {
    /// The name and the shown text for an option with this value.
    pub(crate) fn entry(self, value: Option<&str>) -> Option<(&'static str, String)> {
        let bytes = |text: &str, shift: u32| match text.parse::<u64>() {
            Ok(number) => number.saturating_mul(1 << shift).to_string(),
            Err(_) => text.to_owned(),
        };
        // The value is shown as it was given, so that it must be one word.
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

impl<N, D> TableRow<N, D> {
    /// Whether the entry is an error.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.class, Class::Refused(_))
    }
}

/// Makes the function of an honoured row, which sets a field to a value derived from the given one, or to a
/// fixed one.
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
            (ShownSetting::Given("x"), Some("1.5"), Some("1.5")),
            (ShownSetting::Given("x"), None, None),
            (ShownSetting::Given("x"), Some("1\r\nSTAT y 2"), None),
            (ShownSetting::GivenOr("x", "1"), None, Some("1")),
            (ShownSetting::GivenOr("x", "1"), Some("2"), Some("2")),
            (ShownSetting::Kib("x"), Some("2"), Some("2048")),
            (ShownSetting::Mib("x"), Some("2"), Some("2097152")),
            (ShownSetting::Mib("x"), Some("many"), Some("many")),
            (ShownSetting::Kib("x"), Some("18446744073709551615"), Some("18446744073709551615")),
            (ShownSetting::Fixed("x", "no"), Some("2"), Some("no")),
        ] {
            assert_eq!(
                setting.entry(value),
                text.map(|text| ("x", text.to_owned())),
                "{setting:?} {value:?}"
            );
        }
    }
}
