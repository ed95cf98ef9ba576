"""Errors. All derive from :class:`CacheError`.

Texts have no numbers that differ from one failure to the next, so that logs can group them: those are attributes.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple


class CacheError(Exception):
    """Anything that goes wrong between this client and its servers, or in how it is called. Errors can be pickled, as a
    pool of processes does, and copied."""

    def __reduce__(self) -> Tuple[Any, ...]:
        # Exceptions are made anew by their texts, and the classes below are made by other arguments.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: Any, args: Tuple[Any, ...]) -> CacheError:
    """An error that was pickled or copied, before it has its attributes."""
    error: CacheError = kind.__new__(kind)
    error.args = args
    return error


class UsageError(CacheError, ValueError):
    """A call that cannot be made so: what is wrong and what would be right."""


class InvalidKey(UsageError):
    """A key that no server takes: empty, longer than 250 bytes, or with blanks or control characters. Nothing was
    sent."""


class UnreadableValue(CacheError, ValueError):
    """A value that cannot be read with this serializer, or cannot be written."""

    def __init__(self, key: bytes, message: str) -> None:
        super().__init__(f"value of {key.decode('utf-8', 'backslashreplace')}: {message}")
        self.key = key


class ServerFailure(CacheError):
    """A server that cannot be asked. :attr:`server` names it."""

    def __init__(self, server: str, message: str) -> None:
        super().__init__(f"{server}: {message}")
        self.server = server


class ConnectionFailed(ServerFailure, ConnectionError):
    """The connection could not be made or has ended. Whether a command that was sent has been executed is not known.

    ``servers`` names all that were not reached, where a command goes to every server.
    """

    def __init__(self, server: str, message: str, servers: Optional[Sequence[str]] = None) -> None:
        super().__init__(server, message)
        self.servers = tuple(servers or (server,))


class TimedOut(ServerFailure, TimeoutError):
    """No reply within the timeout. :attr:`limit` is it, in seconds."""

    def __init__(self, server: str, limit: float) -> None:
        super().__init__(server, "no reply within the timeout")
        self.limit = limit


class Unavailable(ServerFailure):
    """The server has failed lately and is not asked before its back-off ends, or no server is available.

    :attr:`left`: seconds until it is asked again.
    """

    def __init__(self, server: str, message: str, left: float = 0.0) -> None:
        super().__init__(server, f"not asked before its back-off ends: {message}")
        self.left = left


class Refused(ServerFailure):
    """The server refuses the command: its line that begins with ``CLIENT_ERROR`` or ``ERROR``, as :attr:`line`."""

    def __init__(self, server: str, line: str) -> None:
        super().__init__(server, f"refuses the command: {line}")
        self.line = line


class ServerBusy(ServerFailure):
    """The server cannot do it now: its line that begins with ``SERVER_ERROR``, as :attr:`line`."""

    def __init__(self, server: str, line: str) -> None:
        super().__init__(server, f"cannot do it: {line}")
        self.line = line


class ProtocolError(ServerFailure):
    """Bytes that are no reply to what was sent. The connection was closed."""


class NoTags(CacheError):
    """A server has no tags: it is memcached, Cattlegrid without a rule file (which may be empty), or is asked by text
    commands."""

    def __init__(self) -> None:
        super().__init__(
            "not all servers have tags: they need Cattlegrid with a rule file, and a Cache that is given their "
            "addresses"
        )


class SettingsDiffer(CacheError):
    """The options of a namespacer differ from those of other processes with the same prefix."""
