//! `watch`: connections that are sent a line for each thing that happens.
//!
//! A worker formats its events once and puts the lines into the buffer of each watcher that wants them; the
//! watcher's own worker sends them. A watcher that reads too slowly loses lines and is told how many.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cattlegrid_engine::{Event, EventKind, Interest};

/// Everybody who watches.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// What any of them wants: engine events in the low bits, then [`Topics`]' own.
    wanted: AtomicU8,
    list: Mutex<Vec<Arc<Watcher>>>,
    /// Lines made.
    lines: AtomicU64,
    /// Lines lost.
    pub(crate) dropped: AtomicU64,
}

/// A set of things to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Topics(u8);

impl Topics {
    pub(crate) const CONNECTIONS: Self = Self(16);
    pub(crate) const RAW_COMMANDS: Self = Self(32);

    pub(crate) fn engine(interest: Interest) -> Self {
        Self(interest.bits())
    }

    /// The topic of a word after `watch`.
    pub(crate) fn parse(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"fetchers" => Self::engine(Interest::FETCHERS),
            b"mutations" => Self::engine(Interest::MUTATIONS),
            b"evictions" => Self::engine(Interest::EVICTIONS),
            b"deletions" => Self::engine(Interest::DELETIONS),
            b"connevents" => Self::CONNECTIONS,
            b"rawcmds" => Self::RAW_COMMANDS,
            // Known to memcached, and never said by a server without a proxy or a process of its own.
            b"sysevents" | b"proxycmds" | b"proxyevents" | b"proxyreqs" | b"proxyuser" => Self(0),
            _ => return None,
        })
    }

    #[must_use]
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn interest(self) -> Interest {
        Interest::from_bits(self.0)
    }
}

/// One watching connection's buffer.
#[derive(Debug)]
pub(crate) struct Watcher {
    topics: Topics,
    /// Whose it is.
    pub(crate) worker: usize,
    pub(crate) token: u64,
    limit: usize,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    skipped: u64,
}

impl Watcher {
    pub(crate) fn new(topics: Topics, worker: usize, token: u64, limit: usize) -> Self {
        Self { topics, worker, token, limit, lines: Mutex::default() }
    }

    /// Adds a line; true if its worker should be told.
    fn add(&self, line: &str, dropped: &AtomicU64) -> bool {
        let mut lines = self.lines.lock().expect("nobody panics with it held");
        if lines.text.len() + line.len() > self.limit {
            lines.skipped += 1;
            dropped.fetch_add(1, Relaxed);
            return false;
        }
        let first = lines.text.is_empty();
        if lines.skipped > 0 {
            let note = format!("skipped={}\n", std::mem::take(&mut lines.skipped));
            lines.text.extend_from_slice(note.as_bytes());
        }
        lines.text.extend_from_slice(line.as_bytes());
        first
    }

    /// Takes what is to be sent.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lines.lock().expect("nobody panics with it held").text)
    }
}

impl Watchers {
    /// What anybody wants.
    #[inline]
    pub(crate) fn wanted(&self) -> Topics {
        Topics(self.wanted.load(Relaxed))
    }

    pub(crate) fn count(&self) -> usize {
        self.list.lock().expect("nobody panics with it held").len()
    }

    pub(crate) fn add(&self, watcher: Arc<Watcher>) {
        let mut list = self.list.lock().expect("nobody panics with it held");
        list.push(watcher);
        self.recount(&list);
    }

    pub(crate) fn remove(&self, worker: usize, token: u64) {
        let mut list = self.list.lock().expect("nobody panics with it held");
        list.retain(|w| (w.worker, w.token) != (worker, token));
        self.recount(&list);
    }

    fn recount(&self, list: &[Arc<Watcher>]) {
        self.wanted.store(list.iter().fold(0, |all, w| all | w.topics.0), Relaxed);
    }

    /// Gives a line to those who want it; calls `wake` for each whose worker should send.
    pub(crate) fn publish(
        &self,
        topic: Topics,
        now: Duration,
        text: impl FnOnce(&mut String),
        mut wake: impl FnMut(&Watcher),
    ) {
        let gid = self.lines.fetch_add(1, Relaxed) + 1;
        let mut line = format!("ts={}.{:06} gid={gid} ", now.as_secs(), now.subsec_micros());
        text(&mut line);
        line.push('\n');
        for watcher in self.list.lock().expect("nobody panics with it held").iter() {
            if watcher.topics.has(topic) && watcher.add(&line, &self.dropped) {
                wake(watcher);
            }
        }
    }
}

/// The topic of an engine event.
pub(crate) fn topic(kind: &EventKind) -> Topics {
    Topics::engine(match kind {
        EventKind::Get { .. } => Interest::FETCHERS,
        EventKind::Store { .. } => Interest::MUTATIONS,
        EventKind::Deleted { .. } => Interest::DELETIONS,
        EventKind::Evicted { .. } => Interest::EVICTIONS,
    })
}

/// An event as memcached writes it; `cfd` is the connection's descriptor.
pub(crate) fn describe(line: &mut String, event: &Event, cfd: i32) {
    let key = Escaped(&event.key);
    // Writing to a string cannot fail.
    let _ok = match &event.kind {
        EventKind::Get { status, size } => {
            write!(line, "type=item_get key={key} status={status} clsid=1 cfd={cfd} size={size}")
        }
        EventKind::Store { status, command, ttl, size } => write!(
            line,
            "type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid=1 cfd={cfd} size={size}"
        ),
        EventKind::Deleted { command, size } => {
            write!(line, "type=deleted key={key} cmd={command} clsid=1 cfd={cfd} size={size}")
        }
        EventKind::Evicted { fetched, ttl, idle, size } => {
            let fetch = if *fetched { "yes" } else { "no" };
            let ttl = ttl.map_or(-1, |t| i64::try_from(t).unwrap_or(i64::MAX));
            write!(line, "type=eviction key={key} fetch={fetch} ttl={ttl} la={idle} clsid=1 size={size}")
        }
    };
}

/// Bytes as in a URI: what is not plain comes as `%XX`.
pub(crate) struct Escaped<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for &byte in self.0 {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_watcher_loses_lines_and_is_told() {
        let watchers = Watchers::default();
        let watcher = Arc::new(Watcher::new(Topics::CONNECTIONS, 0, 7, 100));
        watchers.add(Arc::clone(&watcher));
        let mut woken = 0;
        let mut publish = || {
            let text = |line: &mut String| line.push_str("type=conn_new");
            watchers.publish(Topics::CONNECTIONS, Duration::ZERO, text, |_| woken += 1);
        };
        (0..10).for_each(|_| publish());
        let first = String::from_utf8(watcher.take()).unwrap();
        assert!(first.starts_with("ts=0.000000 gid=1 type=conn_new\n"), "{first}");
        let kept = first.lines().count() as u64;
        assert_eq!(watchers.dropped.load(Relaxed), 10 - kept);
        publish();
        let second = String::from_utf8(watcher.take()).unwrap();
        assert!(second.starts_with(&format!("skipped={}\nts=", 10 - kept)), "{second}");
        assert_eq!(woken, 2);
        watchers.remove(0, 7);
        assert_eq!(watchers.wanted(), Topics::default());
    }

    #[test]
    fn keys_are_escaped() {
        assert_eq!(Escaped(b"a:b c\xff.").to_string(), "a%3Ab%20c%FF.");
    }
}
