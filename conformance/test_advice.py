"""What an operator reads: the log's lines about holds and reloads, and `get @why:`."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from crowd import rule, until_held, write_rules
from harness import wait_until

PYTHON = pathlib.Path(__file__).resolve().parents[1] / "python" / "src"

pytestmark = pytest.mark.only_cattlegrid


def why(raw, key):
    return json.loads(raw.get(b"@why:" + key))


def lines_with(server, text):
    return [line for line in server.log().splitlines() if text in line]


def test_holds_that_end_without_the_value_are_named(start, open_dir):
    server = start("--config", write_rules(open_dir, rule(terms='hold = "200ms"\nhold_many = "100ms"\nlease = "30s"')))
    raws = [server.raw(40) for _ in range(5)]
    assert raws[0].get(b"page:1") is None
    for raw in raws[1:]:
        raw.send(b"get page:1\r\n")
    for raw in raws[1:]:
        assert raw.line() == b"END"
    wait_until("the line", lambda: lines_with(server, "in the last minute"))
    (line,) = lines_with(server, "in the last minute")
    assert 'rule 1 "page:{id}": in the last minute 4 gets were held for 200 ms (hold) without getting the value' in line
    assert 'add grace = "30s"' in line and "loader" in line, line
    many = server.raw(40)
    many.send(b"get page:1 other\r\n")
    assert many.line() == b"END"
    assert server.stats("rules")["1:hold_expired_many"] == "1"
    assert len(lines_with(server, "in the last minute")) == 1, "one line a minute"


def test_why_shows_the_parameters_of_the_rule(start, open_dir):
    terms = 'hold = "1s"\ngrace = "30s"\nearly = { share = 0.1 }\ntags = ["page:{id}"]'
    server = start("--config", write_rules(open_dir, rule(terms=terms)))
    raw = server.raw()
    assert raw.set(b"page:1", b"x", exptime=60) == b"STORED"
    said = why(raw, b"page:1")
    given = {"match": "page:{id}", "number": 1, "hold": "1s", "grace": "30s", "early": {"share": 0.1}, "loader": None}
    assert {name: said["rule"][name] for name in given} == given
    assert said["rule"]["tags"] == ["page:{id}"]
    follows = {"hold_many": "1s", "grace_on_error": "30s", "lease": "auto", "max_computers": 4, "on_busy": "miss"}
    assert {name: said["rule"][name] for name in follows} == follows
    assert said["item"]["grace"] == 30 and 58 <= said["item"]["ttl"] <= 60
    assert why(raw, b"other")["rule"] is None


def test_a_reload_says_what_has_changed(start, open_dir):
    first = rule(terms='hold = "400ms"') + rule("old:{id}")
    path = write_rules(open_dir, first)
    server = start("--config", path)

    def reload(text):
        seen = len(lines_with(server, "reloaded"))
        with open(path, "w") as f:
            f.write(text)
        server.signal(signal.SIGHUP)
        wait_until("reloaded", lambda: len(lines_with(server, "reloaded")) > seen)
        return [line.split("reload: ")[1] for line in lines_with(server, "reload: ")]

    second = rule(terms='hold = "1s"') + rule("new:{id}")
    changes = ["rules added: new:{id}", "rules removed: old:{id}", 'rules changed: page:{id} (hold: "400ms" -> "1s", hold_many: "400ms" -> "1s")']
    assert reload(second) == changes
    # What is compared is what was in force, not what the server was started with.
    assert reload(second)[3:] == ["no rule, cascade or loader has changed"]
    assert reload(first)[4:] == ["rules added: old:{id}", "rules removed: new:{id}", 'rules changed: page:{id} (hold: "1s" -> "400ms", hold_many: "1s" -> "400ms")']


BROKEN = """import os
from cattlegrid import loader
if os.path.exists("broken"):
    raise RuntimeError("cannot start")
@loader.load
def load(job):
    return "x"
loader.serve()
"""


@pytest.mark.parametrize("mode", ["exec", "template"])
def test_a_program_that_cannot_start_is_heard_once(binary, start, open_dir, mode):
    with open(open_dir + "/pages.py", "w") as f:
        f.write(BROKEN)
    keys = f'command = ["{sys.executable}", "pages.py"]\nmode = "{mode}"\nmax_jobs = 1\nenv = ["PATH", "PYTHONPATH"]\ntimeout = "1s"\n'
    path = write_rules(open_dir, rule(terms='loader = "pages"') + "[loader.pages]\n" + keys)
    env = dict(os.environ, PYTHONPATH=str(PYTHON))
    flag = open_dir + "/broken"
    open(flag, "w").close()
    done = subprocess.run([binary, "-p", "-1", "--config", path], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode != 0 and done.stderr.count("Traceback") == 1, done.stderr
    assert "no worker could be started" in done.stderr
    os.unlink(flag)
    if mode == "template":
        return  # its workers are forked, and start anyhow
    server = start("--config", path, env=env)
    raw = server.raw(40)
    assert raw.get(b"page:0") == b"x"
    open(flag, "w").close()
    numbers = itertools.count(1)

    def several_have_failed():
        raw.get(b"page:%d" % next(numbers))
        return len(lines_with(server, "start failed")) > 2

    wait_until("several starts have failed", several_have_failed, 60)
    assert len(lines_with(server, "Traceback")) == 1, server.log()


def test_how_long_what_is_evicted_was_unused(start):
    """And pages, in the unit that dashboards take them for."""
    server = start("-m", "16", "-t", "1")
    raw = server.raw(40)
    value = b"x" * 10_000

    def fill(name, until):
        n = 0
        while not until():
            raw.send(b"".join(b"set %s:%d 0 3600 %d noreply\r\n%s\r\n" % (name, n + i, len(value), value) for i in range(100)))
            n += 100

    def items():
        return {name.split(":")[2]: int(number) for name, number in raw.stats("items").items()}

    assert raw.set(b"first", value) == b"STORED"
    assert items()["evicted_time"] == 0
    fill(b"old", lambda: items()["evicted"] > 0)
    time.sleep(3)
    before = items()["evicted"]
    fill(b"new", lambda: items()["evicted"] > before)
    got = items()
    assert 2 <= got["evicted_time"] <= 30, got
    assert 0 < got["evicted_nonzero"] <= got["evicted"], got
    slabs, used = raw.stats("slabs"), int(raw.stats()["bytes"])
    allocated = int(slabs["1:total_pages"]) << 20
    assert used <= allocated <= 17 << 20, (used, allocated)
    assert abs(int(slabs["1:chunks_per_page"]) * int(slabs["1:chunk_size"]) - (1 << 20)) < int(slabs["1:chunk_size"])
