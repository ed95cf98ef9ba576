"""The loop of a worker that takes batches: the jobs of a batch are claimed together and done in one call.

All JOB frames of a batch but the last have the flag MORE. The pool writes them in one piece, so that no other frame is
between them.
"""

import _thread
import time

from . import _frames as frames
from ._api import BatchJob
from ._serve import NO_CANCEL, adopt_threads, control, failure, reply
from ._state import STATE


def serve(link, function):
    """Serve batches until the parent retires this worker or goes away; then the process ends."""
    STATE.main = _thread.get_ident()
    adopt_threads(0)
    claimed = 0
    jobs = []
    while True:
        data, pos = link.data, link.pos
        size = len(data)
        while size - pos >= frames.HEADER_LEN:
            length, kind, flags, _, id = frames.HEADER.unpack_from(data, pos)
            body, end = pos + frames.HEADER_LEN, pos + frames.HEADER_LEN + length
            if end > size:
                break
            pos = link.pos = end
            if kind != frames.JOB:
                if jobs:
                    raise ValueError(f"frame kind {kind} in the middle of a batch")
                control(link, kind, id)
                continue
            deadline = int.from_bytes(data[body : body + 4], "little")
            attempt = int.from_bytes(data[body + 4 : body + 8], "little")
            args = frames.decode_list(data, body + 8, end)
            until = link.received / 1e9 + deadline / 1000 if deadline else None
            jobs.append(BatchJob(id, args, attempt, until))
            if flags & frames.FLAG_MORE:
                continue
            claimed += len(jobs)
            _do(link, function, jobs, claimed)
            jobs = []
        link.pos = pos
        if link.out:
            link.flush()
        link.fill()


def _do(link, function, jobs, claimed):
    """Claim a batch, whose last job is number ``claimed`` - 1, and answer each of its jobs."""
    taken = link.claim(claimed - len(jobs), claimed)
    if taken:
        # At once: the call may take long, and until then the pool counts these jobs as ours.
        link.send(b"".join(frames.frame(frames.SKIPPED, job.id) for job in jobs[:taken]))
        jobs = jobs[taken:]
    if link.ahead or NO_CANCEL in link.data:
        gone = {job.id for job in jobs if link.has_cancel(job.id)}
        link.out += [link.error(id, "cancelled", "cancelled before it began") for id in gone]
        jobs = [job for job in jobs if job.id not in gone]
    if not jobs:
        return
    if link.out and (link.since == 0 or time.monotonic_ns() - link.since > link.hold):
        link.before_job()
    STATE.batch = jobs
    try:
        outcomes = function(list(jobs))
        _check(outcomes, len(jobs))
    except SystemExit:
        raise
    except BaseException as error:
        outcomes = [error] * len(jobs)
    for job, outcome in zip(jobs, outcomes):
        try:
            if isinstance(outcome, BaseException):
                answer = failure(link, job.id, outcome)
            else:
                answer = reply(link, job.id, outcome)
        except SystemExit:
            raise
        except BaseException as error:
            answer = failure(link, job.id, error)
        job._over = True
        link.out.append(answer)
    STATE.batch = []
    if _thread._count() > link.own_threads:
        adopt_threads(0)


def _check(outcomes, count):
    """``TypeError`` or ``ValueError`` if ``outcomes`` are not those of ``count`` jobs."""
    if not isinstance(outcomes, (list, tuple)):
        kind = type(outcomes).__name__
        raise TypeError(f"a batch function returns a list with an outcome for each of its {count} jobs, not {kind}")
    if len(outcomes) != count:
        raise ValueError(f"a batch function returns an outcome for each of its {count} jobs, not {len(outcomes)} outcomes")
