//! The types that come with the server, and the methods that every object has.

#![expect(clippy::unnecessary_wraps, reason = "all methods have one signature")]

mod board;
mod bucket;
mod collection;
mod counter;
mod gcra;
mod lock;
mod map;
mod queue;
mod quota;
mod reserved;
pub(crate) mod score;
mod sem;
mod set;
mod sliding;
mod swcounter;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by number. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] = &[
    &quota::QUOTA,
    &swcounter::SWCOUNTER,
    &set::SET,
    &map::MAP,
    &counter::COUNTER,
    &gcra::GCRA,
    &bucket::BUCKET,
    &sliding::SLIDING,
    &lock::LOCK,
    &board::BOARD,
    &sem::SEM,
    &queue::QUEUE,
];
