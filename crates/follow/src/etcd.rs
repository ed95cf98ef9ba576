//! The log of etcd: bumps that clients sent to any node of a fleet, in one order.
//!
//! Each node writes its bumps under one key, `PREFIX/bump/NODE`, and watches all of them; the history is etcd's. Under
//! `PREFIX/node/NODE`, with a lease, it says that it is there and how far it has obeyed. [`Entry`] and [`Record`] are what these
//! keys hold, as text that `etcdctl` shows.
//!
//! What a rule file says of it can be read without the feature `etcd`, which has the connections.

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
mod place;
mod record;
#[cfg(feature = "etcd")]
mod source;

pub use entry::{Bump, Entry, Read, TAG_LINE_MAX};
#[cfg(feature = "etcd")]
pub use feed::{AskedRevisions, Claim, Feed, Lead, Sightings};
pub use fleet::{Fleet, GONE_MS, Listed};
#[cfg(feature = "etcd")]
pub use grpc::GrpcError;
pub use outbox::{BACKLOG_BYTES_MAX, BACKLOG_MAX, BATCH_BYTES_MAX, BATCH_MAX, Batch, Outbox, Turn, Wait};
pub use place::{Place, PlaceError};
pub use record::{NodeState, Record};
#[cfg(feature = "etcd")]
pub use source::{CONFIRM_MS_MAX, Mailbox, Node, Own, Source};
