"""What the blocking cache and that of asyncio have in common."""

from __future__ import annotations

import ssl
import threading
import time
from typing import Any, Callable, Dict, Hashable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _machine as m
from . import _outcome as o
from ._calls import Calls, Tags
from ._connection import Settings, tls_context
from ._envelope import MAGIC, SHORT, SHORT_SIZE
from ._errors import UsageError
from ._flags import ENVELOPE, OURS, UPPER
from ._herd import Herd, Options, Search, Verdict, options
from ._hooks import Metrics, Observer, Statistics
from ._keys import AnyKey, Key, key_bytes
from ._machine import Ending, Grant, Subject
from ._many import many
from ._near import NearCache, near_of
from ._options import Duration, Ttl, expiration, seconds
from ._ring import KETAMA_WEIGHTED, Ejection, Route
from ._serializers import Codec, Serializer
from ._servers import Address, parse_all
from ._spans import trace_calls
from ._switch import set_up
from ._turns import Turns
from ._wire import META, TEXT, Reply, ask_head

_CACHED_MAX = 1000
_SEALED = OURS | ENVELOPE
_MASK = UPPER | ENVELOPE
MISSING = object()
"""No value."""


class Base:
    """A cache without its driver."""

    def __init__(
        self,
        servers: Any,
        make_event: Callable[[], Any],
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
        self._prefix = prefix.encode() if isinstance(prefix, str) else bytes(prefix)
        if self._prefix:
            key_bytes(b"k", self._prefix)
        self._codec = Codec(serializer, compress_above)
        self._clock = clock
        self._unavailable = when_unavailable
        self._options_cache: Dict[Any, Options] = {}
        if protocol not in (None, META, TEXT):
            raise UsageError(f"protocol: None, 'meta' or 'text', not {protocol!r}")
        if (username is None) != (password is None):
            raise UsageError("username and password belong together")
        self._sharding, self._ejection, self._flush_on_return = sharding, _ejection(ejection), flush_on_return
        self._settings = Settings(
            _above_zero(timeout, "timeout"),
            _above_zero(connect_timeout, "connect_timeout"),
            username,
            password,
            tls_context(tls),
            protocol,
        )
        self.metrics = Metrics(observer)
        self._servers: Any = None
        self._real: Any = None
        self._transport = self._connect(servers)
        set_up(self, servers, testing, make_event is not threading.Event)
        self._herd = Herd(self._transport, self._codec, self.metrics, make_event, clock, self._place)
        self._turns = Turns(make_event, self._place)
        self._calls = Calls(self._herd, self._transport, self._codec, self._prefix, clock)
        self._calls.near = self._herd.asker.near = near_of(near)
        self._calls.patience = b" Pw%d" % int(self._settings.timeout * 900)
        self._options(None, None, None, None, None)
        trace_calls(self, self.metrics.observer)

    @staticmethod
    def _place() -> Hashable:
        """Callers at the same place wait together."""
        return None

    def _connect(self, servers: Any) -> Any:
        raise NotImplementedError

    def _own_servers(self, servers: Any) -> Optional[Tuple[List[Address], Route, Settings, bool]]:
        """Of addresses; None: it is another library's client."""
        pair = isinstance(servers, tuple) and len(servers) == 2 and isinstance(servers[1], int)
        if pair:
            servers = [servers]
        if not isinstance(servers, (str, list, tuple, set, frozenset)):
            return None
        addresses = parse_all(servers)
        route = Route([(address.ring_name, address.weight) for address in addresses], self._sharding, self._ejection)
        return addresses, route, self._settings, self._flush_on_return

    @property
    def prefix(self) -> str:
        """What all keys in the cache begin with."""
        return self._prefix.decode("utf-8", "surrogateescape")

    def statistics(self) -> Statistics:
        """What has been counted since this cache was made."""
        return self.metrics.statistics()

    def under_way(self) -> int:
        """Keys that callers of this process wait for or compute."""
        return len(self._herd.flights)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _forget(self) -> None:
        """In a process that was forked: connections and computations are the parent's."""
        self._herd.flights.forget()
        self._turns.forget()
        self._real.forget()
        if self._transport is not self._real:
            self._transport.forget()
        if self._calls.near is not None:
            self._calls.near.forget()

    def _options(
        self,
        compute_time: Optional[Duration],
        wait: Any,
        grace: Optional[Duration],
        when_unavailable: Optional[str],
        on_not_stored: Optional[Callable[[Any, o.NotStored], Any]],
        batch: Optional[Duration] = None,
    ) -> Options:
        name = (compute_time, wait, grace, when_unavailable, on_not_stored, batch)
        try:
            known = self._options_cache.get(name)
        except TypeError:
            known = name = None  # type: ignore[assignment]
        if known is None:
            known = options(compute_time, wait, grace, when_unavailable or self._unavailable, on_not_stored, batch)
            if name is not None and not callable(wait) and on_not_stored is None:
                if len(self._options_cache) >= _CACHED_MAX:
                    self._options_cache.clear()
                self._options_cache[name] = known
        return known

    def _hit(self, reply: Reply) -> Any:
        """The value of a reply that is plainly a hit, without the machine; else :data:`MISSING`."""
        if reply.kind != "VA" or reply.flags & _MASK != _SEALED or reply.won or reply.stale or reply.busy:
            return MISSING
        data = reply.data
        if len(data) < SHORT_SIZE:
            return MISSING
        magic, kind, soft_ms, _ = SHORT.unpack_from(data)
        if magic != MAGIC or kind or (soft_ms and self._clock() * 1000 >= soft_ms):
            return MISSING
        try:
            return self._codec.decode(data[SHORT_SIZE:], reply.flags & ~ENVELOPE)
        except ValueError:
            return MISSING

    def _search(self, subject: Subject, how: Options) -> Search:
        if how.busy is not None:
            raise UsageError("wait: a duration here, not a function")
        return Search(subject, m.terms(how.lock_ms), how.wait)

    def _many(
        self, keys: Iterable[Any], fn: Callable[[List[Any]], Any], ttl: Ttl, tags: Tags, how: Options
    ) -> m.Machine:
        """The machine of many keys. Everything is checked before anything is sent."""
        asked: Dict[Any, Tuple[Subject, Any]] = {}
        for each in keys:
            key: AnyKey
            key, own = each if _is_pair(each) else (each, ttl)
            asked[key] = (self._calls.subject(key, tags), expiration(own))
        return many(self._herd, asked, fn, how)

    @staticmethod
    def _results(outcomes: Dict[Any, o.Outcome[Any]], outcome: bool) -> Dict[Any, Any]:
        if outcome:
            return outcomes
        for each in outcomes.values():
            if each.error is not None:
                raise each.error
        return {key: each.value for key, each in outcomes.items() if each.has_value}

    def _token(self, grant: Grant, ttl: Ttl, grace_ms: Optional[int]) -> Any:
        raise NotImplementedError

    def _fetched(self, verdict: Verdict, ttl: Ttl, grace_ms: Optional[int], is_told: bool) -> o.Fetched[Any]:
        if verdict.grant is not None:
            grant = verdict.grant
            old: Optional[o.Hit[Any]] = None
            if grant.old is not None:
                try:
                    old = o.Hit(self._codec.decode(grant.old.data, grant.old.flags))
                except ValueError:
                    old = None
            return o.Compute(self._token(grant, ttl, grace_ms), grant.hint or b"", old)
        if verdict.kind == m.FAILED:
            return o.Error(verdict.text.decode("utf-8", "replace"))
        if verdict.kind == m.HIT:
            return o.Value(verdict.value) if is_told and verdict.waited else o.Hit(verdict.value)
        if verdict.kind == m.STALE:
            return o.Hit(verdict.value) if is_told else o.Stale(verdict.value)
        return o.Busy()

    def _ending(self, token: Any, value: Any, ttl: Ttl, tags: Tags) -> Tuple[Ending, bool]:
        """How a token ends with this value, and whether it is not stored."""
        grant: Grant = token._grant
        if tags:
            more = self._calls.subject(b"k", tags).tags
            every = tuple(dict.fromkeys((*grant.subject.tags, *more)))
            grant.subject = grant.subject._replace(tags=every)
        return self._calls.fill(grant, value, token._ttl if ttl is None else ttl, token._grace_ms)

    def _ttl_ms(self, ttl: Ttl) -> int:
        when = expiration(ttl)
        if when is None:
            # The Rust client has no token without a time to live: a hundred years.
            return 100 * 365 * 86_400_000
        return when[1] if when[0] == "after" else max(when[1] - self._now_ms(), 1)

    def _let_go(self, grant: Grant) -> None:
        """The grant leaves this process: its callers look again."""
        grant.is_over = True
        if grant.on_end is not None:
            grant.on_end.end(m.End("again"))


_heads: Dict[int, bytes] = {}


def ask_head_of(lock_ms: int) -> bytes:
    """The flags of the first question, made once for each ``compute_time``."""
    head = _heads.get(lock_ms)
    if head is None:
        if len(_heads) > _CACHED_MAX:
            _heads.clear()
        head = _heads[lock_ms] = ask_head(lock_ms)
    return head


def _is_pair(each: Any) -> bool:
    return isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], (str, bytes, Key))


def _above_zero(duration: Duration, what: str) -> float:
    number = seconds(duration, what)
    if not 0 < number <= 86400:
        raise UsageError(f"{what}: {duration!r} is not above 0 and at most a day")
    return number


def _ejection(choice: Union[bool, Ejection, None]) -> Optional[Ejection]:
    if choice is None or choice is False:
        return None
    if choice is True:
        return Ejection()
    if isinstance(choice, Ejection):
        return choice
    raise UsageError(f"ejection: True or an Ejection, not {choice!r}")


__all__ = ["Base", "Mapping", "Sequence"]
