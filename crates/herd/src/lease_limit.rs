//! How many leases there may be, and how many of them each rule may have.
//!
//! A rule may have as many leases as are free: one rule alone takes half of them at most, two that want all
//! take a third each, and a third is left for the next (Choudhury and Hahne, *Dynamic queue length thresholds
//! for shared-memory packet switches*, 1998, with α = 1). So a rule whose computations hang does not take the
//! leases of the others. The count is one for all shards: which keys meet in a shard does not matter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The leases of all shards together.
#[derive(Debug)]
pub struct LeaseLimit {
    most: usize,
    /// A quarter is not for leases.
    lends: AtomicBool,
    taken: AtomicUsize,
}

impl LeaseLimit {
    /// At most `most` leases, at least 1.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), lends: AtomicBool::new(false), taken: AtomicUsize::new(0) })
    }

    /// Gives the room of a quarter of the leases to rules that observe, or takes it back. Returns how many
    /// leases that is.
    pub fn lend(&self, on: bool) -> usize {
        self.lends.store(on, Relaxed);
        self.most / 4
    }

    /// Leases that there are now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Whether a rule that has `own` leases may have another one.
    pub(crate) fn has_room(&self, own: &AtomicUsize) -> bool {
        let lent = if self.lends.load(Relaxed) { self.most / 4 } else { 0 };
        own.load(Relaxed) < (self.most - lent).saturating_sub(self.taken())
    }

    /// A lease begins, of the rule that has `own`. Of threads that find the last place at once each may take
    /// one.
    pub(crate) fn take(&self, own: &AtomicUsize) {
        own.fetch_add(1, Relaxed);
        self.taken.fetch_add(1, Relaxed);
    }

    /// Gives back the place of a lease that has ended.
    pub(crate) fn give(&self, own: &AtomicUsize) {
        own.fetch_sub(1, Relaxed);
        self.taken.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
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
}
