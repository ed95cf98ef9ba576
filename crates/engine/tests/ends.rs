//! How held gets and leases end without a fill: by other rules, by values that cannot be stored, by their own
//! connection; and that each held get ends in one counter.

use crate::world;

use cattlegrid_herd::{LeaseTime, OnBusy, Owner, PeerKey, Policy};
use world::World;

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

/// The waiters of a key whose rule is removed are answered at once.
#[test]
fn waiters_under_a_removed_rule_are_answered() {
    let long = Policy { hold_ms: 30_000, lease: LeaseTime::Fixed(30_000), ..policy() };
    for tags_only in [false, true] {
        let mut w = World::new(&[("page:{id}", long)]);
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        w.expect(c, "mg page:1 v N30 Pw20000|", "");
        let without = [("page:{id}", Policy { leases: false, ..long })];
        w.set_rules(if tags_only { &without } else { &[] });
        assert_eq!((w.replies(b), w.engine.held()), ("END|".into(), 0));
        assert!(w.replies(c).starts_with("VA 0"));
        w.expect(a, "set page:1 0 0 1|x|", "STORED|");
        w.expect(b, "get page:1|", "VALUE page:1 0 1|x|END|");
        assert_eq!(w.engine.leases(), 0);
        w.engine.verify();
    }
}

/// A get that waits for a loader's value in place of an old one is a miss where the rule has gone, and with it the
/// old value. The rule comes back before its client stores what is too old by then.
#[test]
fn the_miss_of_a_waiter_under_a_removed_rule_is_known_when_the_rule_is_back() {
    let terms = Policy { grace_s: 60, wait_ms: 30_000, ..policy() };
    let mut w = World::new(&[("page:{id}", Policy { loader: true, ..terms })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 0 3|old|md page:1 I|", "STORED|HD|");
    w.expect(b, "get page:1|", "");
    w.set_rules(&[]);
    assert_eq!(w.replies(b), "END|");
    w.flush();
    w.set_rules(&[("page:{id}", terms)]);
    w.expect(b, "set page:1 0 0 3|new|get page:1|", "STORED|END|");
}

/// Under other terms the set answers the waiters. Under another pattern an earlier miss may be too old: the
/// set is dropped, and the first waiter gets the lease.
#[test]
fn waiters_under_a_changed_rule_are_answered_by_the_set() {
    let long = Policy { hold_ms: 30_000, lease: LeaseTime::Fixed(30_000), ..policy() };
    let graced = Policy { hold_ms: 0, grace_s: 10, ..policy() };
    for (other, reply) in [("page:{id}", "VALUE page:1 0 1|x|END|"), ("{any*}", "END|")] {
        let mut w = World::new(&[("page:{id}", long)]);
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        w.set_rules(&[(other, graced)]);
        assert_eq!(w.replies(b), "");
        w.expect(a, "set page:1 0 0 1|x|", "STORED|");
        assert_eq!(w.replies(b), reply);
    }
}

/// A value that is always too large cannot be stored: after as many leases as for a key that is never set,
/// its gets are no longer held.
#[test]
fn a_value_that_is_always_refused_is_let_pass() {
    for pooled in [false, true] {
        let mut w = World::new(&[("page:{id}", policy())]);
        let [a, b, c] = [(); 3].map(|()| w.connect_from(PeerKey::Process(1)));
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        w.refuse(if pooled { c } else { a }, "page:1", None);
        assert_eq!(w.replies(b), "END|", "first lease unfilled");
        w.expect(a, "get page:1|", "");
        w.refuse(b, "page:1", None);
        assert_eq!((w.replies(a), w.count("pass_entered")), ("END|".into(), 1));
        for one in [a, b, c, a, b, c] {
            w.expect(one, "get page:1|", "END|");
        }
        assert_eq!((w.count("unset"), w.count("leases"), w.engine.held()), (2, 1, 0));
        w.pass(10_000);
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        w.expect(a, "set page:1 0 0 1|x|", "STORED|");
        assert_eq!(w.replies(b), "VALUE page:1 0 1|x|END|");
    }
}

/// A value that is dropped and leaves nothing to show passes the lease on, also that of another client. It
/// does not count as a lease without a value.
#[test]
fn a_dropped_fill_passes_the_lease_on() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c, pooled] = [(); 4].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(c, "delete page:1|get page:1|", "NOT_FOUND|END|");
    w.expect(b, "get page:1|", "");
    // It may be the first client's.
    w.expect(pooled, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!((w.replies(b), w.count("promoted_gave_up"), w.count("unset")), ("END|".into(), 1, 0));
    w.expect(a, "get page:1|", "");
    w.expect(b, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(a), "VALUE page:1 0 1|x|END|", "the second one is shown");
    // A value is there: only the lease of the client that stores would end.
    w.expect(pooled, "set page:1 0 0 1|y|get page:1|", "STORED|VALUE page:1 0 1|x|END|");
}

/// An action that ends the wait of the second of three connections, for the value that the first computes.
type End = dyn Fn(&mut World, [u64; 3]);

/// Each way in which a wait ends counts in one counter, and in no other.
#[test]
fn each_held_get_ends_in_one_counter() {
    let ends: &[(&str, &End)] = &[
        ("held_filled", &|w, [a, ..]| w.send(a, "set page:1 0 0 1|x|")),
        ("held_filled", &|w, [a, ..]| w.send(a, "ms page:1 1 T-1|x|")),
        ("held_own_write", &|w, [_, b, _]| w.send(b, "set page:1 0 0 1|x|")),
        ("held_own_write", &|w, [_, b, _]| w.send(b, "delete page:1|")),
        ("held_gone", &|w, [_, b, _]| w.close(b, false)),
        ("released", &|w, [_, b, _]| w.close(b, true)),
        ("released", &|w, [_, b, _]| w.release(b)),
        ("hold_expired", &|w, _| w.pass(400)),
        ("promoted_close", &|w, [a, ..]| w.close(a, false)),
        ("promoted_invalidated", &|w, [_, _, c]| w.send(c, "delete page:1|")),
        ("promoted_invalidated", &|w, [_, _, c]| w.send(c, "md page:1 I|")),
        // A value that is refused is also deleted, which promotes the waiter.
        ("promoted_invalidated", &|w, [a, ..]| w.refuse(a, "page:1", None)),
        ("promoted_deadline", &|w, _| w.pass(3000)),
        ("held_unruled", &|w, _| w.set_rules(&[("page:{id}", Policy { leases: false, ..policy() })])),
    ];
    for (counter, end) in ends {
        // Where the end is the lease's deadline, the hold is longer than the lease.
        let hold_ms = if *counter == "promoted_deadline" { 9000 } else { 400 };
        let mut w = World::new(&[("page:{id}", Policy { hold_ms, ..policy() })]);
        let all = [(); 3].map(|()| w.connect());
        let [a, b, _] = all;
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        end(&mut w, all);
        assert_eq!(w.count(counter), 1, "{counter}");
        let active = w.engine.shared().rules();
        let (_, state) = active.as_ref().unwrap().each().next().unwrap();
        let held = w.count("held");
        assert_eq!(held - state.counters().held_ended(), w.engine.held() as u64, "{counter}");
        drop(active);
    }
    // The holder asks again, alone on its connection.
    let mut w = World::new(&[("page:{id}", policy())]);
    let a = w.connect();
    w.expect(a, "get page:1|get page:1|", "END|END|");
    w.expect(a, "get page:1|", "");
    w.pass(10);
    assert_eq!((w.replies(a), w.count("held_reentered"), w.count("hold_expired")), ("END|".into(), 1, 0));
    // A circle.
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:2|", "END|");
    w.expect(b, "get page:1|", "");
    w.expect(a, "get page:2|", "END|");
    assert_eq!((w.count("held"), w.count("cycles_avoided"), w.engine.held()), (2, 1, 1));
    // A key that is let pass, and a failure.
    let mut w = World::new(&[(
        "page:{id}",
        Policy { pass_after: 1, hold_ms: 9000, on_busy: OnBusy::Error, ..policy() },
    )]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.pass(3000);
    assert_eq!((w.replies(b), w.count("held_passed")), ("END|".into(), 1));
    let won = w.ask(a, "mg page:2 c N30|");
    let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
    w.expect(c, "mg page:2 v N30 Pw400|", "");
    w.expect(a, &format!("md page:2 C{token} Peno|"), "HD|");
    assert_eq!((w.replies(c), w.count("held_failed"), w.count("held")), ("EN Peno|".into(), 1, 2));
}

/// A client that asks twice before it stores leaves a miss open. After a delete at most one of its sets is
/// dropped.
#[test]
fn a_strict_sequence_on_one_connection_is_stored_again_at_once() {
    for learned in [false, true] {
        for owner in [Owner::Key, Owner::Connection] {
            let mut w = World::new(&[("page:{id}", Policy { owner, ..Policy::default() })]);
            let a = w.connect();
            for n in 0..if learned { 20 } else { 0 } {
                w.expect(a, &format!("get page:l{n}|"), "END|");
                w.pass(20);
                w.expect(a, &format!("set page:l{n} 0 0 1|x|"), "STORED|");
            }
            w.expect(a, "get page:1|get page:1|set page:1 0 0 3|old|", "END|END|STORED|");
            w.expect(a, "delete page:1|", "DELETED|");
            let mut dropped = 0;
            while w.peek("page:1").is_none() {
                let reply = w.ask(a, "get page:1|");
                assert!(reply == "END|" || reply.is_empty(), "{reply}");
                w.pass(10);
                w.replies(a);
                w.expect(a, "set page:1 0 0 3|new|", "STORED|");
                dropped += u64::from(w.peek("page:1").is_none());
                w.pass(90);
            }
            assert_eq!(w.count("fills_dropped_ambiguous"), dropped, "{owner:?}");
            assert!(dropped <= u64::from(owner == Owner::Key), "{owner:?}: {dropped}");
        }
    }
}
