"""Connections to servers under asyncio: streams of this package's own.

Commands of many tasks share one connection to each server and are sent together; a request that the server holds has a
connection of its own. emcache is not used underneath, since it has no meta commands and no held requests.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import threading
import time
from typing import Any, Callable, Coroutine, Deque, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ._connection import BACK_OFF, Node, Settings, Watcher, count_connection, made, outcome_of
from ._errors import CacheError, ConnectionFailed, NoTags, ProtocolError, Refused, TimedOut, Unavailable
from ._machine import Replies
from ._ring import Route
from ._servers import Address
from ._wire import (
    ASK,
    META,
    NOT_SENT,
    PROBE,
    READS,
    TEXT,
    Broken,
    Command,
    Parser,
    Reply,
    Scope,
    breaks,
    check,
    encode,
    error_of,
)

ASK_AGAIN = 0.1
"""Seconds between questions when all waiting connections are in use."""


class Group:
    """Commands that were sent together, and their replies as they come."""

    __slots__ = ("_left", "deadline", "detached", "future", "has_begun", "replies")

    def __init__(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.deadline = 0.0
        """When the first bytes must have come."""
        self.replies: List[Any] = [None] * count
        self._left = count
        self.future: asyncio.Future[List[Any]] = loop.create_future()
        self.detached: Optional[asyncio.Future[List[Any]]] = None
        self.has_begun = False
        """Whether a reply has come."""

    def put(self, at: int, reply: Any) -> None:
        """A reply or an error."""
        self.replies[at] = reply
        self._left -= 1
        if not self._left:
            if not self.future.done():
                self.future.set_result(self.replies)
            elif self.detached is not None and not self.detached.done():
                self.detached.set_result(self.replies)

    def detach(self) -> asyncio.Future[List[Any]]:
        """The replies, after the task that has waited for them was cancelled."""
        self.detached = self.future.get_loop().create_future()
        if not self._left:
            self.detached.set_result(self.replies)
        return self.detached


class _Slot(NamedTuple):
    command: Command
    opaque: int
    group: Group
    at: int


class Stream(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: str, timeout: float, meta: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.timeout = timeout
        self.meta = meta
        self.loop = loop
        self.number = count_connection()
        self.is_open = True
        self._opaque = 0
        self._parser = Parser()
        self._slots: Deque[_Slot] = collections.deque()
        self._transport: Any = None
        self._timer: Optional[asyncio.TimerHandle] = None
        self._heard = 0.0
        """When the last bytes came."""
        self._error: CacheError = ConnectionFailed(server, "the server has closed the connection")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Optional[BaseException]) -> None:
        """See :class:`asyncio.Protocol`."""
        if isinstance(exc, OSError):
            self._error = ConnectionFailed(self.server, exc.strerror or str(exc))
        self._end()

    def eof_received(self) -> bool:
        """See :class:`asyncio.Protocol`."""
        return False

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        parser, slots = self._parser, self._slots
        parser.feed(data)
        try:
            while slots:
                command, opaque, group, at = slots[0]
                reply = parser.next(command)
                if reply is None:
                    return
                wrong = check(command, self.meta, opaque, reply, self.server)
                if wrong is not None:
                    self.close(wrong)
                    return
                slots.popleft()
                group.has_begun = True
                group.put(at, reply)
                if reply.kind == "ERROR" and breaks(reply):
                    self.close(ConnectionFailed(self.server, "the connection was closed after an error of the server"))
                    return
            if not parser.is_empty:
                self.close(ProtocolError(self.server, "not a reply to any command"))
        except Broken as error:
            self.close(ProtocolError(self.server, f"not a reply to the command: {error}"))
        finally:
            # Reading replies took time of this process, not of the server.
            self._heard = self.loop.time()

    def send(self, commands: Sequence[Command], wait: float = 0.0) -> Group:
        """Sends commands."""
        group = Group(len(commands), self.loop)
        if not self.is_open:
            for at in range(len(commands)):
                group.put(at, self._error)
            return group
        first = self._opaque
        self._opaque = (first + len(commands)) & 0x3FFF_FFFF
        out = [encode(command, self.meta, first + at) for at, command in enumerate(commands)]
        for at, command in enumerate(commands):
            self._slots.append(_Slot(command, first + at, group, at))
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._limit(group, self.timeout + wait)
        return group

    def send_raw(self, data: bytes, command: Command) -> Group:
        """Sends other bytes, whose reply is that of this command."""
        group = Group(1, self.loop)
        self._slots.append(_Slot(command, -2, group, 0))
        self._transport.write(data)
        self._limit(group, self.timeout)
        return group

    def _limit(self, group: Group, seconds: float) -> None:
        """Its time begins now: making and writing the commands took time of this process, not of the server."""
        group.deadline = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_at(group.deadline, self._check_time)

    def _check_time(self, has_looked: bool = False) -> None:
        self._timer = None
        if not self._slots or not self.is_open:
            return
        # Of many replies, or a long one, each byte is a sign of life.
        deadline = max(self._slots[0].group.deadline, self._heard + self.timeout)
        if self.loop.time() < deadline - 0.0005:
            self._timer = self.loop.call_at(deadline, self._check_time)
        elif not has_looked:
            # The loop may have had other work, or no processor, and some loops run timers before they read what has come.
            self._timer = self.loop.call_later(0, self._check_time, True)
        else:
            self.close(TimedOut(self.server, self.timeout))

    def close(self, error: Optional[CacheError] = None) -> None:
        """Closes it; what is under way fails."""
        if error is not None:
            self._error = error
        if self._transport is not None:
            # Its loop may have ended.
            with contextlib.suppress(RuntimeError):
                self._transport.abort()
        self._end()

    def _end(self) -> None:
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        slots, self._slots = self._slots, collections.deque()
        for slot in slots:
            slot.group.put(slot.at, self._error)

    def drop(self, is_child: bool) -> None:
        """In a process that was forked, or after its loop: closes this process's end without a word to the server, and
        without touching the loop."""
        self.is_open = False
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        sock = getattr(sock, "_sock", sock)
        with contextlib.suppress(OSError):
            if isinstance(sock, socket.socket):
                sock.close()
            elif sock is not None and is_child and not self._transport.is_closing():
                # Of uvloop, whose sockets have no close, and whose loops end with their connections. The number stays
                # in use until uvloop closes it.
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, sock.fileno(), inheritable=False)
                os.close(nothing)


class AsyncNode:
    """A server."""

    def __init__(self, address: Address, settings: Settings, watcher: Watcher, waiting_max: int) -> None:
        self.address = address
        self.name = address.name
        self.settings = settings
        self.watcher = watcher
        self.main: Optional[Stream] = None
        self._waiting_max = waiting_max
        self._waiting: List[Stream] = []
        self._waiting_count = 0
        self._connecting: Optional[asyncio.Task[None]] = None
        self._early: List[Tuple[Sequence[Command], asyncio.Future[Union[Group, CacheError]]]] = []
        """What waits for the shared connection, in the order in which it must be sent."""
        self._next_try = 0.0
        self._wait = 0.0
        self._last = ""

    def forget(self, is_child: bool) -> None:
        """In a process that was forked, or after its loop."""
        streams = [*self._waiting, *([self.main] if self.main else [])]
        self.main, self._waiting, self._waiting_count, self._connecting, self._early = None, [], 0, None, []
        for stream in streams:
            stream.drop(is_child)

    def close(self) -> None:
        """Closes the connections."""
        streams = [*self._waiting, *([self.main] if self.main else [])]
        self.main, self._waiting, self._waiting_count = None, [], 0
        for stream in streams:
            stream.close()

    async def _send(self, commands: Sequence[Command]) -> Union[Group, CacheError]:
        """Sends on the shared connection; callers share the making of it."""
        stream = self.main
        if stream is not None and stream.is_open:
            return _begin(stream, commands)
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[Union[Group, CacheError]] = loop.create_future()
        self._early.append((commands, begun))
        if self._connecting is None or self._connecting.done():
            self._connecting = loop.create_task(self._connect_main())
        return await begun

    async def _connect_main(self) -> None:
        result: Union[Stream, CacheError]
        try:
            result = await self._new()
        except CacheError as error:
            result = error
        except BaseException:
            early, self._early = self._early, []
            for _, begun in early:
                begun.cancel()
            raise
        early, self._early = self._early, []
        # All of it before anything else is sent: what was asked for first is sent first.
        for commands, begun in early:
            if not begun.done():
                begun.set_result(_begin(result, commands) if isinstance(result, Stream) else result)
        if isinstance(result, Stream):
            self.main = result

    async def _new(self) -> Stream:
        left = self._next_try - time.monotonic()
        if left > 0:
            raise Unavailable(self.name, self._last, left)
        limit = self.settings.connect_timeout
        try:
            stream = await asyncio.wait_for(self._open(), limit)
        except asyncio.TimeoutError:
            error: CacheError = TimedOut(self.name, limit)
        except CacheError as failure:
            error = failure
        except OSError as failure:
            error = ConnectionFailed(self.name, failure.strerror or str(failure))
        else:
            self._wait = self._next_try = 0.0
            self.watcher.connection(self.name, None)
            return stream
        self._wait = min(max(self._wait * 2, BACK_OFF[0]), BACK_OFF[1])
        self._last = str(error).partition(": ")[2] or str(error)
        self._next_try = time.monotonic() + self._wait
        self.watcher.connection(self.name, str(error))
        raise error

    async def _open(self) -> Stream:
        settings = self.settings
        stream = await self._dial(settings.protocol != TEXT)
        if settings.protocol is not None:
            return stream
        try:
            reply = (await stream.send([Command(PROBE, b"")]).future)[0]
            if isinstance(reply, ConnectionFailed):
                # Some proxies close the connection for a command that they do not know.
                return await self._dial(False)
            if isinstance(reply, CacheError):
                raise reply
            if reply.kind == "ERROR":
                stream.close()
                return await self._dial(False)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _dial(self, meta: bool) -> Stream:
        loop = asyncio.get_running_loop()
        address, settings = self.address, self.settings

        def make() -> Stream:
            return Stream(self.name, settings.timeout, meta, loop)

        if address.path is not None:
            _, stream = await loop.create_unix_connection(make, address.path)
        else:
            tls = settings.tls
            host = address.host if tls is not None else None
            _, stream = await loop.create_connection(make, address.host, address.port, ssl=tls, server_hostname=host)
        if settings.username is not None:
            try:
                data = f"{settings.username} {settings.password or ''}".encode()
                command = Command("set", b"auth", data=data)
                stream.meta, is_meta = False, stream.meta
                reply = (await stream.send_raw(b"set auth 0 0 %d\r\n%b\r\n" % (len(data), data), command).future)[0]
                stream.meta = is_meta
                error = reply if isinstance(reply, CacheError) else error_of(reply, self.name)
                if error is not None:
                    raise error
            except BaseException:
                stream.close()
                raise
        return stream

    async def run(self, commands: Sequence[Command]) -> Replies:
        """Replies or errors. Sent again once if they are reads and the connection breaks before its first reply."""
        first = commands[0]
        if first.wait > 0 and len(commands) == 1:
            return await self._hold(first)
        is_read = all(command.verb in READS for command in commands)
        began = time.monotonic()
        scope = first.scope
        for is_last in (False, True):
            if scope is not None:
                stream = self.main
                if stream is None or not stream.is_open or stream.number > scope.connections:
                    return [NOT_SENT] * len(commands)
                group = _begin(stream, commands)
            else:
                group = await self._send(commands)
            if isinstance(group, CacheError):
                return self.finish(commands, [group] * len(commands), began)
            replies = await group.future
            if is_read and not is_last and not group.has_begun and isinstance(replies[0], ConnectionFailed):
                continue
            return self.finish(commands, replies, began)
        raise AssertionError

    async def _hold(self, command: Command) -> Replies:
        """A request that the server may hold, on a connection of its own."""
        began = time.monotonic()
        while self._waiting and not self._waiting[-1].is_open:
            self._waiting.pop()
            self._waiting_count -= 1
        if self._waiting:
            stream = self._waiting.pop()
        elif self._waiting_count >= self._waiting_max:
            await asyncio.sleep(min(ASK_AGAIN, command.wait))
            return await self.run([_not_held(command)])
        else:
            self._waiting_count += 1
            try:
                stream = await self._new()
            except CacheError as error:
                self._waiting_count -= 1
                return self.finish([command], [error], began)
            except BaseException:
                self._waiting_count -= 1
                raise
        try:
            replies = await stream.send([command], command.wait).future
        except BaseException:
            # Closed, it holds nothing, and what is granted to it is free.
            stream.close()
            self._waiting_count -= 1
            raise
        if stream.is_open:
            self._waiting.append(stream)
        else:
            self._waiting_count -= 1
        return self.finish([command], replies, began)

    def finish(self, commands: Sequence[Command], replies: List[Any], began: float) -> Replies:
        """Replies with the errors that servers have sent."""
        out: Replies = []
        took = time.monotonic() - began
        for command, reply in zip(commands, replies):
            now = reply
            if isinstance(reply, Reply) and reply.kind == "ERROR":
                now = error_of(reply, self.name)
                if command.tags and isinstance(now, Refused) and "flag" in now.line:
                    now = NoTags()
            out.append(now)
            self.watcher.request(self.name, command.verb, took, outcome_of(now))
        return out


def _begin(stream: Stream, commands: Sequence[Command]) -> Union[Group, CacheError]:
    """Sends commands, unless the connection cannot take them."""
    unfit = Node.unfit(commands, stream.meta)
    return stream.send(commands) if unfit is None else unfit


def _not_held(command: Command) -> Command:
    head = command.head.replace(b" Pw%d" % round(command.wait * 1000), b" Pw0", 1)
    return Command(ASK, command.key, head)


class Pending:
    """What is under way for a task; it goes on if that is cancelled."""

    __slots__ = ("_began", "_commands", "_group", "_node", "_servers", "_task", "future")

    def __init__(
        self,
        group: Optional[Group],
        task: Optional[asyncio.Task[Replies]],
        servers: Optional[AsyncServers] = None,
        node: Optional[AsyncNode] = None,
        commands: Sequence[Command] = (),
    ) -> None:
        self._group = group
        self._task = task
        self._servers = servers
        self._node = node
        self._commands = commands
        self._began = time.monotonic()
        self.future: Any
        if group is not None:
            self.future = group.future
        else:
            assert task is not None
            self.future = asyncio.shield(task)

    def replies(self, raw: List[Any]) -> Replies:
        """The replies to commands from what the future has brought."""
        return raw if self._node is None else self._node.finish(self._commands, raw, self._began)

    def again(self, raw: List[Any]) -> Optional[Pending]:
        """A read whose connection broke before its reply is sent again."""
        if self._group is None or self._servers is None or not isinstance(raw[0], ConnectionFailed):
            return None
        if self._group.has_begun or self._commands[0].verb not in READS:
            return None
        return Pending(None, self._servers.spawn(self._servers.batch(self._commands)))

    def detach(self) -> Any:
        """A future of the same, after the first was cancelled."""
        return self._task if self._group is None else self._group.detach()


class Home:
    """What belongs to one event loop: its connections, and the tasks that go on by themselves."""

    __slots__ = ("nodes", "single", "tasks")

    def __init__(self, nodes: List[AsyncNode], is_single: bool) -> None:
        self.nodes = nodes
        self.single = nodes[0] if is_single else None
        """The server of all keys."""
        self.tasks: Set[asyncio.Task[Any]] = set()

    def forget(self, is_child: bool) -> None:
        """In a process that was forked, or after its loop."""
        self.tasks = set()
        for node in self.nodes:
            node.forget(is_child)


class AsyncServers:
    """All servers, and which has a key. Each event loop has connections of its own."""

    has_tags = True

    def __init__(
        self,
        addresses: Sequence[Address],
        route: Route,
        settings: Settings,
        watcher: Watcher,
        flush_on_return: bool,
        waiting_max: int,
    ) -> None:
        self.route = route
        self.settings = settings
        self.watcher = watcher
        self._addresses = list(addresses)
        self._waiting_max = waiting_max
        self._flushes = flush_on_return
        self._scope = Scope((made(), route.changes))
        self._is_single = len(self._addresses) == 1 and not route.ejects
        self._homes: Dict[asyncio.AbstractEventLoop, Home] = {}
        self.on_end: Callable[[asyncio.AbstractEventLoop], None] = lambda loop: None
        """Is told of loops that were closed."""
        self._lock = threading.Lock()

    def _here(self) -> Home:
        """That of the loop that runs."""
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        return self._enter(loop) if home is None else home

    def _enter(self, loop: asyncio.AbstractEventLoop) -> Home:
        """Programs such as a WSGI server with asynchronous views make a loop for each request: those that are closed make
        room for the next."""
        nodes = [AsyncNode(each, self.settings, self.watcher, self._waiting_max) for each in self._addresses]
        home = Home(nodes, self._is_single)
        with self._lock:
            ended = [each for each in self._homes if each.is_closed()]
            gone = [self._homes.pop(each) for each in ended]
            self._homes[loop] = home
        for each in gone:
            each.forget(is_child=False)
        for place in ended:
            self.on_end(place)
        return home

    def scope(self) -> Scope:
        """Where CAS numbers are valid that come with replies to what is sent from now on."""
        now = made()
        scope = self._scope
        if scope[0] != now or scope[1] != self.route.changes:
            scope = self._scope = Scope((now, self.route.changes))
        return scope

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that goes on by itself."""
        task = asyncio.get_running_loop().create_task(work)
        tasks = self._here().tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def start(self, commands: Sequence[Command]) -> Pending:
        """Sends commands, each to the server of its key."""
        node = self._here().single
        if node is not None and len(commands) == 1:
            command, stream = commands[0], node.main
            is_plain = (
                command.wait == 0
                and command.scope is None
                and (not command.tags or (stream is not None and stream.meta))
            )
            if stream is not None and stream.is_open and is_plain:
                return Pending(stream.send(commands), None, self, node, commands)
        return Pending(None, self.spawn(self.batch(commands)))

    async def batch(self, commands: Sequence[Command]) -> Replies:
        """Replies or errors. All servers are asked at the same time."""
        groups: Dict[Tuple[int, Optional[Scope], bool], List[int]] = {}
        out: Replies = [NOT_SENT] * len(commands)
        for at, command in enumerate(commands):
            if command.scope is not None and command.scope[1] != self.route.changes:
                continue
            place = self._place(command.route or command.key)
            if place is None:
                names = ", ".join(address.name for address in self._addresses)
                out[at] = Unavailable(names, "all servers are ejected")
                continue
            groups.setdefault((place, command.scope, command.wait > 0), []).append(at)
        runs = [self._run(place, [commands[at] for at in places]) for (place, _, _), places in groups.items()]
        results = [await runs[0]] if len(runs) == 1 else await asyncio.gather(*runs)
        for places, replies in zip(groups.values(), results):
            for at, reply in zip(places, replies):
                out[at] = reply
        return out

    async def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The same commands to every server: its name and replies."""
        results = await asyncio.gather(*(self._run(place, commands) for place in range(len(self._addresses))))
        return [(address.name, replies) for address, replies in zip(self._addresses, results)]

    def _place(self, key: bytes) -> Optional[int]:
        if self._is_single:
            return 0
        if self.route.out:
            for place in self.route.due(time.monotonic()):
                self.spawn(self._probe(place))
        return self.route.place(key)

    async def _probe(self, place: int) -> None:
        node = self._here().nodes[place]
        node._next_try = 0.0
        node.close()
        replies = await node.run([Command("flush_all" if self._flushes else "version", b"")])
        if isinstance(replies[0], Reply) and self.route.returned(place):
            self.watcher.ejected(node.name, False)

    async def _run(self, place: int, commands: Sequence[Command]) -> Replies:
        node = self._here().nodes[place]
        replies = await node.run(commands)
        if self.route.ejects:
            if isinstance(replies[0], (ConnectionFailed, TimedOut, Unavailable)):
                if self.route.failed(place, time.monotonic()):
                    self.watcher.ejected(node.name, True)
            else:
                self.route.succeeded(place)
        return replies

    def forget(self) -> None:
        """In a process that was forked."""
        self._lock = threading.Lock()
        homes, self._homes = self._homes, {}
        for home in homes.values():
            home.forget(is_child=True)

    async def close(self) -> None:
        """Closes the connections of the loop that runs, when what runs by itself has ended."""
        home = self._here()
        tasks = [task for task in home.tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=self.settings.timeout)
        for node in home.nodes:
            node.close()
        with self._lock:
            self._homes.pop(asyncio.get_running_loop(), None)


__all__ = ["META", "AsyncServers", "Pending"]
