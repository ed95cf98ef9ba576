"""python-binary-memcached: every operation of both of its clients."""

import pickle
import zlib

import bmemcached
import pytest
from bmemcached.exceptions import MemcachedException

from harness import ALL_BYTES, ITEM_MAX, NASTY, wait_until

CLIENTS = {"replicating": bmemcached.ReplicatingClient, "distributed": bmemcached.DistributedClient}


@pytest.fixture(params=CLIENTS)
def make(request):
    return CLIENTS[request.param]


@pytest.fixture
def client(make, server):
    c = make([server.address], socket_timeout=40)
    yield c
    c.disconnect_all()


@pytest.fixture
def plain(server):
    c = bmemcached.Client([server.address], socket_timeout=40)
    yield c
    c.disconnect_all()


def test_storage_commands(client, key):
    assert client.get(key) is None
    assert client.get(key, "default") == "default"
    assert client.replace(key, "x") is False
    assert client.add(key, "b") is True
    assert client.add(key, "x") is False
    assert client.get(key) == "b"
    assert client.replace(key, "new") is True
    assert client.set(key, "set") is True
    assert client.get(key) == "set"
    assert client.delete(key) is True
    assert client.delete(key) is True, "what is not there counts as deleted"
    assert client.get(key) is None


def test_values(client, key):
    for value in (b"bytes", "text é", 5, -5, 2**40, True, False, 1.5, [1, {"a": (2,)}], NASTY, ALL_BYTES, b"\r\n", b"", ""):
        assert client.set(key, value)
        assert client.get(key) == value


@pytest.mark.parametrize("size", [0, 1, 1000, 8191, 8192, 100_000, ITEM_MAX - 4096])
@pytest.mark.parametrize("level", [0, 9])
def test_sizes(client, key, size, level):
    value = (ALL_BYTES * (size // 256 + 1))[:size]
    assert client.set(key, value, compress_level=level)
    assert client.get(key) == value


def test_above_the_item_limit(plain, key):
    assert plain.set(key, b"old")
    with pytest.raises(MemcachedException) as raised:
        plain.set(key, b"x" * (ITEM_MAX + 1), compress_level=0)
    assert raised.value.code == 3
    assert plain.get(key) is None
    assert plain.set(key, b"new") and plain.get(key) == b"new"


def test_larger_item_limit(big_server, make, key):
    c = make([big_server.address], socket_timeout=40)
    value = NASTY * 5000
    assert len(value) > ITEM_MAX
    assert c.set(key, value, compress_level=0) and c.get(key) == value


def test_compression_and_picklers(server, key):
    c = bmemcached.Client([server.address], compression=zlib, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    value = {"text": "compress me " * 200_000}
    assert c.set(key, value) and c.get(key) == value
    raw = bmemcached.Client([server.address], raw_data=True)
    assert raw.set(key, NASTY) and raw.get(key) == NASTY


def test_counters(client, key):
    assert client.incr(key, 5, default=10) == 10
    assert client.incr(key, 5) == 15
    assert client.decr(key, 1) == 14
    assert client.decr(key, 100) == 0
    assert client.incr(key, 2**40) == 2**40
    assert client.decr(key + "new", 1, default=7) == 7
    assert client.set(key, "text")
    with pytest.raises(MemcachedException) as raised:
        client.incr(key, 1)
    assert raised.value.code == 6


def test_expiry(client, raw, key):
    assert client.set(key + "a", "v", time=1)
    assert client.set(key + "b", "v", time=1000)
    assert client.incr(key + "c", 1, default=5, time=2000) == 5
    assert 900 < raw.ttl((key + "b").encode()) <= 1000
    assert 1900 < raw.ttl((key + "c").encode()) <= 2000
    wait_until("it expires", lambda: client.get(key + "a") is None)
    assert client.get(key + "b") == "v"


def test_multi(client, key):
    values = {f"{key}-{n}": f"value {n}\r\n" * (n % 20) for n in range(1000)}
    assert client.set_multi(values) == []
    assert client.get_multi(list(values)) == values
    assert client.get_multi([key + "absent", *values, key + "none"]) == values
    assert client.get_multi([key + "absent"]) == {} and client.get_multi([]) == {}
    with_cas = client.get_multi(list(values)[:3], get_cas=True)
    assert all(value == values[name] and cas > 0 for name, (value, cas) in with_cas.items())
    assert client.delete_multi(list(values)) is True
    assert client.get_multi(list(values)) == {}
    assert client.delete_multi([key + "absent"]) is False


def test_set_multi_with_cas(plain, key):
    a, b, c = (f"{key}-{n}" for n in "abc")
    assert plain.set_multi({a: "1", b: "1"}) == []
    _, cas = plain.gets(a)
    [(failed, _)] = plain.set_multi({(a, cas): "2", (b, cas + 1000): "2", (c, 0): "2"})
    assert failed == b
    assert plain.get_multi([a, b, c]) == {a: "2", b: "1", c: "2"}
    assert len(plain.set_multi({(c, 0): "3"})) == 1, "a CAS of 0 adds"
    assert plain.get(c) == "2"
    stored = plain.set_multi_cas({a: "3", (c, 0): "3", key + "d": "3"})
    assert stored == {a: plain.gets(a)[1], c: None, key + "d": plain.gets(key + "d")[1]}


def test_cas(client, key):
    assert client.gets(key)[0] is None
    with pytest.raises(ValueError):
        client.cas(key, "first", 0)
    assert client.set(key, "first")
    value, cas = client.gets(key)
    assert value == "first" and cas > 0
    assert client.get(key, get_cas=True) == ("first", cas)
    assert client.cas(key, "second", cas) is True
    assert client.cas(key, "third", cas) is False
    assert client.get(key) == "second"
    done, newer = client.set(key, "set", get_cas=True)
    assert done is True and client.gets(key) == ("set", newer)
    assert client.delete(key, cas=newer - 1) is False
    assert client.delete(key, cas=newer) is True
    assert client.cas(key, "x", cas) is False
    done, added = client.add(key, "added", get_cas=True)
    assert done is True and added > newer


def test_flush_and_statistics(start, make, key):
    server = start()
    c = make([server.address], socket_timeout=40)
    assert c.set(key, "v")
    [(name, stats)] = c.stats().items()
    assert name == server.address and int(stats["pid"]) == server.pid and len(stats) > 40
    assert b"1.6." in stats["version"]
    [settings] = c.stats("settings").values()
    assert int(settings["maxconns"]) > 0
    assert c.flush_all() is True and c.get(key) is None
    assert c.set(key, "v") and c.flush_all(1000) is True and c.get(key) == "v"


def test_two_servers(start, make):
    servers = [start(), start()]
    c = make([server.address for server in servers], socket_timeout=40)
    values = {f"two{n}": f"v{n}" for n in range(500)}
    assert c.set_multi(values) == []
    assert c.get_multi(list(values)) == values
    counts = [int(server.stats()["curr_items"]) for server in servers]
    assert counts == [500, 500] if make is bmemcached.ReplicatingClient else sum(counts) == 500 and min(counts) > 50
    assert c.delete_multi(list(values)) is True and c.get_multi(list(values)) == {}


def test_connection_loss(start, make, key):
    server = start()
    c = make([server.address], socket_timeout=40)
    assert c.set(key, "v")
    server.command[server.command.index("-p") + 1] = str(server.port)
    server.kill()
    assert not c.set(key, "lost")
    server.start()
    # After a lost connection it waits for some seconds.
    wait_until("it has connected again", lambda: c.set(key, "back") and c.get(key) == "back", 60)


def test_unix_socket(start, make, key, open_dir):
    start("-s", open_dir + "/sock")
    c = make([open_dir + "/sock"])
    assert c.set(key, NASTY) and c.get(key) == NASTY
    c.disconnect_all()
