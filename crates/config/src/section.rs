//! `[server]`: options of the command line, and keys of its own.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::Protection;
use super::keys::{self, ServerDraft};
use super::kind::{integer, read_size, show};
use super::problems::{Problems, line_of};
use crate::options::{FileOption, Settings, UsageError};

/// `[server]` as it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerSection {
    /// Options, and the values of each as the command line would have them; None for a switch that is on.
    options: Vec<(FileOption, Vec<Option<String>>)>,
    own: ServerDraft,
    /// Every key: what it says, as messages show it, and its line.
    said: BTreeMap<String, (String, usize)>,
}

impl ServerSection {
    pub(super) fn read(table: &DeTable<'_>, text: &str, problems: &mut Problems) -> Self {
        let mut section = Self::default();
        // Every value is tried at once, so that all problems are found and each has its line.
        let mut scratch = Settings::default();
        for (key, value) in table {
            let name = &**key.get_ref();
            let line = line_of(text, key.span().start);
            section.said.insert(name.to_owned(), (text[value.span()].to_owned(), line));
            if let Some(row) = keys::SERVER.iter().find(|row| row.name == name) {
                match row.kind.read(value) {
                    Ok(given) => (row.set)(&mut section.own, given),
                    Err(problem) => problems.add(value.span().start, format!("[server]: {name} {problem}")),
                }
                continue;
            }
            let Some(option) = FileOption::find(name) else {
                let known = keys::SERVER.iter().map(|row| row.name.to_owned());
                let known: Vec<String> = known.chain(FileOption::names()).collect();
                let known = known.iter().map(String::as_str);
                problems.unknown(key.span().start, "server", "[server]", name, known);
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
                Ok(texts) => section.options.push((option, texts)),
                Err(problem) => problems.add(value.span().start, format!("[server]: {problem}")),
            }
        }
        section
    }

    /// Sets what it says.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), UsageError> {
        for (option, texts) in &self.options {
            texts.iter().try_for_each(|text| option.apply(text.as_deref(), settings))?;
        }
        settings.own = self.own.clone();
        Ok(())
    }

    /// The options it sets, by name, and what it says of them.
    pub(super) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_option = |name: &str| self.options.iter().any(|(option, _)| option.name() == name);
        let said = self.said.iter().filter(move |(name, _)| is_option(name));
        said.map(|(name, (said, _))| (name.as_str(), said.as_str()))
    }

    /// A line for each thing that `newer`, in the file at `path`, says otherwise.
    pub(super) fn needs_restart(&self, newer: &Self, path: &Path) -> Vec<String> {
        let mut lines = Vec::new();
        let path = path.display();
        for (name, (new, line)) in &newer.said {
            match self.said.get(name) {
                Some((old, _)) if old == new => {}
                Some((old, _)) => lines.push(format!(
                    "{path}:{line}: [server]: {name} was {old} at the start and is {new} now: needs a restart"
                )),
                None => {
                    lines.push(format!("{path}:{line}: [server]: {name} = {new} is new: needs a restart"));
                }
            }
        }
        for name in self.said.keys().filter(|name| !newer.said.contains_key(*name)) {
            lines.push(format!("{path}: [server]: {name} is gone: needs a restart"));
        }
        lines
    }
}

impl ServerDraft {
    /// With the defaults of what was not said, for a memory limit of so many bytes.
    pub(crate) fn resolve(&self, memory_bytes: usize) -> Protection {
        let bytes = |given: Option<u64>, default| given.map_or(default, |bytes| bytes as usize);
        let count = |given: Option<u32>, default| given.map_or(default, |count| count as usize);
        Protection {
            control: self.control.clone().unwrap_or_else(|| "@".to_owned()),
            tag_bytes: bytes(self.tag_bytes, memory_bytes / 32),
            ledger_bytes: bytes(self.ledger_bytes, (memory_bytes / 64).max(1 << 20)),
            fence_bytes: bytes(self.fence_bytes, (memory_bytes / 128).max(1 << 20)),
            waiters: count(self.waiters, 1 << 16),
            read_ahead: count(self.read_ahead, 64),
        }
    }
}

/// A value as words of the command line; the error continues a sentence that began with `[server]`.
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

/// A size in the unit that the option counts in.
fn in_units(option: FileOption, text: &str) -> Result<String, String> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    match (option.size_unit(), read_size(text).filter(|_| has_unit)) {
        (Some(unit), Some(bytes)) if bytes.is_multiple_of(unit) => Ok((bytes / unit).to_string()),
        (Some(_), Some(_)) => Err(format!("{} {text:?}: must be {}", option.name(), option.describe())),
        _ => Ok(text.to_owned()),
    }
}
