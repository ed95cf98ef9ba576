//! The object on which a method works.

use std::sync::Arc;

use cattlegrid_store::{Memory, Tree};

use crate::fields::{Layer, LayerBase, PendingChanges};
use crate::members::Members;

/// The state of an object before a call.
#[derive(Debug)]
pub enum ObjectState<'a> {
    /// There is no object.
    Absent,
    /// The state is bytes of the item.
    Bytes(&'a [u8]),
    /// The state is a tree outside the log.
    Tree(&'a mut Tree),
    /// The state is a field of an object, with the call's changes: see [`Layer`].
    Field {
        /// The object.
        base: FieldBase<'a>,
        /// The changes by the call.
        pending: &'a mut PendingChanges,
        /// The field's number.
        field: u8,
    },
}

/// The object that has a field.
#[derive(Debug, Clone, Copy)]
pub struct FieldBase<'a>(pub(crate) LayerBase<'a>);

/// A state for reading.
#[derive(Debug, Clone, Copy)]
pub enum StateView<'a> {
    /// There is no object.
    Absent,
    /// The state is bytes of the item.
    Bytes(&'a [u8]),
    /// The state is a tree outside the log.
    Tree(&'a Tree),
    /// A field of an object.
    Layer(Layer<'a>),
}

/// The change of an object's state by a call.
#[derive(Debug)]
pub enum StateChange {
    /// The state is unchanged.
    None,
    /// The new state is the bytes in the buffer that the call was given.
    Bytes,
    /// The existing tree has changed.
    Tree,
    /// The members have outgrown the item, and this tree is the new state.
    NewTree(Box<Tree>),
    /// The object was dropped.
    Dropped,
}

/// An object while a method runs.
#[derive(Debug)]
pub struct Object<'a> {
    key: &'a [u8],
    pub(crate) state: ObjectState<'a>,
    /// The changed copy of the bytes, if there is one.
    pub(crate) new: &'a mut Vec<u8>,
    pub(crate) change: StateChange,
    pub(crate) memory: &'a Arc<Memory>,
    #[expect(clippy::option_option, reason = "no change is not the same as no end")]
    expires_ms: Option<Option<u64>>,
    /// The expiry before the call, in Unix milliseconds.
    found_expires_ms: Option<u64>,
}

impl<'a> Object<'a> {
    /// An object for a call. `new`: a buffer for the changed bytes. `expires_ms`: the expiry, in Unix
    /// milliseconds; None: never.
    pub fn new(
        key: &'a [u8],
        state: ObjectState<'a>,
        new: &'a mut Vec<u8>,
        memory: &'a Arc<Memory>,
        expires_ms: Option<u64>,
    ) -> Self {
        new.clear();
        let (change, found_expires_ms) = (StateChange::None, expires_ms);
        Self { key, state, new, change, memory, expires_ms: None, found_expires_ms }
    }

    /// The object's key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Whether the object exists, after the call's changes so far.
    pub fn exists(&self) -> bool {
        match self.change {
            StateChange::None => !matches!(self.state, ObjectState::Absent),
            StateChange::Dropped => false,
            StateChange::Bytes | StateChange::Tree | StateChange::NewTree(_) => true,
        }
    }

    /// The state as bytes; empty if there is no object, or if the state is a tree.
    pub fn bytes(&self) -> &[u8] {
        match (&self.change, &self.state) {
            (StateChange::Bytes, _) => self.new,
            (StateChange::None, ObjectState::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// The state as bytes that can be changed: a copy, which is used if the method succeeds. An absent object
    /// exists from now on, with no bytes.
    pub fn edit(&mut self) -> &mut Vec<u8> {
        if !matches!(self.change, StateChange::Bytes) {
            self.new.clear();
            if let (StateChange::None, ObjectState::Bytes(bytes)) = (&self.change, &self.state) {
                self.new.extend_from_slice(bytes);
            }
            self.change = StateChange::Bytes;
        }
        self.new
    }

    /// Replaces the whole state.
    pub fn set(&mut self, state: &[u8]) {
        self.new.clear();
        self.new.extend_from_slice(state);
        self.change = StateChange::Bytes;
    }

    /// The members of a collection; none if the object is absent.
    pub fn members(&mut self) -> Members<'_, 'a> {
        Members::new(self)
    }

    /// The state for reading.
    pub fn view(&self) -> StateView<'_> {
        match (&self.change, &self.state) {
            (StateChange::Bytes, _) => StateView::Bytes(self.new),
            (StateChange::NewTree(tree), _) => StateView::Tree(tree),
            (StateChange::Dropped, _) | (StateChange::None, ObjectState::Absent) => StateView::Absent,
            (StateChange::None, ObjectState::Bytes(bytes)) => StateView::Bytes(bytes),
            (_, ObjectState::Tree(tree)) => StateView::Tree(tree),
            (_, ObjectState::Field { base, pending, field }) => {
                StateView::Layer(Layer::new(base.0, pending, *field))
            }
            (StateChange::Tree, _) => StateView::Absent,
        }
    }

    /// Drops the object.
    pub fn discard(&mut self) {
        self.change = StateChange::Dropped;
    }

    /// The expiry after the call's changes so far: Unix time in milliseconds; None: never.
    pub fn expires_ms(&self) -> Option<u64> {
        self.expires_ms.unwrap_or(self.found_expires_ms)
    }

    /// Sets the expiry: Unix time in milliseconds; None: never.
    pub fn expire_at(&mut self, ms: Option<u64>) {
        self.expires_ms = Some(ms);
    }

    /// The change of the state, and the new expiry if the call has set one.
    #[expect(clippy::option_option, reason = "as in `Done`")]
    pub(crate) fn finish(self) -> (StateChange, Option<Option<u64>>) {
        (self.change, self.expires_ms)
    }
}
