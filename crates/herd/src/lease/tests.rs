//! Queues of waiters and limits of leases by themselves.

use super::*;

fn take_all(limit: &LeaseLimit, rule: &AtomicUsize) -> usize {
    std::iter::from_fn(|| limit.has_room(rule).then(|| limit.take(rule))).count()
}

fn give_all(limit: &LeaseLimit, rule: &AtomicUsize) {
    (0..rule.load(Relaxed)).for_each(|_| limit.give(rule));
}

#[test]
fn a_rule_may_have_as_many_as_are_free() {
    let limit = LeaseLimit::new(900);
    let rules: [AtomicUsize; 3] = Default::default();
    assert_eq!(take_all(&limit, &rules[0]), 450);
    assert_eq!(take_all(&limit, &rules[1]), 225);
    assert!(!limit.has_room(&rules[0]));
    assert_eq!(take_all(&limit, &rules[2]), 113, "it waits for none of the others");
    give_all(&limit, &rules[2]);
    give_all(&limit, &rules[0]);
    assert_eq!(take_all(&limit, &rules[2]), 338, "half of what the second has left");
    give_all(&limit, &rules[1]);
    give_all(&limit, &rules[2]);
    assert_eq!(limit.taken(), 0);
}

#[test]
fn what_is_lent_is_not_for_leases() {
    let (limit, rule) = (LeaseLimit::new(800), AtomicUsize::default());
    assert_eq!(limit.lend(true), 200);
    assert_eq!(take_all(&limit, &rule), 300);
    limit.lend(false);
    assert_eq!(take_all(&limit, &rule), 100);
}

#[test]
fn however_many_rules_there_are_there_are_never_too_many() {
    let limit = LeaseLimit::new(64);
    let rules: Vec<AtomicUsize> = (0..1_000).map(|_| AtomicUsize::default()).collect();
    let all: usize = rules.iter().map(|rule| take_all(&limit, rule)).sum();
    assert_eq!((all, limit.taken()), (64, 64));
}
