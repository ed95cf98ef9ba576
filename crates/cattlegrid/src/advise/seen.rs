//! What `advise` has seen of a server's traffic: gets, misses and stores, by the shape of their keys.
//!
//! A computation is the time from a miss to the store of its key. Misses of the same key in that time are a herd: their clients compute the same. What a
//! rule would have saved are those misses of a herd that would have waited for at most its `hold`.

use std::collections::HashMap;

use cattlegrid_server::shape;

/// Keys with open misses that are kept; misses of further ones are not followed.
const OPEN_MAX: usize = 200_000;
/// What keys of further shapes count as.
pub(super) const OTHER: &str = "other";
/// Shapes that are kept apart.
const SHAPES_MAX: usize = 10_000;
/// Times and waits that are kept of a shape.
const TIMES_MAX: usize = 20_000;
/// A miss that is not filled within this time, in microseconds, was not computed.
const OPEN_US: u64 = 60_000_000;

/// What one line of `watch` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line<'l> {
    Get {
        key: &'l str,
        hit: bool,
        us: u64,
    },
    Store {
        key: &'l str,
        stored: bool,
        ttl: u64,
        us: u64,
    },
    /// Lines that are missing here, since they came too fast.
    Skipped(u64),
    Other,
}

impl<'l> Line<'l> {
    pub(super) fn parse(line: &'l str) -> Self {
        let line = line.trim();
        // memcached: `[skipped: 3]`; Cattlegrid: `skipped=3`.
        let skipped =
            line.strip_prefix("skipped=").or_else(|| line.strip_prefix("[skipped: ")?.strip_suffix(']'));
        if let Some(count) = skipped.and_then(|count| count.trim().parse().ok()) {
            return Self::Skipped(count);
        }
        let (mut us, mut kind, mut key, mut status, mut ttl) = (None, "", None, "", 0);
        for (name, value) in line.split(' ').filter_map(|field| field.split_once('=')) {
            match name {
                "ts" => us = micros(value),
                "type" => kind = value,
                "key" => key = Some(value),
                "status" => status = value,
                "ttl" => ttl = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        let (Some(us), Some(key)) = (us, key) else { return Self::Other };
        match kind {
            "item_get" => Self::Get { key, hit: status == "found", us },
            "item_store" => Self::Store { key, stored: status == "stored", ttl, us },
            _ => Self::Other,
        }
    }
}

/// Seconds with six places.
fn micros(text: &str) -> Option<u64> {
    let (seconds, part) = text.split_once('.')?;
    let (seconds, part): (u64, u64) = (seconds.parse().ok()?, part.get(..6)?.parse().ok()?);
    Some(seconds * 1_000_000 + part)
}

/// Of a shape.
#[derive(Debug, Default)]
pub(super) struct Shape {
    pub(super) gets: u64,
    pub(super) misses: u64,
    pub(super) stores: u64,
    /// Of stores, the shortest time to live, in seconds; None: all without.
    pub(super) ttl_min: Option<u64>,
    /// From misses to stores, in microseconds, of first misses.
    pub(super) times_us: Vec<u64>,
    /// Until the store, in microseconds, of all further misses of a herd.
    pub(super) waits_us: Vec<u64>,
    pub(super) herds: u64,
    /// Clients of the largest herd.
    pub(super) largest: u64,
}

/// A key that was missed and not stored yet.
#[derive(Debug)]
struct Open {
    first_us: u64,
    others_us: Vec<u64>,
}

/// All that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) lines: u64,
    pub(super) skipped: u64,
    pub(super) gets: u64,
    pub(super) misses: u64,
    pub(super) shapes: HashMap<String, Shape>,
    open: HashMap<String, Open>,
}

impl Seen {
    pub(super) fn note(&mut self, line: Line<'_>) {
        match line {
            Line::Skipped(count) => self.skipped += count,
            Line::Other => {}
            Line::Get { key, hit, us } => {
                self.lines += 1;
                self.gets += 1;
                let shape = self.shape(key);
                shape.gets += 1;
                shape.misses += u64::from(!hit);
                if !hit {
                    self.misses += 1;
                    self.missed(key, us);
                }
            }
            Line::Store { key, stored, ttl, us } => {
                self.lines += 1;
                if stored {
                    self.stored(key, ttl, us);
                }
            }
        }
    }

    fn missed(&mut self, key: &str, us: u64) {
        let has_room = self.open.len() < OPEN_MAX;
        match self.open.get_mut(key) {
            Some(open) if us.saturating_sub(open.first_us) <= OPEN_US => open.others_us.push(us),
            Some(open) => *open = Open { first_us: us, others_us: Vec::new() },
            None if has_room => {
                self.open.insert(key.to_owned(), Open { first_us: us, others_us: Vec::new() });
            }
            None => {}
        }
    }

    fn stored(&mut self, key: &str, ttl: u64, us: u64) {
        let open = self.open.remove(key).filter(|open| us.saturating_sub(open.first_us) <= OPEN_US);
        let shape = self.shape(key);
        shape.stores += 1;
        if ttl > 0 {
            shape.ttl_min = Some(shape.ttl_min.map_or(ttl, |before| before.min(ttl)));
        }
        let Some(open) = open else { return };
        if shape.times_us.len() < TIMES_MAX {
            shape.times_us.push(us.saturating_sub(open.first_us));
        }
        if !open.others_us.is_empty() {
            shape.herds += 1;
            shape.largest = shape.largest.max(open.others_us.len() as u64 + 1);
            let room = TIMES_MAX.saturating_sub(shape.waits_us.len());
            shape.waits_us.extend(open.others_us.iter().take(room).map(|at| us.saturating_sub(*at)));
        }
    }

    fn shape(&mut self, key: &str) -> &mut Shape {
        let mut name = shape(&decoded(key));
        if self.shapes.len() >= SHAPES_MAX && !self.shapes.contains_key(&name) {
            OTHER.clone_into(&mut name);
        }
        self.shapes.entry(name).or_default()
    }
}

/// A key as it is: in lines of `watch` what is not plain stands as `%` and two digits.
fn decoded(key: &str) -> Vec<u8> {
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

impl Shape {
    /// Time of a computation in milliseconds, that this share of them does not exceed; None: none was seen.
    pub(super) fn time_ms(&self, percent: usize) -> Option<u64> {
        let mut times = self.times_us.clone();
        times.sort_unstable();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        Some(times.get(at)?.div_ceil(1000))
    }

    /// Computations that a hold of this many milliseconds would have saved.
    pub(super) fn saved_by(&self, hold_ms: u64) -> u64 {
        self.waits_us.iter().filter(|us| **us <= hold_ms * 1000).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_servers() {
        let get = "ts=12.000345 gid=7 type=item_get key=page%3A1 status=not_found clsid=0 cfd=25 size=0";
        assert_eq!(Line::parse(get), Line::Get { key: "page%3A1", hit: false, us: 12_000_345 });
        let store =
            "ts=13.5000001 gid=8 type=item_store key=a status=stored cmd=set ttl=60 clsid=1 cfd=25 size=3\n";
        assert_eq!(Line::parse(store), Line::Store { key: "a", stored: true, ttl: 60, us: 13_500_000 });
        assert_eq!(Line::parse("skipped=12"), Line::Skipped(12));
        assert_eq!(Line::parse("[skipped: 3]"), Line::Skipped(3));
        for odd in [
            "",
            "OK",
            "ts=x type=item_get key=a",
            "ts=1.000001 type=eviction key=a",
            "ts=1.1 type=item_get key=a",
        ] {
            assert_eq!(Line::parse(odd), Line::Other, "{odd}");
        }
    }

    #[test]
    fn a_herd_is_counted_by_who_would_have_waited() {
        let mut seen = Seen::default();
        let miss = |ms: u64| Line::Get { key: "page:1", hit: false, us: ms * 1000 };
        let store = |ms: u64| Line::Store { key: "page:1", stored: true, ttl: 60, us: ms * 1000 };
        for line in [miss(0), miss(100), miss(390), store(400), store(450), miss(500), store(600)] {
            seen.note(line);
        }
        seen.note(Line::Get { key: "page:1", hit: true, us: 700_000 });
        let shape = &seen.shapes["page:{}"];
        assert_eq!((shape.gets, shape.misses, shape.stores, shape.herds, shape.largest), (5, 4, 3, 1, 3));
        assert_eq!((shape.time_ms(50), shape.time_ms(99)), (Some(100), Some(400)));
        assert_eq!([9, 10, 299, 300].map(|hold_ms| shape.saved_by(hold_ms)), [0, 1, 1, 2]);
        assert_eq!(shape.ttl_min, Some(60));
        assert_eq!(Shape::default().time_ms(50), None);
    }

    #[test]
    fn keys_are_decoded() {
        assert_eq!(decoded("page%3A1%"), b"page:1%");
        assert_eq!(decoded("%zz%00%c3"), b"%zz\0\xc3");
    }

    #[test]
    fn a_miss_that_is_never_filled_is_no_herd() {
        let mut seen = Seen::default();
        seen.note(Line::Get { key: "a", hit: false, us: 0 });
        seen.note(Line::Get { key: "a", hit: false, us: 2 * OPEN_US });
        seen.note(Line::Store { key: "a", stored: true, ttl: 0, us: 2 * OPEN_US + 5 });
        let shape = &seen.shapes["a"];
        assert_eq!((shape.herds, &shape.times_us[..], shape.ttl_min), (0, &[5][..], None));
    }
}
