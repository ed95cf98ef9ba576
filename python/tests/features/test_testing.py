"""The switch for tests: off, in memory, and nothing to be found; as context manager, fixture, variable and option."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from cattlegrid.client import AsyncCache, Cache, CacheError, RateLimited, UsageError, testing
from cattlegrid.namespace import AsyncNamespacer, Namespacer

pytest_plugins = ["cattlegrid.client.testing"]

NOWHERE = "127.0.0.1:1"


def counted(cache, **options):
    calls = []

    @cache.cached("page:{n}", **options)
    def page(n):
        calls.append(n)
        return n

    return page, calls


def test_in_memory_everything_works_without_a_server():
    cache = Cache(NOWHERE)
    with testing.memory():
        page, calls = counted(cache, ttl=60, tags=["pages", "page:{n}"])
        assert page.get_many([1, 2]) == [1, 2] and page(1) == 1 and page.last.outcome == "hit"
        assert page.refresh(1) == 1 and page.last.outcome == "computed"
        cache.invalidate("page:1")
        assert page(1) == 1 and page.last.outcome == "computed" and page(2) == 2 and page.last.outcome == "hit"
        assert calls == [1, 2, 1, 1]
        assert page.forget(2) and not page.forget(2)
        assert cache.set("a", {"x": [1]}) and cache.get("a") == {"x": [1]} and cache.get("a") is not cache.get("a")
        assert not cache.add("a", 1) and cache.replace("a", 2) and not cache.replace("b", 1) and cache.add("b", 1)
        value, number = cache.gets("a")
        assert value == 2 and cache.cas("a", 3, number) is True and cache.cas("a", 4, number) is False
        assert cache.cas("absent", 1, 1) is None
        assert cache.incr("b", 5) == 6 and cache.decr("b", 10) == 0 and cache.incr("absent") is None
        assert cache.touch("b", 60) and not cache.touch("absent", 60)
        assert cache.get_many(["a", "b", "c"]) == {"a": 3, "b": 0}
        assert cache.set("short", 1, 1)
        time.sleep(1.05)
        assert cache.get("short") is None
        cache.flush_all()
        assert cache.get_many(["a", "b"]) == {}

        def deleted():
            cache.delete("k")
            return 1

        assert cache.get_or_compute("k", deleted, outcome=True).why == "fenced"
        other = Cache(NOWHERE)
        cache.set("shared", 1)
        assert other.get("shared") == 1, "made inside, of the same servers"
        assert Cache("127.0.0.1:2").get("shared") is None
        assert cache.version() == {"memory": "memory"}
    with pytest.raises(CacheError):
        cache.get("a")
    with pytest.raises(CacheError):
        other.get("a")
    with testing.memory():
        assert cache.get("shared") is None, "empty again"


def test_objects_in_memory():
    cache = Cache(NOWHERE, prefix="shop:")
    with testing.memory(cache) as switch:
        quota = cache.quota("alice", 2, "hour")
        assert quota.peek().left == 2 and [quota.take() for _ in range(3)] == [True, True, False]
        assert quota.peek()[:3] == (2, 2, 0) and 0 < quota.peek().resets_in <= 3600
        quota.reset()
        assert quota.take()
        for algorithm in ("window", "sliding"):
            limited = cache.rate_limit(algorithm + ":{x}", 1, "minute", algorithm=algorithm)(lambda x: x)
            assert limited(1) == 1
            with pytest.raises(RateLimited) as error:
                limited(1)
            assert 0 < error.value.retry_after <= 61
        with cache.lock("x", ttl="10s") as lock:
            assert lock.fence and not cache.lock("y").is_taken and lock.holder() == lock.owner
            with pytest.raises(CacheError):
                cache.lock("x", wait=0).acquire()
            lock.renew()
        assert lock.holder() is None
        assert cache.call("set:new:x") is None
        switch.clear()
        assert quota.peek().used == 0


def test_off_and_misses():
    cache = Cache(NOWHERE)
    for switch, stored, why in [(testing.off, False, "no_lease"), (testing.misses, True, None)]:
        with switch(cache):
            page, calls = counted(cache, ttl=60)
            assert page(1) == page(1) == 1 and calls == [1, 1]
            assert page.last.outcome == "computed" and page.last.stored is stored
            assert (page.last.why and page.last.why.kind) == why
            assert page.get_many([1, 2]) == [1, 2] and page.refresh(1) == 1 and page.forget(1) is False
            assert cache.set("a", 1) is stored and cache.get("a") is None
            assert all(cache.quota("q", 1, "hour").take() for _ in range(3))
            with cache.lock("x"), cache.lock("x"):
                pass
            names = Namespacer(cache)
            assert names.key("userId", 1)
            names.update("userId", 1)


def test_switches_nest_and_belong_to_caches():
    one, two = Cache(NOWHERE), Cache(NOWHERE)
    with testing.memory(one, two):
        one.set("a", 1)
        with testing.off(one):
            assert one.get("a") is None and two.get("a") == 1
        assert one.get("a") == 1
        with testing.misses():
            assert two.get("a") == 1, "its own comes first"
    with pytest.raises(UsageError, match="off, memory, miss"):
        testing.Switch("none", ())


@testing.memory()
def test_as_a_decorator():
    cache = Cache(NOWHERE)
    assert cache.set("a", 1) and cache.get("a") == 1


def test_fixtures(cattlegrid_memory):
    cache = Cache(NOWHERE)
    assert cache.set("a", 1) and cache.get("a") == 1
    cattlegrid_memory.clear()
    assert cache.get("a") is None


def test_fixture_off(cattlegrid_off):
    assert Cache(NOWHERE).set("a", 1) is False


def test_fixture_misses(cattlegrid_misses):
    cache = Cache(NOWHERE)
    assert cache.set("a", 1) is True and cache.get("a") is None


def test_asyncio(run):
    async def program():
        cache = AsyncCache(NOWHERE)
        with testing.memory():
            calls = []

            @cache.cached("page:{n}", ttl=60, tags=["pages"])
            async def page(n):
                calls.append(n)
                await asyncio.sleep(0.01)
                return n

            assert await asyncio.gather(*(page(1) for _ in range(10))) == [1] * 10 and calls == [1]
            await cache.invalidate("pages")
            assert await page.get_many([1, 2]) == [1, 2]
            assert await cache.quota("q", 1, "hour").take() and not await cache.quota("q", 1, "hour").take()
            async with cache.lock("x"):
                pass
            names = AsyncNamespacer(cache)
            key = await names.key("userId", 1)
            await cache.set(key, "content")
            await names.update("userId", 1)
            assert await cache.get(await names.key("userId", 1)) is None
            blocking = Cache(NOWHERE)
            assert blocking.get("page:2") == 2, "the same memory"
        with pytest.raises(CacheError):
            await cache.get("a")
        await cache.close()

    run(program())


@pytest.mark.parametrize("mode", ["off", "memory", "miss", "none"])
def test_by_variable_and_by_option(mode):
    program = "import sys\nfrom cattlegrid.client import Cache\n"
    program += "cache = Cache('127.0.0.1:1', **eval(sys.argv[1]))\nprint(cache.set('a', 1), cache.get('a'))\n"
    expected = {"off": "False None", "memory": "True 1", "miss": "True None"}.get(mode, "")
    for variable, options in [(mode, {}), ("", {"testing": mode})]:
        environment = {**os.environ, "CATTLEGRID_CACHE": variable, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", program, repr(options)], env=environment, capture_output=True, text=True, check=False
        )
        assert ran.stdout.strip() == expected
        assert ("is switched to off, memory, miss" in ran.stderr) is (mode == "none")
