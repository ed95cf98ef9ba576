"""Loaders as programs: over a job socket, by JSON lines, and by hand."""

import base64
import json
import os
import struct
import subprocess
import sys

import pytest
from cattlegrid.worker import _frames as f
from test_worker import SRC, Parent

SINGLE = """
import asyncio, os, sys, time
from cattlegrid import loader, worker

SEEN = []

@loader.init
def prepare():
    SEEN.append("init")
    print("printed")

@loader.after_fork
def connect():
    SEEN.append("after_fork")

@loader.load
ASYNC def load(job):
    what = job.args.get("what")
    if what == "seen":
        return " ".join(SEEN)
    if what == "fields":
        left = job.deadline and 0 < job.deadline - time.monotonic() < 100
        print("printed")
        return repr((job.key, job.args, job.rule, job.hint, job.stale, job.attempt, left))
    if what == "value":
        return loader.Value(b"\\xff\\0", ttl=60, tags=["a", b"\\xfe"], flags=3)
    if what == "none":
        return loader.not_found(ttl=5)
    if what == "none-at-all":
        return loader.not_found()
    if what == "error":
        raise loader.Error("as told", retryable=True)
    if what == "bad":
        return {}
    if what == "retire":
        worker.retire()
        return "asked"
    if what == "leave":
        sys.exit(3)
    if what == "cancelled":
        worker.event("begun")
        while not job.cancelled():
            PAUSE(0.001)
        return "seen"
    return job.args["missing"]

loader.serve()
"""
SYNC = SINGLE.replace("ASYNC ", "").replace("PAUSE", "time.sleep")
ASYNC = SINGLE.replace("ASYNC", "async").replace("PAUSE", "await asyncio.sleep")

BATCH = """
from cattlegrid import loader

@loader.batch(limit=10)
def load(jobs):
    if jobs[0].key == "raise":
        raise ValueError("all of them")
    if jobs[0].key == "list":
        return [str(len(jobs))] * len(jobs)
    out = {job.key: loader.Value("%d %s" % (len(jobs), job.args.get("n")), ttl=1) for job in jobs if job.key != "missing"}
    if "error" in out:
        out["error"] = loader.Error("this job only", retryable=True)
    if "bad" in out:
        out["bad"] = 7
    return out

loader.serve()
"""


def args(key="page:42", rule="page:{id}", hint="", stale=None, **captures):
    pairs = [part for pair in captures.items() for part in pair]
    parts = [key, rule, hint, "" if stale is None else "1", stale or "", *pairs]
    return [part if isinstance(part, bytes) else part.encode() for part in parts]


class Socket(Parent):
    """A pool's side of the socket of a loader that is run as a program."""

    def __init__(self, tmp_path, program):
        super().__init__(tmp_path, program, run=["app.py"])

    def start(self, config=b""):
        kind, _, _, body = self.receive()
        _, flags, _, concurrency, _ = struct.unpack_from("<HHIII", body)
        assert kind == f.HELLO
        self.send(f.frame(f.INIT, 0, struct.pack("<IIQ", 1 << 20, 1, 1) + f.encode_list([config])))
        assert self.receive()[0] == f.READY
        return flags & f.TAKES_BATCHES, concurrency

    def load(self, **job):
        self.send(self.job(9, *args(**job)))
        kind, flags, id, body = self.receive()
        assert id == 9
        return [kind, flags, *f.decode_list(body)]


@pytest.fixture
def started(tmp_path):
    parents = []

    def start(program):
        parents.append(Socket(tmp_path, program))
        return parents[0]

    yield start
    for parent in parents:
        parent.sock.close()
        parent.process.kill()
        parent.process.wait()


@pytest.mark.parametrize("program, concurrency", [(SYNC, 1), (ASYNC, 100)])
def test_a_loader_over_a_socket(started, program, concurrency):
    parent = started(program)
    assert parent.start() == (0, concurrency)
    assert parent.load(what="seen") == [f.RESULT, 0, b"V", b"init after_fork", b"", b""]
    got = parent.load(key=b"k\xff", rule="k{what}", hint="h", stale=b"\xfe", what="fields")
    assert got[3].decode() == repr(("k\udcff", {"what": "fields"}, "k{what}", "h", b"\xfe", 0, None))
    assert parent.load(what="value") == [f.RESULT, 0, b"V", b"\xff\0", b"60", b"3", b"a", b"\xfe"]
    assert parent.load(what="none") == [f.RESULT, 0, b"N", b"5"]
    assert parent.load(what="none-at-all") == [f.RESULT, 0, b"N", b""]
    assert parent.load(what="error") == [f.ERROR, f.FLAG_RETRYABLE, b"error", b"as told", b""]
    bad = parent.load(what="bad")
    assert bad[:3] == [f.ERROR, 0, b"exception"] and b"bytes or str, not dict" in bad[3]
    missing = parent.load(what="x")
    assert b"has no capture 'missing'; its captures: what" in missing[3] and b"app.py" in missing[4]
    parent.send(parent.job(8, b"no", b"loader's"))
    kind, _, id, body = parent.receive()
    assert (kind, id) == (f.ERROR, 8) and b"5 arguments and 2 for each capture, not 2" in f.decode_list(body)[1]
    assert parent.load(what="seen")[3] == b"init after_fork"
    parent.send(f.frame(f.RETIRE))
    assert parent.process.wait(60) == 0


def test_deadline_and_attempt_and_a_cancel(started):
    parent = started(SYNC)
    parent.start()
    body = struct.pack("<II", 50_000, 2) + f.encode_list(args(what="fields"))
    parent.send(f.frame(f.JOB, 1, body))
    assert f.decode_list(parent.receive()[3])[1].endswith(b", 2, True)")
    parent.send(parent.job(2, *args(what="cancelled")))
    assert parent.receive()[0] == f.EVENT
    parent.send(f.frame(f.CANCEL, 2))
    assert f.decode_list(parent.receive()[3])[1] == b"seen"


def test_a_batch_loader_over_a_socket(started):
    parent = started(BATCH)
    assert parent.start() == (f.TAKES_BATCHES, 10)
    keys = ["a", "a", "missing", "error", "bad", "b"]
    jobs = [(n, *args(key=key, n=str(n))) for n, key in enumerate(keys)]
    parent.send(parent.batch((9, b"no loader's"), *jobs))
    got = {id: (kind, flags, f.decode_list(body)) for kind, flags, id, body in (parent.receive() for _ in range(7))}
    # Of two jobs of a key both are answered, with what the dict has.
    assert got[0] == got[1] == (f.RESULT, 0, [b"V", b"6 1", b"1", b""])
    assert got[2][0] == f.ERROR and b"nothing for the key 'missing'" in got[2][2][1]
    assert got[3] == (f.ERROR, f.FLAG_RETRYABLE, [b"error", b"this job only", b""])
    assert got[4][0] == f.ERROR and b"a value is bytes or str, not int" in got[4][2][1]
    assert got[5] == (f.RESULT, 0, [b"V", b"6 5", b"1", b""])
    assert got[9][0] == f.ERROR and b"5 arguments" in got[9][2][1]
    parent.send(parent.batch((1, *args(key="raise")), (2, *args(key="a"))))
    assert all(b"ValueError: all of them" in f.decode_list(parent.receive()[3])[1] for _ in range(2))
    assert parent.load(key="list")[3] == b"1"


class Lines:
    """A pool's side of the lines of a loader."""

    def __init__(self, tmp_path, program, config=""):
        (tmp_path / "app.py").write_text(program)
        env = dict(os.environ, PYTHONPATH=str(SRC), CATTLEGRID_MODE="jsonl")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "app.py"], env=env, cwd=tmp_path, stdin=pipe, stdout=pipe)
        self.say({"type": "init", "worker": 1, "generation": 1, "config": config})
        assert self.hear() == {"ready": True}

    def say(self, *messages):
        self.process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def load(self, **members):
        members = {"key": "page:42", "rule": "page:{id}", "args": {}, **members}
        self.say({"type": "job", "id": "7", "deadline_ms": 0, "attempt": 0, **members})
        answer = self.hear()
        assert answer.pop("id") == "7"
        return answer


@pytest.fixture
def lines(tmp_path):
    opened = []

    def start(program):
        opened.append(Lines(tmp_path, program))
        return opened[0]

    yield start
    for each in opened:
        each.process.kill()
        each.process.stdin.close()
        each.process.stdout.close()
        each.process.wait()


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


@pytest.mark.parametrize("program", [SYNC, ASYNC])
def test_a_loader_by_json_lines(lines, program):
    pool = lines(program)
    assert pool.load(args={"what": "seen"}) == {"value": "init after_fork"}
    given = {"key": b64(b"k\xff"), "args": {"what": "fields", "x": b64(b"\xfc")}, "hint": "h", "stale": b64(b"\xfe")}
    answer = pool.load(**given, deadline_ms=50_000, attempt=2)
    fields = ("k\udcff", {"what": "fields", "x": "\udcfc"}, "page:{id}", "h", b"\xfe", 2, True)
    assert answer == {"value": repr(fields)}
    answer = pool.load(args={"what": "fields"}, stale="")
    assert answer == {"value": repr(("page:42", {"what": "fields"}, "page:{id}", None, b"", 0, None))}
    value = {"value": base64.b64encode(b"\xff\0").decode(), "base64": True, "ttl": 60, "flags": 3}
    assert pool.load(args={"what": "value"}) == {**value, "tags": ["a", b64(b"\xfe")]}
    assert pool.load(args={"what": "none"}) == {"not_found": 5}
    assert pool.load(args={"what": "none-at-all"}) == {"not_found": True}
    error = {"code": "error", "message": "as told", "detail": "", "retryable": True}
    assert pool.load(args={"what": "error"}) == {"error": error}
    assert "bytes or str, not dict" in pool.load(args={"what": "bad"})["error"]["message"]
    assert "app.py" in pool.load(args={"what": "x"})["error"]["detail"]
    pool.say({"type": "job", "id": "8", "args": ["a", "b"]})
    assert "the job has no key" in pool.hear()["error"]["message"]
    pool.say({"type": "ping"}, {"type": "retire"})
    assert pool.hear() == {"pong": True}
    assert pool.process.wait(60) == 0


def test_a_cancel_is_seen_by_json_lines_at_every_split(lines):
    pool = lines(SYNC)
    job = {"type": "job", "id": "1", "key": "k", "rule": "k", "args": {"what": "cancelled"}}
    cancel = json.dumps({"type": "cancel", "id": "1"}).encode() + b"\n"
    for other in ("0", "1"):
        pool.say({**job, "id": other})
        text = cancel.replace(b'"1"', b'"%s"' % other.encode())
        for byte in text:
            pool.process.stdin.write(bytes([byte]))
            pool.process.stdin.flush()
        assert pool.hear() == {"event": ["begun"]}
        assert pool.hear() == {"id": other, "value": "seen"}
    # What was read ahead is not lost.
    pool.say(job, {"type": "cancel", "id": "1"}, {"type": "ping"})
    assert [pool.hear() for _ in range(3)] == [{"event": ["begun"]}, {"id": "1", "value": "seen"}, {"pong": True}]


def test_a_long_value_by_json_lines(lines):
    pool = lines("from cattlegrid import loader\n\n@loader.load\ndef load(job):\n    return job.stale * 2\n\nloader.serve()\n")
    assert pool.load(stale="x" * (1 << 20))["value"] == "x" * (2 << 20)
    assert pool.load(stale=b64(b"\xff" * (1 << 20)))["base64"] is True


def test_a_batch_loader_by_json_lines_gets_batches_of_one(lines):
    pool = lines(BATCH)
    assert pool.load(key="a", args={"n": "1"}) == {"value": "1 1", "ttl": 1}
    assert pool.load(key="error")["error"]["retryable"] is True
    assert "nothing for the key" in pool.load(key="missing")["error"]["message"]
    assert "all of them" in pool.load(key="raise")["error"]["message"]


def test_the_end_of_the_pool_is_the_end_of_a_loader_by_json_lines(lines):
    pool = lines(SYNC)
    pool.process.stdin.close()
    assert pool.process.wait(60) == 0


def test_retire_is_asked_for_by_json_lines(lines):
    pool = lines(SYNC)
    pool.say(*({"type": "job", "id": id, "key": "k", "args": {"what": "retire"}} for id in "12"), {"type": "ping"})
    asked = [{"retire": True}, {"id": "1", "value": "asked"}, {"id": "2", "value": "asked"}, {"pong": True}]
    assert [pool.hear() for _ in range(4)] == asked


def test_system_exit_ends_a_loader_by_json_lines(lines):
    pool = lines(SYNC)
    pool.say({"type": "job", "id": "1", "key": "k", "args": {"what": "leave"}})
    assert pool.process.wait(60) == 3


def run(tmp_path, *command, program=None, **env):
    if program is not None:
        (tmp_path / "app.py").write_text(program)
    env = {**{name: value for name, value in os.environ.items() if name != "CATTLEGRID_MODE"}, "PYTHONPATH": str(SRC), **env}
    return subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, timeout=60)


def test_by_hand_it_says_how_to_test_and_use_it(tmp_path):
    for mode in ({}, {"CATTLEGRID_MODE": "other"}):
        ended = run(tmp_path, "app.py", program=BATCH, **mode)
        text = ended.stderr.decode()
        assert (ended.returncode, ended.stdout, text.count("\n")) == (2, b"", 1)
        assert "python3 -m cattlegrid.loader app.py KEY [name=value...]" in text
        assert 'command = ["python3", "app.py"]' in text


@pytest.mark.parametrize("program", [SYNC, ASYNC])
def test_a_single_run(tmp_path, program):
    once = ("-m", "cattlegrid.loader", "app.py", "page:42")
    ended = run(tmp_path, *once, "what=value", program=program)
    head, _, value = ended.stdout.partition(b"value  2 bytes\n")
    assert (ended.returncode, value) == (0, b"\xff\0\n")
    assert b"\nttl    60 s\ntags   a \xfe\nflags  3\n" in head and b"printed\ntime " in head
    ended = run(tmp_path, *once, "what=none", program=program)
    assert (ended.returncode, ended.stdout.splitlines()[2:]) == (0, [b"ttl    5 s", b"not found"])
    ended = run(tmp_path, *once, "what=seen", program=program)
    assert b"ttl    the rule's ttl\ntags\n" in ended.stdout and ended.stdout.endswith(b"init after_fork\n")
    fields = run(tmp_path, *once, "what=fields", "--rule=r", "--hint=h", "--stale=s", program=program)
    assert fields.stdout.splitlines()[-1] == repr(("page:42", {"what": "fields"}, "r", "h", b"s", 0, None)).encode()
    for what, text in (("error", b"as told"), ("bad", b"not dict"), ("x", b"its captures: what")):
        ended = run(tmp_path, *once, f"what={what}", program=program)
        assert ended.returncode == 1 and text in ended.stderr and b"Traceback" in ended.stderr
    ended = run(tmp_path, *once, "what", program=program)
    assert ended.returncode == 2 and b"a capture is name=value, not what" in ended.stderr


def test_a_single_run_of_a_batch_and_of_broken_programs(tmp_path):
    once = ("-m", "cattlegrid.loader", "app.py", "a", "n=5")
    assert run(tmp_path, *once, program=BATCH).stdout.endswith(b"value  3 bytes\n1 5\n")
    # Without `serve`, with it behind the usual condition, and with a module of its own directory.
    (tmp_path / "helper.py").write_text("TEXT = 'helped'\n")
    plain = "import helper\nfrom cattlegrid import loader\n\n@loader.load\ndef load(job):\n    return helper.TEXT\n"
    for end in ("", "if __name__ == '__main__':\n    loader.serve()\n"):
        assert run(tmp_path, *once, program=plain + end).stdout.endswith(b"helped\n")
    for program, text in (
        ("1 / 0", b"ZeroDivisionError"),
        ("", b"no function to serve: decorate one with @loader.load or @loader.batch"),
        (plain + "@loader.init\ndef f():\n    raise OSError('no database')\n", b"no database"),
        (plain + "@loader.after_fork\ndef f():\n    raise OSError('no database')\n", b"no database"),
    ):
        ended = run(tmp_path, *once, program=program)
        assert ended.returncode == 1 and text in ended.stderr and ended.stdout == b"", ended
    for mode in ("jsonl", "stdio"):
        ended = run(tmp_path, "app.py", program="from cattlegrid import loader\nloader.serve()\n", CATTLEGRID_MODE=mode)
        assert ended.returncode == 1
