//! Namespaces, for programs without async.

use std::fmt::Display;
use std::sync::Arc;

use super::{Client, Driver};
use crate::calls::calls;
use crate::client::Client as Async;
use crate::error::Error;
use crate::namespace::{NamespacedKey, Namespacer as AsyncNamespacer, NamespacerOptions};

/// Namespaces over a client: see [`crate::Namespacer`] for what each method does, and for its errors.
#[derive(Debug, Clone)]
pub struct Namespacer {
    names: AsyncNamespacer<Async>,
    driver: Arc<Driver>,
}

impl Namespacer {
    /// Namespaces over `client`.
    ///
    /// # Errors
    /// As [`crate::Namespacer::new`].
    pub fn new(client: &Client, options: NamespacerOptions) -> Result<Self, Error> {
        let names = client.driver.run(AsyncNamespacer::new(client.client.clone(), options))?;
        Ok(Self { names, driver: client.driver.clone() })
    }

    /// Whether tags are used, not numbers.
    pub fn uses_tags(&self) -> bool {
        self.names.uses_tags()
    }
}

calls! { run names;
impl Namespacer {
    /// The key of a namespace: `key("userId", 1234)`.
    pub fn key(&self, name: &str, id: impl Display) -> Result<NamespacedKey, Error>;

    /// A key in several namespaces.
    pub fn key_of<D: Display>(&self, name: &str, namespaces: &[(&str, D)]) -> Result<NamespacedKey, Error>;

    /// [`key`](Self::key) of many namespaces.
    pub fn keys<D: Display>(&self, namespaces: &[(&str, D)]) -> Result<Vec<NamespacedKey>, Error>;

    /// [`key_of`](Self::key_of) for many keys.
    pub fn keys_of<D: Display>(&self, keys: &[(&str, &[(&str, D)])]) -> Result<Vec<NamespacedKey>, Error>;

    /// Makes all that was stored under keys of this namespace invisible.
    pub fn update(&self, name: &str, id: impl Display) -> Result<(), Error>;

    /// [`update`](Self::update) of many namespaces.
    pub fn update_many<D: Display>(&self, namespaces: &[(&str, D)]) -> Result<(), Error>;

    /// Makes all that was stored under keys of this prefix invisible, little by little.
    pub fn flush_all_rolling(&self) -> Result<(), Error>;
}
}
