"""Computing missing values once: the machines of ``get_or_compute`` and ``fetch_or_compute`` for one key. No I/O."""

from __future__ import annotations

import time
from typing import Any, Callable, Generator, Hashable, NamedTuple, Optional, Protocol, Tuple

from . import _machine as m
from . import _outcome as o
from ._envelope import Stored
from ._errors import CacheError, InvalidKey, NoTags, ServerBusy, UnreadableValue, UsageError
from ._flights import Flights
from ._machine import Asker, Batch, Ending, Fill, Found, Grant, Invoke, Op, Sleep, Subject, Terms, Transport, Wait
from ._options import COMPUTE_TIME, LONGEST_MS, WAIT, Duration, Expiration, Ttl, expiration, milliseconds, seconds
from ._wire import Command, Scope, ask, delete

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1

WaitOption = Any
"""None, a duration, or a function that is called in place of waiting."""


class Codec(Protocol):
    """Values as bytes and flags."""

    def encode(self, value: Any) -> Tuple[bytes, int]:
        """``ValueError``: it has none."""

    def decode(self, data: bytes, flags: int) -> Any:
        """``ValueError``: it is none."""


class Observer(Protocol):
    """What the machines tell of computing."""

    def computing(self, key: bytes) -> None:
        """A computation begins."""

    def computed(self, key: bytes, seconds: float, why: Optional[o.NotStored], error: Optional[BaseException]) -> None:
        """It has ended: after these seconds, and why its value is not in the cache, or why it has failed."""

    def outcome(self, key: bytes, kind: Optional[str]) -> None:
        """What a caller has got; None: an error."""

    def unreadable(self, key: bytes) -> None:
        """A value could not be read, and is removed."""

    def near_hit(self) -> None:
        """A plain read was answered from this process's own memory."""


class Options(NamedTuple):
    """How values are computed."""

    lock_ms: int
    wait: float
    """Seconds."""
    busy: Optional[Callable[..., Any]]
    """Called in place of waiting."""
    grace_ms: int
    computes_always: bool
    """If the server cannot be asked, every caller computes."""
    on_not_stored: Optional[Callable[[Any, o.NotStored], Any]]
    batch_ms: Optional[int] = None

    def goes_on_after(self, error: CacheError) -> bool:
        """Whether computing goes on after this error."""
        return self.computes_always and not isinstance(error, (InvalidKey, UsageError, UnreadableValue, NoTags))

    def batch_terms(self, keys: int, stale: bool = True) -> Terms:
        """The terms of locks for this number of keys, which are computed together."""
        each = min(max(self.lock_ms * keys, 1), LONGEST_MS)
        return m.terms(each if self.batch_ms is None else self.batch_ms, stale)


def options(
    compute_time: Optional[Duration],
    wait: WaitOption,
    grace: Optional[Duration],
    when_unavailable: str,
    on_not_stored: Optional[Callable[[Any, o.NotStored], Any]],
    batch_compute_time: Optional[Duration] = None,
) -> Options:
    """Checked options. Raises :class:`UsageError`."""
    lock_ms = milliseconds(COMPUTE_TIME if compute_time is None else compute_time, "compute_time")
    busy = wait if callable(wait) else None
    if busy is not None:
        waits = 0.0
    elif wait is not None:
        waits = min(seconds(wait, "wait"), LONGEST_MS / 1000)
    else:
        waits = WAIT if compute_time is None else lock_ms / 1000
    grace_ms = lock_ms + 1000 if grace is None else milliseconds(grace, "grace", 0)
    if when_unavailable not in ("fail", "compute"):
        raise UsageError(f"when_unavailable: 'fail' or 'compute', not {when_unavailable!r}")
    batch = None if batch_compute_time is None else milliseconds(batch_compute_time, "batch_compute_time")
    return Options(lock_ms, waits, busy, grace_ms, when_unavailable == "compute", on_not_stored, batch)


class Search:
    """What a caller looks for."""

    __slots__ = ("computes", "deadline", "hint", "is_held", "is_told", "outlives", "patience", "subject", "takes_old", "terms")

    def __init__(self, subject: Subject, terms: Terms, wait: float, is_told: bool = False, hint: bytes = b"") -> None:
        self.subject = subject
        self.terms = terms
        self.deadline = time.monotonic() + wait
        """Until when it waits while others compute."""
        self.is_held = True
        """The server may hold a request for it."""
        self.takes_old = True
        """It takes an old value while others compute."""
        self.computes = False
        """It computes without a lock where the value is not to be stored."""
        self.is_told = is_told
        """It is told that another's computation has failed."""
        self.hint = hint
        self.outlives = False
        self.patience: Optional[int] = None
        """How many computations it waits for that end without a value and are followed by others; None: any number."""


class Verdict(NamedTuple):
    """What a caller gets: ``kind`` is that of a :class:`Found`, or ``busy``."""

    kind: str
    value: Any = None
    grant: Optional[Grant] = None
    text: bytes = b""
    waited: bool = False


def _one_place() -> None:
    """All callers of a process are together."""


class Herd:
    """Computes missing values once."""

    def __init__(
        self,
        transport: Transport,
        codec: Codec,
        observer: Observer,
        make_event: Callable[[], Any],
        clock: Callable[[], float],
        place: Callable[[], Hashable] = _one_place,
    ) -> None:
        self.asker = Asker(transport, clock)
        self.codec = codec
        self.observer = observer
        self.flights = Flights(make_event, place)

    def _acquire(self, s: Search, wait_ms: int = 0, first: Optional[m.First] = None) -> Generator[Op, Any, Found]:
        found = yield from self.asker.acquire(s.subject, s.terms, wait_ms, s.hint, s.outlives, first)
        if found.grant is not None:
            if not found.grant.hint:
                found.grant.hint = s.hint
            self.flights.begin(found.grant)
        return found

    def find(self, s: Search, first: Optional[m.First] = None) -> Generator[Op, Any, Tuple[Found, bool]]:
        """The value before it is read, or the right to compute it, or that others compute. Whether it was waited
        for."""
        flights = self.flights
        name = flights.name(s.subject)
        if self.asker.slow_ms:
            s.terms = self.asker.terms_of(s.subject.key, s.terms)
        arrival = sent = flights.number()
        found = yield from self._acquire(s, 0, first)
        if not _is_busy(found, s):
            return found, False
        waiter = flights.waiter(arrival)
        caller = object()
        final: Optional[Found] = None
        pause = FIRST_PAUSE
        failed = was_held = False
        try:
            while True:
                if found.kind == m.FAILED:
                    # Of a computation that this caller has not waited for.
                    if failed:
                        s.terms = s.terms._replace(awaited=None)
                    failed = True
                elif found.kind == m.BUSY_LOCK and s.is_told and s.terms.awaited != found.nonce:
                    if s.terms.awaited is not None and s.patience is not None:
                        s.patience -= 1
                        if s.patience <= 0:
                            final = Found(m.FAILED, text=b"other computations follow")
                            return final, True
                    if s.terms.awaited is None and found.hint:
                        s.hint = found.hint
                    s.terms = s.terms._replace(awaited=found.nonce)
                left = s.deadline - time.monotonic()
                if left <= 0:
                    return found, True
                wait_ms = 0
                if not flights.watch(name, s.is_told, caller, waiter):
                    yield Wait(waiter, left)
                else:
                    own = flights.running.get(name)
                    by_server = found.kind in (m.STALE, m.BUSY_SERVER)
                    if by_server and s.is_held and own is None and not was_held:
                        wait_ms = max(int(left * 1000), 1)
                    else:
                        yield Wait(waiter, min(LONGEST_PAUSE if own is not None else pause, left))
                        pause = min(pause * 1.5, LONGEST_PAUSE)
                was_held = wait_ms > 0
                told = self._told(waiter, s)
                if told is not None:
                    final = told
                    sent = 0
                    return told, True
                sent = flights.number()
                found = yield from self._look(s, wait_ms)
                if not _is_busy(found, s):
                    final = found
                    return found, True
        finally:
            flights.leave(name, s.is_told, caller, waiter, final, sent)

    def _look(self, s: Search, wait_ms: int) -> Generator[Op, Any, Found]:
        try:
            return (yield from self._acquire(s, wait_ms))
        except ServerBusy:
            # It lets no more clients wait, but this process has the lease.
            if self.flights.name(s.subject) in self.flights.running:
                return Found(m.BUSY_CHANGING)
            raise

    @staticmethod
    def _told(waiter: m.Waiter, s: Search) -> Optional[Found]:
        found, waiter.found = waiter.found, None
        if found is None or (found.kind == m.FAILED and not (s.is_told and found.text)):
            return None
        if found.kind == m.ALONE and not s.computes:
            return None
        return found

    def obtain(self, s: Search, first: Optional[m.First] = None) -> Generator[Op, Any, Verdict]:
        """Gets the value or the right to compute it, and waits for it if it must."""
        waited = False
        unreadable = 0
        while True:
            found, has_waited = yield from self.find(s, first)
            first = None
            waited = waited or has_waited
            if found.kind == m.GRANTED:
                return Verdict(m.GRANTED, None, found.grant, waited=waited)
            if found.kind == m.FAILED:
                if s.is_told and found.text:
                    return Verdict(m.FAILED, text=found.text, waited=waited)
                return Verdict(o.BUSY, waited=waited)
            if found.kind == m.ALONE:
                return Verdict(m.ALONE, waited=waited)
            if found.kind in m.BUSY or (found.kind == m.STALE and not s.takes_old):
                return Verdict(o.BUSY, waited=waited)
            assert found.stored is not None
            try:
                value = self.codec.decode(found.stored.data, found.stored.flags)
            except ValueError as error:
                if found.kind == m.STALE:
                    self.observer.unreadable(s.subject.key)
                    s.takes_old = False
                    s.terms = s.terms._replace(stale=False)
                    continue
                if unreadable == m.TRIES:
                    raise UnreadableValue(s.subject.key, str(error)) from error
                yield from self.remove_unreadable(s.subject, s.terms, found.stored, unreadable > 0)
                unreadable += 1
                continue
            return Verdict(found.kind, value, waited=waited)

    def remove_unreadable(
        self, subject: Subject, how: Terms, unreadable: Stored, always: bool
    ) -> Generator[Op, Any, None]:
        """Removes a value that cannot be read, if it is there still. ``always``: whatever number the item has, since a
        connection need not know how to compare it."""
        self.observer.unreadable(subject.key)
        reply = (yield Batch([ask(subject.key, how.lock_ms)]))[0]
        # It fails for the caller too, when that asks again.
        if isinstance(reply, CacheError) or reply.kind != "VA":
            return
        if not reply.won:
            now = m.value_of(reply)
            if now is None or not now.is_like(unreadable):
                return
        yield Batch([delete(subject.key, None if always else reply.cas)])

    def fill(self, key: bytes, value: Any, ttl: Ttl, grace_ms: Optional[int]) -> Fill:
        """A value in the form in which it is stored. Raises :class:`UnreadableValue`."""
        return self.fill_until(key, value, expiration(ttl), grace_ms)

    def fill_until(self, key: bytes, value: Any, when: Expiration, grace_ms: Optional[int]) -> Fill:
        """The same with an expiry that has been read."""
        try:
            data, flags = self.codec.encode(value)
        except ValueError as error:
            raise UnreadableValue(key, str(error)) from error
        return Fill(data, flags, when, grace_ms)

    def get_or_compute(
        self,
        subject: Subject,
        function: Callable[[], Any],
        when: Expiration,
        how: Options,
        first: Optional[m.First] = None,
    ) -> Generator[Op, Any, o.Outcome[Any]]:
        """One value."""
        try:
            outcome = yield from self._get_or_compute(subject, function, when, how, first)
        except BaseException:
            self.observer.outcome(subject.key, None)
            raise
        self.observer.outcome(subject.key, outcome.kind)
        return outcome

    def get_or_compute_after(
        self, subject: Subject, function: Callable[[], Any], when: Expiration, how: Options, scope: Optional[Scope]
    ) -> Generator[Op, Any, o.Outcome[Any]]:
        """One value, after the first question was sent."""
        replies = yield Batch([])
        return (yield from self.get_or_compute(subject, function, when, how, (m.one(replies), scope)))

    def _get_or_compute(
        self, subject: Subject, function: Callable[[], Any], when: Expiration, how: Options, first: Optional[m.First]
    ) -> Generator[Op, Any, o.Outcome[Any]]:
        try:
            search = Search(subject, m.terms(how.lock_ms), how.wait)
            search.computes = True
            verdict = yield from self.obtain(search, first)
        except CacheError as error:
            if not how.goes_on_after(error):
                raise
            return (yield from self._compute_alone(subject, function, how, m.not_stored_of(error)))
        if verdict.kind == m.ALONE:
            return (yield from self._compute_alone(subject, function, how, o.NotStored(o.SKIPPED)))
        if verdict.grant is None:
            if verdict.kind == o.BUSY and how.busy is not None:
                return o.Outcome(o.WAITED, (yield Invoke(how.busy)))
            return o.Outcome(verdict.kind, verdict.value)
        return (yield from self._compute(verdict.grant, function, when, how))

    def _compute_alone(
        self, subject: Subject, function: Callable[[], Any], how: Options, why: m.Kept
    ) -> Generator[Op, Any, o.Outcome[Any]]:
        """The value, although its server cannot be asked or it was not to be stored a moment ago."""
        begun = time.monotonic()
        self.observer.computing(subject.key)
        try:
            value = yield Invoke(function)
        except BaseException as failure:
            self.observer.computed(subject.key, time.monotonic() - begun, None, failure)
            raise
        if why is None or why.kind != o.SKIPPED:
            self._not_stored(subject, why, how)
        self.observer.computed(subject.key, time.monotonic() - begun, why, None)
        return o.Outcome(o.COMPUTED, plain_value(value), False, why)

    def _compute(
        self, grant: Grant, function: Callable[[], Any], when: Expiration, how: Options
    ) -> Generator[Op, Any, o.Outcome[Any]]:
        subject = grant.subject
        begun = time.monotonic()
        self.observer.computing(subject.key)
        try:
            value = yield Invoke(function)
            took = time.monotonic() - begun
            ending, value, skipped = self.ending(subject.key, value, when, how.grace_ms)
        except GeneratorExit:
            raise  # dropped: nothing can be sent any more
        except BaseException as failure:
            # What has failed first is what the caller hears of.
            self.observer.computed(subject.key, time.monotonic() - begun, None, failure)
            yield from self.asker.settle([(grant, Ending())])
            raise
        end = (yield from self.asker.settle([(grant, ending)]))[0]
        why = o.NotStored(o.SKIPPED) if skipped else m.not_stored_of(end)
        if not skipped:
            self._not_stored(subject, why, how)
        self.observer.computed(subject.key, took, why, None)
        # A value that could not be stored is a value.
        return o.Outcome(o.COMPUTED, value, why is None, why)

    def ending(self, key: bytes, value: Any, when: Expiration, grace_ms: Optional[int]) -> Tuple[Ending, Any, bool]:
        """How a computation ends whose function has returned this, the value for the caller, and whether it is
        stored nowhere."""
        if isinstance(value, o.Skip) or value is o.Skip or value is o.skip:
            return Ending(skips=True), plain_value(value), True
        if isinstance(value, o.Negative):
            when, nothing = expiration(value.ttl), value.value
            if when == ("after", 0) or (when is None and value.ttl is not None):
                # For no time.
                return Ending(skips=True), nothing, True
            value = nothing
        return Ending(self.fill_until(key, value, when, grace_ms)), value, False

    @staticmethod
    def _not_stored(subject: Subject, why: m.Kept, how: Options) -> None:
        if why is not None and how.on_not_stored is not None:
            how.on_not_stored(subject.given, why)

    def fetch(self, s: Search) -> Generator[Op, Any, Verdict]:
        """The primitive under ``get_or_compute``: the caller ends the grant."""
        try:
            verdict = yield from self.obtain(s)
        except BaseException:
            self.observer.outcome(s.subject.key, None)
            raise
        if verdict.grant is None:
            self.observer.outcome(s.subject.key, None if verdict.kind == m.FAILED else verdict.kind)
        else:
            self.observer.computing(s.subject.key)
        return verdict

    def end(self, grant: Grant, ending: Ending) -> Generator[Op, Any, m.Kept]:
        """Ends a grant of :meth:`fetch`: None if its value was stored, or why not. Raises what has gone wrong."""
        if grant.is_over:
            raise UsageError("the token has been used already")
        end = (yield from self.asker.settle([(grant, ending)]))[0]
        why = m.not_stored_of(end)
        self.observer.computed(grant.subject.key, time.monotonic() - grant.began, why, None)
        if isinstance(end, CacheError) and not m.is_too_large(end):
            raise end
        return why


def _is_busy(found: Found, s: Search) -> bool:
    """Whether a caller goes on waiting after this."""
    if found.kind in m.BUSY:
        return True
    if found.kind == m.STALE:
        return not s.takes_old
    return found.kind == m.FAILED and not (s.is_told and found.text)


def plain_value(value: Any) -> Any:
    """What the caller gets of what its function has returned."""
    if value is o.Skip or value is o.skip:
        return None
    return value.value if isinstance(value, (o.Skip, o.Negative)) else value


__all__ = ["Command", "Herd", "Options", "Search", "Sleep", "Verdict", "options", "plain_value"]
