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
        all.tags.bump_carried(&[tag("a"), tag("c")], stamp, (carried(), FloorClass::default()), || all.tick())
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
    let time_of =
        |number: u64| times.borrow().iter().rev().find(|(n, _)| *n <= number).map_or(0, |t: &(u64, u64)| t.1);
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
    let since =
        |now| all.tags.stale_since_ms(item, (tags, FloorClass::default()), KEY, now, |number| number * 10);
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
