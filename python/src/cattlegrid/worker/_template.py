"""The template process: loaded once, forked for every worker.

It waits for FORK, for the end of its children, and for the end of its parent. When the parent closes the control socket or
dies, all process groups of workers are killed before the template ends. A worker returns from ``run`` in its own process.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import struct
import sys

from . import _frames as frames
from ._serve import run_exit_functions
from ._state import STATE

FORK, FORKED, FAILED, EXITED, READY, FATAL, EVENT = 1, 2, 3, 4, 5, 6, 7
TEXT_MAX = 8_000
EMFILE = 24

# Without the conversions to enum members of `signal.signal`, which write to many pages.
_set_signal = getattr(signal.signal, "__wrapped__", signal.signal)
_SETUP = struct.Struct("<QQQQiiIII")
_NONE = (1 << 64) - 1
_SAME_USER = (0xFFFFFFFF, 0xFFFFFFFF)
_LIBC = ctypes.CDLL(None, use_errno=True)
_PRCTL = _LIBC.prctl
# Plain numbers: converting members of an enum writes to more pages.
_SIGKILL = int(signal.SIGKILL)
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def fatal(control, text):
    """Tell the parent why this program cannot serve, and end the process. A long text is cut to its end."""
    data = text.encode("utf-8", "replace")
    try:
        control.send(bytes([FATAL]) + data[-TEXT_MAX:])
    finally:
        os._exit(1)


def thread_count():
    """Threads of this process, of C libraries too."""
    return len(os.listdir("/proc/self/task"))


def other_threads():
    """Names of all threads except the first: Python's names, or those of the system."""
    threading = sys.modules.get("threading")
    known = {thread.native_id: thread.name for thread in threading.enumerate()} if threading else {}
    names = []
    for tid in os.listdir("/proc/self/task"):
        if int(tid) == os.getpid():
            continue
        try:
            with open(f"/proc/self/task/{tid}/comm") as file:
                names.append(known.get(int(tid)) or file.read().strip())
        except OSError:
            pass
    return names


# Libraries that start threads when they are loaded, by a part of their file's name, and the variable that sets their number.
THREADED = {
    "openblas": "OPENBLAS_NUM_THREADS",
    "libmkl": "MKL_NUM_THREADS",
    "libblis": "BLIS_NUM_THREADS",
    "numexpr": "NUMEXPR_MAX_THREADS",
    "polars": "POLARS_MAX_THREADS",
    "libgomp": "OMP_NUM_THREADS",
    "libiomp": "OMP_NUM_THREADS",
    "libomp": "OMP_NUM_THREADS",
}


def thread_hint():
    """The variables that keep loaded libraries from starting threads, as a hint."""
    with open("/proc/self/maps") as file:
        files = {line.rstrip().rpartition("/")[2] for line in file if "/" in line}
    found = [library for library in THREADED if any(library in file for file in files)]
    if not found:
        return ""
    settings = " ".join(dict.fromkeys(f"{THREADED[library]}=1" for library in found))
    return f"{', '.join(found)} may have started them when it was loaded: set {settings} (Builder::env). "


def run(control, keep, allow_threads):
    """Serve FORK. Returns only in a new worker: its job socket."""
    threads = thread_count()
    if threads != 1 and not allow_threads:
        fatal(
            control,
            f"the template has {threads} threads ({', '.join(other_threads())}); a fork would copy locks "
            f"without their owners. {thread_hint()}Start threads in an after_fork function, start every worker anew (mode exec), or, in a pool of your own, call Launch::allow_threads",
        )
    # Loaded objects stay in pages that no garbage collection writes to, so the pages remain shared with the workers.
    weakref = sys.modules.get("weakref")
    STATE.inherited = list(weakref.finalize._registry) if weakref else []
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    return _Template(control, keep, threads).serve()


class _Template:
    def __init__(self, control, keep, threads):
        self.control, self.keep = control, keep
        # pid -> (slot, pidfd or None)
        self.children = {}
        self.term_read, self.term_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self.term_write, warn_on_full_buffer=False)
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        self.poll = select.poll()
        self.poll.register(control, select.POLLIN)
        self.poll.register(self.term_read, select.POLLIN)
        rss = _rss_kib()
        sdk = f"python/{sys.version_info.major}.{sys.version_info.minor}".encode()
        self.tell(struct.pack("<BHHIQ", READY, frames.VERSION, min(threads, 65535), os.getpid(), rss) + sdk)

    def tell(self, message, fds=()):
        try:
            if fds:
                socket.send_fds(self.control, [message], fds)
            else:
                self.control.send(message)
        except OSError:
            self.end()

    def serve(self):
        while True:
            blind = any(pidfd is None for _, pidfd in self.children.values())
            ready = [fd for fd, _ in self.poll.poll(50 if blind else None)]
            # The program may have handlers of other signals.
            if self.term_read in ready and signal.SIGTERM in os.read(self.term_read, 512):
                self.end()
            if blind or any(fd not in (self.control.fileno(), self.term_read) for fd in ready):
                self.reap()
            if self.control.fileno() in ready:
                sock = self.obey()
                if sock is not None:
                    return sock

    def obey(self):
        message, fds, _, _ = socket.recv_fds(self.control, 4096, 4)
        if not message:
            self.end()
        if message[0] != FORK:
            for fd in fds:
                os.close(fd)
            return None
        (slot,) = struct.unpack_from("<I", message, 1)
        if len(fds) < 2:
            # The descriptors did not fit into this process.
            for fd in fds:
                os.close(fd)
            self.tell(struct.pack("<BIi", FAILED, slot, EMFILE))
            return None
        try:
            pid = os.fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            self.tell(struct.pack("<BIi", FAILED, slot, error.errno or 0))
            return None
        if pid == 0:
            return self.become_worker(fds[0], fds[1], _SETUP.unpack_from(message, 5))
        for fd in fds:
            os.close(fd)
        try:
            # The child does the same. Whichever is first, the group exists before it can be killed.
            os.setpgid(pid, pid)
        except OSError:
            pass
        try:
            pidfd = os.pidfd_open(pid)
            self.poll.register(pidfd, select.POLLIN)
        except OSError:
            pidfd = None
        self.children[pid] = (slot, pidfd)
        self.tell(struct.pack("<BII", FORKED, slot, pid), [] if pidfd is None else [pidfd])
        return None

    def reap(self):
        for pid, (slot, pidfd) in list(self.children.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # Grandchildren first, while the zombie still holds the group's number.
            _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            if pidfd is not None:
                self.poll.unregister(pidfd)
                os.close(pidfd)
            del self.children[pid]
            code = os.waitstatus_to_exitcode(status)
            self.tell(struct.pack("<BIIiQ", EXITED, slot, pid, code, usage.ru_maxrss))

    def end(self):
        for pid in self.children:
            _kill_group(pid)
        # The template's own exit functions have a second; there may be no parent left to end this process.
        _set_signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(1)
        STATE.inherited = []
        run_exit_functions()
        os._exit(0)

    def become_worker(self, job, log, setup):
        template = os.getppid()
        os.setpgid(0, 0)
        _die_with(template)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.set_wakeup_fd(-1)
        _set_signal(signal.SIGTERM, signal.SIG_DFL)
        self.control.detach()
        _close_all_except([job, *self.keep])
        try:
            _apply(setup)
        except OSError as error:
            os.write(job, frames.error(0, "setup", f"limits or sandbox: {error}"))
            os._exit(1)
        if setup[6:8] != _SAME_USER:
            # A change of user clears the death signal.
            _die_with(template)
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=job)


def _kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def _die_with(template):
    _PRCTL(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != template:
        os._exit(0)


def _close_all_except(keep):
    start = 3
    for fd in sorted({fd for fd in keep if fd > 2}):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, 1 << 20)


def _apply(setup):
    """Limits and privileges; as in the Rust SDK."""
    address_space, cpu, nofile, core, nice, oom, uid, gid, flags = setup
    if oom != -(1 << 31):
        try:
            file = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(file, b"%d" % oom)
            os.close(file)
        except OSError:
            pass  # best effort: lowering it needs privilege
    if nice:
        os.nice(nice)
    if (uid, gid) != _SAME_USER:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if flags & 1:
        _PRCTL(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limits = (
        (resource.RLIMIT_CORE, core),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_NOFILE, nofile),
        (resource.RLIMIT_AS, address_space),
    )
    for which, limit in limits:
        if limit != _NONE:
            resource.setrlimit(which, (limit, limit))


def _rss_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024
