"""A worker process and a pool's side of the socket made by hand."""

import mmap
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

from cattlegrid.worker import _frames as f

SRC = pathlib.Path(__file__).resolve().parents[1] / "src"
APP = """
import time
from cattlegrid import worker

@worker.after_fork
def start(config):
    worker.event("config", config)

@worker.job
def work(what, *args):
    if what == b"echo":
        return list(args)
    if what == b"slow":
        time.sleep(3600)
    if what == b"bad":
        raise ValueError("as told")
    if what == b"cancelled":
        worker.event("begun")
        while not worker.cancelled():
            time.sleep(0.001)
        return "seen"
"""


class Parent:
    """The pool's side of a job socket."""

    def __init__(self, tmp_path, app=APP, target="app", run=None):
        (tmp_path / "app.py").write_text(app)
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(60)
        env = dict(os.environ, PYTHONPATH=str(SRC), CATTLEGRID_MODE="exec", CATTLEGRID_FD=str(theirs.fileno()))
        command = [sys.executable, *(run or ["-m", "cattlegrid.worker", target])]
        self.process = subprocess.Popen(command, env=env, cwd=tmp_path, pass_fds=[theirs.fileno()])
        theirs.close()
        self.buffer = b""

    def send(self, *frames):
        self.sock.sendall(b"".join(frames))

    def job(self, id, *args, flags=0):
        return f.frame(f.JOB, id, struct.pack("<II", 0, 0) + f.encode_list(args), flags)

    def batch(self, *jobs):
        """JOB frames of one batch: pairs of an id and its arguments."""
        last = len(jobs) - 1
        return b"".join(self.job(id, *args, flags=f.FLAG_MORE * (at < last)) for at, (id, *args) in enumerate(jobs))

    def receive(self):
        while True:
            if len(self.buffer) >= 16:
                length, kind, flags, zero, id = f.HEADER.unpack_from(self.buffer)
                assert zero == 0
                if len(self.buffer) >= 16 + length:
                    body, self.buffer = self.buffer[16 : 16 + length], self.buffer[16 + length :]
                    return kind, flags, id, body
            chunk = self.sock.recv(65536)
            assert chunk, "the worker has closed"
            self.buffer += chunk

    def start(self):
        assert self.receive()[0] == f.HELLO
        self.send(f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 1, 1) + f.encode_list([b"config"])))
        assert f.decode_list(self.receive()[3]) == [b"config", b"config"]
        assert self.receive()[0] == f.READY


@pytest.fixture
def parent(tmp_path):
    parent = Parent(tmp_path)
    yield parent
    parent.sock.close()
    parent.process.kill()
    parent.process.wait()


def test_a_batch_is_answered_in_order_and_retire_ends_it(parent):
    parent.start()
    jobs = [parent.job(n, b"echo", str(n).encode()) for n in range(1, 100)]
    # At every split of the stream, here by single bytes for the first job.
    for byte in jobs[0]:
        parent.send(bytes([byte]))
    parent.send(*jobs[1:], f.frame(f.RETIRE))
    for n in range(1, 100):
        kind, _, id, body = parent.receive()
        assert (kind, id, f.decode_list(body)) == (f.RESULT, n, [str(n).encode()])
    assert parent.process.wait(60) == 0


def test_a_finished_reply_does_not_wait_for_a_slow_job_behind_it(parent):
    parent.start()
    parent.send(parent.job(1, b"echo", b"x"), parent.job(2, b"slow"))
    assert parent.receive()[2] == 1


def test_an_exception_has_its_traceback_and_the_worker_stays(parent):
    parent.start()
    parent.send(parent.job(1, b"bad"))
    kind, _, _, body = parent.receive()
    code, message, detail = f.decode_list(body)
    assert (kind, code, message) == (f.ERROR, b"exception", b"ValueError: as told")
    assert b"Traceback" in detail
    parent.send(f.frame(f.PING, 7))
    assert parent.receive()[:3] == (f.PONG, 0, 7)


def test_a_cancel_is_seen_in_the_job_and_before_it(parent):
    parent.start()
    parent.send(parent.job(1, b"cancelled"))
    assert parent.receive()[0] == f.EVENT
    parent.send(parent.job(2, b"slow"), f.frame(f.CANCEL, 2), f.frame(f.CANCEL, 1))
    assert f.decode_list(parent.receive()[3]) == [b"seen"]
    kind, _, id, body = parent.receive()
    assert (kind, id, f.decode_list(body)[0]) == (f.ERROR, 2, b"cancelled")


@pytest.mark.parametrize("size", [0, 100])
def test_a_progress_page_that_cannot_be_mapped_is_a_failed_start(parent, size):
    assert parent.receive()[0] == f.HELLO
    init = f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 1, 1) + f.encode_list([b"config"]))
    with tempfile.TemporaryFile() as file:
        file.write(bytes(size))
        file.flush()
        socket.send_fds(parent.sock, [init], [file.fileno()])
    kind, _, id, body = parent.receive()
    assert (kind, id, f.decode_list(body)[0]) == (f.ERROR, 0, b"init")
    assert parent.process.wait(60) == 1


def test_jobs_that_were_taken_back_are_skipped(parent, tmp_path):
    file = open(tmp_path / "page", "wb+")
    file.write(bytes(4096))
    file.flush()
    page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
    assert parent.receive()[0] == f.HELLO
    init = f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 1, 1) + f.encode_list([b"config"]))
    socket.send_fds(parent.sock, [init], [file.fileno()])
    file.close()
    assert [parent.receive()[0], parent.receive()[0]] == [f.EVENT, f.READY]
    page[2] = 2
    parent.send(*(parent.job(n, b"echo", b"x") for n in (7, 8, 7)))
    assert [parent.receive()[:3] for _ in range(3)] == [(f.SKIPPED, 0, 7), (f.SKIPPED, 0, 8), (f.RESULT, 0, 7)]
    assert page[1] == 3


def test_the_end_of_the_parent_is_the_end_of_the_worker(parent):
    parent.start()
    parent.sock.close()
    assert parent.process.wait(60) == 0
