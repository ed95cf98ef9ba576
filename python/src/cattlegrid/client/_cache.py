"""The cache of blocking programs."""

from __future__ import annotations

import os
import ssl
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, List, Literal, Mapping, Optional, Tuple, TypeVar, Union, overload

from . import _outcome as o
from ._base import MISSING, Base, ask_head_of
from ._blocking import OwnServers, Transport, run
from ._calls import Tags, cut
from ._connection import Servers
from ._errors import UsageError
from ._herd import options
from ._hooks import Observer
from ._keys import AnyKey
from ._machine import Ending, Grant
from ._methods import CacheMethods
from ._near import NearCache
from ._options import Duration, Ttl, expiration, milliseconds
from ._ring import KETAMA_WEIGHTED, Ejection
from ._saved import resume, save
from ._serializers import Serializer
from ._wire import ASK, Command, Reply

R = TypeVar("R")
W = TypeVar("W")
D = TypeVar("D")

_all: weakref.WeakSet[Cache] = weakref.WeakSet()


class Token:
    """The right to deliver a value, see :meth:`Cache.fetch_or_compute`. Dropped, it gives the key up."""

    __slots__ = ("__weakref__", "_cache", "_grace_ms", "_grant", "_ttl")

    def __init__(self, cache: Cache, grant: Grant, ttl: Ttl, grace_ms: Optional[int]) -> None:
        self._cache = cache
        self._grant = grant
        self._ttl = ttl
        self._grace_ms = grace_ms

    @property
    def key(self) -> bytes:
        """The key as servers know it."""
        return self._grant.subject.key

    @property
    def is_over(self) -> bool:
        """Whether it has been used, given up or saved."""
        return self._grant.is_over

    def save(self) -> str:
        """This token as text, for :meth:`Cache.resume` in any process that has the same servers. Nothing is given up:
        the key stays with the process that has the text, for ``compute_timeout`` since the token was got. Ask for it
        with ``outlives_process``."""
        return self._cache._save(self)

    def __repr__(self) -> str:
        return f"Token({self.key!r})"

    def __del__(self) -> None:
        grant = self._grant
        if not grant.is_over and grant.pid == os.getpid():
            try:
                self._cache._run(self._cache._herd.asker.settle([(grant, Ending())]))
            except Exception:
                return


class Cache(CacheMethods, Base):
    """A memcached client that computes each missing value once. May be used by many threads, and after a fork.

    :param servers: addresses: a text with commas or blanks between them, or a list of texts and ``(host, port)`` pairs:
        ``host``, ``host:port``, ``[v6]:port``, ``unix:/path``, ``=WEIGHT`` after it, 1 to 65535. Port 11211.
        Or another library's client: pymemcache, pylibmc, python-memcached, Django's cache, or one with the methods of
        pymemcache. It is used by its text commands, without tags and leases.
    :param prefix: before every key.
    :param serializer: ``"json"``, ``"bytes"``, ``"text"``, ``"msgpack"``, ``"pickle"``, or a :class:`Serializer`.
    :param compress_above: values of more bytes are compressed, if that makes them smaller.
    :param timeout: how long a server may be silent, where a reply is due or in the middle of one: many or large values
        may take longer in all. Above 0 and at most a day. A computing call that the server holds has the time of its
        wait in addition; a plain read is held for nine tenths of ``timeout`` at most.
    :param connect_timeout: of connecting, with TLS and authentication.
    :param sharding: which server has a key: ``"ketama_weighted"``, ``"ketama"`` or ``"rendezvous"``.
    :param username: and ``password``: memcached's ASCII authentication.
    :param tls: ``True``, the file of an authority's certificate, or an ``ssl.SSLContext``.
    :param ejection: ``True`` or an :class:`Ejection`: the keys of a server that fails go to the others.
    :param flush_on_return: a server that returns is flushed first.
    :param protocol: ``"meta"`` or ``"text"``; by default each new connection asks whether the server knows the meta
        commands, and else works without them: there are no tags and leases then.
    :param when_unavailable: ``"fail"`` or ``"compute"``, for all calls that name none.
    :param observer: is told what happens: an :class:`Observer`, or several.
    :param near: values of the busiest keys are kept in this process: ``True``, a duration or a ``NearCache``.
    :param testing: ``"memory"``, ``"off"`` or ``"miss"`` in place of servers, see ``cattlegrid.client.testing``.
    :param clock: of expiries, for tests.
    """

    def __init__(
        self,
        servers: Any,
        *,
        prefix: Union[str, bytes] = "",
        serializer: Union[str, Serializer] = "json",
        compress_above: Optional[int] = None,
        timeout: Duration = 1.0,
        connect_timeout: Duration = 1.0,
        sharding: str = KETAMA_WEIGHTED,
        username: Optional[str] = None,
        password: Optional[str] = None,
        tls: Union[bool, str, ssl.SSLContext, None] = None,
        ejection: Union[bool, Ejection, None] = None,
        flush_on_return: bool = False,
        protocol: Optional[str] = None,
        when_unavailable: str = "fail",
        observer: Union[Observer, Iterable[Observer], None] = None,
        near: Union[bool, Duration, NearCache, None] = None,
        testing: Optional[str] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            servers,
            threading.Event,
            prefix=prefix,
            serializer=serializer,
            compress_above=compress_above,
            timeout=timeout,
            connect_timeout=connect_timeout,
            sharding=sharding,
            username=username,
            password=password,
            tls=tls,
            ejection=ejection,
            flush_on_return=flush_on_return,
            protocol=protocol,
            when_unavailable=when_unavailable,
            observer=observer,
            near=near,
            testing=testing,
            clock=clock,
        )
        _all.add(self)

    def _connect(self, servers: Any) -> Transport:
        own = self._own_servers(servers)
        if own is not None:
            addresses, route, settings, flush = own
            self._servers = Servers(addresses, route, settings, self.metrics, flush)
            return OwnServers(self._servers)
        from ._foreign import transport_of

        return transport_of(servers)

    def _run(self, machine: Any) -> Any:
        return run(self._transport, machine)

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. The next call opens new ones."""
        self._transport.close()

    def get(self, key: AnyKey, default: Any = None) -> Any:
        """The value of a key; ``default`` if it is absent, has expired or is being computed. Values of
        ``get_or_compute`` are read too. Under a rule with leases a key that is missing is then this program's to
        compute and :meth:`set`, and others wait: use :meth:`peek` where nothing is stored after it.

        Raises :class:`UnreadableValue`: another program, or another serializer, wrote it.
        """
        return self._run(self._calls.get(key, default))

    def gets(self, key: AnyKey, default: Any = None) -> Tuple[Any, Optional[int]]:
        """The value and its CAS number, for :meth:`cas`; ``(default, None)`` if there is none."""
        result: Tuple[Any, Optional[int]] = self._run(self._calls.gets(key, default))
        return result

    def get_and_touch(self, key: AnyKey, ttl: Ttl, default: Any = None) -> Any:
        """The value, which lives for ``ttl`` from now on."""
        return self._run(self._calls.get_and_touch(key, ttl, default))

    def peek(self, key: AnyKey, default: Any = None) -> Any:
        """The value; nothing is computed or waited for, and no lease is taken."""
        return self._run(self._calls.peek(key, default))

    def get_many(self, keys: Iterable[AnyKey]) -> Dict[Any, Any]:
        """The values that there are, by the keys as they are given. One round trip to each server."""
        result: Dict[Any, Any] = self._run(self._calls.get_many(keys))
        return result

    def set(self, key: AnyKey, value: Any, ttl: Ttl = 0, tags: Tags = ()) -> bool:
        """Stores a value. ``ttl``: see :data:`Ttl`; 0 is never."""
        return bool(self._run(self._calls.store("set", key, value, ttl, tags)))

    def add(self, key: AnyKey, value: Any, ttl: Ttl = 0, tags: Tags = ()) -> bool:
        """Stores a value if there is none: whether it was stored."""
        return bool(self._run(self._calls.store("add", key, value, ttl, tags)))

    def replace(self, key: AnyKey, value: Any, ttl: Ttl = 0, tags: Tags = ()) -> bool:
        """Stores a value if there is one: whether it was stored."""
        return bool(self._run(self._calls.store("replace", key, value, ttl, tags)))

    def cas(self, key: AnyKey, value: Any, cas: int, ttl: Ttl = 0, tags: Tags = ()) -> Optional[bool]:
        """Stores a value if the item has this CAS number: True; False: it has changed; None: there is none."""
        result: Optional[bool] = self._run(self._calls.cas(key, value, cas, ttl, tags))
        return result

    def append(self, key: AnyKey, data: bytes) -> bool:
        """Puts bytes after those of the item. It must be plain bytes."""
        return bool(self._run(self._calls.join("append", key, data)))

    def prepend(self, key: AnyKey, data: bytes) -> bool:
        """Puts bytes before those of the item. It must be plain bytes."""
        return bool(self._run(self._calls.join("prepend", key, data)))

    def set_many(self, values: Mapping[Any, Any], ttl: Ttl = 0, tags: Tags = ()) -> List[Any]:
        """Stores values: the keys of those that were not stored, since they are too large."""
        result: List[Any] = self._run(self._calls.set_many(values, ttl, tags))
        return result

    def delete(self, key: AnyKey) -> bool:
        """Deletes a key: whether it was there. What is being computed for it is not stored."""
        return bool(self._run(self._calls.delete(key)))

    def delete_many(self, keys: Iterable[AnyKey]) -> Dict[Any, bool]:
        """Deletes keys: of each whether it was there."""
        result: Dict[Any, bool] = self._run(self._calls.delete_many(keys))
        return result

    def touch(self, key: AnyKey, ttl: Ttl = 0) -> bool:
        """Gives an item a new time to live: whether it is there."""
        return bool(self._run(self._calls.touch(key, ttl)))

    def incr(self, key: AnyKey, by: int = 1) -> Optional[int]:
        """Adds to a number: the new one; None if there is none."""
        result: Optional[int] = self._run(self._calls.count("incr", key, by))
        return result

    def decr(self, key: AnyKey, by: int = 1) -> Optional[int]:
        """Subtracts from a number, down to 0: the new one; None if there is none."""
        result: Optional[int] = self._run(self._calls.count("decr", key, by))
        return result

    def flush_all(self, delay: Duration = 0) -> Dict[str, bool]:
        """Every server drops all items, of all programs, after ``delay`` (whole seconds)."""
        result: Dict[str, bool] = self._run(self._calls.flush_all(delay))
        return result

    def version(self) -> Dict[str, str]:
        """The version of every server."""
        result: Dict[str, str] = self._run(self._calls.version())
        return result

    def server_statistics(self, group: str = "") -> Dict[str, Dict[str, str]]:
        """``stats`` of every server."""
        result: Dict[str, Dict[str, str]] = self._run(self._calls.stats(group))
        return result

    def invalidate(self, tags: Tags, soft: bool = False) -> Dict[str, bool]:
        """Invalidates all items with any of the tags, on every server, in one round trip: True for each. ``soft``:
        their old values may be served while new ones are computed, where a rule has ``grace``.

        Raises :class:`NoTags`, or an error whose ``servers`` were not reached and still serve their old items; its
        ``results`` names all.
        """
        result: Dict[str, bool] = self._run(self._calls.invalidate(tags, soft))
        return result

    def has_tags(self) -> bool:
        """Whether every server has tags."""
        return bool(self._run(self._calls.has_tags()))

    @overload
    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Optional[Duration] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: None = None,
        outcome: Literal[False] = False,
    ) -> Optional[R]: ...

    @overload
    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Optional[Duration] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: D,
        outcome: Literal[False] = False,
    ) -> Union[R, D]: ...

    @overload
    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Callable[[], W],
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: Any = None,
        outcome: Literal[False] = False,
    ) -> Union[R, W]: ...

    @overload
    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Union[Duration, Callable[[], Any], None] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: Any = None,
        outcome: Literal[True],
    ) -> o.Outcome[R]: ...

    @overload
    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], o.Computed[R]],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Union[Duration, Callable[[], Any], None] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: Any = None,
        outcome: bool = False,
    ) -> Any: ...

    def get_or_compute(
        self,
        key: AnyKey,
        fn: Callable[[], Any],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Union[Duration, Callable[[], Any], None] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        default: Any = None,
        outcome: bool = False,
    ) -> Any:
        """The value of a key. If it is missing or has expired, one caller of all processes calls ``fn`` and stores what
        that returns; the others get the old value or, if there is none, wait.

        :param ttl: how long the value is fresh, see :data:`Ttl`; 0 is for ever.
        :param grace: how long an expired value is kept and served while a new one is computed: ``compute_time`` and a
            second. Under a rule of Cattlegrid that of the rule counts.
        :param compute_time: a high estimate of the time that ``fn`` takes, 1 ms to a day: 2 s. When it has passed,
            another may compute.
        :param wait: how long to wait for another's value, or a function that is called in place of waiting and whose
            result is returned. ``compute_time`` if that is given, else 100 ms. 0: not at all.
        :param tags: tags of the item.
        :param on_not_stored: called with the key and a :class:`NotStored` if the value that was computed is not in the
            cache.
        :param when_unavailable: ``"fail"`` or ``"compute"``: if the server cannot be asked, every caller computes.
        :param default: what is returned if another computes and its value was not there when the wait had passed.
        :param outcome: return an :class:`Outcome`, which says how the value came.

        ``fn`` may return :func:`skip` or :class:`Negative`. What it raises goes to its caller, and the key is free at
        once.
        """
        subject = self._calls.subject(key, tags)
        how = self._options(compute_time, wait, grace, when_unavailable, on_not_stored)
        scope = self._transport.scope()
        reply = self._transport.one(Command(ASK, subject.key, ask_head_of(how.lock_ms)))
        if type(reply) is Reply:
            value = self._hit(reply)
            if value is not MISSING:
                self.metrics.outcome(subject.key, o.HIT)
                return o.Outcome(o.HIT, value) if outcome else value
        result = self._run(self._herd.get_or_compute(subject, fn, expiration(ttl), how, (reply, scope)))
        if outcome:
            return result
        return result.value if result.has_value else default

    def get_or_compute_many(
        self,
        keys: Iterable[Any],
        fn: Callable[[List[Any]], Any],
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        batch_compute_time: Optional[Duration] = None,
        wait: Union[Duration, Callable[[List[Any]], Any], None] = None,
        tags: Tags = (),
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]] = None,
        when_unavailable: Optional[str] = None,
        outcome: bool = False,
    ) -> Dict[Any, Any]:
        """The values of keys, by the keys as they are given: those that are not available are left out.

        :param keys: keys, or pairs of a key and its ``ttl``.
        :param fn: is called with the list of the keys that this caller must compute, and returns a dictionary of their
            values, or a list in their order. Keys that it leaves out are not computed.
        :param compute_time: for each key: locks last for ``compute_time`` times their number, or
            ``batch_compute_time``.
        :param wait: a function is called with the list of the keys that others compute, and returns a dictionary.
        :param outcome: return an :class:`Outcome` for each key.

        The rest is as for :meth:`get_or_compute`. Raises the error of the first key whose server cannot be asked, after
        the others were stored; with ``outcome`` it is in its place.
        """
        how = self._options(compute_time, wait, grace, when_unavailable, on_not_stored, batch_compute_time)
        machine = self._many(keys, fn, ttl, tags, how)
        return self._results(self._run(machine), outcome)

    def fetch_or_compute(
        self,
        key: AnyKey,
        ttl: Ttl = 0,
        hint: Union[str, bytes] = b"",
        *,
        compute_timeout: Duration = 30,
        wait: Optional[Duration] = None,
        outlives_process: bool = False,
        tags: Tags = (),
    ) -> o.Fetched[Any]:
        """The value, or the right to compute it, for programs that compute elsewhere: :class:`Hit`, :class:`Value`
        (another has delivered it while this caller waited), :class:`Compute` with a token and the hint of the caller
        that asked first, :class:`Error` with the text of ``fail``, or :class:`Busy`.

        :param ttl: time to live of the value, rounded up to whole seconds.
        :param hint: for the caller that computes, at most 460 bytes when percent-encoded.
        :param compute_timeout: how long the token is valid, 1 ms to a day.
        :param wait: how long to wait for another's value: twice ``compute_timeout``.
        :param outlives_process: the token will be saved: a server with a rule keeps it when this process's connection
            closes.
        """
        search = self._calls.search(key, tags, hint, compute_timeout, wait, outlives_process)
        expiration(ttl)
        return self._fetched(self._run(self._herd.fetch(search)), ttl, None, True)

    def fetch(
        self,
        key: AnyKey,
        *,
        ttl: Ttl = 0,
        grace: Optional[Duration] = None,
        compute_time: Optional[Duration] = None,
        wait: Optional[Duration] = None,
        tags: Tags = (),
    ) -> o.Fetched[Any]:
        """What is under :meth:`get_or_compute`: :class:`Hit`, :class:`Stale`, :class:`Compute` with a token (and the
        old value as ``stale``), which has to be delivered, failed or given up, or :class:`Busy`. ``ttl`` and ``grace``
        are those of the value that is delivered."""
        how = self._options(compute_time, wait, grace, None, None)
        expiration(ttl)
        search = self._search(self._calls.subject(key, tags), how)
        return self._fetched(self._run(self._herd.fetch(search)), ttl, how.grace_ms, False)

    def deliver(self, token: Token, value: Any, *, ttl: Ttl = None, tags: Tags = ()) -> Optional[o.NotStored]:
        """Stores the value that was computed, and gives it to the callers that wait: None if it was stored, else why
        not: the token came too late, or the key was deleted since. ``ttl``: another than the token's.

        Raises an error if the server cannot be asked or refuses the value, and :class:`UsageError` if the token was
        used already.
        """
        ending = self._ending(token, value, ttl, tags)
        result: Optional[o.NotStored] = self._run(self._herd.end(token._grant, ending[0]))
        return o.NotStored(o.SKIPPED) if ending[1] else result

    def fail(self, token: Token, text: str = "failed") -> None:
        """Says that the computation has failed: callers of ``fetch_or_compute`` that wait get the text, cut to 460
        percent-encoded bytes, and the next caller a new token."""
        self._run(self._herd.end(token._grant, Ending(None, cut(text))))

    def give_up(self, token: Token) -> None:
        """Gives the key up: the next caller computes at once."""
        self._run(self._herd.end(token._grant, Ending()))

    def resume(self, saved: str) -> Token:
        """The token that was saved, in this process or another. The server is not asked. Raises :class:`UsageError`: it
        is no token."""
        grant, ttl_ms = resume(saved, self._now_ms())
        return Token(self, grant, f"{ttl_ms}ms", None)

    def _save(self, token: Token) -> str:
        if token._grant.is_over:
            raise UsageError("the token has been used already")
        text = save(token._grant, self._ttl_ms(token._ttl), self._now_ms())
        self._let_go(token._grant)
        return text

    def _token(self, grant: Grant, ttl: Ttl, grace_ms: Optional[int]) -> Token:
        return Token(self, grant, ttl, grace_ms)


def _after_fork() -> None:
    """The connections and computations are the parent's."""
    for cache in list(_all):
        cache._forget()


os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Cache", "Token", "milliseconds", "options", "time"]
