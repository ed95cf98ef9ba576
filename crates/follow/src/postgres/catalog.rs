//! Requirements on a database, so that its log has all that is followed, and the statement that meets each.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::missing::Missing;
use crate::postgres::lacks::{no_column, no_table, not_logged};
use crate::postgres::standbys::counts_us;
use crate::postgres::wire::PostgresConnection;
use crate::rows::{Column, Relation, ReplicaIdentity, without_old};
use crate::tables::{Table, Template};
use crate::wire::{OUR_NAME, ResultRow, WireError, text};

/// First version of the server that can be followed.
const VERSION_MIN: u32 = 140_000;

/// A table that is followed, or a partition of one, as the catalog has it.
#[derive(Debug)]
pub(crate) struct CatalogTable {
    /// Which of the tables that are followed.
    pub(crate) table: usize,
    /// The relation as the stream will describe it.
    pub(crate) relation: Relation,
}

/// When the catalog is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadReason {
    /// Before the stream begins.
    Begin,
    /// While it runs.
    Again,
    /// By `check`, beside a server that may run.
    Check,
}

/// The objects that a source needs in a database.
#[derive(Debug, Clone)]
pub(crate) struct Requirements {
    pub(crate) publication: String,
    pub(crate) tables: Arc<[Table]>,
    /// The role that follows.
    pub(crate) user: String,
    /// The name of a permanent slot.
    pub(crate) slot: Option<String>,
}

/// The database's catalog, as far as it concerns the log.
#[derive(Debug, Default)]
pub(crate) struct PostgresCatalog {
    pub(crate) found: Vec<CatalogTable>,
    /// Other tables that the publication has.
    pub(crate) others: HashSet<u32>,
    /// A text of the definitions of what is followed. It differs after any change of a definition, even if
    /// the change was undone.
    pub(crate) mark: String,
    /// By table number: the transaction that has written the table's row in the catalog. TRUNCATE writes it
    /// as well.
    pub(crate) written: BTreeMap<u32, u32>,
    pub(crate) missing: Vec<Missing>,
}

/// The name in quotes, as SQL writes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The text in quotes, as SQL writes it.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl PostgresCatalog {
    /// Reads what is there of what is wanted.
    pub(crate) async fn read(
        connection: &mut PostgresConnection,
        wanted: &Requirements,
        asked: ReadReason,
    ) -> Result<Self, WireError> {
        let Requirements { publication, tables, user, slot } = wanted;
        let mut catalog = Self::default();
        catalog.read_server(connection, user).await?;
        if let Some(slot) = slot {
            catalog.read_slot(connection, slot, asked).await?;
        }
        let rows = connection
            .query(&format!(
                "SELECT puballtables, pubinsert AND pubupdate AND pubdelete, pubtruncate, pubviaroot, xmin::text \
                 FROM pg_publication WHERE pubname = {}",
                literal(publication)
            ))
            .await?;
        // Before the tables: a partition that is made meanwhile is one of them, or unknown, but not another
        // table.
        let published = connection.query(&published_sql(publication)).await?;
        let Some(found) = rows.first() else {
            let names: Vec<_> = tables.iter().map(|table| full_name(&table.schema, &table.name)).collect();
            catalog.missing.push(Missing {
                what: format!("there is no publication `{publication}`"),
                mend: format!("CREATE PUBLICATION {} FOR TABLE {}", quoted(publication), names.join(", ")),
                is_fatal: true,
            });
            return Ok(catalog);
        };
        if !is_true(found, 1) || !is_true(found, 2) {
            catalog.missing.push(Missing {
                what: format!(
                    "publication `{publication}` leaves out inserts, updates, deletes or truncates"
                ),
                mend: format!(
                    "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
                    quoted(publication)
                ),
                is_fatal: false,
            });
        }
        let via_root = is_true(found, 3);
        catalog.mark.push_str(text(found, 4));
        for (at, table) in tables.iter().enumerate() {
            catalog.read_table(connection, publication, via_root, (at, table)).await?;
        }
        let found: HashSet<u32> = catalog.found.iter().map(|found| found.relation.id).collect();
        let published = published.iter().filter_map(|row| text(row, 0).parse().ok());
        catalog.others = published.filter(|id| !found.contains(id)).collect();
        Ok(catalog)
    }

    async fn read_server(
        &mut self,
        connection: &mut PostgresConnection,
        user: &str,
    ) -> Result<(), WireError> {
        let rows = connection
            .query(
                "SELECT current_setting('server_version_num'), current_setting('wal_level'), pg_is_in_recovery(), \
                 rolreplication OR rolsuper OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' \
                   AND pg_has_role(current_user, oid, 'MEMBER')), \
                 current_setting('synchronous_standby_names'), \
                 EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication') FROM pg_roles WHERE rolname = current_user",
            )
            .await?;
        let Some(row) = rows.first() else { return Err(WireError::Protocol("no row about the role")) };
        let version = text(row, 0).parse().unwrap_or(0);
        if version < VERSION_MIN {
            self.missing.push(Missing {
                what: format!("the server is PostgreSQL {}", version / 10_000),
                mend: "PostgreSQL 14 or later can be followed".to_owned(),
                is_fatal: true,
            });
        }
        if text(row, 1) != "logical" {
            self.missing.push(Missing {
                what: format!("wal_level is `{}`", text(row, 1)),
                mend: "ALTER SYSTEM SET wal_level = 'logical'; and restart the server".to_owned(),
                is_fatal: true,
            });
        }
        if is_true(row, 2) {
            self.missing.push(Missing {
                what: "the server is a standby".to_owned(),
                mend: "follow the primary".to_owned(),
                is_fatal: true,
            });
        }
        if !is_true(row, 3) {
            self.missing.push(Missing {
                what: format!("role `{user}` may not replicate"),
                mend: if is_true(row, 5) {
                    format!("GRANT rds_replication TO {}", quoted(user))
                } else {
                    format!("ALTER ROLE {} REPLICATION", quoted(user))
                },
                is_fatal: true,
            });
        }
        if counts_us(text(row, 4)) {
            self.missing.push(Missing {
                what: format!(
                    "synchronous_standby_names is `{}`, and counts this server among the standbys for which commits wait",
                    text(row, 4)
                ),
                mend: "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (name of the standby)'; SELECT pg_reload_conf(); \
                       the name is the application_name of its primary_conninfo"
                    .to_owned(),
                is_fatal: true,
            });
        }
        Ok(())
    }

    /// A slot that is there must be one that can be followed, and that nobody else follows.
    async fn read_slot(
        &mut self,
        connection: &mut PostgresConnection,
        slot: &str,
        asked: ReadReason,
    ) -> Result<(), WireError> {
        let sql = format!(
            "SELECT plugin = 'pgoutput' AND slot_type = 'logical' AND database = current_database() AND NOT temporary, \
               active_pid, a.application_name, coalesce(host(a.client_addr), 'a socket') \
             FROM pg_replication_slots LEFT JOIN pg_stat_activity a ON a.pid = active_pid WHERE slot_name = {}",
            literal(slot)
        );
        let rows = connection.query(&sql).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (holder, name) = (text(row, 1), text(row, 2));
        // What is called as we are may be the server whose file is checked.
        let is_held = match asked {
            ReadReason::Begin => !holder.is_empty(),
            ReadReason::Check => !holder.is_empty() && name != OUR_NAME,
            ReadReason::Again => false,
        };
        if !is_true(row, 0) {
            self.missing.push(Missing {
                what: format!("slot `{slot}` is of another plugin, kind or database"),
                mend: format!("name another slot, or SELECT pg_drop_replication_slot({})", literal(slot)),
                is_fatal: true,
            });
        } else if is_held {
            let who = match name {
                "" => String::new(),
                name => format!(", `{name}` from {}", text(row, 3)),
            };
            self.missing.push(Missing {
                what: format!("slot `{slot}` is in use by process {holder} of the database{who}"),
                mend: format!(
                    "each server needs a slot of its own: name another, or end that one: SELECT pg_terminate_backend({holder})"
                ),
                is_fatal: true,
            });
        }
        Ok(())
    }

    fn miss(&mut self, what: String, mend: String) {
        self.missing.push(Missing { what, mend, is_fatal: false });
    }

    async fn read_table(
        &mut self,
        connection: &mut PostgresConnection,
        publication: &str,
        via_root: bool,
        (at, table): (usize, &Table),
    ) -> Result<(), WireError> {
        let name = full_name(&table.schema, &table.name);
        let rows = connection
            .query(&format!(
                "SELECT c.oid, c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = {} AND c.relname = {}",
                literal(&table.schema),
                literal(&table.name)
            ))
            .await?;
        let Some(row) = rows.first() else {
            self.missing.push(no_table(connection, table).await?);
            return Ok(());
        };
        let (oid, kind) = (text(row, 0).to_owned(), text(row, 1).to_owned());
        if let Some(missing) = not_logged(connection, (&oid, &kind, text(row, 2)), table).await? {
            self.missing.push(missing);
            return Ok(());
        }
        let mut unpublished = None;
        // The table itself, all partitions of it and what inherits from it: each has its own replica
        // identity.
        let rows = connection.query(&relations_sql(&oid, publication)).await?;
        for row in &rows {
            let (schema, part, kind) = (text(row, 1), text(row, 2), text(row, 3));
            let part_name = full_name(schema, part);
            self.mark.extend([";", text(row, 0), " ", text(row, 9)]);
            let number = |at| text(row, at).parse().unwrap_or(0);
            self.written.insert(number(0), number(8));
            let as_part = Table { schema: schema.to_owned(), name: part.to_owned(), ..table.clone() };
            let kinds = (text(row, 0), kind, text(row, 10));
            if let Some(missing) = not_logged(connection, kinds, &as_part).await? {
                self.missing.push(missing);
                continue;
            }
            let is_sent_as_root = via_root && text(row, 0) != oid;
            let is_published = !text(row, 5).is_empty();
            if kind == "p" && !via_root {
                // Its partitions are sent by their own names.
            } else if !is_published && !is_sent_as_root {
                // Of a partitioned table the table itself: it brings all partitions, later ones as well.
                unpublished.get_or_insert_with(|| part_name.clone());
            }
            if is_published && (!text(row, 6).is_empty() || is_true(row, 7)) {
                self.miss(
                    format!("publication `{publication}` leaves out rows or columns of {part_name}"),
                    format!(
                        "ALTER PUBLICATION {0} DROP TABLE {part_name}; ALTER PUBLICATION {0} ADD TABLE {part_name}",
                        quoted(publication)
                    ),
                );
            }
            let columns = connection.query(&columns_sql(text(row, 0))).await?;
            let relation = Relation {
                id: text(row, 0).parse().unwrap_or(0),
                schema: schema.to_owned(),
                name: part.to_owned(),
                identity: match text(row, 4) {
                    "f" => ReplicaIdentity::Full,
                    "n" => ReplicaIdentity::Nothing,
                    _ => ReplicaIdentity::Key,
                },
                columns: columns
                    .iter()
                    .map(|column| Column { name: text(column, 0).to_owned(), is_key: is_true(column, 1) })
                    .collect(),
            };
            if let Some((what, mend)) = lacks_of_rows(connection, table, &relation, kind).await? {
                self.miss(format!("{part_name} {what}"), mend);
            }
            for column in &columns {
                self.mark.extend([",", text(column, 2)]);
            }
            self.found.push(CatalogTable { table: at, relation });
        }
        // Last, since a table without an identity that is published refuses updates.
        let root = match unpublished {
            Some(_) if via_root => published_above(connection, &oid, publication).await?,
            _ => None,
        };
        if let Some(root) = root {
            self.missing.push(Missing {
                what: format!("publication `{publication}` sends the changes of {name} as those of {root}"),
                mend: format!(
                    "ALTER PUBLICATION {} SET (publish_via_partition_root = false), or write table = '{root}'",
                    quoted(publication)
                ),
                is_fatal: false,
            });
        } else if let Some(part_name) = unpublished {
            // What inherits from a table is added by itself, once the table is there.
            let added = if kind == "p" { &name } else { &part_name };
            self.missing.push(Missing {
                what: format!("{part_name} is not in publication `{publication}`"),
                mend: format!("ALTER PUBLICATION {} ADD TABLE {added}", quoted(publication)),
                is_fatal: false,
            });
        }
        Ok(())
    }
}

/// Requirements that a table, or a part of one, does not meet, so that its rows lack columns for their tags.
async fn lacks_of_rows(
    connection: &mut PostgresConnection,
    table: &Table,
    relation: &Relation,
    kind: &str,
) -> Result<Option<(String, String)>, WireError> {
    let full =
        || format!("ALTER TABLE {} REPLICA IDENTITY FULL", full_name(&relation.schema, &relation.name));
    let all = table.bump.iter().flat_map(Template::columns);
    let mut all = all.chain(table.columns.iter().flatten().map(String::as_str));
    if let Some(column) = all.find(|name| relation.columns.iter().all(|column| column.name != **name)) {
        return no_column(connection, &relation.id.to_string(), column).await.map(Some);
    }
    if kind == "r" && !identifies(relation) {
        let what = "has no key that names its rows (a deferrable one does not), and refuses updates and deletes while it is published";
        return Ok(Some((what.to_owned(), full())));
    }
    let column = without_old(table, relation).filter(|_| kind == "r");
    Ok(column.map(|column| (format!("logs a changed or deleted row without its old `{column}`"), full())))
}

/// Whether a row of it can be named in the log.
fn identifies(relation: &Relation) -> bool {
    match relation.identity {
        ReplicaIdentity::Full => true,
        ReplicaIdentity::Key => relation.columns.iter().any(|column| column.is_key),
        ReplicaIdentity::Nothing => false,
    }
}

/// The table above a partition that the publication has.
async fn published_above(
    connection: &mut PostgresConnection,
    oid: &str,
    publication: &str,
) -> Result<Option<String>, WireError> {
    let sql = format!(
        "SELECT p.schemaname, p.tablename FROM pg_partition_ancestors({oid}::oid::regclass) a JOIN pg_class c ON c.oid = a.relid \
         JOIN pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_publication_tables p ON p.schemaname = n.nspname AND p.tablename = c.relname \
         WHERE p.pubname = {} AND c.oid <> {oid}::oid",
        literal(publication)
    );
    let rows = connection.query(&sql).await?;
    Ok(rows.first().map(|row| full_name(text(row, 0), text(row, 1))))
}

/// The ids of all tables of a publication.
fn published_sql(publication: &str) -> String {
    format!(
        "SELECT c.oid FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = {}",
        literal(publication)
    )
}

/// The statement that reads a table, its partitions and the tables that inherit from it: id, schema, name,
/// kind, identity, whether it is published, row filter, whether columns are left out, versions of its
/// definition and of its place in the publication, persistence.
fn relations_sql(oid: &str, publication: &str) -> String {
    format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, p.tablename, \
           to_jsonb(p) ->> 'rowfilter', \
           jsonb_array_length(CASE jsonb_typeof(to_jsonb(p) -> 'attnames') WHEN 'array' THEN to_jsonb(p) -> 'attnames' END) \
             < (SELECT count(*) FROM pg_attribute a \
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''), \
           c.xmin::text, \
           (SELECT string_agg(r.oid::text, ' ' ORDER BY r.oid) FROM pg_publication_rel r JOIN pg_publication u ON u.oid = r.prpubid \
             WHERE u.pubname = {0} AND r.prrelid = c.oid), c.relpersistence \
         FROM (WITH RECURSIVE parts AS (SELECT {oid}::oid AS oid UNION \
           SELECT i.inhrelid FROM pg_inherits i JOIN parts ON i.inhparent = parts.oid) SELECT oid FROM parts) AS parts \
         JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_publication_tables p \
           ON p.pubname = {0} AND p.schemaname = n.nspname AND p.tablename = c.relname \
         ORDER BY c.oid <> {oid}::oid, c.oid",
        literal(publication)
    )
}

/// The statement that reads a table's columns: name, whether it belongs to the replica identity.
fn columns_sql(oid: &str) -> String {
    format!(
        "SELECT a.attname, EXISTS (SELECT FROM pg_index i, pg_class c WHERE c.oid = a.attrelid AND i.indrelid = c.oid \
           AND a.attnum = ANY (i.indkey) \
           AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident ELSE false END), \
           a.xmin::text || coalesce((SELECT string_agg(e.xmin::text, ' ' ORDER BY e.oid) FROM pg_type t, pg_enum e \
             WHERE t.oid = a.atttypid AND e.enumtypid IN (t.oid, t.typelem, t.typbasetype)), '') \
         FROM pg_attribute a WHERE a.attrelid = {oid}::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' \
         ORDER BY a.attnum"
    )
}

pub(crate) fn full_name(schema: &str, name: &str) -> String {
    let plain = |part: &str| {
        let plain =
            part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if plain { part.to_owned() } else { quoted(part) }
    };
    format!("{}.{}", plain(schema), plain(name))
}

pub(crate) fn is_true(row: &ResultRow, at: usize) -> bool {
    text(row, at) == "t"
}
