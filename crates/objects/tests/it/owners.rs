//! `lock` and `sem`: owners, their ends, fence numbers, clocks that jump, and plain models.

use std::collections::BTreeMap;

use crate::world::{NEW_YEAR_MS, World};
use proptest::prelude::*;

const LOCK: u16 = 10;
const SEM: u16 = 16;
const SPAN: &str = "a time from 1ms to 366d, such as 500ms, 30s, 5m, 2h or 1d (no unit: seconds)";

#[test]
fn locks() {
    let mut world = World::new();
    let fence = NEW_YEAR_MS;
    world.expect(&[
        ("lock:holder:k", "MISS"),
        ("lock:renew:k:a:30s", "NOT_OWNER"),
        ("lock:release:k:a", "NOT_OWNER"),
        ("lock:exists:k", "NOT_FOUND"),
        ("lock:take:k:a:30s", &format!("OK {fence}")),
        ("lock:take:k:b:30s", "HELD 30"),
        ("lock:holder:k", "a"),
        ("lock:ttl:k", "30"),
    ]);
    world.now_ms += 500;
    world.expect(&[
        ("lock:take:k:b:30s", "HELD 30"),
        ("lock:dump:k", &format!(r#"{{"fence":{fence},"left_ms":29500,"owner":"a"}}"#)),
        // One's own lock: renewed, with its fence.
        ("lock:take:k:a:40s", &format!("OK {fence}")),
        ("lock:take:k:b:30s", "HELD 40"),
        ("lock:renew:k:b:30s", "NOT_OWNER"),
        ("lock:renew:k:a:10s", &format!("OK {fence}")),
        ("lock:release:k:b", "NOT_OWNER"),
        ("lock:holder:k", "a"),
        ("lock:release:k:a", "OK"),
        ("lock:release:k:a", "NOT_OWNER"),
        ("lock:holder:k", "MISS"),
        ("lock:take:k:b:1s", &format!("OK {}", fence + 500)),
    ]);
}

#[test]
fn seconds_left_are_whole_and_rounded_up() {
    let mut world = World::new();
    world.expect(&[("lock:take:l:a:30s", &format!("OK {NEW_YEAR_MS}")), ("sem:take:s:a:1:30s", "OK 0")]);
    for (step_ms, left) in [(0, 30), (1, 30), (42, 30), (956, 30), (1, 29), (28_999, 1)] {
        world.now_ms += step_ms;
        world.expect(&[
            ("lock:take:l:b:30s", &format!("HELD {left}")),
            ("sem:take:s:b:1:30s", &format!("FULL {left}")),
            ("sem:list:s", &format!("a {left}\r\n")),
        ]);
    }
}

#[test]
fn a_lock_ends_at_its_end() {
    let mut world = World::new();
    world.now_ms += 1;
    world.expect(&[("lock:take:k:a:1500ms", &format!("OK {}", NEW_YEAR_MS + 1))]);
    world.now_ms += 1499;
    world.expect(&[("lock:take:k:b:1s", "HELD 1"), ("lock:holder:k", "a")]);
    world.now_ms += 1;
    world.expect(&[
        ("lock:holder:k", "MISS"),
        ("lock:renew:k:a:1s", "NOT_OWNER"),
        ("lock:release:k:a", "NOT_OWNER"),
        ("lock:take:k:b:1s", &format!("OK {}", NEW_YEAR_MS + 1501)),
    ]);
}

#[test]
fn fences_grow_within_a_millisecond() {
    let mut world = World::new();
    for count in 0..5_000 {
        assert_eq!(world.call("lock:take:k:a:1ms"), format!("OK {}", NEW_YEAR_MS + count));
        assert_eq!(world.call("lock:release:k:a"), "OK");
    }
    // It is remembered until the clock has passed the fence: 5 s, though the lock's time is a millisecond.
    world.now_ms += 4_999;
    world.expect(&[("lock:take:k:a:1ms", &format!("OK {}", NEW_YEAR_MS + 5_000))]);
    world.now_ms += 10_000;
    world.expect(&[("lock:exists:k", "NOT_FOUND")]);
    world.expect(&[("lock:take:k:a:1ms", &format!("OK {}", NEW_YEAR_MS + 14_999))]);
}

#[test]
fn a_lock_ends_after_a_clock_went_back() {
    let mut world = World::new();
    world.expect(&[("lock:take:k:a:30s", &format!("OK {NEW_YEAR_MS}"))]);
    world.now_ms -= 3_600_000;
    world.expect(&[("lock:take:k:b:30s", "HELD 30"), ("lock:holder:k", "a")]);
    world.pass(29);
    world.expect(&[("lock:take:k:b:30s", "HELD 1")]);
    world.pass(1);
    world.expect(&[("lock:take:k:b:30s", &format!("OK {}", NEW_YEAR_MS + 1))]);
}

#[test]
fn arguments_of_locks() {
    let owner = "arg 1 must be an owner of 1 to 250 bytes";
    let mut world = World::new();
    world.expect(&[
        ("lock:take:k::30s", &format!("CLIENT_ERROR lock.take: {owner}")),
        ("lock:take:k:a:0", &format!("CLIENT_ERROR lock.take: arg 2 must be {SPAN}")),
        ("lock:take:k:a", "CLIENT_ERROR lock.take: takes owner time"),
        ("lock:take:k:a:367d", &format!("CLIENT_ERROR lock.take: arg 2 must be {SPAN}")),
        ("lock:renew:k::30s", &format!("CLIENT_ERROR lock.renew: {owner}")),
        ("lock:release:k:", &format!("CLIENT_ERROR lock.release: {owner}")),
    ]);
    let long = [b'o'; 251];
    assert!(world.call_with("lock", "take", b"k", &[&long, b"1s"]).starts_with(b"CLIENT_ERROR"));
    assert!(world.call_with("lock", "take", b"k", &[&long[1..], b"1s"]).starts_with(b"OK "));
    assert_eq!(world.call_with("lock", "holder", b"k", &[]), &long[1..]);
    assert_eq!(world.state(LOCK, "k").map(<[u8]>::len), Some(274));
    world.call_with("lock", "take", b"json", &[b"a\"\xff:", b"1s"]);
    assert!(world.call("lock:dump:json").ends_with(r#""left_ms":1000,"owner":"a\"\u00ff:"}"#));
}

#[test]
fn semaphores() {
    let mut world = World::new();
    world.expect(&[
        ("sem:count:k", "0"),
        ("sem:list:k", ""),
        ("sem:release:k:a", "NOT_OWNER"),
        ("sem:exists:k", "NOT_FOUND"),
        ("sem:take:k:b:2:30s", "OK 1"),
        ("sem:take:k:a:2:10s", "OK 0"),
        ("sem:take:k:c:2:30s", "FULL 10"),
        ("sem:list:k", "a 10\r\nb 30\r\n"),
        ("sem:dump:k", r#"{"left_ms":{"a":10000,"b":30000}}"#),
        ("sem:count:k", "2"),
        ("sem:ttl:k", "30"),
        // One's own place is taken anew, also when there are more owners than the call's most.
        ("sem:take:k:a:1:20s", "OK 0"),
        ("sem:take:k:c:3:5s", "OK 0"),
        ("sem:release:k:a", "OK"),
        ("sem:release:k:a", "NOT_OWNER"),
        ("sem:count:k", "2"),
    ]);
    world.pass(5);
    world.expect(&[
        ("sem:list:k", "b 25\r\n"),
        ("sem:release:k:c", "NOT_OWNER"),
        ("sem:take:k:c:1:5s", "FULL 25"),
        ("sem:release:k:b", "OK"),
        ("sem:exists:k", "NOT_FOUND"),
        ("sem:dump:k", "MISS"),
    ]);
}

#[test]
fn a_semaphore_at_its_limits() {
    let mut world = World::new();
    let max = "arg 2 must be a number from 1 to 1000";
    world.expect(&[
        ("sem:take:k:a:0:1s", &format!("CLIENT_ERROR sem.take: {max}")),
        ("sem:take:k:a:1001:1s", &format!("CLIENT_ERROR sem.take: {max}")),
        ("sem:take:k:a:1:0s", &format!("CLIENT_ERROR sem.take: arg 3 must be {SPAN}")),
        ("sem:take:k::1:1s", "CLIENT_ERROR sem.take: arg 1 must be an owner of 1 to 64 bytes"),
    ]);
    let owner = |number: usize| format!("{number:064}").into_bytes();
    for number in 0..1000 {
        let reply = world.call_with("sem", "take", b"k", &[&owner(number), b"1000", b"1d"]);
        assert_eq!(reply, format!("OK {}", 999 - number).into_bytes());
    }
    assert_eq!(world.call_with("sem", "take", b"k", &[b"x", b"1000", b"1d"]), b"FULL 86400");
    assert_eq!(world.call_with("sem", "take", b"k", &[&owner(999), b"1000", b"1d"]), b"OK 0");
    assert_eq!(world.state(SEM, "k").map(<[u8]>::len), Some(8 + 1000 * 73));
    assert_eq!(world.call_with("sem", "take", b"k", &[&[b'x'; 65], b"1", b"1d"])[..12], b"CLIENT_ERROR"[..]);
}

#[test]
fn a_semaphore_goes_on_after_a_clock_went_back() {
    let mut world = World::new();
    world.expect(&[("sem:take:k:a:1:30s", "OK 0")]);
    world.now_ms -= 3_600_000;
    world.expect(&[("sem:take:k:b:1:30s", "FULL 30")]);
    world.pass(29);
    world.expect(&[("sem:take:k:b:1:30s", "FULL 1")]);
    world.pass(1);
    world.expect(&[("sem:take:k:b:1:30s", "OK 0"), ("sem:list:k", "b 30\r\n")]);
}

proptest! {
    #[test]
    fn locks_agree_with_a_model(
        calls in prop::collection::vec((0..5_u8, 0..3_u8, 1_u64..4_000, 0_u64..1_500), 1..60),
    ) {
        let mut world = World::new();
        // The owner and its end.
        let mut held: Option<(u8, u64)> = None;
        let mut fences: Vec<u64> = Vec::new();
        for (what, owner, length, step) in calls {
            world.now_ms += step;
            let now_ms = world.now_ms;
            held = held.filter(|(_, end)| *end > now_ms);
            let is_own = held.is_some_and(|(holder, _)| holder == owner);
            match what {
                0 => {
                    let expected = if is_own { "OK" } else { "NOT_OWNER" };
                    prop_assert_eq!(world.call(&format!("lock:release:k:{owner}")), expected);
                    held = held.filter(|_| !is_own);
                }
                1 => {
                    let reply = world.call(&format!("lock:renew:k:{owner}:{length}ms"));
                    if is_own {
                        prop_assert_eq!(reply, format!("OK {}", fences.last().unwrap()));
                        held = Some((owner, now_ms + length));
                    } else {
                        prop_assert_eq!(reply, "NOT_OWNER");
                    }
                }
                _ => {
                    let reply = world.call(&format!("lock:take:k:{owner}:{length}ms"));
                    if let (Some((_, end)), false) = (held, is_own) {
                        let seconds: u64 = reply.strip_prefix("HELD ").unwrap().parse().unwrap();
                        prop_assert_eq!(seconds, (end - now_ms).div_ceil(1000));
                        continue;
                    }
                    let fence: u64 = reply.strip_prefix("OK ").unwrap().parse().unwrap();
                    if is_own {
                        prop_assert_eq!(Some(&fence), fences.last());
                    } else {
                        prop_assert!(fence >= now_ms);
                        prop_assert!(fences.last().is_none_or(|last| *last < fence), "{fences:?} {fence}");
                        fences.push(fence);
                    }
                    held = Some((owner, now_ms + length));
                }
            }
            let holder = held.map_or("MISS".to_owned(), |(owner, _)| owner.to_string());
            prop_assert_eq!(world.call("lock:holder:k"), holder);
        }
    }

    #[test]
    fn semaphores_agree_with_a_model(
        calls in prop::collection::vec((0..4_u8, 0..6_u8, 1_usize..5, 1_u64..4_000, 0_u64..1_500), 1..60),
    ) {
        let mut world = World::new();
        let mut ends: BTreeMap<u8, u64> = BTreeMap::new();
        for (what, owner, max, length, step) in calls {
            world.now_ms += step;
            let now_ms = world.now_ms;
            ends.retain(|_, end| *end > now_ms);
            if what == 0 {
                let expected = if ends.remove(&owner).is_some() { "OK" } else { "NOT_OWNER" };
                prop_assert_eq!(world.call(&format!("sem:release:k:{owner}")), expected);
            } else {
                let reply = world.call(&format!("sem:take:k:{owner}:{max}:{length}ms"));
                if ends.len() < max || ends.contains_key(&owner) {
                    ends.insert(owner, now_ms + length);
                    prop_assert_eq!(reply, format!("OK {}", max.saturating_sub(ends.len())));
                } else {
                    let seconds: u64 = reply.strip_prefix("FULL ").unwrap().parse().unwrap();
                    let first = ends.values().min().unwrap() - now_ms;
                    prop_assert_eq!(seconds, first.div_ceil(1000));
                }
            }
            prop_assert_eq!(world.call("sem:count:k"), ends.len().to_string());
            let listed = world.call("sem:list:k");
            let owners = listed.lines().map(|line| line.split_once(' ').unwrap().0.parse::<u8>().unwrap());
            prop_assert!(owners.eq(ends.keys().copied()), "{listed}");
        }
    }

    #[test]
    fn no_bytes_make_them_panic(
        calls in prop::collection::vec(
            (prop::sample::select(vec![
                ("lock", "take"), ("lock", "renew"), ("lock", "release"), ("lock", "holder"), ("lock", "dump"),
                ("sem", "take"), ("sem", "release"), ("sem", "count"), ("sem", "list"), ("sem", "dump"),
             ]),
             prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                "[ab]".prop_map(String::into_bytes),
                "[0-9]{1,3}(ms|s|m|h|d)?".prop_map(String::into_bytes),
             ], 0..4),
             any::<u64>()),
            1..40),
    ) {
        let mut world = World::new();
        for ((type_name, method), arguments, now_ms) in calls {
            world.now_ms = now_ms;
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            world.call_with(type_name, method, b"k", &arguments);
        }
    }
}
