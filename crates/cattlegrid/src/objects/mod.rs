//! `cattlegrid objects`: types and their methods, calls without a server, and transcripts of calls as tests.
//!
//! Calls run in this process, on an engine of their own with the clock that the user sets ([`client`]). A transcript
//! ([`transcript`]) has requests, the exact lines of their replies, and times; `objects call` prints one.

mod client;
mod list;
mod transcript;

use std::path::PathBuf;

use cattlegrid_config::{
    CallStep, Command, ConfigError, ObjectsCommand, Settings, UsageError, parse_args, show_moment,
};
use cattlegrid_objects::Named;

use client::Client;

/// Why a subcommand did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectsError {
    /// Words, a rule file or a transcript cannot be used: status 2.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The settings of a transcript cannot be used: status 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A transcript is not what happens, a line for each file: status 1.
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
pub(crate) fn run(command: ObjectsCommand) -> Result<String, ObjectsError> {
    match command {
        ObjectsCommand::List { name } => Ok(list::list(name.as_deref())?),
        ObjectsCommand::Call { config, at_ms, steps } => call(config, at_ms, &steps),
        ObjectsCommand::Test { files } => test(&files),
    }
}

/// Makes the calls; what was asked and answered, as a transcript.
fn call(config: Option<PathBuf>, at_ms: Option<u64>, steps: &[CallStep]) -> Result<String, ObjectsError> {
    let settings = settings(config)?;
    let now = || u64::try_from(cattlegrid_server::time::unix_now().as_millis()).unwrap_or_default();
    let at_ms = at_ms.unwrap_or_else(now);
    let mut client = Client::new(&settings, at_ms)?;
    let mut text = format!("@ {}\n", show_moment(at_ms));
    for step in steps {
        match step {
            CallStep::Wait(ms) => {
                client.wait(*ms).map_err(|problem| UsageError::new(format!("objects call: {problem}")))?;
                text.extend(["@ ", &show_moment(client.unix_ms()), "\n"]);
            }
            CallStep::Call(name) => {
                check_call(&client, name)?;
                let line = format!("get {name}\r\n");
                text.push_str(&line);
                match client.send(line.as_bytes()) {
                    client::Sent::Replies(replies) => text.push_str(&String::from_utf8_lossy(&replies)),
                    client::Sent::Incomplete => unreachable!("a line is whole"),
                }
            }
        }
    }
    Ok(text.replace("\r\n", "\n"))
}

/// Whether it is the name of a call, which a client could send.
fn check_call(client: &Client, name: &str) -> Result<(), UsageError> {
    let wrong = |problem: &str| Err(UsageError::new(format!("objects call {name}: {problem}")));
    if name.len() > KEY_BYTES_MAX || name.contains(|c: char| c == ' ' || c.is_ascii_control()) {
        return wrong("must be a key, up to 250 bytes without blanks");
    }
    match client.registry().named(name.as_bytes()) {
        Some(Named::Call(_)) => Ok(()),
        Some(Named::Object { .. }) => wrong("is the name of an object; write type:method:key"),
        None => wrong("is no name of a call; cattlegrid objects list shows the types and their methods"),
    }
}

/// Runs all transcripts; a line for each.
fn test(files: &[PathBuf]) -> Result<String, ObjectsError> {
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    for file in files {
        let cannot = |error| UsageError::new(format!("{}: cannot be read: {error}", file.display()));
        let text = cattlegrid_config::read_file(file).map_err(cannot)?;
        match transcript::run(file, &text)? {
            Ok(requests) => passed.push(format!("{}: {requests} requests\n", file.display())),
            Err(difference) => failed.push(difference),
        }
    }
    if failed.is_empty() { Ok(passed.concat()) } else { Err(ObjectsError::Differs(failed.join("\n"))) }
}

/// Those of a server with this rule file, or with all types.
fn settings(config: Option<PathBuf>) -> Result<Settings, ObjectsError> {
    let Some(path) = config else { return Ok(transcript::settings(&PathBuf::from("objects"), "")?) };
    let words = ["serve".into(), "--config".into(), path.clone().into_os_string()];
    let Command::Serve(settings) = parse_args(words)? else {
        unreachable!("the words are those of a server")
    };
    if settings.objects.is_none() {
        let problem = format!("{}: has no [objects], so no type is switched on; add it", path.display());
        return Err(UsageError::new(problem).into());
    }
    Ok(*settings)
}

/// Bytes of a key, as in memcached.
const KEY_BYTES_MAX: usize = 250;
