//! Replies that show many members: read in pieces, from one object or from several, while nothing changes them.
//!
//! The caller asks which object must be read next ([`Listing::wants`]), finds its state, and gives it
//! ([`Listing::read`]) until nothing is wanted; then [`Listing::finish`] has the value. What is listed is one of three:
//! rows of one object (`listing/rows.rs`), a combination of sets (`listing/merge.rs`), or what a type makes of the states of
//! several objects, one after the other ([`Listing::fold`]).
//!
//! # Invariants
//! * How a listing is divided into reads does not change its value.
//! * A read copies at most about its budget in bytes, and one entry; a long value is read in pieces. Only a fold takes a
//!   whole state at once.
//! * A result that is too long is noticed by the read that makes it so: nothing is wanted any more.

pub(crate) mod json;
mod merge;
mod rows;

use crate::call::{CACHE_MISS, CallError, Frame, Reply};
use crate::object::{Object, View};
use crate::settings::Settings;
pub(crate) use merge::Combination;
use merge::Merge;
use rows::Reader;
pub(crate) use rows::{Rows, Shape, Start};

/// A reply that shows many members. See the module's text.
#[derive(Debug)]
pub struct Listing {
    keys: Vec<Box<[u8]>>,
    work: Work,
    out: Vec<u8>,
    next: Next,
    /// An absent object is answered as Cacheismo does.
    compat: bool,
    /// How many of the objects are known to be there, if all must be.
    present: Option<usize>,
}

/// The result is longer than a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

#[derive(Debug)]
enum Work {
    Rows(Reader),
    Merge(Merge),
    Fold { fold: Fold, finish: Finish, folded: Vec<u8>, read: usize },
}

/// Takes a state to what was made of those before it.
type Fold = fn(&mut Vec<u8>, View<'_>);
/// Writes the value.
type Finish = fn(&[u8], &mut Vec<u8>);

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Read the object at this place.
    Read(usize),
    /// Nothing: it is complete.
    Done,
    /// Nothing: the object of the call is absent.
    Absent,
    /// Nothing: the result is too long.
    TooLarge,
}

impl Listing {
    /// Rows of an object.
    pub(crate) fn rows(key: &[u8], rows: Rows) -> Self {
        Self::new(vec![key.into()], Work::Rows(Reader::new(rows)))
    }

    /// A combination of sets, a member a line, in order. `keys`: the first is the object of the call.
    pub(crate) fn sets<'k>(keys: impl Iterator<Item = &'k [u8]>, combination: Combination) -> Self {
        let mut distinct: Vec<Box<[u8]>> = Vec::new();
        let mut sources = Vec::new();
        for key in keys {
            let place = distinct.iter().position(|own| **own == *key).unwrap_or(distinct.len());
            if place == distinct.len() {
                distinct.push(key.into());
            }
            sources.push(place);
        }
        Self::new(distinct, Work::Merge(Merge::new(combination, sources)))
    }

    /// The same under these settings: in the form of Cacheismo an absent object is `ERROR_CACHE_MISS`, and so is an absent
    /// one of several sets.
    pub(crate) fn under(mut self, settings: &Settings) -> Self {
        self.compat = settings.compat;
        self.present = (self.compat && matches!(self.work, Work::Merge(_))).then_some(0);
        self
    }

    /// What `finish` writes after `fold` has taken the states of all these objects, each whole and in their order. `keys`:
    /// at least the object of the call, which is the first.
    pub fn fold(keys: Vec<Box<[u8]>>, fold: Fold, finish: Finish) -> Self {
        Self::new(keys, Work::Fold { fold, finish, folded: Vec::new(), read: 0 })
    }

    fn new(keys: Vec<Box<[u8]>>, work: Work) -> Self {
        Self { keys, work, out: Vec::new(), next: Next::Read(0), compat: false, present: None }
    }

    /// Keys of the objects that it reads, of the type of the call, each once; the first is the object of the call.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// The object that must be read next, by its place among the keys; None: it is complete, or too large.
    pub fn wants(&self) -> Option<usize> {
        match self.next {
            Next::Read(place) => Some(place),
            Next::Done | Next::Absent | Next::TooLarge => None,
        }
    }

    /// Reads up to about `budget` bytes more of the object that is wanted, which is at `place`. `result_max`: the longest
    /// result in bytes.
    pub fn read(&mut self, place: usize, view: View<'_>, budget: usize, result_max: usize) {
        debug_assert_eq!(self.wants(), Some(place), "only what is wanted is read");
        if (place == 0 || self.present.is_some()) && matches!(view, View::Absent) {
            self.next = Next::Absent;
            return;
        }
        if let Some(present) = self.present.as_mut().filter(|present| **present < self.keys.len()) {
            *present += 1;
            if *present < self.keys.len() {
                self.next = Next::Read(*present);
                return;
            }
            if place > 0 {
                self.next = Next::Read(0);
                return;
            }
        }
        let next = match &mut self.work {
            Work::Rows(rows) => (!rows.read(view, budget, result_max, &mut self.out)).then_some(0),
            Work::Merge(merge) => merge.read(view, budget, result_max, &mut self.out),
            Work::Fold { fold, finish, folded, read } => {
                fold(folded, view);
                *read += 1;
                if *read == self.keys.len() {
                    finish(folded, &mut self.out);
                }
                (*read < self.keys.len()).then_some(*read)
            }
        };
        self.next = match next {
            _ if self.out.len() > result_max => Next::TooLarge,
            Some(place) => Next::Read(place),
            None => Next::Done,
        };
    }

    /// Client flags of its value: those given for a value in JSON, 0 for others.
    pub fn flags(&self, json_flags: u32) -> u32 {
        if self.is_json() { json_flags } else { 0 }
    }

    /// The value; None: an object that must be there is absent, and the call is a miss. To be called when nothing is wanted.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn finish(self) -> Result<Option<Vec<u8>>, TooLarge> {
        debug_assert_eq!(self.wants(), None, "it is read to its end first");
        match self.next {
            Next::TooLarge => Err(TooLarge),
            Next::Absent => Ok(self.compat.then(|| CACHE_MISS.to_vec())),
            Next::Read(_) | Next::Done => Ok(Some(self.out)),
        }
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        self.out.clear();
        self.next = Next::Read(0);
        self.present = self.present.map(|_| 0);
        match &mut self.work {
            Work::Rows(rows) => rows.restart(),
            Work::Merge(merge) => merge.restart(),
            Work::Fold { folded, read, .. } => {
                folded.clear();
                *read = 0;
            }
        }
    }

    /// Whether its value is JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(&self.work, Work::Rows(rows) if rows.rows().shape.is_json())
    }
}

/// Bytes that a method reads itself. A listing that is complete by then is the call's reply, without the detour.
const AT_ONCE_BYTES: usize = 4096;

/// The reply that is the value of a member, as [`Shape::Value`] or [`Shape::Pair`]; a miss if it is not there.
pub(crate) fn show_value(
    object: &Object<'_>,
    key: &[u8],
    shape: Shape,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    let Some(value) = object.view().member(key) else { return Ok(Reply::Miss) };
    if value.len() > AT_ONCE_BYTES {
        let rows = Rows { shape, space: None, start: Start::Key(key.into()), most: 1 };
        return show(object, rows, frame);
    }
    shape.head(key, true, frame.out);
    value.copy_to(frame.out);
    Ok(Reply::Value)
}

/// The reply that shows rows of an object.
pub(crate) fn show(object: &Object<'_>, rows: Rows, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let from = frame.out.len();
    let shape = rows.shape;
    let mut reader = Reader::new(rows);
    let result_max = frame.settings.result_max;
    let is_complete = reader.read(object.view(), AT_ONCE_BYTES, from.saturating_add(result_max), frame.out);
    if frame.out.len() - from > result_max {
        return Err(CallError::Server("result too large".to_owned()));
    }
    if !is_complete {
        frame.out.truncate(from);
        return Ok(Reply::List(Listing::rows(object.key(), reader.into_rows()).under(frame.settings)));
    }
    Ok(if shape.is_json() { Reply::Json } else { Reply::Value })
}
