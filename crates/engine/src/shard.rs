//! One shard: its store and its herd, and the dispatch of requests to the families of commands.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{Herd, JobOrder, RuleState, Step as HerdStep};
use cattlegrid_protocol::{Request, reply::error};
use cattlegrid_store::{HugeValue, Lookup, Marks, Memory, Store};

use crate::event::{Event, EventKind, Interest, Looker};
use crate::item::Standing;
use crate::load::{Load, LoadOrder};
use crate::object::running::Queue;
use crate::read::get::Answer;
use crate::read::reply::Refusals;
use crate::rules::decide::Holds;
use crate::shared::{Names, Shared};
use crate::step::{Context, Step};
use crate::wait::delivered::{Delivered, DeliveredValue};
use crate::wait::park::Parked;
use crate::write::store::Data;

/// The result of a request.
#[derive(Debug)]
#[must_use]
pub enum Flow {
    /// Executed; the reply, if it has one, is in the output.
    Replied,
    /// The request waits; the reply comes later.
    Parked(Box<Parked>),
    /// Nothing was done: the shard has no room and can free none. Free this many bytes elsewhere and try again; after
    /// [`Shard::insist`] it is answered in any case.
    NeedsRoom(usize),
    /// An `mg` without an item, whose key may name a call or an object.
    Object,
    /// As `Replied`; this connection has the lease of the key now.
    Computes,
    /// Nothing is written: another client has the lease of the key of an `mg`.
    Leased(Holds),
}

/// Bytes of a buffer that is kept between calls of objects.
const VALUE_KEPT: usize = 64 << 10;

/// One part of the key space. See the crate's text.
pub struct Shard {
    pub(crate) store: Store,
    /// The leases of its keys; None until there are rules.
    pub(crate) herd: Option<Box<Herd>>,
    pub(crate) shared: Arc<Shared>,
    /// A buffer for values that are put together from parts.
    pub(crate) scratch: Vec<u8>,
    /// The value of the reply to a call of an object.
    pub(crate) value: Vec<u8>,
    /// Objects that are busy, by their items' keys, and the calls that wait for each.
    pub(crate) busy: HashMap<Box<[u8]>, Queue>,
    /// A flush is being phased in, or names are recognised first: no item is just a value.
    pub(crate) rolling: bool,
    /// When names of objects' calls are recognised: one of [`Names`].
    pub(crate) names: u8,
    /// Answer "out of memory" rather than [`Flow::NeedsRoom`].
    insist: bool,
}

impl Shard {
    /// A shard around an empty store.
    pub fn new(store: Store, shared: Arc<Shared>) -> Self {
        Self {
            store,
            herd: None,
            shared,
            scratch: Vec::new(),
            value: Vec::new(),
            busy: HashMap::new(),
            rolling: false,
            names: Names::OFF,
            insist: false,
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

    /// Whether a request without room is answered with an error, instead of returning [`Flow::NeedsRoom`].
    pub fn insist(&mut self, on: bool) {
        self.insist = on;
    }

    /// Executes a request about one key with this hash. `huge`: its data block, if that is too long for the log; always if it is
    /// apart. The
    /// keys of gets come here one by one, see `Shard::get`; requests without a key do not come here.
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
            Request::Store(store) => self.classic_store(store, hash, Data::of(store.data, huge), cx),
            Request::MetaSet(meta, data) => self.meta_set(meta, Data::of(*data, huge), hash, cx),
            Request::Arith(arith) => self.classic_arith(arith, hash, cx),
            Request::MetaArith(meta) => self.meta_arith(meta, hash, cx),
            Request::Touch(touch) => self.touch(touch, hash, cx),
            Request::Delete(delete) => self.classic_delete(delete, hash, cx),
            Request::MetaGet(meta) => self.meta_get(meta, hash, cx),
            Request::MetaDelete(meta) => self.meta_delete(meta, hash, cx),
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
        if watched {
            if matches!(flow, Flow::NeedsRoom(_) | Flow::Object) {
                // It is executed again, or as a call, and notes its look-up again.
                cx.step.effects.events.truncate(noted);
            }
            self.note_evictions(cx);
        }
        flow
    }

    /// Notes the look-up with which a command other than a get begins: gets note theirs with its result.
    #[cold]
    fn note_look(&mut self, request: &Request<'_>, hash: u64, cx: &mut Context<'_>) {
        let (key, by) = match request {
            Request::Store(store) => (store.key, Looker::Other),
            Request::Arith(arith) => (arith.key, Looker::Other),
            Request::Touch(touch) => (touch.key, Looker::Other),
            Request::Delete(delete) => (delete.key, Looker::Delete),
            Request::MetaSet(meta, _) | Request::MetaArith(meta) | Request::MetaDelete(meta) => {
                (meta.key.bytes(), Looker::Other)
            }
            Request::MetaDebug(key) => (key.bytes(), Looker::Other),
            _ => return,
        };
        self.note_lookup(key, hash, by, cx);
    }

    /// Notes a look-up of a key whose reply does not depend on it.
    #[cold]
    pub(crate) fn note_lookup(&mut self, key: &[u8], hash: u64, by: Looker, cx: &mut Context<'_>) {
        if !cx.step.interest.wants(Interest::FETCHERS) {
            return;
        }
        self.advance(&cx.step);
        let lookup = self.lookup(hash, key, &cx.step);
        let size = self.find(hash, key, &cx.step).map(|found| self.store.item(found).value_len());
        let status = match (size, lookup) {
            (Some(_), _) => "found",
            (None, Lookup::Expired) => "expired",
            (None, Lookup::Flushed) => "flushed",
            (None, _) => "not_found",
        };
        let size = size.unwrap_or(0);
        cx.note(Interest::FETCHERS, key, || EventKind::Get { status, size, by });
    }

    /// Removes a key whose new value was refused, so that the old one is not taken for it.
    pub fn invalidate(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        self.advance(&cx.step);
        if self.rule_of(key).is_some() {
            self.delete_ruled(key, hash, cx);
        } else if let Lookup::Found(found) = self.store.lookup(hash, key) {
            self.store.remove(hash, found);
        }
    }

    /// Calls the herd, if there are rules, and keeps the count of waiters and the next deadline.
    pub(crate) fn with_herd<R>(
        &mut self,
        step: &mut Step<'_>,
        act: impl FnOnce(&mut Herd, &mut HerdStep<'_, Arc<Delivered>>) -> R,
    ) -> Option<R> {
        let herd = self.herd.as_deref_mut()?;
        let before = herd.waiting();
        let effects = &mut step.effects.herd;
        let result = act(herd, &mut HerdStep { now_ms: step.now.ms, clock: &*self.shared, effects });
        self.shared.waiting.fetch_add(herd.waiting().wrapping_sub(before), Ordering::Relaxed);
        if let Some(deadline_ms) = herd.next_deadline_ms() {
            step.effects.deadline_ms = step.effects.deadline_ms.min(deadline_ms);
        }
        if !step.effects.herd.jobs.is_empty() {
            self.order_jobs(step);
        }
        Some(result)
    }

    /// Completes the orders of the herd for loaders with what it does not know: the rule, and the old value.
    #[cold]
    fn order_jobs(&mut self, step: &mut Step<'_>) {
        for order in std::mem::take(&mut step.effects.herd.jobs) {
            let order = match order {
                JobOrder::Raise { token } => LoadOrder::Raise { token },
                JobOrder::Cancel { token } => LoadOrder::Cancel { token },
                JobOrder::Start { key, hash, token, hint, is_refresh } => {
                    let active = Option::clone(&self.shared.rules());
                    let ruled = active.as_ref().and_then(|active| active.find(&key));
                    let Some((rule, loading)) = ruled
                        .as_ref()
                        .and_then(|ruled| Some((Arc::clone(ruled.rule), ruled.rule.loading.as_ref()?)))
                    else {
                        // The rules have changed: this lease was given under others.
                        let end = |herd: &mut Herd, step: &mut HerdStep<'_, Arc<Delivered>>| {
                            herd.finish_job(hash, token, step);
                            herd.abandon(hash, step);
                        };
                        self.with_herd(step, end);
                        continue;
                    };
                    let wants_old = loading.stale;
                    let terms = ruled.as_ref().map(|ruled| &**ruled.state);
                    let stale = if wants_old { self.old_value(&key, hash, terms, step) } else { None };
                    LoadOrder::Start(Load { key, token, rule, hint, stale, is_refresh })
                }
            };
            step.effects.order(order);
        }
    }

    /// A copy of the value under a key, if it is one, fresh or old.
    fn old_value(
        &mut self,
        key: &[u8],
        hash: u64,
        state: Option<&RuleState>,
        step: &Step<'_>,
    ) -> Option<DeliveredValue> {
        let found = self.lookup_found(hash, key, step)?;
        match self.standing(found, hash, state, step) {
            Standing::Absent | Standing::Negative => None,
            Standing::Stale | Standing::Fresh | Standing::Early => {
                Some(DeliveredValue::of(self.store.item(found).value()))
            }
        }
    }

    /// Moves the store on to the time of the request.
    #[inline]
    pub(crate) fn advance(&mut self, step: &Step<'_>) {
        self.store.advance(step.now.second, self.shared.floor(step.now.second));
        let names = Names::state(self.names_now());
        if names != self.names {
            self.names = names;
        }
        let rolling = names == Names::FIRST || self.shared.is_rolling();
        if rolling != self.rolling {
            self.rolling = rolling;
        }
        self.store.record_evictions(step.interest.wants(Interest::EVICTIONS));
    }

    /// When names of objects' calls are recognised, and how many times the types have changed, as of now.
    #[inline]
    pub(crate) fn names_now(&self) -> u64 {
        self.shared.names.load(Ordering::Relaxed)
    }

    /// The answer to a key that names a call or an object; None: it is an ordinary key.
    pub(crate) fn named(&self, key: &[u8]) -> Option<Answer> {
        if !self.shared.has_objects() {
            return None;
        }
        let objects = self.shared.objects();
        let registry = objects.as_ref()?;
        registry.named(key).map(|named| Answer::Object(registry.spot(named, key)))
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

    /// Lets an object stay until it ends by itself, as long as such objects hold up to `most` bytes; or be evicted as any item.
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

    /// No room for this many bytes: asks for another attempt, or answers an error.
    pub(crate) fn no_room(&mut self, bytes: usize, refusals: Refusals, cx: &mut Context<'_>) -> Flow {
        if !self.insist {
            return Flow::NeedsRoom(bytes);
        }
        cx.step.counters.store_no_memory.add(1);
        refusals.write(error::OUT_OF_MEMORY, &mut cx.out.bytes);
        Flow::Replied
    }

    fn note_evictions(&mut self, cx: &mut Context<'_>) {
        if !cx.step.interest.wants(Interest::EVICTIONS) {
            return;
        }
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
                ttl: cx.step.now.left(evicted.expiry),
                idle: u64::from(cx.step.now.second.saturating_sub(evicted.accessed)),
                size: evicted.value_len,
            };
            cx.step.effects.events.push((cx.ticket, Event { key, kind }));
        }
    }
}
