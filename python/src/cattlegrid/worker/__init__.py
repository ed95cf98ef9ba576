"""Worker processes of a Cattlegrid pool, in Python.

::

    from cattlegrid import worker

    @worker.init                 # once, in the template: load code and data here
    def load():
        ...

    @worker.after_fork           # in every worker, before its first job
    def connect(config: bytes):
        ...

    @worker.job                  # or an ``async def``
    def thumbnail(path: bytes, size: bytes):
        return make(path, int(size))

    if __name__ == "__main__":
        worker.serve()

The same without the last two lines is run as ``python -m cattlegrid.worker app:thumbnail``.

A job is called with its arguments as ``bytes``. It returns the reply: ``None`` (no parts), one ``bytes``-like
or ``str``, or a list or tuple of these. A generator's values are sent one by one as parts of a long reply. An
exception goes to the caller with type, message and traceback; the worker stays. ``SystemExit`` ends the worker.
"""

from ._api import (
    JobError,
    after_fork,
    attempt,
    cancelled,
    current,
    deadline,
    event,
    generation,
    inherited_fd,
    init,
    job,
    keep_fd,
    log,
    number,
    progress,
    retire,
    serve,
    serve_async,
)

__all__ = [
    "JobError",
    "after_fork",
    "attempt",
    "cancelled",
    "current",
    "deadline",
    "event",
    "generation",
    "inherited_fd",
    "init",
    "job",
    "keep_fd",
    "log",
    "number",
    "progress",
    "retire",
    "serve",
    "serve_async",
]
