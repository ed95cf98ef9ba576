"""The header before a value that ``get_or_compute`` has stored, and the locks of computations: bytes, without I/O.

An item has a header if the upper half of its client flags is ``0xca77`` and their lowest bit is set. All numbers are
big-endian, all times Unix milliseconds by the clock of the client that wrote them::

    byte  0       0xc7
    byte  1       kind: 0 value, 1 value that is being computed again, 2 lock without a value, 3 failure
    bytes 2..10   when the value expires; 0: never           (kinds 2 and 3: 0)
    bytes 10..18  from when on it is not served; 0: never    (kinds 2 and 3: 0)
    bytes 18..26  kinds 1 to 3: when the lock expires
    bytes 26..34  kinds 1 to 3: a random number that names the computation
    the rest      kinds 0 and 1: the value; kind 2: the hint of the client that asked first; kind 3: why it failed

An item without a header was written by another client, or by a plain ``set``: it is a fresh value as it is. Items with
a header that is too short, begins with another byte or has another kind are damaged: they count as absent, and the next
computation replaces them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Optional, Union

MAGIC = 0xC7
VALUE = 0
AGAIN = 1
LOCK = 2
FAILED = 3
SHORT = struct.Struct(">BBQQ")
LONG = struct.Struct(">BBQQQQ")
SHORT_SIZE = SHORT.size
LONG_SIZE = LONG.size
MAX_64 = 2**64 - 1


class Stored(NamedTuple):
    """A value as it is stored, with the marks of its format."""

    data: bytes
    flags: int
    """The item's flags, without the mark of a header."""
    soft_ms: int = 0
    """When it expires; 0: never."""
    dead_ms: int = 0
    """From when on it is not served; 0: never."""

    def is_like(self, other: Stored) -> bool:
        """Whether this is the same value, whatever its times."""
        return self.data == other.data and self.flags == other.flags

    def is_fresh(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.soft_ms == 0 or now_ms < self.soft_ms

    def is_usable(self, now_ms: int) -> bool:
        """Whether it may be served while another value is computed."""
        return self.dead_ms == 0 or now_ms < self.dead_ms


class Lock(NamedTuple):
    """The mark of a computation."""

    until_ms: int
    """Until then no other client computes."""
    nonce: int
    """Names the computation."""


class Value(NamedTuple):
    """A value."""

    stored: Stored


class Again(NamedTuple):
    """A value that has expired and is being computed again."""

    stored: Stored
    lock: Lock


class Locked(NamedTuple):
    """No value yet: it is being computed. With the hint."""

    hint: bytes
    lock: Lock


class Failed(NamedTuple):
    """A computation has failed: why."""

    text: bytes
    lock: Lock


class Damaged(NamedTuple):
    """No header that could be read."""


Record = Union[Value, Again, Locked, Failed, Damaged]


def open_record(data: bytes, flags: int) -> Record:
    """The record behind a header. ``flags`` are the item's, without the mark of the header."""
    if len(data) < SHORT_SIZE or data[0] != MAGIC:
        return Damaged()
    kind = data[1]
    if kind == VALUE:
        _, _, soft_ms, dead_ms = SHORT.unpack_from(data)
        return Value(Stored(data[SHORT_SIZE:], flags, soft_ms, dead_ms))
    if len(data) < LONG_SIZE:
        return Damaged()
    _, _, soft_ms, dead_ms, until_ms, nonce = LONG.unpack_from(data)
    rest = data[LONG_SIZE:]
    lock = Lock(until_ms, nonce)
    if kind == AGAIN:
        return Again(Stored(rest, flags, soft_ms, dead_ms), lock)
    if kind == LOCK:
        return Locked(rest, lock)
    if kind == FAILED:
        return Failed(rest, lock)
    return Damaged()


def seal(record: Record) -> bytes:
    """The item's bytes. A damaged record has none."""
    if isinstance(record, Value):
        stored = record.stored
        return SHORT.pack(MAGIC, VALUE, min(stored.soft_ms, MAX_64), min(stored.dead_ms, MAX_64)) + stored.data
    if isinstance(record, Again):
        stored, lock = record
        return (
            LONG.pack(MAGIC, AGAIN, stored.soft_ms, min(stored.dead_ms, MAX_64), min(lock.until_ms, MAX_64), lock.nonce)
            + stored.data
        )
    if isinstance(record, Locked):
        return LONG.pack(MAGIC, LOCK, 0, 0, min(record.lock.until_ms, MAX_64), record.lock.nonce) + record.hint
    if isinstance(record, Failed):
        return LONG.pack(MAGIC, FAILED, 0, 0, min(record.lock.until_ms, MAX_64), record.lock.nonce) + record.text
    return b""


def record_flags(record: Record) -> int:
    """The marks of the value's format, for the item's flags."""
    return record.stored.flags if isinstance(record, (Value, Again)) else 0


def record_nonce(record: Record) -> Optional[int]:
    """The number of the computation that this is the lock of."""
    return record.lock.nonce if isinstance(record, (Again, Locked)) else None
