//! `watch`: connections that are sent a line for each event.
//!
//! ```text
//!   request ──▶ record ──▶ the lane's queue ──▶ thread `watch`: a line ──▶ a watcher's buffer ──▶ its lane
//! ```
//! An event costs its request a record in the lane's queue. A separate thread formats the lines, once for all
//! watchers. The queue and each watcher's buffer have a limit. A record for which there is no room is counted
//! by its lane (`log_worker_dropped`), a line by its watcher (`log_watcher_skipped`). The watcher is told the
//! number of missing lines in their place.
//!
//! # Invariants
//! * Records are numbered in the order of their creation (`gid`); a watcher sees no record from before its
//!   command.
//! * A lane is told of lines once until it takes them. It takes them when the watcher's socket has room: at
//!   once, or when the earlier lines are sent.
//! * Without a watcher there are no records, and the thread sleeps.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use cattlegrid_engine::{Event, EventKind, Interest};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

/// The most watchers at once, as in memcached.
pub(crate) const WATCHERS_MAX: usize = 20;
/// The longest time that a record waits while there is a watcher.
const NAP: Duration = Duration::from_millis(10);
/// The same while there are records in every round.
const BUSY_NAP: Duration = Duration::from_millis(1);

/// The watchers, and the records on their way to them.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// The union of all watchers' topics: engine events in the low bits, then those of [`Topics`].
    wanted: AtomicU8,
    list: Mutex<Vec<Arc<Watcher>>>,
    /// Whether the log wants requests.
    logs: AtomicBool,
    /// A queue for each lane.
    queues: Vec<Mutex<RecordQueue>>,
    /// The most bytes of records in one queue.
    queue_bytes: usize,
    /// Records made.
    records: AtomicU64,
    /// Lines written to buffers.
    sent: AtomicU64,
    /// Lines for which a buffer had no room.
    skipped: AtomicU64,
    thread: Mutex<DeliveryRequest>,
    work: Condvar,
}

/// Requests to the delivering thread.
#[derive(Debug, Default)]
struct DeliveryRequest {
    /// Whether to deliver at once, without a pause.
    hurry: bool,
    /// Whether to end: the server leaves.
    stop: bool,
}

/// A set of topics to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Topics(u8);

impl Topics {
    pub(crate) const CONNECTIONS: Self = Self(16);
    pub(crate) const RAW_COMMANDS: Self = Self(32);
    /// The topic of the log, which watchers cannot choose: requests and replies (`-vv`).
    pub(crate) const LOG: Self = Self(64);
    /// The topics for which each request makes a record.
    pub(crate) const REQUESTS: Self = Self(Self::RAW_COMMANDS.0 | Self::LOG.0);

    pub(crate) fn engine(interest: Interest) -> Self {
        Self(interest.bits())
    }

    /// The topic of an argument of `watch`; None: there is no such topic.
    pub(crate) fn parse(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"fetchers" => Self::engine(Interest::FETCHERS),
            b"mutations" => Self::engine(Interest::MUTATIONS),
            b"evictions" => Self::engine(Interest::EVICTIONS),
            b"deletions" => Self::engine(Interest::DELETIONS),
            b"connevents" => Self::CONNECTIONS,
            b"rawcmds" => Self::RAW_COMMANDS,
            b"objects" => Self::engine(Interest::SCRIPTS),
            // memcached knows these topics, but a server without a proxy or a process of its own has no such
            // events.
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

/// An event, as its request records it.
#[derive(Debug)]
pub(crate) struct Record {
    /// The time since 1970.
    pub(crate) time: Duration,
    /// The connection's descriptor.
    pub(crate) fd: i32,
    pub(crate) what: RecordContent,
}

/// The content of a record.
#[derive(Debug)]
pub(crate) enum RecordContent {
    /// An event of a key.
    Event(Event),
    /// A command as it was sent, without its line end.
    Command(Box<[u8]>),
    /// The begin of a connection, or its end with the reason.
    Connection { peer: Box<str>, unix: bool, closed: Option<&'static str> },
}

/// The records of one lane.
#[derive(Debug, Default)]
struct RecordQueue {
    records: Vec<(u64, Record)>,
    bytes: usize,
}

/// The buffer of one watching connection.
#[derive(Debug)]
pub(crate) struct Watcher {
    topics: Topics,
    /// The lane of the connection.
    pub(crate) lane: usize,
    pub(crate) token: u64,
    limit: usize,
    /// The number of the last record from before the watcher's command.
    after: AtomicU64,
    lines: Mutex<LineBuffer>,
}

#[derive(Debug, Default)]
struct LineBuffer {
    text: Vec<u8>,
    skipped: u64,
    /// Whether the lane was told of the lines.
    told: bool,
}

impl Watcher {
    pub(crate) fn new(topics: Topics, lane: usize, token: u64, limit: usize) -> Self {
        Self { topics, lane, token, limit, after: AtomicU64::new(0), lines: Mutex::default() }
    }

    fn lines(&self) -> MutexGuard<'_, LineBuffer> {
        self.lines.lock().expect("nobody panics with it held")
    }

    /// Adds a line; false: there is no room.
    fn add(&self, line: &str) -> bool {
        let mut lines = self.lines();
        if lines.text.len() + line.len() > self.limit {
            lines.skipped += 1;
            return false;
        }
        if lines.skipped > 0 {
            let note = format!("skipped={}\n", std::mem::take(&mut lines.skipped));
            lines.text.extend_from_slice(note.as_bytes());
        }
        lines.text.extend_from_slice(line.as_bytes());
        true
    }

    /// Whether the lane must be told of lines that it does not know of.
    fn must_tell(&self) -> bool {
        let mut lines = self.lines();
        !lines.text.is_empty() && !std::mem::replace(&mut lines.told, true)
    }

    /// Whether there are lines to take.
    pub(crate) fn has_lines(&self) -> bool {
        !self.lines().text.is_empty()
    }

    /// Takes the lines, to be sent.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut lines = self.lines();
        lines.told = false;
        std::mem::take(&mut lines.text)
    }
}

impl Watchers {
    /// Watchers of a server with `lanes` lanes, whose queues hold `queue_bytes` each.
    pub(crate) fn new(lanes: usize, queue_bytes: usize) -> Self {
        Self {
            wanted: AtomicU8::new(0),
            list: Mutex::default(),
            logs: AtomicBool::new(false),
            queues: (0..lanes).map(|_| Mutex::default()).collect(),
            queue_bytes,
            records: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            thread: Mutex::default(),
            work: Condvar::new(),
        }
    }

    /// The union of all watchers' topics.
    #[inline]
    pub(crate) fn wanted(&self) -> Topics {
        Topics(self.wanted.load(Relaxed))
    }

    pub(crate) fn count(&self) -> usize {
        self.list().len()
    }

    /// Lines written to a buffer, and lines for which a buffer had no room.
    pub(crate) fn lines_sent_and_skipped(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.skipped.load(Relaxed))
    }

    /// Sets the counts of lines to 0.
    pub(crate) fn reset_stats(&self) {
        self.sent.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Watcher>>> {
        self.list.lock().expect("nobody panics with it held")
    }

    fn thread(&self) -> MutexGuard<'_, DeliveryRequest> {
        self.thread.lock().expect("nobody panics with it held")
    }

    /// Adds a watcher; false: there are [`WATCHERS_MAX`] already.
    pub(crate) fn add(&self, watcher: Arc<Watcher>) -> bool {
        let mut list = self.list();
        if list.len() >= WATCHERS_MAX {
            return false;
        }
        watcher.after.store(self.records.load(Relaxed), Relaxed);
        list.push(watcher);
        self.recount(&list);
        drop(list);
        self.wake(|_| {});
        true
    }

    pub(crate) fn remove(&self, lane: usize, token: u64) {
        let mut list = self.list();
        list.retain(|w| (w.lane, w.token) != (lane, token));
        self.recount(&list);
    }

    /// Sets whether the log wants requests.
    pub(crate) fn log_requests(&self, on: bool) {
        let list = self.list();
        self.logs.store(on, Relaxed);
        self.recount(&list);
    }

    /// Computes the union of topics again; to be called with the list locked.
    fn recount(&self, list: &[Arc<Watcher>]) {
        let log = if self.logs.load(Relaxed) { Topics::LOG.0 } else { 0 };
        self.wanted.store(list.iter().fold(log, |all, w| all | w.topics.0), Relaxed);
    }

    fn wake(&self, say: impl FnOnce(&mut DeliveryRequest)) {
        say(&mut self.thread());
        self.work.notify_one();
    }

    /// Adds a record to a lane's queue; false: the queue is full.
    pub(crate) fn record(&self, lane: usize, record: Record) -> bool {
        let bytes = record.bytes();
        let mut queue = self.queues[lane].lock().expect("nobody panics with it held");
        if queue.bytes + bytes > self.queue_bytes {
            return false;
        }
        let was_short = queue.bytes <= self.queue_bytes / 2;
        queue.bytes += bytes;
        let gid = self.records.fetch_add(1, Relaxed) + 1;
        queue.records.push((gid, record));
        let is_long = queue.bytes > self.queue_bytes / 2;
        drop(queue);
        if was_short && is_long {
            self.wake(|thread| thread.hurry = true);
        }
        true
    }

    /// Formats all records for the watchers that want them, and calls `tell` for each watcher whose lane must
    /// be told of lines. False: there were no records.
    pub(crate) fn deliver(&self, mut tell: impl FnMut(&Watcher)) -> bool {
        let mut records = Vec::new();
        for queue in &self.queues {
            let mut queue = queue.lock().expect("nobody panics with it held");
            queue.bytes = 0;
            records.append(&mut queue.records);
        }
        records.sort_unstable_by_key(|(gid, _)| *gid);
        let watchers = self.list().clone();
        let mut line = String::new();
        let (mut sent, mut skipped) = (0, 0);
        for (gid, record) in &records {
            let topic = record.what.topic();
            line.clear();
            for watcher in watchers.iter().filter(|w| w.topics.has(topic) && *gid > w.after.load(Relaxed)) {
                if line.is_empty() {
                    record.describe(&mut line, *gid);
                }
                let counter = if watcher.add(&line) { &mut sent } else { &mut skipped };
                *counter += 1;
            }
        }
        self.sent.fetch_add(sent, Relaxed);
        self.skipped.fetch_add(skipped, Relaxed);
        watchers.iter().filter(|w| w.must_tell()).for_each(|w| tell(w));
        !records.is_empty()
    }

    /// The body of the thread: delivers until [`Watchers::stop`].
    pub(crate) fn run(&self, mut tell: impl FnMut(&Watcher)) {
        let mut busy = false;
        loop {
            let mut thread = self.thread();
            while !thread.stop && self.list().is_empty() {
                thread = self.work.wait(thread).expect("nobody panics with it held");
            }
            if !thread.stop && !thread.hurry {
                let nap = if busy { BUSY_NAP } else { NAP };
                thread = self.work.wait_timeout(thread, nap).expect("nobody panics with it held").0;
            }
            if thread.stop {
                return;
            }
            thread.hurry = false;
            drop(thread);
            busy = self.deliver(&mut tell);
        }
    }

    /// Ends [`Watchers::run`].
    pub(crate) fn stop(&self) {
        self.wake(|thread| thread.stop = true);
    }
}

impl Record {
    /// The approximate memory of the record.
    fn bytes(&self) -> usize {
        let heap = match &self.what {
            RecordContent::Event(event) => event.key.len(),
            RecordContent::Command(line) => line.len(),
            RecordContent::Connection { peer, .. } => peer.len(),
        };
        size_of::<(u64, Self)>() + heap
    }

    /// Appends the record in memcached's format.
    fn describe(&self, line: &mut String, gid: u64) {
        let Self { time, fd, what } = self;
        // Writing to a string cannot fail.
        let _ok = write!(line, "ts={}.{:06} gid={gid} ", time.as_secs(), time.subsec_micros());
        match what {
            RecordContent::Event(event) => describe(line, event, *fd),
            RecordContent::Command(command) => {
                let _ok = write!(line, "type=rawcmd cfd={fd} cmd={}", escaped(command));
            }
            RecordContent::Connection { peer, unix, closed } => {
                let named = peer.rsplit_once(':').filter(|_| !*unix);
                let (ip, port) = named.unwrap_or((if *unix { "unix" } else { peer }, "0"));
                let ip = ip.trim_matches(['[', ']']);
                let kind = if closed.is_some() { "conn_close" } else { "conn_new" };
                let transport = if *unix { "local" } else { "tcp" };
                let reason = closed.map_or_else(String::new, |reason| format!("reason={reason} "));
                let _ok =
                    write!(line, "type={kind} rip={ip} rport={port} transport={transport} {reason}cfd={fd}");
            }
        }
        line.push('\n');
    }
}

impl RecordContent {
    fn topic(&self) -> Topics {
        match self {
            Self::Event(event) => topic(&event.kind),
            Self::Command(_) => Topics::RAW_COMMANDS,
            Self::Connection { .. } => Topics::CONNECTIONS,
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
        EventKind::Script { .. } => Interest::SCRIPTS,
    })
}

/// Appends an event in memcached's format; `cfd`: the connection's descriptor. All items are in class 1.
fn describe(line: &mut String, event: &Event, cfd: i32) {
    let key = escaped(&event.key);
    // Writing to a string cannot fail.
    let _ok = match &event.kind {
        EventKind::Get { status, size, by: _ } => {
            let class = u8::from(*status == "found");
            write!(line, "type=item_get key={key} status={status} clsid={class} cfd={cfd} size={size}")
        }
        EventKind::Store { status, command, ttl, size, classic: _ } => {
            // A refused item never had a class.
            let class = u8::from(!matches!(*status, "too_large" | "no_memory"));
            write!(
                line,
                "type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid={class} cfd={cfd} size={size}"
            )
        }
        EventKind::Script { name, json } => {
            write!(line, "type=script key={key} event={name} table={}", escaped(json.as_bytes()))
        }
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

/// Bytes escaped as in a URI: all but plain characters as `%XX`.
pub(crate) fn escaped(bytes: &[u8]) -> PercentEncode<'_> {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    percent_encode(bytes, ESCAPED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Record {
        let what = RecordContent::Connection { peer: "127.0.0.1:5".into(), unix: false, closed: None };
        Record { time: Duration::ZERO, fd: 9, what }
    }

    /// A Unix socket has no address and no port: memcached says so.
    #[test]
    fn connections_are_described_as_memcached_does() {
        let line = |peer: &str, unix, closed| {
            let what = RecordContent::Connection { peer: peer.into(), unix, closed };
            let mut line = String::new();
            Record { time: Duration::ZERO, fd: 9, what }.describe(&mut line, 1);
            line
        };
        for (peer, unix, named) in [
            ("127.0.0.1:5", false, "rip=127.0.0.1 rport=5 transport=tcp"),
            ("[::1]:5", false, "rip=::1 rport=5 transport=tcp"),
            ("unix:/run/a:b", true, "rip=unix rport=0 transport=local"),
        ] {
            let new = line(peer, unix, None);
            assert_eq!(new, format!("ts=0.000000 gid=1 type=conn_new {named} cfd=9\n"));
            let closed = line(peer, unix, Some("normal"));
            assert_eq!(closed, format!("ts=0.000000 gid=1 type=conn_close {named} reason=normal cfd=9\n"));
        }
    }

    fn watching(limit: usize) -> (Watchers, Arc<Watcher>) {
        let watchers = Watchers::new(2, 4 << 10);
        let watcher = Arc::new(Watcher::new(Topics::CONNECTIONS, 0, 7, limit));
        assert!(watchers.add(Arc::clone(&watcher)));
        (watchers, watcher)
    }

    fn text(watcher: &Watcher) -> String {
        String::from_utf8(watcher.take()).unwrap()
    }

    #[test]
    fn a_slow_watcher_loses_lines_is_told_and_goes_on() {
        let (watchers, watcher) = watching(250);
        let mut told = 0;
        let mut happen = |times| {
            (0..times).for_each(|_| assert!(watchers.record(1, connection())));
            watchers.deliver(|_| told += 1);
        };
        // More than once: the buffer is used again after it was full.
        for round in 0..3 {
            happen(10);
            happen(1);
            let (_, skipped) = watchers.lines_sent_and_skipped();
            let lines = text(&watcher);
            let kept = lines.lines().filter(|line| line.contains("type=conn_new")).count() as u64;
            assert!((1..10).contains(&kept), "{lines}");
            happen(1);
            let next = text(&watcher);
            let missing = 11 - kept;
            assert!(next.starts_with(&format!("skipped={missing}\nts=0.000000 gid=")), "{round}: {next}");
            assert_eq!(watchers.lines_sent_and_skipped().1, skipped);
        }
        assert_eq!(told, 6, "once for each time that lines were taken");
        let (sent, skipped) = watchers.lines_sent_and_skipped();
        assert_eq!(sent + skipped, 36);
        watchers.remove(0, 7);
        assert_eq!(watchers.wanted(), Topics::default());
    }

    #[test]
    fn a_full_queue_drops_records_and_is_empty_after_a_delivery() {
        let (watchers, watcher) = watching(1 << 20);
        let queued = (0..1000).take_while(|_| watchers.record(0, connection())).count();
        assert!((10..100).contains(&queued), "{queued}");
        assert!(!watchers.record(0, connection()));
        assert!(watchers.record(1, connection()), "each lane has its own");
        assert!(watchers.deliver(|_| {}));
        assert_eq!(text(&watcher).lines().count(), queued + 1);
        assert!(!watchers.deliver(|_| {}));
        assert!(watchers.record(0, connection()));
    }

    #[test]
    fn lines_are_in_the_order_of_all_lanes_and_none_is_from_before() {
        let (watchers, watcher) = watching(1 << 20);
        assert!(watchers.record(0, connection()));
        let late = Arc::new(Watcher::new(Topics::CONNECTIONS, 0, 8, 1 << 20));
        assert!(watchers.add(Arc::clone(&late)));
        for lane in [1, 0, 1] {
            assert!(watchers.record(lane, connection()));
        }
        watchers.deliver(|_| {});
        let gids = |watcher: &Watcher| -> Vec<String> {
            let number = |line: &str| line.split(' ').nth(1).unwrap().to_owned();
            text(watcher).lines().map(number).collect()
        };
        assert_eq!(gids(&watcher), ["gid=1", "gid=2", "gid=3", "gid=4"]);
        assert_eq!(gids(&late), ["gid=2", "gid=3", "gid=4"]);
    }

    #[test]
    fn there_is_room_for_twenty() {
        let watchers = Watchers::new(1, 1 << 10);
        let add = |token| watchers.add(Arc::new(Watcher::new(Topics::CONNECTIONS, 0, token, 1)));
        assert!((0..20).all(add));
        assert!(!add(20));
        watchers.remove(0, 3);
        assert!(add(20) && !add(21));
        assert_eq!(watchers.count(), 20);
    }

    #[test]
    fn keys_are_escaped() {
        assert_eq!(escaped(b"a:b c\xff.").to_string(), "a%3Ab%20c%FF.");
    }
}
