"""Objects over bare connections: the golden transcript, each type, multi-gets, refused forms, random names, time zones."""

import random
import re
import subprocess
import time

import pytest

from crowd import write_rules
from harness import ROOT, wait_until
from test_operations import login, make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid

ON = "[objects]\n"

GOLDEN = [
    ("quota:new:userKey:10:hour", "CREATED"),
    ("quota:addandcheck:userKey:10", "QUOTA_OK"),
    ("quota:addandcheck:userKey:1", "QUOTA_EXCEEDED"),
    ("quota:reset:userKey", "QUOTA_OK"),
]
"""What Cacheismo's documentation shows of its quota."""


def value(key, text, flags=0):
    """The reply to a `get` of one key: None is a miss, an error is its line."""
    if text is None:
        return b"END\r\n"
    if text.startswith(("CLIENT_ERROR ", "SERVER_ERROR ")):
        return text.encode() + b"\r\n"
    return block(key, text, flags) + b"END\r\n"


def block(key, text, flags=0):
    return b"VALUE %s %d %d\r\n%s\r\n" % (key.encode(), flags, len(text), text.encode())


def call(c, name):
    """The value that a `get` of the name answers, or None; an error is its line."""
    got = c.ask(b"get " + name.encode() + b"\r\n")
    if got == b"END\r\n":
        return None
    if got.startswith((b"CLIENT_ERROR ", b"SERVER_ERROR ")):
        return got[:-2].decode()
    head, rest = got.split(b"\r\n", 1)
    word, key, _, size = head.split()
    assert word == b"VALUE" and key == name.encode() and rest[int(size):] == b"\r\nEND\r\n", got
    return rest[: int(size)].decode()


def steps(c, names):
    """Asks for each name as `get` and checks the whole reply."""
    for name, wanted in names:
        assert c.ask(f"get {name}\r\n".encode()) == value(name, wanted), name


def leave_the_hours_end(c):
    """Moves the clock of a server with `-o debugtime` past the end of an hour that is near: windows of an hour or more are not
    to end during a test."""
    if time.time() % 3600 > 3300:
        assert c.ask(b"debugtime 301\r\n") == b"OK\r\n"


@pytest.fixture
def objects(start, open_dir):
    """Starts a server with a rule file of this text, and `-o debugtime`."""

    def run(text=ON, *args, **options):
        server = start("--config", write_rules(open_dir, text), "-o", "debugtime", *args, **options)
        with server.raw() as connection:
            leave_the_hours_end(connection)
        return server

    return run


@pytest.fixture
def c(objects):
    with objects().raw() as connection:
        yield connection


def test_golden_transcript_classic_and_meta(c):
    steps(c, GOLDEN)
    for name, wanted in GOLDEN:
        assert c.ask(f"mg {name} v k\r\n".encode()) == f"VA {len(wanted)} k{name}\r\n{wanted}\r\n".encode()
    for call_text, wanted in [("Aaddandcheck:10", "QUOTA_OK"), ("Aaddandcheck:1", "QUOTA_EXCEEDED"), ("Areset", "QUOTA_OK")]:
        assert c.ask(f"mg quota::userKey v {call_text} O7\r\n".encode()) == f"VA {len(wanted)} O7\r\n{wanted}\r\n".encode()
    assert c.ask(b"ms quota::userKey 2 v Aaddandcheck\r\n10\r\n") == b"VA 8\r\nQUOTA_OK\r\n"
    assert c.ask(b"ms quota::userKey 1 v Aaddandcheck\r\n1\r\n") == b"VA 14\r\nQUOTA_EXCEEDED\r\n"
    # All of it in one write, and byte by byte.
    text = b"".join(b"get %s\r\n" % name.encode() for name, _ in GOLDEN)
    wanted = b"".join(value(name, answer) for name, answer in GOLDEN)
    assert c.ask(text) == wanted
    for byte in text:
        c.send(bytes([byte]))
    assert c.ask(b"") == wanted


def test_gets_shows_the_cas_of_the_object(c):
    steps(c, GOLDEN[:1])
    name = "quota:peek:userKey"

    def cas():
        got = re.fullmatch(rb"VALUE quota:peek:userKey 0 \d+ (\d+)\r\n\{.*\}\r\nEND\r\n", c.ask(f"gets {name}\r\n".encode()))
        return int(got[1])

    first = cas()
    assert cas() == first, "a call that reads leaves it"
    call(c, "quota:addandcheck:userKey:1")
    assert cas() > first
    assert c.ask(b"mg %s c\r\n" % name.encode()) == b"HD c%d\r\n" % cas()


TYPES = {
    "quota": [
        ("quota:addandcheck:k", None), ("quota:new:k:3:7200s", "CREATED"), ("quota:addandcheck:k", "QUOTA_OK"), ("quota:addandcheck:k:3", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:2", "QUOTA_OK"), ("quota:addandcheck:k:0", "CLIENT_ERROR quota.addandcheck: arg 1 must be a positive number"),
        ("quota:addandcheck:k:18446744073709551616", "QUOTA_EXCEEDED"),
        ("quota:addandcheck:k:18446744073709551615", "QUOTA_EXCEEDED"), ("quota:new:k:1:fortnight", None),
        ("quota:new:k:1", "CLIENT_ERROR quota.new: takes limit window"), ("quota:new:k:0:day", "CREATED"), ("quota:addandcheck:k", "QUOTA_EXCEEDED"),
        ("quota:take:t:2:2:hour", "QUOTA_OK"), ("quota:take:t:1:2:hour", "QUOTA_EXCEEDED"), ("quota:take:t:1:3:hour", "QUOTA_OK"),
    ],
    "swcounter": [
        ("swcounter:add:k:1", None), ("swcounter:new:k:3", "CREATED"), ("swcounter:getmax:k", None), ("swcounter:add:k:-9", "SUCCESS"),
        ("swcounter:getmax:k", "-9"), ("swcounter:add:k:1", "SUCCESS"), ("swcounter:add:k:2", "SUCCESS"), ("swcounter:add:k:3", "SUCCESS"),
        ("swcounter:getmin:k", "1"), ("swcounter:getlast:k", "3"), ("swcounter:getavg:k", "2"), ("swcounter:getsum:k", "6"), ("swcounter:getp:k:50", "2"),
        ("swcounter:new:k:0", None), ("swcounter:new:k:1025", None), ("swcounter:new:k:1024", "CREATED"),
    ],
    "set": [
        ("set:put:k:a", None), ("set:new:k", "CREATED"), ("set:count:k", "0"), ("set:getall:k", ""), ("set:put:k:b:a:c", "SUCCESS"), ("set:count:k", "3"),
        ("set:getall:k", "a\r\nb\r\nc\r\n"), ("set:exist:k:a", "EXISTS"), ("set:exist:k:z", "NOT_FOUND"), ("set:add:k:a:z", "1"),
        ("set:delete:k:nothing", "SUCCESS"), ("set:delete:k:z", "SUCCESS"), ("set:new:o", "CREATED"), ("set:put:o:b:d", "SUCCESS"),
        ("set:union:k:o", "a\r\nb\r\nc\r\nd\r\n"), ("set:intersection:k:o", "b\r\n"), ("set:diff:k:o", "a\r\nc\r\n"), ("set:diff:k:absent", "a\r\nb\r\nc\r\n"),
        ("set:union:k:k", "a\r\nb\r\nc\r\n"), ("set:put:k", "CLIENT_ERROR set.put: takes member [member ...]"),
        ("set:put:k:a%3Ab", "SUCCESS"), ("set:put:k:%25", "SUCCESS"), ("set:getall:k", "%\r\na\r\na:b\r\nb\r\nc\r\n"), ("set:new:k", "CREATED"), ("set:count:k", "0"),
    ],
    "map": [
        ("map:put:k:a:1", None), ("map:new:k", "CREATED"), ("map:put:k:b:2:a:1", "SUCCESS"), ("map:get:k:a", "1"), ("map:get:k:z", None),
        ("map:count:k", "2"), ("map:getkeys:k", "a\r\nb\r\n"), ("map:getvalues:k", "1\r\n2\r\n"), ("map:getall:k", "a : 1\r\nb : 2\r\n"),
        ("map:incr:k:a:-3", "-2"), ("map:incr:k:n", "1"), ("map:put:k:x", "CLIENT_ERROR map.put: takes key value [key value ...]"),
        ("map:put:k:a:1:b", "CLIENT_ERROR map.put: takes key value [key value ...]"), ("map:delete:k:a:n", "SUCCESS"), ("map:getall:k", "b : 2\r\n"),
        ("map:put:k:e:", "SUCCESS"), ("map:get:k:e", ""),
    ],
    "counter": [
        ("counter:get:k", None), ("counter:add:k:5", "5"), ("counter:add:k:-7", "-2"), ("counter:set:k:9223372036854775807", "9223372036854775807"),
        ("counter:add:k:1", "9223372036854775807 saturated"), ("counter:max:k:3", "9223372036854775807"), ("counter:min:k:3", "3"),
        ("counter:add:t:1:100", "1"), ("counter:ttl:t", "100"), ("counter:ttl:k", "-1"),
    ],
    "gcra": [("gcra:take:k:1:1:3600", "0 2 1 -1 3600"), ("gcra:take:k:1:1:3600:9", re.compile("1 2 1 -1 3[56][0-9][0-9]")), ("gcra:take:k:1:1", "CLIENT_ERROR gcra.take: takes burst count period [n]")],
    "bucket": [("bucket:take:k:2:0.0001:2", "OK 0"), ("bucket:take:k:2:0.0001:3", "WAIT -1")],
    "sliding": [("sliding:hit:k:2:1h", "OK 1"), ("sliding:hit:k:2:1h", "OK 0"), ("sliding:count:k", "2"), ("sliding:count:absent", None)],
    "lock": [
        ("lock:holder:k", None), ("lock:release:k:me", "NOT_OWNER"), ("lock:renew:k:me:30s", "NOT_OWNER"), ("lock:take:k:me:0s", "CLIENT_ERROR "),
    ],
    "sem": [
        ("sem:take:k:a:2:1h", "OK 1"), ("sem:take:k:b:2:1h", "OK 0"), ("sem:take:k:a:2:1h", "OK 0"), ("sem:count:k", "2"), ("sem:release:k:a", "OK"),
        ("sem:release:k:a", "NOT_OWNER"), ("sem:take:k:c:2:1h", "OK 0"),
    ],
    "board": [
        ("board:add:k:ann:10:bob:2.5", "2"), ("board:top:k:2", "ann 10\r\nbob 2.5\r\n"), ("board:incr:k:bob:10", "12.5"), ("board:rank:k:bob", "1"),
        ("board:rank:k:zoe", None), ("board:around:k:ann:1", "bob 12.5\r\nann 10\r\n"), ("board:add:k:x:nan", "CLIENT_ERROR board.add: arg 2 must be a finite number"),
        ("board:count:k", "2"), ("board:remove:k:ann:zoe", "1"), ("board:bottom:k", "bob 12.5\r\n"),
    ],
    "topk": [("topk:hit:k:a:3", "3"), ("topk:hit:k:b", "1"), ("topk:list:k:10", "a 3\r\nb 1\r\n"), ("topk:list:k:1", "a 3\r\n"), ("topk:list:absent", None)],
    "hll": [("hll:count:absent", None), ("hll:add:k:x", "1"), ("hll:add:k:x", "0"), ("hll:add:k:y", "1"), ("hll:count:k", "2")],
    "bloom": [("bloom:has:absent:x", None), ("bloom:add:k:x", "NEW"), ("bloom:add:k:x", "SEEN"), ("bloom:has:k:x", "SEEN"), ("bloom:has:k:y", "NEW")],
    "recent": [("recent:add:k:a", "NEW"), ("recent:add:k:b", "NEW"), ("recent:add:k:a", "SEEN"), ("recent:list:k", "a\r\nb\r\n")],
    "queue": [
        ("queue:pop:k", None), ("queue:push:k:a", "1"), ("queue:push:k:b", "2"), ("queue:len:k", "2"), ("queue:peek:k", "a"), ("queue:pop:k", "a"),
        ("queue:pop:k", "b"), ("queue:pop:k", None), ("queue:new:k:1:refuse", "CREATED"), ("queue:push:k:a", "1"), ("queue:push:k:b", "FULL"),
        ("queue:new:k:1:drop", "CREATED"), ("queue:push:k:a", "1"), ("queue:push:k:b", "1"), ("queue:all:k", "b\r\n"),
    ],
    "consistent": [
        ("consistent:new:k:a,b,c", "CREATED"), ("consistent:getServerCount:k", "3"), ("consistent:isServerAvailable:k:a", "1"), ("consistent:isServerAvailable:k:z", "0"),
        ("consistent:setServerAvailable:k:a:0", "SUCCESS"), ("consistent:setServerAvailable:k:b:0", "SUCCESS"), ("consistent:findServerForKey:k:anything", "c"),
        ("consistent:setServerAvailable:k:c:0", "SUCCESS"), ("consistent:findServerForKey:k:anything", None),
    ],
}


@pytest.mark.parametrize("name", TYPES)
def test_type(c, name):
    for asked, wanted in TYPES[name]:
        got = call(c, asked)
        if isinstance(wanted, re.Pattern):
            assert wanted.fullmatch(got), asked
        elif wanted is not None and wanted.endswith("_ERROR "):
            assert got.startswith(wanted), asked
        else:
            assert got == wanted, asked


def test_lock_fences_rise(c):
    first = call(c, "lock:take:k:me:1h")
    assert first.startswith("OK ") and call(c, "lock:take:k:me:1h") == first and call(c, "lock:holder:k") == "me"
    assert re.fullmatch(r"HELD 3[56]\d\d(\.\d+)?", call(c, "lock:take:k:you:1h")) and call(c, "lock:release:k:you") == "NOT_OWNER"
    assert call(c, "lock:release:k:me") == "OK"
    assert int(call(c, "lock:take:k:you:1h")[3:]) > int(first[3:])


def test_methods_of_every_object(c):
    types = types_of(c)
    assert set(TYPES) == set(types)
    for name in types:
        methods = call(c, f"{name}:methods").split("\r\n")
        assert methods.pop() == "" and {"drop", "ttl", "exists", "dump", "size"} <= set(methods), name
        made = next((asked for asked, wanted in TYPES[name] if wanted and "ERROR" not in wanted and "NOT_" not in wanted), "lock:take:k:me:1h")
        key = made.split(":")[2]
        assert call(c, f"{name}:exists:{key}") == "NOT_FOUND" and call(c, f"{name}:drop:{key}") == "NOT_FOUND"
        assert all(call(c, f"{name}:{method}:{key}") is None for method in ("ttl", "dump", "size"))
        call(c, made)
        assert call(c, f"{name}:exists:{key}") == "EXISTS"
        assert int(call(c, f"{name}:size:{key}")) >= 0 and call(c, f"{name}:dump:{key}")[0] in "{["
        assert call(c, f"{name}:ttl:{key}:1000") == "1000" and int(call(c, f"{name}:ttl:{key}")) in range(900, 1001)
        assert call(c, f"{name}:ttl:{key}:0") == "-1" and call(c, f"{name}:ttl:{key}") == "-1"
        assert call(c, f"{name}:drop:{key}") == "DELETED" and call(c, f"{name}:exists:{key}") == "NOT_FOUND"
        call(c, made)
        assert c.ask(f"delete {name}::{key}\r\ndelete {name}::{key}\r\n".encode()) == b"DELETED\r\nNOT_FOUND\r\n"
        call(c, made)
        assert c.ask(b"flush_all\r\n") == b"OK\r\n" and call(c, f"{name}:exists:{key}") == "NOT_FOUND"


def types_of(c):
    """The types, as `stats objects` names them."""
    return sorted({name.split(":")[0] for name in c.stats("objects") if name.endswith(":items")})


def test_multi_get_mixes_calls_and_plain_keys(c):
    c.set(b"plain", b"p")
    call(c, "set:new:s")
    keys = ["plain", "set:put:s:a", "set:count:s", "absent", "set:put:s:b", "set:count:s", "set:count:no", "set:put:s", "quota:addandcheck:s:1:2", "set:getall:s", "plain"]
    wanted = ["p", "SUCCESS", "1", None, "SUCCESS", "2", None, None, None, "a\r\nb\r\n", "p"]
    blocks = b"".join(block(k, v) for k, v in zip(keys, wanted) if v is not None)
    assert c.ask(b"get " + " ".join(keys).encode() + b"\r\n") == blocks + b"END\r\n"
    stats = c.stats("objects")
    assert (stats["set:put:calls"], stats["set:put:errors"], stats["quota:addandcheck:errors"]) == ("3", "1", "1")
    # The same call many times in a line, and in one pipeline.
    assert c.ask(b"get" + b" counter:add:n:1" * 2000 + b"\r\n").count(b"VALUE ") == 2000
    assert c.ask(b"get counter:add:n:1\r\n" * 2000 + b"mg counter:add:n:1 q\r\n" * 2000).count(b"END\r\n") == 2000
    assert call(c, "counter:get:n") == "6000"


def test_other_commands_refuse_names(c):
    steps(c, GOLDEN[:2])
    a_method = b"CLIENT_ERROR quota:addandcheck is a method\r\n"
    for text in [
        "set {} 0 0 1\r\nx", "add {} 0 0 1\r\nx", "replace {} 0 0 1\r\nx", "append {} 0 0 1\r\nx", "prepend {} 0 0 1\r\nx", "cas {} 0 0 1 5\r\nx",
        "incr {} 1", "decr {} 1", "touch {} 10", "gat 10 {}", "gats 10 {}", "delete {}", "ms {} 1\r\nx", "md {}", "ma {}", "mg {} T30", "mg {} N30", "mg {} R30",
    ]:
        assert c.ask(text.format("quota:addandcheck:userKey:1").encode() + b"\r\n") == a_method, text
    for text in ["set {} 0 0 1 noreply\r\nx", "incr {} 1 noreply", "delete {} noreply"]:
        assert c.ask(text.format("quota:addandcheck:userKey:1").encode() + b"\r\n") == b"", text
    for text in ["get {}", "mg {} v", "set {} 0 0 1\r\nx", "ms {} 1\r\nx", "ma {}", "touch {} 1"]:
        assert c.ask(text.format("quota::userKey").encode() + b"\r\n").startswith(b"CLIENT_ERROR quota:: names an object"), text
    assert c.ask(b"mg plain A\r\nmg plain Acount v\r\n").count(b"CLIENT_ERROR") == 2
    assert call(c, "quota:addandcheck:userKey:1") == "QUOTA_EXCEEDED", "none of these has changed it"
    assert c.ask(b"md quota::userKey q\r\nmd quota::userKey\r\n") == b"NF\r\n"


def test_names_that_are_plain_keys(c):
    """What made Cacheismo's server hang, and names near those of calls."""
    plain = [
        "print:1", "type:5", "next:page", "error:404", "os:tmpname", "set:x", "set:", "set", "quota", "quota:", ":quota", "quota:peek2:x", "Quota:peek:x",
        "quotaa:peek:x", "quota :peek".replace(" ", "_"), "quota:PEEK:x", "set::", "quota::",
    ]
    for key in plain:
        assert c.set(key.encode(), b"v") == b"STORED" and c.get(key.encode()) == b"v", key
    assert c.ask(b"get " + " ".join(plain).encode() + b"\r\n").count(b"VALUE ") == len(plain)


def test_without_objects_names_are_plain_keys(start):
    with start().raw() as c:
        for key in (b"quota:new:u:1:hour", b"quota::u", b"set:count:s"):
            assert c.set(key, b"v") == b"STORED" and c.get(key) == b"v"
        assert c.stats("objects") == {}


def test_lengths_at_their_edges(c):
    head = "set:new:"
    longest = head + "k" * (250 - len(head))
    assert call(c, longest) == "CREATED" and call(c, "set:count:" + longest[len(head):-2]) is None
    assert c.ask(f"get {longest}k\r\n".encode()).startswith(b"CLIENT_ERROR")
    # By the flag the object's key, its arguments and data may be longer than a name.
    own = "set::" + "o" * 245
    assert c.ask(f"mg {own} v Anew\r\n".encode()) == b"VA 7\r\nCREATED\r\n"
    assert c.ask(f"ms {own} 200 Aput\r\n{'m' * 200}\r\n".encode()) == b"HD\r\n"
    assert c.ask(f"mg {own} v Acount\r\n".encode()) == b"VA 1\r\n1\r\n"
    # Any bytes as data, with flags' escapes as arguments.
    assert c.ask(b"ms set::b 5 Anew\r\n12345\r\n").startswith(b"CLIENT_ERROR set.new: takes no arguments")
    call(c, "map:new:b")
    data = bytes(range(256))
    assert c.ask(b"ms map::b 256 Aput:all%20of%20it\r\n" + data + b"\r\n") == b"HD\r\n"
    assert c.ask(b"mg map::b v Aget:all%20of%20it\r\n") == b"VA 256\r\n" + data + b"\r\n"
    # Large values, and a value that no item could hold.
    for size, wanted in [(1000, b"HD\r\n"), (500_000, b"HD\r\n"), (2 << 20, b"SERVER_ERROR object too large for cache\r\n")]:
        assert c.ask(b"ms map::b %d Aput:large\r\n%s\r\n" % (size, b"v" * size)) == wanted
    got = c.ask(b"mg map::b v Aget:large\r\n")
    assert got == b"VA 500000\r\n" + b"v" * 500_000 + b"\r\n"


def test_a_result_that_is_too_large(objects):
    with objects(ON, "-I", "16k").raw() as c:
        call(c, "set:new:s")
        for n in range(0, 2000, 20):
            call(c, "set:put:s:" + ":".join(f"m{i:08}" for i in range(n, n + 20)))
        assert call(c, "set:getall:s") == "SERVER_ERROR result too large"
        assert call(c, "set:dump:s") == "SERVER_ERROR result too large"
        assert c.ask(b"get set:getall:s set:count:s\r\n") == block("set:count:s", "2000") + b"END\r\n"
        assert c.ask(b"mg set:getall:s v\r\n") == b"SERVER_ERROR result too large\r\n"
        assert call(c, "set:count:s") == "2000"


def test_objects_expire_and_are_tagged(objects):
    rules = ON + '[[rule]]\nmatch = "quota::{id}"\ntags = ["user:{id}"]\n'
    with objects(rules).raw() as c:
        call(c, "quota:new:u:5:hour")
        call(c, "quota:addandcheck:u:5")
        assert c.ask(b"ms quota::v 4 Anew:7 v\r\nhour\r\n") == b"VA 7\r\nCREATED\r\n"
        assert call(c, "quota:ttl:v:100") == "100"
        for _ in range(1000):
            call(c, "quota:addandcheck:v:1")
        assert int(call(c, "quota:ttl:v")) in range(50, 101), "calls do not renew it"
        assert c.ask(b"debugtime 50\r\n") == b"OK\r\n" and call(c, "quota:exists:v") == "EXISTS"
        assert c.ask(b"debugtime 51\r\n") == b"OK\r\n" and call(c, "quota:exists:v") == "NOT_FOUND"
        assert c.ask(b"delete @tag:user:u\r\n") == b"DELETED\r\n"
        assert call(c, "quota:exists:u") == "NOT_FOUND"


def resets_in(c, key):
    """Seconds until the window of this quota ends."""
    return int(re.search(r'"resets_in":(\d+)', call(c, f"quota:peek:{key}"))[1])


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kolkata"])
def test_windows_roll_at_the_boundary_whatever_the_zone(objects, zone):
    """The server's own time decides: its zone does not matter. `debugtime` steps to each window's end."""
    server = objects(ON, env={"TZ": zone})
    with server.raw() as c:
        for window, longest in [("90s", 90), ("minute", 60), ("hour", 3600), ("day", 86400), ("week", 7 * 86400), ("month", 31 * 86400)]:
            call(c, f"quota:new:{window}:1:{window}")
            # Windows end at moments of the clock: to the beginning of one.
            call(c, f"quota:addandcheck:{window}")
            c.ask(b"debugtime %d\r\n" % resets_in(c, window))
            for _ in range(3):
                assert call(c, f"quota:addandcheck:{window}") == "QUOTA_OK", window
                left = resets_in(c, window)
                assert 1 <= left <= longest
                if left > 40:
                    # Far from the end, so that the machine's delays do not matter.
                    assert c.ask(b"debugtime %d\r\n" % (left - 40)) == b"OK\r\n"
                    assert call(c, f"quota:addandcheck:{window}") == "QUOTA_EXCEEDED", window
                    left = 40
                assert c.ask(b"debugtime %d\r\n" % left) == b"OK\r\n"
        # Days end at midnight in UTC, not in the server's zone.
        call(c, "quota:new:d:1:day")
        call(c, "quota:addandcheck:d")
        day = re.search(r'"end_ms":(\d+)', call(c, "quota:dump:d"))
        assert int(day[1]) % 86_400_000 == 0


def test_days_of_a_named_zone(objects):
    with objects(ON + 'timezone = "Asia/Kolkata"\n', env={"TZ": "America/Los_Angeles"}).raw() as c:
        call(c, "quota:new:d:1:day")
        call(c, "quota:addandcheck:d")
        end = int(re.search(r'"end_ms":(\d+)', call(c, "quota:dump:d"))[1])
        assert (end + 19_800_000) % 86_400_000 == 0, "5:30 before midnight in UTC"


def test_cacheismo_replies(objects):
    with objects(ON + 'compat = "cacheismo"\njson_flags = 7\n').raw() as c:
        steps(c, GOLDEN)
        steps(c, [
            ("quota:addandcheck:absent", "ERROR_CACHE_MISS"), ("quota:new:k:1:fortnight", "NOT_CREATED"), ("map:new:m", "CREATED"), ("map:put:m:k:v", "SUCCESS"),
            ("map:get:m:k", "k : v"), ("set:count:absent", "ERROR_CACHE_MISS"), ("set:new:s", "CREATED"), ("set:put:s:a", "SUCCESS"), ("set:getall:s", "a\r\n"),
        ])
        assert c.ask(b"get map:dump:m\r\n") == value("map:dump:m", '{"k":"v"}', 7)


def test_settings_of_types(objects):
    rules = (
        '[objects]\nprefix = "obj."\ntypes = ["quota", "set", "counter"]\npinned_max = "1MiB"\n'
        '[objects.quota]\ncreate = [3, "hour"]\nttl = "1000s"\nevict = "never"\n'
    )
    with objects(rules, "-m", "64").raw() as c:
        assert c.set(b"quota:new:a:1:hour", b"v") == b"STORED" and c.set(b"obj.map:new:m", b"v") == b"STORED"
        assert [call(c, "obj.quota:addandcheck:u:2") for _ in range(2)] == ["QUOTA_OK", "QUOTA_EXCEEDED"]
        assert int(call(c, "obj.quota:ttl:u")) in range(900, 1001)
        assert call(c, "obj.set:put:s:a") is None and call(c, "obj.counter:add:c:1") == "1"
        assert int(c.stats("objects")["pinned"]) > 0
        n = 0
        while (got := call(c, f"obj.quota:new:{n:06}:1:hour")) == "CREATED":
            n += 1
            assert n < 100_000, "no limit is met"
        assert got == "SERVER_ERROR out of memory storing object"
        stats = c.stats("objects")
        assert (1 << 20) * 0.8 < int(stats["pinned"]) <= int(stats["pinned_max"]) == 1 << 20
        assert call(c, "obj.quota:addandcheck:000000:1") == "QUOTA_OK", "those that are there work"
        # Plain values fill the memory several times over; no pinned object leaves.
        for k in range(2000):
            c.set(b"fill:%d" % k, b"v" * 100_000)
        assert int(c.stats()["evictions"]) > 0
        assert all(call(c, f"obj.quota:exists:{k:06}") == "EXISTS" for k in range(n))
        c.ask(b"flush_all\r\n")
        wait_until("flushed objects make room", lambda: call(c, "obj.quota:new:again:1:hour") == "CREATED")


def test_random_bytes_as_names_and_arguments(c):
    """Always one reply, and the connection lives."""
    rng = random.Random(7)
    methods = [(name, m) for name in TYPES for m in call(c, f"{name}:methods").split()]
    words = ["", "0", "1", "-1", "10", "hour", "1s", "nan", "inf", "1e308", "-9223372036854775808", "18446744073709551616", "%", "%3A", "%25", "%0d%0a", "a", "me", "k", "é"]

    def name():
        kind, method = rng.choice(methods)
        parts = [rng.choice(words) if rng.random() < 0.8 else "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(12))) for _ in range(rng.choice([0, 1, 1, 2, 3, 4, 9, 60]))]
        text = f"{kind}:{method}:" + ":".join([rng.choice(["k", "k", "k2", ""]), *parts])
        return text.encode()[: rng.choice([250, 250, 40])]

    for turn in range(300):
        asked, expected = b"", 0
        for _ in range(20):
            way = rng.randrange(5)
            if way == 0:
                asked += b"get " + name() + b"\r\n"
            elif way == 1:
                asked += b"gets " + b" ".join(name() for _ in range(rng.randrange(1, 9))) + b"\r\n"
            elif way == 2:
                asked += b"mg " + name() + b" v k c t\r\n"
            elif way == 3:
                kind, method = rng.choice(methods)
                data = rng.randbytes(rng.randrange(40))
                asked += b"ms %s::k %d A%s v\r\n%s\r\n" % (kind.encode(), len(data), (method + ":" + rng.choice(words)).encode(), data)
            else:
                token = bytes(b for b in rng.randbytes(rng.randrange(30)) if b > 32)
                asked += b"mg set::k v A" + token + b"\r\n"
            expected += 1
            # An opaque reply after each request: whether it was answered, in order.
            asked += b"mg absent O%d\r\nget absent\r\n" % expected
        got = c.ask(asked)
        assert got.count(b"EN\r\nEND\r\n") >= expected or b"EN O" in got, (turn, got[:200])
    assert call(c, "counter:add:last:1") == "1"


def test_why_shows_an_object(c):
    steps(c, GOLDEN[:2])
    text = c.ask(b"get @why:quota::userKey\r\n").decode()
    assert '"type"' in text and "quota" in text and '"exists":true' in text.replace(" ", ""), text


def test_statistics_count_calls(c):
    steps(c, GOLDEN)
    call(c, "quota:addandcheck:absent")
    call(c, "quota:addandcheck:userKey:x")
    stats = c.stats("objects")
    assert (stats["quota:items"], stats["objects"]) == ("1", "1")
    assert [stats[f"quota:addandcheck:{name}"] for name in ("calls", "errors", "misses")] == ["4", "1", "1"]
    assert stats["quota:addandcheck:bytes"] == str(len("QUOTA_OKQUOTA_EXCEEDED"))
    assert int(stats["bytes"]) > 28 and c.stats()["curr_items"] == "1"
    c.ask(b"stats reset\r\n")
    assert "quota:addandcheck:calls" not in c.stats("objects")
    call(c, "quota:drop:userKey")
    assert c.stats("objects")["quota:items"] == "0"


def test_over_tls_and_with_a_login(start, open_dir):
    rules = write_rules(open_dir, ON)
    make_certificate(open_dir)
    server = start("--config", rules, "-Z", "-o", f"debugtime,ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    with tls(server) as c:
        leave_the_hours_end(c)
        steps(c, GOLDEN)
    users = open_dir + "/users"
    with open(users, "w") as f:
        f.write("u:p\n")
    with start("--config", rules, "-Y", users).raw() as c:
        c.send(b"get quota:new:u:1:hour\r\n")
        assert c.line() == b"CLIENT_ERROR unauthenticated"
    with start("--config", rules, "-Y", users, "-o", "debugtime").raw() as c:
        assert login(c, "u", "p") == b"STORED"
        leave_the_hours_end(c)
        steps(c, GOLDEN)


def run(binary, *words):
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_subcommands(binary, open_dir):
    status, out, _ = run(binary, "objects", "list")
    assert status == 0 and all(name in out for name in TYPES)
    status, out, _ = run(binary, "objects", "call", "--at", "2026-01-01T00:30:00Z", *[name for name, _ in GOLDEN[:3]], "+30m", "quota:addandcheck:userKey:1")
    text = "".join(f"get {name}\n" + value(name, wanted).decode().replace("\r\n", "\n") for name, wanted in GOLDEN[:3])
    assert status == 0 and text in out and out.endswith(value("quota:addandcheck:userKey:1", "QUOTA_OK").decode().replace("\r\n", "\n"))
    for file in sorted((ROOT / "examples" / "objects").glob("*.memc")):
        assert run(binary, "objects", "test", file)[0] == 0, file
    status, _, err = run(binary, "objects", "call", "plain")
    assert status == 2 and "plain" in err
    for text, says in [("[objects]\ntypes = [\"nothing\"]\n", "nothing"), ("[objects.quota]\ncreate = [\"x\"]\n", "create"), ("[objects]\ntimezone = \"Mars/Base\"\n", "Mars")]:
        status, out, err = run(binary, "check", write_rules(open_dir, text))
        assert status == 2 and says in out + err, text
    assert run(binary, "check", write_rules(open_dir, ON))[0] == 0


@pytest.mark.parametrize("args", [("-m", "1"), ("-m", "8"), ("-M", "-m", "8"), ("-m", "8", "-t", "1")])
def test_little_memory(objects, args):
    """Calls are refused whole, or evict; the rest of the server works."""
    # Below -m 8 what is kept beside items and the largest item must be smaller than by default.
    args += ("-I", "16k") if args[1] == "1" else ()
    small = '[server]\ntag_memory = "64KiB"\nledger_memory = "64KiB"\nfence_memory = "64KiB"\n'
    with objects(small + ON, *args).raw() as c:
        made = refused = 0
        call(c, "set:new:s")
        for n in range(0, 30_000, 20):
            got = call(c, "set:put:s:" + ":".join(f"m{i:08}" for i in range(n, n + 20)))
            if got == "SUCCESS":
                made += 1
            elif got is None:
                assert "-M" not in args, "only eviction ends it"
                call(c, "set:new:s")
                made = 0
            else:
                assert got == "SERVER_ERROR out of memory storing object"
                refused += 1
        if (count := call(c, "set:count:s")) is not None:
            assert int(count) == 20 * made, "each was done whole or not at all"
        for n in range(20_000):
            got = call(c, f"quota:new:{n:012}{'x' * 150}:10:hour")
            assert got in ("CREATED", "SERVER_ERROR out of memory storing object")
        assert call(c, "set:drop:s") in ("DELETED", "NOT_FOUND")
        c.ask(b"flush_all\r\n")
        wait_until("there is room after a flush", lambda: c.set(b"plain", b"v" * 10_000) == b"STORED" and call(c, "counter:add:c:1") is not None)
