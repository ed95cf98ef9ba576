//! Types that are switched on and off while there are items, and calls from many threads.

use std::sync::atomic::{AtomicU64, Ordering};

use cattlegrid_engine::{Cursor, LoadOutcome};
use cattlegrid_herd::Policy;
use cattlegrid_objects::Eviction;

use crate::objects::{settings, with_own, world};
use crate::world::World;

/// Keys of items, of plain ones and of those whose keys name calls.
fn items(world: &World) -> (u64, u64) {
    let registry = settings(|_| ());
    let (mut plain, mut named) = (0, 0);
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        cursor = world.engine.list(from, 64, |item| match registry.named(item.key()) {
            _ if item.is_object() => {}
            Some(_) => named += 1,
            None => plain += 1,
        });
    }
    (plain, named)
}

#[test]
fn plain_items_under_names_of_calls_leave_when_types_are_switched_on() {
    const NAMES: u64 = 60_000;
    for act in ["the index stays", "the index grows", "the index shrinks"] {
        let mut world = World::new(&[]);
        let client = world.connect();
        for n in 0..NAMES {
            world.send(client, &format!("set counter:add:k{n}:1 0 0 1 noreply|x|"));
            world.send(client, &format!("set plain{n} 0 0 1 noreply|x|"));
        }
        assert_eq!(items(&world), (NAMES, NAMES));
        world.engine.set_objects(Some(settings(|_| ())));
        // From now on they are neither served nor stored, wherever the walk is.
        let mut ticks = 0;
        let mut plain = NAMES;
        loop {
            let n = ticks * 997 % NAMES;
            let call = format!("get counter:add:k{n}:1|");
            let reply = world.ask(client, &call);
            assert!(
                reply.starts_with(&format!("VALUE counter:add:k{n}:1 0 1|")) && !reply.contains("|x|"),
                "{reply}"
            );
            let refusal = "CLIENT_ERROR counter:add is a method|";
            world.expect(client, &format!("append counter:add:k{n}:1 0 0 1|y|"), refusal);
            world.expect(client, &format!("touch counter:add:k{n}:1 5|"), refusal);
            world.expect(client, &format!("mg counter:add:k{n}:1 T5|"), refusal);
            world.expect(client, &format!("mg counter:exists:k{n} v|"), "VA 6|EXISTS|");
            world.expect(
                client,
                &format!("get plain{}|", NAMES - 1),
                &format!("VALUE plain{} 0 1|x|END|", NAMES - 1),
            );
            let more = world.engine.tick(world.now());
            ticks += 1;
            for one in 0..8000 {
                match act {
                    "the index grows" => {
                        world.send(client, &format!("set more{ticks}:{one} 0 0 1 noreply|x|"));
                        plain += 1;
                    }
                    "the index shrinks" if ticks * 8000 + one < NAMES => {
                        world.send(client, &format!("delete plain{} noreply|", (ticks - 1) * 8000 + one));
                        plain -= 1;
                    }
                    _ => {}
                }
            }
            if !more {
                break;
            }
        }
        assert!(ticks > 3, "it goes in pieces: {ticks}");
        assert_eq!(items(&world), (plain, 0), "{act}");
        world.expect(client, "mg counter:add:none:7 v|get plain59999|", "VA 1|7|VALUE plain59999 0 1|x|END|");
    }
}

#[test]
fn types_are_switched_off_and_on() {
    let mut world = world();
    let client = world.connect();
    let all = |world: &mut World| while world.engine.tick(world.now()) {};
    world.expect(client, "mg counter:add:k:5 v|mg set:new:s v|", "VA 1|5|VA 7|CREATED|");
    let others = || settings(|all| all.types.retain(|own| own.name != "counter"));
    world.engine.set_objects(Some(others()));
    // Its names are plain keys at once.
    world.expect(
        client,
        "set counter:add:k:1 0 0 1|x|get counter:add:k:1|",
        "STORED|VALUE counter:add:k:1 0 1|x|END|",
    );
    world.expect(client, "mg counter::k v Aadd:1|", "CLIENT_ERROR A needs the name of an object, type::key|");
    all(&mut world);
    assert_eq!(world.engine.usage().0.objects, 1, "the set stays");
    world.engine.set_objects(Some(settings(|_| ())));
    world.expect(client, "mg counter:add:k:1 v|mg set:exists:s v|", "VA 1|1|VA 6|EXISTS|");
    all(&mut world);
    assert_eq!(items(&world), (0, 0));
    world.engine.set_objects(None);
    world.expect(client, "get set:exists:s|set set:exists:s 0 0 1|x|", "END|STORED|");
    world.expect(client, "mg counter:add:k:1 v|", "EN|");
    all(&mut world);
    assert_eq!((world.engine.usage().0.objects, items(&world)), (0, (0, 1)));
    world.expect(client, "get set:exists:s|", "VALUE set:exists:s 0 1|x|END|");
    world.engine.set_objects(Some(settings(|_| ())));
    world.expect(client, "get set:exists:s|", "VALUE set:exists:s 0 9|NOT_FOUND|END|");
}

/// A loader's value for a key whose name has become that of a call is not stored.
#[test]
fn a_value_of_a_loader_comes_for_a_name_of_a_call() {
    let policy = Policy { loader: true, ..Policy::default() };
    let mut world = World::new(&[("counter:add:{id}:1", policy)]);
    let [a, b] = [(); 2].map(|()| world.connect());
    world.expect(a, "get counter:add:k:1|", "");
    world.engine.set_objects(Some(settings(|_| ())));
    while world.engine.tick(world.now()) {}
    world.expect(b, "mg counter:add:k:1 v|", "VA 1|1|");
    let token = world.tokens()[0];
    assert!(matches!(world.finish_with(token, "old"), LoadOutcome::Failed));
    assert_eq!(world.replies(a), "END|");
    assert_eq!(items(&world), (0, 0));
    world.expect(a, "get counter:add:k:1|", "VALUE counter:add:k:1 0 1|2|END|");
    assert!(world.engine.is_quiet());
}

#[test]
fn every_grant_is_counted_once() {
    const THREADS: usize = 8;
    const CALLS: u64 = 100_000;
    const QUOTAS: usize = 100;
    const LIMIT: u64 = 6_000;
    const TOGETHER: u64 = 20;
    let mut first = world();
    let client = first.connect();
    for n in 0..QUOTAS {
        first.expect(client, &format!("mg quota:new:q{n}:{LIMIT}:day v|"), "VA 7|CREATED|");
    }
    let grants: Vec<AtomicU64> = (0..QUOTAS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for number in 1..=THREADS {
            let (mut world, grants) = (first.beside(number), &grants);
            scope.spawn(move || {
                let client = world.connect();
                for some in 0..CALLS / TOGETHER {
                    let quota = |one: u64| ((some * TOGETHER + one) * 7 + number as u64) as usize % QUOTAS;
                    let line = |one| format!("mg quota:addandcheck:q{} v|", quota(one));
                    let lines = (0..TOGETHER).map(line).collect::<Vec<_>>().concat();
                    let replies = world.ask(client, &lines);
                    let values = replies.split('|').skip(1).step_by(2);
                    for (one, reply) in (0..TOGETHER).zip(values) {
                        match reply {
                            "QUOTA_OK" => _ = grants[quota(one)].fetch_add(1, Ordering::Relaxed),
                            other => assert_eq!(other, "QUOTA_EXCEEDED"),
                        }
                    }
                    assert_eq!(replies.split('|').count() as u64, 2 * TOGETHER + 1, "every call is answered");
                }
            });
        }
    });
    for (n, granted) in grants.iter().enumerate() {
        assert_eq!(granted.load(Ordering::Relaxed), LIMIT, "of quota {n}");
        let peek = first.ask(client, &format!("mg quota:peek:q{n} v|"));
        assert!(peek.contains(&format!("\"used\":{LIMIT},\"left\":0")), "{peek}");
    }
    assert!(first.engine.is_quiet());
}

#[test]
fn objects_of_a_type_whose_eviction_changes_are_marked_anew() {
    let with = |evict| settings(|all| with_own(all, "counter", |own| own.evict = evict));
    let mut world = world();
    let client = world.connect();
    for n in 0..1000 {
        world.ask(client, &format!("get counter:add:k{n}:1 map:new:k{n}|"));
    }
    let pinned = |world: &World| world.engine.memory().pinned_object_bytes();
    let walk = |world: &mut World, evict| {
        world.engine.set_objects(Some(with(evict)));
        (0..20).for_each(|_| world.pass(1000));
        pinned(world)
    };
    assert_eq!(pinned(&world), 0);
    let never = walk(&mut world, Eviction::Never);
    assert!((1000 * 32..1000 * 128).contains(&never), "{never} bytes of 1,000 counters");
    world.expect(client, "get counter:add:k7:1|", "VALUE counter:add:k7:1 0 1|2|END|");
    assert_eq!(pinned(&world), never);
    assert_eq!(walk(&mut world, Eviction::Normal), 0);
    world.expect(client, "get counter:add:k7:1|", "VALUE counter:add:k7:1 0 1|3|END|");
}
