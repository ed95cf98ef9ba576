"""A process that uses the client, for tests with many processes: what ``client-fixture`` is for the Rust client.

    python herd_program.py SERVERS KEY --ledger FILE [--takes MS] [--compute-time MS] [--wait MS] [--value TEXT] [--mode
    MODE] [--asyncio]

It connects, prints ``ready``, and makes a call for each line that it reads. A computation appends ``PID KEY`` to the
ledger and prints ``computes``. When a call returns it prints ``OUTCOME TEXT``.
"""

import argparse
import asyncio
import os
import sys
import time

from cattlegrid.client import AsyncCache, Cache

parser = argparse.ArgumentParser()
parser.add_argument("servers")
parser.add_argument("key")
parser.add_argument("--ledger", required=True)
parser.add_argument("--takes", type=float, default=0)
parser.add_argument("--compute-time", type=float)
parser.add_argument("--wait", type=float)
parser.add_argument("--value")
parser.add_argument("--mode", default="succeed")
parser.add_argument("--asyncio", action="store_true")
given = parser.parse_args()
options = {
    "compute_time": given.compute_time and given.compute_time / 1000,
    "wait": given.wait if given.wait is None else given.wait / 1000,
    "outcome": True,
}


def say(*words):
    print(*words, flush=True)


def begins():
    with open(given.ledger, "a") as ledger:
        ledger.write(f"{os.getpid()} {given.key}\n")
    say("computes")


def ends():
    if given.mode == "fail":
        raise OSError("it fails")
    return given.value or str(os.getpid())


def blocking():
    begins()
    time.sleep(1000 if given.mode == "hang" else given.takes / 1000)
    return ends()


async def coroutine():
    begins()
    await asyncio.sleep(1000 if given.mode == "hang" else given.takes / 1000)
    return ends()


def tell(outcome):
    say(outcome.kind, outcome.value)


def main():
    cache = Cache(given.servers, serializer="text", timeout=20, connect_timeout=20)
    cache.get("connect")
    say("ready")
    for _ in sys.stdin:
        try:
            tell(cache.get_or_compute(given.key, blocking, **options))
        except OSError as error:
            say("error", error)


async def async_main():
    async with AsyncCache(given.servers, serializer="text", timeout=20, connect_timeout=20) as cache:
        await cache.get("connect")
        say("ready")
        for _ in sys.stdin:
            try:
                tell(await cache.get_or_compute(given.key, coroutine, **options))
            except OSError as error:
                say("error", error)


if given.asyncio:
    asyncio.run(async_main())
else:
    main()
