"""Files that options name and that are none: a pipe in the place of a certificate, key, password or rule file keeps no
thread waiting, neither at the start nor when the files are read again."""

import os
import signal
import subprocess
import time

import pytest

from crowd import rule, write_rules
from harness import Raw, wait_until
from test_operations import login, make_certificate, tls

pytestmark = pytest.mark.only_cattlegrid

FILES = ["certificate", "key", "authority", "users", "rules"]


def prepare(directory, what):
    """The options that name the file, and its path."""
    if what == "users":
        path = directory + "/users"
        with open(path, "w") as f:
            f.write("alice:secret\n")
        return ["-Y", path], path
    if what == "rules":
        path = write_rules(directory, rule("k:{n}", 'lease = "5s"'))
        return ["--config", path], path
    make_certificate(directory)
    make_certificate(directory, "ca-")
    stem = {"certificate": "cert.pem", "key": "key.pem", "authority": "ca-cert.pem"}[what]
    tls_files = f"ssl_chain_cert={directory}/cert.pem,ssl_key={directory}/key.pem,ssl_ca_cert={directory}/ca-cert.pem"
    return ["-Z", "-o", tls_files + ",ssl_verify_mode=1"], f"{directory}/{stem}"


def put_pipe(path):
    os.unlink(path)
    os.mkfifo(path, 0o666)


def connection(server, what):
    if what in ("certificate", "key", "authority"):
        return tls(server)
    c = Raw(server.connect())
    if what == "users":
        assert login(c, "alice", "secret") == b"STORED"
    return c


@pytest.mark.parametrize("what", FILES)
def test_a_pipe_is_refused_at_the_start(binary, open_dir, what):
    options, path = prepare(str(open_dir), what)
    put_pipe(path)
    done = subprocess.run([binary, "-p", "-1", "-l", "127.0.0.1", *options], capture_output=True, timeout=20)
    assert done.returncode in (1, 2), done
    said = done.stderr.decode()
    assert path in said and "it is not a regular file" in said, said


@pytest.mark.parametrize("what", FILES)
def test_a_pipe_is_refused_when_files_are_read_again(start, open_dir, what):
    """What was read before stays in use, all threads go on, and the server ends when it is told to."""
    options, path = prepare(str(open_dir), what)
    server = start(*options, "-t", 1)
    with connection(server, what) as c:
        assert c.set(b"a", b"v") == b"STORED"
        put_pipe(path)
        if path.endswith(".pem"):
            c.send(b"refresh_certs\r\n")
            assert c.line().startswith(b"SERVER_ERROR"), "it is answered, and not by OK"
        server.signal(signal.SIGHUP)
        wait_until("it is logged", lambda: "it is not a regular file" in server.log())
        assert path in server.log()
        with connection(server, what) as d:
            assert d.get(b"a") == b"v" and c.get(b"a") == b"v"
    since = time.monotonic()
    assert server.stop(20) == 0
    assert time.monotonic() - since < 20
