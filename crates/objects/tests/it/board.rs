//! Boards: every method and reply, against a sorted list, and out of room.

use std::collections::BTreeMap;

use crate::collections::{Answer, World, value};
use cattlegrid_objects::Settings;
use proptest::prelude::*;

#[test]
fn methods() {
    let mut world = World::new();
    for name in
        ["top:b", "bottom:b", "score:b:x", "rank:b:x", "around:b:x", "range:b:1:2", "count:b", "remove:b:x"]
    {
        assert_eq!(world.call(&format!("board:{name}")), Answer::Miss, "{name}");
    }
    assert_eq!(world.call("board:add:b:ann:10"), value("1"), "a board is made by its first member");
    assert_eq!(world.call("board:add:b:bob:20:cid:10:dan:-1.5"), value("3"));
    assert_eq!(world.call("board:count:b"), value("4"));
    assert_eq!(world.call("board:top:b"), value("bob 20\r\nann 10\r\ncid 10\r\ndan -1.5\r\n"));
    assert_eq!(world.call("board:top:b:2"), value("bob 20\r\nann 10\r\n"));
    assert_eq!(world.call("board:top:b:0"), value(""));
    assert_eq!(world.call("board:bottom:b:3"), value("dan -1.5\r\ncid 10\r\nann 10\r\n"));
    assert_eq!(world.call("board:rank:b:bob"), value("1"));
    assert_eq!(
        world.call("board:rank:b:cid"),
        value("3"),
        "members of one score are in order of their names"
    );
    assert_eq!(world.call("board:rank:b:x"), Answer::Miss);
    assert_eq!(world.call("board:score:b:dan"), value("-1.5"));
    assert_eq!(world.call("board:score:b:x"), Answer::Miss);
    assert_eq!(world.call("board:around:b:ann:1"), value("bob 20\r\nann 10\r\ncid 10\r\n"));
    assert_eq!(world.call("board:around:b:bob:1"), value("bob 20\r\nann 10\r\n"));
    assert_eq!(world.call("board:around:b:dan:0"), value("dan -1.5\r\n"));
    assert_eq!(
        world.call("board:around:b:dan:18446744073709551615"),
        value("bob 20\r\nann 10\r\ncid 10\r\ndan -1.5\r\n")
    );
    assert_eq!(world.call("board:around:b:x"), Answer::Miss);
    assert_eq!(world.call("board:range:b:2:3"), value("ann 10\r\ncid 10\r\n"));
    assert_eq!(world.call("board:range:b:4:99"), value("dan -1.5\r\n"));
    assert_eq!(world.call("board:range:b:5:99"), value(""));
    assert_eq!(world.call("board:range:b:3:2"), value(""));
    assert_eq!(world.call("board:range:b:0:1"), value("bob 20\r\n"));
    assert_eq!(world.call("board:incr:b:dan:30"), value("28.5"));
    assert_eq!(world.call("board:incr:b:eve"), value("1"));
    assert_eq!(world.call("board:add:b:ann:11"), value("0"));
    assert_eq!(
        world.call("board:dump:b"),
        value(r#"[["dan",28.5],["bob",20],["ann",11],["cid",10],["eve",1]]"#)
    );
    assert_eq!(world.call("board:add:b:ann:1:ann:2:ann:3"), value("0"));
    assert_eq!(world.call("board:score:b:ann"), value("3"), "the last score counts");
    assert_eq!(world.call("board:remove:b:ann:x:ann:bob"), value("2"));
    assert_eq!(world.call("board:top:b"), value("dan 28.5\r\ncid 10\r\neve 1\r\n"));
    assert_eq!(world.call("board:new:b"), value("CREATED"));
    assert_eq!(world.call("board:count:b"), value("0"));
    assert_eq!(world.call("board:top:b"), value(""));
    assert_eq!(world.call("board:incr:new:ann:2.5"), value("2.5"));
}

#[test]
fn errors_of_clients_change_nothing() {
    let mut world = World::new();
    world.call("board:add:b:ann:1e308");
    let changes = world.changes;
    let error = |text: &str| Answer::Error(format!("CLIENT_ERROR board.{text}"));
    for wrong in ["nan", "inf", "1e999", "x", ""] {
        assert_eq!(
            world.call(&format!("board:add:b:x:1:ann:{wrong}")),
            error("add: arg 4 must be a finite number")
        );
    }
    assert_eq!(world.call("board:add:b:x:1:y"), error("add: takes member score [member score ...]"));
    assert_eq!(world.call("board:add:b::1"), error("add: arg 1 must not be empty"));
    assert_eq!(world.call("board:incr:b:ann:1e308"), error("incr: the score would not be a finite number"));
    assert_eq!(world.call("board:incr:b:ann:x"), error("incr: arg 2 must be a finite number"));
    assert_eq!(world.call("board:top:b:-1"), error("top: arg 1 must be a whole number, 0 or greater"));
    let long = vec![b'x'; 1016];
    assert_eq!(
        world.ask("board", "add", b"b", &[&long, b"1"]),
        error("add: arg 1 is longer than 1015 bytes")
    );
    assert_eq!(world.changes, changes);
    assert_eq!(world.ask("board", "add", b"b", &[&long[1..], b"1"]), value("1"), "the longest");
    assert_eq!(world.ask("board", "rank", b"b", &[&long[1..]]), value("2"));
    assert_eq!(world.call("board:top:b:1"), value("ann 1e308\r\n"));
    let changes = world.changes;
    for name in ["add:b:ann:1e308", "incr:b:ann:0", "remove:b:x", "top:b", "rank:b:ann", "around:b:ann"] {
        world.call(&format!("board:{name}"));
    }
    assert_eq!(world.changes, changes, "nothing has changed where a score is what it was");
}

#[derive(Debug, Clone)]
enum Op {
    Add(Vec<(u8, i32)>),
    Incr(u8, i32),
    Remove(u8),
    Rank(u8),
    Top(u64),
    Bottom(u64),
    Around(u8, u64),
    Range(u64, u64),
}

fn op(members: u8) -> impl Strategy<Value = Op> {
    let score = || -20..20_i32;
    prop_oneof![
        6 => prop::collection::vec((0..members, score()), 1..10).prop_map(Op::Add),
        3 => (0..members, score()).prop_map(|(member, n)| Op::Incr(member, n)),
        6 => (0..members).prop_map(Op::Remove),
        3 => (0..members).prop_map(Op::Rank),
        1 => (0..300_u64).prop_map(Op::Top),
        1 => (0..300_u64).prop_map(Op::Bottom),
        1 => (0..members, 0..40_u64).prop_map(|(member, n)| Op::Around(member, n)),
        1 => (0..60_u64, 0..60_u64).prop_map(|(from, to)| Op::Range(from, to)),
    ]
}

fn member(n: u8) -> String {
    format!("member {n:03} {}", "x".repeat(usize::from(n % 30)))
}

fn check(ops: &[Op], memory_bytes: usize, budget: usize) {
    let mut world = World::with(Settings::default(), memory_bytes);
    world.budget = budget;
    world.call("board:new:b");
    // Scores are quarters, which have an exact text.
    let mut model = BTreeMap::<String, i32>::new();
    let text = |quarters: i32| (f64::from(quarters) / 4.0).to_string();
    for op in ops {
        let mut ranked: Vec<(String, i32)> =
            model.iter().map(|(member, score)| (member.clone(), *score)).collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let lines = |part: &mut dyn Iterator<Item = &(String, i32)>| {
            let lines: Vec<_> =
                part.map(|(member, score)| format!("{member} {}\r\n", text(*score))).collect();
            value(&lines.concat())
        };
        match op {
            Op::Add(list) => {
                let arguments: Vec<String> =
                    list.iter().flat_map(|(at, score)| [member(*at), text(*score)]).collect();
                let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
                let answer = world.ask("board", "add", b"b", &arguments);
                if answer != Answer::NoRoom {
                    let before = model.len();
                    model.extend(list.iter().map(|(at, score)| (member(*at), *score)));
                    assert_eq!(answer, value(&(model.len() - before).to_string()));
                }
            }
            Op::Incr(at, n) => {
                let answer = world.ask("board", "incr", b"b", &[member(*at).as_bytes(), text(*n).as_bytes()]);
                if answer != Answer::NoRoom {
                    let score = model.entry(member(*at)).or_default();
                    *score += n;
                    assert_eq!(answer, value(&text(*score)));
                }
            }
            Op::Remove(at) => {
                let removed = usize::from(model.remove(&member(*at)).is_some());
                assert_eq!(
                    world.ask("board", "remove", b"b", &[member(*at).as_bytes()]),
                    value(&removed.to_string())
                );
            }
            Op::Rank(at) => {
                let place = ranked.iter().position(|(own, _)| *own == member(*at));
                let rank = place.map_or(Answer::Miss, |place| value(&(place + 1).to_string()));
                assert_eq!(world.ask("board", "rank", b"b", &[member(*at).as_bytes()]), rank);
                let score = model.get(&member(*at)).map_or(Answer::Miss, |score| value(&text(*score)));
                assert_eq!(world.ask("board", "score", b"b", &[member(*at).as_bytes()]), score);
            }
            Op::Top(n) => {
                assert_eq!(
                    world.call(&format!("board:top:b:{n}")),
                    lines(&mut ranked.iter().take(*n as usize))
                );
            }
            Op::Bottom(n) => {
                let expected = lines(&mut ranked.iter().rev().take(*n as usize));
                assert_eq!(world.call(&format!("board:bottom:b:{n}")), expected);
            }
            Op::Around(at, n) => {
                let place = ranked.iter().position(|(own, _)| *own == member(*at));
                let expected = place.map_or(Answer::Miss, |place| {
                    let first = place.saturating_sub(*n as usize);
                    lines(&mut ranked[first..ranked.len().min(place + *n as usize + 1)].iter())
                });
                let answer =
                    world.ask("board", "around", b"b", &[member(*at).as_bytes(), n.to_string().as_bytes()]);
                assert_eq!(answer, expected);
            }
            Op::Range(from, to) => {
                let first = from.saturating_sub(1) as usize;
                let expected = lines(&mut ranked.iter().take(*to as usize).skip(first));
                assert_eq!(world.call(&format!("board:range:b:{from}:{to}")), expected);
            }
        }
        assert_eq!(world.call("board:count:b"), value(&model.len().to_string()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn as_a_sorted_list(
        ops in prop::collection::vec(op(60), 200),
        budget in prop_oneof![Just(1_usize), 1..3000_usize, Just(1 << 20)],
    ) {
        check(&ops, 64 << 20, budget);
    }

    /// Where no room is found nothing has changed.
    #[test]
    fn as_a_sorted_list_in_little_memory(ops in prop::collection::vec(op(250), 200)) {
        check(&ops, 24 << 10, 4096);
    }
}
