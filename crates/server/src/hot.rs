//! Hot keys: the keys and shapes of keys with most requests, bytes and misses, by a sample.
//!
//! Each lane samples turns at random: one in [`EVERY`], and fewer while it has more than [`EVENTS_MAX`]
//! sampled events in a second. All events of a sampled turn are counted in the lane's sketches, each with the
//! number of turns that it stands for. A sketch is Space-Saving: it has a fixed number of counters. A key
//! without a counter replaces the key with the smallest count, and takes over that count as its error
//! (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT
//! 2005). With n counters, every key with more than 1/n of all events has a counter. Its count is never too
//! small, and too large by at most its error. Counts are halved each minute, so that former hot keys fade.
//!
//! # Invariants
//! * A lane does not wait for a reader: it takes no samples while its sketches are read.
//! * A sketch has at most [`KEYS`] or [`SHAPES`] counters.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Mutex;

use cattlegrid_engine::{Event, EventKind, Looker};

/// At first, one turn in this many is sampled.
pub(crate) const EVERY: u32 = 64;
/// The number of sampled events of a lane in a second beyond which it halves the share of sampled turns.
const EVENTS_MAX: u32 = 2_000;
/// At least one turn in this many is sampled.
const EVERY_MAX: u32 = EVERY << 10;
/// Counters for keys, in the sketch by requests and in the sketch by bytes.
const KEYS: usize = 256;
/// Counters for shapes.
const SHAPES: usize = 128;
/// The time between two halvings of the counts, in milliseconds.
const MINUTE_MS: u64 = 60_000;
/// Misses of a key within this time, in milliseconds, without a store between them, count as a herd.
const HERD_MS: u64 = 1_000;

/// Chooses the turns of a lane that are sampled, at random, so that clients cannot predict them.
#[derive(Debug)]
pub(crate) struct TurnSampler {
    /// Turns until the next sample.
    left: u32,
    every: u32,
    random: u64,
    second: u32,
    events: u32,
}

impl TurnSampler {
    /// A sampler with this seed, which must not be 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self { left: EVERY, every: EVERY, random: seed | 1, second: 0, events: 0 }
    }

    /// The number of turns that the next turn stands for; 0: it is not sampled.
    #[inline]
    pub(crate) fn next(&mut self) -> u32 {
        self.left -= 1;
        if self.left > 0 { 0 } else { self.next_gap() }
    }

    #[cold]
    fn next_gap(&mut self) -> u32 {
        // Xorshift: the choice must not be in step with a period of the clients.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // Evenly distributed from 1 to twice the mean less 1.
        self.left = 1 + ((self.random >> 32) % u64::from(2 * self.every - 1)) as u32;
        self.every
    }

    /// Notes that a sampled turn had this many events in `second`.
    pub(crate) fn note_events(&mut self, events: usize, second: u32) {
        if second != self.second {
            let is_calm = self.events < EVENTS_MAX / 4 && self.every > EVERY;
            (self.second, self.events) = (second, 0);
            if is_calm {
                self.every /= 2;
            }
        }
        let before = self.events / EVENTS_MAX;
        self.events = self.events.saturating_add(u32::try_from(events).unwrap_or(u32::MAX));
        if self.events / EVENTS_MAX > before {
            self.every = (self.every * 2).min(EVERY_MAX);
        }
    }
}

/// The counts of one key or shape.
#[derive(Debug, Clone, Default)]
pub struct KeyCounts {
    /// The key, or its shape.
    pub text: Box<[u8]>,
    /// The measure of the sketch: requests or bytes.
    pub count: u64,
    /// The most by which `count` may be too large.
    pub error: u64,
    /// Gets of the key.
    pub gets: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Values stored.
    pub stores: u64,
    /// Bytes read and stored.
    pub bytes: u64,
    /// Misses within a second after another connection's miss, before the key was stored.
    pub herd_misses: u64,
    /// The time and the connection of the last miss; None once the key is stored.
    missed: Option<(u64, i32)>,
}

/// Space-Saving: counters for the most frequent of many keys.
///
/// With n counters, every key with more than 1/n of the total weight has one. Its count is never too
/// small, and too large by at most its error.
#[derive(Debug)]
pub struct Sketch {
    entries: Vec<KeyCounts>,
    places: HashMap<Box<[u8]>, usize>,
    most: usize,
}

impl Sketch {
    /// A sketch with `most` counters, at least 1.
    pub fn new(most: usize) -> Self {
        Self { entries: Vec::new(), places: HashMap::new(), most }
    }

    /// Adds `weight` to a key's counter and returns it.
    pub fn count(&mut self, text: &[u8], weight: u64) -> &mut KeyCounts {
        let at = match self.places.get(text) {
            Some(at) => *at,
            None => self.take(text),
        };
        let entry = &mut self.entries[at];
        entry.count += weight;
        entry
    }

    /// The place of a counter for a key that has none.
    fn take(&mut self, text: &[u8]) -> usize {
        let new = KeyCounts { text: text.into(), ..KeyCounts::default() };
        let at = if self.entries.len() < self.most {
            self.entries.push(new);
            self.entries.len() - 1
        } else {
            let least = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.count);
            let at = least.map_or(0, |(at, _)| at);
            let count = self.entries[at].count;
            let old = std::mem::replace(&mut self.entries[at], KeyCounts { count, error: count, ..new });
            self.places.remove(&old.text);
            at
        };
        self.places.insert(text.into(), at);
        at
    }

    /// All counters, unordered.
    pub fn entries(&self) -> &[KeyCounts] {
        &self.entries
    }

    /// Halves all counts, so that formerly frequent keys fade.
    pub fn halve(&mut self) {
        for entry in &mut self.entries {
            let KeyCounts { count, error, gets, misses, stores, bytes, herd_misses, .. } = entry;
            for number in [count, error, gets, misses, stores, bytes, herd_misses] {
                *number /= 2;
            }
        }
    }
}

/// The sketches of a lane.
#[derive(Debug)]
pub(crate) struct Hot(Mutex<Sketches>);

#[derive(Debug)]
struct Sketches {
    by_requests: Sketch,
    by_bytes: Sketch,
    shapes: Sketch,
    halved_ms: u64,
    events: u64,
}

impl Default for Hot {
    fn default() -> Self {
        Self(Mutex::new(Sketches {
            by_requests: Sketch::new(KEYS),
            by_bytes: Sketch::new(KEYS),
            shapes: Sketch::new(SHAPES),
            halved_ms: 0,
            events: 0,
        }))
    }
}

impl Hot {
    /// Counts the events of a turn of the connection `fd`, which stands for `weight` turns.
    pub(crate) fn count<'e>(
        &self,
        events: impl Iterator<Item = &'e Event>,
        (fd, weight): (i32, u32),
        now_ms: u64,
    ) {
        let Ok(mut sketches) = self.0.try_lock() else { return };
        let Sketches { by_requests, by_bytes, shapes, halved_ms, events: counted } = &mut *sketches;
        if now_ms >= *halved_ms + MINUTE_MS {
            *halved_ms = now_ms;
            [&mut *by_requests, &mut *by_bytes, &mut *shapes].into_iter().for_each(Sketch::halve);
        }
        let weight = u64::from(weight);
        for event in events {
            let Some(seen) = KeyEvent::of(&event.kind, fd) else { continue };
            *counted += 1;
            let bytes = weight.saturating_mul(seen.bytes);
            let of_key = by_requests.count(&event.key, weight);
            let is_herd = of_key.is_herd(&seen, now_ms);
            of_key.add(&seen, weight, is_herd);
            if bytes > 0 {
                by_bytes.count(&event.key, bytes).add(&seen, weight, false);
            }
            // Misses of two keys of a shape do not make a herd.
            shapes.count(shape(&event.key).as_bytes(), weight).add(&seen, weight, is_herd);
        }
    }
}

/// The data of an event that are counted for its key.
struct KeyEvent {
    fd: i32,
    is_get: bool,
    is_miss: bool,
    is_store: bool,
    bytes: u64,
}

impl KeyEvent {
    fn of(kind: &EventKind, fd: i32) -> Option<Self> {
        match kind {
            EventKind::Get { status, size, by: Looker::Get | Looker::MetaGet } => Some(Self {
                fd,
                is_get: true,
                is_miss: *status != "found",
                is_store: false,
                bytes: *size as u64,
            }),
            EventKind::Get { by: Looker::Delete | Looker::Other, .. } => {
                Some(Self { fd, is_get: false, is_miss: false, is_store: false, bytes: 0 })
            }
            EventKind::Store { status, size, .. } => Some(Self {
                fd,
                is_get: false,
                is_miss: false,
                is_store: *status == "stored",
                bytes: *size as u64,
            }),
            _ => None,
        }
    }
}

impl KeyCounts {
    fn add(&mut self, seen: &KeyEvent, weight: u64, is_herd: bool) {
        self.gets += weight * u64::from(seen.is_get);
        self.misses += weight * u64::from(seen.is_miss);
        self.herd_misses += weight * u64::from(is_herd);
        self.stores += weight * u64::from(seen.is_store);
        self.bytes = self.bytes.saturating_add(weight.saturating_mul(seen.bytes));
    }

    /// Whether this is a miss of a key that another connection has just missed. Remembers the miss for the
    /// next call.
    fn is_herd(&mut self, seen: &KeyEvent, now_ms: u64) -> bool {
        let before = self.missed;
        if seen.is_miss {
            self.missed = Some((now_ms, seen.fd));
        } else if seen.is_store {
            self.missed = None;
        }
        seen.is_miss && before.is_some_and(|(ms, fd)| now_ms < ms + HERD_MS && fd != seen.fd)
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.error += other.error;
        self.gets += other.gets;
        self.misses += other.misses;
        self.stores += other.stores;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.herd_misses += other.herd_misses;
    }
}

/// The largest counters of all lanes' sketches, in descending order.
#[derive(Debug, Default)]
pub(crate) struct HottestKeys {
    /// Events counted since the start.
    pub(crate) events: u64,
    pub(crate) by_requests: Vec<KeyCounts>,
    pub(crate) by_bytes: Vec<KeyCounts>,
    pub(crate) shapes: Vec<KeyCounts>,
}

impl HottestKeys {
    /// The `most` largest counters of each kind.
    pub(crate) fn of<'h>(lanes: impl Iterator<Item = &'h Hot>, most: usize) -> Self {
        let mut all: [HashMap<Box<[u8]>, KeyCounts>; 3] = Default::default();
        let mut events = 0;
        for Hot(lane) in lanes {
            let copied = {
                let sketches = lane.lock().expect("nobody panics with it held");
                events += sketches.events;
                [&sketches.by_requests, &sketches.by_bytes, &sketches.shapes].map(|one| one.entries.clone())
            };
            for (all, own) in all.iter_mut().zip(copied) {
                for entry in own {
                    all.entry(entry.text.clone()).and_modify(|before| before.merge(&entry)).or_insert(entry);
                }
            }
        }
        let [by_requests, by_bytes, shapes] = all.map(|all| {
            let mut sorted: Vec<KeyCounts> = all.into_values().collect();
            // A count that may consist of its error alone says nothing.
            sorted.retain(|entry| entry.count > entry.error);
            sorted.sort_by(|a, b| (Reverse(a.count), &a.text).cmp(&(Reverse(b.count), &b.text)));
            sorted.truncate(most);
            sorted
        });
        Self { events, by_requests, by_bytes, shapes }
    }
}

/// The longest part of a key that counts as a word.
const WORD_MAX: usize = 24;

/// A key in which `{}` replaces each part that seems to name one of many: a part with a digit, a part longer
/// than a word, or a part that is not text. Parts are separated by `:`, `/`, `.`, `-`, `_` and `|`.
pub fn shape(key: &[u8]) -> String {
    let mut shape = String::new();
    let is_separator = |byte: &u8| matches!(byte, b':' | b'/' | b'.' | b'-' | b'_' | b'|');
    let mut rest = key;
    loop {
        let end = rest.iter().position(is_separator).unwrap_or(rest.len());
        let part = &rest[..end];
        if part.len() <= WORD_MAX && part.iter().all(u8::is_ascii_alphabetic) {
            shape.extend(part.iter().map(|byte| char::from(*byte)));
        } else if !(shape.ends_with("{}-") || shape.ends_with("{}_") || shape.ends_with("{}.")) {
            shape.push_str("{}");
        } else {
            // A UUID, a date or a number with a fraction becomes one `{}`.
            shape.pop();
        }
        let Some(separator) = rest.get(end) else { return shape };
        shape.push(char::from(*separator));
        rest = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(key: &str, status: &'static str, size: usize) -> Event {
        let kind = EventKind::Get { status, size, by: Looker::Get };
        Event { key: key.as_bytes().into(), kind }
    }

    fn store(key: &str) -> Event {
        let kind = EventKind::Store { status: "stored", command: "set", ttl: 0, size: 7, classic: true };
        Event { key: key.as_bytes().into(), kind }
    }

    fn name(counted: &KeyCounts) -> String {
        String::from_utf8_lossy(&counted.text).into_owned()
    }

    #[test]
    fn a_frequent_key_is_found_among_many_and_its_count_is_right_within_its_error() {
        let hot = Hot::default();
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            random >> 33
        };
        for _ in 0..200 {
            // A tenth for one key, a twentieth for another, the rest for a million.
            let events: Vec<Event> = (0..100)
                .map(|_| match next() % 20 {
                    0 | 1 => get("page:first", "found", 10),
                    2 => get("page:second", "not_found", 0),
                    _ => get(&format!("user:{}", next() % 1_000_000), "found", 1000),
                })
                .collect();
            hot.count(events.iter(), (1, 64), 5);
        }
        let hottest = HottestKeys::of([&hot].into_iter(), 10);
        let [first, second, ..] = &hottest.by_requests[..] else { panic!("{hottest:?}") };
        assert_eq!([name(first), name(second)], ["page:first", "page:second"]);
        for (counted, share) in [(first, 10), (second, 20)] {
            let expected = 64 * 20_000 / share;
            assert!(counted.count.abs_diff(expected) < expected / 5 + counted.error, "{counted:?}");
            assert!(
                counted.gets <= counted.count && counted.count - counted.error <= counted.gets,
                "{counted:?}"
            );
        }
        assert_eq!((first.misses, second.misses), (0, second.gets));
        assert_eq!(hottest.events, 20_000);
        let shapes: Vec<String> = hottest.shapes.iter().map(name).collect();
        assert_eq!(shapes, ["user:{}", "page:first", "page:second"]);
        let entries = &hot.0.lock().unwrap().by_requests;
        assert_eq!((entries.entries.len(), entries.places.len()), (KEYS, KEYS));
        for (text, at) in &entries.places {
            assert_eq!(*entries.entries[*at].text, **text);
        }
    }

    #[test]
    fn bytes_find_keys_that_requests_do_not() {
        let (one, two) = (Hot::default(), Hot::default());
        let small: Vec<Event> = (0..100).map(|_| get("small", "found", 1)).collect();
        one.count(small.iter(), (1, 64), 5);
        two.count([get("large", "found", 1_000_000)].iter(), (1, 64), 5);
        let hottest = HottestKeys::of([&one, &two].into_iter(), 1);
        assert_eq!(name(&hottest.by_requests[0]), "small");
        assert_eq!((name(&hottest.by_bytes[0]), hottest.by_bytes[0].count), ("large".to_owned(), 64_000_000));
    }

    #[test]
    fn a_herd_is_misses_that_no_store_is_between() {
        let hot = Hot::default();
        let miss = || get("page:1", "not_found", 0);
        for (fd, events, ms) in [
            (1, vec![miss()], 99),
            (2, vec![miss()], 100),
            (1, vec![miss()], 100),
            // One client that looks again and again is no herd.
            (1, vec![miss(), miss()], 101),
            (1, vec![store("page:1"), miss()], 200),
            (2, vec![miss()], 200 + HERD_MS),
            (1, vec![get("page:1", "found", 5), miss()], 300 + HERD_MS),
        ] {
            hot.count(events.iter(), (fd, 64), ms);
        }
        let hottest = HottestKeys::of([&hot].into_iter(), 9);
        let key = &hottest.by_requests[0];
        assert_eq!((key.misses, key.herd_misses, key.stores), (8 * 64, 3 * 64, 64));
        assert_eq!(hottest.shapes[0].herd_misses, 3 * 64);
        for (fd, key) in [(1, "user:1"), (2, "user:2"), (3, "user:3")] {
            hot.count([get(key, "not_found", 0)].iter(), (fd, 64), 9_000);
        }
        let hottest = HottestKeys::of([&hot].into_iter(), 9);
        let shape = hottest.shapes.iter().find(|shape| name(shape) == "user:{}").unwrap();
        assert_eq!((shape.misses, shape.herd_misses), (3 * 64, 0), "of one key each");
    }

    #[test]
    fn what_was_hot_fades() {
        let hot = Hot::default();
        hot.count((0..100).map(|_| get("old", "found", 1)).collect::<Vec<_>>().iter(), (1, 64), 1);
        for minute in 1..=8 {
            hot.count([get("new", "found", 1)].iter(), (1, 64 * 10), minute * MINUTE_MS);
        }
        let hottest = HottestKeys::of([&hot].into_iter(), 2);
        assert_eq!(name(&hottest.by_requests[0]), "new");
        assert_eq!(hottest.by_requests[1].count, 6400 >> 8);
    }

    #[test]
    fn one_turn_in_64_at_random_and_fewer_under_load() {
        let mut sampler = TurnSampler::new(7);
        let stands: u32 = (0..640_000).map(|_| sampler.next()).sum();
        assert!(stands.abs_diff(640_000) < 32_000, "{stands}");
        let mut gaps = std::collections::BTreeSet::new();
        let mut gap = 0;
        for _ in 0..100_000 {
            gap += 1;
            if sampler.next() > 0 {
                gaps.insert(std::mem::take(&mut gap));
            }
        }
        assert!(gaps.len() > 100 && gaps.iter().all(|gap| (1..=127).contains(gap)), "{gaps:?}");
        sampler.note_events(2 * EVENTS_MAX as usize, 1);
        (0..1000).for_each(|_| _ = sampler.next());
        assert!((0..1000).map(|_| sampler.next()).any(|stands| stands == 2 * EVERY), "half as many");
        for second in 2..9 {
            sampler.note_events(1, second);
        }
        (0..1000).for_each(|_| _ = sampler.next());
        assert!((0..1000).map(|_| sampler.next()).any(|stands| stands == EVERY), "as many again");
    }

    #[test]
    fn shapes() {
        for (key, expected) in [
            ("page:42", "page:{}"),
            ("page:42:head", "page:{}:head"),
            ("user-17-x", "user-{}-x"),
            (":1:views.decorators.cache.cache_page.GET.0a1b", ":{}:views.decorators.cache.cache_page.GET.{}"),
            ("s:550e8400-e29b-41d4-a716-446655440000", "s:{}"),
            ("day:2026-11-28", "day:{}"),
            ("session/abcdefghijklmnopqrstuvwxyzabcdef", "session/{}"),
            ("config", "config"),
            ("", ""),
            ("a\u{fc}b:x", "{}:x"),
        ] {
            assert_eq!(shape(key.as_bytes()), expected, "{key}");
        }
    }
}
