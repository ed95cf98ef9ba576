"""The command-line tools of libmemcached."""

import subprocess

import pytest

from harness import NASTY, tool, wait_until


@pytest.fixture
def run(server):
    def call(name, *args, status=0, **options):
        done = subprocess.run(
            [tool(name), f"--servers={server.address}", *args], capture_output=True, timeout=120, **options
        )
        assert done.returncode == status, f"{name} {args}: {done}"
        return done.stdout

    return call


def test_copy_show_touch_remove(run, tmp_path):
    (tmp_path / "one").write_bytes(b"first\n")
    (tmp_path / "two").write_bytes(NASTY)
    run("memccp", "one", "two", cwd=tmp_path)
    assert run("memccat", "one").rstrip(b"\n") == b"first"
    run("memccat", f"--file={tmp_path}/back", "two")
    assert (tmp_path / "back").read_bytes() == NASTY
    run("memcexist", "one")
    run("memctouch", "--expire=100", "one")
    run("memctouch", "--expire=100", "absent", status=1)
    run("memccp", "--add", "one", cwd=tmp_path, status=1)
    (tmp_path / "one").write_bytes(b"second")
    run("memccp", "--replace", "--expire=100", "--flag=7", "one", cwd=tmp_path)
    assert b"second" in run("memccat", "one")
    assert b"7" in run("memccat", "--flag", "one")
    run("memcrm", "one")
    run("memcrm", "one", status=1)
    run("memcexist", "one", status=1)
    run("memccat", "one", status=1)
    run("memcexist", "two")


def test_stat_ping_dump_flush(run, server):
    out = run("memcstat").decode()
    assert f"pid: {server.pid}\n" in out and "curr_items" in out
    assert b"maxconns" in run("memcstat", "--args=settings")
    run("memcstat", "--server-version")
    run("memcping")
    with server.raw() as c:
        c.set(b"dump-me", b"v")
    wait_until("the dump has the key (memcached shows it once it is in the cold LRU)", lambda: b"dump-me" in run("memcdump").split())
    run("memcflush")
    with server.raw() as c:
        assert c.get(b"dump-me") is None
    run("memcflush", "--expire=1000")


@pytest.mark.parametrize("test", ["set", "get", "mget"])
def test_load(run, server, test):
    """memcslap's own checks; the counts must reach the server."""
    before = server.stats()
    run("memcslap", "--concurrency=4", "--execute-number=500", f"--test={test}")
    verb = "cmd_set" if test == "set" else "cmd_get"
    wait_until("the counts have come", lambda: int(server.stats()[verb]) - int(before[verb]) >= 500)


def test_verified_load(server):
    """memcaslap, verifying every value it reads."""
    done = subprocess.run(
        [tool("memcaslap"), "-s", server.address, "-x", "20000", "-c", "16", "-T", "1", "-v", "1.0", "-d", "20"],
        capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done
    assert "verify_failed: 0" in done.stdout.replace("verify_failed:  0", "verify_failed: 0"), done.stdout
    figures = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert int(figures["cmd_get"]) > 10000 and figures["get_misses"].strip() == "0", done.stdout
