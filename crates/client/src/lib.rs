//! A memcached client that computes each missing value once.

#[cfg(feature = "blocking")]
pub mod blocking;
mod cache;
mod client;
mod error;
mod herd;
mod item;
mod key;
#[allow(dead_code, reason = "callers follow")]
mod metrics;
mod namespace;
#[cfg_attr(not(feature = "near-cache"), path = "near/off.rs")]
mod near;
mod net;
pub mod objects;
pub mod route;
#[allow(dead_code, reason = "callers follow")]
mod value;

pub use cache::{Answer, Ask, Cache};
pub use client::{Client, ClientBuilder};
pub use error::{Error, KeyError};
pub use herd::{Compute, ComputeError, Fetch, Fetched, Herd, Outcome, Token, WhenUnavailable};
pub use item::{Expiration, Item, Write, Written};
pub use key::{KEY_MAX, Key};
pub use metrics::{Observer, RequestOutcome, Source, Statistics};
pub use namespace::{NamespacedKey, Namespacer, NamespacerOptions};
#[cfg(feature = "near-cache")]
pub use near::NearCache;
#[cfg(feature = "tls")]
pub use net::tls::Tls;
pub use net::wire::Protocol;
pub use route::{Ejection, Sharding};
#[cfg(feature = "json")]
pub use value::Json;
#[cfg(feature = "msgpack")]
pub use value::MessagePack;
pub use value::{Format, Value};
