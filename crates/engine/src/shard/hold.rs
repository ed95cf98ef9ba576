//! The wait for a key that another client computes: how it begins, for a `get` and for an `mg`. `ends` is how
//! it ends before its value comes, `fill` how the value reaches it.
//!
//! The engine holds a `get` whose keys it has all asked for (`engine/hold.rs`), and an `mg` at once
//! (`engine/execute.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_herd::{HoldTerms, LeaseKind, OldValueReader, WaitAnswer};
use cattlegrid_protocol::Meta;
use cattlegrid_store::Lookup;

use crate::parked::{ParkedForm, ParkedRequest, ReplyPart, TRIAL_MS, count};
use crate::query::{HoldLimits, KeyAnswer, Query};
use crate::reply::get::{AskedKey, GetEnd, GetForm};
use crate::rules::{ActiveRules, Match};
use crate::shard::get::answer_miss;
use crate::shard::mg::{meta_busy, meta_miss, meta_query};
use crate::shard::standing::Standing;
use crate::shard::{Flow, HoldStart, Shard};
use crate::step::Context;

impl Shard {
    /// After [`Decision::Leased`]: waits for the key, if that can help. `found`: the value that it has;
    /// `slot`: which of the request's keys it is; `many`: that has several; `touch`: the exptime that the
    /// value gets.
    fn hold(
        &mut self,
        query: &Query<'_>,
        ruled: &Match<'_>,
        found: LeaseKind,
        (slot, many, touch): (u16, bool, Option<i64>),
        cx: &mut Context<'_>,
    ) -> WaitAnswer {
        let hold_ms = query.hold_ms(ruled.state.policy().hold_ms);
        let tags = self.tags_of(ruled.rule, &ruled.captures);
        let ask = self.ask(query, ruled, &tags, found, hold_ms, cx);
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let room = waiting < self.shared.waiting_max.load(Ordering::Relaxed);
        let hold = HoldTerms { request: cx.ticket.request, slot, touch, room, many };
        let session = &mut *cx.session;
        let waited = self.with_herd(&mut cx.step, |herd, step| herd.wait(&ask, &hold, session, step));
        let waited = waited.expect("rules come with herds");
        if let WaitAnswer::Miss(record) | WaitAnswer::Busy(record) = &waited {
            cx.session.record(*record, cx.step.now.ms);
        }
        waited
    }

    /// After [`KeyAnswer::Leased`]: waits for the key, for at most `hold_ms` milliseconds; `many`: as one of
    /// several; `has_old`: it had an old value. The shard's lock may have been released since, so the key is
    /// looked up again (history 1 of `engine/hold.rs`).
    pub(crate) fn hold_key(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        (slot, many): (u16, bool),
        (hold_ms, has_old): (u32, bool),
        cx: &mut Context<'_>,
    ) -> HoldStart {
        let key = asked.key;
        self.advance(&cx.step);
        let active = self.shared.rules();
        let lookup = self.lookup(hash, key, &cx.step);
        let found = if let Lookup::Found(found) = lookup { Some(found) } else { None };
        let Some(ruled) = active.as_ref().and_then(|active: &Arc<ActiveRules>| active.find(key)) else {
            // The rules have changed in between.
            return self.ask_again(asked, hash, lookup, cx).unwrap_or(HoldStart::Written);
        };
        let standing =
            found.map_or(Standing::Absent, |found| self.standing(found, hash, Some(ruled.state), &cx.step));
        let leased = self.herd.as_ref().is_some_and(|herd| herd.is_leased(hash, key));
        let (is_same, kind) = match standing {
            Standing::Absent => (!has_old, LeaseKind::Absent),
            Standing::Past => (!has_old, LeaseKind::Past),
            Standing::Stale => (has_old, LeaseKind::Stale),
            Standing::Negative | Standing::Fresh | Standing::Early => (false, LeaseKind::Absent),
        };
        if !is_same || !leased {
            // Otherwise another client has the lease again; or the rule has no free slot.
            if let Some(held) = self.ask_again(asked, hash, lookup, cx) {
                return held;
            }
        }
        let query = Query { hold_ms: Some(hold_ms), ..asked.query(hash) };
        match self.hold(&query, &ruled, kind, (slot, many, asked.touch), cx) {
            WaitAnswer::Waits(_) => HoldStart::Waits,
            WaitAnswer::Old => {
                self.answer_old(asked, hash, cx);
                HoldStart::Written
            }
            WaitAnswer::Miss(_) => {
                answer_miss(asked, lookup, cx);
                HoldStart::Written
            }
            WaitAnswer::Busy(_) => HoldStart::Busy,
        }
    }

    /// Asks again for a key that was leased when it was asked for first. None: it is leased.
    fn ask_again(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        lookup: Lookup,
        cx: &mut Context<'_>,
    ) -> Option<HoldStart> {
        let answer = match asked.form {
            GetForm::Meta(meta) => self.meta_ask_again(meta, hash, lookup, cx),
            _ => self.get_ruled(asked, hash, lookup, cx),
        };
        match answer {
            KeyAnswer::Compute => Some(HoldStart::Compute),
            KeyAnswer::Busy => Some(HoldStart::Busy),
            // Its type was switched on in between.
            KeyAnswer::Object(_) => {
                answer_miss(asked, lookup, cx);
                Some(HoldStart::Written)
            }
            KeyAnswer::Hit | KeyAnswer::Miss | KeyAnswer::Control => Some(HoldStart::Written),
            KeyAnswer::Leased(_) => None,
        }
    }

    /// Answers a key that is not waited for after [`KeyAnswer::Leased`] as a miss, or with its old value.
    pub(crate) fn do_not_wait(
        &mut self,
        asked: &AskedKey<'_>,
        hash: u64,
        has_old: bool,
        cx: &mut Context<'_>,
    ) {
        if has_old {
            return self.answer_old(asked, hash, cx);
        }
        let active = self.shared.rules();
        if let Some(ruled) = active.as_ref().and_then(|active| active.find(asked.key)) {
            self.record_miss(hash, &ruled, cx);
        }
        answer_miss(asked, Lookup::Absent, cx);
    }

    /// Answers a key with its old value, if it is there still.
    fn answer_old(&mut self, asked: &AskedKey<'_>, hash: u64, cx: &mut Context<'_>) {
        let old = OldValueReader { key: asked.key.into(), hash, how: asked.query(hash).how };
        let verdict = self.old_or_miss(&old, &mut cx.step);
        if let Some(record) = verdict.record() {
            cx.session.record(*record, cx.step.now.ms);
        }
        count(&verdict, asked.touches(), cx.step.counters);
        (*asked).to_owned().write(Some(verdict), cx.out);
    }

    /// Waits for the key of an `mg` after [`Flow::Leased`].
    pub(crate) fn meta_wait(
        &mut self,
        meta: &Meta<'_>,
        hash: u64,
        holds: HoldLimits,
        cx: &mut Context<'_>,
    ) -> Flow {
        let asked = AskedKey::meta(meta);
        let active = self.shared.rules();
        let Some(ruled) = active.as_ref().and_then(|active| active.find(asked.key)) else {
            // The rules have changed in between.
            return meta_miss(meta, cx);
        };
        let found = if holds.has_old { LeaseKind::Stale } else { LeaseKind::Absent };
        match self.hold(&meta_query(meta, hash, cx), &ruled, found, (0, false, asked.touch), cx) {
            WaitAnswer::Old => {
                self.answer_old(&asked, hash, cx);
                Flow::Replied
            }
            WaitAnswer::Waits(_) => {
                let full = cx.step.now.ms + u64::from(holds.one_ms);
                let deadline =
                    if holds.on_trial { full.min(cx.step.now.ms + u64::from(TRIAL_MS)) } else { full };
                let part = ReplyPart::Key { slot: 0, asked: asked.to_owned(), verdict: None };
                let form = ParkedForm::Get { parts: vec![part], end: GetEnd::Nothing };
                let parked =
                    ParkedRequest::new(cx.ticket.request, deadline, holds.behind_ms, asked.touches(), form);
                Flow::Parked(Box::new(parked.on_trial(holds.on_trial.then_some(full))))
            }
            WaitAnswer::Miss(_) => meta_miss(meta, cx),
            WaitAnswer::Busy(_) => meta_busy(cx),
        }
    }
}
