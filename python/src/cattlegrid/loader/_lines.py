"""A loader in mode jsonl: one JSON object a line on standard input and output, one job at a time.

docs/worker-protocol.md, section "JSON lines", has the objects. The first one has the text of ``init``. A cancellation is seen when the job asks for it: lines that have come
by then are read ahead and kept for the loop.
"""

import base64
import json
import os
import select
import time

from ..worker import _frames as frames
from ..worker import _hooks, _serve
from ..worker._errors import told
from ..worker._state import STATE
from . import _answer, _api, _job

_VARIABLES = ("CATTLEGRID_MODE", "CATTLEGRID_FD", "CATTLEGRID_FDS", "CATTLEGRID_ALLOW_THREADS")


class Lines:
    """The two streams. Ends the process when the pool has gone."""

    def __init__(self, read, write):
        self.read, self.write = read, write
        self.data = bytearray()
        # Whole lines that were read ahead, and from where `data` has no line end.
        self.ahead = []
        self.searched = 0
        # `worker.retire` was sent.
        self.left = False

    def next(self):
        """The next message; blocks."""
        while not self.ahead:
            self.fill()
        return self.ahead.pop(0)

    def fill(self):
        chunk = os.read(self.read, 1 << 16)
        if not chunk:
            os._exit(0)
        self.data += chunk
        while (end := self.data.find(b"\n", self.searched)) >= 0:
            self.ahead.append(json.loads(self.data[:end]))
            del self.data[: end + 1]
            self.searched = 0
        self.searched = len(self.data)

    def is_cancelled(self, id):
        """Whether a cancel of the job has come; does not block."""
        while select.select([self.read], [], [], 0)[0]:
            self.fill()
        return any(message.get("type") == "cancel" and message.get("id") == id for message in self.ahead)

    def say(self, message):
        """Write a line."""
        data = memoryview(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self.write, data) :]
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


class Current:
    """The job that runs."""

    __slots__ = ("id", "lines")

    def __init__(self, id, lines):
        self.id, self.lines = id, lines

    def cancelled(self):
        return self.lines.is_cancelled(self.id)


def serve():
    """Serve until the pool retires this worker or goes away; then the process ends."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    lines = Lines(os.dup(0), os.dup(1))
    # A stray `print` must not break the lines.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    _api.check()
    for hook in STATE.inits:
        _hooks.once(hook)
    # The first message; a process that is held ready has it when it becomes a worker.
    _api.run_hooks(_text(lines.next().get("config", "")))
    lines.say({"ready": True})
    _send_early(lines)
    while True:
        message = lines.next()
        kind = message["type"]
        if kind == "job":
            reply = _one(lines, message)
            _send_early(lines)
            lines.say(reply)
        elif kind == "ping":
            lines.say({"pong": True})
        elif kind == "retire":
            _serve.run_exit_functions()
            os._exit(0)


def _send_early(lines):
    """Send what `worker.event` and `worker.retire` have left: without a job socket they wait for it."""
    for body in STATE.early:
        lines.say({"event": [_string(part) for part in frames.decode_list(body)]})
    STATE.early.clear()
    if STATE.left_early and not lines.left:
        lines.left = True
        lines.say({"retire": True})


def _one(lines, message):
    """The line that answers a job."""
    id = message["id"]
    try:
        job = parse(message, Current(id, lines))
        if _api.Program.limit:
            (result,) = _api.many([job])
        elif _api.is_async():
            result = _answer.parts(_hooks.run(_api.Program.function(job)))
        else:
            result = _answer.parts(_api.Program.function(job))
        if isinstance(result, BaseException):
            raise result
        return {"id": id, **_object(result)}
    except SystemExit:
        raise
    except BaseException as error:
        code, text, detail, retryable = told(error)
        return {"id": id, "error": {"code": code, "message": text, "detail": detail, "retryable": retryable}}


def parse(message, current=None):
    """The job of a line. ``ValueError`` if it is no loader's."""
    if "key" not in message:
        raise ValueError("the job has no key: this program serves loaders only, or is older than the server")
    rule = _text(message.get("rule", ""))
    args = _job.Args({name: _text(value) for name, value in message.get("args", {}).items()})
    args.rule = rule
    hint = message.get("hint")
    stale = message.get("stale")
    left = message.get("deadline_ms", 0)
    return _job.Job(
        _text(message["key"]),
        args,
        rule,
        None if hint is None else _text(hint) or None,
        None if stale is None else _job.raw(_text(stale)),
        message.get("attempt", 0),
        time.monotonic() + left / 1000 if left else None,
        current,
    )


def _text(part):
    """A byte string of a line: a string, or an object with base64."""
    return part if isinstance(part, str) else _job.text(base64.b64decode(part["b64"]))


def _object(parts):
    """The members that answer a job, from the parts of a RESULT."""
    if parts[0] == b"N":
        return {"not_found": int(parts[1]) if parts[1] else True}
    _, data, ttl, flags, *tags = parts
    try:
        members = {"value": data.decode()}
    except UnicodeDecodeError:
        members = {"value": base64.b64encode(data).decode(), "base64": True}
    if ttl:
        members["ttl"] = int(ttl)
    if flags:
        members["flags"] = int(flags)
    if tags:
        members["tags"] = [_string(tag) for tag in tags]
    return members


def _string(data):
    """A byte string of a line."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(data).decode()}
