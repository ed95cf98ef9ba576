//! The tree against a plain map, in budgets that are used up; what it holds, and gives back.

mod model;

use std::ops::Bound;
use std::sync::Arc;

use cattlegrid_store::{Memory, PAGE_BYTES, Tree, Value};
use model::{Key, Model, Op, SHAPES};
use proptest::prelude::*;

fn key(shapes: u8, keys: u16) -> impl Strategy<Value = Key> {
    (0..shapes, 0..keys).prop_map(|(shape, n)| Key(shape, n))
}

fn op(shapes: u8, keys: u16) -> impl Strategy<Value = Op> {
    let len = prop_oneof![4 => 0_usize..20, 2 => 0_usize..300, 2 => 900_usize..2_100, 1 => 0_usize..20_000];
    prop_oneof![
        300 => (key(shapes, keys), len.clone()).prop_map(|(key, len)| Op::Insert { key, len }),
        200 => key(shapes, keys).prop_map(|key| Op::Remove { key }),
        50 => key(shapes, keys).prop_map(|key| Op::Get { key }),
        20 => (0..keys).prop_map(|place| Op::Nth { place }),
        10 => (key(shapes, keys), 1_usize..40).prop_map(|(key, count)| Op::Scan { key, count }),
        10 => (key(shapes, keys), 1_u16..80, 1_u16..400, len)
            .prop_map(|(from, count, step, len)| Op::Reserved { from, count, step, len }),
        8 => (0_usize..20).prop_map(|pages| Op::Leave { pages }),
        8 => Just(Op::Leave { pages: 10_000 }),
        1 => (1_usize..30).prop_map(|pages| Op::TakeApart { pages }),
    ]
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 1 } else { count },
        failure_persistence: None,
        ..Default::default()
    }
}

fn run(pages: usize, ops: &[Op]) {
    let mut model = Model::new(pages);
    for (n, op) in ops.iter().enumerate() {
        model.step(op);
        if n % 50 == 49 {
            model.verify();
        }
    }
    model.verify();
    model.end();
}

const LONG: usize = if cfg!(miri) { 60 } else { 2_000 };

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn all_forms_of_keys(ops in prop::collection::vec(op(SHAPES, 700), LONG)) {
        run(1_024, &ops);
    }

    #[test]
    fn few_pages(ops in prop::collection::vec(op(SHAPES, 5_000), LONG)) {
        run(64, &ops);
    }

    #[test]
    fn many_short_keys(ops in prop::collection::vec(op(2, 60_000), LONG)) {
        run(512, &ops);
    }
}

fn tree(memory_bytes: usize) -> (Arc<Memory>, Tree) {
    let memory = Memory::new(memory_bytes).expect("the system has this much memory");
    let tree = Tree::new(&memory).expect("a page is free");
    (memory, tree)
}

fn member(n: u32) -> [u8; 20] {
    let mut key = *b"member:0000000000000";
    let mut n = n;
    for digit in key[7..].iter_mut().rev() {
        *digit = b'0' + (n % 10) as u8;
        n /= 10;
    }
    key
}

/// Each number below `count` once, in an order without a pattern.
fn shuffled(count: u32) -> impl Iterator<Item = u32> {
    assert!(!count.is_multiple_of(65_537));
    (0..u64::from(count)).map(move |n| (n * 65_537 % u64::from(count)) as u32)
}

const MANY: u32 = if cfg!(miri) { 1_000 } else { 100_000 };

#[test]
fn ascending_keys_fill_their_pages() {
    let (_, mut tree) = tree(32 << 20);
    for n in 0..MANY {
        assert_eq!(tree.insert(&member(n), b""), Ok(true));
    }
    tree.verify();
    // 20 bytes of the key, 9 for its slot and lengths.
    let wanted = MANY as usize * 29;
    let held = tree.held_bytes();
    assert!(held < wanted + wanted / 20 + 3 * PAGE_BYTES, "{held} for {wanted}");
}

#[test]
fn a_tree_that_has_shrunk_to_a_tenth_has_given_its_pages_back() {
    let fresh = |every: usize| {
        let (memory, mut tree) = tree(32 << 20);
        for n in shuffled(MANY).step_by(every) {
            assert_eq!(tree.insert(&member(n), b"1"), Ok(true));
        }
        (memory, tree)
    };
    let (memory, mut tree) = fresh(1);
    let small = fresh(10).1.held_bytes();
    for (place, n) in shuffled(MANY).enumerate() {
        if place % 10 != 0 {
            assert!(tree.remove(&member(n)));
        }
    }
    tree.verify();
    assert_eq!(tree.len(), u64::from(MANY / 10));
    assert!(tree.held_bytes() < 2 * small, "{} and {small}", tree.held_bytes());
    assert!(tree.heap_bytes() <= tree.held_bytes() / 100, "{}", tree.heap_bytes());
    for n in shuffled(MANY).step_by(10) {
        assert!(tree.remove(&member(n)));
    }
    tree.verify();
    assert_eq!((tree.len(), tree.bytes(), memory.used_bytes()), (0, 0, PAGE_BYTES));
}

/// At each allocation of an insert the budget ends; the tree stays as it was, and has all it needs with a
/// page for each level.
#[test]
fn an_insert_that_finds_no_page_changes_nothing() {
    let (memory, mut tree) = tree(16 << 20);
    let long = |n: u32| [&[b'k'; 1000][..], &member(n)].concat();
    let mut most = 0;
    for n in shuffled(if cfg!(miri) { 40 } else { 1_500 }) {
        let key = long(n);
        let mut others = memory.scattered(memory.free_bytes()).unwrap();
        assert_eq!(memory.free_bytes(), 0);
        let (len, bytes, held) = (tree.len(), tree.bytes(), tree.held_bytes());
        let mut missing = 0;
        while let Err(full) = tree.insert(&key, &[7; 900]) {
            missing += 1;
            assert!(full.bytes > memory.free_bytes());
            assert_eq!((tree.len(), tree.bytes(), tree.held_bytes()), (len, bytes, held));
            assert!(tree.get(&key).is_none());
            if n % 7 == 0 {
                tree.verify();
            }
            others.truncate(0);
            others = memory.scattered(memory.free_bytes() - missing * PAGE_BYTES).unwrap();
        }
        most = most.max(missing);
        if n % 97 == 0 {
            tree.verify();
        }
    }
    assert!(most >= if cfg!(miri) { 2 } else { 4 }, "{most} pages at once");
    assert!(tree.verify_height() + 1 >= most, "{most} pages at once");
}

#[test]
fn a_long_value_that_finds_no_page_changes_nothing() {
    let (memory, mut tree) = tree(64 * PAGE_BYTES);
    tree.insert(b"a", &[1; 5_000]).unwrap();
    let others = memory.scattered(memory.free_bytes() - PAGE_BYTES).unwrap();
    let held = tree.held_bytes();
    assert_eq!(held, PAGE_BYTES + 5_000_usize.next_multiple_of(256));
    assert_eq!(tree.insert(b"a", &[2; 5_000]).unwrap_err().bytes, 5_000);
    assert_eq!(tree.insert(b"b", &[2; 5_000]).unwrap_err().bytes, 5_000);
    assert_eq!((tree.held_bytes(), tree.len(), tree.bytes()), (held, 1, 5_001));
    assert_eq!(tree.insert(b"b", &[2; 3_000]), Ok(true));
    drop(others);
    // Its page has no room for another entry of that size, and there is none for a second page.
    for n in 0..4 {
        tree.insert(&[n], &[3; 950]).unwrap();
    }
    let others = memory.scattered(memory.free_bytes() - PAGE_BYTES).unwrap();
    let (held, used) = (tree.held_bytes(), memory.used_bytes());
    assert!(tree.insert(&[b'c'; 1024], &[2; 3_000]).is_err());
    assert_eq!((tree.held_bytes(), memory.used_bytes(), tree.len()), (held, used, 6));
    tree.verify();
    drop(others);
    tree.insert(b"a", b"short").unwrap();
    tree.remove(b"b");
    tree.verify();
    assert_eq!(memory.used_bytes(), tree.held_bytes());
}

/// A value that is being sent when its entry goes stays whole, and counts as pinned.
#[test]
fn a_long_value_outlives_its_entry_while_it_is_sent() {
    let (memory, mut tree) = tree(64 * PAGE_BYTES);
    for way in 0..4 {
        tree.insert(b"key", &[way; 10_000]).unwrap();
        let Some(Value::Huge(huge)) = tree.get(b"key") else { panic!("it has pages of its own") };
        let huge = Arc::clone(huge);
        assert_eq!(memory.pinned_bytes(), 0);
        match way {
            0 => assert!(tree.remove(b"key")),
            1 => assert_eq!(tree.insert(b"key", b"short"), Ok(false)),
            2 => assert!(tree.take_apart(usize::MAX)),
            _ => tree = Tree::new(&memory).unwrap(),
        }
        assert_eq!(memory.pinned_bytes(), 10_000_usize.next_multiple_of(256));
        assert!(huge.slices().flatten().all(|byte| *byte == way));
        drop(huge);
        assert_eq!((memory.pinned_bytes(), memory.used_bytes()), (0, tree.held_bytes()));
    }
}

#[test]
fn a_reserve_takes_few_pages() {
    let (memory, mut tree) = tree(16 << 20);
    let reserve = |tree: &mut Tree, inserts, key, value| {
        let before = memory.used_bytes();
        tree.reserve_for(inserts, key, value).unwrap();
        let pages = (memory.used_bytes() - before) / PAGE_BYTES;
        tree.release_reserve();
        assert_eq!(memory.used_bytes(), before);
        pages
    };
    assert_eq!(reserve(&mut tree, 0, 0, 0), 0);
    assert_eq!(reserve(&mut tree, 1, Tree::KEY_MAX, Tree::VALUE_INLINE_MAX), 2, "a leaf and a root");
    assert!(reserve(&mut tree, 100, 20, 0) <= 5);
    assert!(reserve(&mut tree, 1_000, 20, 0) <= 40);
    for n in 0..4_000 {
        tree.insert(&member(n), b"").unwrap();
    }
    assert_eq!(reserve(&mut tree, 1, 20, 0), 3, "a leaf, the page above and a root");
    assert!(reserve(&mut tree, 20, 20, 0) <= 24);
}

/// Inserts these keys with room in reserve; the pages that were reserved, and those that the tree has more.
fn reserved_and_used(old: &[Vec<u8>], keys: &[Vec<u8>], removed: usize, len: usize) -> (usize, usize) {
    let (_, mut tree) = tree(512 << 20);
    let value = [b'v'; Tree::VALUE_INLINE_MAX];
    for key in old {
        tree.insert(key, b"").expect("there is room");
    }
    let longest = keys.iter().map(Vec::len).max().unwrap_or(0);
    let before = tree.held_bytes();
    tree.reserve_for(keys.len(), longest, len).expect("there is room");
    let held = tree.held_bytes();
    for (n, key) in keys.iter().enumerate() {
        tree.insert(key, &value[..len]).expect("room was reserved");
        if removed > 0 && n % removed == 0 {
            tree.remove(&keys[n / 2]);
        }
        if let (true, Some(key)) = (removed == 1, old.get(n)) {
            tree.remove(key);
        }
        assert_eq!(tree.held_bytes(), held, "only the reserve is taken, insert {n} of {}", keys.len());
    }
    tree.release_reserve();
    ((held - before) / PAGE_BYTES, tree.held_bytes().saturating_sub(before) / PAGE_BYTES)
}

/// Keys of this many bytes that differ in their last ones only, so that those of inner pages are as long.
fn alike(numbers: impl Iterator<Item = u32>, len: usize) -> Vec<Vec<u8>> {
    numbers.map(|n| [&vec![b'k'; len - 4][..], &n.to_be_bytes()].concat()).collect()
}

#[test]
fn a_reserve_for_long_keys_is_a_small_multiple_of_what_they_take() {
    for count in [10, 100, 1_000] {
        for (key, len) in [(1_000, 0), (1_000, 20), (Tree::KEY_MAX, Tree::VALUE_INLINE_MAX), (700, 300)] {
            let up = alike(0..count, key);
            let down: Vec<_> = up.iter().rev().cloned().collect();
            let mixed = alike((0..count).map(|n| n * 7_919 % count), key);
            for keys in [up, down, mixed] {
                let (reserved, used) = reserved_and_used(&[], &keys, 0, len);
                assert!(
                    used <= reserved && reserved <= 8 * used + 4,
                    "{count} of {key} + {len}: {reserved}, {used}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_reserve_is_enough(
        old in prop::collection::btree_set(0_u32..4_000, 0..600),
        new in prop::collection::vec(0_u32..4_000, 1..600),
        key in prop_oneof![8_usize..60, 600_usize..=Tree::KEY_MAX],
        old_key in prop_oneof![8_usize..60, 600_usize..=Tree::KEY_MAX],
        len in prop_oneof![Just(0), 0_usize..=Tree::VALUE_INLINE_MAX],
        removed in 0_usize..4,
    ) {
        let (old, new) = (alike(old.into_iter(), old_key), alike(new.into_iter(), key));
        let (reserved, used) = reserved_and_used(&old, &new, removed, len);
        prop_assert!(used <= reserved);
        // All pages of the old ones may be full.
        prop_assert!(reserved <= 4 * (old.len() + new.len()) + 4, "{} for {}", reserved, new.len());
    }
}

#[test]
fn the_longest_keys_and_values() {
    let (memory, mut tree) = tree(16 << 20);
    let longest = [b'k'; Tree::KEY_MAX];
    for (len, outside) in [
        (Tree::VALUE_INLINE_MAX, 0),
        (1_009, 0),
        (1_010, 1_024),
        (PAGE_BYTES, PAGE_BYTES),
        (PAGE_BYTES + 1, PAGE_BYTES + 256),
        (1 << 20, 1 << 20),
    ] {
        tree.insert(&longest, &vec![9; len]).unwrap();
        assert_eq!(tree.held_bytes(), PAGE_BYTES + outside, "{len}");
        assert_eq!(tree.get(&longest).unwrap().len(), len);
        assert_eq!(tree.get_mut(&longest).is_some(), outside == 0);
    }
    tree.insert(b"", b"").unwrap();
    assert_eq!((tree.rank(b""), tree.rank(&longest)), (Ok(0), Ok(1)));
    assert!(tree.get(b"").unwrap().is_empty());
    tree.verify();
    drop(tree);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
#[cfg(not(debug_assertions))]
fn a_key_that_is_too_long_is_refused() {
    let (_, mut tree) = tree(1 << 20);
    assert_eq!(tree.insert(&[0; Tree::KEY_MAX + 1], b"").unwrap_err().bytes, 0);
    assert!(tree.get(&[0; Tree::KEY_MAX + 1]).is_none());
}

#[test]
fn no_tree_without_a_page() {
    let memory = Memory::new(64 * PAGE_BYTES).unwrap();
    let all = memory.scattered(64 * PAGE_BYTES).unwrap();
    assert_eq!(Tree::new(&memory).unwrap_err().bytes, PAGE_BYTES);
    drop(all);
    assert!(Tree::new(&memory).is_ok());
}

/// A call that reads a tree in pieces goes on where it stopped, whatever has changed.
#[test]
fn a_scan_goes_on_behind_a_key_that_has_gone() {
    let (_, mut tree) = tree(16 << 20);
    for n in 0..5_000 {
        tree.insert(&member(n), b"").unwrap();
    }
    let mut last = member(0).to_vec();
    let mut seen = 1;
    loop {
        let before = last.clone();
        tree.scan(Bound::Excluded(&before), |key, _| {
            last = key.to_vec();
            seen += 1;
            seen % 100 != 0
        });
        if last == before {
            break;
        }
        tree.remove(&last);
    }
    assert_eq!(seen, 5_000);
    tree.verify();
}

fn _is_send(tree: Tree) -> impl Send + std::fmt::Debug {
    tree
}
