//! The interface between the source of a log and the server that obeys it.

use std::time::Duration;

use crate::follower::{FlushReason, State};
use crate::names::Names;
use crate::postgres::{LeftOut, Missing};

/// An order from a log. The node must obey orders in the order of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Bump these tags.
    Bump(Names),
    /// Invalidate all tagged items.
    Flush(FlushReason),
    /// All that was committed before this moment is obeyed, in milliseconds of [`Node::now_ms`].
    Confirmed {
        /// The moment.
        asked_at_ms: u64,
    },
}

/// An event for the server's operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Both connections are there.
    Connected {
        /// Of a database: the system identifier and timeline. Of etcd: the cluster's identifier.
        identity: String,
        /// The stream goes on where the last one ended.
        resumes: bool,
    },
    /// A connection ended or cannot be made; it is tried again.
    Lost {
        /// Why.
        reason: String,
    },
    /// The database lacks something. An empty list: no more.
    Missing(Vec<Missing>),
    /// The database or the rule file should be otherwise, and is followed all the same. It is said at each connection.
    Advice(Missing),
    /// The log refuses this node's own entries, for this reason; `None`: it takes them again.
    Takes(Option<Missing>),
    /// Another node has this node's name.
    NameTaken {
        /// The name.
        name: String,
        /// The address of the other one.
        by: String,
        /// The name under which this node is listed.
        instead: String,
    },
    /// A key among those of the nodes was written by something else.
    Foreign {
        /// The key.
        key: String,
    },
}

/// A place in a log from which another node can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// All before it is obeyed.
    pub position: u64,
    /// The state that the other node needs, in one line.
    pub text: Box<str>,
}

/// A node that obeys the orders of a log.
pub trait Node {
    /// A clock that goes on while the machine is suspended, in milliseconds.
    fn now_ms(&self) -> u64;
    /// The wall clock, since 1970: a database shows it as the time of the last reply.
    fn unix_now(&self) -> Duration;
    /// Obeys an order before it returns.
    fn order(&mut self, order: Order);
    /// Takes note of a place up to which all orders have been given.
    fn stands(&mut self, _standing: Standing) {}
    /// Writes a line of the log.
    fn notice(&mut self, notice: Notice);
    /// Takes note of how far the follower is, and of what was left out of tags so far.
    fn state(&mut self, state: State, left_out: LeftOut);
    /// The orders so far are those of the log up to `position`, as a number: up to where of it they have been obeyed, which is what
    /// the log may forget. For a node whose orders are obeyed later; asked often.
    fn obeyed(&mut self, position: u64) -> u64 {
        position
    }
    /// Why the stream must begin anew where it was obeyed last; asked often.
    fn wants_again(&mut self) -> Option<String> {
        None
    }
    /// Whether there must be no more orders until some of those that wait are obeyed.
    fn is_full(&self) -> bool {
        false
    }
    /// The password, read anew for each connection.
    ///
    /// # Errors
    /// Why there is none, though one is set.
    fn password(&mut self) -> Result<Option<String>, String>;
}

/// The server's requests to a source that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// Stop.
    pub stops: bool,
    /// Another number than before: look at once for what the database lacks.
    pub looks: u64,
    /// The server leaves: other nodes should know.
    pub drains: bool,
}
