//! Observations of a server's traffic by `advise`: gets, misses and stores, by the shape of their keys.
//!
//! A computation lasts from a miss to the store of the key on the same connection, or on any connection if
//! the storing one has not missed it. Misses of the key on other connections in that time are a herd if their
//! clients store it as well: they have computed the same value. (A delete of an absent key looks like a miss,
//! but no store follows.) A rule would save those misses of a herd that would have waited for at most its
//! `hold`.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cattlegrid_server::shape;

use super::together::JointDeletes;

/// Most keys with open misses. Misses of further keys are not followed.
const OPEN_MAX: usize = 200_000;
/// The shape that stands for all further shapes once the table is full.
pub(super) const OTHER: &str = "other";
/// Most shapes that are counted apart.
const SHAPES_MAX: usize = 10_000;
/// Most times and waits that are kept per shape.
const TIMES_MAX: usize = 20_000;
/// A miss that is not followed by a store within this time, in microseconds, was not computed.
const OPEN_US: u64 = 60_000_000;
/// Pause between two searches for such misses, in microseconds.
const SWEEP_US: u64 = 1_000_000;
/// Longest delay of a line, in microseconds: a server sends its threads' lines thread by thread.
const LATE_US: u64 = 500_000;
/// Longest time to live, in seconds.
const TTL_MAX: u64 = 1 << 31;
/// Number of last look-ups among which a delete's own look-up is searched.
const LOOKS_MAX: usize = 64;
/// Longest prefix in bytes.
const HEAD_MAX: usize = 64;
/// Most prefixes that are counted for a shape.
const HEADS_MAX: usize = 4;
/// Longest time of a lock, in microseconds: keys that half of their clients `add` sooner than this after a
/// miss are locks.
const LOCK_US: u64 = 5_000;

/// A line of `watch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchLine {
    /// A request.
    Request(WatchEvent),
    /// The number of lines that the server left out because they came too fast.
    Skipped(u64),
    Other,
}

/// A look-up or a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WatchEvent {
    /// The time in microseconds, and the number of the line.
    pub(super) at: (u64, u64),
    /// The client's connection.
    pub(super) connection: u64,
    /// The key as the line has it, with its escapes.
    pub(super) key: Box<str>,
    pub(super) kind: WatchEventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchEventKind {
    /// The size is in bytes; 0 for a miss.
    Get {
        hit: bool,
        size: u32,
    },
    /// The time to live is in seconds; 0: the item does not expire.
    Store {
        stored: bool,
        is_add: bool,
        ttl: u64,
        size: u32,
    },
    /// The connection is 0 if the server does not show it.
    Delete,
    Eviction,
}

impl WatchLine {
    pub(super) fn parse(line: &str) -> Self {
        let line = line.trim();
        // memcached: `[skipped: 3]`; Cattlegrid: `skipped=3`.
        let skipped =
            line.strip_prefix("skipped=").or_else(|| line.strip_prefix("[skipped: ")?.strip_suffix(']'));
        if let Some(count) = skipped.and_then(|count| count.trim().parse().ok()) {
            return Self::Skipped(count);
        }
        let (mut us, mut kind, mut key, mut status, mut ttl) = (None, "", None, "", 0);
        let (mut number, mut connection, mut command, mut size) = (0, 0, "", 0);
        for (name, value) in line.split(' ').filter_map(|field| field.split_once('=')) {
            match name {
                "ts" => us = micros(value),
                "type" => kind = value,
                "key" => key = Some(value),
                "status" => status = value,
                "ttl" => ttl = value.parse().unwrap_or(0),
                "gid" => number = value.parse().unwrap_or(0),
                "cfd" => connection = value.parse().unwrap_or(0),
                "cmd" => command = value,
                "size" => size = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        let (Some(us), Some(key)) = (us, key) else { return Self::Other };
        let kind = match kind {
            "item_get" => WatchEventKind::Get { hit: status == "found", size },
            "item_store" => {
                // memcached writes a negative time to live as a large number: such an item expires at once.
                let ttl = if ttl > TTL_MAX { 1 } else { ttl };
                WatchEventKind::Store { stored: status == "stored", is_add: command == "add", ttl, size }
            }
            "deleted" => WatchEventKind::Delete,
            "eviction" => WatchEventKind::Eviction,
            _ => return Self::Other,
        };
        Self::Request(WatchEvent { at: (us, number), connection, key: key.into(), kind })
    }
}

/// Parses seconds and microseconds. memcached writes the microseconds without leading zeros.
fn micros(text: &str) -> Option<u64> {
    let (seconds, part) = text.split_once('.')?;
    let (seconds, part): (u64, u64) = (seconds.parse().ok()?, part.parse().ok()?);
    (part < 1_000_000).then_some(seconds * 1_000_000 + part)
}

/// Sorts lines by the time at which they happened.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    /// By time, number and arrival.
    waiting: BTreeMap<(u64, u64, u64), WatchEvent>,
    arrived: u64,
}

impl Sorter {
    /// Takes a line, and passes on the lines before which no other can come any more.
    pub(super) fn push(&mut self, line: WatchLine, note: &mut impl FnMut(WatchEvent)) {
        match line {
            WatchLine::Request(event) => {
                let newest = event.at.0;
                self.arrived += 1;
                self.waiting.insert((event.at.0, event.at.1, self.arrived), event);
                while let Some(first) = self.waiting.first_entry()
                    && first.key().0 + LATE_US < newest
                {
                    note(first.remove());
                }
            }
            WatchLine::Skipped(_) | WatchLine::Other => {}
        }
    }

    /// Passes on the lines that are older than this.
    pub(super) fn pass(&mut self, until_us: u64, note: &mut impl FnMut(WatchEvent)) {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 < until_us
        {
            note(first.remove());
        }
    }

    /// Passes on all lines that are left.
    pub(super) fn end(self, note: &mut impl FnMut(WatchEvent)) {
        self.waiting.into_values().for_each(note);
    }
}

/// The observations of one shape.
#[derive(Debug, Default)]
pub(super) struct ShapeStats {
    pub(super) gets: u64,
    pub(super) misses: u64,
    pub(super) stores: u64,
    /// Stores that were an `add`.
    pub(super) adds: u64,
    /// The shortest time to live of a store, in seconds; None: no store had one.
    pub(super) ttl_min: Option<u64>,
    /// Times of computations in microseconds: from the first miss of a key to its store.
    pub(super) times_us: Vec<u64>,
    /// Waits in microseconds: from each further miss of a herd to the store.
    pub(super) waits_us: Vec<u64>,
    pub(super) herds: u64,
    /// Clients of the largest herd.
    pub(super) largest: u64,
    /// Prefixes of this shape's keys that a framework seems to have added, with the number of gets of each.
    pub(super) heads: Vec<(Box<str>, u64)>,
    /// There are more prefixes, or keys without a prefix.
    pub(super) many_heads: bool,
    /// The shape of the text behind the prefix.
    pub(super) rest: String,
}

/// A key whose misses may become computations: the connection and the time, in microseconds, of each.
#[derive(Debug, Default)]
struct OpenMiss {
    misses: Vec<(u64, u64)>,
    /// When the key was first stored. Clients that missed before that and have not stored may have computed
    /// the same value.
    filled_us: Option<u64>,
    /// Clients that have computed this value.
    clients: u64,
}

impl OpenMiss {
    fn last_us(&self) -> u64 {
        self.misses.last().map_or(0, |(_, us)| *us)
    }

    /// Whether a miss was before the value was stored first.
    fn is_of_fill(&self, us: u64) -> bool {
        self.filled_us.is_some_and(|filled_us| us < filled_us)
    }
}

/// All observations.
#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) lines: u64,
    pub(super) skipped: u64,
    pub(super) gets: u64,
    pub(super) misses: u64,
    pub(super) shapes: HashMap<String, ShapeStats>,
    open: HashMap<String, OpenMiss>,
    /// When the open misses were last searched for old ones, in microseconds.
    swept_us: u64,
    /// The last line of each connection, if it was a look-up.
    last: HashMap<u64, LastLookup>,
    /// The connections of the last look-ups.
    looks: VecDeque<u64>,
    pub(super) together: JointDeletes,
}

/// A look-up that is the last line of its connection.
#[derive(Debug)]
struct LastLookup {
    key: Box<str>,
    hit: bool,
    /// The effect of the look-up on the key's open misses: none, the first miss on this connection, or a
    /// later one with the time of the one before.
    miss: MissKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissKind {
    No,
    First,
    Again(u64),
}

impl Observations {
    /// Handles the next line.
    pub(super) fn note(&mut self, event: WatchEvent) {
        let WatchEvent { at: (us, _), connection, key, kind } = event;
        match kind {
            WatchEventKind::Get { hit, .. } => {
                self.lines += 1;
                self.looks.push_back(connection);
                if self.looks.len() > LOOKS_MAX {
                    self.looks.pop_front();
                }
                self.gets += 1;
                let shape = self.shape(&key);
                shape.gets += 1;
                shape.misses += u64::from(!hit);
                self.misses += u64::from(!hit);
                let miss = if hit { MissKind::No } else { self.missed(&key, connection, us) };
                if self.last.len() < OPEN_MAX || self.last.contains_key(&connection) {
                    self.last.insert(connection, LastLookup { key, hit, miss });
                }
            }
            WatchEventKind::Eviction => {}
            WatchEventKind::Delete => {
                let is_its = |own: &&u64| self.last.get(*own).is_some_and(|last| last.key == key);
                let own = self.looks.iter().rev().find(is_its).copied();
                let connection = if connection == 0 { own.unwrap_or(0) } else { connection };
                if let Some(own) = self.last.remove(&connection).filter(|last| last.key == key) {
                    self.take_back(connection, &own);
                }
                self.lines += 1;
                self.together.deleted(connection, us, &decoded(&key));
            }
            WatchEventKind::Store { stored, is_add, ttl, .. } => {
                if let Some(own) = self.last.remove(&connection).filter(|last| last.key == key) {
                    self.take_back(connection, &own);
                }
                self.lines += 1;
                if stored {
                    let shape = self.shape(&key);
                    shape.stores += 1;
                    shape.adds += u64::from(is_add);
                    if ttl > 0 {
                        shape.ttl_min = Some(shape.ttl_min.map_or(ttl, |before| before.min(ttl)));
                    }
                }
                self.computed(&key, connection, us, stored);
            }
        }
    }

    /// Takes a look-up back: a store has a look-up of its own, which has a line although no client asked.
    fn take_back(&mut self, connection: u64, LastLookup { key, hit, miss }: &LastLookup) {
        self.lines -= 1;
        self.gets -= 1;
        self.misses -= u64::from(!*hit);
        let shape = self.shape(key);
        shape.gets = shape.gets.saturating_sub(1);
        shape.misses = shape.misses.saturating_sub(u64::from(!*hit));
        let Some(open) = self.open.get_mut(&**key).filter(|_| *miss != MissKind::No) else { return };
        // Other clients may have looked the key up since.
        let Some(at) = open.misses.iter().rposition(|(own, _)| *own == connection) else { return };
        open.misses.remove(at);
        if let MissKind::Again(before_us) = *miss {
            let at = open.misses.partition_point(|(_, us)| *us <= before_us);
            open.misses.insert(at, (connection, before_us));
        }
        if open.misses.is_empty() {
            self.open.remove(&**key);
        }
    }

    fn missed(&mut self, key: &str, connection: u64, us: u64) -> MissKind {
        if self.open.len() >= OPEN_MAX && us > self.swept_us + SWEEP_US {
            self.swept_us = us;
            self.open.retain(|_, open| us.saturating_sub(open.last_us()) <= OPEN_US);
        }
        let has_room = self.open.len() < OPEN_MAX;
        let open = match self.open.get_mut(key) {
            Some(open) => open,
            None if has_room => self.open.entry(key.to_owned()).or_default(),
            None => return MissKind::No,
        };
        open.misses.retain(|(_, before_us)| us.saturating_sub(*before_us) <= OPEN_US);
        if let Some(at) = open.misses.iter().position(|(own, _)| *own == connection) {
            // A client that looks the key up again is counted once, and computes from then on, if at all.
            let (_, before_us) = open.misses.remove(at);
            open.misses.push((connection, us));
            return MissKind::Again(before_us);
        }
        open.misses.push((connection, us));
        MissKind::First
    }

    /// Handles a store, or an attempt at one: the client has computed the key.
    fn computed(&mut self, key: &str, connection: u64, us: u64, stored: bool) {
        let Some(mut open) = self.open.remove(key) else { return };
        open.misses.retain(|(_, miss_us)| us.saturating_sub(*miss_us) <= OPEN_US);
        // A client with a pool of connections may store on any of them.
        let own = open.misses.iter().position(|(own, _)| *own == connection);
        let of_new = open.misses.iter().position(|(_, miss_us)| !open.is_of_fill(*miss_us));
        let Some(at) = own.or(of_new).or_else(|| (!open.misses.is_empty()).then_some(0)) else { return };
        let (_, miss_us) = open.misses.remove(at);
        let shape = self.shape(key);
        match open.filled_us.filter(|filled_us| miss_us < *filled_us) {
            Some(filled_us) => {
                open.clients += 1;
                shape.herds += u64::from(open.clients == 2);
                shape.largest = shape.largest.max(open.clients);
                if shape.waits_us.len() < TIMES_MAX {
                    shape.waits_us.push(filled_us - miss_us);
                }
            }
            None if stored => {
                if shape.times_us.len() < TIMES_MAX {
                    shape.times_us.push(us.saturating_sub(miss_us));
                }
                let filled_us = open.filled_us.replace(us).unwrap_or(0);
                open.misses.retain(|(_, miss_us)| *miss_us >= filled_us);
                open.clients = 1;
            }
            None => {}
        }
        if !open.misses.is_empty() {
            self.open.insert(key.to_owned(), open);
        }
    }

    fn shape(&mut self, key: &str) -> &mut ShapeStats {
        let key = decoded(key);
        let mut name = shape(&key);
        if self.shapes.len() >= SHAPES_MAX && !self.shapes.contains_key(&name) {
            self.make_room();
            if self.shapes.len() >= SHAPES_MAX {
                OTHER.clone_into(&mut name);
            }
        }
        let shape = self.shapes.entry(name).or_default();
        shape.headed(&key);
        shape
    }

    /// Merges the shapes with the fewest requests into [`OTHER`].
    fn make_room(&mut self) {
        let mut other = self.shapes.remove(OTHER).unwrap_or_default();
        let mut least = 1;
        while self.shapes.len() > SHAPES_MAX / 2 && least < u64::MAX / 2 {
            self.shapes.retain(|_, shape| {
                let stays = shape.gets > least || shape.herds > 0;
                if !stays {
                    other.gets += shape.gets;
                    other.misses += shape.misses;
                    other.stores += shape.stores;
                }
                stays
            });
            least *= 2;
        }
        self.shapes.insert(OTHER.to_owned(), other);
    }
}

/// The prefix that a framework has put before a key: Django's prefix and version (`:1:`, `shop:1:`).
pub(super) fn head(key: &[u8]) -> Option<&str> {
    let mut parts = key.splitn(3, |byte| *byte == b':');
    let (first, version, _) = (parts.next()?, parts.next()?, parts.next()?);
    let is_prefix = first.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(byte));
    let is_version = (1..=2).contains(&version.len()) && version.iter().all(u8::is_ascii_digit);
    let end = first.len() + version.len() + 2;
    (is_prefix && is_version && end <= HEAD_MAX).then(|| std::str::from_utf8(&key[..end]).ok())?
}

/// A key without its escapes: lines of `watch` write bytes that are not plain as `%` and two digits.
pub(super) fn decoded(key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let escaped = if *first == b'%' { behind.get(..2) } else { None };
        let escaped =
            escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    bytes
}

impl ShapeStats {
    fn headed(&mut self, key: &[u8]) {
        if self.many_heads {
            return;
        }
        let head = head(key);
        let has_room = self.heads.len() < HEADS_MAX;
        let known = self.heads.iter_mut().find(|(own, _)| Some(&**own) == head);
        match (known, head) {
            (Some((_, count)), _) => *count += 1,
            (None, Some(head)) if has_room => {
                if self.heads.is_empty() {
                    self.rest = shape(&key[head.len()..]);
                }
                self.heads.push((head.into(), 1));
            }
            (None, _) => self.many_heads = true,
        }
    }

    /// The time in milliseconds that this share of computations does not exceed; None: none was seen.
    pub(super) fn time_ms(&self, percent: usize) -> Option<u64> {
        let mut times = self.times_us.clone();
        times.sort_unstable();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        Some(times.get(at)?.div_ceil(1000))
    }

    /// Whether the keys of this shape are locks: an `add` follows each miss at once.
    pub(super) fn is_lock(&self) -> bool {
        let mut times = self.times_us.clone();
        times.sort_unstable();
        2 * self.adds >= self.stores && times.get(times.len() / 2).is_some_and(|us| *us < LOCK_US)
    }

    /// The number of computations that this `hold` would have saved.
    pub(super) fn saved_by(&self, hold_ms: u64) -> u64 {
        self.waits_us.iter().filter(|us| **us <= hold_ms * 1000).count() as u64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn get(key: &str, hit: bool, us: u64) -> WatchEvent {
        WatchEvent {
            at: (us, 0),
            connection: us,
            key: key.into(),
            kind: WatchEventKind::Get { hit, size: if hit { 3 } else { 0 } },
        }
    }

    pub(in super::super) fn store(key: &str, ttl: u64, us: u64) -> WatchEvent {
        let kind = WatchEventKind::Store { stored: true, is_add: false, ttl, size: 3 };
        WatchEvent { at: (us, 1), connection: us, key: key.into(), kind }
    }

    #[test]
    fn lines_of_both_servers() {
        let text = "ts=12.000345 gid=7 type=item_get key=page%3A1 status=not_found clsid=0 cfd=25 size=0";
        let event = WatchEvent { at: (12_000_345, 7), connection: 25, ..get("page%3A1", false, 0) };
        assert_eq!(WatchLine::parse(text), WatchLine::Request(event));
        let text =
            "ts=13.5001 gid=8 type=item_store key=a status=stored cmd=set ttl=60 clsid=1 cfd=25 size=3\n";
        let event = WatchEvent { at: (13_005_001, 8), connection: 25, ..store("a", 60, 0) };
        assert_eq!(WatchLine::parse(text), WatchLine::Request(event));
        assert_eq!(WatchLine::parse("skipped=12"), WatchLine::Skipped(12));
        assert_eq!(WatchLine::parse("[skipped: 3]"), WatchLine::Skipped(3));
        for odd in [
            "",
            "OK",
            "ts=x type=item_get key=a",
            "ts=1.000001 type=slab key=a",
            "ts=1.1000000 type=item_get key=a",
        ] {
            assert_eq!(WatchLine::parse(odd), WatchLine::Other, "{odd}");
        }
    }

    #[test]
    fn a_herd_is_counted_by_who_would_have_waited() {
        let mut seen = Observations::default();
        let miss = |ms: u64| get("page:1", false, ms * 1000);
        let stored = |ms: u64| store("page:1", 60, ms * 1000 + 1);
        for event in
            [miss(0), miss(100), miss(390), stored(400), stored(450), stored(460), miss(500), stored(600)]
        {
            seen.note(event);
        }
        seen.note(get("page:1", true, 700_000));
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.gets, shape.misses, shape.stores, shape.herds, shape.largest), (5, 4, 4, 1, 3));
        assert_eq!((shape.time_ms(50), shape.time_ms(99)), (Some(101), Some(401)));
        assert_eq!([9, 11, 299, 301].map(|hold_ms| shape.saved_by(hold_ms)), [0, 1, 1, 2]);
        assert_eq!(shape.ttl_min, Some(60));
        assert_eq!(ShapeStats::default().time_ms(50), None);
    }

    #[test]
    fn the_look_up_of_a_store_is_no_get() {
        let mut seen = Observations::default();
        let of = |connection: u64, event: WatchEvent| WatchEvent { connection, ..event };
        for event in [
            of(1, get("page:1", false, 0)),
            of(2, get("page:1", false, 1_000)),
            of(1, get("page:1", false, 100_000)),
            of(1, store("page:1", 0, 100_001)),
            of(2, get("page:1", true, 101_000)),
            of(2, store("page:1", 0, 101_001)),
            // Without a miss before it: no client has computed.
            of(2, get("page:2", false, 200_000)),
            of(2, store("page:2", 0, 200_001)),
            of(3, get("page:1", true, 300_000)),
            of(3, store("page:9", 0, 300_001)),
        ] {
            seen.note(event);
        }
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.gets, shape.misses, shape.stores), (3, 2, 4));
        assert_eq!((seen.gets, seen.misses, seen.lines), (3, 2, 7));
        assert_eq!((&shape.times_us[..], &shape.waits_us[..]), (&[100_001][..], &[99_001][..]));
        assert!(seen.open.is_empty());
    }

    #[test]
    fn a_client_that_looks_again_and_again_is_one() {
        let mut seen = Observations::default();
        let of = |connection: u64, event: WatchEvent| WatchEvent { connection, ..event };
        for n in 0..100 {
            seen.note(of(n % 3, get("page:1", false, n * 10_000)));
        }
        seen.note(of(7, get("page:1", false, 900_000)));
        seen.note(of(7, get("page:1", false, 1_000_000)));
        seen.note(of(7, store("page:1", 0, 1_000_001)));
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.herds, shape.largest), (0, 0), "the others did not compute");
        assert_eq!(shape.times_us, [100_001], "of the one that computed");
        for us in [1_500_000, 1_600_000] {
            seen.note(of(1, get("page:1", true, us)));
            seen.note(of(1, store("page:1", 0, us)));
        }
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.herds, shape.largest), (1, 3), "of a pool: any of them");
        assert_eq!(shape.waits_us, [30_001, 20_001], "from the last look to the first store");
    }

    /// `delete` of what is not there has the line of a miss.
    #[test]
    fn what_is_not_computed_is_no_herd() {
        let mut seen = Observations::default();
        let of = |connection: u64, event: WatchEvent| WatchEvent { connection, ..event };
        for n in 0..20 {
            let at = n * 5_000_000;
            for event in [
                of(2, get("user:1", false, at)),
                of(3, get("user:1", false, at + 3_000_000)),
                of(1, get("user:1", false, at + 4_000_000)),
                of(1, get("user:1", false, at + 4_020_000)),
                of(1, store("user:1", 60, at + 4_020_000)),
                of(2, get("user:1", true, at + 4_500_000)),
            ] {
                seen.note(event);
            }
        }
        let shape = &seen.shapes["user:{}"];
        assert_eq!((shape.herds, shape.waits_us.len(), shape.time_ms(99)), (0, 0, Some(20)));
        // A client whose `add` is refused has computed as well.
        for event in [
            of(5, get("user:2", false, 200_000_000)),
            of(6, get("user:2", false, 200_005_000)),
            of(5, get("user:2", false, 200_020_000)),
            of(5, store("user:2", 60, 200_020_000)),
            of(6, get("user:2", true, 200_025_000)),
            of(
                6,
                WatchEvent {
                    kind: WatchEventKind::Store { stored: false, is_add: true, ttl: 60, size: 3 },
                    ..store("user:2", 60, 200_025_000)
                },
            ),
        ] {
            seen.note(event);
        }
        let shape = &seen.shapes["user:{}"];
        assert_eq!((shape.herds, &shape.waits_us[..]), (1, &[15_000][..]));
    }

    /// Threads of the server write their lines beside each other: a store's own look-up can stand behind
    /// another client's store that it has not seen.
    #[test]
    fn clients_that_store_at_the_same_time_all_count() {
        let mut seen = Observations::default();
        let of = |connection: u64, event: WatchEvent| WatchEvent { connection, ..event };
        for event in [
            of(1, get("page:1", false, 0)),
            of(2, get("page:1", false, 10)),
            of(3, get("page:1", false, 20)),
            of(1, get("page:1", false, 100_000)),
            of(2, get("page:1", false, 100_001)),
            of(1, store("page:1", 60, 100_002)),
            of(3, get("page:1", false, 100_003)),
            of(3, store("page:1", 60, 100_004)),
            of(2, store("page:1", 60, 100_005)),
        ] {
            seen.note(event);
        }
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.herds, shape.largest, &shape.times_us[..]), (1, 3, &[100_002][..]));
        assert_eq!(shape.waits_us, [99_982, 99_992]);
    }

    #[test]
    fn lines_of_several_threads_are_put_in_order() {
        let (mut seen, mut sorter) = (Observations::default(), Sorter::default());
        for event in [
            store("page:1", 0, 100_000),
            store("page:1", 0, 500_000),
            get("page:1", false, 1),
            get("page:1", false, 400_000),
            get("page:1", true, 2_000_000),
        ] {
            sorter.push(WatchLine::Request(event), &mut |event| seen.note(event));
        }
        assert_eq!(seen.gets, 2, "the last one waits");
        sorter.end(&mut |event| seen.note(event));
        assert_eq!(seen.gets, 3);
        assert_eq!(seen.shapes["page:{}"].times_us, [99_999, 100_000]);
    }

    #[test]
    fn keys_that_are_added_at_once_are_locks() {
        let mut seen = Observations::default();
        for n in 0..10_u64 {
            let add = |key, us| WatchEvent {
                kind: WatchEventKind::Store { stored: true, is_add: true, ttl: 1, size: 3 },
                ..store(key, 1, us)
            };
            let at = n * 1_000_000;
            for event in [get("lock:1", false, at), add("lock:1", at + 300)] {
                seen.note(event);
            }
            // As Django's get_or_set does.
            for event in [get("page:1", false, at + 1_000), add("page:1", at + 100_000)] {
                seen.note(event);
            }
        }
        assert!(seen.shapes["lock:{}"].is_lock() && !seen.shapes["page:{}"].is_lock());
        assert!(!ShapeStats::default().is_lock());
    }

    #[test]
    fn shapes_that_are_asked_for_little_give_way() {
        let mut seen = Observations::default();
        for n in 0..3 * SHAPES_MAX as u64 {
            let word: String = n.to_string().bytes().map(|digit| char::from(digit + b'a' - b'0')).collect();
            seen.note(get(&word, false, n));
        }
        for n in 0..100 {
            seen.note(get("page:1", true, n));
        }
        assert_eq!(seen.shapes["page:{}"].gets, 100);
        assert!(seen.shapes.len() <= SHAPES_MAX);
        assert_eq!(seen.shapes.values().map(|shape| shape.gets).sum::<u64>(), seen.gets);
    }

    #[test]
    fn deletes_and_evictions_have_lines() {
        let kind = |text: &str| match WatchLine::parse(text) {
            WatchLine::Request(event) => event.kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            kind("ts=1.000001 gid=2 type=deleted key=a cmd=delete clsid=1 size=5"),
            WatchEventKind::Delete
        );
        assert_eq!(
            kind("ts=1.000001 gid=2 type=eviction key=a fetch=no ttl=-1 la=3 clsid=1 size=5"),
            WatchEventKind::Eviction
        );
        let negative = "ts=1.000001 gid=2 type=item_store key=a status=stored cmd=set ttl=4294967233 clsid=1 cfd=2 size=2";
        assert_eq!(kind(negative), WatchEventKind::Store { stored: true, is_add: false, ttl: 1, size: 2 });
    }

    #[test]
    fn the_look_up_of_a_delete_is_no_get() {
        for connection in [0, 7] {
            let mut seen = Observations::default();
            for event in [
                WatchEvent { connection: 7, ..get("user:7:name", true, 0) },
                WatchEvent { connection: 8, ..get("page:1", true, 1) },
                WatchEvent { connection, kind: WatchEventKind::Delete, ..get("user:7:name", true, 2) },
            ] {
                seen.note(event);
            }
            assert_eq!((seen.gets, seen.together.deletes, seen.lines), (1, 1, 2), "{connection}");
        }
    }

    #[test]
    fn what_frameworks_put_before_keys() {
        for (key, expected) in [
            (":1:page:7", Some(":1:")),
            ("shop.prod:12:a", Some("shop.prod:12:")),
            ("user:123:name", None),
            ("page:7", None),
            ("a b:1:c", None),
            ("", None),
        ] {
            assert_eq!(head(key.as_bytes()), expected, "{key}");
        }
        let mut seen = Observations::default();
        for n in 0..100_u64 {
            seen.note(get(&format!(":1:page:{n}"), true, n));
            seen.note(get(&format!("user:{n}:name"), true, n));
        }
        let shape = &seen.shapes[":{}:page:{}"];
        assert_eq!(
            (&shape.rest[..], &shape.heads[..], shape.many_heads),
            ("page:{}", &[(":1:".into(), 100)][..], false)
        );
        assert!(seen.shapes["user:{}:name"].many_heads);
    }

    #[test]
    fn keys_are_decoded() {
        assert_eq!(decoded("page%3A1%"), b"page:1%");
        assert_eq!(decoded("%zz%00%c3"), b"%zz\0\xc3");
    }

    #[test]
    fn a_miss_that_is_never_filled_is_no_herd() {
        let mut seen = Observations::default();
        seen.note(get("a", false, 0));
        seen.note(get("a", false, 2 * OPEN_US));
        seen.note(store("a", 0, 2 * OPEN_US + 5));
        let shape = &seen.shapes["a"];
        assert_eq!((shape.herds, &shape.times_us[..], shape.ttl_min), (0, &[5][..], None));
    }
}
