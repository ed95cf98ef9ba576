//! The log: lines on standard error, written by a thread of their own.
//!
//! Lines that an operator must know (errors, warnings, notices of the start) are always written; `-v` adds
//! events, `-vv` requests and replies, `-vvv` internal steps. The level can change while the server runs
//! (command `verbosity`), so it is global, as standard error is.
//!
//! Until [`start`], a line is written at once by its caller, who waits for a bounded time: a mistake in the
//! options must be on the terminal before the process ends. From then on callers only append to a bounded
//! queue (`queue`), and the thread `log` formats and writes lines (`writer`). [`flush`] waits for that
//! thread, for a bounded time.
//!
//! # Invariants
//! * After [`start`] no caller waits for standard error, whether it is read or not.
//! * Lines leave in the order in which they were queued. Lines left out are counted, and a later line says
//!   how many.
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
use queue::{LogLine, LogQueue};

/// The importance of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// A request or an option could not be carried out.
    Error,
    /// The server continues, but the operator may want to change something.
    Warning,
    /// Worth a line at every start or reload.
    Notice,
    /// `-v`: events, such as refused connections.
    Info,
    /// `-vv`: requests and replies.
    Debug,
    /// `-vvv`: internal steps.
    Trace,
}

impl Level {
    /// The least verbosity at which the line is written.
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

/// Sets the format; to be called before threads start.
pub fn set_format(format: LogFormat) {
    JSON.store(u8::from(format == LogFormat::Json), Ordering::Relaxed);
}

/// Sets the verbosity: the number of `-v`, or the argument of the command `verbosity`.
pub fn set_verbosity(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
}

/// The present verbosity, as `stats settings` shows it.
pub fn verbosity() -> u8 {
    VERBOSITY.load(Ordering::Relaxed)
}

/// Whether a line of this level would be written; to be checked before building an expensive one.
pub fn enabled(level: Level) -> bool {
    level.verbosity() <= verbosity()
}

/// The queue, and the signals between its threads.
struct Log {
    state: Mutex<LogState>,
    /// Notifies the thread `log`: there are lines to write, or it must end.
    work: Condvar,
    /// Notifies [`flush`]: everything is written.
    idle: Condvar,
}

struct LogState {
    queue: LogQueue,
    /// Whether the thread runs and lines are queued.
    started: bool,
    /// Whether lines are being written.
    writing: bool,
    /// Whether a thread waits in [`flush`]: suppressed lines are reported at once.
    flushing: bool,
    /// How long a caller that writes its own line waits for standard error.
    patience: Duration,
    written: u64,
}

static LOG: Log = Log {
    state: Mutex::new(LogState {
        queue: LogQueue::new(),
        started: false,
        writing: false,
        flushing: false,
        patience: PATIENCE,
        written: 0,
    }),
    work: Condvar::new(),
    idle: Condvar::new(),
};

/// How long standard error is waited for at first; shorter after it was waited for without effect.
const PATIENCE: Duration = Duration::from_secs(1);

fn state() -> MutexGuard<'static, LogState> {
    // No code panics with this lock held; and the message of a panic elsewhere must get through.
    LOG.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of log lines since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCounts {
    /// Lines written to standard error.
    pub written: u64,
    /// Lines dropped because the queue was full, or standard error closed.
    pub dropped: u64,
    /// Lines suppressed because there were too many of the same kind in a second.
    pub limited: u64,
}

/// The counts of written, dropped and suppressed lines.
pub fn counts() -> LogCounts {
    let state = state();
    LogCounts { written: state.written, dropped: state.queue.dropped(), limited: state.queue.limited() }
}

/// Starts the thread that writes. To be called after the last fork, and after signals are blocked, since the
/// thread inherits the mask.
///
/// From here on the message of a panic is a line of the log as well.
///
/// # Errors
/// The system cannot make another thread.
pub fn start() -> std::io::Result<()> {
    let mut state = state();
    if !state.started {
        std::thread::Builder::new().name("log".to_owned()).spawn(writer::run)?;
        state.started = true;
        cattlegrid_panic::print_with(panicked);
    }
    Ok(())
}

/// Waits until everything is written, at most `within`. False: some lines are not written. Before [`start`]
/// there is nothing to wait for.
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

/// Writes a line if its level is enabled. `message`: a sentence without its full stop.
///
/// Below `-vv`, each place in the code may write ten lines a second, since clients and their machines can
/// cause most of them.
#[track_caller]
pub fn log(level: Level, message: impl Display) {
    log_all(level, Location::caller(), || [message.to_string()]);
}

/// Writes each line of `text` as a line; for the limit of lines a second they count as one.
#[track_caller]
pub fn lines(level: Level, text: impl Display) {
    let text = text.to_string();
    // An empty text writes no line.
    if !text.is_empty() {
        log_all(level, Location::caller(), || text.lines().map(str::to_owned).collect::<Vec<_>>());
    }
}

fn log_all<I>(level: Level, kind: queue::CallSite, messages: impl FnOnce() -> I)
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
        let line = LogLine::new(level, at, message);
        if state.started {
            state.queue.push(line, kind);
            LOG.work.notify_one();
        } else {
            state.write_now(&line);
        }
    }
}

impl LogState {
    fn admits(&mut self, kind: queue::CallSite, level: Level, at: Duration) -> bool {
        // A user who asks for requests in the log wants all of them.
        if !self.started || level.verbosity() > Level::Info.verbosity() {
            return true;
        }
        let was_limiting = self.queue.is_limiting();
        let admitted = self.queue.admit(kind, at);
        if self.queue.is_limiting() && !was_limiting {
            // The thread must wake when the second is over.
            LOG.work.notify_one();
        }
        admitted
    }

    fn write_now(&mut self, line: &LogLine) {
        match writer::write_within(std::io::stderr(), line.text().as_bytes(), self.patience) {
            Ok(()) => self.written += 1,
            Err(error) => {
                if error.kind() == std::io::ErrorKind::TimedOut {
                    self.patience = Duration::ZERO;
                }
                self.queue.count_lost(std::slice::from_ref(line));
            }
        }
    }
}

/// The panic hook. The standard library's writes to standard error itself, and would wait for it.
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
    // A panic of an unguarded thread ends the process, so the line is flushed. A guarded thread continues,
    // and does not wait for standard error.
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

impl LogLine {
    /// The name of the level in a line.
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
            // A key or a path may contain any character; the line must stay one line.
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
