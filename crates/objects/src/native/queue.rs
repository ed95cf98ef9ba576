//! `queue`: entries in the order in which they came, up to a number of them.
//!
//! ```text
//!   | 0 |                    ->  | most entries, 4 bytes | what is done when it is full, 1 byte |
//!   | 1 | number, 8 bytes |  ->  an entry; numbers ascend, big-endian
//! ```

use std::ops::Bound;

use crate::arguments::Arguments;
use crate::call::{CallError, Frame, Reply};
use crate::listing::{Rows, Shape, Start, show, show_value};
use crate::method::{Absent, ObjectType, method};
use crate::native::collection::number;
use crate::object::{Object, View};

/// First byte of the keys of entries.
pub(crate) const SPACE: u8 = 1;

/// Most entries of a queue that says nothing.
const DEFAULT_MAX: u32 = 1000;
/// Most entries of any queue.
const MOST: u32 = 1_000_000;

/// See the module's text.
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
            Absent::Runs,
            new,
        ),
        method("push", (1, 1), "entry", "number of entries, FULL", Absent::Runs, push),
        method(
            "pop",
            (0, 0),
            "",
            "the oldest entry, which is removed; a miss if there is none",
            Absent::Miss,
            pop,
        ),
        method("peek", (0, 0), "", "the oldest entry, a miss if there is none", Absent::Miss, peek),
        method("len", (0, 0), "", "number of entries", Absent::Miss, len),
        method("all", (0, 0), "", "an entry a line, the oldest first", Absent::Miss, all),
    ],
    dump: None,
};

/// What `new` was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Terms {
    most: u32,
    refuses: bool,
}

const TERMS_KEY: &[u8] = &[0];

impl Terms {
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

    fn of(view: View<'_>) -> Self {
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
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    Terms::read(arguments)?.found(object)?;
    Ok(frame.text(b"CREATED"))
}

fn push(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    frame: &mut Frame<'_>,
) -> Result<Reply, CallError> {
    if !object.exists() {
        let create = frame.own.create.iter().flatten().map(Vec::as_slice);
        Terms::read(&Arguments::of(create))?.found(object)?;
    }
    let entry = arguments.get(0).unwrap_or_default();
    let terms = Terms::of(object.view());
    let mut entries = object.view().members().saturating_sub(1);
    if entries >= u64::from(terms.most) && terms.refuses {
        return Ok(frame.text(b"FULL"));
    }
    let newest = object.view().last().and_then(|(key, _)| number_of(key)).unwrap_or(0);
    // The first entry is number 1; a million entries a second need half a million years to the last.
    let key = key_of(newest.saturating_add(1));
    object.members().put(&key, entry)?;
    entries += 1;
    while entries > u64::from(terms.most) {
        let Some(oldest) = oldest(object.view(), |_| ()) else { break };
        object.members().remove(&oldest.0);
        entries -= 1;
    }
    Ok(frame.number(entries))
}

fn pop(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let Some((key, ())) = oldest(object.view(), |value| value.copy_to(frame.out)) else {
        return Ok(Reply::Miss);
    };
    object.members().remove(&key);
    Ok(Reply::Value)
}

fn peek(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let Some((key, ())) = oldest(object.view(), |_| ()) else { return Ok(Reply::Miss) };
    show_value(object, &key, Shape::Value, frame)
}

fn len(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    Ok(frame.number(object.view().members().saturating_sub(1)))
}

fn all(object: &mut Object<'_>, _: &Arguments<'_>, frame: &mut Frame<'_>) -> Result<Reply, CallError> {
    let rows = Rows { shape: Shape::Values, space: Some(SPACE), start: Start::First, most: u64::MAX };
    show(object, rows, frame)
}

/// The key of the oldest entry, and what `each` makes of its value.
fn oldest<R>(view: View<'_>, each: impl FnOnce(cattlegrid_store::Value<'_>) -> R) -> Option<([u8; 9], R)> {
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
