"""Clients that misbehave, a thread for each kind, in a process of their own.

    misbehaviour.py PORT [--tls-port PORT] [--seed N]

Runs until its standard input is closed, then prints as JSON how often each kind has done what, and what went wrong: that a
connection is refused or cut does not, an answer that is wrong or does not come does. [`Chaos`] is the process from outside.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import traceback

import harness
from crowd import reset
from harness import Closed, Raw

ADDRESSES = [f"127.0.0.{n}" for n in range(1, 6)]

STALLED = 80
"""Uploads of about 1 MiB that stop before their end: more than the server keeps of such (64 MiB)."""

UPLOAD = 1_000_000


class Kind(threading.Thread):
    """A kind of misbehaviour. `each` is called until the end; connections refused or cut are part of the game."""

    pause = 0.0

    def __init__(self, chaos):
        super().__init__(daemon=True)
        self.port, self.tls_port, self.over, self.stalled = chaos.port, chaos.tls_port, chaos.over, chaos.stalled
        self.chance = random.Random(f"{chaos.seed} {type(self).__name__}")
        self.counts, self.error, self.open = {}, None, []

    def run(self):
        try:
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
        """A connection that the server has taken; raises if it has no room."""
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
            self.stalled.set()
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

    pause = 1.0

    def each(self):
        if not self.stalled.is_set():
            return
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
        self.over, self.stalled = threading.Event(), threading.Event()

    def run(self):
        harness.allow_files(2000)
        os.nice(10)  # others are to suffer from what the server does with it, not from want of a processor
        threading.stack_size(256 << 10)
        with Raw(socket.create_connection(("127.0.0.1", self.port), 10)) as c:
            for i in range(10):
                c.set(b"big:%d" % i, b"b" * 900_000)
            c.send(b"".join(b"set small:%d 0 0 100 noreply\r\n%s\r\n" % (i, b"s" * 100) for i in range(5000)))
            c.ask(b"")
        kinds = [kind(self) for kind in KINDS]
        for kind in kinds:
            kind.start()
        self.stalled.wait(60)
        print("running", flush=True)
        sys.stdin.read()
        self.over.set()
        for kind in kinds:
            kind.join(30)
        errors = [kind.error for kind in kinds if kind.error] + [f"{type(k).__name__} hangs" for k in kinds if k.is_alive()]
        print(json.dumps({"counts": {type(k).__name__: k.counts for k in kinds}, "errors": errors}), flush=True)


class Chaos:
    """The process, from outside. It is made when everything runs and every upload that is to stall has stalled."""

    def __init__(self, server, seed=1, tls_port=None):
        command = [sys.executable, os.path.abspath(__file__), str(server.port), "--seed", str(seed)]
        command += ["--tls-port", str(tls_port)] if tls_port else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "running\n", "the chaos does not start"

    def end(self):
        """Ends it; what each kind has done, and what any of them saw that it should not."""
        out, _ = self.process.communicate("", timeout=240)
        said = json.loads(out)
        return said["counts"], said["errors"]

    def kill(self):
        self.process.kill()
        self.process.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--tls-port", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    ChaosProcess(given.port, given.tls_port, given.seed).run()


if __name__ == "__main__":
    main()
