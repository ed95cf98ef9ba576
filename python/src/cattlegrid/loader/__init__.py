"""Loaders: programs that compute the values that a Cattlegrid server misses.

::

    from cattlegrid import loader

    @loader.init                             # once, in the template process: load code, data, models
    def prepare(): ...

    @loader.after_fork                       # in each worker: open connections, reseed; or an ``async def``
    def connect(config): ...                 # the text of ``init`` in [loader.NAME]; or without parameters

    @loader.load                             # one key at a time; or an ``async def``
    def load(job):
        row = fetch(job.args["id"])          # the captures of the rule's pattern
        if row is None:
            return loader.not_found(ttl=5)   # negative answer
        return loader.Value(row, ttl=60, tags=["user:%d" % row.user], flags=0)   # or plain str / bytes

    loader.serve()                           # template, exec, stdio or jsonl: whatever it was started as

Or, instead of ``load``, many jobs in one call, answered by key::

    @loader.batch(limit=100)
    def load_many(jobs):
        return {row.key: row.text for row in fetch_all([job.key for job in jobs])}

An exception is an error for its job only. ``python -m cattlegrid.loader FILE KEY name=value...`` runs a loader once without a
server. The decorated function stays an ordinary function: a unit test calls ``load(loader.job("page:42", {"id": "42"}))``.
"""

from ._answer import Error, NotFound, Value, not_found
from ._api import after_fork, batch, init, load, serve
from ._job import Job, job

__all__ = [
    "Error",
    "Job",
    "NotFound",
    "Value",
    "after_fork",
    "batch",
    "init",
    "job",
    "load",
    "not_found",
    "serve",
]
