//! Objects: calls by plain keys, and what becomes of their requests.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use cattlegrid_engine::rules::{Pattern, Rule, Rules, TagTemplate};
use cattlegrid_herd::{LeaseTime, Policy};
use cattlegrid_objects::{Eviction, Registry, Settings, TypeSettings};

use crate::world::{World, config};

/// The settings of all types, changed.
pub(crate) fn settings(change: impl FnOnce(&mut Settings)) -> Arc<Registry> {
    let mut settings = Settings::default();
    change(&mut settings);
    Arc::new(Registry::new(settings).unwrap())
}

pub(crate) fn with_own(settings: &mut Settings, name: &str, change: impl FnOnce(&mut TypeSettings)) {
    change(settings.types.iter_mut().find(|own| own.name == name).unwrap());
}

pub(crate) fn world() -> World {
    world_of(|_| ())
}

fn world_of(change: impl FnOnce(&mut Settings)) -> World {
    let world = World::new(&[]);
    world.engine.set_objects(Some(settings(change)));
    world
}

/// The CAS of a reply to `gets` of one key.
fn cas_of(reply: &str) -> u64 {
    reply.split(['|', ' ']).nth(4).unwrap().parse().unwrap()
}

#[test]
fn a_call_by_a_plain_key() {
    let mut world = world();
    let client = world.connect();
    world.expect(client, "get counter:add:k:5|", "VALUE counter:add:k:5 0 1|5|END|");
    world.expect(client, "get counter:add:k:5|", "VALUE counter:add:k:5 0 2|10|END|");
    world.expect(
        client,
        "get a counter:add:k:1 b counter:add:k:1|",
        "VALUE counter:add:k:1 0 2|11|VALUE counter:add:k:1 0 2|12|END|",
    );
    world.expect(client, "mg counter:add:k:-2 v s f|", "VA 2 s2 f0|10|");
    world.expect(client, "mg counter::k v Aadd:7|", "VA 2|17|");
    world.expect(client, "ms counter::k 1 Aadd v|3|", "VA 2|20|");
    world.expect(client, "ms counter::k 1 Aadd|3|", "HD|");
    world.expect(client, "get counter:exists:k|", "VALUE counter:exists:k 0 6|EXISTS|END|");
    world.expect(client, "delete counter::k|", "DELETED|");
    world.expect(client, "delete counter::k|", "NOT_FOUND|");
    world.expect(client, "get counter:dump:k|", "END|");
}

/// A call and the object's own name mean the same object, whatever its key is.
#[test]
fn escapes_mean_the_same_in_all_names_of_an_object() {
    let mut world = world();
    let client = world.connect();
    for (part, others, not) in [
        ("a%3Ab", ["a%3ab", "a:b"], "a%253Ab"),
        ("a%253Ab", ["a%253Ab", "a%253Ab"], "a%3Ab"),
        ("50%25", ["50%", "50%25"], "50%2525"),
        ("50%2525", ["50%2525", "50%2525"], "50%25"),
        ("%zz%", ["%25zz%25", "%zz%"], "%2525zz%"),
    ] {
        let value = |call: &str, n: u8| format!("VALUE {call} 0 {}|{n}|END|", n.to_string().len());
        let add = format!("counter:add:{part}:1");
        world.expect(client, &format!("get {add}|"), &value(&add, 1));
        for other in others {
            world.expect(client, &format!("mg counter::{other} v Aadd:1|"), "VA 1|2|");
            world.expect(client, &format!("ms counter::{other} 1 Aadd v|1|"), "VA 1|3|");
            world.expect(client, &format!("delete counter::{not}|"), "NOT_FOUND|");
            world.expect(client, &format!("md counter::{not}|"), "NF|");
            world.expect(client, &format!("delete counter::{other}|"), "DELETED|");
            world.expect(client, &format!("get {add}|"), &value(&add, 1));
        }
        world.expect(client, &format!("md counter::{} q|", others[0]), "");
        world.expect(client, &format!("mg counter:exists:{part} v|"), "VA 9|NOT_FOUND|");
    }
}

#[test]
fn names_of_calls_are_no_keys() {
    let mut world = world();
    let client = world.connect();
    let refusal = "CLIENT_ERROR counter:add is a method|";
    for line in [
        "set counter:add:k:1 0 0 1|x|",
        "add counter:add:k:1 0 0 1|x|",
        "replace counter:add:k:1 0 0 1|x|",
        "append counter:add:k:1 0 0 1|x|",
        "prepend counter:add:k:1 0 0 1|x|",
        "cas counter:add:k:1 0 0 1 1|x|",
        "ms counter:add:k:1 1|x|",
        "ms counter:add:k:1 1 q|x|",
        "ms Y291bnRlcjphZGQ6azox 1 b|x|",
        "incr counter:add:k:1 1|",
        "decr counter:add:k:1 1|",
        "ma counter:add:k:1|",
        "ma counter:add:k:1 N0 J1|",
        "touch counter:add:k:1 5|",
        "gat 5 counter:add:k:1|",
        "gats 5 counter:add:k:1|",
        "mg counter:add:k:1 v T5|",
        "mg counter:add:k:1 v N5|",
        "mg counter:add:k:1 v R5|",
        "mg Y291bnRlcjphZGQ6azox b T5|",
        "delete counter:add:k:1|",
        "md counter:add:k:1|",
        "md counter:add:k:1 q|",
    ] {
        world.expect(client, line, refusal);
    }
    for line in [
        "set counter:add:k:1 0 0 1 noreply|x|",
        "incr counter:add:k:1 1 noreply|",
        "touch counter:add:k:1 5 noreply|",
        "delete counter:add:k:1 noreply|",
    ] {
        world.expect(client, line, "");
    }
    // Neither did any of them store or call.
    world.expect(client, "get counter:add:k:0|", "VALUE counter:add:k:0 0 1|0|END|");
    let object = "CLIENT_ERROR counter:: names an object: call a method of it, or delete it|";
    for line in ["set counter::k 0 0 1|x|", "get counter::k|", "mg counter::k v|", "incr counter::k 1|"] {
        world.expect(client, line, object);
    }
    // With other keys both are misses.
    world.expect(client, "set a 0 0 1|x|", "STORED|");
    world.expect(client, "get counter::k a|gat 5 counter:add:k:1 a|", &"VALUE a 0 1|x|END|".repeat(2));
    for key in
        ["print:1", "type:5", "counter:5", "counter", "counter:", "set:x", "os:tmpname", "xcounter:add:k:1"]
    {
        world.expect(client, &format!("set {key} 0 0 1|x|"), "STORED|");
        world.expect(client, &format!("get {key}|"), &format!("VALUE {key} 0 1|x|END|"));
    }
}

#[test]
fn the_flags_of_meta_commands() {
    let mut world = world();
    let client = world.connect();
    world.expect(client, "mg counter:add:k:1 k t s v Oab f|", "VA 1 kcounter:add:k:1 t-1 s1 Oab f0|1|");
    world.expect(client, "mg Y291bnRlcjphZGQ6azox b k v|", "VA 1 kY291bnRlcjphZGQ6azox b|2|");
    world.expect(client, "mg Y291bnRlcjo6aw== b v Aadd:1|", "VA 1|3|");
    world.expect(client, "ms Y291bnRlcjo6aw== 1 b v Aadd|1|", "VA 1|4|");
    // A key that only base64 can name, and the same object by an escape.
    world.expect(client, "mg Y291bnRlcjphZGQ6YSBiOjE= b v|", "VA 1|1|");
    world.expect(client, "mg counter:add:k:0 q v|", "VA 1|4|");
    world.expect(client, "ms counter::k 1 Aadd q|1|", "");
    world.expect(client, "ms counter::k 1 Aadd q v|1|", "VA 1|6|");
    world.expect(client, "mg quota:peek:none q v|", "");
    world.expect(client, "mg quota:peek:none k O1|", "EN kquota:peek:none O1|");
    world.expect(client, "ms quota::none 1 Aaddandcheck q|1|", "NF|");
    world.expect(
        client,
        "mg counter:add:k:x q v|",
        "CLIENT_ERROR counter.add: arg 1 must be a number from -9223372036854775808 to 9223372036854775807|",
    );
    world.expect(client, "md counter::none q|md counter::k q O1|", "");
    world.expect(client, "md counter::k|md Y291bnRlcjo6aw== b k|", "NF|NF kY291bnRlcjo6aw== b|");
    // Arguments of `A`: escapes of every byte, and the data as it is.
    world.expect(client, "get set:new:s|", "VALUE set:new:s 0 7|CREATED|END|");
    world.expect(client, "mg set::s v Aadd:a%3Ab:c%20d|ms set::s 3 Aadd v|%3A|", "VA 1|2|VA 1|1|");
    world.expect(
        client,
        "get set:getall:s|",
        "VALUE set:getall:s 0 17|%3A|a:b|c d||END|".replace("17", "15").as_str(),
    );
    world.expect(client, "mg set::s v Anone:1|", "CLIENT_ERROR set has no method none|");
    world.expect(client, "mg plain v Aadd:1|", "CLIENT_ERROR A needs the name of an object, type::key|");
    world.expect(client, "mg counter:add:k:1 v Aadd:1|", "CLIENT_ERROR counter:add is a method|");
    let many = ":a".repeat(129);
    world.expect(client, &format!("mg set::s v Aadd{many}|"), "CLIENT_ERROR set.add: too many arguments|");
    world.expect(client, &format!("mg set::s v Aadd{}|", &many[..256]), "VA 1|1|");
    // What would have no effect is refused.
    for flags in ["C1", "E1", "F5", "I", "MA", "T60"] {
        world.expect(client, &format!("ms counter::k 1 Aadd v {flags}|1|"), "CLIENT_ERROR invalid flag|");
    }
    for flags in ["C1", "E1", "I", "T60", "x"] {
        world.expect(client, &format!("md set::s {flags}|"), "CLIENT_ERROR invalid flag|");
    }
    world.expect(client, "mg counter:exists:k v|mg set:exists:s v|", "VA 9|NOT_FOUND|VA 6|EXISTS|");
}

#[test]
fn errors_misses_and_arguments() {
    let mut world = world();
    let client = world.connect();
    for (line, reply) in [
        (
            "get quota:new:q:ten:hour|",
            "CLIENT_ERROR quota.new: arg 1 must be a number from 0 to 9223372036854775807|",
        ),
        ("get quota:new:q:10|", "CLIENT_ERROR quota.new: takes limit window|"),
        ("get set:put:s|", "CLIENT_ERROR set.put: takes member [member ...]|"),
        ("get quota:new:q:10:aeon|", "END|"),
        ("get quota:addandcheck:q:1|", "END|"),
        ("mg quota:addandcheck:q:1 v|", "EN|"),
        ("get quota:addandcheck|", "CLIENT_ERROR quota.addandcheck: no key|"),
        ("get quota:addandcheck:|", "CLIENT_ERROR quota.addandcheck: no key|"),
        ("get counter:add:k:1:2:3|", "CLIENT_ERROR counter.add: takes n [ttl]|"),
        ("get set:getall:s|", "END|"),
    ] {
        let got = world.ask(client, line);
        let place = reply.find("takes").unwrap_or(reply.len());
        assert_eq!(&got[..place.min(got.len())], &reply[..place], "to {line}");
    }
    // With other keys an error is a miss.
    world.expect(client, "set a 0 0 1|x|", "STORED|");
    world.expect(
        client,
        "get counter:add:k:x a counter:add:k:1|",
        "VALUE a 0 1|x|VALUE counter:add:k:1 0 1|1|END|",
    );
    let counter = |world: &World, name: &str| {
        let found = (0..Registry::methods_max()).find(|number| {
            let (object_type, method) = Registry::numbered(*number).unwrap();
            name == format!("{}.{}", object_type.name, method.name)
        });
        let one = world.counters.methods.of(found.unwrap());
        (one.calls.get(), one.errors.get(), one.misses.get(), one.bytes.get())
    };
    assert_eq!(counter(&world, "counter.add"), (3, 2, 0, 1));
    assert_eq!(counter(&world, "quota.addandcheck"), (4, 2, 2, 0));
    let methods = world.ask(client, "get counter:methods|");
    assert!(methods.contains("|add|") && methods.ends_with("|methods||END|"), "{methods}");
    // An object's key has up to 250 bytes, however it is written.
    let key = "k".repeat(240);
    world.expect(client, &format!("mg counter::{key} v Aadd:1|"), "VA 1|1|");
    let keys = "GET MISSES AND HITS";
    let (gets, hits, misses) =
        (&world.counters.cmd_get, &world.counters.get_hits, &world.counters.get_misses);
    assert_eq!(gets.get(), hits.get() + misses.get(), "{keys}");
}

#[test]
fn absent_objects_prefix_and_compat() {
    let mut world = world_of(|all| {
        all.prefix = b"o.".to_vec();
        with_own(all, "quota", |own| own.create = Some(vec![b"3".to_vec(), b"hour".to_vec()]));
        with_own(all, "set", |own| own.create = Some(Vec::new()));
    });
    let client = world.connect();
    world.expect(client, "set quota:addandcheck:q:2 0 0 1|x|", "STORED|");
    for reply in ["QUOTA_OK", "QUOTA_EXCEEDED"] {
        let len = reply.len();
        world.expect(
            client,
            "get o.quota:addandcheck:q:2|",
            &format!("VALUE o.quota:addandcheck:q:2 0 {len}|{reply}|END|"),
        );
    }
    world.expect(client, "mg o.set:put:s:a v|mg o.set:count:s v|", "VA 7|SUCCESS|VA 1|1|");
    world.expect(client, "mg o.set:getall:t v|", "VA 0||");
    world.expect(client, "mg o.map:put:m:a:b v|", "EN|");
    let mut world = world_of(|all| all.compat = true);
    let client = world.connect();
    world.expect(client, "mg quota:addandcheck:q:2 v|", "VA 16|ERROR_CACHE_MISS|");
    world.expect(client, "mg quota:new:q:2:aeon v|", "VA 11|NOT_CREATED|");
    world.expect(
        client,
        "mg map:new:m v|mg map:put:m:a:b v|mg map:get:m:a v|",
        "VA 7|CREATED|VA 7|SUCCESS|VA 5|a : b|",
    );
}

#[test]
fn a_get_that_mixes_all_kinds_of_keys() {
    let policy = Policy { lease: LeaseTime::Fixed(3000), hold_ms: 1000, ..Policy::default() };
    let mut world = World::new(&[("page:{id}", policy)]);
    world.engine.set_objects(Some(settings(|_| ())));
    let [a, b] = [(); 2].map(|()| world.connect());
    world.expect(a, "set plain 0 0 1|x|", "STORED|");
    world.expect(a, "get page:1|", "END|");
    // A key that another client computes is held, behind calls and before them: then they are made after it.
    world.expect(b, "get counter:add:k:1 plain page:1|", "");
    world.expect(a, "set page:1 0 0 1|p|", "STORED|");
    let reply = "VALUE counter:add:k:1 0 1|1|VALUE plain 0 1|x|VALUE page:1 0 1|p|END|";
    assert_eq!(world.replies(b), reply);
    world.expect(a, "delete page:1|get page:1|", "DELETED|END|");
    world.expect(b, "get page:1 plain counter:add:k:1 counter:add:k:1|", "");
    let reply = "VALUE plain 0 1|x|VALUE counter:add:k:1 0 1|2|VALUE counter:add:k:1 0 1|3|END|";
    world.pass(401);
    assert_eq!(world.replies(b), reply);
    // The lease and a call in one get.
    let reply = "VALUE counter:add:k:1 0 1|4|END|";
    world.expect(b, "get counter:add:k:x page:2 counter:add:k:1|", reply);
    assert_eq!(world.engine.leases(), 2);
    world.expect(b, "set page:2 0 0 1|q|", "STORED|");
    // Control keys, before calls and behind them.
    let got = world.ask(b, "get counter:add:k:1 @why:plain counter:add:k:1 plain|");
    let parts: Vec<_> = got.split("VALUE ").map(|part| part.split(' ').next().unwrap()).collect();
    assert_eq!(parts, ["", "counter:add:k:1", "@why:plain", "counter:add:k:1", "plain"], "{got}");
    // In pieces of a key each.
    world.most = 1;
    let reply = "VALUE plain 0 1|x|VALUE counter:add:k:1 0 1|7|VALUE page:2 0 1|q|END|";
    world.expect(b, "get plain counter:add:k:1 counter:add:k:x none page:2|", reply);
    world.most = usize::MAX;
    world.expect(a, "set page:1 0 0 1|p|", "STORED|");
    world.pass(20_000);
    assert!(world.engine.is_quiet());
}

#[test]
fn a_time_to_live_is_kept_through_a_thousand_calls() {
    let mut world = world_of(|all| with_own(all, "quota", |own| own.ttl_s = 100));
    let client = world.connect();
    world.expect(client, "mg quota:new:q:2000:day v t|", "VA 7 t100|CREATED|");
    world.expect(client, "mg counter:add:k:1 v t|mg counter:ttl:k v|", "VA 1 t-1|1|VA 2|-1|");
    world.expect(client, "mg counter:ttl:k:50 v|", "VA 2|50|");
    world.expect(
        client,
        "mg set:new:s v|mg set:put:s:a v|mg set:ttl:s:100 v|",
        "VA 7|CREATED|VA 7|SUCCESS|VA 3|100|",
    );
    for n in 0..1000 {
        world.expect(client, "mg quota:addandcheck:q v|", "VA 8|QUOTA_OK|");
        // Through all changes of form: in place, in a new item, in a tree.
        world.expect(client, &format!("mg set:add:s:member{n} v|"), "VA 1|1|");
        if n < 49 {
            world.pass(1000);
            world.expect(client, "mg counter:add:k:1 t|", &format!("HD t{}|", 49 - n));
        }
    }
    world.expect(client, "mg quota:ttl:q v|mg set:ttl:s v t|", "VA 2|51|VA 2 t51|51|");
    world.pass(1000);
    world.expect(client, "mg counter:exists:k v|", "VA 9|NOT_FOUND|");
    world.expect(client, "mg counter:add:k:1 v t|", "VA 1 t-1|1|");
    world.expect(client, "mg set:ttl:s:0 v t|", "VA 2 t-1|-1|");
    world.pass(49_000);
    world.expect(client, "mg quota:exists:q v|mg quota:ttl:q v|", "VA 6|EXISTS|VA 1|1|");
    world.pass(1000);
    world.expect(client, "mg quota:addandcheck:q v|mg set:count:s v|", "EN|VA 4|1001|");
    // `new` begins anew, with the type's time.
    world.expect(client, "mg quota:new:q:1:day v t|mg quota:ttl:q:5 t|", "VA 7 t100|CREATED|HD t5|");
    world.expect(client, "mg quota:new:q:1:day v t|", "VA 7 t100|CREATED|");
    for (argument, reply) in [
        ("-1", "CLIENT_ERROR quota.ttl: arg 1 must be a number of seconds, 0 for no end|"),
        ("4294967296", "CLIENT_ERROR quota.ttl: arg 1 must be a number of seconds, 0 for no end|"),
        ("4294967295", "VA 10|4294967295|"),
    ] {
        world.expect(client, &format!("mg quota:ttl:q:{argument} v|"), reply);
    }
    world.expect(client, "mg quota:exists:q v|", "VA 6|EXISTS|");
}

#[test]
fn tags_flushes_and_bumps() {
    let pattern = Pattern::parse("set::{k}").unwrap();
    let tags = vec![TagTemplate::parse("user:{k}", Some(&pattern)).unwrap()];
    let policy = Policy { leases: false, hold_ms: 0, grace_s: 600, ..Policy::default() };
    let rule = Rule { number: 1, pattern, policy, tags, negative_ttl_s: 0, loading: None, prefix: None };
    let mut world = World::under(Rules::new(vec![rule], Vec::new()));
    world.engine.set_objects(Some(settings(|_| ())));
    let client = world.connect();
    let make = "get set:new:7|get set:put:7:a|get counter:add:k:1|";
    let exists = |world: &mut World| {
        let got = world.ask(client, "mg set:exists:7 v|mg counter:exists:k v|");
        (got.starts_with("VA 6|EXISTS|"), got.ends_with("|EXISTS|"))
    };
    for (bump, left) in [
        ("delete @tag:user:7|", (false, true)),
        ("md user:7 G|", (false, true)),
        // A soft one, too: no old state is served, whatever the grace.
        ("md user:7 G I|", (false, true)),
        ("md user:8 G|", (true, true)),
    ] {
        world.ask(client, make);
        assert_eq!(exists(&mut world), (true, true));
        world.ask(client, bump);
        assert_eq!(exists(&mut world), left, "{bump}");
    }
    // Tags that the client names are those of a new object.
    world.expect(client, "delete counter::k|", "DELETED|");
    world.expect(client, "ms counter::k 1 Aadd v Gcolour,shape|1|", "VA 1|1|");
    world.expect(client, "md shape G|mg counter:exists:k v|", "HD|VA 9|NOT_FOUND|");
    world.expect(
        client,
        "ms counter::k 1 Aadd v Gcolour|1|ms counter::k 1 Aadd v Gshape|1|",
        "VA 1|1|VA 1|2|",
    );
    world.expect(client, "md shape G|mg counter:exists:k v|", "HD|VA 6|EXISTS|");
    world.expect(client, "md colour G|mg counter:exists:k v|", "HD|VA 9|NOT_FOUND|");
    // In another form it keeps them.
    world.ask(client, make);
    for n in 0..500 {
        world.ask(client, &format!("get set:put:7:member{n}|"));
    }
    world.ask(client, "md user:7 G|");
    assert_eq!(exists(&mut world), (false, true));
    // Flushes: now, later, rolling.
    world.ask(client, make);
    world.pass(1000);
    world.flush();
    assert_eq!(exists(&mut world), (false, false));
    world.ask(client, make);
    let second = world.now().second;
    world.engine.shared().flush(second + 2, second);
    assert_eq!(exists(&mut world), (true, true));
    world.pass(2000);
    assert_eq!(exists(&mut world), (false, false));
    for n in 0..100 {
        world.ask(client, &format!("get counter:add:n{n}:1|"));
    }
    world.ask(client, "get @flush:10|");
    let left = |world: &mut World| {
        (0..100)
            .filter(|n| world.ask(client, &format!("mg counter:exists:n{n} v|")) == "VA 6|EXISTS|")
            .count()
    };
    world.pass(5000);
    let half = left(&mut world);
    assert!((20..80).contains(&half), "{half}");
    world.pass(6000);
    assert_eq!(left(&mut world), 0);
}

#[test]
fn the_cas_changes_when_the_state_does() {
    let mut world = world();
    let client = world.connect();
    let cas = |world: &mut World, call: &str| cas_of(&world.ask(client, &format!("gets {call}|")));
    let first = cas(&mut world, "quota:new:q:10:hour");
    assert_eq!(cas(&mut world, "quota:peek:q"), first);
    assert_eq!(cas(&mut world, "quota:addandcheck:q:11"), first, "refused");
    let second = cas(&mut world, "quota:addandcheck:q:10");
    assert!(second > first);
    assert_eq!(cas(&mut world, "quota:addandcheck:q:1"), second, "refused");
    assert_eq!(cas(&mut world, "quota:ttl:q"), second);
    let set = cas(&mut world, "set:new:s");
    let put = cas(&mut world, "set:put:s:a");
    assert!(put > set);
    assert_eq!(cas(&mut world, "set:put:s:a"), put);
    assert_eq!(cas(&mut world, "set:getall:s"), put);
    for n in 0..500 {
        world.ask(client, &format!("get set:put:s:member{n}|"));
    }
    let tree = cas(&mut world, "set:count:s");
    assert_eq!(cas(&mut world, "set:put:s:member7"), tree);
    assert_eq!(cas(&mut world, "set:getall:s"), tree);
    assert!(cas(&mut world, "set:put:s:more") > tree);
    assert_eq!(cas(&mut world, "set:drop:s"), 0);
    assert_eq!(cas(&mut world, "set:exists:s"), 0);
}

#[test]
fn why_of_objects() {
    let mut world = world_of(|all| with_own(all, "quota", |own| own.evict = Eviction::Never));
    let client = world.connect();
    world.ask(client, "get counter:add:k:1|get counter:ttl:k:60|get quota:new:q:1:hour|");
    let why = |world: &mut World, key: &str| {
        let got = world.ask(client, &format!("get @why:{key}|"));
        let json = got.split('|').nth(1).unwrap().to_owned();
        let why: serde_json::Value = serde_json::from_str(&json).unwrap();
        why["object"].clone()
    };
    for key in ["counter::k", "counter:add:k:1"] {
        let object = why(&mut world, key);
        assert_eq!((&object["type"], &object["exists"]), (&"counter".into(), &true.into()), "{object}");
        assert_eq!((&object["ttl"], &object["size"]), (&60.into(), &8.into()), "{object}");
        assert_eq!((&object["busy"], &object["waiting"]), (&false.into(), &0.into()), "{object}");
    }
    assert_eq!(why(&mut world, "counter:add:k:1")["method"], "add");
    assert_eq!(why(&mut world, "quota::q")["evict"], "never");
    assert_eq!(why(&mut world, "quota::none")["exists"], false);
    assert_eq!(why(&mut world, "plain"), serde_json::Value::Null);
    world.expect(client, "mg counter:add:k:0 v|", "VA 1|1|");
}

#[test]
fn a_million_bytes_of_members_leave_with_their_object() {
    let mut world = World::with(&[], &config(), 64 << 20, 4);
    world.engine.set_objects(Some(settings(|_| ())));
    let client = world.connect();
    let free = world.engine.usage().0;
    world.expect(client, "mg map:new:m v|", "VA 7|CREATED|");
    let value = "v".repeat(1000);
    for n in 0..2000 {
        world.expect(client, &format!("ms map::m 1000 Aput:k{n:05}|{value}|"), "HD|");
    }
    let full = world.engine.usage().0;
    assert!(full.tree_bytes > 2_000_000 && full.objects == 1, "{full:?}");
    world.expect(client, "mg map:get:m:k01999 v s|", &format!("VA 1000 s1000|{value}|"));
    world.expect(client, "mg map:drop:m v|", "VA 7|DELETED|");
    while world.engine.tick(world.now()) {}
    let after = world.engine.usage().0;
    assert_eq!((after.tree_bytes, after.objects, after.object_bytes), (0, 0, 0));
    assert_eq!(after.bytes, free.bytes);
}

/// Objects that are never evicted and have ended leave their room to the next, in whichever shard they are
/// and whatever has ended them.
#[test]
fn ended_objects_that_are_never_evicted_leave_their_room_at_once() {
    let mut world = World::with(&[("page:{id}", Policy::default())], &config(), 64 << 20, 8);
    world.engine.set_objects(Some(settings(|all| {
        with_own(all, "quota", |own| own.evict = Eviction::Never);
        all.pinned_max = 200_000;
    })));
    let client = world.connect();
    let fill = |world: &mut World, round: usize| {
        let refused = |n: &u32| {
            let tags = ["all", &format!("one{n}")].join(",");
            let line = format!("ms quota::{round}-{n} 3 Anew:5 G{tags} v|day|");
            world.ask(client, &line) != "VA 7|CREATED|"
        };
        (0..100_000).find(refused).unwrap()
    };
    let count = fill(&mut world, 100);
    assert!(count > 500, "{count}");
    for (round, end) in ["delete @tag:all|", "md all G|", "md all G I|", "flush", "time", "delete @tag:all|"]
        .into_iter()
        .enumerate()
    {
        match end {
            "flush" => world.flush(),
            "time" => {
                for n in 0..count {
                    world.expect(client, &format!("mg quota:ttl:{}-{n}:2 v|", round - 1), "VA 1|2|");
                }
                world.pass(3000);
            }
            line => drop(world.ask(client, line)),
        }
        assert!(fill(&mut world, round).abs_diff(count) <= 2, "{end}");
    }
    // One by one.
    for n in 0..100 {
        world.expect(client, &format!("delete @tag:one{n}|"), "DELETED|");
        world.expect(client, &format!("ms quota::next{n} 3 Anew:5 v|day|"), "VA 7|CREATED|");
    }
    // Unused room is given back by itself.
    world.expect(client, "delete @tag:all|", "DELETED|");
    for _ in 0..20 {
        world.pass(1000);
        world.engine.tick(world.now());
    }
    let (usage, left) = (world.engine.usage().0, world.engine.memory().pinned_object_bytes());
    assert_eq!(usage.objects, 100, "those without a tag");
    assert!(left < 200_000 / 5, "{left}");
    world.engine.verify();
}

#[test]
fn objects_that_are_never_evicted_live_within_their_limit() {
    let mut world = World::with(&[], &config(), 4 << 20, 1);
    world.engine.set_objects(Some(settings(|all| {
        with_own(all, "quota", |own| own.evict = Eviction::Never);
        all.pinned_max = 20_000;
    })));
    let client = world.connect();
    let fill = |world: &mut World, name: &str| {
        let full = |n: &u32| {
            let reply = world.ask(client, &format!("mg quota:new:{name}{n}:5:day v|"));
            assert!(
                ["VA 7|CREATED|", "SERVER_ERROR out of memory storing object|"].contains(&reply.as_str())
            );
            reply.starts_with("SERVER_ERROR")
        };
        (0..10_000).find(full).unwrap()
    };
    let count = fill(&mut world, "q");
    assert!((100..600).contains(&count), "{count}");
    world.expect(
        client,
        "mg quota:exists:q0 v|get quota:take:other:1:5:day|",
        "VA 6|EXISTS|SERVER_ERROR out of memory storing object|",
    );
    // Those that are there go on, and others types' objects are made.
    world.expect(
        client,
        "mg quota:addandcheck:q0:5 v|mg quota:new:q1:7:day v|",
        "VA 8|QUOTA_OK|VA 7|CREATED|",
    );
    world.expect(client, "mg counter:add:k:1 v|", "VA 1|1|");
    // They outlive everything else.
    for _ in 0..3 {
        let (fat, thin) = ("x".repeat(3000), "x".repeat(300));
        for n in 0..3000 {
            world.send(client, &format!("set junk:{n} 0 0 3000 noreply|{fat}|"));
            world.send(client, &format!("set thin:{n} 0 0 300 noreply|{thin}|"));
        }
    }
    world.expect(client, "mg counter:exists:k v|", "VA 9|NOT_FOUND|");
    for n in 0..count {
        world.expect(client, &format!("mg quota:exists:q{n} v|"), "VA 6|EXISTS|");
    }
    world.expect(client, "mg quota:addandcheck:q0 v|", "VA 14|QUOTA_EXCEEDED|");
    // What is dropped, or ends, can be used again.
    world.expect(client, "delete quota::q0|mg quota:new:again:5:day v|", "DELETED|VA 7|CREATED|");
    for n in 1..count {
        world.expect(client, &format!("mg quota:ttl:q{n}:2 v|"), "VA 1|2|");
    }
    world.pass(3000);
    assert!(fill(&mut world, "r") >= count - 2);
    world.flush();
    world.expect(client, "mg quota:exists:r0 v|", "VA 9|NOT_FOUND|");
    let after = fill(&mut world, "s");
    // Also those that lie between newer ones.
    assert!(after >= count - 2, "{after} of {count}");
    // A limit of nothing.
    world.engine.set_objects(Some(settings(|all| {
        with_own(all, "quota", |own| own.evict = Eviction::Never);
        all.pinned_max = 0;
    })));
    world.flush();
    world.expect(client, "mg quota:new:q:5:day v|", "SERVER_ERROR out of memory storing object|");
    world.expect(client, "mg quota:exists:q v|", "VA 9|NOT_FOUND|");
}

#[test]
fn a_call_that_finds_no_room_changes_nothing() {
    let mut world = World::with(&[], &config(), 4 << 20, 1);
    world.engine.set_objects(Some(settings(|all| {
        with_own(all, "map", |own| own.evict = Eviction::Never);
        all.pinned_max = usize::MAX >> 1;
    })));
    let client = world.connect();
    world.expect(client, "mg map:new:m v|", "VA 7|CREATED|");
    let value = "v".repeat(20_000);
    let refusal = "SERVER_ERROR out of memory storing object|";
    let mut count = 0;
    loop {
        let reply = world.ask(client, &format!("ms map::m 20000 Aput:k{count}|{value}|"));
        if reply != "HD|" {
            assert_eq!(reply, refusal);
            break;
        }
        count += 1;
    }
    assert!((5..210).contains(&count), "{count}");
    let dump = world.ask(client, "mg map:getkeys:m v c|");
    world.expect(client, &format!("ms map::m 20000 Aput:more|{value}|"), refusal);
    world.expect(client, "mg map:getkeys:m v c|", &dump);
    world.expect(
        client,
        "mg map:count:m v|mg map:get:m:more v|",
        &format!("VA {}|{count}|EN|", count.to_string().len()),
    );
    world.expect(client, "mg map:drop:m v|mg map:new:m v|", "VA 7|DELETED|VA 7|CREATED|");
    world.expect(client, &format!("ms map::m 20000 Aput:k|{value}|"), "HD|");
    world.engine.verify();
}

#[test]
fn no_plain_item_is_returned_under_a_name_that_has_become_a_call() {
    // First all types are switched on, then one more: in both cases before a tick has removed any item.
    let own =
        |names: &'static [&str]| settings(move |all| all.types.retain(|own| names.contains(&&*own.name)));
    for before in [None, Some(own(&["map"]))] {
        let mut world = World::with(&[], &config(), 64 << 20, 2);
        world.engine.set_objects(before);
        let client = world.connect();
        for n in 0..500 {
            world.expect(client, &format!("set set:count:k{n} 0 0 1|x|"), "STORED|");
        }
        world.engine.set_objects(Some(own(&["map", "set"])));
        for n in 0..500 {
            world.expect(client, &format!("get set:count:k{n}|mg set:count:k{n} v|"), "END|EN|");
        }
    }
}
