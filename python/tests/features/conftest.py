"""Servers for these tests: memcached, Cattlegrid without a rule file, and Cattlegrid with rules and objects."""

import asyncio

import pytest
from features_kit import started


@pytest.fixture(scope="module")
def all_servers():
    """One server of each kind for a module."""
    running = {}

    def of(kind):
        if kind not in running:
            running[kind] = started(kind)
        return running[kind]

    yield of
    for server in running.values():
        server.stop()


@pytest.fixture(params=["memcached", "plain", "rules"])
def server(request, all_servers):
    """Each kind of server, empty."""
    running = all_servers(request.param)
    running.ask("flush_all")
    return running


@pytest.fixture
def ruled(all_servers):
    """Cattlegrid with rules and objects, empty."""
    running = all_servers("rules")
    running.ask("flush_all")
    return running


@pytest.fixture
def memcached(all_servers):
    running = all_servers("memcached")
    running.ask("flush_all")
    return running


@pytest.fixture
def run():
    """Runs a coroutine to its end."""
    return asyncio.run
