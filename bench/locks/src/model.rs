//! Threads that execute batches, in discrete steps of simulated time, each on a processor of its own.
//!
//! A batch keeps the shards that it has locked, up to eight, until it finds one locked: then it releases all, waits, and has
//! one at a time from then on, as `ShardLock` does. When a shard is released, the thread that has waited longest tries to get
//! it a while later, and keeps waiting if another has been faster. Not counted: what it costs to bring a shard's memory from
//! another processor.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::batch::{KEYS, Work};
use crate::count::Phases;

/// Batches of each thread.
const BATCHES: u64 = 2_000;
/// Most shards that a batch of the engine keeps.
pub(crate) const HELD_MAX: usize = 8;
/// Times that a prefetch goes through the keys.
const PASSES: usize = 2;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) work: Work,
    pub(crate) phases: Phases,
    pub(crate) outside_ns: u64,
    /// From the release of a shard until a thread that waits for it tries to get it.
    pub(crate) react_ns: u64,
    /// Most shards that a batch keeps, up to [`HELD_MAX`].
    pub(crate) kept: usize,
}

/// The result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prediction {
    /// Waits per 1,000 batches.
    pub(crate) waits: f64,
    /// Share of the threads' time.
    pub(crate) waiting: f64,
    /// Batches in a time, divided by those of as many threads that never wait.
    pub(crate) speed: f64,
}

/// A shard that is worked in for a time.
type Use = (usize, f64);

#[derive(Debug, Default)]
struct Thread {
    uses: VecDeque<Use>,
    held: [Option<usize>; HELD_MAX],
    met: bool,
    batches: u64,
    /// Since when it waits, if it does.
    since: Option<f64>,
}

/// What a time is multiplied by: threads that take the same times would fall into step.
fn jitter(random: &mut SmallRng) -> f64 {
    random.random_range(0.5..1.5)
}

/// The simulation's state.
struct Run {
    react_ns: f64,
    kept: usize,
    threads: Vec<Thread>,
    /// For each shard, its holder and the threads that wait.
    shards: Vec<(Option<usize>, VecDeque<usize>)>,
    /// Whose turn it is next: nanoseconds, in units that compare, and the thread.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

#[expect(clippy::cast_sign_loss, reason = "times are not negative")]
fn ns_to_units(ns: f64) -> u64 {
    (ns * UNITS) as u64
}

/// Units of time in a nanosecond.
const UNITS: f64 = 1024.0;

impl Model {
    pub(crate) fn run(&self, threads: usize, shards: usize) -> Prediction {
        let mut random = SmallRng::seed_from_u64(1);
        let mut run = Run {
            react_ns: self.react_ns as f64,
            kept: self.kept,
            threads: (0..threads).map(|_| Thread::default()).collect(),
            shards: vec![(None, VecDeque::new()); shards],
            next: BinaryHeap::new(),
        };
        let [parse, prefetch, execute] = self.phases.key_ns.map(|ns| ns * KEYS as f64);
        let alone = self.outside_ns as f64 + parse;
        for thread in 0..threads {
            // They do not begin at the same moment.
            run.at(random.random_range(0.0..alone + prefetch + execute), thread);
        }
        let (mut waits, mut waited, mut end) = (0_u64, 0.0, 0.0_f64);
        while let Some(Reverse((at, number))) = run.next.pop() {
            let now = at as f64 / UNITS;
            end = end.max(now);
            let thread = &mut run.threads[number];
            let Some((shard, ns)) = thread.uses.pop_front() else {
                run.release(number, now);
                let thread = &mut run.threads[number];
                thread.met = false;
                thread.batches += 1;
                if thread.batches <= BATCHES {
                    thread.uses = self.uses(shards, &mut random);
                    run.at(now + alone * jitter(&mut random), number);
                }
                continue;
            };
            let place = shard % run.kept;
            if thread.held[place] != Some(shard) {
                if let Some(old) = thread.held[place].take() {
                    run.free(old, now);
                }
                if run.threads[number].met {
                    run.release(number, now);
                }
                let thread = &mut run.threads[number];
                if run.shards[shard].0.is_some() {
                    thread.uses.push_front((shard, ns));
                    thread.met = true;
                    if thread.since.is_none() {
                        thread.since = Some(now);
                        waits += 1;
                    }
                    run.release(number, now);
                    run.shards[shard].1.push_back(number);
                    continue;
                }
                run.shards[shard].0 = Some(number);
                waited += thread.since.take().map_or(0.0, |since| now - since);
                thread.held[place] = Some(shard);
            }
            run.at(now + ns * jitter(&mut random), number);
        }
        let batches = (threads as u64 * BATCHES) as f64;
        let unhindered = BATCHES as f64 * (alone + prefetch + execute);
        Prediction {
            waits: waits as f64 * 1e3 / batches,
            waiting: waited / (end * threads as f64),
            speed: unhindered / end,
        }
    }

    /// The shards that a batch uses, one after the other.
    fn uses(&self, shards: usize, random: &mut SmallRng) -> VecDeque<Use> {
        let keys: [usize; KEYS] = std::array::from_fn(|_| random.random_range(0..shards));
        let [_, prefetch, execute] = self.phases.key_ns;
        let mut uses = VecDeque::new();
        // Each shard once in each pass, in the order of the first keys.
        for _ in 0..PASSES {
            let mut seen = BTreeSet::new();
            for shard in keys.iter().filter(|shard| seen.insert(**shard)) {
                let count = keys.iter().filter(|other| *other == shard).count();
                uses.push_back((*shard, prefetch / PASSES as f64 * count as f64));
            }
        }
        uses.extend(keys.map(|shard| (shard, execute)));
        uses
    }
}

impl Run {
    fn at(&mut self, ns: f64, thread: usize) {
        self.next.push(Reverse((ns_to_units(ns), thread)));
    }

    /// Releases all shards of a thread.
    fn release(&mut self, thread: usize, now: f64) {
        for place in 0..self.kept {
            if let Some(shard) = self.threads[thread].held[place].take() {
                self.free(shard, now);
            }
        }
    }

    /// A shard is released: the thread that has waited longest will try to get it.
    fn free(&mut self, shard: usize, now: f64) {
        let (owner, waiters) = &mut self.shards[shard];
        *owner = None;
        if let Some(next) = waiters.pop_front() {
            self.at(now + self.react_ns, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            work: Work::Gets,
            phases: Phases { key_ns: [50.0, 20.0, 100.0] },
            outside_ns: 0,
            react_ns: 0,
            kept: HELD_MAX,
        }
    }

    #[test]
    fn one_thread_never_waits() {
        let Prediction { waits, waiting, speed } = model().run(1, 1);
        assert_eq!((waits, waiting), (0.0, 0.0));
        assert!((speed - 1.0).abs() < 0.03, "{speed}");
    }

    #[test]
    fn one_shard_is_the_bound() {
        // A batch has the shard for 3,840 of its 5,440 ns.
        let Prediction { speed, .. } = model().run(8, 1);
        assert!((speed * 8.0 - 5440.0 / 3840.0).abs() < 0.03, "{speed}");
    }

    #[test]
    fn more_shards_wait_less() {
        let of = |shards| model().run(8, shards).waiting;
        assert!(of(8) > of(32) && of(32) > of(128), "{} {} {}", of(8), of(32), of(128));
    }
}
