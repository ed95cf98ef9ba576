"""Many values, in as few round trips as possible: a machine."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Generator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from . import _machine as m
from . import _outcome as o
from ._envelope import Stored
from ._errors import CacheError, UnreadableValue, UsageError
from ._herd import FIRST_PAUSE, LONGEST_PAUSE, Herd, Options, plain_value
from ._machine import TRIES, Batch, Ending, Found, Grant, Invoke, Op, Subject, Terms, Wait
from ._options import Expiration
from ._wire import ADD, CAS, Command, ask, store

Asked = Dict[Any, Tuple[Subject, Expiration]]
"""By the keys as they were given."""
Outcomes = Dict[Any, o.Outcome[Any]]


class _Sorted(NamedTuple):
    """What asking for some keys has brought."""

    got: Dict[Any, Union[Found, CacheError]]
    granted: Dict[Any, Grant]
    busy: List[Any]


def many(herd: Herd, asked: Asked, function: Callable[[List[Any]], Any], how: Options) -> Generator[Op, Any, Outcomes]:
    """The values of keys. Keys that are missing or have expired, and that no other client computes, are given to the
    function, together; then those that others compute are waited for."""
    call = _Call(herd, asked, function, how)
    try:
        outcomes = yield from call.run()
    except BaseException:
        for subject, _ in asked.values():
            herd.observer.outcome(subject.key, None)
        raise
    for key, outcome in outcomes.items():
        herd.observer.outcome(asked[key][0].key, None if outcome.error is not None else outcome.kind)
    return outcomes


class _Call:
    def __init__(self, herd: Herd, asked: Asked, function: Callable[[List[Any]], Any], how: Options) -> None:
        self._herd = herd
        self._asker = herd.asker
        self._asked = asked
        self._function = function
        self._how = how
        self._out: Outcomes = {}
        self._unreadable: Dict[Any, int] = {}
        self._fresh_only: Set[Any] = set()
        """Keys whose old value cannot be read."""
        self._deadline = time.monotonic() + how.wait

    def run(self) -> Generator[Op, Any, Outcomes]:
        """All of it."""
        names: Set[bytes] = set()
        doubles: Dict[bytes, List[Any]] = {}
        keys = []
        for key, (subject, _) in self._asked.items():
            if subject.key in names:
                doubles.setdefault(subject.key, []).append(key)
                continue
            names.add(subject.key)
            keys.append(key)
        waiting = yield from self._round(keys)
        if waiting and self._how.busy is not None:
            values = yield Invoke(self._how.busy, (waiting,))
            for key in waiting:
                if isinstance(values, Mapping) and key in values:
                    self._out[key] = o.Outcome(o.WAITED, values[key])
        elif waiting:
            yield from self._wait(waiting)
        of_name = {self._asked[key][0].key: key for key in keys}
        out: Outcomes = {}
        for key, (subject, _) in self._asked.items():
            first = of_name[subject.key]
            out[key] = self._out.get(first) or o.Outcome(o.BUSY)
        return out

    def _round(self, keys: List[Any]) -> Generator[Op, Any, List[Any]]:
        """Asks for keys, computes those that this caller must, and returns those that others compute."""
        waiting: List[Any] = []
        granted: Dict[Any, Optional[Grant]] = {}
        errors: Dict[Any, CacheError] = {}
        try:
            while keys:
                sorted_ = yield from self._sort(keys)
                granted.update(sorted_.granted)
                waiting.extend(sorted_.busy)
                keys = []
                for key, found in sorted_.got.items():
                    again = yield from self._take(key, found, waiting, errors)
                    if again:
                        keys.append(key)
        except GeneratorExit:
            raise  # dropped: nothing can be sent any more
        except BaseException:
            held = [(grant, Ending()) for grant in granted.values() if grant is not None]
            yield from self._asker.settle(held)
            raise
        granted.update(dict.fromkeys(errors))
        if granted:
            order = [key for key in self._asked if key in granted]
            yield from self._compute({key: granted[key] for key in order}, errors)
        return [key for key in self._asked if key in set(waiting)]

    def _take(
        self, key: Any, found: Union[Found, CacheError], waiting: List[Any], errors: Dict[Any, CacheError]
    ) -> Generator[Op, Any, bool]:
        """What a key has got: whether it has to be asked for again."""
        if isinstance(found, CacheError):
            if self._how.goes_on_after(found):
                errors[key] = found
            else:
                self._out[key] = o.Outcome(o.FAILED, error=found)
            return False
        subject = self._asked[key][0]
        assert found.stored is not None
        try:
            value = self._herd.codec.decode(found.stored.data, found.stored.flags)
        except ValueError as error:
            if found.kind == m.STALE:
                self._herd.observer.unreadable(subject.key)
                self._fresh_only.add(key)
                waiting.append(key)
                return False
            tries = self._unreadable.get(key, 0)
            if tries == TRIES:
                self._out[key] = o.Outcome(o.FAILED, error=UnreadableValue(subject.key, str(error)))
                return False
            self._unreadable[key] = tries + 1
            yield from self._herd.remove_unreadable(subject, self._how.batch_terms(1), found.stored, tries > 0)
            return True
        self._out[key] = o.Outcome(found.kind, value)
        return False

    def _terms(self, key: Any, keys: int) -> Terms:
        return self._how.batch_terms(keys, key not in self._fresh_only)

    def _sort(self, keys: Sequence[Any]) -> Generator[Op, Any, _Sorted]:
        """Asks for keys, and writes the locks of those that are missing."""
        sorted_ = _Sorted({}, {}, [])
        refused: Dict[Any, int] = {}
        asker, asked = self._asker, self._asked
        left = list(keys)
        try:
            for _ in range(TRIES):
                if not left:
                    return sorted_
                scope = asker.transport.scope()
                # Leases are for as many keys as there may be; locks for those that are missing.
                lease_ms = self._how.batch_terms(len(left)).lock_ms
                replies = yield Batch([ask(asked[key][0].key, lease_ms) for key in left])
                lockings: Dict[Any, Any] = {}
                for key, reply in zip(left, replies):
                    if isinstance(reply, CacheError):
                        sorted_.got[key] = reply
                        continue
                    found = asker.judge(asked[key][0], reply, self._terms(key, len(left)))
                    if isinstance(found, Found):
                        self._put(sorted_, key, found)
                    else:
                        lockings[key] = found
                left = yield from self._lock(lockings, sorted_, refused, scope)
        except GeneratorExit:
            raise  # dropped: nothing can be sent any more
        except BaseException:
            yield from asker.settle([(grant, Ending()) for grant in sorted_.granted.values()])
            raise
        sorted_.busy.extend(left)
        return sorted_

    def _put(self, sorted_: _Sorted, key: Any, found: Found) -> None:
        if found.grant is not None:
            # Callers of this process can join from now on.
            self._herd.flights.begin(found.grant)
            sorted_.granted[key] = found.grant
        elif found.kind == m.HIT or (found.kind == m.STALE and key not in self._fresh_only):
            sorted_.got[key] = found
        else:
            sorted_.busy.append(key)

    def _lock(
        self, lockings: Dict[Any, Any], sorted_: _Sorted, refused: Dict[Any, int], scope: Any
    ) -> Generator[Op, Any, List[Any]]:
        """Writes locks, all at once: the keys to ask for again."""
        if not lockings:
            return []
        missing = len(lockings) + len(sorted_.granted)
        attempts = {
            key: self._asker.attempt(self._asked[key][0], locking, self._terms(key, missing))
            for key, locking in lockings.items()
        }
        claims = [key for key in attempts if lockings[key].cas is None and refused.get(key, 0) > 0]
        writes = [key for key in attempts if key not in set(claims)]
        replies: Dict[Any, Any] = {}
        if writes:
            written = yield Batch([attempts[key].command(scope) for key in writes])
            replies.update(zip(writes, written))
        if claims:
            written = yield from self._asker.claim([attempts[key] for key in claims], scope)
            replies.update(zip(claims, written))
        again = []
        for key, attempt in attempts.items():
            reply = replies[key]
            refused[key] = refused.get(key, 0) + attempt.is_refused(reply)
            taken = attempt.judge(reply)
            if isinstance(taken, CacheError):
                sorted_.got[key] = taken
            elif taken is not None:
                self._put(sorted_, key, taken)
            elif refused[key] == TRIES:
                self._put(sorted_, key, m.without_lock(self._asked[key][0], attempt.terms))
            else:
                again.append(key)
        return again

    def _compute(self, granted: Dict[Any, Optional[Grant]], errors: Dict[Any, CacheError]) -> Generator[Op, Any, None]:
        """Computes these keys and stores their values. Without a grant: their server cannot be asked."""
        begun = time.monotonic()
        keys = list(granted)
        observer = self._herd.observer
        for key in keys:
            observer.computing(self._asked[key][0].key)
        endings: List[Tuple[Grant, Ending]] = []
        ended: List[Any] = []
        try:
            values = _mapping(keys, (yield Invoke(self._function, (list(keys),))))
            for key, grant in granted.items():
                ending = self._ending(key, values)
                if grant is not None:
                    endings.append((grant, ending))
                    ended.append(key)
        except GeneratorExit:
            raise  # dropped: nothing can be sent any more
        except BaseException as failure:
            for key in keys:
                observer.computed(self._asked[key][0].key, time.monotonic() - begun, None, failure)
            # What has failed first is what the caller hears of.
            yield from self._asker.settle([(grant, Ending()) for grant in granted.values() if grant is not None])
            raise
        took = time.monotonic() - begun
        ends = dict(zip(ended, (yield from self._asker.settle(endings))))
        for key in keys:
            outcome = self._out[key]
            if outcome.kind != o.COMPUTED:
                continue
            subject = self._asked[key][0]
            why = outcome.why
            if why is None:
                why = m.not_stored_of(ends[key] if key in ends else errors[key])
                if why is not None and self._how.on_not_stored is not None:
                    self._how.on_not_stored(subject.given, why)
            outcome.why, outcome.stored = why, why is None
            observer.computed(subject.key, took, why, None)

    def _ending(self, key: Any, values: Mapping[Any, Any]) -> Ending:
        subject, when = self._asked[key]
        if key not in values:
            self._out[key] = o.Outcome(o.NOT_COMPUTED)
            return Ending()
        given = values[key]
        try:
            ending, value, skipped = self._herd.ending(subject.key, given, when, self._how.grace_ms)
        except UnreadableValue as error:
            self._out[key] = o.Outcome(o.FAILED, plain_value(given), error=error)
            return Ending()
        self._out[key] = o.Outcome(o.COMPUTED, value, why=o.NotStored(o.SKIPPED) if skipped else None)
        return ending

    def _wait(self, keys: List[Any]) -> Generator[Op, Any, None]:
        """Waits for what other clients compute."""
        flights = self._herd.flights
        pause = FIRST_PAUSE
        while keys:
            left = self._deadline - time.monotonic()
            if self._how.wait <= 0:
                return
            if left > 0:
                waiter = flights.waiter(flights.number())
                names = [flights.name(self._asked[key][0]) for key in keys]
                joined = [running for running in map(flights.running.get, names) if running]
                for running in joined:
                    running.join(waiter)
                try:
                    yield Wait(waiter, min(pause, left))
                finally:
                    for running in joined:
                        running.part(waiter)
                pause = min(pause * 1.5, LONGEST_PAUSE)
            keys = yield from self._round(keys)
            if left <= 0:
                return


def _mapping(keys: List[Any], values: Any) -> Mapping[Any, Any]:
    if isinstance(values, Mapping):
        return values
    if isinstance(values, (list, tuple)):
        if len(values) == len(keys):
            return dict(zip(keys, values))
        raise UsageError(f"the function has returned {len(values)} values for {len(keys)} keys")
    raise UsageError(
        f"the function returns a dictionary of values, or a list in the order of the keys, not {type(values).__name__}"
    )


__all__ = ["ADD", "CAS", "Asked", "Command", "Outcomes", "Stored", "many", "store"]
