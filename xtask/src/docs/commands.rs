//! The subcommands with their options, from the texts of their help: for completions and the man page.

use std::sync::LazyLock;

use cattlegrid_config::{HelpTopic, OptionUsage, SUBCOMMANDS, option_usages};
use cattlegrid_load::BenchCommand;
use regex::Regex;

/// A subcommand other than `serve`, whose options are a table.
pub(super) struct Subcommand {
    pub(super) name: &'static str,
    pub(super) brief: &'static str,
    /// The subcommand's help, empty if it has none.
    pub(super) help: String,
    pub(super) flags: Vec<Flag>,
    /// Words that may come first.
    pub(super) words: &'static [&'static str],
}

/// An option of a subcommand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) short: Option<char>,
    pub(super) long: String,
    /// The flag's value, such as `FILE`; empty for a switch.
    pub(super) value: String,
}

/// A line of a help that begins with an option.
static LINE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^ +(?:-([a-zA-Z]), )?--([a-z-]+)(?: ([^ \n]+))?(?:  |$)").expect("a good pattern")
});
/// An option in the midst of a text.
static INLINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"--([a-z]+)(?: ([A-Z]+))?").expect("a good pattern"));

/// The options of the server that do not only refuse.
pub(super) fn server_options() -> Vec<OptionUsage> {
    option_usages().filter(|option| option.standing != cattlegrid_config::OptionStatus::Refused).collect()
}

/// All but `serve`.
pub(super) fn subcommands() -> Result<Vec<Subcommand>, String> {
    let others = SUBCOMMANDS.iter().filter(|(name, _)| *name != "serve");
    others
        .map(|&(name, brief)| {
            let help = match name {
                "demo" => HelpTopic::Demo.text(),
                "check" => HelpTopic::Check.text(),
                "advise" => HelpTopic::Advise.text(),
                "doctor" => HelpTopic::Doctor.text(),
                "top" => HelpTopic::Top.text(),
                "nodes" => HelpTopic::Nodes.text(),
                "ping" => HelpTopic::Ping.text(),
                "follow" => HelpTopic::Follow.text(),
                "objects" => HelpTopic::Objects.text(),
                "bench" => bench_help()?,
                "help" | "version" => String::new(),
                _ => return Err(format!("completions: the subcommand {name} is new; add its help")),
            };
            let words: &[&str] = match name {
                "objects" => &["list", "call", "test", "lint", "bench"],
                "help" => &[
                    "demo", "bench", "check", "advise", "doctor", "top", "nodes", "ping", "follow", "objects",
                ],
                _ => &[],
            };
            Ok(Subcommand { name, brief, flags: flags(&help), help, words })
        })
        .collect()
}

fn bench_help() -> Result<String, String> {
    match BenchCommand::parse(&["bench".to_owned(), "--help".to_owned()]) {
        Ok(BenchCommand::Help(text)) => {
            Ok(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n") + "\n")
        }
        Ok(BenchCommand::Load(_)) => Err("bench --help: has run".to_owned()),
        Err(error) => Err(format!("bench --help: {error}")),
    }
}

fn flags(help: &str) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    let text = |found: Option<regex::Match<'_>>| {
        found.map_or(String::new(), |text| text.as_str().trim_matches(['<', '>']).to_owned())
    };
    let of_lines = LINE.captures_iter(help).map(|found| Flag {
        short: found.get(1).and_then(|letter| letter.as_str().chars().next()),
        long: text(found.get(2)),
        value: text(found.get(3)),
    });
    let in_text = INLINE.captures_iter(help).map(|found| Flag {
        short: None,
        long: text(found.get(1)),
        value: text(found.get(2)),
    });
    // What a line says of an option counts more than a mention.
    for flag in of_lines.chain(in_text) {
        if !flags
            .iter()
            .any(|other| other.long == flag.long || other.long.starts_with(&format!("{}-", flag.long)))
        {
            flags.push(flag);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_help_are_found() {
        let all = subcommands().unwrap();
        let of = |name: &str| all.iter().find(|command| command.name == name).unwrap();
        let named =
            |name: &str, long: &str| of(name).flags.iter().find(|flag| flag.long == long).unwrap().clone();
        assert_eq!(named("check", "key").value, "KEY");
        assert_eq!(
            named("demo", "keep"),
            Flag { short: None, long: "keep".to_owned(), value: String::new() }
        );
        assert_eq!(named("follow", "distribution").value, "ketama|ketama_weighted|all");
        assert_eq!(named("bench", "connections").short, Some('c'));
        assert_eq!(named("bench", "connections").value, "N");
        assert_eq!(named("objects", "at").value, "TIME");
        assert!(of("bench").flags.len() > 20);
    }
}
