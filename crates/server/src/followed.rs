//! What is known of a log that is followed.

use cattlegrid_follow::FollowerState;
use cattlegrid_follow::postgres::{LeftOut, Missing};

/// What is known of a log's follower.
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "its thread reads more of it than the statistics do")
)]
pub(crate) struct View {
    pub(crate) state: Option<FollowerState>,
    /// Rows of which a tag was left out.
    pub(crate) left_out: LeftOut,
    /// Tags that were invalidated, without repetition in one transaction.
    pub(crate) bumps: u64,
    /// Connections that were made.
    pub(crate) connects: u64,
    /// Connections that ended or could not be made.
    pub(crate) losses: u64,
    /// Why the last connection ended or could not be made; None while there is one.
    pub(crate) lost: Option<String>,
    /// System identifier and timeline.
    pub(crate) identity: String,
    /// What the database lacks.
    pub(crate) missing: Vec<Missing>,
    /// Longest time between the question for a head and its confirmation, in milliseconds, in this minute and the last.
    pub(crate) lag_ms_max: [u64; 2],
    /// Since the clock's beginning, of `lag_ms_max[0]`.
    pub(crate) minute: u64,
    /// Of a log that one node follows for all: which one does, empty if none.
    pub(crate) leader: Option<String>,
    /// Of a log into which this server writes.
    pub(crate) fleet: Option<FleetView>,
}

impl View {
    /// Takes note of a confirmation.
    #[cfg(feature = "postgres")]
    pub(crate) fn confirmed(&mut self, asked_at_ms: u64, now_ms: u64) {
        let minute = now_ms / 60_000;
        if minute != self.minute {
            self.lag_ms_max = [0, if minute == self.minute + 1 { self.lag_ms_max[0] } else { 0 }];
            self.minute = minute;
        }
        self.lag_ms_max[0] = self.lag_ms_max[0].max(now_ms.saturating_sub(asked_at_ms));
    }
}

/// What is known of a fleet, and of the bumps that this server has left for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FleetView {
    /// Nodes that are listed.
    pub(crate) nodes: u64,
    /// Bumps that are not in the log yet.
    pub(crate) backlog: u64,
    /// Bumps of clients.
    pub(crate) sent: u64,
    /// Replies that waited for the log.
    pub(crate) waited: u64,
    /// Replies that said that a bump is not confirmed.
    pub(crate) not_confirmed: u64,
}

#[cfg(feature = "etcd")]
impl FleetView {
    pub(crate) fn of(writer: &crate::fleet::Writer) -> Self {
        use std::sync::atomic::Ordering::Relaxed;
        let seen = writer.seen();
        Self {
            nodes: seen.nodes.len() as u64,
            backlog: writer.mail.backlog() as u64,
            sent: writer.sent.load(Relaxed),
            waited: writer.waited.load(Relaxed),
            not_confirmed: writer.not_confirmed.load(Relaxed),
        }
    }
}
