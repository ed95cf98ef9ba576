//! `stats detail`: counters by key prefix.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cattlegrid_engine::{Event, EventKind, Interest, Looker};

use crate::watch::escaped;

/// Counters by the part of a key before the delimiter.
#[derive(Debug)]
pub(crate) struct Detail {
    on: AtomicBool,
    delimiter: u8,
    prefixes: Mutex<BTreeMap<Box<[u8]>, PrefixCounts>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PrefixCounts {
    get: u64,
    hit: u64,
    set: u64,
    del: u64,
}

/// The most prefixes that are counted; keys with further prefixes are not counted.
const PREFIXES_MAX: usize = 16_384;

impl Detail {
    /// The engine events that are counted.
    pub(crate) const INTEREST: Interest = Interest::FETCHERS.with(Interest::MUTATIONS);

    pub(crate) fn new(on: bool, delimiter: u8) -> Self {
        Self { on: AtomicBool::new(on), delimiter, prefixes: Mutex::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub(crate) fn switch(&self, on: bool) {
        self.on.store(on, Relaxed);
    }

    pub(crate) fn reset(&self) {
        self.prefixes.lock().expect("nobody panics with it held").clear();
    }

    /// Counts the events that memcached counts: gets, stores and deletes of the classic commands.
    pub(crate) fn count(&self, event: &Event) {
        let counts = match &event.kind {
            EventKind::Get { by, .. } => matches!(by, Looker::Get | Looker::Delete),
            EventKind::Store { classic, .. } => *classic,
            EventKind::Deleted { .. } | EventKind::Evicted { .. } | EventKind::Script { .. } => false,
        };
        if !counts {
            return;
        }
        let Some(end) = event.key.iter().position(|b| *b == self.delimiter) else { return };
        let prefix = &event.key[..end];
        let mut prefixes = self.prefixes.lock().expect("nobody panics with it held");
        if !prefixes.contains_key(prefix) {
            if prefixes.len() >= PREFIXES_MAX {
                return;
            }
            prefixes.insert(prefix.into(), PrefixCounts::default());
        }
        let Some(counts) = prefixes.get_mut(prefix) else { return };
        match &event.kind {
            EventKind::Get { status, by: Looker::Get, .. } => {
                counts.get += 1;
                counts.hit += u64::from(*status == "found");
            }
            // A delete is counted whether it finds an item or not.
            EventKind::Get { by: Looker::Delete, .. } => counts.del += 1,
            _ => counts.set += 1,
        }
    }

    /// Appends `PREFIX name get n hit n set n del n` lines and `END`.
    pub(crate) fn dump(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in self.prefixes.lock().expect("nobody panics with it held").iter() {
            let PrefixCounts { get, hit, set, del } = counts;
            let line = format!("PREFIX {} get {get} hit {hit} set {set} del {del}\r\n", Prefix(prefix));
            out.extend_from_slice(line.as_bytes());
        }
        out.extend_from_slice(b"END\r\n");
    }
}

/// A prefix, displayed unchanged if it is valid text, and otherwise escaped.
struct Prefix<'a>(&'a [u8]);

impl std::fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) if !text.contains(char::is_control) => f.write_str(text),
            _ => escaped(self.0).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(detail: &Detail, prefix: usize) {
        let key = format!("{prefix}:k").into_bytes().into();
        detail.count(&Event { key, kind: EventKind::Get { status: "not_found", size: 0, by: Looker::Get } });
    }

    #[test]
    fn prefixes_beyond_the_limit_are_not_counted() {
        let detail = Detail::new(true, b':');
        for prefix in 0..=PREFIXES_MAX {
            get(&detail, prefix);
        }
        get(&detail, 0);
        let dump = || {
            let mut out = Vec::new();
            detail.dump(&mut out);
            String::from_utf8(out).unwrap()
        };
        let lines = dump();
        assert_eq!(lines.lines().count(), PREFIXES_MAX + 1, "and END");
        assert!(lines.contains("PREFIX 0 get 2 hit 0 set 0 del 0\r\n"), "those that are known go on");
        assert!(!lines.contains(&format!("PREFIX {PREFIXES_MAX} ")));
        detail.reset();
        get(&detail, PREFIXES_MAX);
        assert_eq!(dump().lines().count(), 2);
    }
}
