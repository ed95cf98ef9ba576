//! Places in a binary log, transactions, and what a reader sees of them.

use std::collections::BTreeMap;
use std::fmt;

use crate::log::Snapshot;

/// Bits of [`BinlogPosition::packed`] for the offset: 64 GiB.
const OFFSET_BITS: u32 = 36;

/// A place in the log: the number of the file, and the offset there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct BinlogPosition {
    pub(crate) file: u64,
    pub(crate) offset: u64,
}

impl fmt::Display for BinlogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}:{}", self.file, self.offset)
    }
}

impl BinlogPosition {
    /// The name before the number, and the place, of a file such as `mysql-bin.000007` and an offset.
    pub(crate) fn of(file: &str, offset: u64) -> Option<(String, Self)> {
        let (base, number) = file.rsplit_once('.')?;
        let digits = number.len() >= 6 && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { number.parse().ok()? } else { return None };
        Some((base.to_owned(), Self { file: number, offset }))
    }

    /// Reads what is shown of it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (file, offset) = text.split_once(':')?;
        Some(Self { file: file.parse().ok()?, offset: offset.parse().ok()? })
    }

    /// The file's name.
    pub(crate) fn name(&self, base: &str) -> String {
        format!("{base}.{:06}", self.file)
    }

    /// The place as one number, in the same order.
    pub(crate) fn packed(&self) -> u64 {
        self.file << OFFSET_BITS | self.offset.min((1 << OFFSET_BITS) - 1)
    }

    /// The place of a number from [`BinlogPosition::packed`].
    pub(crate) fn unpacked(number: u64) -> Self {
        Self { file: number >> OFFSET_BITS, offset: number & ((1 << OFFSET_BITS) - 1) }
    }
}

/// A server's 16 bytes, and a tag, which is empty for most.
pub(crate) type GtidOrigin = ([u8; 16], Box<str>);

/// A transaction, as a snapshot is asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BinlogTransaction {
    /// Behind it.
    pub(crate) end: BinlogPosition,
    /// MySQL's.
    pub(crate) gtid: Option<(GtidOrigin, u64)>,
}

/// The transactions that a reader sees that begins now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BinlogSnapshot {
    /// MariaDB: all before this place.
    Before(BinlogPosition),
    /// MySQL: these.
    Executed(GtidSet),
}

impl Snapshot<BinlogTransaction> for BinlogSnapshot {
    fn sees(&self, transaction: &BinlogTransaction) -> bool {
        match (self, &transaction.gtid) {
            (Self::Before(place), _) => transaction.end <= *place,
            (Self::Executed(gtids), Some((origin, number))) => gtids.has(origin, *number),
            // Nothing says when: such a log is refused.
            (Self::Executed(_), None) => false,
        }
    }

    /// The stream begins at a snapshot: there are none before it.
    fn running(&self) -> Vec<BinlogTransaction> {
        Vec::new()
    }
}

/// A set of MySQL's numbers of transactions: of each origin ranges, from a first one up to before a last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GtidSet(BTreeMap<GtidOrigin, Vec<(u64, u64)>>);

impl GtidSet {
    /// Reads `3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5:7, …`; a tag, `:tag:1-3`, is of the ranges that follow
    /// it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut gtids = Self::default();
        for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let mut parts = one.split(':').map(str::trim);
            let uuid = uuid(parts.next()?)?;
            let mut tag: Box<str> = "".into();
            for part in parts {
                if !part.starts_with(|first: char| first.is_ascii_digit()) {
                    tag = part.into();
                    continue;
                }
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
                gtids.0.entry((uuid, tag.clone())).or_default().push((first, last.checked_add(1)?));
            }
        }
        gtids.0.values_mut().for_each(|ranges| ranges.sort_unstable());
        Some(gtids)
    }

    fn has(&self, origin: &GtidOrigin, number: u64) -> bool {
        let Some(ranges) = self.0.get(origin) else { return false };
        let after = ranges.partition_point(|(first, _)| *first <= number);
        after > 0 && number < ranges[after - 1].1
    }

    /// The set in the form of `COM_BINLOG_DUMP_GTID`. It has another form if there are tags, which only
    /// servers of releases with tags have.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let has_tags = self.0.keys().any(|(_, tag)| !tag.is_empty());
        let count = self.0.len() as u64;
        let first = if has_tags { 1 << 56 | count << 8 | 1 } else { count };
        let mut bytes = first.to_le_bytes().to_vec();
        for ((uuid, tag), ranges) in &self.0 {
            bytes.extend_from_slice(uuid);
            if has_tags {
                // A number of one byte, whose lowest bit says so: a tag has at most 32 letters.
                bytes.push((tag.len() as u8) << 1);
                bytes.extend_from_slice(tag.as_bytes());
            }
            bytes.extend_from_slice(&(ranges.len() as u64).to_le_bytes());
            for (first, end) in ranges {
                bytes.extend_from_slice(&first.to_le_bytes());
                bytes.extend_from_slice(&end.to_le_bytes());
            }
        }
        bytes
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    let number = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok()? } else { return None };
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "3E11FA47-71CA-11E1-9E33-C80AA9429562";

    #[test]
    fn places_are_ordered_by_file_and_offset() {
        let (base, place) = BinlogPosition::of("mysql-bin.000007", 4).unwrap();
        assert_eq!((base.as_str(), place.name(&base)), ("mysql-bin", "mysql-bin.000007".to_owned()));
        assert_eq!(BinlogPosition::of("a.b.1000000", 4).unwrap().1.file, 1_000_000);
        assert_eq!((BinlogPosition::of("mysql-bin", 4), BinlogPosition::of("bin.7a", 4)), (None, None));
        let later = BinlogPosition { file: 8, offset: 4 };
        assert!(place < later && place.packed() < later.packed());
        assert_eq!(BinlogPosition::unpacked(later.packed()), later);
    }

    #[test]
    fn sets_of_transactions() {
        let gtids = GtidSet::parse(&format!("{UUID}:7:1-5:tag:3,\n{}:9", UUID.replace('3', "4"))).unwrap();
        let origin = (uuid(UUID).unwrap(), Box::from(""));
        let seen = |number| gtids.has(&origin, number);
        assert!(seen(1) && seen(5) && seen(7) && !seen(6) && !seen(8) && !seen(0));
        assert!(gtids.has(&(origin.0, "tag".into()), 3) && !gtids.has(&(origin.0, "tag".into()), 1));
        let tagged = gtids.encoded();
        assert_eq!((tagged[0], tagged[1], tagged[7]), (1, 3, 1));
        assert_eq!(tagged.len(), 8 + 3 * (16 + 1 + 8) + 3 + 4 * 16);
        let plain = GtidSet::parse(&format!("{UUID}:1-5")).unwrap().encoded();
        assert_eq!((plain.len(), plain[24], plain[32], plain[40]), (48, 1, 1, 6));
        assert_eq!(GtidSet::parse(""), Some(GtidSet::default()));
        assert_eq!((GtidSet::parse("x:1"), GtidSet::parse(&format!("{UUID}:1-x"))), (None, None));
    }

    #[test]
    fn a_snapshot_of_places_or_of_numbers() {
        let end = BinlogPosition { file: 1, offset: 100 };
        let transaction = BinlogTransaction { end, gtid: Some(((uuid(UUID).unwrap(), "".into()), 6)) };
        assert!(BinlogSnapshot::Before(end).sees(&transaction));
        assert!(!BinlogSnapshot::Before(BinlogPosition { file: 1, offset: 99 }).sees(&transaction));
        assert!(
            !BinlogSnapshot::Executed(GtidSet::parse(&format!("{UUID}:1-5")).unwrap()).sees(&transaction)
        );
        assert!(BinlogSnapshot::Executed(GtidSet::parse(&format!("{UUID}:1-6")).unwrap()).sees(&transaction));
    }
}
