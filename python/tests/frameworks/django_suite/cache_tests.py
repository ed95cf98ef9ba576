"""Django's own tests of caches, pages and fragments, with `cattlegrid.django.Cache` as the cache. `test_django_suite.py`
puts this file into the folder `tests/cache` of Django's source distribution, where Django's runner finds it.

Environment: CACHE_PORT.
"""

import os
import pickle

from django.core.cache import cache, caches
from django.test import TestCase, override_settings
from template_tests.syntax_tests.test_cache import CacheTagTests, CacheTests

from cattlegrid.django import Cache as Backend

from . import tests

PARAMS = {"BACKEND": "cattlegrid.django.Cache", "LOCATION": f"127.0.0.1:{os.environ['CACHE_PORT']}"}
LIBRARY = "cattlegrid.django.templatetags.cattlegrid"


def only(**more):
    return {"default": {**PARAMS, **more}}


@override_settings(CACHES=tests.caches_setting_for_tests(base=PARAMS, exclude=tests.memcached_excluded_caches))
class CattlegridTests(tests.BaseMemcachedTests, TestCase):
    base_params = PARAMS
    # Connections belong to the process.
    should_disconnect_on_close = False

    def test_highest_pickle_version(self):
        for alias in ("default", "prefix"):
            _, flags = caches[alias]._cache.serde.serialize("key", {"a": 1})
            data, _ = caches[alias]._cache.serde.serialize("key", {"a": 1})
            self.assertEqual((flags, data[:2]), (1, bytes([0x80, pickle.HIGHEST_PROTOCOL])))

    def test_is_the_backend(self):
        self.assertIs(type(caches["default"]), Backend)


@override_settings(CACHES=only())
class Utils(tests.CacheUtils):
    pass


@override_settings(CACHES=only(KEY_PREFIX="cacheprefix"))
class PrefixedUtils(tests.PrefixedCacheUtils):
    pass


@override_settings(CACHES=only())
class HeadTest(tests.CacheHEADTest):
    pass


@override_settings(CACHES=only())
class I18nTest(tests.CacheI18nTest):
    pass


@override_settings(CACHES=only(KEY_PREFIX="cacheprefix"))
class PrefixedI18nTest(tests.PrefixedCacheI18nTest):
    pass


@override_settings(CACHES={**only(), "other": {**PARAMS, "KEY_PREFIX": "other", "TIMEOUT": "1"}})
class MiddlewareTest(tests.CacheMiddlewareTest):
    pass


@override_settings(CACHES=only())
class TemplateResponseTest(tests.TestWithTemplateResponse):
    pass


@override_settings(CACHES=only())
class TagTests(CacheTagTests):
    """The template tag, in place of Django's own."""

    libraries = {**CacheTagTests.libraries, "cache": LIBRARY}


@override_settings(CACHES=only())
class TagInternals(CacheTests):
    """Django's own tag over this cache."""

    def tearDown(self):
        cache.clear()
