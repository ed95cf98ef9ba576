//! The sizing against its documentation: random histories, checked after every step.
#![allow(
    clippy::needless_for_each,
    clippy::unwrap_used,
    clippy::similar_names,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "tests read better so"
)]
#![expect(clippy::disallowed_methods, reason = "a history needs some instant to start from")]

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Sizing, SizingConfig};

/// Something that happens to a pool.
#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Queue(usize),
    Ready,
    Busy,
    Idle,
    Die(usize),
    Retire(usize),
    Gone,
    Resize(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u64..300).prop_map(Step::Wait),
        3 => (0_usize..40).prop_map(Step::Queue),
        4 => Just(Step::Ready),
        2 => Just(Step::Busy),
        2 => Just(Step::Idle),
        1 => (0_usize..16).prop_map(Step::Die),
        2 => (0_usize..16).prop_map(Step::Retire),
        3 => Just(Step::Gone),
        1 => (0_usize..6, 0_usize..10).prop_map(|(idle, max)| Step::Resize(idle, max)),
    ];
    prop::collection::vec(step, 1..200)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Starting,
    Idle(Instant),
    Busy,
    /// Retired; its process is there until [`Step::Gone`].
    Leaving,
}

/// A model of a pool that does what the sizing says, and keeps the history.
struct Model {
    sizing: Sizing,
    workers: Vec<Option<State>>,
    now: Instant,
    queued: usize,
    /// Since when fewer than `idle` have been idle or starting, with room under `max`.
    short_since: Option<Instant>,
}

impl Model {
    fn count(&self, what: impl Fn(State) -> bool) -> usize {
        self.workers.iter().flatten().filter(|state| what(**state)).count()
    }

    fn find(&self, what: impl Fn(State) -> bool) -> Option<usize> {
        self.workers.iter().position(|state| state.is_some_and(&what))
    }

    /// Polls until the sizing wants nothing more, as the driver does.
    fn poll(&mut self) {
        let config = self.sizing.config();
        let decision = self.sizing.poll(self.now, self.queued, true);
        let idle_before = self.count(|state| matches!(state, State::Idle(_)));
        let active_before = self.count(|state| state != State::Leaving);
        for slot in &decision.stop {
            let state = self.workers[*slot].replace(State::Leaving).expect("only workers are stopped");
            self.sizing.on_leaving(*slot, false);
            match state {
                State::Leaving => panic!("stopped twice"),
                State::Idle(since) if active_before <= config.max => {
                    assert!(self.now - since >= config.stop, "stopped before its time");
                    assert!(idle_before - decision.stop.len() >= config.idle, "stopped below idle");
                }
                _ => assert!(
                    active_before > config.max,
                    "only idle workers are stopped, unless there are too many"
                ),
            }
        }
        for _ in 0..decision.start {
            let slot = self.workers.iter().position(Option::is_none).unwrap_or_else(|| {
                self.workers.push(None);
                self.workers.len() - 1
            });
            self.workers[slot] = Some(State::Starting);
            self.sizing.on_starting(slot);
        }
        let total = self.workers.iter().flatten().count();
        assert!(decision.start == 0 || total <= config.max, "{total} processes, max {}", config.max);
        self.check(config);
    }

    fn check(&mut self, config: SizingConfig) {
        let total = self.workers.iter().flatten().count();
        assert_eq!(total, self.sizing.total());
        let active = self.count(|state| state != State::Leaving);
        assert!(active <= config.max, "{active} workers, max {}", config.max);
        let available = self.count(|state| !matches!(state, State::Busy | State::Leaving));
        let short = available < config.idle && total < config.max;
        if short {
            let since = *self.short_since.get_or_insert(self.now);
            assert!(self.now - since <= config.start, "below idle for {:?}", self.now - since);
        } else {
            self.short_since = None;
        }
        if config.start.is_zero() {
            let room = config.max.saturating_sub(total);
            let starting = self.count(|state| state == State::Starting);
            let idle = self.count(|state| matches!(state, State::Idle(_)));
            let served = (starting + idle) * config.load;
            assert!(room == 0 || served >= self.queued, "start 0 starts at once what the queue can use");
        }
        if let Some(at) = self.sizing.poll_timeout() {
            assert!(at + Duration::from_secs(3600) > self.now);
        }
    }

    /// Lets time pass, stopping at every timer, as epoll would.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            match self.sizing.poll_timeout() {
                Some(at) if at <= end && at > self.now => self.now = at,
                _ => break,
            }
            self.poll();
        }
        self.now = end;
        self.poll();
    }

    fn apply(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Wait(ms) => return self.wait(Duration::from_millis(ms)),
            Step::Queue(count) => self.queued = count,
            Step::Ready => {
                if let Some(slot) = self.find(|state| state == State::Starting) {
                    self.workers[slot] = Some(State::Idle(now));
                    self.sizing.on_idle(slot, now);
                }
            }
            Step::Busy => {
                if let Some(slot) = self.find(|state| matches!(state, State::Idle(_))) {
                    self.workers[slot] = Some(State::Busy);
                    self.sizing.on_busy(slot);
                }
            }
            Step::Idle => {
                if let Some(slot) = self.find(|state| state == State::Busy) {
                    self.workers[slot] = Some(State::Idle(now));
                    self.sizing.on_idle(slot, now);
                }
            }
            Step::Die(slot) => {
                if self.workers.get(slot).is_some_and(Option::is_some) {
                    self.workers[slot] = None;
                    self.sizing.on_gone(slot);
                }
            }
            Step::Retire(slot) => {
                let worker = self.workers.get(slot).copied().flatten();
                if worker.is_some_and(|state| state != State::Leaving) {
                    self.workers[slot] = Some(State::Leaving);
                    self.sizing.on_leaving(slot, true);
                }
            }
            Step::Gone => {
                if let Some(slot) = self.find(|state| state == State::Leaving) {
                    self.workers[slot] = None;
                    self.sizing.on_gone(slot);
                }
            }
            Step::Resize(idle, max) => self.sizing.resize(idle, max),
        }
        self.poll();
    }
}

fn model(config: SizingConfig) -> Model {
    Model {
        sizing: Sizing::new(config),
        workers: Vec::new(),
        now: Instant::now(),
        queued: 0,
        short_since: None,
    }
}

proptest! {
    #[test]
    fn never_above_max_never_below_idle_for_longer_than_start(
        idle in 0_usize..5, max in 1_usize..9, load in 1_usize..5,
        start in prop_oneof![Just(0_u64), 1_u64..200], stop in 1_u64..500, history in steps(),
    ) {
        let (start, stop) = (Duration::from_millis(start), Duration::from_millis(stop));
        let mut model = model(SizingConfig { idle, max, load, start, stop });
        model.poll();
        for step in &history {
            model.apply(step);
        }
    }
}

fn config(idle: usize, max: usize, load: usize, start: u64, stop: u64) -> SizingConfig {
    SizingConfig { idle, max, load, start: Duration::from_millis(start), stop: Duration::from_millis(stop) }
}

#[test]
fn the_first_worker_starts_at_once_then_one_two_four() {
    let mut model = model(config(0, 60, 1, 100, 1000));
    model.queued = 1000;
    let mut counts = Vec::new();
    model.poll();
    for _ in 0..5 {
        counts.push(model.workers.len());
        model.wait(Duration::from_millis(100));
    }
    assert_eq!(counts, [1, 2, 4, 8, 16]);
}

#[test]
fn start_0_starts_all_the_queue_can_use_at_once() {
    let mut model = model(config(0, 8, 1, 0, 1000));
    model.queued = 40;
    model.poll();
    assert_eq!(model.workers.len(), 8);
    let mut few = self::model(config(0, 8, 2, 0, 1000));
    few.queued = 5;
    few.poll();
    assert_eq!(few.workers.len(), 3);
}

#[test]
fn idle_workers_are_stopped_one_by_one_as_their_own_time_comes() {
    let mut model = model(config(1, 4, 1, 0, 1000));
    model.queued = 4;
    model.poll();
    model.queued = 0;
    for _ in 0..4 {
        model.apply(&Step::Ready);
        model.wait(Duration::from_millis(100));
    }
    let mut left = Vec::new();
    for _ in 0..4 {
        left.push(model.count(|state| state != State::Leaving));
        model.wait(Duration::from_millis(if left.len() == 1 { 650 } else { 100 }));
    }
    assert_eq!(left, [4, 3, 2, 1]);
    model.wait(Duration::from_secs(3600));
    assert_eq!(model.count(|state| state != State::Leaving), 1);
}

#[test]
fn a_retired_worker_counts_until_it_is_gone_and_is_then_replaced_at_once() {
    let mut model = model(config(0, 2, 1, 100, 10_000));
    model.queued = 10;
    model.poll();
    model.wait(Duration::from_millis(100));
    assert_eq!(model.sizing.total(), 2);
    model.apply(&Step::Retire(0));
    model.apply(&Step::Retire(1));
    model.wait(Duration::from_secs(60));
    assert_eq!((model.sizing.total(), model.sizing.leaving()), (2, 2), "no third process");
    model.apply(&Step::Gone);
    assert_eq!((model.sizing.starting(), model.sizing.leaving()), (1, 1), "replaced without the delay");
    model.apply(&Step::Gone);
    assert_eq!((model.sizing.starting(), model.sizing.leaving()), (2, 0));
}
