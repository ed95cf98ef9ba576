"""Another library's client as a connection: pymemcache (Client, PooledClient, HashClient), pylibmc, python-memcached,
Django's cache over one of these, and any object with the methods of pymemcache. Which server has a key is what that
client says.

Its commands are those of the text protocol: ``gets``, ``add``, ``cas``. So keys are locked as over memcached, also
under a rule of Cattlegrid, there are no tags, and no CAS number is known of what was stored, so that a result costs one
round trip more.

A client that is not made for threads is used by one thread at a time.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Tuple, Type, Union

from ._errors import CacheError, ConnectionFailed, NoTags, ServerBusy, UsageError
from ._flags import FORMAT_JSON, OURS
from ._machine import Replies
from ._wire import (
    ADD,
    APPEND,
    ASK,
    CALL,
    CAS,
    CLAIM,
    DECR,
    DELETE,
    FLUSH,
    GAT,
    GET,
    INCR,
    LOOK,
    PREPEND,
    REPLACE,
    SET,
    STATS,
    TOUCH,
    VERSION,
    Command,
    Reply,
)

UNKNOWN = 0xFFFF_FFFF
"""The flags of a value that the other client has made of its bytes: no serializer of this package reads it."""
_TAGGED = struct.Struct(">BBI")
_MARK = (0xC7, 0x10)
Item = Tuple[bytes, int, Optional[int]]
"""Bytes, flags and CAS number."""


class Flagged(bytes):
    """The bytes of an item of this package, with its client flags, as another library's client returns them."""

    flags = 0


class FlagSerde:
    """Lets the items of this package pass through a client of pymemcache; all others are for its own serializer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def serialize(self, key: Any, value: Any) -> Tuple[Any, int]:
        """See pymemcache."""
        if type(value) is Flagged:
            return bytes(value), value.flags
        result: Tuple[Any, int] = self._inner.serialize(key, value)
        return result

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """See pymemcache."""
        if flags >> 16 == 0xCA77:
            return flagged(value, flags)
        return self._inner.deserialize(key, value, flags)


def flagged(data: bytes, flags: int) -> Flagged:
    """Bytes with flags."""
    value = Flagged(data)
    value.flags = flags
    return value


def tagged(data: bytes, flags: int) -> bytes:
    """A value with its flags before it, for clients that have none."""
    if data[:2] != bytes(_MARK) and (flags == 0 or (flags == OURS | FORMAT_JSON and data.isdigit())):
        # Numbers without their flags are JSON too, and can be counted.
        return data
    return _TAGGED.pack(*_MARK, flags) + data


def untagged(data: bytes, cas: Optional[int]) -> Item:
    """A value that was stored so."""
    if data[:2] == bytes(_MARK) and len(data) >= _TAGGED.size:
        return data[_TAGGED.size :], _TAGGED.unpack_from(data)[2], cas
    return data, 0, cas


class _NoLock:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class Foreign:
    """A client with the methods of pymemcache."""

    has_tags = False
    has_flags = False
    """Whether flags come back as they were stored. If not they are put before the value, which only this package reads
    then."""

    def __init__(self, client: Any, is_shared: bool = False) -> None:
        self._client = client
        self.name = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
        self._is_shared = is_shared
        self._lock: ContextManager[Any] = _NoLock() if is_shared else threading.RLock()

    def scope(self) -> None:
        """No CAS number is known to be valid."""

    def client(self) -> Any:
        """The client for this thread."""
        return self._client

    def name_of(self, key: bytes) -> Any:
        """A key as the client takes it."""
        return key

    def wrap(self, data: bytes, flags: int) -> Any:
        """A value as the client takes it."""
        return tagged(data, flags)

    def item(self, value: Any, cas: Optional[int]) -> Item:
        """A value as the client has returned it."""
        if type(value) is Flagged:
            return bytes(value), value.flags, cas
        if isinstance(value, (bytes, bytearray)):
            data = bytes(value)
            return (data, 0, cas) if self.has_flags else untagged(data, cas)
        if isinstance(value, str):
            return value.encode(), 0, cas
        if isinstance(value, int) and not isinstance(value, bool):
            return b"%d" % value, 0, cas
        return b"?", UNKNOWN, cas

    def gets(self, client: Any, keys: Sequence[Any]) -> Dict[Any, Tuple[Any, Optional[int]]]:
        """Values with CAS numbers, of the keys that are there."""
        if len(keys) == 1:
            # A client that ignores errors returns None alone.
            value, cas = client.gets(keys[0]) or (None, None)
            return {} if value is None else {keys[0]: (value, _number(cas))}
        many = client.gets_many(list(keys))
        return {key: (value, _number(cas)) for key, (value, cas) in many.items()}

    def store(self, client: Any, verb: str, key: Any, value: Any, exptime: int) -> bool:
        """Any of the stores but ``cas``."""
        return bool(getattr(client, verb)(key, value, exptime, noreply=False))

    def cas(self, client: Any, key: Any, value: Any, cas: int, exptime: int) -> str:
        """``cas``: STORED, EXISTS or NOT_FOUND."""
        stored = client.cas(key, value, b"%d" % cas, exptime, noreply=False)
        return "STORED" if stored else "NOT_FOUND" if stored is None else "EXISTS"

    def delete(self, client: Any, key: Any) -> bool:
        """``delete``."""
        return bool(client.delete(key, noreply=False))

    def touch(self, client: Any, key: Any, exptime: int) -> bool:
        """``touch``."""
        return bool(client.touch(key, exptime, noreply=False))

    def count(self, client: Any, verb: str, key: Any, by: int) -> Optional[int]:
        """``incr`` and ``decr``."""
        number = getattr(client, verb)(key, by)
        return None if number is None else int(number)

    def flush(self, client: Any) -> None:
        """``flush_all``."""
        client.flush_all()

    def call(self, client: Any, key: Any) -> Any:
        """``get``."""
        return client.get(key)

    def one(self, command: Command) -> Union[Reply, CacheError]:
        """The reply to a read."""
        try:
            client, name = self.client(), self.name_of(command.key)
            with self._lock:
                found = self.gets(client, (name,))
        except CacheError as error:
            return error
        except Exception as error:
            return self.error(error)
        return value_reply(self.item(*found[name])) if found else Reply("END")

    def batch(self, commands: Sequence[Command]) -> Replies:
        """A reply or error for each."""
        reads = [at for at, command in enumerate(commands) if command.verb in (GET, ASK, LOOK)]
        out: Replies = [Reply("END")] * len(commands)
        with self._lock:
            if reads:
                self._read(commands, reads, out)
            for at, command in enumerate(commands):
                if command.verb not in (GET, ASK, LOOK):
                    out[at] = self._guarded(lambda command=command: self._one(command))  # type: ignore[misc]
        return out

    def _read(self, commands: Sequence[Command], reads: List[int], out: Replies) -> None:
        names = [self.name_of(commands[at].key) for at in reads]
        found: Union[CacheError, Dict[Any, Tuple[Any, Optional[int]]]]
        found = self._guarded(lambda: self.gets(self.client(), names))
        for at, name in zip(reads, names):
            if isinstance(found, CacheError):
                out[at] = found
            elif name in found:
                out[at] = value_reply(self.item(*found[name]))

    def _one(self, command: Command) -> Union[Reply, CacheError]:
        if command.tags:
            return NoTags()
        client, verb, key = self.client(), command.verb, self.name_of(command.key)
        if verb == DELETE:
            # With a CAS number it would give a lease up, of which there is none.
            return Reply("DELETED" if not command.head and self.delete(client, key) else "NOT_FOUND")
        if verb == CAS or (verb == SET and command.cas is not None):
            return Reply(
                self.cas(client, key, self.wrap(command.data, command.flags), command.cas or 0, _time(command.exptime))
            )
        if verb in (SET, ADD, REPLACE, APPEND, PREPEND):
            value = command.data if verb in (APPEND, PREPEND) else self.wrap(command.data, command.flags)
            return Reply("STORED" if self.store(client, verb, key, value, _time(command.exptime)) else "NOT_STORED")
        if verb == TOUCH:
            return Reply("TOUCHED" if self.touch(client, key, _time(command.exptime)) else "NOT_FOUND")
        if verb in (INCR, DECR):
            number = self.count(client, verb, key, int(command.head))
            return Reply("NOT_FOUND") if number is None else Reply("NUMBER", b"%d" % number)
        if verb == GAT:
            self.touch(client, key, _time(command.exptime))
            found = self.gets(client, [key])
            return value_reply(self.item(*found[key])) if key in found else Reply("END")
        if verb == CALL:
            value = self.call(client, key)
            return Reply("END") if value is None else Reply("VA", self.item(value, None)[0])
        if verb == CLAIM:
            return Reply("EN")
        if verb == FLUSH:
            self.flush(client)
            return Reply("OK")
        return UsageError(f"{verb} is not possible over {self.name}: ask that client")

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except CacheError as error:
            return error
        except Exception as error:
            return self.error(error)

    def error(self, error: Exception) -> CacheError:
        """An error of the client as one of this package. A mistake in the program is raised as it is."""
        if isinstance(error, (AttributeError, NotImplementedError)):
            return UsageError(f"{self.name} has no such command: {error}")
        text = str(error) or type(error).__name__
        made: CacheError
        if "too large" in text.lower() or "toobig" in type(error).__name__.lower():
            made = ServerBusy(self.name, "SERVER_ERROR object too large for cache")
        else:
            made = ConnectionFailed(self.name, text)
        made.__cause__ = error
        return made

    def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The client's own form of a command to all servers."""
        if any(command.verb in (VERSION, STATS) for command in commands):
            raise UsageError(f"version and statistics of servers are not possible over {self.name}: ask that client")
        return [(self.name, self.batch(commands))]

    def forget(self) -> None:
        """In a process that was forked: the client's connections are the parent's."""
        if not self._is_shared:
            self._lock = threading.RLock()
        try:
            self.drop(self._client)
        except Exception:
            return

    def drop(self, client: Any) -> None:
        """Closes this process's end of its connections, without a word to the server."""
        client.close()

    def close(self) -> None:
        """The client is its owner's."""


def value_reply(item: Item) -> Reply:
    """The reply with an item."""
    return Reply("VA", *item)


def _number(cas: Any) -> Optional[int]:
    return None if cas is None else int(cas)


def _time(exptime: int) -> int:
    """An expiry that has passed is -1: clients may refuse others."""
    return -1 if exptime == 30 * 24 * 60 * 60 + 1 else exptime


class Pymemcache(Foreign):
    """Client, PooledClient or HashClient. Items keep their flags: the client's serializer lets them pass."""

    has_flags = True

    def __init__(self, client: Any) -> None:
        kind = type(client).__name__
        shared = "Pooled" in kind or bool(getattr(client, "use_pooling", False))
        super().__init__(client, shared)
        prepare(client)

    def wrap(self, data: bytes, flags: int) -> Any:
        """See :class:`Foreign`."""
        return flagged(data, flags)

    def drop(self, client: Any) -> None:
        """See :class:`Foreign`."""
        for one in getattr(client, "clients", {}).values():
            one.close()
        if not hasattr(client, "clients"):
            client.close()


def prepare(client: Any) -> None:
    """Lets flags pass through a client of pymemcache."""
    if hasattr(client, "clients") and hasattr(client, "default_kwargs"):
        arguments = client.default_kwargs
        if not isinstance(arguments.get("serde"), FlagSerde):
            from pymemcache.serde import LegacyWrappingSerde

            own = LegacyWrappingSerde(arguments.get("serializer"), arguments.get("deserializer"))
            arguments["serde"] = FlagSerde(arguments.get("serde") or own)
        for one in client.clients.values():
            prepare(one)
        return
    if not isinstance(client.serde, FlagSerde):
        client.serde = FlagSerde(client.serde)
        pool = getattr(client, "client_pool", None)
        if pool is not None:
            # Those that are free were made with the other one.
            pool.clear()


class Pylibmc(Foreign):
    """pylibmc: a Client with the behavior ``cas``, used by one thread at a time."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        if not client.behaviors.get("cas"):
            raise UsageError("a client of pylibmc needs behaviors={'cas': True}")
        self._pid = os.getpid()

    def gets(self, client: Any, keys: Sequence[Any]) -> Dict[Any, Tuple[Any, Optional[int]]]:
        """See :class:`Foreign`."""
        found = {}
        for key in keys:
            value, cas = client.gets(key)
            if value is not None:
                found[key] = (value, _number(cas))
        return found

    def store(self, client: Any, verb: str, key: Any, value: Any, exptime: int) -> bool:
        """See :class:`Foreign`."""
        method = getattr(client, verb)
        if verb in (APPEND, PREPEND):
            return bool(method(key, value))
        return bool(method(key, value, exptime if exptime >= 0 else 2592001))

    def cas(self, client: Any, key: Any, value: Any, cas: int, exptime: int) -> str:
        """See :class:`Foreign`."""
        try:
            return "STORED" if client.cas(key, value, cas, exptime if exptime >= 0 else 2592001) else "EXISTS"
        except Exception as error:
            if type(error).__name__ == "NotFound":
                return "NOT_FOUND"
            raise

    def delete(self, client: Any, key: Any) -> bool:
        """See :class:`Foreign`."""
        return bool(client.delete(key))

    def touch(self, client: Any, key: Any, exptime: int) -> bool:
        """See :class:`Foreign`."""
        return bool(client.touch(key, exptime if exptime >= 0 else 2592001))

    def count(self, client: Any, verb: str, key: Any, by: int) -> Optional[int]:
        """See :class:`Foreign`."""
        try:
            return int(getattr(client, verb)(key, by))
        except Exception as error:
            if type(error).__name__ == "NotFound":
                return None
            raise

    def forget(self) -> None:
        """See :class:`Foreign`: a client of its own, which has no connections yet."""
        self._lock = threading.RLock()
        self._client = self._client.clone()


class PythonMemcached(Foreign):
    """python-memcached, which remembers CAS numbers itself: each thread has its own connections."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, True)
        client.cache_cas = True

    def gets(self, client: Any, keys: Sequence[Any]) -> Dict[Any, Tuple[Any, Optional[int]]]:
        """See :class:`Foreign`."""
        client.cache_cas = True
        found = {}
        for key in keys:
            value = client.gets(key)
            if value is not None:
                found[key] = (value, _number(client.cas_ids.get(key, 0)))
        return found

    def store(self, client: Any, verb: str, key: Any, value: Any, exptime: int) -> bool:
        """See :class:`Foreign`."""
        return bool(getattr(client, verb)(key, value, exptime))

    def cas(self, client: Any, key: Any, value: Any, cas: int, exptime: int) -> str:
        """See :class:`Foreign`."""
        client.cas_ids[key] = cas
        try:
            if client.cas(key, value, exptime):
                return "STORED"
            return "EXISTS" if client.get(key) is not None else "NOT_FOUND"
        finally:
            client.cas_ids.pop(key, None)

    def delete(self, client: Any, key: Any) -> bool:
        """See :class:`Foreign`."""
        if client.get(key) is None:
            return False
        return bool(client.delete(key))

    def touch(self, client: Any, key: Any, exptime: int) -> bool:
        """See :class:`Foreign`."""
        return client.get(key) is not None and bool(client.touch(key, exptime))

    def drop(self, client: Any) -> None:
        """See :class:`Foreign`."""
        client.disconnect_all()


_inner: weakref.WeakValueDictionary[int, Foreign] = weakref.WeakValueDictionary()
_inner_lock = threading.Lock()


class Django(Foreign):
    """Django's cache: its client underneath, with its keys."""

    def __init__(self, cache: Any) -> None:
        super().__init__(cache, True)
        self._local = threading.local()
        self.client()

    def client(self) -> Any:
        """The client of this thread's cache."""
        client = self._client._cache
        if getattr(self._local, "client", None) is not client:
            with _inner_lock:
                # Threads that share a client share its lock.
                inner = _inner.get(id(client))
                if inner is None or inner._client is not client:
                    inner = _inner[id(client)] = transport_of(client)
            self._local.inner = inner
            self._local.client = client
        return client

    def name_of(self, key: bytes) -> Any:
        """See :class:`Foreign`."""
        return self._client.make_and_validate_key(key.decode("utf-8", "surrogateescape"))

    def one(self, command: Command) -> Union[Reply, CacheError]:
        """See :class:`Foreign`."""
        return self.batch([command])[0]

    def batch(self, commands: Sequence[Command]) -> Replies:
        """See :class:`Foreign`."""
        self.client()
        named: List[Command] = []
        for command in commands:
            name = command.key
            if command.verb != FLUSH:
                try:
                    name = self.name_of(command.key).encode()
                except Exception as error:
                    return [UsageError(str(error))] * len(commands)
            named.append(
                Command(
                    command.verb,
                    name,
                    command.head,
                    command.data,
                    command.flags,
                    command.exptime,
                    command.cas,
                    command.tags,
                )
            )
        inner: Foreign = self._local.inner
        return inner.batch(named)

    def forget(self) -> None:
        """See :class:`Foreign`."""
        inner = getattr(self._local, "inner", None)
        if inner is not None:
            inner.forget()


_KINDS: Dict[str, Type[Foreign]] = {"pymemcache": Pymemcache, "pylibmc": Pylibmc, "memcache": PythonMemcached}


def transport_of(client: Any) -> Foreign:
    """The transport over another library's client. Raises :class:`UsageError`."""
    if type(client).__name__ == "RetryingClient":
        # Before all else: it claims to have any attribute.
        raise UsageError(
            "a RetryingClient sends stores again of which it does not know whether they were done, so that a lock would be taken for "
            "another's: give the client inside it"
        )
    if hasattr(client, "_cache") and hasattr(client, "make_key"):
        return Django(client)
    for kind in type(client).__mro__:
        known = _KINDS.get(kind.__module__.partition(".")[0])
        if known is not None:
            return known(client)
    missing = [name for name in ("gets", "add", "cas", "set", "delete") if not callable(getattr(client, name, None))]
    if missing:
        raise UsageError(
            f"{type(client).__name__} is neither addresses of servers nor a client with the methods of pymemcache: it "
            "has no " + ", ".join(missing)
        )
    return Foreign(client)
