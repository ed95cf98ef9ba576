//! Why a table or a column cannot be followed, and what can be named in its place.

use crate::missing::Missing;
use crate::postgres::catalog::{full_name, literal};
use crate::postgres::wire::PostgresConnection;
use crate::tables::Table;
use crate::wire::{WireError, text};

/// Schemas of the system.
const SYSTEM: [&str; 3] = ["pg_catalog", "information_schema", "pg_toast"];

const fn missing(what: String, mend: String) -> Missing {
    Missing { what, mend, is_fatal: false }
}

/// There is no table of that name; perhaps one in another schema, or with capitals.
pub(crate) async fn no_table(
    connection: &mut PostgresConnection,
    table: &Table,
) -> Result<Missing, WireError> {
    let what = format!("there is no table {}", full_name(&table.schema, &table.name));
    let sql = format!(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE lower(c.relname) = lower({0}) AND c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') \
         ORDER BY c.relname <> {0}, n.nspname <> {1}, 1, 2 LIMIT 3",
        literal(&table.name),
        literal(&table.schema)
    );
    let rows = connection.query(&sql).await?;
    let named: Vec<String> = rows
        .iter()
        .map(|row| {
            let (schema, name) = (text(row, 0).to_owned(), text(row, 1).to_owned());
            let written = Table { schema, name, ..table.clone() }.full_name();
            format!("table = '{written}'")
        })
        .collect();
    let mend = if named.is_empty() {
        "name a table of this database".to_owned()
    } else {
        format!("write {}", named.join(" or "))
    };
    Ok(missing(what, mend))
}

/// Why the changes of what has this id, kind and persistence are not in the log; None: they are.
pub(crate) async fn not_logged(
    connection: &mut PostgresConnection,
    (oid, kind, persistence): (&str, &str, &str),
    table: &Table,
) -> Result<Option<Missing>, WireError> {
    let name = full_name(&table.schema, &table.name);
    let leave_out = || "leave it out".to_owned();
    let (what, mend) = if SYSTEM.contains(&table.schema.as_str()) {
        ("belongs to the system, whose changes are in no publication", leave_out())
    } else {
        match (kind, persistence) {
            // A partitioned table has no rows of its own.
            ("r" | "p", "p") | ("p", "u") => return Ok(None),
            ("r", "u") => {
                ("is unlogged: its changes are not in the log", format!("ALTER TABLE {name} SET LOGGED"))
            }
            ("r" | "p", _) => {
                ("is temporary: only its own session sees it", "make it without TEMPORARY".to_owned())
            }
            ("v", _) => ("is a view, and has no rows of its own", read_by(connection, oid).await?),
            ("m", _) => {
                let tables = read_by(connection, oid).await?;
                let mend = format!("{tables}; set `again` above the time until it is refreshed");
                ("is a materialized view, whose refresh is not in the log", mend)
            }
            ("f", _) => (
                "is a foreign table: its changes are in the log of another server",
                "follow that server in a [follow.NAME] of its own".to_owned(),
            ),
            _ => ("is no table", leave_out()),
        }
    };
    Ok(Some(missing(format!("{name} {what}"), mend)))
}

/// The tables that a view reads.
async fn read_by(connection: &mut PostgresConnection, oid: &str) -> Result<String, WireError> {
    let sql = format!(
        "WITH RECURSIVE read AS (SELECT {oid}::oid AS oid UNION \
           SELECT d.refobjid FROM read JOIN pg_rewrite w ON w.ev_class = read.oid \
           JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass) \
         SELECT n.nspname, c.relname FROM read JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p') ORDER BY 1, 2"
    );
    let rows = connection.query(&sql).await?;
    let names: Vec<_> = rows.iter().map(|row| full_name(text(row, 0), text(row, 1))).collect();
    Ok(if names.is_empty() {
        "name the tables that it reads".to_owned()
    } else {
        format!("name the tables that it reads: {}", names.join(", "))
    })
}

/// Why a table has no such column in the log.
pub(crate) async fn no_column(
    connection: &mut PostgresConnection,
    oid: &str,
    column: &str,
) -> Result<(String, String), WireError> {
    let sql = format!(
        "SELECT a.attname, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a \
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated <> '' \
         WHERE a.attrelid = {oid}::oid AND a.attnum > 0 AND NOT a.attisdropped AND lower(a.attname) = lower({0}) \
         ORDER BY a.attname <> {0}",
        literal(column)
    );
    let rows = connection.query(&sql).await?;
    let found = rows.first().map(|row| (text(row, 0), text(row, 1)));
    Ok(match found {
        Some((name, expression)) if name == column => (
            format!("has `{column}`, which is generated, and is not in the log"),
            format!("name the columns of which it is made: {expression}"),
        ),
        Some((name, _)) => (format!("has no column `{column}`"), format!("write {{{name}}}")),
        None => (format!("has no column `{column}`"), "name a column that it has".to_owned()),
    })
}
