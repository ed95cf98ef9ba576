//! The store against plain maps: it returns the value stored last, or nothing.

use crate::model::{Model, Op};
use cattlegrid_store::Share;
use proptest::prelude::*;

fn op(keys: u16, longest: usize) -> impl Strategy<Value = Op> {
    let ttl = prop_oneof![3 => Just(0_u32), 2 => 1_u32..20, 1 => 20_u32..5_000_000];
    let len = prop_oneof![4 => 0_usize..200, 3 => 0_usize..3_000, 1 => 0..longest];
    prop_oneof![
        10 => (0..keys, len, ttl.clone(), prop_oneof![Just(0_u32), any::<u32>()])
            .prop_map(|(key, len, ttl, flags)| Op::Put { key, len, ttl, flags }),
        10 => (0..keys).prop_map(|key| Op::Get { key }),
        2 => (0..keys).prop_map(|key| Op::Delete { key }),
        1 => (0..keys, ttl).prop_map(|(key, ttl)| Op::Touch { key, ttl }),
        1 => (0..keys).prop_map(|key| Op::Cas { key }),
        1 => (0_u32..3).prop_map(|seconds| Op::Wait { seconds }),
        1 => Just(Op::Tick),
    ]
}

fn object_op(keys: u16, longest: usize) -> impl Strategy<Value = Op> {
    let ttl = prop_oneof![3 => Just(0_u32), 2 => 1_u32..20, 1 => 20_u32..5_000_000];
    let len = prop_oneof![8 => 0_usize..300, 1 => 0..longest];
    let (pinned, member) = (prop::bool::weighted(0.3), 0_u16..300);
    prop_oneof![
        8 => (0..keys, len, ttl.clone(), pinned)
            .prop_map(|(key, len, ttl, pinned)| Op::PutObject { key, len, ttl, pinned }),
        3 => (0..keys, 0_u16..200, ttl.clone(), pinned)
            .prop_map(|(key, entries, ttl, pinned)| Op::PutTree { key, entries, ttl, pinned }),
        8 => (0..keys).prop_map(|key| Op::GetObject { key }),
        4 => (0..keys).prop_map(|key| Op::EditObject { key }),
        4 => (0..keys, member.clone(), 0_u16..60, 0_usize..1_500)
            .prop_map(|(key, from, entries, len)| Op::Grow { key, from, entries, len }),
        3 => (0..keys, member, 0_u16..200).prop_map(|(key, from, entries)| Op::Shrink { key, from, entries }),
        2 => (0..keys).prop_map(|key| Op::Drop { key }),
        1 => (0..keys, ttl).prop_map(|(key, ttl)| Op::TouchObject { key, ttl }),
        1 => (0..keys, any::<bool>()).prop_map(|(key, on)| Op::Pin { key, on }),
        1 => Just(Op::Reclaim),
        1 => (0..5_u8).prop_map(|kind| Op::End { kind }),
    ]
}

fn ops(keys: u16, longest: usize, count: usize) -> impl Strategy<Value = Vec<Op>> {
    let rare = prop_oneof![
        300 => op(keys, longest),
        100 => object_op(keys / 4, longest),
        1 => Just(Op::Flush),
        1 => (1_usize..200_000).prop_map(|bytes| Op::GiveBack { bytes }),
        1 => Just(Op::Purge),
    ];
    prop::collection::vec(rare, count..=count)
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 2 } else { count },
        failure_persistence: None,
        ..Default::default()
    }
}

fn run(bytes: usize, evictions: bool, ops: &[Op]) {
    run_pinning(bytes, evictions, bytes / 4, ops);
}

fn run_pinning(bytes: usize, evictions: bool, pinned_max: usize, ops: &[Op]) {
    let mut model = Model::new(bytes, evictions);
    model.pinned_max = pinned_max;
    run_model(model, ops);
}

/// Shares of plain keys and of objects, one within another.
fn shares() -> [Share; 4] {
    [(&[1][..], 0.2, 0.4), (&[2], 0.0, 0.1), (b"key:1", 0.1, 0.3), (b"key:12", 0.0, 1.0)]
        .map(|(prefix, at_least, at_most)| Share { prefix: prefix.into(), at_least, at_most })
}

fn run_model(mut model: Model, ops: &[Op]) {
    for (i, op) in ops.iter().enumerate() {
        model.step(op);
        if i % 500 == 499 {
            model.store.verify();
        }
    }
    model.store.verify();
}

const LONG: usize = if cfg!(miri) { 300 } else { 4_000 };

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_mebibyte_with_evictions(ops in ops(3_000, 60_000, LONG)) {
        run(1 << 20, true, &ops);
    }

    #[test]
    fn a_mebibyte_without_evictions(ops in ops(3_000, 20_000, LONG)) {
        run(1 << 20, false, &ops);
    }

    #[test]
    fn four_mebibytes_few_keys_many_rewrites(ops in ops(60, 300_000, LONG)) {
        run(4 << 20, true, &ops);
    }

}

proptest! {
    #![proptest_config(cases(8))]

    /// Far too much is pinned: writes are refused, and nothing that is pinned is lost.
    #[test]
    fn a_mebibyte_of_pinned_objects(ops in ops(3_000, 60_000, LONG), evictions: bool) {
        run_pinning(1 << 20, evictions, usize::MAX, &ops);
    }

    #[test]
    fn two_mebibytes_in_shares(ops in ops(3_000, 60_000, LONG)) {
        run_model(Model::sharing(2 << 20, true, &shares()), &ops);
    }

    /// Shares that are smaller than their open segments.
    #[test]
    fn a_mebibyte_in_shares(ops in ops(3_000, 60_000, LONG)) {
        run_model(Model::sharing(1 << 20, true, &shares()), &ops);
    }

    #[test]
    fn a_few_objects_with_large_trees(ops in prop::collection::vec(object_op(12, 60_000), LONG)) {
        run(2 << 20, true, &ops);
    }
}

/// Many small items in little memory: the index must get its pages while the log holds nearly all of them.
#[test]
fn the_index_grows_in_a_full_store() {
    let mut model = Model::new(1 << 20, true);
    for round in 0..3_u32 {
        for key in 0..if cfg!(miri) { 300 } else { 30_000 } {
            model.step(&Op::Put { key, len: if round == 0 { 2_000 } else { 3 }, ttl: 0, flags: 0 });
        }
        model.store.verify();
    }
    let usage = model.store.usage();
    assert!(cfg!(miri) || usage.items > 8_000, "{usage:?}");
}

/// Upkeep stays ahead of the writers: no write has to collect a whole segment while its client waits.
#[test]
fn no_write_waits_for_the_collector() {
    let mut model = Model::new(if cfg!(miri) { 1 << 20 } else { 12 << 20 }, true);
    for n in 0..if cfg!(miri) { 1_000_u32 } else { 300_000 } {
        model.step(&Op::Put {
            key: (n % 60_000) as u16,
            len: (n % 977) as usize,
            ttl: n % 5 * 100,
            flags: 0,
        });
        if n % 3 == 0 {
            model.step(&Op::Get { key: (n / 2 % 60_000) as u16 });
        }
    }
    let stats = model.store.stats();
    assert!(cfg!(miri) || stats.evictions > 100_000, "{stats:?}");
    assert_eq!(stats.collected_in_haste, 0, "{stats:?}");
    model.store.verify();
}
