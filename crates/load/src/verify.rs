//! The contents of values, so that every reply can be checked.
//!
//! A value is its version in eight hexadecimal digits, then text that follows from its key and version.
//! Values below eight bytes have no version.
//!
//! # Invariants
//! * A key's version rises only while no write of it is under way; writes under way together write the same
//!   version. So at any time a key holds the version of [`Versions`] or the one before, and once the last
//!   write has been answered only the former.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// How a reply is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The server said something that does not answer the request.
    #[error("{asked} was answered with {answer:?}")]
    Unexpected {
        /// The request.
        asked: &'static str,
        /// The start of the reply.
        answer: String,
    },
    /// A line of text in reply to a packet.
    #[error(
        "{answer:?} is not a packet: the server does not speak the binary protocol here; load it without --binary, or start \
         it with -B auto"
    )]
    NotBinary {
        /// The line.
        answer: String,
    },
    /// A value for a key that was not asked for, or was answered already.
    #[error("a value for key {key:?}, which was not asked for there")]
    Key {
        /// The key in the reply.
        key: String,
    },
    /// Other client flags than were stored.
    #[error("key {id}: flags {flags} instead of {stored}")]
    Flags {
        /// The key's number.
        id: u64,
        /// The flags received, in decimal.
        flags: u32,
        /// The flags sent.
        stored: u32,
    },
    /// Another length than was stored.
    #[error("key {id}: {bytes} bytes instead of {stored}")]
    Length {
        /// The key's number.
        id: u64,
        /// The length received.
        bytes: usize,
        /// The length sent.
        stored: usize,
    },
    /// Bytes that were never stored under this key.
    #[error("key {id}: its value is not what was stored")]
    Content {
        /// The key's number.
        id: u64,
    },
    /// A value from before a write that had been answered when the get was sent.
    #[error("key {id}: version {version}, although version {stored} had been stored")]
    Stale {
        /// The key's number.
        id: u64,
        /// The version received.
        version: u32,
        /// The least that is right.
        stored: u32,
    },
    /// A version that was never written.
    #[error("key {id}: version {version}, although the last one stored is {stored}")]
    Future {
        /// The key's number.
        id: u64,
        /// The version received.
        version: u32,
        /// The most that is right.
        stored: u32,
    },
}

/// Writes and checks values.
#[derive(Debug)]
pub struct Contents {
    text: Box<[u8]>,
}

/// Text that values are cut from.
const TEXT_BYTES: usize = 1 << 16;
const VERSION_DIGITS: usize = 8;

impl Contents {
    /// The same seed gives the same values.
    pub fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
        Self { text: (0..TEXT_BYTES).map(|_| letters[rng.random_range(0..letters.len())]).collect() }
    }

    /// Appends the value of key `id` in this version, `bytes` long.
    pub fn write(&self, id: u64, version: u32, bytes: usize, out: &mut Vec<u8>) {
        let (mut at, rest) = if bytes < VERSION_DIGITS {
            (self.start(id, 0), bytes)
        } else {
            out.extend_from_slice(&digits(version));
            (self.start(id, version), bytes - VERSION_DIGITS)
        };
        let mut left = rest;
        while left > 0 {
            let take = left.min(TEXT_BYTES - at);
            out.extend_from_slice(&self.text[at..at + take]);
            left -= take;
            at = 0;
        }
    }

    /// The version of a value received for key `id`; nothing for values too short to have one.
    pub fn check(&self, id: u64, value: &[u8]) -> Result<Option<u32>, Fault> {
        let wrong = Fault::Content { id };
        let (version, mut rest) = match value.split_first_chunk::<VERSION_DIGITS>() {
            None => (None, value),
            Some((head, rest)) => (Some(number(*head).ok_or_else(|| wrong.clone())?), rest),
        };
        let mut at = self.start(id, version.unwrap_or_default());
        while !rest.is_empty() {
            let take = rest.len().min(TEXT_BYTES - at);
            let (now, later) = rest.split_at(take);
            if now != &self.text[at..at + take] {
                return Err(wrong);
            }
            rest = later;
            at = 0;
        }
        Ok(version)
    }

    fn start(&self, id: u64, version: u32) -> usize {
        (mix(id ^ mix(version.into())) % self.text.len() as u64) as usize
    }
}

fn digits(version: u32) -> [u8; VERSION_DIGITS] {
    std::array::from_fn(|place| b"0123456789abcdef"[(version >> (28 - 4 * place)) as usize & 15])
}

fn number(digits: [u8; VERSION_DIGITS]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| match digit {
        b'0'..=b'9' => Some(number << 4 | u32::from(digit - b'0')),
        b'a'..=b'f' => Some(number << 4 | u32::from(digit - b'a' + 10)),
        _ => None,
    })
}

/// A number that looks random but follows from `number`: the finaliser of `SplitMix64`.
pub(crate) fn mix(number: u64) -> u64 {
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The version of every key at one server, shared by the threads that load it. A key that is asked for once
/// ([`crate::Plan::one_hit_share`]) is written once at most, in version 1.
#[derive(Debug)]
pub struct Versions {
    /// Version in the upper half, writes under way in the lower.
    keys: Box<[AtomicU64]>,
    /// A write was refused, so a key may hold an older value than its version says.
    refused: AtomicBool,
}

impl Versions {
    /// All keys at version 0, which is never written.
    pub fn new(keys: u64) -> Self {
        Self { keys: (0..keys).map(|_| AtomicU64::new(0)).collect(), refused: AtomicBool::new(false) }
    }

    /// A write of this key will be sent: the version it carries.
    pub fn begin(&self, id: u64) -> u32 {
        let step = |state: u64| {
            let version = if state as u32 == 0 { (state >> 32) + 1 } else { state >> 32 };
            Some(version << 32 | u64::from(state as u32 + 1))
        };
        let Some(key) = self.keys.get(id as usize) else { return 1 };
        let before =
            key.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).unwrap_or_else(|state| state);
        (step(before).unwrap_or_default() >> 32) as u32
    }

    /// A write of this key has been answered.
    pub fn end(&self, id: u64, stored: bool) {
        if !stored {
            self.refused.store(true, Ordering::Release);
        }
        if let Some(key) = self.keys.get(id as usize) {
            key.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The least version that a get sent now may find.
    pub fn floor(&self, id: u64) -> u32 {
        let state = self.keys.get(id as usize).map_or(0, |key| key.load(Ordering::Acquire));
        ((state >> 32) as u32).saturating_sub(u32::from(state as u32 != 0))
    }

    /// Checks the version found by a get whose floor was `floor` when it was sent.
    pub fn check(&self, id: u64, version: u32, floor: u32) -> Result<(), Fault> {
        let last = self.keys.get(id as usize).map_or(1, |key| (key.load(Ordering::Acquire) >> 32) as u32);
        if version > last {
            return Err(Fault::Future { id, version, stored: last });
        }
        if version < floor && !self.refused.load(Ordering::Acquire) {
            return Err(Fault::Stale { id, version, stored: floor });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_length_say_whose_they_are() {
        let contents = Contents::new(1);
        for bytes in [0, 1, 7, 8, 9, 100, TEXT_BYTES - 1, TEXT_BYTES + 8, 3 * TEXT_BYTES] {
            let mut value = Vec::new();
            contents.write(7, 0xfe, bytes, &mut value);
            assert_eq!(value.len(), bytes);
            let version = (bytes >= 8).then_some(0xfe);
            assert_eq!(contents.check(7, &value), Ok(version), "{bytes}");
            if bytes >= 100 {
                assert_eq!(contents.check(8, &value), Err(Fault::Content { id: 8 }), "{bytes}");
                for place in [0, 7, 8, bytes / 2, bytes - 1] {
                    let mut wrong = value.clone();
                    wrong[place] ^= 1;
                    assert_eq!(contents.check(7, &wrong), Err(Fault::Content { id: 7 }), "{bytes} {place}");
                }
            }
        }
    }

    #[test]
    fn versions_bound_what_a_get_may_find() {
        let versions = Versions::new(2);
        assert_eq!(versions.floor(1), 0);
        assert_eq!(versions.begin(1), 1);
        assert_eq!(versions.floor(1), 0, "not answered yet");
        assert_eq!(versions.begin(1), 1, "under way together");
        versions.end(1, true);
        assert_eq!(versions.floor(1), 0);
        versions.end(1, true);
        assert_eq!(versions.floor(1), 1);
        assert_eq!(versions.begin(1), 2);
        assert_eq!(versions.check(1, 1, 1), Ok(()));
        assert_eq!(versions.check(1, 2, 1), Ok(()), "the write came first");
        assert_eq!(versions.check(1, 3, 1), Err(Fault::Future { id: 1, version: 3, stored: 2 }));
        versions.end(1, true);
        assert_eq!(versions.check(1, 1, 2), Err(Fault::Stale { id: 1, version: 1, stored: 2 }));
        versions.begin(1);
        versions.end(1, false);
        assert_eq!(versions.check(1, 2, 3), Ok(()), "the refused write left the old value");
        assert_eq!(versions.floor(0), 0);
    }
}
