//! Objects in a store: a domain of their own, trees, pinned items.

use std::sync::Arc;

use cattlegrid_store::{
    Attributes, Found, HugeValue, KeyHasher, LeastShares, Lookup, Marks, Memory, NEVER, NewValue,
    ObjectUsage, PAGE_BYTES, Store, StoreConfig, StoreFull, Tree, Value,
};

const MEBIBYTE: usize = 1 << 20;

/// A store, its memory and its hasher.
struct One {
    memory: Arc<Memory>,
    hasher: KeyHasher,
    store: Store,
    cas: u64,
}

/// The key of an object of a type.
fn key_of(type_id: u16, key: &str) -> Vec<u8> {
    [&type_id.to_le_bytes(), key.as_bytes()].concat()
}

const PINNED: Marks = Marks::OBJECT.with(Marks::PINNED);

impl One {
    fn new(bytes: usize, evictions: bool) -> Self {
        let memory = Memory::new(bytes).expect("there is address space");
        let hasher = KeyHasher::new(1);
        let (_, config) = StoreConfig::derive(bytes, 1, evictions);
        let store = Store::new(Arc::clone(&memory), hasher.clone(), config).expect("there is a reserve");
        Self { memory, hasher, store, cas: 0 }
    }

    fn hash(&self, key: &[u8], marks: Marks) -> u64 {
        if marks.has(Marks::OBJECT) { self.hasher.hash_object(key) } else { self.hasher.hash(key) }
    }

    fn put(&mut self, key: &[u8], marks: Marks, expiry: u32, value: NewValue<'_>) -> Result<(), StoreFull> {
        self.cas += 1;
        let attributes = Attributes { cas: self.cas, marks, expiry, ..Attributes::default() };
        self.store.put(self.hash(key, marks), key, &attributes, value)
    }

    fn put_bytes(&mut self, key: &[u8], marks: Marks, value: &[u8]) {
        self.put(key, marks, NEVER, NewValue::Inline([value, &[]])).expect("there is room");
    }

    fn object(&mut self, key: &[u8]) -> Option<Found> {
        match self.store.lookup_object(self.hasher.hash_object(key), key) {
            Lookup::Found(found) => Some(found),
            _ => None,
        }
    }

    fn plain(&mut self, key: &[u8]) -> Option<Found> {
        match self.store.lookup(self.hasher.hash(key), key) {
            Lookup::Found(found) => Some(found),
            _ => None,
        }
    }

    fn bytes(&self, found: Found) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.store.item(found).value().copy_to(&mut bytes);
        bytes
    }
}

#[test]
fn an_object_and_a_plain_item_of_the_same_bytes_are_two() {
    let mut one = One::new(MEBIBYTE, true);
    let key = key_of(1, "k");
    assert_ne!(one.hasher.hash(&key), one.hasher.hash_object(&key));
    one.put_bytes(&key, Marks::none(), b"plain");
    assert!(one.object(&key).is_none());
    one.put_bytes(&key, Marks::OBJECT, b"object");
    let (plain, object) = (one.plain(&key).unwrap(), one.object(&key).unwrap());
    assert_eq!((one.bytes(plain), one.bytes(object)), (b"plain".to_vec(), b"object".to_vec()));
    assert_eq!(
        (one.store.item(plain).object(), one.store.item(object).object()),
        (None, Some((1, &b"k"[..])))
    );
    one.store.value_mut(object).unwrap().copy_from_slice(b"OBJECT");
    one.store.set_marks(plain, Marks::OBJECT.with(Marks::FETCHED));
    assert!(!one.store.item(plain).is_object(), "no mark moves an item to the other domain");
    one.store.set_marks(object, Marks::none());
    let (plain, object) = (one.plain(&key).unwrap(), one.object(&key).unwrap());
    assert_eq!((one.bytes(plain), one.bytes(object)), (b"plain".to_vec(), b"OBJECT".to_vec()));
    one.store.verify();
    one.store.remove(one.hasher.hash(&key), plain);
    assert!(one.plain(&key).is_none() && one.object(&key).is_some());
    one.store.verify();
}

#[test]
fn a_value_becomes_a_tree_and_bytes_again() {
    let mut one = One::new(4 * MEBIBYTE, true);
    let key = key_of(3, "k");
    let tree = |one: &One, entries: u32| {
        let mut tree = Box::new(Tree::new(&one.memory).unwrap());
        (0..entries).for_each(|n| assert!(tree.insert(&n.to_be_bytes(), b"v").unwrap()));
        NewValue::Tree(tree)
    };
    let usage =
        |one: &One| one.store.object_usage().first().map_or(ObjectUsage::default(), |(_, usage)| *usage);
    one.put_bytes(&key, Marks::OBJECT, b"few");
    let few = usage(&one);
    assert_eq!((few.items, few.tree_bytes), (1, 0));
    for entries in [100, 2_000, 10] {
        let new = tree(&one, entries);
        one.put(&key, Marks::OBJECT, NEVER, new).unwrap();
        let found = one.object(&key).unwrap();
        let item = one.store.item(found);
        assert!(item.is_tree() && item.value().is_empty() && item.value_len() == 0);
        let held = one.store.tree(found).unwrap().held_bytes();
        assert_eq!(
            (usage(&one).tree_bytes, one.store.tree(found).unwrap().len()),
            (held as u64, entries.into())
        );
        assert!(item.size() > held && one.store.value_mut(found).is_none());
        one.store.verify();
    }
    let found = one.object(&key).unwrap();
    let before = usage(&one);
    let added = one.store.tree_mut(found, |tree| {
        (10..3_000_u32).filter(|n| tree.insert(&n.to_be_bytes(), b"v").unwrap()).count()
    });
    assert_eq!(added, Some(2_990));
    assert!(usage(&one).tree_bytes > before.tree_bytes);
    one.store.verify();
    one.put_bytes(&key, Marks::OBJECT, b"few");
    assert_eq!(usage(&one), few);
    let huge = HugeValue::new(&one.memory, &[&vec![1; 100_000]]).unwrap();
    one.put(&key, Marks::OBJECT, NEVER, NewValue::Huge(huge)).unwrap();
    let found = one.object(&key).unwrap();
    assert!(
        matches!(one.store.item(found).value(), Value::Huge(_))
            && one.store.tree_mut(found, |_| ()).is_none()
    );
    assert_eq!(usage(&one).huge_bytes as usize, 100_000_usize.next_multiple_of(256));
    one.store.verify();
    one.store.remove(one.hasher.hash_object(&key), found);
    while one.store.tick() {}
    assert_eq!((one.store.object_usage().len(), one.store.usage().object_bytes), (0, 0));
    assert_eq!(one.store.usage().tree_bytes, 0);
    one.store.verify();
}

#[test]
fn pinned_objects_stay_while_all_others_leave() {
    let mut one = One::new(2 * MEBIBYTE, true);
    for n in 0..1_000 {
        let marks = if n % 10 == 0 { PINNED } else { Marks::OBJECT };
        one.put_bytes(&key_of(1, &n.to_string()), marks, &[7; 40]);
    }
    for n in 0..100_000_u32 {
        one.put_bytes(&n.to_le_bytes(), Marks::none(), &[1; 100]);
    }
    one.store.verify();
    let left = (0..1_000).filter(|n| one.object(&key_of(1, &n.to_string())).is_some()).collect::<Vec<_>>();
    assert_eq!(left, (0..1_000).step_by(10).collect::<Vec<_>>());
    assert_eq!(one.memory.pinned_object_bytes() as u64, one.store.usage().pinned_bytes);
    one.store.advance(5, 5_000, one.cas + 1);
    while one.store.tick() {}
    assert_eq!((one.memory.pinned_object_bytes(), one.store.usage().items), (0, 0), "a flush ends them too");
    one.store.verify();
}

/// Work of the collector: items that it has looked at.
fn work(one: &One) -> u64 {
    let stats = one.store.stats();
    stats.moved + stats.evictions + stats.reclaimed
}

/// Where only pinned objects are left, writes are refused at once, nothing is lost, and once some are gone
/// there is room again.
#[test]
fn a_store_full_of_pinned_objects_refuses_and_recovers() {
    for (evictions, len) in [(true, 20), (true, 3_000), (false, 100)] {
        let mut one = One::new(MEBIBYTE, evictions);
        let value = vec![7; len];
        let mut count = 0;
        while one.put(&key_of(1, &count.to_string()), PINNED, NEVER, NewValue::Inline([&value, &[]])).is_ok()
        {
            count += 1;
            assert!(count < 100_000);
        }
        assert!(one.memory.pinned_object_bytes() > MEBIBYTE / 2, "{count} of {len} bytes");
        one.store.verify();
        let before = work(&one);
        for n in 0..1_000_u32 {
            let marks = [Marks::none(), Marks::OBJECT, PINNED][n as usize % 3];
            let _full = one.put(&n.to_le_bytes(), marks, NEVER, NewValue::Inline([&[1; 2_000], &[]]));
            let _nothing = one.store.give_back(PAGE_BYTES, LeastShares::Taken);
            one.store.tick();
        }
        assert!(
            work(&one) - before < 10_000,
            "{} items looked at in 1,000 refused writes",
            work(&one) - before
        );
        one.store.verify();
        for n in 0..count {
            let key = key_of(1, &n.to_string());
            let found = one.object(&key).unwrap_or_else(|| panic!("object {n} of {count} is lost"));
            if n % 4 != 0 {
                one.store.remove(one.hasher.hash_object(&key), found);
            }
        }
        one.store.verify();
        for n in 0..200_u32 {
            one.put(&n.to_le_bytes(), Marks::none(), NEVER, NewValue::Inline([&[1; 2_000], &[]]))
                .unwrap_or_else(|_| {
                    panic!(
                        "no room for item {n}, with evictions: {evictions}, {} pinned",
                        one.memory.pinned_object_bytes()
                    )
                });
        }
        one.store.verify();
        assert!((0..count).step_by(4).all(|n| one.object(&key_of(1, &n.to_string())).is_some()));
    }
}

/// A quarter of a store is pinned, in segments of their own and among other items: writes work on in bounded
/// pieces.
#[test]
fn pinned_objects_do_not_make_writes_wait() {
    let mut one = One::new(8 * MEBIBYTE, true);
    for n in 0..15_000_u32 {
        let marks = if n % 3 == 0 { Marks::none() } else { PINNED };
        one.put_bytes(&[&[1, 0][..], &n.to_le_bytes()].concat(), marks, &[7; 200]);
    }
    let (count, item) = (200_000_u32, 24 + 8 + 200);
    for n in 0..count {
        let before = (work(&one), one.store.stats().collected_in_haste);
        one.put_bytes(&n.to_be_bytes(), Marks::none(), &[1; 200]);
        let items = work(&one) - before.0;
        assert!(items <= (32 << 10) / item + 2, "write {n}: {items} items");
        assert_eq!(one.store.stats().collected_in_haste, before.1, "write {n} has waited");
    }
    let stats = one.store.stats();
    assert!(stats.moved < u64::from(count), "{stats:?}");
    assert_eq!(one.store.usage().objects, 10_000);
    one.store.verify();
}

#[test]
fn pinned_objects_end_by_their_expiry() {
    let mut one = One::new(4 * MEBIBYTE, true);
    one.store.advance(10, 10_000, 0);
    for n in 0..1_000_u32 {
        // One of them stays: its segment does not die.
        let expiry = if n == 500 { 900_000 } else { 20 + n % 5 };
        one.put(&[&[1, 0][..], &n.to_le_bytes()].concat(), PINNED, expiry, NewValue::Inline([&[7; 40], &[]]))
            .unwrap();
    }
    let each = one.memory.pinned_object_bytes() / 1_000;
    assert_eq!(one.store.reclaim_pinned(None), None, "nothing has died");
    for (second, left) in [(19, 1_000), (20, 801), (22, 401), (23, 201), (24, 1)] {
        one.store.advance(second, u64::from(second) * 1000, 0);
        for _ in 0..20 {
            one.store.reclaim_pinned(None);
        }
        one.store.verify();
        assert_eq!(one.memory.pinned_object_bytes() / each, left, "in second {second}");
        assert_eq!(one.store.reclaim_pinned(None), None, "all are reclaimed");
    }
    assert_eq!(one.store.stats().evictions, 0);
}

#[test]
fn a_large_tree_goes_in_pieces_or_at_once_where_memory_is_wanted() {
    for at_once in [false, true] {
        let mut one = One::new(16 * MEBIBYTE, true);
        let key = key_of(3, "k");
        one.put(&key, PINNED, NEVER, NewValue::Tree(Box::new(Tree::new(&one.memory).unwrap()))).unwrap();
        let found = one.object(&key).unwrap();
        one.store.tree_mut(found, |tree| {
            (0..20_000_u32).for_each(|n| assert!(tree.insert(&n.to_be_bytes(), &[7; 100]).unwrap()));
        });
        let held = one.store.tree(found).unwrap().held_bytes();
        assert!(held >= 20_000 * 104 && one.memory.pinned_object_bytes() > held);
        let before = one.store.held_bytes();
        one.store.remove(one.hasher.hash_object(&key), found);
        one.store.verify();
        assert_eq!(one.memory.pinned_object_bytes(), 0);
        assert_eq!((one.store.held_bytes(), one.store.usage().tree_bytes), (before, held as u64));
        if at_once {
            one.store.give_back(held, LeastShares::Taken);
        } else {
            while one.store.tick() {
                one.store.verify();
            }
        }
        assert_eq!((one.store.usage().tree_bytes, one.store.stats().evictions), (0, 0));
        assert!(one.store.held_bytes() <= before - held);
        one.store.verify();
    }
}

/// The index splits and shrinks by hashes of both domains.
#[test]
fn both_domains_stay_apart_while_the_index_grows_and_shrinks() {
    let mut one = One::new(32 * MEBIBYTE, true);
    let count = if cfg!(miri) { 500_u32 } else { 60_000 };
    for n in 0..count {
        one.put_bytes(&n.to_be_bytes(), Marks::none(), b"plain");
        one.put_bytes(&n.to_be_bytes(), Marks::OBJECT, b"object");
    }
    one.store.verify();
    for n in 0..count {
        let key = n.to_be_bytes();
        let (plain, object) = (one.plain(&key).unwrap(), one.object(&key).unwrap());
        assert_eq!((one.bytes(plain), one.bytes(object)), (b"plain".to_vec(), b"object".to_vec()));
        let hash = if n % 2 == 0 { one.hasher.hash(&key) } else { one.hasher.hash_object(&key) };
        one.store.remove(hash, if n % 2 == 0 { plain } else { object });
        assert_eq!((one.plain(&key).is_some(), one.object(&key).is_some()), (n % 2 == 1, n % 2 == 0));
    }
    one.store.verify();
    assert_eq!(
        (one.store.usage().items, one.store.usage().objects),
        (u64::from(count), u64::from(count / 2))
    );
}

#[test]
fn the_record_of_an_evicted_object_has_its_type_and_key() {
    let mut one = One::new(MEBIBYTE, true);
    one.store.record_evictions(true);
    one.put_bytes(&key_of(0x0102, "name"), Marks::OBJECT, b"state");
    one.put_bytes(b"name", Marks::none(), b"value");
    (0..8_000_u32).for_each(|n| one.put_bytes(&n.to_le_bytes(), Marks::none(), &[1; 300]));
    let evicted: Vec<_> = one.store.drain_evicted().filter(|evicted| &*evicted.key == b"name").collect();
    assert_eq!(evicted.iter().map(|e| e.object).collect::<Vec<_>>(), [Some(0x0102), None]);
    assert_eq!(evicted[0].value_len, 5);
}

#[test]
fn a_scan_reports_objects_and_says_so() {
    let mut one = One::new(MEBIBYTE, true);
    one.put_bytes(b"plain", Marks::none(), b"v");
    one.put_bytes(&key_of(7, "object"), PINNED, b"v");
    let mut seen = Vec::new();
    let next =
        one.store.scan(0, usize::MAX, |item| seen.push((item.is_object(), item.object().map(|o| o.0))));
    seen.sort_unstable();
    assert_eq!((next, seen), (None, vec![(false, None), (true, Some(7))]));
}

#[test]
fn a_tree_keeps_its_members_when_its_attributes_change() {
    let mut one = One::new(4 * MEBIBYTE, true);
    let key = key_of(3, "k");
    let mut tree = Box::new(Tree::new(&one.memory).unwrap());
    (0..2_000_u32).for_each(|n| assert!(tree.insert(&n.to_be_bytes(), b"v").unwrap()));
    one.put(&key, Marks::OBJECT, NEVER, NewValue::Tree(tree)).unwrap();
    let held = |one: &mut One| {
        let found = one.object(&key).unwrap();
        (one.store.object_usage()[0].1.tree_bytes, one.store.tree(found).unwrap().len())
    };
    let before = held(&mut one);
    let all: Vec<u64> = (1..=8).collect();
    // Longer ones move the item, shorter ones stay in its place.
    for count in [1, 8, 2, 0, 8] {
        let found = one.object(&key).unwrap();
        let mut room = [0; cattlegrid_store::TAGS_MAX];
        let old = one.store.item(found).attributes(&mut room);
        let (cas, old) = (old.cas, Attributes { tags: &[], ..old });
        let new = Attributes { tags: &all[..count], stamp: Some(77), ..old };
        let found = one.store.set_attributes(found, &new).unwrap();
        let item = one.store.item(found);
        assert_eq!(item.tags().collect::<Vec<_>>(), all[..count]);
        assert_eq!((item.stamp(), item.cas(), item.is_tree()), (77, cas, true));
        assert_eq!(one.object(&key), Some(found));
        assert_eq!(held(&mut one), before);
        one.store.verify();
    }
    let found = one.object(&key).unwrap();
    one.store.remove(one.hasher.hash_object(&key), found);
    one.store.verify();
    one.put_bytes(&key, Marks::OBJECT, b"bytes");
    let found = one.object(&key).unwrap();
    assert!(one.store.set_attributes(found, &Attributes::default()).is_err(), "its value is in the log");
    assert_eq!(one.bytes(found), b"bytes");
}
