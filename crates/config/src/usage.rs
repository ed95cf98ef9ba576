//! The options and subcommands as plain data, for generated shell completions and the man page.

use crate::help::brief;
use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::reference::words;
use crate::table::Class;
use crate::value::ValueKind;

/// The subcommands, each with a short description.
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

/// Whether an option has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionStatus {
    /// The option has an effect.
    Honoured,
    /// The option is accepted for memcached's scripts, and has no effect.
    Inert,
    /// The option is an error.
    Refused,
}

/// An option of the server.
#[derive(Debug, Clone)]
pub struct OptionUsage {
    /// The letter: `-p`.
    pub short: Option<char>,
    /// The long name, without the dashes.
    pub long: Option<&'static str>,
    /// The name in the list of `-o`.
    pub extended: Option<&'static str>,
    /// The placeholder of the value in the help, `<num>`; empty for a switch.
    pub value: String,
    /// The allowed values, if only certain ones are.
    pub choices: &'static [&'static str],
    /// A short description.
    pub brief: &'static str,
    /// The description, with the default.
    pub doc: String,
    /// Whether the option has an effect.
    pub standing: OptionStatus,
}

/// All options, in the order of the help. Names of `-o` that stand for a family (`slab_*`) are left out.
pub fn option_usages() -> impl Iterator<Item = OptionUsage> {
    rows().filter_map(usage_of)
}

fn usage_of(row: &OptionRow) -> Option<OptionUsage> {
    let (short, long, extended) = match row.name {
        OptionName::Switch { short, long } => (short, long, None),
        OptionName::Extended(name) => (None, None, Some(name)),
        OptionName::Family(_) => return None,
    };
    let choices = match row.kind {
        ValueKind::Choice { names, .. } => names,
        _ => &[],
    };
    let value = if matches!(row.kind, ValueKind::Any) && extended.is_some() {
        String::new()
    } else {
        row.kind.placeholder()
    };
    let standing = match row.class {
        Class::Inert { .. } => OptionStatus::Inert,
        Class::Refused(_) => OptionStatus::Refused,
        _ => OptionStatus::Honoured,
    };
    Some(OptionUsage { short, long, extended, value, choices, brief: brief(row), doc: words(row), standing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, HelpTopic, parse_args};

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
                HelpTopic::Program.text().contains(&format!("cattlegrid {name}")) || *name == "serve",
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
