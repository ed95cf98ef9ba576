"""pylibmc (Python on the C library libmemcached): every operation, over both protocols, with the behaviors that change what
is sent."""

import pylibmc
import pytest

from harness import ALL_BYTES, ITEM_MAX, NASTY, wait_until

BEHAVIORS = {
    "plain": {},
    "nodelay": {"tcp_nodelay": True},
    "cas": {"cas": True},
    "no_block": {"no_block": True, "tcp_nodelay": True},
    "ketama": {"ketama": True, "tcp_keepalive": True, "verify_keys": True},
    "limits": {"connect_timeout": 20_000, "send_timeout": 20_000_000, "receive_timeout": 20_000_000, "_socket_send_size": 4096, "_socket_recv_size": 4096},
    "prefetch": {"_io_key_prefetch": 100, "_io_msg_watermark": 10, "_io_bytes_watermark": 1000},
}


@pytest.fixture(params=["text", "binary"])
def protocol(request):
    """The option of a client."""
    return {"binary": request.param == "binary"}


@pytest.fixture(params=BEHAVIORS)
def client(request, server, protocol):
    behaviors = BEHAVIORS[request.param]
    if protocol["binary"]:
        behaviors = {name: on for name, on in behaviors.items() if name != "verify_keys"}  # libmemcached refuses it there
    c = pylibmc.Client([server.address], behaviors=behaviors, **protocol)
    yield c
    c.disconnect_all()


@pytest.fixture
def plain(server, protocol):
    return pylibmc.Client([server.address], behaviors={"cas": True}, **protocol)


def test_storage_commands(client, protocol, key):
    assert client.get(key) is None
    assert client.get(key, "default") == "default"
    if protocol["binary"]:
        with pytest.raises(pylibmc.NotFound):
            client.replace(key, "x")
    else:
        assert client.replace(key, "x") is False
    assert client.append(key, "x") is False
    assert client.prepend(key, "x") is False
    assert client.add(key, "b") is True
    assert client.add(key, "x") is False
    assert client.append(key, "c") is True
    assert client.prepend(key, "a") is True
    assert client.get(key) == "abc"
    assert client.replace(key, "new") is True
    assert client.set(key, "set") is True
    assert client.get(key) == "set" and client[key] == "set" and key in client
    assert client.delete(key) is True
    assert client.delete(key) is False
    client[key] = "mapping"
    assert client.get(key) == "mapping"
    del client[key]
    assert key not in client


def test_types_and_binary(client, key):
    for value in (b"bytes", "text é", 5, 2**70, True, 1.5, [1, {"a": (2,)}], NASTY, ALL_BYTES, b"\r\n", b"", ""):
        assert client.set(key, value)
        assert client.get(key) == value


@pytest.mark.parametrize("size", [0, 1, 1000, 8191, 8192, 100_000, ITEM_MAX - 4096])
def test_sizes(client, key, size):
    value = (ALL_BYTES * (size // 256 + 1))[:size]
    assert client.set(key, value)
    assert client.get(key) == value


def test_above_the_item_limit(plain, key):
    plain.set(key, b"old")
    try:
        assert plain.set(key, b"x" * (ITEM_MAX + 1)) is False
    except pylibmc.Error:
        pass  # libmemcached knows this server error, or notices the limit itself
    assert plain.get(key) in (None, b"old")
    assert plain.set(key, b"new") and plain.get(key) == b"new"


def test_larger_item_limit(big_server, protocol, key):
    c = pylibmc.Client([big_server.address], **protocol)
    value = NASTY * 5000
    assert len(value) > ITEM_MAX
    assert c.set(key, value) and c.get(key) == value


def test_compression(client, key):
    value = "compress me " * 10000
    assert client.set(key, value, min_compress_len=100, compress_level=6)
    assert client.get(key) == value


def test_counters(client, key):
    with pytest.raises(pylibmc.NotFound):
        client.incr(key)
    with pytest.raises(pylibmc.NotFound):
        client.decr(key)
    client.set(key, 10)
    assert client.incr(key) == 11
    assert client.incr(key, 9) == 20
    assert client.decr(key) == 19
    assert client.decr(key, 100) == 0
    client.set_multi({"a": 1, "b": 2}, key_prefix=key)
    client.incr_multi(["a", "b"], key_prefix=key, delta=5)
    assert client.get_multi(["a", "b"], key_prefix=key) == {"a": 6, "b": 7}


def test_cas(plain, key):
    assert plain.gets(key) == (None, None)
    plain.set(key, "one")
    value, token = plain.gets(key)
    assert value == "one"
    assert plain.cas(key, "two", token) is True
    assert plain.cas(key, "three", token) is False
    assert plain.get(key) == "two"
    plain.delete(key)
    with pytest.raises(pylibmc.NotFound):
        plain.cas(key, "x", token)


def test_negative_time(client, plain, protocol, key):
    """libmemcached sends -1 as 4294967295, which memcached takes for -1: Django's `timeout=0`. In the binary protocol that
    is a time in the year 2106."""
    assert client.set(key, "old")
    assert client.set(key, "v", time=-1)
    if protocol["binary"]:
        assert client.get(key) == "v"
        return
    assert client.get(key) is None
    assert client.add(key, "v", time=-1)
    assert plain.get(key) is None


def test_touch_and_expiry(plain, raw, key):
    plain.set(key + "a", "v", time=1)
    plain.set(key + "b", "v", time=100)
    assert plain.touch(key + "b", 1000) is True
    assert 100 < raw.ttl((key + "b").encode()) <= 1000
    assert plain.touch(key + "absent", 100) is False
    wait_until("a expires", lambda: plain.get(key + "a") is None)
    assert plain.get(key + "b") == "v"


def test_multi(client, key):
    values = {f"{i}": f"value {i}\r\n" * (i % 20) for i in range(1000)}
    assert client.set_multi(values, key_prefix=key) == []
    assert client.get_multi(list(values), key_prefix=key) == values
    assert client.get_multi(["absent"] + list(values), key_prefix=key) == values
    assert client.add_multi({"0": "x", "new": "y"}, key_prefix=key) == ["0"]
    assert client.get_multi(["0", "new"], key_prefix=key) == {"0": values["0"], "new": "y"}
    assert client.delete_multi(list(values), key_prefix=key) is True
    assert client.get_multi(list(values), key_prefix=key) == {}


# buffer_requests without noreply is left out: libmemcached then waits for replies it has already skipped, with memcached too.
@pytest.mark.parametrize("extra", [{"_noreply": True}, {"_noreply": True, "buffer_requests": True, "no_block": True}])
def test_buffered_and_noreply(server, protocol, key, extra):
    c = pylibmc.Client([server.address], behaviors=extra, **protocol)

    def buffered(call, *args):
        try:
            call(*args)
        except pylibmc.Error as error:
            assert "error 32" in str(error), error  # MEMCACHED_BUFFERED, which pylibmc takes for a failure

    for i in range(500):
        buffered(c.set, f"{key}{i}", f"v{i}")
    got = wait_until("all stored", lambda: len(g := c.get_multi([f"{key}{i}" for i in range(500)])) == 500 and g)
    assert got == {f"{key}{i}": f"v{i}" for i in range(500)}
    buffered(c.delete, f"{key}0")
    wait_until("deleted", lambda: c.get(f"{key}0") is None)


def test_stats_and_flush(start, protocol, key):
    server = start()
    c = pylibmc.Client([server.address], **protocol)
    c.set(key, "v")
    [(name, stats)] = c.get_stats()
    assert stats["curr_items"] in ("1", b"1") and len(stats) > 20  # those libmemcached knows
    assert c.flush_all() is True
    assert c.get(key) is None
    assert c.set(key, "w") and c.get(key) == "w"


def test_pools(server, protocol, key):
    master = pylibmc.Client([server.address], **protocol)
    pool = pylibmc.ClientPool(master, 4)
    mapped = pylibmc.ThreadMappedPool(master)
    for p in (pool, mapped):
        with p.reserve() as c:
            c.set(key, "v")
            assert c.get(key) == "v"
    assert master.clone().get(key) == "v"


def test_connection_loss(start, protocol, key):
    server = start()
    c = pylibmc.Client([server.address], behaviors={"retry_timeout": 1, "connect_timeout": 5000}, **protocol)
    c.set(key, "v")
    server.command[server.command.index("-p") + 1] = str(server.port)
    server.kill()
    with pytest.raises(pylibmc.Error):
        c.set(key, "lost")
    server.start()
    if protocol["binary"]:
        c = c.clone()  # libmemcached does not try again here

    def back():
        try:
            return c.set(key, "back") and c.get(key) == "back"
        except pylibmc.Error:
            return False

    wait_until("the client found the server again", back, 60)


def test_unix_socket(start, protocol, key, open_dir):
    start("-s", open_dir + "/sock")
    c = pylibmc.Client([open_dir + "/sock"], **protocol)
    assert c.set(key, NASTY) and c.get(key) == NASTY
    c.disconnect_all()
