"""Computing a value again although there is a fresh one: a machine. No I/O.

The item becomes a value that is being computed again, as if it had expired: other callers get the old value meanwhile,
one client computes, and a value that was computed before a delete is not stored. This works alike over all servers.
"""

from __future__ import annotations

from typing import Any, Callable, Generator, Optional

from . import _machine as m
from . import _outcome as o
from ._envelope import Stored, Value
from ._errors import CacheError, Refused, ServerBusy
from ._herd import Herd, Options, Search
from ._machine import Batch, Ending, Found, Op, Spawn, Subject
from ._options import Expiration
from ._wire import Reply, ask


def refresh(
    herd: Herd, subject: Subject, function: Callable[[], Any], when: Expiration, how: Options
) -> Generator[Op, Any, o.Outcome[Any]]:
    """Computes a value, or waits for that of a client that does so already."""
    scope = herd.asker.transport.scope()
    terms = m.terms(how.lock_ms)
    try:
        reply = m.one((yield Batch([ask(subject.key, how.lock_ms)])))
    except CacheError:
        # With `when_unavailable` it is computed nevertheless.
        return (yield from herd.get_or_compute(subject, function, when, how))
    old = _fresh(herd, reply, how.lock_ms)
    if old is None:
        found = herd.asker.judge(subject, reply, terms)
        if isinstance(found, Found) and found.kind == m.STALE:
            return (yield from _told(herd, subject, _other(herd, subject, terms, function, when, how)))
        return (yield from herd.get_or_compute(subject, function, when, how, (reply, scope)))
    attempt = m.Attempt(herd.asker, subject, m.Locking(reply.cas or 0, old), terms, b"")
    try:
        written = (yield Batch([attempt.command(scope)]))[0]
    except BaseException:
        yield Spawn(herd.asker.settle([(attempt.grant(None), Ending())]))
        raise
    taken = attempt.judge(written)
    if isinstance(taken, CacheError):
        if not isinstance(taken, (Refused, ServerBusy)):
            yield Spawn(herd.asker.settle([(attempt.grant(None), Ending())]))
        raise taken
    if taken is not None and taken.grant is not None:
        return (yield from _told(herd, subject, _computed(herd, subject, taken, function, when, how)))
    return (yield from _told(herd, subject, _other(herd, subject, terms, function, when, how)))


def _computed(
    herd: Herd, subject: Subject, taken: Found, function: Callable[[], Any], when: Expiration, how: Options
) -> Generator[Op, Any, o.Outcome[Any]]:
    grant = taken.grant
    assert grant is not None
    herd.flights.begin(grant)
    return (yield from herd._compute(grant, function, when, how))


def _other(
    herd: Herd, subject: Subject, terms: m.Terms, function: Callable[[], Any], when: Expiration, how: Options
) -> Generator[Op, Any, o.Outcome[Any]]:
    """What another client computes, or has stored since."""
    search = Search(subject, terms._replace(stale=False), max(how.wait, how.lock_ms / 1000))
    search.takes_old = False
    verdict = yield from herd.obtain(search)
    if verdict.grant is not None:
        return (yield from herd._compute(verdict.grant, function, when, how))
    return o.Outcome(verdict.kind, verdict.value)


def _told(
    herd: Herd, subject: Subject, machine: Generator[Op, Any, o.Outcome[Any]]
) -> Generator[Op, Any, o.Outcome[Any]]:
    try:
        outcome = yield from machine
    except BaseException:
        herd.observer.outcome(subject.key, None)
        raise
    herd.observer.outcome(subject.key, outcome.kind)
    return outcome


def _fresh(herd: Herd, reply: Reply, lock_ms: int) -> Optional[Stored]:
    """The value, if no client computes it, with the time at which it ends."""
    if reply.kind != "VA" or reply.won or reply.stale or reply.busy:
        return None
    record = m.open_item(reply)
    now_ms = herd.asker.now_ms()
    if not isinstance(record, Value) or not record.stored.is_fresh(now_ms):
        return None
    stored = record.stored
    if stored.soft_ms or reply.left == -1:
        return stored
    # The server alone knows when it ends. Should computing fail, the old value stays until then; where that is not
    # known, for as long as computing may take.
    dead_ms = now_ms + (lock_ms if reply.left is None else reply.left * 1000)
    return stored._replace(soft_ms=dead_ms, dead_ms=dead_ms)
