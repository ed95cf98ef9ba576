"""python-memcached (Python): every operation it has."""

import memcache
import pytest

from harness import ALL_BYTES, ITEM_MAX, NASTY, PROMPT, wait_until

LIMIT = 2 * PROMPT
"""Seconds that a client waits for a reply; without one it takes what it asked for as absent."""


@pytest.fixture
def client(server):
    c = memcache.Client([server.address], socket_timeout=LIMIT, server_max_value_length=16 << 20)
    yield c
    c.disconnect_all()


def test_storage_commands(client, key):
    assert client.get(key) is None
    assert client.get(key, "default") == "default"
    assert not client.replace(key, "x")
    assert not client.append(key, "x")
    assert not client.prepend(key, "x")
    assert client.add(key, "b")
    assert not client.add(key, "x")
    assert client.append(key, "c")
    assert client.prepend(key, "a")
    assert client.get(key) == "abc"
    assert client.replace(key, "new")
    assert client.set(key, "set")
    assert client.get(key) == "set"
    assert client.delete(key) == 1
    assert client.get(key) is None
    assert client.delete(key) == 0


def test_types(client, key):
    for value in (b"bytes", "text é", 5, 2**70, True, 1.5, None, [1, {"a": (2,)}], NASTY, ALL_BYTES, b"", ""):
        assert client.set(key, value)
        assert client.get(key) == value


def test_compression(client, key):
    value = "compress me " * 10000
    assert client.set(key, value, min_compress_len=100)
    assert client.get(key) == value


@pytest.mark.parametrize("size", [0, 1, 2048, 100_000, ITEM_MAX - 4096])
def test_sizes(client, key, size):
    value = (ALL_BYTES * (size // 256 + 1))[:size]
    assert client.set(key, value)
    assert client.get(key) == value


def test_above_the_item_limit(client, key):
    client.set(key, b"old")
    assert not client.set(key, b"x" * (ITEM_MAX + 1))
    assert client.get(key) is None
    assert client.set(key, b"new") and client.get(key) == b"new"


def test_larger_item_limit(big_server, key):
    c = memcache.Client([big_server.address], socket_timeout=LIMIT, server_max_value_length=64 << 20)
    value = NASTY * 5000
    assert len(value) > ITEM_MAX
    assert c.set(key, value) and c.get(key) == value
    assert not c.set(key, b"x" * ((8 << 20) + 1)) and c.get(key) is None


def test_counters(client, key):
    assert client.incr(key) is None
    assert client.decr(key) is None
    client.set(key, "10")
    assert client.incr(key) == 11
    assert client.incr(key, 9) == 20
    assert client.decr(key, 100) == 0
    client.set(key, "18446744073709551615")
    assert client.incr(key, 1) == 0
    client.set(key, "10")
    client.incr(key, 5, noreply=True)
    client.decr(key, 1, noreply=True)
    assert client.get(key) == "14"


def test_cas(server, key):
    a = memcache.Client([server.address], socket_timeout=LIMIT, cache_cas=True)
    b = memcache.Client([server.address], socket_timeout=LIMIT)
    assert a.gets(key) is None
    a.set(key, "one")
    assert a.gets(key) == "one"
    assert a.cas(key, "two")
    assert a.gets(key) == "two"
    b.set(key, "other")
    assert a.cas(key, "three") in (False, 0)
    assert b.get(key) == "other"
    a.reset_cas()


def test_touch_and_expiry(client, raw, key):
    client.set(key + "a", "v", time=1)
    client.set(key + "b", "v", time=100)
    assert client.touch(key + "b", 1000)
    assert 100 < raw.ttl((key + "b").encode()) <= 1000
    client.set(key + "c", "v", time=-1)
    assert client.get(key + "c") is None
    wait_until("a expires", lambda: client.get(key + "a") is None)
    assert client.get(key + "b") == "v"
    assert not client.touch(key + "absent", 10)


def test_multi(client, key):
    values = {f"{i}": f"value {i}\r\n" for i in range(1000)}
    assert client.set_multi(values, key_prefix=key) == []
    assert client.get_multi(list(values), key_prefix=key) == values
    assert client.get_multi(["x"] + list(values), key_prefix=key) == values
    assert client.delete_multi(list(values), key_prefix=key)
    assert client.get_multi(list(values), key_prefix=key) == {}


def test_noreply(client, key):
    client.set(key, "1", noreply=True)
    client.add(key, "x", noreply=True)
    client.append(key, "2", noreply=True)
    client.prepend(key, "0", noreply=True)
    assert client.get(key) == "012"
    client.replace(key, "r", noreply=True)
    client.touch(key, 100, noreply=True)
    assert client.get(key) == "r"
    client.delete(key, noreply=True)
    assert client.get(key) is None
    client.set_multi({"a": "1", "b": "2"}, key_prefix=key, noreply=True)
    assert client.get_multi(["a", "b"], key_prefix=key) == {"a": "1", "b": "2"}
    client.delete_multi(["a", "b"], key_prefix=key, noreply=True)
    assert client.get_multi(["a", "b"], key_prefix=key) == {}


def test_stats(client, key):
    client.set(key, "v")
    client.get(key)
    [(name, stats)] = client.get_stats()
    assert int(stats["cmd_get"]) >= 1 and int(stats["threads"]) >= 1
    [(_, settings)] = client.get_stats("settings")
    assert settings["item_size_max"] == str(ITEM_MAX)
    [(_, items)] = client.get_stats("items")
    assert any(k.endswith(":number") for k in items)
    [(_, slabs)] = client.get_slab_stats()
    assert slabs
    # get_slabs() is left out: it mixes bytes and text and fails whatever the server answers.


def test_flush(start, key):
    server = start()
    c = memcache.Client([server.address], socket_timeout=LIMIT)
    c.set(key, "v")
    c.flush_all()
    assert c.get(key) is None
    assert c.set(key, "w") and c.get(key) == "w"


def test_quit_and_connection_loss(start, key):
    server = start()
    c = memcache.Client([server.address], dead_retry=0, socket_timeout=LIMIT)
    c.set(key, "v")
    c.quit_all()
    assert c.get(key) == "v"
    server.command[server.command.index("-p") + 1] = str(server.port)
    server.kill()
    assert c.get(key) is None
    assert not c.set(key, "x")
    server.start()
    c.forget_dead_hosts()
    assert c.set(key, "back") and c.get(key) == "back"


def test_longest_key(client):
    assert client.set("k" * 250, "v") and client.get("k" * 250) == "v"
