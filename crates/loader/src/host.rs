//! The interface between loaders and the program that runs them: the functions that loaders call, and their
//! messages.

use std::time::Instant;

use crate::finished::Finished;

/// The program that runs loaders. Its functions are called on threads of pools: they must be quick and must not wait.
pub trait Host: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Instant;

    /// Text for the log, one line or more, at a limited rate: words of workers, and what goes wrong with them.
    fn log(&self, severity: Severity, text: &str);

    /// A job that was submitted for this lane has ended. [`crate::Loaders::submit`] may call it as well.
    fn finished(&self, lane: usize, finished: Finished);
}

/// How important a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// A loader cannot do its work.
    Error,
    /// A job has failed, or a worker was lost.
    Warning,
    /// Output of a worker.
    Notice,
    /// A worker's message for debugging.
    Debug,
}
