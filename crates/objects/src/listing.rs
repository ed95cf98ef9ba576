//! Replies that show many members. They are read in pieces from one or more objects, which do not change
//! during a read.
//!
//! The caller asks which object must be read next ([`Listing::wants`]), finds its state, and passes it to
//! [`Listing::read`], until no further read is needed. Then [`Listing::finish`] returns the value. A listing
//! is one of three: rows of one object (`listing/rows.rs`), a combination of sets (`listing/merge.rs`), or a
//! fold over the states of several objects ([`Listing::fold`]).
//!
//! # Invariants
//! * The value of a listing does not depend on its division into reads.
//! * A read copies about as many bytes as its budget, and one entry; a long value is read in pieces. Only a
//!   fold reads a whole state at once.
//! * A result that is too long is noticed by the read that exceeds the limit, and is then not read further.

pub(crate) mod json;
mod merge;
mod rows;

use crate::call::{CACHE_MISS, CallContext, CallError, MethodReply};
use crate::object::{Object, StateView};
use crate::settings::Settings;
pub(crate) use merge::Combination;
use merge::Merge;
use rows::RowReader;
pub(crate) use rows::{RowSelection, RowShape, RowStart};

/// A reply that shows many members.
#[derive(Debug)]
pub struct Listing {
    keys: Vec<Box<[u8]>>,
    work: ListingWork,
    out: Vec<u8>,
    next: NextStep,
    /// Whether an absent object is answered in Cacheismo's form.
    compat: bool,
    /// If all objects must be present, the number of those that were found.
    present: Option<usize>,
}

/// The result is longer than a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

#[derive(Debug)]
enum ListingWork {
    Rows(RowReader),
    Merge(Merge),
    Fold { fold: Fold, finish: Finish, folded: Vec<u8>, read: usize },
}

/// Adds a state to the result of the states before it.
type Fold = fn(&mut Vec<u8>, StateView<'_>);
/// Writes the value from the result.
type Finish = fn(&[u8], &mut Vec<u8>);

/// The next step of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    /// Read the object at this position among the keys.
    Read(usize),
    /// None: the listing is complete.
    Done,
    /// None: the object of the call is absent.
    Absent,
    /// None: the result is too long.
    TooLarge,
}

impl Listing {
    /// Lists rows of an object.
    pub(crate) fn rows(key: &[u8], rows: RowSelection) -> Self {
        Self::new(vec![key.into()], ListingWork::Rows(RowReader::new(rows)))
    }

    /// Lists a combination of sets, a member a line, in order. `keys`: the first is the object of the call.
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
        Self::new(distinct, ListingWork::Merge(Merge::new(combination, sources)))
    }

    /// Sets the form of the reply for absent objects: with Cacheismo's form, an absent object gives
    /// `ERROR_CACHE_MISS`, and so does an absent one of several sets.
    pub(crate) fn with_settings(mut self, settings: &Settings) -> Self {
        self.compat = settings.compat;
        self.present = (self.compat && matches!(self.work, ListingWork::Merge(_))).then_some(0);
        self
    }

    /// Lists the result of `finish`, after `fold` has taken the states of all objects of `keys`, each
    /// completely and in their order. `keys`: one or more; the first is the object of the call.
    pub fn fold(keys: Vec<Box<[u8]>>, fold: Fold, finish: Finish) -> Self {
        Self::new(keys, ListingWork::Fold { fold, finish, folded: Vec::new(), read: 0 })
    }

    fn new(keys: Vec<Box<[u8]>>, work: ListingWork) -> Self {
        Self { keys, work, out: Vec::new(), next: NextStep::Read(0), compat: false, present: None }
    }

    /// The keys of the objects to read, each once; the first is the object of the call. All are of the call's
    /// type.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|key| &**key)
    }

    /// The position among the keys of the object that must be read next; None: the listing is complete, or
    /// too large.
    pub fn wants(&self) -> Option<usize> {
        match self.next {
            NextStep::Read(place) => Some(place),
            NextStep::Done | NextStep::Absent | NextStep::TooLarge => None,
        }
    }

    /// Reads about `budget` further bytes of the object at position `place`, which [`Listing::wants`] has
    /// returned. `result_max`: the longest result, in bytes.
    pub fn read(&mut self, place: usize, view: StateView<'_>, budget: usize, result_max: usize) {
        debug_assert_eq!(self.wants(), Some(place), "only what is wanted is read");
        if (place == 0 || self.present.is_some()) && matches!(view, StateView::Absent) {
            self.next = NextStep::Absent;
            return;
        }
        if let Some(present) = self.present.as_mut().filter(|present| **present < self.keys.len()) {
            *present += 1;
            if *present < self.keys.len() {
                self.next = NextStep::Read(*present);
                return;
            }
            if place > 0 {
                self.next = NextStep::Read(0);
                return;
            }
        }
        let next = match &mut self.work {
            ListingWork::Rows(rows) => (!rows.read(view, budget, result_max, &mut self.out)).then_some(0),
            ListingWork::Merge(merge) => merge.read(view, budget, result_max, &mut self.out),
            ListingWork::Fold { fold, finish, folded, read } => {
                fold(folded, view);
                *read += 1;
                if *read == self.keys.len() {
                    finish(folded, &mut self.out);
                }
                (*read < self.keys.len()).then_some(*read)
            }
        };
        self.next = match next {
            _ if self.out.len() > result_max => NextStep::TooLarge,
            Some(place) => NextStep::Read(place),
            None => NextStep::Done,
        };
    }

    /// The client flags of the value: `json_flags` for a value in JSON, otherwise 0.
    pub fn flags(&self, json_flags: u32) -> u32 {
        if self.is_json() { json_flags } else { 0 }
    }

    /// The value; None: an object that must be present is absent, and the call is a miss. To be called when
    /// [`Listing::wants`] returns None.
    ///
    /// # Errors
    /// [`TooLarge`]: the result is too long.
    pub fn finish(self) -> Result<Option<Vec<u8>>, TooLarge> {
        debug_assert_eq!(self.wants(), None, "it is read to its end first");
        match self.next {
            NextStep::TooLarge => Err(TooLarge),
            NextStep::Absent => Ok(self.compat.then(|| CACHE_MISS.to_vec())),
            NextStep::Read(_) | NextStep::Done => Ok(Some(self.out)),
        }
    }

    /// Begins the listing again.
    pub fn restart(&mut self) {
        self.out.clear();
        self.next = NextStep::Read(0);
        self.present = self.present.map(|_| 0);
        match &mut self.work {
            ListingWork::Rows(rows) => rows.restart(),
            ListingWork::Merge(merge) => merge.restart(),
            ListingWork::Fold { folded, read, .. } => {
                folded.clear();
                *read = 0;
            }
        }
    }

    /// Whether the value is JSON.
    pub(crate) fn is_json(&self) -> bool {
        matches!(&self.work, ListingWork::Rows(rows) if rows.rows().shape.is_json())
    }
}

/// Bytes that a method reads itself. If the listing is complete then, it is the call's reply, and needs no
/// further reads.
const AT_ONCE_BYTES: usize = 4096;

/// Replies with the value of a member, in the form [`RowShape::Value`] or [`RowShape::Pair`]; a miss if it is
/// absent.
pub(crate) fn show_value(
    object: &Object<'_>,
    key: &[u8],
    shape: RowShape,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(value) = object.view().member(key) else { return Ok(MethodReply::Miss) };
    if value.len() > AT_ONCE_BYTES {
        let rows = RowSelection { shape, space: None, start: RowStart::Key(key.into()), most: 1 };
        return show(object, rows, context);
    }
    shape.head(key, true, context.out);
    value.copy_to(context.out);
    Ok(MethodReply::Value)
}

/// Replies with rows of an object.
pub(crate) fn show(
    object: &Object<'_>,
    rows: RowSelection,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let from = context.out.len();
    let shape = rows.shape;
    let mut reader = RowReader::new(rows);
    let result_max = context.settings.result_max;
    let is_complete = reader.read(object.view(), AT_ONCE_BYTES, from.saturating_add(result_max), context.out);
    if context.out.len() - from > result_max {
        return Err(CallError::Server("result too large".to_owned()));
    }
    if !is_complete {
        context.out.truncate(from);
        return Ok(MethodReply::List(
            Listing::rows(object.key(), reader.into_rows()).with_settings(context.settings),
        ));
    }
    Ok(if shape.is_json() { MethodReply::Json } else { MethodReply::Value })
}
