//! The command line: memcached's own options, and ours.
//!
//! `table.rs` defines every option once: its names, the values it takes, its words in the help, and what
//! happens to it. The parser below, `--help`, and `docs/configuration.md` all come from that table.
//!
//! The grammar is that of memcached, so `getopt_long` with `getsubopt`: short flags cluster (`-vvv`,
//! `-dp 11211`), a value follows in the same word or the next (`-p11211`, `-p 11211`), long options take
//! `--port=11211` or `--port 11211` and may be shortened while that is unambiguous, and `-o` takes a list
//! (`-o idle_timeout=5,no_modern`) and may be repeated. Where an option is given twice, the last one wins.
//!
//! memcached reads `-p abc` as port 0; here a value that makes no sense is an error that names the option,
//! what is wrong and what would be right.

mod extended;
mod file;
mod listen_address;
mod reference;
mod settings;
mod table;
mod value;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser as _;

pub(crate) use file::FileOption;
pub use listen_address::{Host, ListenAddress, TcpPort};
pub use reference::{AS_MEMCACHED, help, license, reference_markdown, version};
pub use settings::{KeyFormat, LogFormat, Privileges, Settings, TlsSettings, TlsVersion, VerifyMode};

use crate::bench::BenchOptions;
use crate::config::RuleFile;
use table::{Class, Name, Row};
use value::Value;

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Be the server.
    Serve(Box<Settings>),
    /// The self-contained tour.
    Demo {
        /// Leave the server of the tour running at its end.
        keep: bool,
    },
    /// Load a server.
    Bench(Box<BenchOptions>),
    /// Say what a rule file means.
    Check {
        /// The rule file.
        file: PathBuf,
        /// Say what applies to this key instead.
        key: Option<String>,
    },
    /// Print this, the help of a subcommand, and leave with status 0.
    SubcommandHelp(String),
    /// `-h`: print [`help`] and leave with status 0.
    Help,
    /// `-V`: print [`version`] and leave with status 0.
    Version,
    /// `-i`: print [`license`] and leave with status 0.
    License,
}

/// A command line that cannot be followed: one line with the option, what is wrong, and the fix; for a rule file
/// a line for each thing that is wrong with it.
///
/// The process leaves with status 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

impl UsageError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Reads the arguments that follow the program's name.
///
/// No subcommand, or a first argument that starts with `-`, means `serve`.
pub fn parse_args<I>(args: I) -> Result<Command, UsageError>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let mut words = Vec::new();
    for arg in args {
        words.push(arg.into().into_string().map_err(|arg| {
            UsageError::new(format!("{}: not UTF-8; options and paths must be UTF-8", arg.display()))
        })?);
    }
    match words.first().map(String::as_str) {
        Some("serve") => parse_serve(&words[1..]),
        Some("demo") => parse_demo(&words[1..]),
        Some("bench") => parse_bench(&words),
        Some("check") => parse_check(&words[1..]),
        Some(word) if !word.starts_with('-') => Err(UsageError::new(format!(
            "{word}: no such subcommand; there are serve, demo, bench and check, and options start with - (see --help)"
        ))),
        _ => parse_serve(&words),
    }
}

fn parse_demo(words: &[String]) -> Result<Command, UsageError> {
    let mut keep = false;
    for word in words {
        match word.as_str() {
            "--keep" => keep = true,
            "-h" | "--help" => return Ok(Command::Help),
            _ => return Err(UsageError::new(format!("demo {word}: unknown option; demo takes only --keep"))),
        }
    }
    Ok(Command::Demo { keep })
}

/// `words` with the subcommand, which stands for the program's name.
fn parse_bench(words: &[String]) -> Result<Command, UsageError> {
    match BenchOptions::try_parse_from(words) {
        Ok(options) => Ok(Command::Bench(Box::new(options))),
        Err(error) if !error.use_stderr() => Ok(Command::SubcommandHelp(error.render().to_string())),
        Err(error) => {
            // What clap says in several lines, as one; its usage and hints follow an empty line.
            let text = error.render().to_string();
            let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
            let line = lines.collect::<Vec<_>>().join(" ");
            Err(UsageError::new(format!("bench: {}", line.strip_prefix("error: ").unwrap_or(&line))))
        }
    }
}

/// `FILE [--key K]`, in either order.
fn parse_check(words: &[String]) -> Result<Command, UsageError> {
    let (mut file, mut key) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--key" => {
                let missing = || UsageError::new("check --key: needs a value: a key");
                key = Some(words.next().ok_or_else(missing)?.clone());
            }
            "--try" => {
                return Err(UsageError::new(
                    "check --try: runs a loader, and loaders are not part of this version; leave it out",
                ));
            }
            word if word.starts_with("--key=") => key = Some(word["--key=".len()..].to_owned()),
            word if word.starts_with('-') => {
                return Err(UsageError::new(format!("check {word}: unknown option; there is --key <key>")));
            }
            _ if file.is_some() => {
                return Err(UsageError::new(format!("check {word}: unexpected; check takes one file")));
            }
            word => file = Some(PathBuf::from(word)),
        }
    }
    match file {
        Some(file) => Ok(Command::Check { file, key }),
        None => Err(UsageError::new("check: needs a rule file: check <file> [--key <key>]")),
    }
}

fn parse_serve(words: &[String]) -> Result<Command, UsageError> {
    let mut settings = Settings::default();
    if let Some(command) = parse_options(words, &mut settings)? {
        return Ok(command);
    }
    if let Some(path) = settings.config {
        // Once more, over what the file says.
        let file = RuleFile::load(&path).map_err(|error| UsageError::new(error.to_string()))?;
        settings = Settings::default();
        file.apply(&mut settings)?;
        // Options that add to what there is begin anew.
        let listen = std::mem::take(&mut settings.listen);
        let verbosity = std::mem::take(&mut settings.verbosity);
        parse_options(words, &mut settings)?;
        if settings.listen.is_empty() {
            settings.listen = listen;
        }
        if settings.verbosity == 0 {
            settings.verbosity = verbosity;
        }
        settings.rule_file = Some(file);
    }
    settings.check()?;
    Ok(Command::Serve(Box::new(settings)))
}

/// Reads options; what they ask for if it is not the server.
fn parse_options(words: &[String], settings: &mut Settings) -> Result<Option<Command>, UsageError> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let stop = if word == "--" {
            words.by_ref().for_each(|word| stray(word, settings));
            None
        } else if let Some(long) = word.strip_prefix("--") {
            parse_long(long, &mut words, settings)?
        } else if let Some(cluster) = word.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
            parse_cluster(cluster, &mut words, settings)?
        } else {
            stray(word, settings);
            None
        };
        if stop.is_some() {
            return Ok(stop);
        }
    }
    Ok(None)
}

/// A word that is no option nor the value of one: memcached takes no notice of it.
fn stray(word: &str, settings: &mut Settings) {
    settings.notices.push(format!("{word}: ignored: every option starts with - (see --help)"));
}

/// `port=11211` or `port` with its value in the next word, without the two dashes.
fn parse_long(
    text: &str,
    words: &mut std::slice::Iter<'_, String>,
    settings: &mut Settings,
) -> Result<Option<Command>, UsageError> {
    let (name, attached) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let row = find_long(name)?;
    let shown = row.name.shown();
    if !row.value.is_wanted() {
        if attached.is_some() {
            return Err(UsageError::new(format!(
                "{shown}: takes no value; leave out the = and what follows"
            )));
        }
        return apply(row, &shown, None, settings);
    }
    let value = attached.or_else(|| words.next().map(String::as_str)).ok_or_else(|| missing(row, &shown))?;
    apply(row, &shown, Some(value), settings)
}

/// The row of a long name, or of the only one that starts so.
fn find_long(name: &str) -> Result<&'static Row, UsageError> {
    let longs = || {
        table::rows().filter_map(|row| match row.name {
            Name::Switch { long: Some(long), .. } => Some((long, row)),
            _ => None,
        })
    };
    if let Some((_, row)) = longs().find(|(long, _)| *long == name) {
        return Ok(row);
    }
    let mut close = longs().filter(|(long, _)| !name.is_empty() && long.starts_with(name));
    match (close.next(), close.next()) {
        (Some((_, row)), None) => Ok(row),
        (Some((one, _)), Some((two, _))) => {
            Err(UsageError::new(format!("--{name}: could be --{one} or --{two}; write it out")))
        }
        _ => Err(UsageError::new(format!("--{name}: unknown option; --help lists all"))),
    }
}

/// `vvv`, `dp` with its value in the next word, or `p11211`, without the dash.
fn parse_cluster(
    cluster: &str,
    words: &mut std::slice::Iter<'_, String>,
    settings: &mut Settings,
) -> Result<Option<Command>, UsageError> {
    let mut rest = cluster;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        let row = table::rows()
            .find(|row| matches!(row.name, Name::Switch { short: Some(short), .. } if short == letter))
            .ok_or_else(|| UsageError::new(format!("-{letter}: unknown option; --help lists all")))?;
        let shown = format!("-{letter}");
        if !row.value.is_wanted() {
            if let Some(command) = apply(row, &shown, None, settings)? {
                return Ok(Some(command));
            }
            continue;
        }
        let value = if rest.is_empty() { words.next().map(String::as_str) } else { Some(rest) };
        let value = value.ok_or_else(|| missing(row, &shown))?;
        return apply(row, &shown, Some(value), settings);
    }
    Ok(None)
}

/// One `-o a,b=c` list.
fn parse_extended(list: &str, settings: &mut Settings) -> Result<(), UsageError> {
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (part, None),
        };
        let row = table::rows()
            .find(|row| match row.name {
                Name::Extended(own) => own == name,
                Name::Family(prefix) => name.starts_with(prefix),
                Name::Switch { .. } => false,
            })
            .ok_or_else(|| UsageError::new(format!("-o {name}: unknown option; --help lists all")))?;
        let shown = format!("-o {name}");
        if !row.value.is_optional() && value.is_none() {
            return Err(missing(row, &shown));
        }
        // Like memcached, `maxconns_fast=x` is taken as `maxconns_fast`: only values that are wanted are read.
        apply(row, &shown, value.filter(|_| row.value.is_wanted()), settings)?;
    }
    Ok(())
}

fn missing(row: &Row, shown: &str) -> UsageError {
    match row.class {
        Class::Refused(reason) => UsageError::new(format!("{shown}: {reason}")),
        _ => UsageError::new(format!("{shown}: needs a value: {}", row.value.describe())),
    }
}

/// Does what the row says; `shown` is the option as the user typed it.
fn apply(
    row: &'static Row,
    shown: &str,
    value: Option<&str>,
    settings: &mut Settings,
) -> Result<Option<Command>, UsageError> {
    let read = |value| row.value.read(value).map_err(|problem| UsageError::new(format!("{shown} {problem}")));
    match row.class {
        Class::Refused(reason) => Err(UsageError::new(format!("{shown}: {reason}"))),
        Class::Help => Ok(Some(Command::Help)),
        Class::Version => Ok(Some(Command::Version)),
        Class::License => Ok(Some(Command::License)),
        Class::List => parse_extended(value.unwrap_or_default(), settings).map(|()| None),
        Class::Honoured(set) => {
            let given = read(value)?;
            set(settings, &given).map_err(|problem| UsageError::new(format!("{shown} {problem}")))?;
            Ok(None)
        }
        Class::Accepted { setting, why } => {
            let given = read(value).map_err(|error| match row.value {
                Value::Number { min, max, .. } if min == max => UsageError::new(format!("{error}; {why}")),
                _ => error,
            })?;
            if let Some((name, text)) = setting.map(|setting| setting.entry(&given)) {
                settings.tuning.insert(name, text);
            }
            let typed = value.map_or_else(|| shown.to_owned(), |value| format!("{shown} {value}"));
            settings.notices.push(format!("{typed}: accepted without effect: {why}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
