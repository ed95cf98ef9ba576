//! The types that come with the server, and the methods that every object has.
#![expect(clippy::unnecessary_wraps, reason = "all methods have one signature")]

mod bloom;
mod board;
mod collection;
mod consistent;
mod counter;
mod hll;
mod map;
mod queue;
mod quota;
mod recent;
mod reserved;
pub(crate) mod score;
mod set;
mod sketch;
mod topk;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by name. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] = &[
    &quota::QUOTA,
    &set::SET,
    &map::MAP,
    &counter::COUNTER,
    &board::BOARD,
    &queue::QUEUE,
    &consistent::CONSISTENT,
    &topk::TOPK,
    &hll::HLL,
    &bloom::BLOOM,
    &recent::RECENT,
];
