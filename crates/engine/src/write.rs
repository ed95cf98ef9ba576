//! Writes: what stores, fills, prolongs and deletes.

pub(crate) mod by_token;
mod delete;
pub(crate) mod fill;
mod meta;
pub(crate) mod ruled;
pub(crate) mod store;
