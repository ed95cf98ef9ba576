//! How far the tags of all items have been noted anew: see
//! [`Engine::renew_notes`](crate::Engine::renew_notes).

use crate::names::WalkPosition;

/// Shortest time between the end of a generation of notes and the begin of the next, in milliseconds.
pub(crate) const REST_MS: u64 = 60_000;

/// The next generation is due when this many times the bits are set that were set when the last one ended.
pub(crate) const GROWTH: f64 = 2.0;

/// A share of bits so low that no generation is due.
pub(crate) const LOW_SHARE: f64 = 1.0 / 64.0;

/// A generation of notes of tags.
#[derive(Debug, Default)]
pub(crate) enum Renewal {
    /// The next one begins as soon as possible.
    #[default]
    Due,
    /// The walk over all items, and the time until when misses may be open that are older, in milliseconds;
    /// `None`: it is not known yet.
    Walks { at: WalkPosition, shrinks: u64, until_ms: Option<u64> },
    /// None is needed before that time, and before more than this share of bits is set.
    Rests { until_ms: u64, share: f64 },
}
