//! Reads: `get gets gat gats`, `mg`, `me`, and the replies that they write.

pub(crate) mod advice;
pub(crate) mod get;
mod many;
pub(crate) mod meta;
mod meta_ruled;
pub(crate) mod miss;
pub(crate) mod pending;
pub(crate) mod reply;
