//! A log that is followed: `[follow.NAME]`, and its tables, `[[follow.NAME.table]]`.

use std::path::PathBuf;
use std::time::Duration;

use cattlegrid_engine::FollowedLog;
use cattlegrid_follow::postgres::{Address, Table};
use cattlegrid_herd::WhenBehind;

/// The settings of one log, checked and with all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowSettings {
    /// Its name.
    pub name: String,
    /// The database and the role that follows.
    pub address: Address,
    /// The publication there.
    pub publication: String,
    /// What is followed; at least one table.
    pub tables: Vec<FollowTable>,
    /// How long the server may go on without a confirmation; 100 ms to 10 min.
    pub max_lag: Duration,
    /// What becomes of items with tags beyond it.
    pub when_behind: WhenBehind,
    /// Each tag is bumped once more after this time; 0: once.
    pub again: Duration,
    /// Tags are bumped softly.
    pub soft: bool,
    /// The name of a permanent slot; None: a temporary one.
    pub slot: Option<String>,
    /// A file with the password, read for each connection.
    pub password_file: Option<PathBuf>,
    /// A program that prints the password, run for each connection, and its arguments.
    pub password_command: Vec<String>,
    /// The authorities that may sign the server's certificate; None: those of the system.
    pub ssl_ca: Option<PathBuf>,
}

/// A table of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowTable {
    /// Its name and templates. The scope is its place among the tables of its log.
    pub table: Table,
    /// The prefixes behind which its tags are bumped; None: all, and none.
    pub prefixes: Option<Vec<String>>,
}

impl FollowSettings {
    /// What the engine knows of it.
    pub fn followed(&self) -> FollowedLog {
        FollowedLog {
            name: self.name.as_str().into(),
            source: format!("{}:{}/{}", self.address.host, self.address.port, self.address.database).into(),
            max_lag_ms: u64::try_from(self.max_lag.as_millis()).unwrap_or(u64::MAX),
            when_behind: self.when_behind,
        }
    }
}
