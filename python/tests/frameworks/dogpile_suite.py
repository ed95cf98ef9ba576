"""dogpile.cache's own suite for back ends, of its package `dogpile.testing`, over this back end. `test_dogpile_suite.py` runs it.

Environment: CACHE_PORT.
"""

import os

import pytest
from dogpile.cache import register_backend
from dogpile.cache.region import _backend_loader
from dogpile.testing.fixtures import _GenericBackendTestSuite, _GenericMutexTestSuite, _GenericSerializerTestSuite

URL = f"127.0.0.1:{os.environ['CACHE_PORT']}"
LOCK_TIMEOUT = 1

try:
    _backend_loader.load("cattlegrid.dogpile")
except Exception:  # the package is not installed, but on the path
    register_backend("cattlegrid.dogpile", "cattlegrid.dogpile", "CattlegridBackend")


class _Suite(_GenericBackendTestSuite):
    backend = "cattlegrid.dogpile"
    region_args = {"key_mangler": lambda key: key.replace(" ", "_")}


class TestDistributed(_Suite):
    config_args = {"arguments": {"url": URL}}


class TestWithTimeout(_Suite):
    config_args = {"arguments": {"url": URL, "lock_timeout": LOCK_TIMEOUT}}


class TestNotDistributed(_Suite):
    config_args = {"arguments": {"url": URL, "distributed_lock": False}}


class TestExpiring(_Suite):
    config_args = {"arguments": {"url": URL, "ttl": 60}}


class TestMutex(_GenericMutexTestSuite):
    backend = "cattlegrid.dogpile"
    config_args = {"arguments": {"url": URL}}


class TestMutexWithTimeout(_GenericMutexTestSuite):
    backend = "cattlegrid.dogpile"
    config_args = {"arguments": {"url": URL, "lock_timeout": LOCK_TIMEOUT}}


class TestSerializer(_GenericSerializerTestSuite, _Suite):
    config_args = {"arguments": {"url": URL}}


@pytest.mark.skipif("CACHE_TAGS" not in os.environ, reason="the server has no tags")
class TestTagged(_Suite):
    config_args = {"arguments": {"url": URL, "tag": "region"}}
