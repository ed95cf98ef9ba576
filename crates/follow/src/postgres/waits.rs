//! Obstacles while a slot is made: transactions that had written when its making began, and no place for a
//! slot.

use std::time::Duration;

use crate::missing::Missing;
use crate::postgres::catalog::literal;
use crate::postgres::wire::PostgresConnection;
use crate::wire::OUR_NAME;
use crate::wire::{WireError, text};

/// Transactions that are named.
const NAMED: usize = 3;

/// Places of the database that are all taken, so that no other server can follow: slots, unless this one
/// `has_slot`, and two connections. Nothing while a server of ours follows: it may be this one.
pub(crate) async fn exhausted(
    connection: &mut PostgresConnection,
    has_slot: bool,
) -> Result<Vec<Missing>, WireError> {
    let sql = format!(
        "SELECT name, setting FROM pg_settings \
         WHERE NOT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = {} AND pid <> pg_backend_pid()) \
           AND (name = 'max_replication_slots' AND setting::int <= (SELECT count(*) FROM pg_replication_slots) \
             OR name = 'max_wal_senders' AND setting::int < 2 + (SELECT count(*) FROM pg_stat_replication WHERE pid <> pg_backend_pid()))",
        literal(OUR_NAME)
    );
    let rows = connection.query(&sql).await?;
    let taken = rows.iter().filter(|row| !has_slot || text(row, 0) != "max_replication_slots");
    let missing = taken.map(|row| {
        let (name, most) = (text(row, 0), text(row, 1));
        let (what, view) = match name {
            "max_wal_senders" => (
                format!("fewer than two of {most} connections for replication are free ({name})"),
                "pg_stat_replication",
            ),
            _ => (format!("all {most} replication slots are in use ({name})"), "pg_replication_slots"),
        };
        Missing {
            what,
            mend: format!(
                "end one of those in {view}, or ALTER SYSTEM SET {name} = {}; and restart the server",
                most.parse().unwrap_or(0) + 5
            ),
            is_fatal: false,
        }
    });
    Ok(missing.collect())
}

/// The transactions that have written, as long ago as this at least, each with the statement that ends it.
/// How old one is, is known only to roles that may read it; of others it is taken for young.
pub(crate) async fn writing(
    connection: &mut PostgresConnection,
    at_least: Duration,
) -> Result<Vec<Missing>, WireError> {
    let seconds = at_least.as_secs();
    let sql = format!(
        "SELECT l.pid::text, coalesce(a.application_name, ''), coalesce(extract(epoch FROM now() - a.xact_start)::int, 0) AS age, '' \
         FROM (SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted \
           AND pid <> pg_backend_pid()) l \
         LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
         WHERE coalesce(extract(epoch FROM now() - a.xact_start)::int, 0) >= {seconds} \
         UNION ALL \
         SELECT gid, database::text, extract(epoch FROM now() - prepared)::int, 'prepared' FROM pg_prepared_xacts \
         WHERE extract(epoch FROM now() - prepared)::int >= {seconds} \
         ORDER BY age DESC LIMIT {NAMED}"
    );
    let rows = connection.query(&sql).await?;
    let one = |who: String, age: &str, mend: String| {
        let since = if age == "0" { String::new() } else { format!(" for {age} s") };
        let what =
            format!("a slot cannot be made while a transaction that has written is open: {who}{since}");
        Missing { what, mend, is_fatal: false }
    };
    let blocker = |row| {
        let (id, name, age) = (text(row, 0), text(row, 1), text(row, 2));
        if text(row, 3) == "prepared" {
            let mend =
                format!("COMMIT PREPARED {0} or ROLLBACK PREPARED {0}, in database `{name}`", literal(id));
            return one(format!("the prepared transaction `{id}`"), age, mend);
        }
        let called = if name.is_empty() { String::new() } else { format!(", `{name}`") };
        let mend = format!("wait until it ends, or SELECT pg_terminate_backend({id})");
        one(format!("process {id} of the database{called}"), age, mend)
    };
    Ok(rows.iter().map(blocker).collect())
}
