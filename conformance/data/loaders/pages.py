"""The loader of the tests: the key says what happens to its job.

`page:ID` has the value `ID=VERSION`, VERSION from the file `version-ID` at the moment the job begins (0 without one). The job
lasts as long as the file `delay` says, in seconds, and then until there is no file `gate`. `code:ID` has the contents of
the file `code` when the program was started. `do:WHAT:WITH:ID` does one of `DEEDS`. Every job appends a line to the file `jobs`.

All files are in the directory SCENE. What happens while the program starts is said by the file `starting`, and by
`forked` for each worker: `raise`, `sleep` or `exit`.
"""

import json
import os
import signal
import socket
import sys
import time

from cattlegrid import loader
from cattlegrid.worker._state import STATE

SCENE = os.environ["SCENE"]


def read(name, default=""):
    try:
        with open(os.path.join(SCENE, name)) as f:
            return f.read()
    except FileNotFoundError:
        return default


def note(job):
    line = {"key": job.key, "args": job.args, "rule": job.rule, "pid": os.getpid(), "attempt": job.attempt, "hint": job.hint}
    line["stale"] = None if job.stale is None else job.stale.decode()
    file = os.open(os.path.join(SCENE, "jobs"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


def stop_at(name):
    what = read(name)
    if what == "raise":
        raise RuntimeError("there is no table pages")
    if what == "sleep":
        time.sleep(600)
    if what == "exit":
        os._exit(3)


def wait_at_gate():
    end = time.monotonic() + 60
    while os.path.exists(os.path.join(SCENE, "gate")) and time.monotonic() < end:
        time.sleep(0.002)


def page(id):
    value = f"{id}={read('version-' + id, '0')}"
    time.sleep(float(read("delay", "0")))
    wait_at_gate()
    return value


def ignore_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


# What a key can ask for -----------------------------------------------------------------------------------------------


def hang(_):
    ignore_signals()
    while True:
        time.sleep(600)


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def close(_):
    os.closerange(0, 256)
    time.sleep(600)


def flood(size):
    for _ in range(int(size) // 1000):
        sys.stderr.write("x" * 999 + "\n")
    sys.stderr.flush()
    return "flooded"


def garbage(kind):
    data = {"frames": b"\xff" * 4096, "long": b"\x00\xff\xff\xff" + b"\xff" * 64, "text": b"hello\r\n" * 100, "zero": bytes(4096)}[kind]
    STATE.link.sock.sendall(data)
    time.sleep(600)


def leave(_):
    """A process of the process group of this worker that outlives the job."""
    child = os.fork()
    if child == 0:
        ignore_signals()
        time.sleep(600)
        os._exit(0)
    return str(child)


def fail(text):
    raise loader.Error(text, retryable=text.startswith("again"))


def again(text):
    """Fails before the attempt that it names."""
    if STATE.attempt < int(text):
        raise loader.Error("not yet", retryable=True)
    return f"attempt {STATE.attempt}"


def oops(text):
    raise KeyError(text)


def wait(ms):
    time.sleep(int(ms) / 1000)
    return "waited"


def wait_gate(_):
    wait_at_gate()
    return "waited"


def part(port):
    """A page is made of a fragment, for which the server is asked."""
    with socket.create_connection(("127.0.0.1", int(port))) as server:
        server.sendall(b"get do:bytes:-:part\r\n")
        with server.makefile("rb") as replies:
            size = int(replies.readline().split()[3])
            return replies.read(size)


def once(_):
    """A value that is not kept."""
    wait_at_gate()
    return loader.Value("once", ttl=-1)


DEEDS = {
    "size": lambda n: b"x" * int(n),
    "bytes": lambda _: bytes(range(256)),
    "ttl": lambda n: loader.Value("v", ttl=int(n)),
    "flags": lambda n: loader.Value("v", flags=int(n)),
    "tags": lambda n: loader.Value("v", tags=[f"t{i}" for i in range(int(n))]),
    "missing": lambda n: loader.not_found() if n == "-" else loader.not_found(ttl=int(n)),
    "none": lambda _: None,
    "exit": lambda n: os._exit(int(n)),
    "nice": lambda _: read("/proc/self/oom_score_adj").strip(),
    "user": lambda _: f"{os.getuid()}",
    "environment": lambda _: json.dumps(sorted(os.environ)),
    "hang": hang,
    "die": die,
    "close": close,
    "flood": flood,
    "garbage": garbage,
    "leave": leave,
    "fail": fail,
    "again": again,
    "oops": oops,
    "wait": wait,
    "gate": wait_gate,
    "once": once,
    "part": part,
}


def compute(job):
    note(job)
    kind = job.rule.split(":")[0]
    if kind == "page":
        return page(job.args["id"])
    if kind == "code":
        return CODE
    if kind == "do":
        return DEEDS[job.args["what"]](job.args["with"])
    return f"{job.rule} {sorted(job.args.items())}".encode("utf-8", "surrogateescape")


if read("batches"):

    @loader.batch(limit=int(read("batches")))
    def load_many(jobs):
        file = os.open(os.path.join(SCENE, "calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, b"%d\n" % len(jobs))
        os.close(file)
        return {job.key: compute(job) for job in jobs}

else:

    @loader.load
    def load(job):
        return compute(job)


@loader.after_fork
def forked():
    stop_at("forked")


CODE = read("code", "first")
stop_at("starting")
loader.serve()
