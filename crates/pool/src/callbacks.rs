//! The callbacks of a pool: events, errors, output of workers, the end.
//!
//! All of them run on the pool's thread. A panic in one is caught and reported, and the pool goes on.

use std::sync::Arc;

use crate::error::PoolError;
use crate::event::{Event, EventBuffer};

/// Callbacks, all called on the pool's thread: they must be quick and must not wait for the pool.
#[derive(Default)]
pub(crate) struct Callbacks {
    pub(crate) on_event: Option<Box<dyn FnMut(Event) + Send>>,
    pub(crate) on_error: Option<ErrorFn>,
    pub(crate) on_destroy: Option<Box<dyn FnOnce() + Send>>,
    pub(crate) on_log: Option<LogFn>,
    pub(crate) stream: Option<Arc<EventBuffer>>,
}

type ErrorFn = Box<dyn FnMut(&PoolError) + Send>;
type LogFn = Box<dyn FnMut(LogChunk<'_>) + Send>;

/// Lines of a worker's output, or a line of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogChunk<'a> {
    /// Number of the worker; 0 for the template.
    pub worker: u64,
    /// Severity of a LOG frame, 1 error to 4 debug; 0 for bytes from stdout or stderr.
    pub level: u8,
    /// Whole lines of output, each with its line end. A line of more than 4 KiB comes in pieces; a line that
    /// is not finished within 100 ms comes as it is, with a line end. For a LOG frame its text, without a
    /// line end.
    pub bytes: &'a [u8],
}
