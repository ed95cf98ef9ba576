//! Old values that are given to clients in place of new ones: after a time (`wait`), and while computing
//! fails (`grace_on_error`), on a simulated clock.

#![allow(clippy::many_single_char_names, reason = "connections a, b, c")]

use crate::world;

use cattlegrid_engine::{LoadFailure, LoadOutcome};
use cattlegrid_herd::{Early, LeaseTime, OnBusy, Owner, Policy};
use world::World;

const OLD: &str = "VALUE page:1 0 3|old|END|";
const NEW: &str = "VALUE page:1 0 3|new|END|";

/// Under this rule `page:1` has an old value and no lease.
fn expired(policy: Policy) -> World {
    let mut w = World::new(&[("page:{id}", policy)]);
    let writer = w.connect();
    w.expect(writer, "set page:1 0 10 3|old|", "STORED|");
    w.pass(10_000);
    w
}

fn waiting() -> Policy {
    Policy { wait_ms: 50, grace_s: 60, hold_ms: 0, lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

#[test]
fn a_get_waits_for_the_new_value_before_it_gets_the_old_one() {
    let mut w = expired(waiting());
    let [a, b, c, d] = [(); 4].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.expect(c, "gets page:1|", "");
    w.expect(d, "mg page:1 v t|", "");
    w.pass(49);
    assert_eq!(w.replies(b), "");
    w.pass(1);
    assert_eq!(w.replies(b), OLD);
    assert_eq!(w.replies(c), "VALUE page:1 0 3 1|old|END|");
    assert_eq!(w.replies(d), "VA 3 t-1 Z X|old|".replace("t-1", "t0"));
    assert_eq!((w.count("held"), w.count("held_old"), w.count("stale_served")), (3, 3, 3));
    w.expect(b, "get page:1|", "");
    w.expect(c, "gat 100 page:1|", "");
    w.expect(a, "set page:1 0 60 3|new|", "STORED|");
    assert_eq!(w.replies(b), NEW);
    assert_eq!(w.replies(c), NEW);
    assert_eq!((w.count("held_filled"), w.count("computes_saved")), (2, 5));
    w.expect(d, "get page:1|", NEW);
    w.check();
}

#[test]
fn a_client_shortens_its_wait_for_a_new_value() {
    let mut w = expired(waiting());
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "mg page:1 v Pw20|", "");
    w.expect(c, "mg page:1 v Pw0|", "VA 3 Z X|old|");
    w.pass(20);
    assert_eq!(w.replies(b), "VA 3 Z X|old|");
    w.check();
}

#[test]
fn a_client_that_asks_for_the_lease_waits_as_long_as_it_says() {
    let mut w = expired(waiting());
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "mg page:1 v N30|", "VA 3 Z X|old|");
    w.expect(b, "mg page:1 v N30 Pw400|", "VA 3 Z X|old|");
}

#[test]
fn waiting_that_cannot_help_is_left_out() {
    // It is known that computing takes longer.
    let mut w = expired(waiting());
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.pass(200);
    w.expect(a, "set page:1 0 1 3|old|", "STORED|");
    w.pass(1000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", OLD);
    w.pass(160);
    w.expect(b, "get page:1|", "");
    w.pass(50);
    assert_eq!(w.replies(b), OLD);
    // No place.
    let mut w = expired(Policy { max_waiters: 1, ..waiting() });
    let [a, d] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(d, "get page:1|", "");
    let e = w.connect();
    w.expect(e, "get page:1|", OLD);
    assert_eq!(w.count("busy_waiters"), 0, "it did not compute");
    // A finished reply waits behind it.
    let mut w = expired(Policy { wait_ms: 1000, hold_behind_ms: 20, ..waiting() });
    let [a, c] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(c, "get page:1|set other 0 0 1|x|", "");
    w.pass(20);
    assert!(w.replies(c).starts_with(OLD));
    w.check();
}

#[test]
fn a_wait_for_a_new_value_ends_with_the_old_one_whatever_ends_it() {
    let scene = || {
        let mut w = expired(Policy { wait_ms: 1000, ..waiting() });
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        (w, a, b)
    };
    // Its client sends no more.
    let (mut w, _, b) = scene();
    w.release(b);
    assert_eq!((w.replies(b), w.count("released")), (OLD.to_owned(), 1));
    // Its own connection writes the key.
    let (mut w, _, b) = scene();
    w.expect(b, "set page:1 0 0 3|new|", &format!("{OLD}STORED|"));
    w.expect(b, "get page:1|", NEW);
    // The holder is gone: it computes.
    let (mut w, a, b) = scene();
    w.close(a, false);
    assert_eq!(w.replies(b), "END|");
    // The holder's time is up: it computes.
    let (mut w, _, b) = scene();
    let c = w.connect();
    w.pass(900);
    w.expect(c, "get page:1|", "");
    w.pass(99);
    assert_eq!(w.replies(b), "");
    w.pass(1);
    assert_eq!(w.replies(b), OLD);
    w.pass(3000);
    assert_eq!(w.replies(c), OLD);
    // The value was deleted: it computes, or waits until its time is up.
    let (mut w, a, b) = scene();
    let [c, d] = [(); 2].map(|()| w.connect());
    w.expect(c, "get page:1|", "");
    w.expect(a, "delete page:1|", "DELETED|");
    assert_eq!(w.replies(b), "END|", "it has the lease");
    w.pass(1000);
    assert_eq!(w.replies(c), "END|", "there is no value any more");
    w.expect(d, "get page:1|", "END|");
    // The rule is gone.
    let (mut w, _, b) = scene();
    w.set_rules(&[]);
    assert_eq!(w.replies(b), "END|");
    // Under other terms it keeps waiting.
    let (mut w, a, b) = scene();
    w.set_rules(&[("page:{id}", Policy { wait_ms: 0, ..waiting() })]);
    assert_eq!(w.replies(b), "");
    w.expect(a, "set page:1 0 0 3|new|", "STORED|");
    assert_eq!(w.replies(b), NEW);
}

#[test]
fn a_get_of_several_keys_waits_once() {
    for with_holds in [false, true] {
        let hold_ms = if with_holds { 400 } else { 0 };
        let policy = Policy { hold_ms, hold_many_ms: hold_ms / 2, ..waiting() };
        let mut w = expired(policy);
        let [a, b, c] = [(); 3].map(|()| w.connect());
        w.expect(a, "set page:0 0 0 1|0|set page:2 0 0 1|2|get page:1|", "STORED|STORED|END|");
        let all = "get page:0 page:1 page:2|";
        w.expect(b, all, "");
        w.pass(50);
        assert_eq!(w.replies(b), "VALUE page:0 0 1|0|VALUE page:1 0 3|old|VALUE page:2 0 1|2|END|");
        // One of its keys is missing, and it is the one to compute it: it does not wait.
        w.expect(
            b,
            "get page:0 page:1 page:2 page:3|",
            "VALUE page:0 0 1|0|VALUE page:1 0 3|old|VALUE page:2 0 1|2|END|",
        );
        if with_holds {
            // Another client computes one that has no value: it waits for both.
            w.expect(c, "get page:3 page:1 page:0|", "");
            w.pass(199);
            assert_eq!(w.replies(c), "");
            w.pass(1);
            assert_eq!(w.replies(c), "VALUE page:1 0 3|old|VALUE page:0 0 1|0|END|");
            w.expect(c, "get page:3 page:1 page:0|", "");
            w.expect(b, "set page:3 0 0 1|3|", "STORED|");
            w.expect(a, "set page:1 0 0 3|new|", "STORED|");
            assert_eq!(w.replies(c), "VALUE page:3 0 1|3|VALUE page:1 0 3|new|VALUE page:0 0 1|0|END|");
        }
        w.check();
    }
}

#[test]
fn quiet_gets_wait_once_and_keep_their_order() {
    let mut w = expired(waiting());
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:0 0 0 1|0|set page:2 0 0 1|2|get page:1|", "STORED|STORED|END|");
    let run = "mg page:0 v k q|mg page:1 v k q|mg page:2 v k q|mn|";
    w.expect(b, run, "VA 1 kpage:0|0|");
    w.pass(50);
    assert_eq!(w.replies(b), "VA 3 kpage:1 Z X|old|VA 1 kpage:2|2|MN|");
    let said = w.ask(b, "mg page:3 v k q|mg page:1 v k q|mg page:2 v k q|mn|");
    assert_eq!(said, "VA 3 kpage:1 Z X|old|VA 1 kpage:2|2|MN|", "it computes one of them");
}

#[test]
fn clients_of_a_loader_wait_for_it() {
    let mut w = expired(Policy { loader: true, hold_ms: 400, ..waiting() });
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let token = w.tokens()[0];
    assert_eq!(w.raised, [token], "a client waits for the refresh");
    w.expect(b, "get page:1|", "");
    w.pass(50);
    assert_eq!((w.replies(a), w.replies(b)), (OLD.to_owned(), OLD.to_owned()));
    w.expect(b, "get page:1|", "");
    assert_eq!(w.finish_with(token, "new"), LoadOutcome::Stored);
    assert_eq!(w.replies(b), NEW);
}

fn failing() -> Policy {
    Policy {
        grace_s: 5,
        grace_on_error_s: 3600,
        hold_ms: 400,
        lease: LeaseTime::Fixed(1000),
        owner: Owner::Key,
        ..Policy::default()
    }
}

#[test]
fn an_old_value_is_served_while_computing_fails() {
    // It has failed within the grace already: after its end all get the old value, until the back-off is
    // over.
    let mut w = expired(failing());
    let [a, b, c, d] = [(); 4].map(|()| w.connect());
    w.pass(4_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", OLD);
    w.pass(1_000);
    w.expect(b, "get page:1|", OLD);
    assert_eq!((w.count("unset"), w.count("stale_on_error")), (1, 1));
    w.pass(1_000);
    w.expect(b, "get page:1|", "END|");
    w.expect(c, "get page:1|", OLD);
    // It has not: past the grace it is as if there was none.
    let mut w = expired(failing());
    let [a, b, c, d] = [a, b, c, d].map(|_| w.connect());
    w.pass(5_000);
    w.expect(b, "get page:1|", "END|");
    w.expect(c, "get page:1|", "");
    w.pass(400);
    assert_eq!(w.replies(c), "END|", "its hold is over, and computing has not failed yet");
    w.pass(300);
    w.expect(d, "get page:1|", "");
    w.pass(300);
    // The lease has ended unfilled.
    assert_eq!(w.replies(d), OLD);
    assert_eq!((w.count("stale_on_error"), w.count("unset"), w.count("pass_entered")), (1, 1, 0));
    for backs_off_ms in [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
        for _ in 0..3 {
            w.expect(c, "get page:1|", OLD);
        }
        w.pass(backs_off_ms - 1);
        w.expect(d, "get page:1|", OLD);
        w.pass(1);
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", OLD);
        w.expect(c, "mg page:1 v N30|", "VA 3 Z X|old|");
        w.pass(1000);
    }
    w.pass(30_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(a, "set page:1 0 10 3|new|", "STORED|");
    w.expect(b, "get page:1|", NEW);
    w.pass(16_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    assert_eq!(w.count("busy_failed"), 0, "they got the old value");
    w.check();
}

#[test]
fn it_is_served_until_its_time_is_over_or_it_is_deleted() {
    let mut w = expired(Policy { grace_on_error_s: 20, ..failing() });
    let [a, b] = [(); 2].map(|()| w.connect());
    w.pass(6_000);
    w.expect(a, "mg page:1 v c N30|", "VA 0 c2 W||");
    w.expect(b, "get page:1|", "");
    w.expect(a, "md page:1 C2 Pedown|", "HD|");
    assert_eq!(w.replies(b), OLD);
    w.pass(13_000);
    w.expect(b, "mg page:1 v|", "EN|");
    let mut w = expired(failing());
    let [a, b] = [(); 2].map(|()| w.connect());
    w.pass(6_000);
    w.expect(a, "get page:1|", "END|");
    w.pass(1000);
    w.expect(b, "get page:1|", OLD);
    w.expect(a, "delete page:1|", "DELETED|");
    w.expect(b, "get page:1|", "END|");
}

#[test]
fn whatever_ends_a_computation_unfilled_counts_as_its_failure() {
    for orderly in [None, Some(false), Some(true)] {
        let mut w = expired(failing());
        let [a, b] = [(); 2].map(|()| w.connect());
        w.pass(6_000);
        match orderly {
            None => {
                // Its holder gives up.
                w.expect(a, "mg page:1 v c N30|", "VA 0 c2 W||");
                w.expect(a, "md page:1 C2|", "HD|");
            }
            Some(orderly) => {
                w.expect(a, "get page:1|", "END|");
                w.close(a, orderly);
                w.pass(if orderly { 50 } else { 0 });
            }
        }
        w.expect(b, "get page:1|", OLD);
        w.pass(1000);
        w.expect(b, "get page:1|", "END|");
    }
    // A client that waits is the next to compute when the holder is gone.
    let mut w = expired(failing());
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.pass(6_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.close(a, false);
    assert_eq!(w.replies(b), "END|");
    w.expect(c, "get page:1|", "");
}

#[test]
fn a_soft_invalidation_begins_both_graces() {
    for invalidate in ["md page:1 I|", "md page G I|"] {
        let mut w = World::new(&[("page:{id}", Policy { grace_on_error_s: 20, ..failing() })]);
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "set page:1 0 0 3|old|", "STORED|");
        w.pass(1000);
        w.expect(a, invalidate, "HD|");
        w.pass(1000);
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", OLD);
        w.pass(6_000);
        w.expect(a, "get page:1|", "END|");
        w.pass(1000);
        w.expect(b, "get page:1|", OLD);
        w.pass(12_000);
        w.expect(b, "mg page:1 v|", "EN|");
    }
}

#[test]
fn a_loader_that_fails() {
    let mut w = expired(Policy { loader: true, on_busy: OnBusy::Error, ..failing() });
    let [a, b] = [(); 2].map(|()| w.connect());
    w.pass(6_000);
    w.expect(a, "get page:1|", "");
    let token = w.tokens()[0];
    assert_eq!(w.fail(token, "down", LoadFailure::Error), LoadOutcome::Failed);
    assert_eq!((w.replies(a), w.count("stale_on_error")), (OLD.to_owned(), 1));
    w.expect(b, "get page:1|", OLD);
    assert!(w.tokens().is_empty(), "it backs off");
    w.pass(1000);
    w.expect(a, "get page:1|", OLD);
    let token = w.tokens()[0];
    w.expect(b, "get page:1|", OLD);
    assert_eq!(w.finish_with(token, "new"), LoadOutcome::Stored);
    w.expect(b, "get page:1|", NEW);
}

#[test]
fn a_reload_changes_the_graces_of_what_is_stored_after_it() {
    // Longer on error, then without it, then another grace.
    let failing = Policy { lease: LeaseTime::Fixed(60_000), ..failing() };
    let rule = |grace_s, grace_on_error_s| [("page:{id}", Policy { grace_s, grace_on_error_s, ..failing })];
    let mut w = World::new(&rule(5, 3600));
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 10 3|old|", "STORED|");
    w.set_rules(&rule(8, 0));
    w.pass(14_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", OLD);
    w.pass(1000);
    w.expect(b, "get page:1|", "");
    w.pass(1000);
    assert!(w.replies(b).starts_with("END"), "its grace was 5 s");
    w.expect(a, "set page:1 0 10 3|old|", "STORED|");
    w.pass(17_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", OLD);
}

#[test]
fn times_to_live_are_shortened_at_random() {
    for leases in [true, false] {
        let mut w = World::new(&[("page:{id}", Policy { ttl_jitter: 10, leases, ..Policy::default() })]);
        let a = w.connect();
        let mut seen = std::collections::BTreeMap::new();
        for n in 0..400 {
            w.expect(a, &format!("set page:{n} 0 100 1|x|"), "STORED|");
            let reply = w.ask(a, &format!("mg page:{n} t|"));
            let left: u32 = reply.trim_start_matches("HD t").trim_end_matches('|').parse().unwrap();
            *seen.entry(left).or_insert(0) += 1;
        }
        assert!(seen.len() == 11 && seen.contains_key(&90) && seen.contains_key(&100), "{seen:?}");
        assert!(seen.values().all(|count| (15..70).contains(count)), "{seen:?}");
        assert!((330..390).contains(&w.count("ttl_shortened")), "{}", w.count("ttl_shortened"));
        // Not what a client touches, what does not expire, and what is known to be absent.
        for n in 0..50 {
            w.expect(a, &format!("touch page:{n} 200|mg page:{n} t|"), "TOUCHED|HD t200|");
            w.expect(a, &format!("set page:{n} 0 0 1|x|mg page:{n} t|"), "STORED|HD t-1|");
        }
    }
}

#[test]
fn a_value_is_refreshed_in_the_last_part_of_its_life() {
    let mut w = World::new(&[(
        "page:{id}",
        Policy { early: Early::Share(100_000), hold_ms: 0, ..Policy::default() },
    )]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 60 3|old|", "STORED|");
    w.pass(53_900);
    w.expect(a, "get page:1|", OLD);
    w.pass(1_100);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", OLD);
    assert_eq!(w.count("leases_early"), 1);
    w.expect(a, "set page:1 0 60 3|new|", "STORED|");
    w.expect(b, "get page:1|", NEW);
}

/// Two keys that are computed at the same time teach nothing of undisturbed computations.
#[test]
fn keys_that_expire_together_are_refreshed_early_too() {
    let mut w = World::new(&[("page:{id}", Policy { early: Early::Auto, hold_ms: 0, ..Policy::default() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:2|", "END|");
    w.pass(100);
    w.expect(a, "set page:1 0 20 3|old|", "STORED|");
    w.expect(b, "set page:2 0 20 3|old|", "STORED|");
    w.pass(20_000);
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:2|", "END|");
    w.pass(100);
    w.expect(a, "set page:1 0 20 3|old|", "STORED|");
    w.pass(18_000);
    w.expect(a, "get page:1|", OLD);
    w.pass(1_000);
    w.expect(a, "get page:1|", "END|");
    assert_eq!(w.count("leases_early"), 1);
}

/// The back-off is for the old value. Without one the key is leased and waited for as any that is missing.
#[test]
fn a_key_without_an_old_value_is_protected_in_the_back_off() {
    for ends in ["delete page:1|", "md page:1 G|", "flush", "time"] {
        let grace_on_error_s = if ends == "time" { 10 } else { 3600 };
        let mut w = expired(Policy { grace_on_error_s, ..failing() });
        w.pass(6_000);
        for n in 0..3 {
            let gone = w.connect();
            w.expect(gone, "get page:1|", "END|");
            w.close(gone, false);
            w.pass(if n < 2 { 1000 << n } else { 0 });
        }
        let [a, b, writer] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", OLD);
        match ends {
            "flush" => w.flush(),
            "time" => w.pass(1_500),
            _ => drop(w.ask(writer, ends)),
        }
        w.expect(a, "get page:1|", "END|");
        w.expect(b, "get page:1|", "");
        assert_eq!(w.count("busy_failed"), 0, "{ends}");
    }
}

#[test]
fn a_probe_is_told_of_an_old_value_that_is_served_while_computing_fails() {
    let mut w = expired(failing());
    let a = w.connect();
    w.pass(6_000);
    w.expect(a, "mg page:1 s|", "EN|");
    w.expect(a, "mg page:1 v c N30|", "VA 0 c2 W||");
    w.expect(a, "md page:1 C2 Pedown|", "HD|");
    w.expect(a, "mg page:1 s|", "HD s3 X|");
    w.expect(a, "get page:1|", OLD);
}

/// `md` with `x` removes the value of an item. An old value is none.
#[test]
fn an_old_value_is_not_emptied() {
    for policy in [waiting(), failing()] {
        let mut w = expired(policy);
        let a = w.connect();
        w.pass(2_000);
        w.expect(a, "md page:1 x|", "NF|");
        w.expect(a, "get page:1|", "END|");
        w.expect(a, "add page:1 0 0 3|new|", "STORED|");
        w.expect(a, "md page:1 x|mg page:1 s|", "HD|HD s0|");
    }
}
