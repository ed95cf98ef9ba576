//! Hot keys: what `watch fetchers mutations` says of one second, counted in a sketch.
//!
//! The server writes a line for each request while it is watched, and leaves out those that its reader is too
//! slow for. It is therefore watched for [`WATCHED`] and then left alone for [`PAUSED`], and only while the
//! view is open. Counts are halved before each look, so that they tell of the last ones.

use std::cmp::Reverse;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::time::Duration;

use cattlegrid_server::{Sketch, shape};
use percent_encoding::percent_decode_str;

use super::reply::{plain, read_line, wrong};

/// How long the server is watched at a time.
pub(super) const WATCHED: Duration = Duration::from_secs(1);
/// Pause between two watches.
pub(super) const PAUSED: Duration = Duration::from_secs(3);
/// Most lines of a watch, which take about a tenth of a second to count.
const LINES_MAX: u64 = 100_000;
/// The number of counters for keys.
const KEYS: usize = 512;
/// The number of counters for shapes.
const SHAPES: usize = 128;

/// Counts of a key or a shape within a second.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HotKey {
    pub(super) key: String,
    pub(super) requests: f64,
    /// The most by which `requests` may be too large.
    pub(super) error: f64,
    pub(super) gets: f64,
    pub(super) misses: f64,
    pub(super) stores: f64,
    pub(super) bytes: f64,
}

/// The most frequent keys and shapes of all watches so far, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Hottest {
    pub(super) keys: Vec<HotKey>,
    pub(super) shapes: Vec<HotKey>,
    /// Lines that were counted in the last watch.
    pub(super) seen: u64,
    /// Lines of the last watch that the server has left out.
    pub(super) skipped: u64,
}

/// The sketches of all watches.
#[derive(Debug)]
pub(super) struct KeySketches {
    keys: Sketch,
    shapes: Sketch,
    /// The seconds of all watches. They are halved when the counts are.
    seconds: f64,
    seen: u64,
    skipped: u64,
}

impl KeySketches {
    pub(super) fn new() -> Self {
        Self { keys: Sketch::new(KEYS), shapes: Sketch::new(SHAPES), seconds: 0.0, seen: 0, skipped: 0 }
    }

    pub(super) fn begin(&mut self) {
        self.keys.halve();
        self.shapes.halve();
        self.seconds /= 2.0;
        (self.seen, self.skipped) = (0, 0);
    }

    /// Counts a line of `watch`.
    pub(super) fn note(&mut self, line: &str) {
        let line = line.trim();
        // memcached: `[skipped: 3]`; Cattlegrid: `skipped=3`.
        let skipped =
            line.strip_prefix("skipped=").or_else(|| line.strip_prefix("[skipped: ")?.strip_suffix(']'));
        if let Some(count) = skipped.and_then(|count| count.trim().parse::<u64>().ok()) {
            self.skipped += count;
            return;
        }
        let (mut kind, mut key, mut status, mut size) = ("", None, "", 0);
        for (name, value) in line.split(' ').filter_map(|field| field.split_once('=')) {
            match name {
                "type" => kind = value,
                "key" => key = Some(value),
                "status" => status = value,
                "size" => size = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        let Some(key) = key.filter(|_| matches!(kind, "item_get" | "item_store")) else { return };
        self.seen += 1;
        let key: Vec<u8> = percent_decode_str(key).collect();
        for (sketch, text) in [(&mut self.keys, &key[..]), (&mut self.shapes, shape(&key).as_bytes())] {
            let counted = sketch.count(text, 1);
            let is_get = kind == "item_get";
            counted.gets += u64::from(is_get);
            counted.misses += u64::from(is_get && status != "found");
            counted.stores += u64::from(!is_get && status == "stored");
            counted.bytes = counted.bytes.saturating_add(size);
        }
    }

    /// Adds requests of this watch that had no line.
    pub(super) fn left_out(&mut self, requests: u64) {
        self.skipped += requests;
    }

    /// Ends a watch of this many seconds.
    pub(super) fn end(&mut self, seconds: f64) -> Hottest {
        self.seconds += seconds.max(0.001);
        // Lines that the server has left out are assumed to have the same distribution.
        let known = if self.seen == 0 { 1.0 } else { (self.seen + self.skipped) as f64 / self.seen as f64 };
        let per_second = known / self.seconds;
        // A count that is mostly error tells nothing: of many equally frequent keys none is hot.
        let list = |sketch: &Sketch| {
            let mut sorted: Vec<_> =
                sketch.entries().iter().filter(|entry| entry.count / 2 >= entry.error).collect();
            sorted.sort_by(|a, b| (Reverse(a.count), &a.text).cmp(&(Reverse(b.count), &b.text)));
            let of = |count: u64| count as f64 * per_second;
            sorted
                .iter()
                .take(200)
                .map(|entry| HotKey {
                    key: plain(&entry.text),
                    requests: of(entry.count),
                    error: of(entry.error),
                    gets: of(entry.gets),
                    misses: of(entry.misses),
                    stores: of(entry.stores),
                    bytes: of(entry.bytes),
                })
                .collect()
        };
        Hottest { keys: list(&self.keys), shapes: list(&self.shapes), seen: self.seen, skipped: self.skipped }
    }
}

/// Watches over this connection until `is_over` returns true. It is called after each line, and after each
/// pause.
///
/// # Errors
/// The connection's error, or the server refuses watchers.
pub(super) fn watch(
    stream: impl Read + Write,
    counts: &mut KeySketches,
    mut is_over: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, stream);
    reader.get_mut().write_all(b"watch fetchers mutations\r\n")?;
    reader.get_mut().flush()?;
    match plain(&read_line(&mut reader)?).as_str() {
        "OK" => {}
        other => return Err(wrong(&format!("it does not let itself be watched: {other}"))),
    }
    let mut line = Vec::new();
    while !is_over() && counts.seen < LINES_MAX {
        match (&mut reader).take(4096).read_until(b'\n', &mut line) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                counts.note(&String::from_utf8_lossy(&line));
                line.clear();
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_servers_are_counted_in_a_second() {
        let mut counts = KeySketches::new();
        counts.begin();
        for line in [
            "ts=1795936228.1 gid=1 type=item_get key=page%3A1 status=found clsid=1 cfd=20 size=100",
            "ts=1795936228.2 gid=2 type=item_get key=page%3A1 status=not_found clsid=0 cfd=20 size=0",
            "ts=1795936228.3 gid=3 type=item_store key=page%3A1 status=stored cmd=set ttl=0 clsid=1 cfd=20 size=50",
            "ts=1795936228.4 gid=4 type=item_get key=b%1B%5B2J status=found cfd=1 size=1",
            "skipped=4",
            "ts=1 gid=5 type=conn_new cfd=3",
        ] {
            counts.note(line);
        }
        counts.left_out(0);
        let hottest = counts.end(2.0);
        assert_eq!((hottest.seen, hottest.skipped), (4, 4));
        let [first, second] = &hottest.keys[..] else { panic!("{hottest:?}") };
        // Half of all lines were left out, and they came within two seconds.
        assert_eq!((first.key.as_str(), first.requests, first.gets), ("page:1", 3.0, 2.0));
        assert_eq!((first.misses, first.stores, first.bytes), (1.0, 1.0, 150.0));
        assert_eq!(second.key, "b%1B[2J");
        assert_eq!(hottest.shapes[0].key, "page:{}");
        counts.begin();
        assert_eq!(
            super::super::figures::rate(Some(counts.end(1.0).keys[0].requests)),
            "0.5",
            "one of three, halved, in two seconds"
        );
    }

    #[test]
    fn a_million_keys_take_a_bounded_sketch() {
        let mut counts = KeySketches::new();
        for number in 0..20_000 {
            counts.note(&format!("type=item_get key=k{number} status=found size=1"));
            counts.note("type=item_get key=hot status=found size=1");
        }
        let hottest = counts.end(1.0);
        let keys: Vec<&str> = hottest.keys.iter().map(|key| key.key.as_str()).collect();
        assert_eq!(keys, ["hot"]);
        assert!(counts.keys.entries().len() == KEYS);
    }
}
