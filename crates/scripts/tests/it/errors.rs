//! Calls that succeed, fail, and what they leave.

use crate::harness::{Bench, problems, source};
use cattlegrid_objects::FollowUp;
use cattlegrid_scripts::{Limits, Scripts, SourceFile, Sources};

const QUOTA: &str = "
local Quota = {version = 1, ttl = 60}
function Quota.new(limit, window)
  local n = tonumber(limit)
  if not n then return nil end
  return {limit = n, count = 0}
end
function Quota.addandcheck(self, n: string, _note: string?)
  local add = cg.number(n, 1)
  if self.count + add > self.limit then return 'QUOTA_EXCEEDED' end
  self.count += add
  return 'QUOTA_OK'
end
Quota.read = {left = function(self) return self.limit - self.count end,
              bad = function(self) self.count = 7 return 1 end}
function Quota.reset(self) self.count = 0 return 'QUOTA_OK' end
return Quota";

#[test]
fn a_quota() {
    let mut bench = Bench::new(QUOTA);
    assert_eq!(bench.call("addandcheck:1"), "MISS");
    assert_eq!(bench.call("new:x:hour"), "MISS");
    assert_eq!(bench.call("new:10:hour"), "CREATED");
    assert_eq!(bench.call("addandcheck:10"), "QUOTA_OK");
    assert_eq!(bench.call("addandcheck:1"), "QUOTA_EXCEEDED");
    assert_eq!(bench.call("left"), "0");
    assert_eq!(bench.call("bad"), "SERVER_ERROR script t.bad: read.bad changed its object");
    assert_eq!(bench.call("reset"), "QUOTA_OK");
    assert_eq!(bench.call("left"), "10");
    let dump = bench.call("dump");
    // The order is that in which the process met the names.
    assert!(dump.contains(r#""limit":10"#) && dump.contains(r#""count":0"#), "{dump}");
    assert_eq!(bench.call("addandcheck:x"), "CLIENT_ERROR t.addandcheck: arg 1 must be a number");
    assert_eq!(bench.call("left:1"), "CLIENT_ERROR t.left: takes no arguments");
    assert!(bench.call_done("addandcheck:11").1.change.is_none(), "an unchanged object is not written");
}

#[test]
fn counts_of_arguments() {
    let mut bench = Bench::new(QUOTA);
    assert_eq!(bench.call("new:10"), "CREATED");
    let takes = "CLIENT_ERROR t.addandcheck: takes n [_note]";
    assert_eq!(bench.call("addandcheck"), takes);
    assert_eq!(bench.call("addandcheck:1:2:3"), takes);
    assert_eq!(bench.call("addandcheck:1:2"), "QUOTA_OK");
    assert_eq!(bench.call("new:1:2:3"), "CLIENT_ERROR t.new: takes [limit] [window]");
    let mut bench = Bench::new(
        "local function count(_, ...) return select('#', ...) end
        return {new = function(...) return {n = select('#', ...)} end, count = count}",
    );
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("count"), "0");
    assert_eq!(bench.call("count:a:b:c"), "3");
}

/// Methods with a statement on each line.
const STATEMENTS: &str = "
local T = {}
function T.new(n)
  local own = {n = tonumber(n), list = {}, inner = {a = 1}}
  return own
end
function T.change(self, by)
  self.n += tonumber(by)
  for i = 1, 3 do
    table.insert(self.list, i)
    if i == 2 then
      self.inner.a = self.n
      self.inner.b = nil
    else
      self.inner[tostring(i)] = i
    end
  end
  cg.set('plain', 'value')
  cg.invalidate('tag')
  cg.tag('own')
  cg.ttl(10)
  cg.event('changed', {n = self.n})
  cg.log('changed')
  local ok = pcall(function()
    self.caught = true
    return 1
  end)
  self.ok = ok
  return {n = self.n}
end
return T";

#[test]
fn an_error_at_any_statement_leaves_the_object_as_it_was() {
    let mut whole = Bench::new(STATEMENTS);
    assert_eq!(whole.call("new:5"), "CREATED");
    let state = whole.state.clone();
    let (reply, done) = whole.call_done("change:2");
    assert_eq!(reply, r#"{"n":7}"#);
    assert!(done.change.is_some() && done.expires_ms.is_some());
    assert_eq!(done.after.len(), 4);
    let lines: Vec<&str> = STATEMENTS.lines().collect();
    let first = lines.iter().position(|line| line.starts_with("function T.change")).unwrap() + 1;
    let mut tried = 0;
    for at in first..lines.len() {
        let line = lines[at].trim();
        if ["end", "else", "return T"].iter().any(|word| line.starts_with(word)) {
            continue;
        }
        for fault in ["error('here')", "error()", "error({})", "local x = nil + 1", "cg.fail('here')"] {
            let mut changed = lines.clone();
            let inserted = format!("{fault} {line}");
            // A caught error is no error of the method: it is raised again behind it.
            let again = "if not ok then error('here') end self.ok = ok";
            changed[at] = &inserted;
            let text = changed.join("\n").replace("self.ok = ok", again);
            let mut bench = Bench::new(&text);
            bench.state.clone_from(&state);
            let (reply, done) = bench.call_done("change:2");
            assert!(reply.contains("_ERROR "), "{text}: {reply}");
            assert!(done.change.is_none() && done.expires_ms.is_none(), "{text}");
            let kept = |after: &FollowUp| matches!(after, FollowUp::Event { .. } | FollowUp::Log(_));
            assert!(done.after.iter().all(kept), "{text}: {:?}", done.after);
            assert_eq!(bench.state, state);
            tried += 1;
        }
    }
    assert_eq!(tried, 18 * 5);
}

/// What a method with this body answers.
#[track_caller]
fn run(body: &str) -> String {
    let text = format!(
        "local T = {{}} function T.new() return {{n = 1}} end\nfunction T.run(self, a) {body} end return T"
    );
    let mut bench = Bench::new(&text);
    assert_eq!(bench.call("new"), "CREATED");
    let state = bench.state.clone();
    let reply = bench.call("run:a");
    if reply.contains("_ERROR ") {
        assert_eq!(bench.state, state);
    }
    reply.strip_prefix("SERVER_ERROR script t.run: ").unwrap_or(&reply).to_owned()
}

#[test]
fn texts_of_errors() {
    for (body, text) in [
        ("error('boom')", "t.luau:2: boom"),
        ("error('boom', 0)", "boom"),
        ("return self.x.y", "t.luau:2: attempt to index nil with 'y'"),
        ("return self + 1", "t.luau:2: attempt to perform arithmetic (add) on table and number"),
        ("error()", "nil"),
        ("error(nil)", "nil"),
        ("error(7)", "t.luau:2: 7"),
        ("error({})", "table"),
        ("error(setmetatable({}, {__tostring = function() return 'mine' end}))", "mine"),
        ("cg.fail('no')", "CLIENT_ERROR t.run: no"),
        ("cg.fail('two\\r\\nlines')", "CLIENT_ERROR t.run: two  lines"),
        ("error('two\\r\\nlines\\0', 0)", "two  lines"),
        ("local ok, e = pcall(cg.fail, 'no') error(e)", "CLIENT_ERROR t.run: no"),
        ("cg.number(a, 1)", "CLIENT_ERROR t.run: arg 1 must be a number"),
        ("return print", "the result is a function"),
        ("self.f = print", "field 'f' is a function"),
        ("coroutine.yield()", "t.luau:2: attempt to yield across metamethod/C-call boundary"),
        ("rawset(table.freeze({}), 1, 1)", "t.luau:2: attempt to modify a readonly table"),
        ("return table.insert(table.freeze({}), 1)", "t.luau:2: attempt to modify a readonly table"),
        ("table.sort({1, 'a'})", "t.luau:2: attempt to compare string < number"),
        ("local function f() error('far', 0) end f()", "far"),
        ("return setmetatable({}, {__index = function() error('far', 0) end}).x", "far"),
        ("error('x.luau:7: said')", "t.luau:2: x.luau:7: said"),
        ("error('[C]: in function \\'f\\'', 0)", "[C]: in function 'f'"),
        ("return coroutine.wrap(function() error('inner', 0) end)()", "t.luau:2: inner"),
        ("return select(2, pcall(error, 'caught'))", "caught"),
        ("local ok, e = pcall(pcall, error, 'x') return tostring(ok) .. tostring(e)", "truefalse"),
        ("local _, e = pcall(function() error({code = 5}) end) return e.code", "5"),
        ("return select(2, xpcall(error, function(e) return 'handled ' .. e end, 'x'))", "handled x"),
    ] {
        assert_eq!(run(body), text, "{body}");
    }
    let text = run("error(setmetatable({}, {__tostring = function() error('again') end}))");
    assert!(!text.is_empty(), "{text}");
    let text = run("error(string.rep('é', 1000), 0)");
    assert_eq!(text, "é".repeat(250), "500 bytes");
    assert_eq!(run("error('\\255', 0)"), "\u{fffd}");
}

#[test]
fn a_state_that_is_too_large() {
    let body = |bytes: usize| format!("self.s = string.rep('x', {bytes})");
    assert_eq!(run(&body(65_000)), "MISS");
    let text = run(&body(65_536));
    assert!(text.starts_with("state too large (65"), "{text}");
    assert!(text.ends_with(" bytes, state_max is 65536): use cg.set/cg.map"), "{text}");
}

#[test]
fn a_panic_of_the_server_fails_the_call() {
    let text = "local T = {} function T.new() return {n = 1} end
        function T.run(self) self.n = 2 return cg.get('panic') end
        function T.caught(self) self.n = 2 pcall(cg.get, 'panic') return 1 end
        function T.handled(self) self.n = 2 xpcall(cg.get, print, 'panic') return 1 end
        function T.inner(self) self.n = 2 pcall(coroutine.wrap(function() cg.get('panic') end)) return 1 end
        function T.fine(self) return self.n end return T";
    let mut bench = Bench::new(text);
    assert_eq!(bench.call("new"), "CREATED");
    for method in ["run", "caught", "handled", "inner", "run"] {
        assert_eq!(bench.call(method), format!("SERVER_ERROR script t.{method}: internal error"));
        assert_eq!(bench.call("fine"), "1");
    }
}

#[test]
fn a_method_that_reads_finds_what_migrate_and_create_have_made() {
    let mut bench = Bench::new("return {new = function(n) return {n = n} end}");
    assert_eq!(bench.call("new:5"), "CREATED");
    let state = bench.state.clone();
    let text = |body: &str| {
        format!(
            "local T = {{version = 2, create = {{}}, read = {{}}}}
            function T.new() cg.ttl(9) local s = cg.set() s:put('a') return {{seen = s, n = math.random(1, 1e9)}} end
            function T.migrate(old) old.seen = cg.set() cg.tag('t') return old end
            function T.read.look(self) {body} return self.seen:count() end
            function T.read.number(self) return self.n end
            return T"
        )
    };
    let mut bench = Bench::new(&text(""));
    bench.state.clone_from(&state);
    assert_eq!(bench.call("look"), "0");
    assert_eq!(bench.state, state, "nothing is stored");
    let mut bench = Bench::new(&text("self.seen:put('b')"));
    bench.state.clone_from(&state);
    assert_eq!(bench.call("look"), "SERVER_ERROR script t.look: read.look changed its object");
    // What `create` makes for such a method stays.
    let mut bench = Bench::new(&text(""));
    let made = bench.call("number");
    assert!(bench.state.is_some());
    assert_eq!(bench.call("number"), made);
}

#[test]
fn versions_of_states() {
    let first = Bench::new("return {version = 1, new = function(n) return {n = n} end}");
    let mut bench = first;
    assert_eq!(bench.call("new:5"), "CREATED");
    let state = bench.state.clone();
    let with = |text: &str, call: &str| {
        let mut bench = Bench::new(text);
        bench.state.clone_from(&state);
        (bench.call(call), bench.call("dump"))
    };
    let get = "function T.get(self) return self.n end return T";
    let moved = format!(
        "local T = {{version = 3}} function T.new() return {{}} end
        function T.migrate(old, from) return {{n = old.n + 1, from = from}} end {get}"
    );
    assert_eq!(with(&moved, "get").0, "6");
    let dump = with(&moved, "get").1;
    assert!(dump.contains(r#""n":6"#) && dump.contains(r#""from":1"#), "{dump}");
    let kept = format!("local T = {{version = 2}} function T.new() return {{}} end {get}");
    let unread = "SERVER_ERROR script t.get: the object is of version 1, and version 2 has no migrate: drop it, or make it anew";
    assert_eq!(
        with(&kept, "get"),
        (unread.to_owned(), r#"{"n":"5"}"#.to_owned()),
        "no method gets an old state"
    );
    assert_eq!(with(&kept, "new").0, "CREATED", "a new object takes its place");
    let reads = "local T = {version = 2, read = {}} function T.read.get(self) return self.n end return T";
    assert_eq!(with(reads, "get").0, unread);
    let older = "local T = {version = 1, keys = {add = {1}}} function T.new() return {n = 1} end
        function T.add(self, other) return other.n end return T";
    let mut bench = Bench::new(&older.replace("version = 1", "version = 7"));
    assert_eq!(bench.call("new"), "CREATED");
    bench.others = vec![state.clone()];
    assert_eq!(
        bench.call("add:other"),
        "SERVER_ERROR script t.add: the object is of version 1, and version 7 has no migrate: drop it, or make it anew"
    );
    let bad =
        format!("local T = {{version = 2}} function T.new() return {{}} end function T.migrate() end {get}");
    assert_eq!(with(&bad, "get").0, "SERVER_ERROR script t.get: migrate returns nil instead of a table");
    let same =
        format!("local T = {{}} function T.new() return {{}} end function T.migrate() error('no') end {get}");
    assert_eq!(with(&same, "get").0, "5", "the version is the same");
}

#[test]
fn objects_of_another_version_that_a_method_reads() {
    let first = "local T = {} function T.new(n) return {n = tonumber(n)} end return T";
    let mut bench = Bench::new(first);
    assert_eq!(bench.call("new:7"), "CREATED");
    let state = bench.state.clone();
    let text = "local T = {version = 2, keys = {add = {1}, peek = {1}, hold = {1}}, read = {}}
        function T.new(n) return {count = tonumber(n)} end
        function T.migrate(old, from)
            cg.ttl(9) cg.tag('t') cg.once('token') cg.event('moved')
            local seen = cg.set()
            seen:put('a', 'b')
            return {count = old.n * 10, from = from, seen = seen}
        end
        function T.add(self, other) self.count += other.count + other.seen:count() return self.count end
        function T.read.peek(self, other) return {self.count, other.count, other.from, other.seen:count()} end
        function T.hold(self, other) other.count = 1 end
        return T";
    let mut bench = Bench::new(text);
    assert_eq!(bench.call("new:1"), "CREATED");
    let own = bench.state.clone();
    bench.others = vec![state.clone()];
    assert_eq!(bench.call("peek:other"), "1\r\n70\r\n1\r\n2\r\n", "a method that reads reads it so");
    assert_eq!(bench.state, own);
    let (reply, done) = bench.call_done("add:other");
    assert_eq!(reply, "73");
    let change = done.change.expect("the count");
    assert!(change.tags.is_empty() && change.fields.is_empty(), "nothing of the other object: {change:?}");
    assert_eq!((done.expires_ms, done.after), (None, Vec::new()));
    assert!(bench.call("hold:other").ends_with("attempt to modify a readonly table"));
    // And if both are of the older version.
    bench.state = state;
    assert_eq!(bench.call("peek:other"), "70\r\n70\r\n1\r\n2\r\n");
}

#[test]
fn objects_that_a_method_reads() {
    let text = "local T = {keys = {sum = {1, 2}}}
        function T.new(n) return {n = tonumber(n), list = {1}} end
        function T.sum(self, a, b) return self.n + (a and a.n or 0) + (b and b.n or 0) end
        T.read = {}
        function T.spoil(self, a) a.n = 1 end
        function T.deep(self, a) table.insert(a.list, 1) end
        T.keys.spoil = {1} T.keys.deep = {1}
        return T";
    let mut bench = Bench::new(text);
    assert_eq!(bench.call("new:7"), "CREATED");
    let other = bench.state.clone();
    assert_eq!(bench.call("new:1"), "CREATED");
    bench.others = vec![other.clone(), None];
    assert_eq!(bench.call("sum:one:two"), "8");
    bench.others = vec![other.clone(), other.clone()];
    assert_eq!(bench.call("sum:one:two"), "15");
    bench.others = vec![other];
    assert_eq!(bench.call("sum:one"), "8");
    let read_only = "attempt to modify a readonly table";
    assert_eq!(bench.call("spoil:one"), format!("SERVER_ERROR script t.spoil: t.luau:5: {read_only}"));
    assert_eq!(bench.call("deep:one"), format!("SERVER_ERROR script t.deep: t.luau:6: {read_only}"));
}

#[test]
fn objects_that_are_made_by_any_method() {
    let text = |create: &str| {
        format!(
            "local T = {{create = {create}}}
            function T.new(limit, window) if limit == '0' then return nil end return {{n = tonumber(limit), w = window}} end
            function T.take(self) self.n -= 1 return self.n .. tostring(self.w) end
            T.read = {{left = function(self) return self.n end}}
            return T"
        )
    };
    for create in ["{100, 'hour'}", "{limit = 100, window = 'hour'}", "{'100', window = 'hour'}"] {
        let mut bench = Bench::new(&text(create));
        assert_eq!(bench.call("left"), "100");
        assert!(bench.state.is_some(), "a method that reads makes it as any other");
        assert_eq!(bench.call("take"), "99hour");
        assert_eq!(bench.call("take"), "98hour");
    }
    for (create, problem) in [
        ("{limits = 1}", "create.limits: new has no parameter limits"),
        ("{window = 'hour'}", "create: new takes [limit] [window]: none before the last may be left out"),
        ("{{}}", "create: the arguments of new are strings and numbers"),
        ("{0}", "create: new refuses these arguments"),
        ("{1, 2, 3}", "create: CLIENT_ERROR t.new: takes [limit] [window]"),
        ("5", "create must be a table: the arguments of new"),
    ] {
        assert_eq!(problems(&text(create)), [format!("t.luau:1: {problem}")], "{create}");
    }
}

#[test]
fn replies_in_the_form_of_cacheismo() {
    let mut bench = Bench::new(QUOTA);
    bench.settings.compat = true;
    assert_eq!(bench.call("addandcheck:1"), "ERROR_CACHE_MISS");
    assert_eq!(bench.call("new:x"), "NOT_CREATED");
    assert_eq!(bench.state, None);
}

#[test]
fn an_object_is_replaced_unless_the_type_says_no() {
    let mut bench = Bench::new("return {new = function(n) return {n = n} end}");
    assert_eq!([bench.call("new:1"), bench.call("new:2")], ["CREATED", "CREATED"]);
    assert_eq!(bench.call("dump"), r#"{"n":"2"}"#);
    let mut bench = Bench::new("return {create_only = true, new = function(n) return {n = n} end}");
    assert_eq!(bench.call("new:1"), "CREATED");
    assert_eq!(bench.call("new:2"), "CLIENT_ERROR t.new: the object exists");
    assert_eq!(bench.call("dump"), r#"{"n":"1"}"#);
}

#[test]
fn what_a_source_must_not_return() {
    let names = "1 to 16 lower case letters, digits and _, the first one a letter";
    let with = |entry: &str| format!("local T = {{new = function() return {{}} end}} {entry} return T");
    for (entry, problem) in [
        ("T.x = 1".to_owned(), "x is a number: a type has functions, and read, version, ttl, create, create_only, evict, migrate and keys".to_owned()),
        ("T[1] = print".to_owned(), "has an entry under a number: entries have names".to_owned()),
        ("T.drop = print".to_owned(), "drop: every object has a method of this name: choose another one".to_owned()),
        ("T.methods = print".to_owned(), "methods: every object has a method of this name: choose another one".to_owned()),
        ("T.ttl = print".to_owned(), "ttl: every object has a method of this name: choose another one".to_owned()),
        ("T.addAndCheck = print".to_owned(), format!("method \"addAndCheck\": a method is named as {names}")),
        ("T.a23456789_1234567 = print".to_owned(), format!("method \"a23456789_1234567\": a method is named as {names}")),
        ("T.version = 0".to_owned(), "version must be a whole number from 1 to 65535".to_owned()),
        ("T.version = 65536".to_owned(), "version must be a whole number from 1 to 65535".to_owned()),
        ("T.version = 1.5".to_owned(), "version must be a whole number from 1 to 65535".to_owned()),
        ("T.ttl = -1".to_owned(), "ttl must be whole seconds from 0 to 4294967295".to_owned()),
        ("T.evict = 'maybe'".to_owned(), "evict must be \"never\" or \"normal\"".to_owned()),
        ("T.create_only = 1".to_owned(), "create_only must be true or false".to_owned()),
        ("T.read = {x = 1}".to_owned(), "read.x is a number, not a function".to_owned()),
        ("T.a = print T.read = {a = print}".to_owned(), "a and read.a: two methods of one name".to_owned()),
        ("T.keys = {a = {1}}".to_owned(), "keys.a: there is no method a with an object".to_owned()),
    ] {
        let found = problems(&with(&entry));
        assert!(found.iter().any(|one| one.ends_with(&problem)), "{entry}: {found:?}");
    }
    for entry in [
        "T.version = 65535",
        "T.ttl = 4294967295",
        "T.evict = 'never'",
        "T.a23456789_123456 = print",
        "T.ttl = 0",
        "for _, name in {'one', 'two'} do T[name] = function(self, other) end end T.keys = {one = {1}}",
        "T.read = {one = function(self, other) end} T.keys = {one = {1}}",
    ] {
        assert_eq!(problems(&with(entry)), Vec::<String>::new(), "{entry}");
    }
    assert_eq!(problems("return {}"), ["t.luau:1: the table that it returns has no methods"]);
    assert_eq!(problems("return 5"), ["t.luau:1: returns a number instead of a table of methods"]);
    assert_eq!(problems(""), ["t.luau:1: returns nil instead of a table of methods"]);
    assert_eq!(problems("local x = 1\nreturn nil"), ["t.luau:2: returns nil instead of a table of methods"]);
}

#[test]
fn more_types_than_a_server_has_names_for() {
    let types = (0..101).map(|number| SourceFile {
        path: format!("own/t{number}.luau").into(),
        ..source(&format!("t{number}"), "return {new = function() return {} end}")
    });
    let sources = Sources { types: types.collect(), ..Sources::default() };
    let problems = Scripts::load(&sources, &Limits::default()).unwrap_err();
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["own: has 101 types, at most 100"]);
}

#[test]
fn what_a_source_must_not_return_has_its_line() {
    let text = "local T = {
            ttl = -1,
            read = {
                left = 5,
            },
            create = { 1, 2 },
        }
        function T.new(a) return {} end
        function T.drop(self) end
        T.helper = {}
        T['addTo'] = T.new
        function T.m(self) end
        function T.read.m(self) end
        T.keys = {
            m = 1,
            none = {1},
        }
        return T";
    let found = problems(text);
    let mut lines: Vec<&str> = found.iter().filter_map(|one| one.split(':').nth(1)).collect();
    lines.sort_by_key(|line| line.parse::<usize>().ok());
    assert_eq!(lines, ["2", "4", "9", "10", "11", "13", "15", "16"], "{found:#?}");
    let own =
        |entry: &str| format!("local T = {{}}\nfunction T.new(x: string) return {{}} end\n{entry}\nreturn T");
    for (entry, line) in [
        ("T.create = {}", 3),
        ("T.version = 0", 3),
        ("T.evict = 1", 3),
        ("T.create = {y = 1}", 3),
        ("T.read = {[1] = T.new}", 3),
        ("T[1] = T.new", 4),
    ] {
        let found = problems(&own(entry));
        assert!(found.len() == 1 && found[0].starts_with(&format!("t.luau:{line}: ")), "{entry}: {found:?}");
    }
    assert_eq!(problems("local x = nil\nreturn x.y"), ["t.luau:2: attempt to index nil with 'y'"]);
}
#[test]
fn errors_of_the_library_are_caught_as_strings() {
    for (body, text) in [
        ("local _, e = pcall(cg.get, '') return type(e)", "string"),
        (
            "local _, e = pcall(function() cg.get('') end) return e",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        ("local _, e = pcall(cg.get, '') return e", "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes"),
        ("local _, e = pcall(cg.get, '') return string.find(e, 'cg.get', 1, true)", "11"),
        ("local _, e = pcall(cg.json.decode, '{') return e .. '!' == e", "0"),
        ("local _, e = pcall(cg.number, 'x', 1) return e .. '!'", "arg 1 must be a number!"),
        ("local _, e = pcall(cg.fail, 'no') return tostring(e == 'no') .. type(e)", "truestring"),
        ("local _, e = pcall(function() cg.set():nothing() end) return type(e)", "string"),
        ("local _, e = pcall(function() return cg.map():get() end) return e", "t.luau:2: map:get: takes key"),
        ("return (select(2, pcall(require, {}))):sub(1, 14)", "t.luau:2: bad "),
        (
            "local _, e = xpcall(cg.get, function(e) return type(e) .. ' ' .. e end, '') return e",
            "string t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        ("return (select(2, xpcall(error, cg.get, '')))", "error in error handling"),
        (
            "local _, e = coroutine.resume(coroutine.create(function() cg.get('') end)) return e",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        (
            "local c = coroutine.create(cg.get) local _, e = coroutine.resume(c, '') return e",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        (
            "local c = coroutine.create(cg.fail) coroutine.resume(c, 'no') local ok, e = coroutine.close(c) return tostring(ok) .. type(e)",
            "falsestring",
        ),
        (
            "local _, e = pcall(coroutine.wrap(function() cg.get('') end)) return e",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        // Caught twice, and raised again.
        (
            "local _, e = pcall(function() local _, e = pcall(cg.get, '') error(e, 0) end) return e",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        (
            "local _, e = pcall(cg.get, '') error(e, 0)",
            "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes",
        ),
        ("cg.get('')", "t.luau:2: cg.get: argument 1 must have 1 to 250 bytes"),
        // What scripts raise stays what it is.
        ("local _, e = pcall(error, {code = 5}) return e.code", "5"),
        ("local _, e = pcall(error, cg.value('v', 7)) return e", "v"),
        ("local t = {} local _, e = pcall(error, t) return e == t", "1"),
        ("local _, e = xpcall(error, function(e) return e.code end, {code = 5}) return e", "5"),
        ("return select('#', pcall(function() return false, cg.value('v') end))", "3"),
        ("local ok, e = pcall(function() return cg.value('v') end) return e", "v"),
    ] {
        assert_eq!(run(body), text, "{body}");
    }
    // Lint refuses the plain form.
    assert_eq!(run("local f = pcall f()"), "t.luau:2: not enough arguments to pcall");
    assert_eq!(run("local f = xpcall f(error)"), "t.luau:2: not enough arguments to xpcall");
}

#[test]
fn failures_that_are_raised_again_are_the_callers() {
    for (body, text) in [
        ("local _, e = pcall(cg.fail, 'no') error(e, 0)", "CLIENT_ERROR t.run: no"),
        ("local _, e = pcall(cg.fail, 'no') error(e)", "CLIENT_ERROR t.run: no"),
        ("local _, e = pcall(cg.number, 'x', 2) error(e)", "CLIENT_ERROR t.run: arg 2 must be a number"),
        ("xpcall(cg.fail, function(e) error(e, 0) end, 'no')", "MISS"),
        ("local _, e = pcall(cg.fail, 'x.luau:3: no') error(e)", "CLIENT_ERROR t.run: x.luau:3: no"),
        (
            "coroutine.wrap(function() local _, e = pcall(cg.fail, 'no') error(e) end)()",
            "CLIENT_ERROR t.run: no",
        ),
        ("coroutine.wrap(cg.fail)('no')", "CLIENT_ERROR t.run: no"),
        ("local _, e = pcall(cg.fail, 'no') error('other')", "t.luau:2: other"),
        ("local _, e = pcall(cg.fail, 'no') error('so: ' .. e)", "t.luau:2: so: no"),
        ("error('no')", "t.luau:2: no"),
    ] {
        assert_eq!(run(body), text, "{body}");
    }
}

#[test]
fn errors_of_limits_have_their_line() {
    for (body, text) in [
        ("for _ = 1, 251 do cg.set() end", "t.luau:2: cg.set: an object has at most 250 collections"),
        (
            "self.list = {} for n = 1, 251 do self.list[n] = cg.set() end",
            "t.luau:2: cg.set: an object has at most 250 collections",
        ),
        (
            "local f = cg.set for _ = 1, 251 do pcall(f) end f()",
            "t.luau:2: cg.set: an object has at most 250 collections",
        ),
        (
            "cg.map():put('k', string.rep('x', 2^20))",
            "t.luau:2: map:put: a call may change at most 1048576 bytes of fields",
        ),
        ("cg.ring(5000)", "t.luau:2: cg.ring: has arguments that its type refuses"),
        ("for n = 1, 9 do cg.tag('t' .. n) end", "t.luau:2: cg.tag: an object has up to 8 tags"),
        ("require({})", "t.luau:2: bad argument #1"),
        ("cg.set()[{}]()", "t.luau:2: attempt to call"),
        ("cg.set().x.y = 1", "t.luau:2: attempt to index nil with 'y'"),
    ] {
        let reply = run(body);
        assert!(reply.starts_with(text), "{body}: {reply}");
    }
    for new in [
        "local t = {} for n = 1, 251 do t[n] = cg.set() end return t",
        "return (function() for _ = 1, 251 do cg.set() end return {} end)()",
        "for _ = 1, 250 do cg.set() end return {x = cg.set()}",
        "coroutine.wrap(function() for _ = 1, 251 do cg.set() end end)() return {}",
    ] {
        let mut bench = Bench::new(&format!("return {{\nnew = function() {new} end}}"));
        let text = "SERVER_ERROR script t.new: t.luau:2: cg.set: an object has at most 250 collections";
        assert_eq!(bench.call("new"), text, "{new}");
    }
}
