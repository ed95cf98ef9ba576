"""Loaders over time: refreshes that no client waits for, and reloads under load, some of them broken.

`LOADER_RELOADS=100 LOADER_SECONDS=60` is the long form.
"""

import os
import signal
import threading
import time

import pytest

from crowd import percentiles, show, until_held
from harness import wait_until
from loaders import of_loader, of_rule, rules, value, workers
from test_herd import raws

pytestmark = pytest.mark.only_cattlegrid

RELOADS = int(os.environ.get("LOADER_RELOADS", 30))
SECONDS = float(os.environ.get("LOADER_SECONDS", 20))


class Readers:
    """Threads that call `read(connection, n, turn)` until they are stopped, or one fails."""

    def __init__(self, scene, count, read, pause=0.002):
        self.over, self.failed, self.times, self.pause = threading.Event(), [], [], pause
        self.threads = [threading.Thread(target=self.run, args=(scene, read, n), daemon=True) for n in range(count)]

    def run(self, scene, read, n):
        turn = 0
        try:
            with scene.server.raw(90) as c:
                while not self.over.wait(self.pause):
                    turn += 1
                    since = time.monotonic()
                    read(c, n, turn)
                    self.times.append(time.monotonic() - since)
        except Exception as error:
            self.failed.append(error)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(90)

    def check(self):
        assert not self.failed, self.failed[:3]


# Refreshes


def test_steady_reads_of_keys_that_expire(scene, capsys):
    """No client waits: each expiry is one refresh for all readers."""
    keys = 40
    scene.start_wide(rules('hold = "30s"\nttl = "1s"\ngrace = "1d"\n', load=2))
    scene.write("delay", "0.02")
    with scene.server.raw(90) as c:
        for n in range(keys):
            assert c.get(b"page:%d" % n) == b"%d=0" % n
            assert c.set(b"plain:%d" % n, b"p") == b"STORED"
    held = scene.rule_stats()["held"]
    plain = []

    def read(c, n, turn):
        key = turn % keys
        assert c.get(b"page:%d" % key) == b"%d=0" % key
        since = time.monotonic()
        assert c.get(b"plain:%d" % key) == b"p"
        plain.append(time.monotonic() - since)

    began = time.monotonic()
    with Readers(scene, 8, read) as readers:
        readers.over.wait(SECONDS)
        readers.check()
    lasted = time.monotonic() - began
    readers.check()
    assert scene.rule_stats()["held"] == held, "a client has waited"
    stats = scene.check_sums()
    assert stats["jobs"] == stats["values"] and stats["refreshes"] == stats["jobs"] - keys and stats["late"] == 0, stats
    # A refresh of a key that was read at each of its expiries, one a second of the server's clock at most; and the first value.
    most = max(scene.keys().count(f"page:{n}") for n in range(keys))
    assert SECONDS / 4 < most <= lasted + 3, most
    both, hits = ([round(1000 * x, 2) for x in percentiles(times)[:2]] for times in (readers.times, plain))
    show(capsys, f"{SECONDS:.0f} s, {len(plain)} pairs of gets, {stats['refreshes']} refreshes; p50, p99 of hits without a rule {hits} ms, of both gets {both} ms")


def test_a_refresh_that_fails_leaves_the_old_value(scene):
    scene.start(of_rule("page:{id}", "lines", 'hold = "30s"\nttl = "1s"\ngrace = "1d"\n') + of_loader("lines", "lines.py", mode="jsonl"))
    scene.write("say", '{"id":"ID","value":"first"}')
    with scene.server.raw() as c:
        assert c.get(b"page:1") == b"first"
        scene.write("say", '{"id":"ID","error":"no"}')

        def tried():
            assert c.get(b"page:1") == b"first"
            return scene.stats("lines")["errors"] >= 2

        wait_until("refreshes fail", tried, 60)
        scene.write("say", '{"id":"ID","value":"second"}')
        wait_until("a refresh brings the new value", lambda: c.get(b"page:1") == b"second", 90)
    assert scene.rule_stats()["held"] == "1"


# Reloads


def test_a_reload_brings_new_code(scene):
    scene.start(rules(load=2))
    with scene.server.raw() as c:
        assert c.get(b"code:1") == b"first"
        old = scene.processes()
        scene.write("code", "second")
        assert c.get(b"code:2") == b"first"
        assert scene.reload()
        assert c.get(b"code:3") == b"second"
        assert c.get(b"code:1") == b"first", "values stay"
        wait_until("the old processes are gone", lambda: not set(old) & set(scene.processes()))
    wait_until("the pool knows it", lambda: scene.stats()["draining"] == 0)
    stats = scene.check_sums()
    assert (stats["jobs"], stats["draining"]) == (3, 0), "counters stay"


@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_a_job_of_the_old_generation_ends_in_it(scene, mode):
    """Its value counts."""
    scene.start(rules(mode=mode, max=2))
    scene.close_gate()
    a, b = raws(scene.server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    scene.write("code", "second")
    assert scene.reload()
    b.send(b"get code:1\r\n")
    assert value(b) == b"second"
    scene.open_gate()
    assert value(a) == b"1=0"
    assert b.get(b"page:1") == b"1=0"
    wait_until("the old generation is gone", lambda: scene.stats()["draining"] == 0)
    assert scene.check_sums()["values"] == 2


@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_a_reload_with_one_worker(scene, mode):
    """`max = 1`, and the worker has a job: the job ends as it should, its clients get the value, and the new code counts afterwards."""
    scene.start(rules(mode=mode, max=1))
    scene.close_gate()
    a, b = raws(scene.server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    scene.write("code", "second")
    before = scene.reloads()
    scene.server.signal(1)
    b.send(b"get code:1\r\n")
    until_held(scene.server, 2)
    scene.open_gate()
    assert value(a) == b"1=0"
    assert value(b) in (b"first", b"second")
    wait_until("reloaded", lambda: scene.reloads() != before, 60)
    assert scene.reloads() == (before[0] + 1, before[1]), scene.whole_log()
    assert b.get(b"code:2") == b"second"
    scene.check_sums()
    scene.end()


BROKEN = ["toml", "program", "raise"]


def break_it(scene, how):
    """A rule file or a program that cannot be used; returns what puts it right."""
    good = open(scene.config).read()
    if how == "raise":
        scene.write("starting", "raise")
        return lambda: scene.remove("starting")
    broken = {
        "toml": good + "[[rule]]\nmatch = 5\n",
        "gone": good.replace("pages.py", "missing.py"),
        "program": good.replace("command = [", 'command = ["/no/such/program", '),
    }
    scene.rewrite(broken[how])
    return lambda: scene.rewrite(good)


@pytest.mark.parametrize("how", [*BROKEN, "gone"])
def test_a_broken_reload_changes_nothing(scene, how):
    scene.start(rules())
    with scene.server.raw() as c:
        assert c.get(b"code:1") == b"first"
        before = scene.templates()
        scene.write("code", "second")
        mend = break_it(scene, how)
        assert not scene.reload()
        assert c.get(b"code:2") == b"first"
        assert scene.templates() == before
        why = {"toml": "match", "program": "/no/such/program", "raise": "there is no table pages", "gone": "missing.py"}[how]
        wait_until("the log says why", lambda: "nothing reloaded" in scene.whole_log() and why in scene.whole_log())
        mend()
        assert scene.reload()
        assert c.get(b"code:3") == b"second"
    scene.check_sums()
    scene.end()


def test_a_loader_comes_and_goes(scene):
    """Rules and loaders change together; keys that lose their loader are keys that clients compute."""
    one = of_rule("page:{id}") + of_loader()
    both = one + of_rule("code:{id}", "second") + of_loader("second")
    scene.start(one)
    with scene.server.raw() as c:
        assert c.get(b"code:1") is None
        scene.rewrite(both)
        assert scene.reload()
        assert c.get(b"code:1") == b"first"
        scene.rewrite(one)
        assert scene.reload()
        assert c.get(b"code:2") is None
        assert scene.stats("second") == {}
        assert c.get(b"page:1") == b"1=0"
        scene.rewrite("[[rule]]\nmatch = \"page:{id}\"\nhold = \"30s\"\n")
        assert scene.reload()
        assert scene.server.stats("loaders") == {}
        assert c.get(b"page:2") is None
    scene.until_no_processes()


def test_waiters_whose_rule_goes(scene):
    """A client that waits for a job of a rule that is gone is answered, and the job's value is dropped."""
    scene.start(rules())
    scene.close_gate()
    a, b = raws(scene.server, 2)
    a.send(b"get page:1\r\n")
    scene.until_jobs(1)
    scene.rewrite("[[rule]]\nmatch = \"other\"\nhold = \"1s\"\n")
    assert scene.reload()
    assert value(a) is None
    scene.open_gate()
    scene.until_no_processes()
    assert b.get(b"page:1") is None


def test_reloads_under_load(scene, capsys):
    """A third of them broken. No answer is lost, new code counts from the reload on, and there are never more than `max` workers."""
    most_workers = 3
    scene.start(rules(max=most_workers, load=2, start="0s"), "-c", "500")
    seen, code = [0], ["first"]

    def read(c, n, turn):
        got = c.get(b"page:%d" % (turn % 500)) if turn % 2 else c.get(b"page:%d-%d" % (n, turn))
        assert got is not None and got.endswith(b"=0"), (turn, got)

    def count(*_):
        # Those that were there before and after were there together.
        alive = set(workers(scene)) & set(workers(scene))
        seen[0] = max(seen[0], len(alive))

    good = broken = 0
    took = []
    with Readers(scene, 6, read) as readers, Readers(scene, 1, count) as counter:
        with scene.server.raw(90) as c:
            for n in range(RELOADS):
                mend = break_it(scene, BROKEN[n // 3 % 3]) if n % 3 == 2 else None
                scene.write("code", f"code-{n}")
                since = time.monotonic()
                taken = scene.reload(90)
                took.append(time.monotonic() - since)
                assert taken == (mend is None), n
                if mend is None:
                    good, code[0] = good + 1, f"code-{n}"
                else:
                    broken += 1
                    mend()
                assert c.get(b"code:%d" % n) == code[0].encode(), n
                readers.check()
                counter.check()
    readers.check()
    counter.check()
    assert (good, broken) == (RELOADS - RELOADS // 3, RELOADS // 3)
    assert scene.reloads()[0] == good
    wait_until("old generations are gone", lambda: len(scene.templates()) == 1 and scene.stats()["draining"] == 0, 60)
    stats = scene.check_sums()
    # A reload takes back what no worker has begun, and it is ordered anew.
    assert stats["values"] + stats["cancelled"] == stats["jobs"], stats
    assert 1 <= seen[0] <= most_workers, seen
    show(
        capsys,
        f"{good} reloads and {broken} broken ones: median {sorted(took)[len(took) // 2] * 1000:.0f} ms; {len(readers.times)} gets, "
        f"p99 {percentiles(readers.times)[1] * 1000:.0f} ms, {stats['jobs']} jobs, at most {seen[0]} workers",
    )
    scene.end()


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("mode", ["template", "exec", "stdio", "jsonl"])
def test_gets_that_wait_outlive_reloads(scene, mode, most):
    """Keys queue for a slow function while the rule file is read again and again: each get has its value."""
    scene.start(rules(mode=mode, max=most))
    scene.write("delay", "0.2")
    clients = raws(scene.server, 20)
    for n, c in enumerate(clients):
        c.send(b"get page:%d\r\n" % n)
    scene.write("code", "new")
    for _ in range(3):
        assert scene.reload()
    [last] = raws(scene.server, 1)
    last.send(b"get code:1\r\n")
    assert [value(c) for c in clients] == [b"%d=0" % n for n in range(20)]
    assert value(last) == b"new"
    wait_until("old generations are gone", lambda: scene.stats()["draining"] == 0, 60)
    stats = scene.check_sums()
    assert (stats["values"], stats["errors"], stats["lost"], stats["refused"]) == (21, 0, 0, 0), stats
    scene.end()


def test_reloads_leave_no_descriptors(scene):
    """Without a look at `stats loaders` generations go by themselves, those with jobs as well, and those that cannot start."""
    scene.start(rules(idle=1) + of_rule("other:{id}", "other") + of_loader("other"))
    pid = scene.server.pid

    def opened():
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    def quiet():
        """With one template each, and a worker for the first."""
        wait_until("old generations are gone", lambda: len(scene.processes()) == 3, 60)
        wait_until("descriptors are closed", lambda: opened() <= before, 60)

    with scene.server.raw(90) as c:
        wait_until("two templates and a worker", lambda: len(scene.processes()) == 3, 60)
        before = opened()
        for n in range(RELOADS):
            assert c.get(b"page:%d" % n) == b"%d=0" % n
            mend = break_it(scene, BROKEN[n // 3 % 3]) if n % 3 == 2 else None
            assert scene.reload(90) == (mend is None)
            if mend is not None:
                mend()
        quiet()
    with scene.server.raw(90) as c:
        # A job of each generation is under way.
        scene.write("delay", "1")
        for n in range(5):
            c.send(b"get page:slow-%d\r\n" % n)
            assert scene.reload(90)
            assert value(c) == b"slow-%d=0" % n
        quiet()


def test_reloads_one_after_the_other_at_once(scene):
    """Signals that come while a reload runs are one more reload."""
    scene.start(rules())
    for n in range(20):
        scene.write("code", f"code-{n}")
        scene.server.signal(1)
    scene.write("code", "last")
    scene.server.signal(1)

    def last():
        with scene.server.raw() as c:
            return c.get(b"code:%d" % time.monotonic_ns()) == b"last"

    wait_until("the last one counts", last, 60)
    wait_until("one template", lambda: len(scene.templates()) == 1, 60)


def test_the_server_serves_while_a_loader_starts_slowly(scene, capsys):
    """A reload whose program does not get ready: connections are accepted, gets and jobs go on, until it dies or `start_timeout` is over."""
    scene.start(rules(start_timeout="30m"))
    with scene.server.raw() as c:
        assert c.get(b"page:1") == b"1=0"
    [old] = scene.templates()
    scene.write("starting", "sleep")
    before = scene.reloads()
    scene.server.signal(1)
    wait_until("the new program has begun", lambda: len(scene.templates()) == 2, 60)
    since = time.monotonic()
    for n in range(50):
        with scene.server.raw() as c:
            assert c.get(b"page:1") == b"1=0"
            assert c.get(b"page:new-%d" % n) == b"new-%d=0" % n
    assert scene.reloads() == before
    show(capsys, f"50 connections and jobs in a reload: {time.monotonic() - since:.2f} s")
    [new] = set(scene.templates()) - {old}
    os.kill(new, signal.SIGKILL)
    wait_until("the log says that nothing is reloaded", lambda: scene.reloads()[1] > before[1], 60)
    scene.rewrite(rules(start_timeout="1s"))
    assert not scene.reload()
    wait_until("the one that did not start is gone", lambda: scene.templates() == [old], 60)
