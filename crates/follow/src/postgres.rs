//! The log of PostgreSQL: logical replication with the plugin `pgoutput`.
//!
//! What a rule file says of it can be read without the feature `postgres`, which has the connections.

pub(crate) mod address;
#[cfg(feature = "postgres")]
mod catalog;
#[cfg(feature = "postgres")]
mod definitions;
#[cfg(feature = "postgres")]
mod history;
#[cfg(feature = "postgres")]
mod lacks;
mod missing;
#[cfg(feature = "postgres")]
mod pgoutput;
#[cfg(feature = "postgres")]
mod probe;
#[cfg(feature = "postgres")]
mod rows;
#[cfg(feature = "postgres")]
mod source;
#[cfg(feature = "postgres")]
mod standbys;
#[cfg(feature = "postgres")]
mod standing;
mod tables;
#[cfg(feature = "postgres")]
pub(crate) mod tls;
#[cfg(feature = "postgres")]
mod waits;
#[cfg(feature = "postgres")]
pub(crate) mod wire;
#[cfg(feature = "postgres")]
mod x509;

pub use address::{Address, AddressError, SslMode};
pub use missing::Missing;
#[cfg(feature = "postgres")]
pub use pgoutput::{Lsn, Malformed};
#[cfg(feature = "postgres")]
pub use source::Source;
pub use tables::{LeftOut, Table, TableError, Template};
#[cfg(feature = "postgres")]
pub use tls::{TlsError, client_config};
#[cfg(feature = "postgres")]
pub use wire::WireError;
