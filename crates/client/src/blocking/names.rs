//! Namespaces, for programs without async.

use std::fmt::Display;
use std::sync::Arc;

use super::{Client, Driver};
use crate::client::Client as Async;
use crate::error::Error;
use crate::namespace::{NamespacedKey, Namespacer as AsyncNamespacer, NamespacerOptions};

/// Namespaces over a client: see [`crate::Namespacer`] for what each method does.
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
        let (own, driver) = client.parts();
        let names = driver.run(AsyncNamespacer::new(own.clone(), options))?;
        Ok(Self { names, driver: client.driver() })
    }

    /// Whether tags are used, not numbers.
    pub fn uses_tags(&self) -> bool {
        self.names.uses_tags()
    }

    /// The key of a namespace: `key("userId", 1234)`.
    ///
    /// # Errors
    /// As [`crate::Namespacer::key`].
    pub fn key(&self, name: &str, id: impl Display) -> Result<NamespacedKey, Error> {
        self.driver.run(self.names.key(name, id))
    }

    /// A key in several namespaces.
    ///
    /// # Errors
    /// As [`crate::Namespacer::key_of`].
    pub fn key_of<D: Display>(&self, name: &str, namespaces: &[(&str, D)]) -> Result<NamespacedKey, Error> {
        self.driver.run(self.names.key_of(name, namespaces))
    }

    /// [`key`](Self::key) of many namespaces.
    ///
    /// # Errors
    /// As [`crate::Namespacer::keys`].
    pub fn keys<D: Display>(&self, namespaces: &[(&str, D)]) -> Result<Vec<NamespacedKey>, Error> {
        self.driver.run(self.names.keys(namespaces))
    }

    /// [`key_of`](Self::key_of) for many keys.
    ///
    /// # Errors
    /// As [`crate::Namespacer::keys_of`].
    pub fn keys_of<D: Display>(&self, keys: &[(&str, &[(&str, D)])]) -> Result<Vec<NamespacedKey>, Error> {
        self.driver.run(self.names.keys_of(keys))
    }

    /// Makes all that was stored under keys of this namespace invisible.
    ///
    /// # Errors
    /// As [`crate::Namespacer::update`].
    pub fn update(&self, name: &str, id: impl Display) -> Result<(), Error> {
        self.driver.run(self.names.update(name, id))
    }

    /// [`update`](Self::update) of many namespaces.
    ///
    /// # Errors
    /// As [`crate::Namespacer::update_many`].
    pub fn update_many<D: Display>(&self, namespaces: &[(&str, D)]) -> Result<(), Error> {
        self.driver.run(self.names.update_many(namespaces))
    }

    /// Makes all that was stored under keys of this prefix invisible, little by little.
    ///
    /// # Errors
    /// As [`crate::Namespacer::flush_all_rolling`].
    pub fn flush_all_rolling(&self) -> Result<(), Error> {
        self.driver.run(self.names.flush_all_rolling())
    }
}
