//! Limits of rates, `gcra`, `bucket` and `sliding`: their numbers, edges, clocks that jump, and plain models.

#![expect(clippy::cast_sign_loss, reason = "a test")]

use std::collections::BTreeMap;

use crate::world::{NEW_YEAR_MS, World};
use proptest::prelude::*;

const GCRA: u16 = 7;
const BUCKET: u16 = 8;
const SLIDING: u16 = 9;

#[test]
fn gcra_has_the_numbers_of_redis_cell() {
    let mut world = World::new();
    world.expect(&[("gcra:take:k:20:30:60", "0 21 20 -1 2"), ("gcra:peek:k:20:30:60", "0 21 20 -1 2")]);
    // Five a burst, one a second: limited, limit, left, retry_after, reset_after.
    for (at_ms, n, reply) in [
        (0, 6, "1 5 5 -1 0"),
        (0, 1, "0 5 4 -1 1"),
        (0, 1, "0 5 3 -1 2"),
        (0, 1, "0 5 2 -1 3"),
        (0, 1, "0 5 1 -1 4"),
        (0, 1, "0 5 0 -1 5"),
        (0, 1, "1 5 0 1 5"),
        (3000, 1, "0 5 2 -1 3"),
        (3100, 1, "0 5 1 -1 4"),
        (4000, 1, "0 5 1 -1 4"),
        (8000, 1, "0 5 4 -1 1"),
        (9500, 1, "0 5 4 -1 1"),
        (9500, 0, "0 5 4 -1 1"),
        (9500, 2, "0 5 2 -1 3"),
        (9500, 5, "1 5 2 3 3"),
    ] {
        world.now_ms = NEW_YEAR_MS + at_ms;
        assert_eq!(world.call(&format!("gcra:take:cell:4:1:1:{n}")), reply, "{n} at {at_ms}");
    }
}

#[test]
fn gcra_arguments_and_edges() {
    let burst = "arg 1 must be a number from 0 to 1000000000 that comes back within 100 years";
    let count = "arg 2 must be a number from 1 to 1000000000, at most one a nanosecond";
    let period = "arg 3 must be a time from 1ms to 366d, such as 500ms, 30s, 5m, 2h or 1d (no unit: seconds)";
    let mut world = World::new();
    for (arguments, error) in [
        ("-1:1:1", burst),
        ("1000000001:1:1", burst),
        ("1000000000:1:366d", burst),
        ("1:0:1", count),
        ("1:1000000001:1", count),
        ("1:x:1", count),
        ("1:1000000000:1ms", count),
        ("1:1:0", period),
        ("1:1:367d", period),
        ("1:1:x", period),
        ("1:1:1:-1", "arg 4 must be a number from 0 on"),
    ] {
        assert_eq!(
            world.call(&format!("gcra:take:k:{arguments}")),
            format!("CLIENT_ERROR gcra.take: {error}")
        );
    }
    world.expect(&[
        ("gcra:take:k:1:1", "CLIENT_ERROR gcra.take: takes burst count period [n]"),
        ("gcra:exists:k", "NOT_FOUND"),
        // No burst: one call an interval.
        ("gcra:take:k:0:1:60", "0 1 0 -1 60"),
        ("gcra:take:k:0:1:60", "1 1 0 60 60"),
        ("gcra:take:k:0:1:60:18446744073709551615", "1 1 0 -1 60"),
        ("gcra:take:new:0:1:60:2", "1 1 1 -1 0"),
        ("gcra:take:new:0:1:60:0", "0 1 1 -1 0"),
        ("gcra:exists:new", "NOT_FOUND"),
        ("gcra:peek:new:0:1:60", "0 1 1 -1 0"),
        ("gcra:take:fast:1000000000:1000000000:1:1000000000", "0 1000000001 1 -1 1"),
        ("gcra:dump:fast", r#"{"debt_ns":1000000000,"at_ms":1767225600000}"#),
    ]);
}

#[test]
fn gcra_forgets_when_nothing_is_lost() {
    let mut world = World::new();
    world.expect(&[("gcra:take:k:9:10:10:3", "0 10 7 -1 3"), ("gcra:ttl:k", "3")]);
    world.pass(3);
    world.expect(&[("gcra:exists:k", "NOT_FOUND"), ("gcra:take:k:9:10:10:10", "0 10 0 -1 10")]);
}

#[test]
fn gcra_melts_after_a_clock_went_back() {
    let mut world = World::new();
    world.expect(&[("gcra:take:k:1:1:10:2", "0 2 0 -1 20")]);
    world.now_ms -= 3_600_000;
    world.expect(&[("gcra:take:k:1:1:10", "1 2 0 10 20")]);
    world.pass(10);
    world.expect(&[("gcra:take:k:1:1:10", "0 2 0 -1 20")]);
}

#[test]
fn buckets() {
    let mut world = World::new();
    world.expect(&[
        ("bucket:peek:k:5:2", "5"),
        ("bucket:exists:k", "NOT_FOUND"),
        ("bucket:take:k:5:2", "OK 4"),
        ("bucket:take:k:5:2:4", "OK 0"),
        ("bucket:take:k:5:2", "WAIT 0.5"),
        ("bucket:take:k:5:2:5", "WAIT 2.5"),
        ("bucket:take:k:5:2:6", "WAIT -1"),
        ("bucket:take:k:5:2:99999999999999999999", "WAIT -1"),
        ("bucket:ttl:k", "3"),
    ]);
    world.now_ms += 499;
    world.expect(&[("bucket:take:k:5:2", "WAIT 0.001"), ("bucket:peek:k:5:2", "0")]);
    world.now_ms += 1;
    world.expect(&[("bucket:peek:k:5:2", "1"), ("bucket:take:k:5:2", "OK 0")]);
    world.now_ms += 1250;
    world.expect(&[
        ("bucket:dump:k", r#"{"billionths":0,"at_ms":1767225600500}"#),
        ("bucket:take:k:5:2:2", "OK 0"),
        ("bucket:dump:k", r#"{"billionths":500000000,"at_ms":1767225601750}"#),
    ]);
    // A smaller capacity holds less at once, a larger one fills.
    world.pass(2);
    world.expect(&[
        ("bucket:peek:k:3:2", "3"),
        ("bucket:peek:k:100:2", "4"),
        ("bucket:take:k:3:2", "OK 2"),
        ("bucket:peek:k:100:2", "2"),
    ]);
    world.pass(10);
    world.expect(&[("bucket:exists:k", "NOT_FOUND"), ("bucket:peek:k:100:2", "100")]);
}

#[test]
fn bucket_arguments_and_edges() {
    let capacity = "arg 1 must be a number from 1 to 1000000000";
    let rate = "arg 2 must be a number from 0.000001 to 1000000000 with at most 6 decimals";
    let mut world = World::new();
    for (arguments, error) in [
        ("0:1", capacity),
        ("1000000001:1", capacity),
        ("1.5:1", capacity),
        ("1:0", rate),
        ("1:0.0000001", rate),
        ("1:1000000000.000001", rate),
        ("1:-1", rate),
        ("1:1e3", rate),
        ("1:1:0", "arg 3 must be a positive number"),
    ] {
        let line = format!("CLIENT_ERROR bucket.take: {error}");
        assert_eq!(world.call(&format!("bucket:take:k:{arguments}")), line, "{arguments}");
    }
    world.expect(&[
        ("bucket:take:all:1000000000:1000000000:1000000000", "OK 0"),
        ("bucket:take:all:1000000000:1000000000", "WAIT 0.001"),
        ("bucket:take:slow:1:0.000001", "OK 0"),
        ("bucket:take:slow:1:0.000001", "WAIT 1000000"),
    ]);
    world.now_ms += 1;
    world.expect(&[("bucket:peek:all:1000000000:1000000000", "1000000")]);
    world.now_ms = u64::MAX;
    world.expect(&[
        ("bucket:take:all:1000000000:1000000000:1000000000", "OK 0"),
        ("bucket:take:slow:1:0.000001", "OK 0"),
    ]);
}

#[test]
fn a_bucket_fills_after_a_clock_went_back() {
    let mut world = World::new();
    world.expect(&[("bucket:take:k:2:1:2", "OK 0")]);
    world.now_ms -= 3_600_000;
    world.expect(&[("bucket:take:k:2:1", "WAIT 1")]);
    world.pass(1);
    world.expect(&[("bucket:take:k:2:1", "OK 0")]);
}

#[test]
fn sliding_windows() {
    let mut world = World::new();
    world.expect(&[
        ("sliding:count:k", "MISS"),
        ("sliding:hit:k:10:60s:11", "LIMITED -1"),
        ("sliding:exists:k", "NOT_FOUND"),
        ("sliding:hit:k:10:60s:8", "OK 2"),
        ("sliding:hit:k:10:60s:3", "LIMITED 67.5"),
        ("sliding:hit:k:10:60s:2", "OK 0"),
        ("sliding:hit:k:10:60s", "LIMITED 66"),
        ("sliding:count:k", "10"),
        ("sliding:ttl:k", "120"),
    ]);
    world.pass(66);
    world.expect(&[
        ("sliding:count:k", "9"),
        ("sliding:hit:k:10:60s", "OK 0"),
        ("sliding:dump:k", r#"{"window_ms":60000,"start_ms":1767225660000,"previous":10,"current":1}"#),
        ("sliding:hit:k:10:60s", "LIMITED 6"),
        // Another limit, another length: what was counted stays counted.
        ("sliding:hit:k:20:60s", "OK 9"),
        ("sliding:hit:k:11:10s", "LIMITED 4.91"),
        ("sliding:dump:k", r#"{"window_ms":10000,"start_ms":1767225660000,"previous":0,"current":11}"#),
    ]);
    world.pass(14);
    world.expect(&[("sliding:exists:k", "NOT_FOUND")]);
}

#[test]
fn sliding_arguments_and_edges() {
    let limit = "arg 1 must be a number from 0 to 9223372036854775807";
    let window = "arg 2 must be a time from 1ms to 366d, such as 500ms, 30s, 5m, 2h or 1d (no unit: seconds)";
    let mut world = World::new();
    for (arguments, error) in [
        ("-1:60s", limit),
        ("9223372036854775808:60s", limit),
        ("1:0s", window),
        ("1:hour", window),
        ("1:60s:0", "arg 3 must be a positive number"),
    ] {
        let line = format!("CLIENT_ERROR sliding.hit: {error}");
        assert_eq!(world.call(&format!("sliding:hit:k:{arguments}")), line, "{arguments}");
    }
    world.expect(&[
        ("sliding:hit:none:0:60s", "LIMITED -1"),
        ("sliding:hit:all:9223372036854775807:366d:9223372036854775807", "OK 0"),
        ("sliding:hit:all:9223372036854775807:366d:18446744073709551615", "LIMITED -1"),
        ("sliding:hit:all:9223372036854775807:1ms", "LIMITED 0.002"),
    ]);
    world.now_ms = u64::MAX;
    world.expect(&[("sliding:hit:end:1:1ms", "OK 0"), ("sliding:hit:end:1:366d:2", "LIMITED -1")]);
}

#[test]
fn a_sliding_window_goes_on_after_a_clock_went_back() {
    let mut world = World::new();
    world.expect(&[("sliding:hit:k:4:60s:4", "OK 0")]);
    world.now_ms -= 3_600_000;
    world.expect(&[("sliding:hit:k:4:60s", "LIMITED 75")]);
    world.pass(75);
    world.expect(&[("sliding:hit:k:4:60s", "OK 0")]);
}

/// A step of the clock in ms, mostly forward.
fn steps() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(0_i64), 6 => 0_i64..3_000, 1 => 0_i64..500_000, 1 => -100_000_i64..0]
}

proptest! {
    #[test]
    fn gcra_agrees_with_a_model(
        burst in 0_u64..6, count in 1_u64..40, period in 1_u64..30,
        calls in prop::collection::vec((steps(), 0_u64..8), 1..60),
    ) {
        let mut world = World::new();
        let interval = i128::from(period) * 1_000_000_000 / i128::from(count);
        let tolerance = interval * i128::from(burst + 1);
        // The time at which the next call is due in ns, and the time of the last change.
        let (mut due, mut changed) = (0_i128, 0_i128);
        for (step, n) in calls {
            world.now_ms = world.now_ms.checked_add_signed(step).unwrap();
            let now = i128::from(world.now_ms) * 1_000_000;
            if now >= (due + 999_999_999) / 1_000_000_000 * 1_000_000_000 {
                (due, changed) = (0, 0); // it has expired
            }
            if now < changed {
                due -= changed - now;
                changed = now;
            }
            let old = due.max(now);
            let new = old + interval * i128::from(n);
            let wait = new - tolerance - now;
            let limited = wait > 0;
            let reset = if limited { old } else { new } - now;
            let seconds = |ns: i128| (ns / 1_000_000 + 999) / 1000;
            let retry = if limited && n <= burst + 1 { seconds(wait) } else { -1 };
            let left = (tolerance - reset).max(0) / interval;
            let expected = format!("{} {} {left} {retry} {}", u8::from(limited), burst + 1, seconds(reset));
            prop_assert_eq!(world.call(&format!("gcra:take:k:{burst}:{count}:{period}:{n}")), expected);
            if !limited && n > 0 {
                (due, changed) = (new, now);
            }
        }
    }

    #[test]
    fn bucket_agrees_with_a_model(
        capacity in 1_u64..10, rate in 1_u64..20_000_000,
        calls in prop::collection::vec((steps(), 1_u64..12), 1..40),
    ) {
        let mut world = World::new();
        let rate_text = format!("{}.{:06}", rate / 1_000_000, rate % 1_000_000);
        let full = u128::from(capacity) * 1_000_000_000;
        // What it held after its last change, and when that was.
        let mut changed = None;
        for (step, n) in calls {
            world.now_ms = world.now_ms.checked_add_signed(step).unwrap();
            let now_ms = world.now_ms;
            let mut level = full;
            if let Some((then, at_ms)) = &mut changed {
                *at_ms = now_ms.min(*at_ms);
                level = *then;
                let mut ms = *at_ms;
                while ms < now_ms && level < full {
                    level = (level + u128::from(rate)).min(full);
                    ms += 1;
                }
                if level == full && now_ms >= ms.div_ceil(1000) * 1000 {
                    changed = None; // it has expired
                }
            }
            let wanted = u128::from(n) * 1_000_000_000;
            let reply = world.call(&format!("bucket:take:k:{capacity}:{rate_text}:{n}"));
            if wanted <= level {
                changed = Some((level - wanted, now_ms));
                prop_assert_eq!(reply, format!("OK {}", (level - wanted) / 1_000_000_000));
            } else if n > capacity {
                prop_assert_eq!(reply, "WAIT -1");
            } else {
                let seconds: f64 = reply.strip_prefix("WAIT ").unwrap().parse().unwrap();
                let wait_ms = (seconds * 1000.0).round() as u128;
                prop_assert!(level + wait_ms * u128::from(rate) >= wanted, "after that time it is there");
                prop_assert!(level + (wait_ms - 1) * u128::from(rate) < wanted, "and not before");
            }
        }
    }

    #[test]
    fn sliding_agrees_with_a_model(
        limit in 0_u64..20, window_ms in 1_u64..5_000,
        calls in prop::collection::vec((steps(), 1_u64..8), 1..60),
    ) {
        let mut world = World::new();
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        let mut latest = 0;
        for (step, n) in calls {
            world.now_ms = world.now_ms.checked_add_signed(step).unwrap();
            let (index, elapsed) = (world.now_ms / window_ms, world.now_ms % window_ms);
            if index < latest {
                // The counts are those of the window of this time.
                let back = latest - index;
                counts = counts.iter().filter_map(|(at, n)| Some((at.checked_sub(back)?, *n))).collect();
            }
            latest = index;
            let at = |index: u64| counts.get(&index).copied().unwrap_or(0);
            let weighted = |index: u64, elapsed: u64| {
                u128::from(at(index)) * u128::from(window_ms)
                    + u128::from(at(index - 1)) * u128::from(window_ms - elapsed)
            };
            let most = u128::from(limit) * u128::from(window_ms);
            let passes = |at_ms: u64| {
                weighted(at_ms / window_ms, at_ms % window_ms) + u128::from(n * window_ms) <= most
            };
            let reply = world.call(&format!("sliding:hit:k:{limit}:{window_ms}ms:{n}"));
            if passes(world.now_ms) {
                let left = (most - weighted(index, elapsed)) / u128::from(window_ms) - u128::from(n);
                prop_assert_eq!(reply, format!("OK {left}"));
                *counts.entry(index).or_default() += n;
            } else if n > limit {
                prop_assert_eq!(reply, "LIMITED -1");
            } else {
                let seconds: f64 = reply.strip_prefix("LIMITED ").unwrap().parse().unwrap();
                let retry_ms = (seconds * 1000.0).round() as u64;
                prop_assert!(passes(world.now_ms + retry_ms), "after that time it passes");
                prop_assert!(!passes(world.now_ms + retry_ms - 1), "and not before");
            }
        }
    }

    #[test]
    fn no_bytes_make_them_panic(
        calls in prop::collection::vec(
            (prop::sample::select(vec![
                ("gcra", "take", GCRA), ("gcra", "peek", GCRA), ("gcra", "dump", GCRA),
                ("bucket", "take", BUCKET), ("bucket", "peek", BUCKET), ("bucket", "dump", BUCKET),
                ("sliding", "hit", SLIDING), ("sliding", "count", SLIDING), ("sliding", "dump", SLIDING),
             ]),
             prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..24),
                "[0-9]{1,20}".prop_map(String::into_bytes),
                "[1-9]".prop_map(String::into_bytes),
                "[0-9]{1,3}(ms|s|m|h|d)?".prop_map(String::into_bytes),
             ], 0..5),
             any::<u64>()),
            1..40),
    ) {
        let mut world = World::new();
        for ((type_name, method, type_id), arguments, now_ms) in calls {
            world.now_ms = now_ms;
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            world.call_with(type_name, method, b"k", &arguments);
            prop_assert!(world.state(type_id, "k").is_none_or(|state| state.len() <= 32));
        }
    }
}
