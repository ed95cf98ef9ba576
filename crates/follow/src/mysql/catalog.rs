//! Requirements on a server, so that its log has all that is followed, and the statement that meets each.

use std::collections::BTreeSet;

use crate::missing::Missing;
use crate::mysql::definitions::{CatalogColumn, TargetPurpose, TargetTable};
use crate::mysql::position::BinlogPosition;
use crate::mysql::server::ServerSettings;
use crate::mysql::statement::name;
use crate::mysql::value::ValueShape;
use crate::mysql::wire::MysqlConnection;
use crate::tables::{Cascade, Table, Template};
use crate::wire::{ResultRow, WireError, text};

/// First versions that can be followed.
const MARIADB_MIN: (u32, u32) = (10, 5);
const MYSQL_MIN: (u32, u32) = (8, 0);

/// Since this version of MySQL rows that change by foreign keys are in the log.
const CASCADES_LOGGED: (u32, u32) = (9, 6);

/// A log that is kept for less is worth a line of `check`, in seconds.
const KEPT_MIN: u64 = 3600;

/// Engines whose changes are logged when they become visible.
const ENGINES: [&str; 2] = ["INNODB", "ROCKSDB"];

/// Parents of parents that are looked for.
const PARENTS_MAX: usize = 200;

/// The server's catalog, as far as it concerns the log.
#[derive(Debug)]
pub(crate) struct MysqlCatalog {
    pub(crate) server: ServerSettings,
    pub(crate) targets: Vec<TargetTable>,
    pub(crate) missing: Vec<Missing>,
    /// How far the log was afterwards, and what its files are called.
    pub(crate) head: Option<(String, BinlogPosition)>,
    /// The account that follows, as a GRANT names it.
    pub(crate) account: String,
}

/// A foreign key that changes rows of its table.
struct ForeignKey {
    parent: Table,
    columns: Vec<String>,
    on_delete: String,
    on_update: String,
}

/// The name in quotes, as SQL writes it.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// The text in quotes, as SQL writes it in the mode of our sessions.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn full(table: &Table) -> String {
    format!("{}.{}", quoted(&table.schema), quoted(&table.name))
}

impl MysqlCatalog {
    /// Reads what is there of what is wanted. `is_check`: it is asked before, and by a person.
    pub(crate) async fn read(
        connection: &mut MysqlConnection,
        tables: &[Table],
        is_check: bool,
    ) -> Result<Self, WireError> {
        let server = ServerSettings::read(connection).await?;
        let rows = connection.query("SELECT CURRENT_USER()").await?;
        let account = account(rows.first().map_or("", |row| text(row, 0)));
        let mut catalog = Self { server, targets: Vec::new(), missing: Vec::new(), head: None, account };
        catalog.read_settings(is_check);
        catalog.read_head(connection, tables, true).await?;
        for table in tables {
            catalog.read_table(connection, table).await?;
        }
        for table in tables {
            catalog.read_keys(connection, table).await?;
        }
        // Once more: what was read is so at some moment before.
        catalog.read_head(connection, tables, false).await?;
        Ok(catalog)
    }

    /// Records that a table, or a part of it, may not be read.
    fn miss_right(&mut self, table: &Table, what: String) {
        let mend = format!("GRANT SELECT ON {} TO {}", full(table), self.account);
        self.miss(false, what, mend);
    }

    fn miss(&mut self, is_fatal: bool, what: impl Into<String>, mend: impl Into<String>) {
        let missing = Missing { what: what.into(), mend: mend.into(), is_fatal };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    fn read_settings(&mut self, is_check: bool) {
        let server = self.server.clone();
        let (least, product) = (if server.is_mariadb { MARIADB_MIN } else { MYSQL_MIN }, server.product());
        if server.version < least {
            let what = format!("the server is {product} {}.{}", server.version.0, server.version.1);
            self.miss(true, what, "MariaDB 10.5 and MySQL 8.0 or later can be followed");
        }
        if !server.is_on("log_bin") {
            self.miss(
                true,
                "the server writes no binary log",
                "log_bin = mysql-bin under [mysqld] of its file of options; and restart the server",
            );
        }
        if server.variable("server_id") == "0" {
            self.miss(
                true,
                "the server has no server_id",
                "server_id = 1 under [mysqld] of its file of options; and restart the server",
            );
        }
        let format = server.variable("binlog_format");
        if !format.is_empty() && format != "ROW" {
            self.miss(
                false,
                format!("binlog_format is {format}: statements are in the log in the place of rows"),
                format!("SET GLOBAL binlog_format = 'ROW', also in its file of options; connections that are open keep {format} until they end"),
            );
        }
        let image = server.variable("binlog_row_image");
        if !image.is_empty() && !matches!(image, "FULL" | "FULL_NODUP") {
            self.miss(
                false,
                format!("binlog_row_image is {image}: rows are in the log in part"),
                "SET GLOBAL binlog_row_image = 'FULL', also in its file of options",
            );
        }
        if image == "FULL_NODUP" {
            self.miss(
                false,
                "binlog_row_image is FULL_NODUP: new rows are in the log in part",
                "SET GLOBAL binlog_row_image = 'FULL'",
            );
        }
        if !server.variable("binlog_row_value_options").is_empty() {
            self.miss(
                false,
                "binlog_row_value_options is PARTIAL_JSON: new rows are in the log in part",
                "SET GLOBAL binlog_row_value_options = ''",
            );
        }
        let mode = server.variable("gtid_mode");
        if !server.is_mariadb && mode != "ON" {
            let steps = ["OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"];
            let at = steps.iter().position(|step| *step == mode).unwrap_or(0);
            let rest: Vec<String> =
                steps[at + 1..].iter().map(|step| format!("SET GLOBAL gtid_mode = {step}")).collect();
            self.miss(
                true,
                format!("gtid_mode is {mode}: the server does not say which transactions are visible"),
                format!(
                    "SET GLOBAL enforce_gtid_consistency = ON; {}, also in its file of options",
                    rest.join("; ")
                ),
            );
        }
        let kept = match server.variable("binlog_expire_logs_seconds").parse().unwrap_or(0) {
            0 => days(server.variable("expire_logs_days")),
            seconds => seconds,
        };
        if is_check && (1..KEPT_MIN).contains(&kept) {
            self.miss(
                false,
                format!("the binary log is kept for {kept} s: after a longer loss of the connection all items with tags are computed again"),
                "SET GLOBAL binlog_expire_logs_seconds = 86400",
            );
        }
    }

    async fn read_head(
        &mut self,
        connection: &mut MysqlConnection,
        tables: &[Table],
        says: bool,
    ) -> Result<(), WireError> {
        let head = match self.server.head(connection).await {
            Ok(head) => head,
            // No right to it.
            Err(error) if error.code() == Some("1227") => {
                if says {
                    let right = if self.server.is_mariadb { "BINLOG MONITOR" } else { "REPLICATION CLIENT" };
                    self.miss(
                        true,
                        format!("user {} may not ask how far the binary log is", self.account),
                        format!("GRANT REPLICATION SLAVE, {right} ON *.* TO {}", self.account),
                    );
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let Some(head) = head else { return Ok(()) };
        if says {
            let is_in = |list: &str, name: &str| list.split(',').any(|one| one == name);
            let databases: BTreeSet<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
            for database in databases {
                if is_in(&head.without, database) || !head.only.is_empty() && !is_in(&head.only, database) {
                    self.miss(
                        false,
                        format!("the server leaves database `{database}` out of its log, or statements from within others"),
                        "remove binlog_do_db and binlog_ignore_db from its file of options, and restart it",
                    );
                }
            }
        }
        self.head = Some((head.base, head.place));
        Ok(())
    }

    async fn read_table(&mut self, connection: &mut MysqlConnection, table: &Table) -> Result<(), WireError> {
        let name = table.full_name();
        let sql = format!(
            "SELECT TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {}",
            self.name_of(&table.schema),
            self.name_of(&table.name)
        );
        let rows = connection.query(&sql).await?;
        let Some(row) = rows.first() else {
            let mend = format!(
                "write its name as SHOW TABLES does, or GRANT SELECT ON {} TO {}",
                full(table),
                self.account
            );
            self.miss(
                false,
                format!("there is no table {name}, or user {} may not see it", self.account),
                mend,
            );
            return Ok(());
        };
        let (kind, engine) = (text(row, 0), text(row, 1));
        if kind.contains("VIEW") {
            self.miss(
                false,
                format!("{name} is a view, whose rows are in no log"),
                "follow the tables that it reads",
            );
            return Ok(());
        }
        if !ENGINES.contains(&engine.to_ascii_uppercase().as_str()) {
            self.miss(
                false,
                format!("{name} is of the engine {engine}, without transactions: its rows change before they are logged"),
                format!("ALTER TABLE {} ENGINE = InnoDB", full(table)),
            );
        }
        let Some(created) = created(connection, table).await? else {
            let what = format!("user {} may not see the whole of {name}", self.account);
            self.miss_right(table, what);
            return Ok(());
        };
        let columns = self.columns(connection, table, &created).await?;
        let has = |wanted: &str| columns.iter().find(|column| column.name.eq_ignore_ascii_case(wanted));
        let mut followed = table.clone();
        if let (Some(own), Some(end)) =
            (&mut followed.columns, columns.iter().find(|column| column.is_row_end))
        {
            // A row is deleted by a change of this column.
            own.push(end.name.clone());
        }
        let of_tags: BTreeSet<&str> = table.bump.iter().flat_map(Template::columns).collect();
        let of_list = table.columns.iter().flatten().map(String::as_str);
        for wanted in of_tags.iter().copied().chain(of_list) {
            match has(wanted) {
                None => {
                    let shown = columns.iter().filter(|column| !column.is_hidden);
                    let names: Vec<&str> = shown.map(|column| column.name.as_str()).collect();
                    self.miss(
                        false,
                        format!("{name} has no column `{wanted}`"),
                        format!("name one of {}", names.join(", ")),
                    );
                }
                Some(column) if column.shape == ValueShape::Refused && of_tags.contains(wanted) => {
                    self.miss(
                        false,
                        format!(
                            "{name}: column `{wanted}` is of type {}, which has no single text",
                            column.written
                        ),
                        "name another column in the tags, or a generated one that is made of it",
                    );
                }
                Some(column) if column.is_virtual && of_tags.contains(wanted) => {
                    self.miss(
                        false,
                        format!("{name}: column `{wanted}` is virtual, and not in the log of every server"),
                        "make it STORED, or name the columns of which it is made",
                    );
                }
                Some(_) => {}
            }
        }
        self.targets.push(TargetTable {
            table: followed,
            purpose: TargetPurpose::Followed,
            columns: Some(columns),
        });
        Ok(())
    }

    /// The name of a table or a database, as the catalog is asked for it.
    fn name_of(&self, name: &str) -> String {
        let is_small = self.server.variable("lower_case_table_names") == "1";
        if is_small { literal(&name.to_lowercase()) } else { literal(name) }
    }

    /// `created`: what creates the table.
    async fn columns(
        &self,
        connection: &mut MysqlConnection,
        table: &Table,
        created: &str,
    ) -> Result<Vec<CatalogColumn>, WireError> {
        let sql = format!(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, CHARACTER_OCTET_LENGTH, EXTRA \
             FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {} AND TABLE_NAME = {} ORDER BY ORDINAL_POSITION",
            self.name_of(&table.schema),
            self.name_of(&table.name)
        );
        let rows = connection.query(&sql).await?;
        let mut columns: Vec<CatalogColumn> = rows.iter().map(column).collect();
        if self.server.is_mariadb {
            note_hidden(&mut columns, created);
        }
        Ok(columns)
    }

    /// The foreign keys by which rows of a table change with rows of others, and those of these others.
    async fn read_keys(&mut self, connection: &mut MysqlConnection, table: &Table) -> Result<(), WireError> {
        if !self.server.is_mariadb
            && self.server.version >= CASCADES_LOGGED
            && !self.server.is_on("innodb_native_foreign_keys")
        {
            return Ok(());
        }
        // Of the table itself it was said before.
        let Some(created_own) = created(connection, table).await? else { return Ok(()) };
        let (mut open, mut seen) = (vec![(table.clone(), created_own)], BTreeSet::new());
        while let Some((child, created_child)) = open.pop() {
            for key in keys(&created_child, &child.schema) {
                if table.cascade == Cascade::Refused {
                    self.miss(
                        false,
                        format!(
                            "rows of {} change with those of {} (ON DELETE {}, ON UPDATE {}), and are not in the log then",
                            child.full_name(),
                            key.parent.full_name(),
                            shown(&key.on_delete),
                            shown(&key.on_update)
                        ),
                        format!("write cascade = \"flush\" for {}, or cascade = \"parent\" if what the parent's rows bump is enough", table.full_name()),
                    );
                }
                let Some(created_parent) = created(connection, &key.parent).await? else {
                    let (account, parent) = (&self.account, key.parent.full_name());
                    let what = format!(
                        "user {account} may not see {parent}, with whose rows those of {} change",
                        child.full_name()
                    );
                    self.miss_right(&key.parent, what);
                    continue;
                };
                if table.cascade == Cascade::Flush {
                    let columns = self.columns(connection, &key.parent, &created_parent).await?;
                    let mut parent = key.parent.clone();
                    let is_by_update = changes(&key.on_update);
                    parent.columns = Some(if is_by_update { key.columns.clone() } else { Vec::new() });
                    let purpose =
                        TargetPurpose::Parent { deletes: changes(&key.on_delete), of: table.full_name() };
                    self.targets.push(TargetTable { table: parent, purpose, columns: Some(columns) });
                }
                if seen.len() < PARENTS_MAX && seen.insert(key.parent.full_name()) {
                    open.push((key.parent, created_parent));
                }
            }
        }
        Ok(())
    }
}

/// The statement that creates a table. None: the table does not exist, or may not be read as a whole.
async fn created(connection: &mut MysqlConnection, table: &Table) -> Result<Option<String>, WireError> {
    match connection.query(&format!("SHOW CREATE TABLE {}", full(table))).await {
        Ok(rows) => Ok(rows.first().map(|row| text(row, 1).to_owned())),
        Err(WireError::Server { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The foreign keys that change rows of a table, from what creates it: the views of the catalog show keys to
/// those only who may do more than read.
fn keys(created: &str, schema: &str) -> Vec<ForeignKey> {
    let all = created.lines().filter_map(|line| foreign_key(line, schema));
    all.filter(|key| changes(&key.on_delete) || changes(&key.on_update)).collect()
}

/// `user@host` as a GRANT names it.
fn account(text: &str) -> String {
    let (user, host) = text.rsplit_once('@').unwrap_or((text, "%"));
    format!("{}@{}", literal(user), literal(host))
}

/// Adds the columns that MariaDB has in rows and not in its catalog, which come last: that of each unique key
/// of long values, and those of the versions of rows.
fn note_hidden(columns: &mut Vec<CatalogColumn>, created: &str) {
    let hidden = |name: String| CatalogColumn {
        name,
        shape: ValueShape::Refused,
        written: String::new(),
        is_virtual: true,
        is_hidden: true,
        is_row_end: false,
    };
    let is_long_key =
        |line: &&str| line.trim_start().starts_with("UNIQUE KEY ") && line.contains(" USING HASH");
    let long_keys = created.lines().filter(is_long_key).count();
    let row_end = created.lines().find(|line| line.contains(" GENERATED ALWAYS AS ROW END"));
    if let Some((end, _)) = row_end.and_then(|line| name(line.trim_start())) {
        for column in columns.iter_mut().filter(|column| column.name == end) {
            column.is_row_end = true;
        }
    } else if created.lines().any(|line| line.starts_with(')') && line.contains(" WITH SYSTEM VERSIONING")) {
        columns.push(hidden("row_start".to_owned()));
        columns.push(CatalogColumn { is_row_end: true, ..hidden("row_end".to_owned()) });
    }
    columns.extend((1..=long_keys).map(|number| hidden(format!("DB_ROW_HASH_{number}"))));
}

/// Reads ``CONSTRAINT `a` FOREIGN KEY (`b`) REFERENCES `c` (`d`) ON DELETE CASCADE``.
fn foreign_key(line: &str, schema: &str) -> Option<ForeignKey> {
    let rest = line.trim_start().strip_prefix("CONSTRAINT ")?;
    let (_, rest) = name(rest)?;
    let rest = rest.trim_start().strip_prefix("FOREIGN KEY")?;
    let (_, rest) = names(rest)?;
    let (first, rest) = name(rest.trim_start().strip_prefix("REFERENCES")?.trim_start())?;
    let (parent, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (second, rest) = name(rest)?;
            (Table::of(&first, &second), rest)
        }
        None => (Table::of(schema, &first), rest),
    };
    let (columns, rest) = names(rest)?;
    let rule = |on: &str| rest.split_once(on).map_or("", |(_, rule)| rule).trim_end_matches(',').to_owned();
    Some(ForeignKey { parent, columns, on_delete: rule("ON DELETE "), on_update: rule("ON UPDATE ") })
}

/// A list of names in brackets, and what follows it.
fn names(text: &str) -> Option<(Vec<String>, &str)> {
    let mut rest = text.trim_start().strip_prefix('(')?;
    let mut all = Vec::new();
    loop {
        let (one, after) = name(rest.trim_start())?;
        all.push(one);
        rest = after.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None => return Some((all, rest.strip_prefix(')')?)),
        }
    }
}

/// Seconds of days, of which MariaDB has parts: `0.000694`.
fn days(text: &str) -> u64 {
    let seconds = text.parse().map_or(0.0, |days: f64| days * 86_400.0);
    std::time::Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_secs())
}

/// A foreign key's rule, without what follows it.
fn shown(rule: &str) -> &str {
    if rule.is_empty() { "RESTRICT" } else { rule.split(" ON ").next().unwrap_or(rule) }
}

/// Whether a foreign key's rule changes rows.
fn changes(rule: &str) -> bool {
    rule.starts_with("CASCADE") || rule.starts_with("SET")
}

fn column(row: &ResultRow) -> CatalogColumn {
    let (name, kind, written) = (text(row, 0), text(row, 1).to_ascii_lowercase(), text(row, 2));
    let (charset, bytes, extra) =
        (text(row, 3), text(row, 4).parse().unwrap_or(0), text(row, 5).to_ascii_uppercase());
    let is_virtual = extra.contains("VIRTUAL");
    CatalogColumn {
        name: name.to_owned(),
        shape: shape(&kind, written, charset, bytes),
        written: written.to_owned(),
        is_virtual,
        is_hidden: false,
        is_row_end: false,
    }
}

fn shape(kind: &str, written: &str, charset: &str, bytes: usize) -> ValueShape {
    // Of columns that are compressed, or of an old format of times.
    if written.contains("/*") {
        return ValueShape::Refused;
    }
    match kind {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => {
            if written.to_ascii_lowercase().contains("unsigned") {
                ValueShape::Unsigned
            } else {
                ValueShape::Signed
            }
        }
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => match charset {
            "utf8mb4" | "utf8mb3" | "utf8" | "ascii" => ValueShape::Text,
            "latin1" => ValueShape::Latin1,
            _ => ValueShape::Refused,
        },
        "binary" => ValueShape::Bytes { length: bytes },
        "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => ValueShape::Bytes { length: 0 },
        "enum" => ValueShape::Choice(choices(written)),
        "set" => ValueShape::Set(choices(written)),
        "decimal" | "date" | "datetime" | "timestamp" | "time" | "year" | "bit" => ValueShape::Own,
        "uuid" => ValueShape::Uuid,
        "inet4" => ValueShape::Inet4,
        "inet6" => ValueShape::Inet6,
        _ => ValueShape::Refused,
    }
}

/// The values of `enum('a','b''c')`.
fn choices(written: &str) -> Vec<String> {
    let inner = written.split_once('(').map_or("", |(_, rest)| rest);
    let (mut values, mut rest) = (Vec::new(), inner);
    while let Some((_, begun)) = rest.split_once('\'') {
        let (mut value, mut text) = (String::new(), begun);
        while let Some((before, after)) = text.split_once('\'') {
            value.push_str(before);
            text = after;
            match text.strip_prefix('\'') {
                Some(after) => {
                    value.push('\'');
                    text = after;
                }
                None => break,
            }
        }
        values.push(value);
        rest = text;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_the_catalog_does_not_have() {
        let all = |created: &str| {
            let mut columns =
                vec![column(&["k", "int", "int(11)"].map(|text| Some(text.to_owned())).to_vec())];
            columns.push(CatalogColumn { name: "re".to_owned(), ..columns[0].clone() });
            note_hidden(&mut columns, created);
            let end = columns.iter().find(|column| column.is_row_end).map(|column| column.name.clone());
            let names = columns.iter().filter(|column| column.is_hidden).map(|column| column.name.clone());
            (names.collect::<Vec<_>>(), end)
        };
        let plain = "CREATE TABLE `a` (\n  `k` int(11) DEFAULT NULL COMMENT ' WITH SYSTEM VERSIONING'\n) ENGINE=InnoDB";
        assert_eq!(all(plain), (Vec::new(), None));
        let long =
            "CREATE TABLE `a` (\n  UNIQUE KEY `t` (`t`) USING HASH,\n  UNIQUE KEY `s` (`s`)\n) ENGINE=InnoDB";
        assert_eq!(all(long), (vec!["DB_ROW_HASH_1".to_owned()], None));
        let implied = "CREATE TABLE `a` (\n  `k` int\n) ENGINE=InnoDB WITH SYSTEM VERSIONING";
        assert_eq!(
            all(implied),
            (vec!["row_start".to_owned(), "row_end".to_owned()], Some("row_end".to_owned()))
        );
        let named = "CREATE TABLE `a` (\n  `re` timestamp(6) GENERATED ALWAYS AS ROW END INVISIBLE\n) WITH SYSTEM VERSIONING";
        assert_eq!(all(named), (Vec::new(), Some("re".to_owned())));
    }

    #[test]
    fn shapes_of_types() {
        for (kind, written, charset, expected) in [
            ("int", "int(10) unsigned", "", ValueShape::Unsigned),
            ("bigint", "bigint(20)", "", ValueShape::Signed),
            ("varchar", "varchar(10)", "utf8mb4", ValueShape::Text),
            ("char", "char(10)", "latin1", ValueShape::Latin1),
            ("char", "char(10)", "ucs2", ValueShape::Refused),
            ("varchar", "varchar(10) /*M!100301 COMPRESSED*/", "utf8mb4", ValueShape::Refused),
            ("binary", "binary(16)", "", ValueShape::Bytes { length: 16 }),
            ("json", "json", "", ValueShape::Refused),
            ("double", "double", "", ValueShape::Refused),
            ("decimal", "decimal(5,2)", "", ValueShape::Own),
        ] {
            assert_eq!(shape(kind, written, charset, 16), expected, "{written}");
        }
        assert_eq!(choices("enum('a','b''c','d,e','')"), ["a", "b'c", "d,e", ""]);
        let line = "  CONSTRAINT `a``b` FOREIGN KEY (`c`, `d`) REFERENCES `other`.`e` (`f`, `g`) ON DELETE CASCADE ON UPDATE SET NULL,";
        let key = foreign_key(line, "shop").unwrap();
        assert_eq!(
            (key.parent.full_name().as_str(), key.columns),
            ("other.e", vec!["f".to_owned(), "g".to_owned()])
        );
        assert_eq!((shown(&key.on_delete), shown(&key.on_update)), ("CASCADE", "SET NULL"));
        assert!(changes(&key.on_delete) && changes(&key.on_update));
        let key = foreign_key("CONSTRAINT `a` FOREIGN KEY (`c`) REFERENCES `e` (`f`)", "shop").unwrap();
        assert_eq!((key.parent.schema.as_str(), shown(&key.on_delete)), ("shop", "RESTRICT"));
        assert!(foreign_key("  `a` int COMMENT 'CONSTRAINT `a` FOREIGN KEY'", "shop").is_none());
        assert_eq!(literal("a'\\b"), "'a''\\\\b'");
        assert!(changes("SET NULL") && changes("CASCADE") && !changes("RESTRICT") && !changes("NO ACTION"));
    }
}
