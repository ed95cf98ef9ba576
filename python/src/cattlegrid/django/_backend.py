"""The cache back end."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from django.core.cache.backends.base import DEFAULT_TIMEOUT, default_key_func
from django.core.cache.backends.memcached import BaseMemcachedCache
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils.functional import cached_property

from cattlegrid._plain import AsyncPlain, Plain
from cattlegrid.client import UsageError
from cattlegrid.client._keys import tag_text

Tags = Union[str, Iterable[str]]


class Client(Plain):
    """The calls that Django's ``BaseMemcachedCache`` makes. One for all threads of a process, and all caches with the same servers and
    options: its connections outlive a request."""

    def disconnect_all(self) -> None:
        """Nothing: connections belong to the process, not to a request."""


class Cache(BaseMemcachedCache):
    """``"BACKEND": "cattlegrid.django.Cache"``.

    ``LOCATION``, ``TIMEOUT``, ``KEY_PREFIX``, ``VERSION`` and ``KEY_FUNCTION`` are as for Django's ``PyMemcacheCache``, and values are
    stored as that stores them. ``OPTIONS`` are those of :class:`cattlegrid.client.Cache`, and ``serde``, ``ignore_exc``,
    ``compress_above``, ``compute_time`` and ``wait``.

    ``tags`` of a call are the tags of what it stores: a list of texts, or one text. Servers without tags raise
    :class:`cattlegrid.client.NoTags`.
    """

    def __init__(self, server: Any, params: Mapping[str, Any]) -> None:
        super().__init__(
            server or "127.0.0.1:11211",
            params,
            library=SimpleNamespace(Client=Client),
            value_not_found_exception=LookupError,
        )
        self._servers: Any = self._servers if isinstance(self._servers, (list, tuple)) else [self._servers]

    @cached_property
    def _cache(self) -> Client:
        return _shared(self._class, list(self.client_servers), self._options)

    @cached_property
    def _async(self) -> AsyncPlain:
        return _shared(AsyncPlain, list(self.client_servers), self._options)

    @property
    def client(self) -> Any:
        """The :class:`cattlegrid.client.Cache` under it, whose keys have no prefix: ``cache.client.get(cache.make_key("a"))``."""
        return self._cache.cache

    def close(self, **kwargs: Any) -> None:
        """Called by Django after each request. Connections stay open."""

    async def aclose(self, **kwargs: Any) -> None:
        """Closes the connections of this event loop."""
        await self._async.close()

    def _key(self, key: Any, version: Optional[int]) -> str:
        made: str = self.make_and_validate_key(key, version=version)
        return made

    def _keys(self, keys: Iterable[Any], version: Optional[int]) -> Dict[str, Any]:
        return {self._key(key, version): key for key in keys}

    def _ttl(self, timeout: Any) -> int:
        ttl: int = self.get_backend_timeout(timeout)
        return ttl

    def _tag_prefix(self, version: Optional[int]) -> Union[str, List[str]]:
        """The prefix of the keys of this version; of a function that makes keys in another way, some keys."""
        if self.key_func is default_key_func:
            return str(self.make_key("", version=version))
        return [self._key(key, version) for key in ("x", "product:7", "2026", "views.decorators.cache")]

    def get(self, key: Any, default: Any = None, version: Optional[int] = None) -> Any:
        """The value."""
        return self._cache.get(self._key(key, version), default)

    def get_many(self, keys: Iterable[Any], version: Optional[int] = None) -> Dict[Any, Any]:
        """The values that there are: one round trip to each server."""
        named = self._keys(keys, version)
        return {named[key]: value for key, value in self._cache.get_multi(named).items()}

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> None:
        """Stores a value."""
        self._cache.set(self._key(key, version), value, self._ttl(timeout), _list(tags))

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> bool:
        """Stores a value if there is none: whether it was stored."""
        return self._cache.add(self._key(key, version), value, self._ttl(timeout), _list(tags))

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> List[Any]:
        """Stores values: the keys that were not stored."""
        named = self._keys(data, version)
        values = {key: data[original] for key, original in named.items()}
        return [named[key] for key in self._cache.set_multi(values, self._ttl(timeout), _list(tags))]

    def touch(
        self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Optional[Tags] = None
    ) -> bool:
        """Gives a value a new timeout; with ``tags``, other tags too."""
        return self._cache.touch(self._key(key, version), self._ttl(timeout), None if tags is None else _list(tags))

    def delete(self, key: Any, version: Optional[int] = None) -> bool:
        """Whether there was one. What is being computed for the key is not stored."""
        return self._cache.delete(self._key(key, version))

    def delete_many(self, keys: Iterable[Any], version: Optional[int] = None) -> None:
        """Deletes values."""
        self._cache.delete_multi(self._keys(keys, version))

    def get_or_set(
        self,
        key: Any,
        default: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: Optional[int] = None,
        *,
        tags: Tags = (),
        compute_time: Any = None,
        wait: Any = None,
    ) -> Any:
        """The value. If it is missing and ``default`` can be called, one process calls it, and the others wait for its value.

        ``compute_time``: a high estimate of the time that ``default`` takes; when it has passed, another process may compute. ``wait``: how
        long to wait for another's value, ``compute_time`` if it is not given; when it has passed, the caller computes for itself. Both are
        seconds, texts such as ``"500ms"`` or timedeltas; 10 s, or the option of that name.
        """
        name, ttl = self._key(key, version), self._ttl(timeout)
        if callable(default):
            return self._cache.get_or_set(name, default, ttl, _list(tags), compute_time, wait)
        value = self._cache.get(name, self._missing_key)
        if value is self._missing_key:
            self._cache.add(name, default, ttl, _list(tags))
            return self._cache.get(name, default)
        return value

    def incr_version(self, key: Any, delta: int = 1, version: Optional[int] = None, *, tags: Tags = ()) -> int:
        """Moves a value to another version, with ``tags``: those that it had are not known here."""
        version = self.version if version is None else version
        value = self.get(key, self._missing_key, version=version)
        if value is self._missing_key:
            raise ValueError(f"Key '{key}' not found")
        self.set(key, value, version=version + delta, tags=tags)
        self.delete(key, version=version)
        return version + delta

    def fetch(
        self,
        key: Any,
        version: Optional[int] = None,
        *,
        tags: Tags = (),
        compute_time: Any = None,
        wait: Any = None,
        is_told: bool = False,
    ) -> Any:
        """What is under :meth:`get_or_set`: see :meth:`cattlegrid.client.Cache.fetch`. With a ``Compute`` the caller has to call
        :meth:`deliver`, :meth:`give_up` or :meth:`fail`. ``is_told``: with an ``Error`` it is told that the computation for which it has
        waited brings nothing to store; otherwise it waits for the next."""
        return self._cache.fetch(self._key(key, version), compute_time, wait, _list(tags), is_told)

    def deliver(self, token: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, *, tags: Tags = ()) -> bool:
        """Stores the value of a token of :meth:`fetch`. False: it is not stored, since the key was deleted or a tag invalidated meanwhile,
        or it came too late."""
        return self._cache.deliver(token, value, self._ttl(timeout), _list(tags))

    def give_up(self, token: Any) -> None:
        """The next caller computes."""
        self._cache.give_up(token)

    def fail(self, token: Any) -> None:
        """The callers of :meth:`get_or_set` that wait compute at once, each for itself. Nothing is kept of it for later callers."""
        self._cache.fail(token)

    def invalidate(self, tags: Tags, soft: bool = False, version: Optional[int] = None) -> Any:
        """Invalidates all values of this prefix and version with any of the tags, on every server: a dictionary of the servers.

        ``soft``: old values are served while new ones are computed, for the ``grace`` of their rule. Raises
        :class:`cattlegrid.client.NoTags`, or an error whose ``servers`` were not reached and still serve their old values.
        """
        return self._cache.invalidate(_list(tags), soft, self._tag_prefix(version))

    def on_commit(
        self, tags: Tags, soft: bool = False, version: Optional[int] = None, *, using: Optional[str] = None, robust: bool = False
    ) -> None:
        """Invalidates when the transaction of the database ``using`` commits; at once if there is none. A transaction that is rolled back,
        to a savepoint too, invalidates nothing. With ``robust`` an error is logged, and the other functions of ``on_commit`` run. A tag
        that is not possible raises :class:`cattlegrid.client.UsageError` before the commit."""
        names = [tag_text(tag) for tag in _list(tags)]

        def invalidate() -> None:
            self.invalidate(names, soft, version)

        if robust:
            transaction.on_commit(invalidate, using=using, robust=True)
        else:
            transaction.on_commit(invalidate, using=using)

    async def aget(self, key: Any, default: Any = None, version: Optional[int] = None) -> Any:
        """See :meth:`get`."""
        return await self._async.get(self._key(key, version), default)

    async def aget_many(self, keys: Iterable[Any], version: Optional[int] = None) -> Dict[Any, Any]:
        """See :meth:`get_many`."""
        named = self._keys(keys, version)
        return {named[key]: value for key, value in (await self._async.get_multi(named)).items()}

    async def aset(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> None:
        """See :meth:`set`."""
        await self._async.set(self._key(key, version), value, self._ttl(timeout), _list(tags))

    async def aadd(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> bool:
        """See :meth:`add`."""
        return await self._async.add(self._key(key, version), value, self._ttl(timeout), _list(tags))

    async def aset_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Tags = ()
    ) -> List[Any]:
        """See :meth:`set_many`."""
        named = self._keys(data, version)
        values = {key: data[original] for key, original in named.items()}
        return [named[key] for key in await self._async.set_multi(values, self._ttl(timeout), _list(tags))]

    async def atouch(
        self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: Optional[int] = None, *, tags: Optional[Tags] = None
    ) -> bool:
        """See :meth:`touch`."""
        return await self._async.touch(self._key(key, version), self._ttl(timeout), None if tags is None else _list(tags))

    async def adelete(self, key: Any, version: Optional[int] = None) -> bool:
        """See :meth:`delete`."""
        return await self._async.delete(self._key(key, version))

    async def adelete_many(self, keys: Iterable[Any], version: Optional[int] = None) -> None:
        """See :meth:`delete_many`."""
        await self._async.delete_multi(list(self._keys(keys, version)))

    async def aclear(self) -> None:
        """See :meth:`clear`."""
        await self._async.flush_all()

    async def ahas_key(self, key: Any, version: Optional[int] = None) -> bool:
        """See :meth:`has_key`."""
        return await self.aget(key, self._missing_key, version=version) is not self._missing_key

    async def aincr(self, key: Any, delta: int = 1, version: Optional[int] = None) -> int:
        """See :meth:`incr`."""
        number = await self._async.incr(self._key(key, version), delta)
        if number is None:
            raise ValueError(f"Key '{key}' not found")
        return number

    async def adecr(self, key: Any, delta: int = 1, version: Optional[int] = None) -> int:
        """See :meth:`decr`."""
        return await self.aincr(key, -delta, version=version)

    async def aget_or_set(
        self,
        key: Any,
        default: Any,
        timeout: Any = DEFAULT_TIMEOUT,
        version: Optional[int] = None,
        *,
        tags: Tags = (),
        compute_time: Any = None,
        wait: Any = None,
    ) -> Any:
        """See :meth:`get_or_set`. ``default`` may be an asynchronous function; a plain function runs in the event loop."""
        name, ttl = self._key(key, version), self._ttl(timeout)
        if callable(default):
            return await self._async.get_or_set(name, default, ttl, _list(tags), compute_time, wait)
        value = await self._async.get(name, self._missing_key)
        if value is self._missing_key:
            await self._async.add(name, default, ttl, _list(tags))
            return await self._async.get(name, default)
        return value

    async def aincr_version(self, key: Any, delta: int = 1, version: Optional[int] = None, *, tags: Tags = ()) -> int:
        """See :meth:`incr_version`."""
        version = self.version if version is None else version
        value = await self.aget(key, self._missing_key, version=version)
        if value is self._missing_key:
            raise ValueError(f"Key '{key}' not found")
        await self.aset(key, value, version=version + delta, tags=tags)
        await self.adelete(key, version=version)
        return version + delta

    async def afetch(
        self,
        key: Any,
        version: Optional[int] = None,
        *,
        tags: Tags = (),
        compute_time: Any = None,
        wait: Any = None,
        is_told: bool = False,
    ) -> Any:
        """See :meth:`fetch`."""
        return await self._async.fetch(self._key(key, version), compute_time, wait, _list(tags), is_told)

    async def adeliver(self, token: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, *, tags: Tags = ()) -> bool:
        """See :meth:`deliver`."""
        return await self._async.deliver(token, value, self._ttl(timeout), _list(tags))

    async def agive_up(self, token: Any) -> None:
        """See :meth:`give_up`."""
        await self._async.give_up(token)

    async def afail(self, token: Any) -> None:
        """See :meth:`fail`."""
        await self._async.fail(token)

    async def ainvalidate(self, tags: Tags, soft: bool = False, version: Optional[int] = None) -> Any:
        """See :meth:`invalidate`."""
        return await self._async.invalidate(_list(tags), soft, self._tag_prefix(version))


_made: Dict[Tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _shared(make: Callable[..., Any], servers: List[str], options: Mapping[str, Any]) -> Any:
    """The client of all caches of this process with these servers and options."""
    name = (make, tuple(servers), tuple(sorted((key, _named(value)) for key, value in options.items())))
    with _lock:
        made = _made.get(name)
        if made is None:
            try:
                made = make(servers, options)
            except (UsageError, TypeError) as error:
                raise ImproperlyConfigured(f"CACHES: {error}") from error
            made.named = options  # so that no other object gets the id of one of these
            _made[name] = made
        return made


def _named(value: Any) -> Any:
    return repr(value) if isinstance(value, (str, int, float, bool, type(None), list, tuple, dict)) else f"object {id(value)}"


def _list(tags: Tags) -> List[str]:
    return [tags] if isinstance(tags, str) else list(tags)
