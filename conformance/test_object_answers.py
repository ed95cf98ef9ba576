"""What calls of objects answer at their edges: empty lists, seconds, versions, numbers, JSON, Cacheismo's replies, slips, bad calls as packets."""

import json
import re
import struct

import pylibmc
import pytest

from harness import ROOT, wait_until
from scripted import own, types  # noqa: F401
from test_objects import c, call, objects, steps  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid

POLL = re.findall(r"```luau\n-- objects/poll\.luau\n(.*?)```", (ROOT / "docs" / "objects.md").read_text(), re.S)[-1]
"""The last version of the poll in the documentation."""


def log(server):
    with open(server.log_path, errors="replace") as f:
        return f.read().splitlines()


def test_an_empty_list_is_no_bytes(types):
    """The poll of the documentation before any vote, as `getall` of an empty set."""
    made = types(sources=[])
    made.write("poll.luau", POLL)
    made.write("shape.luau", own("", "T.read = {list = function() return {} end, named = function() return cg.json.encode({}) end}"))
    with made.start().raw() as c:
        steps(c, [
            ("poll:new:lunch:pizza:soup", "CREATED"), ("poll:result:lunch", ""), ("poll:vote:lunch:alice:pizza", "OK"), ("poll:result:lunch", "pizza 1\r\n"),
            ("set:new:s", "CREATED"), ("set:getall:s", ""), ("shape:list:k", ""), ("shape:named:k", "{}"),
        ])
        assert c.ask(b"mg poll::lunch v f Aresult\r\n").startswith(b"VA 9 f0\r\n")


@pytest.mark.parametrize("take, wait, refused", [("lock:take:x:%s:30s", "HELD", r"HELD \d+"), ("sem:take:x:%s:1:30s", "FULL", r"FULL \d+")])
def test_seconds_left_are_whole(c, take, wait, refused):
    assert call(c, take % "a").startswith("OK")
    for _ in range(5):
        got = call(c, take % "b")
        assert re.fullmatch(refused, got) and int(got.split()[1]) in (29, 30), got


def test_a_version_without_migrate_is_refused_and_the_old_source_stays(types):
    made = types(sources=[])
    source = "local T = {version = %d, read = {}} function T.new() return {n = %d} end function T.get(self) return self.n end %s return T"
    made.write("what.luau", source % (1, 1, ""))
    server = made.start()
    with server.raw() as c:
        steps(c, [("what:new:k", "CREATED"), ("what:get:k", "1")])
        made.write("what.luau", source % (2, 2, ""))
        lines = made.reloaded()
        assert any("nothing reloaded" in line and "what is of version 2 and has no migrate" in line for line in lines), lines
        steps(c, [("what:get:k", "1"), ("what:new:j", "CREATED"), ("what:get:j", "1")])
        made.write("what.luau", source % (2, 2, "function T.migrate(old) return {n = old.n + 40} end"))
        assert not any("nothing reloaded" in line for line in made.reloaded())
        steps(c, [("what:get:k", "41"), ("what:new:k", "CREATED"), ("what:get:k", "2")])
        # Back to a version that knows nothing of this one, when there are no objects left.
        made.write("what.luau", source % (1, 1, ""))
        assert any("nothing reloaded" in line for line in made.reloaded())
        steps(c, [("what:drop:k", "DELETED"), ("what:drop:j", "DELETED")])
        assert not any("nothing reloaded" in line for line in made.reloaded())
        steps(c, [("what:new:k", "CREATED"), ("what:get:k", "1")])


def test_limits_of_owners_and_names(c):
    """As the documentation's table has them."""
    table = (ROOT / "docs" / "objects.md").read_text().split("\n## Limits\n")[1].split("\n## ")[0]
    assert "| owner of a `sem` | 1 to 64 bytes |" in table and "| owner of a `lock` | 1 to 250 bytes |" in table
    ask = lambda key, method, n: c.ask(b"ms %s %d v A%s\r\n%s\r\n" % (key, n, method, b"o" * n))
    assert b"must be an owner of 1 to 64 bytes" in c.ask(b"mg sem::x v Atake:%s:1:1s\r\n" % (b"o" * 65))
    assert c.ask(b"mg sem::x v Atake:%s:1:1s\r\n" % (b"o" * 64)) == b"VA 4\r\nOK 0\r\n"
    assert b"must be an owner of 1 to 250 bytes" in ask(b"lock::x", b"release", 251)
    assert ask(b"lock::x", b"release", 250) == b"VA 9\r\nNOT_OWNER\r\n"


NUMBERS = [".5", "5.", "+1", "0x10", "-.5", "1e", "1_0", "inf"]


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_follow_one_rule_in_shipped_types_and_in_luau(types, number):
    made = types(sources=[])
    made.write("reader.luau", own("", "function T.number(self, n) return cg.number(n, 1) end function T.integer(self, n) return cg.integer(n, 1) end"))
    with made.start().raw() as c:
        steps(c, [("swcounter:new:w", "CREATED"), ("map:new:m", "CREATED"), ("quota:new:q:9:hour", "CREATED")])
        names = ["reader:number:k:", "reader:integer:k:", "swcounter:add:w:", "map:incr:m:k:", "quota:addandcheck:q:", "board:add:b:m:", "counter:add:c:", "counter:ttl:c:"]
        assert call(c, "counter:add:c:1") == "1"
        for name in names:
            assert call(c, name + number).startswith("CLIENT_ERROR "), name + number


def test_json_keeps_empty_arrays(types):
    made = types(sources=[])
    made.write("doc.luau", own("", "function T.keep(self, text) self.doc = cg.json.decode(text) return cg.json.encode(self.doc) end function T.show(self) return cg.json.encode(self.doc) end"))
    text = '{"a":[],"b":{},"c":[[],{}]}'
    with made.start().raw() as c:
        got = c.ask(b"ms doc::k %d v Akeep\r\n%s\r\n" % (len(text), text.encode()))
        assert got == b"VA %d\r\n%s\r\n" % (len(text), text.encode())
        assert call(c, "doc:show:k") == text, "from the state, too"
        assert json.loads(call(c, "doc:dump:k"))["doc"] == json.loads(text)


def test_dump_is_json_whatever_numbers_a_state_has(types):
    made = types(sources=[])
    made.write("odd.luau", own("", "function T.set(self) self.a, self.b, self.c, self.d = 0 / 0, 1 / 0, {-1 / 0}, {[1 / 0] = 1} return 1 end"))
    with made.start().raw() as c:
        assert call(c, "odd:set:k") == "1"
        refuse = lambda text: pytest.fail(f"{text} is no JSON")
        got = json.loads(call(c, "odd:dump:k"), parse_constant=refuse)
        assert (got["a"], got["b"], got["c"], got["d"]) == (None, None, [None], {"inf": 1})


BAD = ["quota:take:k:x:5:hour", "quota:take:k", "set::s", "counter:add:c:1.5"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_as_a_packet_is_a_miss_to_pylibmc(objects, name):
    """libmemcached takes the server out of use after most errors: not after this one."""
    server = objects()
    client = pylibmc.Client([server.address], binary=True)
    for _ in range(3):
        assert client.get(name) is None
        assert client.get_multi([name, "quota:take:good:1:1000:hour"]) == {"quota:take:good:1:1000:hour": b"QUOTA_OK"}
        assert client.delete("set:count:x") is False and client.set("set:count:x", b"v") is False
        with pytest.raises(pylibmc.NotFound):
            client.incr("counter:add:c:1")
        assert client.set("plain", b"v") and client.get("plain") == b"v"


def test_a_bad_call_as_a_packet_says_why(objects):
    packet = lambda opcode, key: struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), 0, 0, 0, len(key), 7, 0) + key
    with objects().raw() as c:
        c.send(packet(0x00, b"quota:take:k:x:5:hour"))
        head = c.exactly(24)
        assert head[6:8] == b"\0\1", head
        text = c.exactly(struct.unpack(">I", head[8:12])[0])
        assert text == b"CLIENT_ERROR quota.take: arg 1 must be a positive number"


def test_a_method_that_does_not_exist_is_said_once(objects):
    server = objects()
    with server.raw() as c:
        for n in range(20):
            assert call(c, f"sliding:reset:z{n}") is None
            assert c.ask(b"mg quota:addandchek:u%d v\r\n" % n) == b"EN\r\n"
        said = lambda text: [line for line in log(server) if text in line]
        wait_until("both are said", lambda: said("sliding has no method reset") and said("quota has no method addandchek"), 10)
        assert len(said("sliding has no method reset")) == 1 and "hit, count" in said("sliding has no method reset")[0]
        assert len(said("quota has no method addandchek")) == 1 and "The nearest method is addandcheck;" in said("addandchek")[0]
        why = json.loads(c.get(b"@why:sliding:reset:z"))
        assert why["hint"].startswith("sliding has no method reset") and "object" not in why
        assert "hint" not in json.loads(c.get(b"@why:sliding:count:z"))
        # It is an ordinary key all the same, of which nothing is said while it is there.
        assert c.set(b"set:basket:1", b"v") == b"STORED" and c.get(b"set:basket:1") == b"v"
        assert not said("basket")


def test_cacheismo_answers_of_absent_keys_sets_and_any_number(objects):
    with objects('[objects]\ncompat = "cacheismo"\n').raw() as c:
        steps(c, [
            ("map:new:m", "CREATED"), ("map:put:m:k:v", "SUCCESS"), ("map:get:m:nokey", "NOT_FOUND"), ("map:get:absent:k", "ERROR_CACHE_MISS"),
            ("set:new:s", "CREATED"), ("set:put:s:a", "SUCCESS"), ("set:union:s:absent", "ERROR_CACHE_MISS"), ("set:union:absent:s", "ERROR_CACHE_MISS"),
            ("set:intersection:s:absent", "ERROR_CACHE_MISS"), ("set:union:s:s", "a\r\n"),
            ("quota:new:q:10:hour", "CREATED"), ("quota:addandcheck:q:0", "QUOTA_OK"), ("quota:addandcheck:q:10", "QUOTA_OK"), ("quota:addandcheck:q:1", "QUOTA_EXCEEDED"),
            ("quota:addandcheck:q:-2", "QUOTA_OK"), ("quota:addandcheck:q:1.5", "QUOTA_OK"), ("quota:addandcheck:q:1", "QUOTA_EXCEEDED"), ("quota:addandcheck:q:0.5", "QUOTA_OK"),
            ("quota:reset:q", "QUOTA_OK"), ("quota:addandcheck:q:10", "QUOTA_OK"),
        ])
        assert c.ask(b"mg set::s v Aunion:absent\r\n") == b"VA 16\r\nERROR_CACHE_MISS\r\n"
