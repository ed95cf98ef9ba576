//! How many leases there may be, and how many of them each rule may have.
//!
//! A rule may have as many leases as are free: one rule alone takes half of them at most, two that want all take a third each, and
//! a third is left for the next (Choudhury and Hahne, *Dynamic queue length thresholds for shared-memory packet switches*, 1998, with
//! α = 1). So a rule whose computations hang does not take the leases of the others. The count is one for all shards: which keys
//! meet in a shard does not matter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The leases of all shards together.
#[derive(Debug)]
pub struct LeaseLimit {
    most: usize,
    taken: AtomicUsize,
}

impl LeaseLimit {
    /// At most `most` leases, at least 1.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: AtomicUsize::new(0) })
    }

    /// Leases that there are now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// A place for another lease of the rule that has `of_rule`; None: it has its share.
    pub(crate) fn take(self: &Arc<Self>, of_rule: &Arc<AtomicUsize>) -> Option<Place> {
        // Counted first, so that threads that ask at once never have too many together.
        let taken = self.taken.fetch_add(1, Relaxed);
        let own = of_rule.fetch_add(1, Relaxed);
        let place = Place { limit: Arc::clone(self), of_rule: Arc::clone(of_rule) };
        (own < self.most.saturating_sub(taken)).then_some(place)
    }
}

/// A lease's place, which is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    limit: Arc<LeaseLimit>,
    of_rule: Arc<AtomicUsize>,
}

impl Place {
    /// Whether it is one of the rule with this count.
    pub(crate) fn is_of(&self, of_rule: &Arc<AtomicUsize>) -> bool {
        Arc::ptr_eq(&self.of_rule, of_rule)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of_rule.fetch_sub(1, Relaxed);
        self.limit.taken.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(limit: &Arc<LeaseLimit>, rule: &Arc<AtomicUsize>) -> Vec<Place> {
        std::iter::from_fn(|| limit.take(rule)).collect()
    }

    #[test]
    fn a_rule_may_have_as_many_as_are_free() {
        let limit = LeaseLimit::new(900);
        let rules: [Arc<AtomicUsize>; 3] = Default::default();
        let first = take_all(&limit, &rules[0]);
        assert_eq!(first.len(), 450);
        let second = take_all(&limit, &rules[1]);
        assert_eq!(second.len(), 225);
        assert!(limit.take(&rules[0]).is_none());
        assert_eq!(take_all(&limit, &rules[2]).len(), 113, "it waits for none of the others");
        drop(first);
        assert_eq!(take_all(&limit, &rules[2]).len(), 338, "half of what the second has left");
        drop(second);
        assert_eq!((limit.taken(), rules[1].load(Relaxed)), (0, 0));
    }

    #[test]
    fn however_many_rules_there_are_there_are_never_too_many() {
        let limit = LeaseLimit::new(64);
        let rules: Vec<Arc<AtomicUsize>> = (0..1_000).map(|_| Arc::default()).collect();
        let all: Vec<Place> = rules.iter().flat_map(|rule| take_all(&limit, rule)).collect();
        assert_eq!((all.len(), limit.taken()), (64, 64));
    }
}
