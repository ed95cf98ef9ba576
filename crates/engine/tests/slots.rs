//! Rules with `rule_computers`: which leases wait for a slot, and which need not.

use crate::world;

use std::collections::VecDeque;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{LeaseTime, OnBusy, PeerKey, Policy, QUEUED_MAX};
use world::{World, config};

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

#[test]
fn a_lease_of_another_rule_does_not_open_a_full_rule() {
    let one = Policy { rule_computers: Some(1), ..policy() };
    let mut w = World::new(&[("page:{id}", one), ("part:{id}", policy())]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get part:1|", "END|");
    w.expect(b, "get page:2|", "");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "END|");
}

#[test]
fn a_key_that_gets_no_slot_within_the_hold_is_busy() {
    let policy = Policy { rule_computers: Some(1), on_busy: OnBusy::Error, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(b, "get page:2|", "");
    w.pass(400);
    assert_eq!((w.replies(b), w.count("busy_slots")), ("SERVER_ERROR busy|".into(), 1));
}

/// A computation that was nested in another of its holder's needs a slot when it passes to another client.
#[test]
fn a_nested_lease_that_passes_on_waits_for_a_slot() {
    let mut w = World::new(&[("page:{id}", Policy { rule_computers: Some(1), hold_ms: 9000, ..policy() })]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:1|", "END|");
    w.expect(a, "get page:2|", "END|");
    w.expect(b, "get page:2|", "");
    w.expect(a, "delete page:2|", "NOT_FOUND|");
    assert_eq!(w.replies(b), "", "its holder still computes another key");
    w.expect(a, "set page:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "END|");
    w.expect(b, "get page:3|", "END|");
    w.engine.verify();
}

/// The most keys that the threads of a pool compute at once under a rule with a limit. A thread that gets a
/// busy error asks again 10 ms later.
fn most_at_once(threads: usize, connections: usize, limit: u32) -> (usize, u64) {
    let policy = Policy { rule_computers: Some(limit), on_busy: OnBusy::Error, hold_ms: 200, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let mut free: VecDeque<u64> = (0..connections).map(|_| w.connect_from(PeerKey::Process(1))).collect();
    // Threads that are idle until this time; threads that wait, with their key; threads that compute until
    // this time.
    let mut idle: Vec<(u64, usize)> = (0..threads).map(|n| (0, n)).collect();
    let (mut waiting, mut busy, mut most, mut done) = (Vec::new(), Vec::<(u64, usize)>::new(), 0, 0);
    while done < threads {
        busy.sort_unstable();
        while busy.first().is_some_and(|(due, _)| *due <= w.ms)
            && let Some(one) = free.pop_front()
        {
            let (_, n) = busy.remove(0);
            w.expect(one, &format!("set page:{n} 0 0 1|x|"), "STORED|");
            free.push_back(one);
            done += 1;
        }
        while let Some(at) = idle.iter().position(|(from, _)| *from <= w.ms)
            && let Some(one) = free.pop_front()
        {
            let (_, n) = idle.swap_remove(at);
            w.send(one, &format!("get page:{n}|"));
            waiting.push((one, n));
        }
        let mut changed = false;
        waiting.retain(|(one, n)| {
            match w.replies(*one).as_str() {
                "" => return true,
                "END|" => busy.push((w.ms + 100, *n)),
                "SERVER_ERROR busy|" => idle.push((w.ms + 10, *n)),
                other => panic!("{other}"),
            }
            free.push_back(*one);
            changed = true;
            false
        });
        most = most.max(busy.len());
        if !changed {
            w.pass(1);
        }
        assert!(w.ms < 100_000, "the queue does not drain");
    }
    (most, w.count("nested"))
}

#[test]
fn threads_of_a_pool_do_not_compute_more_than_their_rule_allows() {
    for (limit, most_allowed) in [(1, 3), (2, 6)] {
        let (most, nested) = most_at_once(40, 16, limit);
        eprintln!("40 threads on 16 connections, limit {limit}: {most} at once; {nested} nested in all");
        assert!(most <= most_allowed, "{most} at once");
        // With a connection for each thread nothing is nested.
        assert_eq!(most_at_once(40, 40, limit), (limit as usize, 0));
    }
}

#[test]
fn the_queue_of_a_rule_is_bounded() {
    let policy = Policy { rule_computers: Some(1), hold_ms: 30_000, ..policy() };
    let config = RulesConfig { ledger_bytes: 64 << 20, ..config() };
    let mut w = World::with(&[("page:{id}", policy)], &config, 256 << 20, 1);
    let a = w.connect();
    w.expect(a, "get page:a|", "END|");
    let all: Vec<u64> = (0..QUEUED_MAX).map(|_| w.connect()).collect();
    for (n, one) in all.iter().enumerate() {
        w.send(*one, &format!("get page:{n}|"));
    }
    assert_eq!(w.engine.held(), all.len());
    let last = w.connect();
    w.expect(last, "get page:last|", "END|");
    assert_eq!(w.count("busy_queue"), 1);
    // A waiter that gives up leaves its place.
    w.close(all[7], true);
    w.expect(last, "get page:last|", "");
    w.expect(a, "set page:a 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(all[0]), "END|");
    w.engine.verify();
}

/// A limit that is raised or removed admits the leases that wait, and a limit that is lowered applies at
/// once.
#[test]
fn a_changed_limit_applies_to_waiting_leases() {
    let limited = |limit| Policy { rule_computers: limit, hold_ms: 20_000, ..policy() };
    let mut w = World::new(&[("page:{id}", limited(Some(1)))]);
    let all: Vec<u64> = (0..5).map(|_| w.connect()).collect();
    for (n, one) in all.iter().enumerate() {
        w.expect(*one, &format!("get page:{n}|"), if n == 0 { "END|" } else { "" });
    }
    w.set_rules(&[("page:{id}", limited(Some(3)))]);
    assert_eq!([1, 2, 3].map(|n| w.replies(all[n])), ["END|", "END|", ""]);
    w.set_rules(&[("page:{id}", limited(Some(2)))]);
    w.expect(all[0], "set page:0 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(all[3]), "", "two compute");
    w.set_rules(&[("page:{id}", limited(None))]);
    assert_eq!([3, 4].map(|n| w.replies(all[n])), ["END|", "END|"]);
    w.engine.verify();
}

/// One client asks for all leases, for an hour each; other clients are still protected.
#[test]
fn leases_that_were_asked_for_too_long_make_room() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    let mut w = World::with(&[("page:{id}", policy())], &rules, 64 << 20, 1);
    let greedy = w.connect();
    let mut tokens = Vec::new();
    for n in 0..1400 {
        let won = w.ask(greedy, &format!("mg page:{n} c N3600 Pd|"));
        tokens.extend(won.split([' ', '|']).find_map(|word| word.strip_prefix('c')).map(str::to_owned));
    }
    assert_eq!((tokens.len(), w.count("busy_leases")), (1400, 0));
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get page:cold|", "END|");
    w.expect(b, "get page:cold|", "");
    w.expect(a, "set page:cold 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE page:cold 0 1|x|END|");
    assert!(w.count("leases_displaced") > 880);
    // A displaced lease can still be filled.
    for n in [0, 700, 1399] {
        w.expect(greedy, &format!("ms page:{n} 1 C{}|x|", tokens[n]), "HD|");
    }
    w.engine.verify();
}

#[test]
fn without_a_lease_on_busy_decides() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    for (on_busy, answer) in [(OnBusy::Miss, "END|"), (OnBusy::Error, "SERVER_ERROR busy|")] {
        let mut w = World::with(&[("page:{id}", Policy { on_busy, ..policy() })], &rules, 64 << 20, 1);
        let mut leases = 0;
        while w.count("busy_leases") == 0 {
            let one = w.connect();
            let reply = w.ask(one, &format!("get page:{leases}|"));
            assert_eq!(reply, if w.count("busy_leases") == 0 { "END|" } else { answer });
            leases += 1;
        }
        assert_eq!(leases, 513, "half of the leases, and the first that finds none");
    }
}

/// What computes the first rule's values hangs, and new keys go on being asked for; the other rule's are
/// protected as before.
#[test]
fn a_rule_whose_computations_hang_leaves_leases_to_the_others() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    let list = [("hanging:{id}", policy()), ("page:{id}", policy())];
    let mut w = World::with(&list, &rules, 64 << 20, 4);
    for n in 0..3000 {
        let one = w.connect();
        w.expect(one, &format!("get hanging:{n}|"), "END|");
    }
    assert_eq!((w.count("leases"), w.count("busy_leases")), (512, 3000 - 512));
    let [a, b] = [(); 2].map(|()| w.connect());
    for n in 0..100 {
        w.expect(a, &format!("get page:{n}|"), "END|");
        w.expect(b, &format!("get page:{n}|"), "");
        w.expect(a, &format!("set page:{n} 0 0 1|x|"), "STORED|");
        assert_eq!(w.replies(b), format!("VALUE page:{n} 0 1|x|END|"));
    }
    // When it is well again, its leases are free.
    w.pass(60_000);
    assert_eq!(w.engine.herd_usage().leases, 0);
    w.expect(a, "get hanging:cold|", "END|");
    w.expect(b, "get hanging:cold|", "");
    w.engine.verify();
}

/// The keys of one get fall on the shards as they like: all get a lease while the rule's share is not used
/// up.
#[test]
fn which_keys_meet_in_a_shard_does_not_matter() {
    let rules = RulesConfig { ledger_bytes: 1 << 20, ..config() };
    let mut w = World::with(&[("page:{id}", policy())], &rules, 64 << 20, 64);
    let one = w.connect();
    let keys: Vec<String> = (0..500).map(|n| format!("page:{n}")).collect();
    w.expect(one, &format!("get {}|", keys.join(" ")), "END|");
    assert_eq!((w.count("leases"), w.count("busy_leases")), (500, 0));
}

/// A pool of one connection: the thread that would store what it computes waits for the reply.
#[test]
fn a_connection_that_computes_is_not_held_for_a_slot_of_its_own_rule() {
    for (on_busy, answer) in [(OnBusy::Miss, "END|"), (OnBusy::Error, "SERVER_ERROR busy|")] {
        for verb in ["get", "gets", "gat 9"] {
            let policy = Policy { rule_computers: Some(1), hold_ms: 2000, on_busy, ..policy() };
            let mut w = World::new(&[("page:{id}", policy)]);
            let a = w.connect();
            for n in 1..=3 {
                w.expect(a, &format!("get page:{n}|"), "END|");
            }
            w.send(a, &format!("{verb} page:4|"));
            w.pass(20);
            assert_eq!(w.replies(a), answer, "{verb}");
            w.expect(a, "set page:1 0 0 1|x|", "STORED|");
            w.engine.verify();
        }
    }
}

#[test]
fn a_shared_connection_that_computes_may_wait_for_a_slot() {
    let policy = Policy { rule_computers: Some(1), hold_ms: 2000, ..policy() };
    let mut w = World::new(&[("page:{id}", policy)]);
    let a = w.connect();
    for n in 1..=3 {
        w.expect(a, &format!("get page:{n}|"), "END|");
    }
    // It sends while its get is held.
    w.expect(a, "get page:4|", "");
    w.expect(a, "get page:5|", "");
    w.pass(30);
    assert_eq!(w.replies(a), "");
    for n in 1..=3 {
        w.send(a, &format!("set page:{n} 0 0 1|x|"));
    }
    w.pass(60);
    assert!(w.replies(a).starts_with("END|END|STORED|"), "both compute in turn");
    w.engine.verify();
}
