//! The changes that a reload makes: a line for each kind of change, of bounded length.

use std::fmt::Display;

use cattlegrid_engine::rules::{Cascade, Change, Pattern, Rule};

use crate::follow::FollowSettings;
use crate::keys::{self, TableKey};
use crate::loader::LoaderSettings;
use crate::rule_file::RuleFile;
use crate::users::UserSettings;

/// The most names in a line; further ones are counted.
const NAMED_MAX: usize = 8;
/// The most parameters that are shown of one rule or loader.
const PARAMETERS_MAX: usize = 4;
/// The most characters of a name or a value that are shown.
const SHOWN_MAX: usize = 60;

impl RuleFile {
    /// The differences of `newer`, in at most thirteen lines. Loaders are always restarted.
    pub fn changes(&self, newer: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let (old_rules, new_rules) = (self.rules.rules(), newer.rules.rules());
        let find = |rules: &[std::sync::Arc<Rule>], rule: &Rule| {
            rules.iter().position(|other| other.is_for_keys_of(rule))
        };
        let pattern = |rule: &Rule| cut(&rule.name());
        let added = new_rules.iter().filter(|rule| find(old_rules, rule).is_none());
        line(&mut lines, "rules added", added.map(|rule| pattern(rule)));
        let removed = old_rules.iter().filter(|rule| find(new_rules, rule).is_none());
        line(&mut lines, "rules removed", removed.map(|rule| pattern(rule)));
        let both: Vec<_> = new_rules.iter().filter_map(|rule| Some((find(old_rules, rule)?, rule))).collect();
        let changed = both.iter().filter_map(|(old, rule)| {
            let differs = difference(keys::RULE, &*old_rules[*old], &**rule)?;
            Some(format!("{} ({differs})", pattern(rule)))
        });
        line(&mut lines, "rules changed", changed);
        let moved = both.windows(2).filter(|pair| pair[1].0 < pair[0].0);
        line(&mut lines, "rules that come later now", moved.map(|pair| pattern(pair[0].1)));
        let (old_cascades, new_cascades): (Vec<_>, Vec<_>) =
            (self.rules.all_cascades().collect(), newer.rules.all_cascades().collect());
        let added = new_cascades.iter().filter(|cascade| !old_cascades.contains(cascade));
        line(&mut lines, "cascades added", added.map(|cascade| shown(cascade)));
        let removed = old_cascades.iter().filter(|cascade| !new_cascades.contains(cascade));
        line(&mut lines, "cascades removed", removed.map(|cascade| shown(cascade)));
        let changed = newer.shares.iter().filter_map(|share| {
            let old = self.shares.iter().find(|old| old.prefix == share.prefix && !old.is_like(share))?;
            Some(format!("{} ({})", cut(&share.prefix), difference(keys::SHARE, old, share)?))
        });
        line(&mut lines, "shares changed", changed);
        let find =
            |loaders: &[LoaderSettings], name: &str| loaders.iter().position(|other| other.name == name);
        let added = newer.loaders.iter().filter(|loader| find(&self.loaders, &loader.name).is_none());
        line(&mut lines, "loaders added", added.map(|loader| loader.name.clone()));
        let removed = self.loaders.iter().filter(|loader| find(&newer.loaders, &loader.name).is_none());
        line(&mut lines, "loaders removed", removed.map(|loader| loader.name.clone()));
        let name = |follow: &FollowSettings| follow.name.clone();
        let is_in =
            |all: &[FollowSettings], own: &FollowSettings| all.iter().any(|other| other.name == own.name);
        let added = newer.follows.iter().filter(|own| !is_in(&self.follows, own));
        line(&mut lines, "logs added", added.map(name));
        let removed = self.follows.iter().filter(|own| !is_in(&newer.follows, own));
        line(&mut lines, "logs removed", removed.map(name));
        let changed =
            newer.follows.iter().filter(|own| is_in(&self.follows, own) && !self.follows.contains(own));
        line(&mut lines, "logs changed", changed.map(name));
        let is_as_before = |user: &&UserSettings| {
            self.users.iter().any(|old| old.name == user.name && old.rights == user.rights)
        };
        let differ = newer.users.iter().filter(|user| !is_as_before(user)).map(|user| cut(&user.name));
        line(&mut lines, "rights of users changed", differ);
        let is_gone = |user: &&UserSettings| newer.users.iter().all(|own| own.name != user.name);
        line(
            &mut lines,
            "users without a table now",
            self.users.iter().filter(is_gone).map(|user| cut(&user.name)),
        );
        if lines.is_empty() && self.loaders == newer.loaders {
            lines.push("no rule, cascade or loader has changed".to_owned());
        }
        let restarted = newer.loaders.iter().filter_map(|loader| {
            let old = &self.loaders[find(&self.loaders, &loader.name)?];
            let differs = difference(keys::LOADER, old, loader);
            Some(
                differs.map_or_else(|| loader.name.clone(), |differs| format!("{} ({differs})", loader.name)),
            )
        });
        line(&mut lines, "loaders restarted", restarted);
        lines
    }
}

/// The parameters that differ, with their old and new values; None: they are equal.
fn difference<D, S>(keys: &[TableKey<D, S>], old: &S, new: &S) -> Option<String> {
    let differs = keys.iter().filter_map(|key| {
        let (old, new) = ((key.show)(old), (key.show)(new));
        let or_none = |value: &Option<String>| value.as_deref().map_or_else(|| "none".to_owned(), cut);
        (old != new).then(|| format!("{}: {} -> {}", key.row.name, or_none(&old), or_none(&new)))
    });
    let texts: Vec<String> = differs.collect();
    (!texts.is_empty()).then(|| joined(&texts, PARAMETERS_MAX))
}

fn shown(cascade: &Cascade) -> String {
    let on: Vec<&str> =
        Change::ALL.into_iter().filter(|change| cascade.on.has(*change)).map(Change::name).collect();
    let pattern = cascade.pattern.as_ref().map_or("", Pattern::text);
    cut(format!("{} {pattern}", on.join("/")).trim_end())
}

/// Adds a line of this kind, unless `each` is empty.
fn line(lines: &mut Vec<String>, kind: &str, each: impl Iterator<Item = impl Display>) {
    let texts: Vec<String> = each.map(|one| one.to_string()).collect();
    if !texts.is_empty() {
        lines.push(format!("{kind}: {}", joined(&texts, NAMED_MAX)));
    }
}

fn joined(texts: &[String], most: usize) -> String {
    let named = texts[..texts.len().min(most)].join(", ");
    match texts.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn changes(old: &str, new: &str) -> Vec<String> {
        let parse = |text: &str| RuleFile::parse(Path::new("f.toml"), text).unwrap();
        parse(old).changes(&parse(new))
    }

    const OLD: &str = "[[rule]]\nmatch = \"page:{id}\"\nhold = \"400ms\"\n[[rule]]\nmatch = \"old:{id}\"\n\
                       [[rule]]\nmatch = \"user:{id}\"\nloader = \"users\"\n\
                       [[cascade]]\non = [\"set\", \"delete\"]\nmatch = \"a:{x}\"\nbump = [\"b:{x}\"]\n\
                       [loader.users]\ncommand = [\"sh\"]\n[loader.gone]\ncommand = [\"sh\"]\n";

    #[test]
    fn each_kind_of_change_has_its_line() {
        let new = OLD
            .replace("400ms", "1s")
            .replace("old:", "new:")
            .replace("on = [\"set\", \"delete\"]", "on = [\"touch\"]")
            .replace("[loader.gone]", "timeout = \"2s\"\n[loader.more]");
        assert_eq!(
            changes(OLD, &new),
            [
                "rules added: new:{id}",
                "rules removed: old:{id}",
                "rules changed: page:{id} (hold: \"400ms\" -> \"1s\", hold_many: \"400ms\" -> \"1s\"), user:{id} (lease: \"6s\" -> \"3s\")",
                "cascades added: touch a:{x}",
                "cascades removed: delete/set a:{x}",
                "loaders added: more",
                "loaders removed: gone",
                "loaders restarted: users (timeout: \"5s\" -> \"2s\")",
            ]
        );
    }

    #[test]
    fn shares_change_in_place_or_need_a_restart() {
        let parse = |text: &str| RuleFile::parse(Path::new("f.toml"), text).unwrap();
        let share = |prefix: &str, rest: &str| format!("[[share]]\nprefix = \"{prefix}\"\n{rest}\n");
        let old = share("a:", "at_most = \"50%\"") + &share("b:", "") + &share("c:", "");
        let new = share("c:", "at_least = \"0%\"")
            + &share("a:", "at_most = \"60%\"\nat_least = \"5%\"")
            + &share("d:", "");
        assert_eq!(
            changes(&old, &new),
            ["shares changed: a: (at_least: \"0%\" -> \"5%\", at_most: \"50%\" -> \"60%\")"]
        );
        assert_eq!(
            parse(&old).needs_restart(&parse(&new)),
            [
                "f.toml:8: share \"d:\" is new: needs a restart",
                "f.toml: share \"b:\" is gone: needs a restart"
            ]
        );
    }

    #[test]
    fn the_same_file_and_another_order() {
        assert_eq!(
            changes(OLD, OLD),
            ["no rule, cascade or loader has changed", "loaders restarted: users, gone"]
        );
        assert_eq!(changes("", ""), ["no rule, cascade or loader has changed"]);
        let rule = |name: &str| format!("[[rule]]\nmatch = \"{name}:{{x}}\"\n");
        let moved = changes(&(rule("a") + &rule("b")), &(rule("b") + &rule("a")));
        assert_eq!(moved, ["rules that come later now: b:{x}"]);
    }

    #[test]
    fn lines_are_bounded() {
        let rules = |hold: &str| -> String {
            let long = "k".repeat(200);
            let rule = |n: usize| format!("[[rule]]\nmatch = \"{long}{n}:{{x}}\"\nhold = \"{hold}\"\n");
            (0..900).map(rule).collect()
        };
        for lines in
            [changes("", &rules("1s")), changes(&rules("1s"), ""), changes(&rules("1s"), &rules("2s"))]
        {
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].ends_with(" and 892 more") && lines[0].len() < 2000, "{lines:?}");
        }
        let all = "lease = \"1s\"\ngrace = \"1s\"\nearly = \"auto\"\nttl_jitter = \"1%\"\nreentry = 2\npass_after = 3\n";
        let rule = "[[rule]]\nmatch = \"a:{x}\"\nhold = \"1s\"\n";
        let lines = changes(rule, &format!("{rule}{all}"));
        assert!(lines[0].contains(" and 4 more)"), "{lines:?}");
    }
}
