"""Loaders of every kind: modes, languages, users; with authentication and TLS; and run once by hand and by `check --try`."""

import os
import pwd
import re
import shutil
import subprocess
import sys
import time

import pytest

import harness
from harness import wait_until
from loaders import PASSED_ON, PROGRAMS, of_loader, of_rule, rules
from test_operations import login, make_certificate, tls, users  # noqa: F401

pytestmark = pytest.mark.only_cattlegrid

EXAMPLES = harness.ROOT / "examples" / "loaders"


@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_one_program_in_every_mode(scene, mode):
    """Values, flags, binary values, not found and errors do not depend on how a worker is spoken to."""
    server = scene.start(rules('hold = "30s"\n', mode=mode))
    with server.raw(40) as c:
        assert c.get(b"page:1") == b"1=0"
        assert c.get(b"do:missing:60:1") is None
        c.send(b"mg do:fail:no-table:1 v N30 Pw20000\r\n")
        assert c.line() == b"EN Peno-table"
        c.send(b"get do:flags:7:1\r\n")
        assert c.until(b"END\r\n") == b"VALUE do:flags:7:1 7 1\r\nv\r\nEND\r\n"
        assert c.get(b"do:size:500000:1") == b"x" * 500_000
        assert c.get(b"do:bytes:-:1") == bytes(range(256))
    stats = scene.check_sums()
    assert (stats["mode"], stats["values"], stats["not_found"], stats["errors"]) == (mode, 4, 1, 1), stats
    scene.end()


# The examples


def factors():
    """The example in Rust; it is built if it is not there. `CATTLEGRID_FACTORS` names it if it is built already (a relative path begins
    at the top directory)."""
    if given := os.environ.get("CATTLEGRID_FACTORS"):
        return harness.ROOT / given
    path = harness.ROOT / "target" / "debug" / "factors"
    if not path.exists():
        subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "cattlegrid-examples"], cwd=harness.ROOT, check=True, timeout=900)
    return path


@pytest.fixture
def examples(scene):
    """A server with the rule file of the examples, in a copy of their directory."""
    shutil.copytree(EXAMPLES, scene.dir, dirs_exist_ok=True)
    text = (EXAMPLES / "rules.toml").read_text().replace("../../target/debug/factors", str(factors()))
    # The package is not installed here.
    text = re.sub(r"(?m)^(command = \[\"python3\".*)$", r'\1\nenv = ["PATH", "HOME", "LANG", "PYTHONPATH"]', text)
    # Not about time.
    text = re.sub(r"(?m)^hold +=.*\n", "", text)
    text = re.sub(r"(?m)^(loader = .*)$", r'\1\nhold = "30s"', text)
    text = re.sub(r"(?m)^timeout +=.*\n", "", text)
    return scene.start(re.sub(r"(?m)^(command = .*)$", r'\1\ntimeout = "60s"', text))


@pytest.mark.parametrize(
    "key, expected, missing",
    [
        ("page:7", b"Text of page 7.", "page:5000"),
        ("price:7", b"6.93", "price:5000"),
        ("factors:9991", b"97 103", "factors:0"),
        ("greeting:Ann", b"Hello, Ann!", "greeting:nobody"),
        ("hash:sha1:abc", b"a9993e364706816aba3e25717850c26c9cd0d89d", "hash:nothing:abc"),
    ],
)
def test_examples(scene, examples, key, expected, missing):
    """Each in its language answers a get that waits for it."""
    with examples.raw(40) as c:
        c.send(f"mg {key} v N30 Pw30000\r\n".encode())
        head = c.line()
        assert head == b"VA %d" % len(expected), (head, scene.whole_log())
        assert c.exactly(len(expected) + 2) == expected + b"\r\n"
        assert c.get(key.encode()) == expected
        c.send(f"mg {missing} v N30 Pw30000\r\n".encode())
        assert c.line() == b"EN"


def test_an_example_in_batches(examples):
    with examples.raw(40) as c:
        c.send(b"get " + b" ".join(b"price:%d" % n for n in range(1, 100)) + b"\r\n")
        text = c.until(b"END\r\n")
    assert re.findall(rb"\r\n(\d+\.\d\d)\r\n", b"\r\n" + text) == [b"%d.%02d" % divmod(n * 99, 100) for n in range(1, 100)]


# Users, authentication, TLS


IS_ROOT = os.geteuid() == 0
OTHER = "nobody" if IS_ROOT else pwd.getpwuid(os.geteuid()).pw_name
"""A user that a server which these tests start can become."""


def uid(name):
    return str(pwd.getpwnam(name).pw_uid).encode()


def test_workers_are_the_user_of_the_server(scene):
    """`-u`: workers are started as that user."""
    server = scene.start(shell_rules("id -u"), "-u", OTHER)
    with server.raw() as c:
        assert c.get(b"page:1") == uid(OTHER)
    scene.end()


def test_workers_of_a_user_of_their_own(scene):
    server = scene.start(shell_rules("id -u", user=OTHER))
    with server.raw() as c:
        assert c.get(b"page:1") == uid(OTHER)
    assert os.stat(f"/proc/{server.pid}").st_uid == os.geteuid()
    scene.end()


def test_a_user_of_a_loader_beside_one_of_the_server(scene, binary):
    scene.config = str(scene.dir / "rules.toml")
    scene.rewrite(shell_rules("id -u", user="daemon"))
    ended = subprocess.run([binary, "-p", "-1", "-u", OTHER, "--config", scene.config], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "[loader.shell]: user" in ended.stderr, ended


def shell_rules(command, **settings):
    """A loader in the shell whose values are what a command prints; it needs nothing of the directory of these tests."""
    script = (
        "echo '{\"ready\":true}'; while read -r line; do case $line in *'\"type\":\"job\"'*) "
        f'printf \'{{"value":"%s"}}\\n\' "$({command})";; *retire*) exit 0;; *ping*) echo \'{{"pong":true}}\';; esac; done'
    )
    return of_rule("page:{id}", "shell") + of_loader("shell", command=["/bin/sh", "-c", script], mode="jsonl", dir="/", **settings)


def test_authentication(scene, users):  # noqa: F811
    """Who has not logged in starts no job."""
    server = scene.start(None, "-Y", users)
    with server.raw() as c:
        c.send(b"get page:1\r\n")
        assert c.line() == b"CLIENT_ERROR unauthenticated"
        assert login(c, "alice", "secret") == b"STORED"
        assert scene.jobs() == []
        assert c.get(b"page:1") == b"1=0"


def test_tls(scene, open_dir):
    """A value that is large comes whole to all waiters, over TLS too."""
    make_certificate(open_dir)
    server = scene.start(None, "-Z", "-o", f"ssl_chain_cert={open_dir}/cert.pem,ssl_key={open_dir}/key.pem")
    crowd = [tls(server) for _ in range(20)]
    for c in crowd:
        c.send(b"get do:size:1000000:1\r\n")
    for c in crowd:
        assert c.line() == b"VALUE do:size:1000000:1 0 1000000"
        assert c.exactly(1_000_000 + 7) == b"x" * 1_000_000 + b"\r\nEND\r\n"
        c.close()
    assert scene.keys() == ["do:size:1000000:1"]


def test_the_unix_socket_and_one_thread(scene):
    server = scene.start(None, "-s", str(scene.dir / "socket"), "-t", "1")
    with server.raw() as c:
        c.send(b"get " + b" ".join(b"page:%d" % n for n in range(30)) + b"\r\n")
        assert c.until(b"END\r\n").count(b"VALUE") == 30


# Once, by hand


def try_key(scene, binary, key, text=None):
    scene.config = str(scene.dir / "rules.toml")
    scene.rewrite(rules() if text is None else text)
    command = [binary, "check", scene.config, "--try", key]
    ended = subprocess.run(command, env={**os.environ, **scene.env}, capture_output=True, text=True, timeout=60)
    scene.until_no_processes()
    return ended


def test_a_key_is_tried(scene, binary):
    """What a get would store, and status 0."""
    ended = try_key(scene, binary, "do:tags:3:1")
    assert ended.returncode == 0, ended
    for word in ("v", "t0", "t2"):
        assert word in ended.stdout, ended.stdout
    ended = try_key(scene, binary, "do:ttl:77:1")
    assert ended.returncode == 0 and "77" in ended.stdout, ended
    ended = try_key(scene, binary, "do:missing:5:1")
    assert ended.returncode == 0 and "not found" in ended.stdout, ended


@pytest.mark.parametrize("key, why", [("do:oops:x:1", "KeyError"), ("do:exit:3:1", "3"), ("do:fail:no-table:1", "no-table")])
def test_a_key_that_fails_is_tried(scene, binary, key, why):
    ended = try_key(scene, binary, key)
    assert ended.returncode == 1 and why in ended.stderr + ended.stdout, ended


LOOP = '''echo '{"ready":true}'
while read -r line; do
    case $line in
        *'"type":"job"'*) echo '{"value":"'"$(date +%T)"'","ttl":1}' ;;
    esac
done'''


def of_shell(script, **settings):
    settings = {"max": 1, "mode": "jsonl", **settings}
    return of_rule("page:{id}", "shell", 'hold = "30s"\n') + of_loader("shell", command=["/bin/sh", "-c", script], **settings)


def test_a_loop_that_knows_only_jobs_is_replaced_at_once(scene):
    """The clock of the docs: it ends with its input, after `max_jobs` and when it is idle."""
    server = scene.start(of_shell(LOOP, max_jobs=2, stop="300ms", kill_grace="20s"))
    with server.raw(90) as c:
        since = time.monotonic()
        for n in range(11):
            assert len(c.get(b"page:%d" % n)) == 8
        assert time.monotonic() - since < 20
    wait_until("the last one is idle no longer", lambda: scene.stats("shell")["workers"] == 0, 60)
    stats = scene.stats("shell")
    assert (stats["killed"], stats["crashed"], stats["lost"]) == (0, 0, 0), stats


def test_what_a_worker_prints_is_in_the_log(scene):
    """The first 80 bytes, and the likely cause; a start is refused with them."""
    printing = LOOP.replace("echo '{\"value\"", "echo 'debug: here'; echo '{\"value\"")
    assert printing != LOOP
    server = scene.start(of_shell(printing))
    with server.raw(90) as c:
        c.get(b"page:1")
    wait_until("the log has it", lambda: 'it printed "debug: here": not JSON' in scene.whole_log(), 60)
    assert "print to standard error" in scene.whole_log()


@pytest.mark.parametrize(
    "script, mode, words",
    [
        ("echo 'Loading " + "x" * 200 + "'; cat", "jsonl", ['it printed "Loading ' + "x" * 72 + '..."', "a banner or a print before"]),
        ("cat >/dev/null", "jsonl", ["not ready in time", "flushed after each line"]),
        ("exit 0", "jsonl", ["does it call serve()"]),
        ("exit 0", "template", ["it ended without serving", "calls serve()"]),
        (LOOP, "template", ['mode = "jsonl"']),
        (LOOP, "exec", ['mode = "jsonl"']),
    ],
)
def test_a_start_that_fails_has_a_hint(scene, binary, script, mode, words):
    ended = try_key(scene, binary, "page:1", of_shell(script, mode=mode, start_timeout="3s"))
    assert ended.returncode == 1 and all(word in ended.stderr for word in words), ended


def test_a_loader_that_does_not_start_is_tried(scene, binary):
    scene.write("starting", "raise")
    ended = try_key(scene, binary, "page:1")
    assert ended.returncode == 1 and "there is no table pages" in ended.stderr, ended
    scene.remove("starting")
    ended = try_key(scene, binary, "page:1", rules(mode="jsonl"))
    assert ended.returncode == 0 and "1=0" in ended.stdout, ended
    ended = try_key(scene, binary, "other:1")
    assert ended.returncode == 2 and "it has no rule" in ended.stderr, ended


def test_a_loader_by_hand(scene):
    """The program itself says what to do with it; with its key it is run without a server."""
    command = [sys.executable, str(PROGRAMS / "pages.py")]
    environment = {**os.environ, **scene.env}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "is a loader" in ended.stderr, ended
    command = [sys.executable, "-m", "cattlegrid.loader", str(PROGRAMS / "pages.py"), "page:1", "id=1"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "PYTHONPATH" in PASSED_ON and ended.returncode in (0, 1), ended
