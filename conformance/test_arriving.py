"""Large values that arrive in pieces, where they will lie: what they take, what they evict, and that all forms work, plain and over TLS."""

import contextlib
import random
import ssl

import pytest

from harness import MIB, Raw, allow_files, wait_until
from test_operations import make_certificate

pytestmark = pytest.mark.only_cattlegrid

NO_MEMORY = b"SERVER_ERROR out of memory storing object"


def received(server, count):
    wait_until("all was received", lambda: int(server.stats()["bytes_read"]) >= count, 30)


def test_a_half_sent_value_leaves_the_old_one_and_evicts_nothing(start):
    server = start("-m", "64")
    with server.raw() as c, server.raw() as reader:
        for old in (b"v" * 100, b"w" * 524_288):
            assert reader.set(b"k", old) == b"STORED"
            new = b"x" * 524_288
            c.send(b"set k 0 0 %d\r\n" % len(new) + new[:262_144])
            wait_until("half of it has come", lambda: server.stats("cattlegrid")["partial_bytes"] != "0")
            assert reader.get(b"k") == old
            c.send(new[262_144:])
            assert reader.get(b"k") == old
            c.send(b"\r\n")
            assert c.line() == b"STORED"
            assert reader.get(b"k") == new
        assert server.stats()["evictions"] == "0"


def test_a_thousand_announced_blocks_take_no_memory(start):
    """The cache is full; nothing is evicted for blocks of 1,000,000 bytes of which only the lines came."""
    server = start("-m", "64", "-c", "4096")
    allow_files(1500)
    with server.raw() as c:
        for i in range(1100):
            assert c.set(b"key%d" % i, b"v" * 65_000) == b"STORED"
        stats = server.stats()
        evicted, items = int(stats["evictions"]), int(stats["curr_items"])
        assert evicted > 0
        clients = [server.raw() for _ in range(1000)]
        wait_until("all are served", lambda: int(c.stats()["curr_connections"]) > 1000)
        rss, before, sent = server.rss(), int(server.stats()["bytes_read"]), 0
        for i, client in enumerate(clients):
            line = b"set announced%d 0 0 1000000\r\n" % i
            client.send(line)
            sent += len(line)
        received(server, before + sent)
        stats = server.stats()
        # Once a second room is made ahead of the next stores: some MiB.
        more, fewer = int(stats["evictions"]) - evicted, items - int(stats["curr_items"])
        assert more == fewer < 100, f"{more} evicted, {fewer} of {items} have gone"
        assert int(server.stats("cattlegrid")["partial_bytes"]) <= 2 * sent, "the lines alone"
        assert server.rss() < rss + 4 * MIB
        # One of them sends what it has announced, and gets its place.
        clients[7].send(b"x" * 1_000_000 + b"\r\n")
        assert clients[7].line() == b"STORED"
        assert c.get(b"announced7") == b"x" * 1_000_000
        for client in clients:
            client.close()


def test_stalled_values_take_a_quarter_of_the_items_place_at_most(start):
    """Beyond that they are gathered elsewhere; when they are gone all of it is free again."""
    server = start("-m", "64", "-c", "4096")
    with server.raw() as c:
        for i in range(1100):
            assert c.set(b"key%d" % i, b"v" * 50_000) == b"STORED"
        items = int(server.stats()["curr_items"])
        before = int(server.stats()["bytes_read"])
        clients = []
        for i in range(60):
            client = server.raw()
            client.send(b"set stalled%d 0 0 1000000\r\n" % i + b"x" * 900_000)
            clients.append(client)
        received(server, before + 60 * 900_000)
        assert int(server.stats()["curr_items"]) > items * 6 // 10
        found = []
        for i, client in enumerate(clients):
            client.send(b"x" * 100_000 + b"\r\n")
            assert client.line() == b"STORED"
            found.append(c.get(b"stalled%d" % i))
            client.close()
        # An eighth of a shard each: now and then one is evicted for the next at once.
        assert set(found) <= {None, b"x" * 1_000_000}
        assert found.count(None) < 15
        assert server.stats("cattlegrid")["partial_bytes"] == "0"


@pytest.mark.parametrize("memory, largest", [("1", "512k"), ("8", "4m"), ("64", "32m")])
def test_the_largest_items_of_little_memory(start, memory, largest):
    """Stored or refused, and the connection stays in step; small items are stored after them."""
    server = start("-m", memory, "-I", largest)
    size = int(largest[:-1]) * (1024 if largest[-1] == "k" else MIB) - 100
    with server.raw(30) as c:
        for turn in range(6):
            for n in (size, size // 2, size // 5, size // 60):
                block = b"%d" % turn + b"x" * (n - 1)
                c.send(b"set k 0 0 %d\r\n" % n + block[: n // 3])
                c.send(block[n // 3 :] + b"\r\nmn\r\n")
                reply = c.line()
                assert reply in (b"STORED", NO_MEMORY), (turn, n)
                assert c.line() == b"MN"
                assert c.get(b"k") == (block if reply == b"STORED" else None)
            assert reply == b"STORED", "a 60th of the largest"
            assert c.set(b"small%d" % turn, b"v") == b"STORED"


def test_without_evictions_a_full_server_refuses(start):
    server = start("-m", "8", "-M")
    with server.raw() as c:
        replies = []
        for i in range(20):
            c.send(b"set k%d 0 0 900000\r\n" % i + b"x" * 500_000)
            c.send(b"x" * 400_000 + b"\r\n")
            replies.append(c.line())
        stored = replies.index(NO_MEMORY)
        assert 4 <= stored <= 9 and set(replies[stored:]) == {NO_MEMORY}
        c.send(b"set k0 0 0 900000\r\n" + b"y" * 500_000)
        c.send(b"y" * 400_000 + b"\r\nget k1\r\n")
        assert c.line() in (b"STORED", NO_MEMORY)
        assert c.until(b"END\r\n").endswith(b"x\r\nEND\r\n")


def test_watchers_and_the_log_see_it_as_any_other(start):
    server = start("-m", "64", "-vv")
    with server.raw() as watcher, server.raw() as c:
        watcher.send(b"watch mutations rawcmds\r\n")
        assert watcher.line() == b"OK"
        c.send(b"set seen 0 0 300000\r\n" + b"x" * 100_000)
        c.send(b"x" * 200_000)
        c.send(b"\r\n")
        assert c.line() == b"STORED"
        c.send(b"ms seen 300000 MR\r\n" + b"x" * 300_000)
        c.send(b"zz")
        assert c.line() == b"CLIENT_ERROR bad data chunk"
        lines = watcher.until(b"\n") + watcher.until(b"\n")
        assert b"set%20seen%200%200%20300000" in lines and b"size=300000" in lines and b"status=stored" in lines
        assert b"ms%20seen%20300000%20MR" in watcher.until(b"\n")
    wait_until("it is logged", lambda: "set seen 0 0 300000" in server.log())


def test_a_value_for_a_miss_under_a_rule(start, tmp_path):
    """It fills, wakes who waits, and is dropped if the key was deleted while it arrived."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "page:{id}"\nhold = "60s"\nlease = "60s"\n')
    tmp_path.chmod(0o755)
    server = start("--config", str(rules), "-u", "root")
    value = b"x" * 300_000
    with server.raw() as holder, server.raw(30) as other, server.raw() as third:
        holder.send(b"get page:1\r\n")
        assert holder.line() == b"END"
        other.send(b"get page:1\r\n")
        wait_until("one is held", lambda: server.stats("cattlegrid")["held"] == "1")
        holder.send(b"set page:1 0 0 300000\r\n" + value[:100_000])
        holder.send(value[100_000:])
        assert server.stats("cattlegrid")["held"] == "1"
        holder.send(b"\r\n")
        assert holder.line() == b"STORED"
        assert other.until(b"END\r\n") == b"VALUE page:1 0 300000\r\n" + value + b"\r\nEND\r\n"
        holder.send(b"get page:2\r\n")
        assert holder.line() == b"END"
        holder.send(b"set page:2 0 0 300000\r\n" + value[:200_000])
        third.send(b"delete page:2\r\n")
        assert third.line() == b"NOT_FOUND"
        holder.send(value[200_000:] + b"\r\n")
        assert holder.line() == b"STORED"
        third.send(b"mg page:2 v N0\r\n")
        assert third.line().startswith((b"EN", b"VA 0")), "a value from before the delete"


def test_over_tls_in_records_of_every_size(start, open_dir):
    make_certificate(open_dir)
    server = start("-m", "64", "-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    chance = random.Random(1)

    def connect():
        return context.wrap_socket(server.connect())

    with Raw(connect()) as c:
        for turn in range(60):
            n = chance.choice([16_383, 16_384, 16_385, 65_536, 131_073, 524_288, 1_000_000])
            value = chance.randbytes(n)
            form = chance.choice([b"set k 0 0 %d", b"ms k %d", b"set k 0 0 %d noreply", b"ms k %d q"])
            stream = form % n + b"\r\n" + value + b"\r\nmn\r\n"
            at = 0
            while at < len(stream):
                size = chance.choice([1, 20, 4_095, 4_096, 16_383, 16_384, 16_385, 100_000, n])
                c.send(stream[at : at + size])
                at += size
            want = b"" if form.endswith((b"noreply", b"q")) else b"HD\r\n" if form.startswith(b"ms") else b"STORED\r\n"
            assert c.exactly(len(want) + 4) == want + b"MN\r\n", (turn, n, form)
            assert c.get(b"k") == value, (turn, n, form)
    # A value that is cut.
    c = connect()
    c.sendall(b"set k 0 0 1000000\r\n" + b"x" * 500_000)
    c.close()
    with Raw(connect()) as c:

        def over():
            return c.stats("cattlegrid")["partial_bytes"] == "0"

        wait_until("it is over", over)
        assert c.get(b"k") == value


def test_clients_that_are_cut_leave_nothing(start):
    """A thousand values, each cut at another place; the memory is there for others afterwards."""
    server = start("-m", "16")
    chance = random.Random(2)
    with server.raw() as c:
        assert c.set(b"k", b"v" * 100) == b"STORED"
        for turn in range(100):
            for _ in range(10):
                with contextlib.closing(server.connect()) as cut:
                    cut.sendall(b"set k 0 0 900000\r\n" + b"x" * chance.randrange(400_000))
            # No more at a time than there is memory for: where one is displaced, the old value is removed.
            wait_until("they have come", lambda: int(c.stats()["total_connections"]) > 10 * (turn + 1))
            wait_until("they have gone", lambda: int(c.stats()["curr_connections"]) <= 3)
        assert c.get(b"k") == b"v" * 100
        wait_until("nothing arrives", lambda: c.stats("cattlegrid")["partial_bytes"] == "0")
        for i in range(10):
            assert c.set(b"large%d" % i, b"y" * 900_000) == b"STORED"
        assert all(c.get(b"large%d" % i) for i in range(5, 10))


@pytest.mark.only_cattlegrid
def test_values_are_joined_whatever_their_sizes(start):
    """On both sides of the sizes from which a value has pages of its own, and where old and new value fill the memory."""
    server = start("-m", "64", "-I", "30m")
    KIB = 1024
    sizes = [(10, 10), (20 * KIB, 10 * KIB), (20 * KIB, 20 * KIB), (10, 40 * KIB), (40 * KIB, 10), (40 * KIB, 50 * KIB)]
    sizes += [(1, 300_000), (300_000, 1), (5 * MIB, 4 * MIB), (16 * MIB, 12 * MIB), (1, 28 * MIB), (28 * MIB, 1)]
    joined = 0
    with server.raw(30) as c:
        for full in (False, True):
            for old, new in sizes:
                for verb in (b"append", b"prepend"):
                    if full:
                        for i in range(80):
                            assert c.set(b"full%d" % i, b"f" * 900_000) == b"STORED"
                    assert c.set(b"k", b"o" * old) == b"STORED"
                    c.send(b"%s k 0 0 %d\r\n" % (verb, new) + b"n" * new + b"\r\n")
                    line = c.line()
                    if full and line == b"NOT_STORED":
                        # Evicted, for the room that the new bytes need.
                        assert c.get(b"k") is None
                        continue
                    joined += full
                    assert line == b"STORED", (old, new, verb)
                    want = b"o" * old + b"n" * new if verb == b"append" else b"n" * new + b"o" * old
                    assert c.get(b"k") == want, (old, new, verb)
        stats = c.stats("cattlegrid")
        assert stats["pinned_bytes"] == "0" and int(stats["memory_used"]) <= 64 * MIB
    assert joined >= len(sizes), "most values are not evicted"
