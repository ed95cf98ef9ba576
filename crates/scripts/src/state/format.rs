//! The bytes of a state.
//!
//! ```text
//!   state    version: varint, then parts if there are any, then a table
//!   parts    0xf0, count, hashes of 8 bytes      tokens of `cg.once`, the oldest first
//!            0xf1, count, (number, kind)...      fields, ascending by their numbers
//!   table    count of items, count of entries, items 1, 2, 3 ..., entries: key, value
//!   key      0x00..0x7f: a name of the dictionary; else as a value, a number or a string
//!   value    0x00..0x7f  that whole number       0xc0 0xc1   false, true
//!            0x80..0x9f  a string of 0..31 bytes 0xc2        f64, little-endian
//!            0xa0..0xaf  a table: 0..15 entries  0xc3        a string: length as varint
//!            0xb0        an array of JSON without items
//!            0xb1..0xbf  a table: 1..15 items    0xc4        a table: both counts as varints
//!            0xc8..0xcf  a whole number of 1 to 7 bytes, little-endian; 0xd0..0xd7: its negative
//!            0xc5        a field: its number
//! ```
//! Entries are in the order of their keys: other numbers, names by their places in the dictionary, other
//! strings. Equal tables have equal bytes.
//!
//! # Invariants
//! * A reader never reads outside of its bytes, and ends for any bytes.

use super::DEPTH_MAX;
use crate::names::NAMES_MAX;

const STRING: u8 = 0x80;
const STRING_SHORT: usize = 31;
const ENTRIES: u8 = 0xa0;
const ITEMS: u8 = 0xb0;
const FEW: usize = 15;
const FALSE: u8 = 0xc0;
const TRUE: u8 = 0xc1;
const FLOAT: u8 = 0xc2;
const STRING_LONG: u8 = 0xc3;
const TABLE: u8 = 0xc4;
const FIELD: u8 = 0xc5;
const WHOLE: u8 = 0xc8;
const NEGATIVE: u8 = 0xd0;
const TOKENS: u8 = 0xf0;
const FIELDS: u8 = 0xf1;

/// Whole numbers beyond this are written as floats.
pub(crate) const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
/// The most tokens of `cg.once` in a state.
pub(crate) const TOKENS_MAX: usize = 32;

/// The bytes are not a state, which is an error of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FormatError;

/// The part of a state before the table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateHead<'a> {
    pub(crate) version: u16,
    /// Hashes of 8 bytes each.
    pub(crate) tokens: &'a [u8],
    /// Pairs of number and kind.
    pub(crate) fields: &'a [u8],
}

impl StateHead<'_> {
    /// The kind of a field.
    pub(crate) fn kind(&self, number: u8) -> Option<u8> {
        self.fields.as_chunks::<2>().0.iter().find(|[own, _]| *own == number).map(|[_, kind]| *kind)
    }

    /// Appends the head.
    pub(crate) fn push(&self, out: &mut Vec<u8>) {
        push_varint(out, u64::from(self.version));
        if !self.tokens.is_empty() {
            out.extend_from_slice(&[TOKENS, (self.tokens.len() / 8) as u8]);
            out.extend_from_slice(self.tokens);
        }
        Self::push_fields(self.fields, out);
    }

    /// Appends the part with the fields.
    pub(crate) fn push_fields(fields: &[u8], out: &mut Vec<u8>) {
        if !fields.is_empty() {
            out.extend_from_slice(&[FIELDS, (fields.len() / 2) as u8]);
            out.extend_from_slice(fields);
        }
    }
}

/// A value that was read. The items and entries of a table follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StateToken<'a> {
    Boolean(bool),
    Number(f64),
    String(&'a [u8]),
    Field(u8),
    Table {
        items: usize,
        entries: usize,
        /// Whether it is a JSON array even without items.
        array: bool,
    },
}

impl StateToken<'_> {
    fn into_array(self, is_array: bool) -> Self {
        match self {
            Self::Table { items, entries, .. } => Self::Table { items, entries, array: is_array },
            other => other,
        }
    }
}

/// A key that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TableKey<'a> {
    Name(u8),
    Number(f64),
    String(&'a [u8]),
}

/// Reads a state.
#[derive(Debug, Clone)]
pub(crate) struct StateReader<'a> {
    rest: &'a [u8],
}

impl<'a> StateReader<'a> {
    /// Reads the head of a state; the reader is then at the table.
    pub(crate) fn new(state: &'a [u8]) -> Result<(StateHead<'a>, Self), FormatError> {
        let mut reader = Self { rest: state };
        let version = u16::try_from(reader.varint()?).map_err(|_| FormatError)?;
        let mut head = StateHead { version, ..StateHead::default() };
        head.tokens = reader.part(TOKENS, 8)?;
        head.fields = reader.part(FIELDS, 2)?;
        Ok((head, reader))
    }

    fn part(&mut self, tag: u8, size: usize) -> Result<&'a [u8], FormatError> {
        match self.rest {
            [own, count, rest @ ..] if *own == tag => {
                self.rest = rest;
                self.take(usize::from(*count) * size)
            }
            _ => Ok(&[]),
        }
    }

    /// The next value. `depth`: the number of tables around it.
    #[inline]
    pub(crate) fn value(&mut self, depth: usize) -> Result<StateToken<'a>, FormatError> {
        let tag = self.byte()?;
        Ok(match tag {
            0..STRING => StateToken::Number(f64::from(tag)),
            STRING..ENTRIES => StateToken::String(self.take(usize::from(tag - STRING))?),
            ENTRIES..ITEMS => self.table(0, usize::from(tag - ENTRIES), depth)?,
            ITEMS..FALSE => self.table(usize::from(tag - ITEMS), 0, depth)?.into_array(tag == ITEMS),
            FALSE | TRUE => StateToken::Boolean(tag == TRUE),
            TABLE => {
                let (items, entries) = (self.count()?, self.count()?);
                self.table(items, entries, depth)?
            }
            FIELD => StateToken::Field(self.byte()?),
            _ => match self.key_of(tag)? {
                TableKey::Number(number) => StateToken::Number(number),
                TableKey::String(string) => StateToken::String(string),
                TableKey::Name(_) => return Err(FormatError),
            },
        })
    }

    /// Skips the next value with its contents. `depth`: the number of tables around it.
    pub(crate) fn skip(&mut self, depth: usize) -> Result<(), FormatError> {
        let StateToken::Table { items, entries, .. } = self.value(depth)? else { return Ok(()) };
        for _ in 0..items {
            self.skip(depth + 1)?;
        }
        for _ in 0..entries {
            self.key()?;
            self.skip(depth + 1)?;
        }
        Ok(())
    }

    /// The key of the next entry.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<TableKey<'a>, FormatError> {
        let tag = self.byte()?;
        match tag {
            0..STRING => Ok(TableKey::Name(tag)),
            STRING..ENTRIES => Ok(TableKey::String(self.take(usize::from(tag - STRING))?)),
            _ => self.key_of(tag),
        }
    }

    /// A key or value, whose forms are the same.
    fn key_of(&mut self, tag: u8) -> Result<TableKey<'a>, FormatError> {
        Ok(match tag {
            FLOAT => {
                let bytes = self.take(8)?;
                TableKey::Number(f64::from_le_bytes(bytes.try_into().map_err(|_| FormatError)?))
            }
            STRING_LONG => {
                let len = self.count()?;
                TableKey::String(self.take(len)?)
            }
            WHOLE..TOKENS => {
                let bytes = self.take(usize::from(tag & 7))?;
                let whole = bytes.iter().rev().fold(0, |whole, byte| whole << 8 | u64::from(*byte)) as f64;
                match tag {
                    WHOLE..NEGATIVE => TableKey::Number(whole),
                    NEGATIVE..0xd8 => TableKey::Number(-whole),
                    _ => return Err(FormatError),
                }
            }
            _ => return Err(FormatError),
        })
    }

    /// Whether no bytes follow.
    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    fn table(&self, items: usize, entries: usize, depth: usize) -> Result<StateToken<'a>, FormatError> {
        // Each item has at least one byte, each entry two: a larger count is refused.
        let least = items.saturating_add(entries.saturating_mul(2));
        if depth >= DEPTH_MAX || least > self.rest.len() {
            return Err(FormatError);
        }
        Ok(StateToken::Table { items, entries, array: false })
    }

    fn byte(&mut self) -> Result<u8, FormatError> {
        let (first, rest) = self.rest.split_first().ok_or(FormatError)?;
        self.rest = rest;
        Ok(*first)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(FormatError)?;
        self.rest = rest;
        Ok(taken)
    }

    fn count(&mut self) -> Result<usize, FormatError> {
        usize::try_from(self.varint()?).map_err(|_| FormatError)
    }

    fn varint(&mut self) -> Result<u64, FormatError> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(FormatError)
    }
}

/// Appends a number of up to 35 bits.
pub(crate) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn push_boolean(out: &mut Vec<u8>, value: bool) {
    out.push(if value { TRUE } else { FALSE });
}

/// Appends a number as a value.
#[inline]
pub(crate) fn push_number(out: &mut Vec<u8>, number: f64) {
    // -0 is not written as a whole number, since that would lose its sign.
    let small = number as u8;
    if small < STRING && number.to_bits() == f64::from(small).to_bits() {
        out.push(small);
    } else {
        push_number_key(out, number);
    }
}

/// Appends a number as a key.
pub(crate) fn push_number_key(out: &mut Vec<u8>, number: f64) {
    let whole = number.abs() as u64;
    let is_whole = number.abs() <= WHOLE_MAX && (whole as f64).to_bits() == number.abs().to_bits();
    if !is_whole || (number == 0.0 && number.is_sign_negative()) {
        out.push(FLOAT);
        out.extend_from_slice(&number.to_le_bytes());
        return;
    }
    let len = 8 - whole.leading_zeros() as usize / 8;
    let tag = if number < 0.0 { NEGATIVE } else { WHOLE } + len as u8;
    // The bytes are appended in one piece of a known length; zeros at the end are removed.
    let end = out.len() + 1 + len;
    out.push(tag);
    out.extend_from_slice(&whole.to_le_bytes());
    out.truncate(end);
}

/// Appends a string as a value or as a key.
#[inline]
pub(crate) fn push_string(out: &mut Vec<u8>, string: &[u8]) {
    if string.len() <= STRING_SHORT {
        out.push(STRING + string.len() as u8);
    } else {
        out.push(STRING_LONG);
        push_varint(out, string.len() as u64);
    }
    out.extend_from_slice(string);
}

/// Appends a name of the dictionary as a key.
pub(crate) fn push_name(out: &mut Vec<u8>, name: u8) {
    debug_assert!(usize::from(name) < NAMES_MAX, "a dictionary has no more");
    out.push(name);
}

/// Appends the beginning of a table, whose items and entries follow.
pub(crate) fn push_table(out: &mut Vec<u8>, items: usize, entries: usize) {
    match (items, entries) {
        (0, 0..=FEW) => out.push(ENTRIES + entries as u8),
        (1..=FEW, 0) => out.push(ITEMS + items as u8),
        _ => {
            out.push(TABLE);
            push_varint(out, items as u64);
            push_varint(out, entries as u64);
        }
    }
}

/// Appends a JSON array without items.
pub(crate) fn push_array(out: &mut Vec<u8>) {
    out.push(ITEMS);
}

/// Appends a field.
pub(crate) fn push_field(out: &mut Vec<u8>, number: u8) {
    out.extend_from_slice(&[FIELD, number]);
}
