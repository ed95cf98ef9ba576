"""The job socket of a worker: frames out in batches, frames in, cancellations seen early.

Replies of a batch go out in one write. A finished reply must not wait for a slow job behind it, so before the
next job starts, replies are written if their batch began more than 200 microseconds ago. Younger replies are left to the
*flusher*, a thread that checks every 2 ms while frames are pending and sleeps otherwise. It starts with the first
such batch: a worker at load 1 never has one. It needs the GIL, so a job that holds the GIL in C also delays the
replies before it.
"""

import _thread  # `threading` would cost each fork some pages
import mmap
import os
import select
import socket
import sys
import time

from . import _frames as frames

HOLD = 200_000
"""Nanoseconds a finished reply may wait for its batch."""
LOOK = 0.002
"""Seconds between two checks of the flusher."""


class Link:
    """A worker's connection to its parent."""

    hold = HOLD
    """As :data:`HOLD`; -1: replies are written before the next job starts. So a loader's are: its clients wait for them, and the next
    job may end the process."""

    def __init__(self):
        # Made in the template, so that a worker begins with as little as possible.
        self.sock = None
        self.out = []
        self.since = 0
        self.lock = _thread.allocate_lock()
        # The flusher and what wakes it, made when they are needed.
        self.flusher = None
        self.wake = None
        self.asleep = False
        # Words of the progress page: word 1 counts the jobs claimed here; up to word 2 the pool has taken back the jobs that
        # were not claimed.
        self.page = None
        # Releasing and acquiring this lock between a store and a load is a fence: other processes see the store before
        # the load. It has no other use.
        self.fence = _thread.allocate_lock()
        self.fence.acquire()
        # 1 when there is a flusher: a thread that belongs to no job.
        self.own_threads = 0
        # Held while the socket is read.
        self.reading = _thread.allocate_lock()
        # Until INIT tells the length that the pool accepts.
        self.max_frame = frames.START_MAX
        self.worker = 0
        self.generation = 0
        self.left = False
        # Received bytes: `data` from `pos` on is not handled yet; `ahead` arrived while a job asked whether it is
        # cancelled.
        self.data = b""
        self.pos = 0
        self.ahead = b""
        # Nanoseconds of the monotonic clock: when `data` arrived, and when its batch began.
        self.received = 0
        self.batch = 0

    def open(self, is_unix, concurrency, batches=False):
        """Say HELLO and read INIT; returns the configuration. Ends the process if the parent has gone.

        ``batches``: this worker takes batches of up to ``concurrency`` jobs.
        """
        flags = frames.HAS_PAGE | frames.HAS_CLAIMS if is_unix else 0
        flags |= frames.TAKES_BATCHES if batches else 0
        self.out.append(frames.hello(os.getpid(), concurrency, flags, _SDK))
        data = b""
        while True:
            try:
                # If there is no need to wait, HELLO goes with READY.
                chunk, ancillary, flags, _ = self.sock.recvmsg(4096, _FD_SPACE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self.flush()
                chunk, ancillary, flags, _ = self.sock.recvmsg(4096, _FD_SPACE)
            if not chunk:
                os._exit(0)
            if flags & socket.MSG_CTRUNC:
                raise OSError("no descriptor is free for the progress page")
            for _, _, fds in ancillary:
                self._map(int.from_bytes(fds[:4], sys.byteorder))
            data += chunk
            if len(data) < frames.HEADER_LEN:
                continue
            length, kind, _, _, _ = frames.HEADER.unpack_from(data)
            if kind != frames.INIT:
                raise ValueError("expected INIT")
            end = frames.HEADER_LEN + length
            if end - len(data) > 65536:
                data = self._fill_long(data, end - len(data))
            if len(data) >= end:
                break
        self.max_frame, self.generation, self.worker, config = frames.parse_init(data[frames.HEADER_LEN : end])
        self.data = bytes(data[end:])
        return config

    def _map(self, fd):
        try:
            self.page = memoryview(mmap.mmap(fd, 4096)).cast("Q")
        finally:
            os.close(fd)

    def claim(self, start, end):
        """Claim the jobs from number ``start`` up to ``end``, which follow those claimed before. Returns how many of the
        first of them the pool has taken back: these must not be begun. The loop of `_serve` has its own copy."""
        page = self.page
        if page is None:
            return 0
        page[1] = end
        self.fence.release()
        self.fence.acquire()
        return max(0, min(page[2], end) - start)

    def send(self, data):
        """Write a frame and everything before it."""
        self.out.append(data)
        self.flush()

    def error(self, id, code, message, detail="", retryable=False):
        """The bytes of an ERROR, with texts cut to the length that the pool accepts."""
        return frames.error(id, code, message, detail, retryable, self.max_frame)

    def fitting(self, data, what):
        """``data``, a frame. ``ValueError`` if it is longer than the pool accepts: the pool would kill the worker for it."""
        length = len(data) - frames.HEADER_LEN
        if length > self.max_frame:
            raise ValueError(f"{what} has {length} bytes, the limit is {self.max_frame}")
        return data

    def flush(self):
        """Write all pending frames; blocks while the parent does not read."""
        with self.lock:
            # In place, because the other thread appends to the same list.
            batch = self.out[:]
            del self.out[: len(batch)]
            self.since = 0
            if not batch:
                return
            try:
                self.sock.sendall(batch[0] if len(batch) == 1 else b"".join(batch))
            except (BrokenPipeError, ConnectionResetError):
                # The parent has gone: there is no work left.
                os._exit(0)

    def before_job(self):
        """Call between two jobs of a batch, with replies pending; see the module."""
        now = time.monotonic_ns()
        if now - (self.since or self.batch) > self.hold:
            self.flush()
        elif self.since == 0:
            self.since = self.batch
            if self.flusher is None:
                self.own_threads += 1
                self.wake = _thread.allocate_lock()
                self.wake.acquire()
                self.flusher = _thread.start_new_thread(self._run_flusher, ())
            elif self.asleep:
                self.asleep = False
                self.wake.release()

    def _run_flusher(self):
        quiet = 0
        while True:
            time.sleep(LOOK)
            since = self.since
            if since == 0:
                quiet += 1
                if quiet > 10:
                    quiet = 0
                    self.asleep = True
                    self.wake.acquire()
            else:
                quiet = 0
                if time.monotonic_ns() - since > HOLD:
                    self.flush()

    def fill(self):
        """Receive more bytes after those that are not handled yet. Blocks; ends the process if the parent has gone."""
        with self.reading:
            rest = self.data[self.pos :]
            self.pos = 0
            if self.ahead:
                self.data, self.ahead = bytes(rest) + self.ahead, b""
                self.batch = time.monotonic_ns()
                return
            missing = 0
            if len(rest) >= frames.HEADER_LEN:
                missing = frames.HEADER_LEN + frames.HEADER.unpack_from(rest)[0] - len(rest)
            if missing > 65536:
                self.data = self._fill_long(rest, missing)
            else:
                chunk = self.sock.recv(65536)
                if not chunk:
                    os._exit(0)
                self.data = rest + chunk if rest else chunk
            self.received = self.batch = time.monotonic_ns()

    def _fill_long(self, rest, missing):
        """A long frame goes into one buffer, in as few calls as the socket allows."""
        buffer = bytearray(len(rest) + missing)
        buffer[: len(rest)] = rest
        view = memoryview(buffer)[len(rest) :]
        while view:
            count = self.sock.recv_into(view)
            if not count:
                os._exit(0)
            view = view[count:]
        return buffer

    def has_cancel(self, id):
        """Whether a CANCEL of job ``id`` is among the bytes that were received and are not handled yet."""
        for data, start in ((self.data, self.pos), (self.ahead, None)):
            if start is None:
                if not self.ahead:
                    return False
                data, start = bytes(self.data[self.pos :]) + self.ahead, 0
            at = start
            while at + frames.HEADER_LEN <= len(data):
                length, kind, _, _, other = frames.HEADER.unpack_from(data, at)
                if kind == frames.CANCEL and other == id:
                    return True
                at += frames.HEADER_LEN + length
        return False

    def is_cancelled(self, id):
        """Whether a CANCEL of the running job has arrived; does not block."""
        while len(self.ahead) < 8 << 20:
            readable, _, _ = select.select([self.sock], [], [], 0)
            if not readable:
                break
            chunk = self.sock.recv(65536)
            if not chunk:
                return True
            self.ahead += chunk
        return self.has_cancel(id)

    def leave(self):
        """Ask to be retired; once."""
        if not self.left:
            self.left = True
            self.send(frames.frame(frames.LEAVE))


_SDK = "python/0.1.0"
_FD_SPACE = socket.CMSG_SPACE(4)
