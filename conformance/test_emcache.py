"""emcache (Python, asyncio): every operation, with and without autobatching."""

import asyncio
import functools
import inspect
import socket

import emcache
import emcache.protocol
import pytest

from harness import ALL_BYTES, ITEM_MAX, NASTY, PROMPT, Raw


async def eventually(what, condition, seconds=2 * PROMPT):
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)


def with_client(**options):
    """Runs an async test with a client that is closed afterwards."""

    def wrap(test):
        @functools.wraps(test)
        def run(server, key):
            async def main():
                host = emcache.MemcachedHostAddress("127.0.0.1", server.port)
                client = await emcache.create_client([host], timeout=60.0, max_connections=4, **options)
                try:
                    await test(client, key.encode(), host)
                finally:
                    await client.close()

            asyncio.run(main())

        run.__signature__ = inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("server", "key")]
        )
        return run

    return wrap


async def refused(call):
    with pytest.raises((emcache.NotStoredStorageCommandError, emcache.StorageCommandError)):
        await call


@with_client()
async def test_storage_commands(c, key, _):
    assert await c.get(key) is None
    await refused(c.replace(key, b"x"))
    await refused(c.append(key, b"x"))
    await refused(c.prepend(key, b"x"))
    await c.add(key, b"b", flags=3)
    await refused(c.add(key, b"x"))
    await c.append(key, b"c")
    await c.prepend(key, b"a")
    item = await c.get(key, return_flags=True)
    assert (item.value, item.flags, item.cas) == (b"abc", 3, None)
    await c.replace(key, b"new")
    assert (await c.get(key)).value == b"new"
    await c.set(key, NASTY, flags=2**16 - 1)
    item = await c.gets(key, return_flags=True)
    assert item.value == NASTY and item.flags == 2**16 - 1 and item.cas > 0
    await c.delete(key)
    assert await c.get(key) is None
    with pytest.raises(emcache.NotFoundCommandError):
        await c.delete(key)


@with_client()
async def test_sizes(c, key, _):
    for size in (0, 1, 100, 65536, ITEM_MAX - 4096):
        value = (ALL_BYTES * (size // 256 + 1))[:size]
        await c.set(key, value)
        assert (await c.get(key)).value == value
    with pytest.raises(emcache.StorageCommandError):
        await c.set(key, b"x" * (ITEM_MAX + 1))
    assert await c.get(key) is None
    await c.set(key, b"new")
    assert (await c.get(key)).value == b"new"


@with_client()
async def test_cas(c, key, _):
    await c.set(key, b"one")
    token = (await c.gets(key)).cas
    await c.cas(key, b"two", token)
    await refused(c.cas(key, b"three", token))
    assert (await c.get(key)).value == b"two"


@with_client()
async def test_counters(c, key, _):
    with pytest.raises(emcache.NotFoundCommandError):
        await c.increment(key, 1)
    with pytest.raises(emcache.NotFoundCommandError):
        await c.decrement(key, 1)
    await c.set(key, b"10")
    assert await c.increment(key, 5) == 15
    assert await c.decrement(key, 16) == 0
    await c.increment(key, 7, noreply=True)
    await eventually("incremented", lambda: is_value(c, key, b"7 "))
    await c.decrement(key, 2, noreply=True)
    await eventually("decremented", lambda: is_value(c, key, b"5 "))
    await c.set(key, b"text")
    with pytest.raises(ValueError, match="CLIENT_ERROR cannot increment or decrement non-numeric value"):
        await c.increment(key, 1)


async def is_value(c, key, value):
    item = await c.get(key)
    return (item and item.value) == value


@with_client()
async def test_touch_gat_and_expiry(c, key, host):
    names = [key + b"-%d" % i for i in range(5)]
    for k in names:
        await c.set(k, k, exptime=1 if k is names[0] else 100)
    await c.touch(names[1], 1000)
    assert (await c.gat(1000, names[2])).value == names[2]
    assert (await c.gats(1000, names[3], return_flags=True)).cas > 0
    with Raw(socket.create_connection((host.address, host.port), 2 * PROMPT)) as raw:
        assert all(100 < raw.ttl(k) <= 1000 for k in names[1:4])
    await c.touch(names[4], -1)
    assert await c.get(names[4]) is None
    with pytest.raises(emcache.NotFoundCommandError):
        await c.touch(key + b"-absent", 1)
    await eventually("0 expires", lambda: is_value(c, names[0], None))
    for k in names[1:4]:
        assert (await c.get(k)).value == k
    got = await c.gat_many(100, names)
    assert {k: i.value for k, i in got.items()} == {k: k for k in names[1:4]}
    got = await c.gats_many(-1, names)
    assert {k: i.value for k, i in got.items()} == {k: k for k in names[1:4]}
    assert await c.get_many(names) == {}


@with_client()
async def test_many(c, key, _):
    values = {key + b"-%d" % i: b"%d\r\n" % i * (i % 50) for i in range(1000)}
    await asyncio.gather(*(c.set(k, v) for k, v in values.items()))
    assert {k: i.value for k, i in (await c.get_many(list(values))).items()} == values
    got = await c.gets_many(list(values), return_flags=True)
    assert {k: i.value for k, i in got.items()} == values and all(i.cas and i.flags == 0 for i in got.values())
    assert await c.get_many([]) == {}


@with_client(autobatching=True)
async def test_autobatching(c, key, _):
    values = {key + b"-%d" % i: b"%d" % i for i in range(500)}
    await asyncio.gather(*(c.set(k, v) for k, v in values.items()))
    got = await asyncio.gather(*(c.get(k) for k in values), c.get(key + b"-absent"))
    assert [g and g.value for g in got] == [*values.values(), None]
    for k in list(values)[:5]:  # one at a time: this client loses its way in a batch of several with CAS
        item = await c.gets(k, return_flags=True)
        assert item.value == values[k] and item.cas > 0


@with_client(min_connections=1)
async def test_noreply(c, key, _):
    await c.set(key, b"b", noreply=True)
    await eventually("set", lambda: is_value(c, key, b"b"))
    await c.append(key, b"c", noreply=True)
    await eventually("append", lambda: is_value(c, key, b"bc"))
    await c.prepend(key, b"a", noreply=True)
    await eventually("prepend", lambda: is_value(c, key, b"abc"))
    await c.replace(key, b"r", noreply=True)
    await eventually("replace", lambda: is_value(c, key, b"r"))
    await c.cas(key, b"s", (await c.gets(key)).cas, noreply=True)
    await eventually("cas", lambda: is_value(c, key, b"s"))
    await c.touch(key, 100, noreply=True)
    await c.delete(key, noreply=True)
    await eventually("delete", lambda: is_value(c, key, None))
    await c.add(key, b"n", noreply=True)
    await eventually("add", lambda: is_value(c, key, b"n"))


@with_client()
async def test_administration(c, key, host):
    assert len((await c.version(host)).split(".")) >= 3
    stats = await c.stats(host)
    assert int(stats["curr_connections"]) >= 1 and len(stats) > 80
    assert (await c.stats(host, "settings"))["item_size_max"] == str(ITEM_MAX)
    await c.verbosity(host, 1)
    await c.verbosity(host, 0, noreply=True)
    await c.cache_memlimit(host, 64)
    await c.cache_memlimit(host, 64, noreply=True)
    await c.set(key, b"v")
    await c.flush_all(host)
    assert await c.get(key) is None
    await c.set(key, b"v")
    await c.flush_all(host, noreply=True)
    await eventually("flushed", lambda: is_value(c, key, None))
    await c.set(key, b"v")
    await c.flush_all(host, 1000)
    assert (await c.get(key)).value == b"v"


def test_connection_loss(start, key):
    server = start()

    async def main():
        host = emcache.MemcachedHostAddress("127.0.0.1", server.port)
        c = await emcache.create_client([host], timeout=5.0)
        await c.set(b"a", b"v")
        server.command[server.command.index("-p") + 1] = str(server.port)
        server.kill()
        with pytest.raises((asyncio.TimeoutError, ConnectionError, asyncio.CancelledError, emcache.CommandError)):
            await c.get(b"a")
        server.start()
        async with asyncio.timeout(60):
            while True:
                try:
                    await c.set(b"a", b"back")
                    break
                except (asyncio.TimeoutError, ConnectionError, emcache.CommandError):
                    await asyncio.sleep(0.05)
        assert (await c.get(b"a")).value == b"back"
        await c.close()

    asyncio.run(main())


def test_authentication(start, open_dir):
    with open(open_dir + "/users", "w") as f:
        f.write("alice:secret\n")
    server = start("-Y", open_dir + "/users")

    async def main():
        host = emcache.MemcachedHostAddress("127.0.0.1", server.port)
        c = await emcache.create_client([host], timeout=20.0, username="alice", password="secret")
        await c.set(b"a", b"v")
        assert (await c.get(b"a")).value == b"v"
        await c.close()
        bad = await emcache.protocol.create_protocol(host, False, False, None, None, None, timeout=20)
        with pytest.raises(emcache.protocol.AuthenticationError):
            await bad.auth("alice", "wrong")

    asyncio.run(main())
