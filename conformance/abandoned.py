"""The cost of misses without a `set`: the share of fills that are dropped because of them, under both owners.

    target/conformance/venv/bin/python conformance/abandoned.py --server-bin target/fast/cattlegrid --seconds 20

Processes of a few connections each read keys at random; who misses computes for some milliseconds and stores on the same
connection. Values live for a second. Of all reads, one in a hundred is followed by a delete of its key. Three loads:

* `none`: every miss is filled.
* `readers`: one process in eight never stores what it misses.
* `killed`: one process a second is killed and another takes its place; what it was computing is never stored.

A fill is what a client stores after a miss. Its share that is dropped is of the server's own counts (`stats rules`).
"""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from harness import Server, wait_until

PROCESSES = 8
LOADS = ("none", "readers", "killed")
OWNERS = ("key", "connection")

CHILD = """
import random, select, socket, sys, time
port, seconds, keys, stores = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
chance, poll, end = random.Random(), select.poll(), time.monotonic() + seconds
class Lane:
    def __init__(self):
        self.s = socket.create_connection(("127.0.0.1", port), 30)
        self.buffer, self.due, self.key = b"", 0.0, b""
        poll.register(self.s, select.POLLIN)
    def act(self, now):
        if self.key and stores:
            self.s.sendall(b"set %s 0 1 1\\r\\nx\\r\\n" % self.key)
            self.key = b""
        elif chance.random() < 0.01:
            self.s.sendall(b"delete page:%d\\r\\n" % chance.randrange(keys))
            self.key = b""
        else:
            self.key = b"page:%d" % chance.randrange(keys)
            self.s.sendall(b"get %s\\r\\n" % self.key)
        self.due = None
    def read(self, now):
        self.buffer += self.s.recv(65536)
        if not self.buffer.endswith((b"END\\r\\n", b"STORED\\r\\n", b"DELETED\\r\\n", b"NOT_FOUND\\r\\n")):
            return
        missed = self.buffer == b"END\\r\\n"
        if not missed:
            self.key = b""
        self.buffer, self.due = b"", now + (chance.uniform(0.005, 0.05) if missed else 0.008)
lanes = {l.s.fileno(): l for l in [Lane() for _ in range(4)]}
while (now := time.monotonic()) < end:
    for lane in lanes.values():
        if lane.due is not None and lane.due <= now:
            lane.act(now)
    for number, _ in poll.poll(2):
        lanes[number].read(time.monotonic())
"""


def rules(owner, terms=""):
    return f'[[rule]]\nmatch = "page:{{id}}"\nhold = "200ms"\nowner = "{owner}"\n{terms}'


def run(binary, load, owner, seconds, keys=100, seed=1, terms=""):
    """The rule's counts after `seconds` of a load. `terms` are added to the rule."""
    chance = random.Random(seed)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(rules(owner, terms))
        file.flush()
        server = Server(pathlib.Path(binary).resolve(), "cattlegrid", ["--config", file.name])
        running = []
        try:

            def spawn(left, stores):
                arguments = [sys.executable, "-c", CHILD, str(server.port), str(left), str(keys), str(int(stores))]
                return subprocess.Popen(arguments, stderr=subprocess.PIPE)

            end = time.monotonic() + seconds
            running = [spawn(seconds, load != "readers" or n > 0) for n in range(PROCESSES)]
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(1.0, left))
                if load == "killed" and end - time.monotonic() > 1:
                    victim = running.pop(chance.randrange(len(running)))
                    victim.kill()
                    victim.communicate()
                    running.append(spawn(end - time.monotonic(), True))
            for child in running:
                _, error = child.communicate(timeout=60)
                assert child.returncode == 0, error.decode()
            with server.raw() as c:
                wait_until("their connections are closed", lambda: c.stats()["curr_connections"] == "1")
            wait_until("no request waits", lambda: server.stats("cattlegrid")["held"] == "0")
            stats = server.stats("rules")
            return {name[2:]: int(value) for name, value in stats.items() if name.startswith("1:") and value.isdigit()}
        finally:
            for child in running:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
            server.clean()


def dropped_share(counts):
    """Share of fills that were dropped, 0.0..=1.0, and that because of misses without a `set`."""
    fills = max(1, counts["fills_stored"] + counts["fills_dropped"] + counts["fills_stale"])
    return counts["fills_dropped"] / fills, counts["fills_dropped_abandoned"] / fills, fills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    for n in range(given.runs):
        for load in LOADS:
            for owner in OWNERS:
                counts = run(given.server_bin, load, owner, given.seconds, seed=n + 1)
                dropped, abandoned, fills = dropped_share(counts)
                print(f"{load:8} owner {owner:10} {fills:6} fills, {dropped:.1%} dropped, {abandoned:.1%} because of misses without a set", flush=True)


if __name__ == "__main__":
    main()
