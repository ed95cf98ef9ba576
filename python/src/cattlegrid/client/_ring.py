"""Which server a key is on, and the health of servers. No I/O; time is an argument.

``ketama_weighted`` and ``ketama`` place keys as libmemcached does: pylibmc with the behaviors of these names finds the
same keys on the same servers, if the list has the same names in the same form. ``rendezvous`` spreads keys more evenly
and moves fewest keys when a weight changes. All are those of Cattlegrid's Rust client.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import struct
import threading
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._errors import UsageError

KETAMA_WEIGHTED = "ketama_weighted"
KETAMA = "ketama"
RENDEZVOUS = "rendezvous"
SHARDINGS = (KETAMA_WEIGHTED, KETAMA, RENDEZVOUS)
SERVERS_MAX = 1000
NAME_MAX = 255
_MASK32 = 0xFFFF_FFFF
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF
RETRIES_MAX = 10
"""Largest multiple of ``retry`` between two probes."""


class Ejection(NamedTuple):
    """When a server that fails is taken out, so that its keys go to others, and when it is tried again.

    A failure is a connection that cannot be made, that breaks before its first reply, or on which nothing has come
    within the timeout; replies that are errors are not failures.
    """

    after_failures: int = 2
    """After this many failures in a row; 0 is as 1."""
    retry: float = 1.0
    """Seconds until the first probe, at least 0.001. Each probe that fails doubles the time to the next, up to ten
    times this."""


def _md5(data: bytes) -> bytes:
    return hashlib.new("md5", data, usedforsecurity=False).digest()


def key_hash(key: bytes) -> int:
    """The place of a key on the circle in most layouts: the first four bytes of its MD5, little-endian."""
    return int.from_bytes(_md5(key)[:4], "little")


def one_at_a_time(key: bytes) -> int:
    """Bob Jenkins's one-at-a-time hash, libmemcached's default. Bytes from 0x80 are negative numbers in it, as ``char``
    is on x86."""
    value = 0
    for byte in key:
        value = (value + (byte if byte < 0x80 else byte - 256)) & _MASK32
        value = (value + (value << 10)) & _MASK32
        value ^= value >> 6
    value = (value + (value << 3)) & _MASK32
    value ^= value >> 11
    return (value + (value << 15)) & _MASK32


def fnv(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = 0xCBF2_9CE4_8422_2325
    for byte in data:
        value = (value ^ byte) * 0x100_0000_01B3 & _MASK64
    return value


def mix(value: int) -> int:
    """SplitMix64."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _MASK64
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & _MASK64
    return value ^ (value >> 31)


def _f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _weighted_hashes(weight: int, total: int, servers: int) -> int:
    """Number of hashes, four points each. In single precision and in libmemcached's order of operations: the rounding
    decides."""
    share = _f32(_f32(weight) / _f32(total))
    product = _f32(_f32(_f32(share * 160.0) / 4.0) * _f32(servers))
    return math.floor(_f32(product + _f32(0.0000000001)))


def point_name(name: str) -> bytes:
    """What the names of a server's points begin with: its name without the default port."""
    data = name.encode("utf-8", "surrogateescape")
    return data[:-6] if data.endswith(b":11211") and len(data) > 6 else data


class Placing:
    """The search for a key's server."""

    def __init__(self, servers: Sequence[Tuple[str, int]], sharding: str) -> None:
        if sharding not in SHARDINGS:
            raise UsageError(f"sharding: {sharding!r} is not one of {', '.join(SHARDINGS)}")
        if not 0 < len(servers) <= SERVERS_MAX:
            raise UsageError(f"a Cache has 1 to {SERVERS_MAX} servers, not {len(servers)}")
        names = [point_name(name) for name, _ in servers]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise UsageError(f"the server {servers[at][0]} occurs twice")
            if not 0 < len(name) <= NAME_MAX:
                raise UsageError(f"the name of a server has 1 to {NAME_MAX} bytes: {servers[at][0]!r}")
        self._count = len(servers)
        self._hash: Optional[Callable[[bytes], int]] = None
        self._seeds: List[int] = []
        self._weights = [float(weight) for _, weight in servers]
        if sharding == RENDEZVOUS:
            self._seeds = [fnv(name) for name in names]
        elif len(servers) > 1:
            self._ring(names, [weight for _, weight in servers], sharding)

    def _ring(self, names: List[bytes], weights: List[int], sharding: str) -> None:
        self._hash = one_at_a_time if sharding == KETAMA else key_hash
        weighted = sharding == KETAMA_WEIGHTED or any(weight > 1 for weight in weights)
        points: List[Tuple[int, int]] = []
        total = sum(weights)
        for place, name in enumerate(names):
            if weighted:
                for counter in range(_weighted_hashes(weights[place], total, len(names))):
                    points.extend((value, place) for value in struct.unpack("<4I", _md5(b"%b-%d" % (name, counter))))
            else:
                points.extend((one_at_a_time(b"%b-%d" % (name, counter)), place) for counter in range(100))
        points.sort()
        self._hashes = [point[0] for point in points]
        self._places = [point[1] for point in points]

    def find(self, key: bytes, out: Dict[int, _Out]) -> Optional[int]:
        """The place of a key's server among those that are not in ``out``."""
        if self._count == 1:
            return None if 0 in out else 0
        if self._hash is not None:
            places = self._places
            start = bisect.bisect_left(self._hashes, self._hash(key))
            if not out:
                return places[start if start < len(places) else 0]
            for step in range(len(places)):
                place = places[(start + step) % len(places)]
                if place not in out:
                    return place
            return None
        best: Optional[int] = None
        score = -1.0
        hashed = fnv(key)
        for place, seed in enumerate(self._seeds):
            if place in out:
                continue
            draw = ((mix(hashed ^ seed) >> 12) + 0.5) / 2.0**52
            own = self._weights[place] / -math.log(draw)
            if own > score:
                best, score = place, own
        return best


class _Out:
    """A server that is ejected."""

    __slots__ = ("next", "wait")

    def __init__(self, at: float, wait: float) -> None:
        self.next = at
        self.wait = wait


class Route:
    """The servers of a client, and the search for the server of a key. May be shared by threads."""

    def __init__(self, servers: Sequence[Tuple[str, int]], sharding: str, ejection: Optional[Ejection]) -> None:
        self._placing = Placing(servers, sharding)
        self._ejection = ejection
        self._lock = threading.Lock()
        self._failures = [0] * len(servers)
        self.out: Dict[int, _Out] = {}
        """Servers that are ejected."""
        self.changes = 0
        """How often a server was ejected or has returned: as long as this is the same, each key has the same server."""

    @property
    def ejects(self) -> bool:
        """Whether servers that fail are ejected."""
        return self._ejection is not None

    def place(self, key: bytes) -> Optional[int]:
        """The place of a key's server among those that are not ejected. None: all are."""
        return self._placing.find(key, self.out)

    def failed(self, place: int, now: float) -> bool:
        """A server has failed: whether it is ejected by this."""
        if self._ejection is None or place in self.out:
            return False
        with self._lock:
            self._failures[place] += 1
            if self._failures[place] < max(self._ejection.after_failures, 1) or place in self.out:
                return False
            wait = max(self._ejection.retry, 0.001)
            self.out = {**self.out, place: _Out(now + wait, wait)}
            self.changes += 1
            return True

    def succeeded(self, place: int) -> None:
        """A server has answered."""
        if self._failures[place]:
            self._failures[place] = 0

    def due(self, now: float) -> List[int]:
        """The servers that must be tried now. Each is named once until its next time."""
        if not self.out or self._ejection is None:
            return []
        due = []
        with self._lock:
            for place, out in self.out.items():
                if out.next <= now:
                    out.wait = min(out.wait * 2, max(self._ejection.retry, 0.001) * RETRIES_MAX)
                    out.next = now + out.wait
                    due.append(place)
        return due

    def returned(self, place: int) -> bool:
        """A probe of an ejected server has succeeded: whether it is back by this."""
        with self._lock:
            if place not in self.out:
                return False
            self.out = {at: out for at, out in self.out.items() if at != place}
            self._failures[place] = 0
            self.changes += 1
            return True
