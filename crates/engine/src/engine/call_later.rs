//! Calls that do not end at once: those that read much, and those that wait for an object that is busy.
//!
//! An object is busy while a call reads it in steps; nothing changes it meanwhile. Other calls on it stand in
//! its queue, in the order in which they came. When a call has ended, its object is handed to the next in the
//! queue, and stays busy until the queue is empty: no call overtakes another.
//!
//! A call of several objects makes them busy one after the other, in the order of their hashes, and waits in
//! the queue of the first that is busy.
//!
//! # Histories
//! 1. A reads sets 1 and 2, B reads 2 and 1. Both make the one with the lower hash busy first: the later one
//!    waits there and has made nothing busy that the other needs. No circle of waiting calls can form, since
//!    each waits for a higher hash than all it has.
//! 2. While A reads an object in steps, it is evicted, expires, or is flushed: its CAS is not found again. A
//!    begins anew, and answers what a call answers that comes afterwards: a miss, or without the members of
//!    another set. That happens once to each of its objects at most, since a call that would make one anew
//!    stands in its queue.
//! 3. The connection of A is closed. What A reads is for nobody, so it reads no more, and the queue moves;
//!    methods of calls that wait are executed, since they may change something. Wakes find no connection.
//! 4. A host's method runs for a call that has made its object busy, and the object is evicted, expires, or
//!    is flushed: what the method leaves is dropped, and it runs again, up to [`LOSSES_MAX`] times. Other
//!    calls cannot be the cause: they stand in the queue, or had begun before, and do not store over an
//!    object that is busy.

use std::sync::Arc;

use cattlegrid_herd::Caller;
use cattlegrid_objects::{Arguments, Listing, ReadSet, StateView, TooLarge};

use crate::delivered::CALL_SLOT;
use crate::delivered::{DeliveredValue, Delivery, Verdict, Wake};
use crate::engine::Engine;
use crate::engine::call_script::{HostOutcome, keep_value};
use crate::reply::call::{BUSY, NO_ROOM, TOO_LARGE};
use crate::running::{CallQueue, CallWork, RunningCall, TakenObject, item_key};
use crate::shard::object::{Call, CallOutcome};
use crate::shards::ShardLock;
use crate::step::Step;
use crate::sync::Ordering;

/// A call that reads more than this of an object runs in steps.
pub(crate) const AT_ONCE_BYTES: usize = 64 << 10;
/// Bytes that a step reads.
const STEP_BYTES: usize = 16 << 10;

/// Runs of a host's method for one call that has its object.
const LOSSES_MAX: u32 = 4;

/// Most calls that wait for one object.
const QUEUE_MAX: usize = 1024;

/// A call that will be made later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaterCall<'a> {
    pub(crate) caller: &'a Arc<Caller>,
    pub(crate) request: u64,
    pub(crate) begun_ns: u64,
    /// See [`RunningCall::is_for_own_lane`].
    pub(crate) own_lane: bool,
}

impl RunningCall {
    /// `listing`: what must be read; None: the method must be called.
    pub(crate) fn new(
        engine: &Engine,
        call: &Call<'_>,
        listing: Option<Box<Listing>>,
        later: LaterCall<'_>,
    ) -> Box<Self> {
        let taken =
            |hash, item_key: &[u8]| TakenObject { hash, item_key: item_key.into(), cas: None, ttl: None };
        let mut objects = vec![taken(call.hash, call.item_key)];
        if call.registry.definition(call.method).reads == ReadSet::Arguments {
            // A key that is too long names no object.
            let keys = call.arguments.iter().filter_map(|key| item_key(call.type_id, key));
            objects.extend(keys.map(|key| taken(engine.hash_object(&key), &key)));
        }
        objects.sort_by(|a, b| (a.hash, &a.item_key).cmp(&(b.hash, &b.item_key)));
        objects.dedup_by(|a, b| a.item_key == b.item_key);
        let own = objects.iter().position(|object| *object.item_key == *call.item_key);
        Box::new(Self {
            own: own.expect("it is among them"),
            registry: Arc::clone(call.registry),
            method: call.method,
            type_id: call.type_id,
            objects,
            taken: 0,
            arguments: call.arguments.iter().map(Into::into).collect(),
            tags: call.tags.to_vec(),
            random: call.random,
            changes: call.changes,
            work: listing.map_or(CallWork::Method, CallWork::Read),
            losses: 0,
            caller: Arc::clone(later.caller),
            request: later.request,
            begun_ns: later.begun_ns,
            own_lane: later.own_lane,
        })
    }
}

impl Engine {
    /// Begins a call that does not end at once. It comes back in the effects, or waits in a queue and comes
    /// back later.
    ///
    /// # Errors
    /// The line to answer: too many calls wait.
    pub(crate) fn begin_call(
        &self,
        call: Box<RunningCall>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Result<(), &'static str> {
        let shared = self.shared();
        let most = shared.waiting_max.load(Ordering::Relaxed).max(QUEUE_MAX);
        let is_full = call.objects.first().is_some_and(|first| {
            let queue = lock.shard(first.hash).busy.get(&*first.item_key);
            queue.is_some_and(|queue| queue.len() >= QUEUE_MAX)
        });
        if is_full || shared.calls.load(Ordering::Relaxed) >= most {
            return Err(BUSY);
        }
        shared.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(call) = Self::take_next(call, lock) {
            step.effects.call(call);
        }
        Ok(())
    }

    /// Makes the call's next object busy. None: it is busy already, and the call waits in its queue.
    fn take_next(mut call: Box<RunningCall>, lock: &mut ShardLock<'_>) -> Option<Box<RunningCall>> {
        let Some(next) = call.objects.get(call.taken) else { return Some(call) };
        let shard = lock.shard(next.hash);
        if let Some(queue) = shard.busy.get_mut(&*next.item_key) {
            queue.push_back(call);
            return None;
        }
        shard.busy.insert(next.item_key.clone(), CallQueue::new());
        call.taken += 1;
        Some(call)
    }

    /// Runs a call for at most about 100 us. Returns it if it has not ended; it must be continued when other
    /// work had its turn. None: it has ended, or waits for an object that is busy, and comes back in the
    /// effects.
    pub fn continue_call(
        &self,
        mut call: Box<RunningCall>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Option<Box<RunningCall>> {
        while call.taken < call.objects.len() {
            call = Self::take_next(call, lock)?;
        }
        let left = match std::mem::replace(&mut call.work, CallWork::Method) {
            CallWork::Method => self.run_method(call, lock, step),
            CallWork::Read(_) if call.caller.is_gone() => {
                // History 3.
                self.end_call(&call, Verdict::Miss { record: None, hint: None }, lock, step);
                None
            }
            CallWork::Read(listing) => self.read_on(call, listing, lock, step),
        };
        self.finish_step(lock, step);
        left
    }

    /// Calls the method of a call that has waited.
    fn run_method(
        &self,
        mut call: Box<RunningCall>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Option<Box<RunningCall>> {
        let ran = {
            let arguments = Arguments::of(call.arguments.iter().map(|argument| &**argument));
            let object = &call.objects[call.own];
            let one = Call {
                registry: &call.registry,
                memory: self.memory(),
                method: call.method,
                type_id: call.type_id,
                item_key: &object.item_key,
                hash: object.hash,
                arguments: &arguments,
                tags: &call.tags,
                random: call.random,
                changes: call.changes,
                commit: None,
            };
            match call.registry.script(call.method) {
                Some(script) => {
                    let begun_ns = self.nanos();
                    let ran = self.run_script(&one, &script, true, lock, step);
                    step.effects.add_calls_ns(self.nanos().saturating_sub(begun_ns));
                    Err(ran)
                }
                None => Ok(self.run_with_room(&one, true, lock, step)),
            }
        };
        let ran = match ran {
            Ok(ran) => ran,
            Err(scripted) => return self.end_script(call, scripted, lock, step),
        };
        let hash = call.objects[call.own].hash;
        match ran {
            CallOutcome::List(listing) => {
                // Its objects are those of the listing: see [`RunningCall::new`].
                call.work = CallWork::Read(listing);
                Some(call)
            }
            ran => {
                let verdict = match ran {
                    CallOutcome::Value { flags, cas, ttl } => {
                        let shard = lock.shard(hash);
                        let value = std::mem::take(&mut shard.value);
                        let copy = value.as_slice().into();
                        shard.keep_value(value);
                        self.delivered(copy, flags, cas, ttl)
                    }
                    CallOutcome::Error(text) => self.line(&text),
                    CallOutcome::NoRoom(_) | CallOutcome::PinnedFull => self.line(NO_ROOM),
                    CallOutcome::Miss | CallOutcome::List(_) | CallOutcome::Busy | CallOutcome::Moved => {
                        Verdict::Miss { record: None, hint: None }
                    }
                };
                self.end_call(&call, verdict, lock, step);
                None
            }
        }
    }

    /// Ends a call whose object is busy with it and whose method a host has run; it is run again if the
    /// object has changed all the same (history 4).
    fn end_script(
        &self,
        mut call: Box<RunningCall>,
        ran: HostOutcome,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Option<Box<RunningCall>> {
        let verdict = match ran {
            HostOutcome::Moved => {
                call.losses += 1;
                if call.losses < LOSSES_MAX {
                    return Some(call);
                }
                self.line(BUSY)
            }
            HostOutcome::Value { value, flags, cas, ttl } => {
                let copy = value.as_slice().into();
                keep_value(value);
                self.delivered(copy, flags, cas, ttl)
            }
            HostOutcome::Miss => Verdict::Miss { record: None, hint: None },
            HostOutcome::Error(text) => self.line(&text),
        };
        self.end_call(&call, verdict, lock, step);
        None
    }

    /// One step of a call that reads.
    fn read_on(
        &self,
        mut call: Box<RunningCall>,
        mut listing: Box<Listing>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Option<Box<RunningCall>> {
        let result_max = call.registry.settings().result_max;
        let Some(place) = listing.wants() else {
            let own = &call.objects[call.own];
            let (cas, ttl) = (self.shown_cas(own.cas.unwrap_or(0)), own.ttl);
            let flags = listing.flags(call.registry.settings().json_flags);
            let verdict = match listing.finish() {
                Ok(Some(value)) => self.delivered(value.into(), flags, cas, ttl),
                Ok(None) => Verdict::Miss { record: None, hint: None },
                Err(TooLarge) => self.line(TOO_LARGE),
            };
            self.end_call(&call, verdict, lock, step);
            return None;
        };
        let wanted = listing.keys().nth(place).and_then(|key| item_key(call.type_id, key));
        let object =
            wanted.and_then(|wanted| call.objects.iter_mut().find(|object| *object.item_key == *wanted));
        let Some(object) = object else {
            // No object has so long a key.
            listing.read(place, StateView::Absent, STEP_BYTES, result_max);
            call.work = CallWork::Read(listing);
            return Some(call);
        };
        let is_gone =
            lock.shard(object.hash).read_object(object.hash, &object.item_key, step, |view, cas, ttl| {
                // History 2.
                if object.cas.is_some_and(|before| before != cas) {
                    return true;
                }
                (object.cas, object.ttl) = (Some(cas), ttl);
                listing.read(place, view, STEP_BYTES, result_max);
                false
            });
        if is_gone {
            listing.restart();
            call.objects.iter_mut().for_each(|object| object.cas = None);
        }
        call.work = CallWork::Read(listing);
        Some(call)
    }

    /// Answers a call, and hands its objects to those that wait for them.
    fn end_call(&self, call: &RunningCall, verdict: Verdict, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        let counter = step.counters.methods.of(call.registry.number(call.method));
        match &verdict {
            Verdict::Value(delivered) => match &delivered.value {
                DeliveredValue::Line(_) => counter.errors.add(1),
                value => counter.bytes.add(value.len() as u64),
            },
            _ => counter.misses.add(1),
        }
        let ns = self.nanos().saturating_sub(call.begun_ns);
        counter.time(ns);
        self.shared().slow().note_call(&call.registry, call.method, ns, step.now.ms);
        self.shared().calls.fetch_sub(1, Ordering::Relaxed);
        let (caller, request) = (Arc::clone(&call.caller), call.request);
        step.effects.wake(Wake { caller, request, slot: CALL_SLOT, verdict });
        Self::give_back_objects(call, lock, step);
    }

    fn give_back_objects(call: &RunningCall, lock: &mut ShardLock<'_>, step: &mut Step<'_>) {
        for object in &call.objects[..call.taken] {
            let shard = lock.shard(object.hash);
            let Some(queue) = shard.busy.get_mut(&*object.item_key) else { continue };
            match queue.pop_front() {
                Some(mut next) => {
                    next.taken += 1;
                    step.effects.call(next);
                }
                None => {
                    shard.busy.remove(&*object.item_key);
                }
            }
        }
    }

    fn delivered(&self, value: Box<[u8]>, flags: u32, cas: u64, ttl: Option<u64>) -> Verdict {
        let counted = self.shared().delivered.count(value.len());
        Verdict::Value(Arc::new(Delivery {
            flags,
            cas,
            ttl,
            is_old: false,
            value: DeliveredValue::Inline(value),
            counted,
        }))
    }

    fn line(&self, text: &str) -> Verdict {
        let (value, counted) = (DeliveredValue::Line(text.into()), self.shared().delivered.count(0));
        Verdict::Value(Arc::new(Delivery { flags: 0, cas: 0, ttl: None, is_old: false, value, counted }))
    }

    /// Reads what a call lists, if that is little: all of each object at once. None: it is much, or an object
    /// is busy.
    pub(crate) fn read_at_once(
        &self,
        call: &Call<'_>,
        listing: &mut Listing,
        lock: &mut ShardLock<'_>,
        step: &Step<'_>,
    ) -> Option<(u64, Option<u64>)> {
        let result_max = call.registry.settings().result_max;
        let mut shows = (0, None);
        let mut read = 0_u64;
        while let Some(place) = listing.wants() {
            // Each object once: what is read in two pieces may have changed in between.
            if place >= 64 || read >> place & 1 == 1 {
                return None;
            }
            read |= 1 << place;
            let Some(key) = item_key(call.type_id, listing.keys().nth(place)?) else {
                listing.read(place, StateView::Absent, AT_ONCE_BYTES, result_max);
                continue;
            };
            let hash = self.hash_object(&key);
            let shard = lock.shard(hash);
            if shard.is_busy(&key) {
                return None;
            }
            let (cas, ttl) = shard.read_object(hash, &key, step, |view: StateView<'_>, cas, ttl| {
                listing.read(place, view, AT_ONCE_BYTES, result_max);
                (cas, ttl)
            });
            if *key == *call.item_key {
                shows = (cas, ttl);
            }
        }
        Some((self.shown_cas(shows.0), shows.1))
    }
}
