//! `recent`: replies, edges, and random calls against a list.
#![allow(dead_code, reason = "the caller is shared")]

use std::collections::VecDeque;

use crate::caller::{Answer, Objects, SplitMix64, any_calls, execute};
use cattlegrid_objects::{Settings, TypeSettings};
use proptest::prelude::*;

#[test]
fn newest_first() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("recent:list:K"), "(miss)");
    assert_eq!(objects.get("recent:count:K"), "(miss)");
    assert_eq!(objects.get("recent:new:K:3"), "CREATED");
    assert_eq!(objects.get("recent:list:K"), "");
    assert_eq!(objects.get("recent:add:K:a"), "NEW");
    assert_eq!(objects.get("recent:add:K:b"), "NEW");
    assert_eq!(objects.get("recent:add:K:a"), "SEEN");
    assert_eq!(objects.get("recent:list:K"), "a\r\nb\r\n");
    assert_eq!(objects.get("recent:add:K:c"), "NEW");
    assert_eq!(objects.get("recent:add:K:c"), "SEEN");
    assert_eq!(objects.get("recent:add:K:d"), "NEW", "b makes room");
    assert_eq!(objects.get("recent:list:K"), "d\r\nc\r\na\r\n");
    assert_eq!(objects.get("recent:list:K:2"), "d\r\nc\r\n");
    assert_eq!(objects.get("recent:dump:K"), r#"{"max":3,"items":["d","c","a"]}"#);
    assert_eq!(objects.get("recent:remove:K:c"), "DELETED");
    assert_eq!(objects.get("recent:remove:K:c"), "NOT_FOUND");
    assert_eq!(objects.get("recent:count:K"), "2");
    assert_eq!(objects.get("recent:add:K:e"), "NEW");
    assert_eq!(objects.get("recent:list:K"), "e\r\nd\r\na\r\n");
    assert_eq!(objects.get("recent:new:K"), "CREATED", "replaces");
    assert_eq!(objects.get("recent:count:K"), "0");
}

#[test]
fn limits() {
    let mut objects = Objects::plain();
    for n in ["0", "1001", "x", "", "-1"] {
        let refused = "(CLIENT_ERROR recent.new: arg 1 must be a number from 1 to 1000)";
        assert_eq!(objects.get(&format!("recent:new:K:{n}")), refused);
    }
    assert_eq!(objects.get("recent:exists:K"), "NOT_FOUND");
    assert_eq!(objects.get("recent:add:K:"), "(CLIENT_ERROR recent.add: arg 1 must not be empty)");
    assert_eq!(objects.get("recent:exists:K"), "NOT_FOUND", "a refused call makes no object");
    let long = [b'x'; 251];
    let refused = Answer::Error("CLIENT_ERROR recent.add: arg 1 is longer than 250 bytes".to_owned());
    assert_eq!(objects.call("recent", "add", b"K", &[&long]), refused);
    assert_eq!(objects.call("recent", "add", b"K", &[&long[1..]]).text(), "NEW");

    assert_eq!(objects.get("recent:new:one:1"), "CREATED");
    for item in ["a", "b", "b", "a"] {
        objects.get(&format!("recent:add:one:{item}"));
    }
    assert_eq!(objects.get("recent:list:one"), "a\r\n");

    assert_eq!(objects.get("recent:new:all:1000"), "CREATED");
    for n in 0..1500 {
        assert_eq!(objects.get(&format!("recent:add:all:{n}")), "NEW");
    }
    assert_eq!(objects.get("recent:count:all"), "1000");
    let list = objects.get("recent:list:all");
    assert_eq!(
        (list.lines().count(), list.lines().next(), list.lines().last()),
        (1000, Some("1499"), Some("500"))
    );
    assert_eq!(objects.state("recent", b"all").map(|state| state.0), Some(true), "outside the log");
}

#[test]
fn absent_objects_are_made_by_add_as_the_settings_say() {
    let mut objects = Objects::plain();
    for n in 0..150 {
        objects.get(&format!("recent:add:K:{n}"));
    }
    assert_eq!(objects.get("recent:count:K"), "100");

    let create = Some(vec![b"2".to_vec()]);
    let types = vec![TypeSettings { create, ..TypeSettings::new("recent") }];
    let mut objects = Objects::new(Settings { types, ..Settings::default() }, 16 << 20);
    for item in ["a", "b", "c"] {
        assert_eq!(objects.get(&format!("recent:add:K:{item}")), "NEW");
    }
    assert_eq!(objects.get("recent:list:K"), "c\r\nb\r\n");
    assert_eq!(objects.get("recent:list:other"), "", "made by any method");
}

#[test]
fn without_room_nothing_changes() {
    let mut objects = Objects::plain();
    objects.get("recent:new:K:400");
    for n in 0..400 {
        objects.get(&format!("recent:add:K:{n}"));
    }
    let before = objects.get("recent:dump:K");
    objects.may_grow = false;
    for item in ["x", "0", "200"] {
        assert_eq!(objects.get(&format!("recent:add:K:{item}")), "(no room)");
        assert_eq!(objects.get("recent:dump:K"), before);
    }
    assert_eq!(objects.get("recent:add:K:399"), "SEEN", "the newest already");
    assert_eq!(objects.get("recent:remove:K:7"), "DELETED");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn as_a_list(limit in 1_usize..60, items in 1_u64..90, length in 1_usize..40, seed: u64) {
        let mut objects = Objects::plain();
        objects.get(&format!("recent:new:K:{limit}"));
        let mut model: VecDeque<String> = VecDeque::new();
        let mut draws = SplitMix64(seed);
        for _ in 0..300 {
            let item = format!("{:0length$}", draws.below(items));
            let place = model.iter().position(|own| *own == item);
            if draws.below(5) == 0 {
                let reply = objects.get(&format!("recent:remove:K:{item}"));
                prop_assert_eq!(reply, if place.is_some() { "DELETED" } else { "NOT_FOUND" });
                place.map(|place| model.remove(place));
            } else {
                let reply = objects.get(&format!("recent:add:K:{item}"));
                prop_assert_eq!(reply, if place.is_some() { "SEEN" } else { "NEW" });
                place.map(|place| model.remove(place));
                model.push_front(item);
                model.truncate(limit);
            }
            prop_assert_eq!(objects.get("recent:count:K"), model.len().to_string());
        }
        let list: String = model.iter().flat_map(|item| [item, "\r\n"]).collect();
        prop_assert_eq!(objects.get("recent:list:K"), list);
    }

    #[test]
    fn any_bytes(calls in any_calls()) {
        execute("recent", &["new", "add", "list", "count", "remove", "dump", "size", "ttl", "exists", "drop", "methods"], &calls);
    }
}
