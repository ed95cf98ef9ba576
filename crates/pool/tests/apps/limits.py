"""A Python worker that reports the limits of its own process."""

from cattlegrid import worker

FILES = {b"limits": "/proc/self/limits", b"status": "/proc/self/status"}


@worker.job
def tell(what, *args):
    path = args[0] if what == b"read" else FILES[what]
    with open(path) as file:
        return file.read()
