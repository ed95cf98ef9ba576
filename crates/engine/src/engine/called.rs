//! What becomes of a request that names a call: it is answered at once, or waits.

use cattlegrid_objects::{Listing, TooLarge};

use crate::engine::Engine;
use crate::engine::room::RoomSource;
use crate::event::{EventKind, Looker};
use crate::parked::ParkedRequest;
use crate::reply::call::{CallForm, CallReply, NO_ROOM, ShownReply, TOO_LARGE};
use crate::shard::Execution;
use crate::shard::object::{Call, CallOutcome};
use crate::shards::ShardLock;
use crate::step::{Context, Interest, Step};

/// The outcome of a request that names a call or an object.
#[derive(Debug)]
pub(crate) enum CallProgress {
    /// The reply is written: of a `get` the key's block, or nothing.
    Written,
    /// The reply is an error, which is written: of a `get` that has no other key.
    Refused,
    /// The request waits.
    Parked(Box<ParkedRequest>),
}

impl CallProgress {
    /// The request, if it waits.
    pub(crate) fn parked(self) -> Option<Box<ParkedRequest>> {
        if let Self::Parked(parked) = self { Some(parked) } else { None }
    }
}

impl From<CallProgress> for Execution {
    fn from(called: CallProgress) -> Self {
        called.parked().map_or(Self::Done, Self::Parked)
    }
}

/// A request that names a call: how it is answered, and what that takes.
pub(crate) struct CallCx<'a, 'l, 'c> {
    /// The form of the reply.
    pub(crate) shape: CallForm<'a>,
    /// The key as the client wrote it.
    pub(crate) key: &'a [u8],
    /// No key follows.
    pub(crate) last: bool,
    pub(crate) lock: &'a mut ShardLock<'l>,
    pub(crate) cx: &'a mut Context<'c>,
}

impl CallCx<'_, '_, '_> {
    /// Writes the reply.
    pub(crate) fn answer(&mut self, answered: CallReply<'_>) -> CallProgress {
        let Self { shape, key, ref mut cx, .. } = *self;
        shape.count(answered, cx.step.counters);
        shape.write(answered, &mut cx.out.bytes);
        let (status, size) = match answered {
            CallReply::Value(shows) => ("found", shows.value.len()),
            _ => ("not_found", 0),
        };
        if matches!(shape, CallForm::Get { .. } | CallForm::Packet { .. } | CallForm::Get2(_)) {
            let by = if matches!(shape, CallForm::Get2(_)) { Looker::MetaGet } else { Looker::Get };
            cx.note(Interest::FETCHERS, key, || EventKind::Get { status, size, by });
        }
        match answered {
            CallReply::Error(_) if shape.is_alone() => CallProgress::Refused,
            _ => CallProgress::Written,
        }
    }

    pub(crate) fn error(&mut self, text: &str) -> CallProgress {
        self.answer(CallReply::Error(text))
    }

    /// Answers a call of this method with what it has listed.
    pub(crate) fn answer_listing(
        &mut self,
        call: &Call<'_>,
        listing: Listing,
        (cas, ttl): (u64, Option<u64>),
    ) -> CallProgress {
        let counter = self.cx.step.counters.methods.of(call.registry.number(call.method));
        let flags = listing.flags(call.registry.settings().json_flags);
        match listing.finish() {
            Ok(Some(value)) => {
                counter.bytes.add(value.len() as u64);
                self.answer(CallReply::Value(ShownReply { value: &value, flags, cas, ttl }))
            }
            Ok(None) => {
                counter.misses.add(1);
                self.answer(CallReply::Miss)
            }
            Err(TooLarge) => {
                counter.errors.add(1);
                self.error(TOO_LARGE)
            }
        }
    }
}

impl Engine {
    /// Runs a call, and frees memory for it where it finds too little: in its own shard, then in the others.
    /// `has_object`: the object is busy with this call; otherwise it must not be busy.
    pub(crate) fn run_with_room(
        &self,
        call: &Call<'_>,
        has_object: bool,
        lock: &mut ShardLock<'_>,
        step: &Step<'_>,
    ) -> CallOutcome {
        // Other calls may take the room that was made.
        for _ in 0..4 {
            match self.run_with_memory(call, has_object, lock, step) {
                CallOutcome::PinnedFull => lock.release(),
                ran => return ran,
            }
            if !self.reclaim_pinned(step.now) {
                break;
            }
        }
        CallOutcome::Error(NO_ROOM.to_owned())
    }

    fn run_with_memory(
        &self,
        call: &Call<'_>,
        has_object: bool,
        lock: &mut ShardLock<'_>,
        step: &Step<'_>,
    ) -> CallOutcome {
        let ran = self.with_room(RoomSource::Anywhere, call.hash, lock, |lock, _| {
            let shard = lock.shard(call.hash);
            if !has_object && shard.is_busy(call.item_key) {
                return Ok(CallOutcome::Busy);
            }
            match shard.run_object(call, step) {
                CallOutcome::NoRoom(bytes) => Err(bytes),
                ran => Ok(ran),
            }
        });
        ran.unwrap_or_else(CallOutcome::NoRoom)
    }
}
