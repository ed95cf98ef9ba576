"""What an object of a type in Luau has from its beginning to its end: time to live, tags, tokens, room, version."""

import json

import pytest

from harness import wait_until
from scripted import own, types  # noqa: F401
from test_objects import call, steps

pytestmark = pytest.mark.only_cattlegrid

FULL = "SERVER_ERROR out of memory storing object"

KEPT = """--!strict
local T = { ttl = 100 }

function T.new()
\treturn { s = cg.set(), m = cg.map() }
end

function T.fill(self, from: string, count: string, length: string)
\tfor n = tonumber(from), tonumber(from) + tonumber(count) - 1 do
\t\tself.s:put(`{n}{string.rep("x", tonumber(length))}`)
\tend
\treturn self.s:count()
end

function T.full(self)
\tself.s = cg.set()
\tfor n = 1, 4095 do
\t\tself.s:put(n)
\tend
\treturn { self.s:count(), self.s:exist("1") and 1 or 0 }
end

function T.put(self, key: string, value: string)
\tself.m:put(key, value)
\treturn "OK"
end

function T.clear(self)
\tself.s, self.m = cg.set(), cg.map()
\treturn "OK"
end

function T.once(self, token: string)
\treturn cg.once(token)
end

function T.tag(self, name: string)
\tcg.tag(name)
\treturn "OK"
end

function T.live(self, seconds: string)
\tcg.ttl(tonumber(seconds))
\treturn cg.ttl()
end

T.read = {}

function T.read.left(self)
\treturn cg.ttl()
end

return T
"""


def within_a_second(c, names):
    """As `steps`, of calls that tell the time that is left: again if a second ended between them."""
    for _ in range(20):
        got = [call(c, name) for name, _ in names]
        if got == [wanted for _, wanted in names]:
            return
    raise AssertionError(f"{got}, not {names}")


@pytest.mark.parametrize("members", ["1", "40", "2000"])
def test_new_makes_a_new_object(types, members):
    made = types(sources=[])
    made.write("kept.luau", KEPT)
    with made.start().raw() as c:
        steps(c, [("kept:new:k", "CREATED"), (f"kept:fill:k:1:{members}:100", members), ("kept:once:k:a", "1"), ("kept:once:k:a", "0"), ("kept:tag:k:t", "OK"), ("kept:live:k:20", "20")])
        within_a_second(c, [("kept:new:k", "CREATED"), ("kept:ttl:k", "100"), ("kept:left:k", "100")])
        steps(c, [("kept:once:k:a", "1"), ("kept:fill:k:1:0:1", "0")])
        assert json.loads(call(c, "@why:kept::k"))["tags"] == []
        assert c.ask(b"delete @tag:t\r\n") == b"DELETED\r\n"
        steps(c, [("kept:exists:k", "EXISTS"), ("kept:tag:k:t", "OK")])
        tags = json.loads(call(c, "@why:kept::k"))["tags"]
        assert [tag["tag"] for tag in tags] == [None] and len(tags[0]["hash"]) == 16
        assert c.ask(b"delete @tag:t\r\n") == b"DELETED\r\n"
        assert call(c, "kept:exists:k") == "NOT_FOUND"


def test_seconds_left_are_those_that_were_set(types):
    made = types(sources=[])
    made.write("kept.luau", KEPT)
    with made.start().raw() as c:
        within_a_second(c, [("kept:new:k", "CREATED"), ("kept:live:k:50", "50"), ("kept:left:k", "50"), ("kept:ttl:k", "50"), ("kept:live:k:1", "1")])

        def left(seconds):
            call(c, "kept:new:j")
            call(c, f"kept:live:j:{seconds}")
            return call(c, "kept:left:j")

        for seconds in [30, 0.5, 2.5]:
            # None: it has ended already.
            got = wait_until("the call comes in time", lambda: left(seconds))
            assert float(got) <= seconds + 0.5


def test_a_call_that_changes_all_it_may_reads_on(types):
    made = types(sources=[])
    made.write("kept.luau", KEPT)
    with made.start().raw() as c:
        steps(c, [("kept:new:k", "CREATED"), ("kept:full:k", "4095\r\n1\r\n")])


@pytest.mark.parametrize("threads", ["1", "4"])
def test_objects_that_are_never_evicted_stay_within_their_bound(types, threads):
    # Not about time: the longest calls take about the default limit on a busy machine.
    made = types(sources=[], settings='pinned_max = "64KiB"\ntime_limit = "1s"', rules='[objects.kept]\nevict = "never"\n[objects.map]\nevict = "never"')
    made.write("kept.luau", KEPT)
    with made.start("-t", threads).raw() as c:

        def pinned():
            return int(c.stats("objects")["pinned"])

        call(c, "kept:new:z")
        for first, count, length in [(1, 500, 100), (50, 500, 100), (260, 4000, 100), (260, 1000, 1000)]:
            steps(c, [("kept:new:z", "CREATED"), (f"kept:fill:z:1:{first}:100", str(first))])
            reply = call(c, f"kept:fill:z:10000:{count}:{length}")
            assert reply == FULL or pinned() > 60_000
            assert pinned() <= 65_536
        value = b"v" * 900_000
        assert c.ask(b"ms kept::z 900000 Aput:x v\r\n" + value + b"\r\n") == FULL.encode() + b"\r\n"
        assert pinned() <= 65_536
        call(c, "kept:new:z")
        number, reply = 0, ""
        while reply != FULL:
            number += 10
            reply = call(c, f"kept:fill:z:{number}:10:100")
        before = pinned()
        assert 40_000 < before <= 65_536
        # What frees memory, and what takes none, is done.
        steps(c, [("kept:fill:z:10:10:100", str(number - 10)), ("kept:clear:z", "OK"), ("kept:new:z", "CREATED"), ("kept:fill:z:1:10:10", "10")])
        assert pinned() < before
        call(c, "kept:drop:z")
        call(c, "map:new:m")
        for key in range(4):
            c.ask(b"ms map::m 30000 Aput:k%d\r\n%s\r\n" % (key, b"v" * 30_000))
            assert pinned() <= 65_536
        # Two of them and the page that names them.
        steps(c, [("map:count:m", "2"), ("map:new:m", "CREATED")])


def test_methods_see_other_objects_as_their_own_version_has_them(types):
    made = types(sources=[])
    made.write("aged.luau", own("aged", "function T.put(self, n) self.n = tonumber(n) return 'OK' end"))
    server = made.start()
    with server.raw() as c:
        steps(c, [("aged:put:a:1", "OK"), ("aged:put:b:2", "OK")])
        made.write("aged.luau", """local T = { version = 2, keys = { sum = { 1 } }, create = {} }
function T.new() return { count = 0 } end
function T.migrate(old) return { count = old.n * 10 } end
function T.sum(self, other) return self.count + other.count end
return T
""")
        made.reloaded()
        assert call(c, "aged:sum:a:b") == "30"
