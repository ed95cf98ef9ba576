//! Collections as fields, from call to call: flat and in trees, after errors, dropped and renewed, and of other objects.

use std::time::Duration;

use crate::harness::stored::Stored;
use cattlegrid_scripts::Limits;

/// A method for each kind, named by it, and all that a script may do with the state.
const ALL: &str = "
    local T = {}
    function T.new()
        return {
            plain = 1, s = cg.set(), m = cg.map(), r = cg.ring(3), t = cg.topk(2), h = cg.hll(),
            b = cg.bloom(1000, 0.01), deep = {{z = cg.zset()}},
        }
    end
    function T.write(self)
        self.s:put('a', 'b')
        self.m:put('k', 'v', 'l', 'w')
        self.r:add(1) self.r:add(2) self.r:add(4) self.r:add(8)
        self.t:hit('x', 5) self.t:hit('y')
        self.h:add('one', 'two')
        self.b:add('seen')
        self.deep[1].z:add('low', 1.5, 'high', 20)
    end
    function T.fail(self, how)
        T.write(self)
        self.s:delete('a') self.m:delete('k') self.deep[1].z:remove('low') self.r:add(100) self.t:hit('new', 50)
        self.h:add('three') self.b:add('other')
        self.plain = 2
        if how == 'client' then cg.fail('no') elseif how == 'state' then self.f = print else error('broken') end
    end
    function T.set(self) return table.concat(self.s:getall(), ' ') .. ' ' .. self.s:count() end
    function T.map(self) return self.m:get('k') .. ' ' .. self.m:count() end
    function T.ring(self) return self.r:getsum() .. ' ' .. self.r:getmin() .. ' ' .. self.r:getmax() end
    function T.topk(self) return self.t:list(1)[1].item .. ' ' .. self.t:count('x') end
    function T.hll(self) return self.h:count() end
    function T.bloom(self) return `{self.b:has('seen')} {self.b:has('unseen')} {self.b:count()}` end
    function T.zset(self)
        local z = self.deep[1].z
        return `{z:rank('high')} {z:score('low')} {z:top(1)[1].member} {z:count()}`
    end
    return T";

/// The replies of [`ALL`] after `write`.
const REPLIES: [(&str, &str); 7] = [
    ("set", "a b 2"),
    ("map", "v 2"),
    ("ring", "14 2 8"),
    ("topk", "x 5"),
    ("hll", "2"),
    ("bloom", "true false 1"),
    ("zset", "1 1.5 high 2"),
];

/// What `dump` shows of it.
const DUMP: &str = concat!(
    r#"{"b":{"n":1000,"p":0.01,"bits":12288,"hashes":7,"blocks":3,"blocks_used":1,"count":1},"#,
    r#""deep":[{"z":[["high",20],["low",1.5]]}],"h":{"count":2,"registers":16384,"form":"sparse"},"#,
    r#""m":{"k":"v","l":"w"},"plain":1,"r":{"size":3,"values":[2,4,8]},"s":["a","b"],"#,
    r#""t":{"k":2,"items":[{"item":"x","count":5,"error":0},{"item":"y","count":1,"error":0}]}}"#
);

#[test]
fn what_a_call_writes_later_calls_read() {
    let mut stored = Stored::new(ALL);
    assert_eq!(stored.call("new:k"), "CREATED");
    assert_eq!(
        stored.call("dump:k"),
        concat!(
            r#"{"b":{"n":1000,"p":0.01,"bits":12288,"hashes":7,"blocks":3,"blocks_used":0,"count":0},"deep":[{"z":[]}],"#,
            r#""h":{"count":0,"registers":16384,"form":"sparse"},"m":{},"plain":1,"r":{"size":3,"values":[]},"s":[],"#,
            r#""t":{"k":2,"items":[]}}"#
        )
    );
    assert_eq!(stored.call("write:k"), "MISS", "a method that returns nothing");
    for (method, reply) in REPLIES {
        assert_eq!(stored.call(&format!("{method}:k")), reply, "{method}");
    }
    assert!(!stored.is_tree("k"));
    assert_eq!(stored.call("dump:k"), DUMP);
}

#[test]
fn a_call_that_fails_leaves_them_as_they_were() {
    let mut stored = Stored::new(ALL);
    stored.call("new:k");
    stored.call("write:k");
    for (how, text) in [
        ("client", "CLIENT_ERROR t.fail: no"),
        ("state", "SERVER_ERROR script t.fail: field 'f' is a function"),
        ("script", "SERVER_ERROR script t.fail: t.luau:23: broken"),
    ] {
        assert_eq!(stored.call(&format!("fail:k:{how}")), text);
        assert_eq!(stored.call("dump:k"), DUMP, "{how}");
        for (method, reply) in REPLIES {
            assert_eq!(stored.call(&format!("{method}:k")), reply, "{method} after {how}");
        }
    }
}

/// Collections that grow.
const GROWING: &str = "
    local T = {}
    function T.new() return {s = cg.set(), m = cg.map(), z = cg.zset(), other = cg.set()} end
    function T.fill(self, from, to)
        for n = cg.integer(from, 1), cg.integer(to, 2) do
            local name = string.format('%05d', n)
            self.s:put(name) self.m:put(name, n) self.z:add(name, n)
        end
        self.other:put('x')
    end
    function T.counts(self)
        return `{self.s:count()} {self.m:count()} {self.z:count()} {self.other:count()}`
    end
    function T.at(self, n)
        local n = cg.integer(n, 1)
        local name = string.format('%05d', n)
        return `{self.s:exist(name)} {self.m:get(name)} {self.z:score(name)} {self.z:rank(name)}`
    end
    function T.all(self)
        local members, pairs_of, count, sum = self.s:getall(), self.m:getall(), 0, 0
        for i, member in members do assert(pairs_of[member] == tostring(i)) end
        for _, row in self.z:top(10000) do count += 1 sum += row.score end
        return `{#members} {count} {sum}`
    end
    function T.cut(self, from, to)
        for n = cg.integer(from, 1), cg.integer(to, 2) do
            local name = string.format('%05d', n)
            assert(self.s:delete(name) and self.m:delete(name) and self.z:delete(name))
        end
    end
    function T.renew(self) self.s = cg.set() self.s:put('new') self.m = nil return self.s:count() end
    function T.set(self) return self.s:count() .. ' ' .. self.s:getall()[1] end
    return T";

#[test]
fn five_thousand_members_each() {
    let mut stored = Stored::new(GROWING);
    stored.call("new:k");
    let flat = stored.call("size:k").parse::<u64>().unwrap();
    for from in (1..5000).step_by(1000) {
        // Members of a call: one of the set, one of the map, two of the zset.
        assert_eq!(stored.call(&format!("fill:k:{from}:{}", from + 999)), "MISS");
        assert_eq!(stored.call("counts:k"), format!("{0} {0} {0} 1", from + 999));
    }
    assert!(stored.is_tree("k"));
    for n in [1, 2, 256, 257, 2500, 4999, 5000] {
        assert_eq!(stored.call(&format!("at:k:{n}")), format!("true {n} {n} {}", 5001 - n));
    }
    assert_eq!(stored.call("all:k"), format!("5000 5000 {}", 5000 * 5001 / 2));
    assert!(stored.reads >= 3 * 5000 / 256, "{} reads: lists are read in pieces", stored.reads);
    let size = stored.call("size:k").parse::<u64>().unwrap();
    assert!(flat < 100 && size > 100_000, "{flat} {size}");
    let dump = stored.call("dump:k");
    assert!(dump.starts_with(r#"{"m":{"00001":"1","00002":"2","#), "{}", &dump[..100]);
    assert!(dump.ends_with(r#"["00001",1]]}"#), "{}", &dump[dump.len() - 100..]);
    assert_eq!(dump.matches(r#""04999""#).count(), 3);
    for from in (1..4901).step_by(700) {
        assert_eq!(stored.call(&format!("cut:k:{from}:{}", from + 699)), "MISS");
    }
    assert_eq!(stored.call("counts:k"), "100 100 100 1");
    assert_eq!(stored.call("at:k:5000"), "true 5000 5000 1");
    assert_eq!(stored.call("at:k:4900"), "false nil nil nil");
}

#[test]
fn a_field_that_is_dropped_and_one_in_its_place() {
    let mut stored = Stored::new(GROWING);
    stored.call("new:k");
    stored.call("fill:k:1:600");
    assert_eq!(stored.call("renew:k"), "1");
    assert_eq!(
        stored.call("set:k"),
        "1 new",
        "members of the dropped set that are left are not the new one's"
    );
    let shown = |dump: &str| dump.starts_with(r#"{"other":["x"],"s":["new"],"z":[["00600",600],"#);
    assert!(shown(&stored.call("dump:k")));
    for _ in 0..30 {
        assert_eq!(stored.call("renew:k"), "1");
        assert_eq!(stored.call("set:k"), "1 new");
        let dump = stored.call("dump:k");
        assert!(shown(&dump), "{dump}");
    }
    let size = stored.call("size:k").parse::<u64>().unwrap();
    stored.call("new:k");
    stored.call("fill:k:1:600");
    let whole = stored.call("size:k").parse::<u64>().unwrap();
    assert!(size < whole * 3 / 4, "{size} of {whole} bytes: members that are dropped go");
}

#[test]
fn changes_of_fields_keep_the_time_to_live() {
    let mut stored = Stored::new(
        "local T = {ttl = 60}
        function T.new() cg.ttl(60) return {s = cg.set()} end
        function T.add(self, m) return self.s:add(m) end
        function T.touch(self) cg.ttl(5) end
        return T",
    );
    stored.call("new:k");
    stored.now_ms += 20_000;
    assert_eq!(stored.call("add:k:a"), "1");
    assert_eq!(stored.call("ttl:k"), "40");
    assert_eq!(stored.call("touch:k"), "MISS");
    assert_eq!(stored.call("ttl:k"), "5", "without a change of the state");
    assert_eq!(stored.call("add:k:b"), "1");
    assert_eq!(stored.call("ttl:k"), "5");
}

/// Methods that use a field where they must not.
const STRAYS: &str = "
    local T = {}
    local kept
    function T.new(...) local s = cg.set() s:put(...) return {s = s, m = cg.map()} end
    function T.common(self, other)
        if other == nil then return 'none' end
        local both = 0
        for _, member in self.s:getall() do if other.s:exist(member) then both += 1 end end
        return both
    end
    function T.write(self, other) other.s:put('x') end
    function T.delete(self, other) pcall(other.s.delete, other.s, 'a') return other.s:delete('a') end
    function T.steal(self, other) self.s = other.s end
    function T.replace(self, other) other.s = cg.set() end
    T.keys = {common = {1}, write = {1}, delete = {1}, steal = {1}, replace = {1}}
    function T.keep(self) kept = self.s return kept:count() end
    function T.kept(self) return kept:count() end
    function T.put_kept(self) self.old = kept end
    function T.wrong(self) return self.s.put(self.m, 'a') end
    function T.method(self) return self.s:get('a') end
    function T.assign(self) self.s.a = 1 end
    function T.twice(self) self.again = self.s end
    function T.swap(self) self.s, self.u = nil, self.s return self.u:count() end
    function T.count(self) return self.u:count() end
    return T";

#[test]
fn other_objects_are_only_read() {
    let mut stored = Stored::new(STRAYS);
    stored.call("new:one:a:b:c");
    stored.call("new:two:b:c:d");
    let dumps = [stored.call("dump:one"), stored.call("dump:two")];
    assert_eq!(stored.call("common:one:two"), "2");
    assert_eq!(stored.call("common:one:one"), "3");
    assert_eq!(stored.call("common:one:none"), "none");
    for (method, text) in [
        ("write", "set:put: the object of another key is only read"),
        ("delete", "set:delete: the object of another key is only read"),
        ("steal", "field 's' is a collection of another object"),
        ("replace", "attempt to modify a readonly table"),
    ] {
        let reply = stored.call(&format!("{method}:one:two"));
        assert!(reply.starts_with("SERVER_ERROR script") && reply.contains(text), "{method}: {reply}");
    }
    assert_eq!([stored.call("dump:one"), stored.call("dump:two")], dumps);
}

#[test]
fn handles_are_of_their_call_and_their_kind() {
    let mut stored = Stored::new(STRAYS);
    stored.call("new:one:a:b:c");
    stored.call("new:two:a");
    let dump = stored.call("dump:one");
    assert_eq!(stored.call("keep:one"), "3");
    for key in ["one", "two"] {
        for (method, text) in [
            ("kept", "set:count: is of another call"),
            ("put_kept", "field 'old' is a collection of another call"),
            ("wrong", "set:put: is called on a field of another kind"),
            ("method", "attempt to call missing method"),
            ("assign", "attempt to index userdata"),
            ("twice", "is the same as field"),
        ] {
            let reply = stored.call(&format!("{method}:{key}"));
            assert!(reply.starts_with("SERVER_ERROR script") && reply.contains(text), "{method}: {reply}");
        }
    }
    assert_eq!(stored.call("dump:one"), dump);
    assert_eq!(stored.call("swap:one"), "3");
    assert_eq!(stored.call("count:one"), "3", "a field that is kept under another name");
}

/// Collections that are longer than a list may be.
const LONG: &str = "
    local T = {}
    local kept
    function T.new() return {s = cg.set(), m = cg.map()} end
    function T.put(self, key, len) self.m:put(key, string.rep('x', cg.integer(len, 2))) end
    function T.add(self, from, to) for n = cg.integer(from, 1), cg.integer(to, 2) do self.s:put(n) end end
    function T.keys(self) return #self.m:getkeys() end
    function T.values(self) return #self.m:getvalues() end
    function T.members(self) return #self.s:getall() end
    function T.union(self) local x = cg.set() x:put('x') return #x:union(self.s) end
    function T.pairs(self)
        local count, bytes = 0, 0
        for key, value in self.m:each() do count += 1 bytes += #value end
        return `{count} {bytes}`
    end
    function T.count(self)
        local count = 0
        for _ in self.s:each() do count += 1 end
        return count
    end
    function T.prune(self)
        for member in self.s:each() do if tonumber(member) % 4 == 0 then self.s:delete(member) end end
        return self.s:count()
    end
    function T.keep(self) kept = self.s:each() return kept() end
    function T.kept(self) return kept() end
    return T";

#[test]
fn lists_end_at_their_limits_and_loops_do_not() {
    let mut stored = Stored::new(LONG);
    stored.call("new:k");
    // Keys of 1 byte: a MiB in all.
    for key in ["a", "b", "c", "d"] {
        stored.call(&format!("put:k:{key}:{}", (1 << 18) - 1));
    }
    assert_eq!(stored.call("values:k"), "4");
    assert_eq!(stored.call("keys:k"), "4");
    stored.call("put:k:e:1");
    let most = "a list has at most 10000 members of 1048576 bytes in all";
    assert!(stored.call("values:k").ends_with(&format!("map:getvalues: {most}")));
    assert_eq!(stored.call("pairs:k"), format!("5 {}", (1 << 20) - 3));
    assert_eq!(stored.reads, 5, "a value that is long ends its piece");
    assert_eq!(stored.call("dump:k"), "SERVER_ERROR result too large");
    for from in (1..10_000).step_by(2000) {
        stored.call(&format!("add:k:{from}:{}", from + 1999));
    }
    assert_eq!(stored.call("members:k"), "10000");
    assert!(stored.call("union:k").ends_with(&format!("set:union: {most}")));
    stored.call("add:k:10001:10001");
    assert!(stored.call("members:k").ends_with(&format!("set:getall: {most}")));
    assert_eq!(stored.call("count:k"), "10001");
    assert!((40..=42).contains(&stored.reads), "{} reads: 256 members each", stored.reads);
    assert_eq!(stored.call("prune:k"), "7501");
    assert_eq!(stored.call("count:k"), "7501");
}

#[test]
fn a_loop_ends_with_its_call() {
    let mut stored = Stored::new(LONG);
    stored.call("new:k");
    stored.call("add:k:1:600");
    assert_eq!(stored.call("keep:k"), "1");
    assert_eq!(stored.call("kept:k"), "SERVER_ERROR script t.kept: t.luau:26: set:each: is of another call");
}

#[test]
fn a_run_whose_object_has_moved_ends() {
    // Each would run for as long as its limit of time: a minute.
    let mut stored = Stored::new(
        "local T = {}
        function T.new() return {s = cg.set(), z = cg.zset()} end
        function T.catch(self) while true do pcall(self.s.count, self.s) end end
        function T.all(self) while true do pcall(function() self.s:getall() self.z:top() end) end end
        function T.loop(self) while true do pcall(function() for _ in self.s:each() do end end) end end
        function T.make(self) while true do pcall(cg.set) end end
        function T.co(self)
            local co = coroutine.wrap(function() while true do pcall(self.s.put, self.s, 'a') coroutine.yield() end end)
            while true do co() end
        end
        function T.once(self) pcall(self.s.count, self.s) return 'caught' end
        function T.after(self) self.s:put('x') cg.event('e') cg.set('k', 'v') pcall(self.s.count, self.s) return 1 end
        function T.count(self) return self.s:count() end
        return T",
    );
    stored.call("new:k");
    for method in ["catch", "all", "loop", "make", "co", "once", "after"] {
        for moves_after in [0, 1] {
            stored.moves_after = moves_after;
            let reply = stored.call(&format!("{method}:k"));
            let must_move = moves_after == 0 || !matches!(method, "once");
            assert_eq!(reply, if must_move { "MOVED" } else { "caught" }, "{method} after {moves_after}");
        }
        stored.moves_after = usize::MAX;
        assert_eq!(stored.call("count:k"), "0", "the next call on this thread, after {method}");
    }
}

#[test]
fn a_call_knows_its_objects_key() {
    let mut stored = Stored::new(
        "local T = {create = {}}
        function T.new() return {made = cg.key()} end
        function T.both(self, other) return `{cg.key()} {self.made} {other.made}` end
        T.keys = {both = {1}}
        return T",
    );
    assert_eq!(stored.call("new:a%3Ab"), "CREATED");
    assert_eq!(stored.call("both:a%3Ab:a%3Ab"), "a:b a:b a:b", "as it is, without escapes");
    assert_eq!(stored.call("both:c:a%3Ab"), "c c a:b", "also of an object that is made by the call");
}

#[test]
fn loops_that_are_kept_take_the_memory_of_the_call() {
    let mut stored = Stored::new(
        "local T = {}
        function T.new() return {s = cg.set()} end
        function T.fill(self) for n = 1, 300 do self.s:put(n) end end
        function T.begin(self) local list = {} while true do list[#list + 1] = self.s:each() end end
        function T.read(self)
            local list = {}
            while true do local next_member = self.s:each() next_member() list[#list + 1] = next_member end
        end
        function T.pass(self) for _ = 1, 100000 do self.s:each() end return self.s:count() end
        return T",
    );
    stored.call("new:k");
    stored.call("fill:k");
    for method in ["begin", "read"] {
        let reply = stored.call(&format!("{method}:k"));
        assert_eq!(reply, format!("SERVER_ERROR script t.{method}: needed more than 16 MiB"));
    }
    assert_eq!(stored.call("pass:k"), "300", "what is not kept is collected");
}

#[test]
fn a_union_ends_at_its_limit_of_bytes() {
    let mut stored = Stored::new(
        "local T = {}
        function T.new() return {a = cg.set(), b = cg.set()} end
        function T.widen(self, which, from, to)
            for n = cg.integer(from, 2), cg.integer(to, 3) do
                self[which]:put(which .. string.rep('x', 1000 - 1 - #tostring(n)) .. n)
            end
        end
        function T.union(self) return #self.a:union(self.b) end
        return T",
    );
    stored.call("new:k");
    // A member has 1000 bytes: 1048 of them are less than a MiB, 1049 are more.
    for field in ["a", "b"] {
        for from in (1..524).step_by(50) {
            stored.call(&format!("widen:k:{field}:{from}:{}", (from + 49).min(524)));
        }
    }
    assert_eq!(stored.call("union:k"), "1048");
    stored.call("widen:k:b:525:525");
    let reply = stored.call("union:k");
    assert!(
        reply.ends_with("set:union: a list has at most 10000 members of 1048576 bytes in all"),
        "{reply}"
    );
}

/// Methods that reach a limit of a call, and catch the error.
const AT_LIMITS: &str = "
    local T = {}
    function T.new()
        local t, r = cg.topk(3), cg.ring(400)
        t:hit('a', 5) t:hit('b', 4) t:hit('c', 3)
        for n = 1, 300 do r:add(n) end
        return {s = cg.set(), m = cg.map(), h = cg.hll(), t = t, r = r}
    end
    local function fill(self, count) for n = 1, cg.integer(count, 1) do self.s:put('m' .. n) end end
    function T.full(self) fill(self, '4096') return `{self.s:count()} {self.s:exist('m1')} {#self.s:getall()}` end
    function T.set(self) return (pcall(self.s.put, self.s, 'x', string.rep('k', 1024))) end
    function T.map(self)
        self.m:put('long', string.rep('v', 2000))
        return (pcall(self.m.put, self.m, 'x', '1', 'y', string.rep('v', 2000)))
    end
    function T.topk(self, count) fill(self, count) return (pcall(self.t.hit, self.t, 'd')) end
    function T.ring(self, count) fill(self, count) return (pcall(self.r.add, self.r, 0)) end
    function T.hll(self, count)
        fill(self, count)
        for n = 1, 2000 do
            local before = self.h:count()
            if not pcall(self.h.add, self.h, n) then return self.h:count() == before end
        end
        return 'all'
    end
    return T";

#[test]
fn a_method_that_fails_halfway_leaves_its_field_as_it_was() {
    let mut stored = Stored::new(AT_LIMITS);
    stored.call("new:k");
    assert_eq!(stored.call("full:k"), "4096 true 4096", "what has reached its limit can be read");
    stored.call("new:k");
    let dump = stored.call("dump:k");
    assert_eq!(stored.call("set:k"), "0");
    assert_eq!(stored.call("dump:k"), dump);
    assert_eq!(stored.call("map:k"), "0");
    assert!(stored.call("dump:k").contains(r#""m":{"long":"#));
    let of =
        |dump: &str, field: &str| serde_json::from_str::<serde_json::Value>(dump).unwrap()[field].clone();
    for count in 4090..=4096 {
        for (method, field) in [("topk", "t"), ("ring", "r")] {
            stored.call("new:k");
            let before = of(&stored.call("dump:k"), field);
            let reply = stored.call(&format!("{method}:k:{count}"));
            let after = of(&stored.call("dump:k"), field);
            assert_eq!(after == before, reply == "0", "{method} {count} {reply}: {after}");
        }
    }
    // A few are one value, many are several.
    for count in [4070, 4078, 4080, 4085, 4090, 4095] {
        stored.call("new:k");
        let reply = stored.call(&format!("hll:k:{count}"));
        assert!(matches!(&*reply, "1" | "all"), "{count}: {reply}");
    }
}

#[test]
fn a_method_that_reads_may_make_a_field_for_itself_and_changes_none() {
    let mut stored = Stored::new(
        "local T = {create = {}}
        function T.new() local m = cg.map() m:put('k', 'v') return {m = m} end
        T.read = {
            scratch = function(self) local s = cg.set() s:put('a', 'b') return s:count() end,
            get = function(self) return self.m:get('k') end,
            put = function(self) self.m:put('k', 'w') return 'OK' end,
            keep = function(self) self.s = cg.set() return 'OK' end,
        }
        return T",
    );
    for key in ["made", "made", "other"] {
        for method in ["put", "keep"] {
            let changed = format!("SERVER_ERROR script t.{method}: read.{method} changed its object");
            assert_eq!(stored.call(&format!("{method}:{key}")), changed, "{key}");
        }
        assert_eq!(stored.call(&format!("scratch:{key}")), "2", "{key}");
        assert_eq!(stored.call(&format!("get:{key}")), "v", "{key}");
    }
    assert_eq!(stored.call("dump:made"), r#"{"m":{"k":"v"}}"#);
}

#[test]
fn a_state_with_a_field_may_be_as_long_as_any() {
    let limits = Limits { state_max: 1 << 20, time: Duration::from_secs(60), ..Limits::default() };
    let mut stored = Stored::with(
        "local T = {}
        function T.new() return {s = cg.set(), text = ''} end
        function T.fill(self, len) self.text = string.rep('x', cg.integer(len, 1)) self.s:put(len) return 'OK' end
        function T.read(self) return `{#self.text} {self.s:count()}` end
        return T",
        &limits,
    );
    stored.call("new:k");
    for (number, len) in [0, 255_000, 256_000, 256_500, 1_000_000, 257_000, 1].into_iter().enumerate() {
        assert_eq!(stored.call(&format!("fill:k:{len}")), "OK");
        assert_eq!(stored.call("read:k"), format!("{len} {}", number + 1));
    }
}
