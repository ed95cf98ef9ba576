//! The types that come with the server, and the methods that every object has.

#![expect(clippy::unnecessary_wraps, reason = "methods have one signature")]

mod bucket;
mod counter;
mod gcra;
mod lock;
mod quota;
mod reserved;
mod sem;
mod sliding;
mod swcounter;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by number. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] = &[
    &quota::QUOTA,
    &swcounter::SWCOUNTER,
    &counter::COUNTER,
    &gcra::GCRA,
    &bucket::BUCKET,
    &sliding::SLIDING,
    &lock::LOCK,
    &sem::SEM,
];
