//! Results of a search for a value: one type from the item that was read to the caller's answer.

use bytes::Bytes;

/// The result of a search for a value. `V`: the value, as it is stored or as the caller wants it. `R`: the
/// right to compute it, or the means to get that right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SearchResult<V, R> {
    /// The value, which has not expired.
    Hit(V),
    /// The old value: it has expired, and another client computes.
    Stale(V),
    /// This client is to compute the value.
    Compute(R),
    /// Another client computes, and there is no old value.
    Busy(Holder),
    /// The computation that was waited for has failed: its text.
    Failed(Bytes),
}

impl<V, R> SearchResult<V, R> {
    /// The same with another right. An error is that of making it.
    pub(crate) fn with_right<G, E>(
        self,
        right: impl FnOnce(R) -> Result<G, E>,
    ) -> Result<SearchResult<V, G>, E> {
        Ok(match self {
            Self::Hit(value) => SearchResult::Hit(value),
            Self::Stale(value) => SearchResult::Stale(value),
            Self::Compute(own) => SearchResult::Compute(right(own)?),
            Self::Busy(holder) => SearchResult::Busy(holder),
            Self::Failed(text) => SearchResult::Failed(text),
        })
    }
}

/// The holder of a computation, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A server that gives leases: it can hold a request until the value is there.
    Server,
    /// The client that has written a lock: its number, and the hint in it.
    Lock { nonce: u64, hint: Bytes },
    /// The holder is not known: locks come and go, or the wait has passed.
    Unknown,
}
