//! The state of a followed log, as statistics and pages show it.

use cattlegrid_follow::FollowerState;
use cattlegrid_follow::postgres::{LeftOut, Missing};

/// The state of a log's follower.
#[derive(Debug, Clone, Default)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "its thread reads more of it than the statistics do")
)]
pub(crate) struct LogView {
    pub(crate) state: Option<FollowerState>,
    /// Rows of which a tag was left out.
    pub(crate) left_out: LeftOut,
    /// Invalidated tags; a tag counts once in each transaction.
    pub(crate) bumps: u64,
    /// Connections made.
    pub(crate) connects: u64,
    /// Connections that ended, and attempts that failed.
    pub(crate) losses: u64,
    /// Why the last connection ended or failed; None while there is a connection.
    pub(crate) lost: Option<String>,
    /// The system identifier and timeline.
    pub(crate) identity: String,
    /// Settings and rights that the database lacks.
    pub(crate) missing: Vec<Missing>,
    /// The longest time from the request for the head of the log to its confirmation, in milliseconds: in
    /// this minute, and in the last.
    pub(crate) lag_ms_max: [u64; 2],
    /// The number of the minute of `lag_ms_max[0]`.
    pub(crate) minute: u64,
    /// The node that follows the log for the fleet, if one does that for all; empty: none at present.
    pub(crate) leader: Option<String>,
    /// The fleet, if this server writes into the log.
    pub(crate) fleet: Option<FleetView>,
}

impl LogView {
    /// Notes a confirmation of the head that was requested at `asked_at_ms`.
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

/// The state of a fleet, and counts of the bumps that this server has handed to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FleetView {
    /// Listed nodes.
    pub(crate) nodes: u64,
    /// Bumps that are not in the log yet.
    pub(crate) backlog: u64,
    /// Bumps of clients.
    pub(crate) sent: u64,
    /// Replies that waited for the log.
    pub(crate) waited: u64,
    /// Replies that reported an unconfirmed bump.
    pub(crate) not_confirmed: u64,
}

#[cfg(feature = "etcd")]
impl FleetView {
    pub(crate) fn of(writer: &crate::fleet::BumpWriter) -> Self {
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
