//! Objects on all shards: calls by the names of keys, and calls that take their time.
//!
//! A call that reads much runs in steps: its object is busy meanwhile, and other calls on it wait in its queue. Such a call
//! leaves the engine as a [`RunningCall`] in the effects, for the lane that is the object's home ([`RunningCall::home`]),
//! which calls [`Engine::go_on`] until it has ended; its request is woken then.

pub(crate) mod counts;

use std::sync::Arc;

use cattlegrid_objects::Registry;

use crate::engine::Engine;
use crate::shards::ShardLock;
use crate::step::Step;

/// A call that has not ended.
#[derive(Debug)]
pub struct RunningCall {
    hash: u64,
}

impl RunningCall {
    /// The lane that is to run it, of this many.
    pub fn home(&self, lanes: usize) -> usize {
        (self.hash >> 32) as usize % lanes.max(1)
    }
}

impl Engine {
    /// Runs a call for at most about 100 us. Returns it if it has not ended; it is to be continued when other work had its
    /// turn. None: it has ended, or waits for an object that is busy, and comes back in the effects.
    pub fn go_on(
        &self,
        call: Box<RunningCall>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> Option<Box<RunningCall>> {
        let _ = (call, lock, step);
        None
    }

    /// Switches types of objects on; None: none. What is stored under names that become names of calls is removed.
    pub fn set_objects(&self, registry: Option<Arc<Registry>>) {
        let _ = registry;
    }

    /// The types that are switched on.
    pub fn objects(&self) -> Option<Arc<Registry>> {
        None
    }
}
