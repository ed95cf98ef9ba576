//! Servers and the connections to them.
//!
//! [`wire`] turns commands into bytes and replies into values, without I/O. [`connection`] is one socket that
//! many callers share: requests are gathered and replies come back in their order. [`node`] is one server
//! with its connections and its back-off.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod node;
pub(crate) mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod wire;
