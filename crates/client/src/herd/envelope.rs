//! The header before a value that `get_or_compute` has stored, and the locks of computations: bytes, without
//! I/O.
//!
//! An item has a header if the upper half of its client flags is `0xca77` and their lowest bit is set. The
//! other bits of the lower half are the marks of the value behind the header. All numbers are big-endian, all
//! times Unix milliseconds by the clock of the client that wrote them.
//!
//! ```text
//! byte  0       0xc7
//! byte  1       kind: 0 value, 1 value that is being computed again, 2 lock without a value, 3 failure
//! bytes 2..10   when the value expires; 0: never           (kinds 2 and 3: 0)
//! bytes 10..18  from when on it is not served, even if no new one is there; 0: never      (kinds 2 and 3: 0)
//! bytes 18..26  kinds 1 to 3: when the lock expires
//! bytes 26..34  kinds 1 to 3: a random number that names the computation
//! the rest      kinds 0 and 1: the value; kind 2: the hint of the client that asked first; kind 3: why it failed
//! ```
//!
//! A value of kind 0 therefore begins at byte 18, the others at byte 34. An item without a header was written
//! by another client, or by a plain `set`: it is a fresh value as it is. Items with a header that is too
//! short, begins with another byte or has another kind are damaged: they count as absent, and the next
//! computation replaces them.

use bytes::Bytes;

const MAGIC: u8 = 0xc7;
const VALUE: u8 = 0;
const AGAIN: u8 = 1;
const LOCK: u8 = 2;
const FAILED: u8 = 3;
/// Length in bytes of a value's header.
const SHORT: usize = 18;
/// Length in bytes of any other header.
const LONG: usize = 34;

/// A value as it is stored, with the marks of its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredValue {
    /// The value's bytes.
    pub(crate) data: Bytes,
    /// The item's flags, without the mark of a header.
    pub(crate) flags: u32,
    /// When the value expires, Unix time in milliseconds; 0: never.
    pub(crate) soft_ms: u64,
    /// When the value must not be served any more, Unix time in milliseconds; 0: never.
    pub(crate) dead_ms: u64,
}

impl StoredValue {
    /// A value without an expiry in its header.
    pub(crate) fn fresh(data: Bytes, flags: u32) -> Self {
        Self { data, flags, soft_ms: 0, dead_ms: 0 }
    }

    /// Whether both are the same value, whatever their times.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.data == other.data && self.flags == other.flags
    }

    /// Whether the value has not expired.
    pub(crate) fn is_fresh(&self, now_ms: u64) -> bool {
        self.soft_ms == 0 || now_ms < self.soft_ms
    }

    /// Whether the value may be served while a new one is computed.
    pub(crate) fn is_usable(&self, now_ms: u64) -> bool {
        self.dead_ms == 0 || now_ms < self.dead_ms
    }
}

/// The mark of a computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockMark {
    /// The time until which no other client computes.
    pub(crate) until_ms: u64,
    /// The number of the computation.
    pub(crate) nonce: u64,
}

/// The decoded contents of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ItemRecord {
    /// A value.
    Value(StoredValue),
    /// A value that has expired and is being computed again.
    Again(StoredValue, LockMark),
    /// A lock without a value, with the hint.
    Locked(Bytes, LockMark),
    /// A failed computation, with its text.
    Failed(Bytes, LockMark),
    /// An unreadable header.
    Damaged,
}

impl ItemRecord {
    /// The record behind a header. `flags` are the item's, without the mark of the header.
    pub(crate) fn open(data: &Bytes, flags: u32) -> Self {
        if data.len() < SHORT || data[0] != MAGIC {
            return Self::Damaged;
        }
        let number = |at: usize| data[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let stored =
            |from| StoredValue { data: data.slice(from..), flags, soft_ms: number(2), dead_ms: number(10) };
        if data[1] == VALUE {
            return Self::Value(stored(SHORT));
        }
        if data.len() < LONG {
            return Self::Damaged;
        }
        let lock = LockMark { until_ms: number(18), nonce: number(26) };
        match data[1] {
            AGAIN => Self::Again(stored(LONG), lock),
            LOCK => Self::Locked(data.slice(LONG..), lock),
            FAILED => Self::Failed(data.slice(LONG..), lock),
            _ => Self::Damaged,
        }
    }

    /// The item's bytes. A damaged record has none.
    pub(crate) fn seal(&self) -> Bytes {
        let mut to = Vec::with_capacity(LONG + self.rest().len());
        let (kind, stored, lock) = match self {
            Self::Value(stored) => (VALUE, Some(stored), None),
            Self::Again(stored, lock) => (AGAIN, Some(stored), Some(lock)),
            Self::Locked(_, lock) => (LOCK, None, Some(lock)),
            Self::Failed(_, lock) => (FAILED, None, Some(lock)),
            Self::Damaged => return Bytes::new(),
        };
        to.extend([MAGIC, kind]);
        to.extend(stored.map_or(0, |stored| stored.soft_ms).to_be_bytes());
        to.extend(stored.map_or(0, |stored| stored.dead_ms).to_be_bytes());
        if let Some(lock) = lock {
            to.extend(lock.until_ms.to_be_bytes());
            to.extend(lock.nonce.to_be_bytes());
        }
        to.extend_from_slice(self.rest());
        to.into()
    }

    /// The marks of the value's format, for the item's flags.
    pub(crate) fn flags(&self) -> u32 {
        match self {
            Self::Value(stored) | Self::Again(stored, _) => stored.flags,
            Self::Locked(..) | Self::Failed(..) | Self::Damaged => 0,
        }
    }

    /// The number of the computation whose lock this is.
    pub(crate) fn nonce(&self) -> Option<u64> {
        match self {
            Self::Again(_, lock) | Self::Locked(_, lock) => Some(lock.nonce),
            Self::Value(_) | Self::Failed(..) | Self::Damaged => None,
        }
    }

    fn rest(&self) -> &[u8] {
        match self {
            Self::Value(stored) | Self::Again(stored, _) => &stored.data,
            Self::Locked(rest, _) | Self::Failed(rest, _) => rest,
            Self::Damaged => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored() -> impl Strategy<Value = StoredValue> {
        (prop::collection::vec(any::<u8>(), 0..50), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(data, flags, soft_ms, dead_ms)| StoredValue { data: data.into(), flags, soft_ms, dead_ms },
        )
    }

    fn lock() -> impl Strategy<Value = LockMark> {
        (any::<u64>(), any::<u64>()).prop_map(|(until_ms, nonce)| LockMark { until_ms, nonce })
    }

    fn record() -> impl Strategy<Value = ItemRecord> {
        let text = || prop::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from);
        prop_oneof![
            stored().prop_map(ItemRecord::Value),
            (stored(), lock()).prop_map(|(stored, lock)| ItemRecord::Again(stored, lock)),
            (text(), lock()).prop_map(|(text, lock)| ItemRecord::Locked(text, lock)),
            (text(), lock()).prop_map(|(text, lock)| ItemRecord::Failed(text, lock)),
        ]
    }

    /// Other languages read and write these bytes.
    #[test]
    fn the_bytes_are_these() {
        let stored = StoredValue { data: "v".into(), flags: 0, soft_ms: 0x0102, dead_ms: 0x0304 };
        let value = b"\xc7\x00\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04v";
        assert_eq!(ItemRecord::Value(stored.clone()).seal(), value.as_slice());
        let lock = LockMark { until_ms: 0x0506, nonce: 0x0708_090a_0b0c_0d0e };
        let again = b"\xc7\x01\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0ev";
        assert_eq!(ItemRecord::Again(stored, lock).seal(), again.as_slice());
        let locked =
            b"\xc7\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0eh";
        assert_eq!(ItemRecord::Locked("h".into(), lock).seal(), locked.as_slice());
        assert_eq!(ItemRecord::Failed("h".into(), lock).seal()[1], 3);
    }

    #[test]
    fn what_is_too_short_or_begins_otherwise_is_damaged() {
        let whole = ItemRecord::Locked(Bytes::new(), LockMark { until_ms: 1, nonce: 2 }).seal();
        for length in 0..whole.len() {
            assert_eq!(ItemRecord::open(&whole.slice(..length), 0), ItemRecord::Damaged, "{length}");
        }
        let mut other = whole.to_vec();
        other[1] = 4;
        assert_eq!(ItemRecord::open(&other.clone().into(), 0), ItemRecord::Damaged);
        other[0] = 0;
        other[1] = 0;
        assert_eq!(ItemRecord::open(&other.into(), 0), ItemRecord::Damaged);
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened(record in record()) {
            prop_assert_eq!(ItemRecord::open(&record.seal(), record.flags()), record);
        }

        #[test]
        fn any_bytes_are_opened(data in prop::collection::vec(any::<u8>(), 0..80), kind in 0u8..5) {
            let mut marked = data.clone();
            if let [first, second, ..] = &mut marked[..] {
                (*first, *second) = (MAGIC, kind);
            }
            for data in [data, marked] {
                let data = Bytes::from(data);
                let record = ItemRecord::open(&data, 0);
                let values = matches!(record, ItemRecord::Value(_) | ItemRecord::Again(..));
                prop_assert!(!values || record.seal() == data);
            }
        }
    }
}
