"""``python -m cattlegrid.worker module[:function] [--concurrency N]``: serve a function of a module.

Without ``:function`` the module's ``@worker.job`` is served. An ``async def`` is served with asyncio, up to N
(default 100) jobs at a time. The working directory is searched first, as with ``python -m``.
"""

import argparse
import importlib
import os
import sys

from . import _api


def main(argv=None):
    """Parse the command line and serve; returns only in a process that no pool has started."""
    parser = argparse.ArgumentParser(prog="python -m cattlegrid.worker", description=__doc__.splitlines()[0])
    parser.add_argument("target", help="module or module:function")
    parser.add_argument("--concurrency", type=int, default=100, help="most jobs at a time of an async function")
    options = parser.parse_args(argv)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, _, attribute = options.target.partition(":")

    def load():
        module = importlib.import_module(name)
        if attribute:
            function = module
            for part in attribute.split("."):
                function = getattr(function, part)
            _api.job(function)

    _api.run(load, options.concurrency)


if __name__ == "__main__":
    main()
