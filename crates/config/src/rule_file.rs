//! A rule file that was read: its rules, its loaders, and its `[server]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_engine::rules::{Pattern, Rules};
use cattlegrid_tags::PrefixId;

use crate::error::{ConfigError, UsageError};
use crate::follow::FollowSettings;
use crate::hints;
use crate::loader::{LoaderMode, LoaderSettings};
use crate::objects::{ObjectRule, ObjectsSection};
use crate::own_types::TypeLoader;
use crate::places::TableLocations;
use crate::protection::ServerDraft;
use crate::settings::{Privileges, Settings};
use crate::shares::{self, ShareSettings};
use crate::users::UserSettings;

/// A valid rule file.
#[derive(Debug, Clone)]
pub struct RuleFile {
    /// The path.
    pub path: PathBuf,
    /// The rules and cascades.
    pub rules: Arc<Rules>,
    /// The loaders, in the order of the file. Their names are distinct, and each rule's loader is among them.
    pub loaders: Vec<LoaderSettings>,
    /// The loaders that are started: all except those that only observing rules name.
    pub running: Vec<LoaderSettings>,
    /// The followed logs, in the order of the file. Their names are distinct.
    pub follows: Vec<FollowSettings>,
    /// Shares of the memory for keys with certain prefixes, in the order of the file. Their prefixes are
    /// distinct.
    pub shares: Vec<ShareSettings>,
    /// The users with limits, in the order of the file. Their names are distinct.
    pub users: Vec<UserSettings>,
    /// `[objects]`, if it has one.
    pub(crate) objects: Option<ObjectsSection>,
    /// The directory of `--objects` with which the file was read.
    pub(crate) objects_dir: Option<PathBuf>,
    /// Loads users' own types.
    pub(crate) types: &'static dyn TypeLoader,
    /// Rules that are mistakes if the types of their objects are switched on.
    pub(crate) object_rules: Vec<ObjectRule>,
    pub(crate) server: ServerSection,
    pub(crate) places: TableLocations,
    /// The lines of the tables of each log.
    pub(crate) follow_lines: BTreeMap<String, Vec<usize>>,
}

/// `[server]` as it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerSection {
    /// Options by name, each with its values as on the command line; None for a switch that is on.
    pub(crate) options: Vec<(String, Vec<Option<String>>)>,
    pub(crate) own: ServerDraft,
    /// Each key, with its value as messages show it, and its line.
    pub(crate) said: BTreeMap<String, (String, usize)>,
}

impl RuleFile {
    /// The warning about a reloaded file without rules, which may have been emptied by mistake. At the start,
    /// a file with only `[server]` is fine.
    pub fn warns_of_no_rules(&self) -> Option<String> {
        let is_empty = self.rules.rules().is_empty() && !self.rules.has_cascades();
        is_empty.then(|| {
            format!("{}: has no [[rule]] and no [[cascade]]: no key has a rule now", self.path.display())
        })
    }

    /// A warning for each pattern that looks like another program's and means something else here, and for
    /// each that begins with a prefix.
    pub fn warns_of_patterns(&self) -> Vec<String> {
        let of_rules = self.rules.rules().iter().map(|rule| ("rule", &rule.pattern));
        let of_cascades =
            self.rules.all_cascades().filter_map(|cascade| Some(("cascade", cascade.pattern.as_ref()?)));
        let each = of_rules.chain(of_cascades).flat_map(|(what, pattern)| {
            let hints = hints::of_pattern(pattern).into_iter();
            hints.map(move |hint| format!("{what} {}: {hint}", pattern.text()))
        });
        each.chain(self.warns_of_prefixes()).collect()
    }

    /// A warning for each pattern whose text begins with one of the server's prefixes: patterns are matched
    /// against the rest of the key, after the prefix.
    fn warns_of_prefixes(&self) -> Vec<String> {
        let prefixes = self.rules.prefixes();
        let begins = |pattern: &Pattern| {
            let literal = pattern.text().split('{').next().unwrap_or_default();
            prefixes.split(literal.as_bytes()).0
        };
        let of_rules = self.rules.rules().iter().map(|rule| ("rule", &rule.pattern));
        let of_cascades =
            self.rules.all_cascades().filter_map(|cascade| Some(("cascade", cascade.pattern.as_ref()?)));
        let patterns = of_rules.chain(of_cascades).filter(|(_, pattern)| begins(pattern) != PrefixId::NONE);
        let line = |(what, pattern): (&str, &Pattern)| {
            let prefix = String::from_utf8_lossy(prefixes.text(begins(pattern))).into_owned();
            let rest = pattern.text().strip_prefix(&*prefix).unwrap_or_default();
            let name = pattern.text();
            format!(
                "{what} {name}: {prefix:?} is one of [server] prefixes, so a key that begins with it is matched by what follows; write \
                 {rest:?}, and prefix = {prefix:?} if it is for that prefix only"
            )
        };
        patterns.map(line).collect()
    }

    /// A warning for each loader that no rule names, since it has nothing to do, and for each in a deprecated
    /// mode.
    pub fn warns_of_loaders(&self) -> Vec<String> {
        let is_named = |loader: &LoaderSettings| {
            let mut named = self.rules.rules().iter().filter_map(|rule| rule.loading.as_ref());
            named.any(|loading| *loading.loader == *loader.name)
        };
        let unnamed = self.loaders.iter().filter(|loader| !is_named(loader));
        let unnamed = unnamed.map(|loader| format!("loader {}: no [[rule]] names it", loader.name));
        let going = self.loaders.iter().filter(|loader| loader.mode == LoaderMode::Stdio);
        let going = going.map(|loader| {
            format!(
                "loader {}: mode = \"stdio\" goes with the next release; write mode = \"exec\": a program that uses an SDK needs no change",
                loader.name
            )
        });
        unnamed.chain(going).collect()
    }

    /// Checks that the loaders can run in a server of these settings.
    ///
    /// # Errors
    /// A loader's workers cannot change to its `user`.
    pub fn check_loaders(&self, settings: &Settings) -> Result<(), UsageError> {
        let Some((name, user)) =
            self.running.iter().find_map(|loader| Some((&loader.name, loader.user.as_ref()?)))
        else {
            return Ok(());
        };
        let cause = if let Some(own) = &settings.user {
            format!("the server itself becomes {own} (-u)")
        } else if settings.privileges == Privileges::Drop {
            "the server gives up its capabilities (drop_privileges)".to_owned()
        } else {
            return Ok(());
        };
        Err(UsageError::new(format!(
            "[loader.{name}]: user {user:?}: {cause}, after which nothing it starts can become another user; leave \
             one of them out"
        )))
    }

    /// Checks that a server can follow the logs.
    ///
    /// # Errors
    /// A table has keys to delete and no tags: a line for each.
    pub fn for_server(&self) -> Result<(), ConfigError> {
        let why = "has delete_keys and no bump: a server invalidates tags; name them in bump, or delete the keys on memcached \
                   servers by `cattlegrid follow FILE --to SERVERS`";
        let lines = self.follows.iter().flat_map(|log| {
            let lacks = log.tables().iter().enumerate().filter(|(_, own)| own.table.bump.is_empty());
            lacks.map(move |(at, own)| self.of_table(log, at, &format!("{} {why}", own.table.full_name())))
        });
        ConfigError::if_any(lines.collect())
    }

    /// The log that `cattlegrid follow` follows: the log `name`, or the only log of a database.
    ///
    /// # Errors
    /// There is no such log, or several without a `name`; it is of etcd, or followed for a fleet; or a table
    /// has no keys to delete: a line for each.
    pub fn log_of_keys(&self, name: Option<&str>) -> Result<&FollowSettings, ConfigError> {
        let one = |problem: String| ConfigError::one(&self.path, problem);
        let mut logs = self.follows.iter().filter(|log| match name {
            Some(name) => log.name == name,
            None => log.is_of_database(),
        });
        let log = match (logs.next(), logs.next(), name) {
            (Some(_), Some(_), _) => {
                let names: Vec<&str> = self.follows.iter().map(|log| log.name.as_str()).collect();
                return Err(one(format!("has several logs; name one: --log {}", names.join(" or --log "))));
            }
            (Some(log), ..) => log,
            (None, _, Some(name)) => return Err(one(format!("--log {name}: there is no [follow.{name}]"))),
            (None, _, None) => {
                let why = "has no log of a database; write [follow.NAME] with a url, and [[follow.NAME.table]] with delete_keys";
                return Err(one(why.to_owned()));
            }
        };
        if !log.is_of_database() {
            let why = "is of etcd, whose entries are tags and no keys; name the log of a database";
            return Err(one(format!("follow {}: {why}", log.name)));
        }
        if log.via().is_some() {
            let why = "has via: its slot is that of a fleet; write another [follow.NAME] of the database, with a slot of its own";
            return Err(one(format!("follow {}: {why}", log.name)));
        }
        let why = "has no delete_keys: name the keys that are made of its rows, such as delete_keys = [\"user:{id}\"]; bump is \
                   for a server with this file";
        let lacks = log.tables().iter().enumerate().filter(|(_, own)| own.delete_keys.is_empty());
        let lines =
            lacks.map(|(at, own)| self.of_table(log, at, &format!("{} {why}", own.table.full_name())));
        ConfigError::if_any(lines.collect()).map(|()| log)
    }

    /// A message about a table of a log, with its line.
    fn of_table(&self, log: &FollowSettings, at: usize, problem: &str) -> String {
        let line = self.follow_lines.get(&log.name).and_then(|lines| lines.get(at)).copied().unwrap_or(1);
        format!("{}:{line}: follow {}: table {problem}", self.path.display(), log.name)
    }

    /// A line for each difference of `newer` that needs a restart.
    pub fn needs_restart(&self, newer: &Self) -> Vec<String> {
        let mut lines = self.server.needs_restart(&newer.server, &newer.path);
        lines.extend(shares::need_restart(&self.shares, &newer.shares, &newer.path));
        lines
    }
}

impl ServerSection {
    /// The options that `[server]` sets, by name, with their values.
    pub(crate) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_option = |name: &str| self.options.iter().any(|(option, _)| option == name);
        let said = self.said.iter().filter(move |(name, _)| is_option(name));
        said.map(|(name, (said, _))| (name.as_str(), said.as_str()))
    }

    /// A line for each difference of `newer`, in the file at `path`.
    pub(crate) fn needs_restart(&self, newer: &Self, path: &Path) -> Vec<String> {
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
