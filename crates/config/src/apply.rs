//! Applying one option to the settings.

use crate::error::UsageError;
use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::problems::most_similar;
use crate::settings::Settings;
use crate::table::Class;
use crate::value::{ValueKind, ValueSyntax};

/// Options that print something instead of starting the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InfoOption {
    Help,
    HelpAll,
    Version,
    License,
}

/// Applies the option of a row; `shown`: the option as the user typed it.
///
/// # Errors
/// The value is missing or wrong, or the option is refused.
pub(crate) fn apply(
    row: &OptionRow,
    shown: &str,
    value: Option<&str>,
    settings: &mut Settings,
) -> Result<Option<InfoOption>, UsageError> {
    let read = |value| row.kind.read(value).map_err(|problem| UsageError::new(format!("{shown} {problem}")));
    match row.class {
        Class::Refused(reason) => Err(UsageError::new(format!("{shown}: {reason}"))),
        Class::Help => Ok(Some(InfoOption::Help)),
        Class::Version => Ok(Some(InfoOption::Version)),
        Class::License => Ok(Some(InfoOption::License)),
        Class::List => parse_extended(value.unwrap_or_default(), settings).map(|()| None),
        Class::Honoured(set) => {
            let given = read(value)?;
            set(settings, &given).map_err(|problem| UsageError::new(format!("{shown} {problem}")))?;
            Ok(None)
        }
        Class::Inert { setting, why } => {
            read(value).map_err(|error| match row.kind {
                ValueKind::Number { min, max, .. } if min == max => {
                    UsageError::new(format!("{error}; {why}"))
                }
                _ => error,
            })?;
            if let Some((name, text)) = setting.and_then(|setting| setting.entry(value)) {
                settings.tuning.insert(name, text);
            }
            let typed = value.map_or_else(|| shown.to_owned(), |value| format!("{shown} {value}"));
            settings.notices.push(format!("{typed}: accepted without effect: {why}"));
            Ok(None)
        }
    }
}

/// Parses a list of `-o`: `a,b=c`.
fn parse_extended(list: &str, settings: &mut Settings) -> Result<(), UsageError> {
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (part, None),
        };
        let row = rows()
            .find(|row| match row.name {
                OptionName::Extended(own) => own == name,
                OptionName::Family(prefix) => name.starts_with(prefix),
                OptionName::Switch { .. } => false,
            })
            .ok_or_else(|| unknown("-o ", name, extended_names()))?;
        let shown = format!("-o {name}");
        if !row.kind.is_optional() && value.is_none() {
            return Err(missing(row, &shown));
        }
        // Like memcached, this takes `maxconns_fast=x` as `maxconns_fast`: only expected values are read.
        apply(row, &shown, value.filter(|_| row.kind.is_wanted()), settings)?;
    }
    Ok(())
}

fn extended_names() -> impl Iterator<Item = &'static str> {
    rows().filter_map(|row| match row.name {
        OptionName::Extended(name) => Some(name),
        _ => None,
    })
}

/// The error of an unknown option. `known`: the names that exist; `prefix`: the characters before a name.
pub(crate) fn unknown(prefix: &str, name: &str, known: impl Iterator<Item = &'static str>) -> UsageError {
    let help = match most_similar(name, known) {
        Some(meant) => format!("did you mean {prefix}{meant}?"),
        None => "--help-all lists all".to_owned(),
    };
    UsageError::new(format!("{prefix}{name}: unknown option; {help}"))
}

/// The error of an option without its value.
pub(crate) fn missing(row: &OptionRow, shown: &str) -> UsageError {
    match row.class {
        Class::Refused(reason) => UsageError::new(format!("{shown}: {reason}")),
        _ => UsageError::new(format!(
            "{shown}: needs a value: {}",
            row.kind.describe(ValueSyntax::CommandLine)
        )),
    }
}
