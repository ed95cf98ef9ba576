//! Executes a request about one key: an invalidation of a tag, a call of an object, or a command for the
//! key's shard ([`Shard::execute`]), which notes what watchers want to see.

use std::sync::Arc;

use cattlegrid_protocol::reply::error;
use cattlegrid_protocol::{Block, Packet, Request, StoreVerb};
use cattlegrid_store::HugeValue;

use crate::engine::Engine;
use crate::engine::room::{RoomSource, drop_write};
use crate::event::Looker;
use crate::parked::ParkedRequest;
use crate::reply::meta::refusals_of;
use crate::shard::put::{Write, WriteData, WriteMode, note_refused};
use crate::shard::{Execution, Flow, Shard};
use crate::shards::ShardLock;
use crate::shared::Names;
use crate::step::{Context, Interest};
use crate::sync::Ordering;

impl Engine {
    /// Whether a request stores a value that will have pages of its own.
    #[inline]
    pub fn stores_in_pages(&self, request: &Request<'_>) -> bool {
        request.block().is_some_and(|data| data.len() > self.inline_max)
    }

    /// Executes a request about the key with this hash. Returns the request if it waits: its reply comes
    /// later. [`Engine::get`] executes a `get`; the server executes requests without a key.
    ///
    /// # Panics
    /// On a `get`, on a request without a key, and on one whose data block is apart.
    pub fn execute(
        &self,
        request: &Request<'_>,
        hash: u64,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        self.execute_with(request, hash, None, false, lock, cx).parked()
    }

    /// Executes as [`Engine::execute`] does a request whose data block is apart: `value`.
    ///
    /// # Panics
    /// On a request for which [`Engine::may_arrive`] is not true.
    pub fn execute_arrived(
        &self,
        request: &Request<'_>,
        hash: u64,
        value: Arc<HugeValue>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        self.execute_with(request, hash, Some(value), false, lock, cx).parked()
    }

    /// Executes a request. `huge`: its data block, if that was received into pages of its own. `of_run`: the
    /// request is a get of a run, which is not held here.
    pub(crate) fn execute_with(
        &self,
        request: &Request<'_>,
        hash: u64,
        mut huge: Option<Arc<HugeValue>>,
        of_run: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Execution {
        if let Request::PacketGet(get) = request {
            return self.get_packet(get, hash, of_run, lock, cx);
        }
        if self.is_about_tags(request) {
            // The first use of tags takes memory from all shards.
            lock.release();
            return self.execute_tags(request, cx).into();
        }
        let names = self.shared.names.load(Ordering::Acquire);
        if may_call(names, request)
            && let Some(called) = self.execute_object(request, lock, cx)
        {
            self.finish_step(lock, &mut cx.step);
            return called.into();
        }
        if let Some(Block::Here(bytes)) = request.block()
            && bytes.len() > self.inline_max
        {
            let Some(WriteData::Huge(pages)) = self.data(bytes, lock) else {
                self.refuse(request, hash, lock, cx);
                return Execution::Done;
            };
            huge = Some(pages);
        }
        if let Some(pages) = &mut huge {
            self.cut_line_of(request, pages);
        }
        // Types may have been switched on since `names` was read, and the search for items under their names
        // may have passed this shard already.
        let mut shard = lock.shard(hash);
        if shard.names_now() != names {
            if let Some(called) = self.execute_object(request, lock, cx) {
                self.finish_step(lock, &mut cx.step);
                return called.into();
            }
            shard = lock.shard(hash);
        }
        let mut flow = shard.execute(request, hash, huge.clone(), cx);
        if let Flow::NeedsRoom(bytes) = flow {
            let mut called = None;
            let again = self.with_more_room(RoomSource::Others, bytes, hash, lock, |lock, last| {
                if lock.shard(hash).names_now() != names {
                    called = self.execute_object(request, lock, cx);
                    if called.is_some() {
                        return Ok(Flow::Replied);
                    }
                }
                let shard = lock.shard(hash);
                shard.set_last_try(last);
                let flow = shard.execute(request, hash, huge.clone(), cx);
                shard.set_last_try(false);
                if let Flow::NeedsRoom(bytes) = flow { Err(bytes) } else { Ok(flow) }
            });
            if let Some(called) = called {
                self.finish_step(lock, &mut cx.step);
                return called.into();
            }
            flow = again.expect("a request always has a reply at its last try");
        }
        if let (Flow::Leased(holds), Request::MetaGet(meta)) = (&flow, request)
            && !of_run
        {
            flow = lock.shard(hash).meta_wait(meta, hash, *holds, cx);
        }
        self.finish_step(lock, &mut cx.step);
        match flow {
            Flow::Replied => Execution::Done,
            Flow::Bumped => {
                lock.release();
                let (ticket, from) = cx.step.effects.bumped;
                self.await_bump((ticket, false), from, refusals_of(request), cx).into()
            }
            Flow::Computes => Execution::Computes,
            Flow::Leased(holds) => Execution::Leased(holds),
            Flow::Parked(parked) => {
                self.check_circle(lock, cx);
                Execution::Parked(parked)
            }
            Flow::Object => {
                let Request::MetaGet(meta) = request else { unreachable!("only `mg` is recognised late") };
                self.meta_get_object(meta, lock, cx).map_or(Execution::Done, Execution::Parked)
            }
            Flow::NeedsRoom(_) => unreachable!("it was executed with room"),
        }
    }

    /// Whether a request other than a classic `get` is about a tag or a control key. An `mg` of a control key
    /// behind a prefix is recognised when it has found no item: see [`Flow::Object`].
    #[inline]
    pub(crate) fn is_about_tags(&self, request: &Request<'_>) -> bool {
        let key: &[u8] = match request {
            Request::Store(store) => store.key,
            Request::Arith(arith) => arith.key,
            Request::Touch(touch) => touch.key,
            Request::Delete(delete) => delete.key,
            Request::MetaGet(meta) | Request::MetaDelete(meta) | Request::MetaArith(meta) => {
                if meta.set.has(b'G') {
                    return true;
                }
                if matches!(request, Request::MetaGet(_)) {
                    return self.shared().is_bare_control(meta.key.bytes());
                }
                if meta.set.has(b'B') {
                    return true;
                }
                meta.key.bytes()
            }
            Request::MetaSet(meta, _) => meta.key.bytes(),
            _ => return false,
        };
        self.shared().control(key).is_some()
    }

    /// Notes a store that was not executed, since it is too large (`too_large`) or there is no memory for its
    /// data.
    pub fn note_refused(
        &self,
        key: &[u8],
        verb: StoreVerb,
        classic: bool,
        too_large: bool,
        cx: &mut Context<'_>,
    ) {
        let status = if too_large { "too_large" } else { "no_memory" };
        note_refused(key, WriteMode::of(verb), classic, status, cx);
    }

    /// A new value was refused: ends its lease, and removes the old value if that could be taken for it
    /// (`drops_old`). `token`: the number of the miss for which the value was computed, if the client named
    /// it.
    pub fn invalidate(&self, key: &[u8], token: Option<u64>, drops_old: bool, cx: &mut Context<'_>) {
        let hash = self.hasher.hash(key);
        let write = Write { drops_old, ..Write::refused(key, hash, token) };
        let mut lock = self.shard_lock();
        lock.shard(hash).note_lookup(key, hash, Looker::Store, cx);
        lock.shard(hash).refused(&write, cx);
        self.finish_step(&mut lock, &mut cx.step);
    }

    /// Whether the data block of a request may arrive in the pages in which it will stay. What is not stored
    /// as it comes may not: arguments of calls, data of control keys, parts of values.
    pub fn may_arrive(&self, request: &Request<'_>) -> bool {
        let verb = match request {
            Request::Store(store) => store.verb,
            Request::MetaSet(meta, _) if !meta.set.has(b'A') => meta.set.store_verb(),
            _ => return false,
        };
        self.stores_in_pages(request)
            && !matches!(verb, StoreVerb::Append | StoreVerb::Prepend)
            && !self.is_about_tags(request)
    }

    /// Takes the line of tags off the value of a request that stores, where a rule says so.
    fn cut_line_of(&self, request: &Request<'_>, pages: &mut Arc<HugeValue>) {
        match request {
            Request::Store(store) => self.cut_line(store.key, WriteMode::of(store.verb), pages),
            Request::MetaSet(meta, _) => {
                self.cut_line(meta.key.bytes(), WriteMode::of(meta.set.store_verb()), pages);
            }
            _ => {}
        }
    }

    /// There are no pages for a value: answers an error.
    fn refuse(&self, request: &Request<'_>, hash: u64, lock: &mut ShardLock<'_>, cx: &mut Context<'_>) {
        refusals_of(request).write(error::OUT_OF_MEMORY, &mut cx.out.bytes);
        let (write, noted) = match request {
            Request::Store(store) => {
                let mode = WriteMode::of(store.verb);
                let write =
                    Write { mode, drops_old: mode == WriteMode::Set, ..Write::set(store.key, hash, &[]) };
                (write, (mode, true))
            }
            Request::MetaSet(meta, _) => {
                let token = meta.set.has(b'C').then_some(meta.set.compare_cas);
                let mode = WriteMode::of(meta.set.store_verb());
                let drops_old = meta.packet.is_none_or(Packet::is_set);
                (Write { drops_old, ..Write::refused(meta.key.bytes(), hash, token) }, (mode, false))
            }
            _ => unreachable!("only these have a value"),
        };
        drop_write(&write, noted, lock, cx);
        self.finish_step(lock, &mut cx.step);
    }
}

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
}

/// Whether a request may be one for [`Engine::execute_object`]: there are objects, or it has the flag
/// `A`. `names`: of [`Shared::names`](crate::shared::EngineShared::names).
#[inline]
fn may_call(names: u64, request: &Request<'_>) -> bool {
    Names::state(names) != Names::OFF
        || matches!(request, Request::MetaGet(meta) | Request::MetaSet(meta, _) if meta.set.has(b'A'))
}
