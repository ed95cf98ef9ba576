"""How long a server may be silent, what a server that hangs does to another, and how computations end that store nothing."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from herd_support import Call, Held, Relay, Server, until

from cattlegrid.client import (
    AsyncCache,
    Cache,
    Ejection,
    Negative,
    ServerFailure,
    UnreadableValue,
    UsageError,
    skip,
)
from cattlegrid.client._foreign import PythonMemcached


class Slow(Relay):
    """A server that sends its replies in pieces, with a pause before each."""

    def __init__(self, port, piece, pause):
        super().__init__(port)
        self._piece, self._pause = piece, pause

    def _copy(self, source, to, state, is_request):
        if is_request:
            super()._copy(source, to, state, is_request)
            return
        try:
            while True:
                data = source.recv(self._piece)
                if not data:
                    break
                time.sleep(self._pause)
                to.sendall(data)
        except OSError:
            pass


def test_the_timeout_is_how_long_a_server_may_be_silent(memcached, caches):
    """Many and large replies take longer, and are read as long as they come."""
    with Slow(memcached.port, 1 << 14, 0.02) as relay:
        cache = caches(relay, timeout=0.4, serializer="bytes")
        large = {f"h:{number}": b"x" * 100_000 for number in range(8)}
        small = {f"s:{number}": b"y" * 100 for number in range(4000)}
        direct = caches(memcached, serializer="bytes")
        for values in (large, small):
            direct.set_many(values)
            began = time.monotonic()
            assert cache.get_many(list(values)) == values
            assert cache.get_or_compute_many(list(values), lambda keys: pytest.fail("they are there")) == values
            assert time.monotonic() - began > 0.4, "a test of nothing"
        began = time.monotonic()
        assert cache.get("h:0") == large["h:0"]
        assert not cache.set_many(small)
        relay._pause = 60
        began = time.monotonic()
        with pytest.raises(ServerFailure):
            cache.get("h:0")
        assert time.monotonic() - began < 5


def test_many_values_are_stored_though_it_takes_longer_than_the_timeout(plain, caches):
    with Slow(plain.port, 1 << 15, 0.05) as relay:
        cache = caches(relay, timeout=1, serializer="bytes")
        values = {f"s:{number}": b"y" * 20 for number in range(30_000)}
        began = time.monotonic()
        assert not cache.set_many(values)
        found = cache.get_many(list(values))
        assert time.monotonic() - began > 1, "a test of nothing"
        assert found == values


def all_stopped(pid):
    """Whether all threads of a process have stopped."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


@pytest.mark.parametrize("kind", ["memcached", "rules"])
@pytest.mark.parametrize("ejection", [None, Ejection(after_failures=100)])
def test_a_server_that_hangs_takes_no_reply_of_another(kind, ejection, caches):
    with Server(kind) as hangs, Server(kind) as healthy:
        cache = caches(f"{hangs.address},{healthy.address}", timeout=0.5, serializer="bytes", ejection=ejection)
        values = {f"s:{number}": b"x" * 100_000 for number in range(40)}
        cache.set_many(values, ttl=600)
        owned = [key for key in values if healthy.item(key)]
        assert 0 < len(owned) < len(values)
        os.kill(hangs.process.pid, signal.SIGSTOP)
        try:
            until(lambda: all_stopped(hangs.process.pid))
            for _ in range(3):
                got = cache.get_or_compute_many(
                    list(values),
                    lambda keys: [b"y"] * len(keys),
                    ttl=600,
                    outcome=True,
                    when_unavailable="compute",
                    wait=0,
                )
                assert {key for key, outcome in got.items() if outcome.kind == "hit"} == set(owned)
                why = {str(outcome.why) for outcome in got.values() if outcome.why}
                assert all(hangs.address in each for each in why), why
        finally:
            os.kill(hangs.process.pid, signal.SIGCONT)


def test_a_plain_read_of_a_key_that_is_computed_is_answered_before_the_timeout(ruled, caches):
    """The rule holds it for 4 s."""
    cache = caches(ruled, timeout=3)
    cache.get("other")
    held = Held(caches(ruled), "h:1", "v", compute_time=30).begun()
    for call, nothing in [
        (lambda: cache.get("h:1"), None),
        (lambda: cache.gets("h:1"), (None, None)),
        (lambda: cache.get_many(["h:1"]), {}),
        (lambda: cache.get_and_touch("h:1", 60), None),
        (lambda: cache.get("h:1", "default"), "default"),
    ]:
        began = time.monotonic()
        assert call() == nothing
        assert time.monotonic() - began < 3.5
    waits = Call(cache.get, "h:1")
    ruled.until_held(1)
    assert held.finish().stored
    assert waits.result() == "v"


@pytest.mark.parametrize("result", [skip("s"), Negative(0, "s"), Negative("0s", "s")], ids=["skip", "0", "0s"])
def test_what_is_not_stored_is_not_computed_in_turn(server, blocking, result):
    """Callers of a process compute at the same time where the value is not to be stored."""
    cache, count = blocking(server), []

    def compute():
        count.append(1)
        time.sleep(0.3)
        return result

    began = time.monotonic()
    calls = [Call(cache.get_or_compute, "h:1", compute, compute_time=4, outcome=True) for _ in range(30)]
    outcomes = [call.result() for call in calls]
    assert time.monotonic() - began < 6, "in turn it is 9 s"
    assert [(outcome.kind, outcome.value) for outcome in outcomes] == [("computed", "s")] * 30
    assert {outcome.why for outcome in outcomes} == {"skipped"}
    assert cache.under_way() == 0


def test_what_takes_longer_than_was_estimated_is_stored_in_the_end(blocking):
    """Each computation would be overtaken by that of the next caller, who has waited for ``compute_time``; and what has tags is not stored
    when its lock is over."""
    count, ends = [], time.monotonic() + 12

    def compute():
        count.append(1)
        time.sleep(0.5)
        return "s"

    def ask():
        while time.monotonic() < ends:
            if cache.get_or_compute("h:1", compute, compute_time=0.3, ttl=60, tags=["t"], outcome=True).kind == "hit":
                return True
        return False

    with Server("rules", "") as server:
        cache = blocking(server)
        calls = [Call(ask) for _ in range(4)]
        assert all(call.result() for call in calls), len(count)


def test_what_is_not_stored_is_not_computed_in_turn_by_tasks(server):
    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:

            async def compute():
                await asyncio.sleep(0.3)
                return skip("s")

            began = time.monotonic()
            calls = [cache.get_or_compute("h:1", compute, compute_time=4) for _ in range(50)]
            assert set(await asyncio.gather(*calls)) == {"s"}
            assert time.monotonic() - began < 10, "in turn it is 15 s"

    asyncio.run(work())


class User:
    def __init__(self, id, **more):
        self.id = id
        self.__dict__.update(more)


def test_an_exception_while_tags_are_made_gives_the_lease_back(ruled, caches):
    cache = caches(ruled)
    if caches.is_async:

        async def page(user):
            return "page"
    else:

        def page(user):
            return "page"

    cached = (cache.inner if caches.is_async else cache).cached(
        "h:{user.id}", ttl=60, compute_time=20, tags=["group:{user.group}"]
    )(page)

    def call(user):
        return asyncio.run_coroutine_threadsafe(cached(user), cache._loop).result(30) if caches.is_async else cached(user)

    with pytest.raises(AttributeError, match="group"):
        call(User(7))
    began = time.monotonic()
    assert call(User(7, group=3)) == "page"
    assert time.monotonic() - began < 5


def test_near_values_end_when_this_cache_stores_others(server, caches):
    cache = caches(server, near="60s")
    other = caches(server)

    def deliver(key):
        cache.deliver(cache.fetch_or_compute(key, ttl=60).token, "new")

    for number, (store, is_deleted) in enumerate(
        [
            (lambda key: cache.refresh(key, lambda: "new", ttl=60), False),
            (lambda key: cache.get_or_compute(key, lambda: "new", ttl=60), True),
            (lambda key: cache.get_or_compute_many([key], lambda keys: ["new"], ttl=60), True),
            (deliver, True),
        ]
    ):
        key = f"h:{number}"
        other.set(key, "old", ttl=60)
        assert [cache.get(key), cache.get(key)] == ["old", "old"]
        assert cache.statistics().near_hits == number + 1
        if is_deleted:
            other.delete(key)
        store(key)
        assert cache.get(key) == "new", number


def test_generators_are_refused(blocking):
    cache, tasks = Cache("127.0.0.1:1"), AsyncCache("127.0.0.1:1")

    def plain(id):
        yield id

    async def asynchronous(id):
        yield id

    class Shop:
        items = staticmethod(plain)

    for decorate in (cache.cached("k:{id}"), tasks.cached("k:{id}")):
        for function in (plain, asynchronous, staticmethod(plain), classmethod(asynchronous), Shop.items):
            with pytest.raises(UsageError, match="generator"):
                decorate(function)


def test_a_client_that_sends_stores_again_is_refused():
    pymemcache = pytest.importorskip("pymemcache")
    retrying = pytest.importorskip("pymemcache.client.retrying")
    with pytest.raises(UsageError, match="RetryingClient sends stores again"):
        Cache(retrying.RetryingClient(pymemcache.Client(("127.0.0.1", 1))))


class Memcache:
    """As python-memcached's client: ``cas`` is False of a key that is missing."""

    def __init__(self):
        self.values, self.cas_ids = {}, {}

    def cas(self, key, value, time):
        return 0

    def get(self, key):
        return self.values.get(key)


def test_cas_of_a_missing_key_over_python_memcached():
    client = Memcache()
    over = PythonMemcached.__new__(PythonMemcached)
    assert over.cas(client, "k", b"v", 1, 0) == "NOT_FOUND"
    client.values["k"] = b"other"
    assert over.cas(client, "k", b"v", 1, 0) == "EXISTS"
    assert not client.cas_ids


class Odd:
    """A serializer that raises what it likes."""

    format = 9
    raises = False

    def dumps(self, value):
        if value == "bad":
            raise KeyError(value)
        return value.encode()

    def loads(self, data):
        if self.raises:
            raise KeyError(data)
        return data.decode()


def test_a_serializer_of_ones_own_may_raise_anything(server, caches):
    odd = Odd()
    cache = caches(server, serializer=odd)
    assert cache.get_or_compute("h:1", lambda: "v", compute_time=20) == "v"
    odd.raises = True
    with pytest.raises(UnreadableValue):
        cache.peek("h:1")
    assert cache.get_or_compute("h:1", lambda: "next", compute_time=20) == "next"
    odd.raises = False
    assert cache.get_or_compute("h:1", lambda: "other") == "next"
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(UnreadableValue):
            cache.get_or_compute("h:2", lambda: "bad", compute_time=20)
        assert time.monotonic() - began < 5
    assert threading.active_count() < 50
    until(lambda: cache.under_way() == 0)
