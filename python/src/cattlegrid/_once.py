"""Computing once, in programs that answer requests: where a computation brings nothing that can be stored, the callers that have waited
for it compute at once, each for itself, and not one after the other. No I/O."""

from __future__ import annotations

import time
from typing import Any, Callable, Generator

from .client import _machine as m
from .client import _outcome as o
from .client._errors import CacheError, UnreadableValue
from .client._herd import Herd, Options, Search
from .client._machine import Ending, Grant, Invoke, Op, Subject
from .client._options import Expiration

TEXT = "nothing was stored"
"""What callers that wait for a computation are told when it has failed, or its value must not be stored."""
PATIENCE = 2
"""How many computations that end without a value a caller waits for, where it is not told of their end."""

Machine = Generator[Op, Any, o.Outcome[Any]]


def search(subject: Subject, how: Options) -> Search:
    """What a caller looks for that is told when a computation brings nothing."""
    found = Search(subject, m.terms(how.lock_ms), how.wait, True)
    found.patience = PATIENCE
    found.computes = True
    return found


def nothing(grant: Grant) -> Ending:
    """How a computation ends that brings nothing to store. A server with leases would hold later computations back if it heard of a
    failure: there the callers of this process are told, and of other processes the next computes."""
    return Ending(skips=True) if grant.kind == m.LEASE else Ending(None, TEXT)


def get_or_compute(herd: Herd, subject: Subject, function: Callable[[], Any], when: Expiration, how: Options) -> Machine:
    """As ``get_or_compute`` of the client; a value that expires at once is computed by every caller, without waiting."""
    try:
        outcome = yield from _get_or_compute(herd, subject, function, when, how)
    except BaseException:
        herd.observer.outcome(subject.key, None)
        raise
    herd.observer.outcome(subject.key, outcome.kind)
    return outcome


def _get_or_compute(herd: Herd, subject: Subject, function: Callable[[], Any], when: Expiration, how: Options) -> Machine:
    if when == ("after", 0):
        return (yield from herd._compute_alone(subject, function, how, o.NotStored(o.SKIPPED)))
    try:
        verdict = yield from herd.obtain(search(subject, how))
    except CacheError as error:
        # What cannot be read is removed, as often as another program writes it: while two versions of a program run.
        if not (how.goes_on_after(error) or isinstance(error, UnreadableValue)):
            raise
        return (yield from herd._compute_alone(subject, function, how, m.not_stored_of(error)))
    if verdict.kind in (m.ALONE, m.FAILED):
        return (yield from herd._compute_alone(subject, function, how, o.NotStored(o.SKIPPED)))
    if verdict.grant is None:
        return o.Outcome(verdict.kind, verdict.value)
    return (yield from _compute(herd, verdict.grant, function, when, how))


def _compute(herd: Herd, grant: Grant, function: Callable[[], Any], when: Expiration, how: Options) -> Machine:
    subject = grant.subject
    begun = time.monotonic()
    herd.observer.computing(subject.key)
    try:
        value = yield Invoke(function)
        took = time.monotonic() - begun
        ending, value, skipped = herd.ending(subject.key, value, when, how.grace_ms)
    except GeneratorExit:
        raise  # dropped: nothing can be sent any more
    except BaseException as failure:
        # What has failed first is what the caller hears of. A task that was cancelled says nothing of the next.
        herd.observer.computed(subject.key, time.monotonic() - begun, None, failure)
        yield from herd.asker.settle([(grant, nothing(grant) if isinstance(failure, Exception) else Ending())])
        raise
    end = (yield from herd.asker.settle([(grant, nothing(grant) if skipped else ending)]))[0]
    why = o.NotStored(o.SKIPPED) if skipped else m.not_stored_of(end)
    if not skipped:
        herd._not_stored(subject, why, how)
    herd.observer.computed(subject.key, took, why, None)
    return o.Outcome(o.COMPUTED, value, why is None, why)


__all__ = ["PATIENCE", "TEXT", "get_or_compute", "nothing", "search"]
