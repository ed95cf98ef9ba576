//! Calls of objects that take several steps, on the lane that is their object's home.
//!
//! ```text
//!   any lane: turns leave calls ──▶ the home lane's list, by its inbox if it is another ──▶ a step of each, in turn
//!   a step: Engine::continue_call, under the shard's lock for about 100 us ──▶ the last one wakes the request that waits
//! ```
//! A round of a lane has [`ROUND`] for such steps, so that its connections are served between them; the lane does not sleep
//! while it has any.
//!
//! # Invariants
//! * A call is in one list or one inbox, and is counted in `Gauges::calls` from the moment in which it left the engine until
//!   it has ended. A call that waits for its object is the engine's; when its turn comes it is counted before the call for which
//!   it waited is subtracted. So while the count is 0 no request waits for a call.
//! * No lock is kept from one step to the next.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cattlegrid_engine::{Effects, RunningCall, Step};

use crate::lane::handle::Message;
use crate::shared::Shared;

/// Time of a round for steps of calls. The step that reaches it is finished.
const ROUND: Duration = Duration::from_millis(1);
/// Calls that take their steps in turn; the others have not begun. Each keeps as much as an item may have, until its request
/// is answered.
const IN_PROGRESS: usize = 8;
/// Steps of a round at most.
const ROUND_STEPS: usize = 256;

/// The calls of a lane. See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Calls(VecDeque<Box<RunningCall>>);

impl Calls {
    /// None have steps left.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps calls that another lane has counted and handed on.
    pub(crate) fn add(&mut self, calls: impl IntoIterator<Item = Box<RunningCall>>) {
        self.0.extend(calls);
    }

    /// Takes the calls that turns and steps have left: those whose home is this lane are kept, the others are handed on, in
    /// one message for each lane.
    #[cold]
    pub(crate) fn take(&mut self, shared: &Shared, lane: usize, effects: &mut Effects) {
        let calls = effects.take_calls();
        shared.gauges.calls.fetch_add(calls.len(), Relaxed);
        let lanes = &shared.lanes;
        let mut others: Vec<Vec<Box<RunningCall>>> = Vec::new();
        for call in calls {
            let home = if call.is_for_own_lane() { lane } else { call.home(lanes.len()) };
            if home == lane {
                self.0.push_back(call);
            } else {
                others.resize_with(lanes.len(), Vec::new);
                others[home].push(call);
            }
        }
        for (home, calls) in others.into_iter().enumerate().filter(|(_, calls)| !calls.is_empty()) {
            lanes[home].tell(Message::Calls(calls));
        }
    }

    /// Steps of the first calls in turn, until the round's time is over or all have ended. The ends of waits are in the effects
    /// then.
    #[cold]
    pub(crate) fn advance(&mut self, shared: &Shared, lane: usize, effects: &mut Effects) {
        let (counters, interest) = (&shared.lanes[lane].counters, shared.interest());
        let end = shared.clock.now() + ROUND;
        for _ in 0..ROUND_STEPS {
            let Some(call) = self.0.pop_front() else { break };
            let at = shared.clock.now();
            let mut step = Step { now: shared.now_at(at), counters, interest, effects: &mut *effects };
            let left = shared.engine.continue_call(call, &mut shared.engine.shard_lock(), &mut step);
            let has_ended = left.is_none();
            if let Some(call) = left {
                self.0.insert(self.0.len().min(IN_PROGRESS - 1), call);
            }
            self.take(shared, lane, effects);
            if has_ended {
                shared.gauges.calls.fetch_sub(1, Relaxed);
            }
            if shared.clock.now() >= end {
                break;
            }
        }
        // No connection has asked for these steps.
        shared.publish(0, lane, 0, effects);
    }

    /// Drops all: their requests are not answered any more.
    pub(crate) fn drop_all(&mut self, shared: &Shared) {
        shared.gauges.calls.fetch_sub(self.0.len(), Relaxed);
        self.0.clear();
    }
}
