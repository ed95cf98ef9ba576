//! The right to compute a key, on its way to the session that gets it.

use std::sync::Arc;

use crate::duty::Duty;
use crate::session::{Record, Session};

/// A lease as its new holder is told of it. Its session must take it ([`Grant::accept`]): the end of the connection passes the
/// lease on only if the session knows of it. Debug builds panic when it is dropped.
#[derive(Debug)]
#[must_use = "a lease that no session takes is held until its time is up"]
pub struct Grant {
    record: Record,
    hint: Option<Arc<[u8]>>,
    duty: Duty,
}

impl Grant {
    pub(crate) fn new(record: Record, hint: Option<Arc<[u8]>>) -> Self {
        Self { record, hint, duty: Duty::new("a session accepts the lease") }
    }

    /// The miss that came with it; its number is the token.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The session is the holder's from now on. Returns the token, and what the one who computes is told.
    pub fn accept(self, session: &mut Session, now_ms: u64) -> (u64, Option<Arc<[u8]>>) {
        let (record, hint) = self.into_parts();
        session.record(record, now_ms);
        (record.number, hint)
    }

    /// For a verdict, which takes it to the session.
    pub(crate) fn into_parts(self) -> (Record, Option<Arc<[u8]>>) {
        self.duty.discharge();
        (self.record, self.hint)
    }
}
