//! Replies: what is shown of a value, a lease or a call, in the form of the command that asked.

pub(crate) mod meta;

pub(crate) mod call;
pub(crate) mod get;
