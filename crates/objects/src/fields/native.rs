//! Fields with the methods of shipped types.
//!
//! The members of a field are those of the type's state. The state of a `ring` is bytes in parts, like the
//! plain state; so is the state of an `hll` while it has few registers.

use std::ops::Bound;
use std::sync::{Arc, LazyLock};

use cattlegrid_store::{Memory, Value};

use super::{Layer, LayerBase, PART_BYTES, PendingChanges};
use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::calendar::Zone;
use crate::call::{CallContext, CallError, MethodReply};
use crate::method::ObjectType;
use crate::native;
use crate::native::score::{SPACE, ScoreKey};
use crate::native::set::SplitMix64;
use crate::native::topk::{ORDER as TOPK_ORDER, order_parts};
use crate::number::push_whole;
use crate::object::{FieldBase, Object, ObjectState, StateChange, StateView};
use crate::settings::{Settings, TypeSettings};

/// The kind of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// A field like the type `set`.
    Set,
    /// A field like the type `map`.
    Map,
    /// A field like the type `swcounter`.
    Ring,
    /// A field like the type `topk`.
    Topk,
    /// A field like the type `hll`.
    Hll,
    /// A field like the type `bloom`.
    Bloom,
    /// A field like the type `board`.
    Zset,
}

impl FieldKind {
    /// All kinds, in the order of their numbers, from 1.
    pub const ALL: [Self; 7] =
        [Self::Set, Self::Map, Self::Ring, Self::Topk, Self::Hll, Self::Bloom, Self::Zset];

    /// The number in states, which never changes.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The kind with this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The name of the type with the methods of this kind.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Map => "map",
            Self::Ring => "swcounter",
            Self::Topk => "topk",
            Self::Hll => "hll",
            Self::Bloom => "bloom",
            Self::Zset => "board",
        }
    }

    /// The first byte of the members' second keys, which have the order of the kind; None: it has no such
    /// order.
    fn order(self) -> Option<u8> {
        match self {
            Self::Zset => Some(SPACE),
            Self::Topk => Some(TOPK_ORDER),
            _ => None,
        }
    }

    fn object_type(self) -> &'static ObjectType {
        let own = native::TYPES.iter().find(|one| one.name == self.type_name());
        own.expect("it is shipped")
    }
}

/// A call of a method on a field.
#[derive(Debug, Clone, Copy)]
pub struct FieldCall<'a> {
    /// The field's number.
    pub field: u8,
    /// The field's kind.
    pub kind: FieldKind,
    /// The name of a method of the type.
    pub method: &'a str,
    /// The method's arguments.
    pub arguments: &'a Arguments<'a>,
    /// The time of the call: Unix time in milliseconds.
    pub now_ms: u64,
    /// A number that differs in each call.
    pub random: u64,
}

/// Methods that may change a field.
const WRITES: [&str; 8] = ["put", "add", "delete", "remove", "pop", "incr", "hit", "merge"];
/// Methods that put members, or change them in place, which cannot fail.
const PUTS: [&str; 4] = ["put", "add", "incr", "hit"];

impl FieldCall<'_> {
    /// Whether the method may change the field.
    pub fn writes(&self) -> bool {
        WRITES.contains(&self.method)
    }
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::default);
static TYPE_SETTINGS: LazyLock<TypeSettings> = LazyLock::new(|| TypeSettings::new("field"));
/// Memory for states of calls in progress; an `hll` has 12 KiB.
static SCRATCH: LazyLock<Option<Arc<Memory>>> = LazyLock::new(|| Memory::new(16 << 20).ok());

impl PendingChanges {
    /// Makes a field with this number, which [`PendingChanges::make`] has returned, by the type's `new`.
    ///
    /// # Errors
    /// The arguments are wrong, or the call has reached a limit.
    pub fn begin(&mut self, call: &FieldCall<'_>) -> Result<(), String> {
        self.note_kind(call);
        let mut new = Vec::new();
        let ran = run(call, "new", ObjectState::Absent, &mut new, &mut Vec::new()).map_err(text)?;
        match ran {
            (StateChange::Bytes, true) => self.take(LayerBase::Empty, call, &new),
            _ => Err("has arguments that its type refuses".to_owned()),
        }
    }

    /// Runs a method of a field of the object `view`, and appends the value of the reply to `out`; false: a
    /// miss.
    ///
    /// # Errors
    /// The arguments are wrong, or the call has reached a limit; the field is unchanged.
    pub fn call(
        &mut self,
        view: StateView<'_>,
        call: &FieldCall<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, String> {
        self.note_kind(call);
        if PUTS.contains(&call.method) {
            self.check(1, 0).map_err(text)?;
        }
        self.run_or_undo(|pending| pending.run(LayerBase::of(view), call, out))
    }

    fn run(&mut self, base: LayerBase<'_>, call: &FieldCall<'_>, out: &mut Vec<u8>) -> Result<bool, String> {
        let layer = StateView::Layer(Layer::new(base, self, call.field));
        let is_bytes = match call.kind {
            FieldKind::Ring => true,
            FieldKind::Hll => layer.member(&[1, 0]).is_none(),
            _ => false,
        };
        if !is_bytes {
            // A map of the shipped type shows a long value in pieces.
            if let (FieldKind::Map, "get", Some(key), 1) =
                (call.kind, call.method, call.arguments.get(0), call.arguments.len())
                && let Some(value) = layer.member(key)
            {
                value.copy_to(out);
                return Ok(true);
            }
            let state = ObjectState::Field { base: FieldBase(base), pending: self, field: call.field };
            return run(call, call.method, state, &mut Vec::new(), out)
                .map_err(text)
                .map(|(_, replied)| replied);
        }
        let (mut bytes, mut new) = (Vec::new(), Vec::new());
        copy_state(layer, &mut bytes);
        let (change, replied) =
            run(call, call.method, ObjectState::Bytes(&bytes), &mut new, out).map_err(text)?;
        match change {
            StateChange::Bytes => self.take(base, call, &new)?,
            StateChange::NewTree(tree) => {
                // The `hll` has changed to the form for many registers.
                for place in 0..=bytes.len() / PART_BYTES {
                    self.remove(base, call.field, &part(place));
                }
                let mut failed = None;
                tree.scan(Bound::Unbounded, |key, value| {
                    let mut copy = Vec::new();
                    value.copy_to(&mut copy);
                    failed = self.put(base, call.field, key, &copy).err();
                    failed.is_none()
                });
                failed.map_or(Ok(()), |error| Err(text(error)))?;
            }
            _ => {}
        }
        Ok(replied)
    }

    fn note_kind(&mut self, call: &FieldCall<'_>) {
        if let Some(space) = call.kind.order() {
            self.note_order(call.field, space);
        }
    }

    /// Takes the bytes that a method has left as the state; they never have fewer parts than before.
    fn take(&mut self, base: LayerBase<'_>, call: &FieldCall<'_>, new: &[u8]) -> Result<(), String> {
        let field = call.field;
        match call.kind {
            FieldKind::Ring | FieldKind::Hll => {
                for (place, bytes) in new.chunks(PART_BYTES).enumerate() {
                    self.put(base, field, &part(place), bytes).map_err(text)?;
                }
                if new.is_empty() {
                    self.put(base, field, &[], &[]).map_err(text)?;
                }
                Ok(())
            }
            _ => {
                let mut failed = None;
                StateView::Bytes(new).scan(Bound::Unbounded, |key, value| {
                    if let Value::Inline(value) = value {
                        failed = self.put(base, field, key, value).err();
                    }
                    failed.is_none()
                });
                failed.map_or(Ok(()), |error| Err(text(error)))
            }
        }
    }
}

/// Runs a method. True: it has a value; false: a miss.
fn run(
    call: &FieldCall<'_>,
    name: &str,
    state: ObjectState<'_>,
    new: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(StateChange, bool), CallError> {
    // Of the shipped types, only `set` returns the number of removed members.
    let object_type = match (call.kind, name) {
        (FieldKind::Map, "remove") => FieldKind::Set.object_type(),
        (kind, _) => kind.object_type(),
    };
    let own = object_type.methods.iter().find(|method| method.name == name);
    let Some((method, run)) = own.and_then(|method| Some((method, method.run?))) else {
        return Err(CallError::Client(format!("has no method {name}")));
    };
    let (least, most) = method.arguments;
    let count = call.arguments.len();
    // A method without a limit of arguments for clients has none for scripts.
    if count < least || (count > most && most < ARGUMENTS_MAX) {
        return Err(CallError::Client(format!("takes {}", method.usage)));
    }
    let Some(memory) = &*SCRATCH else { return Err(CallError::NoRoom(0)) };
    let mut object = Object::new(b"", state, new, memory, None);
    let from = out.len();
    let (now_ms, random) = (call.now_ms, call.random);
    let mut context =
        CallContext { now_ms, random, settings: &SETTINGS, own: &TYPE_SETTINGS, zone: &Zone::UTC, out };
    let reply = run(&mut object, call.arguments, &mut context)?;
    let (change, _) = object.finish();
    match reply {
        MethodReply::Value | MethodReply::Json => Ok((change, true)),
        MethodReply::Miss => {
            out.truncate(from);
            Ok((change, false))
        }
        MethodReply::List(_) => Err(CallError::Client("is too long for a script".to_owned())),
    }
}

fn text(error: CallError) -> String {
    match error {
        CallError::Client(text) | CallError::Server(text) => text,
        CallError::NoRoom(_) => "out of memory".to_owned(),
    }
}

/// The key of a part of a state that consists of bytes.
fn part(place: usize) -> Vec<u8> {
    if place == 0 { Vec::new() } else { vec![place as u8] }
}

fn copy_state(layer: StateView<'_>, out: &mut Vec<u8>) {
    for place in 0..usize::from(u8::MAX) {
        let Some(value) = layer.member(&part(place)) else { return };
        value.copy_to(out);
    }
}

/// Up to `n` distinct positions below `len`, ascending. All selections are equally likely.
pub fn random_places(random: u64, n: u64, len: u64) -> Vec<u64> {
    SplitMix64(random).places(n, len)
}

/// The first row of a field, and the direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowOrder {
    /// The first member, ascending; of a `zset` the highest score.
    First,
    /// The last member, descending; of a `zset` the lowest score.
    Last,
    /// The member at this position from 0, ascending.
    Nth(u64),
}

/// Reads members of a `set`, `map`, `zset` or `topk` in pieces, each under a lock.
#[derive(Debug)]
pub struct FieldRows {
    kind: FieldKind,
    field: u8,
    order: RowOrder,
    left: u64,
    /// The key of the last member that was read.
    after: Option<Vec<u8>>,
}

impl FieldRows {
    /// The most members in one read.
    pub const PIECE: usize = 256;

    /// Reads up to `most` members.
    pub fn new(kind: FieldKind, field: u8, order: RowOrder, most: u64) -> Self {
        Self { kind, field, order, left: most, after: None }
    }

    /// Continues after the member whose key [`FieldRows::last`] has returned.
    #[must_use]
    pub fn behind(self, last: Vec<u8>) -> Self {
        Self { after: Some(last), ..self }
    }

    /// The key of the last member that was read, if there may be more.
    pub fn last(&self) -> Option<&[u8]> {
        self.after.as_deref()
    }

    /// Calls `each` with the next members, until it returns false. It gets the key and the value for a `map`
    /// and a `set`, and the member and the text of its score or count for a `zset` and a `topk`. True: there
    /// may be more members.
    pub fn read(
        &mut self,
        view: StateView<'_>,
        pending: &PendingChanges,
        mut each: impl FnMut(&[u8], Value<'_>) -> bool,
    ) -> bool {
        let view = StateView::Layer(Layer::new(LayerBase::of(view), pending, self.field));
        let order = self.kind.order();
        let space = order.as_slice();
        let is_back = self.order == RowOrder::Last;
        let nth;
        let after_space = [SPACE + 1];
        let from = match (&self.after, &self.order) {
            (Some(key), _) => Bound::Excluded(&**key),
            (None, RowOrder::Nth(place)) => match view.nth(*place) {
                Some((key, _)) => {
                    nth = key.to_vec();
                    Bound::Included(&*nth)
                }
                None => return false,
            },
            (None, RowOrder::Last) if self.kind == FieldKind::Zset => Bound::Excluded(after_space.as_slice()),
            (None, RowOrder::First) => Bound::Included(space),
            (None, RowOrder::Last) => Bound::Unbounded,
        };
        let (mut count, mut after) = (0, None);
        let most = usize::try_from(self.left).unwrap_or(Self::PIECE).min(Self::PIECE);
        let mut row = |key: &[u8], value: Value<'_>| {
            if !key.starts_with(space) {
                return false;
            }
            count += 1;
            let mut text = Vec::new();
            let goes_on = match self.kind {
                FieldKind::Zset => {
                    let Some(place) = ScoreKey::of(key) else { return true };
                    place.score.write(&mut text);
                    each(place.member, Value::Inline(&text))
                }
                FieldKind::Topk => {
                    let Some((hits, item)) = order_parts(key) else { return true };
                    push_whole(&mut text, hits);
                    each(item, Value::Inline(&text))
                }
                _ => each(key, value),
            };
            if count == most || !goes_on {
                after = Some(key.to_vec());
            }
            after.is_none()
        };
        if is_back {
            view.scan_back(from, &mut row);
        } else {
            view.scan(from, &mut row);
        }
        self.left -= count as u64;
        self.after = after;
        self.after.is_some() && self.left > 0
    }
}

/// Appends a field as JSON, unless it is a `set`, `map` or `zset`, which [`FieldRows`] reads.
pub fn dump_field(view: StateView<'_>, kind: FieldKind, field: u8, out: &mut Vec<u8>) {
    let Some(dump) = kind.object_type().dump else { return };
    let pending = PendingChanges::NONE;
    let layer = StateView::Layer(Layer::new(LayerBase::of(view), &pending, field));
    let mut bytes = Vec::new();
    let is_bytes = kind == FieldKind::Ring || (kind == FieldKind::Hll && layer.member(&[1, 0]).is_none());
    if is_bytes {
        copy_state(layer, &mut bytes);
    }
    let state = if is_bytes { StateView::Bytes(&bytes) } else { layer };
    let mut unused = Vec::new();
    let context = CallContext {
        now_ms: 0,
        random: 0,
        settings: &SETTINGS,
        own: &TYPE_SETTINGS,
        zone: &Zone::UTC,
        out: &mut unused,
    };
    dump(state, &context, out);
}
