//! The Cattlegrid server: everything between the process and the engine, without the command line.

pub mod auth;
mod commands;
mod connection;
mod control;
mod detail;
mod dump;
#[cfg(any(test, fuzzing))]
pub mod harness;
pub mod listen;
pub mod log;
mod outbox;
pub mod poller;
pub mod serve;
mod shortage;
pub mod signals;
mod state;
pub mod stats;
pub mod sys;
pub mod time;
pub mod tls;
mod turns;
mod unsent;
mod uploads;
mod watch;
mod wire_log;
mod worker;

pub use serve::serve;
