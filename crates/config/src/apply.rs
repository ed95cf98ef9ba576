//! One option takes its effect on the settings.

use crate::error::UsageError;
use crate::option_row::{Name, OptionRow};
use crate::options::rows;
use crate::problems::meant;
use crate::settings::Settings;
use crate::table::Class;
use crate::value::{Kind, Place};

/// What an option asks for instead of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Help,
    HelpAll,
    Version,
    License,
}

/// Does what the row says; `shown` is the option as the user typed it.
pub(crate) fn apply(
    row: &OptionRow,
    shown: &str,
    value: Option<&str>,
    settings: &mut Settings,
) -> Result<Option<Stop>, UsageError> {
    let read = |value| row.kind.read(value).map_err(|problem| UsageError::new(format!("{shown} {problem}")));
    match row.class {
        Class::Refused(reason) => Err(UsageError::new(format!("{shown}: {reason}"))),
        Class::Help => Ok(Some(Stop::Help)),
        Class::Version => Ok(Some(Stop::Version)),
        Class::License => Ok(Some(Stop::License)),
        Class::List => parse_extended(value.unwrap_or_default(), settings).map(|()| None),
        Class::Honoured(set) => {
            let given = read(value)?;
            set(settings, &given).map_err(|problem| UsageError::new(format!("{shown} {problem}")))?;
            Ok(None)
        }
        Class::Inert { setting, why } => {
            read(value).map_err(|error| match row.kind {
                Kind::Number { min, max, .. } if min == max => UsageError::new(format!("{error}; {why}")),
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

/// One `-o a,b=c` list.
fn parse_extended(list: &str, settings: &mut Settings) -> Result<(), UsageError> {
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (part, None),
        };
        let row = rows()
            .find(|row| match row.name {
                Name::Extended(own) => own == name,
                Name::Family(prefix) => name.starts_with(prefix),
                Name::Switch { .. } => false,
            })
            .ok_or_else(|| unknown("-o ", name, extended_names()))?;
        let shown = format!("-o {name}");
        if !row.kind.is_optional() && value.is_none() {
            return Err(missing(row, &shown));
        }
        // Like memcached, `maxconns_fast=x` is taken as `maxconns_fast`: only values that are wanted are read.
        apply(row, &shown, value.filter(|_| row.kind.is_wanted()), settings)?;
    }
    Ok(())
}

fn extended_names() -> impl Iterator<Item = &'static str> {
    rows().filter_map(|row| match row.name {
        Name::Extended(name) => Some(name),
        _ => None,
    })
}

/// What is said of an option that does not exist, of which `known` are those that do; `prefix`: how it is written.
pub(crate) fn unknown(prefix: &str, name: &str, known: impl Iterator<Item = &'static str>) -> UsageError {
    let help = match meant(name, known) {
        Some(meant) => format!("did you mean {prefix}{meant}?"),
        None => "--help-all lists all".to_owned(),
    };
    UsageError::new(format!("{prefix}{name}: unknown option; {help}"))
}

/// What is said of an option that lacks its value.
pub(crate) fn missing(row: &OptionRow, shown: &str) -> UsageError {
    match row.class {
        Class::Refused(reason) => UsageError::new(format!("{shown}: {reason}")),
        _ => UsageError::new(format!("{shown}: needs a value: {}", row.kind.describe(Place::CommandLine))),
    }
}
