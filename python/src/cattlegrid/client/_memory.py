"""A cache in this process's memory, in place of servers, for tests: transports that do what servers would. No I/O.

It knows plain items, tags, and of the objects quotas, sliding windows and locks. It has no leases: keys are locked as
over memcached.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any, Callable, ClassVar, Coroutine, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import _wire as w
from ._hooks import Metrics
from ._machine import Replies
from ._options import RELATIVE_MAX
from ._wire import Command, Reply, Scope

OFF = "off"
MEMORY = "memory"
MISS = "miss"
MODES = (OFF, MEMORY, MISS)
_SCOPE = Scope((0, 0))
_SECONDS = {"minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 30 * 86400}


class _Item(NamedTuple):
    data: bytes
    flags: int
    deadline: Optional[float]
    cas: int
    tags: Tuple[Tuple[bytes, int], ...] = ()


def _is_of_namespaces(command: Command) -> bool:
    """Whether an item is a record or a number of namespaces, without which no key can be made."""
    return command.data.startswith(b"CGNS") or (b"counter|" in command.key and len(command.data) == 16)


class Store:
    """The items. ``mode``: ``memory``; ``miss``: what is stored is never found; ``off``: nothing is stored. Namespaces
    have their numbers always."""

    def __init__(self, mode: str, prefix: bytes = b"", clock: Callable[[], float] = time.time) -> None:
        self.mode = mode
        self.prefix = prefix
        """What the cache puts before all keys, names of calls included."""
        self._clock = clock
        self._lock = threading.RLock()
        self._items: Dict[bytes, _Item] = {}
        self._tags: Dict[bytes, int] = {}
        self._quotas: Dict[str, Tuple[int, float, int]] = {}
        self._hits: Dict[str, List[float]] = {}
        self._locks: Dict[str, Tuple[str, int, float]] = {}
        self._numbers = 0
        self._flush_at: Optional[float] = None

    def __len__(self) -> int:
        return len(self._items)

    def renew_lock(self) -> None:
        """In a process that was forked."""
        self._lock = threading.RLock()

    def do(self, command: Command) -> Reply:
        """The reply to a command."""
        with self._lock:
            if self._flush_at is not None and self._flush_at <= self._clock():
                self._items.clear()
                self._flush_at = None
            verb = command.verb
            if verb in w.STORES:
                return self._store(command)
            work = self._DO.get(verb)
            return Reply("ERROR", line=b"ERROR") if work is None else work(self, command)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _find(self, key: bytes) -> Optional[_Item]:
        item = self._items.get(key)
        if item is None:
            return None
        is_over = item.deadline is not None and item.deadline <= self._clock()
        if is_over or any(self._tags.get(tag, 0) != number for tag, number in item.tags):
            del self._items[key]
            return None
        return item

    def _deadline(self, exptime: int) -> Optional[float]:
        if not exptime:
            return None
        return float(exptime) if exptime > RELATIVE_MAX else self._clock() + exptime

    def _store(self, command: Command) -> Reply:
        key, verb = command.key, command.verb
        if self.mode != MEMORY and not _is_of_namespaces(command):
            return Reply("NS") if self.mode == OFF else Reply("HD", cas=self._number())
        item = self._find(key)
        number = self._number()
        if command.cas is not None or verb == w.CAS:
            if item is None:
                return Reply("NF")
            if item.cas != command.cas:
                return Reply("EX")
        elif (verb == w.ADD) is (item is not None) and verb != w.SET:
            return Reply("NS")
        data = command.data
        if verb in (w.APPEND, w.PREPEND) and item is not None:
            data = item.data + data if verb == w.APPEND else data + item.data
            self._items[key] = item._replace(data=data, cas=number)
            return Reply("HD", cas=number)
        tags = [tag.encode("utf-8", "surrogateescape") for tag in command.tags]
        numbers = tuple((tag, self._tags.get(tag, 0)) for tag in tags)
        self._items[key] = _Item(data, command.flags, self._deadline(command.exptime), number, numbers)
        return Reply("HD", cas=number)

    def _get(self, command: Command) -> Reply:
        item = self._find(command.key)
        if item is None:
            return Reply("EN")
        if command.verb == w.GAT:
            item = self._items[command.key] = item._replace(deadline=self._deadline(command.exptime))
        reply = Reply("VA", item.data, item.flags, item.cas)
        reply.left = -1 if item.deadline is None else max(0, int(item.deadline - self._clock()))
        return reply

    def _delete(self, command: Command) -> Reply:
        item = self._find(command.key)
        token = command.head.partition(b" C")[2].split(b" ")[0]
        if item is None:
            return Reply("NF")
        if token and item.cas != int(token):
            return Reply("EX")
        del self._items[command.key]
        return Reply("HD")

    def _touch(self, command: Command) -> Reply:
        item = self._find(command.key)
        if item is None:
            return Reply("NOT_FOUND")
        self._items[command.key] = item._replace(deadline=self._deadline(command.exptime))
        return Reply("TOUCHED")

    def _count(self, command: Command) -> Reply:
        item = self._find(command.key)
        if item is None:
            return Reply("NF")
        if not item.data.strip().isdigit():
            return Reply("ERROR", line=b"CLIENT_ERROR cannot increment or decrement non-numeric value")
        by = int(command.head)
        number = int(item.data)
        number = (number + by) % 2**64 if command.verb == w.INCR else max(0, number - by)
        self._items[command.key] = item._replace(data=b"%d" % number, cas=self._number())
        return Reply("VA", b"%d" % number)

    def _invalidate(self, command: Command) -> Reply:
        self._tags[command.key] = self._tags.get(command.key, 0) + 1
        return Reply("HD")

    def _flush(self, command: Command) -> Reply:
        delay = int(command.head or b"0")
        if delay:
            self._flush_at = self._clock() + delay
        else:
            self._items.clear()
        return Reply("OK")

    def _call(self, command: Command) -> Reply:
        if command.key.endswith(b"@tag:cattlegrid"):
            return Reply("VA", b"0") if command.key == b"@tag:cattlegrid" else Reply("END")
        name = command.key[len(self.prefix) :] if command.key.startswith(self.prefix) else command.key
        words = name.decode("utf-8", "replace").split(":")
        parts = [word.replace("%3A", ":").replace("%25", "%") for word in words]
        method = self._CALLS.get(tuple(parts[:2]))
        try:
            reply = method(self, parts[2], parts[3:]) if method is not None and len(parts) > 2 else None
        except (ValueError, IndexError):
            return Reply("ERROR", line=b"CLIENT_ERROR %b.%b: wrong arguments" % (parts[0].encode(), parts[1].encode()))
        return Reply("END") if reply is None else Reply("VA", reply.encode())

    def _window(self, window: str) -> float:
        """When a window that begins now ends."""
        now = self._clock()
        if window in _SECONDS:
            length = _SECONDS[window]
            return now - now % length + length
        return now + float(window.rstrip("s"))

    def _quota(self, name: str) -> Optional[Tuple[int, float, int]]:
        known = self._quotas.get(name)
        return None if known is None or known[1] <= self._clock() else known

    def _quota_take(self, name: str, args: List[str]) -> str:
        n, limit, window = int(args[0]), int(args[1]), args[2]
        used, end, _ = self._quota(name) or (0, self._window(window), limit)
        if self.mode == MEMORY and used + n > limit:
            return "QUOTA_EXCEEDED"
        self._quotas[name] = (used + n, end, limit)
        return "QUOTA_OK"

    def _quota_peek(self, name: str, args: List[str]) -> Optional[str]:
        known = self._quota(name)
        if known is None:
            return None
        used, end, limit = known
        state = {"limit": limit, "used": used, "left": max(limit - used, 0), "resets_in": int(end - self._clock()) + 1}
        return json.dumps(state)

    def _quota_reset(self, name: str, args: List[str]) -> Optional[str]:
        return None if self._quotas.pop(name, None) is None else "QUOTA_OK"

    def _quota_exists(self, name: str, args: List[str]) -> str:
        return "NOT_FOUND" if self._quota(name) is None else "EXISTS"

    def _sliding_hit(self, name: str, args: List[str]) -> str:
        limit, length, now = int(args[0]), float(args[1].rstrip("s")), self._clock()
        hits = [at for at in self._hits.get(name, ()) if at > now - length]
        self._hits[name] = hits
        if self.mode == MEMORY and len(hits) >= limit:
            return f"LIMITED {hits[0] + length - now if hits else -1:.3f}"
        hits.append(now)
        return f"OK {limit - len(hits)}"

    def _holder(self, name: str) -> Optional[Tuple[str, int, float]]:
        held = self._locks.get(name)
        return None if held is None or held[2] <= self._clock() else held

    def _lock_take(self, name: str, args: List[str]) -> str:
        owner, length = args[0], float(args[1].rstrip("ms")) / 1000
        held, now = self._holder(name), self._clock()
        if held is not None and held[0] != owner and self.mode == MEMORY:
            return f"HELD {int(held[2] - now) + 1}"
        fence = held[1] if held is not None and held[0] == owner else self._number()
        self._locks[name] = (owner, fence, now + length)
        return f"OK {fence}"

    def _lock_renew(self, name: str, args: List[str]) -> str:
        held = self._holder(name)
        return "NOT_OWNER" if held is None or held[0] != args[0] else self._lock_take(name, args)

    def _lock_release(self, name: str, args: List[str]) -> str:
        held = self._holder(name)
        if held is None or held[0] != args[0]:
            return "NOT_OWNER" if self.mode == MEMORY else "OK"
        del self._locks[name]
        return "OK"

    def _lock_holder(self, name: str, args: List[str]) -> Optional[str]:
        held = self._holder(name)
        return None if held is None else held[0]

    def _lock_exists(self, name: str, args: List[str]) -> str:
        return "NOT_FOUND" if self._holder(name) is None else "EXISTS"

    _DO: ClassVar[Dict[str, Callable[[Any, Command], Reply]]] = {
        **dict.fromkeys((w.GET, w.ASK, w.LOOK, w.GAT), _get),
        w.CLAIM: lambda self, command: Reply("EN"),
        w.DELETE: _delete,
        w.TOUCH: _touch,
        w.INCR: _count,
        w.DECR: _count,
        w.INVALIDATE: _invalidate,
        w.TAG_NUMBER: lambda self, command: Reply("VA", b"%d" % self._tags.get(command.key, 0)),
        w.FLUSH: _flush,
        w.VERSION: lambda self, command: Reply("VERSION", line=b"VERSION memory"),
        w.STATS: lambda self, command: Reply("STATS"),
        w.CALL: _call,
    }
    _CALLS: ClassVar[Dict[Tuple[str, ...], Callable[[Any, str, List[str]], Optional[str]]]] = {
        ("quota", "take"): _quota_take,
        ("quota", "peek"): _quota_peek,
        ("quota", "reset"): _quota_reset,
        ("quota", "exists"): _quota_exists,
        ("sliding", "hit"): _sliding_hit,
        ("lock", "take"): _lock_take,
        ("lock", "renew"): _lock_renew,
        ("lock", "release"): _lock_release,
        ("lock", "holder"): _lock_holder,
        ("lock", "exists"): _lock_exists,
    }


class MemoryTransport:
    """The transport of a blocking cache."""

    has_tags = True
    name = "memory"

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self.store = store
        self._metrics = metrics

    def scope(self) -> Scope:
        """CAS numbers are valid always."""
        return _SCOPE

    def one(self, command: Command) -> Any:
        """The reply to a command, or an error."""
        reply = self.store.do(command)
        outcome = "hit" if reply.kind == "VA" else "miss" if reply.kind in ("EN", "END") else "done"
        error = w.error_of(reply, self.name)
        self._metrics.request(self.name, command.verb, 0.0, outcome if error is None else "error")
        return reply if error is None else error

    def batch(self, commands: Sequence[Command]) -> Replies:
        """A reply or error for each."""
        return [self.one(command) for command in commands]

    def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The same commands to the only server."""
        return [(self.name, self.batch(commands))]

    def forget(self) -> None:
        """In a process that was forked: the lock may be held by a thread of the parent."""
        self.store.renew_lock()

    def close(self) -> None:
        """Nothing is open."""


class _Done:
    """Replies that are there."""

    def __init__(self, replies: Replies) -> None:
        self.future: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        self.future.set_result(replies)

    def again(self, raw: Replies) -> None:
        """It need not be sent again."""

    def replies(self, raw: Replies) -> Replies:
        """In the order of the commands."""
        return raw


class AsyncMemoryTransport:
    """The transport of a cache of asyncio."""

    has_tags = True

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._blocking = MemoryTransport(store, metrics)
        self._tasks: Set[asyncio.Task[Any]] = set()
        self.scope = self._blocking.scope
        self.forget = self._blocking.forget

    def start(self, commands: Sequence[Command]) -> _Done:
        """Replies that are there at once."""
        return _Done(self._blocking.batch(commands))

    async def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The same commands to the only server."""
        return self._blocking.everywhere(commands)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A task that goes on by itself."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Nothing is open."""
