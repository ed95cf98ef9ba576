//! Objects on all shards: keys that name calls, and what becomes of the requests that use them.
//!
//! ```text
//!   get quota:take:u1:1:10:hour    no such item -> the name of a call -> the object's shard -> its method -> VALUE ...
//! ```
//! Names are recognised where an ordinary look-up has found nothing: a hit of an ordinary key pays nothing
//! for them. No command stores under such a name. When types are switched on while there are items, those
//! under new names are removed piece by piece (`upkeep`), and until that is done names are recognised first.
//!
//! An object is an item of a domain of its own, which no key can name. A call runs under the lock of its
//! shard (`shard/object`). A call that reads more than `AT_ONCE_BYTES` of an object leaves the engine as a
//! [`RunningCall`], for the lane that is the object's home, which calls [`Engine::continue_call`] until it
//! has ended (`call_later`); its request waits like a held get and is woken.

use std::sync::Arc;

use cattlegrid_objects::{
    Arguments, CallName, HostedMethod, Listing, MethodId, OBJECT_KEY_MAX, ReadSet, Registry, Spot,
    VirtualKey, unescape_flag,
};
use cattlegrid_protocol::{Meta, Request, reply};

use crate::counters::TIMED_EVERY;
use crate::engine::Engine;
use crate::engine::call_later::LaterCall;
use crate::engine::call_script::{HostOutcome, keep_value};
use crate::engine::called::{CallCx, CallProgress};
use crate::parked::{ParkedForm, ParkedRequest};
use crate::reply::call::{CallForm, CallReply, NO_ROOM, ShownReply};
use crate::reply::meta::{count_meta, refusals_of};
use crate::running::{ItemKey, RunningCall, fill_item_key};
use crate::shard::get::count_miss;
use crate::shard::object::{Call, CallOutcome};
use crate::shards::ShardLock;
use crate::step::Context;

/// The reply to the flag `A` with a key that is not the name of an object.
const NOT_A_NAME: &str = "CLIENT_ERROR A needs the name of an object, type::key";

/// A request's question to objects.
#[derive(Debug)]
enum ObjectRequest<'k> {
    /// A method by `type:method:key:...`.
    Named(CallName<'k>),
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
    /// A key of a `get` that names a call, and has no item.
    #[cold]
    pub(crate) fn get_object(
        &self,
        spot: Option<Spot>,
        touches: bool,
        mut request: CallCx<'_, '_, '_>,
    ) -> CallProgress {
        let key = request.key;
        let (changes, objects) = (self.shared().type_changes(), self.shared().objects());
        let Some((registry, named)) =
            objects.as_ref().and_then(|registry| Some((registry, registry.named_at(key, spot)?)))
        else {
            // The types were switched off in between.
            if touches {
                count_miss(true, request.cx);
                return CallProgress::Written;
            }
            return request.answer(CallReply::Miss);
        };
        match named {
            _ if touches => {
                let shape = request.shape;
                count_miss(true, request.cx);
                shape.write(CallReply::Error(&refusal(registry, &named)), &mut request.cx.out.bytes);
                if shape.is_alone() { CallProgress::Refused } else { CallProgress::Written }
            }
            VirtualKey::Call(name) => {
                self.call(Types { registry, changes }, ObjectRequest::Named(name), &[], &mut request)
            }
            VirtualKey::Object { .. } => request.error(&refusal(registry, &named)),
        }
    }

    /// A request other than a classic `get` that names a call or an object, or has the flag `A`. None: it
    /// does not.
    #[inline(never)]
    pub(crate) fn execute_object(
        &self,
        request: &Request<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<CallProgress> {
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
            self.execute_named(request, Types { registry, changes }, &named, lock, cx)
        } else {
            // Without objects there is no such flag.
            let text = if objects.is_none() { reply::error::INVALID_FLAG } else { NOT_A_NAME };
            reply::line(&mut cx.out.bytes, text);
            CallProgress::Written
        })
    }

    /// An `mg` whose key has no item and names a call or an object, or is a control key behind a prefix.
    #[cold]
    pub(crate) fn meta_get_object(
        &self,
        meta: &Meta<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        let key = meta.key.bytes();
        if self.shared().control(key).is_some() {
            lock.release();
            return self.execute_tags(&Request::MetaGet(meta.clone()), cx);
        }
        let (changes, objects) = (self.shared().type_changes(), self.shared().objects());
        let named = objects.as_ref().and_then(|registry| Some((registry, registry.named(key)?)));
        let called = if let Some((registry, named)) = named {
            let types = Types { registry, changes };
            self.execute_named(&Request::MetaGet(meta.clone()), types, &named, lock, cx)
        } else {
            // The types were switched off in between.
            cx.step.counters.cmd_meta.add(1);
            cx.step.counters.cmd_get.add(1);
            CallCx { shape: CallForm::Get2(meta), key, last: true, lock, cx }.answer(CallReply::Miss)
        };
        called.parked()
    }

    #[cold]
    fn execute_named(
        &self,
        request: &Request<'_>,
        types: Types<'_>,
        named: &VirtualKey<'_>,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> CallProgress {
        let registry = types.registry;
        let drop = |type_id, key| {
            let method = registry.method_of(type_id, b"drop").expect("every object has it");
            ObjectRequest::Method { type_id, method, key, arguments: Arguments::none() }
        };
        let mut escaped = Vec::new();
        match (request, named) {
            (Request::MetaGet(meta), _) => {
                cx.step.counters.cmd_meta.add(1);
                cx.step.counters.cmd_get.add(1);
                let mut request =
                    CallCx { shape: CallForm::Get2(meta), key: meta.key.bytes(), last: true, lock, cx };
                // Flags that change an item.
                let changes = has_any(meta, b"TNRE");
                match (named, flag_a(meta)) {
                    (VirtualKey::Call(name), None) if !changes => {
                        self.call(types, ObjectRequest::Named(*name), &[], &mut request)
                    }
                    (VirtualKey::Object { type_id, key: own }, Some(text)) if !changes => {
                        match parse_flag(registry, *type_id, own, text, None, &mut escaped) {
                            Ok(asked) => self.call(types, asked, &[], &mut request),
                            Err(text) => request.error(&text),
                        }
                    }
                    _ => request.error(&refusal(registry, named)),
                }
            }
            (Request::MetaSet(meta, data), VirtualKey::Object { type_id, key: own })
                if meta.set.has(b'A') =>
            {
                cx.step.counters.cmd_meta.add(1);
                let (key, text) = (meta.key.bytes(), flag_a(meta).unwrap_or_default());
                let mut request = CallCx { shape: CallForm::Set(meta), key, last: true, lock, cx };
                if has_any(meta, b"CEFIMT") {
                    return request.error(reply::error::INVALID_FLAG);
                }
                let tags = match request.lock.shard(self.hash_key(key)).tags_named(meta) {
                    Ok(tags) => tags,
                    Err(error) => return request.error(&format!("CLIENT_ERROR {error}")),
                };
                // See `Engine::may_arrive`.
                let data = data.here().expect("arguments of calls are not apart");
                match parse_flag(registry, *type_id, own, text, Some(data), &mut escaped) {
                    Ok(asked) => self.call(types, asked, tags.hashes(), &mut request),
                    Err(text) => request.error(&text),
                }
            }
            (Request::Delete(delete), VirtualKey::Object { type_id, key: own }) => {
                let shape = CallForm::Delete { noreply: delete.noreply };
                let mut request = CallCx { shape, key: delete.key, last: true, lock, cx };
                self.call(types, drop(*type_id, own), &[], &mut request)
            }
            (Request::MetaDelete(meta), VirtualKey::Object { type_id, key: own }) => {
                count_meta(meta, cx);
                let mut request =
                    CallCx { shape: CallForm::Delete2(meta), key: meta.key.bytes(), last: true, lock, cx };
                if has_any(meta, b"CEITx") {
                    return request.error(reply::error::INVALID_FLAG);
                }
                self.call(types, drop(*type_id, own), &[], &mut request)
            }
            (request, _) => {
                let stores = matches!(request, Request::MetaSet(..));
                refusals_of(request).write_no_name(stores, &refusal(registry, named), &mut cx.out.bytes);
                CallProgress::Written
            }
        }
    }

    /// Makes a call, and answers it or lets its request wait.
    fn call(
        &self,
        types: Types<'_>,
        asked: ObjectRequest<'_>,
        tags: &[u64],
        request: &mut CallCx<'_, '_, '_>,
    ) -> CallProgress {
        let Types { registry, changes } = types;
        let mut buffer = Vec::new();
        let (type_id, method, own, arguments) = match asked {
            ObjectRequest::Method { type_id, method, key, arguments } => (type_id, method, key, arguments),
            ObjectRequest::Named(name) => match registry.split(&name, &mut buffer) {
                Ok((key, arguments)) => (name.type_id, name.method, key, arguments),
                Err(text) => return request.error(&text),
            },
        };
        let counters = request.cx.step.counters;
        let counter = counters.methods.of(registry.number(method));
        let calls = counter.calls.get();
        counter.calls.add(1);
        let has_key = !own.is_empty() || registry.is_about_type(method);
        let mut item_key = ItemKey::new();
        if !has_key || !fill_item_key(&mut item_key, type_id, own) {
            counter.errors.add(1);
            let what = if own.is_empty() { "no key".to_owned() } else { too_long() };
            return request.error(&registry.client_error(method, &what));
        }
        let timed = calls.is_multiple_of(TIMED_EVERY) || counter.is_slow();
        let begun_ns = if timed { self.nanos() } else { 0 };
        let hash = self.hash_object(&item_key);
        let random = mix(hash ^ self.shared().clock().rotate_left(32) ^ calls);
        let call = Call {
            registry,
            memory: self.memory(),
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
        if request.lock.shard(hash).is_busy(&item_key) {
            return self.call_later(&call, None, request);
        }
        if let Some(script) = registry.script(method) {
            return self.call_script(&call, &script, request);
        }
        let ran = self.run_with_room(&call, false, request.lock, &request.cx.step);
        let called = match ran {
            CallOutcome::Busy | CallOutcome::Moved => return self.call_later(&call, None, request),
            CallOutcome::List(mut listing) => {
                if let Some(shows) = self.read_at_once(&call, &mut listing, request.lock, &request.cx.step) {
                    request.answer_listing(&call, *listing, shows)
                } else {
                    listing.restart();
                    return self.call_later(&call, Some(listing), request);
                }
            }
            CallOutcome::Value { flags, cas, ttl } => {
                let value = std::mem::take(&mut request.lock.shard(hash).value);
                counter.bytes.add(value.len() as u64);
                let called = request.answer(CallReply::Value(ShownReply { value: &value, flags, cas, ttl }));
                request.lock.shard(hash).keep_value(value);
                called
            }
            CallOutcome::Miss => {
                counter.misses.add(1);
                request.answer(CallReply::Miss)
            }
            CallOutcome::Error(text) => {
                counter.errors.add(1);
                request.error(&text)
            }
            CallOutcome::NoRoom(_) | CallOutcome::PinnedFull => {
                counter.errors.add(1);
                counters.store_no_memory.add(1);
                request.error(NO_ROOM)
            }
        };
        if timed {
            let ns = self.nanos().saturating_sub(begun_ns);
            counter.time(ns);
            request.cx.step.effects.add_calls_ns(ns);
            self.shared().slow().note_call(call.registry, call.method, ns, request.cx.step.now.ms);
        }
        called
    }

    /// A call that reads much (`listing`), or whose object is busy: its request waits.
    #[cold]
    fn call_later(
        &self,
        call: &Call<'_>,
        listing: Option<Box<Listing>>,
        request: &mut CallCx<'_, '_, '_>,
    ) -> CallProgress {
        let CallCx { shape, last, ref mut lock, ref mut cx, .. } = *request;
        let counter = cx.step.counters.methods.of(call.registry.number(call.method));
        let caller = cx.session.caller();
        let own_lane =
            listing.is_none() && !lock.shard(call.hash).is_busy(call.item_key) && cx.step.effects.postpones();
        let later = LaterCall { caller, request: cx.ticket.request, begun_ns: self.nanos(), own_lane };
        // Only a call that reads its own object, which is busy with it already, is over as a change. Another
        // call may change something later: then nothing of its connection may come before it.
        let is_barrier =
            listing.is_none() || call.registry.definition(call.method).reads == ReadSet::Arguments;
        let running = RunningCall::new(self, call, listing, later);
        if let Err(text) = self.begin_call(running, lock, &mut cx.step) {
            counter.errors.add(1);
            return request.error(text);
        }
        counter.waited.add(1);
        let form = ParkedForm::Call { shape: shape.to_owned(last), is_barrier, verdict: None };
        CallProgress::Parked(Box::new(ParkedRequest::new(cx.ticket.request, u64::MAX, 0, false, form)))
    }

    /// Makes a call of a host's method whose object is not busy, and answers it or lets its request wait.
    fn call_script(
        &self,
        call: &Call<'_>,
        script: &HostedMethod<'_>,
        request: &mut CallCx<'_, '_, '_>,
    ) -> CallProgress {
        if request.cx.step.effects.postpones() {
            return self.call_later(call, None, request);
        }
        let counter = request.cx.step.counters.methods.of(call.registry.number(call.method));
        let begun_ns = self.nanos();
        let ran = self.run_script(call, script, false, request.lock, &mut request.cx.step);
        let ns = self.nanos().saturating_sub(begun_ns);
        request.cx.step.effects.add_calls_ns(ns);
        if matches!(ran, HostOutcome::Moved) {
            return self.call_later(call, None, request);
        }
        counter.time(ns);
        self.shared().slow().note_call(call.registry, call.method, ns, request.cx.step.now.ms);
        match ran {
            HostOutcome::Value { value, flags, cas, ttl } => {
                counter.bytes.add(value.len() as u64);
                let called = request.answer(CallReply::Value(ShownReply { value: &value, flags, cas, ttl }));
                keep_value(value);
                called
            }
            HostOutcome::Error(text) => {
                counter.errors.add(1);
                request.error(&text)
            }
            HostOutcome::Miss | HostOutcome::Moved => {
                counter.misses.add(1);
                request.answer(CallReply::Miss)
            }
        }
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
) -> Result<ObjectRequest<'a>, String> {
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
    Ok(ObjectRequest::Method { type_id, method, key, arguments: Arguments::of(parts) })
}

/// The reply to a command that cannot be used with this name.
fn refusal(registry: &Registry, named: &VirtualKey<'_>) -> String {
    match named {
        VirtualKey::Call(name) => {
            let (object_type, method) = registry.names(name.method);
            format!("CLIENT_ERROR {object_type}:{method} is a method")
        }
        VirtualKey::Object { type_id, .. } => {
            let name = registry.type_name(*type_id);
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
