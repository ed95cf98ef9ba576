//! One shard: its store and its herd.
//!
//! What it does is in the modules below. Each calls those before it in the list only.

// What is under a key, and how it is replaced.
pub(crate) mod put;
pub(crate) mod standing;

// What becomes of a request, and what is shown.
pub(crate) mod flow;

// Keys under a rule.
pub(crate) mod ruled;

mod decide;
mod ends;
mod why;

mod invalidate;

mod fill;

mod observed;

mod write_ruled;

mod named_tags;

// Objects.
pub(crate) mod object;

// Commands.
pub(crate) mod get;
mod mg;
mod store;

mod delete;
mod hold;
mod ms;

mod execute;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Herd, Observer};
use cattlegrid_store::{Found, Lookup, Marks, Memory, ReadCheck, Store};

use crate::announced::Announced;
use crate::rules::RuledHits;
use crate::running::CallQueue;
use crate::shared::{EngineShared, Names};
use crate::step::{Interest, Step};

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
    /// [`Flow::NeedsRoom`](flow::Flow::NeedsRoom).
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
}
