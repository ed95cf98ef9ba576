"""Servers for the tests of this folder."""

import os
import shutil
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "frameworks"))
import servers  # noqa: E402

RULES = """
[[rule]]
match = "page:{user}:{id}"
hold = "4s"
grace = "30s"

[objects]
"""


def started(kind, rules=RULES):
    """A server that runs; where there is none, the test is skipped, unless CATTLEGRID_SET_UP says that all is there."""
    there = shutil.which("memcached") if kind == "memcached" else servers.cattlegrid_binary()
    if not there:
        missing = "memcached" if kind == "memcached" else "the server's binary: set CATTLEGRID_BIN"
        (pytest.fail if os.environ.get("CATTLEGRID_SET_UP") else pytest.skip)(f"{missing} is missing")
    return servers.Server(kind, rules=rules)
