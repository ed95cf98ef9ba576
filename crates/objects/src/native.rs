//! The types that come with the server, and the methods that every object has.

mod bucket;
mod counter;
mod gcra;
mod quota;
mod reserved;
mod sliding;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by number. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] =
    &[&quota::QUOTA, &counter::COUNTER, &gcra::GCRA, &bucket::BUCKET, &sliding::SLIDING];
