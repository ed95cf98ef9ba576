"""A Django project in one file, served by gunicorn. Environment: CACHE_PORT, CACHE_BACKEND (PyMemcacheCache or PyLibMCCache), COUNTS (a
directory: a file for each step, with a byte for each computed value).
"""

import os
import time

import django
from django.conf import settings
from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.template import Context, Engine
from django.urls import path
from django.views.decorators.cache import cache_page

from load import value_of

settings.configure(
    DEBUG=False,
    SECRET_KEY="not a secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    INSTALLED_APPS=["django.contrib.sessions"],
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
    CACHES={
        "default": {
            "BACKEND": f"django.core.cache.backends.memcached.{os.environ['CACHE_BACKEND']}",
            "LOCATION": f"127.0.0.1:{os.environ['CACHE_PORT']}",
        }
    },
)
django.setup()

FRAGMENT = Engine(builtins=["django.templatetags.cache"]).from_string(
    "{% cache ttl sidebar key %}{{ compute }}{% endcache %}"
)


def compute(request, *keys):
    """The values, after the time that computing takes."""
    file = os.open(os.path.join(os.environ["COUNTS"], request.GET["step"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, b"." * len(keys))
    os.close(file)
    time.sleep(float(request.GET["compute"]))
    return [value_of(key) for key in keys]


def ttl_of(request):
    return int(request.GET["ttl"])


def get_or_set(request, key):
    return HttpResponse(cache.get_or_set(key, lambda: compute(request, key)[0], ttl_of(request)))


def get_many(request, prefix, first, count):
    keys = [f"{prefix}{n}" for n in range(first, first + count)]
    found = cache.get_many(keys)
    missing = [key for key in keys if key not in found]
    if missing:
        new = dict(zip(missing, compute(request, *missing)))
        cache.set_many(new, ttl_of(request))
        found.update(new)
    return HttpResponse("\n".join(found[key] for key in keys))


def fragment(request, key):
    return HttpResponse(FRAGMENT.render(Context({"key": key, "ttl": ttl_of(request), "compute": lambda: compute(request, key)[0]})))


def page(request, key):
    """`cache_page`, with a time to live of the request's own."""
    return cache_page(ttl_of(request), key_prefix="shop")(lambda request: HttpResponse(compute(request, key)[0]))(request)


def delete(request, key):
    return HttpResponse(str(cache.delete(key)))


def visit(request):
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse(str(request.session["visits"]))


urlpatterns = [
    path("get_or_set/<str:key>", get_or_set),
    path("get_many/<str:prefix>/<int:first>/<int:count>", get_many),
    path("fragment/<str:key>", fragment),
    path("page/<str:key>", page),
    path("delete/<str:key>", delete),
    path("visit", visit),
]
application = get_wsgi_application()
