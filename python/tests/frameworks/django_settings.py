"""A Django project for tests in one process: `use(address, **more)` has the cache for the time of a `with`."""

import contextlib

import django
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings

if not settings.configured:
    settings.configure(
        SECRET_KEY="not a secret",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="django_settings",
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.sessions", "cattlegrid.django"],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    )
    django.setup()

urlpatterns = []


@contextlib.contextmanager
def use(address, **more):
    params = {"BACKEND": "cattlegrid.django.Cache", "LOCATION": address, **more}
    with override_settings(CACHES={"default": params}):
        yield caches["default"]
