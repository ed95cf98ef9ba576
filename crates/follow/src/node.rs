//! The interface between the source of a log and the server that obeys it.

use std::time::Duration;

use crate::follower::{FlushReason, FollowerState};
use crate::names::Names;
use crate::postgres::{LeftOut, Missing};

/// An order from a log. The node must obey orders in the order of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOrder {
    /// Bump these tags.
    Bump(Names),
    /// Invalidate all tagged items.
    Flush(FlushReason),
    /// Everything that was committed before this moment is obeyed.
    Confirmed {
        /// The moment, in milliseconds of [`Node::now_ms`].
        asked_at_ms: u64,
    },
}

/// An event for the server's operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Both connections are open.
    Connected {
        /// Of a database: the system identifier and timeline. Of etcd: the cluster's identifier.
        identity: String,
        /// Whether the stream continues where the last one ended.
        resumes: bool,
    },
    /// A connection ended or cannot be made; it is tried again.
    Lost {
        /// Why.
        reason: String,
    },
    /// Requirements that the database does not meet. An empty list: it meets all again.
    Missing(Vec<Missing>),
    /// An advice on the database or the rule file. The log is followed without it. It is reported at each
    /// connection.
    Advice(Missing),
    /// The log refuses this node's own entries for this reason; `None`: it takes them again.
    Takes(Option<Missing>),
    /// Another node has this node's name.
    NameTaken {
        /// The name.
        name: String,
        /// The address of the other node.
        by: String,
        /// The name under which this node is listed.
        instead: String,
    },
    /// A key among those of the nodes was written by another program.
    Foreign {
        /// The key.
        key: String,
    },
}

/// A place in a log from which another node can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// The position before which everything is obeyed.
    pub position: u64,
    /// The state that the other node needs, in one line.
    pub text: Box<str>,
}

/// A node that obeys the orders of a log.
pub trait Node {
    /// The time of a clock that continues while the machine is suspended, in milliseconds.
    fn now_ms(&self) -> u64;
    /// The wall-clock time since 1970. A database shows it as the time of the last reply.
    fn unix_now(&self) -> Duration;
    /// Obeys an order before it returns, or queues it: see [`Node::obeyed`].
    fn order(&mut self, order: LogOrder);
    /// Notes a point up to which all orders have been given.
    fn note_resume_point(&mut self, _standing: ResumePoint) {}
    /// Writes a line of the log.
    fn notice(&mut self, notice: Notice);
    /// Notes the follower's progress, and the counts of columns that were left out of tags.
    fn state(&mut self, state: FollowerState, left_out: LeftOut);
    /// The position up to which orders have been obeyed, which is also what the log may forget. `position`:
    /// up to where orders were given. Only a node that obeys orders later returns less. Called often.
    fn obeyed(&mut self, position: u64) -> u64 {
        position
    }
    /// The reason why the stream must start again at the last obeyed position; None: it need not. Called
    /// often.
    fn wants_again(&mut self) -> Option<String> {
        None
    }
    /// Whether the node takes no more orders until it has obeyed some of those that wait.
    fn is_full(&self) -> bool {
        false
    }
    /// The password of the database's user, read anew for each connection.
    ///
    /// # Errors
    /// Why the password that is set cannot be read.
    fn password(&mut self) -> Result<Option<String>, String>;
}

/// The server's requests to a source that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceRequest {
    /// Whether to stop.
    pub stops: bool,
    /// A counter: when it changes, the source looks into the catalog at once.
    pub looks: u64,
    /// Whether the server is leaving, so that other nodes should know.
    pub drains: bool,
}
