//! The repeated question on the second connection: the server's identity, the end of its log, and the
//! transactions that a reader sees.

use std::fmt;

use crate::log::Snapshot;
use crate::postgres::catalog::is_true;
use crate::postgres::pgoutput::Lsn;
use crate::postgres::standbys::counts_us;
use crate::postgres::wire::PostgresConnection;
use crate::wire::{ResultRow, WireError};

/// The reply to a probe.
#[derive(Debug)]
pub(crate) struct PostgresProbe {
    pub(crate) identity: PostgresIdentity,
    pub(crate) head: Lsn,
    pub(crate) snapshot: PostgresSnapshot,
    /// The stream's process waits neither for its client nor for the log.
    pub(crate) works: bool,
}

/// System identifier and timeline: other ones after a promotion or a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostgresIdentity {
    pub(crate) system: String,
    pub(crate) timeline: String,
}

impl fmt::Display for PostgresIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "system {}, timeline {}", self.system, self.timeline)
    }
}

/// `pg_current_snapshot()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostgresSnapshot {
    /// The first transaction that had not begun.
    next: u64,
    running: Vec<u64>,
}

impl PostgresSnapshot {
    /// Reads `10:20:10,14,15`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').skip(1);
        let next = parts.next()?.parse().ok()?;
        let running =
            parts.next()?.split(',').filter(|id| !id.is_empty()).map(str::parse).collect::<Result<_, _>>();
        Some(Self { next, running: running.ok()? })
    }
}

impl Snapshot<u32> for PostgresSnapshot {
    fn sees(&self, transaction: &u32) -> bool {
        // The stream has the lower half only: the one of that half that is nearest.
        let ahead = transaction.wrapping_sub(self.next as u32).cast_signed();
        let whole = self.next.wrapping_add_signed(i64::from(ahead));
        ahead < 0 && !self.running.contains(&whole)
    }

    fn running(&self) -> Vec<u32> {
        self.running.iter().map(|transaction| *transaction as u32).collect()
    }
}

/// Asks which server it is.
pub(crate) async fn identify(connection: &mut PostgresConnection) -> Result<PostgresIdentity, WireError> {
    let rows = connection.query("IDENTIFY_SYSTEM").await?;
    let text = |at: usize| rows.first().and_then(|row: &ResultRow| row.get(at).cloned().flatten());
    match (text(0), text(1)) {
        (Some(system), Some(timeline)) => Ok(PostgresIdentity { system, timeline }),
        _ => Err(WireError::Protocol("no system identifier")),
    }
}

/// Asks for the head and a snapshot. `process`: that of the stream.
pub(crate) async fn probe(
    connection: &mut PostgresConnection,
    process: i32,
) -> Result<PostgresProbe, WireError> {
    let identity = identify(connection).await?;
    let sql = format!(
        "SELECT pg_current_snapshot(), CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END, \
         current_setting('synchronous_standby_names'), \
         EXISTS (SELECT FROM pg_stat_get_activity({process}) WHERE coalesce(wait_event_type, '') NOT IN ('Activity', 'Client'))"
    );
    let rows = connection.query(&sql).await?;
    let text = |at: usize| rows.first().and_then(|row| row.get(at).cloned().flatten());
    let snapshot =
        text(0).and_then(|text| PostgresSnapshot::parse(&text)).ok_or(WireError::Protocol("no snapshot"))?;
    if text(2).is_some_and(|names| counts_us(&names)) {
        // Commits would wait for us, and we wait until they are visible.
        return Err(WireError::Standby);
    }
    let head = text(1).and_then(|text| Lsn::parse(&text));
    let head = head.ok_or(WireError::Protocol("the server became a standby"))?;
    let works = rows.first().is_some_and(|row| is_true(row, 3));
    Ok(PostgresProbe { identity, head, snapshot, works })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_of_half_numbers() {
        let seen = PostgresSnapshot::parse("10:20:10,14").unwrap();
        assert!(seen.sees(&9) && seen.sees(&19));
        assert!(!seen.sees(&10) && !seen.sees(&14) && !seen.sees(&20) && !seen.sees(&21));
        assert_eq!(seen.running(), [10, 14]);
        assert_eq!(
            PostgresSnapshot::parse("10:10:"),
            Some(PostgresSnapshot { next: 10, running: Vec::new() })
        );
        assert_eq!(PostgresSnapshot::parse("10"), None);
        // The lower half begins again at 0.
        let over = PostgresSnapshot { next: (3 << 32) + 5, running: vec![(3 << 32) - 2, (3 << 32) + 1] };
        assert!(over.sees(&0) && over.sees(&u32::MAX) && over.sees(&4));
        assert!(!over.sees(&(u32::MAX - 1)) && !over.sees(&1) && !over.sees(&5));
    }
}
