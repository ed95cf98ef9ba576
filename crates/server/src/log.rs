//! The log: lines on standard error, written by a thread of their own.
//!
//! What an operator must know (errors, warnings, notices of the start) is always written; `-v` adds what
//! happens, `-vv` requests and replies, `-vvv` internal steps. The level can change while the server runs
//! (command `verbosity`), so it is global, as standard error is.
//!
//! Until [`start`] a line is written at once by its caller, with a bounded wait: a mistake in the options must
//! be on the terminal before the process ends. From then on callers only append to a queue of bounded size
//! (`queue`), and the thread `log` formats and writes (`writer`). [`flush`] waits for it, for a bounded time.
//!
//! # Invariants
//! * After [`start`] no caller waits for standard error, whether it is read or not.
//! * Lines leave in the order in which they were queued. Lines left out are counted, and a later line says how many.
//! * The flags of standard error are never changed: it is shared with the process that started this one.

mod queue;
mod writer;

use std::fmt::{Display, Write as _};
use std::panic::{Location, PanicHookInfo};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cattlegrid_config::LogFormat;

use crate::time::unix_now;
use queue::{Line, Queue};

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

/// The verbosity from which on requests are logged.
pub const REQUESTS: u8 = 2;

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

/// The queue, and who works on it.
struct Log {
    state: Mutex<LogState>,
    /// There are lines to write, or an end to come to.
    work: Condvar,
    /// Everything is written.
    idle: Condvar,
}

struct LogState {
    queue: Queue,
    /// The thread runs: lines are queued.
    started: bool,
    /// Lines are being written.
    writing: bool,
    /// A thread waits in [`flush`]: say at once what was left out.
    flushing: bool,
    /// How long a line that is written by its caller waits for standard error.
    patience: Duration,
    written: u64,
}

static LOG: Log = Log {
    state: Mutex::new(LogState {
        queue: Queue::new(),
        started: false,
        writing: false,
        flushing: false,
        patience: PATIENCE,
        written: 0,
    }),
    work: Condvar::new(),
    idle: Condvar::new(),
};

/// How long standard error is waited for, until it was waited for once without effect.
const PATIENCE: Duration = Duration::from_secs(1);

fn state() -> MutexGuard<'static, LogState> {
    // Nothing panics with it held; and the message of a panic elsewhere must get through.
    LOG.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lines of the log since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCounts {
    /// Written to standard error.
    pub written: u64,
    /// Dropped because the queue was full, or standard error closed.
    pub dropped: u64,
    /// Left out because there were too many of the same kind in a second.
    pub limited: u64,
}

/// How many lines were written and left out.
pub fn counts() -> LogCounts {
    let state = state();
    LogCounts { written: state.written, dropped: state.queue.dropped(), limited: state.queue.limited() }
}

/// Starts the thread that writes. After the last fork, and after signals are blocked, which it inherits.
///
/// From here on the message of a panic is a line of the log as well.
///
/// # Errors
/// The system's, when there can be no more threads.
pub fn start() -> std::io::Result<()> {
    let mut state = state();
    if !state.started {
        std::thread::Builder::new().name("log".to_owned()).spawn(writer::run)?;
        state.started = true;
        cattlegrid_panic::print_with(panicked);
    }
    Ok(())
}

/// Waits until everything is written, `within` this time. False: something is not. Without [`start`] nothing ever
/// waits.
pub fn flush(within: Duration) -> bool {
    let mut state = state();
    if !state.started {
        return true;
    }
    state.flushing = true;
    LOG.work.notify_one();
    let pending = |state: &mut LogState| state.writing || state.flushing;
    let waited = LOG.idle.wait_timeout_while(state, within, pending);
    !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
}

/// Writes a line if its level is enabled. `message` is a sentence without its full stop.
///
/// Of what is written without `-vv`, each place in the code gets ten lines a second: clients and their
/// machines can bring about most of them.
#[track_caller]
pub fn log(level: Level, message: impl Display) {
    log_all(level, Location::caller(), || [message.to_string()]);
}

/// Writes each line of `text` as a line; the limit of lines a second takes them for one.
#[track_caller]
pub fn lines(level: Level, text: impl Display) {
    let text = text.to_string();
    // No line counts as none.
    if !text.is_empty() {
        log_all(level, Location::caller(), || text.lines().map(str::to_owned).collect::<Vec<_>>());
    }
}

fn log_all<I>(level: Level, kind: queue::Kind, messages: impl FnOnce() -> I)
where
    I: IntoIterator<Item = String>,
{
    if !enabled(level) {
        return;
    }
    let at = unix_now();
    if !state().admits(kind, level, at) {
        return;
    }
    let messages = messages();
    let mut state = state();
    for message in messages {
        let line = Line::new(level, at, message);
        if state.started {
            state.queue.push(line, kind);
            LOG.work.notify_one();
        } else {
            state.write_now(&line);
        }
    }
}

impl LogState {
    fn admits(&mut self, kind: queue::Kind, level: Level, at: Duration) -> bool {
        // A user that asks for requests in the log wants all of them.
        if !self.started || level.verbosity() > Level::Info.verbosity() {
            return true;
        }
        let was_limiting = self.queue.is_limiting();
        let admitted = self.queue.admit(kind, at);
        if self.queue.is_limiting() && !was_limiting {
            // The thread must be back when the second is over.
            LOG.work.notify_one();
        }
        admitted
    }

    fn write_now(&mut self, line: &Line) {
        match writer::write_within(std::io::stderr(), line.text().as_bytes(), self.patience) {
            Ok(()) => self.written += 1,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::TimedOut {
                    self.patience = Duration::ZERO;
                }
                self.queue.lose(std::slice::from_ref(line));
            }
        }
    }
}

/// Instead of the standard library's, which writes to standard error itself and would wait for it.
fn panicked(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    lines(Level::Error, format_args!("thread {name} panicked at {place}: {message}"));
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        lines(Level::Error, trace);
    }
    // The end of an unguarded thread is the process's; a guarded one goes on, and does not wait for standard error.
    if !cattlegrid_panic::is_guarded() {
        flush(PATIENCE);
    }
}

/// [`Level::Error`].
#[track_caller]
pub fn error(message: impl Display) {
    log(Level::Error, message);
}

/// [`Level::Warning`].
#[track_caller]
pub fn warning(message: impl Display) {
    log(Level::Warning, message);
}

/// [`Level::Notice`].
#[track_caller]
pub fn notice(message: impl Display) {
    log(Level::Notice, message);
}

/// [`Level::Info`].
#[track_caller]
pub fn info(message: impl Display) {
    log(Level::Info, message);
}

/// [`Level::Debug`].
#[track_caller]
pub fn debug(message: impl Display) {
    log(Level::Debug, message);
}

/// [`Level::Trace`].
#[track_caller]
pub fn trace(message: impl Display) {
    log(Level::Trace, message);
}

impl Line {
    /// As it is written.
    fn text(&self) -> String {
        let format = if JSON.load(Ordering::Relaxed) == 1 { LogFormat::Json } else { LogFormat::Text };
        line(format, self.level, &self.message, self.at.as_millis())
    }
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
            line.extend(message.chars().map(|c| match c {
                '\t' => ' ',
                c if c.is_control() => '?',
                c => c,
            }));
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
            text(Level::Notice, "line\t1\x1b"),
            "cattlegrid: line 1?\n",
            "tabs separate what is printed"
        );
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
