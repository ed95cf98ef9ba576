//! Cascades: which outcomes of which commands set them off, and which do not.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use crate::world;

use std::sync::atomic::Ordering;

use cattlegrid_engine::rules::{Cascade, Change, Rules};
use cattlegrid_herd::{LeaseTime, Owner, Policy};
use cattlegrid_tags::BumpKind;
use world::{World, cascade, on_flush, rule};

use crate::script_host::TestHost;

fn unleased() -> Policy {
    Policy { leases: false, hold_ms: 0, ..Policy::default() }
}

fn leased() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), owner: Owner::Connection, grace_s: 30, ..Policy::default() }
}

const CHANGES: [Change; 4] = [Change::Delete, Change::Set, Change::Incr, Change::Touch];

/// Keys without a rule (`n:`), under a rule without leases (`t:`) and under a rule with leases (`l:`). Each
/// change of a key bumps a tag with the change's name.
fn world() -> World {
    let cascades = CHANGES.map(|change| cascade(&[change], "{kind}:{id}", change.name()));
    World::under(Rules::new(
        vec![rule(1, "t:{id}", unleased(), &["t"]), rule(2, "l:{id}", leased(), &["l"])],
        cascades.into(),
    ))
}

/// Bumps of each change's tag, hard and soft.
fn bumps(w: &World) -> Vec<(&'static str, u64, u64)> {
    let shared = w.engine.shared();
    let last = |change: Change, kind| {
        shared.tags().bumps().last_own(shared.tag_hasher().hash(change.name().as_bytes()).unwrap(), kind)
    };
    CHANGES.map(|change| (change.name(), last(change, BumpKind::Hard), last(change, BumpKind::Soft))).into()
}

/// The cascades of a command: changes by name, `~` before a soft one.
fn set_off(before: &[(&'static str, u64, u64)], after: &[(&'static str, u64, u64)]) -> String {
    let mut all = Vec::new();
    for ((name, hard, soft), (_, hard_then, soft_then)) in after.iter().zip(before) {
        if hard > hard_then {
            all.push((*name).to_owned());
        }
        if soft > soft_then {
            all.push(format!("~{name}"));
        }
    }
    all.join(" ")
}

/// The item that must be there, the command, the beginning of its reply, and its cascades.
type Case = (&'static str, &'static str, &'static str, &'static str);

/// `K` is the key, `CAS` the item's, `TOKEN` the token of a miss by name.
const CASES: &[Case] = &[
    ("set", "delete K|", "DELETED", "delete"),
    ("", "delete K|", "NOT_FOUND", "delete"),
    ("set", "delete K noreply|", "", "delete"),
    ("set", "md K|", "HD", "delete"),
    ("", "md K|", "NF", "delete"),
    ("set", "md K q|", "", "delete"),
    ("set", "md K CCAS|", "HD", "delete"),
    ("set", "md K C900000000|", "EX", ""),
    ("", "md K C900000000|", "NF", ""),
    ("", "md K I C900000000|", "NF", ""),
    ("set", "md K x|", "HD", "delete"),
    ("set", "md K I|", "HD", "~delete"),
    ("", "md K I|", "NF", "~delete"),
    ("set", "md K I x|", "HD", "~delete"),
    ("set", "md K I C900000000|", "EX", ""),
    ("miss", "md K CTOKEN Peno|", "HD", ""),
    ("miss", "md K C900000000 Peno|", "", ""),
    ("set", "md K C900000000 Peno|", "EX", ""),
    ("", "set K 0 0 1|x|", "STORED", "set"),
    ("set", "set K 0 0 1 noreply|x|", "", "set"),
    ("", "set K 0 -1 1|x|", "STORED", "set"),
    ("", "add K 0 0 1|x|", "STORED", "set"),
    ("set", "add K 0 0 1|x|", "NOT_STORED", ""),
    ("set", "replace K 0 0 1|x|", "STORED", "set"),
    ("", "replace K 0 0 1|x|", "NOT_STORED", ""),
    ("set", "append K 0 0 1|x|", "STORED", "set"),
    ("", "append K 0 0 1|x|", "NOT_STORED", ""),
    ("", "prepend K 0 0 1|x|", "NOT_STORED", ""),
    ("set", "cas K 0 0 1 CAS|x|", "STORED", "set"),
    ("set", "cas K 0 0 1 900000000|x|", "EXISTS", ""),
    ("", "cas K 0 0 1 900000000|x|", "NOT_FOUND", ""),
    ("", "ms K 1|x|", "HD", "set"),
    ("", "ms K 1 q|x|", "", "set"),
    ("set", "ms K 1 CCAS|x|", "HD", "set"),
    ("set", "ms K 1 C900000000|x|", "EX", ""),
    ("", "ms K 1 C900000000|x|", "NF", ""),
    ("set", "ms K 1 ME|x|", "NS", ""),
    ("", "ms K 1 MR|x|", "NS", ""),
    ("", "ms K 1 MA|x|", "NS", ""),
    ("", "ms K 1 MA N5|x|", "HD", "set"),
    ("set", "ms K 1 C1 I|x|", "HD", "set"),
    ("", "ms K 1 Ga,,b|x|", "CLIENT_ERROR", ""),
    ("miss", "ms K 1 CTOKEN|x|", "HD", "set"),
    ("set", "incr K 1|", "8", "incr"),
    ("set", "decr K 1|", "6", "incr"),
    ("", "incr K 1|", "NOT_FOUND", ""),
    ("text", "incr K 1|", "CLIENT_ERROR", ""),
    ("set", "ma K|", "HD", "incr"),
    ("", "ma K|", "NF", ""),
    ("", "ma K N0 J3|", "HD", "incr"),
    ("set", "ma K C900000000|", "EX", ""),
    ("text", "ma K|", "CLIENT_ERROR", ""),
    ("set", "touch K 9|", "TOUCHED", "touch"),
    ("set", "touch K 9 noreply|", "", "touch"),
    ("", "touch K 9|", "NOT_FOUND", ""),
    ("set", "gat 9 K|", "VALUE", "touch"),
    ("set", "gats 9 K|", "VALUE", "touch"),
    ("", "gat 9 K|", "END", ""),
    ("set", "gat 9 K other|", "VALUE", "touch"),
    ("set", "mg K T9|", "HD", "touch"),
    ("set", "mg K v q T9|", "VA", "touch"),
    ("set", "mg K v t|", "VA", ""),
    ("", "mg K T9|", "EN", ""),
    ("", "mg K N9 T9|", "HD W", ""),
    ("set", "get K|", "VALUE", ""),
    ("set", "gets K|", "VALUE", ""),
    ("", "get K|", "END", ""),
    ("set", "me K|", "ME", ""),
];

#[test]
fn every_outcome_of_every_command() {
    for kind in ["n", "t", "l"] {
        for (number, (state, command, reply, expected)) in CASES.iter().enumerate() {
            let mut w = world();
            let [a, b] = [(); 2].map(|()| w.connect());
            let key = format!("{kind}:{number}");
            let mut number = "1".to_owned();
            match *state {
                "set" | "text" => {
                    let value = if *state == "set" { "7" } else { "x" };
                    let stored = w.ask(a, &format!("ms {key} 1 c|{value}|"));
                    number = stored.trim_end_matches('|').rsplit('c').next().unwrap().to_owned();
                }
                "miss" => {
                    let won = w.ask(a, &format!("mg {key} c N30|"));
                    number =
                        won.split([' ', '|']).find(|word| word.starts_with('c')).unwrap()[1..].to_owned();
                }
                _ => {}
            }
            let line = command.replace("TOKEN", &number).replace("CAS", &number);
            let line = line.replace(" K", &format!(" {key}"));
            let before = bumps(&w);
            let got = w.ask(if *state == "miss" { a } else { b }, &line);
            let what = set_off(&before, &bumps(&w));
            assert!(got.starts_with(reply), "{state:?} {line:?}: {got}");
            assert_eq!(what, *expected, "{kind} {state:?} {line:?}: {got}");
        }
    }
}

/// Fills that the second rule has dropped.
fn dropped(w: &World) -> u64 {
    let active = w.engine.shared().rules();
    let (_, state) = active.as_ref().unwrap().each().nth(1).unwrap();
    state.counters().fills_dropped_old.load(Ordering::Relaxed)
}

/// A `set` that came too late is answered `STORED`, and may have been an ordinary write that was taken for a
/// late fill: its cascades run. A client that is told of the failure has changed nothing.
#[test]
fn a_value_that_is_dropped_sets_off_what_its_reply_says() {
    for (fill, reply, expected) in [
        ("set l:1 0 0 1|x|", "STORED|", "set"),
        ("set l:1 0 0 1 noreply|x|", "", "set"),
        ("ms l:1 1|x|", "HD|", "set"),
        ("add l:1 0 0 1|x|", "NOT_STORED|", ""),
        ("ms l:1 1 ME|x|", "NS|", ""),
        ("ms l:1 1 CTOKEN|x|", "NF|", ""),
    ] {
        let mut w = world();
        let [a, b] = [(); 2].map(|()| w.connect());
        let won = w.ask(a, "mg l:1 c N30|");
        let token = won.split([' ', '|']).find(|word| word.starts_with('c')).unwrap()[1..].to_owned();
        w.expect(b, "delete l:1|", "NOT_FOUND|");
        let before = bumps(&w);
        w.expect(a, &fill.replace("TOKEN", &token), reply);
        assert_eq!(dropped(&w), 1, "{fill}");
        assert_eq!(set_off(&before, &bumps(&w)), expected, "{fill}");
    }
}

#[test]
fn a_value_that_is_too_large_sets_off_nothing() {
    let mut w = world();
    let a = w.connect();
    for key in ["n:1", "t:1", "l:1"] {
        w.expect(a, &format!("set {key} 0 0 1|x|"), "STORED|");
        let before = bumps(&w);
        w.refuse(a, key, None);
        w.expect(a, &format!("get {key}|"), "END|");
        assert_eq!(set_off(&before, &bumps(&w)), "");
    }
}

#[test]
fn a_held_gat_touches_when_it_is_answered() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    for (waits, touches) in [("gat 9 l:1|", "set touch"), ("get l:1|", "set")] {
        w.expect(a, "delete l:1|get l:1|", if touches == "set" { "DELETED|END|" } else { "NOT_FOUND|END|" });
        let before = bumps(&w);
        w.expect(b, waits, "");
        assert_eq!(set_off(&before, &bumps(&w)), "", "{waits}");
        w.expect(a, "set l:1 0 0 1|x|", "STORED|");
        assert_eq!(w.replies(b), "VALUE l:1 0 1|x|END|");
        assert_eq!(set_off(&before, &bumps(&w)), touches, "{waits}");
    }
    // The answer that there is no value is not prolonged.
    w.expect(a, "get l:2|", "END|");
    w.expect(b, "gat 90 l:2|", "");
    w.expect(a, "ms l:2 0 n T2||", "HD|");
    assert_eq!(w.replies(b), "END|");
    w.expect(a, "mg l:2 v N30|", "EN|");
    w.pass(2000);
    assert!(w.ask(a, "mg l:2 v N30|").starts_with("VA 0 W"));
    // An old value is not prolonged.
    w.expect(a, "md l:1 I|gat 9 l:1|", "HD|END|");
    let before = bumps(&w);
    w.expect(c, "gat 9 l:1|mg l:1 v T9|", "VALUE l:1 0 1|x|END|VA 1 Z X|x|");
    assert_eq!(set_off(&before, &bumps(&w)), "");
}

/// A cascade that bumps a tag of the item that was changed: that item stays valid, the others of the tag do
/// not.
#[test]
fn a_change_does_not_invalidate_its_own_item() {
    let on = [Change::Set, Change::Incr, Change::Touch];
    let steps = [
        ("set r:1 0 0 1|1|", "STORED|", "1"),
        ("set r:1 0 0 1|7|", "STORED|", "7"),
        ("incr r:1 4|", "11|", "11"),
        ("append r:1 0 0 1|0|", "STORED|", "110"),
        ("touch r:1 50|", "TOUCHED|", "110"),
        ("gat 50 r:1|", "VALUE r:1 0 3|110|END|", "110"),
        ("mg r:1 T50|", "HD|", "110"),
        ("ms r:1 2 Ggroup:1,mine|ab|", "HD|", "ab"),
    ];
    for policy in [unleased(), leased(), Policy { owner: Owner::Key, ..leased() }] {
        let rules = vec![rule(1, "r:{id}", policy, &["group:{id}", "other"])];
        let cascades = on.map(|on| cascade(&[on], "{kind}:{id}", "group:{id}")).into();
        let mut w = World::under(Rules::new(rules, cascades));
        let [a, b] = [(); 2].map(|()| w.connect());
        // The first `set` is a fill, which counts as of its miss.
        w.expect(a, "get r:1|", "END|");
        for (number, (line, reply, value)) in (1..).zip(steps) {
            w.expect(b, "ms sibling 1 Ggroup:1|s|get sibling|", "HD|VALUE sibling 0 1|s|END|");
            w.expect(a, line, reply);
            w.expect(b, "get r:1|", &format!("VALUE r:1 0 {}|{value}|END|", value.len()));
            w.expect(b, "get sibling|", "END|");
            assert_eq!(w.engine.shared().tags().stats().self_bumped, number, "{line}");
        }
        // Bumps by others invalidate it as before, and so do slow flushes that have begun.
        for bump in ["md group:1 G|", "md other G|", "md mine G|", "delete @tag:other|"] {
            w.ask(a, "ms r:1 2 Gmine|ab|");
            w.ask(b, bump);
            w.expect(a, "get r:1|", "END|");
            w.expect(a, "set r:1 0 0 1|1|", "STORED|");
        }
        w.ask(a, "get @flush:2|");
        w.expect(a, "set r:1 0 0 1|2|get r:1|", "STORED|VALUE r:1 0 1|2|END|");
        w.pass(2000);
        w.expect(a, "get r:1|", "VALUE r:1 0 1|2|END|");
        // Without a rule, by a tag that the client names.
        w.expect(a, "ms n:2 1 Ggroup:2|x|get n:2|", "HD|VALUE n:2 0 1|x|END|");
    }
}

/// A value whose own tag was bumped after its miss is not made valid by the bump of its own cascade.
#[test]
fn a_late_value_stays_late_though_it_bumps_its_own_tag() {
    for owner in [Owner::Key, Owner::Connection] {
        for (policy, event) in
            [(unleased(), "md other G|"), (leased(), "delete @tag:group:1|"), (leased(), "delete r:1|")]
        {
            let rules = vec![rule(1, "r:{id}", Policy { owner, ..policy }, &["group:{id}", "other"])];
            let cascades = vec![cascade(&[Change::Set], "{kind}:{id}", "group:{id}")];
            let mut w = World::under(Rules::new(rules, cascades));
            let [a, b] = [(); 2].map(|()| w.connect());
            w.expect(a, "get r:1|", "END|");
            w.ask(b, event);
            w.expect(a, "set r:1 0 0 3|old|get r:1|", "STORED|END|");
        }
    }
}

fn flushes(cascades: Vec<Cascade>) -> World {
    World::under(Rules::new(vec![rule(1, "t:{id}", unleased(), &["t"])], cascades))
}

fn hard_bumps(w: &World) -> u64 {
    w.engine.shared().tags().stats().hard_bumps
}

#[test]
fn a_flush_sets_off_its_cascade_when_it_is_due() {
    let mut w = flushes(vec![on_flush("all"), on_flush("more")]);
    let a = w.connect();
    w.engine.flush(w.now().second, w.now());
    assert_eq!(hard_bumps(&w), 2, "at once");
    let in_seconds = |w: &World, seconds| w.engine.flush(w.now().second + seconds, w.now());
    in_seconds(&w, 10);
    w.pass(9_000);
    w.expect(a, "get t:1|", "END|");
    assert_eq!(hard_bumps(&w), 2);
    w.pass(1_000);
    assert_eq!(hard_bumps(&w), 4, "by the upkeep");
    in_seconds(&w, 1);
    w.ms += 1_000;
    assert_eq!(hard_bumps(&w), 4);
    w.expect(a, "ms free 1 Gall|x|get free|", "HD|VALUE free 0 1|x|END|");
    assert_eq!(hard_bumps(&w), 6, "by the first command after it");
    w.pass(5_000);
    assert_eq!(hard_bumps(&w), 6, "once");
    // A later one replaces it.
    in_seconds(&w, 10);
    in_seconds(&w, 20);
    w.pass(15_000);
    assert_eq!(hard_bumps(&w), 6);
    w.pass(5_000);
    assert_eq!(hard_bumps(&w), 8);
}

#[test]
fn a_slow_flush_sets_off_its_cascade_when_it_is_over() {
    let mut w = flushes(vec![on_flush("all")]);
    let a = w.connect();
    w.ask(a, "get @flush:10|");
    w.pass(9_900);
    w.expect(a, "get t:1|", "END|");
    assert_eq!(hard_bumps(&w), 0);
    w.pass(1_100);
    assert_eq!(hard_bumps(&w), 1);
    w.pass(5_000);
    assert_eq!(hard_bumps(&w), 1, "once");
    // The fifth ends the first; an immediate flush ends all, and is one itself.
    (0..4).for_each(|_| drop(w.ask(a, "get @flush:100|")));
    assert_eq!(hard_bumps(&w), 1);
    w.ask(a, "get @flush:100|");
    assert_eq!(hard_bumps(&w), 2);
    w.flush();
    assert_eq!(hard_bumps(&w), 3);
    w.pass(200_000);
    assert_eq!(hard_bumps(&w), 3);
}

#[test]
fn an_object_that_is_dropped_sets_off_cascades() {
    let mut w =
        World::under(Rules::new(Vec::new(), vec![cascade(&[Change::Delete], "{kind}::{id}", "delete")]));
    let host = TestHost::new(1);
    w.engine.set_objects(Some(host.registry(|_| ())));
    let client = w.connect();
    for kind in ["tally", "counter"] {
        for (request, cascades) in [
            ("delete K::a|", "delete"),
            ("get K:add:a:1|", ""),
            ("get K:get:a|", ""),
            ("delete K::a|", "delete"),
            ("get K:add:a:1|get K:drop:a|", "delete"),
            ("md K::a|", "delete"),
            ("md K::a I|", ""),
            ("delete K:drop:a|", ""),
        ] {
            let (request, before) = (request.replace('K', kind), bumps(&w));
            let reply = w.ask(client, &request);
            assert_eq!(set_off(&before, &bumps(&w)), cascades, "{request}: {reply}");
        }
    }
}
