"""The loop of an asynchronous worker: jobs are asyncio tasks, up to a limit at a time."""

import asyncio
import contextvars
import inspect
import os
import time
from collections import deque

from . import _frames as frames
from . import _hooks
from ._serve import failure, leave, part_of_reply, reply
from ._state import STATE

_CURRENT = contextvars.ContextVar("cattlegrid_job")


class Running:
    """A job that has begun."""

    __slots__ = ("attempt", "cancelled", "deadline", "id", "over", "received", "task")

    def __init__(self, id, deadline, attempt, received):
        self.id, self.deadline, self.attempt, self.received = id, deadline, attempt, received
        self.cancelled = self.over = False
        self.task = None


class AsyncWorker:
    """Reads frames when the socket is readable, begins jobs in order, writes at the end of each turn."""

    def __init__(self, link, function, concurrency):
        self.link, self.function, self.concurrency = link, function, concurrency
        self.waiting = deque()
        self.claimed = 0
        self.cancelled = set()
        self.running = {}
        self.retiring = False
        self.flushing = False
        self.loop = None

    async def run(self):
        """Serve until the process ends."""
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.link.sock, self.on_readable)
        self.handle()
        await asyncio.Event().wait()

    def on_readable(self):
        self.link.fill()
        self.handle()

    def handle(self):
        """Take all complete frames."""
        link = self.link
        data, pos, size = link.data, link.pos, len(link.data)
        while size - pos >= 16:
            length, kind, _, _, id = frames.HEADER.unpack_from(data, pos)
            body, end = pos + 16, pos + 16 + length
            if end > size:
                break
            if kind == frames.JOB:
                deadline = int.from_bytes(data[body : body + 4], "little")
                attempt = int.from_bytes(data[body + 4 : body + 8], "little")
                args = frames.decode_list(data, body + 8, end)
                self.waiting.append((Running(id, deadline, attempt, time.monotonic()), args))
            elif kind == frames.CANCEL:
                self.on_cancel(id)
            elif kind == frames.RETIRE:
                self.retiring = True
            elif kind == frames.PING:
                link.out.append(frames.frame(frames.PONG, id))
                self.flush_soon()
            else:
                raise ValueError(f"unexpected frame kind {kind}")
            pos = end
        link.pos = pos
        self.begin_waiting()

    def on_cancel(self, id):
        running = self.running.get(id)
        if running is not None:
            running.cancelled = True
            running.task.cancel()
        elif any(job.id == id for job, _ in self.waiting):
            self.cancelled.add(id)

    def begin_waiting(self):
        while self.waiting and len(self.running) < self.concurrency:
            running, args = self.waiting.popleft()
            self.claimed += 1
            if self.link.claim(self.claimed - 1, self.claimed):
                self.link.send(frames.frame(frames.SKIPPED, running.id))
                continue
            if running.id in self.cancelled:
                self.cancelled.discard(running.id)
                self.link.out.append(self.link.error(running.id, "cancelled", "cancelled before it began"))
                self.flush_soon()
                continue
            self.running[running.id] = running
            running.task = self.loop.create_task(self.one(running, args))
        if self.retiring and not self.running and not self.waiting:
            leave(self.link)

    async def one(self, running, args):
        _CURRENT.set(running)
        link = self.link
        try:
            result = self.function(*args)
            if inspect.isasyncgen(result):
                try:
                    async for part in result:
                        link.send(part_of_reply(link, running.id, part))
                finally:
                    await result.aclose()
                result = None
            elif inspect.isawaitable(result):
                result = await result
            link.out.append(reply(link, running.id, result))
        except SystemExit:
            raise
        except BaseException as error:
            if running.cancelled and isinstance(error, asyncio.CancelledError):
                link.out.append(link.error(running.id, "cancelled", "cancelled"))
            else:
                link.out.append(failure(link, running.id, error))
        running.over = True
        del self.running[running.id]
        self.flush_soon()
        self.begin_waiting()

    def flush_soon(self):
        """One write for everything that ends in this turn of the loop."""
        if self.link.hold < 0:
            self.flush()
        elif not self.flushing:
            self.flushing = True
            self.loop.call_soon(self.flush)

    def flush(self):
        self.flushing = False
        self.link.flush()


def serve(link, function, concurrency):
    """Serve jobs until the parent retires this worker or goes away; then the process ends."""
    STATE.current = _CURRENT
    try:
        _hooks.run(AsyncWorker(link, function, concurrency).run())
    finally:
        _hooks.end()
    os._exit(0)
