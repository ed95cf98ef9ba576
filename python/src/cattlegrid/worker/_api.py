"""The functions that a worker program uses: decorators, the current job, and ``serve``."""

import _thread
import inspect
import os
import socket
import sys

from . import _frames as frames
from . import _hooks
from ._errors import TRACEBACK_MAX, message, trace
from ._link import Link
from ._state import STATE, JobError

__all__ = ["JobError"]


def job(function):
    """Decorator: serve this function. The last one decorated counts."""
    STATE.job = function
    return function


def batch(limit):
    """Decorator: serve this function, which does up to ``limit`` jobs (1 to 65,535) in one call.

    It gets a list of :class:`BatchJob` and returns a list with one outcome for each, in the same order: what a job may return, or
    an exception. An exception that it raises is the outcome of all of them. It cannot be an ``async def``: that is
    :func:`job`, which does several jobs at a time already. The last function decorated counts.
    """
    check_limit(limit, "@worker.batch")

    def decorate(function):
        check_plain(function, "@worker.job")
        STATE.limits.append((function, limit))
        STATE.job = function
        return function

    return decorate


def check_limit(limit, decorator):
    """``ValueError`` if ``limit`` is not a number of jobs that a worker may ask for."""
    if callable(limit):
        raise ValueError(f"limit is missing: write {decorator}(limit=100)")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= BATCH_MAX:
        raise ValueError(f"limit is a number from 1 to {BATCH_MAX}, not {limit!r}")


def check_plain(function, instead):
    """``TypeError`` if ``function`` is an ``async def``."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"a batch function is a plain def; an async def is served by {instead}")


def init(function):
    """Decorator: call this, a ``def`` or ``async def`` without parameters, once while the program loads; in template mode, in the
    template only.

    Load code and data here. Connections, threads and random state belong into :func:`after_fork`.
    """
    STATE.inits.append(function)
    return function


def after_fork(function):
    """Decorator: call this with the pool's ``init`` bytes in every worker, before its first job.

    An ``async def`` is awaited, in the event loop in which the jobs of an ``async def`` run.
    """
    STATE.after_fork.append(function)
    return function


class Current:
    """The job in which it was made, see :func:`current`. For threads and tasks of that job; they may outlive it."""

    __slots__ = ("_id", "_running", "attempt")

    def __init__(self, id, attempt, running=None):
        self._id, self.attempt, self._running = id, attempt, running

    @property
    def over(self):
        """Whether the job has ended."""
        return self._running.over if self._running is not None else STATE.id != self._id

    def progress(self, how_far):
        """Report to the caller how far the job is. ``bytes`` or ``str``. Does nothing after the job's end.

        ``ValueError`` if it is longer than the pool's ``max_frame``.
        """
        (part,) = frames.parts_of([how_far])
        if not self.over:
            STATE.link.send(STATE.link.fitting(frames.frame(frames.PROGRESS, self._id, part), "the progress"))

    def event(self, *parts):
        """Send an event about the job; after its end, one about this worker.

        ``ValueError`` if it is longer than the pool's ``max_frame``.
        """
        whole = frames.list_frame(frames.EVENT, 0 if self.over else self._id, frames.parts_of(parts))
        STATE.link.send(STATE.link.fitting(whole, "the event"))

    def cancelled(self):
        """Whether the job's caller has gone, or the job has ended. One system call in a synchronous worker."""
        if self._running is not None:
            return self._running.cancelled or self._running.over
        # Not while the worker itself reads: it reads when the job has ended.
        while not STATE.link.reading.acquire(timeout=0.01):
            if self.over:
                return True
        try:
            return self.over or STATE.link.is_cancelled(self._id)
        finally:
            STATE.link.reading.release()


class BatchJob(Current):
    """A job of a batch: its arguments, and what :class:`Current` has."""

    __slots__ = ("_over", "args", "deadline", "id")

    def __init__(self, id, args, attempt, deadline):
        super().__init__(id, attempt)
        self.id, self.args, self.deadline, self._over = id, args, deadline, False

    @property
    def over(self):
        """Whether its batch has ended."""
        return self._over


def current():
    """The job that this thread or task works on, for other threads to refer to; ``None`` outside of jobs.

    A thread belongs to the job during which it was started, an asyncio task to the one it was created in. In a batch
    function: ``None``; its argument has the jobs.
    """
    if STATE.current is not None:
        running = STATE.current.get(None)
        return None if running is None else Current(running.id, running.attempt, running)
    id = STATE.id
    if STATE.main is not None and _thread.get_ident() != STATE.main and STATE.owners is not None:
        import threading

        # A thread without an owner belongs to the job that runs now; 0: it was started before the first job.
        id = STATE.owners.get(threading.current_thread(), id) or id
    return Current(id, STATE.attempt) if id else None


def event(*parts):
    """Send an event, about the current job or (outside of one) about this worker or template.

    ``ValueError`` if it is longer than the pool's ``max_frame``, or in a template longer than 8,000 bytes.
    """
    job = current()
    if job is not None:
        return job.event(*parts)
    body = frames.encode_list(frames.parts_of(parts))
    if STATE.link is not None:
        STATE.link.send(STATE.link.fitting(frames.frame(frames.EVENT, 0, body), "the event"))
    elif STATE.control is None:
        # The program is being loaded: the event is sent when the worker is connected.
        STATE.early.append(body)
    elif len(body) > EVENT_MAX:
        raise ValueError(f"the event has {len(body)} bytes, the limit in a template is {EVENT_MAX}")
    else:
        STATE.control.send(b"\x07" + body)


def progress(how_far):
    """Report to the caller how far the current job is. ``bytes`` or ``str``. Does nothing outside of jobs."""
    job = current()
    if job is not None:
        job.progress(how_far)


def log(text, level="info"):
    """Write a line to the pool's log; ``level`` is error, warn, info or debug, otherwise ``ValueError``.

    A text over 16 KiB, or over the pool's ``max_frame``, is cut. In ``@worker.init``, before there is a worker, it goes
    to standard error, which also reaches the pool's log.
    """
    number = LEVELS.get(level)
    if number is None:
        raise ValueError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    line = str(text).encode("utf-8", "replace")
    if STATE.link is None:
        sys.stderr.write(frames.head(line, LOG_MAX).decode("utf-8", "replace") + "\n")
        sys.stderr.flush()
        return
    line = frames.head(line, min(LOG_MAX, STATE.link.max_frame - 1))
    STATE.link.send(frames.frame(frames.LOG, 0, bytes([number]) + line))


def retire():
    """Ask to be retired after the jobs that have already arrived. Calling it again changes nothing."""
    if STATE.link is None:
        STATE.left_early = True
    else:
        STATE.link.leave()


def cancelled():
    """Whether the current job's caller has gone; in a batch, those of all its jobs. One system call for each job in a
    synchronous worker. True outside of jobs."""
    if STATE.batch:
        return all(job.cancelled() for job in STATE.batch)
    job = current()
    return job is None or job.cancelled()


def deadline():
    """``time.monotonic()`` at which the current job's caller stops waiting, or ``None``. In a batch: the first deadline."""
    if STATE.batch:
        return min((job.deadline for job in STATE.batch if job.deadline is not None), default=None)
    if STATE.current is not None:
        running = STATE.current.get()
        return running.received + running.deadline / 1000 if running.deadline else None
    return STATE.link.received / 1e9 + STATE.deadline / 1000 if STATE.deadline else None


def attempt():
    """0 at first, then 1 for every retry of the current job after a lost worker. In a batch: the most of its jobs."""
    if STATE.batch:
        return max(job.attempt for job in STATE.batch)
    return STATE.current.get().attempt if STATE.current is not None else STATE.attempt


def number():
    """Number of this worker, counted from 1, never used twice in a pool; 0 in the template."""
    return STATE.link.worker if STATE.link else 0


def generation():
    """Generation of the program, counted from 1; 0 in the template."""
    return STATE.link.generation if STATE.link else 0


def inherited_fd(name):
    """Number of the descriptor that the pool passed under ``name``. ``KeyError`` if there is none."""
    return _passed()[name]


def keep_fd(fd):
    """Keep descriptor ``fd`` open in workers forked from this template; all others are closed."""
    STATE.keep.append(fd)


def serve():
    """Serve ``@worker.job``, one job at a time, or with asyncio (100 at a time) if it is an ``async def``."""
    run(lambda: None, 100)


def serve_async(concurrency=100):
    """Serve ``@worker.job`` with asyncio, up to ``concurrency`` jobs at a time."""
    run(lambda: None, concurrency)


def run(load, concurrency):
    """Load the program, fork if this is a template, and serve. ``load`` imports the program's modules."""
    mode = os.environ.get("CATTLEGRID_MODE")
    if mode == "jsonl":
        raise SystemExit('a program of cattlegrid.worker does not speak JSON lines: start it in mode "template", "exec" or "stdio", not "jsonl"')
    if mode not in ("template", "exec", "stdio"):
        raise SystemExit("this program is started by a Cattlegrid pool (CATTLEGRID_MODE is not set)")
    number, allow_threads = os.environ.get("CATTLEGRID_FD"), os.environ.get("CATTLEGRID_ALLOW_THREADS") == "1"
    STATE.passed = _passed()
    # They are meant for this process: programs that it starts are not workers.
    for name in ("CATTLEGRID_MODE", "CATTLEGRID_FD", "CATTLEGRID_FDS", "CATTLEGRID_ALLOW_THREADS"):
        os.environ.pop(name, None)
    link = Link()
    is_unix = True
    if mode == "template":
        sock = _template(load, int(number), allow_threads)
    else:
        sock = _stdio() if mode == "stdio" else socket.socket(fileno=int(number))
        sock.set_inheritable(False)
        is_unix = sock.family == socket.AF_UNIX
    link.sock = sock
    try:
        if mode != "template":
            _load(load)
        limit = _limit()
        config = link.open(is_unix, limit or (max(1, concurrency) if STATE.is_async else 1), limit > 0)
        STATE.link = link
        for body in STATE.early:
            link.send(link.fitting(frames.frame(frames.EVENT, 0, body), "the event"))
        if STATE.left_early:
            link.leave()
        for hook in STATE.after_fork:
            _hooks.call(hook, config)
    except SystemExit:
        raise
    except BaseException as error:
        link.send(link.error(0, "init", message(error), trace(error)[-TRACEBACK_MAX:]))
        os._exit(1)
    link.send(frames.frame(frames.READY))
    try:
        if STATE.is_async:
            from . import _async

            _async.serve(link, STATE.job, max(1, concurrency))
        elif limit:
            from . import _batch

            _batch.serve(link, STATE.job)
        else:
            from . import _serve

            _serve.serve(link, STATE.job)
    finally:
        # SystemExit ends the worker; the replies of the jobs before it are still sent.
        link.flush()


def _limit():
    """The largest batch that the function takes; 0 if it takes one job at a time."""
    return next((limit for function, limit in reversed(STATE.limits) if function is STATE.job), 0)


def _load(load):
    load()
    for hook in STATE.inits:
        _hooks.once(hook)
    if STATE.job is None:
        raise RuntimeError("no function to serve: decorate one with @worker.job or @worker.batch, or name it as module:function")
    STATE.is_async = inspect.iscoroutinefunction(STATE.job) or inspect.isasyncgenfunction(STATE.job)


def _template(load, number, allow_threads):
    from . import _serve, _template  # noqa: F401  (loaded here, so that workers share it)

    control = socket.socket(fileno=number)
    control.set_inheritable(False)
    STATE.control = control
    try:
        _load(load)
    except BaseException as error:
        _template.fatal(control, trace(error))
    if STATE.is_async:
        from . import _async  # noqa: F401
    if STATE.limits:
        from . import _batch  # noqa: F401
    sock = _template.run(control, [*_passed().values(), *STATE.keep], allow_threads)
    STATE.control = None
    return sock


def _stdio():
    """Move frames off the standard streams, so that a stray ``print`` cannot break them."""
    sock = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return sock


def _passed():
    if STATE.passed is not None:
        return STATE.passed
    pairs = (entry.rpartition("=") for entry in os.environ.get("CATTLEGRID_FDS", "").split(",") if entry)
    return {name: int(fd) for name, _, fd in pairs}


LEVELS = {"error": 1, "warn": 2, "info": 3, "debug": 4}
BATCH_MAX = 65535
"""Largest batch that a worker may ask for."""
EVENT_MAX = 8000
"""Most bytes of a template's event: it must fit into one message."""
LOG_MAX = 16 << 10
"""Most bytes of a log line; longer lines are cut."""

