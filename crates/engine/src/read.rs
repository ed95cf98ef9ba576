//! Reads: `get gets gat gats`, `mg`, `me`, those of the binary protocol, and the replies that they write.

pub(crate) mod advice;
pub(crate) mod asked;
pub(crate) mod get;
mod many;
pub(crate) mod meta;
mod meta_ruled;
pub(crate) mod miss;
pub(crate) mod pending;
pub(crate) mod reply;
pub(crate) mod run;
