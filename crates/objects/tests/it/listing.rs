//! Listings as their caller sees them: which objects are wanted, what a read costs, and how they end.

use std::collections::BTreeSet;

use crate::collections::{Answer, World, value};
use cattlegrid_objects::{Listing, Settings, StateView, TooLarge};

fn sum(sum: &mut Vec<u8>, view: StateView<'_>) {
    sum.extend_from_slice(match view {
        StateView::Absent => b"-",
        StateView::Bytes(bytes) => bytes,
        StateView::Tree(_) | StateView::Layer(_) => b"tree",
    });
}

fn brackets(sum: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&[b"<", sum, b">"].concat());
}

fn folding() -> Listing {
    Listing::fold(vec![b"a"[..].into(), b"b"[..].into(), b"c"[..].into()], sum, brackets)
}

#[test]
fn a_fold_takes_each_object_once() {
    let mut listing = folding();
    assert_eq!(listing.keys().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    for restarts in [true, false] {
        assert_eq!(listing.wants(), Some(0));
        listing.read(0, StateView::Bytes(b"1"), 1, 100);
        assert_eq!(listing.wants(), Some(1));
        listing.read(1, StateView::Absent, 1, 100);
        if restarts {
            listing.restart();
            continue;
        }
        assert_eq!(listing.wants(), Some(2));
        listing.read(2, StateView::Bytes(b"3"), 1, 100);
        assert_eq!(listing.wants(), None);
    }
    assert_eq!(listing.finish(), Ok(Some(b"<1-3>".to_vec())));
}

#[test]
fn an_absent_first_object_is_a_miss_and_a_long_result_an_error() {
    let mut absent = folding();
    absent.read(0, StateView::Absent, 1, 100);
    assert_eq!(absent.wants(), None, "the others are not read");
    assert_eq!(absent.finish(), Ok(None));
    for (result_max, expected) in [(5, Ok(Some(b"<123>".to_vec()))), (4, Err(TooLarge))] {
        let mut listing = folding();
        for (place, state) in [b"1", b"2", b"3"].iter().enumerate() {
            listing.read(place, StateView::Bytes(*state), 1, result_max);
        }
        assert_eq!(listing.finish(), expected);
    }
}

/// A set of the numbers from `from` to `to` in steps, of six digits each.
fn numbers(world: &mut World, key: &str, from: usize, to: usize, step: usize) -> BTreeSet<String> {
    world.call(&format!("set:new:{key}"));
    let all: BTreeSet<String> = (from..to).step_by(step).map(|n| format!("{n:06}")).collect();
    for member in &all {
        world.call(&format!("set:put:{key}:{member}"));
    }
    all
}

fn lines<'a>(members: impl IntoIterator<Item = &'a String>) -> Answer {
    let lines: Vec<_> = members.into_iter().map(|member| format!("{member}\r\n")).collect();
    value(&lines.concat())
}

#[test]
fn a_read_costs_its_budget() {
    let mut world = World::new();
    let all = numbers(&mut world, "s", 0, 20_000, 1);
    world.budget = 4000;
    assert_eq!(world.call("set:getall:s"), lines(&all));
    // Lines of 8 bytes: 500 a read, and a read that finds the end.
    assert!((40..=42).contains(&world.reads), "{} reads", world.reads);
    assert_eq!(world.call("set:union:s:absent"), lines(&all));
    assert!((40..400).contains(&world.reads), "{} reads", world.reads);
    world.budget = usize::MAX;
    assert_eq!(world.call("set:getall:s"), lines(&all));
    assert_eq!(world.reads, 1);
}

#[test]
fn the_smaller_set_decides_what_a_combination_costs() {
    let mut world = World::new();
    numbers(&mut world, "large", 0, 100_000, 1);
    numbers(&mut world, "other", 0, 100_000, 2);
    let few = numbers(&mut world, "few", 500, 100_000, 10_000);
    world.call("set:new:none");
    assert_eq!(world.call("set:intersection:few:large"), lines(&few));
    assert!(world.reads < 3 * few.len() + 3, "{} reads", world.reads);
    assert_eq!(world.call("set:intersection:large:other:few"), lines(&few));
    assert!(world.reads < 6 * few.len() + 6, "{} reads", world.reads);
    assert_eq!(world.call("set:diff:few:large"), value(""));
    assert!(world.reads < 3 * few.len() + 3, "{} reads", world.reads);
    assert_eq!(world.call("set:intersection:large:none:other"), value(""));
    assert!(world.reads <= 3, "{} reads", world.reads);
    assert_eq!(world.call("set:diff:none:large"), value(""));
    assert!(world.reads <= 2, "{} reads", world.reads);
}

#[test]
fn large_sets_are_combined_in_pieces() {
    let mut world = World::new();
    let by_two = numbers(&mut world, "two", 0, 30_000, 2);
    let by_three = numbers(&mut world, "three", 0, 30_000, 3);
    let half = numbers(&mut world, "half", 15_000, 30_000, 1);
    for budget in [1, 999, 1 << 16] {
        world.budget = budget;
        assert_eq!(world.call("set:union:two:three"), lines(by_two.union(&by_three)));
        assert_eq!(world.call("set:intersection:two:three"), lines(by_two.intersection(&by_three)));
        assert_eq!(world.call("set:diff:two:three"), lines(by_two.difference(&by_three)));
        let all = by_two.intersection(&by_three).filter(|member| half.contains(*member));
        assert_eq!(world.call("set:intersection:two:half:three"), lines(all));
        let rest = by_two.difference(&by_three).filter(|member| !half.contains(*member));
        assert_eq!(world.call("set:diff:two:three:absent:half"), lines(rest));
    }
}

#[test]
fn a_key_that_occurs_twice_is_one_object() {
    let mut world = World::new();
    let all = numbers(&mut world, "s", 0, 3000, 1);
    world.budget = 500;
    assert_eq!(world.call("set:union:s:s:s"), lines(&all));
    assert_eq!(world.call("set:intersection:s:s"), lines(&all));
    assert_eq!(world.call("set:diff:s:t:s"), value(""));
}

#[test]
fn a_result_that_is_too_long_ends_the_reading() {
    let mut world = World::with(Settings { result_max: 10_000, ..Settings::default() }, 64 << 20);
    numbers(&mut world, "s", 0, 50_000, 1);
    world.budget = 1000;
    for name in ["getall:s", "union:s:s", "intersection:s:s", "diff:s:t", "dump:s"] {
        assert_eq!(
            world.call(&format!("set:{name}")),
            Answer::Error("SERVER_ERROR result too large".to_owned())
        );
        assert!(world.reads < 100, "{} reads of {name}", world.reads);
    }
}

#[test]
fn replies_in_json_have_their_flags() {
    use cattlegrid_objects::{Arguments, Object, ObjectOutcome, ObjectState, VirtualKey};
    let world = World::with(Settings { json_flags: 7, ..Settings::default() }, 8 << 20);
    for (members, name, expected) in
        [(3_u32, "set:dump:s", 7), (2000, "set:dump:s", 7), (3, "set:getall:s", 0), (2000, "set:getall:s", 0)]
    {
        let mut tree = cattlegrid_store::Tree::new(&world.memory).unwrap();
        for n in 0..members {
            assert_eq!(tree.insert(&n.to_be_bytes(), b""), Ok(true));
        }
        let Some(VirtualKey::Call(call)) = world.registry.named(name.as_bytes()) else {
            panic!("{name} is a call")
        };
        let (mut new, mut out) = (Vec::new(), Vec::new());
        let object = Object::new(b"s", ObjectState::Tree(&mut tree), &mut new, &world.memory, None);
        let done = world.registry.call(call.method, object, &Arguments::none(), 0, 0, &mut out);
        match done.outcome {
            ObjectOutcome::Value { flags } => assert!(members == 3 && flags == expected),
            ObjectOutcome::List { flags, .. } => {
                assert!(members == 2000 && flags == expected && out.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}
