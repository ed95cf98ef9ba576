//! Rules that observe: what a shard tells its [`Observer`](cattlegrid_herd::Observer). Nothing here changes
//! what a client is answered, what is stored, or the clock.
//!
//! A key that a rule observes is served as its other rule says, or as a key without one. Whether any rule
//! observes, the commands ask themselves ([`Shard::observer`]), or the method begins with it; only then is
//! the key's rule looked for.

use std::sync::Arc;

use cattlegrid_herd::{
    Early, FillVerdict, LeaseKind, ObservedMiss, ObservedStore, RuleState, refresh_lead_s,
};
use cattlegrid_protocol::Meta;
use cattlegrid_store::{Lookup, NEVER};
use cattlegrid_tags::TagList;

use crate::rules::Match;
use crate::shard::Shard;
use crate::shard::fill::FillComparison;
use crate::shard::put::{Write, WriteMode, WriteOutcome};
use crate::step::{Context, Step};

/// A write of a key that a rule observes, before it is executed.
pub(crate) struct ObservedWrite {
    rule: Arc<RuleState>,
    /// What the rule would say of it, if a miss of the key is open.
    judged: Option<FillVerdict>,
}

impl Shard {
    /// A get was answered as a miss.
    #[cold]
    pub(crate) fn observe_miss(&mut self, key: &[u8], hash: u64, lookup: Lookup, cx: &mut Context<'_>) {
        self.note_observed_miss(key, hash, lookup, false, cx);
    }

    /// Notes a miss of an `mg`, whose client may only want to know whether there is a value.
    #[inline]
    pub(crate) fn observe_meta_miss(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) {
        if self.observer.is_some() {
            let flags = &meta.set;
            let probes = !flags.has(b'v') && !flags.has(b'N') && !flags.has(b'R');
            self.note_observed_miss(meta.key.bytes(), hash, lookup, probes, cx);
        }
    }

    #[cold]
    fn note_observed_miss(
        &mut self,
        key: &[u8],
        hash: u64,
        lookup: Lookup,
        probes: bool,
        cx: &mut Context<'_>,
    ) {
        let active = self.shared.rules();
        let Some(Match { state, .. }) = active.as_ref().and_then(|active| active.find_observing(key)) else {
            return;
        };
        state.note_match();
        state.counters().count_get(1, false);
        if probes {
            return;
        }
        let (found, old_until_ms) = self.would_find(hash, lookup, state, &cx.step);
        let Some(observer) = &mut self.observer else { return };
        let caller = cx.session.caller();
        let missed = ObservedMiss {
            hash,
            rule: state,
            connection: caller.number(),
            is_shared: caller.sends_while_held(),
            found,
            old_until_ms,
            clock: self.shared.clock(),
            now_ms: cx.step.now.ms,
        };
        if observer.missed(&missed) {
            cx.session.note_observed(hash);
        }
    }

    /// The old value that the rule would have kept of an item that has expired; until when it would be
    /// served. An item that was refreshed early would not have expired at all.
    fn would_find(&self, hash: u64, lookup: Lookup, rule: &RuleState, step: &Step<'_>) -> (LeaseKind, u64) {
        let Lookup::Expired = lookup else { return (LeaseKind::Absent, 0) };
        let (policy, now_s) = (rule.policy(), step.now.second);
        let expired = self.store.last_expired();
        if policy.early != Early::Off {
            let lead_s = refresh_lead_s(policy.early, rule.seen_ttl_s(), rule.usual_ms(), hash);
            if lead_s > 0 && expired.accessed >= expired.expiry.saturating_sub(lead_s) {
                return (LeaseKind::Early, u64::MAX);
            }
        }
        let end = expired.expiry.saturating_add(policy.grace_s);
        if now_s < end {
            let left_ms = u64::from(end - now_s) * 1000;
            return (LeaseKind::Stale, step.now.ms + left_ms);
        }
        (LeaseKind::Absent, 0)
    }

    /// A value is about to be stored. None: no rule observes its key.
    #[cold]
    pub(crate) fn observe_write(&mut self, write: &Write<'_>, cx: &Context<'_>) -> Option<ObservedWrite> {
        let active = Option::clone(&self.shared.rules());
        let Match { rule, state, captures } = active.as_ref()?.find_observing(write.key)?;
        state.note_match();
        // They are not noted: no item has them.
        let mut tags = TagList::new();
        for template in &rule.tags {
            let _fits = tags.insert(self.tag_made(template, &captures));
        }
        let mut judged = None;
        if matches!(write.mode, WriteMode::Set | WriteMode::Add) {
            let shown = self.find(write.hash, write.key, &cx.step);
            let outside = self.shared.outside(write.hash, tags.hashes(), Some(state), cx.step.now);
            let stored = ObservedStore { outside, ..self.as_observed(write.hash, state, &cx.step) };
            let observer = self.observer.as_mut()?;
            let none = TagList::new();
            judged =
                observer.judge(&stored, &FillComparison { store: &self.store, write, tags: &none, shown });
        }
        Some(ObservedWrite { rule: Arc::clone(state), judged })
    }

    fn as_observed<'a>(&self, hash: u64, rule: &'a RuleState, step: &Step<'_>) -> ObservedStore<'a> {
        let (clock, now_ms) = (self.shared.clock(), step.now.ms);
        ObservedStore { hash, rule, outside: cattlegrid_herd::Events::default(), clock, now_ms }
    }

    /// The write was executed.
    #[cold]
    pub(crate) fn observe_outcome(
        &mut self,
        before: ObservedWrite,
        write: &Write<'_>,
        outcome: WriteOutcome,
        cx: &Context<'_>,
    ) {
        let ObservedWrite { rule, judged } = before;
        let stored = self.as_observed(write.hash, &rule, &cx.step);
        let Some(observer) = &mut self.observer else { return };
        match outcome {
            WriteOutcome::NoRoom(_) => observer.not_stored(write.hash),
            WriteOutcome::Stored { .. } if matches!(write.mode, WriteMode::Set | WriteMode::Add) => {
                let is_over = write.expiry != NEVER && write.expiry <= cx.step.now.second;
                let connection = cx.session.caller().number();
                if is_over && !observer.holds(write.hash, connection) {
                    return observer.changed(write.hash, false, stored.clock, stored.now_ms);
                }
                if let Some(left_s) = cx.step.now.left(write.expiry) {
                    rule.note_ttl(u32::try_from(left_s).unwrap_or(u32::MAX));
                }
                observer.stored(&stored, judged);
            }
            WriteOutcome::Stored { .. } => observer.changed(write.hash, true, stored.clock, stored.now_ms),
            _ => {}
        }
    }

    /// A key was deleted, or changed in place (`has_value`).
    #[inline]
    pub(crate) fn observe_change(&mut self, key: &[u8], hash: u64, has_value: bool, step: &Step<'_>) {
        if self.observer.is_some() {
            self.note_observed_change(key, hash, has_value, step);
        }
    }

    #[cold]
    fn note_observed_change(&mut self, key: &[u8], hash: u64, has_value: bool, step: &Step<'_>) {
        let active = self.shared.rules();
        let found = active.as_ref().and_then(|active| active.find_observing(key));
        let (Some(Match { state, .. }), Some(observer)) = (found, &mut self.observer) else { return };
        state.note_match();
        observer.changed(hash, has_value, self.shared.clock(), step.now.ms);
    }

    /// A write was refused: it was too large, or there was no room for it.
    #[inline]
    pub(crate) fn observe_refused(&mut self, write: &Write<'_>, step: &Step<'_>) {
        if let Some(observer) = &mut self.observer
            && matches!(write.mode, WriteMode::Set | WriteMode::Add)
        {
            observer.refused(write.hash, self.shared.clock(), step.now.ms);
        }
    }

    /// A connection that would have had the lease of a key was closed.
    pub(crate) fn observe_close(&mut self, hash: u64, connection: u64, orderly: bool, step: &Step<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.closed(hash, connection, orderly, self.shared.clock(), step.now.ms);
        }
    }
}
