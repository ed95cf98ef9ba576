//! A hasher for tables whose keys are hashes already.

use std::hash::{BuildHasher, Hasher};

/// Takes a 64-bit hash as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BuildIdentity;

/// See [`BuildIdentity`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Identity(u64);

impl BuildHasher for BuildIdentity {
    type Hasher = Identity;

    fn build_hasher(&self) -> Identity {
        Identity(0)
    }
}

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        // Only u64 keys are hashed here; anything else is spread by FNV-1a.
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        // The shard is chosen by the top bits, which std's table uses for its tags: move other bits there.
        self.0 = hash.rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
