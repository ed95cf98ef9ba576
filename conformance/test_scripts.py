"""Types in Luau over bare connections and real clients: every form of a call, every kind of reply, the life of an object, what
methods do outside of their objects."""

import json
import random
import re
import socket
import time

import pylibmc
import pymemcache
import pytest

from crowd import rule
from harness import PROMPT, wait_until
from scripted import NAMES, own, types  # noqa: F401
from test_objects import block, call, steps, value

pytestmark = pytest.mark.only_cattlegrid


@pytest.fixture
def c(types):
    with types().start().raw() as connection:
        yield connection


def stat(c, name):
    return int(c.stats("objects").get(name, "0"))


# Forms of a call


def test_every_form_of_a_call(c):
    steps(c, [("tally:new:k:5", "CREATED"), ("tally:take:k", "OK"), ("tally:take:k:3", "OK"), ("tally:take:k:2", "FULL"), ("tally:left:k", "1")])
    # Classic with several names, plain keys between them, a name twice, and a miss.
    c.set(b"plain", b"p")
    got = c.ask(b"get plain tally:left:k absent tally:take:k tally:left:k tally:left:other plain\r\n")
    assert got == block("plain", "p") + block("tally:left:k", "1") + block("tally:take:k", "OK") + block("tally:left:k", "0") + block("plain", "p") + b"END\r\n"
    # With CAS: it changes with the object, and only then.
    def cas():
        return int(re.fullmatch(rb"VALUE tally:left:k 0 1 (\d+)\r\n\d\r\nEND\r\n", c.ask(b"gets tally:left:k\r\n"))[1])

    first = cas()
    assert call(c, "tally:take:k") == "FULL" and cas() == first, "a call that changes nothing leaves it"
    steps(c, [("tally:new:k:5", "CREATED")])
    assert cas() > first
    # Meta, by name and by the flag, with the last argument as data, with a base64 key, quiet and opaque.
    assert c.ask(b"mg tally:take:k v k O7\r\n") == b"VA 2 ktally:take:k O7\r\nOK\r\n"
    assert c.ask(b"mg tally::k v Atake:1\r\n") == b"VA 2\r\nOK\r\n"
    assert c.ask(b"ms tally::k 1 v Atake\r\n1\r\n") == b"VA 2\r\nOK\r\n"
    assert c.ask(b"mg dGFsbHk6OmsA v b Atake\r\n").startswith((b"EN", b"CLIENT_ERROR")), "another key: it ends in a zero byte"
    assert c.ask(b"mg dGFsbHk6Oms= v b Aleft\r\n") == b"VA 1\r\n2\r\n"
    assert c.ask(b"mg tally::k v q Aleft\r\nmg tally::other v q Aleft\r\nmg tally::k v Aleft\r\n") == b"VA 1\r\n2\r\n" * 2
    assert c.ask(b"mg tally::k Atake\r\n") == b"HD\r\n"
    assert c.ask(b"ms tally::k 1 q Atake\r\n1\r\n") == b""
    assert call(c, "tally:left:k") == "0"
    # In one write, and byte by byte.
    text = b"get tally:new:s:2\r\nmg tally::s v Atake\r\nget tally:take:s tally:take:s\r\nms tally::s 1 v Atake\r\n1\r\n"
    wanted = value("tally:new:s", "CREATED").replace(b"tally:new:s ", b"tally:new:s:2 ")
    wanted += b"VA 2\r\nOK\r\n" + block("tally:take:s", "OK") + block("tally:take:s", "FULL") + b"END\r\nVA 4\r\nFULL\r\n"
    assert c.ask(text) == wanted
    for byte in text:
        c.send(bytes([byte]))
    assert c.ask(b"") == wanted
    # An object is deleted by its key, also without a reply.
    assert c.ask(b"delete tally::s\r\n") == b"DELETED\r\n" and call(c, "tally:left:s") is None
    assert c.ask(b"delete tally::k noreply\r\nmd tally::k\r\n") == b"NF\r\n"


def test_other_commands_refuse_names(c):
    steps(c, [("tally:new:k:5", "CREATED")])
    for text in ["set {} 0 0 1\r\nx", "append {} 0 0 1\r\nx", "incr {} 1", "touch {} 10", "gat 10 {}", "delete {}", "ms {} 1\r\nx", "ma {}", "mg {} T30"]:
        assert c.ask(text.format("tally:take:k:1").encode() + b"\r\n") == b"CLIENT_ERROR tally:take is a method\r\n", text
    assert c.ask(b"set tally:take:k:1 0 0 1 noreply\r\nx\r\n") == b""
    assert c.ask(b"get tally::k\r\n").startswith(b"CLIENT_ERROR tally:: names an object")
    assert call(c, "tally:left:k") == "5"


def test_names_that_are_plain_keys(c):
    """Names near those of calls, and of what a script can reach."""
    plain = ["print:1", "type:5", "next:page", "error:404", "os:tmpname", "tally:x", "tally:", "tally", ":tally", "tally:Take:x", "Tally:take:x", "tallyy:take:x",
             "tally:read:x", "tally:version:x", "window:name:1", "lib/window:name:1", "string:rep:x", "cg:now:x", "tally::", "probe:__index:x"]
    for key in plain:
        assert c.set(key.encode(), b"v") == b"STORED" and c.get(key.encode()) == b"v", key


# Replies


def test_replies_of_every_kind(c):
    steps(c, [
        ("probe:text:k", None), ("probe:new:k:first", "CREATED"), ("probe:text:k", "first"), ("probe:put:k:a%3Ab%25", "1"), ("probe:text:k", "a:b%"),
        ("probe:put:k:", "1"), ("probe:text:k", ""), ("probe:yes:k", "1"), ("probe:no:k", "0"), ("probe:nothing:k", None), ("probe:echo:k", ""),
        ("probe:echo:k:a::c", "a||c"), ("probe:list:k", "a\r\n2\r\nc\r\n"), ("probe:number:k:zero", "0"), ("probe:number:k:int", "42"), ("probe:number:k:negative", "-7"),
        ("probe:number:k:large", "9007199254740992"), ("probe:number:k:half", "0.5"), ("probe:number:k:tenth", "0.1"), ("probe:number:k:third", "0.3333333333333333"),
        ("probe:number:k:none", None), ("probe:needs_number:k:0.25", "0.25"),
    ])
    assert float(call(c, "probe:number:k:huge")) == 1e300
    for name in ("nan", "inf"):
        assert call(c, f"probe:number:k:{name}").startswith("SERVER_ERROR script probe.number: "), name
    assert json.loads(call(c, "probe:object:k")) == {"a": "x", "b": 2}
    assert call(c, "probe:mixed:k").startswith("SERVER_ERROR script probe.mixed: ")
    data = b"\0\r\nEND\r\n\xff"
    for flags in (0, 1, 4294967295):
        assert c.ask(b"get probe:bytes:k:%d\r\n" % flags) == b"VALUE probe:bytes:k:%d %d 9\r\n%s\r\nEND\r\n" % (flags, flags, data)
    assert c.ask(b"mg probe::k v f Abytes:7\r\n") == b"VA 9 f7\r\n" + data + b"\r\n"
    assert "ERROR" in call(c, "probe:bytes:k:4294967296"), "no flags"
    # Any bytes as data come and go as they are.
    every = bytes(range(256)) * 100
    assert c.ask(b"ms probe::k %d v Aput\r\n%s\r\n" % (len(every), every)) == b"VA 1\r\n1\r\n"
    assert c.ask(b"mg probe::k v Atext\r\n") == b"VA %d\r\n%s\r\n" % (len(every), every)


def test_json_flags_and_cacheismo_replies(types):
    with types(settings='compat = "cacheismo"\njson_flags = 7').start().raw() as c:
        steps(c, [("tally:take:absent", "ERROR_CACHE_MISS"), ("probe:new:k:refuse", "NOT_CREATED"), ("probe:new:k:x", "CREATED"), ("probe:text:k", "x")])
        assert re.fullmatch(rb'VALUE probe:object:k 7 \d+\r\n\{.*\}\r\nEND\r\n', c.ask(b"get probe:object:k\r\n"))


RAISES = {
    "raises": r"probe\.luau:\d+: as meant",
    "nested": r"probe\.luau:\d+: outer",
    "raises_table": r".*",
    "raises_nil": r".*",
    "raises_lines": r"probe\.luau:\d+: one  END  VALUE x 0 1  .*",
    "keeps_function": r".*field 'text' is a function.*",
    "keeps_cycle": r".*'me'.*",
}


@pytest.mark.parametrize("method", [*RAISES, "raises_long", "fails"])
def test_an_error_changes_nothing_and_is_answered(c, method):
    steps(c, [("probe:new:k:before", "CREATED")])
    dump = call(c, "probe:dump:k")
    assert json.loads(dump)["text"] == "before"
    for asked in (b"get probe:%s:k\r\n", b"gets probe:%s:k\r\n", b"mg probe:%s:k v\r\n", b"mg probe::k v A%s\r\n", b"mg probe::k q A%s\r\n"):
        got = c.ask(asked % method.encode())
        assert got.count(b"\r\n") == 1 and len(got) < 600, got
        line = got[:-2].decode("utf-8", "replace")
        assert line.isprintable(), line
        if method == "fails":
            assert line == "CLIENT_ERROR probe.fails: not today"
        else:
            assert re.fullmatch(rf"SERVER_ERROR script probe\.{method}: " + RAISES.get(method, ".*x+"), line), line
    assert call(c, "probe:dump:k") == dump
    # In a get of several names it is a miss, and counted.
    before = stat(c, "script_errors")
    got = c.ask(f"get probe:text:k probe:{method}:k probe:yes:k\r\n".encode())
    assert got == block("probe:text:k", "before") + block("probe:yes:k", "1") + b"END\r\n"
    assert stat(c, f"probe:{method}:errors") >= 5
    assert method == "fails" or stat(c, "script_errors") == before + 1
    assert call(c, "probe:dump:k") == dump


def test_arguments_are_checked(c):
    steps(c, [
        ("probe:new:k:x", "CREATED"), ("probe:put:k", "CLIENT_ERROR probe.put: takes text"), ("probe:put:k:a:b", "CLIENT_ERROR probe.put: takes text"),
        ("probe:yes:k:a", "CLIENT_ERROR probe.yes: takes no arguments"), ("tally:new:k", "CLIENT_ERROR tally.new: takes limit"),
        ("tally:take:k:1:2", "CLIENT_ERROR tally.take: takes [n]"), ("probe:needs_number:k:x", "CLIENT_ERROR probe.needs_number: arg 1 must be a number"),
    ])
    assert call(c, "tally:new:k:1.5").startswith("CLIENT_ERROR tally.new: arg 1 must be")
    assert call(c, "tally:take:k") is None
    longest = "probe:echo:k:" + ":".join("x" * 118)
    assert len(longest) <= 250 and call(c, longest) == "|".join("x" * 118)
    # No object, and no arguments: which of both is said does not depend on the object.
    assert call(c, "probe:put:absent").startswith("CLIENT_ERROR probe.put: takes text")


# Objects


def test_reserved_methods(c):
    steps(c, [("tally:exists:k", "NOT_FOUND"), ("tally:dump:k", None), ("tally:new:k:5", "CREATED"), ("tally:exists:k", "EXISTS"), ("tally:ttl:k", "-1"), ("tally:ttl:k:100", "100")])
    assert json.loads(call(c, "tally:dump:k")) == {"limit": 5, "count": 0}
    assert 5 < int(call(c, "tally:size:k")) < 200
    methods = call(c, "tally:methods").split("\r\n")
    assert {"new", "take", "left", "spoil", "drop", "ttl", "exists", "dump", "size", "methods"} <= {line.split()[0] for line in methods if line}
    steps(c, [("tally:take:k:2", "OK"), ("tally:drop:k", "DELETED"), ("tally:exists:k", "NOT_FOUND"), ("tally:take:k", None)])


def test_new_again_refused_and_create_only(c):
    steps(c, [
        ("tally:new:k:2", "CREATED"), ("tally:take:k:2", "OK"), ("tally:new:k:2", "CREATED"), ("tally:left:k", "2"), ("probe:new:k:x", "CREATED"), ("probe:new:k:refuse", None),
        ("probe:text:k", "x"), ("bag:new:b:a:b", "CREATED"), ("bag:new:b:c", "CLIENT_ERROR bag.new: the object exists"), ("bag:union:b:b", "a\r\nb\r\na\r\nb\r\n"),
    ])
    assert int(call(c, "bag:ttl:b")) in range(900, 1001), "as its type says"


def test_methods_that_only_read_do_not_change(c):
    steps(c, [("tally:new:k:5", "CREATED"), ("tally:take:k", "OK"), ("tally:left:k", "4")])
    assert re.fullmatch(r"SERVER_ERROR script tally\.spoil: .*changed its object", call(c, "tally:spoil:k"))
    assert call(c, "tally:left:k") == "4"


def test_objects_made_by_default(types):
    with types(rules='[objects.tally]\ncreate = [3]\nttl = "100s"\n').start().raw() as c:
        steps(c, [("tally:take:u:2", "OK"), ("tally:take:u:2", "FULL"), ("tally:take:u", "OK"), ("runaway:count:k", "0")])
        assert int(call(c, "tally:ttl:u")) in range(50, 101)
        for _ in range(500):
            call(c, "tally:take:u:0")
        assert int(call(c, "tally:ttl:u")) in range(10, 101)
        # A type without arguments for `new` makes nothing.
        assert call(c, "probe:put:p:x") is None


def test_time_to_live(types):
    with types().start("-o", "debugtime").raw() as c:
        steps(c, [("probe:new:k:x", "CREATED"), ("probe:life:k:100", "1"), ("bag:new:b:x", "CREATED")])
        for n in range(1000):
            call(c, "probe:text:k" if n % 2 else f"probe:put:k:{n}")
        assert int(call(c, "probe:ttl:k")) in range(50, 101), "calls do not renew it"
        c.ask(b"debugtime 101\r\n")
        steps(c, [("probe:text:k", None), ("bag:exists:b", "EXISTS")])
        c.ask(b"debugtime 900\r\n")
        steps(c, [("bag:exists:b", "NOT_FOUND")])


def test_tokens_make_retries_safe(c):
    steps(c, [("probe:new:k:x", "CREATED"), ("probe:once:k:a", "1"), ("probe:once:k:a", "0"), ("probe:once:k:b", "1"), ("probe:once:k:a", "0")])
    for n in range(32):
        assert call(c, f"probe:once:k:t{n}") == "1"
    assert call(c, "probe:once:k:t0") == "0" and call(c, "probe:once:k:t31") == "0"
    assert call(c, "probe:once:k:a") == "1", "the last 32 are kept"
    # The tokens are no part of what a script or a dump shows.
    assert set(json.loads(call(c, "probe:dump:k"))) == {"text", "n"}


def test_other_objects_are_read(c):
    steps(c, [("bag:new:a:1:2", "CREATED"), ("bag:new:b:3", "CREATED"), ("bag:union:a:b", "1\r\n2\r\n3\r\n"), ("bag:union:a:b:a", "1\r\n2\r\n3\r\n1\r\n2\r\n"), ("bag:add:b:4", "2")])
    assert call(c, "bag:union:a:b") == "1\r\n2\r\n3\r\n4\r\n"
    steps(c, [("bag:union:a:absent", "1\r\n2\r\n"), ("bag:union:absent:a", None), ("bag:union:a:b:absent", "1\r\n2\r\n3\r\n4\r\n")])


# What methods do outside of their objects


def test_plain_values_are_read_and_stored(types):
    with types().start("-o", "debugtime").raw() as c:
        c.set(b"a", b"value", 9)
        assert c.ask(b"get world:get:w:a\r\n") == value("world:get:w:a", "value", 9)
        steps(c, [("world:get:w:none", "ABSENT"), ("world:set:w:b:stored", "SET"), ("world:get:w:b", "stored"), ("world:set:w:t:short:100", "SET")])
        assert c.get(b"b") == b"stored" and c.get(b"t") == b"short"
        c.ask(b"debugtime 101\r\n")
        assert c.get(b"t") is None and call(c, "world:get:w:t") == "ABSENT" and c.get(b"b") == b"stored"
        assert call(c, "world:set_and_fail:w:x:y").startswith("SERVER_ERROR script world.set_and_fail: world.luau:")
        assert c.get(b"x") is None, "an error leaves nothing"
        # Not the names of objects and calls, and no key that is none.
        for key in ("tally%3A%3Ak", "tally%3Atake%3Ak", "with%20blank", "with%0d%0aend", "", "x" * 251):
            got = c.ask(f"mg world::w v Aset:{key}:v\r\n".encode())
            assert got.startswith(b"SERVER_ERROR script world.set: world.luau:") and got.count(b"\r\n") == 1, (key, got)
        assert c.ask(f"mg world::w v Aset:{'x' * 250}:v\r\n".encode()) == b"VA 3\r\nSET\r\n" and c.get(b"x" * 250) == b"v"
        large = b"v" * 300_000
        c.set(b"large", large)
        assert c.ask(b"mg world::w v Aget:large\r\n") == b"VA 300000\r\n" + large + b"\r\n"


def test_tags_and_invalidations(types):
    rules = '[[rule]]\nmatch = "page:{user}"\ntags = ["user:{user}"]\n'
    with types(rules=rules).start().raw() as c:
        steps(c, [("world:tag:w:user%3A42", "TAGGED"), ("world:exists:w", "EXISTS"), ("world:tag:other:user%3A43", "TAGGED")])
        c.set(b"page:42", b"v")
        steps(c, [("world:get:other:page%3A42", "v"), ("world:invalidate:other:user%3A42", "INVALIDATED"), ("world:exists:w", "NOT_FOUND"), ("world:exists:other", "EXISTS")])
        assert c.get(b"page:42") is None and call(c, "world:get:other:page%3A42") == "ABSENT"
        assert c.ask(b"delete @tag:user:43\r\n") == b"DELETED\r\n" and call(c, "world:exists:other") == "NOT_FOUND"
        assert call(c, "world:set_and_fail:w:x:y").startswith("SERVER_ERROR")
        assert call(c, "world:tag:w:user%3A1") == "TAGGED"
        c.ask(b"delete @tag:user:lost\r\n")
        assert call(c, "world:exists:w") == "EXISTS", "no tag of a call that failed"
        c.ask(b"flush_all\r\n")
        assert call(c, "world:exists:w") == "NOT_FOUND"


def test_a_stored_value_answers_those_that_wait(types):
    server = types(rules=rule()).start()
    with server.raw() as c, server.raw() as holder, server.raw() as waiter:
        holder.send(b"get page:1\r\n")
        assert holder.line() == b"END"
        waiter.send(b"get page:1\r\n")
        wait_until("one waits", lambda: c.stats("cattlegrid")["held"] == "1")
        # A read by a script neither waits nor takes a lease.
        assert call(c, "world:get:w:page%3A1") == "ABSENT" and c.stats("cattlegrid")["held"] == "1"
        assert call(c, "world:set:w:page%3A1:filled") == "SET"
        assert waiter.until(b"END\r\n") == block("page:1", "filled") + b"END\r\n"
        wait_until("no lease is left", lambda: c.stats("cattlegrid")["leases"] == "0")


def test_a_load_needs_a_loader(c):
    got = call(c, "world:load:w:anything")
    assert got.startswith(("SERVER_ERROR script world.load:", "CLIENT_ERROR world.load:")) and "load" in got


def test_events_and_lines_of_the_log(types):
    made = types()
    server = made.start()
    with server.raw() as c, server.raw() as watcher:
        watcher.send(b"watch\r\n")
        assert watcher.line() == b"OK"
        c.ask(b"get probe:new:k:x\r\n")
        watcher.close()
        with server.raw() as w:
            w.send(b"watch objects\r\n")
            assert w.line() == b"OK"
            assert call(c, "probe:log:k:seen-by-the-log") == "1"
            assert b"probed" in w.until(b"probed")
        made.until_logged("seen-by-the-log")


# Clients, zones, limits of names


TOUR = [
    ("tally:new:k:3", "CREATED"), ("tally:take:k", "OK"), ("tally:take:k:5", "FULL"), ("tally:take:absent", None), ("probe:new:p:x", "CREATED"),
    ("probe:put:p:%25", "1"), ("probe:text:p", "%"), ("probe:number:p:half", "0.5"), ("probe:list:p", "a\r\n2\r\nc\r\n"),
]


def test_pymemcache(types):
    client = pymemcache.Client(("127.0.0.1", types().start().port))
    for name, wanted in TOUR:
        got = client.get(name)
        assert (got.decode() if got is not None else None) == wanted, name
    assert client.get_many(["tally:left:k", "probe:raises:p", "probe:yes:p", "absent"]) == {"tally:left:k": b"2", "probe:yes:p": b"1"}
    with pytest.raises(pymemcache.exceptions.MemcacheServerError, match="script probe.raises: probe.luau:"):
        client.get("probe:raises:p")
    with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="not today"):
        client.get("probe:fails:p")
    assert client.gets("tally:left:k")[0] == b"2", "the connection is in step"
    assert client.delete("tally::k", noreply=False) and client.get("tally:left:k") is None


def test_pylibmc(types):
    server = types().start()
    client = pylibmc.Client([server.address])
    for name, wanted in TOUR:
        got = client.get(name)
        assert (got.decode() if isinstance(got, bytes) else got) == wanted, name
    got = client.get_multi(["tally:left:k", "probe:raises:p", "probe:yes:p", "absent"])
    assert got == {"tally:left:k": b"2", "probe:yes:p": b"1"}
    # libmemcached takes any SERVER_ERROR for one of the server, which it leaves alone for a while; CLIENT_ERROR is a miss or raised.
    with pytest.raises(pylibmc.Error):
        client.get("probe:raises:p")
    client = pylibmc.Client([server.address])
    assert client.get("tally:left:k") == b"2"
    assert client.delete("tally::k") and client.get("tally:left:k") is None


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kolkata"])
def test_the_calendar_does_not_depend_on_the_machine(types, zone):
    with types().start(env={"TZ": zone}).raw() as c:
        at = 1767225600  # 2026-01-01T00:00:00Z
        steps(c, [
            (f"times:date:k:!%25Y-%25m-%25dT%25H:{at}", "2026-01-01T00"), (f"times:date:k:%25Y-%25m-%25dT%25H:{at}", "2026-01-01T00"),
            (f"times:date:k:*t:{at}", "2026-1-1 0:0:0 5 1"), ("times:time:k:2026:1:1:0", str(at)), ("times:time:k:2025:13:1:0", str(at)), ("times:time:k:2025:12:31:24", str(at)),
            (f"times:back:k:{at + 12345}", str(at + 12345)),
        ])
        assert abs(int(call(c, "times:now:k")) - time.time()) < 60


def test_the_calendar_of_a_named_zone(types):
    with types(settings='timezone = "Asia/Kolkata"').start(env={"TZ": "America/Los_Angeles"}).raw() as c:
        at = 1767225600
        steps(c, [(f"times:date:k:*t:{at}", "2026-1-1 5:30:0 5 1"), (f"times:date:k:!*t:{at}", "2026-1-1 0:0:0 5 1"), ("times:time:k:2026:1:1:0", str(at - 19800)), (f"times:back:k:{at}", str(at))])


def test_many_types(types):
    made = types(sources=[], lib=False)
    for t in range(100):
        methods = "\n".join(f"function T.m{m}(self) self.n = (self.n or 0) + 1 return {t * 100 + m} end" for m in range(3))
        made.write(f"type_{t:03}.luau", own("", methods))
    with made.start("-m", "256").raw() as c:
        for t in range(100):
            assert call(c, f"type_{t:03}:m{t % 3}:k") == str(t * 100 + t % 3)
        stats = c.stats("objects")
        assert stats["type_098:m2:calls"] == "1"
        assert sum(name.startswith("type_") and name.endswith(":items") for name in stats) == 100


def test_many_methods(types, binary):
    """With `new`, 56 of a type; of all types that a server has had 1,024, with six that every type has."""
    made = types(sources=[], lib=False)

    def write(name, count):
        made.write(f"{name}.luau", own("", "\n".join(f"function T.m{m}(self) return {m} end" for m in range(count - 1))))

    write("many", 56)
    assert made.check(binary)[0] == 0
    write("many", 57)
    status, said = made.check(binary)
    assert status == 2 and "many" in said and "56" in said
    for n in range(16):
        write("many" if n == 0 else f"many{n}", 56)
    with made.start().raw() as c:
        assert call(c, "many15:m54:k") == "54" and call(c, "many:m0:k") == "0"
    write("many16", 27)
    status, said = made.check(binary)
    assert status == 2 and "1024" in said


def test_edges_of_names_and_methods(types, binary):
    made = types(sources=[], lib=False)
    made.write("a_type_of_16_let.luau", own("", "function T.m_of_16_letters_(self) return 'x' end"))
    assert made.check(binary)[0] == 0
    for name, text, says in [
        ("a_type_of_17_lett.luau", own("", ""), "a_type_of_17_lett"),
        ("Upper.luau", own("", ""), "Upper"),
        ("1digit.luau", own("", ""), "1digit"),
        ("with-dash.luau", own("", ""), "with-dash"),
        ("reserved.luau", own("", "function T.dump(self) return 1 end"), "dump"),
        ("entry.luau", own("", "T.lifetime = 5"), "lifetime"),
        ("text.luau", "return 'no table'", "table"),
        ("nothing.luau", "local x = 1", "table"),
        ("version.luau", own("", "T.version = 0"), "version"),
        ("version.luau", own("", "T.version = 65536"), "version"),
        ("keys.luau", own("", "T.keys = { absent = { 1 } }"), "absent"),
        ("methods.luau", own("", "\n".join(f"function T.m{n}(self) return 1 end" for n in range(200))), "method"),
        ("raises.luau", "error('while loading')", "raises.luau:1"),
        ("loops.luau", "while true do end", "loops"),
        ("hoards.luau", "local t = {} while true do table.insert(t, string.rep('x', 1000)) end", "hoards"),
        ("calls.luau", "cg.set('a', 'b')\n" + own("", ""), "calls.luau:1"),
    ]:
        made.write(name, text)
        status, said = made.check(binary)
        assert status == 2 and says in said and name in said, (name, status, said)
        made.remove(name)
    made.write("same.luau", own("", ""))
    made.write("same.lua", own("", ""))
    status, said = made.check(binary)
    assert status == 2 and "same.lua" in said
    made.remove("same.luau")
    assert made.check(binary)[0] == 0, "the other ending alone"


def test_random_bytes_as_names_and_arguments(c):
    """Always one reply, and the connection lives."""
    rng = random.Random(11)
    kinds = [name for name in NAMES if name != "runaway"]
    methods = [(name, line.split()[0]) for name in kinds for line in call(c, f"{name}:methods").split("\r\n") if line]
    words = ["", "0", "1", "-1", "1e308", "nan", "18446744073709551616", "%", "%3A", "%0d%0a", "k", "a", "é", "!*t", "%25Y"]
    for turn in range(150):
        asked, expected = b"", 0
        for _ in range(20):
            kind, method = rng.choice(methods)
            parts = [rng.choice(words) if rng.random() < 0.8 else "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(12))) for _ in range(rng.choice([0, 1, 1, 2, 3, 9]))]
            name = f"{kind}:{method}:{':'.join([rng.choice(['k', 'k', 'l', '']), *parts])}".encode()[:250]
            data = rng.randbytes(rng.randrange(40))
            asked += rng.choice([
                b"get %s\r\n" % name, b"gets %s %s\r\n" % (name, name), b"mg %s v k c t\r\n" % name, b"ms %s::k %d A%s v\r\n%s\r\n" % (kind.encode(), len(data), method.encode(), data),
            ])
            expected += 1
            asked += b"mg absent O%d k v s\r\nmg absent\r\n" % expected
        got = c.ask(asked)
        assert got.count(b"EN O") >= expected and got.endswith(b"EN\r\n"), (turn, got[:300])
    steps(c, [("tally:new:last:1", "CREATED"), ("tally:take:last", "OK")])


# Misbehaviour


def test_arguments_beyond_every_limit(c):
    steps(c, [("probe:new:k:x", "CREATED")])
    for size in (100_000, 1_000_000):
        assert c.ask(b"ms probe::k %d v Alength\r\n%s\r\n" % (size, b"v" * size)) == b"VA %d\r\n%d\r\n" % (len(str(size)), size)
    assert c.ask(b"ms probe::k %d v Alength\r\n%s\r\n" % (10 << 20, b"v" * (10 << 20))) == b"SERVER_ERROR object too large for cache\r\n"
    assert call(c, "probe:text:k") == "x"


def test_a_connection_that_does_not_read(types):
    server = types().start()
    with server.raw(60) as c, server.connect() as deaf:
        c.ask(b"get probe:new:k:x\r\n")
        assert c.ask(b"ms probe::k 60000 Aput\r\n" + b"v" * 60_000 + b"\r\n") == b"HD\r\n"
        deaf.settimeout(1)
        try:
            for _ in range(200):
                deaf.sendall(b"get probe:text:k\r\n" * 100)
        except TimeoutError:
            pass
        for _ in range(100):
            assert call(c, "probe:yes:k") == "1"
        assert server.rss() < 256 << 20
        # It reads at last, slowly: each reply is whole.
        deaf.settimeout(60)
        wanted = b"VALUE probe:text:k 0 60000\r\n" + b"v" * 60_000 + b"\r\nEND\r\n"
        got = b""
        while len(got) < 20 * len(wanted):
            part = deaf.recv(4096)
            assert part
            got += part
        assert got[: 20 * len(wanted)] == wanted * 20


def test_half_closed_connections_get_all_replies(types):
    server = types().start()
    with server.raw(60) as c:
        c.send(b"get tally:new:k:100\r\nget tally:take:k\r\nget probe:raises:k\r\nget tally:left:k\r\n")
        c.sock.shutdown(socket.SHUT_WR)
        got = c.closed(60)
    assert got.endswith(value("tally:take:k", "OK") + b"END\r\n" + value("tally:left:k", "99")), got
