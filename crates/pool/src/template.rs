//! Programs, their generations and their template processes, as data. `program.rs` has what happens to them.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::process::Pid;

use crate::error::Error;
use crate::launch::Launch;
use crate::logs::{Lines, Tail};
use crate::promise::Resolver;

/// The program workers are made of.
#[derive(Debug)]
pub(crate) struct Program {
    /// Counted from 1; 0 before the first is ready.
    pub(crate) generation: u32,
    pub(crate) launch: Launch,
}

impl Program {
    pub(crate) fn new(generation: u32, launch: Launch) -> Self {
        Self { generation, launch }
    }
}

/// A generation on its way to READY: the first one, or a reload.
#[derive(Debug)]
pub(crate) struct Launching {
    pub(crate) program: Program,
    /// It also starts a worker and waits until that is ready.
    pub(crate) probe: bool,
    pub(crate) answer: Resolver<Result<(), Error>>,
    /// Since when that worker waits for room in the budget.
    pub(crate) no_room: Option<Instant>,
}

/// A template process.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) serial: u64,
    pub(crate) generation: u32,
    pub(crate) pid: Pid,
    pub(crate) pidfd: Option<OwnedFd>,
    /// `None` when the pool has told it to end.
    pub(crate) control: Option<OwnedFd>,
    pub(crate) log: OwnedFd,
    pub(crate) ready: bool,
    pub(crate) born: Instant,
    pub(crate) tail: Tail,
    /// Output on its way to the log.
    pub(crate) said: Lines,
    /// The text of its FATAL message.
    pub(crate) fatal: Option<String>,
    /// When SIGKILL is due.
    pub(crate) kill_at: Option<Instant>,
}
