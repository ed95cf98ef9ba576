//! The slow log: the last computations, loads and calls of objects that took long, with the shape of their
//! key.
//!
//! A shape is the pattern of the key's rule, or the names of type and method: keys and values are not kept. A
//! computation is the time from a miss to its fill, as far as it is known which miss a fill is for; a load is
//! a job of a loader, from its order to its end, whatever that is; of calls those count whose time is taken,
//! one in 64 and all of methods that take long.

use std::collections::VecDeque;
use std::fmt::Write as _;

use cattlegrid_objects::{MethodId, Registry};

use crate::sync::{AtomicU64, Mutex, Ordering, PoisonError};

/// Entries that are kept.
pub const SLOW_KEPT: usize = 128;

/// The kind of work that took long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowKind {
    /// A client's, from the miss to the fill.
    Computation,
    /// A loader's job.
    Load,
    /// A call of an object.
    Call,
}

impl SlowKind {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Computation => "computation",
            Self::Load => "load",
            Self::Call => "call",
        }
    }
}

/// Something that took long.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlowEvent {
    kind: SlowKind,
    shape: Box<str>,
    us: u64,
    /// When it ended, in milliseconds since the start.
    at_ms: u64,
}

/// The last computations, loads and calls of objects that took long.
#[derive(Debug)]
pub struct SlowLog {
    /// Shortest computation and load, in microseconds.
    pub(crate) most_us: AtomicU64,
    /// Shortest call.
    call_us: AtomicU64,
    /// How many there were.
    count: AtomicU64,
    /// The last ones, newest first. Nothing else is locked while this is.
    entries: Mutex<VecDeque<SlowEvent>>,
}

impl Default for SlowLog {
    /// Above 1 s, and calls above 10 ms.
    fn default() -> Self {
        Self {
            most_us: AtomicU64::new(1_000_000),
            call_us: AtomicU64::new(10_000),
            count: AtomicU64::new(0),
            entries: Mutex::default(),
        }
    }
}

impl SlowLog {
    /// Sets from which time on, in milliseconds, computations and loads are noted, and calls.
    pub fn set(&self, most_ms: u64, call_ms: u64) {
        self.most_us.store(most_ms.saturating_mul(1000), Ordering::Relaxed);
        self.call_us.store(call_ms.saturating_mul(1000), Ordering::Relaxed);
    }

    /// Whether this many microseconds are long.
    #[inline]
    fn is_slow(&self, kind: SlowKind, us: u64) -> bool {
        let limit = if kind == SlowKind::Call { &self.call_us } else { &self.most_us };
        us >= limit.load(Ordering::Relaxed)
    }

    /// Notes what has ended at `now_ms`, if it took long. `shape` is asked then only.
    #[inline]
    pub(crate) fn note(&self, kind: SlowKind, us: u64, now_ms: u64, shape: impl FnOnce() -> Box<str>) {
        if self.is_slow(kind, us) {
            self.keep(SlowEvent { kind, shape: shape(), us, at_ms: now_ms });
        }
    }

    /// Notes a call, as [`SlowLog::note`].
    #[inline]
    pub(crate) fn note_call(&self, registry: &Registry, method: MethodId, ns: u64, now_ms: u64) {
        self.note(SlowKind::Call, ns / 1000, now_ms, || {
            let (object_type, method) = registry.names(method);
            format!("{object_type}:{method}:{{key}}").into()
        });
    }

    #[cold]
    fn keep(&self, slow: SlowEvent) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.truncate(SLOW_KEPT - 1);
        entries.push_front(slow);
    }

    /// How many were noted since the start.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The entries in JSON, newest first:
    /// `{"slow":[{"kind":"load","shape":"page:{id}","ms":1234.5,"ago_ms":70},...]}`.
    pub fn json(&self, now_ms: u64) -> String {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::from("{\"slow\":[");
        for (place, SlowEvent { kind, shape, us, at_ms }) in entries.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let (ms, part, ago) = (us / 1000, us % 1000, now_ms.saturating_sub(*at_ms));
            // Writing to a string cannot fail.
            let _ok = write!(text, "{comma}{{\"kind\":\"{}\",\"shape\":\"", kind.name());
            escape(&mut text, shape);
            let _ok = write!(text, "\",\"ms\":{ms}.{part:03},\"ago_ms\":{ago}}}");
        }
        text.push_str("]}");
        text
    }
}

/// Appends a text as JSON has it between quotes.
fn escape(to: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '\\' => to.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ok = write!(to, "\\u{:04x}", c as u32);
            }
            c => to.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_newest_first() {
        let log = SlowLog::default();
        log.set(100, 5);
        let noted = |kind, us| {
            let before = log.count();
            log.note(kind, us, 1_000, || "x".into());
            log.count() > before
        };
        assert!(!noted(SlowKind::Computation, 99_999) && noted(SlowKind::Computation, 100_000));
        assert!(!noted(SlowKind::Load, 5_000) && noted(SlowKind::Load, u64::MAX));
        assert!(!noted(SlowKind::Call, 4_999) && noted(SlowKind::Call, 5_000));
        for number in 0..1000_u32 {
            log.note(SlowKind::Load, 200_000, 1_000, || number.to_string().into());
        }
        assert_eq!(log.count(), 1003);
        let json: serde_json::Value = serde_json::from_str(&log.json(3_000)).unwrap();
        let entries = json["slow"].as_array().unwrap();
        assert_eq!(entries.len(), SLOW_KEPT);
        assert_eq!((&entries[0]["shape"], &entries[127]["shape"]), (&"999".into(), &"872".into()));
        assert_eq!((entries[0]["ms"].as_f64(), entries[0]["ago_ms"].as_u64()), (Some(200.0), Some(2_000)));
    }

    #[test]
    fn any_shape_is_json() {
        let log = SlowLog::default();
        let shape = "a\"b\\c\n\u{1}\u{fc}{id}";
        log.note(SlowKind::Call, 12_345, 7, || shape.into());
        let json: serde_json::Value = serde_json::from_str(&log.json(7)).unwrap();
        assert_eq!(json["slow"][0]["shape"], shape);
        assert_eq!(json["slow"][0]["ms"].as_f64(), Some(12.345));
        assert_eq!(json["slow"][0]["kind"], "call");
        assert_eq!(SlowLog::default().json(0), "{\"slow\":[]}");
    }
}
