"""Values as Django, pymemcache and Flask-Caching store them, over the client: what the back ends for frameworks have in common.

Values have the bytes and client flags of pymemcache's ``pickle_serde``, also those that were computed under a lease: so processes with
these back ends and with Django's ``PyMemcacheCache`` read each other's values, and ``incr`` and ``touch`` work on all of them.
"""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any, Callable, Dict, Generator, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

from . import _once
from .client import Cache, CacheError, UnreadableValue, UsageError
from .client._calls import Calls, ToAll
from .client._compression import compress, decompress
from .client._errors import Refused, ServerBusy, ServerFailure
from .client._flags import COMPRESSED, FORMAT_MASK, FORMAT_PICKLE, OURS, UPPER
from .client._herd import plain_value
from .client._keys import key_bytes
from .client._options import expiration
from .client._wire import CALL, Command

PICKLE, NUMBER, LONG, TEXT = 1, 2, 4, 16
"""Client flags of pymemcache."""
WRAPPED = 14 << 4
"""The format of what is compressed: the serde's flags in four bytes before its bytes."""
COMPUTE_TIME = 10.0
"""``compute_time`` if none is given, in seconds: longer than nearly all views take, shorter than the 30 s after which gunicorn ends a
worker."""


class Serde(Protocol):
    """The interface of pymemcache's serializers."""

    def serialize(self, key: str, value: Any) -> Tuple[Any, int]:
        """The bytes (or text) and client flags of a value."""

    def deserialize(self, key: str, value: bytes, flags: int) -> Any:
        """The value."""


class PickleSerde:
    """Text, bytes and whole numbers as they are, all else pickled: with the flags of pymemcache and Django's ``PyMemcacheCache``.

    **Any program that can write to the cache can run code in the processes that read it.**
    """

    def __init__(self, protocol: int = pickle.HIGHEST_PROTOCOL) -> None:
        self._protocol = protocol

    def serialize(self, key: str, value: Any) -> Tuple[bytes, int]:
        """See :class:`Serde`."""
        kind = type(value)
        if kind is bytes:
            return value, 0
        if kind is str:
            return value.encode(), TEXT
        if kind is int:
            return b"%d" % value, NUMBER
        return pickle.dumps(value, self._protocol), PICKLE

    def deserialize(self, key: str, value: bytes, flags: int) -> Any:
        """See :class:`Serde`."""
        if flags == 0:
            return value
        if flags & TEXT:
            return value.decode()
        if flags & (NUMBER | LONG):
            return int(value)
        if flags & PICKLE:
            return pickle.loads(value)
        raise ValueError(f"another client wrote it, with the flags {flags}")


class SerdeCodec:
    """A serde as the client's codec. What other programs of this client have computed is read too: bytes, and what they have pickled if
    this serde is :class:`PickleSerde`."""

    def __init__(self, serde: Serde, compress_above: Optional[int] = None) -> None:
        self.serde = serde
        self.compress_above = compress_above

    def encode(self, value: Any) -> Tuple[bytes, int]:
        """See :class:`cattlegrid.client._herd.Codec`. What the serde raises is not changed, as with Django's own back ends."""
        data, flags = self.serde.serialize("", value)
        if isinstance(data, str):
            data = data.encode()
        if self.compress_above is not None and len(data) > self.compress_above:
            smaller = compress(flags.to_bytes(4, "big") + data)
            if smaller is not None:
                return smaller, OURS | WRAPPED | COMPRESSED
        return data, flags

    def decode(self, data: bytes, flags: int) -> Any:
        """See :class:`cattlegrid.client._herd.Codec`."""
        try:
            if flags & UPPER != OURS:
                return self.serde.deserialize("", data, flags)
            if flags & COMPRESSED:
                data = decompress(data)
            written = flags & FORMAT_MASK
            if written == WRAPPED:
                return self.serde.deserialize("", data[4:], int.from_bytes(data[:4], "big"))
            if not written:
                return data
            if written == FORMAT_PICKLE and isinstance(self.serde, PickleSerde):
                return pickle.loads(data)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"it cannot be read: {error!r}") from error
        raise ValueError(f"another program wrote it, with the flags {flags:#x}")


class NotANumber(CacheError, TypeError):
    """``incr`` or ``decr`` of a value other than a number."""


def settings_of(options: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Options for a ``Cache``, and those of the back end: ``serde``, ``ignore_exc``, ``compress_above``, ``compute_time``, ``wait``.

    Options of pymemcache's ``HashClient`` are understood: ``tls_context`` is ``tls``; and those that name what this client always does
    are accepted with that value. Raises :class:`UsageError` for other values of these.
    """
    always = {"no_delay": True, "allow_unicode_keys": True, "default_noreply": False, "use_pooling": True, "encoding": "utf-8"}
    cache: Dict[str, Any] = {}
    own: Dict[str, Any] = {}
    for name, value in options.items():
        if name in ("serde", "ignore_exc", "compress_above", "compute_time", "wait"):
            own[name] = value
        elif name in always:
            if value != always[name]:
                raise UsageError(f"the option {name!r} is always {always[name]!r} here")
        elif name == "tls_context":
            cache["tls"] = value
        elif name not in ("MAX_ENTRIES", "CULL_FREQUENCY"):
            cache[name] = value
    return cache, own


class _Common:
    """What the blocking and the asynchronous adapter have in common."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._settings, own = settings_of(options)
        self.serde: Serde = own.get("serde") or PickleSerde()
        self.ignore_exc: bool = own.get("ignore_exc", False)
        self._codec = SerdeCodec(self.serde, own.get("compress_above"))
        self._compute_time = own.get("compute_time", COMPUTE_TIME)
        self._wait = own.get("wait")

    def _how(self, cache: Any, compute_time: Any, wait: Any) -> Any:
        """Options of the client: values are stored without times of their own, so that they are as Django stores them."""
        compute_time = self._compute_time if compute_time is None else compute_time
        wait = self._wait if wait is None else wait
        unavailable = "compute" if self.ignore_exc else None
        how = cache._options(compute_time, compute_time if wait is None else wait, None, unavailable, None)
        return how._replace(grace_ms=None)

    def _computing(self, cache: Any, key: str, function: Callable[[], Any], ttl: Any, tags: Iterable[str], how: Any) -> Any:
        """The machine of ``get_or_set``."""
        return _once.get_or_compute(cache._herd, cache._calls.subject(key, tuple(tags)), function, expiration(ttl), how)

    def _searching(self, cache: Any, key: str, tags: Iterable[str], how: Any, is_told: bool) -> Any:
        """The machine of ``fetch``."""
        subject = cache._calls.subject(key, tuple(tags))
        return cache._herd.fetch(_once.search(subject, how) if is_told else cache._search(subject, how))

    def _adopt(self, cache: Any) -> Any:
        cache._codec = cache._herd.codec = cache._calls._codec = self._codec
        return cache

    def _ignores(self, error: CacheError) -> bool:
        return self.ignore_exc and isinstance(error, ServerFailure) and not isinstance(error, (Refused, ServerBusy))


def _prefixed(cache: Any, prefix: bytes) -> Calls:
    """Calls for keys with this prefix, to name their tags."""
    calls: Calls = cache._calls
    return Calls(cache._herd, cache._transport, calls._codec, prefix, calls._clock)


Prefix = Union[str, Sequence[str]]
"""What keys begin with; or a list of keys, whose prefix only the servers know."""


def _invalidate(cache: Any, tags: Any, soft: bool, prefix: Prefix) -> Generator[Any, Any, Any]:
    """Invalidates tags of keys with this prefix, whether or not the servers know it."""
    if isinstance(prefix, str):
        return (yield from _prefixed(cache, prefix.encode()).invalidate(tags, soft))
    asked = yield ToAll([Command(CALL, b"@why:" + key_bytes(key)) for key in prefix])
    known = {json.loads(reply.data).get("prefix", "") for _, replies in asked for reply in replies if getattr(reply, "kind", "") == "VA"}
    if len(known) > 1:
        raise UsageError(f"keys of one cache have several prefixes of the server, so that their tags have, too: {sorted(known)}")
    return (yield from _prefixed(cache, known.pop().encode() if known else b"").invalidate(tags, soft))


def _number(error: Refused, key: str) -> Exception:
    return NotANumber(f"the value of {key} is no number") if "non-numeric" in error.line else error


class Plain(_Common):
    """The calls of back ends, blocking. ``ttl`` is in memcached's form: 0 is never, below 0 has passed."""

    def __init__(self, servers: Any, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.cache: Cache = self._adopt(Cache(servers, **self._settings))

    def _try(self, call: Callable[[], Any], default: Any) -> Any:
        try:
            return call()
        except CacheError as error:
            if self._ignores(error):
                return default
            raise

    def get(self, key: str, default: Any = None) -> Any:
        """The value; the default too if it cannot be read."""
        try:
            return self._try(lambda: self.cache.get(key, default), default)
        except UnreadableValue:
            return default

    def get_multi(self, keys: Iterable[str]) -> Dict[str, Any]:
        """The values that there are."""
        keys = list(keys)
        try:
            found: Dict[str, Any] = self._try(lambda: self.cache.get_many(keys), {})
            return found
        except UnreadableValue:
            missing = object()
            found = {key: self.get(key, missing) for key in keys}
            return {key: value for key, value in found.items() if value is not missing}

    def set(self, key: str, value: Any, ttl: Any = 0, tags: Iterable[str] = ()) -> bool:
        """Whether it was stored. A value that the server does not take raises, and the old value is gone."""
        try:
            return bool(self._try(lambda: self.cache.set(key, value, ttl, tags=tuple(tags)), False))
        except ServerBusy:
            self.cache.delete(key)
            raise

    def set_multi(self, values: Mapping[str, Any], ttl: Any = 0, tags: Iterable[str] = ()) -> List[str]:
        """The keys that were not stored; their old values are gone."""
        failed: List[str] = self._try(lambda: self.cache.set_many(values, ttl, tags=tuple(tags)), list(values))
        if failed:
            self._try(lambda: self.cache.delete_many(failed), None)
        return failed

    def add(self, key: str, value: Any, ttl: Any = 0, tags: Iterable[str] = ()) -> bool:
        """Whether it was stored."""
        return bool(self._try(lambda: self.cache.add(key, value, ttl, tags=tuple(tags)), False))

    def touch(self, key: str, ttl: Any = 0, tags: Optional[Iterable[str]] = None) -> bool:
        """Whether there is an item. With ``tags`` it is stored again, with these in place of those that it had."""
        if tags is None:
            return bool(self._try(lambda: self.cache.touch(key, ttl), False))
        for _ in range(10):
            try:
                value, cas = self._try(lambda: self.cache.gets(key), (None, None))
            except UnreadableValue:
                return False
            if cas is None:
                return False
            if self.cache.cas(key, value, cas, ttl, tags=tuple(tags)):
                return True
        return False

    def delete(self, key: str) -> bool:
        """Whether there was one."""
        return bool(self._try(lambda: self.cache.delete(key), False))

    def delete_multi(self, keys: Iterable[str]) -> bool:
        """Deletes all of them."""
        keys = list(keys)
        self._try(lambda: self.cache.delete_many(keys), None)
        return True

    def incr(self, key: str, delta: int = 1) -> Optional[int]:
        """The new number, which does not go below 0; None: there is none. Raises :class:`NotANumber`."""
        try:
            call = self.cache.incr if delta >= 0 else self.cache.decr
            number: Optional[int] = self._try(lambda: call(key, abs(delta)), None)
            return number
        except Refused as error:
            raise _number(error, key) from error

    def decr(self, key: str, delta: int = 1) -> Optional[int]:
        """See :meth:`incr`."""
        return self.incr(key, -delta)

    def flush_all(self) -> None:
        """Every server drops all items."""
        self._try(self.cache.flush_all, None)

    def get_or_set(
        self, key: str, function: Callable[[], Any], ttl: Any, tags: Iterable[str] = (), compute_time: Any = None, wait: Any = None
    ) -> Any:
        """The value, computed once among processes. A caller whose wait has passed computes it for itself."""
        how = self._how(self.cache, compute_time, wait)
        outcome = self.cache._run(self._computing(self.cache, key, function, ttl, tags, how))
        return outcome.value if outcome.has_value else plain_value(function())

    def fetch(
        self, key: str, compute_time: Any = None, wait: Any = None, tags: Iterable[str] = (), is_told: bool = False
    ) -> Any:
        """See :meth:`cattlegrid.client.Cache.fetch`; None if the server cannot be asked and that is ignored, and
        if it has a value that cannot be read and is written again and again. ``is_told``: an ``Error``
        says that the computation for which this caller has waited brings nothing."""

        def fetch() -> Any:
            cache = self.cache
            verdict = cache._run(self._searching(cache, key, tags, self._how(cache, compute_time, wait), is_told))
            return cache._fetched(verdict, 0, None, False)

        try:
            return self._try(fetch, None)
        except UnreadableValue:
            return None  # programs of several versions write it again and again

    def deliver(self, token: Any, value: Any, ttl: Any, tags: Iterable[str] = ()) -> bool:
        """Whether it was stored."""
        return bool(self._try(lambda: self.cache.deliver(token, value, ttl=ttl, tags=tuple(tags)) is None, False))

    def give_up(self, token: Any) -> None:
        """The next caller computes."""
        if not token.is_over:
            self._try(lambda: self.cache.give_up(token), None)

    def fail(self, token: Any) -> None:
        """The callers of this process that wait compute at once, each for itself; without a rule those of other processes, too."""
        if not token.is_over:
            self._try(lambda: self.cache._run(self.cache._herd.end(token._grant, _once.nothing(token._grant))), None)

    def invalidate(self, tags: Any, soft: bool, prefix: Prefix) -> Any:
        """Of keys with this prefix, or as these. Errors are never ignored."""
        return self.cache._run(_invalidate(self.cache, tags, soft, prefix))


class AsyncPlain(_Common):
    """The same for asyncio."""

    def __init__(self, servers: Any, options: Mapping[str, Any]) -> None:
        from .client import AsyncCache

        super().__init__(options)
        self.cache: Any = self._adopt(AsyncCache(servers, **self._settings))

    async def close(self) -> None:
        """Closes the connections of the event loop that runs."""
        await self.cache.close()

    async def _try(self, call: Any, default: Any) -> Any:
        try:
            return await call
        except CacheError as error:
            if self._ignores(error):
                return default
            raise

    async def get(self, key: str, default: Any = None) -> Any:
        """See :meth:`Plain.get`."""
        try:
            return await self._try(self.cache.get(key, default), default)
        except UnreadableValue:
            return default

    async def get_multi(self, keys: Iterable[str]) -> Dict[str, Any]:
        """See :meth:`Plain.get_multi`."""
        keys = list(keys)
        try:
            found: Dict[str, Any] = await self._try(self.cache.get_many(keys), {})
            return found
        except UnreadableValue:
            missing = object()
            found = {key: await self.get(key, missing) for key in keys}
            return {key: value for key, value in found.items() if value is not missing}

    async def set(self, key: str, value: Any, ttl: Any = 0, tags: Iterable[str] = ()) -> bool:
        """See :meth:`Plain.set`."""
        try:
            return bool(await self._try(self.cache.set(key, value, ttl, tags=tuple(tags)), False))
        except ServerBusy:
            await self.cache.delete(key)
            raise

    async def set_multi(self, values: Mapping[str, Any], ttl: Any = 0, tags: Iterable[str] = ()) -> List[str]:
        """See :meth:`Plain.set_multi`."""
        failed: List[str] = await self._try(self.cache.set_many(values, ttl, tags=tuple(tags)), list(values))
        if failed:
            await self._try(self.cache.delete_many(failed), None)
        return failed

    async def add(self, key: str, value: Any, ttl: Any = 0, tags: Iterable[str] = ()) -> bool:
        """See :meth:`Plain.add`."""
        return bool(await self._try(self.cache.add(key, value, ttl, tags=tuple(tags)), False))

    async def touch(self, key: str, ttl: Any = 0, tags: Optional[Iterable[str]] = None) -> bool:
        """See :meth:`Plain.touch`."""
        if tags is None:
            return bool(await self._try(self.cache.touch(key, ttl), False))
        for _ in range(10):
            try:
                value, cas = await self._try(self.cache.gets(key), (None, None))
            except UnreadableValue:
                return False
            if cas is None:
                return False
            if await self.cache.cas(key, value, cas, ttl, tags=tuple(tags)):
                return True
        return False

    async def delete(self, key: str) -> bool:
        """See :meth:`Plain.delete`."""
        return bool(await self._try(self.cache.delete(key), False))

    async def delete_multi(self, keys: Sequence[str]) -> bool:
        """See :meth:`Plain.delete_multi`."""
        await self._try(self.cache.delete_many(list(keys)), None)
        return True

    async def incr(self, key: str, delta: int = 1) -> Optional[int]:
        """See :meth:`Plain.incr`."""
        try:
            number: Optional[int] = await self._try((self.cache.incr if delta >= 0 else self.cache.decr)(key, abs(delta)), None)
            return number
        except Refused as error:
            raise _number(error, key) from error

    async def flush_all(self) -> None:
        """See :meth:`Plain.flush_all`."""
        await self._try(self.cache.flush_all(), None)

    async def get_or_set(
        self, key: str, function: Callable[[], Any], ttl: Any, tags: Iterable[str] = (), compute_time: Any = None, wait: Any = None
    ) -> Any:
        """See :meth:`Plain.get_or_set`; ``function`` may be asynchronous."""
        cache = self.cache
        outcome = await cache._run(self._computing(cache, key, function, ttl, tags, self._how(cache, compute_time, wait)))
        if outcome.has_value:
            return outcome.value
        made = function()
        return plain_value(await made if inspect.isawaitable(made) else made)

    async def fetch(
        self, key: str, compute_time: Any = None, wait: Any = None, tags: Iterable[str] = (), is_told: bool = False
    ) -> Any:
        """See :meth:`Plain.fetch`."""

        async def fetch() -> Any:
            cache = self.cache
            verdict = await cache._run(self._searching(cache, key, tags, self._how(cache, compute_time, wait), is_told))
            return cache._fetched(verdict, 0, None, False)

        try:
            return await self._try(fetch(), None)
        except UnreadableValue:
            return None

    async def deliver(self, token: Any, value: Any, ttl: Any, tags: Iterable[str] = ()) -> bool:
        """See :meth:`Plain.deliver`."""

        async def deliver() -> bool:
            return await self.cache.deliver(token, value, ttl=ttl, tags=tuple(tags)) is None

        return bool(await self._try(deliver(), False))

    async def give_up(self, token: Any) -> None:
        """See :meth:`Plain.give_up`."""
        if not token.is_over:
            await self._try(self.cache.give_up(token), None)

    async def fail(self, token: Any) -> None:
        """See :meth:`Plain.fail`."""
        if not token.is_over:
            await self._try(self.cache._run(self.cache._herd.end(token._grant, _once.nothing(token._grant))), None)

    async def invalidate(self, tags: Any, soft: bool, prefix: Prefix) -> Any:
        """See :meth:`Plain.invalidate`."""
        return await self.cache._run(_invalidate(self.cache, tags, soft, prefix))
