"""What fencing costs and what it lets through, compared with memcached: threads on a pool of connections read keys, compute what they
miss and set it, while keys change and are deleted, and for a while the backend is slow.

    target/conformance/venv/bin/python conformance/fence_loads.py --server-bin target/fast/cattlegrid [--rounds 2] [--rows slow ...]

For each row the same load runs on memcached and on the server, both at the same time. Printed are the share of gets that hit before,
while and after the backend is slow, hits on a value older than one whose delete was answered before the get was sent ("stale"),
the longest time for which one such value was seen, computations, and what became of the fills (`stats rules`). `--unequal` makes all
computed values different bytes; `--settled` begins a minute after the server's start, when no value from before it can come.

Pools: `pool` is of a fixed size, a thread waits for a connection; `own` has a connection for each thread; `elastic` opens
connections when none is idle, keeps two and closes the rest, as Go's clients do; `pymemcache` is its PooledClient, unmodified.
"""

import argparse
import concurrent.futures
import json
import pathlib
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time

from harness import Server

RULE = '[[rule]]\nmatch = "key:{id}"\nhold = "400ms"\n'

# Seconds. slow: from 4 to 7 s a computation takes `slow`. every: between the deletes of a key. deviation "exp": exponential times.
ROWS = {
    "slow": {"every": 2.5, "slow": 0.8},
    "deletes": {"every": 0.5, "terms": 'fill_window = "2s"\n'},
    "deletes-slow": {"every": 0.5, "slow": 0.8},
    "twice": {"every": 2.5, "twice": 1.0, "pool": 40},
    "twice-unheld": {"every": 1.0, "twice": 1.0, "hold": 0},
    "never": {"every": 2.5, "never": 0.125, "pool": 40},
    "never-deletes": {"every": 0.5, "never": 0.125},
    "40-deletes": {"every": 0.125, "terms": 'fill_window = "2s"\n'},
    "unheld": {"every": 0.5, "hold": 0, "pool": 40},
    "rare": {"every": 10.0, "never": 0.125, "seconds": 60, "think": 0.2},
    "reader": {"every": 10.0, "reader": True, "seconds": 60, "think": 0.2, "terms": 'fill_window = "1h"\n'},
    "reader-deletes": {"every": 1.0, "reader": True, "seconds": 40, "think": 0.05, "terms": 'fill_window = "1h"\n'},
    "delete-set": {"every": 0.5, "never": 0.125, "sets": True},
    "one-thread": {"every": 1.0, "never": 0.125, "threads": 1, "keys": 2},
    "small-pool": {"every": 1.0, "slow": 0.8, "threads": 4, "pool": 2},
    "unheld-slow": {"every": 1.0, "slow": 0.8, "hold": 0},
    "go": {"every": 0.5, "kind": "elastic"},
    "go-slow": {"every": 2.5, "slow": 0.8, "kind": "elastic"},
    "own": {"every": 0.5, "kind": "own"},
    "pymemcache": {"every": 0.5, "kind": "pymemcache"},
    "pymemcache-slow": {"every": 2.5, "slow": 0.8, "kind": "pymemcache"},
}


class Pool:
    """Connections to one server."""

    def __init__(self, server, kind, size):
        from pymemcache.client.base import Client, PooledClient

        self.kind, self.idle, self.local = kind, queue.LifoQueue(), threading.local()
        self.open = lambda: Client(server, no_delay=True, timeout=30)
        if kind == "pymemcache":
            self.client = PooledClient(server, max_pool_size=1000, no_delay=True, timeout=30)
        elif kind == "pool":
            for _ in range(size):
                self.idle.put(self.open())

    def __call__(self, command, *arguments):
        if self.kind == "pymemcache":
            return getattr(self.client, command)(*arguments)
        if self.kind == "own":
            if not hasattr(self.local, "client"):
                self.local.client = self.open()
            return getattr(self.local.client, command)(*arguments)
        try:
            client = self.idle.get(block=self.kind == "pool")
        except queue.Empty:
            client = self.open()
        try:
            return getattr(client, command)(*arguments)
        finally:
            if self.kind == "elastic" and self.idle.qsize() >= 2:
                client.close()
            else:
                self.idle.put(client)


class Load:
    def __init__(self, row, port, seed):
        self.threads, self.keys = row.get("threads", 40), row.get("keys", 5)
        self.think, self.never, self.twice = row.get("think", 0.02), row.get("never", 0), row.get("twice", 0)
        self.every, self.slow, self.reader = row["every"], row.get("slow"), row.get("reader")
        self.sets, self.unequal = row.get("sets"), row.get("unequal")
        self.seconds, self.seed = row.get("seconds", 24), seed
        self.call = Pool(("127.0.0.1", port), row.get("kind", "pool"), row.get("pool", 16))
        self.writer = Pool(("127.0.0.1", port), "own", 1)
        self.version, self.acked = [0] * self.keys, [0] * self.keys
        self.died = [{} for _ in range(self.keys)]
        self.lock, self.unique = threading.Lock(), 0
        self.hits, self.misses = [0] * 3, [0] * 3
        self.stale = self.computed = 0
        self.longest = 0.0

    def phase(self, at):
        return 0 if at < 4 else 1 if at < 8 else 2

    def value(self, version):
        if not self.unequal:
            return b"%d" % version
        with self.lock:
            self.unique += 1
            return b"%d %d" % (version, self.unique)

    def seen(self, key, value, floor, at):
        version = int(value.split()[0])
        with self.lock:
            self.hits[self.phase(at)] += 1
            if version < floor:
                self.stale += 1
                self.longest = max(self.longest, at - self.died[key][version])

    def read(self, chance):
        key = chance.randrange(self.keys)
        name, floor = f"key:{key}", self.acked[key]
        value = self.call("get", name)
        at = self.now()
        if value is not None:
            return self.seen(key, value, floor, at)
        with self.lock:
            self.misses[self.phase(at)] += 1
        if chance.random() < self.twice:
            value = self.call("get", name)
            if value is not None:
                return self.seen(key, value, floor, self.now())
        if chance.random() < self.never:
            return None
        version = self.version[key]
        with self.lock:
            self.computed += 1
        mean = self.slow if self.slow and 4 < at < 7 else 0.05
        time.sleep(chance.expovariate(1 / mean) * (20 if self.reader and chance.random() < 0.05 else 1))
        self.call("set", name, self.value(version))
        return None

    def now(self):
        return time.monotonic() - self.start

    def client(self, number):
        chance = random.Random(self.seed * 1000 + number)
        time.sleep(chance.random() * 0.1)
        while self.now() < self.seconds:
            self.read(chance)
            time.sleep(chance.random() * self.think)

    def changes(self):
        turn = 0
        while (left := (turn + 1) * self.every / self.keys - self.now()) < self.seconds - self.now():
            time.sleep(max(0, left))
            key = turn % self.keys
            version = self.version[key] + 1
            self.died[key][version - 1] = self.now()
            self.version[key] = version
            self.writer("delete", f"key:{key}")
            self.acked[key] = version
            if self.sets:
                time.sleep(0.001)
                self.writer("set", f"key:{key}", self.value(version))
            turn += 1

    def run(self):
        self.start = time.monotonic()
        if self.reader:
            for key in range(self.keys):
                self.writer("get", f"key:{key}")
        threads = [threading.Thread(target=self.client, args=[n]) for n in range(self.threads)]
        threads.append(threading.Thread(target=self.changes))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shares = [round(hit / max(1, hit + miss), 3) for hit, miss in zip(self.hits, self.misses)]
        return {
            "share": shares,
            "stale": self.stale,
            "longest": round(self.longest, 2),
            "computed": self.computed,
            "hits": sum(self.hits),
        }


def measure(binary, target, row, seed):
    """The load's result on a server of its own, from a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(RULE.replace("400ms", "0s") if row.get("hold") == 0 else RULE)
        if row.get("hold") == 0:
            file.write('lease = "3s"\n')
        file.write(row.get("terms", "") + row.get("strict", ""))
        file.flush()
        arguments = ["--config", file.name] if target == "cattlegrid" else []
        server = Server(pathlib.Path(binary).resolve(), target, arguments)
        try:
            if row.get("settled"):
                time.sleep(61)
            command = [sys.executable, __file__, "--child", json.dumps(row), str(server.port), str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            if target == "cattlegrid":
                stats = server.stats("rules")
                names = ["stored", "proved", "provisional", "dropped_old", "dropped_ambiguous", "dropped_unrecorded"]
                result["fills"] = {name: int(stats[f"1:fills_{name}"]) for name in names}
                result["lives"] = [int(stats[f"1:{name}"]) for name in ("values_doubted", "lives_closed")]
            return result
        finally:
            server.clean()


def both(binary, row, seed):
    """The same load on memcached and on the server at the same time."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ours = pool.submit(measure, binary, "cattlegrid", row, seed)
        theirs = pool.submit(measure, "/usr/bin/memcached", "memcached", row, seed)
        return theirs.result(), ours.result()


def main():
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(Load(json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])).run()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--settled", action="store_true")
    parser.add_argument("--strict", action="store_true", help='ambiguous = "drop"')
    given = parser.parse_args()
    for name in given.rows:
        for seed in range(1, given.rounds + 1):
            row = {**ROWS[name], "unequal": given.unequal, "settled": given.settled}
            if given.strict:
                row["strict"] = 'ambiguous = "drop"\n'
            theirs, ours = both(given.server_bin, row, seed)
            for target, got in (("memcached", theirs), ("cattlegrid", ours)):
                shares = " ".join(f"{share:.3f}" for share in got["share"])
                print(f"{name:15} {target:10} {shares}  stale {got['stale']:5} of {got['hits']:6}, longest {got['longest']:.2f} s, "
                      f"computed {got['computed']:5}  {got.get('fills', '')} {got.get('lives', '')}", flush=True)


if __name__ == "__main__":
    main()
