//! The end of a loader's job: its value is stored by the lease's token, or its waiters are told that there is
//! none.
//!
//! What a client does with `ms key <size> C<token>` and `md key C<token> Pe<text>` is done here without a
//! request, a session or a reply. The value is a fill: if the key was invalidated after the job began, it is
//! dropped. It is no `set`: it is not counted as one and sets off no cascade, since nothing has changed
//! behind the cache.

use std::sync::Arc;

use cattlegrid_herd::{Filler, Herd, JobFailure, LeaseKind, OnBusy, Waiter};
use cattlegrid_store::NEVER;
use cattlegrid_tags::{PrefixId, TagList};

use crate::delivered::Verdict;
use crate::engine::Engine;
use crate::engine::room::RoomSource;
use crate::event::{Event, EventKind};
use crate::load::{Load, LoadEnd, LoadFailure, LoadOutcome};
use crate::shard::Shard;
use crate::shard::put::{FillKind, FillWrite, Write, WriteData, WriteMode, WriteOutcome};
use crate::shard::ruled::count_old;
use crate::shard::standing::Standing;
use crate::shards::ShardLock;
use crate::slow::SlowKind;
use crate::step::{Interest, Step, Ticket};
use crate::time::PAST;

// As clients get them: percent-encoded.
const TOO_MANY_TAGS: &[u8] = b"the%20value%20has%20more%20tags%20than%20fit";
const TOO_LARGE: &[u8] = b"the%20value%20is%20larger%20than%20an%20item%20may%20be";
const IS_A_METHOD: &[u8] = b"the%20key%20names%20a%20method%20of%20an%20object";
const NO_ROOM: &[u8] = b"there%20is%20no%20memory%20for%20the%20value";

impl Engine {
    /// Takes the end of a job that [`crate::LoadOrder::Start`] has begun. The caller calls this once for
    /// each.
    pub fn finish_load(
        &self,
        load: &Load,
        end: &LoadEnd<'_>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> LoadOutcome {
        let landed = self.land(load, end, lock, step);
        self.finish_step(lock, step);
        let us = step.now.ms.saturating_sub(load.ordered_ms) * 1000;
        self.shared().slow().note(SlowKind::Load, us, step.now.ms, || load.rule.pattern.text().into());
        landed
    }

    fn land(
        &self,
        load: &Load,
        end: &LoadEnd<'_>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> LoadOutcome {
        let hash = self.hash_key(&load.key);
        let write = match *end {
            LoadEnd::Failed { text, cause } => {
                let shard = lock.shard(hash);
                if !shard.finish_job(load, hash, false, step) {
                    return LoadOutcome::Late;
                }
                return shard.load_failed(load, hash, cause, text, LoadOutcome::Failed, step);
            }
            LoadEnd::Value { data, flags, ttl_s, tags } => {
                let ttl_s = ttl_s.unwrap_or_else(|| load.rule.loading.as_ref().map_or(0, |l| l.ttl_s.into()));
                let Some(tags) = self.tag_list(self.shared().prefixes().split(&load.key).0, tags) else {
                    let shard = lock.shard(hash);
                    if !shard.finish_job(load, hash, true, step) {
                        return LoadOutcome::Late;
                    }
                    let text = TOO_MANY_TAGS;
                    let failed = LoadOutcome::TooManyTags;
                    return shard.load_failed(load, hash, LoadFailure::Error, text, failed, step);
                };
                Write { flags, tags, expiry: expiry(ttl_s, step), ..write(load, hash, data) }
            }
            LoadEnd::NotFound { ttl_s } => {
                let ttl_s = ttl_s.unwrap_or(load.rule.negative_ttl_s);
                // Without a time it is for the waiters, and not kept.
                let expiry = if ttl_s == 0 { PAST } else { expiry(ttl_s.into(), step) };
                Write { negative: true, expiry, ..write(load, hash, &[]) }
            }
        };
        self.land_value(load, write, lock, step)
    }

    fn land_value(
        &self,
        load: &Load,
        mut write: Write<'_>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> LoadOutcome {
        let hash = write.hash;
        let fits = self.shared().fits(&load.key, write.flags, write.data.len());
        let mut room = fits;
        if let WriteData::Inline(bytes) = write.data
            && fits
        {
            match self.data(bytes, lock) {
                Some(data) => write.data = data,
                None => room = false,
            }
        }
        let shard = lock.shard(hash);
        if !shard.finish_job(load, hash, true, step) {
            return LoadOutcome::Late;
        }
        let mut is_first = true;
        let landed = self.with_room(RoomSource::Others, hash, lock, |lock, _| {
            let shard = lock.shard(hash);
            // Its lease may have ended while room was made.
            if !std::mem::take(&mut is_first) && !shard.is_current(load, hash) {
                return Ok(Some(LoadOutcome::Late));
            }
            if shard.is_named(&load.key) {
                // The types of objects have changed since it began.
                let (cause, text) = (LoadFailure::Error, IS_A_METHOD);
                return Ok(Some(shard.load_failed(load, hash, cause, text, LoadOutcome::Failed, step)));
            }
            if room { shard.store_load(load, &write, step).map(Some) } else { Ok(None) }
        });
        landed.ok().flatten().unwrap_or_else(|| {
            let (text, failed) = if fits {
                step.counters.store_no_memory.add(1);
                (NO_ROOM, LoadOutcome::NoRoom)
            } else {
                step.counters.store_too_large.add(1);
                (TOO_LARGE, LoadOutcome::TooLarge)
            };
            let shard = lock.shard(hash);
            shard.load_failed(load, hash, LoadFailure::Error, text, failed, step)
        })
    }

    /// Tags that a loader names, behind a prefix; None: there are too many, or a name is empty or too long.
    fn tag_list(&self, prefix: PrefixId, names: &[&[u8]]) -> Option<TagList> {
        let hasher = self.shared().tag_hasher();
        let mut list = TagList::new();
        for name in names {
            let tag = hasher.hash(name).ok()?;
            list.insert(hasher.behind(prefix, tag)).ok()?;
        }
        Some(list)
    }
}

fn write<'a>(load: &'a Load, hash: u64, data: &'a [u8]) -> Write<'a> {
    Write {
        mode: WriteMode::Cas,
        compare: load.token,
        takes_token: true,
        ..Write::set(&load.key, hash, data)
    }
}

/// The second of the expiry.
fn expiry(ttl_s: i64, step: &Step<'_>) -> u32 {
    match ttl_s {
        0 => NEVER,
        ..0 => PAST,
        _ => step.now.second.saturating_add(u32::try_from(ttl_s).unwrap_or(u32::MAX)),
    }
}

impl Shard {
    /// The job has ended. False: its lease does not stand, and its result, if it is one (`late`), is dropped.
    fn finish_job(&mut self, load: &Load, hash: u64, late: bool, step: &mut Step<'_>) -> bool {
        self.advance(step);
        let stands = self.with_herd(step, |herd, step| herd.finish_job(hash, load.token, step));
        let stands = stands == Some(true);
        if late && !stands {
            self.count_late(load);
        }
        stands
    }

    fn is_current(&self, load: &Load, hash: u64) -> bool {
        let current = |herd: &Herd| herd.is_current(hash, load.token);
        let is_current = self.herd.as_deref().is_some_and(current);
        if !is_current {
            self.count_late(load);
        }
        is_current
    }

    fn count_late(&self, load: &Load) {
        let active = self.shared.rules();
        if let Some(state) = active.as_ref().and_then(|active| active.state_as(&load.rule)) {
            state.counters().loads_late.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Stores the value under the lease that stands. An error: the bytes for which the shard has no room.
    fn store_load(
        &mut self,
        load: &Load,
        write: &Write<'_>,
        step: &mut Step<'_>,
    ) -> Result<LoadOutcome, usize> {
        let hash = write.hash;
        let Some(ruled) = self.rule_of(&load.key) else {
            // Its rule is gone, and its lease goes next.
            self.with_herd(step, |herd, step| herd.abandon(hash, step));
            return Ok(LoadOutcome::Late);
        };
        let announced = self.announced.of(hash, step.now.ms).map(|(tags, _)| *tags).unwrap_or_default();
        let tags = write.tags.union(&announced).and_then(|tags| ruled.tags.union(&tags).map(|_| tags));
        let Ok(tags) = tags else {
            let text = TOO_MANY_TAGS;
            let failed = LoadOutcome::TooManyTags;
            return Ok(self.load_failed(load, hash, LoadFailure::Error, text, failed, step));
        };
        let write = &Write { tags, data: write.data.clone(), ..*write };
        let by = Filler { connection: None, token: Some(load.token), pooled: false };
        let found = self.lookup_found(hash, &load.key, step);
        let filling = FillWrite { fill: FillKind::ByToken(load.token), by, session: None, shown: found };
        let landed = match self.store_value(write, found, filling, &ruled, step) {
            WriteOutcome::Stored { .. } => LoadOutcome::Stored,
            WriteOutcome::NoRoom(bytes) => return Err(bytes),
            WriteOutcome::NotStored
            | WriteOutcome::Exists
            | WriteOutcome::NotFound
            | WriteOutcome::Refused(_) => {
                self.count_late(load);
                LoadOutcome::Late
            }
        };
        if step.interest.wants(Interest::MUTATIONS) {
            let status = if landed == LoadOutcome::Stored { "stored" } else { "not_stored" };
            let ttl = step.now.left(write.expiry).unwrap_or(0);
            let (command, size) = ("cas", write.data.len());
            let kind = EventKind::Store { status, command, ttl, size, classic: false };
            step.effects.events.push((Ticket::NONE, Event { key: load.key.clone(), kind }));
        }
        Ok(landed)
    }

    /// The job under the lease that stands has failed: its waiters get the old value, if there is one.
    fn load_failed(
        &mut self,
        load: &Load,
        hash: u64,
        cause: LoadFailure,
        text: &[u8],
        landed: LoadOutcome,
        step: &mut Step<'_>,
    ) -> LoadOutcome {
        let why = match cause {
            LoadFailure::Error => JobFailure::Error,
            LoadFailure::Lost => JobFailure::Lost,
            // A job that was taken back while its lease stands was queued in a pool that a reload has
            // replaced.
            LoadFailure::Cancelled => JobFailure::Withdrawn,
            LoadFailure::Refused => JobFailure::Refused,
        };
        let waiters = self.with_herd(step, |herd, step| herd.job_failed(hash, why, text, step));
        self.answer_failed(load, hash, waiters.unwrap_or_default(), step);
        landed
    }

    fn answer_failed(&mut self, load: &Load, hash: u64, waiters: Vec<Waiter>, step: &mut Step<'_>) {
        if waiters.is_empty() {
            return;
        }
        let active = self.shared.rules();
        let ruled = active.as_ref().and_then(|active| active.find(&load.key));
        let old = ruled.as_ref().and_then(|ruled| {
            let found = self.lookup_found(hash, &load.key, step)?;
            let standing = self.standing(found, hash, Some(ruled.state), step);
            let kind = match standing {
                Standing::Past => LeaseKind::Past,
                Standing::Stale => LeaseKind::Stale,
                Standing::Early | Standing::Fresh => LeaseKind::Early,
                Standing::Absent | Standing::Negative => return None,
            };
            for _ in &waiters {
                count_old(ruled.state, kind);
            }
            Some((found, kind))
        });
        let old = old.map(|(found, kind)| self.delivered(found, kind != LeaseKind::Early, step));
        for waiter in waiters {
            let verdict = match (&old, &ruled) {
                (Some(old), _) => Verdict::Value(Arc::clone(old)),
                (None, ruled) => {
                    let state = ruled.as_ref().map(|ruled| ruled.state);
                    let record = state
                        .and_then(|state| self.with_herd(step, |herd, step| herd.miss(hash, state, step)));
                    match state.map(|state| waiter.how.on_busy(state.policy())) {
                        Some(OnBusy::Error) => Verdict::Busy { record },
                        _ => Verdict::Miss { record, hint: None },
                    }
                }
            };
            step.effects.herd.wake(waiter, verdict);
        }
    }
}
