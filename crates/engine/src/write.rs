//! Writes: commands that store, fill, prolong and delete.

mod delete;
pub(crate) mod fill;
pub(crate) mod load;
mod meta;
pub(crate) mod ruled;
pub(crate) mod store;
