//! The binary `cattlegrid`: reads the command line and does what it says.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cattlegrid::log;
use cattlegrid::options::{self, AS_MEMCACHED, Command};

fn main() -> ExitCode {
    cattlegrid_panic::install();
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let as_memcached = Path::new(&name).file_name().is_some_and(|name| name == "memcached");
    // memcached has no subcommands.
    let words = as_memcached.then(|| "serve".into()).into_iter().chain(args);
    match options::parse_args(words) {
        Ok(command) => act(command, if as_memcached { AS_MEMCACHED } else { "" }),
        Err(error) => usage_error(&error),
    }
}

/// `first`: what the version and the help begin with.
fn act(command: Command, first: &str) -> ExitCode {
    match command {
        Command::Serve(settings) => match cattlegrid::serve(*settings) {
            Ok(()) => flushed(ExitCode::SUCCESS),
            Err(error) => {
                log_lines(&error);
                flushed(ExitCode::from(error.exit_status()))
            }
        },
        Command::Demo { keep } => done(cattlegrid::demo::demo(keep)),
        Command::Bench(options) => match cattlegrid::bench::bench(&options) {
            Ok(text) => print(&text),
            Err(error) => {
                log::error(format_args!("bench: {error}"));
                ExitCode::FAILURE
            }
        },
        Command::Check { file, key } => match cattlegrid::config::check(&file, key.as_deref()) {
            Ok(text) => print(&text),
            Err(error) => usage_error(&error),
        },
        Command::SubcommandHelp(text) => print(&text),
        Command::Help => print(&format!("{first}{}", options::help())),
        Command::Version => print(&format!("{first}{}\n", options::version())),
        Command::License => print(&options::license()),
    }
}

/// Gives the last lines of the log their time; whoever does not read them does not stop the end.
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
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}
