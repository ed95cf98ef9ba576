//! `[objects]`, `[objects.TYPE]` and `--objects`: which types of objects are switched on, and how they behave.
//!
//! What a table says is judged in two steps. What needs only the file is a problem with its line, and the registry of the
//! types is tried with it, so that `check` says what the server would say. What depends on other settings (the memory, the
//! prefix of control keys, `--objects` in place of the table) follows when these are known, at the start and at a reload.
//!
//! # Invariants
//! * [`Objects`] is accepted by `Registry::new`.
//! * A directory that has scripts is refused, never ignored: this version would not run them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_engine::rules::Rule;
use cattlegrid_objects::{Named, Registry, Settings as Registered, TypeSettings, native};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::UsageError;
use crate::loaders::directory;
use crate::object_keys::{OBJECT_TYPE, OBJECTS};
use crate::problems::{Problems, line_of, nearest};
use crate::rule_file::RuleFile;
use crate::rules::{read_key, read_table};
use crate::settings::Settings;
use crate::value::{Text, show_size};

/// The types of objects that are switched on, with all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objects {
    /// `dir` or `--objects`: a directory without scripts. Absolute if the rule file names it.
    pub dir: Option<PathBuf>,
    /// What the registry is made of, which has accepted it.
    pub settings: Registered,
}

impl Objects {
    /// The types that are switched on.
    ///
    /// # Panics
    /// When `settings` were changed, and the registry does not take them.
    pub fn registry(&self) -> Registry {
        Registry::new(self.settings.clone()).expect("it was tried when the settings were read")
    }

    /// A line for each rule that means calls of methods, to which no rule applies.
    pub fn warns_of_rules(&self, file: &RuleFile) -> Vec<String> {
        let registry = self.registry();
        let warning = |rule: &Arc<Rule>| {
            let pattern = rule.pattern.text();
            let literal = pattern.split('{').next().filter(|literal| literal.ends_with(':'))?;
            let Named::Call(name) = registry.named(literal.as_bytes())? else { return None };
            let object = registry.object_name(name.type_id, b"{key}")?;
            Some(format!(
                "rule {pattern}: has no effect on calls of methods; name the objects, such as {}",
                String::from_utf8_lossy(&object)
            ))
        };
        file.rules.rules().iter().filter_map(warning).collect()
    }
}

/// `[objects]` as it is being read.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectsDraft {
    pub(crate) dir: Option<Text>,
    pub(crate) types: Option<Vec<Text>>,
    pub(crate) prefix: String,
    pub(crate) pinned_bytes: Option<usize>,
    pub(crate) timezone: Option<Text>,
    pub(crate) json_flags: u32,
    pub(crate) compat: bool,
    /// `[objects.TYPE]`, with where each is.
    own: Vec<(usize, TypeSettings)>,
}

/// `[objects]` as it was read: what is left depends on other settings.
#[derive(Debug, Clone)]
pub(crate) struct ObjectsSection {
    dir: Option<PathBuf>,
    pinned_bytes: Option<usize>,
    /// With defaults where other settings decide.
    settings: Registered,
}

/// A key other than `tags` of a rule for objects of a type.
#[derive(Debug, Clone)]
pub(crate) struct ObjectRule {
    object_type: &'static str,
    pub(crate) offset: usize,
    line: usize,
    pub(crate) problem: String,
}

/// The table at `offset` of the rule file at `path`. One with problems has defaults where they are.
pub(crate) fn read_objects(
    offset: usize,
    table: &DeTable<'_>,
    path: &Path,
    problems: &mut Problems,
) -> ObjectsSection {
    let mut draft = ObjectsDraft::default();
    for (key, value) in table {
        let name = &**key.get_ref();
        if let Some(row) = OBJECTS.iter().map(|key| &key.row).find(|row| row.name == name) {
            read_key(row, key, value, "[objects]", &mut draft, problems);
        } else if let DeValue::Table(own) = value.get_ref() {
            read_type(name, key.span().start, own, &mut draft, problems);
        } else {
            let known = crate::keys::usable(OBJECTS).map(|key| key.row.name);
            problems.unknown(key.span().start, "[objects]", name, known);
        }
    }
    let dir = draft.dir.as_ref().and_then(|dir| {
        let found = directory(path, Some(dir)).and_then(|found| check_scripts(&found).map(|()| found));
        if let Err(problem) = &found {
            problems.add(dir.offset, format!("[objects]: dir {:?}: {problem}", dir.text));
        }
        found.ok()
    });
    let settings = registered(offset, table, &draft, problems);
    ObjectsSection { dir, pinned_bytes: draft.pinned_bytes, settings }
}

/// `[objects.TYPE]`.
fn read_type(
    name: &str,
    offset: usize,
    table: &DeTable<'_>,
    draft: &mut ObjectsDraft,
    problems: &mut Problems,
) {
    let mut own = TypeSettings::new(name);
    read_table(OBJECT_TYPE, &format!("[objects.{name}]"), table, &mut own, problems);
    draft.own.push((offset, own));
}

/// What the registry is made of; each type is tried alone, so that its problems have its line.
fn registered(
    offset: usize,
    table: &DeTable<'_>,
    draft: &ObjectsDraft,
    problems: &mut Problems,
) -> Registered {
    let all = || native::TYPES.iter().map(|one| one.name);
    let mut names: Vec<&str> = all().collect();
    if let Some(given) = &draft.types {
        names.clear();
        for (index, name) in given.iter().enumerate() {
            if !all().any(|own| own == name.text) {
                let near = nearest(&name.text, all());
                problems.add(name.offset, format!("[objects]: types {:?}: is unknown; {near}", name.text));
            } else if given[..index].iter().any(|earlier| earlier.text == name.text) {
                problems.add(name.offset, format!("[objects]: types {:?}: is there twice", name.text));
            } else {
                names.push(&name.text);
            }
        }
        if given.is_empty() && table.get("types").is_some_and(|value| value.get_ref().is_array()) {
            problems.add(offset, "[objects]: types names none; leave it out for all");
        }
    }
    let mut base = Registered {
        types: Vec::new(),
        prefix: draft.prefix.clone().into_bytes(),
        json_flags: draft.json_flags,
        compat: draft.compat,
        ..Registered::default()
    };
    if let Some(zone) = &draft.timezone {
        let tried = Registered { timezone: zone.text.clone(), ..base.clone() };
        match Registry::new(tried) {
            Ok(_) => base.timezone.clone_from(&zone.text),
            Err(problem) => problems.add(zone.offset, problem),
        }
    }
    for (offset, own) in &draft.own {
        let problem = if !all().any(|name| name == own.name) {
            let near = nearest(&own.name, all());
            Some(format!("[objects.{}]: there is no such type; {near}", own.name))
        } else if !names.contains(&own.name.as_str()) {
            Some(format!(
                "[objects.{}]: types does not name it; add it there or leave the table out",
                own.name
            ))
        } else {
            Registry::new(Registered { types: vec![own.clone()], ..base.clone() }).err()
        };
        if let Some(problem) = problem {
            problems.add(*offset, problem);
        }
    }
    let of_type = |name: &&str| {
        let given = draft.own.iter().find(|(_, own)| own.name == **name);
        given.map_or_else(|| TypeSettings::new(name), |(_, own)| own.clone())
    };
    base.types = names.iter().map(of_type).collect();
    base
}

/// Types of one's own are not part of this version, and must not be taken for granted.
fn check_scripts(dir: &Path) -> Result<(), String> {
    let cannot = |error| format!("{} cannot be read: {error}", dir.display());
    for entry in dir.read_dir().map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let is_script = path.extension().is_some_and(|end| end == "luau" || end == "lua");
        if is_script {
            return Err(format!(
                "has {}: types of your own are not part of this version; leave the file out",
                path.file_name().unwrap_or_default().display()
            ));
        }
    }
    Ok(())
}

/// The rules of `tables` whose pattern begins with the name of a type's objects, after `prefix`, and that say more than tags.
pub(crate) fn rules_beyond_tags(
    tables: &[(usize, &DeTable<'_>)],
    prefix: &str,
    text: &str,
) -> Vec<ObjectRule> {
    let mut found = Vec::new();
    for (_, table) in tables {
        let Some(pattern) = table.get("match").map(Spanned::get_ref).and_then(DeValue::as_str) else {
            continue;
        };
        let Some(object) = pattern.strip_prefix(prefix) else { continue };
        let is_of = |name: &str| object.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"));
        let Some(object_type) = native::TYPES.iter().map(|one| one.name).find(|name| is_of(name)) else {
            continue;
        };
        for (key, _) in *table {
            let name = &**key.get_ref();
            if matches!(name, "match" | "tags") {
                continue;
            }
            let offset = key.span().start;
            let line = line_of(text, offset);
            let problem = format!(
                "rule {pattern}: {name}: does nothing for objects, which have only tags; leave it out"
            );
            found.push(ObjectRule { object_type, offset, line, problem });
        }
    }
    found
}

impl ObjectRule {
    /// Whether it is wrong: its type is switched on.
    pub(crate) fn is_wrong(&self, settings: &Registered) -> bool {
        settings.types.iter().any(|own| own.name == self.object_type)
    }
}

impl ObjectsSection {
    /// What the registry is made of, as far as the file alone says.
    pub(crate) fn settings(&self) -> &Registered {
        &self.settings
    }
}

impl Settings {
    /// The objects of a server of these settings under the rule file `file`; None: they are switched off.
    ///
    /// # Errors
    /// What does not fit the settings; `--objects` names no directory, or one with scripts; a rule says more of objects than
    /// their tags.
    pub fn objects_under(&self, file: Option<&RuleFile>) -> Result<Option<Objects>, UsageError> {
        let section = file.and_then(|file| file.objects.as_ref());
        if section.is_none() && self.objects_dir.is_none() {
            return Ok(None);
        }
        let mut dir = section.and_then(|section| section.dir.clone());
        if let Some(given) = &self.objects_dir {
            let text = Text { text: given.to_string_lossy().into_owned(), offset: 0 };
            let found = directory(Path::new(""), Some(&text));
            let found = found.and_then(|found| check_scripts(&found).map(|()| found));
            let wrong = |problem| UsageError::new(format!("--objects {}: {problem}", given.display()));
            dir = Some(found.map_err(wrong)?);
        }
        let pinned_max = section.and_then(|section| section.pinned_bytes).unwrap_or(self.memory_bytes / 16);
        if pinned_max > self.memory_bytes / 2 {
            return Err(UsageError::new(format!(
                "[objects]: pinned_max {:?}: is above half of the memory (-m {}); lower it or raise -m",
                show_size(pinned_max as u64),
                self.memory_bytes >> 20
            )));
        }
        let settings = section.map_or_else(Registered::default, |section| section.settings.clone());
        let settings = Registered { pinned_max, result_max: self.item_bytes_max, ..settings };
        if let Some(file) = file {
            check_control(&settings, &self.protection.control)?;
            let wrong = file.object_rules.iter().find(|rule| rule.is_wrong(&settings));
            if let Some(ObjectRule { line, problem, .. }) = wrong {
                return Err(UsageError::new(format!("{}:{line}: {problem}", file.path.display())));
            }
        }
        Ok(Some(Objects { dir, settings }))
    }
}

/// Control keys are recognised before names of calls: neither may look like the other.
fn check_control(settings: &Registered, control: &str) -> Result<(), UsageError> {
    let prefix = String::from_utf8_lossy(&settings.prefix);
    let is_like = |name: &str| name.starts_with(control) || control.starts_with(name);
    if control.is_empty() {
        return Ok(());
    }
    if !prefix.is_empty() && is_like(&prefix) {
        return Err(UsageError::new(format!(
            "[objects]: prefix {prefix:?}: control keys begin with {control:?} ([server] control); choose another one"
        )));
    }
    let mut names = settings.types.iter().map(|own| format!("{prefix}{}:", own.name));
    match names.find(|name| is_like(name)) {
        Some(name) => Err(UsageError::new(format!(
            "[objects]: names that begin with {name:?} would be control keys, which begin with {control:?} ([server] \
             control); choose another one of them"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
