//! Work of web sites: short sessions beside popular values, batches at night, flags, thumbnails and counters.

use std::collections::{BTreeMap, HashSet};

use super::{Op, PAGES, Random, SESSIONS, WorkRows, Zipf, fill, mix, pages_of, sessions, zipf};

/// Keys whose use is due at a step, and how many uses they have left.
type DueKeys = BTreeMap<u64, Vec<(u64, u64)>>;

/// All of them.
pub(super) fn sites(rows: &mut WorkRows) {
    short_sessions(rows);
    batches(rows);
    small_memory(rows);
    flags(rows);
    new_format(rows);
    thumbnails(rows);
    counters(rows);
}

/// Sessions of 400 bytes, each used one to three times soon, beside popular values of about 300 bytes.
fn short_sessions(rows: &mut WorkRows) {
    for (name, memory_mib, is_rewritten) in [
        ("sessions of 400 B, read 1 to 3 times soon, beside Zipf 1.0 of 300 B", 16, false),
        ("sessions of 400 B, read 1 to 3 times soon, 4 times the memory", 64, false),
        ("sessions of 400 B, rewritten 1 to 3 times soon, beside Zipf 1.0 of 300 B", 16, true),
        ("sessions of 400 B, rewritten 1 to 3 times soon, 4 times the memory", 64, true),
    ] {
        rows.add(name, memory_mib, &["popular", "sessions"], move |seed, each| {
            let scale = memory_mib / 16;
            let mut ranks = Zipf::new(40_000 * scale as u32, 1.0, seed + 61);
            let size = |key: u64| 200 + (mix(key) % 201) as u32;
            zipf(&mut ranks, 300_000 * scale as u32, u32::MAX, 0, size, each);
            let (mut random, mut due) = (Random::new(seed + 62), DueKeys::new());
            let count = 150_000 * scale;
            for n in 0..count {
                let tally = |tally| (n > count / 3).then_some(tally);
                let mut wait = |due: &mut DueKeys, key, uses| {
                    let at = n + 1 + random.next() % (2_000 * scale);
                    due.entry(at).or_default().push((key, uses));
                };
                let (key, bytes) = (SESSIONS + n, 400);
                each(Op::Set { key, bytes });
                wait(&mut due, key, 1 + mix(key + seed) % 3);
                for (key, uses) in due.remove(&n).unwrap_or_default() {
                    each(Op::Read { key, bytes, tally: tally(1) });
                    if is_rewritten {
                        each(Op::Set { key, bytes });
                    }
                    if uses > 1 {
                        wait(&mut due, key, uses - 1);
                    }
                }
                for _ in 0..3 {
                    let key = ranks.next();
                    each(fill(key, size(key), tally(0)));
                }
            }
        });
    }
}

/// Values in use before and after a night in which much is written that is never read.
fn batches(rows: &mut WorkRows) {
    for (name, preloaded) in [
        ("Zipf 0.9 of 500 B, 300 MB set at night and never read", 0),
        ("the same night, 20 MB preloaded before it and read after it", 35_000),
    ] {
        rows.add(name, 64, &["after it", "preloaded"][..=usize::from(preloaded > 0)], move |seed, each| {
            let mut ranks = Zipf::new(100_000, 0.9, seed + 63);
            zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 500, each);
            (0..preloaded).for_each(|n| each(Op::Set { key: PAGES + n, bytes: 500 }));
            (0..300_000).for_each(|n| each(Op::Set { key: SESSIONS + n, bytes: 1_000 }));
            for n in 0..preloaded {
                each(Op::Read { key: PAGES + n, bytes: 500, tally: Some(1) });
            }
            zipf(&mut ranks, 30_000, 0, 0, |_| 500, each);
        });
    }
}

/// The first sessions in a small memory that is full of pages.
fn small_memory(rows: &mut WorkRows) {
    rows.add("sessions, read 1.6 MB later", 8, &["first turnover", "later"], |seed, each| {
        pages_of(25_000, seed, each);
        sessions(15_000, 0, 2_900, (false, 0), each);
        sessions(45_000, 1 << 30, 2_900, (false, 1), each);
    });
}

/// Many tiny values that are set once and read all the time.
fn flags(rows: &mut WorkRows) {
    for (name, memory_mib, exponent) in [
        ("5,000 flags of 60 B set once, beside Zipf 1.0", 64, 1.0),
        ("5,000 flags of 60 B set once, beside Zipf 0.8", 16, 0.8),
    ] {
        let figures = &["flags, first half", "flags, later", "popular, first half", "popular, later"];
        rows.add(name, memory_mib, figures, move |seed, each| {
            let mut ranks = Zipf::new(memory_mib as u32 * 4_700, exponent, seed + 64);
            let mut random = Random::new(seed + 65);
            (0..5_000).for_each(|n| each(Op::Set { key: SESSIONS + n, bytes: 60 }));
            for n in 0..1_600_000 {
                let later = usize::from(n >= 800_000);
                // Each flag once in 20,000 requests.
                if random.next().is_multiple_of(4) {
                    let key = SESSIONS + random.next() % 5_000;
                    each(Op::Read { key, bytes: 60, tally: Some(later) });
                } else {
                    each(fill(ranks.next(), 1_000, Some(2 + later)));
                }
            }
        });
    }
}

/// A deploy of a longer format under the same keys: each value is set anew when it is first read.
fn new_format(rows: &mut WorkRows) {
    let name = "Zipf 1.0 of 200 B, of 2 KB under the same keys from the middle on";
    rows.add(name, 64, &["before", "after"], |seed, each| {
        let mut ranks = Zipf::new(200_000, 1.0, seed + 66);
        zipf(&mut ranks, 800_000, 200_000, 0, |_| 200, each);
        let mut renewed = HashSet::new();
        for _ in 0..800_000 {
            let key = ranks.next();
            if renewed.insert(key) {
                each(Op::Read { key, bytes: 200, tally: None });
                each(Op::Set { key, bytes: 2_000 });
            } else {
                each(fill(key, 2_000, Some(1)));
            }
        }
    });
}

/// Large popular values beside short ones that are read once.
fn thumbnails(rows: &mut WorkRows) {
    let name = "thumbnails of 8 to 40 KB, Zipf 0.8, beside tokens of 100 B read once 5 to 15 MB later";
    rows.add(name, 64, &["thumbnails", "tokens"], |seed, each| {
        let size = |key: u64| 8_000 + (mix(key) % 32_001) as u32;
        let (mut ranks, mut random) = (Zipf::new(10_000, 0.8, seed + 67), Random::new(seed + 68));
        let mut due = DueKeys::new();
        for n in 0..100_000_u64 {
            let tally = |tally| (n > 40_000).then_some(tally);
            let key = ranks.next();
            each(fill(key, size(key), tally(0)));
            for token in n * 4..n * 4 + 4 {
                each(Op::Set { key: SESSIONS + token, bytes: 100 });
                // A request writes about 10 KB, as nearly every second thumbnail is filled.
                let later = 500 + random.next() % 1_000;
                due.entry(n + later).or_default().push((SESSIONS + token, 0));
            }
            for (key, _) in due.remove(&n).unwrap_or_default() {
                each(Op::Read { key, bytes: 100, tally: tally(1) });
            }
        }
    });
}

/// Counters that are read and rewritten, beside a loop that does not fit.
fn counters(rows: &mut WorkRows) {
    let name =
        "1,000 counters of 60 B, each rewritten every 4,000 requests, beside a loop of 1.1 times the memory";
    rows.add(name, 64, &["counters", "loop"], |seed, each| {
        let mut random = Random::new(seed + 69);
        for n in 0..660_000_u64 {
            let tally = |tally| (n > 330_000).then_some(tally);
            each(fill(PAGES + n % 66_000, 1_000, tally(1)));
            if n % 4 == 0 {
                let key = SESSIONS + random.next() % 1_000;
                each(Op::Read { key, bytes: 60, tally: tally(0) });
                each(Op::Set { key, bytes: 60 });
            }
        }
    });
}
