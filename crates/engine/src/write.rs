//! Writes: commands that store, fill, prolong and delete.

pub(crate) mod by_token;
mod delete;
pub(crate) mod fill;
mod meta;
pub(crate) mod ruled;
pub(crate) mod store;
