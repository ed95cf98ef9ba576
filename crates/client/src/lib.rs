//! A memcached client that computes each missing value once.

mod cache;
mod error;
mod item;
mod key;
pub mod route;
#[allow(dead_code, reason = "callers follow")]
mod value;

pub use cache::{Answer, Ask, Cache};
pub use error::{Error, KeyError};
pub use item::{Expiration, Item, Write, Written};
pub use key::{KEY_MAX, Key};
pub use route::{Ejection, Sharding};
#[cfg(feature = "json")]
pub use value::Json;
#[cfg(feature = "msgpack")]
pub use value::MessagePack;
pub use value::{Format, Value};
