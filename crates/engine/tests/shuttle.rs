//! Threads that meet in one engine. [Shuttle](https://docs.rs/shuttle) runs each scene many times and may
//! switch threads wherever one locks, unlocks or touches an atomic: half of the runs choose at random, half
//! make few switches at places that count (PCT: Burckhardt et al., "A Randomized Scheduler with Probabilistic
//! Guarantees of Finding Bugs", ASPLOS 2010). Every atomic behaves as if sequentially consistent; weaker
//! orders are tested with loom, in `crates/tags`.
//!
//! `cargo xtask test --stage models`. `RUNS=n` sets the number of runs of each scene, `SHUTTLE_SEED=n` tries
//! other orders than those of every run (1); `SCHEDULE=...` repeats the run that a failure printed, of the
//! test that is named.

#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod script_host;
#[path = "shuttle/scripts.rs"]
mod scripts;
mod world;

use std::sync::Arc;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{LeaseTime, PeerKey, Policy};
use cattlegrid_objects::{Registry, Settings, TypeSettings};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::{Config, Runner, thread};
use world::World;

/// Switches of threads that PCT makes in a run.
const CHANGES: usize = 3;

fn explore(scene: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("RUNS").map_or(2_000, |text| text.parse().unwrap());
    let scene = Arc::new(scene);
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.silence_warnings = true;
        let scene = Arc::clone(&scene);
        Runner::new(scheduler, config).run(move || scene());
    };
    if let Ok(schedule) = std::env::var("SCHEDULE") {
        return run(Box::new(ReplayScheduler::new_from_encoded(&schedule)));
    }
    let seed = std::env::var("SHUTTLE_SEED").map_or(1, |seed| seed.parse().unwrap());
    run(Box::new(RandomScheduler::new_from_seed(seed, runs / 2)));
    run(Box::new(PctScheduler::new_from_seed(seed, CHANGES, runs / 2)));
}

fn policy() -> Policy {
    Policy { hold_ms: 300, hold_many_ms: 300, lease: LeaseTime::Fixed(3000), ..Policy::default() }
}

/// Workers of one engine with two shards.
fn workers<const N: usize>(policy: Policy) -> [World; N] {
    let config = RulesConfig {
        ledger_bytes: 1 << 14,
        fence_bytes: 1 << 12,
        waiters: 100,
        tag_bytes: 1 << 10,
        ..world::config()
    };
    let first = World::with(&[("page:{id}", policy)], &config, 16 << 20, 2);
    let others: Vec<World> = (1..N).map(|number| first.beside(number)).collect();
    let mut all = vec![first];
    all.extend(others);
    all.try_into().ok().unwrap()
}

/// The action of a worker in its thread.
type Act = Box<dyn FnOnce(&mut World) + Send>;

fn act(act: impl FnOnce(&mut World) + Send + 'static) -> Act {
    Box::new(act)
}

/// Runs all actions at once, and delivers the wakes that are left.
fn together<const N: usize>(workers: [World; N], acts: [Act; N]) -> [World; N] {
    let threads = workers.into_iter().zip(acts).map(|(mut worker, act)| {
        thread::spawn(move || {
            act(&mut worker);
            worker.receive();
            worker
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut workers: Vec<World> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    hear(&mut workers);
    workers.try_into().ok().unwrap()
}

/// Delivers the wakes between the workers, until there are none.
fn hear(workers: &mut [World]) {
    while workers.iter_mut().map(World::receive).fold(false, |any, some| any | some) {}
    workers[0].engine.verify();
}

/// Passes this time for all workers.
fn pass(workers: &mut [World], ms: u64) {
    for worker in workers {
        worker.pass(ms);
    }
}

/// No lease and no waiter is left.
#[track_caller]
fn assert_quiet(workers: &[World]) {
    workers[0].engine.verify();
    assert!(workers[0].engine.is_quiet(), "something is left");
}

#[test]
fn promote_and_close() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        w0.expect(a, "get page:1|", "END|");
        w1.expect(b, "get page:1|", "");
        w2.expect(c, "get page:1|", "");
        let mut all = together(
            [w0, w1, w2],
            [act(move |w| w.close(a, false)), act(move |w| w.close(b, false)), act(|_| {})],
        );
        assert_eq!(all[2].replies(c), "END|", "the waiter that is left has the lease");
        all[2].expect(c, "set page:1 0 0 1|v|", "STORED|");
        all[2].close(c, true);
        assert_quiet(&all);
    });
}

#[test]
fn timeout_fill_and_close() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(Policy { lease: LeaseTime::Fixed(100), ..policy() });
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        w0.expect(a, "get page:1|", "END|");
        w1.expect(b, "get page:1|", "");
        w2.expect(c, "get page:1|", "");
        for w in [&mut w0, &mut w1, &mut w2] {
            w.pass(99);
        }
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.expect(a, "set page:1 0 0 1|v|", "STORED|")),
                act(move |w| w.close(b, false)),
                act(|w| w.pass(1)),
            ],
        );
        let reply = all[2].replies(c);
        assert!(["END|", "VALUE page:1 0 1|v|END|"].contains(&reply.as_str()), "{reply}");
        assert_eq!(all[2].waiting(c), 0);
        all[2].expect(c, "get page:1|", "VALUE page:1 0 1|v|END|");
        all[0].close(a, true);
        all[2].close(c, true);
        assert_quiet(&all);
    });
}

#[test]
fn end_of_a_hold_and_fill() {
    explore(|| {
        let [mut w0, mut w1] = workers(policy());
        let (a, b) = (w0.connect(), w1.connect());
        w0.expect(a, "get page:1|", "END|");
        w1.expect(b, "get page:1|", "");
        w0.pass(299);
        w1.pass(299);
        let mut all = together(
            [w0, w1],
            [act(move |w| w.expect(a, "set page:1 0 0 1|v|", "STORED|")), act(|w| w.pass(1))],
        );
        let reply = all[1].replies(b);
        assert!(["END|", "VALUE page:1 0 1|v|END|"].contains(&reply.as_str()), "{reply}");
        assert_eq!(all[1].waiting(b), 0);
        assert_quiet(&all);
    });
}

/// `N` connections, each of which computes a page, ask for each other's.
fn circle<const N: usize>() {
    let mut all: [World; N] = workers(policy());
    let connections: Vec<u64> = all.iter_mut().map(World::connect).collect();
    for (n, (w, c)) in all.iter_mut().zip(&connections).enumerate() {
        w.expect(*c, &format!("get page:{n}|"), "END|");
    }
    let acts = connections.iter().copied().enumerate().map(|(n, c)| {
        let next = (n + 1) % N;
        act(move |w| w.send(c, &format!("get page:{next}|")))
    });
    let acts: Vec<Act> = acts.collect();
    let mut all = together(all, acts.try_into().ok().unwrap());
    // A connection that is not held stores its page; so all are released, one after the other, without time
    // passing.
    let mut left: Vec<usize> = (0..N).collect();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|&n| {
            let waits = all[n].waiting(connections[n]) == 1;
            if !waits {
                let reply = all[n].replies(connections[n]);
                assert!(!reply.is_empty());
                all[n].expect(connections[n], &format!("set page:{n} 0 0 1|v|"), "STORED|");
            }
            waits
        });
        hear(&mut all);
        assert!(left.len() < before, "{left:?} wait for each other");
    }
    for (w, c) in all.iter_mut().zip(connections) {
        w.close(c, true);
    }
    assert_quiet(&all);
}

#[test]
fn publish_and_check_of_two() {
    explore(circle::<2>);
}

#[test]
fn publish_and_check_of_three() {
    explore(circle::<3>);
}

#[test]
fn publish_and_check_of_four() {
    explore(circle::<4>);
}

#[test]
fn a_promotion_that_closes_a_circle() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let (x, c1, c2) = (w0.connect(), w1.connect(), w2.connect());
        w0.expect(x, "get page:b|", "END|");
        w1.expect(c1, "get page:a|", "END|");
        w2.expect(c2, "get page:b|get page:a|", "");
        let mut all = together(
            [w0, w1, w2],
            [act(move |w| w.close(x, false)), act(move |w| w.send(c1, "get page:b|")), act(|_| {})],
        );
        let [one, two] = [all[1].waiting(c1), all[2].waiting(c2)];
        assert!(one + two < 2, "they wait for each other: {:?}", all[2].replies(c2));
    });
}

#[test]
fn the_last_free_connection() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let peer = PeerKey::Process(1);
        let q = w0.connect();
        let (h, p1, p2) = (w0.connect_from(peer), w1.connect_from(peer), w2.connect_from(peer));
        w0.expect(q, "get page:2|", "END|");
        w0.expect(h, "get page:1|", "END|");
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.send(h, "get page:2|")),
                act(move |w| w.send(p1, "get page:1|")),
                act(move |w| w.send(p2, "get page:1|")),
            ],
        );
        let held = all[0].waiting(h) + all[1].waiting(p1) + all[2].waiting(p2);
        assert!(held < 3, "no connection is left to carry the value");
        all[0].close(q, false);
        all[0].close(h, false);
        hear(&mut all);
        all[1].close(p1, false);
        hear(&mut all);
        all[2].close(p2, false);
        assert_quiet(&all);
    });
}

#[test]
fn slots_of_a_rule() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(Policy { rule_computers: Some(1), ..policy() });
        let connections = [w0.connect(), w1.connect(), w2.connect()];
        let [a, b, c] = connections;
        w0.expect(a, "get page:0|", "END|");
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.expect(a, "set page:0 0 0 1|v|", "STORED|")),
                act(move |w| w.send(b, "get page:1|")),
                act(move |w| w.send(c, "get page:2|")),
            ],
        );
        let mut left = vec![1, 2];
        while !left.is_empty() {
            pass(&mut all, 0);
            hear(&mut all);
            let at = left.iter().position(|&n| all[n].waiting(connections[n]) == 0);
            let n = left.remove(at.expect("a slot is lost"));
            assert!(left.iter().all(|&n| all[n].waiting(connections[n]) == 1), "more than one computes");
            all[n].expect(connections[n], &format!("set page:{n} 0 0 1|v|"), "END|STORED|");
        }
        let taken = all[0].engine.shared().rules().as_ref().unwrap().each().next().unwrap().1.slots_taken();
        assert_eq!(taken, 0);
        assert_quiet(&all);
    });
}

#[test]
fn a_slot_passes_over_a_waiter_that_closes() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(Policy { rule_computers: Some(1), ..policy() });
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        w0.expect(a, "get page:0|", "END|");
        w1.expect(b, "get page:1|", "");
        w2.expect(c, "get page:2|", "");
        let mut all = together(
            [w0, w1, w2],
            [act(move |w| w.close(a, false)), act(move |w| w.close(b, false)), act(|w| w.pass(0))],
        );
        pass(&mut all, 0);
        hear(&mut all);
        assert_eq!(all[2].replies(c), "END|", "the slot is free");
        all[2].expect(c, "set page:2 0 0 1|v|", "STORED|");
        assert_quiet(&all);
    });
}

#[test]
fn timeouts_and_an_event_that_revokes() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        w0.expect(a, "get page:1|", "END|");
        w1.expect(b, "get page:1|", "");
        let mut all = together(
            [w0, w1, w2],
            [
                act(|w| w.pass(1)),
                act(|w| w.pass(1)),
                act(move |w| {
                    w.ask(c, "delete @tag:other|");
                    w.ask(c, "delete @tag:page|");
                }),
            ],
        );
        // The first worker that looks finds it, at most 10 ms later.
        pass(&mut all, 10);
        hear(&mut all);
        assert_eq!(all[1].replies(b), "END|", "its lease was revoked, and it is the holder");
        all[0].expect(a, "set page:1 0 0 3|old|", "STORED|");
        all[1].close(b, false);
        all[0].close(a, false);
        assert_quiet(&all);
    });
}

#[test]
fn failure_close_and_the_end_of_a_hold() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        let begun = w0.ask(a, "mg page:1 v c N30|");
        let token = begun.strip_prefix("VA 0 c").unwrap().split(' ').next().unwrap().to_owned();
        w1.expect(b, "mg page:1 v Pw400|", "");
        w2.expect(c, "get page:1|", "");
        for w in [&mut w0, &mut w1, &mut w2] {
            w.pass(299);
        }
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.expect(a, &format!("md page:1 C{token} Penough|"), "HD|")),
                act(move |w| w.close(b, false)),
                act(|w| w.pass(1)),
            ],
        );
        assert_eq!(all[2].replies(c), "END|", "it is the holder, or its hold was over");
        all[2].close(c, false);
        assert_quiet(&all);
    });
}

#[test]
fn other_rules_while_clients_wait() {
    explore(|| {
        let [mut w0, mut w1, w2] = workers(policy());
        let (a, b) = (w0.connect(), w1.connect());
        w0.expect(a, "get page:1|", "END|");
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.expect(a, "set page:1 0 0 1|v|", "STORED|")),
                act(move |w| w.send(b, "get page:1|")),
                act(|w| {
                    w.set_rules(&[]);
                    w.set_rules(&[("page:{id}", policy())]);
                }),
            ],
        );
        pass(&mut all, 300);
        hear(&mut all);
        let reply = all[1].replies(b);
        assert!(["END|", "VALUE page:1 0 1|v|END|"].contains(&reply.as_str()), "{reply}");
        all[0].close(a, false);
        all[1].close(b, false);
        assert_quiet(&all);
    });
}

#[test]
fn peers_come_and_go() {
    explore(|| {
        let [mut w0, w1, mut w2] = workers(policy());
        let peer = PeerKey::Process(1);
        let (q, p) = (w2.connect(), w0.connect_from(peer));
        w2.expect(q, "get page:1|", "END|");
        w0.expect(p, "get page:1|", "");
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.close(p, false)),
                act(move |w| {
                    let another = w.connect_from(peer);
                    w.expect(another, "get page:1|", "");
                }),
                act(move |w| {
                    let third = w.connect_from(peer);
                    w.close(third, true);
                }),
            ],
        );
        let shared = all[0].engine.shared();
        assert_eq!(shared.peers().len(), 2, "the peer of the holder, and this one");
        let one = shared.peers().join(peer);
        assert_eq!(one.free(), 1, "its only other connection is held");
        shared.peers().leave(&one);
        all[2].close(q, false);
        hear(&mut all);
        assert_eq!(all[1].engine.held(), 0);
    });
}

/// Two clients compute what they miss while the source changes; a third client, which changed it, invalidates
/// the key with this command and then asks for it.
fn no_old_value(invalidate: &'static str) {
    let [mut w0, mut w1, mut w2] = workers(policy());
    let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
    let source = Arc::new(AtomicU64::new(1));
    let filler = |number| {
        let source = Arc::clone(&source);
        act(move |w| {
            w.send(number, "get page:1|");
            w.receive();
            if w.replies(number) == "END|" {
                let version = source.load(Ordering::SeqCst);
                w.expect(number, &format!("set page:1 0 0 1|{version}|"), "STORED|");
            }
        })
    };
    let (one, two) = (filler(a), filler(b));
    let mut all = together(
        [w0, w1, w2],
        [
            one,
            two,
            act(move |w| {
                source.store(2, Ordering::SeqCst);
                if invalidate.is_empty() {
                    w.flush();
                } else {
                    w.ask(c, invalidate);
                }
                w.send(c, "get page:1|");
            }),
        ],
    );
    let seen = all[2].replies(c);
    assert!(!seen.contains("|1|"), "an old value is served after the invalidation");
    all[0].close(a, false);
    all[1].close(b, false);
    hear(&mut all);
    all[2].replies(c);
    all[2].send(c, "get page:1|");
    assert!(!all[2].replies(c).contains("|1|"), "an old value is in the cache");
    all[2].close(c, false);
    assert_quiet(&all);
}

#[test]
fn fill_and_delete() {
    explore(|| no_old_value("delete page:1|"));
}

#[test]
fn fill_and_flush() {
    explore(|| no_old_value(""));
}

#[test]
fn fill_and_bump() {
    explore(|| no_old_value("delete @tag:page|"));
}

#[test]
fn many_keys_in_many_shards() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(policy());
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        for n in 0..4 {
            w2.expect(c, &format!("get page:{n}|"), "END|");
        }
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| w.send(a, "get page:0 page:1 page:2 page:3|")),
                act(move |w| w.send(b, "get page:3 page:2 page:1 page:0|")),
                act(move |w| {
                    for n in 0..4 {
                        w.expect(c, &format!("set page:{n} 0 0 1|{n}|"), "STORED|");
                    }
                }),
            ],
        );
        let value = |n| format!("VALUE page:{n} 0 1|{n}|");
        let reply = |order: [usize; 4]| order.map(value).concat() + "END|";
        assert_eq!(all[0].replies(a), reply([0, 1, 2, 3]));
        assert_eq!(all[1].replies(b), reply([3, 2, 1, 0]));
        assert_quiet(&all);
    });
}

/// A loader computes what two clients miss while the source changes; a third client, which changed it,
/// invalidates the key with this command and then asks for it.
fn no_old_load(invalidate: &'static str) {
    let [mut w0, mut w1, mut w2] = workers(Policy { loader: true, ..policy() });
    let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
    let source = Arc::new(AtomicU64::new(1));
    let reader = |number| {
        let source = Arc::clone(&source);
        act(move |w| {
            w.send(number, "get page:1|");
            // Its jobs read the source when they begin, and end on the thread that has begun them.
            for _ in 0..2 {
                let versions = w.tokens().into_iter().map(|token| (token, source.load(Ordering::SeqCst)));
                for (token, version) in versions.collect::<Vec<_>>() {
                    let _landed = w.finish_with(token, &version.to_string());
                }
                w.receive();
            }
        })
    };
    let (one, two) = (reader(a), reader(b));
    let changed = Arc::clone(&source);
    let mut all = together(
        [w0, w1, w2],
        [
            one,
            two,
            act(move |w| {
                changed.store(2, Ordering::SeqCst);
                if invalidate.is_empty() {
                    w.flush();
                } else {
                    w.ask(c, invalidate);
                }
                w.send(c, "get page:1|");
            }),
        ],
    );
    hear(&mut all);
    pass(&mut all, 20);
    // No more than two jobs of the key, whichever threads have begun them.
    let out: usize = all.iter().map(|world| world.jobs.len()).sum();
    assert!(out <= 2, "{out} jobs");
    while let Some(world) = all.iter_mut().find(|world| !world.jobs.is_empty()) {
        let token = world.tokens()[0];
        let _landed = world.finish_with(token, "2");
        hear(&mut all);
    }
    assert_eq!(
        all[2].replies(c),
        "VALUE page:1 0 1|2|END|",
        "a value from after the invalidation, and no miss"
    );
    for (world, reader) in all.iter_mut().zip([a, b]) {
        let seen = world.replies(reader);
        assert!(seen.starts_with("VALUE page:1 0 1|"), "{seen}");
    }
    assert_quiet(&all);
}

#[test]
fn load_and_delete() {
    explore(|| no_old_load("delete page:1|"));
}

#[test]
fn load_and_flush() {
    explore(|| no_old_load(""));
}

#[test]
fn load_and_bump() {
    explore(|| no_old_load("delete @tag:page|"));
}

#[test]
fn load_and_set() {
    explore(|| {
        let [mut w0, mut w1, mut w2] = workers(Policy { loader: true, ..policy() });
        let (a, b, c) = (w0.connect(), w1.connect(), w2.connect());
        w0.send(a, "get page:1|");
        let token = w0.tokens()[0];
        let mut all = together(
            [w0, w1, w2],
            [
                act(move |w| {
                    let _landed = w.finish_with(token, "1");
                }),
                act(move |w| w.send(b, "get page:1|")),
                act(move |w| w.expect(c, "set page:1 0 0 1|2|", "STORED|")),
            ],
        );
        hear(&mut all);
        for (world, reader) in all.iter_mut().zip([a, b]) {
            let seen = world.replies(reader);
            assert!(seen.starts_with("VALUE page:1 0 1|"), "{seen}");
        }
        assert!(all.iter().all(|world| world.jobs.is_empty()));
        assert_quiet(&all);
    });
}

fn registry(types: &[&str]) -> Arc<Registry> {
    let types = types.iter().map(|name| TypeSettings::new(name)).collect();
    Arc::new(Registry::new(Settings { types, ..Settings::default() }).unwrap())
}

fn walk_all(world: &World) {
    while world.engine.tick(world.now()) {}
}

/// A key is stored while its name becomes that of a call, and the walk that removes such items goes on.
fn types_and_a_store(before: Option<&str>) {
    let [mut w0, w1, w2] = workers(policy());
    if let Some(before) = before {
        w1.engine.set_objects(Some(registry(&[before])));
        walk_all(&w1);
    }
    let a = w0.connect();
    let mut all = together(
        [w0, w1, w2],
        [
            act(move |w| {
                let reply = w.ask(a, "set counter:add:k:1 0 0 1|x|");
                assert!(
                    ["STORED|", "CLIENT_ERROR counter:add is a method|"].contains(&reply.as_str()),
                    "{reply}"
                );
            }),
            act(|w| w.engine.set_objects(Some(registry(&["counter"])))),
            act(|w| _ = w.engine.tick(w.now())),
        ],
    );
    walk_all(&all[0]);
    assert_eq!(all[0].peek("counter:add:k:1"), None, "it is behind the walk");
    all[0].expect(a, "get counter:add:k:1|", "VALUE counter:add:k:1 0 1|1|END|");
    assert_quiet(&all);
}

#[test]
fn the_first_types_and_a_store() {
    explore(|| types_and_a_store(None));
}

#[test]
fn other_types_and_a_store() {
    explore(|| types_and_a_store(Some("set")));
}

/// A call makes an object while its type is switched off.
#[test]
fn types_that_are_switched_off_and_a_call() {
    explore(|| {
        let [mut w0, w1, w2] = workers(policy());
        w1.engine.set_objects(Some(registry(&["counter", "set"])));
        walk_all(&w1);
        let a = w0.connect();
        let all = together(
            [w0, w1, w2],
            [
                act(move |w| {
                    let reply = w.ask(a, "mg counter:add:k:1 v|");
                    assert!(["VA 1|1|", "EN|"].contains(&reply.as_str()), "{reply}");
                }),
                act(|w| w.engine.set_objects(Some(registry(&["set"])))),
                act(|w| _ = w.engine.tick(w.now())),
            ],
        );
        walk_all(&all[0]);
        assert_eq!(all[0].engine.usage().0.objects, 0, "it is behind the walk");
        assert_quiet(&all);
    });
}
