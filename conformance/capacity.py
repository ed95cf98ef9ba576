"""The figures of docs/capacity.md: items for each MiB of `-m`, memory of rules, tags, connections and threads, descriptors.

    python3 conformance/capacity.py --server-bin PATH [--reference-bin memcached]

Takes about two minutes. Values have one size in each run, keys have 32 bytes, and 1.6 times as much is stored as fits.
"""

import argparse
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import MIB, Server, allow_files, kind_of

SIZES = (0, 100, 500, 1000, 2000, 4000, 6000, 8000, 10000, 16000, 40000, 100000)
HOLD = '[[rule]]\nmatch = "key:{id}"\nhold = "400ms"\n'
TAGS = HOLD + 'tags = ["a:{id}", "b"]\n'


def fill(server, size, mib):
    """Stores more items than fit."""
    value, stored = b"x" * size, 0
    with server.raw(60) as c:
        while stored * (size + 60) < 1.6 * mib * MIB:
            count = max(1, min(2000, 2_000_000 // (size + 60)))
            c.ask(b"".join(b"ms key:%028d %d T3600 q\r\n%s\r\n" % (stored + n, size, value) for n in range(count)))
            stored += count


def items(binary, size, mib=64, rules=None):
    """Items in a full server, for each MiB of `-m`."""
    args = ["-m", mib]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        if rules:
            file.write(rules)
            file.flush()
            args += ["--config", file.name]
        server = Server(binary, kind_of(binary), args)
        try:
            fill(server, size, mib)
            found = server.stats()
            assert int(found["evictions"]) > 0
            return int(found["curr_items"]) / mib
        finally:
            server.clean()


def connections(binary, count, args=()):
    """Resident bytes of each connection that has sent one get, descriptors without and with them."""
    server = Server(binary, "cattlegrid", ["-c", str(count + 100), *args])
    opened = []
    try:
        before, files = server.rss(), server.settled_descriptors()
        for _ in range(count):
            opened.append(server.raw())
            opened[-1].get(b"a")
        time.sleep(8)  # buffers that are free go back
        return (server.rss() - before) / count, files, server.descriptors()
    finally:
        for one in opened:
            one.close()
        server.clean()


def threads(binary, count):
    """Resident MiB and descriptors of a server that has done nothing."""
    server = Server(binary, "cattlegrid", ["-t", str(count)])
    try:
        return server.rss() / MIB, server.settled_descriptors()
    finally:
        server.clean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server-bin", required=True)
    parser.add_argument("--reference-bin", default="/usr/bin/memcached")
    given = parser.parse_args()
    ours = os.path.abspath(given.server_bin)
    allow_files(10000)
    print("value    cattlegrid    memcached    items for each MiB")
    for size in SIZES:
        print(f"{size:6,} {items(ours, size):12,.1f} {items(given.reference_bin, size):12,.1f}", flush=True)
    for name, rules in (("a rule", HOLD), ("a rule with 2 tags", TAGS)):
        print(f"100 bytes, {name}: {items(ours, 100, rules=rules):,.1f}; at -m 1024: {items(ours, 100, 1024, rules):,.1f}", flush=True)
    print(f"100 bytes, no rule, at -m 1024: {items(ours, 100, 1024):,.1f}")
    print("a connection: {:,.0f} bytes; descriptors without {}, with 5,000 {}".format(*connections(ours, 5000)))
    for count in (1, 4, 16, 64):
        print("-t {}: {:.1f} MiB, {} descriptors".format(count, *threads(ours, count)))


if __name__ == "__main__":
    main()
