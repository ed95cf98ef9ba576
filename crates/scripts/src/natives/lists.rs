//! Methods of fields that show several members: lists, and loops by `each`.
//!
//! # Invariants
//! * Members are read in pieces, of [`FieldRows::PIECE`] members and a little more than [`PIECE_BYTES`]
//!   bytes.
//! * A list has at most [`LIST_MAX`] members of [`LIST_BYTES_MAX`] bytes.
//! * Members that a loop has read and not shown yet are kept in the VM, whose memory is limited.

use std::collections::BTreeSet;

use cattlegrid_objects::{FieldKind, FieldRows, PendingChanges, RowOrder, random_places};
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

use super::{FieldHandle, draw, handle, read, run, texts};
use crate::current::CurrentCall;
use crate::{json, library, raw_call};

/// The most members of a list.
const LIST_MAX: usize = 10_000;
/// The most bytes of a list's members and values.
const LIST_BYTES_MAX: usize = 1 << 20;
/// The size in bytes at which a piece of a loop ends.
const PIECE_BYTES: usize = 64 << 10;
/// The most members of `random`, as in the type `set`.
const RANDOM_MAX: u64 = 1000;

/// Members, and their values, scores or counts as texts.
type MemberList = Vec<(Vec<u8>, Vec<u8>)>;

/// Methods that combine a set with other sets.
pub(super) const COMBINATIONS: [&str; 3] = ["union", "intersection", "diff"];

/// The methods of a kind that return a list.
pub(super) fn names(kind: FieldKind) -> &'static [&'static str] {
    match kind {
        FieldKind::Set => &["getall", "random"],
        FieldKind::Map => &["getkeys", "getvalues", "getall"],
        FieldKind::Topk => &["list"],
        FieldKind::Zset => &["top", "bottom", "around", "range"],
        FieldKind::Ring | FieldKind::Hll | FieldKind::Bloom => &[],
    }
}

/// Adds these methods to those of a kind.
///
/// # Errors
/// Memory is short.
pub(super) fn install(lua: &Lua, table: &Table, name: &str, kind: FieldKind) -> mlua::Result<()> {
    let lists = names(kind);
    if lists.is_empty() {
        return Ok(());
    }
    for method in lists.iter().copied() {
        let full = format!("{name}:{method}");
        let run = lua.create_function(move |lua, (own, arguments): (Value, MultiValue)| {
            let arguments = texts(lua, &arguments, &full)?;
            let run = |current: &mut CurrentCall<'_>| {
                let handle = handle(&own, current, kind)?;
                list(current, handle, kind, method, &arguments)
            };
            let Some(listed) = library::call(lua, &full, run)? else { return Ok(Value::Nil) };
            if (method, arguments.len()) == ("random", 0) {
                let member = listed.first().map(|(member, _)| lua.create_string(member));
                return Ok(member.transpose()?.map_or(Value::Nil, Value::String));
            }
            rows(lua, kind, method, &listed).map(Value::Table)
        })?;
        table.raw_set(method, run)?;
    }
    let full = format!("{name}:each");
    let each = lua.create_function(move |lua, own: Value| {
        let of_call = |current: &mut CurrentCall<'_>| Ok((handle(&own, current, kind)?, current.number));
        let (handle, call_number) = library::call(lua, &full, of_call)?;
        each(lua, &full, handle, call_number, kind)
    })?;
    table.raw_set("each", each)?;
    if kind == FieldKind::Set {
        for combination in COMBINATIONS {
            table.raw_set(combination, combine(lua, combination)?)?;
        }
    }
    Ok(())
}

/// The members that a method lists; None: the method returns nil.
fn list(
    current: &mut CurrentCall<'_>,
    handle: FieldHandle,
    kind: FieldKind,
    method: &str,
    arguments: &[Vec<u8>],
) -> Result<Option<MemberList>, String> {
    let most_arguments = match method {
        "around" | "range" => 2,
        "top" | "bottom" | "list" | "random" => 1,
        _ => 0,
    };
    if arguments.len() > most_arguments {
        return Err("has too many arguments".to_owned());
    }
    let whole = |place: usize| {
        let Some(text) = arguments.get(place) else { return Ok(None) };
        let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
        number.map(Some).ok_or_else(|| format!("arg {} must be a whole number, 0 or greater", place + 1))
    };
    let (order, most) = match method {
        "random" => return random(current, handle, whole(0)?).map(Some),
        "list" => (RowOrder::First, whole(0)?.unwrap_or(u64::MAX)),
        "top" => (RowOrder::First, whole(0)?.unwrap_or(10)),
        "bottom" => (RowOrder::Last, whole(0)?.unwrap_or(10)),
        "range" => {
            let (Some(from), Some(to)) = (whole(0)?, whole(1)?) else {
                return Err("takes from to".to_owned());
            };
            let before = from.max(1) - 1;
            (RowOrder::Nth(before), to.saturating_sub(before))
        }
        "around" => {
            let n = whole(1)?.unwrap_or(5);
            let Some(member) = arguments.get(..1) else { return Err("takes member [n]".to_owned()) };
            let Some(rank) = run(current, handle, kind, "rank", member)? else { return Ok(None) };
            let place = number::<u64>(&rank).map_or(0, |rank| rank.saturating_sub(1));
            let first = place.saturating_sub(n);
            (RowOrder::Nth(first), (place - first).saturating_add(n).saturating_add(1))
        }
        _ => (RowOrder::First, u64::MAX),
    };
    let mut listed = MemberList::new();
    push_rows(current, handle, &mut FieldRows::new(kind, handle.field, order, most), &mut listed, most)?;
    Ok(Some(listed))
}

/// Appends rows to a list.
fn push_rows(
    current: &mut CurrentCall<'_>,
    handle: FieldHandle,
    rows: &mut FieldRows,
    listed: &mut MemberList,
    most: u64,
) -> Result<(), String> {
    let (mut bytes, mut goes_on) = (0, most > 0);
    while goes_on {
        goes_on = piece(current, handle, rows, |member, value| {
            bytes += member.len() + value.len();
            let fits = bytes <= LIST_BYTES_MAX && listed.len() < LIST_MAX;
            if fits {
                listed.push((member, value));
            } else {
                bytes = usize::MAX;
            }
            fits
        })?;
        if bytes == usize::MAX {
            return Err(too_long());
        }
        if raw_call::is_over() {
            return Err(json::OVER.to_owned());
        }
    }
    Ok(())
}

fn too_long() -> String {
    format!("a list has at most {LIST_MAX} members of {LIST_BYTES_MAX} bytes in all")
}

/// Reads the next members under one lock. True: there may be more.
fn piece(
    current: &mut CurrentCall<'_>,
    handle: FieldHandle,
    rows: &mut FieldRows,
    mut each: impl FnMut(Vec<u8>, Vec<u8>) -> bool,
) -> Result<bool, String> {
    let written = &mut current.written;
    let none = PendingChanges::NONE;
    let pending = if handle.object == 0 { &written.fields } else { &none };
    let (mut goes_on, mut bytes) = (false, 0);
    read(current.world, &mut written.has_moved, handle.object, &mut |view| {
        goes_on = rows.read(view, pending, |member, value| {
            let mut copy = Vec::new();
            value.copy_to(&mut copy);
            bytes += member.len() + copy.len();
            each(member.to_vec(), copy) && bytes < PIECE_BYTES
        });
    })?;
    Ok(goes_on)
}

/// Distinct members of a set, chosen at random; one member without `n`.
fn random(current: &mut CurrentCall<'_>, handle: FieldHandle, n: Option<u64>) -> Result<MemberList, String> {
    let n = n.unwrap_or(1);
    if n > RANDOM_MAX {
        return Err(format!("arg 1 must be a number from 0 to {RANDOM_MAX}"));
    }
    let count = run(current, handle, FieldKind::Set, "count", &[])?;
    let count = count.and_then(|text| number::<u64>(&text)).unwrap_or(0);
    let mut listed = MemberList::new();
    for place in random_places(draw(current), n, count) {
        let mut rows = FieldRows::new(FieldKind::Set, handle.field, RowOrder::Nth(place), 1);
        push_rows(current, handle, &mut rows, &mut listed, 1)?;
    }
    Ok(listed)
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn rows(lua: &Lua, kind: FieldKind, method: &str, listed: &MemberList) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (place, (member, value)) in listed.iter().enumerate() {
        let (member, place) = (lua.create_string(member)?, place + 1);
        match (kind, method) {
            (FieldKind::Map, "getall") => table.raw_set(member, lua.create_string(value)?)?,
            (FieldKind::Map, "getvalues") => table.raw_set(place, lua.create_string(value)?)?,
            (FieldKind::Zset | FieldKind::Topk, _) => {
                let row = lua.create_table()?;
                let names = if kind == FieldKind::Zset { ("member", "score") } else { ("item", "count") };
                row.raw_set(names.0, member)?;
                row.raw_set(names.1, number::<f64>(value))?;
                table.raw_set(place, row)?;
            }
            _ => table.raw_set(place, member)?,
        }
    }
    Ok(table)
}

/// The function of a `for` loop over members with their values, scores or counts.
fn each(
    lua: &Lua,
    full: &str,
    handle: FieldHandle,
    call_number: u64,
    kind: FieldKind,
) -> mlua::Result<Function> {
    // The state has the last piece, with members at odd positions and values at even ones. `at` is the last
    // position that was shown. `last` is the member after which the next piece begins, or false.
    let state = lua.create_table()?;
    let full = full.to_owned();
    lua.create_function(move |lua, ()| {
        library::call(lua, &full, |current| match current.number {
            number if number == call_number => Ok(()),
            _ => Err("is of another call".to_owned()),
        })?;
        let at: usize = state.raw_get("at").unwrap_or(0);
        let at = if at < state.raw_len() { at } else { next_piece(lua, &full, &state, handle, kind)? };
        state.raw_set("at", at + 2)?;
        let value = if kind == FieldKind::Set { Value::Nil } else { state.raw_get(at + 2)? };
        Ok((state.raw_get::<Value>(at + 1)?, value))
    })
}

/// Replaces the shown piece by the next one.
fn next_piece(
    lua: &Lua,
    full: &str,
    state: &Table,
    handle: FieldHandle,
    kind: FieldKind,
) -> mlua::Result<usize> {
    let mut rows = FieldRows::new(kind, handle.field, RowOrder::First, u64::MAX);
    match state.raw_get::<Value>("last")? {
        Value::String(last) => rows = rows.behind(last.as_bytes().to_vec()),
        Value::Boolean(_) => {
            state.clear()?;
            state.raw_set("last", false)?;
            return Ok(0);
        }
        _ => {}
    }
    let mut listed = MemberList::new();
    library::call(lua, full, |current| {
        piece(current, handle, &mut rows, |member, value| {
            listed.push((member, value));
            true
        })
    })?;
    state.clear()?;
    for (place, (member, value)) in listed.iter().enumerate() {
        state.raw_set(2 * place + 1, lua.create_string(member)?)?;
        let value = match kind {
            FieldKind::Map => Value::String(lua.create_string(value)?),
            FieldKind::Zset | FieldKind::Topk => Value::Number(number(value).unwrap_or(f64::NAN)),
            _ => Value::Boolean(true),
        };
        state.raw_set(2 * place + 2, value)?;
    }
    match rows.last() {
        Some(last) => state.raw_set("last", lua.create_string(last)?)?,
        None => state.raw_set("last", false)?,
    }
    Ok(0)
}

/// `union`, `intersection` or `diff` of a set and others, as a list.
fn combine(lua: &Lua, combination: &'static str) -> mlua::Result<Function> {
    let full = format!("set:{combination}");
    lua.create_function(move |lua, (own, others): (Value, MultiValue)| {
        let run = |current: &mut CurrentCall<'_>| {
            if others.is_empty() {
                return Err("takes set [set ...]".to_owned());
            }
            let mut members = members_of(current, &own)?;
            for other in &others {
                let other = members_of(current, other)?;
                match combination {
                    "union" => members.extend(other),
                    "intersection" => members.retain(|member| other.contains(member)),
                    _ => members.retain(|member| !other.contains(member)),
                }
                let bytes: usize = members.iter().map(Vec::len).sum();
                if members.len() > LIST_MAX || bytes > LIST_BYTES_MAX {
                    return Err(too_long());
                }
            }
            Ok(members)
        };
        let members = library::call(lua, &full, run)?;
        let strings = members.iter().map(|member| lua.create_string(member));
        lua.create_sequence_from(strings.collect::<mlua::Result<Vec<LuaString>>>()?)
    })
}

fn members_of(current: &mut CurrentCall<'_>, set: &Value) -> Result<BTreeSet<Vec<u8>>, String> {
    let handle = handle(set, current, FieldKind::Set)?;
    let listed = list(current, handle, FieldKind::Set, "getall", &[])?.unwrap_or_default();
    Ok(listed.into_iter().map(|(member, _)| member).collect())
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestSetting, eval, vm};

    fn check(cases: &[(&str, &str)]) {
        let (lua, setting) = (vm(), TestSetting::default());
        for (source, answers) in cases {
            assert_eq!(eval(&lua, &setting, source), *answers, "{source}");
        }
    }

    #[test]
    fn places_of_a_zset() {
        const TEN: &str = "local z = cg.zset(); for n = 1, 10 do z:add('m' .. n, n) end;
            local function names(rows)
                if rows == nil then return 'nil' end
                local list = {}; for i, row in rows do list[i] = row.member; assert(row.member == 'm' .. row.score) end
                return #list .. ':' .. table.concat(list, ' ')
            end\n";
        for (source, answers) in [
            ("names(z:range(1, 3))", "3:m10 m9 m8"),
            ("names(z:range(0, 1))", "1:m10"),
            ("names(z:range(10, 99))", "1:m1"),
            ("names(z:range(11, 99))", "0:"),
            ("names(z:range(3, 2)), names(z:range('18446744073709551615', '18446744073709551615'))", "0: 0:"),
            ("names(z:around('m5', 1))", "3:m6 m5 m4"),
            ("names(z:around('m10', 2)), names(z:around('m1', 2))", "3:m10 m9 m8 3:m3 m2 m1"),
            ("names(z:around('m5', 0)), names(z:around('m0'))", "1:m5 nil"),
            ("names(z:around('m10')), #z:around('m5', '18446744073709551615')", "6:m10 m9 m8 m7 m6 m5 10"),
            ("names(z:top()), #z:top(0)", "10:m10 m9 m8 m7 m6 m5 m4 m3 m2 m1 0"),
            ("names(z:bottom(2))", "2:m1 m2"),
        ] {
            check(&[(&format!("{TEN}return {source}"), answers)]);
        }
    }

    #[test]
    fn members_at_random() {
        const MANY: &str = "local s = cg.set(); for n = 1, 300 do s:put('m' .. n) end\n";
        for (source, answers) in [
            ("local one = s:random(); return type(one), s:exist(one), s:count()", "string true 300"),
            ("return cg.set():random(), #cg.set():random(5), #s:random(0)", "nil 0 0"),
            ("return #s:random(1000), #s:random(300)", "300 300"),
            (
                "local seen, n = {}, 0; for _, m in s:random(50) do assert(s:exist(m) and not seen[m]) seen[m] = true n += 1 end return n",
                "50",
            ),
            ("return table.concat(s:random(20), ' ') ~= table.concat(s:random(20), ' ')", "true"),
            ("local x = cg.set(); x:put('line\\r\\nend'); return #x:random(3), #x:random()", "1 9"),
        ] {
            check(&[(&format!("{MANY}{source}"), answers)]);
        }
    }

    #[test]
    fn sets_of_sets() {
        const SETS: &str = "local a, b, c = cg.set(), cg.set(), cg.set(); a:put('1', '2', '3'); b:put('2', '3', '4'); c:put('3')
            local function names(list) return table.concat(list, '') end\n";
        for (source, answers) in [
            ("names(a:union(b)), names(a:union(b, c)), names(a:union(cg.set()))", "1234 1234 123"),
            ("names(a:intersection(b)), names(a:intersection(b, c)), names(a:intersection(a))", "23 3 123"),
            ("names(a:diff(b)), names(b:diff(a, c)), names(a:diff(a)), names(a:diff(c))", "1 4  12"),
        ] {
            check(&[(&format!("{SETS}return {source}"), answers)]);
        }
    }

    #[test]
    fn loops() {
        check(&[
            (
                "local s = cg.set(); s:put('b', 'a'); local t = {} for m in s:each() do t[#t + 1] = m end return table.concat(t)",
                "ab",
            ),
            (
                "local m = cg.map(); m:put('k', 'v', 'l', 'w'); local t = '' for k, v in m:each() do t ..= k .. v end return t",
                "kvlw",
            ),
            (
                "local z = cg.zset(); z:add('a', 1.5, 'b', 2); local t = '' for m, score in z:each() do t ..= m .. score + 1 end return t",
                "b3a2.5",
            ),
            (
                "local k = cg.topk(2); k:hit('x', 3); k:hit('y', 4); local t = '' for m, count in k:each() do t ..= m .. count + 1 end return t",
                "y5x4",
            ),
            ("for m in cg.set():each() do error(m) end return 'none'", "none"),
            ("local s = cg.set(); s:put('a'); local f = s:each() return f(), (f()), (f())", "a nil nil"),
        ]);
        for count in [255, 256, 257, 512, 1000] {
            let source = format!(
                "local s, m, n = cg.set(), cg.map(), 0
                for i = 1, {count} do s:put(string.format('%04d', i)) m:put(i, i) end
                for member in s:each() do n += 1 assert(member == string.format('%04d', n)) end
                for key, value in m:each() do n += 1 assert(key == value) end
                return n"
            );
            check(&[(&source, &(2 * count).to_string())]);
        }
    }

    #[test]
    fn loops_that_change_what_they_show() {
        check(&[
            (
                "local s, n = cg.set(), 0; for i = 1, 700 do s:put(i) end
                for m in s:each() do n += 1 s:delete(m) end return n, s:count()",
                "700 0",
            ),
            (
                "local s, n = cg.set(), 0; s:put('a'); for m in s:each() do n += 1 s:put('b' .. n) end return n, s:count()",
                "1 2",
            ),
        ]);
    }
}
