//! The settings of a followed log: `[follow.NAME]`, and its tables, `[[follow.NAME.table]]`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cattlegrid_engine::FollowedLog;
use cattlegrid_follow::etcd::EtcdAddress;
use cattlegrid_follow::postgres::{Table, Template};
use cattlegrid_follow::{Address, Fingerprint};
use cattlegrid_herd::WhenBehind;

/// The settings of one log, checked and with all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowSettings {
    /// The log's name.
    pub name: String,
    /// The origin of the log.
    pub origin: FollowOrigin,
    /// How long the log may be without a confirmation before it is behind; 100 ms to 10 min.
    pub max_lag: Duration,
    /// How items with tags are treated while the log is behind.
    pub when_behind: WhenBehind,
    /// The time after which each tag is bumped once more; 0: never.
    pub again: Duration,
    /// Whether tags are bumped softly.
    pub soft: bool,
    /// A file with the password, which is read for each connection.
    pub password_file: Option<PathBuf>,
    /// A program that prints the password, and its arguments; it is run for each connection.
    pub password_command: Vec<String>,
    /// The authorities that may sign the server's certificate; None: those of the system.
    pub ssl_ca: Option<PathBuf>,
    /// The certificate of this server, and its key, for an etcd that requires one.
    pub ssl_own: Option<(PathBuf, PathBuf)>,
}

/// The origin of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowOrigin {
    /// Changed rows of a PostgreSQL database.
    Postgres(PostgresLog),
    /// Changed rows of a MySQL or MariaDB server.
    Mysql(MysqlLog),
    /// Bumps of all nodes of a fleet.
    Etcd(EtcdLog),
}

/// A PostgreSQL database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresLog {
    /// The database and the role that follows its log.
    pub address: Address,
    /// The name of the publication.
    pub publication: String,
    /// The followed tables; at least one.
    pub tables: Vec<FollowTable>,
    /// The name of a permanent slot; None: a temporary one.
    pub slot: Option<String>,
    /// The log of etcd into which one node of a fleet, which follows this log for all, writes its bumps.
    pub via: Option<FollowVia>,
}

/// A MySQL or MariaDB server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlLog {
    /// The server, the default database of tables, and the user that follows.
    pub address: Address,
    /// The followed tables; at least one.
    pub tables: Vec<FollowTable>,
    /// The number that identifies this server among the replicas; None: a random number.
    pub server_id: Option<u32>,
    /// The log of etcd, as in [`PostgresLog::via`].
    pub via: Option<FollowVia>,
}

/// The log of etcd by which a database's log is relayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowVia {
    /// The log's name in the rule file.
    pub name: String,
    /// The log's settings: a change of them restarts the database's log too. None: there is no such log, and
    /// the file is refused.
    pub log: Option<Box<FollowSettings>>,
}

/// An etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdLog {
    /// The addresses.
    pub place: EtcdAddress,
    /// When a client's bump is answered.
    pub bump_reply: BumpReply,
}

/// When a client's bump is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BumpReply {
    /// When the bump is in the log.
    #[default]
    Commit,
    /// When this server has executed the bump.
    Local,
    /// When all nodes have executed the bump.
    Barrier,
}

/// A table of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowTable {
    /// The table's name and templates. Its scope is its position among the tables of its log.
    pub table: Table,
    /// The prefixes behind which the tags are bumped; None: all prefixes, and no prefix.
    pub prefixes: Option<Vec<String>>,
    /// Templates of the keys that `cattlegrid follow` deletes when a row changes.
    pub delete_keys: Vec<Template>,
    /// The keys that `cattlegrid follow` deletes when the table is truncated; empty: a truncation is a gap.
    pub truncate_keys: Vec<String>,
}

impl FollowSettings {
    /// The engine's description of this log.
    pub fn followed(&self) -> FollowedLog {
        FollowedLog {
            name: self.name.as_str().into(),
            source: self.origin.to_string().into(),
            max_lag_ms: u64::try_from(self.max_lag.as_millis()).unwrap_or(u64::MAX),
            when_behind: self.when_behind,
        }
    }

    /// The PostgreSQL database, if the log has this origin.
    pub fn postgres(&self) -> Option<&PostgresLog> {
        if let FollowOrigin::Postgres(log) = &self.origin { Some(log) } else { None }
    }

    /// The MySQL or MariaDB server, if the log has this origin.
    pub fn mysql(&self) -> Option<&MysqlLog> {
        if let FollowOrigin::Mysql(log) = &self.origin { Some(log) } else { None }
    }

    /// Whether this is a database's log, whose rows are followed.
    pub fn is_of_database(&self) -> bool {
        self.etcd().is_none()
    }

    /// A number that is equal in rule files that follow the same tables in the same way, by the same slot.
    pub fn mark(&self) -> u64 {
        let mut mark = Fingerprint::default();
        mark.add(if self.soft { "soft" } else { "hard" });
        if let Some(log) = self.postgres() {
            mark.add(&log.address.database);
            mark.add(&log.publication);
            mark.add(log.slot.as_deref().unwrap_or_default());
        }
        if let Some(log) = self.mysql() {
            mark.add("mysql");
            mark.add(&log.address.database);
            log.tables.iter().for_each(|own| mark.add(&format!("{:?}", own.table.cascade)));
        }
        for FollowTable { table, prefixes, .. } in self.tables() {
            mark.add(&table.full_name());
            for list in [
                Some(table.bump.iter().map(Template::text).collect::<Vec<_>>()),
                Some(table.truncate.iter().map(String::as_str).collect()),
                table.columns.as_ref().map(|all| all.iter().map(String::as_str).collect()),
                prefixes.as_ref().map(|all| all.iter().map(String::as_str).collect()),
            ] {
                mark.add(if list.is_some() { "list" } else { "any" });
                list.iter().flatten().for_each(|text| mark.add(text));
                mark.add("end");
            }
        }
        mark.number()
    }

    /// The log of etcd by which this log is relayed.
    pub fn via(&self) -> Option<&FollowVia> {
        match &self.origin {
            FollowOrigin::Postgres(log) => log.via.as_ref(),
            FollowOrigin::Mysql(log) => log.via.as_ref(),
            FollowOrigin::Etcd(_) => None,
        }
    }

    /// The etcd cluster, if the log has this origin.
    pub fn etcd(&self) -> Option<&EtcdLog> {
        if let FollowOrigin::Etcd(log) = &self.origin { Some(log) } else { None }
    }

    /// The tables, if this is a database's log; otherwise none.
    pub fn tables(&self) -> &[FollowTable] {
        match &self.origin {
            FollowOrigin::Postgres(log) => &log.tables,
            FollowOrigin::Mysql(log) => &log.tables,
            FollowOrigin::Etcd(_) => &[],
        }
    }
}

impl FollowTable {
    /// The table for `cattlegrid follow`, with keys in the place of tags.
    pub fn of_keys(&self) -> Table {
        Table { bump: self.delete_keys.clone(), truncate: self.truncate_keys.clone(), ..self.table.clone() }
    }

    /// The table with tags and keys: all columns that either needs.
    pub fn of_all(&self) -> Table {
        let bump = self.table.bump.iter().chain(&self.delete_keys).cloned().collect();
        Table { bump, ..self.table.clone() }
    }
}

impl fmt::Display for FollowOrigin {
    /// The address is shown without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(log) => log.address.fmt(f),
            Self::Mysql(log) => log.address.fmt(f),
            Self::Etcd(log) => log.place.fmt(f),
        }
    }
}

impl BumpReply {
    /// The names in a rule file, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["commit", "local", "barrier"];

    /// The name in a rule file.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(crate) fn named(name: &str) -> Self {
        match name {
            "local" => Self::Local,
            "barrier" => Self::Barrier,
            _ => Self::Commit,
        }
    }
}
