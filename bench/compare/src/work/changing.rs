//! Work that changes: sessions whose ways change, what comes back once a day, popularity that drifts, deletes,
//! loops, scans and deploys.

use super::{Op, PAGES, SESSIONS, WorkRows, Zipf, fill, mix, of_key, zipf};

/// Sessions whose ways change, or that are written in other ways.
pub(super) fn changing(rows: &mut WorkRows) {
    rows.add(
        "sessions beside Zipf 1.0, read 4 MB later and then 16 MB later",
        64,
        &["sessions", "Zipf"],
        |seed, each| {
            let mut ranks = Zipf::new(300_000, 1.0, seed + 30);
            zipf(&mut ranks, 1_000_000, u32::MAX, 0, |_| 1_000, each);
            for n in 0..300_000_u64 {
                let (key, bytes) = (SESSIONS + n, 1_000);
                let tally = |tally| (n > 160_000).then_some(tally);
                each(Op::Set { key, bytes });
                if let Some(n) = n.checked_sub(if n < 120_000 { 4_000 } else { 16_000 }) {
                    each(Op::Read { key: SESSIONS + n, bytes, tally: tally(0) });
                }
                (0..2).for_each(|_| each(fill(ranks.next(), bytes, tally(1))));
            }
        },
    );
    for (name, gap, share) in [
        ("sessions whose clients get first and never fill, read 30 MB later", 30_000, 2),
        ("the same, read 20 MB later beside a quarter as much Zipf", 20_000, 8),
    ] {
        rows.add(name, 64, &["sessions", "Zipf"], move |seed, each| {
            let mut ranks = Zipf::new(100_000, 0.9, seed + 31);
            zipf(&mut ranks, 128_000, u32::MAX, 0, |_| 400, each);
            for n in 0..170_000_u64 {
                let (key, bytes) = (SESSIONS + n, 1_000);
                each(Op::Read { key, bytes, tally: None });
                each(Op::Set { key, bytes });
                if n >= gap {
                    each(Op::Read { key: key - gap, bytes, tally: Some(0) });
                }
                if n % share == 0 {
                    each(fill(ranks.next(), 400, Some(1)));
                }
            }
        });
    }
    rows.add("keys set once and read in turn beside what is only written", 64, &["read"], |_, each| {
        (0..20_000).for_each(|key| each(Op::Set { key, bytes: 1_000 }));
        for n in 0..250_000_u64 {
            each(Op::Set { key: SESSIONS + n, bytes: 1_000 });
            // Each is read four times while 60 MB are written.
            if n % 3 == 0 {
                for read in 0..4 {
                    let key = (n / 3 * 4 + read) % 20_000;
                    each(Op::Read { key, bytes: 1_000, tally: Some(0) });
                }
            }
        }
    });
    rows.add("20,000 keys of 100 B filled once, each used each 30 MB of fills", 64, &["read"], |_, each| {
        (0..20_000).for_each(|key| each(fill(key, 100, None)));
        let mut read = 0;
        for n in 0..250_000_u64 {
            each(fill(SESSIONS + n, 1_000, None));
            while read < (n + 1) * 20_000 / 30_000 {
                each(Op::Read { key: read % 20_000, bytes: 100, tally: Some(0) });
                read += 1;
            }
        }
    });
    rows.add("sessions set twice, 1 MB apart, read 45 MB later", 64, &["sessions"], |_, each| {
        for n in 0..200_000_u64 {
            let (key, bytes) = (SESSIONS + n, 1_000);
            each(Op::Set { key, bytes });
            if n >= 1_000 {
                each(Op::Set { key: key - 1_000, bytes });
            }
            if n >= 45_000 {
                each(Op::Read { key: key - 45_000, bytes, tally: (n > 100_000).then_some(0) });
            }
        }
    });
    rows.add("100 B to 20 KB, Zipf 0.9", 64, &["hits"], |seed, each| {
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "up to 20,000")]
        let bytes = |key| (100.0 * 200_f64.powf(of_key(key))) as u32;
        zipf(&mut Zipf::new(60_000, 0.9, seed + 29), 160_000, 60_000, 0, bytes, each);
    })
    .and_bytes();
}

/// What is used once a day, or beside a night's work.
pub(super) fn daily(rows: &mut WorkRows) {
    rows.add("20,000 keys of 100 B set once, each used each 30 MB of sets", 64, &["used"], |_, each| {
        (0..20_000).for_each(|key| each(Op::Set { key, bytes: 100 }));
        let mut used = 0;
        for n in 0..250_000_u64 {
            each(Op::Set { key: SESSIONS + n, bytes: 1_000 });
            while used < (n + 1) * 20_000 / 30_000 {
                each(Op::Read { key: used % 20_000, bytes: 100, tally: Some(0) });
                used += 1;
            }
        }
    });
    rows.add(
        "30,000 users, each once a day, twice 1 MB apart, beside what is filled once",
        64,
        &["users"],
        |_, each| {
            for n in 0..300_000_u64 {
                let key = n % 30_000;
                each(fill(key, 1_000, (n > 60_000).then_some(0)));
                if let Some(n) = n.checked_sub(500) {
                    each(fill(n % 30_000, 1_000, None));
                }
                if n % 2 == 0 {
                    each(fill(PAGES + n, 1_000, None));
                }
            }
        },
    );
    rows.add("Zipf 1.0, 40 MB set at night and never read", 64, &["night", "day after"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 32);
        zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 1_000, each);
        for n in 0..40_000 {
            each(Op::Set { key: SESSIONS + n, bytes: 1_000 });
            each(fill(ranks.next(), 1_000, Some(0)));
        }
        (0..150_000).for_each(|_| each(fill(ranks.next(), 1_000, Some(1))));
    });
}

/// Popularity that changes, deletes, loops and scans.
pub(super) fn changes(rows: &mut WorkRows) {
    rows.add("full, 30 % deleted, half as many new: live ones kept", 64, &["kept"], |_, each| {
        (0..57_000).for_each(|key| each(Op::Set { key, bytes: 1_000 }));
        let is_deleted = |key: &u64| mix(*key) % 10 < 3;
        (0..57_000).filter(is_deleted).for_each(|key| each(Op::Delete { key }));
        (0..15_000).for_each(|n| each(Op::Set { key: SESSIONS + n, bytes: 1_000 }));
        for key in (0..57_000).filter(|key| !is_deleted(key)) {
            each(Op::Read { key, bytes: 1_000, tally: Some(0) });
        }
    });
    rows.add("Zipf 0.9 that drifts", 64, &["hits"], |seed, each| {
        let mut ranks = Zipf::new(200_000, 0.9, seed + 10);
        for n in 0..900_000 {
            each(fill(ranks.next() + n / 6, 1_000, (n > 300_000).then_some(0)));
        }
    });
    rows.add("Zipf 0.9, a tenth of the keys anew every 20,000 gets", 64, &["hits"], |seed, each| {
        let mut ranks = Zipf::new(200_000, 0.9, seed + 10);
        for n in 0..900_000 {
            let rank = ranks.next();
            let key = (rank << 20) + (n / 20_000 + mix(rank) % 10) / 10;
            each(fill(key, 1_000, (n > 300_000).then_some(0)));
        }
    });
    for (name, keys) in
        [("a loop of 1.1 times the memory", 66_000), ("a loop of 1.5 times the memory", 90_000)]
    {
        rows.add(name, 64, &["hits"], move |_, each| {
            (0..keys * 10).for_each(|n| each(fill(n % keys, 1_000, (n > keys * 5).then_some(0))));
        });
    }
    rows.add("Zipf 1.0 beside a loop", 64, &["Zipf"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 11);
        for n in 0..900_000_u64 {
            each(if n.is_multiple_of(3) {
                fill(SESSIONS + n / 3 % 90_000, 1_000, None)
            } else {
                fill(ranks.next(), 1_000, (n > 450_000).then_some(0))
            });
        }
    });
    rows.add("Zipf 1.0 after a scan", 64, &["hits"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 12);
        zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 1_000, each);
        (0..120_000).for_each(|n| each(fill(SESSIONS + n, 1_000, None)));
        zipf(&mut ranks, 60_000, 0, 0, |_| 1_000, each);
    });
    rows.add("Zipf 1.0 after a deploy that renews all keys", 64, &["hits"], |seed, each| {
        let mut ranks = Zipf::new(300_000, 1.0, seed + 13);
        zipf(&mut ranks, 800_000, u32::MAX, 0, |_| 1_000, each);
        zipf(&mut ranks, 300_000, 0, PAGES, |_| 1_000, each);
    });
}

/// Popular values that fit, beside large ones that are never read, or are read when no memory would hold
/// them any more.
pub(super) fn unread(rows: &mut WorkRows) {
    let size = |key: u64| 500 << (mix(key) % 4);
    for (name, memory_mib, keys, every, late) in [
        ("40 to 200 KB, never read, 1 to 14 gets of Zipf 0.8", 16, 3_389, 14, 0),
        ("the same, 1 to 64 gets", 16, 3_389, 64, 0),
        ("the same, 4 times the memory, 1 to 14 gets", 64, 13_556, 14, 0),
        ("sessions of 40 to 200 KB, read 30 MB later, beside Zipf 0.8", 16, 3_389, 8, 253),
    ] {
        rows.add(name, memory_mib, &["first", "later"], move |seed, each| {
            let mut ranks = Zipf::new(keys, 0.8, seed + 41);
            let large = |number: u64| (40_000 + mix(number + seed) % 160_001) as u32;
            let gets = 120_000 * memory_mib / 16;
            for n in 0..gets {
                let key = ranks.next();
                each(fill(key, size(key), Some(usize::from(n > gets / 3))));
                if n % every > 0 {
                    continue;
                }
                let number = n / every;
                each(Op::Set { key: SESSIONS + number, bytes: large(number) });
                if let Some(read) = number.checked_sub(late).filter(|_| late > 0) {
                    each(Op::Read { key: SESSIONS + read, bytes: large(read), tally: None });
                }
            }
        });
    }
}

/// Sessions of one size beside popular values and values that are never read, of other sizes.
pub(super) fn beside_others(rows: &mut WorkRows) {
    // Popular values; bytes of sessions, one in how many requests is one, how many are between a write and the
    // read of one, and between that write and another read of one in twenty; the other values, and one in how
    // many requests.
    for (name, memory_mib, (keys, exponent, popular), (session, every, gap, again), (other, each_other)) in [
        ("60 KB, others 2 KB", 16, (4_000, 0.8, 1_600), (60_000, 14, 50, 0), (2_000, 1)),
        ("2 KB, others 100 KB", 16, (4_000, 0.8, 1_600), (2_000, 3, 1_500, 0), (100_000, 14)),
        ("50 KB, others 1 KB", 64, (200_000, 0.9, 500), (50_000, 16, 400, 0), (1_000, 1)),
        ("20 KB, read 36 MB later, no others", 64, (200_000, 0.9, 500), (20_000, 4, 1_800, 0), (0, 0)),
        ("50 KB, few again much later, no others", 64, (60_000, 0.9, 1_000), (50_000, 32, 40, 500), (0, 0)),
    ] {
        let name = format!("sessions of {name}, beside Zipf {exponent}");
        rows.add(&name, memory_mib, &["popular", "sessions"], move |seed, each| {
            let mut ranks = Zipf::new(keys, exponent, seed + 42);
            for n in 0..memory_mib * 12_000 {
                each(fill(ranks.next(), popular, Some(0)));
                if each_other > 0 && n % each_other == 0 {
                    each(Op::Set { key: 2 * SESSIONS + n, bytes: other });
                }
                if n % every > 0 {
                    continue;
                }
                let number = n / every;
                each(Op::Set { key: SESSIONS + number, bytes: session });
                let mut read = |gap, tally| {
                    if let Some(number) = number.checked_sub(gap) {
                        each(Op::Read { key: SESSIONS + number, bytes: session, tally });
                    }
                };
                read(gap, (again == 0).then_some(1));
                if again > 0 && mix(number + seed).is_multiple_of(20) {
                    read(again, Some(1));
                }
            }
        });
    }
}

/// Few short values that are set once and read rarely, beside popular values, and others that are never read.
pub(super) fn few_short_ones(rows: &mut WorkRows) {
    // The short ones' number and bytes, and in how many gets one of them is read; bytes of the others, and one in
    // how many gets is stored, in the second to fourth tenth of the gets only or always.
    for (name, memory_mib, keys, (few, bytes, every), (least, most, each_other, is_batch)) in [
        (
            "300 of 200 B set once, beside 1 to 4 KB never read",
            16,
            30_000,
            (300, 200, 99),
            (1_000, 4_000, 11, false),
        ),
        (
            "2,000 of 500 B set once, before a batch of 90 MB",
            64,
            60_000,
            (2_000, 500, 46),
            (1_000, 1_000, 2, true),
        ),
    ] {
        rows.add(name, memory_mib, &["popular", "set once"], move |seed, each| {
            let mut ranks = Zipf::new(keys, 0.9, seed + 51);
            let size = |key: u64| 100 * (1 + mix(key) % 15) as u32;
            for key in 0..few {
                each(Op::Set { key: SESSIONS + key, bytes });
            }
            let gets = 600_000;
            for n in 0..gets {
                let tally = |tally| (n > gets / 2).then_some(tally);
                let key = ranks.next();
                each(fill(key, size(key), tally(0)));
                if n % every == 0 {
                    each(Op::Read { key: SESSIONS + mix(n + seed) % few, bytes, tally: tally(1) });
                }
                if n % each_other == 0 && (!is_batch || (180_000..360_000).contains(&n)) {
                    let bytes = (least + mix(n + seed) % (most - least + 1)) as u32;
                    each(Op::Set { key: 2 * SESSIONS + n, bytes });
                }
            }
        });
    }
}

/// Fills of all lives and of all sizes, by Zipf.
pub(super) fn lives_and_sizes(rows: &mut WorkRows) {
    for (name, memory_mib, factor) in [
        ("lives of 2 s to 48 days, 100 B to 2 KB", 16, 1),
        ("the same, 100 B to 20 KB, 4 times the memory", 64, 10),
    ] {
        rows.add(name, memory_mib, &["hits"], move |seed, each| {
            let mut ranks = Zipf::new(30_000, 0.8, seed + 49);
            for n in 0..600_000_u64 {
                let key = ranks.next();
                let bytes = (100 + mix(key) % 1_901 * factor) as u32;
                let ttl = 2 << (mix(key + 5) % 22);
                each(Op::Fill { key, bytes, ttl, tally: (n > 200_000).then_some(0) });
            }
        });
    }
}
