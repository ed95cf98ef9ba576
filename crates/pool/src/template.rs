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
    /// Start a worker and wait for it, too.
    pub(crate) probe: bool,
    pub(crate) answer: Resolver<Result<(), Error>>,
}

/// A template process.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) serial: u64,
    pub(crate) generation: u32,
    pub(crate) pid: Pid,
    pub(crate) pidfd: Option<OwnedFd>,
    /// `None` when it was told to end.
    pub(crate) control: Option<OwnedFd>,
    pub(crate) log: OwnedFd,
    pub(crate) ready: bool,
    pub(crate) born: Instant,
    pub(crate) tail: Tail,
    /// Output on its way to the log.
    pub(crate) said: Lines,
    /// What it said before it gave up.
    pub(crate) fatal: Option<String>,
    /// SIGKILL is due then.
    pub(crate) kill_at: Option<Instant>,
}
