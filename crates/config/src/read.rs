//! The rule file: TOML with `[server]`, `[[rule]]`, `[[cascade]]`, `[[share]]`, `[[user]]`, `[loader.NAME]`,
//! `[follow.NAME]` and `[objects]`.
//!
//! `keys.rs` defines every key. `[server]` also takes the options of the command line, by their long names
//! with `_` for `-`; an option on the command line overrides it.
//!
//! A file is accepted as a whole or not at all. All mistakes are reported, a line each: file, line, mistake,
//! and correct form.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_engine::rules::{Rule, Rules};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, UsageError};
use crate::file::open_file;
use crate::follows::{read_follows, table_lines};
use crate::hints;
use crate::loader::LoaderSettings;
use crate::loaders::read_loaders;
use crate::objects::{self, TypesDir, read_objects};
use crate::own_types::{NoScripts, TypeLoader};
use crate::places::TableLocations;
use crate::problems::{self, Problems};
use crate::rule_file::{RuleFile, ServerSection};
use crate::rules;
use crate::settings::Settings;
use crate::shares::read_shares;
use crate::users::read_users;

/// The most bytes of a rule file.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The error of a file in another format.
const IS_TOML: &str =
    "a rule file is TOML: a line [[rule]], then lines such as match = \"page:{id}\" and hold = \"400ms\"";
/// The most rules in a file, and the most cascades.
pub const RULES_MAX: usize = 1000;

impl RuleFile {
    /// Reads the file at `path`; `types` loads the types of its directory.
    ///
    /// # Errors
    /// The file cannot be read, is larger than [`FILE_BYTES_MAX`], or has mistakes: a line for each.
    pub fn load(path: &Path, types: &'static dyn TypeLoader) -> Result<Self, ConfigError> {
        Self::load_with(path, None, types)
    }

    /// Reads the file like [`RuleFile::load`], for a server with `--objects`, whose directory replaces `dir`.
    ///
    /// # Errors
    /// Those of [`RuleFile::load`]. Mistakes in that directory are errors of [`Settings::objects_under`].
    pub fn load_with(
        path: &Path,
        objects_dir: Option<&Path>,
        types: &'static dyn TypeLoader,
    ) -> Result<Self, ConfigError> {
        let cannot = |error| ConfigError::one(path, format_args!("cannot be read: {error}"));
        let mut bytes = Vec::new();
        let file = open_file(path).map_err(cannot)?;
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(ConfigError::one(path, format_args!("is too large; at most {FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = problems::newlines(before) + 1;
            ConfigError::new(vec![format!("{}:{line}: is not UTF-8", path.display())])
        })?;
        Self::parse_given(path, &text, objects_dir.map(TypesDir::InPlaceOfDir), types)
    }

    /// Parses `text`, the contents of the file at `path`. Directories, programs and users of loaders are
    /// looked up. There are no users' own types.
    ///
    /// # Errors
    /// The text has mistakes: a line for each.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_given(path, text, None, &NoScripts)
    }

    /// Parses a text like [`RuleFile::parse`]; the types in `objects_dir` are used unless the file has a
    /// `dir`.
    ///
    /// # Errors
    /// Those of [`RuleFile::parse`]. Mistakes in that directory are errors of [`RuleFile::settings_with`].
    pub fn parse_beside(
        path: &Path,
        text: &str,
        objects_dir: Option<&Path>,
        types: &'static dyn TypeLoader,
    ) -> Result<Self, ConfigError> {
        Self::parse_given(path, text, objects_dir.map(TypesDir::WithoutDir), types)
    }

    fn parse_given(
        path: &Path,
        text: &str,
        given: Option<TypesDir<'_>>,
        types: &'static dyn TypeLoader,
    ) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        let file = match DeTable::parse(text) {
            Ok(table) => Self::read(path, table.get_ref(), text, (given, types), &mut problems),
            Err(error) => {
                let offset = error.span().map_or(0, |span| span.start);
                if let Some(format) = hints::other_format(text) {
                    problems.add(0, format!("looks like {format}; {IS_TOML}"));
                } else {
                    problems.add(offset, error.message().replace('\n', ", "));
                }
                None
            }
        };
        match file {
            Some(file) if problems.is_empty() => Ok(file),
            _ => Err(ConfigError::new(problems.lines(path, text))),
        }
    }

    fn read(
        path: &Path,
        table: &DeTable<'_>,
        text: &str,
        (given, types): (Option<TypesDir<'_>>, &'static dyn TypeLoader),
        problems: &mut Problems,
    ) -> Option<Self> {
        let mut server = ServerSection::default();
        let (mut rules, mut cascades, mut loaders) = (Vec::new(), Vec::new(), Vec::new());
        let (mut objects, mut users) = (None, Vec::new());
        let mut follow_table = None;
        let mut shares = Vec::new();
        for (name, value) in table {
            match (&**name.get_ref(), value.get_ref()) {
                ("server", DeValue::Table(section)) => server = ServerSection::read(section, text, problems),
                ("server", _) => problems.add(name.span().start, "server: is a table; write [server]"),
                ("rule", list) => rules = tables("rule", name, list, problems),
                ("user", list) => users = tables("user", name, list, problems),
                ("cascade", list) => cascades = tables("cascade", name, list, problems),
                ("share", list) => shares = tables("share", name, list, problems),
                ("loader", DeValue::Table(all)) => loaders = read_loaders(all, path, problems),
                ("loader", _) => problems.add(name.span().start, "loader: is a table; write [loader.NAME]"),
                ("objects", DeValue::Table(own)) => {
                    objects =
                        Some(read_objects(name.span().start, own, (path, text), (given, types), problems));
                }
                ("follow", DeValue::Table(all)) => follow_table = Some(all),
                ("follow", _) => problems.add(name.span().start, "follow: is a table; write [follow.NAME]"),
                ("objects", _) => problems.add(name.span().start, "objects: is a table; write [objects]"),
                (unknown, _) => {
                    let known = ["server", "rule", "cascade", "share", "user", "loader", "follow", "objects"]
                        .into_iter();
                    problems.unknown(name.span().start, "", unknown, known);
                }
            }
        }
        let prefix =
            objects.as_ref().map_or(&[][..], |objects: &objects::ObjectsSection| &objects.settings().prefix);
        let object_rules = objects::rules_beyond_tags(&rules, &String::from_utf8_lossy(prefix), text);
        if let Some(objects) = &objects {
            for rule in object_rules.iter().filter(|rule| rule.is_wrong(objects.settings())) {
                problems.add(rule.offset, rule.problem.as_str());
            }
        }
        let lines = TableLocations::of(&rules, table.get("loader").map(Spanned::get_ref), text);
        server.own.check_prefixes(problems);
        let prefixes = server.own.prefixes();
        let follows = follow_table.map_or_else(Vec::new, |all| read_follows(all, path, &prefixes, problems));
        let rules = rules::read_rules(&rules, (&loaders, follow_table.is_some()), &prefixes, text, problems);
        let cascades = rules::read_cascades(&cascades, problems);
        let shares = read_shares(&shares, text, problems);
        let users = read_users(&users, text, problems);
        if !problems.is_empty() {
            return None;
        }
        let keyed = cascades.iter().filter(|(_, cascade)| cascade.pattern.is_some());
        let places: Vec<usize> = keyed.map(|(place, _)| *place).collect();
        let cascades = cascades.into_iter().map(|(_, cascade)| cascade).collect();
        let rules = Arc::new(Rules::new(rules, cascades).with_prefixes(prefixes));
        rules::check_self_bumps(&rules, &places, problems);
        let running = loaders.iter().filter(|loader| runs(loader, &rules)).cloned().collect();
        let objects_dir = given.and_then(TypesDir::in_place_of_dir).map(Path::to_owned);
        Some(Self {
            path: path.to_owned(),
            rules,
            loaders,
            running,
            follows,
            shares,
            users,
            objects,
            objects_dir,
            types,
            object_rules,
            server,
            places: lines,
            follow_lines: follow_table.map_or_else(BTreeMap::new, |all| table_lines(all, text)),
        })
    }

    /// Reads the same file again.
    ///
    /// # Errors
    /// Those of [`RuleFile::load`].
    pub fn read_again(&self) -> Result<Self, ConfigError> {
        Self::load_with(&self.path, self.objects_dir.as_deref(), self.types)
    }

    /// The file of users that `[server]` names.
    pub fn auth_file(&self) -> Option<PathBuf> {
        let mut settings = Settings::default();
        self.server.apply(&mut settings).ok()?;
        settings.auth_file
    }

    /// The settings of a server that is started with this file alone. The tests of its types are run.
    ///
    /// # Errors
    /// The errors of such a server's start.
    pub fn settings(&self) -> Result<Settings, UsageError> {
        self.settings_with(None)
    }

    /// The settings of a server that is started with this file, and with `--objects` if its `[objects]` has
    /// no `dir`. The tests of its types are run.
    ///
    /// # Errors
    /// The errors of such a server's start.
    pub fn settings_with(&self, objects_dir: Option<&Path>) -> Result<Settings, UsageError> {
        let own = self.objects.as_ref().is_some_and(objects::ObjectsSection::has_dir);
        let objects_dir = objects_dir.filter(|_| !own).map(Path::to_owned);
        let mut settings =
            Settings { rule_file: Some(self.clone()), objects_dir, types: self.types, ..Settings::default() };
        self.server.apply(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }
}

/// The tables of `[[name]]`, each with its offset.
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

/// Whether a loader is started: not if only observing rules name it.
fn runs(loader: &LoaderSettings, rules: &Rules) -> bool {
    let is_of = |rule: &&Arc<Rule>| rule.loading.as_ref().is_some_and(|own| *own.loader == *loader.name);
    let mut named = rules.rules().iter().filter(is_of).peekable();
    named.peek().is_none() || named.any(|rule| !rule.policy.observe)
}

#[cfg(test)]
mod tests;
