//! The samples of a lane: the time of requests ([`crate::latency`]), and requested keys ([`crate::hot`]).

use crate::hot::TurnSampler;
use crate::latency::{Family, Sampler};
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

    /// Notes that a turn has executed `requests`, the last of them in this family. Returns the sampler if one
    /// of them is a sample of latency; None if none is, or if the connection is `held`. `stands_for`: the
    /// result of [`Samplers::next_turn`].
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
