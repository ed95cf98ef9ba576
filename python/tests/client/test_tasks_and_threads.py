"""Many threads share a Cache, many tasks an AsyncCache; tasks that are cancelled; loops; the same calls in both."""

# ruff: noqa: B023
import asyncio
import gc
import inspect
import random
import threading
import time

import pytest
from herd_support import Call, Relay, Server, until, unused

from cattlegrid.client import AsyncCache, AsyncToken, Cache, CacheError, Compute, TimedOut, Token


def test_both_caches_have_the_same_calls():
    for blocking, tasks in [(Cache, AsyncCache), (Token, AsyncToken)]:
        names = [
            {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
            for kind in (blocking, tasks)
        ]
        assert names[0] == names[1]
        for name in names[0]:
            own, other = (inspect.signature(getattr(kind, name)) for kind in (blocking, tasks))
            assert list(own.parameters) == list(other.parameters), name
            for parameter, there in zip(own.parameters.values(), other.parameters.values()):
                assert (parameter.default, parameter.kind) == (there.default, there.kind), (name, parameter)
            assert getattr(tasks, name).__doc__, name
    own, other = inspect.signature(Cache).parameters, inspect.signature(AsyncCache).parameters
    assert set(other) - set(own) == {"waiting_connections"}
    assert not set(own) - set(other)


def test_a_thousand_tasks_share_one_computation(server):
    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:
            await cache.get("connect")
            count = []

            async def compute():
                count.append(1)
                await asyncio.sleep(1)
                return "v"

            requests = cache.statistics().requests
            calls = [cache.get_or_compute("h:1", compute, compute_time=20) for _ in range(1000)]
            assert set(await asyncio.gather(*calls)) == {"v"}
            assert len(count) == 1
            # A question of each, some more for the lock, and one watches.
            assert cache.statistics().requests - requests < 4500
            assert cache.statistics().connections == 1
            assert cache.under_way() == 0

    asyncio.run(work())


def test_tasks_that_wait_for_another_process_share_what_they_ask(server, blocking):
    other = blocking(server)
    token = other.fetch_or_compute("h:1", compute_timeout=20).token

    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:
            await cache.get("connect")
            calls = [asyncio.ensure_future(cache.get_or_compute("h:1", unused, wait=20)) for _ in range(200)]
            await asyncio.sleep(0.5)
            before = cache.statistics().requests
            await asyncio.sleep(1)
            # One of them asks ten times a second, or is held.
            assert cache.statistics().requests - before < 30
            await asyncio.get_running_loop().run_in_executor(None, other.deliver, token, "v")
            began = time.monotonic()
            assert set(await asyncio.gather(*calls)) == {"v"}
            assert time.monotonic() - began < 10
            assert cache.statistics().connections <= 2

    asyncio.run(work())


def test_a_task_that_is_cancelled_while_it_computes_frees_the_key(server):
    async def work():
        async with AsyncCache(server.address, timeout=20) as cache, AsyncCache(server.address, timeout=20) as other:
            for call in (
                lambda: cache.get_or_compute("h:1", lambda: asyncio.sleep(60), compute_time=60),
                lambda: cache.get_or_compute_many(["h:1", "h:2"], lambda keys: asyncio.sleep(60), compute_time=60),
            ):
                task = asyncio.ensure_future(call())
                await asyncio.sleep(0.2)
                began = time.monotonic()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - began < 5, "a cancelled task does not wait for the server"
                got = await other.fetch_or_compute("h:1", wait=10)
                assert isinstance(got, Compute)
                await other.give_up(got.token)
            assert cache.under_way() == 0

    asyncio.run(work())


def test_tasks_that_are_cancelled_at_any_time_leave_nothing_locked(server):
    random.seed(7)

    async def work():
        async with AsyncCache(server.address, timeout=20) as cache, AsyncCache(server.address, timeout=20) as other:
            await cache.get("connect")
            for number in range(60):
                key = f"h:{number}"
                calls = {
                    0: lambda: cache.get_or_compute(key, lambda: asyncio.sleep(0.001, 1), compute_time=60),
                    1: lambda: cache.get_or_compute_many([key, "h:x"], lambda keys: keys, compute_time=60),
                    2: lambda: cache.fetch_or_compute(key, compute_timeout=60),
                }
                tasks = [asyncio.ensure_future(calls[(number + turn) % 3]()) for turn in range(3)]
                await asyncio.sleep(random.random() * 0.003)
                for task in tasks:
                    task.cancel()
                got = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(not isinstance(one, Exception) or isinstance(one, asyncio.CancelledError) for one in got), (
                    got
                )
                # A token of a call that was over is dropped here.
                del tasks, task, got
                gc.collect()
                await asyncio.wait_for(other.get_or_compute(key, lambda: 1, wait=30), 5)
            await asyncio.sleep(0.1)
            assert cache.under_way() == 0

    asyncio.run(work())


def test_a_cancelled_request_takes_no_other_answer(memcached):
    async def work():
        async with AsyncCache(memcached.address, timeout=20, serializer="text") as cache:
            for number in range(50):
                await cache.set(f"k:{number}", f"value {number}")
            for turn in range(100):
                tasks = [asyncio.ensure_future(cache.get(f"k:{number}")) for number in range(50)]
                await asyncio.sleep(0)
                for task in tasks[turn % 7 :: 7]:
                    task.cancel()
                got = await asyncio.gather(*tasks, return_exceptions=True)
                for number, value in enumerate(got):
                    assert isinstance(value, asyncio.CancelledError) or value == f"value {number}"

    asyncio.run(work())


def test_what_was_asked_for_before_a_connection_was_there_is_sent_first(memcached):
    random.seed(7)

    async def work():
        async with AsyncCache(memcached.address, timeout=20) as cache, AsyncCache(memcached.address, timeout=20) as other:
            for number in range(300):
                await cache.close()
                key = f"k:{number}"
                calls = [lambda: cache.set(key, "old"), lambda: cache.set_many({key: "old", "k:x": "old"})]
                task = asyncio.ensure_future(calls[number % 2]())
                end = time.monotonic() + random.random() * 0.002
                while time.monotonic() < end:
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await cache.delete(key)
                await asyncio.sleep(0.002)
                assert await other.get(key) is None, "a set that was cancelled came after a later delete"

    asyncio.run(work())


def test_functions_that_fail_in_cancelled_tasks_are_heard_of_by_nobody(server):
    async def work():
        logged = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        async with AsyncCache(server.address, timeout=20) as cache:
            await cache.get("connect")

            async def fails():
                raise ValueError("no such user")

            for number in range(200):
                task = asyncio.ensure_future(cache.get_or_compute(f"h:{number}", fails, compute_time=60))
                for _ in range(number % 10):
                    await asyncio.sleep(0)
                await asyncio.sleep(random.random() * 0.001)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.1)
            del task
            gc.collect()
            await asyncio.sleep(0)
            assert not logged
            assert cache.under_way() == 0

    asyncio.run(work())


def test_waiting_tasks_that_are_cancelled_hand_the_watch_over(server, blocking):
    other = blocking(server)
    token = other.fetch_or_compute("h:1", compute_timeout=20).token

    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:
            calls = [asyncio.ensure_future(cache.get_or_compute("h:1", unused, wait=20)) for _ in range(20)]
            await asyncio.sleep(0.4)
            for call in calls[:10]:
                call.cancel()
            await asyncio.sleep(0.1)
            await asyncio.get_running_loop().run_in_executor(None, other.deliver, token, "v")
            got = await asyncio.wait_for(asyncio.gather(*calls[10:]), 5)
            assert set(got) == {"v"}
            assert cache.under_way() == 0

    asyncio.run(work())


def test_the_end_of_a_loop_frees_the_key(server, blocking):
    """``asyncio.run`` cancels what is left."""

    async def work():
        cache = AsyncCache(server.address, timeout=20)
        task = asyncio.ensure_future(cache.get_or_compute("h:1", lambda: asyncio.sleep(60), compute_time=60))
        await asyncio.sleep(0.3)
        assert not task.done()

    asyncio.run(work())
    began = time.monotonic()
    assert blocking(server).get_or_compute("h:1", lambda: 1, wait=20) == 1
    assert time.monotonic() - began < 15


def test_a_cache_is_used_by_one_loop_after_the_other(server):
    cache = AsyncCache(server.address, timeout=20)

    async def work(number):
        assert await cache.get_or_compute(f"h:{number}", lambda: number) == number
        assert await cache.get_or_compute("h:0", unused) == 0

    for number in range(3):
        asyncio.run(work(number))


def test_plain_functions_and_coroutines_compute(server):
    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:
            assert await cache.get_or_compute("h:1", lambda: 1) == 1

            async def two():
                return 2

            assert await cache.get_or_compute("h:2", two) == 2
            assert await cache.get_or_compute_many(["h:1", "h:2", "h:3"], lambda keys: [3]) == {
                "h:1": 1,
                "h:2": 2,
                "h:3": 3,
            }
            token = (await cache.fetch_or_compute("h:4")).token
            assert await cache.get_or_compute("h:4", unused, wait=lambda: asyncio.sleep(0, "mine")) == "mine"
            await cache.give_up(token)

    asyncio.run(work())


def test_a_timeout_of_the_program_is_a_cancellation(server):
    async def work():
        async with AsyncCache(server.address, timeout=20) as cache:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(cache.get_or_compute("h:1", lambda: asyncio.sleep(60), compute_time=60), 0.2)
            began = time.monotonic()
            assert await cache.get_or_compute("h:1", lambda: 1, wait=20) == 1
            assert time.monotonic() - began < 15

    asyncio.run(work())


def test_more_callers_wait_than_there_are_connections(ruled, blocking):
    other = blocking(ruled)
    tokens = [other.fetch_or_compute(f"h:{n}", compute_timeout=20).token for n in range(12)]

    async def work():
        async with AsyncCache(ruled.address, timeout=20, waiting_connections=3) as cache:
            calls = [asyncio.ensure_future(cache.get_or_compute(f"h:{n}", unused, wait=20)) for n in range(12)]
            await asyncio.sleep(0.6)
            assert cache.statistics().connections <= 4

            def deliver():
                for n, token in enumerate(tokens):
                    other.deliver(token, n)

            await asyncio.get_running_loop().run_in_executor(None, deliver)
            assert await asyncio.gather(*calls) == list(range(12))

    asyncio.run(work())


def test_a_stalled_server_times_out_for_all_tasks(memcached):
    async def work():
        with Relay(memcached.port) as relay:
            async with AsyncCache(relay.address, timeout=0.4) as cache:
                await cache.set("k", 1)
                relay.is_deaf = True
                began = time.monotonic()
                got = await asyncio.gather(*(cache.get("k") for _ in range(50)), return_exceptions=True)
                assert {type(one) for one in got} == {TimedOut}
                assert time.monotonic() - began < 10, "one after the other it is 20 s"
                relay.is_deaf = False
                await asyncio.sleep(0.1)
                assert await cache.get("k") == 1

    asyncio.run(work())


def test_threads_share_a_cache(server, blocking):
    cache = blocking(server)
    count, failures = [], []
    stop = time.monotonic() + 2

    def work(number):
        mine = random.Random(number)
        while time.monotonic() < stop:
            key = f"h:{mine.randrange(20)}"
            what = mine.randrange(6)
            try:
                if what == 0:
                    cache.delete(key)
                elif what == 1:
                    many = cache.get_or_compute_many(
                        [key, "h:1", "h:2"], lambda keys: {k: f"v {k}" for k in keys}, wait=5
                    )
                    assert all(value == f"v {name}" for name, value in many.items())
                else:

                    def compute():
                        count.append(key)
                        time.sleep(0.002)
                        return f"v {key}"

                    assert cache.get_or_compute(key, compute, wait=5) == f"v {key}"
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert count
    assert cache.under_way() == 0


def test_threads_of_one_process_compute_once_and_one_watches(server, blocking):
    cache, count = blocking(server), []

    def compute():
        count.append(1)
        time.sleep(1)
        return "v"

    calls = [Call(cache.get_or_compute, "h:1", compute, compute_time=10) for _ in range(64)]
    assert {call.result() for call in calls} == {"v"}
    assert len(count) == 1
    # Each asks once, some write a lock without success; then a single one asks ten times a second.
    assert cache.statistics().requests < 64 * 5
    longest = max(call.took for call in calls)
    assert longest < 3, longest


def test_a_delete_makes_the_computation_of_this_process_void(server, blocking):
    """Those that come after it do not get its value."""
    cache, go = blocking(server), threading.Event()
    first = Call(cache.get_or_compute, "h:1", lambda: go.wait(20) and "before", compute_time=20)
    until(lambda: cache.under_way() == 1)
    time.sleep(0.1)
    cache.delete("h:1")
    assert cache.get_or_compute("h:1", lambda: "after", wait=20) == "after"
    go.set()
    assert first.result() == "before"
    assert cache.get("h:1") == "after"


def test_who_comes_after_a_soft_invalidation_gets_nothing_older(blocking):
    """The older computation still runs in the caller's process, and its value is stored: as an old one. Without grace it is none."""
    with Server("rules", '[[rule]]\nmatch = "h:{id}"\nhold = "4s"\n') as server:
        gets_nothing_older(blocking(server), blocking(server))


def gets_nothing_older(cache, other):
    go, on = threading.Event(), threading.Event()
    options = {"tags": ["t"], "compute_time": 20, "wait": 20}
    first = Call(cache.get_or_compute, "h:1", lambda: go.wait(20) and "old", **options)
    until(lambda: cache.under_way() == 1)
    time.sleep(0.1)
    other.invalidate("t", soft=True)
    second = Call(other.get_or_compute, "h:1", lambda: on.wait(20) and "new", **options)
    until(lambda: other.under_way() == 1)
    time.sleep(0.1)
    others = [Call(cache.get_or_compute, "h:1", lambda: "new", **options) for _ in range(5)]
    time.sleep(0.2)
    go.set()
    assert first.result() == "old"
    time.sleep(0.2)
    on.set()
    assert [call.result() for call in (second, *others)] == ["new"] * 6
    until(lambda: cache.under_way() == 0)


def test_deletes_and_computations_in_turn_never_serve_what_is_older_than_a_delete(server, blocking):
    """A version is raised, and then the key deleted: from then on each caller gets that version or a later one."""
    caches = [blocking(server) for _ in range(2)]
    version, failures = [0], []
    stop = time.monotonic() + 3

    def reader(cache):
        while time.monotonic() < stop:
            floor = version[1] if len(version) > 1 else 0

            def compute():
                seen = version[0]
                time.sleep(0.003)
                return seen

            got = cache.get_or_compute("h:1", compute, compute_time=10, wait=10)
            if got < floor:
                failures.append((got, floor))
                return

    def writer(cache):
        while time.monotonic() < stop:
            version[0] += 1
            now = version[0]
            cache.delete("h:1")
            version[1:] = [now]
            time.sleep(0.004)

    threads = [threading.Thread(target=reader, args=(caches[n % 2],)) for n in range(6)]
    threads.append(threading.Thread(target=writer, args=(caches[0],)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert version[0] > 20


def test_a_closed_cache_connects_again(server, caches):
    cache = caches(server)
    cache.set("k", 1)
    cache.close()
    assert cache.get("k") == 1


def test_errors_name_the_server(caches):
    cache = caches("127.0.0.1:1", timeout=1, connect_timeout=1)
    with pytest.raises(CacheError, match=r"127\.0\.0\.1:1"):
        cache.get("k")
