use std::sync::Arc;

use super::*;
use crate::config::StoreConfig;
use crate::hasher::KeyHasher;
use crate::item::Attributes;
use crate::memory::{Memory, at_gift};
use crate::store::{Lookup, NewValue};

/// Without a spare, as when the collector's has been used: the walk ends before a pinned item, which stays.
#[test]
fn a_pinned_item_that_cannot_move_stays() {
    let memory = Memory::new(1 << 20).unwrap();
    let (_, config) = StoreConfig::derive(1 << 20, 1, true);
    let hasher = KeyHasher::new(1);
    let mut store = Store::new(Arc::clone(&memory), hasher.clone(), config).unwrap();
    let marks = Marks::OBJECT.with(Marks::PINNED);
    let key = |n: u32| [&[1, 0][..], &n.to_le_bytes()].concat();
    let put = |store: &mut Store, n: u32| {
        let attributes = Attributes { cas: u64::from(n) + 1, marks: Marks::OBJECT, ..Attributes::default() };
        let hash = hasher.hash_object(&key(n));
        store.put(hash, &key(n), &attributes, NewValue::Inline([&[7; 1_000], &[]]))
    };
    // In segments with two other items for a pinned one.
    let mut count = 0;
    while memory.free_bytes() > 100_000 || count % 3 != 2 {
        put(&mut store, count).unwrap();
        if count % 3 == 0
            && let Lookup::Found(found) = store.lookup_object(hasher.hash_object(&key(count)), &key(count))
        {
            store.set_marks(found, marks);
        }
        count += 1;
    }
    memory.set_limit(PAGE_BYTES).unwrap();
    assert_eq!(store.begin_walk(Purpose::Writers), Some(WalkChoice::Walk));
    let walked = store.walk.unwrap().segment;
    let spares = store.log.exchange_spares(Vec::new());
    while store.log.seal_fullest(ShareSet::ALL) {}
    while store.walk.is_some_and(|walk| walk.segment == walked)
        && store.walk_some(1_000, WalkPause::NEVER, Purpose::Writers).is_some()
    {}
    assert!(store.walk.is_none(), "it has ended before the segment's end");
    store.verify();
    assert_eq!(put(&mut store, count), Err(StoreFull));
    assert_eq!(store.give_back(PAGE_BYTES, LeastShares::Taken), 0);
    store.verify();
    store.log.exchange_spares(spares);
    memory.set_limit(1 << 20).unwrap();
    for n in count..count + 2_000 {
        put(&mut store, n).expect("it is collected again");
    }
    store.verify();
    let mut found = |n: u32| store.lookup_object(hasher.hash_object(&key(n)), &key(n));
    assert!((0..count).step_by(3).all(|n| matches!(found(n), Lookup::Found(_))), "one is lost");
}

/// Each page is taken by another thread before this one looks at the use of the memory. What it gave back
/// counts: it evicts no more than was asked for, and says that there was something.
#[test]
fn room_that_another_thread_takes_at_once_was_given_back() {
    let memory = Memory::new(4 << 20).unwrap();
    let (_, config) = StoreConfig::derive(4 << 20, 1, true);
    let hasher = KeyHasher::new(1);
    let mut store = Store::new(Arc::clone(&memory), hasher.clone(), config).unwrap();
    for n in 0..10_000_u32 {
        let (key, attributes) =
            (n.to_le_bytes(), Attributes { cas: u64::from(n) + 1, ..Attributes::default() });
        store.put(hasher.hash(&key), &key, &attributes, NewValue::Inline([&[7; 1_000], &[]])).unwrap();
    }
    let items = store.usage().items;
    assert!(items > 1_000, "{items}");
    let others = Arc::clone(&memory);
    let mut taken = Vec::new();
    let gifts = at_gift(move || {
        let take = || others.scattered(others.free_bytes()).expect("it is free");
        taken.push(std::thread::scope(|scope| scope.spawn(take).join().expect("it does not panic")));
    });
    let bytes = 2 * store.config.segment_bytes;
    let given = store.give_back(bytes, LeastShares::Kept);
    assert!((bytes..2 * bytes).contains(&given), "{given} of {bytes} bytes");
    assert!(store.usage().items > items / 2, "{} items are left", store.usage().items);
    assert_eq!(memory.free_bytes(), 0, "others have taken it");
    drop(gifts);
    store.verify();
}
