//! A lease on its way to the session of its new holder.
//!
//! The herd grants a lease while a shard is locked; the session of the holder is owned by the thread that
//! serves its connection, and takes the lease there.
//!
//! # Invariants
//! * A grant is accepted by a session or becomes a verdict for a session: debug builds panic when it is
//!   dropped.

use std::sync::Arc;

use crate::duty::Duty;
use crate::session::{MissRecord, Session};

/// A lease as it is handed to its new holder. The holder's session must take it ([`Grant::accept`]): when a
/// connection is closed, only the leases that its session knows are passed on.
#[derive(Debug)]
#[must_use = "a lease that no session takes is held until its time is up"]
pub struct Grant {
    record: MissRecord,
    hint: Option<Arc<[u8]>>,
    duty: Duty,
}

impl Grant {
    pub(crate) fn new(record: MissRecord, hint: Option<Arc<[u8]>>) -> Self {
        Self { record, hint, duty: Duty::new("a session accepts the lease") }
    }

    /// The miss that came with the lease; its number is the token.
    pub fn record(&self) -> &MissRecord {
        &self.record
    }

    /// Makes the session's connection the holder. Returns the token and the hint for the computation.
    /// `now_ms`: milliseconds since the start.
    pub fn accept(self, session: &mut Session, now_ms: u64) -> (u64, Option<Arc<[u8]>>) {
        let (record, hint) = self.into_parts();
        session.record(record, now_ms);
        (record.number, hint)
    }

    /// For a verdict, which takes the lease to the session.
    pub(crate) fn into_parts(self) -> (MissRecord, Option<Arc<[u8]>>) {
        self.duty.discharge();
        (self.record, self.hint)
    }
}
