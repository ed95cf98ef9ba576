//! Collects what decides how a read of a key is answered.

use std::sync::Arc;

use cattlegrid_herd::{Events, RuleState, Surroundings};
use cattlegrid_store::{Found, Item, Lookup, Marks};
use cattlegrid_tags::{BumpKind, PrefixId, TagHash, TagList};

use crate::following::{LogState, class_of};
use crate::rules::Match;
use crate::rules::why::{
    EventNumbers, Why, WhyAccount, WhyItem, WhyLease, WhyLife, WhyLog, WhyPurge, WhyRolling, WhyRule, WhyTag,
};
use crate::shard::Shard;
use crate::shard::standing::Standing;
use crate::shared::EngineShared;
use crate::step::Step;
use crate::time::Now;

impl Shard {
    /// Everything that decides how a read of this key is answered. `own`: tags and hash of the object with
    /// this name.
    pub(crate) fn why(&mut self, key: &[u8], hash: u64, own: Option<(&[u64], u64)>, step: &Step<'_>) -> Why {
        let now = step.now;
        let shared = Arc::clone(&self.shared);
        let active = shared.rules();
        let ruled = active.as_ref().and_then(|active| active.find(key));
        let state = ruled.as_ref().map(|ruled| &**ruled.state);
        let observing = active.as_ref().and_then(|active| active.find_observing(key));
        let (prefix, _) = shared.prefixes().split(key);
        self.advance(step);
        let (mut names, mut hashes) = (Vec::new(), TagList::new());
        if let Some(Match { rule, captures, .. }) = &ruled {
            for template in &rule.tags {
                let mut name = Vec::new();
                template.render(captures, &mut name);
                let tags = shared.tag_hasher();
                let hash = tags.behind(captures.prefix(), tags.hash_made(&name)).get();
                names.push((hash, Some(String::from_utf8_lossy(&name).into_owned())));
            }
            hashes = self.tags_of(rule, captures);
        }
        let (own_tags, phase_hash) = own.unwrap_or((&[], hash));
        let mut stored = own_tags.to_vec();
        let announced = self.announced.of(hash, now.ms).filter(|_| own.is_none() && ruled.is_some());
        let announced_for_ms = announced.map(|(_, until_ms)| until_ms - now.ms);
        if let Some((tags, _)) = announced {
            stored.extend(tags.hashes());
            hashes = hashes.union(tags).unwrap_or(hashes);
        }
        let item = if let Lookup::Found(found) = self.lookup(hash, key, step) {
            stored.extend(self.store().item(found).tags());
            Some(self.why_item(found, hash, state, step))
        } else {
            None
        };
        for tag in stored {
            if !names.iter().any(|(hash, _)| *hash == tag) {
                names.push((tag, None));
            }
        }
        let bumps = shared.tags().bumps();
        let class = class_of(state.and_then(|state| state.policy().when_behind));
        let tag = |(hash, tag): (u64, Option<String>)| {
            let stored = TagHash::from_stored(hash);
            let (hard, soft) =
                (bumps.last(stored, BumpKind::Hard, class), bumps.last(stored, BumpKind::Soft, class));
            let purges = shared.tags().purges_of(stored).into_iter();
            let gradual = purges
                .map(|purge| WhyPurge {
                    moment_in_ms: purge.moment_ms(phase_hash).saturating_sub(now.ms),
                    number: purge.number,
                    seconds: purge.period_ms / 1000,
                })
                .collect();
            WhyTag { gradual, hard, hash: format!("{hash:016x}"), soft, tag }
        };
        let Events { hard, soft } = shared.outside(hash, hashes.hashes(), state, now);
        let start = ruled.as_ref().and_then(|ruled| shared.start(ruled.state, now.ms));
        let (lease, fence, view) = self.herd.as_deref_mut().map_or((None, None, None), |herd| {
            let slot = herd.fence.events_and_writes(hash);
            let around = Surroundings { start, ..herd.surroundings(hash, Events { hard, soft }) };
            (
                herd.lease(hash, key, now.ms).map(WhyLease::from),
                Some(EventNumbers { hard: slot.hard, soft: slot.soft }),
                Some(herd.ledger.view(hash, &around, now.ms)),
            )
        });
        let floors = shared.tags().floors();
        Why {
            account: view.as_ref().map(WhyAccount::from),
            announced_for_ms,
            clock: shared.clock(),
            fence,
            floor: floors.hard(),
            hint: if own.is_none() { shared.hint(key, ruled.is_some()) } else { None },
            item,
            key: String::from_utf8_lossy(key).into_owned(),
            lease,
            object: None,
            logs: if names.is_empty() { Vec::new() } else { logs(&shared, now) },
            oldest_miss: view.and_then(|view| view.oldest.into_iter().chain(view.lost).min()),
            fails_for_ms: self.herd.as_ref().and_then(|herd| herd.fails_for_ms(hash, now.ms)),
            observed: observing.filter(|_| own.is_none()).map(|Match { rule, .. }| WhyRule::from(rule)),
            outside: EventNumbers { hard, soft },
            prefix: (prefix != PrefixId::NONE)
                .then(|| String::from_utf8_lossy(shared.prefixes().text(prefix)).into_owned()),
            rolling: floors
                .rolling()
                .map(|floor| WhyRolling {
                    number: floor.number,
                    seconds: floor.period_ms / 1000,
                    served: floor.share_served(now.ms),
                })
                .collect(),
            rule: ruled.as_ref().map(|Match { rule, .. }| WhyRule::from(*rule)),
            tags: names.into_iter().map(tag).collect(),
        }
    }

    fn why_item(&self, found: Found, hash: u64, state: Option<&RuleState>, step: &Step<'_>) -> WhyItem {
        let now = step.now;
        let item = self.store().item(found);
        let kept_s = item.grace_s();
        let grace_s = state.map_or(kept_s, |state| state.grace_s(kept_s));
        let edited = item.marks().has(Marks::EDITED);
        let (kept_s, grace_s) = if edited { (0, 0) } else { (kept_s, grace_s) };
        WhyItem {
            cas: item.cas(),
            edited,
            life: item.life().map(|life| WhyLife {
                ends_in_ms: life.ends_ms.saturating_sub(now.ms),
                provisional: life.provisional,
            }),
            grace: grace_left(&item, grace_s, now),
            grace_on_error: if kept_s > grace_s { grace_left(&item, kept_s, now) } else { None },
            refresh_in: item.refresh_at().and_then(|second| now.left(second)),
            size: item.value_len(),
            stale: item.marks().has(Marks::STALE),
            standing: name(self.standing(found, hash, state, step)),
            stamp: item.stamp(),
            ttl: now.left(item.expiry()),
        }
    }
}

/// What is left of a grace of `grace_s` seconds, which begins when the item expires; all of it as long as it
/// has not expired.
fn grace_left(item: &Item<'_>, grace_s: u32, now: Now) -> Option<u64> {
    let whole = (grace_s > 0).then_some(u64::from(grace_s))?;
    // What never expires can be invalidated softly.
    let until_end = now
        .left(item.expiry())
        .map(|_| u64::from(item.expiry().saturating_add(grace_s).saturating_sub(now.second)));
    Some(until_end.map_or(whole, |left| left.min(whole)))
}

pub(crate) fn name(standing: Standing) -> &'static str {
    match standing {
        Standing::Absent => "absent",
        Standing::Negative => "negative",
        Standing::Past => "past its grace",
        Standing::Stale => "stale",
        Standing::Fresh => "fresh",
        Standing::Early => "due for a refresh",
    }
}

/// How far each log has been obeyed.
fn logs(shared: &EngineShared, now: Now) -> Vec<WhyLog> {
    let ago = |at_ms: u64| now.ms.saturating_sub(at_ms);
    let log = |state: LogState| WhyLog {
        name: state.name.into_string(),
        lag_ms: state.confirmed_ms.map(ago),
        behind_ms: state.behind_since_ms.map(ago),
    };
    shared.log_states(now.ms).into_iter().map(log).collect()
}
