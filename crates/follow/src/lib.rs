//! Logs that invalidate: a follower reads an ordered log outside the server, and bumps the tags of its
//! entries.
//!
//! The log belongs to a database whose rows changed, or to a store of bumps that all nodes share.
//! [`Follower`] is the machine for all of them: it is told what its *source* saw, with time as an argument,
//! and answers with actions. It does no I/O and reads no clock. What differs between logs is in the types of
//! a [`Log`]; the source of a log only moves bytes.
//!
//! ```text
//!             stream: Entry, Passed           ┌──────────┐   Bump, Flush, Confirmed
//!   log ───────────────────────────▶ source ─▶│ Follower │─────────────────────────▶ engine
//!    ▲                                  ▲     └────┬─────┘
//!    └── second connection: Probed ─────┘◀─────────┘ Connect, Probe, Nudge, Acknowledge
//! ```
//!
//! # What it promises
//! When [`Action::Confirmed`] with `asked_at_ms` has been executed, every transaction whose commit was
//! answered before `asked_at_ms` is obeyed: its tags have been bumped, or everything has been flushed, after
//! it had become visible to readers.
//!
//! # Histories
//! T is a transaction, R a client that computes a value from the database after its miss.
//!
//! 1. *The log is ahead of readers.* T's commit is in the log, and arrives here; R misses, reads the old row,
//!    since T is not visible yet (it waits for a synchronous standby, or has not left the list of running
//!    transactions), and stores it. A bump on arrival would have been before R's miss, and R's value would be
//!    served for good. So an entry is bumped when a snapshot sees its transaction.
//! 2. *A stream that is open and silent.* A relay, a suspended server or a full buffer keeps the stream open
//!    while T commits. So nothing is confirmed by the stream alone: a second connection asks for the head of
//!    the log, and only what has passed that head counts.
//! 3. *A second connection to another server.* After a promotion the second connection reaches the new
//!    primary, the stream still the old one: the positions of the two mean nothing to each other. Each head
//!    carries the identity of its server; another one ends the connections.
//! 4. *A stream that does not begin where the last one ended.* T was committed between the two. Everything is
//!    flushed.
//! 5. *T's commit is in the log before the stream's beginning, and T is not visible yet.* It is in no entry,
//!    and R, which misses after the flush of history 4, reads the old row. So the transactions that ran when
//!    everything was flushed are noted, and when one has ended without an entry of its own, everything is
//!    flushed once more before anything is confirmed.
//! 6. *A reply that is late.* A head that was asked for on a connection that is lost since says nothing about
//!    the next one: replies are numbered.
#![forbid(unsafe_code)]

mod address;
mod again;
pub mod etcd;
mod follower;
mod log;
mod mark;
mod missing;
pub mod mysql;
mod names;
#[cfg(feature = "postgres")]
mod node;
pub mod postgres;
#[cfg(feature = "postgres")]
mod rows;
#[cfg(feature = "postgres")]
mod source;
mod tables;
#[cfg(feature = "postgres")]
mod tls;
#[cfg(feature = "postgres")]
mod wire;
#[cfg(feature = "postgres")]
mod x509;

pub use address::{Address, AddressError, Product};
pub use follower::{
    Action, FlushReason, Follower, FollowerEvent, FollowerState, HEADS_MAX, NUDGE_AFTER_MS, PROBE_EVERY_MS,
    RETRY_MS_MAX, Settings,
};
pub use log::{Log, Snapshot};
pub use mark::Fingerprint;
pub use names::{NAMES_BYTES_MAX, Name, Names};
#[cfg(feature = "postgres")]
pub use node::{LogOrder, Node, Notice, ResumePoint, SourceRequest};
#[cfg(feature = "postgres")]
pub use wire::WireError;
