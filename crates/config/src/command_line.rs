//! The command line: memcached's options, and Cattlegrid's own.
//!
//! The grammar is that of memcached, and so that of `getopt_long` with `getsubopt`. Short flags cluster
//! (`-vvv`, `-dp 11211`). A value is in the same word or the next (`-p11211`, `-p 11211`). Long options take
//! `--port=11211` or `--port 11211`, and may be shortened while that is unambiguous. `-o` takes a list (`-o
//! idle_timeout=5,no_modern`), and may be repeated. Of an option that is given twice the last one counts.
//!
//! memcached reads `-p abc` as port 0; here an invalid value is an error that names the option, the mistake
//! and the correct form. So is an option in the place of a value (`-s -m 64`), which getopt takes as the
//! value.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::advise_command::{AdviseCommand, parse_advise};
use crate::apply::{InfoOption, apply, missing, unknown};
use crate::doctor_command::{DoctorCommand, parse_doctor};
use crate::error::UsageError;
use crate::follow_command::{FollowCommand, parse_follow};
use crate::help::HelpTopic;
use crate::objects_command::{ObjectsCommand, parse_objects};
use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::options_file::OptionsFile;
use crate::own_types::{NoScripts, TypeLoader};
use crate::problems::{most_similar, nearest};
use crate::rule_file::RuleFile;
use crate::settings::Settings;
use crate::top_command::{TopCommand, parse_top};
use crate::usage::SUBCOMMANDS;

/// The parsed command line.
#[derive(Debug)]
pub enum Command {
    /// Start the server.
    Serve(Box<Settings>),
    /// Run the self-contained tour.
    Demo {
        /// Whether the server of the tour keeps running at its end.
        keep: bool,
        /// Whether to print the address of its dashboard, and go on with loads for it.
        open: bool,
        /// The file for a picture of the stampedes, in SVG.
        picture: Option<PathBuf>,
    },
    /// Put load on a server: the subcommand and its words, which the load driver parses.
    Bench(Vec<String>),
    /// Explain a rule file.
    Check {
        /// The rule file.
        file: PathBuf,
        /// A key to explain, instead of the file.
        key: Option<String>,
        /// The address of a running server, which is asked why keys do not match their rules.
        server: Option<String>,
        /// Whether to connect to the followed databases, and report which settings they lack.
        connect: bool,
    },
    /// Show the nodes of a server's fleet.
    Nodes {
        /// The address of one of the nodes: host:port.
        server: String,
    },
    /// Ask a server whether it answers.
    Ping {
        /// The target: host:port, host:port/path of a page of `--admin`, or the path of a Unix socket.
        target: String,
    },
    /// Delete keys on memcached servers when a database's log says that their rows changed.
    Follow(FollowCommand),
    /// Run the loader of a key once, see [`crate::LoaderTrial`].
    Try {
        /// The rule file.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// Watch a server, and print a rule file for its traffic.
    Advise(Box<AdviseCommand>),
    /// Report what to change on this machine, or for a running server.
    Doctor(Box<DoctorCommand>),
    /// Show a server's activity, live.
    Top(Box<TopCommand>),
    /// Show types of objects, or call methods without a server.
    Objects(ObjectsCommand),
    /// `-h`, `help`: print this help and exit with status 0.
    Help(HelpTopic),
    /// `-V`: print [`crate::version`] and exit with status 0.
    Version,
    /// `-i`: print [`crate::license`] and exit with status 0.
    License,
}

impl From<InfoOption> for Command {
    fn from(stop: InfoOption) -> Self {
        match stop {
            InfoOption::Help => Self::Help(HelpTopic::Program),
            InfoOption::HelpAll => Self::Help(HelpTopic::All),
            InfoOption::Version => Self::Version,
            InfoOption::License => Self::License,
        }
    }
}

/// Parses the arguments after the program's name.
///
/// Without a subcommand, or if the first argument begins with `-`, this is `serve`. Users' own types are
/// not supported: see [`parse_args_with`].
///
/// # Errors
/// The mistake, with the option.
pub fn parse_args<I>(args: I) -> Result<Command, UsageError>
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    parse_args_with(args, &NoScripts)
}

/// Parses the arguments like [`parse_args`]; `types` loads users' own types.
///
/// # Errors
/// The mistake, with the option.
pub fn parse_args_with<I>(args: I, types: &'static dyn TypeLoader) -> Result<Command, UsageError>
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
        Some("serve") => parse_serve(&words[1..], types),
        Some("demo") => parse_demo(&words[1..]),
        Some("bench") => Ok(Command::Bench(words)),
        Some("check") => parse_check(&words[1..]),
        Some("advise") => parse_advise(&words[1..]),
        Some("doctor") => parse_doctor(&words[1..], types),
        Some("top") => parse_top(&words[1..]),
        Some("nodes") => parse_nodes(&words[1..]),
        Some("ping") => parse_ping(&words[1..]),
        Some("follow") => parse_follow(&words[1..]),
        Some("objects") => parse_objects(&words[1..]),
        Some("help") => parse_help(&words[1..]),
        Some("version") => match words.get(1) {
            None => Ok(Command::Version),
            Some(word) => Err(UsageError::new(format!("version {word}: unexpected; version takes nothing"))),
        },
        Some(word) if !word.starts_with('-') => Err(no_subcommand("", word)),
        _ => parse_serve(&words, types),
    }
}

fn no_subcommand(before: &str, word: &str) -> UsageError {
    let near = nearest(word, SUBCOMMANDS.iter().map(|(name, _)| *name));
    UsageError::new(format!(
        "{before}{word}: no such subcommand, and options start with - (see --help); {near}"
    ))
}

/// Parses `help [SUBCOMMAND]`; a command of `objects` may follow.
fn parse_help(words: &[String]) -> Result<Command, UsageError> {
    let topic = match words.first().map(String::as_str) {
        None | Some("serve" | "help" | "version" | "-h" | "--help") => HelpTopic::Program,
        Some("--help-all") => HelpTopic::All,
        Some("demo") => HelpTopic::Demo,
        Some("check") => HelpTopic::Check,
        Some("advise") => HelpTopic::Advise,
        Some("doctor") => HelpTopic::Doctor,
        Some("top") => HelpTopic::Top,
        Some("nodes") => HelpTopic::Nodes,
        Some("ping") => HelpTopic::Ping,
        Some("follow") => HelpTopic::Follow,
        Some("objects") => HelpTopic::Objects,
        Some("bench") => return Ok(Command::Bench(vec!["bench".to_owned(), "--help".to_owned()])),
        Some(word) => return Err(no_subcommand("help ", word)),
    };
    Ok(Command::Help(topic))
}

fn parse_demo(words: &[String]) -> Result<Command, UsageError> {
    let (mut keep, mut open, mut picture) = (false, false, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--keep" => keep = true,
            "--open" => open = true,
            "--picture" => {
                let file =
                    next_value(&mut words).ok_or_else(|| UsageError::new("demo --picture: needs a file"))?;
                picture = Some(PathBuf::from(file));
            }
            "-h" | "--help" => return Ok(Command::Help(HelpTopic::Demo)),
            _ => {
                return Err(UsageError::new(format!(
                    "demo {word}: unknown option; demo takes only --keep, --open and --picture FILE"
                )));
            }
        }
    }
    Ok(Command::Demo { keep, open, picture })
}

/// Parses `ADDR`.
fn parse_nodes(words: &[String]) -> Result<Command, UsageError> {
    match words {
        [word] if matches!(word.as_str(), "-h" | "--help") => Ok(Command::Help(HelpTopic::Nodes)),
        [server] if !server.starts_with('-') => Ok(Command::Nodes { server: server.clone() }),
        [] => Err(UsageError::new("nodes: needs host:port of a server".to_owned())),
        [_, word, ..] if !word.starts_with('-') => {
            Err(UsageError::new(format!("nodes {word}: unexpected; nodes takes one server")))
        }
        [word, ..] => {
            Err(UsageError::new(format!("nodes {word}: unknown option; nodes takes host:port of a server")))
        }
    }
}

/// Parses `TARGET`.
fn parse_ping(words: &[String]) -> Result<Command, UsageError> {
    match words {
        [word] if matches!(word.as_str(), "-h" | "--help") => Ok(Command::Help(HelpTopic::Ping)),
        [target] if !target.starts_with('-') => Ok(Command::Ping { target: target.clone() }),
        [] => Err(UsageError::new("ping: needs host:port, host:port/path or the path of a unix socket")),
        [_, word, ..] | [word] => {
            Err(UsageError::new(format!("ping {word}: unexpected; ping takes one server")))
        }
    }
}

/// Parses `FILE [--key K | --try K | --connect]`, in either order.
fn parse_check(words: &[String]) -> Result<Command, UsageError> {
    let (mut file, mut key, mut tried, mut server) = (None, None, None, None);
    let mut connect = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Command::Help(HelpTopic::Check)),
            "--connect" => connect = true,
            name @ ("--key" | "--try" | "--server") => {
                let what = if name == "--server" { "host:port of a server" } else { "a key" };
                let missing = || UsageError::new(format!("check {name}: needs a value: {what}"));
                let given = Some(next_value(&mut words).ok_or_else(missing)?.clone());
                *(match name {
                    "--key" => &mut key,
                    "--try" => &mut tried,
                    _ => &mut server,
                }) = given;
            }
            word if word.starts_with("--key=") => key = Some(word["--key=".len()..].to_owned()),
            word if word.starts_with("--server=") => server = Some(word["--server=".len()..].to_owned()),
            word if word.starts_with("--try=") => tried = Some(word["--try=".len()..].to_owned()),
            word if word.starts_with('-') => {
                let near = match most_similar(word, ["--key", "--try", "--server", "--connect"].into_iter()) {
                    Some("--server") => "did you mean --server <host:port>?".to_owned(),
                    Some("--connect") => "did you mean --connect?".to_owned(),
                    Some(meant) => format!("did you mean {meant} <key>?"),
                    None => {
                        "there are --key <key>, --try <key>, --server <host:port> and --connect".to_owned()
                    }
                };
                return Err(UsageError::new(format!("check {word}: unknown option; {near}")));
            }
            _ if file.is_some() => {
                return Err(UsageError::new(format!("check {word}: unexpected; check takes one file")));
            }
            word => file = Some(PathBuf::from(word)),
        }
    }
    match (file, tried) {
        (Some(file), None) => Ok(Command::Check { file, key, server, connect }),
        (Some(file), Some(tried)) if key.is_none() && server.is_none() && !connect => {
            Ok(Command::Try { file, key: tried })
        }
        (Some(_), Some(_)) => {
            let other = match (key, server) {
                (Some(_), _) => "--key",
                (None, Some(_)) => "--server",
                (None, None) => "--connect",
            };
            Err(UsageError::new(format!("check: takes one of {other} and --try; leave one of them out")))
        }
        (None, _) => {
            Err(UsageError::new("check: needs a rule file: check <file> [--key <key> | --try <key>]"))
        }
    }
}

/// Parses the options in ascending priority: the rule file's `[server]`, the options file, the command line.
fn parse_serve(words: &[String], types: &'static dyn TypeLoader) -> Result<Command, UsageError> {
    let settings = settings_of(words, types, |_| Ok(()))?;
    Ok(settings.map_or_else(Command::from, |settings| Command::Serve(Box::new(settings))))
}

/// The settings of the server under these options, or the printed text that they ask for. `look` sees the
/// settings of the command line alone, and may set the rule file.
pub(crate) fn settings_of(
    words: &[String],
    types: &'static dyn TypeLoader,
    look: impl FnOnce(&mut Settings) -> Result<(), UsageError>,
) -> Result<Result<Settings, InfoOption>, UsageError> {
    let mut settings = Settings::default();
    if let Some(stop) = parse_options(words, &mut settings).map_err(|(_, error)| error)? {
        return Ok(Err(stop));
    }
    let given = settings.options_file.take();
    let options = given.as_deref().map(OptionsFile::read).transpose()?.unwrap_or_default();
    if given.is_some() {
        settings = Settings::default();
        add_options(&options, words, &mut settings)?;
    }
    look(&mut settings)?;
    if let Some(path) = settings.config {
        // Options are parsed again, over the settings of the file.
        let file = RuleFile::load_with(&path, settings.objects_dir.as_deref(), types)
            .and_then(|file| file.for_server().map(|()| file))
            .map_err(|error| UsageError::new(error.to_string()))?;
        settings = Settings::default();
        file.server.apply(&mut settings)?;
        add_options(&options, words, &mut settings)?;
        settings.rule_file = Some(file);
    }
    settings.types = types;
    settings.options_read = given.map(|given| (given, options));
    settings.check()?;
    Ok(Ok(settings))
}

/// Adds the options of the file, then those of the command line.
fn add_options(options: &OptionsFile, words: &[String], settings: &mut Settings) -> Result<(), UsageError> {
    settings.notices.extend_from_slice(&options.notices);
    let stop = over_weaker(settings, |settings| parse_options(&options.words, settings))
        .map_err(|(index, error)| options.error(index, &error))?;
    if stop.is_some() {
        return Err(options.refuse("--help, --version or --license"));
    }
    if settings.options_file.take().is_some() {
        return Err(options.refuse("--options-file"));
    }
    // A service that reads such a file keeps the server in the foreground; only the command line sends it to
    // the background.
    settings.daemon = false;
    over_weaker(settings, |settings| parse_options(words, settings)).map_err(|(_, error)| error)?;
    if settings.listen.is_empty() && settings.unix_socket.is_none() {
        settings.notices.extend(options.no_address());
    }
    Ok(())
}

/// Reads options over weaker ones: an option that adds to a list begins a new list.
fn over_weaker<T>(settings: &mut Settings, read: impl FnOnce(&mut Settings) -> T) -> T {
    let listen = std::mem::take(&mut settings.listen);
    let verbosity = std::mem::take(&mut settings.verbosity);
    let result = read(settings);
    if settings.listen.is_empty() {
        settings.listen = listen;
    }
    if settings.verbosity == 0 {
        settings.verbosity = verbosity;
    }
    result
}

/// Parses options; returns the printed text that they ask for, if any. An error has the index of the word in
/// which the option begins.
fn parse_options(
    words: &[String],
    settings: &mut Settings,
) -> Result<Option<InfoOption>, (usize, UsageError)> {
    let count = words.len();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let index = count - words.as_slice().len() - 1;
        let parsed = if word == "--" {
            words.by_ref().for_each(|word| stray(word, settings));
            Ok(None)
        } else if let Some(long) = word.strip_prefix("--") {
            parse_long(long, &mut words, settings)
        } else if let Some(cluster) = word.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
            parse_cluster(cluster, &mut words, settings)
        } else {
            stray(word, settings);
            Ok(None)
        };
        match parsed {
            Ok(None) => {}
            Ok(stop) => return Ok(stop),
            Err(error) => return Err((index, error)),
        }
    }
    Ok(None)
}

/// Notes a word that is neither an option nor a value, which memcached ignores.
fn stray(word: &str, settings: &mut Settings) {
    settings.notices.push(stray_notice(word));
    settings.strays.push(word.to_owned());
}

pub(crate) fn stray_notice(word: &str) -> String {
    format!("{word}: ignored: every option starts with - (see --help)")
}

/// The option for the whole help. It is in no table, so that abbreviations of it mean `help`.
const HELP_ALL: &str = "help-all";

/// Parses a long option without its dashes: `port=11211`, or `port` with its value in the next word.
fn parse_long(
    text: &str,
    words: &mut std::slice::Iter<'_, String>,
    settings: &mut Settings,
) -> Result<Option<InfoOption>, UsageError> {
    let (name, attached) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if name == HELP_ALL && attached.is_none() {
        return Ok(Some(InfoOption::HelpAll));
    }
    let row = find_long(name)?;
    let shown = row.name.shown();
    if !row.kind.is_wanted() {
        if attached.is_some() {
            return Err(UsageError::new(format!(
                "{shown}: takes no value; leave out the = and what follows"
            )));
        }
        return apply(row, &shown, None, settings);
    }
    let value = match attached {
        Some(value) => value,
        None => next_word(row, &shown, &format!("{shown}="), words)?,
    };
    apply(row, &shown, Some(value), settings)
}

/// The next word, as the value of an option that is written `shown`. memcached takes an option that follows
/// as the value, and opens a socket with the name `-m`; here it is an error. `attached`: the option as it is
/// written before a value in the same word.
fn next_word<'w>(
    row: &OptionRow,
    shown: &str,
    attached: &str,
    words: &mut std::slice::Iter<'w, String>,
) -> Result<&'w str, UsageError> {
    let word = words.next().ok_or_else(|| missing(row, shown))?;
    // A - before the name of an options file belongs to the value.
    let may_begin_with_dash =
        matches!(row.name, OptionName::Switch { long: Some("options-file"), .. }) && !word.starts_with("--");
    if may_begin_with_dash || !is_option(word) {
        return Ok(word);
    }
    let error = missing(row, shown);
    Err(UsageError::new(format!(
        "{error}, and {word} is an option; write {attached}{word} if it is the value"
    )))
}

/// Whether the word begins with an option of the server.
fn is_option(word: &str) -> bool {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split_once('=').map_or(long, |(name, _)| name);
        return name.is_empty() || name == HELP_ALL || find_long(name).is_ok();
    }
    let letter = word.strip_prefix('-').and_then(|cluster| cluster.chars().next());
    letter.is_some_and(|letter| find_short(letter).is_some())
}

/// The row of a letter.
fn find_short(letter: char) -> Option<&'static OptionRow> {
    rows().find(|row| matches!(row.name, OptionName::Switch { short: Some(short), .. } if short == letter))
}

/// The next word as the value of an option of a subcommand, unless it is an option itself.
pub(crate) fn next_value<'w>(words: &mut std::slice::Iter<'w, String>) -> Option<&'w String> {
    words.as_slice().first().filter(|word| !word.starts_with("--"))?;
    words.next()
}

/// The row of a long name, or of the only name that begins with it.
fn find_long(name: &str) -> Result<&'static OptionRow, UsageError> {
    let longs = || {
        rows().filter_map(|row| match row.name {
            OptionName::Switch { long: Some(long), .. } => Some((long, row)),
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
        _ => Err(unknown("--", name, longs().map(|(long, _)| long).chain([HELP_ALL]))),
    }
}

/// Parses a cluster without its dash: `vvv`, `dp` with its value in the next word, or `p11211`.
fn parse_cluster(
    cluster: &str,
    words: &mut std::slice::Iter<'_, String>,
    settings: &mut Settings,
) -> Result<Option<InfoOption>, UsageError> {
    let mut rest = cluster;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        let row = find_short(letter)
            .ok_or_else(|| UsageError::new(format!("-{letter}: unknown option; --help-all lists all")))?;
        let shown = format!("-{letter}");
        if !row.kind.is_wanted() {
            if let Some(stop) = apply(row, &shown, None, settings)? {
                return Ok(Some(stop));
            }
            continue;
        }
        let value = if rest.is_empty() { next_word(row, &shown, &shown, words)? } else { rest };
        return apply(row, &shown, Some(value), settings);
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
