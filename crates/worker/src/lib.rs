//! SDK for worker processes of a [`cattlegrid-pool`](https://crates.io/crates/cattlegrid-pool).
//!
//! A *worker* is a process that gets jobs over a socket and sends a reply or an error for each. This crate
//! defines the messages of both sides ([`frame`], [`list`], [`message`], [`control`]), and implements the
//! worker's side: [`maybe_worker`], [`Worker::serve`], [`Worker::serve_batch`], [`Worker::serve_async`]. The
//! byte layout is described in `docs/worker-protocol.md`.
//!
//! # Invariants
//! * Every JOB frame read is answered by exactly one final RESULT, ERROR or SKIPPED, in whatever order jobs
//!   end.
//! * Events, progress and results leave in the order in which they were produced.
//! * A worker ends when its parent closes the socket; a template ends with its parent and ends all its
//!   workers.

pub mod claim;
pub mod control;
pub mod frame;
pub mod list;
pub mod loader;
pub mod message;
pub mod sys;

mod asynchronous;
mod batch;
mod entry;
mod job;
mod link;
mod outbox;
mod serve;
mod setup;
mod sync;
mod template;

pub use asynchronous::AsyncJob;
pub use entry::{
    ENV_FD, ENV_FDS, ENV_MODE, ENV_THREADS, Worker, inherited_fd, job_socket, keep_fd, maybe_worker,
};
pub use job::{Context, Job, JobError, Level, Reply};
#[cfg(fuzzing)]
pub use link::cancels_in;
pub use list::List;
pub use setup::{Limits, Sandbox, Setup};
