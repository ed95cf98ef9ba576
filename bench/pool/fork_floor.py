"""The time of a bare fork of Python with the given megabytes of objects, in microseconds: `start death`.

From the fork to the child's first answer, and from SIGKILL to the end of its socket; no pool can be quicker.
"""

import gc
import os
import signal
import socket
import statistics
import sys
import time


def measure(count):
    starts, deaths = [], []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        start = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            ours.close()
            theirs.send(theirs.recv(1))
            theirs.recv(1)
            os._exit(0)
        theirs.close()
        ours.send(b"x")
        ours.recv(1)
        starts.append(time.perf_counter() - start)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        ours.recv(1)
        deaths.append(time.perf_counter() - start)
        os.waitpid(pid, 0)
        ours.close()
    return statistics.median(starts) * 1e6, statistics.median(deaths) * 1e6


data = [str(n) + "." for n in range(int(sys.argv[1]) * 18_000)]
gc.collect()
gc.freeze()
print(*measure(100))
