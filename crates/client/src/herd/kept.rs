//! Whether a computed value is in the cache, and if not, why.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

/// Why a computed value is not in the cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotStored {
    /// The key was deleted or changed, or one of its tags invalidated, while the value was computed: it may
    /// be older than that.
    #[error("the key was deleted, changed or invalidated while its value was computed")]
    Fenced,
    /// Computing took longer than `compute_time` (of a token: `compute_timeout`), and another client may have
    /// computed the value since.
    #[error("computing took longer than its compute_time")]
    Late,
    /// The value had expired already.
    #[error("the value has expired already")]
    Expired,
    /// The server takes no value of this size (`-I`).
    #[error("the value is too large for the server")]
    TooLarge,
    /// The server had no lease and took no lock for the key: too many keys are computed at once, or a
    /// value that was computed before a delete is refused.
    #[error("the server had no lease for the key")]
    NoLease,
    /// The server could not be asked, or has refused the value.
    #[error("the value could not be stored: {0}")]
    Failed(#[source] Error),
}

impl NotStored {
    /// The reason's name in events and counters.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fenced => "fenced",
            Self::Late => "late",
            Self::Expired => "expired",
            Self::TooLarge => "too large",
            Self::NoLease => "no lease",
            Self::Failed(_) => "failed",
        }
    }

    /// The reason that an error of storing stands for.
    pub(crate) fn of(error: Error) -> Self {
        match &error {
            Error::Server { line, .. } if line.contains("too large") => Self::TooLarge,
            _ => Self::Failed(error),
        }
    }
}

/// Whether a value is in the cache.
pub(crate) type StoreResult = Result<(), NotStored>;

/// The end of a computation without its errors.
pub(crate) fn kept(end: Result<StoreResult, Error>) -> StoreResult {
    end.unwrap_or_else(|error| Err(NotStored::of(error)))
}

type NotStoredFn = Arc<dyn Fn(&[u8], &NotStored) + Send + Sync>;

/// The program's function for values that were not stored.
#[derive(Clone, Default)]
pub(super) struct NotStoredHook(pub(super) Option<NotStoredFn>);

impl NotStoredHook {
    pub(super) fn tell(&self, key: &[u8], kept: &StoreResult) {
        if let (Some(tell), Err(why)) = (&self.0, kept) {
            tell(key, why);
        }
    }
}

impl fmt::Debug for NotStoredHook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "a function" } else { "None" })
    }
}
