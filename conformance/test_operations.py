"""What operators use: limits, authentication, TLS, sockets, watching, dumping, statistics, switches."""

import contextlib
import datetime
import ipaddress
import itertools
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from harness import ITEM_MAX, PROMPT, Closed, Raw, free_port, wait_until

MIB = 1 << 20

# --- Connections -----------------------------------------------------------------------------------------------------


def test_connection_limit(start):
    """A connection too many gets an error and is closed; when another leaves there is room again."""
    server = start("-c", "50", "-t", "1")
    kept, refused = [], 0
    for _ in range(90):
        c = server.raw()
        try:
            c.send(b"mn\r\n")
            line = c.line()
        except (Closed, ConnectionError):
            refused += 1
            continue
        if line == b"MN":
            kept.append(c)
        else:
            assert line == b"ERROR Too many open connections"
            c.closed()
            refused += 1
    assert 20 <= len(kept) <= 50 and refused >= 40  # memcached keeps some for itself
    stats = kept[0].stats()
    assert int(stats["rejected_connections"]) >= 40
    assert stats["max_connections"] == "50"
    for c in kept[1:]:
        c.close()

    def served():
        with server.raw() as c:
            try:
                c.send(b"mn\r\n")
                return c.line() == b"MN"
            except (Closed, ConnectionError):
                return False

    wait_until("there is room again", served)


def ask_one(connection, line):
    connection.sendall(line)
    return connection.recv(100)


def test_commands_that_arrive_while_the_server_is_stopped_are_not_idle(start):
    server = start("-o", "idle_timeout=2")
    with server.connect(30) as c:
        c.sendall(b"mn\r\n")
        assert c.recv(100) == b"MN\r\n"
        server.stop_all_threads()
        c.sendall(b"".join(b"set k%d 0 0 1 noreply\r\nv\r\n" % n for n in range(100)) + b"mn\r\n")
        time.sleep(5)
        server.signal(signal.SIGCONT)
        assert c.recv(100) == b"MN\r\n"
    with server.connect(30) as c:
        assert [ask_one(c, b"mg k%d\r\n" % n) for n in range(100)] == [b"HD\r\n"] * 100


def test_idle_timeout(start):
    server = start("-o", "idle_timeout=3")
    began = time.monotonic()
    with server.raw() as idle, server.raw() as busy:
        busy.set(b"a", b"v")
        idle.sock.setblocking(False)

        def gone():
            busy.get(b"a")
            try:
                return idle.sock.recv(10) == b""
            except BlockingIOError:
                return False

        wait_until("the idle connection is closed", gone)
        assert time.monotonic() - began > 2.9
        assert busy.get(b"a") == b"v"
        assert int(busy.stats()["idle_kicks"]) >= 1
        assert busy.stats("settings")["idle_timeout"] == "3"


@pytest.mark.parametrize(
    "size, reply", [(80_000, b"STORED"), (2_000_000, b"SERVER_ERROR object too large for cache")]
)
def test_a_value_that_arrives_slowly_is_no_idle_connection(start, size, reply):
    server = start("-o", "idle_timeout=1")
    with server.raw() as slow, server.raw() as silent:
        slow.sock.sendall(b"set a 0 0 %d\r\n" % size)
        for _ in range(4):
            slow.sock.sendall(b"x" * (size // 4))
            time.sleep(0.5)
        # A pause of several times the timeout is none either.
        time.sleep(3)
        slow.sock.sendall(b"\r\nmn\r\n")
        assert [slow.line(), slow.line()] == [reply, b"MN"]
        assert silent.sock.recv(10) == b"", "it was closed meanwhile"
        assert int(server.stats()["idle_kicks"]) >= 1


def test_unix_socket_and_its_mode(start, open_dir):
    path = open_dir + "/sock"
    server = start("-s", path, "-a", "0770")
    mode = os.stat(path).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o770
    with server.raw() as c:
        assert c.set(b"k", b"v") == b"STORED" and c.get(b"k") == b"v"
        assert c.stats("settings")["domain_socket"] == path


def test_a_stale_unix_socket_is_replaced(start, open_dir):
    path = open_dir + "/sock"
    start("-s", path).kill()
    assert os.path.exists(path)
    with start("-s", path).raw() as c:
        assert c.set(b"k", b"v") == b"STORED"


def test_ipv6(start):
    server = start("-l", "::1")
    assert server.ports[0][0] == "INET6"
    with Raw(socket.create_connection(("::1", server.port), 2 * PROMPT)) as c:
        assert c.set(b"k", b"v") == b"STORED" and c.get(b"k") == b"v"


@pytest.mark.parametrize("form", ["repeated", "commas", "with ports"])
def test_several_addresses(start, form):
    port, other = free_port(), free_port()
    args = {
        "repeated": ["-p", str(port), "-l", "127.0.0.1", "-l", "127.0.0.2"],
        "commas": ["-p", str(port), "-l", "127.0.0.1,127.0.0.2"],
        "with ports": ["-p", str(port), "-l", f"127.0.0.1:{port},127.0.0.2:{other}"],
    }[form]
    server = start(*args)
    second = other if form == "with ports" else port
    assert sorted(p for _, p in server.ports) == sorted([port, second])
    here, there = (socket.create_connection(at, 2 * PROMPT) for at in (("127.0.0.1", port), ("127.0.0.2", second)))
    with Raw(here) as a, Raw(there) as b:
        assert a.set(b"k", b"v") == b"STORED" and b.get(b"k") == b"v"


def test_backlog_threads_and_other_harmless_options(start):
    server = start("-b", "2048", "-t", "2", "-R", "40", "-f", "1.5", "-n", "64", "-B", "auto", "-v", "-o", "modern,slab_automove=1,hashpower=18,no_hashexpand")
    with server.raw() as c:
        assert c.stats()["threads"] == "2"
        settings = c.stats("settings")
        assert settings["tcp_backlog"] == "2048" and settings["reqs_per_event"] == "40" and settings["verbosity"] == "1"
        assert c.set(b"k", b"v") == b"STORED"


@pytest.mark.parametrize(
    "args",
    ["-l fooble", "-B http", "-c 0", "-c -1", "-t 0", "-I 1000", "-I 256m", "--nonsense", "-o nonsense", "-p 99999999"],
)
def test_impossible_options_are_refused(binary, kind, args):
    """At once, with a reason, and a status that is not 0."""
    user = ["-u", "nobody"] if kind == "memcached" and os.geteuid() == 0 else []
    base = [] if "-p" in args else ["-p", "-1"]
    done = subprocess.run([binary, *user, *base, *args.split()], capture_output=True, text=True, timeout=6 * PROMPT)
    assert done.returncode not in (0, None) and done.returncode > 0
    assert done.stderr.strip() or done.stdout.strip()
    if kind == "cattlegrid":
        assert done.returncode == (1 if args == "-l fooble" else 2), done.stderr  # a name that does not resolve is no usage error
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr


@pytest.mark.only_cattlegrid
@pytest.mark.parametrize("args", ["-U 11211", "-S", "-o ext_path=/nowhere:1g", "-o proxy_config=x", "-e /nowhere"])
def test_what_is_left_out_is_refused(binary, args):
    done = subprocess.run([binary, "-p", "-1", *args.split()], capture_output=True, text=True, timeout=6 * PROMPT)
    assert done.returncode == 2 and done.stderr.strip()


def test_help_and_version(binary):
    for args in (["-h"], ["-V"]):
        done = subprocess.run([binary, *args], capture_output=True, text=True, timeout=6 * PROMPT)
        assert done.returncode == 0 and done.stdout.strip()


def test_pid_file_and_daemon(binary, kind, open_dir):
    port = free_port()
    user = ["-u", "nobody"] if kind == "memcached" and os.geteuid() == 0 else []
    done = subprocess.run([binary, *user, "-d", "-P", open_dir + "/pid", "-p", str(port), "-U", "0", "-l", "127.0.0.1"], timeout=6 * PROMPT)
    assert done.returncode == 0
    pid = int(wait_until("the pid file is written", lambda: os.path.exists(open_dir + "/pid") and open(open_dir + "/pid").read().strip()))
    try:

        def answers():
            try:
                with Raw(socket.create_connection(("127.0.0.1", port), PROMPT)) as c:
                    return c.stats()["pid"]
            except (Closed, OSError):
                return None

        assert wait_until("the daemon answers", answers) == str(pid)
    finally:
        os.kill(pid, signal.SIGTERM)

    def left():
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until("the daemon left", left)
    if kind == "cattlegrid":
        assert not os.path.exists(open_dir + "/pid")


# --- Authentication --------------------------------------------------------------------------------------------------


def login(c, user, password):
    token = f"{user} {password}".encode()
    c.send(b"set auth 0 0 %d\r\n%s\r\n" % (len(token), token))
    return c.line()


@pytest.fixture
def users(open_dir):
    path = open_dir + "/users"
    with open(path, "w") as f:
        f.write("alice:secret\nbob:hunter2\n")
    return path


def test_authentication(start, users):
    server = start("-Y", users)
    for command in (b"get a", b"version", b"stats", b"mg a v", b"delete a", b"flush_all", b"gat 0 a", b"touch a 1", b"watch fetchers"):
        with server.raw() as c:
            c.send(command + b"\r\n")
            assert c.line() == b"CLIENT_ERROR unauthenticated", command
    with server.raw() as c:
        assert login(c, "alice", "wrong") == b"CLIENT_ERROR authentication failure"
        assert login(c, "mallory", "secret") == b"CLIENT_ERROR authentication failure"
        assert login(c, "alice", "secre") == b"CLIENT_ERROR authentication failure"
        c.send(b"set auth 0 0 3\r\nabc\r\n")
        assert c.line() == b"CLIENT_ERROR bad authentication token format"
        c.send(b"get a\r\n")
        assert c.line() == b"CLIENT_ERROR unauthenticated"
        assert login(c, "bob", "hunter2") == b"STORED"
        assert c.get(b"auth") is None, "the password is not stored"
        assert c.set(b"a", b"v") == b"STORED" and c.get(b"a") == b"v"
        stats = c.stats()
        assert int(stats["auth_cmds"]) >= 4 and int(stats["auth_errors"]) >= 3
        assert c.stats("settings")["auth_enabled_ascii"] == users
    with server.raw() as c:
        assert login(c, "alice", "secret") == b"STORED" and c.get(b"a") == b"v"


def test_authentication_file_is_reloaded(start, users):
    server = start("-Y", users)
    with open(users, "w") as f:
        f.write("carol:new\n")
    server.signal(signal.SIGHUP)

    def known():
        with server.raw() as c:
            return login(c, "carol", "new") == b"STORED"

    wait_until("the new user is known", known)
    with server.raw() as c:
        assert login(c, "alice", "secret") == b"CLIENT_ERROR authentication failure"


# --- TLS -------------------------------------------------------------------------------------------------------------

_serials = itertools.count(1000)


def make_certificate(directory, stem="", issuer=None, usage=ExtendedKeyUsageOID.SERVER_AUTH):
    """Writes {stem}cert.pem and {stem}key.pem over what is there.

    Self-signed without an `issuer`, which is the (key, certificate) that this returns.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"conformance {stem or 'server'}")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer[1].subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(next(_serials))
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=10))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    certificate = builder.sign(issuer[0] if issuer else key, hashes.SHA256())
    with open(f"{directory}/{stem}key.pem", "wb") as f:
        f.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with open(f"{directory}/{stem}cert.pem", "wb") as f:
        f.write(certificate.public_bytes(serialization.Encoding.PEM))
    os.chmod(f"{directory}/{stem}key.pem", 0o644)
    return key, certificate


def tls(server, version=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version:
        context.minimum_version = context.maximum_version = version
    return Raw(context.wrap_socket(server.connect()))


def serial_of(c):
    return x509.load_der_x509_certificate(c.sock.getpeercert(binary_form=True)).serial_number


@pytest.fixture
def tls_server(start, open_dir):
    serial = make_certificate(open_dir)[1].serial_number
    server = start("-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem", "-I", "4m")
    return server, open_dir, serial


def test_tls(tls_server):
    server, _, serial = tls_server
    with tls(server) as c:
        assert serial_of(c) == serial
        for size in (0, 1, 16383, 16384, 16385, 100_000, 3 * MIB):
            value = os.urandom(size)
            assert c.set(b"k", value) == b"STORED" and c.get(b"k") == value
        c.send(b"".join(b"set p%d 0 0 2 noreply\r\nhi\r\n" % i for i in range(1000)))
        assert c.ask(b"get " + b" ".join(b"p%d" % i for i in range(1000)) + b"\r\n").count(b"VALUE") == 1000
        settings = c.stats("settings")
        assert settings["ssl_enabled"] == "yes"
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with tls(server, version) as c:
            assert c.get(b"p1") == b"hi"


@pytest.mark.only_cattlegrid
def test_tls_ends_with_a_farewell(tls_server):
    """A client can distinguish the end of a connection from a cut: `recv` raises SSLEOFError without close_notify."""
    server, _, _ = tls_server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        with context.wrap_socket(server.connect(), suppress_ragged_eofs=False) as s:
            s.sendall(b"mn\r\nquit\r\n")
            assert s.recv(100) == b"MN\r\n"
            assert s.recv(100) == b""


def test_plain_text_on_a_tls_port(tls_server):
    server, _, _ = tls_server
    with server.raw() as c:
        c.send(b"get k\r\n" * 10)
        assert b"END" not in c.closed()
    with tls(server) as c:
        assert c.get(b"absent") is None


def test_certificates_are_reloaded_by_command(tls_server):
    server, directory, old = tls_server
    with tls(server) as c:
        new = make_certificate(directory)[1].serial_number
        c.send(b"refresh_certs\r\n")
        assert c.line() == b"OK"
        assert c.set(b"k", b"v") == b"STORED", "open connections go on"
        with tls(server) as d:
            assert serial_of(d) == new != old and d.get(b"k") == b"v"
        with open(directory + "/cert.pem", "w") as f:
            f.write("nonsense")
        c.send(b"refresh_certs\r\n")
        assert c.line() != b"OK"
        with tls(server) as d:
            assert serial_of(d) == new, "a bad file changes nothing"


@pytest.mark.only_cattlegrid
def test_certificates_are_reloaded_by_signal(tls_server):
    server, directory, old = tls_server
    new = make_certificate(directory)[1].serial_number
    server.signal(signal.SIGHUP)

    def serial():
        with tls(server) as c:
            return serial_of(c)

    wait_until("the new certificate is served", lambda: serial() == new)


def test_client_certificates(start, open_dir):
    """With ssl_verify_mode=2 a client needs a certificate of the given authority."""
    authority = make_certificate(open_dir, "ca-")
    make_certificate(open_dir, "", authority)
    make_certificate(open_dir, "client-", authority, ExtendedKeyUsageOID.CLIENT_AUTH)
    make_certificate(open_dir, "stranger-", make_certificate(open_dir, "other-ca-"), ExtendedKeyUsageOID.CLIENT_AUTH)
    files = f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem,ssl_ca_cert={open_dir}/ca-cert.pem"
    server = start("-Z", "-o", files + ",ssl_verify_mode=2")

    def connect(stem):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(open_dir + "/ca-cert.pem")
        if stem:
            context.load_cert_chain(f"{open_dir}/{stem}cert.pem", f"{open_dir}/{stem}key.pem")
        return Raw(context.wrap_socket(server.connect(), server_hostname="127.0.0.1"))

    for stem in (None, "stranger-"):
        with pytest.raises((ssl.SSLError, Closed, ConnectionError)), connect(stem) as c:
            c.get(b"k")
    with connect("client-") as c:
        assert c.set(b"k", b"v") == b"STORED" and c.get(b"k") == b"v"


@pytest.mark.parametrize("missing", ["cert", "key", "both"])
def test_tls_without_its_files_is_refused(binary, kind, open_dir, missing):
    make_certificate(open_dir)
    options = []
    if missing != "both":
        options = ["-o", f"ssl_chain_cert={open_dir}/{'absent' if missing == 'cert' else 'cert'}.pem,ssl_key={open_dir}/{'absent' if missing == 'key' else 'key'}.pem"]
    user = ["-u", "nobody"] if kind == "memcached" and os.geteuid() == 0 else []
    done = subprocess.run([binary, *user, "-p", "-1", "-l", "127.0.0.1", "-Z", *options], capture_output=True, timeout=6 * PROMPT)
    assert done.returncode > 0


# --- Watching and dumping --------------------------------------------------------------------------------------------


def watched(watcher, patterns, seconds=2 * PROMPT):
    """Reads lines until every pattern has matched one; the lines."""
    lines, missing = [], list(patterns)
    watcher.sock.settimeout(seconds)
    while missing:
        try:
            line = watcher.until(b"\n").strip()
        except (TimeoutError, Closed):
            raise AssertionError(f"not seen: {missing}; seen: {lines}") from None
        assert re.match(rb"ts=\d+\.\d+ gid=\d+ type=\w+ ", line), line
        lines.append(line)
        missing = [p for p in missing if not re.search(p, line)]
    return lines


def test_watch_fetchers_and_mutations(start, is_1_6_18):
    server = start()
    with server.raw() as w, server.raw() as c:
        c.set(b"hit", b"v")
        w.send(b"watch fetchers mutations\r\n")
        assert w.line() == b"OK"
        c.ask(b"get hit absent\r\nmg hit v\r\nset new 0 100 3\r\nabc\r\nadd new 0 0 1\r\nx\r\nms meta 1\r\nx\r\n")
        watched(
            w,
            [
                rb"type=item_get key=hit status=found .*clsid=\d+ .*cfd=\d+ .*size=\d+",
                rb"type=item_get key=absent status=not_found",
                rb"type=item_store key=new status=stored cmd=set ttl=(?:100|9\d) clsid=\d+ cfd=\d+ size=3",
                rb"type=item_store key=new status=not_stored cmd=add",
                rb"type=item_store key=meta status=stored",
            ],
        )


@pytest.mark.only_1_6_45
def test_stores_that_are_too_large_are_watched_and_counted(start):
    """After the refusal comes the look-up with which the old value is removed: of a `set`, and of an `ms` in any mode."""
    server = start("-I", "64k")
    with server.raw() as w, server.raw() as c:
        assert c.set(b"p:set", b"v") == b"STORED"
        w.send(b"watch fetchers mutations\r\n")
        assert w.line() == b"OK"
        assert c.ask(b"stats detail on\r\n") == b"OK\r\n"
        for line in (b"set p:set 0 100 70000", b"add p:add 0 0 70000", b"ms p:ms 70000 T100", b"ms p:me 70000 ME"):
            c.send(line + b"\r\n" + b"x" * 70_000 + b"\r\n")
            assert c.line() == b"SERVER_ERROR object too large for cache"
        assert c.ask(b"stats detail dump\r\n") == b"PREFIX p get 0 hit 0 set 2 del 0\r\nEND\r\n"
        assert c.set(b"last", b"v") == b"STORED"
        lines = watched(w, [rb"type=item_store key=last status=stored"])
        said = [re.sub(rb"^.*?(type=\w+ key=\S+ status=\w+)( cmd=\w+)?( ttl=\d+)?.*? (clsid=\d+).*?(size=\d+)?$", rb"\1\2\3 \4 \5", line) for line in lines]
        said = [line.strip() for line in said if b"key=p" in line]
        refused = b" status=too_large cmd=%s ttl=0 clsid=0 size=0"
        look_up = b"type=item_get key=p%%3A%s status=%s clsid=%d size=%d"
        assert said == [
            b"type=item_store key=p%3Aset" + refused % b"set",
            look_up % (b"set", b"found", 1, 1),
            b"type=item_store key=p%3Aadd" + refused % b"add",
            b"type=item_store key=p%3Ams" + refused % b"set",
            look_up % (b"ms", b"not_found", 0, 0),
            b"type=item_store key=p%3Ame" + refused % b"add",
            look_up % (b"me", b"not_found", 0, 0),
        ], lines


def test_watch_deletions(start):
    server = start()
    with server.raw() as w, server.raw() as c:
        c.set(b"gone", b"v")
        w.send(b"watch deletions\r\n")
        assert w.line() == b"OK"
        c.ask(b"delete gone\r\nset gone2 0 0 1\r\nx\r\nmd gone2\r\n")
        watched(w, [rb"type=deleted key=gone .*cmd=delete", rb"type=deleted key=gone2 .*cmd=md"])


def test_watch_connections(start):
    server = start()
    with server.raw() as w:
        w.send(b"watch connevents\r\n")
        assert w.line() == b"OK"
        server.raw().close()
        watched(w, [rb"type=conn_new rip=127.0.0.1 rport=\d+ .*cfd=\d+", rb"type=conn_close rip=127.0.0.1 .*cfd=\d+"])


def test_watch_evictions(start):
    server = start("-m", "16")
    with server.raw() as w, server.raw() as c:
        w.send(b"watch evictions\r\n")
        assert w.line() == b"OK"
        for i in range(600):
            c.set(b"k%d" % i, b"x" * 50_000)
        watched(w, [rb"type=eviction key=k\d+ fetch=no ttl=-?\d+ la=\d+ clsid=\d+ size=\d+"])


def test_a_watcher_that_never_reads(start):
    """Lines are dropped and counted; commands are not held up."""
    server = start("-o", "watcher_logbuf_size=64,worker_logbuf_size=64")
    with server.raw() as w, server.raw() as c:
        w.send(b"watch fetchers mutations\r\n")
        assert w.line() == b"OK"
        slowest = 0.0
        for _ in range(30):
            began = time.monotonic()
            c.ask(b"get " + b"k" * 200 + b"\r\n" + (b"get " + b"k" * 200 + b"\r\n") * 1000)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < PROMPT

        def dropped():
            stats = c.stats()
            return int(stats["log_watcher_skipped"]) + int(stats["log_worker_dropped"]) > 0

        wait_until("dropped lines are counted", lambda: c.ask((b"get " + b"k" * 200 + b"\r\n") * 1000) and dropped(), 20)
        assert server.rss() < 200 * MIB


def test_a_watcher_that_falls_behind_goes_on(start):
    """It is told how many lines are missing, and sees what happens from then on: each time."""
    server = start("-o", "watcher_logbuf_size=32")
    with server.raw() as w, server.raw() as c:
        w.send(b"watch fetchers\r\n")
        assert w.line() == b"OK"
        skipped = sent = 0
        for again in range(2):
            before = int(c.stats()["log_watcher_skipped"])

            def fell_behind():
                c.ask((b"get " + b"k" * 200 + b"\r\n") * 200)
                return int(c.stats()["log_watcher_skipped"]) > before + 1000

            wait_until("the watcher falls behind", fell_behind, 60)
            mark = b"mark%d" % again
            w.sock.settimeout(20)

            def seen():
                nonlocal skipped, sent
                c.ask(b"get " + mark + b"\r\n")
                w.sock.settimeout(0.5)
                try:
                    while True:
                        line = w.until(b"\n")
                        if line.startswith(b"skipped="):
                            skipped += int(line[8:])
                        else:
                            sent += 1
                        if b"key=" + mark in line:
                            return True
                except TimeoutError:
                    return False

            wait_until("the watcher goes on", seen, 60)
        w.sock.settimeout(0.3)

        def all_read():
            nonlocal skipped, sent
            # How many lines are missing is told with the next one.
            c.ask(b"get last\r\n")
            with contextlib.suppress(TimeoutError):
                while True:
                    line = w.until(b"\n")
                    skipped += int(line[8:]) if line.startswith(b"skipped=") else 0
                    sent += not line.startswith(b"skipped=")
            stats = c.stats()
            return (int(stats["log_watcher_sent"]), int(stats["log_watcher_skipped"])) == (sent, skipped)

        wait_until("what is read is what is counted", all_read)
        assert skipped > 2000


def test_twenty_watchers_at_most(start):
    server = start()
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(server.raw()) for _ in range(20)]
        for w in watchers:
            w.send(b"watch mutations\r\n")
            assert w.line() == b"OK"
        c = stack.enter_context(server.raw())
        assert c.ask(b"watch fetchers\r\n") == b"WATCHER_TOO_MANY log watcher limit reached\r\n"
        assert c.set(b"k", b"v") == b"STORED"
        assert c.stats()["log_watchers"] == "20"
        watchers.pop().close()
        # memcached 1.6.18 notices only when it next looks at the socket.
        wait_until("a place is free", lambda: c.set(b"k", b"v") and c.stats()["log_watchers"] == "19")
        for w in watchers:
            assert b"key=k " in w.until(b"\n")
        c.send(b"watch fetchers\r\n")
        assert c.line() == b"OK"


# A command, and the lines it brings about for `watch fetchers mutations`, as recorded from memcached 1.6.18.
WATCHED = [
    ("set k 0 0 3\r\nabc", "get k not_found 0 0", "store k stored set 3"),
    ("set k 0 0 4\r\nabcd", "get k found 1 3", "store k stored set 4"),
    ("add k 0 0 2\r\nzz", "get k found 1 4", "store k not_stored add 2"),
    ("replace no 0 0 1\r\nx", "get no not_found 0 0", "store no not_stored replace 1"),
    ("append k 0 0 2\r\nxy", "get k found 1 4", "store k stored append 6"),
    ("prepend k 0 0 1\r\nx", "get k found 1 6", "store k stored prepend 7"),
    ("append no 0 0 2\r\nxy", "get no not_found 0 0", "store no not_stored append 2"),
    ("cas k 0 0 1 99999\r\nx", "get k found 1 7", "store k exists cas 1"),
    ("cas no 0 0 1 99999\r\nx", "get no not_found 0 0", "store no not_found cas 1"),
    ("set n 0 0 2\r\n10", "get n not_found 0 0", "store n stored set 2"),
    ("incr n 100", "get n found 1 2"),
    ("incr no 1", "get no not_found 0 0"),
    ("decr n 1", "get n found 1 3"),
    ("touch k 100", "get k found 1 7"),
    ("touch no 100", "get no not_found 0 0"),
    ("gat 100 k no", "get k found 1 7", "get no not_found 0 0"),
    ("get k no", "get k found 1 7", "get no not_found 0 0"),
    ("delete no", "get no not_found 0 0"),
    ("delete k", "get k found 1 7"),
    ("mg n v", "get n found 1 3"),
    ("mg no v", "get no not_found 0 0"),
    ("mg viv N30", "get viv not_found 0 0"),
    ("ms m 2\r\nzz", "get m not_found 0 0", "store m stored set 2"),
    ("ms m 2 ME\r\nzz", "get m found 1 2", "store m not_stored add 2"),
    ("ms m 2 MA\r\nzz", "get m found 1 2", "store m stored append 4"),
    ("ma n", "get n found 1 3"),
    ("ma no", "get no not_found 0 0"),
    ("md no", "get no not_found 0 0"),
    ("md m I", "get m found 1 4"),
    ("md m", "get m found 1 4"),
    ("me n", "get n found 1 3"),
    ("me no", "get no not_found 0 0"),
]


def test_what_watchers_see_of_each_command(start):
    server = start()
    with server.raw() as w, server.raw() as c:
        w.send(b"watch fetchers mutations\r\n")
        assert w.line() == b"OK"
        w.sock.settimeout(2 * PROMPT)
        for command, *lines in WATCHED:
            c.ask(command.encode() + b"\r\n")
            for want in lines:
                line = w.until(b"\n").decode().strip()
                said = dict(word.split("=", 1) for word in line.split())
                kind = said["type"].removeprefix("item_")
                if kind == "get":
                    got = ["get", said["key"], said["status"], said["clsid"], said["size"]]
                else:
                    got = ["store", said["key"], said["status"], said["cmd"], said["size"]]
                assert " ".join(got) == want, (command, line)


def test_states_of_connections(start, kind):
    server = start()
    with server.raw() as idle, server.raw() as w, server.raw() as block, server.raw() as swallow, server.raw() as c:
        idle.set(b"k", b"v")
        w.send(b"watch fetchers\r\n")
        assert w.line() == b"OK"
        block.send(b"set k 0 0 100\r\nab")
        swallow.send(b"set k 0 0 3000000\r\nab")

        def states():
            stats = c.stats("conns")
            found = sorted(value for name, value in stats.items() if name.endswith(":state"))
            found = [state for state in found if state != "conn_listening"]
            return found == ["conn_nread", "conn_parse_cmd", "conn_read", "conn_swallow", "conn_watch"]

        wait_until("each is seen in its state", states)
        block.send(b"x" * 98 + b"\r\n")
        assert block.line() == b"STORED"
        assert "conn_nread" not in c.stats("conns").values()


@pytest.mark.only_cattlegrid
def test_age_of_items_and_of_the_last_flush(start):
    server = start("-o", "debugtime")
    with server.raw() as c:
        assert c.stats("settings")["oldest"] == "0"
        c.set(b"old", b"v")
        c.ask(b"debugtime 100\r\n")
        c.set(b"new", b"v")
        assert 100 <= int(c.stats("items")["items:1:age"]) < 110
        c.get(b"old")
        assert int(c.stats("items")["items:1:age"]) < 10
        c.ask(b"flush_all\r\n")
        assert 100 <= int(c.stats("settings")["oldest"]) < 130


def test_detail_counts_what_memcached_counts(start):
    server = start()
    with server.raw() as c:
        assert c.ask(b"stats detail on\r\n") == b"OK\r\n"
        c.ask(b"set a:1 0 0 1\r\n1\r\nadd a:1 0 0 1\r\n1\r\nget a:1 a:2\r\nincr a:1 1\r\ntouch a:1 0\r\ndelete a:1\r\ndelete a:1\r\n")
        c.ask(b"ms b:1 1\r\n1\r\nmg b:1 v\r\nmd b:1\r\nma b:1\r\n")
        assert c.ask(b"stats detail dump\r\n") == b"PREFIX a get 2 hit 1 set 2 del 2\r\nEND\r\n"


@pytest.mark.only_cattlegrid
def test_steps_in_the_log(start):
    server = start("-vvv")
    with server.raw() as c:
        c.send(b"set k 0 0 5\r\nab")
        wait_until("the first is logged", lambda: "executed 0 of 15 bytes" in server.log())
        c.send(b"cde\r\n")
        assert c.line() == b"STORED"
        wait_until("both steps are logged", lambda: len(re.findall(r"executed \d+ of \d+ bytes", server.log())) >= 2)
    steps = re.findall(r"^cattlegrid: \d+: executed (.*)$", server.log(), re.M)
    assert "0 of 15 bytes, now conn_nread" in steps and "20 of 20 bytes, now conn_read" in steps, steps


@pytest.mark.only_cattlegrid
def test_requests_and_replies_in_the_log(start, tmp_path):
    users = tmp_path / "users"
    users.write_text("name:secret\n")
    server = start("-vv", "-Y", str(users))
    big = 600_000
    with server.raw() as c:
        # A length that is wrong: the password could be taken for a line.
        c.send(b"set x 0 0 2\r\nname secret\r\nname secret\r\n")
        assert c.line().startswith(b"CLIENT_ERROR")
    with server.raw() as c:
        c.send(b"set x 0 0 11\r\nname secret\r\n")
        assert c.line() == b"STORED"
        assert c.set(b"k", b"hush\r\nEND") == b"STORED"
        assert c.set(b"big", b"y" * big) == b"STORED"
        c.ask(b"get k big gone\r\nmg k v\r\nmg big v\r\nbogus line\r\ndelete k\r\n")
        c.ask(b"verbosity 0\r\n")
        c.ask(b"get unseen\r\n")
    # A thread of its own writes it.
    log = wait_until("the last request is logged", lambda: (text := server.log()) and re.search(r"^cattlegrid: <\d+ verbosity 0$", text, re.M) and text)
    lines = re.findall(r"^cattlegrid: ([<>])(\d+) (.*)$", log, re.M)
    # The end of the first connection may be logged at any time.
    second = next(number for _, number, line in lines if line == "set k 0 0 9")
    said = [mark + line for mark, number, line in lines if number == second]
    assert "<(before login)" in said
    said = said[said.index("<set k 0 0 9") :]
    # How many replies are sent at once depends on their size.
    assert [line for line in said if line.startswith("<")] == [
        "<set k 0 0 9", f"<set big 0 0 {big}", "<get k big gone", "<mg k v", "<mg big v", "<bogus line", "<delete k", "<mn", "<verbosity 0",
    ]
    assert [line for line in said if line.startswith(">")] == [
        ">STORED", ">STORED", ">sending key k", ">sending key big", ">END", ">VA 9", f">VA {big}", ">ERROR", ">DELETED", ">MN",
    ]
    assert "secret" not in log and "hush" not in log and "yyyy" not in log and "unseen" not in log


def test_watch_needs_a_known_name(raw):
    raw.send(b"watch nonsense\r\n")
    assert raw.line() == b"ERROR"


def fill(c, count, size=1000, prefix=b"dump"):
    c.send(b"".join(b"set %s-%d 0 0 %d noreply\r\n%s\r\n" % (prefix, i, size, b"x" * size) for i in range(count)))
    c.ask(b"")


@pytest.mark.parametrize("argument", ["all", "hash"])
def test_metadump(start, argument, is_1_6_18):
    server = start()
    with server.raw() as c:
        fill(c, 1000)
        c.set(b"bin%ary key"[:7], b"v", exptime=1000)
        with server.raw() as d:
            d.send(b"lru_crawler metadump %s\r\n" % argument.encode())
            lines = d.until(b"END\r\n").splitlines()
        assert lines.pop() == b"END"
        assert is_1_6_18 or lines.pop(0) == b"OK"
        keys = set()
        for line in lines:
            found = re.match(rb"key=(\S+) exp=(-?\d+) la=\d+ cas=\d+ fetch=(?:yes|no) cls=\d+ size=\d+", line)
            assert found, line
            keys.add(found[1])
        assert len(keys) == len(lines) == 1001
        assert {b"dump-%d" % i for i in range(1000)} < keys
        assert b"bin%25ary" in keys, "keys are percent-encoded"


@pytest.mark.only_1_6_45
@pytest.mark.parametrize("argument", ["all", "hash"])
def test_mgdump(start, argument):
    server = start()
    with server.raw() as c:
        fill(c, 1000)
        with server.raw() as d:
            d.send(b"lru_crawler mgdump %s\r\n" % argument.encode())
            lines = d.until(b"EN\r\n").splitlines()
        assert lines.pop() == b"EN" and lines.pop(0) == b"OK"
        assert sorted(lines) == sorted(b"mg dump-%d" % i for i in range(1000))


@pytest.mark.parametrize("command, end", [("metadump all", b"END\r\n"), pytest.param("mgdump all", b"EN\r\n", marks=pytest.mark.only_1_6_45)])
def test_dump_of_a_full_cache(start, command, end):
    """Every item is listed while others store, and the memory stays bounded; also for a reader that stops."""
    server = start("-m", "64")
    with server.raw() as c:
        for i in range(10):
            fill(c, 40_000, 200, b"full%d" % i)
        stats = c.stats()
        assert int(stats["evictions"]) > 0
        items = int(stats["curr_items"])
        before = server.rss()
        stopped = server.connect()
        stopped.sendall(b"lru_crawler %s\r\n" % command.encode())
        assert stopped.recv(10)
        stopped.close()

        def dump():
            with server.raw(20) as d:
                d.send(b"lru_crawler %s\r\n" % command.encode())
                count, most = 0, 0
                while True:
                    line = d.until(b"\n")
                    if line.startswith(b"BUSY"):
                        return None
                    if line == end:
                        return count, most
                    count += 1
                    if count % 20_000 == 0:
                        most = max(most, server.rss())
                        assert c.set(b"meanwhile", b"v") == b"STORED"

        count, most = wait_until("the crawler is free", dump, 20)
        assert count > 0.95 * items
        assert most < before + 32 * MIB


def test_stats_cachedump(start):
    server = start()
    with server.raw() as c:
        fill(c, 100)
        slabs = {int(n.split(":")[0]) for n in c.stats("slabs") if ":" in n}
        assert slabs

        def dumped():
            keys = set()
            for slab in slabs:
                c.send(b"stats cachedump %d 0\r\n" % slab)
                for line in c.until(b"END\r\n").splitlines()[:-1]:
                    found = re.match(rb"ITEM (\S+) \[(\d+) b; (\d+) s\]$", line)
                    assert found and found[2] == b"1000", line
                    keys.add(found[1])
            return keys

        wait_until("all items are shown (memcached shows the cold ones)", lambda: {b"dump-%d" % i for i in range(100)} <= dumped())


# --- Statistics ------------------------------------------------------------------------------------------------------

STATS = """
pid uptime time version libevent pointer_size rusage_user rusage_system max_connections curr_connections total_connections
rejected_connections connection_structures response_obj_oom response_obj_count response_obj_bytes read_buf_count read_buf_bytes
read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed
delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses
store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written limit_maxbytes accepting_conns listen_disabled_num
time_in_listen_disabled_us threads conn_yields hash_power_level hash_bytes hash_is_expanding slab_reassign_rescues
slab_reassign_busy_items slab_reassign_running slabs_moved lru_crawler_running lru_crawler_starts
malloc_fails log_worker_dropped log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids
round_robin_fallback bytes curr_items total_items slab_global_page_pool expired_unfetched evicted_unfetched evicted_active evictions
reclaimed crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims
""".split()
NEW_STATS = ["slab_reassign_busy_nomem", "slab_reassign_last_busy_status"]
SETTINGS = """
maxbytes maxconns tcpport udpport inter verbosity evictions domain_socket umask shutdown_command growth_factor chunk_size num_threads
stat_key_prefix detail_enabled reqs_per_event cas_enabled tcp_backlog binding_protocol auth_enabled_sasl auth_enabled_ascii
item_size_max maxconns_fast hashpower_init slab_reassign slab_automove slab_chunk_max lru_crawler lru_crawler_sleep
lru_crawler_tocrawl tail_repair_time flush_enabled dump_enabled hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct
warm_lru_pct temp_lru idle_timeout watcher_logbuf_size worker_logbuf_size track_sizes
""".split()
NEW_SETTINGS = ["client_flags_size"]


def test_names_of_stats(start, is_1_6_18):
    server = start("-o", "idle_timeout=100")
    stats = server.stats()
    assert not [n for n in STATS + ["idle_kicks"] + ([] if is_1_6_18 else NEW_STATS) if n not in stats]
    assert stats["pid"] == str(server.pid) and stats["pointer_size"] == "64"
    assert stats["limit_maxbytes"] == str(64 * MIB) and stats["accepting_conns"] == "1"
    assert abs(int(stats["time"]) - time.time()) < PROMPT


def test_names_of_settings(server, is_1_6_18):
    settings = server.stats("settings")
    assert not [n for n in SETTINGS + ([] if is_1_6_18 else NEW_SETTINGS) if n not in settings]
    assert settings["maxbytes"] == str(64 * MIB) and settings["maxconns"] == "1024" and settings["item_size_max"] == str(ITEM_MAX)
    assert settings["evictions"] == "on" and settings["cas_enabled"] == "yes" and settings["shutdown_command"] == "no"
    assert settings["domain_socket"] == "NULL" and settings["stat_key_prefix"] == ":"


def test_counters_count(start):
    server = start()
    with server.raw() as c:
        before = c.stats()
        token = int(c.ask(b"set a 0 0 1\r\n5\r\nmg a c\r\n").split(b" c")[1])
        c.ask(
            b"get a\r\nget a absent\r\nset b 0 -1 1\r\nx\r\nget b\r\nincr a 1\r\nincr absent 1\r\ndecr a 1\r\ndecr absent 1\r\ndecr absent 1\r\n"
            b"touch a 100\r\ntouch absent 1\r\ndelete absent\r\ncas absent 0 0 1 1\r\nx\r\ncas a 0 0 1 99999\r\nx\r\n"
            b"set big 0 0 1048577\r\n" + b"x" * 1048577 + b"\r\n"
        )
        current = int(c.ask(b"mg a c\r\n").split(b" c")[1])
        c.ask(b"cas a 0 0 1 %d\r\n7\r\ndelete a\r\nflush_all\r\n" % current)
        after = c.stats()
    gained = {n: int(after[n]) - int(before[n]) for n in after if n in before and re.fullmatch(r"\d+", after[n]) and re.fullmatch(r"\d+", before[n])}
    want = dict(
        incr_hits=1, incr_misses=1, decr_hits=1, decr_misses=2, touch_hits=1, touch_misses=1, delete_misses=1, delete_hits=1,
        cas_misses=1, cas_badval=1, cas_hits=1, cmd_flush=1, store_too_large=1,
    )
    assert {n: gained[n] for n in want} == want
    assert gained["get_misses"] >= 2 and gained["get_hits"] >= 2 and gained["cmd_set"] >= 5
    assert gained["bytes_read"] > 1048577 and gained["bytes_written"] > 300 and gained["total_items"] >= 3
    assert token


def test_expired_and_flushed_items_are_counted(start):
    server = start()
    with server.raw() as c:
        c.ask(b"set a 0 -1 1\r\nx\r\nget a\r\nset b 0 0 1\r\nx\r\nflush_all\r\nget b\r\n")
        stats = c.stats()
        assert (stats["get_expired"], stats["get_flushed"], stats["get_misses"]) == ("1", "1", "2")


def test_stats_items_slabs_sizes_conns_reset(start):
    server = start()
    with server.raw() as c:
        fill(c, 50)
        items = c.stats("items")
        numbers = {n: v for n, v in items.items() if n.endswith(":number")}
        assert sum(map(int, numbers.values())) == 50
        some = next(iter(numbers)).removesuffix("number")
        assert {"age", "evicted", "outofmemory", "reclaimed"} <= {n.removeprefix(some) for n in items if n.startswith(some)}
        slabs = c.stats("slabs")
        assert "active_slabs" in slabs and "total_malloced" in slabs
        assert any(n.endswith(":chunk_size") for n in slabs) and any(n.endswith(":used_chunks") for n in slabs)
        assert c.stats("sizes")
        conns = c.stats("conns")
        kinds = {n.split(":", 1)[1] for n in conns if ":" in n}
        assert {"addr", "listen_addr", "state", "secs_since_last_cmd"} <= kinds
        assert sum(v == "conn_listening" for v in conns.values()) >= 1
        c.get(b"dump-1")
        assert int(c.stats()["cmd_get"]) > 0
        c.send(b"stats reset\r\n")
        assert c.line() == b"RESET"
        assert c.stats()["cmd_get"] == "0" and c.stats()["curr_items"] == "50"


def test_prefix_statistics(start):
    server = start("-D", "/")
    with server.raw() as c:
        assert c.ask(b"stats detail\r\n") == b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"
        assert c.stats("settings")["detail_enabled"] == "yes", "-D switches it on"
        assert c.ask(b"stats detail off\r\n") == b"OK\r\n"
        c.ask(b"get uncounted/1\r\n")
        assert c.ask(b"stats detail on\r\n") == b"OK\r\n"
        c.ask(b"set user/1 0 0 1\r\nx\r\nget user/1 user/2 page/1\r\ndelete user/1\r\nget plain\r\n")
        dump = c.ask(b"stats detail dump\r\n").splitlines()
        assert dump[-1] == b"END"
        assert b"PREFIX user get 2 hit 1 set 1 del 1" in dump and b"PREFIX page get 1 hit 0 set 0 del 0" in dump
        assert not any(b"uncounted" in line for line in dump)
        assert c.stats("settings")["stat_key_prefix"] == "/"


# --- Switches and commands -------------------------------------------------------------------------------------------


def test_forbidden_commands(start):
    server = start("-F", "-W", "-X")
    with server.raw() as c:
        c.set(b"k", b"v")
        assert c.ask(b"flush_all\r\n") == b"CLIENT_ERROR flush_all not allowed\r\n"
        assert c.ask(b"flush_all 10\r\n") == b"CLIENT_ERROR flush_all not allowed\r\n"
        assert c.ask(b"watch fetchers\r\n") == b"CLIENT_ERROR watch commands not allowed\r\n"
        assert c.ask(b"lru_crawler metadump all\r\n") == b"ERROR metadump not allowed\r\n"
        assert c.ask(b"stats cachedump 1 10\r\n") == b"CLIENT_ERROR stats cachedump not allowed\r\n"
        assert c.get(b"k") == b"v"
        settings = c.stats("settings")
        assert settings["flush_enabled"] == "no" and settings["dump_enabled"] == "no"


@pytest.mark.parametrize("argument", [b"", b" graceful"])
def test_shutdown(start, argument):
    server = start("-A")
    with server.raw() as c:
        assert c.stats("settings")["shutdown_command"] == "yes"
        c.send(b"shutdown nonsense\r\n")
        assert b"ERROR" in c.line()
        c.send(b"shutdown%s\r\n" % argument)
        c.closed()
    assert server.process.wait(6 * PROMPT) == 0


def test_cas_disabled(start, is_1_6_18):
    server = start("-C")
    with server.raw() as c:
        c.set(b"k", b"v")
        assert c.ask(b"gets k\r\n") == b"VALUE k 0 1 0\r\nv\r\nEND\r\n"
        assert c.stats("settings")["cas_enabled"] == "no"


def test_flush_all_with_delay(start):
    server = start()
    with server.raw() as c:
        c.set(b"k", b"v")
        # In one packet, so that no time passes between them.
        assert c.ask(b"flush_all 2\r\nget k\r\n") == b"OK\r\nVALUE k 0 1\r\nv\r\nEND\r\n"
        wait_until("flushed", lambda: c.get(b"k") is None)
        wait_until("storing works again", lambda: c.set(b"k", b"new") == b"STORED" and c.get(b"k") == b"new")


def test_cache_memlimit(start):
    server = start("-m", "64")
    with server.raw() as c:
        assert c.ask(b"cache_memlimit 128\r\n") == b"OK\r\n"
        assert c.stats()["limit_maxbytes"] == str(128 * MIB)
        assert c.ask(b"cache_memlimit 1\r\n").startswith(b"MEMLIMIT_TOO_SMALL ")
        assert c.ask(b"cache_memlimit 64 noreply\r\n") == b""
        assert c.stats()["limit_maxbytes"] == str(64 * MIB)


def test_memory_limit_can_grow(start):
    """Twice the memory holds about twice the items."""
    server = start("-m", "32")
    with server.raw() as c:
        for i in range(10):
            fill(c, 1000, 5000, b"a%d" % i)
        small = int(c.stats()["curr_items"])
        assert c.ask(b"cache_memlimit 128\r\n") == b"OK\r\n"
        for i in range(20):
            fill(c, 1000, 5000, b"b%d" % i)
        assert int(c.stats()["curr_items"]) > 1.8 * small


def test_tuning_commands_are_harmless(start):
    server = start()
    with server.raw() as c:
        c.set(b"k", b"v")
        for command in (
            b"lru tune 10 25 0.1 2.0", b"lru mode flat", b"lru mode segmented", b"lru temp_ttl 100", b"lru temp_ttl -1", b"slabs automove 0",
            b"slabs automove 1", b"lru_crawler disable", b"lru_crawler enable", b"lru_crawler sleep 100", b"lru_crawler tocrawl 100",
            b"lru_crawler crawl all", b"verbosity 2", b"verbosity 0",
        ):
            assert c.ask(command + b"\r\n") == b"OK\r\n", command
        for command in (b"lru x", b"slabs x", b"lru_crawler x"):
            assert c.ask(command + b"\r\n").startswith((b"ERROR", b"CLIENT_ERROR")), command
        assert re.match(rb"[A-Z]+( .*)?\r\n$", c.ask(b"slabs reassign 1 2\r\n"))
        assert c.get(b"k") == b"v"


def test_debugtime_is_off(raw):
    assert raw.ask(b"debugtime 100\r\n") == b"ERROR\r\n"


def test_no_cas_no_tcp(start, open_dir):
    """-p 0 with a unix socket listens nowhere else."""
    server = start("-s", open_dir + "/s", "-p", "0")
    with server.raw() as c:
        conns = c.stats("conns")
        assert not [v for n, v in conns.items() if n.endswith("addr") and v.startswith("tcp")]
