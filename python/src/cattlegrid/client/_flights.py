"""Callers of one key in one process, or in one event loop of it: they share what is asked while they wait, and the
computation.

A caller may use the answer to a question only if that was sent after the caller had arrived: else it could see a value
from before a delete that it has waited for. Of the callers that wait for a key one watches: it asks the server from
time to time, or by a request that the server holds, and tells the others.

If a computation without an old value runs in this process, its end is waited for as well. It can be joined until its
value is sent: the value is taken only if it was stored under the lock, which a delete removes, so nothing can have
happened to the key between the taking of the lock and the store, and the caller has arrived between them. A lease of the
server's does not say as much: after a soft invalidation a value is stored as an old one. So who has arrived after such a
computation had begun is woken by its end, and asks. At rest the tables are empty.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

from . import _machine as m
from ._machine import End, Found, Grant, Subject, Waiter

Name = Tuple[Hashable, bytes, Tuple[str, ...]]
"""Event loop, key and tags. A loop may end, or rest, with callers in it: those of another do not wait for them."""


class Running:
    """A computation of this process that others wait for."""

    __slots__ = ("_flights", "_is_lease", "_name", "_waiters", "is_over", "number")

    def __init__(self, flights: Flights, name: Name, number: int, is_lease: bool) -> None:
        self._flights = flights
        self._is_lease = is_lease
        self._name = name
        self._waiters: Dict[Waiter, None] = {}
        self.number = number
        self.is_over = False

    def join(self, waiter: Waiter) -> None:
        """Lets a caller wait for the end."""
        self._waiters[waiter] = None

    def part(self, waiter: Waiter) -> None:
        """It waits no longer."""
        self._waiters.pop(waiter, None)

    def leave(self) -> None:
        """No caller joins from now on."""
        with self._flights.lock:
            if self._flights.running.get(self._name) is self:
                del self._flights.running[self._name]

    def end(self, end: End) -> None:
        """Tells the callers that wait. Only the first end counts."""
        if self.is_over:
            return
        self.is_over = True
        self.leave()
        with self._flights.lock:
            waiters, self._waiters = list(self._waiters), {}
            if end.kind == "stored" and self._is_lease:
                # One asks for those that have come later, and tells them.
                waiters = [*(each for each in waiters if each.arrival < self.number), *self._flights.asking(self._name)]
        for waiter in waiters:
            found = None
            # What began after this caller had arrived is new enough, although it is found nowhere.
            is_early = waiter.arrival < self.number
            if (end.kind == "stored" and (is_early or not self._is_lease)) or (end.kind == "unstorable" and is_early):
                found = Found(m.HIT, end.stored)
            elif end.kind == "failed":
                found = Found(m.FAILED, text=end.text)
            elif end.kind == "skipped":
                found = Found(m.ALONE)
            waiter.wake(found)


class Watch:
    """The callers that wait for a key."""

    __slots__ = ("asking", "waiters", "watcher")

    def __init__(self) -> None:
        self.watcher: Optional[object] = None
        """The caller that asks the server."""
        self.asking: Optional[Waiter] = None
        """What wakes it."""
        self.waiters: Dict[Waiter, None] = {}


class Flights:
    """All callers that wait, and all computations of this process."""

    def __init__(self, make_event: Callable[[], Any], place: Callable[[], Hashable]) -> None:
        self.lock = threading.RLock()
        self.running: Dict[Name, Running] = {}
        self._watches: Dict[Tuple[Name, bool], Watch] = {}
        self._numbers = itertools.count(1)
        self._make_event = make_event
        self._place = place

    def __len__(self) -> int:
        with self.lock:
            return len({name for name, _ in self._watches} | set(self.running))

    def name(self, subject: Subject) -> Name:
        """That of a key for the callers beside this one."""
        return self._place(), subject.key, subject.tags

    def number(self) -> int:
        """The next number: callers take one when they arrive and when they ask, computations when they begin."""
        return next(self._numbers)

    def waiter(self, arrival: int) -> Waiter:
        """A new waiter."""
        return Waiter(self._make_event(), arrival)

    def begin(self, grant: Grant) -> None:
        """From now on callers of this process can join the computation that has this grant."""
        name = self.name(grant.subject)
        running = Running(self, name, self.number(), grant.kind == m.LEASE)
        grant.on_end = running
        # With an old value no caller waits.
        if grant.old is None:
            with self.lock:
                self.running[name] = running

    def watch(self, name: Name, is_told: bool, caller: object, waiter: Waiter) -> bool:
        """Lets a caller wait: whether it is the caller that asks the server."""
        with self.lock:
            watch = self._watches.setdefault((name, is_told), Watch())
            waiter.has_new = False
            waiter.event.clear()
            running = self.running.get(name)
            if running is not None:
                running.join(waiter)
            if watch.watcher is None or watch.watcher is caller:
                watch.watcher, watch.asking = caller, waiter
                return True
            watch.waiters[waiter] = None
            return False

    def asking(self, name: Name) -> List[Waiter]:
        """The callers that ask the server about this key; with the lock held."""
        watches = (self._watches.get((name, is_told)) for is_told in (False, True))
        return [watch.asking for watch in watches if watch is not None and watch.asking is not None]

    def leave(
        self, name: Name, is_told: bool, caller: object, waiter: Waiter, found: Optional[Found], sent: int
    ) -> None:
        """A caller waits no longer. If it has watched, the others hear what it has found by the question number
        ``sent``."""
        told = []
        with self.lock:
            running = self.running.get(name)
            if running is not None:
                running.part(waiter)
            watch = self._watches.get((name, is_told))
            if watch is None:
                return
            watch.waiters.pop(waiter, None)
            if watch.watcher is caller:
                watch.watcher = watch.asking = None
            if watch.watcher is None and watch.waiters:
                # Also if this one was to watch next, and goes before it does.
                told = list(watch.waiters)
                if found is None or found.kind not in (m.HIT, m.FAILED, m.GRANTED):
                    told = told[:1]
                for other in told:
                    watch.waiters.pop(other, None)
            if watch.watcher is None and not watch.waiters:
                del self._watches[name, is_told]
        is_answer = found is not None and found.kind in (m.HIT, m.FAILED)
        for other in told:
            other.wake(found if is_answer and other.arrival < sent else None)

    def drop(self, place: Hashable) -> None:
        """The callers of a loop that was closed wait no longer."""
        with self.lock:
            self.running = {name: running for name, running in self.running.items() if name[0] is not place}
            self._watches = {name: watch for name, watch in self._watches.items() if name[0][0] is not place}

    def forget(self) -> None:
        """In a process that was forked: what was under way is the parent's."""
        self.lock = threading.RLock()
        self.running = {}
        self._watches = {}
