"""Wrong logins under `-Y`: they are slow, end their connection, and cost nobody else anything."""

import contextlib
import os
import signal
import time

import pytest

from harness import wait_until
from test_operations import login, make_certificate, tls, users  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid
WRONG = b"CLIENT_ERROR authentication failure"


def attempt(password):
    token = b"alice " + password
    return b"set auth 0 0 %d\r\n%s\r\n" % (len(token), token)


@pytest.fixture
def server(start, users):  # noqa: F811
    return start("-Y", users, "-t", 1)


@pytest.fixture
def member(server):
    with server.raw() as c:
        assert login(c, "alice", "secret") == b"STORED"
        yield c


def test_a_wrong_login_waits_and_nobody_else_does(server, member):
    with server.raw() as c:
        began = time.monotonic()
        c.send(attempt(b"wrong"))
        wait_until("it is counted", lambda: member.stats()["auth_errors"] == "1")
        for _ in range(200):
            assert member.get(b"k") is None
        cpu = server.cpu_seconds()
        assert c.line() == WRONG
        assert time.monotonic() - began > 0.34
        assert server.cpu_seconds() - cpu < 0.5, "it does not spin"
        assert login(c, "alice", "secret") == b"STORED"
        assert c.get(b"k") is None


def test_guesses_in_one_packet(server, member):
    """One after the other, and the fifth closes; what is behind it is never looked at."""
    with server.raw(20) as c:
        began = time.monotonic()
        c.send(b"".join(attempt(b"guess%d" % i) for i in range(50)) + attempt(b"secret"))
        assert c.closed(20) == (WRONG + b"\r\n") * 5
        assert time.monotonic() - began > 5 * 0.34
    assert member.stats()["auth_errors"] == "5"
    assert member.stats("cattlegrid")["auth_closed"] == "1"


def test_the_right_password_behind_a_wrong_one(server):
    with server.raw() as c:
        c.send(attempt(b"wrong") + attempt(b"secret") + b"get k\r\n")
        assert [c.line() for _ in range(3)] == [WRONG, b"STORED", b"END"]


def test_a_flood_of_guesses_is_not_kept(server, member):
    with server.raw() as c:
        c.send(attempt(b"wrong") * 1000)
        assert c.closed() in (WRONG + b"\r\n", b"")
    assert member.stats()["auth_errors"] == "1"


def test_clients_that_go_while_they_wait(server, member):
    for _ in range(50):
        with server.raw() as c:
            c.send(attempt(b"wrong"))
    # A count of connections alone would also hold before the first is accepted.
    wait_until("all were refused", lambda: member.stats()["auth_errors"] == "50")
    wait_until("they are gone", lambda: member.stats()["curr_connections"] == "1")


def test_what_a_guesser_sends_before_it_ends_a_tls_session(start, users, open_dir):  # noqa: F811
    """A wrong login, much behind it, and the end of the session come at once: the connection is closed, and others are served."""
    make_certificate(open_dir)
    certificate = f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem"
    server = start("-Y", users, "-t", 1, "-Z", "-o", certificate)
    with tls(server) as guesser, tls(server) as c:
        assert login(c, "alice", "secret") == b"STORED"
        os.kill(server.pid, signal.SIGSTOP)
        try:
            guesser.send(attempt(b"wrong") + b"x" * 10_000)
            guesser.sock.setblocking(False)
            with pytest.raises(OSError):
                # Sends that the session ends, and would wait for the answer.
                guesser.sock.unwrap()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until("the login is counted", lambda: c.stats()["auth_errors"] == "1")
        for _ in range(100):
            assert c.get(b"k") is None
        wait_until("it is closed", lambda: c.stats()["curr_connections"] == "1")


def test_times_of_answers_differ(server):
    times = set()
    with contextlib.ExitStack() as opened:
        for _ in range(12):
            c = opened.enter_context(server.raw())
            began = time.monotonic()
            c.send(attempt(b"wrong"))
            assert c.line() == WRONG
            times.add(round((time.monotonic() - began) * 1000))
    assert min(times) >= 349 and max(times) < 700 and len(times) > 4, times


def test_an_address_has_a_hundred_attempts(server, member):
    """Over many connections at once; then nothing is looked at, not even the right password, and each answer closes."""
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.raw()) for _ in range(100)]
        for c in clients:
            c.send(attempt(b"wrong"))
        assert {c.line() for c in clients} == {WRONG}
        assert member.stats("cattlegrid")["auth_unseen"] == "0"
        for c in clients[:3]:
            c.send(attempt(b"secret") + b"mn\r\n")
            assert c.closed() == WRONG + b"\r\n"
    with server.raw() as c:
        assert login(c, "alice", "secret").decode() == WRONG.decode()
    stats = member.stats("cattlegrid")
    assert (stats["auth_unseen"], stats["auth_closed"]) == ("4", "4")
    assert member.get(b"k") is None, "who is logged in stays so"


def test_wrong_logins_are_in_the_log(server):
    """Without -v, with the client's address and port, and not more than ten a second."""
    with server.raw() as c:
        host, port = c.sock.getsockname()
        assert login(c, "alice", "wrong") == WRONG
        wait_until("it is said", lambda: f"{host}:{port}: a wrong login" in server.log())
        assert "wrong\n" not in server.log() and "alice" not in server.log()
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.raw()) for _ in range(60)]
        for c in clients:
            c.send(attempt(b"wrong"))
        assert {c.line() for c in clients} == {WRONG}
    wait_until("the rest is counted", lambda: "left out" in server.log() or server.log().count("a wrong login") < 45)
    assert server.log().count(": a wrong login") < 45
