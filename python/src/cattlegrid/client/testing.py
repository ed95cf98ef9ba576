"""A switch for tests: the cache off, in memory only, or without anything to be found.

::

    from cattlegrid.client import testing

    with testing.memory():          # all caches of this process; testing.memory(cache): these only
        ...

=============
=========================================================================================================== ``off``
nothing is stored, and every caller computes; no server is needed ``memory``     everything works, in this process's
memory, which is empty at first; no server is needed ``misses``     what is stored is never found, so that every caller
computes, and finds its value stored =============
===========================================================================================================

In memory there are tags, quotas, sliding limits and locks. In ``off`` and ``misses`` quotas, limits and locks are
always granted.

The functions are context managers and decorators of plain functions; in asynchronous code ``with`` is right, too. The
environment variable ``CATTLEGRID_CACHE`` (``off``, ``memory`` or ``miss``) does the same for a whole process, and
``Cache(..., testing="memory")`` for one cache, such as in the ``OPTIONS`` of Django's settings.

For pytest: ``pytest_plugins = ["cattlegrid.client.testing"]`` in ``conftest.py`` gives the fixtures ``cattlegrid_off``,
``cattlegrid_memory`` and ``cattlegrid_misses``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List

from . import _async_cache, _cache, _switch
from ._memory import MEMORY, MISS, OFF


class Switch(contextlib.ContextDecorator):
    """Caches are switched while it is entered. It may be entered again afterwards, and is empty then."""

    def __init__(self, mode: str, caches: Any) -> None:
        self.mode = _switch.checked(mode)
        self._caches = caches
        self._entered: List[_switch.Stores] = []

    def __enter__(self) -> Switch:
        stores = _switch.Stores(self.mode)
        self._entered.append(stores)
        if self._caches:
            for cache in self._caches:
                cache._switches.append(stores)
                _switch.apply(cache)
        else:
            _switch.everywhere.append(stores)
            _apply_to_all()
        return self

    def __exit__(self, *failure: object) -> None:
        stores = self._entered.pop()
        if self._caches:
            for cache in self._caches:
                cache._switches.remove(stores)
                _switch.apply(cache)
        else:
            _switch.everywhere.remove(stores)
            _apply_to_all()

    def clear(self) -> None:
        """Empties the memory."""
        for stores in self._entered:
            stores.clear()
        for cache in self._caches or _all():
            _switch.apply(cache)


def off(*caches: Any) -> Switch:
    """Nothing is stored, and every caller computes."""
    return Switch(OFF, caches)


def memory(*caches: Any) -> Switch:
    """Everything is in this process's memory, which is empty at first."""
    return Switch(MEMORY, caches)


def misses(*caches: Any) -> Switch:
    """What is stored is never found."""
    return Switch(MISS, caches)


def _all() -> List[Any]:
    return [*_cache._all, *_async_cache._all]


def _apply_to_all() -> None:
    for cache in _all():
        _switch.apply(cache)


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def cattlegrid_off() -> Iterator[Switch]:
        """All caches are off."""
        with off() as switch:
            yield switch

    @pytest.fixture
    def cattlegrid_memory() -> Iterator[Switch]:
        """All caches are in memory, which is empty at first."""
        with memory() as switch:
            yield switch

    @pytest.fixture
    def cattlegrid_misses() -> Iterator[Switch]:
        """Nothing is found in any cache."""
        with misses() as switch:
            yield switch
