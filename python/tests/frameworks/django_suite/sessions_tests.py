"""Django's own tests of sessions, with `cattlegrid.django.Cache` as the cache, as `cache_tests.py`.

Environment: CACHE_PORT.
"""

import os

from django.core.cache import cache
from django.test import override_settings

from . import tests as sessions


def only():
    return {"default": {"BACKEND": "cattlegrid.django.Cache", "LOCATION": f"127.0.0.1:{os.environ['CACHE_PORT']}"}}


@override_settings(CACHES=only())
class SessionTests(sessions.CacheSessionTests):
    def tearDown(self):
        super().tearDown()
        cache.clear()


@override_settings(CACHES=only())
class DatabaseSessionTests(sessions.CacheDBSessionTests):
    def tearDown(self):
        super().tearDown()
        cache.clear()
