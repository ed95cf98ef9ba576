"""One AsyncCache in several event loops: at the same time, one after the other, and in loops that end in mid-call."""

import asyncio
import gc
import os
import socket
import threading
import time
import weakref

import pytest
from herd_support import Call, Server, until, unused

from cattlegrid.client import AsyncCache, Compute
from cattlegrid.client._errors import TimedOut
from cattlegrid.client._streams import Stream
from cattlegrid.client._tasks import LoopEvent
from cattlegrid.client._wire import PROBE, Command


def cache_of(server, **settings):
    return AsyncCache(server.address, **{"timeout": 20, "connect_timeout": 20, **settings})


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_two_loops_at_the_same_time(server):
    cache = cache_of(server)
    count = []

    async def work(number):
        end = time.monotonic() + 2
        calls = 0
        while time.monotonic() < end:
            key = f"h:{calls % 20}"

            async def compute():
                count.append(1)
                await asyncio.sleep(0.001)
                return "v"

            got = await asyncio.wait_for(cache.get_or_compute(key, compute, ttl=60, compute_time=10, wait=10), 15)
            assert got == "v"
            assert await asyncio.wait_for(cache.get(f"own:{number}", 0), 15) <= calls
            await asyncio.wait_for(cache.set(f"own:{number}", calls), 15)
            if calls % 50 == 0:
                await cache.delete(key)
            calls += 1
        await cache.close()
        return calls

    calls = [Call(asyncio.run, work(number)) for number in range(3)]
    assert min(call.result() for call in calls) > 20
    assert len(count) >= 20
    assert cache.under_way() == 0


def test_loops_wait_for_each_others_values(server):
    """A loop that waits goes on while another uses the cache, and neither takes the other's connections."""
    cache, begun = cache_of(server), threading.Event()

    async def slow():
        begun.set()
        await asyncio.sleep(1)
        return "v"

    async def first():
        await cache.set("k", 1)
        got = await cache.get_or_compute("h:1", slow, ttl=60, compute_time=20, outcome=True)
        assert await cache.get("k") == 1
        return got.kind, got.value

    async def second():
        assert await cache.get("k") == 1
        began = time.monotonic()
        got = await cache.get_or_compute("h:1", unused, ttl=60, compute_time=20, outcome=True)
        assert time.monotonic() - began < 10
        return got.kind, got.value

    computes = Call(asyncio.run, first())
    assert begun.wait(20)
    waits = Call(asyncio.run, second())
    assert computes.result() == ("computed", "v")
    assert waits.result() == ("hit", "v")


def test_a_loop_that_rests_in_mid_computation_keeps_no_other_waiting_for_it(server):
    """Its computation can go on only when the loop does: another loop computes when compute_time is over."""
    cache = cache_of(server)
    loop = asyncio.new_event_loop()

    async def never():
        await asyncio.sleep(60)

    async def start():
        loop.create_task(cache.get_or_compute("h:rests", never, compute_time=1))
        await asyncio.sleep(0.3)

    loop.run_until_complete(start())

    async def other():
        began = time.monotonic()
        got = await cache.get_or_compute("h:rests", lambda: "other", compute_time=1, wait=20)
        assert time.monotonic() - began < 15
        await cache.close()
        return got

    assert asyncio.run(other()) == "other"
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()


def test_many_loops_one_after_the_other_keep_nothing(server):
    cache = cache_of(server)
    loops = []

    async def work(number):
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await cache.set("k", number)
        assert await cache.get("k") == number
        assert await cache.get_or_compute(f"h:{number % 5}", lambda: "v", ttl=60) == "v"

    for number in range(5):
        asyncio.run(work(number))
    gc.collect()
    before = descriptors()
    for number in range(60):
        asyncio.run(work(number))
    gc.collect()
    assert descriptors() <= before + 4
    # That of the last is kept until another begins.
    assert sum(loop() is not None for loop in loops) <= 2
    assert len(cache._servers._homes) <= 2


def test_many_loops_that_close_the_cache(server):
    cache = cache_of(server)

    async def work():
        async with cache:
            await cache.set("k", 1)
            return await cache.get("k")

    assert asyncio.run(work()) == 1
    gc.collect()
    before = descriptors()
    for _ in range(30):
        assert asyncio.run(work()) == 1
        assert not cache._servers._homes
    gc.collect()
    assert descriptors() <= before


def test_a_token_of_another_loop(server):
    """Taken in one loop, delivered in another, while callers of both wait."""
    cache = cache_of(server)
    tokens, go = [], threading.Event()

    async def take():
        got = await cache.fetch_or_compute("h:token", compute_timeout=30)
        assert isinstance(got, Compute)
        tokens.append(got.token)
        waits = asyncio.ensure_future(cache.fetch_or_compute("h:token", compute_timeout=30))
        await asyncio.sleep(0.3)
        go.set()
        return (await asyncio.wait_for(waits, 20)).value

    async def deliver():
        waits = asyncio.ensure_future(cache.fetch_or_compute("h:token", compute_timeout=30))
        await asyncio.sleep(0.3)
        assert await cache.deliver(tokens[0], "v") is None
        return (await asyncio.wait_for(waits, 20)).value

    first = Call(asyncio.run, take())
    assert go.wait(20)
    assert asyncio.run(deliver()) == "v"
    assert first.result() == "v"
    assert cache.under_way() == 0


def test_a_loop_that_is_closed_with_callers_in_it(server, recwarn):
    cache = cache_of(server)

    def abandon():
        loop = asyncio.new_event_loop()

        async def start():
            for _ in range(3):
                loop.create_task(cache.get_or_compute("h:gone", lambda: asyncio.sleep(60), compute_time=1))
                await asyncio.sleep(0.1)

        loop.run_until_complete(start())
        loop.set_exception_handler(lambda *_: None)
        loop.close()

    abandon()
    gc.collect()

    async def other():
        began = time.monotonic()
        assert await cache.get_or_compute("h:gone", lambda: "v", compute_time=1, wait=20) == "v"
        assert time.monotonic() - began < 15
        assert cache.under_way() == 0

    asyncio.run(other())


def test_a_dropped_task_goes_quietly(memcached, capfd):
    """Python tells a task whose loop is gone to end: nothing is sent then, and nothing is said of the client."""
    cache = cache_of(memcached)
    for turn in range(6):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)

        async def start(key=f"k:{turn}"):
            for _ in range(2):
                asyncio.ensure_future(cache.get_or_compute(key, lambda: asyncio.sleep(60), compute_time=1))
                await asyncio.sleep(0.001 * turn)

        loop.run_until_complete(start())
        loop.close()
        del loop, start
        gc.collect()
    assert "cattlegrid" not in capfd.readouterr().err


def test_a_function_that_raises_what_ends_generators_frees_the_key(server, blocking):
    cache = blocking(server)
    for key, kind in [("h:1", GeneratorExit), ("h:2", StopIteration)]:

        def fail(*_, kind=kind):
            raise kind

        for call in (
            lambda key=key, fail=fail: cache.get_or_compute(key, fail, compute_time=20),
            lambda key=key, fail=fail: cache.get_or_compute_many([key], fail, compute_time=20),
        ):
            with pytest.raises(RuntimeError, match=kind.__name__):
                call()
            began = time.monotonic()
            assert cache.get_or_compute(key, lambda: "v", compute_time=20) == "v"
            assert time.monotonic() - began < 15
            cache.delete(key)


def test_a_coroutine_that_raises_generator_exit_frees_the_key(server):
    async def work():
        async with cache_of(server) as cache:

            async def fail():
                await asyncio.sleep(0)
                raise GeneratorExit

            def plain():
                raise GeneratorExit

            def stop():
                raise StopIteration

            for function in (fail, plain, stop):
                with pytest.raises(RuntimeError, match="GeneratorExit|StopIteration"):
                    await cache.get_or_compute("h:1", function, compute_time=20)
                began = time.monotonic()
                assert await cache.get_or_compute("h:1", lambda: "v", compute_time=20) == "v"
                assert time.monotonic() - began < 15
                await cache.delete("h:1")

    asyncio.run(work())


def test_an_event_wakes_a_task_of_another_loop():
    event, waits = LoopEvent(), threading.Event()

    async def wait():
        waits.set()
        began = time.monotonic()
        await event.wait(20)
        return time.monotonic() - began

    call = Call(asyncio.run, wait())
    assert waits.wait(20)
    time.sleep(0.2)
    event.set()
    assert call.result() < 10
    # Its loop has ended.
    event.set()


class PlainTransport:
    """As one of uvloop: its socket has a number, and cannot be closed."""

    class Socket:
        def __init__(self, number):
            self.fileno = lambda: number

        def close(self):
            raise TypeError("transport sockets do not support close() method")

    def __init__(self, sock, is_closing=False):
        self._socket = self.Socket(sock.fileno())
        self.is_closing = lambda: is_closing

    def get_extra_info(self, name):
        return self._socket


@pytest.mark.parametrize(("is_child", "is_closing", "ends"), [(True, False, True), (True, True, False), (False, False, False)])
def test_connections_of_loops_whose_sockets_cannot_be_closed(is_child, is_closing, ends):
    own, peer = socket.socketpair()
    with own, peer:
        stream = Stream("s:1", 1.0, True, None)
        stream._transport = PlainTransport(own, is_closing)
        stream.drop(is_child)
        assert not stream.is_open
        os.fstat(own.fileno())
        peer.settimeout(0.2)
        if ends:
            assert peer.recv(1) == b""
        else:
            with pytest.raises(socket.timeout):
                peer.recv(1)


class SteppedLoop:
    """A loop whose clock is stepped, and whose timers are run by hand."""

    def __init__(self):
        self.now = 0.0
        self.timers = []
        self.create_future = asyncio.new_event_loop().create_future

    def time(self):
        return self.now

    def call_at(self, when, function, *arguments):
        self.timers.append((when, function, arguments))
        return self

    def call_later(self, delay, function, *arguments):
        return self.call_at(self.now + delay, function, *arguments)

    def cancel(self):
        self.timers.clear()

    def run_timer(self):
        _, function, arguments = self.timers.pop()
        function(*arguments)


class SlowTransport:
    """It takes five seconds to write."""

    def __init__(self, loop):
        self._loop = loop

    def get_extra_info(self, name):
        return None

    def write(self, data):
        self._loop.now += 5

    def abort(self):
        pass


@pytest.mark.parametrize("has_come", [True, False])
def test_the_time_of_a_reply_is_the_servers_alone(has_come):
    """It begins when the commands are written, and what has come is read before it is over, whatever else the loop had to do."""
    loop = SteppedLoop()
    stream = Stream("server", 1.0, True, loop)
    stream.connection_made(SlowTransport(loop))
    group = stream.send([Command(PROBE, b"")])
    assert [when for when, _, _ in loop.timers] == [6.0]
    loop.now = 60.0
    loop.run_timer()
    assert not group.future.done() and [when for when, _, _ in loop.timers] == [60.0]
    if has_come:
        stream.data_received(b"MN\r\n")
    loop.run_timer()
    reply = group.future.result()[0]
    assert reply.kind == "MN" if has_come else isinstance(reply, TimedOut)


def test_a_fork_in_a_loop(server):
    async def work():
        async with cache_of(server) as cache:
            await cache.set("k", 1)
            child = os.fork()
            if not child:
                os._exit(0 if len(cache._servers._homes) == 0 and cache.under_way() == 0 else 1)
            _, status = os.waitpid(child, 0)
            assert status == 0
            assert await cache.get("k") == 1

    asyncio.run(work())


def test_the_server_is_left_with_no_connections():
    with Server("plain") as server:
        before = server.statistic("", "curr_connections")
        cache = cache_of(server)
        for _ in range(20):
            asyncio.run(cache.set("k", 1))
        asyncio.run(cache.close())
        until(lambda: server.statistic("", "curr_connections") <= before)
