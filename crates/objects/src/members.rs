//! The members of a collection, in order of their keys: as bytes of the item while they are few, then in a tree outside
//! the log.
//!
//! ```text
//!   state of bytes:  | key bytes | value bytes | key | value |  ...      lengths: 7 bits a byte, lowest first
//! ```
//! Bytes are searched from the first entry on; a change moves the bytes behind it in the object's copy. A put that would
//! need more than [`FLAT_MAX`] bytes builds the tree. A tree stays a tree however few members are left: an object that was
//! large is expected to become large again, and an empty tree holds only a page or two.
//!
//! # Invariants
//! * A call that fails changes nothing. For bytes, and for a tree that the call itself has built, that holds for every
//!   sequence of changes, since the registry drops them. In a tree that was found a single change is done or not, and for
//!   several of them room is reserved before the first ([`Members::reserve`]).
//! * A state of any bytes is read without a panic: it ends at the first entry that is not complete.

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use arrayvec::ArrayVec;
use cattlegrid_store::{Tree, TreeFull, Value};

use crate::call::CallError;
use crate::object::{Change, Object, State, View};

/// Bytes of members, with their lengths, above which they move to a tree.
pub const FLAT_MAX: usize = 2048;

/// The members of an object while a method runs. A member is a key of 1 to [`Tree::KEY_MAX`] bytes, and a value, which may
/// be empty.
#[derive(Debug)]
pub struct Members<'o, 'a> {
    object: &'o mut Object<'a>,
    /// Pages of the tree may be in reserve.
    has_reserved: bool,
}

impl<'o, 'a> Members<'o, 'a> {
    pub(crate) fn new(object: &'o mut Object<'a>) -> Self {
        Self { object, has_reserved: false }
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        self.object.view().members()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.object.view().first().is_none()
    }

    /// Reserves room for this many members to be put, so that [`Members::put`] of values up to [`Tree::VALUE_INLINE_MAX`]
    /// bytes cannot fail. To be called before the first change; what is left is given back with `self`.
    ///
    /// # Errors
    /// [`CallError::NoRoom`]; nothing has changed then.
    pub fn reserve(&mut self, puts: usize) -> Result<(), CallError> {
        // A tree that the call has built is dropped if the call fails, as bytes are.
        let may_grow = self.object.may_grow();
        if matches!(self.object.change, Change::None | Change::Tree)
            && let State::Tree(tree) = &mut self.object.state
        {
            if puts > 0 && !may_grow {
                return Err(full());
            }
            self.has_reserved = true;
            tree.reserve(puts).map_err(no_room)?;
        }
        Ok(())
    }

    /// Calls `each` with the value of a member, if it is there.
    pub fn get<R>(&self, key: &[u8], each: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        self.object.view().member(key).map(each)
    }

    /// The value of a member, to change in place. None: it is not there, or it is longer than
    /// [`Tree::VALUE_INLINE_MAX`] bytes. The object counts as changed.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        if self.tree().is_some() {
            self.get(key, |_| ())?;
            self.mark();
            return self.tree()?.get_mut(key);
        }
        let Found { range, value: Some(value) } = find(self.object.bytes(), key) else { return None };
        let value_at = range.end - value.len();
        self.object.edit().get_mut(value_at..range.end)
    }

    /// Puts a member, or replaces its value. True: it is new.
    ///
    /// # Errors
    /// [`CallError::NoRoom`] unless room was reserved; nothing has changed then.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, CallError> {
        debug_assert!((1..=Tree::KEY_MAX).contains(&key.len()), "the caller checks the key's length");
        self.check_growth()?;
        if let Some(tree) = self.tree() {
            let is_new = tree.insert(key, value).map_err(no_room)?;
            self.mark();
            return Ok(is_new);
        }
        self.put_flat(key, value)
    }

    /// Adds a member to a collection whose members have no values. False: it is there already, and nothing has changed.
    ///
    /// # Errors
    /// As [`Members::put`].
    pub fn add(&mut self, key: &[u8]) -> Result<bool, CallError> {
        self.check_growth()?;
        if let Some(tree) = self.tree() {
            let is_new = tree.insert(key, &[]).map_err(no_room)?;
            if is_new {
                self.mark();
            }
            return Ok(is_new);
        }
        self.put_flat(key, &[])
    }

    /// Removes a member. False: it was not there, and nothing has changed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if let Some(tree) = self.tree() {
            let was_there = tree.remove(key);
            if was_there {
                self.mark();
            }
            return was_there;
        }
        let Found { range, value: Some(_) } = find(self.object.bytes(), key) else { return false };
        make_gap(self.object.edit(), range, 0);
        true
    }

    fn put_flat(&mut self, key: &[u8], value: &[u8]) -> Result<bool, CallError> {
        let bytes = self.object.bytes();
        let Found { range, value: old } = find(bytes, key);
        let is_new = old.is_none();
        if old == Some(value) {
            return Ok(false);
        }
        let gap = entry_len(key.len(), value.len());
        if bytes.len() - range.len() + gap > FLAT_MAX {
            self.plant(key, value, &range)?;
            return Ok(is_new);
        }
        let bytes = self.object.edit();
        let at = range.start;
        make_gap(bytes, range, gap);
        write_entry(&mut bytes[at..at + gap], key, value);
        Ok(is_new)
    }

    /// Moves all members to a tree, `key` with them, in place of the entry at `range`.
    fn plant(&mut self, key: &[u8], value: &[u8], range: &Range<usize>) -> Result<(), CallError> {
        let bytes = self.object.bytes();
        let mut tree = Tree::new(self.object.memory).map_err(no_room)?;
        for own in Entries::of(&bytes[..range.start]) {
            tree.insert(own.key, own.value).map_err(no_room)?;
        }
        tree.insert(key, value).map_err(no_room)?;
        for own in Entries::of(&bytes[range.end..]) {
            tree.insert(own.key, own.value).map_err(no_room)?;
        }
        self.object.change = Change::NewTree(Box::new(tree));
        Ok(())
    }

    /// A tree may take more memory. Flat members are checked where their item is stored.
    fn check_growth(&mut self) -> Result<(), CallError> {
        if self.object.may_grow() || self.tree().is_none() { Ok(()) } else { Err(full()) }
    }

    /// The tree that has the members, if one has.
    fn tree(&mut self) -> Option<&mut Tree> {
        match (&mut self.object.change, &mut self.object.state) {
            (Change::NewTree(tree), _) => Some(tree),
            (Change::None | Change::Tree, State::Tree(tree)) => Some(tree),
            _ => None,
        }
    }

    /// The tree that was found has changed.
    fn mark(&mut self) {
        if matches!(self.object.change, Change::None) {
            self.object.change = Change::Tree;
        }
    }
}

/// The limit of objects that are never evicted is reached.
fn full() -> CallError {
    CallError::Server("out of memory storing object".to_owned())
}

impl Drop for Members<'_, '_> {
    fn drop(&mut self) {
        if self.has_reserved
            && let State::Tree(tree) = &mut self.object.state
        {
            tree.release_reserve();
        }
    }
}

/// Of a collection: its members.
impl<'a> View<'a> {
    /// Number of members.
    pub(crate) fn members(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Bytes(bytes) => Entries::of(bytes).count() as u64,
            Self::Tree(tree) => tree.len(),
        }
    }

    /// The value of a member.
    pub(crate) fn member(self, key: &[u8]) -> Option<Value<'a>> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => find(bytes, key).value.map(Value::Inline),
            Self::Tree(tree) => tree.get(key),
        }
    }

    /// Number of members before this key, whether it is there or not.
    pub(crate) fn before(self, key: &[u8]) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Bytes(bytes) => Entries::of(bytes).take_while(|own| own.key < key).count() as u64,
            Self::Tree(tree) => tree.rank(key).unwrap_or_else(|before| before),
        }
    }

    /// The member with this many before it.
    pub(crate) fn nth(self, place: u64) -> Option<(&'a [u8], Value<'a>)> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => Entries::of(bytes).nth(usize::try_from(place).ok()?).map(Entry::pair),
            Self::Tree(tree) => tree.nth(place),
        }
    }

    /// The first member.
    pub(crate) fn first(self) -> Option<(&'a [u8], Value<'a>)> {
        self.nth(0)
    }

    /// The last member.
    pub(crate) fn last(self) -> Option<(&'a [u8], Value<'a>)> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => Entries::of(bytes).last().map(Entry::pair),
            Self::Tree(tree) => tree.nth(tree.len().checked_sub(1)?),
        }
    }

    /// Calls `each` with the members in order, from `from` on, until it returns false.
    pub(crate) fn scan(self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        match self {
            Self::Absent => {}
            Self::Bytes(bytes) => {
                let is_before = |own: &Entry<'_>| match from {
                    Bound::Included(from) => own.key < from,
                    Bound::Excluded(from) => own.key <= from,
                    Bound::Unbounded => false,
                };
                for own in Entries::of(bytes).skip_while(is_before) {
                    if !each(own.key, Value::Inline(own.value)) {
                        return;
                    }
                }
            }
            Self::Tree(tree) => tree.scan(from, each),
        }
    }

    /// The same in descending order, from `from` downwards.
    pub(crate) fn scan_back(self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        match self {
            Self::Absent => {}
            Self::Bytes(bytes) => {
                let is_within = |own: &Entry<'_>| match from {
                    Bound::Included(from) => own.key <= from,
                    Bound::Excluded(from) => own.key < from,
                    Bound::Unbounded => true,
                };
                let mut starts = ArrayVec::<u16, { FLAT_MAX / 2 }>::new();
                let within = Entries::of(bytes).take_while(is_within).take(starts.capacity());
                starts.extend(within.map(|own| own.range.start as u16));
                for start in starts.iter().rev() {
                    let Some(own) = Entries::of(&bytes[usize::from(*start)..]).next() else { return };
                    if !each(own.key, Value::Inline(own.value)) {
                        return;
                    }
                }
            }
            Self::Tree(tree) => tree.scan_back(from, each),
        }
    }
}

/// A member in a state of bytes.
#[derive(Debug)]
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
    range: Range<usize>,
}

impl<'a> Entry<'a> {
    fn pair(self) -> (&'a [u8], Value<'a>) {
        (self.key, Value::Inline(self.value))
    }
}

/// The members in a state of bytes.
#[derive(Debug)]
struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Entries<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let start = self.at;
        let rest = self.bytes.get(start..)?;
        let (key_len, rest) = read_len(rest)?;
        let (value_len, rest) = read_len(rest)?;
        let (key, rest) = rest.split_at_checked(key_len)?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        self.at = self.bytes.len() - rest.len();
        Some(Entry { key, value, range: start..self.at })
    }
}

/// Where a key is in a state of bytes, or where it belongs: an empty range and no value.
#[derive(Debug)]
struct Found<'a> {
    range: Range<usize>,
    value: Option<&'a [u8]>,
}

fn find<'a>(bytes: &'a [u8], key: &[u8]) -> Found<'a> {
    let mut entries = Entries::of(bytes);
    loop {
        let start = entries.at;
        let Some(own) = entries.next() else { return Found { range: start..start, value: None } };
        match own.key.cmp(key) {
            Ordering::Less => {}
            Ordering::Equal => return Found { range: own.range, value: Some(own.value) },
            Ordering::Greater => return Found { range: start..start, value: None },
        }
    }
}

/// Makes the bytes at `range` `gap` bytes long; the bytes behind it move.
fn make_gap(bytes: &mut Vec<u8>, range: Range<usize>, gap: usize) {
    let len = bytes.len();
    let new_len = len - range.len() + gap;
    if new_len > len {
        bytes.resize(new_len, 0);
    }
    bytes.copy_within(range.end..len, range.start + gap);
    bytes.truncate(new_len);
}

/// Lengths in a state of bytes are below 2 to the power of 14.
const LEN_SPLIT: usize = 0x80;

const _: () = assert!(FLAT_MAX < LEN_SPLIT * LEN_SPLIT, "a length has at most two bytes");

fn entry_len(key: usize, value: usize) -> usize {
    let len_bytes = |len: usize| if len < LEN_SPLIT { 1 } else { 2 };
    len_bytes(key) + len_bytes(value) + key + value
}

fn read_len(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match *bytes {
        [low, ref rest @ ..] if usize::from(low) < LEN_SPLIT => Some((usize::from(low), rest)),
        [low, high, ref rest @ ..] => {
            Some((usize::from(low) - LEN_SPLIT + usize::from(high) * LEN_SPLIT, rest))
        }
        _ => None,
    }
}

fn write_entry(mut to: &mut [u8], key: &[u8], value: &[u8]) {
    for len in [key.len(), value.len()] {
        to = if len < LEN_SPLIT {
            put_bytes(to, &[len as u8])
        } else {
            put_bytes(to, &[(len % LEN_SPLIT + LEN_SPLIT) as u8, (len / LEN_SPLIT) as u8])
        };
    }
    to = put_bytes(to, key);
    put_bytes(to, value);
}

fn put_bytes<'t>(to: &'t mut [u8], bytes: &[u8]) -> &'t mut [u8] {
    let (head, rest) = to.split_at_mut(bytes.len());
    head.copy_from_slice(bytes);
    rest
}

fn no_room(full: TreeFull) -> CallError {
    CallError::NoRoom(full.bytes)
}
