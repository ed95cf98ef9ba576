//! All orders of the steps of a few clients: which orders end with a value in the cache that is older than the last
//! invalidation, and that every circle of connections that wait for each other is cut.

use crate::world;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{LeaseTime, Owner, Policy, WaitGraph, Walk};
use world::World;

/// A client that reads, computes what it misses, and sets that.
#[derive(Debug, Clone, Copy)]
struct Filler {
    /// Connections of its `get` and its `set`.
    get: usize,
    set: usize,
}

/// The writer's command after it has changed the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Delete,
    Flush,
    Set,
}

/// A scene: each filler takes three steps (get, read the source, set), the writer two (change the source, invalidate).
/// The connections of the first `closes` fillers' gets are closed at some moment after these; if `evicts`, the key is
/// evicted at some moment.
struct Scene {
    owner: Owner,
    fillers: &'static [Filler],
    write: Write,
    closes: usize,
    evicts: bool,
    tiny: bool,
}

/// The writer's connection.
const WRITER: usize = 6;

impl Scene {
    fn world(&self) -> World {
        // No get is held: every client that misses computes.
        let policy =
            Policy { hold_ms: 0, owner: self.owner, lease: LeaseTime::Fixed(1000), ..Policy::default() };
        let bytes = if self.tiny { 64 } else { 1 << 14 };
        let config = RulesConfig {
            ledger_bytes: bytes * 4,
            fence_bytes: bytes,
            waiters: 10,
            tag_bytes: 1 << 12,
            ..world::config()
        };
        World::with(&[("page:{id}", policy)], &config, 1 << 20, 1)
    }

    /// Runs one order with its own key, long after all others; true: the value in the cache at the end is old.
    fn is_stale(&self, w: &mut World, nth: u64, order: &[usize]) -> bool {
        w.pass(10_000);
        let key = format!("page:{nth}");
        let mut connections: Vec<u64> = (0..=WRITER).map(|_| w.connect()).collect();
        let mut steps = [0; 7];
        let mut source = 1;
        let mut computed = [None; 3];
        for client in order {
            let step = steps[*client];
            steps[*client] += 1;
            if let Some(filler) = self.fillers.get(*client) {
                match step {
                    0 => {
                        let reply = w.ask(connections[filler.get], &format!("get {key}|"));
                        computed[*client] = (reply == "END|").then_some(0);
                    }
                    1 => computed[*client] = computed[*client].map(|_| source),
                    _ => {
                        if let Some(version) = computed[*client] {
                            w.ask(connections[filler.set], &format!("set {key} 0 0 1|{version}|"));
                        }
                    }
                }
            } else if *client == self.fillers.len() {
                match (step, self.write) {
                    (0, _) => source = 2,
                    (_, Write::Delete) => drop(w.ask(connections[WRITER], &format!("delete {key}|"))),
                    (_, Write::Flush) => w.flush(),
                    (_, Write::Set) => drop(w.ask(connections[WRITER], &format!("set {key} 0 0 1|2|"))),
                }
            } else if *client > self.fillers.len() + self.closes {
                w.evict();
            } else {
                let closer = client - self.fillers.len() - 1;
                // Its later commands are sent on a new connection.
                if steps[closer] > 0 {
                    let number = &mut connections[self.fillers[closer].get];
                    w.close(*number, nth.is_multiple_of(2));
                    *number = w.connect();
                }
            }
        }
        let stale = w.ask(connections[WRITER], &format!("get {key}|")).contains("|1|");
        for number in connections {
            w.close(number, false);
        }
        stale
    }

    /// The number of orders that end stale, and of all orders.
    fn count(&self) -> (u64, u64) {
        let mut left = vec![3; self.fillers.len()];
        left.push(2);
        left.extend(vec![1; self.closes]);
        left.extend(self.evicts.then_some(1));
        let mut w = self.world();
        let (mut stale, mut all) = (0, 0);
        each_order(&mut left, &mut Vec::new(), &mut |order| {
            all += 1;
            stale += u64::from(self.is_stale(&mut w, all, order));
        });
        (stale, all)
    }
}

/// Calls `each` with all orders of this many steps of each client.
fn each_order(left: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if left.iter().all(|steps| *steps == 0) {
        return each(order);
    }
    for client in 0..left.len() {
        if left[client] > 0 {
            left[client] -= 1;
            order.push(client);
            each_order(left, order, each);
            order.pop();
            left[client] += 1;
        }
    }
}

/// Each filler on its own connection.
const OWN: &[Filler] = &[Filler { get: 0, set: 0 }, Filler { get: 1, set: 1 }];
/// Gets and sets on different connections of a pool.
const POOLED: &[Filler] = &[Filler { get: 0, set: 2 }, Filler { get: 1, set: 3 }];
/// Both fillers on one connection.
const SHARED: &[Filler] = &[Filler { get: 0, set: 0 }, Filler { get: 0, set: 0 }];
/// Each sets on the connection of the other's get.
const CROSSING: &[Filler] = &[Filler { get: 0, set: 1 }, Filler { get: 1, set: 0 }];
const WAYS: [(&str, &[Filler]); 4] =
    [("own", OWN), ("pooled", POOLED), ("shared", SHARED), ("crossing", CROSSING)];

#[test]
fn two_fillers_and_an_invalidation() {
    for (way, fillers) in WAYS {
        for owner in [Owner::Key, Owner::Connection] {
            for write in [Write::Delete, Write::Flush, Write::Set] {
                for (evicts, tiny) in [(false, false), (false, true), (true, true)] {
                    if evicts && write != Write::Delete {
                        continue;
                    }
                    let (stale, all) = Scene { owner, fillers, write, closes: 0, evicts, tiny }.count();
                    let scene = format!("{way} {owner:?} {write:?} evicts: {evicts} tiny: {tiny}");
                    eprintln!("{scene}: {stale} of {all}");
                    assert_eq!(all, if evicts { 5040 } else { 560 });
                    let safe = match (owner, write) {
                        (Owner::Key, Write::Set) => false,
                        (Owner::Key, _) => true,
                        (Owner::Connection, Write::Set) => matches!(way, "own" | "shared"),
                        (Owner::Connection, _) => way == "own",
                    };
                    // Without room a fill is dropped.
                    assert!(if safe { stale == 0 } else { stale > 0 || tiny }, "{scene}: {stale}");
                }
            }
        }
    }
}

#[test]
fn three_fillers_and_an_invalidation() {
    let third = |way: &str| match way {
        "own" => Filler { get: 4, set: 4 },
        "pooled" => Filler { get: 4, set: 5 },
        "shared" => Filler { get: 0, set: 0 },
        _ => Filler { get: 2, set: 0 },
    };
    for (way, two) in WAYS {
        let fillers: &'static [Filler] = Box::leak(two.iter().copied().chain([third(way)]).collect());
        for owner in [Owner::Key, Owner::Connection] {
            let scene = Scene { owner, fillers, write: Write::Delete, closes: 0, evicts: false, tiny: false };
            let (stale, all) = scene.count();
            eprintln!("{way} {owner:?}: {stale} of {all}");
            assert_eq!(all, 92_400);
            assert_eq!(stale == 0, owner == Owner::Key || way == "own", "{way} {owner:?}: {stale}");
        }
    }
}

/// Pools may close a connection at any time, even while the thread that used it computes.
#[test]
fn two_fillers_whose_connections_close_and_an_invalidation() {
    for (way, fillers) in WAYS {
        for (write, closes, tiny) in [
            (Write::Delete, 2, false),
            (Write::Delete, 1, true),
            (Write::Flush, 1, false),
            (Write::Flush, 1, true),
        ] {
            let scene = Scene { owner: Owner::Key, fillers, write, closes, evicts: false, tiny };
            let (stale, all) = scene.count();
            eprintln!("{way} {write:?} closes: {closes} tiny: {tiny}: {stale} of {all}");
            assert_eq!(all, if closes == 1 { 5_040 } else { 50_400 });
            assert_eq!(stale, 0, "{way} {write:?} closes: {closes} tiny: {tiny}");
        }
    }
}

// Circles

/// Runs one order of three steps of each connection: to wait, to publish and look, to act on the result. Connection `n`
/// holds key `n` and waits for the next one's. `passes`: the last key has another holder at first, and passes to its
/// connection only with the fourth step of that connection, which publishes and looks again when it is told.
fn is_cut(order: &[usize], count: usize, passes: bool) -> bool {
    let graph = WaitGraph::default();
    let last = count - 1;
    let (mut steps, mut waits) = (vec![0; count], vec![false; count]);
    let mut seen: Vec<Option<Walk>> = vec![None; count];
    let mut holds: Vec<bool> = (0..count).map(|n| n != last || !passes).collect();
    let key = |n: usize| 100 + (n % count) as u64;
    let publish = |n: usize, holds: &[bool]| {
        let held = holds[n].then(|| key(n)).into_iter().collect::<Vec<_>>();
        if held.is_empty() { Walk::Clear } else { graph.publish(n as u64, vec![key(n + 1)], held) }
    };
    for n in order.iter().copied() {
        match steps[n] {
            0 => waits[n] = true,
            1 => seen[n] = Some(publish(n, &holds)),
            2 | 4 => match seen[n].take() {
                // Verified against the present holders.
                Some(Walk::Circle(circle))
                    if circle.iter().all(|step| {
                        holds[step.holder as usize] && step.hash == key(step.holder as usize)
                    }) =>
                {
                    waits[n] = false;
                    graph.withdraw(n as u64);
                }
                Some(Walk::TooLong) => waits[n] = false,
                _ => {}
            },
            _ => {
                holds[n] = true;
                if waits[n] {
                    seen[n] = Some(publish(n, &holds));
                }
            }
        }
        steps[n] += 1;
    }
    waits.contains(&false)
}

#[test]
fn every_circle_is_cut() {
    for (count, passes, expected) in
        [(2, false, 20), (3, false, 1680), (4, false, 369_600), (2, true, 56), (3, true, 9240)]
    {
        let mut left = vec![3; count];
        left[count - 1] += 2 * usize::from(passes);
        let (mut orders, mut uncut) = (0, 0);
        each_order(&mut left, &mut Vec::new(), &mut |order| {
            orders += 1;
            uncut += u64::from(!is_cut(order, count, passes));
        });
        assert_eq!((orders, uncut), (expected, 0), "{count} connections, passes: {passes}");
    }
}
