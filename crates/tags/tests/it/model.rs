//! Random sets, misses, fills, bumps, gradual purges, flushes and evictions against a naive model: an index
//! from tags to keys, and marks on the items.
//!
//! With arrays of four slots no answer may be more lenient than the model's; with arrays that are large
//! enough all answers are equal.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use cattlegrid_tags::{
    BumpKind, Purge, PurgeOutcome, ROLLING_MAX, RollingFloor, TagHash, TagHasher, TagList, Tags, Validity,
};

const KEYS: u8 = 12;
const TAGS: u8 = 10;

#[derive(Debug, Clone)]
enum Op {
    Set { key: u8, tags: Vec<u8> },
    Miss { key: u8 },
    Fill { miss: usize, tags: Vec<u8> },
    Evict { key: u8 },
    Bump { tag: u8, kind: BumpKind },
    Purge { tag: u8, period_ms: u64, grace_ms: u64 },
    Flush { delay_ms: u64 },
    Rolling { period_ms: u64 },
    Advance { ms: u64 },
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    let tags = || prop::collection::vec(0..TAGS, 0..4);
    let kind = prop_oneof![Just(BumpKind::Hard), Just(BumpKind::Soft)];
    prop_oneof![
        6 => (0..KEYS, tags()).prop_map(|(key, tags)| Op::Set { key, tags }),
        4 => (0..KEYS).prop_map(|key| Op::Miss { key }),
        6 => (any::<usize>(), tags()).prop_map(|(miss, tags)| Op::Fill { miss, tags }),
        2 => (0..KEYS).prop_map(|key| Op::Evict { key }),
        6 => (0..TAGS, kind).prop_map(|(tag, kind)| Op::Bump { tag, kind }),
        3 => (0..TAGS, 1..2_000_u64, prop_oneof![Just(0), 1..1_000_u64])
            .prop_map(|(tag, period_ms, grace_ms)| Op::Purge { tag, period_ms, grace_ms }),
        1 => prop_oneof![Just(0), 1..500_u64].prop_map(|delay_ms| Op::Flush { delay_ms }),
        2 => prop_oneof![1 => Just(0), 9 => 1..2_000_u64].prop_map(|period_ms| Op::Rolling { period_ms }),
        4 => (1..400_u64).prop_map(|ms| Op::Advance { ms }),
        1 => Just(Op::Settle),
    ]
}

/// An invalidation of an item, or of everything since a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Bump(u8, BumpKind),
    /// Of a tag, by its number in [`Model::purges`].
    Purge(u8, usize),
    Flush,
    /// By its number in [`Model::rolling`].
    Rolling(usize),
}

#[derive(Debug, Clone)]
struct ModelItem {
    tags: BTreeSet<u8>,
    marked: Validity,
    rolling: Vec<usize>,
    purges: Vec<usize>,
}

impl ModelItem {
    fn suffer(&mut self, event: Event) {
        match event {
            Event::Bump(tag, BumpKind::Hard) if self.tags.contains(&tag) => self.marked = Validity::Dead,
            Event::Bump(tag, BumpKind::Soft) if self.tags.contains(&tag) => {
                self.marked = self.marked.max(Validity::Stale);
            }
            Event::Purge(tag, number) if self.tags.contains(&tag) => self.purges.push(number),
            Event::Bump(..) | Event::Purge(..) => {}
            Event::Flush => self.marked = Validity::Dead,
            Event::Rolling(number) => self.rolling.push(number),
        }
    }
}

#[derive(Debug, Default)]
struct Model {
    items: BTreeMap<u8, ModelItem>,
    /// The index that the server does without.
    keys_of_tag: BTreeMap<u8, BTreeSet<u8>>,
    /// Since each miss that has not been filled.
    misses: Vec<(u8, Vec<Event>)>,
    /// All rolling flushes up to now.
    rolling: Vec<RollingFloor>,
    /// Those that count for the limit, oldest first.
    running: Vec<usize>,
    pending_flush_ms: Option<u64>,
    /// All gradual purges up to now: when the grace of their items is over, and whether that has been ended.
    purges: Vec<(Purge, u64, bool)>,
}

impl Model {
    fn store(&mut self, key: u8, tags: &[u8], since: &[Event]) {
        self.evict(key);
        let mut item = ModelItem {
            tags: tags.iter().copied().collect(),
            marked: Validity::Valid,
            rolling: Vec::new(),
            purges: Vec::new(),
        };
        for &event in since {
            item.suffer(event);
        }
        for &tag in &item.tags {
            self.keys_of_tag.entry(tag).or_default().insert(key);
        }
        self.items.insert(key, item);
    }

    fn evict(&mut self, key: u8) {
        for tag in self.items.remove(&key).into_iter().flat_map(|item| item.tags) {
            self.keys_of_tag.get_mut(&tag).expect("items are indexed").remove(&key);
        }
    }

    fn happen(&mut self, event: Event) {
        self.misses.iter_mut().for_each(|(_, since)| since.push(event));
        let keys = match event {
            Event::Bump(tag, _) | Event::Purge(tag, _) => {
                self.keys_of_tag.get(&tag).cloned().unwrap_or_default()
            }
            Event::Flush | Event::Rolling(_) => self.items.keys().copied().collect(),
        };
        for key in keys {
            self.items.get_mut(&key).expect("indexed keys are there").suffer(event);
        }
        if event == Event::Flush {
            self.running.clear();
        }
    }

    fn start_rolling(&mut self, floor: RollingFloor) {
        let now_ms = floor.start_ms;
        let over =
            |number: &usize| now_ms - self.rolling[*number].start_ms >= self.rolling[*number].period_ms;
        // A flush that is over has flushed everything that earlier ones would flush.
        if let Some(last_over) = self.running.iter().copied().filter(over).max() {
            self.running.retain(|&number| number > last_over);
        }
        if self.running.len() == ROLLING_MAX {
            let oldest = self.running.remove(0);
            let flush = |events: &mut Vec<Event>| {
                if events.contains(&Event::Rolling(oldest)) {
                    events.push(Event::Flush);
                }
            };
            self.misses.iter_mut().for_each(|(_, since)| flush(since));
            let below = self.items.values_mut().filter(|item| item.rolling.contains(&oldest));
            below.for_each(|item| item.marked = Validity::Dead);
        }
        let number = self.rolling.len();
        self.rolling.push(floor);
        self.running.push(number);
        self.happen(Event::Rolling(number));
    }

    /// Items of purges whose grace is over are dead.
    fn retire(&mut self, now_ms: u64) {
        for (_, due_ms, retired) in &mut self.purges {
            *retired |= now_ms >= *due_ms;
        }
    }

    fn get(&self, key: u8, key_hash: u64, now_ms: u64) -> Option<Validity> {
        let item = self.items.get(&key)?;
        let phases = item.rolling.iter().map(|&number| {
            let floor = self.rolling[number];
            match now_ms - floor.start_ms {
                elapsed if elapsed >= floor.period_ms => Validity::Dead,
                elapsed if elapsed > floor.phase_ms(key_hash) => Validity::Stale,
                _ => Validity::Valid,
            }
        });
        let purges = item.purges.iter().map(|&number| match self.purges[number] {
            (_, _, true) => Validity::Dead,
            (purge, _, false) if now_ms >= purge.moment_ms(key_hash) => Validity::Stale,
            _ => Validity::Valid,
        });
        Some(phases.chain(purges).fold(item.marked, Validity::max))
    }
}

struct Server {
    tags: Tags,
    hasher: TagHasher,
    clock: Cell<u64>,
    now_ms: u64,
    /// Stamp and tags of each key.
    items: BTreeMap<u8, (u64, TagList)>,
    misses: Vec<u64>,
}

impl Server {
    fn new(memory_bytes: usize) -> Self {
        Self {
            tags: Tags::new(memory_bytes),
            hasher: TagHasher::new(42),
            clock: Cell::new(0),
            now_ms: 1_000,
            items: BTreeMap::new(),
            misses: Vec::new(),
        }
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn hash(&self, name: &[u8]) -> TagHash {
        self.hasher.hash(name).expect("names here are short")
    }

    fn list(&self, tags: &[u8]) -> TagList {
        tags.iter().fold(TagList::new(), |mut list, &tag| {
            list.insert(self.hash(&[tag])).expect("fewer than 8");
            list
        })
    }

    /// A key's hash; any function does.
    fn key_hash(&self, key: u8) -> u64 {
        self.hash(&[b'k', key]).get()
    }

    fn check(&self, key: u8, stamp: u64, list: &TagList) -> Validity {
        self.tags.check(stamp, list.hashes().iter().copied(), self.key_hash(key), self.now_ms)
    }
}

/// Executes `ops` on both and compares every key after each of them.
fn run(ops: &[Op], memory_bytes: usize, exact: bool) -> Result<(), TestCaseError> {
    let (mut server, mut model) = (Server::new(memory_bytes), Model::default());
    for op in ops {
        // Every command does this first.
        if model.pending_flush_ms.is_some_and(|at| server.now_ms >= at) {
            model.pending_flush_ms = None;
            model.happen(Event::Flush);
        }
        server.tags.floors().execute_due(server.now_ms, || server.tick());
        match op {
            Op::Set { key, tags } => {
                let stamp = server.tick();
                server.items.insert(*key, (stamp, server.list(tags)));
                model.store(*key, tags, &[]);
            }
            Op::Miss { key } => {
                server.misses.push(server.clock.get());
                model.misses.push((*key, Vec::new()));
            }
            Op::Fill { miss, tags } => fill(&mut server, &mut model, *miss, tags, exact)?,
            Op::Evict { key } => {
                server.items.remove(key);
                model.evict(*key);
            }
            Op::Bump { tag, kind } => {
                let hash = server.hash(&[*tag]);
                server.tags.bumps().bump(hash, *kind, || server.tick());
                model.happen(Event::Bump(*tag, *kind));
            }
            Op::Purge { tag, period_ms, grace_ms } => {
                let (hash, now_ms) = (server.hash(&[*tag]), server.now_ms);
                model.retire(now_ms);
                let begun = server.tags.purge(hash, (now_ms, *period_ms), *grace_ms, |_| 0, || server.tick());
                let PurgeOutcome::Gradually(number) = begun else { unreachable!("there are fewer") };
                let purge = Purge { tag: hash, number, start_ms: now_ms, period_ms: *period_ms };
                model.purges.push((purge, now_ms + period_ms + grace_ms, false));
                model.happen(Event::Purge(*tag, model.purges.len() - 1));
            }
            Op::Flush { delay_ms } => {
                let at = server.now_ms + delay_ms;
                server.tags.floors().flush(at, server.now_ms, || server.tick());
                model.pending_flush_ms = (*delay_ms > 0).then_some(at);
                if *delay_ms == 0 {
                    model.happen(Event::Flush);
                }
            }
            Op::Rolling { period_ms } => {
                let number = server.tags.floors().start_rolling(server.now_ms, *period_ms, || server.tick());
                if *period_ms == 0 {
                    model.happen(Event::Flush);
                } else {
                    model.start_rolling(RollingFloor {
                        number,
                        start_ms: server.now_ms,
                        period_ms: *period_ms,
                    });
                }
            }
            Op::Advance { ms } => server.now_ms += ms,
            Op::Settle => {
                server.tags.sweep(server.now_ms);
                model.retire(server.now_ms);
            }
        }
        compare(&server, &model, op, exact)?;
    }
    Ok(())
}

/// The value computed after a miss arrives: stored, or dropped if it is dead.
fn fill(
    server: &mut Server,
    model: &mut Model,
    miss: usize,
    tags: &[u8],
    exact: bool,
) -> Result<(), TestCaseError> {
    if server.misses.is_empty() {
        return Ok(());
    }
    let miss = miss % server.misses.len();
    let stamp = server.misses.remove(miss);
    let (key, since) = model.misses.remove(miss);
    let _cas = server.tick();
    let list = server.list(tags);
    model.store(key, tags, &since);
    if server.check(key, stamp, &list) == Validity::Dead {
        // Dropped: nothing is stored, and an older item counts as evicted.
        server.items.remove(&key);
        let verdict = model.get(key, server.key_hash(key), server.now_ms);
        prop_assert!(!exact || verdict == Some(Validity::Dead), "a good fill was dropped: {verdict:?}");
        model.evict(key);
    } else {
        server.items.insert(key, (stamp, list));
    }
    Ok(())
}

/// Every key has the same answer from both, or with small arrays no more lenient one from the server.
fn compare(server: &Server, model: &Model, op: &Op, exact: bool) -> Result<(), TestCaseError> {
    for key in 0..KEYS {
        let told = server.items.get(&key).map(|(stamp, list)| server.check(key, *stamp, list));
        let expected = model.get(key, server.key_hash(key), server.now_ms);
        if exact {
            prop_assert_eq!(told, expected, "key {} after {:?}", key, op);
        } else {
            prop_assert!(told.is_none() == expected.is_none(), "both have the same items");
            prop_assert!(told >= expected, "key {key} after {op:?}: {told:?}, but {expected:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn large_arrays_say_exactly_what_the_model_says(ops in prop::collection::vec(op(), 1..200)) {
        run(&ops, 1 << 20, true)?;
    }

    #[test]
    fn four_slots_are_never_more_lenient(ops in prop::collection::vec(op(), 1..200)) {
        run(&ops, 128, false)?;
    }
}

#[test]
fn few_tags_in_arrays_of_full_size_are_never_false_stale() {
    let (tags, hasher) = (Tags::new(64 << 20), TagHasher::new(1));
    let hash = |number: u32| hasher.hash(&number.to_le_bytes()).unwrap();
    for number in 1..=100 {
        let kind = if number % 2 == 0 { BumpKind::Hard } else { BumpKind::Soft };
        tags.bumps().bump(hash(number), kind, || u64::from(number));
    }
    let others = (101..20_000).filter(|&n| tags.check(0, [hash(n).get()], 7, 0) != Validity::Valid).count();
    assert_eq!(others, 0);
}
