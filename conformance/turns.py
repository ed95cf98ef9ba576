"""How long one client waits while others keep the server busy, compared with memcached in the same run.

    turns.py [--server-bin PATH] [--before-bin PATH] [--reference-bin PATH] [--rounds N] [--seconds N] [--part flood|long]

`flood`: many connections send gets continuously and read all replies; p50, p99 and most of another client's gets, and the
gets of all in a second. `long`: one multi-get of 520,000 keys, of which all or none are there, in the classic form and as
a pipeline of `mg`; its time for each key, and what another client's gets took meanwhile. Slices of the servers alternate.
"""

import argparse
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import harness
from crowd import percentiles, rule, write_rules

FLOOD_GETS = 1000
"""Gets that a flooding connection sends at once."""
KEYS = 520_000
"""Keys of a long request."""

FLOOD = r"""
import select, socket, sys, time
port, count, seconds, gets = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
poll, socks, left = select.epoll(), {}, {}
chunk = memoryview(b"get flood\r\n" * gets)
for _ in range(count):
    s = socket.create_connection(("127.0.0.1", port), 20)
    s.setblocking(False)
    socks[s.fileno()], left[s.fileno()] = s, 0
for fd in socks:
    poll.register(fd, select.EPOLLIN | select.EPOLLOUT)
print("ready", flush=True)
sink = bytearray(1 << 18)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for fd, events in poll.poll(0.1, 512):
        s = socks[fd]
        try:
            if events & select.EPOLLIN:
                s.recv_into(sink)
            if events & select.EPOLLOUT:
                left[fd] = (left[fd] + s.send(chunk[left[fd]:])) % len(chunk)
        except BlockingIOError:
            pass
"""


def open_server(binary, kind, threads, directory, rules=None):
    args = ["-m", 256, "-c", 8000, "-t", threads]
    if rules and kind == "cattlegrid":
        args += ["--config", write_rules(directory, rules)]
    path = os.path.abspath(binary) if "/" in binary else harness.tool(binary)
    return harness.Server(path, kind, args)


class Probe(threading.Thread):
    """Another client: a small get each millisecond, until it is told to end; its times in ms."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.raw, self.over, self.times = server.raw(60), threading.Event(), []
        assert self.raw.set(b"probe", b"p" * 100) == b"STORED"

    def run(self):
        while not self.over.is_set() or not self.times:
            since = time.perf_counter()
            assert self.raw.get(b"probe") == b"p" * 100
            self.times.append((time.perf_counter() - since) * 1000)
            time.sleep(0.001)

    def end(self):
        self.over.set()
        self.join(60)
        self.raw.close()
        return percentiles(self.times)


def flood(server, connections, seconds):
    """p50, p99 and most in ms, gets a second, gets in a second of the server's processor time."""
    with server.raw() as c:
        assert c.set(b"flood", b"f" * 20) == b"STORED"
    arguments = [server.port, connections, seconds + 60, FLOOD_GETS]
    child = subprocess.Popen([sys.executable, "-c", FLOOD, *map(str, arguments)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"ready\n"
        time.sleep(1)  # until all have sent
        probe = Probe(server)
        with server.raw(60) as c:

            def now():
                return int(c.stats()["cmd_get"]), server.cpu_seconds(), time.monotonic()

            gets, cpu, since = now()
            probe.start()
            time.sleep(seconds)
            gets, cpu, since = (after - before for after, before in zip(now(), (gets, cpu, since)))
            return *probe.end(), gets / since, gets / max(cpu, 0.01)
    finally:
        child.terminate()
        child.wait()
        child.stdout.close()


def take(sock, send, count, word):
    """Sends all of `send` and reads until `word` has come so often."""
    sock.setblocking(False)
    rest, seen, tail = memoryview(send), 0, b""
    while seen < count:
        readable, writable, _ = select.select([sock], [sock] if rest else [], [], 60)
        assert readable or writable, "the server has stopped"
        if writable:
            rest = rest[sock.send(rest[: 1 << 20]) :]
        if readable:
            got = tail + sock.recv(1 << 20)
            seen += got.count(word)
            tail = got[len(got) - len(word) + 1 :]


def long(server, form, hits, seconds):
    """Microseconds a key, then p50, p99 and most in ms of another client meanwhile."""
    letters = b"abcdefghijklmnopqrstuvwxyz"
    with server.raw(60) as c:
        if hits:
            for letter in letters:
                c.set(bytes([letter]), b"v")
        else:
            c.ask(b"".join(b"delete %c noreply\r\n" % letter for letter in letters))
        keys = [bytes([letters[n % 26]]) for n in range(KEYS)]
        if form == "get":
            line, end = b"get " + b" ".join(keys) + b"\r\n", b"END\r\n"
        else:
            line, end = b"".join(b"mg %c v q\r\n" % key for key in keys) + b"mn\r\n", b"MN\r\n"
        probe = Probe(server)
        probe.start()
        time.sleep(0.2)
        probe.times.clear()
        since, rounds = time.monotonic(), 0
        while not rounds or time.monotonic() - since < seconds:
            take(c.sock, line, 1, end)
            rounds += 1
        took = time.monotonic() - since
        return took / rounds / KEYS * 1e6, *probe.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", default=os.environ.get("CATTLEGRID_BIN", str(harness.ROOT / "target/release/cattlegrid")))
    parser.add_argument("--before-bin", help="another build of the server")
    parser.add_argument("--reference-bin", default="memcached")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each slice")
    parser.add_argument("--connections", default="200,3000")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--part", choices=("flood", "long"))
    given = parser.parse_args()
    harness.allow_files(8000)
    servers = [("before", given.before_bin, "cattlegrid"), ("cattlegrid", given.server_bin, "cattlegrid"), ("memcached", given.reference_bin, "memcached")]
    servers = [server for server in servers if server[1]]
    rows = {}

    def slice_of(what, name, binary, kind, threads, act, rules=None):
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            server = open_server(binary, kind, threads, directory, rules)
            try:
                rows.setdefault((*what, name), []).append(act(server))
            finally:
                server.clean()

    for n in range(given.rounds):
        for name, binary, kind in servers[:: 1 if n % 2 else -1]:
            for threads in map(int, given.threads.split(",")):
                if given.part != "long":
                    for count in map(int, given.connections.split(",")):
                        slice_of(("flood", count, threads), name, binary, kind, threads, lambda s: flood(s, count, given.seconds))
            if given.part != "flood":
                for form in ("get", "mg", "get under a rule"):
                    for hits in (True, False):
                        rules = rule("{k}", 'hold = "0s"\ngrace = "1s"') if form == "get under a rule" else None
                        if rules and (kind == "memcached" or not hits):
                            continue
                        slice_of(("long", form, hits), name, binary, kind, 1, lambda s: long(s, form.split()[0], hits, given.seconds / 3), rules)
    print("| connections | threads | server | p50 ms | p99 ms | most ms | 1000 gets/s | 1000 gets a processor second |\n|---|---|---|---|---|---|---|---|")
    for (part, *what, name), slices in sorted(rows.items(), key=str):
        if part == "flood":
            p50, p99, most, gets, per_cpu = (statistics.median(s[i] for s in slices) for i in range(5))
            print(f"| {what[0]} | {what[1]} | {name} | {p50:.2f} | {p99:.2f} | {most:.1f} | {gets / 1000:.0f} | {per_cpu / 1000:.0f} |")
    print("\n| request | keys | server | us a key | p50 ms | p99 ms | most ms |\n|---|---|---|---|---|---|---|")
    for (part, *what, name), slices in sorted(rows.items(), key=str):
        if part == "long":
            each, p50, p99, most = (statistics.median(s[i] for s in slices) for i in range(4))
            print(f"| {what[0]} | {'hits' if what[1] else 'misses'} | {name} | {each:.2f} | {p50:.2f} | {p99:.2f} | {most:.1f} |")


if __name__ == "__main__":
    main()
