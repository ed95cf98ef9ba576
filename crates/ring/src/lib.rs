//! Consistent hashing of keys onto servers, as libmemcached does it ("ketama").
//!
//! ```
//! use cattlegrid_ring::{Layout, Ring, Server};
//!
//! let servers = [Server::new("10.0.0.1:11211", 1)?, Server::new("10.0.0.2:11211", 3)?];
//! let mut ring = Ring::new(servers, Layout::Weighted)?;
//! let of_key = ring.find(b"page:42").expect("a server is available");
//! ring.set_available(of_key, false);
//! assert_ne!(ring.find(b"page:42"), Some(of_key));
//! # Ok::<(), cattlegrid_ring::RingError>(())
//! ```
//! A server has points on a circle of 32-bit numbers: hashes (MD5, mostly) of its name and a counter. A key
//! belongs to the server of the first [`Point`] at or after the key's own hash, on past zero. A [`Ring`] says
//! for each key which server that is; it opens no connection. The points can be stored and searched elsewhere
//! ([`Ring::points`], [`Layout::key_hash`]).
//!
//! # Invariants
//! * For the same servers in the same order a key has the same server in this library and in libmemcached 1.0
//!   and 1.1.
//! * With equal weights, adding a server moves only keys that it takes, and removing one moves only its own.
//! * A server that is not available keeps its points: only its own keys go elsewhere, and they come back with
//!   it.

mod ring;
mod server;

pub use ring::{Layout, Point, Ring, SERVERS_MAX, key_hash, one_at_a_time};
pub use server::{NAME_MAX, Server, WEIGHT_MAX};

/// A ring that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// An empty list.
    #[error("there is no server")]
    NoServer,
    /// More than [`SERVERS_MAX`].
    #[error("there are more than {SERVERS_MAX} servers")]
    TooMany,
    /// An empty name, or one longer than [`NAME_MAX`] bytes.
    #[error("the name of a server has 1 to {NAME_MAX} bytes")]
    Name,
    /// Not a number from 1 to [`WEIGHT_MAX`].
    #[error("the weight of a server is a number from 1 to {WEIGHT_MAX}")]
    Weight,
    /// Two servers have the same points.
    #[error("server {0} occurs twice")]
    Twice(String),
}
