"""A back end for Flask-Caching::

    app.config["CACHE_TYPE"] = "cattlegrid.flask_caching.CattlegridCache"
    app.config["CACHE_MEMCACHED_SERVERS"] = ["10.0.0.1:11211", "10.0.0.2:11211"]
    app.config["CACHE_KEY_PREFIX"] = "shop:"

``CACHE_OPTIONS`` are options of :class:`cattlegrid.client.Cache`. ``set``, ``add`` and ``set_many`` take ``tags``, a list or one text, and
``cache.cache.invalidate("user:7")`` invalidates them. ``cache.cached`` and ``cache.memoize`` are Flask-Caching's own: they read, compute
and store, and so they are protected by a rule of the server. ``cache.cache.get_or_compute(key, function)`` computes once among processes
over memcached too.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Dict, Iterable, List, Optional, Union

from flask_caching.backends.base import BaseCache

from ._plain import Plain
from .client import InvalidKey
from .client._keys import key_bytes
from .client._options import RELATIVE_MAX


class CattlegridCache(BaseCache):
    """The back end. Values are pickled as by pymemcache and Django, except text, bytes and whole numbers.

    Keys that memcached does not take, with blanks or longer than 250 bytes, are replaced by their SHA-256. A ``timeout`` is in seconds; 0
    is never, None is ``CACHE_DEFAULT_TIMEOUT``.
    """

    def __init__(
        self,
        servers: Any = None,
        default_timeout: int = 300,
        key_prefix: Optional[str] = None,
        ignore_delete_many_errors: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(default_timeout=default_timeout)
        self.ignore_delete_many_errors = ignore_delete_many_errors
        self.key_prefix = key_prefix or ""
        self.plain = Plain(list(servers or ["127.0.0.1:11211"]), options)

    @classmethod
    def factory(cls, app: Any, config: Dict[str, Any], args: List[Any], kwargs: Dict[str, Any]) -> CattlegridCache:
        """Called by Flask-Caching."""
        args.insert(0, config["CACHE_MEMCACHED_SERVERS"])
        prefix = config["CACHE_KEY_PREFIX"]
        kwargs.setdefault("key_prefix", prefix)
        if config.get("CACHE_MEMCACHED_USERNAME"):
            kwargs.setdefault("username", config["CACHE_MEMCACHED_USERNAME"])
            kwargs.setdefault("password", config["CACHE_MEMCACHED_PASSWORD"])
        return cls(*args, **kwargs)

    @property
    def client(self) -> Any:
        """The :class:`cattlegrid.client.Cache` under it, whose keys have no prefix."""
        return self.plain.cache

    def get(self, key: str) -> Any:
        """The value; None: it is missing."""
        return self.plain.get(self._key(key))

    def get_many(self, *keys: str) -> List[Any]:
        """The values, each None if it is missing: one round trip to each server."""
        found = self.plain.get_multi([self._key(key) for key in keys])
        return [found.get(self._key(key)) for key in keys]

    def get_dict(self, *keys: str) -> Dict[str, Any]:
        """The values by key."""
        return dict(zip(keys, self.get_many(*keys)))

    def set(self, key: str, value: Any, timeout: Any = None, tags: Union[str, Iterable[str]] = ()) -> bool:
        """Stores a value. Returns whether it is stored."""
        return self.plain.set(self._key(key), value, self._ttl(timeout), _list(tags))

    def add(self, key: str, value: Any, timeout: Any = None, tags: Union[str, Iterable[str]] = ()) -> bool:
        """Stores a value if there is none. Returns whether it is stored."""
        return self.plain.add(self._key(key), value, self._ttl(timeout), _list(tags))

    def set_many(self, mapping: Dict[str, Any], timeout: Any = None, tags: Union[str, Iterable[str]] = ()) -> List[str]:
        """Stores values. Returns the keys that are stored."""
        failed = set(self.plain.set_multi({self._key(key): value for key, value in mapping.items()}, self._ttl(timeout), _list(tags)))
        return [key for key in mapping if self._key(key) not in failed]

    def delete(self, key: str) -> bool:
        """Deletes a value. Returns whether there was one."""
        return self.plain.delete(self._key(key))

    def delete_many(self, *keys: str) -> List[str]:
        """Deletes values. Returns the keys that were there."""
        return [key for key in keys if self.delete(key)]

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        missing = object()
        return self.plain.get(self._key(key), missing) is not missing

    def clear(self) -> bool:
        """Flushes the servers, whatever the prefix."""
        self.plain.flush_all()
        return True

    def inc(self, key: str, delta: int = 1) -> Optional[int]:
        """Adds to a number; a key that is missing becomes ``delta``."""
        return self._count(key, delta)

    def dec(self, key: str, delta: int = 1) -> Optional[int]:
        """Subtracts from a number, which does not go below 0; a key that is missing becomes ``-delta``."""
        return self._count(key, -delta)

    def get_or_compute(self, key: str, function: Any, timeout: Any = None, tags: Union[str, Iterable[str]] = (), **times: Any) -> Any:
        """The value; if it is missing, one process calls ``function`` and the others wait for its value, ``wait`` at most, and then call it
        themselves. ``compute_time`` and ``wait`` as in :meth:`cattlegrid.client.Cache.get_or_compute`."""
        return self.plain.get_or_set(self._key(key), function, self._ttl(timeout), _list(tags), **times)

    def invalidate(self, tags: Any, soft: bool = False) -> Any:
        """Invalidates all values with any of these tags, on every server."""
        return self.plain.invalidate(tags, soft, self.key_prefix)

    def _count(self, key: str, delta: int) -> Optional[int]:
        number = self.plain.incr(self._key(key), delta)
        if number is None:
            return delta if self.add(key, delta) else self.plain.incr(self._key(key), delta)
        return number

    def _key(self, key: str) -> str:
        full = self.key_prefix + key
        try:
            key_bytes(full)
        except InvalidKey:
            # ``memoize`` makes keys of names of objects, which have blanks or are long: their hash is as good.
            return f"{self.key_prefix}sha256-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
        return full

    def _ttl(self, timeout: Any) -> Any:
        ttl = self.default_timeout if timeout is None else timeout
        # Memcached takes a larger number for a Unix time.
        return ttl + int(time.time()) if isinstance(ttl, (int, float)) and ttl > RELATIVE_MAX else ttl


def _list(tags: Union[str, Iterable[str]]) -> List[str]:
    return [tags] if isinstance(tags, str) else list(tags)
