"""The server dies, is stopped, comes back: clients get a closed connection or a right answer, never a wrong one."""

import os
import signal
import socket
import threading
import time

import pytest

from harness import PROMPT, Closed, Raw, wait_until


@pytest.fixture
def port():
    """A port that no other process is given while the server is away: it is bound here too, without listening."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


def value_for(key, version):
    """A value that only this key and version can have, of a size that varies."""
    return (b"%s=%d;" % (key, version)) * (version % 300 + 1)


class Load(threading.Thread):
    """One client that stores and reads its own keys and checks every reply against what it asked.

    A lost connection is no fault, it connects again; anything else is kept in `wrong`.
    """

    def __init__(self, port, number, stopping):
        super().__init__(daemon=True)
        self.port, self.number, self.stopping = port, number, stopping
        self.rounds, self.lost, self.wrong = 0, 0, []

    def run(self):
        while not self.stopping.is_set():
            try:
                with Raw(socket.create_connection(("127.0.0.1", self.port), 2 * PROMPT)) as c:
                    while not self.stopping.is_set():
                        self.round(c)
                        self.rounds += 1
            except (Closed, ConnectionError):
                self.lost += 1
                self.stopping.wait(0.005)
            except OSError as error:
                self.wrong.append(repr(error))
                return
            except AssertionError as error:
                self.wrong.append(str(error))
                return

    def round(self, c):
        version = self.rounds
        keys = [b"load-%d-%d" % (self.number, i) for i in range(10)]
        values = {k: value_for(k, version + i) for i, k in enumerate(keys)}
        c.send(b"".join(b"set %s %d 0 %d\r\n%s\r\n" % (k, version % 1000, len(v), v) for k, v in values.items()))
        for k in keys:
            line = c.line()
            assert line == b"STORED", f"set {k}: {line!r}"
        c.send(b"gets " + b" ".join(keys) + b"\r\nmg %s v k f\r\nincr absent-%d 1\r\n" % (keys[0], self.number))
        for k in keys:
            words = c.line().split()
            assert words[:4] == [b"VALUE", k, b"%d" % (version % 1000), b"%d" % len(values[k])] and len(words) == 5, words
            assert c.exactly(len(values[k]) + 2) == values[k] + b"\r\n", k
        assert c.line() == b"END"
        assert c.line() == b"VA %d k%s f%d" % (len(values[keys[0]]), keys[0], version % 1000)
        assert c.exactly(len(values[keys[0]]) + 2) == values[keys[0]] + b"\r\n"
        line = c.line()
        assert line == b"NOT_FOUND", line


class Crowd:
    """Several `Load`s on one server."""

    def __init__(self, port, count=4):
        self.stopping = threading.Event()
        self.loads = [Load(port, n, self.stopping) for n in range(count)]

    def __enter__(self):
        for load in self.loads:
            load.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for load in self.loads:
            load.join(4 * PROMPT)

    def progress(self):
        """Waits until every client got further."""
        seen = [load.rounds for load in self.loads]

        def served():
            return self.wrong() or all(load.rounds > before + 1 for load, before in zip(self.loads, seen))

        wait_until("every client is served", served, 4 * PROMPT)

    def wrong(self):
        return [w for load in self.loads for w in load.wrong]

    def lost(self):
        return sum(load.lost for load in self.loads)


def test_kill_and_restart_under_load(start, port):
    server = start("-p", str(port))
    with Crowd(port) as crowd:
        for _ in range(5):
            crowd.progress()
            server.kill()
            server.start()
        crowd.progress()
    assert not crowd.wrong(), crowd.wrong()
    assert crowd.lost() >= 5 * len(crowd.loads)
    assert server.stats()["curr_items"] != "0"


def test_a_restarted_server_is_empty(start, port):
    server = start("-p", str(port))
    with server.raw() as c:
        c.set(b"k", b"v")
    server.kill()
    server.start()
    with server.raw() as c:
        assert c.get(b"k") is None and c.stats()["curr_items"] == "0"


def test_terminate_during_writes(start, port):
    """No reply is cut in a way that could be taken for another; the exit is orderly."""
    server = start("-p", str(port))
    with Crowd(port) as crowd:
        for _ in range(3):
            crowd.progress()
            began = time.monotonic()
            assert server.stop(6 * PROMPT) == 0
            assert time.monotonic() - began < 3 * PROMPT
            server.start()
        crowd.progress()
    assert not crowd.wrong(), crowd.wrong()


def test_a_half_stored_value_is_not_stored(start):
    server = start()
    c = server.raw()
    c.set(b"k", b"old")
    c.send(b"set k 0 0 1000\r\n" + b"x" * 500)
    c.close()
    with server.raw() as d:
        assert d.get(b"k") == b"old"
        d.send(b"ms k 1000\r\nhalf")
    with server.raw() as d:
        assert d.get(b"k") == b"old"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_orderly_exit(start, open_dir, kind, number):
    """Idle and half-busy connections are closed; the status is 0; what was made is removed."""
    server = start("-s", open_dir + "/sock", "-P", open_dir + "/pid", ours=["--drain", "2s"])
    wait_until("the pid file is there", lambda: os.path.exists(open_dir + "/pid"))
    with server.raw() as idle, server.raw() as half:
        half.send(b"set k 0 0 100\r\nabc")
        idle.set(b"k", b"v")
        began = time.monotonic()
        server.signal(number)
        assert server.process.wait(6 * PROMPT) == 0
        assert time.monotonic() - began < 3 * PROMPT, "a drain of 2 s, or none"
        idle.closed()
        half.closed()
    if kind == "cattlegrid":
        assert not os.path.exists(open_dir + "/sock")
        assert not os.path.exists(open_dir + "/pid")


def refused(server):
    """Whether it serves no new connection."""
    try:
        with server.raw() as c:
            c.send(b"mn\r\n")
            return c.line() != b"MN"
    except (ConnectionError, Closed):
        return True


@pytest.mark.only_cattlegrid
def test_a_second_signal_leaves_at_once(start):
    server = start("--drain", "30s")
    with server.raw() as half:
        half.send(b"set k 0 0 100\r\nabc")
        wait_until("it is connected", lambda: int(server.stats()["curr_connections"]) >= 2)
        server.signal(signal.SIGTERM)
        # Two signals at the same moment may arrive as one.
        wait_until("the first one is seen", lambda: not server.running() or refused(server))
        if server.running():
            server.signal(signal.SIGTERM)
        began = time.monotonic()
        server.process.wait(20)
        assert time.monotonic() - began < PROMPT, "the drain is 30 s"


@pytest.mark.only_cattlegrid
def test_no_connection_is_accepted_while_draining(start):
    server = start("--drain", "60s")
    with server.raw() as half:
        half.send(b"set k 0 0 100\r\nabc")
        wait_until("it is connected", lambda: int(server.stats()["curr_connections"]) >= 2)
        server.signal(signal.SIGTERM)
        wait_until("connections are refused", lambda: refused(server))
    assert server.process.wait(4 * PROMPT) == 0


def test_sigusr_and_sighup_do_no_harm(start):
    server = start()
    with server.raw() as c:
        c.set(b"k", b"v")
        server.signal(signal.SIGHUP)
        server.signal(signal.SIGPIPE)
        for _ in range(20):
            assert c.get(b"k") == b"v"
    assert server.running()
