//! Namespaces: all keys of one user, product or template change at once, with a round trip or less for each
//! key.
//!
//! After Memcached.Namespacer. A key is made of a readable part, such as `userId:1234`, and random numbers
//! that the cache holds. To invalidate a namespace is to replace its number: all keys of the namespace
//! change, and what is stored under the old ones is never asked for again. Below, `___` is the prefix and `:`
//! the separator, both options.
//!
//! # Items in the cache
//! | key | value |
//! |---|---|
//! | `___record` | settings and windows, in [`record`] byte by byte |
//! | `___counter\|userId:1234` | the namespace's number, 16 hexadecimal digits; only of namespaces that were updated |
//!
//! Neither expires, and the cache may evict either at any time: what replaces it is a new random number, so
//! keys change and no old content returns.
//!
//! # Keys
//! | | |
//! |---|---|
//! | without tags | `___MASTER:userId:1234`, or `___MASTER:userId:1234\|COUNTER` if the evidence shows that the namespace may have been updated |
//! | without the optimization | `___userId:1234\|COUNTER` |
//! | with tags | `___MASTER:userId:1234`, with the tags `___userId:1234` and `___MASTER` |
//! | several namespaces | `___MASTER:prodLastWatched:userId:12543\|COUNTER:prodId:54929873` |
//!
//! MASTER is the number of the window that applies to the key, as 16 hexadecimal digits. The record has one
//! window, and during a rolling flush more: a key changes to the new window at a time of its own within the
//! period.
//!
//! # Invariants
//! * An update is acknowledged after its counter is replaced and its two evidence bits are set in every
//!   window. A key made afterwards therefore differs from every key of this namespace made before the update,
//!   in each window.
//! * The master's number is in each key beside the counters: a rolling flush changes the keys of updated
//!   namespaces too.
//! * Numbers are random, 64 bits, from the operating system; never clocks, never the successor of another
//!   number.

mod evidence;
mod key;
mod namespacer;
mod options;
mod record;

pub use key::NamespacedKey;
pub use namespacer::Namespacer;
pub use options::NamespacerOptions;
