//! Keys under a rule: the base of all commands about them (the rule of a key and its tags, the herd, cascades,
//! the raising of a key's fence), and the answer to a client that asks for one, before it is written
//! ([`Shard::decide`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{
    Ask, Filler, Herd, HerdStep, JobOrder, LateLease, LateNotice, LeaseKind, MissRecord, OldValueReader,
    OnBusy, Partial, Role, RuleState, Session, Surroundings,
};
use cattlegrid_protocol::Meta;
use cattlegrid_store::{Attributes, Found, Lookup, NEVER, TAGS_MAX};
use cattlegrid_tags::{BumpKind, TagError, TagHash, TagList};

use crate::bump_log::SentBump;
use crate::delivered::{DeliveredValue, Delivery, Verdict};
use crate::load::{Load, LoadOrder};
use crate::query::{Decision, HoldLimits, Query};
use crate::rules::{Captures, Change, Match, OwnedMatch, Rule, TagTemplate};
use crate::shard::Shard;
use crate::shard::put::FillKind;
use crate::shard::standing::Standing;
use crate::step::{Context, Step};
use crate::time::Now;

/// This many misses of a shard without a rule are sampled first, and then one in [`SAMPLED_EVERY`].
const SAMPLED_FIRST: u32 = 64;
const SAMPLED_EVERY: u32 = 32;

impl Shard {
    /// Invalidates what was derived from a key that has changed. The caller calls this after the change: a
    /// refused command has no cascade.
    #[inline]
    pub(crate) fn cascade(&mut self, key: &[u8], hash: u64, change: Change, now: Now) {
        self.cascade_as(BumpKind::Hard, key, hash, change, now);
    }

    /// Cascades a change of a key, softly after a soft invalidation.
    #[inline]
    pub(crate) fn cascade_as(&mut self, kind: BumpKind, key: &[u8], hash: u64, change: Change, now: Now) {
        if self.herd.is_some() {
            self.cascade_ruled(kind, key, hash, change, now);
        }
    }

    fn cascade_ruled(&mut self, kind: BumpKind, key: &[u8], hash: u64, change: Change, now: Now) {
        let active = self.shared.rules();
        let Some(active) = active.as_ref() else { return };
        let (mut bumped, mut ticket) = (Vec::new(), 0);
        for (cascade, captures) in active.rules().cascades(key, change) {
            for template in &cascade.bump {
                let tag = self.tag_made(template, &captures);
                if !bumped.contains(&tag) {
                    bumped.push(tag);
                    let prefix = self.shared.prefixes().text(captures.prefix());
                    // It is obeyed here before the shard is left.
                    ticket = self.shared.send_bump(&SentBump::Tag { prefix, name: &self.scratch, kind });
                }
            }
        }
        if change != Change::Touch {
            self.bump_ticket = ticket;
        }
        if bumped.is_empty() || change != Change::Delete && self.bump_carried(key, hash, &bumped) {
            return;
        }
        for tag in bumped {
            self.shared.bump(tag, kind, now);
        }
    }

    /// Invalidates the tags if the item under the key carries one of them: it was changed itself, and must
    /// stay valid. False: it carries none, and nothing was done.
    fn bump_carried(&mut self, key: &[u8], hash: u64, bumped: &[TagHash]) -> bool {
        let Lookup::Found(found) = self.store.lookup(hash, key) else { return false };
        let item = self.store.item(found);
        if !item.tags().any(|tag| bumped.contains(&TagHash::from_stored(tag))) {
            return false;
        }
        if let Some(stamp) = self.shared.bump_carried(bumped, &item) {
            let mut room = [0; TAGS_MAX];
            let attributes = Attributes { stamp: Some(stamp), ..item.attributes(&mut room) };
            // Without room it is invalidated as well.
            let _kept = self.rewrite(key, hash, found, &attributes);
        }
        true
    }

    /// The tags that an `ms` names, if they fit together with those of the key's rule.
    pub(crate) fn tags_named(&mut self, meta: &Meta<'_>) -> Result<TagList, TagError> {
        if !meta.set.has(b'G') {
            return Ok(TagList::new());
        }
        let token = meta.flags.into_iter().find(|token| token[0] == b'G').unwrap_or(b"G");
        let (prefix, _) = self.shared.prefixes().split(meta.key.bytes());
        let named = self.shared.tag_hasher().parse_list_behind(prefix, &token[1..])?;
        match self.rule_of(meta.key.bytes()) {
            Some(ruled) => ruled.tags.union(&named).map(|_| named),
            None => Ok(named),
        }
    }

    /// Calls the herd, if there are rules, and keeps the count of waiters and the next deadline.
    pub(crate) fn with_herd<R>(
        &mut self,
        step: &mut Step<'_>,
        act: impl FnOnce(&mut Herd, &mut HerdStep<'_, Arc<Delivery>>) -> R,
    ) -> Option<R> {
        let herd = self.herd.as_deref_mut()?;
        let (before, woken) = (herd.waiting(), step.effects.herd.wakes.len());
        let effects = &mut step.effects.herd;
        let result = act(herd, &mut HerdStep { now_ms: step.now.ms, clock: &*self.shared, effects });
        self.shared.waiting.fetch_add(herd.waiting().wrapping_sub(before), Ordering::Relaxed);
        if let Some(deadline_ms) = herd.next_deadline_ms() {
            step.effects.deadline_ms = step.effects.deadline_ms.min(deadline_ms);
        }
        if !step.effects.herd.jobs.is_empty() {
            self.order_jobs(step);
        }
        if step.effects.herd.wakes.len() > woken {
            self.look_up_olds(woken, step);
        }
        Some(result)
    }

    /// Looks up the old values that waiters are to get; `from`: the first wake that may be for one.
    fn look_up_olds(&mut self, from: usize, step: &mut Step<'_>) {
        for at in from..step.effects.herd.wakes.len() {
            if let Verdict::Old(old) = &step.effects.herd.wakes[at].verdict {
                let old = old.clone();
                step.effects.herd.wakes[at].verdict = self.old_or_miss(&old, step);
            }
        }
    }

    /// The old value of a key for a client that gets it instead of a new one; if it has gone, a miss.
    #[cold]
    pub(crate) fn old_or_miss(&mut self, old: &OldValueReader, step: &mut Step<'_>) -> Verdict {
        let OldValueReader { key, hash, how } = old;
        let active = Option::clone(&self.shared.rules());
        let state = active.as_ref().and_then(|active| active.find(key)).map(|ruled| Arc::clone(ruled.state));
        let found = self.lookup_found(*hash, key, step);
        let standing =
            found.map_or(Standing::Absent, |found| self.standing(found, *hash, state.as_deref(), step));
        let fails = self.herd.as_ref().is_some_and(|herd| herd.is_failing(*hash));
        let kind = match standing {
            Standing::Fresh | Standing::Early => Some(LeaseKind::Early),
            Standing::Stale => Some(LeaseKind::Stale),
            Standing::Past if fails => Some(LeaseKind::Past),
            Standing::Past | Standing::Negative | Standing::Absent => None,
        };
        if let (Some(found), Some(state), Some(kind)) = (found, &state, kind) {
            count_old(state, kind);
            self.store.count_read(found);
            return Verdict::Value(self.delivered(found, kind != LeaseKind::Early, step));
        }
        let record = self.with_herd(step, |herd, step| match &state {
            Some(state) => herd.miss_beside(*hash, state, step),
            None => herd.miss_unruled(*hash, step),
        });
        match record {
            Some(record) if how.is_explicit() => Verdict::Lost(record),
            _ if state.is_some_and(|state| how.on_busy(state.policy()) == OnBusy::Error) => {
                Verdict::Busy { record }
            }
            _ => Verdict::Miss { record, hint: None },
        }
    }

    /// A copy of a value that is stored, for waiters; `is_old`: another client computes a new one.
    pub(crate) fn delivered(&self, found: Found, is_old: bool, step: &Step<'_>) -> Arc<Delivery> {
        let item = self.store.item(found);
        let value = DeliveredValue::of(item.value());
        Arc::new(Delivery {
            flags: item.flags(),
            cas: self.shown_cas(item.cas()),
            ttl: step.now.left(item.expiry()),
            counted: self.shared.delivered.count(value.copied_bytes()),
            is_old,
            value,
        })
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
                        let end = |herd: &mut Herd, step: &mut HerdStep<'_, Arc<Delivery>>| {
                            herd.finish_job(hash, token, step);
                            herd.abandon(hash, step);
                        };
                        self.with_herd(step, end);
                        continue;
                    };
                    let wants_old = loading.stale;
                    let terms = ruled.as_ref().map(|ruled| &**ruled.state);
                    let stale = if wants_old { self.old_value(&key, hash, terms, step) } else { None };
                    let prefix_len =
                        key.len() - ruled.as_ref().map_or(key.len(), |ruled| ruled.captures.name().len());
                    let ordered_ms = step.now.ms;
                    LoadOrder::Start(Load {
                        key,
                        prefix_len,
                        token,
                        rule,
                        hint,
                        stale,
                        is_refresh,
                        ordered_ms,
                    })
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
            Standing::Past | Standing::Stale | Standing::Fresh | Standing::Early => {
                Some(DeliveredValue::of(self.store.item(found).value()))
            }
        }
    }

    /// The rule of a key, if it has one.
    pub(crate) fn rule_of(&mut self, key: &[u8]) -> Option<OwnedMatch> {
        self.herd.as_ref()?;
        let active = self.shared.rules();
        let Match { rule, state, captures } = active.as_ref()?.find(key)?;
        state.note_match();
        let tags = self.tags_of(rule, &captures);
        Some(OwnedMatch { state: Arc::clone(state), tags, negative_ttl_s: rule.negative_ttl_s })
    }

    /// A key without a rule was not there: it may have one behind a prefix that the server does not know.
    #[inline]
    pub(crate) fn note_unmatched(&mut self, key: &[u8]) {
        if self.herd.is_none() && !self.shared.has_objects() {
            return;
        }
        self.unmatched = self.unmatched.wrapping_add(1);
        if self.unmatched < SAMPLED_FIRST || self.unmatched.is_multiple_of(SAMPLED_EVERY) {
            self.shared.note_unmatched(key);
        }
    }

    pub(crate) fn holds(&self, hash: u64, by: Filler) -> bool {
        self.herd.as_ref().is_some_and(|herd| herd.holds(hash, by))
    }

    /// The key was deleted, by this number: fills of earlier misses are old.
    pub(crate) fn raise_hard(&mut self, hash: u64, number: u64) {
        if let Some(herd) = &mut self.herd {
            herd.note_hard(hash, number);
        }
    }

    /// The key was written, by this number: fills of earlier misses are old.
    pub(crate) fn raise_written(&mut self, hash: u64, number: u64) {
        if let Some(herd) = &mut self.herd {
            herd.note_written(hash, number);
        }
    }

    /// What a fill of a key with these tags is judged by, besides its account.
    pub(crate) fn surroundings(&self, hash: u64, tags: &[u64], rule: &RuleState, now: Now) -> Surroundings {
        let mut outside = self.shared.outside(hash, tags, Some(rule), now);
        // A miss under rules that have gone since may be older than an event that was not noted.
        outside.hard = outside.hard.max(rule.other_keys().map_or(0, |(number, _)| number));
        let start = self.shared.start(rule, now.ms);
        let around = self.herd.as_ref().map(|herd| herd.surroundings(hash, outside));
        let mut around = around.unwrap_or_default();
        if start.is_some() {
            // A flush or a purge that is phased in will be an event.
            let all = self.shared.tags();
            around.slot.hard = around.slot.hard.max(all.floors().highest());
            around.slot.soft = around.slot.soft.max(all.last_purge(tags));
        }
        Surroundings { outside, start, ..around }
    }

    /// A value was changed in place while a loader may refresh it: the result of its job would be older.
    pub(crate) fn revoke_load(&mut self, key: &[u8], hash: u64, ruled: &OwnedMatch, step: &mut Step<'_>) {
        if ruled.state.policy().loader {
            self.with_herd(step, |herd, step| herd.invalidated(hash, key, step));
        }
    }

    /// The tag that a template makes of what a key's pattern captures, behind the key's prefix.
    pub(crate) fn tag_made(&mut self, template: &TagTemplate, captures: &Captures<'_>) -> TagHash {
        self.scratch.clear();
        template.render(captures, &mut self.scratch);
        let hasher = self.shared.tag_hasher();
        hasher.behind(captures.prefix(), hasher.hash_made(&self.scratch))
    }

    /// Hashes of the tags that a rule gives a key.
    pub(crate) fn tags_of(&mut self, rule: &Rule, captures: &Captures<'_>) -> TagList {
        let mut list = TagList::new();
        for template in &rule.tags {
            let tag = self.tag_made(template, captures);
            // A rule has at most as many tags as fit.
            let fits = list.insert(tag);
            debug_assert!(fits.is_ok(), "a rule has at most eight tags");
        }
        self.shared.tags().note(list.hashes());
        list
    }

    /// The computation of this token has ended without a value: its miss is not open any more.
    pub(crate) fn use_token(&mut self, hash: u64, token: u64, key: &[u8], cx: &Context<'_>) {
        let Some(ruled) = self.rule_of(key) else { return };
        let around = self.surroundings(hash, ruled.tags.hashes(), &ruled.state, cx.step.now);
        let Some(herd) = &mut self.herd else { return };
        if herd.use_token(hash, token, &around, cx.step.now.ms)
            && let Some(found) = self.lookup_found(hash, key, &cx.step)
            && self.store.item(found).life().is_some_and(|life| life.provisional)
        {
            ruled.state.counters().lives_closed.fetch_add(1, Ordering::Relaxed);
            self.store.remove(hash, found);
        }
    }

    /// A request is told now that it has the lease of a key, not yet, or never.
    pub(crate) fn tell_late(&mut self, late: &LateLease, cx: &mut Context<'_>) {
        let LateLease { hash, token, told, .. } = *late;
        if let LateNotice::Waits(until_ms) = told {
            self.with_herd(&mut cx.step, |herd, _| herd.extend(hash, token, until_ms).is_some());
            return;
        }
        let record = cx.session.take_lease(hash, token);
        if told == LateNotice::Never {
            // Its client may take the error for a miss, and compute: the miss stays open.
            if let Some(record) = record {
                cx.session.record(MissRecord { leased: false, ..record }, cx.step.now.ms);
            }
            let connection = cx.session.caller().number();
            self.with_herd(&mut cx.step, |herd, step| {
                if herd.extend(hash, token, 0).is_some() {
                    herd.holder_closed(hash, connection, false, step);
                }
            });
            return;
        }
        // It has not computed so far: what it computes is as new as this moment.
        if record.is_some() {
            self.use_token(hash, token, &late.key, cx);
        }
        match self.with_herd(&mut cx.step, |herd, step| herd.renew(hash, token, step)).flatten() {
            Some(record) => cx.session.record(record, cx.step.now.ms),
            // Its key was deleted, or its lease has passed on otherwise.
            None => {
                if let Some(ruled) = self.rule_of(&late.key) {
                    self.record_miss_of(hash, &ruled.state, &ruled.tags, cx);
                }
            }
        }
    }

    /// Records a miss under a rule without a lease.
    pub(crate) fn record_miss(&mut self, hash: u64, ruled: &Match<'_>, cx: &mut Context<'_>) {
        // A key without an open miss has none that could be older than an event.
        let has_open = self.herd.as_ref().is_some_and(|herd| herd.ledger.has(hash));
        // While bumps of tags that were not noted are left out, each miss notes its own.
        let has_open = has_open || self.shared.tags().selects();
        let tags = has_open.then(|| self.tags_of(ruled.rule, &ruled.captures));
        self.record_miss_of(hash, ruled.state, &tags.unwrap_or_default(), cx);
    }

    /// Records a miss of a key with these tags.
    pub(crate) fn record_miss_of(
        &mut self,
        hash: u64,
        rule: &RuleState,
        tags: &TagList,
        cx: &mut Context<'_>,
    ) {
        let outside = self.shared.outside(hash, tags.hashes(), Some(rule), cx.step.now);
        let miss = |herd: &mut Herd, step: &mut HerdStep<'_, _>| herd.miss_after(hash, outside, rule, step);
        let record = self.with_herd(&mut cx.step, miss);
        if let Some(record) = record {
            cx.session.record(record, cx.step.now.ms);
        }
    }
}

impl Shard {
    /// Decides about a key that was looked up.
    pub(crate) fn decide(
        &mut self,
        query: &Query<'_>,
        ruled: &Match<'_>,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> Decision {
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let standing = found.map_or(Standing::Absent, |found| self.standing_for(query, found, ruled, cx));
        let (kind, old) = match (standing, found) {
            (Standing::Fresh, Some(found)) => return Decision::Fresh(found),
            (Standing::Early, Some(found)) if query.prolongs => return Decision::Fresh(found),
            (Standing::Early, Some(found)) => (LeaseKind::Early, Some((found, LeaseKind::Early))),
            (Standing::Stale, Some(found)) => (LeaseKind::Stale, Some((found, LeaseKind::Stale))),
            (Standing::Past, Some(found)) => (LeaseKind::Past, Some((found, LeaseKind::Past))),
            (Standing::Negative, _) => {
                self.record_miss(query.hash, ruled, cx);
                return Decision::Negative;
            }
            _ => (LeaseKind::Absent, None),
        };
        ruled.state.note_match();
        let policy = *ruled.state.policy();
        if !policy.leases || query.probes {
            let fails = self.herd.as_ref().is_some_and(|herd| herd.is_failing(query.hash));
            if let Some((found, kind)) =
                old.filter(|(_, kind)| kind.is_served() || *kind == LeaseKind::Past && fails)
            {
                let is_leased = self.herd.as_ref().is_some_and(|herd| herd.is_leased(query.hash, query.key));
                return if is_leased { Decision::Old(found, kind) } else { Decision::Probed(found, kind) };
            }
            self.record_miss(query.hash, ruled, cx);
            return Decision::Miss;
        }
        let hold_ms = query.hold_ms(policy.hold_ms);
        let tags = self.tags_of(ruled.rule, &ruled.captures);
        let ask = self.ask(query, ruled, &tags, kind, hold_ms, cx);
        let session = &*cx.session;
        let role = self.with_herd(&mut cx.step, |herd, step| herd.ask(&ask, session, step));
        let now_ms = cx.step.now.ms;
        match (role.expect("rules come with herds"), old) {
            (Role::Compute(grant), old) => {
                let (token, hint) = grant.accept(cx.session, now_ms);
                let old = old.filter(|(_, kind)| kind.is_served());
                Decision::Compute { token, hint, old }
            }
            (Role::Miss(record), _) => {
                cx.session.record(record, now_ms);
                Decision::Miss
            }
            (Role::Old, Some((found, kind))) => {
                count_old(ruled.state, kind);
                Decision::Old(found, kind)
            }
            (Role::Old, None) => unreachable!("an old value is offered where there is one"),
            (Role::Leased, _) if query.is_explicit() && hold_ms == 0 => {
                self.record_miss(query.hash, ruled, cx);
                Decision::Miss
            }
            (role @ (Role::Leased | Role::Trial), _) => Decision::Leased(HoldLimits {
                one_ms: if kind == LeaseKind::Stale { query.wait_ms(policy.wait_ms) } else { hold_ms },
                many_ms: query.wait_ms(if kind == LeaseKind::Stale {
                    policy.wait_ms
                } else {
                    policy.hold_many_ms
                }),
                partial_waits: policy.partial == Partial::Wait,
                has_old: kind == LeaseKind::Stale,
                behind_ms: policy.hold_behind_ms,
                on_trial: matches!(role, Role::Trial),
                by_loader: policy.loader,
            }),
            (Role::Busy(record), _) => {
                cx.session.record(record, now_ms);
                Decision::Busy
            }
        }
    }

    /// What is asked of the herd.
    pub(crate) fn ask<'a>(
        &self,
        query: &Query<'a>,
        ruled: &Match<'a>,
        tags: &'a TagList,
        found: LeaseKind,
        hold_ms: u32,
        cx: &Context<'_>,
    ) -> Ask<'a> {
        Ask {
            key: query.key,
            hash: query.hash,
            rule: ruled.state,
            found,
            how: query.how,
            outside: self.shared.outside(query.hash, tags.hashes(), Some(ruled.state), cx.step.now),
            tags: tags.hashes(),
            hint: query.hint,
            hold_ms,
            wait_ms: query.wait_ms(ruled.state.policy().wait_ms),
        }
    }

    /// The standing of the item under the key for a client that asks in this way.
    fn standing_for(&self, query: &Query<'_>, found: Found, ruled: &Match<'_>, cx: &Context<'_>) -> Standing {
        let expiry = self.store.item(found).expiry();
        // The end of a limited life is no expiry: no client is sent to refresh the value before.
        let has_life = self.store.item(found).life().is_some();
        let is_due = !has_life && expiry != NEVER && query.recache.is_some_and(|second| expiry < second);
        match self.standing(found, query.hash, Some(ruled.state), &cx.step) {
            Standing::Fresh if is_due => Standing::Early,
            standing => standing,
        }
    }
}

/// The filler, according to the records of its connection.
pub(crate) fn filler(hash: u64, fill: FillKind, session: &Session, now_ms: u64) -> Filler {
    let pooled = matches!(fill, FillKind::Any { .. }) && session.oldest(hash, now_ms).is_none();
    Filler { connection: Some(session.caller().number()), token: fill.token(), pooled }
}

/// Counts that a client gets a value of this kind, and does not compute. A value that has not expired is a
/// hit with or without a rule.
pub(crate) fn count_old(rule: &RuleState, kind: LeaseKind) {
    let counters = rule.counters();
    if kind != LeaseKind::Early {
        counters.computes_saved.fetch_add(1, Ordering::Relaxed);
    }
    if matches!(kind, LeaseKind::Stale | LeaseKind::Past) {
        counters.stale_served.fetch_add(1, Ordering::Relaxed);
    }
    if kind == LeaseKind::Past {
        counters.stale_on_error.fetch_add(1, Ordering::Relaxed);
    }
}
