"""Fixtures of the client's tests: each kind of server, blocking and under asyncio."""

import gc

import pytest
from herd_support import KINDS, Caches, Server


def pytest_collection_finish(session):
    """What is there now stays: a test that collects garbage looks at what it has made itself, and not at all modules."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=KINDS)
def server(request):
    """A server of each kind, of this test alone."""
    with Server(request.param) as running:
        yield running


@pytest.fixture
def memcached():
    with Server("memcached") as running:
        yield running


@pytest.fixture
def plain():
    with Server("plain") as running:
        yield running


@pytest.fixture
def ruled():
    with Server("rules") as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def caches(request):
    """Makes caches: blocking ones, or those of asyncio behind blocking calls."""
    made = Caches(request.param == "asyncio")
    yield made
    made.close()


@pytest.fixture
def blocking():
    made = Caches(False)
    yield made
    made.close()
