//! The outcomes of a request in its shard.

use cattlegrid_objects::Spot;
use cattlegrid_protocol::reply::error;

use crate::parked::ParkedRequest;
use crate::query::HoldLimits;
use crate::reply::meta::Refusals;
use crate::shard::Shard;
use crate::step::Context;

/// The result of a request.
#[derive(Debug)]
#[must_use]
pub enum Flow {
    /// Executed; the reply, if it has one, is in the output.
    Replied,
    /// The request waits; the reply comes later.
    Parked(Box<ParkedRequest>),
    /// Nothing was done: the shard has no room and can free none. Free this many bytes elsewhere and try
    /// again; after [`Shard::set_last_try`] it is answered in any case.
    NeedsRoom(usize),
    /// An `mg` without an item, whose key may name a call or an object, or is a control key behind a prefix.
    Object,
    /// `Replied`, and a cascade has left a bump for the log of the fleet: see
    /// [`Effects::bumped`](crate::Effects).
    Bumped,
    /// `Replied`, and this connection has the lease of the key now.
    Computes,
    /// Nothing is written: another client has the lease of the key of an `mg`.
    Leased(HoldLimits),
}

/// The answer to one key of a `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum KeyAnswer {
    /// The key's value is written.
    Hit,
    /// No value.
    Miss,
    /// No value, and this connection has the lease.
    Compute,
    /// Another client has the lease; the key has not been waited for yet.
    Leased(HoldLimits),
    /// `SERVER_ERROR busy`, which is not written yet.
    Busy,
    /// The key is a control key.
    Control,
    /// The key names a call or an object; where, if that was noted.
    Object(Option<Spot>),
}

/// How the wait for a key began.
#[derive(Debug)]
pub(crate) enum HoldStart {
    /// The key is waited for.
    Waits,
    /// The key was answered meanwhile: its block, or nothing, is written.
    Written,
    /// This connection has the lease after all.
    Compute,
    /// `SERVER_ERROR busy`.
    Busy,
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Execution {
    Done,
    /// `Done`, and this connection has the lease of the key now.
    Computes,
    Parked(Box<ParkedRequest>),
    /// A get of a run has found its key leased by another client. It is counted; nothing is written.
    Leased(HoldLimits),
}

impl Shard {
    /// The answer to a key that names a call or an object; None: it is an ordinary key.
    pub(crate) fn named(&self, key: &[u8]) -> Option<KeyAnswer> {
        if !self.shared.has_objects() {
            return None;
        }
        let objects = self.shared.objects();
        let registry = objects.as_ref()?;
        registry.named(key).map(|named| KeyAnswer::Object(registry.spot(&named, key)))
    }

    /// No room for this many bytes: asks for another attempt, or answers an error.
    pub(crate) fn no_room(&mut self, bytes: usize, refusals: Refusals, cx: &mut Context<'_>) -> Flow {
        if !self.last_try {
            return Flow::NeedsRoom(bytes);
        }
        cx.step.counters.store_no_memory.add(1);
        refusals.write(error::OUT_OF_MEMORY, &mut cx.out.bytes);
        Flow::Replied
    }
}

impl Execution {
    pub(crate) fn parked(self) -> Option<Box<ParkedRequest>> {
        if let Self::Parked(parked) = self { Some(parked) } else { None }
    }
}

impl From<Option<Box<ParkedRequest>>> for Execution {
    fn from(parked: Option<Box<ParkedRequest>>) -> Self {
        parked.map_or(Self::Done, Self::Parked)
    }
}
