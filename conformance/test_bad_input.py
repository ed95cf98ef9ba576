"""Bad input: the exact replies, and that the server keeps serving others meanwhile with its memory bounded."""

import contextlib
import re
import socket
import struct
import threading
import time

import pytest

from harness import ALL_BYTES, ITEM_MAX, PROMPT, Closed, allow_files, wait_until

BAD = b"CLIENT_ERROR bad command line format\r\n"
LONG = b"k" * 251
MIB = 1 << 20

# (what, sent, reply of 1.6.45, reply of 1.6.18 where it differs). K is a key of the case's own, holding "old".
CASES = [
    ("no such command", b"bogus\r\n", b"ERROR\r\n", None),
    ("commands are lower case", b"SET K 0 0 1\r\n", b"ERROR\r\n", None),
    ("blank line", b"\r\n", BAD, b"ERROR\r\n"),
    ("get without a key", b"get\r\n", BAD, b"ERROR\r\n"),
    ("mg without a key", b"mg\r\n", BAD, b"ERROR\r\n"),
    ("touch without a time", b"touch K\r\n", BAD, b"ERROR\r\n"),
    ("incr without a number", b"incr K\r\n", BAD, b"ERROR\r\n"),
    ("verbosity without a level", b"verbosity\r\n", BAD, b"ERROR\r\n"),
    ("key too long in delete", b"delete " + LONG + b"\r\n", BAD, None),
    ("key too long in incr", b"incr " + LONG + b" 1\r\n", BAD, None),
    ("key too long in touch", b"touch " + LONG + b" 1\r\n", BAD, None),
    ("key too long in mg", b"mg " + LONG + b" v\r\n", BAD, None),
    ("key too long in set", b"set " + LONG + b" 0 0 1\r\nx\r\n", BAD, BAD + b"ERROR\r\n"),
    ("key too long in ms", b"ms " + LONG + b" 1\r\nx\r\n", BAD, BAD + b"ERROR\r\n"),
    ("longest key", b"set " + b"k" * 250 + b" 0 0 1\r\nx\r\ndelete " + b"k" * 250 + b"\r\n", b"STORED\r\nDELETED\r\n", None),
    ("negative length", b"set K 0 0 -1\r\nget K\r\n", BAD + b"VALUE K 0 3\r\nold\r\nEND\r\n", None),
    ("huge length", b"set K 0 0 2147483647\r\nget K\r\n", BAD + b"VALUE K 0 3\r\nold\r\nEND\r\n", None),
    ("negative length in ms", b"ms K -1\r\nget K\r\n", BAD + b"VALUE K 0 3\r\nold\r\nEND\r\n", None),
    ("negative client flags swallow the block", b"set K -1 0 1\r\nx\r\n", BAD, BAD + b"ERROR\r\n"),
    ("exptime that is none", b"touch K x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n", None),
    ("exptime that is none in gat", b"gat x K\r\n", b"CLIENT_ERROR invalid exptime argument\r\n", None),
    ("exptime that is none in flush_all", b"flush_all x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n", None),
    ("delta that is none", b"incr K x\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n", None),
    ("negative delta", b"decr K -1\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n", None),
    ("counting on text", b"incr K 1\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n", None),
    ("counting on text with ma", b"ma K\r\n", b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n", None),
    ("flag that is none", b"mg K d\r\n", b"CLIENT_ERROR invalid flag\r\n", None),
    ("flag twice", b"mg K v v\r\n", b"CLIENT_ERROR duplicate flag\r\n", None),
    ("flag that is none in ms swallows the block", b"ms K 3 d\r\nnew\r\n", b"CLIENT_ERROR invalid flag\r\n", None),
    ("flag that is none in md", b"md K d\r\n", b"CLIENT_ERROR invalid flag\r\n", b"CLIENT_ERROR invalid or duplicate flag\r\n"),
    ("token that is none", b"mg K v Tx\r\n", b"CLIENT_ERROR bad token in command line format\r\n", None),
    ("mode that is none", b"ms K 1 MQ\r\nx\r\n", b"CLIENT_ERROR invalid mode for ms M token\r\n", None),
    ("key that is not base64", b"mg !!! b v\r\n", b"CLIENT_ERROR error decoding key\r\n", None),
    ("too much data", b"set K 0 0 2\r\nxyz\r\n", b"CLIENT_ERROR bad data chunk\r\n" + BAD, b"CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ("data that ends otherwise", b"set K 0 0 3\r\nabcde", b"CLIENT_ERROR bad data chunk\r\n", None),
    ("a bad block leaves the old value", b"set K 0 0 3\r\nabcdeget K\r\n", b"CLIENT_ERROR bad data chunk\r\nVALUE K 0 3\r\nold\r\nEND\r\n", None),
    (
        "a value too large swallows its block and removes the old value",
        b"set K 0 0 %d\r\n%s\r\nget K\r\n" % (ITEM_MAX + 1, b"x" * (ITEM_MAX + 1)),
        b"SERVER_ERROR object too large for cache\r\nEND\r\n",
        None,
    ),
    (
        "so does ms",
        b"ms K %d\r\n%s\r\nget K\r\n" % (ITEM_MAX + 1, b"x" * (ITEM_MAX + 1)),
        b"SERVER_ERROR object too large for cache\r\nEND\r\n",
        None,
    ),
    ("shutdown", b"shutdown\r\n", b"SERVER_ERROR: shutdown not enabled\r\n", b"ERROR: shutdown not enabled\r\n"),
    ("verbosity", b"verbosity 1\r\nverbosity 0\r\n", b"OK\r\nOK\r\n", None),
    ("bare line feeds", b"set K 0 0 3\nnew\r\nget K\n", b"STORED\r\nVALUE K 0 3\r\nnew\r\nEND\r\n", None),
    ("blanks between and after words", b"get   K  \r\n", b"VALUE K 0 3\r\nold\r\nEND\r\n", None),
    ("no reply to anything with noreply", b"set K 0 0 1 noreply\r\n5\r\nadd K 0 0 1 noreply\r\n6\r\nreplace K 0 0 1 noreply\r\n7\r\n"
     b"append K 0 0 1 noreply\r\n0\r\nprepend K 0 0 1 noreply\r\n1\r\ncas K 0 0 1 1 noreply\r\n0\r\nincr K 1 noreply\r\ndecr K 2 noreply\r\n"
     b"touch K 0 noreply\r\nverbosity 0 noreply\r\nget K\r\ndelete K noreply\r\nget K\r\n", b"VALUE K 0 3\r\n169\r\nEND\r\nEND\r\n", None),
    ("incr wraps at 2^64", b"set K 0 0 20\r\n18446744073709551615\r\nincr K 3\r\n", b"STORED\r\n2\r\n", None),
    ("decr stops at 0 and keeps the length", b"set K 0 0 2\r\n10\r\ndecr K 11\r\nget K\r\n", b"STORED\r\n0\r\nVALUE K 0 2\r\n0 \r\nEND\r\n", None),
    ("a negative exptime has passed", b"set K 0 -1 1\r\nx\r\nget K\r\n", b"STORED\r\nEND\r\n", None),
    ("30 days are relative", b"set K 0 2592000 1\r\nx\r\nget K\r\n", b"STORED\r\nVALUE K 0 1\r\nx\r\nEND\r\n", None),
    ("more is a time that has passed", b"set K 0 2592001 1\r\nx\r\nget K\r\n", b"STORED\r\nEND\r\n", None),
    ("a time to come", b"set K 0 2000000000 1\r\nx\r\nget K\r\n", b"STORED\r\nVALUE K 0 1\r\nx\r\nEND\r\n", None),
    ("an exptime of a store has its lower 32 bits", b"set K 0 4294967295 1\r\nx\r\nget K\r\n", b"STORED\r\nEND\r\n", None),
    ("2^31 is negative", b"set K 0 2147483648 1\r\nx\r\nget K\r\n", b"STORED\r\nEND\r\n", None),
    ("2^32 is never", b"set K 0 4294967296 1\r\nx\r\nmg K t\r\n", b"STORED\r\nHD t-1\r\n", None),
    ("2^63 is none", b"set K 0 9223372036854775808 1\r\nx\r\nget K\r\n", BAD + b"VALUE K 0 3\r\nold\r\nEND\r\n",
     BAD + b"ERROR\r\nVALUE K 0 3\r\nold\r\nEND\r\n"),
    ("touch and gat want 32 bits", b"touch K 2147483648\r\ngat 4294967295 K\r\nget K\r\n",
     b"CLIENT_ERROR invalid exptime argument\r\n" * 2 + b"VALUE K 0 3\r\nold\r\nEND\r\n", b"TOUCHED\r\nEND\r\nEND\r\n"),
    ("so do meta commands", b"mg K T2147483648\r\nmg K N4294967295\r\nms K 1 T4294967295\r\nx\r\nget K\r\n",
     b"CLIENT_ERROR bad token in command line format\r\n" * 3 + b"VALUE K 0 3\r\nold\r\nEND\r\n",
     b"HD\r\nHD W\r\nHD\r\nEND\r\n"),
    ("a negated number of 64 bits", b"set K -18446744073709551615 0 1\r\n7\r\nincr K -9223372036854775809\r\nmg K f\r\n",
     b"STORED\r\nCLIENT_ERROR invalid numeric delta argument\r\nHD f1\r\n", b"STORED\r\n9223372036854775814\r\nHD f1\r\n"),
    ("memory limits that cannot be", b"cache_memlimit 7\r\ncache_memlimit 1000000001\r\ncache_memlimit 4294967296\r\n",
     b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nMEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\nERROR\r\n",
     b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\nMEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
     b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
    ("pauses of the crawler", b"lru_crawler sleep 1000000\r\nlru_crawler sleep 1000001\r\nlru_crawler sleep -1\r\nlru_crawler tocrawl 4294967295\r\n",
     b"OK\r\nCLIENT_ERROR sleep must be one second or less\r\n" + BAD + b"OK\r\n", None),
    ("classes of slabs", b"slabs reassign 60 1\r\nslabs reassign 1 1\r\nslabs reassign 1 2147483648\r\n",
     b"BADCLASS invalid src or dst class id\r\nSAME src and dst class are identical\r\n" + BAD,
     b"BADCLASS invalid src or dst class id\r\nSAME src and dst class are identical\r\nBADCLASS invalid src or dst class id\r\n"),
]


@pytest.mark.parametrize("send, reply, reply_1_6_18", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_reply(raw, key, is_1_6_18, send, reply, reply_1_6_18):
    k = key.encode()
    assert raw.set(k, b"old") == b"STORED"
    want = reply_1_6_18 if is_1_6_18 and reply_1_6_18 else reply
    assert raw.ask(re.sub(rb"\bK\b", k, send)) == re.sub(rb"\bK\b", k, want)
    assert raw.set(k, b"after") == b"STORED" and raw.get(k) == b"after"


def test_every_cut_of_a_conversation(server, key):
    """The same commands in two sends, cut at every place."""
    k = key.encode()
    send = b"set %s 5 0 10\r\nab\r\ncd\r\nef\r\nget %s\r\nms %s 2 c0 q\r\nhi\r\nmg %s v f k\r\nbogus\r\nincr %s 1\nmd %s q\r\nmn\r\n" % ((k,) * 6)
    replies = set()
    for at in range(1, len(send)):
        with server.raw() as c:
            c.send(send[:at])
            c.send(send[at:])
            got = b""
            while not got.endswith(b"MN\r\n"):
                got += c.line() + b"\r\n"
            replies.add(got)
    assert len(replies) == 1, replies


@pytest.mark.parametrize("verb", [b"GET / HTTP/1.1", b"POST /x HTTP/1.1"])
def test_http_closes(server, raw, verb):
    """A browser tricked into talking to a cache gets nowhere."""
    raw.send(verb + b"\r\nHost: cache\r\n\r\nset http 0 0 1\r\nx\r\n")
    raw.closed()
    with server.raw() as c:
        assert c.get(b"http") is None


@pytest.mark.parametrize("verb", [b"get", b"gets", b"gat 10", b"gats 10"])
def test_key_too_long_in_get(raw, key, verb):
    """An error, no values. (memcached 1.6.45 adds an empty line, which the recorded answers show.)"""
    k = key.encode()
    raw.set(k, b"v")
    got = raw.ask(verb + b" %s %s %s\r\n" % (k, LONG, k))
    assert got.rstrip().endswith(BAD.rstrip()) and b"END" not in got
    assert raw.get(k) == b"v"


def test_a_packet_whose_magic_comes_alone(server, raw):
    """The first byte decides for the whole connection, in however many pieces the rest comes."""
    header = b"\x80\x00\0\x01\0\0\0\0\0\0\0\x01wxyz" + b"\0" * 8
    miss = b"\x81\x00\0\0\0\0\0\x01\0\0\0\x09wxyz" + b"\0" * 8 + b"Not found"
    raw.send(header[:1])
    time.sleep(0.05)  # so that it most likely comes in two pieces; in one it must be answered likewise
    raw.send(header[1:] + b"k" + header + b"k" + b"get k\r\n" + b" " * 24)
    assert raw.closed() in (miss * 2, miss, b""), "text is no packet: memcached may lose the replies before it"


@pytest.mark.only_cattlegrid
def test_a_binary_quit_closes(server, raw):
    raw.send(b"\x80\x07" + b"\0" * 22)
    got = raw.closed()
    assert b"VALUE" not in got and len(got) < 200
    assert server.running()


def test_a_line_without_end_closes(raw):
    with contextlib.suppress(ConnectionError):
        raw.send(b"a" * 100_000)
    assert len(raw.closed()) < 100


def test_a_long_get_is_served(raw, key):
    """`get` may be longer than 2,048 bytes, also in pieces."""
    names = [f"{key}-{i}".encode() for i in range(1000)]
    for n in names:
        raw.send(b"set %s 0 0 1 noreply\r\nx\r\n" % n)
    for verb in (b"get", b"gets"):
        send = verb + b" " + b" ".join(names) + b"\r\n"
        raw.send(send[:3000])
        raw.send(send[3000:])
        got = raw.until(b"END\r\n")
        assert got.count(b"VALUE ") == 1000


def test_store_without_memory(start):
    """With -M a full cache says so, and keeps what it has."""
    server = start("-M", "-m", "16")
    with server.raw() as c:
        value = b"x" * 100_000
        replies = []
        for i in range(1000):
            replies.append(c.set(b"k%d" % i, value))
            if replies[-1] != b"STORED":
                break
        assert replies[-1] == b"SERVER_ERROR out of memory storing object"
        assert len(replies) > 50
        assert c.get(b"k0") == value
        assert c.get(b"k%d" % (len(replies) - 1)) is None
        assert c.stats()["evictions"] == "0"


def test_noreply_without_memory_is_silent(start):
    """With -M: errors are not said either, only `set` drops the old value, and every later reply is the right one."""
    server = start("-M", "-m", "16")
    with server.raw() as c:
        for key in (b"a", b"b", b"n"):
            assert c.set(key, b"1") == b"STORED"
        value = b"x" * 100_000
        assert any(c.set(b"k%d" % i, value) != b"STORED" for i in range(1000))
        size = b" 0 0 %d noreply\r\n" % len(value) + value + b"\r\n"
        before = int(c.stats()["store_no_memory"])
        c.send(b"replace a" + size + b"add new" + size + b"set b" + size + b"get a b n new\r\n")
        assert c.until(b"END\r\n") == b"VALUE a 0 1\r\n1\r\nVALUE n 0 1\r\n1\r\nEND\r\n"
        assert int(c.stats()["store_no_memory"]) == before + 3
        # A number that grows is written anew.
        for i in range(200_000):
            c.send(b"set n%d 0 0 1 noreply\r\n9\r\n" % i if i % 100 else b"set n%d 0 0 1\r\n9\r\n" % i)
            if i % 100 == 0 and c.line() != b"STORED":
                break
        c.send(b"".join(b"incr n%d 1000000000000000000 noreply\r\n" % j for j in range(i)) + b"get a\r\n")
        assert c.until(b"END\r\n") == b"VALUE a 0 1\r\n1\r\nEND\r\n"


class Witness(threading.Thread):
    """Another client that asks all the time; `slowest` is its longest wait, `wrong` what it got otherwise."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stopping = server, threading.Event()
        self.slowest, self.rounds, self.wrong, self.most_rss = 0.0, 0, [], 0

    def __enter__(self):
        self.rss_before = self.server.rss()
        self.start()
        wait_until("the witness is served", lambda: self.rounds > 0 or self.wrong)
        return self

    def __exit__(self, kind, *_):
        rounds = self.rounds
        if kind is None:
            wait_until("the witness is still served", lambda: self.rounds > rounds + 2 or self.wrong)
        self.stopping.set()
        self.join(30)

    def run(self):
        try:
            with self.server.raw() as c:
                while not self.stopping.is_set():
                    began = time.monotonic()
                    value = b"%d" % self.rounds
                    c.send(b"set witness 0 0 %d\r\n%s\r\nget witness\r\n" % (len(value), value))
                    got = c.until(b"END\r\n")
                    if got != b"STORED\r\nVALUE witness 0 %d\r\n%s\r\nEND\r\n" % (len(value), value):
                        self.wrong.append(got)
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self.most_rss = max(self.most_rss, self.server.rss())
                    self.rounds += 1
                    self.stopping.wait(0.02)
        except (Closed, OSError) as error:
            self.wrong.append(error)

    def check(self, capsys, what, rss_bound):
        with capsys.disabled():
            print(
                f"\n  {what}: others waited {self.slowest * 1000:.0f} ms at most,"
                f" RSS {self.rss_before / MIB:.1f} -> {self.most_rss / MIB:.1f} MiB (bound {rss_bound / MIB:.0f})"
            )
        assert not self.wrong, self.wrong
        assert self.slowest < PROMPT
        assert self.most_rss < rss_bound
        assert self.server.running(), self.server.log()


def test_10000_connections_with_half_a_command(start, capsys):
    allow_files(16000)
    server = start("-c", "12000")
    halves = [b"g", b"get", b"get some-key", b"set k 0 0 10\r\nabc", b"mg k", b"set k 0 0 1048", b"ms k 5\r\nhel"]
    connections = []
    try:
        with Witness(server) as witness:
            for i in range(10_000):
                c = server.connect()
                connections.append(c)
                c.send(halves[i % len(halves)])
            wait_until("all are connected", lambda: int(server.stats()["curr_connections"]) >= 10_000)
            connections[1].send(b" absent\r\n")
            assert connections[1].recv(100) == b"END\r\n"
    finally:
        for c in connections:
            c.close()
    # 20 KiB for each connection, and the cache itself.
    witness.check(capsys, "10,000 connections with half a command", 64 * MIB + 10_000 * 20 * 1024)
    wait_until("all are gone", lambda: int(server.stats()["curr_connections"]) < 20, 60)


def test_a_client_that_never_reads(start, capsys):
    server = start("-m", "64")
    with server.raw() as c:
        value = ALL_BYTES * 4000
        c.set(b"large", value)
    lazy = [server.connect() for _ in range(8)]
    try:
        with Witness(server) as witness:
            for s in lazy:
                s.setblocking(False)
                request = b"get large\r\n" * 10_000
                with contextlib.suppress(BlockingIOError):
                    while request:
                        request = request[s.send(request) :]
            served = witness.rounds
            wait_until("others are served meanwhile", lambda: witness.rounds > served + 30 or witness.wrong)
            # They may still have what they asked for.
            lazy[0].settimeout(2 * PROMPT)
            head = lazy[0].recv(19)
            assert head.startswith(b"VALUE large 0 10240"), head
    finally:
        for s in lazy:
            s.close()
    witness.check(capsys, "8 clients that asked for 10,000 MiB each and never read", 64 * MIB + 128 * MIB)


def test_a_client_that_sends_byte_by_byte(server, key, capsys):
    with Witness(server) as witness, server.raw() as slow:
        for byte in b"set slow 0 0 5\r\nhe\r\nl\r\nget slow\r\n":
            slow.send(bytes([byte]))
            rounds = witness.rounds
            wait_until("the other client goes on", lambda: witness.rounds > rounds or witness.wrong)
        assert slow.line() == b"STORED"
        assert slow.until(b"END\r\n") == b"VALUE slow 0 5\r\nhe\r\nl\r\nEND\r\n"
    witness.check(capsys, "a byte at a time", 300 * MIB)


def test_values_announced_and_never_sent(start, capsys):
    server = start("-m", "64")
    connections = []
    with Witness(server) as witness:
        for i in range(30):
            c = server.connect()
            connections.append(c)
            c.send(b"set never%d 0 0 1000000\r\n" % i)
        rounds = witness.rounds
        wait_until("others are served meanwhile", lambda: witness.rounds > rounds + 20 or witness.wrong)
        with server.raw() as c:
            assert c.get(b"never0") is None
        for c in connections:
            c.close()
        with server.raw() as c:
            assert c.get(b"never0") is None
            for i in range(40):  # the memory is free again
                assert c.set(b"later%d" % i, b"x" * 900_000) == b"STORED"
    witness.check(capsys, "30 values announced and never sent", 64 * MIB + 64 * MIB)


def test_huge_values_announced(start, capsys):
    """More than the limit: refused or swallowed, never reserved."""
    server = start("-m", "64")
    connections = []
    with Witness(server) as witness:
        for i in range(50):
            c = server.connect()
            connections.append(c)
            c.send(b"set k 0 0 %d\r\n" % (1 << 30) + b"x" * 10_000)
        rounds = witness.rounds
        wait_until("others are served meanwhile", lambda: witness.rounds > rounds + 20 or witness.wrong)
        for c in connections:
            c.close()
    witness.check(capsys, "50 x 1 GiB announced", 64 * MIB + 16 * MIB)


def test_lines_without_end(start, capsys):
    server = start("-m", "64")
    with Witness(server) as witness:
        for start_of_line in (b"get ", b"gets ", b"set ", b"mg ", b"", b"get " + b" " * 3000):
            with server.raw() as c, contextlib.suppress(ConnectionError, TimeoutError):
                c.sock.settimeout(1)
                c.send(start_of_line)
                for _ in range(64):
                    c.send(b"abc " * 16384)
    witness.check(capsys, "4 MiB without a line's end", 64 * MIB + 64 * MIB)


def test_many_connections_come_and_go(start, capsys):
    """Opened and closed at once, also with a reset: nothing is left behind."""
    server = start()
    with Witness(server) as witness:
        for i in range(3000):
            s = server.connect()
            if i % 3:
                s.send(b"get a\r\nset b 0 0 100\r\nabc")
            if i % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
    witness.check(capsys, "3,000 connections opened and dropped", 64 * MIB + 32 * MIB)
    wait_until("all are gone", lambda: int(server.stats()["curr_connections"]) < 10, 60)


@pytest.mark.parametrize("size, reply", [(0, b"CLIENT_ERROR"), (1, b"EX"), (100_000, b"EX"), (524_224, b"EX"), (524_225, b"CLIENT_ERROR")])
def test_arithmetic_with_a_wrong_cas_on_what_is_no_number(raw, size, reply):
    raw.send(b"set first 0 0 1\r\nx\r\nset k 1 0 %d\r\n%s\r\nma k C1\r\n" % (size, b"x" * size))
    assert (raw.line(), raw.line()) == (b"STORED", b"STORED")
    assert raw.line().split()[0] == reply
