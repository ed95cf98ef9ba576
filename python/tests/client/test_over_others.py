"""Over other libraries' clients: pymemcache, pylibmc, python-memcached, Django's cache, emcache."""

import asyncio
import time

import pytest
from herd_support import Call, Held, unused

from cattlegrid.client import AsyncCache, Busy, Cache, Compute, Error, NoTags, ServerBusy, UsageError

pymemcache = pytest.importorskip("pymemcache")


def django_cache(port, backend, **options):
    pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django.core.cache.backends import memcached

    return getattr(memcached, backend)(f"127.0.0.1:{port}", {"OPTIONS": options, "KEY_PREFIX": "site", "VERSION": 3})


def pylibmc_client(port):
    return pytest.importorskip("pylibmc").Client([f"127.0.0.1:{port}"], behaviors={"cas": True})


def hash_client(port, **options):
    from pymemcache.client.hash import HashClient

    return HashClient([("127.0.0.1", port)], **options)


CLIENTS = {
    "Client": lambda port: pymemcache.Client(("127.0.0.1", port)),
    "Client with pickle": lambda port: pymemcache.Client(
        ("127.0.0.1", port), serde=pymemcache.serde.pickle_serde, key_prefix=b"p:"
    ),
    "PooledClient": lambda port: pymemcache.PooledClient(("127.0.0.1", port)),
    "HashClient": hash_client,
    "HashClient with pools": lambda port: hash_client(port, use_pooling=True),
    "pylibmc": pylibmc_client,
    "python-memcached": lambda port: pytest.importorskip("memcache").Client([f"127.0.0.1:{port}"]),
    "Django, pymemcache": lambda port: django_cache(port, "PyMemcacheCache"),
    "Django, pylibmc": lambda port: django_cache(port, "PyLibMCCache", behaviors={"cas": True}),
}


@pytest.fixture(params=CLIENTS)
def make(request, memcached):
    return lambda: CLIENTS[request.param](memcached.port)


def test_reads_and_writes(make):
    cache = Cache(make(), compress_above=100)
    text = "x" * 1000
    assert cache.set("a", {"x": 1}, "60s")
    assert (cache.get("a"), cache.get("b", 7), cache.get("b")) == ({"x": 1}, 7, None)
    assert (cache.add("a", 1), cache.add("new", 1), cache.replace("gone", 1)) == (False, True, False)
    assert (cache.delete("a"), cache.delete("a")) == (True, False)
    assert cache.incr("n") is None
    assert cache.set("n", 5)
    assert (cache.incr("n", 3), cache.decr("n"), cache.get("n")) == (8, 7, 7)
    for value in (b"\xc7\x10\0\0\0\0z", b"", text, [1, None], "ä"):
        assert cache.set("v", value)
        assert cache.get("v") == value
    assert (cache.touch("n", 60), cache.touch("gone", 60)) == (True, False)
    number = cache.gets("n")[1]
    assert cache.cas("n", 9, number) is True
    assert cache.cas("n", 8, number) is False
    assert cache.get("n") == 9
    assert cache.set_many({"m1": 1, "m2": [2]}) == []
    assert cache.get_many(["m1", "m2", "m3"]) == {"m1": 1, "m2": [2]}
    assert cache.delete_many(["m1", "m3"]) == {"m1": True, "m3": False}
    cache.set("past", 1, -1)
    assert cache.get("past") is None
    with pytest.raises(NoTags):
        cache.set("t", 1, tags=["x"])
    with pytest.raises(NoTags):
        cache.invalidate("x")
    assert not cache.has_tags()
    with pytest.raises(UsageError):
        cache.version()
    cache.flush_all()
    assert cache.get("n") is None


def test_one_computation(make):
    count = []

    def compute():
        count.append(1)
        time.sleep(0.3)
        return {"a": "page"}

    shared = Cache(make())
    of_their_own = [Cache(make()) for _ in range(3)]
    calls = [Call(cache.get_or_compute, "k", compute, compute_time=10) for cache in [shared] * 8 + of_their_own]
    assert all(call.result() == {"a": "page"} for call in calls)
    assert len(count) == 1
    assert shared.get_or_compute("k", unused) == shared.peek("k") == {"a": "page"}


def test_the_rules_of_turnstile(make):
    cache, other = Cache(make()), Cache(make())
    held = Held(cache, "k", "v", compute_time=10).begun()
    assert other.get_or_compute("k", unused, wait=0.1, outcome=True).kind == "busy"
    assert other.get_or_compute("k", unused, wait=lambda: "mine") == "mine"
    other.delete("k")
    assert not held.finish().stored
    assert other.get("k") is None

    def fails():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cache.get_or_compute("k", fails, compute_time=20)
    assert other.get_or_compute("k", lambda: "old", ttl=1, compute_time=5, outcome=True).stored
    time.sleep(1.1)
    held = Held(cache, "k", "new", compute_time=5).begun()
    assert other.get_or_compute("k", unused, wait=0, outcome=True).kind == "stale"
    assert held.finish().stored
    assert other.get_or_compute_many(["k", "l", ("m", 9)], lambda keys: keys) == {"k": "new", "l": "l", "m": "m"}


def test_tokens(make):
    cache, other = Cache(make()), Cache(make())
    first = cache.fetch_or_compute("k", 60, "hint")
    assert isinstance(first, Compute)
    assert other.fetch_or_compute("k", wait=0) == Busy()
    waits = Call(other.fetch_or_compute, "k")
    time.sleep(0.2)
    cache.fail(first.token, "why")
    assert waits.result() == Error("why")
    token = cache.fetch_or_compute("k").token
    assert other.deliver(other.resume(token.save()), 5) is None
    assert cache.get("k") == 5


def test_values_that_are_too_large(memcached):
    cache = Cache(pymemcache.Client(("127.0.0.1", memcached.port)), serializer="bytes")
    outcome = cache.get_or_compute("k", lambda: b"x" * (2 << 20), outcome=True)
    assert (outcome.stored, outcome.why) == (False, "too_large")
    with pytest.raises(ServerBusy):
        cache.set("k", b"x" * (2 << 20))


def test_pymemcache_and_own_connections_are_one_herd(server):
    """The flags pass, so that both read what the other has stored, and the client's own values stay as they are."""
    client = pymemcache.Client(("127.0.0.1", server.port), serde=pymemcache.serde.pickle_serde)
    over, own = Cache(client, compress_above=50), Cache(server.address, compress_above=50)
    over.get_or_compute("n:1", lambda: "x" * 100)
    own.get_or_compute("n:2", lambda: ["y" * 100])
    assert own.get_or_compute("n:1", unused) == "x" * 100
    assert over.get_or_compute("n:2", unused) == ["y" * 100]
    held = Held(over, "n:3", "slow", compute_time=10).begun()
    waits = Call(own.get_or_compute, "n:3", unused, wait=20)
    assert held.finish().stored
    assert waits.result() == "slow"
    client.set("n:own", {"pickled"})
    assert client.get("n:own") == {"pickled"}
    # Under a rule its keys are locked as over memcached.
    assert over.get_or_compute("h:1", lambda: 1, outcome=True).stored
    assert over.get_or_compute("h:1", unused) == 1


def test_errors_of_the_client(memcached):
    client = pymemcache.Client(("127.0.0.1", memcached.port), timeout=1, connect_timeout=1)
    cache = Cache(client)
    cache.set("k", 1)
    memcached.stop()
    client.close()
    with pytest.raises(ConnectionError):
        cache.get_or_compute("k", unused)
    assert cache.get_or_compute("k", lambda: 5, when_unavailable="compute") == 5


def test_what_is_no_client():
    for wrong in (5, None, object(), {"a": 1}):
        with pytest.raises(UsageError):
            Cache(wrong)
        with pytest.raises(UsageError):
            AsyncCache(wrong)
    pylibmc = pytest.importorskip("pylibmc")
    with pytest.raises(UsageError, match="cas"):
        Cache(pylibmc.Client(["127.0.0.1:1"]))


def test_asyncio_refuses_a_client_that_blocks():
    with pytest.raises(UsageError, match="blocks"):
        AsyncCache(pymemcache.Client(("127.0.0.1", 1)))


def test_emcache(memcached):
    emcache = pytest.importorskip("emcache")

    async def work():
        client = await emcache.create_client([emcache.MemcachedHostAddress("127.0.0.1", memcached.port)])
        cache, other = AsyncCache(client), AsyncCache(client)
        assert await cache.set("a", {"x": 1}, "60s")
        assert await cache.get("a") == {"x": 1}
        assert (await cache.add("a", 1), await cache.replace("gone", 1)) == (False, False)
        assert (await cache.delete("a"), await cache.delete("a")) == (True, False)
        assert await cache.incr("n") is None
        await cache.set("n", 5)
        assert (await cache.incr("n", 3), await cache.decr("n"), await cache.get("n")) == (8, 7, 7)
        assert (await cache.touch("n", 60), await cache.touch("gone", 60)) == (True, False)
        number = (await cache.gets("n"))[1]
        assert await cache.cas("n", 9, number) is True
        assert await cache.cas("n", 8, number) is False
        assert await cache.cas("gone", 8, number) is None
        count = []

        async def compute():
            count.append(1)
            await asyncio.sleep(0.2)
            return "v"

        calls = [one.get_or_compute("k", compute, compute_time=10) for one in [cache, other] * 20]
        assert set(await asyncio.gather(*calls)) == {"v"}
        assert len(count) == 1
        # Cancelled, it gives the key up.
        task = asyncio.ensure_future(cache.get_or_compute("c", lambda: asyncio.sleep(60), compute_time=60))
        await asyncio.sleep(0.1)
        task.cancel()
        assert await other.get_or_compute("c", lambda: "next", wait=10) == "next"
        assert await cache.get_or_compute_many(["k", "l"], lambda keys: keys) == {"k": "v", "l": "l"}
        assert await cache.get_many(["k", "l", "m"]) == {"k": "v", "l": "l"}
        with pytest.raises(NoTags):
            await cache.invalidate("t")
        await cache.close()
        await client.close()

    asyncio.run(work())
