"""A cache back end for Django, with tags, where one process computes a missing value.

::

    CACHES = {"default": {"BACKEND": "cattlegrid.django.Cache", "LOCATION": "10.0.0.1:11211"}}
    INSTALLED_APPS = [..., "cattlegrid.django"]  # for {% load cattlegrid %}

**Values are pickled**, as by Django's own back ends: any program that can write to the cache can run code in the processes that read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._backend import Cache, Tags

if TYPE_CHECKING:
    from ._pages import cache_page


def on_commit(tags: Tags, *, cache: str = "default", soft: bool = False, using: Optional[str] = None, robust: bool = False) -> None:
    """:meth:`Cache.on_commit` of the cache with this alias."""
    from django.core.cache import caches

    caches[cache].on_commit(tags, soft, using=using, robust=robust)


def __getattr__(name: str) -> Any:
    # Django imports this module for the template tags, before its settings can be read.
    if name == "cache_page":
        from ._pages import cache_page

        return cache_page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Cache", "cache_page", "on_commit"]
