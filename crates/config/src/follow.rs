//! A log that is followed: `[follow.NAME]`, and its tables, `[[follow.NAME.table]]`.

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
    /// Its name.
    pub name: String,
    /// Whose log it is.
    pub origin: FollowOrigin,
    /// How long the server may go on without a confirmation; 100 ms to 10 min.
    pub max_lag: Duration,
    /// What becomes of items with tags beyond it.
    pub when_behind: WhenBehind,
    /// Each tag is bumped once more after this time; 0: once.
    pub again: Duration,
    /// Tags are bumped softly.
    pub soft: bool,
    /// A file with the password, read for each connection.
    pub password_file: Option<PathBuf>,
    /// A program that prints the password, run for each connection, and its arguments.
    pub password_command: Vec<String>,
    /// The authorities that may sign the server's certificate; None: those of the system.
    pub ssl_ca: Option<PathBuf>,
    /// A certificate of this server, and its key, for an etcd that asks for one.
    pub ssl_own: Option<(PathBuf, PathBuf)>,
}

/// Whose log is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowOrigin {
    /// Changed rows of a PostgreSQL database.
    Postgres(PostgresLog),
    /// Changed rows of a MySQL or MariaDB server.
    Mysql(MysqlLog),
    /// Bumps of all nodes of a fleet.
    Etcd(EtcdLog),
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresLog {
    /// The database and the role that follows.
    pub address: Address,
    /// The publication there.
    pub publication: String,
    /// What is followed; at least one table.
    pub tables: Vec<FollowTable>,
    /// The name of a permanent slot; None: a temporary one.
    pub slot: Option<String>,
    /// One node of a fleet follows it, and writes what it bumps into this log of etcd.
    pub via: Option<Via>,
}

/// A MySQL or MariaDB server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MysqlLog {
    /// The server, the database of tables without one, and the user that follows.
    pub address: Address,
    /// What is followed; at least one table.
    pub tables: Vec<FollowTable>,
    /// The number by which the server knows its replicas; None: a random one.
    pub server_id: Option<u32>,
    /// As [`PostgresLog::via`].
    pub via: Option<Via>,
}

/// The log of etcd by way of which a database is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// Its name in the rule file.
    pub name: String,
    /// Its settings: with other ones the database's log is followed anew, too. None: there is no such log, and the file is refused.
    pub log: Option<Box<FollowSettings>>,
}

/// An etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdLog {
    /// Where it is.
    pub place: EtcdAddress,
    /// When a bump is answered.
    pub bump_reply: BumpReply,
}

/// When a client's bump is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BumpReply {
    /// When it is in the log.
    #[default]
    Commit,
    /// When it is obeyed here.
    Local,
    /// When all nodes have obeyed it.
    Barrier,
}

/// A table of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowTable {
    /// Its name and templates. The scope is its place among the tables of its log.
    pub table: Table,
    /// The prefixes behind which its tags are bumped; None: all, and none.
    pub prefixes: Option<Vec<String>>,
    /// The keys that `cattlegrid follow` deletes when a row changes.
    pub delete_keys: Vec<Template>,
    /// The keys that it deletes when the table is truncated; none: that is a gap.
    pub truncate_keys: Vec<String>,
}

impl FollowSettings {
    /// What the engine knows of it.
    pub fn followed(&self) -> FollowedLog {
        FollowedLog {
            name: self.name.as_str().into(),
            source: self.origin.to_string().into(),
            max_lag_ms: u64::try_from(self.max_lag.as_millis()).unwrap_or(u64::MAX),
            when_behind: self.when_behind,
        }
    }

    /// The database, if it is one.
    pub fn postgres(&self) -> Option<&PostgresLog> {
        if let FollowOrigin::Postgres(log) = &self.origin { Some(log) } else { None }
    }

    /// The MySQL or MariaDB server, if it is one.
    pub fn mysql(&self) -> Option<&MysqlLog> {
        if let FollowOrigin::Mysql(log) = &self.origin { Some(log) } else { None }
    }

    /// Whether it is the log of a database, whose rows are followed.
    pub fn is_of_database(&self) -> bool {
        self.etcd().is_none()
    }

    /// A number that is the same in rule files that follow the same tables in the same way, by the same slot.
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

    /// By way of which log of etcd it is followed, if it is.
    pub fn via(&self) -> Option<&Via> {
        match &self.origin {
            FollowOrigin::Postgres(log) => log.via.as_ref(),
            FollowOrigin::Mysql(log) => log.via.as_ref(),
            FollowOrigin::Etcd(_) => None,
        }
    }

    /// The etcd, if it is one.
    pub fn etcd(&self) -> Option<&EtcdLog> {
        if let FollowOrigin::Etcd(log) = &self.origin { Some(log) } else { None }
    }

    /// The tables of a database.
    pub fn tables(&self) -> &[FollowTable] {
        match &self.origin {
            FollowOrigin::Postgres(log) => &log.tables,
            FollowOrigin::Mysql(log) => &log.tables,
            FollowOrigin::Etcd(_) => &[],
        }
    }
}

impl FollowTable {
    /// The table as `cattlegrid follow` wants it: keys in the place of tags.
    pub fn of_keys(&self) -> Table {
        Table { bump: self.delete_keys.clone(), truncate: self.truncate_keys.clone(), ..self.table.clone() }
    }

    /// With tags and keys: what the database must send for one of both.
    pub fn of_all(&self) -> Table {
        let bump = self.table.bump.iter().chain(&self.delete_keys).cloned().collect();
        Table { bump, ..self.table.clone() }
    }
}

impl fmt::Display for FollowOrigin {
    /// The address, without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(log) => log.address.fmt(f),
            Self::Mysql(log) => log.address.fmt(f),
            Self::Etcd(log) => log.place.fmt(f),
        }
    }
}

impl BumpReply {
    /// All, by the names that a rule file has.
    pub const NAMES: [&'static str; 3] = ["commit", "local", "barrier"];

    /// Its name in a rule file.
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
