//! The log of MySQL and MariaDB: row events of the binary log, as a replica gets them.
//!
//! What a rule file says of it can be read without the feature `mysql`, which has the connections.

#[cfg(feature = "mysql")]
mod auth;
#[cfg(feature = "mysql")]
mod catalog;
#[cfg(feature = "mysql")]
mod decoder;
#[cfg(feature = "mysql")]
mod definitions;
#[cfg(feature = "mysql")]
mod event;
#[cfg(feature = "mysql")]
mod parts;
#[cfg(feature = "mysql")]
mod position;
#[cfg(feature = "mysql")]
mod read;
#[cfg(feature = "mysql")]
mod server;
#[cfg(feature = "mysql")]
mod source;
#[cfg(feature = "mysql")]
mod standing;
#[cfg(feature = "mysql")]
mod statement;
#[cfg(feature = "mysql")]
mod value;
#[cfg(feature = "mysql")]
mod wire;

#[cfg(feature = "mysql")]
pub use event::MalformedEvent;
#[cfg(feature = "mysql")]
pub use source::Source;
