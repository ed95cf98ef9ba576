"""Values of the busiest keys in this process's own memory.

An entry lives as long as its value's own time to live says, and no longer than ``longest``. Nothing else ends it when
another client writes the key. This client's own writes do.

Keys share a fixed number of slots, each with a number that every write of this client raises, before it is sent and
when it is over. A read takes its slot's number before it is sent, and its entry keeps that number. An entry is returned
only while its number is that of its slot: a value that was read before an own write ended is not returned after it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple, Union

from ._errors import UsageError
from ._options import Duration, seconds

SLOTS = 4096
"""Number of slots. A write makes the entries of one of them useless."""
ENTRY_BYTES = 400
"""Bytes of an entry without its key and value, about what its objects take."""


@dataclass(frozen=True)
class NearCache:
    """How a ``Cache`` keeps values of the busiest keys in this process.

    ``get`` and ``get_many`` use it, and nothing else does: ``gets``, ``peek``, ``get_or_compute``,
    ``fetch_or_compute``, cached functions, namespaces and calls of objects always ask the server, and so do all reads
    of keys with tags, of keys that begin with ``@``, and from servers without meta commands, which do not say how long
    a value still lives.

    **What another process writes or deletes is seen here only when the entry's time is over**: the rest of the value's
    own time to live when it was read (in whole seconds, rounded down), at most ``longest``. This client's own writes
    and deletes of a key end its entry at once; its invalidations and ``flush_all`` end all entries.
    """

    max_bytes: int = 16 << 20
    """Most bytes of keys and values, with 400 bytes for each entry. The entries that were not used for longest make
    room."""

    longest: Duration = 1.0
    """Longest time to live of an entry, for values that live longer and those that never expire. Seconds, 1 ms to an
    hour."""

    def __post_init__(self) -> None:
        limit = self.max_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 1 << 40:
            raise UsageError(f"max_bytes {limit!r}: a number of bytes from 1 to 2^40")
        if not 0.001 <= seconds(self.longest, "longest") <= 3600:
            raise UsageError(f"longest {self.longest!r}: 1 ms to an hour is possible")


class Reading(NamedTuple):
    """A read that is about to be sent: what :meth:`Near.insert` needs."""

    number: int
    began: float


class _Entry(NamedTuple):
    data: bytes
    flags: int
    number: int
    deadline: float


class Near:
    """A near cache. Times are those of ``clock``, in seconds. All methods may be called by many threads."""

    def __init__(self, settings: NearCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = seconds(settings.longest)
        self._max_bytes = settings.max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._slots = [0] * SLOTS
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0
        self.hits = 0

    def get(self, key: bytes) -> Optional[Tuple[bytes, int]]:
        """The bytes and flags of this key."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            if entry.deadline <= self._clock() or entry.number != self._slots[hash(key) % SLOTS]:
                self._remove(key)
                return None
            self._entries.move_to_end(key)
            self.hits += 1
            return entry.data, entry.flags

    def reading(self, key: bytes) -> Reading:
        """To be called before the read is sent."""
        return Reading(self._slots[hash(key) % SLOTS], self._clock())

    def insert(self, key: bytes, reading: Reading, data: bytes, flags: int, left: Optional[float]) -> None:
        """Keeps what was read. ``left`` is the rest of its time to live in seconds as of when it was read; None: it
        never expires."""
        lives = self._longest if left is None else min(left, self._longest)
        size = ENTRY_BYTES + len(key) + len(data)
        if lives <= 0 or size > self._max_bytes:
            return
        with self._lock:
            if reading.number != self._slots[hash(key) % SLOTS]:
                return
            self._remove(key)
            self._entries[key] = _Entry(data, flags, reading.number, reading.began + lives)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def writing(self, keys: Iterable[bytes]) -> Writing:
        """Around an own write or delete: entered before it is sent, left when it is over or given up."""
        return Writing(self, list(keys))

    def clear(self) -> None:
        """Ends all entries, and those of reads that are under way."""
        with self._lock:
            self._slots = [number + 1 for number in self._slots]
            self._entries.clear()
            self._bytes = 0

    def forget(self) -> None:
        """In a process that was forked: the lock may be held by a thread of the parent."""
        self._lock = threading.Lock()
        self.clear()

    def _raise(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._slots[hash(key) % SLOTS] += 1
                self._remove(key)

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= ENTRY_BYTES + len(key) + len(entry.data)

    @property
    def used_bytes(self) -> int:
        """Bytes of all entries."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)


class Writing:
    """An own write of keys, as a context manager."""

    __slots__ = ("_keys", "_near")

    def __init__(self, near: Near, keys: List[bytes]) -> None:
        self._near, self._keys = near, keys

    def __enter__(self) -> Writing:
        self._near._raise(self._keys)
        return self

    def __exit__(self, *failure: object) -> None:
        self._near._raise(self._keys)


def left_of(t: int) -> Optional[float]:
    """The rest of a value's time to live, from the ``t`` of a meta reply, which counts whole seconds of a clock that
    ticks once a second: the rest is up to a second shorter. -1 is a value that never expires."""
    return None if t < 0 else max(0.0, t - 1.0)


def near_of(choice: Union[bool, Duration, NearCache, None]) -> Optional[Near]:
    """The near cache of an option: None or False is none, True one with defaults, a duration one with this
    ``longest``."""
    if choice is None or choice is False:
        return None
    if choice is True:
        return Near(NearCache())
    if isinstance(choice, NearCache):
        return Near(choice)
    return Near(NearCache(longest=choice))
