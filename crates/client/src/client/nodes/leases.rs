//! The servers of which leases were had: a value goes there, though its key may have another server by then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::net::node::Node;

/// Leases that are out, by key and token.
#[derive(Default)]
pub(crate) struct LeaseTable(Mutex<HeldLeases>);

type HeldLeases = HashMap<(Box<[u8]>, u64), HeldLease>;

struct HeldLease {
    /// With it its connections stay, on which the lease depends.
    node: Arc<Node>,
    until: Instant,
}

impl LeaseTable {
    /// A lease was had of this server, for at most this time.
    pub(crate) fn note(&self, key: &[u8], token: u64, node: &Arc<Node>, lasts: Duration) {
        let Some(until) = Instant::now().checked_add(lasts) else { return };
        self.lock().insert((key.into(), token), HeldLease { node: node.clone(), until });
    }

    /// The server of a lease, if it is out.
    pub(crate) fn server(&self, key: &[u8], token: u64) -> Option<Arc<Node>> {
        self.lock().get(&(key.into(), token)).map(|lease| lease.node.clone())
    }

    /// A lease has ended.
    pub(crate) fn end(&self, key: &[u8], token: u64) {
        let lease = self.lock().remove(&(key.into(), token));
        // The last node of a server that has gone closes its connections: without the lock.
        drop(lease);
    }

    /// Forgets those whose time is over: of callers that have not come back.
    pub(crate) fn forget_old(&self, now: Instant) {
        let mut old = Vec::new();
        self.lock().retain(|_, lease| {
            let is_out = lease.until > now;
            if !is_out {
                old.push(lease.node.clone());
            }
            is_out
        });
    }

    fn lock(&self) -> MutexGuard<'_, HeldLeases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
