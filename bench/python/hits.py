"""What a hit of ``get_or_compute`` and of a cached function costs above a plain ``get`` of pymemcache: CPU time of this
process, in one interleaved run, medians of rounds.

    python bench/python/hits.py [--rounds 40] [--gets 2000] [--memcached memcached] [--server HOST:PORT]

Without ``--server`` memcached is started on a free port of 127.0.0.1. Needs pymemcache.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "src"))

import pymemcache

from cattlegrid.client import AsyncCache, Cache

LIMIT_US = 15.0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def started(program, port):
    server = subprocess.Popen([program, "-u", "nobody", "-l", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.02)
    server.terminate()
    raise SystemExit(f"{program} does not start")


def cpu_us(work, count):
    """CPU time of one call, in microseconds."""
    begun = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begun) * 1e6 / count


async def async_cpu_us(cache, count):
    begun = time.process_time()
    for _ in range(count):
        await cache.get_or_compute("bench:page", fail, ttl=600)
    return (time.process_time() - begun) * 1e6 / count


def fail():
    raise AssertionError("it was computed")


def measure(port, host, rounds, count):
    bare = pymemcache.Client((host, port), timeout=1.0, no_delay=True)
    own, over = Cache(f"{host}:{port}"), Cache(pymemcache.PooledClient((host, port), timeout=1.0, no_delay=True))
    value = {"title": "a page", "body": "x" * 200}
    own.delete("bench:page")
    over.delete("bench:over")
    own.get_or_compute("bench:page", lambda: value, ttl=600)
    over.get_or_compute("bench:over", lambda: value, ttl=600)
    bare.set("bench:bare", own._codec.encode(value)[0], noreply=False)

    @own.cached("bench:page", ttl=600)
    def page():
        fail()

    loop = asyncio.new_event_loop()
    of_tasks = AsyncCache(f"{host}:{port}")
    works = {
        "pymemcache: get": lambda: cpu_us(lambda: bare.get("bench:bare"), count),
        "Cache: get": lambda: cpu_us(lambda: own.get("bench:page"), count),
        "Cache: get_or_compute": lambda: cpu_us(lambda: own.get_or_compute("bench:page", fail, ttl=600), count),
        "Cache: a cached function": lambda: cpu_us(page, count),
        "Cache over pymemcache: get_or_compute": lambda: cpu_us(
            lambda: over.get_or_compute("bench:over", fail, ttl=600), count
        ),
        "AsyncCache: get_or_compute": lambda: loop.run_until_complete(async_cpu_us(of_tasks, count)),
    }
    taken = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(work())
    loop.run_until_complete(of_tasks.close())
    loop.close()
    return {name: statistics.median(all_) for name, all_ in taken.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--gets", type=int, default=2000)
    parser.add_argument("--memcached", default="memcached")
    parser.add_argument("--server")
    arguments = parser.parse_args()
    server = None
    if arguments.server:
        host, _, port = arguments.server.rpartition(":")
    else:
        host, port = "127.0.0.1", free_port()
        server = started(arguments.memcached, port)
    try:
        medians = measure(int(port), host, arguments.rounds, arguments.gets)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
    bare = medians["pymemcache: get"]
    print(f"Python {sys.version.split()[0]}, medians of {arguments.rounds} rounds of {arguments.gets} calls")
    print("| | CPU us a call | above pymemcache |\n|---|---|---|")
    for name, us in medians.items():
        print(f"| {name} | {us:.1f} | {us - bare:+.1f} |")
    above = medians["Cache: get_or_compute"] - bare
    if above > LIMIT_US:
        sys.exit(f"get_or_compute takes {above:.1f} us more than pymemcache, {LIMIT_US} at most are allowed")


if __name__ == "__main__":
    main()
