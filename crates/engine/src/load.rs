//! Loads: orders to compute missing values that the engine leaves for the server's loaders.
//!
//! A get of a key under a rule with a loader leaves an order to start a job; the lease belongs to the loader
//! and is known by its token. The server runs the job and brings its end to [`crate::Engine::finish_load`],
//! always, once for each job that was started.

use std::sync::Arc;

use crate::delivered::DeliveredValue;
use crate::rules::Rule;

/// What a loader is told.
#[derive(Debug)]
pub enum LoadOrder {
    /// Begin a job.
    Start(Load),
    /// Clients wait for the value of this refresh now: it is as urgent as its rule says.
    Raise {
        /// The token of its lease.
        token: u64,
    },
    /// The value does not count any more: if no worker has begun the job, it need not run, and a worker that
    /// has begun it may stop. It ends all the same.
    Cancel {
        /// The token of its lease.
        token: u64,
    },
}

/// A job: the computation of a key's value.
#[derive(Debug)]
pub struct Load {
    /// The key.
    pub key: Box<[u8]>,
    /// Bytes of the server's prefix with which it begins: the rule's pattern is that of what follows.
    pub prefix_len: usize,
    /// The token of its lease. Each job has another.
    pub token: u64,
    /// The key's rule, which names the loader.
    pub rule: Arc<Rule>,
    /// The hint of the client that asked last.
    pub hint: Option<Arc<[u8]>>,
    /// The old value, if the loader wants it and there is one.
    pub stale: Option<DeliveredValue>,
    /// No client waits for it.
    pub is_refresh: bool,
    /// When it was ordered, in milliseconds since the start.
    pub ordered_ms: u64,
}

impl Load {
    /// The key without the server's prefix.
    pub fn name(&self) -> &[u8] {
        &self.key[self.prefix_len..]
    }
}

/// The end of a job.
#[derive(Debug, Clone, Copy)]
pub enum LoadEnd<'a> {
    /// The value.
    Value {
        /// The value's bytes.
        data: &'a [u8],
        /// Client flags.
        flags: u32,
        /// Seconds to live: 0: it does not expire; below 0: it goes to the waiters and is not kept; None: as
        /// the rule says.
        ttl_s: Option<i64>,
        /// Tags that it has in addition to its rule's; together at most [`crate::rules::TAGS_MAX`].
        tags: &'a [&'a [u8]],
    },
    /// There is no such thing.
    NotFound {
        /// Seconds for which this counts; None: as the rule says.
        ttl_s: Option<u32>,
    },
    /// There is no value.
    Failed {
        /// Why, for the clients that asked for the lease; may be empty.
        text: &'a [u8],
        /// The kind of failure, which decides whether the key backs off.
        cause: LoadFailure,
    },
}

/// Why a job has ended without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFailure {
    /// The loader said so, or its answer cannot be used: the key backs off.
    Error,
    /// The job's worker was lost, or its time was up while it ran: another one begins at once, and then the
    /// key backs off.
    Lost,
    /// The job was never begun: the loader has too much to do, or cannot be started. The key does not back
    /// off: the loader does.
    Refused,
    /// The job was taken back before it was begun, or its worker has stopped since its value does not count.
    /// If its lease stands, a reload has replaced its pool: another one begins at once.
    Cancelled,
}

/// The outcome of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum LoadOutcome {
    /// The value, or that there is none, was stored, or given to the waiters.
    Stored,
    /// The job's lease had ended, or the key was invalidated meanwhile: the result was dropped.
    Late,
    /// There was no memory for the value: it counts as a failure.
    NoRoom,
    /// The value, with its key, is larger than items may be: it counts as a failure.
    TooLarge,
    /// The value has more tags than fit: it counts as a failure.
    TooManyTags,
    /// A failure under the lease that stands.
    Failed,
}
