//! Messages of the plugin `pgoutput`, version 1: what a transaction changed.
//!
//! Source: PostgreSQL's documentation, "Logical Replication Message Formats".

use std::fmt;

use crate::rows::{Cell, Column, OldRow, Relation, ReplicaIdentity, Row};

/// A place in the write-ahead log, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    /// Writes the position as PostgreSQL does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl Lsn {
    /// Reads `16/B374D848`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        Some(Self(u64::from_str_radix(high, 16).ok()? << 32 | u64::from_str_radix(low, 16).ok()?))
    }
}

/// One message of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PgoutputMessage<'a> {
    Begin {
        transaction: u32,
    },
    /// `end`: behind the commit's record. `time`: in microseconds since 2000.
    Commit {
        end: Lsn,
        time: u64,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        new: Row<'a>,
    },
    Update {
        relation: u32,
        old: Option<OldRow<'a>>,
        new: Row<'a>,
    },
    Delete {
        relation: u32,
        old: OldRow<'a>,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// Nothing about rows: the origin of a transaction, a type.
    Other,
}

/// A message that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of pgoutput that is too short or unknown")]
pub struct MalformedMessage;

impl<'a> PgoutputMessage<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let mut input = MessageInput(bytes);
        Ok(match input.u8()? {
            b'B' => {
                input.take(16)?;
                Self::Begin { transaction: input.u32()? }
            }
            b'C' => {
                input.take(1 + 8)?;
                Self::Commit { end: Lsn(input.u64()?), time: input.u64()? }
            }
            b'R' => Self::Relation(input.relation()?),
            b'I' => {
                let relation = input.u32()?;
                let (b'N', new) = (input.u8()?, input.row()?) else { return Err(MalformedMessage) };
                Self::Insert { relation, new }
            }
            b'U' => {
                let relation = input.u32()?;
                let (old, kind) = match input.u8()? {
                    b'N' => (None, b'N'),
                    kind => (Some(input.old(kind)?), input.u8()?),
                };
                if kind != b'N' {
                    return Err(MalformedMessage);
                }
                Self::Update { relation, old, new: input.row()? }
            }
            b'D' => {
                let relation = input.u32()?;
                let kind = input.u8()?;
                Self::Delete { relation, old: input.old(kind)? }
            }
            b'T' => {
                let count = input.u32()?;
                input.take(1)?;
                let relations = (0..count).map(|_| input.u32()).collect::<Result<_, _>>()?;
                Self::Truncate { relations }
            }
            b'O' | b'Y' | b'M' => Self::Other,
            _ => return Err(MalformedMessage),
        })
    }
}

struct MessageInput<'a>(&'a [u8]);

impl<'a> MessageInput<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], MalformedMessage> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(MalformedMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, MalformedMessage> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, MalformedMessage> {
        self.take(2)?.try_into().map(u16::from_be_bytes).map_err(|_| MalformedMessage)
    }

    fn u32(&mut self) -> Result<u32, MalformedMessage> {
        self.take(4)?.try_into().map(u32::from_be_bytes).map_err(|_| MalformedMessage)
    }

    fn u64(&mut self) -> Result<u64, MalformedMessage> {
        self.take(8)?.try_into().map(u64::from_be_bytes).map_err(|_| MalformedMessage)
    }

    fn text(&mut self) -> Result<String, MalformedMessage> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(MalformedMessage)?;
        let text = std::str::from_utf8(self.take(end)?).map_err(|_| MalformedMessage)?.to_owned();
        self.take(1)?;
        Ok(text)
    }

    fn relation(&mut self) -> Result<Relation, MalformedMessage> {
        let (id, schema, name) = (self.u32()?, self.text()?, self.text()?);
        let identity = match self.u8()? {
            b'd' | b'i' => ReplicaIdentity::Key,
            b'f' => ReplicaIdentity::Full,
            b'n' => ReplicaIdentity::Nothing,
            _ => return Err(MalformedMessage),
        };
        let columns = (0..self.u16()?).map(|_| self.column()).collect::<Result<_, _>>()?;
        // The system's schema is sent without a name.
        let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
        Ok(Relation { id, schema, name, identity, columns })
    }

    fn column(&mut self) -> Result<Column, MalformedMessage> {
        let is_key = self.u8()? & 1 == 1;
        let name = self.text()?;
        self.take(4 + 4)?;
        Ok(Column { name, is_key })
    }

    fn old(&mut self, kind: u8) -> Result<OldRow<'a>, MalformedMessage> {
        match kind {
            b'K' => Ok(OldRow::Key(self.row()?)),
            b'O' => Ok(OldRow::Whole(self.row()?)),
            _ => Err(MalformedMessage),
        }
    }

    fn row(&mut self) -> Result<Row<'a>, MalformedMessage> {
        (0..self.u16()?).map(|_| self.cell()).collect()
    }

    fn cell(&mut self) -> Result<Cell<'a>, MalformedMessage> {
        Ok(match self.u8()? {
            b'n' => Cell::Null,
            b'u' => Cell::Unchanged,
            b't' => {
                let length = self.u32()? as usize;
                Cell::Text(self.take(length)?)
            }
            _ => return Err(MalformedMessage),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An update of a table of two columns, with the old key.
    const UPDATE: &[u8] = b"U\0\0\x40\0K\0\x02t\0\0\0\x017nN\0\x02t\0\0\0\x018u";

    #[test]
    fn an_update_with_its_old_key() {
        let old = Some(OldRow::Key(vec![Cell::Text(b"7"), Cell::Null]));
        let new = vec![Cell::Text(b"8"), Cell::Unchanged];
        assert_eq!(
            PgoutputMessage::parse(UPDATE),
            Ok(PgoutputMessage::Update { relation: 0x4000, old, new })
        );
    }

    #[test]
    fn each_message_cut_anywhere_is_refused() {
        let relation = b"R\0\0\x40\0public\0users\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff";
        let begin = b"B\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x01\0\0\x02\xee";
        let commit = b"C\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\0\x01";
        let truncate = b"T\0\0\0\x01\0\0\0\x40\0";
        for whole in [UPDATE, relation, begin, truncate] {
            assert!(PgoutputMessage::parse(whole).is_ok(), "{whole:?}");
            for cut in 0..whole.len() {
                assert_eq!(
                    PgoutputMessage::parse(&whole[..cut]),
                    Err(MalformedMessage),
                    "{whole:?} cut at {cut}"
                );
            }
        }
        assert_eq!(PgoutputMessage::parse(commit), Ok(PgoutputMessage::Commit { end: Lsn(0x20), time: 1 }));
        assert_eq!(PgoutputMessage::parse(b"X"), Err(MalformedMessage));
        let columns = vec![Column { name: "id".to_owned(), is_key: true }];
        let (schema, name) = ("public".to_owned(), "users".to_owned());
        let expected = Relation { id: 0x4000, schema, name, identity: ReplicaIdentity::Key, columns };
        assert_eq!(PgoutputMessage::parse(relation), Ok(PgoutputMessage::Relation(expected)));
    }
}
