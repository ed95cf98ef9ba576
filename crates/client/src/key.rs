//! Keys of items.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::KeyError;

/// Longest key in bytes.
pub const KEY_MAX: usize = 250;

/// A key, with the tags of what is stored under it. Text and bytes are keys without tags, in any form: borrowed, owned, shared
/// ([`Arc`](std::sync::Arc)) or either ([`Cow`](std::borrow::Cow)). A
/// [`NamespacedKey`](crate::NamespacedKey) may have some.
pub trait Key: Send + Sync {
    /// The key as servers know it.
    fn bytes(&self) -> &[u8];

    /// Tags that an item stored under this key gets.
    fn tags(&self) -> &[String] {
        &[]
    }
}

impl<K: Key + ?Sized> Key for &K {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn tags(&self) -> &[String] {
        (**self).tags()
    }
}

impl<K: Key + ?Sized> Key for Box<K> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn tags(&self) -> &[String] {
        (**self).tags()
    }
}

impl<K: Key + ?Sized> Key for Arc<K> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn tags(&self) -> &[String] {
        (**self).tags()
    }
}

impl<K: Key + ToOwned<Owned: Send + Sync> + ?Sized> Key for Cow<'_, K> {
    fn bytes(&self) -> &[u8] {
        (**self).bytes()
    }

    fn tags(&self) -> &[String] {
        (**self).tags()
    }
}

impl Key for str {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Key for String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Key for [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> Key for [u8; N] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Key for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Key for bytes::Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Says what is wrong with a key that no server takes.
pub(crate) fn check(key: &[u8]) -> Result<(), KeyError> {
    match key.len() {
        0 => return Err(KeyError::Empty),
        1..=KEY_MAX => {}
        long => return Err(KeyError::Long(long)),
    }
    match key.iter().position(|byte| *byte <= b' ' || *byte == 0x7f) {
        Some(at) => Err(KeyError::Byte { byte: key[at], at }),
        None => Ok(()),
    }
}
