//! Keys of items.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::KeyError;

/// Longest key in bytes.
pub const KEY_MAX: usize = 250;

/// A key, with the tags of what is stored under it. Text and bytes are keys without tags, in any form:
/// borrowed, owned, shared ([`Arc`](std::sync::Arc)) or either ([`Cow`](std::borrow::Cow)). A
/// [`NamespacedKey`](crate::NamespacedKey) may have some.
pub trait Key: Send + Sync {
    /// The key as servers know it.
    fn bytes(&self) -> &[u8];

    /// Tags that an item stored under this key gets.
    fn tags(&self) -> &[String] {
        &[]
    }
}

macro_rules! holders {
    ($($(where K: $bound:path =>)? $holder:ty;)*) => { $(
        impl<K: Key $(+ $bound)? + ?Sized> Key for $holder {
            fn bytes(&self) -> &[u8] {
                (**self).bytes()
            }

            fn tags(&self) -> &[String] {
                (**self).tags()
            }
        }
    )* };
}

holders! {
    &K;
    Box<K>;
    Arc<K>;
    where K: ToOwned<Owned: Send + Sync> => Cow<'_, K>;
}

/// Text and bytes.
macro_rules! plain {
    ($($type:ty;)*) => { $(
        impl Key for $type {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }
        }
    )* };
}

plain! { str; String; [u8]; Vec<u8>; bytes::Bytes; }

impl<const N: usize> Key for [u8; N] {
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
