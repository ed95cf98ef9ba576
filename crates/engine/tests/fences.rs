//! A value that was computed before a delete, a flush or another change is not kept: one scene each, on a
//! simulated clock.

#![allow(clippy::many_single_char_names, reason = "connections a, b, c")]

use crate::world;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{Ambiguous, FillWindow, LeaseTime, OnBusy, Owner, Policy, RECORDS_MAX};
use world::World;

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

#[test]
fn a_value_computed_before_a_delete_is_never_kept() {
    let known = Policy { owner: Owner::Connection, ..policy() };
    let strict = Policy { ambiguous: Ambiguous::Drop, ..policy() };
    for (owner, policy) in [("connection", known), ("strict", strict), ("key", policy())] {
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(c, "get page:1|", "");
        w.expect(b, "delete page:1|", "NOT_FOUND|");
        assert_eq!(w.replies(c), "END|", "the next waiter gets the lease");
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        if owner == "connection" {
            w.expect(b, "get page:1|", "");
            w.expect(c, "set page:1 0 0 3|new|", "STORED|");
            assert_eq!(w.replies(b), "VALUE page:1 0 3|new|END|");
            assert_eq!((w.count("fills_dropped"), w.count("fills_stored")), (1, 1));
            continue;
        }
        // It might be the value of the client that has the lease now, so that one ends.
        w.expect(b, "get page:1|", "END|");
        w.expect(c, "set page:1 0 0 3|new|", "STORED|");
        if owner == "strict" {
            // This one might be the first client's.
            w.expect(c, "get page:1|", "END|");
            w.expect(b, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
            assert_eq!(
                (w.count("fills_dropped"), w.count("fills_proved")),
                (2, 1),
                "one of two equal ones is new"
            );
        } else {
            w.expect(c, "get page:1|", "VALUE page:1 0 3|new|END|");
            w.expect(b, "set page:1 0 0 3|new|", "STORED|");
            assert_eq!((w.count("fills_provisional"), w.count("fills_proved")), (1, 1));
            assert_eq!((w.count("fills_dropped"), w.count("fills_stored")), (1, 2));
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
    assert_eq!(w.replies(b), "END|", "the next waiter gets the lease");
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
    let policy = || Policy { ambiguous: Ambiguous::Drop, ..policy() };
    let short = Policy { fill_window: FillWindow::Fixed(100), lease: LeaseTime::Fixed(50), ..policy() };
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.set_rules(&[("page:{id}", short)]);
    w.pass(3000);
    w.expect(b, "delete page:1|get page:1|", "NOT_FOUND|END|");
    w.pass(500);
    w.expect(c, "set page:1 0 0 3|old|get page:1|", "STORED|END|");
    // Without rules the delete is not noted.
    w.expect(a, "get page:2|", "END|");
    w.set_rules(&[]);
    w.expect(b, "delete page:2|", "NOT_FOUND|");
    w.set_rules(&[("page:{id}", policy())]);
    w.expect(a, "set page:2 0 0 3|old|", "STORED|");
    w.expect(b, "get page:2|", "END|");
}

/// A rule is added while clients compute: their misses were not recorded. For one fill window after that a
/// value without a record is kept only if its key was not deleted since.
#[test]
fn a_rule_that_is_added_concerns_values_missed_before_it() {
    for owner in [Owner::Key, Owner::Connection] {
        for delete in ["delete page:1|", "md page:1|", "md page G|", "get @bump:page:1|", "get @flush:1|", ""]
        {
            let other = ("other:{id}", Policy::default());
            let mut w = World::new(&[other]);
            w.pass(100_000);
            let [a, b, c, d] = [(); 4].map(|()| w.connect());
            w.expect(a, "get page:1|", "END|");
            w.set_rules(&[other, ("page:{id}", Policy { owner, ..policy() })]);
            w.expect(d, "set page:2 0 0 3|new|", "STORED|");
            w.expect(b, "get page:2|", "VALUE page:2 0 3|new|END|");
            if delete.is_empty() {
                w.flush();
            } else {
                w.ask(c, delete);
            }
            w.pass(1100);
            w.expect(a, "set page:1 0 0 3|old|", "STORED|");
            let said = w.ask(c, "get page:1|");
            assert_eq!(said, "END|", "{owner:?} {delete}");
        }
    }
}

#[test]
fn a_value_deleted_while_its_rule_is_gone_does_not_come_back() {
    let policy = Policy { grace_s: 100, hold_ms: 0, ..policy() };
    for delete in ["delete page:1|", "md page:1|", "md page:1 q|"] {
        for ends in ["touch page:1 1|", "md page:1 I|", "md page:1 G I|"] {
            let mut w = World::new(&[("page:{id}", policy)]);
            let [a, b] = [(); 2].map(|()| w.connect());
            w.expect(a, "set page:1 0 0 3|old|", "STORED|");
            w.ask(a, ends);
            w.pass(1000);
            w.set_rules(&[]);
            assert!(w.ask(a, delete).starts_with('N'), "{delete} {ends}");
            w.set_rules(&[("page:{id}", policy)]);
            w.expect(a, "get page:1|", "END|");
            w.expect(b, "get page:1|", "END|");
        }
    }
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
            w.expect(writer, "delete page:1|", "NOT_FOUND|");
            w.expect(b, fill, said);
            w.expect(a, fill, said);
            w.expect(writer, "get page:1|", "END|");
        }
    }
}

#[test]
fn a_closed_connection_leaves_its_misses_open() {
    // Two connections miss; one fills, and one of the two is closed. The other client's fill comes on a third
    // connection.
    for closes_first in [true, false] {
        for orderly in [true, false] {
            let mut w = World::new(&[("page:{id}", Policy { hold_ms: 0, ..policy() })]);
            let [a, b, c, writer] = [(); 4].map(|()| w.connect());
            w.expect(a, "get page:1|", "END|");
            w.expect(b, "get page:1|", "END|");
            if closes_first {
                w.close(a, orderly);
            }
            w.expect(b, "set page:1 0 0 3|old|", "STORED|");
            if !closes_first {
                w.close(a, orderly);
            }
            w.expect(writer, "delete page:1|", "DELETED|");
            w.expect(c, "set page:1 0 0 3|old|", "STORED|");
            w.expect(writer, "get page:1|", "END|");
        }
    }
}

#[test]
fn a_pool_that_closes_connections_while_it_computes_stores_nothing_old() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, writer] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.close(a, true);
    w.expect(writer, "delete page:1|", "NOT_FOUND|");
    w.expect(b, "set page:1 0 0 3|old|", "STORED|");
    w.expect(writer, "get page:1|", "END|");
    assert_eq!((w.count("fills_dropped"), w.count("fills_dropped_old")), (1, 1));
}

#[test]
fn a_client_that_gives_up_waiting_may_compute() {
    for (orderly, on_busy) in
        [(true, OnBusy::Miss), (true, OnBusy::Error), (false, OnBusy::Miss), (false, OnBusy::Error)]
    {
        let mut w = World::new(&[("page:{id}", Policy { on_busy, ..policy() })]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        // Its client does not wait as long as the server holds the get, and takes this for a miss.
        w.close(b, orderly);
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, "delete page:1|", "DELETED|");
        w.expect(c, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, "get page:1|", "END|");
    }
}

#[test]
fn a_client_that_gives_up_waiting_may_compute_the_keys_that_were_there() {
    for orderly in [true, false] {
        let mut w = World::new(&[("page:{id}", Policy { hold_many_ms: 2000, ..policy() })]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        w.expect(writer, "set page:1 0 0 3|old|set other 0 0 1|x|", "STORED|STORED|");
        w.expect(a, "get page:2|", "END|");
        // Held for one of them, the client has seen none.
        w.expect(b, "get page:2 page:1 other|", "");
        w.close(b, orderly);
        w.expect(writer, "delete page:1|", "DELETED|");
        w.expect(c, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, "get page:1|", "END|");
    }
}

#[test]
fn a_client_that_gives_up_waiting_may_compute_the_keys_that_came_meanwhile() {
    for orderly in [true, false] {
        let mut w = World::new(&[("page:{id}", Policy { hold_many_ms: 2000, ..policy() })]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        w.expect(a, "get page:1|get page:2|", "END|END|");
        w.expect(b, "get page:1 page:2|", "");
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.close(b, orderly);
        w.expect(writer, "delete page:1|", "DELETED|");
        w.expect(c, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, "get page:1|", "END|");
    }
}

#[test]
fn a_get_that_was_answered_withholds_nothing_any_more() {
    let mut w = World::new(&[("page:{id}", Policy { hold_many_ms: 2000, ..policy() })]);
    let [a, b, c, writer] = [(); 4].map(|()| w.connect());
    w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
    w.expect(a, "get page:2|", "END|");
    w.expect(b, "get page:2 page:1|", "");
    w.expect(a, "set page:2 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:2 0 1|x|VALUE page:1 0 3|old|END|");
    w.close(b, true);
    w.expect(writer, "delete page:1|", "DELETED|");
    w.expect(c, "set page:1 0 0 3|new|get page:1|", "STORED|VALUE page:1 0 3|new|END|");
}

#[test]
fn a_key_that_is_busy_behind_a_part_that_was_sent_is_a_miss() {
    for owner in [Owner::Key, Owner::Connection] {
        let policy = Policy { owner, hold_ms: 0, on_busy: OnBusy::Error, ..policy() };
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b, writer] = [(); 3].map(|()| w.connect());
        w.expect(writer, "set other 0 0 3|xxx|", "STORED|");
        // After an error computations are a second apart: the second one fails in the same second.
        for _ in 0..2 {
            let won = w.ask(a, "mg page:1 c N30|");
            let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
            w.expect(a, &format!("md page:1 C{token} Peno|"), "HD|");
        }
        w.expect(b, "get page:1|", "SERVER_ERROR busy|");
        w.expect(b, "get other page:1|", "SERVER_ERROR busy|");
        // When the first value has been sent, it is too late for an error.
        w.most = 10;
        w.expect(b, "get other page:1|", "VALUE other 0 3|xxx|END|");
        w.expect(writer, "delete page:1|", "NOT_FOUND|");
        w.expect(b, "set page:1 0 0 3|old|get page:1|", "STORED|END|");
    }
}

#[test]
fn a_get_of_more_keys_than_can_be_withheld_is_not_held() {
    let mut w = World::new(&[("page:{id}", Policy { hold_many_ms: 2000, ..policy() })]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:x|", "END|");
    let keys = |count: usize| (1..count).map(|n| format!(" k{n}")).collect::<Vec<_>>().concat();
    w.expect(b, &format!("get page:x{}|", keys(RECORDS_MAX)), "");
    w.expect(c, &format!("get page:x{}|", keys(RECORDS_MAX + 1)), "END|");
}

#[test]
fn a_miss_of_a_closed_connection_costs_its_key_one_computation_after_a_delete() {
    for ambiguous in [Ambiguous::Drop, Ambiguous::Serve] {
        let fill_window = FillWindow::Fixed(1000);
        let policy = Policy { fill_window, lease: LeaseTime::Fixed(500), hold_ms: 0, ambiguous, ..policy() };
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b, writer] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.close(a, true);
        w.expect(writer, "delete page:1|", "NOT_FOUND|");
        let mut waited = 0;
        while w.ask(b, "get page:1|set page:1 0 0 3|new|get page:1|") == "END|STORED|END|" {
            assert!(waited < 2000, "{ambiguous:?}");
            w.pass(100);
            waited += 100;
        }
        assert_eq!((waited, w.count("fills_dropped_ambiguous"), w.count("fills_proved")), (100, 1, 1));
    }
}

#[test]
fn each_verdict_is_counted() {
    let policy = Policy { lease: LeaseTime::Fixed(500), hold_ms: 0, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b, c, writer] = [(); 4].map(|()| w.connect());
    let verdicts = |w: &World| {
        ["stored", "proved", "provisional", "dropped_old", "dropped_ambiguous"]
            .map(|verdict| w.count(&format!("fills_{verdict}")))
    };
    w.expect(a, "get page:1|set page:1 0 0 1|x|", "END|STORED|");
    assert_eq!(verdicts(&w), [1, 0, 0, 0, 0]);
    // No miss came after the delete.
    w.expect(a, "get page:2|", "END|");
    w.expect(writer, "delete page:2|", "NOT_FOUND|");
    w.expect(a, "set page:2 0 0 1|x|get page:2|", "STORED|END|");
    assert_eq!(verdicts(&w), [1, 0, 0, 1, 0]);
    // Another client's miss is from before the delete, and its value is probably the first to come.
    w.expect(b, "delete page:2|", "NOT_FOUND|");
    w.expect(c, "get page:3|", "END|");
    w.expect(writer, "delete page:3|", "NOT_FOUND|");
    w.expect(b, "get page:3|set page:3 0 0 1|x|get page:3|", "END|STORED|END|");
    assert_eq!(verdicts(&w), [1, 0, 0, 1, 1]);
    // A different one is shown for a time.
    w.expect(b, "set page:3 0 0 1|y|get page:3|", "STORED|VALUE page:3 0 1|y|END|");
    assert_eq!(verdicts(&w), [2, 0, 1, 1, 1]);
    // The same as the first: one of the two is new.
    w.expect(a, "set page:3 0 0 1|x|get page:3|", "STORED|VALUE page:3 0 1|x|END|");
    assert_eq!(verdicts(&w), [3, 1, 1, 1, 1]);
    assert_eq!((w.count("fills_own"), w.count("fills_crossed")), (4, 1));
}

#[test]
fn misses_of_a_connection_beyond_what_it_remembers_change_nothing_for_other_keys() {
    for owner in [Owner::Key, Owner::Connection] {
        for misses in [RECORDS_MAX + 76, 10_000] {
            // A ledger with room for all of them.
            let config = RulesConfig { ledger_bytes: 32 << 20, ..world::config() };
            let rules = [("page:{id}", Policy { owner, hold_ms: 0, ..policy() })];
            let mut w = World::with(&rules, &config, 128 << 20, 4);
            let [a, writer] = [(); 2].map(|()| w.connect());
            for n in 0..misses {
                w.expect(a, &format!("get page:{n}|"), "END|");
            }
            // A key that this connection has not missed.
            w.expect(writer, "delete page:90000|", "NOT_FOUND|");
            w.expect(a, "set page:90000 0 0 3|new|get page:90000|", "STORED|VALUE page:90000 0 3|new|END|");
            // A key that it has missed, the last one: its fill is dropped as usual.
            let last = misses - 1;
            w.expect(writer, &format!("delete page:{last}|"), "NOT_FOUND|");
            w.expect(a, &format!("set page:{last} 0 0 3|old|get page:{last}|"), "STORED|END|");
            let before = misses - 2;
            w.expect(a, &format!("set page:{before} 0 0 1|x|"), "STORED|");
            w.expect(a, &format!("get page:{before}|"), &format!("VALUE page:{before} 0 1|x|END|"));
            // After a window no trace is left.
            w.pass(61_000);
            w.expect(writer, "delete page:5|", "NOT_FOUND|");
            w.expect(a, "set page:5 0 0 3|new|get page:5|", "STORED|VALUE page:5 0 3|new|END|");
        }
    }
}

/// Without grace it is as strict as a delete for a get that was sent after it.
#[test]
fn a_get_held_between_two_soft_invalidations_is_not_given_a_value_from_before_both() {
    for (event, token) in
        [("md page:1 I|", false), ("md page:1 I|", true), ("md page:1 G I|", false), ("md page:1 G I|", true)]
    {
        let owner = if token { Owner::Key } else { Owner::Connection };
        let mut w = World::new(&[("page:{id}", Policy { owner, ..policy() })]);
        let [a, b, c, d, writer] = [(); 5].map(|()| w.connect());
        let reply = w.ask(a, "mg page:1 c v N30|");
        let number = reply.split([' ', '|']).find_map(|word| word.strip_prefix('c')).unwrap().to_owned();
        w.expect(b, "get page:1|", "");
        w.ask(writer, event);
        w.pass(10);
        assert_eq!(w.replies(b), "END|", "{event}: the next waiter gets the lease");
        w.expect(c, "get page:1|", "");
        w.expect(d, "get page:1|", "");
        w.ask(writer, event);
        w.pass(10);
        assert_eq!((w.replies(c).as_str(), w.replies(d).as_str()), ("END|", ""), "{event}");
        let by = if token { format!(" C{number}") } else { String::new() };
        w.expect(a, &format!("ms page:1 3{by}|old|"), "HD|");
        assert_eq!(w.replies(d), "", "{event}, by token: {token}: it asked after the first invalidation");
        w.expect(c, "set page:1 0 0 3|new|", "STORED|");
        assert_eq!(w.replies(d), "VALUE page:1 0 3|new|END|", "{event}, by token: {token}");
    }
}

/// pymemcache with `ignore_exc` returns a miss in place of an error.
#[test]
fn a_client_that_takes_a_busy_error_for_a_miss_may_compute() {
    for ask in ["get page:1|", "gets page:1|", "gat 9 page:1|", "mg page:1 v|"] {
        // Answered at once, when its time is up, and when its client sends no more.
        for ends in ["at once", "in time", "released"] {
            for owner in [Owner::Key, Owner::Connection] {
                let hold_ms = if ends == "at once" { 0 } else { 400 };
                let policy = Policy { owner, hold_ms, max_computers: 1, on_busy: OnBusy::Error, ..policy() };
                let mut w = World::new(&[("page:{id}", policy)]);
                let [a, b, c, writer] = [(); 4].map(|()| w.connect());
                w.expect(a, "get page:1|", "END|");
                w.send(b, ask);
                match ends {
                    "in time" => w.pass(400),
                    "released" => w.release(b),
                    _ => {}
                }
                assert_eq!(w.replies(b), "SERVER_ERROR busy|", "{ask} {owner:?}, {ends}");
                w.expect(a, "set page:1 0 0 3|old|", "STORED|");
                w.expect(writer, "delete page:1|", "DELETED|");
                let by = if ends == "released" { c } else { b };
                if by == c && owner == Owner::Connection {
                    continue;
                }
                w.expect(by, "set page:1 0 0 3|old|", "STORED|");
                assert_eq!(w.ask(writer, "get page:1|"), "END|", "{ask} {owner:?}, {ends}");
            }
        }
    }
}

#[test]
fn a_client_that_takes_a_busy_error_for_misses_may_compute_the_keys_that_were_there() {
    for owner in [Owner::Key, Owner::Connection] {
        for many in [false, true] {
            // Held for one of the keys until its time is up, or not at all.
            let hold_many_ms = if many { 100 } else { 0 };
            let hold_ms = if many { 400 } else { 0 };
            let policy =
                Policy { owner, hold_ms, hold_many_ms, max_computers: 1, on_busy: OnBusy::Error, ..policy() };
            let mut w = World::new(&[("page:{id}", policy)]);
            let [a, b, writer] = [(); 3].map(|()| w.connect());
            w.expect(writer, "set page:1 0 0 3|old|set page:3 0 0 3|old|", "STORED|STORED|");
            w.expect(a, "get page:2|", "END|");
            w.send(b, "get page:1 page:2 page:3|");
            w.pass(100);
            assert_eq!(w.replies(b), "SERVER_ERROR busy|", "{owner:?}, held: {many}");
            w.expect(a, "set page:2 0 0 3|old|", "STORED|");
            for key in ["page:1", "page:2", "page:3"] {
                w.expect(writer, &format!("delete {key}|"), "DELETED|");
                w.expect(b, &format!("set {key} 0 0 3|old|"), "STORED|");
                assert_eq!(w.ask(writer, &format!("get {key}|")), "END|", "{owner:?}, held: {many}, {key}");
            }
        }
    }
}

/// Its client is answered when the rule goes; or no worker has looked before it is back, and the client gives
/// up waiting and sets on another connection or on the same.
#[test]
fn a_get_held_while_its_rule_goes_and_comes_back_leaves_no_gap() {
    for owner in [Owner::Key, Owner::Connection] {
        for ambiguous in [Ambiguous::Serve, Ambiguous::Drop] {
            for then in ["answered", "on another connection", "on the same connection"] {
                let policy = Policy { owner, ambiguous, ..policy() };
                let mut w = World::new(&[("page:{id}", policy)]);
                let [a, b, c, writer] = [(); 4].map(|()| w.connect());
                let reply = w.ask(a, "mg page:1 c v N30|");
                let number = reply.split([' ', '|']).find_map(|word| word.strip_prefix('c')).unwrap();
                w.expect(b, "get page:1|", "");
                if then == "answered" {
                    w.set_rules(&[]);
                    assert_eq!(w.replies(b), "END|");
                } else {
                    w.swap_rules(&[]);
                }
                // Without rules the delete is not noted.
                w.expect(writer, "delete page:1|", "NOT_FOUND|");
                w.swap_rules(&[("page:{id}", policy)]);
                let by = if then == "on another connection" { c } else { b };
                if by == c {
                    w.close(b, false);
                }
                // The holder's value comes before it or after it, and is known to be old: its miss is off the
                // record.
                let is_held = then == "on the same connection";
                if is_held {
                    w.send(by, "set page:1 0 0 3|old|");
                }
                let said = w.ask(a, &format!("ms page:1 3 C{number}|old|"));
                assert!(said == "NF|" || said == "EX|", "{said}");
                if !is_held {
                    w.send(by, "set page:1 0 0 3|old|");
                }
                let shown = w.ask(writer, "get page:1|");
                assert!(!shown.contains("old"), "{owner:?} {ambiguous:?} {then}: {shown}");
            }
        }
    }
}

/// A thread gives up waiting on a connection that others use as well, computes, and stores while its get is
/// still held.
#[test]
fn a_set_on_the_connection_of_a_held_get_counts_as_of_its_beginning() {
    for owner in [Owner::Key, Owner::Connection] {
        for set in ["set page:1 0 0 3|old|", "add page:1 0 0 3|old|", "ms page:1 3|old|"] {
            let mut w = World::new(&[("page:{id}", Policy { owner, ..policy() })]);
            let [a, b, c, writer] = [(); 4].map(|()| w.connect());
            let reply = w.ask(a, "mg page:1 c v N30|");
            let number = reply.split([' ', '|']).find_map(|word| word.strip_prefix('c')).unwrap();
            w.expect(b, "get page:1|", "");
            w.expect(c, "get page:1|", "");
            w.expect(writer, "delete page:1|", "NOT_FOUND|");
            assert_eq!((w.replies(b).as_str(), w.replies(c).as_str()), ("END|", ""));
            // Known to be old: its miss is off the record.
            w.expect(a, &format!("ms page:1 3 C{number}|old|"), "NF|");
            let said = w.ask(c, set);
            assert!(said.starts_with("END|"), "{owner:?} {set}: {said}");
            let shown = w.ask(writer, "get page:1|");
            assert!(!shown.contains("old"), "{owner:?} {set}: {shown}");
            w.expect(b, "set page:1 0 0 3|new|", "STORED|");
        }
    }
}

/// A delete came while it waited: what it has computed meanwhile is old.
#[test]
fn a_client_that_gives_up_waiting_has_missed_its_key_when_it_asked() {
    for (orderly, on_busy) in
        [(true, OnBusy::Miss), (true, OnBusy::Error), (false, OnBusy::Miss), (false, OnBusy::Error)]
    {
        let mut w = World::new(&[("page:{id}", Policy { on_busy, ..policy() })]);
        let [a, b, c, d, writer] = [(); 5].map(|()| w.connect());
        let reply = w.ask(a, "mg page:1 c v N30|");
        let number = reply.split([' ', '|']).find_map(|word| word.strip_prefix('c')).unwrap();
        w.expect(b, "get page:1|", "");
        w.expect(c, "get page:1|", "");
        w.expect(writer, "delete page:1|", "NOT_FOUND|");
        assert_eq!((w.replies(b).as_str(), w.replies(c).as_str()), ("END|", ""));
        // Known to be old: its miss is off the record.
        w.expect(a, &format!("ms page:1 3 C{number}|old|"), "NF|");
        w.close(c, orderly);
        w.expect(d, "set page:1 0 0 3|old|", "STORED|");
        let shown = w.ask(writer, "get page:1|");
        assert!(!shown.contains("old"), "orderly: {orderly}, {on_busy:?}: {shown}");
    }
}

/// A delete came while it waited for another key.
#[test]
fn a_client_that_gives_up_waiting_has_missed_the_keys_that_were_there_when_it_asked() {
    for orderly in [true, false] {
        let mut w = World::new(&[("page:{id}", Policy { hold_many_ms: 2000, ..policy() })]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        w.expect(writer, "set page:1 0 0 3|old|", "STORED|");
        w.expect(a, "get page:2|", "END|");
        w.expect(b, "get page:2 page:1|", "");
        w.expect(writer, "delete page:1|", "DELETED|");
        w.close(b, orderly);
        w.expect(c, "set page:1 0 0 3|old|", "STORED|");
        let shown = w.ask(writer, "get page:1|");
        assert_eq!(shown, "END|", "orderly: {orderly}");
    }
}
