//! `queue`: entries in the order of their arrival, with a limit on their number.
//!
//! ```text
//!   | 0 |                    ->  | most entries, 4 bytes | what is done when it is full, 1 byte |
//!   | 1 | number, 8 bytes |  ->  an entry; numbers ascend, big-endian
//! ```

use std::ops::Bound;

use crate::arguments::Arguments;
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{RowSelection, RowShape, RowStart, show, show_value};
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::collection::number;
use crate::object::{Object, StateView};

/// The first byte of the keys of entries.
pub(crate) const SPACE: u8 = 1;

/// The most entries of a queue by default.
const DEFAULT_MAX: u32 = 1000;
/// The most entries of any queue.
const MOST: u32 = 1_000_000;

/// The type `queue`.
pub(crate) static QUEUE: ObjectType = ObjectType {
    name: "queue",
    id: 17,
    doc: "Entries in the order in which they came, up to a number of them.",
    methods: &[
        method(
            "new",
            (0, 2),
            "[max [drop|refuse]]",
            "CREATED; max is 1 to 1000000 entries (1000); push to a full queue drops the oldest, or refuses",
            OnAbsent::Runs,
            new,
        ),
        method("push", (1, 1), "entry", "number of entries, FULL", OnAbsent::Runs, push),
        method(
            "pop",
            (0, 0),
            "",
            "the oldest entry, which is removed; a miss if there is none",
            OnAbsent::Miss,
            pop,
        ),
        method("peek", (0, 0), "", "the oldest entry, a miss if there is none", OnAbsent::Miss, peek),
        method("len", (0, 0), "", "number of entries", OnAbsent::Miss, len),
        method("all", (0, 0), "", "an entry a line, the oldest first", OnAbsent::Miss, all),
    ],
    dump: None,
};

/// The arguments of `new`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueTerms {
    most: u32,
    refuses: bool,
}

const TERMS_KEY: &[u8] = &[0];

impl QueueTerms {
    fn read(arguments: &Arguments<'_>) -> Result<Self, CallError> {
        let what = format!("a number from 1 to {MOST}");
        let most = number::<u32>(arguments, 0, &what)?.unwrap_or(DEFAULT_MAX);
        if !(1..=MOST).contains(&most) {
            return Err(CallError::argument(0, &what));
        }
        let refuses = match arguments.get(1) {
            None | Some(b"drop") => false,
            Some(b"refuse") => true,
            Some(_) => return Err(CallError::argument(1, "drop or refuse")),
        };
        Ok(Self { most, refuses })
    }

    fn of(view: StateView<'_>) -> Self {
        let mut bytes = Vec::new();
        if let Some(value) = view.member(TERMS_KEY) {
            value.copy_to(&mut bytes);
        }
        let most = bytes.first_chunk().map_or(DEFAULT_MAX, |most| u32::from_le_bytes(*most));
        Self { most, refuses: bytes.get(4) == Some(&1) }
    }

    /// Replaces the object by an empty queue.
    fn found(self, object: &mut Object<'_>) -> Result<(), CallError> {
        let [a, b, c, d] = self.most.to_le_bytes();
        object.set(&[]);
        object.members().put(TERMS_KEY, &[a, b, c, d, u8::from(self.refuses)])?;
        Ok(())
    }
}

fn new(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    QueueTerms::read(arguments)?.found(object)?;
    Ok(context.text(b"CREATED"))
}

fn push(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    if !object.exists() {
        let create = context.own.create.iter().flatten().map(Vec::as_slice);
        QueueTerms::read(&Arguments::of(create))?.found(object)?;
    }
    let entry = arguments.get(0).unwrap_or_default();
    let terms = QueueTerms::of(object.view());
    let mut entries = object.view().members().saturating_sub(1);
    if entries >= u64::from(terms.most) && terms.refuses {
        return Ok(context.text(b"FULL"));
    }
    let newest = object.view().last().and_then(|(key, _)| number_of(key)).unwrap_or(0);
    // The first entry has the number 1. With a million entries a second, the numbers last half a million
    // years.
    let key = key_of(newest.saturating_add(1));
    object.members().put(&key, entry)?;
    entries += 1;
    while entries > u64::from(terms.most) {
        let Some(oldest) = oldest(object.view(), |_| ()) else { break };
        object.members().remove(&oldest.0);
        entries -= 1;
    }
    Ok(context.number(entries))
}

fn pop(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some((key, ())) = oldest(object.view(), |value| value.copy_to(context.out)) else {
        return Ok(MethodReply::Miss);
    };
    object.members().remove(&key);
    Ok(MethodReply::Value)
}

fn peek(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some((key, ())) = oldest(object.view(), |_| ()) else { return Ok(MethodReply::Miss) };
    show_value(object, &key, RowShape::Value, context)
}

fn len(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(context.number(object.view().members().saturating_sub(1)))
}

fn all(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let rows =
        RowSelection { shape: RowShape::Values, space: Some(SPACE), start: RowStart::First, most: u64::MAX };
    show(object, rows, context)
}

/// The key of the oldest entry, and the result of `each` for its value.
fn oldest<R>(
    view: StateView<'_>,
    each: impl FnOnce(cattlegrid_store::Value<'_>) -> R,
) -> Option<([u8; 9], R)> {
    let mut each = Some(each);
    let mut found = None;
    view.scan(Bound::Included(&[SPACE]), |key, value| {
        found = key.try_into().ok().zip(each.take()).map(|(key, each)| (key, each(value)));
        false
    });
    found
}

fn key_of(number: u64) -> [u8; 9] {
    let mut key = [SPACE; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn number_of(key: &[u8]) -> Option<u64> {
    key.strip_prefix(&[SPACE])?.try_into().ok().map(u64::from_be_bytes)
}
