//! `[objects]`, `[objects.TYPE]` and `--objects`: the types of objects that are switched on, and their
//! settings.
//!
//! A table is checked in two steps. Mistakes that the file alone shows are problems with a line: the sources
//! of its directory are loaded, and the registry of types is made. Mistakes that depend on other settings
//! (the memory, the prefix of control keys, `--objects` instead of `dir`) are found when these are known, at
//! the start and at a reload; then the tests of the types are run, which depend on them too. `check` does
//! both, so that it reports the same errors as the server.
//!
//! # Invariants
//! * [`Objects`] is accepted by `Registry::with_host`.
//! * A directory with scripts is loaded or refused, never ignored.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cattlegrid_engine::rules::Rule;
use cattlegrid_objects::{
    Eviction, ObjectType, Registry, Settings as Registered, TypeSettings, VirtualKey, native,
};
use cattlegrid_tags::PrefixId;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::UsageError;
use crate::loaders::directory;
use crate::object_keys::{OBJECT_TYPE, OBJECTS};
use crate::own_types::{OwnTypes, ScriptLimits, TypeLoader, WITHOUT};
use crate::problems::{Problems, line_of, nearest};
use crate::rule_file::RuleFile;
use crate::rules::{read_key, read_table};
use crate::settings::Settings;
use crate::value::{TextValue, show_size};

/// The types of objects that are switched on, with all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objects {
    /// The directory of `dir` or `--objects`; absolute if it is from the rule file.
    pub dir: Option<PathBuf>,
    /// The settings of the registry, which has accepted them.
    pub settings: Registered,
    /// The types of the directory; None: it has no scripts.
    pub own: Option<OwnTypes>,
    /// The result of [`OwnTypes::look`] before the directory was read; 0: there is no directory.
    pub seen: u64,
    /// The limits of their methods.
    pub limits: ScriptLimits,
    /// Whether the directory is watched for changes.
    pub watch: bool,
    /// Whether this program has scripts, so that there can be users' own types.
    pub(crate) has_scripts: bool,
}

impl Objects {
    /// The types that are switched on.
    ///
    /// # Panics
    /// If `settings` were changed so that the registry refuses them.
    pub fn registry(&self) -> Registry {
        registry(self.settings.clone(), self.own.as_ref()).expect("it was tried when the settings were read")
    }

    /// The settings of the server of a test of types, which has 64 MiB of memory, or more for longer items.
    pub fn tested(&self) -> Registered {
        let pinned_max = self.settings.pinned_max.min(TESTED_BYTES / 2);
        Registered { pinned_max, ..self.settings.clone() }
    }

    /// Warnings, a line each: of the sources, and of rules whose pattern means calls of methods.
    pub fn warns(&self, file: Option<&RuleFile>) -> Vec<String> {
        let of_sources = self.own.as_ref().map_or(&[][..], |own| &own.warnings);
        let of_rules = file.map_or_else(Vec::new, |file| self.warns_of_rules(file));
        of_sources.iter().cloned().chain(of_rules).collect()
    }

    /// The value of a key for users' own types; None: this program has no scripts.
    pub(crate) fn of_own_types(&self, value: String) -> Option<String> {
        self.has_scripts.then_some(value)
    }

    /// A warning for each rule whose pattern means calls of methods, to which no rule applies.
    fn warns_of_rules(&self, file: &RuleFile) -> Vec<String> {
        let registry = self.registry();
        let warning = |rule: &Arc<Rule>| {
            let pattern = rule.pattern.text();
            let literal = pattern.split('{').next().filter(|literal| literal.ends_with(':'))?;
            let VirtualKey::Call(name) = registry.named(literal.as_bytes())? else { return None };
            let object = registry.object_name(name.type_id, b"{key}")?;
            Some(format!(
                "rule {pattern}: has no effect on calls of methods; name the objects, such as {}",
                String::from_utf8_lossy(&object)
            ))
        };
        file.rules.rules().iter().filter_map(warning).collect()
    }
}

fn registry(settings: Registered, own: Option<&OwnTypes>) -> Result<Registry, String> {
    Registry::with_host(settings, own.map(|own| Arc::clone(&own.host)))
}

/// `[objects]` as it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectsDraft {
    has_scripts: bool,
    pub(crate) dir: Option<TextValue>,
    pub(crate) types: Option<Vec<TextValue>>,
    pub(crate) prefix: String,
    pub(crate) pinned_bytes: Option<usize>,
    pub(crate) timezone: Option<TextValue>,
    pub(crate) json_flags: u32,
    pub(crate) compat: bool,
    pub(crate) limits: ScriptLimits,
    pub(crate) watch: bool,
    /// The tables `[objects.TYPE]`.
    of_types: Vec<TypeTable>,
}

impl ObjectsDraft {
    /// Sets a key for users' own types.
    ///
    /// # Errors
    /// This program has no scripts.
    pub(crate) fn of_own_types(&mut self, set: impl FnOnce(&mut Self)) -> Result<(), String> {
        if !self.has_scripts {
            return Err(format!("is for types of your own; {WITHOUT}"));
        }
        set(self);
        Ok(())
    }
}

/// `[objects.TYPE]` as it was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct TypeTable {
    name: String,
    offset: usize,
    pub(crate) evict: Option<Eviction>,
    pub(crate) ttl_s: Option<u32>,
    pub(crate) create: Option<Vec<Vec<u8>>>,
}

/// `[objects]` with the types of its directory, before other settings are considered.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectsSection {
    offset: usize,
    draft: ObjectsDraft,
    dir: Option<PathBuf>,
    /// Whether the types are from a directory outside of the file.
    is_given: bool,
    /// The line of `dir` in the file.
    dir_line: usize,
    own: Option<OwnTypes>,
    /// The digest of the directory, as in [`Objects::seen`].
    seen: u64,
    /// The settings of the registry, with defaults where other settings decide.
    settings: Registered,
}

/// A directory of types from an option.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TypesDir<'d> {
    /// The directory replaces `dir`, which is not read.
    InPlaceOfDir(&'d Path),
    /// The directory is used if the file has no `dir`.
    WithoutDir(&'d Path),
}

impl<'d> TypesDir<'d> {
    /// The directory that replaces `dir`.
    pub(crate) fn in_place_of_dir(self) -> Option<&'d Path> {
        match self {
            Self::InPlaceOfDir(given) => Some(given),
            Self::WithoutDir(_) => None,
        }
    }
}

/// A rule for objects of a type that has another key than `tags`.
#[derive(Debug, Clone)]
pub(crate) struct ObjectRule {
    object_type: String,
    pub(crate) offset: usize,
    line: usize,
    pub(crate) problem: String,
}

/// Reads the table at `offset` of the rule file at `path`, whose text is `text`. Where it has a problem it
/// gets defaults.
pub(crate) fn read_objects(
    offset: usize,
    table: &DeTable<'_>,
    (path, text): (&Path, &str),
    (given, types): (Option<TypesDir<'_>>, &dyn TypeLoader),
    problems: &mut Problems,
) -> ObjectsSection {
    let mut draft = ObjectsDraft { has_scripts: types.has_scripts(), ..ObjectsDraft::default() };
    for (key, value) in table {
        let name = &**key.get_ref();
        if let Some(row) = OBJECTS.iter().map(|key| &key.row).find(|row| row.name == name) {
            read_key(row, key, value, "[objects]", &mut draft, problems);
        } else if let DeValue::Table(own) = value.get_ref() {
            let mut of_type =
                TypeTable { name: name.to_owned(), offset: key.span().start, ..TypeTable::default() };
            read_table(OBJECT_TYPE, &format!("[objects.{name}]"), own, &mut of_type, problems);
            draft.of_types.push(of_type);
        } else {
            let known = crate::keys::usable(OBJECTS).map(|key| key.row.name);
            problems.unknown(key.span().start, "[objects]", name, known);
        }
    }
    let mut section = ObjectsSection { offset, draft, ..ObjectsSection::default() };
    let given = given.and_then(|given| match given {
        TypesDir::WithoutDir(_) if section.draft.dir.is_some() => None,
        TypesDir::WithoutDir(given) | TypesDir::InPlaceOfDir(given) => Some(given),
    });
    if let Some(given) = given {
        if section.load(Path::new(""), &given_text(given), types).is_ok() {
            section.is_given = true;
            section.settings = section.resolve(problems);
        } else {
            // Problems of the directory are reported for its key. Tables of its types would fail only for the
            // same reason.
            section.settings.types.clear();
        }
        return section;
    }
    let Some(dir) = section.draft.dir.clone() else {
        section.settings = section.resolve(problems);
        return section;
    };
    let mut wrong = |problem: &str| {
        problems.add(dir.offset, format!("[objects]: dir {:?}: {problem}", dir.text));
    };
    if let Err(all) = section.load(path, &dir, types) {
        // Tables of its types would fail only for the same reason.
        for problem in &all {
            wrong(problem);
        }
        return section;
    }
    section.dir_line = line_of(text, dir.offset);
    section.settings = section.resolve(problems);
    section
}

impl ObjectsSection {
    /// The settings of the registry, with the types of the directory. Each type is tried alone, so that its
    /// problems have its line.
    fn resolve(&self, problems: &mut Problems) -> Registered {
        let (draft, own) = (&self.draft, self.own.as_ref());
        let own_types = || own.into_iter().flat_map(|own| own.host.types());
        let of_host = |name: &str| own_types().find(|one| one.object_type.name == name);
        let all: Vec<&str> = native::TYPES
            .iter()
            .map(|one| one.name)
            .chain(own_types().map(|one| one.object_type.name).filter(|name| !is_shipped(name)))
            .collect();
        let all = || all.iter().copied();
        let mut names: Vec<&str> = all().collect();
        if let Some(given) = &draft.types {
            names.clear();
            for (index, name) in given.iter().enumerate() {
                if !all().any(|own| own == name.text) {
                    let near = nearest(&name.text, all());
                    problems
                        .add(name.offset, format!("[objects]: types {:?}: is unknown; {near}", name.text));
                } else if given[..index].iter().any(|earlier| earlier.text == name.text) {
                    problems.add(name.offset, format!("[objects]: types {:?}: is there twice", name.text));
                } else {
                    names.push(&name.text);
                }
            }
            if given.is_empty() {
                problems.add(self.offset, "[objects]: types names none; leave it out for all");
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
        let of_type = |name: &str| {
            let said = of_host(name).map_or_else(|| TypeSettings::new(name), |one| one.settings.clone());
            let given = draft.of_types.iter().find(|own| own.name == name);
            given.map_or_else(|| said.clone(), |given| given.over_source(said.clone()))
        };
        for own_table in &draft.of_types {
            let name = own_table.name.as_str();
            let problem = if !all().any(|known| known == name) {
                let near = nearest(name, all());
                Some(format!("[objects.{name}]: there is no such type; {near}"))
            } else if !names.contains(&name) {
                Some(format!("[objects.{name}]: types does not name it; add it there or leave the table out"))
            } else if let (Some(of_host), Some(create)) = (of_host(name), &own_table.create) {
                check_create(of_host.object_type, create)
            } else {
                registry(Registered { types: vec![of_type(name)], ..base.clone() }, own).err()
            };
            if let Some(problem) = problem {
                problems.add(own_table.offset, problem);
            }
        }
        base.types = names.iter().map(|name| of_type(name)).collect();
        base
    }

    /// Loads the types of the directory `dir` of the rule file at `path`.
    ///
    /// # Errors
    /// The mistakes in the sources; no type is loaded.
    fn load(&mut self, path: &Path, dir: &TextValue, types: &dyn TypeLoader) -> Result<(), Vec<String>> {
        let found = directory(path, Some(dir)).map_err(|problem| vec![problem])?;
        // The digest is taken first, so that a change while files are read is noticed.
        self.seen = OwnTypes::look(&found);
        self.own = types.load(&found, self.draft.limits)?;
        self.dir = Some(found);
        Ok(())
    }

    /// Whether the table has a directory that is used.
    pub(crate) fn has_dir(&self) -> bool {
        self.dir.is_some() && !self.is_given
    }

    /// The settings of the registry, as far as the file alone decides.
    pub(crate) fn settings(&self) -> &Registered {
        &self.settings
    }
}

impl TypeTable {
    /// The settings of the source, overridden by those of the table.
    fn over_source(&self, said: TypeSettings) -> TypeSettings {
        TypeSettings {
            evict: self.evict.unwrap_or(said.evict),
            ttl_s: self.ttl_s.unwrap_or(said.ttl_s),
            create: self.create.clone().or(said.create),
            ..said
        }
    }
}

fn is_shipped(name: &str) -> bool {
    native::TYPES.iter().any(|one| one.name == name)
}

/// Why `new` of a type cannot be called with these arguments; types of users' own check them when it is
/// called.
fn check_create(object_type: &ObjectType, create: &[Vec<u8>]) -> Option<String> {
    let wrong = |problem: &str| Some(format!("[objects.{}]: create: {problem}", object_type.name));
    let Some(new) = object_type.methods.iter().find(|method| method.name == "new") else {
        return wrong("the type has no method new");
    };
    let (least, most) = new.arguments;
    if (least..=most).contains(&create.len()) {
        return None;
    }
    wrong(&if new.usage.is_empty() {
        "new takes no arguments".to_owned()
    } else {
        format!("new takes {}", new.usage)
    })
}

/// The rules in `tables` for objects of a type, after `prefix`, that have other keys than tags.
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
        // Whether this type exists is known later.
        let Some((object_type, _)) = object.split_once("::").filter(|(name, _)| !name.contains([':', '{']))
        else {
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
            let object_type = object_type.to_owned();
            found.push(ObjectRule { object_type, offset, line, problem });
        }
    }
    found
}

impl ObjectRule {
    /// Whether the rule is a mistake, since its type is switched on.
    pub(crate) fn is_wrong(&self, settings: &Registered) -> bool {
        settings.types.iter().any(|own| own.name == self.object_type)
    }
}

impl Settings {
    /// The objects of a server with these settings under the rule file `file`; None: they are switched off.
    /// The directory of `--objects` is read, and the tests of the types are run.
    ///
    /// # Errors
    /// The table does not fit the settings; `--objects` is not a directory, or its sources cannot be used; a
    /// test fails; or a rule for objects has other keys than tags.
    pub fn objects_under(&self, file: Option<&RuleFile>) -> Result<Option<Objects>, UsageError> {
        self.objects_of(file, false)
    }

    /// The objects with the present sources; the rule file is not read again.
    ///
    /// # Errors
    /// Those of [`Settings::objects_under`].
    pub fn objects_again(&self, file: Option<&RuleFile>) -> Result<Option<Objects>, UsageError> {
        self.objects_of(file, true)
    }

    fn objects_of(&self, file: Option<&RuleFile>, again: bool) -> Result<Option<Objects>, UsageError> {
        let of_dir = |dir: &Path| format!("[objects]: dir {}", dir.display());
        let (section, label) = match (file.and_then(|file| file.objects.clone()), &self.objects_dir) {
            (None, None) => return Ok(None),
            (section, Some(given)) => {
                let label = format!("--objects {}", given.display());
                match section {
                    Some(section) if section.is_given && !again => (section, label),
                    section => (section.unwrap_or_default().with_dir(given, &label, self.types)?, label),
                }
            }
            (Some(ObjectsSection { dir: Some(dir), draft, offset, .. }), None) if again => {
                let section = ObjectsSection { offset, draft, ..ObjectsSection::default() };
                (section.with_dir(&dir, &of_dir(&dir), self.types)?, of_dir(&dir))
            }
            (Some(section), None) => {
                let label = match (&section.draft.dir, file) {
                    (Some(dir), Some(file)) if section.has_dir() => {
                        let (path, line) = (file.path.display(), section.dir_line);
                        format!("{path}:{line}: [objects]: dir {:?}", dir.text)
                    }
                    _ => of_dir(section.dir.as_deref().unwrap_or(Path::new(""))),
                };
                (section, label)
            }
        };
        let ObjectsSection { draft, dir, own, seen, settings, .. } = section;
        let pinned_max = draft.pinned_bytes.unwrap_or(self.memory_bytes / 16);
        if pinned_max > self.memory_bytes / 2 {
            return Err(UsageError::new(format!(
                "[objects]: pinned_max {:?}: is above half of the memory (-m {}); lower it or raise -m",
                show_size(pinned_max as u64),
                self.memory_bytes >> 20
            )));
        }
        let prefixes = self.protection.prefixes.clone();
        let settings = Registered { pinned_max, prefixes, result_max: self.item_bytes_max, ..settings };
        if let Some(file) = file {
            check_control(&settings, &self.protection.control)?;
            let wrong = file.object_rules.iter().find(|rule| rule.is_wrong(&settings));
            if let Some(ObjectRule { line, problem, .. }) = wrong {
                return Err(UsageError::new(format!("{}:{line}: {problem}", file.path.display())));
            }
        }
        let has_scripts = self.types.has_scripts();
        let (limits, watch) = (draft.limits, draft.watch);
        let objects = Objects { dir, settings, own, seen, limits, watch, has_scripts };
        if let Some(own) = &objects.own {
            // Without a rule file there are no control keys.
            let control = file.map_or("", |_| &self.protection.control);
            own.tests.run(&objects.tested(), control).map_err(|problems| wrong_dir(&label, &problems))?;
        }
        Ok(Some(objects))
    }
}

impl ObjectsSection {
    /// Adds the types of a directory; `label` names it in messages.
    ///
    /// # Errors
    /// The sources cannot be used.
    fn with_dir(mut self, given: &Path, label: &str, types: &dyn TypeLoader) -> Result<Self, UsageError> {
        let loaded = self.load(Path::new(""), &given_text(given), types);
        loaded.map_err(|problems| wrong_dir(label, &problems))?;
        let mut problems = Problems::default();
        self.settings = self.resolve(&mut problems);
        if !problems.is_empty() {
            return Err(UsageError::new(problems.texts().join("\n")));
        }
        Ok(self)
    }
}

/// A directory in the form of a rule file's value.
fn given_text(given: &Path) -> TextValue {
    TextValue { text: given.to_string_lossy().into_owned(), offset: 0 }
}

/// The error of a directory; `label` names it.
fn wrong_dir(label: &str, problems: &[String]) -> UsageError {
    let line = |problem: &String| format!("{label}: {problem}");
    UsageError::new(problems.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Checks that control keys and names of calls cannot be mistaken for each other: control keys are recognised
/// first.
fn check_control(settings: &Registered, control: &str) -> Result<(), UsageError> {
    let prefix = String::from_utf8_lossy(&settings.prefix);
    let is_like = |name: &str| name.starts_with(control) || control.starts_with(name);
    let behind = |name: &str| settings.prefixes.split(name.as_bytes()).0 != PrefixId::NONE;
    if let Some(name) =
        settings.types.iter().map(|own| format!("{prefix}{}:", own.name)).find(|name| behind(name))
    {
        return Err(UsageError::new(format!(
            "[objects]: names that begin with {name:?} begin with one of [server] prefixes, which is taken off first; leave that prefix \
             or [objects] prefix out: behind a prefix of the server, clients call {:?}",
            format!("PREFIX{}:METHOD:KEY", settings.types.first().map_or("TYPE", |own| &own.name))
        )));
    }
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

/// The memory of the server of a test of types, unless two of the longest items need more.
const TESTED_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests;
