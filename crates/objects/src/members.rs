//! The members of a collection, in the order of their keys: a few as bytes of the item, many in a tree
//! outside the log.
//!
//! Bytes (`members/flat.rs`) are searched from the first entry on; a change moves the following bytes in the
//! object's copy. A put that would need more than [`FLAT_MAX`] bytes builds the tree. A tree stays a tree
//! however few members are left: an object that was large is likely to become large again, and an empty tree
//! takes only a page or two.
//!
//! # Invariants
//! * A call that fails changes nothing. For bytes, and for a tree that the call itself has built, this holds
//!   for every sequence of changes, since the registry drops them. In a tree that existed before, a single
//!   change is complete or not made, and for several changes room is reserved before the first
//!   ([`Members::reserve`]).

mod flat;

use std::ops::{Bound, Range};

use arrayvec::ArrayVec;
use cattlegrid_store::{Tree, TreeFull, Value};

use crate::call::CallError;
use crate::object::{Object, ObjectState, StateChange, StateView};
use flat::{FlatEntries, FlatEntry, Position, entry_len, find, make_gap, write_entry};

/// The size of members in bytes, with their lengths, above which they move to a tree.
pub const FLAT_MAX: usize = 2048;

/// The members of an object while a method runs. A member has a key of 1 to [`Tree::KEY_MAX`] bytes, and a
/// value, which may be empty.
#[derive(Debug)]
pub struct Members<'o, 'a> {
    object: &'o mut Object<'a>,
    /// Whether pages of the tree may be in reserve.
    has_reserved: bool,
    /// Bytes of the puts that [`Members::reserve_for`] has announced: a tree that the call builds needs
    /// room for all of them, and a lack of room must say so.
    announced: usize,
}

impl<'o, 'a> Members<'o, 'a> {
    pub(crate) fn new(object: &'o mut Object<'a>) -> Self {
        Self { object, has_reserved: false, announced: 0 }
    }

    /// The number of members.
    pub fn len(&self) -> u64 {
        self.object.view().members()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.object.view().first().is_none()
    }

    /// Reserves room for putting this many members, so that [`Members::put`] of values up to
    /// [`Tree::VALUE_INLINE_MAX`] bytes cannot fail. To be called before the first change; unused room is
    /// returned when `self` is dropped.
    ///
    /// # Errors
    /// [`CallError::NoRoom`]; nothing has changed then.
    pub fn reserve(&mut self, puts: usize) -> Result<(), CallError> {
        self.reserve_for(puts, Tree::KEY_MAX, Tree::VALUE_INLINE_MAX)
    }

    /// Reserves room like [`Members::reserve`], for keys and values of at most these lengths in bytes. Short
    /// ones need far fewer pages.
    ///
    /// # Errors
    /// [`CallError::NoRoom`]; nothing has changed then.
    pub fn reserve_for(&mut self, puts: usize, key: usize, value: usize) -> Result<(), CallError> {
        if let ObjectState::Field { pending, field, .. } = &self.object.state {
            return pending.check_puts(*field, puts, key + value + 1);
        }
        self.announced = self.announced.max(puts.saturating_mul(key + value));
        // A tree that the call has built needs no reserve: it is dropped if the call fails, as bytes are.
        if matches!(self.object.change, StateChange::None | StateChange::Tree)
            && let ObjectState::Tree(tree) = &mut self.object.state
        {
            self.has_reserved = true;
            tree.reserve_for(puts, key, value).map_err(|full| no_room(full, 0))?;
        }
        Ok(())
    }

    /// Calls `each` with the value of a member, if it is present.
    pub fn get<R>(&self, key: &[u8], each: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        self.object.view().member(key).map(each)
    }

    /// The value of a member, to change in place; the object then counts as changed. None: it is absent, or
    /// longer than [`Tree::VALUE_INLINE_MAX`] bytes.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut [u8]> {
        if matches!(self.object.state, ObjectState::Field { .. }) {
            let ObjectState::Field { base, pending, field } = &mut self.object.state else { return None };
            return pending.value_mut(base.0, *field, key);
        }
        if self.tree().is_some() {
            self.get(key, |_| ())?;
            self.mark();
            return self.tree()?.get_mut(key);
        }
        let Position { range, value: Some(value) } = find(self.object.bytes(), key) else { return None };
        let value_at = range.end - value.len();
        self.object.edit().get_mut(value_at..range.end)
    }

    /// Puts a member, or replaces its value. True: it is new.
    ///
    /// # Errors
    /// [`CallError::NoRoom`], unless room was reserved; nothing has changed then.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, CallError> {
        debug_assert!((1..=Tree::KEY_MAX).contains(&key.len()), "the caller checks the key's length");
        if let ObjectState::Field { base, pending, field } = &mut self.object.state {
            return pending.put(base.0, *field, key, value);
        }
        let announced = self.announced;
        if let Some(tree) = self.tree() {
            let is_new = tree.insert(key, value).map_err(|full| no_room(full, announced))?;
            self.mark();
            return Ok(is_new);
        }
        self.put_flat(key, value)
    }

    /// Adds a member to a collection whose members have no values. False: it is present, and nothing has
    /// changed.
    ///
    /// # Errors
    /// [`CallError::NoRoom`], unless room was reserved; nothing has changed then.
    pub fn add(&mut self, key: &[u8]) -> Result<bool, CallError> {
        if let ObjectState::Field { base, pending, field } = &mut self.object.state {
            return pending.put(base.0, *field, key, &[]);
        }
        let announced = self.announced;
        if let Some(tree) = self.tree() {
            let is_new = tree.insert(key, &[]).map_err(|full| no_room(full, announced))?;
            if is_new {
                self.mark();
            }
            return Ok(is_new);
        }
        self.put_flat(key, &[])
    }

    /// Removes a member. False: it was absent, and nothing has changed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if let ObjectState::Field { base, pending, field } = &mut self.object.state {
            return pending.remove(base.0, *field, key);
        }
        if let Some(tree) = self.tree() {
            let was_there = tree.remove(key);
            if was_there {
                self.mark();
            }
            return was_there;
        }
        let Position { range, value: Some(_) } = find(self.object.bytes(), key) else { return false };
        make_gap(self.object.edit(), range, 0);
        true
    }

    fn put_flat(&mut self, key: &[u8], value: &[u8]) -> Result<bool, CallError> {
        let bytes = self.object.bytes();
        let Position { range, value: old } = find(bytes, key);
        let is_new = old.is_none();
        if old == Some(value) {
            return Ok(false);
        }
        let gap = entry_len(key.len(), value.len());
        if bytes.len() - range.len() + gap > FLAT_MAX {
            self.build_tree(key, value, &range)?;
            return Ok(is_new);
        }
        let bytes = self.object.edit();
        let at = range.start;
        make_gap(bytes, range, gap);
        write_entry(&mut bytes[at..at + gap], key, value);
        Ok(is_new)
    }

    /// Moves all members to a tree, and puts `key` in the place of the entry at `range`.
    fn build_tree(&mut self, key: &[u8], value: &[u8], range: &Range<usize>) -> Result<(), CallError> {
        let (bytes, announced) = (self.object.bytes(), self.announced);
        let no_room = |full| no_room(full, bytes.len().max(announced));
        let mut tree = Tree::new(self.object.memory).map_err(no_room)?;
        for own in FlatEntries::of(&bytes[..range.start]) {
            tree.insert(own.key, own.value).map_err(no_room)?;
        }
        tree.insert(key, value).map_err(no_room)?;
        for own in FlatEntries::of(&bytes[range.end..]) {
            tree.insert(own.key, own.value).map_err(no_room)?;
        }
        self.object.change = StateChange::NewTree(Box::new(tree));
        Ok(())
    }

    /// The tree with the members, if they are in one.
    fn tree(&mut self) -> Option<&mut Tree> {
        match (&mut self.object.change, &mut self.object.state) {
            (StateChange::NewTree(tree), _) => Some(tree),
            (StateChange::None | StateChange::Tree, ObjectState::Tree(tree)) => Some(tree),
            _ => None,
        }
    }

    /// Marks the tree as changed.
    fn mark(&mut self) {
        if matches!(self.object.change, StateChange::None) {
            self.object.change = StateChange::Tree;
        }
    }
}

impl Drop for Members<'_, '_> {
    fn drop(&mut self) {
        if self.has_reserved
            && let ObjectState::Tree(tree) = &mut self.object.state
        {
            tree.release_reserve();
        }
    }
}

/// Reading of a collection's members.
impl<'a> StateView<'a> {
    /// The number of members.
    pub(crate) fn members(self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Bytes(bytes) => FlatEntries::of(bytes).count() as u64,
            Self::Tree(tree) => tree.len(),
            Self::Layer(layer) => layer.members(),
        }
    }

    /// The value of a member.
    pub(crate) fn member(self, key: &[u8]) -> Option<Value<'a>> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => find(bytes, key).value.map(Value::Inline),
            Self::Tree(tree) => tree.get(key),
            Self::Layer(layer) => layer.member(key),
        }
    }

    /// The number of members before this key, which may be absent.
    pub(crate) fn before(self, key: &[u8]) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Bytes(bytes) => FlatEntries::of(bytes).take_while(|own| own.key < key).count() as u64,
            Self::Tree(tree) => tree.rank(key).unwrap_or_else(|before| before),
            Self::Layer(layer) => layer.before(key),
        }
    }

    /// The member at this position, from 0.
    pub(crate) fn nth(self, place: u64) -> Option<(&'a [u8], Value<'a>)> {
        match self {
            Self::Absent => None,
            Self::Bytes(bytes) => {
                FlatEntries::of(bytes).nth(usize::try_from(place).ok()?).map(FlatEntry::pair)
            }
            Self::Tree(tree) => tree.nth(place),
            Self::Layer(layer) => layer.nth(place),
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
            Self::Bytes(bytes) => FlatEntries::of(bytes).last().map(FlatEntry::pair),
            Self::Tree(tree) => tree.nth(tree.len().checked_sub(1)?),
            Self::Layer(layer) => layer.last(),
        }
    }

    /// Calls `each` with the members in order, from `from` on, until it returns false.
    pub(crate) fn scan(self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        match self {
            Self::Absent => {}
            Self::Bytes(bytes) => {
                let is_before = |own: &FlatEntry<'_>| match from {
                    Bound::Included(from) => own.key < from,
                    Bound::Excluded(from) => own.key <= from,
                    Bound::Unbounded => false,
                };
                for own in FlatEntries::of(bytes).skip_while(is_before) {
                    if !each(own.key, Value::Inline(own.value)) {
                        return;
                    }
                }
            }
            Self::Tree(tree) => tree.scan(from, each),
            Self::Layer(layer) => layer.scan(from, &mut each),
        }
    }

    /// Calls `each` with the members in descending order, from `from` downwards, until it returns false.
    pub(crate) fn scan_back(self, from: Bound<&[u8]>, mut each: impl FnMut(&[u8], Value<'_>) -> bool) {
        match self {
            Self::Absent => {}
            Self::Bytes(bytes) => {
                let is_within = |own: &FlatEntry<'_>| match from {
                    Bound::Included(from) => own.key <= from,
                    Bound::Excluded(from) => own.key < from,
                    Bound::Unbounded => true,
                };
                let mut starts = ArrayVec::<u16, { FLAT_MAX / 2 }>::new();
                let within = FlatEntries::of(bytes).take_while(is_within).take(starts.capacity());
                starts.extend(within.map(|own| own.range.start as u16));
                for start in starts.iter().rev() {
                    let Some(own) = FlatEntries::of(&bytes[usize::from(*start)..]).next() else { return };
                    if !each(own.key, Value::Inline(own.value)) {
                        return;
                    }
                }
            }
            Self::Tree(tree) => tree.scan_back(from, each),
            Self::Layer(layer) => layer.scan_back(from, &mut each),
        }
    }
}

/// The error of a tree for which there is no room. `whole`: the bytes that the whole change needs, as far as
/// they are known; what the tree has taken already goes back.
fn no_room(full: TreeFull, whole: usize) -> CallError {
    CallError::NoRoom(if full.bytes == 0 { 0 } else { full.bytes.max(whole) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use cattlegrid_store::Memory;
    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    /// A collection between calls.
    #[derive(Debug)]
    enum StoredCollection {
        Absent,
        Bytes(Vec<u8>),
        Tree(Box<Tree>),
    }

    impl StoredCollection {
        /// Runs a call; unless it fails what it has changed is kept.
        fn call<R>(
            &mut self,
            memory: &Arc<Memory>,
            run: impl FnOnce(&mut Object<'_>) -> Result<R, CallError>,
        ) -> Result<R, CallError> {
            let mut new = Vec::new();
            let state = match self {
                Self::Absent => ObjectState::Absent,
                Self::Bytes(bytes) => ObjectState::Bytes(bytes),
                Self::Tree(tree) => ObjectState::Tree(tree),
            };
            let mut object = Object::new(b"k", state, &mut new, memory, None);
            let result = run(&mut object);
            let (change, _) = object.finish();
            if result.is_ok() {
                match change {
                    StateChange::None | StateChange::Tree => {}
                    StateChange::Bytes => *self = Self::Bytes(new),
                    StateChange::NewTree(tree) => *self = Self::Tree(tree),
                    StateChange::Dropped => *self = Self::Absent,
                }
            }
            result
        }

        fn view(&self) -> StateView<'_> {
            match self {
                Self::Absent => StateView::Absent,
                Self::Bytes(bytes) => StateView::Bytes(bytes),
                Self::Tree(tree) => StateView::Tree(tree),
            }
        }

        /// Everything that can be read is what the model has.
        fn check(&self, model: &Model, from: &[u8]) {
            let view = self.view();
            assert_eq!(view.members(), model.len() as u64);
            let own = |pair: (&[u8], Value<'_>)| {
                let mut value = Vec::new();
                pair.1.copy_to(&mut value);
                (pair.0.to_vec(), value)
            };
            let pair = |pair: (&Vec<u8>, &Vec<u8>)| (pair.0.clone(), pair.1.clone());
            assert_eq!(view.first().map(own), model.iter().next().map(pair));
            assert_eq!(view.last().map(own), model.iter().next_back().map(pair));
            let middle = model.len() / 2;
            assert_eq!(view.nth(middle as u64).map(own), model.iter().nth(middle).map(pair));
            assert!(view.nth(model.len() as u64).is_none());
            assert_eq!(view.before(from), model.keys().filter(|own| own.as_slice() < from).count() as u64);
            assert_eq!(view.member(from).map(|value| own((from, value)).1), model.get(from).cloned());
            for bound in [Bound::Included(from), Bound::Excluded(from), Bound::Unbounded] {
                for most in [3, usize::MAX] {
                    let collect = |is_back: bool| {
                        let mut all = Vec::new();
                        let each = |key: &[u8], value: Value<'_>| {
                            all.push(own((key, value)));
                            all.len() < most
                        };
                        if is_back {
                            view.scan_back(bound, each);
                        } else {
                            view.scan(bound, each);
                        }
                        all
                    };
                    let up = model.range::<[u8], _>((bound, Bound::Unbounded));
                    assert_eq!(collect(false), up.take(most).map(pair).collect::<Vec<_>>());
                    let down = model.range::<[u8], _>((Bound::Unbounded, bound)).rev();
                    assert_eq!(collect(true), down.take(most).map(pair).collect::<Vec<_>>());
                }
            }
        }
    }

    #[derive(Debug, Clone)]
    enum CollectionOp {
        Put(u16, usize),
        PutAll(Vec<(u16, usize)>),
        Add(u16),
        Remove(u16),
        Overwrite(u16),
        Empty,
        Drop,
    }

    fn op(keys: u16, longest: usize) -> impl Strategy<Value = CollectionOp> {
        let len = move || prop_oneof![6 => 0..40_usize, 1 => 0..longest];
        prop_oneof![
            8 => (0..keys, len()).prop_map(|(key, len)| CollectionOp::Put(key, len)),
            2 => prop::collection::vec((0..keys, 0..200_usize), 1..30).prop_map(CollectionOp::PutAll),
            2 => (0..keys).prop_map(CollectionOp::Add),
            9 => (0..keys).prop_map(CollectionOp::Remove),
            2 => (0..keys).prop_map(CollectionOp::Overwrite),
            1 => Just(CollectionOp::Empty),
            1 => Just(CollectionOp::Drop),
        ]
    }

    /// 2 to 300 bytes.
    fn key(n: u16) -> Vec<u8> {
        let len = if n.is_multiple_of(17) { usize::from(n % 300) } else { usize::from(n % 12) };
        [&n.wrapping_mul(40_503).to_be_bytes(), vec![n as u8; len].as_slice()].concat()
    }

    /// Returns calls that found no room.
    fn run(ops: &[CollectionOp], memory_bytes: usize) -> usize {
        let memory = Memory::new(memory_bytes).unwrap();
        let (mut kept, mut model, mut refused) = (StoredCollection::Absent, Model::new(), 0);
        for (n, op) in ops.iter().enumerate() {
            let value = |len: usize| vec![n as u8; len];
            let from = match op {
                CollectionOp::Put(at, len) => {
                    match kept.call(&memory, |object| object.members().put(&key(*at), &value(*len))) {
                        Ok(is_new) => assert_eq!(is_new, model.insert(key(*at), value(*len)).is_none()),
                        Err(_) => refused += 1,
                    }
                    key(*at)
                }
                CollectionOp::PutAll(list) => {
                    let result = kept.call(&memory, |object| {
                        let mut members = object.members();
                        members.reserve(list.len())?;
                        list.iter().try_for_each(|(at, len)| members.put(&key(*at), &value(*len)).map(|_| ()))
                    });
                    match result {
                        Ok(()) => model.extend(list.iter().map(|(at, len)| (key(*at), value(*len)))),
                        Err(_) => refused += 1,
                    }
                    key(list[0].0)
                }
                CollectionOp::Add(at) => {
                    // A collection with values does not add members without them.
                    model.remove(&key(*at));
                    let removed = kept.call(&memory, |object| {
                        object.members().remove(&key(*at));
                        Ok(())
                    });
                    assert_eq!(removed, Ok(()));
                    match kept.call(&memory, |object| object.members().add(&key(*at))) {
                        Ok(is_new) => assert_eq!(is_new, model.insert(key(*at), Vec::new()).is_none()),
                        Err(_) => refused += 1,
                    }
                    key(*at)
                }
                CollectionOp::Remove(at) => {
                    let removed = kept.call(&memory, |object| Ok(object.members().remove(&key(*at))));
                    assert_eq!(removed, Ok(model.remove(&key(*at)).is_some()));
                    key(*at)
                }
                CollectionOp::Overwrite(at) => {
                    let done = kept.call(&memory, |object| {
                        Ok(object.members().get_mut(&key(*at)).map(|value| value.fill(n as u8)).is_some())
                    });
                    let value = model.get_mut(&key(*at));
                    if done == Ok(true) {
                        value.expect("it was there").fill(n as u8);
                    } else {
                        assert!(value.is_none_or(|value| value.len() > Tree::VALUE_INLINE_MAX));
                    }
                    key(*at)
                }
                CollectionOp::Empty => {
                    let emptied = kept.call(&memory, |object| {
                        object.set(&[]);
                        Ok(())
                    });
                    assert_eq!(emptied, Ok(()));
                    model.clear();
                    key(1)
                }
                CollectionOp::Drop => {
                    // A call that drops the object and begins another.
                    let put = kept.call(&memory, |object| {
                        object.discard();
                        object.members().put(b"new", b"1")
                    });
                    assert_eq!(put, Ok(true));
                    model = Model::from([(b"new".to_vec(), b"1".to_vec())]);
                    key(2)
                }
            };
            kept.check(&model, &from);
        }
        refused
    }

    /// A lack of room names what all announced puts need, so that the caller makes room once and not page
    /// by page.
    #[test]
    fn a_tree_that_a_call_builds_asks_for_all_its_room() {
        for (puts, len) in [(20, 500), (61, 1000), (1000, 1000)] {
            let memory = Memory::new(8 << 20).unwrap();
            let room = Tree::new(&memory).map(drop).map(|()| memory.free_bytes()).unwrap();
            let mut taken: Vec<_> =
                (0..room / (4 << 10)).map(|_| memory.scattered(4 << 10).unwrap()).collect();
            let mut kept = StoredCollection::Bytes(Vec::new());
            let mut put_all = || {
                kept.call(&memory, |object| {
                    let mut members = object.members();
                    members.reserve_for(puts, 2, len)?;
                    (0..puts)
                        .try_for_each(|n| members.put(&(n as u16).to_be_bytes(), &vec![1; len]).map(|_| ()))
                })
            };
            let mut done = put_all();
            for attempt in 1..=3 {
                let Err(CallError::NoRoom(bytes)) = done else { break };
                assert!(bytes >= puts * len, "{bytes} for {puts} of {len}");
                taken.truncate(taken.len().saturating_sub((bytes * attempt).div_ceil(4 << 10)));
                done = put_all();
            }
            assert_eq!(done, Ok(()), "{puts} of {len}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

        #[test]
        fn as_a_sorted_map(ops in prop::collection::vec(op(150, 5000), 300)) {
            prop_assert_eq!(run(&ops, 64 << 20), 0);
        }

        #[test]
        fn as_a_sorted_map_in_little_memory(ops in prop::collection::vec(op(600, 9000), 300)) {
            run(&ops, 64 << 10);
        }

        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..3000), key in "[a-z]{1,3}") {
            let view = StateView::Bytes(&bytes);
            let (key, mut seen) = (key.as_bytes(), 0_u64);
            let (_, _, _, _) = (view.members(), view.member(key), view.nth(3), view.last());
            view.scan(Bound::Included(key), |_, _| true);
            view.scan_back(Bound::Unbounded, |_, _| { seen += 1; true });
            prop_assert!(seen <= view.members() && view.before(key) <= view.members());
        }
    }

    #[test]
    fn a_call_on_bytes_counts_as_a_change_only_if_it_is() {
        let memory = Memory::new(1 << 20).unwrap();
        let mut kept = StoredCollection::Absent;
        kept.call(&memory, |object| object.members().put(b"a", b"1")).unwrap();
        let change = |run: fn(&mut Members<'_, '_>)| {
            let StoredCollection::Bytes(bytes) = &kept else { panic!("it is small") };
            let mut new = Vec::new();
            let mut object = Object::new(b"k", ObjectState::Bytes(bytes), &mut new, &memory, None);
            run(&mut object.members());
            matches!(object.finish().0, StateChange::Bytes)
        };
        assert!(!change(|members| assert_eq!(members.put(b"a", b"1"), Ok(false))));
        assert!(!change(|members| assert!(!members.remove(b"b"))));
        assert!(!change(|members| assert!(members.get_mut(b"b").is_none())));
        assert!(change(|members| assert_eq!(members.put(b"a", b"2"), Ok(false))));
        assert!(change(|members| assert!(members.remove(b"a"))));
        assert!(change(|members| assert!(members.get_mut(b"a").is_some())));
    }
}
