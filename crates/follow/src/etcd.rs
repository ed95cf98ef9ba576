//! The log of etcd: bumps that clients sent to any node of a fleet, in one order.
//!
//! Each node writes its bumps under one key, `PREFIX/bump/NODE`, and watches all of them; the history is
//! etcd's. Under `PREFIX/node/NODE`, with a lease, it says that it is there and how far it has obeyed.
//! [`BatchEntry`] and [`NodeRecord`] are what these keys hold, as text that `etcdctl` shows.
//!
//! What a rule file says of it can be read without the feature `etcd`, which has the connections.

mod address;
mod entry;
#[cfg(feature = "etcd")]
mod feed;
mod fleet;
#[cfg(feature = "etcd")]
mod grpc;
#[cfg(feature = "etcd")]
mod link;
#[cfg(feature = "etcd")]
mod membership;
#[cfg(feature = "etcd")]
mod messages;
mod outbox;
mod record;
#[cfg(feature = "etcd")]
mod source;

pub use address::{EtcdAddress, EtcdAddressError};
pub use entry::{BatchEntry, Bump, EntryValue, TAG_LINE_MAX};
#[cfg(feature = "etcd")]
pub use feed::{AskedRevisions, Claim, Feed, FeedLead, Sightings};
pub use fleet::{Fleet, GONE_MS, ListedNode};
#[cfg(feature = "etcd")]
pub use grpc::GrpcError;
pub use outbox::{
    BACKLOG_BYTES_MAX, BACKLOG_MAX, BATCH_BYTES_MAX, BATCH_MAX, CommittedWaiters, Outbox, OutboxBatch,
    TicketState,
};
pub use record::{NodeRecord, NodeState};
#[cfg(feature = "etcd")]
pub use source::{CONFIRM_MS_MAX, FleetNode, Mailbox, NodeIdentity, Source};
