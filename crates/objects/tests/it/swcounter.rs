//! `swcounter`: its ring, its edges, and a plain model.

#![expect(clippy::cast_precision_loss, reason = "a test")]

use crate::world::World;
use cattlegrid_objects::Settings;
use proptest::prelude::*;

const SWCOUNTER: u16 = 2;

#[test]
fn the_last_values() {
    let mut world = World::new();
    world.expect(&[
        ("swcounter:new:k:3", "CREATED"),
        ("swcounter:add:k:-5", "SUCCESS"),
        ("swcounter:getmax:k", "-5"),
        ("swcounter:getmin:k", "-5"),
        ("swcounter:getavg:k", "-5"),
        ("swcounter:add:k:-2.5", "SUCCESS"),
        ("swcounter:getavg:k", "-3.75"),
        ("swcounter:getsum:k", "-7.5"),
        ("swcounter:getlast:k", "-2.5"),
        ("swcounter:add:k:10", "SUCCESS"),
        ("swcounter:dump:k", r#"{"size":3,"values":[-5,-2.5,10]}"#),
        ("swcounter:add:k:1e3", "SUCCESS"),
        ("swcounter:dump:k", r#"{"size":3,"values":[-2.5,10,1000]}"#),
        ("swcounter:getmax:k", "1000"),
        ("swcounter:getmin:k", "-2.5"),
        ("swcounter:getsum:k", "1007.5"),
        ("swcounter:getp:k:0", "-2.5"),
        ("swcounter:getp:k:33", "-2.5"),
        ("swcounter:getp:k:34", "10"),
        ("swcounter:getp:k:66.666666", "10"),
        ("swcounter:getp:k:66.7", "1000"),
        ("swcounter:getp:k:100", "1000"),
        ("swcounter:ttl:k", "-1"),
        ("swcounter:new:k:2", "CREATED"),
        ("swcounter:getlast:k", "MISS"),
    ]);
}

#[test]
fn sums_of_decimals() {
    let mut world = World::new();
    world.call("swcounter:new:k:10");
    for _ in 0..13 {
        world.call("swcounter:add:k:0.1");
    }
    world.expect(&[("swcounter:getsum:k", "1"), ("swcounter:getavg:k", "0.1")]);
}

#[test]
fn empty_absent_and_refused() {
    let mut world = World::new();
    for method in ["getlast", "getmin", "getmax", "getavg", "getsum", "add", "getp"] {
        let argument = if matches!(method, "add" | "getp") { ":1" } else { "" };
        assert_eq!(world.call(&format!("swcounter:{method}:k{argument}")), "MISS");
    }
    world.expect(&[
        ("swcounter:new:k:0", "MISS"),
        ("swcounter:new:k:1025", "MISS"),
        ("swcounter:new:k:99999999999999999999", "MISS"),
        ("swcounter:exists:k", "NOT_FOUND"),
        ("swcounter:new:k", "CREATED"),
        ("swcounter:dump:k", r#"{"size":16,"values":[]}"#),
    ]);
    for method in ["getlast", "getmin", "getmax", "getavg", "getsum", "getp"] {
        let argument = if method == "getp" { ":99" } else { "" };
        assert_eq!(
            world.call(&format!("swcounter:{method}:k{argument}")),
            "MISS",
            "{method} of an empty ring"
        );
    }
    World::with(Settings { compat: true, ..Settings::default() }).expect(&[
        ("swcounter:getavg:k", "ERROR_CACHE_MISS"),
        ("swcounter:new:k:0", "NOT_CREATED"),
        ("swcounter:new:k:1", "CREATED"),
    ]);
}

#[test]
fn arguments_and_limits() {
    let mut world = World::new();
    world.expect(&[
        ("swcounter:new:k:x", "CLIENT_ERROR swcounter.new: arg 1 must be a number from 1 to 1024"),
        ("swcounter:new:k:1:2", "CLIENT_ERROR swcounter.new: takes [size]"),
        ("swcounter:new:k:1024", "CREATED"),
        ("swcounter:add:k:1e300", "SUCCESS"),
    ]);
    for value in ["", "x", "nan", "inf", "-inf", "1.1e300", "-1e301", "1e999", "1 "] {
        let line = "CLIENT_ERROR swcounter.add: arg 1 must be a number from -1e300 to 1e300";
        assert_eq!(world.call(&format!("swcounter:add:k:{value}")), line, "{value:?}");
    }
    for percent in ["101", "-1", "100.000001", "x", ""] {
        let line =
            "CLIENT_ERROR swcounter.getp: arg 1 must be a number from 0 to 100 with at most 6 decimals";
        assert_eq!(world.call(&format!("swcounter:getp:k:{percent}")), line, "{percent:?}");
    }
    for _ in 0..1023 {
        world.call("swcounter:add:k:1e300");
    }
    world.expect(&[("swcounter:getsum:k", "1.024e303"), ("swcounter:getavg:k", "1e300")]);
    assert_eq!(world.state(SWCOUNTER, "k").map(<[u8]>::len), Some(4 + 8 * 1024));
    world.expect(&[("swcounter:add:k:7", "SUCCESS"), ("swcounter:getmin:k", "7")]);
    assert_eq!(world.state(SWCOUNTER, "k").map(<[u8]>::len), Some(4 + 8 * 1024));
}

proptest! {
    #[test]
    fn agrees_with_a_model(
        size in 1_usize..20,
        values in prop::collection::vec(-1000_i64..1000, 1..80),
        percent in 0_u64..=100,
    ) {
        let mut world = World::new();
        world.call(&format!("swcounter:new:k:{size}"));
        for end in 1..=values.len() {
            let last = &values[end.saturating_sub(size)..end];
            prop_assert_eq!(world.call(&format!("swcounter:add:k:{}", last.last().unwrap())), "SUCCESS");
            let mut sorted = last.to_vec();
            sorted.sort_unstable();
            let sum: i64 = last.iter().sum();
            // The smallest value that at least this share of the values do not exceed.
            let covers = |value: &&i64| {
                let below = sorted.iter().filter(|other| other <= value).count() as u64;
                below * 100 >= percent * last.len() as u64
            };
            for (method, expected) in [
                ("getlast:k", values[end - 1].to_string()),
                ("getmin:k", sorted[0].to_string()),
                ("getmax:k", sorted[sorted.len() - 1].to_string()),
                ("getsum:k", sum.to_string()),
                (&format!("getp:k:{percent}"), sorted.iter().find(covers).unwrap().to_string()),
            ] {
                prop_assert_eq!(world.call(&format!("swcounter:{method}")), expected, "{}", method);
            }
            let average: f64 = world.call("swcounter:getavg:k").parse().unwrap();
            prop_assert!((average - sum as f64 / last.len() as f64).abs() < 1e-9);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        calls in prop::collection::vec(
            (prop::sample::select(vec!["new", "add", "getp", "getavg", "getsum", "dump"]),
             prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..24),
                "[0-9]{1,4}".prop_map(String::into_bytes),
                "-?[0-9]{1,3}(\\.[0-9])?(e[0-9]{1,3})?".prop_map(String::into_bytes),
             ], 0..3)),
            1..60),
    ) {
        let mut world = World::new();
        for (method, arguments) in calls {
            let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            world.call_with("swcounter", method, b"k", &arguments);
        }
    }
}
