//! A memcached client that computes each missing value once.
//!
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//! * [`Client`] has memcached's commands, and connects: [`Client::builder`] has all options.
//! * [`Client::get_or_compute`], [`Client::get_or_compute_many`] and [`Client::fetch_or_compute`] compute
//!   missing values; [`Compute`] and [`Fetch`] are their options, [`Outcome`] and [`Fetched`] what they
//!   return.
//! * [`Namespacer`] makes keys that are invalidated together.
//! * [`Herd`] and [`Namespacer`] work over any connection that is a [`Cache`], also over that of another
//!   library.
//! * [`route`] has sharding and the health of servers, and [`objects`] the names of calls on objects.
//! * [`Value`] is what can be stored, [`Key`] what it is stored under, [`Expiration`] how long.
//! * [`Statistics`] and [`Observer`] say what a client does.
//!
//! # Errors
//! [`Error`] has a variant for each thing that a program can do about it. A miss, a lost race or a key that
//! another client computes is an outcome, not an error. No command takes longer than
//! [`ClientBuilder::timeout`], apart from waiting for another client's value.

#[cfg(feature = "blocking")]
pub mod blocking;
mod cache;
mod calls;
mod client;
mod error;
mod herd;
mod item;
mod join;
mod key;
mod metrics;
mod namespace;
#[cfg_attr(not(feature = "near-cache"), path = "near/off.rs")]
mod near;
mod net;
pub mod objects;
pub mod route;
mod value;

pub use cache::{Answer, Ask, Cache, Scope};
pub use client::{Client, ClientBuilder};
pub use error::{Cause, Error, KeyError};
pub use herd::{
    Compute, ComputeError, Fetch, Fetched, Herd, NotStored, Outcome, SavedToken, Token, WhenUnavailable,
};
pub use item::{Expiration, Item, Write, Written};
pub use key::{KEY_MAX, Key};
pub use metrics::{Observer, RequestOutcome, Statistics};
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
pub use value::{Format, ToValue, Value};

/// The examples of the guide.
#[cfg(all(doctest, feature = "json"))]
#[doc = include_str!("../../../docs/clients.md")]
struct Guide;

/// The examples of the cookbook.
#[cfg(all(doctest, feature = "json"))]
#[doc = include_str!("../../../docs/cookbook.md")]
struct Cookbook;
