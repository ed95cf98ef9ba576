//! Gets of several keys that compute some of them while other clients compute the rest.

use crate::world;

use cattlegrid_herd::{LeaseTime, OnBusy, Owner, Partial, Policy};
use world::World;

fn waits() -> Policy {
    Policy {
        lease: LeaseTime::Fixed(1000),
        hold_ms: 400,
        hold_many_ms: 400,
        partial: Partial::Wait,
        ..Policy::default()
    }
}

/// A client computes `page:1`.
fn scene(policy: Policy) -> (World, u64, u64) {
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    (w, a, b)
}

#[test]
fn it_is_answered_at_once_unless_its_rule_says_otherwise() {
    let (mut w, a, b) = scene(Policy { partial: Partial::Answer, ..waits() });
    w.expect(b, "get page:1 page:2|", "END|");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");

    let (mut w, a, b) = scene(waits());
    w.expect(b, "get page:2 page:1 page:3|", "");
    w.pass(300);
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:1 0 1|x|END|");
    // Others wait for what it computes, and it for none.
    let c = w.connect();
    w.expect(c, "get page:2|", "");
    w.expect(b, "set page:2 0 0 1|y|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:2 0 1|y|END|");
    assert_eq!(w.count("leases"), 3);
}

#[test]
fn the_time_of_its_leases_begins_when_it_is_answered() {
    let (mut w, a, b) = scene(waits());
    let c = w.connect();
    w.expect(b, "get page:1 page:2|", "");
    w.pass(390);
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:1 0 1|x|END|");
    // It computes for almost its whole second.
    w.pass(700);
    w.expect(c, "get page:2|", "");
    w.pass(290);
    assert_eq!(w.replies(c), "");
    w.expect(b, "set page:2 0 0 1|y|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:2 0 1|y|END|");
    // Without a fill it passes to the next one then.
    let (mut w, a, b) = scene(Policy { lease: LeaseTime::Fixed(500), ..waits() });
    let c = w.connect();
    w.expect(b, "get page:1 page:2|", "");
    w.pass(390);
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    w.pass(300);
    w.expect(c, "get page:2|", "");
    w.pass(150);
    assert_eq!(w.replies(c), "");
    w.pass(100);
    assert_eq!(w.replies(c), "END|");
}

#[test]
fn its_hold_ends() {
    let (mut w, _, b) = scene(waits());
    w.expect(b, "get page:1 page:2|", "");
    w.pass(399);
    assert_eq!(w.replies(b), "");
    w.pass(2);
    assert_eq!(w.replies(b), "END|");
}

#[test]
fn a_circle_of_lists_is_cut() {
    let mut w = World::new(&[("page:{id}", waits())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(a, "get page:9 page:2|", "END|");
    w.expect(b, "get page:2 page:3|", "");
    // It has page:4, and waits for page:3 of the one that waits for the first.
    w.expect(c, "get page:3 page:4|", "");
    // The first would wait for the third, and so for itself.
    w.expect(a, "get page:4|", "END|");
    w.expect(a, "set page:2 0 0 1|2|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:2 0 1|2|END|");
    w.expect(b, "set page:3 0 0 1|3|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:3 0 1|3|END|");
    assert!(w.count("cycles_avoided") >= 1);
}

#[test]
fn a_lease_that_passes_to_it_does_not_end_its_wait() {
    let (mut w, a, b) = scene(waits());
    let d = w.connect();
    w.expect(d, "get page:2|", "END|");
    w.expect(b, "get page:1 page:2|", "");
    w.close(a, false);
    assert_eq!(w.replies(b), "", "it computes page:1 now, and waits for page:2");
    w.expect(d, "set page:2 0 0 1|y|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:2 0 1|y|END|");
    w.expect(b, "set page:1 0 0 1|x|", "STORED|");
    w.expect(d, "get page:1|", "VALUE page:1 0 1|x|END|");
}

#[test]
fn a_run_of_quiet_gets_is_such_a_get() {
    let (mut w, a, b) = scene(waits());
    w.expect(b, "mg page:2 k v q|mg page:1 k v q|mg page:3 k v q|mn|", "");
    w.pass(100);
    assert_eq!(w.replies(b), "");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VA 1 kpage:1|x|MN|");
}

#[test]
fn its_leases_do_not_end_while_it_waits() {
    let policy = Policy { lease: LeaseTime::Fixed(1000), hold_ms: 5000, hold_many_ms: 5000, ..waits() };
    let mut w = World::new(&[
        ("page:{id}", Policy { lease: LeaseTime::Fixed(8000), ..policy }),
        ("user:{id}", policy),
    ]);
    let [a, x, y] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:5|", "END|");
    w.expect(x, "get page:5 user:6|", "");
    w.expect(y, "get user:6|", "");
    w.pass(2400);
    assert_eq!((w.replies(x), w.replies(y)), (String::new(), String::new()));
    w.expect(a, "set page:5 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(x), "VALUE page:5 0 1|x|END|");
    w.pass(900);
    assert_eq!(w.replies(y), "");
    w.expect(x, "set user:6 0 0 1|y|", "STORED|");
    assert_eq!(w.replies(y), "VALUE user:6 0 1|y|END|");
}

#[test]
fn what_it_computes_after_its_wait_is_as_new_as_its_reply() {
    for owner in [Owner::Key, Owner::Connection] {
        for change in ["delete page:2|", "md page:2 I|", "delete @tag:page:2|", "set page:2 0 1 1|z|"] {
            let (mut w, a, b) = scene(Policy { owner, ..waits() });
            let c = w.connect();
            w.expect(b, "get page:1 page:2|", "");
            w.send(c, change);
            let _changed = w.replies(c);
            w.pass(300);
            w.expect(a, "set page:1 0 0 1|x|", "STORED|");
            assert!(w.replies(b).starts_with("VALUE page:1 0 1|x|"), "{change}");
            w.expect(b, "set page:2 0 0 3|new|", "STORED|");
            w.expect(c, "get page:2|", "VALUE page:2 0 3|new|END|");
            assert_eq!(w.count("fills_dropped_old"), 0, "{change} {owner:?}");
            // And what is deleted after the reply is not kept.
            let (mut w, a, b) = scene(Policy { owner, ..waits() });
            let c = w.connect();
            w.expect(b, "get page:1 page:2|", "");
            w.expect(a, "set page:1 0 0 1|x|", "STORED|");
            assert!(w.replies(b).starts_with("VALUE page:1"));
            w.expect(c, "delete page:2|", "NOT_FOUND|");
            w.expect(b, "set page:2 0 0 3|old|", "STORED|");
            w.expect(c, "get page:2|", "END|");
        }
    }
}

#[test]
fn an_error_passes_its_leases_on() {
    let policy = Policy { on_busy: OnBusy::Error, max_computers: 1, hold_many_ms: 300, ..waits() };
    let (mut w, _, b) = scene(policy);
    let c = w.connect();
    w.expect(b, "get page:1 page:2|", "");
    w.expect(c, "get page:2|", "");
    w.pass(301);
    assert_eq!(w.replies(b), "SERVER_ERROR busy|");
    assert_eq!(w.replies(c), "END|", "it computes page:2 now");
}

#[test]
fn lists_in_a_row_wait_without_a_circle() {
    let mut w = World::new(&[("page:{id}", Policy { max_waiters: 100_000, ..waits() })]);
    let list =
        |n: usize| (25 * n..25 * n + 50).map(|key| format!("page:{key}")).collect::<Vec<_>>().join(" ");
    let clients: Vec<u64> = (0..12).map(|_| w.connect()).collect();
    for (n, client) in clients.iter().enumerate() {
        w.expect(*client, &format!("get {}|", list(n)), if n == 0 { "END|" } else { "" });
    }
    assert_eq!((w.count("cycles_avoided"), w.count("leases")), (0, 325));
    for (n, client) in clients.iter().enumerate() {
        let own = if n == 0 { 0..50 } else { 25 * n + 25..25 * n + 50 };
        let _reply = w.replies(*client);
        for key in own {
            w.expect(*client, &format!("set page:{key} 0 0 1|x|"), "STORED|");
        }
    }
    assert_eq!(w.count("leases"), 325);
}

#[test]
fn an_error_at_once_passes_its_leases_on() {
    let policy = Policy { on_busy: OnBusy::Error, max_computers: 1, ..waits() };
    for list in ["get page:1 page:2|", "get page:2 page:1|"] {
        // No client may wait for page:1.
        let (mut w, _, b) = scene(Policy { max_waiters: 0, ..policy });
        let c = w.connect();
        w.expect(b, list, "SERVER_ERROR busy|");
        w.expect(c, "get page:2|", "END|");
        // Its computation has failed, and one client computes it again.
        for partial in [Partial::Answer, Partial::Wait] {
            let mut w = World::new(&[("page:{id}", Policy { partial, ..policy })]);
            let [a, b, c] = [(); 3].map(|()| w.connect());
            for _ in 0..2 {
                let won = w.ask(a, "mg page:1 c v N30|");
                let token = won.split(' ').find_map(|flag| flag.strip_prefix('c')).unwrap().to_owned();
                w.expect(a, &format!("md page:1 C{token} Pedown|"), "HD|");
            }
            w.expect(a, "get page:1|", "SERVER_ERROR busy|");
            w.expect(b, list, "SERVER_ERROR busy|");
            w.expect(c, "get page:2|", "END|");
        }
    }
}

#[test]
fn the_leases_of_a_run_last_as_well() {
    let (mut w, a, b) = scene(Policy { lease: LeaseTime::Fixed(500), ..waits() });
    let c = w.connect();
    w.expect(b, "mg page:2 k v q|mg page:1 k v q|mn|", "");
    w.pass(390);
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VA 1 kpage:1|x|MN|");
    w.pass(300);
    w.expect(c, "get page:2|", "");
    w.expect(b, "set page:2 0 0 1|y|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:2 0 1|y|END|");
    // What is computed after a delete during the wait is kept.
    let (mut w, a, b) = scene(waits());
    let c = w.connect();
    w.expect(b, "mg page:2 k v q|mg page:1 k v q|mn|", "");
    w.expect(c, "delete page:2|", "NOT_FOUND|");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VA 1 kpage:1|x|MN|");
    w.expect(b, "set page:2 0 0 1|y|", "STORED|");
    w.expect(a, "get page:2|", "VALUE page:2 0 1|y|END|");
}

#[test]
fn an_error_that_a_client_takes_for_a_miss_stores_nothing_old() {
    let policy = Policy {
        on_busy: OnBusy::Error,
        max_computers: 1,
        hold_many_ms: 300,
        owner: Owner::Connection,
        ..waits()
    };
    // At once, and after its wait.
    for max_waiters in [0, 10] {
        let (mut w, _, b) = scene(Policy { max_waiters, ..policy });
        let c = w.connect();
        w.send(b, "get page:2 page:1|");
        w.pass(301);
        assert_eq!(w.replies(b), "SERVER_ERROR busy|");
        w.expect(c, "delete page:2|", "NOT_FOUND|");
        w.expect(b, "set page:2 0 0 3|old|", "STORED|");
        w.expect(c, "get page:2|", "END|");
    }
}

/// Threads share a connection: one computes a key, and a list of another one waits for it with the lease of
/// that key, after a delete.
#[test]
fn what_another_thread_computes_is_as_old_as_it_is() {
    for list in ["get page:1|", "get page:1 page:2|", "mg page:1 k v q|mg page:2 k v q|mn|"] {
        let mut w = World::new(&[("page:{id}", waits())]);
        let [a, c] = [(); 2].map(|()| w.connect());
        // The first thread computes an old value from here on.
        w.expect(a, "mg page:1 v|", "EN|");
        w.send(a, list);
        w.expect(c, "delete page:1|", "NOT_FOUND|");
        w.pass(1000);
        let _answered = w.replies(a);
        // The second thread has computed a new one.
        w.expect(a, "set page:1 0 0 3|new|", "STORED|");
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.pass(60_000);
        let left = w.ask(c, "get page:1|");
        assert!(!left.contains("|old|"), "{list}: {left}");
    }
}
