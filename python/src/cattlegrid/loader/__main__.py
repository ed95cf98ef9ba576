"""``python -m cattlegrid.loader FILE KEY [name=value...]``: run a loader once without a server, and print its answer.

``name=value`` are the captures of the rule's pattern. Exit status 0; 1 with a traceback on standard error when it fails.
"""

import argparse
import os
import runpy
import sys
import time
import traceback

from ..worker import _hooks
from ..worker._state import STATE
from . import _answer, _api, _job


def main(argv=None):
    """Parse the command line, load the program and run it; exits."""
    parser = argparse.ArgumentParser(prog="python -m cattlegrid.loader", description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the loader's program")
    parser.add_argument("key", help="the key to load")
    parser.add_argument("args", nargs="*", metavar="name=value", help="captures of the rule's pattern")
    parser.add_argument("--rule", default="test", help="text of the rule's pattern")
    parser.add_argument("--hint", help="a client's hint")
    parser.add_argument("--stale", help="the old value")
    parser.add_argument("--init", default="", metavar="TEXT", help="the text of init, for after_fork")
    options = parser.parse_args(argv)
    wrong = next((pair for pair in options.args if "=" not in pair), None)
    if wrong is not None:
        parser.error(f"a capture is name=value, not {wrong}")
    captures = dict(pair.split("=", 1) for pair in options.args)
    job = _job.job(options.key, captures, rule=options.rule, hint=options.hint, stale=options.stale)
    _api.Program.offline = lambda: _run(job, options.init)
    # As `python3 FILE` does.
    sys.argv = [options.file]
    sys.path[0] = os.path.dirname(os.path.abspath(options.file))
    try:
        runpy.run_path(options.file, run_name="__main__")
        # The program did not call `serve`.
        _run(job, options.init)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def _run(job, config):
    """Run the loader, print its answer, and exit."""
    try:
        _api.check()
        for hook in STATE.inits:
            _hooks.once(hook)
        _api.run_hooks(config)
        start = time.perf_counter()
        if _api.Program.limit:
            (result,) = _answer.spread([job], _api.Program.function([job]))
        elif _api.is_async():
            result = _hooks.run(_api.Program.function(job))
        else:
            result = _api.Program.function(job)
        if isinstance(result, BaseException):
            raise result
        result = _answer.answer(result)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    _show(result, time.perf_counter() - start)
    raise SystemExit(0)


def _show(result, seconds):
    lines = [f"time   {seconds * 1000:.1f} ms"]
    if isinstance(result, _answer.NotFound):
        lines.append("ttl    the rule's negative_ttl" if result.ttl is None else f"ttl    {result.ttl} s")
        lines.append("not found")
    else:
        lines.append("ttl    the rule's ttl" if result.ttl is None else f"ttl    {result.ttl} s")
        lines.append("tags   " + " ".join(_job.text(tag) for tag in result.tags))
        lines.append(f"flags  {result.flags}")
        lines.append(f"value  {len(result.data)} bytes")
    data = b"" if isinstance(result, _answer.NotFound) else result.data + b"\n"
    sys.stdout.flush()
    text = "".join(line.rstrip() + "\n" for line in lines)
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + data)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
