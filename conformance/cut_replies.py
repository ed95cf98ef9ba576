#!/usr/bin/env python3
"""Connections that are cut in the middle of a reply or of a value, and what is left of them.

    cut_replies.py --server-bin PATH [--connections 1000000] [--processes 2] [--tls-share 0.02] [--seed N]

Each connection asks for values of 16 KiB to 1 MiB, in any form, or sends a part of one, through a small receive buffer, and is
reset or closed while others of its process are open, before or after it has read something. Meanwhile the values are rewritten, so that
the cut replies are of values that are no longer stored. Prints the rate and the server's memory and gauges before and after; exits with
status 1 if something is left: a descriptor, a connection, bytes unsent, pinned or arriving, or memory that none of the stored items has.
"""

import argparse
import errno
import os
import pathlib
import random
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

from harness import MIB, Server, wait_until

SIZES = (16_000, 70_000, 300_000, 1_000_000)
OPEN = 32
"""Connections of a process at a time."""
GAUGES = ("unsent_bytes", "pinned_bytes", "partial_bytes", "huge_bytes", "held")
MEMORY = ("index_bytes", "segment_bytes", "huge_bytes", "huge_free_bytes", "ghost_bytes", "pinned_bytes")
RESET = struct.pack("ii", 1, 0)
WARM = 2_000
"""Connections before the first look, for what is allocated once."""


class Cutter:
    """A process's connections."""

    def __init__(self, ports, tls_share, seed):
        self.ports, self.tls_share, self.chance, self.open = ports, tls_share, random.Random(seed), []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.data = b"x" * max(SIZES)
        self.read = 0

    def run(self, count):
        for n in range(count):
            try:
                self.open.append(self.begin(n))
            except OSError as error:
                # Refused for a moment, or reset in its handshake; a mistake of ours is neither.
                if not isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)) and error.errno != errno.EADDRNOTAVAIL:
                    raise
            if len(self.open) > OPEN:
                self.end(self.open.pop(self.chance.randrange(OPEN)))
        while self.open:
            self.end(self.open.pop())

    def begin(self, n):
        encrypted = self.chance.random() < self.tls_share
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(20)
        # Many addresses, so that ports in TIME_WAIT do not matter.
        s.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        s.bind((f"127.0.{self.chance.randrange(4)}.{self.chance.randrange(1, 250)}", 0))
        s.connect(("127.0.0.1", self.ports[encrypted]))
        if encrypted:
            s = self.context.wrap_socket(s)
        s.setblocking(False)
        try:
            s.send(self.request())
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        return s

    def request(self):
        r = self.chance
        roll, key = r.random(), r.randrange(len(SIZES))
        if roll < 0.4:
            return b"get v%d\r\n" % key * r.choice((1, 2, 5))
        if roll < 0.6:
            return b"gats 0 v0 v3 v1 v2 v3\r\n"
        if roll < 0.75:
            return b"mg v%d k v s c\r\n" % key * r.choice((1, 3))
        size = SIZES[key]
        head = r.choice((b"set w%d 0 0 %d\r\n", b"set w%d 0 0 %d noreply\r\n", b"ms w%d %d T0\r\n", b"append v%d 0 0 %d\r\n"))
        return (b"get v3\r\n" if roll < 0.8 else b"") + head % (key, size) + self.data[: r.randrange(size if r.random() < 0.1 else min(size, 40_000))]

    def end(self, s):
        r = self.chance
        with s:
            if r.random() < 0.5:
                try:
                    self.read += len(s.recv(r.choice((1, 1_000, 60_000))))
                except (BlockingIOError, ssl.SSLWantReadError, ConnectionError, ssl.SSLError):
                    pass
            roll = r.random()
            try:
                if roll < 0.4:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                elif roll < 0.6:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass


def look(server, c):
    """What there is while only `c` is open."""
    stats = {name: int(value) for name, value in c.stats("cattlegrid").items() if value.isdigit()}
    return {
        **{name: stats[name] for name in GAUGES},
        "memory_used": stats["memory_used"],
        "accounted": sum(stats[name] for name in MEMORY),
        "curr_connections": int(c.stats()["curr_connections"]),
        "descriptors": server.settled_descriptors(),
        "rss": server.rss(),
    }


def store(raw, n):
    for key, size in enumerate(SIZES):
        assert raw.set(b"v%d" % key, (b"%07d|" % n) * (size // 8)) == b"STORED"


def cut(server, ports, connections, processes, tls_share, seed):
    """Runs that many; returns (seconds, most bytes pinned meanwhile)."""
    running = []
    most = 0
    since = time.monotonic()
    try:
        for n in range(processes):
            count = connections // processes + (n < connections % processes)
            arguments = ["--worker", *map(str, ports), str(count), str(tls_share), str(seed * 1000 + n)]
            running.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), *arguments]))
        with server.raw() as writer:
            n = 0
            while any(process.poll() is None for process in running):
                n += 1
                store(writer, n)
                most = max(most, int(writer.stats("cattlegrid")["pinned_bytes"]))
                time.sleep(0.003)
                assert server.running(), server.log()
        for process in running:
            assert process.wait() == 0, "a process of clients failed"
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return time.monotonic() - since, most


def settled(server):
    """What is left when all connections have gone."""
    with server.raw() as c:
        wait_until("all others have gone", lambda: c.stats()["curr_connections"] == "1", 60)
        store(c, 0)
        for key in range(len(SIZES)):
            c.send(b"delete w%d\r\n" % key)
            assert c.line() in (b"DELETED", b"NOT_FOUND")
        return look(server, c)


def left(before, after):
    """What is more than before, as text; empty if nothing is."""
    out = []
    for name in ("unsent_bytes", "pinned_bytes", "partial_bytes", "held"):
        if after[name]:
            out.append(f"{name} is {after[name]}")
    for name in ("huge_bytes", "descriptors"):
        if after[name] > before[name]:
            out.append(f"{name} was {before[name]} and is {after[name]}")
    if after["memory_used"] != after["accounted"]:
        out.append(f"memory_used is {after['memory_used']}, of which {after['accounted']} are accounted for")
    return out


def start(binary, directory, memory=64):
    """A server with a plain and a TLS port, and these."""
    from test_operations import make_certificate

    make_certificate(directory)
    server = Server(
        binary, "cattlegrid",
        ["-m", memory, "-c", 4096, "-t", 2, "-Z", "-o", f"ssl_chain_cert={directory}/cert.pem,ssl_key={directory}/key.pem"]
        + ["-l", "notls:127.0.0.1,127.0.0.1", "-u", "root"],
    )
    return server, tuple(port for _, port in server.ports)


def main():
    if sys.argv[1:2] == ["--worker"]:
        plain, encrypted, count, share, seed = sys.argv[2:]
        Cutter((int(plain), int(encrypted)), float(share), int(seed)).run(int(count))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--connections", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tls-share", type=float, default=0.02, help="0.0 to 1.0")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cut-") as directory:
        os.chmod(directory, 0o777)
        server, ports = start(pathlib.Path(args.server_bin).resolve(), directory)
        try:
            cut(server, ports, WARM, args.processes, 0.5, args.seed + 1)
            before = settled(server)
            cpu = server.cpu_seconds()
            seconds, most = cut(server, ports, args.connections, args.processes, args.tls_share, args.seed)
            cpu = server.cpu_seconds() - cpu
            after = settled(server)
            print(
                f"{args.connections} connections in {seconds:.0f} s, {args.connections / seconds:.0f}/s, {args.tls_share:.0%} over TLS;"
                f" server {cpu / args.connections * 1e6:.0f} us each; at most {most / MIB:.1f} MiB pinned"
            )
            for name in before:
                print(f"  {name:18} {before[name]:12} {after[name]:12}")
            counts = server.stats("cattlegrid")
            print("  " + ", ".join(f"{name} {counts[name]}" for name in ("unsent_stalled", "unsent_displaced", "uploads_displaced", "uploads_refused")))
            for line in left(before, after):
                print(f"left: {line}")
            sys.exit(bool(left(before, after)))
        finally:
            server.clean()


if __name__ == "__main__":
    main()
