//! Calls of objects that take many steps, and calls that wait for an object that is busy.

use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_herd::{LeaseTime, Policy};

use crate::objects::{settings, world};
use crate::world::World;

/// Members of a set whose list takes many steps.
const MANY: usize = 100_000;
/// And of one whose list takes a few.
const SOME: usize = 12_000;

fn member(n: usize) -> String {
    format!("m{n:06}")
}

/// Makes a set of these members.
fn make(world: &mut World, client: u64, key: &str, members: impl Iterator<Item = usize>) {
    let held = std::mem::replace(&mut world.holds_calls, false);
    world.expect(client, &format!("mg set:new:{key} v|"), "VA 7|CREATED|");
    let members: Vec<_> = members.map(member).collect();
    for some in members.chunks(100) {
        world.expect(client, &format!("mg set::{key} Aput:{}|", some.join(":")), "HD|");
    }
    world.holds_calls = held;
}

/// What lists these members.
fn list(members: impl Iterator<Item = usize>) -> String {
    members.map(|n| member(n) + "|").collect()
}

/// The reply of `mg` with `v`.
fn value(text: &str) -> String {
    format!("VA {}|{text}|", text.len() + text.matches('|').count())
}

/// The reply of `get` of one key.
fn block(key: &str, text: &str) -> String {
    format!("VALUE {key} 0 {}|{text}|", text.len() + text.matches('|').count())
}

fn long_world() -> (World, u64) {
    let mut world = world();
    world.holds_calls = true;
    let client = world.connect();
    (world, client)
}

/// The same text; a long one is not printed.
#[track_caller]
fn assert_same(got: &str, text: &str, what: &str) {
    let at = got.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| text[at.saturating_sub(20)..text.len().min(at + 60)].to_owned();
    assert!(
        got == text,
        "{what}, at {at}: {:?} of {}, not {:?} of {}",
        part(got),
        got.len(),
        part(text),
        text.len()
    );
}

/// Everything that was begun has ended.
fn end(world: &mut World) -> usize {
    let mut steps = 0;
    while world.go_on() {
        steps += 1;
    }
    world.check();
    assert!(world.engine.is_quiet());
    assert_eq!(world.engine.delivered_bytes(), 0);
    steps
}

#[test]
fn no_call_overtakes_another_on_an_object_that_is_read_in_steps() {
    let (mut world, a) = long_world();
    let [b, c, d] = [(); 3].map(|()| world.connect());
    make(&mut world, a, "s", 0..MANY);
    world.expect(a, "get set:getall:s|", "");
    assert!(world.go_on(), "one step");
    world.expect(b, "mg set:count:s v|mg counter:add:k:1 v|", "");
    world.expect(c, "ms set::s 3 Aadd v|zzz|", "");
    world.expect(c, "delete set::s noreply|get set:exists:s|", "");
    world.expect(d, "get set:count:s|", "");
    // Other objects, and plain keys, do not wait.
    let other = world.connect();
    world.expect(other, "mg counter:add:k:1 v|set x 0 0 1|x|", "VA 1|2|STORED|");
    world.check();
    let why = world.ask(other, "get @why:set::s|");
    assert!(why.contains("\"busy\":true") && why.contains("\"waiting\":5"), "{why}");
    let steps = end(&mut world);
    assert!(steps > MANY * 8 / (64 << 10), "{steps}");
    assert_same(&world.replies(a), &(block("set:getall:s", &list(0..MANY)) + "END|"), "");
    assert_same(&world.replies(b), "VA 6|100000|VA 1|1|", "");
    assert_same(&world.replies(c), "VA 1|1|VALUE set:exists:s 0 9|NOT_FOUND|END|", "");
    assert_same(&world.replies(d), "END|", "");
    assert_eq!(world.counters.methods.all().map(|one| one.waited.get()).sum::<u64>(), 6);
}

#[test]
fn a_step_reads_a_bounded_piece() {
    let (mut world, a) = long_world();
    make(&mut world, a, "s", 0..MANY);
    make(&mut world, a, "small", 0..7000);
    // 64 KB of the object at once, more in steps.
    let small = world.ask(a, "mg set:getall:small v|");
    assert_same(&small, &value(&list(0..7000)), "");
    assert!(world.calls.is_empty());
    world.expect(a, "mg set:getall:s v|", "");
    let steps = end(&mut world);
    assert!((30..400).contains(&steps), "{steps}");
    assert_same(&world.replies(a), &(value(&list(0..MANY))), "");
}

#[test]
fn replies_stay_in_order_behind_a_long_call() {
    let (mut world, a) = long_world();
    make(&mut world, a, "s", 0..SOME);
    let all = list(0..SOME);
    world.expect(a, "set x 0 0 1|x|set y 0 0 1|y|", "STORED|STORED|");
    world.expect(a, "get set:getall:s|get x|set z 0 0 1|z|mg z v|get set:count:s|", "");
    end(&mut world);
    let reply = block("set:getall:s", &all)
        + "END|VALUE x 0 1|x|END|STORED|VA 1|z|"
        + &block("set:count:s", "12000")
        + "END|";
    assert_same(&world.replies(a), &(reply), "");
    // In one get; what follows waits for it.
    let line = "get x set:getall:s y set:getall:s counter:add:k:1 none|";
    let first = world.ask(a, &format!("{line}get x|mg z v|"));
    assert_eq!(first, block("x", "x"));
    end(&mut world);
    let reply = block("set:getall:s", &all)
        + &block("y", "y")
        + &block("set:getall:s", &all)
        + &block("counter:add:k:1", "1")
        + "END|VALUE x 0 1|x|END|VA 1|z|";
    assert_same(&world.replies(a), &(reply), "");
    // The last key, `gets`, and two connections that do the same.
    let b = world.connect();
    assert!(world.ask(b, "gets x set:getall:s|").starts_with("VALUE x 0 1 "));
    end(&mut world);
    let cas = world.ask(a, "mg set:exists:s c|");
    let header = block("set:getall:s", &all).split('|').next().unwrap().to_owned();
    let header = header + " " + cas.trim_start_matches("HD c");
    assert_same(&world.replies(b), &(format!("{header}{all}|END|")), "");
}

#[test]
fn a_result_that_is_too_large() {
    let mut world = World::new(&[]);
    world.holds_calls = true;
    world.engine.set_objects(Some(settings(|all| all.result_max = SOME * 9 - 1)));
    let a = world.connect();
    make(&mut world, a, "s", 0..SOME);
    world.send(a, "set x 0 0 1|x|get set:getall:s|mg set:getall:s v|get x set:getall:s x|mg x v|");
    end(&mut world);
    let error = "SERVER_ERROR result too large|";
    let reply = format!("STORED|{error}{error}VALUE x 0 1|x|VALUE x 0 1|x|END|VA 1|x|");
    assert_same(&world.replies(a), &(reply), "");
    world.expect(a, &format!("mg set::s Aremove:{}|", member(0)), "HD|");
    world.send(a, "mg set:getall:s s|");
    end(&mut world);
    assert_same(&world.replies(a), &(format!("HD s{}|", (SOME - 1) * 9)), "");
}

#[test]
fn an_object_that_goes_away_while_it_is_read() {
    type Act = fn(&mut World, u64);
    let gone: [(&str, Act); 5] = [
        ("flush", |world, _| world.flush()),
        ("expiry", |world, _| world.pass(60_000)),
        ("bump", |world, b| drop(world.ask(b, "md colour G|"))),
        ("soft bump", |world, b| drop(world.ask(b, "md colour G I|"))),
        ("types off", |world, _| {
            world.engine.set_objects(None);
            while world.engine.tick(world.now()) {}
        }),
    ];
    for (name, act) in gone {
        let pattern = Pattern::parse("set::{k}").unwrap();
        let tags = vec![TagTemplate::parse("colour", Some(&pattern)).unwrap()];
        let policy = Policy { leases: false, hold_ms: 0, ..Policy::default() };
        let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None };
        let mut world = World::under(Rules::new(vec![rule], Vec::new()));
        world.holds_calls = true;
        world.engine.set_objects(Some(settings(|_| ())));
        let [a, b] = [(); 2].map(|()| world.connect());
        make(&mut world, a, "s", 0..SOME);
        world.expect(a, "mg set:ttl:s:30 v|", "VA 2|30|");
        world.pass(1000);
        world.expect(a, "get set:getall:s|", "");
        assert!(world.go_on());
        world.expect(b, "mg set:exists:s v|mg set:new:s v|mg set:count:s v|", "");
        let c = world.connect();
        act(&mut world, c);
        end(&mut world);
        assert_same(&world.replies(a), "END|", name);
        let off = world.engine.objects().is_none();
        let others = if off { "EN|EN|EN|" } else { "VA 9|NOT_FOUND|VA 7|CREATED|VA 1|0|" };
        assert_same(&world.replies(b), others, name);
        if off {
            assert_eq!(world.engine.usage().0.objects, 0, "none is made of a type that is switched off");
        }
    }
}

#[test]
fn another_object_that_goes_away_while_sets_are_combined() {
    let (mut world, a) = long_world();
    make(&mut world, a, "one", (0..SOME).map(|n| 2 * n));
    make(&mut world, a, "two", 0..SOME);
    world.expect(a, "mg set:ttl:two:30 v|", "VA 2|30|");
    for (method, before, after) in [
        ("diff", list((SOME / 2..SOME).map(|n| 2 * n)), list((0..SOME).map(|n| 2 * n))),
        ("intersection", list((0..SOME / 2).map(|n| 2 * n)), String::new()),
    ] {
        world.holds_calls = true;
        make(&mut world, a, "two", 0..SOME);
        world.expect(a, "mg set:ttl:two:30 v|", "VA 2|30|");
        let call = format!("mg set:{method}:one:two v|");
        world.expect(a, &call, "");
        end(&mut world);
        assert_same(&world.replies(a), &(value(&before)), method);
        world.expect(a, &call, "");
        (0..3).for_each(|_| assert!(world.go_on()));
        world.pass(40_000);
        end(&mut world);
        assert_same(&world.replies(a), &(value(&after)), method);
    }
}

#[test]
fn combinations_in_both_orders_at_once() {
    let (mut world, a) = long_world();
    let [b, c, d] = [(); 3].map(|()| world.connect());
    make(&mut world, a, "one", (0..SOME).map(|n| 2 * n));
    make(&mut world, a, "two", (0..SOME).map(|n| 2 * n + 1));
    let all = value(&list(0..2 * SOME));
    for order in 0..4 {
        let lines = ["mg set:union:one:two v|", "mg set:union:two:one v|"];
        world.expect(a, lines[order % 2], "");
        if order > 1 {
            assert!(world.go_on());
        }
        world.expect(b, lines[1 - order % 2], "");
        world.expect(c, "mg set:add:one:zzz v|mg set:remove:one:zzz v|", "");
        world.expect(
            d,
            "mg set:intersection:two:one:one v|mg set:diff:two:none v|mg set:union:none:one v|",
            "",
        );
        end(&mut world);
        assert_same(&world.replies(a), &(all), "");
        assert_same(&world.replies(b), &(all), "the put waits behind it, or is taken back");
        assert_same(&world.replies(c), "VA 1|1|VA 1|1|", "");
        let two = value(&list((0..SOME).map(|n| 2 * n + 1)));
        assert_same(&world.replies(d), &(format!("VA 0||{two}EN|")), "");
    }
    // A small set that waits for one of a large call is read by the right keys when its turn comes.
    make(&mut world, a, "tiny", 0..1);
    world.expect(a, "mg set:union:one:two v|", "");
    assert!(world.go_on());
    world.expect(b, "mg set:union:tiny:two v|", "");
    end(&mut world);
    assert_same(&world.replies(a), &(all), "");
    let odd = list((0..SOME).map(|n| 2 * n + 1));
    assert_same(&world.replies(b), &(value(&(list(0..1) + &odd))), "");
}

#[test]
fn a_queue_has_an_end() {
    let (mut world, a) = long_world();
    make(&mut world, a, "s", 0..SOME);
    world.expect(a, "mg set:getall:s v|", "");
    let b = world.connect();
    for _ in 0..1024 {
        world.expect(b, "mg set:count:s v|", "");
    }
    let c = world.connect();
    world.expect(
        c,
        "mg set:count:s v|get set:count:s|ms set::s 1 Aput q|x|",
        &"SERVER_ERROR busy|".repeat(3),
    );
    world.expect(c, "get x set:count:s|delete set::s|", "END|SERVER_ERROR busy|");
    end(&mut world);
    assert_same(&world.replies(b), &("VA 5|12000|".repeat(1024)), "");
    world.expect(c, "mg set:count:s v|", "VA 5|12000|");
}

#[test]
fn connections_that_close_while_their_calls_run_or_wait() {
    for orderly in [false, true] {
        let (mut world, a) = long_world();
        make(&mut world, a, "s", 0..SOME);
        let [b, c] = [(); 2].map(|()| world.connect());
        world.expect(a, "get set:getall:s x set:getall:s|get y|", "");
        world.expect(b, "mg set:add:s:zzz v|mg set:getall:s v|", "");
        world.expect(c, "mg set:count:s v|", "");
        assert!(world.go_on());
        world.close(a, orderly);
        world.close(b, orderly);
        end(&mut world);
        assert_same(&world.replies(c), "VA 5|12001|", "what the other had asked is done");
    }
}

/// The client sends no more, and still reads.
#[test]
fn a_client_that_sends_no_more_gets_its_reply() {
    let (mut world, a) = long_world();
    make(&mut world, a, "s", 0..SOME);
    world.expect(a, "mg set:getall:s v|mg set:count:s v|", "");
    world.release(a);
    end(&mut world);
    assert_same(&world.replies(a), &(value(&list(0..SOME)) + "VA 5|12000|"), "");
}

#[test]
fn calls_of_two_workers() {
    let (mut one, a) = long_world();
    let mut two = one.beside(1);
    two.holds_calls = true;
    let b = two.connect();
    make(&mut one, a, "s", 0..SOME);
    one.expect(a, "mg set:getall:s v|", "");
    two.expect(b, "mg set:add:s:zzz v|mg set:getall:s v|get set:count:s x|", "");
    one.expect(a, "mg set:count:s v|", "");
    // A call that waited is handed on by the lane that has ended the one before it.
    while one.go_on() | two.go_on() | one.receive() | two.receive() {}
    assert_same(&one.replies(a), &(value(&list(0..SOME)) + "VA 5|12001|"), "");
    let all = list(0..SOME) + "zzz|";
    assert_same(&two.replies(b), &(format!("VA 1|1|{}VALUE set:count:s 0 5|12001|END|", value(&all))), "");
    assert!(one.engine.is_quiet());
}

/// A lease that a `get` was given before its call waits has its deadline.
#[test]
fn a_lease_and_a_long_call_in_one_get() {
    let policy = Policy { lease: LeaseTime::Fixed(500), ..Policy::default() };
    let mut world = World::new(&[("page:{id}", policy)]);
    world.holds_calls = true;
    world.engine.set_objects(Some(settings(|_| ())));
    let [a, b] = [(); 2].map(|()| world.connect());
    make(&mut world, a, "s", 0..SOME);
    world.expect(a, "get page:1 set:getall:s|", "");
    world.expect(b, "get page:1|", "");
    world.pass(2000);
    assert_same(&world.replies(b), "END|", "it has the lease when the time is up");
    world.expect(b, "set page:1 0 0 1|x|", "STORED|");
    world.pass(2000);
    end(&mut world);
    assert_same(&world.replies(a), &(block("set:getall:s", &list(0..SOME)) + "END|"), "");
}
