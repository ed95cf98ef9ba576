//! What was computed before a delete, a flush or another change is not kept: one scene each, on a clock of its own.

#![allow(clippy::many_single_char_names, reason = "connections a, b, c")]

mod world;

use cattlegrid_herd::{FillWindow, LeaseTime, Owner, Policy};
use world::World;

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

#[test]
fn what_was_computed_before_a_delete_is_never_served() {
    for owner in [Owner::Key, Owner::Connection] {
        let mut w = World::new(&[("page:{id}", Policy { owner, ..policy() })]);
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(c, "get page:1|", "");
        w.expect(b, "delete page:1|", "NOT_FOUND|");
        assert_eq!(w.replies(c), "END|", "the next computes");
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.expect(b, "get page:1|", "");
        w.expect(c, "set page:1 0 0 3|new|", "STORED|");
        if owner == Owner::Connection {
            assert_eq!(w.replies(b), "VALUE page:1 0 3|new|END|");
            assert_eq!((w.count("fills_dropped"), w.count("fills_stored")), (1, 1));
        } else {
            // It might be the first one's, sent on another connection of a pool: one more computes.
            assert_eq!(w.replies(b), "END|");
            w.expect(b, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
            assert_eq!((w.count("fills_dropped"), w.count("fills_stored")), (2, 1));
        }
    }
}

#[test]
fn a_fill_from_another_connection_counts_as_of_the_miss_too() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "delete page:1|", "NOT_FOUND|");
    w.expect(c, "set page:1 0 0 3|old|", "STORED|");
    w.expect(b, "get page:1|", "END|");
}

#[test]
fn flushes_revoke_leases() {
    let mut w = World::new(&[("page:{id}", Policy { owner: Owner::Connection, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.flush();
    w.pass(10);
    assert_eq!(w.replies(b), "END|");
    w.expect(a, "set page:1 0 0 3|old|", "STORED|");
    w.expect(b, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
}

#[test]
fn soft_invalidation_makes_a_late_fill_stale() {
    let policy = Policy { grace_s: 30, owner: Owner::Connection, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.expect(c, "md page:1 I|", "NF|");
    assert_eq!(w.replies(b), "END|", "the next computes");
    w.expect(c, "get page:1|", "");
    w.expect(a, "set page:1 0 0 3|old|", "STORED|");
    assert_eq!(w.replies(c), "", "it came after the invalidation");
    w.expect(b, "set page:1 0 0 3|new|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:1 0 3|new|END|");
    w.expect(c, "md page:1 I|", "HD|");
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "VALUE page:1 0 3|new|END|");
    w.expect(b, "mg page:1 v|", "VA 3 Z X|new|");
    assert_eq!(w.count("fills_stale"), 1);
}

#[test]
fn a_miss_that_was_filled_through_another_connection_is_not_withdrawn_again() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c, d, writer] = [(); 5].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "set page:1 0 0 1|1|", "STORED|");
    w.expect(writer, "delete page:1|", "DELETED|");
    w.expect(c, "get page:1|", "END|");
    w.close(a, true);
    w.expect(writer, "delete page:1|", "NOT_FOUND|");
    w.expect(d, "set page:1 0 0 1|2|", "STORED|");
    w.expect(writer, "get page:1|", "END|");
}

#[test]
fn a_refused_fill_is_not_waited_for_any_more() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.refuse(a, "page:1", None);
    assert_eq!(w.replies(b), "END|");
    w.expect(b, "set page:1 0 0 1|b|get page:1|", "STORED|VALUE page:1 0 1|b|END|");
}

#[test]
fn changed_rules_do_not_open_a_gap() {
    let short = Policy { fill_window: FillWindow::Fixed(100), lease: LeaseTime::Fixed(50), ..policy() };
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.set_rules(&[("page:{id}", short)]);
    w.pass(3000);
    w.expect(b, "delete page:1|get page:1|", "NOT_FOUND|END|");
    w.pass(500);
    w.expect(c, "set page:1 0 0 3|old|get page:1|", "STORED|END|");
    // Without rules, nobody notes the delete.
    w.expect(a, "get page:2|", "END|");
    w.set_rules(&[]);
    w.expect(b, "delete page:2|", "NOT_FOUND|");
    w.set_rules(&[("page:{id}", policy())]);
    w.expect(a, "set page:2 0 0 3|old|", "STORED|");
    w.expect(b, "get page:2|", "END|");
}

#[test]
fn a_late_fill_is_dropped_however_it_comes() {
    for (fill, said) in [("set page:1 0 0 1|x|", "STORED|"), ("add page:1 0 0 1|x|", "NOT_STORED|")] {
        for owner in [Owner::Key, Owner::Connection] {
            let mut w = World::new(&[("page:{id}", Policy { owner, hold_ms: 0, ..policy() })]);
            let [a, b, writer] = [(); 3].map(|()| w.connect());
            w.expect(a, "get page:1|", "END|");
            // A miss without a lease.
            w.expect(b, "get page:1|", "END|");
            w.expect(writer, "set page:1 0 0 1|w|delete page:1|", "STORED|DELETED|");
            w.expect(b, fill, said);
            w.expect(a, fill, said);
            w.expect(writer, "get page:1|", "END|");
        }
    }
}

#[test]
fn a_closed_connection_takes_its_miss_along() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c, writer] = [(); 4].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.close(a, false);
    w.expect(writer, "delete page:1|", "NOT_FOUND|");
    w.expect(b, "get page:1|set page:1 0 0 1|b|get page:1|", "END|STORED|VALUE page:1 0 1|b|END|");
    // The limit that the documentation names: a miss, its connection closed, its fill on another.
    w.expect(b, "delete page:1|", "DELETED|");
    w.expect(c, "get page:1|", "END|");
    w.close(c, true);
    w.expect(writer, "delete page:1|", "NOT_FOUND|");
    let d = w.connect();
    w.expect(d, "set page:1 0 0 3|old|", "STORED|");
    w.expect(writer, "get page:1|", "VALUE page:1 0 3|old|END|");
}
