"""Quotas, locks, limits and calls, over Cattlegrid and over servers without objects."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from features_kit import started

from cattlegrid.client import (
    Cache,
    Call,
    LockHeld,
    LockLost,
    NoObjects,
    RateLimited,
    Refused,
    ServerFailure,
    UsageError,
)


@pytest.fixture
def cache(ruled):
    with Cache(ruled.address) as cache:
        yield cache


def test_a_quota_is_taken_looked_at_and_reset(cache):
    quota = cache.quota("alice", 3, "hour")
    assert quota.peek() == (3, 0, 3, 0)
    assert [quota.take() for _ in range(4)] == [True, True, True, False]
    state = quota.peek()
    assert (state.limit, state.used, state.left) == (3, 3, 0) and 0 < state.resets_in <= 3600
    quota.reset()
    assert quota.take(3) and not quota.take()
    cache.quota("never_used", 3, "hour").reset()
    assert cache.quota("bob:1%", 1, "90s").take(), "the name is escaped"
    assert cache.call("quota:exists:bob%3A1%25") == b"EXISTS"


def test_threads_share_a_quota(cache):
    granted = []
    quota = cache.quota("threads", 100, 3600)

    def work():
        granted.extend(quota.take() for _ in range(40))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), sum(granted)) == (320, 100)


@pytest.mark.parametrize(
    ("limit", "window"), [(-1, "hour"), (1.5, "hour"), (True, "hour"), (1, "year"), (1, 0), (1, 1.5), (1, 400 * 86400)]
)
def test_quotas_that_cannot_be(cache, limit, window):
    with pytest.raises(UsageError):
        cache.quota("a", limit, window)
    with pytest.raises(UsageError):
        cache.quota("a", 1, "hour").take(0)


def test_a_lock_is_held_by_one(cache):
    with cache.lock("x", ttl="10s") as lock:
        assert lock.is_taken and lock.holder() == lock.owner
        first = lock.fence
        other = cache.lock("x", wait=0)
        began = time.monotonic()
        with pytest.raises(LockHeld) as held, other:
            pytest.fail("two have it")
        assert time.monotonic() - began < 8 and 0 < held.value.left <= 10
        with pytest.raises(LockHeld):
            other.acquire("200ms")
        with pytest.raises(UsageError, match="reentrant"):
            lock.acquire()
        lock.renew("20s")
    assert not lock.is_taken and lock.holder() is None
    with pytest.raises(UsageError, match="not taken"):
        lock.fence  # noqa: B018
    with other:
        assert other.fence > first, "it grows from owner to owner"


def test_a_lock_that_has_ended_is_noticed(cache):
    with pytest.raises(LockLost), cache.lock("y", ttl="100ms") as lock:
        time.sleep(0.25)
    assert not lock.is_taken
    with pytest.raises(KeyError), cache.lock("y", ttl="100ms"):
        time.sleep(0.25)
        raise KeyError("what has failed inside is what is heard of")
    lock = cache.lock("y", ttl="100ms")
    lock.acquire()
    time.sleep(0.25)
    with pytest.raises(LockLost):
        lock.renew()
    with pytest.raises(UsageError):
        lock.release()


def test_waiters_take_a_lock_one_after_the_other(cache):
    inside, most, fences = [], [], []

    def work():
        with cache.lock("z", ttl="10s", wait="20s") as lock:
            inside.append(1)
            most.append(len(inside))
            fences.append(lock.fence)
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(fences) == 8 and fences == sorted(set(fences))


def test_a_process_that_dies_keeps_a_lock_for_its_time_only(cache, ruled):
    program = f"from cattlegrid.client import Cache\nCache({ruled.address!r}).lock('dies', ttl='700ms').acquire()\n"
    program += "print('has it', flush=True)\nimport time\ntime.sleep(60)\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout.readline() == b"has it\n"
    taken = time.monotonic()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with cache.lock("dies", wait="10s"):
        assert 0.3 < time.monotonic() - taken < 9


@pytest.mark.parametrize("algorithm", ["window", "sliding"])
def test_calls_beyond_a_limit_do_not_reach_the_function(cache, algorithm):
    calls = []

    class User:
        id = f"{algorithm}:7"

    @cache.rate_limit("api:{user.id}", 3, "hour", algorithm=algorithm)
    def api(user, n=0):
        """What it does."""
        calls.append(n)
        return n

    assert [api(User(), n) for n in range(3)] == [0, 1, 2]
    with pytest.raises(RateLimited) as limited:
        api(User(), 3)
    assert calls == [0, 1, 2] and 0 < limited.value.retry_after <= 5000
    assert limited.value.key == f"api:{algorithm}%3A7" and api.__doc__ == "What it does."

    class Service:
        @cache.rate_limit("svc:{self.name}:{x}", 1, 60, algorithm=algorithm)
        def method(self, x):
            return self.name, x

        name = algorithm

    assert Service().method(1) == (algorithm, 1)
    with pytest.raises(RateLimited):
        Service().method(x=1)
    assert Service().method(2) == (algorithm, 2)


def test_limits_that_cannot_be(cache):
    for wrong in ({"algorithm": "gcra"}, {"when_unavailable": "compute"}):
        with pytest.raises(UsageError):
            cache.rate_limit("a:{x}", 1, "hour", **wrong)
    with pytest.raises(UsageError, match="month"):
        cache.rate_limit("a:{x}", 1, "month", algorithm="sliding")
    with pytest.raises(UsageError, match="names no argument"):
        cache.rate_limit("a:{y}", 1, "hour")(lambda x: x)

    with pytest.raises(UsageError, match="below classmethod"):
        cache.rate_limit("a:{x}", 1, "hour")(classmethod(lambda cls, x: x))

    async def coroutine(x):
        pass

    with pytest.raises(UsageError, match="AsyncCache"):
        cache.rate_limit("a:{x}", 1, "hour")(coroutine)


def test_a_limit_while_the_server_is_gone():
    server = started("rules")
    cache = Cache(server.address, timeout=0.5)
    strict = cache.rate_limit("a:{x}", 1, "hour")(lambda x: x)
    lenient = cache.rate_limit("b:{x}", 1, "hour", when_unavailable="allow")(lambda x: x)
    assert strict(1) == lenient(1) == 1
    with pytest.raises(RateLimited):
        lenient(1)
    server.stop()
    with pytest.raises(ServerFailure):
        strict(2)
    assert lenient(2) == 2


def test_calls(cache):
    assert cache.call("set:new:basket") == b"CREATED"
    assert cache.call(Call("set", "put", "basket", "a:b", "50%")) == b"SUCCESS"
    assert cache.call(Call("set", "count", "basket")) == b"2"
    assert cache.call("set:count:absent") is None
    with pytest.raises(Refused, match=r"quota\.take"):
        cache.call("quota:take:alice:x:1:hour")
    for wrong in ("set", "set:count", "set:count:", ":count:a", "", "a b:c:d"):
        with pytest.raises(UsageError):
            cache.call(wrong)
    assert Call("quota", "take", "2001:db8::1", 100, "hour").name == "quota:take:2001%3Adb8%3A%3A1:100:hour"
    for wrong in (None, True, b"x", [1]):
        with pytest.raises(UsageError):
            Call("set", "put", wrong)


def test_calls_of_many_objects_on_several_servers():
    running = [started("rules") for _ in range(3)]
    try:
        cache = Cache([server.address for server in running])
        keys = [f"user{n}" for n in range(30)]
        made = cache.multi_call("counter", "add", keys, 5)
        assert [(each.key, each.error) for each in made] == [(key, None) for key in keys]
        assert [each.reply for each in made] == [b"5"] * 30
        # Every call on an object goes to its server, whatever the method and arguments are.
        for key in keys:
            assert cache.call(Call("counter", "add", key, 1)) == b"6"
        assert [each.reply for each in cache.multi_call("counter", "get", keys)] == [b"6"] * 30
        (bad, good) = cache.multi_call("counter", "add", ["a b", "c"], 1)
        assert isinstance(bad.error, UsageError) and good.reply == b"1"
        (refused,) = cache.multi_call("counter", "add", ["c"], "x")
        assert isinstance(refused.error, Refused) and refused.reply is None
        assert cache.multi_call("counter", "get", []) == []
        # They are spread.
        stats = [server.ask("stats objects", b"END\r\n") for server in running]
        counts = [int(text.split("STAT counter:items ")[1].split()[0]) for text in stats]
        assert sum(counts) == 31 and min(counts) > 0
    finally:
        for server in running:
            server.stop()


@pytest.mark.parametrize("kind", ["memcached", "plain"])
def test_without_objects_there_is_a_clear_error(all_servers, kind):
    with Cache(all_servers(kind).address) as cache:
        quota, lock = cache.quota("alice", 1, "hour"), cache.lock("x", wait=0)
        api = cache.rate_limit("api:{x}", 1, "hour")(lambda x: x)
        for call in (quota.take, quota.peek, quota.reset, lock.acquire, lock.holder, lambda: api(1)):
            with pytest.raises(NoObjects, match=r"need Cattlegrid with \[objects\]"):
                call()
        lenient = cache.rate_limit("api:{x}", 1, "hour", when_unavailable="allow")(lambda x: x)
        with pytest.raises(NoObjects):
            lenient(1)
        assert cache.call("quota:take:alice:1:1:hour") is None


def test_behind_a_prefix():
    """With the prefix in `prefixes` of the server tags and objects are behind it; without, objects are a clear
    error."""
    server = started("rules", '[server]\nprefixes = ["shop:"]\n\n[objects]\n')
    try:
        shop, other = Cache(server.address, prefix="shop:"), Cache(server.address, prefix="other:")
        assert shop.quota("alice", 1, "hour").take() and not shop.quota("alice", 1, "hour").take()
        assert Cache(server.address).quota("alice", 1, "hour").take(), "another one"
        with shop.lock("x") as lock:
            assert lock.fence
        assert shop.call("counter:add:c:1") == b"1"
        with pytest.raises(NoObjects, match="prefixes"):
            other.quota("alice", 1, "hour").take()
    finally:
        server.stop()
