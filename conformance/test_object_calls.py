"""Calls of objects that take long, and calls under load: large sets, connections that end, reloads, the end of the server, and
eight threads that share limits."""

import collections
import signal
import socket
import threading
import time

import pytest

from crowd import reset, write_rules
from harness import PROMPT, Raw, allow_files, wait_until
from test_objects import ON, block, call, objects, value

pytestmark = pytest.mark.only_cattlegrid

LARGE = ON, "-I", "8m", "-m", "256"
MEMBERS = 100_000


def member(n):
    return b"m%08d" % n


def fill(c, name="s", members=MEMBERS):
    """A set of this many members; the value of its `getall`."""
    c.send(b"get set:new:%s\r\n" % name.encode())
    c.until(b"END\r\n")
    for first in range(0, members, 10_000):
        lines = [
            b"get set:put:%s:%s\r\n" % (name.encode(), b":".join(map(member, range(n, min(n + 20, members)))))
            for n in range(first, min(first + 10_000, members), 20)
        ]
        assert c.ask(b"".join(lines)).count(b"\r\nSUCCESS\r\n") == len(lines)
    return b"".join(member(n) + b"\r\n" for n in range(members))


def listed(name, text):
    return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (name, len(text), text)


def stat(server, name):
    return int(server.stats("objects").get(name, "0"))


def test_a_large_list_while_others_call(objects):
    """No call overtakes another; other objects and keys answer meanwhile; each list is of one moment."""
    server = objects(*LARGE)
    with server.raw() as c, server.raw(120) as reader, server.raw(120) as writer:
        text = fill(c)
        c.set(b"plain", b"v")
        longest = answered = 0
        for turn in range(3):
            reader.send(b"get set:getall:s\r\n")
            writer.send(b"get set:count:s\r\nget set:put:s:x%d\r\nget set:count:s\r\n" % turn)
            while not reader.buffer.endswith(b"\r\nEND\r\n"):
                begin = time.monotonic()
                assert c.get(b"plain") == b"v" and call(c, "set:exist:other:a") is None and call(c, "counter:add:n:1")
                longest, answered = max(longest, time.monotonic() - begin), answered + 1
                reader.sock.settimeout(0.001)
                try:
                    reader.fill()
                except TimeoutError:
                    pass
                reader.sock.settimeout(120)
            members = {m for m in reader.buffer.split(b"\r\n")[1:-2] if m}
            reader.buffer = b""
            assert len(members) in (MEMBERS + turn, MEMBERS + turn + 1)
            got = writer.until(b"VALUE set:put:s:x%d 0 7\r\nSUCCESS\r\nEND\r\n" % turn) + writer.until(b"END\r\n")
            assert got.endswith(value("set:count:s", str(MEMBERS + turn + 1)))
        assert answered > 3 and longest < PROMPT
        assert stat(server, "set:getall:waited") == 3
        wait_until("no call runs", lambda: stat(server, "busy") == stat(server, "running") == 0)
        # One request with all of it twice, between plain keys, and as meta commands in a pipeline.
        for n in range(3):
            call(c, f"set:delete:s:x{n}")
        reader.send(b"get plain set:getall:s absent set:getall:s set:count:s plain\r\nmg set:getall:s v k Oq\r\nmn\r\n")
        twice = b"VALUE set:getall:s 0 %d\r\n%s\r\n" % (len(text), text)
        plain = block("plain", "v")
        wanted = plain + twice + twice + block("set:count:s", str(MEMBERS)) + plain + b"END\r\n"
        wanted += b"VA %d kset:getall:s Oq\r\n%s\r\nMN\r\n" % (len(text), text)
        assert reader.exactly(len(wanted)) == wanted


def test_half_closed_connections_get_all_replies(objects):
    server = objects(*LARGE)
    with server.raw() as c:
        text = fill(c)
    for asked, wanted in [
        (b"get set:getall:s\r\n", listed(b"set:getall:s", text)),
        (b"get set:getall:s\r\nget set:count:s\r\nget absent\r\n", listed(b"set:getall:s", text) + value("set:count:s", str(MEMBERS)) + b"END\r\n"),
        (b"mg set::s v Agetall\r\nquit\r\n", b"VA %d\r\n%s\r\n" % (len(text), text)),
    ]:
        with server.raw(60) as c:
            c.send(asked)
            c.sock.shutdown(socket.SHUT_WR)
            assert c.closed(60) == wanted


def test_connections_that_end_during_their_calls(objects):
    """The object is free afterwards, and nothing is left of them."""
    server = objects(*LARGE)
    with server.raw(60) as c:
        fill(c)
        before = server.settled_descriptors()
        for n in range(30):
            s = server.connect()
            s.sendall(b"get set:getall:s\r\nget set:put:s:m00000000\r\n" * 3)
            if n % 3:
                time.sleep(0.002 * (n % 5))
            reset(s) if n % 2 else s.close()
        assert call(c, "set:count:s") == str(MEMBERS)
        wait_until("no call runs", lambda: stat(server, "running") == stat(server, "busy") == 0, 60)
        wait_until("their descriptors are closed", lambda: server.settled_descriptors() <= before, 60)


def test_too_many_wait_for_one_object(objects):
    """Those beyond the queue are refused at once; all others are answered."""
    server = objects(*LARGE, "-c", "4096")
    allow_files(3000)
    with server.raw(120) as c:
        fill(c)
        waiting = [server.raw(120) for _ in range(1200)]
        for w in waiting:
            w.send(b"get set:getall:s\r\n" if w is waiting[0] else b"get set:union:s:absent\r\n" if w is waiting[1] else b"get set:count:s\r\n")
        said = collections.Counter()
        for w in waiting:
            line = w.line()
            said[line if line.startswith(b"SERVER") else b"VALUE"] += 1
            w.close()
        assert set(said) <= {b"VALUE", b"SERVER_ERROR busy"} and said[b"VALUE"] >= 1024
        wait_until("no call runs", lambda: stat(server, "running") == 0, 120)
        assert call(c, "set:count:s") == str(MEMBERS)


@pytest.mark.parametrize("ends", ["drop", "expire", "flush", "replace"])
def test_an_object_that_goes_while_it_is_listed(objects, ends):
    """Whole lists or misses, never parts; calls that come later see what is there then."""
    server = objects(*LARGE)
    with server.raw(60) as c, server.raw(60) as reader:
        for _ in range(3):
            text = fill(c, members=30_000)
            reader.send(b"get set:getall:s\r\n" * 5)
            if ends == "expire":
                # By itself: behind a call that waits, other commands are executed at once.
                assert call(c, "set:ttl:s:10") == "10"
            c.ask({"drop": b"get set:drop:s\r\n", "replace": b"get set:new:s\r\n", "flush": b"flush_all\r\n", "expire": b"debugtime 12\r\n"}[ends])
            assert call(c, "set:count:s") == ("0" if ends == "replace" else None)
            allowed = {listed(b"set:getall:s", text), b"END\r\n", listed(b"set:getall:s", b"")}
            for _ in range(5):
                assert reader.until(b"END\r\n") in allowed
    wait_until("no object is busy", lambda: stat(server, "busy") == 0)


def test_the_server_ends_during_long_calls(objects):
    for _ in range(3):
        server = objects(*LARGE)
        with server.raw(60) as c:
            text = fill(c, members=50_000)
            waiting = [server.raw(60) for _ in range(20)]
            for w in waiting:
                w.send(b"get set:getall:s\r\n")
            wait_until("the calls have come", lambda: stat(server, "set:getall:calls") >= 20)
            server.signal(signal.SIGTERM)
            for w in waiting:
                got = w.closed(60)
                assert listed(b"set:getall:s", text).startswith(got), got[:100]
        assert server.process.wait(60) == 0, server.log()


def test_large_sets_give_their_memory_back(objects):
    server = objects(*LARGE)
    with server.raw(60) as c:
        for _ in range(3):
            fill(c)
            assert stat(server, "set:tree_bytes") > MEMBERS * 9
            assert call(c, "set:drop:s") == "DELETED"
            wait_until("nothing is held", lambda: stat(server, "bytes") == 0, 60)
        rss = server.rss()
        for _ in range(5):
            fill(c)
            call(c, "set:drop:s")
            wait_until("nothing is held", lambda: stat(server, "bytes") == 0, 60)
        assert server.rss() < rss + (16 << 20), "it does not grow with each set"


def test_every_grant_is_counted_once(objects):
    """Eight connections, calls of 20 quotas in pipelines, also with long lines and through queues."""
    server = objects(ON, "-t", "4")
    limit, threads, rounds = 1000, 8, 40
    with server.raw() as c:
        for q in range(20):
            assert call(c, f"quota:new:q{q}:{limit}:day") == "CREATED"
    granted, faults = collections.Counter(), []

    def take(number):
        try:
            with server.raw(120) as c:
                for turn in range(rounds):
                    keys = [f"quota:addandcheck:q{(number + turn + n) % 20}" for n in range(100)]
                    if turn % 2:
                        c.send(("get " + " ".join(keys) + "\r\n").encode())
                        got = c.until(b"END\r\n").split(b"\r\n")
                        answers = got[1:-2:2]
                    else:
                        c.send("".join(f"mg {key} v\r\n" for key in keys).encode())
                        answers = [c.exactly(int(c.line().split()[1]) + 2)[:-2] for _ in keys]
                    assert len(answers) == 100
                    for key, answer in zip(keys, answers):
                        assert answer in (b"QUOTA_OK", b"QUOTA_EXCEEDED"), answer
                        granted[key, threading.get_ident()] += answer == b"QUOTA_OK"
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    workers = [threading.Thread(target=take, args=(n,)) for n in range(threads)]
    [w.start() for w in workers]
    [w.join(300) for w in workers]
    assert not faults and not any(w.is_alive() for w in workers)
    of = collections.Counter()
    for (key, _), count in granted.items():
        of[key] += count
    assert sorted(of.values()) == [limit] * 20
    assert stat(server, "quota:addandcheck:calls") == threads * rounds * 100


def test_types_are_switched_on_and_off_under_load(start, open_dir):
    """Plain items under names of calls go when a type is switched on; each reply is right before or after."""
    path = write_rules(open_dir, "")
    server = start("--config", path)
    stopping, faults, answers = threading.Event(), [], collections.Counter()

    def ask(number):
        try:
            with Raw(server.connect(60)) as c:
                while not stopping.is_set():
                    got = c.ask(b"get quota:addandcheck:u:1\r\nget plain\r\nget set:exists:k plain\r\n")
                    plain = b"VALUE plain 0 1\r\nv\r\n"
                    assert plain + b"END\r\n" in got and got.endswith(plain + b"END\r\n"), got
                    answers[got.split(b"\r\n")[1] if got.startswith(b"VALUE quota") else b"miss"] += 1
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    def write(text):
        with open(path, "w") as f:
            f.write(text)

    with server.raw(60) as c:
        c.set(b"plain", b"v")
        workers = [threading.Thread(target=ask, args=(n,)) for n in range(3)]
        [w.start() for w in workers]
        for turn in range(4):
            for n in range(5000):
                c.send(b"set quota:peek:%d 0 0 1 noreply\r\nv\r\nset set::%d 0 0 1 noreply\r\nv\r\n" % (n, n))
            c.set(b"quota:addandcheck:u:1", b"plain value")
            items = int(c.stats()["curr_items"])
            assert items == 10_002
            write("[objects]\n" if turn % 2 == 0 else '[objects]\ntypes = ["quota", "set"]\n')
            server.signal(signal.SIGHUP)
            wait_until("objects are on", lambda: c.stats("objects"))
            assert call(c, "quota:peek:7") is None and c.ask(b"get set::7\r\n").startswith(b"CLIENT_ERROR set:: names")
            assert call(c, "quota:new:u:1000000:day") == "CREATED" and call(c, "quota:addandcheck:u:1") == "QUOTA_OK"
            assert c.ask(b"set quota:peek:7 0 0 1\r\nv\r\n") == b"CLIENT_ERROR quota:peek is a method\r\n"
            wait_until("plain items under its names are gone", lambda: int(c.stats()["curr_items"]) == 2, 60)
            # The others come by while it is on.
            seen = answers[b"QUOTA_OK"]
            wait_until("the others call", lambda: faults or answers[b"QUOTA_OK"] > seen, 60)
            # A faulty file changes nothing.
            write('[objects]\ntypes = ["nothing"]\n')
            server.signal(signal.SIGHUP)
            wait_until("the file is refused", lambda: server.log().count("no type") > turn or server.log().count("nothing") > turn)
            assert call(c, "quota:addandcheck:u:1") == "QUOTA_OK"
            write("")
            server.signal(signal.SIGHUP)
            wait_until("objects are off", lambda: not c.stats("objects"))
            assert call(c, "quota:addandcheck:u:1") is None
            wait_until("objects of types that are switched off are gone", lambda: int(c.stats()["curr_items"]) == 1, 60)
            seen = answers[b"miss"]
            wait_until("the others miss", lambda: faults or answers[b"miss"] > seen, 60)
        stopping.set()
        [w.join(60) for w in workers]
        assert not faults, faults
        assert set(answers) <= {b"miss", b"QUOTA_OK", b"plain value"} and answers[b"QUOTA_OK"] and answers[b"miss"]


def test_calls_across_a_reload_end(start, open_dir):
    """A type is switched off while calls of it run and wait: each is answered, and the connections live."""
    path = write_rules(open_dir, ON)
    server = start("--config", path, *LARGE[1:])
    with server.raw(60) as c:
        fill(c, members=50_000)
        others = [server.raw(60) for _ in range(30)]
        for other in others:
            other.send(b"get set:getall:s\r\nget set:put:s:x\r\nmn\r\n")
        with open(path, "w") as f:
            f.write('[objects]\ntypes = ["quota"]\n')
        server.signal(signal.SIGHUP)
        wait_until("sets are off", lambda: "set:items" not in c.stats("objects"), 60)
        for other in others:
            got = other.until_mn()
            assert got.endswith(b"END\r\n") and b"ERROR" not in got
        with open(path, "w") as f:
            f.write(ON)
        server.signal(signal.SIGHUP)
        wait_until("sets are on", lambda: "set:items" in c.stats("objects"))
        wait_until("no call runs", lambda: stat(server, "running") == stat(server, "busy") == 0, 60)
        assert call(c, "set:new:s") == "CREATED" and call(c, "set:count:s") == "0"


def test_a_connection_that_does_not_read_long_lists(objects):
    server = objects(*LARGE)
    with server.raw(60) as c, server.connect() as deaf:
        fill(c, members=50_000)
        deaf.sendall(b"get set:getall:s\r\n" * 200)
        for _ in range(20):
            assert call(c, "set:count:s") == "50000"
        assert server.rss() < 256 << 20


def test_calls_that_take_long_end_a_turn(objects):
    """A connection with many such calls lets others have their turns between them."""
    server = objects(ON, "-t", "1", "-R", "1000")
    servers = b",".join(b"host%02d.example:11211" % n for n in range(64))
    lines = [b"ms consistent::r %d Anew v\r\n%s\r\n" % (len(servers), servers)] * 45
    with server.raw() as c:
        assert c.ask(b"get counter:add:k:1\r\n" * 45).count(b"VALUE") == 45
        before = int(server.stats()["conn_yields"])
        assert c.ask(b"".join(lines)).count(b"VA 7\r\nCREATED\r\n") == 45
        # Fewer than the 1,000 commands of a turn: it was their time.
        assert int(server.stats()["conn_yields"]) - before >= 2
        assert int(server.stats("objects")["consistent:new:calls"]) == 45


def test_an_order_is_kept_behind_a_call_that_waits(objects):
    """A call that waits for a busy object may still change something: what its connection sends next comes after it."""
    server = objects(*LARGE)
    with server.raw() as c, server.raw(120) as reader, server.raw(120) as writer:
        fill(c, "big")
        c.send(b"get set:new:a\r\nget set:put:a:first\r\n")
        c.until(b"SUCCESS\r\nEND\r\n")
        for turn in range(5):
            reader.send(b"get set:getall:big\r\n" * 3)
            # Both names, since objects are taken in the order of their hashes; a plain key too.
            writer.send(
                b"get set:intersection:a:big\r\nget set:put:a:m%08d\r\nget set:put:big:late%d\r\nset seen%d 0 0 1\r\nx\r\n" % (turn, turn, turn)
            )
            got = writer.until(b"STORED\r\n")
            common = b"".join(b"m%08d\r\n" % n for n in range(turn))
            assert got.startswith(block("set:intersection:a:big", common.decode()) + b"END\r\n"), got[:200]
            for _ in range(3):
                reader.until(b"\r\nEND\r\n")
