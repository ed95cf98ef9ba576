//! Calls that find no room, at every point at which a call may need some: the object is as it was, and the same call
//! succeeds when there is room.

use crate::collections::{Answer, World, value};
use cattlegrid_objects::Settings;
use cattlegrid_store::PAGE_BYTES;

/// Makes an object, and then tries a call with no page free, with one, with two and more until it succeeds.
fn with_each_number_of_pages(make: impl Fn(&mut World), call: impl Fn(&mut World) -> Answer) {
    let key = "k";
    let mut refused = 0;
    for pages in 0.. {
        let mut world = World::with(Settings::default(), 16 << 20);
        make(&mut world);
        let type_id = world.objects.keys().next().expect("the object is made").0;
        let before = world.state(type_id, key);
        let held = world.memory.free_bytes().saturating_sub(pages * PAGE_BYTES);
        let taken = world.memory.scattered(held).expect("it is free");
        let used = world.memory.used_bytes();
        match call(&mut world) {
            Answer::NoRoom => {
                assert_eq!(world.state(type_id, key), before, "with {pages} pages");
                assert_eq!(world.memory.used_bytes(), used, "what was reserved is given back");
                refused += 1;
                drop(taken);
                let answer = call(&mut world);
                assert!(
                    matches!(answer, Answer::Value(_)),
                    "{answer:?} when there is room, after {pages} pages"
                );
                assert_ne!(world.state(type_id, key), before);
            }
            Answer::Value(_) => {
                assert_ne!(world.state(type_id, key), before);
                assert!(refused > 0 && refused == pages, "{refused} times refused, done with {pages} pages");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn bytes(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}

/// Members of 900 bytes: a few fill a page.
fn large(n: usize) -> Vec<u8> {
    format!("{n:0900}").into_bytes()
}

#[test]
fn a_set_that_becomes_a_tree() {
    let make = |world: &mut World| {
        world.call("set:new:k");
        world.ask("set", "put", b"k", &bytes(&[large(1), large(2)]));
    };
    with_each_number_of_pages(make, |world| world.ask("set", "put", b"k", &[&large(3)]));
}

#[test]
fn members_put_at_once() {
    let make = |world: &mut World| {
        world.call("set:new:k");
        (0..20).for_each(|n| drop(world.ask("set", "put", b"k", &[&large(2 * n)])));
    };
    let many: Vec<Vec<u8>> = (0..12).map(|n| large(2 * n + 1)).collect();
    with_each_number_of_pages(make, |world| world.ask("set", "put", b"k", &bytes(&many)));
    with_each_number_of_pages(make, |world| world.ask("set", "add", b"k", &bytes(&many[4..9])));
}

#[test]
fn values_put_at_once() {
    let make = |world: &mut World| {
        world.call("map:new:k");
        for n in 0..50 {
            world.ask("map", "put", b"k", &[&large(2 * n), b"value"]);
        }
    };
    // Old keys and new, short values and a long one in their middle.
    let pairs: Vec<Vec<u8>> = (0..12)
        .flat_map(|n| [large(n), if n == 5 { vec![b'l'; 60_000] } else { vec![b'v'; 10 * n] }])
        .collect();
    with_each_number_of_pages(make, |world| world.ask("map", "put", b"k", &bytes(&pairs)));
    with_each_number_of_pages(make, |world| {
        world.ask("map", "put", b"k", &[&large(20), &vec![b'l'; 60_000]])
    });
    let grow = |world: &mut World| {
        make(world);
        for n in 50..200 {
            world.ask("map", "put", b"k", &[format!("{n}").as_bytes(), b"9"]);
        }
    };
    let all_texts_longer = |world: &mut World| {
        // Numbers that get a digit each, until a page is full.
        let mut last = Answer::Miss;
        for n in 200..400 {
            last = world.ask("map", "incr", b"k", &[format!("{n}").as_bytes(), b"1000000000"]);
            if last == Answer::NoRoom {
                break;
            }
        }
        last
    };
    let mut world = World::with(Settings::default(), 4 << 20);
    grow(&mut world);
    let taken = world.memory.scattered(world.memory.free_bytes()).expect("it is free");
    assert_eq!(all_texts_longer(&mut world), Answer::NoRoom);
    drop(taken);
    assert!(matches!(all_texts_longer(&mut world), Answer::Value(_)));
}

#[test]
fn scores_set_at_once() {
    let make = |world: &mut World| {
        for n in 0..15 {
            world.ask("board", "add", b"k", &[&large(n), n.to_string().as_bytes()]);
        }
    };
    // Half of them are new, the others get a new place.
    let pairs: Vec<Vec<u8>> =
        (10..20).flat_map(|n| [large(n), (1000 - n).to_string().into_bytes()]).collect();
    with_each_number_of_pages(make, |world| world.ask("board", "add", b"k", &bytes(&pairs)));
}

#[test]
fn a_score_of_a_new_member() {
    // Boards of every size, so that each of the two keys finds its page full.
    let mut refused = 0;
    for members in 3..60 {
        let mut world = World::with(Settings::default(), 1 << 20);
        for n in 0..members {
            world.ask("board", "add", b"k", &[&large(n), n.to_string().as_bytes()]);
        }
        let before = world.state(11, "k");
        let used = world.memory.used_bytes();
        for pages in 0..3 {
            let held = world.memory.free_bytes().saturating_sub(pages * PAGE_BYTES);
            let taken = world.memory.scattered(held).expect("it is free");
            if world.ask("board", "incr", b"k", &[&large(1000), b"0.5"]) == Answer::NoRoom {
                assert_eq!(world.state(11, "k"), before);
                refused += 1;
            } else {
                assert_eq!(world.ask("board", "remove", b"k", &[&large(1000)]), value("1"));
            }
            drop(taken);
            assert!(world.memory.used_bytes() <= used + 2 * PAGE_BYTES, "a page that was divided stays so");
        }
    }
    assert!(refused > 10, "{refused} found no room");
}

#[test]
fn entries_pushed() {
    let make = |world: &mut World| {
        world.call("queue:new:k:3");
        (0..3).for_each(|_| drop(world.ask("queue", "push", b"k", &[&[b'x'; 5000]])));
    };
    with_each_number_of_pages(make, |world| world.ask("queue", "push", b"k", &[&vec![b'y'; 50_000]]));
}
