"""The Node clients: npm `memcached`, `memcache-client` and, over the binary protocol, `memjs`."""

import pathlib
import subprocess

import pytest

from harness import tool
from test_operations import users  # noqa: F401

NODE = pathlib.Path(__file__).parent / "node"


def run(script, *args):
    """Runs a script; its lines. Its own assertions decide."""
    assert (NODE / "node_modules" / script.removesuffix(".js")).is_dir(), "client missing; run conformance/setup.sh"
    done = subprocess.run(
        [tool("node"), "--no-deprecation", script, *map(str, args)], cwd=NODE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("script, groups", [("memcached.js", 9), ("memcache-client.js", 9), ("memjs.js", 9)])
def test_every_operation(start, script, groups):
    server = start()
    assert len(run(script, server.port)) == groups
    assert server.running(), server.log()


@pytest.mark.only_cattlegrid
def test_memjs_logs_in(start, users):  # noqa: F811
    server = start("-S", "-Y", users)
    assert len(run("memjs.js", server.port, "alice", "secret")) == 9
    assert run("memjs.js", server.port, "alice", "wrong", "refused") == ["refused"]
    assert server.running(), server.log()
