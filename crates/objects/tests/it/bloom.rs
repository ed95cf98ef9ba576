//! `bloom`: replies, edges, sizes, and rates of errors against exact sets. The hash is fixed, so that every error is too.
#![allow(dead_code, reason = "the caller is shared")]

use std::collections::BTreeSet;

use crate::caller::{Answer, Objects, SplitMix64, any_calls, execute};
use cattlegrid_objects::{Settings, TypeSettings};
use proptest::prelude::*;

/// Adds `n` items to a filter for `n` and rate `p`. Returns the share of other items that are seen.
fn rate(n: u64, p: &str) -> f64 {
    let mut objects = Objects::plain();
    assert_eq!(objects.get(&format!("bloom:new:K:{n}:{p}")), "CREATED");
    for item in 0..n {
        objects.call("bloom", "add", b"K", &[&item.to_le_bytes()]);
    }
    let others = 20_000_u32;
    let seen = (0..others).filter(|other| {
        let item = (u64::from(*other) + (1 << 40)).to_le_bytes();
        objects.call("bloom", "has", b"K", &[&item]) == Answer::Value(b"SEEN".to_vec())
    });
    f64::from(seen.count() as u32) / f64::from(others)
}

#[test]
fn replies() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("bloom:has:K:a"), "(miss)");
    assert_eq!(objects.get("bloom:count:K"), "(miss)");
    assert_eq!(objects.get("bloom:add:K:a"), "NEW");
    assert_eq!(objects.get("bloom:add:K:a"), "SEEN");
    assert_eq!(objects.get("bloom:has:K:a"), "SEEN");
    assert_eq!(objects.get("bloom:has:K:b"), "NEW");
    assert_eq!(objects.get("bloom:has:K:b"), "NEW", "has adds nothing");
    assert_eq!(objects.get("bloom:count:K"), "1");
    let dump = r#"{"n":10000,"p":0.01,"bits":98304,"hashes":7,"blocks":24,"blocks_used":1,"count":1}"#;
    assert_eq!(objects.get("bloom:dump:K"), dump);
    assert_eq!(objects.get("bloom:new:K:5:0.25"), "CREATED", "replaces");
    assert_eq!(objects.get("bloom:has:K:a"), "NEW");
    let dump = r#"{"n":5,"p":0.25,"bits":4096,"hashes":2,"blocks":1,"blocks_used":0,"count":0}"#;
    assert_eq!(objects.get("bloom:dump:K"), dump);
}

#[test]
fn limits() {
    let mut objects = Objects::plain();
    for n in ["0", "1000000001", "x", "", "-1", "1e3"] {
        let refused = "(CLIENT_ERROR bloom.new: arg 1 must be a number from 1 to 1000000000)";
        assert_eq!(objects.get(&format!("bloom:new:K:{n}")), refused);
    }
    for p in ["0", "0.0000009", "0.51", "1", "x", "", "nan", "inf", "-0.1"] {
        let refused = "(CLIENT_ERROR bloom.new: arg 2 must be a number from 0.000001 to 0.5)";
        assert_eq!(objects.get(&format!("bloom:new:K:10:{p}")), refused);
    }
    let refused = "(CLIENT_ERROR bloom.new: such a filter has more than 64 MiB)";
    assert_eq!(objects.get("bloom:new:K:1000000000:0.01"), refused);
    assert_eq!(objects.get("bloom:new:K:60000000:0.01"), refused);
    assert_eq!(objects.get("bloom:exists:K"), "NOT_FOUND");
    assert_eq!(objects.get("bloom:new:K:50000000:0.01"), "CREATED");
    assert_eq!(objects.get("bloom:add:K:a"), "NEW");
    let (is_tree, bytes) = objects.state("bloom", b"K").unwrap();
    assert!(!is_tree && bytes < 1024, "blocks without items take no memory: {bytes}");
    assert_eq!(objects.get("bloom:new:one:1:0.000001"), "CREATED");
    assert_eq!(objects.get("bloom:add:one:a"), "NEW");
    assert_eq!(objects.get("bloom:add:K:"), "(CLIENT_ERROR bloom.add: arg 1 must not be empty)");
    let refused = Answer::Error("CLIENT_ERROR bloom.add: arg 1 is longer than 250 bytes".to_owned());
    assert_eq!(objects.call("bloom", "add", b"K", &[&[b'x'; 251]]), refused);
}

#[test]
fn rates_of_errors_are_as_chosen() {
    // Up to p; twice that is several standard deviations away. At least a fifth: the filter is no larger than needed.
    for (n, p) in [(300, "0.01"), (10_000, "0.01"), (10_000, "0.1"), (30_000, "0.5"), (5000, "0.001")] {
        let chosen: f64 = p.parse().unwrap();
        let rate = rate(n, p);
        assert!(rate < 1.3 * chosen + 0.0015, "{rate} for {p}");
        assert!(n == 300 || rate > chosen / 5.0, "{rate} for {p}");
    }
    assert!(rate(5000, "0.000001") == 0.0);
}

#[test]
fn sizes_are_those_of_the_formula() {
    let mut objects = Objects::plain();
    objects.get("bloom:new:K:20000:0.01");
    let mut new = 0;
    for item in 0..20_000_u32 {
        new += u64::from(objects.call("bloom", "add", b"K", &[&item.to_le_bytes()]).text() == "NEW");
    }
    assert_eq!(objects.get("bloom:count:K"), new.to_string());
    assert!((19_850..=20_000).contains(&new), "few errors on the way: {new}");
    let (is_tree, bytes) = objects.state("bloom", b"K").unwrap();
    // 20,000 x 9.585 bits
    assert!(is_tree && (23_963..25_500).contains(&bytes), "{bytes}");
}

#[test]
fn absent_objects_are_made_by_add_as_the_settings_say() {
    let create = Some(vec![b"77".to_vec(), b"0.125".to_vec()]);
    let types = vec![TypeSettings { create, ..TypeSettings::new("bloom") }];
    let mut objects = Objects::new(Settings { types, ..Settings::default() }, 16 << 20);
    assert_eq!(objects.get("bloom:add:K:a"), "NEW");
    assert!(objects.get("bloom:dump:K").starts_with(r#"{"n":77,"p":0.125,"#));
}

#[test]
fn without_room_only_blocks_that_are_there_change() {
    let mut objects = Objects::plain();
    objects.get("bloom:new:K:100000");
    for item in 0..200 {
        objects.get(&format!("bloom:add:K:{item}"));
    }
    objects.may_grow = false;
    let (mut refused, mut added) = (0, 0);
    for item in 1000..1400 {
        let before = objects.get("bloom:dump:K");
        match objects.get(&format!("bloom:add:K:{item}")).as_str() {
            "(no room)" => {
                refused += 1;
                assert_eq!(objects.get("bloom:dump:K"), before);
                assert_eq!(objects.get(&format!("bloom:has:K:{item}")), "NEW");
            }
            reply => {
                assert_eq!(reply, "NEW");
                added += 1;
                assert_eq!(objects.get(&format!("bloom:has:K:{item}")), "SEEN");
            }
        }
    }
    assert!(refused > 50 && added > 50, "{refused} refused, {added} added");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What was added is seen, always; a SEEN changes nothing; has says what add says.
    #[test]
    fn nothing_is_forgotten(n in 1_u64..2000, p in 1_u32..50, adds in 1_usize..600, seed: u64) {
        let mut objects = Objects::plain();
        objects.get(&format!("bloom:new:K:{n}:0.{p:02}"));
        let (mut draws, mut model, mut new) = (SplitMix64(seed), BTreeSet::new(), 0);
        for _ in 0..adds {
            let item = draws.below(1000);
            let has = objects.get(&format!("bloom:has:K:{item}"));
            prop_assert_eq!(&objects.get(&format!("bloom:add:K:{item}")), &has);
            if !model.insert(item) {
                prop_assert_eq!(&has, "SEEN");
            }
            new += u64::from(has == "NEW");
        }
        for item in &model {
            prop_assert_eq!(objects.get(&format!("bloom:has:K:{item}")), "SEEN");
        }
        prop_assert_eq!(objects.get("bloom:count:K"), new.to_string());
    }

    #[test]
    fn any_bytes(calls in any_calls()) {
        execute("bloom", &["new", "add", "has", "count", "dump", "size", "drop"], &calls);
    }
}
