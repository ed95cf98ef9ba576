//! Gets and hits by rule.

use crate::rules::active::Match;
use crate::shard::Shard;
use crate::step::Step;

impl Shard {
    /// A hit of a key whose rule was not looked up.
    #[inline]
    pub(crate) fn count_hit(&mut self, key: &[u8], step: &Step<'_>) {
        if self.herd.is_some() {
            self.count_hit_of_rule(key, step);
        }
    }

    #[inline(never)]
    fn count_hit_of_rule(&mut self, key: &[u8], step: &Step<'_>) {
        let weight = self.ruled_hits.weight(step.now.second);
        if weight == 0 {
            return;
        }
        let active = self.shared.rules();
        let Some(active) = active.as_ref() else { return };
        if let Some(ruled) = active.find(key) {
            ruled.state.counters().count_get(u64::from(weight), true);
        }
        if active.rules().observes()
            && let Some(observed) = active.find_observing(key)
        {
            observed.state.note_match();
            observed.state.counters().count_get(u64::from(weight), true);
        }
    }
}

/// A get of a key under a rule that is known.
pub(crate) fn count_ruled(ruled: &Match<'_>, is_hit: bool) {
    ruled.state.counters().count_get(1, is_hit);
}
