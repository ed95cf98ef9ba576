"""The driver of blocking programs: does what the machines say."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Generator, List, Optional, Protocol, Sequence, Tuple, Union

from ._calls import ToAll
from ._connection import Servers
from ._errors import CacheError
from ._machine import Batch, Invoke, Replies, Sleep, Spawn, Wait
from ._wire import Command, Reply, Scope


class Transport(Protocol):
    """Connections of a blocking program."""

    has_tags: bool

    def scope(self) -> Optional[Scope]:
        """Where CAS numbers are valid that come with replies to what is sent from now on."""

    def batch(self, commands: Sequence[Command]) -> Replies:
        """A reply or error for each."""

    def one(self, command: Command) -> Union[Reply, CacheError]:
        """The reply to a read."""

    def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The same commands to every server: its name and replies."""

    def forget(self) -> None:
        """In a process that was forked."""

    def close(self) -> None:
        """Closes what is open."""


class OwnServers:
    """A transport of this package's own connections."""

    has_tags = True

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.scope: Callable[[], Scope] = servers.scope
        self.batch = servers.batch
        self.one = servers.one
        self.forget = servers.forget
        self.close = servers.close

    def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """See :class:`Transport`."""
        names = [node.name for node in self.servers.nodes]
        return list(zip(names, self.servers.all_nodes(commands)))


def run(transport: Transport, machine: Generator[Any, Any, Any]) -> Any:
    """Runs a machine to its end."""
    try:
        op = machine.send(None)
        while True:
            try:
                kind = type(op)
                result: Any = None
                if kind is Batch:
                    result = transport.batch(op.commands)
                elif kind is Invoke:
                    result = op.function(*op.args)
                elif kind is Sleep:
                    time.sleep(op.seconds)
                elif kind is Wait:
                    op.waiter.event.wait(op.seconds)
                elif kind is ToAll:
                    result = transport.everywhere(op.commands)
                elif kind is Spawn:
                    _spawn(transport, op.machine)
            except (StopIteration, GeneratorExit) as stop:
                # Inside a generator it would be its end.
                raised = RuntimeError(f"the function has raised {type(stop).__name__}")
                raised.__cause__ = stop
                op = machine.throw(raised)
            except BaseException as error:
                op = machine.throw(error)
            else:
                op = machine.send(result)
    except StopIteration as end:
        return end.value


def _spawn(transport: Transport, machine: Generator[Any, Any, Any]) -> None:
    def quiet() -> None:
        try:
            run(transport, machine)
        except (CacheError, OSError):
            return

    try:
        threading.Thread(target=quiet, name="cattlegrid-end", daemon=True).start()
    except RuntimeError:
        # The interpreter is about to end.
        quiet()


__all__ = ["OwnServers", "Reply", "Transport", "Union", "run"]
