"""Callers of one process that wait for a lock. They take it in the order in which they have come: the first alone asks
the server, and it asks at once when this process releases the lock. No I/O.

The first asks from time to time as well, since another process may release the lock, or its time may end: after pauses
of a tenth of the time that it has waited, so that a lock that is held for milliseconds is not waited for in tenths of
seconds. Pauses are random by half, so that processes do not ask in step.

A process that hands a lock from caller to caller keeps it from others, which only ask from time to time. So it leaves
the lock free for a moment, four times a second.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, Optional

from ._machine import Waiter

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.25
KEEPS = 0.25
"""How many seconds a process hands a lock on, before it leaves it free."""
LEAVES = 0.02
"""For how many seconds it does so, at least; at most twice that."""


class Turn(Waiter):
    """A caller that waits for a lock."""

    __slots__ = ("began", "delay", "name", "place", "rests")

    def __init__(self, event: Any, name: str, place: Hashable) -> None:
        super().__init__(event, 0)
        self.name = name
        self.place = place
        self.began = time.monotonic()
        self.delay = 0.0
        """How long it waits before it asks."""
        self.rests = False
        """Whether the caller before it has just taken the lock, so that it need not ask."""

    def pause(self, held: float) -> float:
        """Seconds until the lock is asked for again, which ends by itself after ``held`` seconds."""
        mean = min(max((time.monotonic() - self.began) / 10, SHORTEST_PAUSE), LONGEST_PAUSE)
        return min(mean * random.uniform(0.5, 1.5), max(held, SHORTEST_PAUSE))


class _Line:
    """Those that wait for one lock, of each event loop."""

    __slots__ = ("rows", "since")

    def __init__(self) -> None:
        self.rows: Dict[Hashable, OrderedDict[Turn, None]] = {}
        self.since: Optional[float] = None
        """Since when this process hands it on."""


class Turns:
    """All callers of a cache that wait for locks. At rest it is empty."""

    def __init__(self, make_event: Callable[[], Any], place: Callable[[], Hashable]) -> None:
        # It is entered again when a caller that waits is dropped by the garbage collection.
        self._lock = threading.RLock()
        self._lines: Dict[str, _Line] = {}
        self._make_event = make_event
        self._place = place

    def __len__(self) -> int:
        return len(self._lines)

    def is_empty(self, name: str) -> bool:
        """Whether no caller at this place waits for the lock."""
        line = self._lines.get(name)
        return line is None or self._place() not in line.rows

    def join(self, name: str) -> Turn:
        """A new turn, the last."""
        turn = Turn(self._make_event(), name, self._place())
        with self._lock:
            line = self._lines.setdefault(name, _Line())
            line.rows.setdefault(turn.place, OrderedDict())[turn] = None
        return turn

    def asks(self, turn: Turn) -> bool:
        """Whether this caller asks for the lock now. What wakes it from now on it will hear of."""
        with self._lock:
            turn.event.clear()
            rests, turn.rests = turn.rests, False
            line = self._lines.get(turn.name)
            row = line and line.rows.get(turn.place)
            # After a fork that a greenlet has made, the others keep waiting in the child, without a line.
            return not rests and (not row or next(iter(row)) is turn)

    def leave(self, turn: Turn, is_taken: bool) -> None:
        """It waits no longer: the next is the first."""
        with self._lock:
            line = self._lines.get(turn.name)
            row = line and line.rows.get(turn.place)
            if line is None or not row or turn not in row:
                return
            is_first = next(iter(row)) is turn
            del row[turn]
            if row and is_first:
                following = next(iter(row))
                following.rests, following.delay = is_taken, turn.delay
                following.event.set()
            elif not row:
                del line.rows[turn.place]
                if not line.rows:
                    del self._lines[turn.name]

    def released(self, name: str) -> None:
        """This process has released the lock."""
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                return
            now, delay = time.monotonic(), 0.0
            if line.since is None:
                line.since = now
            elif now - line.since > KEEPS:
                line.since, delay = None, LEAVES * random.uniform(1, 2)
            for row in line.rows.values():
                first = next(iter(row))
                first.rests, first.delay = False, delay
                first.event.set()

    def drop(self, place: Hashable) -> None:
        """The callers of a loop that was closed wait no longer."""
        with self._lock:
            for name, line in list(self._lines.items()):
                line.rows.pop(place, None)
                if not line.rows:
                    del self._lines[name]

    def forget(self) -> None:
        """In a process that was forked: the callers are the parent's."""
        self._lock = threading.RLock()
        self._lines = {}


__all__ = ["Turn", "Turns"]
