//! How long fills are computed, at least: the usual time of a rule, from its last fills.
//!
//! It decides how long a value that may be old is served, and how long after an event fills are
//! probably old. Apart from [`crate::Times`], which learns from undisturbed computations only.

/// Fills that are remembered.
const KEPT: usize = 200;
/// Fills from which on something is learned.
const ENOUGH: usize = 8;

/// How long the last fills of a rule were computed, at least.
#[derive(Debug, Default)]
pub(crate) struct FillTimes {
    /// In milliseconds.
    samples: Vec<u32>,
    /// Where the next one goes when all places are taken.
    at: usize,
    /// The largest and the second largest.
    top: [u32; 2],
}

impl FillTimes {
    /// Learns one. Returns the p99, in milliseconds, if there are enough.
    pub(crate) fn learn(&mut self, ms: u32) -> Option<u32> {
        if self.samples.len() < KEPT {
            self.samples.push(ms);
            self.raise(ms);
        } else {
            let old = std::mem::replace(&mut self.samples[self.at], ms);
            self.at = (self.at + 1) % KEPT;
            if old >= self.top[1] {
                self.top = [0; 2];
                (0..KEPT).for_each(|at| self.raise(self.samples[at]));
            } else {
                self.raise(ms);
            }
        }
        self.p99()
    }

    fn raise(&mut self, ms: u32) {
        if ms > self.top[0] {
            self.top = [ms, self.top[0]];
        } else {
            self.top[1] = self.top[1].max(ms);
        }
    }

    /// The longest of those that are remembered, in milliseconds.
    pub(crate) fn longest(&self) -> Option<u32> {
        (!self.samples.is_empty()).then_some(self.top[0])
    }

    /// The sample at rank `len * 99 / 100`, from 0: of up to 100 the largest, of up to 200 the second
    /// largest.
    fn p99(&self) -> Option<u32> {
        (self.samples.len() >= ENOUGH).then(|| self.top[usize::from(self.samples.len() > KEPT / 2)])
    }

    /// The p50 and the p99, in milliseconds.
    pub(crate) fn middle_and_p99(&self) -> Option<(u32, u32)> {
        let p99 = self.p99()?;
        let mut samples = self.samples.clone();
        let middle = samples.len() / 2;
        Some((*samples.select_nth_unstable(middle).1, p99))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_percentile_of_the_last_200() {
        let mut times = FillTimes::default();
        let mut all: Vec<u32> = Vec::new();
        let mut random = 1_u32;
        for _ in 0..2_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let ms = random >> (16 + random % 16);
            all.push(ms);
            let p99 = times.learn(ms);
            let mut last = all[all.len().saturating_sub(200)..].to_vec();
            last.sort_unstable();
            let expected = (last.len() >= 8).then(|| last[last.len() * 99 / 100]);
            assert_eq!(p99, expected, "{}", all.len());
            if let Some((middle, _)) = times.middle_and_p99() {
                assert_eq!(middle, last[last.len() / 2]);
            }
        }
    }
}
