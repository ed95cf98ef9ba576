"""Faults of an etcd, of the links to it and of nodes, one after the other, while clients read through the cache, change a source and
invalidate. Each value that is served is compared with what was promised before its get was sent.

    python nodes_faults.py --schedules 100 --seconds 30 --server-bin ../target/release/cattlegrid
"""

import argparse
import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from etcds import Etcd
from follow_faults import Relay
from harness import Server, wait_until

ROWS = 20
MAX_LAG = 2.0
# Beyond `max_lag`: of the floor's ring and its moves 150 ms, and what threads of a loaded machine wait.
SLACK = 1.5

RULES = """
[server]
node = "n{number}"

[[rule]]
match = "page:{{row}}"
hold = "200ms"
owner = "connection"
ambiguous = "drop"
tags = ["row:{{row}}"]

[follow.bumps]
servers = [{servers}]
max_lag = "2s"
when_behind = "miss"
"""


def own_port():
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Conversation:
    """A connection to a node, which is made anew after a fault."""

    def __init__(self, port):
        self.port, self.socket = port, None

    def ask(self, data, until, timeout=1.5):
        """The reply up to one of the ends; None: there was none."""
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
            self.socket.settimeout(timeout)
            self.socket.sendall(data)
            got = b""
            while not got.endswith(until):
                more = self.socket.recv(65536)
                if not more:
                    raise OSError("closed")
                got += more
            return got
        except OSError:
            self.close()
            return None

    def close(self):
        if self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.close()
        self.socket = None


class Fleet:
    # Those that must be well, at the beginning and at the end.
    logs = ("bumps",)
    # Hits and misses that a run must have: on a busy machine it takes longer.
    enough = (500, 100)

    def __init__(self, binary, kind, seed):
        self.draw = random.Random(seed)
        self.etcd = Etcd()
        self.prepare()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cattlegrid-nodes"))
        # A node that is started again needs its port: below those that the system gives out.
        self.ports = [own_port() for _ in range(3)]
        self.relays = [[Relay(port) for port in self.etcd.ports.values()] for _ in self.ports]
        self.servers = []
        for number, port in enumerate(self.ports):
            file = self.folder / f"{number}.toml"
            servers = ", ".join(f'"http://127.0.0.1:{relay.port}"' for relay in self.relays[number])
            file.write_text(self.rules(number, servers))
            server = Server(binary, kind, ["-p", str(port), "--config", str(file)])
            self.servers.append(server)
        self.versions, self.lock = [0] * ROWS, threading.Lock()
        # Of each row, the versions whose bumps were confirmed, and those with a barrier, each with the time of the reply.
        self.committed = [[] for _ in range(ROWS)]
        self.passed = [[] for _ in range(ROWS)]
        self.old, self.hits, self.misses, self.replies = [], 0, 0, {}
        self.stop, self.done, self.begun = threading.Event(), [], time.monotonic()
        self.wait()

    def prepare(self):
        pass

    def rules(self, number, servers):
        return RULES.format(number=number, servers=servers)

    def wait(self):
        def confirmed(server):
            said = server.stats("follow")
            return all(said.get(f"{name}:state") == "confirmed" for name in self.logs)
        for server in self.servers:
            wait_until("all nodes are confirmed", lambda server=server: confirmed(server), 60)
            wait_until("all are listed", lambda server=server: server.stats("follow")["bumps:nodes"] == "3", 60)

    def write(self, seed):
        draw = random.Random(seed)
        talks = [Conversation(port) for port in self.ports]
        while not self.stop.is_set():
            row, talk = draw.randrange(ROWS), draw.choice(talks)
            with self.lock:
                self.versions[row] += 1
                version = self.versions[row]
            is_barrier = draw.random() < 0.3
            command = f"md row:{row} G B\r\n" if is_barrier else f"delete @tag:row:{row}\r\n"
            reply = talk.ask(command.encode(), b"\r\n", 12 if is_barrier else 1.5)
            at = time.monotonic()
            with self.lock:
                self.replies[reply] = self.replies.get(reply, 0) + 1
                if reply in (b"HD\r\n", b"DELETED\r\n"):
                    (self.passed if is_barrier else self.committed)[row].append((version, at))
            time.sleep(draw.uniform(0, 0.05))

    def read(self, seed):
        draw = random.Random(seed)
        talks = [(number, Conversation(port)) for number, port in enumerate(self.ports)]
        while not self.stop.is_set():
            row, (number, talk) = draw.randrange(ROWS), draw.choice(talks)
            sent = time.monotonic()
            reply = talk.ask(f"get page:{row}\r\n".encode(), b"END\r\n")
            if reply is None:
                time.sleep(0.05)
                continue
            if reply == b"END\r\n":
                self.misses += 1
                version = self.versions[row]
                time.sleep(draw.uniform(0, 0.02))
                text = str(version).encode()
                talk.ask(b"set page:%d 0 60 %d\r\n%s\r\n" % (row, len(text), text), b"STORED\r\n")
                continue
            self.hits += 1
            version = int(reply.split(b"\r\n")[1])
            with self.lock:
                newer = [(own, at, 0.0) for own, at in self.passed[row] if own > version and at < sent]
                newer += [(own, at, MAX_LAG + SLACK) for own, at in self.committed[row] if own > version and at < sent - MAX_LAG - SLACK]
            if newer:
                own, at, _ = newer[0]
                self.old.append(f"{sent - self.begun:.2f} s: node {number} serves row {row} as of {version}, "
                                f"{own} was {'committed' if newer[0][2] else 'passed'} {sent - at:.2f} s before")
            time.sleep(draw.uniform(0, 0.004))

    def run(self, seconds):
        threads = [threading.Thread(target=self.write, args=(seed,), daemon=True) for seed in range(3)]
        threads += [threading.Thread(target=self.read, args=(seed,), daemon=True) for seed in range(6)]
        for thread in threads:
            thread.start()
        only = os.environ.get("NODES_FAULTS", "").split()
        faults = [name for name in dir(self) if name.startswith("do_") and (not only or name.removeprefix("do_") in only)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault, length = self.draw.choice(faults), self.draw.uniform(0.3, 6)
            self.done.append((round(time.monotonic() - self.begun, 1), fault.removeprefix("do_"), round(length, 2)))
            getattr(self, fault)(length)
            time.sleep(self.draw.uniform(0.2, 3))
        self.wait()
        before = self.hits
        wait_until("something is served at rest", lambda: self.hits > before, 60)
        hits, misses = self.enough
        wait_until("enough is served", lambda: self.hits > hits and self.misses > misses, 120)
        self.stop.set()
        for thread in threads:
            thread.join(20)

    def do_nothing(self, length):
        time.sleep(length)

    def do_kill_leader(self, length):
        name = self.etcd.leader()
        self.etcd.kill(name)
        time.sleep(length)
        self.etcd.start(name)

    def do_kill_server(self, length):
        name = self.draw.choice(self.etcd.names)
        self.etcd.kill(name)
        time.sleep(length)
        self.etcd.start(name)

    def do_freeze_leader(self, length):
        name = self.etcd.leader()
        self.etcd.freeze(name)
        time.sleep(length)
        self.etcd.thaw(name)

    def do_freeze_all(self, length):
        for name in self.etcd.names:
            self.etcd.freeze(name)
        time.sleep(length)
        for name in self.etcd.names:
            self.etcd.thaw(name)

    def do_freeze_node(self, length):
        server = self.draw.choice(self.servers)
        server.signal(signal.SIGSTOP)
        time.sleep(length * 1.5)
        server.signal(signal.SIGCONT)

    def do_kill_node(self, length):
        server = self.draw.choice(self.servers)
        server.kill()
        time.sleep(length / 2)
        server.start()

    def do_restart_node(self, length):
        server = self.draw.choice(self.servers)
        server.stop()
        time.sleep(length / 2)
        server.start()

    def cut(self, ways, length):
        relays = self.draw.choice(self.relays)
        for relay in relays:
            relay.cut = ways
        time.sleep(length * 1.5)
        for relay in relays:
            relay.cut = {"up": False, "down": False}

    def do_partition(self, length):
        self.cut({"up": True, "down": True}, length)

    def do_partition_up(self, length):
        self.cut({"up": True, "down": False}, length)

    def do_partition_down(self, length):
        self.cut({"up": False, "down": True}, length)

    def do_slow_link(self, length):
        relays, delay = self.draw.choice(self.relays), self.draw.uniform(0.01, 0.3)
        for relay in relays:
            relay.delay = delay
        time.sleep(length)
        for relay in relays:
            relay.delay = 0.0

    def compact(self):
        # Beside an election it may be refused.
        with contextlib.suppress(subprocess.CalledProcessError):
            self.etcd.compact()

    def do_compact(self, length):
        self.compact()
        time.sleep(length / 4)

    def do_partition_and_compact(self, length):
        relays = self.draw.choice(self.relays)
        for relay in relays:
            relay.cut = {"up": True, "down": True}
        time.sleep(length)
        self.compact()
        for relay in relays:
            relay.cut = {"up": False, "down": False}

    def do_restore(self, length):
        snapshot = self.etcd.directory / f"snapshot-{len(self.done)}"
        own = [self.etcd.endpoints[0]]
        self.etcd.ctl("snapshot", "save", str(snapshot), endpoints=own)
        time.sleep(length / 2)
        self.etcd.restore(snapshot, token="again" if self.draw.random() < 0.5 else None)

    def clean(self):
        self.stop.set()
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError, OSError):
                server.signal(signal.SIGCONT)
            server.clean()
        for relay in (relay for own in self.relays for relay in own):
            relay.close()
        self.etcd.clean()
        shutil.rmtree(self.folder, ignore_errors=True)

    def report(self):
        replies = {(key or b"none").decode().strip(): count for key, count in self.replies.items()}
        return f"{self.hits} hits, {self.misses} misses, {replies}, faults {self.done}"


def main(kind=Fleet):
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server-bin", required=True)
    options = parser.parse_args()
    bad = 0
    for seed in range(options.seed, options.seed + options.schedules):
        fleet = kind(options.server_bin, "cattlegrid", seed)
        try:
            fleet.run(options.seconds)
            print(f"seed {seed}: {len(fleet.old)} old; {fleet.report()}", flush=True)
            for line in fleet.old[:5]:
                print(f"  {line}", flush=True)
            bad += bool(fleet.old)
        finally:
            fleet.clean()
    print(f"{options.schedules} schedules, {bad} with values that are older than promised")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
