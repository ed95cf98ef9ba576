"""Loaders whose values are large: what is on its way to be stored is bounded, nothing of it is lost, and no small value waits."""

import concurrent.futures
import pathlib
import time

import pytest

import harness
from harness import wait_until
from loaders import of_loader, of_rule, rules, value

pytestmark = pytest.mark.only_cattlegrid

MIB = 1 << 20


def highest(server):
    """The most bytes of memory that the server has had."""
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def on_its_way(server):
    return int(server.stats("loaders")["transit_bytes"])


def send(server, lines):
    """Each by a connection of its own."""
    clients = [server.raw(90) for _ in lines]
    for client, line in zip(clients, lines):
        client.send(line + b"\r\n")
    return clients


def ended(scene, count):
    wait_until(f"{count} jobs have ended", lambda: scene.stats()["jobs"] - scene.stats()["running"] == count, 90)
    stats = scene.check_sums()
    assert stats["refused"] == 0, stats
    assert on_its_way(scene.server) == 0
    return stats


@pytest.mark.parametrize("mode", ["template", "exec", "jsonl"])
def test_values_that_are_far_too_large_take_no_memory(scene, mode):
    """The most that a worker's answer may take follows `-I`."""
    server = scene.start(rules('hold = "1m"\n', mode=mode, max=16), "-m", "64")
    before = highest(server)
    count = 8 if mode == "jsonl" else 32
    clients = send(server, [b"get do:size:60000000:%d" % n for n in range(count)])
    assert [value(client) for client in clients] == [None] * count
    assert ended(scene, count)["errors"] == count
    assert highest(server) - before < 40 * MIB, (before, highest(server))


@pytest.mark.parametrize("mode", ["template", "jsonl"])
def test_large_values_of_many_workers_wait_for_each_other(scene, mode):
    """Memory is bounded by `-m`, and `transit_bytes_max` for values that are not stored yet; as text they take it twice, and a line more."""
    server = scene.start(rules('hold = "1m"\n', mode=mode, max=16), "-m", "64", "-I", "32m")
    clients = send(server, [b"get do:size:20000000:%d" % n for n in range(32)])
    stats = ended(scene, 32)
    assert stats["values"] == 32, stats
    assert stats["reply_waits"] > 0
    most = int(server.stats("loaders")["transit_bytes_max"])
    assert most == 2 * (32 * MIB + 128 * 1024)
    assert highest(server) < 64 * MIB + (3 if mode == "jsonl" else 1) * most + 40 * MIB, highest(server)
    assert len(clients) == 32 and server.running()


def test_no_computed_value_is_thrown_away(scene):
    """Workers are faster than one thread of the server."""
    server = scene.start(rules('hold = "1m"\n', max=16), "-m", "64", "-t", "1")

    def read(n):
        with server.raw(90) as c:
            return [c.get(b"do:size:1000000:%d" % (40 * i + n)) for i in range(5)]

    with concurrent.futures.ThreadPoolExecutor(40) as threads:
        for values in threads.map(read, range(40)):
            assert values == [b"x" * 1_000_000] * 5
    assert ended(scene, 200)["values"] == 200


def halfway(size, timeout):
    """A loader whose answers stop after this many bytes, and that of `pages.py`."""
    stuck = of_loader("half", "halfway.py", mode="jsonl", max=3, timeout=timeout, kill_grace="200ms")
    command = stuck.replace('halfway.py"]', f'halfway.py", "{size}"]')
    assert command != stuck
    return of_rule("half:{id}", "half") + command + rules(max=2)


def test_answers_that_stop_halfway(scene):
    """Lines whose ends do not come keep from others what has arrived, and nothing else."""
    server = scene.start(halfway(200_000, "60s"), "-I", "8m", "-m", "128")
    halves = send(server, [b"get half:%d" % n for n in range(3)])
    wait_until("they have written", lambda: on_its_way(server) >= 600_000)
    assert on_its_way(server) < 1_000_000
    with server.raw(60) as c:
        for size in (10, 60_000, 65_536, 300_000, 1_000_000, 8_000_000):
            assert c.get(b"do:size:%d:1" % size) == b"x" * size
    assert (scene.stats()["reply_waits"], scene.stats("half")["reply_waits"], scene.stats("half")["running"]) == (0, 0, 3)
    assert len(halves) == 3
    scene.end()


def test_answers_that_stop_when_they_have_all_room(scene):
    """Until their time is up: small values do not wait for them, large ones do."""
    server = scene.start(halfway(7_000_000, "5s"), "-I", "8m", "-m", "128")
    halves = send(server, [b"get half:%d" % n for n in range(3)])
    # One of them goes over the limit.
    wait_until("two have written, and the third waits or has", lambda: on_its_way(server) >= 16 * MIB)
    with server.raw(60) as large, server.raw(60) as small:
        large.send(b"get do:size:1000000:1\r\n")
        since = time.monotonic()
        for n in range(20):
            assert small.get(b"page:%d" % n) == b"%d=0" % n
            assert small.get(b"do:size:65536:%d" % n) == b"x" * 65_536
        assert time.monotonic() - since < 2 * harness.PROMPT
        assert value(large) == b"x" * 1_000_000
    assert [value(half) for half in halves] == [None] * 3
    stats = scene.check_sums("half")
    assert stats["timeouts"] == stats["jobs"] >= 3, stats
    wait_until("the last stuck worker is gone", lambda: on_its_way(server) == 0)
