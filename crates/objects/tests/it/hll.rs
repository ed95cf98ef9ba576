//! `hll`: replies, edges, and estimates against exact numbers. The hash is fixed, so that every estimate is too.
#![allow(dead_code, reason = "the caller is shared")]

use std::collections::BTreeSet;

use crate::caller::{Answer, Objects, SplitMix64, any_calls, execute};
use proptest::prelude::*;

/// Adds the items `from..to`, many a call.
fn add(objects: &mut Objects, key: &[u8], from: u64, to: u64) {
    let items: Vec<[u8; 8]> = (from..to).map(u64::to_le_bytes).collect();
    for some in items.chunks(100) {
        let some: Vec<&[u8]> = some.iter().map(<[u8; 8]>::as_slice).collect();
        objects.call("hll", "add", key, &some);
    }
}

/// The estimate's error in parts of the exact number.
#[track_caller]
fn error(estimate: u64, exact: u64) -> f64 {
    (f64::from(estimate as u32) / f64::from(exact as u32) - 1.0).abs()
}

#[test]
fn replies() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("hll:count:K"), "(miss)");
    assert_eq!(objects.get("hll:add:K:a"), "1");
    assert_eq!(objects.get("hll:add:K:a"), "0");
    assert_eq!(objects.get("hll:add:K:a:b:c:b"), "1");
    assert_eq!(objects.get("hll:add:K:c:b:a"), "0");
    assert_eq!(objects.get("hll:count:K"), "3");
    assert_eq!(objects.get("hll:dump:K"), r#"{"count":3,"registers":16384,"form":"sparse"}"#);
    assert_eq!(objects.state("hll", b"K"), Some((false, 9)), "three bytes an item at first");
    assert_eq!(objects.get("hll:new:K"), "CREATED", "replaces");
    assert_eq!(objects.get("hll:count:K"), "0");
    assert_eq!(objects.get("hll:add:K"), "(CLIENT_ERROR hll.add: takes item [item ...])");
}

#[test]
fn estimates_are_within_a_few_standard_errors() {
    let mut objects = Objects::plain();
    let mut last = 0;
    for count in [1, 10, 100, 500, 682, 683, 700, 1000, 5000, 20_000, 40_000, 82_000, 200_000] {
        add(&mut objects, b"K", last, count);
        last = count;
        let estimate = objects.call("hll", "count", b"K", &[]).number();
        assert!(error(estimate, count) < 0.03, "{estimate} for {count}");
        if count <= 100 {
            assert!(estimate.abs_diff(count) <= 1, "{estimate} for {count}");
        }
    }
    // 64 sketches of 3,000 items each: the mean of their errors is far below the error of one.
    let (mut sum, mut squares) = (0.0, 0.0);
    for sketch in 0..64_u64 {
        let key = [b's', sketch as u8];
        add(&mut objects, &key, sketch << 32, (sketch << 32) + 3000);
        let estimate = objects.call("hll", "count", &key, &[]).number();
        let error = f64::from(estimate as u32) / 3000.0 - 1.0;
        sum += error;
        squares += error * error;
    }
    assert!((sum / 64.0).abs() < 0.005, "without bias");
    assert!(f64::sqrt(squares / 64.0) < 0.0125, "0.81 % and a margin");
}

#[test]
fn small_ones_are_sparse_and_large_ones_have_a_fixed_size() {
    let mut objects = Objects::plain();
    add(&mut objects, b"K", 0, 600);
    let (is_tree, bytes) = objects.state("hll", b"K").unwrap();
    assert!(!is_tree && bytes <= 1800, "{bytes}");
    add(&mut objects, b"K", 600, 800);
    let (is_tree, bytes) = objects.state("hll", b"K").unwrap();
    assert!(is_tree && (12_288..12_500).contains(&bytes), "{bytes}");
    let before = objects.get("hll:count:K");
    add(&mut objects, b"K", 0, 800);
    assert_eq!(objects.get("hll:count:K"), before);
    add(&mut objects, b"K", 800, 20_000);
    assert_eq!(objects.state("hll", b"K").unwrap().1, bytes);
    assert!(objects.get("hll:dump:K").ends_with(r#""form":"dense"}"#));
    assert_eq!(objects.get("hll:new:K"), "CREATED");
    assert_eq!(objects.state("hll", b"K"), Some((false, 0)), "small again");
}

#[test]
fn merge_counts_the_union_and_changes_nothing() {
    let mut objects = Objects::plain();
    add(&mut objects, b"A", 0, 300);
    add(&mut objects, b"B", 200, 500);
    add(&mut objects, b"C", 400, 6000);
    let mut all = Objects::plain();
    add(&mut all, b"AB", 0, 500);
    add(&mut all, b"ABC", 0, 6000);
    let before: Vec<String> =
        ["A", "B", "C"].iter().map(|key| objects.get(&format!("hll:count:{key}"))).collect();
    assert_eq!(objects.get("hll:merge:A:B"), all.get("hll:count:AB"), "both sparse");
    assert_eq!(objects.get("hll:merge:A:B:C"), all.get("hll:count:ABC"), "sparse and dense");
    assert_eq!(objects.get("hll:merge:C:A:A:B:C"), all.get("hll:count:ABC"), "in any order");
    assert_eq!(objects.get("hll:merge:A:A"), before[0]);
    assert_eq!(objects.get("hll:merge:A:absent"), before[0], "nothing to add");
    assert_eq!(objects.get("hll:merge:absent:A"), "(miss)");
    let after: Vec<String> =
        ["A", "B", "C"].iter().map(|key| objects.get(&format!("hll:count:{key}"))).collect();
    assert_eq!(before, after);
    let refused = Answer::Error("CLIENT_ERROR hll.merge: arg 2 must be a key of 1 to 250 bytes".to_owned());
    assert_eq!(objects.call("hll", "merge", b"A", &[b"B", &[b'x'; 251]]), refused);
    assert_eq!(objects.call("hll", "merge", b"A", &[b"B", b""]), refused);
}

/// The registers that a sketch's text stands for.
fn registers(text: &str) -> Vec<u8> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |text: &str| -> Vec<u8> {
        text.chars().map(|digit| DIGITS.find(digit).expect("a digit of base64") as u8).collect()
    };
    let Some(text) = text.strip_prefix("1s") else {
        return digits(text.strip_prefix("1d").expect("a version and a form"));
    };
    let mut registers = vec![0; 1 << 14];
    let mut after = None;
    for entry in digits(text).chunks(4) {
        let place = usize::from(entry[0]) << 12 | usize::from(entry[1]) << 6 | usize::from(entry[2]);
        assert!(after < Some(place), "ascending");
        after = Some(place);
        registers[place] = entry[3];
    }
    registers
}

#[test]
fn a_sketch_has_all_registers_whatever_the_form() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("hll:sketch:K"), "(miss)");
    assert_eq!(objects.get("hll:new:K"), "CREATED");
    assert_eq!(objects.get("hll:sketch:K"), "1s");
    assert_eq!(objects.get("hll:add:K:a"), "1");
    // rapidhash v3 of "a" is 0x599f_47df_33a2_e1eb: register 5735, and a 1 is the first bit after it.
    assert_eq!(objects.get("hll:sketch:K"), "1sBZnB");
    let mut last = 0;
    for count in [500, 700, 4000, 6000, 20_000] {
        add(&mut objects, b"L", last, count);
        last = count;
        let sketch = objects.get("hll:sketch:L");
        let registers = registers(&sketch);
        let filled = registers.iter().filter(|rank| **rank > 0).count();
        let (form, length) = if filled < 4096 { ("1s", 2 + filled * 4) } else { ("1d", 2 + 16_384) };
        assert_eq!((sketch.get(..2), sketch.len()), (Some(form), length), "{count} items");
        // The registers of other items add up to those of all.
        let (mut other, mut all) = (Objects::plain(), Objects::plain());
        add(&mut other, b"M", count / 2, count * 2);
        add(&mut all, b"A", 0, count * 2);
        let others = self::registers(&other.get("hll:sketch:M"));
        let merged: Vec<u8> = registers.iter().zip(&others).map(|(one, two)| *one.max(two)).collect();
        assert_eq!(merged, self::registers(&all.get("hll:sketch:A")), "{count} items");
    }
    assert_eq!(objects.get("hll:sketch:K:x"), "(CLIENT_ERROR hll.sketch: takes no arguments)");
}

#[test]
fn a_dense_one_needs_no_more_room() {
    let mut objects = Objects::plain();
    add(&mut objects, b"K", 0, 1000);
    objects.may_grow = false;
    add(&mut objects, b"K", 1000, 5000);
    objects.may_grow = true;
    add(&mut objects, b"L", 0, 5000);
    assert_eq!(objects.get("hll:dump:K"), objects.get("hll:dump:L"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Order, repetition and grouping of items make no difference, and a change is reported when the state has changed.
    #[test]
    fn order_makes_no_difference(count in 1_u64..2500, seed: u64) {
        let (mut once, mut shuffled) = (Objects::plain(), Objects::plain());
        let mut draws = SplitMix64(seed);
        let items: Vec<u64> = (0..count).map(|_| draws.below(3000)).collect();
        let distinct: BTreeSet<u64> = items.iter().copied().collect();
        for item in &distinct {
            once.call("hll", "add", b"K", &[&item.to_le_bytes()]);
        }
        for some in items.chunks(1 + draws.below(20) as usize) {
            let some: Vec<[u8; 8]> = some.iter().map(|item| item.to_le_bytes()).collect();
            let some: Vec<&[u8]> = some.iter().map(<[u8; 8]>::as_slice).collect();
            let before = shuffled.get("hll:dump:K");
            let reply = shuffled.call("hll", "add", b"K", &some).number();
            if reply == 0 {
                prop_assert_eq!(&before, &shuffled.get("hll:dump:K"));
            }
            prop_assert_eq!(shuffled.call("hll", "add", b"K", &some).number(), 0, "a second time");
        }
        prop_assert_eq!(once.get("hll:dump:K"), shuffled.get("hll:dump:K"));
        prop_assert_eq!(once.state("hll", b"K"), shuffled.state("hll", b"K"));
    }

    #[test]
    fn any_bytes(calls in any_calls()) {
        execute("hll", &["new", "add", "count", "merge", "sketch", "dump", "size", "drop"], &calls);
    }
}
