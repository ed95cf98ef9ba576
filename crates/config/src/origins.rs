//! The origin of each parameter of a rule or a loader, for `check --key`: a line of the file, the default, or
//! the keys from which it is derived.

use std::fmt::Write as _;

use cattlegrid_engine::rules::Rule;

use crate::keys::{self, TableKey};
use crate::loader::LoaderSettings;
use crate::places::TableLines;

/// Appends the rule's parameters in force, a line each.
pub(crate) fn of_rule(text: &mut String, rule: &Rule, lines: &TableLines) {
    write(text, keys::RULE, rule, lines, |name| follows(name, rule, lines));
}

/// Appends the loader's parameters in force, a line each.
pub(crate) fn of_loader(text: &mut String, loader: &LoaderSettings, lines: &TableLines) {
    let follows = |name: &str| (name == "load" && loader.mode.takes_one()).then_some("follows from mode");
    write(text, keys::LOADER, loader, lines, follows);
}

fn write<D, S>(
    text: &mut String,
    keys: &[TableKey<D, S>],
    shown: &S,
    lines: &TableLines,
    follows: impl Fn(&str) -> Option<&'static str>,
) {
    for key in keys {
        let name = key.row.name;
        // The pattern is shown already.
        let Some(value) = (key.show)(shown).filter(|_| name != "match") else { continue };
        let origin = match (lines.of_key(name), follows(name)) {
            (Some(line), _) => format!("line {line}"),
            (None, Some(follows)) => follows.to_owned(),
            (None, None) => "default".to_owned(),
        };
        let assigned = format!("{name} = {value}");
        writeln!(text, "  {assigned:<28} # {origin}").expect("writing to a String cannot fail");
    }
}

/// The keys from which the value of an absent key is derived.
fn follows(name: &str, rule: &Rule, lines: &TableLines) -> Option<&'static str> {
    let policy = &rule.policy;
    let named = |name: &str| lines.of_key(name).is_some();
    Some(match name {
        "hold" if policy.hold_ms == 0 => "follows: none of hold, lease, grace_on_error, loader is named",
        "hold_many" if policy.loader || policy.hold_many_ms == policy.hold_ms => "follows from hold",
        "grace_on_error" if named("grace") => "follows from grace",
        "lease" if policy.loader => "follows from the loader's timeout, and 1 s",
        "hold_behind" | "negative_ttl" if policy.loader => "follows from loader",
        _ => return None,
    })
}
