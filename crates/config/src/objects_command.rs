//! The command line of `cattlegrid objects`.

use std::path::PathBuf;

use crate::command_line::{Command, next_value};
use crate::error::UsageError;
use crate::help::HelpTopic;
use crate::moment::{parse_moment, parse_step};
use crate::problems::most_similar;

/// A parsed command of `cattlegrid objects`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectsCommand {
    /// `list [TYPE]`: show types and their methods.
    List {
        /// The types to choose from.
        types: TypeSelection,
        /// The only type to show; None: all.
        name: Option<String>,
    },
    /// `call [--at TIME] NAME...`: call methods on objects in memory.
    Call {
        /// The types whose methods can be called.
        types: TypeSelection,
        /// The time of the first call, Unix time in milliseconds; None: now.
        at_ms: Option<u64>,
        /// The steps in order, with at least one call.
        steps: Vec<CallStep>,
    },
    /// `test [--config FILE] PATH...`: run transcripts, and tests of users' own types.
    Test {
        /// The rule file under whose settings tests of types are run; None: with the defaults.
        config: Option<PathBuf>,
        /// Transcripts, files of tests, and directories of both; without any, the directory of the rule file.
        paths: Vec<PathBuf>,
    },
    /// `lint PATH...`: check the sources of users' own types.
    Lint {
        /// Sources and directories of them; at least one.
        paths: Vec<PathBuf>,
    },
    /// `bench [--count N] NAME...`: measure the time of calls on objects in memory.
    Bench {
        /// The types whose methods can be called.
        types: TypeSelection,
        /// The number of calls of each name, 1 to 1,000,000.
        count: usize,
        /// Names of calls; at least one.
        names: Vec<String>,
    },
}

/// The types that are switched on for a subcommand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TypeSelection {
    /// The types of the program.
    #[default]
    Shipped,
    /// The types of this rule file.
    Config(PathBuf),
    /// The types of the program, and users' own types in this directory.
    Dir(PathBuf),
}

/// A step of `cattlegrid objects call`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallStep {
    /// A call, by its name.
    Call(String),
    /// `+TIME`: the clock advances by this many milliseconds.
    Wait(u64),
}

const FORMS: &str = "objects takes list [TYPE], call [--at TIME] NAME..., test PATH..., lint PATH..., or \
                     bench [--count N] NAME...; list, call and bench take DIR, --objects DIR or --config FILE, \
                     test takes --config FILE";

/// Parses the words after `objects`.
pub(crate) fn parse_objects(words: &[String]) -> Result<Command, UsageError> {
    let help = |word: &String| matches!(word.as_str(), "-h" | "--help");
    let Some((first, words)) = words.split_first() else {
        return Err(UsageError::new(format!("objects: needs to know what to do; {FORMS}")));
    };
    if help(first) || words.iter().any(help) {
        return Ok(Command::Help(HelpTopic::Objects));
    }
    match first.as_str() {
        "list" => parse_list(words),
        "call" => parse_call(words),
        "test" => parse_test(words),
        "lint" => Ok(ObjectsCommand::Lint { paths: parse_paths("lint", "a directory or a source", words)? }),
        "bench" => parse_bench(words),
        other => {
            let near = most_similar(other, ["list", "call", "test", "lint", "bench"].into_iter());
            let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
            Err(UsageError::new(format!("objects {other}: unknown; {near}{FORMS}")))
        }
    }
    .map(Command::Objects)
}

/// The words of a subcommand, from which options and types are taken.
struct SubcommandWords<'w> {
    subcommand: &'static str,
    /// The subcommand's own options, for messages.
    options: &'static str,
    left: std::slice::Iter<'w, String>,
    types: TypeSelection,
}

/// A word after the types are taken out.
enum Argument<'w> {
    /// An option of the subcommand's own, such as `--at`, with its value.
    Option(&'w str, String),
    /// Any other word.
    Plain(&'w str),
}

impl<'w> SubcommandWords<'w> {
    fn new(subcommand: &'static str, options: &'static str, words: &'w [String]) -> Self {
        Self { subcommand, options, left: words.iter(), types: TypeSelection::Shipped }
    }

    /// The next word that does not select types. `own`: the subcommand's own option, and a description of its
    /// value.
    ///
    /// # Errors
    /// A value is missing, or the types are given twice.
    fn next(&mut self, own: Option<(&str, &str)>) -> Result<Option<Argument<'w>>, UsageError> {
        let subcommand = self.subcommand;
        while let Some(word) = self.left.next() {
            if !word.starts_with('-') {
                // A call has a colon in its name, a step begins with +, and a type has no slash.
                let is_dir = !word.contains(':') && (word.contains('/') || word == "." || word == "..");
                if !is_dir || word.starts_with('+') {
                    return Ok(Some(Argument::Plain(word)));
                }
                self.choose(TypeSelection::Dir(PathBuf::from(word)), word)?;
                continue;
            }
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = |what: &str| {
                let missing =
                    || UsageError::new(format!("objects {subcommand} {name}: needs a value: {what}"));
                attached.clone().or_else(|| next_value(&mut self.left).cloned()).ok_or_else(missing)
            };
            match (name, own) {
                ("--config", _) => {
                    let file = value("a rule file")?;
                    self.choose(TypeSelection::Config(PathBuf::from(file)), word)?;
                }
                ("--objects", _) => {
                    let dir = value("a directory")?;
                    self.choose(TypeSelection::Dir(PathBuf::from(dir)), word)?;
                }
                (name, Some((own, what))) if name == own => {
                    let value = value(what)?;
                    return Ok(Some(Argument::Option(name, value)));
                }
                _ => {
                    let options = self.options;
                    return Err(UsageError::new(format!(
                        "objects {subcommand} {word}: unknown option; there are {options}"
                    )));
                }
            }
        }
        Ok(None)
    }

    fn choose(&mut self, types: TypeSelection, word: &str) -> Result<(), UsageError> {
        if self.types != TypeSelection::Shipped {
            let subcommand = self.subcommand;
            return Err(UsageError::new(format!(
                "objects {subcommand} {word}: unexpected; it takes one directory or rule file"
            )));
        }
        self.types = types;
        Ok(())
    }
}

/// Whether a word may be a directory that lacks its slash: it is not a call, which has a colon.
fn is_dir_without_slash(word: &str) -> bool {
    !word.contains(':') && std::path::Path::new(word).is_dir()
}

fn no_slash(subcommand: &str, word: &str) -> UsageError {
    UsageError::new(format!("objects {subcommand} {word}: a directory is written with a slash, {word}/"))
}

fn parse_list(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    let mut words = SubcommandWords::new("list", "--config <file> and --objects <dir>", words);
    let mut name = None;
    while let Some(word) = words.next(None)? {
        match word {
            Argument::Plain(word) if name.is_none() => name = Some(word),
            // The first word may be meant as the directory.
            Argument::Plain(_) if name.is_some_and(is_dir_without_slash) => {
                return Err(no_slash("list", name.unwrap_or_default()));
            }
            Argument::Plain(word) | Argument::Option(word, _) => {
                return Err(UsageError::new(format!("objects list {word}: unexpected; it takes one type")));
            }
        }
    }
    Ok(ObjectsCommand::List { types: words.types, name: name.map(str::to_owned) })
}

fn parse_call(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    let mut words = SubcommandWords::new("call", "--config <file>, --objects <dir> and --at <time>", words);
    let (mut at_ms, mut steps) = (None, Vec::new());
    while let Some(word) = words.next(Some(("--at", "a time")))? {
        match word {
            Argument::Option(name, text) => {
                let wrong = |problem| UsageError::new(format!("objects call {name} {text}: {problem}"));
                at_ms = Some(parse_moment(&text).map_err(wrong)?);
            }
            Argument::Plain(word) => {
                let wrong = |problem: String| UsageError::new(format!("objects call {word}: {problem}"));
                steps.push(match word.strip_prefix('+') {
                    Some(step) => CallStep::Wait(parse_step(step).map_err(wrong)?),
                    None if is_dir_without_slash(word) => return Err(no_slash("call", word)),
                    None => CallStep::Call(word.to_owned()),
                });
            }
        }
    }
    if !steps.iter().any(|step| matches!(step, CallStep::Call(_))) {
        return Err(UsageError::new("objects call: needs the name of a call, such as counter:add:visits:1"));
    }
    Ok(ObjectsCommand::Call { types: words.types, at_ms, steps })
}

fn parse_bench(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    let mut words =
        SubcommandWords::new("bench", "--config <file>, --objects <dir> and --count <num>", words);
    let (mut count, mut names) = (COUNT, Vec::new());
    while let Some(word) = words.next(Some(("--count", "a number of calls")))? {
        match word {
            Argument::Option(name, text) => {
                let read = text.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                count = read.ok_or_else(|| {
                    UsageError::new(format!("objects bench {name} {text}: must be 1 to {COUNT_MAX}"))
                })?;
            }
            Argument::Plain(word) if is_dir_without_slash(word) => return Err(no_slash("bench", word)),
            Argument::Plain(word) => names.push(word.to_owned()),
        }
    }
    if names.is_empty() {
        return Err(UsageError::new("objects bench: needs the name of a call, such as counter:add:visits:1"));
    }
    Ok(ObjectsCommand::Bench { types: words.types, count, names })
}

fn parse_test(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    let (mut config, mut paths) = (None, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, attached) = word.split_once('=').unwrap_or((word, ""));
        if !word.starts_with('-') {
            paths.push(PathBuf::from(word));
        } else if name != "--config" {
            return Err(UsageError::new(format!(
                "objects test {word}: unknown option; it takes files, directories and --config <file>"
            )));
        } else if config.is_some() {
            return Err(UsageError::new(format!("objects test {word}: unexpected; it takes one rule file")));
        } else {
            let value =
                if name == word { next_value(&mut words).map(String::as_str) } else { Some(attached) };
            let missing = || UsageError::new("objects test --config: needs a value: a rule file");
            config = Some(PathBuf::from(value.filter(|value| !value.is_empty()).ok_or_else(missing)?));
        }
    }
    if paths.is_empty() && config.is_none() {
        return Err(UsageError::new(
            "objects test: needs a transcript or a directory: objects test <path>...",
        ));
    }
    Ok(ObjectsCommand::Test { config, paths })
}

fn parse_paths(subcommand: &str, what: &str, words: &[String]) -> Result<Vec<PathBuf>, UsageError> {
    if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
        return Err(UsageError::new(format!(
            "objects {subcommand} {option}: unknown option; it takes files and directories"
        )));
    }
    if words.is_empty() {
        return Err(UsageError::new(format!(
            "objects {subcommand}: needs {what}: objects {subcommand} <path>..."
        )));
    }
    Ok(words.iter().map(PathBuf::from).collect())
}

/// The default number of calls of each name by `bench`.
const COUNT: usize = 10_000;
/// The largest number, since each call is timed.
const COUNT_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::parse_args;

    fn parse(line: &str) -> Result<ObjectsCommand, String> {
        match parse_args(line.split(' ')) {
            Ok(Command::Objects(command)) => Ok(command),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn words_are_read() {
        let list =
            |types, name: Option<&str>| Ok(ObjectsCommand::List { types, name: name.map(str::to_owned) });
        assert_eq!(parse("objects list"), list(TypeSelection::Shipped, None));
        assert_eq!(parse("objects list quota"), list(TypeSelection::Shipped, Some("quota")));
        let own = || TypeSelection::Dir("own".into());
        for line in ["list --objects own quota", "list quota --objects=own"] {
            assert_eq!(parse(&format!("objects {line}")), list(own(), Some("quota")), "{line}");
        }
        for dir in ["own/", "./own", "/own", ".", ".."] {
            let words = format!("objects list {dir}");
            assert_eq!(parse(&words), list(TypeSelection::Dir(dir.into()), None), "{dir}");
        }
        let steps =
            vec![CallStep::Call("a:b:c=d".into()), CallStep::Wait(90_000), CallStep::Call("a:b:+c".into())];
        let call =
            ObjectsCommand::Call { types: TypeSelection::Config("f".into()), at_ms: Some(5_000), steps };
        for line in [
            "objects call --config f --at 5 a:b:c=d +90s a:b:+c",
            "objects call a:b:c=d +90s --config=f a:b:+c --at=1970-01-01T00:00:05Z",
        ] {
            assert_eq!(parse(line), Ok(call.clone()), "{line}");
        }
        let steps = vec![CallStep::Call("a:b:c/d".into()), CallStep::Wait(1_000)];
        let call = ObjectsCommand::Call { types: TypeSelection::Dir("./own".into()), at_ms: None, steps };
        assert_eq!(parse("objects call ./own a:b:c/d +1s"), Ok(call));
        let paths = || vec!["a".into(), "b".into()];
        for (line, config, paths) in [
            ("a b", None, paths()),
            ("a --config f b", Some("f".into()), paths()),
            ("--config=f", Some("f".into()), Vec::new()),
        ] {
            let expected = Ok(ObjectsCommand::Test { config, paths });
            assert_eq!(parse(&format!("objects test {line}")), expected, "{line}");
        }
        assert_eq!(parse("objects lint a b"), Ok(ObjectsCommand::Lint { paths: paths() }));
        for (words, types, count) in [
            ("a:b:c", TypeSelection::Shipped, 10_000),
            ("own/ a:b:c --count 1", TypeSelection::Dir("own/".into()), 1),
            ("--config f a:b:c --count=1000000", TypeSelection::Config("f".into()), 1_000_000),
        ] {
            let names = vec!["a:b:c".to_owned()];
            let bench = ObjectsCommand::Bench { types, count, names };
            assert_eq!(parse(&format!("objects bench {words}")), Ok(bench), "{words}");
        }
        for line in ["objects --help", "objects list -h", "objects call --at --help"] {
            assert_eq!(parse(line), Err("Help(Objects)".to_owned()), "{line}");
        }
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (line, expected) in [
            ("objects", &format!("objects: needs to know what to do; {FORMS}")[..]),
            ("objects make", &format!("objects make: unknown; {FORMS}")),
            ("objects list a b", "objects list b: unexpected; it takes one type"),
            (
                "objects list -x",
                "objects list -x: unknown option; there are --config <file> and --objects <dir>",
            ),
            ("objects list src counter", "objects list src: a directory is written with a slash, src/"),
            ("objects call src a:b:c", "objects call src: a directory is written with a slash, src/"),
            ("objects bench src a:b:c", "objects bench src: a directory is written with a slash, src/"),
            ("objects list a/ b/", "objects list b/: unexpected; it takes one directory or rule file"),
            (
                "objects call --objects a --config b a:b:c",
                "objects call --config: unexpected; it takes one directory or rule file",
            ),
            ("objects call", "objects call: needs the name of a call, such as counter:add:visits:1"),
            ("objects call +1s", "objects call: needs the name of a call, such as counter:add:visits:1"),
            ("objects call a --config", "objects call --config: needs a value: a rule file"),
            (
                "objects call -x a",
                "objects call -x: unknown option; there are --config <file>, --objects <dir> and --at <time>",
            ),
            ("objects call +x a", "objects call +x: must be a time with ms, s, m, h or d, such as 90s"),
            (
                "objects call --at noon a",
                "objects call --at noon: must be a time such as 2026-01-01T00:00:00Z, or Unix seconds, from 1970 to 2100",
            ),
            ("objects test", "objects test: needs a transcript or a directory: objects test <path>..."),
            (
                "objects test -v a",
                "objects test -v: unknown option; it takes files, directories and --config <file>",
            ),
            ("objects test a --config", "objects test --config: needs a value: a rule file"),
            ("objects test --config=", "objects test --config: needs a value: a rule file"),
            (
                "objects test --config a --config=b",
                "objects test --config=b: unexpected; it takes one rule file",
            ),
            ("objects lint", "objects lint: needs a directory or a source: objects lint <path>..."),
            ("objects bench", "objects bench: needs the name of a call, such as counter:add:visits:1"),
            ("objects bench a:b:c --count", "objects bench --count: needs a value: a number of calls"),
            ("objects bench a:b:c --count 0", "objects bench --count 0: must be 1 to 1000000"),
            ("objects bench a:b:c --count 1000001", "objects bench --count 1000001: must be 1 to 1000000"),
            (
                "objects bench a:b:c --at 1",
                "objects bench --at: unknown option; there are --config <file>, --objects <dir> and --count <num>",
            ),
        ] {
            assert_eq!(parse(line), Err(expected.to_owned()), "{line}");
        }
    }
}
