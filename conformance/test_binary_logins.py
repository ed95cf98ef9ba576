"""Logging in with the binary protocol: SASL PLAIN under `-S`, with the users of `-Y` or of `MEMCACHED_SASL_PWDB`.

memcached's own SASL takes its users from Cyrus SASL, so that these tests are about cattlegrid alone.
"""

import glob
import os
import signal
import ssl
import struct
import subprocess
import sys
import time

import bmemcached
import pylibmc
import pytest

import packets
from harness import PROMPT, wait_until
from packets import (
    AUTH_CONTINUE, AUTH_ERROR, GET, INVALID, NOOP, OK, SASL_AUTH, SASL_LIST, SASL_STEP, UNKNOWN, VERSION, Binary, packet, plain, replies,
    store,
)
from test_operations import login, make_certificate, tls, users  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid

RIGHT = plain(b"alice", b"secret")
WRONG = plain(b"alice", b"wrong")


def both(start, users, *args):  # noqa: F811
    return start("-S", "-Y", users, *args)


def alone(start, users, *args):  # noqa: F811
    return start("-S", *args, env={"MEMCACHED_SASL_PWDB": users})


@pytest.fixture(params=[both, alone])
def server(request, start, users):  # noqa: F811
    """With one thread, so that a login that waits could make others wait."""
    return request.param(start, users, "-t", 1)


@pytest.fixture
def member(server):
    c = joined(server)
    yield c
    c.close()


def joined(server, user=b"alice", password=b"secret"):
    c = packets.connect(server)
    reply = c.ask(plain(user, password, opaque=77))
    assert (reply.opcode, reply.status, reply.opaque, reply.value) == (SASL_AUTH, OK, 77, b"Authenticated")
    return c


def test_logging_in(server):
    with packets.connect(server) as c:
        reply = c.ask(packet(SASL_LIST, opaque=5))
        assert (reply.status, reply.value, reply.opaque) == (OK, b"PLAIN", 5)
        assert c.ask(RIGHT).value == b"Authenticated"
        assert c.set(b"k", b"v") == OK and c.get(b"k") == b"v"
        assert c.ask(packet(SASL_LIST)).value == b"PLAIN"
        assert c.stats("settings")["auth_enabled_sasl"] == "yes"
        assert c.stats()["auth_errors"] == "0"
    with joined(server, b"bob", b"hunter2") as c:
        assert c.get(b"k") == b"v"
    with packets.connect(server) as c:
        assert c.ask(plain(b"bob", b"hunter2", authzid=b"bob")).status == OK, "acts as itself"


def test_everything_behind_a_login_in_one_packet(server):
    with packets.connect(server) as c:
        c.send(packet(SASL_LIST, opaque=1) + plain(b"alice", b"secret", opaque=2) + store(b"k", b"v", opaque=3) + packet(GET, b"k", opaque=4))
        got = c.replies(4)
        assert [(reply.opaque, reply.status) for reply in got] == [(1, OK), (2, OK), (3, OK), (4, OK)]
        assert got[3].value == b"v"


@pytest.mark.parametrize("size", [1, 5, 24, 29, 40])
def test_a_login_in_pieces(server, size):
    data = packet(SASL_LIST) + RIGHT + packet(VERSION)
    with packets.connect(server) as c:
        for at in range(0, len(data), size):
            c.send(data[at : at + size])
        assert [reply.status for reply in c.replies(3)] == [OK] * 3


def test_a_login_in_two_halves(server, member):
    """The second half comes after the server has seen the first."""
    own = len(packet(packets.STAT))
    for cut in range(1, len(RIGHT)):
        with packets.connect(server) as c:
            read = int(member.stats()["bytes_read"])
            c.send(RIGHT[:cut])

            def is_read():
                nonlocal read
                last, read = read, int(member.stats()["bytes_read"])
                return read - last > own  # each question is counted, too

            wait_until("it is read", is_read)
            c.send(RIGHT[cut:])
            assert c.reply().status == OK and c.get(b"k") is None


def test_a_login_in_steps(server):
    """A client that sends its mechanism first is asked for the rest."""
    with packets.connect(server) as c:
        reply = c.ask(packet(SASL_AUTH, b"PLAIN", opaque=1))
        assert (reply.status, reply.opaque, reply.value) == (AUTH_CONTINUE, 1, b"")
        reply = c.ask(plain(b"alice", b"secret", SASL_STEP, opaque=2))
        assert (reply.opcode, reply.status, reply.opaque) == (SASL_STEP, OK, 2)
        assert c.get(b"k") is None
    with packets.connect(server) as c:
        assert c.ask(packet(SASL_AUTH, b"PLAIN")).status == AUTH_CONTINUE
        assert c.ask(plain(b"alice", b"wrong", SASL_STEP)).status == AUTH_ERROR
        assert c.ask(packet(GET, b"k")).status == AUTH_ERROR and c.closed() == b""


def test_other_mechanisms(server, member):
    for mechanism in (b"CRAM-MD5", b"plain", b"PLAIN\0", b"P", b"ANONYMOUS", b"EXTERNAL"):
        with packets.connect(server) as c:
            assert c.ask(plain(b"alice", b"secret", mechanism=mechanism)).status == AUTH_ERROR, mechanism
            assert c.ask(packet(GET, b"k")).status == AUTH_ERROR
            assert c.closed() == b""


MESSAGES = [
    b"\0", b"\0\0", b"alice", b"alice\0secret", b"alice secret", b"\0alice\0", b"\0\0secret", b"\0alice\0secret\0", b"\0alice\0secret\0x",
    b"\0alice\0secre", b"\0alice\0secrets", b"\0Alice\0secret", b"\0alice \0secret", b"bob\0alice\0secret", b"\0mallory\0secret",
    b"\0alice\0hunter2", b"\0alice\0secret\n", b"\0\xff\xfe\0\x80", b"\0" * 4000,
]


def test_wrong_logins(server, member):
    """All at once, each on a connection of its own: each is answered late, and none is in."""
    connections = [packets.connect(server) for _ in MESSAGES]
    began = time.monotonic()
    for message, c in zip(MESSAGES, connections, strict=True):
        c.send(packet(SASL_AUTH, b"PLAIN", message, opaque=9))
    for message, c in zip(MESSAGES, connections, strict=True):
        reply = c.reply()
        assert (reply.opcode, reply.status, reply.opaque, reply.value) == (SASL_AUTH, AUTH_ERROR, 9, b"Auth failure."), message
        assert time.monotonic() - began > 0.34
    assert time.monotonic() - began < 0.34 * len(MESSAGES), "they wait side by side"
    for message, c in zip(MESSAGES, connections, strict=True):
        assert c.ask(packet(GET, b"k")).status == AUTH_ERROR, message
        assert c.closed() == b""
    assert member.stats()["auth_errors"] == str(len(MESSAGES))


def test_a_wrong_login_waits_and_nobody_else_does(server, member):
    with packets.connect(server) as c:
        began = time.monotonic()
        c.send(WRONG)
        wait_until("it is counted", lambda: member.stats()["auth_errors"] == "1")
        for _ in range(200):
            assert member.get(b"k") is None
        cpu = server.cpu_seconds()
        assert c.reply().status == AUTH_ERROR
        assert time.monotonic() - began > 0.34
        assert server.cpu_seconds() - cpu < 0.5, "it does not spin"
        assert c.ask(RIGHT).status == OK and c.get(b"k") is None


def test_guesses_in_one_packet(server, member):
    """One after the other, and the fifth closes; what is behind it is never looked at."""
    with packets.connect(server, 20) as c:
        began = time.monotonic()
        c.send(b"".join(plain(b"alice", b"guess%d" % n, opaque=n) for n in range(50)) + RIGHT)
        got = replies(c.closed(20))
        assert [(reply.opaque, reply.status) for reply in got] == [(n, AUTH_ERROR) for n in range(5)]
        assert time.monotonic() - began > 5 * 0.34
    assert member.stats()["auth_errors"] == "5"
    assert member.stats("cattlegrid")["auth_closed"] == "1"


def test_the_right_password_behind_a_wrong_one(server):
    with packets.connect(server) as c:
        c.send(WRONG + RIGHT + packet(GET, b"k"))
        assert [reply.status for reply in c.replies(3)] == [AUTH_ERROR, OK, packets.NOT_FOUND]


@pytest.mark.parametrize("behind", [b"", RIGHT, WRONG + RIGHT, store(b"k", b"v", packets.SETQ)])
def test_a_wrong_login_after_a_right_one(server, member, behind):
    """It is answered late and in its place, and logs out."""
    bad = plain(b"alice", b"wrong", opaque=7)
    with packets.connect(server, 20) as c:
        began = time.monotonic()
        c.send(RIGHT + packet(NOOP) + bad + behind + packet(GET, b"k", opaque=9))
        got = replies(c.closed(20)) if RIGHT not in behind else c.replies(behind.count(b"PLAIN") + 4)
        assert [(reply.opcode, reply.status) for reply in got[:3]] == [(SASL_AUTH, OK), (NOOP, OK), (SASL_AUTH, AUTH_ERROR)]
        assert got[2].opaque == b"\0\0\0\7" and time.monotonic() - began > 0.34 * (1 + behind.count(WRONG))
        last = packets.NOT_FOUND if RIGHT in behind else AUTH_ERROR
        assert [reply.status for reply in got[3:]] == {b"": [last], RIGHT: [OK, last], WRONG + RIGHT: [AUTH_ERROR, OK, last]}.get(behind, [last])
    assert member.get(b"k") is None


def test_a_wrong_login_behind_a_held_get(start, users, tmp_path):  # noqa: F811
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "page:{id}"\nhold = "20s"\nhold_behind = "20s"\n')
    server = start("-S", "-Y", users, "--config", rules)
    with joined(server) as holder, packets.connect(server, 20) as c:
        assert holder.get(b"page:1") is None
        assert c.ask(RIGHT).status == OK
        c.send(packet(GET, b"page:1", opaque=1) + WRONG)
        wait_until("it is held", lambda: holder.stats("cattlegrid")["held"] == "1")
        assert holder.set(b"page:1", b"v") == OK
        assert [(reply.opcode, reply.status) for reply in c.replies(2)] == [(GET, OK), (SASL_AUTH, AUTH_ERROR)]


def test_a_step_that_nothing_began(server):
    with packets.connect(server) as c:
        assert c.ask(plain(b"alice", b"secret", opcode=packets.SASL_STEP)).status == AUTH_ERROR
        assert c.ask(packet(SASL_AUTH, b"PLAIN")).status == packets.AUTH_CONTINUE
        assert c.ask(plain(b"alice", b"secret", opcode=packets.SASL_STEP)).status == OK
        assert c.get(b"k") is None


def test_a_command_behind_a_wrong_password(server, member):
    with packets.connect(server) as c:
        c.send(WRONG + store(b"k", b"v"))
        assert [reply.status for reply in replies(c.closed())] == [AUTH_ERROR] * 2
    assert member.get(b"k") is None


def test_a_flood_of_guesses_is_not_kept(server, member):
    with packets.connect(server) as c:
        c.send(WRONG * 1000)
        assert [reply.status for reply in replies(c.closed())] in ([AUTH_ERROR], [])
    assert member.stats()["auth_errors"] == "1"


def test_clients_that_go_while_they_wait(server, member):
    for _ in range(50):
        with packets.connect(server) as c:
            c.send(WRONG)
    wait_until("all were refused", lambda: member.stats()["auth_errors"] == "50")
    wait_until("they are gone", lambda: member.stats()["curr_connections"] == "1")


def test_large_and_malformed_logins(server, member):
    """Closed at once, without waiting for a body that is announced."""
    announced = packets.HEADER.pack(0x80, SASL_AUTH, 5, 0, 0, 0, 1 << 30, b"\0\0\0\1", 0) + b"PLAIN"
    for data in (
        packet(SASL_AUTH, b"PLAIN", b"x" * 4097),
        packet(SASL_AUTH, b"PLAIN", b"x" * 100_000),
        announced,
        packet(SASL_STEP, b"PLAIN", b"x" * 100_000),
        packet(SASL_AUTH, b"", b"\0alice\0secret"),
        packet(SASL_AUTH, b"PLAIN", b"\0alice\0secret", b"\0\0\0\0"),
        packet(SASL_AUTH, b"x" * 251, b""),
        packet(SASL_LIST, b"x"),
        packets.HEADER.pack(0x80, SASL_AUTH, 50, 0, 0, 0, 10, bytes(4), 0) + b"x" * 50,
    ):
        with packets.connect(server) as c:
            try:
                c.send(data)
                got = c.closed()
            except ConnectionError:
                got = b""  # it was closed before all was sent
            assert [reply.status for reply in replies(got)] in ([INVALID], [UNKNOWN], []), data[:64]
    rss = server.rss()
    waiting = [packets.connect(server) for _ in range(100)]
    for c in waiting:
        c.send(packets.HEADER.pack(0x80, SASL_AUTH, 5, 0, 0, 0, 5 + 4096, bytes(4), 0) + b"PLAIN" + b"x" * 4095)
    with joined(server) as c:
        assert c.get(b"k") is None
    assert server.rss() < rss + (16 << 20)
    for c in waiting:
        c.close()
    wait_until("they are gone", lambda: member.stats()["curr_connections"] == "1")


# Nothing before a login


def plausible(opcode):
    """Packets of this opcode that would do something, or show something, without a login."""
    key, value = b"canary", b"changed"
    extras = [b"", struct.pack("!II", 0, 0), struct.pack("!I", 0), struct.pack("!QQI", 1, 1, 0)]
    yield packet(opcode)
    for extra in extras:
        yield packet(opcode, b"", b"", extra)
        yield packet(opcode, key, b"", extra)
        yield packet(opcode, key, value, extra)


LOGINS = (SASL_LIST, SASL_AUTH, SASL_STEP)


def test_no_command_is_executed_before_a_login(server, member):
    assert member.set(b"canary", b"1", flags=3) == OK
    cas = member.ask(packet(GET, b"canary")).cas
    before = member.stats()
    for opcode in range(256):
        for data in plausible(opcode):
            with packets.connect(server) as c:
                if opcode in LOGINS:
                    # These may be answered, but must not be a login.
                    c.send(data + packet(GET, b"canary"))
                    got = replies(c.closed())
                    assert all(reply.value in (b"PLAIN", b"Auth failure.", b"Invalid arguments", b"Unknown command", b"") for reply in got), got
                else:
                    c.send(data)
                    got = replies(c.closed())
                    assert [(reply.opcode, reply.status) for reply in got] == [(opcode, AUTH_ERROR)], data
    reply = member.ask(packet(GET, b"canary"))
    assert (reply.value, reply.cas, reply.extras) == (b"1", cas, b"\0\0\0\3"), "nothing has changed"
    after = member.stats()
    for name in ("cmd_set", "cmd_flush", "cmd_touch", "total_items", "curr_items", "delete_misses", "delete_hits", "incr_hits", "incr_misses"):
        assert after[name] == before[name], name
    assert int(after["cmd_get"]) == int(before["cmd_get"]) + 1, "the member's own"
    assert server.running()


def test_pipelined_commands_before_a_login(server, member):
    """Not even those behind a command that is refused."""
    with packets.connect(server) as c:
        c.send(packet(GET, b"canary", opaque=1) + RIGHT + store(b"canary", b"v"))
        assert [(reply.opaque, reply.status) for reply in replies(c.closed())] == [(1, AUTH_ERROR)]
    assert member.get(b"canary") is None and member.stats()["auth_cmds"] == "1"


def test_a_large_value_before_a_login(server, member):
    with packets.connect(server) as c:
        try:
            c.send(store(b"canary", b"x" * 900_000))
        except ConnectionError:
            pass
        try:
            got = c.closed()
        except ConnectionError:
            got = b""
        assert [reply.status for reply in replies(got)] in ([AUTH_ERROR], [])
    assert member.get(b"canary") is None


def test_a_wrong_login_after_a_right_one(server):
    """The connection is no longer logged in, as in memcached."""
    with joined(server) as c:
        assert c.ask(WRONG).status == AUTH_ERROR
        assert c.ask(packet(GET, b"k")).status == AUTH_ERROR
        assert c.closed() == b""


# Text clients


def test_text_clients_log_in_too(start, users):  # noqa: F811
    server = both(start, users)
    with server.raw() as c:
        c.send(b"get a\r\n")
        assert c.line() == b"CLIENT_ERROR unauthenticated"
        assert login(c, "alice", "wrong") == b"CLIENT_ERROR authentication failure"
        assert login(c, "bob", "hunter2") == b"STORED"
        assert c.set(b"k", b"v") == b"STORED"
        settings = c.stats("settings")
        assert settings["auth_enabled_ascii"] == users and settings["auth_enabled_sasl"] == "yes"
    with joined(server) as c:
        assert c.get(b"k") == b"v"


def test_text_is_not_spoken_where_it_cannot_log_in(start, users):  # noqa: F811
    server = alone(start, users)
    for data in (b"get canary\r\n", b"set canary 0 0 1\r\nv\r\n", b"set auth 0 0 12\r\nalice secret\r\n", b"stats\r\nversion\r\nstats\r\n"):
        with server.raw() as c:
            c.send(data + b"quit\r\n" * 4)
            assert c.closed() == b"", data
    with joined(server) as c:
        assert c.get(b"canary") is None and c.stats("settings")["binding_protocol"] == "binary"


FIRST = {"list": packet(SASL_LIST), "login": RIGHT, "get": packet(GET, b"k"), "noop": packet(NOOP), "set": store(b"k", b"v" * 5000)}


@pytest.mark.parametrize("request_", FIRST.values(), ids=FIRST)
def test_binary_is_not_spoken_where_it_cannot_log_in(start, users, request_):  # noqa: F811
    """It is a line that is no login, as for memcached: nothing of it is executed, and a short line, or one too long, closes."""
    server = start("-Y", users)
    with server.raw() as c:
        c.send(request_ + b"\r\n\r\n")
        assert c.closed() in (b"", b"CLIENT_ERROR unauthenticated\r\n")
    with server.raw() as c:
        assert login(c, "alice", "secret") == b"STORED" and c.get(b"k") is None


# Files of users


def refused(binary, *args, env=None):
    done = subprocess.run(
        [binary, "-p", "-1", "-l", "127.0.0.1", *args],
        env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=6 * PROMPT,
    )
    assert done.returncode == 2 and not done.stdout, done
    return done.stderr


def test_without_a_file(binary):
    environment = {name: value for name, value in os.environ.items() if name != "MEMCACHED_SASL_PWDB"}
    done = subprocess.run([binary, "-p", "-1", "-S"], env=environment, capture_output=True, text=True, timeout=6 * PROMPT)
    assert done.returncode == 2 and "-Y" in done.stderr and "MEMCACHED_SASL_PWDB" in done.stderr, done


def test_options_that_let_nobody_log_in(binary, users):  # noqa: F811
    sasl = {"MEMCACHED_SASL_PWDB": users}
    assert "-B" in refused(binary, "-S", "-B", "ascii", env=sasl)
    assert "-B" in refused(binary, "-S", "-B", "auto", env=sasl)
    assert "-B" in refused(binary, "-Y", users, "-B", "binary")
    assert "-B" in refused(binary, "-Y", users, "-B", "auto")
    assert "-B" in refused(binary, "-S", "-Y", users, "-B", "ascii")
    assert "-B" in refused(binary, "-S", "-Y", users, "-B", "binary")


@pytest.mark.parametrize("text", [b"", b"alice\n", b"alice:secret\nbob\n", b"# a comment\n", b":secret\n", b"alice:\n"])
def test_wrong_files(binary, open_dir, text):
    path = f"{open_dir}/wrong"
    with open(path, "wb") as f:
        f.write(text)
    message = refused(binary, "-S", env={"MEMCACHED_SASL_PWDB": path})
    assert path in message, message
    assert refused(binary, "-S", env={"MEMCACHED_SASL_PWDB": path + "-absent"})
    assert refused(binary, "-S", env={"MEMCACHED_SASL_PWDB": open_dir}), "a directory"


def test_the_format_of_memcached(start, open_dir):
    """A colon ends a password, the first line of a user counts, and there may be many users."""
    path = f"{open_dir}/pwdb"
    with open(path, "w") as f:
        f.write("alice:secret:ignored\nalice:second\nbob:hun:ter2\n" + "".join(f"user{n}:password{n}\n" for n in range(1000)))
    server = start("-S", env={"MEMCACHED_SASL_PWDB": path})
    for user, password in ((b"alice", b"secret"), (b"bob", b"hun"), (b"user0", b"password0"), (b"user999", b"password999")):
        joined(server, user, password).close()
    wrong = [packets.connect(server) for _ in range(4)]
    for c, (user, password) in zip(
        wrong, ((b"alice", b"second"), (b"alice", b"secret:ignored"), (b"bob", b"hun:ter2"), (b"user1", b"password2")), strict=True
    ):
        c.send(plain(user, password))
    assert [c.reply().status for c in wrong] == [AUTH_ERROR] * 4


def test_the_realm_of_a_user_is_taken_off(start, open_dir):
    """As libsasl2 does; a line of its own about the user goes before."""
    path = f"{open_dir}/pwdb"
    with open(path, "w") as f:
        f.write("alice@cache.example:secret:::\nbob@a.example:other\nbob:own\ncarol@x@y:pw\nalice@second.example:second\n")
    server = start("-S", env={"MEMCACHED_SASL_PWDB": path})
    right = [("alice", "secret"), ("alice@cache.example", "secret"), ("bob", "own"), ("bob@a.example", "other"), ("carol@x@y", "pw")]
    right += [("carol@x", "pw"), ("alice@second.example", "second")]
    for user, password in right:
        joined(server, user.encode(), password.encode()).close()
    wrong = [("alice", "second"), ("alice@other.example", "secret"), ("bob", "other"), ("carol", "pw"), ("alice@", "secret")]
    connections = [packets.connect(server) for _ in wrong]
    for c, (user, password) in zip(connections, wrong, strict=True):
        c.send(plain(user.encode(), password.encode()))
    assert [c.reply().status for c in connections] == [AUTH_ERROR] * len(wrong)


def test_the_format_of_y(start, open_dir):
    """A colon is a part of the password, and each line of a user counts; a line with an empty part is for text clients."""
    path = f"{open_dir}/y"
    with open(path, "w") as f:
        f.write("alice:secret\nalice:second\nbob:hun:ter2\ncarol:\n:nobody\n")
    server = start("-S", "-Y", path)
    for user, password in ((b"alice", b"secret"), (b"alice", b"second"), (b"bob", b"hun:ter2")):
        joined(server, user, password).close()
    wrong = [packets.connect(server) for _ in range(3)]
    for c, (user, password) in zip(wrong, ((b"bob", b"hun"), (b"carol", b""), (b"", b"nobody")), strict=True):
        c.send(plain(user, password))
    assert [c.reply().status for c in wrong] == [AUTH_ERROR] * 3


def test_of_two_files_the_one_of_y_counts(start, users, open_dir):  # noqa: F811
    path = f"{open_dir}/other"
    with open(path, "w") as f:
        f.write("carol:other\n")
    server = start("-S", "-Y", users, env={"MEMCACHED_SASL_PWDB": path})
    joined(server).close()
    with packets.connect(server) as c:
        assert c.ask(plain(b"carol", b"other")).status == AUTH_ERROR
    assert "MEMCACHED_SASL_PWDB" in server.log()


@pytest.mark.parametrize("make", [both, alone])
def test_the_file_is_read_again(start, users, make):  # noqa: F811
    server = make(start, users)
    with joined(server) as old:
        with open(users, "w") as f:
            f.write("carol:new\n")
        server.signal(signal.SIGHUP)

        def known():
            with packets.connect(server) as c:
                return c.ask(plain(b"carol", b"new")).status == OK

        wait_until("the new user is known", known)
        with packets.connect(server) as c:
            assert c.ask(RIGHT).status == AUTH_ERROR
        assert old.get(b"k") is None, "who is in stays in"
        with open(users, "w") as f:
            f.write("no colon\n")
        server.signal(signal.SIGHUP)
        wait_until("the error is in the log", lambda: "line 1" in server.log() or "no colon" in server.log() or "colon" in server.log())
        joined(server, b"carol", b"new").close()


# TLS, Unix sockets, without -S


@pytest.mark.parametrize("make", [both, alone])
def test_over_tls(start, users, open_dir, make):  # noqa: F811
    make_certificate(open_dir)
    server = make(start, users, "-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    with tls(server) as raw:
        c = Binary(raw.sock)
        assert c.ask(packet(SASL_LIST)).value == b"PLAIN"
        assert c.ask(RIGHT).status == OK
        value = bytes(range(256)) * 3000
        assert c.set(b"k", value) == OK and c.get(b"k") == value
    with tls(server) as raw:
        c = Binary(raw.sock)
        assert c.ask(packet(GET, b"k")).status == AUTH_ERROR
        assert c.closed() == b""
    with tls(server) as raw:
        c = Binary(raw.sock)
        c.send(WRONG + RIGHT + packet(VERSION))
        assert [reply.status for reply in c.replies(3)] == [AUTH_ERROR, OK, OK]


def test_binary_over_tls_without_logins(start, open_dir):
    make_certificate(open_dir)
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    with tls(server) as raw, tls(server) as text:
        c = Binary(raw.sock)
        for n in range(100):
            c.send(store(b"k%d" % n, b"v" * n * 100, packets.SETQ))
        c.send(packets.multi_get([b"k%d" % n for n in range(100)]))
        assert [len(reply.value) for reply in c.until_noop()] == [n * 100 for n in range(100)]
        assert text.get(b"k7") == b"v" * 700


def test_over_a_unix_socket(start, users, open_dir):  # noqa: F811
    server = both(start, users, "-s", open_dir + "/sock")
    with joined(server) as c:
        assert c.set(b"k", b"v") == OK
    with packets.connect(server) as c:
        assert c.ask(packet(GET, b"k")).status == AUTH_ERROR


def test_without_logins(start):
    """SASL is an unknown command, after which clients go on without a login."""
    server = start()
    with packets.connect(server) as c:
        assert c.ask(packet(SASL_LIST)).status == UNKNOWN
        assert c.ask(RIGHT).status == UNKNOWN
        assert c.set(b"k", b"v") == OK


# Clients


def test_pylibmc(server, member):
    """In a process of its own, since the library that is part of it looks for its mechanisms when it is loaded, and elsewhere."""
    assert pylibmc.support_sasl
    [directory] = glob.glob("/usr/lib/*/sasl2")
    program = """
import pylibmc, sys
c = pylibmc.Client([sys.argv[1]], binary=True, username="alice", password="secret")
assert c.set("k", "v") and c.get("k") == "v" and c.get_multi(["k", "absent"]) == {"k": "v"}
for options in ({"username": "alice", "password": "wrong"}, {}):
    try:
        pylibmc.Client([sys.argv[1]], binary=True, **options).set("k", "w")
    except pylibmc.Error:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, server.address],
        env={**os.environ, "SASL_PATH": directory}, capture_output=True, text=True, timeout=6 * PROMPT,
    )
    assert done.returncode == 0 and done.stdout == "refused\n" * 2, done
    assert member.get(b"k") == b"v"


def test_bmemcached(server, member):
    c = bmemcached.Client([server.address], "alice", "secret", socket_timeout=20)
    assert c.set("k", "v") and c.get("k") == "v"
    for options in (("alice", "wrong"), ("mallory", "secret")):
        c = bmemcached.Client([server.address], *options, socket_timeout=20)
        with pytest.raises(bmemcached.exceptions.MemcachedException):
            c.set("k", "w")
    assert member.get(b"k") == b"v"


def test_bmemcached_over_tls(start, users, open_dir):  # noqa: F811
    make_certificate(open_dir)
    server = both(start, users, "-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    c = bmemcached.Client([server.address], "alice", "secret", socket_timeout=20, tls_context=context)
    assert c.set("k", "v" * 100_000) and c.get("k") == "v" * 100_000
