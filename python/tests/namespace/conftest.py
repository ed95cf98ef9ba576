"""Servers for these tests: memcached, Cattlegrid without a rule file, and Cattlegrid with one."""

import asyncio
import os

import pytest
from namespace_kit import Rust, Several

KINDS = os.environ.get("CATTLEGRID_TEST_SERVERS", "memcached plain rules").split()


@pytest.fixture(params=KINDS)
def three(request):
    """Three servers of each kind."""
    several = Several(request.param, 3)
    yield several
    several.stop()


@pytest.fixture(params=KINDS)
def single(request):
    """One server of each kind."""
    several = Several(request.param, 1)
    yield several
    several.stop()


@pytest.fixture
def run():
    """Runs a coroutine to its end."""
    return asyncio.run


@pytest.fixture
def rust():
    """Starts processes of the Rust client."""
    running = []

    def start(*args):
        running.append(Rust(*args))
        return running[-1]

    yield start
    for process in running:
        process.stop()
