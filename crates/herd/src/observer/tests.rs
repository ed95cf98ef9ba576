use super::*;
use crate::account::ShownValue;
use crate::policy::{LeaseTime, Policy};

/// All values are different, and none is there.
struct Different;

impl ValueHashes for Different {
    fn fill(&self) -> u64 {
        1
    }

    fn shown(&self) -> Option<ShownValue> {
        None
    }
}

struct Scene {
    observer: Observer,
    rule: Arc<RuleState>,
    clock: u64,
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let policy = Policy { observe: true, ..policy };
        Self { observer: Observer::new(1 << 20), rule: Arc::new(RuleState::new(policy)), clock: 1 }
    }

    fn miss(&mut self, connection: u64, now_ms: u64) -> bool {
        let rule = &self.rule;
        let (found, old_until_ms, clock) = (LeaseKind::Absent, 0, self.clock);
        let missed =
            ObservedMiss { hash: 1, rule, connection, is_shared: false, found, old_until_ms, clock, now_ms };
        self.observer.missed(&missed)
    }

    fn store(&mut self, now_ms: u64) {
        self.clock += 1;
        let outside = Events::default();
        let stored = ObservedStore { hash: 1, rule: &self.rule, outside, clock: self.clock, now_ms };
        let judged = self.observer.judge(&stored, &Different);
        self.observer.stored(&stored, judged);
    }

    fn counts<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        let values = self.rule.counters().values();
        names.map(|name| values[RuleCounters::NAMES.iter().position(|own| *own == name).unwrap()])
    }

    fn ends(&self) -> [u64; 2] {
        [self.counts(["held"])[0], self.rule.counters().held_ended()]
    }
}

#[test]
fn holds_end_in_order_and_each_is_counted_once() {
    let mut held = HeldGets::default();
    let mut gone = 0;
    for now_ms in 0..2_000 {
        held.push(now_ms, 400);
        gone += held.expire(now_ms, 400).map_or(0, |(gone, _)| gone);
        let waiting = u64::from(held.count);
        // An eighth of the hold is the unit.
        assert!(now_ms < 400 || (350..=450).contains(&waiting), "{now_ms}: {waiting}");
        assert_eq!(u64::from(held.count + gone), now_ms + 1);
        let sum: u32 = held.times[..held.len].iter().map(|(_, count)| count).sum();
        assert_eq!(sum, held.count);
    }
    assert_eq!(std::iter::from_fn(|| held.pop()).count() as u32 + gone, 2_000);
    assert_eq!((held.len, held.count), (0, 0));
}

#[test]
fn only_those_are_saved_that_would_still_wait() {
    let mut scene = Scene::new(Policy { hold_ms: 100, ..Policy::default() });
    assert!(scene.miss(1, 0), "it has the lease");
    for n in 0..10 {
        assert!(!scene.miss(2 + n, n * 30));
    }
    scene.store(290);
    let [saved, expired, filled] = scene.counts(["computes_saved", "hold_expired", "held_filled"]);
    assert_eq!((saved, expired, filled), (3, 7, 3));
    assert_eq!(scene.ends(), [10, 10]);
    // What the others store is no write of its own.
    for _ in 0..10 {
        scene.store(300);
    }
    assert_eq!(scene.counts(["writes_unmissed"]), [0]);
    assert!(scene.observer.is_empty());
}

#[test]
fn deadlines_are_noticed_late_and_counted_when_they_were() {
    let policy =
        Policy { lease: LeaseTime::Fixed(1000), hold_ms: 60_000, pass_after: 5, ..Policy::default() };
    let mut scene = Scene::new(policy);
    for connection in 1..=3 {
        scene.miss(connection, 0);
    }
    scene.observer.sweep(1, 2_500);
    let [deadlines, unset] = scene.counts(["promoted_deadline", "unset"]);
    assert_eq!((deadlines, unset), (2, 2));
    scene.store(2_900);
    assert_eq!(scene.counts(["computes_saved"]), [0], "the last one computes");
    assert_eq!(scene.rule.learned_ms(), Some([900; 3]), "since its deadline");
    assert_eq!(scene.rule.computing(), 0);
    assert_eq!(scene.ends(), [2, 2]);
}

#[test]
fn a_holder_that_closes_passes_its_lease_on() {
    for (orderly, ms) in [(false, 0), (true, 50)] {
        let mut scene = Scene::new(Policy { close_grace_ms: 50, ..Policy::default() });
        scene.miss(1, 0);
        scene.miss(2, 0);
        scene.observer.closed(1, 2, orderly, 1, 5);
        scene.observer.closed(1, 1, orderly, 1, 10);
        scene.observer.sweep(1, 9 + ms);
        assert_eq!(scene.counts(["promoted_close"]), [u64::from(!orderly)]);
        scene.observer.sweep(1, 10 + ms);
        assert_eq!(scene.counts(["promoted_close", "unset"]), [1, 0]);
    }
}

#[test]
fn what_is_told_of_no_key_changes_nothing() {
    let mut scene = Scene::new(Policy::default());
    scene.observer.changed(1, false, 1, 0);
    scene.observer.changed(1, true, 1, 0);
    scene.observer.refused(1, 1, 0);
    scene.observer.closed(1, 7, false, 1, 0);
    scene.observer.sweep(1, 100);
    assert_eq!(scene.rule.counters().values().iter().sum::<u64>(), 0);
    scene.store(5);
    assert_eq!(scene.counts(["writes_unmissed"]), [1]);
}

#[test]
fn other_rules_end_what_was_observed() {
    let mut scene = Scene::new(Policy::default());
    scene.miss(1, 0);
    scene.miss(2, 0);
    scene.observer.clear(10);
    assert!(scene.observer.is_empty());
    assert_eq!(scene.counts(["held_unruled"]), [1]);
    assert_eq!((scene.rule.computing(), scene.ends()), (0, [1, 1]));
    assert!(scene.miss(3, 20), "from the beginning");
}

#[test]
fn room_is_bounded() {
    let mut scene = Scene::new(Policy::default());
    let most = scene.observer.most;
    for hash in 0..2 * most as u64 {
        let missed = ObservedMiss {
            hash,
            rule: &scene.rule,
            connection: 1,
            is_shared: false,
            found: LeaseKind::Absent,
            old_until_ms: 0,
            clock: 1,
            now_ms: 0,
        };
        scene.observer.missed(&missed);
    }
    assert_eq!(scene.observer.len(), most);
    assert_eq!(scene.counts(["observed_lost"]), [most as u64]);
    assert!(most * KEY_BYTES <= 1 << 19);
}
