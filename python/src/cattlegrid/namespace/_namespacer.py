"""Namespacers: the machine over a cache, blocking and for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from typing import Any, Callable, Iterable, List, Optional, Tuple

from cattlegrid.client import AsyncCache, Cache

from ._key import Logical, Namespace, NamespacedKey, Naming, Pairs, pairs_of
from ._machine import Machine, Steps
from ._options import NamespacerOptions
from ._store import over_cache

NamedPairs = Iterable[Tuple[str, Pairs]]
"""Names of keys, each with its namespaces."""


_all: weakref.WeakSet[_Shared] = weakref.WeakSet()


class _Shared:
    """What a namespacer is, blocking or not."""

    def __init__(self, cache: Any, options: Optional[NamespacerOptions], more: Any) -> None:
        if options is None:
            options = NamespacerOptions(**more)
        elif more:
            raise TypeError(f"options, or {', '.join(more)}, and not both")
        self._cache = cache
        self._machine = Machine(options)
        _all.add(self)

    def _forget(self) -> None:
        self._machine.forget()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cache!r}, {self._machine.options!r})"

    @property
    def options(self) -> NamespacerOptions:
        """The options."""
        return self._machine.options

    def _keys(self, logicals: Callable[[Naming], List[Logical]]) -> Steps[List[NamespacedKey]]:
        return self._machine.keys(logicals)

    def _update(self, pairs: List[Tuple[str, object]]) -> Steps[None]:
        def namespaces(naming: Naming) -> List[Namespace]:
            return [naming.namespace(name, id) for name, id in pairs]

        return self._machine.update(namespaces)


class Namespacer(_Shared):
    """Makes keys that can be invalidated by namespace, such as all keys of a user. May be used by many threads.

    ``cache`` is a :class:`Cache`, or any object with pymemcache's interface. Nothing is asked before the first call, or
    :meth:`open`. Options are those of :class:`NamespacerOptions`, as one object or by name: ``Namespacer(cache,
    prefix="shop:")``.

    Over servers with tags a key has the tags of its namespaces, and an update invalidates the tag: the ``Cache`` takes
    them from the key. Over other servers, and with ``use_tags=False``, numbers in the keys do the same. An update by
    any process is seen by each key made after it. What is stored under a key that was made before an update is not
    found by a key made after it; with tags that holds for values stored before the update, and for all values of keys
    that a rule of the server matches or that are filled under a lease.

    The record says which way is used, for all processes. When a server without tags takes the place of one with tags,
    processes notice it within five seconds while they make keys, or at the next update, and go on with numbers.

    The clocks of all processes should agree: a rolling flush begins and ends in each process by its own clock.
    """

    def __init__(self, cache: Any, options: Optional[NamespacerOptions] = None, **more: Any) -> None:
        super().__init__(cache if isinstance(cache, Cache) else Cache(cache), options, more)
        self._turn = threading.Lock()

    def _forget(self) -> None:
        super()._forget()
        self._turn = threading.Lock()

    def _run(self, steps: Steps[Any]) -> Any:
        cache = self._cache
        return cache._run(over_cache(steps, cache._calls, self._turn.acquire, self._turn.release))

    @property
    def cache(self) -> Cache:
        """The cache."""
        cache: Cache = self._cache
        return cache

    def open(self) -> Namespacer:
        """Reads the record of the prefix, or creates it, and asks whether the servers have tags, unless that was done.
        Returns itself.

        Raises :class:`SettingsDiffer`: other processes have other options; :class:`NamespaceError`: the item
        ``PREFIXrecord`` was written by another program or version; those of the cache.
        """
        self._run(self._machine.open())
        return self

    def uses_tags(self) -> bool:
        """Whether tags are used, not numbers."""
        self.open()
        return self._machine.tags

    def key(self, name: str, id: object) -> NamespacedKey:
        """The key of a namespace: ``key("userId", 1234)``.

        Costs one read of the record, and one of the namespace's number if it may have been updated. With tags the
        record is read once a second at most. Make the key anew for each use: it is what an update changes.

        Raises ``ValueError``: a part is empty, the key can become longer than 250 bytes, or, with tags, a tag longer
        than 200; ``TypeError``: the id is neither text nor a whole number; and as :meth:`open`.
        """
        return self._run(self._keys(lambda naming: [naming.single(name, id)]))[0]  # type: ignore[no-any-return]

    def key_of(self, name: str, namespaces: Pairs) -> NamespacedKey:
        """A key with a name of its own in one to seven namespaces: ``key_of("lastWatched", {"userId": 12543, "prodId":
        549})``.

        Raises as :meth:`key`; ``ValueError``: no namespace, or more than seven.
        """
        pairs = pairs_of(namespaces)
        return self._run(self._keys(lambda naming: [naming.named(name, pairs)]))[0]  # type: ignore[no-any-return]

    def keys(self, namespaces: Pairs) -> List[NamespacedKey]:
        """:meth:`key` of many namespaces, with one read of the record and at most one of all numbers, in their
        order."""
        pairs = pairs_of(namespaces)
        return self._run(self._keys(lambda naming: [naming.single(*pair) for pair in pairs]))  # type: ignore[no-any-return]

    def keys_of(self, keys: NamedPairs) -> List[NamespacedKey]:
        """:meth:`key_of` for many keys, with one read of the record and at most one of all numbers, in their order."""
        named = [(name, pairs_of(namespaces)) for name, namespaces in keys]
        return self._run(self._keys(lambda naming: [naming.named(*one) for one in named]))  # type: ignore[no-any-return]

    def update(self, name: str, id: object) -> None:
        """Invalidates all keys of a namespace. Raises as :meth:`key`; after an error of the cache the update may have
        been made or not: call it again."""
        self._run(self._update([(name, id)]))

    def update_many(self, namespaces: Pairs) -> None:
        """:meth:`update` of many namespaces, with one change of the record. After an error of the cache each of the
        updates may have been made or not."""
        self._run(self._update(pairs_of(namespaces)))

    def flush_all_rolling(self) -> None:
        """Changes all keys of this prefix, each at its own time within ``rolling_period``. At most three flushes are in
        progress at a time: another ends the oldest at once. With tags, other processes notice it within a second.

        Raises ``ValueError``: without the optimization there is no master number. Otherwise as :meth:`update`.
        """
        self._run(self._machine.flush())


class AsyncNamespacer(_Shared):
    """:class:`Namespacer` for asyncio, over an :class:`AsyncCache`: the same methods, to be awaited."""

    def __init__(self, cache: Any, options: Optional[NamespacerOptions] = None, **more: Any) -> None:
        super().__init__(cache if isinstance(cache, AsyncCache) else AsyncCache(cache), options, more)
        # A lock belongs to the loop in which it was first waited for.
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def _run(self, steps: Steps[Any]) -> Any:
        cache = self._cache
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        return await cache._run(over_cache(steps, cache._calls, turn.acquire, turn.release))

    @property
    def cache(self) -> AsyncCache:
        """The cache."""
        cache: AsyncCache = self._cache
        return cache

    async def open(self) -> AsyncNamespacer:
        """See :meth:`Namespacer.open`."""
        await self._run(self._machine.open())
        return self

    async def uses_tags(self) -> bool:
        """See :meth:`Namespacer.uses_tags`."""
        await self.open()
        return self._machine.tags

    async def key(self, name: str, id: object) -> NamespacedKey:
        """See :meth:`Namespacer.key`."""
        keys: List[NamespacedKey] = await self._run(self._keys(lambda naming: [naming.single(name, id)]))
        return keys[0]

    async def key_of(self, name: str, namespaces: Pairs) -> NamespacedKey:
        """See :meth:`Namespacer.key_of`."""
        pairs = pairs_of(namespaces)
        keys: List[NamespacedKey] = await self._run(self._keys(lambda naming: [naming.named(name, pairs)]))
        return keys[0]

    async def keys(self, namespaces: Pairs) -> List[NamespacedKey]:
        """See :meth:`Namespacer.keys`."""
        pairs = pairs_of(namespaces)
        keys: List[NamespacedKey] = await self._run(self._keys(lambda naming: [naming.single(*pair) for pair in pairs]))
        return keys

    async def keys_of(self, keys: NamedPairs) -> List[NamespacedKey]:
        """See :meth:`Namespacer.keys_of`."""
        named = [(name, pairs_of(namespaces)) for name, namespaces in keys]
        made: List[NamespacedKey] = await self._run(self._keys(lambda naming: [naming.named(*one) for one in named]))
        return made

    async def update(self, name: str, id: object) -> None:
        """See :meth:`Namespacer.update`."""
        await self._run(self._update([(name, id)]))

    async def update_many(self, namespaces: Pairs) -> None:
        """See :meth:`Namespacer.update_many`."""
        await self._run(self._update(pairs_of(namespaces)))

    async def flush_all_rolling(self) -> None:
        """See :meth:`Namespacer.flush_all_rolling`."""
        await self._run(self._machine.flush())


def _after_fork() -> None:
    """Locks may be held by threads of the parent."""
    for namespacer in list(_all):
        namespacer._forget()


os.register_at_fork(after_in_child=_after_fork)
