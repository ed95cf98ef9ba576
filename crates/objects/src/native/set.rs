//! `set`: distinct members, in order.
//!
//! The state has the members' keys; they have no values.

use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{Combination, Listing};
use crate::method::{ObjectType, OnAbsent, method, of_several};
use crate::native::collection::{check_keys, check_members, count, delete, exist, keys, new, number};
use crate::object::Object;

/// The most members of `random`.
pub(crate) const RANDOM_MAX: usize = 1000;

/// The type `set`.
pub(crate) static SET: ObjectType = ObjectType {
    name: "set",
    id: 3,
    doc: "Members, each once, in order.",
    methods: &[
        method("new", (0, 0), "", "CREATED", OnAbsent::Runs, new),
        method("put", MANY, "member [member ...]", "SUCCESS", OnAbsent::Miss, put),
        method("add", MANY, "member [member ...]", "number of members that are new", OnAbsent::Miss, add),
        method("exist", (1, 1), "member", "EXISTS, NOT_FOUND", OnAbsent::Miss, exist),
        method("delete", MANY, "member [member ...]", "SUCCESS", OnAbsent::Miss, delete),
        method("remove", MANY, "member [member ...]", "number of members removed", OnAbsent::Miss, remove),
        method("count", (0, 0), "", "number of members", OnAbsent::Miss, count),
        method("getall", (0, 0), "", "a member a line, sorted", OnAbsent::Miss, keys),
        of_several(&method(
            "union",
            MANY,
            "key [key ...]",
            "members of any of the sets, as getall",
            OnAbsent::Miss,
            union,
        )),
        of_several(&method(
            "intersection",
            MANY,
            "key [key ...]",
            "members of all of the sets, as getall",
            OnAbsent::Miss,
            intersection,
        )),
        of_several(&method(
            "diff",
            MANY,
            "key [key ...]",
            "members of no other set, as getall",
            OnAbsent::Miss,
            difference,
        )),
        method(
            "random",
            (0, 1),
            "[n]",
            "a member, a miss if there is none; with n up to 1000: this many different members, as getall",
            OnAbsent::Miss,
            random,
        ),
        method("pop", (0, 0), "", "a member chosen at random, which is removed; a miss", OnAbsent::Miss, pop),
    ],
    dump: None,
};

/// The numbers of arguments of methods that take several members or keys.
pub(crate) const MANY: (usize, usize) = (1, ARGUMENTS_MAX);

fn put(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    add_all(object, arguments)?;
    Ok(context.text(b"SUCCESS"))
}

fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let added = add_all(object, arguments)?;
    Ok(context.number(added))
}

/// Adds all members or none; returns the number of new ones.
fn add_all(object: &mut Object<'_>, arguments: &Arguments<'_>) -> Result<u64, CallError> {
    check_members(arguments)?;
    let mut members = object.members();
    if arguments.len() > 1 {
        members.reserve_for(arguments.len(), arguments.iter().map(<[u8]>::len).max().unwrap_or(0), 0)?;
    }
    let mut added = 0;
    for member in arguments.iter() {
        added += u64::from(members.add(member)?);
    }
    Ok(added)
}

fn remove(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    check_members(arguments)?;
    let mut members = object.members();
    let removed = arguments.iter().filter(|member| members.remove(member)).count();
    drop(members);
    Ok(context.number(removed as u64))
}

fn union(
    object: &mut Object<'_>,
    others: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    combine(object, others, Combination::Union, context)
}

fn intersection(
    object: &mut Object<'_>,
    others: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    combine(object, others, Combination::Intersection, context)
}

fn difference(
    object: &mut Object<'_>,
    others: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    combine(object, others, Combination::Difference, context)
}

fn combine(
    object: &Object<'_>,
    others: &Arguments<'_>,
    combination: Combination,
    context: &CallContext<'_>,
) -> Result<MethodReply, CallError> {
    check_keys(others)?;
    let keys = std::iter::once(object.key()).chain(others.iter());
    Ok(MethodReply::List(Listing::sets(keys, combination).with_settings(context.settings)))
}

fn random(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let what = format!("a number from 0 to {RANDOM_MAX}");
    let asked = number::<usize>(arguments, 0, &what)?;
    if asked.is_some_and(|n| n > RANDOM_MAX) {
        return Err(CallError::argument(0, &what));
    }
    let view = object.view();
    let len = view.members();
    let mut draws = SplitMix64(context.random);
    let Some(n) = asked else {
        let Some((member, _)) = len.checked_sub(1).and_then(|most| view.nth(draws.up_to(most))) else {
            return Ok(MethodReply::Miss);
        };
        return Ok(context.text(member));
    };
    for place in draws.places(n as u64, len) {
        if let Some((member, _)) = view.nth(place) {
            context.out.extend_from_slice(member);
            context.out.extend_from_slice(b"\r\n");
        }
    }
    Ok(MethodReply::Value)
}

fn pop(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let view = object.view();
    let most = view.members().checked_sub(1);
    let place = most.map(|most| SplitMix64(context.random).up_to(most));
    let Some((member, _)) = place.and_then(|place| view.nth(place)) else { return Ok(MethodReply::Miss) };
    let member = member.to_vec();
    object.members().remove(&member);
    Ok(context.text(&member))
}

/// The random number generator `SplitMix64`, seeded with the random number of the call.
#[derive(Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `most`. For a million values, the probabilities differ by less than one part in
    /// 2^40.
    fn up_to(&mut self, most: u64) -> u64 {
        ((u128::from(self.next()) * (u128::from(most) + 1)) >> 64) as u64
    }

    /// `n` distinct positions below `len`, or all if there are fewer, ascending. All selections are equally
    /// likely (R. Floyd, in Bentley, "Programming Pearls: a sample of brilliance", 1987).
    pub(crate) fn places(&mut self, n: u64, len: u64) -> Vec<u64> {
        let mut places: Vec<u64> = Vec::new();
        for last in len.saturating_sub(n)..len {
            let place = self.up_to(last);
            match places.binary_search(&place) {
                Ok(_) => places.push(last),
                Err(at) => places.insert(at, place),
            }
        }
        places
    }
}
