//! Load for a memcached-protocol server: many connections, every reply verified.
//!
//! [`Plan`] says what is asked for, a [`Session`] asks it over its connections in a loop of its own,
//! [`Tally`] is what one run of it saw, and [`Report`] what people read. A session is closed-loop: each
//! connection sends a batch of `depth` requests, waits for all replies and sends the next.
//!
//! The speech of the server is a [`Wire`]; memcached's are [`Memcached`], its text protocol, and [`Binary`].

mod cli;
mod driver;
pub mod harness;
mod identity;
mod link;
mod process;
mod progress;
mod report;
mod spread;
mod stampede;
mod target;
mod tls;
mod verify;
mod wire;
mod workload;

use std::io;

pub use cli::{BenchCommand, BenchOptions, bench};
pub use driver::{Meter, Peer, Session, Until};
pub use process::{Cpu, Process};
pub use report::{Report, Tally, count, micros};
pub use spread::Spread;
pub use stampede::{StampedeReport, stampede};
pub use target::{Shape, Target};
pub use tls::Tls;
pub use verify::{Contents, Fault, Versions};
pub use wire::{Binary, Element, Memcached, Wire};
pub use workload::{Fill, Mix, Op, Plan, Popularity, Replay, Sizes, Supply, Ttls};

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The server cannot be reached.
    #[error("{address}: {error}")]
    Connect {
        /// The address as the user wrote it.
        address: String,
        /// The call's error.
        error: io::Error,
    },
    /// The server closed a connection, or left it without an answer for ten seconds.
    #[error("{0}")]
    Lost(String),
    /// A reply is wrong.
    #[error("a wrong reply: {0}")]
    Wrong(#[from] Fault),
    /// A system call failed that never should.
    #[error("{what}: {error}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The call's error.
        error: io::Error,
    },
    /// A file named on the command line cannot be used.
    #[error("{0}")]
    File(String),
    /// The command line cannot be followed: one line with the option, what is wrong, and the fix.
    #[error("{0}")]
    Usage(String),
    /// The user asked for the end, for example with Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io { what, error }
    }
}
