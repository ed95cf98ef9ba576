//! Methods that a host runs: what their calls answer, what they leave, and what happens when others come in
//! between.
//!
//! `SCRIPT_CALLS=n` sets the number of calls of each of eight threads.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::script_host::TestHost;
use crate::world::World;

pub(crate) fn world() -> (World, Arc<TestHost>) {
    let (world, host) = (World::new(&[]), TestHost::new(1));
    world.engine.set_objects(Some(host.registry(|_| ())));
    (world, host)
}

#[test]
fn a_call_of_a_host_is_answered_as_any_call() {
    let (mut world, host) = world();
    let client = world.connect();
    world.expect(client, "get tally:get:k|", "END|");
    world.expect(client, "get tally:new:k:5|", "VALUE tally:new:k:5 0 7|CREATED|END|");
    world.expect(client, "get tally:add:k:2|", "VALUE tally:add:k:2 0 1|7|END|");
    world.expect(client, "mg tally:add:k:2 v s f t|", "VA 1 s1 f0 t-1|9|");
    world.expect(client, "mg tally::k v Aadd:1|", "VA 2|10|");
    world.expect(client, "ms tally::k 1 Aadd v|5|", "VA 2|15|");
    world.expect(client, "ms tally::k 1 Aadd q|5|mg tally:get:k v q|", "VA 2|20|");
    world.expect(client, "get a tally:get:k b|", "VALUE tally:get:k 0 2|20|END|");
    world.expect(client, "mg tally:dump:k v|", "VA 2|20|");
    world.expect(client, "mg tally:dump:none v|mg tally:new:none:no v|", "EN|EN|");
    world.expect(client, "mg tally:exists:k v|mg tally:exists:none v|", "VA 6|EXISTS|VA 9|NOT_FOUND|");
    world.expect(client, "delete tally::k|delete tally::k noreply|get tally:get:k|", "DELETED|END|");
    assert!(host.runs.load(Ordering::Relaxed) > 10);
    world.check();
    assert!(world.engine.is_quiet());
}

#[test]
fn the_cas_rises_with_a_change_alone() {
    let (mut world, _host) = world();
    let client = world.connect();
    let cas = |world: &mut World, call: &str| {
        let reply = world.ask(client, &format!("mg {call} c|"));
        reply.trim_end_matches('|').trim_start_matches("HD c").parse::<u64>().unwrap()
    };
    let first = cas(&mut world, "tally:new:k:1");
    assert_eq!(cas(&mut world, "tally:get:k"), first);
    assert_eq!(cas(&mut world, "tally:add:k:0"), first, "it changes nothing");
    let second = cas(&mut world, "tally:add:k:1");
    assert!(second > first);
    assert!(cas(&mut world, "tally:add:k:1000") > second, "of another length");
}

/// Another worker of the engine, for what happens in the middle of a call.
pub(crate) fn meanwhile(world: &World, host: &TestHost, act: impl FnOnce(&mut World) + Send + 'static) {
    let mut other = world.beside(1);
    host.between(move || act(&mut other));
}

fn sum(counter: impl Fn(&cattlegrid_engine::Counters) -> u64, world: &World) -> u64 {
    counter(&world.counters)
}

#[test]
fn a_call_that_lost_its_object_is_made_again_in_the_queue() {
    let (mut world, host) = world();
    world.holds_calls = true;
    let a = world.connect();
    world.expect(a, "mg tally:add:k:1 v|", "VA 1|1|");
    meanwhile(&world, &host, |other| {
        let b = other.connect();
        other.expect(b, "mg tally:add:k:10 v|", "VA 2|11|");
    });
    // Its result would be 2.
    world.expect(a, "mg tally:add:k:1 v|", "");
    assert_eq!(sum(|counters| counters.script_moved.get(), &world), 1);
    // Others wait behind it, of whatever kind; other objects do not.
    let c = world.connect();
    world.expect(c, "mg tally:exists:other v|", "VA 9|NOT_FOUND|");
    world.expect(c, "mg tally:add:k:100 v|", "");
    let why = world.connect();
    let why = world.ask(why, "get @why:tally::k|");
    assert!(why.contains("\"busy\":true") && why.contains("\"waiting\":1"), "{why}");
    // In the middle of its second run nothing comes in between.
    meanwhile(&world, &host, |other| {
        let b = other.connect();
        other.holds_calls = true;
        other.expect(b, "mg tally:add:k:1000 v|", "");
    });
    assert!(world.go_on());
    assert_eq!(world.replies(a), "VA 2|12|");
    assert!(world.go_on());
    assert_eq!(world.replies(c), "VA 3|112|");
    assert!(world.go_on(), "that of the other worker");
    world.expect(a, "mg tally:get:k v|", "VA 4|1112|");
    assert_eq!(sum(|counters| counters.script_moved.get(), &world), 1);
    assert!(world.engine.is_quiet());
}

#[test]
fn a_run_does_not_store_over_an_object_that_is_busy() {
    let (mut world, host) = world();
    world.holds_calls = true;
    let (a, b) = (world.connect(), world.connect());
    world.expect(a, "mg tally:add:k:1 v|", "VA 1|1|");
    // The first run begins; in it another call loses its object and makes it busy.
    let inner = Arc::clone(&host);
    let (mut second, mut third) = (world.beside(1), world.beside(2));
    let (sender, receiver) = std::sync::mpsc::channel();
    host.between(move || {
        let c = second.connect();
        inner.between(move || {
            let d = third.connect();
            third.expect(d, "mg tally:add:k:1 v|", "VA 1|2|");
        });
        second.holds_calls = true;
        second.expect(c, "mg tally:add:k:10 v|", "");
        sender.send(std::mem::take(&mut second.calls)).unwrap();
    });
    world.expect(b, "mg tally:add:k:100 v|", "");
    assert_eq!(sum(|counters| counters.script_moved.get(), &world), 1);
    let why = world.ask(a, "get @why:tally::k|");
    assert!(why.contains("\"busy\":true") && why.contains("\"waiting\":1"), "{why}");
    world.calls.extend(receiver.recv().unwrap());
    while world.go_on() {}
    assert_eq!(world.replies(b), "VA 3|112|");
    assert!(world.engine.is_quiet());
}

/// Eight threads call `tally:add` on this many objects; each of the sums is answered once.
fn threads_on(objects: usize, calls: usize) -> u64 {
    let (world, host) = world();
    let workers: Vec<_> = (1..=8).map(|number| world.beside(number)).collect();
    let barrier = Arc::new(std::sync::Barrier::new(workers.len()));
    let work = |(n, mut world): (usize, World)| {
        let barrier = Arc::clone(&barrier);
        std::thread::spawn(move || {
            let client = world.connect();
            let mut sums = Vec::new();
            barrier.wait();
            for call in 0..calls {
                let object = (n * 7 + call) % objects;
                world.send(client, &format!("mg tally:add:k{object}:1 v|"));
                let reply = loop {
                    let reply = world.replies(client);
                    if !reply.is_empty() {
                        break reply;
                    }
                    world.receive();
                    while world.go_on() {}
                    std::thread::yield_now();
                };
                let sum = reply.split('|').nth(1).and_then(|sum| sum.parse::<u64>().ok());
                sums.push((object, sum.unwrap_or_else(|| panic!("{reply}"))));
            }
            (sums, world.counters.script_moved.get())
        })
    };
    let threads: Vec<_> = workers.into_iter().enumerate().map(work).collect();
    let mut sums: Vec<_> = Vec::new();
    let mut moved = 0;
    for thread in threads {
        let (some, lost) = thread.join().unwrap();
        sums.extend(some);
        moved += lost;
    }
    assert!(world.engine.is_quiet());
    sums.sort_unstable();
    let mut next = std::collections::BTreeMap::new();
    for (object, sum) in &sums {
        let own = next.entry(object).or_insert(0);
        *own += 1;
        assert_eq!(sum, own, "of object {object}");
    }
    assert_eq!(sums.len(), 8 * calls);
    assert_eq!(host.runs.load(Ordering::Relaxed) as u64, sums.len() as u64 + moved);
    moved
}

/// Calls of a thread: `SCRIPT_CALLS`, or this many.
fn calls(usual: usize) -> usize {
    std::env::var("SCRIPT_CALLS").map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn eight_threads_grant_everything_once() {
    let moved = threads_on(100, calls(2000));
    eprintln!("{moved} runs were lost");
}

#[test]
fn nobody_starves_on_a_hot_object() {
    let moved = threads_on(1, calls(1000));
    eprintln!("{moved} runs were lost");
}
