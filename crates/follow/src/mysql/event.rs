//! Events of a binary log.
//!
//! Sources: MySQL's "Binary Log Event" of its internals; MariaDB's "Binlog Event Types";
//! "mysql-binlog-connector-java" for how tools read both.

use std::io::Read as _;

use crate::mysql::read::ByteReader;

/// Bytes before the content of an event.
pub(crate) const HEADER_BYTES: usize = 19;

/// Bytes of the checksum at the end of an event.
const CHECKSUM_BYTES: usize = 4;

/// Most bytes of what a compressed event holds.
const INFLATED_BYTES_MAX: usize = 64 << 20;

/// The event is in no file: the server made it for this stream.
const ARTIFICIAL: u16 = 0x20;

/// MariaDB's: the transaction has a single statement, and no event that ends it.
const STANDALONE: u8 = 1;

/// Numbers of character sets whose first half is not ASCII, of those that a client may have: `swe7`, with
/// MariaDB's that do not pad.
const NO_ASCII: [u16; 4] = [10, 82, 1034, 1106];

/// The header before each event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventHeader {
    pub(crate) time: u32,
    pub(crate) kind: u8,
    pub(crate) length: u32,
    /// The lower half of where the event ends in its file; 0: it is in none.
    pub(crate) end: u32,
    pub(crate) is_artificial: bool,
}

impl EventHeader {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = ByteReader::new(bytes.get(..HEADER_BYTES)?);
        let (time, kind, _server) = (reader.u32()?, reader.u8()?, reader.u32()?);
        let (length, end, flags) = (reader.u32()?, reader.u32()?, reader.u16()?);
        Some(Self { time, kind, length, end, is_artificial: flags & ARTIFICIAL != 0 })
    }
}

/// How rows were changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowChange {
    Insert,
    Update,
    /// An update whose new rows have some values as differences.
    UpdateInPart,
    Delete,
}

/// One event.
#[derive(Debug, PartialEq)]
pub(crate) enum BinlogEvent<'a> {
    /// The next file.
    Rotate {
        file: String,
        offset: u64,
    },
    /// How the events of a file are written. `is_start`: the server was started, and this is its first file.
    Format {
        has_checksum: bool,
        is_start: bool,
    },
    /// MySQL's number of the transaction that begins; `None`: it has none.
    Gtid(Option<([u8; 16], Box<str>, u64)>),
    /// MariaDB's.
    MariaGtid {
        domain: u32,
        number: u64,
        is_alone: bool,
    },
    Query(QueryEvent<'a>),
    TableMap(TableMap<'a>),
    Rows(RowsEvent<'a>),
    /// The transaction is committed.
    Commit,
    /// The transaction is prepared under an `XID` of the client's, as statements have it; `is_one_phase`: it
    /// is committed as well.
    Prepared {
        is_one_phase: bool,
        id: String,
    },
    /// Nothing before this is still to come.
    Heartbeat {
        file: String,
        offset: Option<u64>,
    },
    /// Events in one.
    Payload(Vec<u8>),
    /// Something may be missing in the log.
    Incident,
    Other,
}

/// A statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueryEvent<'a> {
    pub(crate) database: &'a [u8],
    pub(crate) sql: std::borrow::Cow<'a, [u8]>,
    /// The text is in a character set of the client's whose first half is not ASCII.
    pub(crate) is_no_ascii: bool,
}

/// How the rows of a table are written in the events that follow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableMap<'a> {
    pub(crate) id: u64,
    pub(crate) database: &'a [u8],
    pub(crate) table: &'a [u8],
    pub(crate) types: &'a [u8],
    pub(crate) meta: &'a [u8],
    /// With `binlog_row_metadata = FULL`.
    pub(crate) names: Option<Vec<String>>,
}

/// Rows of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowsEvent<'a> {
    pub(crate) change: RowChange,
    pub(crate) table: u64,
    pub(crate) width: usize,
    /// Which columns the rows have.
    pub(crate) present: &'a [u8],
    /// The columns of the new rows of an update; otherwise the same as `present`.
    pub(crate) present_after: &'a [u8],
    pub(crate) written: std::borrow::Cow<'a, [u8]>,
}

/// An event that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of type {0} of the binary log that cannot be read")]
pub struct MalformedEvent(pub(crate) u8);

impl<'a> BinlogEvent<'a> {
    /// Reads an event behind its header. `has_checksum`: as the file says; of the description of the file it
    /// is always there.
    pub(crate) fn parse(
        header: &EventHeader,
        bytes: &'a [u8],
        has_checksum: bool,
    ) -> Result<Self, MalformedEvent> {
        let failed = MalformedEvent(header.kind);
        let content = if has_checksum && header.kind != 15 {
            let (content, sum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(failed)?;
            if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
                return Err(failed);
            }
            content
        } else {
            bytes
        };
        let content = content.get(HEADER_BYTES..).ok_or(failed)?;
        Self::read(header.kind, content).ok_or(failed)
    }

    fn read(kind: u8, content: &'a [u8]) -> Option<Self> {
        let mut reader = ByteReader::new(content);
        Some(match kind {
            2 => Self::Query(QueryEvent::read(&mut reader, 0, false)?),
            // LOAD DATA: besides which file, and which parts of the statement name it.
            18 => Self::Query(QueryEvent::read(&mut reader, 4 + 4 + 4 + 1, false)?),
            4 => {
                let offset = reader.u64()?;
                Self::Rotate { file: String::from_utf8_lossy(reader.rest()).into_owned(), offset }
            }
            15 => {
                reader.take(2 + 50)?;
                let is_start = reader.u32()? != 0;
                // The lengths of events, how sums are made, and a sum.
                let rest = reader.rest();
                let has_checksum =
                    rest.len().checked_sub(1 + CHECKSUM_BYTES).and_then(|at| rest.get(at)) == Some(&1);
                Self::Format { has_checksum, is_start }
            }
            16 => Self::Commit,
            19 => Self::TableMap(TableMap::read(&mut reader)?),
            23 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Insert, 1, false)?),
            24 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Update, 1, false)?),
            25 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Delete, 1, false)?),
            26 => Self::Incident,
            27 => Self::Heartbeat { file: String::from_utf8_lossy(content).into_owned(), offset: None },
            30 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Insert, 2, false)?),
            31 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Update, 2, false)?),
            32 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Delete, 2, false)?),
            33 => {
                reader.u8()?;
                let uuid = reader.take(16)?.try_into().ok()?;
                Self::Gtid(Some((uuid, "".into(), reader.u64()?)))
            }
            34 => Self::Gtid(None),
            38 => {
                let (is_one_phase, format) = (reader.u8()? != 0, reader.u32()?);
                let (first, second) = (reader.u32()? as usize, reader.u32()? as usize);
                let (first, second) = (hex(reader.take(first)?), hex(reader.take(second)?));
                Self::Prepared { is_one_phase, id: format!("x'{first}',x'{second}',{format}") }
            }
            39 => Self::Rows(RowsEvent::read(&mut reader, RowChange::UpdateInPart, 2, false)?),
            40 => Self::Payload(payload(&mut reader)?),
            41 => heartbeat(&mut reader)?,
            42 => Self::Gtid(Some(tagged(&mut reader)?)),
            162 => {
                let (number, domain, flags) = (reader.u64()?, reader.u32()?, reader.u8()?);
                Self::MariaGtid { domain, number, is_alone: flags & STANDALONE != 0 }
            }
            165 => Self::Query(QueryEvent::read(&mut reader, 0, true)?),
            166 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Insert, 1, true)?),
            167 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Update, 1, true)?),
            168 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Delete, 1, true)?),
            169 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Insert, 2, true)?),
            170 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Update, 2, true)?),
            171 => Self::Rows(RowsEvent::read(&mut reader, RowChange::Delete, 2, true)?),
            _ => Self::Other,
        })
    }
}

impl<'a> QueryEvent<'a> {
    /// `more`: bytes of the fixed part that other statements do not have.
    fn read(reader: &mut ByteReader<'a>, more: usize, is_compressed: bool) -> Option<Self> {
        reader.take(4 + 4)?;
        let database = usize::from(reader.u8()?);
        reader.u16()?;
        let variables = usize::from(reader.u16()?);
        reader.take(more)?;
        let is_no_ascii = charset(reader.take(variables)?).is_some_and(|number| NO_ASCII.contains(&number));
        let database = reader.take(database)?;
        reader.u8()?;
        let sql = if is_compressed { inflated(reader.rest())?.into() } else { reader.rest().into() };
        Some(Self { database, sql, is_no_ascii })
    }
}

/// The number of the client's character set in the variables of a statement, of which each has a length of
/// its own.
fn charset(variables: &[u8]) -> Option<u16> {
    let mut reader = ByteReader::new(variables);
    loop {
        match reader.u8()? {
            0 | 3 => drop(reader.take(4)?),
            1 => drop(reader.take(8)?),
            4 => return reader.u16(),
            // The text ends with a zero.
            2 => {
                let length = usize::from(reader.u8()?);
                reader.take(length + 1)?;
            }
            5 | 6 => {
                let length = usize::from(reader.u8()?);
                reader.take(length)?;
            }
            7 | 8 => drop(reader.take(2)?),
            // It comes behind that of the character set.
            _ => return None,
        }
    }
}

impl<'a> TableMap<'a> {
    fn read(reader: &mut ByteReader<'a>) -> Option<Self> {
        let id = reader.number(6)?;
        reader.u16()?;
        let database = usize::from(reader.u8()?);
        let database = reader.take(database)?;
        reader.u8()?;
        let table = usize::from(reader.u8()?);
        let table = reader.take(table)?;
        reader.u8()?;
        let types = reader.counted()?;
        let meta = reader.counted()?;
        reader.take(types.len().div_ceil(8))?;
        let mut names = None;
        while !reader.rest().is_empty() {
            let kind = reader.u8()?;
            let value = reader.counted()?;
            if kind == 4 {
                let mut list = ByteReader::new(value);
                let mut all = Vec::with_capacity(types.len());
                while !list.rest().is_empty() {
                    all.push(String::from_utf8_lossy(list.counted()?).into_owned());
                }
                names = (all.len() == types.len()).then_some(all);
            }
        }
        Some(Self { id, database, table, types, meta, names })
    }
}

impl<'a> RowsEvent<'a> {
    fn read(
        reader: &mut ByteReader<'a>,
        change: RowChange,
        version: u8,
        is_compressed: bool,
    ) -> Option<Self> {
        let table = reader.number(6)?;
        reader.u16()?;
        if version == 2 {
            let extra = usize::from(reader.u16()?);
            reader.take(extra.checked_sub(2)?)?;
        }
        let width = reader.length()?;
        let present = reader.take(width.div_ceil(8))?;
        let present_after = match change {
            RowChange::Update | RowChange::UpdateInPart => reader.take(width.div_ceil(8))?,
            RowChange::Insert | RowChange::Delete => present,
        };
        let rows = if is_compressed { inflated(reader.rest())?.into() } else { reader.rest().into() };
        Some(Self { change, table, width, present, present_after, written: rows })
    }
}

/// Digits, two of each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0')));
    }
    text
}

fn heartbeat<'a>(reader: &mut ByteReader<'_>) -> Option<BinlogEvent<'a>> {
    let (mut file, mut offset) = (String::new(), None);
    while !reader.rest().is_empty() {
        let kind = reader.length()?;
        if kind == 0 {
            break;
        }
        let mut value = ByteReader::new(reader.counted()?);
        match kind {
            1 => file = String::from_utf8_lossy(value.rest()).into_owned(),
            2 => offset = Some(value.length()? as u64),
            _ => {}
        }
    }
    Some(BinlogEvent::Heartbeat { file, offset })
}

/// A number with a tag: fields with a number of their own, as `mysql::serialization` writes them.
fn tagged(reader: &mut ByteReader<'_>) -> Option<([u8; 16], Box<str>, u64)> {
    // A version, the length of all, and up to which field a reader must know them.
    for _ in 0..3 {
        varying(reader)?;
    }
    let (mut uuid, mut number, mut tag) = ([0; 16], None, String::new());
    for field in 0..4 {
        if varying(reader)? != field {
            return None;
        }
        match field {
            0 => drop(reader.u8()?),
            1 => {
                for byte in &mut uuid {
                    *byte = varying(reader)? as u8;
                }
            }
            // Signed: the lowest bit is the sign.
            2 => number = Some(varying(reader)? >> 1),
            _ => {
                let length = usize::try_from(varying(reader)?).ok()?;
                tag = String::from_utf8_lossy(reader.take(length)?).into_owned();
            }
        }
    }
    Some((uuid, tag.into(), number?))
}

/// A number whose first byte has as many ones at its low end as bytes follow.
fn varying(reader: &mut ByteReader<'_>) -> Option<u64> {
    let first = reader.u8()?;
    let more = first.trailing_ones() as usize;
    let rest = reader.number(more.min(8))?;
    Some(match more {
        7 | 8 => rest,
        _ => rest << (7 - more) | u64::from(first >> (more + 1)),
    })
}

/// Decompresses an event of MariaDB (`log_bin_compress`): a byte of kind and length, the length before, and a
/// stream of zlib.
fn inflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut reader = ByteReader::new(bytes);
    let first = reader.u8()?;
    let length =
        reader.take(usize::from(first & 7))?.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    if first & 0x80 == 0 || (first & 0x70) != 0 || length > INFLATED_BYTES_MAX {
        return None;
    }
    let mut out = Vec::with_capacity(length);
    flate2::read::ZlibDecoder::new(reader.rest()).take(length as u64 + 1).read_to_end(&mut out).ok()?;
    (out.len() == length).then_some(out)
}

/// The events of MySQL's `binlog_transaction_compression`.
fn payload(reader: &mut ByteReader<'_>) -> Option<Vec<u8>> {
    let (mut kind, mut size) = (None, None);
    loop {
        match reader.length()? {
            0 => break,
            field => {
                let mut value = ByteReader::new(reader.counted()?);
                match field {
                    2 => kind = Some(value.length()?),
                    3 => size = Some(value.length()?),
                    _ => {}
                }
            }
        }
    }
    match kind? {
        // As it is.
        255 => Some(reader.rest().to_vec()),
        // zstd.
        0 => {
            let size = size.filter(|size| *size <= INFLATED_BYTES_MAX)?;
            let mut out = Vec::with_capacity(size);
            let decoder = ruzstd::decoding::StreamingDecoder::new(reader.rest()).ok()?;
            decoder.take(size as u64 + 1).read_to_end(&mut out).ok()?;
            (out.len() == size).then_some(out)
        }
        _ => None,
    }
}
