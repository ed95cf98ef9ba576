//! Calls of objects that take several steps, on the home lane of the object.
//!
//! ```text
//!   any lane: turns leave calls ──▶ the home lane's list, through its inbox ──▶ a step of each, in turn
//!   a step: Engine::continue_call, under the shard's lock for 100 us ──▶ the last one wakes the request
//! ```
//! Each round of a lane spends at most [`ROUND`] on such steps, so that connections are served between them.
//! The lane does not sleep while it has calls.
//!
//! # Invariants
//! * A call is in one list or one inbox. `Gauges::calls` counts it from the moment when it leaves the engine
//!   until it has ended. A call that waits for its object belongs to the engine; when its turn comes it is
//!   counted before the call that it waited for is subtracted. So no request waits for a call while the count
//!   is 0.
//! * No lock is kept from one step to the next.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cattlegrid_engine::{Effects, RunningCall, Step};

use crate::lane::handle::Message;
use crate::shared::Shared;

/// Time for steps of calls in one round. The step that exceeds it is finished.
const ROUND: Duration = Duration::from_millis(1);
/// The most calls that are in progress at once; the others have not begun. Each call in progress keeps up to
/// the size of an item until its request is answered.
const IN_PROGRESS: usize = 8;
/// The most steps in one round.
const ROUND_STEPS: usize = 256;

/// The calls of a lane, in the order in which they take steps.
#[derive(Debug, Default)]
pub(crate) struct Calls(VecDeque<Box<RunningCall>>);

impl Calls {
    /// Whether no call has steps left.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds calls that another lane has counted and handed over.
    pub(crate) fn add(&mut self, calls: impl IntoIterator<Item = Box<RunningCall>>) {
        self.0.extend(calls);
    }

    /// Takes over the calls that turns and steps have left in `effects`. Calls whose home is this lane are
    /// kept; the others are sent to their lanes, in one message for each lane.
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

    /// Executes steps of the first calls alternately, until the time of the round is used or all calls have
    /// ended. The ends of waits are left in `effects`.
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
        // The descriptor 0 stands for no connection.
        shared.publish(0, lane, 0, effects);
    }

    /// Drops all calls, whose requests are not answered any more.
    pub(crate) fn drop_all(&mut self, shared: &Shared) {
        shared.gauges.calls.fetch_sub(self.0.len(), Relaxed);
        self.0.clear();
    }
}
