"""Fewer connections than threads: threads of one process share a pool, ask for the same key at the same moment, compute what they miss and
set it. Computations and the time until all have the value, with memcached and with the server under rules.

    target/conformance/venv/bin/python conformance/small_pools.py --server-bin target/fast/cattlegrid [--rounds 5]
"""

import argparse
import pathlib
import queue
import statistics
import tempfile
import threading
import time

from harness import Server
from pymemcache.client.base import Client

RULES = {
    "hold": '[[rule]]\nmatch = "key:{id}"\nhold = "400ms"\n',
    "grace": '[[rule]]\nmatch = "key:{id}"\nhold = "400ms"\ngrace = "30s"\n',
}
SIZES = [(8, 1), (8, 2), (8, 4), (8, 8), (20, 4), (20, 20)]
COMPUTE_S = 0.1


class Pool:
    """A thread waits for a connection; the one that was used last is used next."""

    def __init__(self, port, size):
        self.idle = queue.LifoQueue()
        for _ in range(size):
            client = Client(("127.0.0.1", port), no_delay=True, timeout=30)
            client.version()
            self.idle.put(client)

    def call(self, command, *arguments):
        client = self.idle.get()
        try:
            return getattr(client, command)(*arguments)
        finally:
            self.idle.put(client)

    def close(self):
        while not self.idle.empty():
            self.idle.get().close()


def herd(port, threads, size, expired):
    """Computations, and the seconds that the median thread and the last one took."""
    pool, computed, took = Pool(port, size), [], []
    name = f"key:{time.monotonic_ns()}"
    if expired:
        pool.call("set", name, b"old", 1)
        time.sleep(2.1)
    start = threading.Barrier(threads)

    def act():
        start.wait()
        begun = time.monotonic()
        if pool.call("get", name) is None:
            computed.append(name)
            time.sleep(COMPUTE_S)
            pool.call("set", name, b"new", 60)
        took.append(time.monotonic() - begun)

    all_of_them = [threading.Thread(target=act) for _ in range(threads)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    pool.close()
    return len(computed), statistics.median(took), max(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    servers = {"memcached": Server(pathlib.Path("/usr/bin/memcached"), "memcached", [])}
    files = []
    for name, rule in RULES.items():
        file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        file.write(rule)
        file.flush()
        files.append(file)
        servers[name] = Server(pathlib.Path(given.server_bin).resolve(), "cattlegrid", ["--config", file.name])
    try:
        for threads, size in SIZES:
            for name, server in servers.items():
                expired = name == "grace"
                rounds = [herd(server.port, threads, size, expired) for _ in range(given.rounds)]
                computed, middle, last = (statistics.median(column) for column in zip(*rounds))
                print(f"{threads:2} threads, {size:2} connections, {name:9}: {computed:4} computed, "
                      f"median {middle * 1000:4.0f} ms, last {last * 1000:4.0f} ms", flush=True)
    finally:
        for server in servers.values():
            server.clean()


if __name__ == "__main__":
    main()
