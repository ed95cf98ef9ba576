"""A Python worker that takes batches. A reply has the job's own argument, the jobs in its batch, the call's number, the process."""

import os
import time

from cattlegrid import worker

CALLS = 0


@worker.batch(limit=64)
def work(jobs):
    global CALLS
    CALLS += 1
    if any(job.args[0] == b"all-fail" for job in jobs):
        raise ValueError("all of them")
    return [one(job, len(jobs)) for job in jobs]


def one(job, count):
    what, *args = job.args
    if what == b"die":
        os.kill(os.getpid(), 9)
    if what == b"gate":
        while not os.path.exists(args[0]):
            time.sleep(0.005)
    if what == b"until-cancelled":
        while not job.cancelled():
            time.sleep(0.005)
        return worker.JobError("cancelled", "seen")
    if what == b"bad":
        return 7
    if what == b"fail":
        return worker.JobError("code", "message", retryable=True)
    if what == b"progress":
        job.progress(b"half of " + args[0])
    return [args[0], str(count), str(CALLS), str(os.getpid())]
