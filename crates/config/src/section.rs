//! `[server]`: options of the command line, and further keys.

use toml::de::{DeTable, DeValue};

use crate::error::UsageError;
use crate::file_option::FileOption;
use crate::keys;
use crate::problems::{Problems, line_of};
use crate::rule_file::ServerSection;
use crate::rules::read_key;
use crate::settings::Settings;
use crate::toml_value::{integer, show};
use crate::value::read_size;

impl ServerSection {
    pub(crate) fn read(table: &DeTable<'_>, text: &str, problems: &mut Problems) -> Self {
        let mut section = Self::default();
        // Each value is tried at once, so that all mistakes are found, and each has its line.
        let mut scratch = Settings::default();
        for (key, value) in table {
            let name = &**key.get_ref();
            let line = line_of(text, key.span().start);
            section.said.insert(name.to_owned(), (text[value.span()].to_owned(), line));
            if let Some(row) = keys::SERVER.iter().map(|key| &key.row).find(|row| row.name == name) {
                read_key(row, key, value, "[server]", &mut section.own, problems);
                continue;
            }
            let Some(option) = FileOption::find(name) else {
                let known = keys::usable(keys::SERVER).map(|key| key.row.name.to_owned());
                let known: Vec<String> = known.chain(FileOption::names()).collect();
                problems.unknown(key.span().start, "[server]", name, known.iter().map(String::as_str));
                continue;
            };
            let texts = texts(option, value.get_ref());
            let tried = texts.and_then(|texts| {
                let mut apply = |text: &Option<String>| option.apply(text.as_deref(), &mut scratch);
                texts
                    .iter()
                    .try_for_each(&mut apply)
                    .map(|()| texts.clone())
                    .map_err(|error| error.to_string())
            });
            match tried {
                Ok(texts) => section.options.push((option.name(), texts)),
                Err(problem) => problems.add(value.span().start, format!("[server]: {problem}")),
            }
        }
        section
    }

    /// Applies the options to the settings.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), UsageError> {
        for (name, texts) in &self.options {
            let option = FileOption::find(name).expect("it was found when the section was read");
            texts.iter().try_for_each(|text| option.apply(text.as_deref(), settings))?;
        }
        settings.own = self.own.clone();
        Ok(())
    }
}

/// A value as words of the command line.
///
/// # Errors
/// The text continues a sentence that began with `[server]`.
fn texts(option: FileOption, value: &DeValue<'_>) -> Result<Vec<Option<String>>, String> {
    let name = option.name();
    if option.is_switch() {
        return match value {
            DeValue::Boolean(true) => Ok(vec![None]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => Err(format!("{name} {}: must be true or false", show(value))),
        };
    }
    let one = |value: &DeValue<'_>| match value {
        DeValue::String(text) => in_units(option, text).map(Some),
        DeValue::Integer(number) if option.is_octal() && number.radix() == 8 => {
            Ok(Some(number.as_str().to_owned()))
        }
        DeValue::Integer(number) if integer(number).is_some() => Ok(integer(number).map(|n| n.to_string())),
        _ => Err(format!("{name} {}: must be {}", show(value), option.describe())),
    };
    match value {
        DeValue::Array(list) if option.is_list() => list.iter().map(|value| one(value.get_ref())).collect(),
        _ => one(value).map(|text| vec![text]),
    }
}

/// A size in the unit in which the option counts.
fn in_units(option: FileOption, text: &str) -> Result<String, String> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    match (option.size_unit(), read_size(text).filter(|_| has_unit)) {
        (Some(unit), Some(bytes)) if bytes.is_multiple_of(unit) => Ok((bytes / unit).to_string()),
        (Some(_), Some(_)) => Err(format!("{} {text:?}: must be {}", option.name(), option.describe())),
        _ => Ok(text.to_owned()),
    }
}
