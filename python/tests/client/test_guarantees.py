"""The table of ``docs/clients.md``: what is guaranteed over memcached, over Cattlegrid without a rule, and with one.

Each row that has a mark for Python names a test here, which runs against all three, blocking and under asyncio.
"""

import re
import socket
import threading
import time
from pathlib import Path

import pytest
from herd_support import Call, Held, Relay, Server, until, unused

from cattlegrid.client import CacheError, Compute, Error, Hit
from cattlegrid.namespace import Namespacer

DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"
HEAD = "| | memcached | Cattlegrid, no rule file | Cattlegrid, a rule | test | Python |"


def rows():
    lines = DOCUMENT.read_text().splitlines()
    table = lines[lines.index(HEAD) + 2 :]
    cells = []
    for line in table:
        if not line.startswith("|"):
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return cells


def says(test, server, *cells):
    """Fails unless the document says this of a test, in the three columns."""
    row = next(row for row in rows() if row[4] == f"`{test}`")
    column = ["memcached", "plain", "rules"].index(server.kind)
    assert row[column + 1] == cells[column], "docs/clients.md says otherwise than the test shows"


def computed(cache, key, value, **options):
    outcome = cache.get_or_compute(key, lambda: value, outcome=True, **options)
    assert (outcome.kind, outcome.value, outcome.stored) == ("computed", value, True), outcome


def test_one_computation(server, caches):
    says("one_computation", server, "1", "1", "1")
    count = []

    def compute():
        count.append(1)
        time.sleep(0.3)
        return "v"

    calls = [Call(caches(server).get_or_compute, "h:one", compute, compute_time=10) for _ in range(20)]
    assert {call.result() for call in calls} == {"v"}
    assert len(count) == 1


def test_an_expired_value(server, caches):
    own = "for `compute_time` and a second"
    says("an_expired_value", server, own, own, "for the rule's `grace`")
    holder = caches(server)
    for key in ("h:young", "h:old"):
        computed(holder, key, "old", ttl=1, compute_time=4)
    stored_at = time.monotonic()
    # Beyond the second in which the server counts it as expired.
    more = 1.0 if server.has_rule else 0.0
    for key, after in (("h:young", 1.9), ("h:old", 7.5)):
        time.sleep(max(stored_at + after + more - time.monotonic(), 0))
        other = caches(server)
        held = Held(holder, key, "new", ttl=1, compute_time=4).begun()
        seen = other.get_or_compute(key, unused, ttl=1, compute_time=4, wait=0, outcome=True)
        assert ((seen.kind, seen.value) == ("stale", "old")) == (key == "h:young" or server.has_rule), (key, seen)
        assert held.finish().kind == "computed"


def test_waiting(server, caches):
    asks = "they ask again"
    says("waiting", server, asks, asks, "the server holds them: one request")
    with Relay(server.port) as relay:
        waiter = caches(relay)
        waiter.get("connect")
        for key in ("h:wait-1", "h:wait-2"):
            held = Held(caches(server), key, "v", compute_time=10).begun()
            relay.round_trips()
            waits = Call(waiter.get_or_compute, key, unused, compute_time=10, outcome=True)
            time.sleep(2)
            assert held.finish().stored
            got = waits.result()
            assert (got.kind, got.value) == ("hit", "v")
            trips = relay.round_trips()
            print(f"{server.kind}: {trips} round trips in a wait of 2 s")
            if server.has_rule:
                # A question, and the one that is held. A new connection shows first that it is served.
                assert trips in (2, 3)
            else:
                assert 3 <= trips <= 60


def test_the_client_that_computes_dies(server, caches):
    """The connection of the client that computes breaks: its process has been killed."""
    later = "when `compute_time` is over"
    says("the_client_that_computes_dies", server, later, later, "at once")
    with Relay(server.port) as relay:
        # Its server has more than enough time to see that the connection has ended.
        compute_time = 9 if server.has_rule else 4
        asked_at = time.monotonic()
        held = Held(caches(relay), "h:dies", "never", compute_time=compute_time).begun()
        waits = Call(
            caches(server).get_or_compute, "h:dies", lambda: "next", compute_time=compute_time, wait=30, outcome=True
        )
        time.sleep(0.3)
        relay.close()
        assert waits.result().kind == "computed"
        took = time.monotonic() - asked_at
        print(f"{server.kind}: the next computes after {took:.2f} s")
        assert (took + 0.1 < compute_time) == server.has_rule, took
        held.let_go()


def test_a_failure_frees_the_key(server, caches):
    says("a_failure_frees_the_key", server, "at once", "at once", "at once")

    def fails():
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        caches(server).get_or_compute("h:fails", fails, compute_time=20)
    began = time.monotonic()
    computed(caches(server), "h:fails", "next", compute_time=20)
    assert time.monotonic() - began < 10, "not the time of the lock"


def test_a_late_value(server, caches):
    """Its time has passed, and another client has computed and stored the value."""
    says("a_late_value", server, "not stored", "not stored", "not stored")
    held = Held(caches(server), "h:late", "late", compute_time=1).begun()
    other = caches(server)
    computed(other, "h:late", "next", compute_time=10, wait=30)
    time.sleep(0.3)
    late = held.finish()
    assert (late.value, late.stored, late.why) == ("late", False, "late")
    assert other.get_or_compute("h:late", unused) == "next"


def test_a_value_computed_before_a_delete(server, caches):
    says("a_value_computed_before_a_delete", server, "not stored", "not stored", "not stored")
    told = []
    held = Held(
        caches(server),
        "h:deleted",
        "before",
        compute_time=10,
        on_not_stored=lambda key, why: told.append((key, why.kind)),
    ).begun()
    other = caches(server)
    other.delete("h:deleted")
    outcome = held.finish()
    assert (outcome.kind, outcome.value, outcome.stored) == ("computed", "before", False)
    assert told == [("h:deleted", "fenced")]
    assert other.peek("h:deleted") is None

    # Longer than compute_time, by less than a second: that of the first try in which the machine lets it be so.
    for turn in range(10):
        long, token_key = f"h:long:{turn}", f"h:token:{turn}"
        began = time.monotonic()
        held = Held(caches(server), long, "before", compute_time=1).begun()
        fetches = caches(server)
        token = fetches.fetch_or_compute(token_key, compute_timeout=1).token
        other.delete_many([long, token_key])
        time.sleep(1.3)
        stored = held.finish().stored
        not_stored = fetches.deliver(token, "before")
        if time.monotonic() - began < 2:
            assert not stored
            assert not_stored is not None
            assert other.peek(long) is None and other.peek(token_key) is None
            return
    pytest.fail("it took more than 2 s each time")


def test_the_same_beyond_the_time_of_the_lock(server, caches):
    """The lock has left memcached when the value comes, so that a delete cannot be seen."""
    stored = "can be stored"
    says("the_same_beyond_the_time_of_the_lock", server, stored, stored, "not stored")
    held = Held(caches(server), "h:beyond", "before", compute_time=1).begun()
    other = caches(server)
    other.delete("h:beyond")
    time.sleep(4)
    outcome = held.finish()
    assert (outcome.value, outcome.stored) == ("before", not server.has_rule)
    read = other.get_or_compute("h:beyond", lambda: "after")
    assert read == ("after" if server.has_rule else "before")


def test_a_set_by_another_client(server, caches):
    says("a_set_by_another_client", server, "stays", "stays", "is replaced by the computed one")
    held = Held(caches(server), "h:set", "computed", compute_time=10).begun()
    other = caches(server)
    other.set("h:set", "set")
    outcome = held.finish()
    assert (outcome.value, outcome.stored) == ("computed", server.has_rule)
    assert other.get_or_compute("h:set", unused) == ("computed" if server.has_rule else "set")


def test_a_plain_get_of_a_key_being_computed(server, caches):
    """Of a client that knows nothing of this one."""
    lock = "the lock's 34 bytes or more"
    says("a_plain_get_of_a_key_being_computed", server, lock, lock, "is held, and gets the value")
    held = Held(caches(server), "h:plain", "value", compute_time=10).begun()
    with socket.create_connection(("127.0.0.1", server.port), 20) as plain:
        plain.sendall(b"get h:plain\r\n")
        server.until_held(1)
        reply = b"" if server.has_rule else plain.recv(4096)
        assert held.finish().stored
        reply = reply or plain.recv(4096)
        assert reply.startswith(b"VALUE h:plain ")
        assert (b"value" in reply) == server.has_rule, reply
        if not server.has_rule:
            assert int(reply.split()[3]) == 34


def test_a_plain_get_of_a_computed_value(server, caches):
    header = "a header of 18 bytes, and the value"
    says("a_plain_get_of_a_computed_value", server, header, header, header)
    own = caches(server, serializer="text")
    computed(own, "h:stored", "value", compute_time=10)
    flags, data = server.item("h:stored")
    assert (flags, data[:2], data[18:]) == (0xCA77_0001, b"\xc7\0", b"value")
    # This client reads it.
    assert own.get("h:stored") == own.peek("h:stored") == "value"


def test_a_hint(server, caches):
    says("a_hint", server, "yes", "yes", "yes")
    first_cache = caches(server)
    first = first_cache.fetch_or_compute("h:hint", 60, "first")
    assert isinstance(first, Compute)
    assert first.hint == b"first"
    other = caches(server)
    waits = Call(other.fetch_or_compute, "h:hint", 60, "second")
    until(lambda: other.statistics().requests > 0)
    server.until_held(1)
    del first
    second = waits.result(8)
    assert isinstance(second, Compute)
    assert second.hint == b"first"


def test_the_text_of_a_failure(server, caches):
    says("the_text_of_a_failure", server, "yes", "yes", "yes")
    first = caches(server)
    token = first.fetch_or_compute("h:text", 60).token
    other = caches(server)
    waits = Call(other.fetch_or_compute, "h:text", 60)
    until(lambda: other.statistics().requests > 0)
    server.until_held(1)
    time.sleep(0.05)
    first.fail(token, "out of paper, 100 %")
    assert waits.result() == Error("out of paper, 100 %")


def test_round_trips_of_many_keys(server, caches):
    """Three present, two being computed by another client, three missing, then the same keys again: counted on the
    wire."""
    three = "1 to ask, 1 to lock, 1 to store"
    says("round_trips_of_many_keys", server, three, three, "1 to ask, 1 to store")
    with Relay(server.port) as relay:
        counted = caches(relay)
        counted.get("connect")
        other = caches(server)
        for key in ("h:m1", "h:m2", "h:m3"):
            computed(other, key, key, compute_time=10)
        helds = [Held(other, key, key, compute_time=10).begun() for key in ("h:m4", "h:m5")]
        keys = [f"h:m{number}" for number in range(1, 9)]
        relay.round_trips()
        outcomes = counted.get_or_compute_many(
            keys, lambda keys: {key: key for key in keys}, compute_time=10, wait=0, outcome=True
        )
        trips = relay.round_trips()
        kinds = [outcomes[key].kind for key in keys]
        assert kinds == ["hit", "hit", "hit", "busy", "busy", "computed", "computed", "computed"]
        assert trips == (2 if server.has_rule else 3)
        present = [key for key in keys if key not in ("h:m4", "h:m5")]
        assert counted.get_or_compute_many(present, unused) == {key: key for key in present}
        assert relay.round_trips() == 1, "all present"
        for held in helds:
            held.let_go()


def test_a_server_that_is_gone(server, caches):
    text = "an error, or the value computed by each, as chosen"
    says("a_server_that_is_gone", server, text, text, text)
    own = caches(server)
    computed(own, "h:gone", "v", compute_time=10)
    server.stop()
    with pytest.raises(CacheError) as failed:
        own.get_or_compute("h:gone", unused)
    assert server.address in str(failed.value)
    outcome = own.get_or_compute("h:gone", lambda: "own", when_unavailable="compute", outcome=True)
    assert (outcome.kind, outcome.value, outcome.stored, outcome.why) == ("computed", "own", False, "failed")


def names_of(server, blocking, **options):
    return Namespacer(blocking(server), **options)


def test_an_update_of_a_namespace(server, blocking):
    says("an_update_of_a_namespace", server, "at once", "at once", "at once")
    here, there = names_of(server, blocking), names_of(server, blocking)
    cache = blocking(server)
    cache.set(here.key_of("h", [("userId", 7)]), "old")
    assert cache.get(there.key_of("h", [("userId", 7)])) == "old"
    here.update("userId", 7)
    assert cache.get(there.key_of("h", [("userId", 7)])) is None
    # Another user's are not touched.
    cache.set(here.key_of("h", [("userId", 8)]), "other")
    here.update("userId", 7)
    assert cache.get(there.key_of("h", [("userId", 8)])) == "other"


def test_a_value_computed_before_an_update(server, blocking):
    says("a_value_computed_before_an_update", server, "not found", "not found", "not found")
    names, cache = names_of(server, blocking), blocking(server)
    held = Held(cache, names.key_of("h", [("userId", 7)]), "before", compute_time=10).begun()
    names.update("userId", 7)
    assert held.finish().value == "before"
    assert cache.get_or_compute(names.key_of("h", [("userId", 7)]), lambda: "after") == "after"


def test_a_late_value_computed_before_an_update(server, blocking):
    """The computation takes longer than its lock lasts in the server, and the update comes in that time."""
    says("a_late_value_computed_before_an_update", server, "not found", "not found", "not found")
    names, cache = names_of(server, blocking), blocking(server)
    # Under a rule with leases, and under none.
    for name in ("h", "n"):
        held = Held(cache, names.key_of(name, [("userId", 7)]), "before", compute_time=1).begun()
        time.sleep(0.5)
        names.update("userId", 7)
        time.sleep(3)
        assert held.finish().value == "before"
        assert cache.get_or_compute(names.key_of(name, [("userId", 7)]), lambda: "after") == "after", name


def test_a_set_after_an_update(server, blocking):
    """By a program that calls ``get`` and, later, ``set``."""
    says("a_set_after_an_update", server, "not found", "not found", "found, unless the rule matches the key")
    names, cache = names_of(server, blocking), blocking(server)
    key = names.key_of("h", [("userId", 7)])
    assert cache.get(key) is None
    names.update("userId", 7)
    cache.set(key, "before")
    assert (cache.get(names.key_of("h", [("userId", 7)])) is not None) == server.has_rule


def test_the_cost_of_a_key(server, blocking):
    some = "1, or 2 if it may have been updated"
    says("the_cost_of_a_key", server, some, some, "none; the record once a second")
    with Relay(server.port) as relay:
        began = time.monotonic()
        names = Namespacer(blocking(relay))
        names.update("userId", 7)
        names.key("userId", 8)
        relay.round_trips()
        names.key("userId", 8)
        clean = relay.round_trips()
        names.key("userId", 7)
        updated = relay.round_trips()
        if not server.has_rule:
            assert (clean, updated) == (1, 2)
        elif time.monotonic() - began < 0.9:
            assert (clean, updated) == (0, 0)


def test_a_rolling_flush(server, blocking):
    says("a_rolling_flush", server, "this prefix", "this prefix", "this prefix")
    names = names_of(server, blocking, rolling_period=1)
    others = names_of(server, blocking, rolling_period=1, prefix="other_")
    cache = blocking(server)
    cache.set("plain", 1)
    for space in (names, others):
        for user in range(50):
            cache.set(space.key("userId", user), user)
    names.flush_all_rolling()
    # The period, and the second within which other processes notice.
    time.sleep(3)
    for user in range(50):
        assert cache.get(names.key("userId", user)) is None, user
        assert cache.get(others.key("userId", user)) == user
    assert cache.get("plain") == 1


def test_an_evicted_counter(server, blocking):
    """The server that has the item drops it: simulated by a delete."""
    says("an_evicted_counter", server, "keys change", "keys change", "keys change")
    names, cache = names_of(server, blocking), blocking(server)
    names.update("userId", 7)
    cache.set(names.key("userId", 7), "old")
    names.update("userId", 7)
    for item in ("___record", "___counter|userId:7"):
        cache.delete(item)
        time.sleep(1.1)
        assert cache.get(names.key("userId", 7)) is None, item


def test_the_table_names_every_test_and_only_these():
    table = rows()
    assert len(table) > 10
    source = Path(__file__).read_text()
    tests = re.findall(r"^def test_(\w+)\(server, (caches|blocking)\):", source, re.M)
    named = [(row[4].strip("`"), row[5]) for row in table]
    marks = {"caches": "yes", "blocking": "yes"}
    assert named == [(test, marks[how]) for test, how in tests], "in the same order"
    for test, _ in tests:
        assert f'says("{test}", server, ' in source, f"{test} compares its row"


__all__ = ["Hit", "Server", "threading"]
