//! A stored value on its way to the requests that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cattlegrid_store::HugeValue;

use crate::output::Output;

/// A value on its way to all who waited for it.
#[derive(Debug)]
pub struct Delivered {
    /// Client flags.
    pub flags: u32,
    /// Its CAS as clients are told it.
    pub cas: u64,
    /// Seconds to live; None is for ever.
    pub ttl: Option<u64>,
    /// The value.
    pub value: DeliveredValue,
    /// Its bytes among those of all values on their way.
    pub(crate) counted: Counted,
}

/// Bytes of all values on their way.
#[derive(Debug, Default)]
pub(crate) struct DeliveredBytes(Arc<AtomicUsize>);

/// Bytes of one of them, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    sum: Arc<AtomicUsize>,
    bytes: usize,
}

impl Delivered {
    /// Bytes that were copied for it.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.counted.bytes
    }
}

impl DeliveredBytes {
    pub(crate) fn count(&self, bytes: usize) -> Counted {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Counted { sum: Arc::clone(&self.0), bytes }
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Its bytes.
#[derive(Debug)]
pub enum DeliveredValue {
    /// Copied once.
    Inline(Box<[u8]>),
    /// In pages of its own.
    Huge(Arc<HugeValue>),
}

impl DeliveredValue {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Huge(huge) => huge.len(),
        }
    }

    pub(crate) fn write(&self, out: &mut Output) {
        match self {
            Self::Inline(bytes) => out.bytes.extend_from_slice(bytes),
            Self::Huge(huge) => out.huge.push((out.bytes.len(), Arc::clone(huge))),
        }
    }
}
