//! Native collections as fields of users' objects: `cg.set()`, `cg.map()` and so on, and their methods.
//!
//! A handle is a light userdata with the call, the object, the field and its kind. The methods are those of
//! shipped types, with Luau values.
//!
//! # Invariants
//! * A handle is valid only in its call. Fields of other objects can only be read.

#[cfg(test)]
mod definitions_tests;
mod lists;

use std::ffi::c_void;

use cattlegrid_objects::{Arguments, FieldCall, FieldKind, PendingChanges, ScriptWorld, StateView};
use mlua::{LightUserData, Lua, MultiValue, Table, Value};

use crate::current::CurrentCall;
use crate::library::arguments::text;
use crate::{library, raw_call, state};

/// A collection that is a field of an object, as scripts hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldHandle {
    /// The object: 0 is that of the call; the next ones are the objects that the call reads.
    pub(crate) object: u8,
    /// The number of the field in the object, from 1.
    pub(crate) field: u8,
    /// The kind of the field.
    pub(crate) kind: u8,
}

impl FieldHandle {
    /// The handle as a value of the VM, for the call with this number.
    pub(crate) fn to_light(self, call_number: u64) -> LightUserData {
        let [object, field, kind] = [self.object, self.field, self.kind].map(u64::from);
        LightUserData((call_number << 24 | object << 16 | field << 8 | kind) as usize as *mut c_void)
    }

    /// The handle of a value; None: it belongs to another call, or is not a handle.
    pub(crate) fn from_light(light: LightUserData, call_number: u64) -> Option<Self> {
        let bits = light.0 as usize as u64;
        let [object, field, kind] = [bits >> 16, bits >> 8, bits].map(|byte| byte as u8);
        (bits >> 24 == call_number & (u64::MAX >> 24) && field > 0).then_some(Self { object, field, kind })
    }
}

/// The form of a method's result.
#[derive(Debug, Clone, Copy)]
enum ReturnKind {
    Nothing,
    /// Whether the reply is this text.
    Is(&'static str),
    /// Whether the reply is a number above 0.
    Positive,
    /// A number, or nil for a miss.
    Number,
    /// A string, or nil for a miss.
    Text,
}

/// The methods of a kind, except those that return lists: the name, the name of the shipped type's method,
/// and the form of the result.
type Methods = &'static [(&'static str, &'static str, ReturnKind)];
static KINDS: [(&str, FieldKind, Methods); 7] = {
    use ReturnKind::{Is, Nothing, Number, Positive, Text};
    [
        (
            "set",
            FieldKind::Set,
            &[
                ("put", "put", Nothing),
                ("add", "add", Positive),
                ("exist", "exist", Is("EXISTS")),
                ("delete", "remove", Positive),
                ("remove", "remove", Number),
                ("count", "count", Number),
                ("pop", "pop", Text),
            ],
        ),
        (
            "map",
            FieldKind::Map,
            &[
                ("put", "put", Nothing),
                ("get", "get", Text),
                ("exist", "exist", Is("EXISTS")),
                ("delete", "remove", Positive),
                ("remove", "remove", Number),
                ("count", "count", Number),
                ("incr", "incr", Number),
            ],
        ),
        (
            "ring",
            FieldKind::Ring,
            &[
                ("add", "add", Nothing),
                ("getlast", "getlast", Number),
                ("getmin", "getmin", Number),
                ("getmax", "getmax", Number),
                ("getavg", "getavg", Number),
                ("getsum", "getsum", Number),
                ("getp", "getp", Number),
            ],
        ),
        ("topk", FieldKind::Topk, &[("hit", "hit", Number), ("count", "count", Number)]),
        ("hll", FieldKind::Hll, &[("add", "add", Is("1")), ("count", "count", Number)]),
        (
            "bloom",
            FieldKind::Bloom,
            &[("add", "add", Is("NEW")), ("has", "has", Is("SEEN")), ("count", "count", Number)],
        ),
        (
            "zset",
            FieldKind::Zset,
            &[
                ("add", "add", Positive),
                ("incr", "incr", Number),
                ("score", "score", Number),
                ("rank", "rank", Number),
                ("count", "count", Number),
                ("delete", "remove", Positive),
                ("remove", "remove", Number),
            ],
        ),
    ]
};

/// Adds the constructors to `cg`, and the methods to all handles of the VM.
///
/// # Errors
/// Memory is short.
pub(crate) fn install(lua: &Lua, cg: &Table) -> mlua::Result<()> {
    let by_kind = lua.create_table()?;
    for (name, kind, methods) in KINDS {
        let full = format!("cg.{name}");
        let make = lua.create_function(move |lua, arguments: MultiValue| {
            let arguments = texts(lua, &arguments, &full)?;
            library::call(lua, &full, |current| make(current, kind, &arguments))
        })?;
        cg.raw_set(name, make)?;
        let table = lua.create_table()?;
        for (method, shipped, returns) in methods.iter().copied() {
            let full = format!("{name}:{method}");
            let run = lua.create_function(move |lua, (own, arguments): (Value, MultiValue)| {
                let arguments = texts(lua, &arguments, &full)?;
                let run = |current: &mut CurrentCall<'_>| {
                    let handle = handle(&own, current, kind)?;
                    run(current, handle, kind, shipped, &arguments)
                };
                answer(lua, returns, library::call(lua, &full, run)?)
            })?;
            table.raw_set(method, run)?;
        }
        lists::install(lua, &table, name, kind)?;
        table.set_readonly(true);
        by_kind.raw_set(kind.number(), table)?;
    }
    let methods = lua.create_table()?;
    let index = lua.create_function(move |_, (own, name): (LightUserData, Value)| {
        match by_kind.raw_get(own.0 as usize & 0xff)? {
            Value::Table(table) => table.raw_get(name),
            _ => Ok(Value::Nil),
        }
    })?;
    methods.raw_set("__index", index)?;
    methods.raw_set("__metatable", false)?;
    methods.set_readonly(true);
    lua.set_type_metatable::<LightUserData>(Some(methods));
    Ok(())
}

fn texts(lua: &Lua, arguments: &MultiValue, name: &str) -> mlua::Result<Vec<Vec<u8>>> {
    let text = |(place, value)| text(lua, value, name, place + 1).map(|text| text.to_vec());
    arguments.iter().enumerate().map(text).collect()
}

/// Reads an object of the call.
fn read(
    world: &mut dyn ScriptWorld,
    has_moved: &mut bool,
    object: u8,
    read: &mut dyn FnMut(StateView<'_>),
) -> Result<(), String> {
    world.read(usize::from(object), read).map_err(|_| {
        // The script may catch the error; the run ends nevertheless.
        *has_moved = true;
        raw_call::stop();
        "the object has changed".to_owned()
    })
}

fn make(
    current: &mut CurrentCall<'_>,
    kind: FieldKind,
    arguments: &[Vec<u8>],
) -> Result<LightUserData, String> {
    let used: Vec<u8> = current
        .call
        .own
        .map_or(Vec::new(), |own| state::fields(own).list.iter().map(|(number, _)| *number).collect());
    let written = &mut current.written;
    let mut number = None;
    let fields = &mut written.fields;
    read(current.world, &mut written.has_moved, 0, &mut |view| number = fields.make(view, &used))?;
    let most = cattlegrid_objects::FIELDS_MAX;
    let field = number.ok_or_else(|| format!("an object has at most {most} collections"))?;
    let arguments = &Arguments::of(arguments.iter().map(Vec::as_slice));
    let (now_ms, random) = (current.call.now_ms, current.call.random);
    fields.begin(&FieldCall { field, kind, method: "new", arguments, now_ms, random })?;
    Ok(FieldHandle { object: 0, field, kind: kind.number() }.to_light(current.number))
}

fn handle(value: &Value, current: &CurrentCall<'_>, kind: FieldKind) -> Result<FieldHandle, String> {
    let Value::LightUserData(light) = value else {
        return Err("is called with a colon, on a field".to_owned());
    };
    let own = FieldHandle::from_light(*light, current.number).ok_or("is of another call")?;
    if own.kind != kind.number() {
        return Err("is called on a field of another kind".to_owned());
    }
    Ok(own)
}

/// Runs a method of the shipped type; None: a miss.
fn run(
    current: &mut CurrentCall<'_>,
    handle: FieldHandle,
    kind: FieldKind,
    method: &str,
    arguments: &[Vec<u8>],
) -> Result<Option<Vec<u8>>, String> {
    let random = draw(current);
    let written = &mut current.written;
    let arguments = &Arguments::of(arguments.iter().map(Vec::as_slice));
    let call =
        FieldCall { field: handle.field, kind, method, arguments, now_ms: current.call.now_ms, random };
    if handle.object > 0 && call.writes() {
        return Err("the object of another key is only read".to_owned());
    }
    let (mut none, mut out, mut ran) = (PendingChanges::NONE, Vec::new(), Ok(false));
    let pending = if handle.object == 0 { &mut written.fields } else { &mut none };
    read(current.world, &mut written.has_moved, handle.object, &mut |view| {
        ran = pending.call(view, &call, &mut out);
    })?;
    Ok(ran?.then_some(out))
}

/// A random number that differs in each use.
fn draw(current: &mut CurrentCall<'_>) -> u64 {
    let draws = &mut current.written.draws;
    *draws += 1;
    current.call.random.wrapping_add(draws.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn answer(lua: &Lua, returns: ReturnKind, reply: Option<Vec<u8>>) -> mlua::Result<Value> {
    let Some(reply) = reply else { return Ok(Value::Nil) };
    let number = || {
        let first = reply.split(|byte| *byte == b' ').next().unwrap_or_default();
        std::str::from_utf8(first).ok().and_then(|text| text.parse::<f64>().ok())
    };
    Ok(match returns {
        ReturnKind::Nothing => Value::Nil,
        ReturnKind::Is(text) => Value::Boolean(reply == text.as_bytes()),
        ReturnKind::Positive => Value::Boolean(number().is_some_and(|number| number > 0.0)),
        ReturnKind::Number => number().map_or(Value::Nil, Value::Number),
        ReturnKind::Text => Value::String(lua.create_string(&reply)?),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{TestSetting, eval, vm};

    #[test]
    fn methods_have_values_of_luau() {
        let (lua, setting) = (vm(), TestSetting::default());
        for (source, answers) in [
            ("local s = cg.set(); s:put('b', 'a'); return s:add('c'), s:add('c'), s:count()", "true false 3"),
            ("local s = cg.set(); s:put('b', 'a'); return table.concat(s:getall(), ' ')", "a b"),
            (
                "local s = cg.set(); s:put('a'); return s:exist('a'), s:delete('a'), s:delete('a')",
                "true true false",
            ),
            ("local s = cg.set(); s:put('a', 'b'); return s:remove('a', 'b', 'c'), s:count()", "2 0"),
            ("local s = cg.set(); s:put('a'); return s:pop(), s:pop()", "a nil"),
            (
                "local m = cg.map(); m:put('k', 'v'); return m:get('k'), m:get('l'), m:exist('k')",
                "v nil true",
            ),
            ("local m = cg.map(); return m:incr('n', 5), m:incr('n', -7), m:getall().n", "5 -2 -2"),
            (
                "local m, v = cg.map(), string.rep('v', 1e6); m:put('k', v); return m:get('k') == v, m:get('l')",
                "true nil",
            ),
            ("local m = cg.map(); m:put('k', 'v\\r\\nw'); return #m:getkeys(), #m:getvalues()", "1 1"),
            ("local r = cg.ring(2); r:add(1); r:add(2); r:add(4); return r:getsum(), r:getmax()", "6 4"),
            ("return cg.ring(2):getlast()", "nil"),
            ("local t = cg.topk(2); t:hit('a', 3); t:hit('b'); return t:list()[1].item, t:count('a')", "a 3"),
            ("local h = cg.hll(); return h:add('a'), h:add('a'), h:count()", "true false 1"),
            ("local b = cg.bloom(100, 0.01); return b:add('a'), b:add('a'), b:has('x')", "true false false"),
            ("local z = cg.zset(); return z:add('a', 1.5), z:add('a', 2), z:incr('b', 3)", "true false 3"),
            (
                "local z = cg.zset(); z:add('a', 1, 'b', 2); return z:rank('b'), z:rank('c'), z:score('a')",
                "1 nil 1",
            ),
            (
                "local z = cg.zset(); z:add('a', 1, 'b', 2); return z:top(1)[1].member, z:bottom(1)[1].member",
                "b a",
            ),
            ("local m = cg.map(); m:put('k', 'v'); return m:delete('k'), m:delete('k')", "true false"),
            (
                "local m = cg.map(); m:put('k', 'v', 'l', 'w'); return m:remove('k', 'l', 'n'), m:count()",
                "2 0",
            ),
            ("local z = cg.zset(); z:add('a', 1); return z:delete('a', 'b'), z:delete('a')", "true false"),
        ] {
            assert_eq!(eval(&lua, &setting, source), answers, "{source}");
        }
    }

    #[test]
    fn many_members_of_a_sketch_and_of_a_list() {
        let (lua, setting) = (vm(), TestSetting::default());
        // The registers outgrow the bytes at 682 of them.
        let source = "local h = cg.hll(); for n = 1, 1500 do h:add('item' .. n) end; \
                      return h:count() > 1450 and h:count() < 1550";
        assert_eq!(eval(&lua, &setting, source), "true");
        let source = "local s = cg.set(); for n = 1, 600 do s:put('m' .. n) end; return #s:getall()";
        assert_eq!(eval(&lua, &setting, source), "600", "in three pieces");
        let source =
            "local r = cg.ring(1024); for n = 1, 1100 do r:add(n) end; return r:getmin(), r:getmax()";
        assert_eq!(eval(&lua, &setting, source), "77 1100", "in parts");
    }

    #[test]
    fn more_arguments_than_a_client_can_give() {
        let (lua, setting) = (vm(), TestSetting::default());
        let names = "local names, pairs = {}, {}; for n = 1, 1500 do \
                     names[n] = 'm' .. n; pairs[2 * n - 1] = 'm' .. n; pairs[2 * n] = n end; ";
        for (source, answers) in [
            (
                "local s = cg.set(); s:put(unpack(names)); return s:count(), s:remove(unpack(names)), s:count()",
                "1500 1500 0",
            ),
            (
                "local m = cg.map(); m:put(unpack(pairs)); return m:count(), m:remove(unpack(names)), m:count()",
                "1500 1500 0",
            ),
            (
                "local z = cg.zset(); z:add(unpack(pairs)); return z:count(), z:remove(unpack(names)), z:count()",
                "1500 1500 0",
            ),
            (
                "local h = cg.hll(); h:add(unpack(names)); local n = h:count(); return n > 1400 and n < 1600",
                "true",
            ),
        ] {
            let source = format!("{names}{}", source.replace("unpack", "table.unpack"));
            assert_eq!(eval(&lua, &setting, &source), answers, "{source}");
        }
        let refused = "local s, all = cg.set(), {}; for n = 1, 4097 do all[n] = 'm' .. n end; \
                       return pcall(s.put, s, table.unpack(all)), s:count()";
        assert_eq!(eval(&lua, &setting, refused), "false 0", "all or none");
    }

    #[test]
    fn mistakes() {
        let (lua, setting) = (vm(), TestSetting::default());
        for (source, text) in [
            ("cg.ring(5000)", "cg.ring: has arguments that its type refuses"),
            ("cg.set().put('a')", "set:put: is called with a colon, on a field"),
            ("cg.map():put('a')", "map:put: takes key value"),
            ("cg.map():get()", "map:get: takes key"),
            ("cg.map():get('a', 'b')", "map:get: takes key"),
            ("cg.map():put('a', {})", "a string"),
            ("local s, m = cg.set(), cg.map(); s.put(m, 'a')", "is called on a field of another kind"),
            ("local s = cg.set(); for n = 1, 5000 do s:put(n) end", "at most 4096 members of fields"),
            ("for n = 1, 251 do cg.set() end", "cg.set: an object has at most 250 collections"),
            ("cg.set():put(string.rep('a', 1024))", "at most 1023 bytes"),
            ("cg.set():random(1001)", "set:random: arg 1 must be a number from 0 to 1000"),
            ("cg.set():random(-1)", "set:random: arg 1 must be a whole number, 0 or greater"),
            ("cg.set():random(1, 2)", "set:random: has too many arguments"),
            ("cg.zset():range(1)", "zset:range: takes from to"),
            ("cg.zset():range(1, 'x')", "zset:range: arg 2 must be a whole number, 0 or greater"),
            ("cg.zset():around()", "zset:around: takes member [n]"),
            ("cg.set():union()", "set:union: takes set [set ...]"),
            ("cg.set():diff(cg.map())", "set:diff: is called on a field of another kind"),
            ("cg.set():intersection('key')", "set:intersection: is called with a colon, on a field"),
            ("cg.map().each()", "map:each: is called with a colon, on a field"),
            ("cg.set().x.y = 1", "nil"),
            ("getmetatable(cg.set()).__index = nil", "boolean"),
        ] {
            let error = eval(&lua, &setting, source);
            assert!(error.contains(text), "{source}: {error}");
        }
    }
}
