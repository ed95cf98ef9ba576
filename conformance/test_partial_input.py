"""Input that connections keep: each byte counts under one cap, whatever it is a part of; and parts that only wait are closed when idle."""

import contextlib
import os
import socket
import struct
import time

import pytest

from harness import MIB, allow_files, wait_until
from test_operations import make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid


def own(server, name):
    return int(server.stats("cattlegrid")[name])


def packet(opcode, key=b"", value=b"", extras=b""):
    body = len(extras) + len(key) + len(value)
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, body, 0, 0) + extras + key + value


PARTS = {
    "a data block": b"set k 0 0 1000\r\n" + b"x" * 900,
    "an append": b"append k 0 0 1000\r\n" + b"x" * 900,
    "a meta block": b"ms k 1000\r\n" + b"x" * 900,
    "a line": b"get " + b"k" * 200,
    "three bytes": b"get",
    "a header": packet(0)[:3],
    "a header without its key": packet(0, b"k" * 200)[:100],
    "a packet's value": packet(1, b"k", b"x" * 1000, bytes(8))[:900],
}


@pytest.mark.parametrize("what", PARTS)
def test_each_byte_counts(start, what):
    server = start("-t", 2)
    part = PARTS[what]
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.raw()) for _ in range(10)]
        for c in clients:
            c.send(part)
        wait_until("all are counted", lambda: 10 * len(part) <= own(server, "partial_bytes") <= 20 * len(part) + 4096)
    wait_until("none is left", lambda: own(server, "partial_bytes") == 0)


def test_commands_that_wait_count(start):
    """Their client does not read: they are kept, and count."""
    server = start("-t", 1)
    with server.raw() as c:
        c.set(b"k", b"x" * 20_000)
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.send(b"get k\r\n" * 20_000)
        wait_until("they count", lambda: own(server, "partial_bytes") > 10_000)
    wait_until("none is left", lambda: own(server, "partial_bytes") == 0)


def test_a_part_of_a_record_counts(start, open_dir):
    make_certificate(open_dir)
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    with tls(server) as c:
        assert int(c.stats("cattlegrid")["partial_bytes"]) == 0
        with tls(server) as d:
            assert d.set(b"k", b"v") == b"STORED"
            os.write(d.sock.fileno(), b"\x17\x03\x03\x40\x00" + b"x" * 5000)
            wait_until("it counts", lambda: 5000 <= int(c.stats("cattlegrid")["partial_bytes"]) < 40_000)
        wait_until("none is left", lambda: int(c.stats("cattlegrid")["partial_bytes"]) == 0)


@pytest.mark.parametrize("form", [b"append k 0 0 64000\r\n", b"set k 0 0 64000\r\n"])
def test_many_parts_stay_under_the_cap(start, form):
    """4,000 connections with 63 KB each, which are 245 MiB."""
    allow_files(5000)
    server = start("-c", 6000, "-m", 64)
    before = server.rss()
    part = form + b"x" * 63_000
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.raw()) for _ in range(4000)]
        for c in clients:
            c.send(part)
        with server.raw() as other:
            # A client that keeps little is served meanwhile, in pieces too.
            other.send(b"set other 0 0 5\r\nab")
            time.sleep(0.1)
            other.send(b"cde\r\n")
            assert other.line() == b"STORED" and other.get(b"other") == b"abcde"
        assert 32 * MIB < own(server, "partial_bytes") <= 65 * MIB
        assert own(server, "uploads_refused") + own(server, "uploads_displaced") > 2000
        assert server.rss() - before < 134 * MIB
        grown = server.rss() - before
    # Pages of values that arrived follow within a minute.
    wait_until("what is free is returned", lambda: server.rss() - before < max(grown / 3, 24 * MIB), 40)
    assert own(server, "partial_bytes") == 0


IDLE = {name: part for name, part in PARTS.items() if name in ("a line", "three bytes", "a header", "a header without its key")}


@pytest.mark.parametrize("what", IDLE)
def test_idle_parts_are_closed(start, what):
    server = start("-o", "idle_timeout=1")
    with server.raw(10) as c, server.raw(10) as waits:
        c.send(IDLE[what])
        waits.send(PARTS["a data block"])
        assert c.closed(8) == b""
        waits.send(b"x" * 100 + b"\r\nmn\r\n")
        assert (waits.line(), waits.line()) == (b"STORED", b"MN"), "a data block is waited for"


def test_bytes_of_a_header_that_trickle_are_no_command(start):
    server = start("-o", "idle_timeout=1")
    with server.raw(10) as c:
        began = time.monotonic()
        try:
            for byte in packet(0, b"k"):
                c.send(bytes([byte]))
                time.sleep(0.8)
            c.closed(3)
        except OSError:
            pass
        assert time.monotonic() - began < 15, "all bytes of it take 19 s"
