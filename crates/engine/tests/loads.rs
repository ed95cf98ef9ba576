//! Keys under a rule with a loader: who waits, which jobs run, and whose value counts. One scene each.

#![allow(clippy::many_single_char_names, clippy::unwrap_used, reason = "connections a, b, c")]

use crate::world::World;
use cattlegrid_engine::rules::Urgency;
use cattlegrid_engine::{LoadEnd, LoadFailure, LoadOutcome};
use cattlegrid_herd::{Early, LeaseTime, OnBusy, Policy};

fn policy() -> Policy {
    Policy { loader: true, lease: LeaseTime::Fixed(6000), hold_many_ms: 400, ..Policy::default() }
}

fn world() -> World {
    World::new(&[("page:{id}", policy())])
}

/// The token of the only job.
fn job(w: &World) -> u64 {
    let [token] = w.tokens()[..] else { panic!("jobs: {:?}", w.tokens()) };
    token
}

const HI: &str = "VALUE page:1 0 2|hi|END|";

#[test]
fn the_first_to_ask_waits_too() {
    let mut w = world();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    w.expect(b, "get page:1|", "");
    w.expect(c, "mg page:1 v f N30 Pw400|", "");
    let token = job(&w);
    assert!(!w.jobs[0].is_refresh && w.jobs[0].stale.is_none());
    assert_eq!(w.jobs[0].rule.loading.as_ref().unwrap().urgency, Urgency::High);
    let end = LoadEnd::Value { data: b"hi", flags: 7, ttl_s: None, tags: &[b"extra"] };
    assert_eq!(w.finish(token, &end), LoadOutcome::Stored);
    for connection in [a, b] {
        assert_eq!(w.replies(connection), "VALUE page:1 7 2|hi|END|");
    }
    assert_eq!(w.replies(c), "VA 2 f7|hi|");
    w.expect(a, "mg page:1 t|", "HD t60|");
    assert_eq!(["loads", "fills_stored", "held_filled"].map(|name| w.count(name)), [1, 1, 3]);
    assert_eq!(w.counters.cmd_set.get(), 0);
    // Its own tag.
    w.expect(a, "delete @tag:extra|", "DELETED|");
    w.expect(a, "get page:1|", "");
    assert_eq!(w.jobs.len(), 1);
}

#[test]
fn a_closed_connection_withdraws_nothing() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    w.close(a, false);
    w.expect(b, "get page:1|", "");
    let token = job(&w);
    assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(b), HI);
}

#[test]
fn many_keys_in_one_get_are_one_order_each() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "get page:1 page:2 page:3|", "");
    let tokens = w.tokens();
    assert_eq!(tokens.len(), 3);
    for (token, data) in tokens.iter().zip(["a", "b", "c"]).rev() {
        assert_eq!(w.finish_with(*token, data), LoadOutcome::Stored);
    }
    assert_eq!(w.replies(a), "VALUE page:1 0 1|a|VALUE page:2 0 1|b|VALUE page:3 0 1|c|END|");
}

#[test]
fn a_delete_during_a_job_starts_another() {
    for event in ["delete page:1|", "mg @bump:page v|", "flush", "md page:1 I|", "md page G I|"] {
        let mut w = world();
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "get page:1|", "");
        let first = job(&w);
        if event == "flush" {
            w.flush();
        } else {
            w.ask(b, event);
        }
        w.pass(20);
        let tokens = w.tokens();
        assert_eq!(tokens.len(), 2, "{event}");
        assert_eq!(w.cancelled, [first], "{event}");
        assert_eq!(w.finish_with(first, "old"), LoadOutcome::Late, "{event}");
        assert_eq!(w.replies(a), "", "{event}");
        w.expect(b, "get page:1|", "");
        assert_eq!(w.finish_with(tokens[1], "hi"), LoadOutcome::Stored, "{event}");
        assert_eq!((w.replies(a), w.replies(b)), (HI.to_owned(), HI.to_owned()), "{event}");
        assert_eq!(["loads", "loads_again", "loads_late"].map(|name| w.count(name)), [2, 1, 1], "{event}");
    }
}

#[test]
fn further_deletes_share_one_job() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    (0..5).for_each(|_| drop(w.ask(b, "delete page:1|")));
    let tokens = w.tokens();
    assert_eq!(tokens.len(), 2, "the third is put off");
    assert_eq!(w.finish_with(tokens[0], "old"), LoadOutcome::Late);
    let tokens = w.tokens();
    assert_eq!(tokens.len(), 2, "it begins now");
    assert_eq!(w.finish_with(tokens[0], "old"), LoadOutcome::Late);
    assert_eq!(w.finish_with(tokens[1], "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(a), HI);
    assert_eq!(["loads", "loads_put_off"].map(|name| w.count(name)), [3, 4]);
    assert!(w.jobs.is_empty() && w.engine.is_quiet());
}

#[test]
fn nothing_is_sent_for_nobody() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    w.close(a, true);
    w.ask(b, "delete page:1|");
    let first = job(&w);
    // Two more leases of the key: one job runs beside the first, the other is put off.
    w.expect(b, "get page:1|", "");
    let c = w.connect();
    w.ask(c, "delete page:1|");
    w.pass(500);
    assert_eq!(w.replies(b), "END|", "its time was up");
    assert_eq!(w.tokens().len(), 2);
    assert_eq!(w.finish_with(first, "old"), LoadOutcome::Late);
    assert_eq!(w.tokens().len(), 1, "the job that was put off has no waiter");
    assert_eq!(w.engine.leases(), 0);
    let last = job(&w);
    assert_eq!(w.finish_with(last, "old"), LoadOutcome::Late);
    w.expect(b, "get page:1|", "");
    let next = job(&w);
    assert_eq!(w.finish_with(next, "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(b), HI);
}

#[test]
fn a_client_that_stores_ends_the_lease() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    w.expect(b, "set page:1 0 0 2|hi|", "STORED|");
    assert_eq!(w.replies(a), HI);
    assert_eq!(w.cancelled, [token]);
    assert_eq!(w.finish_with(token, "old"), LoadOutcome::Late);
    w.expect(a, "get page:1|", HI);
    assert_eq!(w.count("loads_late"), 1);
}

#[test]
fn a_write_after_a_delete_is_not_taken_for_the_loaders_fill() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    w.ask(b, "delete page:1|");
    w.expect(b, "set page:1 0 0 2|hi|", "STORED|");
    assert_eq!(w.replies(a), HI);
    w.expect(b, "get page:1|", HI);
    let next = w.tokens()[1];
    for token in [token, next] {
        assert_eq!(w.finish_with(token, "old"), LoadOutcome::Late);
    }
    w.expect(b, "get page:1|", HI);
}

#[test]
fn a_set_that_is_dropped_counts_as_a_delete() {
    for waits in [true, false] {
        let mut w = world();
        let [a, b, c] = [(); 3].map(|()| w.connect());
        // A miss that is never filled, as far as the server can know.
        w.expect(a, "mg page:1 v N30|", "VA 0 Z||");
        let first = job(&w);
        assert_eq!(w.finish_with(first, "1"), LoadOutcome::Stored);
        w.expect(b, "delete page:1|", "DELETED|");
        w.expect(b, "get page:1|", "");
        let second = job(&w);
        if !waits {
            // Its value has been stored already.
            assert_eq!(w.finish_with(second, "2"), LoadOutcome::Stored);
            w.expect(b, "get page:1|", "VALUE page:1 0 1|2|END|VALUE page:1 0 1|2|END|");
        }
        w.expect(c, "set page:1 0 0 1|3|", "STORED|");
        assert_eq!(w.count("fills_dropped"), 1, "it is taken for the value of the miss");
        if waits {
            assert_eq!(w.finish_with(second, "2"), LoadOutcome::Late);
        } else {
            w.expect(b, "get page:1|", "");
        }
        let third = job(&w);
        assert_eq!(w.finish_with(third, "3"), LoadOutcome::Stored);
        assert_eq!(w.replies(b), "VALUE page:1 0 1|3|END|");
    }
}

#[test]
fn a_value_that_is_changed_during_its_refresh_stays() {
    for change in ["incr page:1 1|", "append page:1 0 0 1|0|", "cas page:1 0 0 2 CAS|19|", "ma page:1|"] {
        let mut w = World::new(&[("page:{id}", Policy { grace_s: 60, ..policy() })]);
        let a = w.connect();
        w.expect(a, "set page:1 0 20 2|18|", "STORED|");
        let cas = w.ask(a, "gets page:1|").split([' ', '|']).nth(4).unwrap().to_owned();
        w.ask(a, "mg page:1 v R30|");
        let token = job(&w);
        w.ask(a, &change.replace("CAS", &cas));
        let changed = w.ask(a, "get page:1|");
        assert!(!changed.contains("|18|"), "{changed}");
        assert_eq!(w.finish_with(token, "18"), LoadOutcome::Late, "{change}");
        w.expect(a, "get page:1|", &changed);
    }
}

#[test]
fn keys_do_not_disturb_each_other() {
    // A fence of few slots, and jobs that end in another order than they began.
    let config = cattlegrid_engine::RulesConfig { fence_bytes: 64, ..crate::world::config() };
    let mut w = World::with(&[("page:{id}", policy())], &config, 64 << 20, 1);
    let list: Vec<u64> = (0..200).map(|_| w.connect()).collect();
    for (n, connection) in list.iter().enumerate() {
        w.expect(*connection, &format!("get page:{n}|"), "");
    }
    for token in w.tokens().into_iter().rev() {
        assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    }
    assert_eq!((w.count("loads"), w.jobs.len()), (200, 0));
}

#[test]
fn asking_for_the_lease_never_wins_it() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 60, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "mg page:1 v c N30|", "VA 0 c0 Z||");
    let token = job(&w);
    w.expect(b, "mg page:1 v N30 Pw400|", "");
    w.expect(b, "mg page:1 v N30|", "");
    assert_eq!(w.tokens(), [token]);
    let end = LoadEnd::Value { data: b"hi", flags: 0, ttl_s: Some(10), tags: &[] };
    assert_eq!(w.finish(token, &end), LoadOutcome::Stored);
    assert_eq!(w.replies(b), "VA 2|hi|VA 0 Z||");
    // Due for a refresh by R, then past its time.
    w.expect(a, "mg page:1 v R30|", "VA 2 Z|hi|");
    assert!(w.jobs[0].is_refresh);
    let token = job(&w);
    assert_eq!(w.finish(token, &end), LoadOutcome::Stored);
    w.pass(15_000);
    let reply = w.ask(a, "mg page:1 v N30|");
    assert!(reply.contains(" X") && reply.contains(" Z") && reply.ends_with("|hi|"), "{reply}");
    assert_eq!(w.count("loads_refresh"), 2);
}

#[test]
fn a_hold_that_ends_is_answered_as_on_busy_says() {
    for (on_busy, reply) in [(OnBusy::Miss, "END|"), (OnBusy::Error, "SERVER_ERROR busy|")] {
        let mut w = World::new(&[("page:{id}", Policy { on_busy, max_computers: 4, ..policy() })]);
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "get page:1|", "");
        w.expect(b, "mg page:1 v N30 Pw400|", "");
        w.pass(401);
        assert_eq!(w.replies(a), reply);
        assert_eq!(w.replies(b), "VA 0 Z||");
        let token = job(&w);
        assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored, "it runs on");
        w.expect(a, "get page:1|", HI);
        assert_eq!(w.count("hold_expired"), 2);
    }
}

#[test]
fn a_long_computation_is_not_waited_for() {
    let mut w = world();
    let a = w.connect();
    for n in 0..3 {
        w.ask(a, &format!("mg page:{n} v N30|"));
        w.pass(2000);
        let token = job(&w);
        assert_eq!(w.finish_with(token, "x"), LoadOutcome::Stored);
    }
    w.expect(a, "get page:1000|", "END|");
    assert_eq!(w.count("busy_prediction"), 1);
    assert_eq!(w.jobs.len(), 1, "the value is computed all the same");
    let token = job(&w);
    assert_eq!(w.finish_with(token, "x"), LoadOutcome::Stored);
}

#[test]
fn a_failure_backs_off() {
    for (on_busy, reply) in [(OnBusy::Miss, "END|"), (OnBusy::Error, "SERVER_ERROR busy|")] {
        let mut w = World::new(&[("page:{id}", Policy { on_busy, pass_after: 1, ..policy() })]);
        let [a, b] = [(); 2].map(|()| w.connect());
        for back_off_ms in [1000, 2000, 4000] {
            w.expect(a, "get page:1|", "");
            w.expect(b, "mg page:1 v N30 Pw400|", "");
            let token = job(&w);
            assert_eq!(w.fail(token, "no%20table", LoadFailure::Error), LoadOutcome::Failed);
            assert_eq!(w.replies(a), reply);
            assert_eq!(w.replies(b), "EN Peno%20table|");
            w.expect(a, "get page:1|", reply);
            w.pass(back_off_ms - 1);
            w.expect(a, "get page:1|", reply);
            assert!(w.jobs.is_empty(), "it backs off");
            w.pass(1);
        }
        w.expect(a, "get page:1|", "");
        let token = job(&w);
        assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
        assert_eq!(w.replies(a), HI);
        w.ask(a, "delete page:1|");
        w.expect(a, "get page:1|", "");
        let token = job(&w);
        assert_eq!(w.fail(token, "", LoadFailure::Error), LoadOutcome::Failed);
        w.replies(a);
        w.pass(1000);
        w.expect(a, "get page:1|", "");
        assert_eq!(w.jobs.len(), 1, "a value has ended the back-off");
        let token = job(&w);
        assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
        assert_eq!([w.count("failures"), w.count("pass_entered")], [4, 0]);
    }
}

#[test]
fn a_failed_refresh_leaves_the_old_value() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 60, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 10 2|hi|", "STORED|");
    w.pass(11_000);
    w.expect(a, "get page:1|", HI);
    let load = &w.jobs[0];
    assert!(load.is_refresh);
    assert_eq!(load.stale.as_ref().unwrap().slices().collect::<Vec<_>>(), [b"hi"]);
    let token = job(&w);
    assert_eq!(w.fail(token, "no", LoadFailure::Error), LoadOutcome::Failed);
    w.expect(b, "get page:1|", HI);
    assert!(w.jobs.is_empty(), "it backs off");
    w.pass(1000);
    w.expect(b, "get page:1|", HI);
    let token = job(&w);
    assert_eq!(w.finish_with(token, "ho"), LoadOutcome::Stored);
    w.expect(b, "get page:1|", "VALUE page:1 0 2|ho|END|");
}

#[test]
fn those_who_wait_behind_a_soft_invalidation_get_the_old_value_when_the_job_fails() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 60, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let first = job(&w);
    // There was no waiter before the invalidation.
    w.close(a, true);
    w.ask(b, "md page:1 I|");
    assert_eq!(w.finish_with(first, "old"), LoadOutcome::Late);
    w.expect(b, "get page:1|", "");
    let next = job(&w);
    assert_eq!(w.finish_with(next, "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(b), HI);
}

#[test]
fn a_lost_worker_is_tried_again_once() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "get page:1|", "");
    let first = job(&w);
    assert_eq!(w.fail(first, "", LoadFailure::Lost), LoadOutcome::Failed);
    assert_eq!(w.replies(a), "");
    let second = job(&w);
    assert_ne!(first, second);
    assert_eq!(w.fail(second, "", LoadFailure::Lost), LoadOutcome::Failed);
    assert_eq!(w.replies(a), "END|");
    w.expect(a, "get page:1|", "END|");
    assert!(w.jobs.is_empty() && w.engine.is_quiet());
    assert_eq!(["loads", "loads_again", "failures", "busy_failed"].map(|name| w.count(name)), [2, 1, 2, 1]);
}

#[test]
fn a_job_that_was_taken_back_while_clients_wait_is_ordered_anew() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "get page:1|", "");
    let first = job(&w);
    assert_eq!(w.fail(first, "", LoadFailure::Cancelled), LoadOutcome::Failed);
    assert_eq!(w.replies(a), "");
    let second = job(&w);
    assert_ne!(first, second);
    assert_eq!(w.finish_with(second, "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(a), HI);
}

#[test]
fn jobs_that_take_longer_than_the_back_off_are_tried_again_once_as_well() {
    let mut w = World::new(&[("page:{id}", Policy { hold_ms: 60_000, ..policy() })]);
    let a = w.connect();
    w.expect(a, "mg page:1 v N30 Pw30000|", "");
    for _ in 0..2 {
        w.pass(2000);
        let token = job(&w);
        assert_eq!(w.fail(token, "gone", LoadFailure::Lost), LoadOutcome::Failed);
    }
    assert_eq!(w.replies(a), "EN Pegone|");
    // The next jobs begin after the back-off, and are not tried again at once.
    for back_off_ms in [2000, 4000] {
        w.expect(a, "mg page:1 v N30|", "VA 0 Z||");
        assert!(w.jobs.is_empty());
        w.pass(back_off_ms);
        w.expect(a, "mg page:1 v N30 Pw30000|", "");
        w.pass(2000);
        let token = job(&w);
        assert_eq!(w.fail(token, "gone", LoadFailure::Lost), LoadOutcome::Failed);
        assert_eq!(w.replies(a), "EN Pegone|");
    }
}

/// A client that says that the data are others, and a reload, bring a computation at once, however often it
/// has failed before.
#[test]
fn what_may_help_ends_the_back_off() {
    const ENDS: &[&str] = &[
        "delete page:1|",
        "delete page:1 noreply|",
        "md page:1|",
        "md page:1 q|",
        "md cGFnZTox b|",
        "md page:1 I T30|",
        "delete @tag:page:1|",
        "delete @tag:page|",
        "md page G|",
        "md page G I|",
        "flush",
        "rules",
    ];
    for (failures, ends) in (1..3).flat_map(|n| ENDS.iter().map(move |ends| (n, *ends))) {
        for loader in [true, false] {
            let policy = if loader { policy() } else { Policy { hold_ms: 400, ..Policy::default() } };
            let mut w = World::new(&[("page:{id}", policy)]);
            let [a, b, writer] = [(); 3].map(|()| w.connect());
            // Of clients' computations the second one to fail begins the back-off.
            for n in 0..=failures {
                let told = w.ask(a, "mg page:1 v c N30 Pw400|");
                let token = if loader {
                    job(&w)
                } else {
                    told.split(" c").nth(1).unwrap().split([' ', '|']).next().unwrap().parse().unwrap()
                };
                if loader {
                    assert_eq!(w.fail(token, "down", LoadFailure::Error), LoadOutcome::Failed);
                    assert_eq!(w.replies(a), "EN Pedown|");
                } else {
                    w.expect(a, &format!("md page:1 C{token} Pedown|"), "HD|");
                }
                if n < failures {
                    w.pass(30_000);
                }
            }
            w.expect(b, "get page:1|", "END|");
            assert_eq!(w.count("busy_failed"), 1, "{ends}");
            match ends {
                "flush" => w.flush(),
                "rules" => w.set_rules(&[("page:{id}", policy)]),
                line => drop(w.ask(writer, line)),
            }
            w.expect(b, "get page:1|", if loader { "" } else { "END|" });
            assert_eq!((w.count("busy_failed"), w.tokens().len()), (1, usize::from(loader)), "{ends}");
            w.expect(writer, "get page:1|", "");
        }
    }
}

#[test]
fn a_loader_that_has_too_much_to_do_does_not_make_the_key_back_off() {
    let mut w = world();
    let a = w.connect();
    for _ in 0..3 {
        w.expect(a, "get page:1|", "");
        let token = job(&w);
        assert_eq!(w.fail(token, "", LoadFailure::Refused), LoadOutcome::Failed);
        assert_eq!(w.replies(a), "END|");
    }
    assert_eq!([w.count("loads_refused"), w.count("failures")], [3, 0]);
}

#[test]
fn a_refresh_becomes_urgent() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 5, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:1 0 10 2|hi|", "STORED|");
    w.pass(14_000);
    w.expect(a, "get page:1|", HI);
    let token = job(&w);
    w.pass(2000);
    w.expect(b, "get page:1|", "");
    w.expect(a, "get page:1|", "");
    assert_eq!((w.raised.clone(), w.tokens()), (vec![token], vec![token]), "once, and no other job");
    assert_eq!(w.finish_with(token, "ho"), LoadOutcome::Stored);
    assert_eq!(w.replies(b), "VALUE page:1 0 2|ho|END|");
}

#[test]
fn one_refresh_for_all_readers() {
    let mut w = World::new(&[("page:{id}", Policy { grace_s: 60, early: Early::Auto, ..policy() })]);
    let a = w.connect();
    let readers = [(); 5].map(|()| w.connect());
    for round in 0..5 {
        w.ask(a, "get page:1|");
        let token = job(&w);
        assert_eq!(w.jobs[0].is_refresh, round > 0);
        w.pass(100);
        let end = LoadEnd::Value { data: b"hi", flags: 0, ttl_s: Some(20), tags: &[] };
        assert_eq!(w.finish(token, &end), LoadOutcome::Stored);
        w.replies(a);
        // Nothing was learned when the first value was stored: it is refreshed when it has expired.
        w.pass(if round == 0 { 20_500 } else { 19_500 });
        for reader in readers {
            w.expect(reader, "get page:1|", HI);
        }
        assert_eq!(w.jobs.len(), 1, "round {round}");
    }
}

#[test]
fn not_found_is_a_negative_answer() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    w.expect(b, "mg page:1 v N30 Pw400|", "");
    let token = job(&w);
    assert_eq!(w.finish(token, &LoadEnd::NotFound { ttl_s: Some(5) }), LoadOutcome::Stored);
    assert_eq!((w.replies(a), w.replies(b)), ("END|".to_owned(), "EN|".to_owned()));
    w.expect(b, "mg page:1 v N30|", "EN|");
    w.pass(4000);
    w.expect(a, "get page:1|", "END|");
    assert!(w.jobs.is_empty());
    w.pass(1000);
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    assert_eq!(w.finish(token, &LoadEnd::NotFound { ttl_s: None }), LoadOutcome::Stored);
    assert_eq!(w.replies(a), "END|");
    w.pass(1000);
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    assert_eq!(w.finish(token, &LoadEnd::NotFound { ttl_s: Some(0) }), LoadOutcome::Stored);
    assert_eq!(w.replies(a), "END|");
    w.expect(a, "get page:1|", "");
}

#[test]
fn a_soft_invalidation_ends_a_negative_answer() {
    for event in ["md page:1 I|", "md page G I|", "md page:1 G I|"] {
        for grace_s in [0, 60] {
            let mut w = World::new(&[("page:{id}", Policy { grace_s, ..policy() })]);
            let a = w.connect();
            w.expect(a, "get page:1|", "");
            let token = job(&w);
            assert_eq!(w.finish(token, &LoadEnd::NotFound { ttl_s: Some(30) }), LoadOutcome::Stored);
            assert_eq!(w.replies(a), "END|");
            w.ask(a, event);
            w.expect(a, "get page:1|", "");
            let token = job(&w);
            assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
            assert_eq!(w.replies(a), HI, "{event}");
        }
    }
}

#[test]
fn a_value_can_be_for_those_who_wait_alone() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    let end = LoadEnd::Value { data: b"hi", flags: 0, ttl_s: Some(-1), tags: &[] };
    assert_eq!(w.finish(token, &end), LoadOutcome::Stored);
    assert_eq!(w.replies(a), HI);
    w.expect(b, "get page:1|", "");
    assert_eq!(w.jobs.len(), 1);
}

#[test]
fn a_value_that_cannot_be_stored_is_a_failure() {
    let names: Vec<Vec<u8>> = (0..9).map(|n| format!("t{n}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let large = vec![b'x'; 9 << 20];
    for (data, tags, landed) in [
        (&large[..], &names[..0], LoadOutcome::TooLarge),
        (b"hi", &names[..8], LoadOutcome::TooManyTags),
        (b"hi", &names[..], LoadOutcome::TooManyTags),
    ] {
        let mut w = world();
        let [a, b] = [(); 2].map(|()| w.connect());
        w.expect(a, "get page:1|", "");
        w.expect(b, "mg page:1 v N30 Pw400|", "");
        let token = job(&w);
        assert_eq!(w.finish(token, &LoadEnd::Value { data, flags: 0, ttl_s: Some(0), tags }), landed);
        assert_eq!(w.replies(a), "END|");
        let told = w.replies(b);
        assert!(told.starts_with("EN Pethe%20") && !told[3..].contains(' '), "{told}");
        assert_eq!(w.count("failures"), 1);
        assert!(w.engine.is_quiet());
    }
}

#[test]
fn a_large_value_reaches_those_who_wait() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    let data = "y".repeat(2 << 20);
    assert_eq!(w.finish_with(token, &data), LoadOutcome::Stored);
    // Values in their own pages are left out here.
    assert_eq!(w.replies(a), "VALUE page:1 0 2097152||END|");
}

#[test]
fn jobs_of_a_rule_at_once_are_limited() {
    let mut w = World::new(&[("page:{id}", Policy { rule_computers: Some(2), ..policy() })]);
    let list: Vec<u64> = (0..4).map(|_| w.connect()).collect();
    for (n, connection) in list.iter().enumerate() {
        w.expect(*connection, &format!("get page:{n}|"), "");
    }
    assert_eq!(w.jobs.len(), 2);
    let first = w.tokens()[0];
    let other = w.connect();
    w.ask(other, "delete page:0|");
    assert_eq!(
        (w.jobs.len(), w.cancelled.clone()),
        (2, vec![first]),
        "its first job runs on, and has its slot"
    );
    assert_eq!(w.finish_with(first, "old"), LoadOutcome::Late);
    let pages = |w: &World| w.jobs.iter().map(|load| load.key[5] - b'0').collect::<Vec<_>>();
    assert_eq!(pages(&w), [1, 2], "the others have waited longer");
    for n in 0..4 {
        assert_eq!(w.jobs.len(), 2.min(4 - n), "{n}");
        let token = w.tokens()[0];
        assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    }
    assert!(w.jobs.is_empty() && w.engine.is_quiet());
    for connection in &list {
        w.replies(*connection);
    }
    // A client that does not wait is not queued.
    w.expect(list[0], "get page:10|", "");
    w.expect(list[1], "get page:11|", "");
    w.expect(list[2], "mg page:12 v N30|", "VA 0 Z||");
    assert_eq!(w.jobs.len(), 2);
}

#[test]
fn the_lease_lasts_until_its_deadline() {
    let mut w = World::new(&[("page:{id}", Policy { hold_ms: 60_000, ..policy() })]);
    let a = w.connect();
    w.expect(a, "get page:1|", "");
    let first = job(&w);
    w.pass(6000);
    let tokens = w.tokens();
    assert_eq!(tokens.len(), 2);
    assert_eq!(w.cancelled, [first]);
    assert_eq!(w.finish_with(first, "late"), LoadOutcome::Late);
    assert_eq!(w.finish_with(tokens[1], "hi"), LoadOutcome::Stored);
    assert_eq!(w.replies(a), HI);
}

#[test]
fn a_client_that_asks_for_a_long_lease_does_not_prolong_the_loaders() {
    for asks in ["mg page:1 v N3000 Pl60000|", "mg page:1 v N30 Pd|"] {
        let mut w = world();
        let a = w.connect();
        w.ask(a, asks);
        w.pass(6000);
        assert_eq!(w.engine.leases(), 0, "{asks}");
    }
}

#[test]
fn a_wait_is_held_behind_others_as_any() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "set page:2 0 0 1|x|", "STORED|");
    w.expect(a, "get page:1|get page:2|get page:3|", "");
    assert_eq!(w.jobs.len(), 2, "also for a key that is read ahead");
    w.pass(60);
    assert_eq!(w.replies(a), "END|VALUE page:2 0 1|x|END|");
    let tokens = w.tokens();
    assert_eq!(w.finish_with(tokens[1], "z"), LoadOutcome::Stored);
    assert_eq!(w.replies(a), "VALUE page:3 0 1|z|END|");
    w.release(a);
}

#[test]
fn many_connections_of_one_client_may_all_wait() {
    let mut w = world();
    let list: Vec<u64> = (0..20).map(|_| w.connect()).collect();
    for connection in &list {
        w.expect(*connection, "get page:1|", "");
    }
    let token = job(&w);
    assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    for connection in &list {
        assert_eq!(w.replies(*connection), HI);
    }
    assert_eq!(w.count("last_free_kept"), 0);
}

#[test]
fn a_get_that_waits_gives_way_to_a_write_of_its_own_connection() {
    let mut w = world();
    let a = w.connect();
    w.expect(a, "get page:1|set page:1 0 0 2|hi|get page:1|", "END|STORED|VALUE page:1 0 2|hi|END|");
    let token = job(&w);
    assert_eq!(w.finish_with(token, "old"), LoadOutcome::Late);
    w.expect(a, "get page:2|delete page:2|", "END|NOT_FOUND|");
}

#[test]
fn the_hint_of_the_last_client_reaches_the_next_job() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "mg page:1 v N30 Pw400,hfast|", "");
    assert_eq!(w.jobs[0].hint.as_deref(), Some(&b"fast"[..]));
    w.expect(b, "mg page:1 v N30 Pw400,hslow|", "");
    let c = w.connect();
    w.ask(c, "delete page:1|");
    assert_eq!(w.jobs[1].hint.as_deref(), Some(&b"slow"[..]));
}

#[test]
fn a_rule_without_its_loader_answers_those_who_wait() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    w.set_rules(&[]);
    w.pass(10);
    assert_eq!(w.replies(a), "END|");
    assert_eq!(w.finish_with(token, "old"), LoadOutcome::Late);
    w.expect(b, "get page:1|", "END|");
    // Another rule for the key, of clients that compute: the loader's lease goes on to its end, and no other
    // job begins.
    w.set_rules(&[("page:{id}", policy())]);
    w.expect(a, "get page:1|", "");
    let token = job(&w);
    w.set_rules(&[("page:{id}", Policy { loader: false, ..policy() })]);
    w.pass(10);
    w.ask(b, "delete page:1|");
    assert_eq!(w.replies(a), "END|");
    assert_eq!(w.finish_with(token, "old"), LoadOutcome::Late);
    assert!(w.jobs.is_empty() && w.engine.is_quiet());
}

#[test]
fn a_rule_that_gets_a_loader_uses_it_for_the_next_miss() {
    let mut w = World::new(&[("page:{id}", Policy { loader: false, pass_after: 1, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:1|", "");
    w.set_rules(&[("page:{id}", policy())]);
    w.pass(20);
    w.close(a, false);
    assert_eq!(w.replies(b), "END|", "the client's lease passed on as it was granted");
    w.ask(b, "set page:1 0 0 2|hi|");
    w.ask(b, "delete page:1|");
    w.expect(b, "get page:1|", "");
    assert_eq!(w.jobs.len(), 1);
}

#[test]
fn a_key_without_time_to_wait_is_computed_for_the_next() {
    let mut w = World::new(&[("page:{id}", Policy { hold_ms: 0, hold_many_ms: 0, ..policy() })]);
    let a = w.connect();
    w.expect(a, "get page:1|", "END|");
    let token = job(&w);
    assert_eq!(w.finish_with(token, "hi"), LoadOutcome::Stored);
    w.expect(a, "get page:1|", HI);
}

/// A delete came while it waited, and its miss is recorded only now.
#[test]
fn a_client_that_gives_up_waiting_for_a_job_has_missed_its_key_when_it_asked() {
    for orderly in [true, false] {
        let mut w = world();
        let [a, b, x] = [(); 3].map(|()| w.connect());
        w.expect(a, "get page:1|", "");
        w.expect(x, "delete page:1|", "NOT_FOUND|");
        assert_eq!(w.replies(a), "", "another job begins");
        w.close(a, orderly);
        w.expect(b, "set page:1 0 0 3|old|", "STORED|");
        let shown = w.ask(x, "get page:1|");
        assert!(!shown.contains("old"), "orderly: {orderly}: {shown}");
    }
}
