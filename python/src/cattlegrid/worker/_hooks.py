"""Hooks of a program: plain functions, or ``async def``s, which are awaited.

A worker has one event loop: hooks that run in the worker share it with the jobs of an ``async def``, so that a connection that a hook
has opened can be used in jobs.
"""

import inspect

from ._state import STATE


def once(hook):
    """Call a hook of the program's load, which may be in a template: its event loop, if it needs one, ends with it."""
    result = hook()
    if inspect.isawaitable(result):
        import asyncio

        asyncio.run(_wait(result))


def call(hook, *args):
    """Call a hook of a worker; what an ``async def`` does is awaited in the worker's event loop."""
    result = hook(*args)
    if inspect.isawaitable(result):
        run(_wait(result))


def run(coroutine):
    """Run a coroutine in the worker's event loop, which is made when it is needed and stays, and return its result."""
    if STATE.loop is None:
        import asyncio

        STATE.loop = asyncio.new_event_loop()
        # For plain functions that use what an asynchronous hook has opened.
        asyncio.set_event_loop(STATE.loop)
    return STATE.loop.run_until_complete(coroutine)


def end():
    """End the tasks of the event loop, as ``asyncio.run`` does at its end."""
    import asyncio

    tasks = asyncio.all_tasks(STATE.loop)
    for task in tasks:
        task.cancel()
    run(_all(tasks))
    run(STATE.loop.shutdown_asyncgens())


def takes_config(hook):
    """Whether a hook is called with the configuration: it has a parameter ``config``, or needs an argument.

    ``TypeError`` if it needs something else.
    """
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):
        # Of some functions written in C nothing is known.
        return False
    if "config" in signature.parameters:
        return True
    for count in (0, 1):
        try:
            signature.bind(*[""] * count)
            return count == 1
        except TypeError:
            pass
    name = getattr(hook, "__name__", repr(hook))
    raise TypeError(f"an after_fork function has no parameters, or one: def {name}(config), not {name}{signature}")


def check_bare(hook):
    """``TypeError`` if a hook of the program's load needs an argument."""
    try:
        inspect.signature(hook).bind()
    except ValueError:
        pass
    except TypeError:
        name = getattr(hook, "__name__", repr(hook))
        raise TypeError(
            f"an init function has no parameters: it runs once for all workers; what `init` in [loader.NAME] says is given to "
            f"@loader.after_fork def {name}(config)"
        ) from None


async def _wait(awaitable):
    return await awaitable


async def _all(tasks):
    for task in tasks:
        try:
            await task
        except BaseException:
            # It was cancelled, or ends with an error that concerns no job.
            pass
