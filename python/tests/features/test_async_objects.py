"""Quotas, locks, limits and calls under asyncio: the same methods, the same answers."""

import asyncio
import inspect
import time

import pytest

from cattlegrid.client import (
    AsyncCache,
    AsyncLock,
    AsyncQuota,
    Cache,
    LockHeld,
    LockLost,
    NoObjects,
    RateLimited,
    UsageError,
)
from cattlegrid.client._cached import AsyncBoundFunction, AsyncCachedFunction, BoundFunction, CachedFunction
from cattlegrid.client._methods import AsyncCacheMethods, CacheMethods, Lock, Quota

PAIRS = [
    (CacheMethods, AsyncCacheMethods),
    (Quota, AsyncQuota),
    (Lock, AsyncLock),
    (CachedFunction, AsyncCachedFunction),
    (BoundFunction, AsyncBoundFunction),
]


@pytest.mark.parametrize(("blocking", "tasks"), PAIRS)
def test_both_have_the_same_methods(blocking, tasks):
    def methods(kind):
        return {
            name: [(p.name, p.default, p.kind) for p in inspect.signature(member).parameters.values()]
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and not name.startswith("_")
        }

    assert methods(blocking) == methods(tasks) and methods(blocking)


def test_quotas_limits_and_calls(ruled, run):
    async def program():
        async with AsyncCache(ruled.address) as cache:
            quota = cache.quota("alice", 50, "hour")
            taken = await asyncio.gather(*(quota.take() for _ in range(80)))
            assert sum(taken) == 50
            state = await quota.peek()
            assert (state.limit, state.used, state.left) == (50, 50, 0)
            await quota.reset()
            assert await quota.take(50) and not await quota.take()
            for algorithm in ("window", "sliding"):
                calls = []

                @cache.rate_limit(f"{algorithm}:{{x}}", 2, "hour", algorithm=algorithm)
                async def api(x, calls=calls):
                    calls.append(x)
                    return x

                assert inspect.iscoroutinefunction(api)
                assert [await api(1), await api(1), await api(2)] == [1, 1, 2]
                with pytest.raises(RateLimited) as limited:
                    await api(1)
                assert limited.value.retry_after > 0 and calls == [1, 1, 2]
            with pytest.raises(UsageError, match="use Cache"):
                cache.rate_limit("a:{x}", 1, "hour")(lambda x: x)
            assert await cache.call("counter:add:c:5") == b"5"
            outcomes = await cache.multi_call("counter", "get", ["c", "absent"])
            assert [each.reply for each in outcomes] == [b"5", None]
            # A blocking program counts with it.
            assert Cache(ruled.address).call("counter:add:c:1") == b"6"

    run(program())


def test_locks(ruled, run):
    async def program():
        async with AsyncCache(ruled.address) as cache:
            inside, most, fences = [], [], []

            async def work():
                async with cache.lock("x", ttl="10s", wait="20s") as lock:
                    inside.append(1)
                    most.append(len(inside))
                    fences.append(lock.fence)
                    await asyncio.sleep(0.01)
                    inside.pop()

            await asyncio.gather(*(work() for _ in range(8)))
            assert max(most) == 1 and fences == sorted(set(fences)) and len(fences) == 8
            async with cache.lock("x") as lock:
                with pytest.raises(LockHeld):
                    await cache.lock("x", wait="50ms").acquire()
                assert await lock.holder() == lock.owner
                await lock.renew("20s")
            assert await lock.holder() is None
            with pytest.raises(LockLost):
                async with cache.lock("x", ttl="100ms"):
                    await asyncio.sleep(0.25)
            # A task that is cancelled gives its lock back.
            task = asyncio.ensure_future(hold(cache))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            began = time.monotonic()
            async with cache.lock("held", wait="10s"):
                assert time.monotonic() - began < 5

            # Nor does one keep it that is cancelled while it takes it.
            for turn in range(20):
                lock = cache.lock(f"taken{turn}", ttl="60s")
                task = asyncio.ensure_future(lock.acquire())
                for _ in range(turn % 5):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                    await lock.release()
                except asyncio.CancelledError:
                    assert not lock.is_taken
            for turn in range(20):
                async with cache.lock(f"taken{turn}", wait="5s"):
                    pass

    async def hold(cache):
        async with cache.lock("held", ttl="60s"):
            await asyncio.sleep(60)

    run(program())


@pytest.mark.parametrize("kind", ["memcached", "plain"])
def test_without_objects_there_is_a_clear_error(all_servers, kind, run):
    async def program():
        async with AsyncCache(all_servers(kind).address) as cache:
            quota, lock = cache.quota("alice", 1, "hour"), cache.lock("x", wait=0)
            for call in (quota.take, quota.peek, quota.reset, lock.acquire, lock.holder):
                with pytest.raises(NoObjects):
                    await call()

    run(program())
