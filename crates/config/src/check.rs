//! `cattlegrid check`: explains a rule file.

use std::fmt::Write as _;
use std::path::Path;

use cattlegrid_engine::rules::{Captures, Cascade, Change, Pattern, Rule};
use cattlegrid_objects::{Registry, VirtualKey};

use crate::error::ConfigError;
use crate::follow_keys::{FOLLOW, FOLLOW_TABLE};
use crate::keys::{self, TableKey};
use crate::object_keys::{OBJECT_TYPE, OBJECTS};
use crate::objects::Objects;
use crate::origins;
use crate::own_types::TypeLoader;
use crate::rule_file::RuleFile;
use crate::settings::Settings;
use crate::trial::KEY_BYTES_MAX;
use crate::users::USER;

/// Checks the file at `path`. The result is the file with all defaults, as a rule file; with `key`, a
/// description of what applies to that key. `types` loads users' own types.
///
/// # Errors
/// The mistakes in the file, or the server's objections to the settings if it were started with this file
/// alone.
pub fn check(path: &Path, key: Option<&str>, types: &'static dyn TypeLoader) -> Result<String, ConfigError> {
    explain(&RuleFile::load(path, types)?, key)
}

/// Explains a file that was read, as [`check`] does.
///
/// # Errors
/// The server's objections to the settings if it were started with only the file.
pub fn explain(file: &RuleFile, key: Option<&str>) -> Result<String, ConfigError> {
    let settings = file.settings().map_err(|error| ConfigError::of(&file.path, error))?;
    if let Some(key) = key.filter(|key| !is_key(key)) {
        let problem = format_args!(
            "--key {key:?}: cannot be a key, which has 1 to {KEY_BYTES_MAX} bytes without blanks"
        );
        return Err(ConfigError::one(&file.path, problem));
    }
    Ok(key.map_or_else(|| as_toml(file, &settings), |key| of_key(file, settings.objects.as_ref(), key)))
}

/// The parameters of a rule, including defaults and derived ones: each key that has a meaning in the rule,
/// and its value as a rule file has it.
pub fn parameters(rule: &Rule) -> Vec<(&'static str, String)> {
    let shown = keys::RULE.iter().filter_map(|key| Some((key.row.name, (key.show)(rule)?)));
    shown.collect()
}

/// Whether clients can send this key.
fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.contains(|c: char| c == ' ' || c.is_ascii_control())
}

/// The file with all defaults, as a rule file.
fn as_toml(file: &RuleFile, settings: &Settings) -> String {
    let mut text = String::from("[server]\n");
    for (name, said) in file.server.options() {
        write_to(&mut text, format_args!("{name} = {said}\n"));
    }
    write_keys(&mut text, keys::SERVER, &settings.protection);
    for rule in file.rules.rules() {
        text.push_str("\n[[rule]]\n");
        write_keys(&mut text, keys::RULE, &**rule);
    }
    for cascade in file.rules.all_cascades() {
        text.push_str("\n[[cascade]]\n");
        write_keys(&mut text, keys::CASCADE, cascade);
    }
    for share in &file.shares {
        text.push_str("\n[[share]]\n");
        write_keys(&mut text, keys::SHARE, share);
    }
    for user in &file.users {
        text.push_str("\n[[user]]\n");
        write_keys(&mut text, USER, user);
    }
    for loader in &file.loaders {
        write_to(&mut text, format_args!("\n[loader.{}]\n", loader.name));
        write_keys(&mut text, keys::LOADER, loader);
    }
    for follow in &file.follows {
        write_to(&mut text, format_args!("\n[follow.{}]\n", follow.name));
        write_keys(&mut text, FOLLOW, follow);
        for table in follow.tables() {
            write_to(&mut text, format_args!("\n[[follow.{}.table]]\n", follow.name));
            write_keys(&mut text, FOLLOW_TABLE, table);
        }
    }
    let mut warnings = file.warns_of_loaders();
    warnings.extend(file.warns_of_patterns());
    if let Some(objects) = &settings.objects {
        text.push_str("\n[objects]\n");
        write_keys(&mut text, OBJECTS, objects);
        for own in &objects.settings.types {
            write_to(&mut text, format_args!("\n[objects.{}]\n", own.name));
            write_keys(&mut text, OBJECT_TYPE, own);
        }
        warnings.extend(objects.warns(Some(file)));
    }
    if let Err(error) = file.for_server() {
        for line in error.lines() {
            write_to(&mut text, format_args!("\n# for `cattlegrid follow` only: {line}"));
        }
        text.push('\n');
    }
    text.push('\n');
    for line in &warnings {
        write_to(&mut text, format_args!("# warning: {line}\n"));
    }
    write_to(&mut text, format_args!("# ok: {}\n", summary(file, settings, warnings.len())));
    text
}

/// The numbers of rules, loaders and so on: `3 rules, 1 loader`.
fn summary(file: &RuleFile, settings: &Settings, warnings: usize) -> String {
    let types = settings.objects.as_ref().map_or(0, |objects| objects.settings.types.len());
    let counts = [
        (file.rules.rules().len(), "rule", "rules"),
        (file.loaders.len(), "loader", "loaders"),
        (file.follows.len(), "log that is followed", "logs that are followed"),
        (file.rules.all_cascades().count(), "cascade", "cascades"),
        (file.shares.len(), "share", "shares"),
        (file.users.len(), "user with rights", "users with rights"),
        (types, "type of objects", "types of objects"),
        (warnings, "warning", "warnings"),
    ];
    let mut texts = Vec::new();
    for (index, (count, one, many)) in counts.into_iter().enumerate() {
        // Rules are always counted, since it is important to know that there are none.
        if count > 0 || index == 0 {
            texts.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    }
    texts.join(", ")
}

fn write_keys<D, S>(text: &mut String, keys: &[TableKey<D, S>], shown: &S) {
    for key in keys {
        if let Some(value) = (key.show)(shown) {
            write_to(text, format_args!("{} = {value}\n", key.row.name));
        }
    }
}

/// A key's rule, tags and cascades.
fn of_key(file: &RuleFile, objects: Option<&Objects>, key: &str) -> String {
    let mut text = format!("key {key}\n");
    let registry = objects.map(Objects::registry);
    if let Some(registry) = &registry
        && let Some(named) = registry.named(key.as_bytes())
    {
        return text + &of_object(file, registry, &named);
    }
    let (prefix, name) = file.rules.prefixes().split(key.as_bytes());
    if !file.rules.prefixes().text(prefix).is_empty() {
        let behind = String::from_utf8_lossy(file.rules.prefixes().text(prefix));
        write_to(&mut text, format_args!("prefix {behind}: {}\n", String::from_utf8_lossy(name)));
    }
    match file.rules.find(key.as_bytes()) {
        None => text.push_str("no rule\n"),
        Some((rule, captures)) => {
            write_rule(&mut text, file, rule, &captures);
        }
    }
    if let Some((rule, captures)) = file.rules.find_observing(key.as_bytes()) {
        text.push_str("observed, which changes nothing, by ");
        write_rule(&mut text, file, rule, &captures);
    }
    for cascade in file.rules.all_cascades() {
        let changes = Change::ALL.into_iter().filter(|change| cascade.on.has(*change));
        let applies = changes.clone().any(|change| {
            let mut all = file.rules.cascades(key.as_bytes(), change);
            all.any(|(other, _)| std::ptr::eq(other, cascade))
        });
        let (_, name) = file.rules.prefixes().split(key.as_bytes());
        let captures = cascade.pattern.as_ref().and_then(|pattern| pattern.match_key(name));
        if let Cascade { pattern: Some(pattern), bump, .. } = cascade
            && let Some(captures) = captures.filter(|_| applies)
        {
            let names: Vec<&str> = changes.map(Change::name).collect();
            write_to(&mut text, format_args!("cascade on {}: {}\n", names.join(", "), pattern.text()));
            write_captures(&mut text, pattern, &captures);
            for tag in bump {
                write_to(&mut text, format_args!("  bump {}\n", tag.name(&captures)));
            }
        }
    }
    text
}

/// The meaning of a name of objects: the method, the object, and the rule that gives it tags.
fn of_object(file: &RuleFile, registry: &Registry, named: &VirtualKey<'_>) -> String {
    let mut text = String::new();
    let mut buffer = Vec::new();
    let (type_id, object_key) = match named {
        VirtualKey::Object { type_id, key } => (*type_id, &**key),
        VirtualKey::Call(name) => {
            let (object_type, method) = registry.names(name.method);
            let definition = registry.definition(name.method);
            let usage = if definition.usage.is_empty() { "no arguments" } else { definition.usage };
            write_to(&mut text, format_args!("method {object_type}.{method}: takes {usage}"));
            // Replies of a method of users' own are known only when it is called.
            if !definition.replies.is_empty() {
                write_to(&mut text, format_args!("; replies {}", definition.replies));
            }
            text.push('\n');
            if registry.is_about_type(name.method) {
                return text;
            }
            match registry.split(name, &mut buffer) {
                Ok((key, _)) => (name.type_id, key),
                Err(problem) => return text + &problem + "\n",
            }
        }
    };
    let name = registry.object_name(type_id, object_key).unwrap_or_default();
    write_to(&mut text, format_args!("object {}\n", String::from_utf8_lossy(&name)));
    match file.rules.find(&name) {
        None => text.push_str("no rule\n"),
        Some((rule, captures)) => {
            write_to(&mut text, format_args!("rule {}: {}\n", rule.number, rule.pattern.text()));
            write_captures(&mut text, &rule.pattern, &captures);
            for tag in &rule.tags {
                write_to(&mut text, format_args!("  tag {}\n", tag.name(&captures)));
            }
        }
    }
    text
}

/// A key's rule: the captures, what follows from them, and each parameter with its origin.
fn write_rule(text: &mut String, file: &RuleFile, rule: &Rule, captures: &Captures<'_>) {
    let Rule { number, pattern, tags, loading, .. } = rule;
    let lines = file.places.rule(*number).cloned().unwrap_or_default();
    write_to(text, format_args!("rule {number}: {} (line {})\n", pattern.text(), lines.table));
    write_captures(text, pattern, captures);
    if let Some(loading) = loading {
        let names: Vec<&str> = pattern.names().collect();
        let gets = if names.is_empty() { String::new() } else { format!(", gets {}", names.join(", ")) };
        write_to(text, format_args!("  loader {}{gets}\n", loading.loader));
    }
    for tag in tags {
        write_to(text, format_args!("  tag {}\n", tag.name(captures)));
    }
    origins::of_rule(text, rule, &lines);
    let named = loading.as_ref().and_then(|loading| {
        let mut named = file.loaders.iter().filter(|loader| *loader.name == *loading.loader);
        Some((named.next()?, file.places.loader(&loading.loader)?))
    });
    if let Some((loader, lines)) = named {
        write_to(text, format_args!("loader {} (line {})\n", loader.name, lines.table));
        origins::of_loader(text, loader, lines);
    }
}

fn write_captures(text: &mut String, pattern: &Pattern, captures: &Captures<'_>) {
    for (name, held) in pattern.names().zip(captures.iter()) {
        write_to(text, format_args!("  {name} = {}\n", String::from_utf8_lossy(held)));
    }
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}
