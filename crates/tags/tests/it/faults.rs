//! Faults of invalidation by counters that are kept in the cache itself, each as a test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cattlegrid_tags::{BumpKind, TagHash, TagHasher, Tags, Validity};

const KEY: u64 = 5;

fn tag(name: &str) -> TagHash {
    TagHasher::new(11).hash(name.as_bytes()).expect("names here are short")
}

#[derive(Default)]
struct Clock(AtomicU64);

impl Clock {
    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// With counters: a second process read the record of changes at the wrong size and saw no change.
#[test]
fn a_bump_is_seen_with_arrays_of_every_size_and_on_every_thread() {
    for bits in 0..21 {
        let (tags, clock) = (Tags::new(32 << bits), Clock::default());
        let item = clock.tick();
        for kind in [BumpKind::Soft, BumpKind::Hard] {
            thread::scope(|scope| {
                scope.spawn(|| tags.bumps().bump(tag("user:1"), kind, || clock.tick()));
            });
        }
        let seen = || tags.check(item, [tag("user:1").get()], KEY, 0);
        let all = thread::scope(|scope| [0; 3].map(|_| scope.spawn(seen)).map(|t| t.join().unwrap()));
        assert_eq!(all, [Validity::Dead; 3], "2^{bits} slots");
    }
}

/// With counters: a counter was evicted, began again, and old content came back.
#[test]
fn no_bump_is_forgotten_however_many_follow() {
    let (tags, clock) = (Tags::new(32 << 10), Clock::default());
    let item = clock.tick();
    tags.bumps().bump(tag("user:1"), BumpKind::Hard, || clock.tick());
    for other in 0..100_000 {
        tags.bumps().bump(tag(&format!("other:{other}")), BumpKind::Soft, || clock.tick());
        if other % 1_000 == 0 {
            assert_eq!(tags.check(item, [tag("user:1").get()], KEY, 0), Validity::Dead);
        }
    }
}

/// With counters: a bump had no effect during a flush.
#[test]
fn a_bump_during_a_rolling_flush_has_its_effect() {
    let (tags, clock) = (Tags::new(1 << 20), Clock::default());
    let check = |stamp, now_ms| tags.check(stamp, [tag("user:1").get()], KEY, now_ms);
    let old = clock.tick();
    tags.floors().start_rolling(0, 180_000, || clock.tick());
    let new = clock.tick();
    assert_eq!([check(old, 0), check(new, 0)], [Validity::Valid; 2]);
    tags.bumps().bump(tag("user:1"), BumpKind::Hard, || clock.tick());
    assert_eq!([check(old, 0), check(new, 0)], [Validity::Dead; 2], "old and new items alike");
    assert_eq!(check(clock.tick(), 0), Validity::Valid);
    assert_eq!(tags.check(old, [tag("user:2").get()], KEY, 0), Validity::Valid);
    tags.floors().sweep(180_000);
    assert_eq!([check(old, 180_000), check(new, 180_000)], [Validity::Dead; 2], "and when it has ended");
}

/// With counters: a value computed before a bump and stored after it was served as fresh.
#[test]
fn a_value_computed_before_a_bump_and_stored_after_it_is_not_fresh() {
    for (kind, expected) in [(BumpKind::Hard, Validity::Dead), (BumpKind::Soft, Validity::Stale)] {
        let (tags, clock) = (Tags::new(1 << 20), Clock::default());
        clock.tick();
        let miss = clock.now();
        tags.bumps().bump(tag("user:1"), kind, || clock.tick());
        // The fill arrives and takes a number of its own as its CAS; it counts as of its miss.
        clock.tick();
        assert_eq!(tags.check(miss, [tag("user:1").get()], KEY, 0), expected);
        let later_miss = clock.now();
        assert_eq!(tags.check(later_miss, [tag("user:1").get()], KEY, 0), Validity::Valid);
    }
}
