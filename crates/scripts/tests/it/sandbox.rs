//! What scripts must not reach, change or keep.

use crate::harness::{Bench, problems, source, unhurried};

use cattlegrid_scripts::{Limits, SourceFile, Sources};

/// What a method with this body answers, on a new object `{n = 1, deep = {1}}`.
#[track_caller]
fn run(body: &str) -> String {
    let text = format!(
        "local T = {{constants = nil}}
        local module = {{list = {{1, 2}}, names = {{}}}}
        function T.new() return {{n = 1, deep = {{1}}}} end
        function T.list() return module.list end
        function T.run(self) {body} end
        return T"
    );
    let mut bench = Bench::new(&text);
    assert_eq!(bench.call("new"), "CREATED");
    let reply = bench.call("run");
    reply.strip_prefix("SERVER_ERROR script t.run: ").unwrap_or(&reply).to_owned()
}

#[test]
fn strings_have_methods_that_cannot_be_changed() {
    assert_eq!(run("return getmetatable('')"), "the metatable of strings is locked");
    assert_eq!(run("return (pcall(setmetatable, '', {}))"), "0");
    assert_eq!(run("return ('x'):rep(3)"), "xxx");
}

#[test]
fn tables_of_a_source_are_read_only_after_it_was_loaded() {
    let read_only = "attempt to modify a readonly table";
    for change in [
        "T.run = nil",
        "module.x = 1",
        "module.list[1] = 5",
        "table.insert(module.list, 1)",
        "module.names.a = 1",
    ] {
        let text = run(change);
        assert_eq!(text, format!("t.luau:5: {read_only}"), "{change}");
    }
    assert_eq!(run("local own = table.clone(module.list) own[1] = 7 return own"), "7\r\n2\r\n");
    assert_eq!(run("setmetatable(module, {})"), format!("t.luau:5: {read_only}"));
}

#[test]
fn coroutines_and_values_of_a_call_are_gone_in_the_next() {
    let mut bench = Bench::new(
        "local kept
        local T = {}
        function T.new() return {n = 1} end
        function T.keep(self)
            kept = coroutine.wrap(function() while true do self.n += 1 coroutine.yield(self.n) end end)
            return kept()
        end
        function T.resume(self) return kept() end
        return T",
    );
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("keep"), "2");
    for _ in 0..3 {
        bench.call("resume");
    }
    assert_eq!(bench.call("dump"), r#"{"n":2}"#, "a table of an earlier call is not the object");
}

#[test]
fn buffers_and_strings_have_bounds() {
    for body in [
        "buffer.readu8(buffer.create(8), 8)",
        "buffer.readu8(buffer.create(8), -1)",
        "buffer.readf64(buffer.create(8), 1)",
        "buffer.writeu32(buffer.create(8), 2^31, 1)",
        "buffer.writestring(buffer.create(4), 0, 'long', 5)",
        "buffer.copy(buffer.create(4), 1, buffer.create(4), 0, 4)",
        "buffer.fill(buffer.create(4), 2, 1, 3)",
        "buffer.readbits(buffer.create(1), 4, 8)",
        "buffer.readstring(buffer.create(4), 0, 2^31 - 1)",
        "buffer.create(-1)",
        "string.unpack('s4', '\\255\\255\\255\\127')",
        "table.create(-1)",
        "table.unpack({}, 1, 1e6)",
        "string.char(256)",
        "utf8.char(2^31)",
        "string.format('%d', 'x')",
        "select(-5, 1)",
    ] {
        let text = run(&format!("{body} return 'out of bounds'"));
        assert!(text.starts_with("t.luau:5: "), "{body}: {text}");
    }
}

#[test]
fn texts_have_no_addresses() {
    for (value, kind) in [
        ("{}", "table"),
        ("T", "table"),
        ("T.run", "function"),
        ("print", "function"),
        ("coroutine.create(print)", "thread"),
        ("buffer.create(1)", "buffer"),
        ("cg.set()", "userdata"),
        ("cg.value('x')", "userdata"),
        ("setmetatable({}, {})", "table"),
        ("setmetatable({}, {__index = T})", "table"),
    ] {
        for text in [
            format!("return tostring({value})"),
            format!("local text = tostring return text({value}, 1)"),
            format!("return string.format('%*', {value})"),
            format!("return ('%%%*'):format({value}):sub(2)"),
            format!("local value = {value} return `{{value}}`"),
            format!("error({value})"),
            format!("error({value}, 2)"),
            format!("local function f() error({value}) end f()"),
            format!("coroutine.wrap(function() error({value}) end)()"),
            format!("return tostring(select(2, pcall(error, {value})))"),
            format!("return (select(2, xpcall(error, tostring, {value})))"),
        ] {
            assert_eq!(run(&text).trim_end(), kind, "{text}");
        }
    }
}

#[test]
fn texts_of_other_values_are_as_before() {
    let named = "setmetatable({}, {__tostring = function() return 'named' end})";
    for (body, text) in [
        (format!("return tostring({named})"), "named"),
        (format!("return string.format('%d%% %s %5.1f %*', 1, 'x', 2.25, {named})"), "1% x   2.2 named"),
        (format!("local o = {named} return `{{1}} {{true}} {{nil}} {{'x'}} {{o}}`"), "1 true nil x named"),
        (format!("error({named})"), "named"),
        ("return tostring(nil) .. tostring(1.5) .. tostring('x')".to_owned(), "nil1.5x"),
        ("error('table: 0x1 is full', 0)".to_owned(), "table: 0x1 is full"),
        ("local text = tostring text()".to_owned(), "t.luau:5: missing argument #1"),
        (
            "string.format('%d', {})".to_owned(),
            "t.luau:5: invalid argument #2 to 'format' (number expected, got table)",
        ),
        (
            "string.format('%s', {})".to_owned(),
            "t.luau:5: invalid argument #2 to 'format' (string expected, got table)",
        ),
        ("string.format('%*')".to_owned(), "t.luau:5: missing argument #2"),
        ("string.format('%s')".to_owned(), "t.luau:5: missing argument #2"),
        ("return string.format('%d %s', 1)".to_owned(), "t.luau:5: missing argument #3"),
        ("return string.format('%')".to_owned(), "t.luau:5: missing argument #2"),
        ("return (pcall(string.format, '%', {}))".to_owned(), "0"),
        ("return string.format(12)".to_owned(), "12"),
    ] {
        assert_eq!(run(&body), text, "{body}");
    }
    assert_eq!(
        run("tostring(setmetatable({}, {__tostring = function() return 1, {} end}))"),
        run("tostring(setmetatable({}, {__tostring = function() return 2 end}))")
    );
}

#[test]
fn a_state_is_not_read_behind_its_back() {
    // A method of the object's metatable would run outside of the method.
    let text = run("setmetatable(self, {__index = function() while true do end end}) return 1");
    assert!(text.contains("metatable"), "{text}");
    assert_eq!(
        run("self.deep = self return 1"),
        "field 'deep' is the same as the object: an object holds each table and each collection once"
    );
    assert_eq!(run("self = nil return 1"), "1");
}

#[test]
fn only_libraries_are_required() {
    let library =
        |name: &str, text: &str| SourceFile { path: format!("{name}.luau").into(), ..source(name, text) };
    let with = |body: &str| {
        let text =
            format!("local T = {{}} function T.new() return {{}} end function T.run() {body} end return T");
        let sources = Sources {
            types: vec![source("t", &text)],
            libraries: vec![
                library("lib/one", "return {n = 1, f = function() return require('lib/two') end}"),
                library("lib/two", "return 2"),
            ],
            ..Sources::default()
        };
        let mut bench = Bench::of(&sources, &unhurried());
        assert_eq!(bench.call("new"), "CREATED");
        bench.call("run")
    };
    assert_eq!(with("return require('lib/one').n"), "1");
    assert_eq!(with("return require('lib/one').f()"), "2");
    assert_eq!(with("return require('lib/one') == require('lib/one')"), "1");
    assert_eq!(
        with("require('lib/one').n = 2"),
        "SERVER_ERROR script t.run: t.luau:1: attempt to modify a readonly table"
    );
    for name in ["t", "lib/three", "/etc/passwd", "lib/../t", "../t", "", "lib/one.luau"] {
        let text = with(&format!("require('{name}')"));
        assert!(text.contains("t.luau:1: require: there is no "), "{name}: {text}");
    }
    let circle = Sources {
        types: vec![source("t", "require('lib/a') return {new = function() return {} end}")],
        libraries: vec![
            library("lib/a", "return require('lib/b')"),
            library("lib/b", "return require('lib/a')"),
        ],
        ..Sources::default()
    };
    let problems = cattlegrid_scripts::Scripts::load(&circle, &Limits::default()).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].to_string(), "lib/b.luau:1: require: lib/a requires itself");
}

#[test]
fn a_source_cannot_leave_the_sandbox_while_it_is_loaded() {
    for (text, problem) in [
        ("x = 1 return {}", "t.luau:1: x is a global, and globals cannot be assigned: write `local x`"),
        ("string.rep = nil return {}", "t.luau:1: attempt to modify a readonly table"),
        (
            "return loadstring('x')",
            "t.luau:1: unknown global loadstring: define it before this line with `local`",
        ),
        ("cg.get('x') return {}", "t.luau:1: cg.get: only within a call of a method"),
    ] {
        assert_eq!(problems(text), [problem], "{text}");
    }
}
