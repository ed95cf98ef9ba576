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

A function that does many jobs in one call, for instance in one query of a database, is decorated with
``@worker.batch(limit=100)`` instead::

    @worker.batch(limit=100)
    def thumbnails(jobs):        # job.args: list of bytes; also attempt, deadline, cancelled(), progress(), event()
        return [make(*job.args) for job in jobs]
"""

from ._api import (
    BatchJob,
    JobError,
    after_fork,
    attempt,
    batch,
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
    "BatchJob",
    "JobError",
    "after_fork",
    "attempt",
    "batch",
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
