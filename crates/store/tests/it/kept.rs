//! What is kept of kinds of work in which a cache loses what it should not: each is a row of `cattlegrid-store-bench work`, smaller.

use crate::one::{MEBIBYTE, One, make_wanted_room};

/// Bytes of memory; a store of one shard, or several.
const MEMORY: usize = 16 * MEBIBYTE;
/// Keys of different kinds.
const SESSIONS: u64 = 1 << 40;

fn one() -> One {
    One::several(MEMORY, 1).remove(0)
}

/// Gets of keys of which few are popular, with fills, until the memory has been filled twice.
fn popular(one: &mut One, base: u64) -> f64 {
    let mut random = 1_u64;
    let (mut hits, mut gets) = (0, 0);
    for n in 0..300_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "ranks up to 50,000")]
        let key = base + ((random >> 33) as f64 / f64::from(1 << 31)).powi(4).mul_add(50_000.0, 0.0) as u64;
        let hit = one.get(key);
        if !hit {
            one.put(key, 500);
        }
        if n > 150_000 {
            gets += 1;
            hits += u32::from(hit);
        }
    }
    f64::from(hits) / f64::from(gets)
}

/// Writes `count` values and reads each once, `gap` writes later. Returns how many were found.
fn sessions(one: &mut One, from: u64, count: u64, gap: u64) -> u64 {
    let mut found = 0;
    for n in 0..count {
        one.put(SESSIONS + from + n, 500);
        found += u64::from(n >= gap && one.get(SESSIONS + from + n - gap));
    }
    found
}

#[test]
fn what_is_written_once_and_read_once_is_there() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let before = popular(&mut one, 0);
    // A fifth and two fifths of the memory, in its first turnover and in later ones.
    for (turn, gap) in [(0, 6_000), (1, 6_000), (2, 12_000)] {
        let found = sessions(&mut one, turn << 30, 30_000, gap);
        assert!(found >= (30_000 - gap) * 99 / 100, "{found} of {} in turn {turn}", 30_000 - gap);
    }
    let after = popular(&mut one, 0);
    assert!(after > before - 0.02, "what is popular comes back: {after}, {before} before");
    one.store.verify();
}

#[test]
fn a_preload_is_there_after_values_that_were_read_twice() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    for from in (0..15_000).step_by(500) {
        (from..from + 500).for_each(|key| one.put(key, 1_000));
        (0..2).for_each(|_| (from..from + 500).for_each(|key| _ = one.get(key)));
    }
    (0..8_000).for_each(|n| one.put(SESSIONS + n, 1_000));
    let found = (0..8_000).filter(|n| one.get(SESSIONS + n)).count();
    assert!(found > 7_900, "{found} of 8,000");
    one.store.verify();
}

/// Sizes that change: the newest values are there, whatever those before them had.
#[test]
fn the_newest_values_are_there_whatever_their_size() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let mut base = SESSIONS;
    for bytes in [100, 1_000, 10_000, 100_000, 30_000, 3_000, 300, 50] {
        let count = 2 * MEMORY as u64 / (bytes + 90);
        (0..count).for_each(|n| one.put(base + n, bytes as usize));
        let newest = count / 4;
        let found = (count - newest..count).filter(|n| one.get(base + n)).count() as u64;
        assert!(found >= newest * 98 / 100, "{found} of {newest} of {bytes} bytes");
        base += count;
    }
    one.store.verify();
}

#[test]
fn the_room_of_the_dead_is_used_before_the_living_go() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let count = 14_000;
    (0..count).for_each(|key| one.put(key, 1_000));
    assert_eq!(one.store.stats().evictions, 0);
    let is_deleted = |key: &u64| key * 7 % 10 < 3;
    (0..count).filter(is_deleted).for_each(|key| one.delete(key));
    (0..count * 24 / 100).for_each(|n| one.put(SESSIONS + n, 1_000));
    let living = (0..count).filter(|key| !is_deleted(key)).count();
    let found = (0..count).filter(|key| !is_deleted(key) && one.get(*key)).count();
    assert!(found >= living * 99 / 100, "{found} of {living}");
    one.store.verify();
}

/// Without evictions the room of the dead is found as well, down to a twentieth.
#[test]
fn without_evictions_what_was_deleted_can_be_stored_again() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    one.store.set_evictions(false);
    let mut count = 0;
    while one.try_put(count, 1_000) {
        count += 1;
    }
    for share in [3, 1] {
        let is_deleted = |key: &u64| key * 7 % 10 < share;
        let deleted: Vec<u64> = (0..count).filter(is_deleted).collect();
        for key in &deleted {
            one.delete(*key);
        }
        let stored = deleted.iter().filter(|key| one.try_put(**key, 1_000)).count();
        assert!(stored >= deleted.len() * 95 / 100, "{stored} of {}", deleted.len());
        one.store.verify();
    }
}

/// Without evictions nothing is lost, however little room the compaction has: longer values among the holes of short ones.
#[test]
fn without_evictions_nothing_is_lost() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    one.store.set_evictions(false);
    let mut count = 0;
    while one.try_put(count, 200) {
        count += 1;
    }
    (0..count).step_by(20).for_each(|key| one.delete(key));
    let mut stored = 0;
    while one.try_put(SESSIONS + stored, 5_000) || one.try_put(SESSIONS + stored, 2_000) {
        stored += 1;
    }
    one.store.verify();
    let lost = (0..count).filter(|key| key % 20 > 0 && !one.get(*key)).count();
    assert_eq!((lost, one.store.stats().evictions), (0, 0));
    assert!((0..stored).all(|n| one.get(SESSIONS + n)));
}

/// Large values among small ones: the small ones that are read stay.
#[test]
fn a_large_value_does_not_cost_a_thousand_small_ones() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let (mut hits, mut gets) = (0, 0);
    for n in 0..400_000_u64 {
        // 4,000 small ones in turn, and with one get in twenty one of 400 large ones.
        let (key, bytes) = if n % 20 == 0 { (SESSIONS + n / 20 % 400, 200_000) } else { (n % 4_000, 200) };
        let hit = one.get(key);
        if !hit {
            one.put(key, bytes);
        }
        if n > 100_000 && bytes < 1_000 {
            gets += 1;
            hits += u32::from(hit);
        }
    }
    assert!(hits > gets / 100 * 98, "{hits} of {gets}");
    one.store.verify();
}

/// One shard is written, the others are idle and cold: it takes their room.
#[test]
fn room_is_taken_where_it_is_coldest() {
    if cfg!(miri) {
        return;
    }
    let mut stores = One::several(4 * MEMORY, 8);
    for key in 0..20_000 {
        for number in 0..stores.len() {
            stores[number].put(key, 500);
            make_wanted_room(&mut stores);
        }
    }
    let before = stores[0].store.held_bytes();
    let count = 3 * before as u64 / 560;
    for n in 0..count {
        stores[0].put(SESSIONS + n, 500);
        make_wanted_room(&mut stores);
    }
    let found = (0..count).filter(|n| stores[0].get(SESSIONS + n)).count() as u64;
    assert!(found > count * 95 / 100, "{found} of {count}");
    for one in &stores {
        one.store.verify();
    }
}
