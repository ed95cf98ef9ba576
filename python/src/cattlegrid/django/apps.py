"""The application: it brings the template tag library ``cattlegrid``."""

from django.apps import AppConfig


class CattlegridConfig(AppConfig):
    """``INSTALLED_APPS = [..., "cattlegrid.django"]``."""

    name = "cattlegrid.django"
    label = "cattlegrid"
    verbose_name = "Cattlegrid"
