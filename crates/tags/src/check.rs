//! The check whether an item may be served: its stamp is compared with bumps and floors.
//!
//! [`Tags`] joins the arrays of bumps, the floors, the superseded soft bumps and the gradual purges.
//!
//! # Invariant
//! A check that begins after a bump or a flush has returned obeys it.

use std::sync::OnceLock;

use crate::bumps::{BumpKind, BumpPlace, BumpStats, Bumps};
use crate::class::{CLASSES, FloorClass};
use crate::gradual::{Purge, PurgeOutcome, PurgeStats, Purges};
use crate::occupancy::ROWS;
use crate::presence::Presence;
use crate::rises::Rises;
use crate::rolling::{Floors, ROLLING_MAX, RollingFloor, Snapshot};
use crate::superseded::SupersededBumps;
use crate::sync::{Mutex, lock};
use crate::tag::{TagHash, TagList};
use crate::validity::Validity;

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
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::bumps::BumpKind::{self, Hard, Soft};
    use crate::bumps::SAMPLES_MIN;
    use crate::tag::TagHasher;
    use Validity::{Dead, Stale, Valid};

    const KEY: u64 = 77;

    struct Fixture {
        tags: Tags,
        clock: Cell<u64>,
        hasher: TagHasher,
    }

    impl Fixture {
        fn new() -> Self {
            Self { tags: Tags::new(1 << 20), clock: Cell::new(0), hasher: TagHasher::new(3) }
        }

        fn tick(&self) -> u64 {
            self.clock.set(self.clock.get() + 1);
            self.clock.get()
        }

        fn bump(&self, tag: &str, kind: BumpKind) -> u64 {
            self.tags.bumps().bump(self.hasher.hash(tag.as_bytes()).unwrap(), kind, || self.tick())
        }

        /// The answer for an item with this stamp and these tags, at time 0.
        fn check(&self, stamp: u64, list: &str) -> Validity {
            let list = self.hasher.parse_list(list.as_bytes()).unwrap();
            self.tags.check(stamp, list.hashes().iter().copied(), KEY, 0)
        }
    }

    #[test]
    fn an_item_is_valid_until_one_of_its_tags_is_bumped() {
        let all = Fixture::new();
        let item = all.tick();
        assert_eq!(all.check(item, "a,b"), Valid);
        all.bump("c", Hard);
        assert_eq!(all.check(item, "a,b"), Valid);
        all.bump("b", Hard);
        assert_eq!((all.check(item, "a,b"), all.check(item, "a")), (Dead, Valid));
        assert_eq!(all.check(all.tick(), "a,b"), Valid);
    }

    #[test]
    fn a_later_stamp_obeys_what_comes_after_it() {
        let all = Fixture::new();
        let carried = || [all.hasher.hash(b"a").unwrap().get()];
        let restamp = |stamp| all.tags.restamp(stamp, carried(), || all.tick());
        let item = all.tick();
        all.bump("b", Hard);
        assert_eq!(all.check(item, "a,b"), Dead, "it gets the tag `b` now, which was bumped before");
        let later = restamp(item).unwrap();
        assert_eq!(all.check(later, "a,b"), Valid);
        all.bump("b", Soft);
        assert_eq!(all.check(later, "a,b"), Stale);
        // What it had was bumped: no later stamp is right.
        all.bump("a", Soft);
        assert_eq!(restamp(later), None);
        assert_eq!(restamp(all.tick()), Some(all.clock.get()));
        let flushed = all.tick();
        all.tags.floors().flush(0, 0, || all.tick());
        assert_eq!(restamp(flushed), None);
        assert!(restamp(all.tick()).is_some());
    }

    #[test]
    fn a_change_that_bumps_its_own_tag_leaves_its_item_valid() {
        let all = Fixture::new();
        let tag = |name: &str| all.hasher.hash(name.as_bytes()).unwrap();
        let carried = || [tag("a").get(), tag("b").get()];
        let bump = |stamp| {
            all.tags
                .bump_carried(&[tag("a"), tag("c")], stamp, (carried(), FloorClass::default()), || all.tick())
        };
        let item = all.tick();
        let stamp = bump(item).unwrap();
        assert_eq!((all.check(item, "a,b"), all.check(stamp, "a,b")), (Dead, Valid));
        assert_eq!((all.check(item, "c"), all.check(stamp, "c")), (Dead, Valid));
        // Items that were invalidated before stay so: by a bump of either kind, by a floor.
        all.bump("b", Soft);
        assert_eq!(bump(stamp), None);
        let item = all.tick();
        all.bump("a", Hard);
        assert_eq!(bump(item), None);
        let item = all.tick();
        all.tags.floors().start_rolling(0, 1_000, || all.tick());
        assert_eq!((all.check(item, "a"), bump(item)), (Valid, None));
        assert_eq!(all.tags.stats().self_bumped, 4);
    }

    #[test]
    fn an_item_that_counts_as_of_the_bump_itself_is_valid() {
        let all = Fixture::new();
        let number = all.bump("a", Hard);
        // A miss that noted the number of the last bump came after it.
        assert_eq!((all.check(number, "a"), all.check(number - 1, "a")), (Valid, Dead));
    }

    #[test]
    fn soft_bumps_make_stale_and_never_soften_hard_ones() {
        let all = Fixture::new();
        let item = all.tick();
        all.bump("a", Soft);
        assert_eq!(all.check(item, "a,b"), Stale);
        all.bump("a", Hard);
        assert_eq!(all.check(item, "a,b"), Dead);
        let later = all.tick();
        all.bump("a", Soft);
        assert_eq!((all.check(item, "a,b"), all.check(later, "a,b")), (Dead, Stale));
        all.bump("b", Hard);
        assert_eq!(all.check(later, "a,b"), Dead, "another tag's hard bump, behind a soft one");
    }

    #[test]
    fn untagged_items_obey_floors_alone() {
        let all = Fixture::new();
        let item = all.tick();
        all.bump("a", Hard);
        assert_eq!(all.tags.check(item, [], KEY, 0), Valid);
        all.tags.floors().flush(0, 0, || all.tick());
        assert_eq!(all.tags.check(item, [], KEY, 0), Dead);
    }

    #[test]
    fn a_hard_bump_is_hard_also_where_a_rolling_flush_has_been() {
        let all = Fixture::new();
        let (item, tag) = (all.tick(), all.hasher.hash(b"a").unwrap());
        all.tags.floors().start_rolling(0, 1_000, || all.tick());
        let at_end = || all.tags.check(item, [tag.get()], KEY, 999);
        assert_eq!(at_end(), Stale);
        all.bump("a", Soft);
        assert_eq!(at_end(), Stale);
        all.bump("a", Hard);
        assert_eq!(at_end(), Dead);
    }

    /// Bumps softly every `every_ms` for `ms`, settling once a second; when an item of the tag that was
    /// stored before the first bump died.
    fn dies_at(all: &Fixture, every_ms: u64, ms: u64, grace_ms: u64) -> Option<u64> {
        let (item, tag) = (all.tick(), all.hasher.hash(b"a").unwrap());
        let times = std::cell::RefCell::new(Vec::new());
        let time_of = |number: u64| {
            times.borrow().iter().rev().find(|(n, _)| *n <= number).map_or(0, |t: &(u64, u64)| t.1)
        };
        let mut died = None;
        for now in (0..ms).step_by(100) {
            if now % every_ms == 0 {
                let number = all.tags.bump_softly(tag, now, grace_ms, time_of, || all.tick());
                times.borrow_mut().push((number, now));
            }
            if now % 1000 == 0 {
                all.tags.sweep(now);
            }
            if died.is_none() && all.tags.check(item, [tag.get()], KEY, now) == Dead {
                died = Some(now);
            }
        }
        died
    }

    #[test]
    fn soft_bumps_again_and_again_do_not_prolong_the_grace() {
        assert_eq!(dies_at(&Fixture::new(), 700, 60_000, 5_000), Some(5_000));
        assert_eq!(dies_at(&Fixture::new(), 7_000, 60_000, 5_000), Some(7_000), "with the second bump");
        assert_eq!(dies_at(&Fixture::new(), 700, 60_000, 0), None, "stale items are not served");
    }

    #[test]
    fn superseded_bumps_that_find_no_room_are_hard_at_once() {
        const MANY: usize = 4 * crate::superseded::SUPERSEDED_MAX;
        let all = Fixture::new();
        let item = all.tick();
        let tag = |n: usize| all.hasher.hash(format!("t{n}").as_bytes()).unwrap();
        let bump = |n| all.tags.bump_softly(tag(n), 0, 1_000_000, |_| 0, || all.tick());
        for _ in 0..2 {
            (0..MANY).for_each(|n| assert!(bump(n) > 0));
        }
        let dead = (0..MANY).filter(|n| all.tags.check(item, [tag(*n).get()], KEY, 1) == Dead).count();
        assert!((MANY / 4..MANY).contains(&dead), "{dead}");
        all.tags.sweep(1_000_000);
        assert_eq!(all.tags.check(item, [tag(0).get()], KEY, 1), Dead);
    }

    #[test]
    fn a_stale_item_tells_since_when() {
        let all = Fixture::new();
        let item = all.tick();
        let tags = [b"a", b"b"].map(|name| all.hasher.hash(name).unwrap().get());
        let since = |now| {
            all.tags.stale_since_ms(item, (tags, FloorClass::default()), KEY, now, |number| number * 10)
        };
        assert_eq!(since(0), None);
        let bump = |name: &str| {
            let tag = all.hasher.hash(name.as_bytes()).unwrap();
            all.tags.bump_softly(tag, 0, 1_000, |number| number * 10, || all.tick())
        };
        let number = bump("b");
        assert_eq!(since(500), Some(number * 10));
        bump("a");
        bump("b");
        assert_eq!(since(500), Some(number * 10), "the first of them");
        let between = all.tick();
        let last = bump("b");
        let since_between =
            all.tags.stale_since_ms(between, (tags, FloorClass::default()), KEY, 500, |number| number * 10);
        assert_eq!(since_between, Some(last * 10));
        let start = 100;
        all.tags.floors().start_rolling(start, 1_000, || all.tick());
        let moment = start + all.tags.floors().rolling().next().unwrap().phase_ms(KEY);
        let only_floor = |now| all.tags.stale_since_ms(item, ([], FloorClass::default()), KEY, now, |_| 0);
        assert_eq!((only_floor(moment), only_floor(moment + 1)), (None, Some(moment)));
    }

    #[test]
    fn statistics_say_what_was_done() {
        let all = Fixture::new();
        all.bump("a", Hard);
        all.bump("b", Hard);
        all.bump("a", Hard);
        let soft = all.bump("a", Soft);
        let number = all.tags.floors().start_rolling(5, 60_000, || all.tick());
        all.tags.floors().flush(9_000, 6, || all.tick());
        let stats = all.tags.stats();
        assert_eq!((stats.hard_bumps, stats.soft_bumps, stats.last_bump), (3, 1, soft));
        assert_eq!((stats.hard_slots_used, stats.soft_slots_used), (2, 1));
        assert_eq!((stats.memory_bytes, stats.slots_per_row), (1 << 20, 1 << 15));
        let rolling = RollingFloor { number, start_ms: 5, period_ms: 60_000 };
        assert_eq!((stats.hard_floor, stats.rolling), (0, [Some(rolling), None, None, None]));
        assert_eq!((stats.pending_flush_ms, stats.is_crowded()), (Some(9_000), false));
    }

    #[test]
    fn crowded_arrays_say_so() {
        let all = Fixture { tags: Tags::new(32 << 6), ..Fixture::new() };
        let item = all.tick();
        for number in 0..200 {
            all.bump(&format!("other:{number}"), Soft);
            for key in 0..2048 {
                // Which tag does not matter: keys are sampled.
                all.tags.check(item, [number], key << 32, 0);
            }
        }
        assert!(all.tags.stats().is_crowded(), "{:?}", all.tags.stats());
    }

    /// Look-ups of old items until the arrays say that they are crowded.
    fn looks_until_crowded(all: &Fixture, item: u64) -> u64 {
        let look = |n: u64| {
            let (key, tag) =
                (all.hasher.hash(&n.to_le_bytes()).unwrap(), all.hasher.hash(b"an old tag").unwrap());
            all.tags.check(item, [tag.get()], key.get(), 0);
            all.tags.stats().is_crowded()
        };
        (1..100_000).find(|n| look(*n)).expect("they are crowded")
    }

    #[test]
    fn crowded_arrays_say_so_within_some_thousand_looks() {
        let all = Fixture { tags: Tags::new(2 << 20), ..Fixture::new() };
        let item = all.tick();
        (0..100_000).for_each(|n| assert!(all.bump(&n.to_string(), Hard) > 0));
        let looks = looks_until_crowded(&all, item);
        assert!((SAMPLES_MIN..3_000).contains(&looks), "{looks}");
    }

    #[test]
    fn arrays_that_become_crowded_say_so_as_soon() {
        let all = Fixture { tags: Tags::new(2 << 20), ..Fixture::new() };
        let item = all.tick();
        // The first samples are of empty arrays.
        for n in 0..100_000_u64 {
            all.bump(&n.to_string(), Hard);
            if n < 4_000 {
                all.tags.check(item, [n], all.hasher.hash(&n.to_le_bytes()).unwrap().get(), 0);
            }
        }
        assert!(all.tags.stats().false_stale.is_some_and(|share| share < 0.01));
        let looks = looks_until_crowded(&all, item);
        assert!(looks < 3_000, "{looks}");
    }
}
