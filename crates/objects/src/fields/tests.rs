//! Tests of fields against sorted maps, on flat states and trees, with much and with little memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cattlegrid_store::{Memory, Tree, Value};
use proptest::prelude::*;

use super::*;
use crate::arguments::Arguments;
use crate::object::{FieldBase, ObjectState, StateChange};

type Model = BTreeMap<u8, BTreeMap<Vec<u8>, Vec<u8>>>;

#[derive(Debug)]
enum StoredObject {
    Absent,
    Bytes(Vec<u8>),
    Tree(Box<Tree>),
}

impl StoredObject {
    fn view(&self) -> StateView<'_> {
        match self {
            Self::Absent => StateView::Absent,
            Self::Bytes(bytes) => StateView::Bytes(bytes),
            Self::Tree(tree) => StateView::Tree(tree),
        }
    }

    fn commit(&mut self, memory: &Arc<Memory>, new: &NewState) -> Result<(), CallError> {
        self.commit_if(memory, new, true)
    }

    /// Commits `new`; `may_grow`: whether memory is available.
    fn commit_if(&mut self, memory: &Arc<Memory>, new: &NewState, may_grow: bool) -> Result<(), CallError> {
        let mut buffer = Vec::new();
        let state = match self {
            Self::Absent => ObjectState::Absent,
            Self::Bytes(bytes) => ObjectState::Bytes(bytes),
            Self::Tree(tree) => ObjectState::Tree(tree),
        };
        let others = if may_grow { None } else { memory.scattered(memory.free_bytes()) };
        let mut object = Object::new(b"k", state, &mut buffer, memory, None);
        apply(&mut object, new)?;
        drop(others);
        match object.finish().0 {
            StateChange::None | StateChange::Tree => {}
            StateChange::Bytes => *self = Self::Bytes(buffer),
            StateChange::NewTree(tree) => *self = Self::Tree(tree),
            StateChange::Dropped => *self = Self::Absent,
        }
        Ok(())
    }

    /// Changes a field in the way of a shipped method.
    fn change<R>(
        &self,
        memory: &Arc<Memory>,
        pending: &mut PendingChanges,
        field: u8,
        act: impl FnOnce(&mut Members<'_, '_>) -> R,
    ) -> R {
        let mut buffer = Vec::new();
        let state = ObjectState::Field { base: FieldBase(LayerBase::of(self.view())), pending, field };
        let mut object = Object::new(b"k", state, &mut buffer, memory, None);
        let result = act(&mut object.members());
        assert!(matches!(object.finish().0, StateChange::None), "only what is pending changes");
        result
    }

    fn check(&self, pending: &PendingChanges, model: &Model, at: &[u8]) {
        for (field, own) in model {
            let view = StateView::Layer(Layer::new(LayerBase::of(self.view()), pending, *field));
            let copy = |(key, value): (&[u8], Value<'_>)| {
                let mut bytes = Vec::new();
                value.copy_to(&mut bytes);
                (key.to_vec(), bytes)
            };
            let pair = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
            assert_eq!(view.members(), own.len() as u64);
            assert_eq!(view.member(at).map(|value| copy((at, value)).1), own.get(at).cloned());
            assert_eq!(view.before(at), own.keys().filter(|key| key.as_slice() < at).count() as u64);
            for place in 0..=own.len() {
                assert_eq!(
                    view.nth(place as u64).map(copy),
                    own.iter().nth(place).map(pair),
                    "place {place}"
                );
            }
            assert_eq!(view.first().map(copy), own.iter().next().map(pair));
            assert_eq!(view.last().map(copy), own.iter().next_back().map(pair));
            for bound in [Bound::Included(at), Bound::Excluded(at), Bound::Unbounded] {
                for most in [2, usize::MAX] {
                    let (mut up, mut down) = (Vec::new(), Vec::new());
                    view.scan(bound, |key, value| {
                        up.push(copy((key, value)));
                        up.len() < most
                    });
                    view.scan_back(bound, |key, value| {
                        down.push(copy((key, value)));
                        down.len() < most
                    });
                    let of_model = own.range::<[u8], _>((bound, Bound::Unbounded));
                    assert_eq!(up, of_model.take(most).map(pair).collect::<Vec<_>>());
                    let of_model = own.range::<[u8], _>((Bound::Unbounded, bound)).rev();
                    assert_eq!(down, of_model.take(most).map(pair).collect::<Vec<_>>());
                }
            }
        }
    }
}

#[derive(Debug, Clone)]
enum FieldOp {
    Put(u8, u8, usize),
    Overwrite(u8, u8),
    Remove(u8, u8),
    /// Drop a field, and make another.
    Renew(u8),
    Commit(usize),
    Discard,
}

fn op() -> impl Strategy<Value = FieldOp> {
    let field = || 0..3_u8;
    prop_oneof![
        12 => (field(), any::<u8>(), prop_oneof![5 => 0..60_usize, 1 => 0..3000_usize])
            .prop_map(|(field, key, len)| FieldOp::Put(field, key, len)),
        2 => (field(), any::<u8>()).prop_map(|(field, key)| FieldOp::Overwrite(field, key)),
        6 => (field(), any::<u8>()).prop_map(|(field, key)| FieldOp::Remove(field, key)),
        1 => field().prop_map(FieldOp::Renew),
        3 => prop_oneof![4 => 0..200_usize, 4 => 0..5000_usize, 1 => 250_000..270_000_usize].prop_map(FieldOp::Commit),
        1 => Just(FieldOp::Discard),
    ]
}

/// Returns the number of commits without room. `grows`: one commit in this many may let the object grow.
fn run(ops: &[FieldOp], memory_bytes: usize, grows: usize) -> usize {
    let memory = Memory::new(memory_bytes).unwrap();
    let (mut kept, mut plain, mut refused) = (StoredObject::Absent, Vec::new(), 0);
    // The numbers of three fields.
    let (mut fields, mut committed_fields) = ([0_u8; 3], [0_u8; 3]);
    let mut pending = PendingChanges::default();
    let (mut model, mut committed) = (Model::new(), Model::new());
    let list = |fields: &[u8; 3]| fields.iter().copied().filter(|number| *number > 0).collect::<Vec<_>>();
    for (n, op) in ops.iter().enumerate() {
        let mut at = vec![1];
        match op {
            FieldOp::Put(field, key, _) | FieldOp::Overwrite(field, key) | FieldOp::Remove(field, key) => {
                at = vec![*key; usize::from(*key) % 40 + 1];
                let number = &mut fields[usize::from(*field)];
                if *number == 0 {
                    *number = pending.make(kept.view(), &list(&committed_fields)).unwrap();
                    assert_eq!(model.insert(*number, BTreeMap::new()), None);
                }
                let own = model.get_mut(number).unwrap();
                let value = |len: usize| vec![n as u8; len];
                kept.change(&memory, &mut pending, *number, |members| match op {
                    FieldOp::Put(_, _, len) => match members.put(&at, &value(*len)) {
                        Ok(is_new) => assert_eq!(is_new, own.insert(at.clone(), value(*len)).is_none()),
                        Err(CallError::Client(text)) => assert!(text.contains("only one value"), "{text}"),
                        Err(error) => panic!("{error:?}"),
                    },
                    FieldOp::Remove(..) => assert_eq!(members.remove(&at), own.remove(&at).is_some()),
                    _ => match members.get_mut(&at) {
                        Some(value) => {
                            value.fill(n as u8);
                            own.get_mut(&at).unwrap().fill(n as u8);
                        }
                        None => assert!(own.get(&at).is_none_or(|own| own.len() > Tree::VALUE_INLINE_MAX)),
                    },
                });
            }
            FieldOp::Renew(field) => {
                let number = &mut fields[usize::from(*field)];
                model.remove(number);
                *number = pending.make(kept.view(), &list(&committed_fields)).unwrap();
                assert_eq!(model.insert(*number, BTreeMap::new()), None, "a number is not used twice");
            }
            FieldOp::Commit(len) => {
                let mut fields_pending = std::mem::take(&mut pending);
                fields_pending.keep_fields(&list(&fields));
                let new = NewState { plain: vec![n as u8; *len], fields: fields_pending, tags: Vec::new() };
                let may_grow = n.is_multiple_of(grows);
                match kept.commit_if(&memory, &new, may_grow) {
                    Ok(()) => {
                        (plain, committed, committed_fields) = (new.plain, model.clone(), fields);
                        let in_use = FieldNumbers::read(kept.view());
                        assert_eq!(in_use.used, list(&fields));
                    }
                    Err(error) => {
                        assert!(matches!(error, CallError::NoRoom(_)), "{error:?}");
                        (model, fields, refused) = (committed.clone(), committed_fields, refused + 1);
                    }
                }
                let mut copy = vec![7];
                assert_eq!(copy_plain(kept.view(), &mut copy), !matches!(kept, StoredObject::Absent));
                assert_eq!(copy, plain);
            }
            FieldOp::Discard => {
                pending = PendingChanges::default();
                (model, fields) = (committed.clone(), committed_fields);
            }
        }
        kept.check(&pending, &model, &at);
    }
    refused
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn as_sorted_maps(ops in prop::collection::vec(op(), 200)) {
        prop_assert_eq!(run(&ops, 64 << 20, 1), 0);
    }

    #[test]
    fn as_sorted_maps_in_little_memory(ops in prop::collection::vec(op(), 200)) {
        run(&ops, 40 << 10, 1);
    }

    #[test]
    fn as_sorted_maps_that_may_seldom_grow(ops in prop::collection::vec(op(), 300)) {
        run(&ops, 64 << 20, 3);
    }
}

fn state(plain: &[u8], fields: PendingChanges) -> NewState {
    NewState { plain: plain.to_vec(), fields, tags: Vec::new() }
}

#[test]
fn a_state_without_fields_is_bytes() {
    let memory = Memory::new(1 << 20).unwrap();
    let mut kept = StoredObject::Absent;
    kept.commit(&memory, &state(b"abc", PendingChanges::default())).unwrap();
    assert!(matches!(&kept, StoredObject::Bytes(bytes) if bytes == b"\0abc"));
    let mut pending = PendingChanges::default();
    let number = pending.make(kept.view(), &[]).unwrap();
    kept.change(&memory, &mut pending, number, |members| members.put(b"m", b"")).unwrap();
    pending.keep_fields(&[number]);
    kept.commit(&memory, &state(b"abc", pending)).unwrap();
    assert!(matches!(&kept, StoredObject::Bytes(bytes) if bytes[0] == 1));
    let mut pending = PendingChanges::default();
    pending.keep_fields(&[]);
    kept.commit(&memory, &state(b"d", pending)).unwrap();
    assert!(matches!(&kept, StoredObject::Bytes(bytes) if bytes == b"\0d"), "bytes again");
}

#[test]
fn a_dropped_field_is_cleared_a_few_members_at_a_time() {
    let memory = Memory::new(4 << 20).unwrap();
    let mut kept = StoredObject::Absent;
    let mut pending = PendingChanges::default();
    let number = pending.make(kept.view(), &[]).unwrap();
    for n in 0..500_u16 {
        kept.change(&memory, &mut pending, number, |members| members.put(&n.to_be_bytes(), b"v")).unwrap();
    }
    pending.keep_fields(&[number]);
    kept.commit(&memory, &state(b"p", pending)).unwrap();
    let left = |kept: &StoredObject| kept.view().members() - 2;
    assert_eq!(left(&kept), 500);
    let mut pending = PendingChanges::default();
    let other = pending.make(kept.view(), &[number]).unwrap();
    assert_ne!(other, number);
    pending.keep_fields(&[other]);
    kept.commit(&memory, &state(b"p", pending)).unwrap();
    assert_eq!(left(&kept), 500 - CLEAR_AT_ONCE as u64);
    let mut calls = 0;
    while left(&kept) > 0 {
        let made = PendingChanges::default().make(kept.view(), &[other]).unwrap();
        assert!(made != number && made != other, "{number} is not used before it is clear");
        // The length is unchanged, so that it takes effect although the object may not grow.
        let plain = [b'a' + calls as u8 % 20];
        kept.commit_if(&memory, &state(&plain, PendingChanges::default()), false).unwrap();
        let mut copy = Vec::new();
        assert!(copy_plain(kept.view(), &mut copy) && copy == plain);
        calls += 1;
    }
    assert_eq!(calls, (500 - CLEAR_AT_ONCE).div_ceil(CLEAR_LATER));
    kept.commit(&memory, &state(b"p", PendingChanges::default())).unwrap();
    assert_eq!(PendingChanges::default().make(kept.view(), &[other]), Some(number));
}

#[test]
fn limits() {
    let memory = Memory::new(4 << 20).unwrap();
    let (kept, mut pending) = (StoredObject::Absent, PendingChanges::default());
    for n in 0..PENDING_MAX as u16 {
        kept.change(&memory, &mut pending, 1, |members| members.put(&n.to_be_bytes(), b"")).unwrap();
    }
    let put = |pending: &mut PendingChanges, key: &[u8], value: &[u8]| {
        kept.change(&memory, pending, 1, |members| members.put(key, value))
    };
    assert!(
        matches!(put(&mut pending, b"one more", b""), Err(CallError::Client(text)) if text.contains("4096 members"))
    );
    assert_eq!(
        put(&mut pending, &[0, 0], b"another value"),
        Ok(false),
        "of a member that is changed already"
    );
    let mut call = |method: &str, arguments: &[&[u8]]| {
        let arguments = &Arguments::of(arguments.iter().copied());
        let call = FieldCall { field: 1, kind: FieldKind::Set, method, arguments, now_ms: 1, random: 1 };
        let mut out = Vec::new();
        pending.call(kept.view(), &call, &mut out).map(|_| String::from_utf8(out).unwrap())
    };
    assert_eq!(call("count", &[]), Ok("4096".to_owned()), "a read changes nothing");
    assert_eq!(call("exist", &[b"other"]), Ok("NOT_FOUND".to_owned()));
    assert!(call("put", &[b"other"]).is_err_and(|text| text.contains("4096 members")));
    assert_eq!(call("remove", &[&[0, 0]]), Ok("1".to_owned()));
    assert_eq!(call("count", &[]), Ok("4095".to_owned()));
    let mut pending = PendingChanges::default();
    assert_eq!(put(&mut pending, b"k", &vec![0; PENDING_BYTES_MAX - 2]), Ok(true));
    assert!(
        matches!(put(&mut pending, b"l", b""), Err(CallError::Client(text)) if text.contains("bytes of fields"))
    );
    let mut pending = PendingChanges::default();
    assert_eq!(put(&mut pending, &[b'k'; FIELD_KEY_MAX], b""), Ok(true));
    assert!(put(&mut pending, &[b'k'; FIELD_KEY_MAX + 1], b"").is_err());
    let mut pending = PendingChanges::default();
    let made: Vec<u8> = (0..FIELDS_MAX).map(|_| pending.make(StateView::Absent, &[]).unwrap()).collect();
    assert!(made.iter().copied().eq(1..=FIELDS_MAX));
    assert_eq!(pending.make(StateView::Absent, &[]), None);
}

/// Calls a method of field 1.
fn call(
    kept: &StoredObject,
    pending: &mut PendingChanges,
    kind: FieldKind,
    method: &str,
    arguments: &[&[u8]],
) -> Result<bool, String> {
    let arguments = &Arguments::of(arguments.iter().copied());
    let call = FieldCall { field: 1, kind, method, arguments, now_ms: 0, random: 0 };
    if method == "new" {
        return pending.begin(&call).map(|()| true);
    }
    pending.call(kept.view(), &call, &mut Vec::new())
}

#[test]
fn a_member_in_an_order_counts_once() {
    let memory = Memory::new(16 << 20).unwrap();
    let names: Vec<Vec<u8>> = (0..=PENDING_MAX).map(|n| format!("m{n}").into_bytes()).collect();
    for (kind, method) in [(FieldKind::Zset, "add"), (FieldKind::Zset, "incr"), (FieldKind::Topk, "hit")] {
        let mut kept = StoredObject::Absent;
        // New members come first, then changes of existing ones.
        for score in [b"1", b"2", b"3"] {
            let mut pending = PendingChanges::default();
            if score == b"1" {
                assert_eq!(pending.make(kept.view(), &[]), Some(1));
                let arguments: &[&[u8]] = if kind == FieldKind::Topk { &[b"1000"] } else { &[] };
                call(&kept, &mut pending, kind, "new", arguments).unwrap();
            }
            let before = pending.counted;
            let most = if kind == FieldKind::Topk { 1_000 - before } else { PENDING_MAX - before };
            for name in &names[..most] {
                call(&kept, &mut pending, kind, method, &[name, score]).unwrap();
            }
            assert_eq!(pending.counted - before, most, "{kind:?} {method}");
            assert!(pending.len() > most && pending.len() <= 3 * most + before, "with the order's keys");
            if kind == FieldKind::Zset {
                let error = call(&kept, &mut pending, kind, method, &[&names[most], score]).unwrap_err();
                assert!(error.contains("4096 members"), "{error}");
                assert_eq!(call(&kept, &mut pending, kind, "score", &[&names[0]]), Ok(true), "reads go on");
                assert_eq!(call(&kept, &mut pending, kind, "rank", &[&names[most]]), Ok(false));
            }
            pending.keep_fields(&[1]);
            assert_eq!(pending.counted - before, most, "counted anew");
            kept.commit(&memory, &state(b"p", pending)).unwrap();
        }
    }
}

#[test]
fn many_scores_at_once_count_by_their_members() {
    let (kept, mut pending) = (StoredObject::Absent, PendingChanges::default());
    call(&kept, &mut pending, FieldKind::Zset, "new", &[]).unwrap();
    let names: Vec<Vec<u8>> = (0..PENDING_MAX).map(|n| format!("m{n}").into_bytes()).collect();
    for some in names.chunks(32) {
        let arguments: Vec<&[u8]> = some.iter().flat_map(|name| [name.as_slice(), b"1"]).collect();
        call(&kept, &mut pending, FieldKind::Zset, "add", &arguments).unwrap();
    }
    assert_eq!(pending.counted, PENDING_MAX);
}
