//! `board`: members in the order of their scores, such as a leaderboard.
//!
//! ```text
//!   | 0 | score, 8 bytes | member |  ->  nothing      in order of the ranks: `native/score.rs`
//!   | 1 | member |                   ->  score, 8 bytes
//! ```
//! Each member has both keys. A call first adds all keys that it needs; room for several is reserved. If the
//! second key of a single member finds no room, its first key is removed again. Only then are scores replaced
//! in place and old keys removed, which cannot fail.

use cattlegrid_store::{Tree, Value};

use crate::arguments::{ARGUMENTS_MAX, Arguments};
use crate::call::{CallContext, CallError, MethodReply};
use crate::listing::{RowSelection, RowShape, RowStart, show};
use crate::members::Members;
use crate::method::{ObjectType, OnAbsent, method};
use crate::native::collection::{member_within, number};
use crate::native::score::{PLACE_HEAD, SCORE_BYTES, SPACE, Score, ScoreKey};
use crate::native::set::MANY;
use crate::object::{Object, StateView};

/// The first byte of the keys by member.
const BY_MEMBER: u8 = 1;

/// The longest member, in bytes.
pub(crate) const MEMBER_MAX: usize = Tree::KEY_MAX - PLACE_HEAD;

/// The type `board`.
pub(crate) static BOARD: ObjectType = ObjectType {
    name: "board",
    id: 11,
    doc: "Members with scores, in order of the scores: the highest has rank 1.",
    methods: &[
        method("new", (0, 0), "", "CREATED", OnAbsent::Runs, super::collection::new),
        method(
            "add",
            (2, ARGUMENTS_MAX),
            "member score [member score ...]",
            "number of members that are new",
            OnAbsent::Runs,
            add,
        ),
        method("incr", (1, 2), "member [n]", "the new score; from 0 for a new member", OnAbsent::Runs, incr),
        method("score", (1, 1), "member", "its score, a miss if it is not there", OnAbsent::Miss, score),
        method("rank", (1, 1), "member", "its rank from 1, a miss if it is not there", OnAbsent::Miss, rank),
        method("count", (0, 0), "", "number of members", OnAbsent::Miss, count),
        method(
            "top",
            (0, 1),
            "[n]",
            "up to n (10) lines of member score, the highest first",
            OnAbsent::Miss,
            top,
        ),
        method(
            "bottom",
            (0, 1),
            "[n]",
            "up to n (10) lines of member score, the lowest first",
            OnAbsent::Miss,
            bottom,
        ),
        method(
            "around",
            (1, 2),
            "member [n]",
            "lines of member score, up to n (5) before the member, it, and up to n after it; a miss if it is not there",
            OnAbsent::Miss,
            around,
        ),
        method(
            "range",
            (2, 2),
            "from to",
            "lines of member score of these ranks, both included",
            OnAbsent::Miss,
            range,
        ),
        method("remove", MANY, "member [member ...]", "number of members removed", OnAbsent::Miss, remove),
    ],
    dump: None,
};

const NUMBER: &str = "a finite number";

fn member<'a>(arguments: &Arguments<'a>, place: usize) -> Result<&'a [u8], CallError> {
    member_within(arguments, place, MEMBER_MAX)
}

fn score_argument(arguments: &Arguments<'_>, place: usize) -> Result<Score, CallError> {
    Score::parse(arguments.get(place).unwrap_or_default()).ok_or_else(|| CallError::argument(place, NUMBER))
}

/// Sets all scores or none. For a member that is given twice the last score counts.
fn add(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    if arguments.len() % 2 == 1 {
        return Err(CallError::Client("takes member score [member score ...]".to_owned()));
    }
    let places = (0..arguments.len()).step_by(2);
    // For a member that is given twice the last score is kept.
    let mut changes = Vec::with_capacity(arguments.len() / 2);
    for place in places {
        let change = (member(arguments, place)?, score_argument(arguments, place + 1)?);
        changes.retain(|(member, _)| *member != change.0);
        changes.push(change);
    }
    let added = set_scores(object, &changes)?;
    Ok(context.number(added))
}

fn incr(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let member = member(arguments, 0)?;
    let n = if arguments.len() > 1 { score_argument(arguments, 1)?.number() } else { 1.0 };
    let old = score_of(object.view(), member).map_or(0.0, Score::number);
    let Some(sum) = Score::new(old + n) else {
        return Err(CallError::Client("the score would not be a finite number".to_owned()));
    };
    set_scores(object, &[(member, sum)])?;
    sum.write(context.out);
    Ok(MethodReply::Value)
}

fn score(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(score) = score_of(object.view(), member(arguments, 0)?) else { return Ok(MethodReply::Miss) };
    score.write(context.out);
    Ok(MethodReply::Value)
}

fn rank(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let Some(before) = before(object.view(), member(arguments, 0)?) else { return Ok(MethodReply::Miss) };
    Ok(context.number(before + 1))
}

fn count(
    object: &mut Object<'_>,
    _: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    Ok(context.number(count_of(object.view())))
}

fn top(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let most = whole(arguments, 0)?.unwrap_or(10);
    show(object, rows(RowStart::First, most), context)
}

fn bottom(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let most = whole(arguments, 0)?.unwrap_or(10);
    show(object, rows(RowStart::Last, most), context)
}

fn around(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let member = member(arguments, 0)?;
    let n = whole(arguments, 1)?.unwrap_or(5);
    let Some(place) = before(object.view(), member) else { return Ok(MethodReply::Miss) };
    let first = place.saturating_sub(n);
    show(object, rows(RowStart::Nth(first), (place - first).saturating_add(n).saturating_add(1)), context)
}

fn range(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    let first = whole(arguments, 0)?.unwrap_or(1).max(1);
    let last = whole(arguments, 1)?.unwrap_or(u64::MAX);
    show(object, rows(RowStart::Nth(first - 1), last.saturating_sub(first - 1)), context)
}

fn remove(
    object: &mut Object<'_>,
    arguments: &Arguments<'_>,
    context: &mut CallContext<'_>,
) -> Result<MethodReply, CallError> {
    (0..arguments.len()).try_for_each(|place| member(arguments, place).map(|_| ()))?;
    let mut removed = 0;
    for member in arguments.iter() {
        let Some(score) = score_of(object.view(), member) else { continue };
        object.members().remove(&place_key(score, member));
        object.members().remove(&member_key(member));
        removed += 1;
    }
    Ok(context.number(removed))
}

/// Sets the scores of these distinct members, or changes nothing. Returns the number of new members.
fn set_scores(object: &mut Object<'_>, changes: &[(&[u8], Score)]) -> Result<u64, CallError> {
    let old: Vec<Option<Score>> = changes.iter().map(|(member, _)| score_of(object.view(), member)).collect();
    let mut members = object.members();
    if changes.len() > 1 {
        let longest = changes.iter().map(|(member, _)| member.len()).max().unwrap_or(0);
        members.reserve_for(changes.len() * 2, longest + PLACE_HEAD, SCORE_BYTES)?;
    }
    let mut added = Vec::new();
    if let Err(error) = add_keys(&mut members, changes, &old, &mut added) {
        for key in &added {
            members.remove(key);
        }
        return Err(error);
    }
    for ((member, score), old) in changes.iter().zip(&old) {
        if let Some(old) = old.filter(|old| old != score) {
            if let Some(value) = members.get_mut(&member_key(member)) {
                value.copy_from_slice(&score.to_bytes());
            }
            members.remove(&place_key(old, member));
        }
    }
    Ok(old.iter().filter(|old| old.is_none()).count() as u64)
}

/// Puts all keys for these scores, and notes the new ones.
fn add_keys(
    members: &mut Members<'_, '_>,
    changes: &[(&[u8], Score)],
    old: &[Option<Score>],
    added: &mut Vec<Vec<u8>>,
) -> Result<(), CallError> {
    for ((member, score), old) in changes.iter().zip(old) {
        if *old == Some(*score) {
            continue;
        }
        let key = place_key(*score, member);
        members.add(&key)?;
        added.push(key);
        if old.is_none() {
            let key = member_key(member);
            members.put(&key, &score.to_bytes())?;
            added.push(key);
        }
    }
    Ok(())
}

fn place_key(score: Score, member: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PLACE_HEAD + member.len());
    ScoreKey { score, member }.write(&mut key);
    key
}

fn member_key(member: &[u8]) -> Vec<u8> {
    [&[BY_MEMBER], member].concat()
}

fn count_of(view: StateView<'_>) -> u64 {
    view.members() / 2
}

fn score_of(view: StateView<'_>, member: &[u8]) -> Option<Score> {
    match view.member(&member_key(member))? {
        Value::Inline(bytes) => Score::from_bytes(bytes.try_into().ok()?),
        Value::Huge(_) => None,
    }
}

/// The number of members with a higher rank; None: the member is absent.
fn before(view: StateView<'_>, member: &[u8]) -> Option<u64> {
    Some(view.before(&place_key(score_of(view, member)?, member)))
}

fn whole(arguments: &Arguments<'_>, place: usize) -> Result<Option<u64>, CallError> {
    number(arguments, place, "a whole number, 0 or greater")
}

/// Lines of members in the order of their ranks.
fn rows(start: RowStart, most: u64) -> RowSelection {
    RowSelection { shape: RowShape::Scores, space: Some(SPACE), start, most }
}
