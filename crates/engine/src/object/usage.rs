//! What objects hold, and the calls that have not ended.

use std::collections::BTreeMap;

use cattlegrid_store::ObjectUsage;

use crate::engine::Engine;
use crate::sync::Ordering;

/// Objects of all shards.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectsUsage {
    /// By the number of the type, for types that have any.
    pub types: BTreeMap<u16, ObjectUsage>,
    /// Objects that a call reads in steps, or for which others wait.
    pub busy: usize,
    /// Calls that have steps left, or wait for an object.
    pub running: usize,
}

impl Engine {
    /// What objects hold, and the calls that have not ended.
    pub fn objects_usage(&self) -> ObjectsUsage {
        let running = self.shared().calls.load(Ordering::Relaxed);
        let mut usage = ObjectsUsage { running, ..ObjectsUsage::default() };
        for number in 0..self.shards.len() {
            let shard = self.shards.lock(number);
            usage.busy += shard.busy.len();
            for (type_id, own) in shard.store().object_usage() {
                usage.types.entry(*type_id).or_default().add(own);
            }
        }
        usage
    }
}
