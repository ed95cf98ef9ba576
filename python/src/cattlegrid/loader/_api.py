"""The decorators of a loader, and ``serve``."""

import inspect
import os
import sys

from ..worker import _api as workers
from ..worker import _hooks
from ..worker._link import Link
from ..worker._state import STATE
from . import _answer, _job

__all__ = ["after_fork", "batch", "init", "load", "serve"]


class Program:
    """What the decorators were given, and how the program was started."""

    function = None
    # Largest batch; 0: the function takes one job.
    limit = 0
    hooks = ()
    # Set by `python -m cattlegrid.loader`: called by `serve`.
    offline = None


def load(function):
    """Decorator: load a key with this function, a ``def`` or ``async def`` of one :class:`Job`. The last one decorated with
    ``load`` or :func:`batch` counts."""
    Program.function, Program.limit = function, 0
    return function


def batch(limit=100):
    """Decorator: load up to ``limit`` keys (1 to 65,535) in one call of this function, a plain ``def`` of a list of jobs.

    It returns a dict by key, or a list in the order of the jobs; each value is what a loader may return, or an exception. A key that
    is missing in the dict is an error of its job. An exception that it raises is the error of all.
    """
    workers.check_limit(limit, "@loader.batch")

    def decorate(function):
        workers.check_plain(function, "@loader.load")
        Program.function, Program.limit = function, limit
        return function

    return decorate


def init(function):
    """Decorator: call this, a ``def`` or ``async def`` without parameters, once while the program loads; in template mode, in the
    template only, for all workers. The text of ``init`` in ``[loader.NAME]`` goes to :func:`after_fork`. ``TypeError`` for a function
    that needs an argument."""
    _hooks.check_bare(function)
    return workers.init(function)


def after_fork(function):
    """Decorator: call this in every worker before its first job: connections, threads, random state.

    ``def connect(config)`` is given the text of ``init`` in ``[loader.NAME]``, a ``str`` of up to 65,536 bytes, empty by default; a
    function without parameters is called without. The argument is given to a parameter that is called ``config``, and to the
    only one that has no default. An ``async def`` is awaited before the first job, in the event loop in which an asynchronous
    ``load`` runs: what it opens can be used there. An exception is a failed start. ``TypeError`` for other parameters.
    """
    Program.hooks = (*Program.hooks, (function, _hooks.takes_config(function)))
    return function


def serve():
    """Serve the function as whatever this program was started: template, exec, stdio or jsonl. Does not return.

    Started by hand, it says how to test and use the program, and exits with status 2.
    """
    if Program.offline is not None:
        Program.offline()
    mode = os.environ.get("CATTLEGRID_MODE")
    if mode == "jsonl":
        from . import _lines

        _lines.serve()
    if mode not in ("template", "exec", "stdio"):
        file = sys.argv[0] or "FILE"
        sys.stderr.write(
            f"{file} is a loader, started by a Cattlegrid server. Test it: python3 -m cattlegrid.loader {file} KEY [name=value...]; "
            f'use it: [loader.NAME] command = ["python3", "{file}"] in the rule file\n'
        )
        raise SystemExit(2)
    Link.hold = -1
    workers.after_fork(lambda config: run_hooks(_job.text(config)))
    workers.run(_register, 100)


def run_hooks(config):
    """Call the functions decorated with :func:`after_fork`; ``config`` is the text of ``init``."""
    for hook, takes_config in Program.hooks:
        _hooks.call(hook, *[config] * takes_config)


def check():
    """``RuntimeError`` if no function was decorated."""
    if Program.function is None:
        raise RuntimeError("no function to serve: decorate one with @loader.load or @loader.batch(limit=100)")


def is_async():
    """Whether the function is an ``async def``."""
    return inspect.iscoroutinefunction(Program.function)


def _register():
    check()
    if Program.limit:
        workers.batch(Program.limit)(_many)
    else:
        workers.job(_one_async if is_async() else _one)


def _one(*parts):
    until = STATE.link.received / 1e9 + STATE.deadline / 1000 if STATE.deadline else None
    job = _job.parse(parts, STATE.attempt, until, workers.Current(STATE.id, STATE.attempt))
    return _answer.parts(Program.function(job))


async def _one_async(*parts):
    job = _job.parse(parts, workers.attempt(), workers.deadline(), workers.current())
    return _answer.parts(await Program.function(job))


def _many(batch):
    """A batch: the outcome of each job is found by itself, so that a wrong one is an error of its job only."""
    jobs, outcomes = [], []
    for one in batch:
        try:
            job = _job.parse(one.args, one.attempt, one.deadline, one)
            jobs.append(job)
            outcomes.append(None)
        except ValueError as error:
            outcomes.append(error)
    results = iter(many(jobs)) if jobs else iter(())
    return [next(results) if outcome is None else outcome for outcome in outcomes]


def many(jobs):
    """Call the batch function; the parts of a RESULT, or an exception, for each job in order."""
    return [_guarded(result) for result in _answer.spread(jobs, Program.function(list(jobs)))]


def _guarded(result):
    if isinstance(result, BaseException):
        return result
    try:
        return _answer.parts(result)
    except Exception as error:
        return error
