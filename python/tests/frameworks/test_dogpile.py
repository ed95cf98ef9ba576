"""`cattlegrid.dogpile` beyond dogpile's own tests: processes, deaths, tags, many keys, and the program of docs/python-dogpile.md."""

import os
import runpy
import signal
import subprocess
import sys
import threading
import time

import pages
import pytest
from conftest import started
from servers import until

pytest.importorskip("dogpile.cache")
pytestmark = pytest.mark.timeout(120)

from dogpile.cache import make_region as dogpiles_region  # noqa: E402
from dogpile.cache import register_backend  # noqa: E402
from dogpile.cache.api import NO_VALUE  # noqa: E402
from dogpile.cache.region import _backend_loader  # noqa: E402

from cattlegrid.client import NoTags, UsageError  # noqa: E402
from cattlegrid.dogpile import TagInvalidation, make_region  # noqa: E402

try:
    _backend_loader.load("cattlegrid.dogpile")
except Exception:
    register_backend("cattlegrid.dogpile", "cattlegrid.dogpile", "CattlegridBackend")

PROGRAM = """
import sys, time
from cattlegrid.dogpile import CattlegridBackend, make_region
from dogpile.cache import register_backend
try:
    register_backend("cattlegrid.dogpile", "cattlegrid.dogpile", "CattlegridBackend")
except Exception:
    pass
region = make_region().configure("cattlegrid.dogpile", arguments={"url": sys.argv[1], "ttl": 60, "lock_timeout": 20})
def create(*keys):
    print("computes", *keys, flush=True)
    time.sleep(float(sys.argv[2]))
    return [f"value of {key}" for key in keys] if keys else "made"
if len(sys.argv) > 3:
    print("got", region.get_or_create_multi(sys.argv[3:], create), flush=True)
else:
    print("got", region.get_or_create("page:1", create), flush=True)
"""


def start(environment, *arguments):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, text=True)


def region(server, make=make_region, expiration_time=None, **arguments):
    made = make()
    return made.configure(
        "cattlegrid.dogpile", expiration_time=expiration_time, arguments={"url": server.address, "ttl": 60, **arguments}
    )


def test_processes_compute_once(server, environment):
    running = [start(environment, server.address, 0.5) for _ in range(6)]
    lines = [line for process in running for line in process.communicate()[0].splitlines()]
    assert lines.count("computes") == 1 and lines.count("got made") == 6, lines


def test_processes_compute_each_of_many_keys_once(server, environment):
    lists = [["page:1", "page:2", "page:3"], ["page:3", "page:2", "page:4"], ["page:1", "page:4", "page:5"], ["page:1", "page:2", "page:3"]]
    running = [start(environment, server.address, 0.5, *keys) for keys in lists]
    lines = [line for process in running for line in process.communicate()[0].splitlines()]
    computed = [key for line in lines if line.startswith("computes") for key in line.split()[1:]]
    assert sorted(computed) == ["page:1", "page:2", "page:3", "page:4", "page:5"], lines
    assert [line for line in lines if line.startswith("got")] == [f"got {[f'value of {key}' for key in keys]}" for keys in lists]


def test_a_process_that_dies_frees_its_key(ruled, environment):
    first = start(environment, ruled.address, 30)
    assert first.stdout.readline() == "computes\n"
    second = start(environment, ruled.address, 0)
    time.sleep(0.5)
    os.kill(first.pid, signal.SIGKILL)
    begun = time.monotonic()
    assert second.communicate()[0].splitlines() == ["computes", "got made"]
    assert time.monotonic() - begun < 5
    first.wait()


def test_lock_timeout_frees_the_key_of_a_process_that_died(memcached, environment):
    first = start(environment, memcached.address, 30)
    assert first.stdout.readline() == "computes\n"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    mutex = region(memcached).backend.get_mutex("page:1")
    assert mutex.acquire(False) is False and mutex.locked()


def test_invalidate_is_known_to_all_processes(ruled):
    one, other = region(ruled, tag="reports"), region(ruled, tag="reports")
    assert one.get_or_create("page:1", lambda: 1) == 1 == other.get_or_create("page:1", lambda: 2)
    other.invalidate()
    assert one.get("page:1") is NO_VALUE
    assert one.get_or_create("page:1", lambda: 3) == 3
    # Values that were computed before the invalidation are not stored.
    with pytest.raises(ZeroDivisionError):
        one.get_or_create("page:2", lambda: 1 / 0)

    def create():
        other.invalidate()
        return "old"

    assert one.get_or_create("page:2", create) == "old"
    assert one.get("page:2") is NO_VALUE
    stock = dogpiles_region()
    stock.configure("cattlegrid.dogpile", arguments={"url": ruled.address, "tag": "reports"}, region_invalidator=TagInvalidation(stock))
    stock.invalidate()
    assert one.get("page:1") is NO_VALUE


@pytest.mark.parametrize("expiration_time", [None, -1, 30])
def test_soft_invalidation(ruled, expiration_time):
    one = region(ruled, tag="reports", expiration_time=expiration_time)
    assert one.get_or_create("page:1", lambda: "old") == "old"
    one.invalidate(hard=False)
    made, results = [], []

    def create():
        made.append(1)
        time.sleep(0.4)
        return "new"

    def ask():
        results.append(region(ruled, tag="reports", expiration_time=expiration_time).get_or_create("page:1", create))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["new"] + ["old"] * 5 and len(made) == 1
    assert one.get("page:1") == "new"


def test_tags_of_keys(ruled):
    one = region(ruled, tag="reports", tags=lambda key: [key.split(":")[1]])
    one.set("page:7", 1)
    assert one.get_or_create_multi(["page:7", "page:8"], lambda *keys: [f"made {key}" for key in keys]) == [1, "made page:8"]
    one.backend.cache.invalidate("8")
    assert one.get_multi(["page:7", "page:8"]) == [1, NO_VALUE]


def test_servers_without_tags(memcached):
    with pytest.raises(NoTags):
        region(memcached, tag="reports").set("a", 1)
    with pytest.raises(UsageError):
        TagInvalidation(region(memcached)).invalidate()


def test_values_that_dogpile_takes_for_expired_are_computed_once(server):
    ttl = 0.5
    region(server, expiration_time=ttl).get_or_create("page:1", lambda: "old")
    time.sleep(0.6)
    made, results = [], []

    def create():
        made.append(1)
        time.sleep(0.3)
        return "new"

    threads = [
        threading.Thread(target=lambda: results.append(region(server, expiration_time=ttl).get_or_create("page:1", create))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and results.count("old") == 5, results


def test_should_cache_fn_and_async_creation(server):
    one = region(server)
    assert one.get_or_create("page:1", lambda: None, should_cache_fn=lambda value: value is not None) is None
    assert one.get("page:1") is NO_VALUE
    assert one.get_or_create_multi(["page:1", "page:2"], lambda *keys: [None, 2], should_cache_fn=bool) == [None, 2]
    assert one.get_multi(["page:1", "page:2"]) == [NO_VALUE, 2]
    done = threading.Event()

    def runner(cache, key, creator, mutex):
        def run():
            try:
                cache.set(key, creator())
            finally:
                mutex.release()
                done.set()

        threading.Thread(target=run).start()

    later = make_region(async_creation_runner=runner)
    later.configure("cattlegrid.dogpile", expiration_time=0.1, arguments={"url": server.address, "ttl": 60})
    assert later.get_or_create("page:3", lambda: "first") == "first"
    time.sleep(0.2)
    assert later.get_or_create("page:3", lambda: "second") == "first"
    assert done.wait(5)
    until(lambda: later.get("page:3", ignore_expiration=True) == "second", 5, "the value was made in the background")


def test_program_of_the_page(tmp_path):
    server = started("rules", rules=pages.rules("python-dogpile.md"))
    try:
        assert pages.write("python-dogpile.md", tmp_path, server.address) == ["region.py"]
        runpy.run_path(str(tmp_path / "region.py"))
    finally:
        server.stop()
