"""`-o io_uring`: replies to several connections leave in one system call. The server is stopped while requests are sent, so that it finds all
of them at once."""

import os
import signal
import socket
import struct
import sys
import threading

import pytest

import differential
import harness
from harness import Raw, wait_until

pytestmark = pytest.mark.only_cattlegrid

OPTIONS = ("-m", "256", "-t", "2", "-o", "io_uring")


@pytest.fixture(params=["tcp", "unix"])
def ringed(request, start, open_dir):
    server = start(*OPTIONS, *(("-s", f"{open_dir}/socket") if request.param == "unix" else ()))
    with server.raw() as c:
        lanes = lambda: c.stats("cattlegrid")["io_uring"] == "2"  # noqa: E731
        wait_until("both threads have begun", lambda: lanes() or "-o io_uring: " in server.log())
        if not lanes():
            pytest.skip("the kernel refuses io_uring: " + server.log())
    yield server
    assert server.running(), server.log()


class together:
    """What is sent in the block arrives at once."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.server.signal(signal.SIGSTOP)

    def __exit__(self, *_):
        self.server.signal(signal.SIGCONT)


def connections(server, count, room=None):
    """`room`: bytes that the client's socket takes before it is read."""
    made = []
    for _ in range(count):
        s = socket.socket(socket.AF_UNIX if server.unix else socket.AF_INET)
        if room:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        s.settimeout(60)
        s.connect(server.unix or ("127.0.0.1", server.port))
        made.append(Raw(s))
        made[-1].ask(b"")
    return made


def test_off_by_default(start):
    with start().raw() as c:
        assert c.stats("cattlegrid")["io_uring"] == "0"


def test_pipelines_on_many_connections(ringed):
    crowd = connections(ringed, 100)
    for turn in range(40):
        values = [bytes([65 + (turn + n) % 26]) * ((turn * 37 + n * n) % 3000) for n in range(len(crowd))]
        with together(ringed):
            for n, (c, value) in enumerate(zip(crowd, values)):
                c.send(b"set k%d 0 0 %d noreply\r\n%s\r\n" % (n, len(value), value))
                c.send(b"get k%d\r\n" % n * (1 + n % 32) + b"mg none\r\nmn\r\n")
        for n, (c, value) in enumerate(zip(crowd, values)):
            one = b"VALUE k%d 0 %d\r\n%s\r\nEND\r\n" % (n, len(value), value)
            assert c.until_mn() == one * (1 + n % 32) + b"EN\r\n"


def test_slow_readers_get_all_of_it(ringed):
    """Sockets that take only a part, or nothing, among sockets that take all."""
    value = os.urandom(20_000)
    slow, quick = connections(ringed, 30, room=4096), connections(ringed, 30)
    quick[0].set(b"v", value)
    one = b"VALUE v 0 %d\r\n%s\r\nEND\r\n" % (len(value), value)
    for turn in range(3):
        with together(ringed):
            for a, b in zip(slow, quick):
                a.send(b"get v\r\n" * 60 + b"mn\r\n")
                b.send(b"get v\r\nmn\r\n")
        for b in quick:
            assert b.until_mn() == one
    for a in slow:
        assert a.exactly(3 * (60 * len(one) + 4)) == 3 * (60 * one + b"MN\r\n")


def test_closed_connections_among_others(ringed):
    with ringed.raw() as c:
        c.set(b"v", b"x" * 1000)
    stay = connections(ringed, 20)
    wait_until("the others have gone", lambda: stay[0].stats()["curr_connections"] == "20")
    descriptors = ringed.settled_descriptors()
    for turn in range(20):
        leave = connections(ringed, 20)
        with together(ringed):
            for n, (a, b) in enumerate(zip(stay, leave)):
                a.send(b"get v\r\nmn\r\n")
                b.send(b"get v\r\n" * (1 + n * 10))
                if n % 2 and not ringed.unix:
                    b.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                b.close()
        for a in stay:
            assert a.until_mn() == b"VALUE v 0 1000\r\n%s\r\nEND\r\n" % (b"x" * 1000)
    wait_until("the closed ones are gone", lambda: ringed.settled_descriptors() <= descriptors)


def test_same_replies_among_others(start, request):
    """Random streams on a connection that is served in step with others."""
    reference = harness.Server(harness.tool(request.config.getoption("--reference-bin")), "memcached", ["-m", "2048"])
    stopping = threading.Event()

    def ask():
        crowd = connections(server, 24)
        while not stopping.is_set():
            for c in crowd:
                c.send(b"mn\r\n")
            for c in crowd:
                c.until_mn()

    server = start("-m", "2048", "-t", "1", "-o", "io_uring")
    others = threading.Thread(target=ask)
    others.start()
    try:
        _, reports, unstable = differential.compare(server.port, reference.port, 300, 1)
    finally:
        stopping.set()
        others.join()
        reference.clean()
    assert not reports, "\n".join(reports)
    assert len(unstable) <= 1, "\n".join(unstable)


REFUSES = """#!{python}
# Starts the server where io_uring_setup (425) is not permitted.
import ctypes, os, struct, sys
code = b"".join(struct.pack("HBBI", *line) for line in [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)])
code = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv({binary!r}, [{binary!r}] + sys.argv[1:])
"""


def test_a_kernel_that_refuses(binary, tmp_path):
    """The server says so once, and serves."""
    wrapper = tmp_path / "server"
    wrapper.write_text(REFUSES.format(python=sys.executable, binary=binary))
    wrapper.chmod(0o755)
    server = harness.Server(wrapper, "cattlegrid", OPTIONS)
    try:
        crowd = connections(server, 20)
        with together(server):
            for c in crowd:
                c.send(b"get none\r\nmn\r\n")
        assert [c.until_mn() for c in crowd] == [b"END\r\n"] * 20
        assert crowd[0].stats("cattlegrid")["io_uring"] == "0"
        # Another thread writes the log.
        wait_until("it says so", lambda: "kernel.io_uring_disabled" in server.log())
        assert server.log().count("-o io_uring: ") == 1, server.log()
    finally:
        server.clean()
