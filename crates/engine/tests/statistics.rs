//! Figures: exact at once where commands change them, and read without a walk.

use crate::world;

use std::time::{Duration, Instant};

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::Policy;
use world::{World, config};

/// Misses are recorded and not leased.
fn unleased() -> Policy {
    Policy { leases: false, ..Policy::default() }
}

#[test]
fn what_commands_change_is_exact_before_the_next_tick() {
    let mut w = World::new(&[("page:{id}", unleased())]);
    let one = w.connect();
    let small_and_main = |w: &World| w.engine.usage().0.queue_items.iter().sum::<u64>();
    for n in 1..=100_u64 {
        w.expect(one, &format!("set k{n} 0 0 100|{n:0100}|"), "STORED|");
        let (usage, stats) = w.engine.usage();
        assert_eq!((usage.items, small_and_main(&w), stats.total), (n, n, n));
        assert!(usage.bytes >= n * 100 && usage.segments > 0, "{usage:?}");
    }
    let full = w.engine.usage().0;
    w.expect(one, "delete k1|", "DELETED|");
    let usage = w.engine.usage().0;
    assert_eq!((usage.items, small_and_main(&w)), (99, 99));
    assert!(usage.bytes < full.bytes);
    // An item that lies outside the segments.
    let long = "x".repeat(1 << 19);
    w.expect(one, &format!("set huge 0 0 {}|{long}|", long.len()), "STORED|");
    let with_huge = w.engine.usage().0;
    assert!(with_huge.huge_bytes >= 1 << 19 && with_huge.bytes >= usage.bytes + (1 << 19), "{with_huge:?}");
    w.expect(one, "delete huge|", "DELETED|");
    assert_eq!((w.engine.usage().0.huge_bytes, w.engine.usage().0.bytes), (0, usage.bytes));
}

#[test]
fn misses_count_at_once_and_leave_by_a_tick_when_they_are_too_old() {
    let mut w = World::new(&[("page:{id}", unleased())]);
    let one = w.connect();
    let outstanding = |w: &World| w.engine.herd_usage().outstanding;
    w.expect(one, "get page:1|", "END|");
    w.expect(one, "get page:2|", "END|");
    assert_eq!(outstanding(&w), 2);
    w.expect(one, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(outstanding(&w), 1);
    w.pass(200_000);
    assert_eq!(outstanding(&w), 0);
}

/// The shortest of many readings of all that `stats`, `stats items` and `stats cattlegrid` read under shards'
/// locks.
#[expect(clippy::disallowed_methods, reason = "it is about time taken")]
fn shortest_reading(w: &World) -> Duration {
    let one = || {
        let start = Instant::now();
        std::hint::black_box((w.engine.usage(), w.engine.oldest_use(), w.engine.herd_usage()));
        start.elapsed()
    };
    (0..500).map(|_| one()).min().unwrap_or_default()
}

#[test]
fn reading_takes_as_long_with_many_items_and_keys_as_with_few() {
    let rules = RulesConfig { ledger_bytes: 128 << 20, ..config() };
    let mut w = World::with(&[("page:{id}", unleased())], &rules, 512 << 20, 1);
    let one = w.connect();
    w.records = 1;
    let fill = |w: &mut World, keys: std::ops::Range<u32>| {
        for n in keys {
            w.ask(one, &format!("set k{n} 0 0 100 noreply|{n:0100}|get page:{n}|"));
        }
        w.pass(1_000);
    };
    fill(&mut w, 0..100);
    let few = shortest_reading(&w);
    fill(&mut w, 100..200_000);
    let many = shortest_reading(&w);
    let usage = w.engine.herd_usage();
    assert!(w.engine.usage().0.items == 200_000 && usage.outstanding > 50_000, "{usage:?}");
    // A walk of a segment's items or of the misses would take a hundred times as long and more.
    assert!(many < few * 10 + Duration::from_micros(20), "{few:?} with few, {many:?} with many");
}
