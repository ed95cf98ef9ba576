"""Starting, watching and talking to the server under test.

A [`Server`] is one process, cattlegrid or memcached, on a port of its own; it is stopped by its pid.
A [`Raw`] is a bare connection that sends bytes and reads replies up to a known end, with a deadline.
"""

import errno
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")

MIB = 1 << 20

PROMPT = 10.0
"""Seconds within which something comes that usually takes milliseconds. Not to be taken for what it takes: the tests run beside
compilers and other tests. What must come at once is asserted by what comes before and after it, or in `bench/`."""

ITEM_MAX = 1 << 20
"""Largest item (`-I`) by default: 1 MiB, of which memcached takes its item header and the key."""

ALL_BYTES = bytes(range(256))
NASTY = ALL_BYTES + b"\r\nEND\r\nVALUE x 0 1\r\nget x\r\n\r\n\0" + ALL_BYTES[::-1]
"""Every byte value, line ends, and text that looks like replies and commands."""


def wait_until(what, condition, seconds=2 * PROMPT):
    """Polls `condition` until it is true; its value. Fails, saying `what`, after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > end
        got = condition()
        if got:
            return got
        if is_last:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def tool(name):
    """Path of an installed program; its absence is a failure, never a skip."""
    path = shutil.which(name)
    assert path, f"{name} is not installed; run conformance/setup.sh"
    return path


def allow_files(count):
    """Raises the limit on open files of this process (and those it starts) to at least `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            hard = count  # needs root
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def free_port(family=socket.AF_INET, host="127.0.0.1"):
    """A port that nothing uses, and that nothing takes before a server does: the system gives no connection one below 32768
    by itself (Linux), and servers' usual ones are below 20000."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket(family) as own:
            try:
                own.bind((host, port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise


def kind_of(binary):
    """"memcached" or "cattlegrid", by what `-V` prints."""
    out = subprocess.run([binary, "-V"], capture_output=True, text=True, timeout=60)
    return "memcached" if out.stdout.startswith("memcached ") and "cattlegrid" not in out.stdout else "cattlegrid"


class Server:
    """One server process.

    `args` are added after the defaults `-p -1 -U 0 -l 127.0.0.1`; an argument list that has `-l`, `-p`
    or `-s` of its own replaces that default. `port` is the first TCP port, None with a unix socket.
    """

    def __init__(self, binary, kind, args=(), env=None, stderr=None):
        """`stderr`: a descriptor in place of the log file."""
        self.binary, self.kind, self.stderr = str(binary), kind, stderr
        self.dir = tempfile.mkdtemp(prefix="conformance-")
        os.chmod(self.dir, 0o777)  # memcached drops root before it writes its port file
        self.port_file = os.path.join(self.dir, "ports")
        self.log_path = os.path.join(self.dir, "log")
        args = [str(a) for a in args]
        command = [self.binary]
        if kind == "cattlegrid":
            command += shlex.split(os.environ.get("CATTLEGRID_ARGS", ""))
        if kind == "memcached" and os.geteuid() == 0 and "-u" not in args:
            command += ["-u", "nobody"]
        self.unix = args[args.index("-s") + 1] if "-s" in args else None
        if not self.unix:
            if "-p" not in args:
                command += ["-p", "-1"]
            command += ["-U", "0"]
            if "-l" not in args:
                command += ["-l", "127.0.0.1"]
        self.command = command + args
        self.env = dict(os.environ, MEMCACHED_PORT_FILENAME=self.port_file, **(env or {}))
        self.process = None
        self.start()

    def start(self):
        if os.path.exists(self.port_file):
            os.unlink(self.port_file)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log if self.stderr is None else self.stderr, stdin=subprocess.DEVNULL, env=self.env, cwd=self.dir
            )
        try:
            wait_until(f"{self.command} listens", self._listening, 60)
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}\n{self.log()}") from None

    def _listening(self):
        assert self.process.poll() is None, f"{self.command} left with {self.process.returncode}\n{self.log()}"
        if self.unix:
            self.port = None
            try:
                self.connect().close()
            except OSError:
                return False
            return True
        try:
            with open(self.port_file) as f:
                self.ports = re.findall(r"^TCP (INET6?): (\d+)$", f.read(), re.M)
        except FileNotFoundError:
            return False
        self.ports = [(family, int(port)) for family, port in self.ports]
        self.port = self.ports[0][1] if self.ports else None
        return bool(self.ports)

    @property
    def pid(self):
        return self.process.pid

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()[-20000:]

    def running(self):
        return self.process.poll() is None

    def rss(self):
        """Resident bytes, from /proc."""
        with open(f"/proc/{self.pid}/statm") as f:
            return int(f.read().split()[1]) * PAGE

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        """How many are open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def settled_descriptors(self):
        """How many are open when their number changes no more: one is closed after its connection is counted. Since it has
        changed last, each thread has had nothing left to do."""
        counts, idle = [], set()

        def settled():
            count = self.descriptors()
            if counts and counts[-1] != count:
                counts.clear()
                idle.clear()
            counts.append(count)
            idle.update(self._sleeping())
            return len(counts) >= 10 and idle.issuperset(os.listdir(f"/proc/{self.pid}/task"))

        wait_until("no descriptor is closed any more", settled)
        return counts[-1]

    def _sleeping(self):
        """The numbers of its threads that wait for something."""
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/stat") as f:
                    state = f.read().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state in "SI":
                yield task

    def threads(self):
        """The names of its threads."""
        names = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/comm") as f:
                names.append(f.read().strip())
        return sorted(names)

    def limit_descriptors(self, free):
        """Leaves it this many descriptors more than it has now; returns the limit."""
        # It listens before it has all of its own.
        with self.raw() as c:
            wait_until("only this connection is open", lambda: c.stats()["curr_connections"] == "1")
        self.settled_descriptors()
        limit = max(int(n) for n in os.listdir(f"/proc/{self.pid}/fd")) + 1 + free
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (limit, hard))
        return limit

    def connect(self, timeout=2 * PROMPT):
        """A connected socket."""
        if self.unix:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(timeout)
            s.connect(self.unix)
            return s
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def raw(self, timeout=2 * PROMPT):
        return Raw(self.connect(timeout))

    def stats(self, argument=""):
        with self.raw() as c:
            return c.stats(argument)

    def signal(self, number):
        self.process.send_signal(number)

    def stop_all_threads(self):
        """Stops the process (SIGSTOP); no thread of it runs any more when this returns."""
        self.signal(signal.SIGSTOP)

        def are_stopped():
            tasks = f"/proc/{self.process.pid}/task"
            texts = [open(f"{tasks}/{thread}/stat").read() for thread in os.listdir(tasks)]
            return all(text.rpartition(")")[2].split()[0] == "T" for text in texts)

        wait_until("its threads are stopped", are_stopped)

    def reload(self):
        """Has it read its files again; they are in force when this returns."""
        generation = lambda: int(self.stats("cattlegrid")["reload_generation"])
        before = generation()
        self.signal(signal.SIGHUP)
        wait_until("the files are in force", lambda: generation() > before, 60)

    def stop(self, seconds=60):
        """SIGTERM, then SIGKILL after `seconds`; the exit status (negative: the signal)."""
        if self.running():
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def clean(self):
        """Ends the process at once and removes its files."""
        if self.running():
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


class Closed(Exception):
    """The server closed the connection; `args[0]` is what came before."""


class Raw:
    """A connection that reads replies by their end. A reply that does not come is an error, never a hang."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def fill(self):
        try:
            got = self.sock.recv(1 << 18)
        except ConnectionError:
            got = b""
        if not got:
            raise Closed(self.buffer)
        self.buffer += got

    def until(self, end):
        while end not in self.buffer:
            self.fill()
        at = self.buffer.index(end) + len(end)
        out, self.buffer = self.buffer[:at], self.buffer[at:]
        return out

    def line(self):
        return self.until(b"\r\n")[:-2]

    def exactly(self, count):
        while len(self.buffer) < count:
            self.fill()
        out, self.buffer = self.buffer[:count], self.buffer[count:]
        return out

    def closed(self, seconds=2 * PROMPT):
        """Everything until the server closes; fails if it does not."""
        self.sock.settimeout(seconds)
        try:
            while True:
                self.fill()
        except Closed as end:
            self.buffer = b""
            return end.args[0]
        except TimeoutError:
            raise AssertionError(f"connection still open after {seconds} s; got {self.buffer[:200]!r}") from None

    def ask(self, data):
        """Sends `data` and `mn`; everything up to the `MN` is the reply."""
        self.send(data + b"mn\r\n")
        return self.until_mn()

    def until_mn(self):
        while not (self.buffer.endswith(b"\r\nMN\r\n") or self.buffer == b"MN\r\n"):
            self.fill()
        out, self.buffer = self.buffer[:-4], b""
        return out

    def set(self, key, value, flags=0, exptime=0):
        self.send(b"set %s %d %d %d\r\n%s\r\n" % (key, flags, exptime, len(value), value))
        return self.line()

    def get(self, key):
        """The value, or None."""
        self.send(b"get %s\r\n" % key)
        head = self.line()
        if head == b"END":
            return None
        word, got_key, _, size = head.split()
        assert word == b"VALUE" and got_key == key, head
        value = self.exactly(int(size))
        rest = self.exactly(7)
        assert rest == b"\r\nEND\r\n", rest
        return value

    def ttl(self, key):
        """Seconds that a value has left (-1: no end), or None."""
        self.send(b"mg %s t\r\n" % key)
        line = self.line()
        assert line == b"EN" or line.startswith(b"HD t"), line
        return None if line == b"EN" else int(line[4:])

    def stats(self, argument=""):
        self.send(b"stats%s\r\n" % (b" " + argument.encode() if argument else b""))
        out = {}
        while (line := self.line()) != b"END":
            assert line.startswith(b"STAT "), line
            _, name, value = (line.decode() + " ").split(" ", 2)
            out[name] = value.strip()
        return out


def version_of(server):
    with server.raw() as c:
        c.send(b"version\r\n")
        return c.line().decode().split(" ", 1)[1]


