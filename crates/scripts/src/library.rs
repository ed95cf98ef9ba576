//! Functions that scripts call: `cg`, `os`, `math.random` and `print`.
//!
//! Each function checks its arguments. A function that needs a call fails without one, for example while
//! sources are loaded. Requests beyond the call's object (`cg.set`, `cg.invalidate`, `cg.load`, `cg.event`,
//! `cg.log`, `print`) are kept in [`crate::current::CallEffects`] until the call has taken effect.
//!
//! # Invariants
//! * A call has at most [`AFTER_MAX`] requests, with [`AFTER_BYTES_MAX`] bytes in all.

pub(crate) mod arguments;
pub(crate) mod effects;
mod random;

use std::fmt;

use mlua::{Function, Lua, Table, Value};

use crate::current::{self, CurrentCall};
use crate::reply::FlaggedText;
use crate::{clock, json, natives};
use arguments::{fault, is_whole, number, text};

/// The most requests of a call beyond its object.
pub(crate) const AFTER_MAX: usize = 64;
/// The most bytes of their keys, values and texts.
pub(crate) const AFTER_BYTES_MAX: usize = 1 << 20;

/// The error that `cg.fail` raises, which is a mistake of the caller. It is found in a call's error by
/// [`mlua::Error::downcast_ref`].
#[derive(Debug)]
pub(crate) struct Fail(pub(crate) String);

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fail {}

/// Adds the functions to a VM before its sandbox is closed: to the global `cg`, or to a new one.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    let globals = lua.globals();
    let cg: Table = match globals.raw_get("cg")? {
        Value::Table(cg) => cg,
        _ => lua.create_table()?,
    };
    values(lua, &cg)?;
    clock::install(lua, &cg)?;
    random::install(lua, &globals.raw_get("math")?)?;
    natives::install(lua, &cg)?;
    effects::install(lua, &cg)?;
    globals.raw_set("print", cg.raw_get::<Function>("log")?)?;
    globals.raw_set("cg", cg)
}

/// Adds functions that do not need a call.
fn values(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    cg.raw_set(
        "fail",
        lua.create_function(|lua, value: Value| -> mlua::Result<()> {
            let text = text(lua, &value, "cg.fail", 1)?;
            Err(mlua::Error::external(Fail(String::from_utf8_lossy(&text).into_owned())))
        })?,
    )?;
    cg.raw_set(
        "value",
        lua.create_function(|lua, (bytes, flags): (Value, Value)| {
            let bytes = text(lua, &bytes, "cg.value", 1)?.to_vec();
            let flags = match flags {
                Value::Nil => 0.0,
                flags => number(lua, &flags, "cg.value", 2)?,
            };
            if !is_whole(flags) || !(0.0..=f64::from(u32::MAX)).contains(&flags) {
                return Err(fault(lua, "cg.value: flags must be a whole number from 0 to 4294967295"));
            }
            lua.create_any_userdata(FlaggedText { bytes, flags: flags as u32 })
        })?,
    )?;
    cg.raw_set(
        "hash",
        lua.create_function(|lua, value: Value| {
            let hash = rapidhash::v3::rapidhash_v3(&text(lua, &value, "cg.hash", 1)?);
            Ok((hash >> 11) as f64)
        })?,
    )?;
    cg.raw_set("number", arguments::reader(lua, "a number", false)?)?;
    cg.raw_set("integer", arguments::reader(lua, "a whole number", true)?)?;
    let table = lua.create_table()?;
    table.raw_set(
        "encode",
        lua.create_function(|lua, value: Value| {
            let mut out = Vec::new();
            json::encode(&value, &mut out).map_err(|text| fault(lua, &format!("cg.json.encode: {text}")))?;
            lua.create_string(&out)
        })?,
    )?;
    table.raw_set(
        "decode",
        lua.create_function(|lua, value: Value| {
            let bytes = text(lua, &value, "cg.json.decode", 1)?;
            json::decode(lua, &bytes)?.map_err(|text| fault(lua, &format!("cg.json.decode: {text}")))
        })?,
    )?;
    // The metatable exists from the start, since states may have such arrays without a use of `cg.json`.
    json::array_metatable(lua)?;
    table.raw_set("null", Value::NULL)?;
    cg.raw_set("json", table)
}

/// Returns the result of `act` for the thread's call.
///
/// # Errors
/// No call runs, or `act` fails.
pub(crate) fn call<R>(
    lua: &Lua,
    name: &str,
    act: impl FnOnce(&mut CurrentCall<'_>) -> Result<R, String>,
) -> mlua::Result<R> {
    match current::with(act) {
        Some(Ok(result)) => Ok(result),
        Some(Err(text)) => Err(fault(lua, &format!("{name}: {text}"))),
        None => Err(fault(lua, &format!("{name}: only within a call of a method"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestSetting, error_text, eval, vm};

    #[test]
    fn arguments_of_clients() {
        let (lua, setting) = (vm(), TestSetting::default());
        for (source, text) in [
            ("cg.number('1.5', 1)", "1.5"),
            ("cg.number('-2e3', 1), cg.number(7, 1)", "-2000 7"),
            ("cg.number(nil, 1, 9), cg.number('3', 1, 9)", "9 3"),
            ("cg.number('', 1)", "arg 1 must be a number"),
            ("cg.number('1x', 2)", "arg 2 must be a number"),
            ("cg.number('inf', 3)", "arg 3 must be a number"),
            ("cg.number(1 / 0, 3)", "arg 3 must be a number"),
            ("cg.number(nil, 3)", "arg 3 must be a number"),
            ("cg.number({})", "the argument must be a number"),
            ("cg.integer('12', 1), cg.integer('-9007199254740992', 1)", "12 -9007199254740992"),
            ("cg.integer('1.5', 1)", "arg 1 must be a whole number"),
            ("cg.integer('9007199254740994', 1)", "arg 1 must be a whole number"),
            ("cg.integer('9007199254740993', 1)", "arg 1 must be a whole number"),
            ("cg.integer('-9007199254740993', 1)", "arg 1 must be a whole number"),
            ("cg.integer('9007199254740992.5', 1)", "arg 1 must be a whole number"),
            ("cg.integer('99999999999999999999', 1)", "arg 1 must be a whole number"),
            ("cg.integer('1e3', 1)", "arg 1 must be a whole number"),
            ("cg.integer('5.0', 1)", "arg 1 must be a whole number"),
            ("cg.integer('+1', 1)", "arg 1 must be a whole number"),
            ("cg.integer('-0', 1)", "0"),
            ("cg.number('.5', 1)", "arg 1 must be a number"),
            ("cg.number('5.', 1)", "arg 1 must be a number"),
            ("cg.number('+1', 1)", "arg 1 must be a number"),
            ("cg.number('-.5', 1)", "arg 1 must be a number"),
            ("cg.number('0x10', 1)", "arg 1 must be a number"),
            (
                "cg.number('0', 1), cg.number('007', 1), cg.integer('999999999999999', 1), cg.integer('9007199254740992', 1)",
                "0 7 999999999999999 9007199254740992",
            ),
            ("cg.number('9007199254740993', 1)", "9007199254740992"),
        ] {
            assert_eq!(eval(&lua, &setting, &format!("return {source}")), text, "{source}");
        }
    }

    #[test]
    fn a_failure_is_the_callers() {
        let lua = vm();
        let error = lua.load("cg.fail('no such plan')").exec().unwrap_err();
        assert_eq!(error.downcast_ref::<Fail>().map(|fail| &*fail.0), Some("no such plan"));
        assert_eq!(error_text(&error), "no such plan");
        let error = lua.load("local function f() cg.number('x', 2) end; f()").exec().unwrap_err();
        assert_eq!(error.downcast_ref::<Fail>().map(|fail| &*fail.0), Some("arg 2 must be a number"));
        let caught: (bool, String) =
            lua.load("local ok, e = pcall(cg.fail, 'x'); return ok, tostring(e)").eval().unwrap();
        assert_eq!((caught.0, caught.1.lines().next()), (false, Some("x")));
        let error = lua.load("cg.fail()").set_name("=t.luau").exec().unwrap_err();
        assert_eq!(error_text(&error), "t.luau:1: cg.fail: argument 1 must be a string, and is nil");
    }

    #[test]
    fn hashes_stay_the_same() {
        let lua = vm();
        let hashes = eval(
            &lua,
            &TestSetting::default(),
            "return cg.hash('user:42'), cg.hash(''), cg.hash(42) == cg.hash('42')",
        );
        assert_eq!(hashes, "3882037576257693 113367968405977 true");
    }

    #[test]
    fn values_with_flags() {
        let lua = vm();
        for source in ["cg.value('x', -1)", "cg.value('x', 4294967296)", "cg.value('x', 0.5)"] {
            let error = lua.load(source).set_name("=t.luau").exec().unwrap_err();
            assert_eq!(
                error_text(&error),
                "t.luau:1: cg.value: flags must be a whole number from 0 to 4294967295"
            );
        }
    }

    #[test]
    fn json() {
        let (lua, setting) = (vm(), TestSetting::default());
        for (source, text) in [
            ("cg.json.encode({1, 'a', true, {}})", r#"[1,"a",true,{}]"#),
            ("cg.json.encode({b = {c = 2}, a = {1}})", r#"{"a":[1],"b":{"c":2}}"#),
            ("cg.json.encode(nil), cg.json.encode('\\255')", r#"null "\u00ff""#),
            ("cg.json.encode({cg.json.null, 1})", "[null,1]"),
            ("cg.json.decode('[1, null, \"x\"]')[3]", "x"),
            ("cg.json.decode('[1, null]')[2] == cg.json.null", "true"),
            ("cg.json.decode('{\"a\": null, \"b\": 1e3}').a, cg.json.decode('{\"b\": 1e3}').b", "nil 1000"),
            ("cg.json.decode('null') == cg.json.null", "true"),
            ("cg.json.encode(cg.json.decode('[]'))", "[]"),
            ("cg.json.encode(cg.json.decode('{}'))", "{}"),
            (
                "cg.json.encode(cg.json.decode('{\"a\": [], \"b\": {}, \"c\": [[], {}]}'))",
                r#"{"a":[],"b":{},"c":[[],{}]}"#,
            ),
            ("cg.json.encode(table.clone(cg.json.decode('[]')))", "[]"),
            ("#cg.json.decode('[]'), type(getmetatable(cg.json.decode('[]')))", "0 table"),
            (
                "select(2, pcall(rawset, getmetatable(cg.json.decode('[]')), 1, 1))",
                "attempt to modify a readonly table",
            ),
            ("cg.json.encode(setmetatable(cg.json.decode('[]'), nil))", "{}"),
            (
                "cg.json.encode({1, x = 2})",
                "test.luau:1: cg.json.encode: the value has both items and named entries, which JSON has no form for",
            ),
            ("cg.json.encode({[3] = 1})", "test.luau:1: cg.json.encode: the value has items, but no item 1"),
            (
                "cg.json.encode({[0] = 1})",
                "test.luau:1: cg.json.encode: the value has a key that is neither a name nor the number of an item",
            ),
            (
                "cg.json.encode({a = {b = 0 / 0}})",
                "test.luau:1: cg.json.encode: field 'a.b' is NaN, which JSON has no form for",
            ),
            (
                "cg.json.decode('{')",
                "test.luau:1: cg.json.decode: no JSON: EOF while parsing an object at line 1 column 1",
            ),
        ] {
            assert_eq!(eval(&lua, &setting, &format!("return {source}")), text, "{source}");
        }
    }

    #[test]
    fn json_has_limits() {
        let (lua, setting) = (vm(), TestSetting::default());
        let nest = |count: usize| {
            format!("local t = {{}}; for i = 2, {count} do t = {{t}} end; return cg.json.encode(t)")
        };
        let deep = eval(&lua, &setting, &nest(32));
        assert_eq!(deep, format!("{}{{}}{}", "[".repeat(31), "]".repeat(31)));
        assert!(eval(&lua, &setting, &nest(33)).ends_with("is table 33 within tables: 32 can be written"));
        let cyclic = "local t = {}; t.t = t; return cg.json.encode(t)";
        assert!(eval(&lua, &setting, cyclic).ends_with("is table 33 within tables: 32 can be written"));
        let read = |count: usize| {
            format!("return type(cg.json.decode(string.rep('[', {count}) .. string.rep(']', {count})))")
        };
        assert_eq!(eval(&lua, &setting, &read(32)), "table");
        assert!(
            eval(&lua, &setting, &read(33)).contains("more than 32 arrays and objects are within each other")
        );
        assert!(
            eval(&lua, &setting, &read(10_000))
                .contains("more than 32 arrays and objects are within each other")
        );
        let text = |count: usize| format!("return #cg.json.encode(string.rep('x', {count}))");
        assert_eq!(eval(&lua, &setting, &text(json::TEXT_MAX - 2)), json::TEXT_MAX.to_string());
        assert!(
            eval(&lua, &setting, &text(json::TEXT_MAX - 1))
                .ends_with("makes the text longer than 1048576 bytes")
        );
        let long = |count: usize| format!("return #cg.json.decode('\"' .. string.rep('x', {count}) .. '\"')");
        assert_eq!(eval(&lua, &setting, &long(json::TEXT_MAX - 2)), (json::TEXT_MAX - 2).to_string());
        assert!(
            eval(&lua, &setting, &long(json::TEXT_MAX - 1))
                .ends_with("the text has 1048577 bytes: up to 1048576 are read")
        );
    }
}
