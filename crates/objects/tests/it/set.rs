//! Sets: every method and reply, against a sorted set, across the border between bytes and tree, and out of room.

use std::collections::BTreeSet;

use crate::collections;
use crate::collections::{Answer, World, value};
use cattlegrid_objects::{FLAT_MAX, ReadSet, Registry, Settings};
use proptest::prelude::*;

#[test]
fn methods() {
    let mut world = World::new();
    assert_eq!(world.call("set:put:s:a"), Answer::Miss, "it must be made first");
    assert_eq!(world.call("set:new:s"), value("CREATED"));
    assert_eq!(world.call("set:count:s"), value("0"));
    assert_eq!(world.call("set:getall:s"), value(""));
    assert_eq!(world.call("set:put:s:b"), value("SUCCESS"));
    assert_eq!(world.call("set:put:s:b"), value("SUCCESS"));
    assert_eq!(world.call("set:add:s:c:a:b:c"), value("2"));
    assert_eq!(world.call("set:count:s"), value("3"));
    assert_eq!(world.call("set:getall:s"), value("a\r\nb\r\nc\r\n"));
    assert_eq!(world.call("set:exist:s:a"), value("EXISTS"));
    assert_eq!(world.call("set:exist:s:x"), value("NOT_FOUND"));
    assert_eq!(world.call("set:delete:s:x"), value("SUCCESS"));
    assert_eq!(world.call("set:delete:s:a"), value("SUCCESS"));
    assert_eq!(world.call("set:remove:s:a:b:x"), value("1"));
    assert_eq!(world.call("set:dump:s"), value(r#"["c"]"#));
    assert_eq!(world.call("set:random:s"), value("c"));
    assert_eq!(world.call("set:pop:s"), value("c"));
    assert_eq!(world.call("set:pop:s"), Answer::Miss);
    assert_eq!(world.call("set:random:s"), Answer::Miss);
    assert_eq!(world.call("set:random:s:3"), value(""));
    assert_eq!(world.call("set:exists:s"), value("EXISTS"), "an empty set is a set");
    world.call("set:put:s:a%3Ab:%25");
    assert_eq!(world.call("set:getall:s"), value("%\r\na:b\r\n"));
    assert_eq!(world.call("set:new:s"), value("CREATED"), "in place of the old set");
    assert_eq!(world.call("set:count:s"), value("0"));
    assert_eq!(world.call("set:drop:s"), value("DELETED"));
    for method in ["getall", "count", "exist:s:a", "delete:s:a", "pop", "random", "dump", "union:s:s"] {
        let name = if method.contains(':') { format!("set:{method}") } else { format!("set:{method}:s") };
        assert_eq!(world.call(&name), Answer::Miss, "{name}");
    }
}

#[test]
fn combinations_as_cacheismo_answers_them() {
    let mut world = World::with(Settings { compat: true, ..Settings::default() }, 8 << 20);
    world.call("set:new:empty");
    for (set, first) in [("a", "x"), ("b", "y")] {
        world.call(&format!("set:new:{set}"));
        world.call(&format!("set:put:{set}:{first}:z"));
    }
    let miss = value("ERROR_CACHE_MISS");
    for method in ["union", "intersection", "diff"] {
        for keys in ["a:absent", "absent:a", "empty:absent", "a:b:absent", "a:absent:b", "absent:absent"] {
            assert_eq!(world.call(&format!("set:{method}:{keys}")), miss, "{method}:{keys}");
        }
    }
    assert_eq!(world.call("set:union:a:b"), value("x\r\ny\r\nz\r\n"));
    assert_eq!(world.call("set:intersection:a:b:a"), value("z\r\n"));
    assert_eq!(world.call("set:intersection:empty:b"), value(""));
    assert_eq!(world.call("set:diff:a:b"), value("x\r\n"));
    let mut world = World::new();
    world.call("set:new:a");
    world.call("set:put:a:x");
    assert_eq!(world.call("set:union:a:absent"), value("x\r\n"), "without it an absent set is empty");
    assert_eq!(world.call("set:union:absent:a"), Answer::Miss);
}

#[test]
fn errors_of_clients_change_nothing() {
    let mut world = World::new();
    world.call("set:new:s");
    world.call("set:put:s:a");
    let changes = world.changes;
    let error = |text: &str| Answer::Error(format!("CLIENT_ERROR set.{text}"));
    assert_eq!(world.call("set:put:s"), error("put: takes member [member ...]"));
    assert_eq!(world.call("set:put:s:b:"), error("put: arg 2 must not be empty"));
    assert_eq!(world.call("set:exist:s:"), error("exist: arg 1 must not be empty"));
    let long = vec![b'x'; 1025];
    assert_eq!(world.ask("set", "put", b"s", &[b"b", &long]), error("put: arg 2 is longer than 1024 bytes"));
    assert_eq!(world.ask("set", "put", b"s", &[&long[..1024]]), value("SUCCESS"));
    assert_eq!(world.ask("set", "delete", b"s", &[&long[..1024]]), value("SUCCESS"));
    assert_eq!(world.call("set:union:s:"), error("union: arg 1 must be a key of 1 to 250 bytes"));
    assert_eq!(
        world.ask("set", "diff", b"s", &[b"t", &long[..251]]),
        error("diff: arg 2 must be a key of 1 to 250 bytes")
    );
    assert_eq!(world.call("set:random:s:1001"), error("random: arg 1 must be a number from 0 to 1000"));
    assert_eq!(world.call("set:random:s:x"), error("random: arg 1 must be a number from 0 to 1000"));
    assert_eq!(world.call("set:getall:s"), value("a\r\n"));
    assert_eq!(world.changes, changes + 2, "only the put and the delete that were right");
}

#[test]
fn calls_that_only_read_or_do_nothing_change_nothing() {
    for members in [3, 1000] {
        let mut world = World::new();
        world.call("set:new:s");
        for n in 0..members {
            world.call(&format!("set:put:s:m{n:04}"));
        }
        let changes = world.changes;
        for name in
            ["put:s:m0001", "add:s:m0001:m0002", "delete:s:x", "exist:s:m0001", "getall:s", "random:s:9"]
        {
            world.call(&format!("set:{name}"));
        }
        assert_eq!(world.changes, changes, "of {members}");
    }
}

#[test]
fn the_border_of_bytes_and_tree() {
    let mut world = World::new();
    world.call("set:new:s");
    // Entries of 16 bytes: two lengths and 14.
    let member = |n: usize| format!("{n:014}");
    for n in 0..FLAT_MAX / 16 {
        world.call(&format!("set:put:s:{}", member(n)));
    }
    let (is_tree, bytes) = world.state(3, "s").unwrap();
    assert!(!is_tree && bytes.len() == FLAT_MAX, "as many bytes as there may be");
    world.call("set:put:s:x");
    assert!(world.state(3, "s").unwrap().0, "one byte more is a tree");
    assert_eq!(world.call("set:count:s"), value(&(FLAT_MAX / 16 + 1).to_string()));
    let all: String = (0..FLAT_MAX / 16).map(|n| member(n) + "\r\n").collect();
    assert_eq!(world.call("set:getall:s"), value(&(all + "x\r\n")));
    for n in 0..FLAT_MAX / 16 {
        world.call(&format!("set:delete:s:{}", member(n)));
    }
    assert!(world.state(3, "s").unwrap().0, "it stays a tree");
    assert_eq!(world.call("set:getall:s"), value("x\r\n"));
    world.call("set:new:s");
    assert!(!world.state(3, "s").unwrap().0);
}

#[test]
fn random_members_are_different_and_all_occur() {
    for members in [10_usize, 500] {
        let mut world = World::new();
        world.call("set:new:s");
        for n in 0..members {
            world.call(&format!("set:put:s:member{n:04}"));
        }
        let lines = |answer: Answer| match answer {
            Answer::Value(text) => text.lines().map(str::to_owned).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let mut seen = BTreeSet::new();
        for _ in 0..members * 20 {
            let three = lines(world.call("set:random:s:3"));
            assert!(three.len() == 3 && three.is_sorted() && three[0] != three[1] && three[1] != three[2]);
            seen.extend(three);
        }
        assert_eq!(seen.len(), members, "each of {members} was drawn");
        assert_eq!(lines(world.call("set:random:s:1000")).len(), members.min(1000));
        let mut popped = BTreeSet::new();
        while let Answer::Value(member) = world.call("set:pop:s") {
            assert!(popped.insert(member));
        }
        assert_eq!(popped.len(), members);
    }
}

#[test]
fn results_are_bounded() {
    let mut world = World::with(Settings { result_max: 8000, ..Settings::default() }, 8 << 20);
    world.call("set:new:s");
    for n in 0..1000 {
        world.call(&format!("set:put:s:{n:06}"));
    }
    // 1000 lines of 8 bytes.
    assert!(matches!(world.call("set:getall:s"), Answer::Value(text) if text.len() == 8000));
    assert!(matches!(world.call("set:union:s:s"), Answer::Value(text) if text.len() == 8000));
    assert!(matches!(world.call("set:random:s:1000"), Answer::Value(text) if text.len() == 8000));
    world.call("set:put:s:1");
    let too_large = Answer::Error("SERVER_ERROR result too large".to_owned());
    world.budget = 100;
    assert_eq!(world.call("set:getall:s"), too_large);
    assert_eq!(world.call("set:union:s:t"), too_large);
    assert_eq!(world.call("set:dump:s"), too_large);
    assert_eq!(world.call("set:count:s"), value("1001"));
}

#[test]
fn an_absent_set_is_made_where_the_settings_say_so() {
    let mut settings = Settings::default();
    settings.types.iter_mut().find(|own| own.name == "set").unwrap().create = Some(Vec::new());
    let mut world = World::with(settings, 8 << 20);
    assert_eq!(world.call("set:add:s:a:b"), value("2"));
    assert_eq!(world.call("set:count:t"), value("0"));
}

#[test]
fn combinations_read_the_objects_of_their_arguments() {
    let world = World::new();
    let set = world.registry.types().find(|one| one.name == "set").unwrap();
    let several = Registry::methods(set).filter(|method| method.reads == ReadSet::Arguments);
    assert_eq!(several.map(|method| method.name).collect::<Vec<_>>(), ["union", "intersection", "diff"]);
}

#[test]
fn as_many_members_at_once_as_a_call_has_arguments() {
    let mut world = World::new();
    world.call("set:new:s");
    let members: Vec<Vec<u8>> = (0..128).map(|n| format!("{n:03}").into_bytes()).collect();
    let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
    assert_eq!(world.ask("set", "add", b"s", &members), value("128"));
    let many = ["x"; 129].join(":");
    let too_many = Answer::Error("CLIENT_ERROR set.add: too many arguments".to_owned());
    assert_eq!(world.call(&format!("set:add:s:{many}")), too_many);
    assert_eq!(world.ask("set", "remove", b"s", &members), value("128"));
    assert_eq!(world.call("set:count:s"), value("0"));
}

#[test]
fn memory_is_given_back() {
    let mut world = World::new();
    for way in ["drop:s", "new:s"] {
        world.call("set:new:s");
        for n in 0..20_000 {
            world.call(&format!("set:put:s:member{n}"));
        }
        let full = world.memory.used_bytes();
        assert!(full > 200_000, "{full} bytes");
        assert_eq!(
            world.call("set:size:s"),
            value(&full.to_string()),
            "what it holds is what its tree holds"
        );
        world.call(&format!("set:{way}"));
        assert_eq!(world.memory.used_bytes(), 0, "after {way}");
    }
    world.call("set:new:s");
    for n in 0..20_000 {
        world.call(&format!("set:put:s:member{n}"));
    }
    let full = world.memory.used_bytes();
    for n in 0..19_000 {
        world.call(&format!("set:delete:s:member{n}"));
    }
    let left = world.memory.used_bytes();
    assert!(left < full / 4, "{left} of {full} bytes after 19 of 20 members are gone");
}

#[derive(Debug, Clone)]
enum Op {
    Put(Vec<u16>),
    Add(Vec<u16>),
    Delete(Vec<u16>),
    Exist(u16),
    Count,
    All,
    Combine(usize, Vec<usize>),
    New,
}

fn op(keys: u16) -> impl Strategy<Value = Op> {
    let several = || prop::collection::vec(0..keys, 1..20);
    prop_oneof![
        4 => several().prop_map(Op::Put),
        4 => several().prop_map(Op::Add),
        6 => several().prop_map(Op::Delete),
        2 => (0..keys).prop_map(Op::Exist),
        2 => Just(Op::Count),
        2 => Just(Op::All),
        3 => (0..3_usize, prop::collection::vec(0..4_usize, 1..4)).prop_map(|(how, others)| Op::Combine(how, others)),
        1 => Just(Op::New),
    ]
}

/// A member of 1 to 60 bytes, of any bytes.
fn member(n: u16) -> Vec<u8> {
    let mut bytes = vec![(n % 251) as u8; 1 + usize::from(n % 60)];
    bytes.extend_from_slice(&n.to_be_bytes());
    bytes
}

fn check(ops: &[(usize, Op)], memory_bytes: usize, budget: usize) {
    let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"absent"];
    let mut world = World::with(Settings::default(), memory_bytes);
    world.budget = budget;
    let mut models: [BTreeSet<Vec<u8>>; 4] = Default::default();
    keys[..3].iter().for_each(|key| drop(world.ask("set", "new", key, &[])));
    let lines = |members: &mut dyn Iterator<Item = &Vec<u8>>| {
        let mut all = Vec::new();
        for member in members {
            all.extend_from_slice(member);
            all.extend_from_slice(b"\r\n");
        }
        value(&collections::text(&all))
    };
    for (at, op) in ops {
        let (at, key) = (at % 3, keys[at % 3]);
        let several = |list: &[u16]| list.iter().map(|n| member(*n)).collect::<Vec<_>>();
        match op {
            Op::Put(list) | Op::Add(list) => {
                let list = several(list);
                let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
                let is_put = matches!(op, Op::Put(_));
                let answer = world.ask("set", if is_put { "put" } else { "add" }, key, &list);
                if answer != Answer::NoRoom {
                    let added = list.iter().filter(|member| models[at].insert(member.to_vec())).count();
                    assert_eq!(answer, if is_put { value("SUCCESS") } else { value(&added.to_string()) });
                }
            }
            Op::Delete(list) => {
                let list = several(list);
                let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
                assert_eq!(world.ask("set", "delete", key, &list), value("SUCCESS"));
                models[at].retain(|member| !list.contains(&member.as_slice()));
            }
            Op::Exist(n) => {
                let is_there = models[at].contains(&member(*n));
                let expected = value(if is_there { "EXISTS" } else { "NOT_FOUND" });
                assert_eq!(world.ask("set", "exist", key, &[&member(*n)]), expected);
            }
            Op::Count => {
                assert_eq!(world.ask("set", "count", key, &[]), value(&models[at].len().to_string()));
            }
            Op::All => assert_eq!(world.ask("set", "getall", key, &[]), lines(&mut models[at].iter())),
            Op::Combine(how, others) => {
                let method = ["union", "intersection", "diff"][*how];
                let names: Vec<&[u8]> = others.iter().map(|other| keys[*other]).collect();
                let mut expected = models[at].clone();
                for other in others {
                    let other = &models[*other];
                    expected = match how {
                        0 => expected.union(other).cloned().collect(),
                        1 => expected.intersection(other).cloned().collect(),
                        _ => expected.difference(other).cloned().collect(),
                    };
                }
                assert_eq!(world.ask("set", method, key, &names), lines(&mut expected.iter()), "{method}");
            }
            Op::New => {
                assert_eq!(world.ask("set", "new", key, &[]), value("CREATED"));
                models[at].clear();
            }
        }
    }
    for (key, model) in keys[..3].iter().zip(&models) {
        assert_eq!(world.ask("set", "getall", key, &[]), lines(&mut model.iter()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn as_a_sorted_set(
        ops in prop::collection::vec((0..3_usize, op(90)), 200),
        budget in prop_oneof![Just(1_usize), 1..3000_usize, Just(1 << 20)],
    ) {
        check(&ops, 64 << 20, budget);
    }

    /// Where no room is found nothing has changed.
    #[test]
    fn as_a_sorted_set_in_little_memory(ops in prop::collection::vec((0..3_usize, op(4000)), 400)) {
        check(&ops, 64 << 10, 4096);
    }
}
