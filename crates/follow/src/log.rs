//! The types that differ between logs: positions, transactions, snapshots and identities.

use std::fmt::{Debug, Display};

/// The types of one kind of log.
pub trait Log {
    /// A place in the log, between two entries; they are ordered as the entries are.
    type Position: Clone + Ord + Debug;
    /// The name of a transaction, by which a snapshot says whether it sees it.
    type Transaction: Clone + Eq + Debug;
    /// The transactions that a reader sees that begins now.
    type Snapshot: Snapshot<Self::Transaction>;
    /// The server, and the history of its data: different after a promotion, a restore or a change of server.
    type Identity: Clone + Eq + Debug + Display;
    /// An entry is in the log after what it stands for: it is bumped when it arrives, and waits for no
    /// snapshot.
    const IS_VISIBLE_ON_ARRIVAL: bool = false;
}

/// The transactions that a reader sees that begins at one moment.
pub trait Snapshot<T> {
    /// Whether the transaction has ended, so that each later reader sees what it did.
    fn sees(&self, transaction: &T) -> bool;

    /// The transactions that may have written their commit to the log and are not seen yet. Each read-write
    /// transaction that runs may be one.
    fn running(&self) -> Vec<T>;
}
