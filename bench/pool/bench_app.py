"""The Python worker that is measured; with BENCH_DATA=1 its template holds 50 MB of objects."""

import gc
import os
import time

DATA = [str(n) + "." for n in range(900_000)] if os.environ.get("BENCH_DATA") == "1" else []


def work(what):
    if what == b"sleep":
        time.sleep(0.1)
    elif what == b"pid":
        return str(os.getpid())
    elif what == b"gc":
        gc.collect()
    return what
