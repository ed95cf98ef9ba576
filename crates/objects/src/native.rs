//! The shipped types, and the methods that every object has.

#![expect(clippy::unnecessary_wraps, reason = "all methods have one signature")]

mod bloom;
mod board;
mod bucket;
mod collection;
mod consistent;
mod counter;
mod gcra;
mod hll;
mod lock;
mod map;
mod queue;
mod quota;
mod recent;
mod reserved;
pub(crate) mod score;
mod sem;
pub(crate) mod set;
mod sketch;
mod sliding;
mod swcounter;
pub(crate) mod topk;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// The shipped types, by number. Their order determines the numbers of methods.
pub static TYPES: &[&ObjectType] = &[
    &quota::QUOTA,
    &swcounter::SWCOUNTER,
    &set::SET,
    &map::MAP,
    &consistent::CONSISTENT,
    &counter::COUNTER,
    &gcra::GCRA,
    &bucket::BUCKET,
    &sliding::SLIDING,
    &lock::LOCK,
    &board::BOARD,
    &topk::TOPK,
    &hll::HLL,
    &bloom::BLOOM,
    &recent::RECENT,
    &sem::SEM,
    &queue::QUEUE,
];
