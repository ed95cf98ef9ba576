//! `cg.test`: functions in Rust, and what is written in Luau on top of them; and functions of calls that tests may use too.

use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

use cattlegrid_objects::{
    Arguments, FollowUp, NoWorld, ScriptCall, ScriptMethodId, Settings, TypeSettings, Zone,
};
use jiff::Timestamp;
use mlua::{FromLuaMulti, Function, IntoLua, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};

use super::server::TestReply;
use super::{START_MS, TestState, show};
use crate::current::{self, CallEffects, CurrentCall};
use crate::json;

/// The name of the part in Luau.
pub(super) const PRELUDE: &str = "cg.test";
/// Adds `cg.test` to a sandbox.
pub(super) fn install(lua: &Lua, shared: &Rc<RefCell<TestState>>, zone: &Zone) -> mlua::Result<()> {
    let cg: Table = lua.globals().raw_get("cg")?;
    let native = Native { lua, table: lua.create_table()?, shared };
    native.calls()?;
    native.clock()?;
    native.effects(cg.raw_get::<Table>("json")?.raw_get("decode")?)?;
    let prelude = lua.load(include_str!("prelude.luau")).set_name(format!("={PRELUDE}"));
    let test: Table = prelude.call(native.table)?;
    test.set_readonly(true);
    cg.set_readonly(false);
    cg.raw_set("test", test)?;
    cg.set_readonly(true);
    let globals = lua.globals();
    for (table, names) in [
        (&cg, &["now", "now_ms", "log"][..]),
        (&globals.raw_get("os")?, &["clock", "time", "date"]),
        (&globals, &["print"]),
    ] {
        table.set_readonly(false);
        for name in names {
            table.raw_set(*name, outside_of_calls(lua, table.raw_get(*name)?, shared, zone)?)?;
        }
        table.set_readonly(true);
    }
    Ok(())
}

/// A function that needs a call, for a test: the time is the test's, and what is written to the log is in the test's.
fn outside_of_calls(
    lua: &Lua,
    inner: Function,
    shared: &Rc<RefCell<TestState>>,
    zone: &Zone,
) -> mlua::Result<Function> {
    let (shared, zone) = (Rc::clone(shared), zone.clone());
    lua.create_function(move |_, arguments: MultiValue| {
        let (settings, own_settings) = (Settings::default(), TypeSettings::new("test"));
        // Not borrowed while it runs: a `__tostring` may use `cg.test`.
        let now_ms = shared.borrow().server.now_ms();
        let call = ScriptCall {
            object_type: 0,
            method: ScriptMethodId::Own(0),
            key: b"",
            arguments: &Arguments::none(),
            own: None,
            replaces: false,
            others: &[],
            expires_ms: None,
            now_ms,
            random: 0,
            settings: &settings,
            own_settings: &own_settings,
            zone: &zone,
        };
        let mut current =
            CurrentCall { call: &call, world: &mut NoWorld, number: 0, written: CallEffects::default() };
        let result = current::enter(&mut current, || inner.call::<MultiValue>(arguments));
        let lines = current.written.after.into_iter().filter_map(|after| match after {
            FollowUp::Log(line) => Some(line),
            _ => None,
        });
        shared.borrow_mut().server.seen().log.extend(lines);
        result
    })
}

/// Type, method, key, arguments.
type Call = (LuaString, LuaString, LuaString, Vec<LuaString>);

/// What the part in Luau is given.
struct Native<'l> {
    lua: &'l Lua,
    table: Table,
    shared: &'l Rc<RefCell<TestState>>,
}

impl Native<'_> {
    fn add<A: FromLuaMulti, R: IntoLuaMulti>(
        &self,
        name: &str,
        run: impl Fn(&Lua, &mut TestState, A) -> mlua::Result<R> + 'static,
    ) -> mlua::Result<()> {
        let shared = Rc::clone(self.shared);
        let function = move |lua: &Lua, arguments: A| run(lua, &mut shared.borrow_mut(), arguments);
        self.table.raw_set(name, self.lua.create_function(function)?)
    }

    fn calls(&self) -> mlua::Result<()> {
        self.add("checked", |_, shared, ()| {
            shared.checks += 1;
            Ok(())
        })?;
        self.add("quoted", |_, _, text: LuaString| Ok(show::quoted(&text.as_bytes())))?;
        self.add("escaped", |_, _, text: LuaString| Ok(show::escaped(&text.as_bytes())))?;
        self.add("fail", |lua, shared, text: LuaString| -> mlua::Result<()> {
            let text = placed(lua, &show::escaped(&text.as_bytes()));
            shared.failed.get_or_insert_with(|| text.clone());
            Err(mlua::Error::runtime(text))
        })?;
        self.add("call_name", |lua, shared, name: LuaString| {
            replied(lua, shared.server.call_name(&name.as_bytes()))
        })?;
        self.add("call", |lua, shared, (name, method, key, list): Call| {
            let list: Vec<Vec<u8>> = list.iter().map(|text| text.as_bytes().to_vec()).collect();
            let (name, method) = (name.to_string_lossy(), method.to_string_lossy());
            replied(lua, shared.server.call(&name, &method, &key.as_bytes(), &list))
        })?;
        self.add("text", |lua, _, value: Value| {
            let mut out = Vec::new();
            match &value {
                Value::Integer(number) => json::push_number(*number as f64, &mut out),
                Value::Number(number) => json::push_number(*number, &mut out),
                _ => return Ok(value),
            }
            lua.create_string(out).map(Value::String)
        })
    }

    fn clock(&self) -> mlua::Result<()> {
        // nil, or why the clock cannot be set.
        self.add("clock", |_, shared, seconds: f64| {
            // The part in Luau has checked that it is not negative.
            let ms = START_MS.saturating_add((seconds * 1000.0).round() as u64);
            Ok(shared.server.set_time(ms).err())
        })?;
        self.add("now", |_, shared, ()| Ok(shared.server.now_ms() as f64 / 1000.0))?;
        // The same; false: it is no time.
        self.add("at", |lua, shared, time: LuaString| {
            let parsed = time.to_string_lossy().parse::<Timestamp>().ok();
            match parsed.and_then(|time| u64::try_from(time.as_millisecond()).ok()) {
                Some(ms) => shared.server.set_time(ms).err().into_lua(lua),
                None => Ok(Value::Boolean(false)),
            }
        })
    }

    fn effects(&self, decode: Function) -> mlua::Result<()> {
        self.add("plain", |lua, shared, key: LuaString| replied(lua, shared.server.plain(&key.as_bytes())))?;
        self.add("set_plain", |lua, shared, (key, value): (LuaString, LuaString)| {
            replied(lua, shared.server.set_plain(&key.as_bytes(), &value.as_bytes()))
        })?;
        self.add("events", move |lua, shared, ()| {
            let list = lua.create_table()?;
            for (name, json) in std::mem::take(&mut shared.server.seen().events) {
                let event = lua.create_table()?;
                event.raw_set("name", name)?;
                event.raw_set("data", decode.call::<Value>(json)?)?;
                list.raw_push(event)?;
            }
            Ok(list)
        })?;
        self.add("log", |_, shared, ()| Ok(std::mem::take(&mut shared.server.seen().log)))?;
        self.add("loads", |lua, shared, ()| {
            let keys = std::mem::take(&mut shared.server.seen().loads);
            keys.iter().map(|key| lua.create_string(key)).collect::<mlua::Result<Vec<_>>>()
        })
    }
}

/// A text behind the place of the test that has called.
fn placed(lua: &Lua, text: &str) -> String {
    let place = |level| {
        lua.inspect_stack(level, |debug| {
            let source = debug.source().short_src.map(Cow::into_owned);
            source.zip(debug.current_line())
        })
    };
    // A function of Rust has no line.
    let of_test = (0..).map_while(place).flatten().find(|(source, _)| source != PRELUDE);
    match of_test {
        Some((source, line)) => format!("{source}:{line}: {text}"),
        None => text.to_owned(),
    }
}

/// The reply; nil and the line of an error; or nil, nil and why no client can ask for it.
fn replied(lua: &Lua, reply: TestReply) -> mlua::Result<MultiValue> {
    let values = match reply {
        TestReply::Value(bytes) => vec![Value::String(lua.create_string(bytes)?)],
        TestReply::None => vec![Value::Nil],
        TestReply::Error(line) => vec![Value::Nil, Value::String(lua.create_string(line)?)],
        TestReply::Wrong(text) => vec![Value::Nil, Value::Nil, Value::String(lua.create_string(text)?)],
    };
    Ok(MultiValue::from_iter(values))
}
