"""Methods in Luau under load: calls that meet on one object, connections that end while theirs wait, the end of the server."""

import collections
import signal
import threading
import time

import pytest

from crowd import percentiles, reset, show
from harness import wait_until
from scripted import own, types  # noqa: F401
from test_objects import call, steps, value

pytestmark = pytest.mark.only_cattlegrid


def stat(server, name):
    return int(server.stats("objects").get(name, "0"))


def in_threads(count, act):
    """Runs `act(number)` in this many threads; the first fault is raised."""
    faults = []

    def run(number):
        try:
            act(number)
        except Exception as error:  # noqa: BLE001
            faults.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    [thread.start() for thread in threads]
    [thread.join(300) for thread in threads]
    if faults:
        raise faults[0]
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("objects", [1, 20])
@pytest.mark.parametrize("threads", ["1", "4"])
def test_every_grant_is_counted_once(types, threads, objects, capsys):
    """Eight connections, in pipelines, long lines and one by one; the object moves under most of these calls."""
    server = types(sources=["tally"]).start("-t", threads)
    limit, connections, rounds = 20_000 // objects, 8, 40
    with server.raw() as c:
        for n in range(objects):
            steps(c, [(f"tally:new:q{n}:{limit}", "CREATED")])
    granted, waits, lock = collections.Counter(), [], threading.Lock()

    def take(number):
        own_counts, own_waits = collections.Counter(), []
        with server.raw(120) as c:
            for turn in range(rounds):
                keys = [f"tally:take:q{(number + turn + n) % objects}" for n in range(100)]
                if turn % 4 == 0:
                    c.send(("get " + " ".join(keys) + "\r\n").encode())
                    answers = c.until(b"END\r\n").split(b"\r\n")[1:-2:2]
                elif turn % 4 == 1:
                    answers = []
                    for key in keys:
                        since = time.monotonic()
                        answers.append(call(c, key).encode())
                        own_waits.append(time.monotonic() - since)
                else:
                    c.send("".join(f"mg {key} v\r\n" for key in keys).encode())
                    answers = [c.exactly(int(c.line().split()[1]) + 2)[:-2] for _ in keys]
                assert len(answers) == 100 and set(answers) <= {b"OK", b"FULL"}, answers[:5]
                own_counts.update(key for key, answer in zip(keys, answers) if answer == b"OK")
        with lock:
            granted.update(own_counts)
            waits.extend(own_waits)

    in_threads(connections, take)
    calls = connections * rounds * 100
    assert calls == 32_000 and sorted(granted.values()) == [limit] * objects
    with server.raw() as c:
        for n in range(objects):
            assert call(c, f"tally:left:q{n}") == "0"
    wait_until("no call runs", lambda: stat(server, "running") == stat(server, "busy") == 0)
    stats = server.stats("objects")
    assert int(stats["tally:take:calls"]) == calls
    p50, p99, most = percentiles(waits)
    show(capsys, f"{objects} objects, -t {threads}: {stats['script_moved']} of {calls} runs met another; one by one p50 {p50 * 1000:.1f}, p99 {p99 * 1000:.1f}, most {most * 1000:.1f} ms")


def test_long_calls_on_one_object_take_turns(types, capsys):
    """Each takes milliseconds, so that they always meet: all are done, nobody starves, and short calls come between."""
    server = types(sources=["runaway"], settings='time_limit = "1s"').start("-t", "4")
    done, lock = collections.Counter(), threading.Lock()

    def work(number):
        with server.raw(120) as c:
            for _ in range(25):
                assert call(c, f"runaway:work:hot:{20_000 if number else 1}") == "DONE"
                with lock:
                    done[number] += 1

    in_threads(8, work)
    assert dict(done) == {n: 25 for n in range(8)}
    with server.raw() as c:
        assert call(c, "runaway:count:hot") == "200"
    show(capsys, f"{stat(server, 'script_moved')} of 200 runs met another")


def test_connections_that_end_while_their_calls_wait(types):
    """The object is free afterwards, and nothing is left of them."""
    server = types(sources=["runaway"], settings='time_limit = "1s"').start("-t", "4")
    with server.raw(60) as c:
        assert call(c, "runaway:work:k:1") == "DONE"
        before = server.settled_descriptors()
        for turn in range(15):
            gone = [server.connect() for _ in range(8)]
            for s in gone:
                s.sendall(b"get runaway:work:k:50000\r\nget runaway:work:k:50000\r\nget runaway:count:k\r\n" * 3)
            if turn % 3:
                time.sleep(0.003 * (turn % 5))
            for n, s in enumerate(gone):
                reset(s) if n % 2 else s.close()
            assert call(c, "runaway:work:k:1") == "DONE"
        wait_until("their descriptors are closed", lambda: server.settled_descriptors() <= before, 60)
        wait_until("no call runs", lambda: stat(server, "running") == stat(server, "busy") == 0, 120)
        count = int(call(c, "runaway:count:k"))
        assert 16 <= count <= 16 + 15 * 8 * 6
        assert call(c, "runaway:work:k:1") == "DONE" and call(c, "runaway:count:k") == str(count + 1), "nothing of theirs is still to come"


def test_too_many_wait_for_one_object(types):
    """Those beyond the queue are refused at once; all others are answered."""
    server = types(sources=["runaway"], settings='time_limit = "1s"').start("-t", "2", "-c", "4096")
    with server.raw(120) as c:
        assert call(c, "runaway:work:k:1") == "DONE"
        waiting = [server.raw(200) for _ in range(1300)]
        for w in waiting:
            w.send(b"get runaway:work:k:2000\r\n")
        said = collections.Counter()
        for w in waiting:
            line = w.line()
            said[line if line.startswith(b"SERVER") else b"VALUE"] += 1
            w.close()
        assert set(said) <= {b"VALUE", b"SERVER_ERROR busy"}, said
        assert call(c, "runaway:count:k") == str(1 + said[b"VALUE"])


@pytest.mark.parametrize("ends", ["drop", "expire", "flush", "replace", "delete", "tag"])
def test_an_object_that_goes_while_its_methods_run(types, ends):
    """Each call is made on the object of before or finds none; none brings it back."""
    source = own("", "function T.work(self, rounds: string) local n = 0 for i = 1, cg.integer(rounds, 1) do n = (n * 31 + i) % 1000003 end self.n = (self.n or 0) + 1 return 'DONE' end\nT.read = { count = function(self) return self.n or 0 end }")
    made = types(sources=[], settings='time_limit = "1s"', rules='[[rule]]\nmatch = "works::{id}"\ntags = ["id:{id}"]\n')
    made.write("works.luau", source.replace("{ create = {} }", "{}"))
    server = made.start("-t", "4", "-o", "debugtime")
    asked = {
        "drop": b"get works:drop:k\r\n", "expire": b"debugtime 12\r\n", "flush": b"flush_all\r\n", "replace": b"get works:new:k\r\n", "delete": b"delete works::k\r\n", "tag": b"delete @tag:id:k\r\n",
    }[ends]
    with server.raw(60) as c:
        workers = [server.raw(60) for _ in range(4)]
        for turn in range(6):
            assert call(c, "works:new:k") == "CREATED" and call(c, "works:ttl:k:10") == "10"
            for w in workers:
                w.send(b"get works:work:k:30000\r\n" * 4)
            time.sleep(0.004 * turn)
            c.ask(asked)
            for w in workers:
                for _ in range(4):
                    assert w.until(b"END\r\n") in (b"END\r\n", value("works:work:k:30000", "DONE"))
            count = call(c, "works:count:k")
            assert count is None or (ends == "replace" and 0 <= int(count) <= 16), count
    wait_until("no call runs", lambda: stat(server, "busy") == 0)


def test_the_server_ends_while_methods_run(types):
    made = types(sources=["runaway"], settings='time_limit = "300ms"')
    for _ in range(3):
        server = made.start("-t", "4")
        with server.raw(60) as c:
            assert call(c, "runaway:work:k:1") == "DONE"
            waiting = [server.raw(60) for _ in range(10)]
            for w in waiting:
                w.send(b"get runaway:work:k:100000\r\nget runaway:loop:k\r\n")
            time.sleep(0.01)
            server.signal(signal.SIGTERM)
            # Five that were stopped have switched the method off.
            whole = [
                value("runaway:work:k:100000", "DONE") + b"SERVER_ERROR script " + text + b"\r\n"
                for text in (b"runaway.loop: took longer than 300 ms", b"disabled: runaway.loop")
            ]
            for w in waiting:
                got = w.closed(90)
                assert any(replies.startswith(got) for replies in whole), got
        assert server.process.wait(90) == 0, server.log()


def test_pinned_types_are_kept(types):
    """`evict = "never"` in a source: within `pinned_max`, and what is there stays when plain values fill the memory."""
    made = types(sources=[], settings='pinned_max = "1MiB"')
    made.write("kept.luau", "local T = { evict = 'never' }\nfunction T.new(n: string) return { n = n } end\nT.read = { get = function(self) return self.n end }\nreturn T\n")
    with made.start("-m", "64").raw(60) as c:
        n = 0
        while (got := call(c, f"kept:new:{n:06}:{n}")) == "CREATED":
            n += 1
            assert n < 100_000, "no limit is met"
        assert got == "SERVER_ERROR out of memory storing object"
        for k in range(2000):
            c.set(b"fill:%d" % k, b"v" * 100_000)
        assert int(c.stats()["evictions"]) > 0
        assert all(call(c, f"kept:get:{k:06}") == str(k) for k in range(n))


@pytest.mark.parametrize("args", [("-m", "8"), ("-M", "-m", "8"), ("-m", "8", "-t", "1")])
def test_little_memory(types, args):
    """Calls are refused whole, or evict; states are whole; the rest of the server works."""
    small = '[server]\ntag_memory = "64KiB"\nledger_memory = "64KiB"\nfence_memory = "64KiB"\n'
    made = types(sources=["probe", "tally"], rules=small)
    with made.start(*args).raw(120) as c:
        made_count = refused = 0
        for n in range(1500):
            size = 1 + (n * 7919) % 30_000
            if call(c, f"probe:new:k{n}:x") != "CREATED":
                refused += 1
                continue
            got = c.ask(b"ms probe::k%d %d v Aput\r\n%s\r\n" % (n, size, b"v" * size))
            if got == b"VA 1\r\n1\r\n":
                made_count += 1
                assert c.ask(b"mg probe::k%d v Atext\r\n" % n) in (b"EN\r\n", b"VA %d\r\n%s\r\n" % (size, b"v" * size))
            else:
                assert got in (b"SERVER_ERROR out of memory storing object\r\n", b"EN\r\n"), got
                refused += 1
                assert call(c, f"probe:text:k{n}") in ("x", None)
        assert made_count > 100 and (refused > 0) == ("-M" in args), (made_count, refused)
        c.ask(b"flush_all\r\n")
        steps(c, [("tally:new:k:1", "CREATED"), ("tally:take:k", "OK")])
