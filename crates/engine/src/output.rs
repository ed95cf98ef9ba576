//! Replies to be sent: bytes, and huge values that are sent from where they are stored.

use std::sync::Arc;

use cattlegrid_store::{HugeValue, Value};

/// Replies, in order. Small values are copied in; a huge one is noted with its position.
#[derive(Debug, Default)]
pub struct Output {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Huge values in order, each with the number of bytes before it.
    pub huge: Vec<(usize, Arc<HugeValue>)>,
}

impl Output {
    /// Appends a value.
    #[inline]
    pub fn value(&mut self, value: Value<'_>) {
        match value {
            Value::Inline(bytes) => self.bytes.extend_from_slice(bytes),
            Value::Huge(huge) => self.huge.push((self.bytes.len(), Arc::clone(huge))),
        }
    }

    /// Appends other replies.
    pub fn append(&mut self, mut other: Self) {
        let at = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.huge.extend(other.huge.into_iter().map(|(place, huge)| (at + place, huge)));
    }

    /// The current end.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.bytes.len(), self.huge.len())
    }

    /// Cuts off what was written after [`Output::place`] returned this.
    pub(crate) fn split_off(&mut self, (bytes, huge): (usize, usize)) -> Self {
        let huge = self.huge.split_off(huge).into_iter().map(|(at, value)| (at - bytes, value)).collect();
        Self { bytes: self.bytes.split_off(bytes), huge }
    }

    /// Bytes to send, huge values included.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.huge.iter().map(|(_, h)| h.len()).sum::<usize>()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.huge.is_empty()
    }

    /// Removes everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.huge.clear();
    }
}
