"""Computing over many processes: Python's, and Python's with Rust's; processes that are killed, and those that fork."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from herd_support import Call, Server, free_port, missing, until, unused

from cattlegrid.client import Cache

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
ROOT = HERE.parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


class Process:
    """A process with the client, of Python or Rust."""

    def __init__(self, server, key, ledger, *options, rust=False, is_async=False):
        self.is_rust = rust
        if rust:
            command = [fixture(), server.address, "compute", key, "--ledger", str(ledger), *options]
        else:
            command = [
                sys.executable,
                str(HERE / "herd_program.py"),
                server.address,
                key,
                "--ledger",
                str(ledger),
                *options,
            ]
            command += ["--asyncio"] if is_async else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, bufsize=1
        )
        self._is_ready = False

    def ready(self):
        """It has connected. Several processes start side by side: only then are they waited for."""
        if not self._is_ready:
            self.until("ready")
            self._is_ready = True
        return self

    def until(self, word):
        """The first line that begins so."""
        while True:
            line = self._process.stdout.readline()
            assert line, f"it has ended before {word}"
            if line.startswith(word):
                return line

    def go(self):
        self.ready()
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self

    def ended(self):
        """Outcome and value."""
        while True:
            line = self._process.stdout.readline()
            assert line, "it has ended"
            words = line.split()
            if words[0] in ("computes", "asked", "ready"):
                continue
            return (words[0], words[3] if self.is_rust and len(words) > 3 else words[-1])

    def kill(self):
        self._process.kill()

    def signal(self, number):
        self._process.send_signal(number)

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def crew():
    """Makes processes, and ends them."""
    made = []

    def make(*args, **kwargs):
        made.append(Process(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "ledger"


def computed(ledger):
    return ledger.read_text().splitlines()


def fixture():
    path = os.environ.get("CLIENT_FIXTURE")
    for place in (
        [Path(path)] if path else [ROOT / "target" / kind / "client-fixture" for kind in ("fast", "debug", "release")]
    ):
        if place.exists():
            return str(place)
    return missing("the Rust client's program: set CLIENT_FIXTURE")


def test_rust_and_python_are_one_herd(server, crew, ledger):
    options = ("--takes", "500", "--compute-time", "10000")
    kinds = [{"rust": True}, {}, {"is_async": True}] * 3
    processes = [crew(server, "h:cold", ledger, *options, **kind) for kind in kinds]
    for process in processes:
        process.ready()
    for process in processes:
        process.go()
    ended = [process.ended() for process in processes]
    assert len(computed(ledger)) == 1, ended
    assert len({value for _, value in ended}) == 1, ended
    assert [kind for kind, _ in ended].count("computed") == 1


@pytest.mark.parametrize("first", [{"rust": True}, {}, {"is_async": True}])
def test_each_reads_and_refreshes_what_the_other_has_stored(memcached, crew, ledger, first, blocking):
    """An expired value is computed by one, and the other gets the old one meanwhile."""
    options = ("--takes", "1500", "--compute-time", "8000", "--value", "new")
    kinds = ({"rust": True}, {}, {"is_async": True})
    one, *others = [crew(memcached, "k", ledger, *options, **kind) for kind in (first, *kinds)]
    for process in (one, *others):
        process.ready()
    blocking(memcached, serializer="text").get_or_compute("k", lambda: "old", ttl=1, compute_time=8)
    time.sleep(1.1)
    one.go().until("computes")
    for other in others:
        other.go()
    for other in others:
        assert other.ended()[1] == "old"
    assert one.ended()[1] == "new"
    for other in others:
        assert other.go().ended()[1] == "new"
    assert len(computed(ledger)) == 1


@pytest.mark.parametrize("winner", [{}, {"is_async": True}])
def test_the_winner_is_killed(server, crew, ledger, winner):
    """With a rule the next computes at once, else when the lock's time is over."""
    lock = 9000 if server.has_rule else 1500
    options = ("--takes", "50", "--compute-time", "10000", "--wait", "30000")
    others = [crew(server, "h:killed", ledger, *options, is_async=n % 2 == 1) for n in range(4)]
    dying = crew(server, "h:killed", ledger, "--mode", "hang", "--compute-time", str(lock), **winner)
    for process in (*others, dying):
        process.ready()
    dying.go().until("computes")
    began = time.monotonic()
    for other in others:
        other.go()
    time.sleep(0.3)
    killed = time.monotonic()
    dying.kill()
    ended = [other.ended() for other in others]
    took = time.monotonic() - killed
    assert len({value for _, value in ended}) == 1, ended
    assert len(computed(ledger)) == 2, "the winner and one more"
    print(f"{server.kind}: computed {took:.3f} s after the kill")
    if server.has_rule:
        assert took < 7, "the time of the lock is 9 s"
    else:
        assert time.monotonic() - began > 0.5


def test_the_winner_is_stopped_and_comes_back(server, crew, ledger):
    """A stopped process keeps its connection: the next computes when the lock's time is over, and the late value is not
    stored."""
    winner = crew(server, "h:stopped", ledger, "--takes", "2500", "--compute-time", "1500", "--value", "late")
    options = ("--compute-time", "10000", "--wait", "30000", "--value", "next")
    others = [crew(server, "h:stopped", ledger, *options) for _ in range(3)]
    for other in others:
        other.ready()
    winner.go().until("computes")
    winner.signal(signal.SIGSTOP)
    for other in others:
        other.go()
    assert {other.ended()[1] for other in others} == {"next"}
    winner.signal(signal.SIGCONT)
    assert winner.ended()[1] == "late"
    with Cache(server.address, serializer="text") as cache:
        assert cache.get("h:stopped") == "next"


def test_a_failure_in_one_process_lets_the_next_compute(server, crew, ledger):
    fails = crew(server, "h:fails", ledger, "--mode", "fail", "--takes", "300", "--compute-time", "20000")
    other = crew(server, "h:fails", ledger, "--compute-time", "20000", "--wait", "20000").ready()
    fails.go().until("computes")
    other.go()
    assert fails.ended()[0] == "error"
    began = time.monotonic()
    assert other.ended()[0] == "computed"
    assert time.monotonic() - began < 15, "the time of the lock is 20 s"


APPLICATION = """
import os, time
from cattlegrid.client import AsyncCache, Cache

cache = Cache("{address}", serializer="text", timeout=20, connect_timeout=20)
{preload}

def compute():
    with open("{ledger}", "a") as ledger:
        ledger.write(f"{{os.getpid()}}\\n")
    time.sleep(0.5)
    return "the page"

def application(environ, start_response):
    page = cache.get_or_compute("h:page", compute, compute_time=10)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{{os.getpid()}} {{page}}".encode()]
"""


@pytest.mark.parametrize("preload", [False, True])
def test_eight_workers_of_gunicorn_compute_once(server, tmp_path, preload):
    pytest.importorskip("gunicorn")
    ledger = tmp_path / "ledger"
    # With preload the connection is made, and used, before the fork.
    used = 'cache.set("n:warm", "1"); assert cache.get("n:warm") == "1"' if preload else ""
    text = APPLICATION.format(address=server.address, ledger=ledger, preload=used)
    (tmp_path / "program.py").write_text(text)
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--workers", "8", "--bind", f"127.0.0.1:{port}", "program:application"]
    command += ["--worker-tmp-dir", "/dev/shm"] if Path("/dev/shm").exists() else []
    command += ["--preload"] if preload else []
    gunicorn = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        booted = 0
        while booted < 8:
            line = gunicorn.stderr.readline()
            assert line, "gunicorn has ended"
            booted += "Booting worker" in line
        threading.Thread(target=gunicorn.stderr.read, daemon=True).start()

        def get():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
                return page.read().decode()

        pages = [call.result() for call in [Call(get) for _ in range(64)]]
        assert {page.partition(" ")[2] for page in pages} == {"the page"}
        assert len(ledger.read_text().splitlines()) == 1
    finally:
        gunicorn.terminate()
        gunicorn.wait(20)


def in_child(cache, queue, key):
    try:
        queue.put(cache.get_or_compute(key, unused, compute_time=10, wait=20))
    except BaseException as error:
        queue.put(repr(error))


def test_a_cache_works_after_a_fork(server, blocking):
    """The child has connections of its own, and gives nothing up that is the parent's."""
    cache = blocking(server)
    cache.set("k", 1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = []

    def compute():
        # The child is forked while its parent computes: it waits for that, as others do.
        children.extend(context.Process(target=in_child, args=(cache, queue, "h:1")) for _ in range(3))
        for child in children:
            child.start()
        time.sleep(0.7)
        return "of the parent"

    assert cache.get_or_compute("h:1", compute, compute_time=10, outcome=True).stored
    assert [queue.get(timeout=30) for _ in children] == ["of the parent"] * 3
    for child in children:
        child.join(30)
    for number in range(50):
        assert cache.set(f"n:{number}", number)
        assert cache.get(f"n:{number}") == number


def test_a_fork_keeps_the_lease_of_its_parent(ruled, blocking):
    """A child that ends closes its end of the connections, and the lease stays."""
    cache = blocking(ruled)
    token = cache.fetch_or_compute("h:1", 60).token
    child = os.fork()
    if child == 0:
        os._exit(0 if token.key == b"h:1" else 1)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.3)
    assert type(blocking(ruled).fetch_or_compute("h:1", wait=0)).__name__ == "Busy"
    assert cache.deliver(token, 1) is None


def test_the_same_under_asyncio(ruled, tmp_path):
    """A program with AsyncCache that forks in a computation."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import asyncio, os
from cattlegrid.client import AsyncCache

async def main():
    cache = AsyncCache("{ruled.address}", timeout=20)
    def compute():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return 1
    outcome = await cache.get_or_compute("h:1", compute, compute_time=20, outcome=True)
    assert outcome.stored, outcome
    assert await cache.get("h:1") == 1
    child = os.fork()
    if child == 0:
        # A loop of its own.
        async def other():
            assert await cache.get("h:1") == 1
            assert await cache.get_or_compute("h:2", lambda: 2) == 2
            await cache.close()
        asyncio.events._set_running_loop(None)
        asyncio.set_event_loop(None)
        asyncio.run(other())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for n in range(20):
        assert await cache.get("h:2") == 2
    await cache.close()

asyncio.run(main())
"""
    )
    subprocess.run([sys.executable, str(program)], env=ENVIRONMENT, check=True, timeout=60)


def rust_ring():
    path = os.environ.get("CATTLEGRID_CLIENT_RING")
    for place in (
        [Path(path)]
        if path
        else [ROOT / "target" / kind / "examples" / "ring" for kind in ("fast", "debug", "release")]
    ):
        if place.exists():
            return str(place)
    return missing("the Rust client's example: set CATTLEGRID_CLIENT_RING")


@pytest.mark.parametrize("sharding", ["ketama_weighted", "ketama", "rendezvous"])
def test_keys_have_the_servers_that_the_rust_client_gives_them(sharding, blocking):
    program = rust_ring()
    with Server("memcached") as one, Server("memcached") as two, Server("plain") as three:
        servers = [one.address, f"{two.address}=3", f"{three.address}=2"]
        keys = [f"page:{number}" for number in range(300)]
        lines = "".join(f"{key}\n" for key in keys)
        subprocess.run([program, sharding, "set", *servers], input=lines, text=True, check=True, timeout=60)
        cache = blocking(servers, sharding=sharding, serializer="text")
        assert cache.get_many(keys) == dict(zip(keys, keys))
        cache.set_many({f"own:{key}": "python" for key in keys})
        lines = "".join(f"own:{key}\n" for key in keys)
        read = subprocess.run(
            [program, sharding, "get", *servers], input=lines, text=True, check=True, timeout=60, stdout=subprocess.PIPE
        )
        assert len(re.findall("\tpython$", read.stdout, re.M)) == 300


def test_pylibmc_finds_the_same_keys(blocking):
    pylibmc = pytest.importorskip("pylibmc")
    with Server("memcached") as one, Server("memcached") as two, Server("memcached") as three:
        addresses = [server.address for server in (one, two, three)]
        for sharding in ("ketama_weighted", "ketama"):
            other = pylibmc.Client(addresses, behaviors={sharding: True})
            keys = [f"{sharding}:{number}" for number in range(300)]
            other.set_multi(dict.fromkeys(keys, b"pylibmc"))
            cache = blocking(addresses, sharding=sharding, serializer="bytes")
            assert len(cache.get_many(keys)) == 300
    assert shutil.which("memcached")


__all__ = ["until"]
