//! A value, or the answer of a call, on its way to the requests that wait for it.
//!
//! It is copied once, whatever happens to the item, and shared by its waiters. The bytes of all such
//! copies are counted while they live.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cattlegrid_store::{HugeValue, Value};

/// The slot of the wake of a call, and of a bump.
pub(crate) const CALL_SLOT: u16 = u16::MAX;

/// A value on its way to its waiters.
#[derive(Debug)]
pub struct Delivery {
    /// Client flags.
    pub flags: u32,
    /// The value's CAS as clients see it.
    pub cas: u64,
    /// Seconds to live; None: forever.
    pub ttl: Option<u64>,
    /// The value is an old one, and another client computes a new one.
    pub is_old: bool,
    /// The value.
    pub value: DeliveredValue,
    /// The value's share of [`DeliveredBytes`].
    pub(crate) counted: CountedBytes,
}

/// Bytes of all values on their way.
#[derive(Debug, Default)]
pub(crate) struct DeliveredBytes(Arc<AtomicUsize>);

/// Bytes of one value, counted while this lives.
#[derive(Debug)]
pub(crate) struct CountedBytes {
    sum: Arc<AtomicUsize>,
    bytes: usize,
}

/// The bytes of a value on its way.
#[derive(Debug)]
pub enum DeliveredValue {
    /// Copied once.
    Inline(Box<[u8]>),
    /// In its own pages.
    Huge(Arc<HugeValue>),
    /// Not a value: the line of an error, without its end, to the call of an object.
    Line(Box<str>),
}

/// The end of one key's wait in one request.
pub type Wake = cattlegrid_herd::Wake<Arc<Delivery>>;

/// The outcome of a request's wait for a key.
pub type Verdict = cattlegrid_herd::Verdict<Arc<Delivery>>;

impl Delivery {
    /// Bytes that were copied for it; 0 for a value in its own pages.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.counted.bytes
    }
}

impl DeliveredBytes {
    pub(crate) fn count(&self, bytes: usize) -> CountedBytes {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        CountedBytes { sum: Arc::clone(&self.0), bytes }
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl DeliveredValue {
    /// A value of the store: copied, if it is in the log.
    pub(crate) fn of(value: Value<'_>) -> Self {
        match value {
            Value::Inline(bytes) => Self::Inline(bytes.into()),
            Value::Huge(huge) => Self::Huge(Arc::clone(huge)),
        }
    }

    /// The value's bytes, in order.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (inline, huge) = match self {
            Self::Inline(bytes) => (Some(&**bytes), None),
            Self::Huge(huge) => (None, Some(huge)),
            Self::Line(_) => (None, None),
        };
        inline.into_iter().chain(huge.into_iter().flat_map(|huge| huge.slices()))
    }

    /// Bytes that were copied for it.
    pub(crate) fn copied_bytes(&self) -> usize {
        if let Self::Inline(bytes) = self { bytes.len() } else { 0 }
    }

    /// There are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Huge(huge) => huge.len(),
            Self::Line(_) => 0,
        }
    }
}
