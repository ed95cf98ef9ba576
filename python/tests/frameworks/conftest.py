"""Frameworks over Cattlegrid with rules, Cattlegrid without, and memcached. A server that is missing skips its tests, unless
CATTLEGRID_SET_UP says that all is there."""

import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import servers  # noqa: E402

KINDS = os.environ.get("CATTLEGRID_TEST_SERVERS", "memcached plain rules").split()


def started(kind, **more):
    there = shutil.which("memcached") if kind == "memcached" else servers.cattlegrid_binary()
    if not there:
        missing = "memcached" if kind == "memcached" else "the server's binary: set CATTLEGRID_BIN"
        if os.environ.get("CATTLEGRID_SET_UP"):
            pytest.fail(f"{missing} is missing")
        pytest.skip(f"{missing} is missing")
    return servers.Server(kind, **more)


@pytest.fixture(params=KINDS)
def server(request):
    """Each kind of server."""
    running = started(request.param)
    yield running
    running.stop()


@pytest.fixture
def ruled():
    """Cattlegrid with rules."""
    running = started("rules")
    yield running
    running.stop()


@pytest.fixture
def memcached():
    running = started("memcached")
    yield running
    running.stop()


@pytest.fixture
def environment():
    """The environment of a program that a test starts."""
    paths = [str(HERE.parents[1] / "src"), str(HERE), str(HERE / "programs")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


# Files that belong into the folders of other suites.
collect_ignore = ["flask_suite", "django_suite", "dogpile_suite.py"]
