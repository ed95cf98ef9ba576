//! Arguments and replies: lists of byte strings, encoded once and passed on as bytes.
//!
//! # Invariant
//! The bytes inside an [`Args`] or a [`Reply`] are a valid list.

use std::sync::Arc;

use bytes::Bytes;
use cattlegrid_worker::List;
use cattlegrid_worker::list::put_list;

use crate::reply_room::RoomPermit;

/// The arguments of a job: a list of byte strings.
///
/// Made from arrays, slices and vectors of anything that is bytes: `["thumb", "cat.png"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    pub(crate) encoded: Bytes,
}

impl Args {
    /// Bytes on the wire, without header.
    pub fn len(&self) -> usize {
        self.encoded.len()
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// The arguments.
    pub fn list(&self) -> List<'_> {
        List::parse(&self.encoded).unwrap_or(List::EMPTY)
    }
}

impl<P: AsRef<[u8]>> From<&[P]> for Args {
    fn from(parts: &[P]) -> Self {
        let len = parts.iter().map(|part| part.as_ref().len() + 5).sum::<usize>();
        let mut out = Vec::with_capacity(len + 5);
        put_list(&mut out, parts);
        Self { encoded: out.into() }
    }
}

impl<P: AsRef<[u8]>, const N: usize> From<[P; N]> for Args {
    fn from(parts: [P; N]) -> Self {
        Self::from(&parts[..])
    }
}

impl<P: AsRef<[u8]>, const N: usize> From<&[P; N]> for Args {
    fn from(parts: &[P; N]) -> Self {
        Self::from(&parts[..])
    }
}

impl<P: AsRef<[u8]>> From<Vec<P>> for Args {
    fn from(parts: Vec<P>) -> Self {
        Self::from(&parts[..])
    }
}

impl<P: AsRef<[u8]>> From<&Vec<P>> for Args {
    fn from(parts: &Vec<P>) -> Self {
        Self::from(&parts[..])
    }
}

/// The reply to a job: a list of byte strings. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reply {
    /// A checked list.
    body: Bytes,
    room: Option<Arc<RoomPermit>>,
}

impl PartialEq for Reply {
    fn eq(&self, other: &Self) -> bool {
        self.body == other.body
    }
}

impl Eq for Reply {}

impl Reply {
    /// Checks that `body` is a list.
    pub(crate) fn new(body: Bytes) -> Option<Self> {
        List::parse(&body)?;
        Some(Self { body, room: None })
    }

    /// The same, which has this room until it is dropped.
    pub(crate) fn within(self, room: Option<RoomPermit>) -> Self {
        Self { room: room.map(Arc::new), ..self }
    }

    /// The room that this reply has of a [`crate::ReplyRoom`], for a caller that takes out what it needs and
    /// drops the rest: it is given back when neither the reply nor this is left.
    pub fn room(&self) -> Option<Arc<RoomPermit>> {
        self.room.clone()
    }

    /// The parts.
    pub fn parts(&self) -> List<'_> {
        List::parse(&self.body).unwrap_or(List::EMPTY)
    }

    /// Part `index`, or no bytes when there are fewer.
    pub fn part(&self, index: usize) -> &[u8] {
        self.parts().get(index).unwrap_or_default()
    }

    /// The first part as text, with replacement characters where it is not UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.part(0)).into_owned()
    }

    /// The first part without copying; keeps the bytes of the whole reply alive, but not its [`Reply::room`].
    pub fn into_bytes(self) -> Bytes {
        let part = self.part(0);
        if part.is_empty() { Bytes::new() } else { self.body.slice_ref(part) }
    }
}
