//! How long a rule's computations take, learned from the undisturbed ones.
//!
//! The times of the last [`Times::KEPT`] computations are kept, in milliseconds. A computation that was
//! slowed down by others of its rule or its key is left out, unless it was faster than expected or no
//! undisturbed one has been seen for a while.

/// Durations of the last [`Times::KEPT`] computations, in milliseconds.
#[derive(Debug, Default)]
pub struct Times {
    samples: Vec<u32>,
    /// Where the next sample goes when [`Times::KEPT`] are kept.
    at: usize,
    /// Computations in a row that were disturbed by others.
    disturbed: u32,
}

/// What ran at the same time as a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// No other computation of its rule was under way.
    Alone,
    /// Others of its rule ran, but none of its key.
    Beside,
    /// Several clients computed its key.
    Herd,
}

/// Disturbed computations in a row after which the next is learned nevertheless: a rule whose keys are always
/// computed in parallel would never learn otherwise.
const DISTURBED_MAX: u32 = 16;

impl Times {
    /// Samples kept.
    pub const KEPT: usize = 64;
    /// The number of last samples from which it is predicted whether waiting helps.
    pub const RECENT: usize = 16;
    /// The number of samples from which the lease time is derived.
    pub const ENOUGH: usize = 8;

    /// A computation took `ms` milliseconds.
    ///
    /// A herd slows itself down: its time is learned only if it is less than expected.
    pub fn learn(&mut self, ms: u32, ran: Overlap) {
        let less = self.recent(90).is_some_and(|p90| ms < p90);
        match ran {
            Overlap::Alone => self.disturbed = 0,
            _ if less => {}
            Overlap::Beside if self.disturbed >= DISTURBED_MAX => {}
            Overlap::Beside | Overlap::Herd => {
                self.disturbed = self.disturbed.saturating_add(1);
                return;
            }
        }
        if self.samples.len() < Self::KEPT {
            self.samples.push(ms);
        } else {
            self.samples[self.at] = ms;
        }
        self.at = (self.at + 1) % Self::KEPT;
    }

    /// A probe ended in time although it was expected to take longer: what was learned is out of date.
    pub fn forget(&mut self) {
        self.samples.clear();
        self.at = 0;
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// There is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The `percent`th percentile of all samples, in milliseconds; None without a sample. `percent`: 1..=100.
    pub fn percentile(&self, percent: usize) -> Option<u32> {
        let mut samples = [0; Self::KEPT];
        let samples = &mut samples[..self.samples.len()];
        samples.copy_from_slice(&self.samples);
        nearest_rank(samples, percent)
    }

    /// This percentile of the last [`Times::RECENT`] samples, in milliseconds.
    pub fn recent(&self, percent: usize) -> Option<u32> {
        let count = self.samples.len().min(Self::RECENT);
        let mut last = [0; Self::RECENT];
        for (back, ms) in last.iter_mut().take(count).enumerate() {
            *ms = self.samples[(self.at + Self::KEPT - 1 - back) % Self::KEPT];
        }
        nearest_rank(&mut last[..count], percent)
    }
}

/// The percentile by nearest rank.
fn nearest_rank(samples: &mut [u32], percent: usize) -> Option<u32> {
    if samples.is_empty() {
        return None;
    }
    let rank = (samples.len() * percent).div_ceil(100).clamp(1, samples.len());
    Some(*samples.select_nth_unstable(rank - 1).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_does_not_teach_that_it_is_slow() {
        let mut times = Times::default();
        times.learn(900, Overlap::Herd);
        assert!(times.is_empty());
        times.learn(200, Overlap::Alone);
        times.learn(900, Overlap::Herd);
        assert_eq!(times.recent(90), Some(200));
        times.learn(100, Overlap::Herd);
        assert_eq!(times.len(), 2, "it took less although it was disturbed");
    }

    #[test]
    fn a_blip_is_forgotten_within_twenty_computations() {
        let mut times = Times::default();
        (0..30).for_each(|_| times.learn(200, Overlap::Alone));
        (0..20).for_each(|_| times.learn(1000, Overlap::Alone));
        assert_eq!(times.recent(90), Some(1000));
        (0..15).for_each(|_| times.learn(200, Overlap::Beside));
        assert_eq!(times.recent(90), Some(200));
    }

    #[test]
    fn a_rule_that_never_computes_alone_learns_too() {
        let mut times = Times::default();
        (0..16).for_each(|_| times.learn(2000, Overlap::Beside));
        assert!(times.is_empty());
        times.learn(2000, Overlap::Beside);
        assert_eq!(times.recent(90), Some(2000));
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut times = Times::default();
        assert_eq!(times.percentile(50), None);
        (1..=100).for_each(|ms| times.learn(ms, Overlap::Alone));
        assert_eq!(times.percentile(99), Some(100));
        assert_eq!(times.percentile(50), Some(68), "of 37..=100");
        assert_eq!(times.recent(90), Some(99), "of 85..=100");
    }
}
