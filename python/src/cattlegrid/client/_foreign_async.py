"""emcache as a connection under asyncio, and any object with its methods.

As over other libraries' clients keys are locked as over memcached, there are no tags, and a result costs one round trip
more. emcache refuses the client flags of this package, so that values have them before their bytes: only this package
reads those.
"""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, List, Optional, Sequence, Set, Tuple, Union

from ._errors import CacheError, ConnectionFailed, NoTags, ServerBusy, TimedOut, UsageError
from ._foreign import tagged, untagged, value_reply
from ._machine import Replies
from ._streams import Pending
from ._wire import (
    ADD,
    APPEND,
    ASK,
    CALL,
    CAS,
    CLAIM,
    DECR,
    DELETE,
    GAT,
    GET,
    INCR,
    LOOK,
    PREPEND,
    REPLACE,
    SET,
    TOUCH,
    Command,
    Reply,
)

_READS = (GET, ASK, LOOK)


class Emcache:
    """A client with the methods of emcache."""

    has_tags = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self.name = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
        self._tasks: Set[asyncio.Task[Any]] = set()

    def scope(self) -> None:
        """No CAS number is known to be valid."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that goes on by itself."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self, commands: Sequence[Command]) -> Pending:
        """Sends commands."""
        return Pending(None, self.spawn(self.batch(commands)))

    async def batch(self, commands: Sequence[Command]) -> Replies:
        """A reply or error for each."""
        if len(commands) > 1 and all(command.verb in _READS for command in commands):
            found = await self._guarded(
                self._client.gets_many([command.key for command in commands], return_flags=True)
            )
            if isinstance(found, CacheError):
                return [found] * len(commands)
            items = [found.get(command.key) for command in commands]
            return [Reply("END") if item is None else _reply(item) for item in items]
        return list(await asyncio.gather(*(self._guarded(self._one(command)) for command in commands)))

    async def _one(self, command: Command) -> Union[Reply, CacheError]:
        client, verb, key = self._client, command.verb, command.key
        if command.tags:
            return NoTags()
        if verb in _READS:
            item = await client.gets(key, return_flags=True)
            return Reply("END") if item is None else _reply(item)
        if verb == CAS or (verb == SET and command.cas is not None):
            data = tagged(command.data, command.flags)
            work = client.cas(key, data, command.cas, exptime=_time(command.exptime))
            return Reply(await self._stored(work, "EXISTS"))
        if verb in (SET, ADD, REPLACE):
            method = getattr(client, verb)
            data = tagged(command.data, command.flags)
            work = method(key, data, exptime=_time(command.exptime))
            return Reply(await self._stored(work, "NOT_STORED"))
        if verb in (APPEND, PREPEND):
            return Reply(await self._stored(getattr(client, verb)(key, command.data), "NOT_STORED"))
        if verb == DELETE:
            # With a CAS number it would give a lease up, of which there is none.
            return Reply("NOT_FOUND" if command.head else await self._found(client.delete(key), "DELETED"))
        if verb == TOUCH:
            return Reply(await self._found(client.touch(key, _time(command.exptime)), "TOUCHED"))
        if verb in (INCR, DECR):
            return await self._count(command)
        if verb == GAT:
            item = await client.gats(_time(command.exptime), key, return_flags=True)
            return Reply("END") if item is None else _reply(item)
        if verb == CALL:
            item = await client.get(key)
            return Reply("END") if item is None else Reply("VA", bytes(item.value))
        if verb == CLAIM:
            return Reply("EN")
        return UsageError(f"{verb} is not possible over {self.name}: ask that client")

    async def _count(self, command: Command) -> Reply:
        method = self._client.increment if command.verb == INCR else self._client.decrement
        try:
            return Reply("NUMBER", b"%d" % await method(command.key, int(command.head)))
        except Exception as error:
            if "NotFound" in type(error).__name__:
                return Reply("NOT_FOUND")
            raise

    @staticmethod
    async def _stored(work: Any, else_: str) -> str:
        try:
            await work
        except Exception as error:
            name, text = type(error).__name__, str(error)
            if "NotFound" in name or "NOT_FOUND" in text:
                return "NOT_FOUND"
            if "EXISTS" in text:
                return "EXISTS"
            if "NotStored" in name or "NOT_STORED" in text:
                return else_
            raise
        return "STORED"

    @staticmethod
    async def _found(work: Any, done: str) -> str:
        try:
            await work
        except Exception as error:
            if "NotFound" in type(error).__name__:
                return "NOT_FOUND"
            raise
        return done

    async def _guarded(self, work: Any) -> Any:
        try:
            return await work
        except CacheError as error:
            return error
        except asyncio.TimeoutError:
            return TimedOut(self.name, 0.0)
        except Exception as error:
            text = str(error) or type(error).__name__
            if "too large" in text.lower():
                return ServerBusy(self.name, "SERVER_ERROR object too large for cache")
            return ConnectionFailed(self.name, text)

    async def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """Commands to all servers are not possible."""
        raise UsageError(f"commands to all servers are not possible over {self.name}: ask that client")

    def forget(self) -> None:
        """The client is its owner's."""
        self._tasks = set()

    async def close(self) -> None:
        """The client is its owner's; what runs by itself is waited for."""
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def _reply(item: Any) -> Reply:
    if item.flags:
        return value_reply((bytes(item.value), item.flags, item.cas))
    return value_reply(untagged(bytes(item.value), item.cas))


def _time(exptime: int) -> int:
    return -1 if exptime == 30 * 24 * 60 * 60 + 1 else exptime


def transport_of(client: Any) -> Emcache:
    """The transport over another library's client. Raises :class:`UsageError`."""
    missing = [
        name
        for name in ("gets", "gets_many", "add", "cas", "set", "delete")
        if not callable(getattr(client, name, None))
    ]
    if missing:
        raise UsageError(
            f"{type(client).__name__} is neither addresses of servers nor a client with the methods of emcache: it "
            "has no " + ", ".join(missing)
        )
    kind: Optional[str] = type(client).__module__.partition(".")[0]
    if kind in ("pymemcache", "pylibmc", "memcache"):
        raise UsageError(f"{type(client).__name__} blocks: give AsyncCache addresses, or a client of emcache")
    return Emcache(client)
