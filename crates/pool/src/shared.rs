//! Data that the handles of a pool and its thread share: the inbox, the counters, and the limits that are checked before a
//! job is submitted.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::inbox::Inbox;
use crate::options::QueuePolicy;
use crate::stats::Counters;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Counters,
    pub(crate) max_frame: u32,
    pub(crate) job_timeout: Option<Duration>,
    pub(crate) queue_limit: usize,
    pub(crate) queue_policy: QueuePolicy,
    /// Jobs beyond the queue that workers can hold: `max * load`.
    pub(crate) slack: AtomicUsize,
}
