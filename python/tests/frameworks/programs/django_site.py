"""A Django project in one file, served by gunicorn. Environment: CACHE (an address), COUNTS (a file: a line for each computation),
COMPUTE (seconds)."""

import os
import time

import django
from django.conf import settings
from django.core.cache import cache
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.template import Context, Engine
from django.urls import path

settings.configure(
    DEBUG=False,
    SECRET_KEY="not a secret",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["cattlegrid.django"],
    CACHES={"default": {"BACKEND": "cattlegrid.django.Cache", "LOCATION": os.environ["CACHE"]}},
)
django.setup()

from cattlegrid.django import cache_page  # noqa: E402


def compute(name):
    with open(os.environ["COUNTS"], "a") as counts:
        counts.write(f"{name}\n")
    time.sleep(float(os.environ["COMPUTE"]))
    return f"{name} of process {os.getpid()} at {time.time()}"


@cache_page(60, tags=["page:{key}", "pages"] if "TAGS" in os.environ else [])
def page(request, key):
    return HttpResponse(compute(f"page {key}"))


@cache_page(2)
def short(request, key):
    return HttpResponse(compute(f"short {key}"))


@cache_page(60)
def private(request, key):
    response = HttpResponse(compute(f"private {key}"))
    response["Cache-Control"] = "private"
    return response


def value(request, key):
    return HttpResponse(cache.get_or_set(f"page:{key}", lambda: compute(f"value {key}"), 60))


FRAGMENT = Engine(libraries={"cattlegrid": "cattlegrid.django.templatetags.cattlegrid"}).from_string(
    "{% load cattlegrid %}{% cache 60 box key %}{{ compute }}{% endcache %}"
)


def fragment(request, key):
    return HttpResponse(FRAGMENT.render(Context({"key": key, "compute": lambda: compute(f"fragment {key}")})))


def invalidate(request, tag):
    return HttpResponse(str(cache.invalidate(tag, soft="soft" in request.GET)))


urlpatterns = [
    path("page/<str:key>", page),
    path("short/<str:key>", short),
    path("private/<str:key>", private),
    path("value/<str:key>", value),
    path("fragment/<str:key>", fragment),
    path("invalidate/<str:tag>", invalidate),
]
application = get_wsgi_application()
