//! The options and subcommands as plain data, for what is generated from them: completions of shells, and the man page.

use crate::help::brief;
use crate::option_row::{Name, OptionRow};
use crate::options::rows;
use crate::reference::words;
use crate::table::Class;
use crate::value::Kind;

/// The subcommands, and what each does in a few words.
pub const SUBCOMMANDS: &[(&str, &str)] = &[
    ("serve", "the server, with memcached's options"),
    ("demo", "a tour of what the server does"),
    ("bench", "load a server, verify every reply"),
    ("check", "what a rule file means"),
    ("advise", "the rule file that fits a server's traffic"),
    ("doctor", "what to change on this machine"),
    ("top", "a live view of a server, in the terminal"),
    ("nodes", "the nodes of a server's fleet"),
    ("ping", "whether a server answers"),
    ("follow", "rows change: keys go from memcached"),
    ("objects", "objects with methods, without a server"),
    ("help", "the help of a subcommand"),
    ("version", "the version"),
];

/// What becomes of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It does what it says.
    Honoured,
    /// It is accepted for memcached's scripts, and does nothing.
    Inert,
    /// It is an error.
    Refused,
}

/// An option of the server.
#[derive(Debug, Clone)]
pub struct OptionUsage {
    /// Its letter: `-p`.
    pub short: Option<char>,
    /// Its long name, without the dashes.
    pub long: Option<&'static str>,
    /// Its name in the list of `-o`.
    pub extended: Option<&'static str>,
    /// What it takes, as the help shows it, `<num>`; empty for a switch.
    pub value: String,
    /// The values, where there are only some.
    pub choices: &'static [&'static str],
    /// What it does, in a few words.
    pub brief: &'static str,
    /// What it does, with its default.
    pub doc: String,
    /// What becomes of it.
    pub standing: Standing,
}

/// All options, in the order of the help. Names of `-o` that stand for a family (`slab_*`) are left out.
pub fn option_usages() -> impl Iterator<Item = OptionUsage> {
    rows().filter_map(usage_of)
}

fn usage_of(row: &OptionRow) -> Option<OptionUsage> {
    let (short, long, extended) = match row.name {
        Name::Switch { short, long } => (short, long, None),
        Name::Extended(name) => (None, None, Some(name)),
        Name::Family(_) => return None,
    };
    let choices = match row.kind {
        Kind::Choice { names, .. } => names,
        _ => &[],
    };
    let value = if matches!(row.kind, Kind::Any) && extended.is_some() {
        String::new()
    } else {
        row.kind.placeholder()
    };
    let standing = match row.class {
        Class::Inert { .. } => Standing::Inert,
        Class::Refused(_) => Standing::Refused,
        _ => Standing::Honoured,
    };
    Some(OptionUsage { short, long, extended, value, choices, brief: brief(row), doc: words(row), standing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Topic, parse_args};

    #[test]
    fn each_subcommand_is_one() {
        for (name, _) in SUBCOMMANDS {
            let error = parse_args([*name]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!error.contains("no such subcommand"), "{error}");
            if !["serve", "help", "version"].contains(name) {
                assert!(
                    matches!(parse_args(["help", *name]), Ok(Command::Help(_) | Command::Bench(_))),
                    "{name}"
                );
            }
            assert!(
                Topic::Program.text().contains(&format!("cattlegrid {name}")) || *name == "serve",
                "{name}"
            );
        }
    }

    #[test]
    fn options_have_a_name_and_words() {
        assert!(option_usages().count() > 60);
        for option in option_usages() {
            assert!(option.short.is_some() || option.long.is_some() || option.extended.is_some());
            assert!(!option.doc.is_empty(), "{option:?}");
        }
    }
}
