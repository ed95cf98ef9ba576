"""Objects of Cattlegrid: values with methods, which are called by the names of keys. No I/O.

A call goes to the server of its object: that of the key ``type:key``, whatever the method and its arguments are. It may
change the object, so that it is never sent twice, and no reply is kept. A server without objects, and memcached, see
ordinary keys in the names, and answer that there is no value.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Generator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._errors import CacheError, ServerFailure, UsageError
from ._keys import KEY_MAX, key_bytes
from ._machine import Sleep, Wait
from ._options import Duration, seconds
from ._turns import Turn, Turns

NAMED_WINDOWS = ("minute", "hour", "day", "week", "month")
LONGEST_TIME = 366 * 86400
OWNER_MAX = 250


class NoObjects(CacheError):
    """The server has no such objects: it is memcached, or Cattlegrid whose rule file has no ``[objects]`` with this
    type."""

    def __init__(self, call: str) -> None:
        kind = call.partition(":")[0]
        super().__init__(
            f"no server with objects of the type {kind}: they need Cattlegrid with [objects] in its rule file, "
            "a Cache that is given its address, and, if the Cache has a prefix, that in prefixes of [server]"
        )
        self.call = call


class RateLimited(CacheError):
    """A limit of calls is reached. :attr:`retry_after`: seconds until a call can be granted; :attr:`key` what is
    limited."""

    def __init__(self, key: str, limit: int, window: str, retry_after: float) -> None:
        super().__init__(f"{key}: more than {limit} calls in {window}")
        self.key, self.limit, self.window, self.retry_after = key, limit, window, retry_after


class LockHeld(CacheError):
    """Another owner has the lock, and the wait has passed. :attr:`left`: seconds until it ends, unless it is
    renewed."""

    def __init__(self, name: str, left: float) -> None:
        super().__init__(f"the lock {name} is held by another")
        self.name, self.left = name, left


class LockLost(CacheError):
    """The lock has ended before it was released: its time was over, or its server has lost it. Another may have had it
    since."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the lock {name} has ended before it was released")
        self.name = name


class Call:
    """The name of a call, ``type:method:key[:argument...]``, with colons and per cent signs in its parts escaped.

    ``Call("quota", "take", "2001:db8::1", 1, 100, "hour").name`` is ``quota:take:2001%3Adb8%3A%3A1:1:100:hour``.
    """

    __slots__ = ("name",)

    def __init__(self, object_type: str, method: str, key: object, *args: object) -> None:
        self.name = ":".join(_part(part) for part in (object_type, method, key, *args))
        """As it is sent."""

    def __repr__(self) -> str:
        return f"<Call {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class Called(NamedTuple):
    """An outcome of ``multi_call``."""

    key: str
    reply: Optional[bytes]
    """None: a miss, or an error."""
    error: Optional[CacheError] = None


class QuotaState(NamedTuple):
    """What ``peek`` of a quota tells."""

    limit: int
    used: int
    left: int
    resets_in: float
    """Seconds until the window ends; 0: no window has begun."""


class Calls(NamedTuple):
    """Make these calls, each at the server of its object, all at once. Result: a reply, None or an error for each."""

    names: Sequence[bytes]


Steps = Generator[Union[Calls, Sleep, Wait], Any, Any]


def _part(part: object) -> str:
    if isinstance(part, bool) or not isinstance(part, (str, int, float)):
        raise UsageError(f"a part of a call is text or a number, not {part!r}")
    return str(part).replace("%", "%25").replace(":", "%3A")


def name_bytes(call: Union[str, bytes, Call]) -> bytes:
    """The name of a call as it is sent. Raises :class:`UsageError`: it is none."""
    name = key_bytes(call.name if isinstance(call, Call) else call)
    parts = name.split(b":", 3)
    if len(parts) < 3 or not all(parts[:3]):
        shown = name.decode("utf-8", "backslashreplace")
        raise UsageError(f"{shown!r} is not the name of a call: type:method:key[:argument...]")
    return name


def route_of(name: bytes) -> bytes:
    """The key that decides which server has the object of this call."""
    object_type, _, key = name.split(b":", 3)[:3]
    return object_type + b":" + key


def call_one(call: Union[str, bytes, Call]) -> Steps:
    """One call: its reply, or None for a miss."""
    (reply,) = yield Calls([name_bytes(call)])
    if isinstance(reply, CacheError):
        raise reply
    return reply


def call_many(object_type: str, method: str, keys: Sequence[str], args: Sequence[object]) -> Steps:
    """The same call on many objects: a list of :class:`Called` in the order of the keys."""
    names: List[bytes] = []
    failed: List[Optional[CacheError]] = []
    for key in keys:
        try:
            names.append(name_bytes(Call(object_type, method, key, *args)))
            failed.append(None)
        except UsageError as error:
            failed.append(error)
    replies = iter((yield Calls(names)) if names else ())
    out = []
    for key, wrong in zip(keys, failed):
        reply = next(replies) if wrong is None else wrong
        out.append(Called(key, None, reply) if isinstance(reply, CacheError) else Called(key, reply))
    return out


def certain(call: Call) -> Steps:
    """The reply of a method that always has one. Raises :class:`NoObjects`."""
    reply = yield from call_one(call)
    if reply is None:
        raise NoObjects(call.name)
    return reply


def window_text(window: Union[Duration, str]) -> str:
    """A window of a quota as the server reads it."""
    if window in NAMED_WINDOWS:
        return str(window)
    length = seconds(window, "window")
    if length != int(length) or not 1 <= length <= LONGEST_TIME:
        raise UsageError(f"window {window!r}: {', '.join(NAMED_WINDOWS)}, or whole seconds up to 366 days")
    return f"{int(length)}s"


def check_limit(limit: int) -> int:
    """A limit. Raises :class:`UsageError`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 2**63:
        raise UsageError(f"limit {limit!r}: a whole number from 0 to 2^63 - 1")
    return limit


class QuotaSteps:
    """The calls of a quota."""

    def __init__(self, name: str, limit: int, window: Union[Duration, str]) -> None:
        self.name = name
        self.limit = check_limit(limit)
        self.window = window_text(window)
        name_bytes(Call("quota", "take", name, limit, limit, self.window))

    def take(self, n: int = 1) -> Steps:
        """Whether ``n`` more are granted."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"take({n!r}): a whole number from 1")
        reply = yield from certain(Call("quota", "take", self.name, n, self.limit, self.window))
        return reply == b"QUOTA_OK"

    def peek(self) -> Steps:
        """The state, without taking anything."""
        call = Call("quota", "peek", self.name)
        reply = yield from call_one(call)
        if reply is None:
            # Not there, or no quotas at all.
            yield from certain(Call("quota", "exists", self.name))
            return QuotaState(self.limit, 0, self.limit, 0)
        try:
            state = json.loads(reply)
            return QuotaState(state["limit"], state["used"], state["left"], state["resets_in"])
        except (ValueError, KeyError, TypeError):
            raise NoObjects(call.name) from None

    def reset(self) -> Steps:
        """Nothing is used any more."""
        if (yield from call_one(Call("quota", "reset", self.name))) is None:
            yield from certain(Call("quota", "exists", self.name))


class LimitSteps:
    """A limit of calls: a quota, or a window that slides."""

    def __init__(self, limit: int, window: Union[Duration, str], sliding: bool) -> None:
        self.limit = check_limit(limit)
        self.sliding = sliding
        self.window = window_text(window)
        if sliding and self.window in NAMED_WINDOWS:
            lengths = {"minute": "60s", "hour": "3600s", "day": "86400s", "week": "604800s"}
            if self.window not in lengths:
                raise UsageError("a month is no length: name a number of days")
            self.window = lengths[self.window]

    def take(self, key: str) -> Steps:
        """Nothing, or :class:`RateLimited`."""
        if self.sliding:
            call = Call("sliding", "hit", key, self.limit, self.window)
            reply = yield from certain(call)
            if reply.startswith(b"OK"):
                return
            left = float(reply.split()[1]) if reply.startswith(b"LIMITED") else 0.0
            raise RateLimited(key, self.limit, self.window, max(left, 0.0))
        quota = QuotaSteps(key, self.limit, self.window)
        if not (yield from quota.take()):
            state = yield from quota.peek()
            raise RateLimited(key, self.limit, self.window, float(state.resets_in))


class LockSteps:
    """The calls of a lock: of the type ``lock``, whose owner is this object, and which ends by itself after its
    time."""

    def __init__(self, name: str, ttl: Duration, wait: Optional[Duration], turns: Turns) -> None:
        time_ms = round(seconds(ttl, "ttl") * 1000)
        if not 1 <= time_ms <= LONGEST_TIME * 1000:
            raise UsageError(f"ttl {ttl!r}: 1 ms to 366 days")
        self.name = name
        self.time = f"{time_ms}ms"
        self.wait = None if wait is None else seconds(wait, "wait")
        self.owner = f"{os.getpid()}-{os.urandom(12).hex()}"
        self.fence: Optional[int] = None
        self._turns = turns
        name_bytes(Call("lock", "release", name, self.owner))

    def acquire(self, wait: Optional[Duration]) -> Steps:
        """Takes the lock: its fencing token, which the caller keeps, since a task that is cancelled is not told of it.
        :class:`LockHeld`: another has it, and the wait has passed."""
        if self.fence is not None:
            raise UsageError(f"the lock {self.name} is taken already by this object: it is not reentrant")
        limit = self.wait if wait is None else seconds(wait, "wait")
        deadline = None if limit is None else time.monotonic() + limit
        turn: Optional[Turn] = None
        fence: Optional[int] = None
        held = 1.0
        try:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                is_last = left is not None and left <= 0
                asks = self._turns.is_empty(self.name) if turn is None else self._turns.asks(turn)
                if asks or is_last:
                    if turn is not None and turn.delay and not is_last:
                        delay, turn.delay = turn.delay, 0.0
                        yield Sleep(delay if left is None else min(delay, left))
                    fence, held = yield from self._take()
                    if fence is not None:
                        return fence
                if is_last:
                    raise LockHeld(self.name, held)
                if turn is None:
                    turn = self._turns.join(self.name)
                pause = turn.pause(held)
                yield Wait(turn, pause if left is None else min(pause, left))
        finally:
            if turn is not None:
                self._turns.leave(turn, fence is not None)

    def _take(self) -> Generator[Any, Any, Tuple[Optional[int], float]]:
        """The fencing token, or None and for how long another has the lock."""
        failed = 0
        while True:
            try:
                reply = yield from certain(Call("lock", "take", self.name, self.owner, self.time))
            except ServerFailure:
                # An owner may take its lock again: so it is not lost whose reply was.
                failed += 1
                if failed > 1:
                    raise
                continue
            word, _, rest = reply.partition(b" ")
            return (int(rest), 0.0) if word == b"OK" else (None, float(rest or 1))

    def renew(self, ttl: Optional[Duration]) -> Steps:
        """The lock lasts for this time from now on."""
        if self.fence is None:
            raise UsageError(f"the lock {self.name} is not taken")
        time_text = self.time if ttl is None else f"{round(seconds(ttl, 'ttl') * 1000)}ms"
        reply = yield from certain(Call("lock", "renew", self.name, self.owner, time_text))
        if not reply.startswith(b"OK"):
            self.fence = None
            raise LockLost(self.name)

    def release(self) -> Steps:
        """Gives the lock back. :class:`LockLost`: it has ended before."""
        if self.fence is None:
            raise UsageError(f"the lock {self.name} is not taken")
        self.fence = None
        try:
            reply = yield from certain(Call("lock", "release", self.name, self.owner))
        finally:
            self._turns.released(self.name)
        if reply != b"OK":
            raise LockLost(self.name)

    def undo(self) -> Steps:
        """Gives the lock back if the server has given it: nothing is said of failures."""
        try:
            yield from call_one(Call("lock", "release", self.name, self.owner))
        finally:
            self.fence = None
            self._turns.released(self.name)

    def holder(self) -> Steps:
        """The name of the owner, or None."""
        reply = yield from call_one(Call("lock", "holder", self.name))
        if reply is None:
            yield from certain(Call("lock", "exists", self.name))
            return None
        return reply.decode("utf-8", "backslashreplace")


__all__ = [
    "KEY_MAX",
    "Call",
    "Called",
    "LockHeld",
    "LockLost",
    "NoObjects",
    "QuotaState",
    "RateLimited",
]
