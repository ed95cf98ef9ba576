//! Runs of quiet gets, which are one multi-get: see the engine's `run`.
//!
//! Their gets are executed one by one until the first whose key another client computes. From there on the
//! run must be known up to its end: what has arrived of it stays in `input` until the rest has come, for a
//! short time at most.

use cattlegrid_engine::{AnsweredGets, GetEnd, MayHold, RunGet, ShardLock, is_of_run, is_quiet_get};
use cattlegrid_protocol::{PacketCommand, Parsed, Request};

use super::Connection;
use super::execute::Batch;
use super::input::Front;
use crate::turns::Turn;
use crate::watch::Topics;

/// The run to which the last command belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Run {
    /// None: it was no quiet get.
    #[default]
    None,
    /// The run may still be held.
    Open,
    /// This connection computes one of its keys: only rules that say so let it wait for others.
    Computes,
    /// The run is too long to be held.
    Long,
}

/// Whether the rest of a run that must be held is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunRest {
    /// The rest has not been looked for.
    Begins,
    /// Until this time, in milliseconds.
    Awaited { until_ms: u64 },
    /// The rest did not come in time: the run is executed as it is.
    Over,
}

/// How long a run that must be held is waited for to be whole, in milliseconds: clients send it at once.
const WHOLE_MS: u64 = 10;
/// Gets of a run that is held; of a longer one the others are not.
const GETS_MAX: usize = 1024;
/// Places for hashes of keys that a connection keeps between runs.
const SEEN_KEPT: usize = 32;

impl Connection {
    /// Whether a get of the binary protocol or an `mg` is one of a run.
    #[inline]
    pub(super) fn joins_run(&self, request: &Request<'_>) -> bool {
        (self.run != Run::None || is_quiet_get(request)) && is_of_run(request)
    }

    /// Executes a get of a run. False: it must be held with the rest of it.
    pub(super) fn get_of_run(
        &mut self,
        request: &Request<'_>,
        hash: u64,
        len: usize,
        lock: &mut ShardLock<'_>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let may_hold = match self.run {
            Run::None | Run::Open => MayHold::Yes,
            Run::Computes => MayHold::IfPartial,
            Run::Long => MayHold::No,
        };
        let rest = self.input.take_run();
        let (shared, mut cx) = self.context(turn);
        let computes = match shared.engine.get_of_run(request, hash, may_hold, lock, &mut cx) {
            RunGet::Held => {
                self.input.front = Front::Run { rest, need: 0 };
                return false;
            }
            RunGet::Computes(token) => {
                if self.run_computes.len() < GETS_MAX {
                    self.run_computes.push((hash, token));
                }
                true
            }
            RunGet::Done => false,
            RunGet::Parked(parked) => {
                self.park(parked, len, turn);
                false
            }
        };
        if !is_quiet_get(request) {
            self.leave_run();
        } else if self.run == Run::Long || self.run_seen.len() >= GETS_MAX {
            self.run = Run::Long;
        } else {
            self.run = if computes || self.run == Run::Computes { Run::Computes } else { Run::Open };
            if turn.shared.engine.shared().window_max_ms() > 0 {
                self.run_seen.push(hash);
            }
        }
        true
    }

    /// The next command is not of the run.
    pub(super) fn leave_run(&mut self) {
        self.run = Run::None;
        self.run_seen.clear();
        self.run_seen.shrink_to(SEEN_KEPT);
        self.run_computes = Vec::new();
    }

    /// Holds the run that `rest` begins with, or the part of it whose output has room; the rest of it comes
    /// after that. None: the rest of it is waited for.
    #[cold]
    pub(super) fn hold_run(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> Option<Batch> {
        let shared = turn.shared;
        let (mut gets, mut ends) = (Vec::new(), Vec::new());
        let (mut at, mut end, mut is_whole) = (0, GetEnd::Nothing, false);
        while !is_whole && gets.len() <= GETS_MAX {
            match self.parse(&rest[at..], 0, shared) {
                Parsed::Complete { request, used } if is_of_run(&request) => {
                    is_whole = !is_quiet_get(&request);
                    let hash = shared.engine.hash(&request).expect("a get has a key");
                    gets.push((request, hash));
                    at += used;
                    ends.push(at);
                }
                Parsed::Complete { request, used } => {
                    match request {
                        Request::MetaNoop => end = GetEnd::Mn,
                        Request::Packet(packet, PacketCommand::Noop) => end = GetEnd::Noop(packet),
                        _ => {}
                    }
                    if end != GetEnd::Nothing {
                        at += used;
                    }
                    is_whole = true;
                }
                Parsed::Incomplete { block: None, .. } => break,
                Parsed::Incomplete { .. } | Parsed::Refused(_) => is_whole = true,
            }
        }
        if !is_whole && gets.len() <= GETS_MAX && self.may_come(rest.len(), turn) {
            return None;
        }
        self.input.front = Front::Idle;
        if shared.watchers.wanted().has(Topics::REQUESTS) {
            // The first one was announced before.
            let from = ends.iter().copied().chain([at]);
            for (from, to) in from.clone().zip(from.skip(1)).filter(|(from, to)| from < to) {
                self.announce(&rest[from..to], turn);
            }
        }
        let bytes = turn.output_bytes;
        let (seen, computes) = (std::mem::take(&mut self.run_seen), std::mem::take(&mut self.run_computes));
        let seen = AnsweredGets { keys: &seen, computes: &computes };
        let (shared, mut cx) = self.context(turn);
        let mut lock = shared.engine.shard_lock();
        let (done, parked) = shared.engine.get_run(&gets, seen, end, bytes, &mut lock, &mut cx);
        if done == 0 {
            // It has become the name of a call.
            let (request, hash) = &gets[0];
            let parked = shared.engine.execute(request, *hash, &mut lock, &mut cx);
            drop(lock);
            if let Some(parked) = parked {
                self.park(parked, ends[0], turn);
            }
            self.leave_run();
            return Some(Batch { used: ends[0], commands: 1, paused: false });
        }
        drop(lock);
        let is_all = done == gets.len();
        let used = if is_all { at } else { ends[done - 1] };
        let paused = parked.is_some() && !is_all;
        let at_once = parked.as_ref().is_some_and(|parked| parked.since_ms().is_some());
        if let Some(parked) = parked {
            self.park(parked, used, turn);
        }
        if paused {
            self.go_on_behind(at_once);
        }
        self.run = if is_all && is_whole { Run::None } else { Run::Long };
        Some(Batch { used, commands: done, paused })
    }

    /// Whether more of the run may come than these bytes.
    fn may_come(&mut self, bytes: usize, turn: &Turn<'_>) -> bool {
        let Front::Run { rest, need } = &mut self.input.front else { return false };
        let until_ms = match *rest {
            RunRest::Begins => turn.now.ms + WHOLE_MS,
            RunRest::Awaited { until_ms } => until_ms,
            RunRest::Over => return false,
        };
        (*rest, *need) = (RunRest::Awaited { until_ms }, bytes + 1);
        until_ms > turn.now.ms && self.closing.is_none() && !self.hung_up
    }

    /// A run whose rest has not come in time is executed as it is.
    #[cold]
    pub(super) fn end_run(&mut self, turn: &Turn<'_>) {
        if self.input.run_until_ms().is_some_and(|until_ms| until_ms <= turn.now.ms) {
            self.run_is_over();
            self.end_upload(turn.shared);
            self.pass(self.gathered_bytes(), turn.shared);
        }
    }

    /// No more of the run at the front will come.
    pub(super) fn run_is_over(&mut self) {
        self.input.front = Front::Run { rest: RunRest::Over, need: 0 };
        self.has_more = true;
    }
}
