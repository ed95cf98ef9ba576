//! The Cattlegrid server: all between the process and the engine, without the command line.

mod acceptor;
mod admin;
mod advice;
pub mod auth;
mod calls;
mod caps;
mod commands;
mod connection;
mod control;
#[cfg(feature = "postgres")]
mod database;
#[cfg(feature = "postgres")]
mod deletes;
mod detail;
mod dump;
pub mod error;
mod first_process;
#[cfg(feature = "etcd")]
mod fleet;
mod folder;
mod followed;
#[cfg(feature = "postgres")]
mod follows;
#[cfg(not(feature = "postgres"))]
#[path = "no_follows.rs"]
mod follows;
mod gauges;
#[cfg(any(test, fuzzing))]
pub mod harness;
mod heap;
mod holds;
mod hot;
mod idle_rules;
mod lane;
mod latency;
pub mod listen;
mod loading;
pub mod log;
mod manager;
mod outbox;
mod passed;
pub mod poller;
mod ready;
mod reload;
mod ring;
mod rule_counts;
pub mod serve;
mod shared;
mod shortage;
pub mod signals;
pub mod stats;
pub mod sys;
pub mod time;
pub mod tls;
mod turns;
mod uploads;
#[cfg(feature = "etcd")]
mod via;
mod watch;
mod why;
mod wire_log;

#[cfg(feature = "postgres")]
pub use deletes::{DeletesError, delete_keys};
pub use error::ServeError;
pub use first_process::stay_as_first_process;
pub use follows::{check_logs, log_lacks};
pub use hot::{KeyCounts, Sketch, shape};
pub use loading::log_loader;
pub use serve::{descriptors_at_most, memory_at_most, serve};

/// The port of an `--admin` address without a port.
pub const ADMIN_PORT: u16 = admin::PORT;
