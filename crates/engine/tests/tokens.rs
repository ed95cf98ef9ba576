//! Leases that clients ask for by name: tokens, failures, and their replies. One scene each, on a simulated
//! clock.

#![allow(clippy::many_single_char_names, reason = "connections a, b, c")]

use crate::world;

use cattlegrid_herd::{FillWindow, LeaseTime, OnBusy, Owner, Policy};
use world::World;

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

#[test]
fn a_client_that_was_answered_a_miss_asks_for_the_lease() {
    let mut w = World::new(&[("page:{id}", Policy::default())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    // Another connection may be another thread, which computes.
    w.expect(c, "mg page:1 v N30|", "VA 0 Z||");
    let won = w.ask(a, "mg page:1 v c N30|");
    let token: u64 = won.strip_prefix("VA 0 c").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(won, format!("VA 0 c{token} W||"));
    // It knows its token from now on.
    w.expect(a, "mg page:1 v N30|", "VA 0 Z||");
    w.expect(a, &format!("ms page:1 3 C{token}|new|"), "HD|");
    assert_eq!(w.replies(b), "VALUE page:1 0 3|new|END|");
    w.check();
}

#[test]
fn leases_by_name() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 v c N30 Phfast|");
    let token: u64 = won.strip_prefix("VA 0 c").unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(won, format!("VA 0 c{token} W Phfast||"));
    w.expect(b, "mg page:1 v c N30|", "VA 0 c0 Z||");
    w.expect(b, "mg page:1 v N30 Pw400|", "");
    w.expect(c, "get page:1|", "");
    w.expect(a, &format!("ms page:1 2 C{token}|hi|"), "HD|");
    assert_eq!(w.replies(b), "VA 2|hi|");
    assert_eq!(w.replies(c), "VALUE page:1 0 2|hi|END|");
    w.expect(a, &format!("ms page:1 2 C{token}|ho|"), "EX|");
    w.expect(b, "mg page:1 v c N30|", &format!("VA 2 c{}|hi|", token + 1));
}

#[test]
fn an_error_reaches_the_clients_that_asked_for_the_lease() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c, d] = [(); 4].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 c N30|");
    let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
    w.expect(b, "mg page:1 v N30 Pw400|", "");
    w.expect(c, "get page:1|", "");
    w.expect(a, &format!("md page:1 C{token} Peout%20of%20paper|"), "HD|");
    assert_eq!(w.replies(b), "EN Peout%20of%20paper|");
    assert_eq!(w.replies(c), "END|", "it computes");
    w.expect(a, &format!("md page:1 C{token} Pe|"), "NF|");
    w.expect(d, "get page:1|", "");
    w.expect(c, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(d), "VALUE page:1 0 1|x|END|");
}

#[test]
fn tokens_of_keys_that_are_let_pass_differ() {
    let mut w = World::new(&[("page:{id}", Policy { lease: LeaseTime::Fixed(500), ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    for _ in 0..2 {
        w.expect(a, "get page:1|", "END|");
        w.pass(500);
    }
    let (first, second) = (w.ask(a, "mg page:1 c N30|"), w.ask(b, "mg page:1 c N30|"));
    assert!(first.ends_with(" W|") && second.ends_with(" W|") && first != second, "{first} {second}");
}

#[test]
fn a_client_that_asked_for_the_lease_is_told_that_it_did_not_get_it() {
    let policy = Policy { lease: LeaseTime::Fixed(500), pass_after: 1, hold_ms: 5000, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "mg page:1 v N30 Pw1000|", "");
    w.pass(500);
    assert_eq!((w.count("pass_entered"), w.replies(b)), (1, "VA 0 Z||".into()));
    w.expect(a, "get page:2|", "END|");
    w.expect(b, "mg page:2 v N30 Pw1000|", "");
    w.expect(a, "ms page:2 0 n T10||", "HD|");
    assert_eq!(w.replies(b), "EN|", "known to be absent");
}

#[test]
fn after_an_error_the_next_computes_at_once_and_then_one_per_back_off() {
    let mut w = World::new(&[("page:{id}", Policy { on_busy: OnBusy::Error, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    for _ in 0..2 {
        let won = w.ask(a, "mg page:1 c N30|");
        assert!(won.ends_with(" W|"), "{won}");
        let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
        w.expect(a, &format!("md page:1 C{token} Pe|"), "HD|");
    }
    w.expect(b, "get page:1|", "SERVER_ERROR busy|");
    w.pass(1000);
    w.expect(b, "get page:1|", "END|");
}

#[test]
fn a_late_token_takes_no_other_miss_with_it() {
    let policy = Policy { fill_window: FillWindow::Fixed(1000), lease: LeaseTime::Fixed(1000), ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b, c, writer] = [(); 4].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 c N1|");
    let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
    w.pass(1500);
    w.expect(b, "get page:1|", "END|");
    w.expect(writer, "delete page:1|", "NOT_FOUND|");
    w.expect(a, &format!("ms page:1 1 C{token}|x|"), "NF|");
    w.expect(c, "set page:1 0 0 3|old|", "STORED|");
    w.expect(writer, "get page:1|", "END|");
}

#[test]
fn a_token_of_another_connection_takes_no_own_miss_with_it() {
    let mut w = World::new(&[("page:{id}", Policy { owner: Owner::Connection, ..policy() })]);
    let [a, b, writer] = [(); 3].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 c N30|");
    let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
    w.expect(b, "mg page:1 c N30|", "HD c0 Z|");
    w.expect(b, &format!("ms page:1 1 C{token}|x|"), "HD|");
    w.expect(writer, "delete page:1|", "DELETED|");
    w.expect(b, "set page:1 0 0 3|old|", "STORED|");
    w.expect(writer, "get page:1|", "END|");
}

#[test]
fn a_token_used_after_its_connection_closed_takes_no_other_miss_with_it() {
    let mut w = World::new(&[("page:{id}", Policy { hold_ms: 0, ..policy() })]);
    let [a, b, c, d] = [(); 4].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 c N30|");
    let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
    w.expect(b, "get page:1|", "END|");
    w.close(a, false);
    w.expect(c, &format!("ms page:1 3 C{token}|old|"), "HD|");
    w.expect(c, "delete page:1|", "DELETED|");
    w.expect(d, "set page:1 0 0 3|old|", "STORED|");
    w.expect(c, "get page:1|", "END|");
}

#[test]
fn a_token_used_after_its_window_takes_no_other_miss_with_it() {
    let policy = Policy {
        lease: LeaseTime::Fixed(60_000),
        fill_window: FillWindow::Fixed(1000),
        hold_ms: 0,
        ..policy()
    };
    for wait_ms in [0, 61_000] {
        let mut w = World::new(&[("page:{id}", policy)]);
        let [a, b, c, writer] = [(); 4].map(|()| w.connect());
        let won = w.ask(a, "mg page:1 c N30 Pl60000|");
        let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
        w.pass(wait_ms);
        // The clock has not moved: this miss notes the token's number.
        w.expect(b, "get page:1|", "END|");
        w.expect(a, &format!("ms page:1 1 C{token}|x|"), if wait_ms == 0 { "HD|" } else { "NF|" });
        w.expect(writer, "delete page:1|", if wait_ms == 0 { "DELETED|" } else { "NOT_FOUND|" });
        w.expect(c, "set page:1 0 0 3|old|", "STORED|");
        w.expect(writer, "get page:1|", "END|");
    }
}

#[test]
fn an_answer_with_a_failure_counts_as_a_miss() {
    for owner in [Owner::Key, Owner::Connection] {
        let mut w = World::new(&[("page:{id}", Policy { owner, ..policy() })]);
        let [a, b, c] = [(); 3].map(|()| w.connect());
        let won = w.ask(a, "mg page:1 c N30|");
        let token = won.split(['c', ' ']).nth(2).unwrap().to_owned();
        w.expect(b, "mg page:1 v N30 Pw400|", "");
        w.expect(a, &format!("md page:1 C{token} Peno|"), "HD|");
        assert_eq!(w.replies(b), "EN Peno|");
        w.expect(c, "delete page:1|", "NOT_FOUND|");
        w.expect(b, "set page:1 0 0 3|old|", "STORED|");
        w.expect(c, "get page:1|", "END|");
    }
}

/// Without a text nothing has failed: the clients that wait are not told, and the one that has waited longest
/// computes, with the first hint.
#[test]
fn a_lease_that_is_given_up_without_a_text_passes_on() {
    let mut w = World::new(&[("page:{id}", policy())]);
    let [a, b, c] = [(); 3].map(|()| w.connect());
    let won = w.ask(a, "mg page:1 c N30 Phfirst|");
    let token: u64 = won.split(['c', ' ']).nth(2).unwrap().parse().unwrap();
    w.expect(b, "mg page:1 v c N30 Pw400,hsecond|", "");
    w.expect(c, "mg page:1 v N30 Pw400|", "");
    w.expect(a, &format!("md page:1 C{token}|"), "HD|");
    let won = w.replies(b);
    assert!(won.starts_with("VA 0 c") && won.contains(" W Phfirst|"), "{won}");
    assert_eq!(w.replies(c), "", "it waits");
    let next: u64 = won.split(['c', ' ']).nth(3).unwrap().parse().unwrap();
    w.expect(a, &format!("ms page:1 2 C{token}|ho|"), "NF|");
    w.expect(b, &format!("ms page:1 2 C{next}|hi|"), "HD|");
    assert_eq!(w.replies(c), "VA 2|hi|");
    // Given up again, and nothing delays the next.
    let other = w.ask(a, "mg page:2 c N30|");
    let token: u64 = other.split(['c', ' ']).nth(2).unwrap().parse().unwrap();
    w.expect(a, &format!("md page:2 C{token}|"), "HD|");
    let won = w.ask(b, "mg page:2 c N30|");
    assert!(won.ends_with(" W|"), "{won}");
}

#[test]
fn a_negative_answer_from_before_a_soft_invalidation_is_not_given_after_it() {
    for grace_s in [0, 30] {
        for event in ["md page:1 I|", "md page:1 G I|"] {
            for owner in [Owner::Key, Owner::Connection] {
                for token in [false, true] {
                    let scene = format!("grace {grace_s}, {event}, {owner:?}, by token: {token}");
                    let mut w = World::new(&[("page:{id}", Policy { grace_s, owner, ..policy() })]);
                    let [a, b, writer] = [(); 3].map(|()| w.connect());
                    let reply = w.ask(a, "mg page:1 c v N30|");
                    let number = reply.split([' ', '|']).find_map(|word| word.strip_prefix('c')).unwrap();
                    let by = if token { format!(" C{number}") } else { String::new() };
                    w.ask(writer, event);
                    w.pass(10);
                    w.expect(a, &format!("ms page:1 0 T30 n{by}||"), "HD|");
                    let won = w.ask(b, "mg page:1 v N30|");
                    assert!(won.starts_with("VA 0 W"), "{scene}: {won}");
                    w.expect(b, "set page:1 0 0 3|new|", "STORED|");
                    w.expect(a, "get page:1|", "VALUE page:1 0 3|new|END|");
                    // A lease that was there before ends with the invalidation.
                    w.expect(a, "delete page:1|", "DELETED|");
                    w.expect(a, "mg page:1 v N30|", "VA 0 W||");
                    w.expect(a, "ms page:1 0 T30 n||mg page:1 v N30|", "HD|EN|");
                    w.ask(writer, event);
                    w.pass(10);
                    w.expect(b, "mg page:1 v N30|", "VA 0 W||");
                }
            }
        }
    }
}
