"""Workers that fail in every way, and the servers that use them: each client has an answer, other keys are served, the pool recovers,
and nothing is left behind.
"""

import os
import signal
import subprocess
import threading
import time

import pytest

import chaos_loaders
import harness
from chaos_loaders import until_served
from crowd import until_held
from harness import wait_until
from loaders import of_loader, of_rule, parent, rules, value, workers
from test_herd import raws

pytestmark = pytest.mark.only_cattlegrid

HOLD = 'hold = "2s"\n'
LIMIT = 2 + 2 * harness.PROMPT
"""Seconds within which a get that is held for 2 s has its answer."""

QUICK = {"timeout": "500ms", "kill_grace": "200ms", "start": "0s"}
"""For jobs that end by their timeout. No other job is sure to have its value within it."""


def timed(raw, key):
    """The value, and that it came in time."""
    since = time.monotonic()
    got = raw.get(key)
    assert time.monotonic() - since < LIMIT
    return got


DEEDS = {
    "die": {"lost"},
    "exit:0": {"lost"},
    "exit:7": {"lost"},
    "close": {"lost", "timeouts"},
    "hang": {"timeouts"},
    "garbage:frames": {"lost"},
    "garbage:long": {"lost", "timeouts"},
    "garbage:text": {"lost", "timeouts"},
    "garbage:zero": {"lost", "timeouts"},
    "oops:x": {"errors"},
    "none": {"errors"},
    "size:104857600": {"errors", "lost", "timeouts"},
}


@pytest.mark.parametrize("mode", ["template", "exec", "stdio"])
@pytest.mark.parametrize("deed", DEEDS)
def test_a_worker_that_fails(scene, deed, mode):
    """Two clients of the key, others of other keys: all are answered within the time that they wait."""
    ends = DEEDS[deed]
    server = scene.start(rules(HOLD, mode=mode, **{**QUICK, "timeout": QUICK["timeout"] if "timeouts" in ends else "20s"}))
    key = f"do:{deed if ':' in deed else deed + ':-'}:1".encode()
    a, b, c = raws(server, 3)
    wait_until("a first value", lambda: c.get(b"page:before") == b"before=0", 60)
    a.send(b"get %s\r\n" % key)
    b.send(b"mg %s v N30 Pw2000\r\n" % key)
    since = time.monotonic()
    assert timed(c, b"page:before") == b"before=0"
    assert value(a) is None
    line = b.line()
    assert line.startswith((b"EN Pe", b"VA 0 Z")), line
    assert time.monotonic() - since < LIMIT
    until_served(scene)
    wait_until("its job has ended", lambda: scene.stats()["running"] == 0, 60)
    stats = scene.check_sums()
    assert sum(stats[end] for end in ends) >= 1, stats
    assert server.running()
    for c in (a, b, c):
        c.close()
    wait_until("no lease is left", lambda: not server.stats("leases"), 60)
    scene.end()


def test_floods_of_output_do_not_fill_the_log(scene):
    server = scene.start(rules())
    with server.raw(40) as c:
        for n in range(3):
            assert c.get(b"do:flood:3000000:%d" % n) == b"flooded"
    # The pool passes on 64 KiB a second, the log 10 lines a second of these.
    wait_until("lines are left out", lambda: scene.stats()["log_left_out"] > 20)
    wait_until("the others are there", lambda: "loader pages: worker 1: xxx" in scene.whole_log())
    assert os.path.getsize(server.log_path) < harness.MIB
    assert scene.check_sums()["values"] == 3


def test_processes_that_a_worker_leaves_behind(scene):
    """They end with the worker, at the latest."""
    server = scene.start(rules(max=1, stop="100ms"))
    a, c = raws(server, 2)
    # A second job keeps the worker until its process was seen.
    scene.close_gate()
    a.send(b"get do:leave:-:1 do:gate:-:1\r\n")
    scene.until_jobs(2)
    left = int(c.get(b"do:leave:-:1"))
    assert left in scene.processes()
    scene.open_gate()
    assert a.until(b"END\r\n").count(b"VALUE ") == 2
    wait_until("the worker has left, and its process with it", lambda: left not in scene.processes(), 60)
    assert c.get(b"page:1") == b"1=0"
    scene.close_gate()
    a.send(b"get do:leave:-:2 do:gate:-:2\r\n")
    scene.until_jobs(5)
    left = int(c.get(b"do:leave:-:2"))
    assert left in scene.processes()
    scene.open_gate()
    scene.end()


def test_a_worker_is_killed(scene):
    """kill -9 while its job runs: the job begins once more, and its clients get the value."""
    server = scene.start(rules(start="0s"))
    scene.close_gate()
    waiting = raws(server, 3)
    for c in waiting:
        c.send(b"get page:1\r\n")
    scene.until_jobs(1)
    os.kill(scene.jobs()[0]["pid"], signal.SIGKILL)
    scene.until_jobs(2)
    scene.open_gate()
    assert [value(c) for c in waiting] == [b"1=0"] * 3
    stats = scene.check_sums()
    assert (stats["jobs"], stats["lost"], stats["values"], stats["crashed"]) == (2, 1, 1, 1), stats


def test_a_key_that_kills_its_workers_backs_off(scene):
    server = scene.start(rules(start="0s"))
    with server.raw(40) as c:
        for _ in range(20):
            assert c.get(b"do:die:-:1") is None
            assert c.get(b"page:1") == b"1=0"
    assert len([key for key in scene.keys() if key.startswith("do:")]) <= 6, scene.keys()


def test_the_template_is_killed(scene):
    server = scene.start(rules(start="0s"))
    scene.close_gate()
    a, b = raws(server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    worker = scene.jobs()[0]["pid"]
    template = parent(worker)
    assert template != server.pid
    os.kill(template, signal.SIGKILL)
    b.send(b"get page:2\r\n")
    wait_until("it has ended", lambda: template not in scene.processes())
    scene.open_gate()
    assert value(b) == b"2=0"
    assert value(a) == b"1=0"
    until_served(scene)
    stats = scene.check_sums()
    assert stats["templates_lost"] == 1, stats
    scene.end()


def test_the_template_is_killed_again_and_again(scene):
    server = scene.start(rules(HOLD, start="0s"))
    over, failed = threading.Event(), []

    def kill():
        while not over.wait(0.05):
            for pid in scene.templates():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def read(n):
        try:
            with server.raw(LIMIT) as c:
                for m in range(30):
                    timed(c, b"page:%d-%d" % (n, m))
        except Exception as error:
            failed.append(error)

    killer = threading.Thread(target=kill, daemon=True)
    readers = [threading.Thread(target=read, args=(n,), daemon=True) for n in range(8)]
    killer.start()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(300)
        assert not reader.is_alive()
    over.set()
    killer.join()
    assert not failed, failed[:3]
    until_served(scene)
    scene.end()


@pytest.mark.parametrize("what", ["raise", "sleep", "exit"])
def test_workers_that_cannot_start(scene, what):
    """The template lives, and each worker fails: clients are answered, and it works again when the reason is gone."""
    server = scene.start(rules(HOLD, start="0s", start_timeout="5s" if what == "sleep" else "30s"))
    scene.write("forked", what)
    # The one that has shown that they can start.
    for pid in workers(scene):
        os.kill(pid, signal.SIGKILL)
    wait_until("no worker is left", lambda: not workers(scene))
    with server.raw(LIMIT) as c:
        assert timed(c, b"page:1") is None
        assert timed(c, b"page:2") is None
    wait_until("the log says so", lambda: "loader pages:" in scene.whole_log(), 60)
    if what == "raise":
        wait_until("the log says why", lambda: "there is no table pages" in scene.whole_log(), 60)
    scene.remove("forked")
    until_served(scene)
    scene.check_sums()
    scene.end()


@pytest.mark.parametrize("mode", ["template", "exec"])
@pytest.mark.parametrize("what", ["raise", "sleep", "exit"])
def test_a_server_whose_loader_does_not_start(scene, binary, mode, what):
    """Status 1, the program's last words, and no process is left; with -d the terminal has them too."""
    scene.write("starting", what)
    scene.config = str(scene.dir / "rules.toml")
    scene.rewrite(rules(mode=mode, start_timeout="1s" if what == "sleep" else "30s"))
    for extra in ([], ["-d", "-P", str(scene.dir / "pid")]):
        command = [binary, "-p", "0", "-s", str(scene.dir / "socket"), "--config", scene.config, *extra]
        ended = subprocess.run(command, env={**os.environ, **scene.env}, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1, ended
        assert "loader pages" in ended.stderr, ended.stderr
        if what == "raise":
            assert "there is no table pages" in ended.stderr, ended.stderr
        scene.until_no_processes()
        with pytest.raises(OSError):
            harness.socket.socket(harness.socket.AF_UNIX).connect(str(scene.dir / "socket"))


def test_a_daemon_with_a_loader(scene, binary):
    """It answers when its terminal is back, and stops by its pid."""
    scene.config = str(scene.dir / "rules.toml")
    scene.rewrite(rules())
    path, pid_file = str(scene.dir / "socket"), str(scene.dir / "pid")
    command = [binary, "-p", "0", "-s", path, "-d", "-P", pid_file, "--config", scene.config]
    assert subprocess.run(command, env={**os.environ, **scene.env}, capture_output=True, timeout=60).returncode == 0
    with open(pid_file) as f:
        pid = int(f.read())
    try:
        with harness.socket.socket(harness.socket.AF_UNIX) as s:
            s.settimeout(40)
            s.connect(path)
            assert harness.Raw(s).get(b"page:1") == b"1=0"
    finally:
        os.kill(pid, signal.SIGTERM)
    scene.until_no_processes()


def test_garbage_of_json_lines(scene):
    """Lines that answer nothing: an error of the job or the loss of the worker, never of the server."""
    text = of_rule("page:{id}", "lines", HOLD) + of_loader("lines", "lines.py", mode="jsonl", **QUICK)
    server = scene.start(text)
    with server.raw(LIMIT) as c:
        for n, said in enumerate(GARBAGE):
            scene.write("say", said)
            assert timed(c, b"page:%d" % n) is None, said
            scene.write("say", '{"id":"ID","value":"v"}')
            wait_until("the next worker answers", lambda: c.get(b"page:again-%d-%d" % (n, time.monotonic_ns())) == b"v", 60)
    stats = scene.check_sums("lines")
    assert stats["values"] == len(GARBAGE) or stats["values"] > 0
    assert stats["errors"] + stats["lost"] + stats["timeouts"] >= len(GARBAGE), stats
    assert server.running()
    scene.end()


GARBAGE = [
    "{",
    "hello",
    "[]",
    "null",
    "{}",
    '{"id":"ID"}',
    '{"id":"ID","value":1}',
    '{"id":"ID","value":null}',
    '{"id":"ID","value":"v","ttl":"1"}',
    '{"id":"ID","value":"v","ttl":1e99}',
    '{"id":"ID","value":"v","ttl":2147483648}',
    '{"id":"ID","value":"v","flags":-1}',
    '{"id":"ID","value":"v","base64":true}',
    '{"id":"ID","value":"v","tags":"a"}',
    '{"id":"ID","value":"v","tags":[""]}',
    '{"id":"ID","value":"v","tags":["a b"]}',
    '{"id":"ID","value":"v","unknown":1}',
    '{"id":"ID","value":"v","not_found":5}',
    '{"id":"ID","not_found":0}',
    '{"id":"ID","not_found":-1}',
    '{"id":"ID","error":""}',
    '{"id":"ID","error":5}',
    '{"id":"99999","value":"of another"}',
    '{"id":"ID","value":"' + "x" * (3 << 20) + '"}',
    '{"id":"ID",' + '"a":{' * 10000,
    "\x00\x01\x02",
    "",
    "exit",
    "close",
]
"""What a worker says instead of an answer; "": nothing."""


# The end of the server


def test_the_server_ends_while_jobs_run(scene):
    """The waiters are answered, and the workers are gone."""
    server = scene.start(rules(max=4))
    scene.close_gate()
    waiting = raws(server, 8)
    for n, c in enumerate(waiting):
        c.send(b"get page:%d\r\n" % n)
    until_held(server, 8)
    scene.until_jobs(4)
    since = time.monotonic()
    server.signal(signal.SIGTERM)
    assert [value(c) for c in waiting] == [None] * 8
    assert server.process.wait(60) == 0
    assert time.monotonic() - since < LIMIT
    scene.until_no_processes()


def test_the_server_ends_while_a_worker_hangs(scene):
    server = scene.start(rules())
    with server.raw() as c:
        c.send(b"get do:hang:-:1\r\n")
        scene.until_jobs(1)
        since = time.monotonic()
        server.signal(signal.SIGTERM)
        assert value(c) is None
    assert server.process.wait(60) == 0
    assert time.monotonic() - since < LIMIT
    scene.until_no_processes()


@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_the_server_is_killed(scene, mode):
    """kill -9 of the server: no worker outlives it."""
    server = scene.start(rules(mode=mode))
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"
        c.send(b"get do:hang:-:1\r\n")
        scene.until_jobs(2)
        server.kill()
    scene.until_no_processes()


# Many events


def test_a_thousand_events_leave_nothing(scene, capsys):
    """`chaos_loaders.py`, for as long as the suite has."""
    chaos_loaders.run(scene, events=1000, seconds=45, capsys=capsys)
