//! The follower, driven by a database, a network and a node that exist in memory only.

#[cfg(feature = "etcd")]
mod feed;
mod fleet;
mod sim;
mod steps;
mod world;
