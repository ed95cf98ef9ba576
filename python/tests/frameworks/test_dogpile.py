"""`cattlegrid.dogpile` beyond dogpile's own tests: processes, deaths, tags, many keys, and the program of docs/python-dogpile.md."""

import json
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
from cattlegrid.dogpile import TagInvalidation, make_region, name_of  # noqa: E402

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


def test_what_a_function_leaves_out_needs_no_serialized_form(server):
    """A dictionary without some of the keys: dogpile gives the others NO_VALUE, which JSON has not."""
    one = make_region(serializer=lambda value: json.dumps(value).encode(), deserializer=json.loads)
    one.configure("cattlegrid.dogpile", arguments={"url": server.address, "ttl": 60})
    made = []

    @one.cache_multi_on_arguments(asdict=True, namespace="numbers")
    def tenfold(*numbers):
        made.extend(numbers)
        return {number: 10 * number for number in numbers if number != 3}

    assert tenfold(1, 2, 3) == {1: 10, 2: 20} == tenfold(1, 2, 3)
    assert sorted(made) == [1, 2, 3, 3]


@pytest.mark.parametrize("expiration_time", [None, 1])
@pytest.mark.parametrize("make", [make_region, dogpiles_region])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("end", ["delete", "tag"])
def test_a_value_from_before_a_delete_or_an_invalidation_is_not_stored(server, end, many, make, expiration_time):
    """With an expiration_time: of a value that the server has still, and dogpile takes for expired."""
    if end == "tag" and server.kind != "rules":
        pytest.skip("tags need a rule file")
    one = region(server, make, expiration_time, **({"tag": "reports"} if end == "tag" else {}))
    begun, ended, slow, data = threading.Event(), threading.Event(), [False], ["first"]

    def create(*keys):
        value = data[0]
        if slow[0]:
            slow[0] = False
            begun.set()
            assert ended.wait(10)
        return [value for _ in keys] if keys else value

    def ask():
        return one.get_or_create_multi(["page:1", "other"], create)[0] if many else one.get_or_create("page:1", create)

    assert ask() == "first"
    if expiration_time is None:
        one.delete("page:1")
    else:
        time.sleep(1.1)
    slow[0], data[0] = True, "old"
    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(10)
    data[0] = "new"
    one.actual_backend.invalidate() if end == "tag" else one.delete("page:1")
    ended.set()
    thread.join()
    assert [ask(), ask()] == ["new", "new"]


def test_a_process_that_has_waited_and_computes_again_does_not_replace_a_newer_value(server):
    """dogpile's own get_or_create_multi computes although the value for which it has waited is there."""
    one, other = region(server, dogpiles_region), region(server)
    begun, ended, waiting, created = (threading.Event() for _ in range(4))

    def slow():
        begun.set()
        assert ended.wait(10)
        return "first"

    def create(*keys):
        waiting.set()
        assert created.wait(10)
        return ["old" for _ in keys]

    first = threading.Thread(target=lambda: other.get_or_create("page:1", slow))
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=lambda: one.get_or_create_multi(["page:1"], create))
    second.start()
    time.sleep(0.3)
    ended.set()
    assert waiting.wait(10)
    other.delete("page:1")
    created.set()
    first.join()
    second.join()
    assert other.get("page:1") is NO_VALUE


@pytest.mark.parametrize("expiration_time", [None, 1])
@pytest.mark.parametrize("make", [make_region, dogpiles_region])
def test_keys_that_memcached_does_not_take(server, make, expiration_time):
    """dogpile joins the arguments of a function by blanks."""
    tagged = {"tags": lambda key: [key.rsplit("|", 1)[-1].split(" ")[0][:50]]} if server.kind == "rules" else {}
    one = region(server, make, expiration_time, **tagged)
    made = []

    @one.cache_on_arguments()
    def two(a, b):
        made.append((a, b))
        return [a, b]

    @one.cache_multi_on_arguments(namespace="many")
    def many(*names):
        return [name.upper() for name in names]

    for arguments in ((1, 2), ("x y", 1), ("\u00fc", 3), ("a" * 300, 1), ("a" * 242, 1)):
        assert two(*arguments) == list(arguments) == two(*arguments)
    assert len(made) == 5 or expiration_time
    assert many("a b", "c") == ["A B", "C"] == many("a b", "c")
    assert one.get("a key") is NO_VALUE
    one.set_multi({"a key": 1, "key": 2})
    assert one.get_multi(["a key", "key", "a%20key"]) == [1, 2, NO_VALUE]
    one.delete_multi(["a key"])
    assert one.get("a key") is NO_VALUE
    if expiration_time:
        time.sleep(1.1)
        assert two("a" * 242, 1) == ["a" * 242, 1] and len(made) > 5
    two.invalidate(1, 2)
    two(1, 2)
    assert made[-1] == (1, 2)
    if server.kind == "rules":
        two.set([0], "x", 2)
        one.backend.cache.invalidate("x")
        assert two.get("x", 2) is NO_VALUE


def test_keys_that_memcached_does_not_take_keep_what_a_rule_reads():
    assert name_of("module:f|1") == "module:f|1"
    assert name_of("module:f|1 2").startswith("module:f|sha256-") and len(name_of("module:f|1 2")) == 16 + 64
    assert name_of("module:f|ns|1 2").startswith("module:f|ns|sha256-")
    assert name_of("a b|c").startswith("sha256-") and name_of("x" * 300).startswith("sha256-")
    assert len({name_of(key) for key in ("module:f|1 2", "module:f|1%202", "module:f|1_2", "module:f|1  2")}) == 4


def test_a_value_that_goes_between_two_questions(server, monkeypatch):
    from cattlegrid import dogpile

    one = region(server)
    one.set_multi({"page:1": 1, "page:2": 2})
    ask = dogpile.ask

    def asking(key, milliseconds):
        one.delete("page:1")
        return ask(key, milliseconds)

    monkeypatch.setattr(dogpile, "ask", asking)
    assert one.get_multi(["page:1", "page:2"])[1] == 2
    monkeypatch.undo()
    assert one.get_or_create_multi(["page:1", "page:2"], lambda *keys: [3 for _ in keys])[1] == 2


def test_one_text_is_one_tag(ruled):
    one = region(ruled, tags="reports")
    one.set("page:1", 1)
    one.backend.cache.invalidate("reports")
    assert one.get("page:1") is NO_VALUE
    one = region(ruled, tags=lambda key: f"of:{key}")
    one.set("page:1", 1)
    one.backend.cache.invalidate("of:page:1")
    assert one.get("page:1") is NO_VALUE


def test_program_of_the_page(tmp_path):
    server = started("rules", rules=pages.rules("python-dogpile.md"))
    try:
        assert pages.write("python-dogpile.md", tmp_path, server.address) == ["region.py"]
        runpy.run_path(str(tmp_path / "region.py"))
    finally:
        server.stop()
