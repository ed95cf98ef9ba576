"""Clients that do not read their replies: what that costs, and that others are served meanwhile."""

import os
import socket
import ssl
import time

import pytest

from crowd import percentiles, rule, write_rules
from harness import MIB, PROMPT, Raw, allow_files, wait_until
from test_operations import make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid


def counts(server, connect=None):
    with connect(server) if connect else server.raw(20) as c:
        return {name: int(value) for name, value in c.stats("cattlegrid").items() if name.startswith("unsent_")}


def narrow(server):
    """A connection that takes a few KiB before it is read."""
    s = socket.socket(socket.AF_UNIX if server.unix else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(20)
    s.connect(server.unix or ("127.0.0.1", server.port))
    return s


class Plain:
    name, args = "plain", ()
    length = 2_000
    """Of values that are copied into replies, and of which a stuck connection keeps some: how many is a matter of its buffers."""

    def __init__(self, directory):
        self.options = ("-l", "127.0.0.1")

    def silent(self, server, request):
        s = narrow(server)
        s.sendall(request)
        return s

    def good(self, server):
        return server.raw(20)


class Unix(Plain):
    def __init__(self, directory):
        self.options = ("-s", os.path.join(directory, "socket"))


class Tls(Plain):
    length = 8_000

    def __init__(self, directory):
        make_certificate(directory)
        self.options = ("-Z", "-o", f"ssl_chain_cert={directory}/cert.pem,ssl_key={directory}/key.pem")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def silent(self, server, request):
        s = self.context.wrap_socket(narrow(server))
        s.sendall(request)
        return s

    def good(self, server):
        return tls(server)


@pytest.fixture(params=[Plain, Unix, Tls])
def way(request, open_dir):
    return request.param(str(open_dir))


def test_readers_of_one_large_value_that_do_not_read(start, open_dir):
    """Over TLS each holds a bounded piece of it encrypted, not a copy."""
    allow_files(1000)
    way = Tls(str(open_dir))
    server = start(*way.options, "-m", 64)
    with way.good(server) as c:
        assert c.set(b"large", b"x" * (MIB - 512)) == b"STORED"
        before = server.rss()
        readers = [way.silent(server, b"get large\r\n" * 10) for _ in range(60)]
        asked = []
        wait_until("no more is executed", lambda: asked.append(c.stats()["get_hits"]) or time.sleep(0.3) or asked[-3:] == asked[-1:] * 3, 60)
        assert int(asked[-1]) < 600, "their sockets take everything"
        each = (server.rss() - before) / 60
        assert each < 250 * 1024, f"{each / 1024:.0f} KiB a reader"
        # What is read late is whole.
        for reader in readers[::20]:
            value = Raw(reader)
            whole = b"VALUE large 0 %d\r\n" % (MIB - 512) + b"x" * (MIB - 512) + b"\r\nEND\r\n"
            assert all(value.exactly(len(whole)) == whole for _ in range(10))
        for reader in readers:
            reader.close()
    wait_until("nothing is unsent", lambda: counts(server, way.good)["unsent_bytes"] == 0)


def test_at_the_cap_others_are_served_and_the_stuck_are_closed(start, way):
    """60 clients ask for more than the cap holds, and than their sockets take, and do not read."""
    allow_files(1000)
    server = start(*way.options, "-m", 64, "--unsent-memory", "1m", "-t", 2)
    with way.good(server) as c:
        # Of a length that is copied into replies, not sent from where it is stored.
        assert c.set(b"v", b"v" * way.length) == b"STORED" and c.set(b"small", b"s") == b"STORED"
        stuck, times, most = [], [], 0
        end, closed = time.monotonic() + 13, {"stalled": 0, "displaced": 0}
        while (seconds := time.monotonic() - end) < 0 or seconds < 60 and not (closed["stalled"] or closed["displaced"]):
            if len(stuck) < 60:
                stuck.append(way.silent(server, b"get v\r\n" * 4000))
            since = time.monotonic()
            assert c.get(b"small") == b"s"
            assert c.get(b"v") == b"v" * way.length
            times.append((time.monotonic() - since) * 1000)
            now = c.stats("cattlegrid")
            most = max(most, int(now["unsent_bytes"]))
            closed = {name: int(now[f"unsent_{name}"]) for name in ("stalled", "displaced", "paused")}
            time.sleep(0.005)
        p50, p99, worst = percentiles(times)
        assert most <= MIB + 256 * 1024, f"{most} bytes unsent"
        assert closed["stalled"] or closed["displaced"], closed
        assert worst < PROMPT * 1000, f"p50 {p50:.1f}, p99 {p99:.1f}, most {worst:.1f} ms"
        for s in stuck:
            s.close()
        wait_until("nothing is unsent", lambda: counts(server, way.good)["unsent_bytes"] == 0)
        c.send(b"stats reset\r\n")
        assert c.line() == b"RESET"
        assert set(counts(server, way.good).values()) == {0}


def test_who_takes_nothing_at_the_high_mark_is_closed_after_ten_seconds(start, way):
    server = start(*way.options, "-m", 512, "--unsent-memory", "1m", "-t", 1)
    with way.good(server) as c:
        # Of a length that is copied into replies at this `-m`.
        assert c.set(b"v", b"v" * 30_000) == b"STORED"
        # None can be silent for ten seconds before it has come.
        stuck, since = [], time.monotonic()
        while (now := c.stats("cattlegrid")) and int(now["unsent_bytes"]) < 800_000 and now["unsent_stalled"] == "0":
            before = int(now["unsent_bytes"])
            stuck.append(way.silent(server, b"get v\r\n" * 300))

            def is_stuck(before=before):
                # Or the first is closed already, when it has taken ten seconds to come here.
                now = c.stats("cattlegrid")
                return int(now["unsent_bytes"]) > before or now["unsent_stalled"] != "0"

            wait_until("it is stuck", is_stuck)
            assert len(stuck) < 100
        wait_until("the first is closed", lambda: int(c.stats("cattlegrid")["unsent_stalled"]) > 0, 60)
        assert time.monotonic() - since > 9, "not before"
        now = wait_until("that is enough", lambda: (now := c.stats("cattlegrid")) and int(now["unsent_bytes"]) < 786_432 and now)
        assert int(now["unsent_stalled"]) < len(stuck), "those below the mark are left alone"
        assert now["unsent_displaced"] == "0"
        for s in stuck:
            s.close()


def test_values_for_a_multi_get_that_is_held(start, open_dir):
    """They are copied when they are stored, and count until they are written."""
    rules = write_rules(str(open_dir), rule("k:{n}", 'hold = "20s"\nhold_many = "20s"\nlease = "30s"'))
    server = start("--config", rules, "--unsent-memory", "1m", "-m", 64, "-t", 1)
    holders = [server.raw(20) for _ in range(12)]
    for n, holder in enumerate(holders):
        assert holder.get(b"k:%d" % n) is None
    with server.raw(20) as waiter, server.raw(20) as c:
        waiter.send(b"get " + b" ".join(b"k:%d" % n for n in range(12)) + b"\r\n")
        wait_until("it is held", lambda: c.stats("cattlegrid")["held"] != "0")
        sums = []
        for n, holder in enumerate(holders[:10]):
            assert holder.set(b"k:%d" % n, b"v" * 10_000) == b"STORED"
            sums.append(int(c.stats("cattlegrid")["unsent_bytes"]))
        assert sums == sorted(sums) and 100_000 <= sums[-1] < 110_000, sums
        holders[10].set(b"k:10", b"v" * 10_000)
        holders[11].set(b"k:11", b"v" * 10_000)
        assert waiter.until(b"END\r\n").count(b"VALUE") == 12
        wait_until("all is written", lambda: c.stats("cattlegrid")["unsent_bytes"] == "0")
    for holder in holders:
        holder.close()


def test_large_values_that_only_stuck_readers_keep(start, way):
    """A reader that is stuck keeps the version of the value that it asked for. All versions that are replaced have a
    quarter of -m; beyond it readers are closed, and what else is stored stays."""
    allow_files(1000)
    server = start(*way.options, "-m", 64, "-t", 2)
    names = ("memory_used", "index_bytes", "segment_bytes", "huge_bytes", "huge_free_bytes", "ghost_bytes", "pinned_bytes")
    with way.good(server) as c:

        def pinned():
            return int(c.stats("cattlegrid")["pinned_bytes"])

        def sums_are_right():
            now = {name: int(value) for name, value in c.stats("cattlegrid").items() if name in (*names, "unsent_bytes")}
            return now["memory_used"] == sum(now[name] for name in names[1:]) and now["unsent_bytes"] >= now["pinned_bytes"]

        for n in range(2000):
            c.send(b"set small:%d 0 0 1000 noreply\r\n%s\r\n" % (n, b"s" * 1000))
        stuck, most = [], 0
        for n in range(120):
            assert c.set(b"v", bytes([n + 1]) * (MIB - 512)) == b"STORED"
            hits = int(c.stats()["get_hits"])
            stuck.append(way.silent(server, b"get v\r\n" * 8))
            wait_until("it has its value", lambda: int(c.stats()["get_hits"]) > hits)
            # Another lane than that of the set has the reader to close now and then, and closes it a moment later.
            wait_until("a quarter is pinned at most", lambda: pinned() <= 16 * MIB)
            wait_until("the sums are right", sums_are_right)
            most = max(most, pinned())
        assert 14 * MIB < most <= 16 * MIB, f"{most / MIB:.1f} MiB are pinned"
        displaced = counts(server, way.good)["unsent_displaced"]
        assert 90 <= displaced <= 110, displaced
        # They have not pushed out what others have stored.
        found = sum(c.get(b"small:%d" % n) is not None for n in range(2000))
        assert found == 2000, f"{found} of 2000 are left"
        # Those that are left have their version whole.
        last = Raw(stuck[-1])
        whole = b"VALUE v 0 %d\r\n" % (MIB - 512) + bytes([120]) * (MIB - 512) + b"\r\nEND\r\n"
        assert all(last.exactly(len(whole)) == whole for _ in range(8))
        for s in stuck:
            s.close()
        wait_until("nothing is pinned", lambda: pinned() == 0)
        wait_until("nothing is unsent", lambda: counts(server, way.good)["unsent_bytes"] == 0)
