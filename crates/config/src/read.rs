//! The rule file: TOML with `[server]`, `[[rule]]` and `[[cascade]]`.
//!
//! `keys.rs` defines every key once: the reader, `check` and the reference come from that table. `[server]` also
//! takes the options of the command line, by their long names with `_` for `-`; those are defined in
//! [`crate::options`], and a command line that names one wins.
//!
//! A file is taken whole or not at all. Everything that is wrong with it is reported, a line each: file, line,
//! what, and what would be right.

mod check;
mod keys;
mod kind;
mod problems;
mod reference;
mod rules;
mod server;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_engine::RulesConfig;
use cattlegrid_engine::rules::Rules;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use check::{check, explain};
pub(crate) use keys::ServerDraft;
use problems::Problems;
pub(crate) use reference::reference_markdown;
use server::ServerSection;

use crate::options::{Settings, UsageError};

/// Bytes a rule file may have.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Rules a file may have, and cascades.
pub const RULES_MAX: usize = 1000;

/// A rule file that was read and is right.
#[derive(Debug, Clone)]
pub struct RuleFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its rules and cascades.
    pub rules: Arc<Rules>,
    server: ServerSection,
}

/// What `[server]` says of rules and control keys, with the defaults of what it leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// What control keys begin with; empty: there are none.
    pub control: String,
    /// Memory for the numbers of tags, in bytes; a part of the memory limit, as the next two.
    pub tag_bytes: usize,
    /// Memory for open misses, in bytes.
    pub ledger_bytes: usize,
    /// Memory for the last event of each key, in bytes.
    pub fence_bytes: usize,
    /// Gets that are held at most, of all keys together.
    pub waiters: usize,
    /// Commands that are read behind a held get of the same connection.
    pub read_ahead: usize,
}

impl Protection {
    /// What the engine is told of it.
    pub fn rules_config(&self) -> RulesConfig {
        RulesConfig {
            tag_bytes: self.tag_bytes,
            ledger_bytes: self.ledger_bytes,
            fence_bytes: self.fence_bytes,
            waiters: self.waiters,
            control: self.control.as_bytes().into(),
        }
    }
}

/// Why a rule file cannot be used: a line for each thing that is wrong, with its place and what would be right.
///
/// The process leaves with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines.join("\n"))]
pub struct ConfigError {
    lines: Vec<String>,
}

impl ConfigError {
    fn one(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self { lines: vec![format!("{}: {problem}", path.display())] }
    }

    /// The lines, at least one.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}

impl RuleFile {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let cannot = |error| ConfigError::one(path, format_args!("cannot be read: {error}"));
        let mut bytes = Vec::new();
        let file = crate::sys::open_file(path).map_err(cannot)?;
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(ConfigError::one(path, format_args!("is too large; at most {FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = problems::newlines(before) + 1;
            ConfigError { lines: vec![format!("{}:{line}: is not UTF-8", path.display())] }
        })?;
        Self::parse(path, &text)
    }

    /// Reads `text`, which is what the file at `path` holds.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let file = match DeTable::parse(text) {
            Ok(table) => Self::read(path, table.get_ref(), text, &mut problems),
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                problems.add(offset, error.message().replace('\n', ", "));
                None
            }
        };
        match file {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(ConfigError { lines: problems.lines(path, text) }),
        }
    }

    fn read(path: &Path, table: &DeTable<'_>, text: &str, problems: &mut Problems) -> Option<Self> {
        let mut server = ServerSection::default();
        let (mut rules, mut cascades) = (Vec::new(), Vec::new());
        for (name, value) in table {
            match (&**name.get_ref(), value.get_ref()) {
                ("server", DeValue::Table(section)) => server = ServerSection::read(section, text, problems),
                ("server", _) => problems.add(name.span().start, "server: is a table; write [server]"),
                ("rule", list) => rules = tables("rule", name, list, problems),
                ("cascade", list) => cascades = tables("cascade", name, list, problems),
                (unknown, _) => {
                    let known = ["server", "rule", "cascade"].into_iter();
                    problems.unknown(name.span().start, "", "", unknown, known);
                }
            }
        }
        let rules = rules::read_rules(&rules, text, problems);
        let cascades = rules::read_cascades(&cascades, problems);
        if !problems.is_empty() {
            return None;
        }
        let keyed = cascades.iter().filter(|(_, cascade)| cascade.pattern.is_some());
        let places: Vec<usize> = keyed.map(|(place, _)| *place).collect();
        let cascades = cascades.into_iter().map(|(_, cascade)| cascade).collect();
        let rules = Arc::new(Rules::new(rules, cascades));
        rules::check_self_bumps(&rules, &places, problems);
        Some(Self { path: path.to_owned(), rules, server })
    }

    /// Reads the same file again.
    pub(crate) fn read_again(&self) -> Result<Self, ConfigError> {
        Self::load(&self.path)
    }

    /// Sets what `[server]` says.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), UsageError> {
        self.server.apply(settings)
    }

    /// The settings of a server that is started with this file and nothing else.
    pub(crate) fn settings(&self) -> Result<Settings, UsageError> {
        let mut settings = Settings::default();
        settings.rule_file = Some(self.clone());
        self.apply(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }

    /// What is said when it is read again and has no rule: it may have been emptied by mistake. A `[server]` alone is enough at
    /// the start.
    pub(crate) fn warns_of_no_rules(&self) -> Option<String> {
        let is_empty = self.rules.rules().is_empty() && !self.rules.has_cascades();
        is_empty.then(|| {
            format!("{}: has no [[rule]] and no [[cascade]]: no key has a rule now", self.path.display())
        })
    }

    /// A line for each thing that `newer` says otherwise and that only a restart can change.
    pub(crate) fn needs_restart(&self, newer: &Self) -> Vec<String> {
        self.server.needs_restart(&newer.server, &newer.path)
    }
}

/// The tables of `[[name]]`, with where each begins.
fn tables<'t, 'i>(
    name: &str,
    key: &Spanned<std::borrow::Cow<'i, str>>,
    list: &'t DeValue<'i>,
    problems: &mut Problems,
) -> Vec<(usize, &'t DeTable<'i>)> {
    let wrong = format!("{name}: is a list of tables; write [[{name}]], in double brackets");
    let DeValue::Array(list) = list else {
        problems.add(key.span().start, wrong);
        return Vec::new();
    };
    if list.len() > RULES_MAX {
        problems.add(key.span().start, format!("{name}: {} of them; at most {RULES_MAX}", list.len()));
        return Vec::new();
    }
    let mut tables = Vec::new();
    for entry in list {
        match entry.get_ref() {
            DeValue::Table(table) => tables.push((entry.span().start, table)),
            _ => problems.add(entry.span().start, wrong.clone()),
        }
    }
    tables
}

#[cfg(test)]
mod tests;
