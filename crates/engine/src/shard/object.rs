//! A call on an object in its shard, under the shard's lock.
//!
//! The method runs on a copy of the item's bytes, or on a tree for which it has reserved room: if there is no
//! room for what it leaves, nothing has changed.

use std::borrow::Cow;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cattlegrid_objects::{
    Arguments, CallResult, Listing, MethodId, NewState, Object, ObjectOutcome, ObjectState, Registry,
    StateChange, StateView, prefix_of,
};
use cattlegrid_store::{
    Attributes, Found, Item, Lookup, Marks, Memory, NEVER, NewValue, PAGE_BYTES, PinnedEnds, ReclaimedItems,
    Store, TAGS_MAX, Tree, Value,
};
use cattlegrid_tags::{BumpKind, PrefixId, TagHash, TagList, Validity};

use crate::rules::Change as RuleChange;
use crate::shard::Shard;
use crate::shared::Names;
use crate::step::Step;
use crate::time::{Now, PAST};

/// A call whose object is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) registry: &'a Arc<Registry>,
    pub(crate) memory: &'a Arc<Memory>,
    pub(crate) method: MethodId,
    pub(crate) type_id: u16,
    pub(crate) item_key: &'a [u8],
    /// The hash of the item's key, among objects.
    pub(crate) hash: u64,
    pub(crate) arguments: &'a Arguments<'a>,
    /// Tags of a new object, besides those of its rule.
    pub(crate) tags: &'a [u64],
    /// Another number for each call.
    pub(crate) random: u64,
    /// How many times the types had been changed when the registry was read, or fewer.
    pub(crate) changes: u64,
    /// What a host's method has left, to be stored; None: the method must be executed.
    pub(crate) commit: Option<&'a Commit<'a>>,
}

/// What a host's method, which ran without a lock, has left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit<'a> {
    /// The object's CAS when its state was copied; None: there was no object.
    pub(crate) seen: Option<u64>,
    pub(crate) new: Option<&'a NewState>,
    /// The expiry to set, as in [`CallResult::expires_ms`].
    #[expect(clippy::option_option, reason = "as in `Done`")]
    pub(crate) expires_ms: Option<Option<u64>>,
}

impl Commit<'_> {
    fn apply(&self, registry: &Registry, object: Object<'_>) -> CallResult {
        match self.new {
            Some(new) => registry.commit(object, new, self.expires_ms),
            None => CallResult {
                outcome: ObjectOutcome::Value { flags: 0 },
                change: StateChange::None,
                expires_ms: self.expires_ms,
            },
        }
    }
}

impl<'a> Call<'a> {
    /// The object's key.
    pub(crate) fn key(&self) -> &'a [u8] {
        &self.item_key[2..]
    }

    /// The prefix of the client that calls, behind which its object is.
    pub(crate) fn prefix(&self) -> PrefixId {
        prefix_of(self.type_id)
    }

    /// A key that its method names, behind the prefix of the client that calls.
    pub(crate) fn behind<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        match self.prefix() {
            PrefixId::NONE => Cow::Borrowed(key),
            prefix => Cow::Owned([self.registry.settings().prefixes.text(prefix), key].concat()),
        }
    }

    /// Whether it makes the object, also in the place of an old one.
    pub(crate) fn begins_anew(&self) -> bool {
        self.registry.names(self.method).1 == "new"
    }
}

/// The outcome of a call on an object.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The value is in [`Shard::value`]. The object's CAS, and seconds to live.
    Value {
        flags: u32,
        cas: u64,
        ttl: Option<u64>,
    },
    Miss,
    Error(String),
    /// The call answers with what must be read.
    List(Box<Listing>),
    /// The object has become busy while room was made for the call; nothing has changed.
    Busy,
    /// The object is not as it was when its state was copied for a host's method; nothing has changed.
    Moved,
    /// This many bytes are missing; nothing has changed.
    NoRoom(usize),
    /// Pinned objects would hold more than they may; nothing has changed.
    PinnedFull,
}

/// Bytes of an item beside its key, its value and its tags, at most.
const ITEM_BYTES: usize = 64;

impl Shard {
    /// The live item of an object.
    pub(crate) fn find_object(&mut self, hash: u64, item_key: &[u8], step: &Step<'_>) -> Option<Found> {
        let Lookup::Found(found) = self.store.lookup_object(hash, item_key) else { return None };
        let item = self.store.item(found);
        if !self.rolling && item.tags().next().is_none() {
            return Some(found);
        }
        // A soft invalidation ends it, too: no old state is served.
        if self.shared.tags().check_original(item.stamp(), item.tags(), hash, step.now.ms) == Validity::Valid
        {
            return Some(found);
        }
        self.store.remove(hash, found);
        None
    }

    /// Removes pinned objects of one segment that are over, by their expiry, by a flush or by their tags.
    /// None: there is no segment in which one may be.
    pub(crate) fn reclaim_pinned(&mut self, now: Now) -> Option<ReclaimedItems> {
        self.store.advance(now.second, now.ms, self.shared.floor(now.second));
        let (tags, by_time) = (self.shared.tags(), self.shared.is_rolling());
        let is_over = |hash: u64, item: &Item<'_>| {
            (by_time || item.has_tags())
                && tags.check_original(item.stamp(), item.tags(), hash, now.ms) != Validity::Valid
        };
        let ends = PinnedEnds { event: tags.bumps().last_bump(), by_time, is_over: &is_over };
        self.store.reclaim_pinned(Some(&ends))
    }

    /// Whether a type is switched on now.
    #[cold]
    pub(crate) fn has_type(&self, type_id: u16) -> bool {
        self.shared.objects().as_ref().is_some_and(|all| all.has_type(type_id))
    }

    /// Executes a call.
    pub(crate) fn run_object(&mut self, call: &Call<'_>, step: &Step<'_>) -> CallOutcome {
        self.advance(step);
        if Names::changes(self.names_now()) != call.changes && !self.has_type(call.type_id) {
            // It was switched off in between, and the search for its objects may have passed this shard.
            return CallOutcome::Miss;
        }
        let found = self.find_object(call.hash, call.item_key, step);
        if let Some(commit) = call.commit
            && commit.seen != found.map(|found| self.store.item(found).cas())
        {
            return CallOutcome::Moved;
        }
        let now = step.now;
        let added = match self.added_tags(call, found, now) {
            Ok(added) => added,
            Err(text) => return CallOutcome::Error(text),
        };
        // A host's `new` puts a state in the place of the old one, of which nothing stays.
        let anew = call.commit.is_some() && call.begins_anew();
        let is_tree = !anew && found.is_some_and(|found| self.store.item(found).is_tree());
        let (mut found, mut untagged) = (found, None);
        if is_tree && !added.is_empty() {
            // Its tags first: without room for them the tree must not change.
            let tagged = found.expect("it has a tree");
            untagged = Some(OldTags::of(&self.store.item(tagged)));
            match self.tag_object(call, tagged, true, &added, now) {
                Ok(tagged) => found = Some(tagged),
                Err(ran) => return ran,
            }
        }
        let expires_ms = found
            .map(|found| self.store.item(found).expiry())
            .filter(|expiry| *expiry != NEVER)
            .map(|expiry| unix_ms(now, expiry));
        let pinned_max = call.registry.settings().pinned_max;
        let (mut new, mut out) = (std::mem::take(&mut self.scratch), std::mem::take(&mut self.value));
        out.clear();
        let now_ms = now.unix_ms();
        let mut run = |state: ObjectState<'_>, new: &mut Vec<u8>| {
            let object = Object::new(call.key(), state, new, call.memory, expires_ms);
            match call.commit {
                None => {
                    call.registry.call(call.method, object, call.arguments, now_ms, call.random, &mut out)
                }
                Some(commit) => commit.apply(call.registry, object),
            }
        };
        let done = match found {
            None => run(ObjectState::Absent, &mut new),
            Some(_) if anew => run(ObjectState::Absent, &mut new),
            Some(found) if is_tree => {
                let failed = |done: &CallResult| {
                    matches!(done.outcome, ObjectOutcome::NoRoom(_) | ObjectOutcome::Error(_))
                };
                let change = |tree: &mut Tree| run(ObjectState::Tree(tree), &mut new);
                let done = self.store.change_tree(found, pinned_max, change, failed);
                if !matches!(&done, Ok(done) if !failed(done))
                    && let Some(old) = untagged
                {
                    old.put_back(&mut self.store, found);
                }
                let Ok(done) = done else {
                    (self.value, self.scratch) = (out, new);
                    return CallOutcome::PinnedFull;
                };
                done
            }
            Some(found) => match self.store.item(found).value() {
                Value::Inline(bytes) => run(ObjectState::Bytes(bytes), &mut new),
                value @ Value::Huge(_) => {
                    let mut copy = Vec::with_capacity(value.len());
                    value.copy_to(&mut copy);
                    run(ObjectState::Bytes(&copy), &mut new)
                }
            },
        };
        let ran = self.finish_object(call, found, done, &new, &added, now);
        self.cascade_object(call, &ran, now);
        if matches!(ran, CallOutcome::Value { .. }) {
            self.value = out;
        } else {
            self.keep_value(out);
        }
        self.keep_scratch(new);
        ran
    }

    fn finish_object(
        &mut self,
        call: &Call<'_>,
        found: Option<Found>,
        done: CallResult,
        new: &[u8],
        added: &[u64],
        now: Now,
    ) -> CallOutcome {
        let CallResult { outcome, change, expires_ms } = done;
        match outcome {
            ObjectOutcome::Error(text) => return CallOutcome::Error(text),
            ObjectOutcome::NoRoom(bytes) => return CallOutcome::NoRoom(bytes),
            _ => {}
        }
        let expiry = expires_ms.map(|ms| ms.map_or(NEVER, |ms| second_of(now, ms)));
        let before = found.map(|found| {
            let item = self.store.item(found);
            (found, item.value_len(), item.is_tree())
        });
        let value = match (change, before) {
            (StateChange::Dropped, _) => {
                if let Some(found) = found {
                    self.store.remove(call.hash, found);
                }
                return shown(outcome, 0, None);
            }
            (StateChange::None, None) => return shown(outcome, 0, None),
            (StateChange::None, Some((found, _, is_tree))) => {
                let found = if added.is_empty() || is_tree {
                    Ok(found)
                } else {
                    self.tag_object(call, found, false, added, now)
                };
                let found = match found {
                    Ok(found) => found,
                    Err(ran) => return ran,
                };
                let found = self.set_object_expiry(call.hash, found, expiry);
                self.store.count_read(found);
                return self.shown_object(outcome, found, now);
            }
            (StateChange::Tree, before) => {
                let (found, ..) = before.expect("a tree that was found has changed");
                self.store.set_cas(found, self.shared.tick());
                let found = self.set_object_expiry(call.hash, found, expiry);
                self.store.count_read(found);
                return self.shown_object(outcome, found, now);
            }
            (StateChange::Bytes, Some((found, len, false)))
                if len == new.len() && added.is_empty() && !call.begins_anew() =>
            {
                let shared = &self.shared;
                if let Some((cas, ends)) = self.store.use_and_change(found, new, || shared.tick()) {
                    if expiry.is_none_or(|expiry| expiry == ends) {
                        return shown(outcome, self.shown_cas(cas), left(now, ends));
                    }
                    let found = self.set_object_expiry(call.hash, found, expiry);
                    return self.shown_object(outcome, found, now);
                }
                self.new_value(new)
            }
            (StateChange::Bytes, _) => self.new_value(new),
            (StateChange::NewTree(tree), _) => Some(NewValue::Tree(tree)),
        };
        let Some(value) = value else { return CallOutcome::NoRoom(new.len() + PAGE_BYTES) };
        match self.put_object(call, found, expiry, value, added, now) {
            Ok((cas, ttl)) => shown(outcome, cas, ttl),
            Err(ran) => ran,
        }
    }

    /// `drop`, which `delete` and `md` of an object are, sets off cascades as a `delete` of a key does, also
    /// of an object that there is not.
    fn cascade_object(&mut self, call: &Call<'_>, ran: &CallOutcome, now: Now) {
        if self.herd.is_none()
            || !matches!(ran, CallOutcome::Value { .. } | CallOutcome::Miss)
            || call.registry.names(call.method).1 != "drop"
        {
            return;
        }
        if let Some(name) = call.registry.object_name(call.type_id, call.key()) {
            self.cascade(&name, call.hash, RuleChange::Delete, now);
            // The reply to a call does not wait for it.
            self.bump_ticket = 0;
        }
    }

    /// The tags that a host's method gives the object and that it does not have.
    fn added_tags(
        &mut self,
        call: &Call<'_>,
        found: Option<Found>,
        now: Now,
    ) -> Result<ArrayVec<u64, TAGS_MAX>, String> {
        let mut added = ArrayVec::new();
        let new = call.commit.and_then(|commit| commit.new).filter(|new| !new.tags.is_empty());
        let Some(new) = new else { return Ok(added) };
        let mut room = [0; TAGS_MAX];
        let own = match found.filter(|_| !call.begins_anew()) {
            Some(found) => self.store.item(found).attributes(&mut room).tags,
            None => self.object_tags(call, &mut room),
        };
        let mut list = TagList::new();
        let mut insert = |tag| {
            list.insert(tag).map(|()| list.hashes().len()).map_err(|_| {
                let (object_type, method) = call.registry.names(call.method);
                format!(
                    "SERVER_ERROR script {object_type}.{method}: cg.tag: an object has up to {TAGS_MAX} tags"
                )
            })
        };
        let mut count = 0;
        for tag in own {
            count = insert(TagHash::from_stored(*tag))?;
        }
        for name in &new.tags {
            // A name that is not valid was refused before.
            let hasher = self.shared.tag_hasher();
            let tag = hasher.behind(call.prefix(), hasher.hash_made(name));
            if insert(tag)? > count {
                count += 1;
                added.push(tag.get());
            }
        }
        self.shared.note_named(&added, now.ms);
        Ok(added)
    }

    /// Bytes to store; None: there are no pages for them.
    fn new_value<'b>(&mut self, bytes: &'b [u8]) -> Option<NewValue<'b>> {
        if bytes.len() <= self.store.config().inline_max() {
            return Some(NewValue::Inline([bytes, &[]]));
        }
        self.store.huge_value(&[bytes]).map(NewValue::Huge)
    }

    /// Puts a value in the place of the object, or makes one. Its CAS as clients see it, and seconds to live.
    fn put_object(
        &mut self,
        call: &Call<'_>,
        found: Option<Found>,
        expiry: Option<u32>,
        value: NewValue<'_>,
        added: &[u64],
        now: Now,
    ) -> Result<(u64, Option<u64>), CallOutcome> {
        let bytes = if let NewValue::Inline([bytes, _]) = &value { bytes.len() } else { PAGE_BYTES };
        let cas = self.shared.tick();
        let mut room = [0; TAGS_MAX];
        let found = match found.map(|_| self.store.lookup_object(call.hash, call.item_key)) {
            None => None,
            Some(Lookup::Found(found)) => Some(found),
            // Making room for a huge value has evicted it: the call is made again, on none.
            Some(_) => return Err(CallOutcome::NoRoom(bytes)),
        };
        let attributes = if let Some(found) = found.filter(|_| !call.begins_anew()) {
            let old = self.with_tags(found, added, now, &mut room);
            Attributes { cas, expiry: expiry.unwrap_or(old.expiry), ..old }
        } else {
            let own = self.object_tags(call, &mut room).len();
            room[own..own + added.len()].copy_from_slice(added);
            let tags = &room[..own + added.len()];
            let ttl_s = call.registry.type_settings(call.type_id).map_or(0, |own| own.ttl_s);
            let end_ms = now.unix_ms().saturating_add(u64::from(ttl_s) * 1000);
            let own = if ttl_s == 0 { NEVER } else { second_of(now, end_ms) };
            let marks = if call.registry.is_pinned(call.type_id) {
                Marks::OBJECT.with(Marks::PINNED)
            } else {
                Marks::OBJECT
            };
            Attributes {
                cas,
                stamp: Some(cas),
                accessed: now.second,
                expiry: expiry.unwrap_or(own),
                tags,
                marks,
                ..Attributes::default()
            }
        };
        let expiry = attributes.expiry;
        let weighs = value.weighs();
        let grown = self.store.pinned_growth(call.hash, call.item_key, &attributes, weighs);
        if !call.memory.take_pinned(grown, call.registry.settings().pinned_max) {
            return Err(CallOutcome::PinnedFull);
        }
        let stored = self.store.put(call.hash, call.item_key, &attributes, value);
        call.memory.give_pinned(grown);
        if stored.is_err() {
            return Err(CallOutcome::NoRoom(bytes + call.item_key.len() + ITEM_BYTES));
        }
        Ok((self.shown_cas(cas), left(now, expiry)))
    }

    /// Gives an object tags that it does not have; its value stays. Its place.
    fn tag_object(
        &mut self,
        call: &Call<'_>,
        found: Found,
        is_tree: bool,
        added: &[u64],
        now: Now,
    ) -> Result<Found, CallOutcome> {
        let mut room = [0; TAGS_MAX];
        let attributes = self.with_tags(found, added, now, &mut room);
        let grown = if is_tree {
            self.store.attributes_growth(found, &attributes)
        } else {
            let weighs = match self.store.item(found).value() {
                Value::Inline(bytes) => (bytes.len(), 0),
                Value::Huge(huge) => NewValue::Huge(Arc::clone(huge)).weighs(),
            };
            self.store.pinned_growth(call.hash, call.item_key, &attributes, weighs)
        };
        if !call.memory.take_pinned(grown, call.registry.settings().pinned_max) {
            return Err(CallOutcome::PinnedFull);
        }
        let tagged = if is_tree {
            self.store.set_attributes(found, &attributes).ok()
        } else {
            let is_stored = self.rewrite(call.item_key, call.hash, found, &attributes);
            match self.store.lookup_object(call.hash, call.item_key) {
                Lookup::Found(found) if is_stored => Some(found),
                _ => None,
            }
        };
        call.memory.give_pinned(grown);
        tagged.ok_or(CallOutcome::NoRoom(ITEM_BYTES + call.item_key.len()))
    }

    /// The attributes of an object that is used now, with tags that it did not have, which it obeys from now
    /// on: bumps of these from before do not concern it.
    fn with_tags<'r>(
        &self,
        found: Found,
        added: &[u64],
        now: Now,
        room: &'r mut [u64; TAGS_MAX],
    ) -> Attributes<'r> {
        let old = self.store.item(found).attributes(room);
        let (own, old) = (old.tags.len(), Attributes { tags: &[], accessed: now.second, ..old });
        let (bumps, since) = (self.shared.tags().bumps(), old.stamp.unwrap_or(old.cas));
        let is_older = |tag: &u64| {
            let tag = TagHash::from_stored(*tag);
            bumps.last_own(tag, BumpKind::Hard).max(bumps.last_own(tag, BumpKind::Soft)) > since
        };
        let later = added.iter().any(is_older).then(|| self.shared.restamp(since, &room[..own])).flatten();
        let all = own + added.len();
        room[own..all].copy_from_slice(added);
        Attributes { stamp: later.or(old.stamp), tags: &room[..all], ..old }
    }

    /// The tags of a new object: those of the rule that matches its name, and those that the client names.
    fn object_tags<'r>(&mut self, call: &Call<'_>, room: &'r mut [u64; TAGS_MAX]) -> &'r [u64] {
        let name = call.registry.object_name(call.type_id, call.key());
        let ruled = name.and_then(|name| self.rule_of(&name));
        let mut count = 0;
        let of_rule = ruled.iter().flat_map(|ruled| ruled.tags.hashes());
        for tag in of_rule.chain(call.tags) {
            if count < TAGS_MAX && !room[..count].contains(tag) {
                room[count] = *tag;
                count += 1;
            }
        }
        self.shared.tags().note(&room[..count]);
        &room[..count]
    }

    fn set_object_expiry(&mut self, hash: u64, found: Found, expiry: Option<u32>) -> Found {
        match expiry {
            Some(expiry) if self.store.item(found).expiry() != expiry => {
                self.store.set_expiry(hash, found, expiry)
            }
            _ => found,
        }
    }

    fn shown_object(&self, outcome: ObjectOutcome, found: Found, now: Now) -> CallOutcome {
        let item = self.store.item(found);
        shown(outcome, self.shown_cas(item.cas()), left(now, item.expiry()))
    }

    /// The state of an object for a listing.
    pub(crate) fn read_object<R>(
        &mut self,
        hash: u64,
        item_key: &[u8],
        step: &Step<'_>,
        read: impl FnOnce(StateView<'_>, u64, Option<u64>) -> R,
    ) -> R {
        self.view_object(hash, item_key, true, step, |view, seen| match seen {
            Some(seen) => read(view, seen.cas, left(step.now, seen.expiry)),
            None => read(view, 0, None),
        })
    }

    /// Calls `read` with the state of an object. `uses`: it counts as used.
    pub(crate) fn view_object<R>(
        &mut self,
        hash: u64,
        item_key: &[u8],
        uses: bool,
        step: &Step<'_>,
        read: impl FnOnce(StateView<'_>, Option<ObjectCopy>) -> R,
    ) -> R {
        self.advance(step);
        let Some(found) = self.find_object(hash, item_key, step) else {
            return read(StateView::Absent, None);
        };
        if uses {
            self.store.count_read(found);
        }
        let item = self.store.item(found);
        let seen = Some(ObjectCopy { cas: item.cas(), expiry: item.expiry() });
        if let Some(tree) = self.store.tree(found) {
            return read(StateView::Tree(tree), seen);
        }
        match item.value() {
            Value::Inline(bytes) => read(StateView::Bytes(bytes), seen),
            value @ Value::Huge(_) => {
                let mut copy = Vec::with_capacity(value.len());
                value.copy_to(&mut copy);
                read(StateView::Bytes(&copy), seen)
            }
        }
    }
}

/// The tags of an object before a call gave it others, and the number as of which they counted.
#[derive(Debug)]
struct OldTags {
    tags: ArrayVec<u64, TAGS_MAX>,
    stamp: Option<u64>,
}

impl OldTags {
    fn of(item: &Item<'_>) -> Self {
        let mut room = [0; TAGS_MAX];
        let old = item.attributes(&mut room);
        Self { tags: old.tags.iter().copied().collect(), stamp: old.stamp }
    }

    /// Gives the object these tags again. Fewer tags take less room, so it has them again unless not even
    /// that is there.
    fn put_back(&self, store: &mut Store, found: Found) {
        let mut room = [0; TAGS_MAX];
        let now = store.item(found).attributes(&mut room);
        let old = Attributes { tags: &self.tags, stamp: self.stamp, ..now };
        let _found = store.set_attributes(found, &old);
    }
}

/// An object as its state was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectCopy {
    pub(crate) cas: u64,
    /// The second in which it expires, or [`NEVER`].
    pub(crate) expiry: u32,
}

fn shown(outcome: ObjectOutcome, cas: u64, ttl: Option<u64>) -> CallOutcome {
    match outcome {
        ObjectOutcome::Value { flags } => CallOutcome::Value { flags, cas, ttl },
        ObjectOutcome::List { listing, .. } => CallOutcome::List(listing),
        ObjectOutcome::Miss => CallOutcome::Miss,
        ObjectOutcome::Error(text) => CallOutcome::Error(text),
        ObjectOutcome::NoRoom(bytes) => CallOutcome::NoRoom(bytes),
    }
}

/// Whole seconds that an object has to live, and 1 in its last; None: for ever. An end is rounded up to a
/// second of the store, so that nothing ends early: right after it was set, the time that was set is shown.
pub(crate) fn left(now: Now, expiry: u32) -> Option<u64> {
    let left_ms = || unix_ms(now, expiry).saturating_sub(now.unix_ms());
    (expiry != NEVER).then(|| (left_ms() / 1000).max(1))
}

/// Milliseconds of the Unix time at which a second since the start begins.
pub(crate) fn unix_ms(now: Now, second: u32) -> u64 {
    now.unix(second).max(0).unsigned_abs() * 1000
}

/// The first second since the start that is not before this Unix time in milliseconds; what ends now has
/// ended.
fn second_of(now: Now, ms: u64) -> u32 {
    if ms <= now.unix_ms() {
        return PAST;
    }
    let unix = i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX);
    let second = unix.saturating_sub(now.unix_of_zero);
    u32::try_from(second.max(i64::from(PAST))).unwrap_or(u32::MAX)
}
