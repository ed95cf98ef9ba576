//! The interface between loaders and the program that runs them: the functions that loaders call, and their
//! messages.

use std::time::Instant;

use crate::finished::Finished;

/// The program that runs loaders. Its functions are called on threads of pools: they must be quick and must
/// not wait.
pub trait Host: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Instant;

    /// Writes text to the log, one line or more: output of workers, and faults of them. The rate is limited.
    fn log(&self, severity: Severity, text: &str);

    /// Takes the end of a job that was submitted for this lane. [`crate::Loaders::submit`] may call it as
    /// well.
    fn finished(&self, lane: usize, finished: Finished);
}

/// The importance of a text.
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
