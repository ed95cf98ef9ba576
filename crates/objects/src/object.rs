//! The object that a method works on.

use std::sync::Arc;

use cattlegrid_store::{Memory, Tree};

use crate::fields::{Base, Layer, Pending};
use crate::members::Members;

/// The state that was found.
#[derive(Debug)]
pub enum ObjectState<'a> {
    /// There is no object.
    Absent,
    /// In the item.
    Bytes(&'a [u8]),
    /// Outside the log.
    Tree(&'a mut Tree),
    /// A field of an object, with what the call has changed in it: see [`Layer`].
    Field {
        /// The object.
        base: FieldBase<'a>,
        /// What the call has changed.
        pending: &'a mut Pending,
        /// The field's number.
        field: u8,
    },
}

/// The object that has a field.
#[derive(Debug, Clone, Copy)]
pub struct FieldBase<'a>(pub(crate) Base<'a>);

/// A state that is only read.
#[derive(Debug, Clone, Copy)]
pub enum View<'a> {
    /// There is no object.
    Absent,
    /// In the item.
    Bytes(&'a [u8]),
    /// Outside the log.
    Tree(&'a Tree),
    /// A field of an object.
    Layer(Layer<'a>),
}

/// What becomes of the state after a call.
#[derive(Debug)]
pub enum Change {
    /// Nothing has changed.
    None,
    /// The new state are the bytes in the buffer given to the call.
    Bytes,
    /// The tree that was found has changed.
    Tree,
    /// The members have outgrown the item: the state is this tree now.
    NewTree(Box<Tree>),
    /// There is no object any more.
    Dropped,
}

/// An object while a method runs.
#[derive(Debug)]
pub struct Object<'a> {
    key: &'a [u8],
    pub(crate) state: ObjectState<'a>,
    /// A copy of the bytes, if they were changed.
    pub(crate) new: &'a mut Vec<u8>,
    pub(crate) change: Change,
    pub(crate) memory: &'a Arc<Memory>,
    #[expect(clippy::option_option, reason = "no change is not the same as no end")]
    expires_ms: Option<Option<u64>>,
    /// When it expires as it was found, Unix time in milliseconds.
    found_expires_ms: Option<u64>,
}

impl<'a> Object<'a> {
    /// `new`: a buffer for the bytes after the call. `expires_ms`: when the object expires, if that is ever.
    pub fn new(
        key: &'a [u8],
        state: ObjectState<'a>,
        new: &'a mut Vec<u8>,
        memory: &'a Arc<Memory>,
        expires_ms: Option<u64>,
    ) -> Self {
        new.clear();
        let (change, found_expires_ms) = (Change::None, expires_ms);
        Self { key, state, new, change, memory, expires_ms: None, found_expires_ms }
    }

    /// Its key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Whether there is an object, as the call has left it so far.
    pub fn exists(&self) -> bool {
        match self.change {
            Change::None => !matches!(self.state, ObjectState::Absent),
            Change::Dropped => false,
            Change::Bytes | Change::Tree | Change::NewTree(_) => true,
        }
    }

    /// The state as bytes; empty when there is none, or when it is a tree.
    pub fn bytes(&self) -> &[u8] {
        match (&self.change, &self.state) {
            (Change::Bytes, _) => self.new,
            (Change::None, ObjectState::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The state as bytes to change: a copy, which takes effect when the method succeeds. An absent object begins empty,
    /// and exists from now on.
    pub fn edit(&mut self) -> &mut Vec<u8> {
        if !matches!(self.change, Change::Bytes) {
            self.new.clear();
            if let (Change::None, ObjectState::Bytes(bytes)) = (&self.change, &self.state) {
                self.new.extend_from_slice(bytes);
            }
            self.change = Change::Bytes;
        }
        self.new
    }

    /// Replaces the whole state.
    pub fn set(&mut self, state: &[u8]) {
        self.new.clear();
        self.new.extend_from_slice(state);
        self.change = Change::Bytes;
    }

    /// The members of a collection; none when the object is absent.
    pub fn members(&mut self) -> Members<'_, 'a> {
        Members::new(self)
    }

    /// The state, to read.
    pub fn view(&self) -> View<'_> {
        match (&self.change, &self.state) {
            (Change::Bytes, _) => View::Bytes(self.new),
            (Change::NewTree(tree), _) => View::Tree(tree),
            (Change::Dropped, _) | (Change::None, ObjectState::Absent) => View::Absent,
            (Change::None, ObjectState::Bytes(bytes)) => View::Bytes(bytes),
            (_, ObjectState::Tree(tree)) => View::Tree(tree),
            (_, ObjectState::Field { base, pending, field }) => {
                View::Layer(Layer::new(base.0, pending, *field))
            }
            (Change::Tree, _) => View::Absent,
        }
    }

    /// Drops the object.
    pub fn drop_it(&mut self) {
        self.change = Change::Dropped;
    }

    /// When it expires, as the call has left it so far: Unix time in milliseconds. None: never.
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires_ms.unwrap_or(self.found_expires_ms)
    }

    /// Lets it expire at this Unix time in milliseconds; None: never.
    pub fn expire_at(&mut self, ms: Option<u64>) {
        self.expires_ms = Some(ms);
    }

    /// What becomes of the state, and the new expiry if the call has set one.
    #[expect(clippy::option_option, reason = "as in `Done`")]
    pub(crate) fn finish(self) -> (Change, Option<Option<u64>>) {
        (self.change, self.expires_ms)
    }
}
