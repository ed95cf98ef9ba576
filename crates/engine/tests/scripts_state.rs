//! What becomes of the objects of a host's types: expiry, tags, eviction, limits, and types that change.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_herd::Policy;
use cattlegrid_objects::Eviction;

use crate::objects::with_own;
use crate::script_host::TestHost;
use crate::scripts::{meanwhile, world};
use crate::world::{World, config};

#[test]
fn the_time_to_live_is_that_of_the_type_until_a_call_sets_it() {
    let (mut world, host) = world();
    world.engine.set_objects(Some(host.registry(|all| with_own(all, "tally", |own| own.ttl_s = 60))));
    while world.engine.tick(world.now()) {}
    let client = world.connect();
    world.expect(client, "mg tally:add:k:1 v t|", "VA 1 t60|1|");
    world.pass(10_000);
    world.expect(client, "mg tally:add:k:1 v t|mg tally:add:k:10 v t|", "VA 1 t50|2|VA 2 t50|12|");
    world.expect(client, "mg tally:until:k:5 v t|", "VA 2 t5|OK|");
    world.expect(client, "mg tally:new:k:3 v t|", "VA 7 t60|CREATED|");
    world.expect(client, "mg tally:until:k:0 v t|mg tally:get:k v t|", "VA 2 t-1|OK|VA 1 t-1|3|");
    world.expect(client, "mg tally:until:k:1 v t|", "VA 2 t1|OK|");
    world.pass(2000);
    world.expect(client, "mg tally:get:k v|mg tally:add:k:1 v t|", "EN|VA 1 t60|1|");
}

#[test]
fn an_object_that_ends_in_the_middle_of_a_call_is_begun_anew() {
    for end in ["expiry", "flush", "delete", "bump"] {
        let (mut world, host) = world();
        let client = world.connect();
        world.expect(client, "mg tally:add:k:5 v|mg tally:until:k:3 v|", "VA 1|5|VA 2|OK|");
        world.expect(client, "mg tally:mark:k:user v|", "VA 2|OK|");
        meanwhile(&world, &host, move |other| match end {
            "expiry" => {
                other.pass(5000);
                let client = other.connect();
                other.expect(client, "get tally:get:k|", "END|");
            }
            "flush" => other.flush(),
            "delete" => {
                let client = other.connect();
                other.expect(client, "delete tally::k|", "DELETED|");
            }
            _ => {
                let client = other.connect();
                other.expect(client, "delete @tag:user|", "DELETED|");
            }
        });
        world.expect(client, "mg tally:add:k:1 v|", "VA 1|1|");
        assert_eq!(world.counters.script_moved.get(), 1, "{end}");
        // A method that needs one is a miss then.
        meanwhile(&world, &host, World::flush);
        world.expect(client, "mg tally:count:k:1 v|", "EN|");
        assert!(world.engine.is_quiet());
    }
}

#[test]
fn a_call_that_never_finds_its_object_as_it_was_ends() {
    let (mut world, host) = world();
    let client = world.connect();
    world.expect(client, "mg tally:add:k:5 v|", "VA 1|5|");
    world.expect(client, "get tally:lost:k|", "SERVER_ERROR busy|");
    assert_eq!(host.runs.load(Ordering::Relaxed), 6, "once before it waits, then four times");
    assert_eq!(world.counters.script_moved.get(), 5);
    world.expect(client, "get x tally:lost:k tally:get:k|", "VALUE tally:get:k 0 1|5|END|");
    assert!(world.engine.is_quiet());
}

#[test]
fn a_call_whose_connection_is_closed_is_made_all_the_same() {
    let (mut world, host) = world();
    world.holds_calls = true;
    let [a, b] = [(); 2].map(|()| world.connect());
    world.expect(a, "mg tally:add:k:5 v|", "VA 1|5|");
    meanwhile(&world, &host, |other| {
        let client = other.connect();
        other.expect(client, "mg tally:add:k:1 v|", "VA 1|6|");
    });
    world.expect(a, "mg tally:add:k:10 v|", "");
    world.close(a, false);
    world.expect(b, "mg tally:get:k v|", "");
    while world.go_on() {}
    assert_eq!(world.replies(b), "VA 2|16|");
    assert!(world.engine.is_quiet());
}

#[test]
fn an_object_gets_tags() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.expect(client, "mg tally:add:k:5 v|mg tally:mark:k:user:shop v|", "VA 1|5|VA 2|OK|");
    world.expect(client, "mg tally:get:k v|delete @tag:other|mg tally:get:k v|", "VA 1|5|DELETED|VA 1|5|");
    world.expect(client, "delete @tag:shop|mg tally:get:k v|", "DELETED|EN|");
    // Bumps from before it had the tag do not concern it, those from after do.
    world.expect(
        client,
        "mg tally:add:k:5 v|delete @tag:user|mg tally:mark:k:user v|",
        "VA 1|5|DELETED|VA 2|OK|",
    );
    world.expect(client, "mg tally:mark:k:user v|mg tally:add:k:1 v|", "VA 2|OK|VA 1|6|");
    world.expect(client, "delete @tag:user|mg tally:get:k v|", "DELETED|EN|");
    // With tags that it has already, which are bumped later.
    world.expect(
        client,
        "mg tally:mark:k:a v|delete @tag:b|mg tally:mark:k:b v|",
        "VA 2|OK|DELETED|VA 2|OK|",
    );
    world.expect(client, "delete @tag:a|mg tally:get:k v|", "DELETED|EN|");
    // `new` begins without them.
    world.expect(client, "mg tally:mark:k:a v|mg tally:new:k:3 v|", "VA 2|OK|VA 7|CREATED|");
    world.expect(client, "delete @tag:a|mg tally:get:k v|", "DELETED|VA 1|3|");
    // Eight fit.
    world.expect(client, "mg tally:mark:k:1:2:3:4:5:6:7:8 v|", "VA 2|OK|");
    let reply = world.ask(client, "mg tally:mark:k:9 v|");
    assert!(
        reply.starts_with("SERVER_ERROR script tally.mark: cg.tag: an object has up to 8 tags|"),
        "{reply}"
    );
    world.expect(client, "mg tally:mark:k:8:1 v|mg tally:get:k v|", "VA 2|OK|VA 1|3|");
    world.expect(client, "delete @tag:8|mg tally:get:k v|", "DELETED|EN|");
    // A new object with the tags of its rule.
    let pattern = Pattern::parse("tally::{k}").unwrap();
    let tags = vec![TagTemplate::parse("of:{k}", Some(&pattern)).unwrap()];
    let policy = Policy { leases: false, ..Policy::default() };
    let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None };
    world.set_rules_to(Rules::new(vec![rule], Vec::new()));
    let reply = world.ask(client, "mg tally:mark:k:1:2:3:4:5:6:7:8 v|");
    assert!(
        reply.starts_with("SERVER_ERROR script tally.mark: cg.tag: an object has up to 8 tags|"),
        "{reply}"
    );
    world.expect(client, "mg tally:mark:k:1:2:3:4:5:6:7:of%3Ak v|", "VA 2|OK|");
    world.expect(client, "delete @tag:of:k|mg tally:get:k v|", "DELETED|EN|");
}

#[test]
fn new_takes_the_place_of_an_object_with_many_members() {
    let (mut world, host) = world();
    world.engine.set_objects(Some(host.registry(|all| with_own(all, "tally", |own| own.ttl_s = 60))));
    while world.engine.tick(world.now()) {}
    let client = world.connect();
    for members in [0, 2000] {
        world.expect(
            client,
            &format!("mg tally:new:k:{members}:old v|mg tally:hoard:k v|"),
            "VA 7|CREATED|VA 2|OK|",
        );
        world.pass(10_000);
        world.expect(client, "mg tally:get:k t|mg tally:new:k:3:fresh v t|", "HD t50|VA 7 t60|CREATED|");
        // One byte says that there are no fields.
        let why = world.ask(client, "get @why:tally::k|");
        assert!(why.contains("\"size\":2,"), "{members}: {why}");
        world.expect(client, "delete @tag:old|mg tally:get:k v|", "DELETED|VA 1|3|");
        world.expect(client, "delete @tag:fresh|mg tally:get:k v|", "DELETED|EN|");
    }
    assert!(world.engine.is_quiet());
}

#[test]
fn a_state_may_have_any_length() {
    let (mut world, _host) = world();
    let client = world.connect();
    for len in [1, 100, 5000, 60_000, 400_000, 7, 400_001, 1] {
        world.expect(client, &format!("mg tally:grow:k:{len} v|mg tally:add:k:0 v|"), "VA 2|OK|VA 1|0|");
        let size = world.ask(client, "get @why:tally::k|");
        // One byte says that there are no fields.
        assert!(size.contains(&format!("\"size\":{}", len + 1)), "{len}: {size}");
    }
}

#[test]
fn a_result_that_is_too_long_leaves_the_object_as_it_was() {
    let (mut world, host) = world();
    world.engine.set_objects(Some(host.registry(|all| all.result_max = 6)));
    while world.engine.tick(world.now()) {}
    let client = world.connect();
    world.expect(client, "mg tally:add:k:999999 v|", "VA 6|999999|");
    world.expect(client, "mg tally:add:k:1 v|", "SERVER_ERROR result too large|");
    world.expect(client, "get x tally:add:k:1 tally:get:k|", "VALUE tally:get:k 0 6|999999|END|");
}

#[test]
fn objects_that_are_never_evicted_have_a_bound() {
    let (mut world, host) = world();
    let registry = host.registry(|all| {
        all.pinned_max = 10_000;
        with_own(all, "tally", |own| own.evict = Eviction::Never);
    });
    world.engine.set_objects(Some(registry));
    while world.engine.tick(world.now()) {}
    let client = world.connect();
    world.expect(client, "mg tally:grow:a:5000 v|mg tally:add:b:1 v|", "VA 2|OK|VA 1|1|");
    world.expect(client, "mg tally:grow:b:6000 v|", "SERVER_ERROR out of memory storing object|");
    world.expect(client, "mg tally:get:b v|mg tally:add:b:1 v|", "VA 1|1|VA 1|2|");
    world.evict();
    world.expect(client, "mg tally:get:a v|mg tally:get:b v|", "VA 1|0|VA 1|2|");
}

#[test]
fn an_object_that_new_makes_has_nothing_of_the_old_one() {
    let (mut world, host) = world();
    world.engine.set_objects(Some(host.registry(|all| with_own(all, "tally", |own| own.ttl_s = 60))));
    while world.engine.tick(world.now()) {}
    let client = world.connect();
    // As bytes, and with pages of their own.
    for members in [0, 2, 500] {
        world.expect(
            client,
            &format!("mg tally:fill:k:0:{members}:100 v|mg tally:mark:k:a v|"),
            "VA 2|OK|VA 2|OK|",
        );
        world.expect(client, "mg tally:until:k:20 v t|", "VA 2 t20|OK|");
        world.pass(10_000);
        world.expect(client, "mg tally:new:k:3 v t|", "VA 7 t60|CREATED|");
        while world.engine.tick(world.now()) {}
        assert_eq!(world.engine.usage().0.tree_bytes, 0, "it is bytes again");
        world.expect(client, "delete @tag:a|", "DELETED|");
        world.pass(11_000);
        world.expect(client, "mg tally:add:k:1 v t|", "VA 1 t49|4|");
    }
    assert!(world.engine.is_quiet());
}

/// Numbers from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Bytes of the objects that are never evicted.
fn pinned(world: &World) -> usize {
    world.engine.memory().pinned_object_bytes()
}

#[test]
fn no_call_lets_objects_that_are_never_evicted_exceed_their_bound() {
    const MOST: usize = 64 << 10;
    let refusal = "SERVER_ERROR out of memory storing object|";
    for seed in 1..=12 {
        let (mut world, host) = world();
        let registry = host.registry(|all| {
            all.pinned_max = MOST;
            for name in ["tally", "map", "set", "board"] {
                with_own(all, name, |own| own.evict = Eviction::Never);
            }
        });
        world.engine.set_objects(Some(registry));
        while world.engine.tick(world.now()) {}
        let client = world.connect();
        let mut rng = Draws(seed);
        let (mut refused, mut made) = (0, 0);
        for _ in 0..400 {
            let (key, n) = (rng.below(3), rng.below(4000));
            let long = "v".repeat([10, 900, 3000, 30_000, 90_000][rng.below(5) as usize]);
            let (name, call) = match rng.below(12) {
                0 => ("tally", format!("mg tally:new:{key}:1 v|")),
                1 => ("tally", format!("mg tally:clear:{key} v|")),
                2 => ("tally", format!("mg tally:mark:{key}:t{n} v|")),
                3 => ("tally", format!("mg tally:grow:{key}:{} v|", n * 4)),
                4..6 => (
                    "tally",
                    format!("mg tally:fill:{key}:{n}:{}:107 v|", [1, 50, 260, 4000][rng.below(4) as usize]),
                ),
                6 => ("map", format!("mg map:new:{key} v|")),
                7 => ("map", format!("ms map::{key} {} Aput:k{} v|{long}|", long.len(), n % 40)),
                8 => ("map", format!("mg map:delete:{key}:k{} v|", n % 40)),
                9 => ("board", format!("mg board:add:{key}:m{n}:{n}:o{n}:1 v|")),
                10 => ("board", format!("mg board:remove:{key}:m{n} v|")),
                _ => (["tally", "map", "board"][rng.below(3) as usize], String::new()),
            };
            if call.is_empty() {
                world.ask(client, &format!("delete {name}::{key}|"));
                continue;
            }
            let before = pinned(&world);
            let state = world.ask(client, &format!("mg {name}:size:{key} v c|"));
            let reply = world.ask(client, &call);
            assert!(
                pinned(&world) <= MOST.max(before),
                "{call} {} {}",
                pinned(&world),
                &reply[..reply.len().min(80)]
            );
            if reply == refusal {
                refused += 1;
                assert!(pinned(&world) <= before);
                assert_eq!(world.ask(client, &format!("mg {name}:size:{key} v c|")), state, "{call}");
                let frees = ["tally:new", "tally:clear", "map:new", "map:delete", "board:remove"];
                let exists = state.starts_with("VA");
                assert!(
                    !exists || !frees.iter().any(|free| call.contains(free)),
                    "{call} takes no more room"
                );
            } else {
                made += 1;
            }
        }
        assert!(refused > 10 && made > 50, "{refused} refused, {made} made");
        world.flush();
        world.expect(client, "mg tally:new:k:1 v|", "VA 7|CREATED|");
        world.check();
        assert!(world.engine.is_quiet());
    }
}

#[test]
fn why_shows_the_tags_of_an_object() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.expect(client, "mg tally:mark:k:a v|ms counter::s 1 Aadd Gb,c v|1|", "VA 2|OK|VA 1|1|");
    for (name, tags) in [("tally::k", 1), ("tally:get:k", 1), ("counter::s", 2), ("tally::none", 0)] {
        let why = world.ask(client, &format!("get @why:{name}|"));
        assert_eq!(why.matches("\"tag\":null").count(), tags, "{why}");
    }
}

#[test]
fn little_memory_evicts_objects_and_nothing_else_happens() {
    let mut world = World::with(&[], &config(), 8 << 20, 1);
    world.engine.set_objects(Some(TestHost::new(1).registry(|_| ())));
    let client = world.connect();
    for n in 0..2000 {
        let len = [10, 3000, 70_000][n % 3];
        world.expect(client, &format!("mg tally:grow:k{}:{len} v|", n % 400), "VA 2|OK|");
    }
    assert!(world.engine.usage().1.evictions > 0);
    assert!(world.engine.is_quiet());
}

#[test]
fn other_sources_come_into_force_and_calls_that_wait_keep_theirs() {
    let (mut world, host) = world();
    world.holds_calls = true;
    let [a, b] = [(); 2].map(|()| world.connect());
    world.expect(a, "mg tally:add:k:5 v|", "VA 1|5|");
    meanwhile(&world, &host, |other| {
        let client = other.connect();
        other.expect(client, "mg tally:add:k:1 v|", "VA 1|6|");
    });
    world.expect(a, "mg tally:add:k:10 v|", "");
    let runs = host.runs.load(Ordering::Relaxed);
    // Of the same number: the new host takes over, with all its methods on.
    let same = TestHost::new(1);
    world.engine.set_objects(Some(same.registry(|_| ())));
    world.expect(b, "mg tally:add:other:1 v|", "VA 1|1|");
    assert_eq!((same.runs.load(Ordering::Relaxed), host.runs.load(Ordering::Relaxed)), (1, runs));
    let new = TestHost::new(2);
    world.engine.set_objects(Some(new.registry(|_| ())));
    world.expect(b, "mg tally:add:other:1 v|", "VA 1|2|");
    assert_eq!((new.runs.load(Ordering::Relaxed), host.runs.load(Ordering::Relaxed)), (1, runs));
    while world.go_on() {}
    assert_eq!(world.replies(a), "VA 2|16|");
    assert_eq!(host.runs.load(Ordering::Relaxed), runs + 1);
    world.expect(b, "mg tally:get:k v|", "VA 2|16|");
}

#[test]
fn a_type_that_is_switched_off_in_the_middle_of_a_call_is_a_miss() {
    let (mut world, host) = world();
    let client = world.connect();
    world.expect(client, "mg tally:add:k:5 v|", "VA 1|5|");
    meanwhile(&world, &host, |other| {
        other.engine.set_objects(Some(crate::objects::settings(|_| ())));
        while other.engine.tick(other.now()) {}
    });
    world.expect(client, "mg tally:add:k:1 v|mg tally:get:k v|", "EN|EN|");
    assert_eq!(world.engine.usage().0.objects, 0);
    assert!(world.engine.is_quiet());
}

#[test]
fn a_type_with_the_name_of_a_shipped_one_takes_its_place() {
    let world = World::new(&[]);
    let mut world = world;
    world.engine.set_objects(Some(crate::objects::settings(|_| ())));
    let client = world.connect();
    world.expect(client, "mg counter:add:k:5 v|", "VA 1|5|");
    let host = TestHost::of(&["counter", "tally"], 1);
    world.engine.set_objects(Some(host.registry(|_| ())));
    while world.engine.tick(world.now()) {}
    // Its objects are others.
    world.expect(client, "mg counter:get:k v|mg counter:grow:k:10 v|", "EN|VA 2|OK|");
    world.expect(client, "mg counter:add:k:2 v|mg tally:get:k v|", "VA 1|2|EN|");
    assert_eq!(Arc::strong_count(&host), 2);
}

#[test]
fn an_object_whose_end_has_come_is_gone_for_the_next_call() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.pass(5300);
    world.expect(client, "mg tally:add:k:7 v|mg tally:until:k:-1 v|mg tally:get:k v|", "VA 1|7|VA 2|OK|EN|");
    world.expect(
        client,
        "mg tally:add:k:7 v|mg tally:until:k:1 v|mg tally:get:k v|",
        "VA 1|7|VA 2|OK|VA 1|7|",
    );
}
