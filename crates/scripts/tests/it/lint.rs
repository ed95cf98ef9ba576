//! What lint reports, and that it reports nothing in sources that are right.

use cattlegrid_scripts::{Problem, Severity, SourceFile, Sources, globals, lint};

fn source(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), path: format!("{name}.luau").into(), text: text.to_owned() }
}

/// The problems of a type, `error LINE: TEXT`.
fn problems(text: &str) -> Vec<String> {
    shown(&lint(&Sources { types: vec![source("t", text)], ..Sources::default() }, &globals()))
}

fn shown(problems: &[Problem]) -> Vec<String> {
    let show = |one: &Problem| {
        let severity = if one.severity == Severity::Error { "error" } else { "warning" };
        format!("{severity} {}: {}", one.line.map_or_else(String::new, |line| line.to_string()), one.text)
    };
    problems.iter().map(show).collect()
}

#[test]
fn a_syntax_error_has_its_line_and_what_was_expected() {
    let found = problems("local T = {}\nfunction T.new()\n  if x then\nreturn T");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("error 4: Expected 'end'"), "{found:?}");
}

#[test]
fn an_unknown_global_is_an_error_with_the_nearest_name() {
    assert_eq!(
        problems("local limit = 1\nreturn { a = function(self) return limti + foo end }"),
        [
            "error 2: unknown global limti: did you mean limit?",
            "error 2: unknown global foo: define it before this line with `local`",
        ]
    );
    assert_eq!(
        problems("return { a = function(self) return tostrng(self) end }"),
        ["error 1: unknown global tostrng: did you mean tostring?"]
    );
    // Not yet, or no longer, seen.
    assert_eq!(
        problems("local function a() return b() end local function b() end return { a = a }").len(),
        1
    );
    assert_eq!(problems("do local x = 1 end return { a = x }").len(), 1);
    assert_eq!(problems("for i = 1, 2 do end return { a = i }").len(), 1);
    assert_eq!(problems("local x = x return { a = x }").len(), 1);
    for name in ["io", "load", "loadstring", "getfenv", "_G", "os.execute", "os.getenv"] {
        assert_eq!(problems(&format!("return {{ a = {name} }}")).len(), 1, "{name}");
    }
}

#[test]
fn an_unknown_member_of_a_library_is_an_error() {
    assert_eq!(
        problems("return { a = function(self) return string.trim(self.x), cg.json.decod('') end }"),
        [
            "error 1: there is no string.trim",
            "error 1: there is no cg.json.decod: did you mean cg.json.decode?",
        ]
    );
    assert_eq!(
        problems("local string = { trim = 1 } return { a = function(self) return string.trim end }"),
        [""; 0]
    );
    assert_eq!(problems("return { a = function(self) return self.string.trim end }"), [""; 0]);
}

#[test]
fn an_assignment_to_a_global_is_an_error() {
    let text =
        |name: &str| format!("{name} is a global, and globals cannot be assigned: write `local {name}`");
    assert_eq!(
        problems("count = 0\nfunction new() end\nprint += 1\nreturn { a = new, b = count }"),
        [
            format!("error 1: {}", text("count")),
            format!("error 2: {}", text("new")),
            format!("error 3: {}", text("print")),
        ]
    );
}

#[test]
fn state_outside_of_objects_is_a_warning() {
    let found = problems(
        "local count = 0\nreturn { a = function(self, x)\ncount += 1\nreturn function() count = x end end }",
    );
    assert_eq!(
        found,
        [
            "warning 3: count is kept outside of objects: each thread has its own, and it is lost at any time; keep it in the object",
            "warning 4: count is kept outside of objects: each thread has its own, and it is lost at any time; keep it in the object",
        ]
    );
    for text in [
        "local T = {} T.x = function(self) local n = 0 local function up() n += 1 end up() return n end return T",
        "local T = {} function T.new() return {} end for i = 1, 3 do T['m' .. i] = T.new end return T",
        "local a a = 1 return { a = function() return a end }",
    ] {
        assert_eq!(problems(text), [""; 0], "{text}");
    }
}

#[test]
fn tests_may_use_the_library_of_tests() {
    let text = "local t = cg.test t.clock(0) cg.test.eq(1, 1) count = 1";
    let sources = Sources { tests: vec![source("t", text)], ..Sources::default() };
    assert_eq!(
        shown(&lint(&sources, &globals())),
        ["error 1: count is a global, and globals cannot be assigned: write `local count`"]
    );
    assert_eq!(
        problems("return { a = function(self) return cg.test end }"),
        ["error 1: there is no cg.test"]
    );
}

#[test]
fn problems_have_a_largest_number() {
    let lines: Vec<String> = (0..200).map(|number| format!("local x = unknown_{number}")).collect();
    let text = lines.join("\n");
    assert_eq!(problems(&text).len(), 50);
}

/// Each is a source that Luau accepts.
const RIGHT: &[&str] = &[
    "--!strict\nlocal a, b = 7 // 2, 1 a //= 3 a ^= 2 a %= 5 a += b a ..= 'x' return a",
    "local n = 0b1010_1111 + 0xFF_FF + 1e-5 + .5 + 1_000 + 1E+3 return n",
    "local s = 'a\\z\n   b' .. 'x\\u{1F600}' .. [=[ ]] ]=] .. [[x]] .. \"\\\"\" return s",
    "--[==[ x ]] ]==] local a = 1 -- x [[ return\nreturn a",
    "type F<T, U... = ...any> = (T, U...) -> ...T",
    "type P<T> = { x: number, y: T?, [string]: any } export type Fn = (a: number, ...string) -> (number, ...any)",
    "type T = { read x: number, write y: string }",
    "type U = | 'a' | 'b' | nil",
    "type A = { number }  type B = { { string } } type C = {} type D = () -> ()",
    "type function Foo(t) return t end",
    "type G<T = string> = { [string]: T }",
    "type Y = (number | string) & any type X = typeof(print) type Z = F<string>? type F<T> = T",
    "local function v<T>(...: number): ...number local a, b = ... return select('#', ...), a, b end return v",
    "local continue = 1 continue = 2 local type = type type('x') local export = 3 export = 4 return continue",
    "repeat local x = cg.now() until x > 3",
    "local t = { f = function() end; 1, 2; [3] = 4, ['a'] = 5, } return t",
    "local t: any = {} t.x.y:z(1)(2)[3].q = 5 return t",
    "local f, g: any = print, print; (f or g)(1)",
    "local t: any = {} t.f{1}{2} 'a' 'b' [[c]] 'd' return t",
    "local function native() end @native local function g() native() end return g",
    "@native local function f() end @native @checked local function g() f() end return g",
    "local x = if cg.now() > 1 then 1 elseif cg.now() > 2 then 2 else 3 return x",
    "local f = function<T>(x: T, ...: T): (T, ...T) return x, ... end return f",
    "local y: typeof(setmetatable({}, {})) = nil return y",
    "local z = (1 :: any) :: { [string]: number } | nil return -z :: any",
    "for _, v in {1, 2} do print(v) end for k, v in {} :: any do print(k, v) end for i = 1, 10, 2 do print(i) end",
    "for i = 1, 3 do if i == 2 then continue end print(i) end while true do break end",
    "return",
    "",
    "local x: (a: number, b: string?) -> () = print :: any return x",
    "local x, y = 1, 2 local s = `a\\{b {x .. `{y}`} c` .. `` .. `x` .. `{ ({a = 1}).a }` return s",
    "local a = { b = { c = {} } } function a.b.c:d() return self end function a.b.e() end return a",
    "local f: <T>(T) -> T = nil :: any return f",
    "local x: 'lit' = 'lit' local t: {x: number, [string]: number} = {} return x, t",
    "local a, b = 1, 2 a, b = b, a return not a == nil, #{1} + -b ^ 2 .. 'a'",
    "do local a; end; if nil then elseif 1 then else end",
    "local function f(): (number, ...string) return 1 end local function g(a, b: any?, ...) return f(), a, b, ... end return g",
    "local function even(n) if n == 0 then return true end return (n == 1) end return even",
    "local even, odd function odd(n) return n > 0 and even(n - 1) end function even(n) return n == 0 or odd(n - 1) end return odd",
    "local T = {} T.__index = T function T.new() return setmetatable({}, T) end function T:x() return self.y end return T",
    "return { a = function(self, n: number | string) local t = table.create(3) t[1] = n return #t end }",
    "return (function(...) return ... end)(1, 2)",
    "local ok, err = pcall(function() error('x') end) return ok and err or nil",
    "return { a = function(self) return os.time { year = 2026, month = 1, day = 1 }, os.date('*t').hour end }",
    "return { a = function(self) return ('x'):rep(3), #('a' .. 'b'), (`{1}`):upper() end }",
    "return { a = function(self) for k, v in pairs(self) do self[k] = v end return next(self) end }",
    "return { a = function(self) local b = buffer.create(8) buffer.writeu8(b, 0, 1) return buffer.readu8(b, 0) end }",
    "return { a = function(self) return bit32.band(1, 2, 3), utf8.char(1, 2), math.max(1, 2, 3), math.huge end }",
];

#[test]
fn sources_that_are_right_have_no_problems() {
    for text in RIGHT {
        assert_eq!(problems(text), [""; 0], "{text}");
    }
}

/// Each text is looked for among the locals: not for more names than are reported.
#[test]
fn many_unknown_names_among_many_locals() {
    let one_line = "do local a = z end ".repeat(20_000);
    assert_eq!(problems(&one_line), ["error 1: unknown global z: define it before this line with `local`"]);
    let lines: String =
        (0..20_000).map(|n| ["do local a = zork", &n.to_string(), " end\n"].concat()).collect();
    let found = problems(&lines);
    assert_eq!(found.len(), 50);
    assert_eq!(found[49], "error 50: unknown global zork49: define it before this line with `local`");
}

/// What a local may hold is not known, and is not guessed.
#[test]
fn members_of_locals_have_no_problems() {
    for lib in [
        "a == '1' and { foo = 3 } or string",
        "if a == '1' then { foo = 3 } else string",
        "{ foo = 3 } or string",
        "string",
    ] {
        let text = format!(
            "return {{ a = function(self, a) local lib = {lib} if lib.foo then return lib.foo end lib.bar = 1 end }}"
        );
        assert_eq!(problems(&text), [""; 0], "{text}");
    }
    assert_eq!(problems("local n = 'foo' return { a = function() return string[n] end }"), [""; 0]);
}

/// A function has 200 locals, of which constants take no room when it runs.
#[test]
fn more_constants_than_a_function_has_registers() {
    let list = |one: &dyn Fn(u32) -> String| (0..220).map(one).collect::<Vec<_>>().concat();
    let (constants, sum) = (list(&|n| format!("local C{n} = {n} ")), list(&|n| format!(" + C{n}")));
    let text = format!("{constants} return {{ a = function(self, x) return x{sum} end }}");
    assert_eq!(problems(&text), [""; 0]);
    let text = format!("{constants} local n return {{ a = function() n = 1 return foo end }}");
    let found = problems(&text);
    let all = [
        "warning 1: a local is kept outside of objects: each thread has its own, and it is lost at any time; keep it in the object",
        "error 1: unknown global foo: define it before this line with `local`",
    ];
    assert_eq!(found, all);
}

/// Whatever is left of a source: no panic, and an end.
#[test]
fn a_source_may_end_anywhere() {
    for text in RIGHT {
        for (end, _) in text.char_indices() {
            problems(&text[..end]);
            problems(&text[end..]);
        }
    }
}

#[test]
fn nesting_has_a_limit() {
    for (open, close) in
        [("(", ")"), ("{", "}"), ("not ", ""), ("function() return ", " end"), ("`{", "}`"), ("-- \n", "")]
    {
        for depth in [10, 100_000] {
            problems(&format!("return {}1{}", open.repeat(depth), close.repeat(depth)));
        }
    }
    for repeated in [".a", "()", "[1]", " .. 'x'", " + 1", " :: any"] {
        problems(&format!("local x: any = nil return x{}", repeated.repeat(100_000)));
    }
    // Chains within each other.
    for (around, link, links) in [(400, ".a", 500), (200, ":a()", 700), (400, "()", 500), (900, ".a", 50)] {
        let (open, close) = ("(".repeat(around), format!("{})", link.repeat(links)).repeat(around));
        assert_eq!(problems(&format!("local x: any = nil return {open}x{close}")), [""; 0], "{link}");
    }
    let found = problems(&format!("local x = '' return x{}", " .. x".repeat(90)));
    assert_eq!(found, [""; 0]);
    let found = problems(&format!("local x: any = nil return {}x{}", "(".repeat(40), ")".repeat(40)));
    assert_eq!(found, [""; 0]);
    for (open, close) in [("do ", "end "), ("if x then ", "end "), ("local x: {", "}")] {
        problems(&format!("{}{}", open.repeat(50_000), close.repeat(50_000)));
    }
}

/// A member of a library has an instruction of its own where the compiler's short form has no number for it.
#[test]
fn members_behind_a_thousand_constants_are_found() {
    let many: Vec<String> = (0..1100).map(|n| format!("use('text {n}')\n")).collect();
    let many = many.concat();
    let with = |code: &str| {
        problems(&format!("local function use(text) end\nreturn {{ a = function(self)\n{many}{code}\nend }}"))
    };
    for (code, expected) in [
        ("return string.trim(self.x)", &["there is no string.trim"][..]),
        ("return cg.json.decod('')", &["there is no cg.json.decod: did you mean cg.json.decode?"]),
        ("return cg.jsn.decode('')", &["there is no cg.jsn: did you mean cg.json?"]),
        ("return string.rep('x', 2), cg.json.decode(''), self.trim", &[]),
        // What is read may be another value.
        ("return (self.x or string).trim", &[]),
        ("local s = if self.x then self.x else string\nreturn s.trim", &[]),
        ("local s = string\nif s.trim then return s.trim end", &[]),
        ("local s = self.x and string or (self.x == 1)\nreturn s.trim", &[]),
    ] {
        let expected: Vec<String> = expected.iter().map(|text| format!("error {}: {text}", 1103)).collect();
        assert_eq!(with(code), expected, "{code}");
    }
}
