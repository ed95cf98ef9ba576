//! All orders of the steps of a few clients: which orders end with a value in the cache that is older than
//! the last invalidation, and that every circle of connections that wait for each other is cut.
//!
//! Orders that cannot differ in anything are tried once ([`Scene::is_first_of_its_kind`]):
//!
//! * Reading the source and changing it are no commands: such a step may change places with its neighbour,
//!   unless one of the two is the change and the other a reading.
//! * Fillers whose connections are used alike may change names, and clients that only read.
//!
//! Where gets are held only names are changed: when a client reads the source depends on the commands before.
//!
//! Tests whose names end in `end_as_the_ones_tried` run all orders as well and compare how they end. They
//! take minutes and are run by hand: `cargo nextest run -p cattlegrid-engine --run-ignored only orders::`.

use std::collections::BTreeSet;

use cattlegrid_engine::RulesConfig;
use cattlegrid_herd::{Ambiguous, CircleSearch, FillWindow, LeaseTime, OnBusy, Owner, Policy, WaitGraph};

use crate::world::{self, World};

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
    /// A soft invalidation, of a key without grace.
    Soft,
    /// The same, and once more.
    SoftTwice,
}

/// What the clients do besides.
#[derive(Debug, Clone, Copy, Default)]
struct Habits {
    /// Longest hold of a get, in milliseconds.
    hold_ms: u32,
    /// They take a busy error, which they get in place of other misses, for a miss.
    takes_errors: bool,
    /// They ask twice before they read the source: a step more.
    asks_twice: bool,
    /// What was not there before the change of the source is stored as a negative answer.
    negative: bool,
    /// Further clients, of one step each: a get.
    readers: usize,
}

/// A scene: each filler takes three steps (get, read the source, set), the writer two (change the source,
/// invalidate). The connections of the first `closes` fillers' gets are closed at some moment, `orderly` or
/// by a reset; if `evicts`, the key is evicted at some moment.
#[derive(Debug)]
struct Scene {
    owner: Owner,
    ambiguous: Ambiguous,
    fillers: &'static [Filler],
    write: Write,
    closes: usize,
    orderly: bool,
    evicts: bool,
    tiny: bool,
    habits: Habits,
}

/// The writer's connection.
const WRITER: usize = 6;

impl Scene {
    fn world(&self) -> World {
        // Mostly no get is held: every client that misses computes.
        let policy = Policy {
            hold_ms: self.habits.hold_ms,
            on_busy: if self.habits.takes_errors { OnBusy::Error } else { OnBusy::Miss },
            owner: self.owner,
            ambiguous: self.ambiguous,
            lease: LeaseTime::Fixed(1000),
            // Over before the next order begins.
            fill_window: FillWindow::Fixed(9_000),
            ..Policy::default()
        };
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

    /// Runs one order with its own key, long after all others.
    fn run(&self, w: &mut World, nth: u64, order: &[usize]) -> End {
        w.pass(10_000);
        let key = format!("page:{nth}");
        let mut connections: Vec<u64> = (0..=WRITER + self.habits.readers).map(|_| w.connect()).collect();
        let mut steps = [0; 8];
        let mut source = 1;
        let (first_reader, twice) = (self.first_reader(), usize::from(self.habits.asks_twice));
        let get = format!("get {key}|");
        // Replies to gets that were sent after the invalidation.
        let mut late = Vec::new();
        let is_late = |steps: &[usize]| steps[self.fillers.len()] >= 2;
        let mut fillers = vec![FillerEnd::default(); self.fillers.len()];
        for client in order {
            let step = steps[*client];
            steps[*client] += 1;
            if let Some(filler) = self.fillers.get(*client) {
                let end = &mut fillers[*client];
                match step {
                    0 => {
                        end.got = w.ask(connections[filler.get], &get);
                        end.is_late = is_late(&steps);
                    }
                    1 if twice > 0 => {
                        if self.is_miss(&end.got) {
                            end.got = w.ask(connections[filler.get], &get);
                        }
                    }
                    _ if step == 1 + twice => self.compute(w, connections[filler.get], source, end),
                    _ => {
                        if end.computed.is_none() {
                            self.compute(w, connections[filler.get], source, end);
                        }
                        self.fill(w, connections[filler.set], &key, end);
                    }
                }
            } else if *client >= first_reader {
                let reader = connections[WRITER + 1 + client - first_reader];
                w.send(reader, &get);
                late.extend(is_late(&steps).then_some(reader));
            } else if *client == self.fillers.len() {
                match (step, self.write) {
                    (0, _) => source = 2,
                    (_, Write::Delete) => drop(w.ask(connections[WRITER], &format!("delete {key}|"))),
                    (_, Write::Flush) => w.flush(),
                    (_, Write::Set) => drop(w.ask(connections[WRITER], &format!("set {key} 0 0 1|2|"))),
                    (_, Write::Soft | Write::SoftTwice) => {
                        drop(w.ask(connections[WRITER], &format!("md {key} I|")));
                    }
                }
            } else if *client > self.fillers.len() + self.closes {
                w.evict();
            } else {
                let closer = client - self.fillers.len() - 1;
                // Its later commands are sent on a new connection.
                if steps[closer] > 0 {
                    let number = &mut connections[self.fillers[closer].get];
                    w.close(*number, self.orderly);
                    *number = w.connect();
                }
            }
        }
        if self.habits.hold_ms > 0 {
            // What is held still ends, and is computed last.
            w.pass(u64::from(self.habits.hold_ms));
            for (filler, end) in self.fillers.iter().zip(&mut fillers).filter(|(_, end)| end.got.is_empty()) {
                self.compute(w, connections[filler.get], source, end);
                self.fill(w, connections[filler.set], &key, end);
            }
        }
        let mut shown: Vec<String> = late.into_iter().map(|reader| w.replies(reader)).collect();
        shown.extend(fillers.iter().filter(|end| end.is_late).map(|end| end.got.clone()));
        let shown = shown.iter().any(|got| got.contains("|1|"));
        for end in &mut fillers {
            end.got = end.got.replace(&key, "page");
        }
        if matches!(self.write, Write::Soft | Write::SoftTwice) {
            // What may be older is there for a time.
            w.pass(6_000);
        }
        let why = w.ask(connections[WRITER], &format!("get @why:{key}|"));
        let provisional = why.contains("\"provisional\":true");
        let negative = why.contains("\"standing\":\"negative\"");
        let state = format!("{:?}", w.engine.key_state(key.as_bytes(), w.now()));
        let last = w.ask(connections[WRITER], &format!("get {key}|")).replace(&key, "page");
        for number in connections {
            w.close(number, false);
        }
        End { fillers, state, last, provisional, negative, shown }
    }

    fn first_reader(&self) -> usize {
        self.fillers.len() + 1 + self.closes + usize::from(self.evicts)
    }

    fn is_miss(&self, got: &str) -> bool {
        got == "END|" || self.habits.takes_errors && got == "SERVER_ERROR busy|"
    }

    /// A client that has missed the key by now reads the source.
    fn compute(&self, w: &mut World, connection: u64, source: u8, end: &mut FillerEnd) {
        if self.habits.hold_ms > 0 {
            end.got += &w.replies(connection);
        }
        end.computed = self.is_miss(&end.got).then_some(source);
    }

    fn fill(&self, w: &mut World, connection: u64, key: &str, end: &mut FillerEnd) {
        let Some(version) = end.computed else { return };
        let line = match version {
            1 if self.habits.negative => format!("ms {key} 0 T30 n||"),
            _ => format!("set {key} 0 0 1|{version}|"),
        };
        end.set = w.ask(connection, &line);
    }

    /// Whether an order ends with something old that stays; or gave something old to a get that was sent
    /// later, where that is promised.
    fn is_stale(&self, end: &End) -> bool {
        let is_hard = matches!(self.write, Write::Delete | Write::Flush);
        let shows_nothing = self.owner == Owner::Connection || is_hard && self.ambiguous == Ambiguous::Drop;
        (end.last.contains("|1|") || end.negative) && !end.provisional
            || end.shown && shows_nothing && self.habits.hold_ms > 0
    }

    /// How all orders end, or those that [`Self::is_first_of_its_kind`] keeps; the number of those that end
    /// stale, and of all that were tried.
    fn ends(&self, reduced: bool) -> (BTreeSet<End>, u64, u64) {
        let mut left = vec![3 + usize::from(self.habits.asks_twice); self.fillers.len()];
        left.push(if self.write == Write::SoftTwice { 3 } else { 2 });
        left.extend(vec![1; self.closes]);
        left.extend(self.evicts.then_some(1));
        left.extend(vec![1; self.habits.readers]);
        let (mut w, alike) = (self.world(), self.are_fillers_alike());
        let (mut ends, mut stale, mut all) = (BTreeSet::new(), 0, 0);
        let mut each = |order: &[usize]| {
            all += 1;
            let mut end = self.run(&mut w, all, order);
            if alike {
                end.fillers.sort();
            }
            stale += u64::from(self.is_stale(&end));
            ends.insert(end);
        };
        let keep = |order: &[usize]| !reduced || self.is_first_of_its_kind(order, alike);
        each_order(&mut left, &mut Vec::new(), &keep, &mut each);
        (ends, stale, all)
    }

    /// Whether the beginning of an order, without its last step known to be one, is the one that is tried of
    /// all those that cannot differ. Of two neighbours that may change places the lower number comes first,
    /// and fillers that are alike send their gets in the order of their numbers. Gets change places with no
    /// other get, so the two choices do not meet; and of the orders that change into each other the first in
    /// lexicographic order has no such neighbours.
    fn is_first_of_its_kind(&self, order: &[usize], alike: bool) -> bool {
        let Some((&client, before)) = order.split_last() else { return true };
        let is_begun = |client: &usize| before.contains(client);
        if client < self.fillers.len() && !is_begun(&client) && alike {
            return (0..client).all(|other| is_begun(&other));
        }
        if client > self.first_reader() && !is_begun(&(client - 1)) {
            return false;
        }
        if self.habits.hold_ms > 0 {
            // Whether a client reads the source yet depends on what was sent before.
            return true;
        }
        let Some((&neighbour, earlier)) = before.split_last() else { return true };
        let step = |client: usize, before: &[usize]| before.iter().filter(|step| **step == client).count();
        let (first, second) =
            (self.effect(neighbour, step(neighbour, earlier)), self.effect(client, step(client, before)));
        let commute = match (first, second) {
            (Effect::Command, Effect::Command)
            | (Effect::Reads, Effect::Changes)
            | (Effect::Changes, Effect::Reads) => false,
            _ => neighbour != client,
        };
        !commute || neighbour < client
    }

    fn effect(&self, client: usize, step: usize) -> Effect {
        if client < self.fillers.len() && step == 1 + usize::from(self.habits.asks_twice) {
            Effect::Reads
        } else if client == self.fillers.len() && step == 0 {
            Effect::Changes
        } else {
            Effect::Command
        }
    }

    /// Whether any two fillers may change names: connections can be renamed so that the scene stays the same.
    fn are_fillers_alike(&self) -> bool {
        (1..self.fillers.len()).all(|nth| {
            let mut swapped: Vec<usize> = (0..self.fillers.len()).collect();
            swapped.swap(nth - 1, nth);
            let uses = |filler: &Filler| [filler.get, filler.set];
            let mut renamed: Vec<(usize, usize)> = self
                .fillers
                .iter()
                .zip(&swapped)
                .flat_map(|(filler, other)| uses(filler).into_iter().zip(uses(&self.fillers[*other])))
                .collect();
            renamed.sort_unstable();
            renamed.dedup();
            let is_unique = |of: fn(&(usize, usize)) -> usize| {
                renamed.iter().map(of).collect::<BTreeSet<_>>().len() == renamed.len()
            };
            is_unique(|pair| pair.0) && is_unique(|pair| pair.1) && self.closes != nth
        })
    }
}

/// What a step meets.
#[derive(Clone, Copy)]
enum Effect {
    /// The server, as all commands do.
    Command,
    /// The source, at its reader.
    Reads,
    /// The source, at its writer.
    Changes,
}

/// How an order ended, as its clients saw it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    /// Sorted, where names mean nothing.
    fillers: Vec<FillerEnd>,
    /// The engine's word for what the key is at the end.
    state: String,
    /// The last reply to a get.
    last: String,
    /// The value is there for a limited time only.
    provisional: bool,
    /// It is a negative answer.
    negative: bool,
    /// A get that was sent after the invalidation was given an old value.
    shown: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct FillerEnd {
    got: String,
    /// The version of the source, of a client that computed.
    computed: Option<u8>,
    set: String,
    /// It asked after the invalidation.
    is_late: bool,
}

/// Calls `each` with all orders of this many steps of each client whose beginnings `keep` keeps.
fn each_order(
    left: &mut [usize],
    order: &mut Vec<usize>,
    keep: &impl Fn(&[usize]) -> bool,
    each: &mut impl FnMut(&[usize]),
) {
    if left.iter().all(|steps| *steps == 0) {
        return each(order);
    }
    for client in 0..left.len() {
        if left[client] > 0 {
            left[client] -= 1;
            order.push(client);
            if keep(order) {
                each_order(left, order, keep, each);
            }
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
/// To which miss a fill belongs, and what becomes of it where that is not known.
const OWNERS: [(Owner, Ambiguous); 3] =
    [(Owner::Key, Ambiguous::Drop), (Owner::Key, Ambiguous::Serve), (Owner::Connection, Ambiguous::Serve)];
const WAYS: [(&str, &[Filler]); 4] =
    [("own", OWN), ("pooled", POOLED), ("shared", SHARED), ("crossing", CROSSING)];

/// What the end of a scene's orders must be.
#[derive(Debug, PartialEq, Eq)]
enum Promise {
    /// No order ends with an old value that stays.
    Never,
    /// Some do.
    Some,
    /// Some may: without room a fill is dropped.
    Any,
}

/// Without closed connections, evictions and other habits.
fn scene(owner: Owner, ambiguous: Ambiguous, fillers: &'static [Filler], write: Write) -> Scene {
    let habits = Habits::default();
    Scene { owner, ambiguous, fillers, write, closes: 0, orderly: false, evicts: false, tiny: false, habits }
}

fn two_fillers() -> Vec<(String, Scene, Promise)> {
    let mut scenes = Vec::new();
    for (way, fillers) in WAYS {
        for (owner, ambiguous) in OWNERS {
            for write in [Write::Delete, Write::Flush, Write::Set] {
                for (evicts, tiny) in [(false, false), (false, true), (true, true)] {
                    if evicts && write != Write::Delete {
                        continue;
                    }
                    let safe = match (owner, write) {
                        (Owner::Key, Write::Set) => false,
                        (Owner::Key, _) => true,
                        (Owner::Connection, _) => way == "own",
                    };
                    let promise = match (safe, tiny) {
                        (true, _) => Promise::Never,
                        (false, false) => Promise::Some,
                        (false, true) => Promise::Any,
                    };
                    let scene = Scene { evicts, tiny, ..scene(owner, ambiguous, fillers, write) };
                    scenes.push((way.to_owned(), scene, promise));
                }
            }
        }
    }
    scenes
}

fn three_fillers() -> Vec<(String, Scene, Promise)> {
    let third = |way: &str| match way {
        "own" => Filler { get: 4, set: 4 },
        "pooled" => Filler { get: 4, set: 5 },
        "shared" => Filler { get: 0, set: 0 },
        _ => Filler { get: 2, set: 0 },
    };
    let mut scenes = Vec::new();
    for (way, two) in WAYS {
        let fillers: &'static [Filler] = Box::leak(two.iter().copied().chain([third(way)]).collect());
        for (owner, ambiguous) in OWNERS {
            let scene = scene(owner, ambiguous, fillers, Write::Delete);
            let safe = owner == Owner::Key || way == "own";
            scenes.push((way.to_owned(), scene, if safe { Promise::Never } else { Promise::Some }));
        }
    }
    scenes
}

/// Pools may close a connection at any time, even while the thread that used it computes.
fn closing_fillers() -> Vec<(String, Scene, Promise)> {
    let mut scenes = Vec::new();
    for (way, fillers) in WAYS {
        for (write, closes, tiny) in [
            (Write::Delete, 2, false),
            (Write::Delete, 1, true),
            (Write::Flush, 1, false),
            (Write::Flush, 1, true),
        ] {
            for orderly in [false, true] {
                for ambiguous in [Ambiguous::Drop, Ambiguous::Serve] {
                    let owner = Owner::Key;
                    let scene = Scene { closes, orderly, tiny, ..scene(owner, ambiguous, fillers, write) };
                    scenes.push((way.to_owned(), scene, Promise::Never));
                }
            }
        }
    }
    scenes
}

/// Scenes of clients that do more than to get and to set.
fn with_habits(
    writes: &[Write],
    ways: &[(&str, &'static [Filler])],
    habits: Habits,
) -> Vec<(String, Scene, Promise)> {
    let mut scenes = Vec::new();
    for (way, fillers) in ways {
        for (owner, ambiguous) in OWNERS {
            for write in writes {
                let safe = owner == Owner::Key || *way == "own";
                let scene = Scene { habits, ..scene(owner, ambiguous, fillers, *write) };
                scenes.push(((*way).to_owned(), scene, if safe { Promise::Never } else { Promise::Any }));
            }
        }
    }
    scenes
}

/// Clients that wait for one another, some with a reader that only waits.
fn held_fillers() -> Vec<(String, Scene, Promise)> {
    let (writes, habits) = ([Write::Delete, Write::Soft], Habits { hold_ms: 400, ..Habits::default() });
    let mut scenes = with_habits(&writes, &WAYS[..1], Habits { readers: 1, ..habits });
    scenes.extend(with_habits(&writes, &WAYS[1..2], habits));
    scenes
}

/// One client that computes, and readers of which some are held when the second invalidation comes.
fn readers_between_two_invalidations() -> Vec<(String, Scene, Promise)> {
    let habits = Habits { hold_ms: 400, readers: 3, ..Habits::default() };
    with_habits(&[Write::SoftTwice], &[("own", &OWN[..1])], habits)
}

/// What was not there before is stored as a negative answer.
fn negative_fillers() -> Vec<(String, Scene, Promise)> {
    let habits = Habits { negative: true, ..Habits::default() };
    with_habits(&[Write::Delete, Write::Flush, Write::Soft], &WAYS, habits)
}

/// Busy errors are taken for misses.
fn fillers_that_take_errors() -> Vec<(String, Scene, Promise)> {
    let habits = Habits { takes_errors: true, ..Habits::default() };
    with_habits(&[Write::Delete, Write::Flush], &WAYS, habits)
}

/// Has, get, set.
fn fillers_that_ask_twice() -> Vec<(String, Scene, Promise)> {
    let habits = Habits { asks_twice: true, ..Habits::default() };
    with_habits(&[Write::Delete, Write::Soft], &WAYS, habits)
}

/// Tries all orders of these scenes that can differ; `expected` is their number.
fn keep_their_promises(scenes: Vec<(String, Scene, Promise)>, expected: u64) {
    let mut tried = 0;
    for (way, scene, promise) in scenes {
        let (_, stale, all) = scene.ends(true);
        eprintln!("{way} {scene:?}: {stale} of {all}");
        match promise {
            Promise::Never => assert_eq!(stale, 0, "{way} {scene:?}: of {all}"),
            Promise::Some => assert!(stale > 0, "{way} {scene:?}"),
            Promise::Any => {}
        }
        tried += all;
    }
    assert_eq!(tried, expected);
}

/// That the orders tried have all ends that there are; `expected`: the number of all orders.
fn lose_no_end(scenes: Vec<(String, Scene, Promise)>, expected: u64) {
    let mut tried = 0;
    for (way, scene, _) in scenes {
        let ((whole, _, all), (reduced, _, kept)) = (scene.ends(false), scene.ends(true));
        eprintln!("{way} {scene:?}: {} ends of {all} orders and of {kept}", whole.len());
        assert_eq!(whole, reduced, "{way} {scene:?}");
        assert!(kept < all && whole.len() > 1, "{way} {scene:?}");
        tried += all;
    }
    assert_eq!(tried, expected);
}

#[test]
fn two_fillers_and_an_invalidation() {
    keep_their_promises(two_fillers(), 10_992);
}

#[test]
fn three_fillers_and_an_invalidation() {
    keep_their_promises(three_fillers(), 24_117);
}

#[test]
fn two_fillers_whose_connections_close_and_an_invalidation() {
    keep_their_promises(closing_fillers(), 89_264);
}

#[test]
fn two_fillers_and_a_soft_invalidation() {
    keep_their_promises(with_habits(&[Write::Soft], &WAYS, Habits::default()), 888);
}

#[test]
fn two_fillers_that_wait_and_an_invalidation() {
    keep_their_promises(held_fillers(), 16_800);
}

#[test]
fn a_filler_and_readers_between_two_soft_invalidations() {
    keep_their_promises(readers_between_two_invalidations(), 5_040);
}

#[test]
fn two_fillers_with_negative_answers_and_an_invalidation() {
    keep_their_promises(negative_fillers(), 2_664);
}

#[test]
fn two_fillers_that_take_errors_for_misses_and_an_invalidation() {
    keep_their_promises(fillers_that_take_errors(), 1_776);
}

#[test]
fn two_fillers_that_ask_twice_and_an_invalidation() {
    keep_their_promises(fillers_that_ask_twice(), 7_536);
}

#[test]
#[ignore = "takes minutes: cargo nextest run -p cattlegrid-engine --run-ignored only orders::"]
fn orders_of_two_fillers_that_are_left_out_end_as_the_ones_tried() {
    lose_no_end(two_fillers(), 100_800);
}

#[test]
#[ignore = "takes minutes: cargo nextest run -p cattlegrid-engine --run-ignored only orders::"]
fn orders_of_three_fillers_that_are_left_out_end_as_the_ones_tried() {
    lose_no_end(three_fillers(), 12 * 92_400);
}

#[test]
#[ignore = "takes minutes: cargo nextest run -p cattlegrid-engine --run-ignored only orders::"]
fn orders_of_fillers_that_close_that_are_left_out_end_as_the_ones_tried() {
    lose_no_end(closing_fillers(), 16 * (50_400 + 3 * 5_040));
}

#[test]
#[ignore = "takes minutes: cargo nextest run -p cattlegrid-engine --run-ignored only orders::"]
fn orders_of_fillers_with_habits_that_are_left_out_end_as_the_ones_tried() {
    let mut scenes = negative_fillers();
    scenes.extend(fillers_that_take_errors());
    scenes.extend(held_fillers());
    lose_no_end(scenes, 60 * 560 + 6 * 5_040 + 6 * 560);
    lose_no_end(fillers_that_ask_twice(), 24 * 3_150);
    lose_no_end(readers_between_two_invalidations(), 3 * 10_080);
}

// Circles

/// Runs one order of three steps of each connection: to wait, to publish and look, to act on the result.
/// Connection `n` holds key `n` and waits for the next one's. `passes`: the last key has another holder at
/// first, and passes to its connection only with the fourth step of that connection, which publishes and
/// looks again when it is told.
fn is_cut(order: &[usize], count: usize, passes: bool) -> bool {
    let graph = WaitGraph::default();
    let last = count - 1;
    let (mut steps, mut waits) = (vec![0; count], vec![false; count]);
    let mut seen: Vec<Option<CircleSearch>> = vec![None; count];
    let mut holds: Vec<bool> = (0..count).map(|n| n != last || !passes).collect();
    let key = |n: usize| 100 + (n % count) as u64;
    let publish = |n: usize, holds: &[bool]| {
        let held = holds[n].then(|| key(n)).into_iter().collect::<Vec<_>>();
        if held.is_empty() { CircleSearch::Clear } else { graph.publish(n as u64, vec![key(n + 1)], held) }
    };
    for n in order.iter().copied() {
        match steps[n] {
            0 => waits[n] = true,
            1 => seen[n] = Some(publish(n, &holds)),
            2 | 4 => match seen[n].take() {
                // Verified against the present holders.
                Some(CircleSearch::Circle(circle))
                    if circle.iter().all(|step| {
                        holds[step.holder as usize] && step.hash == key(step.holder as usize)
                    }) =>
                {
                    waits[n] = false;
                    graph.withdraw(n as u64);
                }
                Some(CircleSearch::TooLong) => waits[n] = false,
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
        each_order(&mut left, &mut Vec::new(), &|_| true, &mut |order| {
            orders += 1;
            uncut += u64::from(!is_cut(order, count, passes));
        });
        assert_eq!((orders, uncut), (expected, 0), "{count} connections, passes: {passes}");
    }
}
