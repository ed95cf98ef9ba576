//! Tests of types: what `cg.test` does, and how failures are reported.

use std::path::Path;
use std::time::Duration;

use cattlegrid_objects::{Settings, TYPES_MAX, TypeSettings};
use cattlegrid_scripts::{Limits, Problem, SourceFile, Sources, TestResult};

use super::*;

mod failures;

/// A quota by the hour.
const QUOTA: &str = r#"
local Quota = { version = 1, create = nil }
function Quota.new(limit: string, window: string)
    local n = tonumber(limit)
    if n == nil or window ~= "hour" then
        return nil
    end
    return { limit = n, used = 0, ends = cg.now() + 3600 }
end
function Quota.addandcheck(self, n: string)
    local more = cg.number(n, 1)
    if cg.now() >= self.ends then
        self.used = 0
        self.ends = cg.now() + 3600
    end
    if self.used + more > self.limit then
        cg.event("exceeded", { limit = self.limit })
        return "QUOTA_EXCEEDED"
    end
    self.used += more
    return "QUOTA_OK"
end
function Quota.note(self, key: string, value: string)
    cg.set(key, value)
    cg.tag("user:" .. key)
    cg.log("noted")
    cg.load("later")
end
function Quota.seen(self, key: string)
    return cg.get(key)
end
function Quota.forget(self, tag: string)
    cg.invalidate(tag)
end
function Quota.keep(self, seconds: string)
    cg.ttl(tonumber(seconds))
    return true
end
function Quota.spin(self)
    while true do end
end
Quota.keys = { sum = {1} }
function Quota.sum(self, other)
    return self.limit + (if other then other.limit else 0)
end
Quota.read = { left = function(self) return self.limit - self.used end }
return Quota
"#;

fn source(name: &str, path: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), path: path.into(), text: text.to_owned() }
}

fn run_tests(scripts: &Arc<Scripts>, sources: &Sources) -> Result<Vec<TestResult>, Vec<Problem>> {
    run_under(&Settings::default(), scripts, sources)
}

fn run_under(
    settings: &Settings,
    scripts: &Arc<Scripts>,
    sources: &Sources,
) -> Result<Vec<TestResult>, Vec<Problem>> {
    let start = |ms| {
        let server = EngineServer::start(scripts, settings, "", ms)?;
        Ok(Box::new(server) as Box<dyn TestServer>)
    };
    cattlegrid_scripts::run_tests(scripts, sources, &settings.timezone, &start)
}

/// Runs one file of tests, `quota.test.luau`.
fn run(test: &str) -> Result<Vec<TestResult>, Vec<String>> {
    let sources = Sources {
        types: vec![source("quota", "quota.luau", QUOTA)],
        libraries: vec![source("lib/x", "lib/x.luau", "return { seven = 7 }")],
        tests: vec![source("quota", "quota.test.luau", test)],
    };
    // Time enough for short calls on a slow machine.
    let limits = Limits { time: Duration::from_millis(100), ..Limits::default() };
    let (scripts, _) = Scripts::load(&sources, &limits).unwrap_or_else(|problems| panic!("{problems:#?}"));
    run_tests(&scripts, &sources).map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

/// Runs a file that must pass; how often it checked.
fn passes(test: &str) -> usize {
    let passed =
        run(&format!("local t = cg.test\n{test}")).unwrap_or_else(|problems| panic!("{problems:#?}"));
    passed.iter().map(|test| test.checks).sum()
}

/// The one problem of a file.
fn fails(test: &str) -> String {
    let mut problems = run(&format!("local t = cg.test\n{test}")).expect_err("it fails");
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

#[test]
fn a_test_makes_objects_calls_methods_and_moves_the_clock() {
    let checks = passes(
        r#"
        t.clock(0)
        local q = t.new("quota", "k", "10", "hour")
        t.eq(q:addandcheck("10"), "QUOTA_OK")
        t.eq(q:addandcheck(1), "QUOTA_EXCEEDED")
        t.clock(3599.999)
        t.eq(t.call("quota:addandcheck:k:1"), "QUOTA_EXCEEDED")
        t.clock(3600)
        t.eq(t.call("quota:addandcheck:k:1"), "QUOTA_OK")
        t.eq(q:left(), "9")
        t.eq(t.call("quota:left:k"), "9")
        t.eq(t.call("quota:exists:k"), "EXISTS")
        t.eq(cg.json.decode(q:dump()).used, 1)
        t.eq(t.call("quota:drop:k"), "DELETED")
        t.eq(q:left(), nil)
        t.eq(require("lib/x").seven, 7)
        "#,
    );
    assert_eq!(checks, 11);
}

#[test]
fn new_makes_a_new_object() {
    passes(
        r#"
        local q = t.new("quota", "k", 1, "hour")
        q:keep(20)
        q:addandcheck(1)
        t.clock(10)
        t.new("quota", "k", 5, "hour")
        t.eq(t.call("quota:ttl:k"), "-1")
        t.clock(30)
        t.eq(q:left(), "5")
        "#,
    );
}

#[test]
fn the_clock_takes_seconds_and_times() {
    passes(
        r#"
        t.eq(t.now(), 1767225600)
        t.clock(1.5)
        t.eq(t.now(), 1767225601.5)
        t.at("2026-01-31T23:59:59Z")
        t.eq(t.now(), 1769903999)
        t.at("2026-01-31T23:59:59+01:00")
        t.eq(t.now(), 1769903999 - 3600)
        t.error(function() t.at("soon") end, "is no time")
        t.error(function() t.clock(-1) end, "the clock takes seconds")
        t.error(function() t.clock(0/0) end, "the clock takes seconds")
        "#,
    );
}

#[test]
fn what_follows_a_call_is_seen() {
    passes(
        r#"
        local q = t.new("quota", "k", 1, "hour")
        t.eq(t.events(), {})
        q:addandcheck(2)
        t.eq(t.events(), { { name = "exceeded", data = { limit = 1 } } })
        t.eq(t.events(), {})
        t.eq(q:note("alice", "v"), nil)
        t.eq(t.plain("alice"), "v")
        t.eq(t.log(), { "noted" })
        t.eq(t.loads(), { "later" })
        t.eq(t.plain("bob"), nil)
        t.eq(t.plain("bob", 7), "7")
        t.eq(q:seen("bob"), "7")
        t.eq(q:seen("carol"), nil)
        local other = t.new("quota", "other", 5, "hour")
        t.eq(other:sum("k"), "6")
        t.eq(other:sum("none"), "5")
        t.eq(t.object("quota", "other"):left(), "5")
        other:forget("user:alice")
        t.eq(q:left(), nil)
        t.eq(other:keep(10), "1")
        t.clock(9.999)
        t.eq(other:left(), "5")
        t.clock(10)
        t.eq(other:left(), nil)
        "#,
    );
}

#[test]
fn shipped_types_are_there() {
    passes(
        r#"
        t.eq(t.call("set:new:s"), "CREATED")
        t.eq(t.call("set:put:s:a"), "SUCCESS")
        t.eq(t.call("set:put:s:b"), "SUCCESS")
        t.eq(t.call("set:getall:s"), "a\r\nb\r\n")
        t.eq(t.object("set", "s"):count(), "2")
        t.eq(t.call("set:getall:none"), nil)
        t.eq(t.call("quota:left:k"), nil)
        for i = 1, 2000 do t.call("set:put:s:member" .. i) end
        t.eq(t.call("set:count:s"), "2002")
        "#,
    );
}

#[test]
fn errors_of_calls_are_errors_of_the_test() {
    passes(
        r#"
        local q = t.new("quota", "k", 1, "hour")
        t.error(function() q:addandcheck("x") end, "CLIENT_ERROR quota.addandcheck: arg 1 must be a number")
        t.error(function() q:none() end, "CLIENT_ERROR quota has no method none")
        t.error(function() q:addandcheck() end, "takes")
        t.error(function() q:spin() end, "took longer than 100 ms")
        t.error(function() t.new("quota", "k", 1, "year") end, "quota.new refused these arguments")
        t.error(function() q:addandcheck({}) end, "argument 1 must be a string or a number, not table")
        t.eq(t.call("quota:addandcheck:k:x"), "CLIENT_ERROR quota.addandcheck: arg 1 must be a number")
        t.eq(q:left(), "1")
        -- Tables that have themselves.
        local a, b = {}, {}
        a.a, b.a = a, b
        t.eq(a, b)
        "#,
    );
}

#[test]
fn a_check_that_fails_fails_the_test_whatever_catches_it() {
    let expected = "quota.test.luau:2: expected 2, got 1";
    for test in [
        "t.error(function() t.eq(1, 2) end)",
        "pcall(function() t.eq(1, 2) end)",
        "xpcall(function() t.eq(1, 2) end, print)",
        "coroutine.resume(coroutine.create(function() t.eq(1, 2) end))",
        "pcall(coroutine.wrap(function() t.eq(1, 2) end))",
        "pcall(t.eq, 1, 2)",
        "return { test_it = function() pcall(t.eq, 1, 2) end }",
    ] {
        let failed = fails(test);
        assert!(
            failed == expected || failed == expected.replace("2: exp", "2: test_it: exp"),
            "{test}: {failed}"
        );
    }
    for (test, text) in [
        ("t.error(function() t.error(function() end) end)", "expected an error, got none"),
        ("t.error(function() t.call('bad key with blank') end)", "blank"),
        ("pcall(t.call, 'plainkey')", "plainkey"),
        ("pcall(t.new, 'none', 'k')", "no type none"),
        ("pcall(t.call, 'other:x:y')", "no call: other:x:y"),
        ("pcall(t.plain, 'a b', 'x')", "blank"),
    ] {
        let failed = fails(test);
        assert!(failed.starts_with("quota.test.luau:2: ") && failed.contains(text), "{test}: {failed}");
    }
    let after = "return { test_a = function() pcall(t.eq, 1, 2) end, test_b = function() t.eq(1, 1) end }";
    assert_eq!(fails(after), "quota.test.luau:2: test_a: expected 2, got 1", "the others are run");
}

#[test]
fn failures_name_the_line_and_both_values() {
    let tests = [
        ("t.eq(1, '1')", "expected \"1\", got 1"),
        ("t.eq(nil, true, 'the reply')", "the reply: expected true, got nil"),
        (
            "t.eq({ 1, { a = 2 } }, { 1, { a = 3, [7] = {} } })",
            "expected {1, {[7] = {}, a = 3}}, got {1, {a = 2}}",
        ),
        ("t.eq({ 1 }, { 1, 2 })", "expected {1, 2}, got {1}"),
        ("t.error(function() end)", "expected an error, got none"),
        ("t.error(function() error('x', 0) end, 'y')", "expected an error with \"y\", got \"x\""),
        ("t.object('quota', 'k'):addandcheck(1, 2)", "CLIENT_ERROR quota.addandcheck: takes n"),
        ("error('mine')", "mine"),
        // What a server would refuse, and what checks nothing.
        (
            "t.error(t.call('quota:left:k'))",
            "t.error takes a function, t.error(function() ... end), not a nil",
        ),
        ("t.error(5)", "t.error takes a function, t.error(function() ... end), not a number"),
        ("t.error(error, 5)", "the pattern of t.error is a number"),
        ("t.error(error, '(')", "the pattern \"(\" cannot be used: unfinished capture"),
        ("t.eq()", "t.eq takes a value and the value that is expected"),
        ("t.eq(1)", "t.eq takes a value and the value that is expected"),
        ("t.eq(1, 1, {})", "the text of t.eq is a table"),
        ("local a = {} a.a = a t.eq(a, {})", "expected {}, got {a = {...}}"),
        (
            "local a, b = {}, {} a.a = a b.a = {a = b, 1} t.eq(a, b)",
            "expected {a = {1, a = {...}}}, got {a = {...}}",
        ),
        ("t.call(nil)", "t.call takes the name of a call, not a nil"),
        ("t.call('')", "a key has 1 to 250 bytes, not 0"),
        ("t.call('quota:left:' .. string.rep('k', 250))", "a key has 1 to 250 bytes, not 261"),
        ("t.call('quota:left:a b')", "the key \"quota:left:a b\" has a blank or a control character"),
        ("t.call('other:x:y')", "no call: other:x:y"),
        ("t.call('quota::k')", "no call: quota::k"),
        ("t.new('quota', '', 1, 'hour')", "the key of an object has 1 to 250 bytes, not 0"),
        (
            "t.new('quota', string.rep('k', 251), 1, 'hour')",
            "the key of an object has 1 to 250 bytes, not 251",
        ),
        ("t.new('quota')", "the key of an object is a nil"),
        ("t.new(nil, 'k')", "the name of a type is a nil"),
        ("t.object('quota', ''):left()", "the key of an object has 1 to 250 bytes, not 0"),
        ("t.plain('quota::k', 'x')", "the key \"quota::k\" names an object or a method"),
        ("t.plain('quota:left:k')", "the key \"quota:left:k\" names an object or a method"),
        ("t.plain('a b', 'x')", "the key \"a b\" has a blank or a control character"),
        ("t.plain('', 'x')", "a key has 1 to 250 bytes, not 0"),
        ("t.plain(nil)", "t.plain takes a key, not a nil"),
        ("t.plain('k', {})", "a value is a string or a number, not a table"),
        (
            "t.new('quota', 'k', 1, 'hour'):note('a b', 'x')",
            "SERVER_ERROR script quota.note: quota.luau:24: cg.set: the key \"a b\" has a blank or a control character",
        ),
        ("local x: any = nil; x()", "attempt to call a nil value"),
    ];
    for (test, text) in tests {
        assert_eq!(fails(&format!("\n{test}")), format!("quota.test.luau:3: {text}"), "{test}");
    }
}

#[test]
fn functions_are_tests_with_stores_of_their_own() {
    let test = r#"
        local t = cg.test
        local Tests = {}
        function Tests.test_b() t.eq(t.call("quota:left:k"), nil) t.eq(t.now(), 1767225600) end
        function Tests.test_a() t.clock(7) t.new("quota", "k", 1, "hour") t.eq(t.call("quota:left:k"), "1") end
        return Tests"#;
    let passed = |name: &str, checks| TestResult { name: name.to_owned(), checks };
    assert_eq!(
        run(test).unwrap(),
        [passed("quota.test.luau test_a", 1), passed("quota.test.luau test_b", 2)]
    );
    assert_eq!(run("").unwrap(), [passed("quota.test.luau", 0)]);
    let test = "local t = cg.test return {\ntest_a = function() t.eq(1, 2) end,\ntest_b = function() t.eq(1, 1) end,\ntest_c = function() error('no') end }";
    assert_eq!(
        run(test).unwrap_err(),
        ["quota.test.luau:2: test_a: expected 2, got 1", "quota.test.luau:4: test_c: no",]
    );
    assert_eq!(
        fails("return { tset_a = function() end }"),
        "quota.test.luau: returns tset_a: only functions named test_... are run"
    );
}

#[test]
fn a_test_that_does_not_end_is_ended() {
    let over = |place: &str| format!("quota.test.luau:{place} takes longer than 1 s");
    assert_eq!(fails("\nwhile true do pcall(function() end) end"), over("3:"));
    assert_eq!(
        fails("return { test_a = function()\nwhile true do t.call('quota:left:k') end end }"),
        over("3: test_a:"),
        "the line is that of the test, not of what it calls"
    );
    assert_eq!(
        fails(
            "local function spin() while true do end end\nreturn { test_a = function()\nspin() end,\ntest_b = function() end }"
        ),
        over("2: test_a:"),
        "tests behind it have no time, and are not named"
    );
    assert_eq!(
        run("local t = cg.test return { test_a = function() t.eq(1, 2) end,\ntest_b = function() while true do end end }")
            .unwrap_err(),
        ["quota.test.luau:1: test_a: expected 2, got 1".to_owned(), over("2: test_b:")],
        "failures before it are named"
    );
    let too_much = |place: &str| format!("quota.test.luau:{place} needed more than 64 MiB");
    assert_eq!(
        fails("\nlocal all = {} while true do table.insert(all, string.rep('x', 100000) .. #all) end"),
        too_much("3:")
    );
    assert_eq!(fails("\nstring.rep('x', 1e9)"), too_much("3:"));
    let found = fails("return {\n test_a = function()\n string.rep('x', 1e9) end }");
    assert_eq!(found, too_much("4: test_a:"), "the line that needed it");
    assert_eq!(fails("\npcall(string.rep, 'x', 1e9)"), too_much("3:"));
}

/// Values of a message are cut around the first difference.
#[test]
fn long_values_are_cut_where_they_differ() {
    let test = "local a, b = string.rep('a', 100000), string.rep('z', 100000)\n";
    for (check, expected) in [
        (
            "t.eq(a .. 'x' .. b, a .. 'y' .. b .. '!')",
            format!(
                "expected ...\"{0}y{1}\"... (200002 bytes), got ...\"{0}x{1}\"... (200001 bytes); they differ from byte 100001 on",
                "a".repeat(100),
                "z".repeat(299)
            ),
        ),
        (
            "t.eq(a, 'ab')",
            format!(
                "expected \"ab\", got \"{}\"... (100000 bytes); they differ from byte 2 on",
                "a".repeat(400)
            ),
        ),
        (
            "t.eq(a .. b, a)",
            format!(
                "expected ...\"{}\" (100000 bytes), got ...\"{}{}\"... (200000 bytes); they differ from byte 100001 on",
                "a".repeat(400),
                "a".repeat(100),
                "z".repeat(300)
            ),
        ),
        (
            "t.eq({ k = a, l = 1 }, { k = a, l = 2 }, 'two')",
            format!(
                "two: expected ...{0}\", l = 2}} (100015 bytes), got ...{0}\", l = 1}} (100015 bytes)",
                "a".repeat(400 - 9)
            ),
        ),
        ("t.eq(nil, a)", format!("expected \"{}... (100002 bytes), got nil", "a".repeat(399))),
        (
            "t.eq(string.rep('é', 1000), 'x' .. string.rep('é', 1000))",
            format!(
                "expected \"x{0}\"... (2001 bytes), got \"{0}é\"... (2000 bytes); they differ from byte 1 on",
                "é".repeat(199)
            ),
        ),
        (
            "t.error(function() error(b, 0) end, 'no')",
            format!("expected an error with \"no\", got \"{}\"... (100000 bytes)", "z".repeat(400)),
        ),
    ] {
        assert_eq!(fails(&format!("{test}{check}")), format!("quota.test.luau:3: {expected}"), "{check}");
    }
}

#[test]
fn a_test_has_the_sandbox_of_sources() {
    passes(
        r#"
        local library: any, tests: any = cg, t
        t.error(function() library.test = nil end, "readonly")
        t.error(function() tests.eq = nil end, "readonly")
        t.error(function() cg.tag("x") end, "only within a call of a method")
        t.eq((getmetatable("") :: any), "the metatable of strings is locked")
        "#,
    );
}

#[test]
fn lint_and_syntax_errors_of_tests_are_found_before() {
    let sources = |test: &str| Sources {
        types: vec![source("quota", "quota.luau", QUOTA)],
        tests: vec![source("quota", "quota.test.luau", test)],
        ..Sources::default()
    };
    for (test, text) in [
        ("\nlocal t =", "quota.test.luau:2: Expected identifier when parsing expression, got <eof>"),
        (
            "\ncg.test.eq(1, foo)",
            "quota.test.luau:2: unknown global foo: define it before this line with `local`",
        ),
    ] {
        let problems = Scripts::load(&sources(test), &Limits::default()).expect_err("it is wrong");
        assert_eq!(problems.iter().map(Problem::to_string).collect::<Vec<_>>(), [text]);
    }
}

#[test]
fn without_tests_nothing_is_run() {
    let sources = Sources { types: vec![source("quota", "quota.luau", QUOTA)], ..Sources::default() };
    let (scripts, _) = Scripts::load(&sources, &Limits::default()).unwrap();
    assert_eq!(run_tests(&scripts, &sources), Ok(Vec::new()));
}

#[test]
fn a_test_prints_and_asks_for_the_time() {
    let checks = passes(
        r#"
        print("a", 1)
        cg.log("b")
        t.eq(t.log(), {"a\t1", "b"})
        t.eq(t.log(), {})
        t.at("2026-01-31T23:59:59Z")
        t.eq(os.date("%Y-%m-%d %H:%M:%S"), "2026-01-31 23:59:59")
        t.eq(os.date("!%Y", 0), "1970")
        t.eq(os.time(), 1769903999)
        t.eq(os.clock(), 1769903999)
        t.eq(cg.now(), 1769903999)
        t.eq(cg.now_ms(), 1769903999000)
        t.eq(os.time({ year = 1970, month = 1, day = 2, hour = 0 }), 86400)
        -- What is printed may use the test itself.
        print(setmetatable({}, { __tostring = function() return `{t.call("quota:new:k:5:hour")}` end }))
        t.eq(t.log(), {"CREATED"})
        "#,
    );
    assert_eq!(checks, 10);
    assert!(fails("\nos.date('%Q')").starts_with("quota.test.luau:3: os.date: "));
    // What changes an object or a key needs a call.
    assert_eq!(fails("cg.set('k', 'v')"), "quota.test.luau:2: cg.set: only within a call of a method");
}

#[test]
fn new_begins_anew() {
    let own = "
        local T = {ttl = 60}
        function T.new(tag) cg.tag(tag) return {s = cg.set()} end
        function T.fill(self) for n = 1, 2000 do self.s:put(n) end end
        function T.left(self) return cg.ttl() end
        function T.bump(self, tag) cg.invalidate(tag) end
        return T";
    let test = "
        local t = cg.test
        for turn, members in {0, 2000} do
            t.clock(turn * 1000)
            local o = t.new('t', 'k', 'old')
            if members > 0 then o:fill() end
            t.clock(turn * 1000 + 30)
            t.eq(o:left(), '30')
            o = t.new('t', 'k', 'fresh')
            t.eq(o:left(), '60')
            o:bump('old')
            t.eq(o:left(), '60')
            o:bump('fresh')
            t.eq(o:left(), nil)
        end
        t.eq(t.call('counter:set:c:1'), '1')
        t.call('counter:ttl:c:9')
        t.call('counter:new:c')
        t.eq(t.call('counter:ttl:c'), '-1')";
    let sources = Sources {
        types: vec![source("t", "t.luau", own)],
        tests: vec![source("t", "t.test.luau", test)],
        ..Sources::default()
    };
    // Not about time: without optimisation the members take about as long as a call may.
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let (scripts, _) = Scripts::load(&sources, &limits).expect("they are right");
    let passed = run_tests(&scripts, &sources);
    assert_eq!(passed.map(|tests| tests[0].checks), Ok(10));
}

/// Objects that are never evicted, of any length.
const KEPT: &str = r#"
local Kept = { evict = "never" }
function Kept.new(n: string)
    return { text = string.rep("x", cg.integer(n, 1)) }
end
function Kept.save(self, key: string, n: string)
    cg.set(key, string.rep("v", cg.integer(n, 2)), 10)
end
function Kept.mark(self, tag: string)
    cg.tag(tag)
end
function Kept.keep(self, seconds: string)
    cg.ttl(cg.integer(seconds, 1))
end
function Kept.order(self, key: string)
    cg.load(key)
end
function Kept.fail(self, key: string)
    cg.load(key)
    cg.set(key, "set")
    cg.event("failed", { key = key })
    cg.fail("no")
end
Kept.read = {
    length = function(self) return #self.text end,
    left = function(self) return cg.ttl() end,
    key = function(self) return cg.key() end,
    echo = function(self, ...: string) return { ... } end,
}
return Kept"#;

/// Runs a test of the type `kept` that must pass.
fn kept(test: &str) {
    let sources = Sources {
        types: vec![source("kept", "kept.luau", KEPT)],
        tests: vec![source("kept", "kept.test.luau", &format!("local t = cg.test {test}"))],
        ..Sources::default()
    };
    let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
    let (scripts, _) = Scripts::load(&sources, &limits).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let ran = run_tests(&scripts, &sources);
    assert!(ran.as_ref().is_ok_and(|passed| passed[0].checks > 0), "{ran:#?}");
}

#[test]
fn a_test_sees_the_limits_of_a_server() {
    kept(
        r#"
        t.error(function()
            for n = 1, 200 do t.new("kept", "k" .. n, 60000) end
        end, "SERVER_ERROR out of memory storing object")
        local k = t.object("kept", "k1")
        t.eq(k:length(), "60000")
        t.error(function() k:save("a", 1048560) end, "a value of 1048560 bytes is larger than an item may be")
        t.error(function() k:mark("") end, "argument 1 must have 1 to 200 bytes")
        for n = 1, 8 do k:mark("t" .. n) end
        t.error(function() k:mark("t9") end, "tags")
        t.error(function() k:order("kept::k1") end, "cg.load: the key \"kept::k1\" names an object or a method")
        t.eq(t.loads(), {})
        t.error(function() k:fail("z") end, "no")
        t.eq(t.loads(), {})
        t.eq(t.plain("z"), nil)
        t.eq(t.events(), { { name = "failed", data = { key = "z" } } })
        "#,
    );
    let sources = |test: &str| format!("\n{test}");
    for (test, text) in [
        ("t.plain('k', string.rep('x', 1048560))", "SERVER_ERROR object too large for cache"),
        ("t.object('quota', string.rep('k', 250)):left()", "is too long for a client to send"),
        (
            "t.object('quota', 'k'):note(string.rep('a', 3000), 'x')",
            "a request has up to 2048 bytes, not 3022",
        ),
    ] {
        let failed = fails(&sources(test));
        assert!(failed.starts_with("quota.test.luau:3: ") && failed.ends_with(text), "{failed}");
    }
}

#[test]
fn a_test_sees_what_a_server_forgets() {
    kept(
        r#"
        local value = string.rep("x", 1000000)
        for n = 1, 80 do t.plain("v" .. n, value) end
        t.eq(t.plain("v1"), nil)
        t.eq(t.plain("v80") == value, true)
        -- Ends are kept in whole seconds.
        local k = t.new("kept", "k", 1)
        t.clock(0.5)
        k:keep(1)
        t.clock(1.9)
        t.eq(k:length(), "1")
        t.clock(2)
        t.eq(k:length(), nil)
        "#,
    );
}

#[test]
fn a_clock_that_goes_back_leaves_lifetimes() {
    kept(
        r#"
        local k = t.new("kept", "k", 1)
        k:keep(60)
        k:save("a", 1)
        t.clock(5.25)
        t.at("2025-12-31T23:59:59.5Z")
        t.eq(t.now(), 1767225600 - 0.5)
        t.eq(k:left(), "54")
        t.eq(t.plain("a"), "v")
        t.at("1970-01-01T00:00:00Z")
        t.eq(t.now(), 0)
        t.eq(k:left(), "54")
        t.clock(54)
        t.eq(k:length(), nil)
        t.error(function() t.clock(1e11) end, "the clock goes to the year 2100")
        "#,
    );
}

#[test]
fn keys_and_arguments_have_any_bytes() {
    kept(
        r#"
        for _, key in { "a b", "a:b%3Ac", "\0\r\n\x7f\xff", string.rep("k", 243), string.rep(" ", 180) } do
            local k = t.new("kept", key, 1)
            t.eq(k:key(), key)
            t.eq(k:echo("a b", "", "c:d%", "\r\n\0\xfe"), "a b\r\n\r\nc:d%\r\n\r\n\0\xfe\r\n")
            t.eq(k:echo(), "")
            t.eq(k:echo(""), "\r\n")
            local long = string.rep("x y", 10000)
            t.eq(k:echo("a b", long), `a b\r\n{long}\r\n`)
        end
        "#,
    );
}

/// Zones of servers.
const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/St_Johns",
    "America/Havana",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Etc/GMT+12",
];

/// The tests of all examples are run with the server's settings: they are no reason to fail.
#[test]
fn tests_of_the_examples_under_other_settings() {
    for name in ["luau", "own"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/objects").join(name);
        let limits = Limits { time: Duration::from_secs(1), ..Limits::default() };
        let sources = Sources::read(&dir).unwrap();
        let (scripts, warnings) = Scripts::load(&sources, &limits).unwrap();
        assert_eq!(warnings, Vec::new());
        let zones = ZONES.into_iter().map(|zone| (zone, false));
        for (zone, compat) in zones.chain([("UTC", true)]) {
            let settings =
                Settings { timezone: zone.to_owned(), compat, json_flags: 7, ..Settings::default() };
            let passed = run_under(&settings, &scripts, &sources);
            assert!(passed.as_ref().is_ok_and(|passed| passed.len() >= 3), "{zone} {compat}: {passed:?}");
        }
    }
}

/// A type, of which there are many.
const TYPE: &str = "return {new = function() return {} end, m = function() return 1 end}";

fn load(names: &[String], test: Option<&str>) -> Result<Arc<Scripts>, String> {
    let sources = Sources {
        types: names.iter().map(|name| source(name, &format!("{name}.luau"), TYPE)).collect(),
        tests: test.iter().map(|text| source("t", "t.test.luau", text)).collect(),
        ..Sources::default()
    };
    let failed = |problems: Vec<_>| format!("{problems:?}");
    let (scripts, _) = Scripts::load(&sources, &Limits::default()).map_err(failed)?;
    run_tests(&scripts, &sources).map_err(failed)?;
    Ok(scripts)
}

fn registry(scripts: &Arc<Scripts>) -> Registry {
    let types = scripts.types().iter();
    let types = types.map(|own| TypeSettings::new(own.object_type.name)).collect();
    Registry::with_host(Settings { types, ..Settings::default() }, Some(scripts.clone()))
        .expect("the types are those of the host")
}

/// A process of its own: names of types are those of a process.
#[test]
fn refused_sources_leave_nothing_that_counts() {
    let kept: Vec<String> = (0..10).map(|place| format!("kept{place}")).collect();
    let in_force = load(&kept, None).unwrap();
    registry(&in_force).put_in_force();
    let ids =
        |scripts: &Scripts| -> Vec<u16> { scripts.types().iter().map(|own| own.object_type.id).collect() };
    let numbers = ids(&in_force);
    for attempt in 0..4 * TYPES_MAX {
        let names = [kept[0].clone(), format!("new{attempt}"), format!("other{attempt}")];
        let refused = load(&names, Some("error('no')")).unwrap_err();
        assert!(refused.contains("no"), "{refused}");
    }
    drop(in_force);
    let more: Vec<String> = (10..TYPES_MAX).map(|place| format!("more{place}")).collect();
    let all = load(&[kept.clone(), more].concat(), None).unwrap();
    assert_eq!(ids(&all)[..10], numbers, "objects of types that were in force are found again");
    registry(&all).put_in_force();
    drop(all);
    let refused = load(&["one_more".to_owned()], None).unwrap_err();
    assert!(refused.contains("has had 100 names of types"), "{refused}");
    assert_eq!(ids(&load(&kept, None).unwrap()), numbers);
}

#[test]
fn refusals_and_texts_of_errors_are_those_that_clients_get() {
    let type_text = r#"
local Part = {}
function Part.new(text: string) return if text == "none" then nil else {} end
function Part.fail(self) cg.fail("blanks  ") end
return Part
"#;
    let test = r#"
local t = cg.test
t.error(function() t.new("part", "k", "none") end, "part.new refused these arguments")
t.new("part", "k", "one")
t.eq(t.call("part:fail:k"), "CLIENT_ERROR part.fail: blanks  ")
"#;
    for compat in [false, true] {
        let sources = Sources {
            types: vec![source("part", "part.luau", type_text)],
            libraries: Vec::new(),
            tests: vec![source("part", "part.test.luau", test)],
        };
        let (scripts, _) = Scripts::load(&sources, &Limits::default()).unwrap();
        let settings = Settings { compat, ..Settings::default() };
        assert_eq!(run_under(&settings, &scripts, &sources).map(|passed| passed.len()), Ok(1), "{compat}");
    }
}
