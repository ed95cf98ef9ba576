//! Calls that would never end, or take all memory.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Bench, problems, source};
use cattlegrid_objects::{FollowUp, Host as _};
use cattlegrid_scripts::{Limits, Scripts, SourceFile, Sources};
use nix::time::{ClockId, clock_gettime};

/// Long enough for the watchdog to be woken up in time on a machine that is busy.
const LIMIT: Duration = Duration::from_millis(100);

/// The processor's time that this thread has used.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every thread has one").into()
}

/// Calls a method with this body: it must be ended within twice the limit, and the next call must run.
#[track_caller]
fn runs_away(body: &str) -> String {
    ends_within(LIMIT, body)
}

/// The same of a method that takes all memory: it has time enough to do so on a slow machine.
#[track_caller]
fn fills_memory(body: &str) {
    assert_eq!(ends_within(LIMIT * 100, body), MEMORY, "{body}");
}

#[track_caller]
fn ends_within(limit: Duration, body: &str) -> String {
    let text = format!(
        "local T = {{}}
        function T.new() return {{n = 1}} end
        function T.run(self) self.n = 2 {body} end
        function T.fine(self) return self.n end
        return T"
    );
    let mut bench = Bench::with(&text, &Limits { time: limit, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    let mut attempts = (1..=3).map(|_| {
        let before = used();
        let reply = bench.call("run");
        (used().saturating_sub(before), reply)
    });
    // On a busy machine the watchdog may be woken up late.
    let in_time = attempts.find(|(took, _)| *took < limit * 2);
    let (_, reply) = in_time.unwrap_or_else(|| panic!("takes more than twice the limit: {body}"));
    assert_eq!(bench.call("fine"), "1", "the object is as it was: {reply}: {body}");
    let line = reply.strip_prefix("SERVER_ERROR script t.run: ").unwrap_or(&reply);
    line.to_owned()
}

const TIME: &str = "took longer than 100 ms";
const MEMORY: &str = "needed more than 16 MiB";

#[test]
fn an_endless_loop() {
    assert_eq!(runs_away("while true do end"), TIME);
    assert_eq!(runs_away("repeat local x = {} until false"), TIME);
    assert_eq!(runs_away("for i = 1, math.huge do end"), TIME);
    assert_eq!(runs_away("for _ in function() return 1 end do end"), TIME);
}

#[test]
fn an_endless_loop_that_catches_errors() {
    assert_eq!(runs_away("while true do pcall(function() while true do end end) end"), TIME);
    assert_eq!(runs_away("while true do pcall(error) end"), TIME);
    assert_eq!(
        runs_away(
            "local function again() return xpcall(again, again) end while true do xpcall(again, again) end"
        ),
        TIME
    );
    assert_eq!(runs_away("local function f() while true do end end while true do xpcall(f, f) end"), TIME);
    assert_eq!(runs_away("pcall(function() while true do end end) return 'caught'"), TIME);
    assert_eq!(runs_away("local function f() pcall(f) pcall(f) end f()"), TIME);
}

#[test]
fn a_pattern_that_backtracks() {
    assert_eq!(runs_away("string.find(string.rep('a', 1000), string.rep('a-', 60) .. 'b')"), TIME);
    assert_eq!(runs_away("string.match(string.rep('a', 50000), '.-.-.-.-b')"), TIME);
    assert_eq!(runs_away("string.gsub(string.rep('(', 60000), '%b()', '')"), TIME);
}

#[test]
fn a_sort_of_many_items() {
    fills_memory("local t = {} for i = 1, 3e6 do t[i] = -i end table.sort(t)");
    let many = "local t = table.create(5e5, 0) for i = 1, #t do t[i] = (i * 7919) % 1000003 end";
    assert_eq!(
        runs_away(&format!("{many} while true do table.sort(t, function(a, b) return a < b end) end")),
        TIME
    );
    assert_eq!(
        runs_away("local t = table.create(5e5, 0) table.sort(t, function() while true do end end)"),
        TIME
    );
}

#[test]
fn a_bomb_of_strings() {
    fills_memory("local s = 'x' while true do s = s .. s end");
    fills_memory("string.rep('x', 1e9)");
    fills_memory("local t = {} for i = 1, 1e9 do t[i] = string.rep('x', i) end");
}

#[test]
fn a_bomb_of_tables() {
    fills_memory("local t = {} while true do t = {t, t} end");
    fills_memory("table.create(6e7, 0)");
    fills_memory("buffer.create(1e9)");
    fills_memory("local t = {} for i = 1, 1e9 do t[i] = {} end");
}

#[test]
fn a_call_ends_though_it_catches_that_memory_is_short() {
    for body in [
        "pcall(string.rep, 'x', 1e9) return 1",
        "while true do pcall(table.create, 6e7, 0) end",
        "return tostring(pcall(buffer.create, 1e9))",
        "return xpcall(function() return string.rep('x', 1e9) end, function() return 'handled' end)",
        "xpcall(string.rep, function() local t = {} while true do t = {t} end end, 'x', 1e9) return 1",
        "xpcall(error, function() local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 100000) .. i end end, 'x') return 1",
        "xpcall(error, function() string.rep('x', 1e9) end) return 1",
        "xpcall(cg.fail, function() return buffer.create(1e9) end, 'x') self.n = 3 return 1",
        "return tostring(pcall(coroutine.wrap(function() return buffer.create(1e9) end)))",
        "return coroutine.wrap(function() return buffer.create(1e9) end)()",
        "return tostring(coroutine.resume(coroutine.create(string.rep), 'x', 1e9))",
        // Functions in Rust.
        "local fill, s = string.rep('x', 15e6), '[' .. string.rep('[],', 3e4) .. '0]' return tostring(pcall(cg.json.decode, s)) .. #fill",
        "pcall(function() pcall(string.rep, 'x', 1e9) end) self.n = 3 return 1",
    ] {
        fills_memory(body);
    }
    let text = "local T = {} function T.new() return {} end
        function T.run() return tostring(pcall(string.rep, 'x', 1e9)) end return T";
    let mut bench = Bench::new(text);
    assert_eq!(bench.call("new"), "CREATED");
    for _ in 0..5 {
        assert_eq!(bench.call("run"), "SERVER_ERROR script t.run: needed more than 16 MiB");
    }
    assert_eq!(bench.call("run"), "SERVER_ERROR script disabled: t.run");
    let caught = "pcall(string.rep, 'x', 1e9) return {new = function() return {} end}";
    assert_eq!(problems(caught), ["t.luau: needed more than 16 MiB to load"]);
}

#[test]
fn functions_that_catch_errors_are_those_of_luau() {
    let text = "local T = {} function T.new() return {} end
        local function all(...) local t = {...} for i = 1, select('#', ...) do t[i] = tostring(t[i]) end return table.concat(t, ' ') end
        local function adds(a, b) local c = coroutine.yield(a + b) if c == 'no' then error('no', 0) end return c, 'end' end
        function T.pcall() return all(pcall(adds)) end
        function T.value() return all(pcall(function(...) return ... end, 1, nil, false)) end
        function T.xvalue() return all(xpcall(function(...) return ... end, print, 1, nil, false)) end
        function T.handled() return all(xpcall(error, function(e) return e .. '!', 2 end, 'x')) end
        function T.nohandler() return all(pcall(xpcall, error)) end
        function T.nothing() return all(pcall(pcall)) end
        function T.yields() local co = coroutine.create(adds) return all(coroutine.resume(co, 1, 2)) .. ', ' .. all(coroutine.resume(co, 'yes')) .. ', ' .. all(coroutine.resume(co)) end
        function T.wraps()
          local f = coroutine.wrap(adds)
          return all(f(1, 2)) .. ', ' .. all(f('yes')) .. ', ' .. all(pcall(f))
        end
        function T.wraperror() local f = coroutine.wrap(adds) f(1, 2) return all(pcall(f, 'no')) end
        function T.wraptable() local f = coroutine.wrap(error) return all(pcall(f, {})) end
        function T.nowrap() return all(pcall(coroutine.wrap, 1)) end
        return T";
    let mut bench = Bench::with(text, &Limits { time: LIMIT * 100, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    for (call, reply) in [
        ("pcall", "false t.luau:3: attempt to perform arithmetic (add) on nil"),
        ("value", "true 1 nil false"),
        ("xvalue", "true 1 nil false"),
        ("handled", "false x!"),
        ("nohandler", "false not enough arguments to xpcall"),
        ("nothing", "false not enough arguments to pcall"),
        ("yields", "true 3, true yes end, false cannot resume dead coroutine"),
        ("wraps", "3, yes end, false cannot resume dead coroutine"),
        ("wraperror", "false no"),
        ("wraptable", "false table"),
        ("nowrap", "false invalid argument #1 to 'wrap' (function expected, got number)"),
    ] {
        assert_eq!(bench.call(call), reply, "{call}");
    }
}

#[test]
fn a_call_has_all_memory_whatever_ran_before() {
    let text = "local T = {} local kept
        function T.new() return {} end
        function T.keep(_, n) kept = {kept, string.rep('x', n) .. math.random()} return 1 end
        function T.many(_, n) local t = {} for i = 1, tonumber(n) do t[i] = {i} end return #t end
        function T.text(_, n) cg.log('once') return #string.rep('x', n) end return T";
    let mut bench = Bench::with(text, &Limits { time: LIMIT * 100, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    // Locals of a source keep what they will.
    for _ in 0..100 {
        assert_eq!(bench.call("keep:900000"), "1");
    }
    let bytes = |bench: &Bench| bench.scripts.usage().vm_bytes;
    assert!(bytes(&bench) < 8 << 20, "{}", bytes(&bench));
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(bench.call("keep:900000"), "1");
        }
        let (reply, done) = bench.call_done("text:15900000");
        assert_eq!(reply, "15900000");
        assert_eq!(done.after, [FollowUp::Log("once".to_owned())]);
    }
    // What calls leave, though it is not much.
    for _ in 0..10 {
        for name in ["many:19000", "many:15000", "many:20000", "text:14300000"] {
            assert_eq!(bench.call(name), name.split_once(':').unwrap().1);
        }
    }
    assert_eq!(bench.call("text:17000000"), "SERVER_ERROR script t.text: needed more than 16 MiB");
}

#[test]
fn deep_recursion() {
    let text = runs_away("local function f() return 1 + f() end return f()");
    assert!(text.contains("t.luau:3: stack overflow"), "{text}");
    let text = runs_away("local function f() return (pcall(f)) end while true do f() end");
    assert_eq!(text, TIME);
    let text = runs_away("local function f(s) return string.gsub(s, '.', f) end return f('x')");
    assert!(text.contains("stack overflow"), "{text}");
    assert_eq!(
        runs_away(
            "local t = setmetatable({}, {}) getmetatable(t).__index = function(_, k) return t[k + 1] end while true do pcall(function() return t[1] end) end"
        ),
        TIME
    );
}

#[test]
fn a_coroutine_that_never_yields() {
    assert_eq!(runs_away("coroutine.wrap(function() while true do end end)()"), TIME);
    assert_eq!(
        runs_away(
            "local c = coroutine.create(function() while true do pcall(coroutine.yield) end end) while true do coroutine.resume(c) end"
        ),
        TIME
    );
    assert_eq!(
        runs_away("local function f() return coroutine.wrap(f)() end while true do pcall(f) end"),
        TIME
    );
}

#[test]
fn the_limit_of_time_at_its_extremes() {
    let text = "local T = {} function T.new() return {} end
        function T.run() local n = 0 while true do n += 1 end end
        function T.fine() return 1 end return T";
    let mut bench = Bench::with(text, &Limits { time: Duration::ZERO, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("run"), "SERVER_ERROR script t.run: took longer than 0 ms");
    assert_eq!(bench.call("fine"), "1");
    let mut bench = Bench::with(text, &Limits { time: Duration::MAX, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("fine"), "1");
}

#[test]
fn the_limit_of_memory_at_its_extremes() {
    let text = "local T = {} function T.new() return {} end
        function T.run(_, n) return #string.rep('x', n) end return T";
    let mut bench =
        Bench::with(text, &Limits { memory_bytes: usize::MAX, time: LIMIT * 100, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("run:50000000"), "50000000");
    let mut bench =
        Bench::with(text, &Limits { memory_bytes: 1 << 20, time: LIMIT * 100, ..Limits::default() });
    assert_eq!(bench.call("new"), "CREATED");
    assert_eq!(bench.call("run:800000"), "800000");
    assert_eq!(bench.call("run:800000"), "800000", "what the first call has left is freed");
    assert_eq!(bench.call("run:1200000"), "SERVER_ERROR script t.run: needed more than 1 MiB");
    assert_eq!(bench.call("run:800000"), "800000");
}

#[test]
fn functions_of_libraries_that_have_no_safepoint() {
    let search =
        "t.luau:3: string too long for this pattern: the product of their lengths is at most 4194304";
    let long = "local s, p = string.rep('a', 2000000), string.rep('a', 1000000) .. 'b' while true do";
    assert_eq!(runs_away(&format!("{long} string.find(s, p, 1, true) end")), search);
    assert_eq!(runs_away(&format!("{long} s:split(p) end")), search);
    assert_eq!(runs_away(&format!("{long} s:match('[' .. p .. ']*') end")), search);
    assert_eq!(runs_away(&format!("{long} s:gmatch('[' .. p .. ']*')() end")), search);
    assert_eq!(runs_away(&format!("{long} s:gsub('[' .. p .. ']*', '') end")), search);
    let few = "local s, p = string.rep('a', 30000), string.rep('b', 100) while true do";
    assert_eq!(runs_away(&format!("{few} s:match('[' .. p .. ']*') end")), TIME);
    assert_eq!(runs_away(&format!("{few} s:gsub('[^' .. p .. ']*c', '') end")), TIME);
    assert_eq!(runs_away(&format!("{few} string.find(s, p, 1, true) end")), TIME);
    assert_eq!(runs_away(&format!("{few} s:split(p) end")), TIME);
    let moved = "t.luau:3: too many elements to move: at most 131072";
    assert_eq!(runs_away("table.move({}, 1, 2^31 - 2, 1, {})"), moved);
    assert_eq!(runs_away("table.move({}, -2^31, 0, -2^31)"), moved);
    assert_eq!(runs_away("local t = {} while true do table.move(t, 1, 131072, 1) end"), TIME);
    let mib = "local s = string.rep('x', 2^21)";
    for body in [
        "string.rep('', 2^31 - 1)",
        "string.rep('x', 2^22)",
        "s:reverse():upper():lower()",
        "utf8.len(s) utf8.offset(s, -1) utf8.codes(s)",
        "tonumber(s) tonumber(s, 36)",
        "s:byte(1, 7000) s:sub(2) string.format('%s', s)",
        "pcall(string.pack, 's4', s) pcall(string.unpack, 'z', s)",
        "buffer.fill(buffer.create(2^21), 0, 1) buffer.fromstring(s)",
        "table.concat(table.create(2e5, 'x'), ',')",
        "table.clone(table.create(2e5, 1)) table.clear(table.create(2e5, 1))",
        "table.find(table.create(2e5, 1), 2) table.maxn(table.create(2e5, 1))",
        "local t = table.create(2e5, 1) for i = 1, 100 do table.insert(t, 1, 0) table.remove(t, 1) end",
        "s:gsub('.', 'yy')",
        "s:gsub('x', {x = 'y'})",
        "s:split('')",
        "cg.hash(s) pcall(cg.json.encode, s)",
        "pcall(cg.json.decode, string.rep('[', 1000))",
        "local t = {} for i = 1, 2e4 do t['k' .. i] = i end cg.json.decode(cg.json.encode(t))",
    ] {
        let text = runs_away(&format!("{mib} while true do {body} end"));
        assert!(text == TIME || text == MEMORY, "{body}: {text}");
    }
}

#[test]
fn the_fifth_breach_within_a_minute_disables_a_method() {
    let text = "local T = {} function T.new() return {} end
        function T.run() while true do end end
        function T.eat() string.rep('x', 1e9) end
        function T.fine() return 1 end return T";
    let limits = Limits { time: Duration::from_millis(40), ..Limits::default() };
    let mut bench = Bench::with(text, &limits);
    assert_eq!(bench.call("new"), "CREATED");
    let over = "SERVER_ERROR script t.run: took longer than 40 ms";
    let mut events = Vec::new();
    for second in [0, 1, 1, 2] {
        bench.now_ms = 1_700_000_000_000 + second * 1000;
        let (reply, done) = bench.call_done("run");
        assert_eq!(reply, over);
        events.extend(done.after);
    }
    let logged = FollowUp::Log("script t.run: took longer than 40 ms (seed of math.random: 42)".to_owned());
    assert_eq!(events, [logged.clone(), logged.clone(), logged], "one line a second");
    let (reply, done) = bench.call_done("run");
    assert_eq!(reply, over);
    let json = r#"{"type":"t","method":"run","reason":"took longer than 40 ms"}"#.to_owned();
    let line = "script t.run: took longer than 40 ms: disabled until objects are loaded again".to_owned();
    assert_eq!(
        done.after,
        [FollowUp::Log(line), FollowUp::Event { name: "script_disabled".to_owned(), json }]
    );
    for _ in 0..3 {
        let (reply, done) = bench.call_done("run");
        assert_eq!(reply, "SERVER_ERROR script disabled: t.run");
        assert!(done.after.is_empty(), "said once");
    }
    assert_eq!(bench.call("fine"), "1", "other methods go on");
    let mut anew = Bench::with(text, &limits);
    anew.state.clone_from(&bench.state);
    assert_eq!(anew.call("run"), over, "the same sources, loaded again");
    for _ in 0..5 {
        assert_eq!(anew.call("eat"), "SERVER_ERROR script t.eat: needed more than 16 MiB");
    }
    assert_eq!(anew.call("eat"), "SERVER_ERROR script disabled: t.eat");
}

#[test]
fn what_new_takes_for_an_absent_object_counts_for_new() {
    // It runs away in the time of calls, not in that of the attempt when it is loaded.
    let text = "local T = {create = {}} function T.new() if cg.now() < 1.75e9 then while true do end end return {} end
        function T.fine() return 1 end
        function T.run() while true do end end return T";
    let mut bench = Bench::with(text, &Limits { time: Duration::from_millis(40), ..Limits::default() });
    for _ in 0..5 {
        assert_eq!(bench.call("fine"), "SERVER_ERROR script t.new: took longer than 40 ms");
    }
    for method in ["fine", "run", "new"] {
        assert_eq!(bench.call(method), "SERVER_ERROR script disabled: t.new");
    }
    bench.now_ms = 1_760_000_000_000;
    let other = Bench::with(text, &Limits::default());
    bench.state = {
        let mut made = Bench::on(Arc::clone(&other.scripts));
        made.now_ms = bench.now_ms;
        assert_eq!(made.call("new"), "CREATED");
        made.state
    };
    assert_eq!(bench.call("fine"), "1", "an object that exists needs no new");
    assert_eq!(bench.call("run"), "SERVER_ERROR script t.run: took longer than 40 ms");
}

#[test]
fn threads_share_the_count_of_breaches_and_nothing_else() {
    let text = "local T = {} function T.new() return {n = 0} end
        function T.run() while true do end end
        function T.add(self, n) self.n += tonumber(n) return self.n end return T";
    let limits = Limits { time: Duration::from_millis(200), ..Limits::default() };
    let scripts = Bench::with(text, &limits).scripts;
    let disabled: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let mut bench = Bench::on(Arc::clone(&scripts));
                scope.spawn(move || {
                    assert_eq!(bench.call("new"), "CREATED");
                    let mut disabled = 0;
                    for number in 1..=2000 {
                        assert_eq!(bench.call("add:2"), (number * 2).to_string());
                        if number % 500 == 0 {
                            let (_, done) = bench.call_done("run");
                            disabled += done
                                .after
                                .iter()
                                .filter(|after| matches!(after, FollowUp::Event { .. }))
                                .count();
                        }
                    }
                    assert_eq!(bench.call("run"), "SERVER_ERROR script disabled: t.run");
                    disabled
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(disabled, 1);
}

#[test]
fn old_and_new_scripts_run_side_by_side() {
    let text = |reply: &str| {
        format!(
            "local T = {{}} function T.new() return {{}} end function T.say() return '{reply}' end return T"
        )
    };
    let mut benches: Vec<Bench> = ["one", "two", "three"].map(|reply| Bench::new(&text(reply))).into();
    for bench in &mut benches {
        assert_eq!(bench.call("new"), "CREATED");
    }
    for _ in 0..20 {
        for (bench, reply) in benches.iter_mut().zip(["one", "two", "three"]) {
            assert_eq!(bench.call("say"), reply);
        }
    }
}

#[test]
fn sources_that_take_all_time_or_memory_to_load() {
    assert_eq!(problems("while true do end"), ["t.luau: takes longer than 1 s to load"]);
    assert_eq!(
        problems("pcall(function() while true do end end) return {}"),
        ["t.luau: takes longer than 1 s to load"]
    );
    let text = problems("local s = string.rep('x', 1e9) return {}");
    assert_eq!(text, ["t.luau: needed more than 16 MiB to load"]);
}

#[test]
fn sources_that_take_longer_to_load_than_a_call_may() {
    // Every thread runs them, and again after each call that went over a limit.
    let busy = "local p = {} for i = 1, 1e6 do p[i % 1000 + 1] = i end";
    let texts = problems(&format!("{busy} return {{new = function() return {{}} end}}"));
    assert_eq!(texts.len(), 1, "{texts:?}");
    let rest = texts[0].strip_prefix("t.luau: takes ").expect("the file");
    let (took, rest) = rest.split_once(" ms of processor time to load, ").expect("the time");
    assert!(took.parse::<f64>().is_ok_and(|took| took >= 10.0), "{took}");
    assert_eq!(
        rest,
        "more than the 10 ms of a call: every thread loads it, and again after a call that went over a limit; \
         compute less outside of its methods"
    );
    // It is of the file that computes, not of those that require it.
    let library =
        SourceFile { path: "lib/busy.luau".into(), ..source("lib/busy", &format!("{busy} return {{}}")) };
    let own = Sources {
        types: ["a", "b"]
            .map(|name| source(name, "require('lib/busy') return {new = function() return {} end}"))
            .into(),
        libraries: vec![library],
        ..Sources::default()
    };
    let texts: Vec<String> =
        Scripts::load(&own, &Limits::default()).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("lib/busy.luau: takes "), "{texts:?}");
    // A longer limit of calls is one of sources as well.
    let limits = Limits { time: Duration::from_secs(100), ..Limits::default() };
    assert!(Scripts::load(&own, &limits).is_ok());
}
