"""The ring of the Rust client against pylibmc's: each finds what the other has written, on the same server.

Five servers of the kind under test, one of them on port 11211, whose points leave the port out, and one given by its host name.
"""

import collections
import os
import random
import socket
import subprocess

import pylibmc
import pytest

import harness

# The first test builds a program, and may have to wait for other builds.
pytestmark = pytest.mark.timeout(1200)

KEYS = 10_000
DEFAULT_PORT = 11211
SHARDINGS = ("ketama", "ketama_weighted")
WEIGHTS = {"equal": (1, 1, 1, 1, 1), "different": (1, 2, 5, 3, 9)}


@pytest.fixture(scope="module")
def ring_program():
    """The example `ring` of the client crate. `CATTLEGRID_CLIENT_RING` names it if it is built already (a relative path begins at
    the top directory)."""
    given = os.environ.get("CATTLEGRID_CLIENT_RING")
    if given:
        return os.path.join(harness.ROOT, given)
    command = ["cargo", "build", "--quiet", "--locked", "-p", "cattlegrid-client", "--example", "ring"]
    subprocess.run(command, cwd=harness.ROOT, check=True, timeout=1800)
    target = os.environ.get("CARGO_TARGET_DIR", harness.ROOT / "target")
    return os.path.join(target, "debug", "examples", "ring")


@pytest.fixture
def ring(ring_program):
    def run(sharding, what, servers, keys):
        done = subprocess.run([ring_program, sharding, what, *servers], input="\n".join(keys) + "\n", capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return dict(line.split("\t") for line in done.stdout.splitlines())

    return run


def address_with_default_port():
    """A loopback address whose port 11211 is free. Two processes look at different ones."""
    for number in range(os.getpid(), os.getpid() + 254):
        host = f"127.{number // 254 // 256 % 256}.{number // 254 % 256}.{number % 254 + 1}"
        with socket.socket() as s:
            try:
                s.bind((host, DEFAULT_PORT))
            except OSError:
                continue
            return host
    raise AssertionError("port 11211 is in use on many loopback addresses")


class Node:
    """A server and its name in both forms of a list."""

    def __init__(self, server, host, port, connect_to):
        self.server, self.host, self.port, self.connect_to = server, host, port, connect_to

    def theirs(self, weight):
        return f"{self.host}:{self.port}:{weight}"

    def ours(self, weight):
        return f"{self.host}:{self.port}={weight}"

    def raw(self):
        return harness.Raw(socket.create_connection((self.connect_to, self.port), 20))

    def has(self, keys):
        """Which of these keys are here, asked for directly, many at a time."""
        found = {}
        with self.raw() as c:
            for at in range(0, len(keys), 100):
                c.send(b"get " + b" ".join(key.encode() for key in keys[at : at + 100]) + b"\r\n")
                while (line := c.line()) != b"END":
                    _, key, _, size = line.split()
                    found[key.decode()] = c.exactly(int(size) + 2)[:-2]
        return found

    def flush(self):
        with self.raw() as c:
            c.send(b"flush_all\r\n")
            assert c.line() == b"OK"


@pytest.fixture
def nodes(start):
    host = address_with_default_port()
    out = [Node(start("-l", host, "-p", DEFAULT_PORT), host, DEFAULT_PORT, host)]
    for name in ("127.0.0.1", "127.0.0.1", "127.0.0.1", "localhost"):
        server = start()
        out.append(Node(server, name, server.port, "127.0.0.1"))
    return out


def some_keys():
    chosen = random.Random(11211)
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_-./%é語"
    keys = {"".join(chosen.choice(letters) for _ in range(chosen.randint(1, 60))) for _ in range(KEYS)}
    number = 0
    while len(keys) < KEYS:
        keys.add(f"page:{number}")
        number += 1
    return sorted(keys)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_keys_are_on_the_servers_that_pylibmc_gives_them(nodes, ring, sharding, weights):
    theirs = pylibmc.Client([node.theirs(weight) for node, weight in zip(nodes, weights)], behaviors={sharding: True})
    ours = [node.ours(weight) for node, weight in zip(nodes, weights)]
    keys = some_keys()
    expected = {key: key for key in keys}

    for key in keys:
        assert theirs.set(key, key.encode())
    assert ring(sharding, "get", ours, keys) == expected
    by_theirs = [set(node.has(keys)) for node in nodes]

    for node in nodes:
        node.flush()
    ring(sharding, "set", ours, keys)
    assert {key: value.decode() for key, value in theirs.get_multi(keys).items()} == expected
    by_ours = [set(node.has(keys)) for node in nodes]

    assert by_ours == by_theirs
    counts = collections.Counter({place: len(of_node) for place, of_node in enumerate(by_ours)})
    assert sum(counts.values()) == KEYS and all(counts[place] for place in range(len(nodes))), counts


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_server_is_hashed_by_the_name_that_is_given(nodes, ring, sharding):
    """The same servers by other names are another ring, for both clients the same one."""
    keys = some_keys()[:2000]
    placed = []
    for given in ({}, {"localhost": "127.0.0.1"}):
        for node in nodes:
            node.host = given.get(node.host, node.host)
            node.flush()
        theirs = pylibmc.Client([node.theirs(1) for node in nodes], behaviors={sharding: True})
        for key in keys:
            assert theirs.set(key, key.encode())
        assert len(ring(sharding, "get", [node.ours(1) for node in nodes], keys)) == len(keys)
        placed.append([set(node.has(keys)) for node in nodes])
    assert placed[0] != placed[1]


def test_the_default_port_may_be_left_out(nodes, ring):
    keys = some_keys()[:2000]
    long = [node.ours(1) for node in nodes]
    ring("ketama", "set", long, keys)
    short = [node.host if node.port == DEFAULT_PORT else node.ours(1) for node in nodes]
    assert short != long
    assert len(ring("ketama", "get", short, keys)) == len(keys)
    assert nodes[0].has(keys)
