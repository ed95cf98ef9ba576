//! What a lane samples: how long requests take ([`crate::latency`]), and which keys are asked for ([`crate::hot`]).

use crate::hot::TurnSampler;
use crate::latency::{Family, Sampler};
use crate::shared::build::random_seed;

/// Of a lane.
pub(crate) struct Samplers {
    latency: Sampler,
    /// None without pages that show hot keys.
    hot: Option<TurnSampler>,
}

impl Samplers {
    /// `hot`: hot keys are sampled as well.
    pub(crate) fn new(hot: bool) -> Self {
        Self { latency: Sampler::default(), hot: hot.then(|| TurnSampler::new(random_seed())) }
    }

    /// For how many turns the next one stands among hot keys; 0: it is not sampled.
    #[inline]
    pub(crate) fn next_turn(&mut self) -> u32 {
        self.hot.as_mut().map_or(0, TurnSampler::next)
    }

    /// A turn has executed `requests`, the last of this family: the samples of how long they take that it is. None if it is none, or if
    /// its connection is `held`. `stands_for`: what [`Samplers::next_turn`] has said.
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
            hot.had(requests, second);
        }
        let samples = self.latency.take(requests);
        (samples > 0 && !held).then_some((family, samples))
    }
}
