"""What a client counts, and tells an observer."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterable, List, Optional, Union

from . import _outcome as o

if TYPE_CHECKING:
    from ._outcome import NotStored

log = logging.getLogger("cattlegrid.client")

HIT = "hit"
MISS = "miss"
DONE = "done"
TIMEOUT = "timeout"
ERROR = "error"


class Observer:
    """Is told what a ``Cache`` does, as it happens: for metrics of a program's own. All methods do nothing unless they
    are defined.

    They are called by the threads and tasks that do the work, so they must be quick and must not block. What one raises
    is logged by ``cattlegrid.client``, and changes nothing.
    """

    def request(self, server: str, command: str, seconds: float, outcome: str) -> None:
        """A request has ended. ``command`` is that of memcached; ``get`` stands for all reads and for calls of objects.
        ``outcome`` is ``"hit"``, ``"miss"``, ``"done"`` (any other reply except an error), ``"timeout"`` or
        ``"error"``. Of a call with many keys, each key's request ends by itself."""

    def connected(self, server: str) -> None:
        """A connection to this server was made."""

    def disconnected(self, server: str, message: str) -> None:
        """A connection has ended, or could not be made: why."""

    def ejected(self, server: str, message: str) -> None:
        """A server has failed too often, and its keys go to the others: why."""

    def returned(self, server: str) -> None:
        """An ejected server has its keys again."""

    def computed(self, key: bytes, seconds: float, stored: bool) -> None:
        """The function of ``get_or_compute`` has run for this long. ``stored``: its value is in the cache; false: it is
        not, or the function has failed. After a call for many keys it is called for each key with the duration of the
        whole. For a token of ``fetch_or_compute`` the duration is that from the token to the value."""

    def not_stored(self, key: bytes, why: NotStored) -> None:
        """A value was computed and is not in the cache: why. It is called after :meth:`computed` of the same key."""

    def outcome(self, key: bytes, outcome: Optional[str]) -> None:
        """``get_or_compute`` has ended for a key: ``"hit"``, ``"stale"``, ``"computed"``, ``"waited"``, ``"busy"``,
        ``"not_computed"``, or None if it has failed."""

    def span(self, name: str, keys: List[bytes]) -> Optional[ContextManager[Any]]:
        """Around each call of ``get_or_compute``, ``get_or_compute_many`` and ``fetch_or_compute``, what the program's
        own functions do inside it included: a context manager, or None."""


@dataclass(frozen=True)
class Statistics:
    """What a client has counted since it was made: a snapshot. The counters are read one after the other, while the
    client works."""

    requests: int = 0
    """Requests that have ended, one for each key."""
    hits: int = 0
    """Requests that have found a value."""
    misses: int = 0
    """Requests that found none."""
    errors: int = 0
    """Requests that have ended with an error, timeouts included."""
    timeouts: int = 0
    """Requests without a reply within the timeout."""
    retries: int = 0
    """Requests that were sent once more after an error."""
    connections: int = 0
    """Connections that were made."""
    disconnections: int = 0
    """Connections that have ended, or could not be made."""
    ejections: int = 0
    """Servers that were ejected."""
    returns: int = 0
    """Servers that have come back."""
    computations: int = 0
    """Keys whose values were computed here, or were not because the function failed: one for each key."""
    found: int = 0
    """Keys whose value ``get_or_compute`` or ``fetch_or_compute`` has found. Each key that these have ended for counts
    here or as ``stale``, ``computed``, ``waited``, ``busy`` or ``failed``."""
    stale: int = 0
    """Keys whose old value was returned, while another client computes."""
    computed: int = 0
    """Keys whose value was computed here."""
    not_stored: int = 0
    """Those of them whose value is not in the cache."""
    not_stored_fenced: int = 0
    """Values that were not stored because the key was deleted or changed, or a tag of it invalidated."""
    not_stored_late: int = 0
    """Values that were not stored because computing took longer than ``compute_time``."""
    not_stored_expired: int = 0
    """Values that were not stored because they had expired already."""
    not_stored_too_large: int = 0
    """Values that were not stored because they are too large for the server."""
    not_stored_no_lease: int = 0
    """Values that were not stored because the server had no lease for the key."""
    not_stored_failed: int = 0
    """Values that were not stored because the server could not be asked or has refused them for another reason."""
    not_stored_skipped: int = 0
    """Values that were not stored because the function has returned them by ``skip``."""
    waited: int = 0
    """Keys whose value is what the caller's own function has returned, while another client computes."""
    busy: int = 0
    """Keys without a value, because another client computes."""
    failed: int = 0
    """Keys without a value, because of an error or because the function has failed or has not returned one."""
    unreadable: int = 0
    """Values that could not be read as what the caller wants, and were computed again."""
    near_hits: int = 0
    """Reads that were answered from this process's own memory."""


_NAMES = tuple(field.name for field in fields(Statistics))
_OUTCOMES: Dict[Optional[str], str] = {
    o.HIT: "found",
    "value": "found",
    o.STALE: "stale",
    o.COMPUTED: "computed",
    o.WAITED: "waited",
    o.BUSY: "busy",
}

_COMMANDS = {"ask": "get", "look": "get", "claim": "get", "call": "get", "tags": "get", "invalidate": "delete"}


class Metrics:
    """The counters of a client, and its observer."""

    __slots__ = ("_counts", "observer")

    def __init__(self, observer: Union[Observer, Iterable[Observer], None] = None) -> None:
        # A step of `count` is one step of the interpreter: no increment is lost between threads, without a lock.
        self._counts = {name: itertools.count() for name in _NAMES}
        self.observer = observer_of(observer)

    def statistics(self) -> Statistics:
        """A snapshot."""
        return Statistics(**{name: int(repr(count)[6:-1]) for name, count in self._counts.items()})

    def add(self, name: str) -> None:
        """Counts one."""
        next(self._counts[name])

    def request(self, server: str, command: str, seconds: float, outcome: str) -> None:
        """A request has ended."""
        counts = self._counts
        next(counts["requests"])
        if outcome == HIT:
            next(counts["hits"])
        elif outcome == MISS:
            next(counts["misses"])
        elif outcome != DONE:
            next(counts["errors"])
            if outcome == TIMEOUT:
                next(counts["timeouts"])
        if self.observer is not None:
            self._tell("request", server, _COMMANDS.get(command, command), seconds, outcome)

    def retry(self) -> None:
        """A request is sent once more."""
        next(self._counts["retries"])

    def connection(self, server: str, error: Optional[str]) -> None:
        """A connection was made, or, with an error, has ended or could not be made."""
        if error is None:
            next(self._counts["connections"])
            log.debug("%s: connected", server)
            self._tell("connected", server)
        else:
            next(self._counts["disconnections"])
            log.debug("%s: disconnected: %s", server, error)
            self._tell("disconnected", server, error)

    def ejected(self, server: str, is_out: bool, message: str = "it has failed too often") -> None:
        """A server's keys go to others, or it has its keys again."""
        if is_out:
            next(self._counts["ejections"])
            log.warning("%s: ejected: %s", server, message)
            self._tell("ejected", server, message)
        else:
            next(self._counts["returns"])
            log.warning("%s: returned", server)
            self._tell("returned", server)

    def computing(self, key: bytes) -> None:
        """A computation begins."""

    def computed(
        self, key: bytes, seconds: float, why: Optional[NotStored], error: Optional[BaseException] = None
    ) -> None:
        """A computation has ended: after these seconds, and why its value is not in the cache, or why it has failed."""
        next(self._counts["computations"])
        if why is not None:
            next(self._counts[f"not_stored_{why.kind}"])
            if error is None:
                next(self._counts["not_stored"])
        if self.observer is not None:
            self._tell("computed", key, seconds, why is None and error is None)
            if why is not None:
                self._tell("not_stored", key, why)

    def outcome(self, key: bytes, kind: Optional[str]) -> None:
        """A caller has got this; None: an error."""
        next(self._counts[_OUTCOMES.get(kind, "failed")])
        if self.observer is not None:
            self._tell("outcome", key, kind)

    def unreadable(self, key: bytes) -> None:
        """A value cannot be read as what is wanted."""
        next(self._counts["unreadable"])

    def near_hit(self) -> None:
        """A plain read was answered from this process's own memory."""
        next(self._counts["near_hits"])

    def _tell(self, name: str, *args: Any) -> None:
        observer = self.observer
        if observer is None:
            return
        try:
            getattr(observer, name)(*args)
        except Exception:
            log.exception("the observer has failed in %s", name)


class _Several(Observer):
    """Tells several observers."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = list(observers)

    def span(self, name: str, keys: List[bytes]) -> Optional[ContextManager[Any]]:
        import contextlib

        stack = contextlib.ExitStack()
        spans = [observer.span(name, keys) for observer in self.observers]
        if not any(spans):
            return None
        for span in spans:
            if span is not None:
                stack.enter_context(span)
        return stack


def _forward(name: str) -> Any:
    def tell(self: _Several, *args: Any) -> None:
        for observer in self.observers:
            getattr(observer, name)(*args)

    return tell


for _name in (
    "request",
    "connected",
    "disconnected",
    "ejected",
    "returned",
    "computed",
    "not_stored",
    "outcome",
):
    setattr(_Several, _name, _forward(_name))


def observer_of(choice: Union[Observer, Iterable[Observer], None]) -> Optional[Observer]:
    """The observer of an option: one, or several."""
    if choice is None or isinstance(choice, Observer):
        return choice
    if isinstance(choice, (list, tuple)):
        return _Several(choice) if choice else None
    raise TypeError(f"observer: an object of a class derived from Observer, or a list of them, not {choice!r}")
