"""A back end for dogpile.cache: values are computed once among processes, and a region is invalidated in all of them at once.

::

    from cattlegrid.dogpile import make_region

    region = make_region().configure(
        "cattlegrid.dogpile",
        arguments={"url": ["10.0.0.1:11211", "10.0.0.2:11211"], "ttl": 60, "tag": "reports"},
    )

``make_region`` of ``dogpile.cache`` serves too. That of this module makes a :class:`Region`, whose ``invalidate`` invalidates the tag,
and whose ``get_or_create_multi`` computes each key once among processes.

The mutex of a key is the server's lease of that key: the process that has it computes, the others wait at the server and get its value.
Under a rule of Cattlegrid a process that dies frees its keys at once; over memcached, and for keys without a rule, they are free after
``lock_timeout``.

How it fits into dogpile's own steps, which are ``get``, ``acquire``, ``get``, create, ``set``, ``release``: ``get`` never takes a lease.
``acquire`` asks for the value or the lease. A value that comes while it waits is what the second ``get`` returns. ``set`` of a key whose
lease this process has fills it, so that the server can drop a value that was computed before a delete or an invalidation; ``release``
gives up what was not filled. A key that has a value on the server, which dogpile takes for expired, cannot have a lease: then the mutex
is that of another key, ``_lock`` and the key, and ``set`` replaces that value and no other (``cas``).
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Any, Callable, Dict, Generator, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from dogpile.cache.api import NO_VALUE, BytesBackend
from dogpile.cache.region import CacheRegion, RegionInvalidationStrategy

from .client import Cache, CacheError, Compute, Hit, InvalidKey, Key, Stale, UnreadableValue, UsageError, skip
from .client._calls import Calls, tags_of
from .client._keys import key_bytes
from .client._machine import Batch, one
from .client._options import plain_exptime
from .client._wire import CAS, LOOK, Command, ask, delete, store

LOCK_TIMEOUT = 30.0
"""``lock_timeout`` if none is given, in seconds."""
LOCK_PREFIX = "_lock"

_OF_CACHE = ("timeout", "connect_timeout", "sharding", "username", "password", "tls", "ejection", "flush_on_return", "protocol", "observer")


class CattlegridBackend(BytesBackend):
    """Arguments:

    ``url``
        A server or a list of servers, as for :class:`cattlegrid.client.Cache`; or ``cache``, a ``Cache`` with ``serializer="bytes"``.
    ``ttl``
        Seconds after which values expire on the server; 0, the default: never. ``memcached_expire_time`` is another name of it.
    ``tag``
        The tag of all values of the region, which ``region.invalidate()`` invalidates with :class:`TagInvalidation`.
    ``tags``
        More tags: a list or one text, or a function of the key that returns one of these. Tags need Cattlegrid with a rule file, which may
        be empty.
    ``lock_timeout``
        A high estimate of the time that computing takes, in seconds, 0.001 to 86400. When it has passed, another process may compute,
        and the late value is not stored over its. 30 by default.
    ``distributed_lock``
        False: threads of a process compute a value once, and processes once each, as with dogpile's own back ends. True by default.

    ``timeout``, ``connect_timeout``, ``sharding``, ``username``, ``password``, ``tls``, ``ejection``, ``flush_on_return``, ``protocol``,
    ``observer``
        Options of ``Cache``; ``tls_context`` is another name of ``tls``.

    Others are not looked at, as in dogpile's own back ends.

    Keys that memcached does not take, such as those of functions with several arguments, which dogpile joins by blanks, are replaced by
    their SHA-256 behind their part before the arguments: ``module:function|sha256-...``. ``tags`` gets the key of dogpile.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.lock_timeout = arguments.get("lock_timeout") or LOCK_TIMEOUT
        self.distributed_lock = arguments.get("distributed_lock", True)
        self.ttl = arguments.get("ttl", arguments.get("memcached_expire_time", 0))
        self.tag: Optional[str] = arguments.get("tag")
        self._tags: Union[Callable[[str], Iterable[str]], Iterable[str]] = arguments.get("tags") or ()
        options = {name: arguments[name] for name in _OF_CACHE if name in arguments}
        if "tls_context" in arguments:
            options["tls"] = arguments["tls_context"]
        if "cache" in arguments:
            if options or "url" in arguments:
                raise UsageError("of cache and url with its options one can be given")
            self.cache: Any = arguments["cache"]
        else:
            url = arguments["url"]
            self.cache = Cache(url if isinstance(url, str) else list(url), serializer="bytes", **options)
        # What `set` of a key replaces while a mutex of it is held: a lease, or a value that dogpile takes for expired.
        self._tokens: Dict[str, Any] = {}
        self._seen = threading.local()

    def has_lock_timeout(self) -> bool:
        """Whether a second process can compute while the first still does."""
        return bool(self.distributed_lock)

    def get_mutex(self, key: str) -> Any:
        """The mutex of a key: a :class:`LeaseMutex`, or None."""
        return LeaseMutex(self, key) if self.distributed_lock else None

    def get_serialized(self, key: str) -> Any:
        """The value, or ``NO_VALUE``. Nothing is waited for, and no lease is taken."""
        seen = self._seen.__dict__.pop(key, None)
        return self._read(key) if seen is None else seen

    def get_serialized_multi(self, keys: Iterable[str]) -> Sequence[Any]:
        """The values, each ``NO_VALUE`` if it is missing: two round trips, whatever their number."""
        keys = list(keys)
        named = {key: name_of(key) for key in keys}
        found = self.cache._run(_peek_many(self.cache._calls, list(named.values()))) if keys else {}
        return [found.get(named[key], NO_VALUE) for key in keys]

    def set_serialized(self, key: str, value: bytes) -> None:
        """Stores a value, with the lease if this process has it."""
        token = self._tokens.pop(key, None)
        if token is None:
            self.cache.set(name_of(key), value, self.ttl, tags=self._tags_of(key))
        elif isinstance(token, _Old):
            self.cache._run(_replace(self.cache._calls, token, value, self.ttl, tags_of(self._tags_of(key))))
        else:
            self.cache.deliver(token, value, tags=self._tags_of(key))

    def set_serialized_multi(self, mapping: Mapping[str, bytes]) -> None:
        """Stores values."""
        rest: Dict[str, bytes] = {}
        for key, value in mapping.items():
            if key in self._tokens or self.tag or self._tags:
                self.set_serialized(key, value)
            else:
                rest[name_of(key)] = value
        if rest:
            self.cache.set_many(rest, self.ttl)

    def delete(self, key: str) -> None:
        """Deletes a value. What is being computed for the key is not stored."""
        self.cache.delete(name_of(key))

    def delete_multi(self, keys: Iterable[str]) -> None:
        """Deletes values."""
        keys = [name_of(key) for key in keys]
        if keys:
            self.cache.delete_many(keys)

    def invalidate(self, hard: bool = True) -> None:
        """Invalidates all values of the region on all servers; softly: old values are served while new ones are computed, for the
        ``grace`` of their rule."""
        if not self.tag:
            raise UsageError("the back end has no argument tag, so that its region cannot be invalidated by one")
        self.cache.invalidate(self.tag, soft=not hard)

    def _read(self, key: str) -> Any:
        try:
            value = self.cache.peek(name_of(key))
        except UnreadableValue:
            return NO_VALUE  # another back end's
        return NO_VALUE if value is None else value

    def _taken(self, key: str, token: Any) -> bool:
        """Takes a token back that no ``set`` has used. False: there is none, or it is that of a later mutex."""
        if self._tokens.get(key) is not token:
            return False
        del self._tokens[key]
        return True

    def _tags_of(self, key: str) -> List[str]:
        more = self._tags(key) if callable(self._tags) else self._tags
        return [*([self.tag] if self.tag else []), *([more] if isinstance(more, str) else more)]


class LeaseMutex:
    """The right to compute a key: a lease of its server. Threads of this process take it one after the other."""

    def __init__(self, backend: CattlegridBackend, key: str) -> None:
        self._backend = backend
        self._key = key
        self._local = threading.Lock()
        self._token: Any = None
        self._lock_token: Any = None
        self._old: Any = None

    def acquire(self, wait: bool = True) -> bool:
        """Takes it; with ``wait`` waits for it, or for the value. False: another process or thread has it."""
        if not self._local.acquire(blocking=False):
            if not wait:
                return False
            self._local.acquire()
            waited = True
        else:
            waited = False
        try:
            if self._take(wait, waited):
                return True
        except BaseException:
            self._local.release()
            raise
        self._local.release()
        return False

    def release(self) -> None:
        """Frees it, whether or not a value was stored. Any thread may do so."""
        backend = self._backend
        backend._seen.__dict__.pop(self._key, None)
        held, old = (self._token, self._lock_token), self._old
        self._token = self._lock_token = self._old = None
        try:
            if old is not None:
                backend._taken(self._key, old)
            if held[0] is not None and backend._taken(self._key, held[0]):
                backend.cache.give_up(held[0])
            if held[1] is not None:
                backend.cache.give_up(held[1])
        except CacheError:
            pass  # it is free when its time has passed
        finally:
            self._local.release()

    def locked(self) -> bool:
        """Whether a thread or process has it."""
        if not self.acquire(False):
            return True
        self.release()
        return False

    def _take(self, wait: bool, waited: bool) -> bool:
        """``waited``: for another thread, which has computed."""
        backend, key = self._backend, self._key
        while True:
            fetched, held = self._fetch(key, wait)
            if isinstance(fetched, Compute):
                self._token = backend._tokens[key] = fetched.token
                return True
            if isinstance(fetched, Stale):
                if not wait:
                    return False
                # Another process computes, and this caller is content with the old value: to dogpile it is new.
                backend._seen.__dict__[key] = _renewed(fetched.value)
                self._hold(_Old())
                return True
            if isinstance(fetched, Hit):
                if not waited and not held:
                    locked = self._lock(wait)
                    if locked is None:
                        continue  # it has gone meanwhile
                    return locked
                # It has just been computed.
                old = backend.cache._run(_old_of(backend.cache._calls, name_of(key)))
                if old is None:
                    continue
                backend._seen.__dict__[key] = fetched.value if old.value is None else old.value
                self._hold(old)
                return True
            if not wait:
                return False

    def _hold(self, old: _Old) -> None:
        """Until the release ``set`` replaces this value and no other."""
        self._old = self._backend._tokens[self._key] = old

    def _lock(self, wait: bool) -> Optional[bool]:
        """The mutex beside a value that the server has, and dogpile takes for expired. None: there is none any more."""
        backend = self._backend
        while True:
            fetched, _ = self._fetch(LOCK_PREFIX + self._key, wait)
            if isinstance(fetched, Compute):
                old = None
                try:
                    old = backend.cache._run(_old_of(backend.cache._calls, name_of(self._key)))
                finally:
                    if old is None:
                        backend.cache.give_up(fetched.token)
                if old is None:
                    return None
                self._lock_token = fetched.token
                self._hold(old)
                return True
            if not wait:
                return False

    def _fetch(self, key: str, wait: bool) -> Tuple[Any, bool]:
        """What :meth:`cattlegrid.client.Cache.fetch` returns, and whether the value was waited for."""
        backend = self._backend
        cache = backend.cache
        tags = tuple(backend._tags_of(key)) if key == self._key else ()
        how = cache._options(backend.lock_timeout, backend.lock_timeout if wait else 0, None, None, None)
        verdict = cache._run(cache._herd.fetch(cache._search(cache._calls.subject(name_of(key), tags), how)))
        return cache._fetched(verdict, backend.ttl, how.grace_ms, False), verdict.waited


class _Old:
    """A value that there is while the mutex is taken: its key, its CAS number and where that is valid. Without a key: none may be
    replaced."""

    __slots__ = ("cas", "key", "scope", "value")

    def __init__(self, key: bytes = b"", cas: int = 0, scope: Any = None, value: Optional[bytes] = None) -> None:
        self.key = key
        self.cas = cas
        self.scope = scope
        self.value = value


def _old_of(calls: Calls, name: str) -> Generator[Any, Any, Optional[_Old]]:
    """The value of a key, if there is one. No lease is taken."""
    key = key_bytes(name, calls.prefix)
    scope = calls._transport.scope()
    reply = one((yield Batch([Command(LOOK, key)])))
    if reply.kind == "HD" and not reply.stale:
        scope = calls._transport.scope()
        reply = one((yield Batch([ask(key, 1000)])))
        if reply.won:
            yield Batch([delete(key, reply.cas)])
            return None
    if reply.kind != "VA" or reply.stale or not reply.cas:
        return None
    try:
        return _Old(key, reply.cas, scope, calls.value(key, reply, None))
    except UnreadableValue:
        return _Old(key, reply.cas, scope)


def _replace(calls: Calls, old: _Old, value: bytes, ttl: Any, tags: Tuple[str, ...]) -> Generator[Any, Any, None]:
    """Stores a value in place of this one. If that has been deleted, invalidated or replaced since, nothing is stored."""
    if not old.key:
        return
    data, flags = calls._codec.encode(value)
    one((yield Batch([store(CAS, old.key, data, flags, plain_exptime(ttl, calls._now_ms()), tags, old.cas, old.scope)])))


def name_of(key: str) -> str:
    """The key under which the server has what dogpile calls so: the same, if memcached takes it."""
    try:
        key_bytes(key)
    except InvalidKey:
        head = key[: key.rfind("|", 0, 180) + 1]
        try:
            is_valid = len(key_bytes(head)) <= 180
        except InvalidKey:
            is_valid = False
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{head if is_valid else ''}sha256-{digest}"
    return key


def _peek_many(calls: Calls, keys: Sequence[str]) -> Generator[Any, Any, Dict[str, bytes]]:
    """As :meth:`cattlegrid.client.Cache.peek`, of many keys."""
    named = {key: key_bytes(key, calls.prefix) for key in keys}
    looked = yield Batch([Command(LOOK, data) for data in named.values()])
    found = dict(zip(named, looked))
    there = [key for key, reply in found.items() if one([reply]).kind == "HD" and not reply.stale]
    if there:
        asked = yield Batch([ask(named[key], 1000) for key in there])
        # A lease without data: it has gone meanwhile.
        found.update((key, reply) for key, reply in zip(there, asked) if one([reply]).data or not reply.won)
        won = [delete(named[key], one([reply]).cas) for key, reply in zip(there, asked) if one([reply]).won]
        if won:
            yield Batch(won)
    values: Dict[str, bytes] = {}
    for key, reply in found.items():
        if reply.kind != "VA" or reply.stale:
            continue
        try:
            value = calls.value(named[key], reply, None)
        except UnreadableValue:
            continue
        if value is not None:
            values[key] = value
    return values


class Region(CacheRegion):
    """A region of which the servers know: see :meth:`invalidate` and :meth:`get_or_create_multi`."""

    def configure(self, backend: str, *args: Any, **kwargs: Any) -> Any:
        """As that of dogpile. If the back end has a tag, ``invalidate`` invalidates it, unless another ``region_invalidator`` is given."""
        super().configure(backend, *args, **kwargs)
        if self.expiration_time == -1:
            self.expiration_time = None  # which ``get`` takes for never too
        if kwargs.get("region_invalidator") is None and getattr(self.actual_backend, "tag", None):
            self.region_invalidator = TagInvalidation(self)
        return self

    def get_or_create_multi(
        self,
        keys: Iterable[str],
        creator: Callable[..., Any],
        expiration_time: Optional[float] = None,
        should_cache_fn: Optional[Callable[[Any], bool]] = None,
    ) -> Any:
        """As that of dogpile; of many processes that miss a key one computes it, in one call of ``creator`` for all keys that this process
        must compute. That holds where values expire on the server: with an ``expiration_time`` of -1 or None, which is the default of a
        region. With others, and with back ends that are wrapped, the steps are dogpile's own."""
        seconds = self.expiration_time if expiration_time is None else expiration_time
        backend = self.actual_backend
        if not isinstance(backend, CattlegridBackend) or backend is not self.backend or not backend.distributed_lock:
            return super().get_or_create_multi(keys, creator, expiration_time, should_cache_fn)
        if seconds not in (None, -1) or (not isinstance(self.region_invalidator, TagInvalidation) and self._was_invalidated()):
            return super().get_or_create_multi(keys, creator, expiration_time, should_cache_fn)
        keys = list(keys)
        return self._many(backend, keys, creator, should_cache_fn) if keys else []

    def _was_invalidated(self) -> bool:
        invalidator = self.region_invalidator
        return bool(invalidator.was_soft_invalidated() or invalidator.was_hard_invalidated())

    def _many(self, backend: CattlegridBackend, keys: List[Any], creator: Callable[..., Any], should_cache: Any) -> List[Any]:
        mangled = {key: self.key_mangler(key) if self.key_mangler else key for key in keys}
        names = {key: name_of(mangled[key]) for key in keys}
        originals = {names[key]: key for key in keys}
        created: Dict[Any, Any] = {}

        def create(missing: Iterable[Any]) -> Dict[Any, Any]:
            asked = {originals[str(key)]: key for key in missing}
            wanted = sorted(asked)
            made = dict(zip(wanted, creator(*wanted)))
            created.update(made)
            out: Dict[Any, Any] = {}
            for key, value in made.items():
                # What is not cached need not have a serialized form, such as the NO_VALUE of keys that a dictionary leaves out.
                is_kept = should_cache is None or should_cache(value)
                out[asked[key]] = self._serialized_payload(value) if is_kept else skip(b"")
            return out

        found = backend.cache.get_or_compute_many(
            [Key(name_of(key), tuple(backend._tags_of(key))) for key in mangled.values()],
            create,
            ttl=backend.ttl,
            compute_time=backend.lock_timeout,
        )
        found = {str(key): value for key, value in found.items()}
        values: Dict[Any, Any] = {}
        for key in originals.values():
            if key in created:
                values[key] = created[key]
            elif found.get(names[key]):
                value = self._parse_serialized_from_backend(found[names[key]])
                if value is not NO_VALUE and not self._is_cache_miss(value, key):  # type: ignore[no-untyped-call]
                    values[key] = value.payload
        missing = sorted(key for key in originals.values() if key not in values)
        if missing:  # another process computes them longer than this one waits, or they are of another version of dogpile
            values.update(zip(missing, creator(*missing)))
        return [values[key] for key in keys]


def make_region(*args: Any, **kwargs: Any) -> Region:
    """A :class:`Region`, with the arguments of ``dogpile.cache.make_region``."""
    return Region(*args, **kwargs)


class TagInvalidation(RegionInvalidationStrategy):
    """``region.invalidate()`` for all processes: it invalidates the tag of the region's back end, on every server.

    ``region.invalidate(hard=False)`` does so softly: under a rule with ``grace`` old values are served while new ones are computed, with
    any ``expiration_time``. dogpile's own strategy keeps the time of the invalidation in the memory of one process.
    """

    def __init__(self, region: CacheRegion) -> None:
        self._region = region

    def invalidate(self, hard: bool = True) -> None:
        """On every server. Raises :class:`cattlegrid.client.NoTags` or :class:`cattlegrid.client.ConnectionFailed`."""
        self._region.actual_backend.invalidate(hard)

    def is_invalidated(self, timestamp: float) -> bool:
        """False: values that are invalidated are not on the servers any more."""
        return False

    def was_hard_invalidated(self) -> bool:
        """False."""
        return False

    def is_hard_invalidated(self, timestamp: float) -> bool:
        """False."""
        return False

    def was_soft_invalidated(self) -> bool:
        """False."""
        return False

    def is_soft_invalidated(self, timestamp: float) -> bool:
        """False."""
        return False


def _renewed(value: bytes) -> bytes:
    """A value with the present as the time of its creation. Other than dogpile's bytes are left as they are."""
    head, bar, payload = bytes(value).partition(b"|")
    try:
        metadata = json.loads(head)
        metadata["ct"] = time.time()
    except (ValueError, TypeError):
        return value
    return json.dumps(metadata).encode() + bar + payload
