"""Blocking connections to servers: sockets of this package's own.

They are used in place of pymemcache because a held request needs a time of its own, requests to several servers are
under way at the same time, and replies are compared with the numbers of their commands. A connection is used by one
thread at a time, and closed whenever an exchange does not end as it should, whatever the reason, so that no reply is
ever taken for that of a later command.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import select
import socket
import ssl
import threading
import time
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from ._errors import CacheError, ConnectionFailed, NoTags, ProtocolError, Refused, TimedOut, Unavailable, UsageError
from ._machine import Replies
from ._ring import Route
from ._servers import Address
from ._wire import (
    ASK,
    INVALIDATE,
    LOOK,
    META,
    NOT_SENT,
    PROBE,
    READS,
    TAG_NUMBER,
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

BACK_OFF = (0.05, 5.0)
"""First and longest time in seconds for which a server that failed is not asked. It doubles."""
_SMALL = 32 * 1024
"""Requests of fewer bytes are sent before the first reply is read."""
_numbers = itertools.count(1)
_made = 0


class Settings(NamedTuple):
    """How servers are talked to."""

    timeout: float = 1.0
    connect_timeout: float = 1.0
    username: Optional[str] = None
    password: Optional[str] = None
    tls: Optional[ssl.SSLContext] = None
    protocol: Optional[str] = None
    """``meta``, ``text``, or None: seen from the server's first reply."""


class Watcher(Protocol):
    """Whom connections tell what happens to requests."""

    def request(self, server: str, command: str, took: float, outcome: str) -> None:
        """A request has ended."""

    def connection(self, server: str, error: Optional[str]) -> None:
        """A connection was made, or could not be made."""

    def ejected(self, server: str, is_out: bool) -> None:
        """A server was ejected, or has returned."""


def made() -> int:
    """Number of connections that this process has made."""
    return _made


def count_connection() -> int:
    """A number for a new connection, larger than that of any before it."""
    global _made
    _made = next(_numbers)
    return _made


class Timeouts:
    """Of one exchange: how long the server may be silent, and until when its first bytes have to come."""

    __slots__ = ("deadline", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.deadline = time.monotonic() + limit


class Lost(Exception):
    """A connection has ended. ``is_fresh``: nothing has come on it for this exchange."""

    def __init__(self, error: CacheError, is_fresh: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_fresh = is_fresh


class Connection:
    """One connection."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address = address
        self.server = address.name
        self.settings = settings
        self.number = count_connection()
        self.opaque = 0
        self.meta = settings.protocol != TEXT
        self.is_secure = settings.tls is not None
        self._parser = Parser()
        self._limit: Optional[float] = None
        self._sock = self._connect()
        try:
            self._authenticate()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        address, limit = self.address, self.settings.connect_timeout
        try:
            if address.path is not None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    sock.settimeout(limit)
                    sock.connect(address.path)
                except BaseException:
                    sock.close()
                    raise
                return sock
            sock = socket.create_connection((address.host, address.port), limit)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self.settings.tls is not None:
                    return self.settings.tls.wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
            return sock
        except socket.timeout:
            raise TimedOut(self.server, limit) from None
        except OSError as error:
            raise ConnectionFailed(self.server, error.strerror or str(error)) from error

    def _authenticate(self) -> None:
        if self.settings.username is None:
            return
        data = f"{self.settings.username} {self.settings.password or ''}".encode()
        command = Command("set", b"auth", data=data)
        limits = Timeouts(self.settings.connect_timeout)
        line = b"set auth 0 0 %d\r\n%b\r\n" % (len(data), data)
        self._send(line, limits)
        reply = self._read(command, limits)
        error = error_of(reply, self.server)
        if error is not None:
            raise error
        if reply.kind != "STORED":
            raise ProtocolError(self.server, f"not a reply to authentication: {reply.line[:100]!r}")

    def probe(self) -> bool:
        """Whether the server knows the meta commands. Raises :class:`Lost` if it has closed the connection."""
        limits = Timeouts(self.settings.timeout)
        command = Command(PROBE, b"")
        self._send(b"mn\r\n", limits)
        reply = self._read(command, limits)
        if reply.kind == "MN":
            return True
        if reply.kind == "ERROR":
            return False
        raise ProtocolError(self.server, f"not a reply to mn: {reply.line[:100]!r}")

    def is_open(self) -> bool:
        """Whether the connection is as it was left: the other side has neither closed it nor sent anything."""
        try:
            readable, _, _ = select.select((self._sock,), (), (), 0) if self._sock.fileno() < 1024 else self._polled()
        except (OSError, ValueError):
            return False
        return not readable

    def _polled(self) -> Tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return poll.poll(0), (), ()

    def close(self) -> None:
        """Closes it."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def fileno(self) -> int:
        """Of its socket."""
        return self._sock.fileno()

    def exchange(self, commands: Sequence[Command], limits: Timeouts) -> List[Reply]:
        """Sends commands and reads their replies. Raises :class:`Lost`, and then it must be closed."""
        opaque = self.opaque
        out = [encode(command, self.meta, opaque + at) for at, command in enumerate(commands)]
        self.opaque = (opaque + len(out)) & 0x3FFF_FFFF
        replies: List[Reply] = []
        if len(out) == 1 or sum(map(len, out)) <= _SMALL:
            self._send(out[0] if len(out) == 1 else b"".join(out), limits)
            for at, command in enumerate(commands):
                replies.append(self.read(command, opaque + at, limits))
            return replies
        self._exchange_large(commands, opaque, out, limits, replies)
        return replies

    def _exchange_large(
        self, commands: Sequence[Command], opaque: int, out: List[bytes], limits: Timeouts, replies: List[Reply]
    ) -> None:
        """Reads replies while it sends: a server that cannot send its replies reads no more."""
        rest = memoryview(b"".join(out))
        poll = select.poll()
        self._sock.settimeout(0)
        self._limit = 0
        poll.register(self._sock, select.POLLIN | select.POLLOUT)
        # Making the commands took time of this process, not of the server.
        deadline = time.monotonic() + limits.limit
        while len(replies) < len(commands):
            try:
                if rest:
                    with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                        rest = rest[self._sock.send(rest) :]
                        deadline = time.monotonic() + limits.limit
                    if not rest:
                        poll.modify(self._sock, select.POLLIN)
                try:
                    data = self._sock.recv(1 << 18)
                    if not data:
                        raise Lost(ConnectionFailed(self.server, "the server has closed the connection"), not replies)
                    self._parser.feed(data)
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    # What has come is read, however long this process had no turn.
                    if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                        raise Lost(TimedOut(self.server, limits.limit), not replies) from None
                    continue
            except OSError as error:
                raise Lost(ConnectionFailed(self.server, error.strerror or str(error)), not replies) from error
            self._take(commands, opaque, replies)
            # Nor is the time for reading replies the server's.
            deadline = time.monotonic() + limits.limit

    def _take(self, commands: Sequence[Command], opaque: int, replies: List[Reply]) -> None:
        while len(replies) < len(commands):
            at = len(replies)
            reply = self._next(commands[at])
            if reply is None:
                return
            self._check(commands[at], opaque + at, reply)
            replies.append(reply)

    def begin(self, commands: Sequence[Command], limits: Timeouts) -> int:
        """Sends commands: the number of the first. Their replies come by :meth:`read`. Raises :class:`Lost`."""
        opaque = self.opaque
        self.opaque = (opaque + len(commands)) & 0x3FFF_FFFF
        self._send(b"".join([encode(command, self.meta, opaque + at) for at, command in enumerate(commands)]), limits)
        return opaque

    def expect(self, limits: Timeouts) -> None:
        """The first bytes have to come before the deadline, or to be there: other servers may have used up the time."""
        self._set_limit(max(limits.deadline - time.monotonic(), 0.001))

    def read(self, command: Command, opaque: int, limits: Timeouts) -> Reply:
        """The reply to a command. Raises :class:`Lost`."""
        reply = self._read(command, limits)
        self._check(command, opaque, reply)
        return reply

    def _check(self, command: Command, opaque: int, reply: Reply) -> None:
        wrong = check(command, self.meta, opaque, reply, self.server)
        if wrong is not None:
            raise Lost(wrong, False)

    def _next(self, command: Command) -> Optional[Reply]:
        try:
            return self._parser.next(command)
        except Broken as error:
            raise Lost(ProtocolError(self.server, f"not a reply to the command: {error}"), False) from None

    def _set_limit(self, limit: float) -> None:
        if self._limit != limit:
            self._sock.settimeout(limit)
            self._limit = limit

    def _send(self, data: bytes, limits: Timeouts) -> None:
        self._set_limit(limits.limit)
        try:
            self._sock.sendall(data)
        except socket.timeout:
            raise Lost(TimedOut(self.server, limits.limit), False) from None
        except OSError as error:
            raise Lost(ConnectionFailed(self.server, error.strerror or str(error)), True) from error

    def _read(self, command: Command, limits: Timeouts) -> Reply:
        parser = self._parser
        reply = None if parser.is_empty else self._next(command)
        is_fresh = parser.is_empty
        while reply is None:
            try:
                data = self._sock.recv(65536 if parser.need < 131072 else 1 << 20)
            except socket.timeout:
                raise Lost(TimedOut(self.server, limits.limit), is_fresh) from None
            except OSError as error:
                raise Lost(ConnectionFailed(self.server, error.strerror or str(error)), is_fresh) from error
            if not data:
                raise Lost(ConnectionFailed(self.server, "the server has closed the connection"), is_fresh)
            is_fresh = False
            parser.feed(data)
            reply = self._next(command)
            if reply is None:
                self._set_limit(limits.limit)
        return reply


class Node:
    """A server, with the connections to it that are free."""

    def __init__(self, address: Address, settings: Settings, watcher: Watcher) -> None:
        self.address = address
        self.name = address.name
        self.settings = settings
        self.watcher = watcher
        self.meta: Optional[bool] = None if settings.protocol is None else settings.protocol == META
        self.knows_prefix: Optional[Tuple[bool, bool]] = None
        self._free: Deque[Connection] = collections.deque()
        self._next_try = 0.0
        self._wait = 0.0
        self._last = ""
        self._limit = settings.timeout

    def forget(self) -> None:
        """In a process that was forked: the connections are the parent's, and are closed here without a word to the
        server."""
        free, self._free = self._free, collections.deque()
        for connection in free:
            connection.close()

    def close(self) -> None:
        """Closes the connections that are free."""
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return

    def take(self, is_checked: bool, scope: Optional[Scope] = None) -> Optional[Connection]:
        """A connection of which this caller alone has the use. ``is_checked``: it is open. ``scope``: one of those that
        there were then, or None."""
        kept: List[Connection] = []
        try:
            while True:
                try:
                    connection = self._free.pop()
                except IndexError:
                    break
                if scope is not None and connection.number > scope.connections:
                    kept.append(connection)
                    continue
                if is_checked and not connection.is_open():
                    connection.close()
                    continue
                return connection
        finally:
            if kept:
                self._free.extend(reversed(kept))
        return None if scope is not None else self.connect()

    def give(self, connection: Connection) -> None:
        """The caller has no more use for it."""
        self._free.append(connection)

    def connect(self) -> Connection:
        """A new connection."""
        left = self._next_try - time.monotonic()
        if left > 0:
            raise Unavailable(self.name, self._last, left)
        try:
            connection = self._new()
        except Lost as lost:
            self.failed(str(lost.error))
            self.watcher.connection(self.name, str(lost.error))
            raise lost.error from None
        except CacheError as error:
            self.failed(str(error))
            self.watcher.connection(self.name, str(error))
            raise
        self._wait = self._next_try = 0.0
        self.watcher.connection(self.name, None)
        return connection

    def _new(self) -> Connection:
        connection = Connection(self.address, self.settings)
        if self.settings.protocol is not None:
            return connection
        try:
            self.meta = connection.meta = connection.probe()
        except Lost as lost:
            connection.close()
            if not isinstance(lost.error, ConnectionFailed):
                raise
            # Some proxies close the connection for a command that they do not know.
            connection = Connection(self.address, self.settings._replace(protocol=TEXT))
            self.meta = False
        except BaseException:
            connection.close()
            raise
        return connection

    def failed(self, message: str) -> None:
        """The server cannot be reached: it is not asked for a while."""
        self._wait = min(max(self._wait * 2, BACK_OFF[0]), BACK_OFF[1])
        self._last = message.partition(": ")[2] or message
        self._next_try = time.monotonic() + self._wait

    def run(self, commands: Sequence[Command]) -> Replies:
        """Replies or errors, in the order of the commands, which have one scope at most between them. Sent again once
        if they are reads and the connection breaks before its first reply."""
        first = commands[0]
        wait = max([command.wait for command in commands]) if len(commands) > 1 else first.wait
        is_read = all(command.verb in READS for command in commands) if len(commands) > 1 else first.verb in READS
        began = time.monotonic()
        for is_last in (False, True):
            try:
                connection = self.take(not is_read or wait > 0, first.scope)
            except CacheError as error:
                return self._all(commands, error, began)
            if connection is None:
                return [NOT_SENT] * len(commands)
            unfit = self.unfit(commands, connection.meta)
            if unfit is not None:
                self.give(connection)
                return self._all(commands, unfit, began)
            try:
                replies = connection.exchange(commands, Timeouts(self._limit + wait))
            except Lost as lost:
                connection.close()
                if is_read and lost.is_fresh and not is_last and isinstance(lost.error, ConnectionFailed):
                    self.close()
                    continue
                return self._all(commands, lost.error, began)
            except BaseException:
                connection.close()
                raise
            return self.finish(commands, connection, replies, began)
        raise AssertionError

    @staticmethod
    def unfit(commands: Sequence[Command], meta: bool) -> Optional[CacheError]:
        """Why these commands cannot be sent by text commands."""
        if meta:
            return None
        if any(command.tags or command.verb in (INVALIDATE, TAG_NUMBER) for command in commands):
            return NoTags()
        return None

    def finish(
        self, commands: Sequence[Command], connection: Connection, replies: List[Reply], began: float
    ) -> Replies:
        """After the replies."""
        out: Replies = []
        is_broken = False
        for command, reply in zip(commands, replies):
            if reply.kind == "ERROR":
                error = error_of(reply, self.name)
                assert error is not None
                is_broken = is_broken or breaks(reply)
                if command.tags and isinstance(error, Refused) and "flag" in error.line:
                    error = NoTags()
                out.append(error)
            else:
                out.append(as_look(reply) if command.verb == LOOK and not connection.meta else reply)
        if is_broken:
            connection.close()
        else:
            self.give(connection)
        self._tell(commands, out, began)
        return out

    def _all(self, commands: Sequence[Command], error: CacheError, began: float) -> Replies:
        out: Replies = [error] * len(commands)
        self._tell(commands, out, began)
        return out

    def _tell(self, commands: Sequence[Command], replies: Replies, began: float) -> None:
        took = time.monotonic() - began
        for command, reply in zip(commands, replies):
            self.watcher.request(self.name, command.verb, took, outcome_of(reply))


def as_look(reply: Reply) -> Reply:
    """The reply of a text command to a look."""
    return reply


def outcome_of(reply: Union[Reply, CacheError]) -> str:
    """``hit``, ``miss``, ``done``, ``error`` or ``timeout``."""
    if isinstance(reply, CacheError):
        return "timeout" if isinstance(reply, TimedOut) else "error"
    if reply.kind == "VA":
        return "miss" if (reply.won or reply.busy) and not reply.data else "hit"
    return "miss" if reply.kind in ("EN", "END") else "done"


class Servers:
    """All servers, and which has a key."""

    def __init__(
        self,
        addresses: Sequence[Address],
        route: Route,
        settings: Settings,
        watcher: Watcher,
        flush_on_return: bool = False,
    ) -> None:
        self.route = route
        self.settings = settings
        self.watcher = watcher
        self.nodes = [Node(address, settings, watcher) for address in addresses]
        self._flushes = flush_on_return
        self._scope = Scope((made(), route.changes))
        self._single = self.nodes[0] if len(self.nodes) == 1 and not route.ejects else None

    def scope(self) -> Scope:
        """Where CAS numbers are valid that come with replies to what is sent from now on."""
        scope = self._scope
        if scope[0] != _made or scope[1] != self.route.changes:
            scope = self._scope = Scope((_made, self.route.changes))
        return scope

    def node_of(self, key: bytes) -> Node:
        """The server of a key. Raises :class:`Unavailable`."""
        return self._single or self.nodes[self._place(key)]

    def _place(self, key: bytes) -> int:
        if self.route.out:
            for place in self.route.due(time.monotonic()):
                threading.Thread(target=self._probe, args=(place,), daemon=True).start()
        found = self.route.place(key)
        if found is None:
            names = ", ".join(node.name for node in self.nodes)
            raise Unavailable(names, "all servers are ejected")
        return found

    def _probe(self, place: int) -> None:
        node = self.nodes[place]
        verb = "flush_all" if self._flushes else "version"
        try:
            connection = Connection(node.address, self.settings)
        except (CacheError, Lost):
            return
        try:
            reply = connection.exchange([Command(verb, b"")], Timeouts(self.settings.timeout))[0]
        except Lost:
            return
        finally:
            connection.close()
        if reply.kind != "ERROR" or not self._flushes:
            node.close()
            if self.route.returned(place):
                self.watcher.ejected(node.name, False)

    def one(self, command: Command) -> Union[Reply, CacheError]:
        """The reply to a command for a key."""
        return self.batch([command])[0]

    def batch(self, commands: Sequence[Command]) -> Replies:
        """The replies to commands, each at the server of its key. All servers are asked at the same time."""
        if self._single is not None and len({command.scope for command in commands}) == 1:
            return self._run(self._single, 0, commands)
        groups: Dict[Tuple[int, Optional[Scope]], List[int]] = {}
        out: Replies = [NOT_SENT] * len(commands)
        for at, command in enumerate(commands):
            if command.scope is not None and command.scope[1] != self.route.changes:
                continue
            try:
                place = 0 if self._single is not None else self._place(command.route or command.key)
            except CacheError as error:
                out[at] = error
                continue
            groups.setdefault((place, command.scope), []).append(at)
        return self._grouped(commands, out, groups)

    def all_nodes(self, commands: Sequence[Command]) -> List[Replies]:
        """The same commands to every server: the replies of each."""
        everything = [command for _ in self.nodes for command in commands]
        groups: Dict[Tuple[int, Optional[Scope]], List[int]] = {}
        for place in range(len(self.nodes)):
            groups[place, None] = list(range(place * len(commands), (place + 1) * len(commands)))
        out = self._grouped(everything, [NOT_SENT] * len(everything), groups)
        return [out[at : at + len(commands)] for at in range(0, len(out), len(commands))]

    def _grouped(
        self, commands: Sequence[Command], out: Replies, groups: Dict[Tuple[int, Optional[Scope]], List[int]]
    ) -> Replies:
        if len(groups) == 1:
            (place, _), places = next(iter(groups.items()))
            for at, reply in zip(places, self._run(self.nodes[place], place, [commands[at] for at in places])):
                out[at] = reply
            return out
        # The first part of each is under way before the first reply is waited for.
        begun: List[Tuple[int, List[int], Callable[[], Replies]]] = []
        for (place, _), places in groups.items():
            begun.append((place, places, self._begin(place, [commands[at] for at in places])))
        for place, places, finish in begun:
            replies = finish()
            self._health(place, replies)
            for at, reply in zip(places, replies):
                out[at] = reply
        return out

    def _begin(self, place: int, commands: List[Command]) -> Callable[[], Replies]:
        node = self.nodes[place]
        size = sum(len(command.key) + len(command.data) + 64 for command in commands)
        if size > _SMALL or commands[0].wait > 0:
            return lambda: node.run(commands)
        began = time.monotonic()
        try:
            connection = node.take(True, commands[0].scope)
        except CacheError as error:
            failed: Replies = [error] * len(commands)
            return lambda: failed
        if connection is None:
            return lambda: [NOT_SENT] * len(commands)
        unfit = node.unfit(commands, connection.meta)
        if unfit is not None:
            node.give(connection)
            refused: Replies = [unfit] * len(commands)
            return lambda: refused
        open_connection = connection
        limits = Timeouts(self.settings.timeout)
        try:
            opaque = connection.begin(commands, limits)
        except Lost as lost:
            connection.close()
            lost_all: Replies = [lost.error] * len(commands)
            return lambda: lost_all

        def finish() -> Replies:
            try:
                open_connection.expect(limits)
                replies = [open_connection.read(command, opaque + at, limits) for at, command in enumerate(commands)]
            except Lost as lost:
                open_connection.close()
                return [lost.error] * len(commands)
            except BaseException:
                open_connection.close()
                raise
            return node.finish(commands, open_connection, replies, began)

        return finish

    def _run(self, node: Node, place: int, commands: Sequence[Command]) -> Replies:
        replies = node.run(commands)
        if self.route.ejects:
            self._health(place, replies)
        return replies

    def _health(self, place: int, replies: Replies) -> None:
        reply = replies[0]
        if isinstance(reply, (ConnectionFailed, TimedOut, Unavailable)):
            if self.route.failed(place, time.monotonic()):
                self.watcher.ejected(self.nodes[place].name, True)
        else:
            self.route.succeeded(place)

    def forget(self) -> None:
        """In a process that was forked."""
        for node in self.nodes:
            node.forget()

    def close(self) -> None:
        """Closes the connections that are free."""
        for node in self.nodes:
            node.close()


def tls_context(tls: Any) -> Optional[ssl.SSLContext]:
    """``True``: certificates are checked by the system's; a text: the file of the authority's certificate; or a
    context."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is True:
        return ssl.create_default_context()
    if isinstance(tls, str):
        return ssl.create_default_context(cafile=tls)
    raise UsageError(f"tls: True, a file of certificates or an ssl.SSLContext, not {tls!r}")


__all__ = ["ASK", "Connection", "Lost", "Node", "Servers", "Settings", "Timeouts", "Watcher", "made", "tls_context"]
