//! The rights of users, from the tables `[[user]]`.

use cattlegrid_engine::{Right, RightSet, Rights};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{TableKey, key, list, toml_text};
use crate::problems::{Problems, line_of, nearest};
use crate::rule_file::RuleFile;
use crate::rules::read_table;
use crate::table::set;
use crate::value::{TextValue, ValueKind};

/// A user with a `[[user]]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSettings {
    /// The user's name; `*`: all users without a table.
    pub name: String,
    /// The user's rights.
    pub rights: Rights,
    /// The line of its table, from 1.
    pub line: usize,
}

/// A `[[user]]` that is being read.
#[derive(Debug, Default)]
pub(crate) struct UserDraft {
    name: Option<TextValue>,
    rights: Option<Vec<TextValue>>,
    prefix: Option<TextValue>,
}

/// The longest name of a user, in bytes.
const NAME_MAX: usize = 4095;

#[rustfmt::skip]
pub(crate) const USER: &[TableKey<UserDraft, UserSettings>] = &[
    key("name", ValueKind::Free { what: "name", max: NAME_MAX }, "",
        "A user of the file of users (`-Y`, or `MEMCACHED_SASL_PWDB` under `-S`), or `\"*\"`: all users without a table of their own. Needed.",
        set!(name, given => Some(given.placed().clone())),
        |user| Some(toml_text(&user.name))),
    key("rights", ValueKind::List { what: "\"read\", \"write\", \"control\", \"admin\"" }, "all",
        "What the user may do; [Security](security.md#users-with-rights) has the commands. `[]`: log in and nothing else.",
        set!(rights, given => Some(given.list().to_vec())),
        |user| Some(list(Right::ALL.into_iter().filter(|right| user.rights.set.has(*right)).map(Right::name)))),
    key("prefix", ValueKind::Text { what: "prefix", max: 250 }, "none: all keys",
        "What each key of the user begins with. The right admin is of no use with it, since its commands are about all keys; control keys need one of `[server] prefixes` that begins with it.",
        set!(prefix, given => Some(given.placed().clone())),
        |user| {
            let prefix = String::from_utf8_lossy(&user.rights.prefix);
            (!prefix.is_empty()).then(|| toml_text(&prefix))
        }),
];

/// The users of `[[user]]`, in order, without those that have problems.
pub(crate) fn read_users(
    tables: &[(usize, &DeTable<'_>)],
    text: &str,
    problems: &mut Problems,
) -> Vec<UserSettings> {
    let mut users: Vec<UserSettings> = Vec::new();
    for (number, (offset, table)) in (1..).zip(tables) {
        let label = label(number, table);
        let mut draft = UserDraft::default();
        read_table(USER, &label, table, &mut draft, problems);
        let set = draft.rights.map_or(RightSet::ALL, |names| read_rights(&names, &label, problems));
        if let Some(prefix) = draft.prefix.as_ref().filter(|prefix| prefix.text.is_empty()) {
            problems.add(prefix.offset, format!("{label}: prefix: is empty; leave it out for all keys"));
        }
        let prefix = draft.prefix.map_or_else(Box::default, |prefix| prefix.text.into_bytes().into());
        let Some(name) = draft.name else {
            if !table.contains_key("name") {
                problems.add(*offset, format!("{label}: lacks name, a user of the file of users"));
            }
            continue;
        };
        let line = line_of(text, *offset);
        if let Some(earlier) = users.iter().find(|user| user.name == name.text) {
            let problem = format!("{label}: has a table in line {} already; make one of them", earlier.line);
            problems.add(name.offset, problem);
        }
        let rights = Rights { set, prefix };
        users.push(UserSettings { name: name.text, rights, line });
    }
    users
}

fn read_rights(names: &[TextValue], label: &str, problems: &mut Problems) -> RightSet {
    let mut set = RightSet::NONE;
    for name in names {
        let Some(right) = Right::ALL.into_iter().find(|right| right.name() == name.text) else {
            let near = nearest(&name.text, Right::ALL.into_iter().map(Right::name));
            problems.add(name.offset, format!("{label}: rights {:?}: is unknown; {near}", name.text));
            continue;
        };
        if set.has(right) {
            problems
                .add(name.offset, format!("{label}: rights {:?}: is there twice; leave one out", name.text));
        }
        set = set.with(right);
    }
    set
}

/// The name of a table in messages: by its user, or by its number.
fn label(number: u32, table: &DeTable<'_>) -> String {
    match table.get("name").map(Spanned::get_ref) {
        Some(DeValue::String(name)) if !name.is_empty() => format!("user {name:?}"),
        _ => format!("user {number}"),
    }
}

impl RuleFile {
    /// The file and the line of a user's table, for messages.
    pub fn place_of(&self, user: &UserSettings) -> String {
        format!("{}:{}", self.path.display(), user.line)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Vec<UserSettings>, Vec<String>> {
        let file = RuleFile::parse(Path::new("f.toml"), text);
        file.map(|file| file.users).map_err(|error| error.lines().to_vec())
    }

    #[test]
    fn what_tables_say() {
        let users = read(
            "[[user]]\nname = \"ann\"\n[[user]]\nname = \"bob\"\nrights = [\"write\", \"read\"]\nprefix = \"shop:\"\n[[user]]\nname = \"*\"\n\
             rights = []\n",
        );
        let users = users.unwrap();
        assert_eq!((users[0].rights.clone(), users[0].line), (Rights::all(), 1));
        let bob = RightSet::NONE.with(Right::Read).with(Right::Write);
        assert_eq!(users[1].rights, Rights { set: bob, prefix: b"shop:".as_slice().into() });
        assert_eq!((users[2].rights.clone(), users[2].line), (Rights::none(), 7));
    }

    #[test]
    fn what_is_wrong() {
        for (table, problem) in [
            (
                "name = \"a\"\nrights = [\"raed\"]",
                "f.toml:3: user \"a\": rights \"raed\": is unknown; did you mean read?",
            ),
            (
                "name = \"a\"\nrights = [\"read\", \"read\"]",
                "f.toml:3: user \"a\": rights \"read\": is there twice; leave one out",
            ),
            (
                "name = \"a\"\nprefix = \"\"",
                "f.toml:3: user \"a\": prefix: is empty; leave it out for all keys",
            ),
            ("rights = [\"read\"]", "f.toml:1: user 1: lacks name, a user of the file of users"),
            ("name = \"a\"\nright = []", "f.toml:3: user \"a\": right: is unknown; did you mean rights?"),
            (
                "name = \"a\"\n[[user]]\nname = \"a\"",
                "f.toml:4: user \"a\": has a table in line 1 already; make one of them",
            ),
        ] {
            assert_eq!(read(&format!("[[user]]\n{table}\n")).unwrap_err(), [problem], "{table}");
        }
        for (table, begin) in [
            ("name = \"a\"\nprefix = \"a b\"", "f.toml:3: user \"a\": prefix"),
            ("name = 1", "f.toml:2: user 1: name"),
            ("name = \"a\"\nrights = \"read\"", "f.toml:3: user \"a\": rights"),
        ] {
            let problems = read(&format!("[[user]]\n{table}\n")).unwrap_err();
            assert!(problems.len() == 1 && problems[0].starts_with(begin), "{problems:?}");
        }
        assert!(read("[user]\nname = \"a\"\n").unwrap_err()[0].contains("write [[user]]"));
    }

    #[test]
    fn check_shows_them() {
        let text = "[[user]]\nname = \"bob\"\nrights = [\"write\", \"read\"]\nprefix = \"shop:\"\n";
        let file = RuleFile::parse(Path::new("f.toml"), text).unwrap();
        let shown = crate::check::explain(&file, None).unwrap();
        assert!(
            shown.contains("[[user]]\nname = \"bob\"\nrights = [\"read\", \"write\"]\nprefix = \"shop:\"\n"),
            "{shown}"
        );
        assert_eq!(
            RuleFile::parse(Path::new("f.toml"), &shown).unwrap().users[0].rights,
            file.users[0].rights
        );
    }
}
