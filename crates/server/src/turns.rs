//! Turns of connections: what a connection's turn works with, its share of output and keys ([`Turn`]), whose
//! turn it is, the order in which a lane serves its connections ([`Turns`]), and which turns are sampled
//! ([`Samplers`]).
//!
//! A round serves connections that have something new first, in the order in which they became ready, then
//! those with work left from earlier turns, each once. It ends after [`ROUND_WORK`] commands, so that the
//! lane looks soon for what is new: many connections with much to do keep one with little to do waiting for
//! about a round, not for all of their turns. What is not served keeps its place. Some of those with work
//! left are served in each round, however much is new.
//!
//! Turns are sampled for how long requests take ([`crate::latency`]), from the receive to the send, and for
//! which keys are asked for ([`crate::hot`]). For how long they take, one request in 64 is looked at. All
//! requests of a turn are received and sent together, so that one look counts for as many samples as the turn
//! has; it counts for the family of the turn's last request that has one. A request that is held does not
//! count: how long it waits is in its rule's waits.
//!
//! The order is sans-io: connections are tokens, the poller and the connections are the lane's.
//!
//! # Invariants
//! * A caller gives a token only while it is in none of the queues.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use cattlegrid_engine::{Counters, Effects, Interest, Now, Output, TURN_CALLS_NS};
use cattlegrid_protocol::Request;

use crate::hot::TurnSampler;
use crate::shared::Shared;
use crate::shared::build::random_seed;

/// A turn of a connection: its inputs, its output and its counts.
pub(crate) struct Turn<'a> {
    pub(crate) shared: &'a Shared,
    /// Number of the lane.
    pub(crate) lane: usize,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Now,
    pub(crate) interest: Interest,
    /// Replies that the connection may have in this turn, in bytes.
    pub(crate) output_bytes: usize,
    /// The lane's count of gets when the turn began.
    pub(crate) gets: u64,
    /// Commands of the turn.
    pub(crate) commands: usize,
    pub(crate) out: &'a mut Output,
    pub(crate) effects: &'a mut Effects,
    /// [`Effects::calls_ns`] when it began.
    pub(crate) calls_ns: u64,
    /// The family of its last command.
    pub(crate) family: Family,
    /// For how many turns it stands among hot keys; 0: it is not sampled.
    pub(crate) stands_for: u32,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        lane: usize,
        now: Now,
        out: &'a mut Output,
        effects: &'a mut Effects,
    ) -> Self {
        let counters = &shared.lanes[lane].counters;
        let interest = shared.interest();
        let output_bytes = output_bytes(shared, shared.is_output_scarce());
        let gets = counters.cmd_get.get();
        let calls_ns = effects.calls_ns();
        Self {
            shared,
            lane,
            counters,
            now,
            interest,
            output_bytes,
            gets,
            commands: 0,
            out,
            effects,
            calls_ns,
            family: Family::Other,
            stands_for: 0,
        }
    }

    /// The connection has used up its share of output, of keys, or of time for calls of objects.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() >= self.output_bytes
            || self.keys() >= self.shared.caps.turn_keys
            || self.effects.calls_ns().wrapping_sub(self.calls_ns) >= TURN_CALLS_NS
    }

    /// Commands of the turn, or keys of gets if those are more.
    pub(crate) fn work(&self) -> usize {
        self.commands.max(self.keys())
    }

    fn keys(&self) -> usize {
        self.counters.cmd_get.get().wrapping_sub(self.gets) as usize
    }
}

/// Replies that a connection may have in one turn, in bytes; `is_scarce`: [`Shared::is_output_scarce`].
pub(crate) fn output_bytes(shared: &Shared, is_scarce: bool) -> usize {
    if is_scarce { shared.caps.scarce_output_bytes } else { shared.caps.output_bytes }
}

/// Connections whose turns are taken in step.
pub(crate) const BATCH: usize = 16;
/// Up to this many ready connections are served one by one; this many with work left are taken in step.
const FEW: usize = 4;
/// Commands, or keys of gets, after which a round ends; the batch that reaches this is finished.
const ROUND_WORK: usize = 1024;
/// With this many connections that have work left each receives little at once.
const CROWD: usize = 64;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Something new was received for them, or can be sent.
    fresh: VecDeque<u64>,
    /// They have work left.
    left_over: VecDeque<u64>,
    /// Number of connections at the end of `fresh` that came in this round.
    came: usize,
    /// Number of connections at the front of `left_over` that may have their turn in this round.
    due: usize,
    /// Commands that this round may still have.
    work: usize,
    batch: usize,
    some_left_over: bool,
}

impl Turns {
    /// No connection has anything to do.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.left_over.is_empty()
    }

    /// Whether enough connections have work left that what they receive must be little.
    pub(crate) fn is_crowded(&self) -> bool {
        self.left_over.len() >= CROWD
    }

    /// Something is new for a connection.
    #[inline]
    pub(crate) fn ready(&mut self, token: u64) {
        self.fresh.push_back(token);
        self.came += 1;
    }

    /// A connection has work left from its turn.
    pub(crate) fn again(&mut self, token: u64) {
        self.left_over.push_back(token);
    }

    /// A round begins: all that is new was given.
    pub(crate) fn begin(&mut self) {
        self.due = self.left_over.len();
        self.work = ROUND_WORK;
        self.batch = if self.fresh.len() + self.due <= FEW { 1 } else { BATCH };
        self.some_left_over = false;
    }

    /// The connections whose turns are next; none: the round is over.
    pub(crate) fn next(&mut self) -> ArrayVec<u64, BATCH> {
        if self.work > 0 && !self.fresh.is_empty() {
            let count = self.batch.min(self.fresh.len());
            return self.fresh.drain(..count).collect();
        }
        if self.due == 0 || self.work == 0 && self.some_left_over {
            return ArrayVec::new();
        }
        self.some_left_over = true;
        let count = self.batch.min(FEW).min(self.due);
        self.due -= count;
        self.left_over.drain(..count).collect()
    }

    /// They had their turns, with this many commands or keys.
    #[inline]
    pub(crate) fn done(&mut self, work: usize) {
        self.work = self.work.saturating_sub(work);
    }

    /// The round is over: those that came in it and were not served.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = u64> {
        let came = std::mem::take(&mut self.came).min(self.fresh.len());
        self.fresh.range(self.fresh.len() - came..).copied()
    }
}

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

    /// A round in which each turn has this many commands; the order of service.
    fn round(turns: &mut Turns, new: impl IntoIterator<Item = u64>, work: impl Fn(u64) -> usize) -> Vec<u64> {
        new.into_iter().for_each(|token| turns.ready(token));
        turns.begin();
        let mut served = Vec::new();
        loop {
            let batch = turns.next();
            if batch.is_empty() {
                break;
            }
            turns.done(batch.iter().map(|token| work(*token)).sum());
            for token in batch {
                served.push(token);
                if work(token) == 256 {
                    turns.again(token);
                }
            }
        }
        turns.end().for_each(drop);
        served
    }

    /// Above 1,000 they have no end of work, below they have one command.
    fn work(token: u64) -> usize {
        if token > 1000 { 256 } else { 1 }
    }

    #[test]
    fn what_is_new_comes_before_what_is_left() {
        let mut turns = Turns::default();
        let flood = 1001..1009;
        assert_eq!(round(&mut turns, flood.clone(), work), flood.collect::<Vec<_>>());
        assert_eq!(round(&mut turns, [1, 2], work), [1, 2, 1001, 1002, 1003, 1004]);
        assert_eq!(round(&mut turns, [3], work), [3, 1005, 1006, 1007, 1008], "they keep their order");
        assert_eq!(round(&mut turns, [], work), [1001, 1002, 1003, 1004]);
    }

    #[test]
    fn a_newcomer_waits_for_a_round_at_most() {
        for connections in [1, 5, 200, 3000] {
            let mut turns = Turns::default();
            round(&mut turns, 1001..1001 + connections, work);
            // Until all have had their first turn.
            while !turns.fresh.is_empty() {
                round(&mut turns, [], work);
            }
            for token in 1..100 {
                let served = round(&mut turns, [token], work);
                assert_eq!(served[0], token);
                let commands: usize = served.iter().map(|token| work(*token)).sum();
                assert!(commands <= ROUND_WORK + FEW * 256, "{commands} in a round of {connections}");
            }
        }
    }

    #[test]
    fn all_with_work_left_have_as_many_turns() {
        let mut turns = Turns::default();
        let mut counts = vec![0_usize; 101];
        // Without an end something is new, and fills rounds.
        round(&mut turns, 1001..1101, work);
        for _ in 0..1000 {
            for token in round(&mut turns, 0..600, |token| work(token).max(2)) {
                if token > 1000 {
                    counts[token as usize - 1001] += 1;
                }
            }
        }
        let (least, most) = (counts[..100].iter().min().unwrap(), counts[..100].iter().max().unwrap());
        assert!(*least > 10 && most - least <= 1, "{least} to {most} turns");
    }

    #[test]
    fn what_is_new_and_not_served_is_told_once() {
        let mut turns = Turns::default();
        (1001..1100).for_each(|token| turns.ready(token));
        turns.begin();
        let first = turns.next();
        assert_eq!(first.len(), BATCH);
        turns.done(BATCH * 256);
        assert!(turns.next().is_empty());
        assert!(turns.end().eq(1001 + BATCH as u64..1100));
        turns.begin();
        assert_eq!(turns.end().count(), 0);
        turns.ready(1);
        turns.begin();
        assert_eq!(turns.end().collect::<Vec<_>>(), [1], "behind those that wait");
    }

    #[test]
    fn few_are_served_one_by_one() {
        let mut turns = Turns::default();
        (1..=4).for_each(|token| turns.ready(token));
        turns.begin();
        assert_eq!(turns.next().as_slice(), [1]);
        turns.ready(5);
        turns.begin();
        assert_eq!(turns.next().as_slice(), [2], "still four");
        turns.ready(6);
        turns.ready(7);
        turns.begin();
        assert_eq!(turns.next().as_slice(), [3, 4, 5, 6, 7]);
    }

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
}
