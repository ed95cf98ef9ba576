"""Large commands that arrive in pieces, when their memory is used up: who is refused, how, and that nothing else happens."""

import contextlib
import socket
import ssl
import threading

import pytest

from harness import MIB, Raw, allow_files, wait_until
from test_operations import make_certificate

pytestmark = pytest.mark.only_cattlegrid

NO_MEMORY = b"SERVER_ERROR out of memory storing object"
ALICE, BOB = b"alice's value", b"bob's value"


def large(key, size, form=b"set %s 0 0 %d"):
    """A storing command; its first half and the rest."""
    all_of_it = form % (key, size) + b"\r\n" + b"x" * size + b"\r\n"
    half = len(all_of_it) * 3 // 4
    return all_of_it[:half], all_of_it[half:]


def stall(server, count, size):
    """Clients that announce a value each, and send all but the last 100 bytes. Returns when all has been received."""
    allow_files(count + 500)
    clients, sent = [], 0
    for i in range(count):
        c = server.raw()
        command = b"set stalled%d 0 0 %d\r\n" % (i, size) + b"x" * size + b"\r\n"
        c.rest = command[-100:]
        c.send(command[:-100])
        sent += len(command) - 100
        clients.append(c)
    received(server, sent)
    return clients


def received(server, count):
    """Waits until all threads have received this many bytes in all, and have done what they ask for."""
    wait_until("all of it was received", lambda: int(server.stats()["bytes_read"]) >= count, 30)
    # What is received counts before it is executed, but a thread answers only after that.
    with contextlib.ExitStack() as opened:
        for c in [opened.enter_context(server.raw()) for _ in range(16)]:
            assert c.ask(b"mn\r\n") == b"MN\r\n"


def send_on(server, clients):
    """Each sends a byte more: who is silent for ten seconds gives way to others, which are not refused then."""
    before = int(server.stats()["bytes_read"])
    for c in clients:
        c.send(c.rest[:1])
        c.rest = c.rest[1:]
    received(server, before + len(clients))


def refusals(server):
    """Stores and lines that found no memory."""
    stats = server.stats()
    return int(stats["store_no_memory"]) + int(stats["read_buf_oom"])


def full_server(start, *args):
    """No memory for the first part of anything from this address: many stalled uploads of 66 kB, of which none is larger."""
    server = start("-m", "256", "-c", "4096", *args)
    clients = stall(server, 1030, 66_000)
    with server.raw() as c:
        assert c.set(b"alice", ALICE) == b"STORED" and c.set(b"bob", BOB) == b"STORED"
    return server, clients


@pytest.fixture
def full(start):
    server, clients = full_server(start)
    server.stalled = clients
    yield server
    for c in clients:
        c.close()


def test_a_get_line_in_two_parts_is_a_get_line(start):
    """66 clients stall with 1 MiB each; a long line of another arrives in two parts, the second of which would be commands."""
    server = start("-m", "256")
    clients = stall(server, 66, 1_048_400)
    with server.raw() as c:
        assert c.set(b"first", ALICE) == b"STORED" and c.set(b"last", BOB) == b"STORED"
        line = b"get first " + b"absent " * 30_000
        c.send(line)
        received = int(server.stats()["bytes_read"])
        c.send(b"flush_all \r\n" b"get last\r\n")
        want = b"VALUE first 0 %d\r\n%s\r\nEND\r\n" % (len(ALICE), ALICE)
        assert received and c.exactly(len(want)) == want
        want = b"VALUE last 0 %d\r\n%s\r\nEND\r\n" % (len(BOB), BOB)
        assert c.exactly(len(want)) == want
    with server.raw() as c:
        assert c.get(b"first") == ALICE and c.get(b"last") == BOB
        assert c.stats()["cmd_flush"] == "0"
    for c in clients:
        c.close()


def test_a_line_that_finds_no_memory_closes_and_nothing_of_it_runs(full):
    send_on(full, full.stalled)
    before = refusals(full)
    with full.raw() as c:
        c.send(b"mn\r\nget alice " + b"absent " * 30_000)
        wait_until("it was refused", lambda: refusals(full) > before)
        with contextlib.suppress(ConnectionError):
            c.send(b"\r\nflush_all\r\ndelete bob\r\n")
        assert c.closed() == b"MN\r\nSERVER_ERROR out of memory reading request\r\n"
    with full.raw() as c:
        assert c.get(b"alice") == ALICE and c.get(b"bob") == BOB
        assert c.stats()["cmd_flush"] == "0"
        assert int(c.stats()["read_buf_oom"]) == 1


# (what, line, whether it is answered, whether the old value goes)
FORMS = [
    ("set", b"set %s 0 0 %d", True, True),
    ("double blank", b"set  %s  0 0 %d", True, True),
    ("noreply", b"set %s 0 0 %d noreply", False, True),
    ("add", b"add %s 0 0 %d", True, False),
    ("append noreply", b"append %s 0 0 %d noreply", False, False),
    ("cas", b"cas %s 0 0 %d 1", True, False),
    ("ms", b"ms %s %d", True, True),
    ("ms quiet", b"ms %s %d q", True, True),
    ("ms double blank", b"ms  %s %d q", True, True),
    ("ms base64", b"ms YWxpY2U= %.0s%d b", True, True),
    ("ms base64 quiet", b"ms YWxpY2U= %.0s%d q b ME", True, True),
]


def test_a_refused_store_answers_as_its_form_says(full):
    """Whatever is asked next gets its own reply, and the old value goes after `set` and `ms`."""
    for what, form, answered, goes in FORMS:
        with full.raw() as c:
            assert c.set(b"alice", ALICE) == b"STORED"
            send_on(full, full.stalled)
            before = refusals(full)
            first, rest = large(b"alice", 200_000, form)
            c.send(b"mn\r\n" + first)
            wait_until(f"{what} was refused", lambda: refusals(full) > before)
            c.send(rest + b"get bob\r\nget alice\r\n")
            want = b"MN\r\n" + (NO_MEMORY + b"\r\n" if answered else b"")
            want += b"VALUE bob 0 %d\r\n%s\r\nEND\r\n" % (len(BOB), BOB)
            if not goes:
                want += b"VALUE alice 0 %d\r\n%s\r\n" % (len(ALICE), ALICE)
            want += b"END\r\n"
            assert c.exactly(len(want)) == want, what


@pytest.mark.parametrize("address, size", [("127.0.0.2", 1_000_000), ("127.0.0.2", 70_000), ("127.0.0.1", 1_000_000)])
def test_a_client_that_stalls_keeps_nobody_else_out(start, address, size):
    """66 MiB are stalled; the large sets of another client, also of one with the same address, all succeed."""
    server = start("-m", "256")
    stalled = stall(server, 66, 1_048_400)
    before = refusals(server)
    with Raw(socket.create_connection(("127.0.0.1", server.port), 20, (address, 0))) as c:
        keys = [b"key%d" % i for i in range(100)]
        for key in keys:
            assert c.set(key, b"old") == b"STORED"
        replies = []
        for key in keys:
            first, rest = large(key, size)
            c.send(first)
            c.send(rest)
            replies.append(c.line())
        assert replies.count(b"STORED") == 100, replies
        for key in keys:
            assert c.get(key) == b"x" * size
    # One or two of the stalled ones gave way: what the client needs at a time.
    assert refusals(server) - before <= 2
    own = server.stats("cattlegrid")
    assert int(own["uploads_displaced"]) >= 1
    assert int(own["partial_bytes"]) <= 64 * MIB
    for c in stalled:
        c.close()
    wait_until("nothing is left", lambda: server.stats("cattlegrid")["partial_bytes"] == "0")


def test_the_longest_silent_gives_way_after_ten_seconds(start):
    """It is told, the rest of its block is dropped, and what it asks next gets its own reply."""
    server, clients = full_server(start, "-o", "debugtime")
    with server.raw() as c:
        first, rest = large(b"new", 200_000)
        send_on(server, clients)
        before = refusals(server)
        c.send(first)
        wait_until("it was refused", lambda: refusals(server) > before)
        c.send(rest)
        assert c.line() == NO_MEMORY
        displaced = int(server.stats("cattlegrid")["uploads_displaced"])
        c.send(b"debugtime 10\r\n")
        c.line()
        # In two parts: what arrives whole is no upload.
        c.send(first)
        wait_until("another gives way", lambda: int(server.stats("cattlegrid")["uploads_displaced"]) > displaced)
        c.send(rest)
        assert c.line() == b"STORED"
        assert c.get(b"new") == b"x" * 200_000
    replies = []
    for c in clients:
        c.send(c.rest + b"get bob\r\n")
        replies.append(c.line())
        assert c.until(b"END\r\n") == b"VALUE bob 0 %d\r\n%s\r\nEND\r\n" % (len(BOB), BOB)
        c.close()
    own = server.stats("cattlegrid")
    assert set(replies) == {b"STORED", NO_MEMORY}
    # One refusal is the newcomer's own. The others were left alone.
    assert replies.count(NO_MEMORY) == int(own["uploads_displaced"]) + int(own["uploads_refused"]) - 1
    assert replies.count(b"STORED") > 1000
    assert int(own["uploads_displaced"]) <= 20


def test_a_refused_store_behind_a_held_get_is_answered_in_its_place(start, tmp_path):
    """The get of the same key is answered first, whether it waited or not, and the set's lease passes on."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "page:{id}"\nhold = "60s"\nhold_many = "60s"\nhold_behind = "60s"\nlease = "60s"\n')
    tmp_path.chmod(0o755)
    server, clients = full_server(start, "--config", str(rules), "-u", "root")
    with server.raw() as holder, server.raw() as c, server.raw() as other:
        holder.send(b"get page:1\r\n")
        assert holder.line() == b"END"
        other.send(b"get page:1\r\n")
        wait_until("one is held", lambda: server.stats("cattlegrid")["held"] == "1")
        send_on(server, clients)
        before = refusals(server)
        first, rest = large(b"page:1", 200_000)
        c.send(b"get page:1\r\n" + first)
        wait_until("it was refused", lambda: refusals(server) > before)
        c.send(rest + b"get bob\r\n")
        want = b"END\r\n" + NO_MEMORY + b"\r\nVALUE bob 0 %d\r\n%s\r\nEND\r\n" % (len(BOB), BOB)
        assert c.exactly(len(want)) == want
        assert other.line() == b"END", "it computes now"
        assert server.stats("rules")["1:promoted_invalidated"] == "1"
    for c in clients:
        c.close()


def test_over_tls(start, open_dir):
    """Refusals in the middle of a block and of a line, on encrypted connections."""
    make_certificate(open_dir)
    server = start(
        "-m", "256", "-c", "4096", "-l", "127.0.0.1,notls:127.0.0.1", "-Z",
        "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem",
    )
    encrypted, server.port = [port for _, port in server.ports]
    clients = stall(server, 1030, 66_000)
    with server.raw() as c:
        assert c.set(b"alice", ALICE) == b"STORED" and c.set(b"bob", BOB) == b"STORED"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect():
        return Raw(context.wrap_socket(socket.create_connection(("127.0.0.1", encrypted), 20)))

    for form, answered in ((b"set %s 0 0 %d noreply", False), (b"ms %s %d q", True)):
        with connect() as c:
            send_on(server, clients)
            before = refusals(server)
            first, rest = large(b"alice", 200_000, form)
            c.send(first)
            wait_until("it was refused", lambda: refusals(server) > before)
            c.send(rest + b"get alice bob\r\n")
            want = (NO_MEMORY + b"\r\n" if answered else b"") + b"VALUE bob 0 %d\r\n%s\r\nEND\r\n" % (len(BOB), BOB)
            assert c.exactly(len(want)) == want
    with connect() as c:
        send_on(server, clients)
        # Refused with its last bytes, so that nothing is on its way when the connection closes.
        c.send((b"get bob " + b"absent " * 10_000)[:70_000])
        assert c.line() == b"SERVER_ERROR out of memory reading request"
        assert c.closed() == b""
    for c in clients:
        c.close()


def test_many_clients_that_send_are_served_while_others_stall(start):
    """Eight clients set large values at once, from an address that stalls nothing."""
    server = start("-m", "512")
    stalled = stall(server, 66, 1_048_400)
    failures = []

    def work(number):
        with Raw(socket.create_connection(("127.0.0.1", server.port), 20, ("127.0.0.3", 0))) as c:
            for i in range(25):
                first, rest = large(b"w%d-%d" % (number, i), 1_000_000)
                c.send(first)
                c.send(rest)
                reply = c.line()
                if reply != b"STORED":
                    failures.append(reply)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    for c in stalled:
        c.close()


def test_little_is_kept_before_login(start, open_dir):
    """Who has not logged in takes little memory: a large block is refused at once, and what stands in it are commands to refuse."""
    with open(f"{open_dir}/users", "w") as f:
        f.write("alice:secret\n")
    server = start("-Y", f"{open_dir}/users")
    with server.raw() as known, server.raw() as c, server.raw() as half:
        known.send(b"set auth 0 0 12\r\nalice secret\r\n")
        assert known.line() == b"STORED"
        c.send(b"set k 0 0 1000000\r\n")
        assert c.line() == b"CLIENT_ERROR unauthenticated"
        half.send(b"set auth 0 0 4000\r\n" + b"x" * 3900)
        c.send(b"y" * 4000)
        stats = known.stats("cattlegrid")
        # The data of a login that is not whole counts, as all that is kept.
        assert int(stats["partial_bytes"]) < 8192 and stats["uploads_refused"] == "0"
        with contextlib.suppress(ConnectionError):
            c.send(b"y" * 200_000)
        assert c.closed() == b""
