//! Maps: every method and reply, against a sorted map, with long values, and out of room.

use std::collections::BTreeMap;

use crate::collections;
use crate::collections::{Answer, World, value};
use cattlegrid_objects::Settings;
use proptest::prelude::*;

#[test]
fn methods() {
    let mut world = World::new();
    assert_eq!(world.call("map:put:m:a:1"), Answer::Miss, "it must be made first");
    assert_eq!(world.call("map:get:m:a"), Answer::Miss);
    assert_eq!(world.call("map:new:m"), value("CREATED"));
    assert_eq!(world.call("map:get:m:a"), Answer::Miss);
    assert_eq!(world.call("map:put:m:b:2"), value("SUCCESS"));
    assert_eq!(world.call("map:put:m:a:1:c:3:b:4"), value("SUCCESS"));
    assert_eq!(world.call("map:get:m:b"), value("4"));
    assert_eq!(world.call("map:put:m:e:"), value("SUCCESS"), "a value may be empty");
    assert_eq!(world.call("map:get:m:e"), value(""));
    assert_eq!(world.call("map:count:m"), value("4"));
    assert_eq!(world.call("map:getkeys:m"), value("a\r\nb\r\nc\r\ne\r\n"));
    assert_eq!(world.call("map:getvalues:m"), value("1\r\n4\r\n3\r\n\r\n"));
    assert_eq!(world.call("map:getall:m"), value("a : 1\r\nb : 4\r\nc : 3\r\ne : \r\n"));
    assert_eq!(world.call("map:dump:m"), value(r#"{"a":"1","b":"4","c":"3","e":""}"#));
    assert_eq!(world.call("map:exist:m:a"), value("EXISTS"));
    assert_eq!(world.call("map:exist:m:x"), value("NOT_FOUND"));
    assert_eq!(world.call("map:delete:m:a:x"), value("SUCCESS"));
    assert_eq!(world.call("map:delete:m:a"), value("SUCCESS"));
    assert_eq!(world.call("map:count:m"), value("3"));
    assert_eq!(world.call("map:put:m:a:1:a:2:a:3"), value("SUCCESS"));
    assert_eq!(world.call("map:get:m:a"), value("3"), "the last value counts");
}

#[test]
fn numbers() {
    let mut world = World::new();
    world.call("map:new:m");
    assert_eq!(world.call("map:incr:m:n"), value("1"));
    assert_eq!(world.call("map:incr:m:n:41"), value("42"));
    assert_eq!(world.call("map:incr:m:n:-50"), value("-8"));
    assert_eq!(world.call("map:get:m:n"), value("-8"));
    world.call("map:put:m:max:9223372036854775807:t:text:e:");
    let error = |text: &str| Answer::Error(format!("CLIENT_ERROR map.incr: {text}"));
    assert_eq!(world.call("map:incr:m:max:1"), error("the sum has more than 64 bits with a sign"));
    assert_eq!(world.call("map:incr:m:max:-1"), value("9223372036854775806"));
    assert_eq!(world.call("map:incr:m:t:1"), error("the value is not a whole number of 64 bits with a sign"));
    assert_eq!(world.call("map:incr:m:e"), error("the value is not a whole number of 64 bits with a sign"));
    assert_eq!(world.call("map:incr:m:n:x"), error("arg 2 must be a whole number of 64 bits with a sign"));
    assert_eq!(world.ask("map", "put", b"m", &[b"long", &[b'1'; 21]]), value("SUCCESS"));
    assert_eq!(
        world.call("map:incr:m:long"),
        error("the value is not a whole number of 64 bits with a sign")
    );
    assert_eq!(world.call("map:get:m:n"), value("-8"));
}

#[test]
fn errors_of_clients_change_nothing() {
    let mut world = World::new();
    world.call("map:new:m");
    let changes = world.changes;
    let error = |text: &str| Answer::Error(format!("CLIENT_ERROR map.{text}"));
    let takes = error("put: takes key value [key value ...]");
    assert_eq!(world.call("map:put:m:a"), takes);
    assert_eq!(world.call("map:put:m:a:1:b"), takes);
    assert_eq!(world.call("map:put:m:a:1::2"), error("put: arg 3 must not be empty"));
    let long = vec![b'x'; 5000];
    assert_eq!(
        world.ask("map", "put", b"m", &[b"a", b"1", &long[..1025], b"2"]),
        error("put: arg 3 is longer than 1024 bytes")
    );
    assert_eq!(
        world.ask("map", "put", b"m", &[b"a", &long, b"b", b"2", b"c", &long]),
        error(&format!(
            "put: only one value may be longer than {} bytes",
            cattlegrid_store::Tree::VALUE_INLINE_MAX
        ))
    );
    assert_eq!(world.call("map:count:m"), value("0"));
    assert_eq!(world.changes, changes);
}

#[test]
fn long_values_are_read_in_pieces() {
    let mut world = World::new();
    world.call("map:new:m");
    // Characters of two to four bytes, and bytes that are not text, so that pieces end within characters.
    let mut long: Vec<u8> = "é€😀x\"".bytes().cycle().take(700_000).collect();
    long.extend_from_slice(b"\xff\xe2\x82");
    assert_eq!(world.ask("map", "put", b"m", &[b"b", &long, b"a", b"1", b"c", b"3"]), value("SUCCESS"));
    let text = collections::text(&long);
    let whole = world.call("map:dump:m");
    for budget in [1, 1000, 65_536] {
        world.budget = budget;
        assert_eq!(world.call("map:get:m:b"), value(&text));
        assert!(world.reads >= 700_000 / (budget + 16), "{} reads of {budget}", world.reads);
        assert_eq!(world.call("map:dump:m"), whole);
        if budget > 1 {
            let all = [b"a : 1\r\nb : ", long.as_slice(), b"\r\nc : 3\r\n"].concat();
            assert_eq!(world.call("map:getall:m"), value(&collections::text(&all)));
        }
    }
    let Answer::Value(json) = whole else { panic!("{whole:?}") };
    assert!(
        json.starts_with(r#"{"a":"1","b":"é€😀x\"é"#) && json.ends_with(r#"\u00ff\u00e2\u0082","c":"3"}"#)
    );
    assert_eq!(world.call("map:delete:m:b"), value("SUCCESS"));
    assert_eq!(world.call("map:getall:m"), value("a : 1\r\nc : 3\r\n"));
}

#[test]
fn replies_as_cacheismo_gives_them() {
    let mut world = World::with(Settings { compat: true, ..Settings::default() }, 8 << 20);
    assert_eq!(world.call("map:get:m:a"), value("ERROR_CACHE_MISS"));
    world.call("map:new:m");
    world.call("map:put:m:a:1");
    assert_eq!(world.call("map:get:m:a"), value("a : 1"));
    assert_eq!(world.call("map:get:m:b"), value("NOT_FOUND"));
    let long = vec![b'x'; 100_000];
    world.ask("map", "put", b"m", &[b"b", &long]);
    assert_eq!(world.call("map:get:m:b"), value(&format!("b : {}", collections::text(&long))));
}

#[derive(Debug, Clone)]
enum Op {
    Put(Vec<(u8, usize)>),
    Get(u8),
    Delete(Vec<u8>),
    Incr(u8, i64),
    All,
    Values,
}

fn op(keys: u8, longest: usize) -> impl Strategy<Value = Op> {
    let len = prop_oneof![8 => 0..50_usize, 1 => 0..longest];
    prop_oneof![
        6 => prop::collection::vec((0..keys, len), 1..8).prop_map(Op::Put),
        3 => (0..keys).prop_map(Op::Get),
        5 => prop::collection::vec(0..keys, 1..12).prop_map(Op::Delete),
        2 => (0..keys, -5..1000_i64).prop_map(|(key, n)| Op::Incr(key, n)),
        2 => Just(Op::All),
        1 => Just(Op::Values),
    ]
}

fn key(n: u8) -> Vec<u8> {
    [b"key ".as_slice(), &[n], &vec![n; usize::from(n % 40)]].concat()
}

/// Returns calls that found no room.
fn check(ops: &[Op], memory_bytes: usize, budget: usize) -> usize {
    let mut world = World::with(Settings::default(), memory_bytes);
    world.budget = budget;
    world.call("map:new:m");
    let (mut model, mut refused) = (BTreeMap::<Vec<u8>, Vec<u8>>::new(), 0);
    for (n, op) in ops.iter().enumerate() {
        match op {
            Op::Put(list) => {
                let pairs: Vec<(Vec<u8>, Vec<u8>)> =
                    list.iter().map(|(at, len)| (key(*at), vec![n as u8; *len])).collect();
                let arguments: Vec<&[u8]> =
                    pairs.iter().flat_map(|(key, value)| [key.as_slice(), value.as_slice()]).collect();
                match world.ask("map", "put", b"m", &arguments) {
                    Answer::Value(_) => model.extend(pairs),
                    Answer::NoRoom => refused += 1,
                    Answer::Error(line) => assert!(line.contains("only one value"), "{line}"),
                    Answer::Miss => panic!("a miss"),
                }
            }
            Op::Get(at) => {
                let expected =
                    model.get(&key(*at)).map_or(Answer::Miss, |bytes| value(&collections::text(bytes)));
                assert_eq!(world.ask("map", "get", b"m", &[&key(*at)]), expected);
            }
            Op::Delete(list) => {
                let list: Vec<Vec<u8>> = list.iter().map(|n| key(*n)).collect();
                let arguments: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
                assert_eq!(world.ask("map", "delete", b"m", &arguments), value("SUCCESS"));
                model.retain(|key, _| !list.contains(key));
            }
            Op::Incr(at, n) => {
                let answer = world.ask("map", "incr", b"m", &[&key(*at), n.to_string().as_bytes()]);
                let old = model.get(&key(*at)).map_or(Some(0), |text| {
                    std::str::from_utf8(text).ok().filter(|text| text.len() <= 20)?.parse::<i64>().ok()
                });
                match (answer, old) {
                    (Answer::Value(text), Some(old)) => {
                        assert_eq!(text, (old + n).to_string());
                        model.insert(key(*at), text.into_bytes());
                    }
                    (Answer::Error(line), None) => assert!(line.contains("not a whole number"), "{line}"),
                    (Answer::NoRoom, Some(_)) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
            Op::All | Op::Values => {
                let mut all = Vec::new();
                for (key, value) in &model {
                    if matches!(op, Op::All) {
                        all.extend_from_slice(&[key.as_slice(), b" : "].concat());
                    }
                    all.extend_from_slice(&[value.as_slice(), b"\r\n"].concat());
                }
                let method = if matches!(op, Op::All) { "getall" } else { "getvalues" };
                assert_eq!(world.ask("map", method, b"m", &[]), value(&collections::text(&all)));
            }
        }
        assert_eq!(world.call("map:count:m"), value(&model.len().to_string()));
    }
    refused
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn as_a_sorted_map(
        ops in prop::collection::vec(op(60, 4000), 150),
        budget in prop_oneof![Just(1_usize), 1..3000_usize, Just(1 << 20)],
    ) {
        prop_assert_eq!(check(&ops, 64 << 20, budget), 0);
    }

    /// Where no room is found nothing has changed.
    #[test]
    fn as_a_sorted_map_in_little_memory(ops in prop::collection::vec(op(250, 20_000), 150)) {
        check(&ops, 64 << 10, 4096);
    }
}
