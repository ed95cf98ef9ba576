//! `topk`: replies, edges, and the bounds of its counts against exact ones.
#![allow(dead_code, reason = "the caller is shared")]

use std::collections::BTreeMap;

use crate::caller::{Answer, Objects, SplitMix64, any_calls, execute};
use proptest::prelude::*;

#[test]
fn the_most_frequent() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("topk:list:K"), "(miss)");
    assert_eq!(objects.get("topk:count:K:a"), "(miss)");
    assert_eq!(objects.get("topk:new:K:3"), "CREATED");
    assert_eq!(objects.get("topk:list:K"), "");
    assert_eq!(objects.get("topk:hit:K:a"), "1");
    assert_eq!(objects.get("topk:hit:K:b:5"), "5");
    assert_eq!(objects.get("topk:hit:K:a"), "2");
    assert_eq!(objects.get("topk:hit:K:c:2"), "2");
    assert_eq!(objects.get("topk:list:K"), "b 5\r\na 2\r\nc 2\r\n", "equal counts by name");
    assert_eq!(objects.get("topk:hit:K:d"), "3", "takes the lowest place, of c, and its count");
    assert_eq!(objects.get("topk:count:K:d"), "3 2");
    assert_eq!(objects.get("topk:count:K:c"), "(miss)");
    assert_eq!(objects.get("topk:count:K:b"), "5 0");
    assert_eq!(objects.get("topk:list:K:1"), "b 5\r\n");
    let dump = r#"{"k":3,"items":[{"item":"b","count":5,"error":0},{"item":"d","count":3,"error":2},{"item":"a","count":2,"error":0}]}"#;
    assert_eq!(objects.get("topk:dump:K"), dump);
    assert_eq!(objects.get("topk:new:K"), "CREATED", "replaces");
    assert_eq!(objects.get("topk:list:K"), "");
}

#[test]
fn limits() {
    let mut objects = Objects::plain();
    for n in ["0", "1001", "x", ""] {
        let refused = "(CLIENT_ERROR topk.new: arg 1 must be a number from 1 to 1000)";
        assert_eq!(objects.get(&format!("topk:new:K:{n}")), refused);
        assert_eq!(objects.get(&format!("topk:list:K:{n}")), "(miss)");
    }
    for n in ["0", "-1", "x", "", "9223372036854775808"] {
        let refused = "(CLIENT_ERROR topk.hit: arg 2 must be a positive number)";
        assert_eq!(objects.get(&format!("topk:hit:K:a:{n}")), refused);
    }
    assert_eq!(objects.get("topk:exists:K"), "NOT_FOUND", "a refused call makes no object");
    let refused = Answer::Error("CLIENT_ERROR topk.hit: arg 1 is longer than 250 bytes".to_owned());
    assert_eq!(objects.call("topk", "hit", b"K", &[&[b'x'; 251]]), refused);
    assert_eq!(objects.call("topk", "hit", b"K", &[&[b'x'; 250]]).number(), 1);

    for expected in
        ["9223372036854775807", "18446744073709551614", "18446744073709551615", "18446744073709551615"]
    {
        assert_eq!(objects.get("topk:hit:high:a:9223372036854775807"), expected, "stops at the limit");
    }
    assert_eq!(objects.get("topk:new:one:1"), "CREATED");
    for (item, count) in [("a", "1"), ("b", "2"), ("b", "3"), ("c", "4")] {
        assert_eq!(objects.get(&format!("topk:hit:one:{item}")), count);
    }
    assert_eq!(objects.get("topk:list:one"), "c 4\r\n");
    for n in 0..20 {
        objects.get(&format!("topk:hit:default:{n}"));
    }
    assert_eq!(objects.get("topk:list:default").lines().count(), 10);
}

#[test]
fn a_thousand_items_in_a_stream() {
    let mut objects = Objects::plain();
    objects.get("topk:new:K:1000");
    let mut draws = SplitMix64(1);
    let mut exact = BTreeMap::new();
    for _ in 0..20_000 {
        // One of ten items in half of the hits, and a long tail.
        let n = if draws.below(2) == 0 { draws.below(10) } else { 10 + draws.below(5000) };
        *exact.entry(format!("item-{n}")).or_insert(0_u64) += 1;
        objects.get(&format!("topk:hit:K:item-{n}"));
    }
    let list = objects.get("topk:list:K:10");
    let mut names: Vec<&str> = list.lines().map(|line| line.split(' ').next().unwrap()).collect();
    names.sort_unstable();
    let expected: Vec<String> = (0..10).map(|n| format!("item-{n}")).collect();
    assert_eq!(names, expected, "each was hit about 1,000 times, the others at most some tens of times");
    assert_eq!(objects.get("topk:list:K").lines().count(), 1000);
    assert_eq!(objects.state("topk", b"K").map(|state| state.0), Some(true), "outside the log");
}

#[test]
fn without_room_nothing_changes() {
    let mut objects = Objects::plain();
    objects.get("topk:new:K:400");
    for n in 0..400 {
        objects.get(&format!("topk:hit:K:{n}"));
    }
    let before = objects.get("topk:dump:K");
    objects.may_grow = false;
    for item in ["x", "0", "399"] {
        assert_eq!(objects.get(&format!("topk:hit:K:{item}")), "(no room)");
        assert_eq!(objects.get("topk:dump:K"), before);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What the paper proves, after every hit of the last few and at the end.
    #[test]
    fn counts_are_within_their_errors(k in 1_u64..40, items in 1_u64..80, length in 1_usize..30, seed: u64) {
        let mut objects = Objects::plain();
        objects.get(&format!("topk:new:K:{k}"));
        let mut exact: BTreeMap<String, u64> = BTreeMap::new();
        let (mut draws, mut sum) = (SplitMix64(seed), 0);
        for _ in 0..400 {
            let item = draws.below(items).min(draws.below(items));
            let (item, n) = (format!("{item:0length$}"), 1 + draws.below(3));
            sum += n;
            *exact.entry(item.clone()).or_default() += n;
            let count: u64 = objects.get(&format!("topk:hit:K:{item}:{n}")).parse().unwrap();
            prop_assert!(count >= exact[&item]);
        }
        let list = objects.get("topk:list:K");
        let counts: Vec<(&str, u64)> = list.lines().map(|line| {
            let (item, count) = line.rsplit_once(' ').unwrap();
            (item, count.parse().unwrap())
        }).collect();
        prop_assert_eq!(counts.len() as u64, k.min(exact.len() as u64));
        prop_assert!(counts.windows(2).all(|two| (two[1].1, two[0].0) < (two[0].1, two[1].0)), "in order");
        prop_assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), sum);
        let lowest = if counts.len() as u64 == k { counts.last().unwrap().1 } else { 0 };
        prop_assert!(lowest <= sum / k);
        for (item, exact) in &exact {
            match counts.iter().find(|(own, _)| own == item) {
                None => prop_assert!(*exact <= lowest),
                Some((_, count)) => {
                    let reply = objects.get(&format!("topk:count:K:{item}"));
                    let (own, error) = reply.split_once(' ').unwrap();
                    prop_assert_eq!(own.parse::<u64>().unwrap(), *count);
                    let error: u64 = error.parse().unwrap();
                    prop_assert!(error <= lowest && (count - error..=*count).contains(exact));
                }
            }
        }
    }

    #[test]
    fn any_bytes(calls in any_calls()) {
        execute("topk", &["new", "hit", "list", "count", "dump", "size", "drop"], &calls);
    }
}
