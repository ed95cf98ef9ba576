//! Sends a request about one key to its command, and notes what watchers want to see.

use std::sync::Arc;

use cattlegrid_protocol::Request;
use cattlegrid_store::HugeValue;

use crate::event::{Event, EventKind, Looker};
use crate::shard::Shard;
use crate::shard::flow::Flow;
use crate::shard::put::{TagsRefused, Write, WriteData, WriteOutcome};
use crate::step::{Context, Interest, Step, Ticket};

impl Shard {
    /// Executes a request about one key with this hash. `huge`: its data block, if that is too long for the
    /// log; always if it is apart. The keys of gets come here one by one, see `Shard::get`; requests without
    /// a key do not come here.
    pub fn execute(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        huge: Option<Arc<HugeValue>>,
        cx: &mut Context<'_>,
    ) -> Flow {
        self.advance(&cx.step);
        let watched = cx.step.interest != Interest::none();
        let noted = cx.step.effects.events.len();
        if watched {
            self.note_look(request, hash, cx);
        }
        let flow = match request {
            Request::Store(store) => {
                let from = cx.out.place();
                let flow = self.classic_store(store, hash, WriteData::of(store.data, huge), cx);
                self.bumped(flow, from, cx)
            }
            Request::MetaSet(meta, data) => {
                let from = cx.out.place();
                let flow = self.meta_set(meta, WriteData::of(*data, huge), hash, cx);
                self.bumped(flow, from, cx)
            }
            Request::Arith(arith) => {
                let from = cx.out.place();
                let flow = self.classic_arith(arith, hash, cx);
                self.bumped(flow, from, cx)
            }
            Request::MetaArith(meta) => {
                let from = cx.out.place();
                let flow = self.meta_arith(meta, hash, cx);
                self.bumped(flow, from, cx)
            }
            Request::Touch(touch) => self.touch(touch, hash, cx),
            Request::Delete(delete) => {
                let from = cx.out.place();
                let flow = self.classic_delete(delete, hash, cx);
                self.bumped(flow, from, cx)
            }
            Request::MetaDelete(meta) => {
                let from = cx.out.place();
                let flow = self.meta_delete(meta, hash, cx);
                self.bumped(flow, from, cx)
            }
            Request::MetaGet(meta) => self.meta_get(meta, hash, cx),
            Request::MetaDebug(key) => {
                self.meta_debug(key, hash, cx);
                Flow::Replied
            }
            Request::Get(_)
            | Request::PacketGet(_)
            | Request::MetaNoop
            | Request::Admin(_)
            | Request::Packet(..) => {
                unreachable!("requests without one key stay outside the shard")
            }
        };
        if watched && matches!(flow, Flow::NeedsRoom(_) | Flow::Object) {
            // It is executed again, or as a call, and notes its look-up again.
            cx.step.effects.events.truncate(noted);
        }
        flow
    }

    /// The outcome of a command that may have set off a cascade, whose reply begins at `from`.
    #[inline]
    fn bumped(&mut self, flow: Flow, from: (usize, usize), cx: &mut Context<'_>) -> Flow {
        if self.bump_ticket == 0 {
            return flow;
        }
        let ticket = std::mem::take(&mut self.bump_ticket);
        if !matches!(flow, Flow::Replied) {
            return flow;
        }
        cx.step.effects.bumped = (ticket, from);
        Flow::Bumped
    }

    /// Executes a `set` that no client has sent, and whose result is not told to any. Returns why the value's
    /// tags are refused, if they are.
    ///
    /// # Errors
    /// The bytes for which there was no room: nothing has changed then. At its `last` try the write is
    /// refused instead.
    pub(crate) fn set(
        &mut self,
        write: &Write<'_>,
        last: bool,
        cx: &mut Context<'_>,
    ) -> Result<Option<TagsRefused>, usize> {
        self.advance(&cx.step);
        if self.is_named(write.key) {
            // Types were switched on in between.
            return Ok(None);
        }
        let noted = cx.step.effects.events.len();
        self.note_lookup(write.key, write.hash, Looker::Store, cx);
        match self.write(write, cx) {
            WriteOutcome::NoRoom(bytes) if last => {
                self.refuse_write(write, cx);
                Err(bytes)
            }
            WriteOutcome::NoRoom(bytes) => {
                cx.step.effects.events.truncate(noted);
                Err(bytes)
            }
            WriteOutcome::Refused(refused) => Ok(Some(refused)),
            _ => Ok(None),
        }
    }

    /// Notes the look-up with which a command other than a get begins: gets note theirs with its result.
    #[cold]
    fn note_look(&mut self, request: &Request<'_>, hash: u64, cx: &mut Context<'_>) {
        let (key, by) = match request {
            Request::Store(store) => (store.key, Looker::Store),
            Request::Arith(arith) => (arith.key, Looker::Other),
            Request::Touch(touch) => (touch.key, Looker::Other),
            Request::Delete(delete) => (delete.key, Looker::Delete),
            Request::MetaSet(meta, _) => (meta.key.bytes(), Looker::Store),
            Request::MetaArith(meta) | Request::MetaDelete(meta) => (meta.key.bytes(), Looker::Other),
            Request::MetaDebug(key) => (key.bytes(), Looker::Other),
            _ => return,
        };
        self.note_lookup(key, hash, by, cx);
    }

    /// Tells of the items that were evicted, whatever they made room for.
    pub(crate) fn note_evictions(&mut self, step: &mut Step<'_>) {
        let objects = self.shared.objects();
        for evicted in self.store.drain_evicted() {
            let key = match evicted.object {
                None => evicted.key,
                Some(type_id) => {
                    let registry = objects.as_ref();
                    // A type that was switched off has no name.
                    let name = registry.and_then(|registry| registry.object_name(type_id, &evicted.key));
                    let Some(name) = name else { continue };
                    name.into()
                }
            };
            let kind = EventKind::Evicted {
                fetched: evicted.fetched,
                ttl: step.now.left(evicted.expiry),
                idle: u64::from(step.now.second.saturating_sub(evicted.accessed)),
                size: evicted.value_len,
            };
            step.effects.events.push((Ticket::NONE, Event { key, kind }));
        }
    }
}
