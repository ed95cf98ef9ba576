//! What is known of the item that a look-up has last found to be expired, and removed.

use crate::store::Store;

/// An item that has expired. Seconds, as in items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpiredItem {
    /// When it expired.
    pub expiry: u32,
    /// When it was used last.
    pub accessed: u32,
}

impl Store {
    /// The item of the last look-up that was answered by [`crate::Lookup::Expired`].
    pub fn last_expired(&self) -> ExpiredItem {
        self.expired
    }
}
