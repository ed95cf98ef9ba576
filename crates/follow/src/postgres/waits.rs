//! What a slot waits for while it is made: transactions that had written when it began.

use std::time::Duration;

use crate::postgres::catalog::{literal, text};
use crate::postgres::missing::Missing;
use crate::postgres::wire::{Connection, WireError};

/// Transactions that are named.
const NAMED: usize = 3;

/// The transactions that have written, as long ago as this at least, each with the statement that ends it. How old one is, is known only
/// to roles that may read it; of others it is taken for young.
pub(crate) async fn writing(
    connection: &mut Connection,
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
