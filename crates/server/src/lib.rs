//! The Cattlegrid server: everything between the process and the engine.

pub mod auth;
pub mod bench;
mod commands;
pub mod config;
mod connection;
mod control;
pub mod demo;
mod detail;
mod dump;
#[cfg(any(test, fuzzing))]
pub mod harness;
pub mod listen;
pub mod log;
pub mod options;
mod outbox;
mod poller;
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
