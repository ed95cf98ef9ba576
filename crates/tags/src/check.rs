//! The check whether an item may be served: its stamp is compared with bumps and floors.
//!
//! Checks of tags and of floors each give a [`Validity`]; the greater one holds. [`Tags`] joins the arrays of
//! bumps, the floors, the superseded soft bumps and the gradual purges.
//!
//! # Invariant
//! A check that begins after a bump or a flush has returned obeys it.

use std::sync::OnceLock;

use crate::bumps::{BumpKind, BumpPlace, BumpStats, Bumps, CLASSES, FloorClass};
use crate::gradual::{Purge, PurgeOutcome, PurgeStats, Purges};
use crate::occupancy::ROWS;
use crate::presence::Presence;
use crate::rises::Rises;
use crate::rolling::{Floors, ROLLING_MAX, RollingFloor, Snapshot};
use crate::superseded::SupersededBumps;
use crate::sync::{Mutex, lock};
use crate::tag::{TagHash, TagList};

/// Whether an item was invalidated. Its expiry is not considered. Ordered: of two answers the greater
/// holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Validity {
    /// Nothing has invalidated it.
    Valid,
    /// Softly invalidated: as after its expiry. Within its grace one client recomputes it and the others get
    /// the old value; without grace it is a miss.
    Stale,
    /// A miss. No client may get the value.
    Dead,
}

/// All invalidations: bumps of tags, and floors.
///
/// Used by all threads at once. Numbers come from the caller's clock, times are milliseconds of a clock that
/// does not go back.
#[derive(Debug)]
pub struct Tags {
    bumps: Bumps,
    floors: Floors,
    superseded: Mutex<SupersededBumps>,
    purges: Purges,
    /// When the soft floor of all tags rose, for each class.
    rises: Mutex<[Rises; CLASSES]>,
    /// Which tags items and misses may have, if bumps of others are left out.
    pub(crate) presence: OnceLock<Presence>,
}

/// Share of false stale answers per tag above which `tag_memory` should be larger.
pub const CROWDED: f64 = 0.05;

impl Tags {
    /// Nothing is invalid. `memory_bytes`: see [`Bumps::new`].
    pub fn new(memory_bytes: usize) -> Self {
        Self {
            bumps: Bumps::new(memory_bytes),
            floors: Floors::new(),
            superseded: Mutex::new(SupersededBumps::default()),
            purges: Purges::new(),
            rises: Mutex::new(std::array::from_fn(|_| Rises::default())),
            presence: OnceLock::new(),
        }
    }

    /// Bumps a tag softly: items that carry it are stale from now on, and dead `grace_ms` later, however
    /// often the tag is bumped in that time. Returns the bump's number, which `take_number` gives (see
    /// [`Bumps::bump`]).
    ///
    /// `grace_ms`: the longest grace of any item; 0: stale items are not served, and there is no grace to
    /// end. `time_of`: when a number was given out, in milliseconds, or earlier. The caller must call
    /// [`Tags::sweep`] about once a second.
    pub fn bump_softly(
        &self,
        tag: TagHash,
        now_ms: u64,
        grace_ms: u64,
        time_of: impl Fn(u64) -> u64,
        take_number: impl FnOnce() -> u64,
    ) -> u64 {
        let (number, replaced) = self.bumps.replace(tag, BumpKind::Soft, take_number);
        self.supersede(replaced, now_ms, grace_ms, time_of);
        number
    }

    /// A tag was bumped with this number before, which was left out, and is recorded now. The arguments are
    /// those of [`Tags::bump_softly`].
    pub(crate) fn raise_late(
        &self,
        tag: TagHash,
        kind: BumpKind,
        number: u64,
        now_ms: u64,
        grace_ms: u64,
        time_of: impl Fn(u64) -> u64,
    ) {
        let replaced = self.bumps.raise_late(tag, kind, number);
        if kind == BumpKind::Soft {
            self.supersede(replaced, now_ms, grace_ms, time_of);
        }
    }

    /// Soft bumps have raised slots: what was in them goes on ending the grace of its items.
    fn supersede(
        &self,
        replaced: [(BumpPlace, u64); ROWS],
        now_ms: u64,
        grace_ms: u64,
        time_of: impl Fn(u64) -> u64,
    ) {
        if grace_ms > 0 && replaced.iter().any(|(_, before)| *before > 0) {
            let mut superseded = lock(&self.superseded);
            for (place, before) in replaced.into_iter().filter(|(_, before)| *before > 0) {
                let due_ms = time_of(before).saturating_add(grace_ms);
                superseded.add(place, before, due_ms, &self.bumps);
            }
            superseded.sweep(now_ms, &self.bumps);
        }
    }

    /// Purges a tag gradually: items that carry it become stale one after the other, each at its own moment
    /// within `period_ms` ([`Purge::moment_ms`]), and are dead `grace_ms` after the end of the period. Their
    /// grace counts from their own moments.
    ///
    /// When [`GRADUAL_MAX`] are running, it is an ordinary soft bump. The arguments are those of
    /// [`Tags::bump_softly`], and the caller must call [`Tags::sweep`] about once a second.
    ///
    /// [`GRADUAL_MAX`]: crate::GRADUAL_MAX
    pub fn purge(
        &self,
        tag: TagHash,
        (now_ms, period_ms): (u64, u64),
        grace_ms: u64,
        time_of: impl Fn(u64) -> u64,
        take_number: impl FnOnce() -> u64,
    ) -> PurgeOutcome {
        let purge = Purge { tag, number: 0, start_ms: now_ms, period_ms };
        match self.purges.start(purge, grace_ms, &self.bumps, take_number) {
            Ok(number) => PurgeOutcome::Gradually(number),
            Err(take_number) => {
                PurgeOutcome::AtOnce(self.bump_softly(tag, now_ms, grace_ms, time_of, take_number))
            }
        }
    }

    /// Bumps tags hard on behalf of a change of an item that carries some of them, so that the change does
    /// not invalidate the item itself. Returns the item's new stamp; `None` if an earlier bump, purge or
    /// floor invalidates it, so that no later stamp is right.
    ///
    /// `bumped`: at least one tag, each once. `stamp`, `carried` and `class`: the item's. `take_number`: see
    /// [`Bumps::bump`], called once for each tag.
    pub fn bump_carried(
        &self,
        bumped: &[TagHash],
        stamp: u64,
        (carried, class): (impl IntoIterator<Item = u64>, FloorClass),
        take_number: impl FnMut() -> u64,
    ) -> Option<u64> {
        let carried = TagList::of_item(carried);
        let all = carried.hashes().iter().copied();
        let number = self.bumps.bump_carried(bumped, stamp, (all, class), take_number)?;
        self.is_above_all(stamp, &carried).then_some(number)
    }

    /// A later stamp for an original that is valid, on behalf of a change that gives it tags: bumps of these
    /// from before do not concern it. `None` if a bump or a floor invalidates it now, or a rolling floor or a
    /// gradual purge may do so later; its stamp must stay.
    ///
    /// `stamp` and `carried`: the original's. `take_number`: see [`Bumps::bump`].
    pub fn restamp(
        &self,
        stamp: u64,
        carried: impl IntoIterator<Item = u64>,
        take_number: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let carried = TagList::of_item(carried);
        let number = self.bumps.restamp(stamp, carried.hashes().iter().copied(), take_number)?;
        self.is_above_all(stamp, &carried).then_some(number)
    }

    /// Whether no floor and no purge of these tags concerns the stamp, now or later. A floor or purge that
    /// took its number before is seen.
    fn is_above_all(&self, stamp: u64, tags: &TagList) -> bool {
        stamp >= self.floors.highest_raised() && stamp >= self.purges.last_begun(tags.hashes())
    }

    /// Ends rolling floors whose period is over, and the grace of items that soft bumps or gradual purges
    /// made stale.
    pub fn sweep(&self, now_ms: u64) {
        self.floors.sweep(now_ms);
        self.purges.sweep(now_ms, &self.bumps);
        lock(&self.superseded).sweep(now_ms, &self.bumps);
    }

    /// When an item of this class with this stamp and these tags became stale, in milliseconds, or earlier;
    /// `None`: it is not stale. The first of: the first soft bumps of its tags above the stamp, its fall
    /// below the floor of all tags, and its moments of rolling floors and gradual purges.
    pub fn stale_since_ms(
        &self,
        stamp: u64,
        (tags, class): (impl IntoIterator<Item = u64>, FloorClass),
        key_hash: u64,
        now_ms: u64,
        time_of: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let superseded = lock(&self.superseded);
        let fell = lock(&self.rises)[class.index()].since_ms(stamp, &time_of);
        let bumped = tags.into_iter().flat_map(|tag| {
            let first = self.first_soft(TagHash::from_stored(tag), stamp, &superseded);
            let purged = self.purges.first_moment_ms(tag, stamp, key_hash, now_ms, true);
            [Some(first).filter(|number| *number > stamp).map(&time_of), Some(purged), fell]
        });
        let bumped = bumped.flatten().filter(|ms| *ms != u64::MAX);
        let floors = self.floors.rolling().filter(|floor| floor.number > stamp);
        let moments = floors.map(|floor| floor.start_ms + floor.phase_ms(key_hash));
        bumped.chain(moments.filter(|ms| *ms < now_ms)).min()
    }

    /// When a rolling floor or a gradual purge will make an item with this stamp and these tags stale, in
    /// milliseconds; `None`: none will. What makes it stale now does not count.
    pub fn next_moment_ms(&self, stamp: u64, tags: &[u64], key_hash: u64, now_ms: u64) -> Option<u64> {
        let purged = tags.iter().map(|tag| self.purges.first_moment_ms(*tag, stamp, key_hash, now_ms, false));
        let first = purged.min().unwrap_or(u64::MAX);
        if stamp >= self.floors.highest() {
            return Some(first).filter(|ms| *ms != u64::MAX);
        }
        let floors = self.floors.rolling().filter(|floor| floor.number > stamp);
        let moments = floors.map(|floor| floor.moment_ms(key_hash)).filter(|ms| *ms > now_ms);
        moments.chain([first]).min().filter(|ms| *ms != u64::MAX)
    }

    /// The highest number of a gradual purge of these tags whose moment has come for a key; 0: none.
    pub fn last_purge_due(&self, tags: &[u64], key_hash: u64, now_ms: u64) -> u64 {
        tags.iter().map(|tag| self.purges.last_due(*tag, key_hash, now_ms)).max().unwrap_or(0)
    }

    /// The highest number of a gradual purge of these tags; 0: none.
    pub fn last_purge(&self, tags: &[u64]) -> u64 {
        tags.iter().map(|tag| self.purges.last(*tag)).max().unwrap_or(0)
    }

    /// Number of the tag's last bump of any kind, those that were left out included, or of its last gradual
    /// purge; 0: none. Without floors of all tags.
    pub fn last(&self, tag: TagHash) -> u64 {
        // A purge that retires in between is found in the slots.
        let purge = self.purges.last(tag.get());
        let left_out = self.presence.get().map_or([0; 2], |presence| presence.left_out(tag));
        let bumps = [BumpKind::Hard, BumpKind::Soft].map(|kind| self.bumps.last_own(tag, kind));
        left_out.into_iter().chain(bumps).fold(purge, u64::max)
    }

    /// The tag's gradual purges, oldest first, until their items' grace is over.
    pub fn purges_of(&self, tag: TagHash) -> Vec<Purge> {
        self.purges.of(tag)
    }

    /// Gradual purges whose period is not over.
    pub fn purges_running(&self, now_ms: u64) -> usize {
        self.purges.running(now_ms)
    }

    /// Invalidates all items that carry a tag and have a stamp below the number taken: those of each class
    /// hard or softly, as `kinds` says. Returns that number.
    ///
    /// The caller must call [`Tags::sweep`] about once a second.
    pub fn flush_tagged(
        &self,
        kinds: [BumpKind; CLASSES],
        now_ms: u64,
        take_number: impl FnOnce() -> u64,
    ) -> u64 {
        let mut rises = lock(&self.rises);
        let number = self.bumps.mark(take_number);
        for (class, kind) in FloorClass::ALL.into_iter().zip(kinds) {
            self.bumps.raise_floor(class, kind, number);
            if kind == BumpKind::Soft {
                self.note_rise(&mut rises, class, number, now_ms, 0);
            }
        }
        number
    }

    /// Invalidates all items of a class that carry a tag and have a stamp below `number`: what was given out
    /// `age_ms` ago, while this is called again and again with the number that is that old then. Returns
    /// whether it is a new number.
    ///
    /// Softly, an item's grace counts from the moment at which it reached that age, or from the first of
    /// these calls. The caller must call [`Tags::sweep`] about once a second.
    pub fn age_tagged(
        &self,
        class: FloorClass,
        kind: BumpKind,
        number: u64,
        now_ms: u64,
        age_ms: u64,
    ) -> bool {
        let mut rises = lock(&self.rises);
        let is_new = self.bumps.raise_floor(class, kind, number);
        if is_new && kind == BumpKind::Soft {
            self.note_rise(&mut rises, class, number, now_ms, age_ms);
        }
        is_new
    }

    /// The soft floor of a class has risen. Items whose rise is forgotten are dead.
    fn note_rise(
        &self,
        rises: &mut [Rises; CLASSES],
        class: FloorClass,
        number: u64,
        now_ms: u64,
        age_ms: u64,
    ) {
        if let Some(number) = rises[class.index()].add(number, now_ms, age_ms) {
            self.bumps.raise_floor(class, BumpKind::Hard, number);
        }
    }

    /// Invalidation by tag.
    pub fn bumps(&self) -> &Bumps {
        &self.bumps
    }

    /// Invalidation of everything.
    pub fn floors(&self) -> &Floors {
        &self.floors
    }

    /// The tag's first soft bump above `stamp`, or an earlier number; not above `stamp`: there was none.
    ///
    /// A bump of the tag was in both of its slots: it is not before the first number above the stamp of
    /// either.
    fn first_soft(&self, tag: TagHash, stamp: u64, superseded: &SupersededBumps) -> u64 {
        let last = self.bumps.last_own(tag, BumpKind::Soft);
        if last <= stamp || superseded.is_empty() {
            return last;
        }
        let firsts = self.bumps.places_of(tag).map(|place| superseded.first_above(place, stamp));
        firsts.map(|first| first.unwrap_or(last).min(last)).into_iter().max().unwrap_or(last)
    }

    /// Whether nothing was bumped or flushed since `stamp`: an item is valid then, whatever its tags.
    #[inline]
    pub fn is_current(&self, stamp: u64) -> bool {
        stamp >= self.floors.highest() && stamp >= self.bumps.last_bump()
    }

    /// Checks an item that counts as of `stamp` and carries `tags`, hashes as [`TagHash::get`] returned
    /// them.
    ///
    /// In this order: the hard floor; rolling floors; without tags, or with a stamp not below the last bump
    /// of any tag, no more; the tags' gradual purges; their own last bumps, hard and soft; the floors of all
    /// tags. The greatest answer holds: a hard bump of one tag is never softened by a soft bump of another
    /// tag, or by a later soft bump of the same tag.
    ///
    /// For a fill or a lease: `stamp` is the number of its miss, or the token. A dead value must not be
    /// stored or kept; a stale value may be stored with that stamp and is stale at once.
    ///
    /// The item is of the first class; see [`Tags::check_of`].
    #[inline]
    pub fn check(
        &self,
        stamp: u64,
        tags: impl IntoIterator<Item = u64>,
        key_hash: u64,
        now_ms: u64,
    ) -> Validity {
        self.check_of(stamp, tags, key_hash, now_ms, FloorClass::default)
    }

    /// Checks an item of a class; `class` is called only if a floor of all tags of some class is above the
    /// stamp.
    #[inline]
    pub fn check_of(
        &self,
        stamp: u64,
        tags: impl IntoIterator<Item = u64>,
        key_hash: u64,
        now_ms: u64,
        class: impl FnOnce() -> FloorClass,
    ) -> Validity {
        self.check_with(stamp, tags, key_hash, now_ms, Some(class))
    }

    /// Checks an original, an item that is not a copy of anything: the floors of all tags do not concern it.
    #[inline]
    pub fn check_original(
        &self,
        stamp: u64,
        tags: impl IntoIterator<Item = u64>,
        key_hash: u64,
        now_ms: u64,
    ) -> Validity {
        self.check_with(stamp, tags, key_hash, now_ms, None::<fn() -> FloorClass>)
    }

    #[inline]
    fn check_with(
        &self,
        stamp: u64,
        tags: impl IntoIterator<Item = u64>,
        key_hash: u64,
        now_ms: u64,
        class: Option<impl FnOnce() -> FloorClass>,
    ) -> Validity {
        let floors = self.floors.check(stamp, key_hash, now_ms);
        if floors == Validity::Dead {
            return Validity::Dead;
        }
        let last_bump = self.bumps.last_bump();
        if stamp >= last_bump {
            return floors;
        }
        let (mut hard, mut soft, mut tagged) = (false, floors == Validity::Stale, false);
        let purges = !self.purges.is_empty();
        for tag in tags {
            // Before the slots: a purge that retires in between is found there.
            soft |= purges && self.purges.last_due(tag, key_hash, now_ms) > stamp;
            let above = self.bumps.are_above(stamp, TagHash::from_stored(tag));
            // No early exit from the loop, so that the cache misses of several tags overlap.
            hard |= above.0;
            soft |= above.1;
            tagged = true;
        }
        if let Some(class) = class.filter(|_| tagged) {
            let below = self.bumps.are_floors_above(stamp, class);
            hard |= below.0;
            soft |= below.1;
        }
        // Other keys with each bump, since `last_bump` changes.
        let random = (key_hash ^ last_bump.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 32;
        if tagged && self.bumps.is_sampled(random) {
            self.bumps.sample(stamp);
        }
        match (hard, soft) {
            (true, _) => Validity::Dead,
            (false, true) => Validity::Stale,
            (false, false) => Validity::Valid,
        }
    }

    /// For `stats tags`. Waits for a bump that is in progress.
    pub fn stats(&self) -> TagStats {
        let BumpStats { bumps, used, false_stale, self_bumped } = self.bumps.stats();
        let Snapshot { hard, rolling } = self.floors.snapshot();
        let PurgeStats { begun, at_once } = self.purges.stats();
        TagStats {
            hard_bumps: bumps[0],
            soft_bumps: bumps[1],
            self_bumped,
            left_out: self.presence.get().map_or(0, Presence::count),
            noted_share: self.noted_share(),
            gradual_purges: begun,
            gradual_at_once: at_once,
            last_bump: self.bumps.last_bump(),
            memory_bytes: self.bumps.memory_bytes() + self.presence.get().map_or(0, Presence::exact_bytes),
            slots_per_row: self.bumps.slots_per_row(),
            hard_slots_used: used[0],
            soft_slots_used: used[1],
            false_stale,
            hard_floor: hard,
            rolling,
            pending_flush_ms: self.floors.pending_flush_ms(),
        }
    }
}

/// Figures about [`Tags`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TagStats {
    /// Hard bumps since the start.
    pub hard_bumps: u64,
    /// Soft bumps since the start.
    pub soft_bumps: u64,
    /// Changes of an item that bumped a tag of the item itself.
    pub self_bumped: u64,
    /// Bumps that were left out, since no item and no miss had the tag.
    pub left_out: u64,
    /// See [`Tags::noted_share`].
    pub noted_share: Option<f64>,
    /// Gradual purges that were begun.
    pub gradual_purges: u64,
    /// Gradual purges that took effect at once, as soft bumps, since too many were running.
    pub gradual_at_once: u64,
    /// The highest number of any bump or gradual purge, 0 before the first.
    pub last_bump: u64,
    /// Bytes of the arrays.
    pub memory_bytes: usize,
    /// Slots of each row, per kind.
    pub slots_per_row: usize,
    /// Slots that hard bumps have used, in the fuller row.
    pub hard_slots_used: u64,
    /// Slots that soft bumps have used, in the fuller row.
    pub soft_slots_used: u64,
    /// Share of tags, 0.0..=1.0, that look bumped although they were not: the running mean over a sample of
    /// the items looked up that carry tags and are older than the last bump. `None` before 64 samples, which
    /// are one in 16 of such look-ups, later one in 4,096: fewer are not reliable.
    pub false_stale: Option<f64>,
    /// Items with a stamp below this are dead.
    pub hard_floor: u64,
    /// The rolling floors that run, oldest first.
    pub rolling: [Option<RollingFloor>; ROLLING_MAX],
    /// When the pending flush is due.
    pub pending_flush_ms: Option<u64>,
}

impl TagStats {
    /// Whether [`TagStats::false_stale`] is above [`CROWDED`]: worth a warning.
    pub fn is_crowded(&self) -> bool {
        self.false_stale.is_some_and(|share| share > CROWDED)
    }
}

#[cfg(test)]
mod tests;
