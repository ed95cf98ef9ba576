"""A Python worker for tests: the first argument of a job says what to do."""

import atexit
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

from asyncio import CancelledError

from cattlegrid import worker
from odd import ODD

LOADED = []
# Of the template: no worker may remove it.
TEMPORARY = tempfile.TemporaryDirectory()


@worker.init
def load():
    LOADED.append(os.getpid())
    worker.event("loaded")
    if os.environ.get("APP") == "few-processes":
        few_processes()
    if os.environ.get("APP") == "huge-memory":
        huge_memory()
    if os.environ.get("APP") == "says":
        worker.log("from init", level="warn")
    if os.environ.get("APP") == "says-much":
        worker.event("e" * 8_000)
    if os.environ.get("APP") == "odd":
        raise ODD[os.environ["ODD"]]()
    if os.environ.get("APP") == "threads":
        threads()


@worker.after_fork
def connect(config):
    for word in config.decode().split():
        name, _, value = word.partition("=")
        if name == "fail":
            raise RuntimeError(value)
        if name == "odd":
            raise ODD[value]()
        if name == "event":
            worker.event(value)
        if name == "retire":
            worker.retire()


def huge_memory():
    """From here on forks fail with ENOMEM, until SIGUSR1: one mapping is larger than all memory there is.

    The kernel refuses that in one piece, but joins two neighbours.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with open("/proc/meminfo") as file:
        swap = next(int(line.split()[1]) for line in file if line.startswith("SwapTotal"))
    half = (total + swap * 1024) * 6 // 10
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    maps = [mmap.mmap(-1, half, flags=flags) for _ in range(2)]
    signal.signal(signal.SIGUSR1, lambda *_: maps.pop().close())


def threads():
    """A thread, and what looks like the library that starts some in numpy."""
    threading.Thread(target=time.sleep, args=(3600,), name="a-thread-of-mine", daemon=True).start()
    with tempfile.NamedTemporaryFile(suffix="-libscipy_openblas64_.so") as file:
        file.truncate(4096)
        LOADED.append(mmap.mmap(file.fileno(), 4096))


def few_processes():
    """From here on this user can have one more process: forks beyond fail with EAGAIN."""
    if os.getuid() == 0:
        uid = 51_000 + os.getpid() % 10_000
        os.setresuid(uid, uid, uid)
    mine = sum(1 for pid in os.listdir("/proc") if pid.isdigit() and owner(pid) == os.getuid())
    resource.setrlimit(resource.RLIMIT_NPROC, (mine + 1, mine + 1))


def owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def endless_parts(count, ms):
    """Parts of a reply, without a limit or until the job is cancelled; then nothing for some time."""
    for _ in range(count):
        yield b"p" * 100_000
    time.sleep(ms / 1000)


SAID = []


def outlive(say):
    say.progress("in time")
    SAID.append(say)
    for _ in range(60):
        time.sleep(0.005)
        say.progress("late")
        say.event("late")


class Custom(Exception):
    pass


def long(what, size):
    """Send ``size`` bytes of a kind of message that may be longer than a frame."""
    if what == "error":
        raise Custom("ü" * (size // 2))
    if what == "detail":
        raise worker.JobError("code", "message", detail="x" * size + "end")
    if what == "event":
        worker.event("short")
        worker.event("e" * size)
    if what == "progress":
        worker.progress("p" * size)
    if what == "log":
        worker.log("ü" * (size // 2))
    if what == "part":
        return (b"p" * length for length in (10, size, 10))
    return None


@worker.job
def work(what, *args):
    what = what.decode()
    if what == "echo":
        return list(args)
    if what == "pid":
        return str(os.getpid())
    if what == "loaded":
        return [str(pid) for pid in LOADED]
    if what == "number":
        return f"{worker.number()} {worker.generation()}"
    if what == "raise":
        raise Custom("as told")
    if what == "job-error":
        raise worker.JobError("code", "message", detail="detail", retryable=True)
    if what == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    if what == "sleep":
        time.sleep(int(args[0]) / 1000)
        return args[1]
    if what == "begin":
        open(args[0], "w").close()
        while not os.path.exists(args[1]):
            time.sleep(0.001)
        return "open"
    if what == "gate":
        while not os.path.exists(args[0]):
            time.sleep(0.001)
        return "open"
    if what == "endless-parts":
        return endless_parts(int(args[0]), int(args[2]))
    if what == "mark":
        time.sleep(int(args[2]) / 1000)
        with open(args[0], "ab") as file:
            file.write(args[1] + b"\n")
        return None
    if what == "until-cancelled":
        with open(args[0], "w") as file:
            file.write("running")
        while not worker.cancelled():
            time.sleep(0.001)
        with open(args[0], "w") as file:
            file.write("cancelled")
        return None
    if what == "deadline":
        return "none" if worker.deadline() is None else "some"
    if what == "progress":
        for percent in (0, 50, 100):
            worker.progress(str(percent))
        return "done"
    if what == "temporary":
        return [TEMPORARY.name, str(os.path.isdir(TEMPORARY.name))]
    if what == "late":
        # Two threads that outlive the job: one by the functions, one by the job's handle.
        for say in (worker, worker.current()):
            threading.Thread(target=outlive, args=(say,)).start()
        while not SAID:
            time.sleep(0.001)
        return str(os.getpid())
    if what == "run-itself":
        code = "import os; print([name for name in os.environ if name.startswith('CATTLEGRID')])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    if what == "raise-base":
        raise {"interrupt": KeyboardInterrupt, "cancelled": CancelledError, "exit": GeneratorExit}[args[0].decode()]
    if what == "raise-odd":
        raise ODD[args[0].decode()]()
    if what == "bad-list":
        return ["fine", b"fine", 5, None]
    if what == "bad-event":
        worker.event("fine", 5)
    if what == "at-exit":
        atexit.register(os.rename, args[0], args[1])
        return None
    if what == "event":
        worker.event("an event", *args)
        return "done"
    if what == "retire":
        worker.retire()
        worker.retire()
        return "bye"
    if what == "exit":
        raise SystemExit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "long":
        return long(args[0].decode(), int(args[1]))
    if what == "generator":
        return (bytes([65 + n]) * 3 for n in range(int(args[0])))
    if what == "big":
        return b"b" * int(args[0])
    if what == "print":
        print("to stdout", flush=True)
        return None
    if what == "fds":
        return " ".join(sorted(os.listdir("/proc/self/fd")))
    if what == "bad":
        return 7
    raise ValueError(what)
