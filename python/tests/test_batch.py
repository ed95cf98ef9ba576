"""A worker that takes batches, and a pool's side of the socket made by hand."""

import mmap
import socket
import struct

import pytest
from cattlegrid import worker
from cattlegrid.worker import _frames as f
from test_worker import Parent

APP = """
import time
from cattlegrid import worker

@worker.batch(limit=50)
def work(jobs):
    what = jobs[0].args[0]
    if what == b"bad":
        raise ValueError("as told")
    if what == b"few":
        return [b"one"] * (len(jobs) - 1)
    if what == b"dict":
        return {}
    if what == b"exit":
        raise SystemExit(3)
    if what == b"slow":
        time.sleep(3600)
    if what == b"cancelled":
        worker.event("begun")
        while not jobs[0].cancelled() and not jobs[-1].cancelled():
            time.sleep(0.001)
        return [str([job.cancelled() for job in jobs] + [worker.cancelled()])] * len(jobs)
    if what == b"state":
        worker.progress("dropped")
        for job in jobs:
            job.progress(b"p" + job.args[1])
            job.event(b"e" + job.args[1])
        left = worker.deadline() - time.monotonic()
        assert jobs[0].deadline is None and 0 < left < 100 and not jobs[0].over
        KEPT[:] = jobs
        return [str((job.attempt, worker.attempt(), worker.current())) for job in jobs]
    if what == b"over":
        return [str([job.over for job in KEPT] + [job.cancelled() for job in KEPT])]
    jobs_as_given = jobs.copy()
    jobs.clear()
    return [outcome(len(jobs_as_given), *job.args) for job in jobs_as_given]

KEPT = []

def outcome(count, what, *args):
    if what == b"raise":
        return KeyError("this job only")
    if what == b"job-error":
        return worker.JobError("code", "message", retryable=True)
    if what == b"number":
        return 7
    if what == b"long":
        return b"x" * (2 << 20)
    if what == b"parts":
        return (part for part in args)
    return [b"%d" % count, *args]

@worker.job
def single(*args):
    return "single"

def later(jobs):
    return []
worker.batch(limit=65535)(later)
worker.batch(limit=7)(work)
"""


@pytest.fixture
def parent(tmp_path):
    parent = Parent(tmp_path, APP)
    yield parent
    parent.sock.close()
    parent.process.kill()
    parent.process.wait()


def start(parent, page=None):
    kind, _, _, body = parent.receive()
    _, flags, _, limit, _ = struct.unpack_from("<HHIII", body)
    assert (kind, flags, limit) == (f.HELLO, f.HAS_PAGE | f.HAS_CLAIMS | f.TAKES_BATCHES, 7)
    init = f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 1, 1) + f.encode_list([b"config"]))
    socket.send_fds(parent.sock, [init], [page.fileno()] if page else [])
    assert parent.receive()[0] == f.READY


def answers(parent, count):
    out = {}
    for _ in range(count):
        kind, flags, id, body = parent.receive()
        assert id not in out
        out[id] = (kind, f.decode_list(body) if body else None, flags)
    return out


def test_a_batch_is_one_call_at_every_split(parent):
    start(parent)
    stream = parent.batch((1, b"echo", b"a"), (2, b"echo", b"b"), (3, b"echo", b"c"))
    for byte in stream:
        parent.send(bytes([byte]))
    parent.send(parent.job(4, b"echo"), stream + parent.batch(*((n, b"echo") for n in range(10, 110))))
    for expected in ([3, b"3", b"a"], [3, b"3", b"b"], [3, b"3", b"c"]):
        kind, _, _, body = parent.receive()
        assert (kind, f.decode_list(body)) == (f.RESULT, expected[1:])
    got = [(id, f.decode_list(body)) for _, _, id, body in (parent.receive() for _ in range(104))]
    # Batches beyond the limit are the pool's affair.
    first = [(4, [b"1"]), (1, [b"3", b"a"]), (2, [b"3", b"b"]), (3, [b"3", b"c"])]
    assert got == first + [(n, [b"100"]) for n in range(10, 110)]
    parent.send(f.frame(f.PING, 5), f.frame(f.RETIRE))
    assert parent.receive()[:3] == (f.PONG, 0, 5)
    assert parent.process.wait(60) == 0


def test_each_job_has_its_own_outcome(parent):
    start(parent)
    names = [b"raise", b"job-error", b"number", b"long", b"echo"]
    parent.send(parent.batch((9, b"none"), *enumerate_args(names)))
    got = answers(parent, 6)
    assert got[9] == (f.RESULT, [b"6"], 0)
    assert got[0][:2] == (f.ERROR, [b"exception", b"KeyError: 'this job only'", b"KeyError: 'this job only'\n"])
    assert got[1] == (f.ERROR, [b"code", b"message", b""], f.FLAG_RETRYABLE)
    assert b"a job returns None, bytes, str or a list of these, not int" in got[2][1][1]
    assert got[3][1][0] == b"too_large"
    assert got[4] == (f.RESULT, [b"6"], 0)
    parent.send(parent.batch((1, b"parts", b"a", b"b"), (2, b"echo")))
    got = [parent.receive() for _ in range(4)]
    assert [(flags, id) for _, flags, id, _ in got] == [(1, 1), (1, 1), (0, 1), (0, 2)]


def enumerate_args(names):
    return [(id, name) for id, name in enumerate(names)]


@pytest.mark.parametrize(
    "what, text",
    [
        (b"bad", b"ValueError: as told"),
        (b"few", b"an outcome for each of its 3 jobs, not 2 outcomes"),
        (b"dict", b"a list with an outcome for each of its 3 jobs, not dict"),
    ],
)
def test_an_exception_of_the_function_is_the_outcome_of_all_its_jobs(parent, what, text):
    start(parent)
    parent.send(parent.batch((1, what), (2, b"echo"), (3, b"echo")), parent.job(4, b"echo"))
    got = answers(parent, 4)
    assert all(got[id][0] == f.ERROR and text in got[id][1][1] for id in (1, 2, 3)), got
    assert got[4] == (f.RESULT, [b"1"], 0)


def test_system_exit_ends_the_worker_after_the_replies_before_it(parent):
    start(parent)
    parent.send(parent.batch((1, b"echo"), (2, b"echo")), parent.batch((3, b"exit"), (4, b"echo")))
    assert set(answers(parent, 2)) == {1, 2}
    assert parent.process.wait(60) == 3


def test_a_finished_batch_does_not_wait_for_a_slow_one_behind_it(parent):
    start(parent)
    parent.send(parent.batch((1, b"echo"), (2, b"echo")), parent.job(3, b"slow"))
    assert set(answers(parent, 2)) == {1, 2}


def test_a_cancel_is_seen_in_the_batch_and_before_it(parent):
    start(parent)
    parent.send(parent.batch((1, b"cancelled"), (2, b"x")))
    assert parent.receive()[0] == f.EVENT
    behind = parent.batch((3, b"echo"), (4, b"echo"), (5, b"echo")), parent.batch((6, b"slow"), (7, b"slow"))
    parent.send(*behind, *(f.frame(f.CANCEL, id) for id in (4, 6, 7, 2)))
    got = answers(parent, 7)
    assert got[1] == got[2] == (f.RESULT, [b"[False, True, False]"], 0)
    assert [got[id][0] for id in (3, 4, 5)] == [f.RESULT, f.ERROR, f.RESULT]
    assert got[3][1] == [b"2"], "the cancelled one was left out"
    # Of a batch without jobs there is no call.
    assert got[4][1][0] == got[6][1][0] == got[7][1][0] == b"cancelled"


def test_jobs_have_messages_and_state_of_their_own(parent):
    start(parent)
    second = struct.pack("<II", 50_000, 2) + f.encode_list([b"state", b"2"])
    parent.send(parent.job(1, b"state", b"1", flags=f.FLAG_MORE), f.frame(f.JOB, 2, second))
    got = [parent.receive() for _ in range(6)]
    expected = [(f.PROGRESS, 1), (f.EVENT, 1), (f.PROGRESS, 2), (f.EVENT, 2), (f.RESULT, 1), (f.RESULT, 2)]
    assert [(kind, id) for kind, _, id, _ in got] == expected
    assert (got[2][3], f.decode_list(got[3][3])) == (b"p2", [b"e2"])
    assert [f.decode_list(frame[3])[0] for frame in got[4:]] == [b"(0, 2, None)", b"(2, 2, None)"]
    parent.send(parent.job(3, b"over"))
    assert answers(parent, 1)[3][1] == [b"[True, True, True, True]"]


def test_a_batch_is_claimed_together_and_what_was_taken_back_is_skipped(parent, tmp_path):
    with open(tmp_path / "page", "wb+") as file:
        file.write(bytes(4096))
        file.flush()
        page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
        start(parent, file)
    page[2] = 2
    parent.send(parent.batch((7, b"slow"), (8, b"slow"), (9, b"echo")))
    assert [parent.receive()[:3] for _ in range(3)] == [(f.SKIPPED, 0, 7), (f.SKIPPED, 0, 8), (f.RESULT, 0, 9)]
    assert page[1] == 3
    page[2] = 5
    parent.send(parent.batch((7, b"slow"), (8, b"slow")), parent.job(9, b"echo", b"after"))
    got = [parent.receive() for _ in range(3)]
    assert [frame[:3] for frame in got] == [(f.SKIPPED, 0, 7), (f.SKIPPED, 0, 8), (f.RESULT, 0, 9)]
    assert (f.decode_list(got[2][3]), page[1]) == ([b"1", b"after"], 6)


def test_another_frame_inside_a_batch_ends_the_worker(parent):
    start(parent)
    parent.send(parent.job(1, b"echo", flags=f.FLAG_MORE), f.frame(f.PING, 2), parent.job(3, b"echo"))
    assert parent.process.wait(60) == 1


def test_a_function_of_single_jobs_says_no_batches(tmp_path):
    parent = Parent(tmp_path, APP, "app:single")
    try:
        _, flags, _, limit, _ = struct.unpack_from("<HHIII", parent.receive()[3])
        assert (flags, limit) == (f.HAS_PAGE | f.HAS_CLAIMS, 1)
    finally:
        parent.sock.close()
        parent.process.wait(60)


@pytest.mark.parametrize("limit", [0, 65536, -1, True, "7", 2.0, None])
def test_a_limit_out_of_range_is_refused(limit):
    with pytest.raises(ValueError, match="limit is a number from 1 to 65535, not"):
        worker.batch(limit)


def test_a_batch_function_without_a_limit_or_async_is_refused():
    with pytest.raises(ValueError, match=r"limit is missing: write @worker.batch\(limit=100\)"):

        @worker.batch
        def missing(jobs):
            pass

    with pytest.raises(TypeError, match="plain def"):

        @worker.batch(limit=1)
        async def waiting(jobs):
            pass
