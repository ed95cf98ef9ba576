//! Dumps of all keys, in small steps: `lru_crawler metadump`, `mgdump`, and the sizes of `stats sizes`.
//!
//! The server has one dump of keys at a time, as memcached has; other requests get `BUSY`. A dump takes short
//! turns between the turns of other connections, and none while its reader has unread output. Once a second
//! the control thread calls [`Dumps::silent`]. A reader that has taken nothing for [`STALL_SECONDS`] is
//! disconnected: it would keep others out, and a dump that ends in the middle must not look complete.
//!
//! # Invariants
//! * The place is free when the [`Dump`] is dropped, in whatever way its connection ended.
//! * A turn reads at most [`TURN_PIECES`] pieces, even where all items are dead.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use cattlegrid_engine::{Cursor, Engine, Now};
use cattlegrid_protocol::reply;
use cattlegrid_store::{Item, Marks, NEVER};

use crate::watch::escaped;

/// A reader that takes nothing for this many seconds is disconnected.
pub(crate) const STALL_SECONDS: u32 = 5;

/// The server's only place for a dump.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    /// Guards the place.
    place: Mutex<DumpPosition>,
    started: AtomicU64,
    /// Dumps that ended because their reader took nothing.
    pub(crate) stalled: AtomicU64,
}

#[derive(Debug, Default)]
struct DumpPosition {
    /// The reader, which lives as long as its dump.
    reader: Weak<DumpReader>,
    /// The reader's count of bytes at the last check.
    sent: u64,
    /// The number of checks since that count has changed.
    silent: u32,
}

/// The connection that reads the dump.
#[derive(Debug)]
struct DumpReader {
    lane: usize,
    token: u64,
    /// Bytes that the socket has taken.
    sent: AtomicU64,
}

impl Dumps {
    /// Begins the dump of the connection `token` of `lane`; None while another dump runs.
    ///
    /// `has_items`: whether a requested class has items; otherwise the dump is empty.
    pub(crate) fn begin(
        &self,
        form: DumpFormat,
        hide_cas: bool,
        has_items: bool,
        lane: usize,
        token: u64,
    ) -> Option<Dump> {
        let mut place = self.place.lock().expect("nobody panics with it held");
        if place.reader.strong_count() > 0 {
            return None;
        }
        let reader = Arc::new(DumpReader { lane, token, sent: AtomicU64::new(0) });
        *place = DumpPosition { reader: Arc::downgrade(&reader), sent: 0, silent: 0 };
        self.started.fetch_add(1, Relaxed);
        let cursor = has_items.then(Cursor::default);
        Some(Dump { form, cursor, hide_cas, sizes: BTreeMap::new(), reader })
    }

    /// Whether a dump runs.
    pub(crate) fn is_running(&self) -> bool {
        self.place.lock().expect("nobody panics with it held").reader.strong_count() > 0
    }

    /// Dumps begun since the start.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Relaxed)
    }

    /// The lane and token of the connection whose reader has taken nothing for [`STALL_SECONDS`]. To be
    /// called once a second.
    pub(crate) fn silent(&self) -> Option<(usize, u64)> {
        let mut place = self.place.lock().expect("nobody panics with it held");
        let reader = place.reader.upgrade()?;
        let sent = reader.sent.load(Relaxed);
        place.silent = if sent == place.sent { place.silent + 1 } else { 0 };
        place.sent = sent;
        let silent = place.silent >= STALL_SECONDS;
        let found = silent.then_some((reader.lane, reader.token));
        // Dropped before the lock is released: otherwise this reference could make the place look taken.
        drop(reader);
        found
    }
}

/// A dump in progress. A few items are read at a time, under one shard's lock. An item that is stored
/// meanwhile may be missing; no key occurs twice.
#[derive(Debug)]
pub(crate) struct Dump {
    form: DumpFormat,
    cursor: Option<Cursor>,
    hide_cas: bool,
    /// The number of items of each size, in steps of [`SIZE_STEP`].
    sizes: BTreeMap<usize, u64>,
    reader: Arc<DumpReader>,
}

/// The format of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpFormat {
    /// `key=.. exp=.. la=.. cas=.. fetch=.. cls=.. size=.. flags=.. `
    Meta,
    /// `mg <key>`, which can be sent to a server unchanged.
    MetaGet,
    /// `STAT <bytes> <items>`, written at the end: `stats sizes`.
    Sizes,
}

/// Sizes are counted in steps of this many bytes, as in memcached.
const SIZE_STEP: usize = 32;

/// Items read under one lock.
const PIECE: usize = 32;
/// The most pieces read in one turn.
const TURN_PIECES: usize = 8;
/// A turn ends when its lines have this many bytes.
const TURN_BYTES: usize = 4 << 10;

/// The send buffer that is requested for a dump's socket, in bytes. The system's own buffers grow to
/// megabytes, and report room only when a third of them is free, so that a slow reader would seem to take
/// nothing for a long time.
pub(crate) const SEND_BUFFER_BYTES: usize = 128 << 10;

impl Dump {
    /// A dump that counts sizes. It sends nothing before its end, and does not take the server's place for a
    /// dump.
    pub(crate) fn of_sizes(lane: usize, token: u64) -> Self {
        let reader = Arc::new(DumpReader { lane, token, sent: AtomicU64::new(0) });
        let cursor = Some(Cursor::default());
        Self { form: DumpFormat::Sizes, cursor, hide_cas: true, sizes: BTreeMap::new(), reader }
    }

    /// Appends the lines of one turn. True at the end, whose mark is appended then.
    pub(crate) fn resume(&mut self, engine: &Engine, now: Now, out: &mut Vec<u8>) -> bool {
        let (form, hide_cas) = (self.form, self.hide_cas);
        let most = out.len() + TURN_BYTES;
        let mut pieces = 0;
        let objects = engine.objects();
        let sizes = &mut self.sizes;
        while let Some(cursor) = self.cursor {
            if pieces == TURN_PIECES || out.len() >= most {
                return false;
            }
            pieces += 1;
            self.cursor = engine.list(cursor, PIECE, |item| {
                if form == DumpFormat::Sizes {
                    return *sizes.entry(item.size().div_ceil(SIZE_STEP)).or_default() += 1;
                }
                let object = item.object().map(|(type_id, key)| objects.as_ref()?.object_name(type_id, key));
                // An object whose type is switched off has no name.
                let Some(name) = object.as_ref().map_or(Some(item.key()), |name| name.as_deref()) else {
                    return;
                };
                match form {
                    DumpFormat::Meta => meta_line(out, name, &item, now, hide_cas),
                    DumpFormat::MetaGet => get_line(out, name, object.is_some()),
                    DumpFormat::Sizes => {}
                }
            });
        }
        for (steps, items) in &self.sizes {
            // Writing to a Vec cannot fail.
            let _ok = write!(out, "STAT {} {items}\r\n", steps * SIZE_STEP);
        }
        out.extend_from_slice(if self.form == DumpFormat::MetaGet { b"EN\r\n" } else { b"END\r\n" });
        true
    }

    /// Counts `bytes` that the reader's socket has taken.
    pub(crate) fn note_sent(&self, bytes: usize) {
        self.reader.sent.fetch_add(bytes as u64, Relaxed);
    }
}

/// memcached, too, has a blank before the end of the line.
fn meta_line(out: &mut Vec<u8>, key: &[u8], item: &Item<'_>, now: Now, hide_cas: bool) {
    let expiry = if item.expiry() == NEVER { -1 } else { now.unix(item.expiry()) };
    // Writing to a Vec cannot fail.
    let _ok = writeln!(
        out,
        "key={} exp={expiry} la={} cas={} fetch={} cls=1 size={} flags={} ",
        escaped(key),
        now.unix(item.accessed()),
        if hide_cas { 0 } else { item.cas() },
        if item.marks().has(Marks::FETCHED) { "yes" } else { "no" },
        item.size(),
        item.flags(),
    );
}

/// A line that requests an item; for an object its state, since it has no value.
fn get_line(out: &mut Vec<u8>, key: &[u8], is_object: bool) {
    out.extend_from_slice(b"mg ");
    if key.iter().any(|b| *b <= b' ' || *b == 0x7f) {
        reply::key_base64(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    if is_object {
        out.extend_from_slice(b" Adump");
    }
    reply::end_line(out);
}

#[cfg(test)]
mod tests {
    use cattlegrid_engine::{Context, Effects, Interest, Output, Step, Ticket};
    use cattlegrid_herd::{Caller, Session};
    use cattlegrid_protocol::{Limits, Parsed, parse};

    use super::*;
    use cattlegrid_config::{Command, parse_args};

    /// Items are listed once each, in turns that are short in bytes and, where all are dead, in items.
    #[test]
    fn turns_are_short() {
        let Ok(Command::Serve(settings)) = parse_args(["-m", "16", "-t", "1"]) else { panic!("options") };
        let shared = crate::shared::build::alone(*settings);
        let engine = &shared.engine;
        let peer = engine.shared().peers().join(cattlegrid_herd::PeerKey::Process(1));
        let mut session = Session::new(Arc::new(Caller::new(1, 0, 0, peer)));
        let now = shared.now_at(shared.clock.now());
        for number in 0..4000 {
            let line = format!("set key-{number} 0 10 1\r\nv\r\n");
            let Parsed::Complete { request, .. } = parse(line.as_bytes(), &Limits::default()) else {
                panic!()
            };
            let (mut out, mut effects) = (Output::default(), Effects::default());
            let mut cx = Context {
                step: Step {
                    now,
                    counters: &shared.lanes[0].counters,
                    interest: Interest::default(),
                    effects: &mut effects,
                },
                ticket: Ticket { connection: 1, request: number },
                session: &mut session,
                out: &mut out,
            };
            let hash = engine.hash(&request).unwrap();
            assert!(engine.execute(&request, hash, &mut engine.shard_lock(), &mut cx).is_none());
        }
        let turns = |now: Now| {
            let mut dump = shared.dumps.begin(DumpFormat::Meta, false, true, 0, 0).unwrap();
            let (mut text, mut turns) = (Vec::new(), 0);
            loop {
                let mut out = Vec::new();
                let done = dump.resume(engine, now, &mut out);
                // The last piece may go over by its lines, of up to 100 bytes here.
                assert!(out.len() < TURN_BYTES + 2 * PIECE * 100, "{} bytes in a turn", out.len());
                turns += 1;
                text.append(&mut out);
                if done {
                    return (String::from_utf8(text).unwrap(), turns);
                }
            }
        };
        let (text, count) = turns(now);
        assert!(count > 4000 / (TURN_PIECES * PIECE), "{count} turns");
        let keys: std::collections::BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("key=")?.split(' ').next()).collect();
        assert_eq!((keys.len(), text.lines().count()), (4000, 4001));

        let later = Now { second: now.second + 100, ..now };
        engine.tick(later);
        let (_, count) = turns(later);
        assert!(count > 1, "what is left of 4000 dead items is not walked at once");
    }

    #[test]
    fn one_at_a_time_and_its_place_is_free_when_it_is_dropped() {
        let dumps = Dumps::default();
        let begin = || dumps.begin(DumpFormat::Meta, false, true, 0, 1);
        let first = begin().unwrap();
        assert!(dumps.is_running() && begin().is_none());
        drop(first);
        assert!(!dumps.is_running() && begin().is_some());
        assert_eq!(dumps.started(), 2);
    }

    #[test]
    fn a_reader_is_silent_after_seconds_without_a_byte() {
        let dumps = Dumps::default();
        assert_eq!(dumps.silent(), None);
        let dump = dumps.begin(DumpFormat::MetaGet, false, true, 3, 7).unwrap();
        for _ in 1..STALL_SECONDS {
            assert_eq!(dumps.silent(), None);
        }
        dump.note_sent(1);
        for _ in 0..STALL_SECONDS {
            assert_eq!(dumps.silent(), None);
        }
        assert_eq!(dumps.silent(), Some((3, 7)));
        assert!(dumps.is_running(), "it is its lane that ends it");
        drop(dump);
        assert_eq!(dumps.silent(), None);
    }
}
