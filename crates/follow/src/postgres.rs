//! The log of PostgreSQL: logical replication with the plugin `pgoutput`.
//!
//! What a rule file says of it can be read without the feature `postgres`, which has the connections.

mod address;
#[cfg(feature = "postgres")]
mod catalog;
#[cfg(feature = "postgres")]
mod pgoutput;
#[cfg(feature = "postgres")]
mod rows;
#[cfg(feature = "postgres")]
mod source;
mod tables;
#[cfg(feature = "postgres")]
mod tls;
#[cfg(feature = "postgres")]
mod wire;

pub use address::{Address, AddressError, SslMode};
#[cfg(feature = "postgres")]
pub use catalog::Missing;
#[cfg(feature = "postgres")]
pub use pgoutput::{Lsn, Malformed};
#[cfg(feature = "postgres")]
pub use source::{Node, Notice, Order, Source, Wish};
pub use tables::{LeftOut, Table, TableError, Template};
#[cfg(feature = "postgres")]
pub use tls::{TlsError, client_config};
#[cfg(feature = "postgres")]
pub use wire::WireError;
