//! `lru_crawler metadump all`: what a server has stored, by the shape of its keys.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::thread;
use std::time::Duration;

use cattlegrid_server::shape;
use cattlegrid_server::time::nanos;

use super::link::{PATIENCE, WatchedServer, is_timeout, problem_of};
use super::observations::{OTHER, decoded};

/// Longest time for reading a dump. A server is not harmed when its reader leaves.
pub(super) const TIME_MAX: Duration = Duration::from_secs(10);
/// Asks for a dump.
const DUMP: &[u8] = b"lru_crawler metadump all\r\n";
/// Most items that are read.
const ITEMS_MAX: u64 = 5_000_000;
/// Most shapes that are counted apart; further ones count as [`OTHER`].
const SHAPES_MAX: usize = 10_000;
/// Time until the next question while the server makes another client's dump.
const BUSY_NAP: Duration = Duration::from_millis(100);
/// Longest line in bytes.
const LINE_MAX: u64 = 4096;

/// An item as a line of the dump shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DumpItem<'a> {
    /// The key as the dump's line has it, with its escapes.
    pub(super) key: &'a str,
    /// When it expires, in seconds since 1970; None: never.
    pub(super) expires: Option<u64>,
    /// When it was last accessed, in seconds since 1970.
    pub(super) accessed: u64,
    pub(super) fetched: bool,
    /// The item's bytes, with header and key.
    pub(super) size: u64,
}

impl<'a> DumpItem<'a> {
    /// Parses a line. None: the line is not an item's.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        let mut item = Self { key: "", expires: None, accessed: 0, fetched: false, size: 0 };
        for (name, value) in line.split_ascii_whitespace().filter_map(|field| field.split_once('=')) {
            match name {
                "key" => item.key = value,
                "exp" => item.expires = value.parse().ok().filter(|seconds| *seconds > 0),
                "la" => item.accessed = value.parse().ok()?,
                "fetch" => item.fetched = value == "yes",
                "size" => item.size = value.parse().ok()?,
                _ => {}
            }
        }
        (!item.key.is_empty()).then_some(item)
    }
}

/// How far a dump was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DumpExtent {
    All,
    /// The time or the number of items was used up.
    Part,
}

/// Reads the dump for at most this long, or until `stops` returns true.
///
/// # Errors
/// Why the server gives no dump.
pub(super) fn read(
    server: &WatchedServer,
    time_max: Duration,
    mut stops: impl FnMut() -> bool,
    mut note: impl FnMut(&DumpItem<'_>),
) -> Result<DumpExtent, String> {
    let failed = |error: io::Error| problem_of(&server.address, &error);
    let end = nanos().saturating_add(u64::try_from(time_max.as_nanos()).unwrap_or(u64::MAX));
    let mut stream = server.connect().map_err(failed)?;
    stream.write_all(DUMP).map_err(failed)?;
    stream.flush().map_err(failed)?;
    stream.limit(PATIENCE.min(time_max)).map_err(failed)?;
    let mut reader = BufReader::with_capacity(256 << 10, stream);
    let (mut line, mut items) = (Vec::new(), 0);
    loop {
        line.clear();
        match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return Err(format!("{}: it closes the connection", server.address)),
            Ok(_) => {}
            Err(error) if is_timeout(&error) && items > 0 => return Ok(DumpExtent::Part),
            Err(error) => return Err(failed(error)),
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim_end() {
            "END" => return Ok(DumpExtent::All),
            "" | "OK" => {}
            // Servers make one dump at a time.
            text if text.starts_with("BUSY ") && nanos() < end && !stops() => {
                thread::park_timeout(BUSY_NAP);
                reader.get_mut().write_all(DUMP).map_err(failed)?;
                reader.get_mut().flush().map_err(failed)?;
                continue;
            }
            text => match DumpItem::parse(text) {
                Some(item) => note(&item),
                None => return Err(format!("the server answers `lru_crawler metadump all` with: {text}")),
            },
        }
        items += 1;
        if items >= ITEMS_MAX || items % 1024 == 0 && (nanos() >= end || stops()) {
            return Ok(DumpExtent::Part);
        }
    }
}

/// Totals of the stored items whose keys have one shape.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct StoredTotals {
    pub(super) items: u64,
    pub(super) bytes: u64,
    /// Items that were never fetched since they were stored.
    pub(super) unfetched: u64,
    pub(super) unfetched_bytes: u64,
    /// Items without a time to live that were never fetched.
    pub(super) forever: u64,
    /// The sum of the ages, in seconds, of items that were never fetched.
    pub(super) idle: u64,
    /// The sum of the remaining times to live, in seconds, of items that have one and were never fetched.
    pub(super) left: u64,
}

/// The stored items, by the shape of their keys.
#[derive(Debug, Default)]
pub(super) struct StoredShapes {
    pub(super) shapes: HashMap<String, StoredTotals>,
    pub(super) total: StoredTotals,
    pub(super) part: bool,
}

impl StoredShapes {
    /// `now`: in seconds since 1970.
    pub(super) fn note(&mut self, item: &DumpItem<'_>, now: u64) {
        let mut name = shape(&decoded(item.key));
        if self.shapes.len() >= SHAPES_MAX && !self.shapes.contains_key(&name) {
            OTHER.clone_into(&mut name);
        }
        for stock in [self.shapes.entry(name).or_default(), &mut self.total] {
            stock.items += 1;
            stock.bytes += item.size;
            if !item.fetched {
                stock.unfetched += 1;
                stock.unfetched_bytes += item.size;
                stock.idle += now.saturating_sub(item.accessed);
                match item.expires {
                    None => stock.forever += 1,
                    Some(expires) => stock.left += expires.saturating_sub(now),
                }
            }
        }
    }

    /// The shapes with most bytes that were never fetched, the largest first.
    pub(super) fn unfetched(&self) -> Vec<(&str, &StoredTotals)> {
        let mut shapes: Vec<(&str, &StoredTotals)> =
            self.shapes.iter().map(|(name, stock)| (name.as_str(), stock)).collect();
        shapes.retain(|(_, stock)| stock.unfetched > 0);
        shapes.sort_by_key(|(name, stock)| (std::cmp::Reverse(stock.unfetched_bytes), *name));
        shapes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_servers() {
        let line = "key=a%3A1 exp=-1 la=1795936337 cas=2 fetch=yes cls=4 size=162";
        let item =
            DumpItem { key: "a%3A1", expires: None, accessed: 1_795_936_337, fetched: true, size: 162 };
        assert_eq!(DumpItem::parse(line), Some(item));
        let line = "key=b exp=1795936397 la=7 cas=3 fetch=no cls=1 size=76 ";
        let item = DumpItem { key: "b", expires: Some(1_795_936_397), accessed: 7, fetched: false, size: 76 };
        assert_eq!(DumpItem::parse(line), Some(item));
        assert_eq!(DumpItem::parse("BUSY currently processing crawler request"), None);
    }

    #[test]
    fn what_is_never_fetched_is_summed_by_shape() {
        let mut stored = StoredShapes::default();
        for n in 0..10_u64 {
            let key = format!("report%3A{n}");
            let expires = (n > 3).then_some(160);
            stored.note(&DumpItem { key: &key, expires, accessed: 90, fetched: n == 0, size: 100 }, 100);
            stored.note(
                &DumpItem { key: "page%3A1", expires: None, accessed: 90, fetched: true, size: 50 },
                100,
            );
        }
        let expected = StoredTotals {
            items: 10,
            bytes: 1000,
            unfetched: 9,
            unfetched_bytes: 900,
            forever: 3,
            idle: 90,
            left: 360,
        };
        assert_eq!(stored.unfetched(), [("report:{}", &expected)]);
        assert_eq!((stored.total.items, stored.total.unfetched), (20, 9));
    }
}
