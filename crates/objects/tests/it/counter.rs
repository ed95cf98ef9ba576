//! `counter`: its limits, times to live, and a plain model.

use crate::world::World;
use proptest::prelude::*;

const COUNTER: u16 = 6;

#[test]
fn counts() {
    World::new().expect(&[
        ("counter:get:k", "MISS"),
        ("counter:add:k:5", "5"),
        ("counter:add:k:-7", "-2"),
        ("counter:get:k", "-2"),
        ("counter:add:k:0", "-2"),
        ("counter:set:k:40", "40"),
        ("counter:max:k:39", "40"),
        ("counter:max:k:41", "41"),
        ("counter:min:k:42", "41"),
        ("counter:min:k:-1", "-1"),
        ("counter:dump:k", r#"{"value":-1}"#),
        ("counter:size:k", "8"),
        ("counter:new:k", "CREATED"),
        ("counter:get:k", "0"),
        ("counter:new:k:-3", "CREATED"),
        ("counter:get:k", "-3"),
        ("counter:max:high:-5", "-5"),
        ("counter:min:low:5", "5"),
    ]);
}

#[test]
fn it_stops_at_its_limits_and_says_so() {
    World::new().expect(&[
        ("counter:set:k:9223372036854775806", "9223372036854775806"),
        ("counter:add:k:1", "9223372036854775807"),
        ("counter:add:k:1", "9223372036854775807 saturated"),
        ("counter:add:k:9223372036854775807", "9223372036854775807 saturated"),
        ("counter:get:k", "9223372036854775807"),
        ("counter:add:k:-9223372036854775808", "-1"),
        ("counter:add:k:-9223372036854775808", "-9223372036854775808 saturated"),
        ("counter:add:k:0", "-9223372036854775808"),
    ]);
}

#[test]
fn arguments() {
    let mut world = World::new();
    for n in ["", "x", "1.5", "+1", "9223372036854775808", "-9223372036854775809", "--1"] {
        for method in ["add", "set", "max", "min", "new"] {
            let line = format!(
                "CLIENT_ERROR counter.{method}: arg 1 must be a number from -9223372036854775808 to \
                 9223372036854775807"
            );
            assert_eq!(world.call(&format!("counter:{method}:k:{n}")), line, "{n:?}");
        }
    }
    for ttl in ["-1", "x", "367d", "1w", ""] {
        let line = "CLIENT_ERROR counter.add: arg 2 must be a time to live from 0 (for ever) to 366d, such as 60 or 5m";
        assert_eq!(world.call(&format!("counter:add:k:1:{ttl}")), line, "{ttl:?}");
    }
    world.expect(&[("counter:add:k", "CLIENT_ERROR counter.add: takes n [ttl]"), ("counter:get:k", "MISS")]);
}

#[test]
fn times_to_live() {
    let mut world = World::new();
    world.expect(&[
        ("counter:add:k:1:60", "1"),
        ("counter:ttl:k", "60"),
        // Of a counter that is there only `set` changes it.
        ("counter:add:k:1:5m", "2"),
        ("counter:ttl:k", "60"),
        ("counter:set:k:2:5m", "2"),
        ("counter:ttl:k", "300"),
        ("counter:set:k:3", "3"),
        ("counter:ttl:k", "300"),
        ("counter:set:k:3:0", "3"),
        ("counter:ttl:k", "-1"),
        ("counter:min:other:3:1", "3"),
        ("counter:max:ever:3:0", "3"),
        ("counter:ttl:ever", "-1"),
    ]);
    world.pass(1);
    world.expect(&[("counter:get:other", "MISS"), ("counter:get:ever", "3")]);
}

proptest! {
    #[test]
    fn agrees_with_a_model(
        calls in prop::collection::vec(
            (0..4_u8, prop_oneof![any::<i64>(), -3_i64..4, Just(i64::MAX), Just(i64::MIN)]), 1..40),
    ) {
        let mut world = World::new();
        let mut model: Option<i128> = None;
        for (method, n) in calls {
            let (method, exact) = match (method, model) {
                (0, old) => ("add", old.unwrap_or(0) + i128::from(n)),
                (1, _) => ("set", i128::from(n)),
                (2, old) => ("max", old.map_or(n.into(), |old| old.max(n.into()))),
                (_, old) => ("min", old.map_or(n.into(), |old| old.min(n.into()))),
            };
            let value = exact.clamp(i64::MIN.into(), i64::MAX.into());
            let expected = format!("{value}{}", if value == exact { "" } else { " saturated" });
            prop_assert_eq!(world.call(&format!("counter:{method}:k:{n}")), expected);
            prop_assert_eq!(world.call("counter:get:k"), value.to_string());
            prop_assert_eq!(world.state(COUNTER, "k").map(<[u8]>::len), Some(8));
            model = Some(value);
        }
    }
}
