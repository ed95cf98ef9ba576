//! Interleavings of a few bumps, flushes and look-ups, with all values that the memory model allows a load to
//! see: all interleavings with up to two preemptions.
//!
//! `cargo xtask test --stage models`.
//!
//! Loom compares an access only with the last one to the same place. A thread that loads a place before it
//! stores there would hide earlier loads of other threads from it; so the writers keep their own copy under
//! their lock and only store.

use std::sync::Arc;

use ::loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ::loom::thread;

use cattlegrid_tags::{BumpKind, TagHash, Tags, Validity};

/// A server: the clock is as in the engine, whose numbers order nothing else.
struct Server {
    tags: Tags,
    clock: AtomicU64,
    /// The answer has been sent; the thread that sees it sends the next request.
    answered: AtomicBool,
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(f);
}

const KEY: u64 = 9;
const PERIOD_MS: u64 = 100;

impl Server {
    /// With the first numbers taken by an item each.
    fn new(memory_bytes: usize, items: u64) -> Arc<Self> {
        Arc::new(Self {
            tags: Tags::new(memory_bytes),
            clock: AtomicU64::new(items),
            answered: AtomicBool::new(false),
        })
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn bump(&self, tag: u64, kind: BumpKind) -> u64 {
        self.tags.bumps().bump(TagHash::from_stored(tag), kind, || self.tick())
    }

    /// Over one millisecond from time 0 on.
    fn purge(&self, tag: u64, grace_ms: u64) {
        self.tags.purge(TagHash::from_stored(tag), (0, 1), grace_ms, |_| 0, || self.tick());
    }

    fn check(&self, stamp: u64, tags: &[u64], now_ms: u64) -> Validity {
        self.tags.check(stamp, tags.iter().copied(), KEY, now_ms)
    }

    fn answer(&self) {
        self.answered.store(true, Ordering::Release);
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }
}

fn spawn(server: &Arc<Server>, f: impl FnOnce(&Server) + 'static) -> thread::JoinHandle<()> {
    let server = Arc::clone(server);
    thread::spawn(move || f(&server))
}

#[test]
fn a_get_sent_after_the_answer_to_a_bump_sees_it() {
    model(|| {
        let server = Server::new(32, 1);
        let bumper = spawn(&server, |server| {
            server.bump(1, BumpKind::Hard);
            server.answer();
        });
        let answered = server.is_answered();
        let seen = server.check(1, &[1], 0);
        assert!(seen == Validity::Dead || !answered);
        bumper.join().unwrap();
        assert_eq!(server.check(1, &[1], 0), Validity::Dead);
    });
}

#[test]
fn another_tags_bump_at_the_same_time_hides_nothing() {
    model(|| {
        // Places 0 and 1 of two slots a row.
        let server = Server::new(64, 1);
        let other = spawn(&server, |server| {
            server.bump(0, BumpKind::Soft);
        });
        let bumper = spawn(&server, |server| {
            server.bump(u64::MAX, BumpKind::Soft);
            server.answer();
        });
        let answered = server.is_answered();
        let seen = server.check(1, &[u64::MAX], 0);
        assert!(seen == Validity::Stale || !answered);
        other.join().unwrap();
        bumper.join().unwrap();
    });
}

#[test]
fn slots_and_last_bump_never_go_down() {
    model(|| {
        let server = Server::new(32, 0);
        let bumpers =
            [1, 2].map(|tag| spawn(&server, move |server| assert!(server.bump(tag, BumpKind::Hard) > 0)));
        let earlier = server.tags.bumps().last_bump();
        let slot = server.tags.bumps().last_own(TagHash::from_stored(1), BumpKind::Hard);
        assert!(slot >= earlier, "what is published has been raised");
        assert!(server.tags.bumps().last_bump() >= earlier);
        bumpers.into_iter().for_each(|bumper| bumper.join().unwrap());
        assert_eq!(server.tags.bumps().last_bump(), 2);
        assert_eq!(server.tags.bumps().last_own(TagHash::from_stored(1), BumpKind::Hard), 2);
    });
}

#[test]
fn what_is_written_after_the_answer_is_valid() {
    model(|| {
        let server = Server::new(32, 0);
        let bumper = spawn(&server, |server| {
            server.bump(1, BumpKind::Hard);
            server.answer();
        });
        if server.is_answered() {
            assert_eq!(server.check(server.tick(), &[1], 0), Validity::Valid);
        }
        bumper.join().unwrap();
    });
}

#[test]
fn a_get_sent_after_the_answer_to_a_gradual_purge_sees_it() {
    model(|| {
        let server = Server::new(32, 1);
        let purger = spawn(&server, |server| {
            server.purge(1, 0);
            server.answer();
        });
        let answered = server.is_answered();
        let seen = server.check(1, &[1], 1);
        assert!(seen == Validity::Stale || !answered);
        purger.join().unwrap();
    });
}

#[test]
fn a_gradual_purge_that_retires_lets_nothing_through() {
    model(|| {
        let server = Server::new(32, 1);
        server.purge(1, 0);
        let upkeep = spawn(&server, |server| server.tags.sweep(1));
        assert!(server.check(1, &[1], 1) >= Validity::Stale);
        upkeep.join().unwrap();
        assert_eq!(server.check(1, &[1], 1), Validity::Dead);
    });
}

#[test]
fn a_gradual_purge_is_never_seen_in_part() {
    model(|| {
        let server = Server::new(32, 1);
        // Makes readers look: its period is over, and its grace is not.
        server.purge(u64::MAX, 1_000);
        let purger = spawn(&server, |server| {
            // If it were seen without start or period, its moment would have come.
            let long = (1_000, 1_000_000);
            server.tags.purge(TagHash::from_stored(1), long, 0, |_| 0, || server.tick());
        });
        assert_eq!(server.check(1, &[1], 1_000), Validity::Valid);
        purger.join().unwrap();
    });
}

#[test]
fn a_get_sent_after_the_answer_to_a_flush_sees_it() {
    model(|| {
        let server = Server::new(32, 1);
        let flusher = spawn(&server, |server| {
            server.tags.floors().flush(0, 0, || server.tick());
            server.answer();
        });
        let answered = server.is_answered();
        let seen = server.check(1, &[], 0);
        assert!(seen == Validity::Dead || !answered);
        flusher.join().unwrap();
    });
}

#[test]
fn a_rolling_floor_that_becomes_hard_lets_nothing_through() {
    model(|| {
        let server = Server::new(32, 1);
        server.tags.floors().start_rolling(0, PERIOD_MS, || server.tick());
        let upkeep = spawn(&server, |server| server.tags.floors().sweep(PERIOD_MS));
        assert_eq!(server.check(1, &[], PERIOD_MS), Validity::Dead);
        upkeep.join().unwrap();
        assert_eq!(server.tags.floors().hard(), 2);
    });
}

#[test]
fn a_rolling_floor_is_never_seen_in_part() {
    model(|| {
        let server = Server::new(32, 1);
        // Makes readers look.
        server.tags.floors().start_rolling(1_000, 1_000_000, || server.tick());
        let flusher = spawn(&server, |server| {
            // If its number were seen without start or period, it would be over.
            server.tags.floors().start_rolling(1_000, 1_000_000, || server.tick());
        });
        assert_eq!(server.check(1, &[], 1_000), Validity::Valid);
        flusher.join().unwrap();
        assert_eq!(server.tags.floors().rolling().count(), 2);
    });
}

#[test]
fn what_is_published_has_been_raised() {
    model(|| {
        let server = Server::new(32, 0);
        let bumper = spawn(&server, |server| {
            server.bump(1, BumpKind::Hard);
        });
        // No answer was awaited: this tests the order within the arrays.
        let published = server.tags.bumps().last_bump();
        let raised = server.tags.bumps().last_own(TagHash::from_stored(1), BumpKind::Hard);
        assert!(raised >= published);
        bumper.join().unwrap();
    });
}

#[test]
fn a_floor_that_is_the_highest_has_been_set() {
    model(|| {
        let server = Server::new(32, 1);
        let flusher = spawn(&server, |server| {
            server.tags.floors().flush(0, 0, || server.tick());
        });
        let highest = server.tags.floors().highest();
        assert!(server.tags.floors().hard() >= highest);
        let _either = server.check(1, &[], 0);
        flusher.join().unwrap();
    });
}

#[test]
fn whoever_comes_when_a_flush_is_due_sees_it_executed() {
    model(|| {
        let server = Server::new(32, 1);
        server.tags.floors().flush(10, 0, || server.tick());
        let command = |server: &Server| {
            server.tags.floors().execute_due(10, || server.tick());
            assert_eq!(server.check(1, &[], 10), Validity::Dead);
        };
        let other = spawn(&server, command);
        command(&server);
        other.join().unwrap();
        assert_eq!(server.clock.load(Ordering::Relaxed), 2, "it is executed once");
    });
}

#[test]
fn a_tag_that_is_named_while_a_bump_is_left_out() {
    model(|| {
        let server = Server::new(256, 1);
        server.tags.select();
        server.tags.begin_notes();
        server.tags.end_notes();
        let log = spawn(&server, |server| {
            let tag = TagHash::from_stored(1);
            if !server.tags.leaves_out(tag, BumpKind::Hard, || server.tick()) {
                server.bump(1, BumpKind::Hard);
            }
        });
        // Missed before the bump: its number is 1.
        server.tags.note_named(&[1], 0, 0, |_| 0);
        log.join().unwrap();
        assert_eq!(server.check(1, &[1], 0), Validity::Dead);
    });
}

#[test]
fn a_miss_that_is_not_seen_is_later_than_the_bump() {
    model(|| {
        let server = Server::new(256, 0);
        server.tags.select();
        server.tags.begin_notes();
        server.tags.end_notes();
        let log = {
            let server = Arc::clone(&server);
            thread::spawn(move || {
                let mut number = 0;
                let is_left_out = server.tags.leaves_out(TagHash::from_stored(1), BumpKind::Hard, || {
                    number = server.tick();
                    number
                });
                if is_left_out { number } else { server.bump(1, BumpKind::Hard) }
            })
        };
        server.tags.note(&[1]);
        let miss = server.tick();
        let number = log.join().unwrap();
        let is_dead = server.check(miss, &[1], 0) == Validity::Dead;
        assert_eq!(is_dead, miss < number, "{miss} {number}");
    });
}

#[test]
fn a_bump_that_is_left_out_while_exact_arrays_are_made() {
    model(|| {
        let server = Server::new(256, 1);
        server.tags.select();
        server.tags.begin_notes();
        server.tags.end_notes();
        let log = spawn(&server, |server| {
            let is_left_out =
                server.tags.leaves_out(TagHash::from_stored(1), BumpKind::Hard, || server.tick());
            assert!(is_left_out);
        });
        server.tags.name_exactly(|| server.tick());
        log.join().unwrap();
        server.tags.note_named(&[1], 0, 0, |_| 0);
        assert_eq!(server.check(1, &[1], 0), Validity::Dead);
    });
}
