"""Waiting for loaders: behind other gets, with many keys, while the server starts and while it leaves; what a job is told; and as
whom a loader runs."""

import json
import os
import pwd
import signal
import socket
import subprocess
import time

import pytest
from crowd import held
from harness import PROMPT, free_port, wait_until
from loaders import PASSED_ON, PROGRAMS, of_loader, of_rule, rules

pytestmark = pytest.mark.only_cattlegrid

IS_ROOT = os.geteuid() == 0
LONG = 'hold = "30s"\nttl = "60s"\n'


def asks(terms=LONG, **settings):
    """Rules for the keys of `asks.py`. Any user may start its interpreter."""
    settings = {"command": ["/usr/bin/python3", *of_program("asks.py")], "env": [*PASSED_ON, "SLOW_START"], **settings}
    return of_rule("ask:{what*}", terms=terms) + of_loader(program="asks.py", **settings)


def of_program(name):
    return [str(PROGRAMS / name)]


def reply(c, end=b"END\r\n"):
    """What comes up to `end`."""
    lines = []
    while True:
        line = c.line()
        lines.append(line)
        if line + b"\r\n" == end:
            return lines


def begun(scene):
    wait_until("it has begun", (scene.dir / "begun").exists)


# Waits behind and beside others.


@pytest.mark.parametrize("behind", [b"get plain", b"mg plain v", b"mn", b"version", b"set other 0 0 1\r\no"])
def test_a_finished_reply_behind_a_get_shortens_no_wait(scene, behind):
    server = scene.start(rules('hold = "30s"\nttl = "60s"\n'))
    scene.close_gate()
    with server.raw() as c:
        c.set(b"plain", b"p")
        c.send(b"get page:1\r\nmg page:2 v N30 Pw20000\r\nget page:3 page:4\r\n" + behind + b"\r\n")
        scene.until_jobs(4)
        time.sleep(0.3)
        scene.open_gate()
        assert reply(c) == [b"VALUE page:1 0 3", b"1=0", b"END"]
        assert [c.line(), c.line()] == [b"VA 3", b"2=0"]
        assert reply(c)[1::2] == [b"3=0", b"4=0"]
    scene.check_sums()


def test_hold_behind_is_obeyed_where_it_is_said(scene):
    server = scene.start(rules('hold = "30s"\nhold_behind = "50ms"\n'))
    scene.close_gate()
    with server.raw() as c:
        c.send(b"get page:1\r\nmn\r\n")
        assert c.line() == b"END" and c.line() == b"MN"
        scene.open_gate()


@pytest.mark.parametrize("count", [1024, 1025, 2048, 5000])
def test_a_get_of_any_number_of_keys_waits(scene, count):
    server = scene.start(rules(LONG))
    keys = [b"page:%d" % n for n in range(count)]
    with server.raw() as c:
        c.send(b"get " + b" ".join(keys) + b"\r\nmn\r\n")
        lines = reply(c)
        assert lines[0::2][:-1] == [b"VALUE page:%d 0 %d" % (n, len(str(n)) + 2) for n in range(count)]
        assert lines[1::2] == [b"%d=0" % n for n in range(count)]
        assert c.line() == b"MN"
    scene.check_sums()


@pytest.mark.parametrize("last", ["mn", "mg"])
def test_a_run_of_any_number_of_quiet_gets_waits(scene, last):
    server = scene.start(rules(LONG))
    count = 1500
    with server.raw() as c:
        gets = b"".join(b"mg page:%d v k q\r\n" % n for n in range(count))
        c.send(gets + (b"mn\r\n" if last == "mn" else b"mg page:last v k\r\nmn\r\n"))
        lines = reply(c, b"MN\r\n")
        assert lines[1:-1:2][:count] == [b"%d=0" % n for n in range(count)]
    scene.check_sums()


def test_a_missing_key_behind_more_than_a_turn_of_values_is_waited_for(scene):
    server = scene.start(rules(LONG))
    with server.raw() as c:
        c.set(b"large", b"x" * 100_000)
        for gets in (b"get large page:1 large page:2\r\n", b"gets large page:3 large page:4\r\n", b"gat 60 page:5 large page:6\r\n"):
            c.send(gets)
            values = [line for line in reply(c) if line.endswith(b"=0")]
            assert len(values) == 2, values


def test_the_parts_of_a_long_get_have_one_time_together(scene):
    server = scene.start(rules('hold = "2s"\nttl = "60s"\n'))
    scene.close_gate()
    with server.raw() as c:
        began = time.monotonic()
        c.send(b"get " + b" ".join(b"page:%d" % n for n in range(6000)) + b"\r\n")
        assert reply(c) == [b"END"]
        # The times of six parts, one after the other, would be 12 s.
        assert 1.95 < time.monotonic() - began < PROMPT
    scene.open_gate()


def test_busy_comes_too_late_for_the_later_parts_of_a_get(scene):
    """Their keys are misses."""
    server = scene.start(rules('hold = "300ms"\non_busy = "error"\nttl = "60s"\n'))
    with server.raw() as c:
        c.set(b"large", b"x" * 100_000)
        scene.close_gate()
        c.send(b"get large page:1\r\nget page:2\r\n")
        assert reply(c)[0::2] == [b"VALUE large 0 100000", b"END"]
        assert c.line() == b"SERVER_ERROR busy"
        scene.open_gate()


# The start.


def refused(connect):
    try:
        connect().close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    return False


@pytest.mark.parametrize("where", ["tcp", "unix"])
@pytest.mark.parametrize("mode", ["template", "exec"])
def test_clients_are_refused_until_loaders_are_ready(scene, binary, open_dir, where, mode):
    port, path = free_port(), open_dir + "/socket"
    config = scene.dir / "rules.toml"
    config.write_text(asks(mode=mode))
    words = ["-p", str(port), "-l", "127.0.0.1"] if where == "tcp" else ["-s", path]
    kind, address = (socket.AF_INET, ("127.0.0.1", port)) if where == "tcp" else (socket.AF_UNIX, path)

    def connect():
        s = socket.socket(kind)
        s.settimeout(20)
        s.connect(address)
        return s

    began = time.monotonic()
    process = subprocess.Popen([binary, *words, "--config", str(config)], env={**os.environ, **scene.env, "SLOW_START": "2"})
    try:
        wait_until("clients are let in", lambda: not refused(connect) or process.poll() is not None)
        assert time.monotonic() - began > 1.5
        with connect() as c:
            c.sendall(b"mn\r\n")
            assert c.recv(100) == b"MN\r\n"
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_a_reload_that_is_asked_for_while_loaders_start_comes_after(scene, binary):
    port, config, log = free_port(), scene.dir / "rules.toml", scene.dir / "log"
    config.write_text(asks())
    env = {**os.environ, **scene.env, "SLOW_START": "1"}
    with log.open("w") as out:
        process = subprocess.Popen([binary, "-p", str(port), "--config", str(config)], env=env, stderr=out)
    try:
        wait_until("the loader starts", scene.processes)
        time.sleep(0.3)
        config.write_text(asks(terms='hold = "7s"\n'))
        process.send_signal(signal.SIGHUP)
        wait_until("it is reloaded", lambda: "cattlegrid: reloaded" in log.read_text())
        assert '-> "7s"' in log.read_text()
    finally:
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize("mode", ["template", "exec"])
def test_a_loader_that_does_not_get_ready_keeps_no_reload_back(scene, mode):
    server = scene.start(rules(LONG, mode=mode, start_timeout="60s"))
    with server.raw() as c:
        assert c.get(b"page:1") == b"1=0"
        before = set(scene.processes())
        scene.write("starting", "sleep")
        server.signal(signal.SIGHUP)
        wait_until("it starts", lambda: set(scene.processes()) - before)
        time.sleep(0.3)
        scene.remove("starting")
        began = time.monotonic()
        server.signal(signal.SIGHUP)
        wait_until("it is reloaded", lambda: scene.reloads()[0] == 1)
        assert time.monotonic() - began < 3 * PROMPT, "its time to start is 60 s"
        assert "it was not ready when another reload was asked for" in scene.whole_log()
        assert c.get(b"page:2") == b"2=0"
    wait_until("nothing hangs", lambda: len(scene.templates()) <= 2)
    scene.end()


# The end.


def leave(scene, terms, key, *args):
    """SIGTERM while a get waits: the reply, after how many seconds it came, and after how many the server had left."""
    server = scene.start(asks(terms, timeout="60s"), *args)
    with server.raw() as c, server.raw() as idle:
        c.send(b"get " + key + b"\r\n")
        begun(scene)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        idle.closed()
        line = c.line()
        came = time.monotonic() - began
        assert server.process.wait(20) == 0
        return line, came, time.monotonic() - began


def test_a_get_that_waits_gets_its_value_while_the_server_leaves(scene):
    line, came, left = leave(scene, LONG, b"ask:until:1:a")
    assert line == b"VALUE ask:until:1:a 0 4" and left < 2 * PROMPT


@pytest.mark.parametrize("terms, expected", [("", b"END"), ('on_busy = "error"\n', b"SERVER_ERROR busy")])
def test_a_get_that_waits_too_long_is_answered_before_the_end_of_the_drain_time(scene, terms, expected):
    line, came, left = leave(scene, LONG + terms, b"ask:until:30:a", "--drain", "2s")
    assert line == expected and 1.4 < came and left < 2 * PROMPT, (line, came, left)


def test_a_short_drain_time(scene):
    line, came, left = leave(scene, LONG, b"ask:until:30:a", "--drain", "300ms")
    assert line == b"END" and left < 2 * PROMPT, "it asked for 30 s"


def test_a_client_that_computes_may_bring_its_value_while_the_server_leaves(scene):
    server = scene.start('[[rule]]\nmatch = "own:{id}"\nhold = "30s"\nlease = "30s"\n')
    with server.raw() as holder, server.raw() as waits, server.raw() as other:
        assert holder.get(b"own:1") is None
        waits.send(b"get own:1\r\nget own:1\r\n")
        wait_until("it waits", lambda: held(server) == 2)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        time.sleep(0.5)
        assert other.set(b"own:1", b"v") == b"STORED"
        assert reply(waits) == [b"VALUE own:1 0 1", b"v", b"END"]
        assert reply(waits) == [b"VALUE own:1 0 1", b"v", b"END"]
        assert server.process.wait(20) == 0 and time.monotonic() - began < 2 * PROMPT, "hold is 30 s"


# Jobs whose value does not count any more.


@pytest.mark.parametrize("mode", ["template", "exec", "jsonl"])
@pytest.mark.parametrize("how", ["delete", "md", "set", "flush_all", "bump"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_job_is_told_that_its_value_does_not_count(scene, how, waits, mode):
    load = {} if mode == "template" else {"mode": mode}
    server = scene.start(asks(LONG + 'tags = ["all"]\n', **load))
    told = scene.dir / "told"
    with server.raw() as c, server.raw() as d:
        c.send(b"get ask:until:20:first\r\n" if waits else b"mg ask:until:20:first v N30\r\n")
        begun(scene)
        command = {
            "delete": b"delete ask:until:20:first",
            "md": b"md ask:until:20:first",
            "set": b"set ask:until:20:first 0 0 1\r\nx",
            "flush_all": b"flush_all",
            "bump": b"delete @tag:all",
        }[how]
        d.send(command + b"\r\n")
        assert d.line()
        wait_until("it was told", lambda: told.exists() and told.read_text())
        assert told.read_text() == "first\n"
        stats = scene.stats()
        assert stats["errors"] == stats["killed"] == 0, stats
    assert not (scene.dir / "untold").exists()


def test_a_job_goes_on_undisturbed_by_a_reload(scene):
    """Its result counts."""
    server = scene.start(asks())
    with server.raw() as c:
        c.send(b"get ask:until:2:a\r\n")
        begun(scene)
        assert scene.reload()
        assert reply(c)[0] == b"VALUE ask:until:2:a 0 4"
    assert (scene.dir / "untold").read_text() == "a\n"


# Users.


def who(server):
    with server.raw() as c:
        return json.loads(c.get(b"ask:who:1"))


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
@pytest.mark.parametrize("mode", ["template", "exec", "jsonl"])
def test_imports_and_init_are_those_of_the_user(scene, mode):
    server = scene.start(asks(mode=mode, user="nobody"))
    nobody = pwd.getpwnam("nobody")
    expected = [nobody.pw_uid, nobody.pw_gid, [], nobody.pw_dir]
    assert who(server) == [expected, expected, expected]
    scene.end()


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_init_as_root_keeps_the_user_of_the_server_for_the_template(scene):
    server = scene.start(asks(user="nobody", init_as_root=True))
    nobody = pwd.getpwnam("nobody")
    imported, init, job = who(server)
    assert imported[0] == init[0] == 0 and imported[3] == job[3] == os.environ.get("HOME")
    assert job[:3] == [nobody.pw_uid, nobody.pw_gid, []]
    scene.end()


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_program_that_its_user_may_not_start(scene, binary):
    closed = scene.dir / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python3").symlink_to("/usr/bin/python3")
    config = scene.dir / "rules.toml"
    config.write_text(asks(command=[str(closed / "python3"), *of_program("asks.py")], user="nobody"))
    ended = subprocess.run([binary, "-p", "-1", "--config", str(config)], env={**os.environ, **scene.env}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended
    assert "Permission denied" in ended.stderr and "user %s needs access to the program" % "nobody" in ended.stderr
    # By name the first in PATH is taken that this user may start.
    text = asks(command=["python3", *of_program("asks.py")], user="nobody")
    scene.env["PATH"] = f"{closed}:/usr/bin:/bin"
    assert who(scene.start(text))[0][0] == pwd.getpwnam("nobody").pw_uid


# Process 1.


def may_unshare():
    words = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    try:
        return subprocess.run(words, capture_output=True, timeout=20).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_unshare(), reason="no namespace of processes can be made here")
@pytest.mark.parametrize("mode", ["template", "exec"])
def test_process_1_collects_what_it_adopts_and_nothing_else(scene, binary, mode):
    port, config, log = free_port(), scene.dir / "rules.toml", scene.dir / "log"
    config.write_text(asks('hold = "200ms"\n', mode=mode, timeout="300ms", kill_grace="50ms"))
    words = ["unshare", "--pid", "--fork", "--mount-proc", binary, "-p", str(port), "--config", str(config)]
    with log.open("w") as out:
        outer = subprocess.Popen(words, env={**os.environ, **scene.env}, stderr=out)
    first = None

    def up():
        try:
            return socket.create_connection(("127.0.0.1", port), 20)
        except ConnectionRefusedError:
            return None

    try:
        wait_until("it serves", lambda: up() is not None or outer.poll() is not None)
        with up() as c:
            file = c.makefile("rb")
            for n in range(6):
                c.sendall(b"get ask:orphans:%d\r\n" % n)
                assert file.readline() == b"END\r\n"
            first = int(children(outer.pid)[0])
            inside = lambda: [stat(pid) for pid in descendants(first)]
            wait_until("no orphan and no zombie is left", lambda: not any("Z" in one or "sleep" in one for one in inside()), 20)
            # The pool has seen each end by itself.
            c.sendall(b"stats loaders\r\n")
            lines = iter(file.readline, b"END\r\n")
            stats = dict(line.split()[1:3] for line in lines)
            assert int(stats[b"pages:lost"]) == int(stats[b"pages:errors"]) == 0 < int(stats[b"pages:timeouts"]), stats

            def answers():
                c.sendall(b"get ask:who:1\r\n")
                lines = list(iter(file.readline, b"END\r\n"))
                return bool(lines)

            wait_until("it answers", answers)
    finally:
        if first is not None:
            os.kill(first, signal.SIGTERM)
        else:
            outer.kill()
        assert outer.wait(20) == 0
    assert "unknown" not in log.read_text(), log.read_text()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return f.read().split()


def descendants(pid):
    """Of all its threads."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children") as f:
                for child in f.read().split():
                    found += [child, *descendants(child)]
        except FileNotFoundError:
            pass
    return found


def stat(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read()[:60]
    except FileNotFoundError:
        return ""
