#!/usr/bin/env python3
"""Values as large as `-I` allows: what is done with them, what is left of them, and how long other clients wait meanwhile.

    giant.py --server-bin PATH [--item 1024m] [--memory 4096] [--way tcp|tls] [--reference-bin memcached]

Stores, fetches, replaces, extends and deletes a value of the largest size, one byte too many included, and prints for each step its time,
the resident memory, and the longest wait of another client's small gets and sets. With `--reference-bin` the same on memcached.
"""

import argparse
import os
import pathlib
import tempfile
import threading
import time

from harness import MIB, Raw, Server, kind_of, tool, wait_until
from versions import Way

BLOCK = bytes(range(251)) * (MIB // 251 + 1)
OVERHEAD = 59
"""Bytes that an item counts beside key and value."""

def blocks(seed, size):
    """The value of a seed, in pieces."""
    at = 0
    while at < size:
        piece = memoryview(BLOCK)[(seed * 7 + at // MIB) % 251 :][: min(MIB - 300, size - at)]
        yield piece
        at += len(piece)

def unit(number):
    return {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[number[-1]] * int(number[:-1])

class Other(threading.Thread):
    """A client of small items, and how long it waits."""

    def __init__(self, way, server):
        super().__init__(daemon=True)
        self.raw, self.over, self.waits, self.error = way.raw(server), threading.Event(), [], None

    def run(self):
        try:
            n = 0
            while not self.over.is_set():
                n += 1
                since = time.perf_counter()
                assert self.raw.set(b"small:%d" % (n % 100), b"%d" % n) == b"STORED"
                self.waits.append(time.perf_counter() - since)
                since = time.perf_counter()
                assert self.raw.get(b"small:%d" % (n % 100)) in (b"%d" % n, None)
                self.waits.append(time.perf_counter() - since)
                time.sleep(0.002)
        except Exception as error:
            self.error = error

    def take(self):
        """(most, p99) in milliseconds since the last call."""
        assert self.error is None, self.error
        waits, self.waits = sorted(self.waits), []
        return (waits[-1] * 1000, waits[len(waits) * 99 // 100] * 1000) if waits else (0.0, 0.0)

class Giant:
    """The steps, on one server."""

    def __init__(self, server, way, item, overhead=OVERHEAD, say=lambda text: None):
        self.server, self.way, self.say = server, way, say
        self.largest = item - overhead - len(b"giant")
        self.c = Raw(way.socket(server))
        self.c.sock.settimeout(300)
        self.other = Other(way, server)

    def __call__(self, exact=True):
        before = self.server.rss()
        self.other.start()
        try:
            self.step("set", lambda: self.store(b"set", 1, self.largest) == b"STORED")
            self.step("get", lambda: self.fetched([(1, self.largest)]))
            self.step("replace", lambda: self.store(b"replace", 2, self.largest) == b"STORED")
            self.step("gets", lambda: self.fetched([(2, self.largest)], b"gets"))
            if exact:
                self.step("too large", lambda: self.store(b"set", 3, self.largest + 1) == b"SERVER_ERROR object too large for cache")
                self.step("is gone", lambda: self.fetched([]))
            small = self.largest // 3
            self.step("set a third", lambda: self.store(b"set", 4, small) == b"STORED")
            self.step("append the rest", lambda: self.store(b"append", 5, self.largest - small) == b"STORED")
            self.step("get", lambda: self.fetched([(4, small), (5, self.largest - small)]))
            self.step("append 1 byte", lambda: self.store(b"append", 6, 1) == b"NOT_STORED" or not exact)
            self.step("set a third", lambda: self.store(b"set", 4, small) == b"STORED")
            self.step("prepend a third", lambda: self.store(b"prepend", 7, small) == b"STORED")
            self.step("mg", lambda: self.meta_fetched([(7, small), (4, small)]))
            self.step("delete", lambda: self.ask(b"delete giant\r\n") == b"DELETED")
            self.step("ms", lambda: self.store(b"ms", 8, self.largest) == b"HD")
            self.step("flush_all", lambda: self.ask(b"flush_all\r\n") == b"OK")
            self.step("set, cut at half", self.cut)
        finally:
            self.other.over.set()
            self.other.join(60)
        return before

    def step(self, name, work):
        self.other.take()
        since = time.monotonic()
        assert work(), name
        seconds = time.monotonic() - since
        most, p99 = self.other.take()
        self.say(f"  {name:16} {seconds:7.2f} s  resident {self.server.rss() / MIB:6.0f} MiB  another client waits {most:7.1f} ms at most, p99 {p99:6.1f}")

    def ask(self, line):
        self.c.send(line)
        return self.c.line()

    def head(self, verb, size):
        return b"ms giant %d\r\n" % size if verb == b"ms" else b"%s giant 0 0 %d\r\n" % (verb, size)

    def store(self, verb, seed, size):
        self.c.send(self.head(verb, size))
        for piece in blocks(seed, size):
            self.c.send(piece)
        self.c.send(b"\r\n")
        return self.c.line()

    def fetched(self, parts, verb=b"get"):
        head = self.ask(verb + b" giant\r\n")
        if not parts:
            return head == b"END"
        assert head.split()[:2] == [b"VALUE", b"giant"] and int(head.split()[3]) == sum(size for _, size in parts), head
        return self.same(parts) and self.c.exactly(7) == b"\r\nEND\r\n"

    def meta_fetched(self, parts):
        size = sum(size for _, size in parts)
        assert self.ask(b"mg giant s v\r\n") == b"VA %d s%d" % (size, size)
        return self.same(parts) and self.c.exactly(2) == b"\r\n"

    def same(self, parts):
        for seed, size in parts:
            for n, piece in enumerate(blocks(seed, size)):
                assert self.c.exactly(len(piece)) == piece, f"part {seed}, block {n}"
        return True

    def cut(self):
        with self.way.socket(self.server) as s:
            s.sendall(self.head(b"set", self.largest))
            left = self.largest // 2
            for piece in blocks(9, left):
                s.sendall(piece)
        if self.server.kind == "cattlegrid":
            wait_until("nothing arrives", lambda: self.c.stats("cattlegrid")["partial_bytes"] == "0")
        return self.fetched([])

def run(binary, way_name, item, memory, say=print, purge=True):
    """Runs all steps. `purge`: waits until idle pages are given back, which takes up to two minutes."""
    with tempfile.TemporaryDirectory(prefix="giant-") as directory:
        os.chmod(directory, 0o777)
        way = Way(way_name, directory)
        kind = kind_of(binary)
        server = Server(binary, kind, ["-m", memory, "-I", item, "-t", 2, *way.options, "-u", "root"])
        try:
            ours = kind == "cattlegrid"
            giant = Giant(server, way, unit(item), OVERHEAD if ours else 2 * MIB, say)
            before = giant(exact=ours)
            if ours:
                names = ("huge_bytes", "pinned_bytes", "partial_bytes", "unsent_bytes")

                def nothing_is_left():
                    stats = giant.c.stats("cattlegrid")
                    return all(stats[name] == "0" for name in names)

                wait_until(f"nothing is left of {names}", nothing_is_left)
                if purge:
                    wait_until("the memory is given back", lambda: server.rss() < before + 48 * MIB, 180)
            say(f"  resident {before / MIB:.0f} MiB before, {server.rss() / MIB:.0f} MiB after")
            assert server.running(), server.log()
        finally:
            server.clean()

def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--reference-bin", help="memcached to compare with")
    parser.add_argument("--item", default="1024m", help="-I")
    parser.add_argument("--memory", type=int, default=4096, help="-m, in MiB")
    parser.add_argument("--way", choices=("tcp", "tls"), action="append")
    args = parser.parse_args()
    for way in args.way or ("tcp", "tls"):
        print(f"{args.server_bin}, {way}, -I {args.item} -m {args.memory}")
        run(pathlib.Path(args.server_bin).resolve(), way, args.item, args.memory)
        if args.reference_bin and way == "tcp":
            print(f"{args.reference_bin}, {way}")
            run(tool(args.reference_bin), way, args.item, args.memory)

if __name__ == "__main__":
    main()
