"""Herd protection, tags and objects for clients of the binary protocol: packets byte by byte, and the clients that applications
use. What a text client is promised in `test_herd.py` holds for them too; a multi-get is a run of quiet gets here.
"""

import json
import threading
import time

import bmemcached
import pylibmc
import pytest

import packets
from crowd import HOLDS, WIDE_FENCE, Crowd, held, reset, rule, show, until_held
from harness import wait_until
from packets import (
    BUSY, DELETE, EXISTS, GAT, GATK, GATKQ, GATQ, GET, GETK, GETKQ, GETQ, INTERNAL, NOOP, NOT_FOUND, NOT_STORED, OK, VERSION, count,
    multi_get, packet, store, touch,
)
from test_herd import herd, lease, together  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid

KEYS = [b"page:%d" % n for n in range(20)]
QUIET = {GETQ, GETKQ, GATQ, GATKQ}


def binaries(server, count):
    return [packets.connect(server, 40) for _ in range(count)]


def text(server):
    return server.raw(40)


def miss(c, key=b"page:1"):
    """This connection is to compute."""
    assert c.get(key) is None


def get(key=b"page:1", opcode=GET, **fields):
    """A get with any of the opcodes; those that touch give an hour."""
    if opcode in (GAT, GATQ, GATK, GATKQ):
        return touch(key, 3600, opcode, **fields)
    return packet(opcode, key, **fields)


def run(keys, opcode=GETKQ, end=NOOP):
    """Quiet gets, numbered from 1, and what ends them with the number 0: a noop, or a loud get of the last key."""
    if end == NOOP:
        return b"".join(get(key, opcode, opaque=n) for n, key in enumerate(keys, 1)) + packet(NOOP)
    return run(keys[:-1], opcode)[: -packets.HEADER.size] + get(keys[-1], end)


class BinaryCrowd(Crowd):
    """A reply is whole when its last packet answers a loud request."""

    def poll_once(self, seconds=0.0, ends=()):
        out = []
        for number, _ in self.poll.poll(seconds, 1024):
            try:
                got = self.sockets[number].recv(1 << 16)
            except BlockingIOError:
                continue
            assert got, f"connection closed after {self.buffers[number]!r}"
            self.buffers[number] += got
            replies = self.whole(self.buffers[number])
            if replies:
                out.append((number, replies, time.monotonic()))
                self.buffers[number] = b""
        return out

    @staticmethod
    def whole(data):
        replies = []
        while data:
            taken = packets.take(data)
            if not taken:
                return None
            replies.append(taken[0])
            data = taken[1]
        return replies if replies and replies[-1].opcode not in QUIET else None


def ask_and_compute(crowd, wanted, ask=True):
    """Each client asks for its keys in one run, and computes and stores those that it misses. How often each key was computed."""
    wanted = dict(zip(crowd.order, wanted, strict=True))
    if ask:
        crowd.send(lambda place: multi_get(wanted[crowd.order[place]]))
    counts, asking, stores = {}, set(wanted), dict.fromkeys(wanted, 0)
    end = time.monotonic() + 40
    while (asking or any(stores.values())) and time.monotonic() < end:
        for who, replies, _ in crowd.poll_once(1):
            if who not in asking:
                assert {(reply.opcode, reply.status) for reply in replies} == {(packets.SET, OK)}
                stores[who] -= len(replies)
                continue
            asking.discard(who)
            assert [reply.opcode for reply in replies] == [GETKQ] * (len(replies) - 1) + [NOOP]
            found = {reply.key: (reply.opaque, reply.value) for reply in replies[:-1]}
            expected = {key: (n, b"of " + key) for n, key in enumerate(wanted[who], 1)}
            assert list(found.items()) == [item for item in expected.items() if item[0] in found], "in the order of the run"
            missed = [key for key in wanted[who] if key not in found]
            for key in missed:
                counts[key] = counts.get(key, 0) + 1
            stores[who] = len(missed)
            if missed:
                crowd.send(b"".join(store(key, b"of " + key) for key in missed), who)
    assert not asking and not any(stores.values()), f"{len(asking)} have no answer"
    return counts


def computed(server):
    """How many computations began."""
    stats = server.stats("rules")
    return sum(int(stats[f"total:{name}"]) for name in ("leases", "leases_stale", "leases_early"))


@pytest.fixture
def many(herd):  # noqa: F811
    """Starts a server for many keys that are computed at the same time."""

    def run(terms=HOLDS, *args):
        return herd(WIDE_FENCE + rule(terms=terms), "-m", 1024, *args)

    return run


# Stampedes


@pytest.mark.parametrize("opcodes", [(GET,), (GETK,), (GAT,), (GATK,), (GET, GETK, GAT, GATK)])
def test_a_hundred_connections_one_computation(herd, opcodes):  # noqa: F811
    server = herd()
    with BinaryCrowd(server, 100) as crowd:
        kinds = {who: opcodes[place % len(opcodes)] for place, who in enumerate(crowd.order)}
        crowd.send(lambda place: get(opcode=kinds[crowd.order[place]], opaque=place + 7))
        [(holder, [reply], _)] = crowd.replies(1)
        assert reply.status == NOT_FOUND
        until_held(server, 99)
        crowd.send(store(b"page:1", b"hello", flags=5), holder)
        for who, [reply], _ in crowd.replies(100):
            if who == holder:
                assert reply.opcode == packets.SET and reply.status == OK and reply.cas
                continue
            key = b"page:1" if kinds[who] in (GETK, GATK) else b""
            assert (reply.opcode, reply.status, reply.key, reply.value) == (kinds[who], OK, key, b"hello")
            assert reply.extras == b"\0\0\0\5" and reply.opaque == crowd.order.index(who) + 7 and reply.cas
        assert crowd.silent() and computed(server) == 1
    stats = server.stats()
    assert int(stats["get_hits"]) + int(stats["touch_hits"]) == 99
    with text(server) as c:
        assert (c.ttl(b"page:1") > 3000) == any(kind in (GAT, GATK) for kind in opcodes), "who waited with a touch has touched"


RUNS = [(GETKQ, NOOP), (GETQ, NOOP), (GATKQ, NOOP), (GATQ, NOOP), (GETKQ, GETK), (GETQ, GET)]


@pytest.mark.parametrize("opcode, end", RUNS)
def test_a_hundred_multi_gets_one_computation_a_key(many, opcode, end):
    server = many()
    with BinaryCrowd(server, 100) as crowd:
        holder = crowd.order[0]
        crowd.send(run(KEYS, opcode, end), holder)
        [(_, replies, _)] = crowd.replies(1)
        assert [reply.status for reply in replies] == [OK if end == NOOP else NOT_FOUND]
        for who in crowd.order[1:]:
            crowd.send(run(KEYS, opcode, end), who)
        until_held(server, 99 * len(KEYS), 20)
        for n, key in enumerate(KEYS):
            assert crowd.silent(), f"all wait for all of them, {n} are stored"
            crowd.send(store(key, b"of " + key), holder)
            if n < 19:
                [(who, [reply], _)] = crowd.replies(1)
                assert who == holder and reply.status == OK
        keys_come = opcode in (GETKQ, GATKQ)
        for who, replies, _ in crowd.replies(100):
            if who == holder:
                continue
            if end == NOOP:
                assert replies.pop().opcode == NOOP
                numbers = list(range(1, 21))
            else:
                numbers = [*range(1, 20), 0]
            assert [reply.opaque for reply in replies] == numbers
            assert [reply.value for reply in replies] == [b"of " + key for key in KEYS]
            assert [reply.key for reply in replies] == (KEYS if keys_come else [b""] * 20)
            assert {reply.status for reply in replies} == {OK}
        assert computed(server) == 20 and held(server) == 0


def test_a_hundred_multi_gets_at_once(many):
    """No client is first: with one thread each run is executed whole."""
    server = many(HOLDS, "-t", 1)
    with BinaryCrowd(server, 100) as crowd:
        assert ask_and_compute(crowd, [KEYS] * 100) == dict.fromkeys(KEYS, 1)
    assert computed(server) == 20 and held(server) == 0


@pytest.mark.parametrize("owner", ["key", "connection"])
def test_multi_gets_of_overlapping_keys_in_any_order(many, owner, capsys):
    """Two hundred clients, each of which asks for some of the keys. A client that computes one misses the others it asks for, so
    that a key can be computed more than once; that all are answered, and rightly, does not depend on it."""
    server = many(HOLDS + f'owner = "{owner}"')
    keys = [b"page:%d" % n for n in range(50)]
    wanted = [[keys[(start * 7 + step * (1 + start % 3)) % 50] for step in range(10)] for start in range(200)]
    with BinaryCrowd(server, 200) as crowd:
        counts = ask_and_compute(crowd, wanted)
    most, total = max(counts.values()), sum(counts.values())
    show(capsys, f"200 clients ask for 10 of 50 keys each: {total} computations, at most {most} of one key")
    assert set(counts) == set(keys) and total < 200 * 10 / 2
    assert held(server) == 0


def make_pylibmc(server):
    c = pylibmc.Client([server.address], binary=True, behaviors={"tcp_nodelay": True, "receive_timeout": 40_000_000})
    return c.get_multi, c.get, c.set


def make_bmemcached(server):
    c = bmemcached.Client([server.address], socket_timeout=40)
    return c.get_multi, c.get, c.set


@pytest.mark.parametrize("make", [make_pylibmc, make_bmemcached])
def test_clients(many, make):
    """Fifty clients, first with a multi-get, then with a get."""
    server = many()
    names = [key.decode() for key in KEYS]
    counts, lock = dict.fromkeys([*names, "page:one"], 0), threading.Lock()

    def compute(name, set_):
        with lock:
            counts[name] += 1
        assert set_(name, f"value of {name}")

    get_first, _, set_first = make(server)
    assert get_first(names) == {}

    def act(n):
        get_many, get_one, set_ = make(server)
        if n == 0:
            until_held(server, 49 * len(names), 20)
            for name in names:
                compute(name, set_first)
        else:
            found = get_many(names)
            for name in names:
                if name not in found:
                    compute(name, set_)
            assert all(value == f"value of {name}" for name, value in found.items())
        value = get_one("page:one")
        if value is None:
            time.sleep(0.2)
            compute("page:one", set_)
        assert get_one("page:one") == "value of page:one"

    together(50, act)
    assert set(counts.values()) == {1}
    assert computed(server) == 21


# Clients of all protocols on one key


FORMS = {
    "get": (b"get page:1\r\n", b"VALUE page:1 0 5\r\nhello\r\nEND\r\n", b"END\r\n"),
    "mg": (b"mg page:1 v k\r\n", b"VA 5 kpage:1\r\nhello\r\n", b"EN kpage:1\r\n"),
    "mg q": (b"mg page:1 v q\r\nmn\r\n", b"VA 5\r\nhello\r\nMN\r\n", b"MN\r\n"),
    "GET": (get(opcode=GET, opaque=1), None, None),
    "GETK": (get(opcode=GETK, opaque=1), None, None),
    "GETKQ": (multi_get([b"page:1"]), None, None),
}


@pytest.mark.parametrize("holder", FORMS)
def test_all_protocols_together(herd, holder):  # noqa: F811
    server = herd()
    with text(server) as first_text, packets.connect(server, 40) as first_binary:
        first = first_binary if FORMS[holder][1] is None else first_text
        first.send(FORMS[holder][0])
        if first is first_text:
            assert first.until(FORMS[holder][2]) == FORMS[holder][2]
        elif holder == "GETKQ":
            assert first.until_noop() == []
        else:
            assert first.reply().status == NOT_FOUND
        waiting = []
        for name, (request, _, _) in FORMS.items():
            for _ in range(5):
                waiting.append((name, packets.connect(server, 40)))
                waiting[-1][1].send(request)
        until_held(server, len(waiting))
        if first is first_text:
            assert first.set(b"page:1", b"hello") == b"STORED"
        else:
            assert first.set(b"page:1", b"hello") == OK
        for name, c in waiting:
            expected = FORMS[name][1]
            if expected:
                assert c.exactly(len(expected)) == expected
            elif name == "GETKQ":
                [reply] = c.until_noop()
                assert (reply.key, reply.value) == (b"page:1", b"hello")
            else:
                reply = c.reply()
                assert (reply.status, reply.value, reply.opaque) == (OK, b"hello", 1)
            assert c.buffer == b""
            c.close()
    assert computed(server) == 1 and held(server) == 0


def test_multi_gets_of_all_protocols_together(many):
    server = many()
    meta = b"".join(b"mg %s v k q\r\n" % key for key in KEYS) + b"mn\r\n"
    plain = b"get " + b" ".join(KEYS) + b"\r\n"
    [holder] = binaries(server, 1)
    holder.send(multi_get(KEYS))
    assert holder.until_noop() == []
    waiting = []
    for _ in range(10):
        for request in (multi_get(KEYS), meta, plain):
            waiting.append((request, packets.connect(server, 40)))
            waiting[-1][1].send(request)
    until_held(server, 30 * len(KEYS), 20)
    for key in KEYS:
        assert holder.set(key, b"v" + key) == OK
    for request, c in waiting:
        if request is meta:
            expected = b"".join(b"VA %d k%s\r\nv%s\r\n" % (len(key) + 1, key, key) for key in KEYS) + b"MN\r\n"
            assert c.exactly(len(expected)) == expected
        elif request is plain:
            expected = b"".join(b"VALUE %s 0 %d\r\nv%s\r\n" % (key, len(key) + 1, key) for key in KEYS) + b"END\r\n"
            assert c.exactly(len(expected)) == expected
        else:
            assert [(reply.key, reply.value) for reply in c.until_noop()] == [(key, b"v" + key) for key in KEYS]
        c.close()
    assert computed(server) == 20


# Waiters are released


@pytest.mark.parametrize("quiet", [False, True])
def test_the_holder_goes(herd, quiet, capsys):  # noqa: F811
    """The one that has waited longest computes, the others wait for it."""
    server = herd()
    [holder] = binaries(server, 1)
    miss(holder)
    waiting = binaries(server, 5)
    for n, c in enumerate(waiting):
        c.send(multi_get([b"page:1"]) if quiet else get(opaque=n))
        until_held(server, n + 1)
    began = time.monotonic()
    reset(holder.sock)
    first, *others = waiting
    if quiet:
        assert first.until_noop() == []
    else:
        reply = first.reply()
        assert (reply.status, reply.opaque) == (NOT_FOUND, 0)
    show(capsys, f"the holder's connection is reset: the next computes after {(time.monotonic() - began) * 1000:.1f} ms")
    until_held(server, 4)
    assert first.set(b"page:1", b"new") == OK
    for n, c in enumerate(others, 1):
        [reply] = c.until_noop() if quiet else [c.reply()]
        assert (reply.status, reply.value, reply.opaque) == (OK, b"new", 1 if quiet else n)
    stats = server.stats("rules")
    assert (stats["total:leases"], stats["total:promoted_close"]) == ("1", "1")


def test_the_holder_of_many_keys_goes(many, capsys):
    """A client that misses a key then computes it, and all clients are answered."""
    server = many()
    [holder] = binaries(server, 1)
    holder.send(multi_get(KEYS))
    assert holder.until_noop() == []
    with BinaryCrowd(server, 20) as crowd:
        crowd.send(multi_get(KEYS))
        until_held(server, 20 * len(KEYS), 20)
        reset(holder.sock)
        counts = ask_and_compute(crowd, [KEYS] * 20, ask=False)
    show(capsys, f"the holder of 20 keys is reset, 20 wait for all of them: {sum(counts.values())} computations")
    assert set(counts) == set(KEYS)


def test_a_holder_that_quits(herd):  # noqa: F811
    server = herd(rule(terms=HOLDS + 'close_grace = "20s"'))
    a, b, c, _spare = binaries(server, 4)
    miss(a)
    b.send(get())
    until_held(server, 1)
    assert a.ask(packet(packets.QUIT)).status == OK
    assert a.closed() == b""
    assert c.set(b"page:1", b"v") == OK, "its value may come on another connection"
    assert b.reply().value == b"v"


def test_who_waits_goes_away(herd):  # noqa: F811
    server = herd()
    [holder] = binaries(server, 1)
    miss(holder)
    with BinaryCrowd(server, 10) as crowd:
        crowd.send(lambda place: get(opcode=GETK) if place % 2 else multi_get([b"page:1", b"page:2"]))
        # Those that ask for two keys find the second one free, or leased by another of them.
        wait_until("asked", lambda: int(server.stats()["cmd_get"]) >= 1 + 5 + 10)
        for _ in range(8):
            crowd.drop(crowd.order.pop())
        wait_until("they are gone", lambda: int(server.stats()["curr_connections"]) <= 4)
        wait_until("they wait no more", lambda: held(server) <= 3)
    wait_until("no key is waited for", lambda: held(server) == 0)
    assert holder.set(b"page:1", b"v") == OK


def test_the_hold_expires_for_all_protocols(herd):  # noqa: F811
    server = herd(rule(terms='hold = "2s"\nhold_many = "2s"\nlease = "30s"'))
    a, b, c, d, _spare = (packets.connect(server, 40) for _ in range(5))
    t = text(server)
    miss(a)
    began = time.monotonic()
    b.send(get(opaque=2))
    c.send(multi_get([b"page:1"]))
    d.send(get(opcode=GETK, opaque=4))
    t.send(b"get page:1\r\n")
    reply = b.reply()
    assert (reply.status, reply.opaque, reply.value) == (NOT_FOUND, 2, b"Not found")
    assert c.until_noop() == [] and t.line() == b"END"
    reply = d.reply()
    assert (reply.status, reply.opaque, reply.key, reply.value) == (NOT_FOUND, 4, b"page:1", b"")
    assert time.monotonic() - began > 1.9
    assert server.stats("rules")["total:hold_expired"] == "4"
    assert a.set(b"page:1", b"v") == OK and b.get(b"page:1") == b"v"


def test_a_delete_while_binary_clients_wait(herd):  # noqa: F811
    """A value of before the delete is given to nobody."""
    server = herd(rule(terms=HOLDS + 'owner = "connection"'))
    a, b, c, d, _spare = binaries(server, 5)
    miss(a)
    b.send(get(opaque=1))
    until_held(server, 1)
    c.send(multi_get([b"page:1"]))
    until_held(server, 2)
    assert d.ask(packet(DELETE, b"page:1")).status == NOT_FOUND
    assert b.reply().status == NOT_FOUND, "this one computes anew"
    assert a.set(b"page:1", b"old") == OK, "too late: not kept"
    assert b.set(b"page:1", b"new") == OK
    assert [reply.value for reply in c.until_noop()] == [b"new"] and d.get(b"page:1") == b"new"


FENCED = {
    "delete": packet(DELETE, b"page:1"),
    "deleteq": packet(packets.DELETEQ, b"page:1") + packet(NOOP),
    "flush": packet(packets.FLUSH),
    "flushq": packet(packets.FLUSHQ) + packet(NOOP),
    "tag": packet(DELETE, b"@tag:page:1"),
    "tag by incr": count(b"@tag:page:1"),
    "tag by get": packet(GET, b"@bump:page:1"),
}


@pytest.mark.parametrize("by", FENCED)
@pytest.mark.parametrize("opcode", [packets.SET, packets.SETQ, packets.ADD])
def test_computed_before_stored_after(herd, by, opcode):  # noqa: F811
    server = herd(rule(terms=HOLDS + 'tags = ["page:{id}"]'))
    a, b, c = binaries(server, 3)
    miss(a)
    assert b.ask(FENCED[by]).status in (OK, NOT_FOUND)
    status = a.ask(store(b"page:1", b"old", opcode) + (packet(NOOP) if opcode == packets.SETQ else b"")).status
    assert status == (EXISTS if opcode == packets.ADD else OK)
    assert c.get(b"page:1") is None, "never visible"


# Old values


def test_an_old_value_while_one_computes(herd):  # noqa: F811
    server = herd(rule(terms='grace = "60s"\nlease = "30s"\nhold = "0s"'), "-o", "debugtime")
    a, b, c = binaries(server, 3)
    for key in KEYS[:3]:
        assert a.set(key, b"old", flags=9, exptime=10) == OK
    with text(server) as t:
        t.send(b"debugtime 11\r\n")
        assert t.line() == b"OK"
    a.send(multi_get(KEYS[:2]))
    assert a.until_noop() == [], "this one computes both"
    miss(a, KEYS[2])
    for opcode in (GET, GETK, GAT, GATK):
        reply = b.ask(get(KEYS[0], opcode))
        assert (reply.status, reply.value, reply.extras) == (OK, b"old", b"\0\0\0\t")
    b.send(multi_get(KEYS[:3]))
    assert [(reply.key, reply.value) for reply in b.until_noop()] == [(key, b"old") for key in KEYS[:3]]
    for key in KEYS[:3]:
        assert a.set(key, b"new") == OK
    b.send(multi_get(KEYS[:3]))
    assert [reply.value for reply in b.until_noop()] == [b"new"] * 3
    assert c.ask(packet(DELETE, KEYS[0])).status == OK
    assert b.get(KEYS[0]) is None, "after a delete it is not served"


# Tags and control keys


@pytest.fixture
def tagged(herd):  # noqa: F811
    server = herd(rule("item:{user}:{n}", 'tags = ["user:{user}"]') + rule("page:{id}"))
    c = packets.connect(server, 40)
    yield c
    c.close()


def fill(c):
    for user in (1, 2):
        for n in range(3):
            assert c.set(b"item:%d:%d" % (user, n), b"v") == OK


def present(c):
    c.send(multi_get([b"item:%d:%d" % (user, n) for user in (1, 2) for n in range(3)]))
    return {reply.key for reply in c.until_noop()}


INVALIDATIONS = {
    "delete": packet(DELETE, b"@tag:user:1"),
    "deleteq": packet(packets.DELETEQ, b"@tag:user:1") + packet(NOOP),
    "incr": count(b"@tag:user:1"),
    "incr that creates": count(b"@tag:user:1", exptime=0),
    "incrq": count(b"@tag:user:1", opcode=packets.INCREMENTQ) + packet(NOOP),
    "get": packet(GET, b"@bump:user:1"),
    "getk": packet(GETK, b"@bump:user:1"),
    "getkq": packet(GETKQ, b"@bump:user:1"),
}


@pytest.mark.parametrize("by", INVALIDATIONS)
def test_a_tag_is_invalidated(tagged, by):
    fill(tagged)
    assert len(present(tagged)) == 6
    before = tagged.get(b"@tag:user:1")
    reply = tagged.ask(INVALIDATIONS[by])
    assert reply.status == OK, reply
    after = tagged.get(b"@tag:user:1")
    assert int(before.split()[0]) < int(after.split()[0])
    if by.startswith("incr") and reply.opcode == packets.INCREMENT:
        assert int.from_bytes(reply.value, "big") == int(after.split()[0])
    if by.startswith("get"):
        assert reply.value == after.split()[0]
        assert reply.key == (b"" if by == "get" else b"@bump:user:1")
    assert present(tagged) == {b"item:2:0", b"item:2:1", b"item:2:2"}


def test_control_keys(tagged):
    miss(tagged)
    reply = tagged.ask(packet(GETK, b"@why:page:1", opaque=3))
    assert (reply.status, reply.key, reply.opaque) == (OK, b"@why:page:1", 3)
    why = json.loads(reply.value)
    assert why["key"] == "page:1" and why["lease"]["waiters"] == 0
    tagged.send(multi_get([b"@why:page:1", b"@tag:user:1", b"nothing"]))
    assert [(reply.key, reply.opaque) for reply in tagged.until_noop()] == [(b"@why:page:1", 1), (b"@tag:user:1", 2)]


WRONG = {
    "get": packet(GET, b"@nothing"),
    "getk": packet(GETK, b"@tagg:x"),
    "get of a long tag": packet(GET, b"@tag:" + b"x" * 201),
    "flush of no seconds": packet(GET, b"@flush:0"),
    "set": store(b"@tag:x", b"v"),
    "add": store(b"@tag:x", b"v", packets.ADD),
    "append": packet(packets.APPEND, b"@tag:x", b"v"),
    "touch": touch(b"@tag:x", 1),
    "decr": count(b"@tag:x", opcode=packets.DECREMENT),
    "delete": packet(DELETE, b"@bump:x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_control_keys(tagged, case):
    reply = tagged.ask(WRONG[case])
    # What libmemcached does not take for a server that has failed.
    assert reply.status == (NOT_STORED if case in ["set", "add", "append"] else NOT_FOUND), reply
    # A `getk` that finds nothing returns its key.
    assert reply.key == b"@tagg:x" if case == "getk" else reply.value.startswith(b"CLIENT_ERROR "), reply
    assert tagged.set(b"still", b"there") == OK and tagged.get(b"still") == b"there"


def test_wrong_control_keys_in_a_multi_get(tagged):
    """A quiet get has no error."""
    assert tagged.set(b"a", b"1") == OK
    tagged.send(multi_get([b"@nothing", b"a", b"@flush:0"]))
    assert [(reply.key, reply.value) for reply in tagged.until_noop()] == [(b"a", b"1")]


# Objects


@pytest.fixture
def objects(herd):  # noqa: F811
    server = herd("[objects]\n" + rule())
    c = packets.connect(server, 40)
    yield c
    c.close()


def test_calls(objects):
    name = b"quota:take:alice:1:2:hour"
    for expected in (b"QUOTA_OK", b"QUOTA_OK", b"QUOTA_EXCEEDED"):
        reply = objects.ask(packet(GET, name, opaque=5))
        assert (reply.status, reply.value, reply.key, reply.opaque) == (OK, expected, b"", 5)
        assert reply.extras == bytes(4)
    reply = objects.ask(packet(GETK, name))
    assert (reply.status, reply.value, reply.key) == (OK, b"QUOTA_EXCEEDED", name)
    escaped = b"quota:take:a%3Ab:1:1:hour"
    reply = objects.ask(packet(GETK, escaped))
    assert (reply.status, reply.value, reply.key) == (OK, b"QUOTA_OK", escaped), "the key that was asked for"
    reply = objects.ask(packet(GETK, b"set:count:absent"))
    assert (reply.status, reply.key) == (NOT_FOUND, b"set:count:absent")
    assert objects.ask(packet(GET, b"set:new:basket")).status == OK
    assert objects.ask(packet(GET, b"set:put:basket:x")).status == OK
    assert objects.ask(packet(DELETE, b"set::basket")).status == OK
    assert objects.ask(packet(DELETE, b"set::basket")).status == NOT_FOUND


def test_a_multi_get_of_calls_and_keys(objects):
    assert objects.set(b"a", b"1") == OK
    keys = [b"a", b"quota:take:bob:1:1:hour", b"absent", b"quota:take:bob:1", b"quota:take:bob:1:1:hour", b"a", b"page:1"]
    objects.send(multi_get(keys))
    got = [(reply.opaque, reply.key, reply.value) for reply in objects.until_noop()]
    assert got == [(1, b"a", b"1"), (2, keys[1], b"QUOTA_OK"), (5, keys[1], b"QUOTA_EXCEEDED"), (6, b"a", b"1")]


def test_a_call_behind_a_held_get_of_a_run(herd):  # noqa: F811
    server = herd("[objects]\n" + rule())
    a, b, _spare = binaries(server, 3)
    miss(a)
    call = b"quota:take:bob:1:1:hour"
    b.send(multi_get([b"page:1", call, b"page:1", call]))
    wait_until("asked", lambda: int(server.stats()["cmd_get"]) >= 2)
    assert a.set(b"page:1", b"v") == OK
    got = [(reply.opaque, reply.value) for reply in b.until_noop()]
    # Without a wait the first get may be a miss: a multi-get does not wait if it names a call.
    assert [one for one in got if one[0] in (2, 4)] == [(2, b"QUOTA_OK"), (4, b"QUOTA_EXCEEDED")]
    assert [number for number, _ in got] == sorted(number for number, _ in got)
    assert all(value == b"v" for number, value in got if number in (1, 3))


REFUSED = {
    "wrong number of arguments": (packet(GET, b"quota:take:alice:1"), b"CLIENT_ERROR quota.take: takes n limit window"),
    "wrong argument": (packet(GET, b"quota:take:alice:x:2:hour"), b"CLIENT_ERROR quota.take: arg 1 must be"),
    "set of a call": (store(b"quota:take:alice", b"v"), b"CLIENT_ERROR quota:take is a method"),
    "incr of a call": (count(b"quota:take:alice"), b"CLIENT_ERROR quota:take is a method"),
    "touch of a call": (touch(b"quota:take:alice", 1), b"CLIENT_ERROR quota:take is a method"),
    "gat of a call": (touch(b"quota:take:alice:1:2:hour", 1, GAT), b"CLIENT_ERROR quota:take is a method"),
    "delete of a call": (packet(DELETE, b"quota:take:alice"), b"CLIENT_ERROR quota:take is a method"),
    "get of an object": (packet(GET, b"quota::alice"), b"CLIENT_ERROR quota:: names an object"),
    "set of an object": (store(b"quota::alice", b"v"), b"CLIENT_ERROR quota:: names an object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_calls(objects, case):
    request, expected = REFUSED[case]
    reply = objects.ask(request)
    # To clients a miss, or a value that was not stored: no reason to give the server up.
    status = 5 if case.startswith("set of") else 1
    assert reply.status == status and reply.value.startswith(expected), reply
    assert not reply.key and not reply.extras
    assert objects.set(b"still", b"there") == OK and objects.get(b"still") == b"there"


def test_an_error_of_the_server(herd):  # noqa: F811
    server = herd("[objects]\n", "-I", "1k")
    with packets.connect(server, 40) as c:
        assert c.ask(packet(GET, b"set:new:s")).status == OK
        for n in range(100):
            assert c.ask(packet(GET, b"set:put:s:" + b"%03d" % n + b"x" * 60)).status == OK
        reply = c.ask(packet(GET, b"set:getall:s"))
        assert (reply.status, reply.value) == (INTERNAL, b"SERVER_ERROR result too large")
        reply = c.ask(packet(GETK, b"set:getall:s", opaque=9))
        assert (reply.status, reply.value, reply.key, reply.opaque) == (INTERNAL, b"SERVER_ERROR result too large", b"", 9)
        c.send(multi_get([b"set:getall:s", b"set:count:s"]))
        assert [reply.opaque for reply in c.until_noop()] in ([2], [])


# A server that says that it is busy


BUSY_TERMS = 'hold = "500ms"\nhold_many = "500ms"\nlease = "30s"\nmax_computers = 1\non_busy = "error"\n'


def test_busy(herd):  # noqa: F811
    server = herd(rule(terms=BUSY_TERMS))
    a, b, c, d, _spare = binaries(server, 5)
    miss(a)
    b.send(get(opaque=2))
    c.send(get(opcode=GETK, opaque=3))
    d.send(multi_get([b"page:1"]))
    for reply, number in ((b.reply(), 2), (c.reply(), 3)):
        assert (reply.status, reply.value, reply.key) == (BUSY, b"SERVER_ERROR busy", b"") and reply.opaque == number
    assert d.until_noop() == [], "a quiet get has no error"
    assert a.set(b"page:1", b"v") == OK and b.get(b"page:1") == b"v"


def test_busy_for_clients(herd):  # noqa: F811
    """A miss in a multi-get, after which the connection goes on. For a get it is an error, except with libmemcached: for its
    callers it is a miss, and it connects again."""
    server = herd(rule(terms=BUSY_TERMS))
    [holder] = binaries(server, 1)
    miss(holder)
    first = pylibmc.Client([server.address], binary=True, behaviors={"receive_timeout": 40_000_000, "retry_timeout": 1})
    assert first.set("other", "v")
    assert first.get_multi(["page:1", "other"]) == {"other": "v"}
    assert first.get("page:1") is None

    def back():
        try:
            return first.get("other") == "v"
        except pylibmc.Error:
            return False

    wait_until("it has connected again", back)
    second = bmemcached.Client([server.address], socket_timeout=40)
    assert second.set("another", "w")
    for _ in range(2):
        with pytest.raises(bmemcached.exceptions.MemcachedException) as raised:
            second.get("page:1")
        assert raised.value.code == BUSY
        assert second.get_multi(["page:1", "another"]) == {"another": "w"}
    assert holder.set(b"page:1", b"v") == OK


# Order


@pytest.mark.parametrize("fate", ["filled", "reset"])
def test_replies_stay_in_order(herd, fate):  # noqa: F811
    server = herd()
    a, b, c, _spare = binaries(server, 4)
    miss(a, b"page:1")
    miss(a, b"page:2")
    miss(c, b"page:3")
    b.send(
        get(b"page:2", opaque=11)
        + store(b"x", b"1", opaque=12)
        + get(b"page:1", GETK, opaque=13)
        + count(b"x", 5, opaque=14)
        + packet(NOOP, opaque=15)
        + get(b"page:3", GETKQ, opaque=16)
        + get(b"x", GETKQ, opaque=17)
        + packet(NOOP, opaque=18)
        + store(b"y", b"1", packets.SETQ, opaque=19)
        + get(b"absent", GETQ, opaque=20)
        + get(b"x", opaque=21)
        + store(b"x", b"7", packets.ADDQ, opaque=22)
        + packet(VERSION, opaque=23)
    )
    wait_until("read ahead", lambda: a.get(b"y") == b"1", 40)
    assert b.buffer == b""
    assert a.set(b"page:1", b"one") == OK
    assert a.set(b"page:2", b"two") == OK
    if fate == "filled":
        assert c.set(b"page:3", b"three") == OK
    else:
        reset(c.sock)
    got = []
    while not got or got[-1].opaque != 23:
        got.append(b.reply())
    expected = [11, 12, 13, 14, 15, 16, 17, 18, 21, 22, 23]
    if fate == "reset":
        expected.remove(16)  # a quiet miss stays quiet
    assert [reply.opaque for reply in got] == expected
    by = {reply.opaque: reply for reply in got}
    assert by[11].value == b"two" and by[13].value == b"one" and by[13].key == b"page:1"
    assert int.from_bytes(by[14].value, "big") == 6
    assert by[17].value == b"6" and by[21].value == b"6" and by[22].status == EXISTS
    if fate == "filled":
        assert by[16].value == b"three"


def test_many_runs_in_one_packet(many):
    """A hundred multi-gets behind each other; the first is held."""
    server = many()
    a, b, _spare = binaries(server, 3)
    assert a.set(b"hot", b"h") == OK
    miss(a)
    requests = b""
    for n in range(100):
        requests += get(b"page:1" if n == 0 else b"hot", GETKQ, opaque=3 * n) + get(b"cold", GETKQ, opaque=3 * n + 1)
        requests += packet(NOOP, opaque=3 * n + 2)
    b.send(requests)
    until_held(server, 1)
    assert a.set(b"page:1", b"v") == OK
    got = []
    while not got or got[-1].opaque != 299:
        got.append(b.reply())
    assert [reply.opaque for reply in got] == [number for n in range(100) for number in (3 * n, 3 * n + 2)]
    assert got[0].value == b"v" and got[2].value == b"h"


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_run_in_pieces(many, size):
    """A run of which the rest comes late is answered all the same."""
    server = many()
    a, b, _spare = binaries(server, 3)
    a.send(multi_get(KEYS))
    assert a.until_noop() == []
    data = multi_get(KEYS)
    for at in range(0, len(data), size):
        b.send(data[at : at + size])
    for key in KEYS:
        assert a.set(key, b"v") == OK
    got = b.until_noop()
    numbers = [reply.opaque for reply in got]
    assert numbers == sorted(set(numbers)) and {reply.value for reply in got} <= {b"v"}


def test_a_run_without_its_end(many):
    """What ends it comes when the value is there: nothing is lost, and nothing twice."""
    server = many()
    a, b, _spare = binaries(server, 3)
    miss(a)
    b.send(get(b"page:1", GETKQ, opaque=1))
    until_held(server, 1)
    assert a.set(b"page:1", b"v") == OK
    reply = b.reply()
    assert (reply.opaque, reply.value) == (1, b"v")
    assert b.ask(packet(NOOP, opaque=2)).opaque == 2


def test_the_end_of_input_is_answered(herd):  # noqa: F811
    server = herd()
    a, b, _spare = binaries(server, 3)
    miss(a)
    b.send(get(opcode=GETK, opaque=1) + multi_get([b"page:1"]))
    b.sock.shutdown(1)
    got = packets.replies(b.closed(40))
    assert [(reply.opcode, reply.status) for reply in got] == [(GETK, NOT_FOUND), (NOOP, OK)]


# Leases by name


def test_a_token_is_a_cas(herd):  # noqa: F811
    server = herd()
    t = text(server)
    a, b, c, _spare = binaries(server, 4)
    token = lease(t)
    b.send(get(opaque=1))
    until_held(server, 1)
    c.send(multi_get([b"page:1"]))
    until_held(server, 2)
    assert a.set(b"page:1", b"wrong", cas=token + 1000) in (EXISTS, NOT_FOUND), "the CAS of nothing"
    assert held(server) == 2
    reply = a.ask(store(b"page:1", b"hello", cas=token))
    assert reply.status == OK and reply.cas > token
    assert b.reply().value == b"hello" and [reply.value for reply in c.until_noop()] == [b"hello"]
    assert a.set(b"page:1", b"again", cas=token) == EXISTS, "a token is good for one fill"
    got = a.ask(packet(GET, b"page:1"))
    assert (got.value, got.cas) == (b"hello", reply.cas)
    assert a.set(b"page:1", b"changed", cas=reply.cas) == OK


def test_a_token_of_before_a_delete(herd):  # noqa: F811
    server = herd()
    t = text(server)
    a, b = binaries(server, 2)
    token = lease(t)
    assert b.ask(packet(DELETE, b"page:1")).status == NOT_FOUND
    assert a.set(b"page:1", b"old", cas=token) in (EXISTS, NOT_FOUND)
    assert b.get(b"page:1") is None


def test_a_quiet_set_with_a_token(herd):  # noqa: F811
    server = herd()
    t = text(server)
    [a] = binaries(server, 1)
    token = lease(t)
    assert a.ask(store(b"page:1", b"v", packets.SETQ, cas=token) + packet(NOOP, opaque=1)).opaque == 1
    assert a.get(b"page:1") == b"v"
    a.send(store(b"page:1", b"w", packets.SETQ, cas=token, opaque=2) + packet(NOOP, opaque=3))
    assert [(reply.opaque, reply.status) for reply in a.replies(2)] == [(2, EXISTS), (3, OK)]


def test_a_client_of_leases_gives_up(herd):  # noqa: F811
    """A binary client that waits is the next to compute, whatever error the other one gives."""
    server = herd()
    t = text(server)
    a, b, _spare = binaries(server, 3)
    token = lease(t)
    a.send(get(opaque=1))
    until_held(server, 1)
    b.send(multi_get([b"page:1"]))
    until_held(server, 2)
    t.send(b"md page:1 C%d Peout%%20of%%20paper\r\n" % token)
    assert t.line() == b"HD"
    assert a.reply().status == NOT_FOUND
    assert a.set(b"page:1", b"v") == OK
    assert [reply.value for reply in b.until_noop()] == [b"v"]
