//! A field as a collection: the members of an object that begin with its number, overlaid with the changes of
//! a call. The methods of shipped types work on it as on any other state.
//!
//! # Invariant
//! * Reads see the changes of the call; the object itself stays unchanged.

use std::collections::btree_map;
use std::ops::Bound;

use cattlegrid_store::{Tree, Value};

use super::{MemberChange, PendingChanges};
use crate::object::StateView;

/// The object that has the field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerBase<'a> {
    /// The object has no members.
    Empty,
    /// The object's members are bytes.
    Flat(&'a [u8]),
    /// The object's members are in a tree.
    Tree(&'a Tree),
}

impl<'a> LayerBase<'a> {
    /// The members of an object of users' own types.
    pub(crate) fn of(view: StateView<'a>) -> Self {
        match view {
            StateView::Absent | StateView::Layer(_) | StateView::Bytes([] | [0, ..]) => Self::Empty,
            StateView::Bytes(bytes) => Self::Flat(bytes),
            StateView::Tree(tree) => Self::Tree(tree),
        }
    }

    /// The members for reading.
    pub(crate) fn view(self) -> StateView<'a> {
        match self {
            Self::Empty => StateView::Absent,
            Self::Flat(bytes) => StateView::Bytes(bytes),
            Self::Tree(tree) => StateView::Tree(tree),
        }
    }
}

/// A field of an object with the changes of a call.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    pub(super) base: LayerBase<'a>,
    pub(super) pending: &'a PendingChanges,
    pub(super) field: u8,
}

impl<'a> Layer<'a> {
    /// The field with this number of an object.
    pub(crate) fn new(base: LayerBase<'a>, pending: &'a PendingChanges, field: u8) -> Self {
        Self { base, pending, field }
    }

    /// Number of members.
    pub(crate) fn members(self) -> u64 {
        let base = self.base.view();
        let own = base.before(&[self.field + 1]) - base.before(&[self.field]);
        own.saturating_add_signed(self.delta_before(&[self.field + 1]))
    }

    /// The value of a member.
    pub(crate) fn member(self, key: &[u8]) -> Option<Value<'a>> {
        let key = self.key(key);
        match self.pending.changes.get(&*key) {
            Some(own) => own.value.as_deref().map(Value::Inline),
            None => self.base.view().member(&key),
        }
    }

    /// Number of members before this key.
    pub(crate) fn before(self, key: &[u8]) -> u64 {
        let (base, key) = (self.base.view(), self.key(key));
        (base.before(&key) - base.before(&[self.field])).saturating_add_signed(self.delta_before(&key))
    }

    /// The member at this position, from 0.
    pub(crate) fn nth(self, place: u64) -> Option<(&'a [u8], Value<'a>)> {
        let base = self.base.view();
        let first = base.before(&[self.field]);
        // The positions of the changes, and the sum of differences that the changes before each make. The
        // positions ascend.
        let mut sum = 0;
        let changes: Vec<(&'a [u8], &'a MemberChange, i64)> = self
            .range(Bound::Included(&[self.field]), Bound::Excluded(&[self.field + 1]))
            .map(|(key, own)| {
                let before = sum;
                sum += own.delta();
                (&**key, own, before)
            })
            .collect();
        let place_of = |(key, _, before): &(&[u8], &MemberChange, i64)| {
            (base.before(key) - first).saturating_add_signed(*before)
        };
        let after = changes.partition_point(|change| place_of(change) <= place);
        // Of several changes at one position, a member that is present is the last.
        let mut moved = 0;
        if let Some(last @ (key, own, before)) = after.checked_sub(1).and_then(|place| changes.get(place)) {
            if let Some(value) = own.value.as_deref().filter(|_| place_of(last) == place) {
                return Some((&key[1..], Value::Inline(value)));
            }
            moved = before + own.delta();
        }
        let (key, value) = base.nth((first + place).checked_add_signed(-moved)?)?;
        (key.first() == Some(&self.field)).then(|| (&key[1..], value))
    }

    /// The last member.
    pub(crate) fn last(self) -> Option<(&'a [u8], Value<'a>)> {
        self.nth(self.members().checked_sub(1)?)
    }

    /// Calls `each` with members in order, like [`StateView::scan`].
    pub(crate) fn scan(self, from: Bound<&[u8]>, each: &mut dyn FnMut(&[u8], Value<'_>) -> bool) {
        let from = from.map(|key| self.key(key));
        let from = match &from {
            Bound::Unbounded => Bound::Included(std::slice::from_ref(&self.field)),
            bound => bound.as_ref().map(|key| &**key),
        };
        let changes = self.range(from, Bound::Excluded(&[self.field + 1]));
        self.merge(changes, |own, key| own < key, |show| self.base.view().scan(from, show), each);
    }

    /// Calls `each` with members in descending order, like [`StateView::scan_back`].
    pub(crate) fn scan_back(self, from: Bound<&[u8]>, each: &mut dyn FnMut(&[u8], Value<'_>) -> bool) {
        let from = from.map(|key| self.key(key));
        let end = [self.field + 1];
        let from = match &from {
            Bound::Unbounded => Bound::Excluded(end.as_slice()),
            bound => bound.as_ref().map(|key| &**key),
        };
        let changes = self.range(Bound::Included(&[self.field]), from).rev();
        self.merge(changes, |own, key| own > key, |show| self.base.view().scan_back(from, show), each);
    }

    /// Calls `each` with the members that `scan` finds, merged with the call's changes. `is_before`: the
    /// order of both.
    fn merge(
        self,
        changes: impl Iterator<Item = (&'a Box<[u8]>, &'a MemberChange)>,
        is_before: impl Fn(&[u8], &[u8]) -> bool,
        scan: impl FnOnce(&mut dyn FnMut(&[u8], Value<'_>) -> bool),
        each: &mut dyn FnMut(&[u8], Value<'_>) -> bool,
    ) {
        let mut changes = changes.peekable();
        let mut goes_on = true;
        scan(&mut |key, value| {
            if key.first() != Some(&self.field) {
                return false;
            }
            while let Some((own, change)) = changes.next_if(|(own, _)| is_before(own, key)) {
                goes_on = change.show(own, each);
                if !goes_on {
                    return false;
                }
            }
            goes_on = match changes.next_if(|(own, _)| ***own == *key) {
                Some((_, change)) => change.show(key, each),
                None => each(&key[1..], value),
            };
            goes_on
        });
        while goes_on && let Some((own, change)) = changes.next() {
            goes_on = change.show(own, each);
        }
    }

    fn key(self, key: &[u8]) -> Vec<u8> {
        [&[self.field], key].concat()
    }

    fn range(self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> btree_map::Range<'a, Box<[u8]>, MemberChange> {
        self.pending.changes.range::<[u8], _>((from, to))
    }

    /// The difference in the number of members that changes before a key of the object make.
    fn delta_before(self, key: &[u8]) -> i64 {
        let before = self.range(Bound::Included(&[self.field]), Bound::Excluded(key));
        before.map(|(_, own)| own.delta()).sum()
    }
}

impl MemberChange {
    /// Calls `each` with a member, if it is present; false: no more are wanted.
    fn show(&self, key: &[u8], each: &mut dyn FnMut(&[u8], Value<'_>) -> bool) -> bool {
        self.value.as_deref().is_none_or(|value| each(&key[1..], Value::Inline(value)))
    }
}
