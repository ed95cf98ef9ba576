//! What a lane samples of its turns: how long requests take, and which keys are asked for ([`crate::hot`]).
//!
//! How long requests take is a histogram for each lane and family of commands, from the receive to the send.
//! One request in 64 is looked at. All requests of a turn are received and sent together, so that one look
//! counts for as many samples as the turn has; it counts for the family of the turn's last request that has
//! one. A request that is held does not count: how long it waits is in its rule's waits.

use cattlegrid_engine::Counter;
use cattlegrid_protocol::Request;

use crate::hot::TurnSampler;
use crate::shared::build::random_seed;

/// The samplers of a lane.
pub(crate) struct Samplers {
    latency: Sampler,
    /// None where no page shows hot keys.
    hot: Option<TurnSampler>,
}

impl Samplers {
    /// The samplers of a lane; `hot`: hot keys are sampled as well.
    pub(crate) fn new(hot: bool) -> Self {
        Self { latency: Sampler::default(), hot: hot.then(|| TurnSampler::new(random_seed())) }
    }

    /// The number of turns that the next turn stands for among hot keys; 0: it is not sampled.
    #[inline]
    pub(crate) fn next_turn(&mut self) -> u32 {
        self.hot.as_mut().map_or(0, TurnSampler::next)
    }

    /// A turn has executed `requests`, the last of this family: the samples of how long they take that it is.
    /// None if it is none, or if its connection is `held`. `stands_for`: what [`Samplers::next_turn`] has
    /// said.
    #[inline]
    pub(crate) fn after(
        &mut self,
        requests: usize,
        held: bool,
        family: Family,
        stands_for: u32,
        second: u32,
    ) -> Option<(Family, u32)> {
        if let Some(hot) = self.hot.as_mut().filter(|_| stands_for > 0) {
            hot.note_events(requests, second);
        }
        let samples = self.latency.take(requests);
        (samples > 0 && !held).then_some((family, samples))
    }
}

/// One request of this many is sampled.
pub(crate) const SAMPLED: u32 = 64;

/// Upper bounds of the histogram, in microseconds; the last bucket has none.
pub(crate) const BUCKETS_US: [u32; 12] =
    [20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 200_000, 1_000_000];

/// A kind of commands, in any protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Family {
    /// `get gets gat gats mg`.
    Get,
    /// `set add replace append prepend cas ms`.
    Store,
    /// `delete md`.
    Delete,
    /// `incr decr ma`.
    Arithmetic,
    /// `touch`.
    Touch,
    /// All others.
    Other,
}

impl Family {
    pub(crate) const ALL: [Self; 6] =
        [Self::Get, Self::Store, Self::Delete, Self::Arithmetic, Self::Touch, Self::Other];

    /// In one word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Store => "store",
            Self::Delete => "delete",
            Self::Arithmetic => "arithmetic",
            Self::Touch => "touch",
            Self::Other => "other",
        }
    }

    #[inline]
    pub(crate) fn of(request: &Request<'_>) -> Self {
        match request {
            Request::Get(_) | Request::MetaGet(_) | Request::PacketGet(_) => Self::Get,
            Request::Store(_) | Request::MetaSet(..) => Self::Store,
            Request::Delete(_) | Request::MetaDelete(_) => Self::Delete,
            Request::Arith(_) | Request::MetaArith(_) => Self::Arithmetic,
            Request::Touch(_) => Self::Touch,
            _ => Self::Other,
        }
    }
}

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

/// Says which turns are sampled.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Requests until the next sample.
    left: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { left: SAMPLED }
    }
}

impl Sampler {
    /// How many samples a turn of this many requests is.
    #[inline]
    pub(crate) fn take(&mut self, requests: usize) -> u32 {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        if requests < self.left {
            self.left -= requests;
            return 0;
        }
        let over = requests - self.left;
        self.left = SAMPLED - over % SAMPLED;
        1 + over / SAMPLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_64_is_a_sample_however_they_come() {
        for sizes in [&[1][..], &[63, 2], &[64], &[200, 7, 1], &[1000]] {
            let (mut sampler, mut taken, mut requests) = (Sampler::default(), 0, 0);
            for size in sizes.iter().cycle().take(10_000) {
                taken += sampler.take(*size) as usize;
                requests += size;
            }
            assert_eq!(taken, requests / SAMPLED as usize, "{sizes:?}");
        }
        assert_eq!(Sampler::default().take(0), 0);
    }

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
