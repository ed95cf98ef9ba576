//! Whether a permanent slot goes on with the history that was followed.
//!
//! A database that was restored from a copy of its files has the slot of that time, the same system
//! identifier and the same timeline, but what was committed after the copy was made is gone, and other
//! transactions take its positions. What tells the two apart is the last commit that was received: a slot
//! that stands before it sends it again, unless it is not there any more.

use crate::postgres::catalog::literal;
use crate::postgres::pgoutput::Lsn;
use crate::postgres::wire::PostgresConnection;
use crate::wire::WireError;

/// Why everything is invalidated.
pub(crate) const OTHER_HISTORY: &str =
    "the database was restored: the last transaction that was followed is not in its log";

/// A commit of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedCommit {
    /// Behind its record.
    pub(crate) end: Lsn,
    pub(crate) transaction: u32,
    /// The time of the commit as the log has it, in microseconds since 2000.
    pub(crate) time: u64,
}

/// The last commit that was received, and whether it must come again before anything behind it.
#[derive(Debug, Default)]
pub(crate) struct SlotHistory {
    last: Option<ReceivedCommit>,
    is_expected: bool,
}

impl SlotHistory {
    /// The history of a node that goes on after another one, with the last commit that the other had
    /// received.
    pub(crate) fn resumed(last: Option<ReceivedCommit>) -> Self {
        Self { last, is_expected: false }
    }

    /// The last commit that was received.
    pub(crate) fn last(&self) -> Option<ReceivedCommit> {
        self.last
    }

    /// A stream begins. `from`: where its slot stands; None: it goes on with nothing.
    pub(crate) fn begins(&mut self, from: Option<Lsn>) {
        match from {
            Some(from) => self.is_expected = self.last.is_some_and(|last| from < last.end),
            None => *self = Self::default(),
        }
    }

    /// A commit has come. Whether it shows that the history is another one.
    pub(crate) fn committed(&mut self, commit: ReceivedCommit) -> bool {
        let last = self.last.filter(|_| self.is_expected);
        let is_other = last.is_some_and(|last| commit.end >= last.end && commit != last);
        if last.is_none_or(|last| commit.end >= last.end) {
            *self = Self { last: Some(commit), is_expected: false };
        }
        is_other
    }

    /// Nothing comes any more before `position`. Whether that shows that the history is another one.
    pub(crate) fn passed(&mut self, position: Lsn) -> bool {
        let is_other = self.is_expected && self.last.is_some_and(|last| position >= last.end);
        self.is_expected &= !is_other;
        is_other
    }

    /// The log ends at `head`. Whether that shows that the history is another one.
    pub(crate) fn ends(&mut self, head: Lsn) -> bool {
        let is_other = self.is_expected && self.last.is_some_and(|last| head < last.end);
        self.is_expected &= !is_other;
        is_other
    }
}

/// Where a permanent slot stands; None: there is none. A slot that has lost its log is dropped, so that it is
/// made anew, unless it is only `looked` at; `is_lost`: it is known to have, whatever it says.
pub(crate) async fn slot_position(
    connection: &mut PostgresConnection,
    slot: &str,
    is_lost: bool,
    looked: bool,
) -> Result<Option<Lsn>, WireError> {
    let sql = format!(
        "SELECT wal_status, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = {}",
        literal(slot)
    );
    let rows = connection.query(&sql).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
    if text(0) == "lost" || is_lost {
        if looked {
            return Ok(None);
        }
        connection.query(&format!("SELECT pg_drop_replication_slot({})", literal(slot))).await?;
        return Ok(None);
    }
    Lsn::parse(text(1)).map(Some).ok_or(WireError::Protocol("a slot without a position"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: ReceivedCommit = ReceivedCommit { end: Lsn(100), transaction: 7, time: 1 };

    fn stopped_at_last() -> SlotHistory {
        let mut history = SlotHistory::default();
        history.begins(None);
        assert!(!history.committed(LAST));
        history
    }

    #[test]
    fn the_last_commit_comes_again() {
        let mut history = stopped_at_last();
        history.begins(Some(Lsn(50)));
        assert!(!history.ends(Lsn(100)) && !history.passed(Lsn(99)));
        assert!(!history.committed(ReceivedCommit { end: Lsn(60), transaction: 5, time: 0 }));
        assert!(!history.committed(LAST));
        assert!(
            !history.passed(Lsn(200))
                && !history.committed(ReceivedCommit { end: Lsn(150), transaction: 9, time: 2 })
        );
        // The slot had been told of it.
        let mut history = stopped_at_last();
        history.begins(Some(Lsn(100)));
        assert!(!history.ends(Lsn(90)) && !history.passed(Lsn(120)));
    }

    #[test]
    fn another_history_is_noticed_once() {
        let other = |commit: ReceivedCommit| {
            let mut history = stopped_at_last();
            history.begins(Some(Lsn(50)));
            let is_other = history.committed(commit);
            assert!(!history.passed(Lsn(1000)) || !is_other, "twice");
            is_other
        };
        assert!(
            other(ReceivedCommit { time: 2, ..LAST }) && other(ReceivedCommit { transaction: 8, ..LAST })
        );
        assert!(other(ReceivedCommit { end: Lsn(101), ..LAST }));
        for says in [
            |history: &mut SlotHistory| history.passed(Lsn(100)),
            |history: &mut SlotHistory| history.ends(Lsn(99)),
        ] {
            let mut history = stopped_at_last();
            history.begins(Some(Lsn(50)));
            assert!(says(&mut history) && !says(&mut history));
        }
    }
}
