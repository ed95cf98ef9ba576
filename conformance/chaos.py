"""Well-behaved clients beside misbehaving ones ([`misbehaviour`]).

    chaos.py [--server-bin PATH] [--reference-bin PATH] [--rounds N] [--seconds N]

The program measures what another client notices: p50 and p99 of its small gets and sets, alone and while the chaos runs,
on the server and on memcached in the same run, slices of both alternately. `test_chaos.py` asserts.

A [`Good`] is a client that checks every reply against what it has itself acknowledged: no other client writes its keys.
"""

import argparse
import os
import random
import socket
import ssl
import statistics
import tempfile
import threading
import time
import traceback

import harness
from crowd import percentiles, write_rules
from harness import Raw
from misbehaviour import Chaos

MIB = 1 << 20

RULES = """
[[rule]]
match = "page:{id}"
hold = "1s"
lease = "500ms"
grace = "2s"
tags = ["pages"]

[[rule]]
match = "good:{client}:{n}"
hold = "1s"
lease = "500ms"
grace = "2s"
# Its client sets keys that it has not missed, and reads what it has set.
owner = "connection"
tags = ["client:{client}"]

[[cascade]]
on = ["delete"]
match = "user:{id}"
bump = ["pages"]
"""


class Good(threading.Thread):
    """Verified load on keys of its own: every reply must be right, and in time.

    What a get finds is the last acknowledged value or nothing (it was evicted, or a fill was dropped); once
    nothing was found, or the key was deleted, its tag invalidated or a set refused, nothing is found until the next set.
    """

    def __init__(self, raw, number, seed, within, large=True):
        super().__init__(daemon=True)
        self.raw, self.number, self.within, self.large = raw, number, within, large
        self.chance = random.Random(f"{seed} good {number}")
        self.last, self.version = {}, 0
        self.over, self.error = threading.Event(), None
        self.times, self.hits, self.misses = {}, 0, 0
        self.refused = []
        """When large sets were refused."""
        self.stored = []
        """When large sets were stored."""

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except BaseException:
            self.error = f"client {self.number}: {traceback.format_exc()}"
        finally:
            self.raw.close()

    def value(self, key, version):
        if key.startswith(b"large"):
            size = 100_000 + version * 7919 % 800_000
        else:
            size = version * 131 % 2000
        stamp = b"%s=%d;" % (key, version)
        return (stamp * (size // len(stamp) + 1))[: max(size, len(stamp))]

    def step(self):
        c, n = self.chance.random(), self.chance.randrange(50)
        if self.large and c < 0.03:
            key, what = b"large:%d:%d" % (self.number, n % 4), self.chance.choice(("set", "get"))
        else:
            name = b"good:%d:%d" if self.chance.random() < 0.5 else b"plain:%d:%d"
            key = name % (self.number, n)
            what = "get" if c < 0.55 else "set" if c < 0.9 else "delete" if c < 0.98 else "bump"
        since = time.monotonic()
        getattr(self, what)(key)
        took = time.monotonic() - since
        kind = "large" if key.startswith(b"large") else "small"
        self.times.setdefault((kind, what), []).append(took)
        assert took < self.within, f"{what} {key}: answered after {took:.1f} s"
        # As an application does: it does something else in between.
        self.over.wait(0.001)

    def get(self, key):
        got, last = self.raw.get(key), self.last.get(key)
        if got is None:
            self.misses += 1
            self.last[key] = None
            return
        self.hits += 1
        assert last is not None, f"{key}: {got[:60]}, after it was gone"
        want = self.value(key, last)
        assert got == want, f"{key}: {got[:60]}, not {want[:60]}"

    def set(self, key):
        self.version += 1
        line = self.raw.set(key, self.value(key, self.version))
        if line == b"STORED":
            self.last[key] = self.version
            if key.startswith(b"large"):
                self.stored.append(time.monotonic())
            return
        assert key.startswith(b"large"), f"{key}: {line}"
        assert line == b"SERVER_ERROR out of memory storing object", f"{key}: {line}"
        self.refused.append(time.monotonic())
        self.last[key] = None

    def delete(self, key):
        self.raw.send(b"delete %s\r\n" % key)
        line, last = self.raw.line(), self.last.get(key)
        assert line == b"NOT_FOUND" or (line == b"DELETED" and last is not None), f"{key}: {line}"
        self.last[key] = None

    def bump(self, _):
        self.raw.send(b"delete @tag:client:%d\r\n" % self.number)
        line = self.raw.line()
        assert line == b"DELETED", line
        for key in self.last:
            if key.startswith(b"good:"):
                self.last[key] = None


class GoodPymemcache(threading.Thread):
    """The same with an unmodified client, small values only."""

    def __init__(self, port, number, seed, within):
        from pymemcache.client.base import Client

        super().__init__(daemon=True)
        self.client = Client(("127.0.0.1", port), timeout=within, connect_timeout=within)
        self.client.version()
        self.number, self.chance = number, random.Random(f"{seed} pymemcache {number}")
        self.over, self.error, self.operations, self.hits = threading.Event(), None, 0, 0

    def run(self):
        last, counter = {}, None
        try:
            while not self.over.wait(0.001):
                self.operations += 1
                key = f"py:{self.number}:{self.chance.randrange(30)}"
                what = self.chance.choice(("get", "get", "set", "delete", "many", "incr"))
                if what == "set":
                    last[key] = b"%d" % self.operations * self.chance.randrange(1, 50)
                    assert self.client.set(key, last[key], noreply=False) is True
                elif what == "delete":
                    assert self.client.delete(key, noreply=False) is False or last.get(key) is not None
                    last[key] = None
                elif what == "incr":
                    got = self.client.incr(f"count:{self.number}", 1)
                    assert got is None or got == counter + 1, (got, counter)
                    if got is None:
                        assert self.client.set(f"count:{self.number}", b"0", noreply=False)
                        got = 0
                    counter = got
                else:
                    keys = [key] if what == "get" else [f"py:{self.number}:{i}" for i in range(30)]
                    got = {key: self.client.get(key)} if what == "get" else self.client.get_many(keys)
                    for k in keys:
                        if got.get(k) is None:
                            last[k] = None
                        else:
                            self.hits += 1
                            assert got[k] == last[k], (k, got[k], last[k])
        except BaseException:
            self.error = f"pymemcache {self.number}: {traceback.format_exc()}"
        finally:
            self.client.close()


def tls_raw(port, timeout):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return Raw(context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout)))


# --- What another client notices, compared with memcached ------------------------------------------------------------


def probe(port, seconds):
    """Small gets and sets, one after the other; (times in ms, errors)."""
    times, errors = [], 0
    with Raw(socket.create_connection(("127.0.0.1", port), 10)) as c:
        assert c.set(b"probe", b"p" * 100) == b"STORED"
        yield None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            since = time.monotonic()
            try:
                if len(times) % 10 == 0:
                    errors += c.set(b"probe", b"p" * 100) != b"STORED"
                else:
                    errors += c.get(b"probe") not in (b"p" * 100, None)
            except TimeoutError:
                yield [*times, (time.monotonic() - since) * 1000], errors + 1
                return
            times.append((time.monotonic() - since) * 1000)
            time.sleep(0.0005)
    yield times, errors


def measure(server, seconds, chaos, seed):
    """A slice: p50, p99 and most in ms, errors, the server's share of a processor, operations, and what the chaos has done."""
    prober = probe(server.port, seconds)
    next(prober)
    noise = Chaos(server, seed) if chaos else None
    if noise:
        time.sleep(2)  # until descriptors are used up
    cpu = server.cpu_seconds()
    times, errors = next(prober)
    cpu = (server.cpu_seconds() - cpu) / seconds
    done = 0
    if noise:
        counts, wrong = noise.end()
        done = sum(sum(count.values()) for count in counts.values())
        for error in wrong:
            # memcached refuses small values too while others stall large ones.
            print(f"  {server.kind}: {error.strip().splitlines()[-1]}")
    return *percentiles(times), errors, cpu, len(times), done


def compare(given, directory):
    harness.allow_files(2000)
    binaries = {"cattlegrid": given.server_bin, "memcached": given.reference_bin}
    options = ["-m", 64, "-c", 300, "-t", 2]
    rows = {}
    for n in range(given.rounds):
        for calm in (True, False):
            for kind, binary in list(binaries.items())[:: 1 if n % 2 else -1]:
                # A server of its own for each slice: what a slice leaves behind is not the next one's.
                args = options + (["--config", write_rules(directory, RULES)] if kind == "cattlegrid" else [])
                with open(os.devnull, "wb") as null:
                    server = harness.Server(os.path.abspath(binary) if "/" in binary else harness.tool(binary), kind, args, stderr=null)
                try:
                    row = measure(server, given.seconds, not calm, given.seed + n)
                finally:
                    server.clean()
                rows.setdefault((calm, kind), []).append(row)
                print(
                    f"round {n + 1} {'calm ' if calm else 'chaos'} {kind:10} p50 {row[0]:.2f} ms, p99 {row[1]:.2f} ms, most {row[2]:.1f} ms, "
                    f"{row[3]} errors, {row[4] * 100:.0f} % of a processor, {row[5]} operations, {row[6]} of the chaos"
                )
    print("\n| | server | p50 ms | p99 ms | most ms | errors | processor | done by the chaos |\n|---|---|---|---|---|---|---|---|")
    for (calm, kind), slices in rows.items():
        median = [statistics.median(s[i] for s in slices) for i in range(7)]
        worst = max(s[2] for s in slices)
        errors = sum(s[3] for s in slices)
        print(f"| {'calm' if calm else 'chaos'} | {kind} | {median[0]:.2f} | {median[1]:.2f} | {worst:.1f} | {errors} | {median[4] * 100:.0f} % | {median[6]:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server-bin", default=os.environ.get("CATTLEGRID_BIN", str(harness.ROOT / "target/release/cattlegrid")))
    parser.add_argument("--reference-bin", default="memcached")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each slice")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        compare(given, directory)


if __name__ == "__main__":
    main()
