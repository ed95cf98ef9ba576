//! Shares: what keys of one prefix have of the memory, whatever those of others do.

use std::sync::Arc;

use cattlegrid_store::{
    Attributes, KeyHasher, Marks, Memory, NewValue, ObjectNames, Share, ShareUsage, Store, StoreConfig,
};

use crate::one::{MEBIBYTE, One, make_wanted_room};

const MEMORY: usize = 32 * MEBIBYTE;
/// Stores of the memory.
const STORES: u64 = 4;

fn share(tenant: u8, at_least: f64, at_most: f64) -> Share {
    Share { prefix: Box::new([tenant]), at_least, at_most }
}

/// Several stores, and tenants whose keys begin with their numbers.
struct Tenants {
    stores: Vec<One>,
    random: u64,
}

impl Tenants {
    fn new(shares: &[Share]) -> Self {
        Self { stores: One::sharing(MEMORY, STORES as usize, shares), random: 1 }
    }

    fn random(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn store(&mut self, key: u64) -> &mut One {
        &mut self.stores[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize % STORES as usize]
    }

    fn get(&mut self, tenant: u8, n: u64) -> bool {
        let key = n << 8 | u64::from(tenant);
        self.store(key).get(key)
    }

    fn put(&mut self, tenant: u8, n: u64, len: usize) {
        let key = n << 8 | u64::from(tenant);
        self.store(key).put(key, len);
        make_wanted_room(&mut self.stores);
    }

    /// A get, and a fill if it misses.
    fn read_through(&mut self, tenant: u8, n: u64, len: usize) -> bool {
        let hit = self.get(tenant, n);
        if !hit {
            self.put(tenant, n, len);
        }
        hit
    }

    /// One of `keys` keys, of which few are popular.
    fn popular(&mut self, keys: u32) -> u64 {
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "ranks below 2^32")]
        let key = ((self.random() as f64 / f64::from(1_u32 << 31)).powi(3) * f64::from(keys)) as u64;
        key
    }

    fn usage(&self, number: usize) -> ShareUsage {
        let mut sum = ShareUsage::default();
        self.stores.iter().for_each(|one| sum.add(&one.store.share_usage(number)));
        sum
    }

    fn verify(&self) {
        self.stores.iter().for_each(|one| one.store.verify());
    }
}

/// The hit ratio of tenant 1 in gets of `keys` keys; `beside` is done after each of its gets.
fn ratio(tenants: &mut Tenants, keys: u32, mut beside: impl FnMut(&mut Tenants, u64)) -> f64 {
    let (mut hits, gets) = (0, 200_000_u32);
    for n in 0..2 * gets {
        let key = tenants.popular(keys);
        let hit = tenants.read_through(1, key, 300);
        hits += u32::from(hit && n >= gets);
        beside(tenants, u64::from(n));
    }
    f64::from(hits) / f64::from(gets)
}

/// Others write far more than the memory, by all ways: what fits into what a share has at least is not
/// evicted.
#[test]
fn a_flood_takes_nothing_of_what_a_share_has_at_least() {
    if cfg!(miri) {
        return;
    }
    // 10 MiB of 32.
    let keys = 25_000;
    let mut alone = Tenants::new(&[share(1, 0.4, 1.0)]);
    let before = ratio(&mut alone, keys, |_, _| ());
    let floods: [fn(&mut Tenants, u64); 3] = [
        |tenants, n| (0..3).for_each(|i| tenants.put(2, n * 3 + i, 300)),
        |tenants, n| (0..3).for_each(|i| _ = tenants.read_through(2, n * 3 + i, 300)),
        |tenants, n| {
            if n % 200 == 0 {
                tenants.put(2, n, 300_000);
            }
        },
    ];
    for (number, flood) in floods.into_iter().enumerate() {
        let mut tenants = Tenants::new(&[share(1, 0.4, 1.0)]);
        let after = ratio(&mut tenants, keys, flood);
        assert!(after > before - 0.001, "flood {number}: {after}, {before} alone");
        assert_eq!(tenants.usage(1).evictions, 0, "flood {number}");
        tenants.verify();
    }
}

/// What does not fit has the hit ratio of a cache of its own of that size, or better.
#[test]
fn a_share_is_as_good_as_a_cache_of_its_own() {
    if cfg!(miri) {
        return;
    }
    let keys = 100_000;
    // A quarter of the memory, of which others have the rest at least.
    let mut own = Tenants { stores: One::sharing(MEMORY / 4, 1, &[]), random: 1 };
    let (mut hits, gets) = (0, 200_000_u32);
    for n in 0..2 * gets {
        let key = own.popular(keys) << 8 | 1;
        let hit = own.stores[0].get(key);
        if !hit {
            own.stores[0].put(key, 300);
        }
        hits += u32::from(hit && n >= gets);
    }
    let alone = f64::from(hits) / f64::from(gets);
    let mut tenants = Tenants::new(&[share(1, 0.25, 1.0)]);
    let blind = ratio(&mut tenants, keys, |tenants, n| (0..3).for_each(|i| tenants.put(2, n * 3 + i, 300)));
    tenants.verify();
    let mut tenants = Tenants::new(&[share(1, 0.25, 1.0)]);
    let filled = ratio(&mut tenants, keys, |tenants, n| {
        (0..3).for_each(|i| _ = tenants.read_through(2, n * 3 + i, 300));
    });
    assert!(blind > alone - 0.01 && filled > alone - 0.01, "{alone} alone, {blind} and {filled} in a share");
}

/// A share never has more than its most, also where the memory has room; and the others have the rest.
#[test]
fn a_share_keeps_to_its_most() {
    if cfg!(miri) {
        return;
    }
    let most = MEMORY / 4;
    for len in [100, 3_000, 40_000, 700_000] {
        let mut tenants = Tenants::new(&[share(1, 0.0, 0.25)]);
        // What others have stays: two fifths of the memory.
        let others = 2 * MEMORY as u64 / 5 / 400;
        (0..others).for_each(|n| tenants.put(2, n, 300));
        let count = 4 * MEMORY / len;
        for n in 0..count as u64 {
            tenants.put(1, n, len);
            assert!(tenants.get(1, n), "{len}: what was just stored is there");
            if n % 64 == 0 {
                let held = tenants.usage(1).bytes as usize;
                assert!(held <= most + STORES as usize * (2 * len + 8_192), "{len}: {held} of {most}");
            }
        }
        let held = tenants.usage(1).bytes as usize;
        assert!(held > most * 3 / 4 - 2 * len, "{len}: {held} of {most} are used");
        assert_eq!((0..others).filter(|n| tenants.get(2, *n)).count() as u64, others, "{len}");
        assert_eq!(tenants.usage(0).evictions, 0, "{len}");
        tenants.verify();
    }
}

/// Other bounds are in force at once, and an idle share shrinks by itself.
#[test]
fn bounds_can_be_changed() {
    if cfg!(miri) {
        return;
    }
    let mut tenants = Tenants::new(&[share(1, 0.0, 1.0), share(2, 0.0, 1.0)]);
    (0..100_000).for_each(|n| tenants.put(1, n, 300));
    assert!(tenants.usage(1).bytes > MEMORY as u64 * 4 / 5);
    tenants.stores[0].memory.set_shares(&[share(1, 0.0, 0.3), share(3, 0.0, 0.1)]);
    for one in &mut tenants.stores {
        while one.store.tick() {}
    }
    let held = tenants.usage(1).bytes;
    assert!(held < MEMORY as u64 * 31 / 100, "{held}");
    tenants.stores[0].memory.set_shares(&[share(1, 0.3, 1.0), share(2, 0.0, 0.2)]);
    (0..300_000).for_each(|n| tenants.put(2, n, 300));
    assert!(tenants.usage(2).bytes < MEMORY as u64 * 21 / 100);
    tenants.verify();
}

/// Pinned objects are not evicted for the most of their share: other items of it have no room, and no tick
/// goes on for ever.
#[test]
fn pinned_objects_may_be_more_than_the_most() {
    let memory = Memory::shared(MEBIBYTE, &[share(b'p', 0.0, 0.1)], ObjectNames::default()).unwrap();
    let (_, config) = StoreConfig::derive(MEBIBYTE, 1, true);
    let hasher = KeyHasher::new(1);
    let mut store = Store::new(Arc::clone(&memory), hasher.clone(), config.shared_by(1)).unwrap();
    let mut put = |n: u32, marks: Marks| {
        let key = [&[1, 0, b'p'][..], &n.to_le_bytes()].concat();
        let (key, hash) = if marks.has(Marks::OBJECT) {
            (&key[..], hasher.hash_object(&key))
        } else {
            (&key[2..], hasher.hash(&key[2..]))
        };
        let attributes = Attributes { cas: u64::from(n) + 1, marks, ..Attributes::default() };
        store.put(hash, key, &attributes, NewValue::Inline([&[7; 900], &[]])).unwrap();
    };
    (0..300).for_each(|n| put(n, Marks::OBJECT.with(Marks::PINNED)));
    (0..50).for_each(|n| put(n, Marks::default()));
    assert!((0..1_000).any(|_| !store.tick()), "it never ends");
    store.verify();
    let usage = store.share_usage(1);
    assert!(usage.items >= 300 && usage.items < 320, "{usage:?}");
}

/// What shares have at least may be more than there is room for: then they compete, and nothing is refused.
#[test]
fn more_may_be_promised_than_there_is() {
    if cfg!(miri) {
        return;
    }
    let mut tenants = Tenants::new(&[share(1, 0.5, 1.0), share(2, 0.5, 1.0)]);
    for n in 0..200_000 {
        tenants.put(1, n, 300);
        tenants.put(2, n, 300);
        tenants.put(3, n, 300);
    }
    tenants.verify();
    for number in [1, 2] {
        let held = tenants.usage(number).bytes as usize;
        assert!(held > MEMORY * 2 / 5, "{held}");
    }
}

/// Without bounds the tenants compete as if there were no shares.
#[test]
fn shares_without_bounds_cost_no_hits() {
    if cfg!(miri) {
        return;
    }
    let run = |shares: &[Share]| {
        let mut tenants = Tenants::new(shares);
        ratio(&mut tenants, 100_000, |tenants, n| {
            let other = tenants.popular(50_000);
            tenants.read_through(2, other, 500);
            if n % 4 == 0 {
                tenants.put(3, n, 200);
            }
        })
    };
    let (without, with) = (run(&[]), run(&[share(1, 0.0, 1.0), share(2, 0.0, 1.0)]));
    assert!(with > without - 0.015, "{without} without shares, {with} with");
}
