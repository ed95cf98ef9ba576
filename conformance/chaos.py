"""Misbehaving clients of every kind at once, and well-behaved ones beside them.

    chaos.py [--server-bin PATH] [--reference-bin PATH] [--rounds N] [--seconds N]

The program measures what another client notices: p50 and p99 of its small gets and sets, alone and while the chaos runs,
on the server and on memcached in the same run, slices of both alternately. `test_chaos.py` is the short form, which
asserts and measures nothing.

A [`Chaos`] is a process of its own with a thread for each kind of misbehaviour; it counts what it has done and ends when its
standard input is closed. A [`Good`] is a client that checks every reply against what it has itself acknowledged: nobody
else writes its keys.
"""

import argparse
import json
import os
import random
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import harness
from crowd import percentiles, reset, write_rules
from harness import Closed, Raw

MIB = 1 << 20
ADDRESSES = [f"127.0.0.{n}" for n in range(1, 6)]

RULES = """
[[rule]]
match = "page:{id}"
hold = "1s"
lease = "500ms"
grace = "2s"
tags = ["pages"]

[[rule]]
match = "good:{client}:{n}"
hold = "1s"
lease = "500ms"
grace = "2s"
tags = ["client:{client}"]

[[cascade]]
on = ["delete"]
match = "user:{id}"
bump = ["pages"]
"""

STALLED = 80
"""Uploads of about 1 MiB that stop before their end: more than the server keeps of such (64 MiB)."""

UPLOAD = 1_000_000


# --- Misbehaviour ----------------------------------------------------------------------------------------------------


class Kind(threading.Thread):
    """A kind of misbehaviour. `each` is called until the end; connections refused or cut are part of the game."""

    pause = 0.0
    first = 0.0

    def __init__(self, chaos):
        super().__init__(daemon=True)
        self.port, self.tls_port, self.over = chaos.port, chaos.tls_port, chaos.over
        self.chance = random.Random(f"{chaos.seed} {type(self).__name__}")
        self.counts, self.error, self.open = {}, None, []

    def run(self):
        try:
            self.over.wait(self.first)
            while not self.over.wait(self.pause):
                try:
                    self.each()
                except (OSError, Closed) as error:
                    self.count("refused" if error.args[:1] == (b"ERROR Too many open connections",) else "cut")
        except Exception:
            self.error = traceback.format_exc()
        for s in self.open:
            s.close()

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def connect(self, source=None, seconds=10.0, small=False):
        s = socket.socket()
        try:
            if small:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.settimeout(seconds)
            if source:
                s.bind((source, 0))
            s.connect(("127.0.0.1", self.port))
        except OSError:
            s.close()
            raise
        return s

    def served(self):
        """A connection that the server has taken; one that it has no room for raises."""
        raw = Raw(self.connect())
        try:
            raw.send(b"mn\r\n")
            line = raw.line()
            if line != b"MN":
                raise Closed(line)
        except BaseException:
            raw.close()
            raise
        return raw

    def keep(self, s):
        """Open until the end."""
        self.open.append(s)
        return s

    def push(self, s, data, seconds=0.5):
        """Sends as much as is taken in time; how much that was."""
        s.settimeout(seconds)
        sent = 0
        try:
            while sent < len(data):
                sent += s.send(data[sent : sent + (1 << 16)])
        except TimeoutError:
            pass
        return sent


class StuckReaders(Kind):
    """Ask for much and never read."""

    def each(self):
        if len(self.open) < 20:
            s = self.keep(self.connect(small=True))
            n = len(self.open)
            if n % 3 == 0:
                self.push(s, b"get big:%d\r\n" % (n % 10) * 200)
            elif n % 3 == 1:
                self.push(s, b"get " + b" ".join(b"small:%d" % i for i in range(5000)) + b"\r\n")
            else:
                self.push(s, b"mg small:%d k v\r\nget big:3 small:1 small:2\r\n" % n * 1000)
            self.count("opened")


class SlowReaders(Kind):
    """A byte a second."""

    pause = 1.0

    def each(self):
        if len(self.open) < 5:
            self.push(self.keep(self.connect(small=True)), b"get big:1 big:2 small:7\r\n" * 5)
        for s in self.open:
            s.settimeout(0.1)
            s.recv(1)
            self.count("bytes")


class StalledWriters(Kind):
    """Announce 1 MiB, send nearly all of it, and stop."""

    def each(self):
        n = len(self.open)
        if n < STALLED:
            s = self.keep(self.connect(ADDRESSES[n % 5]))
            head = (b"set stalled:%d 0 0 %d\r\n", b"ms stalled:%d %d T0\r\n", b"set stalled:%d 0 0 %d noreply\r\n")[n % 3]
            self.push(s, head % (n, UPLOAD) + b"s" * (UPLOAD - 1000), 2.0)
            self.count("opened")
        else:
            self.over.wait(0.5)


class Dribblers(Kind):
    """Lines without an end, and data that comes a byte a second."""

    pause = 1.0

    def each(self):
        while len(self.open) < 10:
            s = self.keep(self.connect(ADDRESSES[len(self.open) % 5]))
            n = len(self.open)
            if n % 2:
                self.push(s, b"get " + b"endless " * self.chance.randrange(1, 6000))
            else:
                self.push(s, b"set dribble:%d 0 0 %d\r\n" % (n, UPLOAD) + b"d" * self.chance.randrange(700_000))
            self.count("opened")
        for s in self.open:
            self.push(s, b"x")
            self.count("bytes")


class Churn(Kind):
    """Stores much more than there is room for."""

    pause = 0.01

    def each(self):
        if not self.open:
            self.keep(self.served().sock)
        raw, size = Raw(self.open[0]), self.chance.choice((100, 3000, 30_000, 300_000))
        for _ in range(4):
            first = sum(self.counts.values())
            keys = [b"churn:%d" % n for n in range(first, first + max(1, 300_000 // size))]
            raw.send(b"".join(b"set %s 0 0 %d\r\n%s\r\n" % (key, size, b"c" * size) for key in keys))
            for key in keys:
                line = raw.line()
                assert line == b"STORED" or line == b"SERVER_ERROR out of memory storing object" and size > 60_000, line
                self.count("stored" if line == b"STORED" else "refused large")


COMMANDS = [
    b"set cut:1 0 0 10\r\n0123456789\r\n",
    b"get cut:1 cut:2 page:7\r\n",
    b"ms cut:1 10 T100 c\r\n0123456789\r\n",
    b"mg page:8 v t N30\r\n",
    b"md cut:1 q\r\nmn\r\n",
    b"delete user:1\r\n",
    b"incr @tag:pages 1\r\n",
    b"gets page:9\r\ncas page:9 0 0 3 1\r\nabc\r\n",
]


class Resets(Kind):
    """Cut at every point of a command: by a reset, an orderly close, or a half close whose replies are read."""

    pause = 0.004

    def each(self):
        n = sum(self.counts.values())
        command = COMMANDS[n % len(COMMANDS)]
        s = self.connect(ADDRESSES[n % 5])
        try:
            s.sendall(command[: n // len(COMMANDS) % (len(command) + 1)])
            if n % 3 == 0:
                s.shutdown(socket.SHUT_WR)
                got = b""
                while part := s.recv(1 << 16):
                    got += part
                if got.startswith(b"ERROR Too many open connections"):
                    raise Closed(got[:-2])
                self.count("half closed")
            elif n % 3 == 1:
                reset(s)
                self.count("reset")
            else:
                self.count("closed")
        finally:
            s.close()


class ElasticPool(Kind):
    """Gets on one connection, sets on another, and closes the one in between."""

    pause = 0.002

    def each(self):
        key = b"page:%d" % self.chance.randrange(50)
        with self.served() as one:
            if one.get(key) is not None:
                self.count("hit")
                if self.chance.random() < 0.2:
                    one.send(b"delete %s\r\n" % key)
                    one.line()
                return
            other = self.served()
            if self.chance.random() < 0.5:
                one.close()
            with other:
                line = other.set(key, b"value of " + key)
                assert line == b"STORED", line
                self.count("filled")


class DyingHolders(Kind):
    """One computes, two wait; the one dies. Each that waits is answered, well after its hold at the latest."""

    pause = 0.02

    def each(self):
        n = sum(self.counts.values())
        key = b"page:dying-%d" % n
        holder = self.served()
        waiters = []
        try:
            assert holder.get(key) is None
            for _ in range(2):
                waiters.append(self.served())
                waiters[-1].send(b"get %s\r\n" % key)
            self.over.wait(0.02)
            how = ("reset", "closed", "silent")[n % 3]
            if how == "reset":
                reset(holder.sock)
            elif how == "closed":
                holder.close()
            for w in waiters:
                since, line = time.monotonic(), w.line()
                took = time.monotonic() - since
                assert line == b"END" or line.startswith(b"VALUE " + key), line
                assert took < 10, f"{how}: answered after {took:.1f} s"
                if line == b"END":
                    assert w.set(key, b"v", exptime=1) == b"STORED"
            self.count(how)
        finally:
            holder.close()
            for w in waiters:
                w.close()


class LogFlood(Kind):
    """All that is logged and that a client can bring about, with the level up."""

    def each(self):
        with self.served() as s:
            s.send(b"verbosity 2\r\n")
            assert s.line() == b"OK"
            for _ in range(200):
                if self.over.is_set():
                    return
                s.send(b"cache_memlimit 64\r\nno such command\r\nset bad\r\n" * 20)
                for _ in range(20):
                    assert (got := [s.line() for _ in range(3)])[0] == b"OK", got
                self.count("floods")
                self.over.wait(0.005)
                # This one speaks another protocol: it is logged, and closed.
                with self.connect() as other:
                    other.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    self.count("strangers")


class Exhaustion(Kind):
    """Opens connections until there are no descriptors, keeps them for a second, lets go, again and again."""

    first = 4.0
    pause = 1.0

    def each(self):
        crowd = []
        try:
            while len(crowd) < 300 and not self.over.is_set():
                s = self.connect(seconds=2.0)
                crowd.append(s)
                s.sendall(b"mn\r\n")
                try:
                    got = s.recv(100)
                except TimeoutError:
                    got = b""  # it waits in the backlog, as memcached has it
                if got != b"MN\r\n":
                    self.count("full")
                    break
            self.over.wait(1.0)
            self.count("rounds")
        finally:
            for s in crowd:
                self.chance.choice((reset, socket.socket.close))(s)


class TlsNoise(Kind):
    """Half handshakes, and text where a handshake belongs."""

    pause = 0.05

    def each(self):
        if self.tls_port is None:
            return
        with socket.create_connection(("127.0.0.1", self.tls_port), 5) as s:
            s.sendall((b"\x16\x03\x01\x02\x00\x01\x00", b"get k\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 3000)[self.chance.randrange(3)])
            if self.chance.random() < 0.5:
                reset(s)
            self.count("handshakes")


KINDS = [
    StuckReaders, SlowReaders, StalledWriters, Dribblers, Churn, Resets, ElasticPool, DyingHolders, LogFlood, Exhaustion, TlsNoise,
]  # fmt: skip


class ChaosProcess:
    """What runs in the process: all kinds, until standard input ends."""

    def __init__(self, port, tls_port, seed):
        self.port, self.tls_port, self.seed = port, tls_port, seed
        self.over = threading.Event()

    def run(self):
        harness.allow_files(2000)
        threading.stack_size(256 << 10)
        with Raw(socket.create_connection(("127.0.0.1", self.port), 10)) as c:
            for i in range(10):
                c.set(b"big:%d" % i, b"b" * 900_000)
            c.send(b"".join(b"set small:%d 0 0 100 noreply\r\n%s\r\n" % (i, b"s" * 100) for i in range(5000)))
            c.ask(b"")
        kinds = [kind(self) for kind in KINDS]
        for kind in kinds:
            kind.start()
        print("running", flush=True)
        sys.stdin.read()
        self.over.set()
        for kind in kinds:
            kind.join(30)
        errors = [kind.error for kind in kinds if kind.error] + [f"{type(k).__name__} hangs" for k in kinds if k.is_alive()]
        print(json.dumps({"counts": {type(k).__name__: k.counts for k in kinds}, "errors": errors}), flush=True)


class Chaos:
    """The process, from outside."""

    def __init__(self, server, seed=1, tls_port=None):
        command = [sys.executable, os.path.abspath(__file__), "--chaos", str(server.port), "--seed", str(seed)]
        command += ["--tls-port", str(tls_port)] if tls_port else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "running\n", "the chaos does not start"

    def end(self):
        """Ends it; what each kind has done. Fails if one of them saw what it should not."""
        out, _ = self.process.communicate("", timeout=60)
        said = json.loads(out)
        assert not said["errors"], "\n".join(said["errors"])
        return said["counts"]

    def kill(self):
        self.process.kill()
        self.process.communicate()


# --- Well-behaved clients --------------------------------------------------------------------------------------------


class Good(threading.Thread):
    """Verified load on keys of its own: every reply must be right, and in time.

    What a get finds is the last acknowledged value or nothing (it was evicted, or a fill was dropped); once
    nothing was found, or the key was deleted, its tag invalidated or a set refused, nothing is found until the next set.
    """

    def __init__(self, raw, number, seed, within, large=True):
        super().__init__(daemon=True)
        self.raw, self.number, self.within, self.large = raw, number, within, large
        self.chance = random.Random(f"{seed} good {number}")
        self.last, self.version = {}, 0
        self.over, self.error = threading.Event(), None
        self.times, self.hits, self.misses = {}, 0, 0
        self.refused = []
        """When large sets were refused."""
        self.stored = []
        """When large sets were stored."""

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except BaseException:
            self.error = f"client {self.number}: {traceback.format_exc()}"
        finally:
            self.raw.close()

    def value(self, key, version):
        if key.startswith(b"large"):
            size = 100_000 + version * 7919 % 800_000
        else:
            size = version * 131 % 2000
        stamp = b"%s=%d;" % (key, version)
        return (stamp * (size // len(stamp) + 1))[: max(size, len(stamp))]

    def step(self):
        c, n = self.chance.random(), self.chance.randrange(50)
        if self.large and c < 0.03:
            key, what = b"large:%d:%d" % (self.number, n % 4), self.chance.choice(("set", "get"))
        else:
            name = b"good:%d:%d" if self.chance.random() < 0.5 else b"plain:%d:%d"
            key = name % (self.number, n)
            what = "get" if c < 0.55 else "set" if c < 0.9 else "delete" if c < 0.98 else "bump"
        since = time.monotonic()
        getattr(self, what)(key)
        took = time.monotonic() - since
        kind = "large" if key.startswith(b"large") else "small"
        self.times.setdefault((kind, what), []).append(took)
        assert took < self.within, f"{what} {key}: answered after {took:.1f} s"
        # As an application does: it does something else in between.
        self.over.wait(0.001)

    def get(self, key):
        got, last = self.raw.get(key), self.last.get(key)
        if got is None:
            self.misses += 1
            self.last[key] = None
            return
        self.hits += 1
        assert last is not None, f"{key}: {got[:60]}, after it was gone"
        want = self.value(key, last)
        assert got == want, f"{key}: {got[:60]}, not {want[:60]}"

    def set(self, key):
        self.version += 1
        line = self.raw.set(key, self.value(key, self.version))
        if line == b"STORED":
            self.last[key] = self.version
            if key.startswith(b"large"):
                self.stored.append(time.monotonic())
            return
        assert key.startswith(b"large"), f"{key}: {line}"
        assert line == b"SERVER_ERROR out of memory storing object", f"{key}: {line}"
        self.refused.append(time.monotonic())
        self.last[key] = None

    def delete(self, key):
        self.raw.send(b"delete %s\r\n" % key)
        line, last = self.raw.line(), self.last.get(key)
        assert line == b"NOT_FOUND" or (line == b"DELETED" and last is not None), f"{key}: {line}"
        self.last[key] = None

    def bump(self, _):
        self.raw.send(b"delete @tag:client:%d\r\n" % self.number)
        line = self.raw.line()
        assert line == b"DELETED", line
        for key in self.last:
            if key.startswith(b"good:"):
                self.last[key] = None


class GoodPymemcache(threading.Thread):
    """The same with an unmodified client, small values only."""

    def __init__(self, port, number, seed, within):
        from pymemcache.client.base import Client

        super().__init__(daemon=True)
        self.client = Client(("127.0.0.1", port), timeout=within, connect_timeout=within)
        self.client.version()
        self.number, self.chance = number, random.Random(f"{seed} pymemcache {number}")
        self.over, self.error, self.operations, self.hits = threading.Event(), None, 0, 0

    def run(self):
        last, counter = {}, None
        try:
            while not self.over.wait(0.001):
                self.operations += 1
                key = f"py:{self.number}:{self.chance.randrange(30)}"
                what = self.chance.choice(("get", "get", "set", "delete", "many", "incr"))
                if what == "set":
                    last[key] = b"%d" % self.operations * self.chance.randrange(1, 50)
                    assert self.client.set(key, last[key], noreply=False) is True
                elif what == "delete":
                    assert self.client.delete(key, noreply=False) is False or last.get(key) is not None
                    last[key] = None
                elif what == "incr":
                    got = self.client.incr(f"count:{self.number}", 1)
                    assert got is None or got == counter + 1, (got, counter)
                    if got is None:
                        assert self.client.set(f"count:{self.number}", b"0", noreply=False)
                        got = 0
                    counter = got
                else:
                    keys = [key] if what == "get" else [f"py:{self.number}:{i}" for i in range(30)]
                    got = {key: self.client.get(key)} if what == "get" else self.client.get_many(keys)
                    for k in keys:
                        if got.get(k) is None:
                            last[k] = None
                        else:
                            self.hits += 1
                            assert got[k] == last[k], (k, got[k], last[k])
        except BaseException:
            self.error = f"pymemcache {self.number}: {traceback.format_exc()}"
        finally:
            self.client.close()


def tls_raw(port, timeout):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Raw(context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout)))


# --- What another client notices, compared with memcached ------------------------------------------------------------


def probe(port, seconds):
    """Small gets and sets, one after the other; (times in ms, errors)."""
    times, errors = [], 0
    with Raw(socket.create_connection(("127.0.0.1", port), 10)) as c:
        assert c.set(b"probe", b"p" * 100) == b"STORED"
        yield None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            since = time.monotonic()
            try:
                if len(times) % 10 == 0:
                    errors += c.set(b"probe", b"p" * 100) != b"STORED"
                else:
                    errors += c.get(b"probe") not in (b"p" * 100, None)
            except TimeoutError:
                yield [*times, (time.monotonic() - since) * 1000], errors + 1
                return
            times.append((time.monotonic() - since) * 1000)
            time.sleep(0.0005)
    yield times, errors


def measure(server, seconds, chaos, seed):
    """A slice: (p50, p99, most, errors) in ms, and the server's processor share."""
    prober = probe(server.port, seconds)
    next(prober)
    noise = Chaos(server, seed) if chaos else None
    if noise:
        time.sleep(6)  # until all kinds run
    cpu = server.cpu_seconds()
    times, errors = next(prober)
    cpu = (server.cpu_seconds() - cpu) / seconds
    if noise:
        try:
            noise.end()
        except AssertionError as error:
            print(f"  {server.kind}: {str(error).splitlines()[-1]}", file=sys.stderr)
    return *percentiles(times), errors, cpu, len(times)


def compare(given, directory):
    harness.allow_files(2000)
    binaries = {"cattlegrid": given.server_bin, "memcached": given.reference_bin}
    options = ["-m", 64, "-c", 300, "-t", 2]
    rows = {}
    for n in range(given.rounds):
        for calm in (True, False):
            for kind, binary in binaries.items():
                # A server of its own for each slice: what a slice leaves behind is not the next one's.
                args = options + (["--config", write_rules(directory, RULES)] if kind == "cattlegrid" else [])
                with open(os.devnull, "wb") as null:
                    server = harness.Server(os.path.abspath(binary) if "/" in binary else harness.tool(binary), kind, args, stderr=null)
                try:
                    row = measure(server, given.seconds, not calm, given.seed + n)
                finally:
                    server.clean()
                rows.setdefault((calm, kind), []).append(row)
                print(
                    f"round {n + 1} {'calm ' if calm else 'chaos'} {kind:10} p50 {row[0]:.2f} ms, p99 {row[1]:.2f} ms, most {row[2]:.1f} ms, "
                    f"{row[3]} errors, {row[4] * 100:.0f} % of a processor, {row[5]} operations"
                )
    print("\n| | server | p50 ms | p99 ms | most ms | errors | processor |\n|---|---|---|---|---|---|---|")
    for (calm, kind), slices in rows.items():
        median = [statistics.median(s[i] for s in slices) for i in range(5)]
        worst = max(s[2] for s in slices)
        errors = sum(s[3] for s in slices)
        print(f"| {'calm' if calm else 'chaos'} | {kind} | {median[0]:.2f} | {median[1]:.2f} | {worst:.1f} | {errors} | {median[4] * 100:.0f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", default=os.environ.get("CATTLEGRID_BIN", str(harness.ROOT / "target/release/cattlegrid")))
    parser.add_argument("--reference-bin", default="memcached")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each slice")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chaos", type=int, metavar="PORT", help="misbehave on this port until standard input ends")
    parser.add_argument("--tls-port", type=int)
    given = parser.parse_args()
    if given.chaos:
        ChaosProcess(given.chaos, given.tls_port, given.seed).run()
    else:
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            compare(given, directory)


if __name__ == "__main__":
    main()
