"""Chaos: stuck readers, stalled writers, clients cut at every byte, descriptors used up and a stuck log at the same time. What
other clients get is right and in time; memory and descriptors stay within their limits and come back.
"""

import fcntl
import os
import socket
import time

import pytest

from chaos import MIB, RULES, Good, GoodPymemcache, tls_raw
from crowd import percentiles, show, write_rules
from harness import PROMPT, Server, allow_files, wait_until
from misbehaviour import STALLED, Chaos
from test_operations import make_certificate

pytestmark = [pytest.mark.only_cattlegrid, pytest.mark.timeout(240)]

SECONDS = 27
STALLED_AFTER = 15
"""Seconds after which every upload that stands still has done so for more than ten."""
CONNECTIONS = 300
DESCRIPTORS = 220
"""Fewer than connections, so that they are used up first."""
WITHIN = 20.0
"""Seconds within which each command is answered. Usual are some tens of milliseconds, on a machine that does nothing else."""
THREADS = 2

RSS_MAX = (
    64 * MIB  # -m: items, index, rules
    + 64 * MIB  # large commands that have arrived in part, all together
    + CONNECTIONS * 128 * 1024  # for each: output of a turn (64 KiB), input not counted as large (64 KiB)
    + CONNECTIONS * 64 * 1024  # and one item that is not shared with the output, since it lies in the log
    + THREADS * (256 * 1024 + 16 * 128 * 1024)  # receive buffer, and output kept for each of a batch
    + 512 * 1024  # the log's queue
    + 4 * MIB  # kept replies of held requests: 256 KiB for each of at most 16
)
"""What the server may hold at most, over what it has at its start; the allocator has a quarter more for what it cuts to pieces."""


def stuck_log():
    """A pipe of the smallest size, without a reader."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 16384)
    return reader, writer


def number(server, name, which=""):
    return int(server.stats(which)[name])


def test_chaos(binary, kind, open_dir, capsys):
    allow_files(2000)
    make_certificate(open_dir)
    files = f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem"
    reader, writer = stuck_log()
    server = Server(
        binary,
        kind,
        ["-m", 64, "-c", CONNECTIONS, "-t", THREADS, "--config", write_rules(open_dir, RULES), "-Z", "-o", files, "-v"]
        + ["-l", "notls:127.0.0.1,127.0.0.1"],
        stderr=writer,
    )
    os.close(writer)
    chaos = None
    try:
        plain, tls = (port for _, port in server.ports)
        wait_until("it answers", lambda: server.stats())
        at_start = server.rss()
        with server.raw() as c:
            wait_until("only this connection is open", lambda: c.stats()["curr_connections"] == "1")
            descriptors, threads = server.settled_descriptors(), server.threads()
        server.limit_descriptors(DESCRIPTORS)

        seed = int(os.environ.get("SEED", "1"))
        good = [Good(server.raw(WITHIN), n, seed, WITHIN) for n in range(4)]
        good.append(Good(tls_raw(tls, WITHIN), 4, seed, WITHIN, large=False))
        unmodified = [GoodPymemcache(plain, n, seed, WITHIN) for n in range(2)]
        clients = [*good, *unmodified]
        watch = server.raw(WITHIN)
        for client in clients:
            client.start()
        chaos = Chaos(server, seed, tls)
        began = time.monotonic()
        most_rss, most_held, most_partial = 0, 0, 0
        while time.monotonic() < began + SECONDS and all(c.is_alive() for c in clients):
            most_rss = max(most_rss, server.rss())
            own = watch.stats("cattlegrid")
            most_held = max(most_held, int(own["held"]))
            most_partial = max(most_partial, int(own["partial_bytes"]))
            time.sleep(0.05)
        ended = time.monotonic()
        counts, wrong = chaos.end()
        for client in clients:
            client.over.set()
        for client in clients:
            client.join(WITHIN + 5)
            assert not client.is_alive(), "a client hangs"
        assert server.running(), f"the server died with {server.process.returncode}"
        errors = wrong + [c.error for c in clients if c.error]
        assert not errors, f"SEED={seed}\n" + "\n".join(errors)

        small = [t for c in good for (size, _), times in c.times.items() if size == "small" for t in times]
        large = [t for c in good for (size, _), times in c.times.items() if size == "large" for t in times]
        refused, stored = [t for c in good for t in c.refused], [t for c in good for t in c.stored]
        late = began + STALLED_AFTER
        own = watch.stats("cattlegrid")
        report = "; ".join(f"{name}: " + ", ".join(f"{n} {what}" for what, n in done.items()) for name, done in counts.items())
        for size, times in (("small", small), ("large", large)):
            p50, p99, most = (t * 1000 for t in percentiles(times))
            show(capsys, f"{len(times)} {size} operations: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {most:.0f} ms")
        show(capsys, f"large sets: {len(stored)} stored, {len(refused)} refused, {sum(t > late for t in refused)} of them late")
        show(capsys, f"{sum(c.operations for c in unmodified)} operations of pymemcache; {report}")
        show(
            capsys,
            f"RSS {at_start // MIB} MiB at the start, {most_rss // MIB} at most; held {most_held}, partial {most_partial // MIB} MiB at most; "
            f"log: {own['log_lines_written']} written, {own['log_lines_dropped']} dropped, {own['log_lines_limited']} limited",
        )

        # It was chaos: each kind has done what it is there for.
        assert ended - began >= SECONDS
        assert counts["StuckReaders"]["opened"] == 20 and counts["StalledWriters"]["opened"] >= STALLED
        assert most_partial > 50 * MIB, "uploads have met their cap"
        assert counts["Exhaustion"]["full"] >= 1 and int(own["accept_errors"]) > 0, "descriptors were used up"
        assert all(counts["DyingHolders"].get(how, 0) > 3 for how in ("reset", "closed", "silent")) and most_held > 0
        assert all(counts["Resets"].get(how, 0) > 50 for how in ("reset", "closed", "half closed"))
        assert counts["ElasticPool"]["filled"] > 20 and counts["LogFlood"]["strangers"] > 20 and counts["TlsNoise"]["handshakes"] > 20
        assert counts["Churn"]["stored"] > 1000
        assert counts["SlowReaders"]["bytes"] > 20 and counts["Dribblers"]["bytes"] > 20
        assert int(own["log_lines_dropped"]) > 100 and int(own["log_lines_limited"]) > 100, "the log was stuck"

        # The others were served, also with what they had stored.
        assert all(c.hits > 100 for c in [*good, *unmodified])
        assert stored, "large values were stored"
        assert not [t - began for t in refused if t > late], "large sets succeed once the stalled uploads have given way"
        assert sum(t > late for t in stored) > 10

        assert most_rss < at_start + RSS_MAX * 5 / 4

        # What is over leaves nothing behind.
        watch.close()
        wait_until("only this connection is open", lambda: number(server, "curr_connections") == 1, 60)
        for name in ("leases", "held", "partial_bytes"):
            wait_until(f"no {name}", lambda: number(server, name, "cattlegrid") == 0, 60)
        wait_until("no key is computed", lambda: not server.stats("leases"), 60)
        with server.raw() as c:
            wait_until("only this connection is open", lambda: c.stats()["curr_connections"] == "1")
            wait_until("its descriptor is the last one", lambda: server.descriptors() <= descriptors, 60)
            assert server.descriptors() == descriptors and server.threads() == threads

        def is_quiet():
            cpu = server.cpu_seconds()
            time.sleep(2)
            return server.cpu_seconds() - cpu < 0.3

        wait_until("it has nothing to do", is_quiet, 30)
        # What connections had is given back; a quarter of it may stay in pieces.
        wait_until("memory is given back", lambda: server.rss() < at_start + 64 * MIB + 32 * MIB, 30)
        show(capsys, f"RSS {server.rss() // MIB} MiB at the end")

        # What was counted adds up.
        stats, rules = server.stats(), server.stats("rules")
        # A get that was held when its connection was reset has neither hit nor missed, and its wait no length.
        cut = counts["Resets"]["reset"] // 4
        assert 0 <= int(stats["cmd_get"]) - int(stats["get_hits"]) - int(stats["get_misses"]) <= cut, stats
        waits = sum(int(n) for name, n in rules.items() if ":waits_" in name)
        assert waits > 0 and 0 <= int(rules["total:held"]) - waits <= cut, "each get that was held was answered"
        assert int(stats["rejected_connections"]) > 0 and int(stats["evictions"]) > 0

        with server.raw() as c:
            assert c.set(b"after", b"v") == b"STORED" and c.get(b"after") == b"v"
        since = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - since < PROMPT, "the stuck log does not hold up the end"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", plain), 20)
    finally:
        if chaos:
            chaos.kill()
        server.clean()
        os.close(reader)
