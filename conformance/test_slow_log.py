"""The slow log, and that the log has neither keys nor values."""

import json
import os
import re
import time

import pytest

from admin import Admin
from harness import ROOT, wait_until

pytestmark = pytest.mark.only_cattlegrid

LOADER = """
import time
from cattlegrid import loader

@loader.load
def load(job):
    if "fails" in job.key: raise RuntimeError("the source is down")
    time.sleep(0.3)
    return "a-secret-value"

loader.serve()
"""

TYPE = """
local Burn = { version = 1 }

function Burn.new()
    return { n = 0 }
end

function Burn.spin(self)
    local n = 0
    for i = 1, 3000000 do
        n = n + i % 7
    end
    return tostring(n)
end

return Burn
"""


@pytest.fixture
def served(start, open_dir):
    program, config = os.path.join(open_dir, "pages.py"), os.path.join(open_dir, "rules.toml")
    with open(program, "w") as f:
        f.write(LOADER)
    with open(config, "w") as f:
        f.write(
            '[[rule]]\nmatch = "page:{id}"\nhold = "5s"\n[[rule]]\nmatch = "token\\"s:{id}"\nlease = "5s"\n'
            '[[rule]]\nmatch = "load:{id}"\nloader = "pages"\nhold = "5s"\n'
            f'[loader.pages]\ncommand = ["python3", "{program}"]\nenv = ["PATH", "PYTHONPATH"]\n[objects]\n'
        )
    admin = Admin()
    env = {"PYTHONPATH": str(ROOT / "python" / "src")}
    options = ("--config", config, "--slow-log", "200ms", "--slow-calls", "1ms", "--log-format", "json", *admin.options())
    return start(*options, env=env), admin


def slow(raw):
    return json.loads(raw.get(b"@slow"))["slow"]


def test_what_is_slow_is_there_by_its_shape(served):
    server, admin = served
    with server.raw() as raw, server.raw() as other:
        assert slow(raw) == []
        # Quick ones are not.
        raw.get(b"page:1")
        raw.set(b"page:1", b"x")
        assert slow(raw) == []
        raw.get(b"page:2")
        time.sleep(0.25)
        raw.set(b"page:2", b"x")
        [one] = slow(raw)
        assert (one["kind"], one["shape"]) == ("computation", "page:{id}") and 240 <= one["ms"] < 2000, one
        # By a token.
        raw.send(b'mg token"s:7 c N30\r\n')
        token = re.search(rb" c(\d+)", raw.line())[1]
        time.sleep(0.25)
        raw.send(b'ms token"s:7 1 C%s\r\nx\r\n' % token)
        assert raw.line() == b"HD"
        assert slow(raw)[0]["shape"] == 'token"s:{id}' and len(slow(raw)) == 2
        # A load counts once, and not as its clients' computation.
        assert raw.get(b"load:1") == b"a-secret-value"
        assert [(one["kind"], one["shape"]) for one in slow(raw)][:1] == [("load", "load:{id}")] and len(slow(raw)) == 3
        assert 300 <= slow(raw)[0]["ms"] < 3000
        # The page and a meta get say the same; the statistic counts.
        page = admin.json("/slow")["slow"]
        assert [one["shape"] for one in page] == [one["shape"] for one in slow(raw)]
        other.send(b"mg @slow v\r\n")
        assert other.line().startswith(b"VA ")
        assert raw.stats("cattlegrid")["slow_noted"] == "3"
        other.close()
    for text in (admin.text("/slow"),):
        assert "page:2" not in text and "secret" not in text


def test_it_keeps_the_last_ones(served):
    server, _ = served
    with server.raw() as raw:
        for start in range(0, 150, 50):
            raw.send(b"".join(b"get page:%d\r\n" % n for n in range(start, start + 50)) + b"mn\r\n")
            raw.until(b"MN\r\n")
            time.sleep(0.25)
            raw.send(b"".join(b"set page:%d 0 9 1 noreply\r\nx\r\n" % n for n in range(start, start + 50)) + b"mn\r\n")
            raw.until(b"MN\r\n")
        assert len(slow(raw)) == 128 and raw.stats("cattlegrid")["slow_noted"] == "150"
        times = [one["ago_ms"] for one in slow(raw)]
        assert times == sorted(times)


def test_slow_calls_of_objects(start, open_dir):
    os.mkdir(os.path.join(open_dir, "types"))
    with open(os.path.join(open_dir, "types", "burn.luau"), "w") as f:
        f.write(TYPE)
    config = os.path.join(open_dir, "rules.toml")
    with open(config, "w") as f:
        f.write(f'[objects]\ndir = "{open_dir}/types"\ntime_limit = "900ms"\n')
    server = start("--config", config, "--slow-calls", "1ms")
    with server.raw() as raw:
        raw.get(b"burn:new:one")
        assert raw.get(b"burn:spin:one") is not None
        # On a machine that is busy the other call may take as long.
        [one] = [one for one in slow(raw) if one["shape"] != "burn:new:{key}"]
        assert (one["kind"], one["shape"]) == ("call", "burn:spin:{key}") and one["ms"] >= 1, one


def test_other_keys_are_refused(served):
    server, _ = served
    with server.raw() as raw:
        for request in (b"get @slow:1\r\n", b"get @slo\r\n", b"set @slow 0 0 1\r\nx\r\n", b"delete @slow\r\n"):
            raw.send(request)
            assert raw.line().startswith(b"CLIENT_ERROR"), request


def test_the_log_has_neither_keys_nor_values(served):
    server, _ = served
    with server.raw() as raw:
        for n in range(30):
            raw.get(b"load:fails-for-user-%d" % n)
        raw.set(b"page:some-key", b"a-secret-value")
        raw.send(b"bogus some-key\r\nget " + b"k" * 300 + b"\r\n")
        raw.line()
    wait_until("the log says so", lambda: "the source is down" in server.log())
    lines = [json.loads(line) for line in server.log().splitlines()]
    for line in lines:
        assert set(line) == {"ts", "level", "msg"} and line["level"] in ("error", "warning", "notice"), line
        assert abs(line["ts"] - time.time()) < 600
    text = "\n".join(line["msg"] for line in lines)
    assert "loader pages: load:{id}: " in text
    assert not re.search(r"fails-for-user|some-key|a-secret-value", text), text
