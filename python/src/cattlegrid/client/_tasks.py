"""The driver of asyncio: does what the machines say.

A task that is cancelled gives up at once what it was granted: what it has sent is waited for, and the key freed, by a
task of its own, so that the cancelled one does not wait for the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any, Coroutine, Generator, List, Optional, Protocol, Sequence, Tuple

from ._calls import ToAll
from ._errors import CacheError
from ._machine import Batch, Ending, Grant, Invoke, Replies, Sleep, Spawn, Wait
from ._wire import Command, Scope


class Transport(Protocol):
    """Connections under asyncio."""

    has_tags: bool

    def scope(self) -> Optional[Scope]:
        """Where CAS numbers are valid that come with replies to what is sent from now on."""

    def start(self, commands: Sequence[Command]) -> Any:
        """Sends commands: a :class:`Pending`."""

    async def everywhere(self, commands: List[Command]) -> List[Tuple[str, Replies]]:
        """The same commands to every server: its name and replies."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A task that goes on by itself."""

    def forget(self) -> None:
        """In a process that was forked."""

    async def close(self) -> None:
        """Closes what is open."""


class LoopEvent:
    """What a task waits for."""

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._future: Optional[asyncio.Future[None]] = None

    def set(self) -> None:
        """Wakes: also a task of another loop, whose token was used in this one."""
        self._is_set = True
        future = self._future
        if future is not None:
            loop = future.get_loop()
            if asyncio._get_running_loop() is loop:
                self._wake()
            else:
                # It may have ended.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._wake)

    def clear(self) -> None:
        """Waits again."""
        self._is_set = False

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until it is set, this many seconds at most."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            # It may have been set by another thread in between.
            if not self._is_set:
                await self._future
        finally:
            timer.cancel()
            self._future = None


async def run(transport: Transport, machine: Generator[Any, Any, Any]) -> Any:
    """Runs a machine to its end."""
    try:
        op = machine.send(None)
        while True:
            kind = type(op)
            result: Any = None
            task: Any = None
            try:
                if kind is Batch:
                    pending = transport.start(op.commands)
                    try:
                        raw = await pending.future
                        again = pending.again(raw)
                        if again is not None:
                            pending = again
                            raw = await pending.future
                    except asyncio.CancelledError:
                        transport.spawn(finish(transport, machine, None, pending))
                        raise
                    result = pending.replies(raw)
                elif kind is Invoke:
                    task = asyncio.current_task()
                    result = op.function(*op.args)
                    if inspect.isawaitable(result):
                        result = await result
                elif kind is Wait:
                    await op.waiter.event.wait(op.seconds)
                elif kind is Sleep:
                    await asyncio.sleep(op.seconds)
                elif kind is ToAll:
                    result = await transport.everywhere(op.commands)
                elif kind is Spawn:
                    transport.spawn(_quiet(transport, op.machine))
            except asyncio.CancelledError as error:
                if kind is not Batch:
                    _throw(transport, machine, error)
                raise
            except (StopIteration, GeneratorExit) as stop:
                if type(stop) is GeneratorExit and (task is None or _current_task() is not task):
                    # No function has raised it: this task is dropped, after its loop was closed.
                    _drop(machine)
                    raise
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


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _drop(machine: Generator[Any, Any, Any]) -> None:
    """Lets a machine end where nothing can be sent any more."""
    with contextlib.suppress(StopIteration, GeneratorExit, RuntimeError):
        for _ in range(10):
            machine.throw(GeneratorExit())


def _throw(transport: Transport, machine: Generator[Any, Any, Any], error: BaseException) -> None:
    """Lets a machine end after a cancellation; what it sends is sent by a task of its own."""
    try:
        op = machine.throw(error)
    except (StopIteration, asyncio.CancelledError):
        return
    transport.spawn(finish(transport, machine, op, None))


async def finish(transport: Transport, machine: Generator[Any, Any, Any], op: Any, pending: Any) -> None:
    """Runs the rest of a machine whose caller was cancelled: it computes and waits no more."""
    try:
        if pending is not None:
            op = machine.send(pending.replies(await _whole(pending.detach())))
        while True:
            if type(op) is Batch:
                under_way = transport.start(op.commands)
                op = machine.send(under_way.replies(await _whole(under_way.future)))
            elif type(op) is Spawn:
                transport.spawn(_quiet(transport, op.machine))
                op = machine.send(None)
            else:
                op = machine.throw(asyncio.CancelledError())
    except StopIteration as end:
        grant = getattr(end.value, "grant", None)
        if isinstance(grant, Grant) and not grant.is_over:
            await _finish_grant(transport, grant)
    except (Exception, asyncio.CancelledError):
        # That of the function as well: the caller has heard of its cancellation.
        return


async def _finish_grant(transport: Transport, grant: Grant) -> None:
    from ._machine import Asker

    asker = Asker(transport, lambda: 0.0)
    grant.old = None
    await _quiet(transport, asker.settle([(grant, Ending())]))


async def _whole(future: Any) -> Any:
    """The result of a future, also if this task is cancelled: the end of its loop cancels all, and replies come within
    the timeout."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    return future.result()


async def _quiet(transport: Transport, machine: Generator[Any, Any, Any]) -> None:
    """Runs a machine whose errors reach no caller."""
    try:
        await run(transport, machine)
    except (CacheError, OSError):
        return
