//! The log: lines on standard error.
//!
//! What an operator must know (errors, warnings, notices of the start) is always written; `-v` adds what
//! happens, `-vv` requests and replies, `-vvv` internal steps. The level can change while the server runs
//! (command `verbosity`), so it is global, as standard error is.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::options::LogFormat;
use crate::time::unix_now;

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something asked for did not happen.
    Error,
    /// It goes on, but the operator may want to change something.
    Warning,
    /// Worth a line at every start or reload.
    Notice,
    /// `-v`: what happens, such as connections refused.
    Info,
    /// `-vv`: requests and replies.
    Debug,
    /// `-vvv`: internal steps.
    Trace,
}

impl Level {
    /// The least verbosity that writes it.
    fn verbosity(self) -> u8 {
        match self {
            Self::Error | Self::Warning | Self::Notice => 0,
            Self::Info => 1,
            Self::Debug => 2,
            Self::Trace => 3,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

static VERBOSITY: AtomicU8 = AtomicU8::new(0);
static JSON: AtomicU8 = AtomicU8::new(0);

/// Sets the format; before threads start.
pub fn set_format(format: LogFormat) {
    JSON.store(u8::from(format == LogFormat::Json), Ordering::Relaxed);
}

/// Sets the verbosity: the number of `-v`, or what the command `verbosity` says.
pub fn set_verbosity(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
}

/// The verbosity now, as `stats settings` shows it.
pub fn verbosity() -> u8 {
    VERBOSITY.load(Ordering::Relaxed)
}

/// Whether a line of this level would be written; ask before building a costly one.
pub fn enabled(level: Level) -> bool {
    level.verbosity() <= verbosity()
}

/// Writes a line if its level is enabled. `message` is a sentence without its full stop.
pub fn log(level: Level, message: impl Display) {
    if !enabled(level) {
        return;
    }
    let format = if JSON.load(Ordering::Relaxed) == 1 { LogFormat::Json } else { LogFormat::Text };
    let line = line(format, level, &message.to_string(), unix_now().as_millis());
    // One write for the line, so that lines of several threads do not mix. If standard error is gone there is
    // nobody left to tell.
    std::io::stderr().lock().write_all(line.as_bytes()).unwrap_or_default();
}

/// [`Level::Error`].
pub fn error(message: impl Display) {
    log(Level::Error, message);
}

/// [`Level::Warning`].
pub fn warning(message: impl Display) {
    log(Level::Warning, message);
}

/// [`Level::Notice`].
pub fn notice(message: impl Display) {
    log(Level::Notice, message);
}

/// [`Level::Info`].
pub fn info(message: impl Display) {
    log(Level::Info, message);
}

/// [`Level::Debug`].
pub fn debug(message: impl Display) {
    log(Level::Debug, message);
}

/// [`Level::Trace`].
pub fn trace(message: impl Display) {
    log(Level::Trace, message);
}

fn line(format: LogFormat, level: Level, message: &str, unix_ms: u128) -> String {
    let mut line = String::with_capacity(message.len() + 64);
    match format {
        LogFormat::Text => {
            line.push_str("cattlegrid: ");
            if level == Level::Warning {
                line.push_str("warning: ");
            }
            // A key or a path may contain anything; a line of the log stays one line.
            line.extend(message.chars().map(|c| if c.is_control() { '?' } else { c }));
        }
        LogFormat::Json => {
            let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
            write!(line, r#"{{"ts":{seconds}.{ms:03},"level":"{}","msg":""#, level.name())
                .expect("writing to a String cannot fail");
            for c in message.chars() {
                match c {
                    '"' | '\\' => line.extend(['\\', c]),
                    c if c.is_control() => {
                        write!(line, "\\u{:04x}", c as u32).expect("writing to a String cannot fail");
                    }
                    c => line.push(c),
                }
            }
            line.push_str("\"}");
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_in_either_format() {
        let text = |level, message| line(LogFormat::Text, level, message, 0);
        assert_eq!(text(Level::Error, "a\r\nb"), "cattlegrid: a??b\n");
        assert_eq!(text(Level::Warning, "a"), "cattlegrid: warning: a\n");
        assert_eq!(
            line(LogFormat::Json, Level::Info, "say \"a\\b\"\n", 1_700_000_000_042),
            "{\"ts\":1700000000.042,\"level\":\"info\",\"msg\":\"say \\\"a\\\\b\\\"\\u000a\"}\n"
        );
    }

    #[test]
    fn verbosity_opens_levels_one_by_one() {
        let all = [Level::Error, Level::Warning, Level::Notice, Level::Info, Level::Debug, Level::Trace];
        let open = |verbosity: u8| all.iter().filter(|level| level.verbosity() <= verbosity).count();
        assert_eq!([0, 1, 2, 3, 9].map(open), [3, 4, 5, 6, 6]);
    }
}
