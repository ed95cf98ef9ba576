"""pymemcache (Python): Client, PooledClient, HashClient, RetryingClient; every operation each has."""

import socket
import threading

import pytest
from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
)

from harness import ALL_BYTES, ITEM_MAX, NASTY, PROMPT, wait_until

LIMIT = 2 * PROMPT
"""Seconds that a client waits for a reply."""

CLASSES = {
    "client": lambda address, **k: Client(address, **k),
    "pooled": lambda address, **k: PooledClient(address, max_pool_size=4, **k),
    "hash": lambda address, **k: HashClient([address], **k),
    "hash-pooled": lambda address, **k: HashClient([address], use_pooling=True, max_pool_size=4, **k),
    "retrying": lambda address, **k: RetryingClient(Client(address, **k), attempts=3, retry_for=[MemcacheUnexpectedCloseError, ConnectionError]),
}


@pytest.fixture(params=CLASSES)
def client(request, server):
    c = CLASSES[request.param](("127.0.0.1", server.port), timeout=LIMIT, connect_timeout=LIMIT, default_noreply=False)
    yield c
    c.close()


@pytest.fixture
def one(server):
    c = Client(("127.0.0.1", server.port), timeout=LIMIT, default_noreply=False)
    yield c
    c.close()


def test_storage_commands(client, key):
    assert client.get(key) is None
    assert client.get(key, "default") == "default"
    assert client.replace(key, b"x") is False
    assert client.append(key, b"x") is False
    assert client.prepend(key, b"x") is False
    assert client.add(key, b"b") is True
    assert client.add(key, b"x") is False
    assert client.append(key, b"c") is True
    assert client.prepend(key, b"a") is True
    assert client.get(key) == b"abc"
    assert client.replace(key, b"new") is True
    assert client.get(key) == b"new"
    assert client.set(key, b"set") is True
    assert client.get(key) == b"set"
    assert client.delete(key) is True
    assert client.delete(key) is False
    assert client.get(key) is None


def test_cas(client, key):
    assert client.gets(key) == (None, None)
    assert client.cas(key, b"x", b"1") is None
    client.set(key, b"one")
    value, token = client.gets(key)
    assert value == b"one" and token.isdigit()
    assert client.cas(key, b"two", token) is True
    assert client.cas(key, b"three", token) is False
    assert client.gets(key)[0] == b"two"
    assert client.gets_many([key, key + "absent"]) == {key: (b"two", client.gets(key)[1])}


def test_counters(client, key):
    assert client.incr(key, 1) is None
    assert client.decr(key, 1) is None
    client.set(key, b"10")
    assert client.incr(key, 5) == 15
    assert client.decr(key, 6) == 9
    assert client.get(key) == b"9 ", "decr keeps the length, padded with a blank"
    assert client.decr(key, 100) == 0
    client.set(key, str(2**64 - 1).encode())
    assert client.incr(key, 2) == 1, "incr wraps at 2^64"
    client.set(key, b"text")
    with pytest.raises(MemcacheClientError, match="cannot increment or decrement non-numeric value"):
        client.incr(key, 1)


@pytest.mark.parametrize("size", [0, 1, 2, 100, 2047, 2048, 2049, 16 << 10, (64 << 10) + 1, 512 << 10, ITEM_MAX - 4096])
def test_sizes(client, key, size):
    value = (ALL_BYTES * (size // 256 + 1))[:size]
    assert client.set(key, value) is True
    assert client.get(key) == value


def test_above_the_item_limit(client, key):
    client.set(key, b"old")
    with pytest.raises(MemcacheServerError, match="object too large for cache"):
        client.set(key, b"x" * (ITEM_MAX + 1))
    assert client.get(key) is None, "the old value must not be served as if it were the new one"
    assert client.set(key, b"again") is True
    assert client.get(key) == b"again"


def test_larger_item_limit(big_server, key):
    c = Client(("127.0.0.1", big_server.port), timeout=LIMIT, default_noreply=False)
    for size in (ITEM_MAX + 1, 4 << 20, (8 << 20) - 8192):
        value = (NASTY * (size // len(NASTY) + 1))[:size]
        assert c.set(key, value) is True
        assert c.get(key) == value
    with pytest.raises(MemcacheServerError, match="object too large for cache"):
        c.set(key, b"x" * ((8 << 20) + 1))
    assert c.get(key) is None
    c.close()


def test_binary_safe(client, key):
    for value in (NASTY, b"\r\n", b"\n", b"END\r\n", b"\0" * 1000, ALL_BYTES):
        client.set(key, value)
        assert client.get(key) == value


def test_many(client, key):
    values = {f"{key}-{i}": b"%d\r\n" % i * (i % 50) for i in range(1000)}
    assert client.set_many(values) == []
    assert client.get_many(list(values)) == values
    assert client.get_many([f"{key}-{i}" for i in range(500, 1500)]) == {k: v for i, (k, v) in enumerate(values.items()) if i >= 500}
    assert {k: v for k, (v, _) in client.gets_many(list(values)).items()} == values
    assert client.get_many([]) == {}
    assert client.delete_many(list(values)) is True
    assert client.get_many(list(values)) == {}


def test_noreply(client, key):
    """Nothing is answered, so the reply that comes next belongs to the next question."""
    for _ in range(100):
        client.set(key, b"1", noreply=True)
        client.add(key, b"x", noreply=True)
        client.replace(key, b"5", noreply=True)
        client.append(key, b"0", noreply=True)
        client.prepend(key, b"1", noreply=True)
        client.incr(key, 1, noreply=True)
        client.decr(key, 2, noreply=True)
        client.touch(key, 100, noreply=True)
        client.cas(key, b"never", "18446744073709551615", noreply=True)
    if isinstance(client, (PooledClient,)) or getattr(client, "use_pooling", False):
        wait_until("the last noreply command took effect", lambda: client.get(key) == b"149")
    assert client.get(key) == b"149"
    client.delete(key, noreply=True)
    wait_until("deleted", lambda: client.get(key) is None)
    client.set_many({key: b"1", key + "b": b"2"}, noreply=True)
    wait_until("stored", lambda: client.get_many([key, key + "b"]) == {key: b"1", key + "b": b"2"})
    client.delete_many([key, key + "b"], noreply=True)
    wait_until("deleted", lambda: client.get_many([key, key + "b"]) == {})


def test_flags(one, key):
    for flags in (0, 1, 65535, 65536, 2**32 - 1):
        one.set(key, b"v", flags=flags)
        assert one.raw_command(f"get {key}", b"END\r\n") == b"VALUE %s %d 1\r\nv\r\n" % (key.encode(), flags)


def test_expiry_and_touch(client, raw, key):
    client.set(key, b"gone at once", expire=-1)
    assert client.get(key) is None
    client.set(key + "a", b"v", expire=1)
    client.set(key + "b", b"v", expire=100)
    client.set(key + "c", b"v", expire=100)
    assert client.touch(key + "b", 1000) is True
    assert 100 < raw.ttl((key + "b").encode()) <= 1000
    assert client.touch(key + "c", -1) is True
    assert client.touch(key + "absent", 100) is False
    assert client.get(key + "c") is None
    wait_until("a expires", lambda: client.get(key + "a") is None)
    assert client.get(key + "b") == b"v"


@pytest.mark.parametrize("which", ["pickle", "compressed", "python-memcache"])
def test_serde(server, key, which):
    kind = {
        "pickle": {"serde": serde.pickle_serde},
        "compressed": {"serde": serde.compressed_serde},
        "python-memcache": {"serializer": serde.python_memcache_serializer, "deserializer": serde.python_memcache_deserializer},
    }[which]
    c = Client(("127.0.0.1", server.port), default_noreply=False, **kind)
    for value in (b"bytes", "text é", 12345, 2**70, 1.5, None, [1, {"a": (2, 3)}], {"x": b"\r\n" * 1000}, "compress me " * 1000):
        c.set(key, value)
        assert c.get(key) == value
        assert c.get_many([key]) == {key: value}
    c.close()


def test_keys(one, server, key):
    longest = "k" * 250
    one.set(longest, b"v")
    assert one.get(longest) == b"v"
    prefixed = Client(("127.0.0.1", server.port), key_prefix=b"pre:", default_noreply=False)
    prefixed.set(key, b"v")
    assert one.get("pre:" + key) == b"v"
    assert prefixed.get_many([key]) == {key: b"v"}
    unicode = Client(("127.0.0.1", server.port), allow_unicode_keys=True, default_noreply=False)
    unicode.set("ключ" + key, b"v")
    assert unicode.get("ключ" + key) == b"v"
    prefixed.close()
    unicode.close()


def test_stats_version_settings(one):
    stats = one.stats()
    assert stats[b"curr_connections"] >= 1 and stats[b"limit_maxbytes"] == 64 << 20
    assert one.stats("settings")[b"item_size_max"] == ITEM_MAX
    assert one.stats("items") is not None and one.stats("slabs") is not None
    assert len(one.version().split(b".")) >= 3
    assert one.cache_memlimit(64) is True


def test_flush_all(start, key):
    server = start()
    for make in CLASSES.values():
        c = make(("127.0.0.1", server.port), default_noreply=False)
        c.set(key, b"v")
        c.flush_all()
        assert c.get(key) is None
        c.set(key, b"after")
        assert c.get(key) == b"after"
        c.flush_all(noreply=True)
        wait_until("flushed", lambda: c.get(key) is None)
        c.close()


def test_unknown_command(one, key):
    with pytest.raises(MemcacheUnknownCommandError):
        one._raise_errors(one.raw_command("nonsense"), b"nonsense")
    one.set(key, b"still there")
    assert one.get(key) == b"still there"


@pytest.mark.parametrize("client", ["client", "pooled", "retrying"], indirect=True)
def test_mapping_syntax(client, key):
    client[key] = b"v"
    wait_until("set", lambda: client.get(key) == b"v")
    assert client[key] == b"v"
    del client[key]
    wait_until("deleted", lambda: client.get(key) is None)


def test_quit_and_reconnect(one, key):
    one.set(key, b"v")
    one.quit()
    assert one.get(key) == b"v"


def test_connection_loss(start, key):
    """A server that goes away is an error at once; a new one is found again."""
    server = start()
    address = ("127.0.0.1", server.port)
    plain = Client(address, timeout=LIMIT, default_noreply=False)
    retrying = RetryingClient(Client(address, timeout=LIMIT, default_noreply=False), attempts=3)
    plain.set(key, b"v")
    retrying.set(key, b"v")
    server.command[server.command.index("-p") + 1] = str(server.port)
    server.kill()
    with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError)):
        plain.get(key)
    with pytest.raises(ConnectionRefusedError):
        plain.get(key)
    server.start()
    assert plain.get(key) is None
    assert retrying.get(key) is None
    assert plain.set(key, b"w") is True and retrying.get(key) == b"w"
    plain.close()
    retrying.close()


def test_shutdown(start):
    server = start("-A")
    Client(("127.0.0.1", server.port), timeout=LIMIT).shutdown()
    assert server.process.wait(60) == 0
    server = start("-A")
    Client(("127.0.0.1", server.port), timeout=LIMIT).shutdown(graceful=True)
    assert server.process.wait(60) == 0


def test_pool_under_threads(server, key):
    pool = PooledClient(("127.0.0.1", server.port), max_pool_size=8, timeout=LIMIT, default_noreply=False)
    wrong = []

    def work(n):
        for i in range(200):
            k = f"{key}-{n}-{i % 7}"
            value = f"{k} {i}".encode() * (i % 30 + 1)
            pool.set(k, value)
            if pool.get(k) != value:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    pool.close()


def test_unix_socket(start, key, open_dir):
    start("-s", open_dir + "/sock")
    c = Client(open_dir + "/sock", default_noreply=False)
    c.set(key, NASTY)
    assert c.get(key) == NASTY
    c.close()


def test_hash_client_spreads(start, key):
    servers = [start() for _ in range(3)]
    c = HashClient([("127.0.0.1", s.port) for s in servers], default_noreply=False)
    values = {f"{key}-{i}": b"%d" % i for i in range(300)}
    c.set_many(values)
    assert c.get_many(list(values)) == values
    counts = [int(s.stats()["curr_items"]) for s in servers]
    assert sum(counts) == 300 and all(c > 30 for c in counts)
    c.close()


def test_pipeline_of_raw_commands(one, server, key):
    """1,000 commands in one send; the answers come in order."""
    k = key.encode()
    s = socket.create_connection(("127.0.0.1", server.port), LIMIT)
    out = b"".join(b"set %s%d 0 0 3\r\nv%02d\r\nget %s%d\r\n" % (k, i, i % 100, k, i) for i in range(1000))
    want = b"".join(b"STORED\r\nVALUE %s%d 0 3\r\nv%02d\r\nEND\r\n" % (k, i, i % 100) for i in range(1000))
    s.sendall(out)
    got = b""
    while len(got) < len(want):
        part = s.recv(65536)
        assert part
        got += part
    assert got == want
    s.close()
