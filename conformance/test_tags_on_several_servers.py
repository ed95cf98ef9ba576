"""The code of docs/tags.md, section Several servers: an invalidation reaches every server, by four client libraries. (The Rust client's is
in its own tests.)"""

import re
import subprocess

import pylibmc
import pytest
from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient

from crowd import write_rules
from harness import ROOT, tool

pytestmark = pytest.mark.only_cattlegrid

RULES = '[[rule]]\nmatch = "page:{user}:{n}"\ntags = ["user:{user}"]\n'


def code(language, mark=""):
    """The block of this language in the section."""
    text = (ROOT / "docs" / "tags.md").read_text()
    section = text.split("\n## Several servers\n")[1].split("\n## ")[0]
    blocks = [block for block in re.findall(rf"```{language}\n(.*?)```", section, re.S) if mark in block]
    assert len(blocks) == 1, blocks
    return blocks[0]


@pytest.fixture
def servers(start, open_dir):
    path = write_rules(open_dir, RULES)
    return [start("--config", path).address for _ in range(3)]


@pytest.fixture
def fill(servers):
    """Stores pages of the user and of another one on every server; what is left of each afterwards."""
    each = [Client(server) for server in servers]
    for one in each:
        for key in ("page:12543:1", "page:9:1"):
            assert one.set(key, b"x", noreply=False)
    return lambda: [(one.get("page:12543:1"), one.get("page:9:1")) for one in each]


ALL_GONE = [(None, b"x")] * 3


def test_through_a_ring_one_server_is_reached(servers, fill):
    cache = HashClient(servers)
    cache.delete("@tag:user:12543", noreply=False)
    assert sorted(user is None for user, _ in fill()) == [False, False, True]


def test_pymemcache(servers, fill):
    exec(code("python", "# pymemcache\n"), {"cache": HashClient(servers)})
    assert fill() == ALL_GONE


def test_pylibmc(servers, fill):
    exec(code("python", "# pylibmc\n"), {"pylibmc": pylibmc, "servers": servers})
    assert fill() == ALL_GONE


def run(command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_php_memcached(servers, fill):
    listed = ", ".join(f"'{server}'" for server in servers)
    run([tool("php")], f"<?php\n$servers = [{listed}];\n" + code("php"))
    assert fill() == ALL_GONE
    dead = "<?php\n$servers = ['127.0.0.1:1'];\ntry {\n" + code("php") + "} catch (RuntimeException $e) { exit(0); }\nexit(1);\n"
    run([tool("php")], dead)


def test_dalli(servers, fill):
    run([tool("ruby"), "-W0"], f"require 'dalli'\nservers = {servers!r}\n" + code("ruby"))
    assert fill() == ALL_GONE
