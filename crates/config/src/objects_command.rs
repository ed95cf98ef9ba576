//! `cattlegrid objects`: its words.

use std::path::PathBuf;

use crate::command_line::Command;
use crate::error::UsageError;
use crate::moment::{parse_moment, parse_step};

/// What `cattlegrid objects` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectsCommand {
    /// `list [TYPE]`: show types and their methods.
    List {
        /// Only this type.
        name: Option<String>,
    },
    /// `call [--config FILE] [--at TIME] NAME...`: make calls on objects of its own.
    Call {
        /// The rule file whose `[objects]` applies; None: all types, with their defaults.
        config: Option<PathBuf>,
        /// The time at the beginning, Unix time in milliseconds; None: now.
        at_ms: Option<u64>,
        /// What to do, in order; at least one call.
        steps: Vec<CallStep>,
    },
    /// `test FILE...`: run transcripts.
    Test {
        /// At least one.
        files: Vec<PathBuf>,
    },
}

/// A step of `cattlegrid objects call`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallStep {
    /// A call by its name.
    Call(String),
    /// `+TIME`: the clock moves by this many milliseconds.
    Wait(u64),
}

const FORMS: &str = "objects takes list [TYPE], call [--config FILE] [--at TIME] NAME..., or test FILE...";

/// Reads what follows `objects`.
pub(crate) fn parse_objects(words: &[String]) -> Result<Command, UsageError> {
    let help = |word: &String| matches!(word.as_str(), "-h" | "--help");
    let Some((first, words)) = words.split_first() else {
        return Err(UsageError::new(format!("objects: needs to know what to do; {FORMS}")));
    };
    if help(first) || words.iter().any(help) {
        return Ok(Command::Help);
    }
    match first.as_str() {
        "list" => parse_list(words),
        "call" => parse_call(words),
        "test" => parse_test(words),
        other => Err(UsageError::new(format!("objects {other}: unknown; {FORMS}"))),
    }
    .map(Command::Objects)
}

fn parse_list(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    match words {
        [] => Ok(ObjectsCommand::List { name: None }),
        [name] if !name.starts_with('-') => Ok(ObjectsCommand::List { name: Some(name.clone()) }),
        [.., other] => Err(UsageError::new(format!("objects list {other}: unexpected; it takes one type"))),
    }
}

fn parse_call(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    let (mut config, mut at_ms, mut steps) = (None, None, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value = |what: &str| {
            let missing = || UsageError::new(format!("objects call {name}: needs a value: {what}"));
            attached.clone().or_else(|| words.next().cloned()).ok_or_else(missing)
        };
        let wrong = |problem: String| UsageError::new(format!("objects call {word}: {problem}"));
        match name {
            "--config" => config = Some(PathBuf::from(value("a rule file")?)),
            "--at" => {
                let text = value("a time")?;
                let wrong = |problem| UsageError::new(format!("objects call --at {text}: {problem}"));
                at_ms = Some(parse_moment(&text).map_err(wrong)?);
            }
            _ if word.starts_with('-') => {
                return Err(wrong("unknown option; there are --config <file> and --at <time>".to_owned()));
            }
            _ => steps.push(match word.strip_prefix('+') {
                Some(step) => CallStep::Wait(parse_step(step).map_err(wrong)?),
                None => CallStep::Call(word.clone()),
            }),
        }
    }
    if !steps.iter().any(|step| matches!(step, CallStep::Call(_))) {
        return Err(UsageError::new("objects call: needs the name of a call, such as counter:add:visits:1"));
    }
    Ok(ObjectsCommand::Call { config, at_ms, steps })
}

fn parse_test(words: &[String]) -> Result<ObjectsCommand, UsageError> {
    if let Some(option) = words.iter().find(|word| word.starts_with('-')) {
        return Err(UsageError::new(format!("objects test {option}: unknown option; it takes files")));
    }
    if words.is_empty() {
        return Err(UsageError::new("objects test: needs a transcript: objects test <file>..."));
    }
    Ok(ObjectsCommand::Test { files: words.iter().map(PathBuf::from).collect() })
}

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
        assert_eq!(parse("objects list"), Ok(ObjectsCommand::List { name: None }));
        assert_eq!(parse("objects list quota"), Ok(ObjectsCommand::List { name: Some("quota".into()) }));
        let steps =
            vec![CallStep::Call("a:b:c=d".into()), CallStep::Wait(90_000), CallStep::Call("a:b:+c".into())];
        let call = ObjectsCommand::Call { config: Some("f".into()), at_ms: Some(5_000), steps };
        for line in [
            "objects call --config f --at 5 a:b:c=d +90s a:b:+c",
            "objects call a:b:c=d +90s --config=f a:b:+c --at=1970-01-01T00:00:05Z",
        ] {
            assert_eq!(parse(line), Ok(call.clone()), "{line}");
        }
        let files = vec!["a".into(), "b".into()];
        assert_eq!(parse("objects test a b"), Ok(ObjectsCommand::Test { files }));
        for line in ["objects --help", "objects list -h", "objects call --at --help"] {
            assert_eq!(parse(line), Err("Help".to_owned()), "{line}");
        }
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (line, expected) in [
            ("objects", &format!("objects: needs to know what to do; {FORMS}")[..]),
            ("objects lint", &format!("objects lint: unknown; {FORMS}")),
            ("objects list a b", "objects list b: unexpected; it takes one type"),
            ("objects list -x", "objects list -x: unexpected; it takes one type"),
            ("objects call", "objects call: needs the name of a call, such as counter:add:visits:1"),
            ("objects call +1s", "objects call: needs the name of a call, such as counter:add:visits:1"),
            ("objects call a --config", "objects call --config: needs a value: a rule file"),
            (
                "objects call -x a",
                "objects call -x: unknown option; there are --config <file> and --at <time>",
            ),
            ("objects call +x a", "objects call +x: must be a time with ms, s, m, h or d, such as 90s"),
            (
                "objects call --at noon a",
                "objects call --at noon: must be a time such as 2026-01-01T00:00:00Z, or Unix seconds, from 1970 to 2100",
            ),
            ("objects test", "objects test: needs a transcript: objects test <file>..."),
            ("objects test -v a", "objects test -v: unknown option; it takes files"),
        ] {
            assert_eq!(parse(line), Err(expected.to_owned()), "{line}");
        }
    }
}
