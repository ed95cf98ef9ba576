//! The log into which a server writes the bumps of its clients, so that the other nodes of its fleet obey
//! them.

use std::fmt::Debug;
use std::sync::Arc;

use cattlegrid_herd::Caller;
use cattlegrid_tags::BumpKind;

use crate::delivered::{CALL_SLOT, Verdict, Wake};

/// A bump that has been obeyed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentBump<'a> {
    /// A bump of a tag.
    Tag {
        /// The prefix that clients put before the tag; empty: none.
        prefix: &'a [u8],
        /// The tag's name.
        name: &'a [u8],
        /// Hard or soft.
        kind: BumpKind,
    },
    /// A soft bump of a tag, item by item over a period.
    Gradual {
        /// The prefix that clients put before the tag; empty: none.
        prefix: &'a [u8],
        /// The tag's name.
        name: &'a [u8],
        /// The period, 1 to [`ROLLING_FLUSH_MAX_S`](crate::ROLLING_FLUSH_MAX_S).
        seconds: u64,
    },
    /// A rolling flush.
    Flush {
        /// The period, 1 to [`ROLLING_FLUSH_MAX_S`](crate::ROLLING_FLUSH_MAX_S).
        seconds: u64,
    },
}

/// The request whose reply waits for a bump.
#[derive(Debug)]
pub struct BumpWaiter {
    pub(crate) caller: Arc<Caller>,
    pub(crate) request: u64,
}

/// Whether a reply waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BumpWait {
    /// The reply does not wait: what it promises is so.
    Over,
    /// Until it is told, at most until this time in milliseconds since the start.
    Until(u64),
    /// The reply does not wait: the log is lost, and nothing is promised.
    Lost,
}

/// The log into which bumps are written for other nodes. Lanes call it, some while they have a shard's lock:
/// nothing waits in it.
pub trait BumpLog: Debug + Send + Sync {
    /// Whether there is a log.
    fn is_on(&self) -> bool;

    /// Takes a bump. Returns its ticket, above 0; later ones have larger tickets.
    fn push(&self, bump: &SentBump<'_>) -> u64;

    /// Whether the reply to a request waits until the bump is in the log, or with `is_barrier` until all
    /// nodes have obeyed it. If so it is told by a wake.
    fn wait(&self, ticket: u64, is_barrier: bool, who: BumpWaiter, now_ms: u64) -> BumpWait;

    /// The nodes of the fleet, as JSON in one line.
    fn nodes(&self, now_ms: u64) -> String;
}

impl BumpWaiter {
    /// The lane of its connection.
    pub fn lane(&self) -> usize {
        self.caller.lane()
    }

    /// The wake that tells it.
    pub fn wake(self, is_confirmed: bool) -> Wake {
        let verdict = if is_confirmed {
            Verdict::Miss { record: None, hint: None }
        } else {
            Verdict::Busy { record: None }
        };
        Wake { caller: self.caller, request: self.request, slot: CALL_SLOT, verdict }
    }
}
