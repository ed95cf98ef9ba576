//! Requests that wait for a value: how they begin to wait, how they are woken, and the order of their replies.

pub(crate) mod delivered;
pub(crate) mod hold;
mod own;
pub(crate) mod park;
pub(crate) mod reply_queue;
