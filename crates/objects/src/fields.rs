//! The storage of objects of users' own types: plain values, and fields.
//!
//! ```text
//!   0 | plain state                        no fields: bytes of the item
//!   members                                with fields, flat or in a tree as those of any collection:
//!       key 0            the first part of the plain state, of at most 1000 bytes
//!       key 0 | n        its part n, from 1, as two bytes
//!       key N | member   members of field N, 1 to 250
//!       key 255          | number of fields in use | fields in use | fields being cleared |
//! ```
//! A flat collection begins with the length of its first key, which is 1. Changes of fields by a call are
//! kept in [`PendingChanges`], and seen by its later reads (`fields/layer.rs`), until they are applied.
//!
//! # Invariants
//! * A change is applied as a whole: room for everything is reserved first, and the only value that may be
//!   long is written first.
//! * The members of a field that is no longer used are removed in small groups, and its number is not used
//!   again until they are gone.

mod layer;
mod native;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use cattlegrid_store::{Tree, Value};

use crate::call::CallError;
use crate::members::Members;
use crate::object::{Object, StateView};
use crate::script::NewState;
pub use layer::Layer;
pub(crate) use layer::LayerBase;
pub use native::{FieldCall, FieldKind, FieldRows, RowOrder, dump_field, random_places};

/// The largest number of a field; the first is 1.
pub const FIELDS_MAX: u8 = 250;
/// The most changes of members in a call. Second keys of members, for their order, do not count.
pub const PENDING_MAX: usize = 4096;
/// The most bytes of the changed keys and values.
pub const PENDING_BYTES_MAX: usize = 1 << 20;
/// The longest key of a member of a field, in bytes.
pub const FIELD_KEY_MAX: usize = Tree::KEY_MAX - 1;
/// The size of a part of a state that consists of bytes.
const PART_BYTES: usize = Tree::VALUE_INLINE_MAX;
/// The key of the lists of fields.
const IN_USE: [u8; 1] = [255];
/// The number of members that are removed by the call that drops their field.
const CLEAR_AT_ONCE: usize = 256;
/// The least number of members that each later call removes.
const CLEAR_LATER: usize = 64;

/// Uncommitted changes of members of fields.
#[derive(Debug, Default)]
pub struct PendingChanges {
    /// The changes by the members' keys, which begin with the field.
    changes: BTreeMap<Box<[u8]>, MemberChange>,
    /// The number of `changes` that count for the limit; each brings at most two more.
    counted: usize,
    /// The bytes of keys and values of `changes`.
    bytes: usize,
    /// Fields whose members have a second key for their order, and the first byte of these keys.
    ordered: Vec<[u8; 2]>,
    /// The numbers of fields that the call has made.
    made: Vec<u8>,
    /// The numbers of fields that the new state refers to; None: those of the old state.
    kept: Option<Vec<u8>>,
    /// Changes by the method in progress: the keys, and their earlier entries in `changes`.
    undo: Vec<(Box<[u8]>, Option<MemberChange>)>,
}

/// A change of one member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MemberChange {
    /// The new value; None: the member is removed.
    value: Option<Box<[u8]>>,
    /// Whether the object has the member.
    in_base: bool,
}

impl MemberChange {
    /// The difference in the number of members.
    fn delta(&self) -> i64 {
        i64::from(self.value.is_some()) - i64::from(self.in_base)
    }
}

impl PendingChanges {
    /// No changes.
    pub const NONE: Self = Self {
        changes: BTreeMap::new(),
        counted: 0,
        bytes: 0,
        ordered: Vec::new(),
        made: Vec::new(),
        kept: None,
        undo: Vec::new(),
    };

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The number of changed keys.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// A number that is equal for equal changes of members; 0: there are none.
    pub fn digest(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        self.changes.hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// Chooses the number of a new field; None: all are used. `view`: the object; `used`: the numbers of the
    /// fields that its plain state refers to.
    pub fn make(&mut self, view: StateView<'_>, used: &[u8]) -> Option<u8> {
        let in_use = FieldNumbers::read(view);
        let is_free = |number: &u8| {
            ![used, &in_use.used, &in_use.clearing, &self.made].iter().any(|list| list.contains(number))
        };
        let number = (1..=FIELDS_MAX).find(is_free)?;
        self.made.push(number);
        Some(number)
    }

    /// Sets the fields that the new state refers to, and forgets changes of others.
    pub fn keep_fields(&mut self, kept: &[u8]) {
        self.changes.retain(|key, _| kept.contains(&key[0]));
        let all = self.changes.iter().map(|(key, own)| self.counts(key, own.value.as_deref()));
        (self.counted, self.bytes) = all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.kept = Some(kept.to_vec());
    }

    /// Notes that the members of a field have a second key, which begins with this byte.
    pub(crate) fn note_order(&mut self, field: u8, space: u8) {
        if !self.ordered.contains(&[field, space]) {
            self.ordered.push([field, space]);
        }
    }

    /// The number of changes that a change counts as, and its bytes.
    fn counts(&self, key: &[u8], value: Option<&[u8]>) -> (usize, usize) {
        match key.first_chunk() {
            Some(first) if self.ordered.contains(first) => (0, 0),
            _ => (1, key.len() + value.map_or(0, <[u8]>::len)),
        }
    }

    /// Checks that this many keys of a field can be put, of at most this many bytes each.
    ///
    /// # Errors
    /// The call has reached a limit.
    pub(crate) fn check_puts(&self, field: u8, puts: usize, bytes: usize) -> Result<(), CallError> {
        // Half of the changes are second keys.
        let is_ordered = self.ordered.iter().any(|own| own[0] == field);
        let counted = if is_ordered { puts / 2 } else { puts };
        self.check(counted, counted * bytes)
    }

    /// Checks that this many further changes fit, with this many bytes in all.
    ///
    /// # Errors
    /// The call has reached a limit.
    pub(crate) fn check(&self, changes: usize, bytes: usize) -> Result<(), CallError> {
        if self.counted + changes > PENDING_MAX {
            let text = format!("a call may change at most {PENDING_MAX} members of fields");
            return Err(CallError::Client(text));
        }
        if self.bytes + bytes > PENDING_BYTES_MAX {
            let text = format!("a call may change at most {PENDING_BYTES_MAX} bytes of fields");
            return Err(CallError::Client(text));
        }
        Ok(())
    }

    /// Puts a member of a field, like [`Members::put`].
    pub(crate) fn put(
        &mut self,
        base: LayerBase<'_>,
        field: u8,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, CallError> {
        self.change(base, &[&[field], key].concat(), Some(value)).map(|was_there| !was_there)
    }

    /// Removes a member of a field, like [`Members::remove`].
    pub(crate) fn remove(&mut self, base: LayerBase<'_>, field: u8, key: &[u8]) -> bool {
        self.change(base, &[&[field], key].concat(), None).unwrap_or(false)
    }

    /// The value of a member of a field, to change in place, like [`Members::get_mut`].
    pub(crate) fn value_mut(&mut self, base: LayerBase<'_>, field: u8, key: &[u8]) -> Option<&mut [u8]> {
        let key = [&[field], key].concat();
        if !self.changes.contains_key(&*key) {
            let Some(Value::Inline(value)) = base.view().member(&key) else { return None };
            let (counted, bytes) = self.counts(&key, Some(value));
            self.counted += counted;
            self.bytes += bytes;
            let own = MemberChange { value: Some(value.into()), in_base: true };
            self.changes.insert(key.as_slice().into(), own);
            self.undo.push((key.as_slice().into(), None));
        } else if let Some(own @ MemberChange { value: Some(_), .. }) = self.changes.get(&*key) {
            self.undo.push((key.as_slice().into(), Some(own.clone())));
        }
        self.changes.get_mut(&*key)?.value.as_deref_mut()
    }

    /// Runs a method; if it fails, its changes are undone.
    fn run_or_undo<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R, String>) -> Result<R, String> {
        let (counted, bytes) = (self.counted, self.bytes);
        let ran = run(self);
        if ran.is_err() {
            while let Some((key, old)) = self.undo.pop() {
                match old {
                    Some(old) => drop(self.changes.insert(key, old)),
                    None => drop(self.changes.remove(&key)),
                }
            }
            (self.counted, self.bytes) = (counted, bytes);
        }
        self.undo.clear();
        ran
    }

    /// Puts or removes a member and returns whether it was present; `key` is the object's, which begins with
    /// the field.
    fn change(&mut self, base: LayerBase<'_>, key: &[u8], value: Option<&[u8]>) -> Result<bool, CallError> {
        if key.len() > Tree::KEY_MAX {
            return Err(CallError::Client(format!("a member of a field has at most {FIELD_KEY_MAX} bytes")));
        }
        let is_long = |value: &[u8]| value.len() > Tree::VALUE_INLINE_MAX;
        if value.is_some_and(is_long)
            && self
                .changes
                .iter()
                .any(|(own, change)| **own != *key && change.value.as_deref().is_some_and(is_long))
        {
            // Long values need their room one after the other, and the second might find none.
            let most = Tree::VALUE_INLINE_MAX;
            return Err(CallError::Client(format!(
                "only one value of a call may be longer than {most} bytes"
            )));
        }
        let (counted, new_bytes) = self.counts(key, value);
        if let Some(own) = self.changes.get(key) {
            let was_there = own.value.is_some();
            let old_bytes = self.counts(key, own.value.as_deref()).1;
            self.check(0, new_bytes.saturating_sub(old_bytes))?;
            self.bytes = self.bytes - old_bytes + new_bytes;
            let in_base = own.in_base;
            let old = if value.is_none() && !in_base {
                self.bytes -= new_bytes;
                self.counted -= counted;
                self.changes.remove(key)
            } else {
                self.changes.insert(key.into(), MemberChange { value: value.map(Into::into), in_base })
            };
            self.undo.push((key.into(), old));
            return Ok(was_there);
        }
        let old = base.view().member(key);
        let is_same = match (&old, value) {
            (Some(Value::Inline(old)), Some(value)) => *old == value,
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return Ok(old.is_some());
        }
        if value.is_some() {
            self.check(counted, new_bytes)?;
        }
        self.counted += counted;
        self.bytes += new_bytes;
        self.changes
            .insert(key.into(), MemberChange { value: value.map(Into::into), in_base: old.is_some() });
        self.undo.push((key.into(), None));
        Ok(old.is_some())
    }
}

/// Copies the plain state of an object to `out`, which is emptied first. False: there is no object.
pub fn copy_plain(view: StateView<'_>, out: &mut Vec<u8>) -> bool {
    out.clear();
    match view {
        StateView::Absent => false,
        StateView::Bytes([0, plain @ ..]) => {
            out.extend_from_slice(plain);
            true
        }
        view => {
            for place in 0..=u16::MAX {
                let Some(value) = view.member(part_key(&part_number(place))) else { break };
                value.copy_to(out);
            }
            true
        }
    }
}

/// The bytes before the key of a part of the plain state: 0, and the part's number.
fn part_number(place: u16) -> [u8; 3] {
    let [high, low] = place.to_be_bytes();
    [0, high, low]
}

/// The key of a part.
fn part_key(number: &[u8; 3]) -> &[u8] {
    if number[1..] == [0, 0] { &number[..1] } else { number }
}

/// The numbers of the fields of an object.
#[derive(Debug, Default, PartialEq, Eq)]
struct FieldNumbers {
    used: Vec<u8>,
    /// Numbers that are not used any more, of which members may be left.
    clearing: Vec<u8>,
}

impl FieldNumbers {
    fn read(view: StateView<'_>) -> Self {
        let Some(Value::Inline([count, numbers @ ..])) = LayerBase::of(view).view().member(&IN_USE) else {
            return Self::default();
        };
        let (used, clearing) = numbers.split_at(usize::from(*count).min(numbers.len()));
        // A list that became shorter is filled with 0, which is not a field.
        let clearing = clearing.iter().copied().filter(|number| *number != 0);
        Self { used: used.to_vec(), clearing: clearing.collect() }
    }

    fn write(&self) -> Vec<u8> {
        [&[self.used.len() as u8], &*self.used, &*self.clearing].concat()
    }
}

/// Applies the changes of a call to an object.
///
/// # Errors
/// There is no room; nothing has changed then.
pub(crate) fn apply(object: &mut Object<'_>, new: &NewState) -> Result<(), CallError> {
    let pending = &new.fields;
    let mut in_use = FieldNumbers::read(object.view());
    let kept = pending.kept.clone().unwrap_or_else(|| in_use.used.clone());
    if kept.is_empty() && !matches!(object.view(), StateView::Tree(_)) {
        let bytes = object.edit();
        bytes.clear();
        bytes.push(0);
        bytes.extend_from_slice(&new.plain);
        return Ok(());
    }
    let before = in_use.write();
    let dropped: Vec<u8> = in_use.used.iter().copied().filter(|number| !kept.contains(number)).collect();
    in_use.clearing.extend_from_slice(&dropped);
    in_use.used.clone_from(&kept);
    if matches!(object.view(), StateView::Absent | StateView::Bytes([0, ..])) {
        object.set(&[]);
    }
    let parts = parts_of(object.view(), &new.plain);
    let own = pending.changes.iter().filter(|(key, _)| kept.contains(&key[0]));
    let own = own.map(|(key, change)| (&**key, change.value.as_deref()));
    let changes: Vec<MemberWrite<'_>> = own.chain(parts.iter().map(|(key, part)| (&**key, *part))).collect();
    let list = in_use.write();
    put_all(object, &changes, (list != before).then_some(&list))?;
    let most = if dropped.is_empty() { CLEAR_LATER.max(2 * changes.len()) } else { CLEAR_AT_ONCE };
    clear(object, &mut in_use, most);
    let mut after = in_use.write();
    // With the same length it is written in place, which cannot fail.
    after.resize(list.len(), 0);
    if after != list {
        write(&mut object.members(), (&IN_USE, Some(&after)))?;
    }
    Ok(())
}

/// A member's key and its new value; None: it is removed.
type MemberWrite<'a> = (&'a [u8], Option<&'a [u8]>);

/// Makes all these changes or none. `list`: the new list of fields, if it has changed.
///
/// # Errors
/// There is no room.
fn put_all(
    object: &mut Object<'_>,
    changes: &[MemberWrite<'_>],
    list: Option<&Vec<u8>>,
) -> Result<(), CallError> {
    let view = object.view();
    let grows = |(key, value): &&MemberWrite<'_>| {
        value.is_some_and(
            |new| !matches!(view.member(key), Some(Value::Inline(old)) if old.len() == new.len()),
        )
    };
    let (mut puts, mut longest_key, mut longest_value) = (0, 1, 0);
    for (key, value) in changes.iter().filter(grows) {
        puts += 1;
        longest_key = longest_key.max(key.len());
        longest_value = longest_value.max(value.map_or(0, <[u8]>::len));
    }
    if let Some(list) = list {
        puts += 1;
        longest_value = longest_value.max(list.len());
    }
    let mut members = object.members();
    if puts > 0 {
        members.reserve_for(puts, longest_key, longest_value)?;
    }
    // Only a long value can fail.
    let is_long =
        |(_, value): &&MemberWrite<'_>| value.is_some_and(|value| value.len() > Tree::VALUE_INLINE_MAX);
    changes.iter().filter(is_long).try_for_each(|change| write(&mut members, *change))?;
    changes.iter().filter(|change| !is_long(change)).try_for_each(|change| write(&mut members, *change))?;
    list.map_or(Ok(()), |list| write(&mut members, (&IN_USE, Some(list))))
}

/// Makes a change, in place if the length stays the same.
fn write(members: &mut Members<'_, '_>, (key, value): MemberWrite<'_>) -> Result<(), CallError> {
    let Some(value) = value else {
        members.remove(key);
        return Ok(());
    };
    let old = members.get(key, |old| match old {
        Value::Inline(old) => (old.len() == value.len(), old == value),
        Value::Huge(_) => (false, false),
    });
    match old {
        Some((_, true)) => return Ok(()),
        Some((true, false)) => {
            if let Some(old) = members.get_mut(key) {
                old.copy_from_slice(value);
                return Ok(());
            }
        }
        _ => {}
    }
    members.put(key, value).map(|_| ())
}

/// The changes that turn the plain state into `bytes`: only of parts that differ.
fn parts_of<'b>(view: StateView<'_>, bytes: &'b [u8]) -> Vec<(Vec<u8>, Option<&'b [u8]>)> {
    let mut parts = Vec::new();
    let count = bytes.len().div_ceil(PART_BYTES).max(1);
    debug_assert!(u16::try_from(count).is_ok(), "a state has at most 1 MiB");
    for place in 0..=u16::MAX {
        let number = part_number(place);
        let key = part_key(&number);
        let old = view.member(key);
        let from = usize::from(place) * PART_BYTES;
        if usize::from(place) >= count {
            if old.is_none() {
                break;
            }
            parts.push((key.to_vec(), None));
            continue;
        }
        let part = &bytes[from..bytes.len().min(from + PART_BYTES)];
        if !matches!(old, Some(Value::Inline(old)) if old == part) {
            parts.push((key.to_vec(), Some(part)));
        }
    }
    parts
}

/// Removes up to `most` members of fields that are not used any more.
fn clear(object: &mut Object<'_>, in_use: &mut FieldNumbers, most: usize) {
    let mut left = most;
    while let Some(number) = in_use.clearing.first().copied() {
        let mut keys: Vec<Box<[u8]>> = Vec::new();
        object.view().scan(std::ops::Bound::Included(&[number]), |key, _| {
            let is_of_field = key.first() == Some(&number) && keys.len() < left;
            if is_of_field {
                keys.push(key.into());
            }
            is_of_field
        });
        let mut members = object.members();
        for key in &keys {
            members.remove(key);
        }
        left -= keys.len();
        if left == 0 {
            return;
        }
        in_use.clearing.remove(0);
    }
}
