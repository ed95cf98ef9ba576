//! The binary `cattlegrid`: reads the command line and does what it says.

mod advise;
mod demo;
mod doctor;
mod nodes;
mod objects;
mod own_types;
mod ping;
mod running;
mod socket;
mod top;
mod trial;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cattlegrid_config::{self as config, AS_MEMCACHED, Command, HelpTopic};
use cattlegrid_load::{BenchCommand, BenchError};
use cattlegrid_server::log;

use own_types::TYPES;

fn main() -> ExitCode {
    cattlegrid_panic::install();
    if let Some(status) = cattlegrid_server::stay_as_first_process() {
        return ExitCode::from(status);
    }
    demo::worker::serve_if_asked();
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let as_memcached = Path::new(&name).file_name().is_some_and(|name| name == "memcached");
    // memcached has no subcommands.
    let words = as_memcached.then(|| "serve".into()).into_iter().chain(args);
    match config::parse_args_with(words, TYPES) {
        Ok(command) => act(command, if as_memcached { AS_MEMCACHED } else { "" }),
        Err(error) => usage_error(&error),
    }
}

/// `first`: what the version and the help begin with.
fn act(command: Command, first: &str) -> ExitCode {
    match command {
        Command::Serve(settings) => match cattlegrid_server::serve(*settings) {
            Ok(()) => flushed(ExitCode::SUCCESS),
            Err(error) => {
                log_lines(&error);
                flushed(ExitCode::from(error.exit_status()))
            }
        },
        Command::Demo { keep, open, picture } => done(demo::demo(keep, open, picture.as_deref())),
        Command::Bench(words) => match bench(&words) {
            Ok(text) => print(&text),
            Err(error @ BenchError::Usage(_)) => usage_error(&format_args!("bench: {error}")),
            Err(error) => {
                log::error(format_args!("bench: {error}"));
                ExitCode::FAILURE
            }
        },
        Command::Check { file, key, server, connect } => check(&file, key.as_deref(), server, connect),
        Command::Doctor(command) => match doctor::run(*command) {
            Ok(diagnosis) => {
                let printed = print(&diagnosis.text);
                if diagnosis.is_good { printed } else { ExitCode::FAILURE }
            }
            Err(error) => usage_error(&format_args!("doctor {error}")),
        },
        Command::Top(command) => match top::top(&command) {
            Ok(text) => text.map_or(ExitCode::SUCCESS, |text| print(&text)),
            Err(error) => {
                log::error(format_args!("top: {error}"));
                ExitCode::FAILURE
            }
        },
        Command::Nodes { server } => match nodes::table(&server) {
            Ok(text) => print(&text),
            Err(error) => {
                log::error(format_args!("nodes {error}"));
                ExitCode::FAILURE
            }
        },
        Command::Ping { target } => match ping::ping(&target) {
            Ok(line) => print(&(line + "\n")),
            Err(error) => {
                log::error(format_args!("ping {error}"));
                ExitCode::FAILURE
            }
        },
        Command::Follow(command) => follow(&command),
        Command::Try { file, key } => match config::LoaderTrial::new(&file, &key, TYPES) {
            Ok(trial) => match trial::run(trial) {
                Ok(text) => print(&text),
                Err(error) => {
                    log_lines(&error);
                    ExitCode::FAILURE
                }
            },
            Err(error) => usage_error(&error),
        },
        Command::Advise(command) => {
            let advice = advise::advise(&command);
            let printed = if advice.text.is_empty() { ExitCode::SUCCESS } else { print(&advice.text) };
            match advice.problem {
                None => printed,
                Some(problem) => {
                    log::error(format_args!("advise: {problem}"));
                    ExitCode::FAILURE
                }
            }
        }
        Command::Objects(command) => match objects::run(command) {
            Ok(report) => {
                let printed = print(&report.text);
                if report.is_good { printed } else { ExitCode::FAILURE }
            }
            Err(error) => {
                log_lines(&error);
                flushed(ExitCode::from(error.exit_status()))
            }
        },
        // Scripts look there for options of memcached.
        Command::Help(HelpTopic::Program) if !first.is_empty() => {
            print(&format!("{first}{}", HelpTopic::All.text()))
        }
        Command::Help(topic) => print(&format!("{first}{}", topic.text())),
        Command::Version => print(&format!("{first}{}\n", config::version())),
        Command::License => print(&config::license()),
    }
}

/// `check`: what the file means, then what a running server and the databases say of it.
fn check(file: &Path, key: Option<&str>, server: Option<String>, connect: bool) -> ExitCode {
    let mut text = match config::check(file, key, TYPES) {
        Ok(text) => text,
        Err(error) => return usage_error(&error),
    };
    if let Ok(Err(error)) =
        config::RuleFile::load(file, TYPES).map(|file| cattlegrid_server::auth::check_users(&file))
    {
        return usage_error(&error);
    }
    match server.map(|address| running::matches(&address)).transpose() {
        Ok(said) => text += &said.unwrap_or_default(),
        Err(error) => {
            log::error(format_args!("check --server {error}"));
            return ExitCode::FAILURE;
        }
    }
    if !connect {
        return print(&text);
    }
    match config::RuleFile::load(file, TYPES) {
        Ok(file) => {
            let (said, is_good) = cattlegrid_server::check_logs(&file.follows);
            let printed = print(&(text + &said));
            if is_good { printed } else { ExitCode::FAILURE }
        }
        Err(error) => usage_error(&error),
    }
}

/// `follow`: deletes keys on memcached servers until a signal comes.
#[cfg(feature = "postgres")]
fn follow(command: &config::FollowCommand) -> ExitCode {
    let file = match config::RuleFile::load(&command.file, TYPES) {
        Ok(file) => file,
        Err(error) => return usage_error(&error),
    };
    match file.log_of_keys(command.log.as_deref()) {
        Ok(log) => flushed(done(cattlegrid_server::delete_keys(log, command))),
        Err(error) => usage_error(&error),
    }
}

/// The same without it.
#[cfg(not(feature = "postgres"))]
fn follow(_: &config::FollowCommand) -> ExitCode {
    usage_error(
        &"follow: this program was built without the cargo feature `postgres`; build it with the feature",
    )
}

/// `words` with the subcommand; the report, or the help.
fn bench(words: &[String]) -> Result<String, BenchError> {
    match BenchCommand::parse(words)? {
        BenchCommand::Load(options) => cattlegrid_load::bench(&options),
        BenchCommand::Help(text) => Ok(text),
    }
}

/// Gives the last lines of the log their time; a reader that does not take them does not stop the end.
fn flushed(status: ExitCode) -> ExitCode {
    log::flush(Duration::from_secs(1));
    status
}

fn done<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// A rule file can have several things wrong with it, each on a line.
fn log_lines(error: &dyn std::fmt::Display) {
    log::lines(log::Level::Error, error);
}

fn usage_error(error: &dyn std::fmt::Display) -> ExitCode {
    log_lines(error);
    ExitCode::from(2)
}

/// Prints what was asked for; a reader that has gone (`cattlegrid -h | head`) is no error.
fn print(text: &str) -> ExitCode {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            log::error(format_args!("standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
