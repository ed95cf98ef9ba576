//! Objects in a store: a domain of their own, trees, pinned items.

use std::sync::Arc;

use cattlegrid_store::{
    Attributes, Found, Full, HugeValue, KeyHasher, Lookup, Marks, Memory, NEVER, NewValue, ObjectUsage,
    PAGE_BYTES, Store, StoreConfig, Tree, Value,
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

    fn put(&mut self, key: &[u8], marks: Marks, expiry: u32, value: NewValue<'_>) -> Result<(), Full> {
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
    let huge = HugeValue::new(&one.memory, &[&[1; 100_000]]).unwrap();
    one.put(&key, Marks::OBJECT, NEVER, NewValue::Huge(huge)).unwrap();
    let found = one.object(&key).unwrap();
    assert!(
        matches!(one.store.item(found).value(), Value::Huge(_))
            && one.store.tree_mut(found, |_| ()).is_none()
    );
    assert_eq!(usage(&one).huge_bytes as usize, 100_000_usize.next_multiple_of(PAGE_BYTES));
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
    one.store.advance(5, one.cas + 1);
    while one.store.tick() {}
    assert_eq!((one.memory.pinned_object_bytes(), one.store.usage().items), (0, 0), "a flush ends them too");
    one.store.verify();
}
