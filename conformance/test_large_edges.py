"""Large values where other things end or wait: half-closed and cut connections, held gets, old values, tags, loaders, limits."""

import random
import signal
import socket
import ssl
import threading
import time

import pytest

from crowd import HOLDS, reset, rule, write_rules
from harness import MIB, Closed, Raw, allow_files, wait_until
from loaders import of_loader, of_rule
from test_operations import make_certificate, serial_of
from versions import WAYS, Slow, Way, body, version_of

pytestmark = pytest.mark.only_cattlegrid

SIZES = (40_000, 70_000, 700_000)
LARGE = 900_000


@pytest.fixture(params=WAYS)
def way(request, open_dir):
    return Way(request.param, str(open_dir))


def served(way, server):
    """A server's client with values of each size under `v<n>`."""
    c = way.raw(server)
    for n, size in enumerate(SIZES):
        assert c.set(b"v%d" % n, body(n, size)) == b"STORED"
    return c


def whole(key, value, flags=0):
    return b"VALUE %s %d %d\r\n%s\r\nEND\r\n" % (key, flags, len(value), value)


def gauges(c):
    stats = c.stats("cattlegrid")
    return {name: int(stats[name]) for name in ("unsent_bytes", "pinned_bytes", "partial_bytes", "held")}


def until_nothing_is_left(c):
    wait_until("nothing is unsent, pinned or arriving", lambda: not any(gauges(c).values()), 40)


def half_close(s):
    """Sends no more, also over TLS, where the end of the stream is not announced."""
    socket.socket.shutdown(s, socket.SHUT_WR)


# --- Ends ---------------------------------------------------------------------------------------------------------------


def test_half_closed_readers_get_all_replies(start, way):
    server = start("-m", "64", *way.options)
    chance = random.Random(1)
    with served(way, server) as c:
        readers = []
        for _ in range(6):
            s = way.socket(server, 16_384)
            s.sendall(b"get v2\r\nget v1 v0\r\nmg v2 s v\r\n" * 4)
            readers.append(s)
        for s in readers:
            half_close(s)
        for n, size in enumerate(SIZES):
            assert c.set(b"v%d" % n, body(n + 10, size)) == b"STORED"
        for s in readers:
            reader = Slow(s, chance)
            versions = []
            for _ in range(4):
                for key in (2, 1, 0, 2):
                    line = reader.line()
                    assert line.startswith((b"VALUE", b"VA ")), line
                    versions.append(version_of(reader.exactly(SIZES[key]), SIZES[key]) - key)
                    assert reader.exactly(2) == b"\r\n"
                    if key == 0:
                        assert reader.line() == b"END"
                    elif key == 2 and line.startswith(b"VALUE"):
                        assert reader.line() == b"END"
            assert set(versions) <= {0, 10} and versions == sorted(versions), versions
            with pytest.raises(Closed):
                reader.line()
            s.close()
        until_nothing_is_left(c)


def test_half_closed_in_the_middle_of_a_value(start, way):
    """Nothing more can come: the connection ends, and the old value stays."""
    server = start("-m", "64", *way.options)
    with served(way, server) as c:
        for n, size in enumerate(SIZES):
            for sent in (1, size // 2, size, size + 1):
                s = way.socket(server)
                s.sendall(b"mn\r\nset v%d 0 0 %d\r\n" % (n, size) + (body(99, size) + b"\r")[:sent])
                half_close(s)
                with Raw(s) as other:
                    assert other.line() == b"MN"
                    assert other.closed() == b""
                assert c.get(b"v%d" % n) == body(n, size)
        until_nothing_is_left(c)


def test_the_server_ends_in_the_middle_of_replies_and_values(start, way):
    server = start("-m", "64", *way.options)
    c = served(way, server)
    readers = []
    for n in range(40):
        s = way.socket(server, 8_192)
        s.sendall(b"get v2\r\n" * 8 if n % 2 else b"set v2 0 0 %d\r\n" % SIZES[2] + body(5, 100_000))
        readers.append(s)
    wait_until("some arrive", lambda: gauges(c)["partial_bytes"] > 100_000)
    assert c.set(b"v2", body(3, SIZES[2])) == b"STORED"
    server.signal(signal.SIGTERM)
    assert server.process.wait(30) == 0, server.log()
    for s in [c, *readers]:
        s.close()


def test_an_idle_timeout_does_not_end_readers_and_writers_that_are_slow(start, way):
    """A minute; each takes four, as the server's clock goes, and another connection is closed meanwhile."""
    server = start("-m", "64", *way.options, "-o", "idle_timeout=60,debugtime")
    with served(way, server) as c:
        idle, reader, writer = way.raw(server), way.socket(server, 8_192), way.socket(server)
        assert idle.ask(b"") == b""
        reader.sendall(b"get v2\r\n" * 3)
        writer.sendall(b"set w 0 0 %d\r\n" % LARGE)
        value = body(1, LARGE)
        got = bytearray()
        for step in range(30):
            writer.sendall(value[step * 30_000 : (step + 1) * 30_000])
            got += reader.recv(20_000)
            assert c.ask(b"") == b""
            if step % 5 == 4:
                assert c.ask(b"debugtime 40\r\n") == b"OK\r\n"
            time.sleep(0.1)
        writer.sendall(b"\r\n")
        assert Raw(writer).line() == b"STORED"
        slow = Slow(reader, random.Random(1))
        expected = whole(b"v2", body(2, SIZES[2])) * 3
        assert bytes(got) + bytes(slow.exactly(len(expected) - len(got))) == expected
        assert idle.closed() == b""
        for s in (idle, reader, writer):
            s.close()


# --- Waiting ------------------------------------------------------------------------------------------------------------


def test_behind_a_held_get(start, way, open_dir):
    """Large values are stored and fetched behind a held get, and replaced while their replies wait: each reply comes in its place, whole."""
    server = start("-m", "64", *way.options, "--config", write_rules(str(open_dir), rule(terms=HOLDS.replace("30s", "60s"))))
    chance = random.Random(2)
    with served(way, server) as c, way.raw(server) as holder:
        for turn in range(4):
            page = b"page:%d" % turn
            assert holder.get(page) is None
            waiters, senders = [], []
            for n in range(8):
                s = way.socket(server, chance.choice((0, 16_384)))
                key, size = b"own%d" % n, SIZES[n % 3]
                stream = b"get %s v0\r\n" % page if n % 2 else b"get %s\r\n" % page
                stream += b"get v0\r\nset %s 0 0 %d\r\n%s\r\nget %s\r\nmg %s v k\r\nmn\r\n" % (key, size, body(n + 50, size), key, key)
                waiters.append((n, s, key, size))
                # The server takes only some of what is behind it.
                senders.append(threading.Thread(target=send_in_pieces, args=(s, stream, chance.randrange(1000)), daemon=True))
                senders[-1].start()
            wait_until("all wait", lambda: gauges(c)["held"] == 8)
            before = turn * 10
            for n, size in enumerate(SIZES):
                assert c.set(b"v%d" % n, body(before + 10 + n, size)) == b"STORED"
            for n in range(0, 8, 3):
                c.send(b"delete own%d\r\n" % n)
                assert c.line() in (b"DELETED", b"NOT_FOUND")
            fill = body(turn, chance.choice((100, 60_000, LARGE)))
            _, gone, *_ = waiters.pop(chance.randrange(len(waiters)))
            reset(gone)
            assert holder.set(page, fill) == b"STORED"

            def value(reader, name, size):
                line = reader.line()
                assert line == b"VALUE %s 0 %d" % (name, size), line
                got = reader.exactly(size)
                assert reader.exactly(2) == b"\r\n"
                return got

            def one(reader, name, number):
                version = version_of(value(reader, name, SIZES[number]), SIZES[number])
                assert version in (before + number, before + 10 + number)

            for n, s, key, size in waiters:
                reader = Slow(s, chance)
                assert value(reader, page, len(fill)) == fill
                if n % 2:
                    one(reader, b"v0", 0)
                assert reader.line() == b"END"
                one(reader, b"v0", 0)
                assert [reader.line(), reader.line()] == [b"END", b"STORED"]
                mine = body(n + 50, size)
                line = reader.line()
                # It may have been deleted between its set and its get.
                if line != b"END":
                    assert line == b"VALUE %s 0 %d" % (key, size)
                    assert reader.exactly(size + 7) == mine + b"\r\nEND\r\n"
                line = reader.line()
                if line != b"EN":
                    assert line == b"VA %d k%s" % (size, key), line
                    assert reader.exactly(size + 2) == mine + b"\r\n"
                assert reader.line() == b"MN"
                s.close()
            for sender in senders:
                sender.join(60)
            until_nothing_is_left(c)


def send_in_pieces(s, stream, seed):
    chance = random.Random(seed)
    try:
        while stream:
            piece = chance.choice((100, 5_000, 60_000, len(stream)))
            s.sendall(stream[:piece])
            stream = stream[piece:]
    except OSError:
        # The one that is reset.
        pass


def test_old_values_in_their_grace_and_tags(start, way, open_dir):
    """Soft and hard bumps while readers take old versions slowly; one of them computes."""
    rules = write_rules(str(open_dir), '[[rule]]\nmatch = "big:{n}"\ngrace = "60s"\nhold = "20s"\nlease = "20s"\ntags = ["all"]\n')
    server = start("-m", "64", *way.options, "--config", rules)
    with way.raw(server) as c:
        # The last version that was begun, and the last that was fetched. What is computed while a bump comes may be dropped.
        current, fetched = {n: 1 for n in range(3)}, {n: 1 for n in range(3)}
        # After a bump another computes too: versions are in the order in which they are stored.
        in_order = {n: threading.Lock() for n in range(3)}
        for n in current:
            assert c.set(b"big:%d" % n, body(1, SIZES[n])) == b"STORED"
        over, errors, counts = threading.Event(), [], {"old": 0, "computed": 0}

        def read(seed):
            chance = random.Random(seed)
            try:
                with Slow(way.socket(server, chance.choice((8_192, 65_536))), chance) as reader:
                    while not over.is_set():
                        n = chance.randrange(3)
                        floor = fetched[n]
                        reader.send(b"get big:%d\r\n" % n)
                        line = reader.line()
                        if line == b"END":
                            with in_order[n]:
                                version = current[n] + 1
                                current[n] = version
                                reader.send(b"set big:%d 0 0 %d\r\n%s\r\n" % (n, SIZES[n], body(version, SIZES[n])))
                                assert reader.line() == b"STORED"
                            counts["computed"] += 1
                            continue
                        if chance.random() < 0.3:
                            time.sleep(0.02)
                        version = version_of(reader.exactly(SIZES[n]), SIZES[n])
                        assert reader.exactly(7) == b"\r\nEND\r\n"
                        assert floor <= version <= current[n], (floor, version, current[n])
                        fetched[n] = max(fetched[n], version)
                        counts["old"] += version < current[n]
            except Exception as error:
                errors.append(error)
                over.set()

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        turn, end = 0, time.monotonic() + 60
        while not errors and (turn < 40 or counts["computed"] <= 3 and time.monotonic() < end):
            turn += 1
            c.send(b"delete @tag:all\r\n" if turn % 4 == 0 else b"md all G I\r\n" if turn % 4 == 1 else b"md big:%d I T30\r\n" % (turn % 3))
            c.line()
            time.sleep(0.02)
        over.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors[0]
        assert counts["computed"] > 3, counts
        until_nothing_is_left(c)


def test_values_of_loaders(scene, way):
    """A large value that a loader computes goes whole to every waiter, slow ones too; one job for each."""
    server = scene.start(of_rule("do:{what}:{with}:{id}") + of_loader(), "-m", "64", *way.options)
    with way.raw(server) as c:
        for size in SIZES:
            key = b"do:size:%d:1" % size
            readers = [way.socket(server, 8_192 if n % 2 else 0) for n in range(20)]
            for s in readers:
                s.sendall(b"get %s\r\nmg %s s v\r\n" % (key, key))
            values = set()
            for s in readers:
                reader = Slow(s, random.Random(size))
                line = reader.line()
                assert line == b"VALUE %s 0 %d" % (key, size), line
                values.add(bytes(reader.exactly(size)))
                assert reader.exactly(7) == b"\r\nEND\r\n"
                assert reader.line() == b"VA %d s%d" % (size, size)
                values.add(bytes(reader.exactly(size)))
                assert reader.exactly(2) == b"\r\n"
                s.close()
            assert len(values) == 1
        assert scene.keys() == ["do:size:%d:1" % size for size in SIZES]
        until_nothing_is_left(c)


# --- Limits -------------------------------------------------------------------------------------------------------------


def test_one_line_of_a_thousand_large_values(start, way):
    """512 MiB of replies to one line: whole, one value at a time in memory, and others are served."""
    server = start("-m", "64", *way.options)
    with served(way, server) as c:
        before = server.rss()
        s = way.socket(server, 65_536)
        s.sendall(b"get " + b" ".join(b"v2" for _ in range(700)) + b"\r\n")
        reader, last = Raw(s), 0
        for n in range(700):
            if n % 50 == 0:
                assert c.set(b"v2", body(n + 3, SIZES[2])) == b"STORED"
                assert server.rss() < before + 24 * MIB
            line = reader.line()
            assert line == b"VALUE v2 0 %d" % SIZES[2], line
            version = version_of(reader.exactly(SIZES[2]), SIZES[2])
            assert last <= version <= n + 3
            last = version
            assert reader.exactly(2) == b"\r\n"
        assert reader.line() == b"END" and last >= 600
        s.close()
        until_nothing_is_left(c)


def test_stuck_readers_of_many_values_that_are_deleted(start, way):
    """Each of 200 has another value, which is then deleted: they may keep a quarter of -m, and a quarter of what it is lowered to."""
    allow_files(2000)
    # Where in its value a reader stands is a matter of the kernel's buffers, and over TLS one that stands near the end keeps
    # a copy instead of the value: by sizes that differ each stands elsewhere.
    count = 200
    sizes = [150_000 + n * 1500 for n in range(count)]
    server = start("-m", "128", "-t", 2, "-c", 4096, *way.options)
    with way.raw(server) as c:
        for n in range(2000):
            c.send(b"set small:%d 0 0 1000 noreply\r\n%s\r\n" % (n, b"s" * 1000))
        for n in range(count):
            assert c.set(b"v:%d" % n, body(n, sizes[n])) == b"STORED"
        hits = int(c.stats()["get_hits"])
        stuck = []
        for n in range(count):
            s = way.socket(server, 4_096)
            s.sendall(b"get v:%d\r\n" % n * 20)
            stuck.append(s)
        asked = []

        def no_more():
            asked.append(int(c.stats()["get_hits"]))
            time.sleep(0.3)
            return asked[-1] >= hits + count and asked[-3:] == asked[-1:] * 3

        wait_until("no more is executed", no_more, 60)
        assert asked[-1] < hits + 20 * count, "their sockets take everything"
        assert gauges(c)["pinned_bytes"] == 0, "all are stored"
        most = 0
        for n in range(count):
            c.send(b"delete v:%d\r\n" % n)
            assert c.line() == b"DELETED"
            # Another lane than that of the deletes has most of the readers now and then, and closes them a moment later.
            wait_until("a quarter is pinned at most", lambda: gauges(c)["pinned_bytes"] <= 32 * MIB)
            most = max(most, gauges(c)["pinned_bytes"])
        assert 20 * MIB < most <= 32 * MIB, f"{most / MIB:.1f} MiB are pinned"
        displaced = int(c.stats("cattlegrid")["unsent_displaced"])
        assert 20 < displaced < count - 20, displaced
        c.send(b"cache_memlimit 32\r\n")
        assert c.line() == b"OK"
        wait_until("a quarter of that is pinned", lambda: gauges(c)["pinned_bytes"] <= 9 * MIB)
        assert sum(c.get(b"small:%d" % n) is not None for n in range(2000)) == 2000

        def the_sum_is_right():
            stats = c.stats("cattlegrid")
            parts = ("index_bytes", "segment_bytes", "huge_bytes", "huge_free_bytes", "ghost_bytes", "pinned_bytes")
            return int(stats["memory_used"]) == sum(int(stats[name]) for name in parts)

        wait_until("the sum is right", the_sum_is_right)
        # Who is left gets what was asked for.
        alive = 0
        for n, s in enumerate(stuck):
            try:
                reader = Raw(s)
                reply = whole(b"v:%d" % n, body(n, sizes[n]))
                assert reader.exactly(len(reply)) == reply
                alive += 1
            except (Closed, OSError):
                pass
            s.close()
        assert alive >= 10
        until_nothing_is_left(c)
        # Its memory is for others again.
        for n in range(30):
            assert c.set(b"w:%d" % n, body(n, 500_000)) == b"STORED"


@pytest.mark.parametrize("memory, item", [(1, "512k"), (2, "1m"), (8, "4m")])
def test_readers_of_values_that_fill_little_memory(start, way, memory, item):
    """Whole or cut by the server, never mixed; and they do not end the storing."""
    largest = {"512k": 1 << 19, "1m": MIB, "4m": 4 * MIB}[item] - 200
    server = start("-m", memory, "-I", item, *way.options)
    with way.raw(server) as c:
        over, errors, seen = threading.Event(), [], [0, 0]

        def read(seed):
            chance = random.Random(seed)
            try:
                while not over.is_set():
                    with Slow(way.socket(server, 16_384), chance) as reader:
                        try:
                            for _ in range(3):
                                reader.send(b"get v\r\n")
                                line = reader.line()
                                if line != b"END":
                                    size = int(line.split()[3])
                                    version_of(reader.exactly(size), size)
                                    assert reader.exactly(7) == b"\r\nEND\r\n"
                                    seen[0] += 1
                        except Closed:
                            seen[1] += 1
            except Exception as error:
                errors.append(error)
                over.set()

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        stored = 0
        for n in range(150):
            size = (largest, largest // 2, largest // 7, 3_000)[n % 4]
            line = c.set(b"v", body(n, size))
            assert line in (b"STORED", b"SERVER_ERROR out of memory storing object"), line
            stored += line == b"STORED"
            if errors:
                break
        over.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors[0]
        displaced = int(c.stats("cattlegrid")["unsent_displaced"])
        assert seen[1] <= displaced
        until_nothing_is_left(c)
        assert stored > 75


# --- TLS ----------------------------------------------------------------------------------------------------------------


def test_sessions_are_resumed_and_certificates_change(start, open_dir):
    """A session of before a change of certificates is not resumed, and its client sees the new one; later ones are."""
    way = Way("tls", str(open_dir))
    server = start("-m", "64", *way.options, "-o", "ssl_session_cache")

    def connect(session=None):
        s = socket.create_connection(("127.0.0.1", server.port), 20)
        return Raw(way.context.wrap_socket(s, session=session))

    def session_of(c):
        # The tickets come with the first reply.
        assert c.ask(b"") == b""
        return c.sock.session

    with connect() as first:
        old = serial_of(first)
        session = session_of(first)
    for _ in range(5):
        with connect(session) as c:
            assert c.set(b"k", body(1, LARGE)) == b"STORED" and c.get(b"k") == body(1, LARGE)
            assert c.sock.session_reused
            session = session_of(c)
    new = make_certificate(str(open_dir))[1].serial_number
    assert new != old
    with connect(session) as c:
        c.send(b"refresh_certs\r\n")
        assert c.line() == b"OK"
    with connect(session) as c:
        assert not c.sock.session_reused and serial_of(c) == new
        assert c.get(b"k") == body(1, LARGE)
        session = session_of(c)
    with connect(session) as c:
        assert c.sock.session_reused
        assert c.get(b"k") == body(1, LARGE)
    with connect() as c:
        assert serial_of(c) == new
        assert c.get(b"k") == body(1, LARGE)


def test_handshakes_that_are_cut_at_every_byte(start, open_dir):
    way = Way("tls", str(open_dir))
    server = start("-m", "64", *way.options)
    hello = ssl.MemoryBIO()
    out = ssl.MemoryBIO()
    client = way.context.wrap_bio(hello, out)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = out.read()
    with way.raw(server) as c:
        before, descriptors = server.rss(), server.settled_descriptors()
        cut = []
        for at in range(len(hello)):
            s = socket.create_connection(("127.0.0.1", server.port), 20)
            s.sendall(hello[:at])
            cut.append(s)
        assert c.set(b"k", body(1, LARGE)) == b"STORED" and c.get(b"k") == body(1, LARGE)
        for n, s in enumerate(cut):
            reset(s) if n % 2 else s.close()
        wait_until("all have gone", lambda: int(c.stats()["curr_connections"]) <= 2)
        wait_until("their descriptors have gone", lambda: server.settled_descriptors() == descriptors)
        assert server.rss() < before + 32 * MIB
