//! The policy of eviction: shares of several stores, and of small and huge values in one store.

use cattlegrid_store::StoreConfig;

use crate::one::{MEBIBYTE, One, make_wanted_room};

#[test]
fn shards_follow_from_workers_and_memory() {
    const GIB: usize = 1 << 30;
    let cases = [
        (1, GIB, 1),
        (2, GIB, 2),
        (3, GIB, 4),
        (4, GIB, 8),
        (8, GIB, 32),
        (16, GIB, 64),
        (64, 64 * GIB, 256),
    ];
    // Each has 8 MiB, and with much memory there are more.
    let edges = [(8, 64 << 20, 8), (2, 8 << 20, 1), (1, 8 * GIB, 4), (1, 16 * GIB, 8), (2, 64 * GIB, 32)];
    for (workers, memory_bytes, shards) in cases.into_iter().chain(edges) {
        let (count, _) = StoreConfig::derive(memory_bytes, workers, true);
        assert_eq!(count, shards, "{workers} workers, {memory_bytes} bytes");
    }
}

/// A shard that has taken all memory gives the others theirs, and none starves later.
#[test]
fn shards_of_like_load_hold_like_shares() {
    let mut stores = One::several(32 * MEBIBYTE, 4);
    let (each, rounds) = if cfg!(miri) { return } else { (40_000, 5) };
    (0..60_000).for_each(|key| stores[0].put(key, 500));
    for round in 0..rounds {
        for key in 0..each {
            for number in 0..stores.len() {
                stores[number].put(round * each + key, 200 + key as usize % 300);
                make_wanted_room(&mut stores);
            }
        }
        let held: Vec<_> = stores.iter().map(|one| one.store.held_bytes()).collect();
        let fair = 32 * MEBIBYTE / 4;
        assert!(round < 3 || held.iter().all(|held| held.abs_diff(fair) < fair / 4), "{held:?}");
    }
    for one in &stores {
        one.store.verify();
    }
}

/// Bytes that a write may collect at once: a fixed most for a short write, or a multiple of its length.
const COLLECTED: usize = 32 << 10;
const COLLECTED_RATIO: usize = 8;

/// Stores an item; the work of the collector for it must be in proportion. `least`: bytes of the shortest
/// items.
fn put_in_steps(one: &mut One, key: u64, len: usize, least: usize) {
    let work = |one: &One| {
        let stats = one.store.stats();
        stats.moved + stats.evictions + stats.reclaimed
    };
    let (before, haste) = (work(one), one.store.stats().collected_in_haste);
    one.put(key, len);
    let (items, stats) = (work(one) - before, one.store.stats());
    assert_eq!(stats.collected_in_haste, haste, "key {key}: {items} items collected");
    let mut most = COLLECTED.max((len + 64) * COLLECTED_RATIO) / least + 2;
    if len > one.store.config().inline_max() {
        most = most.max(due_outside(one, len));
    }
    assert!(items <= most as u64, "key {key}: {items} items collected, {most} are due");
}

/// Items of 100 bytes that are collected for a value outside the log at most: unused ones are looked for in twice
/// as many segments as needed, then as many are emptied.
fn due_outside(one: &One, len: usize) -> usize {
    let segment = one.store.config().segment_bytes;
    (3 * len.div_ceil(segment) + 4) * segment / (24 + 8 + 100)
}

/// Where every item has been read, nothing is evicted until the collector has walked over all of it. No write
/// waits for that.
#[test]
fn no_write_waits_for_a_whole_collection() {
    const LEN: usize = 100;
    const LEAST: usize = 24 + 8 + 100;
    let (memory, items) = if cfg!(miri) { return } else { (32 * MEBIBYTE, 200_000) };
    for reads in [1, 3] {
        let mut one = One::several(memory, 1).remove(0);
        for round in 0..3 {
            for key in 0..items {
                put_in_steps(&mut one, round * items + key, LEN, LEAST);
            }
            for _ in 0..reads {
                (0..(round + 1) * items).for_each(|key| _ = one.get(key));
            }
        }
        assert!(one.store.stats().evictions > items);
        assert_eq!(one.store.stats().no_free_segment, 0);
        one.store.verify();
    }
}

/// Long values among short ones, all of them read: the work of a write is in proportion to its bytes.
#[test]
fn long_values_pay_for_their_bytes_only() {
    // Of 20,000 bytes the log has only a stub, as long as an item of 16.
    const LEAST: usize = 24 + 8 + 16;
    let (memory, items) = if cfg!(miri) { return } else { (32 * MEBIBYTE, 150_000) };
    let mut one = One::several(memory, 1).remove(0);
    let longest = one.store.config().inline_max();
    for len in [300, 3_000, 20_000, longest / 2, longest] {
        for key in 0..items {
            put_in_steps(&mut one, key, 100, LEAST);
        }
        (0..3).for_each(|_| (0..items).for_each(|key| _ = one.get(key)));
        for key in 0..(memory / 4 / len) as u64 {
            put_in_steps(&mut one, 1_000_000 * len as u64 + key, len, LEAST);
            if key % 3 == 0 {
                put_in_steps(&mut one, 2_000_000 * len as u64 + key, 100, LEAST);
            }
        }
    }
    // With many items the index takes pages of the log.
    for key in 0..items * 2 {
        put_in_steps(&mut one, 1 << 40 | key, 3, 24 + 8);
    }
    assert_eq!(one.store.stats().no_free_segment, 0);
    one.store.verify();
}

/// A huge value evicts items that were read, in proportion to its bytes.
#[test]
fn a_huge_value_does_not_wait_for_a_whole_collection() {
    let (memory, items) = if cfg!(miri) { return } else { (32 * MEBIBYTE, 230_000) };
    let mut one = One::several(memory, 1).remove(0);
    (0..items).for_each(|key| one.put(key, 100));
    (0..3).for_each(|_| (0..items).for_each(|key| _ = one.get(key)));
    let len = 300_000;
    let most = due_outside(&one, len);
    for key in 0..20 {
        let before = one.store.stats();
        one.put(items + key, len);
        let stats = one.store.stats();
        let collected = stats.moved - before.moved + stats.evictions - before.evictions;
        assert!(collected <= most as u64, "value {key}: {collected} items collected, {most} are due");
    }
    one.store.verify();
}

/// Values in pages are evicted for one another: the memory stays nearly full.
#[test]
fn a_large_value_evicts_about_its_bytes() {
    const LEN: usize = 40_000;
    if cfg!(miri) {
        return;
    }
    let mut one = One::several(64 * MEBIBYTE, 1).remove(0);
    assert!(LEN > one.store.config().inline_max());
    // A segment that became empty, and the few values whose references are walked at once.
    let most = one.store.config().segment_bytes + 8 * LEN;
    for key in 0..6_000 {
        one.put(key, LEN);
        if one.store.stats().evictions > 0 {
            let free = one.memory.free_bytes();
            assert!(free <= most, "{free} bytes are free after value {key}");
        }
    }
    assert!(one.store.stats().evictions > 3_000);
    one.store.verify();
}

/// A store of 8 MiB whose main queue holds 30,000 items that are read again and again.
fn with_hot_items() -> One {
    let mut one = One::several(8 * MEBIBYTE, 1).remove(0);
    for _ in 0..3 {
        (0..HOT).for_each(|key| {
            if !one.get(key) {
                one.put(key, 100);
            }
        });
    }
    one
}

const HOT: u64 = if cfg!(miri) { 100 } else { 30_000 };

/// Huge values that are not read do not evict items that are read.
#[test]
fn huge_values_leave_before_what_is_read() {
    let mut one = with_hot_items();
    for round in 0..if cfg!(miri) { 1 } else { 20 } {
        let mut kept = 0;
        for key in 0..HOT {
            if key % (HOT / 30) == 0 {
                one.fill(1_000_000 + round * HOT + key, 200_000);
            }
            if one.get(key) {
                kept += 1;
            } else {
                one.put(key, 100);
            }
        }
        assert!(kept > HOT / 100 * 97, "{kept} in round {round}");
    }
    one.store.verify();
}
