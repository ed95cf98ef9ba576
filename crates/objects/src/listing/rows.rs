//! Rows of one object: members from a position on, as lines or as JSON.
//!
//! The position at which a read has stopped is a key, and an offset into its value, since long values are
//! read in pieces.

use std::ops::Bound;

use cattlegrid_store::Value;

use super::json;
use crate::native::score::ScoreKey;
use crate::object::StateView;

/// The rows of an object that are shown.
#[derive(Debug, Clone)]
pub(crate) struct RowSelection {
    pub(crate) shape: RowShape,
    /// Only keys with this first byte; None: all.
    pub(crate) space: Option<u8>,
    pub(crate) start: RowStart,
    /// The most rows.
    pub(crate) most: u64,
}

/// The first row, and the direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowStart {
    /// The first member, ascending.
    First,
    /// The last member, descending.
    Last,
    /// The member at this position from 0, ascending.
    Nth(u64),
    /// This member, ascending.
    Key(Box<[u8]>),
}

/// The form of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowShape {
    /// A line with its key.
    Keys,
    /// A line with its value.
    Values,
    /// A line `key : value`.
    Pairs,
    /// The value alone, without the end of a line.
    Value,
    /// `key : value`, without the end of a line.
    Pair,
    /// A line `member score`: see [`ScoreKey`].
    Scores,
    /// `["key", ...]`.
    JsonKeys,
    /// `["value", ...]`.
    JsonValues,
    /// `{"key": "value", ...}`.
    JsonPairs,
    /// `[["member", score], ...]`.
    JsonScores,
}

impl RowSelection {
    /// All members.
    pub(crate) fn all(shape: RowShape) -> Self {
        Self { shape, space: None, start: RowStart::First, most: u64::MAX }
    }
}

impl RowShape {
    pub(crate) fn is_json(self) -> bool {
        !self.brackets().0.is_empty()
    }

    fn brackets(self) -> (&'static str, &'static str) {
        match self {
            Self::Keys | Self::Values | Self::Pairs | Self::Value | Self::Pair | Self::Scores => ("", ""),
            Self::JsonKeys | Self::JsonValues | Self::JsonScores => ("[", "]"),
            Self::JsonPairs => ("{", "}"),
        }
    }

    /// Whether a row contains the member's value.
    fn has_value(self) -> bool {
        !matches!(self, Self::Keys | Self::Scores | Self::JsonKeys | Self::JsonScores)
    }

    /// Writes the text before the value.
    pub(super) fn head(self, key: &[u8], is_first: bool, out: &mut Vec<u8>) {
        if self.is_json() && !is_first {
            out.push(b',');
        }
        match self {
            Self::Keys => out.extend_from_slice(key),
            Self::Pairs | Self::Pair => {
                out.extend_from_slice(key);
                out.extend_from_slice(b" : ");
            }
            Self::Values | Self::Value => {}
            Self::Scores => {
                let Some(place) = ScoreKey::of(key) else { return };
                out.extend_from_slice(place.member);
                out.push(b' ');
                place.score.write(out);
            }
            Self::JsonKeys => json::string(key, out),
            Self::JsonValues => out.push(b'"'),
            Self::JsonPairs => {
                json::string(key, out);
                out.extend_from_slice(b":\"");
            }
            Self::JsonScores => {
                let Some(place) = ScoreKey::of(key) else { return };
                out.push(b'[');
                json::string(place.member, out);
                out.push(b',');
                place.score.write(out);
                out.push(b']');
            }
        }
    }

    /// Writes the text after the value.
    fn tail(self, out: &mut Vec<u8>) {
        match self {
            Self::Keys | Self::Values | Self::Pairs | Self::Scores => out.extend_from_slice(b"\r\n"),
            Self::JsonValues | Self::JsonPairs => out.push(b'"'),
            Self::Value | Self::Pair | Self::JsonKeys | Self::JsonScores => {}
        }
    }
}

/// Reads rows of an object.
#[derive(Debug)]
pub(super) struct RowReader {
    rows: RowSelection,
    /// The number of complete rows.
    written: u64,
    /// The position at which the last read stopped; None: there was none.
    stop: Option<RowPosition>,
}

#[derive(Debug)]
struct RowPosition {
    key: Box<[u8]>,
    /// The number of the value's bytes that are written; None: the row is complete.
    offset: Option<usize>,
}

impl RowReader {
    pub(super) fn new(rows: RowSelection) -> Self {
        Self { rows, written: 0, stop: None }
    }

    pub(super) fn rows(&self) -> &RowSelection {
        &self.rows
    }

    pub(super) fn into_rows(self) -> RowSelection {
        self.rows
    }

    pub(super) fn restart(&mut self) {
        self.written = 0;
        self.stop = None;
    }

    /// Appends rows of about `budget` bytes, and stops when `out` is longer than `out_max`. True: all rows
    /// are written.
    pub(super) fn read(
        &mut self,
        view: StateView<'_>,
        budget: usize,
        out_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let stop = self.stop.take();
        if stop.is_none() {
            out.extend_from_slice(self.rows.shape.brackets().0.as_bytes());
        }
        let mut piece = RowPiece { from: out.len(), budget: budget.max(1), out_max, out };
        let mut offset = stop.as_ref().and_then(|stop| stop.offset);
        let first_of_space = self.rows.space.map(|space| [space]);
        let (from, is_back) = match (&stop, &self.rows.start) {
            (Some(RowPosition { key, offset: None }), start) => {
                (Bound::Excluded(&**key), *start == RowStart::Last)
            }
            (Some(RowPosition { key, offset: Some(_) }), start) => {
                (Bound::Included(&**key), *start == RowStart::Last)
            }
            (None, RowStart::First) => match &first_of_space {
                Some(first) => (Bound::Included(first.as_slice()), false),
                None => (Bound::Unbounded, false),
            },
            (None, RowStart::Last) => (Bound::Unbounded, true),
            (None, RowStart::Key(key)) => (Bound::Included(&**key), false),
            (None, RowStart::Nth(place)) => match view.nth(*place) {
                Some((key, _)) => (Bound::Included(key), false),
                None => return self.end(out),
            },
        };
        // Descending rows begin at the end of their space.
        let after_space = self.rows.space.and_then(|space| space.checked_add(1)).map(|space| [space]);
        let from = match (&after_space, from) {
            (Some(after), Bound::Unbounded) if is_back => Bound::Excluded(after.as_slice()),
            (_, from) => from,
        };
        let each = |key: &[u8], value: Value<'_>| {
            if self.written == self.rows.most
                || self.rows.space.is_some_and(|space| key.first() != Some(&space))
            {
                return false;
            }
            let offset_now = offset.take();
            let cut = piece.row(self.rows.shape, key, value, offset_now, self.written == 0);
            self.written += u64::from(cut.is_none());
            if cut.is_some() || piece.is_full() {
                self.stop = Some(RowPosition { key: key.into(), offset: cut });
            }
            self.stop.is_none()
        };
        if is_back {
            view.scan_back(from, each);
        } else {
            view.scan(from, each);
        }
        if self.stop.is_some() { false } else { self.end(out) }
    }

    fn end(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(self.rows.shape.brackets().1.as_bytes());
        true
    }
}

/// The output of one read.
#[derive(Debug)]
struct RowPiece<'a> {
    from: usize,
    budget: usize,
    out_max: usize,
    out: &'a mut Vec<u8>,
}

impl RowPiece<'_> {
    fn is_full(&self) -> bool {
        self.out.len() - self.from >= self.budget || self.out.len() > self.out_max
    }

    /// Writes a row, or the rest of a divided row from this offset of its value on. Returns the offset at
    /// which the value was divided.
    fn row(
        &mut self,
        shape: RowShape,
        key: &[u8],
        value: Value<'_>,
        offset: Option<usize>,
        is_first: bool,
    ) -> Option<usize> {
        if offset.is_none() {
            shape.head(key, is_first, self.out);
        }
        if shape.has_value() {
            let mut offset = offset.unwrap_or(0);
            let mut piece = Vec::new();
            while offset < value.len() {
                if self.is_full() {
                    return Some(offset);
                }
                let left = self.budget.saturating_sub(self.out.len() - self.from).max(json::PIECE_MIN);
                let bytes = match value {
                    Value::Inline(bytes) => &bytes[offset..bytes.len().min(offset.saturating_add(left))],
                    Value::Huge(_) => {
                        piece.clear();
                        copy_part(&value, offset, left, &mut piece);
                        &piece
                    }
                };
                if shape.is_json() {
                    let is_last = offset + bytes.len() == value.len();
                    offset += json::escape(bytes, is_last, self.out);
                } else {
                    self.out.extend_from_slice(bytes);
                    offset += bytes.len();
                }
            }
        }
        shape.tail(self.out);
        None
    }
}

/// Appends up to `most` bytes of a value from `offset` on.
fn copy_part(value: &Value<'_>, offset: usize, most: usize, out: &mut Vec<u8>) {
    let end = value.len().min(offset.saturating_add(most));
    let mut offset = offset;
    while offset < end {
        let slice = match value {
            Value::Inline(bytes) => &bytes[offset..],
            Value::Huge(huge) => huge.slice_from(offset),
        };
        let slice = &slice[..slice.len().min(end - offset)];
        if slice.is_empty() {
            return;
        }
        out.extend_from_slice(slice);
        offset += slice.len();
    }
}
