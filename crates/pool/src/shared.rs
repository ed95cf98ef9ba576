//! Data that the handles of a pool and its thread share: the inbox, the counters, and the limits that are
//! checked before a job is submitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::inbox::Inbox;
use crate::options::QueuePolicy;
use crate::stats::Counters;

/// See the module.
#[derive(Debug)]
pub(crate) struct PoolShared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Counters,
    pub(crate) max_frame: u32,
    pub(crate) job_timeout: Option<Duration>,
    pub(crate) queue_limit: usize,
    pub(crate) queue_policy: QueuePolicy,
    /// Jobs beyond the queue that workers can hold: `max * load`.
    pub(crate) slack: AtomicUsize,
}

impl PoolShared {
    /// Longest arguments of a job, bytes: 16 less than a frame, for the fields in front of them, with room to
    /// spare.
    pub(crate) fn max_args(&self) -> usize {
        self.max_frame as usize - 16
    }

    /// Jobs that may be submitted before queue and workers hold as many as they can.
    pub(crate) fn room(&self) -> usize {
        let all = self.queue_limit.saturating_add(self.slack.load(Ordering::Relaxed));
        all.saturating_sub(self.inbox.backlog.load(Ordering::Relaxed))
    }

    /// Why a job whose arguments have `len` bytes is refused at once, when `room` more jobs may be submitted.
    pub(crate) fn refusal(&self, len: usize, room: usize) -> Option<Error> {
        let max = self.max_args();
        if self.inbox.closed.load(Ordering::SeqCst) {
            Some(self.inbox.refusal())
        } else if len > max {
            Some(Error::TooLarge { len, max })
        } else if self.queue_policy == QueuePolicy::Reject && room == 0 {
            self.inbox.refused.fetch_add(1, Ordering::Relaxed);
            Some(Error::Rejected)
        } else {
            None
        }
    }
}
