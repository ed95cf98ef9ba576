//! Objects on all shards: keys that name calls, and what becomes of the requests that use them.
//!
//! ```text
//!   get quota:take:u1:1:10:hour    no such item -> the name of a call -> the object's shard -> its method -> VALUE ...
//! ```
//! Names are recognised where an ordinary look-up has found nothing: a hit of an ordinary key pays nothing for them. No
//! command stores under such a name. When types are switched on while there are items, those under new names are removed
//! piece by piece ([`walk`]), and until that is done names are recognised first.
//!
//! An object is an item of a domain of its own, which no key can name. A call runs under the lock of its shard
//! ([`execute`]). A call that reads more than [`AT_ONCE_BYTES`] of an object leaves the engine as a [`RunningCall`], for the
//! lane that is the object's home, which calls [`Engine::go_on`] until it has ended ([`running`]); its request waits like
//! a held get and is woken.

pub(crate) mod after;
pub(crate) mod answer;
pub(crate) mod counts;
pub(crate) mod execute;
pub(crate) mod running;
pub(crate) mod script;
pub(crate) mod usage;
pub(crate) mod walk;
pub(crate) mod world;

use std::collections::VecDeque;
use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, Listing, MethodId, Name, Named, OBJECT_KEY_MAX, Reads, Registry, Spot, TooLarge, unescape_flag,
};
use cattlegrid_protocol::{Meta, Request, reply};

use crate::engine::Engine;
use crate::event::{EventKind, Interest, Looker};
use crate::object::answer::{Answered, Shape, Shows};
use crate::object::counts::TIMED_EVERY;
use crate::object::execute::{Call, ItemKey, NO_ROOM, Ran, fill_item_key, item_key, left};
use crate::object::running::{Later, RunningCall as Running, TOO_LARGE};
use crate::read::miss::count_miss;
use crate::read::reply::{count_meta, refusals_of};
use crate::rules::why::WhyObject;
use crate::shards::ShardLock;
use crate::shared::Names;
use crate::step::{Context, Step};
use crate::wait::park::{Form, Parked};

pub use running::RunningCall;

/// A call that reads more than this of an object runs in steps.
pub(crate) const AT_ONCE_BYTES: usize = 64 << 10;
/// The reply to the flag `A` with a key that is not the name of an object.
const NOT_A_NAME: &str = "CLIENT_ERROR A needs the name of an object, type::key";
/// Attempts of a call that finds no room.
const ATTEMPTS: usize = 4;

/// What became of a request that names a call or an object.
#[derive(Debug)]
pub(crate) enum Called {
    /// Its reply is written: of a `get` the key's block, or nothing.
    Written,
    /// Its reply is an error, which is written: of a `get` that has no other key.
    Refused,
    /// It waits.
    Parked(Box<Parked>),
}

impl Called {
    /// The request, if it waits.
    pub(crate) fn parked(self) -> Option<Box<Parked>> {
        if let Self::Parked(parked) = self { Some(parked) } else { None }
    }
}

/// What a request asks of objects.
#[derive(Debug)]
enum Asked<'k> {
    /// A method by `type:method:key:...`.
    Named(Name<'k>),
    /// A method of `type::key`.
    Method { type_id: u16, method: MethodId, key: &'k [u8], arguments: Arguments<'k> },
}

/// The types under which a request began.
#[derive(Debug, Clone, Copy)]
struct Types<'a> {
    registry: &'a Arc<Registry>,
    /// See [`Call::changes`].
    changes: u64,
}

impl Engine {
    /// The types that are switched on.
    pub fn objects(&self) -> Option<Arc<Registry>> {
        Option::clone(&self.shared().objects())
    }

    /// A key of a `get` that names a call, and has no item. `last`: no key follows.
    #[cold]
    pub(crate) fn get_object(
        &self,
        shape: Shape<'_>,
        (key, spot): (&[u8], Option<Spot>),
        touches: bool,
        last: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Called {
        let (changes, objects) = (self.shared().type_changes(), self.shared().objects());
        let Some((registry, named)) =
            objects.as_ref().and_then(|registry| Some((registry, registry.named_at(key, spot)?)))
        else {
            // The types were switched off in between.
            if touches {
                count_miss(true, cx);
                return Called::Written;
            }
            return self.answer(shape, Answered::Miss, key, cx);
        };
        let types = Types { registry, changes };
        match named {
            _ if touches => {
                count_miss(true, cx);
                shape.write(Answered::Error(&refusal(registry, named)), &mut cx.out.bytes);
                if shape.is_alone() { Called::Refused } else { Called::Written }
            }
            Named::Call(name) => self.call(types, Asked::Named(name), &[], shape, key, last, lock, cx),
            Named::Object { .. } => {
                let text = refusal(registry, named);
                self.answer(shape, Answered::Error(&text), key, cx)
            }
        }
    }

    /// Whether a request may be one for [`Engine::execute_object`]: there are objects, or it has the flag `A`. `names`: of
    /// [`Shared::names`](crate::shared::Shared::names).
    #[inline]
    pub(crate) fn may_call(names: u64, request: &Request<'_>) -> bool {
        Names::state(names) != Names::OFF
            || matches!(request, Request::MetaGet(meta) | Request::MetaSet(meta, _) if meta.set.has(b'A'))
    }

    /// A request other than a classic `get` that names a call or an object, or has the flag `A`. None: it does not.
    #[inline(never)]
    pub(crate) fn execute_object(
        &self,
        request: &Request<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Called> {
        let calls = match request {
            Request::MetaGet(meta) | Request::MetaSet(meta, _) => meta.set.has(b'A'),
            _ => false,
        };
        let key: &[u8] = match request {
            Request::Store(store) => store.key,
            Request::Arith(arith) => arith.key,
            Request::Touch(touch) => touch.key,
            Request::Delete(delete) => delete.key,
            // Recognised after the look-up, unless it has `A`.
            Request::MetaGet(meta) if calls || self.shared().names_first() => meta.key.bytes(),
            Request::MetaSet(meta, _) | Request::MetaDelete(meta) | Request::MetaArith(meta) => {
                meta.key.bytes()
            }
            _ => return None,
        };
        let (changes, objects) = (self.shared().type_changes(), self.shared().objects());
        let named = objects.as_ref().and_then(|registry| Some((registry, registry.named(key)?)));
        if named.is_none() && !calls {
            return None;
        }
        Some(if let Some((registry, named)) = named {
            self.execute_named(request, Types { registry, changes }, named, key, lock, cx)
        } else {
            // Without objects there is no such flag.
            let text = if objects.is_none() { reply::error::INVALID_FLAG } else { NOT_A_NAME };
            reply::line(&mut cx.out.bytes, text);
            Called::Written
        })
    }

    /// An `mg` whose key has no item and names a call or an object.
    #[cold]
    pub(crate) fn meta_get_object(
        &self,
        meta: &Meta<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<Parked>> {
        let key = meta.key.bytes();
        let (changes, objects) = (self.shared().type_changes(), self.shared().objects());
        let named = objects.as_ref().and_then(|registry| Some((registry, registry.named(key)?)));
        let called = if let Some((registry, named)) = named {
            let types = Types { registry, changes };
            self.execute_named(&Request::MetaGet(meta.clone()), types, named, key, lock, cx)
        } else {
            // The types were switched off in between.
            cx.step.counters.cmd_meta.add(1);
            cx.step.counters.cmd_get.add(1);
            self.answer(Shape::Get2(meta), Answered::Miss, key, cx)
        };
        called.parked()
    }

    #[cold]
    fn execute_named(
        &self,
        request: &Request<'_>,
        types: Types<'_>,
        named: Named<'_>,
        key: &[u8],
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Called {
        let registry = types.registry;
        let drop = |type_id| registry.method_of(type_id, b"drop").expect("every object has it");
        let mut escaped = Vec::new();
        match (request, named) {
            (Request::MetaGet(meta), named) => {
                cx.step.counters.cmd_meta.add(1);
                cx.step.counters.cmd_get.add(1);
                let shape = Shape::Get2(meta);
                // Flags that change an item.
                let changes = has_any(meta, b"TNRE");
                match (named, flag_a(meta)) {
                    (Named::Call(name), None) if !changes => {
                        self.call(types, Asked::Named(name), &[], shape, key, true, lock, cx)
                    }
                    (Named::Object { type_id, key: own }, Some(text)) if !changes => {
                        match parse_flag(registry, type_id, own, text, None, &mut escaped) {
                            Ok(asked) => self.call(types, asked, &[], shape, key, true, lock, cx),
                            Err(text) => self.answer(shape, Answered::Error(&text), key, cx),
                        }
                    }
                    _ => self.answer(shape, Answered::Error(&refusal(registry, named)), key, cx),
                }
            }
            (Request::MetaSet(meta, data), Named::Object { type_id, key: own }) if meta.set.has(b'A') => {
                cx.step.counters.cmd_meta.add(1);
                let (shape, text) = (Shape::Set(meta), flag_a(meta).unwrap_or_default());
                if has_any(meta, b"CEFIMT") {
                    return self.answer(shape, Answered::Error(reply::error::INVALID_FLAG), key, cx);
                }
                let hash = self.hash_key(key);
                let tags = match lock.shard(hash).tags_named(meta) {
                    Ok(tags) => tags,
                    Err(error) => {
                        let text = format!("CLIENT_ERROR {error}");
                        return self.answer(shape, Answered::Error(&text), key, cx);
                    }
                };
                // See `Engine::may_arrive`.
                let data = data.here().expect("arguments of calls are not apart");
                match parse_flag(registry, type_id, own, text, Some(data), &mut escaped) {
                    Ok(asked) => self.call(types, asked, tags.hashes(), shape, key, true, lock, cx),
                    Err(text) => self.answer(shape, Answered::Error(&text), key, cx),
                }
            }
            (Request::Delete(delete), Named::Object { type_id, key: own }) => {
                let asked =
                    Asked::Method { type_id, method: drop(type_id), key: own, arguments: Arguments::none() };
                self.call(types, asked, &[], Shape::Delete { noreply: delete.noreply }, key, true, lock, cx)
            }
            (Request::MetaDelete(meta), Named::Object { type_id, key: own }) => {
                count_meta(meta, cx);
                if has_any(meta, b"CEITx") {
                    let error = Answered::Error(reply::error::INVALID_FLAG);
                    return self.answer(Shape::Delete2(meta), error, key, cx);
                }
                let asked =
                    Asked::Method { type_id, method: drop(type_id), key: own, arguments: Arguments::none() };
                self.call(types, asked, &[], Shape::Delete2(meta), key, true, lock, cx)
            }
            (request, named) => {
                refusals_of(request).write(&refusal(registry, named), &mut cx.out.bytes);
                Called::Written
            }
        }
    }

    /// Makes a call, and answers it or lets its request wait. `key`: as the client wrote it.
    #[expect(clippy::too_many_arguments, reason = "who calls what, and how it is answered")]
    fn call(
        &self,
        types: Types<'_>,
        asked: Asked<'_>,
        tags: &[u64],
        shape: Shape<'_>,
        key: &[u8],
        last: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Called {
        let Types { registry, changes } = types;
        let mut buffer = Vec::new();
        let (type_id, method, own, arguments) = match asked {
            Asked::Method { type_id, method, key, arguments } => (type_id, method, key, arguments),
            Asked::Named(name) => match registry.split(&name, &mut buffer) {
                Ok((key, arguments)) => (name.type_id, name.method, key, arguments),
                Err(text) => return self.answer(shape, Answered::Error(&text), key, cx),
            },
        };
        let number = registry.number(method);
        let counters = cx.step.counters;
        let counter = counters.methods.of(number);
        let calls = counter.calls.get();
        counter.calls.add(1);
        let has_key = !own.is_empty() || registry.is_about_type(method);
        let mut item_key = ItemKey::new();
        if !has_key || !fill_item_key(&mut item_key, type_id, own) {
            counter.errors.add(1);
            let what = if own.is_empty() { "no key".to_owned() } else { too_long() };
            let text = registry.client_error(method, &what);
            return self.answer(shape, Answered::Error(&text), key, cx);
        }
        let timed = calls.is_multiple_of(TIMED_EVERY) || counter.is_slow();
        let begun_ns = if timed { self.nanos() } else { 0 };
        let hash = self.hash_object(&item_key);
        let random = mix(hash ^ self.shared().clock().rotate_left(32) ^ calls);
        let call = Call {
            registry,
            method,
            type_id,
            item_key: &item_key,
            hash,
            arguments: &arguments,
            tags,
            random,
            changes,
            commit: None,
        };
        if lock.shard(hash).is_busy(&item_key) {
            return self.call_later(&call, None, registry, shape, key, last, lock, cx);
        }
        if let Some(script) = registry.script(method) {
            return self.call_script(&call, &script, registry, shape, key, last, lock, cx);
        }
        let ran = self.run_with_room(&call, false, lock, &mut cx.step);
        let called = match ran {
            Ran::Busy | Ran::Moved => {
                return self.call_later(&call, None, registry, shape, key, last, lock, cx);
            }
            Ran::List(mut listing) => {
                if let Some((cas, ttl)) = self.read_at_once(&call, &mut listing, lock, &cx.step) {
                    self.answer_listing(*listing, registry, (cas, ttl), number, shape, key, cx)
                } else {
                    listing.restart();
                    return self.call_later(&call, Some(listing), registry, shape, key, last, lock, cx);
                }
            }
            Ran::Value { flags, cas, ttl } => {
                let value = std::mem::take(&mut lock.shard(hash).value);
                counter.bytes.add(value.len() as u64);
                let called =
                    self.answer(shape, Answered::Value(Shows { value: &value, flags, cas, ttl }), key, cx);
                lock.shard(hash).keep_value(value);
                called
            }
            Ran::Miss => {
                counter.misses.add(1);
                self.answer(shape, Answered::Miss, key, cx)
            }
            Ran::Error(text) => {
                counter.errors.add(1);
                self.answer(shape, Answered::Error(&text), key, cx)
            }
            Ran::NoRoom(_) => {
                counter.errors.add(1);
                cx.step.counters.store_no_memory.add(1);
                self.answer(shape, Answered::Error(NO_ROOM), key, cx)
            }
        };
        if timed {
            let ns = self.nanos().saturating_sub(begun_ns);
            counter.time(ns);
            cx.step.effects.add_calls_ns(ns);
        }
        called
    }

    #[expect(clippy::too_many_arguments, reason = "what was listed, and how it is answered")]
    fn answer_listing(
        &self,
        listing: Listing,
        registry: &Registry,
        (cas, ttl): (u64, Option<u64>),
        number: usize,
        shape: Shape<'_>,
        key: &[u8],
        cx: &mut Context<'_>,
    ) -> Called {
        let counters = cx.step.counters;
        let counter = counters.methods.of(number);
        let flags = listing.flags(registry.settings().json_flags);
        match listing.finish() {
            Ok(Some(value)) => {
                counter.bytes.add(value.len() as u64);
                self.answer(shape, Answered::Value(Shows { value: &value, flags, cas, ttl }), key, cx)
            }
            Ok(None) => {
                counter.misses.add(1);
                self.answer(shape, Answered::Miss, key, cx)
            }
            Err(TooLarge) => {
                counter.errors.add(1);
                self.answer(shape, Answered::Error(TOO_LARGE), key, cx)
            }
        }
    }

    /// A call that reads much, or whose object is busy: its request waits.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "a call, and how it is answered")]
    pub(crate) fn call_later(
        &self,
        call: &Call<'_>,
        listing: Option<Box<Listing>>,
        registry: &Arc<Registry>,
        shape: Shape<'_>,
        key: &[u8],
        last: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Called {
        let counters = cx.step.counters;
        let caller = cx.session.caller();
        let stays =
            listing.is_none() && !lock.shard(call.hash).is_busy(call.item_key) && cx.step.effects.postpones();
        let later = Later { registry, caller, request: cx.ticket.request, begun_ns: self.nanos(), stays };
        // Only a call that reads its own object, which is busy with it already, has had its moment. Another call may change
        // something later: then nothing of its connection may come before it.
        let is_barrier = listing.is_none() || registry.definition(call.method).reads == Reads::Arguments;
        let running = Running::new(self, call, listing, later);
        if let Err(text) = self.begin_call(running, lock, &mut cx.step) {
            counters.methods.of(registry.number(call.method)).errors.add(1);
            return self.answer(shape, Answered::Error(text), key, cx);
        }
        counters.methods.of(registry.number(call.method)).waited.add(1);
        let form = Form::Call { shape: shape.to_owned(last), is_barrier, verdict: None };
        Called::Parked(Box::new(Parked::new(cx.ticket.request, u64::MAX, 0, false, form)))
    }

    /// Writes a reply.
    #[expect(clippy::unused_self, reason = "beside the other ends of a request")]
    pub(crate) fn answer(
        &self,
        shape: Shape<'_>,
        answered: Answered<'_>,
        key: &[u8],
        cx: &mut Context<'_>,
    ) -> Called {
        shape.count(answered, cx.step.counters);
        shape.write(answered, &mut cx.out.bytes);
        let (status, size) = match answered {
            Answered::Value(shows) => ("found", shows.value.len()),
            _ => ("not_found", 0),
        };
        if matches!(shape, Shape::Get { .. } | Shape::Packet { .. } | Shape::Get2(_)) {
            let by = if matches!(shape, Shape::Get2(_)) { Looker::Other } else { Looker::Get };
            cx.note(Interest::FETCHERS, key, || EventKind::Get { status, size, by });
        }
        match answered {
            Answered::Error(_) if shape.is_alone() => Called::Refused,
            _ => Called::Written,
        }
    }

    /// The object that a key names, as `@why:` shows it: its own name, what it is, and its tags.
    pub(crate) fn why_object(&self, key: &[u8], step: &Step<'_>) -> Option<(Vec<u8>, WhyObject, Vec<u64>)> {
        let objects = self.shared().objects();
        let registry = objects.as_ref()?;
        let mut buffer = Vec::new();
        let (type_id, method, own) = match registry.named(key)? {
            Named::Object { type_id, key } => (type_id, None, key),
            Named::Call(name) => {
                let (key, _) = registry.split(&name, &mut buffer).ok()?;
                (name.type_id, Some(registry.names(name.method).1), key)
            }
        };
        let item_key = item_key(type_id, own)?;
        let hash = self.hash_object(&item_key);
        let mut shard = self.shards.lock(self.shards.number(hash));
        shard.advance(step);
        let waiting = shard.busy.get(&*item_key).map(VecDeque::len);
        let found = shard.find_object(hash, &item_key, step);
        let item = found.map(|found| shard.store.item(found));
        let tree_bytes =
            found.and_then(|found| shard.store.tree(found)).map_or(0, cattlegrid_store::Tree::held_bytes);
        let tags = item.as_ref().map_or(Vec::new(), |item| item.tags().collect());
        let object = WhyObject {
            busy: waiting.is_some(),
            cas: item.map_or(0, |item| item.cas()),
            evict: if registry.is_pinned(type_id) { "never" } else { "normal" },
            exists: found.is_some(),
            key: String::from_utf8_lossy(own).into_owned(),
            method,
            size: item.map_or(0, |item| item.value_len()) + tree_bytes,
            ttl: item.and_then(|item| left(step.now, item.expiry())),
            type_name: registry.type_name(type_id),
            waiting: waiting.unwrap_or(0),
        };
        drop(shard);
        Some((registry.object_name(type_id, own)?, object, tags))
    }

    /// Runs a call, and frees memory for it where it finds too little: in its own shard, then in the others. `has_object`: the
    /// object is busy with this call; otherwise it must not be busy.
    pub(crate) fn run_with_room(
        &self,
        call: &Call<'_>,
        has_object: bool,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Ran {
        let mut ran = lock.shard(call.hash).run_object(call, self.memory(), step);
        for attempt in 1..ATTEMPTS {
            let Ran::NoRoom(bytes) = ran else { break };
            // More each time: other threads may take what was freed.
            let bytes = bytes * attempt;
            let shard = lock.shard(call.hash);
            if self.evicts() {
                shard.store.give_back(bytes);
            }
            if self.memory().free_bytes() < bytes {
                lock.release();
                self.make_room(bytes, call.hash);
                if !has_object && lock.shard(call.hash).is_busy(call.item_key) {
                    return Ran::Busy;
                }
            }
            ran = lock.shard(call.hash).run_object(call, self.memory(), step);
        }
        ran
    }
}

fn has_any(meta: &Meta<'_>, letters: &[u8]) -> bool {
    letters.iter().any(|letter| meta.set.has(*letter))
}

/// The text after `A`.
fn flag_a<'m>(meta: &'m Meta<'_>) -> Option<&'m [u8]> {
    if !meta.set.has(b'A') {
        return None;
    }
    meta.flags.clone().find(|token| token[0] == b'A').map(|token| &token[1..])
}

/// The call of a flag `A<method>[:<arg>...]`; `data`: its last argument.
fn parse_flag<'a>(
    registry: &Registry,
    type_id: u16,
    key: &'a [u8],
    text: &'a [u8],
    data: Option<&'a [u8]>,
    buffer: &'a mut Vec<u8>,
) -> Result<Asked<'a>, String> {
    let colon = memchr::memchr(b':', text);
    let name = &text[..colon.unwrap_or(text.len())];
    let Some(method) = registry.method_of(type_id, name) else {
        let type_name = registry.type_name(type_id);
        return Err(format!("CLIENT_ERROR {type_name} has no method {}", String::from_utf8_lossy(name)));
    };
    let mut ends = Vec::new();
    if let Some(colon) = colon {
        for part in text[colon + 1..].split(|byte| *byte == b':') {
            unescape_flag(part, buffer);
            ends.push(buffer.len());
        }
    }
    let buffer: &'a [u8] = buffer;
    let mut from = 0;
    let parts = ends.iter().map(|end| &buffer[std::mem::replace(&mut from, *end)..*end]);
    let parts: Vec<&'a [u8]> = parts.chain(data).collect();
    if parts.len() > cattlegrid_objects::ARGUMENTS_MAX {
        return Err(registry.client_error(method, "too many arguments"));
    }
    Ok(Asked::Method { type_id, method, key, arguments: Arguments::of(parts) })
}

/// The reply to a command that cannot be used with this name.
fn refusal(registry: &Registry, named: Named<'_>) -> String {
    match named {
        Named::Call(name) => {
            let (object_type, method) = registry.names(name.method);
            format!("CLIENT_ERROR {object_type}:{method} is a method")
        }
        Named::Object { type_id, .. } => {
            let name = registry.type_name(type_id);
            format!("CLIENT_ERROR {name}:: names an object: call a method of it, or delete it")
        }
    }
}

fn too_long() -> String {
    format!("the key is longer than {OBJECT_KEY_MAX} bytes")
}

/// Splitmix64.
fn mix(mut n: u64) -> u64 {
    n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
