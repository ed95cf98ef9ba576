//! How long requests take: a histogram for each lane and family of commands, of the requests that are sampled
//! ([`crate::turns::Samplers`]).

use cattlegrid_engine::Counter;

use crate::turns::Family;

/// Upper bounds of the histogram, in microseconds; the last bucket has none.
pub(crate) const BUCKETS_US: [u32; 12] =
    [20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 200_000, 1_000_000];

/// The histograms of a lane, which alone writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Latency([Times; Family::ALL.len()]);

/// A histogram.
#[derive(Debug, Default)]
struct Times {
    buckets: [Counter; BUCKETS_US.len() + 1],
    sum_ns: Counter,
}

/// Sums of the histograms of all lanes for one family.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) buckets: [u64; BUCKETS_US.len() + 1],
    sum_ns: u64,
}

impl Latency {
    /// `samples` requests have taken `ns` nanoseconds each.
    pub(crate) fn record(&self, family: Family, samples: u32, ns: u64) {
        let times = &self.0[family as usize];
        let bucket = BUCKETS_US.iter().position(|most| ns <= u64::from(*most) * 1_000);
        times.buckets[bucket.unwrap_or(BUCKETS_US.len())].add(samples.into());
        times.sum_ns.add(ns.saturating_mul(samples.into()));
    }

    /// Sets all to zero.
    pub(crate) fn reset(&self) {
        for times in &self.0 {
            times.buckets.iter().chain([&times.sum_ns]).for_each(Counter::reset);
        }
    }
}

impl Sums {
    /// The sums over these lanes.
    pub(crate) fn of<'a>(family: Family, lanes: impl Iterator<Item = &'a Latency>) -> Self {
        let mut sums = Self::default();
        for Latency(times) in lanes {
            let times = &times[family as usize];
            sums.buckets.iter_mut().zip(&times.buckets).for_each(|(sum, own)| *sum += own.get());
            sums.sum_ns += times.sum_ns.get();
        }
        sums
    }

    /// Requests that were sampled.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Time of all of them, in microseconds.
    pub(crate) fn sum_us(&self) -> u64 {
        self.sum_ns / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_it_does_not_exceed() {
        let lanes = [Latency::default(), Latency::default()];
        for (ns, samples) in [(0, 1), (20_000, 2), (20_001, 4), (1_000_000_000, 8), (1_000_000_001, 16)] {
            lanes[0].record(Family::Get, samples, ns);
            lanes[1].record(Family::Get, samples, ns);
        }
        let sums = Sums::of(Family::Get, lanes.iter());
        assert_eq!(sums.buckets, [6, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 32]);
        assert_eq!((sums.count(), sums.sum_us()), (62, 48_000_000 + 240));
        lanes[1].reset();
        assert_eq!(Sums::of(Family::Get, lanes.iter()).count(), 31);
        assert_eq!(Sums::of(Family::Other, lanes.iter()).count(), 0);
    }
}
