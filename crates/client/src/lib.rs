//! A memcached client that computes each missing value once.

mod cache;
mod error;
mod item;
mod key;
mod namespace;
mod value;

pub use cache::{Answer, Ask, Cache};
pub use error::{Error, KeyError};
pub use item::{Expiration, Item, Write, Written};
pub use key::{KEY_MAX, Key};
pub use namespace::{NamespacedKey, Namespacer, NamespacerOptions};
pub use value::{Format, Value};
