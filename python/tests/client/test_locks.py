"""Locks with many waiters: they take it in turn, and are woken in their process."""

import asyncio
import random
import threading
import time

import pytest
from herd_support import Call, Server, below, until

from cattlegrid.client import AsyncCache, Cache, LockHeld

RULES = "[objects]\n"


@pytest.fixture
def server():
    with Server("rules", RULES) as running:
        yield running


def cache_of(server):
    return Cache(server.address, timeout=20, connect_timeout=20)


def test_sixty_threads_take_a_short_lock_soon(server):
    cache, inside, got = cache_of(server), [], []

    def work(name):
        with cache.lock(name, ttl="10s", wait="20s") as lock:
            inside.append(1)
            got.append((len(inside), lock.fence))
            time.sleep(0.002)
            inside.pop()

    def sixty(name):
        got.clear()
        began = time.monotonic()
        for call in [Call(work, name(number)) for number in range(60)]:
            call.result()
        return time.monotonic() - began

    def of_one(_):
        alone = sixty("alone{}".format)
        took = sixty(lambda number: "short")
        assert [count for count, _ in got] == [1] * 60
        fences = [fence for _, fence in got]
        assert fences == sorted(set(fences))
        return took - 5 * alone

    # 0.12 s of work, and what this machine takes for sixty threads. With pauses that grow, and nothing to wake the next,
    # it took 3 to 9 s.
    below(2, of_one)
    assert len(cache._turns) == 0


def test_sixty_tasks_take_a_short_lock_soon(server):
    async def program():
        async with AsyncCache(server.address, timeout=20) as cache:
            inside, got = [], []

            async def work(name):
                async with cache.lock(name, ttl="10s", wait="20s"):
                    inside.append(1)
                    got.append(len(inside))
                    await asyncio.sleep(0.002)
                    inside.pop()

            async def sixty(name):
                got.clear()
                began = time.monotonic()
                await asyncio.gather(*(work(name(number)) for number in range(60)))
                return time.monotonic() - began

            alone = await sixty("alone{}".format)
            before = cache.statistics().requests
            took = await sixty(lambda number: "short")
            assert got == [1] * 60
            assert len(cache._turns) == 0
            # Those that wait do not ask: each once when it comes, when it has its turn, and when it releases.
            assert cache.statistics().requests - before < 60 * 6
            return took - 5 * alone

    below(2, lambda _: asyncio.run(program()))


def test_waiters_of_a_process_take_it_in_the_order_in_which_they_came(server):
    cache, order = cache_of(server), []
    holder = cache.lock("order", ttl="20s")
    holder.acquire()

    def work(number):
        with cache.lock("order", wait="20s"):
            order.append(number)
            time.sleep(0.01)

    calls = []
    for number in range(8):
        calls.append(Call(work, number))
        time.sleep(0.03)
    holder.release()
    # It comes last, though it need not wait for anything to be told.
    calls.append(Call(work, 8))
    for call in calls:
        call.result()
    assert order == list(range(9))


def test_a_release_wakes_the_next_at_once(server):
    cache = cache_of(server)

    def wakes(_):
        holder = cache.lock("woken", ttl="20s")
        holder.acquire()
        taken = []

        def work():
            with cache.lock("woken", wait="20s"):
                taken.append(time.monotonic())

        call = Call(work)
        # By now it asks every quarter of a second.
        time.sleep(3)
        released = time.monotonic()
        holder.release()
        call.result()
        return taken[0] - released

    # A question comes as soon by chance in two of five rounds, and in three rounds in a row seldom.
    below(0.1, wakes)


def test_a_lock_of_another_process_is_taken_soon_after_a_short_hold(server):
    """Each cache is as a process: they do not know of each other."""
    caches = [cache_of(server) for _ in range(20)]

    def work(cache, name):
        with cache.lock(name, ttl="10s", wait="20s"):
            time.sleep(0.005)

    def all_together(name):
        began = time.monotonic()
        for call in [Call(work, cache, name(number)) for number, cache in enumerate(caches)]:
            call.result()
        return time.monotonic() - began

    # 0.1 s of work; and what this machine takes for twenty threads.
    below(2, lambda _: all_together(lambda number: "others") - 5 * all_together("alone{}".format))


def test_a_process_that_hands_it_on_all_the_time_does_not_keep_it_from_others(server):
    busy, other = cache_of(server), cache_of(server)
    stop, turns = threading.Event(), []

    def work():
        while not stop.is_set():
            with busy.lock("busy", wait="20s"):
                turns.append(1)
                time.sleep(0.005)

    calls = [Call(work) for _ in range(6)]
    until(lambda: len(turns) > 10)
    waits = []
    for _ in range(3):
        began = time.monotonic()
        with other.lock("busy", wait="20s"):
            waits.append(time.monotonic() - began)
    stop.set()
    for call in calls:
        call.result()
    assert max(waits) < 10, waits


def test_those_whose_wait_passes_leave_the_line(server):
    cache = cache_of(server)
    with cache.lock("held", ttl="20s"):
        began = time.monotonic()
        calls = [Call(cache.lock("held", wait=0.2).acquire) for _ in range(10)]
        for call in calls:
            with pytest.raises(LockHeld) as held:
                call.result()
            assert 15 < held.value.left <= 20
        assert time.monotonic() - began < 12, "it is held for 20 s"
        assert len(cache._turns) == 0
        began = time.monotonic()
        with pytest.raises(LockHeld):
            cache.lock("held", wait=0).acquire()
        assert time.monotonic() - began < 10
    with cache.lock("held", wait=0):
        pass


def test_a_lock_whose_time_ends_goes_to_the_waiters(server):
    cache = cache_of(server)
    cache.lock("ends", ttl="500ms").acquire()

    def work():
        lock = cache.lock("ends", ttl="300ms", wait="20s")
        lock.acquire()
        # Not released.

    began = time.monotonic()
    for call in [Call(work) for _ in range(4)]:
        call.result()
    assert 1.3 < time.monotonic() - began < 5
    assert len(cache._turns) == 0


def test_a_task_that_is_cancelled_leaves_its_place_to_the_next(server):
    async def program():
        async with AsyncCache(server.address, timeout=20) as cache:
            holder = cache.lock("cancelled", ttl="20s")
            await holder.acquire()
            tasks = []
            for _ in range(5):
                tasks.append(asyncio.ensure_future(cache.lock("cancelled", ttl="20s", wait="20s").acquire()))
                await asyncio.sleep(0.02)
            for place in (0, 2):
                tasks[place].cancel()
            await asyncio.sleep(0.1)
            await holder.release()
            done, _ = await asyncio.wait([tasks[1]], timeout=5)
            assert done and tasks[1].result() > 0
            assert not tasks[3].done() and not tasks[4].done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert len(cache._turns) == 0

    asyncio.run(program())


def test_a_task_that_is_cancelled_before_a_connection_is_there_leaves_no_lock(server):
    random.seed(7)

    async def program():
        async with AsyncCache(server.address, timeout=20) as cache, AsyncCache(server.address, timeout=20) as other:
            await other.get("connect")
            for number in range(200):
                await cache.close()
                task = asyncio.ensure_future(cache.lock(f"early:{number}", ttl="20s", wait="2s").acquire())
                end = time.monotonic() + random.random() * 0.003
                while time.monotonic() < end:
                    await asyncio.sleep(0)
                if task.cancel():
                    await asyncio.gather(task, return_exceptions=True)
                    await asyncio.sleep(0.02)
                    async with other.lock(f"early:{number}", ttl="20s", wait="10s"):
                        pass

    asyncio.run(program())


def test_waiters_of_two_loops(server):
    cache = AsyncCache(server.address, timeout=20)
    got = []

    async def work():
        async with cache.lock("loops", wait="20s"):
            got.append(1)
            await asyncio.sleep(0.005)

    async def program():
        await asyncio.gather(*(work() for _ in range(10)))
        await cache.close()

    for call in [Call(asyncio.run, program()) for _ in range(2)]:
        call.result()
    assert len(got) == 20 and len(cache._turns) == 0


def test_callers_that_wait_on_after_a_fork_ask_for_themselves(server):
    """As greenlets do, which are copied with the process."""
    cache = cache_of(server)
    holder = cache.lock("forked", ttl="20s")
    holder.acquire()
    locks = [cache.lock("forked", wait="20s") for _ in range(2)]
    calls = [Call(lock.acquire) for lock in locks]
    until(lambda: len(cache._turns) == 1)
    time.sleep(0.1)
    cache._turns.forget()
    holder.release()
    until(lambda: any(lock.is_taken for lock in locks))
    next(lock for lock in locks if lock.is_taken).release()
    for call in calls:
        assert call.result() > 0
