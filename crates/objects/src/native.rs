//! The types that come with the server, and the methods that every object has.

mod counter;
mod quota;
mod reserved;

use crate::method::ObjectType;
pub use reserved::RESERVED;

/// All types, by name. The order decides the numbers of methods.
pub static TYPES: &[&ObjectType] = &[&quota::QUOTA, &counter::COUNTER];
