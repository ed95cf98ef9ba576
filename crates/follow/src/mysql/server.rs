//! Facts about the server: its identity, the end of its log, and the transactions that a reader sees.

use std::collections::HashMap;
use std::fmt;

use crate::mysql::position::{BinlogPosition, BinlogSnapshot, GtidSet};
use crate::mysql::wire::MysqlConnection;
use crate::wire::{ResultRow, WireError, text};

const MARIADB: &str = "MariaDB";
const MYSQL: &str = "MySQL";

/// The server and its data, as far as it says: other ones after a change of server. A restart of it is seen
/// in its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MysqlIdentity {
    product: &'static str,
    number: String,
    unique: String,
    host: String,
    port: String,
    log: String,
}

impl fmt::Display for MysqlIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, number, unique, host, port, .. } = self;
        write!(f, "{product} server {number}")?;
        if !unique.is_empty() {
            write!(f, ", {unique}")?;
        }
        write!(f, ", {host}:{port}")
    }
}

impl MysqlIdentity {
    /// The parts of the identity as one text; the last part may have blanks.
    pub(crate) fn written(&self) -> String {
        let Self { product, number, unique, host, port, log } = self;
        let unique = if unique.is_empty() { "-" } else { unique };
        format!("{product} {number} {unique} {host} {port} {log}")
    }

    /// Reads [`MysqlIdentity::written`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.splitn(6, ' ').collect();
        let [product, number, unique, host, port, log] = *words.as_slice() else { return None };
        let product = [MARIADB, MYSQL].into_iter().find(|own| *own == product)?;
        let [number, host, port, log] = [number, host, port, log].map(str::to_owned);
        Some(Self { product, number, unique: unique.trim_start_matches('-').to_owned(), host, port, log })
    }
}

/// The server's settings.
#[derive(Debug, Clone)]
pub(crate) struct ServerSettings {
    pub(crate) is_mariadb: bool,
    /// Such as (10, 11).
    pub(crate) version: (u32, u32),
    variables: HashMap<String, String>,
}

/// A reply to a probe.
#[derive(Debug)]
pub(crate) struct MysqlProbe {
    pub(crate) identity: MysqlIdentity,
    pub(crate) head: BinlogPosition,
    pub(crate) snapshot: BinlogSnapshot,
}

/// How far the log is.
#[derive(Debug)]
pub(crate) struct LogHead {
    pub(crate) base: String,
    pub(crate) place: BinlogPosition,
    /// Which databases are in the log only, or are not: settings of the server.
    pub(crate) only: String,
    pub(crate) without: String,
}

impl ServerSettings {
    pub(crate) async fn read(connection: &mut MysqlConnection) -> Result<Self, WireError> {
        const NAMES: [&str; 22] = [
            "version",
            "log_bin",
            "log_bin_basename",
            "binlog_format",
            "binlog_row_image",
            "server_id",
            "server_uuid",
            "server_uid",
            "hostname",
            "port",
            "lower_case_table_names",
            "binlog_checksum",
            "gtid_mode",
            "binlog_expire_logs_seconds",
            "expire_logs_days",
            "binlog_row_value_options",
            "binlog_transaction_compression",
            "read_only",
            "log_slave_updates",
            "log_replica_updates",
            "binlog_row_metadata",
            "innodb_native_foreign_keys",
        ];
        let names: Vec<String> = NAMES.iter().map(|name| format!("'{name}'")).collect();
        let sql = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({})", names.join(", "));
        let rows = connection.query(&sql).await?;
        let variables =
            rows.iter().map(|row| (text(row, 0).to_ascii_lowercase(), text(row, 1).to_owned())).collect();
        let mut server = Self { is_mariadb: connection.is_mariadb(), version: (0, 0), variables };
        let mut parts = server.variable("version").split(['.', '-']).map(|part| part.parse().unwrap_or(0));
        server.version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        Ok(server)
    }

    /// The value of a variable; empty if the server does not have it.
    pub(crate) fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        matches!(self.variable(name), "ON" | "1")
    }

    /// Whether letters of tables' names count in any size.
    pub(crate) fn ignores_case(&self) -> bool {
        !matches!(self.variable("lower_case_table_names"), "" | "0")
    }

    pub(crate) fn product(&self) -> &'static str {
        if self.is_mariadb { MARIADB } else { MYSQL }
    }

    /// Asks how far its log is. `None`: it writes none.
    pub(crate) async fn head(&self, connection: &mut MysqlConnection) -> Result<Option<LogHead>, WireError> {
        let is_renamed = !self.is_mariadb && self.version >= (8, 2);
        let sql = if is_renamed { "SHOW BINARY LOG STATUS" } else { "SHOW MASTER STATUS" };
        let rows = connection.query(sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let place = text(row, 1).parse().ok().and_then(|offset| BinlogPosition::of(text(row, 0), offset));
        let (base, place) = place.ok_or(WireError::Protocol("a file of the log without a number"))?;
        Ok(Some(LogHead { base, place, only: text(row, 2).to_owned(), without: text(row, 3).to_owned() }))
    }

    async fn head_place(&self, connection: &mut MysqlConnection) -> Result<BinlogPosition, WireError> {
        let head = self.head(connection).await?;
        head.map(|head| head.place).ok_or(WireError::Protocol("the server writes no log any more"))
    }

    /// The transactions that a reader sees that begins now.
    pub(crate) async fn snapshot(
        &self,
        connection: &mut MysqlConnection,
    ) -> Result<BinlogSnapshot, WireError> {
        if !self.is_mariadb {
            let rows = connection.query("SELECT @@global.gtid_executed").await?;
            let gtids = rows.first().and_then(|row| GtidSet::parse(text(row, 0)));
            return gtids.map(BinlogSnapshot::Executed).ok_or(WireError::Protocol("no set of transactions"));
        }
        // The session has REPEATABLE READ: at other levels there is no snapshot.
        connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT").await?;
        let rows = connection.query("SHOW STATUS LIKE 'Binlog_snapshot_%'").await?;
        connection.query("COMMIT").await?;
        let value = |name: &str| {
            rows.iter()
                .find(|row: &&ResultRow| text(row, 0).eq_ignore_ascii_case(name))
                .map(|row| text(row, 1))
        };
        let offset = value("Binlog_snapshot_position").and_then(|offset| offset.parse().ok());
        let place = offset.and_then(|offset| BinlogPosition::of(value("Binlog_snapshot_file")?, offset));
        place
            .map(|(_, place)| BinlogSnapshot::Before(place))
            .ok_or(WireError::Protocol("no place of a snapshot"))
    }

    /// Asks which server it is.
    pub(crate) async fn identify(
        &self,
        connection: &mut MysqlConnection,
    ) -> Result<MysqlIdentity, WireError> {
        // MariaDB has `server_uid` only in some versions, and it is one of the machine.
        let unique = if self.is_mariadb { "''" } else { "@@global.server_uuid" };
        let sql = format!(
            "SELECT @@global.server_id, {unique}, @@global.hostname, @@global.port, @@global.log_bin_basename"
        );
        let rows = connection.query(&sql).await?;
        let row = rows.first().ok_or(WireError::Protocol("no number of the server"))?;
        let text = |at| text(row, at).to_owned();
        let (number, unique, host, port, log) = (text(0), text(1), text(2), text(3), text(4));
        Ok(MysqlIdentity { product: self.product(), number, unique, host, port, log })
    }

    pub(crate) async fn probe(&self, connection: &mut MysqlConnection) -> Result<MysqlProbe, WireError> {
        let identity = self.identify(connection).await?;
        let head = self.head_place(connection).await?;
        let snapshot = self.snapshot(connection).await?;
        Ok(MysqlProbe { identity, head, snapshot })
    }
}
