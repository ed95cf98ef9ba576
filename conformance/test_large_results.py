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
    """Memory is bounded by `-m`, and `transit_bytes_max` for values that are not stored yet; as text they take it twice."""
    server = scene.start(rules('hold = "1m"\n', mode=mode, max=16), "-m", "64", "-I", "32m")
    clients = send(server, [b"get do:size:20000000:%d" % n for n in range(32)])
    stats = ended(scene, 32)
    assert stats["values"] == 32, stats
    assert stats["reply_waits"] > 0
    most = int(server.stats("loaders")["transit_bytes_max"])
    assert most == 2 * (32 * MIB + 128 * 1024)
    assert highest(server) < 64 * MIB + (2 if mode == "jsonl" else 1) * most + 40 * MIB, highest(server)
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


def test_answers_that_stop_halfway(scene):
    """Lines whose ends do not come take all room until their time is up: small values do not wait for them, large ones do."""
    stuck = of_rule("half:{id}", "half") + of_loader("half", "halfway.py", mode="jsonl", max=3, timeout="3s", kill_grace="200ms")
    server = scene.start(stuck + rules(max=2), "-I", "8m", "-m", "128")
    halves = send(server, [b"get half:%d" % n for n in range(3)])
    wait_until("two wait for the first", lambda: scene.stats("half")["reply_waits"] == 2)
    with server.raw(60) as large, server.raw(60) as small:
        large.send(b"get do:size:1000000:1\r\n")
        wait_until("it waits", lambda: scene.stats()["reply_waits"] == 1)
        since = time.monotonic()
        for n in range(20):
            assert small.get(b"page:%d" % n) == b"%d=0" % n
            assert small.get(b"do:size:65000:%d" % n) == b"x" * 65_000
        assert time.monotonic() - since < 2 * harness.PROMPT
        assert value(large) == b"x" * 1_000_000
    assert [value(half) for half in halves] == [None] * 3
    stats = scene.check_sums("half")
    assert stats["timeouts"] == stats["jobs"] >= 3, stats
    wait_until("the last stuck worker is gone", lambda: on_its_way(server) == 0)
