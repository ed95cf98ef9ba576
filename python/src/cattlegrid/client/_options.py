"""Times and limits as callers give them."""

from __future__ import annotations

import datetime
import math
import re
from typing import Optional, Tuple, Union

from ._errors import UsageError

Duration = Union[int, float, str, datetime.timedelta]
"""Seconds as a number, a text with a unit (``"400ms"``, ``"60s"``, ``"5m"``, ``"2h"``, ``"1d"``), or a timedelta."""
Ttl = Union[None, Duration, datetime.datetime]
"""When a value expires: ``None`` and the number 0 are never, a number is seconds from now on, or from 10^9 on a Unix time;
texts and timedeltas are always from now on."""

COMPUTE_TIME = 2.0
"""``compute_time`` if none is given, in seconds."""
WAIT = 0.1
"""``wait`` if neither it nor ``compute_time`` is given, in seconds."""
COMPUTE_TIMEOUT = 30.0
"""How long a token of ``fetch_or_compute`` is valid if nothing else is given, in seconds."""
LONGEST_MS = 24 * 60 * 60 * 1000
SHORTEST_MS = 1
RELATIVE_MAX = 30 * 24 * 60 * 60
"""Above this number of seconds memcached reads an exptime as a Unix time."""
UNIX_MIN = 1_000_000_000
"""From this number on a ``ttl`` is a Unix time: 2001. memcached does so above 30 days, where no one means 1970."""
PASSED = RELATIVE_MAX + 1
"""An exptime that has passed: in 1970. The server drops the item at once."""
HINT_MAX = 460
"""Longest hint, percent-encoded."""

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Expiration = Optional[Tuple[str, int]]
"""None: never; ``("after", milliseconds)``; ``("at", Unix milliseconds)``."""


def seconds(duration: Duration, what: str = "a duration") -> float:
    """The seconds of a duration, 0 or more. Raises :class:`UsageError`."""
    if isinstance(duration, str):
        match = _TEXT.fullmatch(duration)
        if not match:
            raise UsageError(f"{what}: {duration!r} is not a number with one of the units ms, s, m, h, d")
        return float(match.group(1)) * _UNITS[match.group(2)]
    if isinstance(duration, datetime.timedelta):
        number = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        number = float(duration)
    else:
        raise UsageError(f"{what}: seconds as a number, a text such as '60s' or a timedelta, not {duration!r}")
    if not number >= 0:
        raise UsageError(f"{what}: {duration!r} is below 0 or not a number")
    return number


def milliseconds(duration: Duration, what: str, least: int = SHORTEST_MS) -> int:
    """Whole milliseconds, rounded up: ``least`` to a day; other durations count as these."""
    return int(min(max(math.ceil(min(seconds(duration, what), 1e9) * 1000 - 1e-6), least), LONGEST_MS))


def expiration(ttl: Ttl) -> Expiration:
    """When a value with this ``ttl`` expires. Raises :class:`UsageError`."""
    if ttl is None:
        return None
    if isinstance(ttl, datetime.datetime):
        return "at", int(ttl.timestamp() * 1000)
    if isinstance(ttl, (str, datetime.timedelta)):
        if isinstance(ttl, datetime.timedelta) and ttl.total_seconds() < 0:
            return "after", 0
        return "after", math.ceil(seconds(ttl, "ttl") * 1000 - 1e-6)
    if not isinstance(ttl, (int, float)) or isinstance(ttl, bool) or ttl != ttl:
        raise UsageError(f"ttl: seconds as a number, a text such as '60s', a timedelta or a datetime, not {ttl!r}")
    if ttl == 0:
        return None
    if ttl < 0:
        return "after", 0
    if ttl < UNIX_MIN:
        return "after", math.ceil(ttl * 1000 - 1e-6)
    return "at", int(ttl * 1000) if ttl < 2**53 else 2**63


def unix_ms(when: Expiration, now_ms: int) -> Optional[int]:
    """The Unix time in milliseconds at which a value that is stored now expires; None: never, as are times beyond the
    year 2106."""
    if when is None:
        return None
    at_ms = now_ms + when[1] if when[0] == "after" else when[1]
    return at_ms if -(-at_ms // 1000) < 2**32 else None


def exptime(when: Expiration, now_ms: int, grace_ms: int = 0) -> Optional[int]:
    """The server's form of an expiry ``grace_ms`` after this one, rounded up to whole seconds. None: it has passed
    already."""
    at_ms = unix_ms(when, now_ms)
    if at_ms is None:
        return 0
    dead_ms = at_ms + grace_ms
    left = dead_ms - now_ms
    if left <= 0:
        return None
    whole = -(-left // 1000)
    if whole <= RELATIVE_MAX:
        return whole
    unix = -(-dead_ms // 1000)
    return unix if unix < 2**31 else (0 if unix >= 2**32 else 2**31 - 1)


def plain_exptime(ttl: Ttl, now_ms: int) -> int:
    """The server's form of the ``ttl`` of a plain store or touch."""
    when = exptime(expiration(ttl), now_ms)
    return PASSED if when is None else when
