//! What is kept of kinds of work in which a cache loses what it should not: each is a row of
//! `cattlegrid-store-bench work`, smaller.

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
    let mut one = One::without_evictions(MEMORY);
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

/// Without evictions nothing is lost, however little room the compaction has: longer values among the holes
/// of short ones.
#[test]
fn without_evictions_nothing_is_lost() {
    if cfg!(miri) {
        return;
    }
    let mut one = One::without_evictions(MEMORY);
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

/// Blind values are read ever later: those that are evicted and asked for are missed.
#[test]
fn what_is_read_later_than_before_is_there_soon() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    popular(&mut one, 0);
    let mut found = 0;
    for n in 0..60_000 {
        one.put(SESSIONS + n, 500);
        let gap = if n < 30_000 { 1_000 } else { 7_000 };
        found += u64::from(n >= 45_000 && one.get(SESSIONS + n - gap));
        if n < 45_000 && n >= gap {
            one.get(SESSIONS + n - gap);
        }
        for key in 0..2 {
            let key = skewed(mixed(n * 2 + key), 50_000);
            if !one.get(key) {
                one.put(key, 500);
            }
        }
    }
    assert!(found > 14_800, "{found} of 15,000");
    one.store.verify();
}

/// Sessions that are looked up before they are written, read once, and not written again when they are lost.
#[test]
fn what_is_missed_first_and_read_once_does_not_fill_the_main_queue() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let (mut found, mut hits, mut gets) = (0, 0, 0);
    for n in 0..60_000 {
        assert!(!one.get(SESSIONS + n));
        one.put(SESSIONS + n, 1_000);
        let is_there = n >= 6_000 && one.get(SESSIONS + n - 6_000);
        found += u64::from(is_there && n >= 30_000);
        if n % 4 == 0 {
            let key = skewed(mixed(n), 30_000);
            let hit = one.get(key);
            if !hit {
                one.put(key, 400);
            }
            if n >= 30_000 {
                gets += 1;
                hits += u64::from(hit);
            }
        }
    }
    assert!(found > 29_000, "{found} of 30,000");
    assert!(hits * 100 > gets * 57, "{hits} of {gets}");
    one.store.verify();
}

/// A number that follows from another one, and looks random.
fn mixed(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32
}

/// One of this many keys, of which few are popular.
fn skewed(random: u64, keys: u64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "ranks up to 100,000")]
    let key = ((random % (1 << 30)) as f64 / f64::from(1 << 30)).powi(4) * keys as f64;
    #[expect(clippy::cast_sign_loss, reason = "positive")]
    let key = key as u64;
    key
}

/// Fills that are read again once, when two thirds of the memory were filled since, beside keys in constant
/// use.
#[test]
fn what_is_read_again_much_later_is_kept_in_the_end() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let (gap, mut found) = (6_000, 0);
    for n in 0..120_000 {
        one.fill(SESSIONS + n, 1_800);
        found += u64::from(n >= 90_000 && one.get(SESSIONS + n - gap));
        if n < 90_000 && n >= gap && !one.get(SESSIONS + n - gap) {
            one.put(SESSIONS + n - gap, 1_800);
        }
        let key = mixed(n) % 2_000;
        if !one.get(key) {
            one.put(key, 300);
        }
    }
    assert!(found > 29_000, "{found} of 30,000");
    one.store.verify();
}

/// What is blind and what was used have different sizes: neither pushes the other out.
#[test]
fn sessions_and_popular_values_of_other_sizes_are_both_kept() {
    if cfg!(miri) {
        return;
    }
    for (session, popular, shards, least) in
        [(5_000, 100, 1, 550), (1_000, 10_000, 1, 480), (300, 20_000, 1, 600), (300, 20_000, 8, 540)]
    {
        let mut stores = One::several(if shards == 1 { MEMORY } else { 4 * MEMORY }, shards);
        let memory = if shards == 1 { MEMORY } else { 4 * MEMORY } as u64;
        // Sessions are read when a third of the memory was written since; what may be asked for fills it
        // twice.
        let (gap, keys) = (memory / 3 / (session + 60), memory * 2 / (popular + 60));
        let (mut found, mut hits, mut gets) = (0, 0, 0);
        let count = 5 * memory / (session + 60);
        for n in 0..count {
            let of = |key: u64| mixed(key) as usize % shards;
            stores[of(n)].put(SESSIONS + n, session as usize);
            make_wanted_room(&mut stores);
            if let Some(n) = n.checked_sub(gap) {
                let is_there = stores[of(n)].get(SESSIONS + n);
                found += u64::from(is_there && n > count / 2);
            }
            let reads = (session * 4).div_ceil(popular * 2).max(1);
            for read in 0..reads {
                let key = skewed(mixed(n * reads + read), keys);
                let hit = stores[of(key)].get(key);
                if !hit {
                    stores[of(key)].put(key, popular as usize);
                    make_wanted_room(&mut stores);
                }
                if n > count / 2 {
                    gets += 1;
                    hits += u64::from(hit);
                }
            }
        }
        let sessions = found * 1000 / (count - gap - count / 2);
        assert!(sessions >= 950, "{sessions} of 1000 sessions of {session} bytes beside {popular}");
        let hits = hits * 1000 / gets;
        assert!(hits >= least, "{hits} of 1000 values of {popular} bytes beside {session}");
        for one in &stores {
            one.store.verify();
        }
    }
}

/// A few short values, set once and read rarely, do not go with longer ones of the same age without a reader.
#[test]
fn few_short_values_stay_beside_longer_ones() {
    const FEW: u64 = 300;
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    (0..FEW).for_each(|n| one.put(SESSIONS + n, 200));
    let (mut found, mut asked) = (0, 0);
    for n in 0..400_000 {
        // Of 100 to 1,500 bytes.
        let key = skewed(mixed(n), 30_000);
        if !one.get(key) {
            one.put(key, 100 * (1 + mixed(key) as usize % 15));
        }
        if n % 99 == 0 {
            let is_there = one.get(SESSIONS + mixed(n + 1) % FEW);
            if n > 200_000 {
                (found, asked) = (found + u64::from(is_there), asked + 1);
            }
        }
        if n % 11 == 0 {
            one.put(2 * SESSIONS + n, 1_000 + mixed(n + 2) as usize % 3_000);
        }
    }
    assert!(found * 100 >= asked * 85, "{found} of {asked}");
    one.store.verify();
}

/// What a batch only writes, one and a half times the memory, does not push out what is read.
#[test]
fn popular_values_stay_beside_a_batch_that_is_only_written() {
    if cfg!(miri) {
        return;
    }
    for shards in [1, 8] {
        let memory = 4 * MEMORY;
        let mut stores = One::several(memory, shards);
        // A third of the memory.
        let keys = memory as u64 / 3 / 800;
        let writes = 3 * memory as u64 / 2 / 3_000;
        let (mut hits, mut gets) = (0, 0);
        for n in 0..10 * keys {
            let of = |key: u64| mixed(key) as usize % shards;
            let key = skewed(mixed(mixed(n)), keys);
            let hit = stores[of(key)].get(key);
            if !hit {
                stores[of(key)].put(key, 100 * (1 + mixed(key) as usize % 15));
                make_wanted_room(&mut stores);
            }
            if n > 3 * keys {
                (hits, gets) = (hits + u64::from(hit), gets + 1);
            }
            for write in writes * n / keys..writes * (n + 1) / keys {
                if n / keys == 3 {
                    stores[of(write)].put(SESSIONS + write, 3_000);
                    make_wanted_room(&mut stores);
                }
            }
        }
        assert!(hits * 100 >= gets * 93, "{hits} of {gets}, {shards} stores");
        for one in &stores {
            one.store.verify();
        }
    }
}

/// Sessions are read once soon, and once more when no memory would be enough for all of them. Popular values do
/// not make way for them without a gain.
#[test]
fn popular_values_stay_beside_sessions_that_come_again_too_late() {
    if cfg!(miri) {
        return;
    }
    for shards in [1, 4] {
        let memory = 4 * MEMORY;
        let mut stores = One::several(memory, shards);
        // 1.5 times the memory, and sessions of a seventh between writing and the first reading.
        let keys = 3 * memory as u64 / 2 / 800;
        let [soon, late] = [7, 1].map(|part| memory as u64 / 2_500 / part);
        let of = |key: u64| mixed(key) as usize % shards;
        let (mut hits, mut gets, mut sessions) = (0, 0, 0);
        let count = 14 * keys;
        for n in 0..count {
            let key = skewed(mixed(mixed(n)), keys);
            let hit = stores[of(key)].get(key);
            if !hit {
                stores[of(key)].put(key, 100 + mixed(key) as usize % 1_400);
                make_wanted_room(&mut stores);
            }
            let is_later = n > count / 2;
            (hits, gets) = (hits + u64::from(hit && is_later), gets + u64::from(is_later));
            if n % 11 == 0 {
                let number = n / 11;
                stores[of(number)].put(SESSIONS + number, 1_000 + mixed(number) as usize % 3_000);
                make_wanted_room(&mut stores);
                let read = |gap: u64| number.checked_sub(gap * (90 + mixed(number) % 20) / 100);
                for (gap, counts) in [(soon, is_later), (late, false)] {
                    let hit = read(gap).is_some_and(|old| stores[of(old)].get(SESSIONS + old));
                    sessions += u64::from(hit && counts);
                }
            }
        }
        assert!(hits * 100 >= gets * 70, "{hits} of {gets}, {shards} stores");
        assert!(sessions * 1_000 >= gets / 11 * 985, "{sessions} of {}, {shards} stores", gets / 11);
        for one in &stores {
            one.store.verify();
        }
    }
}

/// Large values that are stored and never read, or read so soon that they need half of the memory, or too late
/// for any, do not push popular small ones out, which fit.
#[test]
fn large_values_that_nobody_reads_in_time_leave_room_for_popular_ones() {
    if cfg!(miri) {
        return;
    }
    // How many large values are between a write and a read of one; 0: none is read.
    for late in [0, 100, 220, 400] {
        let mut one = one();
        let (mut hits, mut gets, mut found, mut reads) = (0, 0, 0, 0);
        for n in 0..60_000 {
            let key = skewed(mixed(n), 3_000);
            let hit = one.get(key);
            if !hit {
                one.put(key, 1_000);
            }
            if n > 30_000 {
                gets += 1;
                hits += u64::from(hit);
            }
            if n % 14 == 0 {
                let large = n / 14;
                one.put(SESSIONS + large, 40_000 + (mixed(large) % 100_000) as usize);
                if let Some(large) = large.checked_sub(late).filter(|_| late > 0) {
                    reads += 1;
                    found += u64::from(one.get(SESSIONS + large));
                }
            }
        }
        let hits = hits * 1000 / gets;
        assert!(late != 100 || found * 100 >= reads * 95, "{found} of {reads}, which would fit");
        assert!(hits >= 800, "{hits} of 1000, large values read {late} later");
        one.store.verify();
    }
}

/// Sessions are there when they are read, beside popular values and others that are stored and never read, of
/// another size.
#[test]
fn sessions_stay_beside_values_of_another_size_that_nobody_reads() {
    if cfg!(miri) {
        return;
    }
    // Bytes of sessions, one in how many requests is one, and how many are between a write and the read of
    // one; bytes of the others, and one in how many requests.
    for (session, every, gap, other, each) in [(60_000, 14, 50, 2_000, 1), (2_000, 3, 1_500, 100_000, 14)] {
        let mut one = one();
        let (mut found, mut reads, mut hits, mut gets) = (0, 0, 0, 0);
        for n in 0..100_000 {
            let key = skewed(mixed(n), 3_000);
            let hit = one.get(key);
            if !hit {
                one.put(key, 1_600);
            }
            if n % every == 0 {
                let session_number = n / every;
                one.put(SESSIONS + session_number, session);
                if let Some(number) = session_number.checked_sub(gap) {
                    reads += 1;
                    found += u64::from(one.get(SESSIONS + number));
                }
            }
            if n % each == 0 {
                one.put(2 * SESSIONS + n, other);
            }
            if n > 50_000 {
                gets += 1;
                hits += u64::from(hit);
            }
        }
        let (found, hits) = (found * 1000 / reads, hits * 1000 / gets);
        assert!(found >= 980, "{found} of 1000 sessions of {session} bytes beside {other}");
        assert!(hits >= 800, "{hits} of 1000 popular values beside {session} and {other} bytes");
        one.store.verify();
    }
}

/// Sessions that are read soon are there for the few that are read again much later.
#[test]
fn sessions_that_are_read_again_much_later_are_there() {
    if cfg!(miri) {
        return;
    }
    // Bytes of a session; one in how many requests is one; how many are between a write and the two reads.
    for (session, every, soon, late) in [(50_000, 32, 10, 120), (1_000, 2, 500, 7_500)] {
        let mut one = one();
        let (mut found, mut reads) = (0, 0);
        for n in 0..every * late * 8 {
            let key = skewed(mixed(n), 15_000);
            if !one.get(key) {
                one.put(key, 1_000);
            }
            if n % every > 0 {
                continue;
            }
            let number = n / every;
            one.put(SESSIONS + number, session);
            if let Some(number) = number.checked_sub(soon) {
                one.get(SESSIONS + number);
            }
            if let Some(number) = number.checked_sub(late)
                && mixed(number).is_multiple_of(20)
            {
                reads += 1;
                found += u64::from(one.get(SESSIONS + number));
            }
        }
        assert!(found * 100 >= reads * 97, "{found} of {reads} sessions of {session} bytes");
        one.store.verify();
    }
}

/// Small sessions that are read are there beside values of up to 200 kB that are filled, in stores of one memory.
#[test]
fn small_sessions_stay_beside_large_values_that_come_and_go() {
    if cfg!(miri) {
        return;
    }
    let mut stores = One::several(4 * MEMORY, 8);
    let (mut found, mut reads) = (0, 0);
    for n in 0..200_000 {
        let key = skewed(mixed(n), 20_000);
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "below 200,000")]
        let bytes = (100.0 * 2_000_f64.powf((mixed(key) % 10_000) as f64 / 10_000.0)) as usize;
        let store = mixed(key) as usize % stores.len();
        if !stores[store].get(key) {
            stores[store].put(key, bytes);
            make_wanted_room(&mut stores);
        }
        if n % 12 > 0 {
            continue;
        }
        let number = n / 12;
        let of = |number: u64| mixed(number) as usize % 8;
        stores[of(number)].put(SESSIONS + number, 1_000);
        make_wanted_room(&mut stores);
        for gap in [1_000, 3_000] {
            if let Some(number) = number.checked_sub(gap) {
                let is_there = stores[of(number)].get(SESSIONS + number);
                reads += u64::from(n > 100_000);
                found += u64::from(is_there && n > 100_000);
            }
        }
    }
    assert!(found * 100 >= reads * 70, "{found} of {reads}");
    for one in &stores {
        one.store.verify();
    }
}

/// Writes `count` values that are not read, and reads `keys` keys in turn, each once while `every` values are
/// written. `wait`: requests for which the clock goes on beside each write. Returns how many reads were hits,
/// and how many there were.
fn read_in_turn(one: &mut One, keys: u64, (count, every): (u64, u64), wait: u32, fills: bool) -> (u64, u64) {
    let (mut found, mut read) = (0, 0);
    for n in 0..count {
        if fills {
            one.fill(SESSIONS + n, 1_000);
        } else {
            one.put(SESSIONS + n, 1_000);
        }
        (0..wait).for_each(|_| one.advance());
        while read < (n + 1) * keys / every {
            found += u64::from(one.get(read % keys));
            read += 1;
        }
    }
    (found, read)
}

/// Keys that were made in one burst and are in constant use fill many segments, in which nothing may go:
/// beside what is not read, all of them stay.
#[test]
fn what_was_set_in_a_burst_and_is_in_use_is_there() {
    if cfg!(miri) {
        return;
    }
    // With a clock that goes on as during the burst, or much faster.
    for wait in [0, 30] {
        let mut one = one();
        (0..5_000).for_each(|key| one.put(key, 1_000));
        let (found, read) = read_in_turn(&mut one, 5_000, (70_000, 3_000), wait, false);
        assert_eq!(found, read, "wait {wait}");
        one.store.verify();
    }
}

#[test]
fn what_was_filled_in_a_burst_and_is_in_use_is_there() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    (0..5_000).for_each(|key| one.fill(key, 100));
    let (found, read) = read_in_turn(&mut one, 5_000, (70_000, 7_000), 0, true);
    assert_eq!(found, read);
    one.store.verify();
}

/// What was made in a burst and used then, and is used no more, goes like anything else.
#[test]
fn what_was_in_use_goes_when_it_is_not() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    (0..10_000).for_each(|key| one.put(key, 1_000));
    (0..3).for_each(|_| (0..10_000).for_each(|key| assert!(one.get(key))));
    // Then sessions that are read when a half of the memory was written since.
    let found = sessions(&mut one, 0, 80_000, 14_000);
    let later = (0..10_000).filter(|key| one.get(*key)).count();
    assert!(found >= 66_000 * 97 / 100, "{found} of 66,000; {later} old ones are left");
    assert!(later < 100, "{later} old ones are left");
    one.store.verify();
}

/// Sessions that are written twice before they are read once, late: that is not two uses.
#[test]
fn what_is_written_twice_and_read_once_is_there() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let mut found = 0;
    for n in 0..60_000 {
        one.put(SESSIONS + n, 1_000);
        if n >= 250 {
            one.put(SESSIONS + n - 250, 1_000);
        }
        let is_there = n >= 11_000 && one.get(SESSIONS + n - 11_000);
        found += u64::from(is_there && n >= 30_000);
    }
    assert_eq!(found, 30_000);
    one.store.verify();
}

/// What is written again and again, and hardly ever read, is there beside what is only written.
#[test]
fn what_is_written_again_and_again_is_there() {
    if cfg!(miri) {
        return;
    }
    let mut one = one();
    let (mut found, mut read) = (0, 0);
    for n in 0..80_000 {
        one.put(SESSIONS + n, 1_000);
        // Each of 4,000 keys while 4 MB of others are written; read in turn from when the memory was full.
        one.put(n % 4_000, 1_000);
        if n % 4 == 0 && n > 20_000 {
            found += u64::from(one.get(read % 4_000));
            read += 1;
        }
    }
    assert_eq!(found, read);
    one.store.verify();
}

/// Short sessions that are read one to three times soon, and written back each time, cost popular values no more
/// than those that are only read.
#[test]
fn sessions_that_are_read_and_rewritten_count_as_read_once() {
    if cfg!(miri) {
        return;
    }
    let hits = [false, true].map(|is_rewritten| {
        let mut one = One::several(4 * MEBIBYTE, 1).remove(0);
        let mut hits = 0;
        for n in 0..30_000 {
            one.put(SESSIONS + n, 400);
            for (visits, gap) in [(1, 100), (2, 250), (3, 400)] {
                if let Some(session) = n.checked_sub(gap)
                    && 1 + mixed(session) % 3 >= visits
                {
                    one.get(SESSIONS + session);
                    if is_rewritten {
                        one.put(SESSIONS + session, 400);
                    }
                }
            }
            for get in 0..3 {
                let key = skewed(mixed(mixed(3 * n + get)), 40_000);
                let hit = one.get(key);
                if !hit {
                    one.put(key, 300);
                }
                hits += u64::from(hit && n > 10_000);
            }
        }
        one.store.verify();
        hits
    });
    assert!(hits[1] * 100 > hits[0] * 99, "{hits:?} of 60,000");
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

/// Below 10,000 items a cache loses a few items with each write, and no burst of them.
#[test]
fn few_items_are_evicted_by_a_write() {
    if cfg!(miri) {
        return;
    }
    for (memory, shards, len) in
        [(2, 1, 200), (2, 1, 1_000), (4, 1, 3_000), (16, 2, 2_000), (16, 2, 6_000), (32, 1, 30_000)]
    {
        let mut stores = One::several(memory * MEBIBYTE, shards);
        let evictions = |stores: &[One]| stores.iter().map(|one| one.store.stats().evictions).sum::<u64>();
        let full = (memory * MEBIBYTE / len) as u64;
        let (mut before, mut most) = (0, 0);
        for n in 0..4 * full {
            let place = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % shards;
            stores[place].put(n, len);
            make_wanted_room(&mut stores);
            let now = evictions(&stores);
            (before, most) = (now, most.max(now - before));
        }
        let haste: u64 = stores.iter().map(|one| one.store.stats().collected_in_haste).sum();
        assert!(before > 2 * full, "{before} evictions of {len} bytes");
        assert!((1..=8).contains(&most), "{most} items of {len} bytes in a write, {shards} shards");
        assert_eq!(haste, 0, "no write of {len} bytes waits for a segment, {shards} shards");
        for one in &mut stores {
            one.store.verify();
        }
    }
}
