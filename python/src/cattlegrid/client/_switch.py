"""Which transport a cache uses: its servers, or memory in their place, for tests."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from ._errors import UsageError
from ._memory import MODES, AsyncMemoryTransport, MemoryTransport, Store

VARIABLE = "CATTLEGRID_CACHE"
"""The environment variable that switches all caches of a process."""


class Stores:
    """Memory in place of servers: one store for each list of servers and prefix."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._stores: Dict[str, Store] = {}

    def store_of(self, cache: Any) -> Store:
        """That of a cache."""
        name = f"{cache._servers_name} {cache.prefix}"
        if name not in self._stores:
            self._stores[name] = Store(self.mode, cache._prefix)
        return self._stores[name]

    def clear(self) -> None:
        """Forgets everything."""
        self._stores.clear()


_own: Dict[str, Stores] = {}
everywhere: List[Stores] = []
"""The switches of all caches of this process, the one that holds at the end."""


def checked(mode: str) -> str:
    """A mode. Raises :class:`UsageError`."""
    if mode not in MODES:
        raise UsageError(f"{mode!r}: a cache is switched to {', '.join(MODES)}")
    return mode


def set_up(cache: Any, servers: Any, testing: Optional[str], is_async: bool) -> None:
    """When a cache is made, and has the transport of its servers."""
    cache._real = cache._transport
    cache._is_async = is_async
    cache._servers_name = str(servers) if isinstance(servers, (str, list, tuple)) else f"{type(servers)} {id(servers)}"
    cache._switches = []
    mode = testing or os.environ.get(VARIABLE) or None
    cache._own_mode = None if mode is None else _own.setdefault(checked(mode), Stores(mode))
    cache._transport = _transport_of(cache)


def _transport_of(cache: Any) -> Any:
    switches = cache._switches or everywhere
    stores: Optional[Stores] = switches[-1] if switches else cache._own_mode
    if stores is None:
        return cache._real
    kind = AsyncMemoryTransport if cache._is_async else MemoryTransport
    return kind(stores.store_of(cache), cache.metrics)


def apply(cache: Any) -> None:
    """After a switch has changed."""
    transport = _transport_of(cache)
    cache._transport = cache._herd.asker.transport = cache._calls._transport = transport
    if cache._calls.near is not None:
        cache._calls.near.clear()
