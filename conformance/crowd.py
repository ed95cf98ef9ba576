"""Many bare connections in one thread, for stampedes: who was answered what, and when."""

import os
import select
import socket
import struct
import tempfile
import time

import harness

COMPLETE = (b"END\r\n", b"ERROR busy\r\n", b"STORED\r\n")
"""How a whole reply to a classic `get` or `set` ends, of values that do not end so."""

HOLDS = 'hold = "30s"\nhold_many = "30s"\nhold_behind = "30s"\nlease = "30s"\n'
"""Terms under which nothing is answered because time has passed, unless a test is about that."""

WIDE_FENCE = '[server]\nfence_memory = "256MiB"\n'
"""So that fills of keys that are computed at the same time do not meet in a slot. That is harmless, one is computed once
more; but with the fence of `-m 1024` two of 45 runs with 300 keys on a busy machine saw it."""


HELD_ENDS = (
    "held_filled promoted_close promoted_deadline promoted_invalidated promoted_gave_up promoted_slot hold_expired released held_reentered "
    "cycles_avoided held_own_write held_withdrawn held_gone held_passed held_failed held_unruled"
).split()
"""The counters of `stats rules` of which each held get ends in one."""


def write_rules(directory, text):
    """A rule file; its path."""
    handle, path = tempfile.mkstemp(suffix=".toml", dir=directory)
    with os.fdopen(handle, "w") as f:
        f.write(text)
    os.chmod(path, 0o644)
    return path


def rule(match="page:{id}", terms=HOLDS):
    return f'[[rule]]\nmatch = "{match}"\n{terms}\n'


def held(server):
    """Requests that wait."""
    return int(server.stats("cattlegrid")["held"])


def until_held(server, count, seconds=40.0):
    end = time.monotonic() + seconds
    while (now := held(server)) != count:
        assert time.monotonic() < end, f"{now} held, not {count}"
        time.sleep(0.002)


def reset(sock):
    """Closes a socket so that its peer gets a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Crowd:
    """`count` connections. What arrives is kept for each until it is a whole reply."""

    def __init__(self, server, count):
        harness.allow_files(count + 500)
        self.poll = select.epoll()
        self.sockets, self.buffers = {}, {}
        self.order = []
        for _ in range(count):
            s = server.connect(30)
            s.setblocking(False)
            self.sockets[s.fileno()] = s
            self.buffers[s.fileno()] = b""
            self.order.append(s.fileno())
            self.poll.register(s.fileno(), select.EPOLLIN)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in self.sockets.values():
            s.close()
        self.poll.close()

    def __len__(self):
        return len(self.sockets)

    def send(self, data, who=None):
        """Sends to one, or to all; `data` may be a function of the place in the crowd."""
        if who is not None:
            return self.sockets[who].send(data)
        for place, number in enumerate(self.order):
            if number in self.sockets:
                self.sockets[number].send(data(place) if callable(data) else data)

    def drop(self, who, by_reset=True):
        """This one leaves."""
        self.poll.unregister(who)
        s = self.sockets.pop(who)
        self.buffers.pop(who)
        if by_reset:
            reset(s)
        else:
            s.close()

    def replies(self, count, seconds=40.0, ends=COMPLETE):
        """The next `count` whole replies as (who, reply, time). One reply is under way a connection."""
        out, end = [], time.monotonic() + seconds
        while len(out) < count:
            left = end - time.monotonic()
            assert left > 0, f"{len(out)} replies instead of {count}; last {out[-1:]}"
            out += self.poll_once(left, ends)
        assert len(out) == count, f"{len(out)} replies instead of {count}"
        return out

    def poll_once(self, seconds=0.0, ends=COMPLETE):
        """Whole replies that are there, or the first to come within this many seconds."""
        out = []
        for number, _ in self.poll.poll(seconds, 1024):
            try:
                got = self.sockets[number].recv(1 << 16)
            except BlockingIOError:
                continue
            assert got, f"connection closed after {self.buffers[number]!r}"
            self.buffers[number] += got
            if self.buffers[number].endswith(ends):
                out.append((number, self.buffers[number], time.monotonic()))
                self.buffers[number] = b""
        return out

    def silent(self):
        """Nothing has arrived but what was handed out."""
        return not self.poll.poll(0) and not any(self.buffers.values())


def percentiles(values):
    """(p50, p99, most)."""
    values = sorted(values)
    return values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)], values[-1]


def show(capsys, text):
    """Says what was measured, past pytest's capture."""
    with capsys.disabled():
        print(f"\n    measured: {text}", end="")
