//! `map`: values under keys, in the order of the keys.
//!
//! The state has the keys and their values. A value may be as long as an item; a value above
//! [`Tree::VALUE_INLINE_MAX`] bytes has separate pages.

use cattlegrid_store::Tree;

use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{RowSelection, RowShape, show, show_value};
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::collection::{count, delete, exist, keys, member, new, number};
use crate::native::set::MANY;
use crate::number::signed;
use crate::object::Object;

/// The type `map`.
pub(crate) static MAP: ObjectType = ObjectType {
    name: "map",
    id: 4,
    doc: "Values under keys, in order of the keys.",
    methods: &[
        method("new", (0, 0), "", "CREATED", OnAbsent::Runs, new),
        method("put", (2, ARGUMENTS_MAX), "key value [key value ...]", "SUCCESS", OnAbsent::Miss, put),
        method("get", (1, 1), "key", "the value, a miss if there is none", OnAbsent::Miss, get),
        method("exist", (1, 1), "key", "EXISTS, NOT_FOUND", OnAbsent::Miss, exist),
        method("delete", MANY, "key [key ...]", "SUCCESS", OnAbsent::Miss, delete),
        method("count", (0, 0), "", "number of keys", OnAbsent::Miss, count),
        method("getkeys", (0, 0), "", "a key a line, sorted", OnAbsent::Miss, keys),
        method("getvalues", (0, 0), "", "a value a line, in order of the keys", OnAbsent::Miss, values),
        method("getall", (0, 0), "", "lines of key : value, in order of the keys", OnAbsent::Miss, pairs),
        method("incr", (1, 2), "key [n]", "the new value, 64 bits with a sign", OnAbsent::Miss, incr),
    ],
    dump: None,
};

/// Puts all values or none. For a key that is given twice the last value counts.
fn put(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    if arguments.len() % 2 == 1 {
        return Err(CallError::Client("takes key value [key value ...]".to_owned()));
    }
    let places = (0..arguments.len()).step_by(2);
    let pair =
        |place| (arguments.get(place).unwrap_or_default(), arguments.get(place + 1).unwrap_or_default());
    let mut long = None;
    for place in places.clone() {
        member(arguments, place)?;
        if pair(place).1.len() > Tree::VALUE_INLINE_MAX && long.replace(place).is_some() {
            // Long values need their room one after the other, and the second might find none.
            let most = Tree::VALUE_INLINE_MAX;
            return Err(CallError::Client(format!("only one value may be longer than {most} bytes")));
        }
    }
    let mut members = object.members();
    if arguments.len() > 2 {
        let longest = |from| arguments.iter().skip(from).step_by(2).map(<[u8]>::len).max().unwrap_or(0);
        members.reserve_for(arguments.len() / 2, longest(0), longest(1))?;
    }
    // The long value is put first, since only it can fail.
    let counts =
        |place: &usize| !places.clone().any(|later| later > *place && pair(later).0 == pair(*place).0);
    let order = long.into_iter().chain(places.clone().filter(|place| Some(*place) != long)).filter(counts);
    for place in order {
        let (key, value) = pair(place);
        members.put(key, value)?;
    }
    Ok(context.text(b"SUCCESS"))
}

fn get(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let key = member(arguments, 0)?;
    let shape = if context.settings.compat { RowShape::Pair } else { RowShape::Value };
    match show_value(object, key, shape, context)? {
        MethodReply::Miss if context.settings.compat => Ok(context.text(b"NOT_FOUND")),
        reply => Ok(reply),
    }
}

fn values(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    show(object, RowSelection::all(RowShape::Values), context)
}

fn pairs(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    show(object, RowSelection::all(RowShape::Pairs), context)
}

/// Adds to a value that is a number; an absent key begins at 0.
fn incr(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let key = member(arguments, 0)?;
    let n = number::<i64>(arguments, 1, "a whole number of 64 bits with a sign")?.unwrap_or(1);
    let mut members = object.members();
    let mut text = Vec::new();
    let old = members.get(key, |value| {
        if value.len() <= NUMBER_BYTES_MAX {
            value.copy_to(&mut text);
        }
        signed(&text)
    });
    let Some(old) = old.unwrap_or(Some(0)) else {
        return Err(CallError::Client("the value is not a whole number of 64 bits with a sign".to_owned()));
    };
    let Some(sum) = old.checked_add(n) else {
        return Err(CallError::Client("the sum has more than 64 bits with a sign".to_owned()));
    };
    members.put(key, sum.to_string().as_bytes())?;
    drop(members);
    Ok(context.text(sum.to_string().as_bytes()))
}

/// The longest text of a number of 64 bits: a sign and 19 digits.
const NUMBER_BYTES_MAX: usize = 20;
