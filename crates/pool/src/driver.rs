//! The pool's own thread: it joins the jobs, the workers, the programs and the end of the pool.
//!
//! ```text
//!   Driver ──▶ Jobs       all jobs that have not ended: table, queue, deadlines, outcomes
//!      ├─────▶ Fleet      the workers: which there are, their sizing, retirement, limits
//!      ├─────▶ Programs   what workers are made of: generations, launches, templates
//!      ├─────▶ Ending     how far the end of the pool is
//!      └─────▶ Base       time, alarms, options, counters, callbacks: passed to all of these
//! ```
//! The four parts do not know each other: each has private state, and its methods are given [`DriverBase`]
//! where they need it. What concerns two of them is a method of [`Driver`]: `turn.rs` has the loop,
//! `dispatch.rs` jobs on their way to workers (`batches.rs`, `claims.rs` those that are taken back,
//! `submission.rs` their submission), `traffic.rs` the frames of workers (`line_input.rs` lines of JSON,
//! `frame_room.rs` the room for replies), `start.rs` and `lifecycle.rs` starts and ends of workers,
//! `launches.rs` programs, `share.rs` the budget of several pools, `end.rs` the end.
//!
//! One thread owns all of it, so nothing here is locked.

use std::sync::Arc;

use crate::base::DriverBase;
use crate::callbacks::Callbacks;
use crate::ending::Ending;
use crate::fleet::Fleet;
use crate::jobs::Jobs;
use crate::launch::Launch;
use crate::options::Options;
use crate::programs::Programs;
use crate::reply_room::RoomClient;
use crate::shared::PoolShared;

mod batches;
mod claims;
mod dispatch;
mod end;
mod frame_room;
mod launches;
mod lifecycle;
mod line_input;
mod share;
mod start;
mod submission;
mod traffic;
mod turn;

/// See the module.
pub(crate) struct Driver {
    base: DriverBase,
    jobs: Jobs,
    fleet: Fleet,
    programs: Programs,
    ending: Ending,
    /// The access to the room for replies that the pool shares with others, if it shares one.
    reply_room: RoomClient,
    /// The batch that is being put together; otherwise empty.
    batch: Vec<u64>,
}

impl Driver {
    /// The state of a pool that has no process yet.
    fn new(
        launch: Launch,
        options: Options,
        callbacks: Callbacks,
        shared: Arc<PoolShared>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            jobs: Jobs::new(&options),
            fleet: Fleet::new(&options, &shared),
            programs: Programs::new(launch),
            ending: Ending::new(),
            reply_room: RoomClient::new(options.reply_room.as_ref(), &shared.inbox),
            batch: Vec::new(),
            base: DriverBase::new(options, callbacks, shared)?,
        })
    }

    /// Whether a worker could be started at this moment.
    fn may_start(&self) -> bool {
        !self.programs.is_launching()
            && self.fleet.starts().allows(self.base.now())
            && self.programs.has_launcher()
    }
}
