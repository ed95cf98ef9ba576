"""Servers, relays and callers for the tests of the client."""

import asyncio
import contextlib
import functools
import inspect
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from cattlegrid.client import AsyncCache, Cache

sys.path.append(str(Path(__file__).resolve().parents[1] / "frameworks"))
from servers import free_port  # noqa: E402

KINDS = os.environ.get("CATTLEGRID_TEST_SERVERS", "memcached plain rules").split()
RULES = """
[[rule]]
match = "h:{id}"
hold = "4s"
grace = "30s"
"""
PATIENT = 20.0
"""Timeout of the clients of these tests, in seconds: the machine may be busy."""


def missing(what):
    """Skips the test, unless CATTLEGRID_SET_UP says that all is there."""
    (pytest.fail if os.environ.get("CATTLEGRID_SET_UP") else pytest.skip)(f"{what} is missing")


def binary():
    path = os.environ.get("CATTLEGRID_BIN")
    if not path or not Path(path).exists():
        missing("the server's binary: set CATTLEGRID_BIN")
    # Tests may run in other directories.
    return str(Path(path).resolve())


class Server:
    """A server: memcached, Cattlegrid without a rule file (plain), or with one (rules)."""

    def __init__(self, kind, rules=RULES, options=(), port=None):
        self.kind = kind
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._directory = tempfile.mkdtemp(prefix="cattlegrid-")
        self._rules, self._options = rules, list(options)
        self.process = None
        self.start()

    @property
    def has_rule(self):
        return self.kind == "rules"

    def start(self):
        if self.kind == "memcached":
            program = shutil.which("memcached") or missing("memcached")
            command = [program, "-l", "127.0.0.1", "-p", str(self.port), *self._options]
            if os.geteuid() == 0:
                command += ["-u", "nobody"]
        else:
            command = [binary(), "-l", "127.0.0.1", "-p", str(self.port), *self._options]
            if self.kind == "rules":
                path = Path(self._directory, "rules.toml")
                path.write_text(self._rules)
                command += ["--config", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self.process.poll() is not None:
                raise RuntimeError(f"{command} has ended")
            time.sleep(0.02)
        raise RuntimeError(f"{command} does not listen")

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, line):
        """The reply to a line of the text protocol, up to END or an error or a single line."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            sock.settimeout(10)
            sock.sendall(line if isinstance(line, bytes) else line.encode() + b"\r\n")
            return receive(sock)

    def item(self, key):
        """Flags and bytes of an item as the server has it; None: there is none."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            sock.settimeout(10)
            sock.sendall(b"mg %b f v\r\n" % key.encode())
            reply = receive(sock)
        if not reply.startswith(b"VA "):
            return None
        head, _, rest = reply.partition(b"\r\n")
        words = head.split()
        return int(words[2][1:]), rest[: int(words[1])]

    def statistic(self, group, name):
        for line in self.ask(f"stats {group}".strip()).decode().splitlines():
            if line.startswith(f"STAT {name} "):
                return int(line.split()[2])
        raise KeyError(name)

    def until_held(self, count):
        """Until this many requests are held; of a server without rules at once."""
        if self.has_rule:
            until(lambda: self.statistic("cattlegrid", "held") >= count)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def receive(sock):
    data = b""
    while True:
        part = sock.recv(1 << 16)
        data += part
        if (
            not part
            or data.endswith((b"END\r\n", b"EN\r\n"))
            or (data.endswith(b"\r\n") and not data.startswith((b"STAT", b"VA")))
        ):
            return data
        if data.startswith(b"VA ") and b"\r\n" in data:
            head, _, rest = data.partition(b"\r\n")
            if len(rest) >= int(head.split()[1]) + 2:
                return data


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it does not happen")
        time.sleep(0.005)


def below(most, measure, rounds=5):
    """That a time is below ``most`` seconds. It is measured again when it is not: a machine that does other work is not
    busy in each round, and what waits for a time waits for it each time."""
    took = []
    while not took or took[-1] >= most:
        assert len(took) < rounds, took
        took.append(measure(len(took)))


def in_time(seconds, act, rounds=5):
    """The result of ``act``, which stores what is there for ``seconds`` and looks at it: what it finds in less time
    counts. It gets a number, for keys of its own in each round."""
    for number in range(rounds):
        began = time.monotonic()
        try:
            return act(number)
        except AssertionError:
            if time.monotonic() - began < seconds or number + 1 == rounds:
                raise


class Relay:
    """Between clients and a server: counts round trips, cuts connections, and answers in its own way."""

    def __init__(self, port, change=None):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.change = change
        """Called with the bytes of the server: what the client gets, or None to cut the connection."""
        self._trips = 0
        self._pairs = []
        self.is_deaf = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                return
            self._pairs.append((client, server))
            state = {"asks": False}
            threading.Thread(target=self._copy, args=(client, server, state, True), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, state, False), daemon=True).start()

    def _copy(self, source, to, state, is_request):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                if is_request:
                    if not state["asks"]:
                        self._trips += 1
                    state["asks"] = True
                else:
                    state["asks"] = False
                    if self.is_deaf:
                        continue
                    if self.change is not None:
                        data = self.change(data)
                        if data is None:
                            break
                to.sendall(data)
        except OSError:
            pass
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def round_trips(self):
        """Requests that were sent since the last call, those that were sent together counted once."""
        trips, self._trips = self._trips, 0
        return trips

    def cut(self):
        """Ends all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def close(self):
        self._listener.close()
        self.cut()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Tasks:
    """An AsyncCache behind blocking calls: each is a task of one loop, so that what threads do is what tasks do."""

    def __init__(self, loop, servers, **settings):
        self._loop = loop
        self.inner = asyncio.run_coroutine_threadsafe(self._make(servers, settings), loop).result(30)

    async def _make(self, servers, settings):
        return AsyncCache(servers, **settings)

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if not callable(method):
            return method

        @functools.wraps(method)
        def call(*args, **kwargs):
            args = [self._function(each) for each in args]
            kwargs = {key: self._function(each) if key in ("fn", "wait") else each for key, each in kwargs.items()}

            async def work():
                result = method(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result

            return asyncio.run_coroutine_threadsafe(work(), self._loop).result(120)

        return call

    def _function(self, given):
        """A function that blocks, as a coroutine."""
        if not inspect.isfunction(given) and not inspect.ismethod(given):
            return given

        async def computes(*args):
            return await self._loop.run_in_executor(None, functools.partial(given, *args))

        return computes


class Caches:
    """Makes caches, blocking or of asyncio, with the same calls."""

    def __init__(self, is_async):
        self.is_async = is_async
        self._made = []
        self._loop = None
        if is_async:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()

    def __call__(self, server, **settings):
        address = getattr(server, "address", server)
        settings.setdefault("timeout", PATIENT)
        settings.setdefault("connect_timeout", PATIENT)
        made = Tasks(self._loop, address, **settings) if self.is_async else Cache(address, **settings)
        self._made.append(made)
        return made

    def close(self):
        for cache in self._made:
            cache.close()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(daemon=True)
        self._work = functools.partial(function, *args, **kwargs)
        self.began = time.monotonic()
        self.took = None
        self._result = self._error = None
        self.start()

    def run(self):
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        self.took = time.monotonic() - self.began

    def result(self, timeout=60):
        self.join(timeout)
        if self.is_alive():
            raise AssertionError("it does not return")
        if self._error is not None:
            raise self._error
        return self._result


class Held:
    """A computation that begins, and ends when it is told to."""

    def __init__(self, cache, key, value, **options):
        self._begun, self._finish = threading.Event(), threading.Event()
        self._value = value
        self._call = Call(cache.get_or_compute, key, self._compute, outcome=True, **options)

    def _compute(self):
        self._begun.set()
        assert self._finish.wait(60), "the test is over"
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def begun(self):
        if not self._begun.wait(30):
            raise AssertionError(f"it does not begin: {self._call.result(1)}")
        return self

    def finish(self):
        self._finish.set()
        return self._call.result()

    def let_go(self):
        self._finish.set()


def unused(*_):
    raise AssertionError("this client does not compute")
