//! The members of a collection, in order: as bytes of the item while they are few, then in a tree outside the log.

use std::ops::Bound;

use cattlegrid_store::{Tree, Value};

use crate::call::CallError;
use crate::object::{Change, Object, State, View};

/// Bytes of members, with their lengths, above which they move to a tree.
pub const FLAT_MAX: usize = 2048;

/// The members of an object while a method runs. A member is a key, up to [`Tree::KEY_MAX`] bytes, and a value, which may be
/// empty.
#[derive(Debug)]
pub struct Members<'o, 'a> {
    object: &'o mut Object<'a>,
}

impl<'o, 'a> Members<'o, 'a> {
    pub(crate) fn new(object: &'o mut Object<'a>) -> Self {
        Self { object }
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        match self.object.view() {
            View::Absent => 0,
            View::Bytes(bytes) => flat(bytes).count() as u64,
            View::Tree(tree) => tree.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reserves room for this many members to be put, so that [`Members::put`] of values up to [`Tree::VALUE_INLINE_MAX`]
    /// bytes cannot fail. To be called before the first change.
    ///
    /// # Errors
    /// [`CallError::NoRoom`].
    pub fn reserve(&mut self, puts: usize) -> Result<(), CallError> {
        match (&mut self.object.change, &mut self.object.state) {
            (Change::None | Change::Tree, State::Tree(tree)) => {
                tree.reserve(puts).map_err(|full| CallError::NoRoom(full.bytes))
            }
            (Change::NewTree(tree), _) => tree.reserve(puts).map_err(|full| CallError::NoRoom(full.bytes)),
            _ => Ok(()),
        }
    }

    /// Calls `each` with the value of a member, if it is there.
    pub fn get<R>(&self, key: &[u8], each: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        match self.object.view() {
            View::Absent => None,
            View::Bytes(bytes) => {
                flat(bytes).find(|(own, _)| *own == key).map(|(_, value)| each(Value::Inline(value)))
            }
            View::Tree(tree) => tree.get(key).map(each),
        }
    }

    /// Puts a member, or replaces its value. True: it is new.
    ///
    /// # Errors
    /// [`CallError::NoRoom`] unless room was reserved; nothing has changed then.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, CallError> {
        if let Some(tree) = self.tree() {
            return tree.insert(key, value).map_err(|full| CallError::NoRoom(full.bytes));
        }
        let mut list: Vec<(Vec<u8>, Vec<u8>)> =
            flat(self.object.bytes()).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        let is_new = match list.binary_search_by(|(own, _)| own.as_slice().cmp(key)) {
            Ok(at) => {
                list[at].1 = value.to_vec();
                false
            }
            Err(at) => {
                list.insert(at, (key.to_vec(), value.to_vec()));
                true
            }
        };
        let mut bytes = Vec::new();
        for (key, value) in &list {
            bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
        }
        if bytes.len() > FLAT_MAX {
            let full = |full: cattlegrid_store::TreeFull| CallError::NoRoom(full.bytes);
            let mut tree = Tree::new(self.object.memory).map_err(full)?;
            tree.reserve(list.len()).map_err(full)?;
            for (key, value) in &list {
                tree.insert(key, value).map_err(full)?;
            }
            self.object.change = Change::NewTree(Box::new(tree));
        } else {
            self.object.set(&bytes);
        }
        Ok(is_new)
    }

    /// Removes a member. False: it was not there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if let Some(tree) = self.tree() {
            return tree.remove(key);
        }
        let mut bytes = Vec::new();
        let mut found = false;
        for (own, value) in flat(self.object.bytes()) {
            if own == key {
                found = true;
                continue;
            }
            bytes.extend_from_slice(&(own.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(own);
            bytes.extend_from_slice(value);
        }
        if found {
            self.object.set(&bytes);
        }
        found
    }

    fn tree(&mut self) -> Option<&mut Tree> {
        match (&mut self.object.change, &mut self.object.state) {
            (Change::NewTree(tree), _) => Some(tree),
            (change @ (Change::None | Change::Tree), State::Tree(tree)) => {
                *change = Change::Tree;
                Some(tree)
            }
            _ => None,
        }
    }
}

/// Of a collection: its members.
impl<'a> View<'a> {
    /// Number of members.
    pub(crate) fn members(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Bytes(bytes) => flat(bytes).count() as u64,
            Self::Tree(tree) => tree.len(),
        }
    }

    /// The value of a member.
    pub(crate) fn member(self, key: &[u8]) -> Option<Value<'a>> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => {
                flat(bytes).find(|(own, _)| *own == key).map(|(_, value)| Value::Inline(value))
            }
            Self::Tree(tree) => tree.get(key),
        }
    }

    /// The last member.
    pub(crate) fn last(self) -> Option<(&'a [u8], Value<'a>)> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => flat(bytes).last().map(|(key, value)| (key, Value::Inline(value))),
            Self::Tree(tree) => tree.nth(tree.len().checked_sub(1)?),
        }
    }

    /// Calls `each` with the members in order, from `from` on, until it returns false.
    pub(crate) fn scan(self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        match self {
            Self::Absent => {}
            Self::Bytes(bytes) => {
                let is_before = |own: &[u8]| match from {
                    Bound::Included(from) => own < from,
                    Bound::Excluded(from) => own <= from,
                    Bound::Unbounded => false,
                };
                for (key, value) in flat(bytes).skip_while(|(key, _)| is_before(key)) {
                    if !each(key, Value::Inline(value)) {
                        return;
                    }
                }
            }
            Self::Tree(tree) => tree.scan(from, each),
        }
    }
}

/// The members in a state of bytes.
fn flat(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (key, rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_first_chunk::<4>()?;
        let (key_len, value_len) = (u32::from_le_bytes(*key) as usize, u32::from_le_bytes(*value) as usize);
        let (key, rest) = rest.split_at(key_len);
        let (value, rest) = rest.split_at(value_len);
        bytes = rest;
        Some((key, value))
    })
}
