use std::sync::Arc;

use super::*;
use crate::config::StoreConfig;
use crate::hasher::KeyHasher;
use crate::item::Attributes;
use crate::memory::Memory;
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
