"""A pool that keeps two idle connections and closes the rest, as gomemcache's does: how often is what it reads older than
the last acknowledged delete?

    target/conformance/venv/bin/python conformance/elastic_pool.py --server-bin target/fast/cattlegrid --seconds 10

Readers compute what they miss and store it through whichever connection is free, so a computation's `get` and `set` often use
two connections, the first of which is closed meanwhile. A writer changes the source and deletes. A value that a reader gets is
stale if it is older than a delete that had been answered when the `get` was sent.
"""

import argparse
import pathlib
import random
import tempfile
import threading
import time

from harness import Raw, Server

IDLE_MAX = 2
KEYS = 4


class Pool:
    def __init__(self, server):
        self.server, self.idle, self.lock = server, [], threading.Lock()

    def use(self, act):
        with self.lock:
            connection = self.idle.pop() if self.idle else None
        connection = connection or Raw(self.server.connect())
        result = act(connection)
        with self.lock:
            if len(self.idle) < IDLE_MAX:
                self.idle.append(connection)
                return result
        connection.close()
        return result

    def close(self):
        for connection in self.idle:
            connection.close()


class Source:
    """What stands behind the cache: a version for each key, and the last one whose delete was answered."""

    def __init__(self):
        self.version, self.deleted = [1] * KEYS, [0] * KEYS


def read(pool, source, end, seed, counts):
    rng = random.Random(seed)
    hits = stale = fills = 0
    while time.monotonic() < end:
        n = rng.randrange(KEYS)
        floor, key = source.deleted[n], b"page:%d" % n
        value = pool.use(lambda c, key=key: c.get(key))
        if value is not None:
            hits += 1
            stale += int(value) < floor
            continue
        version = source.version[n]
        time.sleep(rng.random() * 0.03)
        said = pool.use(lambda c, key=key, value=b"%d" % version: c.set(key, value))
        assert said == b"STORED", said
        fills += 1
    counts.append((hits, stale, fills))


def write(server, source, end, seed):
    rng = random.Random(seed)
    with server.raw() as connection:
        while time.monotonic() < end:
            n = rng.randrange(KEYS)
            source.version[n] += 1
            connection.send(b"delete page:%d\r\n" % n)
            assert connection.line() in (b"DELETED", b"NOT_FOUND")
            source.deleted[n] = source.version[n]
            time.sleep(rng.random() * 0.01)


def run(server, seconds, threads, seed=1):
    """(hits, stale hits, fills)."""
    pool, source, counts = Pool(server), Source(), []
    end = time.monotonic() + seconds
    workers = [threading.Thread(target=read, args=(pool, source, end, seed + n, counts)) for n in range(threads)]
    workers.append(threading.Thread(target=write, args=(server, source, end, seed - 1)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pool.close()
    assert len(counts) == threads, "a reader has failed"
    return tuple(map(sum, zip(*counts, strict=True)))


RULES = '[[rule]]\nmatch = "page:{id}"\nhold = "20ms"\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as rules:
        rules.write(RULES)
        rules.flush()
        server = Server(pathlib.Path(options.server_bin).resolve(), "cattlegrid", ["--config", rules.name])
        try:
            hits, stale, fills = run(server, options.seconds, options.threads)
            stats = server.stats("rules")
            dropped = {name[8:]: stats[name] for name in stats if name.startswith("1:fills_dropped")}
            print(f"{hits} hits, {stale} of them stale; {fills} fills, {dropped}")
        finally:
            server.clean()


if __name__ == "__main__":
    main()
