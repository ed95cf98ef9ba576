//! `cattlegrid objects`: types and their methods, calls without a server, tests, and checks of sources.
//!
//! Calls run in this process, on an engine of their own with the clock that the user sets ([`client`]). A transcript
//! ([`transcript`]) has requests, the exact lines of their replies, and times; `objects call` prints one. Sources of types of
//! users' own are loaded as by a server; [`mod@bench`] times calls, and [`lint`] says what is wrong with sources.

mod bench;
mod client;
mod lint;
mod list;
#[cfg(feature = "scripts")]
mod test_server;
mod tests_of_types;
mod transcript;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cattlegrid_config::{
    CallStep, Command, ConfigError, ObjectsCommand, Settings, TypeLoader, TypeSelection, UsageError,
    parse_args_with, show_moment,
};
use cattlegrid_objects::VirtualKey;

use client::ObjectClient;
#[cfg(feature = "scripts")]
pub(crate) use test_server::EngineServer;

use crate::own_types::TYPES;

/// What a subcommand has to say.
#[derive(Debug)]
pub(crate) struct Report {
    /// For standard output.
    pub(crate) text: String,
    /// False: status 1.
    pub(crate) is_good: bool,
}

/// Why a subcommand did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectsError {
    /// Words, a rule file, sources or a transcript cannot be used: status 2.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The settings of a transcript cannot be used: status 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A transcript is not what happens, or a test has failed, a line for each: status 1.
    #[error("{0}")]
    Differs(String),
    /// There is no memory for items: status 1.
    #[error("there is no memory for the items: {0}")]
    Memory(#[from] std::io::Error),
}

impl ObjectsError {
    /// The exit status for it.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Config(_) => 2,
            Self::Differs(_) | Self::Memory(_) => 1,
        }
    }
}

/// Does what is asked for; what to print.
///
/// # Errors
/// See [`ObjectsError`].
pub(crate) fn run(command: ObjectsCommand) -> Result<Report, ObjectsError> {
    let good = |text| Report { text, is_good: true };
    match command {
        ObjectsCommand::List { types, name } => {
            let objects = settings(&types)?.objects.expect("types are switched on");
            Ok(good(list::list(&objects.registry(), name.as_deref())?))
        }
        ObjectsCommand::Call { types, at_ms, steps } => call(&types, at_ms, &steps).map(good),
        ObjectsCommand::Test { config, paths } => tests_of_types::test(config.as_deref(), &paths).map(good),
        ObjectsCommand::Lint { paths } => Ok(lint::lint(&paths)?),
        ObjectsCommand::Bench { types, count, names } => {
            bench::bench(&settings(&types)?, count, &names).map(good)
        }
    }
}

/// The directories of types that a path stands for: a directory whose sources are all in folders stands for these folders,
/// and `lib` is for libraries.
fn directories(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    add_directories(path, DEPTH_MAX, &mut found);
    if found.is_empty() { vec![path.to_owned()] } else { found }
}

fn add_directories(path: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = path.read_dir() else { return };
    let is_shown = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name != "lib" && !name.as_encoded_bytes().starts_with(b"."))
    };
    let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_shown).collect();
    entries.sort();
    if entries.iter().any(|path| is_source(path)) {
        found.push(path.to_owned());
    } else if depth > 0 {
        let folders = entries.iter().filter(|path| path.is_dir() && !path.is_symlink());
        folders.for_each(|path| add_directories(path, depth - 1, found));
    }
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "luau" || end == "lua")
}

/// Makes the calls; what was asked and answered, as a transcript.
fn call(types: &TypeSelection, at_ms: Option<u64>, steps: &[CallStep]) -> Result<String, ObjectsError> {
    let settings = settings(types)?;
    let at_ms = at_ms.unwrap_or_else(now_ms);
    let mut client = ObjectClient::new(&settings, at_ms)?;
    let mut text = format!("@ {}\n", show_moment(at_ms));
    for step in steps {
        match step {
            CallStep::Wait(ms) => {
                client.wait(*ms).map_err(|problem| UsageError::new(format!("objects call: {problem}")))?;
                text.extend(["@ ", &show_moment(client.unix_ms()), "\n"]);
            }
            CallStep::Call(name) => {
                check_call(&client, "call", name)?;
                let line = format!("get {name}\r\n");
                text.push_str(&line);
                match client.send(line.as_bytes()) {
                    client::SendResult::Replies(replies) => text.push_str(&String::from_utf8_lossy(&replies)),
                    client::SendResult::Incomplete => unreachable!("a line is whole"),
                }
            }
        }
    }
    Ok(text.replace("\r\n", "\n"))
}

fn now_ms() -> u64 {
    u64::try_from(cattlegrid_server::time::unix_now().as_millis()).unwrap_or_default()
}

/// Whether it is the name of a call, which a client could send.
fn check_call(client: &ObjectClient, subcommand: &str, name: &str) -> Result<(), UsageError> {
    let wrong = |problem: &str| Err(UsageError::new(format!("objects {subcommand} {name}: {problem}")));
    if name.len() > KEY_BYTES_MAX || name.contains(|c: char| c == ' ' || c.is_ascii_control()) {
        return wrong("must be a key, up to 250 bytes without blanks");
    }
    match client.registry().named(name.as_bytes()) {
        Some(VirtualKey::Call(_)) => Ok(()),
        Some(VirtualKey::Object { .. }) => wrong("is the name of an object; write type:method:key"),
        None => wrong("is no name of a call; cattlegrid objects list shows the types and their methods"),
    }
}

/// Those of a server with these types.
fn settings(types: &TypeSelection) -> Result<Settings, ObjectsError> {
    match types {
        TypeSelection::Shipped => Ok(transcript::settings(Path::new("objects"), "", None)?),
        TypeSelection::Config(path) => {
            let settings = server_settings(&[("--config", path)], TYPES)?;
            if settings.objects.is_none() {
                return Err(no_objects(path).into());
            }
            Ok(settings)
        }
        TypeSelection::Dir(path) => Ok(server_settings(&[("--objects", path)], TYPES)?),
    }
}

/// Those of a server with these options.
fn server_settings(
    options: &[(&str, &Path)],
    types: &'static dyn TypeLoader,
) -> Result<Settings, UsageError> {
    let words = options.iter().flat_map(|(name, path)| [OsString::from(name), path.into()]);
    let Command::Serve(settings) =
        parse_args_with([OsString::from("serve")].into_iter().chain(words), types)?
    else {
        unreachable!("the words are those of a server")
    };
    Ok(*settings)
}

fn no_objects(file: &Path) -> UsageError {
    UsageError::new(format!("{}: has no [objects], so no type is switched on; add it", file.display()))
}

/// Folders within each other in which types are looked for.
const DEPTH_MAX: usize = 8;
/// Whether it is a file of tests of types.
fn is_test(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.ends_with(".test.luau") || path.ends_with(".test.lua")
}

/// `1 request`, `2 requests`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Bytes of a key, as in memcached.
const KEY_BYTES_MAX: usize = 250;
