"""What memcached 1.6.45 does and its recorded answers do not show: numbers, refusals, names and statistics."""

import os
import re
import subprocess

import pytest

import packets
from harness import free_port
from packets import INVALID, NOOP, OK, SASL_AUTH, SASL_STEP, VERSION, packet, plain
from test_operations import make_certificate, tls, users  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid

TOO_LARGE, UNKNOWN_OPCODE = 0x03, 0x5A
BAD = b"CLIENT_ERROR bad command line format"
DELTA = b"CLIENT_ERROR invalid numeric delta argument"
EXPTIME = b"CLIENT_ERROR invalid exptime argument"
TOKEN = b"CLIENT_ERROR bad token in command line format"
MA = b"CLIENT_ERROR invalid or duplicate flag"
ODD = [b"+5", b"5\t", b"5\r", b"5\tx", b"0" * 22 + b"5"]


@pytest.mark.parametrize("number", [*ODD, b"-0"])
def test_numbers_of_64_bits_are_digits(start, number):
    with start().raw() as c:
        assert c.set(b"k", b"10") == b"STORED"
        for line, wanted in (
            (b"incr k %s", DELTA), (b"decr k %s", DELTA), (b"cas k 0 0 1 %s\r\nx", BAD), (b"mg k C%s", TOKEN), (b"mg k E%s", TOKEN),
            (b"ms k 1 C%s\r\nx", TOKEN), (b"ms k 1 E%s\r\nx", TOKEN), (b"md k C%s", TOKEN), (b"md k E%s", TOKEN),
            (b"ma k D%s", MA), (b"ma k J%s", MA), (b"ma k C%s", MA), (b"ma k E%s", MA),
        ):
            assert c.ask(line % number + b"\r\n").strip() == wanted, line % number
        assert c.get(b"k") == b"10"


@pytest.mark.parametrize("number", ODD)
def test_times_of_other_commands_than_stores_are_digits(start, number):
    with start().raw() as c:
        assert c.set(b"k", b"10") == b"STORED"
        for line, wanted in (
            (b"touch k %s", EXPTIME), (b"gat %s k", EXPTIME), (b"gats %s k", EXPTIME), (b"ma k T%s", MA), (b"ma k N%s", MA),
            *((verb + letter + b"%s" + block, TOKEN) for verb, block in ((b"mg k ", b""), (b"md k ", b""), (b"ms k 1 ", b"\r\nx")) for letter in (b"T", b"N", b"R")),
        ):
            assert c.ask(line % number + b"\r\n").strip() == wanted, line % number
        assert c.get(b"k") == b"10" and c.ttl(b"k") == -1
        # A minus sign before a zero is none, and one alone is a zero.
        assert c.ask(b"touch k -0\r\n") == b"TOUCHED\r\n" and c.ask(b"touch k -\r\n") == b"TOUCHED\r\n"


def test_flags_and_times_of_classic_stores_are_read_as_before(start):
    with start().raw() as c:
        for flags, exptime in ((b"+5", b"+100"), (b"5\t", b"100\t"), (b"0" * 25 + b"5", b"0" * 25 + b"100"), (b"4294967301", b"4294967396")):
            assert c.ask(b"set k %s %s 1\r\nx\r\n" % (flags, exptime)) == b"STORED\r\n"
            assert re.fullmatch(rb"HD f5 t(100|99)\r\n", c.ask(b"mg k f t\r\n"))


@pytest.mark.parametrize("number", [b"4294967296", b"4294967301", b"18446744073709551616", b"-1", b"000000000005", *ODD])
def test_client_flags_of_ms_have_32_bits(start, number):
    with start().raw() as c:
        assert c.ask(b"ms k 1 F4294967295\r\nx\r\n") == b"HD\r\n"
        assert c.ask(b"ms k 1 F%s\r\ny\r\n" % number).strip() == BAD
        assert c.ask(b"mg k v f\r\n") == b"VA 1 f4294967295\r\nx\r\n"


def test_md_x_keeps_the_cas(start):
    def cas(c, flags=b""):
        return int(re.search(rb"c(\d+)", c.ask(b"mg k c" + flags + b"\r\n"))[1])

    with start().raw() as c:
        assert c.set(b"k", b"v", flags=7) == b"STORED"
        before = cas(c)
        assert c.ask(b"md k x\r\nmg k v f\r\n") == b"HD\r\nVA 0 f0\r\n\r\n"
        assert cas(c) == before
        assert c.ask(b"md k x T60\r\n") == b"HD\r\n" and cas(c) == before
        assert c.ask(b"cas k 0 0 3 %d\r\nnew\r\n" % before) == b"STORED\r\n"
        before = cas(c)
        assert c.ask(b"md k x E77\r\n") == b"HD\r\n" and cas(c) == 77
        assert c.ask(b"md k x I\r\n") == b"HD\r\n"
        assert cas(c) not in (before, 77), "marking it stale is a change"


@pytest.mark.parametrize("sent", ["text", "ms", "binary", "unknown"])
def test_a_refused_block_is_swallowed_before_the_answer(start, sent):
    """A client that writes all of its request before it reads takes an answer in the middle for another request's."""
    size = 3_000_000
    value = b"x" * size
    server = start("-t", 1)
    if sent in ("text", "ms"):
        head = b"set k 0 0 %d\r\n" % size if sent == "text" else b"ms k %d\r\n" % size
        request = head + value + b"\r\n"
    else:
        request = packet(packets.SET if sent == "binary" else UNKNOWN_OPCODE, b"k", value, extras=bytes(8), opaque=9)
    for pieces in (1, 7):
        c = server.raw() if sent in ("text", "ms") else packets.connect(server)
        step = -(-(len(request) - 1) // pieces)
        for at in range(0, len(request) - 1, step):
            c.send(request[at : min(at + step, len(request) - 1)])
        c.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            c.sock.recv(1)
        c.sock.settimeout(10)
        c.send(request[-1:])
        if sent in ("text", "ms"):
            assert c.line() == b"SERVER_ERROR object too large for cache"
            assert c.ask(b"mn\r\n") == b"MN\r\n"
        else:
            reply = c.reply()
            assert (reply.status, reply.opaque) == (TOO_LARGE if sent == "binary" else packets.UNKNOWN, 9)
            assert c.ask(packet(NOOP, opaque=3)).opaque == 3
        c.close()
    if sent != "unknown":
        assert server.stats()["store_too_large"] == "2"


def test_a_mechanism_that_is_too_long_is_no_login(start, users):  # noqa: F811
    server = start("-S", "-Y", users)
    for opcode in (SASL_AUTH, SASL_STEP):
        c = packets.connect(server)
        for name, wanted in ((b"M" * 32, packets.AUTH_ERROR), (b"M" * 33, INVALID), (b"M" * 250, INVALID)):
            assert c.ask(packet(opcode, name, b"\0alice\0secret")).status == wanted, name
        assert c.ask(plain(b"alice", b"secret")).status == OK
        stats = c.stats()
        c.close()
    assert (stats["auth_cmds"], stats["auth_errors"]) == ("4", "2")


def test_connections_of_a_unix_socket_are_watched_as_local(start, open_dir):
    server = start("-s", open_dir + "/socket")
    with server.raw() as w:
        w.send(b"watch connevents\r\n")
        assert w.line() == b"OK"
        server.raw().close()
        lines = [re.sub(rb"ts=\S+ gid=\d+ |cfd=\d+", b"", w.until(b"\n")).strip() for _ in range(2)]
    assert lines == [b"type=conn_new rip=unix rport=0 transport=local", b"type=conn_close rip=unix rport=0 transport=local reason=normal"]


def test_cachedump_ignores_more_words(start):
    with start().raw() as c:
        assert c.ask(b"stats cachedump 1 0 0\r\n") == b"END\r\n"
        c.set(b"k", b"v")
        assert c.ask(b"stats cachedump 1 0 0 x\r\n") == b"ITEM k [1 b; 0 s]\r\nEND\r\n"
        assert c.ask(b"stats cachedump 2 0 0\r\n") == b"END\r\n"
        assert c.ask(b"stats cachedump 1\r\n") == b"CLIENT_ERROR bad command line\r\n"
        assert c.ask(b"stats cachedump 1 +0\r\n").strip() == BAD


def test_the_version_is_memcacheds_and_our_own_is_beside_it(start, binary, open_dir):
    server = start()
    own = re.fullmatch(r"cattlegrid (\d+\.\d+\.\d+)\n", subprocess.run([binary, "-V"], capture_output=True, text=True).stdout.splitlines(True)[0])[1]
    with server.raw() as c:
        assert c.ask(b"version\r\n") == b"VERSION 1.6.45\r\n"
        assert c.stats()["version"] == "1.6.45" and c.stats("cattlegrid")["version"] == own
    c = packets.connect(server)
    assert c.ask(packet(VERSION)).value == b"1.6.45" and c.stats()["version"] == "1.6.45"
    assert c.stats("cattlegrid")["version"] == own
    c.close()
    # As `memcached` it says memcached's version first, and still its own.
    os.symlink(os.path.abspath(binary), open_dir + "/memcached")
    said = subprocess.run([open_dir + "/memcached", "-V"], capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "memcached 1.6.45" and said[1].startswith(f"cattlegrid {own}")
    # What of ours names a server names it by `stats cattlegrid`.
    other = start()
    done = subprocess.run(
        [binary, "bench", f"127.0.0.1:{server.port}", "--vs", f"127.0.0.1:{other.port}", "--seconds", "1", "--keys", "100"],
        capture_output=True, text=True, timeout=60,
    )
    assert f"cattlegrid {own}" in done.stdout + done.stderr, done


CRAWLER = {"lru_crawler_running", "lru_crawler_starts"}
MAINTAINER = {"lru_maintainer_juggles", "evicted_active", "moves_to_cold", "moves_to_warm", "moves_within_lru", "direct_reclaims", "lru_bumps_dropped"}
MOVER = {
    "slab_reassign_rescues", "slab_reassign_chunk_rescues", "slab_reassign_inline_reclaim", "slab_reassign_busy_items", "slab_reassign_busy_deletes",
    "slab_reassign_busy_nomem", "slab_reassign_last_busy_status", "slab_reassign_running", "slabs_moved",
}
QUEUES = {
    "number_hot", "number_warm", "number_cold", "age_hot", "age_warm", "evicted_active", "moves_to_cold", "moves_to_warm", "moves_within_lru",
    "direct_reclaims", "hits_to_hot", "hits_to_warm", "hits_to_cold", "hits_to_temp",
}


@pytest.mark.parametrize(
    "option, lines, gone, items",
    [
        ("no_lru_crawler", 91, CRAWLER, set()), ("no_lru_maintainer", 86, MAINTAINER, QUEUES),
        ("no_lru_crawler,no_lru_maintainer", 84, CRAWLER | MAINTAINER, QUEUES), ("no_maxconns_fast", 92, {"rejected_connections"}, set()),
        ("no_lru_crawler,lru_crawler", 93, set(), set()), ("no_slab_reassign", 84, MOVER, set()),
        ("no_modern", 74, CRAWLER | MAINTAINER | MOVER | {"rejected_connections"}, QUEUES),
    ],
)
def test_statistics_of_what_is_switched_off(start, option, lines, gone, items):
    def names(server):
        with server.raw() as c:
            c.set(b"k", b"v")
            return list(c.stats()), [name.split(":")[-1] for name in c.stats("items")]

    (all_general, all_items), (general, of_items) = names(start()), names(start("-o", option))
    assert len(all_general) == 93 and len(general) == lines
    assert general == [name for name in all_general if name not in gone]
    assert of_items == [name for name in all_items if name not in items]


def test_gets_that_touch_are_no_gets(start):
    server = start()
    with server.raw() as c:
        c.set(b"k", b"v")
        c.send(b"get k\r\n" * 10 + b"gat 100 k\r\n" * 30 + b"gats 100 k\r\n" * 30 + b"mg k T100 v\r\n" * 30 + b"mn\r\n")
        c.until_mn()
        stats = {name: int(value) for name, value in c.stats().items() if name.startswith(("cmd_", "get_", "touch_"))}
        assert (stats["cmd_get"], stats["get_hits"], stats["get_misses"]) == (10, 10, 0)
        assert (stats["cmd_touch"], stats["touch_hits"], stats["touch_misses"]) == (90, 90, 0)
        c.send(b"gat 100 none k also\r\n" + b"mg none T100\r\n" + b"mg none\r\n" + b"mn\r\n")
        c.until_mn()
        stats = c.stats()
        # An `mg` with T that finds nothing is a get.
        assert [stats[name] for name in ("cmd_get", "get_hits", "get_misses", "cmd_touch", "touch_hits", "touch_misses")] == ["12", "10", "2", "93", "91", "2"]
        # A turn counts all keys.
        c.send(b"gat 0 " + b" ".join(b"k%d" % n for n in range(5000)) + b"\r\nmn\r\n")
        c.until_mn()
        assert c.stats()["cmd_get"] == "12"


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_sizes(start, protocol):
    def sizes(server):
        with server.raw() if protocol == "text" else packets.connect(server) as c:
            return {int(size): int(count) for size, count in c.stats("sizes").items()}

    server = start("-o", "track_sizes", "-m", "64")
    assert sizes(server) == {}
    with server.raw() as c:
        assert c.stats("settings")["track_sizes"] == "yes"
        c.send(b"".join(b"set a%04d 0 0 10 noreply\r\n0123456789\r\n" % n for n in range(1000)) + b"mn\r\n")
        c.until_mn()
        c.send(b"".join(b"set b%04d 0 0 500 noreply\r\n%s\r\n" % (n, b"x" * 500) for n in range(50)) + b"mn\r\n")
        c.until_mn()
        c.set(b"large", b"x" * 300_000)
        # A pipelined reply comes behind it.
        assert c.ask(b"stats sizes\r\nmn\r\n").endswith(b"END\r\nMN\r\n")
    found = sizes(server)
    assert list(found) == sorted(found) and all(size % 32 == 0 for size in found)
    assert [count for size, count in found.items()] == [1000, 50, 1], found
    small, medium, large = found
    assert 32 <= small <= 96 and 512 <= medium <= 608 and 300_000 <= large <= 300_200
    with start().raw() as c:
        assert c.stats("sizes") == {"sizes_status": "disabled"} and c.stats("settings")["track_sizes"] == "no"


def test_bytes_over_tls_are_those_of_the_client(start, open_dir):
    make_certificate(open_dir)
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem", "-l", "127.0.0.1", "-l", f"notls:127.0.0.1:{free_port()}")
    with tls(server) as c:
        stats = c.stats()
        assert (stats["bytes_written"], stats["bytes_read"]) == ("0", "7"), "nothing before the first reply"
        value = b"x" * 100_000
        assert c.set(b"k", value) == b"STORED"
        before = {name: int(number) for name, number in c.stats().items() if name.startswith("bytes_")}
        request = b"get k\r\n" * 7
        c.send(request + b"mn\r\n")
        written = len(c.until_mn())
        asked = b"stats\r\n"
        reply = c.ask(asked)
        after = {name: int(number) for name, number in re.findall(r"STAT (bytes_\w+) (\d+)", reply.decode())}
        grown = after["bytes_written"] - before["bytes_written"]
        assert 7 * 100_000 < written <= grown < written + 5_000, "the other `stats` is in it, records are not"
        assert after["bytes_read"] - before["bytes_read"] == len(request) + len(asked) + 2 * len(b"mn\r\n")


def test_help_says_as_much_of_logins_as_memcached_without_cyrus(binary):
    """Scripts, and memcached's own tests, take the word for a build with Cyrus SASL."""
    said = subprocess.run([binary, "-h"], capture_output=True, text=True)
    assert said.returncode == 0 and "sasl" not in said.stdout.lower()
    assert re.search(r"^-S +\S", said.stdout, re.M)
    everything = subprocess.run([binary, "--help-all"], capture_output=True, text=True).stdout
    assert "-S, --enable-sasl" in everything
