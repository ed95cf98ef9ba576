"""meta-memcache (Python, the meta protocol): reads, writes, CAS, counters, leases, recaching and stale policies."""

import random
import threading

import pytest
from meta_memcache import CacheClient, Key, connection_pool_factory_builder
from meta_memcache.configuration import LeasePolicy, RecachePolicy, ServerAddress, StalePolicy
from meta_memcache.errors import MemcacheError, MemcacheServerError
from meta_memcache.protocol import MA_MODE_DEC, Conflict, Miss, NotStored, RequestFlags, SetMode, Success, Value

from harness import ALL_BYTES, ITEM_MAX, NASTY, wait_until


# A reply that does not fit the client's read buffer (4 KiB by default) costs it quadratic time, so the buffer is large here.
def connect(*servers, buffer=2 << 20, **options):
    return CacheClient.cache_client_from_servers(
        servers=[ServerAddress("127.0.0.1", s.port) for s in servers],
        connection_pool_factory_fn=connection_pool_factory_builder(connection_timeout=20, recv_timeout=20, mark_down_period_s=0.2, read_buffer_size=buffer),
        **options,
    )


@pytest.fixture
def client(server):
    return connect(server)


def test_get_set_delete(client, key):
    assert client.get(key) is None
    for value in (b"bytes", "text é", 12, [1, {"a": (2,)}], 1.5, NASTY, ALL_BYTES, b"", b"\r\n"):
        assert client.set(key, value, ttl=100)
        assert client.get(key) == value
    assert client.delete(key)
    assert not client.delete(key)
    assert client.invalidate(key)
    assert client.get(key) is None


def test_set_modes(client, key):
    assert not client.set(key, b"x", ttl=0, set_mode=SetMode.REPLACE)
    assert not client.set(key, b"x", ttl=0, set_mode=SetMode.APPEND)
    assert not client.set(key, b"x", ttl=0, set_mode=SetMode.PREPEND)
    assert client.set(key, b"b", ttl=0, set_mode=SetMode.ADD)
    assert not client.set(key, b"x", ttl=0, set_mode=SetMode.ADD)
    assert client.set(key, b"c", ttl=0, set_mode=SetMode.APPEND)
    assert client.set(key, b"a", ttl=0, set_mode=SetMode.PREPEND)
    assert client.get(key) == b"abc"
    assert client.set(key, b"r", ttl=0, set_mode=SetMode.REPLACE)
    assert client.get(key) == b"r"
    assert not client.refill(key, b"x", ttl=10)
    client.delete(key)
    assert client.refill(key, b"y", ttl=10) and client.get(key) == b"y"


def incompressible(size):
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 4096, 65536, ITEM_MAX - 8192])
def test_sizes(client, key, size):
    value = incompressible(size)
    k = Key(key, disabled_compression=True)
    assert client.set(k, value, ttl=100)
    assert client.get(k) == value


def test_above_the_item_limit(client, key):
    client.set(key, b"old", ttl=0)
    with pytest.raises(MemcacheServerError):  # the client does not pass the server's words on
        client.set(key, incompressible(ITEM_MAX + 1000), ttl=0)
    assert client.get(key) is None
    assert client.set(key, b"new", ttl=0) and client.get(key) == b"new"


def test_larger_item_limit(big_server, key):
    value = incompressible(4 << 20)
    c = connect(big_server, buffer=5 << 20)
    assert c.set(key, value, ttl=0) and c.get(key) == value


def test_cas(client, key):
    assert client.get_cas(key) == (None, None)
    token = client.set_cas(key, b"one", ttl=0)
    assert client.get_cas(key) == (b"one", token)
    second = client.set_cas(key, b"two", ttl=0, cas_token=token)
    assert second and second != token
    assert not client.set(key, b"three", ttl=0, cas_token=token)
    assert client.set_cas(key, b"three", ttl=0, cas_token=token) is None
    assert not client.delete(key, cas_token=token)
    assert client.get_cas_typed(key, bytes) == (b"two", second)
    assert client.get_typed(key, bytes) == b"two"
    assert client.get_typed(key, str) is None
    assert client.delete(key, cas_token=second)


def test_multi_get(client, key):
    values = {Key(f"{key}-{i}"): f"value {i}\r\n" for i in range(1000)}
    for k, v in values.items():
        client.set(k, v, ttl=0, no_reply=True)
    absent = Key(key + "-absent")
    assert client.multi_get([absent, *values]) == {absent: None, **values}
    got = client.multi_get_cas(list(values))
    assert {k: v for k, (v, _) in got.items()} == values and len({t for _, t in got.values()}) == 1000
    assert client.multi_get(list(values), touch_ttl=100) == values


def test_no_reply(client, key):
    """The pool's connection stays in step."""
    for i in range(200):
        client.set(key, i, ttl=100, no_reply=True)
        assert client.get(key) == i
        client.delta(key, 5, no_reply=True)
        assert client.get(key) == i + 5
        client.touch(key, 50, no_reply=True)
        client.delete(key, no_reply=True)
        assert client.get(key) is None
        client.invalidate(key, no_reply=True)
        client.refill(key, "f", ttl=10, no_reply=True)
        assert client.get(key) == "f"


def test_counters(client, key):
    assert not client.delta(key, 1)
    assert client.delta_and_get(key, 1) is None
    assert client.delta_initialize(key, 1, initial_value=10, initial_ttl=100)
    assert client.delta_initialize_and_get(key, 5, initial_value=99, initial_ttl=100) == 15
    assert client.delta_and_get(key, -3, refresh_ttl=50) == 12
    assert client.delta_and_get(key, -100) == 0
    assert client.delta(key, 7)
    _, token = client.get_cas(key)
    assert client.delta_and_get(key, 1, cas_token=token) == 8
    assert client.delta_and_get(key, 1, cas_token=token) is None
    assert not client.delta(key, 1, cas_token=token)
    client.set(key, 2**64 - 1, ttl=0)
    assert client.delta_and_get(key, 2) == 1
    client.set(key, "text", ttl=0)
    with pytest.raises(MemcacheServerError):
        client.delta(key, 1)


def test_touch_and_expiry(client, raw, key):
    client.set(key + "a", "v", ttl=1)
    client.set(key + "b", "v", ttl=100)
    client.set(key + "c", "v", ttl=100)
    assert client.touch(key + "b", ttl=1000)
    assert client.get(key + "c", touch_ttl=1000) == "v"
    assert all(100 < raw.ttl((key + name).encode()) <= 1000 for name in "bc")
    assert not client.touch(key + "absent", ttl=100)
    wait_until("a expires", lambda: client.get(key + "a") is None)
    assert client.get(key + "b") == "v" and client.get(key + "c") == "v"


def test_keys(client, key):
    for k in ("k" * 250, Key(key + "é"), Key("x" * 300), Key(key, routing_key="r", domain="d")):
        assert client.set(k, "v", ttl=0)
        assert client.get(k) == "v"


def test_lease_one_winner(client, key):
    """A miss is won once; the others wait and get what the winner stored."""
    policy = LeasePolicy(ttl=30, miss_retries=50, miss_retry_wait=0.01, wait_backoff_factor=1.0)
    value, token = client.get_or_lease_cas(key, policy)
    assert value is None and token
    got = []
    waiting, stored = threading.Semaphore(0), threading.Event()

    def other():
        got.append(client.get_or_lease(key, policy, lease_wait_fn=lambda _: (waiting.release(), stored.wait(60))))

    threads = [threading.Thread(target=other) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in threads:
        assert waiting.acquire(timeout=60)
    assert client.set(key, "computed", ttl=100, cas_token=token)
    stored.set()
    for t in threads:
        t.join()
    assert got == ["computed", "computed"]
    assert not client.set(key, "late", ttl=100, cas_token=token)


def test_lease_retries_run_out(client, key):
    policy = LeasePolicy(ttl=30, miss_retries=3, miss_retry_wait=0.001)
    waits = []
    assert client.get_or_lease(key, policy) is None
    assert client.get_or_lease(key, policy, lease_wait_fn=waits.append) is None
    assert len(waits) == 2


def test_lease_invalidated_meanwhile(client, key):
    """A delete between lease and store makes the store fail: the value may be outdated."""
    policy = LeasePolicy(ttl=30)
    _, token = client.get_or_lease_cas(key, policy)
    client.invalidate(key)
    assert not client.set(key, "outdated", ttl=100, cas_token=token)
    assert client.get(key) is None


def test_recache_one_winner(client, key):
    client.set(key, "old", ttl=20)
    policy = RecachePolicy(ttl=30)
    got = [client.get(key, recache_policy=policy) for _ in range(5)]
    assert got == [None, "old", "old", "old", "old"]
    assert client.set(key, "new", ttl=100)
    assert [client.get(key, recache_policy=policy) for _ in range(3)] == ["new"] * 3
    keys = [Key(key + str(i)) for i in range(3)]
    for k in keys:
        client.set(k, "old", ttl=20)
    assert client.multi_get(keys, recache_policy=policy) == dict.fromkeys(keys, None)
    assert client.multi_get(keys, recache_policy=policy) == dict.fromkeys(keys, "old")


def test_stale_on_delete(client, key):
    policy = StalePolicy(mark_stale_on_deletion_ttl=30)
    client.set(key, "old", ttl=100)
    assert client.delete(key, stale_policy=policy)
    _, token = client.get_cas(key)
    assert [client.get(key) for _ in range(3)] == ["old"] * 3, "the first, above, won"
    client.set(key, "new", ttl=100)
    assert [client.get(key) for _ in range(3)] == ["new"] * 3
    assert client.invalidate(key, stale_policy=policy)
    assert [client.get(key) for _ in range(3)] == [None, "new", "new"]
    assert not client.delete(key + "absent", stale_policy=policy)


def test_stale_on_cas_mismatch(client, key):
    """A store with an older CAS is kept, marked stale: one reader is told to compute again."""
    policy = StalePolicy(mark_stale_on_deletion_ttl=30, mark_stale_on_cas_mismatch=True)
    token = client.set_cas(key, "first", ttl=100)
    assert client.delete(key, stale_policy=policy)
    assert client.set(key, "computed from older data", ttl=100, cas_token=token, stale_policy=policy)
    assert [client.get(key) for _ in range(3)] == [None] + ["computed from older data"] * 2


def test_raw_meta_commands(client, key):
    k = Key(key)
    assert isinstance(client.meta_get(k, RequestFlags(return_value=True)), Miss)
    got = client.meta_set(k, b"v", RequestFlags(cache_ttl=1000, return_cas_token=True, client_flag=0))
    assert isinstance(got, Success) and got.flags.cas_token
    got = client.meta_get(k, RequestFlags(return_value=True, return_ttl=True, return_size=True, return_fetched=True, return_last_access=True))
    assert isinstance(got, Value) and got.size == 1 and 900 < got.flags.ttl <= 1000 and got.flags.fetched is False
    assert isinstance(client.meta_set(k, b"v", RequestFlags(cas_token=1)), Conflict)
    assert isinstance(client.meta_set(k, b"v", RequestFlags(mode=SetMode.ADD.value)), NotStored)
    assert isinstance(client.meta_delete(k, RequestFlags(cas_token=1)), Conflict)
    client.meta_set(k, 5, RequestFlags())
    got = client.meta_arithmetic(k, RequestFlags(return_value=True, mode=MA_MODE_DEC, ma_delta_value=2))
    assert isinstance(got, Value) and int(got.value) == 3
    assert set(client.meta_multiget([k, Key(key + "x")], RequestFlags(return_value=True))) == {k, Key(key + "x")}
    assert isinstance(client.meta_delete(k), Success)


def test_connection_loss(start, key):
    server = start()
    c = connect(server)
    c.set(key, "v", ttl=0)
    server.command[server.command.index("-p") + 1] = str(server.port)
    server.kill()
    with pytest.raises(MemcacheError):
        c.get(key)
    quiet = connect(server, raise_on_server_error=False)
    assert quiet.get(key) is None and not quiet.set(key, "x", ttl=0)
    server.start()

    def back():
        try:
            return c.set(key, "back", ttl=0)
        except MemcacheError:
            return False

    wait_until("the client found the server again", back)
    assert c.get(key) == "back"


def test_several_servers(start, key):
    servers = [start(), start()]
    c = connect(*servers)
    values = {Key(f"{key}-{i}"): i for i in range(200)}
    for k, v in values.items():
        c.set(k, v, ttl=0)
    assert c.multi_get(list(values)) == values
    assert all(int(s.stats()["curr_items"]) > 20 for s in servers)


def test_gutter_and_ephemeral(start, key):
    main, gutter = start(), start()
    factory = connection_pool_factory_builder(connection_timeout=20, recv_timeout=20)
    c = CacheClient.cache_client_with_gutter_from_servers(
        servers=[ServerAddress("127.0.0.1", main.port)],
        gutter_servers=[ServerAddress("127.0.0.1", gutter.port)],
        gutter_ttl=60,
        connection_pool_factory_fn=factory,
    )
    assert c.set(key, "v", ttl=100) and c.get(key) == "v"
    main.kill()
    assert c.set(key, "in the gutter", ttl=100) and c.get(key) == "in the gutter"
    with gutter.raw() as raw:
        head = raw.ask(b"mg %s t\r\n" % key.encode())
        assert head.startswith(b"HD t") and int(head[4:].split()[0]) <= 60
    e = CacheClient.ephemeral_cache_client_from_servers(
        servers=[ServerAddress("127.0.0.1", gutter.port)], max_ttl=30, connection_pool_factory_fn=factory
    )
    assert e.set(key + "e", "v", ttl=0)
    with gutter.raw() as raw:
        assert int(raw.ask(b"mg %se t\r\n" % key.encode())[4:].split()[0]) <= 30
