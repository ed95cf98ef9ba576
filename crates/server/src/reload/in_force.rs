//! The configuration in force: the start reads it from files, and reloads read it again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_config::{Objects, RuleFile};
use cattlegrid_objects::{HostType, ObjectType, Registry, native};

use crate::auth::rights;
use crate::error::ServeError;
use crate::lane::handle::Message;
use crate::log;
use crate::shared::Shared;
use crate::shared::build::{rules_config, shares};

/// The files' contents as read last. Only reloads change it.
#[derive(Debug, Default)]
pub(crate) struct InForce {
    pub(crate) rule_file: Option<RuleFile>,
    pub(crate) objects: Option<Objects>,
}

impl InForce {
    /// The directory to watch for changes, and its digest when it was read.
    pub(crate) fn watched(&self) -> Option<(PathBuf, u64)> {
        let objects = self.objects.as_ref().filter(|objects| objects.watch)?;
        Some((objects.dir.clone()?, objects.seen))
    }
}

impl Shared {
    /// Reads the rule file with its objects, the certificates and the file of users again, and starts new
    /// loaders; called for SIGHUP. It takes as long as the slowest loader needs to start, while `may_wait`
    /// allows it. `files_are_read` is called before that, or never.
    ///
    /// # Errors
    /// A file or a loader cannot be used. Nothing has changed then.
    pub(crate) fn reload(
        &self,
        files_are_read: impl FnOnce(),
        may_wait: impl Fn() -> bool,
    ) -> Result<(), ServeError> {
        let users =
            self.auth.as_ref().map(|auth| auth.read_again().map(|users| (auth, users))).transpose()?;
        let config = self.tls.as_ref().map(|tls| tls.read_again().map(|config| (tls, config))).transpose()?;
        let admin = self.admin.read_again()?;
        let rule_file = self
            .settings
            .rule_file
            .as_ref()
            .map(|file| {
                let newer = file.read_again()?;
                newer.for_server().map(|()| (file, newer))
            })
            .transpose()?;
        let newer_file = rule_file.as_ref().map(|(_, newer)| newer);
        let read = users.as_ref().map(|(_, users)| users);
        let grants = rights::grants_of(self.auth.as_ref(), read, newer_file)?;
        let objects = self.settings.objects_under(newer_file)?;
        let registry = objects.as_ref().map(|objects| Arc::new(objects.registry()));
        self.check_versions(registry.as_deref())?;
        files_are_read();
        log::lines(log::Level::Warning, self.settings.options_need_restart().unwrap_or_default());
        if let Some((file, newer)) = &rule_file {
            newer.check_loaders(&self.settings)?;
            let loaders = self.loaders.prepare(&newer.running, &may_wait)?;
            log::lines(log::Level::Warning, newer.warns_of_loaders().join("\n"));
            log::lines(log::Level::Warning, newer.warns_of_patterns().join("\n"));
            log::lines(log::Level::Warning, file.needs_restart(newer).join("\n"));
            if let Some(text) = newer.warns_of_no_rules() {
                log::warning(text);
            }
            let rules = rules_config(&self.settings.protection);
            self.loaders
                .commit(loaders, || {
                    self.engine.set_rules(Some(Arc::clone(&newer.rules)), &rules, self.clock.millis())
                })
                .map_err(|error| ServeError::Io { what: "the rules cannot be changed", error })?;
            self.engine.memory().set_shares(&shares(newer));
            // Clients that wait for a key that has no rule any more must be answered, and all lanes may be
            // sleeping.
            self.lanes[0].tell(Message::Wakes(Vec::new()));
        }
        let before = self.in_force().rule_file.clone();
        let newer = rule_file.map(|(_, newer)| newer);
        if let (Some(before), Some(newer)) = (&before, &newer) {
            let changes = before.changes(newer).into_iter().map(|line| format!("reload: {line}"));
            log::lines(log::Level::Notice, changes.collect::<Vec<_>>().join("\n"));
        }
        self.set_objects(newer, objects, registry);
        if let Some((auth, users)) = users {
            auth.replace(users);
        }
        if let (Some(auth), Some(grants)) = (&self.auth, grants) {
            if let Some(line) = grants.notice() {
                log::notice(line);
            }
            auth.grant(grants);
            self.lanes.iter().for_each(|lane| lane.tell(Message::Rights));
        }
        if let Some((tls, config)) = config {
            tls.replace(config);
            self.gauges.certificates_read.store(self.clock.seconds(), Relaxed);
        }
        self.admin.replace(admin);
        Ok(())
    }

    /// Loads users' own types again, without reading other files.
    ///
    /// # Errors
    /// A type cannot be used. Nothing has changed then.
    pub(crate) fn reload_objects(&self) -> Result<(), ServeError> {
        let file = self.in_force().rule_file.clone();
        let objects = self.settings.objects_again(file.as_ref())?;
        let registry = objects.as_ref().map(|objects| Arc::new(objects.registry()));
        self.check_versions(registry.as_deref())?;
        self.set_objects(file, objects, registry);
        Ok(())
    }

    /// Checks that a type of users' own whose objects were written by another version has a `migrate` for
    /// them.
    fn check_versions(&self, newer: Option<&Registry>) -> Result<(), ServeError> {
        let before = self.engine.objects();
        let types = |registry: Option<&Registry>| registry.and_then(Registry::host).cloned();
        let (Some(before), Some(newer)) = (types(before.as_deref()), types(newer)) else { return Ok(()) };
        let usage = self.engine.objects_usage();
        let has_objects = |id: u16| usage.types.get(&id).is_some_and(|own| own.items > 0);
        let lines = unread_versions(before.types(), newer.types(), has_objects);
        if lines.is_empty() { Ok(()) } else { Err(ServeError::Objects(lines.join("\n"))) }
    }

    /// Replaces the types of objects: switches some on and others off.
    fn set_objects(
        &self,
        rule_file: Option<RuleFile>,
        objects: Option<Objects>,
        registry: Option<Arc<Registry>>,
    ) {
        if let Some(objects) = &objects {
            log::lines(log::Level::Warning, objects.warns(rule_file.as_ref()).join("\n"));
            log_own_types(objects);
        }
        let before = self.engine.objects();
        let usage = self.engine.objects_usage();
        let of_before: Vec<_> = before.iter().flat_map(|before| before.types()).collect();
        let now: Vec<_> = registry.iter().flat_map(|registry| registry.types()).collect();
        let has_objects = |id: u16| usage.types.get(&id).is_some_and(|own| own.items > 0);
        log::lines(log::Level::Warning, removed_types(&of_before, &now, has_objects).join("\n"));
        self.engine.set_objects(registry);
        *self.in_force() = InForce { rule_file, objects };
    }
}

/// A line for each type whose objects are removed when `now` replaces `before`; users' own types come first.
fn removed_types(
    before: &[&ObjectType],
    now: &[&ObjectType],
    has_objects: impl Fn(u16) -> bool,
) -> Vec<String> {
    let is_gone = |one: &&&ObjectType| now.iter().all(|other| other.id != one.id) && has_objects(one.id);
    let mut gone: Vec<_> = before.iter().filter(is_gone).collect();
    gone.sort_by_key(|one| native::TYPES.iter().any(|shipped| shipped.id == one.id));
    let line = |one: &&&ObjectType| {
        let is_replaced = now.iter().any(|other| other.name == one.name);
        let what = if is_replaced { "another type now" } else { "switched off" };
        format!("objects: {} is {what}, and its objects are removed", one.name)
    };
    gone.iter().map(line).collect()
}

/// A line for each type whose objects a newer version of its source could not read.
fn unread_versions(
    before: &[HostType],
    newer: &[HostType],
    has_objects: impl Fn(u16) -> bool,
) -> Vec<String> {
    let line = |one: &HostType| {
        let id = one.object_type.id;
        let old = before.iter().find(|old| old.object_type.id == id)?;
        let is_unread = old.version != one.version && !one.migrates && has_objects(id);
        is_unread.then(|| {
            let (name, old, new) = (one.object_type.name, old.version, one.version);
            format!("objects: {name} is of version {new} and has no migrate for its objects of version {old}: add migrate, or remove them first by flush_all or drop")
        })
    };
    newer.iter().filter_map(line).collect()
}

/// Logs which types of users' own were loaded.
pub(crate) fn log_own_types(objects: &Objects) {
    let (Some(own), Some(dir)) = (&objects.own, &objects.dir) else { return };
    let (names, libraries) = (own.names(), &own.libraries);
    let for_require =
        if libraries.is_empty() { String::new() } else { format!("; for require: {}", libraries.join(", ")) };
    let types = if names.len() == 1 { "type" } else { "types" };
    log::notice(format_args!(
        "objects: {} {types} of your own loaded from {}: {}{for_require}",
        names.len(),
        dir.display(),
        names.join(", ")
    ));
}

#[cfg(test)]
mod tests {
    use cattlegrid_config::{Command, parse_args};

    #[test]
    fn a_reload_takes_the_rules_whole_or_not_at_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("[[rule]]\nmatch = \"a:{b}\"\n");
        let Ok(Command::Serve(settings)) = parse_args(["--config", path, "-m", "16"]) else {
            panic!("options")
        };
        let shared = crate::shared::build::alone(*settings);
        let patterns = || -> Vec<String> {
            let rules = shared.engine.shared().rules();
            let rules = rules.as_ref().unwrap().rules();
            rules.rules().iter().map(|rule| rule.pattern.text().to_owned()).collect()
        };
        assert_eq!(patterns(), ["a:{b}"]);

        write("[[rule]]\nmatch = \"c\"\n[[rule]]\nmatch = \"a:{b}\"\n");
        shared.reload(|| {}, || true).unwrap();
        assert_eq!(patterns(), ["c", "a:{b}"]);

        write("[[rule]]\nmatch = \"d\"\n[[rule]]\nmatch = \"{b\"\n");
        let error = shared.reload(|| {}, || true).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{path}:4: rule {{b: match")), "{error}");
        assert_eq!(patterns(), ["c", "a:{b}"]);

        std::fs::remove_file(file.path()).unwrap();
        assert!(shared.reload(|| {}, || true).unwrap_err().to_string().contains("cannot be read"));
        assert_eq!(patterns(), ["c", "a:{b}"]);
    }
}
