//! The answer to a client that asks for a key under a rule, before it is written.

use cattlegrid_herd::{Ask, LeaseKind, Partial, Role};
use cattlegrid_store::{Found, Lookup, NEVER};
use cattlegrid_tags::TagList;

use crate::query::{Decision, HoldLimits, Query};
use crate::rules::Match;
use crate::shard::Shard;
use crate::shard::ruled::count_old;
use crate::shard::standing::Standing;
use crate::step::Context;

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
