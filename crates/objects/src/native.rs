//! The types that come with the server, and the methods that every object has.

#![expect(clippy::unnecessary_wraps, reason = "all methods have one signature")]

mod bloom;
mod collection;
mod consistent;
mod counter;
mod hll;
mod recent;
mod reserved;
mod sketch;
mod topk;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by name. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] =
    &[&bloom::BLOOM, &consistent::CONSISTENT, &counter::COUNTER, &hll::HLL, &recent::RECENT, &topk::TOPK];
