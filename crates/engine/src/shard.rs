//! One shard: its store and its herd, and the outcomes of requests in it.
//!
//! What it does is in the modules below. Each calls those before it in the list only.

// What is under a key, and how it is replaced.
pub(crate) mod put;
pub(crate) mod standing;

// Keys under a rule.
pub(crate) mod ruled;

mod ends;
mod why;

mod invalidate;

mod fill;

mod observed;

// Objects.
pub(crate) mod object;

// Commands.
mod store;

mod arith;
pub(crate) mod get;
pub(crate) mod mg;

mod delete;
mod ms;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Herd, Observer};
use cattlegrid_protocol::reply::error;
use cattlegrid_store::{Found, Lookup, Marks, Memory, ReadCheck, Store};

use crate::announced::Announced;
use crate::event::{Event, EventKind};
use crate::parked::ParkedRequest;
use crate::query::{HoldLimits, KeyAnswer};
use crate::reply::meta::Refusals;
use crate::rules::RuledHits;
use crate::running::CallQueue;
use crate::shared::{EngineShared, Names};
use crate::step::{Context, Interest, Step, Ticket};

/// Bytes of a buffer that is kept between calls of objects.
const VALUE_KEPT: usize = 64 << 10;

/// One part of the key space. See the crate's text.
pub struct Shard {
    pub(crate) store: Store,
    /// The leases of its keys; None until there are rules.
    pub(crate) herd: Option<Box<Herd>>,
    /// The counterfactual leases of rules that observe; None: no rule observes.
    pub(crate) observer: Option<Box<Observer>>,
    pub(crate) shared: Arc<EngineShared>,
    /// The tags that are announced for its keys.
    pub(crate) announced: Announced,
    /// The last bump that a cascade of the command that is executed has left for the log of the fleet; 0:
    /// none.
    pub(crate) bump_ticket: u64,
    /// A buffer for values that are put together from parts.
    pub(crate) scratch: Vec<u8>,
    /// The value of the reply to a call of an object.
    pub(crate) value: Vec<u8>,
    /// Objects that are busy, by their items' keys, and the calls that wait for each.
    pub(crate) busy: HashMap<Box<[u8]>, CallQueue>,
    /// A flush is being phased in, or names are recognised first: no item is just a value.
    pub(crate) rolling: bool,
    /// When names of objects' calls are recognised: one of [`Names`].
    pub(crate) names: u8,
    /// What [`Shard::names_now`] was when `names` was set.
    seen_names: u64,
    /// Misses of keys without a rule, for the choice of samples.
    pub(crate) unmatched: u32,
    /// Hits in this second whose rules are counted.
    pub(crate) ruled_hits: RuledHits,
    /// Answer "out of memory" rather than ask for room.
    last_try: bool,
}

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
    /// A shard around an empty store.
    pub fn new(store: Store, shared: Arc<EngineShared>) -> Self {
        Self {
            store,
            herd: None,
            observer: None,
            shared,
            announced: Announced::default(),
            bump_ticket: 0,
            scratch: Vec::new(),
            value: Vec::new(),
            busy: HashMap::new(),
            rolling: false,
            names: Names::OFF,
            seen_names: Names::of(Names::OFF, 0),
            unmatched: 0,
            ruled_hits: RuledHits::default(),
            last_try: false,
        }
    }

    /// The shard's store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The shard's store, for collecting and configuring.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Whether a request without room is answered with an error, instead of returning
    /// [`Flow::NeedsRoom`].
    pub fn set_last_try(&mut self, on: bool) {
        self.last_try = on;
    }

    pub(crate) fn is_last_try(&self) -> bool {
        self.last_try
    }

    /// Moves the store on to the time of the request.
    #[inline]
    pub(crate) fn advance(&mut self, step: &Step<'_>) {
        let now = step.now;
        let floors = self.shared.tags().floors();
        // Acquire: a thread that sees that no flush is pending any more sees its floor, too.
        if self.shared.flush_pending.load(Ordering::Acquire) {
            self.shared.execute_due_flush(now.second);
        }
        self.store.advance(now.second, now.ms, floors.hard());
        let names = self.names_now();
        if names != self.seen_names {
            (self.seen_names, self.names) = (names, Names::state(names));
        }
        let rolling = self.names == Names::FIRST || floors.highest() > floors.hard();
        if rolling != self.rolling {
            self.rolling = rolling;
        }
        self.store.record_evictions(step.interest.wants(Interest::EVICTIONS));
    }

    /// What must be checked before an item's value is sent to a reader. While floors move, of every item the
    /// rule.
    #[inline]
    pub(crate) fn read_check(&self, found: Found) -> ReadCheck {
        if self.rolling { ReadCheck::Rule } else { self.store.read_check(found) }
    }

    /// When names of objects' calls are recognised, and how many times the types have changed, as of now.
    #[inline]
    pub(crate) fn names_now(&self) -> u64 {
        self.shared.names.load(Ordering::Relaxed)
    }

    /// Whether the key names a call or an object.
    pub(crate) fn is_named(&self, key: &[u8]) -> bool {
        self.shared.has_objects()
            && self.shared.objects().as_ref().is_some_and(|all| all.named(key).is_some())
    }

    /// Puts a buffer back; a large one is given up.
    pub(crate) fn keep_value(&mut self, value: Vec<u8>) {
        if value.capacity() <= VALUE_KEPT {
            self.value = value;
        }
    }

    /// Lets an object stay until it ends by itself, as long as such objects hold up to `most` bytes; or be
    /// evicted as any item.
    pub(crate) fn pin(&mut self, hash: u64, item_key: &[u8], pinned: bool, memory: &Memory, most: usize) {
        if let Lookup::Found(found) = self.store.lookup_object(hash, item_key) {
            let marks = self.store.item(found).marks();
            if !pinned {
                self.store.set_marks(found, marks.without(Marks::PINNED));
                return;
            }
            let held = self.store.object_bytes_of(found);
            if memory.take_pinned(held, most) {
                self.store.set_marks(found, marks.with(Marks::PINNED));
                memory.give_pinned(held);
            }
        }
    }

    /// Removes an item, whatever it is.
    pub(crate) fn remove_any(&mut self, hash: u64, key: &[u8], is_object: bool) {
        let lookup =
            if is_object { self.store.lookup_object(hash, key) } else { self.store.lookup(hash, key) };
        if let Lookup::Found(found) = lookup {
            self.store.remove(hash, found);
        }
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

    /// The CAS as clients see it.
    #[inline]
    pub(crate) fn shown_cas(&self, cas: u64) -> u64 {
        if self.shared.hide_cas { 0 } else { cas }
    }

    /// Whether a call reads the object in steps, or others wait for it.
    #[inline]
    pub(crate) fn is_busy(&self, item_key: &[u8]) -> bool {
        !self.busy.is_empty() && self.busy.contains_key(item_key)
    }

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
