"""A template without a free descriptor: it can be told to fork and cannot take what comes with that."""

import os
import resource

from cattlegrid import worker
from cattlegrid.worker import _template


@worker.job
def echo(*args):
    return list(args)


def starve(control, keep, allow_threads):
    template = _template._Template(control, keep, 1)
    top = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, top + 1))
    try:
        while True:
            os.open("/dev/null", os.O_RDONLY)
    except OSError:
        pass
    return template.serve()


_template.run = starve
