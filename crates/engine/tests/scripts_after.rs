//! What a host's method reads while it runs, and what follows a call that has taken effect.

use cattlegrid_engine::{EventKind, Interest};
use cattlegrid_herd::Policy;

use crate::script_host::TestHost;
use crate::scripts::{meanwhile, world};
use crate::world::{World, config};

/// A world with rules of these patterns.
fn ruled(list: &[(&str, Policy)]) -> World {
    let world = World::new(list);
    world.engine.set_objects(Some(TestHost::new(1).registry(|_| ())));
    world
}

fn with_loader() -> Policy {
    Policy { loader: true, ..Policy::default() }
}

#[test]
fn a_failed_call_leaves_its_object_and_everything_else_as_it_was() {
    let (mut world, _host) = world();
    world.interest = Interest::SCRIPTS;
    let client = world.connect();
    world.expect(client, "mg tally:add:k:7 v|", "VA 1|7|");
    let before = world.ask(client, "mg tally:dump:k v c t|");
    world.expect(client, "get tally:fail:k:SERVER_ERROR+x|", "SERVER_ERROR x|");
    world.expect(client, "mg tally:fail:k:SERVER_ERROR+x v q|", "SERVER_ERROR x|");
    world.expect(client, "mg tally::k Afail:CLIENT_ERROR+y v|", "CLIENT_ERROR y|");
    world.expect(client, "ms tally::k 14 Afail q|SERVER_ERROR+x|", "SERVER_ERROR x|");
    world.expect(client, "get a tally:fail:k:SERVER_ERROR+x tally:get:k|", "VALUE tally:get:k 0 1|7|END|");
    assert_eq!(world.ask(client, "mg tally:dump:k v c t|"), before);
    world.expect(client, "get failed|", "END|");
    assert_eq!(world.counters.script_errors.get(), 4, "clients' faults are none of the script");
    let fails = world.counters.methods.all().map(|one| one.errors.get()).sum::<u64>();
    assert_eq!(fails, 5);
    // Its events and its lines tell of the failure.
    assert_eq!((world.events.len(), world.lines.len()), (5, 5));
    assert!(world.engine.is_quiet());
}

#[test]
fn a_value_is_stored_as_by_a_client() {
    let (mut world, _host) = world();
    world.interest = Interest::MUTATIONS;
    let client = world.connect();
    world.expect(client, "mg tally:put:k:x:value v|", "VA 2|OK|");
    world.expect(client, "mg x v f t|", "VA 5 f0 t-1|value|");
    assert_eq!(world.counters.cmd_set.get(), 1);
    assert!(matches!(world.events[0].kind, EventKind::Store { status: "stored", .. }));
    world.expect(client, "mg tally:put:k:x:other:100 v|mg x v t|", "VA 2|OK|VA 5 t100|other|");
    // Above 30 days, where an exptime of clients is a time.
    world.expect(client, "mg tally:put:k:x:other:3000000 v|mg x t|", "VA 2|OK|HD t3000000|");
    world.expect(client, "mg tally:put:k:x:other:4294967295 v|", "VA 2|OK|");
    let ttl = world.ask(client, "mg x t|");
    let ttl: u64 = ttl.trim_start_matches("HD t").trim_end_matches('|').parse().unwrap();
    assert!(ttl > 2_000_000_000, "{ttl}");
}

#[test]
fn a_value_that_is_stored_answers_those_who_wait_for_it() {
    let mut world = ruled(&[("page:{id}", Policy::default())]);
    let [a, b, c] = [(); 3].map(|()| world.connect());
    world.expect(a, "get page:1|", "END|");
    world.expect(b, "get page:1|", "");
    world.expect(c, "mg tally::k v Aput:page%3A1:value|", "VA 2|OK|");
    assert_eq!(world.replies(b), "VALUE page:1 0 5|value|END|");
    // It has the tags of its rule.
    world.expect(c, "mg tally::k v Abump:page%3A1|get page:1|", "VA 2|OK|END|");
    world.expect(c, "set page:1 0 0 1|x|delete @tag:page|", "STORED|DELETED|");
    world.check();
}

#[test]
fn a_tag_is_invalidated() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.expect(client, "ms x 1 Guser|1|mg tally:bump:k:user v|mg x v|", "HD|VA 2|OK|EN|");
    world.expect(client, "ms x 1 Guser|1|mg tally:bump:k:other v|mg x v|", "HD|VA 2|OK|VA 1|1|");
    let long = "t".repeat(251);
    let reply = world.ask(client, &format!("mg tally::k Abump:{long}|"));
    assert!(reply.starts_with("CLIENT_ERROR bump: "), "{reply}");
}

#[test]
fn a_load_is_ordered_if_there_is_no_fresh_value() {
    let mut world = ruled(&[("page:{id}", with_loader()), ("plain:{id}", Policy::default())]);
    let [a, b] = [(); 2].map(|()| world.connect());
    world.expect(a, "mg tally::k v Aload:page%3A1|", "VA 2|OK|");
    assert_eq!(world.tokens().len(), 1);
    world.expect(a, "mg tally::k v Aload:page%3A1|", "VA 2|OK|");
    assert_eq!(world.tokens().len(), 1, "it runs");
    world.expect(b, "get page:1|", "");
    let token = world.tokens()[0];
    assert_eq!(world.finish_with(token, "value"), cattlegrid_engine::LoadOutcome::Stored);
    assert_eq!(world.replies(b), "VALUE page:1 0 5|value|END|");
    world.expect(a, "mg tally::k v Aload:page%3A1|", "VA 2|OK|");
    assert_eq!(world.tokens().len(), 0, "its value is fresh");
    for (key, why) in [
        ("plain%3A1", "no rule with a loader matches"),
        ("other", "no rule with a loader matches"),
        ("tally%3Aget%3Ax", "names an object or a method"),
    ] {
        let reply = world.ask(a, &format!("mg tally::k v Aload:{key}|"));
        assert!(reply.contains(why), "{reply}");
    }
    assert_eq!(world.tokens().len(), 0);
    assert!(world.engine.is_quiet());
}

#[test]
fn keys_that_no_client_could_use_are_refused() {
    let (mut world, _host) = world();
    let client = world.connect();
    let long = "x".repeat(251);
    for (key, why) in [
        ("", "a key must have 1 to 250 bytes"),
        (&*long, "a key must have 1 to 250 bytes"),
        ("%01", "has a blank or a control character"),
        ("a%20b", "has a blank or a control character"),
        ("a%7Fb", "has a blank or a control character"),
        ("@tag%3Ax", "is a control key"),
        ("tally%3A%3Ak", "names an object or a method"),
        ("counter%3Aadd%3Ak", "names an object or a method"),
    ] {
        let reply = world.ask(client, &format!("mg tally::k v Aput:{key}:x|"));
        assert!(reply.starts_with("CLIENT_ERROR put: ") && reply.contains(why), "{key}: {reply}");
    }
    let key = "x".repeat(250);
    world.expect(client, &format!("mg tally::k v Aput:{key}:x|mg {key} v|"), "VA 2|OK|VA 1|x|");
    assert_eq!(world.counters.script_errors.get(), 0);
}

#[test]
fn events_and_lines_reach_the_caller() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.expect(client, "mg tally::k v Aevent:over:{}|mg tally::k v Alog:full|", "VA 2|OK|VA 2|OK|");
    assert_eq!((world.events.len(), std::mem::take(&mut world.lines)), (0, vec!["full".to_owned()]));
    world.interest = Interest::SCRIPTS;
    world.expect(client, "mg tally::k v Aevent:over_1:{}|", "VA 2|OK|");
    assert_eq!(&*world.events[0].key, b"tally::k");
    let kind = EventKind::Script { name: "over_1".into(), json: "{}".into() };
    assert_eq!(world.events[0].kind, kind);
    let [short, long] = [64, 65].map(|len| "e".repeat(len));
    world.expect(client, &format!("mg tally::k v Aevent:{short}:{{}}|"), "VA 2|OK|");
    for name in ["", "a-b", &long] {
        let reply = world.ask(client, &format!("mg tally::k v Aevent:{name}:{{}}|"));
        assert!(reply.contains("the name of an event must be 1 to 64 letters, digits or _"), "{reply}");
    }
    for method in ["event:e", "log"] {
        let ask = |world: &mut World, len: usize| {
            world.ask(client, &format!("ms tally::k {len} A{method} v|{}|", "x".repeat(len)))
        };
        assert_eq!(ask(&mut world, 4096), "VA 2|OK|");
        assert!(ask(&mut world, 4097).contains("is longer than 4096 bytes"));
    }
    assert_eq!(Interest::from_bits(Interest::SCRIPTS.bits()), Interest::SCRIPTS);
    assert_eq!(Interest::from_bits(u8::MAX).bits(), 143);
}

#[test]
fn a_turn_keeps_64_lines_for_the_log() {
    let (mut world, _host) = world();
    let client = world.connect();
    world.expect(client, &format!("get{}|", " tally:log:k:x".repeat(64)), &logged(64));
    assert_eq!(std::mem::take(&mut world.lines).len(), 64);
    world.expect(client, &format!("get{}|", " tally:log:k:x".repeat(65)), &logged(65));
    assert_eq!(world.lines.len(), 64);
}

fn logged(count: usize) -> String {
    "VALUE tally:log:k:x 0 2|OK|".repeat(count) + "END|"
}

#[test]
fn a_plain_value_is_read_as_a_get_would_serve_it() {
    let mut world = ruled(&[("page:{id}", with_loader())]);
    let client = world.connect();
    let fetch = |world: &mut World, key: &str| world.ask(client, &format!("mg tally::k v Afetch:{key}|"));
    assert_eq!(fetch(&mut world, "x"), "VA 4|none|");
    world.expect(client, "set x 5 10 1|1|", "STORED|");
    assert_eq!(fetch(&mut world, "x"), "VA 3|1 5|");
    world.pass(11_000);
    assert_eq!(fetch(&mut world, "x"), "VA 4|none|");
    world.expect(client, "ms x 1 Gt|1|", "HD|");
    assert_eq!(fetch(&mut world, "x"), "VA 3|1 0|");
    world.expect(client, "delete @tag:t|", "DELETED|");
    assert_eq!(fetch(&mut world, "x"), "VA 4|none|");
    world.expect(client, "set x 0 0 1|1|", "STORED|");
    world.flush();
    assert_eq!(fetch(&mut world, "x"), "VA 4|none|");
    // It neither loads nor leases.
    assert_eq!(fetch(&mut world, "page%3A1"), "VA 4|none|");
    assert_eq!((world.tokens().len(), world.engine.leases()), (0, 0));
    // Only plain values.
    world.expect(client, "mg counter:add:c:1 v|", "VA 1|1|");
    for key in ["counter%3Aget%3Ac", "counter%3A%3Ac", "@why%3Ax", ""] {
        assert_eq!(fetch(&mut world, key), "VA 4|none|", "{key}");
    }
    // A value outside the log.
    let long = "x".repeat(600_000);
    world.expect(client, &format!("set x 0 0 600000|{long}|"), "STORED|");
    assert_eq!(fetch(&mut world, "x"), format!("VA 600002|{long} 0|"));
}

#[test]
fn other_objects_are_shown_as_they_were_copied() {
    let (mut world, host) = world();
    let client = world.connect();
    world.expect(
        client,
        "mg tally:add:a:1 v|mg tally:add:b:20 v|mg tally:add:c:300 v|",
        "VA 1|1|VA 2|20|VA 3|300|",
    );
    world.expect(client, "mg tally:sum:a:b:c v|", "VA 8|1 20 300|");
    world.expect(client, "mg tally:sum:a v|mg tally:sum:a:b v|", "VA 5|1 0 0|VA 6|1 20 0|");
    world.expect(client, "mg tally:sum:a:a:none v|", "VA 5|1 1 0|");
    let long = "x".repeat(251);
    world.expect(client, &format!("mg tally::a v Asum:{long}:b|"), "VA 6|1 0 20|");
    // One of them changes between its copy and its look: the call is made again.
    meanwhile(&world, &host, |other| {
        let client = other.connect();
        other.expect(client, "mg tally:add:c:1 v|", "VA 3|301|");
    });
    world.expect(client, "mg tally:sum:a:b:c v|", "VA 8|1 20 301|");
    assert_eq!(world.counters.script_moved.get(), 1);
    meanwhile(&world, &host, |other| {
        let client = other.connect();
        other.expect(client, "delete tally::b|", "DELETED|");
    });
    world.expect(client, "mg tally:sum:a:b:c v|", "VA 7|1 0 301|");
    assert!(world.engine.is_quiet());
}

#[test]
fn an_object_that_changes_between_two_looks_ends_the_run() {
    let (mut world, host) = world();
    let client = world.connect();
    world.expect(client, "mg tally:add:a:1 v|mg tally:twice:a v|", "VA 1|1|VA 1|1|");
    let mut other = world.beside(1);
    let inner = std::sync::Arc::clone(&host);
    // Before the first look, which sets it up for the time between the looks.
    host.between(move || {
        inner.between(move || {
            let client = other.connect();
            other.expect(client, "mg tally:add:a:1 v|", "VA 1|2|");
        });
    });
    world.expect(client, "mg tally:twice:a v|", "VA 1|2|");
    assert_eq!(world.counters.script_moved.get(), 1);
}

#[test]
fn the_log_is_told_once_a_second_that_there_is_no_memory_for_a_value() {
    let mut world = World::with(&[], &config(), 8 << 20, 1);
    world.engine.set_objects(Some(TestHost::new(1).registry(|_| ())));
    let client = world.connect();
    let long = "x".repeat(7 << 20);
    let put = format!("ms tally::k {} Aput:page v|{long}|", long.len());
    world.expect(client, "set page 0 0 1|x|", "STORED|");
    let line = "tally.put: cg.set: no memory for the value of page";
    for lines in [1, 0] {
        world.lines.clear();
        world.expect(client, &put, "VA 2|OK|");
        assert_eq!(world.lines, vec![line; lines]);
        world.expect(client, "get page|", "END|");
    }
    world.pass(1000);
    world.expect(client, &put, "VA 2|OK|");
    assert_eq!(world.lines, [line]);
}
