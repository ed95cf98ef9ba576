//! Writes: the commands `set add replace append prepend cas`, what `ms` shares with them, and every write of
//! a key under a rule: the tags that its value brings, to which miss it belongs, and what happens if it
//! belongs to none.
//!
//! The reply is the caller's; a write counts and notes its own outcome.
//!
//! A value gets tags besides those of its rule and those that its command names: its first line names them,
//! or they were announced for its key. They are known before the value is judged, as those that an `ms`
//! names: a fill is asked for all of them (history 2 of `fill`).
//!
//! A fill counts as of its miss; see `fill`. Any other write takes effect as it comes.
//!
//! # Histories
//! H is the holder, W a waiter, X another client. A number behind "at" is the clock's. The tests named are in
//! `tests/`.
//!
//! 1. H misses at 5 on one connection of a pool. X deletes at 6. H stores on another connection, which has no
//!    miss of the key: no miss came after 6, so the fill is old and is dropped. (`fences.rs`:
//!    `a_fill_from_another_connection_counts_as_of_the_miss_too`)
//! 2. The same, but H's first connection is closed before the fill: its miss stays in the ledger.
//!    (`fences.rs`: `a_pool_that_closes_connections_while_it_computes_stores_nothing_old`,
//!    `a_closed_connection_leaves_its_misses_open`)
//! 3. H misses at 5, X deletes at 6, W misses at 7 and stores first. With `owner = "key"` it is not known
//!    whose value it is: soon after the delete it is dropped, later it is stored as provisional, until H's
//!    fill comes as well. With `ambiguous = "drop"` both are dropped, and the client that misses next
//!    computes once more. With `owner = "connection"` W's value counts as of 7 and is stored. (`fences.rs`:
//!    `a_value_computed_before_a_delete_is_never_kept`)
//! 4. H misses at 5. X writes the key with a `set` at 6, without having missed it. With `owner = "key"` this
//!    counts as the fill of H's miss, as of 5, and H's older value replaces it later. With
//!    `owner = "connection"` X's `set` is not a fill: it raises the fence to 6, and H's fill is dropped.
//!    (`orders.rs`: `two_fillers_and_an_invalidation`)
//! 5. A connection has missed more keys than its session remembers, this key among them. With
//!    `owner = "connection"` its `set` may be a fill: the key's account decides, and what is not known to be
//!    new is dropped. (`fences.rs`:
//!    `misses_of_a_connection_beyond_what_it_remembers_change_nothing_for_other_keys`)
//! 6. H gets the lease by name at 5; its deadline passes. H's `ms` shows token 5, which is known for a fill
//!    window more: a fill as of 5. After that the token is unknown, and the `ms` an ordinary `cas`.
//!    (`tokens.rs`: `a_late_token_takes_no_other_miss_with_it`,
//!    `a_token_used_after_its_window_takes_no_other_miss_with_it`)
//! 7. X reads the CAS 5 of a value, and the value is invalidated softly. X's `cas` with 5 finds a stale value
//!    and is answered `EXISTS`: the CAS of a value that was invalidated is no longer valid. (`tags.rs`:
//!    `a_soft_bump_leaves_the_old_value_to_all_but_one`)
//! 8. X shows with `ms I` a CAS that is older than the item's: the value that it brings may be from before a
//!    delete, and would be served for the rule's grace. Instead the newer value that is there is marked
//!    stale. (`grace.rs`: `a_value_for_an_older_cas_marks_the_newer_one`)
//! 9. H's value is refused, because it is too large or there is no memory. It would have filled H's miss,
//!    which is counted off, and the lease passes on. After a `set` or an `ms` the key is deleted, so that the
//!    old value is not taken for the new one. (`herd.rs`:
//!    `a_refused_value_passes_the_lease_on_and_leaves_other_misses_alone`)
//! 10. X's get is held at 5. X gives up, but keeps the connection, which others use as well; it reads the
//!     source, and deletes come. X's `set` comes on the connection: the held get is answered first, as a miss
//!     at 5, and the `set` belongs to that one. (`fences.rs`:
//!     `a_value_from_a_client_that_gave_up_waiting_counts_as_of_its_get`)
//! 11. H misses at 5. X bumps at 6 a tag that only H's value will name. H stores: the line is read first, 5 <
//!     6, the value is dropped. (`named_tags.rs`: `a_value_is_fenced_by_the_tags_of_its_line`)
//! 12. H's value has a line that cannot be taken. It would have filled H's miss, which is counted off, and the
//!     lease passes on; after a `set` the old value goes, as with any value that is refused. (`named_tags.rs`:
//!     `a_refused_line_passes_the_lease_on_and_leaves_no_old_value`)
//! 13. A value in pages of its own arrives while the rule's `tags_in_value` is changed by a reload. The line
//!     is taken off before the shard is locked, and its tags count whatever the rule says then. If it was not
//!     taken off and should have been, the value is refused: it is never stored with a line that was not read.
//!     (`cut_line` in `engine/room.rs`)
//! 14. X announces tag a for the key at 4 and H at 5; H's miss is at 3, and a bump of a comes at 6. Any value
//!     of the key that is stored now has the tag, and H's value, 3 < 6, is dropped. (`announced_tags.rs`:
//!     `a_bump_of_an_announced_tag_drops_what_was_computed_before_it`)
//! 15. Tags were announced, and then a reload gave the key more tags, so that they are more than fit. None of
//!     them may be left out: the value is refused. (`announced_tags.rs`:
//!     `a_reload_that_leaves_no_room_for_them_refuses_the_value`)

use std::sync::atomic::Ordering;

use cattlegrid_herd::{Owner, Session, TagsInValue};
use cattlegrid_protocol::{Store as StoreRequest, StoreVerb, reply};
use cattlegrid_store::{Found, Lookup, Marks, Value};
use cattlegrid_tags::{TAG_LINE, TagError, TagLine, TagList, Validity};

use crate::announced::{ANNOUNCED_MAX, AnnounceError};
use crate::event::{EventKind, Looker};
use crate::reply::meta::Refusals;
use crate::rules::{Change, OwnedMatch};
use crate::shard::put::{
    FillKind, FillWrite, TagsRefused, Write, WriteData, WriteMode, WriteOutcome, note_refused,
};
use crate::shard::ruled::filler;
use crate::shard::standing::{Standing, is_stub};
use crate::shard::{Flow, Shard};
use crate::step::{Context, Interest};
use crate::time::Now;

impl Shard {
    pub(crate) fn classic_store(
        &mut self,
        request: &StoreRequest<'_>,
        hash: u64,
        data: WriteData<'_>,
        cx: &mut Context<'_>,
    ) -> Flow {
        let compare = if let StoreVerb::Cas(cas) = request.verb { cas } else { 0 };
        let write = Write {
            drops_old: matches!(request.verb, StoreVerb::Set),
            mode: WriteMode::of(request.verb),
            data,
            flags: request.flags,
            expiry: cx.step.now.expiry(request.exptime),
            compare,
            ..Write::set(request.key, hash, &[])
        };
        let text = match self.write(&write, cx) {
            WriteOutcome::Stored { .. } => reply::STORED,
            WriteOutcome::NotStored | WriteOutcome::Refused(TagsRefused::Unannounced) => reply::NOT_STORED,
            WriteOutcome::Exists => reply::EXISTS,
            WriteOutcome::NotFound => reply::NOT_FOUND,
            WriteOutcome::NoRoom(bytes) => {
                return self.refuse(&write, bytes, Refusals::classic(request.noreply), cx);
            }
            WriteOutcome::Refused(refused) => {
                Refusals::classic(request.noreply).write(&refused.line(), &mut cx.out.bytes);
                return Flow::Replied;
            }
        };
        if !request.noreply {
            cx.out.bytes.extend_from_slice(text);
        }
        Flow::Replied
    }

    /// Writes an item as its mode says. Counts and notes the write; the reply is the caller's.
    pub(crate) fn write(&mut self, write: &Write<'_>, cx: &mut Context<'_>) -> WriteOutcome {
        let observed = if self.observer.is_some() { self.observe_write(write, cx) } else { None };
        let outcome = match self.rule_of(write.key) {
            Some(ruled) => self.write_tagged(write, &ruled, cx),
            // A negative answer counts as absent for every command, but a new item replaces it.
            None => match self.find(write.hash, write.key, &cx.step) {
                Some(found) => self.write_over(write, found, cx),
                None => self.write_new(write, cx),
            },
        };
        if let Some(observed) = observed {
            self.observe_outcome(observed, write, outcome, cx);
        }
        match outcome {
            WriteOutcome::NoRoom(_) => return outcome,
            WriteOutcome::Refused(refused) => {
                if refused == TagsRefused::Unannounced {
                    cx.step.counters.cmd_set.add(1);
                }
                note_refused(write.key, write.mode, !write.takes_token, "not_stored", cx);
                return outcome;
            }
            _ => {}
        }
        cx.step.counters.cmd_set.add(1);
        if let WriteOutcome::Stored { .. } = outcome {
            self.cascade(write.key, write.hash, Change::Set, cx.step.now);
        }
        if write.mode == WriteMode::Cas {
            match outcome {
                WriteOutcome::Stored { .. } => cx.step.counters.cas_hits.add(1),
                WriteOutcome::NotFound => cx.step.counters.cas_misses.add(1),
                _ => cx.step.counters.cas_badval.add(1),
            }
        }
        let ttl = cx.step.now.left(write.expiry).unwrap_or(0);
        cx.note(Interest::MUTATIONS, write.key, || EventKind::Store {
            status: match outcome {
                WriteOutcome::Stored { .. } => "stored",
                WriteOutcome::Exists => "exists",
                WriteOutcome::NotFound => "not_found",
                _ => "not_stored",
            },
            command: write.mode.name(),
            ttl,
            size: if let WriteOutcome::Stored { size, .. } = outcome { size } else { write.data.len() },
            classic: !write.takes_token,
        });
        outcome
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

    /// A write for which there is no room: an error.
    pub(crate) fn refuse(
        &mut self,
        write: &Write<'_>,
        bytes: usize,
        refusals: Refusals,
        cx: &mut Context<'_>,
    ) -> Flow {
        if !self.is_last_try() {
            return Flow::NeedsRoom(bytes);
        }
        refusals.write(reply::error::OUT_OF_MEMORY, &mut cx.out.bytes);
        self.refuse_write(write, cx);
        Flow::Replied
    }

    /// Refuses a write whose client is not told.
    pub(crate) fn refuse_write(&mut self, write: &Write<'_>, cx: &mut Context<'_>) {
        cx.step.counters.store_no_memory.add(1);
        self.refused(write, cx);
        note_refused(write.key, write.mode, !write.takes_token, "no_memory", cx);
    }
}

impl Shard {
    /// A storing command of a key under a rule, with the tags that its value brings and those announced for
    /// its key.
    pub(crate) fn write_tagged(
        &mut self,
        write: &Write<'_>,
        ruled: &OwnedMatch,
        cx: &mut Context<'_>,
    ) -> WriteOutcome {
        let policy = ruled.state.policy();
        let takes = policy.tags_in_value != TagsInValue::No || write.data.is_cut();
        if !takes && !policy.needs_announced_tags && self.announced.is_empty() {
            return self.write_ruled(write, ruled, cx);
        }
        let mut tagged = Write { data: write.data.clone(), ..*write };
        match self.add_tags(&mut tagged, ruled, cx.step.now.ms) {
            Ok(()) => self.write_ruled(&tagged, ruled, cx),
            Err(refused) => {
                let counters = ruled.state.counters();
                let counter = match refused {
                    TagsRefused::Invalid(_) => &counters.stores_tags_invalid,
                    TagsRefused::Missing => &counters.stores_without_tags,
                    TagsRefused::Unannounced => &counters.stores_unannounced,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                // History 12.
                self.refused(write, cx);
                WriteOutcome::Refused(refused)
            }
        }
    }

    /// Adds to the tags that the command names those of the value's first line, which is taken off, and those
    /// announced for the key.
    fn add_tags(&self, write: &mut Write<'_>, ruled: &OwnedMatch, now_ms: u64) -> Result<(), TagsRefused> {
        let policy = ruled.state.policy();
        // A part of a value, or the answer that there is none.
        let is_part = matches!(write.mode, WriteMode::Append | WriteMode::Prepend);
        let is_value = !is_part && !write.negative;
        let line = if is_part { None } else { self.line_of(write, policy.tags_in_value)? };
        match line {
            Some((tags, bytes)) => {
                write.tags = write.tags.union(&tags)?;
                if let WriteData::Inline(value) = &mut write.data {
                    *value = &value[bytes..];
                }
            }
            None if policy.tags_in_value == TagsInValue::Required && is_value => {
                return Err(TagsRefused::Missing);
            }
            None => {}
        }
        match self.announced.of(write.hash, now_ms) {
            Some((tags, _)) => write.tags = write.tags.union(tags)?,
            None if policy.needs_announced_tags && is_value => return Err(TagsRefused::Unannounced),
            None => {}
        }
        // History 15.
        ruled.tags.union(&write.tags)?;
        Ok(())
    }

    /// The tags that a value's first line names, and the bytes of the line.
    fn line_of(
        &self,
        write: &Write<'_>,
        taken: TagsInValue,
    ) -> Result<Option<(TagList, usize)>, TagsRefused> {
        let front: Vec<u8>;
        let line = match &write.data {
            WriteData::Huge(huge) if huge.front_len() > 0 => {
                front = huge.front().flatten().copied().collect();
                TagLine::of(&front)
            }
            _ if taken == TagsInValue::No => TagLine::None,
            // History 13.
            WriteData::Huge(huge) if huge.slice_from(0).starts_with(TAG_LINE) => TagLine::Endless,
            WriteData::Huge(_) => TagLine::None,
            WriteData::Inline(value) => TagLine::of(value),
        };
        match line {
            TagLine::None => Ok(None),
            TagLine::Names(names, bytes) => {
                let (prefix, _) = self.shared.prefixes().split(write.key);
                Ok(Some((self.shared.tag_hasher().parse_text(prefix, names)?, bytes)))
            }
            TagLine::Endless => Err(TagError::Endless.into()),
        }
    }

    /// Announces tags for a key, until the rule's `fill_window` has passed. An error: the reply.
    pub(crate) fn announce(&mut self, key: &[u8], hash: u64, tags: &TagList, now: Now) -> Result<(), String> {
        let Some(ruled) = self.rule_of(key) else {
            return Err(format!("CLIENT_ERROR no rule covers {}", String::from_utf8_lossy(key)));
        };
        let times = (now.ms, now.ms + u64::from(ruled.state.fill_window_ms()));
        match self.announced.announce(hash, tags, &ruled.tags, times, &self.shared.announced) {
            Ok(()) => {
                ruled.state.counters().tags_announced.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(AnnounceError::Tags(error)) => Err(format!("CLIENT_ERROR {error}")),
            Err(AnnounceError::Full) => {
                Err(format!("SERVER_ERROR tags are announced for {ANNOUNCED_MAX} keys already"))
            }
        }
    }
}

impl Shard {
    /// A storing command of a key under a rule.
    pub(crate) fn write_ruled(
        &mut self,
        write: &Write<'_>,
        ruled: &OwnedMatch,
        cx: &mut Context<'_>,
    ) -> WriteOutcome {
        let found = self.lookup_found(write.hash, write.key, &cx.step);
        let standing = found
            .map_or(Standing::Absent, |found| self.standing(found, write.hash, Some(&ruled.state), &cx.step));
        let fresh = found.filter(|_| matches!(standing, Standing::Fresh | Standing::Early));
        let fill = self.fill_of(write, fresh, ruled, cx.session, cx.step.now.ms);
        let is_shown = matches!(standing, Standing::Fresh | Standing::Early | Standing::Negative);
        let shown = found.filter(|found| is_shown && !is_stub(&self.store.item(*found)));
        let by = filler(write.hash, fill, cx.session, cx.step.now.ms);
        // History 10.
        let waits = !cx.session.waits().is_empty() && self.answer_own_waits(write.hash, by, cx);
        let fill = if waits { self.fill_of(write, fresh, ruled, cx.session, cx.step.now.ms) } else { fill };
        let by = if waits { filler(write.hash, fill, cx.session, cx.step.now.ms) } else { by };
        let stores = match (write.mode, fresh) {
            // Only the holder may refresh a value that is still good with an `add`.
            (WriteMode::Add, Some(_)) => self.holds(write.hash, by),
            (WriteMode::Set | WriteMode::Add, _) | (WriteMode::Replace, Some(_)) => true,
            (WriteMode::Cas, _) if fill.token().is_some() => true,
            (WriteMode::Cas, Some(fresh)) => self.store.item(fresh).cas() == write.compare,
            (WriteMode::Append | WriteMode::Prepend, None) => write.vivify.is_some(),
            (WriteMode::Append | WriteMode::Prepend, Some(_))
            | (WriteMode::Replace | WriteMode::Cas, None) => false,
        };
        if stores {
            let filling = FillWrite { fill, by, session: Some(cx.session), shown };
            return self.store_value(write, found, filling, ruled, &mut cx.step);
        }
        let outcome = match (write.mode, fresh) {
            (WriteMode::Cas, None) => match found {
                // History 7: its old CAS is not valid any more.
                Some(found) if self.is_softened(found, write.hash, cx) && standing != Standing::Negative => {
                    WriteOutcome::Exists
                }
                _ => WriteOutcome::NotFound,
            },
            (WriteMode::Cas, Some(fresh)) if ruled.state.policy().leases && self.is_older(write, fresh) => {
                self.mark_for_older(write, fresh, cx)
            }
            (WriteMode::Cas | WriteMode::Append | WriteMode::Prepend, Some(fresh)) => {
                // The value that replaces another one, marked stale or expired, carries the rule's tags as
                // well.
                let tags = ruled.tags.union(&write.tags).unwrap_or(ruled.tags);
                let outcome = self.write_over(&Write { tags, data: write.data.clone(), ..*write }, fresh, cx);
                if let WriteOutcome::Stored { .. } = outcome {
                    self.raise_written(write.hash, self.shared.clock());
                    self.revoke_load(write.key, write.hash, ruled, &mut cx.step);
                }
                outcome
            }
            _ => WriteOutcome::NotStored,
        };
        if fill != FillKind::No && outcome == WriteOutcome::NotStored {
            let mut filling = FillWrite { fill, by, session: Some(cx.session), shown };
            self.use_up(write, &mut filling, true, ruled, cx.step.now);
        }
        outcome
    }

    /// Whether it is an `ms` with `I` that shows an older CAS than the item's.
    fn is_older(&self, write: &Write<'_>, fresh: Found) -> bool {
        write.or_stale && write.compare != 0 && write.compare < self.store.item(fresh).cas()
    }

    /// History 8: such an `ms` asks for the value to be computed again, and its own value is not used.
    fn mark_for_older(&mut self, write: &Write<'_>, fresh: Found, cx: &mut Context<'_>) -> WriteOutcome {
        let numbers = self.numbers(write.explicit_cas);
        if !self.mark_stale(write.key, write.hash, fresh, numbers, None, cx) {
            return WriteOutcome::NoRoom(write.data.len());
        }
        let number = numbers.1.unwrap_or(numbers.0);
        self.invalidate_softly(write.key, write.hash, number, cx);
        WriteOutcome::Stored { cas: self.shown_cas(numbers.0), size: write.data.len() }
    }

    /// Whether an item was invalidated softly, by a tag or by its own key.
    fn is_softened(&self, found: Found, hash: u64, cx: &Context<'_>) -> bool {
        let item = self.store.item(found);
        item.marks().has(Marks::STALE) || self.shared.validity(&item, hash, cx.step.now.ms) == Validity::Stale
    }

    /// The miss to which this write belongs, if to any (histories 1 to 6).
    fn fill_of(
        &mut self,
        write: &Write<'_>,
        fresh: Option<Found>,
        ruled: &OwnedMatch,
        session: &Session,
        now_ms: u64,
    ) -> FillKind {
        let Some(herd) = &mut self.herd else { return FillKind::No };
        match write.mode {
            WriteMode::Cas if write.takes_token => {
                let own = fresh.filter(|fresh| self.store.item(*fresh).cas() == write.compare);
                match own {
                    // The stub was made at the miss.
                    Some(own) if !ruled.state.policy().leases && is_stub(&self.store.item(own)) => {
                        FillKind::Of(self.store.item(own).stamp())
                    }
                    None if herd.knows_token(write.hash, write.compare, now_ms) => {
                        FillKind::ByToken(write.compare)
                    }
                    _ => FillKind::No,
                }
            }
            WriteMode::Set | WriteMode::Add => {
                if ruled.state.policy().owner == Owner::Key {
                    return FillKind::Any { strict: false };
                }
                match session.oldest(write.hash, now_ms) {
                    Some(own) => FillKind::Of(own),
                    // History 5: its own miss may be one without room among its records, or from before the
                    // start.
                    None if session.has_lost(now_ms) => FillKind::Any { strict: true },
                    None if self.shared.start(&ruled.state, now_ms).is_some() => {
                        FillKind::Any { strict: true }
                    }
                    None => FillKind::No,
                }
            }
            _ => FillKind::No,
        }
    }

    /// A write was refused (history 9): the miss that it would have filled, if its key is under a rule, stays
    /// unfilled. The old value is deleted where it could be taken for the new one: after a `set`, and after
    /// an `ms` in any mode, as in memcached ([`Write::drops_old`]). Otherwise a lease passes to the next
    /// waiter, and the value stays.
    pub(crate) fn refused(&mut self, write: &Write<'_>, cx: &mut Context<'_>) {
        self.observe_refused(write, &cx.step);
        let mut by = None;
        if let Some(ruled) = self.rule_of(write.key) {
            let now_ms = cx.step.now.ms;
            let fill = self.fill_of(write, None, &ruled, cx.session, now_ms);
            let filler = filler(write.hash, fill, cx.session, now_ms);
            by = (fill != FillKind::No).then_some(filler);
            let mut filling = FillWrite { fill, by: filler, session: Some(cx.session), shown: None };
            self.use_up(write, &mut filling, false, &ruled, cx.step.now);
        }
        let deletes = write.drops_old;
        if let Some(by) = by {
            self.give_up_fill(write.hash, by, deletes, &mut cx.step);
        }
        if deletes {
            self.invalidate(write.key, write.hash, cx);
        }
    }

    /// A key under a rule was changed in place, or was created by arithmetic (`created`).
    pub(crate) fn changed(&mut self, key: &[u8], hash: u64, created: bool, cx: &mut Context<'_>) {
        let Some(ruled) = self.rule_of(key) else { return };
        self.raise_written(hash, self.shared.clock());
        self.revoke_load(key, hash, &ruled, &mut cx.step);
        let Lookup::Found(found) = self.store.lookup(hash, key) else { return };
        if !created {
            return;
        }
        let item = self.store.item(found);
        let (flags, cas, expiry) = (item.flags(), item.cas(), item.expiry());
        let mut value = Vec::new();
        if let Value::Inline(bytes) = item.value() {
            value.extend_from_slice(bytes);
        }
        let write = Write { flags, expiry, ..Write::set(key, hash, &value) };
        let by = filler(hash, FillKind::No, cx.session, cx.step.now.ms);
        if !cx.session.waits().is_empty() {
            self.answer_own_waits(hash, by, cx);
        }
        let waiters = self.take_waiters(&write, by, None, &mut cx.step);
        self.deliver(&write, cas, expiry, &ruled.state, waiters, &mut cx.step);
    }
}
