"""The Node clients: npm `memcached`, `memcache-client` and `memjs` (binary protocol only)."""

import pathlib
import subprocess

import pytest

from harness import tool, wait_until

NODE = pathlib.Path(__file__).parent / "node"


def run(script, *args):
    """Runs a script; its lines. Its own assertions decide."""
    assert (NODE / "node_modules" / script.removesuffix(".js")).is_dir(), "client missing; run conformance/setup.sh"
    done = subprocess.run(
        [tool("node"), "--no-deprecation", script, *map(str, args)], cwd=NODE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("script, groups", [("memcached.js", 9), ("memcache-client.js", 9)])
def test_every_operation(start, script, groups):
    server = start()
    assert len(run(script, server.port)) == groups
    assert server.running(), server.log()


def test_memjs_and_the_binary_protocol(start, kind, key):
    """Refused cleanly: each call is an error, and text clients see nothing of it."""
    server = start()
    lines = run("memjs.js", server.port, "refused" if kind == "cattlegrid" else "served")
    assert len(lines) == 10
    with server.raw() as c:
        assert c.set(key.encode(), b"v") == b"STORED" and c.get(key.encode()) == b"v"
    if kind == "cattlegrid":
        wait_until("refused connections are not kept", lambda: int(server.stats()["curr_connections"]) <= 3)
