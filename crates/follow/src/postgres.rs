//! The log of PostgreSQL: logical replication with the plugin `pgoutput`.
//!
//! What a rule file says of it can be read without the feature `postgres`, which has the connections.

#[cfg(feature = "postgres")]
mod catalog;
#[cfg(feature = "postgres")]
mod definitions;
#[cfg(feature = "postgres")]
mod history;
#[cfg(feature = "postgres")]
mod lacks;
#[cfg(feature = "postgres")]
mod pgoutput;
#[cfg(feature = "postgres")]
mod probe;
#[cfg(feature = "postgres")]
mod source;
#[cfg(feature = "postgres")]
mod standbys;
#[cfg(feature = "postgres")]
mod standing;
#[cfg(feature = "postgres")]
mod waits;
#[cfg(feature = "postgres")]
mod wire;

pub use crate::address::SslMode;
pub use crate::missing::Missing;
pub use crate::tables::{Cascade, LeftOut, Table, TableError, Template};
#[cfg(feature = "postgres")]
pub use crate::tls::{TlsError, client_config};
#[cfg(feature = "postgres")]
pub use pgoutput::{Lsn, MalformedMessage};
#[cfg(feature = "postgres")]
pub use source::Source;
