//! Hashes of keys.

use std::sync::Arc;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_inline};

use crate::item::{self, Item};

/// Hashes keys with a seed of this process, so that clients cannot choose keys that collide.
#[derive(Clone)]
pub struct KeyHasher(Arc<RapidSecrets>);

impl KeyHasher {
    /// A hasher for this seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(RapidSecrets::seed(seed)))
    }

    /// The key's hash: rapidhash v3.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        rapidhash_v3_inline::<true, true, false>(key, &self.0)
    }

    /// The hash of an object's key: another than that of a plain item's key of the same bytes.
    #[inline]
    pub fn hash_object(&self, key: &[u8]) -> u64 {
        self.hash(key) ^ OBJECT_DOMAIN
    }

    /// The hash of the key of an item in the log.
    #[inline]
    pub(crate) fn hash_item(&self, bytes: &[u8]) -> u64 {
        let key = Item::new(bytes, None).key();
        if item::is_object(bytes) { self.hash_object(key) } else { self.hash(key) }
    }
}

/// Tells the hashes of objects from those of plain items: differs from 0 in each part of a hash that the
/// index uses, and in its upper half, which chooses a shard. A hash is as good with it as without: the seed
/// is secret.
const OBJECT_DOMAIN: u64 = 0x9e37_79b9_7f4a_7c15;
