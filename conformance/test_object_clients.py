"""Objects with unmodified clients: a call is a `get` of its name, the reply its value."""

import asyncio
import json
import socket
import subprocess

import emcache
import memcache
import pylibmc
import pymemcache
import pytest
from meta_memcache import CacheClient, Key, connection_pool_factory_builder
from meta_memcache.configuration import ServerAddress
from meta_memcache.protocol import RequestFlags, Value

from crowd import write_rules
from harness import tool
from test_node import NODE
from test_objects import GOLDEN, ON, leave_the_hours_end

pytestmark = pytest.mark.only_cattlegrid

TOUR = [
    *GOLDEN,
    ("quota:addandcheck:absent", None),
    ("set:new:s", "CREATED"),
    ("set:put:s:b:a", "SUCCESS"),
    ("set:getall:s", "a\r\nb\r\n"),
    ("set:getall:absent", None),
    ("map:new:m", "CREATED"),
    ("map:put:m:name:Zo%C3%AB%3A%25", "SUCCESS"),
    ("map:get:m:name", "Zo%C3%AB:%"),
    ("map:get:m:absent", None),
    ("counter:add:n:5", "5"),
    ("board:add:b:ann:3:bob:7", "2"),
    ("board:top:b", "bob 7\r\nann 3\r\n"),
    ("queue:push:q:one", "1"),
    ("queue:pop:q", "one"),
    ("queue:pop:q", None),
    ("bloom:add:f:x", "NEW"),
    ("bloom:add:f:x", "SEEN"),
    ("print:1", None),
]
"""Calls and their values, in order; None: a miss."""

AGAIN = [("counter:add:n:1", "6"), ("set:exist:s:a", "EXISTS"), ("set:count:absent", None), ("queue:len:q", "0")]
"""Further calls, for a get of several keys. Each client sends them in an order of its own."""


@pytest.fixture
def server(start, open_dir):
    server = start("--config", write_rules(open_dir, ON), "-o", "debugtime")
    with server.raw() as c:
        leave_the_hours_end(c)
    return server


def walk(get):
    """`get` is the client's: it answers text or None."""
    for name, wanted in TOUR:
        got = get(name)
        got = got.decode() if isinstance(got, bytes) else got
        assert got == wanted, name


def walk_many(get_many):
    got = {str(k, "ascii") if isinstance(k, bytes) else k: v.decode() if isinstance(v, bytes) else v for k, v in get_many([name for name, _ in AGAIN]).items()}
    assert {name: text for name, text in got.items() if text is not None} == {name: text for name, text in AGAIN if text is not None}


def test_pymemcache(server):
    client = pymemcache.Client(("127.0.0.1", server.port))
    walk(client.get)
    walk_many(client.get_many)
    assert client.gets("counter:get:n")[0] == b"6"
    with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="arg 1 must be a positive number"):
        client.get("quota:addandcheck:userKey:0")
    with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="counter:get is a method"):
        client.set("counter:get:n", "1", noreply=False)
    assert client.get("counter:get:n") == b"6", "the connection is in step"
    assert client.delete("counter::n", noreply=False) and not client.delete("counter::n", noreply=False)
    client.set("plain", "p")
    assert client.get_many(["plain", "set:count:s", "absent"]) == {"plain": b"p", "set:count:s": b"2"}


def test_pymemcache_pooled_and_hashed(server):
    pooled = pymemcache.PooledClient(("127.0.0.1", server.port), max_pool_size=4)
    walk(pooled.get)
    hashed = pymemcache.HashClient([("127.0.0.1", server.port)])
    walk_many(hashed.get_many)


def test_python_memcached(server):
    client = memcache.Client([server.address], debug=0, socket_timeout=20)
    walk(client.get)
    walk_many(client.get_multi)
    # It takes an error for a miss, and must stay in step.
    assert client.get("quota:addandcheck:userKey:0") is None
    assert client.get("counter:get:n") in (b"6", "6")
    assert client.delete("set::s") == 1 and client.get("set:count:s") is None


@pytest.mark.parametrize("behaviors", [{}, {"cas": True}, {"no_block": True, "tcp_nodelay": True}, {"ketama": True, "verify_keys": True}])
def test_pylibmc(server, behaviors):
    client = pylibmc.Client([server.address], behaviors=behaviors)
    walk(client.get)
    walk_many(client.get_multi)
    # libmemcached takes an error for a miss, and must stay in step.
    assert client.get("quota:addandcheck:userKey:0") is None
    assert client.get("counter:get:n") in (b"6", "6")
    assert client.delete("counter::n") and client.get("counter:get:n") is None


def test_meta_memcache(server):
    pool = connection_pool_factory_builder(connection_timeout=10, recv_timeout=10, read_buffer_size=1 << 16)
    client = CacheClient.cache_client_from_servers(servers=[ServerAddress("127.0.0.1", server.port)], connection_pool_factory_fn=pool)
    walk(client.get)
    walk_many(lambda names: {key.key: value for key, value in client.multi_get(names).items()})
    got = client.meta_get(Key("counter:get:n"), RequestFlags(return_value=True, return_key=True))
    assert isinstance(got, Value) and got.value in (b"6", "6", 6)
    assert client.delete(Key("counter::n")) and not client.delete(Key("counter::n"))


@pytest.mark.parametrize("autobatching", [False, True])
def test_emcache(server, autobatching):
    async def main():
        host = emcache.MemcachedHostAddress("127.0.0.1", server.port)
        client = await emcache.create_client([host], timeout=20.0, max_connections=1, autobatching=autobatching)
        for name, wanted in TOUR:
            item = await client.get(name.encode())
            assert (item.value.decode() if item else None) == wanted, name
        got = await client.get_many([name.encode() for name, _ in AGAIN])
        assert {k.decode(): v.value.decode() for k, v in got.items()} == {k: v for k, v in AGAIN if v is not None}
        if not autobatching:
            await client.delete(b"counter::n")
            assert await client.get(b"counter:get:n") is None
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("client, tour", [("memcached", [(n, v) for n, v in TOUR if "\r\n" not in (v or "")]), ("memcache-client", TOUR)])
def test_npm(server, client, tour):
    """Its own script checks the values. `memcached` waits for ever for the rest of a value with a line end in it, whatever server
    it comes from (those that it stores it escapes): lists are out of its reach."""
    assert (NODE / "node_modules" / client).is_dir(), "client missing; run conformance/setup.sh"
    done = subprocess.run(
        [tool("node"), "--no-deprecation", "objects.js", str(server.port), client],
        cwd=NODE, input=json.dumps({"tour": tour, "again": AGAIN}), capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0 and done.stdout == "as expected\n", done


def test_libmemcached_tools(server):
    def show(name, status=0):
        done = subprocess.run([tool("memccat"), f"--servers={server.address}", name], capture_output=True, text=True, timeout=60)
        assert done.returncode == status, (name, done)
        return done.stdout.removesuffix("\n")

    for name, wanted in TOUR:
        # The pipe is read as text, in which a line ends in \n.
        assert show(name, 1 if wanted is None else 0).strip("\n") == (wanted or "").replace("\r\n", "\n").strip("\n"), name
    assert subprocess.run([tool("memcrm"), f"--servers={server.address}", "set::s"], timeout=60).returncode == 0
    show("set:count:s", 1)


def test_nc(server):
    """The documentation's transcript: a client that writes, ends its side, and reads to the end."""
    text = "".join(f"get {name}\r\n" for name, _ in TOUR) + "quit\r\n"
    wanted = "".join((f"VALUE {name} 0 {len(value)}\r\n{value}\r\n" if value is not None else "") + "END\r\n" for name, value in TOUR)
    for asked in (text, text.replace("quit\r\n", "")):
        with server.connect() as s:
            s.sendall(asked.encode())
            s.shutdown(socket.SHUT_WR)
            got = b""
            while part := s.recv(1 << 16):
                got += part
        assert got.decode() == wanted
        with server.raw() as c:
            c.ask(b"flush_all\r\n")
