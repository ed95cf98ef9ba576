"""Flask-Caching's own tests of back ends, over this one."""

import os
import time

import pytest
from test_backend_cache import GenericCacheTests

from cattlegrid.flask_caching import CattlegridCache


class TestCattlegrid(GenericCacheTests):
    _can_use_fast_sleep = False

    @pytest.fixture(params=["", "werkzeug-test-case:"])
    def make_cache(self, request):
        cache = CattlegridCache([f"127.0.0.1:{os.environ['CACHE_PORT']}"], key_prefix=request.param)
        yield lambda: cache
        cache.clear()

    def test_huge_timeouts(self, c):
        assert c.set("foo", "bar", 2592000 + 100)
        assert c.get("foo") == "bar"

    def test_timeouts(self, c):
        c.set("foo", "bar", 1)
        assert c.get("foo") == "bar"
        time.sleep(2.2)
        assert c.has("foo") is False
