//! Queues: every method and reply, against a list, at their limits, and out of room.

use std::collections::VecDeque;

use crate::collections;
use crate::collections::{Answer, World, value};
use cattlegrid_objects::Settings;
use proptest::prelude::*;

#[test]
fn methods() {
    let mut world = World::new();
    for method in ["pop", "peek", "len", "all"] {
        assert_eq!(world.call(&format!("queue:{method}:q")), Answer::Miss);
    }
    assert_eq!(world.call("queue:push:q:a"), value("1"), "a queue is made by its first entry");
    assert_eq!(world.call("queue:push:q:b"), value("2"));
    assert_eq!(world.call("queue:push:q:"), value("3"), "an entry may be empty");
    assert_eq!(world.call("queue:len:q"), value("3"));
    assert_eq!(world.call("queue:all:q"), value("a\r\nb\r\n\r\n"));
    assert_eq!(world.call("queue:dump:q"), value(r#"["a","b",""]"#));
    assert_eq!(world.call("queue:peek:q"), value("a"));
    assert_eq!(world.call("queue:pop:q"), value("a"));
    assert_eq!(world.call("queue:pop:q"), value("b"));
    assert_eq!(world.call("queue:push:q:a"), value("2"), "an entry may come again");
    assert_eq!(world.call("queue:pop:q"), value(""));
    assert_eq!(world.call("queue:pop:q"), value("a"));
    assert_eq!(world.call("queue:pop:q"), Answer::Miss);
    assert_eq!(world.call("queue:peek:q"), Answer::Miss);
    assert_eq!(world.call("queue:len:q"), value("0"));
    assert_eq!(world.call("queue:all:q"), value(""));
    assert_eq!(world.call("queue:dump:q"), value("[]"));
    assert_eq!(world.call("queue:exists:q"), value("EXISTS"));
}

#[test]
fn limits() {
    let mut world = World::new();
    assert_eq!(world.call("queue:new:d:2"), value("CREATED"));
    assert_eq!(world.call("queue:new:r:2:refuse"), value("CREATED"));
    for (n, entry) in ["a", "b", "c", "d"].iter().enumerate() {
        assert_eq!(world.call(&format!("queue:push:d:{entry}")), value(&(n + 1).min(2).to_string()));
        let refusing = if n < 2 { value(&(n + 1).to_string()) } else { value("FULL") };
        assert_eq!(world.call(&format!("queue:push:r:{entry}")), refusing);
    }
    assert_eq!(world.call("queue:all:d"), value("c\r\nd\r\n"));
    assert_eq!(world.call("queue:all:r"), value("a\r\nb\r\n"));
    world.call("queue:pop:r");
    assert_eq!(world.call("queue:push:r:e"), value("2"), "there is room again");
    assert_eq!(world.call("queue:new:d:1:drop"), value("CREATED"), "in place of the old queue");
    assert_eq!(world.call("queue:len:d"), value("0"));
    world.call("queue:push:d:x");
    assert_eq!(world.call("queue:push:d:y"), value("1"));
    assert_eq!(world.call("queue:all:d"), value("y\r\n"));
    let error = |text: &str| Answer::Error(format!("CLIENT_ERROR queue.new: {text}"));
    for wrong in ["0", "1000001", "x", "-1"] {
        assert_eq!(
            world.call(&format!("queue:new:d:{wrong}")),
            error("arg 1 must be a number from 1 to 1000000")
        );
    }
    assert_eq!(world.call("queue:new:d:5:other"), error("arg 2 must be drop or refuse"));
    assert_eq!(world.call("queue:all:d"), value("y\r\n"), "as it was");
    assert_eq!(world.call("queue:new:d:1000000"), value("CREATED"));
}

#[test]
fn by_default_a_thousand_entries_are_kept() {
    let mut world = World::new();
    for n in 0..1005 {
        assert_eq!(world.call(&format!("queue:push:q:{n}")), value(&(n + 1).min(1000).to_string()));
    }
    assert_eq!(world.call("queue:pop:q"), value("5"));
}

#[test]
fn the_settings_may_say_how_many() {
    let mut settings = Settings::default();
    let own = settings.types.iter_mut().find(|own| own.name == "queue").unwrap();
    own.create = Some(vec![b"1".to_vec(), b"refuse".to_vec()]);
    let mut world = World::with(settings, 8 << 20);
    assert_eq!(world.call("queue:push:q:a"), value("1"));
    assert_eq!(world.call("queue:push:q:b"), value("FULL"));
    assert_eq!(world.call("queue:len:other"), value("0"), "made by any method");
}

#[derive(Debug, Clone)]
enum Op {
    Push(usize),
    Pop,
    Peek,
    All,
    New(usize, bool),
}

fn check(ops: &[Op], memory_bytes: usize) {
    let mut world = World::with(Settings::default(), memory_bytes);
    let (mut model, mut most, mut refuses) = (VecDeque::<Vec<u8>>::new(), 1000, false);
    world.call("queue:new:q");
    for (n, op) in ops.iter().enumerate() {
        match op {
            Op::Push(len) => {
                let entry = vec![n as u8; *len];
                match world.ask("queue", "push", b"q", &[&entry]) {
                    Answer::NoRoom => {}
                    answer if refuses && model.len() == most => assert_eq!(answer, value("FULL")),
                    answer => {
                        model.push_back(entry);
                        if model.len() > most {
                            model.pop_front();
                        }
                        assert_eq!(answer, value(&model.len().to_string()));
                    }
                }
            }
            Op::Pop | Op::Peek => {
                let expected = model.front().map_or(Answer::Miss, |entry| value(&collections::text(entry)));
                let method = if matches!(op, Op::Pop) { "pop" } else { "peek" };
                assert_eq!(world.ask("queue", method, b"q", &[]), expected);
                if matches!(op, Op::Pop) {
                    model.pop_front();
                }
            }
            Op::All => {
                let all: Vec<u8> =
                    model.iter().flat_map(|entry| [entry, b"\r\n".as_slice()].concat()).collect();
                assert_eq!(world.ask("queue", "all", b"q", &[]), value(&collections::text(&all)));
            }
            Op::New(n, refuse) => {
                (most, refuses) = (*n, *refuse);
                model.clear();
                world.call(&format!("queue:new:q:{most}:{}", if refuses { "refuse" } else { "drop" }));
            }
        }
        assert_eq!(world.call("queue:len:q"), value(&model.len().to_string()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn as_a_list(
        ops in prop::collection::vec(prop_oneof![
            8 => (0..60_usize).prop_map(Op::Push),
            1 => (0..5000_usize).prop_map(Op::Push),
            5 => Just(Op::Pop),
            1 => Just(Op::Peek),
            1 => Just(Op::All),
            1 => (1..200_usize, any::<bool>()).prop_map(|(most, refuses)| Op::New(most, refuses)),
        ], 300),
        memory_bytes in prop_oneof![Just(64_usize << 20), Just(64 << 10)],
    ) {
        check(&ops, memory_bytes);
    }
}
